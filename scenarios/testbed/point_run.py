"""The collectives of one point, a configuration in one mode: decisions before each, changes during it, learning after.

`Testbed` carries out what is decided here: it shapes links, connects agents, installs paths and runs collectives.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError
from controller.routing.wan_path_choice import NoPathError
from hosts.agent.transport import limits
from hosts.communicator import CollectiveError
from hosts.monitor import probe
from scenarios.policies.conditions import Conditions
from scenarios.policies.decide import probes_of, rank_order_of, ways_of
from scenarios.policies.decision_timelines import decision_times_of, new_timeline
from scenarios.policies.decision_times import DecisionTimeline, DecisionTimes
from scenarios.policies.knowledge import PROBED
from scenarios.policies.measured_knowledge import (
    Demands,
    counted_alone,
    is_observed,
    links_passed,
    measured_demands,
    measured_demands_within,
    ports_of,
    rates_from_counters,
    rates_from_messages,
    rates_from_probes,
    readings,
    tunnels_of,
    updated_rates,
)
from scenarios.policies.policy import NEVER, Mode
from scenarios.spec.faults import dead_cables
from scenarios.testbed.path_warmup import warm
from scenarios.testbed.port_watch import Counters, PortWatch
from scenarios.testbed.rate_changes import RateChanges
from scenarios.testbed.testbed import CollectiveRecord, Probe, Reconfiguration, Testbed
from topologies.mininet_network import netlink_of

_PROBE_PORTS = 31_000  # the first TCP port of probes: above agents' ports, below the kernel's ephemeral ports

Floats = npt.NDArray[np.float64]


class PointRun:
    """Runs the collectives of a testbed's configuration in one mode, in the order of their numbers."""

    def __init__(self, testbed: Testbed, mode: Mode) -> None:
        self.testbed, self._mode = testbed, mode
        self._config, self._fabric, self._conditions = testbed.config, testbed.fabric, testbed.conditions
        self._completed_placement: tuple[int, ...] = ()  # the placement of the last completed collective
        self._chosen_under: dict[int, Floats] = {}  # the rates under which paths were chosen, by collective
        # With measured knowledge: the number of the last collective, and its update of the rates believed before it.
        self._learnt: dict[int, Callable[[Floats], Floats]] = {}
        self._last_belief: tuple[Conditions, DecisionTimeline | None] | None = None  # of `_believed`
        # With measured demands: the demands seen in each collective.
        self._demands_seen: dict[int, Floats] = {}
        self._wanted_bps: Floats | None = None  # the demands of the next collective, for `Traffic.with_demands`
        self._demands = Demands(self._config.te.collectives, self._demands_seen.__getitem__)
        self._paths: list[tuple[int, ...]] = []  # of the current collective, first and after each change of tunnels

    def run(self, *, count: int) -> Iterator[CollectiveRecord]:
        """Run the first `count` collectives in order; raises the first failure."""
        for number in range(count):
            yield self.collective(number)

    def collective(
        self,
        number: int,
        *,
        attempt: int = 1,
        in_force: Sequence[int] = (),
        reroute: bool = False,
        on_start: Callable[[int], object] = lambda _: None,
        undisturbed: Callable[[], bool] = lambda: True,
    ) -> CollectiveRecord:
        """Run the collective of this number, after all earlier ones.

        `in_force` are the indices of the faults under which placement and paths are chosen. With `reroute` the
        controller chooses paths even if the mode would not re-route. A lost attempt changes nothing: the next `attempt`
        begins with the placement and paths of the collective before. While no controller is alive, no paths are chosen,
        and forwarding stays as it is. `on_start` and `undisturbed` are as for `Testbed.measure`. Raises CollectiveError
        if no placement exists or the collective fails, WrongDataError if it delivers wrong data, ControllerError and
        TcError.
        """
        self.testbed.tell(f"collective {number}: the shaping of the links")
        self.testbed.shape(number, in_force)
        self.testbed.faults_under[number] = self.testbed.faults(in_force)
        if attempt > 1:
            self.testbed.placement = self._completed_placement
        believed, timeline = self._believed()
        probed_ns, probes = None, tuple[tuple[int, ...], ...]()
        if self._conditions.are_probed(self._mode, number, 1, self._config.collective.reembed_every)[0]:
            probed_ns, probes = self._probe(number, anew=reroute or attempt > 1 or not self.testbed.placement)
        (rates_bps,) = believed.held(self._config.collectives_per_rates(self._mode)).rates_bps(number, 1)
        try:
            decision_times = decision_times_of(self._config, self._mode.name, number, 1, timeline=timeline)
        except NoPathError as error:  # too many cables are down
            raise CollectiveError(f"ring and paths cannot be chosen: {error}") from None
        change = self._reconfigure(number, rates_bps, decision_times, reroute=reroute, probed_ns=probed_ns)
        self.testbed.tell(f"collective {number}: the {'jobs' if self._config.jobs else self._config.collective.kind}")
        is_learnt = self._mode.knowledge.is_measured and is_observed(
            self._config.faults, self.testbed.faults_under[number], number
        )
        watch = self._counter_watch(rates_bps, of_ports=is_learnt)
        watching = nullcontext() if watch is None else watch
        moved = list[tuple[int, ...]]() if self._mode.reroute.within_s is not None else None
        if moved is not None and number == 0:
            self._fill_flow_tables(rates_bps)
        messages = 0

        def apply_change(index: int, rates_bps: Floats) -> None:
            nonlocal messages
            self.testbed.change(rates_bps)
            if moved is not None and self._conditions.reroutes_within(self._mode, number, index):
                (believed_bps,) = self._conditions.believed_within_bps(self._mode.knowledge, number, [index])
                messages += self._route(believed_bps, best=True)
                moved.append((index, *self.testbed.flow_paths()))

        with self._timed_changes(number, apply_change) as begin, watching:

            def started(start_ns: int) -> None:
                begin(start_ns)
                if watch is not None:
                    watch.begin(start_ns)
                on_start(start_ns)

            record = self.testbed.measure(
                number, change=change, faults=in_force, on_start=started, undisturbed=undisturbed
            )
            if watch is not None:
                watch.end()
        if self._last_belief is not None:
            self._last_belief = believed, timeline
        self._completed_placement, routed = self.testbed.placement, int(decision_times.routed[0])
        self._chosen_under = {at: rates for at, rates in self._chosen_under.items() if at == routed}
        if moved is not None:
            before = record.reconfigure_messages or 0
            record = replace(record, moved=tuple(moved), reconfigure_messages=before + messages)
        if watch is not None and self._config.measures_demands(self._mode):
            return self._learn_demands(record, watch)
        if self._mode.knowledge.kind == PROBED:
            return replace(record, probes=probes)
        if is_learnt:
            return self._learn_links(record, watch)
        return record if self._mode.measure_every_s is None else replace(record, counters=())

    def _fill_flow_tables(self, rates_bps: Floats) -> None:
        """Fill the kernel's flow tables for all paths, and for the connections while switches have routes.

        A switch matches more fields of a packet while it has routes, and the kernel then drops its flows with fewer
        fields. So new connections are made once all crossings have routes, none on the fixed paths; the kernel's flows
        of these connections stay.
        """
        self.testbed.apply_rules_together()
        elsewhere_bps = rates_bps.copy()
        elsewhere_bps[[link for paths in self._fabric.paths_between.values() if paths for link in paths[0].links]] = 1.0
        self._route(elsewhere_bps, best=True)
        self.testbed.settle()
        self.testbed.disconnect()
        self.testbed.connect()
        warm(self._fabric, range(len(self._fabric.gpus)))
        self._route(rates_bps, best=True)

    def _counter_watch(self, rates_bps: Floats, *, of_ports: bool) -> PortWatch | None:
        """Return the reader of counters during a collective: of tunnels if the mode measures demands, of ports if it
        measures links and `of_ports`, otherwise None.

        If demands are measured, tunnels get new rates after every `te.readings` readings (0: never), allocated under
        these rates of logical links; flows keep their tunnels.
        """
        every_s, every, self._paths = self._mode.measure_every_s, self._config.te.readings, [self.testbed.flow_paths()]
        if not self._config.measures_demands(self._mode):
            if every_s is None or not of_ports:
                return None
            return PortWatch(self._port_counters, every_s, lambda _: None)

        def reallocate(reading: int) -> None:
            if every and reading % every == 0 and self.testbed.controller.alive():
                self._wanted_bps = measured_demands_within(
                    self._fabric,
                    self._config.workload,
                    readings(self._counted(watch)),
                    reading // every,
                    self.testbed.limits_bps,
                    spec=self._config.te,
                )
                self._route(rates_bps, best=False, stay=True)
                self._paths.append(self.testbed.flow_paths())

        watch = PortWatch(self.testbed.tunnel_counters, self._config.te.sample_s, reallocate)
        return watch

    def _counted(self, watch: PortWatch) -> npt.NDArray[np.int64]:
        """Return the readings of the tunnels that flows used in this collective, as `CollectiveRecord.counters`."""
        path = np.array(self._paths)
        used = np.unique(tunnels_of(self._fabric, self._config.workload, path)[path >= 0]).tolist()
        rows = watch.rows({tunnel: [("", tunnel)] for tunnel in used}, control_s={})
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def _port_counters(self) -> Counters | None:
        """Read the counters of ports; None if a fault has killed the controller. Raises ControllerError."""
        try:
            return self.testbed.counters()
        except ControllerError:
            if any(fault.kind == "controller killed" for fault in self._config.faults):
                return None
            raise

    def _learn_demands(self, record: CollectiveRecord, watch: PortWatch) -> CollectiveRecord:
        """Store the demands seen in a collective; return its record with the counters of the tunnels that it used."""
        workload, sample_s = self._config.workload, self._config.te.sample_s
        rows = self._counted(watch)
        self._demands_seen[record.collective] = measured_demands(
            self._fabric, workload, readings(rows), sample_s=sample_s
        )
        return replace(record, counters=tuple(map(tuple, rows.tolist())), later=tuple(self._paths[1:]) or None)

    def _believed(self) -> tuple[Conditions, DecisionTimeline | None]:
        """Return the conditions that a mode believes in, from its own measurements, and its timeline, if it has one.

        Both are in the state after the last completed collective: a lost attempt does not change them.
        """
        has_timeline = self._config.has_timeline(self._mode.name)
        if not has_timeline and not self._mode.knowledge.is_measured:
            return self._conditions.believed(self._mode.knowledge), None
        if self._last_belief is None:
            believed = self._conditions.believed(self._mode.knowledge, self._believed_after)
            timeline = new_timeline(self._config, self._mode.name, believed) if has_timeline else None
            self._last_belief = believed, timeline
        believed, timeline = self._last_belief
        return believed, timeline and timeline.copy()

    def _believed_after(self, number: int, before_bps: Floats) -> Floats:
        """Return the believed rates after this collective or its probes; unchanged if it measured nothing."""
        return self._learnt[number](before_bps) if number in self._learnt else before_bps

    def _probe(self, number: int, *, anew: bool) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Probe the candidate paths of the present placement, and store the rates of links that the probes show.

        Returns the instant at which it began (CLOCK_MONOTONIC, ns) and the rows of `CollectiveRecord.probes`. Raises
        CollectiveError.
        """
        probes, size_bytes = self._probes(), self._config.control.probe_bytes
        if anew:  # otherwise the probes' rules were installed with the routes, and their windows with the connections
            if self._mode.reroutes:
                self.testbed.route_probes(self._conditions.known_bps(number, ()), probes)
                self.testbed.settle()
            segments = limits(self._config.transport, flow_bytes=size_bytes).initial_segments
            for src, dst in dict.fromkeys((src, dst) for src, dst, _, _ in probes):
                with netlink_of(self.testbed.network.host_pids[src]) as netlink:
                    ends = self._fabric.gpus[src].interface, self._fabric.gpus[dst].ip
                    netlink.set_route(*ends, initial_segments=segments)
        self.testbed.tell(f"collective {number}: the probes of paths")
        begun_ns = time.monotonic_ns()
        try:
            times_ns = probe(
                self._fabric,
                self.testbed.network.host_pids,
                [(src, dst, port) for src, dst, _, port in probes],
                size_bytes=size_bytes,
            )
        except OSError as error:
            raise CollectiveError(f"the probes before collective {number} failed: {error}") from None
        rows = [
            (src, dst, path, sent_ns - begun_ns, arrived_ns - begun_ns)
            for (src, dst, path, _), (sent_ns, arrived_ns) in zip(probes, times_ns, strict=True)
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        probed, took_s = table[:, :3].astype(np.int16), (table[:, 4] - table[:, 3]) / 1e9
        seen_bps = rates_from_probes(self._conditions, number, probed, took_s, size_bytes)
        self._learnt = {
            number: partial(updated_rates, PROBED, seen_bps=seen_bps, links=np.empty((0, 0), dtype=np.int32))
        }
        return begun_ns, tuple(rows)

    def _probes(self) -> list[Probe]:
        """Return the probes of the present placement: source, destination, path, and a TCP source port by path."""
        placement = np.array(self.testbed.placement or rank_order_of(self._fabric, self._config.workload))
        dead = dead_cables(next(reversed(self.testbed.faults_under.values()), ()), self._fabric)
        probes = probes_of(self._fabric, self._mode, self._config.workload, placement, dead).tolist()
        first = {pair: paths[0].index for pair, paths in self._fabric.paths_between.items() if paths}
        site = self._fabric.gpu_sites.tolist()
        return [(src, dst, path, _PROBE_PORTS + path - first[site[src], site[dst]]) for src, dst, path in probes]

    def _learn_links(self, record: CollectiveRecord, watch: PortWatch | None) -> CollectiveRecord:
        """Store the rates of links that a collective shows; return its record, with the counters if they were read."""
        (links,) = links_passed(
            self._config.workload,
            np.array([record.placement], dtype=np.int16),
            np.array([record.path], dtype=np.int16),
            self._conditions,
            start=record.collective,
            spreads=ways_of(self._fabric, self._mode) is not None,
        )
        if watch is None:
            sent_s, arrived_s = np.array(record.sent_ns) / 1e9, np.array(record.arrived_ns) / 1e9
            seen_bps = rates_from_messages(
                self._config.workload, links, self.testbed.delays_s, sent_s=sent_s, arrived_s=arrived_s
            )
        else:
            link = counted_alone(self._fabric, links)
            ports = {index: ports_of(self._fabric)[index] for index in link.tolist()}
            record = replace(record, counters=watch.rows(ports, control_s=self.testbed.control_delays_s))
            assert record.counters is not None
            rows, fair = np.array(record.counters, dtype=np.int64).reshape(-1, 4), self.testbed.fair_links is not None
            seen_bps = rates_from_counters(readings(rows), links=len(self.testbed.delays_s), fair=fair)
        self._learnt = {
            record.collective: partial(updated_rates, self._mode.knowledge.kind, seen_bps=seen_bps, links=links)
        }
        return record

    @contextmanager
    def _timed_changes(self, number: int, change: Callable[[int, Floats], object]) -> Iterator[Callable[[int], object]]:
        """Change conditions during a collective, if they change by time, by calls of `change` as in `RateChanges`.

        The context gives a function to call with the collective's beginning; changes end with the context.
        """
        timed = self._conditions.timed
        if timed is None:
            yield lambda _: None
            return
        changes = RateChanges(timed, number, change)
        try:
            yield changes.begin
        finally:
            changes.end()

    def _reconfigure(
        self,
        number: int,
        rates_bps: Floats,
        decision_times: DecisionTimes,
        *,
        reroute: bool,
        probed_ns: int | None,
    ) -> Reconfiguration:
        """Choose and connect the placement, and let the controller choose the paths, if the collective needs new ones.

        `probed_ns` is the beginning of the probes for these choices, if there were any: the time taken includes them.
        """
        reembeds, reroutes = bool(decision_times.embedded[0] == number), bool(decision_times.routed[0] == number)
        self.testbed.tell(f"collective {number}: the placement")
        begun_ns = time.monotonic_ns() if probed_ns is None else probed_ns
        embeds = reembeds or not self.testbed.placement
        if embeds:
            try:
                arranging = self._mode if reembeds else replace(self._mode, reembed=NEVER)
                self.testbed.placement = self.testbed.choose_placement(arranging, rates_bps, self._config.workload)
            except ValueError as error:  # too many cables are down
                raise CollectiveError(f"no placement can be chosen: {error}") from None
        self.testbed.connect()
        due = reroute or number == 0 or reembeds or reroutes or self.testbed.lacks_flow_paths(self._mode)
        due = due or (
            bool(self.testbed.tunnels) and not self._mode.reroutes and number % self._config.te.collectives == 0
        )
        routes = self.testbed.controller.alive() and due
        if routes:
            self.testbed.tell(f"collective {number}: the controller's paths")
        self._wanted_bps = self._demands(number) if self._config.measures_demands(self._mode) else None
        if reroutes:
            self._chosen_under[number] = rates_bps
        chosen_bps = self._chosen_under.get(int(decision_times.routed[0]))
        messages = 0
        if routes:
            best = chosen_bps is not None
            messages = self._route(rates_bps if chosen_bps is None else chosen_bps, best=best)
        if not embeds and not routes and probed_ns is None:
            return Reconfiguration()
        took_ns = time.monotonic_ns() - begun_ns
        return Reconfiguration(reembeds, reroutes and routes, took_ns, messages)

    def _route(self, rates_bps: Floats, *, best: bool, stay: bool = False) -> int:
        """Let the controller choose and install paths (`Testbed.route`), with the demands and probes of the mode."""
        probes = self._probes() if self._mode.knowledge.kind == PROBED and self._mode.reroutes else ()
        return self.testbed.route(
            self._mode, rates_bps, best=best, stay=stay, wanted_bps=self._wanted_bps, probes=probes
        )
