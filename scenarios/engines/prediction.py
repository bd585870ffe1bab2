"""The plan and the model's prediction for collectives that were emulated, whatever faults were in force.

Without faults that is the plan as it is made for any engine. With faults it depends on which of them were in force when
the collective's paths, and before that its ring, were chosen; the testbed records them with every collective.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.model import fluid
from analysis.model.lower_bound import LowerBound
from analysis.model.max_plus import Hop, Times, seconds_by_link, times
from analysis.model.max_plus import critical_path as path_of
from analysis.statistics.fairness import Shares, busy_s, shares
from hosts.collectives.kinds import MESSAGES, Workload
from scenarios.policies.conditions import Conditions, conditions_of
from scenarios.policies.decide import MODES, Decisions, compiled, decide
from scenarios.spec.faults import Fault
from scenarios.spec.scenario import Scenario
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.fabric.ports import links_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The planned placement and paths of one collective, and its predicted completion time."""

    placement: npt.NDArray[np.int16]
    path: npt.NDArray[np.int16]
    predicted_s: float


class Expectations:
    """What is expected of a point's collectives, in order: `of` needs to have been called for all before."""

    def __init__(self, setting: Scenario, mode: str) -> None:
        self._setting, self._mode = setting, mode
        self._in_force: dict[int, tuple[Fault, ...]] = {}
        self._conditions = conditions_of(setting, lambda number: self._in_force.get(number, ()))
        self._all = None if setting.faults else planned(setting, mode)
        self._bound_s = lower_bound(setting, self._conditions)

    def bound_s(self, collective: int) -> Floats:
        """A time that no schedule can beat under a collective's conditions, faults aside: [1] seconds."""
        return self._bound_s(self._conditions.drawn.rates_bps(collective, 1))

    def of(self, collective: int, faults: Sequence[int] = ()) -> Expected:
        """What is expected of a collective while these faults, by their indices in the scenario, were in force."""
        self._in_force[collective] = tuple(self._setting.faults[index] for index in faults)
        decisions = self._decisions(collective)
        (predicted_s,) = predicted(self._setting, self._mode, decisions, self._conditions.rates_bps(collective, 1))
        return Expected(placement=decisions.placement[0], path=decisions.path[0], predicted_s=float(predicted_s))

    def shares(self, collective: int, *, sent_s: Floats, arrived_s: Floats) -> Shares:
        """What the messages of a collective that `of` has been called for got of their fair shares; `sent_s` and
        `arrived_s`, [T] s, are when each was handed over and had arrived."""
        setting, decisions = self._setting, self._decisions(collective)
        schedule = setting.workload.schedule
        seen = predicted_times(setting, self._mode, decisions, self._conditions.rates_bps(collective, 1))
        fair_s = busy_s(schedule.transfers, seen.begins_s[:, 0], seen.arrives_s[:, 0])
        measured_s = busy_s(schedule.transfers, sent_s, arrived_s)
        users: defaultdict[int, list[int]] = defaultdict(list)
        on = flow_links(setting, decisions, 0)
        kept = [index for index, one in enumerate(schedule.transfers) if on[one.flow]]  # a computation has no links
        for place, index in enumerate(kept):
            for link in on[schedule.transfers[index].flow]:
                users[link].append(place)
        names = [link.name for link in self._conditions.fabric.links]
        shared = set(setting.shared_links(self._mode))
        links = {names[link]: places for link, places in users.items() if names[link] in shared and len(places) > 1}
        return shares(measured_s[kept], fair_s[kept], links)

    def _decisions(self, collective: int) -> Decisions:
        """The decisions for a collective, under the faults that were in force; one row."""
        if self._all is not None:
            return self._all.row(collective)
        return decided(self._setting, self._mode, self._conditions, start=collective, count=1)


def predicted(setting: Scenario, mode: str, decisions: Decisions, rates_bps: Floats) -> Floats:
    """The model's completion times of collectives that were decided so under these rates, [K, links]: [K] seconds.

    Where two flows can share a link, all of them have their max-min fair shares; elsewhere each has its own links.
    """
    if not setting.shared_links(mode):
        return compiled(setting.workload).completion_s(decisions.alpha_s.T, decisions.beta_s.T)
    return fluid.completion_s(
        setting.workload.schedule.transfers,
        links_by_flow(setting.workload, build_fabric(setting.fabric), decisions.placement, decisions.path),
        rates_bps,
        decisions.alpha_s,
        slot_bytes=setting.workload.slot_bytes,
    )


