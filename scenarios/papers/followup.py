"""The follow-up by the authors of this testbed's paper: a WAN whose utilisation is replayed, and predicted capacities.

Their code and results are public (github.com/jiahengxiong/DRL-CCL, folder Allgather_new_scaleCCL); none of either is
here, but for the times in one of their tables. Their four schemes are policies here:

    base   placement and paths are chosen once
    ccl    both are chosen before every tenth collective ("slow pace" there)
    wan    paths are chosen before every collective ("fast pace")
    joint  paths before every collective, the placement before every tenth
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies.harness import Column, Show, Table, warnings_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

    Floats = npt.NDArray[np.float64]

_GPUS = 6  # of each site
_GBPS, _BORDER_GBPS = 200, 100
_DELAYS = ("100 us", "250 us")
_BLOCK = "4 MiB"
_COUNT = 2000
_MEASURED, _MEASURED_RANGE = "heavy", "200-204"  # late enough for predictions that are fitted to what was before
_PREDICTED, _SIMPLER, _KNOWN = "ar 12", "ewma 0.5", "oracle"
_SLOW = {"name": "slow", "reroute": "every 10", "reembed": "every 10"}
_BARS = {"base": "base", "ccl": "slow", "wan": "wan", "joint": "joint"}
"""The mode of each bar. Of the mode ccl the paths would stay those of base, and with them what the WAN does to it."""
_LEAST = {"mild": 0.5, "moderate": 0.3, "heavy": 0.1}
"""The least share of its capacity that a WAN link has left, by the congestion degree."""
_THEIRS = {
    "mild": (303277.877, 253240.734, 217589.132, 186385.939),
    "moderate": (402332.728, 347958.838, 253516.008, 227165.955),
    "heavy": (751130.247, 690387.859, 280400.294, 269608.179),
}
"""Their times of 50 AllGathers in us for base, ccl, wan and joint: script_and_result/alpha_result.csv there."""

_ORDER = (
    ("base", "ccl", "at mild congestion WAN links have at least the rate of a border router's links to GPUs"),
    ("ccl", "wan", "where links within sites vary the placement gains more, and at mild congestion paths gain nothing"),
    ("wan", "joint", "with constant rates within sites all placements are alike"),
)
"""The order that they claim, and why it may not hold here."""
_NOTHING = 1e-6  # a smaller gain is none

WAN, ALL, ALTERNATING, REPLAYED = "WAN varies", "all vary", "WAN swaps", "WAN replayed"
_TRACED = (ALTERNATING, REPLAYED)
_MEASURED_LOAD = Path(__file__).parents[1] / "packs" / "load.toml"
_ALTERNATING_SHARE, _PERIOD, _BETTER = 0.9, 10, 0.9  # of the rates; collectives; of what a border router has left


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The time of a bar, the share of base's time that it saves, and the ends of its 95 % interval, None if there is
    none; and what is saved if the capacities are known."""

    mean_s: float
    gain: float
    low: float | None
    high: float | None
    known_gain: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """The bars of a series at a congestion degree and a WAN delay, and by how much joint is slower with each of the
    predictions than if capacities were known. Where it was measured, `measured_s` are the means of a few collectives,
    and `predicted_s` those of the same ones."""

    series: str
    degree: str
    delay: str
    bars: dict[str, Gain]
    losses: dict[str, float]
    measured_s: dict[str, float]
    predicted_s: dict[str, float]


def values_of(series: str, degree: str, knowledge: str) -> dict[str, object]:
    """Return the keys of the scenario of a series whose rates follow an autoregressive process, the share of a link's
    capacity that is left being between the least of the congestion degree and 1."""
    span = f"{_GBPS * _LEAST[degree]:g}-{_GBPS} Gbit/s"
    within: dict[str, object] = {
        "conditions.intra_rate": f"{_GBPS} Gbit/s",
        "conditions.links": {"gpu-border": {"rate": f"{_BORDER_GBPS} Gbit/s"}},
    }
    return {
        "name": "followup",
        "fabric.gpus": [_GPUS, _GPUS],
        "conditions.sampler": "ar1",
        "conditions.wan_rate": span,
        **({"conditions.intra_rate": span} if series == ALL else within),
        "collective.chunk": _BLOCK,
        "collective.count": _COUNT,
        "collective.emulated": _MEASURED_RANGE,
        "control.knowledge": knowledge,
        "policy": [_SLOW],
        "run.modes": [*_BARS.values()],
    }


