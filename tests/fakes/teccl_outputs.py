"""Outputs in the forms that TE-CCL writes, made from a topology by breadth-first search instead of by its solver."""

import itertools
import json
import random
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

Graph = Mapping[int, Sequence[int]]


def _path(graph: Graph, src: int, dst: int, rng: random.Random) -> list[int]:
    """Return a shortest path over a graph's nodes, at random among equals."""
    before = {src: src}
    queue = deque([src])
    while queue:
        at = queue.popleft()
        for other in rng.sample(list(graph[at]), len(graph[at])):
            if other not in before:
                before[other] = at
                queue.append(other)
    path = [dst]
    while path[-1] != src:
        path.append(before[path[-1]])
    return path[::-1]


def _hops(path: Sequence[int], switches: Sequence[int]) -> list[tuple[int, int, list[int]]]:
    """Return the hops from GPU to GPU of a path, each with the switches in between."""
    hops, between = [], []
    src = path[0]
    for node in path[1:]:
        if node in switches:
            between.append(node)
        else:
            hops.append((src, node, between))
            src, between = node, []
    return hops


def _line(src: int, dst: int, epoch: int, switches: Sequence[int], volume: float | None) -> str:
    amount = "" if volume is None else f" with volume {volume}"
    via = f" via switches {'->'.join(map(str, switches))}" if switches else ""
    return f"{src}->{dst}{amount} in epoch {epoch}{via}"


def _output(flows: Sequence[tuple[int, str]], key: str, **more: object) -> str:
    lines = [line for _, line in sorted(flows, key=lambda flow: flow[0])]
    found = {"1-Epoch_Duration": 1e-6, "3-Epochs_Required": 99, "5-Algo_Bandwidth": 1.0, key: lines, "Solver_Time": 0.1}
    return json.dumps(found | more, indent=2, sort_keys=True)


def allgather(graph: Graph, switches: Sequence[int] = (), *, chunks: int = 1, hop_by_hop: bool = False) -> str:
    """Return an AllGather over shortest-path trees; with `hop_by_hop` switches are visited as nodes, and chunks are
    sent again where trees of several destinations overlap, as by the A* formulation."""
    gpus, flows = [node for node in graph if node not in switches], []
    for source in gpus:
        for chunk in range(chunks):
            seen = set()
            for dst in gpus:
                path = _path(graph, source, dst, random.Random(source))
                hops = [(a, b, []) for a, b in itertools.pairwise(path)] if hop_by_hop else _hops(path, switches)
                for epoch, (a, b, via) in enumerate(hops):
                    line = f"Chunk {chunk} from {source} traveled over {_line(a, b, epoch, via, None)}"
                    if line not in seen:
                        flows.append((epoch, line))
                    seen.add(line)
    return _output(flows, "7-Flows", **{"8-Chunk paths": {}})


def alltoall(
    graph: Graph, switches: Sequence[int] = (), *, volumes: Sequence[float] = (1.0,), older: bool = False
) -> str:
    """Return an AlltoAll in which each chunk takes a shortest path for each of these volumes."""
    gpus = [node for node in graph if node not in switches]
    flows: dict[tuple[int, str], None] = {}
    paths: defaultdict[str, list[list[tuple[int, str]]]] = defaultdict(list)
    rng = random.Random(1)
    for source in gpus:
        for dst in gpus:
            for number, volume in enumerate(volumes if source != dst else ()):
                hops = _hops(_path(graph, source, dst, rng), switches)
                lines = [(number + at, _line(a, b, number + at, via, volume)) for at, (a, b, via) in enumerate(hops)]
                chunk = gpus.index(dst)
                paths[f"Demand at {dst} for chunk {chunk} from {source} met by epoch 9"].append(lines)
                flows |= {(at, f"Chunk {chunk} from {source} traveled over {line}"): None for at, line in lines}
    keys = ("6-Flows", "7-chunk paths") if older else ("7-Flows", "8-Chunk paths")
    return _output(list(flows), keys[0], **{keys[1]: paths})
