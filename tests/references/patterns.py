"""The messages of MPI libraries' algorithms, and the times that the fluid model predicts for them.

The network is written down here once more, independent of `topologies`: two sites, where every two hosts of a site have
a link of their own, and each host one to and from its site's border router; one WAN link in each direction.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from analysis.model import fluid
from hosts.collectives.schedule import Transfer

Message = tuple[int, int, float]
"""Source and destination rank, bytes."""
Step = list[Message]
WAN = {"wan_bps": 1e9, "wan_s": 0.01, "site_bps": 1e10, "site_s": 0.7e-6}
"""The network in two sites of the tests with MPI libraries."""
HEADER = 64.0  # bytes of an envelope, about: a message of 0 bytes, an announcement or its answer


class Pattern:
    """What the ranks of a program send: steps in which each first sends, then waits for what it gets in that step.

    `sites` is the site of each rank. A message of more than `eager` bytes is announced, and sent when the answer is
    there. Rates are in bit/s, delays in s.
    """

    def __init__(
        self, sites: Sequence[int], *, eager: float, wan_bps: float, wan_s: float, site_bps: float, site_s: float
    ) -> None:
        self.sites, self.eager = sites, eager
        self._wan_bps, self._wan_s, self._site_bps, self._site_s = wan_bps, wan_s, site_bps, site_s
        self._flows: dict[tuple[int, int], int] = {}
        self._transfers: list[Transfer] = []
        self._waits: list[frozenset[int]] = [frozenset()] * len(sites)
        self._arrives_s: list[float] = []

    def run(self, steps: Iterable[Step]) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
        """Add steps; return what each rank has waited for before and after them, for `times_s`."""
        before = self._waits
        for step in steps:
            self._step(step)
        return before, self._waits

    def _step(self, step: Step) -> None:
        begun, waits = self._waits, list(self._waits)
        announced = [size > self.eager for _, _, size in step]
        first = [
            self._send(src, dst, HEADER if ask else HEADER + size, begun[src])
            for (src, dst, size), ask in zip(step, announced, strict=True)
        ]
        for (src, dst, _), ask, one in zip(step, announced, first, strict=True):
            if ask:
                waits[src] |= {self._send(dst, src, HEADER, begun[dst] | {one})}
        answered = list(waits)
        for (src, dst, size), ask, one in zip(step, announced, first, strict=True):
            waits[dst] |= {self._send(src, dst, size, answered[src]) if ask else one}
        self._waits = waits

    def _send(self, src: int, dst: int, size: float, after: frozenset[int]) -> int:
        flow = self._flows.setdefault((src, dst), len(self._flows))
        self._transfers.append(Transfer(flow=flow, after=tuple(sorted(after)), size=size))
        return len(self._transfers) - 1

    def wan_bytes(self, site: int) -> float:
        """Return the bytes that leave a site over the WAN, without headers of packets."""
        ends = list(self._flows)
        crossing = {at for at, (src, dst) in enumerate(ends) if self.sites[src] == site != self.sites[dst]}
        return sum(one.size for one in self._transfers if one.flow in crossing)

    def times_s(self, waits: Sequence[frozenset[int]]) -> list[float]:
        """Return when each rank had received all of what it waited for."""
        if len(self._arrives_s) < len(self._transfers):
            self._arrives_s = self._predicted().arrives_s[:, 0].tolist()
        return [max((self._arrives_s[one] for one in rank), default=0.0) for rank in waits]

    def _predicted(self) -> fluid.SharedTimes:
        links: dict[tuple[str, int, int], int] = {}
        capacity, rows, delays = list[float](), list[list[int]](), list[float]()
        for src, dst in self._flows:
            here, there = self.sites[src], self.sites[dst]
            if here == there:
                path = [("site", src, dst)]
            else:
                path = [("up", here, src), ("wan", here, there), ("down", there, dst)]
            for link in path:
                if link not in links:
                    links[link] = len(links)
                    capacity.append(self._wan_bps if link[0] == "wan" else self._site_bps)
            rows.append([links[link] for link in path] + [-1] * (3 - len(path)))
            delays.append(self._site_s if here == there else self._wan_s + 2 * self._site_s)
        return fluid.times(
            self._transfers,
            np.array([rows], np.int32),
            np.array([capacity]),
            np.array([delays]),
            slot_bytes=1.0,
        )


def ring(ranks: int, size: float) -> Iterator[Step]:
    """Each rank passes blocks on to the next one, `ranks` - 1 times: AllGather, or half of a ring AllReduce."""
    for _ in range(ranks - 1):
        yield [(rank, (rank + 1) % ranks, size) for rank in range(ranks)]


def pairwise(ranks: int, size: float) -> Iterator[Step]:
    """Each rank sends to the one k places after it and receives from the one k before it, k = 1, 2, 3 ..."""
    for k in range(1, ranks):
        yield [(rank, (rank + k) % ranks, size) for rank in range(ranks)]


def exchange(ranks: int, messages: Iterable[tuple[int, float]]) -> Iterator[Step]:
    """Each rank exchanges with the one whose number is its own XOR a distance; `messages` are distances and bytes."""
    for distance, size in messages:
        yield [(rank, rank ^ distance, size) for rank in range(ranks)]


def binomial(ranks: int, size: float) -> Iterator[Step]:
    """Rank 0 sends to the one half of all ranks away, then both do so in their halves."""
    away = 1 << (ranks - 1).bit_length()
    while away := away // 2:
        yield [(rank, rank + away, size) for rank in range(0, ranks, 2 * away)]


def near_first(ranks: int, size: float) -> Iterator[Step]:
    """The ranks that have the message send it 1, 2, 4 ... places on: Open MPI's binomial tree."""
    for k in range((ranks - 1).bit_length()):
        yield [(rank, rank + (1 << k), size) for rank in range(1 << k)]
