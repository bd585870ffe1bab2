"""Maps and demands of the package topohub (https://pypi.org/project/topohub): SNDlib, the Topology Zoo and others."""

import json
from pathlib import Path
from typing import Any

from topologies.errors import did_you_mean, format_value, list_all, list_first
from topologies.fabric.map_links import MapLink, MapNode
from topologies.packs.published import Demands, PackError, Published, number, one_matrix

_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def wan(name: str) -> Published:
    """Return a map's nodes and links; raises PackError."""
    topology = _topology(name)
    nodes = {
        str(node["id"]): MapNode(title=node.get("name"), place=node.get("pos"))
        for node in _each(topology, name, "nodes", "id")
    }
    links = tuple(
        MapLink(
            ends=(str(edge["source"]), str(edge["target"])),
            data={key: str(value) for key, value in edge.items() if isinstance(value, int | float | str)},
        )
        for edge in _each(topology, name, "edges", "source", "target")
    )
    for end in (end for link in links for end in link.ends if end not in nodes):
        raise PackError(f"edges of {format_value(name)}: {format_value(end)} is not a node; allowed: a node of the map")
    return Published(nodes=nodes, links=links)


def demands(name: str) -> Demands:
    """Return a map's demands, which are those of SNDlib, in Mbit/s, as one matrix; raises PackError."""
    topology = _topology(name)
    graph = topology.get("graph")
    given = graph.get("demands") if isinstance(graph, dict) else None
    if not given:
        raise PackError(f"topohub has no demands of {format_value(name)}; allowed: maps of sndlib")
    if not isinstance(given, dict) or not all(isinstance(of_one, dict) for of_one in given.values()):
        raise PackError(f"demands of {format_value(name)} are {format_value(given)}; allowed: a table of tables")
    nodes = _each(topology, name, "nodes", "id")
    titles = {str(node["id"]): str(node.get("name") or node["id"]) for node in nodes}
    rows = [
        ((titles.get(str(a), str(a)), titles.get(str(b), str(b))), 1e6 * number(str(rate), "a demand of topohub"))
        for a, of_a in given.items()
        for b, rate in of_a.items()
    ]
    notes = ("demands of topohub have no unit and are taken as Mbit/s, as in SNDlib",)
    return one_matrix(rows, [*titles.values()], format_value(name), notes)


def files(name: str) -> list[Path]:
    """Return the package's file of a map; raises PackError without one."""
    _topology(name)
    return [_data() / f"{name}.json"]


def _each(topology: dict[str, Any], name: str, what: str, *keys: str) -> list[dict[str, Any]]:
    """Return the nodes or edges of a map, each with these keys; raises PackError."""
    found = topology.get(what)
    if not isinstance(found, list):
        given = "missing" if found is None else format_value(found)
        raise PackError(f"{what} of {format_value(name)} are {given}; allowed: a list")
    for one in found:
        if not isinstance(one, dict) or not one.keys() >= {*keys}:
            allowed = f"allowed: a table with {list_all(keys)}"
            raise PackError(f"{what} of {format_value(name)} have {format_value(one)}; {allowed}")
    return found


def _data() -> Path:
    """Return the folder of the package's maps; raises PackError."""
    try:
        import topohub
    except ImportError:
        why = 'the package topohub is not installed; install it by ".venv/bin/pip install topohub"'
        raise PackError(f"the maps of topohub cannot be read: {why}") from None
    return Path(topohub.__file__).parent / "data"


def _topology(name: str) -> dict[str, Any]:
    data, parts = _data(), name.split("/")
    if not 2 <= len(parts) <= 4 or not all(part and _SIGNS.issuperset(part) for part in parts):
        allowed = 'GROUP/MAP, such as "topohub:sndlib/nobel-us"'
        raise PackError(f"{format_value(name)} is not a map of topohub; allowed: {allowed}")
    try:
        # topohub.get leaves the file open, which Python tells whoever collects its garbage next
        found = json.loads((data / f"{name}.json").read_text("utf-8"))
    except FileNotFoundError:
        group, _, last = name.rpartition("/")
        known = sorted(file.stem for file in (data / group).glob("*.json"))
        if not known:
            groups = sorted({str(file.parent.relative_to(data)) for file in data.rglob("*.json")})
            allowed = f"{list_first(groups, 8)}{did_you_mean(group, groups)}"
            raise PackError(f"topohub has no group {format_value(group)}; allowed: {allowed}") from None
        allowed = f"of {group} {list_first(known, 8)}{did_you_mean(last, known)}"
        raise PackError(f"topohub has no map {format_value(name)}; allowed: {allowed}") from None
    except (OSError, ValueError) as error:
        found_out = getattr(error, "strerror", None) or error
        raise PackError(f"topohub's map {format_value(name)} cannot be read: {found_out}; allowed: JSON") from None
    if not isinstance(found, dict):
        raise PackError(f"topohub's map {format_value(name)} is {format_value(found)}; allowed: a table")
    return found
