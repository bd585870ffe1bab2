"""Backbones and demands as Repetita and SNDlib write them; the highest utilisation of links by the best flow over all
paths (a linear programme of its own), by the controller's decision, and over shortest paths."""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array
from scipy.sparse.csgraph import csgraph_from_dense, dijkstra

from controller.routing.traffic_engineering import Demand, allocate
from topologies.fabric.link_names import node_of
from topologies.fabric.wan import WanSpec, candidate_paths, resolve_wan

PATHS = 16  # candidate paths between two sites

_XML = {"s": "http://sndlib.zib.de/network"}

Matrix = Mapping[tuple[int, int], float]  # bit/s from node to node


class Backbone(NamedTuple):
    """A backbone: its number of nodes, and the ends, weights and rates (bit/s) of its links, each there and back."""

    nodes: int
    ends: tuple[tuple[int, int], ...]
    weight: tuple[float, ...]
    bps: tuple[float, ...]


def read_graph(path: Path) -> Backbone:
    """Read a .graph: nodes, then lines of a link's name, ends, weight, rate in kbit/s and delay."""
    nodes, _, links = path.read_text().partition("EDGES")
    rows = [line.split() for line in links.splitlines()[2:] if line.strip()]
    ends = tuple((int(row[1]), int(row[2])) for row in rows)
    assert ends[1::2] == tuple(one[::-1] for one in ends[::2]), f"{path}: links are not in pairs"
    weight, bps = (tuple(float(row[column]) * unit for row in rows) for column, unit in ((3, 1), (4, 1e3)))
    return Backbone(int(nodes.split()[1]), ends, weight, bps)


def read_demands(path: Path) -> Matrix:
    """Read a .demands: lines of a demand's name, ends and rate in kbit/s."""
    rows = (line.split() for line in path.read_text().splitlines()[2:] if line.strip())
    return _summed((int(row[1]), int(row[2]), float(row[3]) * 1e3) for row in rows)


def _summed(rates: Iterable[tuple[int, int, float]]) -> Matrix:
    total = dict[tuple[int, int], float]()
    for src, dst, bps in rates:
        if src != dst and bps:
            total[src, dst] = total.get((src, dst), 0.0) + bps
    return total


def read_snd_network(path: Path) -> Backbone:
    """Read a network of SNDlib: a link has its first capacity in both directions, and inverse capacity as weight."""
    nodes, links = _snd(path, "link", "capacity")
    most = max(bps for *_, bps in links)
    pairs = [(pair, bps) for a, b, bps in links for pair in ((a, b), (b, a))]
    weight = tuple(float(most // bps) for _, bps in pairs)
    return Backbone(nodes, tuple(pair for pair, _ in pairs), weight, tuple(bps for _, bps in pairs))


def read_snd_demands(path: Path) -> Matrix:
    """Read the demands of SNDlib's XML."""
    return _summed(_snd(path, "demand", "demandValue")[1])


def _snd(path: Path, tag: str, value: str) -> tuple[int, list[tuple[int, int, float]]]:
    """Return the number of nodes, and all elements of a tag: their ends, and a value in Mbit/s as bit/s."""
    root = ElementTree.parse(path).getroot()
    nodes = {node.get("id", ""): index for index, node in enumerate(root.iterfind(".//s:node", _XML))}
    found = []
    for one in root.iterfind(f".//s:{tag}", _XML):
        src, dst, number = (one.findtext(f".//s:{name}", "", _XML).strip() for name in ("source", "target", value))
        found.append((nodes[src], nodes[dst], float(number) * 1e6))
    return len(nodes), found


def least_utilisation(net: Backbone, matrix: Matrix) -> float:
    """Return the highest utilisation of the best multi-commodity flow over all paths, by traffic to each node."""
    count, links, capacity = net.nodes, len(net.ends), np.array(net.bps)
    flow = np.arange(count * links).reshape(count, links)
    src, dst = np.array(net.ends).T
    rows = np.add.outer(np.arange(count) * count, np.stack([src, dst])).swapaxes(1, 2).reshape(-1)
    signs = np.tile([1.0, -1.0], count * links)
    kept = coo_array((signs, (rows, flow.repeat(2))), (count**2, count * links + 1)).tocsr()
    leaves = np.zeros((count, count))
    for (one, other), bps in matrix.items():
        leaves[other, one] += bps / capacity.max()
    inner = ~np.eye(count, dtype=bool).ravel()
    load = np.append(np.tile(capacity.max() / capacity, count), -np.ones(links))
    over = coo_array((load, (np.tile(np.arange(links), count + 1), np.append(flow, np.full(links, flow.size)))))
    cost = np.eye(flow.size + 1)[-1]
    found = linprog(cost, over.tocsr(), np.zeros(links), kept[inner], leaves.ravel()[inner], method="highs")
    assert found.status == 0, found.message
    return float(found.fun)


@cache
def paths_of(net: Backbone) -> Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]:
    """Return the links of the project's candidate paths, shortest by weight first, without those within sites."""
    names = tuple(f"n{node}" for node in range(net.nodes))
    links = tuple((names[a], names[b]) for a, b in net.ends[::2])
    spec = WanSpec(preset=None, routers=names, links=links, km=net.weight[::2])
    graph = resolve_wan(spec, tuple((f"s{node}b0",) for node in range(net.nodes)), names)
    index = {name: number for number, name in enumerate(name for names in graph.names[: len(links)] for name in names)}
    hops = {
        pair: [[f"{node_of(a)}>{b}" for a, b in pairwise(one)] for one in ways]
        for pair, ways in candidate_paths(graph, PATHS).items()
    }
    return {pair: tuple(tuple(index[hop] for hop in one[1:-1]) for one in ways) for pair, ways in hops.items()}


def engineered(net: Backbone, matrix: Matrix) -> tuple[float, float]:
    """Return the highest utilisation by the controller's decision, and the share of the demands that it carries."""
    tunnels = paths_of(net)
    demands = [
        Demand(src=a, dst=b, priority=0, tunnels=tunnels[a, b], wanted_bps=bps) for (a, b), bps in matrix.items()
    ]
    load, capacity = np.zeros(len(net.bps)), np.array(net.bps)
    rates = allocate(demands, capacity, None, {}, len(capacity))
    for one, of_tunnels in zip(demands, rates, strict=True):
        for way, bps in zip(one.tunnels, of_tunnels, strict=True):
            load[list(way)] += bps
    return float((load / capacity).max()), sum(map(sum, rates)) / sum(matrix.values())


def shortest(net: Backbone, matrix: Matrix) -> float:
    """Return the highest utilisation if demands share all their shortest candidate paths equally."""
    load, weight = np.zeros(len(net.bps)), np.array(net.weight)
    for pair, bps in matrix.items():
        length = [weight[list(way)].sum() for way in paths_of(net)[pair]]
        least = [way for way, one in zip(paths_of(net)[pair], length, strict=True) if one == length[0]]
        for way in least:
            load[list(way)] += bps / len(least)
    return float((load / np.array(net.bps)).max())


def fixed_paths_are_shortest(net: Backbone) -> bool:
    """Return whether every fixed path is as short as Dijkstra's by scipy."""
    apart = np.full((net.nodes, net.nodes), np.inf)
    np.minimum.at(apart, tuple(np.array(net.ends).T), net.weight)  # of parallel links, the shortest
    best = dijkstra(csgraph_from_dense(apart, null_value=np.inf))
    return all(sum(net.weight[link] for link in ways[0]) == best[pair] for pair, ways in paths_of(net).items())
