"""The lengths and capacities of a map's links, from the attributes that programs write for them. Pure.

Attributes are found by name, whatever the case and the signs in it ("LinkSpeedRaw", "length_km"):

    length      dist, distance, length or len, in km unless the name or the value has a unit: m, km, mi
    delay       latency or delay, in ms unless the name or the value has a unit: ns, us, ms, s; it precedes a length
    capacity    LinkSpeedRaw in bit/s; capacity, bandwidth, bw, datarate or speed with a unit in the name, in the value
                (10 Gbit/s, 10G), or in an attribute such as LinkSpeedUnits; without one, it is bit/s from 1,000,000 on
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topologies.errors import format_value
from topologies.fabric.wan import KM_PER_MS
from topologies.units import UnitError, parse_number

MAX_KM = 100_000.0
MAX_BPS = 10**15
LEAST_BARE_BPS = 1_000_000
"""The least capacity without a unit that is taken as bit/s: less may be kbit/s, Mbit/s or Gbit/s."""

_EARTH_KM = 6371.0088  # mean radius
_KM = {"km": 1.0, "m": 1e-3, "meters": 1e-3, "metres": 1e-3, "mi": 1.609344, "miles": 1.609344}
_SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "msec": 1e-3, "us": 1e-6, "usec": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BIT_UNIT = re.compile(r"([kKMmGgTt]?)(?:[Bb]its?(?:/s|ps)?|b(?:/s|ps)?|)")
_LENGTH_NAME = re.compile(rf"(?:link)?(?:distance|dist|length|len)({'|'.join(_KM)})?|(km)")
_DELAY_NAME = re.compile(rf"(?:link)?(?:propagation|prop)?(?:latency|delay)({'|'.join(_SECONDS)})?")
_RATE_NAME = re.compile(r"(?:link)?(?:capacity|bandwidth|bw|datarate|speed)(raw|[kmgt]?(?:bits?|b)(?:s|ps)?)?")
_VALUE = re.compile(r"\s*([-+]?[0-9._]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")
_BLANK = frozenset(("", "none", "null", "na", "n/a", "nan", "?", "unknown"))

Place = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class MapNode:
    """A node of a map: its unchecked title and place (longitude, latitude in degrees)."""

    title: Any = None
    place: Any = None


@dataclass(frozen=True, kw_only=True)
class MapLink:
    """A link of a map: the ids of its ends, its attributes as text, and its line in the map's file (0: unknown)."""

    ends: tuple[str, str]
    data: Mapping[str, str] = field(default_factory=dict)
    is_directed: bool = False
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What a link's attributes say: its length and capacity (None: nothing), a flaw in them in words, and the
    attributes that have no unit, each with what it was taken as ("": it is not used)."""

    km: float | None = None
    rate_bps: int | None = None
    flaw: str = ""
    without_unit: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """All links of a map between two nodes as one link: `km` (None: unknown) and `rate_bps` (0: none) have the values
    from the first end to the second and those back. `flaw` tells what is wrong with their data."""

    ends: tuple[str, str]
    km: tuple[float | None, float | None]
    rate_bps: tuple[int, int]
    flaw: str
    parallel: int
    is_one_way: bool
    without_unit: tuple[tuple[str, str], ...]


def plain(name: str) -> str:
    """Return an attribute's name in lower case and without signs."""
    return "".join(filter(str.isalnum, name.casefold()))


def is_blank(value: str) -> bool:
    """Return whether a text stands for no value: "", "None", "NA", "NaN", "?" ..."""
    return value.strip().casefold() in _BLANK


def joined(
    parallel: Sequence[MapLink], titles: Mapping[str, str], places: Mapping[str, Place], map_name: str
) -> Joined:
    """Return the links of a map between two nodes as one link: capacities add up, and the shortest length counts.

    Without any length, it is the great-circle distance between the `places`, if the map has both.
    """
    ends = parallel[0].ends
    words = f"the link {format_value(titles[ends[0]])} to {format_value(titles[ends[1]])} of the map {map_name}"
    each = [measures(link, f"{words}{f', line {link.line:,},' * bool(link.line)}") for link in parallel]
    ways = [
        [one for link, one in zip(parallel, each, strict=True) if not link.is_directed or link.ends == way]
        for way in (ends, ends[::-1])
    ]
    both = [way or each for way in ways]
    apart_km = great_circle_km(places[ends[0]], places[ends[1]]) if {*ends} <= {*places} else None
    usual = None if apart_km is None else round(apart_km, 3)
    lengths = [min((one.km for one in way if one.km is not None), default=usual) for way in both]
    rates = [sum(one.rate_bps or 0 for one in way) for way in both]
    return Joined(
        ends=ends,
        km=(lengths[0], lengths[1]),
        rate_bps=(min(rates[0], MAX_BPS), min(rates[1], MAX_BPS)),
        flaw=next((one.flaw for one in each if one.flaw), ""),
        parallel=max(map(len, ways)) - 1,
        is_one_way=not all(ways),
        without_unit=tuple(dict.fromkeys(pair for one in each for pair in one.without_unit)),
    )


