"""Names, interfaces, ports, datapath ids, addresses and cables of a fabric, as Linux and OpenFlow use them."""

from collections.abc import Iterator
from dataclasses import dataclass

from topologies.errors import FabricError, Mistake
from topologies.fabric.link_names import end, numbers
from topologies.fabric.wan import WanGraph

MAX_INTERFACE_NAME = 15
"""Longest name of a Linux network interface (IFNAMSIZ less the terminating null byte)."""

_KINDS = ("leaf", "spine", "border", "transit")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and its host: the rank, the name "g<rank>", the site, the leaf it is cabled to, interface and addresses."""

    rank: int
    name: str
    site: int
    leaf: str
    interface: str
    mac: str
    ip: str


@dataclass(frozen=True, kw_only=True)
class Port:
    """A switch port: its OpenFlow number (from 1), its Linux interface, and the far end of its cable, a node with the
    cable's number if it is not the first between the two nodes (`link_names.end`)."""

    number: int
    interface: str
    peer: str


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A switch: `kind` is "leaf", "spine", "border" or "transit"; a transit router belongs to no site (None)."""

    name: str
    kind: str
    site: int | None
    dpid: int
    ports: tuple[Port, ...]


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A cable between nodes `a` and `b`, with its port number at each; a GPU's only port is 0. `number` tells the
    cables between the same nodes apart, from 1 on."""

    a: str
    a_port: int
    b: str
    b_port: int
    number: int = 1

    @property
    def name(self) -> str:
        """The cable's name: "s0b0-s1b0", "s0b0-s1b0#2"."""
        return f"{self.a}-{end(self.b, self.number)}"

    @property
    def directions(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Each node with the far end as it knows it."""
        return (self.a, end(self.b, self.number)), (self.b, end(self.a, self.number))


def wire(
    *,
    gpus_per_site: tuple[int, ...],
    leaves: tuple[int, ...],
    spines: tuple[int, ...],
    wan: WanGraph,
    nics: bool = False,
) -> tuple[tuple[Gpu, ...], tuple[Switch, ...], tuple[Cable, ...]]:
    """Wire a leaf-spine fabric in each site and the WAN between the sites.

    GPUs are cabled to their site's leaves in contiguous blocks of ranks, every leaf to every spine of its site, and
    every spine to every border router. Switches are listed tier by tier within each site, then transit routers; ports
    are numbered in the order of their cables. With `nics`, the leaves are the GPUs' NICs, named s0n0, s0n1 ...
    Raises FabricError if an interface's name would be too long.
    """
    leaf = "n" if nics else "l"
    gpus = tuple(_gpus(gpus_per_site, leaves, leaf))
    nodes = list(_switches(leaves, spines, wan, leaf))
    ends: list[tuple[str, str]] = [(gpu.name, gpu.leaf) for gpu in gpus]
    for site, border_routers in enumerate(wan.border_routers):
        tier = [f"s{site}p{index}" for index in range(spines[site])]
        ends += [(f"s{site}{leaf}{index}", spine) for index in range(leaves[site]) for spine in tier]
        ends += [(spine, router) for spine in tier for router in border_routers]
    ends += wan.links
    ports: dict[str, list[Port]] = {name: [] for name, *_ in nodes}

    def plug(name: str, peer: str) -> int:
        if name not in ports:  # a GPU: the Gpu object describes its only port
            return 0
        number = len(ports[name]) + 1
        ports[name].append(Port(number=number, interface=f"{name}-eth{number}", peer=peer))
        return number

    cables = tuple(
        Cable(a=a, a_port=plug(a, end(b, number)), b=b, b_port=plug(b, end(a, number)), number=number)
        for (a, b), number in zip(ends, numbers(ends), strict=True)
    )
    longest = max((port.interface for taken in ports.values() for port in taken), key=len)
    if len(longest) > MAX_INTERFACE_NAME:
        text = f"the interface name {longest!r} is longer than Linux's {MAX_INTERFACE_NAME}; shorten the router's name"
        raise FabricError([Mistake("fabric.wan.routers", text)])
    switches = tuple(
        Switch(name=name, kind=kind, site=site, dpid=dpid, ports=tuple(ports[name])) for name, kind, site, dpid in nodes
    )
    return gpus, switches, cables


def _gpus(gpus_per_site: tuple[int, ...], leaves: tuple[int, ...], leaf: str) -> Iterator[Gpu]:
    rank = 0
    for site, count in enumerate(gpus_per_site):
        for index in range(count):
            yield Gpu(
                rank=rank,
                name=f"g{rank}",
                site=site,
                leaf=f"s{site}{leaf}{index * leaves[site] // count}",
                interface=f"g{rank}-eth0",
                mac=f"02:00:00:00:{rank >> 8:02x}:{rank & 255:02x}",  # 02: locally administered, unicast
                ip=f"10.{site}.{index // 254}.{index % 254 + 1}",  # no last number 0 or 255, which stand for networks
            )
            rank += 1


def _switches(
    leaves: tuple[int, ...], spines: tuple[int, ...], wan: WanGraph, leaf: str
) -> Iterator[tuple[str, str, int | None, int]]:
    """Yield name, kind, site and datapath id of every switch; the id encodes kind, site and index, and is never 0."""

    def dpid(kind: str, site: int, index: int) -> int:
        return (_KINDS.index(kind) + 1) << 32 | site << 16 | index

    for site, border_routers in enumerate(wan.border_routers):
        counts = leaves[site], spines[site], len(border_routers)
        for kind, letter, count in zip(_KINDS, f"{leaf}pb", counts, strict=False):
            for index in range(count):
                yield f"s{site}{letter}{index}", kind, site, dpid(kind, site, index)
    for index, name in enumerate(wan.routers):
        yield name, "transit", None, dpid("transit", 0, index)
