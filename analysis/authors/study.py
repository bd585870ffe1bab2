"""What the authors' result rests on: their simulation with one thing changed at a time, and the gains that are left."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

FIRST, RANK_ORDER, OTHERS = "first draw", "rank order", "other draws"
"""From what the initial ring is built: the best of the first draw, as in the authors' code; GPUs in the order of their
numbers, the first border switches and the shortest path; or the best of each of `OTHER_RINGS` draws apart."""

OTHER_RINGS, MOST_OF_OTHERS = 50, 20_000
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
    Variation("initial rings of other draws", initial=OTHERS),
    Variation("independent ports", semantics=Semantics(shared_port=False)),
    Variation("links free once sent", semantics=Semantics(shared_port=False, busy_in_flight=False)),
    Variation("cut-through", semantics=_CUT_THROUGH),
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
    total_s: Mapping[str, float] = field(hash=False)
    gain: Mapping[str, Interval] = field(hash=False)


def size_gbit(size_mb: int, *, whole_bytes: bool = False) -> float:
    """A chunk as a number that is divided by Gbit/s: as the authors have it, or in bits."""
    return size_mb * 8e-3 if whole_bytes else size_mb / 1024


def totals(shares: Floats, size_mb: int, wan_delay_s: float) -> dict[str, float]:
    """The totals of the authors' figure by mode, s, of links' shares of nominal capacity, [1 + collectives, links]."""
    line = study(shares, VARIATIONS[0], size_mb, wan_delay_s, seed=0)
    return dict(line.total_s)


def study(shares: Floats, variation: Variation, size_mb: int, wan_delay_s: float, *, seed: int) -> Line:
    """One variation over draws of links' shares of nominal capacity, [1 + collectives, links], the first the initial
    ring's; `seed` is of the draws that the variation makes itself."""
    drawn = uniform(len(shares), seed) if variation.is_uniform else shares
    size = size_gbit(size_mb, whole_bytes=variation.whole_bytes)
    if variation.initial == OTHERS:
        drawn = drawn[: 1 + MOST_OF_OTHERS]
    capacity_gbps = drawn * NOMINAL_GBPS
    best = best_rings(weights_of(capacity_gbps, size, wan_delay_s))

    def timed(rings: Rings) -> Floats:
        return times_s(rings, capacity_gbps[1:], size, wan_delay_s, variation.semantics)

    if variation.initial == OTHERS:
        apart = (uniform if variation.is_uniform else gaussian)(OTHER_RINGS, seed + 1) * NOMINAL_GBPS
        return _of_others(variation, size_mb, best, best_rings(weights_of(apart, size, wan_delay_s)), timed)
    initial = best.at(slice(1)) if variation.initial == FIRST else _rank_order()
    found = {mode: timed(rings) for mode, rings in by_mode(best, initial, stale=variation.stale).items()}
    number = np.arange(len(shares) - 1)
    blocks = {mode: REEMBED_EVERY if mode in ("ccl", "joint") else 1 for mode in MODES}
    series = {mode: Series(number, found[mode], blocks[mode]) for mode in MODES}
    return Line(
        variation=variation.name,
        size_mb=size_mb,
        collectives=len(number),
        total_s={mode: float(found[mode].sum()) for mode in MODES},
        gain={mode: _gain(series["base"], series[mode]) for mode in MODES},
    )


def lines(shares: Floats, sizes_mb: Sequence[int], wan_delay_s: float, *, seed: int) -> Iterator[Line]:
    """All variations at each size, as `study` has them."""
    for size_mb in sizes_mb:
        for variation in VARIATIONS:
            yield study(shares, variation, size_mb, wan_delay_s, seed=seed)


def _gain(base: Series, mode: Series) -> Interval:
    found = gain(base, mode)
    assert found is not None  # they are of the same collectives
    return found


def _rank_order() -> Rings:
    return Rings(CHAINS[None, :, 0], np.zeros((1, 2, 2), np.int64), np.zeros(1, np.int64))


def _of_others(
    variation: Variation, size_mb: int, best: Rings, initial: Rings, timed: Callable[[Rings], Floats]
) -> Line:
    """The median, least and greatest of the gains over initial rings, and the totals of the median ring by base."""
    count = len(best.paths) - 1
    found = np.empty((len(initial.paths), len(MODES)))
    for ring in range(len(found)):
        rings = by_mode(best, initial.at(slice(ring, ring + 1)), stale=variation.stale)
        for column, mode in enumerate(MODES):
            is_same = ring > 0 and mode in ("ccl", "joint")  # the initial ring is not theirs
            found[ring, column] = found[0, column] if is_same else timed(rings[mode]).sum()
    gains = 1 - found / found[:, :1]
    middle = found[np.argsort(found[:, 0])[len(found) // 2]]
    return Line(
        variation=variation.name,
        size_mb=size_mb,
        collectives=count,
        total_s=dict(zip(MODES, middle.tolist(), strict=True)),
        gain={
            mode: Interval(value=float(np.median(one)), low=float(one.min()), high=float(one.max()))
            for mode, one in zip(MODES, gains.T, strict=True)
        },
    )
