"""How far from the best each mode is: beside its times the fastest ring, the best schedule of any kind, and the bound.

Run it as `run.py referees [SCENARIO] --collectives 3`. Fabric, conditions, collective and modes are those of the
scenario (run.py's --set works here too). Every line is one collective under its conditions, by the timing model.
Below stand the times of all of them together, beside those of the best policy that knows all conditions beforehand.
The best schedule takes OR-Tools, the extra [optimum]; without it that column is left out, and a line says so.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.experiment.options import DONE
from scenarios.tools import study

if TYPE_CHECKING:
    from scenarios.engines.offline import Totals
    from scenarios.spec.scenario import Scenario

_MOST_DRAWN = 20
_MOST_COLLECTIVES = 1000


@dataclass(frozen=True, kw_only=True)
class Line:
    """One collective in seconds: the times of the modes, and what they are measured by; None where that is not known.

    `ring_s` is the time of the fastest ring of an allgather, where its edges share no link, and no ring's is below
    `ring_bound_s`. `schedule_s` is that of the best schedule of whole blocks that was found, of which none is faster
    than `schedule_bound_s`; `proven` if these agree. Nothing is faster than `bound_s`.
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
    asked = _parser().parse_args(arguments)
    return study.status_of("run.py referees", lambda: _study(asked), asked.figure)


def _study(asked: argparse.Namespace) -> int:
    from analysis.model.optimum import NotInstalledError
    from scenarios.engines.offline import totals

    scenario = _scenario(asked)
    lines, together = [], []
    for setting in scenario.settings():
        together.append((setting, totals(setting, asked.collectives)))
        try:
            lines += _lines(setting, asked.collectives, asked.seconds)
        except NotInstalledError as error:
            print(f"run.py referees: {setting.label}: no best schedule: {error}", file=sys.stderr)
            lines += _lines(setting, asked.collectives, 0)
    if asked.figure is not None:
        _draw(asked.figure, lines, together, asked.collectives)
    if asked.json:
        policies = [{"setting": setting.label} | asdict(found) for setting, found in together]
        print(json.dumps({"collectives": [asdict(line) for line in lines], "policies": policies}, indent=1))
    else:
        print(_table(lines, scenario.run.modes))
        print("\n".join(_together(setting, found, asked.collectives) for setting, found in together))
    return DONE


def _draw(path: Path, lines: Sequence[Line], together: "Sequence[tuple[Scenario, Totals]]", count: int) -> None:
    """Write the figure's files; raises OSError."""
    from analysis.figures.referees import picture

    drawn = {}
    for setting, totals in together:
        mine = [line for line in lines if line.setting == setting.label]
        referees_s = {"best known beforehand": totals.optimum_s / count}
        for what, times_s in (
            ("fastest ring", [line.ring_s for line in mine]),
            ("best schedule", [line.schedule_s for line in mine]),
        ):
            found_s = [seconds for seconds in times_s if seconds is not None]
            if len(found_s) == count:
                referees_s[what] = sum(found_s) / count
        modes_s = {mode: seconds / count for mode, seconds in totals.modes_s.items()}
        drawn[setting.label] = modes_s, referees_s, sum(line.bound_s for line in mine) / count
    picture(drawn, collectives=count, name=path.name).write(path.parent)


def _together(setting: "Scenario", found: "Totals", count: int) -> str:
    """What all collectives take together in every mode, and with the best that could have been chosen, in a line."""
    changes = "changes counted" if setting.control.counted else "changes for nothing"
    modes = ", ".join(f"{mode} {1e3 * seconds:,.3f}" for mode, seconds in found.modes_s.items())
    best = f"the best of {found.candidates} candidates known beforehand {1e3 * found.optimum_s:,.3f} ms"
    gap = f"{found.best} is {100 * found.gap:.1f} % above it"
    return f"{setting.label}, {count} together, {changes}: {modes}; {best}: {gap}"


def _scenario(asked: argparse.Namespace) -> "Scenario":
    """The scenario that is asked for; raises ValueError where it has no bound."""
    from hosts.collectives.kinds import OWN_SIZES
    from scenarios.spec.load import assignment, load_scenario

    study.check(asked, 1, _MOST_COLLECTIVES, "collectives")
    study.check(asked, 0, 1_000_000, "seconds")
    found = load_scenario(asked.scenario, [assignment(text) for text in asked.set])
    if any(one.jobs or one.faults or one.collective.kind in OWN_SIZES for one in found.settings()):
        raise ValueError(
            f"{asked.scenario} has jobs, faults, messages, training or a trace, for which no best is known; allowed: "
            "none"
        )
    if asked.figure is not None and len(found.settings()) > _MOST_DRAWN:
        raise ValueError(f"--figure: {len(found.settings())} configurations; allowed: {_MOST_DRAWN} at most")
    return found


def _lines(setting: "Scenario", count: int, seconds: float) -> list[Line]:
    """A line for each of a configuration's first collectives; 0 seconds: without the best schedule."""
    from analysis.model.optimum import COPIED, MOST_GPUS
    from scenarios.engines import prediction
    from scenarios.engines.offline import best_schedule_of, rings_of
    from scenarios.policies.conditions import conditions_of

    conditions = conditions_of(setting)
    shared_bps = conditions.shared_bps(0, count)
    modes_s = {}
    for mode in setting.run.modes:
        decisions = prediction.decided(setting, mode, conditions, start=0, count=count)
        modes_s[mode] = prediction.Plan(setting, mode, decisions, conditions).completion_s()
    bounds_s = prediction.lower_bound(setting, conditions)(0, shared_bps)
    rings = rings_of(setting, conditions, start=0, count=count)
    searches = seconds > 0 and setting.collective.kind in COPIED and setting.gpus <= MOST_GPUS
    found = []
    for number in range(count):
        best = best_schedule_of(setting, conditions, number, seconds=seconds) if searches else None
        found.append(
            Line(
                setting=setting.label,
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
    return found


def _table(lines: Sequence[Line], modes: Sequence[str]) -> str:
    """The lines as text."""
    from scenarios.table import aligned

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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py referees",
        description="How far each mode is from the fastest ring, the best schedule and the bound.",
    )
    parser.add_argument("scenario", nargs="?", default="paper", help="a TOML file or a name, as of run.py")
    parser.add_argument("--collectives", type=int, default=3, help="of each configuration, from the first (default 3)")
    parser.add_argument("--seconds", type=float, default=60, help="of search for each best schedule; 0: none (60)")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any key of the scenario")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="draw it: PATH.svg, PATH.png, PATH.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
