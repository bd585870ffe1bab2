"""Collectives by size and algorithm in the columns of nccl-tests: measured and predicted times, and the lower bound.

Run it as `python scenarios/collectives.py [SCENARIO] --kind allreduce --engine both`. Fabric, conditions and modes are
those of the scenario (run.py's --set works here too). As in nccl-tests, a size is that of the whole buffer. Every line
is the mean over the first collectives of a point.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
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
_MIN_BYTES, _MAX_BYTES, _MAX_COLLECTIVES = 1, 10**12, 1000


@dataclass(frozen=True, kw_only=True)
class Line:
    """A size of an algorithm in a mode: times in s and bandwidths in bytes/s, as means over the conditions.

    `measured_s` is None if nothing was measured, and `bound_s` if no bound is known. `algbw` and `busbw` come from the
    measured time if there is one, otherwise from the predicted one. `wrong` counts wrong elements (a point that has any
    is aborted) and is None if nothing was measured. `critical_path` has the seconds of the predicted time by link
    ("g0>g4"), largest first. `shared_links` are the links that two flows can use at once. Both name logical links or
    ports, depending on `grain`.
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
    algbw: float
    busbw: float
    wrong: int | None
    critical_path: dict[str, float]
    shared_links: tuple[str, ...]

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
    lines = list(_lines(scenario, rows))
    heading = f"{scenario.collective.kind}, {scenario.fabric.grain} grain"
    return Answer(
        tables=[Table(_columns(lines), lines, title=heading)],
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
    return picture(scenario.collective.kind, rows, title=f"{scenario.fabric.grain} grain")


def _scenario(options: argparse.Namespace) -> "Scenario":
    """Return the scenario given by the options, swept over algorithms and sizes; raises ValueError."""
    from hosts.collectives.kinds import ALGORITHMS
    from scenarios.spec.load import Override, assignment, load_scenario
    from topologies.errors import did_you_mean, format_value
    from topologies.units import format_size, parse_size_bytes

    if options.kind not in ALGORITHMS:
        near = did_you_mean(options.kind, ALGORITHMS)
        raise ValueError(f"--kind: {format_value(options.kind)} has no sizes; allowed: {', '.join(ALGORITHMS)}{near}")
    check_range(options, 1, _MAX_COLLECTIVES, "collectives")
    check_range(options, 1, MAX_JOBS, "jobs")
    least = quantity(COMMAND, "--from", options.least, parse_size_bytes)
    most = quantity(COMMAND, "--to", options.most, parse_size_bytes)
    sizes = list(_sizes(least, most, options.factor))
    overrides = [
        Override("collective.kind", options.kind, "--kind"),
        Override("collective.count", options.collectives, "--collectives"),
        Override("collective.emulated", options.collectives, "--collectives"),
        Override("collective.channels", options.channels, "--channels"),
        Override("collective.pieces", options.pieces, "--pieces"),
        Override("run.modes", options.modes.split(","), "--modes"),
        *(single_value(name, text) for name in _OF_RUN if (text := getattr(options, name)) is not None),
        *(assignment(text) for text in options.set),
        Override("sweep.collective.size", [format_size(size) for size in sizes], "--from"),
    ]
    if options.schedule is not None:
        overrides.append(Override("collective.schedule", str(options.schedule), "--schedule"))
    else:
        if options.algorithms is not None:
            names = options.algorithms.split(",")
        else:
            names = list(ALGORITHMS[options.kind])
            if options.channels != 1:  # which only rings can have
                names = [name for name in names if name == "ring"]
        overrides.append(Override("sweep.collective.algorithm", names, "--algorithms"))
    scenario = load_scenario(options.scenario, overrides)
    check_plain(options.scenario, scenario, ("collective.size", "collective.algorithm"))
    return scenario


def _lines(scenario: "Scenario", rows: "dict[str, pd.DataFrame]") -> Iterator[Line]:
    """Yield a line for each algorithm, size and mode that the first engine completed."""
    from analysis.statistics.bandwidth import busbw_factor
    from scenarios.engines.prediction import critical_path

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
        algbw = size / (predicted_s if measured_s is None else measured_s)
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
            algbw=algbw,
            busbw=algbw * busbw_factor(config.collective.kind, config.gpus),
            wrong=None if measured is None else 0,
            critical_path=critical_path(config, mode, len(own)),
            shared_links=config.shared_links(mode),
        )


