"""Benchmark of the model of flows that share links: collectives per second on one core, by size, algorithm and grain.

Run it as `python -m scenarios.bench_sharing [--gpus 8,16]`. For every collective, rates are drawn uniformly from the
default ranges, and so are embeddings (except those of hierarchical algorithms, which are in site order) and the WAN
paths of crossings, so that about as many links are shared as possible.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from analysis.model import fluid
from hosts.collectives.kinds import schedule
from topologies.command_line import CommandParser
from topologies.conditions.sampler import ConditionsSpec, delays_s
from topologies.fabric.fabric import GRAINS, FabricSpec, build_fabric
from topologies.fabric.ports import delays_of, links_in_grain

SIZES = (8, 16)
ALGORITHMS = (
    ("allgather", "ring"),
    ("allreduce", "hierarchical"),
    ("allreduce", "double-tree"),
    ("alltoall", "direct"),
)
_MIN_SECONDS = 1.0
_BATCH = 500


def collectives_per_second(gpus: int, kind: str, algorithm: str, grain: str, *, batch: int = _BATCH) -> float:
    """Measure collectives per second of processor time, over at least a second, after the kernels are compiled."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(gpus // 2, gpus // 2), grain=grain))
    measured, rng = schedule(kind, algorithm, sites=fabric.gpus_per_site), np.random.default_rng(1)
    placement = np.tile(np.arange(gpus), (batch, 1))
    if algorithm != "hierarchical":
        placement = rng.permuted(placement, axis=1)
    src, dst = (placement[:, [getattr(flow, end) for flow in measured.flows]] for end in ("src", "dst"))
    path = np.full(src.shape, -1)
    for (a, b), paths in fabric.paths_between.items():
        crosses = (fabric.gpu_sites[src] == a) & (fabric.gpu_sites[dst] == b)
        path[crosses] = rng.choice([one.index for one in paths], crosses.sum())
    conditions = ConditionsSpec()
    shared = links_in_grain(fabric)
    links, kinds = shared.of(src, dst, path), [link.kind for link in shared.all]
    delay_s = delays_of(links, delays_s(fabric, conditions))
    low, high = np.array([conditions.wan_rate_bps if k == "wan" else conditions.intra_rate_bps for k in kinds]).T

    def seconds(count: int) -> float:
        start = time.process_time()
        capacity_bps = rng.uniform(low, high, (count, len(kinds)))
        fluid.completion_s(measured.transfers, links[:count], capacity_bps, delay_s[:count], slot_bytes=8e6)
        return time.process_time() - start

    seconds(1)  # compiles the kernels
    took, batches = 0.0, 0
    while took < _MIN_SECONDS:
        took, batches = took + seconds(batch), batches + 1
    return batches * batch / took


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = CommandParser(prog="bench_sharing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=_sizes, default=SIZES, help="even numbers from 4 to 256, separated by commas")
    sizes = parser.parse_args(arguments).gpus
    print(f"{'GPUs':>4} {'collective':<12}{'algorithm':<14}" + "".join(f"{f'{grain}/s/core':>18}" for grain in GRAINS))
    for gpus in sizes:
        batch = max(5, min(_BATCH, _BATCH * 16**2 // gpus**2))  # large collectives need much time and memory
        for kind, algorithm in ALGORITHMS:
            rates = [collectives_per_second(gpus, kind, algorithm, grain, batch=batch) for grain in GRAINS]
            print(f"{gpus:>4} {kind:<12}{algorithm:<14}" + "".join(f"{rate:>18,.0f}" for rate in rates), flush=True)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(4 <= size <= 256 and size % 2 == 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text}; allowed: even numbers from 4 to 256, separated by commas")
    return sizes


if __name__ == "__main__":
    main()
