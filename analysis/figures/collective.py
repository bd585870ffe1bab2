"""One collective of a stored run, in full: its ring, the links of every ring edge with their rates, and every transfer.

Where it was measured, its transfers are the measured ones; where it was only predicted, they are the timing model's,
step by step. A run stores the conditions of what it measured; those of what it predicted, a hundred thousand times as
many, are drawn again from its seed, and compared with the stored times. Drawing is left to others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.figures.points import Configuration, FigureError, Points
from analysis.figures.style import MODE_STYLES
from analysis.model.alpha_beta import transfer_times_s
from analysis.results.reader import Run
from topologies.conditions.sampler import delays_s, sampler
from topologies.errors import ConditionsError
from topologies.fabric.fabric import Fabric

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

    `measured` is whether `completion_s` and the moves were measured or predicted.
    """

    configuration: Configuration
    mode: str
    number: int
    measured: bool
    completion_s: float
    predicted_s: float
    edges: tuple[Edge, ...]
    moves: tuple[Move, ...]
    rates_bps: Floats
    delays_s: Floats

    @property
    def which(self) -> dict[str, Any]:
        """The columns that say which collective it is."""
        about = {"setting": self.configuration.index, "label": self.configuration.label}
        return about | {"mode": self.mode, "collective": self.number}

    def gpu(self, rank: int) -> str:
        """The name of a rank's GPU."""
        return self.configuration.fabric.gpus[rank].name

    def moves_over(self, edge: Edge) -> list[Move]:
        """The moves over an edge, in the order in which they begin."""
        moves = (move for move in self.moves if move.src == edge.src)
        return sorted(moves, key=lambda move: (move.leaves_s, move.step))

    def via(self, edge: Edge) -> str:
        """The nodes of an edge in order: "g3>s0b1>s1b0>g4"."""
        links = self.configuration.fabric.links
        return ">".join([links[edge.links[0]].src, *(links[index].dst for index in edge.links)])


def collectives_of(run: Run, points: Points, configuration: Configuration, *, number: int) -> list[Collective]:
    """That collective of a configuration in every mode that has it, measured where it was.

    Empty where no mode has it, or its conditions are neither stored nor can be drawn again. Raises FigureError where
    the configuration declares no fabric that can be built.
    """
    there = []
    for mode in MODE_STYLES:
        for engine in ("emulation", "model"):
            point = points.get((engine, configuration.index, mode))
            rows = None if point is None else point.rows[point.rows["collective"] == number]
            if rows is not None and len(rows):
                there.append((engine, mode, rows.iloc[0]))
                break
    try:
        conditions = _conditions(run, configuration, number) if there else None
    except ConditionsError:  # the trace is not there any more
        return []
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        what = f"setting {configuration.index} of its settings.json: {error}".partition("\n")[0]
        raise FigureError(f"{run.path} is damaged: {what}") from None
    found = []
    for engine, mode, row in there:
        transfers = _transfers(run, configuration.index, mode, number) if engine == "emulation" else None
        assert conditions is not None
        found.append(_collective(configuration, mode, row, transfers, conditions))
    return [one for one in found if one is not None]


def _conditions(run: Run, configuration: Configuration, number: int) -> tuple[Floats, Floats]:
    """The rate and the delay of every logical link for a collective, [links] each."""
    table, fabric = run.conditions, configuration.fabric
    if len(table):
        here = table[(table["setting"] == configuration.index) & (table["collective"] == number)].sort_values("link")
        if len(here) == len(fabric.links):
            return here["rate_bps"].to_numpy(dtype=np.float64), here["delay_s"].to_numpy(dtype=np.float64)
    draws = sampler(fabric, configuration.conditions, seed=configuration.seed)
    return draws.rates_bps(number, 1)[0], delays_s(fabric, configuration.conditions)


def _collective(
    configuration: Configuration, mode: str, row: Any, transfers: Any, conditions: tuple[Floats, Floats]
) -> Collective | None:
    """The collective of a row, None where it is not one under these conditions."""
    ring, paths = [[int(value) for value in row[name]] for name in ("ring", "paths")]
    try:
        edges = _edges(configuration.fabric, ring, paths, *conditions)
    except (IndexError, KeyError, ValueError):
        return None
    predicted_s, measured = float(row["predicted_s"]), transfers is not None
    moves = measured_moves(edges, transfers) if measured else ()
    if not measured:
        moves = predicted_moves(edges, chunk_bytes=int(row["chunk_bytes"]))
        # If what was drawn again does not give the stored times, nothing is drawn of it.
        if abs(max(move.end_s for move in moves) / predicted_s - 1) > _SAME:
            return None
    return Collective(
        configuration=configuration,
        mode=mode,
        number=int(row["collective"]),
        measured=measured,
        completion_s=float(row["completion_s"]) if measured else predicted_s,
        predicted_s=predicted_s,
        edges=edges,
        moves=moves,
        rates_bps=conditions[0],
        delays_s=conditions[1],
    )


def _edges(
    fabric: Fabric, ring: Sequence[int], paths: Sequence[int], rates_bps: Floats, delays_s: Floats
) -> tuple[Edge, ...]:
    """The edges of a ring of ranks, each over the WAN path of that index, or within a site (-1)."""
    edges = []
    for (src, dst), index in zip(pairwise([*ring, ring[0]]), paths, strict=True):
        links = fabric.edge_links(src, dst, index)
        rate_bps, delay_s = float(rates_bps[[*links]].min()), float(delays_s[[*links]].sum())
        edges.append(Edge(src=src, dst=dst, links=links, crosses=index >= 0, rate_bps=rate_bps, delay_s=delay_s))
    return tuple(edges)


def _transfers(run: Run, index: int, mode: str, number: int) -> Any:
    """The rows of a collective's transfers, None where there are none."""
    table = run.transfers
    if not len(table):
        return None
    here = table[(table["setting"] == index) & (table["mode"] == mode) & (table["collective"] == number)]
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
    """When every chunk leaves and arrives by the timing model, step by step."""
    n = len(edges)
    alpha_s = np.array([edge.delay_s for edge in edges])
    beta_s = 8 * chunk_bytes / np.array([edge.rate_bps for edge in edges])
    leaves_s, arrives_s = (times.tolist() for times in transfer_times_s(alpha_s, beta_s))
    moves = []
    for step in range(1, n):
        for index, edge in enumerate(edges):
            chunk, start_s = edges[(index - step + 1) % n].src, leaves_s[step - 1][index]
            times = {"start_s": start_s, "leaves_s": start_s, "end_s": arrives_s[step - 1][index]}
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
