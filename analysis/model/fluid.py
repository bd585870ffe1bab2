"""The timing model for schedules whose flows may share links: a fluid model in which flows get max-min fair rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Floats, Times, Transfer

if TYPE_CHECKING:
    from analysis.model import fluid_jit

Links = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Classes of traffic in service order: the class of each flow, `of_flow` [F], and which links serve them, `serves`.

    On a link that serves classes, a class gets the capacity that the classes before it leave, but at least its share
    `assured` [C] and at most its share `ceilings` [C]. Within a class, and on all other links, flows get max-min fair
    rates. HTB classes with different priorities behave like this: each sends at its own rate first, then borrows by
    priority.
    """

    of_flow: Sequence[int]
    serves: Sequence[bool]
    assured: Sequence[float]
    ceilings: Sequence[float]


_PLAIN: tuple[Literal["C"], Literal["W"]] = ("C", "W")  # in C order and writable, as the kernel is compiled for


@dataclass(frozen=True, eq=False)
class SharedTimes(Times):
    """The times of K instances, and the bottleneck of each transfer, [T, K] each.

    `bottleneck` is the link that set the transfer's rate for longest (-1 for a computation or an empty transfer), and
    `bottleneck_s` the seconds for which it did.
    """

    bottleneck: Links
    bottleneck_s: Floats


def times(
    transfers: Sequence[Transfer],
    links: Links,
    capacity_bps: Floats,
    delay_s: Floats,
    *,
    slot_bytes: float,
    classes: Classes | None = None,
) -> SharedTimes:
    """Return when every transfer of K instances of a schedule begins, leaves and arrives.

    `links` [K, F, H] are the links on the path of each flow, in any order and padded with -1; [1, F, H] if they are the
    same in all instances. `capacity_bps` [K, links] is the capacity of each link, and `delay_s` [K, F] the delay of
    each flow after its links. A flow without links is a stream: its transfers are computations of `amount` seconds. The
    T transfers are in topological order: each comes after those that it waits for.

    A transfer begins when all transfers that it waits for have arrived and the previous one on its flow has left, as in
    `max_plus`. A transfer in service holds all of its links at once, and at every moment all transfers in service have
    their max-min fair rates: each rate is limited by a link that is full and on which no other transfer has a higher
    rate (Bertsekas and Gallager, "Data Networks", 2nd edition, 6.5.2). A transfer leaves when all its bytes have been
    served, and arrives `delay_s` later. A link that only one flow uses is never shared, and a flow that has only such
    links is timed by the recursion of `max_plus`.

    A link of capacity 0 has failed: transfers over it, and those that wait for them, leave at infinity. Empty transfers
    leave as they begin. Events whose times differ by less than 1e-12 of the time since the start are simultaneous.
    Raises ValueError for shapes that do not fit, a link that does not exist or that a flow uses twice, a capacity, a
    delay or an amount that is negative or not finite, slots of 0 bytes, classes that do not exist, shares of a link
    outside 0 to 1, and assured shares that add up to more than 1.
    """
    rows, _ = _run(transfers, links, capacity_bps, delay_s, slot_bytes, classes=classes, keeps_rows=True)
    return SharedTimes(rows.begins.T, rows.leaves.T, rows.arrives.T, rows.bottleneck.T, rows.bottleneck_s.T)


def completion_s(
    transfers: Sequence[Transfer],
    links: Links,
    capacity_bps: Floats,
    delay_s: Floats,
    *,
    slot_bytes: float,
    classes: Classes | None = None,
) -> Floats:
    """Return when the last transfer of each instance arrives, [K] s. Arguments and errors are as for `times`."""
    return _run(transfers, links, capacity_bps, delay_s, slot_bytes, classes=classes, keeps_rows=False)[1]


def bottleneck_names(timing: Times, names: Sequence[str], instance: int = 0) -> dict[int, str]:
    """Return the name of the link that set each transfer's rate for longest in an instance; empty without sharing.

    `names` are the names of all links.
    """
    if not isinstance(timing, SharedTimes):
        return {}
    chosen = timing.bottleneck[:, instance].tolist()
    return {transfer: names[link] for transfer, link in enumerate(chosen) if link >= 0}


