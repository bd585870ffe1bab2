"""The settings of a run as its folder describes them, so that its rows can be read without a scenario or its code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.statistics.sharing import warnings
from scenarios.experiment.progress import label
from scenarios.policies.decide import shared_wan_links
from scenarios.spec.faults import Fault
from scenarios.spec.keys import KEYS
from scenarios.spec.scenario import Scenario, values_of
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.shaping.rate_scale import RateScale

_KINDS = {"intra": "gpu-gpu", "to_br": "gpu-br", "from_br": "br-gpu", "wan": "wan"}
_OWN_COLUMNS = ("fabric.gpus", "collective.chunk", "conditions.wan_delay", "run.seed")
"""Keys that have columns of their own in every table."""


def described(scenario: Scenario) -> list[dict[str, Any]]:
    """Every setting of a scenario: what was swept, the value of every key, the fabric that its rows speak of, and for
    each mode the WAN links that flows can share."""
    axes = [axis.key for axis in scenario.sweep]
    found = []
    for index, setting in enumerate(scenario.settings()):
        values = values_of(setting)
        swept = {key: values[key] for key in axes}
        found.append(
            {
                "setting": index,
                "label": label(setting),
                "swept": {key: _plain(value) for key, value in swept.items()},
                "columns": further(setting),
                "values": plain_values(setting),
                "fabric": _fabric(build_fabric(setting.fabric)),
                "shared_wan_links": {mode: list(shared(setting, mode)) for mode in setting.run.modes},
            }
        )
    return found


def plain_values(setting: Scenario) -> dict[str, Any]:
    """The value of every key of a setting as JSON can hold it."""
    return {key: _plain(value) for key, value in values_of(setting).items()}


def further(setting: Scenario) -> dict[str, Any]:
    """The columns that a setting's results have for what was swept, beside those that all results have."""
    return {_column(key): _cell(key, value) for key, value in setting.at if key not in _OWN_COLUMNS}


def shared(setting: Scenario, mode: str) -> tuple[str, ...]:
    """The WAN links, by name, that two crossings of a ring can use at once in a mode (`plan.shared_wan_links`)."""
    detours = any(fault.kind in ("link down", "switch down") for fault in setting.faults)
    return shared_wan_links(setting.fabric, mode, detours=detours)


def sharing_warnings(settings: Sequence[Scenario]) -> tuple[str, ...]:
    """What is to be said before settings are run in which flows can share a WAN link; nothing where none can."""
    return warnings((label(one), {mode: shared(one, mode) for mode in one.run.modes}) for one in settings)


def _column(key: str) -> str:
    """The column of a swept key in the tables of results."""
    return f"{key}_s" if key.endswith(("_delay", "trace_step")) else key


def _cell(key: str, value: Any) -> Any:
    """The value of a swept key in its column: a number, a truth, or text."""
    if isinstance(value, bool | int | float | str):
        return value
    written = KEYS[key].write(value)
    return written if isinstance(written, str) else str(written)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Fault):
        return value.written()
    return str(value) if isinstance(value, Path | RateScale) else KEYS["fabric.wan"].write(value)


def _fabric(fabric: Fabric) -> dict[str, Any]:
    return {
        "gpus": [{"rank": g.rank, "name": g.name, "site": g.site, "leaf": g.leaf} for g in fabric.gpus],
        "border_routers": [
            {"name": name, "site": site} for name, site in zip(fabric.border_routers, fabric.br_sites, strict=True)
        ],
        "transit": [switch.name for switch in fabric.switches if switch.kind == "transit"],
        "links": [
            {"index": link.index, "src": link.src, "dst": link.dst, "kind": _KINDS[link.kind]} for link in fabric.links
        ],
        "paths": [_path(fabric, place) for place in range(len(fabric.paths))],
    }


def _path(fabric: Fabric, place: int) -> dict[str, Any]:
    path, names = fabric.paths[place], fabric.border_routers
    ends: Sequence[str] = (names[path.src_br], names[path.dst_br])
    return {"index": path.index, "links": list(path.links), "src_br": ends[0], "dst_br": ends[1]}
