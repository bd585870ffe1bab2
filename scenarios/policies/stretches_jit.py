"""The compiled part of `stretches`: a policy's rules asked before one collective after the other.

It follows `rules.decide`, for policies whose rates are known beforehand and whose cables do not fail. Rules and times
are those that everything else uses: `rules.is_due`, and the timing model's recursion for schedules whose flows share no
link (`max_plus`), operation by operation, so that its times are the same to the last bit.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.model.compiled import compiled_entry, compiled_without_refcounts
from controller.routing.network import Network
from scenarios.policies import rules
from scenarios.policies.arrays import Anew, Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Ranks = npt.NDArray[np.int16]

_PLACEMENT, _PATHS = 0, 1  # rows of `Latest` and of moments

_is_due = compiled_without_refcounts(rules.is_due)
_drift = compiled_without_refcounts(rules.drift)


class Policy(NamedTuple):
    """A policy's rules for paths and for the placement, what their choices cost in s, and over how many collectives a
    gain counts. `reroutes`: it chooses paths at all; `reembeds`: it chooses placements."""

    reroute: rules.Rule
    reembed: rules.Rule
    route_cost_s: float
    embed_cost_s: float
    horizon: int
    reroutes: bool
    reembeds: bool


class Coming(NamedTuple):
    """The coming collectives: the first one's number, and the rates believed before each, [K, links]."""

    number: int
    believed_bps: Floats


class Latest(NamedTuple):
    """The latest choices, changed in place: before which collectives the placement and paths were chosen, `numbers`
    [2], -1 for never, and the rates believed then, `then_bps` [2, links]."""

    numbers: Ints
    then_bps: Floats


class Room(NamedTuple):
    """Room for what is computed of one collective: by flow, by transfer, and how many crossings use each link."""

    path: Ints
    alpha_s: Floats
    beta_s: Floats
    free_s: Floats
    arrives_s: Floats
    users: Ints


class Times(NamedTuple):
    """What a policy needs that compares predicted times: the placement, `ranks` [n], and each flow's path, `path` [F],
    in force, changed in place; what would be chosen anew; and from what times are computed."""

    ranks: Ints
    path: Ints
    anew: Anew
    network: Network
    work: Work
    room: Room


@compiled_without_refcounts
def _over(network: Network, rates_bps: Floats, src: int, dst: int, path: int) -> tuple[float, float]:
    """Return the delay and the rate from rank to rank over a path."""
    up, down = network.up[src, network.ends[path, 0]], network.down[network.ends[path, 1], dst]
    rate_bps = min(rates_bps[up], rates_bps[down])
    for link in network.wan[path]:
        if link >= 0:
            rate_bps = min(rate_bps, rates_bps[link])
    return network.delay_s[up] + network.wan_delay_s[path] + network.delay_s[down], rate_bps


@compiled_without_refcounts
def _best_path(network: Network, rates_bps: Floats, src: int, dst: int, bits: float) -> int:
    """Return the best path from rank to rank alone, on ties the first; -1 if there is none."""
    least_s, best = np.inf, -1
    for path in network.between[network.site[src], network.site[dst]]:
        if path < 0:
            break
        delay_s, rate_bps = _over(network, rates_bps, src, dst, path)
        cost_s = delay_s + bits / rate_bps
        if cost_s < least_s:
            least_s, best = cost_s, path
    return best


@compiled_without_refcounts
def _use(network: Network, users: Ints, src: int, dst: int, path: int) -> bool:
    """Count a crossing on the links that it uses; return whether it is alone on these."""
    up, down = network.up[src, network.ends[path, 0]], network.down[network.ends[path, 1], dst]
    users[up] += 1
    users[down] += 1
    alone = bool(users[up] == 1 and users[down] == 1)
    for link in network.wan[path]:
        if link >= 0:
            users[link] += 1
            alone = alone and bool(users[link] == 1)
    return alone


@compiled_without_refcounts
def _best_paths(times: Times, rates_bps: Floats) -> bool:
    """Write the best path of each flow alone into the room; return whether no two crossings share a link over these,
    so that they are also the best together (`Router.choose_jointly`)."""
    network, work, room = times.network, times.work, times.room
    alone = True
    room.users[:] = 0
    for flow in range(work.src.size):
        src, dst = times.ranks[work.src[flow]], times.ranks[work.dst[flow]]
        room.path[flow] = -1
        if src == dst or network.site[src] == network.site[dst]:
            continue
        room.path[flow] = _best_path(network, rates_bps, src, dst, work.message_bits)
        if room.path[flow] < 0:
            return False
        if work.is_first[flow]:
            alone = _use(network, room.users, src, dst, room.path[flow]) and alone
    return alone


