"""The compiled part of `time_varying`: an event loop over one instance of a schedule; changes of rates are events.

Importing this module imports numba, which takes longer than many commands; so `time_varying` imports it when called.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.model.fluid_jit import Program, compiled_entry, compiled_without_refcounts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


_TIE = 1e-12  # events closer than this share of the time since the start are simultaneous
_NO_RATE = -1.0  # no rate yet
_EQUAL = 1e-9  # relative difference up to which the shares of two links limit a flow alike
_QUEUED = 2.0  # packets of a flow that are queued at its bottleneck


class State(NamedTuple):
    """The state that changes from event to event.

    For each transfer: when it `begins`, `leaves` and `arrives`, and how many transfers it still `waits` for. For each
    flow: the transfer that it is `serving`, its `rate`, when it will `finish` at this rate, and when everything that it
    has sent so far will have `arrived`. Lists, each with its `size`: the `stack` of transfers that wait for no others
    any more, the `pending` ones, which have yet to begin, and the `active` flows, which are in service.

    During progressive filling, for each link: the `room` that is left, and the number of `open` flows, which have no
    rate yet; for each flow: the rate `given` and the link that limits it, its `bottleneck`. `queue` is the link where
    the flow's packets were queued when rates last changed or the flow began.
    """

    begins: Floats
    leaves: Floats
    arrives: Floats
    waits: Ints
    serving: Ints
    rate: Floats
    finish: Floats
    arrived: Floats
    stack: Ints
    pending: Ints
    active: Ints
    size: Ints
    room: Floats
    open: Ints
    given: Floats
    bottleneck: Ints
    queue: Ints


_STACK, _PENDING, _ACTIVE = range(3)


class PathChanges(NamedTuple):
    """Changes of flows' paths: the instants `at` [M] in ascending order, the new links [M, F, H] and delays [M, F]."""

    at: Floats
    links: Ints
    delay: Floats


class Instance(NamedTuple):
    """The schedule, the current links [F, H] and delay of each flow, the bits of a slot and of a packet (0 without
    queues), and the changes of paths."""

    program: Program
    links: Ints
    delay: Floats
    slot_bits: float
    packet_bits: float
    path_changes: PathChanges


class Rates(NamedTuple):
    """The rates of links by row, [n, links]: the first row holds for `until` seconds, every other row for `every`.

    `left` [n, F] receives the bits left of each flow's current transfer as a row begins.
    """

    rows: Floats
    until: float
    every: float
    left: Floats


@compiled_entry
def run(start: Instance, rates: Rates, seconds: Floats) -> bool:
    """Compute when all transfers begin, leave and arrive, `seconds` [3, T]; False if that takes more rows of rates."""
    instance = Instance(
        start.program, start.links.copy(), start.delay.copy(), start.slot_bits, start.packet_bits, start.path_changes
    )
    flows, links, transfers = len(instance.links), rates.rows.shape[1], instance.program.flow.size
    seconds[0], seconds[1], seconds[2] = 0.0, np.inf, np.inf
    state = State(
        seconds[0],
        seconds[1],
        seconds[2],
        instance.program.waits.copy(),
        np.full(flows, -1, np.int32),
        np.zeros(flows),
        np.zeros(flows),
        np.zeros(flows),
        np.empty(transfers, np.int32),
        np.empty(transfers, np.int32),
        np.empty(flows, np.int32),
        np.zeros(3, np.int32),
        np.empty(links),
        np.zeros(links, np.int32),
        np.empty(flows),
        np.full(flows, -1, np.int32),
        np.full(flows, -1, np.int32),
    )
    return _run(instance, rates, state)


@compiled_without_refcounts
def _run(instance: Instance, rates: Rates, state: State) -> bool:
    for transfer in range(instance.program.flow.size - 1, -1, -1):
        if state.waits[transfer] == 0:
            _append(transfer, _STACK, state.stack, state)
    _settle(instance, state)
    row, change, moved = 0, rates.until, 0
    while state.size[_ACTIVE] > 0 or state.size[_PENDING] > 0:
        now = change
        if moved < instance.path_changes.at.size:
            now = min(now, instance.path_changes.at[moved])
        for index in range(state.size[_PENDING]):
            now = min(now, state.begins[state.pending[index]])
        for index in range(state.size[_ACTIVE]):
            now = min(now, state.finish[state.active[index]])
        latest = now * (1.0 + _TIE)
        _end(latest, instance, state)
        _settle(instance, state)
        _begin(latest, instance, state)
        is_changed = change <= latest
        if is_changed:
            row += 1
            change = rates.until + row * rates.every
            if row == len(rates.rows):
                return False
            _record_left(now, rates.left[row], instance, state)
        while moved < instance.path_changes.at.size and instance.path_changes.at[moved] <= latest:
            is_changed = True
            _change_paths(now, moved, instance, state)
            moved += 1
        _start_filling(rates.rows[row], instance, state)
        _fill_progressively(instance, state)
        if is_changed and instance.packet_bits > 0.0:
            _move_queues(now, instance, state)
        _set_rates(now, instance, state)
    return True


