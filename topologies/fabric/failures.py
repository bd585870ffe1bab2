"""The effects of failed cables: logical links without a path, and GPUs that are cut off. Pure.

A cable is a pair of nodes, each with the cable's number if it is not the first between them ("s0b0#2"). A failed
switch is represented by the failure of all of its cables.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric, LogicalLink
from topologies.fabric.link_names import end, node_of, number_of

Cable = frozenset[str]
Cables = frozenset[Cable]

NO_CABLES: Cables = frozenset()


def cable(a: str, b: str) -> Cable:
    """Return the cable between two nodes, of which one or both may have its number: "s0b0", "s1b0#2"."""
    number = max(number_of(a), number_of(b))
    return frozenset((end(node_of(a), number), end(node_of(b), number)))


def directions_of(one: Cable) -> tuple[tuple[str, str], ...]:
    """Return each node of a cable with the far end as it knows it."""
    return tuple((node_of(near), far) for near, far in permutations(sorted(one)))


def cable_name(one: Cable, sign: str = "-") -> str:
    """Return a cable's name, its nodes in alphabetical order: "s0b0-s1b0#2"."""
    a, b = sorted(one)
    return f"{node_of(a)}{sign}{b}"


def cables_of(fabric: Fabric, node: str) -> Cables:
    """Return all cables of a switch or a GPU."""
    return frozenset(cable(*c.directions[0]) for c in fabric.cables if node in (c.a, c.b))


def spines(fabric: Fabric, site: int) -> tuple[str, ...]:
    """Return the names of a site's spines, in order."""
    return tuple(switch.name for switch in fabric.switches if switch.kind == "spine" and switch.site == site)


def failed_links(fabric: Fabric, dead: Cables) -> tuple[int, ...]:
    """Return the indices of the logical links that have no path left without the cables `dead`."""
    if not dead:
        return ()
    leaf = {gpu.name: gpu.leaf for gpu in fabric.gpus}
    site = {gpu.name: gpu.site for gpu in fabric.gpus}
    tiers = [spines(fabric, index) for index in range(len(fabric.gpus_per_site))]

    def failed(link: LogicalLink) -> bool:
        if link.kind == "wan":
            return cable(link.src, link.far_end) in dead
        gpus = [end for end in (link.src, link.dst) if end in leaf]
        if any(cable(gpu, leaf[gpu]) in dead for gpu in gpus):
            return True
        a, b = leaf.get(link.src, link.src), leaf.get(link.dst, link.dst)  # a leaf, or a border router
        tier = tiers[site[gpus[0]]]
        return a != b and all(cable(a, spine) in dead or cable(b, spine) in dead for spine in tier)

    return tuple(link.index for link in fabric.links if failed(link))


@dataclass(frozen=True, kw_only=True)
class CutOff:
    """A group of GPUs, by rank, that the other GPUs cannot reach, and the failed cables that separate them."""

    ranks: tuple[int, ...]
    cables: Cables


def reachable(fabric: Fabric, dead: Cables) -> npt.NDArray[np.bool_]:
    """Return whether rank i has a path to rank j without the cables `dead`, over any candidate WAN path: [n, n]."""
    alive = np.ones(len(fabric.links), dtype=bool)
    alive[list(failed_links(fabric, dead))] = False
    reach: npt.NDArray[np.bool_] = np.eye(len(fabric.gpus), dtype=bool)
    inside = fabric.intra_index >= 0
    reach[inside] = alive[fabric.intra_index[inside]]
    to_br = (fabric.to_br_index >= 0) & alive[fabric.to_br_index]
    from_br = (fabric.from_br_index >= 0) & alive[fabric.from_br_index]
    for path in fabric.paths:
        if alive[list(path.links)].all():
            reach |= np.outer(to_br[:, path.src_br], from_br[path.dst_br])
    return reach


def cut_off(fabric: Fabric, dead: Cables) -> tuple[CutOff, ...]:
    """Return the groups of GPUs cut off from the largest connected group (the first of equally large ones)."""
    reach = reachable(fabric, dead)
    groups: list[tuple[int, ...]] = []
    left = set(range(len(reach)))
    while left:
        group = {min(left)}
        while grown := {rank for rank in left - group if reach[rank, sorted(group)].any()}:
            group |= grown
        groups.append(tuple(sorted(group)))
        left -= group
    main = max(groups, key=len)
    return tuple(
        CutOff(ranks=group, cables=_around_region(fabric, dead, fabric.gpus[group[0]].name))
        for group in groups
        if group is not main
    )


def _around_region(fabric: Fabric, dead: Cables, node: str) -> Cables:
    """Return the failed cables between the node's connected component and other nodes, or all failed cables if none."""
    region, whole = {node}, [{c.a, c.b} for c in fabric.cables if cable(*c.directions[0]) not in dead]
    while grown := {name for nodes in whole if nodes & region for name in nodes} - region:
        region |= grown
    return frozenset(ends for ends in dead if len({*map(node_of, ends)} & region) == 1) or dead
