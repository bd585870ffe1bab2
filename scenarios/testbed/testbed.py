"""One point of an experiment, inside the VM: the network, the controller and the agents up, then its collectives.

For the VM or another ground (`Ground`), as root; `inside` is what is run there. What is chosen on the way is chosen as
in an experiment on real machines: the ring by the hosts' side, the WAN paths by the controller. What to do about faults
is `trial`'s.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError
from controller.process import PORT, ControllerProcess
from controller.routing.path_choice import Router
from hosts.communicator import CollectiveError, Communicator
from hosts.embedding.ring import rank_order
from hosts.monitor import TimerLatency, throughput_bps
from scenarios.policies.decide import Mode, choose_rings
from scenarios.spec.faults import Fault, known, slowed
from scenarios.spec.scenario import Scenario
from scenarios.testbed import snapshot
from scenarios.testbed.platform import VIRTUAL, Ground, put_back
from scenarios.testbed.row import Row
from scenarios.vm import VMError, openvswitch
from scenarios.vm.openvswitch import awake
from topologies.conditions.sampler import delays_s, sampler
from topologies.errors import SpecError
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.mininet_network import start
from topologies.mininet_nodes import NetworkError
from topologies.shaping.classes import Shaping
from topologies.shaping.tc import DropCounter, Shaper, TcError

_READY_S = 60.0

Floats = npt.NDArray[np.float64]
Failure = (VMError, NetworkError, ControllerError, TcError, CollectiveError, SpecError)


class WrongDataError(CollectiveError):
    """A collective that delivered wrong bytes, which no repetition makes good."""


class Testbed:
    """Everything that a setting needs, up and ready; a context manager that takes it down again.

    `ground` is what it stands on; `tell` is told, in a few words, what is being done next while it comes up. Raises the
    errors of `Failure`, each a sentence, where a part of it does not come up or fails later.

    `delays_s`, [links], are the links' delays; `ring` is the ring of the next collective, rank by rank. Whoever sets it
    calls `join` before the next collective, and `route` if it needs other paths.
    """

    def __init__(
        self, setting: Scenario, *, ground: Ground = VIRTUAL, tell: Callable[[str], object] = lambda _: None
    ) -> None:
        self.setting, self.ground, self._tell = setting, ground, tell
        self.fabric: Fabric = build_fabric(setting.fabric)
        self._conditions = sampler(self.fabric, setting.conditions, seed=setting.run.seed)
        self.delays_s: Floats = delays_s(self.fabric, setting.conditions)
        self.router = Router(self.fabric, self.delays_s)
        self._asked: dict[tuple[int, int], int] = {}  # the path of each crossing that was last asked for
        self.ring: tuple[int, ...] = ()
        self._joined: tuple[int, ...] = ()  # the ring that has connections
        self._stack = ExitStack()

    def __enter__(self) -> "Testbed":
        with ExitStack() as stack:
            if self.ground.own_openvswitch:
                self._tell("Open vSwitch")
                if openvswitch.up():
                    stack.callback(openvswitch.down)
            else:
                stack.enter_context(put_back())
            # The controller is busy importing while the switches are made; they look for it until it is there.
            self.controller = stack.enter_context(ControllerProcess(self.setting.fabric, self.ground.folder))
            self._tell(f"{len(self.fabric.gpus)} hosts and {len(self.fabric.switches)} switches")
            self.network = stack.enter_context(start(self.fabric, controller_port=PORT))
            self._tell("the shaping of the links")
            self._shaper = self._shape(self._conditions.rates_bps(0, 1)[0])
            stack.callback(self._unshape)
            self._tell("the controller and its rules")
            self._controller = stack.enter_context(self.controller.client())
            self._wait_ready()
            self._tell("the agents")
            self._communicator = self._communicate()
            stack.callback(self._hang_up)
            self._drops = DropCounter(self.network.host_pids)
            stack.callback(self._drops.close)
            self._watch = stack.enter_context(TimerLatency()) if self.ground.is_real else None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _shape(self, rates_bps: Floats) -> Shaper:
        """Shape the links, under these conditions and the delays there are."""
        shaping = Shaping(fabric=self.fabric, delays_s=self.delays_s, late_s=self.ground.late_s)
        return Shaper(shaping, self.ground.scale.rates_bps(rates_bps))

    def _unshape(self) -> None:
        self._shaper.close()

    def _hang_up(self) -> None:
        self._communicator.close()

    def _communicate(self, *, epoch: int = 0) -> Communicator:
        """Start the agents; `epoch` is the last of those before them."""
        return Communicator(
            self.fabric,
            host_pids=self.network.host_pids,
            chunk_bytes=self.ground.scale.chunk_bytes(self.setting.collective.chunk_bytes),
            transport=self.setting.transport,
            lead_s=self.ground.lead_s,
            epoch=epoch,
        )

    def seen(self) -> dict[str, object]:
        """What the VM is like now (`witness.seen`)."""
        return snapshot.seen(self.network.host_pids[0])

    def run(self, mode: Mode, *, count: int) -> Iterator[Row]:
        """Run the first `count` collectives of the setting in one mode, in order; whatever fails ends it."""
        for number in range(count):
            yield self.collective(mode, number)

    def collective(
        self,
        mode: Mode,
        number: int,
        *,
        in_force: Collection[Fault] = (),
        afresh: bool = False,
        on_start: Callable[[int], object] = lambda _: None,
    ) -> Row:
        """Run the collective of this number, after all before it.

        `in_force` are the faults that those who choose rings and paths know of; `afresh` has paths chosen even where
        the mode would not. Without a living controller no path is chosen, and forwarding stays as it is. `on_start` is
        told when the collective begins (CLOCK_MONOTONIC, ns), shortly before.
        """
        reembeds, routed = self._prepare(mode, number, in_force, afresh=afresh)
        self._tell(f"collective {number}: the AllGather")
        return self.measure(number, reembedded=reembeds, rerouted=mode.reroutes and routed, on_start=on_start)

    def measure(
        self,
        number: int,
        *,
        reembedded: bool = False,
        rerouted: bool = False,
        on_start: Callable[[int], object] = lambda _: None,
    ) -> Row:
        """Run an AllGather of this number along the ring and the paths that are in force.

        Raises CollectiveError where it fails, WrongDataError where it delivers wrong data.
        """
        path = self._along()
        self._late()
        result = self._communicator.allgather(on_start=on_start)
        late = self._late()
        if result.faults:
            fault = result.faults[0]
            raise WrongDataError(
                f"collective {number} delivered wrong data: GPU {fault.rank}, step {fault.step}: {fault.text}"
            )
        zero_ns = min(result.start_ns)
        return Row(
            collective=number,
            completion_s=result.completion_s,
            ring=self.ring,
            path=path,
            reembedded=reembedded,
            rerouted=rerouted,
            drops=self.drops(),
            late=late,
            start_ns=tuple(at - zero_ns for at in result.start_ns),
            arrived_ns=tuple(tuple(at - zero_ns for at in arrived) for arrived in result.arrived_ns),
        )

    def drops(self) -> int:
        """Packets dropped anywhere since the last call."""
        return sum(self._drops.drops().values())

    def _prepare(self, mode: Mode, number: int, in_force: Collection[Fault], *, afresh: bool) -> tuple[bool, bool]:
        """Shape the links for a collective, and see to its ring and paths; whether each was chosen anew."""
        rates_bps = self._conditions.rates_bps(number, 1)[0]
        self._tell(f"collective {number}: the shaping of the links")
        self.change(slowed(rates_bps, in_force, self.fabric))
        rates_bps = known(rates_bps, in_force, self.fabric)
        reembeds = mode.reembeds_at(number, self.setting.collective.reembed_every)
        self._tell(f"collective {number}: the ring")
        if reembeds or not self.ring:
            self._embed(mode, rates_bps)
        else:
            self.join()
        routed = self.controller.alive() and (mode.reroutes or reembeds or number == 0 or afresh)
        if routed:
            self._tell(f"collective {number}: the controller's paths")
            self.route(mode, rates_bps)
        return reembeds, routed

    def join(self) -> None:
        """Make the connections of the ring, unless they are there."""
        if self._joined != self.ring:
            self._communicator.build_ring(self.ring)
            self._joined = self.ring

    def part(self) -> None:
        """Have new connections made before the next collective."""
        self._joined = ()

    def renew(self, *, chunk_bytes: int | None = None) -> None:
        """Start all agents anew, for chunks of another size if given, and connect the ring that there was, if any.

        Raises CollectiveError.
        """
        if chunk_bytes is not None:
            self.setting = replace(self.setting, collective=replace(self.setting.collective, chunk_bytes=chunk_bytes))
        self._hang_up()
        self.part()
        self._tell("new agents")
        self._communicator = self._communicate(epoch=self._communicator.epoch)
        if self.ring:
            self.join()

    def kill_agents(self) -> None:
        """End the agents at once; `renew` starts others."""
        self._communicator.kill()

    def restart_controller(self, *, without: Collection[str] = ()) -> None:
        """Start a new controller in place of one that has ended; return once every switch but those `without` knows it.

        Raises ControllerError where it does not come up.
        """
        self._tell("a new controller")
        self._controller.close()
        self.controller.start()
        self._wait_ready(without)

    def _wait_ready(self, without: Collection[str] = ()) -> None:
        with awake():
            self._controller.wait_ready(timeout_s=_READY_S, alive=self.controller.alive, without=without)

    def agent_pid(self, rank: int) -> int:
        """The process of an agent."""
        return int(self._communicator.agent_pids[rank])

    def bytes_again(self) -> int:
        """The bytes that TCP has sent again since the ring was made."""
        return self._communicator.retransmitted_bytes()

    def status(self) -> Mapping[str, Any]:
        """The controller's routes, failed cables and outages (`Controller.status`); raises ControllerError."""
        found: Mapping[str, Any] = self._controller.status()
        return found

    def outages(self) -> list[dict[str, Any]]:
        """What the controller says has been down (`controller.routing.link_state.Outage`); raises ControllerError."""
        found: list[dict[str, Any]] = self.status()["outages"]
        return found

    def shape(self, number: int, in_force: Collection[Fault]) -> None:
        """Shape the links for a collective that is under way, with other faults."""
        self.change(slowed(self._conditions.rates_bps(number, 1)[0], in_force, self.fabric))

    def change(self, rates_bps: Floats) -> None:
        """Give the links other rates, [links] bit/s, of which the rate scale's part is carried."""
        self._shaper.change(self.ground.scale.rates_bps(rates_bps))

    def reshape(self, rates_bps: Floats, *, delays_s: Floats | None = None) -> None:
        """Shape the links from scratch, with other delays if given; packets in the queues are lost."""
        self._unshape()
        if delays_s is not None:
            self.delays_s, self.router = delays_s, Router(self.fabric, delays_s)
        self._shaper = self._shape(rates_bps)

    def allow_late(self, late_s: float) -> None:
        """From the next change on, have every class save up the burst that a timer late by this many seconds needs."""
        self._shaper.shaping = replace(self._shaper.shaping, late_s=late_s)

    def lose(self, interface: str, share: float) -> None:
        """Have a switch's port lose this share of what it sends."""
        self._shaper.lose(interface, share)

    def carried_bps(self) -> float:
        """What the hosts can send each other in all while no link is shaped; OSError where they cannot connect."""
        self._shaper.close()
        try:
            return throughput_bps(self.fabric, self.network.host_pids)
        finally:
            self._shaper = self._shape(self._conditions.rates_bps(0, 1)[0])

    def _late(self) -> bool:
        """Whether timers were later, since this was asked last, than the shaping allows for; never in virtual time."""
        return self._watch is not None and self._watch.worst_s() > self.ground.late_s

    def _embed(self, mode: Mode, rates_bps: Floats) -> None:
        """Choose the ring as the hosts do, and make its connections where it is another one."""
        try:
            self.ring = self.chosen_ring(rates_bps, best=mode.reembeds, reroutes=mode.reroutes)
        except ValueError as error:  # so much is down that there is none
            raise CollectiveError(f"no ring can be chosen: {error}") from None
        self.join()

    def chosen_ring(self, rates_bps: Floats, *, best: bool, reroutes: bool) -> tuple[int, ...]:
        """The best ring under these rates, [links] bit/s, 0 for a link that is down, or the one in rank order.

        `reroutes`: the best WAN paths are about to be chosen for it. Raises ValueError where there is no ring.
        """
        if best:
            size = self.setting.collective.chunk_bytes
            (chosen,) = choose_rings(self.router, rates_bps[None], chunk_bytes=size, reroutes=reroutes)
        else:
            chosen = rank_order(self.fabric.gpus_per_site, self.fabric.site_cycle)
        return tuple(int(rank) for rank in chosen)

    def route(self, mode: Mode, rates_bps: Floats) -> None:
        """Have the controller choose and install the paths of the ring's crossings."""
        crossings = self._crossings()
        reply = self._controller.route(
            crossings=crossings,
            rates_bps=np.maximum(rates_bps, 1.0).tolist(),  # what is down the controller knows by itself
            delays_s=self.delays_s.tolist(),
            chunk_bytes=self.setting.collective.chunk_bytes,
            best=mode.reroutes,
        )
        self._asked = dict(zip(crossings, reply.paths, strict=True))

    def _edges(self) -> list[tuple[int, int]]:
        return list(zip(self.ring, [*self.ring[1:], self.ring[0]], strict=True))

    def _crossings(self) -> list[tuple[int, int]]:
        site = [gpu.site for gpu in self.fabric.gpus]
        return [(src, dst) for src, dst in self._edges() if site[src] != site[dst]]

    def _along(self) -> tuple[int, ...]:
        """The path of every edge of the ring, as last told; of a crossing that was never asked for, the fixed one."""
        gpus, between = self.fabric.gpus, self.fabric.paths_between
        fixed = {(a, b): between[gpus[a].site, gpus[b].site][0].index for a, b in self._crossings()}
        return tuple((fixed | self._asked).get(edge, -1) if edge in fixed else -1 for edge in self._edges())
