"""Reading of fabric.wan: a preset, published data, a GraphML file, or a table; and writing as a table. Reads files.

fabric.wan = "topohub:sndlib/nobel-us"   # a pack (`topologies.packs`) and what it reads
fabric.wan = "mine.graphml"              # a file as the Topology Zoo, yEd and networkx write it
[fabric.wan]                             # a table, as which every map can be written
routers = ["A", "B"]
links = [["A", "B"]]
km = [704.1]

Files are untrusted: only files up to a limited size are read, and a document type (and so any entity) is refused. What
a map lacks is no mistake unless it is needed: links that no path between the sites passes may lack anything, and what
was left out or assumed is in `WanSpec.notes`.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import FabricError, Mistake, did_you_mean, format_value
from topologies.fabric import graphml, map_links
from topologies.fabric.map_links import MAX_KM, MapLink, MapNode, Place, is_blank, plain
from topologies.fabric.wan import WAN_PRESETS, WanSpec, is_router_name
from topologies.packs import table
from topologies.packs.published import PackError
from topologies.text_files import TextFileError, read_xml
from topologies.units import (
    LINK_DELAY,
    UnitError,
    format_delay,
    format_rate,
    parse_delay_or_zero_s,
    parse_number,
    parse_rate_bps,
)

KEY = "fabric.wan"
ALLOWED = (
    f'{", ".join(WAN_PRESETS)}, a pack such as "topohub:GROUP/MAP" or "sndlib:FILE", the path of a .graphml file, or '
    "a table of routers and links"
)
GRAPHML = ".graphml"
MAX_ROUTERS = 1024
MAX_LINKS = 8192
MAX_FILE_BYTES = 16_000_000
_MAX_NAME_LENGTH = 64


def read_wan(value: object) -> WanSpec:
    """Read the WAN that a scenario declares by text or by a table; raises FabricError.

    The length of a map's link is the map's own. If the map gives none, it is the great-circle distance between the
    ends' longitudes and latitudes, on a sphere of the earth's mean radius; without those it is unknown.
    """
    if isinstance(value, dict):
        return _table(value)
    if not isinstance(value, str):
        raise _error(f"{format_value(value)}; allowed: {ALLOWED}")
    if value in WAN_PRESETS:
        return WanSpec(preset=value)
    if table.is_pack(value):
        return _pack(value)
    if value.endswith(GRAPHML):
        return _graphml(Path(value))
    raise _error(f"{format_value(value)} is not known; allowed: {ALLOWED}{did_you_mean(value, WAN_PRESETS)}")


def write_wan(wan: WanSpec) -> str | dict[str, Any]:
    """Return the text or table that declares a WAN; a map becomes a table, which needs neither its file nor topohub."""
    if wan.preset is not None:
        return wan.preset
    table = {
        "name": wan.name,
        "direct": wan.is_direct,
        "routers": list(wan.routers),
        "titles": list(wan.titles),
        "places": [list(place) for place in wan.places],
        "links": [list(link) for link in wan.links],
        "km": ["" if km is None else km for km in wan.km],
        "back_km": ["" if km is None else km for km in wan.back_km],
        "rates": [format_rate(rate_bps) if rate_bps else "" for rate_bps in wan.rates_bps],
        "back_rates": [format_rate(rate_bps) if rate_bps else "" for rate_bps in wan.back_rates_bps],
        "delays": ["" if delay_s is None else format_delay(delay_s) if delay_s else "0 s" for delay_s in wan.delays_s],
    }
    return {key: value for key, value in table.items() if value or key in ("routers", "links")}


def _error(text: str) -> FabricError:
    return FabricError([Mistake(KEY, text)])


# --- tables ---------------------------------------------------------------------------------------------------------


def _table(declared: Mapping[str, Any]) -> WanSpec:
    allowed = ("name", "routers", "links", "direct", *_COLUMNS)
    for key in declared:
        if key not in allowed:
            raise _error(f"unknown key {format_value(key)} of the WAN's table; allowed: {', '.join(allowed)}")
    name, routers, links = declared.get("name", ""), declared.get("routers", []), declared.get("links")
    is_direct = declared.get("direct", False)
    if not isinstance(is_direct, bool):
        raise _error(f"direct is {format_value(is_direct)}; allowed: true or false")
    if not isinstance(name, str) or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise _error(f"name is {format_value(name)}; allowed: text of up to {_MAX_NAME_LENGTH} characters")
    if not _are_names(routers):
        raise _error(f"routers is {format_value(routers)}; allowed: a list of names")
    if not isinstance(links, list) or not links or not all(map(_is_link, links)):
        lack = "is missing" if links is None else f"is {format_value(links)}"
        raise _error(
            f'links {lack}; allowed: a list of pairs of names, such as [["s0b0", "s1b0"]], each perhaps with a third '
            'entry, a table such as { delay = "15 ms", rate = "40 Gbit/s" }'
        )
    declared = {**declared, **_own_columns(declared, links)}
    _check_columns(declared, routers, links)
    return WanSpec(
        preset=None,
        routers=tuple(routers),
        links=tuple((a, b) for a, b, *_ in links),
        name=name,
        is_direct=is_direct,
        titles=tuple(declared.get("titles", ())),
        places=tuple((float(x), float(y)) for x, y in declared.get("places", ())),
        km=_lengths(declared.get("km", ())),
        rates_bps=_rates_bps(declared.get("rates", ())),
        back_km=_lengths(declared.get("back_km", ())),
        back_rates_bps=_rates_bps(declared.get("back_rates", ())),
        delays_s=tuple(
            parse_delay_or_zero_s(delay, LINK_DELAY) if delay else None for delay in declared.get("delays", ())
        ),
    )


def _check_columns(declared: Mapping[str, Any], routers: Sequence[str], links: Sequence[Any]) -> None:
    """Raise FabricError for a column of the WAN's table that does not fit."""
    for key, column in _COLUMNS.items():
        given, count = declared.get(key, []), len(routers if column.of == "routers" else links)
        if not isinstance(given, list) or (given and len(given) != count):
            what = f"has {len(given)} entries" if isinstance(given, list) else f"is {format_value(given)}"
            raise _error(f"{key} {what}; allowed: a list of one for each of the {count} {column.of}")
        for entry in given:
            if not column.fits(entry):
                raise _error(f"{key} has {format_value(entry)}; allowed: {column.allowed}")
    if declared.get("km") and declared.get("delays"):
        raise _error("km is given together with delays; allowed: one of the two")
    for key in ("km", "rates"):
        if declared.get(f"back_{key}") and not declared.get(key):
            raise _error(f"back_{key} is given without {key}; allowed: both, or neither")


