"""What the authors' result rests on: their simulation with one thing changed at a time, and the gains that are left."""

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
"""The totals of the authors' figure, by size in MB and mode, s: of so many collectives, with that WAN delay."""

FIRST, RANK_ORDER, APART, OTHERS = "first draw", "rank order", "apart", "other draws"
"""From what the initial ring is built: the best of the first draw, as in the authors' code; GPUs in the order of their
numbers and the shortest path, with the first border switch of each datacenter for both bridges, or with one for each;
or the best of each of `OTHER_RINGS` draws."""

OTHER_RINGS, MOST_OF_OTHERS = 50, 10_000
"""How many other initial rings there are, and of how many collectives at most their times are."""


@dataclass(frozen=True)
class Variation:
    """What is changed of the authors' simulation; the defaults are theirs.

    `whole_bytes`: a MB is 8 million bits, and not 1/1024 Gbit. `stale`: of how many collectives ago the capacities are
    known.
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
"""The first is the authors' own. The last two are what the paper's text describes."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One variation at one chunk size: the totals over the collectives, s, and the gains over base, by mode.

    A gain has its 95 % interval, with the initial rings of other draws its median and the least and the greatest; the
    totals are then those of the median by base.
    """

    variation: str
    size_mb: int
    collectives: int
    total_s: Mapping[str, float]
    gain: Mapping[str, Interval]

    @property
    def in_order(self) -> bool:
        """Whether the modes come in the authors' order: each takes less time than the one before."""
        gains = [self.gain[mode].value for mode in MODES]
        return all(less < more for less, more in pairwise(gains))


def size_gbit(size_mb: int, *, whole_bytes: bool = False) -> float:
    """A chunk as a number that is divided by Gbit/s: as the authors have it, or in bits."""
    return size_mb * 8e-3 if whole_bytes else size_mb / 1024


def lines(shares: Floats, sizes_mb: Sequence[int], wan_delay_s: float, *, seed: int) -> Iterator[Line]:
    """All variations at each size, over draws of links' shares of nominal capacity, [1 + collectives, links].

    The initial ring is that of the first draw. `seed` is of the draws that a variation makes itself.
    """
    anew = np.concatenate([shares[:1], uniform(len(shares) - 1, seed)])
    for size_mb in sizes_mb:
        drawn: dict[tuple[bool, bool], _Drawn] = {}
        for variation in VARIATIONS:
            key = variation.is_uniform, variation.whole_bytes
            if key not in drawn:
                size = size_gbit(size_mb, whole_bytes=variation.whole_bytes)
                drawn[key] = _Drawn((anew if variation.is_uniform else shares) * NOMINAL_GBPS, size, wan_delay_s)
            study = _of_others if variation.initial == OTHERS else _of_one
            yield study(variation, size_mb, drawn[key], seed)


def totals_s(shares: Floats, size_mb: int, wan_delay_s: float) -> dict[str, float]:
    """The totals of the authors' figure by mode, s, over draws of shares of nominal capacity, [1 + collectives, links].

    The initial ring is that of the first draw.
    """
    return dict(_of_one(VARIATIONS[0], size_mb, _Drawn(shares * NOMINAL_GBPS, size_gbit(size_mb), wan_delay_s)).total_s)


class _Drawn:
    """Capacities, [1 + collectives, links] Gbit/s, with a chunk's size and a delay, and the best ring for each draw."""

    def __init__(self, capacity_gbps: Floats, size: float, wan_delay_s: float) -> None:
        self.capacity_gbps, self.size, self.wan_delay_s = capacity_gbps, size, wan_delay_s
        self.best = self.best_for(capacity_gbps)

    def best_for(self, capacity_gbps: Floats) -> Rings:
        return best_rings(weights_of(capacity_gbps, self.size, self.wan_delay_s))

    def times_s(self, rings: Rings, semantics: Semantics) -> Floats:
        """When the AllGathers of all draws but the first end, or of as many as there are rings, [n] s."""
        return times_s(rings, self.capacity_gbps[1 : 1 + len(rings.paths)], self.size, self.wan_delay_s, semantics)


def _of_one(variation: Variation, size_mb: int, drawn: _Drawn, _seed: int = 0) -> Line:
    """The gains over one initial ring."""
    initial = drawn.best.at(slice(1)) if variation.initial == FIRST else _rank_order(variation.initial == APART)
    rings = by_mode(drawn.best, initial, stale=variation.stale)
    found = {mode: drawn.times_s(rings[mode], variation.semantics) for mode in MODES}
    number = np.arange(len(found["base"]))
    blocks = {mode: REEMBED_EVERY if mode in ("ccl", "joint") else 1 for mode in MODES}
    series = {mode: Series(number, found[mode], blocks[mode]) for mode in MODES}
    return Line(
        variation=variation.name,
        size_mb=size_mb,
        collectives=len(number),
        total_s={mode: float(found[mode].sum()) for mode in MODES},
        gain={mode: _gain(series["base"], series[mode]) for mode in MODES},
    )


def _of_others(variation: Variation, size_mb: int, drawn: _Drawn, seed: int) -> Line:
    """The median, least and greatest of the gains over initial rings, and the totals of the median ring by base."""
    apart = (uniform if variation.is_uniform else gaussian)(OTHER_RINGS, seed + 1)
    initial, best = drawn.best_for(apart * NOMINAL_GBPS), drawn.best.at(slice(1 + MOST_OF_OTHERS))
    found = np.empty((OTHER_RINGS, len(MODES)))
    for ring in range(OTHER_RINGS):
        rings = by_mode(best, initial.at(slice(ring, ring + 1)), stale=variation.stale)
        for column, mode in enumerate(MODES):
            is_same = ring > 0 and mode in ("ccl", "joint")  # the initial ring is not theirs
            times = found[0, column] if is_same else drawn.times_s(rings[mode], variation.semantics).sum()
            found[ring, column] = times
    gains = 1 - found / found[:, :1]
    middle = found[np.argsort(found[:, 0])[OTHER_RINGS // 2]]
    return Line(
        variation=variation.name,
        size_mb=size_mb,
        collectives=len(best.paths) - 1,
        total_s=dict(zip(MODES, middle.tolist(), strict=True)),
        gain={
            mode: Interval(value=float(np.median(one)), low=float(one.min()), high=float(one.max()))
            for mode, one in zip(MODES, gains.T, strict=True)
        },
    )


def _gain(base: Series, mode: Series) -> Interval:
    found = gain(base, mode)
    assert found is not None  # they are of the same collectives
    return found


def _rank_order(is_apart: bool) -> Rings:
    borders = np.array([[[0, 1], [0, 1]]]) if is_apart else np.zeros((1, 2, 2), np.int64)
    return Rings(CHAINS[None, :, 0], borders, np.zeros(1, np.int64))
