"""Collectives by size and algorithm in the columns of nccl-tests: measured and predicted times, and the lower bound.

Run it as `python scenarios/collectives.py [SCENARIO] --kind allreduce --engine both`. Fabric, conditions and modes are
those of the scenario (run.py's --set works here too). As in nccl-tests, a size is that of the whole buffer. Every line
is the mean over the first collectives of a point.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # import from the top of the project, wherever the command is started
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]

from scenarios.experiment.options import CANNOT, DONE, FAILED, MAX_JOBS, ScenarioParser, single_value
from scenarios.tools import study_command

if TYPE_CHECKING:
    import pandas as pd

    from analysis.results.rows import Rows
    from scenarios.spec.scenario import Scenario

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status. With both engines, the model's part is printed even if no VM can run."""
    options = _parser().parse_args(arguments)
    return study_command.run("collectives.py", lambda: _study(options), options.figure)


def _study(options: argparse.Namespace) -> int:
    from scenarios.vm import CannotRunError

    scenario, failures, rows_by_engine = _scenario(options), list[str](), {}
    study_command.warn("collectives.py", [scenario], emulates=options.engine != "model")
    unmeasured: CannotRunError | None = None
    for engine in ("model", "emulation") if options.engine == "both" else (options.engine,):
        try:
            rows_by_engine[engine] = _rows(scenario, engine, options.jobs, failures)
        except CannotRunError as error:
            if not rows_by_engine:
                raise
            unmeasured = error
    lines = list(_lines(scenario, rows_by_engine))
    kind, grain = scenario.collective.kind, f"{scenario.fabric.grain} grain"
    heading = f"{kind}, {grain}"
    print(json.dumps([asdict(line) for line in lines], indent=1) if options.json else _table(heading, lines))
    if options.figure is not None:
        from analysis.figures.busbw import Row, picture

        rows = [Row(line.algorithm, line.mode, line.size, line.busbw, line.measured_s is not None) for line in lines]
        picture(kind, rows, title=grain).write_to(options.figure, command="collectives.py")
    if "emulation" in rows_by_engine:
        study_command.warn_of("collectives.py", _measured(rows_by_engine["emulation"]))
    for why in failures:
        print(f"collectives.py: {why}", file=sys.stderr)
    if unmeasured is not None:
        print(f"collectives.py: nothing was measured: {unmeasured}", file=sys.stderr)
    if failures:
        return FAILED
    return DONE if unmeasured is None else CANNOT


def _scenario(options: argparse.Namespace) -> "Scenario":
    """Return the scenario given by the options, swept over algorithms and sizes; raises ValueError."""
    from hosts.collectives.kinds import ALGORITHMS
    from scenarios.spec.load import Override, assignment, load_scenario
    from topologies.errors import did_you_mean, format_value
    from topologies.units import format_size, parse_size_bytes

    if options.kind not in ALGORITHMS:
        near = did_you_mean(options.kind, ALGORITHMS)
        raise ValueError(f"--kind: {format_value(options.kind)} has no sizes; allowed: {', '.join(ALGORITHMS)}{near}")
    study_command.check(options, 1, _MAX_COLLECTIVES, "collectives")
    study_command.check(options, 1, MAX_JOBS, "jobs")
    least = study_command.quantity("collectives.py", "--from", options.least, parse_size_bytes)
    most = study_command.quantity("collectives.py", "--to", options.most, parse_size_bytes)
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
    study_command.check_plain(options.scenario, scenario, ("collective.size", "collective.algorithm"))
    return scenario


def _rows(scenario: "Scenario", engine: str, jobs: int, failures: list[str]) -> "Mapping[tuple[int, str], Rows]":
    """Run an engine and return the collectives of its completed points, by configuration (index) and mode.

    The reasons of failed points are appended to `failures`.
    """
    from analysis.results.rows import joined
    from scenarios.api import engine_for
    from scenarios.engines.base import Failed, Slice

    runner, configs = engine_for(scenario, engine, jobs=jobs)
    slices: dict[tuple[int, str], list[Rows]] = {}
    points, done = len(configs) * len(scenario.run.modes), set()
    with study_command.progress("collectives.py") as show, closing(runner.run(configs)) as events:
        show(f"{engine}: 0 of {points} points")
        for event in events:
            if isinstance(event, Failed):
                failures.append(event.why)
            if isinstance(event, Slice):
                parts = slices.setdefault((event.setting, event.mode), [])
                parts.append(event.rows)
                if sum(map(len, parts)) == configs[event.setting].collective.count:
                    done.add((event.setting, event.mode))
                    show(f"{engine}: {len(done)} of {points} points")
    return {point: joined(sorted(slices[point], key=lambda part: part.start)) for point in sorted(done)}


