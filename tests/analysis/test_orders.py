"""The order of what each contest compares: what its signs mean, and which contests share a line."""

import numpy as np
import pytest

from analysis.statistics.contests import Place, Setting, Value, contests_of
from analysis.statistics.intervals import Series
from analysis.statistics.orders import orders_of


def lines(cases, count=400):
    """Return the orders of configurations, each with the words of its swept size and the means of its modes."""
    settings = [
        Setting(
            index=index,
            label=f"2 sites, {words}",
            kind="allgather",
            at=(Value("collective.chunk", words, index),),
            modes=tuple(means),
            baseline={},
        )
        for index, (words, means) in enumerate(cases)
    ]
    times = {
        Place(index, mode): Series(np.arange(count), mean * np.random.default_rng(seed).uniform(0.9, 1.1, count))
        for index, (_, means) in enumerate(cases)
        for seed, (mode, mean) in enumerate(means.items())
    }
    return orders_of((one, one.times(times)) for one in contests_of(settings))


CLEAR, CLOSE = {"base": 1.0, "wan": 0.8, "joint": 0.7}, {"base": 1.0, "wan": 0.7, "joint": 0.6999}


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([("1 MB", CLEAR)], [("2 sites, 1 MB", "base > wan > joint")]),
        ([("1 MB", CLOSE)], [("2 sites, 1 MB", "base > joint ~ wan")]),
        ([(f"{n} MB", CLEAR) for n in range(9)], [("2 sites, all 9 configurations", "base > wan > joint")]),
        (
            [("1 MB", CLEAR), ("2 MB", CLOSE), ("3 MB", CLEAR)],
            [
                ("2 sites, 2 of 3 configurations (1 MB; 3 MB)", "base > wan > joint"),
                ("2 sites, 2 MB", "base > joint ~ wan"),
            ],
        ),
        (
            [(f"{n} MB", CLOSE if n == 9 else CLEAR) for n in range(16)],
            [
                ("2 sites, 15 of 16 configurations (all but 9 MB)", "base > wan > joint"),
                ("2 sites, 9 MB", "base > joint ~ wan"),
            ],
        ),
    ],
)
def test_contests_with_the_same_order_share_a_line(cases, expected):
    assert lines(cases) == expected


@pytest.mark.parametrize(
    ("shares", "count", "expected"),
    [
        ({"base": 1.0, "wan": 1.0, "joint": 1.0}, 6, "base = wan = joint"),
        (
            {"base": 1.0, "wan": 1.0, "joint": 0.5},
            6,
            "base = wan, joint (not tested: too few collectives for an interval)",
        ),
        ({"base": 1.0, "wan": 0.5, "joint": 0.5}, 400, "base > wan = joint"),
        ({"base": 1.0 + 1e-12, "wan": 1.0}, 400, "base = wan"),
        ({"base": 1.0 + 1e-6, "wan": 1.0}, 400, "base > wan"),
    ],
)
def test_what_takes_the_same_times_is_not_ranked(shares, count, expected):
    """The answer says "take the same time" of it."""
    luck = np.random.default_rng(1).uniform(0.9, 1.1, count)
    setting = Setting(index=0, label="8 GPUs", kind="allgather", at=(), modes=tuple(shares), baseline={})
    times = {Place(0, mode): Series(np.arange(count), share * luck) for mode, share in shares.items()}
    ((_, order),) = orders_of((one, one.times(times)) for one in contests_of([setting]))
    assert order == expected


def test_an_order_without_any_interval_is_not_tested():
    """Means of 1.0 and 0.2 would be told apart by eye; "base ~ joint" would say that they are alike."""
    ((_, order),) = lines([("1 MB", {"base": 1.0, "joint": 0.2})], count=20)
    assert order == "base, joint (not tested: too few collectives for an interval)"
