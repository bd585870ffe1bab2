"""Algorithms of collectives beside their ring in both grains: what shared ports do to the choice of an algorithm.

Run it as `python scenarios/grains.py`. In the logical grain every two GPUs have a link of their own, so that a GPU may
send to all others at full rate; in the physical one all that it sends passes its one port. Every algorithm's mean time
is divided by that of the ring of the same kind, size, mode and grain under the same conditions, which are those of a
scenario (run.py's --set works here too). The grains have a table each, as a rate is another thing in each.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # modules are found from the top of the project, wherever the command is started
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]

from scenarios.experiment.options import DONE, MAX_JOBS
from scenarios.tools import study

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from scenarios.spec.scenario import Scenario

    Floats = npt.NDArray[np.float64]

PIPELINED = ("chain", "tree", "double-tree")
"""The algorithms whose buffer is cut into pieces here: in one piece they pass it on once it is there whole."""
PIECES = 16
"""Into how many, if nothing else is asked for."""

_RING = "ring"
_MOST_COLLECTIVES = 100_000


@dataclass(frozen=True, kw_only=True)
class Line:
    """One algorithm with so many GPUs in a grain: mean times in seconds, and over those of the ring.

    `over_ring` is of predicted times, `low` and `high` the ends of its 95 % interval (None for few collectives);
    what was measured is None of the model alone.
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
    """The times of one algorithm, [collectives] s each, and how many collectives in a row are correlated."""

    pieces: int
    predicted_s: "Floats"
    measured_s: "Floats | None"
    block: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    asked = _parser().parse_args(arguments)
    return study.status_of("grains.py", lambda: _study(asked), asked.figure)


def _study(asked: argparse.Namespace) -> int:
    with study.Progress("grains.py") as progress:
        lines = run(asked, lambda done, count: progress.say(f"{asked.engine}: {done} of {count} algorithms"))
    text = json.dumps({grain: [asdict(line) for line in own] for grain, own in _by_grain(lines)}, indent=1)
    print(text if asked.json else "\n\n".join(_table(grain, own) for grain, own in _by_grain(lines)))
    if asked.figure is not None:
        from analysis.figures.grains import Row, picture

        rows = [Row(one.grain, one.kind, one.gpus, one.algorithm, *_shown(one)) for one in lines]
        title = f"{asked.size}, mode {asked.mode}, {'predicted' if asked.engine == 'model' else 'measured'}"
        picture(rows, title=title).write_to(asked.figure, command="grains.py", answer=text)
    return DONE


def run(asked: argparse.Namespace, progress: Callable[[int, int], None]) -> list[Line]:
    """All lines, grain by grain; `progress` is called with how many algorithms are done, and of how many.

    Raises ValueError for what is asked wrongly, RunError for a point that fails, VMError where the VM cannot run.
    """
    points = [(key, _scenario(asked, *key)) for key in _asked_for(asked)]
    found: dict[tuple[str, str, str], dict[int, _Point]] = {}
    for done, (key, scenario) in enumerate(points):
        progress(done, len(points))
        found[key] = _times(scenario, asked.engine, asked.jobs)
    progress(len(points), len(points))
    return [
        _line(key, gpus, asked.mode, point, found[*key[:2], _RING][gpus])
        for key, by_gpus in found.items()
        for gpus, point in by_gpus.items()
    ]


