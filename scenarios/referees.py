"""Compare each mode with referees: the fastest ring, the best schedule of any kind, and the bound on any schedule.

Run it as `run.py referees [SCENARIO] --collectives 3`. Fabric, conditions, collective and modes are those of the
scenario (run.py's --set works here too). Every line is one collective under its conditions, by the timing model. The
last lines have the total times, compared with the best policy that knows all conditions in advance. The best schedule
needs OR-Tools, the extra [optimum]; without it that column is empty, and a message on stderr says so.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.experiment.options import DONE, ScenarioParser
from scenarios.tools import study_command

if TYPE_CHECKING:
    from scenarios.engines.referees import Totals
    from scenarios.spec.scenario import Scenario

_MAX_DRAWN = 20  # configurations in a figure
_MAX_COLLECTIVES = 1000


@dataclass(frozen=True, kw_only=True)
class Line:
    """The times of a collective in s: those of the modes, and those of referees, which are None if unknown.

    `ring_s` is the time of the fastest ring, known for an AllGather whose edges share no link; `ring_bound_s` is a
    lower bound on the time of any ring. `schedule_s` is the time of the best schedule of whole blocks found, and
    `schedule_bound_s` a lower bound on the time of any such schedule; `proven` means that they agree. `bound_s` is a
    lower bound on the time of any schedule.
    """

    setting: str
    collective: int
    modes_s: dict[str, float]
    ring_s: float | None
    ring_bound_s: float | None
    schedule_s: float | None
    schedule_bound_s: float | None
    proven: bool | None
    bound_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    options = _parser().parse_args(arguments)
    return study_command.run("run.py referees", lambda: _study(options), options.figure)


def _study(options: argparse.Namespace) -> int:
    from analysis.model.optimal_schedule import NotInstalledError
    from scenarios.engines.referees import totals

    scenario = _scenario(options)
    study_command.warn("run.py referees", [scenario], emulates=False)
    lines, totals_of = [], []
    without = list[str]()
    with study_command.progress("run.py referees") as show:
        for config in scenario.configurations():
            show(f"{config.label}: the best choices in hindsight")
            totals_of.append((config, totals(config, options.collectives)))
            try:
                lines += _lines(config, options.collectives, options.seconds, show)
            except NotInstalledError as error:
                without.append(f"run.py referees: {config.label}: no best schedule: {error}")
                lines += _lines(config, options.collectives, 0, show)
    for why in without:
        print(why, file=sys.stderr)
    if options.figure is not None:
        _draw(options.figure, lines, totals_of, options.collectives)
    if options.json:
        policies = [{"setting": config.label} | asdict(own) for config, own in totals_of]
        print(json.dumps({"collectives": [asdict(line) for line in lines], "policies": policies}, indent=1))
    else:
        print(_table(lines, scenario.run.modes))
        print("\n".join(_totals_line(config, own, options.collectives) for config, own in totals_of))
    return DONE


def _draw(path: Path, lines: Sequence[Line], totals_of: "Sequence[tuple[Scenario, Totals]]", count: int) -> None:
    """Write the figure's files; raises OSError."""
    from analysis.figures.referees import picture

    times = {}
    for config, totals in totals_of:
        own = [line for line in lines if line.setting == config.label]
        referees_s = {"best known beforehand": totals.optimum_s / count}
        for referee, times_s in (
            ("fastest ring", [line.ring_s for line in own]),
            ("best schedule", [line.schedule_s for line in own]),
        ):
            known_s = [seconds for seconds in times_s if seconds is not None]
            if len(known_s) == count:
                referees_s[referee] = sum(known_s) / count
        modes_s = {mode: seconds / count for mode, seconds in totals.modes_s.items()}
        times[config.label] = modes_s, referees_s, sum(line.bound_s for line in own) / count
    picture(times, collectives=count, name=path.name).write(path.parent)


def _totals_line(config: "Scenario", totals: "Totals", count: int) -> str:
    """Return a line with the total time of all collectives in every mode, and with the best choices in hindsight."""
    changes = "with the cost of changes" if config.control.counted else "changes free of cost"
    modes = ", ".join(f"{mode} {1e3 * seconds:,.3f}" for mode, seconds in totals.modes_s.items())
    best = f"the best of {totals.candidates} candidates, conditions known in advance, {1e3 * totals.optimum_s:,.3f} ms"
    gap = f"{totals.best} is {100 * totals.gap:.1f} % above it"
    return f"{config.label}, total of {count}, {changes}: {modes}; {best}: {gap}"


