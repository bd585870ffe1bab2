"""Physical limits are told before a run: their conditions, and the commands that print them."""

import math

import pandas as pd
import pytest

from scenarios import api
from scenarios.experiment import command
from scenarios.spec.load import Override, load_scenario
from scenarios.spec.physical_limits import LIMITS, notes_on, small_message_error
from scenarios.studies import collectives, grains, harness, permutation, sizing

FAR = {"conditions.wan_rate": "200 Gbit/s", "conditions.wan_delay": "300 ms", "fabric.gpus": 4}


def told(**given):
    keys = {key.replace("__", "."): value for key, value in given.items()}
    configs = load_scenario("paper", [Override(key, value, key) for key, value in keys.items()]).configurations()
    return [*notes_on(configs, emulates=False)]


def test_the_paper_s_configurations_are_within_every_limit():
    assert not told() and not told(collective__chunk="64 MB", conditions__wan_delay="10 ms")
    assert not told(fabric__gpus=16, fabric__grain="physical")
    assert all(limit.rests_on for limit in LIMITS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (FAR | {"collective.chunk": "400 MB"}, r"needs up to 15 GB under way .* at most 1\.07 GB"),
        ({"collective.chunk": "10 kB"}, r"messages of 10 kB are so small .* to send one by up to 2.4 %"),
        ({"collective.chunk": "1 B"}, "messages of at most a byte are so small .* by up to a factor of 245"),
        ({"conditions.wan_rate": "1 Gbit/s", "collective.chunk": "100 kB"}, "messages of 100 kB"),
        ({"fabric.routing": "te", "collective.chunk": "480 kB"}, "messages of 30 kB are so small"),  # a tunnel's
        ({"conditions.intra_rate": "20-800 Gbit/s"}, "800 Gbit/s are faster than the 400 Gbit/s"),
        ({"conditions.every": "100 us"}, "change every 100 us, sooner than the 200 us"),
        ({"conditions.wan_rate": "1 Mbit/s"}, "56 MB of a connection take 448 s at the slowest link"),
    ],
)
def test_each_limit_is_told_with_its_value_and_what_is_right(given, words):
    (note,) = told(**given)
    assert pd.Series([note]).str.contains(words, regex=True).all(), note


@pytest.mark.parametrize("given", [FAR | {"collective.chunk": "100 MB"}, {"conditions.every": "200 us"}])
def test_what_is_just_within_a_limit_is_not_told(given):
    assert not told(**given)


def test_a_note_names_the_configurations_of_a_sweep_that_it_is_about():
    (note,) = told(sweep__collective__chunk=["8 MB", "10 kB"])
    assert note.startswith("10 kB blocks, 80 kB buffer: messages of 10 kB")


def test_the_same_limit_with_other_values_is_one_note_with_the_configurations_of_each():
    (note,) = told(sweep__collective__chunk=["8 MB", "10 kB", "20 kB"], sweep__fabric__gpus=[4, 8])
    alone = [told(collective__chunk=size)[0].rpartition("by up to ")[2] for size in ("10 kB", "20 kB")]
    for share, (size, buffers) in zip(alone, (("10 kB", (40, 80)), ("20 kB", (80, 160))), strict=True):
        names = [
            f"{gpus} GPUs, {size} blocks, {buffer} kB buffer" for gpus, buffer in zip((4, 8), buffers, strict=True)
        ]
        assert f"{size} by up to {share} ({'; '.join(names)})" in note
    assert note.startswith("messages are so small that headers") and "8 MB" not in note
    (note,) = told(sweep__conditions__wan_rate=["1 Mbit/s", "2 Mbit/s"])
    assert "56 MB for 448 s (wan rate 1 Mbit/s); 56 MB for 224 s (wan rate 2 Mbit/s)" in note


@pytest.mark.parametrize("size", [1, 8948, 8949, 100_000, 10**8])
def test_the_error_of_small_messages_is_that_of_counting_every_frame_and_label(size):
    frames = math.ceil(size / 8948)
    by_hand = (size + 66 * frames + 2 * 90) * 8948 / 9014 / size - 1
    assert small_message_error(size, slowest_bps=1.0) == pytest.approx(by_hand)
    assert small_message_error(10**9, slowest_bps=800e12) == pytest.approx(800e12 / 8 * 64e-9 / 10**9)


