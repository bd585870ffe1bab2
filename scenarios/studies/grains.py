"""Compare the algorithms of collectives with the ring in both grains: how shared ports change the choice of algorithm.

Run it as `python scenarios/grains.py`. In the logical grain every two GPUs have a link of their own, so that a GPU may
send to all others at full rate; in the physical grain everything that a GPU sends passes its one port. The mean time of
every algorithm is divided by that of the ring of the same kind, size, mode and grain under the same conditions, which
are those of a scenario (run.py's --set works here too). Each grain has its own table, because rates mean different
things in them.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING

from scenarios.experiment.options import MAX_JOBS, ScenarioParser
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
    warn,
    warnings_of,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from analysis.figures.output import Picture
    from analysis.statistics.intervals import Series
    from scenarios.spec.scenario import Scenario

    Floats = npt.NDArray[np.float64]

COMMAND = "grains.py"
PIPELINED = ("chain", "tree", "double-tree")
"""Algorithms whose buffer is cut into pieces here. In one piece, a rank would forward it only when it is complete."""
PIECES = 16
"""The default number of pieces."""

_RING = "ring"
_MAX_COLLECTIVES = 100_000


@dataclass(frozen=True, kw_only=True)
class Line:
    """An algorithm for a number of GPUs in a grain: its mean times in seconds, and divided by those of the ring.

    `over_ring` is computed from predicted times; `low` and `high` are its 95 % interval (None for few collectives or
    the ring itself). Measured values are None with `--engine model`.
    """

    grain: str
    kind: str
    gpus: int
    mode: str
    algorithm: str
    pieces: int
    predicted_s: float
    over_ring: float
    low: float | None
    high: float | None
    measured_s: float | None
    measured_over_ring: float | None


@dataclass(frozen=True, kw_only=True)
class _Point:
    """The times of an algorithm: predicted, as a series, and measured, [collectives] s."""

    pieces: int
    predicted: "Series"
    measured_s: "Floats | None"


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    lines, problems = run(options, lambda done, count: show(f"{options.engine}: {done} of {count} algorithms"))
    return Answer(
        tables=[Table(_columns(own), own, title=f"{grain} grain") for grain, own in _by_grain(lines)],
        as_json={grain: [asdict(line) for line in own] for grain, own in _by_grain(lines)},
        picture=lambda: _picture(options, lines),
        problems=problems,
    )


def _picture(options: argparse.Namespace, lines: Sequence[Line]) -> "Picture":
    from analysis.figures.grains import Row, picture

    rows = [Row(one.grain, one.kind, one.gpus, one.algorithm, *_shown(one)) for one in lines]
    title = f"{options.size}, mode {options.mode}, {'predicted' if options.engine == 'model' else 'measured'}"
    return picture(rows, title=title)


def run(options: argparse.Namespace, progress: Callable[[int, int], None]) -> tuple[list[Line], list[str]]:
    """Run all scenarios; return their lines, grain by grain, and where measured times are not the model's.

    `progress` is called with the number of algorithms that are done and the number of all. Raises ValueError for wrong
    options, RunError if a point fails, VMError if the VM cannot run.
    """
    from scenarios.api import run as run_scenario

    scenarios = [(key, _scenario(options, *key)) for key in _keys(options)]
    warn(COMMAND, [one for _, one in scenarios], emulates=options.engine != "model")
    points, problems = dict[tuple[str, str, str], dict[int, _Point]](), list[str]()
    for done, (key, scenario) in enumerate(scenarios):
        progress(done, len(scenarios))
        rows = run_scenario(scenario, options.engine, jobs=options.jobs)
        if options.engine == "emulation":
            problems += [f"{', '.join(key)}: {warning}" for warning in warnings_of(rows)]
        points[key] = _times(scenario, rows)
    progress(len(scenarios), len(scenarios))
    lines = [
        _line(key, gpus, options.mode, point, points[*key[:2], _RING][gpus])
        for key, by_gpus in points.items()
        for gpus, point in by_gpus.items()
    ]
    return lines, problems


def _keys(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield every combination of grain, kind and algorithm, the ring of each kind first; raises ValueError."""
    from hosts.collectives.kinds import ALGORITHMS

    wanted = None if options.algorithms is None else listed("--algorithms", options.algorithms)
    kinds = listed("--kinds", options.kinds)
    with_ring = [kind for kind, algorithms in ALGORITHMS.items() if _RING in algorithms]
    for kind in kinds:
        if kind not in with_ring:
            raise ValueError(f"--kinds: {kind!r} has no ring to compare with; allowed: {', '.join(with_ring)}")
    known = dict.fromkeys(algorithm for kind in kinds for algorithm in ALGORITHMS[kind])
    for name in wanted or ():
        if name not in known:
            raise ValueError(f"--algorithms: {name!r}; allowed: {', '.join(known)}")
    for grain, kind in product(dict.fromkeys(listed("--grains", options.grains)), dict.fromkeys(kinds)):
        yield grain, kind, _RING
        for algorithm in ALGORITHMS[kind]:
            if algorithm != _RING and (wanted is None or algorithm in wanted):
                yield grain, kind, algorithm


