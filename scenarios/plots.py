"""Which figures a run's results make: the sweep's longest axis across, one figure for each setting of the others."""

from collections.abc import Sequence
from typing import Any

from analysis.figures import Total, TotalsFigure
from analysis.metrics import Interval
from scenarios.results import SettingResult
from scenarios.spec import Axis, Scenario
from topologies.units import format_delay, format_size

_LABELS = {
    "fabric.gpus": ("GPUs", "gpus"),
    "collective.chunk": ("chunk size", "chunk_bytes"),
    "conditions.wan_delay": ("delay of a WAN link", "wan_delay_s"),
}


def figures_of(scenario: Scenario, results: Sequence[SettingResult]) -> dict[str, TotalsFigure]:
    """The figures of the results of all settings, by the name of their file (without what follows the point)."""
    across = max(scenario.sweep, key=lambda axis: len(axis.values), default=None)
    others = [key for key in _LABELS if across is None or key != across.key]
    swept = [axis.key for axis in scenario.sweep if axis is not across]
    groups: dict[tuple[str, ...], list[SettingResult]] = {}
    engines = len({result.engine for result in results})
    for result in sorted(results, key=lambda result: result.place):
        engine = [result.engine] if engines > 1 else []
        groups.setdefault((*engine, *(_words(key, result.setting) for key in swept)), []).append(result)
    return {
        "-".join([scenario.name, *(word.replace(" ", "") for word in group)]): _figure(across, others, found)
        for group, found in groups.items()
    }


def _figure(across: Axis | None, others: Sequence[str], results: Sequence[SettingResult]) -> TotalsFigure:
    key = "collective.chunk" if across is None else across.key
    first = results[0].setting
    x_label, x_column = _LABELS[key]
    return TotalsFigure(
        title=", ".join([results[0].engine, *(_titles(other, first) for other in others if other != key)]),
        x_label=x_label,
        x_column=x_column,
        x_values=tuple(_value(key, result.setting) for result in results),
        x_ticks=tuple(_words(key, result.setting) for result in results),
        totals={
            mode: tuple(_total(result.points[place].summary.total_s) for result in results)
            for place, mode in enumerate(first.run.modes)
        },
        collectives=first.collective.count,
    )


def _total(interval: Interval) -> Total:
    return Total(total_s=interval.value, low_s=interval.low, high_s=interval.high)


def _value(key: str, setting: Scenario) -> Any:
    values = {
        "fabric.gpus": setting.gpus,
        "collective.chunk": setting.collective.chunk_bytes,
        "conditions.wan_delay": setting.conditions.wan_delay_s,
    }
    return values[key]


def _words(key: str, setting: Scenario) -> str:
    if key == "fabric.gpus":
        sites = setting.fabric.gpus_per_site
        return str(setting.gpus) if len(set(sites)) == 1 else "+".join(map(str, sites))
    return format_size(_value(key, setting)) if key == "collective.chunk" else format_delay(_value(key, setting))


def _titles(key: str, setting: Scenario) -> str:
    words = _words(key, setting)
    return {"fabric.gpus": f"{words} GPUs", "collective.chunk": f"chunks of {words}"}.get(key, f"WAN links of {words}")
