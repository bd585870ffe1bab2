"""The compiled part of `classes`: an event loop for each instance, and rates where some links serve classes in turn.

Importing this module imports numba, which takes longer than many commands; only `classes` does, when it is called.

A *constraint* is a link, or of a link that serves classes one for each class. Of constraint i the flows that pass it
have `capacity[i]` together.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from analysis.model.fluid_kernel import Network, Program, Rows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

Function = TypeVar("Function", bound=Callable[..., object])

_TIE = 1e-12  # events as close as this, of the time since the start, happen together
_SETTLED = 1e-13  # of a link's capacity: what the classes take has been found
_MOST_TURNS = 200


def _compiled(function: Function) -> Function:
    return njit(error_model="numpy", nogil=True)(function)  # type: ignore[return-value]


class Classes(NamedTuple):
    """The class of each flow, by its place in the order of service, and whether each link serves classes in that order;
    of each class the assured part of such a link's capacity, and the most that it gets of it."""

    of_flow: Ints
    serves: Bools
    assured: Floats
    ceiling: Floats


class State(NamedTuple):
    """One instance: its times, and what changes from event to event.

    Of each transfer, how many it still waits for, and whether it may begin at a time that has come or will come. Of
    each flow the transfer in service (or -1), the bits left of it, and its rate. Of each constraint what flows may take
    of it together, what they take, and while rates are shared out how many have none yet. `stack` has transfers that
    wait for nothing more, and `size` [1] says how many.
    """

    begins: Floats
    leaves: Floats
    arrives: Floats
    waits: Ints
    is_pending: Bools
    serving: Ints
    left: Floats
    rate: Floats
    room: Floats
    used: Floats
    opened: Floats
    stack: Ints
    size: Ints


class Instance(NamedTuple):
    """What does not change: `capacity` [links], `delay` [F], and the constraints that each flow passes, [F, H]."""

    program: Program
    classes: Classes
    constraints: Ints
    capacity: Floats
    delay: Floats
    slot_bits: float


@njit(cache=True, error_model="numpy", nogil=True)
def run(program: Program, network: Network, classes: Classes, rows: Rows) -> None:
    """Fill in when the transfers of every instance begin, leave and arrive."""
    (count, flows), hops = network.delay.shape, network.links.shape[2]
    transfers, links = program.flow.size, network.capacity.shape[1]
    size = links * (classes.assured.size + 1)
    constraints = np.empty((flows, hops), np.int32)
    room, used, opened = np.empty(size), np.empty(size), np.empty(size)
    left, rate, serving = np.empty(flows), np.empty(flows), np.empty(flows, np.int32)
    waits, is_pending = np.empty(transfers, np.int32), np.empty(transfers, np.bool_)
    stack, top = np.empty(transfers, np.int32), np.zeros(1, np.int32)
    for index in range(count):
        begins, leaves, arrives = rows.begins[index], rows.leaves[index], rows.arrives[index]
        begins[:], leaves[:], arrives[:] = 0.0, np.inf, np.inf
        waits[:], is_pending[:] = program.waits, False
        serving[:], left[:], rate[:] = -1, 0.0, 0.0
        _constrain(network.links[index % len(network.links)], links, classes, constraints)
        _run(
            Instance(program, classes, constraints, network.capacity[index], network.delay[index], network.slot_bits),
            State(begins, leaves, arrives, waits, is_pending, serving, left, rate, room, used, opened, stack, top),
        )


@_compiled
def _constrain(links: Ints, count: int, classes: Classes, constraints: Ints) -> None:
    for flow in range(len(links)):
        for hop in range(links.shape[1]):
            link = links[flow, hop]
            served = link >= 0 and classes.serves[link]
            constraints[flow, hop] = count + link * classes.assured.size + classes.of_flow[flow] if served else link


@_compiled
def _run(one: Instance, state: State) -> None:
    for transfer in range(one.program.flow.size - 1, -1, -1):
        if state.waits[transfer] == 0:
            _push(transfer, state)
    now = 0.0
    while True:
        _settle(one, state)
        then = _next(now, state)
        if then == np.inf:
            return
        for flow in range(state.serving.size):
            if state.serving[flow] >= 0 and state.rate[flow] > 0.0:
                ends = now + state.left[flow] / state.rate[flow]
                state.left[flow] = max(0.0, state.left[flow] - state.rate[flow] * (then - now))
                if ends <= then * (1.0 + _TIE):
                    transfer, state.serving[flow] = state.serving[flow], -1
                    _has_left(transfer, then, one, state)
        now = then
        for transfer in range(one.program.flow.size):
            if state.is_pending[transfer] and state.begins[transfer] <= now * (1.0 + _TIE):
                flow, state.is_pending[transfer] = one.program.flow[transfer], False
                state.serving[flow], state.left[flow] = transfer, one.program.amount[transfer] * one.slot_bits
        _share(one, state)


