"""The timing model for schedules whose flows may share links: a fluid model in which flows get max-min fair rates.

`times` and `completion_s` evaluate many instances, each under constant conditions; `Run` evaluates one under conditions
that change. Both use the event loop of `fluid_jit`.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
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
    transfers: "Sequence[Transfer] | fluid_jit.Program",
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
    T transfers are in topological order: each comes after those that it waits for. They may be given as arrays
    (`program_of`), which takes time only once.

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
    transfers: "Sequence[Transfer] | fluid_jit.Program",
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
    _check_links(links, capacity_bps.size)
    _check_capacities(capacity_bps)
    _check_classes(classes, flows=len(links), count=capacity_bps.size)
    links = np.require(_kernel_links(links, classes), np.int32, _PLAIN)
    capacity_bps = np.require(_kernel_bps(capacity_bps, classes), np.float64, _PLAIN)
    from analysis.model import fluid_jit

    served, rates, bottleneck = _served_links(classes), np.empty(len(links)), np.empty(len(links), np.int32)
    _check_single_use(fluid_jit.rates(links, capacity_bps, served, rates, bottleneck), flows=len(links))
    return rates, _in_fabric(bottleneck, capacity_bps, served)


class Run:
    """One instance of a schedule in progress, on a network whose capacities, paths and delays may change at any time.

    Made by `runs`; the rules and the errors are those of `times`. After a change, the rest of a transfer is served at
    its new rate and over its new links; a link of capacity 0 stops its flows until it has some again. A change and the
    end of a transfer are simultaneous if they differ by less than 1e-12 of the time since the start; the end then comes
    first. The messages of a flow arrive in order and entirely: none before everything that its flow sent over an
    earlier path.
    """

    def __init__(self, run: "fluid_jit.Run", classes: Classes | None) -> None:
        self._run, self._classes, self._served = run, classes, _served_links(classes)
        class_links = 0 if classes is None else sum(classes.serves) * len(classes.assured)
        self._fabric_links = run.network.capacity.shape[1] - class_links

    def advance(
        self,
        until_s: Floats,
        *,
        capacity_bps: Floats | None = None,
        links: Links | None = None,
        delay_s: Floats | None = None,
    ) -> bool:
        """Go on under each row of a changing network in turn, until its instant; return whether all is over.

        `until_s` [n] are in ascending order. `capacity_bps` [n, links], `links` [n, F, H] and `delay_s` [n, F] are in
        force until then; None leaves them as they are. Data that is under way when a flow's delay changes arrives after
        its old delay. At an infinite instant all is over: what links of capacity 0 still stop never leaves, at infinite
        times. Raises ValueError as `times` does.
        """
        from analysis.model import fluid_jit

        network, rows = self._run.network, len(until_s)
        capacity_bps = np.empty((0, self._fabric_links)) if capacity_bps is None else capacity_bps
        delay_s = network.delay[:0] if delay_s is None else delay_s
        links = network.links[:0] if links is None else links
        for array, shape in ((capacity_bps, (self._fabric_links,)), (links, network.links.shape[1:])):
            if array.shape not in ((0, *shape), (rows, *shape)):
                raise ValueError(f"{rows} rows of shape {array.shape}; allowed: {(rows, *shape)}")
        if delay_s.shape != links.shape[:2]:
            raise ValueError(f"delays {delay_s.shape} for links {links.shape}; allowed: both or none")
        _check_capacities(capacity_bps)
        if links.size:
            _check_links(links, self._fabric_links)
            _check_delays(delay_s)
            _check_single_use(_double_use(links), flows=links.shape[1])
        changes = fluid_jit.Changes(
            np.require(until_s, np.float64, _PLAIN),
            np.require(_kernel_bps(capacity_bps, self._classes), np.float64, _PLAIN),
            np.require(_kernel_links(links, self._classes), np.int32, _PLAIN),
            np.require(delay_s, np.float64, _PLAIN),
        )
        return bool(fluid_jit.advance(self._run, self._served, changes))

    @property
    def sent_bits(self) -> Floats:
        """What each flow has sent so far, [F] bits; 0 for a flow that only computes."""
        program, state = self._run.program, self._run.state
        leaves = self._run.rows.leaves[0] <= state.now[0] * (1 + 1e-12)
        bits = program.amount * self._run.network.slot_bits
        sent = np.zeros(state.serving.size)
        np.add.at(sent, program.flow[leaves], bits[leaves])
        serving = np.flatnonzero(state.serving >= 0)
        has_rate = serving[state.rate[serving] > 0]
        left = (state.finish[has_rate] - state.now[0]) * state.rate[has_rate]
        sent[has_rate] += bits[state.serving[has_rate]] - left
        sent[(self._run.network.links[0] < 0).all(axis=1)] = 0.0
        return sent

    @property
    def times(self) -> Times:
        """When each transfer begins, leaves and arrives, [T, 1] s; known once all is over."""
        return Times(self._run.rows.begins.T, self._run.rows.leaves.T, self._run.rows.arrives.T)


def runs(
    transfers: "Sequence[Transfer] | fluid_jit.Program",
    links: Links,
    capacity_bps: Floats,
    delay_s: Floats,
    *,
    slot_bytes: float,
    classes: Classes | None = None,
    packet_bytes: float = 0.0,
    queued_at: Links | None = None,
) -> Iterator[Run]:
    """Yield a run of each of K instances, whose network may change while it runs; arguments and errors are as for
    `times`.

    With `packet_bytes` above 0, links have queues: each flow has two packets of this size queued at its bottleneck, as
    TCP has in the testbed. If a change moves the bottleneck towards the sender, these packets have passed the new one
    already, which has that much less to send. Each new bottleneck sends one packet immediately. `queued_at`, [L], is
    the link in whose queue the packets of a link wait, by default its own.
    """
    _check_network(links, capacity_bps, delay_s, slot_bytes, classes)
    _check_single_use(_double_use(links), flows=links.shape[1])
    from analysis.model import fluid_jit

    links, capacity_bps = _kernel_links(links, classes), _kernel_bps(capacity_bps, classes)
    (flows, hops), size = links.shape[1:], capacity_bps.shape[1]
    program = transfers if isinstance(transfers, fluid_jit.Program) else program_of(transfers, flows)
    for index in range(len(delay_s)):
        some, own = slice(index, index + 1), slice(index, index + 1) if len(links) > 1 else slice(1)
        network = fluid_jit.Network(
            np.array(links[own], np.int32, order="C"),
            np.array(capacity_bps[some], np.float64, order="C"),
            np.array(delay_s[some], np.float64, order="C"),
            8 * float(slot_bytes),
        )
        of_flows, of_links = np.full((3, flows), -1, np.int32), np.empty((3, size))
        where = np.arange(size, dtype=np.int32)
        if queued_at is not None:
            where[: len(queued_at)] = queued_at
        queues = fluid_jit.Queues(8 * float(packet_bytes), where, *of_flows, *of_links)
        seconds = np.empty((4, 1, program.flow.size))
        bottleneck = np.empty((1, program.flow.size), np.int32)
        rows = fluid_jit.Rows(seconds[0], seconds[1], seconds[2], bottleneck, seconds[3])
        sharing = fluid_jit.new_sharing(flows, hops, size)
        state = fluid_jit.new_state(flows, hops, size, program.flow.size)
        yield Run(fluid_jit.Run(program, network, queues, rows, sharing, state), classes)


def _run(
    transfers: "Sequence[Transfer] | fluid_jit.Program",
    links: Links,
    capacity_bps: Floats,
    delay_s: Floats,
    slot_bytes: float,
    *,
    classes: Classes | None,
    keeps_rows: bool,
) -> "tuple[fluid_jit.Rows, Floats]":
    """Run all instances; return their rows, [K, T], or only the last one's, [1, T], and the completion times, [K]."""
    _check_network(links, capacity_bps, delay_s, slot_bytes, classes)
    # The kernel is compiled for writable arrays only; read-only ones are another type to numba.
    links = np.require(_kernel_links(links, classes), np.int32, _PLAIN)
    capacity_bps = np.require(_kernel_bps(capacity_bps, classes), np.float64, _PLAIN)
    delay_s, served = np.require(delay_s, np.float64, _PLAIN), _served_links(classes)
    from analysis.model import fluid_jit

    count, flows = delay_s.shape
    program = transfers if isinstance(transfers, fluid_jit.Program) else program_of(transfers, flows)
    stored, size = count if keeps_rows else 1, program.flow.size
    seconds = np.empty((4, stored, size))
    bottleneck, completion = np.empty((stored, size), np.int32), np.empty(count)
    rows = fluid_jit.Rows(seconds[0], seconds[1], seconds[2], bottleneck, seconds[3])
    network = fluid_jit.Network(links, capacity_bps, delay_s, 8 * float(slot_bytes))
    invalid = fluid_jit.run(program, network, served, rows, completion)
    _check_single_use(invalid, flows=flows)
    return rows._replace(bottleneck=_in_fabric(bottleneck, capacity_bps, served)), completion


