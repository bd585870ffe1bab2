"""One collective of a stored run, in full: its ring, the links of every ring edge with their rates, and who sent what.

Where it was measured, its transfers are the measured ones; where it was only reckoned, they are the timing model's,
step by step. Drawing is left to others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.points import Points, Setting
from analysis.resampled import rates_again
from analysis.results import Run
from analysis.style import MODE_STYLES

Floats = npt.NDArray[np.float64]

_SAME = 1e-6  # the share by which predicted transfers may end before or after the predicted time: rounding, no more


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A ring edge from one rank to the next: the logical links it takes, the least of their rates, all their delay."""

    src: int
    dst: int
    links: tuple[int, ...]
    crosses: bool
    rate_bps: float
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """The chunk that began at rank `chunk` goes from `src` to `dst`: seconds from the collective's start.

    At `start_s` the sender hands it to its transport, where it may wait for the chunk before it; at `leaves_s` its
    first bit is on the way, and at `end_s` the receiver has it whole.
    """

    step: int
    src: int
    dst: int
    chunk: int
    start_s: float
    leaves_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Collective:
    """A collective of one mode; `edges` are in ring order, `rates_bps` and `delays_s` by logical link.

    `measured` tells whether `completion_s` and the moves were measured or reckoned.
    """

    setting: Setting
    mode: str
    number: int
    measured: bool
    completion_s: float
    predicted_s: float
    edges: tuple[Edge, ...]
    moves: tuple[Move, ...]
    rates_bps: Floats
    delays_s: Floats

    def gpu(self, rank: int) -> str:
        """The name of a rank's GPU."""
        return str(self.setting["fabric"]["gpus"][rank]["name"])

    def moves_over(self, edge: Edge) -> list[Move]:
        """The moves over an edge, in the order in which they begin."""
        moves = (move for move in self.moves if move.src == edge.src)
        return sorted(moves, key=lambda move: (move.leaves_s, move.step))

    def via(self, edge: Edge) -> str:
        """The nodes of an edge in order: "g3>s0b1>s1b0>g4"."""
        links = self.setting["fabric"]["links"]
        return ">".join([links[edge.links[0]]["src"], *(links[index]["dst"] for index in edge.links)])


def collectives_of(run: Run, points: Points, *, setting: int, number: int) -> list[Collective]:
    """That collective of a setting in every mode that has it, measured where it was.

    Empty where no mode has it, or its conditions are neither stored nor can be drawn again.
    """
    conditions = _conditions(run, setting, number)
    if conditions is None:
        return []
    found = []
    for mode in MODE_STYLES:
        for engine in ("emulation", "model"):
            point = points.get((engine, setting, mode))
            rows = None if point is None else point.rows[point.rows["collective"] == number]
            if rows is not None and len(rows):
                row = rows.iloc[0]
                table = _transfers(run, setting, mode, number) if engine == "emulation" else None
                one = _collective(run.settings[setting], mode, row, table, conditions)
                found += [] if one is None else [one]
                break
    return found


def _conditions(run: Run, setting: int, number: int) -> tuple[Floats, Floats] | None:
    """The rate and the delay of every logical link for a collective."""
    table = run.conditions
    if len(table):
        here = table[(table["setting"] == setting) & (table["collective"] == number)].sort_values("link")
        if len(here) == len(run.settings[setting]["fabric"]["links"]):
            return here["rate_bps"].to_numpy(dtype=np.float64), here["delay_s"].to_numpy(dtype=np.float64)
    return rates_again(run.settings[setting], number)


def _collective(
    setting: Setting, mode: str, row: Any, transfers: Any, conditions: tuple[Floats, Floats]
) -> Collective | None:
    rates_bps, delays_s = conditions
    ring, paths = [[int(value) for value in row[name]] for name in ("ring", "paths")]
    edges = _edges(setting["fabric"], ring, paths, rates_bps, delays_s)
    predicted_s, measured = float(row["predicted_s"]), transfers is not None
    moves = measured_moves(edges, transfers) if measured else ()
    if not measured:
        moves = predicted_moves(edges, chunk_bytes=int(row["chunk_bytes"]))
        # What was drawn again is held against what is stored: if it is something else, nothing is drawn of it.
        if abs(max(move.end_s for move in moves) / predicted_s - 1) > _SAME:
            return None
    return Collective(
        setting=setting,
        mode=mode,
        number=int(row["collective"]),
        measured=measured,
        completion_s=float(row["completion_s"]) if measured else predicted_s,
        predicted_s=predicted_s,
        edges=edges,
        moves=moves,
        rates_bps=rates_bps,
        delays_s=delays_s,
    )


