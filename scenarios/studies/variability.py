"""`run.py variability`: how variable must a WAN be before re-routing and re-embedding pay?

Each scenario has a background load of measured traffic matrices. The more of the data's time passes from one collective
to the next, the more the links' rates differ between them. For each such step and each age of the controller's
knowledge, the study tells the gain of the modes: over base, over base under ECMP, and over the same mode that chooses
once, by mean rates. The last is what it pays to choose again. Beside it are two measures of the rates: how much they
spread over time, and how much they change from one collective to the next. Times are the model's, and include
reconfigurations if the scenario counts them.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, add_scenario, loaded, warn
from topologies.command_line import CommandParser
from topologies.errors import elements, format_value

if TYPE_CHECKING:
    import pandas as pd

    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

COMMAND = "run.py variability"
_BASE, _MODES = "base", ("wan", "ccl", "joint")
_SCENARIO = Path(__file__).parents[1] / "packs" / "variability.toml"
_DRAWN = ("wan", "joint")  # the modes that choose paths; the table has the rings over fixed ones, too
_HASH_SEEDS = (1, 2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class Line:
    """The gains of a mode over base, over ECMP and over itself with choices made once, with the 95 % interval of the
    last (None if there is none, which `why` explains).

    `spread` is the standard deviation of a WAN link's rate over time, and `change` the mean absolute difference between
    one collective and the next, each as a share of its mean rate and averaged over the links that are loaded. `age` is
    that of the controller's knowledge in collectives.
    """

    scenario: str
    step: str
    peak: float
    spread: float
    change: float
    age: int
    mode: str
    mean_s: float
    over_base: float
    over_ecmp: float
    over_once: float
    low: float | None
    high: float | None
    why: str


def _parser() -> CommandParser:
    parser = CommandParser(prog=COMMAND, description="The gain of each mode by how variable the WAN is (model).")
    add_scenario(parser, count=2000, default=[str(_SCENARIO)])
    parser.add_argument("--data", metavar="DIR", help="folder of the published data that packs read")
    parser.add_argument("--steps", default="5 min,1 h", help="data's time between collectives (default %(default)s)")
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
        Column[Line]("spread (%)", lambda line: _percent(line.spread)),
        Column[Line]("change (%)", lambda line: _percent(line.change)),
        Column[Line]("age", lambda line: str(line.age)),
        Column[Line]("mode", lambda line: line.mode),
        Column[Line]("mean (ms)", lambda line: f"{line.mean_s * 1e3:,.3f}"),
        Column[Line]("over base (%)", lambda line: _percent(line.over_base)),
        Column[Line]("over ECMP (%)", lambda line: _percent(line.over_ecmp)),
        Column[Line]("over once (%)", lambda line: _percent(line.over_once)),
        Column[Line]("95 % interval", _ends, why=next((line.why for line in lines if line.why), "")),
    ]
    notes = ["", "once: the same mode, whose choices are made once, by mean rates (knowledge mean)"]
    notes += [f"no gain has an interval: {lines[0].why}"] * all(line.why for line in lines)  # the column is left out
    title = "Gains of choosing again, by how variable the WAN is; predicted"
    table = Table(columns, lines, title=title, notes=notes)
    return Answer(tables=[table], as_json=[asdict(line) for line in lines], picture=lambda: _picture(lines))


def _lines(options: argparse.Namespace, name: str, show: Show) -> Iterator[Line]:
    import numpy as np

    from scenarios.api import compare, run
    from scenarios.spec.load import toml_or_text
    from topologies.conditions.background_load import write

    of_one = argparse.Namespace(**{**vars(options), "scenario": name})
    data = {} if options.data is None else {"--data": options.data}
    plain = loaded(of_one, data)
    if plain.conditions.load is None:
        raise ValueError(f"{name} has no background load; allowed: a scenario with [conditions.load]")
    steps, peaks, ages = (elements(text, text.split(",")) for text in (options.steps, options.peaks, options.ages))
    for age in ages:
        if not (age.isascii() and age.isdecimal()):
            text = f"--ages: {format_value(age)} is not a number of collectives"
            raise ValueError(f"{text}; allowed: whole numbers from 0")
    loads = [(step, toml_or_text(peak)) for step in steps for peak in peaks]
    given = write(plain.conditions.load)
    axis = {"sweep.conditions.load": [given | {"step": step, "peak": peak} for step, peak in loads]}

    def rows(what: str, values: Mapping[str, object]) -> "pd.DataFrame":
        scenario = loaded(of_one, {**data, **axis, **values})
        return run(scenario, progress=lambda done, count: show(f"{plain.name}, {what}: {done} of {count} points"))

    by_hash = [
        rows("ECMP", {"fabric.routing": "ecmp", "fabric.hash_seed": seed, "run.modes": [_BASE]}).groupby("setting")
        for seed in _HASH_SEEDS
    ]
    ecmp_s = np.mean([one["completion_s"].mean() for one in by_hash], axis=0)
    modes = {"run.modes": [_BASE, *_MODES]}
    once = rows("choices made once", modes | {"control.knowledge": "mean"})
    swept = loaded(of_one, data | axis | modes)
    warn(COMMAND, [swept], emulates=False)
    configs = swept.configurations()
    measures = [_variability(config) for config in configs]
    peaks_of = [config.conditions.load.peak or 0.0 for config in configs if config.conditions.load is not None]
    for number in map(int, ages):
        again = rows(f"age {number}", modes | {"control.knowledge": f"stale {number}" if number else "oracle"})
        over_base = compare(again, baseline=_BASE).set_index(["setting", "mode"])["gain"]
        for one in compare(again, once).itertuples():
            if one.mode == _BASE:
                continue
            yield Line(
                scenario=plain.name,
                step=loads[one.setting][0],
                peak=peaks_of[one.setting],
                spread=measures[one.setting][0],
                change=measures[one.setting][1],
                age=number,
                mode=one.mode,
                mean_s=one.mean_s,
                over_base=over_base[one.setting, one.mode],
                over_ecmp=1 - one.mean_s / ecmp_s[one.setting],
                over_once=one.gain,
                low=None if one.no_interval else one.gain_low,
                high=None if one.no_interval else one.gain_high,
                why=one.no_interval,
            )


def _variability(config: "Scenario") -> tuple[float, float]:
    """Return how much the rates of loaded WAN links spread, and how much they change between collectives (`Line`)."""
    import numpy as np

    from scenarios.policies.conditions import conditions_of
    from topologies.fabric.ports import links_in_grain

    conditions = conditions_of(config)
    wan = [link.index for link in links_in_grain(conditions.fabric).all if link.kind == "wan"]
    rates = conditions.drawn.rates_bps(0, config.collective.count)[:, wan]
    shares = rates[:, rates.std(axis=0) > 0] / rates[:, rates.std(axis=0) > 0].mean(axis=0)
    if not shares.size:
        return 0.0, 0.0
    return float(shares.std(axis=0).mean()), float(np.abs(np.diff(shares, axis=0)).mean())


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _ends(line: Line) -> str:
    return "" if line.low is None or line.high is None else f"{_percent(line.low)} to {_percent(line.high)}"


def _share(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def _picture(lines: Sequence[Line]) -> "Picture":
    from analysis.figures.plain import Spot, picture

    ages, names = {line.age for line in lines}, {line.scenario for line in lines}
    spots = [
        Spot(
            ", ".join([*([one.scenario] if len(names) > 1 else []), one.mode, f"{one.age} old"]),
            x=100 * one.change,
            y=100 * one.over_once,
            low=_share(one.low),
            high=_share(one.high),
        )
        for one in lines
        if one.age in (min(ages), max(ages)) and one.mode in _DRAWN
    ]
    x = "change of a loaded link's rate between collectives (% of its mean)"
    return picture(spots, name="variability", x=x, y="gain over choosing once (%)", log_x=True)


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
