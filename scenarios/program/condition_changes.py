"""The conditions and the WAN paths of a program's run over time: when they change, and which paths are chosen then."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError
from controller.routing.wan_path_choice import Router
from scenarios.policies.beliefs import Noted
from scenarios.policies.busy_ports import BusyPorts
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import ways_of
from scenarios.policies.knowledge import ENDS, PORTS, PROBED
from scenarios.policies.measured_knowledge import rates_from_probes
from scenarios.policies.play import Given, Player, Timeline
from scenarios.policies.policy import Mode
from scenarios.policies.situation import NO_PATHS
from scenarios.program.tunnel_demands import TunnelDemands
from scenarios.spec.faults import CABLE_KINDS, Fault, active_at, dead_cables
from scenarios.spec.movement import Movement
from scenarios.spec.scenario import Scenario
from scenarios.spec.te import of_program
from scenarios.testbed import probing
from scenarios.testbed.testbed import Testbed
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, reachable
from topologies.fabric.ports import links_in_grain
from topologies.linux import make_timers_exact
from topologies.shaping.classes import classes_of

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


_NEVER_NS = 1 << 62


class Exchange:
    """The choices of a policy for a program (`situation.Choices`): the paths between every two GPUs in two sites.

    A choice is rated by the time of an exchange: every GPU sends each GPU of another site a message, all at once.
    """

    arrays = None  # `seconds` has its own formula

    def __init__(self, router: Router, message_bytes: int) -> None:
        sites = router.fabric.gpu_sites
        self._router, self._message_bytes = router, message_bytes
        self._src, self._dst = np.nonzero(sites[:, None] != sites)
        self.in_order: Ranks = np.arange(len(sites), dtype=np.int16)

    @property
    def fabric(self) -> Fabric:
        """The fabric of the paths."""
        return self._router.fabric

    @property
    def delays_s(self) -> Floats:
        """The delays of the logical links, [links] s."""
        return self._router.delays_s

    def crossings(self, placement: Ranks) -> dict[tuple[int, int], int]:
        """Return every two GPUs in two sites, with the index of their flow."""
        return {pair: flow for flow, pair in enumerate(zip(self._src.tolist(), self._dst.tolist(), strict=True))}

    def placed(self, ranks: Sequence[int]) -> Ranks:
        """Raise ValueError: the ranks of a program do not move."""
        raise ValueError("True or False for the placement, as the ranks of a program do not move")

    def routed(self, placement: Ranks, given: Mapping[tuple[int, int], int], rates_bps: Floats) -> Ranks:
        """Raise ValueError: the paths of a program cannot be given."""
        raise ValueError("True or False for the paths of a program")

    def placements(self, rates_bps: Floats) -> Ranks:
        """Return ranks in order, [K, n], as ranks do not move."""
        return np.tile(self.in_order, (len(rates_bps), 1))

    def paths(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> Ranks:
        """Return the path between every two GPUs in two sites, [K, F]: chosen under these rates, or the fixed one."""
        src, dst = (np.tile(ends, (len(rates_bps), 1)) for ends in (self._src, self._dst))
        if chosen:
            routes = self._router.choose_jointly(rates_bps, src, dst, chunk_bytes=self._message_bytes)
        else:
            routes = self._router.fixed(rates_bps, src, dst)
        return routes.path.astype(np.int16)

    def seconds(self, placement: Ranks, path: Ranks, rates_bps: Floats) -> Floats:
        """Return the time until the last message has arrived, [K] s; messages that share a link get equal parts."""
        times_s = self._router.shared_times_s(rates_bps, self._src, self._dst, path, chunk_bytes=self._message_bytes)
        latest_s: Floats = times_s.max(axis=1)
        return latest_s


class PortReadings:
    """Reads the counters and queues of the switches' ports while one row of conditions after the other is in force.

    A reading reaches the controller `delay_s` later, so the last ones of a row do not count, and none within it.
    """

    def __init__(self, testbed: Testbed, every_s: float, delay_s: float) -> None:
        self._testbed = testbed
        self._every_ns, self._delay_ns = round(every_s * 1e9), round(delay_s * 1e9)
        # A port by which a GPU sends is none of a switch's.
        names = {port.interface for switch in testbed.fabric.switches for port in switch.ports}
        self._classes = [htb for htb in classes_of(testbed.fabric) if htb.interface in names]
        self._interfaces = sorted({htb.interface for htb in self._classes})
        self._row, self._due_ns = BusyPorts(len(self._classes)), 0

    def read(self, now_ns: int, end_ns: int, *, reaches: bool) -> int:
        """Read if a reading is due; return when the next one is. `end_ns` is the end of the row, and `reaches` is
        whether there is a controller for the reading. Raises OSError."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns - now_ns % self._every_ns + self._every_ns
            if not reaches:
                self._row.interrupt()
            elif now_ns + self._delay_ns <= end_ns:
                self._read(now_ns)
        return self._due_ns

    def _read(self, now_ns: int) -> None:
        read = self._testbed.queues(self._interfaces)
        sent, queued = np.array([read[htb.key] for htb in self._classes], np.int64).T
        self._row.read(now_ns, sent, queued)

    def end_row(self, now_ns: int, *, reaches: bool) -> Floats:
        """Read for the last time in a row, whose rates are still in force; return the rates that its readings show,
        [links or ports] bit/s, NaN where they show none. Raises OSError."""
        if reaches and not self._delay_ns:
            self._read(now_ns)
        rates_bps = self._shown_bps()
        self._row, self._due_ns = BusyPorts(len(self._classes)), now_ns
        return rates_bps

    def within_row(self) -> Floats:
        """Return the rates that the readings of a row have shown so far, as `end_row` does."""
        return np.full_like(self._shown_bps(), np.nan) if self._delay_ns else self._shown_bps()

    def _shown_bps(self) -> Floats:
        rates_bps = np.full(len(links_in_grain(self._testbed.fabric).all), np.nan)
        for htb, rate in zip(self._classes, self._row.rates_bps(), strict=True):
            rates_bps[htb.link] = np.fmax(rates_bps[htb.link], rate)  # a link may leave by several spines
        return rates_bps


