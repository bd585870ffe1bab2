"""The paper Uno: rates and Jain's index of flows by hand, a small run in the VM, and the figure."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.figures.flow_rates import Panel, picture
from scenarios.papers.uno import ALONE, MIXED, Measured, fair_s, jain_of_bins, line_of, measure, rates_bps
from tests.conftest import PROJECT

MB = 1_000_000
EVEN, LATE = [1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 4.5, 5.0]  # s, at which each further MB has arrived


def test_rates_are_the_bytes_of_a_bin_by_its_time() -> None:
    found = rates_bps(np.array([EVEN, LATE]), 4 * MB, bin_s=2.0)
    assert found == pytest.approx(np.array([[8e6, 8e6, 0], [8e6 / 3, 8e6 * 2 / 3, 8e6]]))
    assert found.sum() * 2 == pytest.approx(2 * 8 * 4 * MB)


def test_jains_index_is_taken_until_the_first_flow_has_ended() -> None:
    """Of rates 1 and 1/3 it is (4/3)^2 / (2 * 10/9) = 0.8, of 1 and 2/3 (5/3)^2 / (2 * 13/9) = 25/26."""
    assert jain_of_bins(np.array([EVEN, LATE]), 4 * MB, bin_s=2.0) == pytest.approx([0.8, 25 / 26])


def test_the_line_of_a_case_has_the_means_of_its_kinds() -> None:
    ended_s = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    measured = Measured(
        arrived_s=ended_s[:, None], controls=("dctcp",) * 4 + ("bbr",) * 4, retransmitted_bytes=(0,) * 7 + (8 * MB,)
    )
    line = line_of(MIXED, "bbr", measured, 10 * MB)
    assert (line.local_s, line.remote_s, line.mean_s, line.last_s) == (1.0, 2.0, 1.5, 2.0)
    assert line.jain == pytest.approx(6**2 / (8 * 5)) and line.retransmitted == pytest.approx(0.1)
    assert line_of(ALONE, "bbr", measured, 10 * MB).local_s is None


def test_without_measuring_the_answer_has_the_time_of_fair_shares() -> None:
    """8 GB at 100 Gbit/s, 886.5 us and six cables of 1 us."""
    command = [sys.executable, "scenarios/run.py", "papers", "uno", "--engine", "model"]
    told = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert "886.5 us is one way" in told and told.count("640.9") == 4
    found = json.loads(subprocess.run([*command, "--json"], cwd=PROJECT, capture_output=True, check=True).stdout)
    assert [line["fair_s"] for line in found["lines"]] == pytest.approx([0.64 + 886.5e-6 + 6e-6] * 4)
    assert found["claims"] == [] and {line["jain"] for line in found["lines"]} == {None}


def test_flows_into_one_host_share_its_cable_each_with_the_congestion_control_of_its_crossing() -> None:
    found = measure(MIXED, "cubic", flow_bytes=10 * MB)
    assert found.controls == ("dctcp",) * 4 + ("cubic",) * 4
    assert found.arrived_s.shape == (8, 10) and (np.diff(found.arrived_s, axis=1) > 0).all()
    local_s, remote_s = found.arrived_s[:4], found.arrived_s[4:]
    assert remote_s.min() > 886.5e-6 + 8 * MB / 100e9 > local_s.min()
    # No more than the cable carries: the last has ended no sooner than with fair shares, less the delays of the path.
    assert found.arrived_s.max() > fair_s(MIXED, 10 * MB) - 0.9e-3
    assert np.sort(found.arrived_s, axis=None)[-1] > 80 * MB * 8 / 100e9


def test_the_figure_has_a_rate_of_each_flow_in_each_bin(tmp_path: Path) -> None:
    panels = [
        Panel(
            case=case,
            variant="bbr across",
            times_s=np.array([0.0, 0.1]),
            rates_bps=np.array([[1e9, 0.0], [2e9, 3e9]]),
            kinds=["local", "remote"],
            jain=np.array([0.9]),
        )
        for case in ("one", "other")
    ]
    picture(panels, fair_bps=1e9, title="Flows").write(tmp_path)
    rows = [*csv.DictReader((tmp_path / "flow-rates.csv").open())]
    assert [(row["kind"], float(row["rate_bps"]), row["jain"]) for row in rows[:4]] == [
        ("local", 1e9, "0.9"),
        ("local", 0.0, ""),
        ("remote", 2e9, "0.9"),
        ("remote", 3e9, ""),
    ]
    told = (tmp_path / "flow-rates.svg").read_text()
    assert all(words in told for words in ("one, bbr across", "a remote flow", "Jain's index, other"))
