"""Collectives by size and algorithm in the columns of nccl-tests: measured and predicted times, and the lower bound.

Run it as `python scenarios/collectives.py [SCENARIO] --kind allreduce --engine both`. Fabric, conditions and modes are
those of the scenario (run.py's --set works here too). As in nccl-tests, a size is that of the whole buffer. Every line
is the mean over the first collectives of a point. Options of nccl-tests have their letters here, too, and --nccl prints
its columns. A kind may have the name of its program there, such as all_reduce_perf.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.experiment.options import CANNOT, DONE, FAILED, MAX_JOBS, ScenarioParser, single_value
from scenarios.studies.harness import (
    Answer,
    Column,
    Show,
    Study,
    Table,
    add_output,
    add_scenario,
    check_plain,
    check_range,
    listed,
    quantity,
    warn,
    warnings_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

COMMAND = "collectives.py"
_OF_RUN = ("gpus", "wan_delay", "seed")  # options that are those of run.py
_MIN_BYTES, _MAX_BYTES, _MAX_COLLECTIVES, _MAX_SIZES = 1, 10**12, 1000, 1000
_HYPERCUBE = "hypercube"
_TESTS = {_HYPERCUBE: ("allgather", ("halving-doubling",))}
"""Programs of nccl-tests that are a kind of collective by certain algorithms; all others are kinds."""

_BARE_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGkmg]?)")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A size of an algorithm in a mode: times in s and bandwidths in bytes/s, as means over the conditions.

    `measured_s` is None if nothing was measured, and `bound_s` if no bound is known; that is the one in the model of
    shared links if `is_bound_of_shared`. `algbw` and `busbw` come from the measured time if there is one, otherwise
    from the predicted one. `wrong` counts wrong elements (a point that has any is aborted) and is None if nothing was
    measured. `pieces` is the number of messages in which every slot is sent. `redop`, `root` (-1: none) and
    `count_each`, the elements of a call on a rank, are those of nccl-tests. `critical_path` has the seconds of the
    predicted time by link ("g0>g4"), largest first. `shared_links` are the links that two flows can use at once. Both
    name logical links or ports, depending on `grain`.
    """

    size: int
    count: int
    type: str
    grain: str
    mode: str
    algorithm: str
    measured_s: float | None
    predicted_s: float
    bound_s: float | None
    is_bound_of_shared: bool
    algbw: float
    busbw: float
    wrong: int | None
    critical_path: dict[str, float]
    shared_links: tuple[str, ...]
    redop: str
    root: int
    count_each: int
    pieces: int

    @property
    def time_s(self) -> float:
        """The measured time if there is one, otherwise the predicted one."""
        return self.predicted_s if self.measured_s is None else self.measured_s


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    """Run the engines; with both, the model's part is kept even if no VM can run."""
    from scenarios.api import run
    from scenarios.vm import CannotRunError

    scenario, problems, rows = _scenario(options), list[str](), dict[str, "pd.DataFrame"]()
    warn(COMMAND, [scenario], emulates=options.engine != "model")
    unmeasured: CannotRunError | None = None
    for engine in ("model", "emulation") if options.engine == "both" else (options.engine,):
        try:
            rows[engine] = run(scenario, engine, jobs=options.jobs, failed=problems, progress=_shower(show, engine))
        except CannotRunError as error:
            if not rows:
                raise
            unmeasured = error
    status = FAILED if problems else DONE if unmeasured is None else CANNOT
    if "emulation" in rows:
        problems += warnings_of(rows["emulation"])
    if unmeasured is not None:
        problems.append(f"nothing was measured: {unmeasured}")
    rows = {engine: own[own.collective >= options.warmup] for engine, own in rows.items()}
    lines = list(_lines(scenario, rows, _test(options.kind), is_checked=bool(options.check)))
    heading = f"{scenario.collective.kind}, {_conditions(scenario)}"
    pieces = _pieces_words(scenario, lines)
    if options.nccl:
        tables = list(_nccl_tables(scenario, lines, pieces, is_fastest=options.algorithms is None))
    else:
        tables = [_table(lines, heading, pieces)]
    return Answer(
        tables=tables,
        as_json=[asdict(line) for line in lines],
        picture=lambda: _picture(scenario, lines),
        problems=problems,
        status=status,
    )


