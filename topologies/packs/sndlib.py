"""SNDlib's networks and demands (https://sndlib.put.poznan.pl), in its XML and in its native format. Reads files.

XML is read by the text of its elements: entities are not expanded, and a document type is refused. A link has its
capacity in both directions, unless all links are there in both: the installed one, or else that of its first module.
Capacities and demands without a unit are in Mbit/s. Longitudes and latitudes give lengths; in the native format
coordinates are taken as such if all of them can be.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import unescape

from topologies.errors import format_value
from topologies.fabric.map_links import MapLink, MapNode, Place
from topologies.packs.published import Demands, PackError, Published, number, one_matrix, rate_of, shown, text_of

UNITS_BPS = {"MBITPERSEC": 1e6, "KBITPERSEC": 1e3, "GBITPERSEC": 1e9, "BITSPERSEC": 1.0}
_MBIT, _AMOUNTS = 1e6, ("capacity", "demandValue")
_ELEMENTS = {tag: re.compile(rf"<{tag}\b([^>]*)>(.*?)</{tag}>", re.DOTALL) for tag in ("node", "link", "demand")}
_VALUES = {tag: re.compile(rf"<{tag}>([^<]*)</{tag}>") for tag in ("unit", "x", "y", "source", "target", *_AMOUNTS)}
_ID, _COMMENT = re.compile(r'\bid="([^"]*)"'), re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_SECTIONS = ("META", "NODES", "LINKS", "DEMANDS", "ADMISSIBLE_PATHS")


class Row(NamedTuple):
    """A link or a demand: its ends, and its value in bit/s (0: none)."""

    ends: tuple[str, str]
    bps: float


class Network(NamedTuple):
    """A file of SNDlib: the place of each node (None: not geographical), links and demands."""

    nodes: dict[str, Place | None]
    links: list[Row]
    demands: list[Row]
    has_unit: bool


def read(path: Path) -> Network:
    """Read a network or a matrix of SNDlib; raises PackError."""
    text, name = text_of(path), shown(path)
    if "<!DOCTYPE" in text:
        raise PackError(f"{name} has a document type; allowed: XML without one, and so without entities")
    if text.lstrip().startswith("?SNDlib native"):
        network = _native(text, name)
    elif "<network" in text:
        network = _xml(_COMMENT.sub("", text), name)
    else:
        raise PackError(f"{name} is no file of SNDlib; allowed: its XML, or text that begins with ?SNDlib native")
    for end in (end for row in (*network.links, *network.demands) for end in row.ends if end not in network.nodes):
        raise PackError(f"{name}: {format_value(end)} is not a node; allowed: a node of the file")
    return network


def wan(source: str) -> Published:
    """Return a network's nodes and links; raises PackError."""
    network = read(Path(source))
    is_bare = not network.has_unit and any(row.bps for row in network.links)
    ways = {row.ends for row in network.links}
    is_directed = len(ways) == len(network.links) and ways == {ends[::-1] for ends in ways}
    return Published(
        nodes={name: MapNode(title=name, place=place) for name, place in network.nodes.items()},
        links=tuple(MapLink(ends=row.ends, data=rate_of(row.bps), is_directed=is_directed) for row in network.links),
        notes=("capacities have no unit and are taken as Mbit/s",) if is_bare else (),
    )


def demands(source: str) -> Demands:
    """Return a network's demands as one matrix; raises PackError."""
    network = read(path := Path(source))
    if not network.demands:
        raise PackError(f"{shown(path)} has no demands; allowed: a network with demands")
    notes = () if network.has_unit else ("demands have no unit and are taken as Mbit/s",)
    return one_matrix(network.demands, list(network.nodes), shown(path), notes)


