"""The predicted times of collectives whose placement and paths are decided, also where the network changes meanwhile.

All times come from `analysis.model.evaluator`: those of all collectives under the conditions at their starts, and then,
one by one, of those during which conditions, paths or tunnel rates change.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from heapq import merge
from itertools import count, islice
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from analysis.model import fluid
from analysis.model.evaluator import Evaluator, Shared, Unshared
from analysis.model.max_plus import Times
from hosts.collectives.kinds import JobSpan, Workload
from scenarios.policies.conditions import Conditions, chooser_of
from scenarios.policies.decide import Chooser, Decisions, compiled
from scenarios.policies.measured_knowledge import (
    links_by_flow,
    links_passed,
    measured_demands_within,
    tunnel_ports,
    tunnels_of,
)
from scenarios.policies.outcome import Readings
from scenarios.policies.policy import Mode
from scenarios.policies.rules import reacts
from scenarios.spec.classes import of_flows
from scenarios.spec.requests import served_times
from scenarios.spec.scenario import Scenario
from topologies.conditions.timed import Timed
from topologies.shaping.frames import TCP_FRAMES

Floats = npt.NDArray[np.float64]
Links = npt.NDArray[np.int32]

_TIMES_AT_ONCE = 1 << 21  # times of transfers computed at once, which bounds the memory
_CHANGES_AT_ONCE = 16  # changes that are requested first; each further request doubles them
_TIE = 1e-12  # changes closer than this share of the time since the start are simultaneous, as in `fluid.Run`


class _Change(NamedTuple):
    """What changes in the network at an instant, one row each; None: nothing. Limits are those of tunnels."""

    rates_bps: Floats | None = None
    limits_bps: Floats | None = None
    links: Links | None = None
    delay_s: Floats | None = None


class _State(NamedTuple):
    """The network at an instant, one row each."""

    rates_bps: Floats
    limits_bps: Floats
    links: Links
    delay_s: Floats

    def after(self, change: _Change) -> "_State":
        """Return the network after a change."""
        return _State(
            self.rates_bps if change.rates_bps is None else change.rates_bps,
            self.limits_bps if change.limits_bps is None else change.limits_bps,
            self.links if change.links is None else change.links,
            self.delay_s if change.delay_s is None else change.delay_s,
        )


_Event = tuple[float, Callable[[], _Change]]
"""An instant, in seconds since a collective's start, and what to call then."""


