"""One point of an experiment, inside the VM: the network, the controller and the agents up, then its collectives.

``python -m scenarios.testbed SCENARIO MODE COUNT`` runs the first collectives of a scenario without a sweep (the text
of its TOML file) in one mode and prints a line of JSON for each as soon as it is over (`Row`); it is for the VM alone,
as root. What is chosen on the
way is chosen as in an experiment on real machines: the ring by the hosts' side, the WAN paths by the controller.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from controller.client import Controller, ControllerError
from controller.protocol import write_spec
from controller.routing import Router
from hosts.communicator import CollectiveError, Communicator
from hosts.ring import rank_order
from scenarios.document import ScenarioError
from scenarios.loader import load_scenario
from scenarios.plan import MODES, Mode, choose_rings
from scenarios.spec import Scenario
from scenarios.vm import VMError, openvswitch
from topologies.conditions import delays_s, sampler
from topologies.fabric import Fabric, build_fabric
from topologies.network import start
from topologies.nodes import NetworkError
from topologies.shaping import Shaping
from topologies.tc import DropCounter, Shaper, TcError

PORT = 6653
_RUN = Path("/run/longhaul")
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
    start_ns: tuple[int, ...]
    arrived_ns: tuple[tuple[int, ...], ...]


class Testbed:
    """Everything that a setting needs, up and ready; a context manager that takes it down again.

    Raises the errors of `Failure`, each a sentence, where a part of it does not come up or fails later.
    """

    def __init__(self, setting: Scenario) -> None:
        self.setting = setting
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
            openvswitch.up()
            stack.callback(openvswitch.down)
            # The controller is busy importing while the switches are made; they look for it until it is there.
            process = stack.enter_context(_controller(self.setting))
            network = stack.enter_context(start(self.fabric, controller_port=PORT))
            self._shaper = stack.enter_context(
                Shaper(Shaping(fabric=self.fabric, delays_s=self._delays_s), self._conditions.rates_bps(0, 1)[0])
            )
            self._controller = stack.enter_context(Controller(_RUN / "controller.sock"))
            self._controller.wait_ready(timeout_s=_READY_S, alive=lambda: process.poll() is None)
            self._communicator = stack.enter_context(
                Communicator(
                    self.fabric,
                    host_pids=network.host_pids,
                    chunk_bytes=self.setting.collective.chunk_bytes,
                    transport=self.setting.transport,
                )
            )
            self._drops = DropCounter(network.host_pids)
            stack.callback(self._drops.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, mode: Mode, *, count: int) -> Iterator[Row]:
        """Run the first `count` collectives of the setting in one mode, in order."""
        for collective in range(count):
            rates_bps = self._conditions.rates_bps(collective, 1)[0]
            self._shaper.change(rates_bps)
            due = collective % self.setting.collective.reembed_every == 0
            reembeds = mode.reembeds and due
            if reembeds or not self._ring:
                self._embed(mode, rates_bps)
            if mode.reroutes or reembeds or collective == 0:
                self._route(mode, rates_bps)
            result = self._communicator.allgather()
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
                start_ns=tuple(at - zero_ns for at in result.start_ns),
                arrived_ns=tuple(tuple(at - zero_ns for at in arrived) for arrived in result.arrived_ns),
            )

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


@contextmanager
def _controller(setting: Scenario) -> Iterator["subprocess.Popen[bytes]"]:
    """The controller's process, for as long as it is needed."""
    _RUN.mkdir(mode=0o700, exist_ok=True)
    spec = _RUN / "fabric.json"
    spec.write_text(write_spec(setting.fabric))
    arguments = ["--fabric", str(spec), "--socket", str(_RUN / "controller.sock"), "--port", str(PORT)]
    process = subprocess.Popen(
        [sys.executable, "-m", "controller", *arguments],
        stdout=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C at a prompt is not for it
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def main(arguments: list[str]) -> int:
    """Run one point and print its rows; return an exit status."""
    text, mode, count = arguments
    _RUN.mkdir(mode=0o700, exist_ok=True)
    scenario = _RUN / "scenario.toml"
    scenario.write_text(text)
    try:
        with Testbed(load_scenario(str(scenario))) as testbed:
            for row in testbed.run(MODES[mode], count=int(count)):
                print(json.dumps(asdict(row)), flush=True)
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