def _scenario(options: argparse.Namespace, grain: str, kind: str, algorithm: str) -> "Scenario":
    """Return the scenario of an algorithm in a grain, swept over numbers of GPUs; raises ValueError."""
    from scenarios.spec.load import Override, assignment, load_scenario

    check_range(options, 1, _MAX_COLLECTIVES, "collectives")
    check_range(options, 1, MAX_JOBS, "jobs")
    counts = listed("--gpus", options.gpus)
    if not all(count.isdecimal() for count in counts):
        raise ValueError(f"--gpus: {options.gpus}; allowed: whole numbers with commas between")
    option_for = {"fabric.gpus": "--gpus", "fabric.grain": "--grains", "run.modes": "--mode"}
    for override in (assignment(text) for text in options.set):
        if override.key in option_for:
            raise ValueError(f"{override.where}: is set for every row; allowed: {option_for[override.key]}")
    overrides = [
        Override("collective.kind", kind, "--kinds"),
        Override("collective.algorithm", algorithm, "--algorithms"),
        Override("collective.pieces", options.pieces if algorithm in PIPELINED else 1, "--pieces"),
        Override("collective.size", options.size, "--size"),
        Override("collective.count", options.collectives, "--collectives"),
        Override("collective.emulated", options.collectives, "--collectives"),
        *(assignment(text) for text in options.set),
        Override("run.modes", [options.mode], "--mode"),
        Override("fabric.grain", grain, "--grains"),
        Override("sweep.fabric.gpus", [int(count) for count in counts], "--gpus"),
    ]
    scenario = load_scenario(options.scenario, overrides)
    check_plain(options.scenario, scenario, ("fabric.gpus",))
    return scenario


def _times(scenario: "Scenario", of_all: "pd.DataFrame") -> dict[int, _Point]:
    """Return the times of a scenario's collectives by number of GPUs, from its rows."""
    from analysis.statistics.intervals import series_of

    points = {}
    for gpus, rows in of_all.groupby("gpus"):
        chosen = {name: rows[name].to_numpy() for name in ("reembedded", "rerouted")}
        number, predicted_s = rows.collective.to_numpy(), rows.predicted_s.to_numpy()
        predicted = series_of(
            number, predicted_s, scenario.conditions, exact_from=scenario.exact_from("model"), **chosen
        )
        is_measured = bool((rows.engine == "emulation").all())
        measured_s = rows.completion_s.to_numpy() if is_measured else None
        points[int(gpus)] = _Point(pieces=scenario.collective.pieces or 1, predicted=predicted, measured_s=measured_s)
    return points


def _line(key: tuple[str, str, str], gpus: int, mode: str, point: _Point, ring: _Point) -> Line:
    """Return the line of an algorithm's point, compared with the ring's."""
    from analysis.statistics.intervals import gain

    grain, kind, algorithm = key
    predicted_s, ring_s = (float(one.predicted.completion_s.mean()) for one in (point, ring))
    saved = None if point is ring else gain(ring.predicted, point.predicted)
    low = high = measured_s = measured_over_ring = None
    if saved is not None and not math.isnan(saved.low):
        low, high = 1 - saved.high, 1 - saved.low
    if point.measured_s is not None and ring.measured_s is not None:
        measured_s = float(point.measured_s.mean())
        measured_over_ring = measured_s / ring.measured_s.mean()
    return Line(
        grain=grain,
        kind=kind,
        gpus=gpus,
        mode=mode,
        algorithm=algorithm,
        pieces=point.pieces,
        predicted_s=predicted_s,
        over_ring=predicted_s / ring_s,
        low=low,
        high=high,
        measured_s=measured_s,
        measured_over_ring=measured_over_ring,
    )


def _shown(line: Line) -> tuple[float, float | None, float | None]:
    """Return time / the ring's time for the figure: the measured one if there is one, else the predicted interval."""
    if line.measured_over_ring is not None:
        return line.measured_over_ring, None, None
    return line.over_ring, line.low, line.high


def _by_grain(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    grains = dict.fromkeys(line.grain for line in lines)
    return [(grain, [line for line in lines if line.grain == grain]) for grain in grains]


def _columns(lines: Sequence[Line]) -> list[Column[Line]]:
    columns = [
        Column[Line]("kind", lambda line: line.kind),
        Column[Line]("GPUs", lambda line: str(line.gpus)),
        Column[Line]("mode", lambda line: line.mode),
        Column[Line]("algorithm", lambda line: line.algorithm),
        Column[Line]("pieces", lambda line: str(line.pieces)),
        Column[Line]("predicted (us)", lambda line: f"{line.predicted_s * 1e6:,.2f}"),
        Column[Line]("/ the ring's", lambda line: f"{line.over_ring:.3f}"),
        Column[Line]("95 % interval", lambda line: "" if line.low is None else f"{line.low:.3f} to {line.high:.3f}"),
    ]
    if lines[0].measured_s is not None:
        columns += [
            Column[Line]("measured (us)", lambda line: f"{(line.measured_s or 0) * 1e6:,.2f}"),
            Column[Line]("/ the ring's", lambda line: f"{line.measured_over_ring:.3f}"),
        ]
    return columns


def _parser() -> ScenarioParser:
    parser = ScenarioParser(
        prog=COMMAND,
        description="Compare the algorithms of collectives with the ring, in both grains.",
        instead={"--chunk": "--size SIZE", "--kind": "--kinds"},
    )
    add_scenario(parser, count=200)
    parser.add_argument("--engine", choices=("model", "emulation"), default="model", help="(default model)")
    parser.add_argument("--grains", default="logical,physical", help="separated by commas (default both)")
    parser.add_argument("--kinds", default="allgather,allreduce", help="separated by commas (default %(default)s)")
    parser.add_argument("--algorithms", help="other than the ring, separated by commas (default all)")
    parser.add_argument("--gpus", default="8,16", help="numbers of GPUs, separated by commas (default 8,16)")
    parser.add_argument("--mode", default="wan", help="base, wan, ccl or joint (default wan)")
    parser.add_argument("--size", default="64 MB", help="size of the whole buffer (default 64 MB)")
    parser.add_argument(
        "--pieces", type=int, default=PIECES, help=f"pieces of the buffer in chains and trees (default {PIECES})"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes or VMs at a time (default 1)")
    add_output(parser, of_json="print a JSON object, a list of lines for each grain")
    return parser


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