def _edges(
    fabric: Mapping[str, Any], ring: Sequence[int], paths: Sequence[int], rates_bps: Floats, delays_s: Floats
) -> tuple[Edge, ...]:
    names = [gpu["name"] for gpu in fabric["gpus"]]
    index = {(link["src"], link["dst"]): link["index"] for link in fabric["links"]}
    edges = []
    for (src, dst), path in zip(pairwise([*ring, ring[0]]), paths, strict=True):
        ends = [names[src], names[dst]]
        if path >= 0:
            over = [fabric["links"][link] for link in fabric["paths"][path]["links"]]
            ends[1:1] = [over[0]["src"], *(link["dst"] for link in over)]
        links = tuple(index[hop] for hop in pairwise(ends))
        rate_bps, delay_s = float(rates_bps[list(links)].min()), float(delays_s[list(links)].sum())
        edges.append(Edge(src=src, dst=dst, links=links, crosses=path >= 0, rate_bps=rate_bps, delay_s=delay_s))
    return tuple(edges)


def _transfers(run: Run, setting: int, mode: str, number: int) -> Any:
    """The rows of a collective's transfers, None where there are none."""
    table = run.transfers
    if not len(table):
        return None
    here = table[(table["setting"] == setting) & (table["mode"] == mode) & (table["collective"] == number)]
    return here.sort_values(["step", "src"]) if len(here) else None


def measured_moves(edges: Sequence[Edge], transfers: Any) -> tuple[Move, ...]:
    """The moves of these rows of transfers, step by step.

    An edge carries one chunk after the other, so a chunk leaves once the one before it has: when that arrived, less
    the time that bits are on the way.
    """
    delay_s = {edge.src: edge.delay_s for edge in edges}
    free_s: dict[int, float] = {}
    moves = []
    names = ("step", "src", "dst", "chunk", "start_s", "end_s")
    for step, src, dst, chunk, start_s, end_s in zip(*(transfers[name].tolist() for name in names), strict=True):
        leaves_s = min(end_s, max(start_s, free_s.get(src, 0.0)))
        free_s[src] = end_s - delay_s[src]
        times = {"start_s": start_s, "leaves_s": leaves_s, "end_s": end_s}
        moves.append(Move(step=step, src=src, dst=dst, chunk=chunk, **times))
    return tuple(moves)


def predicted_moves(edges: Sequence[Edge], *, chunk_bytes: int) -> tuple[Move, ...]:
    """When every chunk leaves and arrives as the timing model (`analysis.timing`) has it, step by step."""
    n = len(edges)
    sent, arrived = [0.0] * n, [0.0] * n
    moves = []
    for step in range(1, n):
        before = list(arrived)
        for place, edge in enumerate(edges):
            start_s = max(before[place - 1], sent[place])
            sent[place] = start_s + 8 * chunk_bytes / edge.rate_bps
            arrived[place] = sent[place] + edge.delay_s
            chunk = edges[(place - step + 1) % n].src
            times = {"start_s": start_s, "leaves_s": start_s, "end_s": arrived[place]}
            moves.append(Move(step=step, src=edge.src, dst=edge.dst, chunk=chunk, **times))
    return tuple(moves)


def lanes(moves: Sequence[Move], *, touching: float = 0.0) -> list[int]:
    """For each of these moves, which leave one after the other, the first lane that is free when it leaves.

    A move may leave that share of its length before its lane is free.
    """
    free: list[float] = []
    chosen = []
    for move in moves:
        least = move.leaves_s + touching * (move.end_s - move.leaves_s)
        lane = next((lane for lane, until_s in enumerate(free) if until_s <= least), len(free))
        free[lane : lane + 1] = [move.end_s]
        chosen.append(lane)
    return chosen
