"""The compiled part of `fluid`: one event loop, `_advance`, for every schedule and network, and max-min fair rates.

Importing this module imports numba (`compiled`); so `fluid` imports it when it is called.

A link is *shared* in an instance if several flows use it and its capacity is less than the sum of the rates that they
would have alone. All other links limit single flows; the lowest capacity among a flow's unshared links is its `cap`.
Transfers of flows without shared links need no events, because their rates change only when the network does: they are
completed at once if they end before the next change. Each instance numbers its shared links from 0.

A link that serves classes of traffic is represented by one link for each class, after all other links. The capacity of
such a class link is its *room*, which depends on what the other classes take. Class links count as shared.

The code for classes and for changing networks is compiled as separate variants: None in place of `Classes` or `Queues`
leaves it out.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.model.compiled import compiled, compiled_entry, compiled_without_refcounts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_TIE = 1e-12  # events closer than this share of the time since the start are simultaneous
_NOISE = 1e-14  # smaller relative changes of a rate are ignored
_NO_RATE = -1.0
_SETTLED = 1e-13  # the rooms of classes have converged if they change by less than this share of a link's capacity
_WHOLE_TURNS, _HALF_TURNS = 20, 120  # a room makes the whole step to its new value before turn 20, half before 120
_STEP = 0.2  # the part of the step from then on, because half steps can oscillate, too
_MAX_TURNS = 1000
_MIN_ROOM = 1e-100  # bit/s: not 0, so that the finish time of a flow that has to wait still encodes its bits
_EQUAL = 1e-9  # relative difference up to which a link counts as full, and a flow as its fastest
_QUEUED = 2.0  # packets of a flow that are queued at its bottleneck
_NEVER = 1e80  # s: events after this never happen


class Program(NamedTuple):
    """A schedule as arrays, [T]: the flow and the amount of each transfer; `waits`, how many transfers it waits for,
    including the previous one on its flow; `following`, the next one on its flow, or -1; and in CSR form, `waiting` and
    `waiting_at`, the transfers that wait for its arrival."""

    flow: Ints
    amount: Floats
    waits: Ints
    following: Ints
    waiting_at: Ints
    waiting: Ints


class Classes(NamedTuple):
    """The S links that serve C classes of traffic, and the share of their capacity `assured` to each class, [C].

    The last S * C links are their class links: first those of `served[0]`, class by class, and so on. The capacity of a
    class link is its class's ceiling. Flows use class links instead of served ones. `capacity` [links]: of an instance.
    """

    served: Ints
    assured: Floats
    capacity: Floats


class Network(NamedTuple):
    """The network of K instances: the `links` [K or 1, F, H] of every flow, `capacity` [K, links] in bit/s, `delay`
    [K, F] in s, and the bits of a slot. `advance` changes it."""

    links: Ints
    capacity: Floats
    delay: Floats
    slot_bits: float


class Now(NamedTuple):
    """The links [F, H] of flows and the capacity [links] of links that are in force now in an instance."""

    links: Ints
    capacity: Floats


class Rows(NamedTuple):
    """The results, [T] of one instance or [K, T]."""

    begins: Floats
    leaves: Floats
    arrives: Floats
    bottleneck: Ints
    bottleneck_s: Floats


class Queues(NamedTuple):
    """The packets that are queued at flows' bottlenecks: the bits of one, 0 for no queues; `where`, for each link the
    link in whose queue its packets wait; for each flow the link where they are, `at`, while it serves the transfer
    `of`; and for computing, the flow's present `bottleneck`, and for each link three numbers."""

    packet_bits: float
    where: Ints
    at: Ints
    of: Ints
    bottleneck: Ints
    total: Floats
    fastest: Floats
    packets: Floats


class Sharing(NamedTuple):
    """The shared links of an instance.

    For each flow: `hops` [F, H], the shared links that it uses, and `degree`, their number; `cap`, the lowest capacity
    of its other links, and `cap_link`, the link that has it. For each shared link: `link`, its index in the fabric,
    `capacity`, and `first`, where its members begin. For each link in the fabric, during the search for shared links:
    `uses`, the number of flows on it, `last`, the last of them, `total`, the sum of the rates that they would have
    alone, and `number`, its number as a shared link. For classes, `total` is the sum of their actual rates.
    """

    hops: Ints
    degree: Ints
    cap: Floats
    cap_link: Ints
    link: Ints
    capacity: Floats
    first: Ints
    uses: Ints
    last: Ints
    total: Floats
    number: Ints