def predicted_times(setting: Scenario, mode: str, decisions: Decisions, rates_bps: Floats) -> Times:
    """When every transfer of those collectives begins, leaves and arrives; arguments as for `predicted`."""
    transfers = setting.workload.schedule.transfers
    if not setting.shared_links(mode):
        return times(transfers, decisions.alpha_s.T, decisions.beta_s.T)
    return fluid.times(
        transfers,
        links_by_flow(setting.workload, build_fabric(setting.fabric), decisions.placement, decisions.path),
        rates_bps,
        decisions.alpha_s,
        slot_bytes=setting.workload.slot_bytes,
    )


def links_by_flow(
    workload: Workload, fabric: Fabric, placement: npt.NDArray[np.int16], path: npt.NDArray[np.int16]
) -> npt.NDArray[np.int32]:
    """The logical links of every flow in order, [K, F, H], -1 for none; `placement` is [K, n] and `path` [K, F]."""
    begins, ends = (np.array(places) for places in workload.schedule.ends)
    flows = begins != ends
    found = np.full((*path.shape, max(len(one.links) for one in fabric.paths) + 2), -1, dtype=np.int32)
    found[:, flows] = links_of(fabric, placement[:, begins[flows]], placement[:, ends[flows]], path[:, flows])
    return found


def lower_bound(setting: Scenario, conditions: Conditions) -> Callable[[Floats], Floats]:
    """A function of rates [K, links] that gives times which no schedule of a configuration can beat, [K] seconds.

    They are NaN where messages mean nothing, as the same could be done without any.
    """
    if setting.collective.kind == MESSAGES:
        return lambda rates_bps: np.full(len(rates_bps), np.nan)
    spec = setting.collective
    bound = LowerBound(conditions.fabric, delays_s=conditions.delays_s, kind=spec.kind, block_bytes=spec.chunk_bytes)
    return bound.seconds


def flow_links(setting: Scenario, decisions: Decisions, row: int) -> list[tuple[int, ...]]:
    """The logical links that each flow of one of these collectives takes, in order; of a stream none."""
    placement, fabric = decisions.placement[row], build_fabric(setting.fabric)
    ends = zip(*setting.workload.schedule.ends, decisions.path[row].tolist(), strict=True)
    return [fabric.edge_links(placement[a], placement[b], path) if a != b else () for a, b, path in ends]


def critical_path(setting: Scenario, mode: str, count: int) -> dict[str, float]:
    """What the predicted times of a point's first collectives are made of, faults aside: the mean seconds by link,
    "g0>g4", or by the GPU that computes, the most first."""
    conditions, transfers = conditions_of(setting, lambda _: ()), setting.workload.schedule.transfers
    decisions = decided(setting, mode, conditions, start=0, count=count)
    rates_bps = conditions.drawn.rates_bps(0, count)
    seen = predicted_times(setting, mode, decisions, rates_bps)
    spent: defaultdict[str, float] = defaultdict(float)
    for row in range(count):
        hops = _hops(setting, conditions, decisions, rates_bps, row)
        limits = fluid.limits(seen, [link.name for link in conditions.fabric.links], row)
        for name, cost in seconds_by_link(transfers, path_of(transfers, seen, row), hops, limits).items():
            spent[name] += cost.seconds / count
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def _hops(
    setting: Scenario, conditions: Conditions, decisions: Decisions, rates_bps: Floats, row: int
) -> list[list[Hop]]:
    """What each flow of one of these collectives goes over: its links, or of a stream its GPU."""
    fabric, placement = conditions.fabric, decisions.placement[row]
    places, _ = setting.workload.schedule.ends
    return [
        [Hop(fabric.links[link].name, float(rates_bps[row, link]), float(conditions.delays_s[link])) for link in links]
        or [Hop(fabric.gpus[placement[place]].name, math.inf, 0.0)]
        for place, links in zip(places, flow_links(setting, decisions, row), strict=True)
    ]


def planned(setting: Scenario, mode: str) -> Decisions:
    """The plan of all collectives of a point, its faults aside."""
    return decided(setting, mode, conditions_of(setting, lambda _: ()), start=0, count=setting.collective.count)


def decided(setting: Scenario, mode: str, conditions: Conditions, *, start: int, count: int) -> Decisions:
    """The plan of collectives start .. start+count-1 of a point under these conditions."""
    return decide(
        conditions.fabric,
        conditions,
        delays_s=conditions.delays_s,
        mode=MODES[mode],
        workload=setting.workload,
        reembed_every=setting.collective.reembed_every,
        start=start,
        count=count,
    )