def fair_rates(links: Links, capacity_bps: Floats, classes: Classes | None = None) -> tuple[Floats, Links]:
    """Return the max-min fair rates of flows that are all active at once, [F] bit/s, and each one's bottleneck, [F].

    `links` [F, H], `capacity_bps` [links] and the errors are as for `times`; a flow without links has an infinite rate
    and the bottleneck -1.
    """
    if (links.ndim, capacity_bps.ndim) != (2, 1):
        raise ValueError(f"links {links.shape} and capacities {capacity_bps.shape}; allowed: [F, H] and [links]")
    _check(links, capacity_bps)
    links, capacity_bps, kernel_classes = _for_kernel(links, capacity_bps, classes)
    from analysis.model import fluid_jit

    rates, bottleneck = np.empty(len(links)), np.empty(len(links), np.int32)
    _check_single_use(fluid_jit.rates(links, capacity_bps, kernel_classes, rates, bottleneck), flows=len(links))
    return rates, _in_fabric(bottleneck, capacity_bps, kernel_classes)


def _run(
    transfers: Sequence[Transfer],
    links: Links,
    capacity_bps: Floats,
    delay_s: Floats,
    slot_bytes: float,
    *,
    classes: Classes | None,
    keeps_rows: bool,
) -> "tuple[fluid_jit.Rows, Floats]":
    """Run all instances; return their rows, [K, T], or only the last one's, [1, T], and the completion times, [K]."""
    shapes = links.shape, capacity_bps.shape, delay_s.shape
    if (
        [len(shape) for shape in shapes] != [3, 2, 2]
        or len(capacity_bps) != len(delay_s)
        or links.shape[1] != delay_s.shape[1]
        or len(links) not in (1, len(delay_s))
    ):
        raise ValueError(
            f"links {shapes[0]}, capacities {shapes[1]} and delays {shapes[2]}; allowed: [K or 1, F, H], [K, links] "
            "and [K, F]"
        )
    _check(links, capacity_bps)
    if not (valid := (delay_s >= 0) & (delay_s < np.inf)).all():
        raise ValueError(f"a delay of {delay_s[~valid][0]:g} s; allowed: 0 or more")
    if not 0 < slot_bytes < np.inf:
        raise ValueError(f"slots of {slot_bytes:g} bytes; allowed: more than 0")
    links, capacity_bps, kernel_classes = _for_kernel(links, capacity_bps, classes)
    delay_s = np.require(delay_s, np.float64, _PLAIN)
    from analysis.model import fluid_jit

    count, flows = delay_s.shape
    stored = count if keeps_rows else 1
    seconds = np.empty((4, stored, len(transfers)))
    bottleneck, completion = np.empty((stored, len(transfers)), np.int32), np.empty(count)
    rows = fluid_jit.Rows(seconds[0], seconds[1], seconds[2], bottleneck, seconds[3])
    network = fluid_jit.Network(links, capacity_bps, delay_s, 8 * float(slot_bytes))
    invalid = fluid_jit.run(program_of(transfers, flows), network, kernel_classes, rows, completion)
    _check_single_use(invalid, flows=flows)
    return rows._replace(bottleneck=_in_fabric(bottleneck, capacity_bps, kernel_classes)), completion


def _check(links: Links, capacity_bps: Floats) -> None:
    count = capacity_bps.shape[-1]
    if links.size and not -1 <= links.min() <= links.max() < count:
        invalid = links.max() if links.max() >= count else links.min()
        raise ValueError(f"a flow uses link {invalid}; allowed: 0 to {count - 1}, and -1 for none")
    if not (valid := (capacity_bps >= 0) & (capacity_bps < np.inf)).all():
        raise ValueError(f"a capacity of {capacity_bps[~valid][0]:g} bit/s; allowed: 0 or more")


def _check_single_use(invalid: int, *, flows: int) -> None:
    if invalid >= 0:
        raise ValueError(f"flow {invalid % flows} of instance {invalid // flows} uses a link twice; allowed: once")


