"""What the lower bounds of a table bound, in words: of one network there are two, as `analysis.model.lower_bound` says.

The bound for the model in which flows share links is lower than the one where none can, because a flow holds all links
of its path at once there. So the configurations of a run, of the same network and size, can have either.
"""

from collections.abc import Collection

MARK = "* "
"""What is before a bound in the model of shared links, beside others."""
ANY, SHARED = "any schedule", "any schedule in the model of shared links"
"""Which schedules a bound holds for, in JSON."""


def bound_words(
    sharing: Collection[bool],
    *,
    name: str = "lower bound",
    means: bool = True,
    faults: bool = False,
    jobs: bool = False,
) -> str:
    """Return what the bounds in a column of this name are, given of each whether it is the one in the model of shared
    links: `means` of several collectives or not, whether some have `faults`, and whether some are those of rounds of
    several `jobs`; "" without bounds."""
    if not sharing:
        return ""
    without = ", faults left out" * faults
    what = "the mean, over the collectives of the line, of the time" if means else "the time"
    known = f"{name}: {what} that no schedule can beat{without}"
    if not any(sharing):
        return known
    where = "where flows can share links" + " and in rounds of jobs" * jobs
    mark = "" if all(sharing) else f"{MARK.strip()}: "
    return f"{known}; {mark}{where} the lower one that holds in the model of shared links"


def is_mixed(sharing: Collection[bool]) -> bool:
    """Return whether there are bounds of both kinds, so that those of one have the mark."""
    return len({*sharing}) > 1
