"""Jobs: their declaration in a scenario, background traffic, predictions, stored results, classes, and measurements."""

import json
import re
from contextlib import closing

import numpy as np
import pytest

from analysis.figures import run_points
from analysis.results import reader
from analysis.results.reader import open_run
from analysis.results.rows import Point
from analysis.results.writer import Writer
from hosts.collectives.background import PATTERNS, background
from hosts.collectives.schedule import Flow, ScheduleError
from scenarios.engines import preflight
from scenarios.engines.base import Slice
from scenarios.engines.emulation import check_waits
from scenarios.engines.model import Model
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.engines.preflight import check_vm
from scenarios.experiment import command
from scenarios.experiment.stored_settings import settings_as_json
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError, classes
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from scenarios.spec.scenario import Axis, Scenario, from_json, to_json
from scenarios.vm import NoRoomError
from tests.conftest import PROJECT
from tests.fakes.runs import ended, measured_as_recorded

GOAL = str(PROJECT / "tests" / "data" / "goal" / "allreduce_ring_calc.goal")
NOISE = {"kind": "background", "pattern": "poisson", "rate": "5 Gbit/s", "duration": "4 ms"}
TENANTS = [
    {"name": "a", "ranks": [0, 1, 4, 5]},
    {"name": "b", "ranks": [2, 3, 6, 7], "kind": "allreduce", "size": "16 MB", "start": "1 ms", "count": 2},
]


def scenario(*jobs, **values):
    overrides = [Override("job", list(jobs), "job")]
    overrides += [Override(key.replace("__", "."), value, key) for key, value in values.items()]
    return load_scenario("paper", overrides)


def setting(*jobs, **values):
    (found,) = scenario(*jobs, **values).configurations()
    return found


# --- declaration ----------------------------------------------------------------------------------------------------


def test_declared_jobs_survive_reading_and_writing():
    found = scenario(
        *TENANTS,
        {"kind": "messages", "schedule": GOAL, "ranks": [3, 2, 1, 0]},
        {"kind": "allgather", "algorithm": "direct", "chunk": "1 MB", "pieces": 2},
        {"name": "noise", **NOISE, "chunk": "100 kB", "start": "1 ms"},
    )
    assert [job.name for job in found.jobs] == ["a", "b", "job3", "job4", "noise"]
    assert scenario_of(resolved(found)) == found
    (one,) = found.configurations()
    assert from_json(to_json(one)) == one
    assert [job["name"] for job in settings_as_json(found)[0]["jobs"]] == [job.name for job in found.jobs]
    assert one.workload.jobs[1].start_s == 1e-3 and one.workload.jobs[4].is_background


def test_a_schedule_path_is_relative_to_the_scenario_file(tmp_path):
    (tmp_path / "mine.goal").write_bytes((PROJECT / "tests/data/goal/allreduce_ring_calc.goal").read_bytes())
    path = tmp_path / "mine.toml"
    path.write_text('[[job]]\nkind = "messages"\nschedule = "mine.goal"\nranks = [0, 1, 2, 3]\n')
    assert load_scenario(str(path)).jobs[0].schedule == tmp_path / "mine.goal"


@pytest.mark.parametrize(
    ("job", "spec"),
    [
        ({}, {"kind": "allgather", "algorithm": "ring", "channels": 2}),
        ({"kind": "allgather", "chunk": "1 MB"}, {"channels": 2, "chunk_bytes": 1_000_000, "size_bytes": None}),
        ({"kind": "allreduce"}, {"kind": "allreduce", "algorithm": None, "channels": 1}),
        ({"algorithm": "bruck"}, {"algorithm": "bruck", "channels": 1, "size_bytes": 64_000_000}),
        ({"channels": 3, "size": "1 MB"}, {"algorithm": "ring", "channels": 3, "size_bytes": 1_000_000}),
        ({"kind": "messages", "schedule": GOAL}, {"kind": "messages", "algorithm": None, "channels": 1}),
    ],
)
def test_keys_that_a_job_leaves_out_come_from_the_collective_table(job, spec):
    default = CollectiveSpec(algorithm="ring", channels=2, size_bytes=64_000_000, chunk_bytes=8_000_000)
    (read,) = scenario({"ranks": [0, 1, 2, 3]} | job if "schedule" in job else job).jobs
    found = read.collective(default)
    assert {key: getattr(found, key) for key in spec} == spec


