"""Streaming DiLoCo (arXiv 2501.18512, table 4) and decoupled DiLoCo (arXiv 2604.21428): bandwidth, and failures.

`scenarios.studies.diloco` computes both; its options change what is assumed here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies import diloco
from scenarios.studies.harness import Column, Show, Table
from scenarios.studies.quorum import METHOD

_SITES, _BETWEEN, _OUTAGE = 8, "10 h", "1 h"
_LEVEL = 90
_MODEL = diloco.MODELS["10B"]
SCALE, GBPS = 1000, (5.2, 16.0)
"""The bandwidths at which some points are measured, two of the paper's, and by what they are divided there, as are the
parameters: what is sent takes the same time."""
_WHY = "the paper's bandwidths are a grid, each 1.2 times the next, and it does not tell which bytes it counts"


@dataclass(frozen=True, kw_only=True)
class Point:
    """The compute utilisation of a method at a bandwidth (Gbit/s), predicted and measured to scale."""

    method: str
    gbps: float
    predicted: float
    measured: float


def measured(settings: Settings, show: Show) -> tuple[list[Point], list[str]]:
    """Measure the methods of Streaming DiLoCo's table; return the points, and what is wrong with them.

    Decoupled DiLoCo is not measured, as no schedule can wait for the first sites of several.
    """
    points, problems = list[Point](), list[str]()
    for gbps in GBPS:
        rate = f"{gbps * 1000 / SCALE:g} Mbit/s"
        chosen = ["--parameters", f"{_MODEL.parameters / SCALE:g}", "--layers", str(_MODEL.layers)]
        chosen += ["--step", f"{_MODEL.step_s * 1e3:g} ms", "--from", rate, "--to", rate, "--jobs", str(settings.jobs)]
        parse = diloco.STUDY.parser().parse_args
        both = [diloco.answer(parse([*chosen, "--engine", engine]), show) for engine in ("model", "emulation")]
        predicted, found = ({line["method"]: [*line["utilisation"].values()] for line in one.as_json} for one in both)
        points += [
            Point(method=method, gbps=gbps, predicted=share, measured=found[method][0])
            for method, (share,) in predicted.items()
            if method != METHOD
        ]
        problems += both[1].problems
    return points, problems


def _repeat(settings: Settings, show: Show) -> Repeated:
    from analysis.figures.utilisation import Row

    points, problems = measured(settings, show) if settings.measures else ([], [])
    chosen = ["--sites", str(_SITES), "--quorum", str(_SITES - 1), "--between", _BETWEEN, "--outage", _OUTAGE]
    chosen += ["--set", f"run.seed={settings.seed}", "--jobs", str(settings.jobs)]
    beside = [Row(point.method, point.gbps, point.measured, beside=True) for point in points]
    answer = diloco.answer(diloco.STUDY.parser().parse_args(chosen), show, beside)
    return Repeated(
        tables=[*(table for table in answer.tables if isinstance(table, Table)), *([_table(points)] if points else [])],
        claims=[*_claims({line["method"]: line for line in answer.as_json})],
        lines=[*answer.as_json, *map(asdict, points)],
        picture=answer.picture,
        problems=[*answer.problems, *problems],
    )


def _table(points: Sequence[Point]) -> Table[Point]:
    columns = [
        Column[Point]("Gbit/s", lambda point: f"{point.gbps:g}"),
        Column[Point]("method", lambda point: point.method, left=True),
        Column[Point]("predicted (%)", lambda point: f"{100 * point.predicted:.2f}"),
        Column[Point]("measured (%)", lambda point: f"{100 * point.measured:.2f}"),
    ]
    title = f"Compute utilisation, measured with 1/{SCALE} of the parameters and of the bandwidth"
    return Table(columns, points, title=title)


def _claims(lines: dict[str, Any]) -> Iterator[Claim]:
    theirs = diloco.PAPER["10B"]
    at = diloco.LEVELS.index(_LEVEL)
    most = lines["data parallel"]["least_bps"][_LEVEL]
    for method, row in theirs.items():
        if method == "data parallel":
            continue
        yield Claim(
            says=f"{method} needs N times less bandwidth than data parallelism for {_LEVEL} % of the time computing",
            found=most / lines[method]["least_bps"][_LEVEL],
            published=theirs["data parallel"][at] / row[at],
            neutral=1,
            because=_WHY,
        )
    every, quorum = lines[METHOD]["failing"]
    yield Claim(
        says=f"while sites die, sums of {_SITES - 1} of {_SITES} sites have N times the goodput of sums of all",
        found=quorum["goodput"] / every["goodput"],
        neutral=1,
    )


PAPER = Paper(
    reference="Douillard et al., Streaming DiLoCo (arXiv 2501.18512), and decoupled DiLoCo (arXiv 2604.21428)",
    result="compute utilisation by the bandwidth between two sites (table 4), and goodput while sites die",
    assumed=[
        "10 billion parameters, steps of 0.8 s, 100 steps between two sums, 16 fragments, as in table 4",
        f"{_SITES} sites that die every {_BETWEEN}, for {_OUTAGE}; the paper's own failures are not those",
        f"what is measured, five methods at {GBPS[0]:g} and {GBPS[1]:g} Gbit/s, has 1/{SCALE} of the parameters and of "
        "the bandwidth, and no failures",
    ],
    repeat=_repeat,
)
