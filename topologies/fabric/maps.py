"""Reading of fabric.wan: a preset, a map of topohub, a GraphML file, or a table; and writing as a table. Reads files.

fabric.wan = "topohub:sndlib/nobel-us"   # a map of the package topohub: SNDlib, the Topology Zoo ...
fabric.wan = "mine.graphml"              # a file in the format of the Topology Zoo
[fabric.wan]                             # a table, as which every map can be written
routers = ["A", "B"]
links = [["A", "B"]]
km = [704.1]

Files are untrusted: only files up to a limited size are read, and a document type (and so any entity) is refused.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers import expat

from topologies.errors import FabricError, Mistake, did_you_mean, format_value, list_first
from topologies.fabric.wan import WAN_PRESETS, WanSpec, is_router_name
from topologies.units import UnitError, format_rate, parse_rate_bps

KEY = "fabric.wan"
ALLOWED = f'{", ".join(WAN_PRESETS)}, "topohub:GROUP/MAP", the path of a .graphml file, or a table of routers and links'
GRAPHML = ".graphml"
MAX_ROUTERS = 128
MAX_LINKS = 512
MAX_FILE_BYTES = 1_000_000
MAX_KM = 100_000.0
_MAX_DEPTH = 16  # nesting of elements in a file; those of GraphML are nested five deep
_MAX_NAME_LENGTH = 64
_EARTH_KM = 6371.0088  # mean radius
_TOPOHUB = "topohub:"
_TOPOHUB_MAP = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){1,3}")

Place = tuple[float, float]


def read_wan(value: object) -> WanSpec:
    """Read the WAN that a scenario declares by text or by a table; raises FabricError.

    The length of a map's link is the map's own (topohub and GraphML: `dist`, in km). If the map gives none, it is the
    great-circle distance between the ends' longitudes and latitudes, on a sphere of the earth's mean radius.
    """
    if isinstance(value, dict):
        return _table(value)
    if not isinstance(value, str):
        raise _error(f"{format_value(value)}; allowed: {ALLOWED}")
    if value in WAN_PRESETS:
        return WanSpec(preset=value)
    if value.startswith(_TOPOHUB):
        return _topohub(value.removeprefix(_TOPOHUB))
    if value.endswith(GRAPHML):
        return _graphml(Path(value))
    raise _error(f"{format_value(value)} is not known; allowed: {ALLOWED}{did_you_mean(value, WAN_PRESETS)}")


def write_wan(wan: WanSpec) -> str | dict[str, Any]:
    """Return the text or table that declares a WAN; a map becomes a table, which needs neither its file nor topohub."""
    if wan.preset is not None:
        return wan.preset
    table = {
        "name": wan.name,
        "routers": list(wan.routers),
        "titles": list(wan.titles),
        "places": [list(place) for place in wan.places],
        "links": [list(link) for link in wan.links],
        "km": list(wan.km),
        "rates": [format_rate(rate_bps) if rate_bps else "" for rate_bps in wan.rates_bps],
    }
    return {key: value for key, value in table.items() if value or key in ("routers", "links")}


def _error(text: str) -> FabricError:
    return FabricError([Mistake(KEY, text)])


# --- tables ---------------------------------------------------------------------------------------------------------


def _table(table: Mapping[str, Any]) -> WanSpec:
    allowed = ("name", "routers", "links", *_COLUMNS)
    for key in table:
        if key not in allowed:
            raise _error(f"unknown key {format_value(key)} of the WAN's table; allowed: {', '.join(allowed)}")
    name, routers, links = table.get("name", ""), table.get("routers", []), table.get("links")
    if not isinstance(name, str) or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise _error(f"name is {format_value(name)}; allowed: text of up to {_MAX_NAME_LENGTH} characters")
    if not _are_names(routers):
        raise _error(f"routers is {format_value(routers)}; allowed: a list of names")
    if not isinstance(links, list) or not links or not all(_are_names(ends) and len(ends) == 2 for ends in links):
        lack = "is missing" if links is None else f"is {format_value(links)}"
        raise _error(f'links {lack}; allowed: a list of pairs of names, such as [["s0b0", "s1b0"]]')
    for key, column in _COLUMNS.items():
        given, count = table.get(key, []), len(routers if column.of == "routers" else links)
        if not isinstance(given, list) or (given and len(given) != count):
            what = f"has {len(given)} entries" if isinstance(given, list) else f"is {format_value(given)}"
            raise _error(f"{key} {what}; allowed: a list of one for each of the {count} {column.of}")
        for entry in given:
            if not column.fits(entry):
                raise _error(f"{key} has {format_value(entry)}; allowed: {column.allowed}")
    return WanSpec(
        preset=None,
        routers=tuple(routers),
        links=tuple((a, b) for a, b in links),
        name=name,
        titles=tuple(table.get("titles", ())),
        places=tuple((float(x), float(y)) for x, y in table.get("places", ())),
        km=tuple(float(km) for km in table.get("km", ())),
        rates_bps=tuple(parse_rate_bps(rate) if rate else 0 for rate in table.get("rates", ())),
    )


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME_LENGTH and value.isprintable()


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and _is_number(value[0], -180, 180)
        and _is_number(value[1], -90, 90)
    )


def _is_rate(value: object) -> bool:
    try:
        return isinstance(value, str) and (not value or parse_rate_bps(value) > 0)
    except UnitError:
        return False


@dataclass(frozen=True)
class _Column:
    """A list in the WAN's table with one entry for each of its `of`, "routers" or "links".

    `fits` tests an entry, and `allowed` describes valid entries for the error message.
    """

    of: str
    allowed: str
    fits: Callable[[Any], object]


_COLUMNS = {
    "titles": _Column("routers", "the map's names of the routers", _is_name),
    "places": _Column("routers", "[longitude, latitude] of the routers in degrees", _is_place),
    "km": _Column("links", f"the lengths of the links, 0 to {MAX_KM:,.0f}", lambda km: _is_number(km, 0, MAX_KM)),
    "rates": _Column("links", 'the capacities of the links, such as "100 Gbit/s", or ""', _is_rate),
}


# --- maps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Link:
    """A link of a map: the keys of its ends, and the map's unchecked values for length and capacity, None if absent."""

    ends: tuple[Any, Any]
    km: Any = None
    rate_bps: Any = None


