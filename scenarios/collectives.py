"""The times of collectives by size and algorithm, in the columns of nccl-tests: what the timing model predicts.

Run it as `python scenarios/collectives.py [SCENARIO] --kind allreduce`. Fabric, conditions and modes are those of the
scenario (run.py's --set works here too); sizes are those of nccl-tests: the whole buffer. Every line is the mean over
the conditions of the first collectives. The model gives every flow the whole of its links; a line where flows do share
one is marked, and its times are then lower than they can be.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosts.collectives.schedule import Schedule
    from scenarios.spec.scenario import Scenario

DONE, BAD_USAGE, CANNOT = 0, 2, 3
_LEAST_BYTES, _MOST_BYTES, _MOST_COLLECTIVES = 1, 10**12, 1000
_SHARED = "* flows share links, and the model gives each of them the whole link: the time is too low and not compared"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One size of one algorithm in one mode, as means over the conditions: seconds and bytes a second.

    `critical_path` are seconds of the time by the flow that they were spent on, "g0>g4", the longest first;
    `shared_links` are links that several flows can use at once.
    """

    size: int
    count: int
    type: str
    mode: str
    algorithm: str
    time_s: float
    algbw: float
    busbw: float
    critical_path: dict[str, float]
    shared_links: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        from hosts.collectives.files import read
        from hosts.collectives.kinds import ALGORITHMS, schedule
        from scenarios.spec import ScenarioError
        from scenarios.spec.load import Override, assignment, load_scenario
        from topologies.units import parse_size_bytes
    except ModuleNotFoundError as missing:
        print(f"collectives.py: {sys.executable} has no module {missing.name}: take .venv/bin/python", file=sys.stderr)
        return CANNOT

    try:
        if asked.figure is not None and not asked.figure.parent.is_dir():
            raise ValueError(f"--figure: there is no folder {asked.figure.parent}")
        if not 1 <= asked.collectives <= _MOST_COLLECTIVES:
            raise ValueError(f"--collectives: {asked.collectives}: allowed is 1 to {_MOST_COLLECTIVES:,}")
        sizes = list(_sizes(parse_size_bytes(asked.least), parse_size_bytes(asked.most), asked.factor))
        overrides = [assignment(text) for text in asked.set]
        given = {"collective.count": asked.collectives, "run.modes": asked.modes and asked.modes.split(",")}
        overrides += [Override(key, value, f"--{key.partition('.')[2]}") for key, value in given.items() if value]
        settings = load_scenario(asked.scenario, overrides).settings()
        if len(settings) > 1:
            raise ScenarioError([f"{asked.scenario} has a sweep of {len(settings)} settings: allowed is one"])
        if settings[0].faults:
            raise ScenarioError([f"{asked.scenario} has faults, which the prediction leaves out: allowed is none"])
        if asked.schedule is not None and asked.kind not in ALGORITHMS:
            raise ValueError(f"--kind: {asked.kind} is not a collective: allowed are {', '.join(ALGORITHMS)}")
        names = ALGORITHMS.get(asked.kind, ("",)) if asked.algorithms is None else asked.algorithms.split(",")
        sites = settings[0].fabric.gpus_per_site
        schedules = (
            {asked.schedule.name: read(asked.schedule, kind=asked.kind, gpus=sum(sites))}
            if asked.schedule
            else {
                name: schedule(asked.kind, name, sites=sites, channels=asked.channels, pieces=asked.pieces)
                for name in names
            }
        )
        lines: list[Line] = []
        for name, found in schedules.items():
            print(f"collectives.py: {name}, {len(sizes)} sizes", file=sys.stderr, flush=True)
            lines += _lines(asked.kind, name, found, settings[0], sizes)
    except ValueError as error:
        print(f"collectives.py: {error}", file=sys.stderr)
        return BAD_USAGE
    print(json.dumps([asdict(line) for line in lines], indent=1) if asked.json else _table(asked.kind, lines))
    if asked.figure is not None:
        from analysis.figures.busbw import picture

        rows = [(line.algorithm, line.mode, line.size, line.busbw, bool(line.shared_links)) for line in lines]
        for path in picture(asked.kind, rows, name=asked.figure.name).write(asked.figure.parent):
            print(f"collectives.py: {path}", file=sys.stderr)
    return DONE


