"""Sensitivity study: the authors' simulation with one assumption changed at a time, and the gains over base."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from analysis.authors.draws import gaussian, uniform
from analysis.authors.fabric import CHAINS, NOMINAL_GBPS
from analysis.authors.simulator import AUTHORS, MODES, REEMBED_EVERY, Rings, Semantics, best_rings, by_mode, times_s
from analysis.authors.simulator import weights_s as weights_of
from analysis.statistics.intervals import Interval, Series, gain

Floats = npt.NDArray[np.float64]

SIZES_MB = (8, 16, 32, 64)
PUBLISHED_COLLECTIVES, PUBLISHED_DELAY_S = 100_000, 1e-5
PUBLISHED_S: Mapping[int, Mapping[str, float]] = MappingProxyType(
    {
        8: {
            "base": 2056.0882379768227,
            "ccl": 1683.2497144567417,
            "wan": 1532.6082606159337,
            "joint": 1389.783419866028,
        },
        16: {"base": 4053.041678096789, "ccl": 3322.172373988851, "wan": 3012.866563626028, "joint": 2732.429738483008},
        32: {"base": 8054.534593752646, "ccl": 6597.737209023842, "wan": 5980.01718711473, "joint": 5415.85669312147},
        64: {
            "base": 16042.671572982015,
            "ccl": 13145.64552456054,
            "wan": 11901.859141931318,
            "joint": 10779.033962323992,
        },
    }
)
"""Total times of the authors' figure, s, by size in MB and mode; see `PUBLISHED_COLLECTIVES`, `PUBLISHED_DELAY_S`."""

FIRST, RANK_ORDER, APART, OTHERS = "first draw", "rank order", "apart", "other draws"
"""Choices of the initial ring: the best ring of the first draw, as in the authors' code; GPUs in rank order over the
shortest path, where both bridges use the first border switch of each datacenter, or where each bridge has its own; or
the best rings of `OTHER_RINGS` other draws, one after another."""

OTHER_RINGS, MAX_OF_OTHERS = 50, 10_000
"""How many other initial rings are tried, and the largest number of collectives that each is timed on."""


@dataclass(frozen=True)
class Variation:
    """A variation of the authors' simulation; the defaults are their choices.

    `whole_bytes`: a MB is 8 million bits, not 1/1024 Gbit. `stale`: the age of the known capacities, in collectives.
    """

    name: str
    semantics: Semantics = AUTHORS
    initial: str = FIRST
    is_uniform: bool = False
    whole_bytes: bool = False
    stale: int = 0


_CUT_THROUGH = Semantics(shared_port=False, busy_in_flight=False, cut_through=True)
VARIATIONS: Sequence[Variation] = (
    Variation("as theirs"),
    Variation("initial ring in rank order", initial=RANK_ORDER),
    Variation("the same, a border switch for each bridge", initial=APART),
    Variation("initial rings of other draws", initial=OTHERS),
    Variation("independent ports", semantics=Semantics(shared_port=False)),
    Variation("links free once sent", semantics=Semantics(busy_in_flight=False)),
    Variation("cut-through, independent ports", semantics=_CUT_THROUGH),
    Variation("uniform draws", is_uniform=True),
    Variation("8 bits a byte", whole_bytes=True),
    Variation("known one collective late", stale=1),
    Variation("as the paper's text", semantics=_CUT_THROUGH, is_uniform=True, whole_bytes=True),
    Variation("the text, initial rings of other draws", _CUT_THROUGH, OTHERS, is_uniform=True, whole_bytes=True),
)
"""The first is the authors' own simulation. The last two follow the text of their paper."""


@dataclass(frozen=True, kw_only=True)
class VariationResult:
    """Results of one variation at one chunk size: total time of the collectives, s, and gain over base, by mode.

    `gain` holds 95 % confidence intervals. With the initial rings of other draws it holds the median, minimum and
    maximum over these rings instead, and the totals are those of the ring with the median total of `base`.
    """

    variation: str
    size_mb: int
    collectives: int
    total_s: Mapping[str, float]
    gain: Mapping[str, Interval]

    @property
    def in_order(self) -> bool:
        """Whether the modes are in the authors' order, base > ccl > wan > joint in time."""
        gains = [self.gain[mode].value for mode in MODES]
        return all(less < more for less, more in pairwise(gains))


def size_gbit(size_mb: int, *, whole_bytes: bool = False) -> float:
    """Return a chunk's size in Gbit: size_mb / 1024 as in the authors' code, or with `whole_bytes` size_mb * 0.008."""
    return size_mb * 8e-3 if whole_bytes else size_mb / 1024