def _measured(rows: "Mapping[tuple[int, str], Rows]") -> "pd.DataFrame":
    """Return measured collectives as the rows from which fidelity is computed."""
    import pandas as pd

    from analysis.results.columns import COLLECTIVE

    parts = []
    for (setting, mode), own in rows.items():
        values = {
            column.name: own.columns.get(column.name, column.otherwise)
            for column in COLLECTIVE[1:]
            if column.kind != "ranks"
        }
        part = pd.DataFrame(values, index=range(len(own)))
        parts.append(part.assign(engine="emulation", setting=setting, mode=mode))
    return pd.concat(parts) if parts else pd.DataFrame()


def _lines(scenario: "Scenario", rows_by_engine: "Mapping[str, Mapping[tuple[int, str], Rows]]") -> Iterator[Line]:
    """Yield a line for each algorithm, size and mode that the first engine completed."""
    from analysis.statistics.bandwidth import busbw_factor
    from scenarios.engines.prediction import critical_path

    points, measured_points = next(iter(rows_by_engine.values())), rows_by_engine.get("emulation", {})
    for index, mode in sorted(points, key=lambda point: (point[0], scenario.run.modes.index(point[1]))):
        rows, measured = points[index, mode], measured_points.get((index, mode))
        config = scenario.configurations()[index]
        measured_s = None if measured is None else float(measured.completion_s.mean())
        predicted_s = float(rows.predictions_s.mean())
        bound_s = float(rows["bound_s"].mean()) if "bound_s" in rows.columns else None
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
            bound_s=None if bound_s is None or math.isnan(bound_s) else bound_s,
            algbw=algbw,
            busbw=algbw * busbw_factor(config.collective.kind, config.gpus),
            wrong=None if measured is None else 0,
            critical_path=critical_path(config, mode, len(rows)),
            shared_links=config.shared_links(mode),
        )


def _table(heading: str, lines: Sequence[Line]) -> str:
    """Return the lines as text in columns; the best algorithm of each size and mode is marked."""
    from scenarios.text_table import aligned

    best: dict[tuple[int, str], float] = {}
    for line in lines:
        best[line.size, line.mode] = min(best.get((line.size, line.mode), math.inf), line.time_s)
    times = ("measured (us)", "predicted (us)", "bound (us)")
    heads = ("size (B)", "count", "type", "mode", "algorithm", *times, "algbw (GB/s)", "busbw (GB/s)", "#wrong", "")
    rows = [
        (
            f"{line.size:,}",
            f"{line.count:,}",
            line.type,
            line.mode,
            line.algorithm,
            *("" if time_s is None else f"{time_s * 1e6:,.2f}" for time_s in (line.measured_s, line.predicted_s)),
            "" if line.bound_s is None else f"{line.bound_s * 1e6:,.2f}",
            f"{line.algbw / 1e9:.2f}",
            f"{line.busbw / 1e9:.2f}",
            "N/A" if line.wrong is None else f"{line.wrong}",
            "best" if line.time_s == best.get((line.size, line.mode)) else "",
        )
        for line in lines
    ]
    return "\n".join([heading, *aligned((heads, *rows))])


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
        prog="collectives.py",
        description="Collectives by size and algorithm, in the columns of nccl-tests.",
        instead=dict.fromkeys(("--chunk", "--size", "--sizes"), "--from SIZE --to SIZE"),
    )
    parser.add_argument("scenario", nargs="?", default="paper", help="a TOML file or a name, as for run.py")
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
    parser.add_argument("--collectives", type=int, default=20, help="collectives that a line averages (default 20)")
    parser.add_argument("--jobs", type=int, default=1, help="processes or VMs at a time (default 1)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any key of the scenario")
    parser.add_argument("--json", action="store_true", help="print a JSON list of the lines")
    parser.add_argument(
        "--figure", type=Path, metavar="PATH", help="draw busbw by size: PATH.svg, PATH.png and PATH.csv"
    )
    return parser


if __name__ == "__main__":
    from scenarios.signals import supervised

    sys.exit(supervised(main))
