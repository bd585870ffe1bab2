"""The compiled part of `fluid`: an event loop for each instance, and max-min fair rates.

Importing this module imports numba, which takes longer than most commands; only `fluid` imports it, when it is called.
Local indices count the links that several flows of the instance use and that can limit them. Every other link limits a
single flow at most: together they are that flow's `cap`. A flow that has no local link keeps its rate, so its
transfers take no events.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

compiled = njit(cache=True, error_model="numpy", nogil=True)

TIE = 1e-12  # events as close as this, of the time since the start, happen together
_NOISE = 1e-14  # a rate that changes by no more has not changed
_NO_RATE = -1.0


class Program(NamedTuple):
    """A schedule as arrays: of each transfer its flow, what it asks, how many it waits for (with the one before it on
    its flow), the next on its flow (or -1), and in CSR those that wait for its arrival."""

    flow: Ints
    amount: Floats
    waits: Ints
    following: Ints
    waiting_at: Ints
    waiting: Ints


class Sharing(NamedTuple):
    """Which links the flows of one instance share.

    Of each flow: `hops` [F, H], the local links, `degree` of them; `cap`, the lowest capacity of its other links, and
    `cap_link`, which that is. Of each local link: `link`, `capacity`, and `first`, where its `members` begin. `uses`,
    `last` and `total` are per link of the fabric, for `_find_shared`.
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
    local: Ints
    total: Floats


class State(NamedTuple):
    """What changes from event to event.

    Of each flow with local links: whether it has `joined` their members, the transfer that it is `serving` (or -1), its
    `rate` in bit/s, and `finish`, when that transfer has left at this rate; `limit`, the hop that sets the rate
    (`degree` is `cap`), `since` when, and `spent` [F, H + 1], the seconds that each hop has set it for this transfer.
    `members` are the flows now on each local link and `count` their number; `member_hop` says which of its hops that
    is, and `slot` [F, H] where a flow's hop is in `members`. While rates are found, `left` is what a link has not given
    away, `open` its flows without a rate, and `share` the quotient. `size` are the sizes of the lists behind it.
    """

    joined: Bools
    serving: Ints
    rate: Floats
    finish: Floats
    limit: Ints
    since: Floats
    spent: Floats
    members: Ints
    member_hop: Ints
    slot: Ints
    count: Ints
    left: Floats
    open: Ints
    share: Floats
    flow_seen: Bools
    link_seen: Bools
    waits: Ints
    size: Ints
    active: Ints
    active_at: Ints
    changed: Ints
    flows: Ints
    links: Ints
    heap: Ints
    stack: Ints


_ACTIVE, _CHANGED, _FLOWS, _LINKS, _HEAP, _STACK = range(6)


class Rows(NamedTuple):
    """What is found for one instance, [T] each."""

    begins: Floats
    leaves: Floats
    arrives: Floats
    bottleneck: Ints
    bottleneck_s: Floats


@compiled
def new_sharing(flows: int, hops: int, links: int) -> Sharing:
    """Room for the links of one instance."""
    return Sharing(
        np.empty((flows, hops), np.int32),
        np.zeros(flows, np.int32),
        np.empty(flows),
        np.empty(flows, np.int32),
        np.empty(links, np.int32),
        np.empty(links),
        np.empty(links + 1, np.int32),
        np.zeros(links, np.int32),
        np.full(links, -1, np.int32),
        np.empty(links, np.int32),
        np.zeros(links),
    )


@compiled
def new_state(flows: int, hops: int, links: int, transfers: int) -> State:
    """Room for the events of one instance."""
    return State(
        np.zeros(flows, np.bool_),
        np.full(flows, -1, np.int32),
        np.zeros(flows),
        np.zeros(flows),
        np.zeros(flows, np.int32),
        np.zeros(flows),
        np.zeros((flows, hops + 1)),
        np.empty(flows * hops, np.int32),
        np.empty(flows * hops, np.int32),
        np.empty((flows, hops), np.int32),
        np.zeros(links, np.int32),
        np.empty(links),
        np.empty(links, np.int32),
        np.empty(links),
        np.zeros(flows, np.bool_),
        np.zeros(links, np.bool_),
        np.empty(transfers, np.int32),
        np.zeros(6, np.int32),
        np.empty(flows, np.int32),
        np.empty(flows, np.int32),
        np.empty(flows, np.int32),
        np.empty(flows, np.int32),
        np.empty(links, np.int32),
        np.empty(transfers, np.int32),
        np.empty(transfers, np.int32),
    )