def variation_results(
    shares: Floats, sizes_mb: Sequence[int], wan_delay_s: float, *, seed: int
) -> Iterator[VariationResult]:
    """Yield the results of all variations at each size for draws of capacity shares, [1 + collectives, links].

    The initial ring is the best ring of the first draw. `seed` seeds the draws that a variation makes itself.
    """
    uniform_shares = np.concatenate([shares[:1], uniform(len(shares) - 1, seed)])
    for size_mb in sizes_mb:
        drawn: dict[tuple[bool, bool], _DrawnConditions] = {}
        for variation in VARIATIONS:
            key = variation.is_uniform, variation.whole_bytes
            if key not in drawn:
                size = size_gbit(size_mb, whole_bytes=variation.whole_bytes)
                draws = uniform_shares if variation.is_uniform else shares
                drawn[key] = _DrawnConditions(draws * NOMINAL_GBPS, size, wan_delay_s)
            study = _with_other_rings if variation.initial == OTHERS else _with_one_ring
            yield study(variation, size_mb, drawn[key], seed)


def totals_s(shares: Floats, size_mb: int, wan_delay_s: float) -> dict[str, float]:
    """Return the authors' total time by mode, s, for draws of capacity shares, [1 + collectives, links].

    The initial ring is the best ring of the first draw.
    """
    drawn = _DrawnConditions(shares * NOMINAL_GBPS, size_gbit(size_mb), wan_delay_s)
    return dict(_with_one_ring(VARIATIONS[0], size_mb, drawn).total_s)


class _DrawnConditions:
    """Capacities, [1 + collectives, links] Gbit/s, with a chunk size, a WAN delay, and the best ring of each draw."""

    def __init__(self, capacity_gbps: Floats, size: float, wan_delay_s: float) -> None:
        self.capacity_gbps, self.size, self.wan_delay_s = capacity_gbps, size, wan_delay_s
        self.best = self.best_for(capacity_gbps)

    def best_for(self, capacity_gbps: Floats) -> Rings:
        return best_rings(weights_of(capacity_gbps, self.size, self.wan_delay_s))

    def times_s(self, rings: Rings, semantics: Semantics) -> Floats:
        """Return the completion times of the n collectives after the first draw, [n] s, one for each of n rings."""
        return times_s(rings, self.capacity_gbps[1 : 1 + len(rings.paths)], self.size, self.wan_delay_s, semantics)


def _with_one_ring(variation: Variation, size_mb: int, drawn: _DrawnConditions, _seed: int = 0) -> VariationResult:
    """Return the results with one initial ring."""
    initial = drawn.best.at(slice(1)) if variation.initial == FIRST else _rank_order(variation.initial == APART)
    rings = by_mode(drawn.best, initial, stale=variation.stale)
    completion_s = {mode: drawn.times_s(rings[mode], variation.semantics) for mode in MODES}
    collective = np.arange(len(completion_s["base"]))
    blocks = {mode: REEMBED_EVERY if mode in ("ccl", "joint") else 1 for mode in MODES}
    series = {mode: Series(collective, completion_s[mode], blocks[mode]) for mode in MODES}
    return VariationResult(
        variation=variation.name,
        size_mb=size_mb,
        collectives=len(collective),
        total_s={mode: float(completion_s[mode].sum()) for mode in MODES},
        gain={mode: _gain(series["base"], series[mode]) for mode in MODES},
    )


def _with_other_rings(variation: Variation, size_mb: int, drawn: _DrawnConditions, seed: int) -> VariationResult:
    """Return the median, minimum and maximum gains over initial rings of other draws, with the totals of the ring whose
    total for `base` is the median."""
    others = (uniform if variation.is_uniform else gaussian)(OTHER_RINGS, seed + 1)
    initial, best = drawn.best_for(others * NOMINAL_GBPS), drawn.best.at(slice(1 + MAX_OF_OTHERS))
    sums_s = np.empty((OTHER_RINGS, len(MODES)))
    for ring in range(OTHER_RINGS):
        rings = by_mode(best, initial.at(slice(ring, ring + 1)), stale=variation.stale)
        for column, mode in enumerate(MODES):
            is_same = ring > 0 and mode in ("ccl", "joint")  # these modes do not use the initial ring
            sum_s = sums_s[0, column] if is_same else drawn.times_s(rings[mode], variation.semantics).sum()
            sums_s[ring, column] = sum_s
    gains = 1 - sums_s / sums_s[:, :1]
    median = sums_s[np.argsort(sums_s[:, 0])[OTHER_RINGS // 2]]
    return VariationResult(
        variation=variation.name,
        size_mb=size_mb,
        collectives=len(best.paths) - 1,
        total_s=dict(zip(MODES, median.tolist(), strict=True)),
        gain={
            mode: Interval(value=float(np.median(values)), low=float(values.min()), high=float(values.max()))
            for mode, values in zip(MODES, gains.T, strict=True)
        },
    )


def _gain(base: Series, mode: Series) -> Interval:
    interval = gain(base, mode)
    assert interval is not None  # both have the same collectives
    return interval


def _rank_order(is_apart: bool) -> Rings:
    borders = np.array([[[0, 1], [0, 1]]]) if is_apart else np.zeros((1, 2, 2), np.int64)
    return Rings(CHAINS[None, :, 0], borders, np.zeros(1, np.int64))