def measures(link: MapLink, words: str) -> Measures:
    """Return what a link's attributes say; `words` name the link in a flaw."""
    data = {name: value for name, value in link.data.items() if not is_blank(value)}
    without_unit: list[tuple[str, str]] = []
    km = rate_bps = None
    try:
        for name, unit in (*_named(_DELAY_NAME, data), *_named(_LENGTH_NAME, data)):
            is_delay = _DELAY_NAME.fullmatch(plain(name)) is not None
            km = _km(name, data[name], unit, is_delay=is_delay)
            if is_delay and not unit and _is_bare(data[name]):
                without_unit.append((name, "ms"))
            break
        for name, unit in _named(_RATE_NAME, data):
            units = next(
                (data[other] for other in data if plain(other) in (f"{plain(name)}units", f"{plain(name)}unit")), ""
            )
            rate_bps, is_bare = _rate_bps(name, data[name], "raw" if unit == "raw" else unit or units)
            if is_bare:
                without_unit.append((name, "" if rate_bps is None else "bit/s"))
            if rate_bps is not None:
                break
    except ValueError as error:
        return Measures(km=km, flaw=f"{words} has {error}")
    return Measures(km=km, rate_bps=rate_bps, without_unit=tuple(without_unit))


def notes(links: Iterable[Joined]) -> Iterator[str]:
    """Yield what was assumed of a map's links or not used of their attributes."""
    links = list(links)
    if parallel := sum(one.parallel for one in links):
        are = "links are" if parallel > 1 else "link is"
        yield f"{parallel:,} parallel {are} joined with others: capacities add up, and the shortest length counts"
    if one_way := sum(one.is_one_way for one in links):
        what = "links have one direction" if one_way > 1 else "link has one direction"
        yield f"{one_way:,} {what} only, whose length and capacity are taken for the other, too"
    bare = [pair for one in links for pair in one.without_unit]
    for name, unit in dict.fromkeys(bare):
        count = bare.count((name, unit))
        which = f"{format_value(name)} of {count:,} link{'s' * (count != 1)} has no unit and is"
        allowed = f'not used: give it one, as in {name}="10 Gbit/s" or {name}_gbps="10"'
        yield f"{which} {f'taken as {unit}' if unit else allowed}"


def _named(names: re.Pattern[str], data: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the attributes with such a name, those with a unit in the name first, each with that unit."""
    found = [(name, match) for name in data if (match := names.fullmatch(plain(name)))]
    with_unit = [(name, next(filter(None, match.groups()), "")) for name, match in found]
    yield from sorted(with_unit, key=lambda each: not each[1])


def _is_bare(value: str) -> bool:
    return _parts(value)[1] == ""


def _parts(value: str) -> tuple[float, str]:
    """Return the number and the unit in a value; raises ValueError."""
    match = _VALUE.fullmatch(value)
    try:
        return float(parse_number(match[1] if match else value)), match[2] if match else ""
    except UnitError:
        raise ValueError("not a number") from None


def _km(name: str, value: str, unit: str, *, is_delay: bool) -> float:
    """Return the length in km that an attribute gives, directly or as a delay; raises ValueError in words."""
    allowed = f"0 to {MAX_KM:,.0f} km" + f", or 0 to {MAX_KM / KM_PER_MS:,.0f} ms" * is_delay
    try:
        number, own = _parts(value)
        scale = (_SECONDS if is_delay else _KM)[own.casefold() or unit or ("ms" if is_delay else "km")]
        km = number * scale * (1e3 * KM_PER_MS if is_delay else 1.0)
    except (ValueError, KeyError):
        km = math.nan
    if not 0 <= km <= MAX_KM:
        raise ValueError(f"{name} {_shown(value)}; allowed: {allowed}")
    return km


def _rate_bps(name: str, value: str, unit: str) -> tuple[int | None, bool]:
    """Return the capacity in bit/s that an attribute gives (None: unknown for lack of a unit), and whether it has no
    unit; raises ValueError in words."""
    try:
        number, own = _parts(value)
        match = _BIT_UNIT.fullmatch("" if (own or unit) == "raw" else own or unit)
        rate_bps = number * _BITS[match[1].casefold()] if match else math.nan
    except ValueError:
        rate_bps = math.nan
    if not 0 <= rate_bps <= MAX_BPS:
        raise ValueError(f"{name} {_shown(value)}{f' {unit}' * (unit not in ('', 'raw'))}; allowed: 0 to 10^15 bit/s")
    is_bare = not own and not unit and rate_bps > 0
    return (None if is_bare and rate_bps < LEAST_BARE_BPS else round(rate_bps)), is_bare


def _shown(value: str) -> str:
    return value if _VALUE.fullmatch(value) and len(value) < 30 else format_value(value)


def great_circle_km(a: Place, b: Place) -> float:
    """Return the distance in km between two points (longitude, latitude in degrees) on a sphere of the earth's mean
    radius, by the haversine formula."""
    (lon_a, lat_a), (lon_b, lat_b) = ([math.radians(degrees) for degrees in place] for place in (a, b))
    haversine = math.sin((lat_b - lat_a) / 2) ** 2
    haversine += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * _EARTH_KM * math.asin(min(1.0, math.sqrt(haversine)))