def alternating_bps(own_bps: "Floats", names: Sequence[str], least: float) -> "Floats":
    """Return rates [K, links] that are `own_bps` to a tenth, and for the rest those of a WAN that alternates.

    A link is named as s0b1>s1b0. There the two links of a border router have all of their capacity together, or the
    share `least` of it for the next ten collectives, and the two border routers of a site in turn. Most of it has one
    of its links, the other one in the next collective.
    """
    import numpy as np

    collective = np.arange(len(own_bps))[:, None]
    src, dst = (np.array([int(name.split(">")[side][-1]) for name in names]) for side in (0, 1))
    left = np.where((collective // _PERIOD + src) % 2 == 0, 1.0, least)
    part = np.where((collective + src + dst) % 2 == 0, _BETTER, 1 - _BETTER)
    mixed: Floats = (1 - _ALTERNATING_SHARE) * own_bps + _ALTERNATING_SHARE * left * part * _GBPS * 1e9
    return mixed


def replayed_bps(loads_bps: "Floats", count: int, links: int, least: float) -> "Floats":
    """Return rates [count, links] of WAN links whose utilisation is that of as many links with these loads
    [matrices, links], the most loaded ones; where one is at its fullest, the share `least` of its rate is left."""
    import numpy as np

    fullest = np.resize(np.argsort(-loads_bps.mean(axis=0), kind="stable"), links)
    used = loads_bps[np.arange(count) % len(loads_bps)][:, fullest]
    rates: Floats = (1 - (1 - least) * used / used.max(axis=0)) * _GBPS * 1e9
    return rates


def measured_loads_bps(data: str) -> "Floats":
    """Return the loads [matrices, links] that the traffic of Abilene in this folder puts on its links; raises
    ScenarioError."""
    import numpy as np

    from scenarios.api import scenario
    from scenarios.policies.conditions import conditions_of
    from scenarios.spec.load import DATA
    from topologies.conditions.background_load import Loaded

    drawn = conditions_of(scenario(_MEASURED_LOAD, {DATA: data}).configurations()[0]).drawn
    assert isinstance(drawn, Loaded)
    loaded: Floats = drawn.load_bps[:, np.flatnonzero(drawn.load_bps.any(axis=0))]
    return loaded


def _write_trace(path: Path, scenario: "Scenario", least: float, loads_bps: "Floats | None") -> None:
    """Write the trace of a WAN that replays loads or, without any, alternates, a tenth of it being the scenario's own
    draw."""
    from scenarios.policies.conditions import conditions_of

    conditions = conditions_of(scenario.configurations()[0])
    links, count = [link for link in conditions.shared.all if link.kind == "wan"], scenario.collective.count
    if loads_bps is None:
        own_bps = conditions.drawn.rates_bps(0, count)[:, [link.index for link in links]]
        rates = alternating_bps(own_bps, [link.name for link in links], least).tolist()
    else:
        rates = replayed_bps(loads_bps, count, len(links), least).tolist()
    rows = [
        f"{at},{link.name},{round(rate)}" for at, row in enumerate(rates) for link, rate in zip(links, row, strict=True)
    ]
    path.write_text("\n".join(["time,link,rate", *rows, ""]))


def _repeat(settings: Settings, show: Show) -> Repeated:
    import pandas as pd

    lines, measured = list[Line](), list[pd.DataFrame]()
    loads_bps = None if settings.data is None else measured_loads_bps(settings.data)
    shown = (WAN if loads_bps is None else REPLAYED, ALL, ALTERNATING)
    with TemporaryDirectory() as folder:
        for series, degree in product(shown, _LEAST):
            show(f"{series}, {degree}")
            loads = loads_bps if series == REPLAYED else None
            scenarios = _Scenarios(series, degree, settings.seed, Path(folder), loads)
            if settings.measures and degree == _MEASURED:
                measured.append(_measured(scenarios, settings, show))
            lines += _lines(scenarios, measured[-1] if settings.measures and degree == _MEASURED else None)
    return Repeated(
        tables=[_table(lines)],
        claims=[*_claims(lines)],
        lines=[asdict(line) for line in lines],
        picture=lambda: _picture(lines),
        problems=warnings_of(pd.concat(measured)) if measured else [],
    )


@dataclass(frozen=True, eq=False)
class _Scenarios:
    """The scenarios of a series at a congestion degree; `folder` is for their traces, and `loads_bps` are what a WAN
    replays."""

    series: str
    degree: str
    seed: int
    folder: Path
    loads_bps: "Floats | None"

    def of(self, knowledge: str, delays: Sequence[str]) -> "Scenario":
        from scenarios.api import scenario

        values = values_of(self.series, self.degree, knowledge)
        values |= {"run.seed": self.seed, "sweep.conditions.wan_delay": [*delays]}
        if self.series in _TRACED:
            trace = self.folder / f"{self.series} {self.degree}.csv"
            if not trace.exists():
                _write_trace(trace, scenario(values=values), _LEAST[self.degree], self.loads_bps)
            del values["conditions.wan_rate"]
            values |= {"conditions.sampler": "trace", "conditions.trace": str(trace)}
        return scenario(values=values)


def _measured(scenarios: _Scenarios, settings: Settings, show: Show) -> "pd.DataFrame":
    """Measure a few collectives of each bar at the last delay, and return their rows."""
    from scenarios.api import run

    def progress(done: int, count: int) -> None:
        show(f"{scenarios.series}: {done} of {count} bars measured")

    return run(scenarios.of(_PREDICTED, _DELAYS[-1:]), "emulation", jobs=settings.jobs, progress=progress)


def _lines(scenarios: _Scenarios, measured: "pd.DataFrame | None") -> Iterator[Line]:
    """Predict the bars at each delay; `measured` are rows of collectives measured at the last one."""
    from scenarios.api import compare, run

    known, *predicted = (
        run(scenarios.of(knowledge, _DELAYS), progress=lambda _done, _count: None)
        for knowledge in (_KNOWN, _PREDICTED, _SIMPLER)
    )
    gains, known_gains = (
        compare(rows, baseline=_BARS["base"]).set_index(["setting", "mode"]) for rows in (predicted[0], known)
    )
    joint_s = [
        rows[rows["mode"] == _BARS["joint"]].groupby("setting").completion_s.mean() for rows in (known, *predicted)
    ]
    for setting, delay in enumerate(_DELAYS):
        bars = {bar: _gain(gains.loc[setting, mode], known_gains.loc[setting, mode]) for bar, mode in _BARS.items()}
        means = None
        if measured is not None and delay == _DELAYS[-1]:
            means = measured.groupby("mode")[["completion_s", "predicted_s"]].mean()
        yield Line(
            series=scenarios.series,
            degree=scenarios.degree,
            delay=delay,
            bars=bars,
            losses={
                name: float(own_s[setting] / joint_s[0][setting] - 1)
                for name, own_s in zip((_PREDICTED, _SIMPLER), joint_s[1:], strict=True)
            },
            measured_s={} if means is None else _by_bar(means["completion_s"]),
            predicted_s={} if means is None else _by_bar(means["predicted_s"]),
        )


def _gain(row: "Any", known: "Any") -> Gain:
    ends = (None, None) if row.no_interval else (float(row.gain_low), float(row.gain_high))
    return Gain(mean_s=float(row.mean_s), gain=float(row.gain), low=ends[0], high=ends[1], known_gain=float(known.gain))


def _by_bar(by_mode: "pd.Series[float]") -> dict[str, float]:
    return {bar: float(by_mode[mode]) for bar, mode in _BARS.items()}


def _table(lines: Sequence[Line]) -> Table[Line]:
    def gain(bar: str) -> Column[Line]:
        def cell(line: Line) -> str:
            one = line.bars[bar]
            ends = "" if one.low is None or one.high is None else f" ({_percent(one.low)} to {_percent(one.high)})"
            return f"{_percent(one.gain)}{ends}"

        return Column[Line](f"{bar} (%)", cell)

    columns = [
        Column[Line]("series", lambda line: line.series, left=True),
        Column[Line]("congestion", lambda line: line.degree, left=True),
        Column[Line]("delay", lambda line: line.delay),
        Column[Line]("base (ms)", lambda line: f"{1e3 * line.bars['base'].mean_s:.3f}"),
        *map(gain, ("ccl", "wan", "joint")),
        Column[Line]("joint's loss (%)", lambda line: _percent(line.losses[_PREDICTED])),
        Column[Line](f"with {_SIMPLER}", lambda line: _percent(line.losses[_SIMPLER])),
    ]
    title = (
        f"Mean time of an AllGather in base and gains over it with 95 % intervals, capacities predicted ({_PREDICTED})"
    )
    notes = ["joint's loss: how much longer it takes than if capacities were known"]
    for line in lines:
        if line.measured_s:
            ratios = (
                f"{bar} {1e3 * value_s:.3f} ({value_s / line.predicted_s[bar]:.4f})"
                for bar, value_s in line.measured_s.items()
            )
            notes.append(
                f"measured, {line.series}, {line.degree}, {line.delay}, collectives {_MEASURED_RANGE}, ms (as a ratio "
                f"to the prediction): {', '.join(ratios)}"
            )
    return Table(columns, lines, title=title, notes=notes)


def _claims(lines: Sequence[Line]) -> Iterator[Claim]:
    at = {(line.series, line.degree): line for line in lines if line.delay == _DELAYS[-1]}
    shown = dict.fromkeys(line.series for line in lines)
    for place, bar in enumerate(_BARS):
        for degree, theirs in _THEIRS.items() if bar != "base" else ():
            others = (
                f"{100 * at[series, degree].bars[bar].gain:.0f} % where {series}"
                for series in shown
                if series != ALTERNATING
            )
            yield Claim(
                says=f"{bar} over base, {degree} congestion",
                found=100 * at[ALTERNATING, degree].bars[bar].gain,
                published=100 * (1 - theirs[place] / theirs[0]),
                unit="%",
                because=f"the WAN may swap more here than there ({', '.join(others)}), and a ring crosses it by "
                "one link each way, their trees by all",
            )
    for series, (before, after, why) in product(shown, _ORDER):
        steps = (at[series, degree].bars for degree in _LEAST)
        yield Claim(
            says=f"{after} is faster than {before}, least gain of the degrees, {series}",
            found=100 * min(round(1 - bars[after].mean_s / bars[before].mean_s, 9) + 0.0 for bars in steps),  # not -0
            unit="%",
            because=why,
        )
    for series in shown:
        joint = [at[series, degree].bars["joint"] for degree in _LEAST]
        yield Claim(
            says=f"predicted capacities keep joint's gain, least share of the degrees, {series}",
            found=100 * min((one.gain / one.known_gain for one in joint if one.known_gain > _NOTHING), default=0.0),
            unit="%",
            because="paths and placements chosen by predicted capacities gain nothing over fixed ones",
        )


def _picture(lines: Sequence[Line]) -> "Picture":
    from math import nan

    from analysis.figures.bars import Bar, picture

    bars = []
    for line in lines:
        if line.delay != _DELAYS[-1]:
            continue
        base_s = line.bars["base"].mean_s
        for name, one in line.bars.items():
            low, high = (nan if share is None else 1e3 * base_s * (1 - share) for share in (one.high, one.low))
            bars.append(Bar(f"{line.series}, {line.degree}", name, 1e3 * one.mean_s, low, high))
    for line in lines:
        bars += [
            Bar(f"{line.series}, {line.degree}, measured", name, 1e3 * value_s, measured=True)
            for name, value_s in line.measured_s.items()
        ]
    bars += [
        Bar(f"their table, {degree}", name, of_fifty_us / 50e3)
        for degree, times in _THEIRS.items()
        for name, of_fifty_us in zip(_BARS, times, strict=True)
    ]
    note = f"predicted: {_COUNT:,} collectives, WAN delay {_DELAYS[-1]}"
    note += f"; measured: {_MEASURED_RANGE} of them" if any(line.measured_s for line in lines) else ""
    return picture(bars, name="followup", y="mean time of an AllGather (ms)", note=note)


def _percent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f}"  # not -0.0


PAPER = Paper(
    reference="the authors' follow-up with predicted capacities (github.com/jiahengxiong/DRL-CCL, 4cff117)",
    result="the mean time of an AllGather in base, ccl, wan and joint, by the congestion of the WAN",
    assumed=[
        f"two sites of {_GPUS} GPUs and two border routers; four WAN links of {_GBPS} Gbit/s less a utilisation, with "
        f"a series for each direction; {_BORDER_GBPS} Gbit/s between GPUs and border routers, {_GBPS} between GPUs; "
        f"blocks of {_BLOCK}",
        "GPUs of a site are all linked, and each to both border routers: in the code half of these links exist",
        "an AllGather is a ring, which crosses the WAN once each way; the code's goes by trees over all links",
        f"{WAN}: an autoregressive series of order 1, in place of measured utilisations of 2004; {ALL}: the links "
        "within sites, too, as in the first paper",
        f"{ALTERNATING}: in the code a WAN link has 10 % of its rate from the measured utilisations and 90 % from a "
        "formula, by which the links of a border router take turns; for mild and moderate congestion it is inferred",
        f"{REPLAYED}, in its place with --data: the eight directed links of Abilene that its traffic of 2004 loads "
        "most, a matrix of 5 minutes for each collective, where a link leaves the least share at its fullest",
        f"capacities are predicted by an autoregression ({_PREDICTED}), in place of a recurrent network for each link",
        "base has fixed paths, the code's are chosen once; ccl chooses the paths with the placement, as the code does",
        "a paper with numbers was not found: those of the claims are the code's own table of results, whose delay and "
        f"series are not told; they are compared with {ALTERNATING}, {_DELAYS[-1]}",
    ],
    repeat=_repeat,
    reads_data=True,
)