@compiled
def find_shared(ways: Ints, capacity: Floats, found: Sharing) -> int:
    """Fill `found` in; returns the flow that passes a link twice, or -1.

    A link that could carry the sum of what its flows get alone limits none of them.
    """
    flows, most = ways.shape
    wrong = -1
    for flow in range(flows):
        alone = np.inf
        for hop in range(most):
            link = ways[flow, hop]
            if link >= 0:
                if found.last[link] == flow:
                    wrong = flow
                found.last[link] = flow
                found.uses[link] += 1
                alone = min(alone, capacity[link])
        for hop in range(most):
            link = ways[flow, hop]
            if link >= 0:
                found.total[link] += alone
    number, place = 0, 0
    for flow in range(flows):
        found.degree[flow], found.cap[flow], found.cap_link[flow] = 0, np.inf, -1
        for hop in range(most):
            link = ways[flow, hop]
            if link < 0:
                continue
            if found.uses[link] > 1 and found.total[link] > capacity[link]:
                if found.last[link] >= 0:  # seen for the first time
                    found.last[link], found.local[link] = -1, number
                    found.link[number], found.capacity[number], found.first[number] = link, capacity[link], place
                    place += found.uses[link]
                    number += 1
                found.hops[flow, found.degree[flow]] = found.local[link]
                found.degree[flow] += 1
            elif capacity[link] < found.cap[flow]:
                found.cap[flow], found.cap_link[flow] = capacity[link], link
    for flow in range(flows):
        for hop in range(most):
            link = ways[flow, hop]
            if link >= 0:
                found.uses[link], found.total[link], found.last[link] = 0, 0.0, -1
    return wrong


@compiled
def join(flow: int, sharing: Sharing, state: State) -> None:
    """A flow begins to use its local links."""
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        place = sharing.first[link] + state.count[link]
        state.members[place], state.member_hop[place], state.slot[flow, hop] = flow, hop, place
        state.count[link] += 1
    state.joined[flow], state.active_at[flow] = True, state.size[_ACTIVE]
    state.active[state.size[_ACTIVE]] = flow
    state.size[_ACTIVE] += 1


@compiled
def _quit(flow: int, sharing: Sharing, state: State) -> None:
    """A flow no longer uses its local links; in each list the last one takes its place."""
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        state.count[link] -= 1
        place, last = state.slot[flow, hop], sharing.first[link] + state.count[link]
        other, other_hop = state.members[last], state.member_hop[last]
        state.members[place], state.member_hop[place], state.slot[other, other_hop] = other, other_hop, place
    state.joined[flow] = False
    state.size[_ACTIVE] -= 1
    place, other = state.active_at[flow], state.active[state.size[_ACTIVE]]
    state.active[place], state.active_at[other] = other, place


@compiled
def _see_links(flow: int, sharing: Sharing, state: State) -> None:
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        if not state.link_seen[link]:
            state.link_seen[link] = True
            state.links[state.size[_LINKS]] = link
            state.size[_LINKS] += 1


@compiled
def find_component(sharing: Sharing, state: State) -> None:
    """List the flows and links that are connected with those of the changed flows; breadth first."""
    state.size[_FLOWS] = state.size[_LINKS] = 0
    for index in range(state.size[_CHANGED]):
        _see_links(state.changed[index], sharing, state)
    seen = 0
    while seen < state.size[_LINKS]:
        link = state.links[seen]
        seen += 1
        state.left[link], state.open[link] = sharing.capacity[link], state.count[link]
        state.share[link] = sharing.capacity[link] / max(1, state.count[link])
        for place in range(sharing.first[link], sharing.first[link] + state.count[link]):
            flow = state.members[place]
            if not state.flow_seen[flow]:
                state.flow_seen[flow] = True
                state.flows[state.size[_FLOWS]] = flow
                state.size[_FLOWS] += 1
                _see_links(flow, sharing, state)