def _columns(lines: list[Line]) -> list[Column[Line]]:
    """Return the columns of nccl-tests and more; the best algorithm of each size and mode is marked."""
    best: dict[tuple[int, str], float] = {}
    for line in lines:
        best[line.size, line.mode] = min(best.get((line.size, line.mode), math.inf), line.time_s)

    def us(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds * 1e6:,.2f}"

    return [
        Column("size (B)", lambda line: f"{line.size:,}"),
        Column("count", lambda line: f"{line.count:,}"),
        Column("type", lambda line: line.type),
        Column("mode", lambda line: line.mode),
        Column("algorithm", lambda line: line.algorithm),
        Column("measured (us)", lambda line: us(line.measured_s)),
        Column("predicted (us)", lambda line: us(line.predicted_s)),
        Column("bound (us)", lambda line: us(line.bound_s)),
        Column("algbw (GB/s)", lambda line: f"{line.algbw / 1e9:.2f}"),
        Column("busbw (GB/s)", lambda line: f"{line.busbw / 1e9:.2f}"),
        Column("#wrong", lambda line: "N/A" if line.wrong is None else f"{line.wrong}"),
        Column("", lambda line: "best" if line.time_s == best.get((line.size, line.mode)) else ""),
    ]


def _sizes(least: int, most: int, factor: int) -> Iterator[int]:
    """Yield the sizes in bytes from `least` to `most` by factors; raises ValueError."""
    if not _MIN_BYTES <= least <= most <= _MAX_BYTES or factor < 2:
        raise ValueError(
            f"sizes from {least:,} to {most:,} bytes by factors of {factor}; allowed: {_MIN_BYTES} to "
            f"{_MAX_BYTES:,} bytes, the smaller one first, and factors of 2 or more"
        )
    while least <= most:
        yield least
        least *= factor


def _parser() -> ScenarioParser:
    parser = ScenarioParser(
        prog=COMMAND,
        description="Collectives by size and algorithm, in the columns of nccl-tests.",
        instead=dict.fromkeys(("--chunk", "--size", "--sizes"), "--from SIZE --to SIZE"),
    )
    add_scenario(parser, count=20)
    parser.add_argument("--engine", choices=("model", "emulation", "both"), default="model", help="(default model)")
    parser.add_argument("--kind", default="allreduce", help="the collective (default allreduce)")
    parser.add_argument("--algorithms", help="of the collective, separated by commas (default all)")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="a schedule: MSCCL XML, or TE-CCL's JSON")
    parser.add_argument("--gpus", metavar="N", help="GPUs in total, or of each site as 3+5 (default: the scenario's)")
    parser.add_argument("--wan-delay", metavar="T", help='delay of a WAN link, such as "10 us"')
    parser.add_argument("--seed", metavar="S", help="seed of all random numbers")
    parser.add_argument("--modes", default="base,wan", help="separated by commas (default base,wan)")
    parser.add_argument("--from", dest="least", default="8 kB", metavar="SIZE", help="smallest size (default 8 kB)")
    parser.add_argument("--to", dest="most", default="512 MB", metavar="SIZE", help="largest size (default 512 MB)")
    parser.add_argument("--factor", type=int, default=4, help="from one size to the next (default 4)")
    parser.add_argument("--channels", type=int, default=1, help="number of parallel rings (default 1)")
    parser.add_argument("--pieces", type=int, default=1, help="messages in which every slot is sent (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes or VMs at a time (default 1)")
    add_output(parser, of_json="print a JSON list of the lines")
    return parser


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
