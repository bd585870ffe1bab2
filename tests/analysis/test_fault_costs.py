"""What a run says of its modes without the faults, which hit them unequally."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from analysis.results.reader import load
from analysis.statistics.fault_costs import without_faults_sentence
from analysis.statistics.intervals import Series
from tests.fakes.runs import ended

FAULT = 'fault=[{at="collective 3",what="link s0b0-s1b0 down",for="2 collectives"}]'


def said(means_s: Mapping[str, float], costs_s: Mapping[str, float]) -> str:
    times = {mode: Series(number=np.arange(10), completion_s=np.full(10, mean)) for mode, mean in means_s.items()}
    return without_faults_sentence(times, costs_s, "base")


@pytest.mark.parametrize(
    ("means_s", "costs_s", "result"),
    [
        (
            {"base": 1.0, "joint": 1.2},
            {"base": 0.0, "joint": 4.0},
            "joint would have the lowest mean, 20.0 % below base.",
        ),
        (
            {"base": 1.0, "joint": 0.9},
            {"base": 2.0, "joint": 0.0},
            "base would have the lowest mean, and joint, the next, ",
        ),
        ({"base": 1.0, "wan": 0.9}, {"base": 1.0, "wan": 0.0}, "base and wan would have the lowest means."),
        ({"base": 1.0, "joint": 0.9}, {"base": 0.005, "joint": 0.0}, ""),
        ({"base": 1.0}, {"base": 4.0}, ""),
    ],
)
def test_what_would_be_fastest_without_the_faults(
    means_s: dict[str, float], costs_s: dict[str, float], result: str
) -> None:
    assert result in said(means_s, costs_s) and bool(said(means_s, costs_s)) is bool(result)


def test_predicted_costs_leave_the_gain_of_a_run_without_the_fault(tmp_path: Path) -> None:
    """The same collectives are run without the fault: their means are what the sentence tells."""
    options = ("--engine", "model", "--modes", "base,joint", "--collectives", "8", "--no-report")
    told, _ = ended(*options, "--set", FAULT, "--out", tmp_path / "fault", cwd=tmp_path)
    ended(*options, "--out", tmp_path / "plain", cwd=tmp_path)
    means_s = load(tmp_path / "plain").groupby("mode").completion_s.mean()
    below = re.search(r"Without what faults cost in all .*, joint would have the lowest mean, ([0-9.]+) % below", told)
    assert below is not None, told
    assert float(below[1]) == pytest.approx(100 * (1 - means_s["joint"] / means_s["base"]), abs=0.051)