def _for_kernel(
    links: Links, capacity_bps: Floats, classes: Classes | None
) -> "tuple[Links, Floats, fluid_jit.Classes | None]":
    """Convert links [..., F, H] and capacities [..., links] to the kernel's form, in which a link that serves classes
    is replaced by a separate link for each class."""
    from analysis.model import fluid_jit

    served = None
    if classes is not None:
        count, flows = capacity_bps.shape[-1], links.shape[-2]
        of_flow, serves = np.asarray(classes.of_flow, np.int32), np.asarray(classes.serves, np.bool_)
        shares = np.array([classes.assured, classes.ceilings], np.float64).reshape(2, -1)
        if of_flow.shape != (flows,) or serves.shape != (count,):
            raise ValueError(f"classes of {of_flow.size} flows and {serves.size} links; allowed: {flows} and {count}")
        if of_flow.size and not 0 <= of_flow.min() <= of_flow.max() < shares.shape[1]:
            raise ValueError(f"a flow of class {of_flow.max()}; allowed: 0 to {shares.shape[1] - 1}")
        if not ((shares >= 0) & (shares <= 1)).all() or shares[0].sum() > 1 + 1e-9:
            raise ValueError(
                f"assured {list(classes.assured)} and ceilings {list(classes.ceilings)}; allowed: 0 to 1, and a sum of "
                "assured shares up to 1"
            )
        served = fluid_jit.Classes(np.flatnonzero(serves).astype(np.int32), shares[0].copy(), np.zeros(0))
        # The class links of a served link are numbered from here on, class by class.
        class_links = np.where(serves, count + (np.cumsum(serves) - 1) * shares.shape[1], -1)
        links = np.where((links >= 0) & (class_links[links] >= 0), class_links[links] + of_flow[:, None], links)
        ceilings_bps = capacity_bps[..., served.served, None] * shares[1]
        capacity_bps = np.concatenate([capacity_bps, ceilings_bps.reshape(*capacity_bps.shape[:-1], -1)], axis=-1)
    # The kernel is compiled for writable arrays only; read-only ones are another type to numba.
    return np.require(links, np.int32, _PLAIN), np.require(capacity_bps, np.float64, _PLAIN), served


def _in_fabric(bottleneck: Links, capacity_bps: Floats, classes: "fluid_jit.Classes | None") -> Links:
    """Convert the kernel's bottlenecks to indices of links in the fabric."""
    if classes is None:
        return bottleneck
    unclassed = capacity_bps.shape[-1] - classes.served.size * classes.assured.size
    in_fabric = np.concatenate([np.arange(unclassed), np.repeat(classes.served, classes.assured.size), [-1]])
    return in_fabric[bottleneck].astype(np.int32)


def program_of(transfers: Sequence[Transfer], flows: int) -> "fluid_jit.Program":
    """Convert a schedule to arrays; raises ValueError for flows or transfers that do not exist, or negative amounts."""
    from analysis.model import fluid_jit

    size = len(transfers)
    waits, following = np.zeros(size, np.int32), np.full(size, -1, np.int32)
    waiting: list[list[int]] = [[] for _ in range(size)]
    previous: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        if not 0 <= transfer.flow < flows:
            raise ValueError(f"transfer {index} is on flow {transfer.flow}; allowed: 0 to {flows - 1}")
        if not 0 <= transfer.amount < np.inf:
            raise ValueError(f"transfer {index} is of {transfer.amount:g} slots or seconds; allowed: 0 or more")
        for dependency in transfer.after:
            if not 0 <= dependency < index:
                raise ValueError(f"transfer {index} waits for transfer {dependency}; allowed: those before it")
            waiting[dependency].append(index)
        waits[index] = len(transfer.after)
        if transfer.flow in previous:
            following[previous[transfer.flow]] = index
            waits[index] += 1
        previous[transfer.flow] = index
    return fluid_jit.Program(
        flow=np.array([transfer.flow for transfer in transfers], np.int32),
        amount=np.array([transfer.amount for transfer in transfers], np.float64),
        waits=waits,
        following=following,
        waiting_at=np.cumsum([0, *map(len, waiting)], dtype=np.int32),
        waiting=np.array([index for indices in waiting for index in indices], np.int32),
    )


if __name__ == "__main__":  # compile now and cache the code next to the module, so that no command has to wait
    for some in (None, Classes(of_flow=[], serves=[False], assured=[], ceilings=[])):
        completion_s([], np.zeros((1, 0, 0), np.int32), np.zeros((1, 1)), np.zeros((1, 0)), slot_bytes=1, classes=some)
        fair_rates(np.zeros((0, 0), np.int32), np.zeros(1), some)