def test_what_limits_rdma_is_told_and_not_what_limits_tcp():
    long = {"conditions__wan_delay": "20 ms", "conditions__wan_rate": "100 Gbit/s", "collective__chunk": "100 MB"}
    assert not [note for note in told(**long) if "window" in note]
    notes = told(transport__protocol="verbs", **long)
    (window,) = [note for note in notes if "window" in note]
    assert "soft-RoCE's window has at most 0.268 GB: measured times will be longer" in window
    (rounded,) = [note for note in notes if "whole ns" in note]
    fastest_bps = 200e9  # of links within sites, by default
    assert f"takes {8e9 * 4096 / fastest_bps:.0f} ns on links of 200 Gbit/s" in rounded
    slow = {"conditions__wan_rate": "10 Gbit/s", "conditions__intra_rate": "10 Gbit/s"}
    assert not [note for note in told(transport__protocol="verbs", **slow) if "whole ns" in note]


def test_run_and_every_study_print_the_same_note_before_they_run(capsys):
    words = "messages of 1 kB are so small"
    assert command.run(["--dry-run", "--chunk", "1 kB"]) == 0
    assert f"run.py: {words}" in capsys.readouterr().err
    options = ("--from", "8 kB", "--to", "8 kB", "--collectives", "1", "--modes", "base", "--algorithms", "direct")
    assert harness.main(collectives.STUDY, ["--kind", "alltoall", *options]) == 0
    assert f"collectives.py: {words}" in capsys.readouterr().err
    few = ("--gpus", "8", "--collectives", "2", "--kinds", "allgather", "--algorithms", "ring")
    assert harness.main(grains.STUDY, ["--size", "8 kB", "--grains", "logical", *few]) == 0
    assert f"grains.py: {words}" in capsys.readouterr().err
    assert harness.main(permutation.STUDY, ["--hosts", "16", "--draws", "1", "--size", "1 kB"]) == 0
    assert f"permutation.py: {words}" in capsys.readouterr().err


def test_what_the_emulation_refuses_is_not_told_in_addition(capsys):
    words, options = "TCP resends what waits for more than", ("--modes", "base", "--collectives", "1", "--no-report")
    slow = ["--set", "conditions.wan_rate=1 Mbit/s", *options]
    assert command.run(["--engine", "emulation", *slow]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if words in one]
    assert "allowed: 9.9 MB on a connection, or faster links" in line
    assert command.run(["--dry-run", *slow]) == 0
    (line,) = [one for one in capsys.readouterr().err.splitlines() if words in one.replace("about ", "")]
    assert line.endswith("measured times will be longer than predicted")


def test_a_path_that_holds_more_than_tcp_s_window_is_told_of_collectives_and_of_programs(capsys):
    fast = ["--dry-run", "--set", "conditions.wan_rate=200 Gbit/s", "--wan-delay"]
    of_program = "a program's connection alone cannot fill the path"
    for sent, then in ((["--chunk", "2 GB"], "measured times will be longer"), (["--exec", "true"], of_program)):
        for delay, holds in (("20 ms", None), ("25 ms", "1.25 GB")):  # the window has 2^30 bytes
            assert command.run([*fast, delay, *sent]) == 0
            told = [one for one in capsys.readouterr().err.splitlines() if "TCP's window" in one]
            assert len(told) == (holds is not None) and all(holds in one and then in one for one in told)


def test_the_api_warns_of_each_limit_once_and_a_study_that_uses_it_prints_it_once(recwarn, capsys):
    small = api.scenario("paper", {"collective.chunk": "1.5 kB", "collective.count": 1, "run.modes": ["base"]})

    def warned() -> list[str]:  # an earlier test's file that is collected now warns, too
        return [str(one.message) for one in recwarn.list if one.category is api.ScenarioWarning]

    assert not warned()
    api.run(small)
    assert len(warned()) == 1 and warned()[0].startswith("messages of 1.5 kB are so small")
    few = ("--gpus", "8", "--collectives", "2", "--kinds", "allgather", "--algorithms", "ring")
    assert harness.main(grains.STUDY, ["--size", "8 kB", "--grains", "logical", *few]) == 0
    assert capsys.readouterr().err.count("are so small") == 1 and len(warned()) == 1


def test_the_options_of_studies_tell_that_a_quantity_is_rounded(capsys):
    assert harness.main(sizing.STUDY, ["--nic", "1000000000.4 bit/s"]) == 0
    said = 'run.py sizing: --nic: "1000000000.4 bit/s" is rounded to whole bit/s'
    assert said in capsys.readouterr().err.splitlines()


def test_a_study_warns_of_measured_times_that_are_not_the_model_s():
    row = {"engine": "emulation", "setting": 0, "mode": "wan", "completion_s": 23.661e-3, "predicted_s": 1.803e-3}
    row |= {"drops": 0, "retransmitted_bytes": 4e6, "quickest_transfer": math.nan, "late": False}
    said = harness.warnings_of(pd.DataFrame([row, row]))
    assert said[0].startswith("WARNING: measured times differ from the model's by more than 1%")
    assert "wan: median 13.1231" in said[0] and "TCP retransmitted in wan" in said[1]