@compiled
def _give(flow: int, rate: float, limit: int, now: float, sharing: Sharing, state: State) -> None:
    """Settle a flow's rate, and take it from the links on its way."""
    state.flow_seen[flow] = False
    for hop in range(sharing.degree[flow]):
        link = sharing.hops[flow, hop]
        state.open[link] -= 1
        state.left[link] = max(0.0, state.left[link] - rate)
        state.share[link] = state.left[link] / max(1, state.open[link])
    if state.limit[flow] != limit:
        state.spent[flow, state.limit[flow]] += now - state.since[flow]
        state.since[flow], state.limit[flow] = now, limit
    old = state.rate[flow]
    if abs(rate - old) > _NOISE * old:
        state.finish[flow] = now + (state.finish[flow] - now) * (old / rate)
        state.rate[flow] = rate


@compiled
def fill(now: float, sharing: Sharing, state: State) -> None:
    """Give the listed flows their max-min fair rates.

    Progressive filling (Bertsekas and Gallager, "Data Networks", 2nd edition, 6.5.2): the link with the least to give
    to each flow that has no rate yet settles these flows' rates, except that of flows whose cap is lower: those get
    their cap first. A link elsewhere with such flows does not matter, as their going only leaves more there.
    """
    links, level = state.size[_LINKS], 0.0
    while True:
        worst, least, index = -1, np.inf, 0
        while index < links:
            link = state.links[index]
            if state.open[link] == 0:
                links -= 1
                state.links[index] = state.links[links]
                state.link_seen[link] = False
                continue
            if state.share[link] < least:
                worst, least = link, state.share[link]
            index += 1
        if worst < 0:
            return
        least = max(least, level)  # what is left is rounded; the level never falls
        begin, end = sharing.first[worst], sharing.first[worst] + state.count[worst]
        capped = False
        for place in range(begin, end):
            flow = state.members[place]
            if state.flow_seen[flow] and sharing.cap[flow] <= least:
                _give(flow, sharing.cap[flow], sharing.degree[flow], now, sharing, state)
                capped = True
        if not capped:
            level = least
            for place in range(begin, end):
                flow = state.members[place]
                if state.flow_seen[flow]:
                    _give(flow, least, state.member_hop[place], now, sharing, state)


@compiled
def _push(transfer: int, key: Floats, state: State) -> None:
    """Put a transfer on the heap of those to begin, by when they do."""
    place = state.size[_HEAP]
    state.size[_HEAP] += 1
    while place > 0:
        above = (place - 1) // 2
        if key[state.heap[above]] <= key[transfer]:
            break
        state.heap[place] = state.heap[above]
        place = above
    state.heap[place] = transfer


@compiled
def _pop(key: Floats, state: State) -> int:
    """Take the first transfer off the heap."""
    top = state.heap[0]
    state.size[_HEAP] -= 1
    size = state.size[_HEAP]
    moved, place = state.heap[size], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and key[state.heap[below + 1]] < key[state.heap[below]]:
            below += 1
        if key[moved] <= key[state.heap[below]]:
            break
        state.heap[place] = state.heap[below]
        place = below
    state.heap[place] = moved
    return top  # type: ignore[no-any-return]


@compiled
def _release(transfer: int, at: float, rows: Rows, state: State) -> None:
    """Something that a transfer waited for is over."""
    rows.begins[transfer] = max(rows.begins[transfer], at)
    state.waits[transfer] -= 1
    if state.waits[transfer] == 0:
        state.stack[state.size[_STACK]] = transfer
        state.size[_STACK] += 1


@compiled
def _has_left(transfer: int, at: float, program: Program, delay: Floats, rows: Rows, state: State) -> None:
    """A transfer has left whole at this time."""
    rows.leaves[transfer] = at
    rows.arrives[transfer] = arrives = at + delay[program.flow[transfer]]
    if program.following[transfer] >= 0:
        _release(program.following[transfer], at, rows, state)
    for place in range(program.waiting_at[transfer], program.waiting_at[transfer + 1]):
        _release(program.waiting[place], arrives, rows, state)


