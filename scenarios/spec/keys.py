"""The keys of a scenario: what each one's value may be, read from TOML to plain values and written back.

A reader takes a TOML value and returns a plain one (int, float, tuple, …) or raises Wrong; a writer turns it back, so
that a resolved scenario reads the same. What values mean together (a fabric that can be built) is for others.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scenarios.policies.decide import MODES
from scenarios.spec import faults
from scenarios.spec.document import Given, did_you_mean, shown
from topologies import units
from topologies.conditions.sampler import SAMPLERS
from topologies.fabric.wan import WAN_PRESETS, WanSpec
from topologies.shaping.rate_scale import RateScale, ScaleError

CLOCKS = ("virtual", "wall")
MAX_COLLECTIVES = 10_000_000
MAX_SEED = 2**63 - 1
MAX_AXIS_VALUES = 100

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_PARTS = 10**6  # of a fabric: far above what can be built, so that the fabric itself says where its limits are


class Wrong(ValueError):
    """A value that its key does not allow: a sentence with the value and what is allowed."""


@dataclass(frozen=True)
class Key:
    """One key: its default as TOML, how its value is read and written, and which samplers it belongs to."""

    default: object
    read: Callable[[Given], Any]
    write: Callable[[Any], object] = lambda value: value
    samplers: tuple[str, ...] = SAMPLERS


def _text(parse: Callable[[str], Any], example: str) -> Callable[[Given], Any]:
    """A reader of quantities written as text."""

    def read(given: Given) -> Any:
        if not isinstance(given.value, str):
            raise Wrong(
                f'{shown(given.value)} is {_kind(given.value)}: allowed is text with a unit, such as "{example}"'
            )
        try:
            return parse(given.value)
        except units.UnitError as error:
            raise Wrong(str(error)) from None

    return read


def _whole(*, least: int, most: int) -> Callable[[Given], int]:
    def read(given: Given) -> int:
        return _integer(given.value, least, most)

    return read


def _integer(value: object, least: int, most: int) -> int:
    allowed = f"allowed is a whole number from {least:,} to {most:,}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise Wrong(f"{shown(value)} is {_kind(value)}: {allowed}")
    if not least <= value <= most:
        raise Wrong(f"{shown(value)} is too {'small' if value < least else 'large'}: {allowed}")
    return value


def _per_site(given: Given) -> int | tuple[int, ...]:
    """One number, or a list of one for each site."""
    if not isinstance(given.value, list):
        if isinstance(given.value, int) and not isinstance(given.value, bool):
            return _integer(given.value, 1, _MAX_PARTS)
        raise Wrong(f"{shown(given.value)} is {_kind(given.value)}: allowed is a whole number, or a list of one a site")
    if not given.value:
        raise Wrong("the list is empty: allowed is a whole number, or a list of one a site")
    return tuple(_integer(item, 1, _MAX_PARTS) for item in given.value)


def _number(given: Given) -> float:
    value = given.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"{shown(value)} is {_kind(value)}: allowed is a number")
    if (isinstance(value, int) and abs(value) > _MAX_PARTS * 1000) or not math.isfinite(value):
        raise Wrong(f"{shown(value)} is too large or not finite: allowed is a number")
    return float(value)


def _one_of(*allowed: str) -> Callable[[Given], str]:
    def read(given: Given) -> str:
        value = given.value
        if not isinstance(value, str) or value not in allowed:
            hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
            raise Wrong(f"{shown(value)} is not known: allowed is {', '.join(allowed)}{hint}")
        return value

    return read


def _truth(given: Given) -> bool:
    if not isinstance(given.value, bool):
        raise Wrong(f"{shown(given.value)} is {_kind(given.value)}: allowed is true or false")
    return given.value


def _modes(given: Given) -> tuple[str, ...]:
    if not isinstance(given.value, list) or not given.value:
        raise Wrong(f"{shown(given.value)} is no list of modes: allowed is a list of {', '.join(MODES)}")
    read = _one_of(*MODES)
    modes = tuple(read(Given(item, given.where, given.folder)) for item in given.value)
    _unique(modes)
    return modes


def _unique(items: tuple[Any, ...]) -> None:
    twice = next((item for place, item in enumerate(items) if item in items[:place]), None)
    if twice is not None:
        raise Wrong(f"{shown(twice) if isinstance(twice, str) else twice} is listed twice: each may be listed once")


def _rate_scale(given: Given) -> RateScale:
    if not isinstance(given.value, str | int) or isinstance(given.value, bool):
        raise Wrong(f'{shown(given.value)} is {_kind(given.value)}: allowed is text such as "1/1000"')
    try:
        return RateScale.parse(str(given.value))
    except ScaleError as error:
        raise Wrong(str(error)) from None


def _wan(given: Given) -> WanSpec:
    value = given.value
    if isinstance(value, str):
        return WanSpec(preset=_one_of(*WAN_PRESETS)(given))
    if not isinstance(value, dict):
        raise Wrong(
            f"{shown(value)} is {_kind(value)}: allowed is {', '.join(WAN_PRESETS)}, or a table of routers and links"
        )
    strangers = [name for name in value if name not in ("routers", "links")]
    if strangers:
        raise Wrong(f"{shown(strangers[0])} is no key of the WAN's table: allowed is routers, links")
    return WanSpec(preset=None, routers=_names(value.get("routers", []), "routers"), links=_links(value))


def _links(table: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    links = table.get("links")
    if not isinstance(links, list) or not links:
        raise Wrong('links is missing or no list: allowed is a list of pairs, such as [["s0b0", "s1b0"]]')
    pairs = [_names(pair, "each of links") for pair in links]
    odd = next((pair for pair in pairs if len(pair) != 2), None)
    if odd is not None:
        raise Wrong(f'{shown(list(odd))} is no link: allowed is a pair of names, such as ["s0b0", "s1b0"]')
    return tuple((pair[0], pair[1]) for pair in pairs)


def _names(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Wrong(f"{shown(value)} is no list of names: allowed for {what} is a list of names")
    return tuple(value)


def _name(given: Given) -> str:
    if not isinstance(given.value, str) or not _NAME.fullmatch(given.value):
        raise Wrong(f"{shown(given.value)} is no name: allowed is 1 to 64 letters, digits, '-', '_' and '.'")
    return given.value


def _path(given: Given) -> Path:
    value = given.value
    if not isinstance(value, str) or not value:
        raise Wrong(f"{shown(value)} is no path: allowed is the path of a CSV file of time, link and rate")
    path = Path(given.folder, value).absolute()
    if not str(path).isprintable():  # it could be neither shown nor written into a scenario
        raise Wrong(f"{shown(str(path))} is no path to be shown: allowed is printable text")
    return path


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "text", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or a time")


def _written_wan(wan: WanSpec) -> object:
    if wan.preset is not None:
        return wan.preset
    return {"routers": list(wan.routers), "links": [list(link) for link in wan.links]}


def _written_gpus(gpus_per_site: tuple[int, ...]) -> object:
    return sum(gpus_per_site) if gpus_per_site == gpus_per_site[:1] * 2 else list(gpus_per_site)


def _written_per_site(value: int | tuple[int, ...]) -> object:
    return value if isinstance(value, int) else list(value)


_RATES = _text(units.parse_rate_range_bps, "20-200 Gbit/s")
_DELAY = _text(units.parse_delay_s, "10 us")
_PARTS = Key(2, _per_site, _written_per_site)

KEYS: Mapping[str, Key] = MappingProxyType(
    {
        "name": Key("scenario", _name),
        "fabric.gpus": Key(8, _per_site, _written_gpus),
        "fabric.leaves": _PARTS,
        "fabric.spines": _PARTS,
        "fabric.border_routers": _PARTS,
        "fabric.wan": Key("mesh", _wan, _written_wan),
        "conditions.sampler": Key("uniform", _one_of(*SAMPLERS)),
        "conditions.intra_rate": Key("20-200 Gbit/s", _RATES, units.format_rate_range),
        "conditions.wan_rate": Key("10-100 Gbit/s", _RATES, units.format_rate_range, ("uniform", "gaussian", "markov")),
        "conditions.intra_delay": Key("0.7 us", _DELAY, units.format_delay),
        "conditions.wan_delay": Key("10 us", _DELAY, units.format_delay),
        "conditions.mean": Key(0.5, _number, samplers=("gaussian",)),
        "conditions.deviation": Key(0.5, _number, samplers=("gaussian",)),
        "conditions.mean_stay": Key(10.0, _number, samplers=("markov",)),
        "conditions.trace": Key(None, _path, str, ("trace",)),
        "conditions.trace_step": Key("1 s", _DELAY, units.format_delay, ("trace",)),
        "collective.kind": Key("allgather", _one_of("allgather")),
        "collective.chunk": Key("8 MB", _text(units.parse_size_bytes, "8 MB"), units.format_size),
        "collective.count": Key(100_000, _whole(least=1, most=MAX_COLLECTIVES)),
        "collective.reembed_every": Key(10, _whole(least=1, most=MAX_COLLECTIVES)),
        "collective.emulated": Key(20, _whole(least=1, most=MAX_COLLECTIVES)),
        "run.modes": Key(list(MODES), _modes, list),
        "run.seed": Key(1, _whole(least=0, most=MAX_SEED)),
        "run.clock": Key("virtual", _one_of(*CLOCKS)),
        "run.rate_scale": Key("1", _rate_scale, str),
        "transport.line_rate": Key(True, _truth),
        "transport.congestion_control": Key("cubic", _one_of("cubic", "reno", "bbr", "dctcp")),
        "transport.slow_start_after_idle": Key(False, _truth),
        "fault": Key([], faults.read, lambda value: [fault.written() for fault in value]),
    }
)
"""Every key of a scenario but those of [sweep], in the order in which they are written."""

_OUTERMOST = ("fabric.gpus", "collective.chunk", "conditions.wan_delay")
SWEPT = (*_OUTERMOST, *(key for key in KEYS if key not in (*_OUTERMOST, "name", "run.modes", "run.clock")))
"""The keys that a sweep may vary, the outermost axis first: modes are points of every setting anyway."""


def read_axis(key: str, given: Given) -> tuple[Any, ...]:
    """The values of one axis of [sweep]: a list of values that `key` allows, none twice; raises Wrong."""
    if not isinstance(given.value, list) or not 1 <= len(given.value) <= MAX_AXIS_VALUES:
        raise Wrong(f"{shown(given.value)} is no axis: allowed is a list of 1 to {MAX_AXIS_VALUES} values")
    values = tuple(KEYS[key].read(Given(item, given.where, given.folder)) for item in given.value)
    try:
        _unique(values)
    except Wrong:
        raise Wrong(f"{shown(given.value)} lists a value twice: each may be listed once") from None
    return values