@pytest.mark.parametrize(
    ("job", "place", "words"),
    [
        ({"rank": [0, 1]}, ".rank", "unknown key of a job.*did you mean ranks"),
        ({"ranks": [0]}, ".ranks", "a list of two ranks or more"),
        ({"ranks": [0, 0]}, ".ranks", "lists a rank twice"),
        ({"ranks": [0, 8]}, ".ranks", "there is no rank 8; allowed: 0 to 7"),
        ({"kind": "allgathr"}, ".kind", "allowed: allgather, "),
        ({"count": 0}, ".count", "0 is too small; allowed: a whole number from 1"),
        ({"count": True}, ".count", "true is a boolean; allowed: a whole"),
        ({"start": "2 parsecs"}, ".start", "2 parsecs"),
        ({"start": "-0 s"}, ".start", "-0 s"),
        ({"name": "a b"}, ".name", "is not allowed; allowed: 1 to 32 letters"),
        ({"name": "a"}, ".name", "is that of another job"),
        ({"chunk": "1 MB", "size": "1 MB"}, ".size", "is given together with chunk"),
        ({"kind": "background", "pattern": "poisson", "rate": "1 Gbit/s"}, ".duration", "is missing; allowed: text"),
        ({**NOISE, "pattern": "storm"}, ".pattern", "allowed: permutation, poisson, on-off"),
        ({**NOISE, "duration": "900 s"}, "", "job2: background traffic of about .* messages; allowed: 20,000"),
        ({"algorithm": "tree"}, "", 'job2: "tree" is not an algorithm of allgather'),
        ({"kind": "messages", "schedule": GOAL}, "", "job2: .*allowed: the kind messages and 4 GPUs"),
    ],
)
def test_an_invalid_job_is_refused_in_one_sentence_with_its_key(job, place, words):
    with pytest.raises(ScenarioError) as refusal:
        scenario({"name": "a"}, job)
    (line,) = refusal.value.mistakes
    assert re.match(rf"job\[2\]{re.escape(place)}: .*{words}", line), line


def test_a_job_that_inherits_a_schedule_for_other_gpus_is_blamed_with_what_it_may_have_instead():
    keys = {"collective__kind": "messages", "collective__schedule": str(GOAL)}
    with pytest.raises(ScenarioError) as refusal:
        scenario({"ranks": [0, 1, 4, 5]}, {"name": "b", "ranks": [2, 3]}, **keys)
    (line,) = refusal.value.mistakes
    assert re.match(r"job\[2\]: b: .*between 4 GPUs, asked for as messages between 2; allowed: ", line), line
    assert line.endswith("the kind messages and 4 GPUs, or a schedule of its own in place of collective.schedule")


def test_a_messages_job_keeps_the_sizes_of_its_schedule_file_beside_other_jobs():
    messages = {"kind": "messages", "schedule": GOAL, "ranks": [0, 1, 4, 5]}
    both, alone = setting({}, messages, collective__size="4 MB"), setting(messages)
    of_messages = both.workload.jobs[1].transfers
    sizes = [one.amount for one in both.workload.schedule.transfers[of_messages.start : of_messages.stop]]
    assert sizes == [one.amount for one in alone.workload.schedule.transfers]


def test_labels_of_swept_configurations_say_without_classes_or_without_jobs():
    labels = [one.label for one in Scenario(sweep=(Axis("class", ((), classes.read([GOLD]))),)).configurations()]
    assert labels[0].endswith("10 us, without classes") and labels[1].endswith("10 us, class gold (priority 2)")
    (label,) = [one.label for one in load_scenario("paper", [Override("sweep.job", [[]], "job")]).configurations()]
    assert label.endswith("10 us, ring slowest edge, without jobs")