def _is_link(value: object) -> bool:
    """Return whether a value is a link: two names, and perhaps a table of its own."""
    return (
        isinstance(value, list)
        and _are_names(value[:2])
        and (len(value) == 2 or (len(value) == 3 and isinstance(value[2], dict)))
    )


def _own_columns(table: Mapping[str, Any], links: Sequence[Any]) -> dict[str, list[str]]:
    """Return the columns of the WAN's table that the links' own tables make; raises FabricError for another key, and
    for a column that is given, too."""
    own = [link[2] if len(link) > 2 else {} for link in links]
    found: dict[str, list[str]] = {}
    for link, values in zip(links, own, strict=True):
        for key in values:
            if key not in _OF_LINK:
                words = f"unknown key {format_value(key)} of the link {link[0]}-{link[1]}"
                raise _error(f"{words}; allowed: {', '.join(_OF_LINK)}{did_you_mean(key, _OF_LINK)}")
    for key, column in _OF_LINK.items():
        if any(key in values for values in own):
            if table.get(column):
                raise _error(f"{column} is given, and links have a {key} of their own; allowed: one of the two")
            found[column] = [values.get(key, "") for values in own]
    return found


def _lengths(given: Iterable[Any]) -> tuple[float | None, ...]:
    return tuple(None if km == "" else float(km) for km in given)


def _rates_bps(given: Iterable[str]) -> tuple[int, ...]:
    return tuple(parse_rate_bps(rate) if rate else 0 for rate in given)


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


def _is_km(value: object) -> bool:
    return value == "" or _is_number(value, 0, MAX_KM)


def _is_rate(value: object) -> bool:
    try:
        return isinstance(value, str) and (not value or parse_rate_bps(value) > 0)
    except UnitError:
        return False


def _is_delay(value: object) -> bool:
    try:
        return isinstance(value, str) and (not value or parse_delay_or_zero_s(value, LINK_DELAY) >= 0)
    except UnitError:
        return False


_OF_LINK = {"delay": "delays", "rate": "rates"}
"""The keys of a link's own table, each with its column of the WAN's table."""


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
    "km": _Column("links", f'the lengths of the links, 0 to {MAX_KM:,.0f}, or "" for an unknown one', _is_km),
    "rates": _Column("links", 'the capacities of the links, such as "100 Gbit/s", or ""', _is_rate),
    "delays": _Column("links", 'the delays of the links, such as "5 ms", or ""', _is_delay),
    "back_km": _Column("links", f'the lengths from second to first ends, 0 to {MAX_KM:,.0f}, or ""', _is_km),
    "back_rates": _Column("links", 'the capacities from second to first ends, such as "100 Gbit/s", or ""', _is_rate),
}


# --- maps -----------------------------------------------------------------------------------------------------------


def _pack(value: str) -> WanSpec:
    """Read the WAN that a pack gives, such as "sndlib:abilene.xml"; raises FabricError."""
    try:
        found = table.wan_of(value)
    except PackError as error:
        raise _error(str(error)) from None
    name = table.title_of(value)[:_MAX_NAME_LENGTH]
    return map_wan(name, found.nodes, found.links, notes=found.notes, is_direct=found.is_direct)


