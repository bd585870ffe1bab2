"""The testbed of one configuration: it starts network, controller and agents, shapes links and runs collectives.

It runs as root in the VM or on another platform (`Platform`), started by `scenarios.testbed.__main__`. As in an
experiment on real machines, the hosts choose the ring and the controller chooses the WAN paths. `point_run` runs the
collectives of a mode on it, and `recovery` handles faults.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError
from controller.forwarding.flow_mods import tunnels_match
from controller.process import PORT, ControllerProcess
from controller.routing.traffic_engineering import Traffic
from controller.routing.wan_path_choice import Router
from hosts.agent.transport import (
    FairShareLimits,
    allow_overtaking,
    fair_share_limits,
    frame_segment_bytes,
    probe_no_losses,
    rto_min_s,
    set_queued_bytes,
)
from hosts.collectives.kinds import Workload
from hosts.collectives.rank_programs import Extent, extent, moves
from hosts.communicator import CollectiveError, Communicator, Completed
from hosts.monitor import TimerLatency, throughput_bps
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import (
    Chooser,
    channels,
    dscps_in_service_order,
    most_shared,
    spread_pairs,
    spreads_over,
    traffic,
    ways_of,
)
from scenarios.policies.measured_knowledge import tunnel_ports
from scenarios.policies.policy import Mode
from scenarios.policies.situation import NO_PATHS
from scenarios.spec.classes import controls, services
from scenarios.spec.collective import CollectiveSpec, scaled_workload
from scenarios.spec.faults import Fault
from scenarios.spec.scenario import Scenario
from scenarios.spec.te import ROUTING
from scenarios.testbed import control_delay, snapshot
from scenarios.testbed.packet_balance import PacketBalance
from scenarios.testbed.peers import Peers
from scenarios.testbed.platform import VIRTUAL, Platform, restored_settings
from scenarios.testbed.port_watch import Counters
from scenarios.testbed.record import CollectiveRecord, Reconfiguration
from scenarios.testbed.verbs_devices import add_verbs_devices
from scenarios.vm import VMError, openvswitch
from scenarios.vm.date import fixed_date
from scenarios.vm.openvswitch import waking_vswitchd
from topologies.errors import SpecError
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, reachable
from topologies.fabric.machines import Share, carried_ns
from topologies.fabric.ports import links_in_grain
from topologies.mininet_network import Network, inside
from topologies.mininet_nodes import NetworkError
from topologies.shaping.classes import FRAME_BYTES, SEGMENT_BYTES, Buffer, ClassKey, Shaping, Tunnel
from topologies.shaping.host_ports import HostPorts, port_rates_bps
from topologies.shaping.netlink import RtNetlink
from topologies.shaping.rate_scale import RateScale
from topologies.shaping.tc import DropCounter, Shaper, TcError

_READY_S = 60.0
NOTICED_S = 10.0  # the controller notices a failure in a fraction of a second, on a busy machine in a few seconds
_LOOK_AGAIN_S = 0.05
_FOLLOW_S = 0.0005
_IN_FORCE_S = 0.02  # until switches follow only the new rules: Open vSwitch revalidates its cache every 5 ms
_COUNTED_MS = {False: 100, True: 500}
"""How often rules count packets at a prompt, where a user's programs may read them, by `is_real`: each takes some 2 ms
of the processor, which in real time collectives need."""
_DEADLINE_S = 60.0
_DOZE_S = 0.01  # a busy machine may leave a packet at a switch for so long
_PATIENT = 1.2  # agents wait for one another this many times the longest silence, or _DEADLINE_S if that is longer
_LONG_LINKS, _SHORT_S = 6, 0.1  # links of the longest path; a path's delay that never adds up to _DEADLINE_S

Floats = npt.NDArray[np.float64]
Failure = (VMError, NetworkError, ControllerError, TcError, CollectiveError, SpecError)
Probe = tuple[int, int, int, int]
"""Source and destination rank, WAN path (index), and the TCP source port of a probe."""

Event = Mapping[str, Any]
"""An event of a fault or of recovery; `analysis.statistics.fault_outcomes` lists the kinds and their fields."""


_UNCHANGED = Reconfiguration()


class WrongDataError(CollectiveError):
    """Raised for a collective that delivered wrong bytes; it must not be repeated."""


class Testbed:
    """A context manager that starts everything a configuration needs (network, controller, agents), and stops it.

    `tell` is called with a few words before each step that may take long. `fair_links` are the names of the links or
    ports that flows may share; unless it is None, flows get fair shares. Without agents (`has_agents` False) there are
    no collectives, and the GPUs' hosts run a user's program. `at_prompt` tells that links may break at any time. Raises
    the errors in `Failure`, each with a sentence as message, if a part does not start or fails later.

    `delays_s` are the delays of links or ports, [links or ports] s. New agents wait for each other for at most
    `deadline_s`. `placement` is the rank at each position of the schedule in the next collective: after setting it,
    call `connect` before the next collective, and `route` if it needs other paths. `keeps_fixed_paths` is whether
    packets in no tunnel stay on the fixed paths, because nothing fails; `set_fair_links` and `reshape` apply it.
    `faults_under` are the faults under which placement and paths were chosen, by collective, for its `conditions`.
    `limits_bps` are the rates of the tunnels by class, [classes * paths], empty if there are none.
    """

    def __init__(
        self,
        config: Scenario,
        *,
        platform: Platform = VIRTUAL,
        tell: Callable[[str], object] = lambda _: None,
        fair_links: Collection[str] | None = None,
        has_agents: bool = True,
        at_prompt: bool = False,
    ) -> None:
        self.config, self.platform, self.tell = config, platform, tell
        self.fair_links, self._has_agents = fair_links, has_agents
        # Queues are fair and there are no faults, so nothing is lost. At the prompt faults may come, but a prompt has
        # no fair links at first.
        self.is_lossless = fair_links is not None and not config.faults
        is_unlimited = config.transport.buffer_bytes is None and not config.run.is_real
        self.loses_nothing = is_unlimited and not config.faults and not at_prompt  # in any queue
        self._at_prompt = at_prompt
        # A program's connections may take any path.
        self.keeps_fixed_paths = has_agents and not config.faults and not config.program.is_given
        self.faults_under: dict[int, tuple[Fault, ...]] = {}
        in_force = (lambda number: self.faults_under.get(number, ())) if config.faults else None
        self.conditions = conditions_of(config, in_force)
        self.fabric: Fabric = self.conditions.fabric
        self.share = Share(self.fabric, platform.machine, config.run.machines if platform.is_joined else 1)
        self._peers = Peers(self.share.number, self.share.machines)
        self.delays_s = self.conditions.shared_delays_s
        rates_bps = self.conditions.shared_bps(0, config.collective.count) if has_agents else np.zeros(0)
        self._slowest_bps = float(rates_bps[rates_bps > 1].min(initial=np.inf))
        self.deadline_s = _DEADLINE_S
        self._queued_bytes: int | None = None  # the kernel's limit of a flow's queued bytes, before it was changed
        self._crossing_paths: dict[tuple[int, int], int] = {}  # of each crossing in the controller's last reply
        self._spread_paths: dict[int, int] = {}  # if the fabric spreads flows: the path of each flow, by its index
        self.limits_bps = np.zeros(0)
        self._rerouted = False  # since the last collective
        self._shaping_lock = threading.Lock()
        self.placement: tuple[int, ...] = ()
        self._connected: tuple[int, ...] = ()  # the placement whose connections exist
        self._reset: tuple[int, ...] = ()  # the placement whose connections recovery has closed
        self._ahead_bytes = 0  # the most bytes in queues ahead of a packet of the present agents
        self._rto_min_s: float | None = None  # of those connections, None for the transport's
        self._retransmitted_before = 0  # retransmitted bytes over those connections before the next collective
        self._stack = ExitStack()

    def __enter__(self) -> "Testbed":
        is_virtual = self.platform.own_openvswitch and not self.platform.is_real
        with fixed_date() if is_virtual else nullcontext(), ExitStack() as stack:
            if self.platform.own_openvswitch:
                self.tell("Open vSwitch")
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
                ControllerProcess(
                    self.config.fabric,
                    self.platform.folder,
                    listen=listen,
                    elsewhere={name: 2 * self.control_delays_s.get(name, 0.0) for name in self.share.elsewhere},
                )
            )
            stack.enter_context(self._peers)
            self.tell(f"{len(self.fabric.gpus)} hosts and {len(self.fabric.switches)} switches")
            self.network = stack.enter_context(
                Network(
                    self.fabric,
                    controller_port=PORT,
                    controller_at=self.controller_at,
                    counted_ms=_COUNTED_MS[self.platform.is_real] if self._at_prompt else None,
                    share=self.share,
                )
            )
            if (kind := self.config.transport.device_kind) is not None:
                add_verbs_devices(self.fabric.gpus, self.network.pids_here, kind)
            self.tell("the shaping of the links")
            self._shaper = self._shape(self.conditions.shaped_bps(0, ()))
            stack.callback(self._unshape)
            self.tell("the controller and its rules")
            self._controller = stack.enter_context(self.controller.client())
            self._wait_ready()
            if self._has_agents:
                self.tell("the agents")
                self._communicator = self._start_agents()
                stack.callback(self._close_agents)
            else:
                self.set_queues()
            self._drops = DropCounter(self.network.pids_here.values())
            stack.callback(self._drops.close)
            pids, exchange = self.network.pids_here, self._peers.exchange
            self._balance = PacketBalance(self.fabric, pids, exchange) if self.config.faults else None
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
            delays_s=self._delays_here_s,
            late_s=self.platform.late_s,
            fair=self.fair_links is not None,
            services=() if self.tunnels else services(self.config.classes),
            serving=self.config.class_links,
            sending_services=self._sending_services,
            tunnels=self.tunnels,
            buffer=None
            if size is None
            else Buffer(limit_bytes=size, ecn_threshold_bytes=transport.ecn_threshold_bytes),
            wan_loss=transport.wan_loss,
            seed=self.config.run.seed,
            paths=tuple(tunnels_match(path.index, left=True) for path in self.fabric.paths) if by_path else (),
            moving=self.config.conditions.moves is not None,
            segment_bytes=self._segment_bytes,
            share=self.share if self.share.machines > 1 else None,
            frames=transport.frames,
        )
        self._rates_bps = rates_bps
        return Shaper(shaping, self.platform.scale.rates_bps(self._rates_with_tunnels_bps), self.network.pids_here)

    @property
    def _delays_here_s(self) -> Floats:
        """The delays of the logical links without what links between machines take of them, [links] s."""
        delays_s = self.router.delays_s.copy()
        for number, one in enumerate(self.share.between):
            taken_s = carried_ns(self.share, delays_s, number) / 1e9
            for link in self.fabric.links:
                if link.kind == "wan" and cable(link.src, link.far_end) == cable(*one.directions[0]):
                    delays_s[link.index] -= taken_s
        return delays_s

    @property
    def _sending_services(self) -> int:
        """How many services of WAN ports have traffic: those of jobs' flows, or all beside a program, whose sockets may
        set any DSCP."""
        if self.config.program.is_given:
            return len(services(self.config.classes))
        return len({*self.config.workload.dscp})

    @property
    def tunnels(self) -> tuple[Tunnel, ...]:
        """The rate-limited tunnels, one for each class (in service order) and path; empty without the routing te."""
        if self.config.fabric.routing != ROUTING:
            return ()
        begins = tunnel_ports(self.fabric)
        if self.config.program.is_given:  # one class, whatever DSCP its sockets set
            return tuple(Tunnel(link=begins[one.index], match=tunnels_match(one.index)) for one in self.fabric.paths)
        return tuple(
            Tunnel(link=begins[path.index], match=f"{tunnels_match(path.index)} match ip tos {4 * dscp:#04x} 0xfc")
            for dscp in dscps_in_service_order(self.config.workload)
            for path in self.fabric.paths
        )

    @property
    def _rates_with_tunnels_bps(self) -> Floats:
        """The rates of links or ports, followed by those of tunnels.

        A tunnel that no flow uses has its port's rate, so that it sends the packets that flows left in its queue.
        """
        if not self.tunnels:
            return self._rates_bps
        whole_bps = self._rates_bps[[tunnel.link for tunnel in self.tunnels]]
        limits_bps = self.limits_bps if self.limits_bps.size else np.zeros(len(whole_bps))
        return np.append(self._rates_bps, np.where(limits_bps > 0, limits_bps, whole_bps))

    def host_ports(self, highest_bps: Floats) -> AbstractContextManager[object]:
        """Return a context in which hosts send at the rates of their ports, given the highest rates of links or ports
        during it, if queues are finite; elsewhere nothing is lost, whatever a host sends. Raises TcError."""
        if self.config.transport.buffer_bytes is None:
            return nullcontext()
        scaled_bps = self.platform.scale.rates_bps
        return HostPorts(
            self._shaper,
            self.network.pids_here,
            scaled_bps(port_rates_bps(self.fabric, highest_bps)),
            shaped_bps=scaled_bps(self._rates_with_tunnels_bps),
            late_s=self.platform.late_s,
        )

    def _unshape(self) -> None:
        self._shaper.close()

    def _close_agents(self) -> None:
        self._communicator.close()

    def _start_agents(self, *, epoch: int = 0) -> Communicator:
        """Start the agents; `epoch` is the last epoch of the previous agents."""
        self.set_queues()
        workload = scaled_workload(self.config.workload, self.platform.scale)
        self._ahead_bytes = self._bytes_ahead(workload)
        deadline_s = max(self.deadline_s, _PATIENT * self._longest_silence_s(workload))
        if self.config.transport.buffer_bytes is not None:
            # Long enough for a message whose every frame is lost and retransmitted after a timeout.
            frames = self._most.message_bytes / frame_segment_bytes()
            deadline_s += self.config.transport.rto_min_s * frames
        return Communicator(
            self.fabric,
            host_pids=self.network.pids_here,
            workload=workload,
            most=self._most,
            transport=self.config.transport,
            controls=controls(self.config.classes),
            deadline_s=deadline_s,
            lead_s=self.platform.lead_s,
            epoch=epoch,
            fastest_bps=self._fastest_bps if self._has_own_segments else None,
            loses=bool(self.config.faults) or self.config.transport.buffer_bytes is not None or self._at_prompt,
            exchange=self._peers.exchange,
            instant=self._peers.instant,
        )

    @property
    def _most(self) -> Extent:
        """The extent of what the agents carry: of the collective, or of all rounds if they differ."""
        return _extent_of(self.config.of_round(0), self.platform.scale)

    @property
    def _has_own_segments(self) -> bool:
        """Whether each connection's segment size follows from its own messages, instead of the largest of all.

        It does not if a class or a tunnel has only a part of a port's rate: it would lose the time that it waits for
        longer segments of others. Nor does it if rates change by time.
        """
        has_parts = bool(self.tunnels) or any(entry.share or entry.ceiling < 1 for entry in self.config.classes)
        return self.fair_links is not None and not has_parts and self.conditions.timed is None

    @property
    def _fastest_bps(self) -> float:
        """The rate of the fastest link in the first collective."""
        return float(self.conditions.shaped_bps(0, ()).max())

    @property
    def control_delays_s(self) -> Mapping[str, float]:
        """The one-way delay from the controller to each switch, in seconds; empty if there is none."""
        of_sites = self.config.control_delays_s
        by_address = control_delay.delays_s(of_sites) if of_sites else {}
        return {switch: by_address[address] for switch, address in self.controller_at.items()}

    def set_queues(self) -> None:
        """Set TCP's queue limits and segment sizes as the links' queues need them."""
        if self.fair_links is not None:
            self._set_windows(self._windows(self.fair_links))
        elif self._queued_bytes is not None:  # restore the limits from before fair sharing
            self._set_windows(FairShareLimits(segment_bytes=SEGMENT_BYTES, queued_bytes=self._queued_bytes))
        for pid in self.network.pids_here.values():
            with inside(pid):
                if self.is_lossless:
                    allow_overtaking()
                elif self.loses_nothing:
                    probe_no_losses()
        if self.fair_links is None and self._segment_bytes:
            self._set_segments(self._segment_bytes)

    @property
    def _segment_bytes(self) -> int:
        """The size of the largest segments, 0 if nothing limits them: in fifo queues one frame, if they are finite, as
        they drop whole segments, or if they serve classes, of which each waits for the segments of the others."""
        if self.fair_links is not None:
            return self._windows(self.fair_links).segment_bytes
        is_short = self.config.transport.buffer_bytes is not None or self.config.classes
        return frame_segment_bytes() if is_short else 0

    def _windows(self, shared: Collection[str]) -> FairShareLimits:
        """Return windows with which connections queue so little that flows get fair shares."""
        return fair_share_limits(
            message_bytes=self._most.message_bytes,
            shared_links=most_shared(self.fabric, shared),
            fastest_bps=self._fastest_bps,
            steady=self.conditions.timed is None,
        )

    def _set_windows(self, windows: FairShareLimits) -> None:
        self._set_segments(windows.segment_bytes)
        for pid in self.network.pids_here.values():
            with inside(pid):
                before = set_queued_bytes(windows.queued_bytes)
            self._queued_bytes = self._queued_bytes or before

    def _set_segments(self, segment_bytes: int) -> None:
        """Let TCP make segments of up to this size."""
        for rank, pid in self.network.pids_here.items():
            with inside(pid), closing(RtNetlink()) as netlink:
                netlink.set_segment_bytes(self.fabric.gpus[rank].interface, segment_bytes)

    @property
    def router(self) -> Router:
        """The choice of paths with the present delays."""
        return Router(self.fabric, links_in_grain(self.fabric).delays_s(self.delays_s))

    def snapshot(self) -> dict[str, object]:
        """Take a snapshot of the machine (`snapshot.take`)."""
        return snapshot.take(next(iter(self.network.pids_here.values())))

    @property
    def rto_min_s(self) -> float | None:
        """The lower bound of the retransmission timeout of the agents' connections, None for the transport's, and
        without connections."""
        return self._rto_min_s if self._connected else None

    def run_round(self, *, after_s: float | None, on_start: Callable[[int], object]) -> Completed:
        """Run a round of jobs beside a program, as `Communicator.run`; raises CollectiveError."""
        return self._communicator.run(after_s=after_s, on_start=on_start)

    def measure(
        self,
        number: int,
        *,
        change: Reconfiguration = _UNCHANGED,
        faults: Sequence[int] = (),
        on_start: Callable[[int], object] = lambda _: None,
        undisturbed: Callable[[int], bool] = lambda _: True,
    ) -> CollectiveRecord:
        """Run the collective of this number with the present placement and paths; record `change`, the change to them.

        `on_start` is called with the collective's beginning (CLOCK_MONOTONIC, ns) shortly before it, and `undisturbed`
        after its end, with that, for the record's field. Raises CollectiveError if it fails, WrongDataError if it
        delivers wrong data.
        """
        path = self.flow_paths()
        if self._rerouted:  # so that the first messages take the new paths, too
            time.sleep(_IN_FORCE_S)
            self._rerouted = False
        self._timer_overrun()
        result = self._communicator.run(on_start=on_start)
        late = self._timer_overrun()
        if result.faults:
            raise WrongDataError(f"collective {number} delivered wrong data: {result.faults[0]}")
        retransmitted_bytes = self._retransmitted()
        if self.config.transport.buffer_bytes is not None:
            self.disconnect()  # so that TCP's state after losses does not affect the next collective
        zero_ns = min(result.start_ns)
        return CollectiveRecord(
            collective=number,
            placement=self.placement,
            path=path,
            reembedded=change.reembedded,
            rerouted=change.rerouted,
            reconfigure_ns=None if change.took_ns is None else max(self._peers.exchange(change.took_ns)),
            reconfigure_messages=change.messages,
            start_ns=tuple(at - zero_ns for at in result.start_ns),
            sent_ns=tuple(at - zero_ns for at in result.sent_ns),
            arrived_ns=tuple(at - zero_ns for at in result.arrived_ns),
            drops=self.drops(),
            retransmitted_bytes=retransmitted_bytes,
            late=late,
            faults=tuple(faults),
            undisturbed=undisturbed(max(result.arrived_ns, default=zero_ns)),
        )

    @property
    def own_ns(self) -> int:
        """CLOCK_MONOTONIC without what exchanges with other machines have taken, in ns."""
        return time.monotonic_ns() - self._peers.latency_ns

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all machines (`Peers.exchange`)."""
        return self._peers.exchange(value)

    def drops(self) -> int:
        """Return the number of packets dropped anywhere since the last call."""
        return sum(self._peers.exchange(sum(self._drops.drops().values())))

    def lost_packets(self) -> int:
        """Wait until no packet is under way, and return the number of packets that hosts have sent and no host has
        received since the last call: 0 if the configuration has no faults.

        A link that goes down loses the packets in its queue, and those sent to it until switches know: no counter has
        them, and `drops` does not either.
        """
        if self._balance is None:
            return 0
        delays_s, links = self.router.delays_s, self.fabric.links
        within_s = max(float(delays_s[link.index]) for link in links if link.kind != "wan")
        paths = [(float(delays_s[list(path.links)].sum()), len(path.links)) for path in self.fabric.paths]
        across_s, hops = max((delay_s for delay_s, _ in paths), default=0.0), max((n for _, n in paths), default=0)
        frame_s = 8 * FRAME_BYTES / max(1.0, float(self.platform.scale.rates_bps(self._rates_bps).min()))
        hop_s = frame_s + (_DOZE_S if self.platform.is_real else 0.0)
        return self._balance.lost(2 * (across_s + 2 * within_s + (2 + hops) * hop_s))  # twice: there may be detours

    def connect(self) -> int:
        """Make the connections of the present placement unless they exist; raises CollectiveError.

        Return how long that took, in ns of `own_ns`, if they are those that recovery has closed (`reset_connections`),
        which otherwise would exist; 0 if not.

        They are also made again if rates have become so low that TCP would take what waits in queues for lost: a
        connection whose timeout is changed would change its segments, too.
        """
        needed_s = rto_min_s(self.config.transport, wait_s=self._longest_wait_s)
        if self._connected != self.placement or (needed_s or 0.0) > (self._rto_min_s or 0.0):
            was_reset = self._reset == self.placement
            begun_ns = self.own_ns if was_reset else 0
            self._communicator.connect(self.placement, rto_min_s=needed_s)
            self._connected, self._rto_min_s, self._reset = self.placement, needed_s, ()
            self._retransmitted_before = 0
            self._spread_paths = {}
            return self.own_ns - begun_ns if was_reset else 0
        return 0

    @property
    def _longest_wait_s(self) -> float:
        """The longest time in which queues hold back a connection's acknowledgements, in s, under the present rates and
        those of all collectives to be measured."""
        slowest_bps = min(self._slowest_bps, float(self._rates_bps[self._rates_bps > 1].min(initial=np.inf)))
        return 8 * self._ahead_bytes / float(self.platform.scale.rates_bps(np.array(slowest_bps)))

    def _longest_silence_s(self, workload: Workload) -> float:
        """Return the longest time in which an agent may receive nothing, in s, though nothing fails: all messages pass
        the slowest link, and those that wait for one another pass paths of the longest delays."""
        total = self._most.total_bytes
        slowest_bps = float(self.platform.scale.rates_bps(np.array(self._slowest_bps)))
        silence_s, delay_s = 8 * total / slowest_bps, float(np.sort(self.delays_s)[-_LONG_LINKS:].sum())
        if delay_s > _SHORT_S:  # otherwise they pass within the usual deadline
            silence_s += delay_s * max(
                (move.step for move in moves(workload, range(workload.schedule.places))), default=0
            )
        return silence_s

    def _bytes_ahead(self, workload: Workload) -> int:
        """Return the most bytes that may be in the queues ahead of a packet.

        With finite buffers, which lose frames, it is 0: TCP is to find out by itself what it waits for.
        """
        if self.config.transport.buffer_bytes is not None:
            return 0
        if self.fair_links is None and not self.config.run.is_real and self.config.transport.queue == "fair":
            return self._most.flow_bytes  # no link is shared: acknowledgements wait behind one flow's messages
        if self.fair_links is None or (self.loses_nothing and (self.config.classes or self.tunnels)):
            return self._most.total_bytes  # behind all messages
        # At each link behind what every other flow has queued.
        flows = {task.flow for _, task in workload.schedule.sends()}
        return len(flows) * self._windows(self.fair_links).queued_bytes * most_shared(self.fabric, self.fair_links)

    def set_round(self, number: int) -> None:
        """Have the agents run the messages of a round, if rounds differ; they then need new connections."""
        if self.config.has_drawn_jobs:
            self.config = self.config.of_round(number)
            self._communicator.set_workload(scaled_workload(self.config.workload, self.platform.scale))
            self.disconnect()

    def disconnect(self) -> None:
        """Require new connections at the next `connect`."""
        self._connected = self._reset = ()

    def reset_connections(self) -> None:
        """Require new connections at the next `connect` in place of those that exist, with a state of TCP's that has
        no losses. No mode asks for them, so the time for them is in no reconfiguration."""
        self._connected, self._reset = (), self._connected

    def renew(self, collective: CollectiveSpec | None = None) -> None:
        """Replace all agents, for another collective if given, and make connections if there is a placement.

        Raises CollectiveError.
        """
        if collective is not None:
            self.config = replace(self.config, collective=collective)
        self._close_agents()
        self.disconnect()
        self.tell("new agents")
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
        self.tell("a new controller")
        self._controller.close()
        self.controller.start()
        self._wait_ready(without)

    def _wait_ready(self, without: Collection[str] = ()) -> None:
        with waking_vswitchd():
            self._controller.wait_ready(timeout_s=_READY_S, alive=self.controller.alive, without=without)
        self._peers.exchange(None)

    def agent_pid(self, rank: int) -> int:
        """Return the pid of a rank's agent."""
        return int(self._communicator.agent_pids[rank])

    def retransmitted_bytes(self) -> int | None:
        """Return the bytes retransmitted by TCP since the connections were made, None over verbs; raises
        CollectiveError."""
        return self._communicator.retransmitted_bytes()

    def _retransmitted(self) -> int | None:
        """Return the bytes retransmitted by TCP since the last call; None over verbs, and if an agent has died, which
        later calls tell."""
        try:
            now = self.retransmitted_bytes()
        except CollectiveError:
            return None
        if now is None:
            return None
        before, self._retransmitted_before = self._retransmitted_before, now
        return now - before

    def counters(self) -> Counters:
        """Read the bytes that each port of each switch has sent (`Controller.counters`); raises ControllerError."""
        return self._controller.counters()

    def tunnel_counters(self) -> Counters:
        """Read the bytes that each tunnel has sent, in the form of `counters` with one switch named ""."""
        now_ns, sent = time.monotonic_ns(), self._shaper.tunnel_bytes()
        return {"": (now_ns, time.monotonic_ns(), sent)}

    def queues(self, interfaces: Collection[str]) -> Mapping[ClassKey, tuple[int, int]]:
        """Read the counters and queues of these interfaces (`Shaper.queues`); raises OSError."""
        return self._shaper.queues(interfaces)

    def status(self) -> Mapping[str, Any]:
        """Return the controller's routes, failed cables and outages (`Controller.status`); raises ControllerError."""
        return self._controller.status()

    def tell_dead(self, dead: Cables) -> None:
        """Tell the controller which of these cables are dead that no switch here has; raises ControllerError."""
        if self.share.machines > 1:
            self._controller.tell_dead(frozenset(one for one in dead if not any(map(self.share.has, one))))

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
        self.change(self.conditions.shaped_bps(number, self.faults(in_force)))

    def change(self, rates_bps: Floats) -> None:
        """Set the rates of links or ports, [links or ports] bit/s, multiplied by the rate scale."""
        with self._shaping_lock:  # threads for changes by time and for faults may call this at once
            self._rates_bps = rates_bps
            self._shaper.change(self.platform.scale.rates_bps(self._rates_with_tunnels_bps))

    def _limit(self, limits_bps: Sequence[Sequence[float]]) -> None:
        """Set the rates of tunnels, [classes, paths] bit/s; without any, tunnels have the rates of their ports."""
        if self.tunnels:
            self.limits_bps = np.array(limits_bps, dtype=np.float64).ravel()
            self.change(self._rates_bps)

    def await_tunnel_limits(self, dead: Cables) -> None:
        """Wait until the controller lists these cables as dead, at most NOTICED_S; then set the tunnels' rates to its
        limits. Collectives may be running. Raises ControllerError and TcError."""
        if not self.tunnels:
            return
        end, status = time.monotonic() + NOTICED_S, self.status()
        with waking_vswitchd():
            while {cable(a, b) for a, b in status["dead"]} != dead and time.monotonic() < end:
                time.sleep(_FOLLOW_S)
                status = self.status()
        self._limit(status["limits"])

    def move(self, delays_s: Floats) -> None:
        """Give the links or ports these delays, [links or ports] s, while packets are under way."""
        self.delays_s = delays_s
        with self._shaping_lock:
            self._shaper.move(links_in_grain(self.fabric).delays_s(delays_s))

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

    def restore_links(self) -> None:
        """Shape links again as they were, once some that were down are up, or once captures have begun or ended: they
        change flags of ports, and Open vSwitch then removes filters of these ports when it next configures any. Raises
        VMError and TcError."""
        openvswitch.await_reconfigured()
        self._shaper.redirect_again()

    def carried_bps(self) -> float:
        """Measure the total rate at which hosts can send while no link is shaped; raises OSError."""
        self._shaper.close()
        try:
            return throughput_bps(self.fabric, self.network.host_pids)
        finally:
            self._shaper = self._shape(self.conditions.shaped_bps(0, ()))

    def _timer_overrun(self) -> bool:
        """Return whether timers were later since the last call than the shaping allows for; False in virtual time."""
        return self._timer_latency is not None and self._timer_latency.worst_s() > self.platform.late_s

    def choose_placement(self, mode: Mode, rates_bps: Floats, workload: Workload) -> tuple[int, ...]:
        """Choose a mode's placement under these rates of logical links (0: failed); raises ValueError for none."""
        choices = Chooser(self.router, mode, workload, self.config.collective.ring)
        (chosen,) = choices.placements(rates_bps[None])
        return tuple(int(rank) for rank in chosen)

    def route(
        self,
        mode: Mode,
        rates_bps: Floats,
        *,
        best: bool,
        stay: bool = False,
        wanted_bps: Floats | None = None,
        probes: Sequence[Probe] = (),
        given: Mapping[tuple[int, int], int] = NO_PATHS,
    ) -> int:
        """Let the controller choose and install the paths of the crossings; return the number of OpenFlow messages.

        With `best` they are the best paths under these rates of logical links, otherwise the fixed ones. If the mode
        leaves paths to the fabric's routing, that routing chooses them, and with `stay` flows keep their paths;
        `wanted_bps` are the demands if they are measured (`Traffic.with_demands`). `probes` get paths of their own.
        `given` are the paths of some crossings, by ranks.
        """
        flows = self._flows() if ways_of(self.fabric, mode) is not None else {}
        crossings = self._crossings() if spreads_over(self.fabric, mode) is None else []
        return self._route(
            crossings, rates_bps, best=best, flows=flows, stay=stay, wanted_bps=wanted_bps, probes=probes, given=given
        )

    def route_probes(self, rates_bps: Floats, probes: Sequence[Probe]) -> None:
        """Install the paths of probes alone; crossings return to the fixed paths."""
        self._route([], rates_bps, best=False, flows={}, probes=probes)

    def route_all(
        self,
        mode: Mode,
        rates_bps: Floats,
        *,
        best: bool,
        dead: Cables = NO_CABLES,
        given: Mapping[tuple[int, int], int] = NO_PATHS,
        wanted_bps: Floats | None = None,
    ) -> int:
        """As `route`, but for every two GPUs in different sites that a WAN path joins, except those that the failed
        cables `dead` cut off from each other. Where the fabric's routing spreads flows, it spreads the connections of
        these GPUs; in the physical grain also those within a site. Flows of agents that are connected keep their own
        paths. With traffic engineering, the connections from one site to another want `wanted_bps`, [sites, sites]
        bit/s, together, or without it all that they can send."""
        reach, crossings = reachable(self.fabric, dead), spread_pairs(self.fabric, within=False)
        crossings = [pair for pair in crossings if reach[pair]]
        routing, connections, channels = ways_of(self.fabric, mode), list[tuple[int, int]](), 1
        flows: Mapping[int, tuple[int, int, int, int]] = {}
        wants = list[float]()
        if routing is not None:
            within = self.fabric.spec.grain == "physical" and not routing.engineers
            pairs = spread_pairs(self.fabric, within=within)
            connections = [pair for pair in pairs if reach[pair]]
            channels = routing.channels_of_connections(len(pairs))
            crossings = crossings if spreads_over(self.fabric, mode) is None else []
            flows = self._flows() if self._connected else {}
            if routing.engineers:
                wants = self._wants(connections, wanted_bps)
        known = set(crossings)
        return self._route(
            crossings,
            rates_bps,
            best=best,
            flows=flows,
            given={pair: path for pair, path in given.items() if pair in known},
            connections=connections,
            channels=channels,
            wants=wants,
        )

    def _wants(self, connections: Sequence[tuple[int, int]], wanted_bps: Floats | None) -> list[float]:
        """Return what the connections of each pair of GPUs want: an equal part of what those of their sites want."""
        sites = [(int(self.fabric.gpu_sites[src]), int(self.fabric.gpu_sites[dst])) for src, dst in connections]
        pairs = Counter(sites)
        return [math.inf if wanted_bps is None else float(wanted_bps[ends]) / pairs[ends] for ends in sites]

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
        stay: bool = False,
        wanted_bps: Floats | None = None,
        probes: Sequence[Probe] = (),
        given: Mapping[tuple[int, int], int] = NO_PATHS,
        connections: Sequence[tuple[int, int]] = (),
        channels: int = 1,
        wants: Sequence[float] = (),
    ) -> int:
        demands = traffic(self.config.workload) if self.tunnels and flows else Traffic(priority=(), wanted_bps=())
        if demands.priority and wanted_bps is not None:
            src, dst = self.fabric.gpu_sites[np.array(self._edges()).T]
            demands = demands.with_demands(wanted_bps, src, dst)
        reply = self._controller.route(
            crossings=crossings,
            rates_bps=np.maximum(rates_bps, 1.0).tolist(),  # the controller knows failed links by itself
            delays_s=self.router.delays_s.tolist(),
            chunk_bytes=self._largest_message_bytes,
            best=best,
            flows=flows.values(),
            asks=[(demands.priority[index], demands.wanted_bps[index]) for index in flows if demands.priority],
            stay=stay,
            kept=demands.kept,
            probes=probes,
            given=[(*pair, path) for pair, path in given.items()],
            connections=connections,
            channels=channels,
            wants=wants,
        )
        self._limit(reply.limits_bps)
        self._spread_paths = {index: path for index, (path, _, _) in zip(flows, reply.flow_paths, strict=True)}
        self._crossing_paths = dict(zip(crossings, reply.paths, strict=True))
        self._rerouted = True
        return reply.messages

    @property
    def _largest_message_bytes(self) -> int:
        """The size of the message for which paths are chosen."""
        if self.config.program.is_given:
            return self.config.program.message_bytes
        # As the model chooses: by the first round, where others have other messages.
        return self.config.of_round(0).workload.unsprayed.largest_message_bytes

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

    def faults(self, indices: Sequence[int]) -> tuple[Fault, ...]:
        """Return the faults with these indices."""
        return tuple(self.config.faults[index] for index in indices)

    def _edges(self) -> list[tuple[int, int]]:
        """Return the source and destination ranks of every flow."""
        begins, ends = self.config.workload.schedule.ends
        return [(self.placement[src], self.placement[dst]) for src, dst in zip(begins, ends, strict=True)]

    def _crossings(self) -> list[tuple[int, int]]:
        """Return the crossings: the (source, destination) ranks in different sites, each pair once."""
        site = [gpu.site for gpu in self.fabric.gpus]
        return list(dict.fromkeys((src, dst) for src, dst in self._edges() if site[src] != site[dst]))

    def flow_paths(self) -> tuple[int, ...]:
        """Return the path of every flow, from the controller's last reply or the fixed path; -1 within a site."""
        gpus, between = self.fabric.gpus, self.fabric.paths_between
        paths = {(a, b): between[gpus[a].site, gpus[b].site][0].index for a, b in self._crossings()}
        paths |= self._crossing_paths
        return tuple(self._spread_paths.get(index, paths.get(edge, -1)) for index, edge in enumerate(self._edges()))


@lru_cache(maxsize=4)
def _extent_of(config: Scenario, scale: RateScale) -> Extent:
    """Return the extent of a configuration's workload, scaled, or of those of all its rounds."""
    rounds = range(config.collective.count if config.has_drawn_jobs else 1)
    return extent(scaled_workload(config.of_round(number).workload, scale) for number in rounds)