def test_a_label_has_the_classes_that_its_own_jobs_have():
    """A job without a class must not end with the words of another configuration's class."""
    plain, gold = {"name": "small", "size": "4 MB"}, {"name": "small", "size": "4 MB", "class": "gold"}
    jobs = [[{"name": "big"}, plain], [{"name": "big"}, gold], [plain]]
    overrides = [Override("sweep.job", jobs, "job"), Override("class", [GOLD], "class")]
    labels = [one.label for one in load_scenario("paper", overrides).configurations()]
    assert [label.endswith("class gold (priority 2)") for label in labels] == [False, True, False]
    assert ["gold" in label for label in labels] == [False, True, False]


def test_each_configuration_of_a_run_with_jobs_has_a_line_of_them_and_its_own_words(tmp_path):
    """The time of a job alone is what the others are compared with."""
    (tmp_path / "jobs.toml").write_text("""
        [collective]
        size = "32 MB"
        count = 3
        [run]
        modes = ["base"]
        [[class]]
        name = "gold"
        priority = 0
        [sweep]
        job = [
            [{ name = "big" }, { name = "small", ranks = [0, 1, 4, 5] }],
            [{ name = "big" }, { name = "small", ranks = [0, 1, 4, 5], class = "gold" }],
            [{ name = "small", ranks = [0, 1, 4, 5] }],
        ]
    """)
    said, notes = ended("jobs.toml", "--engine", "model", "--no-report", "--out", "out", cwd=tmp_path)
    (lines,) = [part.splitlines()[1:] for part in said.split("\n\n") if part.startswith("the jobs' mean")]
    assert [re.findall(r"(\w+) [\d.]+ ms", line.rpartition(": ")[2]) for line in lines] == [
        ["big", "small"], ["big", "small"], ["small"]
    ]  # fmt: skip
    assert ["gold" in line for line in lines] == [False, True, False]
    fair, by_class = ("max-min fair shares", "the order of priority on WAN links")
    shared = [line for line in notes.splitlines() if "share" in line]
    assert [[words for words in (by_class, fair) if words in line] for line in shared] == [[fair], [by_class, fair]]


def test_a_start_of_zero_equals_the_default_start_of_a_job():
    assert setting({"start": "0 s"}).jobs == setting({}).jobs


def test_a_job_with_too_many_transfers_is_refused_before_they_are_built():
    with pytest.raises(ScenarioError, match="direct among 256 GPUs with 1 channels and 4,096 pieces has 267,386,880"):
        scenario({"kind": "alltoall", "pieces": 4096}, fabric__gpus=256, run__modes=["base"])


def test_jobs_too_large_for_the_emulation_are_refused_with_the_wait_and_the_limit(monkeypatch):
    slow = {"conditions__wan_rate": "100 Mbit/s"}
    with pytest.raises(ValueError, match=r"^job: the 3 GB of a connection take 240 s .*; allowed: 990 MB on a"):
        check_waits([setting({"ranks": [0, 4], "size": "2 GB", "count": 3}, **slow)])
    training = {"collective__kind": "training", "training__activations": "1 GB", "training__micro_batches": 4}
    with pytest.raises(ValueError, match=r"^training: the 4 GB of a connection take 320 s .*; allowed: 990 MB on a"):
        check_waits([setting(**training, **slow)])

    def room(**_):
        raise NoRoomError("no room", room_bytes=10**9, remedy="free some")

    monkeypatch.setattr(preflight.vm, "check", room)
    with pytest.raises(NoRoomError, match="no room"):  # fewer GPUs are no remedy, as the job has rank 7
        check_vm([setting({"ranks": [0, 7], "size": "1 GB"})])


def test_a_scenario_with_background_traffic_only_is_refused():
    with pytest.raises(ScenarioError, match="allowed: at least one job that is not"):
        scenario(NOISE)