def _shower(show: Show, engine: str) -> Callable[[int, int], None]:
    return lambda done, count: show(f"{engine}: {done} of {count} points")


def _picture(scenario: "Scenario", lines: list[Line]) -> "Picture":
    from analysis.figures.busbw import Row, picture

    rows = [Row(line.algorithm, line.mode, line.size, line.busbw, line.measured_s is not None) for line in lines]
    return picture(scenario.collective.kind, rows, title=_conditions(scenario))


def _conditions(scenario: "Scenario") -> str:
    """Return in words what all sizes and algorithms share."""
    from analysis.statistics.contests import shared_words
    from analysis.statistics.rates import ranges_of, untold
    from topologies.fabric.fabric import build_fabric

    shared = shared_words([config.label for config in scenario.configurations()]).split(", ")
    rates = untold([ranges_of(build_fabric(scenario.fabric), scenario.conditions)], shared)
    return ", ".join([*shared, *rates, *["logical grain"] * (scenario.fabric.grain == "logical")])


def _scenario(options: argparse.Namespace) -> "Scenario":
    """Return the scenario given by the options, swept over algorithms and sizes; raises ValueError."""
    from hosts.collectives.kinds import ALGORITHMS
    from scenarios.spec.load import Override, assignment, load_scenario
    from topologies.errors import did_you_mean, format_value
    from topologies.units import format_size

    test = _test(options.kind)
    kind, algorithms = _TESTS.get(test, (test, ALGORITHMS.get(test, ())))
    if kind not in ALGORITHMS:
        known = [*ALGORITHMS, *_TESTS]
        near = did_you_mean(options.kind, known)
        raise ValueError(f"--kind: {format_value(options.kind)} has no sizes; allowed: {', '.join(known)}{near}")
    check_range(options, 1, _MAX_COLLECTIVES, "collectives")
    check_range(options, 0, _MAX_COLLECTIVES, "warmup")
    check_range(options, 1, MAX_JOBS, "jobs")
    least = quantity(COMMAND, "--from", options.least, _bytes)
    most = quantity(COMMAND, "--to", options.most, _bytes)
    step = None if options.step is None else quantity(COMMAND, "--step", options.step, _bytes)
    if step is not None and options.factor is not None:
        raise ValueError("--step and --factor together; allowed: one of the two")
    sizes = list(_sizes(least, most, 4 if options.factor is None else options.factor, step))
    count = options.collectives + options.warmup
    overrides = [
        Override("collective.kind", kind, "--kind"),
        Override("collective.count", count, "--collectives"),
        Override("collective.emulated", count, "--collectives"),
        Override("collective.channels", options.channels, "--channels"),
        Override("collective.pieces", options.pieces, "--pieces"),
        Override("run.modes", listed("--modes", options.modes or ("base" if options.nccl else "base,wan")), "--modes"),
        *(single_value(name, text) for name in _OF_RUN if (text := getattr(options, name)) is not None),
        *(assignment(text) for text in options.set),
        Override("sweep.collective.size", [format_size(size) for size in sizes], "--from"),
    ]
    if options.schedule is not None:
        overrides.append(Override("collective.schedule", str(options.schedule), "--schedule"))
    else:
        if options.algorithms is not None:
            names = listed("--algorithms", options.algorithms)
        else:
            names = list(algorithms)
            if options.channels != 1:  # which only rings can have
                names = [name for name in names if name == "ring"]
        overrides.append(Override("sweep.collective.algorithm", names, "--algorithms"))
    scenario = load_scenario(options.scenario, overrides)
    gpus = scenario.configurations()[0].gpus
    if test == _HYPERCUBE and gpus & (gpus - 1):
        raise ValueError(
            f"--kind: a hypercube of {gpus} GPUs; allowed: a power of two, such as {1 << gpus.bit_length() - 1}"
        )
    check_plain(options.scenario, scenario, ("collective.size", "collective.algorithm"))
    return scenario