def _lines(kind: str, name: str, found: "Schedule", setting: "Scenario", sizes: Sequence[int]) -> Iterator[Line]:
    """One line for each mode and size; an algorithm without an embedding has none in modes that only re-embed."""
    import numpy as np

    from analysis.model.max_plus import critical_path, times
    from controller.routing.path_choice import Router
    from hosts.collectives.kinds import busbw_factor, slots_in_size
    from hosts.collectives.schedule import Flow
    from hosts.embedding.ring import rank_order
    from scenarios.engines.flow_times import flow_times
    from scenarios.policies.conditions import conditions_of
    from scenarios.policies.decide import MODES, decide

    all_conditions, count = conditions_of(setting), setting.collective.count
    fabric, conditions = all_conditions.fabric, all_conditions.drawn
    router, rates_bps = Router(fabric, all_conditions.delays_s), conditions.rates_bps(0, count)
    for mode in (MODES[name] for name in setting.run.modes):
        if mode.reembeds and name != "ring":
            continue
        for size in sizes:
            slot_bytes = size / slots_in_size(kind, places=found.places, slots=found.slots - found.scratch)
            placement = np.broadcast_to(rank_order(fabric.gpus_per_site, fabric.site_cycle), (count, found.places))
            if mode.reembeds:
                placement = decide(
                    fabric,
                    conditions,
                    delays_s=all_conditions.delays_s,
                    mode=mode,
                    chunk_bytes=max(1, round(size / found.places)),
                    reembed_every=setting.collective.reembed_every,
                    start=0,
                    count=count,
                ).ring
            flows = flow_times(
                found, router, rates_bps, placement=placement, slot_bytes=slot_bytes, reroutes=mode.reroutes
            )
            seen = times(found.transfers, flows.alpha_s, flows.beta_s)
            time_s = float(seen.arrives_s.max(axis=0).mean())
            spent: defaultdict[str, float] = defaultdict(float)
            for row, ranks in enumerate(placement):
                for step in critical_path(found.transfers, seen, row):
                    flow = found.flows[found.transfers[step.transfer].flow]
                    assert isinstance(flow, Flow)
                    spent[f"{fabric.gpus[ranks[flow.src]].name}>{fabric.gpus[ranks[flow.dst]].name}"] += (
                        step.seconds / count
                    )
            yield Line(
                size=size,
                count=size // 4,
                type="uint32",
                mode=mode.name,
                algorithm=name,
                time_s=time_s,
                algbw=size / time_s,
                busbw=size / time_s * busbw_factor(kind, found.places),
                critical_path=dict(sorted(spent.items(), key=lambda item: -item[1])),
                shared_links=tuple(fabric.links[link].name for link in flows.shared_links),
            )


def _table(kind: str, lines: Sequence[Line]) -> str:
    """The lines as text, in nccl-tests' columns; of each size and mode, the best that shares no link is marked."""
    heads = ("size (B)", "count", "type", "mode", "algorithm", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "")
    best: dict[tuple[int, str], float] = {}
    for line in lines:
        if not line.shared_links:
            best[line.size, line.mode] = min(line.time_s, best.get((line.size, line.mode), math.inf))
    rows = [
        (
            f"{line.size:,}",
            f"{line.count:,}",
            line.type,
            line.mode,
            line.algorithm + (" *" if line.shared_links else ""),
            f"{line.time_s * 1e6:,.2f}",
            f"{line.algbw / 1e9:.2f}",
            f"{line.busbw / 1e9:.2f}",
            "best" if line.time_s == best.get((line.size, line.mode)) else "",
        )
        for line in lines
    ]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    text = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]
    notes = [_SHARED] if any(line.shared_links for line in lines) else []
    return "\n".join([f"{kind}, predicted by the timing model", *text, *notes])


def _sizes(least: int, most: int, factor: int) -> Iterator[int]:
    if not _LEAST_BYTES <= least <= most <= _MOST_BYTES or factor < 2:
        raise ValueError(
            f"sizes from {least:,} to {most:,} bytes by factors of {factor}: allowed are {_LEAST_BYTES} to "
            f"{_MOST_BYTES:,} bytes, the lesser first, and factors of 2 or more"
        )
    while least <= most:
        yield least
        least *= factor


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="collectives.py", description="Predict collectives by size and algorithm, in the columns of nccl-tests."
    )
    parser.add_argument("scenario", nargs="?", default="paper", help="a TOML file or a name, as of run.py")
    parser.add_argument("--kind", default="allreduce", help="the collective (default allreduce)")
    parser.add_argument("--algorithms", help="of the collective, with commas between (default all)")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="a collective's: MSCCL's XML or TE-CCL's JSON")
    parser.add_argument("--modes", default="base,wan", help="with commas between (default base,wan)")
    parser.add_argument("--from", dest="least", default="8 kB", metavar="SIZE", help="the least size (default 8 kB)")
    parser.add_argument("--to", dest="most", default="512 MB", metavar="SIZE", help="the largest (default 512 MB)")
    parser.add_argument("--factor", type=int, default=4, help="from one size to the next (default 4)")
    parser.add_argument("--channels", type=int, default=1, help="rings at once (default 1)")
    parser.add_argument("--pieces", type=int, default=1, help="messages that every slot is sent as (default 1)")
    parser.add_argument(
        "--collectives", type=int, default=20, help="conditions that a line is the mean of (default 20)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any key of the scenario")
    parser.add_argument("--json", action="store_true", help="print a JSON list of the lines")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="draw busbw by size into PATH.svg, .png and .csv")
    return parser


if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parent.parent
    # Modules are found from the top of the project, wherever the command is started.
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import supervised

    sys.exit(supervised(main))