class State(NamedTuple):
    """The state that changes from event to event, at time `now[0]`; up to `now[1]` the network does not change:

    - for each transfer, how many transfers it still `waits` for;
    - for each flow, when everything that it has sent so far will have `arrived`;
    - for each flow in service, whether it `is_member` of its shared links, the transfer that it is `serving` (or -1),
      its `rate` in bit/s and `finish`, when that transfer leaves at this rate; `limit`, the hop that sets the rate
      (`degree` means `cap`), `since` when it does, and `spent` [F, H + 1], for how many seconds each hop has set it,
      both since the network's last change;
    - for each shared link, its `members` and their number; `member_hop`, the link's index among the hops of a member;
      `slot` [F, H], the index of a flow's hop in `members`;
    - during progressive filling, for each link the capacity `left`, the number of `open` members, which have no rate
      yet, and the equal `share` of each of them;
    - lists, and their `size`; the last size is not 0 if the network has changed since rates were computed.
    """

    now: Floats
    waits: Ints
    arrived: Floats
    is_member: Bools
    serving: Ints
    rate: Floats
    finish: Floats
    limit: Ints
    since: Floats
    spent: Floats
    members: Ints
    member_count: Ints
    member_hop: Ints
    slot: Ints
    left: Floats
    open: Ints
    share: Floats
    has_no_rate: Bools
    is_listed: Bools
    size: Ints
    active: Ints
    active_at: Ints
    changed: Ints
    links: Ints
    heap: Ints
    stack: Ints


_ACTIVE, _CHANGED, _LINKS, _HEAP, _STACK, _STALE = range(6)
_HORIZON = 1


class Instance(NamedTuple):
    """One instance of a schedule."""

    program: Program
    delay: Floats
    slot_bits: float
    sharing: Sharing
    rows: Rows
    state: State


class Run(NamedTuple):
    """One instance in progress: K is 1 in the network and the rows. It has not begun if the time is negative."""

    program: Program
    network: Network
    queues: Queues
    rows: Rows
    sharing: Sharing
    state: State


class Changes(NamedTuple):
    """The network from now on by row: `capacity` [n, links], `links` [n, F, H] and `delay` [n, F] are in force until
    the instants `until` [n]. Arrays with no row leave the network as it is."""

    until: Floats
    capacity: Floats
    links: Ints
    delay: Floats


@compiled_entry
def run(program: Program, network: Network, classes: Classes | None, rows: Rows, completion: Floats) -> int:
    """Evaluate the instances one after another into `rows` and `completion` [K]; a single row keeps the last instance.

    Returns the index in [K * F] of a flow that uses a link twice, or -1.
    """
    _, flows, hops = network.links.shape
    links, transfers = network.capacity.shape[1], program.flow.size
    sharing, state = _new_sharing(flows, hops, links), _new_state(flows, hops, links, transfers)
    for index in range(completion.size):
        flow_links, capacity = network.links[index % len(network.links)], network.capacity[index]
        invalid = _find_shared(flow_links, capacity, classes, sharing)
        if invalid >= 0:
            return int(index * flows + invalid)
        at = index % len(rows.begins)
        row = Rows(rows.begins[at], rows.leaves[at], rows.arrives[at], rows.bottleneck[at], rows.bottleneck_s[at])
        instance = Instance(program, network.delay[index], network.slot_bits, sharing, row, state)
        _start(instance)
        _advance(np.inf, Now(flow_links, capacity), instance, _classes_of(capacity, classes), None)
        completion[index] = 0.0
        for transfer in range(transfers):
            completion[index] = max(completion[index], row.arrives[transfer])
    return -1


@compiled_entry
def advance(run: Run, classes: Classes | None, changes: Changes) -> bool:
    """Go on with a run under each row of `changes` in turn; return whether all is over.

    What ends or begins at the end of a row does so under this row.
    """
    rows, state = run.rows, run.state
    row = Rows(rows.begins[0], rows.leaves[0], rows.arrives[0], rows.bottleneck[0], rows.bottleneck_s[0])
    instance = Instance(run.program, run.network.delay[0], run.network.slot_bits, run.sharing, row, state)
    now = Now(run.network.links[0], run.network.capacity[0])
    if state.now[0] < 0.0:
        _start(instance)
        state.size[_STALE] = 1
    for index in range(changes.until.size):
        if len(changes.capacity) > 0:
            _change_capacities(changes.capacity[index], now, state)
        if len(changes.links) > 0:
            _change_paths(changes.links[index], changes.delay[index], now, instance)
        if _advance(changes.until[index], now, instance, _classes_of(now.capacity, classes), run.queues):
            return True
    return False


@compiled_entry
def rates(links: Ints, capacity: Floats, classes: Classes | None, rate: Floats, bottleneck: Ints) -> int:
    """Compute the rates of flows that are all active, and their bottlenecks; `links` [F, H]. Returns as `run` does."""
    flows, hops = links.shape
    sharing, state = _new_sharing(flows, hops, capacity.size), _new_state(flows, hops, capacity.size, 0)
    invalid = _find_shared(links, capacity, classes, sharing)
    if invalid >= 0:
        return invalid
    for flow in range(flows):
        state.rate[flow], state.limit[flow] = sharing.cap[flow], sharing.degree[flow]
        if sharing.degree[flow] > 0:
            _add_member(flow, sharing, state)
    if classes is None:
        _list_component(state.changed, state.size[_CHANGED], sharing, state)
        _fill_progressively(sharing, state)
    else:
        _share_by_class(Classes(classes.served, classes.assured, capacity), sharing, state)
    for flow in range(flows):
        rate[flow] = 0.0 if state.rate[flow] == _MIN_ROOM else state.rate[flow]
        bottleneck[flow] = _link_of_hop(flow, state.limit[flow], sharing)
    return -1


