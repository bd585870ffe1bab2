"""A permutation of messages in the emulated testbed: flow completion times, with a VM for each draw and routing.

The testbed has two sites at least, so a site alone has a neighbour of two idle GPUs. Links have a delay of 1 ns, the
least there is.
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
from scenarios.engines.emulation import Emulation, check_chunks
from scenarios.spec.scenario import DEFAULTS, Scenario
from topologies.fabric.fabric import build_fabric

_LEAST_S = 1e-9
_ARRIVED_NS, _SRC = 6, 2  # columns of `Rows.transfers`

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A permutation, [hosts], and the routing that it meets with the seed of its hash."""

    dst: Ints
    routing: str
    hash_seed: int


@dataclass(frozen=True, kw_only=True)
class Bed:
    """The hosts and switches of each site, the rates in bit/s of all cables within sites and of WAN links, and the
    bytes of a message."""

    hosts: tuple[int, ...]
    leaves: int
    spines: int
    border_routers: int
    rate_bps: int
    wan_rate_bps: int
    size: int


Measure = Callable[[Callable[[int], None], int], Floats]


@contextmanager
def prepared(bed: Bed, draws: Sequence[Draw]) -> Iterator[Measure]:
    """Within the context a function that measures when each host's message had arrived whole, [draws, hosts] s.

    It is called with a function that takes the number of draws that are measured, and with how many VMs may run at a
    time; it raises RunError where a VM fails, vm.CannotRunError where none can run here. Raises FabricError for what
    cannot be built, ValueError for messages that are too large.
    """
    with TemporaryDirectory() as folder:
        settings = [_setting(bed, draw, Path(folder, f"{place}.goal")) for place, draw in enumerate(draws)]
        check_chunks(settings)

        def times_s(done: Callable[[int], None], jobs: int) -> Floats:
            found: dict[int, Floats] = {}
            with closing(Emulation(jobs).run(settings)) as news:
                for item in news:
                    if isinstance(item, Failed):
                        raise RunError(item.why)
                    if isinstance(item, Slice):
                        transfers = item.rows.transfers
                        assert transfers is not None
                        whole = np.zeros(sum(bed.hosts))
                        np.maximum.at(whole, transfers[:, _SRC], transfers[:, _ARRIVED_NS] / 1e9)
                        found[item.setting] = whole
                        done(len(found))
            return np.array([found[place] for place in range(len(draws))])

        yield times_s


def _setting(bed: Bed, draw: Draw, path: Path) -> Scenario:
    """The configuration of a draw, whose schedule is written to a file."""
    values: dict[str, Any] = {
        "name": "permutation",
        "fabric.gpus": bed.hosts,
        "fabric.leaves": bed.leaves,
        "fabric.spines": bed.spines,
        "fabric.border_routers": bed.border_routers,
    }
    if len(bed.hosts) == 1:
        values |= {"fabric.gpus": (*bed.hosts, 2), "fabric.border_routers": 1}
        values |= {f"fabric.{tier}": (values[f"fabric.{tier}"], 1) for tier in ("leaves", "spines")}
    values |= {
        "fabric.grain": "physical",
        "fabric.routing": draw.routing,
        "fabric.hash_seed": draw.hash_seed,
        "conditions.intra_rate": (bed.rate_bps, bed.rate_bps),
        "conditions.wan_rate": (bed.wan_rate_bps, bed.wan_rate_bps),
        "conditions.intra_delay": _LEAST_S,
        "conditions.wan_delay": _LEAST_S,
        "collective.kind": MESSAGES,
        "collective.schedule": path,
        "collective.count": 1,
        "collective.emulated": 1,
        "run.modes": ("base",),
    }
    found = DEFAULTS.with_values(values)
    places = len(build_fabric(found.fabric).gpus)
    path.write_text(text(_schedule(draw.dst, places, bed.size), placement=range(places), slot_bytes=1))
    (setting,) = found.settings()
    return setting


def _schedule(dst: Ints, places: int, size: int) -> Schedule:
    """Every host's message to another, none waiting for any."""
    flows = tuple(_flows(dst))
    transfers = tuple(Transfer(flow=flow, size=size) for flow in range(len(flows)))
    return Schedule(places=places, slots=0, flows=flows, transfers=transfers)


def _flows(dst: Ints) -> Iterator[Flow]:
    for src, to in enumerate(dst.tolist()):
        yield Flow(src, to)
