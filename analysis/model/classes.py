"""The timing model where some links serve classes of traffic in an order, as `fluid` where all are alike."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.model.fluid import program_of
from analysis.model.max_plus import Floats, Times, Transfer

Links = npt.NDArray[np.int32]


def times(
    transfers: Sequence[Transfer],
    links: Links,
    capacity_bps: Floats,
    delay_s: Floats,
    *,
    slot_bytes: float,
    class_of_flow: Sequence[int],
    serves_classes: Sequence[bool],
    assured: Sequence[float],
    ceilings: Sequence[float],
) -> Times:
    """When every transfer of K instances of a schedule begins, leaves and arrives: as `fluid.times`, but with classes.

    `class_of_flow` [F] counts classes in the order of service, and `serves_classes` [links] are the links that serve
    them so: a class has there what the classes before it leave of the capacity, its part `assured` [C] at least, and
    its part `ceilings` [C] at most. Within a class, and on all other links, flows have max-min fair rates. That is what
    HTB does with classes of different priorities: a class sends its own rate first, and borrows by priority.

    Raises ValueError for shapes that do not fit, classes that do not exist, parts outside 0 to 1, and assured parts of
    more than 1 together; `fluid.times` checks everything else.
    """
    from analysis.model import class_kernel, fluid_kernel

    count, flows = delay_s.shape
    parts = np.array([assured, ceilings], dtype=np.float64).reshape(2, -1)
    of_flow = np.asarray(class_of_flow, dtype=np.int32)
    if of_flow.shape != (flows,) or len(serves_classes) != capacity_bps.shape[1] or links.shape[1] != flows:
        raise ValueError(
            f"{of_flow.size} classes of flows, {len(serves_classes)} links: allowed are {flows} and "
            f"{capacity_bps.shape[1]}"
        )
    if of_flow.size and not 0 <= of_flow.min() <= of_flow.max() < parts.shape[1]:
        raise ValueError(f"a flow of class {of_flow.max()}: allowed is 0 to {parts.shape[1] - 1}")
    if not ((parts >= 0) & (parts <= 1)).all() or parts[0].sum() > 1 + 1e-9:
        raise ValueError(f"assured {list(assured)} and ceilings {list(ceilings)}: allowed are 0 to 1, 1 assured")
    seconds = np.zeros((4, count, len(transfers)))
    rows = fluid_kernel.Rows(seconds[0], seconds[1], seconds[2], np.empty((0, 0), np.int32), seconds[3])
    network = fluid_kernel.Network(
        np.ascontiguousarray(links, np.int32),
        np.ascontiguousarray(capacity_bps, np.float64),
        np.ascontiguousarray(delay_s, np.float64),
        8 * float(slot_bytes),
    )
    kinds = class_kernel.Classes(of_flow, np.array(serves_classes, np.bool_), parts[0].copy(), parts[1].copy())
    class_kernel.run(program_of(transfers, flows), network, kinds, rows)
    return Times(rows.begins.T, rows.leaves.T, rows.arrives.T)
