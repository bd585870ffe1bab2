"""Links of a WAN that move while a program runs: their delays by row of conditions, and the shortest paths then. Pure.

A row is a span of `conditions.every`. After the last row of the data everything stays.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import delays_s
from topologies.errors import ConditionsError, Mistake, format_value
from topologies.fabric.fabric import build_fabric
from topologies.fabric.link_names import node_of
from topologies.fabric.ports import links_in_grain
from topologies.packs.published import PackError
from topologies.packs.table import moves_of

KEY = "conditions.moves"

_CHECKED = 100  # rows

Floats = npt.NDArray[np.float64]


class Movement:
    """The moving links of a configuration with `conditions.moves`; raises ConditionsError if its data do not fit."""

    def __init__(self, config: Scenario) -> None:
        self._fabric, every_s = build_fabric(config.fabric), config.conditions.every_s
        assert config.conditions.moves is not None and every_s is not None
        try:
            found = moves_of(config.conditions.moves, every_s)
        except PackError as error:
            raise ConditionsError([Mistake(KEY, str(error))]) from None
        wan = config.fabric.wan
        moving: dict[tuple[str, str], Floats] = {}
        for ends, column in zip(found.links, found.delays_s.T, strict=True):
            a, b = (self._router(wan.nodes_named(name), name, wan.routers) for name in ends)
            moving[a, b] = moving[b, a] = column
        rows = len(found.delays_s)
        self._links, self.rows = links_in_grain(self._fabric).all, rows
        self._plain_s = np.tile(delays_s(self._fabric, config.conditions), (rows, 1))
        for link in self._links:
            if link.kind == "wan" and (column := moving.get((link.src, node_of(link.far_end)))) is not None:
                self._plain_s[:, link.index] = column
        self._stations = frozenset(self._router(wan.nodes_named(name), name, wan.routers) for name in found.stations)
        self._moving = moving
        self._paths = self._shortest()

    @staticmethod
    def _router(found: tuple[int, ...], name: str, routers: tuple[str, ...]) -> str:
        if len(found) != 1:
            text = f"{format_value(name)} is not a node of fabric.wan; allowed: a WAN of the same span and data"
            raise ConditionsError([Mistake(KEY, text)])
        return routers[found[0]]

    def delays_s(self, row: int) -> Floats:
        """Return the delays of links or ports in a row, [links or ports] s; a link that is not there has its last one,
        or else its first."""
        now = min(row, self.rows - 1)
        delays: Floats = self._plain_s[now].copy()
        for index in np.flatnonzero(np.isnan(delays)).tolist():
            there = np.flatnonzero(np.isfinite(self._plain_s[:, index]))
            before = there[there <= now]
            delays[index] = self._plain_s[before[-1] if before.size else there[0], index]
        return delays

    def paths(self, row: int) -> Mapping[tuple[int, int], int]:
        """Return the path between every two GPUs of different sites in a row, by index: the shortest that is there."""
        best = self._paths[min(row, self.rows - 1)]
        sites = [gpu.site for gpu in self._fabric.gpus]
        return {
            (a, b): best[sites[a], sites[b]]
            for a in range(len(sites))
            for b in range(len(sites))
            if sites[a] != sites[b]
        }

    def _shortest(self) -> list[dict[tuple[int, int], int]]:
        """Return the shortest path between every two sites in each row; raises ConditionsError if a row has none."""
        found: list[dict[tuple[int, int], int]] = [{} for _ in range(self.rows)]
        self._least_s: dict[tuple[int, int], Floats] = {}
        at = {link.name: link.index for link in self._links}
        for sites, paths in self._fabric.paths_between.items():
            nodes = [path.name.split(">") for path in paths]
            lengths = np.array(
                [
                    self._plain_s[:, [at[f"{node_of(a)}>{b}"] for a, b in pairwise(one)]].sum(axis=1)
                    if self._stations.isdisjoint(map(node_of, one[2:-2]))  # a third ground station passes nothing on
                    else np.full(self.rows, np.nan)
                    for one in nodes
                ]
            )
            self._least_s[sites] = np.nanmin(lengths, axis=0, initial=np.inf)
            lost = np.flatnonzero(np.isnan(lengths).all(axis=0))
            if lost.size:
                text = f"no path joins sites {sites[0]} and {sites[1]} in row {lost[0]:,}"
                allowed = "a span in which they are joined, or more fabric.paths"
                raise ConditionsError([Mistake(KEY, f"{text}; allowed: {allowed}")])
            for row, index in enumerate(np.nanargmin(lengths, axis=0).tolist()):
                found[row][sites] = paths[index].index
        return found

    def check(self) -> None:
        """Raise ConditionsError if, in one of _CHECKED rows, the candidate paths lack the shortest one."""
        import networkx  # the VM needs none of it

        for row in np.unique(np.linspace(0, self.rows - 1, _CHECKED).astype(int)).tolist():
            graph = networkx.Graph()
            for (a, b), column in self._moving.items():
                if np.isfinite(column[row]):
                    graph.add_edge(a, b, s=column[row])
            for (src, dst), least_s in self._least_s.items():
                ends = [self._fabric.paths_between[src, dst][0].name.split(">")[at] for at in (1, -2)]
                inner = graph.subgraph({*graph} - (self._stations - {*ends}))
                if networkx.has_path(inner, *ends):
                    true_s = networkx.shortest_path_length(inner, *ends, weight="s")
                    if least_s[row] > true_s + 1e-9:
                        text = f"the shortest path from site {src} to {dst} in row {row:,} is not among the candidates"
                        raise ConditionsError([Mistake("fabric.paths", f"{text}; allowed: a larger number")])