@compiled_without_refcounts
def _record_left(now: float, left: Floats, instance: Instance, state: State) -> None:
    """Record how many bits of each flow's current transfer are left."""
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        left[flow] = instance.program.amount[state.serving[flow]] * instance.slot_bits
        if state.rate[flow] != _NO_RATE:
            left[flow] = (state.finish[flow] - now) * state.rate[flow]


@compiled_without_refcounts
def _append(item: int, kind: int, items: Ints, state: State) -> None:
    items[state.size[kind]] = item
    state.size[kind] += 1


@compiled_without_refcounts
def _settle(instance: Instance, state: State) -> None:
    """Empty the stack: complete empty transfers and computations, and make all others pending.

    If paths change, an empty transfer becomes pending, too, because its delay may be different when it begins.
    """
    program = instance.program
    while state.size[_STACK] > 0:
        state.size[_STACK] -= 1
        transfer = state.stack[state.size[_STACK]]
        is_stream = True
        for link in instance.links[program.flow[transfer]]:
            is_stream = is_stream and link < 0
        if (program.amount[transfer] > 0.0 or instance.path_changes.at.size > 0) and not is_stream:
            _append(transfer, _PENDING, state.pending, state)
        else:
            _complete(transfer, state.begins[transfer] + program.amount[transfer], instance, state)


@compiled_without_refcounts
def _complete(transfer: int, at: float, instance: Instance, state: State) -> None:
    """Set when a transfer leaves and arrives, and release the transfers that wait for these events."""
    program = instance.program
    flow = program.flow[transfer]
    state.leaves[transfer], arrives = at, max(at + instance.delay[flow], state.arrived[flow])
    state.arrives[transfer], state.arrived[flow] = arrives, arrives
    if program.following[transfer] >= 0:
        _release(program.following[transfer], at, state)
    for index in range(program.waiting_at[transfer], program.waiting_at[transfer + 1]):
        _release(program.waiting[index], arrives, state)


@compiled_without_refcounts
def _release(transfer: int, at: float, state: State) -> None:
    """Record that one of the events that a transfer waits for happens at time `at`."""
    state.begins[transfer] = max(state.begins[transfer], at)
    state.waits[transfer] -= 1
    if state.waits[transfer] == 0:
        _append(transfer, _STACK, state.stack, state)


@compiled_without_refcounts
def _end(latest: float, instance: Instance, state: State) -> None:
    """End the transfers served by `latest`; in the list of active flows the last one replaces a removed one."""
    index = 0
    while index < state.size[_ACTIVE]:
        flow = state.active[index]
        if state.finish[flow] > latest:
            index += 1
            continue
        transfer, state.serving[flow] = state.serving[flow], -1
        state.size[_ACTIVE] -= 1
        state.active[index] = state.active[state.size[_ACTIVE]]
        _complete(transfer, state.finish[flow], instance, state)


@compiled_without_refcounts
def _begin(latest: float, instance: Instance, state: State) -> None:
    """Begin the pending transfers whose begin is at `latest` or before."""
    index = 0
    while index < state.size[_PENDING]:
        transfer = state.pending[index]
        if state.begins[transfer] > latest:
            index += 1
            continue
        flow = instance.program.flow[transfer]
        state.serving[flow], state.rate[flow] = transfer, _NO_RATE
        _append(flow, _ACTIVE, state.active, state)
        state.size[_PENDING] -= 1
        state.pending[index] = state.pending[state.size[_PENDING]]


@compiled_without_refcounts
def _change_paths(now: float, moved: int, instance: Instance, state: State) -> None:
    """Move all flows to their new paths. Data already sent arrives over the old path; nothing overtakes it."""
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        if state.begins[state.serving[flow]] < now:
            state.arrived[flow] = max(state.arrived[flow], now + instance.delay[flow])
    for flow in range(len(instance.links)):
        instance.delay[flow] = instance.path_changes.delay[moved, flow]
        for hop in range(instance.links.shape[1]):
            instance.links[flow, hop] = instance.path_changes.links[moved, flow, hop]