def _asked_for(asked: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Grain, kind and algorithm of all that is asked for, the ring of each kind first; raises ValueError."""
    from hosts.collectives.kinds import ALGORITHMS

    wanted = None if asked.algorithms is None else asked.algorithms.split(",")
    kinds = asked.kinds.split(",")
    ringed = [kind for kind, algorithms in ALGORITHMS.items() if _RING in algorithms]
    for kind in kinds:
        if kind not in ringed:
            raise ValueError(f"--kinds: {kind!r} has no ring to compare with; allowed: {', '.join(ringed)}")
    known = dict.fromkeys(algorithm for kind in kinds for algorithm in ALGORITHMS[kind])
    for name in wanted or ():
        if name not in known:
            raise ValueError(f"--algorithms: {name!r}; allowed: {', '.join(known)}")
    for grain, kind in product(dict.fromkeys(asked.grains.split(",")), dict.fromkeys(kinds)):
        yield grain, kind, _RING
        for algorithm in ALGORITHMS[kind]:
            if algorithm != _RING and (wanted is None or algorithm in wanted):
                yield grain, kind, algorithm


def _scenario(asked: argparse.Namespace, grain: str, kind: str, algorithm: str) -> "Scenario":
    """The scenario of an algorithm in a grain, swept over numbers of GPUs; raises ValueError."""
    from scenarios.spec.load import Override, assignment, load_scenario

    study.check(asked, 1, _MOST_COLLECTIVES, "collectives")
    study.check(asked, 1, MAX_JOBS, "jobs")
    counts = asked.gpus.split(",")
    if not all(count.isdecimal() for count in counts):
        raise ValueError(f"--gpus: {asked.gpus}; allowed: whole numbers with commas between")
    own = {"fabric.gpus": "--gpus", "fabric.grain": "--grains", "run.modes": "--mode"}
    for one in (assignment(text) for text in asked.set):
        if one.key in own:
            raise ValueError(f"{one.where}: does nothing here; allowed: {own[one.key]}")
    overrides = [
        Override("collective.kind", kind, "--kinds"),
        Override("collective.algorithm", algorithm, "--algorithms"),
        Override("collective.pieces", asked.pieces if algorithm in PIPELINED else 1, "--pieces"),
        Override("collective.size", asked.size, "--size"),
        Override("collective.count", asked.collectives, "--collectives"),
        Override("collective.emulated", asked.collectives, "--collectives"),
        *(assignment(text) for text in asked.set),
        Override("run.modes", [asked.mode], "--mode"),
        Override("fabric.grain", grain, "--grains"),
        Override("sweep.fabric.gpus", [int(count) for count in counts], "--gpus"),
    ]
    found = load_scenario(asked.scenario, overrides)
    study.check_plain(asked.scenario, found, ("fabric.gpus",))
    return found


def _times(scenario: "Scenario", engine: str, jobs: int) -> dict[int, _Point]:
    """The times of a scenario's collectives by number of GPUs."""
    from analysis.statistics.intervals import block_length
    from scenarios.api import run as run_scenario

    (mode,), spec, conditions = scenario.run.modes, scenario.collective, scenario.conditions
    found = {}
    for gpus, rows in run_scenario(scenario, engine, jobs=jobs).groupby("gpus"):
        predicted_s = rows.predicted_s.to_numpy()
        block = block_length(
            predicted_s,
            ring_shared_by=scenario.mode(mode).kept(spec.reembed_every),
            sampler=conditions.sampler,
            memory=conditions.memory(predicted_s),
        )
        measured_s = rows.completion_s.to_numpy() if engine == "emulation" else None
        found[int(gpus)] = _Point(pieces=spec.pieces, predicted_s=predicted_s, measured_s=measured_s, block=block)
    return found


def _line(key: tuple[str, str, str], gpus: int, mode: str, point: _Point, ring: _Point) -> Line:
    import numpy as np

    from analysis.statistics.intervals import Series, gain

    (grain, kind, algorithm), number = key, np.arange(len(point.predicted_s))
    series = [Series(number, one.predicted_s, one.block) for one in (ring, point)]
    less = gain(*series) if point is not ring else None
    measured_s = None if point.measured_s is None else float(point.measured_s.mean())
    return Line(
        grain=grain,
        kind=kind,
        gpus=gpus,
        mode=mode,
        algorithm=algorithm,
        pieces=point.pieces,
        predicted_s=float(point.predicted_s.mean()),
        over_ring=float(point.predicted_s.mean() / ring.predicted_s.mean()),
        low=None if less is None or math.isnan(less.low) else 1 - less.high,
        high=None if less is None or math.isnan(less.high) else 1 - less.low,
        measured_s=measured_s,
        measured_over_ring=None
        if ring.measured_s is None or measured_s is None
        else measured_s / ring.measured_s.mean(),
    )


def _shown(line: Line) -> tuple[float, float | None, float | None]:
    """What a figure shows of a line: its time over the ring's, measured where it was, else predicted and its ends."""
    if line.measured_over_ring is not None:
        return line.measured_over_ring, None, None
    return line.over_ring, line.low, line.high


def _by_grain(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    grains = dict.fromkeys(line.grain for line in lines)
    return [(grain, [line for line in lines if line.grain == grain]) for grain in grains]


def _table(grain: str, lines: Sequence[Line]) -> str:
    from scenarios.table import aligned

    heads = ["kind", "GPUs", "mode", "algorithm", "pieces", "predicted (us)", "over the ring's", "95 %"]
    heads += ["measured (us)", "over the ring's"] if lines[0].measured_s is not None else []
    rows = []
    for line in lines:
        interval = "" if line.low is None else f"{line.low:.3f} to {line.high:.3f}"
        row = [line.kind, str(line.gpus), line.mode, line.algorithm, str(line.pieces)]
        row += [f"{line.predicted_s * 1e6:,.2f}", f"{line.over_ring:.3f}", interval]
        if line.measured_s is not None:
            row += [f"{line.measured_s * 1e6:,.2f}", f"{line.measured_over_ring:.3f}"]
        rows.append(row)
    return "\n".join([f"{grain} grain", *aligned((heads, *rows))])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grains.py", description="Algorithms of collectives beside their ring, in the logical and physical grain."
    )
    parser.add_argument("scenario", nargs="?", default="paper", help="a TOML file or a name, as of run.py")
    parser.add_argument("--engine", choices=("model", "emulation"), default="model", help="(default model)")
    parser.add_argument("--grains", default="logical,physical", help="with commas between (default both)")
    parser.add_argument("--kinds", default="allgather,allreduce", help="(default allgather,allreduce)")
    parser.add_argument("--algorithms", help="beside the ring, with commas between (default all)")
    parser.add_argument("--gpus", default="8,16", help="with commas between (default 8,16)")
    parser.add_argument("--mode", default="wan", help="base, wan, ccl or joint (default wan)")
    parser.add_argument("--size", default="64 MB", help="of the whole buffer (default 64 MB)")
    parser.add_argument("--pieces", type=int, default=PIECES, help=f"of chains' and trees' buffers (default {PIECES})")
    parser.add_argument("--collectives", type=int, default=200, help="that a line is the mean of (default 200)")
    parser.add_argument("--jobs", type=int, default=1, help="processes or VMs at a time (default 1)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any key of the scenario")
    parser.add_argument("--json", action="store_true", help="print a JSON object, a list of lines for each grain")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="draw into PATH.svg, .png, .csv, and .json beside")
    return parser


if __name__ == "__main__":
    from scenarios.signals import supervised

    sys.exit(supervised(main))