def _scenario(options: argparse.Namespace) -> "Scenario":
    """Return the scenario given by the options; raises ValueError if no best times are known for it."""
    from hosts.collectives.kinds import SELF_SIZED_KINDS
    from scenarios.spec.load import assignment, load_scenario

    study_command.check(options, 1, _MAX_COLLECTIVES, "collectives")
    study_command.check(options, 0, 1_000_000, "seconds")
    scenario = load_scenario(options.scenario, [assignment(text) for text in options.set])
    if any(one.jobs or one.faults or one.collective.kind in SELF_SIZED_KINDS for one in scenario.configurations()):
        raise ValueError(
            f"{options.scenario} has jobs, faults, messages, training or a trace, for which no best is known; allowed: "
            "none of these"
        )
    if options.figure is not None and len(scenario.configurations()) > _MAX_DRAWN:
        raise ValueError(f"--figure: {len(scenario.configurations())} configurations; allowed: {_MAX_DRAWN} at most")
    return scenario


def _lines(config: "Scenario", count: int, seconds: float, show: Callable[[str], None]) -> list[Line]:
    """Return a line for each of a configuration's first `count` collectives.

    `seconds` limits each search for a best schedule; 0 means no search. `show` is told the progress.
    """
    from analysis.model.optimal_schedule import COPIED, MAX_GPUS
    from scenarios.engines import prediction
    from scenarios.engines.referees import best_schedule_of, rings_of
    from scenarios.policies.conditions import conditions_of

    conditions = conditions_of(config)
    shared_bps = conditions.shared_bps(0, count)
    modes_s = {}
    for mode in config.run.modes:
        decisions = prediction.decisions_of(config, mode, conditions, start=0, count=count)
        modes_s[mode] = prediction.Plan(config, mode, decisions, conditions).completion_s()
    bounds_s = prediction.lower_bound(config, conditions)(0, shared_bps)
    rings = rings_of(config, conditions, start=0, count=count)
    searches = seconds > 0 and config.collective.kind in COPIED and config.gpus <= MAX_GPUS
    lines = []
    for number in range(count):
        show(f"{config.label}: {number} of {count} collectives")
        best = best_schedule_of(config, conditions, number, seconds=seconds) if searches else None
        lines.append(
            Line(
                setting=config.label,
                collective=number,
                modes_s={mode: float(times_s[number]) for mode, times_s in modes_s.items()},
                ring_s=None if rings is None else float(rings.completion_s[number]),
                ring_bound_s=None if rings is None else float(rings.bound_s[number]),
                schedule_s=None if best is None else best.completion_s,
                schedule_bound_s=None if best is None else best.bound_s,
                proven=None if best is None else best.proven,
                bound_s=float(bounds_s[number]),
            )
        )
    return lines


def _table(lines: Sequence[Line], modes: Sequence[str]) -> str:
    """Return the lines as text in columns."""
    from scenarios.text_table import aligned

    def ms(seconds: float | None) -> str:
        return "" if seconds is None else f"{1e3 * seconds:,.3f}"

    heads = ("setting", "#", *(f"{mode} (ms)" for mode in modes), "fastest ring", "its bound", "best schedule")
    heads += ("its bound", "", "bound of all")
    rows = [
        (
            line.setting,
            str(line.collective),
            *(ms(line.modes_s[mode]) for mode in modes),
            *map(ms, (line.ring_s, line.ring_bound_s, line.schedule_s, line.schedule_bound_s)),
            {True: "proven", False: "best known", None: ""}[line.proven],
            ms(line.bound_s),
        )
        for line in lines
    ]
    return "\n".join(aligned((heads, *rows)))


def _parser() -> ScenarioParser:
    parser = ScenarioParser(
        prog="run.py referees",
        description="Compare each mode with the fastest ring, the best schedule and the lower bound.",
    )
    parser.add_argument("scenario", nargs="?", default="paper", help="a TOML file or a name, as for run.py")
    parser.add_argument(
        "--collectives", type=int, default=3, help="number of first collectives of each configuration (default 3)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="time limit of the search for each best schedule; 0: none (default 60)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any key of the scenario")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="write PATH.svg, PATH.png and PATH.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