def _check_network(
    links: Links, capacity_bps: Floats, delay_s: Floats, slot_bytes: float, classes: Classes | None
) -> None:
    """Check the network of K instances: links [K or 1, F, H], capacities [K, links] and delays [K, F]."""
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
    _check_links(links, capacity_bps.shape[-1])
    _check_capacities(capacity_bps)
    _check_delays(delay_s)
    if not 0 < slot_bytes < np.inf:
        raise ValueError(f"slots of {slot_bytes:g} bytes; allowed: more than 0")
    _check_classes(classes, flows=links.shape[1], count=capacity_bps.shape[-1])


def _check_links(links: Links, count: int) -> None:
    if links.size and not -1 <= links.min() <= links.max() < count:
        invalid = links.max() if links.max() >= count else links.min()
        raise ValueError(f"a flow uses link {invalid}; allowed: 0 to {count - 1}, and -1 for none")


def _check_capacities(capacity_bps: Floats) -> None:
    if not (valid := (capacity_bps >= 0) & (capacity_bps < np.inf)).all():
        raise ValueError(f"a capacity of {capacity_bps[~valid][0]:g} bit/s; allowed: 0 or more")


def _check_delays(delay_s: Floats) -> None:
    if not (valid := (delay_s >= 0) & (delay_s < np.inf)).all():
        raise ValueError(f"a delay of {delay_s[~valid][0]:g} s; allowed: 0 or more")