@compiled
def _settle(
    program: Program, delay: Floats, slot_bits: float, sharing: Sharing, rows: Rows, state: State
) -> None:
    """Empty the stack of transfers that nothing holds up: those that share nothing are done at once, as in max-plus,
    and the others are put on the heap."""
    while state.size[_STACK] > 0:
        state.size[_STACK] -= 1
        transfer = state.stack[state.size[_STACK]]
        flow, begin = program.flow[transfer], rows.begins[transfer]
        if program.amount[transfer] == 0.0:
            rows.bottleneck[transfer], rows.bottleneck_s[transfer] = -1, 0.0
            _has_left(transfer, begin, program, delay, rows, state)
        elif sharing.degree[flow] == 0:
            unit_s = 1.0 if sharing.cap_link[flow] < 0 else slot_bits / sharing.cap[flow]
            takes = program.amount[transfer] * unit_s
            rows.bottleneck[transfer], rows.bottleneck_s[transfer] = sharing.cap_link[flow], takes
            _has_left(transfer, begin + takes, program, delay, rows, state)
        else:
            _push(transfer, rows.begins, state)


@compiled
def _limit_link(flow: int, limit: int, sharing: Sharing) -> int:
    """The link of the fabric that a hop is, `degree` the one of the flow's cap."""
    if limit == sharing.degree[flow]:
        return sharing.cap_link[flow]  # type: ignore[no-any-return]
    return sharing.link[sharing.hops[flow, limit]]  # type: ignore[no-any-return]


@compiled
def _end(flow: int, program: Program, delay: Floats, sharing: Sharing, rows: Rows, state: State) -> None:
    """The transfer that a flow serves has left; the link that has set its rate for longest is its bottleneck."""
    transfer, degree = state.serving[flow], sharing.degree[flow]
    state.spent[flow, state.limit[flow]] += state.finish[flow] - state.since[flow]
    longest = 0
    for hop in range(1, degree + 1):
        if state.spent[flow, hop] > state.spent[flow, longest]:
            longest = hop
    rows.bottleneck[transfer] = _limit_link(flow, longest, sharing)
    rows.bottleneck_s[transfer] = state.spent[flow, longest]
    state.serving[flow] = -1
    _has_left(transfer, state.finish[flow], program, delay, rows, state)


@compiled
def _begin(transfer: int, program: Program, slot_bits: float, sharing: Sharing, rows: Rows, state: State) -> None:
    """A flow begins a transfer; where the one before it has left just now, the flow keeps its rate."""
    flow = program.flow[transfer]
    state.serving[flow], state.since[flow] = transfer, rows.begins[transfer]
    for hop in range(sharing.degree[flow] + 1):
        state.spent[flow, hop] = 0.0
    if state.joined[flow]:
        state.finish[flow] = rows.begins[transfer] + program.amount[transfer] * (slot_bits / state.rate[flow])
    else:
        state.rate[flow], state.finish[flow] = _NO_RATE, np.inf
        join(flow, sharing, state)
        state.changed[state.size[_CHANGED]] = flow
        state.size[_CHANGED] += 1


@compiled
def _share_anew(
    now: float, program: Program, slot_bits: float, sharing: Sharing, rows: Rows, state: State
) -> None:
    """New rates for all that is connected with the flows that have begun, or ended and not begun again."""
    changed = 0
    for index in range(state.size[_CHANGED]):
        flow = state.changed[index]
        if state.serving[flow] < 0:
            _quit(flow, sharing, state)
        elif state.rate[flow] != _NO_RATE:
            continue
        state.changed[changed] = flow
        changed += 1
    state.size[_CHANGED] = changed
    if changed:
        find_component(sharing, state)
        fill(now, sharing, state)
    for index in range(changed):
        flow = state.changed[index]
        transfer = state.serving[flow]
        if transfer >= 0:
            state.finish[flow] = rows.begins[transfer] + program.amount[transfer] * (slot_bits / state.rate[flow])
    state.size[_CHANGED] = 0


