"""Conditions: the same for whoever asks, and distributed as declared."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.conditions import ConditionsSpec, check, delays_s, sampler
from topologies.errors import ConditionsError
from topologies.fabric import FabricSpec, build_fabric

FABRIC = build_fabric(FabricSpec(gpus_per_site=(2, 3)))
WAN = np.array([link.kind == "wan" for link in FABRIC.links])
LINKS = len(FABRIC.links)
drawing = st.sampled_from(["uniform", "gaussian", "markov"])


@settings(deadline=None, max_examples=60)
@given(drawing, st.integers(0, 2**64), st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_what_is_drawn_depends_on_seed_collective_and_link_alone(name: str, seed: int, cuts: list[int]) -> None:
    spec = ConditionsSpec(sampler=name, mean_stay=7.0)
    whole = sampler(FABRIC, spec, seed=seed).rates_bps(0, 200)
    again = sampler(FABRIC, spec, seed=seed)
    ends = [*sorted(cuts, reverse=True), 0]
    for end, start in pairwise(ends):  # in pieces, the last piece first
        assert (again.rates_bps(start, end - start) == whole[start:end]).all()
    other = sampler(FABRIC, spec, seed=seed + 1).rates_bps(0, 200)
    assert (other != whole).any()


@pytest.mark.parametrize("name", ["uniform", "gaussian", "markov"])
def test_rates_are_whole_and_within_the_range_of_their_link(name: str) -> None:
    spec = ConditionsSpec(sampler=name, intra_rate_bps=(3, 7), wan_rate_bps=(10, 1000))
    rates = sampler(FABRIC, spec, seed=1).rates_bps(0, 5000)
    assert rates.shape == (5000, LINKS)
    assert (rates == np.floor(rates)).all()
    assert set(np.unique(rates[:, ~WAN])) == {3, 4, 5, 6, 7}
    assert rates[:, WAN].min() >= 10
    assert rates[:, WAN].max() <= 1000


def test_uniform_rates_are_uniform_and_independent() -> None:
    rates = sampler(FABRIC, ConditionsSpec(), seed=3).rates_bps(0, 40_000)
    for low, high, columns in ((20e9, 200e9, ~WAN), (10e9, 100e9, WAN)):
        share = np.sort(((rates[:, columns] - low) / (high - low)).ravel())
        steps = np.arange(share.size) / share.size
        assert np.abs(share - steps).max() < 2.2 / np.sqrt(share.size)  # Kolmogorov and Smirnov, beyond 1 in 10^4
    assert off_diagonal(np.corrcoef(rates.T)) < 5 / np.sqrt(len(rates))  # link to link
    assert off_diagonal(np.corrcoef(rates[1:, 0], rates[:-1, 0])) < 5 / np.sqrt(len(rates))  # and in time


def off_diagonal(correlations: Any) -> float:
    return float(np.abs(correlations - np.eye(len(correlations))).max())


def test_gaussian_rates_are_a_clipped_normal() -> None:
    spec = ConditionsSpec(sampler="gaussian")
    share = sampler(FABRIC, spec, seed=5).rates_bps(0, 40_000)[:, WAN].ravel() / 100e9
    # Of a normal with mean and deviation 0.5: below 0.1, above 1, and below the mean.
    for measured, expected in (
        ((share == 0.1).mean(), 0.2119),
        ((share == 1).mean(), 0.1587),
        ((share < 0.5).mean(), 0.5),
    ):
        assert measured == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(share.size))
    assert (share < 0.75).mean() == pytest.approx(0.6915, abs=0.005)
    calm = sampler(FABRIC, replace(spec, mean=0.8, deviation=0.0), seed=5).rates_bps(0, 10)
    assert (calm[:, WAN] == 80e9).all()


@pytest.mark.parametrize("mean_stay", [1.0, 4.0, 50.0])
def test_markov_rates_stay_for_a_geometric_time(mean_stay: float) -> None:
    rates = sampler(FABRIC, ConditionsSpec(sampler="markov", mean_stay=mean_stay), seed=2).rates_bps(0, 30_000)
    changed = rates[1:] != rates[:-1]
    assert changed.mean() == pytest.approx(1 / mean_stay, rel=0.03)
    if mean_stay > 1:  # no memory: after a change, another is as likely as ever
        assert changed[1:][changed[:-1]].mean() == pytest.approx(1 / mean_stay, rel=0.1)
    assert off_diagonal(np.corrcoef(rates.T)) < 6 * np.sqrt(2 * mean_stay / len(rates))


def test_markov_looks_back_as_far_as_it_must() -> None:
    spec = ConditionsSpec(sampler="markov", mean_stay=2000.0)
    chain = sampler(FABRIC, spec, seed=9)
    whole = chain.rates_bps(0, 3000)
    for start in (1, 63, 64, 65, 1500, 2999):
        assert (chain.rates_bps(start, 1)[0] == whole[start]).all()


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("uniform", [109_598_168_079, 85_526_730_677, 78_787_363_024]),
        ("gaussian", [20_000_000_000, 122_421_520_863, 63_282_329_273]),
        ("markov", [109_598_168_079, 67_327_824_158, 78_787_363_024]),
    ],
)
def test_a_seed_means_the_same_conditions_in_every_version(name: str, rates: list[int]) -> None:
    """As first released: published runs can be repeated."""
    drawn = sampler(FABRIC, ConditionsSpec(sampler=name), seed=1).rates_bps(1_000_000, 1)[0, [0, 7, -1]]
    assert drawn.tolist() == rates


def test_no_collectives_are_no_rows() -> None:
    for name in ("uniform", "gaussian", "markov"):
        assert sampler(FABRIC, ConditionsSpec(sampler=name), seed=1).rates_bps(5, 0).shape == (0, LINKS)


def test_every_link_has_its_delay() -> None:
    delays = delays_s(FABRIC, ConditionsSpec(intra_delay_s=1e-6, wan_delay_s=1e-3))
    assert delays.tolist() == [1e-3 if link.kind == "wan" else 1e-6 for link in FABRIC.links]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sampler": "normal"}, "conditions.sampler"),
        ({"intra_rate_bps": (0, 5)}, "conditions.intra_rate"),
        ({"wan_rate_bps": (9, 5)}, "conditions.wan_rate"),
        ({"wan_rate_bps": (-1, 5)}, "conditions.wan_rate"),
        ({"wan_rate_bps": (1, float("inf"))}, "conditions.wan_rate"),
        ({"intra_rate_bps": (float("nan"), 5)}, "conditions.intra_rate"),
        ({"wan_delay_s": -1e-6}, "conditions.wan_delay"),
        ({"intra_delay_s": float("nan")}, "conditions.intra_delay"),
        ({"sampler": "gaussian", "deviation": -0.1}, "conditions.deviation"),
        ({"sampler": "gaussian", "mean": float("inf")}, "conditions.mean"),
        ({"sampler": "markov", "mean_stay": 0.5}, "conditions.mean_stay"),
        ({"sampler": "trace"}, "conditions.trace"),
        ({"trace": Path("some.csv")}, "conditions.trace"),
        ({"sampler": "trace", "trace": Path("some.csv"), "trace_step_s": 0.0}, "conditions.trace_step"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ConditionsError, match="allowed") as caught:
        check(replace(ConditionsSpec(), **changes))  # type: ignore[arg-type]
    assert [mistake.key for mistake in caught.value.mistakes] == [key]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConditionsError) as caught:
        check(ConditionsSpec(intra_rate_bps=(5, 1), wan_delay_s=-1, mean_stay=0))
    assert len(caught.value.mistakes) == 3
