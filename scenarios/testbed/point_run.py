"""The collectives of one point, a configuration in one mode: decisions before each, changes during it, learning after.

`Testbed` carries out what is decided here: it shapes links, connects agents, installs paths and runs collectives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError
from controller.routing.wan_path_choice import NoPathError
from hosts.communicator import CollectiveError
from scenarios.policies.beliefs import Demands, Probed
from scenarios.policies.decide import probes_of, rank_order_of, ways_of
from scenarios.policies.knowledge import PROBED
from scenarios.policies.measured_knowledge import (
    counted_alone,
    links_passed,
    measured_demands_within,
    ports_of,
    tunnels_of,
)
from scenarios.policies.outcome import Readings, SkippedOutcome, readings
from scenarios.policies.play import World, play
from scenarios.policies.players import player_of
from scenarios.policies.policy import Mode
from scenarios.policies.rules import reacts
from scenarios.policies.situation import NO_PATHS, Action
from scenarios.spec.faults import dead_cables
from scenarios.testbed import probing
from scenarios.testbed.path_warmup import warm
from scenarios.testbed.port_watch import Counters, PortWatch
from scenarios.testbed.rate_changes import RateChanges
from scenarios.testbed.record import CollectiveRecord, Reconfiguration
from scenarios.testbed.testbed import Probe, Testbed

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredOutcome:
    """The outcome of a collective in the testbed, with its record. An `outcome.Outcome`; `readings` are empty if no
    counters were read."""

    number: int
    action: Action
    record: CollectiveRecord
    readings: Readings
    passed: Callable[[], npt.NDArray[np.int32]]

    @property
    def placement(self) -> npt.NDArray[np.int16]:
        """The rank at each place, [n]."""
        return np.array(self.record.placement, dtype=np.int16)

    @property
    def path(self) -> npt.NDArray[np.int16]:
        """The WAN path of each flow, [F]; -1 within a site."""
        return np.array(self.record.path, dtype=np.int16)

    @cached_property
    def links(self) -> npt.NDArray[np.int32]:
        """The links or ports that flows passed, [F, H]; -1 for unused entries."""
        return self.passed()

    @property
    def sent_s(self) -> Floats:
        """When each message was handed over, [T] s since the first rank began."""
        return np.array(self.record.sent_ns) / 1e9

    @property
    def arrived_s(self) -> Floats:
        """When each message had arrived, [T] s."""
        return np.array(self.record.arrived_ns) / 1e9


class Skipping:
    """A `play.World` that runs only some collectives in another one: those of `numbers`, and the one before each of
    them, which leaves the network and the agents as they are after it. The others are skipped: the policy decides
    before them, and faults take effect, by `skip`."""

    def __init__(
        self,
        world: World[MeasuredOutcome],
        numbers: range,
        skip: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._world, self._numbers, self._skip = world, numbers, skip

    def run(self, number: int, decide: Callable[[], Action]) -> MeasuredOutcome | SkippedOutcome:
        """As `play.World.run`."""
        if number in self._numbers or number + 1 in self._numbers:
            return self._world.run(number, decide)
        self._skip(number)
        return SkippedOutcome(number, decide())


class PointRun:
    """Runs the collectives of a testbed's configuration in one mode, in the order of their numbers. A `play.World`;
    `player` is the mode's policy."""

    def __init__(self, testbed: Testbed, mode: Mode) -> None:
        self.testbed, self._mode = testbed, mode
        self._config, self._fabric, self._conditions = testbed.config, testbed.fabric, testbed.conditions
        self.player = player_of(self._config, mode.name, self._conditions)
        self._completed_placement: tuple[int, ...] = ()  # the placement of the last completed collective
        self._last = -1  # the number of the last collective that ran
        self._demands = Demands(self._config, self._conditions) if self._config.measures_demands(mode) else None
        self._wanted_bps: Floats | None = None  # the demands of the next collective, for `Traffic.with_demands`
        self._paths: list[tuple[int, ...]] = []  # of the current collective, first and after each change of tunnels

    def records(self, numbers: range) -> Iterator[CollectiveRecord]:
        """Run these collectives in order; raises the first failure."""
        for outcome in play(Skipping(self, numbers), self.player, range(numbers[-1] + 1)):
            if isinstance(outcome, MeasuredOutcome) and outcome.number in numbers:
                yield outcome.record

    def run(self, number: int, decide: Callable[[], Action]) -> MeasuredOutcome:
        """As `play.World.run`, without faults; raises the errors of `collective`."""
        return self.collective(number, decide)

    def collective(
        self,
        number: int,
        decide: Callable[[], Action],
        *,
        attempt: int = 1,
        in_force: Sequence[int] = (),
        reroute: bool = False,
        on_start: Callable[[int], object] = lambda _: None,
        undisturbed: Callable[[int], bool] = lambda _: True,
    ) -> MeasuredOutcome:
        """Run the collective of this number, after all earlier ones, with what `decide` chooses before it.

        `in_force` are the indices of the faults under which placement and paths are chosen. With `reroute` the
        controller chooses paths even if the mode would not re-route. A lost attempt changes nothing: the next `attempt`
        begins with the placement and paths of the collective before. While no controller is alive, no paths are chosen,
        and forwarding stays as it is. `on_start` and `undisturbed` are as for `Testbed.measure`. Raises CollectiveError
        if no placement exists or the collective fails, WrongDataError if it delivers wrong data, ControllerError and
        TcError.
        """
        self.testbed.tell(f"collective {number}: the shaping of the links")
        self.testbed.shape(number, in_force)
        self.testbed.set_round(number)
        self.testbed.faults_under[number] = self.testbed.faults(in_force)
        if attempt > 1:
            self.testbed.placement = self._completed_placement
        probed_ns, probes = None, tuple[tuple[int, ...], ...]()
        if self._conditions.are_probed(self._mode, number, 1, self._config.collective.reembed_every)[0]:
            probed_ns, probes = self._probe(number, anew=reroute or attempt > 1 or not self.testbed.placement)
        rates_bps = self.player.belief.before(number)
        try:
            action = decide()
        except NoPathError as error:  # too many cables are down
            raise CollectiveError(f"ring and paths cannot be chosen: {error}") from None
        change = self._reconfigure(number, rates_bps, action, reroute=reroute, probed_ns=probed_ns)
        self.testbed.tell(f"collective {number}: the {'jobs' if self._config.jobs else self._config.collective.kind}")
        watch = self._counter_watch(rates_bps, of_ports=self.player.belief.observes(number))
        watching = nullcontext() if watch is None else watch
        moved = list[tuple[int, ...]]() if self._mode.reroute.within_s is not None else None
        if moved is not None and self._last < 0:
            self._fill_flow_tables(rates_bps)
        messages = 0

        def apply_change(index: int, rates_bps: Floats) -> None:
            nonlocal messages
            self.testbed.change(rates_bps)
            if moved is not None and reacts(self._mode, self._conditions.changed(number, index)):
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
        self._completed_placement, self._last = self.testbed.placement, number
        if moved is not None:
            before = record.reconfigure_messages or 0
            record = replace(record, moved=tuple(moved), reconfigure_messages=before + messages)
        if self._mode.knowledge.kind == PROBED:
            record = replace(record, probes=probes)
        outcome = self._outcome(action, record, watch)
        if self._demands is not None:
            self._demands.after(outcome)
        return outcome

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
        warm(self.testbed.share, range(len(self._fabric.gpus)))
        self._route(rates_bps, best=True)

    def _counter_watch(self, rates_bps: Floats, *, of_ports: bool) -> PortWatch | None:
        """Return the reader of counters during a collective: of tunnels if the mode measures demands, of ports if it
        measures links and `of_ports`, otherwise None.

        If demands are measured, tunnels get new rates after every `te.readings` readings (0: never), allocated under
        these rates of logical links; flows keep their tunnels.
        """
        every_s, every, self._paths = self._mode.measure_every_s, self._config.te.readings, [self.testbed.flow_paths()]
        if self._demands is None:
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

    def _outcome(self, action: Action, record: CollectiveRecord, watch: PortWatch | None) -> MeasuredOutcome:
        """Return the outcome of a collective, with the counters in its record if they were read."""

        @cache
        def links() -> npt.NDArray[np.int32]:
            (passed,) = links_passed(
                self._config.workload,
                np.array([record.placement], dtype=np.int16),
                np.array([record.path], dtype=np.int16),
                self._conditions,
                start=record.collective,
                spreads=ways_of(self._fabric, self._mode) is not None,
            )
            return passed  # type: ignore[no-any-return]

        rows = np.empty((0, 4), dtype=np.int64)
        if watch is not None and self._demands is not None:
            rows, later = self._counted(watch), tuple(self._paths[1:]) or None
            record = replace(record, counters=tuple(map(tuple, rows.tolist())), later=later)
        elif watch is not None:
            link = counted_alone(self._fabric, links())
            ports = {index: ports_of(self._fabric)[index] for index in link.tolist()}
            counters = watch.rows(ports, control_s=self.testbed.control_delays_s)
            rows, record = np.array(counters, dtype=np.int64).reshape(-1, 4), replace(record, counters=counters)
        elif self._mode.measure_every_s is not None:
            record = replace(record, counters=())
        return MeasuredOutcome(record.collective, action, record, readings(rows), links)

    def _probe(self, number: int, *, anew: bool) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Probe the candidate paths of the present placement, and store the rates of links that the probes show.

        Returns the instant at which it began (`Testbed.own_ns`) and the rows of `CollectiveRecord.probes`. Raises
        CollectiveError.
        """
        probes, size_bytes = self._probes(), self._config.control.probe_bytes
        if anew:  # otherwise the probes' rules were installed with the routes, and their windows with the connections
            if self._mode.reroutes:
                self.testbed.route_probes(self._conditions.known_bps(number, ()), probes)
                self.testbed.settle()
            probing.open_windows(self.testbed, probes, size_bytes)
        self.testbed.tell(f"collective {number}: the probes of paths")
        begun_ns = self.testbed.own_ns
        try:
            times_ns = probing.times_ns(self.testbed, probes, size_bytes).tolist()
        except OSError as error:
            raise CollectiveError(f"the probes before collective {number} failed: {error}") from None
        rows = [
            (src, dst, path, sent_ns - begun_ns, arrived_ns - begun_ns)
            for (src, dst, path, _), (sent_ns, arrived_ns) in zip(probes, times_ns, strict=True)
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        belief = self.player.belief
        assert isinstance(belief, Probed)
        belief.probed(number, table[:, :3].astype(np.int16), (table[:, 4] - table[:, 3]) / 1e9)
        return begun_ns, tuple(rows)

    def _probes(self) -> list[Probe]:
        """Return the probes of the present placement: source, destination, path, and a TCP source port by path."""
        placement = np.array(self.testbed.placement or rank_order_of(self._fabric, self._config.workload))
        dead = dead_cables(next(reversed(self.testbed.faults_under.values()), ()), self._fabric)
        probes = probes_of(self._fabric, self._mode, self._config.workload, placement, dead).tolist()
        return probing.with_ports(self._fabric, probes)

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
        action: Action,
        *,
        reroute: bool,
        probed_ns: int | None,
    ) -> Reconfiguration:
        """Choose and connect the placement, and let the controller choose the paths, if the collective needs new ones.

        `probed_ns` is the beginning of the probes for these choices (`Testbed.own_ns`), if there were any: the time
        taken includes them. It is without that for connections that recovery has closed after losses.
        """
        reembeds, reroutes = action.placement is not None, action.routing is not None
        placement, routing = self.player.in_force.after(action)
        self.testbed.tell(f"collective {number}: the placement")
        begun_ns = self.testbed.own_ns if probed_ns is None else probed_ns
        is_first = number != self._last + 1 or number == 0  # after collectives that were skipped, all is made anew
        embeds = reembeds or not self.testbed.placement or is_first
        if embeds:
            try:
                self.testbed.placement = tuple(placement.ranks.tolist())
            except ValueError as error:  # too many cables are down
                raise CollectiveError(f"no placement can be chosen: {error}") from None
        begun_ns += self.testbed.connect()
        due = reroute or is_first or reembeds or reroutes or self.testbed.lacks_flow_paths(self._mode)
        due = due or (
            bool(self.testbed.tunnels) and not self._mode.reroutes and number % self._config.te.collectives == 0
        )
        routes = self.testbed.controller.alive() and due
        if routes:
            self.testbed.tell(f"collective {number}: the controller's paths")
        self._wanted_bps = None if self._demands is None else self._demands.before(number)
        messages = 0
        if routes:
            if routing is None:
                messages = self._route(rates_bps, best=False)
            else:
                messages = self._route(routing.rates_bps, best=True, given=routing.given)
        if not embeds and not routes and probed_ns is None:
            return Reconfiguration()
        took_ns = self.testbed.own_ns - begun_ns
        return Reconfiguration(reembeds, reroutes and routes, took_ns, messages)

    def _route(
        self,
        rates_bps: Floats,
        *,
        best: bool,
        stay: bool = False,
        given: Mapping[tuple[int, int], int] = NO_PATHS,
    ) -> int:
        """Let the controller choose and install paths (`Testbed.route`), with the demands and probes of the mode."""
        probes = self._probes() if self._mode.knowledge.kind == PROBED and self._mode.reroutes else ()
        return self.testbed.route(
            self._mode, rates_bps, best=best, stay=stay, wanted_bps=self._wanted_bps, probes=probes, given=given
        )
