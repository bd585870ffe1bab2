"""The plan (placement and paths) of collectives and the model's prediction of their times, with or without faults.

Without faults the plan is the same for both engines. With faults it depends on the faults that were in force when an
emulated collective's placement and paths were chosen; the testbed records them with every collective.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np
import numpy.typing as npt

from analysis.model import fluid
from analysis.model.lower_bound import LowerBound, RoundBound, RoundJob
from analysis.model.max_plus import Hop, Times, seconds_by_link, times
from analysis.model.max_plus import critical_path as path_of
from analysis.statistics.fairness import Shares, busy_s, shares
from controller.routing.wan_path_choice import NoPathError
from hosts.collectives.kinds import SELF_SIZED_KINDS
from hosts.collectives.schedule import Transfer
from scenarios.engines.timing import Timing
from scenarios.policies import cost
from scenarios.policies.beliefs import Demands, Probed
from scenarios.policies.conditions import Conditions, chooser_of, conditions_of
from scenarios.policies.decide import (
    Decisions,
    decide,
    rank_order_of,
    spreads_over,
    ways_of,
)
from scenarios.policies.knowledge import PROBED
from scenarios.policies.measured_knowledge import (
    counted_alone,
    predicted_readings,
    probe_takes_s,
    probed_before,
    tunnel_ports,
    tunnels_of,
)
from scenarios.policies.outcome import Outcome, Readings, SkippedOutcome
from scenarios.policies.play import play
from scenarios.policies.players import player_of, timeline_of
from scenarios.policies.situation import Action
from scenarios.spec import te
from scenarios.spec.faults import Fault, active
from scenarios.spec.jobs import REQUESTS, TRANSFER
from scenarios.spec.scenario import Scenario
from topologies.conditions.timed import Timed
from topologies.fabric.failures import NO_CABLES

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PlannedCollective:
    """The plan and the prediction for one collective. `predicted_s` is its completion time, and `reconfigure_s` the
    part of it spent waiting for placement and paths, if that is counted. `later` are the paths after each change of
    tunnels while it runs; `jobs_s` [1, J] the jobs' times."""

    placement: npt.NDArray[np.int16]
    path: npt.NDArray[np.int16]
    later: Sequence[npt.NDArray[np.int16]]
    predicted_s: float
    reconfigure_s: float = 0.0
    jobs_s: Floats | None = None