def _topohub(name: str) -> WanSpec:
    try:
        import topohub
    except ImportError:
        why = 'the package topohub is not installed; install it by ".venv/bin/pip install topohub"'
        raise _error(f"{format_value(_TOPOHUB + name)}: {why}") from None
    if not _TOPOHUB_MAP.fullmatch(name):
        raise _error(
            f'{format_value(name)} is not a map of topohub; allowed: GROUP/MAP, such as "topohub:sndlib/nobel-us"'
        )
    try:
        topology = topohub.get(name)
    except KeyError:
        (group, _, last), data = name.rpartition("/"), Path(topohub.__file__).parent / "data"
        known = sorted(file.stem for file in (data / group).glob("*.json"))
        if not known:
            groups = sorted({str(file.parent.relative_to(data)) for file in data.rglob("*.json")})
            allowed = f"{list_first(groups, 8)}{did_you_mean(group, groups)}"
            raise _error(f"topohub has no group {format_value(group)}; allowed: {allowed}") from None
        allowed = f"of {group} {list_first(known, 8)}{did_you_mean(last, known)}"
        raise _error(f"topohub has no map {format_value(name)}; allowed: {allowed}") from None
    nodes = {node["id"]: (node.get("name"), node.get("pos")) for node in topology["nodes"]}
    links = [_Link(ends=(edge["source"], edge["target"]), km=edge.get("dist")) for edge in topology["edges"]]
    return _map_wan(name.rpartition("/")[2], nodes, links)


