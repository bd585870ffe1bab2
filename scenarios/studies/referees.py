"""Compare each mode with referees: the fastest ring, the best schedule of any kind, and the bound on any schedule.

Run it as `run.py referees [SCENARIO] --collectives 3`. Fabric, conditions, collective and modes are those of the
scenario (run.py's --set works here too). Every line is one collective under its conditions, by the timing model. The
last lines have the total times, compared with the best policy that knows all conditions in advance. The best schedule
needs OR-Tools, the extra [optimum]; without it that column is empty, and a message on stderr says so.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from analysis.statistics.bound_words import MARK, bound_words, is_mixed
from scenarios.experiment.options import ScenarioParser
from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, add_scenario, check_range, warn

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from scenarios.engines.referees import Totals
    from scenarios.spec.scenario import Scenario

COMMAND = "run.py referees"
_MAX_DRAWN = 20  # configurations in a figure
_MAX_COLLECTIVES = 1000
_NO_RING = "no fastest ring is known, as for other kinds than an AllGather and for edges that share a link"
_NO_SCHEDULE = "no best schedule was searched for"


@dataclass(frozen=True, kw_only=True)
class Line:
    """The times of a collective in s: those of the modes, and those of referees, which are None if unknown.

    `ring_s` is the time of the fastest ring, known for an AllGather whose edges share no link; `ring_bound_s` is a
    lower bound on the time of any ring. `schedule_s` is the time of the best schedule of whole blocks found, and
    `schedule_bound_s` a lower bound on the time of any such schedule; `proven` means that they agree. `bound_s` is a
    lower bound on the time of any schedule, in the model of shared links if `is_bound_of_shared`.
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
    is_bound_of_shared: bool


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    from analysis.model.optimal_schedule import NotInstalledError
    from scenarios.engines.referees import totals

    scenario = _scenario(options)
    warn(COMMAND, [scenario], emulates=False)
    lines, totals_of, without = list[Line](), [], list[str]()
    for config in scenario.configurations():
        show(f"{config.label}: the best choices in hindsight")
        totals_of.append((config, totals(config, options.collectives)))
        try:
            lines += _lines(config, options.collectives, options.seconds, show)
        except NotInstalledError as error:
            without.append(f"{config.label}: no best schedule: {error}")
            lines += _lines(config, options.collectives, 0, show)
    notes = [_totals_line(config, own, options.collectives) for config, own in totals_of]
    policies = [{"setting": config.label} | asdict(own) for config, own in totals_of]
    of_shared = [line.is_bound_of_shared for line in lines]
    bounds = bound_words(of_shared, name="bound of all", means=False)
    columns = _columns(scenario.run.modes, is_marked=is_mixed(of_shared))
    return Answer(
        tables=[Table(columns, lines, notes=[bounds, *notes])],
        as_json={"collectives": [asdict(line) for line in lines], "policies": policies},
        picture=lambda: _picture(lines, totals_of, options.collectives),
        problems=without,
    )


def _picture(lines: Sequence[Line], totals_of: "Sequence[tuple[Scenario, Totals]]", count: int) -> "Picture":
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
    return picture(times, collectives=count, name="referees")


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

    check_range(options, 1, _MAX_COLLECTIVES, "collectives")
    check_range(options, 0, 1_000_000, "seconds")
    scenario = load_scenario(options.scenario, [assignment(text) for text in options.set])
    if any(one.jobs or one.faults or one.collective.kind in SELF_SIZED_KINDS for one in scenario.configurations()):
        raise ValueError(
            f"{options.scenario} has jobs, faults, messages, training or a trace, for which no best is known; allowed: "
            "none of these"
        )
    if options.figure is not None and len(scenario.configurations()) > _MAX_DRAWN:
        raise ValueError(f"--figure: {len(scenario.configurations())} configurations; allowed: {_MAX_DRAWN} at most")
    return scenario


def _lines(config: "Scenario", count: int, seconds: float, show: Show) -> list[Line]:
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
                is_bound_of_shared=prediction.is_bound_of_shared(config),
            )
        )
    return lines


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.3f}"


def _mode_ms(mode: str, line: Line) -> str:
    return _ms(line.modes_s[mode])


def _columns(modes: Sequence[str], *, is_marked: bool) -> list[Column[Line]]:
    """Return the columns; `is_marked`: lower bounds in the model of shared links are told from others."""
    return [
        Column("setting", lambda line: line.setting),
        Column("#", lambda line: str(line.collective)),
        *(Column(f"{mode} (ms)", partial(_mode_ms, mode)) for mode in modes),
        Column("fastest ring", lambda line: _ms(line.ring_s), why=_NO_RING),
        Column("bound of rings", lambda line: _ms(line.ring_bound_s), why=_NO_RING),
        Column("best schedule", lambda line: _ms(line.schedule_s), why=_NO_SCHEDULE),
        Column("bound of schedules", lambda line: _ms(line.schedule_bound_s), why=_NO_SCHEDULE),
        Column("", lambda line: {True: "proven", False: "best known", None: ""}[line.proven]),
        Column("bound of all", lambda line: MARK * (is_marked and line.is_bound_of_shared) + _ms(line.bound_s)),
    ]


def _parser() -> ScenarioParser:
    parser = ScenarioParser(
        prog=COMMAND,
        description="Compare each mode with the fastest ring, the best schedule and the lower bound.",
    )
    add_scenario(parser, count=3, of="of each configuration, from the first on,")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="time limit of the search for each best schedule; 0: none (default 60)",
    )
    add_output(parser)
    return parser


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