class PointPredictor:
    """Plans and predictions for an emulated point's collectives; `of` must be called for all of them in order, and
    `skip` for those that are not measured."""

    def __init__(self, config: Scenario, mode: str) -> None:
        self._config, self._mode = config, mode
        self._in_force: dict[int, tuple[Fault, ...]] = {}
        self.conditions = conditions_of(config, lambda number: self._in_force.get(number, ()))
        self._world: ReplayedWorld | None = None
        self._planned: Decisions | None = None
        if _is_played(config, mode) or (config.faults and config.has_timeline(mode)):
            self._world = ReplayedWorld(config, mode, self.conditions)
        elif not config.faults:
            self._planned = plan_of(config, mode).decisions
        self._bound_s = lower_bound(config, self.conditions)

    def bound_s(self, collective: int) -> Floats:
        """Return a lower bound on any schedule's time under a collective's conditions without faults: [1] seconds."""
        return self._bound_s(collective, self.conditions.drawn.rates_bps(collective, 1))

    def of(self, collective: int, faults: Sequence[int] = (), read: Readings | None = None) -> PlannedCollective:
        """Return plan and prediction for a collective under `faults`, the indices of the scenario's faults in force.
        `read` holds the readings of the tunnels' counters in it, which determine how the tunnels' rates change."""
        self._in_force[collective] = tuple(self._config.faults[index] for index in faults)
        plan = self._plan(collective)
        reads = self._config.measures_demands(self._config.mode(self._mode)) and self._config.te.readings
        if read is not None and reads:  # without the reading at the end
            read = replace(read, since_s=read.since_s[:-1], until_s=read.until_s[:-1], sent_bytes=read.sent_bytes[:-1])
        else:
            read = None
        (predicted_s,), of_jobs = plan.with_jobs(read)
        later = [] if read is None else plan.replanned(read)
        waits_s = 0.0
        if self._config.control.counted:
            (wait_s,) = plan.reconfiguring_s(self._decisions(collective - 1) if collective else None)
            waits_s = 0.0 if np.isnan(wait_s) else float(wait_s)
        return PlannedCollective(
            placement=plan.decisions.placement[0],
            path=plan.decisions.path[0],
            later=[decisions.path[0] for decisions in later],
            predicted_s=float(predicted_s) + waits_s,
            reconfigure_s=waits_s,
            jobs_s=None if of_jobs is None else of_jobs.completion_s,
        )

    def skip(self, collective: int) -> None:
        """Plan a collective that is not measured, under the faults that are in force if each takes one attempt."""
        self._in_force[collective] = tuple(one for one in active(self._config.faults, collective) if not one.is_short)
        if self._world is not None:
            self._world.skip(collective)

    def moved(self, collective: int, among: Iterable[int]) -> list[list[int]]:
        """Return the planned paths at those changes of conditions at which the running collective re-routes. Each entry
        is the index of the change, followed by the path of every flow."""
        changes, paths = self._plan(collective).moved_paths(among)
        return [[change, *path.tolist()] for change, path in zip(changes, paths, strict=True)]

    def probed(self, collective: int, probes: npt.NDArray[np.int64], faults: Sequence[int] = ()) -> None:
        """Record the probes before a collective under these faults; to be called before `of`. Each row is source,
        destination, path, and when the probe was sent and when it had arrived, in ns."""
        self._in_force[collective] = tuple(self._config.faults[index] for index in faults)
        if self._world is not None:
            took_s = (probes[:, 4] - probes[:, 3]) / 1e9
            self._world.probes[collective] = probes[:, :3].astype(np.int16), took_s

    def observed(self, collective: int, *, sent_s: Floats, arrived_s: Floats, readings: Readings | None = None) -> None:
        """Record what was observed in a collective, as the basis of later choices; to be called after `of`.

        `sent_s` and `arrived_s`, [T] s, are when each message was handed over and when it had arrived; `readings` are
        those of ports or tunnels, if their counters were read. They are used if knowledge or demands are measured.
        """
        if self._world is not None:
            self._world.seen[collective] = sent_s, arrived_s, readings

    def shares(self, collective: int, *, sent_s: Floats, arrived_s: Floats) -> Shares:
        """Compare the rates that a collective's messages got with their fair shares; to be called after `of`. `sent_s`
        and `arrived_s`, [T] s, are when each message was handed over and when it had arrived."""
        plan = self._plan(collective)
        transfers, predicted = plan.workload.schedule.transfers, plan.times()
        fair_s = busy_s(transfers, predicted.begins_s[:, 0], predicted.arrives_s[:, 0])
        measured_s = busy_s(transfers, sent_s, arrived_s)
        users: defaultdict[int, list[int]] = defaultdict(list)
        (rows,) = plan.links()
        links_of = [row[row >= 0].tolist() for row in rows]
        kept = [index for index, transfer in enumerate(transfers) if links_of[transfer.flow]]  # without computations
        for position, index in enumerate(kept):
            for link in links_of[transfers[index].flow]:
                users[link].append(position)
        names = [link.name for link in self.conditions.shared.all]
        shared = set(self._config.shared_links(self._mode))
        links = {names[link]: uses for link, uses in users.items() if names[link] in shared and len(uses) > 1}
        return shares(measured_s[kept], fair_s[kept], links)

    def _plan(self, collective: int) -> "Plan":
        """Return the plan of a collective under the faults that were in force."""
        return Plan(self._config, self._mode, self._decisions(collective), self.conditions, collective)

    def _decisions(self, collective: int) -> Decisions:
        """Return the decisions for a collective, one row, under the faults that were in force."""
        if self._world is not None:
            return self._world.decisions(collective, 1)
        if self._planned is not None:
            return self._planned.row(collective)
        return decisions_of(self._config, self._mode, self.conditions, start=collective, count=1)


