"""YATES's inputs (https://github.com/cornell-netlab/yates, data/README.md). Reads files.

DATA/NAME is a folder and a network: DATA/topologies/NAME.dot, DATA/hosts/NAME.hosts with a host a line, and
DATA/demands/NAME.txt (or demands/actual/NAME.txt) with a matrix a line: n x n numbers in bit/s, in the order of the
hosts. A host stands for the switch that it is cabled to. A link with the capacity 0 in a direction is none. The files
do not tell the time between matrices: an hour is taken. A file DATA/rtt/NAME.rtt with lines "(s1, s2) MS" gives delays,
half of each.
"""

import re
from pathlib import Path

import numpy as np

from topologies.errors import format_value
from topologies.fabric.map_links import MapLink, MapNode
from topologies.packs.published import (
    MAX_BPS,
    MAX_MATRICES,
    MAX_NODES,
    Demands,
    PackError,
    Published,
    counted,
    delay_of,
    lines_of,
    number,
    shown,
    text_of,
)

INTERVAL_S = 3600.0

_STATEMENT = re.compile(r"(\w+)(?: ?-> ?(\w+))?(?: ?\[([^\]]*)\])?", re.ASCII)
_CAPACITY = re.compile(r'\bcapacity\s*=\s*"?([0-9.]+)\s*([kKMGT]?)bps"?')
_RTT = re.compile(r"\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*(\S+)", re.ASCII)
_TYPE = re.compile(r"\btype\s*=\s*\"?(\w+)", re.ASCII)
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def wan(source: str) -> Published:
    """Return the switches of a topology and the links between them; raises PackError."""
    switches, _, rates = _dot(_file(source, "topologies", ".dot"))
    rtt_ms: dict[tuple[str, str], float] = {}
    path = _file(source, "rtt", ".rtt")
    for count, line in lines_of(text_of(path)) if path.is_file() else ():
        match = _RTT.fullmatch(line)
        if match is None:
            raise PackError(f"{shown(path)}:{count}: {format_value(line)} is no round trip; allowed: (s1, s2) 12.5")
        rtt_ms[match[1], match[2]] = number(match[3], f"{shown(path)}:{count}: a round trip in ms", most=980.0)
    links, dead = list[MapLink](), {ends for ends, bps in rates.items() if not bps or not rates.get(ends[::-1], bps)}
    for (a, b), bps in ((ends, bps) for ends, bps in rates.items() if ends not in dead):
        given = rtt_ms.get((a, b), rtt_ms.get((b, a)))
        delay = {} if given is None else delay_of(given / 2e3)
        links.append(MapLink(ends=(a, b), data={"capacity": f"{bps:.0f} bit/s"} | delay, is_directed=True))
    notes = counted({"links with the capacity 0 in a direction, which are left out": len({*map(frozenset, dead)})})
    return Published(nodes={name: MapNode(title=name) for name in switches}, links=tuple(links), notes=notes)


def demands(source: str) -> Demands:
    """Return a network's matrices between the switches of its hosts; raises PackError."""
    _, at, _ = _dot(_file(source, "topologies", ".dot"))
    listed = _file(source, "hosts", ".hosts")
    hosts = [line for _, line in lines_of(text_of(listed))]
    for host in hosts:
        if host not in at:
            raise PackError(f"{shown(listed)}: {format_value(host)} is not a host of the topology; allowed: one of it")
    nodes = tuple(at[host] for host in hosts)
    if len({*nodes}) < len(nodes) or not 1 < len(nodes) <= MAX_NODES:
        raise PackError(f"{shown(listed)} has {len(nodes)} hosts; allowed: 2 to {MAX_NODES}, each at its own switch")
    path, matrices = _matrices_file(source), []
    for count, line in lines_of(text_of(path)):
        fields = line.split()
        if len(fields) != len(nodes) ** 2:
            allowed = f"{len(nodes) ** 2}, for {len(nodes)} hosts"
            raise PackError(f"{shown(path)}:{count}: {len(fields):,} numbers; allowed: {allowed}")
        try:
            values = np.array(fields, dtype=np.float64)
        except ValueError:
            values = np.array([np.nan])
        if not ((values >= 0) & (values <= MAX_BPS)).all():
            raise PackError(f"{shown(path)}:{count}: {_wrong(fields)}; allowed: numbers from 0 to {MAX_BPS:g}")
        matrices.append(values.reshape(len(nodes), len(nodes)) * (1 - np.eye(len(nodes))))
    if not 1 <= len(matrices) <= MAX_MATRICES:
        raise PackError(f"{shown(path)} has {len(matrices):,} matrices; allowed: 1 to {MAX_MATRICES:,}")
    return Demands(
        nodes=nodes,
        times_s=INTERVAL_S * np.arange(len(matrices), dtype=np.float64),
        bps=np.stack(matrices),
        interval_s=INTERVAL_S,
        notes=("an hour is taken between two matrices, as files of YATES do not tell the time",),
    )


def files(source: str) -> list[Path]:
    """Return the files of a network's demands."""
    return [_file(source, "topologies", ".dot"), _file(source, "hosts", ".hosts"), _matrices_file(source)]


def _matrices_file(source: str) -> Path:
    found = [_file(source, folder, ".txt") for folder in ("demands", "demands/actual")]
    return next((path for path in found if path.is_file()), found[0])


def _wrong(fields: list[str]) -> str:
    """Return the first field that is not a number in range, for a message."""
    for field in fields:
        try:
            number(field, "a demand")
        except PackError as error:
            return str(error).partition(";")[0]
    return "a demand is no number"


def _file(source: str, folder: str, suffix: str) -> Path:
    path = Path(source)
    return path.parent / folder / f"{path.name}{suffix}"


def _dot(path: Path) -> tuple[list[str], dict[str, str], dict[tuple[str, str], float]]:
    """Return the switches of a topology, the switch of each host, and the bit/s of each directed link of switches."""
    _, brace, body = text_of(path).partition("{")
    if not brace:
        raise PackError(f"{shown(path)} is no topology; allowed: digraph NAME {{ ... }}")
    switches, hosts = list[str](), dict[str, str]()
    rates: dict[tuple[str, str], float] = {}
    for statement in filter(str.strip, body.rpartition("}")[0].split(";")):
        match = _STATEMENT.fullmatch(" ".join(statement.split()))
        if match is None:
            raise PackError(f"{shown(path)}: {format_value(statement.strip())} is no statement; allowed: a -> b [...]")
        a, b, attributes = match[1], match[2], match[3] or ""
        if b is None:
            kind = _TYPE.search(attributes)
            if kind is not None and kind[1] == "switch":
                switches.append(a)
            else:
                hosts[a] = ""
            continue
        capacity = _CAPACITY.search(attributes)
        if capacity is None or (a, b) in rates:
            what = "has no capacity" if capacity is None else "is there twice"
            raise PackError(f'{shown(path)}: {a} -> {b} {what}; allowed: such as capacity="1Gbps", once')
        rates[a, b] = number(capacity[1], f"{shown(path)}: the capacity of {a} -> {b}") * _PREFIX[capacity[2]]
    for a, b in [ends for ends in rates if ends[0] in hosts]:
        hosts[a] = b
    for ends in rates:
        for end in ends:
            if end not in hosts and end not in switches:
                raise PackError(f"{shown(path)}: {format_value(end)} is not declared; allowed: a host or a switch")
    return switches, hosts, {ends: bps for ends, bps in rates.items() if hosts.keys().isdisjoint(ends)}
