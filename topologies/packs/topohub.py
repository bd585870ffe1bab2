"""Maps and demands of the package topohub (https://pypi.org/project/topohub): SNDlib, the Topology Zoo and others."""

from pathlib import Path
from typing import Any

from topologies.errors import did_you_mean, format_value, list_first
from topologies.fabric.map_links import MapLink, MapNode
from topologies.packs.published import Demands, PackError, Published, number, one_matrix

_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def wan(name: str) -> Published:
    """Return a map's nodes and links; raises PackError."""
    topology = _topology(name)
    return Published(
        nodes={str(node["id"]): MapNode(title=node.get("name"), place=node.get("pos")) for node in topology["nodes"]},
        links=tuple(
            MapLink(
                ends=(str(edge["source"]), str(edge["target"])),
                data={name: str(value) for name, value in edge.items() if isinstance(value, int | float | str)},
            )
            for edge in topology["edges"]
        ),
    )


def demands(name: str) -> Demands:
    """Return a map's demands, which are those of SNDlib, in Mbit/s, as one matrix; raises PackError."""
    topology = _topology(name)
    given = topology["graph"].get("demands") or {}
    if not given:
        raise PackError(f"topohub has no demands of {format_value(name)}; allowed: maps of sndlib")
    titles = {str(node["id"]): str(node.get("name") or node["id"]) for node in topology["nodes"]}
    rows = [
        ((titles.get(str(a), str(a)), titles.get(str(b), str(b))), 1e6 * number(str(rate), "a demand of topohub"))
        for a, of_a in given.items()
        for b, rate in of_a.items()
    ]
    notes = ("demands of topohub have no unit and are taken as Mbit/s, as in SNDlib",)
    return one_matrix(rows, [*titles.values()], format_value(name), notes)


def _topology(name: str) -> dict[str, Any]:
    try:
        import topohub
    except ImportError:
        why = 'the package topohub is not installed; install it by ".venv/bin/pip install topohub"'
        raise PackError(f"{format_value(f'topohub:{name}')}: {why}") from None
    parts = name.split("/")
    if not 2 <= len(parts) <= 4 or not all(part and _SIGNS.issuperset(part) for part in parts):
        allowed = 'GROUP/MAP, such as "topohub:sndlib/nobel-us"'
        raise PackError(f"{format_value(name)} is not a map of topohub; allowed: {allowed}")
    try:
        found: dict[str, Any] = topohub.get(name)
    except KeyError:
        (group, _, last), data = name.rpartition("/"), Path(topohub.__file__).parent / "data"
        known = sorted(file.stem for file in (data / group).glob("*.json"))
        if not known:
            groups = sorted({str(file.parent.relative_to(data)) for file in data.rglob("*.json")})
            allowed = f"{list_first(groups, 8)}{did_you_mean(group, groups)}"
            raise PackError(f"topohub has no group {format_value(group)}; allowed: {allowed}") from None
        allowed = f"of {group} {list_first(known, 8)}{did_you_mean(last, known)}"
        raise PackError(f"topohub has no map {format_value(name)}; allowed: {allowed}") from None
    return found
