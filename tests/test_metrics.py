"""Statistics of completion times: right values, honest intervals, the same ones every time."""

import math

import numpy as np
import pytest

from analysis import student
from analysis.metrics import gain, summarise


def grouped(random: np.random.Generator, count: int, block: int = 10) -> np.ndarray:
    """Completion times as re-embedding makes them: a part shared by those of one ring, a part of their own."""
    shared = np.repeat(random.gamma(4.0, 1.0, -(-count // block)), block)[:count]
    return 1.0 + shared + random.gamma(2.0, 0.5, count)


def test_the_values_are_those_of_arithmetic() -> None:
    times = np.array([1.0, 2.0, 6.0])
    summary = summarise(times, block=1, seed=1)
    assert summary.collectives == 3
    assert summary.mean_s.value == pytest.approx(3.0)
    assert summary.total_s.value == pytest.approx(9.0)
    assert summary.total_s.low == pytest.approx(3 * summary.mean_s.low)
    assert gain(times, times / 4, block=1, seed=1).value == pytest.approx(0.75)


@pytest.mark.parametrize("count", [20, 50, 200, 400, 997])
def test_the_interval_covers_the_truth_as_often_as_it_says(count: int) -> None:
    random = np.random.default_rng(6)
    trials = 200
    hits = sum(
        interval.low <= 6.0 <= interval.high
        for interval in (summarise(grouped(random, count), block=10, seed=k).mean_s for k in range(trials))
    )
    assert 0.88 <= hits / trials <= 0.99


def test_collectives_that_share_a_ring_are_not_counted_as_independent() -> None:
    times = grouped(np.random.default_rng(1), 900)
    honest, naive = summarise(times, block=10, seed=1).mean_s, summarise(times, block=1, seed=1).mean_s
    assert honest.high - honest.low > 2 * (naive.high - naive.low)


def test_shared_luck_cancels_out_of_a_gain() -> None:
    random = np.random.default_rng(2)
    base = grouped(random, 4000)
    paired = gain(base, 0.7 * base, block=10, seed=1)
    assert (paired.low, paired.high) == pytest.approx((0.3, 0.3))
    unpaired = gain(base, 0.7 * grouped(random, 4000), block=10, seed=1)
    assert unpaired.high - unpaired.low > 0.005


def test_the_gain_of_the_baseline_over_itself_is_none() -> None:
    base = grouped(np.random.default_rng(2), 100)
    assert gain(base, base, block=10, seed=1).value == 0


def test_the_same_seed_gives_the_same_interval() -> None:
    times = grouped(np.random.default_rng(3), 3000)
    assert summarise(times, block=10, seed=4) == summarise(times, block=10, seed=4)
    assert summarise(times, block=10, seed=4) != summarise(times, block=10, seed=5)


def test_long_series_have_intervals_as_wide_as_theory_has_them() -> None:
    times = np.random.default_rng(4).normal(10.0, 1.0, 100_000)
    interval = summarise(times, block=10, seed=1).mean_s
    assert interval.high - interval.low == pytest.approx(2 * 1.96 / math.sqrt(times.size), rel=0.12)


def test_one_block_has_no_interval() -> None:
    interval = summarise(np.ones(10), block=10, seed=1).mean_s
    assert interval.value == 1
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_what_makes_no_series_is_refused() -> None:
    with pytest.raises(ValueError, match="one collective or more"):
        summarise(np.empty(0), block=10, seed=1)
    with pytest.raises(ValueError, match="one collective or more"):
        summarise(np.ones(5), block=0, seed=1)
    with pytest.raises(ValueError, match="a pair is needed"):
        gain(np.ones(5), np.ones(6), block=1, seed=1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        summarise(np.ones(5), block=1, seed=1, confidence=95)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.975, 1, 12.706204736432102),
        (0.975, 2, 4.302652729911275),
        (0.975, 3, 3.182446305284263),
        (0.975, 8, 2.306004135033371),
        (0.975, 29, 2.045229642132703),
        (0.9, 5, 1.475884048824481),
        (0.025, 4, -2.7764451051977934),
        (0.5, 7, 0.0),
    ],
)
def test_students_quantiles_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert student.quantile(probability, freedom) == pytest.approx(value, abs=1e-9)


def test_student_is_asked_for_what_there_is() -> None:
    for probability, freedom in ((0.0, 3), (1.0, 3), (math.nan, 3), (0.5, 0)):
        with pytest.raises(ValueError, match="must lie in"):
            student.quantile(probability, freedom)