@compiled
def _run(program: Program, delay: Floats, slot_bits: float, sharing: Sharing, rows: Rows, state: State) -> None:
    """One instance, from its first transfer to its last; the times of what never leaves are infinite."""
    rows.begins[:], rows.leaves[:], rows.arrives[:] = 0.0, np.inf, np.inf
    rows.bottleneck[:], rows.bottleneck_s[:] = -1, 0.0
    state.waits[:] = program.waits
    for transfer in range(program.flow.size - 1, -1, -1):
        if program.waits[transfer] == 0:
            state.stack[state.size[_STACK]] = transfer
            state.size[_STACK] += 1
    _settle(program, delay, slot_bits, sharing, rows, state)
    while True:
        now = rows.begins[state.heap[0]] if state.size[_HEAP] > 0 else np.inf
        for index in range(state.size[_ACTIVE]):
            now = min(now, state.finish[state.active[index]])
        if now == np.inf:
            break
        until = now * (1.0 + TIE)
        for index in range(state.size[_ACTIVE]):
            flow = state.active[index]
            if state.finish[flow] <= until:
                _end(flow, program, delay, sharing, rows, state)
                state.changed[state.size[_CHANGED]] = flow
                state.size[_CHANGED] += 1
        _settle(program, delay, slot_bits, sharing, rows, state)
        while state.size[_HEAP] > 0 and rows.begins[state.heap[0]] <= until:
            _begin(_pop(rows.begins, state), program, slot_bits, sharing, rows, state)
        _share_anew(now, program, slot_bits, sharing, rows, state)
    for index in range(state.size[_ACTIVE] - 1, -1, -1):  # of rate 0
        flow = state.active[index]
        transfer = state.serving[flow]
        rows.bottleneck[transfer], rows.bottleneck_s[transfer] = _limit_link(flow, state.limit[flow], sharing), np.inf
        _quit(flow, sharing, state)
    for transfer in range(program.flow.size):
        if state.waits[transfer] > 0:
            rows.begins[transfer] = np.inf
    state.size[_HEAP] = 0


@compiled
def run(
    program: Program,
    ways: Ints,
    capacity: Floats,
    delay: Floats,
    slot_bits: float,
    rows: Rows,
    completion: Floats,
) -> int:
    """Every instance in turn; returns the index in [K * F] of a flow that passes a link twice, or -1.

    `ways` is [K or 1, F, H], `capacity` [K, links], `delay` [K, F]; `rows` are [K or 1, T], and with one row only
    `completion` [K] remains of the earlier ones.
    """
    _, flows, hops = ways.shape
    links, count = capacity.shape[1], completion.size
    sharing = new_sharing(flows, hops, links)
    state = new_state(flows, hops, links, program.flow.size)
    for index in range(count):
        wrong = find_shared(ways[index if len(ways) > 1 else 0], capacity[index], sharing)
        if wrong >= 0:
            return index * flows + wrong
        at = index if len(rows.begins) > 1 else 0
        row = Rows(rows.begins[at], rows.leaves[at], rows.arrives[at], rows.bottleneck[at], rows.bottleneck_s[at])
        _run(program, delay[index], slot_bits, sharing, row, state)
        latest = 0.0
        for transfer in range(program.flow.size):
            latest = max(latest, row.arrives[transfer])
        completion[index] = latest
    return -1


@compiled
def rates(ways: Ints, capacity: Floats, rate: Floats, bottleneck: Ints) -> int:
    """The max-min fair rates of all flows of `ways` [F, H] at once; returns the flow that passes a link twice, or -1."""
    flows, hops = ways.shape
    sharing = new_sharing(flows, hops, capacity.size)
    state = new_state(flows, hops, capacity.size, 0)
    wrong = find_shared(ways, capacity, sharing)
    if wrong >= 0:
        return wrong  # type: ignore[no-any-return]
    for flow in range(flows):
        state.rate[flow], state.limit[flow] = sharing.cap[flow], sharing.degree[flow]
        if sharing.degree[flow] > 0:
            state.rate[flow] = _NO_RATE
            join(flow, sharing, state)
            state.changed[state.size[_CHANGED]] = flow
            state.size[_CHANGED] += 1
    find_component(sharing, state)
    fill(0.0, sharing, state)
    for flow in range(flows):
        rate[flow], bottleneck[flow] = state.rate[flow], _limit_link(flow, state.limit[flow], sharing)
    return -1
