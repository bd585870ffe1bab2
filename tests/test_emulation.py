"""The emulated testbed from end to end, as users run it, held against the model and the kernel's own counters."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.results.reader import load, open_run
from analysis.statistics.fidelity import Measured, certificate
from scenarios.engines.emulation import emulated
from scenarios.engines.point import memory_bytes
from scenarios.spec.load import Override, load_scenario
from tests.conftest import PROJECT
from tests.fakes.processes import descendants, living

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]
TESTBED = str(PROJECT / "tests" / "guest" / "testbed.py")


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON; its folder of results is `folder`."""
    ended = subprocess.run(
        [*RUN, "--json", "--out", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def rows(folder: Path) -> pd.DataFrame:
    """What was measured."""
    found = load(folder)
    return found[found.engine == "emulation"].sort_values(["mode", "collective"], ignore_index=True)


def assert_true_to_the_model(answer: dict[str, Any], *, collectives: int) -> None:
    fidelity = answer["fidelity"]
    assert fidelity["collectives"] == collectives
    assert abs(fidelity["median_ratio"] - 1) <= 0.0005
    assert fidelity["p99_abs_error"] <= 0.002
    assert fidelity["drops"] == 0


def test_both_engines_agree_and_the_same_command_gives_the_same_times(tmp_path: Path) -> None:
    wanted = ("--modes", "base,ccl,wan,joint", "--collectives", "11")  # the last one re-embeds
    answer = run(tmp_path / "one", *wanted)
    assert_true_to_the_model(answer, collectives=44)
    gains = {(point["engine"], point["mode"]): point["gain_vs_base"] for point in answer["points"]}
    for mode in ("ccl", "wan", "joint"):
        assert abs(gains["emulation", mode] - gains["model", mode]) <= 0.01
    again = run(tmp_path / "two", *wanted, "--engine", "emulation", "--jobs", "1")
    assert_true_to_the_model(again, collectives=44)
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    for column in ("ring", "paths", "predicted_s"):
        assert one[column].to_list() == two[column].to_list()
    assert one.completion_s.to_list() == two.completion_s.to_list()  # to the nanosecond
    assert_tells_what_was_done(tmp_path / "one")


def assert_tells_what_was_done(folder: Path) -> None:
    """The transfers and the conditions of a run hang together with its collectives, and the VM is described."""
    run = open_run(folder)
    ends = run.transfers.groupby(["mode", "collective"]).agg(sent=("chunk", "size"), last_s=("end_s", "max"))
    assert set(ends.sent) == {8 * 7}  # in each of seven steps every GPU sends one chunk
    measured = rows(folder).set_index(["mode", "collective"]).completion_s
    assert (ends.last_s - measured).abs().max() < 1e-8
    links = run.settings[0]["fabric"]["links"]
    assert len(run.conditions) == 11 * len(links)
    wan = run.conditions[run.conditions.link.isin([link["index"] for link in links if link["kind"] == "wan"])]
    assert wan.rate_bps.between(10e9, 100e9).all() and set(wan.delay_s) == {10e-6}
    vm = run.provenance["vm"]
    assert vm["kernel"].startswith("Linux 6.") and vm["openvswitch"].startswith("3.")
    for moment in ("before", "after"):
        assert sum(" netem " in line and " delay " in line for line in vm[moment]["qdiscs"]) >= 8  # the WAN's links
        assert vm[moment]["sysctls"]["net.ipv4.tcp_congestion_control"] == "cubic"


def test_an_interrupted_experiment_leaves_its_rows_and_nothing_else(tmp_path: Path) -> None:
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        folder = tmp_path / str(status)
        arguments = ["--engine", "emulation", "--modes", "base", "--collectives", "1000", "--out", str(folder)]
        with subprocess.Popen([*RUN, *arguments], stderr=subprocess.PIPE, text=True) as process:
            until = time.monotonic() + 120
            while not list(folder.glob("parts/*.collectives.parquet")) or len(rows(folder)) < 2:
                assert time.monotonic() < until
                time.sleep(0.1)
            below = descendants(process.pid)
            assert below
            process.send_signal(number)
            _, said = process.communicate(timeout=10)
        assert process.returncode == status
        kept = f"run.py: what was found is kept; go on with --resume {folder}\n"
        assert said.endswith(kept + "run.py: interrupted\n")
        assert all(line.startswith("[0/1] emulation") for line in said.splitlines()[:-2])
        assert rows(folder).collective.to_list()[:2] == [0, 1]
        time.sleep(0.5)
        assert not set(below) & living().keys()


def test_unequal_sites_on_a_wan_with_transit_routers(tmp_path: Path) -> None:
    other = ("--set", "fabric.wan=five-router", "--set", "fabric.gpus=[3, 5]")
    answer = run(
        tmp_path / "run",
        "--engine",
        "emulation",
        "--modes",
        "joint",
        "--collectives",
        "4",
        "--wan-delay",
        "1 ms",
        *other,
    )
    assert_true_to_the_model(answer, collectives=4)


def test_sixty_four_gpus_are_emulated(tmp_path: Path) -> None:
    answer = run(
        tmp_path / "run", "--engine", "emulation", "--modes", "wan", "--collectives", "1", "--gpus", "64",
        "--chunk", "1 MB",
    )  # fmt: skip
    assert_true_to_the_model(answer, collectives=1)


def test_the_start_up_of_ordinary_tcp_can_be_studied(tmp_path: Path) -> None:
    answer = run(
        tmp_path / "run", "--engine", "emulation", "--modes", "base", "--collectives", "2", "--wan-delay", "10 ms",
        "--set", "transport.line_rate=false",
    )  # fmt: skip
    first = rows(tmp_path / "run").iloc[0]
    assert first.completion_s / first.predicted_s > 1.2  # slow start over 20 ms of round trip
    assert answer["fidelity"]["drops"] == 0


def inside(vm_environment: dict[str, str], *arguments: str) -> list[str]:
    """Run a guest script and return the lines it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "scenarios.vm", "--memory", "3 GiB", "--", sys.executable, TESTBED, *arguments],
        cwd=PROJECT, env=vm_environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.fixture
def environment() -> dict[str, str]:
    import os

    return dict(os.environ) | {"PYTHONPATH": str(PROJECT), "SETUPTOOLS_USE_DISTUTILS": "stdlib"}


def test_the_bytes_go_over_the_chosen_wan_links_and_no_others(environment: dict[str, str]) -> None:
    seen = [
        json.loads(line) for line in inside(environment, str(PROJECT / "scenarios" / "paper.toml"), "joint", "bytes")
    ]
    assert len(seen) == 4
    assert len({tuple(collective["chosen"]) for collective in seen}) > 1  # the paths did change
    for collective in seen:
        assert sorted(collective["busy"]) == collective["chosen"]
        for sent in collective["busy"].values():
            assert 7 * 8e6 < sent < 7 * 8e6 * 1.02  # seven chunks and their headers, and nothing twice


@pytest.mark.parametrize(
    ("victim", "told"),
    [
        ("controller", ["the controller has died: recovered, 0 lost"]),
        ("agent", ["collective 3 failed: the process of GPU 7 died: recovered, 1 lost"]),
        ("switch", []),  # a border router: the controller leads around it
    ],
)
def test_whatever_dies_unforeseen_is_made_good(environment: dict[str, str], victim: str, told: list[str]) -> None:
    printed = inside(environment, str(PROJECT / "scenarios" / "paper.toml"), "joint", victim)
    assert [line for line in printed if line.isdecimal()] == ["0", "1", "2", "3"]
    assert [line for line in printed if not line.isdecimal()] == told


def test_the_emulation_measures_the_first_collectives_only() -> None:
    setting = load_scenario("fig4a").settings()[0]
    assert (setting.collective.count, emulated(setting).collective.count) == (100_000, 20)
    assert emulated(load_scenario("paper", [Override("collective.count", 5, "")])).collective.count == 5


def test_larger_chunks_get_larger_vms() -> None:
    small, large = (load_scenario("paper", [Override("collective.chunk", text, "")]) for text in ("8 MB", "64 MB"))
    assert memory_bytes(large) - memory_bytes(small) >= 8 * 2 * 56e6


def test_the_certificate_is_what_its_words_say() -> None:
    def part(measured_s: float, predicted_s: float, drops: int, late: bool = False) -> Measured:
        return np.array([measured_s]), np.array([predicted_s]), np.array([drops]), np.array([late])

    assert certificate([]) is None
    none = np.zeros(0)
    assert certificate([(none, none, none.astype(int), none.astype(bool))]) is None  # a fault struck every one of them
    found = certificate([part(1.01, 1.0, 0), part(2.0, 2.0, 3), part(2.94, 3.0, 0)])
    assert found is not None
    assert (found.collectives, found.median_ratio, found.drops) == (3, 1.0, 3)
    assert 0.0198 <= found.p99_abs_error <= 0.02
    assert "\nWARNING: 3 packets lost" in str(found)
    clean = certificate([part(1.0, 1.0, 0)])
    assert str(clean).startswith("certificate: 1 collective measured, ") and "WARNING" not in str(clean)
    assert clean is not None and clean.late is None
    assert clean.holds and not found.holds
    # The median, or the tail alone.
    for parts in ([part(1.02, 1.0, 0)] * 3, [part(1.0, 1.0, 0)] * 2 + [part(1.011, 1.0, 0)]):
        off = certificate(parts)
        assert off is not None and not off.holds and "\nWARNING: measured times differ" in str(off)
    near = certificate([part(1.000004, 1.0, 0)] * 3)
    assert near is not None and near.holds and "0.00040 %" in str(near) and near.warnings == ()
    real = certificate([part(1.0, 1.0, 0, late=True), part(1.0, 1.0, 0), part(1.0, 1.0, 0, late=True)], is_real=True)
    assert real is not None and real.late == 2
    assert "too slow for 2 collectives" in str(real)
    punctual = certificate([part(1.0, 1.0, 0)], is_real=True)
    assert punctual is not None and (punctual.late, punctual.warnings) == (0, ())
