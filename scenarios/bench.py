"""Benchmark of the engines. Run it as `python scenarios/bench.py [--engine model|emulation] [--collectives N] ...`.

For the model, a separate process measures the speed and the memory of each mode at 8, 16 and 24 GPUs, on one core; then
the timing model alone is measured over the schedules of several collectives. For the emulation, one VM, which has one
CPU, runs each configuration in mode joint, in which all kinds of work between two collectives are done; its times are
compared with the time to copy the same bytes. With `--htsim PROGRAM`, the user's program `htsim_roce` simulates the
packets of the same AllGather beside.

With `--hops`, a VM for each of several numbers of GPUs runs mode base over ports, and its times are compared with the
bytes that an AllGather sends, summed over ports. With `--jobs N`, one worker and N workers run the same sweep in turns,
from its first point to its last, without the tables, figures and report at the end of a run. With `--schedules N`,
every algorithm of every collective is timed with N GPUs, each in a process of its own.

Only compare ratios within one run of the benchmark: absolute numbers depend on the machine.
"""

import _signal  # the part of `signal` that takes no time to import

if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback on Ctrl-C until the supervisor takes over

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.model.max_plus import CompiledSchedule

ROOT = Path(__file__).resolve().parent.parent
MODES = ("base", "ccl", "wan", "joint")
SIZES = (8, 16, 24)
EMULATED = ((8, "8 MB"), (16, "8 MB"), (8, "64 MB"), (16, "64 MB"))
HOPS = ((8, "8 MB"), (16, "8 MB"), (32, "2 MB"), (64, "1 MB"))
MAX_COLLECTIVES, MAX_JOBS, MAX_GPUS = 10_000_000, 8, 1024
SEEDS = [1, 2]
TURNS = 3
DEFAULTS = {("model", False): 4000, ("emulation", False): 12, ("model", True): 500_000, ("emulation", True): 12}
"""Collectives of a point, by the engine and by whether a sweep is measured (`--jobs`)."""
SCHEDULES = (
    ("allgather", "ring", 1),
    ("allreduce", "ring", 1),
    ("allreduce", "hierarchical", 1),
    ("allreduce", "halving-doubling", 1),
    ("allreduce", "double-tree", 16),
    ("alltoall", "direct", 1),
)
"""Kind, algorithm and pieces of the collectives with which the timing model alone is measured."""
SCHEDULE_SIZES = (8, 16, 64)
"""The numbers of GPUs with which these schedules are measured."""
_FEW_AT_ONCE = 20  # collectives in a call of the timing model with `--schedules`, where more could need much memory
_AT_ONCE = 2000  # collectives in a call without `--schedules`
_MIN_SECONDS = 1.0  # a shorter measurement is repeated with more collectives


def ends_s(
    engine: str, given: Mapping[str, object], jobs: int = 1, clock: Callable[[], float] = time.monotonic
) -> list[float]:
    """Run paper.toml with these keys and return the seconds from the start until each of its slices arrives.

    Raises RuntimeError if a point fails.
    """
    from scenarios.engines.base import Failed, Slice
    from scenarios.engines.emulation import Emulation
    from scenarios.engines.model import Model
    from scenarios.spec.load import Override, load_scenario
    from scenarios.studies import harness

    scenario = load_scenario("paper", [Override(key, value, "bench") for key, value in given.items()])
    harness.warn("bench.py", [scenario], emulates=engine != "model")
    configs = scenario.configurations()
    start, ends = clock(), []
    for event in (Model(jobs=jobs) if engine == "model" else Emulation(jobs=jobs)).run(configs):
        if isinstance(event, Failed):
            raise RuntimeError(f"nothing can be compared, because a point has failed: {event.why}")
        if isinstance(event, Slice):
            ends.append(clock() - start)
    return ends


