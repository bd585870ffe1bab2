"""The testbed of one point of an experiment: it starts network, controller and agents, and runs collectives.

It runs as root in the VM or on another platform (`Platform`), started by `scenarios.testbed.__main__`. As in an
experiment on real machines, the hosts choose the ring and the controller chooses the WAN paths. `recovery` handles
faults.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError
from controller.forwarding.flow_mods import tunnels_match
from controller.process import PORT, ControllerProcess
from controller.routing.traffic_engineering import Traffic
from controller.routing.wan_path_choice import NoPathError, Router
from hosts.agent.transport import (
    FairShareLimits,
    allow_overtaking,
    fair_share_limits,
    frame_segment_bytes,
    limits,
    set_queued_bytes,
)
from hosts.collectives.kinds import Workload
from hosts.communicator import CollectiveError, Communicator
from hosts.monitor import TimerLatency, probe, throughput_bps
from scenarios.policies.conditions import Conditions, conditions_of
from scenarios.policies.decide import (
    Chooser,
    channels,
    dscps_in_service_order,
    most_shared,
    probes_of,
    rank_order_of,
    spreads_over,
    traffic,
    ways_of,
)
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
from scenarios.spec.classes import services
from scenarios.spec.collective import CollectiveSpec, scaled_workload
from scenarios.spec.faults import Fault, dead_cables
from scenarios.spec.scenario import Scenario
from scenarios.spec.te import ROUTING
from scenarios.testbed import control_delay, snapshot
from scenarios.testbed.path_warmup import warm
from scenarios.testbed.platform import VIRTUAL, Platform, restored_settings
from scenarios.testbed.port_watch import Counters, PortWatch
from scenarios.testbed.rate_changes import RateChanges
from scenarios.vm import VMError, openvswitch
from scenarios.vm.openvswitch import waking_vswitchd
from topologies.errors import SpecError
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, cable
from topologies.fabric.ports import links_in_grain
from topologies.mininet_network import Network, inside, netlink_of
from topologies.mininet_nodes import NetworkError
from topologies.shaping.classes import SEGMENT_BYTES, Buffer, Shaping, Tunnel
from topologies.shaping.netlink import RtNetlink
from topologies.shaping.tc import DropCounter, Shaper, TcError

_READY_S = 60.0
_PROBE_PORTS = 31_000  # the first TCP port of probes: above agents' ports, below the kernel's ephemeral ports
NOTICED_S = 10.0  # the controller notices a failure in a fraction of a second, on a busy machine in a few seconds
_LOOK_AGAIN_S = 0.05
_FOLLOW_S = 0.0005
_IN_FORCE_S = 0.02  # until switches follow only the new rules: Open vSwitch revalidates its cache every 5 ms
_DEADLINE_S = 60.0

Floats = npt.NDArray[np.float64]
Failure = (VMError, NetworkError, ControllerError, TcError, CollectiveError, SpecError)
Event = Mapping[str, Any]
"""An event of a fault or of recovery; `analysis.statistics.fault_outcomes` lists the kinds and their fields."""


@dataclass(frozen=True)
class Reconfiguration:
    """The changes before a collective: whether the mode re-embedded and re-routed, and what that cost.

    `took_ns` is the time from the start of choosing the placement until the controller had installed the paths,
    `messages` the number of OpenFlow messages; both are None if neither a placement nor paths were chosen.
    """

    reembedded: bool = False
    rerouted: bool = False
    took_ns: int | None = None
    messages: int | None = None


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """The measurement of one collective. All times are in ns; optional fields are None if they were not measured.

    - `placement`: the rank at each position of the schedule.
    - `path`: for each flow the index in `Fabric.paths` of its WAN path, -1 within a site.
    - `reembedded`, `rerouted`, `reconfigure_*`: the `Reconfiguration` before it.
    - `start_ns[rank]`: the beginning of each rank; `sent_ns`, `arrived_ns`: by transfer of the schedule
      (`hosts.communicator.Completed`). All are since the first rank began.
    - `drops`: packets lost anywhere.
    - `retransmitted_bytes`: payload that TCP retransmitted, counted with fifo queues only.
    - `later`: the paths of all flows after each change of tunnels during the collective.
    - `counters`: rows of a link or port (index), the two instants between which its counter was read, since the
      collective's beginning, and the bytes that it had sent since the first reading.
    - `probes`: rows of source, destination, path, and the instants at which the probe was sent and had arrived, since
      the first was sent.
    - `moved`: rows of a change of conditions (from 0 on) at which paths were chosen, and the path of every flow, for
      modes that re-route during a collective; `reconfigure_messages` includes the messages for that.
    - `late`: whether timers were later than the shaping allows for.
    - `faults`: the indices of the faults in force when placement and paths were chosen.
    - `undisturbed`: whether nothing else happened to the collective, so that the model can predict it.
    """

    collective: int
    placement: tuple[int, ...]
    path: tuple[int, ...]
    reembedded: bool
    rerouted: bool
    reconfigure_ns: int | None
    reconfigure_messages: int | None
    start_ns: tuple[int, ...]
    sent_ns: tuple[int, ...]
    arrived_ns: tuple[int, ...]
    drops: int
    retransmitted_bytes: int | None = None
    later: tuple[tuple[int, ...], ...] | None = None
    counters: tuple[tuple[int, ...], ...] | None = None
    probes: tuple[tuple[int, ...], ...] | None = None
    moved: tuple[tuple[int, ...], ...] | None = None
    late: bool
    faults: tuple[int, ...]
    undisturbed: bool

    @property
    def completion_s(self) -> float:
        """The time from the first rank's beginning to the last arrival, in seconds."""
        return (max(self.arrived_ns) - min(self.start_ns)) / 1e9

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the testbed's output: `completion_s` and `reconfigure_s` in seconds, without None."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.reconfigure_ns is not None:
            fields["reconfigure_s"] = fields.pop("reconfigure_ns") / 1e9
        return fields | {"completion_s": self.completion_s}