@dataclass(frozen=True, eq=False)
class Plan(Timing):
    """The decisions for a point's collectives and their predicted times, with the time that reconfigurations take."""

    def reconfiguring_s(self, before: Decisions | None = None) -> Floats:
        """Predict how long each collective waits for its placement and paths, [K] s.

        The time is NaN if nothing is chosen or probed, except for collective 0. `before` are the decisions for the
        collective before the first one of this plan, by default the planned ones.
        """
        config, decisions, conditions, start = self.config, self.decisions, self.conditions, self.start
        if self._differs_by_round:
            earlier = [before, *(self.decisions.row(row) for row in range(len(decisions.path) - 1))]
            pairs = zip(self._each(), earlier, strict=True)
            return np.concatenate([plan.reconfiguring_s(last) for plan, last in pairs])
        if start:
            before = before or decisions_of(config, self.mode, conditions, start=start - 1, count=1)
            last = before.placement, before.path
        else:
            placement = decisions.placement[:1]
            last = placement[:0], self.chooser.paths(placement, conditions.rates_bps(0, 1), chosen=False)
        numbers, chosen_by = np.arange(start, start + len(decisions.path)), self.chosen_by
        is_probed = conditions.are_probed(chosen_by, start, numbers.size, config.collective.reembed_every)
        fabric, router, dead = conditions.fabric, self.chooser.router, conditions.dead(start, numbers.size)
        routed, spread = spreads_over(fabric, chosen_by) is None, ways_of(fabric, chosen_by) is not None
        reconnects = config.transport.buffer_bytes is not None or config.has_drawn_jobs
        is_probing = chosen_by.knowledge.kind == PROBED
        waits_s = cost.reconfiguring_s(
            router,
            self.workload,
            placement=decisions.placement,
            path=decisions.path,
            before=last,
            chooses=(numbers == 0)
            | decisions.reembedded
            | decisions.rerouted
            | is_probed
            | (reconnects and spread)
            | (config.engineers(chosen_by) & (numbers % config.collectives_per_rates(chosen_by) == 0)),
            routed=routed,
            spread=spread,
            reconnects=reconnects,
            control_s=config.control_delays_s,
            probed_in=rank_order_of(fabric, self.workload) if is_probing and chosen_by.reroutes else None,
            dead=dead,
        )
        for row in np.flatnonzero(is_probed).tolist():
            previous = decisions.row(row - 1) if row else before
            probes = probed_before(config, chosen_by, conditions, start + row, previous)
            size_bytes, tunnels = config.control.probe_bytes, config.fabric.routing == te.ROUTING
            takes_s = probe_takes_s(conditions, start + row, probes, size_bytes, tunnels=tunnels)
            down = dead[row] if dead else NO_CABLES
            delay_s = cost.default_delays_s(router, down)
            if previous is not None:
                in_force = previous.placement, previous.path
                (delay_s,) = cost.delays_between_s(router, self.workload, *in_force, routed=routed, dead=down)
            waits_s[row] += cost.probing_s(router, probes, takes_s, delay_s=delay_s)
        return waits_s


def lower_bound(config: Scenario, conditions: Conditions) -> Callable[[int, Floats], Floats]:
    """Return a function that computes a lower bound on the time of any schedule, [K] seconds.

    Its arguments are the index of the first collective and the rates [K, links or ports] at the start of each. If flows
    can share links, it is the bound for the model of shared links, which is weaker (`LowerBound`). The bound is NaN if
    messages have no meaning, as then none would be needed; likewise, jobs of such messages and background traffic do
    not contribute to the bound of a round. If conditions change while a collective runs, each link is assumed to have
    its highest rate so far.
    """
    bound = _bound(config, conditions)
    if bound is None:
        return lambda _, rates_bps: np.full(len(rates_bps), np.nan)
    if conditions.timed is None:
        return lambda _, rates_bps: bound.seconds(rates_bps)
    return partial(_bound_by_time, bound, conditions.timed)


def is_bound_of_shared(config: Scenario) -> bool:
    """Return whether the lower bound of a configuration is the one in the model of shared links, which is lower."""
    return bool(config.jobs) or any(config.shared_links(mode) for mode in config.run.modes)


def _bound(config: Scenario, conditions: Conditions) -> LowerBound | None:
    """Return the lower bound for a configuration's collective or round of jobs; None if there is none."""
    spec, fabric, delays_s = config.collective, conditions.fabric, conditions.shared_delays_s
    if not config.jobs and spec.kind not in SELF_SIZED_KINDS:
        return LowerBound(
            fabric,
            delays_s=delays_s,
            kind=spec.kind,
            block_bytes=spec.chunk_bytes,
            at_once=is_bound_of_shared(config),
        )
    demands = []
    for job in config.jobs:
        ranks, collective = job.ranks or tuple(range(len(fabric.gpus))), job.collective(spec)
        if not job.is_background and collective.kind not in (*SELF_SIZED_KINDS, REQUESTS, TRANSFER):
            demand = RoundJob(
                kind=collective.kind,
                block_bytes=collective.with_chunk(len(ranks)).chunk_bytes,
                gpus=ranks,
                count=job.count,
                start_s=job.start_s,
            )
            demands.append(demand)
            if job.every_s is not None and job.count > 1:  # the last one cannot begin before it is due
                demands[-1] = replace(demand, count=job.count - 1)
                demands.append(replace(demand, count=1, start_s=job.start_s + (job.count - 1) * job.every_s))
    return RoundBound(fabric, delays_s=delays_s, demands=demands) if demands else None