def _double_use(links: Links) -> int:
    """Return a flow of [K, F, H] that uses a link twice, as its index in [K * F], or -1."""
    used = np.sort(links, axis=-1)
    flows = np.flatnonzero(((used[..., 1:] == used[..., :-1]) & (used[..., 1:] >= 0)).any(axis=-1))
    return int(flows[0]) if flows.size else -1


def _check_single_use(invalid: int, *, flows: int) -> None:
    if invalid >= 0:
        raise ValueError(f"flow {invalid % flows} of instance {invalid // flows} uses a link twice; allowed: once")


def _check_classes(classes: Classes | None, *, flows: int, count: int) -> None:
    """Check classes for a number of flows and links."""
    if classes is None:
        return
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


# In the kernel's form of a network, a link that serves classes is replaced by a separate link for each class, after all
# other links: those of the first such link class by class, and so on.


def _served_links(classes: Classes | None) -> "fluid_jit.Classes | None":
    """Return the links that serve classes in the kernel's form."""
    from analysis.model import fluid_jit

    if classes is None:
        return None
    served = np.flatnonzero(classes.serves).astype(np.int32)
    return fluid_jit.Classes(served, np.array(classes.assured, np.float64), np.zeros(0))


def _kernel_links(links: Links, classes: Classes | None) -> Links:
    """Convert links [..., F, H] to the kernel's form."""
    if classes is None:
        return links
    serves = np.asarray(classes.serves, np.bool_)
    class_links = np.where(serves, len(serves) + (np.cumsum(serves) - 1) * len(classes.assured), -1)
    is_served = (links >= 0) & (class_links[links] >= 0)
    return np.where(is_served, class_links[links] + np.asarray(classes.of_flow, np.int32)[:, None], links)


def _kernel_bps(capacity_bps: Floats, classes: Classes | None) -> Floats:
    """Convert capacities [..., links] to the kernel's form: the capacity of a class link is its class's ceiling."""
    if classes is None:
        return capacity_bps
    ceilings_bps = capacity_bps[..., np.flatnonzero(classes.serves), None] * np.asarray(classes.ceilings, np.float64)
    class_links = math.prod(ceilings_bps.shape[-2:])
    return np.concatenate([capacity_bps, ceilings_bps.reshape(*capacity_bps.shape[:-1], class_links)], axis=-1)


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


if __name__ == "__main__":
    # Compile now and cache the code next to the module, so that no command has to wait: all, or the named functions.
    one = np.zeros((1, 0, 0), np.int32), np.zeros((1, 1)), np.zeros((1, 0))
    compiles: dict[str, Callable[[Classes | None], object]] = {
        "completion_s": lambda some: completion_s([], *one, slot_bytes=1, classes=some),
        "fair_rates": lambda some: fair_rates(np.zeros((0, 0), np.int32), np.zeros(1), some),
        "runs": lambda some: next(runs([], *one, slot_bytes=1, classes=some)).advance(np.ones(1)),
    }
    for name in sys.argv[1:] or compiles:
        for some in (None, Classes(of_flow=[], serves=[False], assured=[], ceilings=[])):
            compiles[name](some)