def new_sharing(flows: int, hops: int, links: int) -> Sharing:
    return Sharing(
        hops=np.empty((flows, hops), np.int32),
        degree=np.empty(flows, np.int32),
        cap=np.empty(flows),
        cap_link=np.empty(flows, np.int32),
        link=np.empty(links, np.int32),
        capacity=np.empty(links),
        first=np.empty(links, np.int32),
        uses=np.zeros(links, np.int32),
        last=np.full(links, -1, np.int32),
        total=np.zeros(links),
        number=np.empty(links, np.int32),
    )


def new_state(flows: int, hops: int, links: int, transfers: int) -> State:
    return State(
        now=np.full(2, -1.0),
        waits=np.empty(transfers, np.int32),
        arrived=np.zeros(flows),
        is_member=np.zeros(flows, np.bool_),
        serving=np.full(flows, -1, np.int32),
        rate=np.zeros(flows),
        finish=np.zeros(flows),
        limit=np.zeros(flows, np.int32),
        since=np.zeros(flows),
        spent=np.zeros((flows, hops + 1)),
        members=np.empty(flows * hops, np.int32),
        member_count=np.zeros(links, np.int32),
        member_hop=np.empty(flows * hops, np.int32),
        slot=np.empty((flows, hops), np.int32),
        left=np.empty(links),
        open=np.empty(links, np.int32),
        share=np.empty(links),
        has_no_rate=np.zeros(flows, np.bool_),
        is_listed=np.zeros(links, np.bool_),
        size=np.zeros(6, np.int32),
        active=np.empty(flows, np.int32),
        active_at=np.empty(flows, np.int32),
        changed=np.empty(flows, np.int32),
        links=np.empty(links, np.int32),
        heap=np.empty(transfers, np.int32),
        stack=np.empty(transfers, np.int32),
    )


_new_sharing, _new_state = compiled(new_sharing), compiled(new_state)

# --- which links are shared ------------------------------------------------------------------------------------------


@compiled
def _classes_of(capacity: Floats, classes: Classes | None) -> Classes | None:
    """Return the classes of an instance that has these capacities."""
    if classes is None:
        return None
    return Classes(classes.served, classes.assured, capacity)


@compiled_without_refcounts
def _find_shared(links: Ints, capacity: Floats, classes: Classes | None, sharing: Sharing) -> int:
    """Fill in `sharing`; returns a flow that uses a link twice, or -1."""
    invalid = _count_uses(links, capacity, sharing)
    number, members = 0, 0
    for flow in range(len(links)):
        sharing.degree[flow], sharing.cap[flow], sharing.cap_link[flow] = 0, np.inf, -1
        for link in links[flow]:
            if link < 0:
                continue
            is_shared = sharing.uses[link] > 1 and sharing.total[link] > capacity[link]
            if classes is not None:
                is_shared |= link >= capacity.size - classes.served.size * classes.assured.size
            if is_shared:
                if sharing.last[link] >= 0:  # it has no number yet
                    sharing.last[link], sharing.number[link] = -1, number
                    sharing.link[number], sharing.capacity[number] = link, capacity[link]
                    sharing.first[number] = members
                    members += sharing.uses[link]
                    number += 1
                sharing.hops[flow, sharing.degree[flow]] = sharing.number[link]
                sharing.degree[flow] += 1
            elif max(_MIN_ROOM, capacity[link]) < sharing.cap[flow]:
                sharing.cap[flow], sharing.cap_link[flow] = max(_MIN_ROOM, capacity[link]), link
    for flow in range(len(links)):
        for link in links[flow]:
            if link >= 0:
                sharing.uses[link], sharing.total[link], sharing.last[link] = 0, 0.0, -1
    return invalid


@compiled_without_refcounts
def _count_uses(links: Ints, capacity: Floats, sharing: Sharing) -> int:
    invalid = -1
    for flow in range(len(links)):
        alone = np.inf
        for link in links[flow]:
            if link >= 0:
                if sharing.last[link] == flow:
                    invalid = flow
                sharing.last[link] = flow
                sharing.uses[link] += 1
                alone = min(alone, capacity[link])
        for link in links[flow]:
            if link >= 0:
                sharing.total[link] += alone
    return invalid


@compiled_without_refcounts
def _link_of_hop(flow: int, hop: int, sharing: Sharing) -> int:
    """Return the index in the fabric of a flow's hop, or of the link that sets its cap if `hop` is its degree."""
    return int(sharing.cap_link[flow] if hop == sharing.degree[flow] else sharing.link[sharing.hops[flow, hop]])


# --- max-min fair rates ----------------------------------------------------------------------------------------------