@compiled_without_refcounts
def _start_filling(capacity: Floats, instance: Instance, state: State) -> None:
    """Prepare progressive filling: reset the links that active flows use, and count the flows on each."""
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        state.given[flow] = _NO_RATE
        for link in instance.links[flow]:
            if link >= 0:
                state.room[link] = capacity[link]
                state.open[link] += 1


@compiled_without_refcounts
def _fill_progressively(instance: Instance, state: State) -> None:
    """Give the active flows their max-min fair rates by progressive filling: the link with the smallest share first."""
    while True:
        tightest, share = -1, np.inf
        for index in range(state.size[_ACTIVE]):
            if state.given[state.active[index]] == _NO_RATE:
                for link in instance.links[state.active[index]]:
                    if link >= 0 and state.room[link] / state.open[link] < share:
                        tightest, share = link, state.room[link] / state.open[link]
        if tightest < 0:
            return
        for index in range(state.size[_ACTIVE]):
            flow, passes = state.active[index], False
            for link in instance.links[flow]:
                passes = passes or link == tightest
            if passes and state.given[flow] == _NO_RATE:
                for link in instance.links[flow]:  # the last one if several limit it
                    if link >= 0 and state.room[link] <= state.open[link] * share * (1.0 + _EQUAL):
                        state.bottleneck[flow] = link
                _give_rate(flow, share, instance, state)


@compiled_without_refcounts
def _give_rate(flow: int, rate: float, instance: Instance, state: State) -> None:
    state.given[flow] = rate
    for link in instance.links[flow]:
        if link >= 0:
            state.room[link] = max(0.0, state.room[link] - rate)
            state.open[link] -= 1


@compiled_without_refcounts
def _move_queues(now: float, instance: Instance, state: State) -> None:
    """After a change of rates, move the queue of each flow whose bottleneck is now another link of its path.

    A flow has two packets queued at its bottleneck. If the new bottleneck is nearer to the sender, they have passed it
    already. In addition to what is sent at the new rates, these packets cross the links from the old bottleneck to the
    new one, or to the end of the path; flows that these links limit lose as much. Each new bottleneck immediately sends
    one packet of any of its flows.
    """
    for link in range(state.room.size):
        state.room[link] = 0.0  # from here on: the additional packets that cross the link
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        state.open[state.bottleneck[flow]] += 1
        if not _queue_moves(flow, instance, state):
            continue
        is_behind = False
        for link in instance.links[flow]:
            is_behind = (is_behind and link != state.bottleneck[flow]) or link == state.queue[flow]
            if link >= 0 and is_behind:
                state.room[link] += _QUEUED
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        packets = state.room[state.bottleneck[flow]] / state.open[state.bottleneck[flow]]
        if _queue_moves(flow, instance, state):
            packets -= 1.0 / state.open[state.bottleneck[flow]]
            for link in instance.links[flow]:
                if link == state.queue[flow]:
                    break
                if link == state.bottleneck[flow]:
                    packets -= _QUEUED
        if state.rate[flow] != _NO_RATE:
            left = (state.finish[flow] - now) * state.rate[flow] + packets * instance.packet_bits
            state.finish[flow] = now + max(0.0, left) / state.rate[flow]
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        state.queue[flow], state.open[state.bottleneck[flow]] = state.bottleneck[flow], 0


@compiled_without_refcounts
def _queue_moves(flow: int, instance: Instance, state: State) -> bool:
    """Return whether a flow in service has a new bottleneck, and its old one is still on its path."""
    was_passed = False
    for link in instance.links[flow]:
        was_passed = was_passed or link == state.queue[flow]
    return was_passed and state.bottleneck[flow] != state.queue[flow] and state.rate[flow] != _NO_RATE


@compiled_without_refcounts
def _set_rates(now: float, instance: Instance, state: State) -> None:
    """Set the new rates of the active flows, and when their transfers finish at these rates."""
    for index in range(state.size[_ACTIVE]):
        flow = state.active[index]
        transfer, old, new = state.serving[flow], state.rate[flow], state.given[flow]
        if old == _NO_RATE:
            state.queue[flow] = state.bottleneck[flow]
            state.finish[flow] = state.begins[transfer] + instance.program.amount[transfer] * (instance.slot_bits / new)
        elif new != old:
            state.finish[flow] = now + (state.finish[flow] - now) * (old / new)
        state.rate[flow] = new
