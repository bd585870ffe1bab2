"""What a run says of its modes without the faults, which hit them unequally."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.results.reader import load
from analysis.statistics.contests import Place, Setting, Value
from analysis.statistics.fault_costs import FaultResult
from analysis.statistics.without_faults import Means, mean_without_s, without_faults_sentence
from tests.fakes.runs import answer, ended

FAULT = 'fault=[{at="collective 3",what="link s0b0-s1b0 down",for="2 collectives"}]'
BEGIN = "Without what faults cost"


def setting(index: int, delay: str, modes: tuple[str, ...], *, key: str = "conditions.wan_delay") -> Setting:
    at = (Value(key, delay),) if delay else ()
    return Setting(index=index, label=f"8 GPUs, {delay}", kind="allgather", at=at, modes=modes, baseline={})


def said(*configurations: Mapping[str, tuple[float, float]], lost: int = 0, key: str = "conditions.wan_delay") -> str:
    """Return the sentence on configurations with these means with and without faults, by mode."""
    delays = ["10 us", "5 ms", "50 ms"][: len(configurations)] if len(configurations) > 1 else [""]
    settings = [
        setting(index, delay, tuple(means), key=key)
        for index, (delay, means) in enumerate(zip(delays, configurations, strict=True))
    ]
    means = {
        Place(index, mode): Means(with_s, without_s, 10, lost)
        for index, of_modes in enumerate(configurations)
        for mode, (with_s, without_s) in of_modes.items()
    }
    return without_faults_sentence(settings, means)


JOINT, BASE = {"base": (1.0, 1.0), "joint": (1.2, 0.8)}, {"base": (1.0, 0.8), "joint": (0.9, 0.9)}


@pytest.mark.parametrize(
    ("configurations", "result"),
    [
        ([JOINT], " in all (base about 0, joint 4 s), joint would have the lowest mean, 20.0 % below base."),
        ([BASE], " in all (base 2 s, joint about 0), base would have the lowest mean, and joint, the next, would take "
         "12.5 % longer."),
        ([{"base": (1.0, 0.9), "wan": (0.9, 0.9)}], " in all (base 1 s, wan about 0), base and wan would have the "
         "same mean, 900 ms."),
        # Sums of the same times in another order differ in their last digit.
        ([{"ccl": (1.0, 0.3), "joint": (1.0, 0.1 + 0.2), "base": (1.0, 0.3), "wan": (1.0, 0.1 + 0.2)}], " in all (ccl "
         "7 s, joint 7 s, base 7 s, wan 7 s), base, ccl, joint and wan would have the same mean, 300 ms."),
        ([{"base": (3.0, 1.0), "wan": (1.0, 0.9), "ccl": (3.0, 1.0), "joint": (1.0, 0.9)}], " in all (base 20 s, wan "
         "1 s, ccl 20 s, joint 1 s), wan and joint would have the lowest means, 10.0 % below base."),
        ([{"base": (3.0, 0.9), "wan": (1.0, 0.9), "ccl": (3.0, 1.0)}], " in all (base 21 s, wan 1 s, ccl 20 s), base "
         "and wan would have the lowest means."),
        ([{"base": (1.0, 0.9995), "joint": (0.9, 0.9)}], None),
        ([{"base": (1.0, 0.6)}], ", the mean would be 600 ms, not 1,000."),
        ([JOINT, JOINT], ", joint would have the lowest mean at both, 20.0 % below base."),
        ([JOINT, JOINT | {"base": (1.0, 0.9)}], ", joint would have the lowest mean at both, 11.1 to 20.0 % below "
         "base."),
        ([JOINT, BASE, JOINT], ", joint would have the lowest mean at 2 of 3 (10 us; 50 ms), 20.0 % below base; base "
         "would have the lowest mean at 1 of 3 (5 ms), and joint, the next, would take 12.5 % longer."),
        ([{"base": (1.0, 0.6)}, {"base": (2.0, 0.7)}], ", the mean would be 600 ms at 10 us; 700 ms at 5 ms."),
    ],
)  # fmt: skip
def test_what_would_be_fastest_without_the_faults(
    configurations: list[Mapping[str, tuple[float, float]]], result: str | None
) -> None:
    assert said(*configurations) == ("" if result is None else BEGIN + result)


def test_failed_attempts_are_told_to_be_in_no_mean() -> None:
    same = {"base": (1.0, 1.0), "joint": (0.9, 0.9)}
    assert said(JOINT, lost=1).startswith(
        f"{BEGIN} in all (base about 0, joint 4 s; failed attempts, which are in no mean, apart), joint would"
    )
    assert said(JOINT, BASE, lost=1).startswith(f"{BEGIN}, failed attempts, which are in no mean, apart, joint would")
    assert said(same, lost=1) == (
        f"{BEGIN}, means would differ by less than 0.1 %: it is failed attempts, 2, which are in no mean."
    )


def test_values_that_compete_are_compared_without_faults_too() -> None:
    rings = ({"base": (1.0, 0.9)}, {"base": (0.95, 0.7)})
    assert said(*rings, key="collective.algorithm") == (
        f"{BEGIN} in all (10 us 1 s, 5 ms 2.5 s), 5 ms would have the lowest mean, 22.2 % below 10 us."
    )


def test_nothing_is_said_where_a_mean_without_faults_is_not_known() -> None:
    both = [setting(0, "10 us", ("base", "joint")), setting(1, "5 ms", ("base", "joint"))]
    means = {Place(0, "base"): Means(1.0, 0.5, 10), Place(0, "joint"): Means(1.0, 0.9, 10)}
    assert without_faults_sentence(both, means) == ""


def hit(number: int, costs: Mapping[int, tuple[float, float]], **values: Any) -> FaultResult:
    parts = [{"collective": k, "cost_s": c, "lasting_cost_s": lasting} for k, (c, lasting) in costs.items()]
    cost_s = sum(one["cost_s"] for one in parts)
    fault = {"number": number, "what": "link s0b0-s1b0 down", "at_collective": 2, "outcome": "recovered"}
    return FaultResult(**{**fault, "cost_s": cost_s, "costs": parts, **values})


def test_a_mean_without_faults_counts_a_collective_once_and_no_failed_attempt() -> None:
    """Collective 3 is hit by two faults, and an attempt of 5 s failed before it; without faults it takes 1 s."""
    number, completion_s, predicted_s = np.arange(5), np.array([1.0, 1, 3, 2, 1]), np.array([1.0, 1, 1, 1.5, 1])
    faults = [hit(1, {2: (2.0, 0.0), 3: (6.0, 0.5)}), hit(2, {3: (6.0, 0.5)}, collectives_lost=1)]
    assert mean_without_s(number, completion_s, predicted_s, faults) == pytest.approx(1.0)
    assert mean_without_s(number, completion_s, predicted_s, []) is None
    partial = hit(1, {2: (2.0, 0.0)}, collectives=1)  # the cost of the first of many alone is known
    assert mean_without_s(number, completion_s, predicted_s, [partial]) is None
    unknown = replace(partial, collectives=None, cost_s=None, costs=None)
    assert mean_without_s(number, completion_s, predicted_s, [faults[0], unknown]) is None


def test_of_a_long_fault_the_costs_that_are_not_told_one_by_one_count() -> None:
    number, times_s = np.arange(200), np.full(200, 2.0)
    fault = hit(1, dict.fromkeys(range(100), (1.0, 1.0)), cost_s=150.0)
    assert mean_without_s(number, times_s, times_s, [fault]) == pytest.approx((400 - 150) / 200)
    assert mean_without_s(number, times_s, times_s, [fault, hit(2, {3: (1.0, 1.0)})]) is None


def test_predicted_costs_leave_the_gain_of_a_run_without_the_fault(tmp_path: Path) -> None:
    """The same collectives are run without the fault: their means are what the sentence tells."""
    options = ("--engine", "model", "--modes", "base,joint", "--collectives", "8", "--no-report")
    told, _ = ended(*options, "--set", FAULT, "--out", tmp_path / "fault", cwd=tmp_path)
    ended(*options, "--out", tmp_path / "plain", cwd=tmp_path)
    means_s = load(tmp_path / "plain").groupby("mode").completion_s.mean()
    below = re.search(r"Without what faults cost in all .*, joint would have the lowest mean, ([0-9.]+) % below", told)
    assert below is not None, told
    assert float(below[1]) == pytest.approx(100 * (1 - means_s["joint"] / means_s["base"]), abs=0.051)


def test_each_configuration_of_a_sweep_has_its_means_without_faults(tmp_path: Path) -> None:
    options = ("--engine", "model", "--modes", "base,joint", "--collectives", "8", "--wan-delay", "10 us,5 ms")
    found = answer(tmp_path / "fault", *options, sets=(FAULT,))
    plain = answer(tmp_path / "plain", *options)
    without_s = [point["mean_without_faults_s"] for point in found["points"]]
    assert without_s == pytest.approx([point["mean_s"] for point in plain["points"]])
    assert BEGIN in found["answer"] and "at both" in found["answer"].partition(BEGIN)[2]
    assert not any("mean_without_faults_s" in point for point in plain["points"]) and BEGIN not in plain["answer"]