def _graphml(path: Path) -> WanSpec:
    """Read the map in a GraphML file, with the attributes `label`, `Longitude` and `Latitude` of nodes, and `dist` (km)
    and `LinkSpeedRaw` (bit/s) of links; raises FabricError."""
    import networkx

    label = path.name[:_MAX_NAME_LENGTH]
    try:
        if not path.is_file():
            raise _error(f"{format_value(label)} is not an existing file; allowed: a GraphML file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise _error(f"{format_value(label)} is too large; allowed: {MAX_FILE_BYTES:,} bytes")
        text = content.decode()
    except OSError as error:
        raise _error(f"{format_value(label)} cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, FabricError):
            raise
        raise _error(f"{format_value(label)} is not text in UTF-8; allowed: a GraphML file") from None
    _check_xml(text, label)
    try:
        graph = networkx.parse_graphml(text.partition("?>")[2] if text.startswith("<?xml") else text)
    except Exception as error:  # the parser may raise anything for XML that is not GraphML
        raise _error(
            f"{format_value(label)} is not GraphML ({type(error).__name__}); allowed: a graph in GraphML"
        ) from None
    nodes = {
        node: (values.get("label", node), (values.get("Longitude"), values.get("Latitude")))
        for node, values in graph.nodes(data=True)
    }
    links = [
        _Link(ends=(a, b), km=values.get("dist"), rate_bps=values.get("LinkSpeedRaw"))
        for a, b, values in graph.edges(data=True)
    ]
    return _map_wan(path.stem[:_MAX_NAME_LENGTH], nodes, links)


def _check_xml(text: str, label: str) -> None:
    """Raise FabricError for text that is not XML, has a document type, or nests elements too deeply."""
    parser, depth = expat.ParserCreate("utf-8"), 0

    def begin(*_: object) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise _error(f"{format_value(label)} has elements {depth} deep; allowed: {_MAX_DEPTH}")

    def end(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def doctype(*_: object) -> None:
        raise _error(f"{format_value(label)} has a document type; allowed: XML without one, and so without entities")

    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = begin, end, doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        text = f"line {error.lineno:,}: {expat.ErrorString(error.code)}"
        raise _error(f"{format_value(label)} is not XML, {text}; allowed: a GraphML file") from None


def _map_wan(name: str, nodes: Mapping[Any, tuple[object, Any]], links: Iterable[_Link]) -> WanSpec:
    """Make the WAN of a map: its nodes, each with a title and a position, become routers.

    Loops are dropped, and of parallel links the first is used. Raises FabricError.
    """
    once: dict[frozenset[Any], _Link] = {}
    for link in links:
        if link.ends[0] != link.ends[1]:
            once.setdefault(frozenset(link.ends), link)
    for what, count, most in (("nodes", len(nodes), MAX_ROUTERS), ("links", len(once), MAX_LINKS)):
        if not 1 <= count <= most:
            raise _error(f"the map {format_value(name)} has {count:,} {what}; allowed: 1 to {most:,}")
    titles = {key: _title(title, index) for index, (key, (title, _)) in enumerate(nodes.items())}
    routers = dict(zip(nodes, _router_names(titles.values()), strict=True))
    places: dict[Any, Place] = {key: place for key, (_, place) in nodes.items() if _is_place(place)}
    lengths, rates = [], []
    for link in once.values():
        a, b = link.ends
        about = f"the link {format_value(titles[a])} to {format_value(titles[b])} of the map {format_value(name)}"
        if link.km is not None:
            if not _is_number(link.km, 0, MAX_KM):
                raise _error(f"{about} has dist {format_value(link.km)}; allowed: 0 to {MAX_KM:,.0f} km")
            lengths.append(float(link.km))
        elif a in places and b in places:
            lengths.append(round(great_circle_km(places[a], places[b]), 3))
        else:
            raise _error(f"{about} has no length; allowed: a dist in km, or longitude and latitude of both ends")
        rate_bps = 0 if link.rate_bps is None else link.rate_bps
        if not _is_number(rate_bps, 0, 10**15):
            raise _error(f"{about} has LinkSpeedRaw {format_value(rate_bps)}; allowed: 0 to 10^15 bit/s")
        rates.append(int(rate_bps))
    return WanSpec(
        preset=None,
        routers=tuple(routers.values()),
        links=tuple((routers[a], routers[b]) for a, b in (link.ends for link in once.values())),
        name=name,
        titles=tuple(titles.values()),
        places=tuple((float(x), float(y)) for x, y in places.values()) if len(places) == len(nodes) else (),
        km=tuple(lengths),
        rates_bps=tuple(rates) if any(rates) else (),
    )


def _title(given: Any, index: int) -> str:
    return str(given) if _is_name(given) else f"node {index}"


def _router_names(titles: Iterable[str]) -> Sequence[str]:
    """Make a valid and unique router name for each title: "Salt-Lake-City" becomes SaltLakeC."""
    names: list[str] = []
    for title in titles:
        plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
        letters = "".join(filter(str.isalnum, plain))[:9]
        name = letters if is_router_name(letters) else f"N{letters}"[:9]
        for number in range(2, MAX_ROUTERS + 2):
            if name not in names:
                break
            name = f"{letters[: 8 - len(str(number))] or 'N'}_{number}"
            name = name if is_router_name(name) else f"N_{number}"
        names.append(name)
    return names


def great_circle_km(a: Place, b: Place) -> float:
    """Return the distance in km between two points (longitude, latitude in degrees) on a sphere of the earth's mean
    radius, by the haversine formula."""
    (lon_a, lat_a), (lon_b, lat_b) = ([math.radians(degrees) for degrees in place] for place in (a, b))
    haversine = math.sin((lat_b - lat_a) / 2) ** 2
    haversine += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * _EARTH_KM * math.asin(min(1.0, math.sqrt(haversine)))
