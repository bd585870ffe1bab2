"""One point of an experiment, inside the VM: the network, the controller and the agents up, then its collectives.

For the VM or another ground (`Ground`), as root; `inside` is what is run there. What is chosen on the way is chosen as
in an experiment on real machines: the ring by the hosts' side, the WAN paths by the controller. What to do about faults
is `trial`'s.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.client import ControllerError
from controller.routing import Router
from hosts.capacity import carried_bps
from hosts.communicator import CollectiveError, Communicator
from hosts.lateness import Watch
from hosts.ring import rank_order
from scenarios import witness
from scenarios.awake import awake
from scenarios.control import PORT, ControllerProcess
from scenarios.document import ScenarioError
from scenarios.faults import Fault, known, slowed
from scenarios.ground import VIRTUAL, Ground
from scenarios.own import put_back
from scenarios.plan import Mode, choose_rings
from scenarios.row import Row
from scenarios.spec import Scenario
from scenarios.vm import VMError, openvswitch
from topologies.conditions import delays_s, sampler
from topologies.fabric import Fabric, build_fabric
from topologies.network import start
from topologies.nodes import NetworkError
from topologies.shaping import Shaping
from topologies.tc import DropCounter, Shaper, TcError

_READY_S = 60.0

Floats = npt.NDArray[np.float64]
Failure = (VMError, NetworkError, ControllerError, TcError, CollectiveError, ScenarioError)


class WrongDataError(CollectiveError):
    """A collective that delivered wrong bytes, which no repetition makes good."""


class Testbed:
    """Everything that a setting needs, up and ready; a context manager that takes it down again.

    `ground` is what it stands on; `tell` is told, in a few words, what is being done next while it comes up. Raises the
    errors of `Failure`, each a sentence, where a part of it does not come up or fails later.
    """

    def __init__(
        self, setting: Scenario, *, ground: Ground = VIRTUAL, tell: Callable[[str], object] = lambda _: None
    ) -> None:
        self.setting, self.ground, self._tell = setting, ground, tell
        self.fabric: Fabric = build_fabric(setting.fabric)
        self._conditions = sampler(self.fabric, setting.conditions, seed=setting.run.seed)
        self._delays_s: Floats = delays_s(self.fabric, setting.conditions)
        self._router = Router(self.fabric, self._delays_s)
        self._asked: dict[tuple[int, int], int] = {}  # the path of each crossing that was last asked for
        self._ring: tuple[int, ...] = ()
        self._joined: tuple[int, ...] = ()  # the ring that has connections
        self._stack = ExitStack()

    def __enter__(self) -> "Testbed":
        with ExitStack() as stack:
            if self.ground.own_openvswitch:
                self._tell("Open vSwitch")
                openvswitch.up()
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
            self._communicator = self._communicate(self.setting.collective.chunk_bytes)
            stack.callback(self._hang_up)
            self._drops = DropCounter(self.network.host_pids)
            stack.callback(self._drops.close)
            self._watch = stack.enter_context(Watch()) if self.ground.is_real else None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _shape(self, rates_bps: Floats) -> Shaper:
        """Shape the links, under these conditions and the delays there are."""
        shaping = Shaping(fabric=self.fabric, delays_s=self._delays_s, late_s=self.ground.late_s)
        return Shaper(shaping, self.ground.scale.rates_bps(rates_bps))

    def _unshape(self) -> None:
        self._shaper.close()

    def _hang_up(self) -> None:
        self._communicator.close()

    def _communicate(self, chunk_bytes: int, *, epoch: int = 0) -> Communicator:
        """Start the agents for chunks of this size; `epoch` is the last of those before them."""
        return Communicator(
            self.fabric,
            host_pids=self.network.host_pids,
            chunk_bytes=self.ground.scale.chunk_bytes(chunk_bytes),
            transport=self.setting.transport,
            lead_s=self.ground.lead_s,
            epoch=epoch,
        )

    def seen(self) -> dict[str, object]:
        """What the VM is like now (`witness.seen`)."""
        return witness.seen(self.network.host_pids[0])

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
        path = self._along()
        self._tell(f"collective {number}: the AllGather")
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
            ring=self._ring,
            path=path,
            reembedded=reembeds,
            rerouted=mode.reroutes and routed,
            drops=sum(self._drops.drops().values()),
            late=late,
            start_ns=tuple(at - zero_ns for at in result.start_ns),
            arrived_ns=tuple(tuple(at - zero_ns for at in arrived) for arrived in result.arrived_ns),
        )

    def _prepare(self, mode: Mode, number: int, in_force: Collection[Fault], *, afresh: bool) -> tuple[bool, bool]:
        """Shape the links for a collective, and see to its ring and paths; whether each was chosen anew."""
        rates_bps = self._conditions.rates_bps(number, 1)[0]
        self._tell(f"collective {number}: the shaping of the links")
        self._shaper.change(self.ground.scale.rates_bps(slowed(rates_bps, in_force, self.fabric)))
        rates_bps = known(rates_bps, in_force, self.fabric)
        reembeds = mode.reembeds and number % self.setting.collective.reembed_every == 0
        self._tell(f"collective {number}: the ring")
        if reembeds or not self._ring:
            self._embed(mode, rates_bps)
        else:
            self.join()
        routed = self.controller.alive() and (mode.reroutes or reembeds or number == 0 or afresh)
        if routed:
            self._tell(f"collective {number}: the controller's paths")
            self._route(mode, rates_bps)
        return reembeds, routed

    def join(self) -> None:
        """Make the connections of the ring, unless they are there."""
        if self._joined != self._ring:
            self._communicator.build_ring(self._ring)
            self._joined = self._ring

    def part(self) -> None:
        """Have new connections made before the next collective."""
        self._joined = ()

    def renew(self) -> None:
        """Start all agents anew, and make the ring that there was, if there was one; raises CollectiveError."""
        self._hang_up()
        self.part()
        self._tell("new agents")
        chunk_bytes, epoch = self.setting.collective.chunk_bytes, self._communicator.epoch
        self._communicator = self._communicate(chunk_bytes, epoch=epoch)
        if self._ring:
            self.join()

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
        return self._communicator.bytes_again()

    def outages(self) -> list[dict[str, Any]]:
        """What the controller says has been down (`controller.outages.Outage`); raises ControllerError."""
        found: list[dict[str, Any]] = self._controller.status()["outages"]
        return found

    def shape(self, number: int, in_force: Collection[Fault]) -> None:
        """Shape the links for a collective that is under way, with other faults."""
        rates_bps = slowed(self._conditions.rates_bps(number, 1)[0], in_force, self.fabric)
        self._shaper.change(self.ground.scale.rates_bps(rates_bps))

    def lose(self, interface: str, share: float) -> None:
        """Have a switch's port lose this share of what it sends."""
        self._shaper.lose(interface, share)

    def carried_bps(self) -> float:
        """What the hosts can send each other in all while no link is shaped; OSError where they cannot connect."""
        self._shaper.close()
        try:
            return carried_bps(self.fabric, self.network.host_pids)
        finally:
            self._shaper = self._shape(self._conditions.rates_bps(0, 1)[0])

    def _late(self) -> bool:
        """Whether timers were later, since this was asked last, than the shaping allows for; never in virtual time."""
        return self._watch is not None and self._watch.worst_s() > self.ground.late_s

    def _embed(self, mode: Mode, rates_bps: Floats) -> None:
        """Choose the ring as the hosts do, and make its connections where it is another one."""
        chunk_bytes = self.setting.collective.chunk_bytes
        if mode.reembeds:
            try:
                (chosen,) = choose_rings(self._router, rates_bps[None], chunk_bytes=chunk_bytes, reroutes=mode.reroutes)
            except ValueError as error:  # so much is down that there is none
                raise CollectiveError(f"no ring can be chosen: {error}") from None
        else:
            chosen = rank_order(self.fabric.gpus_per_site, self.fabric.site_cycle)
        self._ring = tuple(int(rank) for rank in chosen)
        self.join()

    def _route(self, mode: Mode, rates_bps: Floats) -> None:
        """Have the controller choose and install the paths of the ring's crossings."""
        crossings = self._crossings()
        reply = self._controller.route(
            crossings=crossings,
            rates_bps=np.maximum(rates_bps, 1.0).tolist(),  # what is down the controller knows by itself
            delays_s=self._delays_s.tolist(),
            chunk_bytes=self.setting.collective.chunk_bytes,
            best=mode.reroutes,
        )
        self._asked = dict(zip(crossings, reply.paths, strict=True))

    def _edges(self) -> list[tuple[int, int]]:
        return list(zip(self._ring, [*self._ring[1:], self._ring[0]], strict=True))

    def _crossings(self) -> list[tuple[int, int]]:
        site = [gpu.site for gpu in self.fabric.gpus]
        return [(src, dst) for src, dst in self._edges() if site[src] != site[dst]]

    def _along(self) -> tuple[int, ...]:
        """The path of every edge of the ring, as last told; of a crossing that was never asked for, the fixed one."""
        gpus, between = self.fabric.gpus, self.fabric.paths_between
        fixed = {(a, b): between[gpus[a].site, gpus[b].site][0].index for a, b in self._crossings()}
        return tuple((fixed | self._asked).get(edge, -1) if edge in fixed else -1 for edge in self._edges())
