"""`run.py variability`: how variable must a WAN be before re-routing and re-embedding pay?

Each scenario has a background load of measured traffic matrices. The more of the data's time passes from one collective
to the next, the more the links' rates differ between them. For each such step and each age of the controller's
knowledge, the study tells the gain of the modes: over base, over base under ECMP, and over the same mode that chooses
once, by mean rates. The last is what it pays to choose again. Beside it are two measures of the rates: how much they
spread over time, and how much they change from one collective to the next. Times are the model's, and include
reconfigurations if the scenario counts them.

Collectives count that have a matrix of their own: not one that is held where others are missing, nor one of a
repetition. Traffic has the rhythm of a day, so the blocks of intervals are whole days of the data, and as a day's
choices reach into the next one, ten of them are needed.
"""

import argparse
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, add_scenario, loaded, warn
from topologies.command_line import CommandParser
from topologies.errors import elements, format_value

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from analysis.figures.output import Picture
    from analysis.statistics.intervals import Interval, Series
    from scenarios.policies.conditions import Conditions
    from topologies.conditions.background_load import Loaded

COMMAND = "run.py variability"
_BASE, _MODES = "base", ("ccl", "wan", "joint")
_SCENARIO = Path(__file__).parents[1] / "packs" / "variability.toml"
_DRAWN = ("wan", "joint")  # over choosing once: the modes that choose paths; the table has the other one, too
_SPAN = (-200.0, 120.0)
"""Where gains are drawn (%): intervals of those over ECMP, whose hash may be good luck, go far below."""
_HASH_SEEDS = (1, 2, 3, 4)
_DAY_S = 86_400.0
_UNITS = (("d", _DAY_S), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
_OWN = "data"  # the step that matrices have


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A gain with the ends of its 95 % interval, None if there is none, which `why` explains."""

    value: float
    low: float | None
    high: float | None
    why: str

    @classmethod
    def of(cls, interval: "Interval | None") -> "Gain":
        """Return an interval as a gain."""
        if interval is None:
            raise ValueError("the runs have no collective in common")
        low, high = (None, None) if interval.why else (interval.low, interval.high)
        return cls(value=interval.value, low=low, high=high, why=interval.why)

    def __str__(self) -> str:
        ends = "" if self.low is None or self.high is None else f" ({_percent(self.low)} to {_percent(self.high)})"
        return f"{_percent(self.value)}{ends}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """The gains of a mode over base, over ECMP and over itself with choices made once.

    `spread` is the standard deviation of a WAN link's rate over time, and `change` the mean absolute difference between
    one collective and the next, each as a share of its mean rate and averaged over the links that are loaded. `days`
    are those of the data that count. `age` is that of the controller's knowledge in collectives.
    """

    scenario: str
    step: str
    peak: float
    days: float
    spread: float
    change: float
    age: int
    mode: str
    mean_s: float
    over_base: Gain
    over_ecmp: Gain
    over_once: Gain


def _parser() -> CommandParser:
    parser = CommandParser(prog=COMMAND, description="The gain of each mode by how variable the WAN is (model).")
    add_scenario(parser, count=2000, default=[str(_SCENARIO)])
    parser.add_argument(
        "--steps",
        default=f"{_OWN},1 h",
        help=f"data's time between collectives, {_OWN}: between two matrices (default %(default)s)",
    )
    parser.add_argument("--peaks", default="0.8,3,10", help="highest load of a link, of its capacity (%(default)s)")
    parser.add_argument("--ages", default="0,1,2,3,4,5", help="ages of knowledge in collectives (default %(default)s)")
    add_output(parser)
    return parser


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    lines = [line for name in options.scenario for line in _lines(options, name, show)]
    columns = [
        Column[Line]("scenario", lambda line: line.scenario, left=True),
        Column[Line]("step", lambda line: line.step),
        Column[Line]("peak", lambda line: f"{line.peak:g}"),
        Column[Line]("days", lambda line: f"{line.days:.1f}"),
        Column[Line]("spread (%)", lambda line: _percent(line.spread)),
        Column[Line]("change (%)", lambda line: _percent(line.change)),
        Column[Line]("age", lambda line: str(line.age)),
        Column[Line]("mode", lambda line: line.mode),
        Column[Line]("mean (ms)", lambda line: f"{line.mean_s * 1e3:,.3f}"),
        Column[Line]("over base (%)", lambda line: str(line.over_base)),
        Column[Line]("over ECMP (%)", lambda line: str(line.over_ecmp)),
        Column[Line]("over once (%)", lambda line: str(line.over_once)),
    ]
    notes = ["", "once: the same mode, whose choices are made once, by mean rates (knowledge mean)"]
    notes += ["in brackets: 95 % intervals, of blocks of a day of the data"]
    whys = [gain.why for line in lines for gain in (line.over_base, line.over_ecmp, line.over_once)]
    notes += [f"{whys.count(why)} of {len(whys)} gains: {why}" for why in dict.fromkeys(filter(None, whys))]
    title = "Gains of choosing again, by how variable the WAN is; predicted"
    table = Table(columns, lines, title=title, notes=notes)
    return Answer(tables=[table], as_json=[asdict(line) for line in lines], picture=lambda: _picture(lines))


def _lines(options: argparse.Namespace, name: str, show: Show) -> Iterator[Line]:
    from analysis.statistics.intervals import MIN_UNEVEN_BLOCKS, over_draws
    from analysis.statistics.intervals import gain as gain_of
    from scenarios.api import run
    from scenarios.policies.conditions import conditions_of
    from scenarios.spec.load import toml_or_text
    from topologies.conditions.background_load import write

    of_one = argparse.Namespace(**{**vars(options), "scenario": name})
    plain = loaded(of_one, {})
    if plain.conditions.load is None:
        raise ValueError(f"{name} has no background load; allowed: a scenario with [conditions.load]")
    if plain.conditions.every_s is not None:
        raise ValueError(f"{name} has conditions that change by time; allowed: without conditions.every")
    steps, peaks, ages = (elements(text, text.split(",")) for text in (options.steps, options.peaks, options.ages))
    for age in ages:
        if not (age.isascii() and age.isdecimal()):
            text = f"--ages: {format_value(age)} is not a number of collectives"
            raise ValueError(f"{text}; allowed: whole numbers from 0")
    steps = _steps(steps, _load(conditions_of(plain.configurations()[0])).interval_s, plain.name)
    loads = [(step, toml_or_text(peak)) for step in steps for peak in peaks]
    given = write(plain.conditions.load)
    axis = {"sweep.conditions.load": [given | {"step": step, "peak": peak} for step, peak in loads]}

    swept = loaded(of_one, axis)
    warn(COMMAND, [swept], emulates=False)
    configs = swept.configurations()
    all_conditions = [conditions_of(config) for config in configs]
    kept = [_kept(conditions, plain.collective.count) for conditions in all_conditions]
    measures = [_variability(*each) for each in zip(all_conditions, kept, strict=True)]
    count = max(int(one.numbers[-1]) for one in kept) + 1  # what follows is repeated
    counted = {"collective.count": count, "collective.emulated": count}

    def series(what: str, values: Mapping[str, object]) -> "dict[tuple[int, str], Series]":
        scenario = loaded(of_one, {**axis, **counted, **values})
        return _series(
            run(scenario, progress=lambda done, count: show(f"{plain.name}, {what}: {done} of {count} points")), kept
        )

    def gain(slower: "Series", faster: "Series") -> Gain:
        return Gain.of(gain_of(slower, faster, least_blocks=MIN_UNEVEN_BLOCKS))

    by_hash = [
        series("ECMP", {"fabric.routing": "ecmp", "fabric.hash_seed": seed, "run.modes": [_BASE]})
        for seed in _HASH_SEEDS
    ]
    ecmp = {setting: over_draws([one[setting, _BASE] for one in by_hash]) for setting in range(len(configs))}
    modes = {"run.modes": [_BASE, *_MODES]}
    once = series("choices made once", modes | {"control.knowledge": "mean"})
    for number in map(int, ages):
        again = series(f"age {number}", modes | {"control.knowledge": f"stale {number}" if number else "oracle"})
        for (setting, mode), times in again.items():
            spread_ecmp = ecmp[setting]
            if mode == _BASE or spread_ecmp is None:
                continue
            load = configs[setting].conditions.load
            yield Line(
                scenario=plain.name,
                step=loads[setting][0],
                peak=(load and load.peak) or 0.0,
                days=kept[setting].numbers.size / kept[setting].day,
                spread=measures[setting][0],
                change=measures[setting][1],
                age=number,
                mode=mode,
                mean_s=float(times.completion_s.mean()),
                over_base=gain(again[setting, _BASE], times),
                over_ecmp=gain(spread_ecmp, times),
                over_once=gain(once[setting, mode], times),
            )


class _Kept(NamedTuple):
    """The numbers of the collectives that count, and how many collectives a day of the data has, which may be less than
    one."""

    numbers: "npt.NDArray[np.int64]"
    day: float


def _kept(conditions: "Conditions", count: int) -> _Kept:
    import numpy as np

    load = _load(conditions)
    return _Kept(np.flatnonzero(load.are_of_data(count)), _DAY_S / load.step_s)


def _steps(asked: Sequence[str], interval_s: float, name: str) -> list[str]:
    """Return the steps of a scenario whose matrices are so far apart: those that are shorter are left out, and told.
    Raises ValueError if none is left."""
    from topologies.units import SPAN, UnitError, parse_delay_s

    unit, of_unit_s = next((unit for unit in _UNITS if unit[1] <= interval_s), _UNITS[-1])
    own, steps = f"{interval_s / of_unit_s:g} {unit}", list[str]()
    for step in dict.fromkeys(own if step == _OWN else step for step in asked):
        try:
            is_short = parse_delay_s(step, SPAN) < interval_s - 1e-9
        except UnitError:
            is_short = False  # the scenario tells what is wrong
        if is_short:
            print(f"{COMMAND}: {name}: the step {step} is left out, as matrices are {own} apart", file=sys.stderr)
        else:
            steps.append(step)
    if not steps:
        raise ValueError(f"--steps: {name} has matrices that are {own} apart; allowed: {_OWN}, or {own} and more")
    return steps


def _load(conditions: "Conditions") -> "Loaded":
    from topologies.conditions.background_load import Loaded

    if not isinstance(conditions.drawn, Loaded):
        raise TypeError(f"a load has a sampler {conditions.drawn!r}")
    return conditions.drawn


def _series(rows: "pd.DataFrame", kept: Sequence[_Kept]) -> "dict[tuple[int, str], Series]":
    """Return the times of the collectives that count, by setting and mode, in blocks of a day."""
    from analysis.figures.run_points import configurations_of, points_of
    from analysis.results.reader import run_of_rows

    stored, found = run_of_rows(rows), dict[tuple[int, str], "Series"]()
    for (_, setting, mode), point in points_of(stored, configurations_of(stored)).items():
        numbers, day = kept[setting]
        found[setting, mode] = replace(point.among(numbers), block=max(1, round(day)), fresh=None)
    return found


def _variability(conditions: "Conditions", kept: _Kept) -> tuple[float, float]:
    """Return how much the rates of loaded WAN links spread, and how much they change between collectives (`Line`)."""
    import numpy as np

    from topologies.fabric.ports import links_in_grain

    wan = [link.index for link in links_in_grain(conditions.fabric).all if link.kind == "wan"]
    rates = conditions.drawn.rates_bps(0, int(kept.numbers[-1]) + 1)[kept.numbers][:, wan]
    shares = rates[:, rates.std(axis=0) > 0] / rates[:, rates.std(axis=0) > 0].mean(axis=0)
    if not shares.size:
        return 0.0, 0.0
    changes = np.abs(np.diff(shares, axis=0))
    return float(shares.std(axis=0).mean()), float(changes.mean()) if changes.size else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _share(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def _picture(lines: Sequence[Line]) -> "Picture":
    from analysis.figures.plain import Panel, Spot, panels

    ages, names = {line.age for line in lines}, {line.scenario for line in lines}

    def panel(over: str, gain: Callable[[Line], Gain], modes: Collection[str]) -> Panel:
        spots = [
            Spot(
                ", ".join([*([one.scenario] if len(names) > 1 else []), one.mode, f"{one.age} old"]),
                x=100 * one.change,
                y=100 * gain(one).value,
                low=_share(gain(one).low),
                high=_share(gain(one).high),
            )
            for one in lines
            if one.age in (min(ages), max(ages)) and one.mode in modes
        ]
        span = _SPAN if any(spot.low < _SPAN[0] for spot in spots) else None
        x, y = "change of a loaded link's rate (%)", "gain (%)"
        return Panel(spots=spots, x=x, y=y, title=f"over {over}", log_x=True, is_line=False, span=span)

    drawn = [
        panel("base", lambda line: line.over_base, _MODES),
        panel("ECMP", lambda line: line.over_ecmp, _MODES),
        panel("choosing once", lambda line: line.over_once, _DRAWN),
    ]
    return panels(drawn, name="variability")


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