def _bound_by_time(bound: LowerBound, timed: Timed, start: int, rates_bps: Floats) -> Floats:
    """Return for each collective the least time T that equals the bound under the links' highest rates before T."""
    bound_s, until_s = bound.seconds(rates_bps), timed.first_change_s(np.arange(start, start + len(rates_bps)))
    for row in np.flatnonzero(bound_s > until_s).tolist():
        # Find the first n for which the bound under the highest rates of rows 1 .. n is not after the end of row n. T
        # is this bound, or the beginning of row n if the bound is before it.
        rows, begin_s, end_s = 1, 0.0, float(until_s[row])
        while (seconds := float(bound_s[row])) > end_s:
            rows, begin_s = rows + 1, end_s
            end_s = timed.change_ns(start + row, rows - 1) / 1e9
            highest_bps = timed.rows_from_start(start + row, rows).max(axis=0)
            bound_s[row] = bound.seconds(highest_bps[None])[0]
        bound_s[row] = max(seconds, begin_s)
    return bound_s


def ring_gap(config: Scenario, mode: str, count: int) -> float:
    """Return a bound on the relative optimality gap of a mode's rings under a point's first `count` conditions. The gap
    is relative to the least possible value of the ring's objective, without faults; 0 for an exact choice."""
    conditions = conditions_of(config, lambda _: ())
    rates_bps = conditions.rates_bps(0, min(count, config.collective.count))
    gaps = chooser_of(config, config.mode(mode), conditions).ring_gaps(rates_bps)
    return float(gaps.max())


