"""A mode that chooses rings may be slower than one that keeps its ring, even with current rates: why, in a sentence."""

from collections.abc import Sequence

from scenarios.experiment.point_results import ConfigResult
from scenarios.policies.knowledge import ORACLE

_PAIRS = (("ccl", "base"), ("joint", "wan"))  # modes that differ in the ring alone
_SLOWER = 1e-3  # share of the mean time from which on a mode is told as slower
_REASON = {
    "slowest edge": "has the least slowest edge, and of equal ones the least delay",
    "cycle time": "has the least cycle time, and of equal ones the least sum of its edges' costs",
    "sum": "has the least sum of its edges' costs",
}


def slower_ring_sentence(results: Sequence[ConfigResult]) -> str:
    """Return why modes that choose rings, and to which knowledge and changes cost nothing, are slower than the same
    modes with the ring in rank order; "" if none is."""
    slower: dict[str, str] = {}
    for result in results:
        config = result.config
        if config.control.counted or config.control.knowledge != ORACLE or not config.workload.is_ring:
            continue
        means_s = {point.mode: point.summary.mean_s.value for point in result.points}
        for mode, kept in _PAIRS:
            if mode in means_s and kept in means_s and means_s[mode] > (1 + _SLOWER) * means_s[kept]:
                slower.setdefault(f"{mode} than {kept}", config.collective.ring)
    if not slower:
        return ""
    which = " and ".join(slower)
    return (
        f"Slower with a chosen ring than in rank order: {which}; a chosen ring {_REASON[next(iter(slower.values()))]}, "
        "which need not be the least time (docs/policies.md)."
    )