_UNCHANGED = Reconfiguration()


class WrongDataError(CollectiveError):
    """Raised for a collective that delivered wrong bytes; it must not be repeated."""


class Testbed:
    """A context manager that starts everything a configuration needs (network, controller, agents), and stops it.

    `tell` is called with a few words before each step that may take long. `fair_links` are the names of the links or
    ports that flows may share; unless it is None, flows get fair shares. Without agents (`has_agents` False) there are
    no collectives, and the GPUs' hosts run a user's program. Raises the errors in `Failure`, each with a sentence as
    message, if a part does not start or fails later.

    `delays_s` are the delays of links or ports, [links or ports] s. New agents wait for each other for at most
    `deadline_s`. `placement` is the rank at each position of the schedule in the next collective: after setting it,
    call `connect` before the next collective, and `route` if it needs other paths. `keeps_fixed_paths` is whether
    packets in no tunnel stay on the fixed paths, because nothing fails; `set_fair_links` and `reshape` apply it.
    """

    def __init__(
        self,
        config: Scenario,
        *,
        platform: Platform = VIRTUAL,
        tell: Callable[[str], object] = lambda _: None,
        fair_links: Collection[str] | None = None,
        has_agents: bool = True,
    ) -> None:
        self.config, self.platform, self._tell = config, platform, tell
        self.fair_links, self._has_agents = fair_links, has_agents
        # Queues are fair and there are no faults, so nothing is lost. At the prompt faults may come, but a prompt has
        # no fair links at first.
        self._is_lossless = fair_links is not None and not config.faults
        self.keeps_fixed_paths = has_agents and not config.faults
        # By collective, the faults under which placement and paths were chosen, in its last attempt.
        self._faults_under: dict[int, tuple[Fault, ...]] = {}
        in_force = (lambda number: self._faults_under.get(number, ())) if config.faults else None
        self._conditions = conditions_of(config, in_force)
        self.fabric: Fabric = self._conditions.fabric
        self.delays_s = self._conditions.shared_delays_s
        self.deadline_s = _DEADLINE_S
        self._queued_bytes: int | None = None  # the kernel's limit of a flow's queued bytes, before it was changed
        self._crossing_paths: dict[tuple[int, int], int] = {}  # of each crossing in the controller's last reply
        self._spread_paths: dict[int, int] = {}  # if the fabric spreads flows: the path of each flow, by its index
        self._limits_bps: Floats | None = None  # the rates of tunnels by class, [classes * paths], if there are any
        self._rerouted = False  # since the last collective
        # With measured knowledge: the number of the last collective, and its update of the rates believed before it.
        self._learnt: dict[int, Callable[[Floats], Floats]] = {}
        self._last_belief: tuple[Conditions, DecisionTimeline | None] | None = None  # of `_believed`
        self._chosen_under: dict[int, Floats] = {}  # the rates under which paths were chosen, by collective
        # With measured demands: the demands seen in each collective.
        self._demands_seen: dict[int, Floats] = {}
        self._wanted_bps: Floats | None = None  # the demands of the next collective, for `Traffic.with_demands`
        self._demands = Demands(config.te.collectives, self._demands_seen.__getitem__)
        self._paths: list[tuple[int, ...]] = []  # of the current collective, first and after each change of tunnels
        self._shaping_lock = threading.Lock()
        self.placement: tuple[int, ...] = ()
        self._completed_placement: tuple[int, ...] = ()  # the placement of the last completed collective
        self._connected: tuple[int, ...] = ()  # the placement whose connections exist
        self._retransmitted_before = 0  # retransmitted bytes over those connections before the next collective
        self._stack = ExitStack()

    def __enter__(self) -> "Testbed":
        with ExitStack() as stack:
            if self.platform.own_openvswitch:
                self._tell("Open vSwitch")
                if openvswitch.up():
                    stack.callback(openvswitch.down)
            else:
                stack.enter_context(restored_settings())
            # The controller imports its modules while the switches are made, which try to connect until it listens.
            delays_s = self.config.control_delays_s
            if delays_s:
                stack.enter_context(control_delay.delayed(control_delay.delays_s(delays_s)))
            self.controller_at = control_delay.addresses(self.fabric) if delays_s else {}
            listen = "0.0.0.0" if delays_s else None  # noqa: S104  (the VM has only loopback)
            self.controller = stack.enter_context(
                ControllerProcess(self.config.fabric, self.platform.folder, listen=listen)
            )
            self._tell(f"{len(self.fabric.gpus)} hosts and {len(self.fabric.switches)} switches")
            self.network = stack.enter_context(
                Network(self.fabric, controller_port=PORT, controller_at=self.controller_at)
            )
            self._tell("the shaping of the links")
            self._shaper = self._shape(self._conditions.shaped_bps(0, ()))
            stack.callback(self._unshape)
            self._tell("the controller and its rules")
            self._controller = stack.enter_context(self.controller.client())
            self._wait_ready()
            if self._has_agents:
                self._tell("the agents")
                self._communicator = self._start_agents()
                stack.callback(self._close_agents)
            else:
                self.set_queues()
            self._drops = DropCounter(self.network.host_pids)
            stack.callback(self._drops.close)
            self._timer_latency = stack.enter_context(TimerLatency()) if self.platform.is_real else None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _shape(self, rates_bps: Floats) -> Shaper:
        """Shape the links with these rates and the present delays."""
        transport = self.config.transport
        size, by_path = transport.buffer_bytes, self.keeps_fixed_paths and self.fair_links is not None
        shaping = Shaping(
            fabric=self.fabric,
            delays_s=self._router.delays_s,
            late_s=self.platform.late_s,
            fair=self.fair_links is not None,
            services=() if self.fair_links is None or self._tunnels else services(self.config.classes),
            tunnels=self._tunnels,
            buffer=None
            if size is None
            else Buffer(limit_bytes=size, ecn_threshold_bytes=transport.ecn_threshold_bytes),
            wan_loss=transport.wan_loss,
            seed=self.config.run.seed,
            paths=tuple(tunnels_match(path.index, left=True) for path in self.fabric.paths) if by_path else (),
            segment_bytes=0 if self.fair_links is None else self._windows(self.fair_links).segment_bytes,
        )
        self._rates_bps = rates_bps
        return Shaper(shaping, self.platform.scale.rates_bps(self._rates_with_tunnels_bps), self.network.host_pids)

    @property
    def _tunnels(self) -> tuple[Tunnel, ...]:
        """The rate-limited tunnels, one for each class (in service order) and path; empty without the routing te, and
        without fair queues."""
        if self.config.fabric.routing != ROUTING or self.fair_links is None:
            return ()
        ports = {link.name: link.index for link in links_in_grain(self.fabric).all}
        first = [ports[self.fabric.links[path.links[0]].name] for path in self.fabric.paths]
        return tuple(
            Tunnel(link=first[path.index], match=f"{tunnels_match(path.index)} match ip tos {4 * dscp:#04x} 0xfc")
            for dscp in dscps_in_service_order(self.config.workload)
            for path in self.fabric.paths
        )

    @property
    def _rates_with_tunnels_bps(self) -> Floats:
        """The rates of links or ports, followed by those of tunnels.

        A tunnel that no flow uses has its port's rate, so that it sends the packets that flows left in its queue.
        """
        if not self._tunnels:
            return self._rates_bps
        whole_bps = self._rates_bps[[tunnel.link for tunnel in self._tunnels]]
        limits_bps = 0.0 if self._limits_bps is None else self._limits_bps
        return np.append(self._rates_bps, np.where(limits_bps > 0, limits_bps, whole_bps))

    def _unshape(self) -> None:
        self._shaper.close()

    def _close_agents(self) -> None:
        self._communicator.close()

    def _start_agents(self, *, epoch: int = 0) -> Communicator:
        """Start the agents; `epoch` is the last epoch of the previous agents."""
        self.set_queues()
        deadline_s = self.deadline_s
        if self.config.transport.buffer_bytes is not None:
            # Long enough for a message whose every frame is lost and retransmitted after a timeout.
            frames = self.config.carried_workload.largest_message_bytes / frame_segment_bytes()
            deadline_s += self.config.transport.rto_min_s * frames
        return Communicator(
            self.fabric,
            host_pids=self.network.host_pids,
            workload=scaled_workload(self.config.workload, self.platform.scale),
            transport=self.config.transport,
            deadline_s=deadline_s,
            lead_s=self.platform.lead_s,
            epoch=epoch,
            fastest_bps=self._fastest_bps if self._has_own_segments else None,
        )

    @property
    def _has_own_segments(self) -> bool:
        """Whether each connection's segment size follows from its own messages, instead of the largest of all.

        It does not if a class or a tunnel has only a part of a port's rate: it would lose the time that it waits for
        longer segments of others. Nor does it if rates change by time.
        """
        has_parts = bool(self._tunnels) or any(entry.share or entry.ceiling < 1 for entry in self.config.classes)
        return self.fair_links is not None and not has_parts and self._conditions.timed is None

    @property
    def _fastest_bps(self) -> float:
        """The rate of the fastest link in the first collective."""
        return float(self._conditions.shaped_bps(0, ()).max())

    def set_queues(self) -> None:
        """Set TCP's queue limits and segment sizes as the links' queues need them."""
        if self.fair_links is not None:
            self._set_windows(self._windows(self.fair_links))
        elif self._queued_bytes is not None:  # restore the limits from before fair sharing
            self._set_windows(FairShareLimits(segment_bytes=SEGMENT_BYTES, queued_bytes=self._queued_bytes))
        if self._is_lossless:
            for pid in self.network.host_pids:
                with inside(pid):
                    allow_overtaking()
        if self.config.transport.buffer_bytes is not None:
            self._set_segments(frame_segment_bytes())

    def _windows(self, shared: Collection[str]) -> FairShareLimits:
        """Return windows with which connections queue so little that flows get fair shares."""
        return fair_share_limits(
            message_bytes=self.config.carried_workload.largest_message_bytes,
            shared_links=most_shared(self.fabric, shared),
            fastest_bps=self._fastest_bps,
            steady=self._conditions.timed is None,
        )

    def _set_windows(self, windows: FairShareLimits) -> None:
        self._set_segments(windows.segment_bytes)
        for pid in self.network.host_pids:
            with inside(pid):
                before = set_queued_bytes(windows.queued_bytes)
            self._queued_bytes = self._queued_bytes or before

    def _set_segments(self, segment_bytes: int) -> None:
        """Let TCP make segments of up to this size."""
        for gpu, pid in zip(self.fabric.gpus, self.network.host_pids, strict=True):
            with inside(pid), closing(RtNetlink()) as netlink:
                netlink.set_segment_bytes(gpu.interface, segment_bytes)

    @property
    def _control_delays_s(self) -> Mapping[str, float]:
        """The one-way delay from the controller to each switch, in seconds; empty if there is none."""
        of_sites = self.config.control_delays_s
        by_address = control_delay.delays_s(of_sites) if of_sites else {}
        return {switch: by_address[address] for switch, address in self.controller_at.items()}

    @property
    def _router(self) -> Router:
        return Router(self.fabric, links_in_grain(self.fabric).delays_s(self.delays_s))

    def snapshot(self) -> dict[str, object]:
        """Take a snapshot of the machine (`snapshot.take`)."""
        return snapshot.take(self.network.host_pids[0])

    def run(self, mode: Mode, *, count: int) -> Iterator[CollectiveRecord]:
        """Run the first `count` collectives of the configuration in one mode, in order; raises the first failure."""
        for number in range(count):
            yield self.collective(mode, number)

    def collective(
        self,
        mode: Mode,
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
        and forwarding stays as it is. `on_start` and `undisturbed` are as for `measure`. Raises CollectiveError if no
        placement exists or the collective fails, WrongDataError if it delivers wrong data, ControllerError and TcError.
        """
        self._tell(f"collective {number}: the shaping of the links")
        self.shape(number, in_force)
        self._faults_under[number] = self._faults(in_force)
        if attempt > 1:
            self.placement = self._completed_placement
        believed, timeline = self._believed(mode)
        probed_ns, probes = None, tuple[tuple[int, ...], ...]()
        if self._conditions.are_probed(mode, number, 1, self.config.collective.reembed_every)[0]:
            probed_ns, probes = self._probe(mode, number, anew=reroute or attempt > 1 or not self.placement)
        (rates_bps,) = believed.held(self.config.collectives_per_rates(mode)).rates_bps(number, 1)
        try:
            decision_times = decision_times_of(self.config, mode.name, number, 1, timeline=timeline)
        except NoPathError as error:  # too many cables are down
            raise CollectiveError(f"ring and paths cannot be chosen: {error}") from None
        change = self._reconfigure(mode, number, rates_bps, decision_times, reroute=reroute, probed_ns=probed_ns)
        self._tell(f"collective {number}: the {'jobs' if self.config.jobs else self.config.collective.kind}")
        is_learnt = mode.knowledge.is_measured and is_observed(self.config.faults, self._faults_under[number], number)
        watch = self._counter_watch(mode, rates_bps, of_ports=is_learnt)
        watching = nullcontext() if watch is None else watch
        moved = list[tuple[int, ...]]() if mode.reroute.within_s is not None else None
        if moved is not None and number == 0:
            self._fill_flow_tables(mode, rates_bps)
        messages = 0

        def apply_change(index: int, rates_bps: Floats) -> None:
            nonlocal messages
            self.change(rates_bps)
            if moved is not None and self._conditions.reroutes_within(mode, number, index):
                (believed_bps,) = self._conditions.believed_within_bps(mode.knowledge, number, [index])
                messages += self.route(mode, believed_bps, best=True)
                moved.append((index, *self._flow_paths()))

        with self._timed_changes(number, apply_change) as begin, watching:

            def started(start_ns: int) -> None:
                begin(start_ns)
                if watch is not None:
                    watch.begin(start_ns)
                on_start(start_ns)

            record = self.measure(number, change=change, faults=in_force, on_start=started, undisturbed=undisturbed)
            if watch is not None:
                watch.end()
        if self._last_belief is not None:
            self._last_belief = believed, timeline
        self._completed_placement, routed = self.placement, int(decision_times.routed[0])
        self._chosen_under = {at: rates for at, rates in self._chosen_under.items() if at == routed}
        if moved is not None:
            before = record.reconfigure_messages or 0
            record = replace(record, moved=tuple(moved), reconfigure_messages=before + messages)
        if watch is not None and self.config.measures_demands(mode):
            return self._learn_demands(record, watch)
        if mode.knowledge.kind == PROBED:
            return replace(record, probes=probes)
        if is_learnt:
            return self._learn_links(mode, record, watch)
        return record if mode.measure_every_s is None else replace(record, counters=())

    def _fill_flow_tables(self, mode: Mode, rates_bps: Floats) -> None:
        """Fill the kernel's flow tables for all paths, and for the connections while switches have routes.

        A switch matches more fields of a packet while it has routes, and the kernel then drops its flows with fewer
        fields. So new connections are made once all crossings have routes, none on the fixed paths; the kernel's flows
        of these connections stay.
        """
        self.apply_rules_together()
        elsewhere_bps = rates_bps.copy()
        elsewhere_bps[[link for paths in self.fabric.paths_between.values() for link in paths[0].links]] = 1.0
        self.route(mode, elsewhere_bps, best=True)
        self.settle()
        self.disconnect()
        self.connect()
        warm(self.fabric, range(len(self.fabric.gpus)))
        self.route(mode, rates_bps, best=True)

    def _counter_watch(self, mode: Mode, rates_bps: Floats, *, of_ports: bool) -> PortWatch | None:
        """Return the reader of counters during a collective: of tunnels if the mode measures demands, of ports if it
        measures links and `of_ports`, otherwise None.

        If demands are measured, tunnels get new rates after every `te.readings` readings (0: never), allocated under
        these rates of logical links; flows keep their tunnels.
        """
        every_s, every, self._paths = mode.measure_every_s, self.config.te.readings, [self._flow_paths()]
        if not self.config.measures_demands(mode):
            if every_s is None or not of_ports:
                return None
            return PortWatch(self._port_counters, every_s, lambda _: None)

        def reallocate(reading: int) -> None:
            if every and reading % every == 0 and self.controller.alive():
                fabric, workload, read = self.fabric, self.config.workload, readings(self._counted(watch))
                limits_bps = np.zeros(0) if self._limits_bps is None else self._limits_bps
                self._wanted_bps = measured_demands_within(
                    fabric, workload, read, reading // every, limits_bps, spec=self.config.te
                )
                self.route(mode, rates_bps, best=False, stay=True)
                self._paths.append(self._flow_paths())

        watch = PortWatch(self._tunnel_counters, self.config.te.sample_s, reallocate)
        return watch

    def _counted(self, watch: PortWatch) -> npt.NDArray[np.int64]:
        """Return the readings of the tunnels that flows used in this collective, as `CollectiveRecord.counters`."""
        path = np.array(self._paths)
        used = np.unique(tunnels_of(self.fabric, self.config.workload, path)[path >= 0]).tolist()
        rows = watch.rows({tunnel: [("", tunnel)] for tunnel in used}, control_s={})
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def _port_counters(self) -> Counters | None:
        """Read the counters of ports; None if a fault has killed the controller. Raises ControllerError."""
        try:
            return self._controller.counters()
        except ControllerError:
            if any(fault.kind == "controller killed" for fault in self.config.faults):
                return None
            raise

    def _tunnel_counters(self) -> Counters:
        """Read the counters of tunnels."""
        now_ns, sent = time.monotonic_ns(), self._shaper.tunnel_bytes()
        return {"": (now_ns, time.monotonic_ns(), sent)}

    def _learn_demands(self, record: CollectiveRecord, watch: PortWatch) -> CollectiveRecord:
        """Store the demands seen in a collective; return its record with the counters of the tunnels that it used."""
        workload, sample_s = self.config.workload, self.config.te.sample_s
        rows = self._counted(watch)
        self._demands_seen[record.collective] = measured_demands(
            self.fabric, workload, readings(rows), sample_s=sample_s
        )
        return replace(record, counters=tuple(map(tuple, rows.tolist())), later=tuple(self._paths[1:]) or None)

    def _believed(self, mode: Mode) -> tuple[Conditions, DecisionTimeline | None]:
        """Return the conditions that a mode believes in, from its own measurements, and its timeline, if it has one.

        Both are in the state after the last completed collective: a lost attempt does not change them.
        """
        has_timeline = self.config.has_timeline(mode.name)
        if not has_timeline and not mode.knowledge.is_measured:
            return self._conditions.believed(mode.knowledge), None
        if self._last_belief is None:
            believed = self._conditions.believed(mode.knowledge, self._believed_after)
            self._last_belief = believed, new_timeline(self.config, mode.name, believed) if has_timeline else None
        believed, timeline = self._last_belief
        return believed, timeline and timeline.copy()

    def _believed_after(self, number: int, before_bps: Floats) -> Floats:
        """Return the believed rates after this collective or its probes; unchanged if it measured nothing."""
        return self._learnt[number](before_bps) if number in self._learnt else before_bps

    def _probe(self, mode: Mode, number: int, *, anew: bool) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Probe the candidate paths of the present placement, and store the rates of links that the probes show.

        Returns the instant at which it began (CLOCK_MONOTONIC, ns) and the rows of `CollectiveRecord.probes`. Raises
        CollectiveError.
        """
        probes, size_bytes = self._probes(mode), self.config.control.probe_bytes
        if anew:  # otherwise the probes' rules were installed with the routes, and their windows with the connections
            if mode.reroutes:
                self._route([], self._conditions.known_bps(number, ()), best=False, flows={}, mode=mode)
                self.settle()
            segments = limits(self.config.transport, flow_bytes=size_bytes).initial_segments
            for src, dst in dict.fromkeys((src, dst) for src, dst, _, _ in probes):
                with netlink_of(self.network.host_pids[src]) as netlink:
                    ends = self.fabric.gpus[src].interface, self.fabric.gpus[dst].ip
                    netlink.set_route(*ends, initial_segments=segments)
        self._tell(f"collective {number}: the probes of paths")
        begun_ns = time.monotonic_ns()
        try:
            times_ns = probe(
                self.fabric,
                self.network.host_pids,
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

    def _probes(self, mode: Mode) -> list[tuple[int, int, int, int]]:
        """Return the probes of the present placement: source, destination, path, and a TCP source port by path."""
        placement = np.array(self.placement or rank_order_of(self.fabric, self.config.workload))
        dead = dead_cables(next(reversed(self._faults_under.values()), ()), self.fabric)
        probes = probes_of(self.fabric, mode, self.config.workload, placement, dead).tolist()
        first = {pair: paths[0].index for pair, paths in self.fabric.paths_between.items() if paths}
        site = self.fabric.gpu_sites.tolist()
        return [(src, dst, path, _PROBE_PORTS + path - first[site[src], site[dst]]) for src, dst, path in probes]

    def _learn_links(self, mode: Mode, record: CollectiveRecord, watch: PortWatch | None) -> CollectiveRecord:
        """Store the rates of links that a collective shows; return its record, with the counters if they were read."""
        (links,) = links_passed(
            self.config.workload,
            np.array([record.placement], dtype=np.int16),
            np.array([record.path], dtype=np.int16),
            self._conditions,
            start=record.collective,
            spreads=ways_of(self.fabric, mode) is not None,
        )
        if watch is None:
            sent_s, arrived_s = np.array(record.sent_ns) / 1e9, np.array(record.arrived_ns) / 1e9
            seen_bps = rates_from_messages(
                self.config.workload, links, self.delays_s, sent_s=sent_s, arrived_s=arrived_s
            )
        else:
            link = counted_alone(self.fabric, links)
            ports = {index: ports_of(self.fabric)[index] for index in link.tolist()}
            record = replace(record, counters=watch.rows(ports, control_s=self._control_delays_s))
            assert record.counters is not None
            rows, fair = np.array(record.counters, dtype=np.int64).reshape(-1, 4), self.fair_links is not None
            seen_bps = rates_from_counters(readings(rows), links=len(self.delays_s), fair=fair)
        self._learnt = {record.collective: partial(updated_rates, mode.knowledge.kind, seen_bps=seen_bps, links=links)}
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
        mode: Mode,
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
        self._tell(f"collective {number}: the placement")
        begun_ns = time.monotonic_ns() if probed_ns is None else probed_ns
        embeds = reembeds or not self.placement
        if embeds:
            try:
                arranging = mode if reembeds else replace(mode, reembed=NEVER)
                self.placement = self.choose_placement(arranging, rates_bps, self.config.workload)
            except ValueError as error:  # too many cables are down
                raise CollectiveError(f"no placement can be chosen: {error}") from None
        self.connect()
        due = reroute or number == 0 or reembeds or reroutes or self.lacks_flow_paths(mode)
        due = due or (bool(self._tunnels) and not mode.reroutes and number % self.config.te.collectives == 0)
        routes = self.controller.alive() and due
        if routes:
            self._tell(f"collective {number}: the controller's paths")
        self._wanted_bps = self._demands(number) if self.config.measures_demands(mode) else None
        if reroutes:
            self._chosen_under[number] = rates_bps
        chosen_bps = self._chosen_under.get(int(decision_times.routed[0]))
        messages = 0
        if routes:
            best = chosen_bps is not None
            messages = self.route(mode, rates_bps if chosen_bps is None else chosen_bps, best=best)
        if not embeds and not routes and probed_ns is None:
            return _UNCHANGED
        took_ns = time.monotonic_ns() - begun_ns
        return Reconfiguration(reembeds, reroutes and routes, took_ns, messages)

    def measure(
        self,
        number: int,
        *,
        change: Reconfiguration = _UNCHANGED,
        faults: Sequence[int] = (),
        on_start: Callable[[int], object] = lambda _: None,
        undisturbed: Callable[[], bool] = lambda: True,
    ) -> CollectiveRecord:
        """Run the collective of this number with the present placement and paths; record `change`, the change to them.

        `on_start` is called with the collective's beginning (CLOCK_MONOTONIC, ns) shortly before it, and `undisturbed`
        after its end for the record's field. Raises CollectiveError if it fails, WrongDataError if it delivers wrong
        data.
        """
        path = self._flow_paths()
        if self._rerouted:  # so that the first messages take the new paths, too
            time.sleep(_IN_FORCE_S)
            self._rerouted = False
        self._timer_overrun()
        result = self._communicator.run(on_start=on_start)
        late = self._timer_overrun()
        if result.faults:
            raise WrongDataError(f"collective {number} delivered wrong data: {result.faults[0]}")
        retransmitted_bytes = self._retransmitted() if self.config.transport.queue == "fifo" else None
        if self.config.transport.buffer_bytes is not None:
            self.disconnect()  # so that TCP's state after losses does not affect the next collective
        zero_ns = min(result.start_ns)
        return CollectiveRecord(
            collective=number,
            placement=self.placement,
            path=path,
            reembedded=change.reembedded,
            rerouted=change.rerouted,
            reconfigure_ns=change.took_ns,
            reconfigure_messages=change.messages,
            start_ns=tuple(at - zero_ns for at in result.start_ns),
            sent_ns=tuple(at - zero_ns for at in result.sent_ns),
            arrived_ns=tuple(at - zero_ns for at in result.arrived_ns),
            drops=self.drops(),
            retransmitted_bytes=retransmitted_bytes,
            late=late,
            faults=tuple(faults),
            undisturbed=undisturbed(),
        )

    def drops(self) -> int:
        """Return the number of packets dropped anywhere since the last call."""
        return sum(self._drops.drops().values())

    def connect(self) -> None:
        """Make the connections of the present placement unless they exist; raises CollectiveError."""
        if self._connected != self.placement:
            self._communicator.connect(self.placement)
            self._connected = self.placement
            self._retransmitted_before = 0
            self._spread_paths = {}

    def disconnect(self) -> None:
        """Require new connections at the next `connect`."""
        self._connected = ()

    def renew(self, collective: CollectiveSpec | None = None) -> None:
        """Replace all agents, for another collective if given, and make connections if there is a placement.

        Raises CollectiveError.
        """
        if collective is not None:
            self.config = replace(self.config, collective=collective)
        self._close_agents()
        self.disconnect()
        self._tell("new agents")
        self._communicator = self._start_agents(epoch=self._communicator.epoch)
        if self.placement:
            self.connect()

    def set_fair_links(self, fair_links: Collection[str] | None, rates_bps: Floats) -> None:
        """Set the links that flows share fairly from the next `renew` on, and shape all links with these rates.

        If the delays cannot be shaped this way, the links are shaped as before, and TcError is raised.
        """
        before, self.fair_links = self.fair_links, fair_links
        try:
            self.reshape(rates_bps)
        except TcError:
            self.fair_links = before
            self.reshape(rates_bps)
            raise

    def kill_agents(self) -> None:
        """Kill the agents; `renew` starts new ones."""
        self._communicator.kill()

    def restart_controller(self, *, without: Collection[str] = ()) -> None:
        """Start a new controller after one has ended; return once all switches except `without` are connected to it.

        Raises ControllerError if it does not start.
        """
        self._tell("a new controller")
        self._controller.close()
        self.controller.start()
        self._wait_ready(without)

    def _wait_ready(self, without: Collection[str] = ()) -> None:
        with waking_vswitchd():
            self._controller.wait_ready(timeout_s=_READY_S, alive=self.controller.alive, without=without)

    def agent_pid(self, rank: int) -> int:
        """Return the pid of a rank's agent."""
        return int(self._communicator.agent_pids[rank])

    def retransmitted_bytes(self) -> int:
        """Return the bytes retransmitted by TCP since the connections were made; raises CollectiveError."""
        return self._communicator.retransmitted_bytes()

    def _retransmitted(self) -> int:
        """Return the bytes retransmitted by TCP since the last call; raises CollectiveError."""
        before, self._retransmitted_before = self._retransmitted_before, self.retransmitted_bytes()
        return self._retransmitted_before - before

    def status(self) -> Mapping[str, Any]:
        """Return the controller's routes, failed cables and outages (`Controller.status`); raises ControllerError."""
        return self._controller.status()

    def await_status(self, noticed: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Wait until `noticed` is true of the controller's status, at most NOTICED_S; return whether it was.

        Raises ControllerError.
        """
        if noticed(self.status()):
            return True
        end = time.monotonic() + NOTICED_S
        with waking_vswitchd():
            while time.monotonic() < end:
                time.sleep(_LOOK_AGAIN_S)
                if noticed(self.status()):
                    return True
        return False

    def shape(self, number: int, in_force: Sequence[int]) -> None:
        """Set the links' rates for a collective with these faults (indices); the collective may be running."""
        self.change(self._conditions.shaped_bps(number, self._faults(in_force)))

    def change(self, rates_bps: Floats) -> None:
        """Set the rates of links or ports, [links or ports] bit/s, multiplied by the rate scale."""
        with self._shaping_lock:  # threads for changes by time and for faults may call this at once
            self._rates_bps = rates_bps
            self._shaper.change(self.platform.scale.rates_bps(self._rates_with_tunnels_bps))

    def _limit(self, limits_bps: Sequence[Sequence[float]]) -> None:
        """Set the rates of tunnels, [classes, paths] bit/s; without any, tunnels have the rates of their ports."""
        if self._tunnels:
            self._limits_bps = np.array(limits_bps).ravel() if limits_bps else None
            self.change(self._rates_bps)

    def await_tunnel_limits(self, dead: Cables) -> None:
        """Wait until the controller lists these cables as dead, at most NOTICED_S; then set the tunnels' rates to its
        limits. Collectives may be running. Raises ControllerError and TcError."""
        if not self._tunnels:
            return
        end, status = time.monotonic() + NOTICED_S, self.status()
        with waking_vswitchd():
            while {cable(a, b) for a, b in status["dead"]} != dead and time.monotonic() < end:
                time.sleep(_FOLLOW_S)
                status = self.status()
        self._limit(status["limits"])

    def reshape(self, rates_bps: Floats, *, delays_s: Floats | None = None) -> None:
        """Remove the shaping and shape all links again, with other delays if given; packets in the queues are lost."""
        self._unshape()
        if delays_s is not None:
            self.delays_s = delays_s
        self._shaper = self._shape(rates_bps)

    def allow_late(self, late_s: float) -> None:
        """From the next change on, give every class the burst that makes up for timers late by this many seconds."""
        self._shaper.shaping = replace(self._shaper.shaping, late_s=late_s)

    def lose(self, interface: str, share: float) -> None:
        """Make a switch's port lose this share (0 to 1) of the packets that it sends."""
        self._shaper.lose(interface, share)

    def carried_bps(self) -> float:
        """Measure the total rate at which hosts can send while no link is shaped; raises OSError."""
        self._shaper.close()
        try:
            return throughput_bps(self.fabric, self.network.host_pids)
        finally:
            self._shaper = self._shape(self._conditions.shaped_bps(0, ()))

    def _timer_overrun(self) -> bool:
        """Return whether timers were later since the last call than the shaping allows for; False in virtual time."""
        return self._timer_latency is not None and self._timer_latency.worst_s() > self.platform.late_s

    def choose_placement(self, mode: Mode, rates_bps: Floats, workload: Workload) -> tuple[int, ...]:
        """Choose a mode's placement under these rates of logical links (0: failed); raises ValueError for none."""
        choices = Chooser(self._router, mode, workload, self.config.collective.ring)
        (chosen,) = choices.placements(rates_bps[None])
        return tuple(int(rank) for rank in chosen)

    def route(self, mode: Mode, rates_bps: Floats, *, best: bool, stay: bool = False) -> int:
        """Let the controller choose and install the paths of the crossings; return the number of OpenFlow messages.

        With `best` they are the best paths under these rates of logical links, otherwise the fixed ones. If the mode
        leaves paths to the fabric's routing, that routing chooses them, and with `stay` flows keep their paths.
        """
        flows = self._flows() if ways_of(self.fabric, mode) is not None else {}
        crossings = self._crossings() if spreads_over(self.fabric, mode) is None else []
        return self._route(crossings, rates_bps, best=best, flows=flows, mode=mode, stay=stay)

    def route_all(self, rates_bps: Floats, *, best: bool) -> int:
        """As `route`, but for every two GPUs in different sites."""
        site = [gpu.site for gpu in self.fabric.gpus]
        ranks = range(len(site))
        crossings = [(a, b) for a in ranks for b in ranks if site[a] != site[b]]
        return self._route(crossings, rates_bps, best=best, flows={})

    def apply_rules_together(self) -> None:
        """Make switches apply the messages that the controller sends them at one instant together; raises OSError."""
        if self.controller.pid is not None:
            openvswitch.prioritize_controller(self.controller.pid)

    def settle(self) -> None:
        """Wait until switches follow only the new rules."""
        time.sleep(_IN_FORCE_S)

    def _route(
        self,
        crossings: list[tuple[int, int]],
        rates_bps: Floats,
        *,
        best: bool,
        flows: Mapping[int, tuple[int, int, int, int]],
        mode: Mode | None = None,
        stay: bool = False,
    ) -> int:
        demands = traffic(self.config.workload) if self._tunnels and flows else Traffic(priority=(), wanted_bps=())
        if demands.priority and (wanted_bps := self._wanted_bps) is not None:
            src, dst = self.fabric.gpu_sites[np.array(self._edges()).T]
            demands = demands.with_demands(wanted_bps, src, dst)
        reply = self._controller.route(
            crossings=crossings,
            rates_bps=np.maximum(rates_bps, 1.0).tolist(),  # the controller knows failed links by itself
            delays_s=self._router.delays_s.tolist(),
            chunk_bytes=self.config.workload.largest_message_bytes,
            best=best,
            flows=flows.values(),
            asks=[(demands.priority[index], demands.wanted_bps[index]) for index in flows if demands.priority],
            stay=stay,
            kept=demands.kept,
            probes=self._probes(mode) if mode and mode.knowledge.kind == PROBED and mode.reroutes else (),
        )
        self._limit(reply.limits_bps)
        self._spread_paths = {index: path for index, (path, _, _) in zip(flows, reply.flow_paths, strict=True)}
        self._crossing_paths = dict(zip(crossings, reply.paths, strict=True))
        self._rerouted = True
        return reply.messages

    def lacks_flow_paths(self, mode: Mode) -> bool:
        """Return whether flows lack paths of the fabric's routing, because their connections are new."""
        return ways_of(self.fabric, mode) is not None and not self._spread_paths

    def _flows(self) -> dict[int, tuple[int, int, int, int]]:
        """Return the flows that the routing spreads, by index: source, destination, channel and TCP source port.

        In the logical grain these are the flows that cross the WAN; in the physical grain all.
        """
        site, is_physical = [gpu.site for gpu in self.fabric.gpus], self.fabric.spec.grain == "physical"
        flows = enumerate(zip(self._edges(), channels(self.config.workload).tolist(), strict=True))
        return {
            index: (src, dst, channel, self._communicator.source_port(channel))
            for index, ((src, dst), channel) in flows
            if site[src] != site[dst] or (is_physical and src != dst)
        }

    def _faults(self, indices: Sequence[int]) -> tuple[Fault, ...]:
        return tuple(self.config.faults[index] for index in indices)

    def _edges(self) -> list[tuple[int, int]]:
        """Return the source and destination ranks of every flow."""
        begins, ends = self.config.workload.schedule.ends
        return [(self.placement[src], self.placement[dst]) for src, dst in zip(begins, ends, strict=True)]

    def _crossings(self) -> list[tuple[int, int]]:
        """Return the crossings: the (source, destination) ranks in different sites, each pair once."""
        site = [gpu.site for gpu in self.fabric.gpus]
        return list(dict.fromkeys((src, dst) for src, dst in self._edges() if site[src] != site[dst]))

    def _flow_paths(self) -> tuple[int, ...]:
        """Return the path of every flow, from the controller's last reply or the fixed path; -1 within a site."""
        gpus, between = self.fabric.gpus, self.fabric.paths_between
        paths = {(a, b): between[gpus[a].site, gpus[b].site][0].index for a, b in self._crossings()}
        paths |= self._crossing_paths
        return tuple(self._spread_paths.get(index, paths.get(edge, -1)) for index, edge in enumerate(self._edges()))
