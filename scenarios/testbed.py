"""One point of an experiment, inside the VM: the network, the controller and the agents up, then its collectives.

``python -m scenarios.testbed SCENARIO MODE COUNT [GROUND]`` runs the first collectives of a scenario without a sweep
(the text of its TOML file) in one mode and prints a line of JSON for each as soon as it is over (`Row`), and one before
the first and after the last of what the machine is like (`witness`); it runs as root, in the VM or on the ground
(`Ground`) that is named. What is chosen on the way is chosen as in an experiment on real machines: the ring by the
hosts' side, the WAN paths by the controller.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from controller.client import ControllerError
from controller.routing import Router
from hosts.capacity import carried_bps
from hosts.communicator import CollectiveError, Communicator
from hosts.lateness import Watch
from hosts.ring import rank_order
from scenarios import witness
from scenarios.control import PORT, ControllerProcess
from scenarios.document import ScenarioError
from scenarios.ground import CAPACITY, VIRTUAL, Ground
from scenarios.interrupt import guarded
from scenarios.loader import load_scenario
from scenarios.own import put_back
from scenarios.plan import MODES, Mode, choose_rings
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One collective as it was measured.

    `completion_s` is from the first beginning to the last end over all ranks. `ring` is in the order of the ring, and
    `path` the index in `Fabric.paths` for each of its edges, -1 within a site. `drops` counts packets lost anywhere.
    Since the first beginning, in ns: `start_ns[rank]` when each rank began, `arrived_ns[rank][step - 1]` when it had
    received the chunk of each step whole.
    """

    collective: int
    completion_s: float
    ring: tuple[int, ...]
    path: tuple[int, ...]
    reembedded: bool
    rerouted: bool
    drops: int
    late: bool
    start_ns: tuple[int, ...]
    arrived_ns: tuple[tuple[int, ...], ...]


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
        self._crossings: tuple[tuple[int, int], ...] = ()
        self._paths: tuple[int, ...] = ()
        self._ring: tuple[int, ...] = ()
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
            process = stack.enter_context(ControllerProcess(self.setting.fabric, self.ground.folder))
            self._tell(f"{len(self.fabric.gpus)} hosts and {len(self.fabric.switches)} switches")
            self.network = stack.enter_context(start(self.fabric, controller_port=PORT))
            self._tell("the shaping of the links")
            self._shaper = self._shape(self._conditions.rates_bps(0, 1)[0])
            stack.callback(self._unshape)
            self._tell("the controller and its rules")
            self._controller = stack.enter_context(process.client())
            self._controller.wait_ready(timeout_s=_READY_S, alive=process.alive)
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
        """Run the first `count` collectives of the setting in one mode, in order."""
        for collective in range(count):
            rates_bps = self._conditions.rates_bps(collective, 1)[0]
            self._shaper.change(self.ground.scale.rates_bps(rates_bps))
            due = collective % self.setting.collective.reembed_every == 0
            reembeds = mode.reembeds and due
            if reembeds or not self._ring:
                self._embed(mode, rates_bps)
            if mode.reroutes or reembeds or collective == 0:
                self._route(mode, rates_bps)
            self._late()
            result = self._communicator.allgather()
            late = self._late()
            if result.faults:
                fault = result.faults[0]
                raise CollectiveError(
                    f"collective {collective} delivered wrong data: GPU {fault.rank}, step {fault.step}: {fault.text}"
                )
            zero_ns = min(result.start_ns)
            yield Row(
                collective=collective,
                completion_s=result.completion_s,
                ring=self._ring,
                path=self._paths,
                reembedded=reembeds,
                rerouted=mode.reroutes,
                drops=sum(self._drops.drops().values()),
                late=late,
                start_ns=tuple(at - zero_ns for at in result.start_ns),
                arrived_ns=tuple(tuple(at - zero_ns for at in arrived) for arrived in result.arrived_ns),
            )

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
            chosen = choose_rings(self._router, rates_bps[None], chunk_bytes=chunk_bytes, reroutes=mode.reroutes)[0]
        else:
            chosen = rank_order(self.fabric.gpus_per_site, self.fabric.site_cycle)
        ring = tuple(int(rank) for rank in chosen)
        if ring != self._ring:
            self._communicator.build_ring(ring)
            self._ring = ring

    def _route(self, mode: Mode, rates_bps: Floats) -> None:
        """Have the controller choose and install the paths of the ring's crossings."""
        site = [gpu.site for gpu in self.fabric.gpus]
        edges = list(zip(self._ring, [*self._ring[1:], self._ring[0]], strict=True))
        crossings = [(src, dst) for src, dst in edges if site[src] != site[dst]]
        reply = self._controller.route(
            crossings=crossings,
            rates_bps=rates_bps.tolist(),
            delays_s=self._delays_s.tolist(),
            chunk_bytes=self.setting.collective.chunk_bytes,
            best=mode.reroutes,
        )
        path = dict(zip(crossings, reply.paths, strict=True))
        self._paths = tuple(path.get(edge, -1) for edge in edges)


def main(arguments: list[str]) -> int:
    """Run one point and print its rows, or with the mode "capacity" what can be carried; return an exit status."""
    text, mode, count = arguments[:3]
    ground = Ground.parse(arguments[3]) if arguments[3:] else VIRTUAL
    try:
        with ground.files() as folder:
            scenario = folder / "scenario.toml"
            scenario.write_text(text)
            with Testbed(load_scenario(str(scenario)), ground=replace(ground, folder=folder)) as testbed:
                if mode == CAPACITY:
                    print(json.dumps({"carried_bps": testbed.carried_bps()}), flush=True)
                    return 0
                print(json.dumps({"before": testbed.seen()}), flush=True)
                for row in testbed.run(MODES[mode], count=int(count)):
                    print(json.dumps(asdict(row)), flush=True)
                print(json.dumps({"after": testbed.seen()}), flush=True)
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the network does not carry what it should: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
