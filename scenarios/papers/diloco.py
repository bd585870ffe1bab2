"""Streaming DiLoCo (arXiv 2501.18512, table 4) and decoupled DiLoCo (arXiv 2604.21428): bandwidth, and failures.

`scenarios.studies.diloco` computes both; its options change what is assumed here.
"""

from collections.abc import Iterator
from typing import Any

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies import diloco
from scenarios.studies.harness import Show, Table
from scenarios.studies.quorum import METHOD

_SITES, _BETWEEN, _OUTAGE = 8, "10 h", "1 h"
_LEVEL = 90
_WHY = "the paper's bandwidths are a grid, each 1.2 times the next, and it does not tell which bytes it counts"


def _repeat(settings: Settings, show: Show) -> Repeated:
    chosen = ["--sites", str(_SITES), "--quorum", str(_SITES - 1), "--between", _BETWEEN, "--outage", _OUTAGE]
    chosen += ["--set", f"run.seed={settings.seed}", "--jobs", str(settings.jobs)]
    answer = diloco.STUDY.answer(diloco.STUDY.parser().parse_args(chosen), show)
    return Repeated(
        tables=[table for table in answer.tables if isinstance(table, Table)],
        claims=[*_claims({line["method"]: line for line in answer.as_json})],
        lines=answer.as_json,
        picture=answer.picture,
        problems=answer.problems,
    )


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
        "everything is predicted; run.py diloco --engine emulation measures smaller models",
    ],
    repeat=_repeat,
)
