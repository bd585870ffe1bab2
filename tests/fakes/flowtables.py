"""A fake network of OpenFlow switches that forwards packets by their flow tables, written from the OpenFlow 1.3 text.

It is independent of the code that makes rules. A packet moves one switch at a time, so that tables may change while it
is in flight. The module also has random fabrics, and a network with the default rules and some tunnels.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Network, ip_address, ip_network
from itertools import pairwise, permutations
from typing import NamedTuple
from zlib import crc32

from hypothesis import strategies as st

from controller.forwarding import rules
from controller.forwarding.flow_mods import ALL_BITS, Install, Match, Message, Remove, Rule
from controller.routing.switch_paths import FabricPaths
from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, WanPath, build_fabric
from topologies.fabric.failures import Cables, cable, cables_of, failed_links
from topologies.fabric.wan import WanSpec

IN_PORT = 0xFFFFFFF8


class Packet(NamedTuple):
    """An IPv4 packet about to enter a node by a port; `passed` are the switches it has left, each
    with the number of the cable by which it came if that is not the first between two switches ("X#2"); `cable` is that
    number where it is now."""

    src: str
    dst: str
    eth_dst: str
    at: str
    in_port: int
    tcp_src: int = 4791
    passed: tuple[str, ...] = ()
    cable: int = 1


class Table:
    """The rules of a switch, and `state`, which is another one after each change. What matches a packet is looked up
    once in each state: thousands of packets of a test have the same headers."""

    def __init__(self) -> None:
        self.rules: dict[tuple[Match, int], Rule] = {}
        self.found: dict[Headers, list[Rule]] = {}
        self.state = object()

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules.values())

    def __len__(self) -> int:
        return len(self.rules)

    def apply(self, message: Message) -> None:
        """Do what a message asks for."""
        self.found, self.state = {}, object()
        if isinstance(message, Install):
            self.rules[message.rule.match, message.rule.priority] = message.rule
        else:
            self.rules = {key: rule for key, rule in self.rules.items() if not removes(message, rule)}

    def best(self, headers: "Headers") -> list[Rule]:
        """Return the rules of the highest priority among those that match."""
        if headers not in self.found:
            hits = [rule for rule in self if matches(rule.match, headers)]
            top = max((rule.priority for rule in hits), default=0)
            self.found[headers] = [rule for rule in hits if rule.priority == top]
        return self.found[headers]


class Headers(NamedTuple):
    """What a rule may match of a packet."""

    src: str
    dst: str
    eth_dst: str
    in_port: int
    tcp_src: int
    channel: int | None


class Walk(NamedTuple):
    """The switches that a packet passed, and the states that their tables had."""

    passed: tuple[str, ...]
    states: dict[str, object]


@dataclass
class FakeNetwork:
    """The switches of a fabric, with empty tables."""

    fabric: Fabric
    tables: dict[str, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = {switch.name: Table() for switch in self.fabric.switches}
        self.gpus = {gpu.name: gpu for gpu in self.fabric.gpus}
        self.walks: dict[Packet, Walk] = {}
        self.ends = {(c.a, c.a_port): (c.b, c.b_port) for c in self.fabric.cables}
        self.ends |= {(c.b, c.b_port): (c.a, c.a_port) for c in self.fabric.cables}
        self.numbers = {at: c.number for c in self.fabric.cables for at in ((c.a, c.a_port), (c.b, c.b_port))}

    def apply(self, *messages: Message) -> None:
        for message in messages:
            self.tables[message.switch].apply(message)

    def sent(self, src: int, dst: int, tcp_src: int = 4791) -> Packet:
        """Return a TCP packet that a GPU has just sent."""
        a, b = self.fabric.gpus[src], self.fabric.gpus[dst]
        leaf, port = self.ends[a.name, 0]
        return Packet(src=a.ip, dst=b.ip, eth_dst=b.mac, at=leaf, in_port=port, tcp_src=tcp_src)

    def step(self, packet: Packet) -> Packet:
        """Return the packet after one switch; assert that one rule matches best, and does not send the packet back."""
        best = self.rule_for(packet)
        if best.channels:  # any hash of the addresses and ports will do
            of_connection = f"{packet.src} {packet.dst} {packet.tcp_src} {best.seed}".encode()
            best = self.rule_for(packet, crc32(of_connection) % best.channels)
        assert best.out_port != packet.in_port, f"a switch does not send a packet back: {packet}"
        port = packet.in_port if best.out_port == IN_PORT else best.out_port
        at, in_port = self.ends[packet.at, port]
        eth_dst = best.eth_dst or packet.eth_dst
        passed = (*packet.passed, packet.at if packet.cable == 1 else f"{packet.at}#{packet.cable}")
        number = self.numbers[packet.at, port]
        return Packet(packet.src, packet.dst, eth_dst, at, in_port, packet.tcp_src, passed, number)

    def rule_for(self, packet: Packet, channel: int | None = None) -> Rule:
        """Return the rule of the switch, in the first table or for a packet with a channel in the second, that matches
        best; assert that there is one."""
        headers = Headers(packet.src, packet.dst, packet.eth_dst, packet.in_port, packet.tcp_src, channel)
        best = self.tables[packet.at].best(headers)
        assert best, f"a black hole: no rule at {packet.at} for {packet}"
        assert len(best) == 1, f"two rules of one priority at {packet.at} for {packet}"
        return best[0]

    def arrived(self, packet: Packet) -> bool:
        """Return whether the packet has reached a GPU; assert that this is its destination, and the headers as sent."""
        gpu = self.gpus.get(packet.at)
        if gpu is None:
            return False
        assert (gpu.ip, gpu.mac) == (packet.dst, packet.eth_dst), f"{gpu.name} drops {packet}"
        return True

    def walk(self, packet: Packet) -> tuple[str, ...]:
        """Return the switches that the packet passes until it arrives, with the tables as they are."""
        known = self.walks.get(packet)
        if known is None or any(self.tables[name].state is not state for name, state in known.states.items()):
            known = self.walks[packet] = self.walked(packet)
        return known.passed

    def walked(self, packet: Packet) -> "Walk":
        seen = set()
        states = {}
        while not self.arrived(packet):
            state = (packet.at, packet.in_port, packet.eth_dst)
            assert state not in seen, f"a loop: {packet}"
            seen.add(state)
            states[packet.at] = self.tables[packet.at].state
            packet = self.step(packet)
        return Walk(packet.passed, states)


subnet_of = cache(lambda narrow, wide: IPv4Network(narrow).subnet_of(IPv4Network(wide)))


@cache
def within(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


def matches(match: Match, packet: Headers) -> bool:
    return (
        (match.in_port is None or match.in_port == packet.in_port)
        and (match.eth_dst is None or match.eth_dst == packet.eth_dst)
        and (match.src is None or within(packet.src, match.src))
        and (match.dst is None or within(packet.dst, match.dst))
        and match.tcp_src in (None, packet.tcp_src)
        and match.channel == packet.channel
    )


def removes(message: Remove, rule: Rule) -> bool:
    """Return whether OpenFlow's non-strict delete removes a rule: the masked cookies are equal, and the rule's match is
    at least as narrow as the message's."""
    if rule.cookie & message.mask != message.cookie & message.mask:
        return False
    wide, narrow = message.match, rule.match
    if message.mask == ALL_BITS and (wide.channel is None) != (narrow.channel is None):
        return False  # it is about one table
    for asked, has in ((wide.src, narrow.src), (wide.dst, narrow.dst)):
        if asked is not None and (has is None or not subnet_of(has, asked)):
            return False
    same = (("in_port", wide.in_port), ("eth_dst", wide.eth_dst), ("tcp_src", wide.tcp_src), ("channel", wide.channel))
    return all(asked is None or getattr(narrow, name) == asked for name, asked in same)


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Draw small fabrics of every kind: mesh of two or three sites, five-router, and any WAN that is allowed."""
    kind = draw(st.sampled_from(["mesh", "five-router", "any", "any"]))
    sites = 2 if kind == "five-router" else draw(st.integers(2, 3))

    def counts(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(sites))

    gpus, leaves, spines, routers = counts(2, 4), counts(1, 3), counts(1, 3), counts(1, 2)
    wan = WanSpec(preset=kind) if kind != "any" else draw(wans(routers))
    tiers = {"gpus_per_site": gpus, "leaves": leaves, "spines": spines, "border_routers": routers}
    try:
        return build_fabric(FabricSpec(**tiers, wan=wan))
    except FabricError:  # the WAN is not connected, or no ring fits it: join every border router to one more router
        ends = [f"s{site}b{index}" for site, count in enumerate(routers) for index in range(count)]
        links = (*wan.links, *((end, "Z") for end in ends), *((name, "Z") for name in wan.routers))
        wan = WanSpec(preset=None, routers=(*wan.routers, "Z"), links=tuple(sorted(links)))
        return build_fabric(FabricSpec(**tiers, wan=wan))


@st.composite
def failures(draw: st.DrawFn, fabric: Fabric) -> Cables:
    """Draw failed cables: some single ones, and all those of some switches."""
    cables = [cable(*c.directions[0]) for c in fabric.cables]
    failed = set(draw(st.lists(st.sampled_from(cables), max_size=4)))
    for switch in draw(st.lists(st.sampled_from(fabric.switches), max_size=2)):
        failed |= cables_of(fabric, switch.name)
    return frozenset(failed)


def usable(fabric: Fabric, failed: Cables, path: WanPath, src: int, dst: int) -> bool:
    """Return whether a path between two ranks has no failed link."""
    gone = set(failed_links(fabric, failed))
    return not gone & {fabric.to_br_index[src, path.src_br], fabric.from_br_index[path.dst_br, dst], *path.links}


@st.composite
def wans(draw: st.DrawFn, border_routers: tuple[int, ...]) -> WanSpec:
    routers = tuple(f"T{index}" for index in range(draw(st.integers(1, 4))))
    ends = [*(f"s{site}b{index}" for site, count in enumerate(border_routers) for index in range(count)), *routers]
    possible = [(a, b) for place, a in enumerate(ends) for b in ends[place + 1 :]]
    links = tuple(link for link in possible for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 2]))))
    return WanSpec(preset=None, routers=routers, links=links)


def crossing_pairs(fabric: Fabric) -> list[tuple[int, int]]:
    gpus = fabric.gpus
    return [(a.rank, b.rank) for a, b in permutations(gpus, 2) if fabric.paths_between.get((a.site, b.site))]


def wan_of(fabric: Fabric, passed: tuple[str, ...]) -> str:
    """Return the WAN part of a walk, named as the fabric names its paths."""
    kinds = {switch.name: switch.kind for switch in fabric.switches}
    return ">".join(name for name in passed if kinds[name.partition("#")[0]] in ("border", "transit"))


def hops_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the hops of a walk: each node, and the next one with the number of the cable."""
    return [(near.partition("#")[0], far) for near, far in pairwise(names)]


def with_default_rules(ways: FabricPaths, tunnels: Collection[int] = ()) -> FakeNetwork:
    network = FakeNetwork(ways.fabric)
    for switch in ways.fabric.switches:
        network.apply(*(Install(switch=switch.name, rule=rule) for rule in rules.default_rules(ways, switch.name)))
        for path in tunnels:
            network.apply(*(Install(switch=switch.name, rule=r) for r in rules.tunnel_rules(ways, switch.name, path)))
    return network
