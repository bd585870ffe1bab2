"""What no longer carries when cables are dead: which logical links have no way left. Pure.

A cable is a pair of nodes. A switch that is down is one all of whose cables are dead.
"""

from collections.abc import Iterable

from topologies.fabric import Fabric

Cable = frozenset[str]
Cables = frozenset[Cable]

NONE: Cables = frozenset()


def cable(a: str, b: str) -> Cable:
    """The cable between two nodes."""
    return frozenset((a, b))


def around(fabric: Fabric, node: str) -> Cables:
    """All cables of a switch, or of a GPU."""
    return frozenset(cable(c.a, c.b) for c in fabric.cables if node in (c.a, c.b))


def spines(fabric: Fabric, site: int) -> tuple[str, ...]:
    """A site's spines, in order."""
    return tuple(switch.name for switch in fabric.switches if switch.kind == "spine" and switch.site == site)


def dead_links(fabric: Fabric, dead: Cables) -> tuple[int, ...]:
    """The logical links, by index, that have no way left without these cables."""
    if not dead:
        return ()
    leaf = {gpu.name: gpu.leaf for gpu in fabric.gpus}
    site = {gpu.name: gpu.site for gpu in fabric.gpus}
    tiers = [spines(fabric, place) for place in range(len(fabric.gpus_per_site))]

    def lost(src: str, dst: str, kind: str) -> bool:
        if kind == "wan":
            return cable(src, dst) in dead
        gpus = [end for end in (src, dst) if end in leaf]
        if any(cable(gpu, leaf[gpu]) in dead for gpu in gpus):
            return True
        ends = [leaf.get(src, src), leaf.get(dst, dst)]  # a leaf, or a border router
        return ends[0] != ends[1] and not _joined(ends, tiers[site[gpus[0]]], dead)

    return tuple(link.index for link in fabric.links if lost(link.src, link.dst, link.kind))


def _joined(ends: Iterable[str], tier: Iterable[str], dead: Cables) -> bool:
    """Whether a spine has a cable left to each of these."""
    return any(all(cable(end, spine) not in dead for end in ends) for spine in tier)