def _test(kind: str) -> str:
    """Return a kind by its name or by that of its program in nccl-tests, such as all_reduce_perf."""
    return kind.removesuffix("_perf").replace("_", "")


def _bytes(text: str) -> int:
    """Parse a size with a unit or, as in nccl-tests, bytes or binary K, M or G: "64 MB", "65536", "64M" (64 MiB)."""
    from topologies.units import parse_size_bytes

    bare = _BARE_SIZE.fullmatch(text.strip())
    return parse_size_bytes(f"{bare[1]} {bare[2].upper()}{'iB' if bare[2] else 'B'}" if bare else text)


def _lines(scenario: "Scenario", rows: "dict[str, pd.DataFrame]", test: str, *, is_checked: bool) -> Iterator[Line]:
    """Yield a line for each algorithm, size and mode that the first engine completed."""
    from analysis.statistics.bandwidth import busbw_factor
    from hosts.collectives.kinds import ROOTED, blocks
    from scenarios.engines.prediction import critical_path, is_bound_of_shared

    points = {engine: dict(iter(own.groupby(["setting", "mode"]))) for engine, own in rows.items()}
    measured_points = points.get("emulation", {})
    for (index, mode), own in sorted(
        next(iter(points.values())).items(), key=lambda point: (point[0][0], scenario.run.modes.index(point[0][1]))
    ):
        measured = measured_points.get((index, mode))
        config = scenario.configurations()[index]
        measured_s = None if measured is None else float(measured.completion_s.mean())
        predicted_s, bound_s = float(own.predicted_s.mean()), float(own.bound_s.mean())
        size = config.collective.size_bytes
        assert size is not None  # every configuration has one, as sizes are swept
        kind = config.collective.kind
        algbw = size / (predicted_s if measured_s is None else measured_s)
        busbw = algbw * busbw_factor(kind, config.gpus)
        yield Line(
            size=size,
            count=size // 4,
            type="uint32",
            grain=config.fabric.grain,
            mode=mode,
            algorithm=config.workload.algorithm,
            measured_s=measured_s,
            predicted_s=predicted_s,
            bound_s=None if math.isnan(bound_s) else bound_s,
            is_bound_of_shared=is_bound_of_shared(config),
            algbw=busbw if test == _HYPERCUBE else algbw,  # there the block that a rank has does not count
            busbw=busbw,
            wrong=0 if is_checked and measured is not None else None,
            critical_path=critical_path(config, mode, len(own)),
            shared_links=config.shared_links(mode),
            redop="sum" if config.workload.unit_bytes > 1 else "none",
            root=0 if kind in ROOTED else -1,
            count_each=size // 4 // (1 if kind == "allreduce" else blocks(kind, config.gpus)),
            pieces=config.collective.pieces or 1,
        )


def _pieces_words(scenario: "Scenario", lines: list[Line]) -> str:
    """Return in how many messages every slot is sent; "" for a schedule of a file, which has them."""
    if scenario.collective.schedule is not None or not lines:
        return ""
    least, most = (end(line.pieces for line in lines) for end in (min, max))
    number = f"{least} piece{'s' * (least != 1)}" if least == most else f"{least} to {most} pieces"
    if scenario.collective.pieces is None:
        return f"every slot is sent in {number}, chosen by the timing model as in run.py"
    chosen = "run.py lets the timing model choose, as --set 'collective.pieces=\"chosen\"' does here"
    return f"every slot is sent in {number} (--pieces); {chosen}"