def critical_path(config: Scenario, mode: str, count: int) -> dict[str, float]:
    """Split the predicted times of a point's first collectives, without faults, by elements of their critical paths.
    Returns mean seconds by link ("g0>g4") or, for computations, by GPU, in descending order."""
    plan = plan_of(config, mode, count)
    conditions, decisions, transfers = plan.conditions, plan.decisions, plan.workload.foreground_transfers
    links = plan.links()
    names = [link.name for link in conditions.shared.all]
    if decisions.limits_bps.size:  # a tunnel's limit is reported under the tunnel's first link
        first_links = [names[link] for link in tunnel_ports(conditions.fabric)]
        names += first_links * (decisions.limits_bps.shape[1] // len(first_links))
    mean_s: defaultdict[str, float] = defaultdict(float)
    whole = None if config.has_drawn_jobs else plan.times()
    for row in range(count):
        predicted, at = (plan.row(row).times(), 0) if whole is None else (whole, row)
        hops, limits = _hops(plan.row(row), links[row]), fluid.bottleneck_names(predicted, names, at)
        critical = path_of(transfers, predicted, at)
        for name, share in seconds_by_link(transfers, critical, hops, limits).items():
            mean_s[name] += share.seconds / count
    return dict(sorted(mean_s.items(), key=lambda item: -item[1]))


def exposed_s(
    config: Scenario, mode: str, job: str | None = None, *, arrived_s: Floats | None = None
) -> tuple[float, float]:
    """Return how much exposed communication lengthens each training iteration of a point's first collective.

    With `job`, it is that of the job's first collective in the first round. The result is mean seconds per iteration:
    for communication between stages, until the last computation would be over if sums of gradients took no time, and
    for these sums, from then on. The times are predicted without faults, or measured if `arrived_s`, the arrivals of
    transfers [T], is given.
    """
    if arrived_s is None:
        config = replace(config, faults=())
    transfers, first = config.workload.schedule.transfers, _first_transfers(config, job)
    begins, ends = config.workload.schedule.ends
    is_stream = np.equal(begins, ends)
    computing = times(transfers, np.zeros((len(is_stream), 1)), is_stream[:, None].astype(float))
    computing_s = computing.arrives_s[first].max()  # without any time for communication
    if arrived_s is None:
        arrived_s = plan_of(config, mode, 1).times().arrives_s[:, 0]
    last_s = arrived_s[first].max()
    computed_s = _without_sums_s(transfers[: first.stop], is_stream, arrived_s)[first].max()
    pipeline_s, gradients_s = max(0.0, float(computed_s - computing_s)), max(0.0, float(last_s - computed_s))
    return pipeline_s / config.training.every, gradients_s / config.training.every


def _without_sums_s(transfers: Sequence[Transfer], is_stream: npt.NDArray[np.bool_], arrived_s: Floats) -> Floats:
    """Return when each computation would end if sums of gradients (transfers with slots) took no time, [T] s.

    Other messages arrive as long after the computations on which they depend as they did. Where no computation waits
    for a sum, all computations end when they did.
    """
    ends_s, stream_ends_s = np.zeros(len(transfers)), np.zeros(len(is_stream))
    has_waited = False
    for index, transfer in enumerate(transfers):
        if transfer.slots:
            continue
        others = [one for one in transfer.after if not transfers[one].slots]
        has_waited |= bool(is_stream[transfer.flow]) and len(others) < len(transfer.after)
        ready_s = ends_s[others].max(initial=0.0)
        if not has_waited:
            ends_s[index] = arrived_s[index]
        elif is_stream[transfer.flow]:
            ends_s[index] = max(ready_s, stream_ends_s[transfer.flow]) + transfer.size
        else:
            ends_s[index] = ready_s + arrived_s[index] - arrived_s[others].max(initial=0.0)
        if is_stream[transfer.flow]:
            stream_ends_s[transfer.flow] = ends_s[index]
    ends_s[~is_stream[[transfer.flow for transfer in transfers]]] = 0.0
    return ends_s


def _first_transfers(config: Scenario, job: str | None) -> slice:
    """Return the transfers of a collective, or those of a job's first collective in a round."""
    if job is None:
        return slice(len(config.workload.schedule.transfers))
    (span,) = (span for span in config.workload.jobs if span.name == job)
    return slice(span.collectives[0].start, span.collectives[0].stop)


def link_bytes(config: Scenario, mode: str, job: str | None = None) -> dict[str, int]:
    """Return the bytes that a point's first collective, or a job's first one, sends over each link or port it uses.
    Keys are the names of links or ports; faults are left out."""
    plan = plan_of(config, mode, 1)
    (links,), names, workload = plan.links(), plan.conditions.shared.all, plan.workload
    by_link: defaultdict[str, int] = defaultdict(int)
    for transfer in workload.schedule.transfers[_first_transfers(plan.config, job)]:
        for link in links[transfer.flow][links[transfer.flow] >= 0].tolist():
            by_link[names[link].name] += round(transfer.amount * workload.slot_bytes)
    return dict(sorted(by_link.items()))


def _hops(plan: Plan, links: npt.NDArray[np.int32]) -> list[list[Hop]]:
    """Return the hops of each flow of the plan's one collective, which passes `links` [F, H]; a stream's is its GPU."""
    conditions, all_ = plan.conditions, plan.conditions.shared.all
    (rates_bps,), delays_s = conditions.shared_bps(plan.start, 1), conditions.shared_delays_s
    placement, (places, _) = plan.decisions.placement[0], plan.workload.schedule.ends
    return [
        [Hop(all_[link].name, float(rates_bps[link]), float(delays_s[link])) for link in row[row >= 0].tolist()]
        or [Hop(conditions.fabric.gpus[placement[place]].name, math.inf, 0.0)]
        for place, row in zip(places, links, strict=True)
    ]


def plan_of(config: Scenario, mode: str, count: int | None = None) -> Plan:
    """Return the plan of a point's first `count` collectives (default: all) without the scenario's faults."""
    whole = replace(config, faults=())  # not only for the conditions: faults affect the admission of transfers, too
    conditions = conditions_of(whole)
    decisions = decisions_of(whole, mode, conditions, start=0, count=count or config.collective.count)
    return Plan(whole, mode, decisions, conditions)


def decisions_of(config: Scenario, mode: str, conditions: Conditions, *, start: int, count: int) -> Decisions:
    """Return the decisions for collectives start .. start+count-1 of a point under these conditions.

    Those of a mode that needs no outcomes are planned for all of them at once, the others played in the `FluidWorld`.
    """
    if _is_played(config, mode):
        return _world_of(config, mode).decisions(start, count)
    chosen_by = config.mode(mode)
    return decide(
        chooser_of(config, chosen_by, conditions),
        conditions,
        reembed_every=config.collective.reembed_every,
        start=start,
        count=count,
        believed=conditions.believed(chosen_by.knowledge).held(config.collectives_per_rates(chosen_by)),
        timeline=timeline_of(config, mode) if config.has_timeline(mode) else None,
    )


def known_before(config: Scenario, mode: str, conditions: Conditions, *, start: int, count: int) -> int:
    """Return how many of `count` collectives from `start` on come before the first whose flows have no path, given that
    there is one. A user's function is not asked again."""
    if _is_played(config, mode):
        return max(0, _world_of(config, mode).played - start)
    known, lost = 0, count
    while known + 1 < lost:
        tried = (known + lost) // 2
        try:
            decisions_of(config, mode, conditions, start=start, count=tried)
        except NoPathError:
            lost = tried
        else:
            known = tried
    return known


def _is_played(config: Scenario, mode: str) -> bool:
    """Return whether the choices of a mode have to be played: they depend on what was observed of earlier collectives,
    or a user's function makes them."""
    chosen_by = config.mode(mode)
    return chosen_by.knowledge.is_measured or config.measures_demands(chosen_by) or chosen_by.function is not None


class FluidWorld:
    """The world of the timing model: collectives take the predicted time, and counters and probes show what they would.

    It plays a mode of a configuration from the first collective on, as far as `decisions` asks for, and keeps the
    decisions. A `play.World`.
    """

    def __init__(self, config: Scenario, mode: str, conditions: Conditions) -> None:
        self._config, self._mode, self._conditions = config, config.mode(mode), conditions
        self._chooser = chooser_of(config, self._mode, conditions)
        self.player = player_of(config, mode, conditions)
        self._demands = Demands(config, conditions) if config.measures_demands(self._mode) else None
        self._rows: list[Decisions] = []

    def decisions(self, start: int, count: int) -> Decisions:
        """Return the decisions for collectives start .. start+count-1; raises the errors of `rules.decide`."""
        for _ in play(self, self.player, range(len(self._rows), start + count)):
            pass
        return Decisions.joined(self._rows[start : start + count])

    @property
    def played(self) -> int:
        """How many collectives have been played."""
        return len(self._rows)

    def run(self, number: int, decide: Callable[[], Action]) -> Outcome:
        """As `play.World.run`."""
        conditions, belief, every = self._conditions, self.player.belief, self._config.collective.reembed_every
        if isinstance(belief, Probed) and conditions.are_probed(self._mode, number, 1, every)[0]:
            belief.probed(number, *self._probe(number, self._rows[-1] if self._rows else None))
        action = decide()
        decisions = self._decisions(number, action)
        self._rows.append(decisions)
        outcome = self._outcome(action, Plan(self._config, self._mode.name, decisions, conditions, number))
        if self._demands is not None:
            self._demands.after(outcome)
        return outcome

    def _decisions(self, number: int, action: Action) -> Decisions:
        """Return the decisions for a collective, one row, with this action carried out before it."""
        placement, routing = self.player.in_force.after(action)
        is_new = np.array([action.placement is not None]), np.array([action.routing is not None])
        ranks, limits_bps = placement.ranks[None], None
        if routing is not None:
            path = routing.path[None]
        elif self._rows and not is_new[0] and not self._config.faults and self._demands is None:
            path = self._rows[-1].path  # fixed paths depend on the faults in force
        else:
            wanted_bps = [] if self._demands is None else [self._demands.before(number)]
            path, limits_bps = self._chooser.fixed(ranks, self.player.belief.before(number)[None], wanted_bps)
        rates_bps = self._conditions.rates_bps(number, 1)
        return self._chooser.decisions(ranks, path, rates_bps, new=is_new, limits_bps=limits_bps)

    def _probe(self, number: int, before: Decisions | None) -> tuple[npt.NDArray[np.int16], Floats]:
        """Return the probes before a collective, [P, 3], and their transit times, [P] s."""
        probes = probed_before(self._config, self._mode, self._conditions, number, before)
        config = self._config
        size_bytes, tunnels = config.control.probe_bytes, config.fabric.routing == te.ROUTING
        return probes, probe_takes_s(self._conditions, number, probes, size_bytes, tunnels=tunnels)

    def _outcome(self, action: Action, plan: "Plan") -> Outcome:
        return PredictedOutcome(action, plan)


@dataclass(frozen=True, eq=False)
class PredictedOutcome:
    """The outcome of a plan's one collective in the timing model, computed when asked for. An `outcome.Outcome`."""

    action: Action
    plan: "Plan"

    @property
    def number(self) -> int:
        """The index of the collective."""
        return self.plan.start

    @property
    def placement(self) -> npt.NDArray[np.int16]:
        """The rank at each place, [n]."""
        return self.plan.decisions.placement[0]  # type: ignore[no-any-return]

    @property
    def path(self) -> npt.NDArray[np.int16]:
        """The WAN path of each flow, [F]; -1 within a site."""
        return self.plan.decisions.path[0]  # type: ignore[no-any-return]

    @cached_property
    def links(self) -> npt.NDArray[np.int32]:
        """The links or ports that flows pass, [F, H]."""
        return self.plan.links()[0]  # type: ignore[no-any-return]

    @cached_property
    def _times(self) -> Times:
        return self.plan.times()

    @property
    def sent_s(self) -> Floats:
        """When each message is handed over, [T] s."""
        return self._times.begins_s[:, 0]

    @property
    def arrived_s(self) -> Floats:
        """When each message has arrived, [T] s."""
        return self._times.arrives_s[:, 0]

    @cached_property
    def readings(self) -> Readings:
        """The readings of the tunnels' counters if the mode measures demands, else those of the ports."""
        config, conditions, mode = self.plan.config, self.plan.conditions, self.plan.chosen_by
        (rates_bps,) = conditions.shared_bps(self.number, 1)
        if config.measures_demands(mode):
            tunnels = tunnels_of(conditions.fabric, config.workload, self.plan.decisions.path[0])
            link, links, every_s, fair = np.unique(tunnels[tunnels >= 0]), tunnels[:, None], config.te.sample_s, True
        else:
            assert mode.measure_every_s is not None
            link, links, every_s = counted_alone(conditions.fabric, self.links), self.links, mode.measure_every_s
            fair = config.fair_links(mode.name) is not None
        return predicted_readings(config.workload, links, rates_bps, link, self._times, every_s=every_s, fair=fair)


class ReplayedWorld(FluidWorld):
    """The world of a recorded run: its collectives showed what `seen` and `probes` hold, by collective.

    Both are filled in while it plays: the probes before a collective's decisions are asked for, `seen` (when messages
    were sent and had arrived, [T] s, and the counters' readings) before those of the next one.
    """

    def __init__(self, config: Scenario, mode: str, conditions: Conditions) -> None:
        super().__init__(config, mode, conditions)
        self._skipped = set[int]()
        self.seen: dict[int, tuple[Floats, Floats, Readings | None]] = {}
        self.probes: dict[int, tuple[npt.NDArray[np.int16], Floats]] = {}

    def _probe(self, number: int, before: Decisions | None) -> tuple[npt.NDArray[np.int16], Floats]:
        return self.probes.pop(number)

    def skip(self, number: int) -> None:
        """Play a collective that was not measured."""
        self._skipped.add(number)
        self.decisions(number, 1)

    def _outcome(self, action: Action, plan: "Plan") -> Outcome:
        if plan.start in self._skipped:
            return SkippedOutcome(plan.start, action)
        return _ReplayedOutcome(action, plan, self.seen)


@dataclass(frozen=True, eq=False)
class _ReplayedOutcome(PredictedOutcome):
    """The outcome of a recorded collective, read from `seen` when it is asked for."""

    seen: dict[int, tuple[Floats, Floats, Readings | None]]

    @property
    def sent_s(self) -> Floats:
        return self.seen[self.number][0]

    @property
    def arrived_s(self) -> Floats:
        return self.seen[self.number][1]

    @property
    def readings(self) -> Readings:
        found = self.seen[self.number][2]
        assert found is not None
        return found


@lru_cache(maxsize=8)
def _world_of(config: Scenario, mode: str) -> FluidWorld:
    """Return the world in which a mode that needs outcomes is played; cached, so that later calls go on with it."""
    return FluidWorld(config, mode, conditions_of(config))