@compiled_without_refcounts
def _add_member(flow: int, sharing: Sharing, state: State) -> None:
    """Add a flow to the members of its shared links, and list it as active and changed."""
    _join_links(flow, sharing, state)
    state.is_member[flow], state.rate[flow], state.finish[flow] = True, _NO_RATE, np.inf
    state.limit[flow] = sharing.degree[flow]
    state.active_at[flow], state.active[state.size[_ACTIVE]] = state.size[_ACTIVE], flow
    state.size[_ACTIVE] += 1
    state.changed[state.size[_CHANGED]] = flow
    state.size[_CHANGED] += 1


@compiled_without_refcounts
def _join_links(flow: int, sharing: Sharing, state: State) -> None:
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        slot = sharing.first[link] + state.member_count[link]
        state.members[slot], state.member_hop[slot], state.slot[flow, hop] = flow, hop, slot
        state.member_count[link] += 1


@compiled_without_refcounts
def _remove_member(flow: int, sharing: Sharing, state: State) -> None:
    """Remove a flow from the members of its shared links; in each list the last element takes its place."""
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        state.member_count[link] -= 1
        slot, last_slot = state.slot[flow, hop], sharing.first[link] + state.member_count[link]
        other, other_hop = state.members[last_slot], state.member_hop[last_slot]
        state.members[slot], state.member_hop[slot], state.slot[other, other_hop] = other, other_hop, slot
    state.is_member[flow] = False
    state.size[_ACTIVE] -= 1
    slot, other = state.active_at[flow], state.active[state.size[_ACTIVE]]
    state.active[slot], state.active_at[other] = other, slot


@compiled_without_refcounts
def _list_links(flow: int, sharing: Sharing, state: State) -> None:
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        if not state.is_listed[link]:
            state.is_listed[link] = True
            state.links[state.size[_LINKS]] = link
            state.size[_LINKS] += 1


@compiled_without_refcounts
def _share_by_class(classes: Classes, sharing: Sharing, state: State) -> None:
    """Compute new rates for all flows if links serve classes.

    The capacity that a class leaves to others depends on the rates of its flows on other links. So the room of each
    class is its ceiling at first, and then rates and rooms are computed in turn until the rooms converge.
    """
    _reset_rooms(classes.capacity, sharing, state)
    for turn in range(_MAX_TURNS):
        _list_component(state.active, state.size[_ACTIVE], sharing, state)
        _fill_progressively(sharing, state)
        if _adjust_rooms(turn, classes, sharing, state):
            return


@compiled_without_refcounts
def _reset_rooms(capacity: Floats, sharing: Sharing, state: State) -> None:
    """Set the room of each class to its ceiling."""
    for index in range(state.size[_ACTIVE]):
        for hop in range(sharing.degree[state.active[index]]):
            link = sharing.hops[state.active[index], hop]
            sharing.capacity[link] = max(_MIN_ROOM, capacity[sharing.link[link]])