class ProgramTimeline:
    """Applies the conditions and the WAN paths of a program's run; `config` is from `rows.rows_as_collectives`.

    The constructor puts the first paths into force. `count` is how often a rate has changed since, `rerouted` how
    often a path has, and `messages` the number of OpenFlow messages in all. Faults in force are given to each method;
    with `routes` False there is no controller, and paths stay as they are. `seen_bps` are the rates that a mode with
    measured ports has seen in the row before, or a mode that probes before the ranks start, [links or ports] bit/s, NaN
    for none. If the controller is far from the switches, paths are installed in a thread, one change after the other,
    as rates and faults do not wait for it; `finish` waits for the last one. Raises the errors of `Failure`.
    """

    def __init__(self, testbed: Testbed, config: Scenario) -> None:
        self._testbed = testbed
        self._mode: Mode = config.mode(config.run.modes[0])
        every_s = config.conditions.every_s
        self._every_ns = None if every_s is None else round(every_s * 1e9)
        self._faults = [*config.faults]
        in_force = self._planned if config.faults else None
        self._loses_controller = any(fault.kind == "controller killed" for fault in config.faults)
        self._config = replace(config, faults=())  # of which collectives' decision times would depend
        self._conditions = conditions_of(self._config, in_force)
        self._noted = Noted(self._conditions.drawn)
        self._readings: PortReadings | None = None
        if self._mode.knowledge.kind == PORTS:
            assert self._mode.measure_every_s is not None
            delay_s = max(config.control_delays_s, default=0.0)
            self._readings = PortReadings(testbed, self._mode.measure_every_s, delay_s)
        if self._mode.knowledge.is_measured:
            self._believed = self._conditions.noting(self._noted)
        else:
            self._believed = self._conditions.believed(self._mode.knowledge)
        self._allocates = config.engineers(self._mode)
        self._te = config.te
        self._wanted_bps: Floats | None = None  # by the connections from site to site; None: all
        self._demands = TunnelDemands(testbed, of_program(config.te)) if config.measures_demands(self._mode) else None
        exchange = Exchange(Router(self._conditions.fabric, self._conditions.delays_s), config.program.message_bytes)
        self._timeline = Timeline(
            Player(self._mode, exchange, Given(self._believed), reembed_every=config.collective.reembed_every)
        )
        self._thread = ThreadPoolExecutor(1, initializer=make_timers_exact) if config.control_delays_s else None
        self._pending: list[Future[None]] = []  # changes of paths, in order
        self._given = dict[tuple[int, int], int]()  # the paths that collectives of the script have got
        self.is_directed = self._has_collectives = False
        self._row = self.count = self.rerouted = self.messages = 0
        self.seen_bps: Floats = np.empty(0)
        if self._mode.knowledge.kind == PROBED:
            self.seen_bps = self._probe()
            self._noted.note(self.seen_bps)
        self._drawn_bps = self.rates_bps = self._conditions.shaped_bps(0, ())
        self._dead = self._avoided = NO_CABLES  # the cables that are down now, and were when paths were chosen
        self._chosen_bps, self._best = self._believed.known_bps(0, ()), self._routed_row() == 0
        self._movement = None if config.conditions.moves is None else Movement(config)
        if self._movement is not None:
            self.is_directed, self._given = True, dict(self._movement.paths(0))
            testbed.move(self._movement.delays_s(0))
        self._install(self._chosen_bps, self._best, NO_CABLES, is_choice=False, given=self._given)
        testbed.settle()

    def _probe(self) -> Floats:
        """Probe all paths between the program's GPUs; return the rates that the probes show, [links or ports] bit/s,
        NaN where they show none. Raises OSError."""
        fabric, size_bytes = self._conditions.fabric, self._config.control.probe_bytes
        probes = probing.with_ports(fabric, self._config.program_probes.tolist())
        self._testbed.route_probes(self._conditions.known_bps(0, ()), probes)
        self._testbed.settle()
        probing.open_windows(self._testbed, probes, size_bytes)
        times_ns = probing.times_ns(self._testbed, probes, size_bytes)
        probing.open_windows(self._testbed, probes, None)
        sent = np.array(probes, dtype=np.int16)[:, :3] if probes else np.empty((0, 3), np.int16)
        return rates_from_probes(self._conditions, 0, sent, np.diff(times_ns)[:, 0] / 1e9, size_bytes)

    def connected(self) -> None:
        """Give the flows of jobs, whose connections now exist, the paths of the fabric's routing."""
        if ways_of(self._conditions.fabric, self._mode) is not None:
            self._install(self._chosen_bps, self._best, NO_CABLES, is_choice=False)
            self._testbed.settle()

    @property
    def changes_paths(self) -> bool:
        """Whether paths may change during the run: with the conditions, or before collectives of the script."""
        is_allocated_anew = self._allocates and (self._every_ns is not None or self._demands is not None)
        return self._mode.reroutes or is_allocated_anew

    @property
    def mean_bps(self) -> Floats:
        """The long-run mean rates of links or ports, [links or ports] bit/s."""
        return self._conditions.drawn.mean_bps

    @property
    def next_ns(self) -> int | None:
        """The instant of the next change of conditions, in ns since the ranks' start; None if there is none."""
        last = self._conditions.limit is not None and self._row + 1 >= self._conditions.limit
        return None if self._every_ns is None or last else (self._row + 1) * self._every_ns

    def read(self, now_ns: int, *, reaches: bool) -> int | None:
        """Read the counters of ports or tunnels if that is due, and have tunnels' rates computed if those are; return
        when it is due next, None for never. `reaches` is whether there is a controller for what is read. Raises
        OSError."""
        if self._demands is not None:
            if (wanted_bps := self._demands.read(now_ns)) is not None:
                self._wanted_bps, self._chosen_bps = wanted_bps, self._believed.known_bps(self._row, ())
                self._route(is_choice=True)
            return self._demands.next_ns
        if self._readings is None or (self.next_ns is None and not self._has_collectives):
            return None
        end_ns = _NEVER_NS if self.next_ns is None else self.next_ns
        return self._readings.read(now_ns, end_ns, reaches=reaches)

    def advance(self, now_ns: int, faults: Collection[Fault] = (), *, routes: bool = True) -> None:
        """Put the rates of an instant into force, and new paths if the mode chooses any under these rates."""
        assert self._every_ns is not None
        self._take_results()
        if self._readings is not None:
            self.seen_bps = self._readings.end_row(now_ns, reaches=routes)
            self._noted.note(self.seen_bps)
        before, self._row = self._row, now_ns // self._every_ns
        if self._conditions.limit is not None:
            self._row = min(self._row, self._conditions.limit - 1)
        drawn_bps = self._conditions.shaped_bps(self._row, ())
        self.count += bool((drawn_bps != self._drawn_bps).any())
        self._drawn_bps = drawn_bps
        self._shape(faults)
        if self._movement is not None:
            self._testbed.move(self._movement.delays_s(self._row))
            if routes and self._given != (paths := dict(self._movement.paths(self._row))):
                self._given = paths
                self._route(is_choice=True)
        computes = self._allocates and self._demands is None and self._row % self._te.collectives == 0
        if computes or (self._routed_row() > before and not self.is_directed):
            # Without what is down: the controller knows that by itself, and when it is up again.
            self._chosen_bps = self.believed_bps([fault for fault in faults if fault.kind not in CABLE_KINDS])
            self._best = True
            if routes:
                self._route(is_choice=True)

    def struck(self, faults: Collection[Fault], *, routes: bool, anew: bool) -> None:
        """Put the rates under these faults into force, after one has begun or ended.

        The controller moves traffic around failed cables by itself. Paths are installed again if it is a new one
        (`anew`), or if pairs of GPUs had none when they were chosen.
        """
        self._shape(faults)
        self._dead = dead_cables(faults, self._conditions.fabric)
        if anew and self.changes_paths:
            self._testbed.apply_rules_together()
        if routes and (anew or not self._avoided <= self._dead):
            self._route(is_choice=False)

    @property
    def is_routing(self) -> bool:
        """Whether a change of paths is under way."""
        self._take_results()
        return bool(self._pending)

    def believed_bps(self, faults: Collection[Fault]) -> Floats:
        """Return the rates of logical links that the policy believes now, under these faults; 0 for a failed link.

        A slow host is known without being measured only if all rates are.
        """
        is_measured = self._mode.knowledge.is_measured
        known = [fault for fault in faults if fault.kind in CABLE_KINDS or not is_measured]
        return self._believed.known_bps(self._row, known)

    def before_collective(self) -> Floats:
        """Learn what ports have shown until now, before a collective of the script is planned; return that, [links or
        ports] bit/s, NaN where they have shown nothing. From the first call on ports are read, also without rows."""
        self._has_collectives = True
        if self._readings is None:
            return np.empty(0)
        seen_bps = self._readings.within_row()
        self._noted.note(seen_bps)
        return seen_bps

    @property
    def learn(self) -> Callable[[Floats], None] | None:
        """What takes the rates that messages of the script have shown, [links or ports] bit/s, NaN where none; None for
        a mode without measured ends."""
        return self._noted.note if self._mode.knowledge.kind == ENDS else None

    @property
    def shared_delays_s(self) -> Floats:
        """The delays of links or ports, [links or ports] s."""
        return self._conditions.shared_delays_s

    def direct(self, paths: Mapping[tuple[int, int], int]) -> "Future[int] | None":
        """Have the controller put these pairs of GPUs on paths, by index, and leave the others as they are; None if
        they are on them. From the first call on, no paths are chosen by time.

        The future has the number of OpenFlow messages, or the error with which the controller has refused.
        """
        self.is_directed = True
        self._take_results()
        if all(self._given.get(pair) == path for pair, path in paths.items()):
            return None
        self._given |= paths
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, initializer=make_timers_exact)
        given = dict(self._given)

        def install() -> int:
            before = self.messages
            self._install(self._chosen_bps, self._best, self._avoided, is_choice=True, given=given)
            return self.messages - before

        return self._thread.submit(install)

    def _take_results(self) -> None:
        """Raise the error of a change of paths that has failed."""
        while self._pending and self._pending[0].done():
            self._pending.pop(0).result()

    def finish(self) -> None:
        """Wait until all changes of paths are over."""
        while self._pending:
            self._pending.pop(0).result()

    def _shape(self, faults: Collection[Fault]) -> None:
        self.rates_bps = self._conditions.shaped_bps(self._row, faults)
        self._testbed.change(self.rates_bps)

    def _route(self, *, is_choice: bool) -> None:
        """Have the controller install the chosen paths, except between GPUs that failed cables cut off from each other;
        `is_choice` is whether they were chosen anew."""
        self._avoided = self._dead if self._cuts_off(self._dead) else NO_CABLES
        given = dict(self._given)
        install = partial(self._install, self._chosen_bps, self._best, self._avoided, is_choice=is_choice, given=given)
        if self._thread is None:
            install()
        else:
            self._pending.append(self._thread.submit(install))

    def _install(
        self,
        chosen_bps: Floats,
        best: bool,
        avoided: Cables,
        *,
        is_choice: bool,
        given: Mapping[tuple[int, int], int] = NO_PATHS,
    ) -> None:
        try:
            messages = self._testbed.route_all(
                self._mode, chosen_bps, best=best, dead=avoided, given=given, wanted_bps=self._wanted_bps
            )
        except ControllerError:
            if not self._loses_controller or self._testbed.controller.alive():
                raise
            return  # a fault has killed it meanwhile: a new one will install the paths
        self.messages += messages
        self.rerouted += is_choice and messages > 0

    def begin(self, index: int, fault: Fault) -> None:
        """Note the times of a fault that waited for its mark, or for collectives: it is now this `fault`."""
        self._faults[index] = fault

    def _planned(self, row: int) -> Collection[Fault]:
        """Return the faults of which a rule knows at a row of conditions. Cables whose failure cuts GPUs off are left
        out: no choice avoids them."""
        in_force = active_at(self._faults, row * (self._every_ns or 0))
        if not self._cuts_off(dead_cables(in_force, self._conditions.fabric)):
            return in_force
        return [fault for fault in in_force if fault.kind not in CABLE_KINDS]

    def _cuts_off(self, dead: Cables) -> bool:
        """Return whether these failed cables leave a pair of GPUs without a path that it has otherwise."""
        fabric = self._conditions.fabric
        return bool(dead) and bool((reachable(fabric, dead) < reachable(fabric, NO_CABLES)).any())

    def _routed_row(self) -> int:
        """Return the row of conditions under which the paths in force were chosen, -1 for the fixed paths."""
        return int(self._timeline.moments(self._row, 1).routed[0])
