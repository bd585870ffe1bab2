"""Intervals that rest on few independent blocks of collectives: what their readers should know of them.

By simulation they cover as often as others (tests/analysis/test_coverage.py). But times are skewed: one slow block more
or less moves an interval far, and the interval of a mean and that of a gain, which is made from other sums of the same
blocks, move by different amounts.
"""

import math
from collections.abc import Iterable

from analysis.statistics.intervals import Estimated
from topologies.errors import list_all

FEW_BLOCKS = 20
"""Intervals that rest on fewer blocks are told."""


def few_blocks_sentence(estimates: Iterable[Estimated]) -> str:
    """Return a sentence on the intervals that rest on few blocks, of means and gains; "" if there are none."""
    known = [(name, one) for name, *both in estimates for one in both]
    few = [
        (name, one.blocks)
        for name, one in known
        if one is not None and not one.why and one.low < one.high and one.blocks < FEW_BLOCKS
    ]
    if not few:
        return ""
    of = f" of {list_all(list(dict.fromkeys(name for name, _ in few)))}" if len({name for name, _ in known}) > 1 else ""
    # The last block counts for its share, and is not told as a whole one; as beside ECMP's gains.
    least, most = (f"{math.floor(end(blocks for _, blocks in few))}" for end in (min, max))
    number = least if least == most else f"{least} to {most}"
    return (
        f"intervals{of} rest on {number} independent blocks of collectives, which are few: a slow "
        "block more or less would move them far, and those of a mean and of the gain over it need not fit each other; "
        "more collectives or several seeds give more blocks"
    )
