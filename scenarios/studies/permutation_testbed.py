"""Measure flow completion times of a permutation of messages in the emulated testbed, with a VM for each draw and
routing.

The testbed has at least two sites, so a single site gets a neighbour of two idle GPUs. Links have a delay of 1 ns, the
minimum.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.collectives.goal import text
from hosts.collectives.kinds import MESSAGES
from hosts.collectives.schedule import Flow, Schedule, Transfer
from scenarios.api import RunError
from scenarios.engines.base import Failed, Slice
from scenarios.engines.emulation import Emulation, check_waits
from scenarios.spec.scenario import DEFAULTS, Scenario
from topologies.fabric.fabric import build_fabric

_MIN_DELAY_S = 1e-9
_ARRIVED_NS, _SRC = 6, 2  # columns of `Rows.transfers`

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A permutation, given by the destination of each host, [hosts], its routing and the seed of the routing's hash."""

    dst: Ints
    routing: str
    hash_seed: int


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The fabric and its messages: the hosts of each site, the switches in each site, the rates (bit/s) of all cables
    within sites and of WAN links, and the bytes of a message."""

    hosts: tuple[int, ...]
    leaves: int
    spines: int
    border_routers: int
    rate_bps: int
    wan_rate_bps: int
    size: int


Measure = Callable[[Callable[[int], None], int], Floats]


@contextmanager
def prepare_testbed(setup: Setup, draws: Sequence[Draw]) -> Iterator[Measure]:
    """Prepare the draws; the context has a function that measures when each host's message has arrived whole.

    Its arguments are a callback for progress, which gets the number of draws measured so far, and the number of VMs
    that run at a time; it returns times in s, [draws, hosts]. It raises RunError if a VM fails, and vm.CannotRunError
    if this machine cannot run one. Preparing raises FabricError for a fabric that cannot be built, and ValueError for
    messages that are too large.
    """
    with TemporaryDirectory() as folder:
        configs = [_config(setup, draw, Path(folder, f"{index}.goal")) for index, draw in enumerate(draws)]
        check_waits(configs)

        def measure(progress: Callable[[int], None], jobs: int) -> Floats:
            arrivals_s: dict[int, Floats] = {}
            with closing(Emulation(jobs).run(configs)) as events:
                for event in events:
                    if isinstance(event, Failed):
                        raise RunError(event.why)
                    if isinstance(event, Slice):
                        transfers = event.rows.records["transfers"]
                        last_s = np.zeros(sum(setup.hosts))
                        np.maximum.at(last_s, transfers[:, _SRC], transfers[:, _ARRIVED_NS] / 1e9)
                        arrivals_s[event.setting] = last_s
                        progress(len(arrivals_s))
            return np.array([arrivals_s[index] for index in range(len(draws))])

        yield measure


def _config(setup: Setup, draw: Draw, path: Path) -> Scenario:
    """Return the configuration of a draw, and write its schedule to a file."""
    values: dict[str, Any] = {
        "name": "permutation",
        "fabric.gpus": setup.hosts,
        "fabric.leaves": setup.leaves,
        "fabric.spines": setup.spines,
        "fabric.border_routers": setup.border_routers,
    }
    if len(setup.hosts) == 1:
        values |= {"fabric.gpus": (*setup.hosts, 2), "fabric.border_routers": 1}
        values |= {f"fabric.{tier}": (values[f"fabric.{tier}"], 1) for tier in ("leaves", "spines")}
    values |= {
        "fabric.grain": "physical",
        "fabric.routing": draw.routing,
        "fabric.hash_seed": draw.hash_seed,
        "conditions.intra_rate": (setup.rate_bps, setup.rate_bps),
        "conditions.wan_rate": (setup.wan_rate_bps, setup.wan_rate_bps),
        "conditions.intra_delay": _MIN_DELAY_S,
        "conditions.wan_delay": _MIN_DELAY_S,
        "collective.kind": MESSAGES,
        "collective.schedule": path,
        "collective.count": 1,
        "collective.emulated": 1,
        "run.modes": ("base",),
    }
    scenario = DEFAULTS.with_values(values)
    ranks = len(build_fabric(scenario.fabric).gpus)
    path.write_text(text(_schedule(draw.dst, ranks, setup.size), placement=range(ranks), slot_bytes=1))
    (config,) = scenario.configurations()
    return config


def _schedule(dst: Ints, ranks: int, size: int) -> Schedule:
    """Return a schedule in which every host sends one message, all of them independent of each other."""
    flows = tuple(Flow(src, to) for src, to in enumerate(dst.tolist()))
    transfers = tuple(Transfer(flow=flow, size=size) for flow in range(len(flows)))
    return Schedule(places=ranks, slots=0, flows=flows, transfers=transfers)