def _table(lines: list[Line], title: str, pieces: str) -> Table[Line]:
    """Return the table in the columns of nccl-tests and more; the best algorithm of each size and mode is marked."""
    from analysis.statistics.bound_words import MARK, bound_words, is_mixed

    bounds = [line.is_bound_of_shared for line in lines if line.bound_s is not None]
    is_marked, is_varied = is_mixed(bounds), len({line.pieces for line in lines}) > 1
    best: dict[tuple[int, str], float] = {}
    for line in lines:
        best[line.size, line.mode] = min(best.get((line.size, line.mode), math.inf), line.time_s)

    def us(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds * 1e6:,.2f}"

    columns: list[Column[Line]] = [
        Column("size (B)", lambda line: f"{line.size:,}"),
        Column("count", lambda line: f"{line.count:,}"),
        Column("type", lambda line: line.type),
        Column("mode", lambda line: line.mode),
        Column("algorithm", lambda line: line.algorithm),
        Column("pieces", lambda line: f"{line.pieces}" if is_varied else ""),
        Column("measured (us)", lambda line: us(line.measured_s), why="not measured"),
        Column("predicted (us)", lambda line: us(line.predicted_s)),
        Column("bound (us)", lambda line: MARK * (is_marked and line.is_bound_of_shared) + us(line.bound_s)),
        Column("algbw (GB/s)", lambda line: f"{line.algbw / 1e9:.2f}"),
        Column("busbw (GB/s)", lambda line: f"{line.busbw / 1e9:.2f}"),
        Column("#wrong", lambda line: "N/A" if line.wrong is None else f"{line.wrong}"),
        Column("", lambda line: "best" if line.time_s == best.get((line.size, line.mode)) else ""),
    ]
    notes = [*filter(None, [bound_words(bounds), pieces])]
    return Table(columns, lines, title=title, notes=notes)


def _nccl_tables(
    scenario: "Scenario", lines: list[Line], pieces: str, *, is_fastest: bool
) -> Iterator[Table[Line] | str]:
    """Yield a table in the columns of nccl-tests, and the average bus bandwidth, for each mode and algorithm; or for
    each mode alone, of the fastest algorithm at each size, as NCCL chooses one."""
    columns = [
        Column[Line]("size", lambda line: f"{line.size}"),
        Column[Line]("count", lambda line: f"{line.count_each}"),
        Column[Line]("type", lambda line: line.type),
        Column[Line]("redop", lambda line: line.redop),
        Column[Line]("root", lambda line: f"{line.root}"),
        *2
        * (
            Column[Line]("time", lambda line: f"{line.time_s * 1e6:.2f}"),
            Column[Line]("algbw", lambda line: f"{line.algbw / 1e9:.2f}"),
            Column[Line]("busbw", lambda line: f"{line.busbw / 1e9:.2f}"),
            Column[Line]("#wrong", lambda line: "N/A" if line.wrong is None else f"{line.wrong}"),
        ),
    ]
    yield (
        "# time in us, bandwidths in GB/s; out of place, then in place: one run, as copies within a GPU take no time\n"
        f"# {'measured' if any(line.measured_s is not None for line in lines) else 'predicted, nothing is measured'}"
        + f"\n# {pieces}"
        * bool(pieces)
    )
    found: dict[tuple[str, str], list[Line]] = {}
    for line in _fastest(lines) if is_fastest else lines:
        found.setdefault((line.mode, "" if is_fastest else line.algorithm), []).append(line)
    for (mode, _), own in found.items():
        runs = [list(some) for _, some in groupby(own, key=lambda line: line.algorithm)]
        algorithms = ", ".join(f"{run[0].algorithm}{_from(run, runs)}" for run in runs)
        title = f"# {scenario.collective.kind}, {algorithms}, mode {mode}, {scenario.fabric.grain} grain"
        mean = sum(line.busbw for line in own) / len(own) / 1e9
        yield Table(columns, own, title=title, notes=[f"# Avg bus bandwidth    : {mean:g}"])