@dataclass(frozen=True, eq=False)
class Timing:
    """The decisions for a point's collectives from `start` on, one row of `decisions` each, and their predicted times.

    Methods with a parameter `read` use it where tunnels change by time: it holds the measured readings of the tunnels
    in the one collective of the plan; without it, the readings are predicted.
    """

    config: Scenario
    mode: str
    decisions: Decisions
    conditions: Conditions
    start: int = 0

    @property
    def chosen_by(self) -> Mode:
        """The mode's policy."""
        return self.config.mode(self.mode)

    @cached_property
    def workload(self) -> Workload:
        """The workload of every collective, or of the first round of jobs. Later rounds have the same flows."""
        return self.config.of_round(self.start).workload

    @property
    def _differs_by_round(self) -> bool:
        """Whether rounds have different messages, so that each needs a plan of its own."""
        return self.config.has_drawn_jobs and len(self.decisions.path) > 1

    def _each(self) -> Iterator[Self]:
        """Yield the plan of each collective."""
        return (self.row(row) for row in range(len(self.decisions.path)))

    @cached_property
    def chooser(self) -> Chooser:
        """The chooser of the mode's placements and paths."""
        return chooser_of(self.config, self.chosen_by, self.conditions)

    def rows(self, some: slice) -> Self:
        """Return the plan of a slice of the collectives."""
        return replace(self, decisions=self.decisions.rows(some), start=self.start + (some.start or 0))

    def row(self, row: int) -> Self:
        """Return the plan of one of the collectives."""
        return self.rows(slice(row, row + 1))

    def links(self) -> Links:
        """Return the links or ports that flows pass, as indices in order, [K, F, H]; -1: unused entry."""
        return links_by_flow(self.workload, self.decisions, self.conditions, start=self.start)

    def completion_s(self, read: Readings | None = None) -> Floats:
        """Predict the completion times, [K] seconds.

        If flows can share links or ports, all flows get their max-min fair shares; otherwise each has its links to
        itself. A round of jobs is complete when all jobs except background jobs are.
        """
        return self.with_jobs(read)[0]

    def with_jobs(self, read: Readings | None = None) -> tuple[Floats, "JobTimes | None"]:
        """Predict the completion times, [K] seconds, and those of the jobs, or None if there are no jobs."""
        spans = self.workload.jobs
        if not spans:
            return self._without_jobs_s(read), None
        if self._differs_by_round:
            by_round, by_job = zip(*(plan.with_jobs(read) for plan in self._each()), strict=True)
            return np.concatenate(by_round), JobTimes.joined(by_job)
        rounds, jobs = [], []
        step = max(1, _TIMES_AT_ONCE // len(self.workload.schedule.transfers))
        for first in range(0, len(self.decisions.path), step):
            arrives_s = self.rows(slice(first, first + step)).times(read).arrives_s
            rounds.append(round_s(spans, arrives_s))
            jobs.append(job_times(spans, arrives_s))
        return np.concatenate(rounds), JobTimes.joined(jobs)

    def _without_jobs_s(self, read: Readings | None) -> Floats:
        """Predict the completion times of a configuration without jobs, [K] seconds."""
        network = self._network()
        completion_s = _evaluator(self.workload).completion_s(network)
        for row, changed in self._changing(network, completion_s, read):
            completion_s[row] = changed.arrives_s.max()
        return completion_s

    def times(self, read: Readings | None = None) -> Times:
        """Predict when every transfer begins, leaves and arrives."""
        network = self._network()
        steady = _evaluator(self.workload).times(network)
        changing = dict(self._changing(network, steady.arrives_s.max(axis=0), read))
        if not changing:
            return steady
        actual = Times(steady.begins_s, steady.leaves_s, steady.arrives_s)  # without bottlenecks, which change as well
        for row, changed in changing.items():
            actual.begins_s[:, row] = changed.begins_s[:, 0]
            actual.leaves_s[:, row] = changed.leaves_s[:, 0]
            actual.arrives_s[:, row] = changed.arrives_s[:, 0]
        return actual

    # --- the network at the start of each collective

    def _network(self) -> Unshared | Shared:
        """Return the network of every collective at its start. Flows may share links there, or tunnels have limits; or
        the fabric's routing chooses the spines, because the rates in the decisions assume the default ones."""
        decisions, is_physical = self.decisions, self.config.fabric.grain == "physical"
        may_share = self.config.shared_links(self.mode) or decisions.limits_bps.size
        if may_share or (decisions.spreads and is_physical):
            return self._shared()
        return Unshared(decisions.alpha_s, decisions.beta_s)

    def _shared(self) -> Shared:
        """Return the network of every collective at its start with the resources that flows pass. These are links or
        ports, followed, if tunnels have limits, by one for each tunnel of each class."""
        decisions, links = self.decisions, self.links()
        rates_bps = self.conditions.shared_bps(self.start, len(decisions.path))
        if not decisions.limits_bps.size:
            return Shared(links, rates_bps, decisions.alpha_s, self._classes())
        begins = tunnels_of(self.conditions.fabric, self.workload, decisions.path)
        links = np.concatenate([links, begins[..., None]], axis=-1)
        return Shared(links, _capacity_bps(rates_bps, decisions.limits_bps), decisions.alpha_s)

    def _classes(self) -> fluid.Classes | None:
        """Return the traffic classes; None if the configuration has none."""
        if not self.config.classes:
            return None
        serving = self.config.class_links
        return fluid.Classes(
            **of_flows(self.config.classes, self.workload.dscp),
            serves=[link in serving for link in range(len(self.conditions.shared.all))],
        )

    # --- what changes while collectives run

    def _changing(
        self, network: Unshared | Shared, steady_s: Floats, read: Readings | None
    ) -> Iterator[tuple[int, Times]]:
        """Yield the row and the times of each collective during which its network changes.

        `steady_s` [K] are the completion times if `network`, that at each collective's start, stays as it is. A
        collective that cannot complete is not run further.
        """
        te, timed = self.config.te, self.conditions.timed
        changes = np.full(len(steady_s), False)
        if te.readings and self.decisions.limits_bps.size:
            changes |= steady_s > te.every
        if timed is not None:
            changes |= steady_s > timed.first_change_s(np.arange(self.start, self.start + len(steady_s)))
        rows = np.flatnonzero(changes & np.isfinite(steady_s))
        if not rows.size:
            return
        links, capacity_bps, delay_s, classes = self._shared() if isinstance(network, Unshared) else network
        changing = Shared(links[rows], capacity_bps[rows], delay_s[rows], classes)
        packet_bytes = 0 if timed is None else TCP_FRAMES.payload_bytes
        runs = _evaluator(self.workload).runs(changing, packet_bytes=packet_bytes, queued_at=self._queued_at())
        for row, run in zip(rows.tolist(), runs, strict=True):
            plan, rates_bps = self.row(row), capacity_bps[row : row + 1, : len(self.conditions.shared.all)]
            start = _State(rates_bps, plan.decisions.limits_bps, links[row : row + 1], delay_s[row : row + 1])
            plan._finish(run, start, read)
            yield row, run.times

    def _queued_at(self) -> Links | None:
        """Return the link or port in whose queue packets of each link, port and tunnel wait: those of a tunnel wait at
        the port where it begins."""
        if not self.decisions.limits_bps.size:
            return None
        links, begins = len(self.conditions.shared.all), tunnel_ports(self.conditions.fabric)
        classes = self.decisions.limits_bps.shape[1] // len(begins)
        return np.array([*range(links), *begins * classes], np.int32)

    def _finish(self, run: fluid.Run, start: _State, read: Readings | None) -> None:
        """Run the plan's one collective to its end, while its network changes; `start` is the one at its beginning."""
        timed, reroutes = self.conditions.timed, self.chosen_by.reroute.within_s is not None
        reallocates = bool(self.config.te.readings and self.decisions.limits_bps.size)
        if not reroutes and not reallocates and timed is not None:
            return self._follow(run, timed)
        sources = [] if timed is None else [self._rate_changes(timed)]
        sources += [self._path_changes(timed)] if reroutes and timed is not None else []
        sources += [self._limit_changes(run, read)] if reallocates else []
        events = _simultaneous(merge(*sources, key=lambda event: event[0]))
        now, last, is_over = start, list[Callable[[], _Change]](), False
        while not is_over:
            until_s, rows = [], []
            for at_s, following in islice(events, 1 if reallocates else _CHANGES_AT_ONCE // 2):
                for change in last:  # only now, because limits follow from what the run has sent by then
                    now = now.after(change())
                until_s.append(at_s)
                rows.append(now)
                last = following
            is_over = run.advance(
                np.array(until_s),
                capacity_bps=np.concatenate([_capacity_bps(row.rates_bps, row.limits_bps) for row in rows]),
                links=np.concatenate([row.links for row in rows]),
                delay_s=np.concatenate([row.delay_s for row in rows]),
            )
        return None

    def _follow(self, run: fluid.Run, timed: Timed) -> None:
        """Run the plan's one collective to its end where only conditions change."""
        known, until_s = 0, float(timed.first_change_s(np.array([self.start]))[0])
        more, is_over = _CHANGES_AT_ONCE, False
        while not is_over:
            at_s = until_s + np.arange(known, more, dtype=np.float64) * (timed.every_ns / 1e9)
            rates_bps = timed.rows_from_start(self.start, more)[known:]
            is_over = run.advance(at_s, capacity_bps=_capacity_bps(rates_bps, self.decisions.limits_bps))
            known, more = more, 2 * more

    def _rate_changes(self, timed: Timed) -> Iterator[_Event]:
        """Yield the changes of conditions during the plan's one collective."""
        until_s, every_s = float(timed.first_change_s(np.array([self.start]))[0]), timed.every_ns / 1e9
        for first in count(0, _CHANGES_AT_ONCE):
            rows = timed.rows_from_start(self.start, 1 + first + _CHANGES_AT_ONCE)[1 + first :]
            for change, rates_bps in enumerate(rows, first):
                yield until_s + change * every_s, partial(_Change, rates_bps=rates_bps[None])

    def _path_changes(self, timed: Timed) -> Iterator[_Event]:
        """Yield the changes of the flows' paths during the plan's one collective. A flow takes its new path when the
        controller's message has reached the switches of its sender's site."""
        decisions, conditions = self.decisions, self.conditions
        begins, _ = self.workload.schedule.ends
        control_s = np.array(self.config.control_delays_s or (0.0,) * len(conditions.fabric.gpus_per_site))
        waits_s = control_s[conditions.fabric.gpu_sites[decisions.placement[0, list(begins)]]]
        steps_s = np.unique(waits_s)  # after each change, flows move in steps, by the delay of the controller's message
        path = decisions.path
        for first in count(0, _CHANGES_AT_ONCE):
            changes, moved = self.moved_paths(range(first, first + _CHANGES_AT_ONCE))
            path = np.concatenate([path[-1:], moved])
            links, delay_s = self._over(path)
            for index, change in enumerate(changes):
                at_s = timed.change_ns(self.start, change) / 1e9
                for step_s in steps_s.tolist():
                    has_moved = waits_s <= step_s
                    now = np.where(has_moved[:, None], links[index + 1], links[index])
                    now_s = np.where(has_moved, delay_s[index + 1], delay_s[index])
                    yield at_s + step_s, partial(_Change, links=now[None], delay_s=now_s[None])

    def _over(self, path: npt.NDArray[np.int16]) -> tuple[Links, Floats]:
        """Return the links and delays of the flows of the plan's one collective over these paths [N, F]."""
        decisions, conditions = self.decisions, self.conditions
        placement = np.repeat(decisions.placement, len(path), axis=0)
        links = links_passed(self.workload, placement, path, conditions, start=self.start, spreads=decisions.spreads)
        rates_bps = np.repeat(conditions.rates_bps(self.start, 1), len(path), axis=0)
        return links, self.chooser.flows(placement, path, rates_bps)[0]

    def moved_paths(self, among: Iterable[int]) -> tuple[list[int], npt.NDArray[np.int16]]:
        """Return at which of the given changes of conditions the mode re-routes during the plan's one collective, and
        the paths that its flows then get, [changes, F]."""
        decisions, conditions, mode = self.decisions, self.conditions, self.chosen_by
        changes = [change for change in among if reacts(mode, conditions.changed(self.start, change))]
        if not changes:
            return [], decisions.path[:0]
        rates_bps = conditions.believed_within_bps(mode.knowledge, self.start, changes)
        placement = np.repeat(decisions.placement, len(changes), axis=0)
        return changes, self.chooser.paths(placement, rates_bps, chosen=True)

    def moves_within(self, completion_s: Floats) -> npt.NDArray[np.int64]:
        """Return how often the mode re-routes during each collective of these times, and how many of these choices
        change the paths in force, [K, 2]."""
        timed, counts = self.conditions.timed, np.zeros((len(completion_s), 2), dtype=np.int64)
        if timed is None or self.chosen_by.reroute.within_s is None:
            return counts
        for row, time_s in enumerate(completion_s.tolist()):
            plan = self.row(row)
            first_ns, step_ns = timed.change_ns(plan.start, 0), timed.every_ns
            changes = max(0, -((first_ns - round(time_s * 1e9)) // step_ns))
            _, moved = plan.moved_paths(range(changes))
            counts[row] = len(moved), path_changes(plan.decisions.path[0], moved)
        return counts

    def _limit_changes(self, run: fluid.Run, read: Readings | None) -> Iterator[_Event]:
        """Yield the readings of the tunnels during the plan's one collective; some of them change the tunnels' limits.

        Without `read`, what a reading finds is predicted: it is what `run` has sent until then.
        """
        te, decisions = self.config.te, self.decisions
        tunnels = tunnels_of(self.conditions.fabric, self.workload, decisions.path[0])  # pieces stay in their tunnels
        link = np.unique(tunnels[tunnels >= 0])
        sent = [np.zeros(link.size)]
        in_turn = [decisions] if read is None else [decisions, *self.replanned(read)]

        def at_reading(reading: int) -> _Change:
            change = reading // te.readings
            if read is None:
                bits = run.sent_bits
                sent.append(np.array([bits[tunnels == tunnel].sum() for tunnel in link]))
            if reading % te.readings:
                return _Change()
            if read is None:
                at_s = np.tile(te.sample_s * np.arange(1 + reading)[:, None], link.size)
                sent_bytes = np.rint(np.array(sent) / 8).astype(np.int64)
                seen = Readings(link=link, since_s=at_s, until_s=at_s, sent_bytes=sent_bytes)
                in_turn.extend(self.replanned(seen, in_turn))
            return _Change(limits_bps=in_turn[min(change, len(in_turn) - 1)].limits_bps)

        for reading in count(1):
            yield te.sample_s + (reading - 1) * te.sample_s, partial(at_reading, reading)

    def replanned(self, read: Readings, earlier: Sequence[Decisions] = ()) -> list[Decisions]:
        """Return the decisions after each change of tunnel rates during the plan's one collective, one row each.

        They follow from the readings of the tunnels while it ran. `earlier` are the decisions from the start of the
        collective on that exist already; they are left out of the result.
        """
        conditions, first, in_turn = self.conditions, self.decisions, list(earlier or [self.decisions])
        placement, known = first.placement, len(in_turn)
        rates_bps = conditions.rates_bps(self.start, 1)
        known_bps = conditions.believed(self.chosen_by.knowledge).rates_bps(self.start, 1)
        while True:
            last, change = in_turn[-1], len(in_turn)
            wanted_bps = measured_demands_within(
                conditions.fabric, self.workload, read, change, last.limits_bps[0], spec=self.config.te
            )
            if wanted_bps is None:
                return in_turn[known:]
            path, limits_bps = self.chooser.fixed(placement, known_bps, [wanted_bps], last.path[0].tolist())
            alpha_s, beta_s = self.chooser.flows(placement, path, rates_bps)
            in_turn.append(replace(first, path=path, alpha_s=alpha_s, beta_s=beta_s, limits_bps=limits_bps))


def path_changes(path: npt.NDArray[np.int16], moved: npt.NDArray[np.int16]) -> int:
    """Return how many of the paths `moved`, [changes, F], differ from those before them, the first ones from `path`."""
    return int((np.diff(np.concatenate([path[None], moved]), axis=0) != 0).any(axis=1).sum())


def round_s(spans: Sequence[JobSpan], arrives_s: Floats) -> Floats:
    """Return when the last non-background job ends, [K] seconds, given the arrivals of transfers, [T, K]."""
    spans = [span for span in spans if not span.is_background]
    ends_s = [arrives_s[span.transfers.start : span.transfers.stop].max(axis=0, initial=0.0) for span in spans]
    return np.max(ends_s, axis=0)  # type: ignore[no-any-return]


class JobTimes(NamedTuple):
    """The times of J jobs in K rounds, [K, J] each.

    `completion_s` is from a job's start to its last arrival; of a job of requests it is the percentile of the times to
    first token. The other two are the median of these times, and how many requests are served a second. They are NaN
    for other jobs, and None if no job has requests.
    """

    completion_s: Floats
    first_token_p50_s: Floats | None
    requests_per_s: Floats | None

    @classmethod
    def joined(cls, parts: Sequence["JobTimes"]) -> "JobTimes":
        """Return the times of the same jobs in rounds that follow each other."""
        completion_s, *others = zip(*parts, strict=True)
        return cls(np.concatenate(completion_s), *(None if one[0] is None else np.concatenate(one) for one in others))


def job_times(spans: Sequence[JobSpan], arrives_s: Floats) -> JobTimes:
    """Return the times of all jobs; arguments as `round_s`."""

    def of_job(span: JobSpan) -> tuple[Floats, ...]:
        own_s = arrives_s[span.transfers.start : span.transfers.stop] - span.start_s
        if span.first_tokens is not None:
            return served_times(span.first_tokens, own_s)
        if span.due_s:
            ends_s = np.stack([arrives_s[one.start : one.stop].max(axis=0) - span.start_s for one in span.collectives])
            mean_s: Floats = (ends_s - np.array(span.due_s)[:, None]).mean(axis=0)
            return mean_s, *(np.full(mean_s.shape, np.nan),) * 2
        latest_s: Floats = own_s.max(axis=0, initial=0.0)  # a draw of background traffic may have no message
        return latest_s, *(np.full(latest_s.shape, np.nan),) * 2

    serves = any(span.first_tokens is not None for span in spans)
    completion_s, *others = (np.stack(each, axis=1) for each in zip(*map(of_job, spans), strict=True))
    return JobTimes(completion_s, *(others if serves else (None, None)))


@lru_cache(maxsize=64)
def _evaluator(workload: Workload) -> Evaluator:
    """Return the evaluator of a workload's schedule."""
    schedule, slot_bytes = workload.schedule, workload.slot_bytes
    compile_ = partial(compiled, workload)
    return Evaluator(schedule.transfers, flows=len(schedule.flows), slot_bytes=slot_bytes, compiled=compile_)


def _capacity_bps(rates_bps: Floats, limits_bps: Floats) -> Floats:
    """Return the capacities of links and of tunnels [K, resources]: `rates_bps` [K, links] and `limits_bps` [K or 1,
    tunnels], where 0 stands for a tunnel without a limit; [0, 0] if there are no tunnels."""
    if not limits_bps.size:
        return rates_bps
    unlimited_bps = rates_bps.sum(axis=1)[:, None]
    return np.concatenate([rates_bps, np.where(limits_bps > 0, limits_bps, unlimited_bps)], axis=1)


def _simultaneous(events: Iterable[_Event]) -> Iterator[tuple[float, list[Callable[[], _Change]]]]:
    """Group events, in ascending order of time, that happen at the same time."""
    first_s, together = 0.0, list[Callable[[], _Change]]()
    for at_s, event in events:
        if together and at_s > first_s * (1 + _TIE):
            yield first_s, together
            together = []
        first_s = first_s if together else at_s
        together.append(event)
