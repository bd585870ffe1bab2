"""What a pack gives: a WAN's nodes and links, or traffic matrices by time; and how packs read and keep numbers.

A pack is a module with one or more of these functions; each takes the text after the pack's name, a path or a name:

    wan(source)        the WAN, as `Published`
    demands(source)    traffic matrices, as `Demands`
    moves(source, every_s)    delays by time, as `Moves`
    files(source)      the files of demands or movements, if these are more than the path itself

Files are untrusted. A pack raises PackError, one sentence with the offending value and what is allowed.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from topologies.errors import format_value, list_first
from topologies.fabric.map_links import MapLink, MapNode
from topologies.text_files import TextFileError, read_text, read_xml, stamp_of

MAX_BYTES = 64_000_000
"""Largest file of a pack."""
MAX_NODES = 200
"""Most nodes of traffic matrices."""
MAX_MATRICES = 100_000
MAX_BPS = 1e15

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


class PackError(ValueError):
    """Raised for data that cannot be read; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A WAN as published: nodes by id, and links between them with their attributes as text (`map_links`).

    If it `is_direct`, links were measured from end to end: each joins the two sites there, and no path passes a third
    node. `notes` tell what was assumed or left out.
    """

    nodes: Mapping[str, MapNode]
    links: tuple[MapLink, ...]
    is_direct: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Demands:
    """Traffic matrices: `bps[t, a, b]` from node a to node b, from `times_s[t]` on (from 0, increasing).

    The last one holds for `interval_s`, the usual time from one to the next.
    """

    nodes: tuple[str, ...]
    times_s: Floats
    bps: Floats
    interval_s: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Moves:
    """Links that move: the delay of each, a pair of nodes, by row, `delays_s[row, link]`, NaN where there is none."""

    stations: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    delays_s: Floats


def kept(files: Sequence[Path], what: str, make: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
    """Return the arrays that `make` computes of files; raises PackError as it does.

    They are kept in a file in $XDG_CACHE_HOME/longhaul/packs (~/.cache without it), named by `what` and by the files
    with their times of change: the VM, and every process, reads that file.
    """
    stamps = what + "".join(f"{file} {stamp_of(file)}\n" for file in files)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longhaul" / "packs"
    path = cache / f"{hashlib.sha256(stamps.encode()).hexdigest()[:32]}.npz"
    try:
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    except (OSError, ValueError, EOFError, BadZipFile):
        pass
    arrays = make()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        with part.open("wb") as file:
            np.savez(file, **dict[str, Any](arrays))
        part.rename(path)
    except OSError:
        pass  # the next process reads the files again
    return arrays


def shown(path: Path) -> str:
    """Return a file's name for messages."""
    return format_value(path.name)


def text_of(path: Path) -> str:
    """Return a file's text, XML in its declared encoding; raises PackError."""
    try:
        is_xml = path.suffix.lower() == ".xml"
        return (read_xml if is_xml else read_text)(path, most_bytes=MAX_BYTES)
    except TextFileError as error:
        allowed = "" if "allowed" in str(error) else "; allowed: a file in the scenario's folder or in that of --data"
        raise PackError(f"{shown(path)}: {error}{allowed}") from None


def number(text: str, what: str, *, most: float = MAX_BPS, least: float = 0.0) -> float:
    """Return the number that a text is, from `least` to `most`; raises PackError, which calls it `what`."""
    try:
        value = float(text) if len(text) < 50 else math.nan
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise PackError(f"{what} is {format_value(text.strip())}; allowed: a number from {least:g} to {most:g}")
    return value


def rate_of(bps: float) -> dict[str, str]:
    """Return the attributes of a link with this capacity, none for 0."""
    return {"capacity": f"{bps:.0f} bit/s"} if bps else {}


def delay_of(delay_s: float) -> dict[str, str]:
    """Return the attributes of a link with this delay."""
    return {"delay_ns": f"{delay_s * 1e9:.3f}"}


def counted(told: Mapping[str, int]) -> tuple[str, ...]:
    """Return notes on what there is at least one of: "missing matrices: 3"."""
    return tuple(f"{what}: {count:,}" for what, count in told.items() if count)


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, each with its number."""
    return ((count, line.strip()) for count, line in enumerate(text.split("\n"), 1) if line.strip())


def matrix(rows: Iterable[tuple[tuple[str, str], float]], nodes: Sequence[str], where: str) -> Floats:
    """Return demands, each its two ends and bit/s, as a matrix over these nodes, [n, n], those of equal ends added;
    raises PackError, which begins with `where`."""
    if not 1 < len(nodes) <= MAX_NODES:
        raise PackError(f"{where} has {len(nodes):,} nodes; allowed for demands: 2 to {MAX_NODES}")
    index = {name: number for number, name in enumerate(nodes)}
    bps = np.zeros((len(nodes), len(nodes)))
    for ends, rate_bps in rows:
        for end in ends:
            if end not in index:
                raise PackError(f"{where}: {format_value(end)} is not a node; allowed: {list_first(list(nodes), 6)}")
        bps[index[ends[0]], index[ends[1]]] += rate_bps
    np.fill_diagonal(bps, 0.0)
    return bps


def one_matrix(
    rows: Iterable[tuple[tuple[str, str], float]], nodes: Sequence[str], where: str, notes: tuple[str, ...] = ()
) -> Demands:
    """Return demands that do not change, as `matrix` takes them; raises PackError."""
    bps = matrix(rows, nodes, where)[None]
    return Demands(nodes=tuple(nodes), times_s=np.zeros(1), bps=bps, interval_s=1.0, notes=notes)