def _graphml(path: Path) -> WanSpec:
    """Read the map in a GraphML file; raises FabricError."""
    label = format_value(path.name[:_MAX_NAME_LENGTH])
    if not path.is_file():
        raise _error(f"{label} is not an existing file; allowed: a GraphML file")
    try:
        graph = graphml.read(read_xml(path, most_bytes=MAX_FILE_BYTES))
    except TextFileError as error:
        raise _error(f"{label}: {error}") from None
    except graphml.GraphMLError as error:
        raise _error(f"{label}{' ' if str(error).startswith(('is', 'has')) else ', '}{error}") from None
    nodes = {key: _graphml_node(key, node.data) for key, node in graph.nodes.items()}
    links = [
        MapLink(ends=(edge.ends[0], edge.ends[1]), data=edge.data, is_directed=edge.is_directed, line=edge.line)
        for edge in graph.edges
    ]
    left_out = [f"{what} are left out" for what in graph.left_out]
    return map_wan(path.stem[:_MAX_NAME_LENGTH], nodes, links, notes=left_out)


def _graphml_node(key: str, data: Mapping[str, str]) -> MapNode:
    named = {plain(name): value for name, value in data.items()}
    longitude, latitude = (
        next((number for name in names if (number := _number_or_none(named.get(name, ""))) is not None), None)
        for names in (("longitude", "lon", "lng", "long"), ("latitude", "lat"))
    )
    titles = (value for name in ("label", "name", "title") if not is_blank(value := named.get(name, "")))
    return MapNode(title=next(titles, key), place=(longitude, latitude))


def _number_or_none(text: str) -> float | None:
    try:
        return float(parse_number(text))
    except UnitError:
        return None


def map_wan(
    name: str,
    nodes: Mapping[str, MapNode],
    links: Iterable[MapLink],
    notes: Iterable[str] = (),
    *,
    is_direct: bool = False,
) -> WanSpec:
    """Make the WAN of a map: its nodes, by id, become routers. Raises FabricError for a map that is too large.

    Loops are left out. Parallel links are one link, as in a link aggregation group, because what is named by its two
    ends (in traces, tables and results) is one link: their capacities add up, and the length is the shortest. A link
    that is directed has the length and capacity of its direction; without one in the other direction it has them both
    ways.
    """
    cables: dict[frozenset[str], list[MapLink]] = {}
    told, loops = list(notes), 0
    for link in links:
        if link.ends[0] == link.ends[1]:
            loops += 1
        else:
            cables.setdefault(frozenset(link.ends), []).append(link)
    for what, count, most in (("nodes", len(nodes), MAX_ROUTERS), ("links", len(cables), MAX_LINKS)):
        if not 1 <= count <= most:
            raise _error(f"the map {format_value(name)} has {count:,} {what}; allowed: 1 to {most:,}")
    titles = {key: _title(node.title, index) for index, (key, node) in enumerate(nodes.items())}
    routers = dict(zip(nodes, _router_names(titles.values()), strict=True))
    places = {key: place for key, node in nodes.items() if (place := _place(node.place)) is not None}
    joined = [map_links.joined(parallel, titles, places, format_value(name)) for parallel in cables.values()]
    if loops:
        told.append(f"{loops:,} link{'s' * (loops != 1)} from a node to itself left out")
    told += map_links.notes(joined)
    both_km, both_bps = [one.km for one in joined], [one.rate_bps for one in joined]
    (km, back_km), (rates_bps, back_bps) = zip(*both_km, strict=True), zip(*both_bps, strict=True)
    return WanSpec(
        preset=None,
        routers=tuple(routers.values()),
        links=tuple((routers[a], routers[b]) for a, b in (one.ends for one in joined)),
        name=name,
        is_direct=is_direct,
        titles=tuple(titles.values()),
        places=tuple(places.values()) if len(places) == len(nodes) else (),
        km=km,
        rates_bps=rates_bps if any(rates_bps + back_bps) else (),
        back_km=back_km if back_km != km else (),
        back_rates_bps=back_bps if back_bps != rates_bps else (),
        ids=tuple(nodes),
        notes=tuple(f"the map {format_value(name)}: {note}" for note in told),
        flaws=tuple((index, one.flaw) for index, one in enumerate(joined) if one.flaw),
    )


def _title(given: Any, index: int) -> str:
    return str(given) if _is_name(given) else f"node {index}"


def _place(given: Any) -> Place | None:
    return (float(given[0]), float(given[1])) if _is_place(given) else None


def _router_names(titles: Iterable[str]) -> Sequence[str]:
    """Make a valid and unique router name for each title: "Salt-Lake-City" becomes SaltLakeC."""
    names: dict[str, None] = {}
    twins: dict[str, int] = {}  # the number that was tried last, by the letters of a name
    for title in titles:
        plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
        letters = "".join(filter(str.isalnum, plain))[:9]
        name = letters if is_router_name(letters) else f"N{letters}"[:9]
        number = twins.get(letters, 1)
        while name in names:
            number += 1
            name = f"{letters[: 8 - len(str(number))] or 'N'}_{number}"
            name = name if is_router_name(name) else f"N_{number}"
        twins[letters] = number
        names[name] = None
    return list(names)