def test_rate_scale_divides_background_message_sizes_but_leaves_one_byte_at_least():
    whole = setting({"name": "a"}, {**NOISE, "chunk": "20 kB"})
    scaled = setting({"name": "a"}, {**NOISE, "chunk": "20 kB"}, run__clock="wall", run__rate_scale="1/1000")
    sizes, carried = ([one.size for one in network_messages(found.carried_workload)] for found in (whole, scaled))
    assert min(sizes) < 500 < max(sizes)
    assert carried == [max(1, (2 * size + 1000) // 2000) for size in sizes]
    with pytest.raises(ScenarioError, match="is less than a byte"):
        scenario({"chunk": "400 B"}, run__clock="wall", run__rate_scale="1/1000")


def network_messages(found):
    """Return the messages of a workload, of all its jobs."""
    return [one for one in found.schedule.transfers if isinstance(found.schedule.flows[one.flow], Flow)]


# --- background traffic ---------------------------------------------------------------------------------------------


def messages_of(found):
    """Return the messages of background traffic: earliest send time (s), source, destination, and bytes of each."""
    clock, messages = {}, []
    for transfer in found.schedule.transfers:
        flow = found.schedule.flows[transfer.flow]
        if isinstance(flow, Flow):
            (gate,) = transfer.after
            assert found.schedule.transfers[gate].flow in clock
            messages.append((clock[found.schedule.transfers[gate].flow], flow.src, flow.dst, transfer.size))
        else:
            clock[transfer.flow] = clock.get(transfer.flow, 0.0) + transfer.size
    return messages


@pytest.mark.parametrize("pattern", PATTERNS)
def test_background_traffic_has_the_configured_rate_and_duration_and_follows_its_seed(pattern):
    about = {"places": 6, "rate_bps": 8e9, "message_bytes": 100_000, "duration_s": 0.2}
    messages = messages_of(background(pattern, **about, seed=(7, 1)))
    assert all(0 <= at < 0.2 and src != dst for at, src, dst, _ in messages)
    for place in range(6):
        rate = 8 * sum(size for _, src, _, size in messages if src == place) / 0.2
        # 2,000 messages: evenly spaced ones have the exact rate, and 125 bursts and silences are within 3 deviations.
        assert rate == pytest.approx(8e9, rel={"permutation": 0.001, "poisson": 0.1, "on-off": 0.3}[pattern])
    assert (
        messages_of(background(pattern, **about, seed=(7, 1)))
        == messages
        != messages_of(background(pattern, **about, seed=(8, 1)))
    )


def test_permutation_traffic_has_one_destination_per_rank_and_other_patterns_have_all():
    about = {"places": 7, "rate_bps": 8e9, "message_bytes": 100_000, "duration_s": 0.1, "seed": (1, 0)}
    pairs = {(src, dst) for _, src, dst, _ in messages_of(background("permutation", **about))}
    assert len(pairs) == len({src for src, _ in pairs}) == len({dst for _, dst in pairs}) == 7
    for pattern in ("poisson", "on-off"):
        assert len({(src, dst) for _, src, dst, _ in messages_of(background(pattern, **about))}) == 7 * 6


def test_background_traffic_too_slow_for_a_single_message_is_refused():
    with pytest.raises(ScheduleError, match=r"2\.5e-10 messages on average; allowed: one at least"):
        background("poisson", places=2, rate_bps=1, message_bytes=10**6, duration_s=1e-3, seed=(1, 0))


# --- predictions ----------------------------------------------------------------------------------------------------


def modelled(one, mode="base", count=20):
    conditions = conditions_of(one)
    decisions = decisions_of(one, mode, conditions, start=0, count=count)
    completion_s, of_jobs = Plan(one, mode, decisions, conditions).with_jobs()
    return completion_s, of_jobs and of_jobs.completion_s


def test_jobs_in_separate_sites_complete_as_if_alone_and_the_last_one_ends_the_round():
    apart = {"name": "a", "ranks": [0, 1, 2, 3]}, {"name": "b", "ranks": [4, 5, 6, 7], "start": "2 ms"}
    round_s, both_s = modelled(setting(*apart))
    for number, one in enumerate(apart):
        _, alone_s = modelled(setting(one))
        assert np.allclose(both_s[:, number], alone_s[:, 0], rtol=1e-9)
    assert np.array_equal(round_s, np.maximum(both_s[:, 0], both_s[:, 1] + 2e-3))


def test_a_single_job_takes_the_same_time_as_the_collective():
    round_s, jobs_s = modelled(setting({}), mode="wan")
    alone_s, none = modelled(setting(), mode="wan")
    assert none is None
    assert np.allclose(round_s, alone_s, rtol=1e-9) and np.array_equal(round_s, jobs_s[:, 0])


def test_two_equal_tenants_on_one_wan_link_take_twice_as_long():
    """The WAN is by far the bottleneck, so each message gets half of its rate."""
    alike = {"conditions__intra_rate": "200 Gbit/s", "conditions__wan_rate": "1 Gbit/s"}
    pair = {"kind": "broadcast", "algorithm": "direct", "size": "8 MB"}
    two = {**pair, "ranks": [0, 4]}, {**pair, "ranks": [1, 5]}
    _, both_s = modelled(setting(*two, **alike), count=1)
    _, alone_s = modelled(setting(two[0], **alike), count=1)
    delay_s = 10e-6 + 2 * 700e-9
    assert both_s[0] - delay_s == pytest.approx([2 * (alone_s[0, 0] - delay_s)] * 2, rel=1e-9)
    assert alone_s[0, 0] == pytest.approx(8e6 * 8 / 1e9 + delay_s, rel=1e-9)


def test_background_traffic_slows_a_round_down_but_the_round_does_not_wait_for_its_end():
    quiet_s, _ = modelled(setting(TENANTS[0]))
    noisy = setting(TENANTS[0], {**NOISE, "rate": "20 Gbit/s", "duration": "200 ms"})
    noisy_s, jobs_s = modelled(noisy)
    assert (noisy_s >= quiet_s * (1 - 1e-9)).all() and (noisy_s > quiet_s * 1.01).sum() > 15
    assert (jobs_s[:, 1] > 0.19).all() and (noisy_s < jobs_s[:, 1]).all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_round_has_its_own_draw_of_background_traffic_over_the_same_flows(pattern):
    noisy = setting(TENANTS[0], {**NOISE, "pattern": pattern})
    rounds = [noisy.of_round(number).workload for number in range(4)]
    assert len({one.schedule.flows for one in rounds}) == 1
    assert len({one.schedule.transfers[one.jobs[1].transfers.start :] for one in rounds}) == 4
    assert len({one.foreground_transfers for one in rounds}) == 1
    whole_s, _ = modelled(noisy)
    conditions = conditions_of(noisy)
    for number in (3, 11):  # alone, in another batch
        decisions = decisions_of(noisy, "base", conditions, start=number, count=1)
        assert Plan(noisy, "base", decisions, conditions, number).completion_s()[0] == whole_s[number]


def test_reembedding_exchanges_gpus_only_between_ranks_of_the_same_site_and_jobs():
    one = setting(*TENANTS, collective__reembed_every=1)
    decisions = decisions_of(one, "joint", conditions_of(one), start=0, count=20)
    assert len({tuple(row) for row in decisions.placement.tolist()}) > 1
    for place, group in ((0, {0, 1}), (2, {2, 3}), (4, {4, 5}), (6, {6, 7})):
        assert {int(rank) for rank in decisions.placement[:, place : place + 2].ravel()} == group
    fixed_s, chosen_s = (modelled(one, mode=mode)[0].mean() for mode in ("wan", "joint"))
    assert chosen_s < fixed_s


# --- stored results -------------------------------------------------------------------------------------------------


def test_job_rows_can_be_read_from_an_interrupted_run_and_from_the_completed_run(tmp_path):
    found = scenario(*TENANTS, **{"collective__count": 30, "run__modes": ["base"]})
    point = Point("model", 0, "base")
    (tmp_path / "settings.json").write_text(json.dumps(settings_as_json(found)))
    (tmp_path / "scenario.toml").write_text(resolved(found))
    known = {"format": 1, "started": "now", "ended": None, "seed": 1, "command": []}
    (tmp_path / "provenance.json").write_text(json.dumps(known))
    slices = [one.rows for one in Model(batch=10).run(found.configurations()) if isinstance(one, Slice)]
    for stop in (1, 3):
        with closing(Writer(tmp_path, settings_as_json(found), {point: range(30)})) as writer:
            for rows in slices[:stop]:
                writer.add(point, rows)
            writer.flush()
            jobs = open_run(tmp_path).jobs
            assert len(jobs) == 2 * 10 * stop and jobs.job.to_list()[:2] == ["a", "b"]
    writer.write_tables()
    (tmp_path / "provenance.json").write_text(json.dumps(known | {"ended": "now"}))
    run = open_run(tmp_path)
    both = run.jobs.assign(end_s=run.jobs.start_s + run.jobs.completion_s).groupby("collective").end_s.max()
    assert np.allclose(both.to_numpy(), run.collectives.completion_s.to_numpy(), rtol=1e-12)
    next((tmp_path / reader.PARTS).glob("*.jobs.parquet")).unlink()
    with pytest.raises(reader.ResultsError, match="is damaged"):
        Writer(tmp_path, settings_as_json(found), {point: range(30)})


def test_summary_json_report_and_figures_contain_every_job(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tenants.toml"
    path.write_text(resolved(scenario(*TENANTS, {"name": "noise", **NOISE})))
    wanted = [str(path), "--engine", "model", "--collectives", "20", "--modes", "base,joint", "--json", "--out", "it"]
    assert command.run(wanted) == 0
    run_points = json.loads(capsys.readouterr().out)["points"]
    stored = open_run(tmp_path / "it").jobs
    means_s = stored.groupby(["mode", "job"]).completion_s.mean()
    for point in run_points:
        assert [job["name"] for job in point["jobs"]] == ["a", "b", "noise"]
        assert [job["background"] for job in point["jobs"]] == [False, False, True]
        for job in point["jobs"]:
            assert job["mean_s"] == pytest.approx(means_s[point["mode"], job["name"]], rel=1e-12)
    header = (tmp_path / "it/summary.csv").read_text().splitlines()[0].split(",")
    assert {"job.a.mean_s", "job.b.mean_predicted_s", "job.noise.mean_s"} <= {*header}
    page = (tmp_path / "it/report.html").read_text()
    assert "<h2>Jobs</h2>" in page and "background" in page
    assert len((tmp_path / "it/figures/run-jobs.csv").read_text().splitlines()) == 1 + 3 * 2
    assert (tmp_path / "it/figures/run-timeline.svg").is_file()  # the stored times are those of the stored rounds


# --- classes --------------------------------------------------------------------------------------------------------

GOLD, BRONZE = {"name": "gold", "priority": 2}, {"name": "bronze", "priority": 5}


def test_classes_survive_reading_and_writing_and_are_served_by_priority():
    found = scenario(
        {"name": "a", "class": "bronze"},
        {"name": "b", "class": "gold", "ranks": [0, 1]},
        {"ranks": [2, 3]},
        **{"class": [BRONZE | {"share": 0.25, "ceiling": 0.5}, GOLD]},
    )
    assert scenario_of(resolved(found)) == found
    (one,) = found.configurations()
    assert from_json(to_json(one)) == one
    assert [(each.dscp, each.assured, each.ceiling) for each in classes.services(one.classes)] == [
        (8, 0.0, 1.0),
        (16, 0.25, 0.5),
        (0, 0.0, 1.0),
    ]
    by_channel = {flow.channel: dscp for flow, dscp in zip(one.workload.schedule.flows, one.workload.dscp, strict=True)}
    assert by_channel == {0: 16, 1: 8, 2: 0}


@pytest.mark.parametrize(
    ("tables", "place", "words"),
    [
        ([{"name": "gold"}], r"class\[1\].priority", "is missing"),
        ([GOLD | {"name": "gold, silver"}], r"class\[1\].name", '"gold, silver" is not allowed; allowed: 1 to 32'),
        ([GOLD | {"priority": -1}], r"class\[1\].priority", "-1 is too small; allowed: a whole"),
        ([GOLD, BRONZE | {"priority": 2}], r"class\[2\].priority", "2 is that of another class"),
        ([GOLD, BRONZE | {"name": "gold"}], r"class\[2\].name", "is that of another class"),
        ([GOLD | {"share": 2}], r"class\[1\].share", "2 is too large; allowed: a number from 0 to 1"),
        ([GOLD | {"share": 0.5, "ceiling": 0.4}], r"class\[1\].share", "above the ceiling; allowed: up to 0.4"),
        ([GOLD | {"share": 0.5}, BRONZE | {"share": 0.6}], "class", "the shares are 1.1 together"),
        ([GOLD | {"color": 1}], r"class\[1\].color", "unknown key of a class"),
        ([BRONZE], r"job\[1\].class", '"gold" is not a class; allowed: the name of a .*bronze'),
    ],
)
def test_an_invalid_class_is_refused_in_one_sentence_with_its_key(tables, place, words):
    with pytest.raises(ScenarioError) as refusal:
        scenario({"class": "gold"}, **{"class": tables})
    (line,) = refusal.value.mistakes
    assert re.match(f"{place}: .*{words}", line), line


def test_the_gold_tenant_completes_as_if_alone_only_in_the_configuration_with_classes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.run(["tenants", "--engine", "model", "--collectives", "20", "--modes", "base", "--out", "it"]) == 0
    printed = capsys.readouterr().out
    assert "inference takes " in printed and "training class bronze" in printed
    mean_s = open_run(tmp_path / "it").jobs.groupby(["setting", "job"]).completion_s.mean()
    alone = load_scenario("tenants", [Override("job", [{"ranks": [0, 1, 4, 5]}], "job")]).configurations()[0]
    _, alone_s = modelled(alone)
    assert mean_s[1, "inference"] == pytest.approx(alone_s.mean(), rel=1e-9)
    assert mean_s[0, "inference"] > 1.3 * mean_s[1, "inference"] and mean_s[1, "training"] > mean_s[0, "training"]
    assert {file.name for file in (tmp_path / "it/figures").glob("*jobs.svg")} == {"tenants-jobs.svg"}


# --- in the VM ------------------------------------------------------------------------------------------------------


def test_tenants_sharing_the_wan_take_the_predicted_time_and_the_same_nanoseconds_in_every_boot(tmp_path):
    """The command verifies every byte, and would fail otherwise."""
    path = tmp_path / "tenants.toml"
    noise = {"name": "noise", **NOISE, "chunk": "1 MB", "start": "500 us"}
    path.write_text(resolved(scenario(*TENANTS, noise)))
    wanted = ("--engine", "emulation", "--modes", "base,joint", "--collectives", "3")
    measured_as_recorded(tmp_path / "run", path, *wanted, median=0.01, p99=0.01)
    run = open_run(tmp_path / "run")
    jobs = run.jobs.set_index(["mode", "collective", "job"]).sort_index()
    tenants = jobs[~jobs.background]
    assert len(tenants) == 2 * 3 * 2 and len(jobs) == 2 * 3 * 3
    assert (tenants.completion_s / tenants.predicted_s - 1).abs().max() <= 0.01
    assert (run.collectives.completion_s / run.collectives.predicted_s - 1).abs().max() <= 0.01


@pytest.mark.parametrize("queue", ["fair", "fifo"])
def test_gold_completes_as_if_alone_bronze_gets_the_rest_and_shares_and_ceilings_hold(queue, tmp_path):
    """16 MB of gold and 24 MB of bronze share a WAN link of 10 Gbit/s; alone they take 12.8 and 19.2 ms. Three VMs."""
    pair = {"kind": "broadcast", "algorithm": "direct"}
    wanted = scenario(
        pair | {"name": "g", "ranks": [0, 2], "size": "16 MB", "class": "gold"},
        pair | {"name": "b", "ranks": [1, 3], "size": "24 MB", "class": "bronze"},
        **{"class": [GOLD, BRONZE], "conditions__wan_rate": "10 Gbit/s", "conditions__intra_rate": "100 Gbit/s"},
        fabric__gpus=4,
        run__modes=["base"],
        transport__queue=queue,
    )
    path = tmp_path / "classes.toml"
    assured, capped = [GOLD, BRONZE | {"share": 0.25}], [GOLD | {"ceiling": 0.8}, BRONZE]
    swept = [Override("sweep.class", [[GOLD, BRONZE], assured, capped], "class")]
    path.write_text(resolved(scenario_of(resolved(wanted), swept)))
    ended(path, "--no-report", "--engine", "emulation", "--collectives", "1", "--out", tmp_path / "run", cwd=tmp_path)
    found = open_run(tmp_path / "run").jobs.set_index(["setting", "job"]).sort_index()
    delay_ms = 0.0114
    by_hand_ms = {
        (0, "g"): 12.8,
        (0, "b"): 12.8 + 19.2,
        # Gold, at three quarters of the rate, ends after 17.07 ms; by then bronze, at one quarter, has sent 5.33 MB.
        (1, "g"): 12.8 / 0.75,
        (1, "b"): 12.8 + 19.2,
        # Bronze has a fifth of the rate until gold ends: a class that has waited for a segment of another catches up.
        (2, "g"): 12.8 / 0.8,
        (2, "b"): 12.8 + 19.2,
    }
    for key, ms in by_hand_ms.items():
        measured_ms, predicted_ms = found.loc[key, "completion_s"] * 1e3, found.loc[key, "predicted_s"] * 1e3
        assert predicted_ms - delay_ms == pytest.approx(ms, rel=1e-6), key
        assert measured_ms == pytest.approx(predicted_ms, rel=0.01), key
    assert found.loc[(0, "g"), "completion_s"] * 1e3 < (12.8 + delay_ms) * 1.01
    # Bronze gets over 98 % of the rate that gold leaves.
    assert 19.2 / (found.loc[(0, "b"), "completion_s"] * 1e3 - delay_ms - 12.8) > 0.98


@pytest.mark.parametrize("queue", ["fair", "fifo"])
def test_three_to_five_classes_with_shares_and_ceilings_get_the_parts_that_the_model_gives_them(queue, tmp_path):
    """Jobs of 16 MB, each in a class of its own or in none, share a WAN link of 10 Gbit/s. Two VMs."""

    def classes_of(*parts):
        return [
            {"name": f"c{number}", "priority": number, "share": share, "ceiling": ceiling}
            for number, (share, ceiling) in enumerate(parts)
        ]

    three, five = ((0.5, 0.5), (0, 0.3), (0, 1)), ((0.2, 0.25), (0, 0.3), (0.1, 0.2), (0.15, 0.6), (0.1, 1))
    jobs = [
        {"name": f"j{rank}", "kind": "broadcast", "algorithm": "direct", "ranks": [rank, rank + 5], "size": "16 MB"}
        for rank in range(5)
    ]
    of_three, of_five = (
        [jobs[rank] | {"class": f"c{rank}"} for rank in range(count)] for count in (len(three), len(five))
    )
    rates = {"conditions__wan_rate": "10 Gbit/s", "conditions__intra_rate": "100 Gbit/s"}
    found = {}
    for name, parts, sent in (("three", three, of_three), ("five", five, of_five)):
        fixed = {"fabric__gpus": 10, "run__modes": ["base"], "transport__queue": queue}
        one = scenario(*sent, **{"class": classes_of(*parts)}, **rates, **fixed)
        path = tmp_path / f"{name}.toml"
        path.write_text(resolved(one))
        out = tmp_path / name
        ended(path, "--no-report", "--engine", "emulation", "--collectives", "1", "--out", out, cwd=tmp_path)
        found[name] = open_run(out).jobs.set_index("job")
    for run in found.values():
        assert (run.completion_s / run.predicted_s - 1).abs().max() <= 0.005
    # By hand: half, three tenths and the rest, until the first has ended after 25.6 ms; delays are 11 us.
    assert found["three"].completion_s["j0"] * 1e3 == pytest.approx(12.8 / 0.5, rel=0.005)
    assert found["three"].completion_s["j1"] * 1e3 == pytest.approx(12.8 / 0.3, rel=0.005)
    assert found["three"].completion_s["j2"] * 1e3 == pytest.approx(25.6 + (12.8 - 0.2 * 25.6) / 0.7, rel=0.005)


@pytest.mark.parametrize(
    ("tables", "shown"),
    [
        ([[]], ["none"]),
        ([[GOLD, BRONZE]], ["gold, bronze"]),
        ([[GOLD], [GOLD | {"share": 0.5}]], ["gold priority 2", "gold priority 2 share 0.5"]),
    ],
)
def test_a_tick_label_of_a_figure_names_its_classes(tables, shown):
    assert run_points.told("class", tables) == shown