@compiled_without_refcounts
def _seconds(times: Times, path: Ints, rates_bps: Floats) -> float:
    """Return the completion time of a collective over these paths, [F]; infinite if a link is down."""
    network, work, room = times.network, times.work, times.room
    for flow in range(work.src.size):
        room.alpha_s[flow], room.beta_s[flow], room.free_s[flow] = 0.0, 1.0, 0.0
        if work.is_stream[flow]:
            continue
        src, dst = times.ranks[work.src[flow]], times.ranks[work.dst[flow]]
        link = network.inside[src, dst]
        delay_s, rate_bps = network.delay_s[link], rates_bps[link]
        if path[flow] >= 0:
            delay_s, rate_bps = _over(network, rates_bps, src, dst, path[flow])
        room.alpha_s[flow], room.beta_s[flow] = delay_s, work.slot_bits / rate_bps
    completion_s = 0.0
    for transfer in range(work.flow.size):
        flow = work.flow[transfer]
        begins_s = room.free_s[flow]
        for at in range(work.after_at[transfer], work.after_at[transfer + 1]):
            begins_s = max(begins_s, room.arrives_s[work.after[at]])
        room.free_s[flow] = begins_s + work.amount[transfer] * room.beta_s[flow]
        room.arrives_s[transfer] = room.free_s[flow] + room.alpha_s[flow]
        completion_s = max(completion_s, room.arrives_s[transfer])
    return completion_s


@compiled_without_refcounts
def _drifted(latest: Latest, of: int, rates_bps: Floats, rule: rules.Rule) -> float:
    if rule.kind != rules.DRIFT or latest.numbers[of] < 0:
        return np.inf
    return _drift(rates_bps, latest.then_bps[of])


@compiled_without_refcounts
def _copy(values: Ints | Ranks, to: Ints) -> None:
    for at in range(values.size):  # an assignment of a slice would need reference counts
        to[at] = values[at]


@compiled_without_refcounts
def _choose(latest: Latest, of: int, number: int, rates_bps: Floats) -> None:
    latest.numbers[of] = number
    for link in range(rates_bps.size):
        latest.then_bps[of, link] = rates_bps[link]


@compiled_without_refcounts
def _stretch(policy: Policy, coming: Coming, latest: Latest, times: Times | None, moments: Ints) -> int:
    for row in range(len(coming.believed_bps)):
        number, now_bps = coming.number + row, coming.believed_bps[row]
        kept_s = over_s = anew_s = 0.0
        if times is not None:
            kept_s = over_s = _seconds(times, times.path, now_bps)
            if policy.reroutes:
                if not _best_paths(times, now_bps):
                    return row
                over_s = _seconds(times, times.room.path, now_bps)
            if not (kept_s < np.inf and over_s < np.inf):
                return row
            if policy.reembeds:
                anew_s = times.anew.seconds[row]
        drifted, cost_s = _drifted(latest, _PATHS, now_bps, policy.reroute), policy.route_cost_s
        asked = rules.Asked(number, drifted, kept_s, over_s, cost_s, policy.horizon)
        routes = _is_due(policy.reroute, asked)
        drifted, cost_s = _drifted(latest, _PLACEMENT, now_bps, policy.reembed), policy.embed_cost_s
        if routes:
            kept_s, cost_s = over_s, cost_s - policy.route_cost_s
        asked = rules.Asked(number, drifted, kept_s, anew_s, cost_s, policy.horizon)
        embeds = _is_due(policy.reembed, asked)
        if embeds:
            _choose(latest, _PLACEMENT, number, now_bps)
        if routes or (embeds and policy.reroutes):
            _choose(latest, _PATHS, number, now_bps)
        if times is not None:
            if embeds:
                _copy(times.anew.ranks[row], times.ranks)
                _copy(times.anew.path[row], times.path)
            elif routes:
                _copy(times.room.path, times.path)
        moments[_PLACEMENT, row], moments[_PATHS, row] = latest.numbers[_PLACEMENT], latest.numbers[_PATHS]
    return len(coming.believed_bps)


@compiled_entry
def stretch(policy: Policy, coming: Coming, latest: Latest, times: Times | None, moments: Ints) -> int:
    """Decide before coming collectives, and write before which collectives placement and paths were chosen that are in
    force in each, `moments` [2, K]. `times` is None for a policy that compares no times.

    Returns the number of collectives that were decided; the next one, if any, needs paths that are chosen jointly, or a
    link is down.
    """
    return _stretch(policy, coming, latest, times, moments)