def _xml(text: str, name: str) -> Network:
    unit = _VALUES["unit"].search(text)
    scale = _scale(unit[1].strip(), name) if unit else _MBIT
    is_geographical = 'coordinatesType="geographical"' in text
    nodes: dict[str, Place | None] = {}
    for count, (attributes, inside) in enumerate(_elements("node", text, name), 1):
        key = _ID.search(attributes)
        if key is None or unescape(key[1]) in nodes:
            raise PackError(f"{name}: node {count:,} has no id of its own; allowed: each with one")
        xy = [_VALUES[axis].search(inside) for axis in ("x", "y")]
        values = [number(one[1], f"{name}: the place of a node", least=-1e9) for one in xy if one]
        nodes[unescape(key[1])] = _place(values) if is_geographical else None
    links = list(_rows("link", "capacity", text, name, scale))
    return Network(nodes, links, list(_rows("demand", "demandValue", text, name, scale)), unit is not None)


def _scale(unit: str, name: str) -> float:
    if unit not in UNITS_BPS:
        raise PackError(f"{name} has the unit {format_value(unit)}; allowed: {', '.join(UNITS_BPS)}")
    return UNITS_BPS[unit]


def _elements(tag: str, text: str, name: str) -> list[tuple[str, str]]:
    """Return the attributes and the inside of every element of a tag."""
    begun, ended = text.count(f"<{tag} "), text.count(f"</{tag}>")
    found = _ELEMENTS[tag].findall(text) if begun == ended else []
    if len(found) != begun or begun != ended:
        raise PackError(f"{name}: {begun:,} elements {tag} begin and {ended:,} end; allowed: each with its own end")
    return found


def _rows(tag: str, value: str, text: str, name: str, scale: float) -> Iterator[Row]:
    for count, (_, inside) in enumerate(_elements(tag, text, name), 1):
        source, target = (_VALUES[each].search(inside) for each in ("source", "target"))
        values = _VALUES[value].findall(inside)
        if source is None or target is None or (tag == "demand" and not values):
            raise PackError(f"{name}: {tag} {count:,} lacks a part; allowed: source, target and {value}")
        amounts = [number(one, f"{name}: the {value} of {tag} {count:,}") for one in values]
        yield Row((unescape(source[1].strip()), unescape(target[1].strip())), scale * next(filter(None, amounts), 0.0))


def _native(text: str, name: str) -> Network:
    nodes, rows = dict[str, Place | None](), dict[str, list[Row]](LINKS=[], DEMANDS=[])
    section, scale = "", 0.0
    for count, line in enumerate(text.split("\n"), 1):
        fields, where = line.partition("#")[0].replace("(", " ( ").replace(")", " ) ").split(), f"{name}:{count}"
        if fields[:1] and fields[0] in _SECTIONS:
            section = fields[0]
        elif section == "META" and fields[:2] == ["unit", "="]:
            scale = _scale(" ".join(fields[2:]), name)
        elif section == "NODES" and len(fields) == 5 and fields[0] not in nodes:
            nodes[fields[0]] = _place([number(one, f"{where}: a place", least=-1e9) for one in fields[2:4]])
        elif section in rows and len(fields) > 4 and fields[4] == ")":
            values = fields[5:]  # of a link: installed, three costs, "(", the first module; of a demand: routing, value
            wanted = [values[at] for at in ((0, 5) if section == "LINKS" else (1,)) if at < len(values)]
            amounts = [number(one, f"{where}: a value") for one in wanted if one != ")"]
            rows[section].append(Row((fields[2], fields[3]), (scale or _MBIT) * next(filter(None, amounts), 0.0)))
        elif fields == [")"]:
            section = ""
        elif section in (*rows, "NODES") and fields:
            raise PackError(f"{where}: {format_value(line)} is not a row of {section}; allowed: ID ( ... ), once")
    if section:
        raise PackError(f"{name} ends within {section}; allowed: a ) after its rows")
    places = dict.fromkeys(nodes) if None in nodes.values() else nodes  # the format does not tell degrees from pixels
    return Network(places, rows["LINKS"], rows["DEMANDS"], scale > 0)


def _place(xy: list[float]) -> Place | None:
    return (xy[0], xy[1]) if len(xy) == 2 and abs(xy[0]) <= 180 and abs(xy[1]) <= 90 else None