def _fastest(lines: list[Line]) -> list[Line]:
    """Return the line of the fastest algorithm of each mode and size, in the order of sizes."""
    of_size: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        of_size.setdefault((line.mode, line.size), []).append(line)
    best = [min(some, key=lambda line: line.time_s) for some in of_size.values()]
    return sorted(best, key=lambda line: line.size)


def _from(run: list[Line], runs: list[list[Line]]) -> str:
    """Return from which size on an algorithm is the fastest, " from 8388608 on", if there are several."""
    return f" from {run[0].size} on" if len(runs) > 1 else ""


def _sizes(least: int, most: int, factor: int, step: int | None) -> Iterator[int]:
    """Yield the sizes in bytes from `least` to `most`, by factors or by steps; raises ValueError."""
    if not _MIN_BYTES <= least <= most <= _MAX_BYTES or factor < 2:
        raise ValueError(
            f"sizes from {least:,} to {most:,} bytes by factors of {factor}; allowed: {_MIN_BYTES} to "
            f"{_MAX_BYTES:,} bytes, the smaller one first, and factors of 2 or more"
        )
    if step is not None and not (most - least) / _MAX_SIZES < step:
        raise ValueError(f"--step: {step:,} bytes; allowed: a step with which there are at most {_MAX_SIZES:,} sizes")
    while least <= most:
        yield least
        least = least * factor if step is None else least + step


def _parser() -> ScenarioParser:
    parser = ScenarioParser(
        prog=COMMAND,
        description="Collectives by size and algorithm, in the columns of nccl-tests.",
        instead=dict.fromkeys(("--chunk", "--size", "--sizes"), "--from SIZE --to SIZE"),
    )
    add_scenario(parser, count=20)
    parser.add_argument("--engine", choices=("model", "emulation", "both"), default="model", help="(default model)")
    parser.add_argument("--kind", default="allreduce", help="the collective (default allreduce)")
    parser.add_argument(
        "--algorithms", help="of the collective, separated by commas (default all; with --nccl the fastest)"
    )
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="a schedule: MSCCL XML, or TE-CCL's JSON")
    parser.add_argument(
        "-g", "--gpus", "--ngpus", metavar="N", help="GPUs in total, or of each site as 3+5 (default: the scenario's)"
    )
    parser.add_argument("--wan-delay", metavar="T", help='delay of a WAN link, such as "10 us"')
    parser.add_argument("--seed", metavar="S", help="seed of all random numbers")
    parser.add_argument("--modes", help="separated by commas (default base,wan; with --nccl base)")
    size = "SIZE"
    parser.add_argument("-b", "--from", "--minbytes", dest="least", default="8 kB", help="(default 8 kB)", metavar=size)
    parser.add_argument(
        "-e", "--to", "--maxbytes", dest="most", default="512 MB", help="(default 512 MB)", metavar=size
    )
    parser.add_argument("-f", "--factor", "--stepfactor", type=int, help="from one size to the next (default 4)")
    parser.add_argument(
        "-i", "--step", "--stepbytes", help="from one size to the next, in place of a factor", metavar=size
    )
    parser.add_argument("-w", "--warmup", "--warmup_iters", type=int, default=0, help="more, first, that do not count")
    parser.add_argument("-c", "--check", type=int, choices=(0, 1), default=1, help="0: no #wrong (bytes are verified)")
    parser.add_argument("--nccl", action="store_true", help="print the table of nccl-tests")
    parser.add_argument("--channels", type=int, default=1, help="number of parallel rings (default 1)")
    parser.add_argument("--pieces", type=int, default=1, help="messages in which every slot is sent (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes or VMs at a time (default 1)")
    add_output(parser, of_json="print a JSON list of the lines")
    return parser


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