@_compiled
def _push(transfer: int, state: State) -> None:
    state.stack[state.size[0]] = transfer
    state.size[0] += 1


@_compiled
def _settle(one: Instance, state: State) -> None:
    """Empty the stack: what is empty or a computation is done with, and all else may begin."""
    while state.size[0] > 0:
        state.size[0] -= 1
        transfer = state.stack[state.size[0]]
        is_stream = one.constraints[one.program.flow[transfer]].max() < 0
        if one.program.amount[transfer] > 0.0 and not is_stream:
            state.is_pending[transfer] = True
        else:
            _has_left(transfer, state.begins[transfer] + one.program.amount[transfer], one, state)


@_compiled
def _next(now: float, state: State) -> float:
    """When something happens next, or infinity."""
    then = np.inf
    for transfer in range(state.is_pending.size):
        if state.is_pending[transfer]:
            then = min(then, state.begins[transfer])
    for flow in range(state.serving.size):
        if state.serving[flow] >= 0 and state.rate[flow] > 0.0:
            then = min(then, now + state.left[flow] / state.rate[flow])
    return then


@_compiled
def _has_left(transfer: int, at: float, one: Instance, state: State) -> None:
    """Those that now wait for nothing else go on the stack."""
    state.leaves[transfer] = at
    state.arrives[transfer] = at + one.delay[one.program.flow[transfer]]
    if one.program.following[transfer] >= 0:
        _meets(one.program.following[transfer], at, state)
    for place in range(one.program.waiting_at[transfer], one.program.waiting_at[transfer + 1]):
        _meets(one.program.waiting[place], state.arrives[transfer], state)


@_compiled
def _meets(transfer: int, at: float, state: State) -> None:
    """Something that a transfer waits for is there."""
    state.begins[transfer] = max(state.begins[transfer], at)
    state.waits[transfer] -= 1
    if state.waits[transfer] == 0:
        _push(transfer, state)


@_compiled
def _share(one: Instance, state: State) -> None:
    """The rates of all flows in service.

    Each class has of a link what those before it leave, and may count on its assured part. What they leave depends on
    what the flows get elsewhere, so rates are found again until no class may take another amount.
    """
    links, kinds = one.capacity.size, one.classes.assured.size
    for link in range(links):
        state.room[link] = one.capacity[link]
        for kind in range(kinds):
            state.room[links + link * kinds + kind] = one.capacity[link] * one.classes.ceiling[kind]
    for _ in range(_MOST_TURNS):
        _fill(one.constraints, state)
        changed = 0.0
        for link in range(links):
            if one.classes.serves[link]:
                changed = max(changed, _serve(link, one, state))
        if changed <= _SETTLED:
            return


@_compiled
def _serve(link: int, one: Instance, state: State) -> float:
    """What each class may take of a link after the others took what they take; by what part of it that has changed."""
    kinds, capacity, changed = one.classes.assured.size, one.capacity[link], 0.0
    first = one.capacity.size + link * kinds
    for kind in range(kinds):
        assured, left = one.classes.assured[kind] * capacity, capacity
        for other in range(kinds):
            used = state.used[first + other]
            if other < kind:
                left -= used
            elif other > kind:
                left -= min(used, one.classes.assured[other] * capacity)
        found = min(one.classes.ceiling[kind] * capacity, max(assured, left))
        changed = max(changed, abs(found - state.room[first + kind]) / capacity if capacity else 0.0)
        state.room[first + kind] = found
    return changed


@_compiled
def _fill(constraints: Ints, state: State) -> None:
    """Max-min fair rates under the constraints' room, by progressive filling; and what of it is used."""
    state.used[:], state.opened[:] = 0.0, 0.0
    for flow in range(len(constraints)):
        state.rate[flow] = -1.0 if state.serving[flow] >= 0 else 0.0
        if state.serving[flow] >= 0:
            _count(constraints[flow], 0.0, 1.0, state)
    while True:
        tightest, share = -1, np.inf
        for flow in range(len(constraints)):
            if state.rate[flow] < 0.0:
                for one in constraints[flow]:
                    if one >= 0 and max(0.0, state.room[one] - state.used[one]) / state.opened[one] < share:
                        tightest, share = one, max(0.0, state.room[one] - state.used[one]) / state.opened[one]
        if tightest < 0:
            return
        for flow in range(len(constraints)):
            if state.rate[flow] < 0.0 and (constraints[flow] == tightest).any():
                state.rate[flow] = share
                _count(constraints[flow], share, -1.0, state)


@_compiled
def _count(constraints: Ints, used: float, opened: float, state: State) -> None:
    for one in constraints:
        if one >= 0:
            state.used[one] += used
            state.opened[one] += opened