@compiled_without_refcounts
def _adjust_rooms(turn: int, classes: Classes, sharing: Sharing, state: State) -> bool:
    """Move each class's room, by a whole or partial step, to what other classes leave; return whether all converged."""
    sharing.total[:] = 0.0
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        for hop in range(sharing.degree[flow]):
            sharing.total[sharing.link[sharing.hops[flow, hop]]] += state.rate[flow]
    step = _STEP
    if turn < _WHOLE_TURNS:
        step = 1.0
    elif turn < _HALF_TURNS:
        step = 0.5
    converged, plain = True, classes.capacity.size - classes.served.size * classes.assured.size
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        for hop in range(sharing.degree[flow]):
            link = sharing.hops[flow, hop]
            class_link = sharing.link[link] - plain
            if class_link >= 0 and state.members[sharing.first[link]] == flow:  # once for each link
                link_capacity = classes.capacity[classes.served[class_link // classes.assured.size]]
                index_of_class = class_link % classes.assured.size
                room = max(_MIN_ROOM, _room(sharing.link[link], index_of_class, link_capacity, classes, sharing))
                converged &= abs(room - sharing.capacity[link]) <= _SETTLED * link_capacity
                sharing.capacity[link] = step * room + (1 - step) * sharing.capacity[link]
    sharing.total[:] = 0.0
    return converged


@compiled_without_refcounts
def _room(link: int, index: int, link_capacity: float, classes: Classes, sharing: Sharing) -> float:
    """Return the room of class `index` on a served link, given its class link and the served link's capacity: what
    earlier classes leave, minus what later classes use of their assured shares, but at least its own assured share and
    at most its ceiling."""
    remaining = link_capacity
    for other in range(classes.assured.size):
        used = sharing.total[link - index + other]
        if other < index:
            remaining -= used
        elif other > index:
            remaining -= min(used, classes.assured[other] * link_capacity)
    return float(min(classes.capacity[link], max(classes.assured[index] * link_capacity, remaining)))


@compiled_without_refcounts
def _list_component(flows: Ints, count: int, sharing: Sharing, state: State) -> None:
    """List all shared links that are connected to the first `count` flows, breadth first, and mark their flows."""
    state.size[_LINKS] = 0
    for index in range(count):
        _list_links(flows[index], sharing, state)
    index = 0
    while index < state.size[_LINKS]:
        link = state.links[index]
        state.left[link], state.open[link] = sharing.capacity[link], state.member_count[link]
        state.share[link] = sharing.capacity[link] / max(1, state.member_count[link])
        for slot in range(sharing.first[link], sharing.first[link] + state.member_count[link]):
            flow = state.members[slot]
            if not state.has_no_rate[flow]:
                state.has_no_rate[flow] = True
                _list_links(flow, sharing, state)
        index += 1


@compiled_without_refcounts
def _fill_progressively(sharing: Sharing, state: State) -> None:
    """Give the flows on the listed links their max-min fair rates.

    Progressive filling (Bertsekas and Gallager, "Data Networks", 2nd edition, 6.5.2): the members of the link with the
    smallest share get this share as their rate. If the caps of some of them are lower, these get their caps first, and
    the shares are compared again. The caps of flows on other links do not matter here: a flow that gets less than the
    share of its link only raises the share of the others.
    """
    level = 0.0
    while True:
        link = _smallest_share(state)
        if link < 0:
            return
        level = max(level, state.share[link])  # apart from rounding, no later share is smaller
        first, end = sharing.first[link], sharing.first[link] + state.member_count[link]
        any_capped = False
        for slot in range(first, end):
            flow = state.members[slot]
            if state.has_no_rate[flow] and sharing.cap[flow] <= level:
                _set_rate(flow, sharing.cap[flow], sharing.degree[flow], sharing, state)
                any_capped = True
        if not any_capped:
            for slot in range(first, end):
                flow = state.members[slot]
                if state.has_no_rate[flow]:
                    _set_rate(flow, level, state.member_hop[slot], sharing, state)


@compiled_without_refcounts
def _smallest_share(state: State) -> int:
    """Return the listed link with the smallest share, or -1; unlist links whose members all have rates."""
    smallest, index = -1, 0
    while index < state.size[_LINKS]:
        link = state.links[index]
        if state.open[link] == 0:
            state.size[_LINKS] -= 1
            state.links[index] = state.links[state.size[_LINKS]]
            state.is_listed[link] = False
            continue
        if smallest < 0 or state.share[link] < state.share[smallest]:
            smallest = link
        index += 1
    return smallest


@compiled_without_refcounts
def _set_rate(flow: int, rate: float, limit: int, sharing: Sharing, state: State) -> None:
    """Set a flow's rate and finish time, and subtract the rate from the capacity left on its links."""
    state.has_no_rate[flow] = False
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        state.open[link] -= 1
        state.left[link] = max(0.0, state.left[link] - rate)
        state.share[link] = state.left[link] / max(1, state.open[link])
    now, old = state.now[0], state.rate[flow]
    if state.limit[flow] != limit:
        state.spent[flow, state.limit[flow]] += now - state.since[flow]
        state.since[flow], state.limit[flow] = now, limit
    if abs(rate - old) > _NOISE * old:
        if old != _NO_RATE:
            state.finish[flow] = now + (state.finish[flow] - now) * (old / rate)
        state.rate[flow] = rate


# --- events ----------------------------------------------------------------------------------------------------------


@compiled_without_refcounts
def _start(instance: Instance) -> None:
    """Reset an instance: nothing has begun, and the transfers that wait for no others are on the stack."""
    program, rows, state = instance.program, instance.rows, instance.state
    state.now[0] = 0.0
    for flow in range(state.arrived.size):
        state.arrived[flow] = 0.0
    for transfer in range(program.flow.size - 1, -1, -1):
        rows.begins[transfer], rows.leaves[transfer], rows.arrives[transfer] = 0.0, np.inf, np.inf
        rows.bottleneck[transfer], rows.bottleneck_s[transfer] = -1, 0.0
        state.waits[transfer] = program.waits[transfer]
        if program.waits[transfer] == 0:
            state.stack[state.size[_STACK]] = transfer
            state.size[_STACK] += 1


@compiled_without_refcounts
def _advance(until: float, network: Now, instance: Instance, classes: Classes | None, queues: Queues | None) -> bool:
    """Go on with an instance up to the time `until`, when its network may change. What ends or
    begins at that time does so now, but rates stay. Returns whether all is over; infinite `until` means to the end, and
    transfers that never leave then have infinite times."""
    rows, state = instance.rows, instance.state
    state.now[_HORIZON] = min(until, _NEVER) * (1.0 + _TIE)
    if queues is not None:  # otherwise the network does not change, and the compiler leaves this out
        _resume(network, instance, classes, queues)
    _settle(instance)
    while True:
        if queues is not None:
            _place_new_queues(network, queues, instance)
        now = rows.begins[state.heap[0]] if state.size[_HEAP] > 0 else np.inf
        for index in range(state.size[_ACTIVE]):
            now = min(now, state.finish[state.active[index]])
        now = min(now, until)
        if now > _NEVER or state.size[_HEAP] + state.size[_ACTIVE] == 0:
            break
        state.now[0] = now
        latest = now * (1.0 + _TIE)
        for index in range(state.size[_ACTIVE]):
            if state.finish[state.active[index]] <= latest:
                _end(state.active[index], instance)
        _settle(instance)
        while state.size[_HEAP] > 0 and rows.begins[state.heap[0]] <= latest:
            _begin(_pop(rows.begins, state), instance)
        if until <= latest:
            return False
        _update_rates(instance, classes)
    _mark_unfinished(instance)
    return True


@compiled_without_refcounts
def _settle(instance: Instance) -> None:
    """Empty the stack of transfers that wait for no others any more.

    The time when they begin is known, though it may be later than now. Transfers over shared links, and those that do
    not end before the horizon, go on the heap. All others are completed here, because their rates and delays do not
    depend on events until then.
    """
    program, sharing, rows, state = instance.program, instance.sharing, instance.rows, instance.state
    while state.size[_STACK] > 0:
        state.size[_STACK] -= 1
        transfer = state.stack[state.size[_STACK]]
        flow, begin = program.flow[transfer], rows.begins[transfer]
        if program.amount[transfer] == 0.0:
            if begin <= state.now[_HORIZON]:
                _complete(transfer, begin, instance)
            else:
                _push(transfer, rows.begins, state)
        elif sharing.degree[flow] > 0:
            _push(transfer, rows.begins, state)
        elif sharing.cap_link[flow] < 0:
            _complete(transfer, begin + program.amount[transfer], instance)
        else:
            takes = program.amount[transfer] * (instance.slot_bits / sharing.cap[flow])
            if begin + takes <= state.now[_HORIZON]:
                rows.bottleneck[transfer], rows.bottleneck_s[transfer] = sharing.cap_link[flow], takes
                _complete(transfer, begin + takes, instance)
            else:
                _push(transfer, rows.begins, state)


@compiled_without_refcounts
def _complete(transfer: int, at: float, instance: Instance) -> None:
    """Set when a transfer leaves and arrives, and release the transfers that wait for these events."""
    program, rows, state = instance.program, instance.rows, instance.state
    flow = program.flow[transfer]
    rows.leaves[transfer], arrives = at, max(at + instance.delay[flow], state.arrived[flow])
    rows.arrives[transfer], state.arrived[flow] = arrives, arrives
    if program.following[transfer] >= 0:
        _release(program.following[transfer], at, rows, state)
    for index in range(program.waiting_at[transfer], program.waiting_at[transfer + 1]):
        _release(program.waiting[index], arrives, rows, state)


@compiled_without_refcounts
def _release(transfer: int, at: float, rows: Rows, state: State) -> None:
    """Record that one of the events that a transfer waits for happens at time `at`."""
    rows.begins[transfer] = max(rows.begins[transfer], at)
    state.waits[transfer] -= 1
    if state.waits[transfer] == 0:
        state.stack[state.size[_STACK]] = transfer
        state.size[_STACK] += 1


@compiled_without_refcounts
def _end(flow: int, instance: Instance) -> None:
    """End the transfer that a flow serves; its bottleneck is the hop that has set its rate for longest."""
    sharing, rows, state = instance.sharing, instance.rows, instance.state
    transfer = state.serving[flow]
    state.spent[flow, state.limit[flow]] += state.finish[flow] - state.since[flow]
    longest = 0
    for hop in range(1, sharing.degree[flow] + 1):
        if state.spent[flow, hop] > state.spent[flow, longest]:
            longest = hop
    rows.bottleneck[transfer] = _link_of_hop(flow, longest, sharing)
    rows.bottleneck_s[transfer] = state.spent[flow, longest]
    state.serving[flow] = -1
    state.changed[state.size[_CHANGED]] = flow
    state.size[_CHANGED] += 1
    _complete(transfer, state.finish[flow], instance)


@compiled_without_refcounts
def _begin(transfer: int, instance: Instance) -> None:
    """Begin a transfer on its flow; if the previous one has just ended, the flow keeps its rate for now."""
    program, rows, state = instance.program, instance.rows, instance.state
    flow = program.flow[transfer]
    state.serving[flow], state.since[flow] = transfer, rows.begins[transfer]
    for hop in range(instance.sharing.degree[flow] + 1):
        state.spent[flow, hop] = 0.0
    if state.is_member[flow]:
        _set_finish(flow, instance)
    else:
        _add_member(flow, instance.sharing, state)


@compiled_without_refcounts
def _set_finish(flow: int, instance: Instance) -> None:
    """Set the time when the transfer that a flow has just begun leaves at the flow's rate."""
    transfer = instance.state.serving[flow]
    takes = instance.program.amount[transfer] * (instance.slot_bits / instance.state.rate[flow])
    instance.state.finish[flow] = instance.rows.begins[transfer] + takes


@compiled_without_refcounts
def _update_rates(instance: Instance, classes: Classes | None) -> None:
    """Compute new rates for all flows that are connected, by shared links, with flows that have begun a transfer, or
    have ended one without beginning the next."""
    sharing, state = instance.sharing, instance.state
    _remove_ended(sharing, state)
    if state.size[_CHANGED] > 0:
        if classes is None:
            _list_component(state.changed, state.size[_CHANGED], sharing, state)
            _fill_progressively(sharing, state)
        else:
            _share_by_class(classes, sharing, state)
        _set_caps(state.changed, state.size[_CHANGED], sharing, state)
    _set_finish_times(instance)


@compiled_without_refcounts
def _remove_ended(sharing: Sharing, state: State) -> None:
    """Remove the flows that have ended a transfer without beginning the next from the members of their links; unlist
    those that keep their rates as changed."""
    changed = 0
    for index in range(state.size[_CHANGED]):
        flow = state.changed[index]
        if state.serving[flow] < 0:
            _remove_member(flow, sharing, state)
        elif state.rate[flow] != _NO_RATE:
            continue
        state.changed[changed] = flow
        changed += 1
    state.size[_CHANGED] = changed


@compiled_without_refcounts
def _set_caps(flows: Ints, count: int, sharing: Sharing, state: State) -> None:
    """Set the rates of those of the first `count` flows that are in service and have no shared links."""
    for index in range(count):
        if sharing.degree[flows[index]] == 0 and state.serving[flows[index]] >= 0:
            _set_rate(flows[index], sharing.cap[flows[index]], 0, sharing, state)


@compiled_without_refcounts
def _set_finish_times(instance: Instance) -> None:
    """Set when the transfers leave that flows without a rate have begun, and unlist all flows as changed."""
    state = instance.state
    for index in range(state.size[_CHANGED]):
        if state.serving[state.changed[index]] >= 0:
            _set_finish(state.changed[index], instance)
    state.size[_CHANGED] = 0


@compiled_without_refcounts
def _mark_unfinished(instance: Instance) -> None:
    """Mark the remaining transfers as never ending: those over links of capacity 0, and those that wait for them."""
    rows, state = instance.rows, instance.state
    for index in range(state.size[_ACTIVE] - 1, -1, -1):
        flow = state.active[index]
        transfer = state.serving[flow]
        rows.bottleneck[transfer] = _link_of_hop(flow, state.limit[flow], instance.sharing)
        rows.bottleneck_s[transfer] = np.inf
        state.serving[flow] = -1
        _remove_member(flow, instance.sharing, state)
    for transfer in range(instance.program.flow.size):
        if state.waits[transfer] > 0:
            rows.begins[transfer] = np.inf
    state.size[_HEAP] = 0


# --- changes of the network ------------------------------------------------------------------------------------------


@compiled_without_refcounts
def _change_capacities(capacity: Floats, network: Now, state: State) -> None:
    for link in range(capacity.size):
        if network.capacity[link] != capacity[link]:
            network.capacity[link] = capacity[link]
            state.size[_STALE] = 1


@compiled_without_refcounts
def _change_paths(links: Ints, delay: Floats, network: Now, instance: Instance) -> None:
    """Move all flows to their new paths. Data already sent arrives over the old path; nothing overtakes it."""
    state = instance.state
    for flow in range(delay.size):
        transfer = state.serving[flow]
        if transfer >= 0 and instance.rows.begins[transfer] < state.now[0]:
            state.arrived[flow] = max(state.arrived[flow], state.now[0] + instance.delay[flow])
        instance.delay[flow] = delay[flow]
        for hop in range(links.shape[1]):
            if network.links[flow, hop] != links[flow, hop]:
                network.links[flow, hop] = links[flow, hop]
                state.size[_STALE] = 1


@compiled_without_refcounts
def _resume(network: Now, instance: Instance, classes: Classes | None, queues: Queues) -> None:
    """Compute the rates from now on, after the events at which `_advance` stopped and changes of the network."""
    if instance.state.size[_STALE] > 0:
        _apply_changes(network, instance, classes)
        if queues.packet_bits > 0.0:
            _move_queues(network, queues, instance)
    else:
        _update_rates(instance, classes)


@compiled_without_refcounts
def _apply_changes(network: Now, instance: Instance, classes: Classes | None) -> None:
    """Find the shared links of a network that has changed, and compute the rates of all flows in service anew."""
    sharing, state = instance.sharing, instance.state
    _remove_ended(sharing, state)
    _find_shared(network.links, network.capacity, classes, sharing)
    state.member_count[:] = 0
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        _join_links(flow, sharing, state)
        state.limit[flow], state.since[flow] = sharing.degree[flow], state.now[0]
        state.spent[flow, :] = 0.0
    if classes is None:
        _list_component(state.active, state.size[_ACTIVE], sharing, state)
        _fill_progressively(sharing, state)
    else:
        _share_by_class(classes, sharing, state)
    _set_caps(state.active, state.size[_ACTIVE], sharing, state)
    _set_finish_times(instance)
    state.size[_STALE] = 0


@compiled_without_refcounts
def _place_new_queues(network: Now, queues: Queues, instance: Instance) -> None:
    """Note where the packets of flows are queued that have begun a transfer."""
    state, is_new = instance.state, False
    if queues.packet_bits == 0.0:
        return
    for index in range(state.size[_ACTIVE]):
        is_new |= queues.of[state.active[index]] != state.serving[state.active[index]]
    if is_new:
        _find_bottlenecks(network, queues, instance)
        for index in range(state.size[_ACTIVE]):
            flow = state.active[index]
            if queues.of[flow] != state.serving[flow]:
                queues.at[flow], queues.of[flow] = queues.bottleneck[flow], state.serving[flow]


@compiled_without_refcounts
def _find_bottlenecks(network: Now, queues: Queues, instance: Instance) -> None:
    """Find the bottleneck of each flow in service, a full link on which no flow is faster; of several the last."""
    sharing, state = instance.sharing, instance.state
    queues.total[:], queues.fastest[:] = 0.0, 0.0
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        for link in network.links[flow]:
            if link >= 0:
                queues.total[link] += state.rate[flow]
                queues.fastest[link] = max(queues.fastest[link], state.rate[flow])
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        queues.bottleneck[flow] = _link_of_hop(flow, state.limit[flow], sharing)
        for link in network.links[flow]:
            if link < 0:
                continue
            room = network.capacity[link]  # for a class link, what the other classes leave of it
            for hop in range(sharing.degree[flow]):
                if sharing.link[sharing.hops[flow, hop]] == link:
                    room = sharing.capacity[sharing.hops[flow, hop]]
            is_full = queues.total[link] >= room * (1.0 - _EQUAL)
            if is_full and state.rate[flow] >= queues.fastest[link] * (1.0 - _EQUAL):
                queues.bottleneck[flow] = link
        if queues.bottleneck[flow] >= 0:
            queues.bottleneck[flow] = queues.where[queues.bottleneck[flow]]


@compiled_without_refcounts
def _move_queues(network: Now, queues: Queues, instance: Instance) -> None:
    """After a change of the network, move the queue of each flow whose bottleneck is now another link of its path.

    A flow has two packets queued at its bottleneck. If the new bottleneck is nearer to the sender, they have passed it
    already. In addition to what is sent at the new rates, these packets cross the links from the old bottleneck to the
    new one, or to the end of the path; flows that these links limit lose as much. Each new bottleneck immediately sends
    one packet of any of its flows.
    """
    state = instance.state
    _find_bottlenecks(network, queues, instance)
    users = queues.total  # from here on: the number of flows that have the link as their bottleneck
    users[:], queues.packets[:] = 0.0, 0.0
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        users[queues.bottleneck[flow]] += 1.0
        if not _queue_moves(flow, network.links, queues, state):
            continue
        is_behind = False
        for link in network.links[flow]:
            is_behind = (is_behind and link != queues.bottleneck[flow]) or link == queues.at[flow]
            if link >= 0 and is_behind:
                queues.packets[link] += _QUEUED
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        bottleneck = queues.bottleneck[flow]
        packets = queues.packets[bottleneck] / users[bottleneck]
        if _queue_moves(flow, network.links, queues, state):
            packets -= 1.0 / users[bottleneck]
            for link in network.links[flow]:
                if link == queues.at[flow]:
                    break
                if link == bottleneck:
                    packets -= _QUEUED
        if queues.of[flow] == state.serving[flow]:
            left = (state.finish[flow] - state.now[0]) * state.rate[flow] + packets * queues.packet_bits
            state.finish[flow] = state.now[0] + max(0.0, left) / state.rate[flow]
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        queues.at[flow], queues.of[flow] = queues.bottleneck[flow], state.serving[flow]


@compiled_without_refcounts
def _queue_moves(flow: int, links: Ints, queues: Queues, state: State) -> bool:
    """Return whether a flow that was in service before has a new bottleneck, and its old one is still on its path."""
    was_passed = False
    for link in links[flow]:
        was_passed |= link == queues.at[flow]
    is_old = queues.of[flow] == state.serving[flow]
    return is_old and was_passed and queues.bottleneck[flow] != queues.at[flow]


# --- the heap --------------------------------------------------------------------------------------------------------


@compiled_without_refcounts
def _push(transfer: int, key: Floats, state: State) -> None:
    """Push a transfer on the heap, which is ordered by `key`, the smallest on top."""
    index = state.size[_HEAP]
    state.size[_HEAP] += 1
    while index > 0 and key[state.heap[(index - 1) // 2]] > key[transfer]:
        state.heap[index] = state.heap[(index - 1) // 2]
        index = (index - 1) // 2
    state.heap[index] = transfer


@compiled_without_refcounts
def _pop(key: Floats, state: State) -> int:
    """Pop the transfer with the smallest key off the heap."""
    top = state.heap[0]
    state.size[_HEAP] -= 1
    size, index = state.size[_HEAP], 0
    moved = state.heap[size]
    while 2 * index + 1 < size:
        child = 2 * index + 1
        if child + 1 < size and key[state.heap[child + 1]] < key[state.heap[child]]:
            child += 1
        if key[moved] <= key[state.heap[child]]:
            break
        state.heap[index] = state.heap[child]
        index = child
    state.heap[index] = moved
    return int(top)
