"""Conditions that change over time: which row of a sampler applies at which instant, to the nanosecond."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.conditions.sampler import ConditionsSpec, check, sampler
from topologies.conditions.timed import Timed
from topologies.errors import ConditionsError
from topologies.fabric.fabric import FabricSpec, build_fabric

FABRIC = build_fabric(FabricSpec(gpus_per_site=(2, 3)))


def timed(every_s: float, interval_s: float | None = None, name: str = "ar1") -> Timed:
    spec = ConditionsSpec(sampler=name, every_s=every_s, interval_s=interval_s)
    found = sampler(FABRIC, spec, seed=5)
    assert isinstance(found, Timed)
    return found


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["uniform", "gaussian", "markov", "ar1"]),
    st.integers(1000, 10**10),
    st.integers(1000, 10**10),
    st.integers(0, 10**6),
    st.integers(1, 40),
)
def test_a_collective_gets_the_sampler_rows_of_its_time_span(
    name: str, every: int, interval: int, number: int, count: int
) -> None:
    found = timed(every / 1e9, interval / 1e9, name)
    rows = sampler(FABRIC, ConditionsSpec(sampler=name), seed=5)
    begins = number * interval
    first = begins // every
    expected = rows.rates_bps(first, count)
    assert (found.rows_from_start(number, count) == expected).all()
    assert (found.rates_bps(number, 1)[0] == expected[0]).all()
    assert found.change_ns(number, 0) == (first + 1) * every - begins > 0
    assert found.first_change_s(np.array([number]))[0] == float(Fraction(found.change_ns(number, 0), 10**9))
    place = count - 1
    assert found.change_ns(number, place) == found.change_ns(number, 0) + place * every
    assert (found.rates_after_change(number, place) == rows.rates_bps(first + 1 + place, 1)[0]).all()


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1e-3, 7e-3, 0.1, 3.0]), st.integers(0, 500), st.integers(0, 60), st.integers(0, 60))
def test_drawn_rates_depend_only_on_the_collective(interval: float, start: int, count: int, cut: int) -> None:
    whole = timed(0.02, interval).rates_bps(start, count)
    assert whole.shape == (count, len(FABRIC.links))
    cut = min(cut, count)
    found = timed(0.02, interval)
    assert (found.rates_bps(start + cut, count - cut) == whole[cut:]).all()
    assert (found.rates_bps(start, cut) == whole[:cut]).all()


def test_without_an_interval_every_collective_begins_with_a_new_row() -> None:
    plain = sampler(FABRIC, ConditionsSpec(), seed=5).rates_bps(0, 50)
    assert (timed(0.1, name="uniform").rates_bps(0, 50) == plain).all()
    slow = timed(0.1, 0.02, name="uniform").rates_bps(0, 50)
    assert (slow == np.repeat(plain[:10], 5, axis=0)).all()


def test_a_trace_is_sampled_whenever_conditions_change_and_its_last_rates_persist(tmp_path: Path) -> None:
    rows = "".join(f"0,{link.name},{1000 + link.index}\n" for link in FABRIC.links)
    (tmp_path / "t.csv").write_text(f"time,link,rate\n{rows}0.15,g0>g1,7\n0.4,g0>g1,8\n")
    spec = ConditionsSpec(sampler="trace", trace=tmp_path / "t.csv", trace_step_s=0.25, every_s=0.1)
    found = sampler(FABRIC, spec, seed=1)
    assert isinstance(found, Timed) and found.limit == 2  # collectives begin at 0 and 0.25 s; rates end at 0.5 s
    (link,) = [link.index for link in FABRIC.links if link.name == "g0>g1"]
    first = 1000 + link
    assert found.rates_bps(0, 2)[:, link].tolist() == [first, 7]
    assert found.rows_from_start(0, 7)[:, link].tolist() == [first, first, 7, 7, 8, 8, 8]
    assert found.rows_from_start(1, 500)[:, link].tolist() == [7, 7, *[8] * 498]
    assert [found.rates_after_change(1, place)[link] for place in range(4)] == [7, 8, 8, 8]
    assert found.first_change_s(np.arange(2)).tolist() == [0.1, 0.05]


def test_memory_is_the_number_of_collectives_over_which_rates_stay_correlated() -> None:
    completion_s = np.full(10, 0.3)
    by_time = ConditionsSpec(sampler="ar1", coefficient=0.9, every_s=0.1)
    assert replace(by_time, every_s=None).memory(completion_s) == pytest.approx(10)
    assert by_time.memory(completion_s) == pytest.approx(13)  # ten rows, and the three that a collective spans
    assert replace(by_time, interval_s=0.01).memory(completion_s) == pytest.approx(130)
    assert replace(by_time, sampler="uniform", interval_s=10.0).memory(completion_s) == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"every_s": 1e-7}, "every"),
        ({"every_s": float("nan")}, "every"),
        ({"every_s": 0.1, "interval_s": 0.0}, "interval"),
    ],
)
def test_invalid_change_periods_and_intervals_are_refused(changes: dict[str, float], key: str) -> None:
    with pytest.raises(ConditionsError, match="allowed") as caught:
        check(replace(ConditionsSpec(), **changes))  # type: ignore[arg-type]
    assert [mistake.key for mistake in caught.value.mistakes] == [f"conditions.{key}"]