def measured(gpus: int, mode: str, collectives: int) -> tuple[float, float]:
    """Measure the model in a mode at a size: AllGathers per second on this core, and this process's peak memory, bytes.

    Runs `collectives` of them, or more if these take less than a second. Only processor time counts, so that other
    work on the machine matters little. Imports and caches are warm when the clock starts.
    """
    given = {"fabric.gpus": gpus, "run.modes": [mode], "collective.chunk": "64 MB"}

    def seconds(count: int) -> float:
        return ends_s("model", {**given, "collective.count": count}, clock=time.process_time)[-1]

    seconds(10)
    while (took := seconds(collectives)) < _MIN_SECONDS:
        collectives = min(int(collectives * max(2.0, 1.2 * _MIN_SECONDS / took)), MAX_COLLECTIVES)
    return collectives / took, _peak_bytes()


def _peak_bytes() -> float:
    """Return this process's peak memory."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def evaluated(kind: str, algorithm: str, pieces: int, gpus: int) -> tuple[int, float]:
    """Measure the timing model of a schedule over two sites: its transfers, and evaluations per second on this core.

    Delays and rates are random. Runs until a second of processor time has passed.
    """
    from analysis.model.max_plus import CompiledSchedule
    from hosts.collectives.kinds import schedule

    timed = schedule(kind, algorithm, sites=(gpus // 2, gpus - gpus // 2), pieces=pieces)
    each_s = _evaluation_s(CompiledSchedule(timed.transfers), len(timed.flows), at_once=_AT_ONCE, least_s=_MIN_SECONDS)
    return len(timed.transfers), 1 / each_s


def _evaluation_s(model: "CompiledSchedule", flows: int, *, at_once: int, least_s: float) -> float:
    """Measure the processor seconds for one evaluation of a timing model, over at least `least_s`."""
    import numpy as np

    alpha_s, beta_s = np.random.default_rng(1).random((2, at_once, flows))
    model.completion_s(alpha_s.T, beta_s.T)
    start, done = time.process_time(), 0
    while (took := time.process_time() - start) < least_s:
        model.completion_s(alpha_s.T, beta_s.T)
        done += at_once
    return took / done


def scheduled(kind: str, algorithm: str, gpus: int) -> tuple[int, float, float, float]:
    """Measure a schedule over two sites: its transfers, and the processor seconds to make it, to prepare its timing
    model, and to evaluate that once (over at least a tenth of a second).

    Chains and trees have as many pieces as in grains.py. No flows share a link. Delays and rates are random.
    """
    from analysis.model.max_plus import CompiledSchedule
    from hosts.collectives.kinds import schedule
    from scenarios.studies.grains import PIECES, PIPELINED

    start = time.process_time()
    pieces = PIECES if algorithm in PIPELINED else 1
    timed = schedule(kind, algorithm, sites=(gpus // 2, gpus - gpus // 2), pieces=pieces)
    made = time.process_time()
    compiled = CompiledSchedule(timed.transfers)
    prepared = time.process_time()
    each_s = _evaluation_s(compiled, len(timed.flows), at_once=_FEW_AT_ONCE, least_s=_MIN_SECONDS / 10)
    return len(timed.transfers), made - start, prepared - made, each_s


def _bench_all_schedules(gpus: int) -> None:
    from hosts.collectives.kinds import ALGORITHMS

    columns = f"{'transfers':>10}{'made':>10}{'prepared':>10}{'each':>12}{'peak memory':>13}"
    print(f"{'collective':<14}{'algorithm':<20}{columns}")
    for kind, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:  # each in its own process, because peak memory is counted per process
            command = [sys.executable, __file__, "--one-schedule", kind, algorithm, "--schedules", str(gpus)]
            numbers = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            transfers, made, prepared, each, peak = map(float, numbers)
            times = f"{made:>8.2f} s{prepared:>8.2f} s{each * 1e3:>9.3f} ms{peak / 1e6:>10.0f} MB"
            print(f"{kind:<14}{algorithm:<20}{transfers:>10,.0f}{times}", flush=True)
    print("\nprocessor time on one core: to make a schedule, to prepare its timing model, and to evaluate that once")


def _bench_schedules() -> None:
    print(f"\n{'timing model alone':<36}{'GPUs':>5}{'transfers':>11}{'collectives/s/core':>20}")
    for kind, algorithm, pieces in SCHEDULES:
        name = f"{kind}, {algorithm}" + (f", {pieces} pieces" if pieces > 1 else "")
        for gpus in SCHEDULE_SIZES:
            transfers, rate = evaluated(kind, algorithm, pieces, gpus)
            print(f"{name:<36}{gpus:>5}{transfers:>11,}{rate:>20,.0f}", flush=True)


def _bench_model(collectives: int) -> None:
    print(f"{'mode':<6}{'GPUs':>5}{'AllGathers/s/core':>19}{'times':>9}{'peak memory':>14}{'times':>8}")
    for mode in MODES:
        first = None
        for gpus in SIZES:  # each in its own process, because peak memory is counted per process
            command = [sys.executable, __file__, "--one", str(gpus), mode, "--collectives", str(collectives)]
            numbers = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            rate, peak = map(float, numbers)
            first = first or (rate, peak)
            growth = f"{rate / first[0]:>9.3f}{peak / 1e6:>11.0f} MB{peak / first[1]:>8.2f}"
            print(f"{mode:<6}{gpus:>5}{rate:>19,.0f}{growth}", flush=True)
    print(
        "\ntimes: relative to the same mode at 8 GPUs; peak memory: of one process, with numpy and the imported modules"
    )


def copying_s(gpus: int, chunk_bytes: int) -> float:
    """Measure the seconds for the copies that an AllGather needs: every chunk into and out of every connection."""
    import numpy as np

    source, sink = np.ones(chunk_bytes, dtype=np.uint8), np.ones(chunk_bytes, dtype=np.uint8)
    start = time.monotonic()
    for _ in range(2 * gpus * (gpus - 1)):
        np.copyto(sink, source)
    return time.monotonic() - start


def _bench_emulation(collectives: int, htsim: Path | None) -> None:
    from scenarios.bench_htsim import seconds
    from topologies.units import parse_size_bytes

    heading = f"{'GPUs':>5}{'chunk':>8}{'boot to first':>15}{'per AllGather':>15}{'worst':>9}{'copying':>10}"
    print(heading + f"{'times':>7}" + f"{'htsim':>10}" * (htsim is not None))
    for gpus, chunk in EMULATED:
        given = {"fabric.gpus": gpus, "collective.chunk": chunk, "collective.count": collectives}
        ends = ends_s("emulation", {**given, "run.modes": ["joint"]})
        rest = [after - before for before, after in pairwise(ends)]
        copying, typical = copying_s(gpus, parse_size_bytes(chunk)), statistics.median(rest)
        times = f"{ends[0]:>13.1f} s{typical:>13.2f} s{max(rest):>7.2f} s{copying:>8.2f} s{typical / copying:>7.1f}"
        beside = "" if htsim is None else f"{seconds(htsim, gpus, parse_size_bytes(chunk)):>8.2f} s"
        print(f"{gpus:>5}{chunk:>8}{times}{beside}", flush=True)
    print("\nwall time; copying: the bytes of one AllGather, twice, on this machine; times: AllGather / copying")
    if htsim is not None:
        print("htsim: the packets of one AllGather, simulated")


def bytes_over_ports(gpus: int, chunk: str) -> int:
    """Return the bytes that an AllGather of `_bench_hops` sends, summed over all ports."""
    from scenarios.engines.prediction import link_bytes
    from scenarios.spec.load import Override, load_scenario

    given = {"fabric.gpus": gpus, "collective.chunk": chunk, "fabric.grain": "physical", "run.modes": ["base"]}
    config = load_scenario("paper", [Override(key, value, "bench") for key, value in given.items()])
    return sum(link_bytes(config, "base").values())


def _bench_hops(collectives: int) -> None:
    print(f"{'GPUs':>5}{'chunk':>8}{'boot to first':>15}{'per AllGather':>15}{'GB x hops':>11}{'each':>11}{'times':>7}")
    first = None
    for gpus, chunk in HOPS:
        given = {"fabric.gpus": gpus, "collective.chunk": chunk, "collective.count": collectives}
        ends = ends_s("emulation", {**given, "fabric.grain": "physical", "run.modes": ["base"]})
        typical = statistics.median(after - before for before, after in pairwise(ends))
        gb_hops = bytes_over_ports(gpus, chunk) / 1e9
        first = first or typical / gb_hops
        each = f"{gb_hops:>11.2f}{typical / gb_hops * 1e3:>8.0f} ms{typical / gb_hops / first:>7.2f}"
        print(f"{gpus:>5}{chunk:>8}{ends[0]:>13.1f} s{typical:>13.2f} s{each}", flush=True)
    print("\nwall time; each: for a GB over a port; times: relative to the first row")


def _bench_jobs(engine: str, jobs: int, collectives: int) -> None:
    print(f"{engine}, {len(MODES) * len(SEEDS)} points of {collectives:,} collectives")
    print(f"{'turn':>5}{'1 worker':>12}{f'{jobs} workers':>12}{'times faster':>14}", flush=True)
    ratios, given = [], {"collective.count": collectives, "sweep.run.seed": SEEDS}
    for turn in range(1, TURNS + 1):
        one_s, many_s = (ends_s(engine, given, workers)[-1] for workers in (1, jobs))
        ratios.append(one_s / many_s)
        print(f"{turn:>5}{one_s:>10.1f} s{many_s:>10.1f} s{ratios[-1]:>14.2f}", flush=True)
    print(f"\nmedian: {statistics.median(ratios):.2f} times faster; wall time from the first point to the last")


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace, count: int) -> None:
    """End with an error if an option has a value, or is beside another, that is not allowed."""
    if not 2 <= count <= MAX_COLLECTIVES:
        parser.error(f"--collectives: {count} is not allowed; allowed: 2 to {MAX_COLLECTIVES:,}")
    if options.jobs is not None and not 2 <= options.jobs <= MAX_JOBS:
        parser.error(f"--jobs: {options.jobs} is not allowed; allowed: 2 to {MAX_JOBS}")
    if options.htsim is not None and (options.engine != "emulation" or options.hops or options.jobs is not None):
        parser.error("--htsim: it is not allowed here; allowed: with --engine emulation alone")
    if options.htsim is not None and not (options.htsim.is_file() and os.access(options.htsim, os.X_OK)):
        parser.error(f"--htsim: {options.htsim} cannot be run; allowed: the path of htsim_roce, built from csg-htsim")
    if options.schedules is not None and not 4 <= options.schedules <= MAX_GPUS:
        parser.error(f"--schedules: {options.schedules} is not allowed; allowed: 4 to {MAX_GPUS:,}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, return the exit status."""
    from topologies.command_line import CommandParser

    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["model", "emulation"], default="model", help="(default model)")
    parser.add_argument(
        "--collectives",
        type=int,
        metavar="N",
        help="at a point (default: 4000, or more until a second has passed; emulation: 12; a sweep of the model: "
        "500,000)",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="measure a sweep with one worker and with N, in turns")
    parser.add_argument(
        "--schedules", type=int, metavar="N", help="measure the timing model of every algorithm with N GPUs"
    )
    parser.add_argument("--hops", action="store_true", help="measure the emulation's cost per byte and hop")
    parser.add_argument(
        "--htsim", type=Path, metavar="PROGRAM", help="with --engine emulation: htsim_roce, to simulate the same beside"
    )
    parser.add_argument("--one-schedule", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, metavar=("GPUS", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    count = options.collectives
    if count is None:
        count = DEFAULTS["emulation" if options.hops else options.engine, options.jobs is not None]
    _check(parser, options, count)
    from scenarios.vm import VMError

    try:
        if options.one_schedule:
            kind, algorithm = options.one_schedule
            print(*scheduled(kind, algorithm, options.schedules), _peak_bytes())
        elif options.schedules is not None:
            _bench_all_schedules(options.schedules)
        elif options.hops:
            _bench_hops(count)
        elif options.jobs is not None:
            _bench_jobs(options.engine, options.jobs, count)
        elif options.engine == "emulation":
            _bench_emulation(count, options.htsim)
        elif options.one:
            print(*measured(int(options.one[0]), options.one[1], count))
        else:
            _bench_model(count)
            _bench_schedules()
    except (VMError, RuntimeError) as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return error.status if isinstance(error, VMError) else 1
    return 0


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import supervised

    sys.exit(supervised(main))
