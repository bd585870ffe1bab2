"""A fake network of OpenFlow switches that forwards packets by their flow tables, written from the OpenFlow 1.3 text.

It knows nothing of how rules are made. A packet is moved one switch at a time, so that tables may change under it.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import ip_address, ip_network

from controller.flows import Install, Match, Message, Remove, Rule
from topologies.fabric import Fabric

IN_PORT = 0xFFFFFFF8


@dataclass(frozen=True, kw_only=True)
class Packet:
    """An IPv4 packet about to enter a node by a port; `passed` are the switches it has left."""

    src: str
    dst: str
    eth_dst: str
    at: str
    in_port: int
    passed: tuple[str, ...] = ()


@dataclass
class FakeNetwork:
    """The switches of a fabric, with empty tables."""

    fabric: Fabric
    tables: dict[str, list[Rule]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = {switch.name: [] for switch in self.fabric.switches}
        self.ends = {(c.a, c.a_port): (c.b, c.b_port) for c in self.fabric.cables}
        self.ends |= {(c.b, c.b_port): (c.a, c.a_port) for c in self.fabric.cables}

    def apply(self, message: Message) -> None:
        table = self.tables[message.switch]
        if isinstance(message, Install):
            rule = message.rule
            table[:] = [old for old in table if (old.match, old.priority) != (rule.match, rule.priority)]
            table.append(rule)
        else:
            table[:] = [rule for rule in table if not removes(message, rule)]

    def sent(self, src: int, dst: int) -> Packet:
        """A packet that a GPU has just put on its cable."""
        a, b = self.fabric.gpus[src], self.fabric.gpus[dst]
        leaf, port = self.ends[a.name, 0]
        return Packet(src=a.ip, dst=b.ip, eth_dst=b.mac, at=leaf, in_port=port)

    def step(self, packet: Packet) -> Packet:
        """The packet after one switch; raises AssertionError where the switch drops it or cannot tell what to do."""
        hits = [rule for rule in self.tables[packet.at] if matches(rule.match, packet)]
        assert hits, f"a black hole: no rule at {packet.at} for {packet}"
        top = max(rule.priority for rule in hits)
        best = [rule for rule in hits if rule.priority == top]
        assert len(best) == 1, f"two rules of one priority at {packet.at} for {packet}"
        assert best[0].out_port != packet.in_port, f"a switch does not send a packet back: {packet}"
        port = packet.in_port if best[0].out_port == IN_PORT else best[0].out_port
        at, in_port = self.ends[packet.at, port]
        eth_dst = best[0].eth_dst or packet.eth_dst
        return replace(packet, eth_dst=eth_dst, at=at, in_port=in_port, passed=(*packet.passed, packet.at))

    def arrived(self, packet: Packet) -> bool:
        """Whether the packet has reached a GPU; asserts that it is the right one, with the headers as it was sent."""
        gpu = next((gpu for gpu in self.fabric.gpus if gpu.name == packet.at), None)
        if gpu is None:
            return False
        assert (gpu.ip, gpu.mac) == (packet.dst, packet.eth_dst), f"{gpu.name} drops {packet}"
        return True

    def walk(self, packet: Packet) -> tuple[str, ...]:
        """The switches that the packet passes until it arrives, with the tables as they are."""
        seen = set()
        while not self.arrived(packet):
            state = (packet.at, packet.in_port, packet.eth_dst)
            assert state not in seen, f"a loop: {packet}"
            seen.add(state)
            packet = self.step(packet)
        return packet.passed


@cache
def within(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


def matches(match: Match, packet: Packet) -> bool:
    return (
        (match.in_port is None or match.in_port == packet.in_port)
        and (match.eth_dst is None or match.eth_dst == packet.eth_dst)
        and (match.src is None or within(packet.src, match.src))
        and (match.dst is None or within(packet.dst, match.dst))
    )


def removes(message: Remove, rule: Rule) -> bool:
    """OpenFlow's non-strict delete: the cookie under its mask, and a match at least as narrow as the message's."""
    if rule.cookie & message.mask != message.cookie & message.mask:
        return False
    wide, narrow = message.match, rule.match
    for asked, has in ((wide.src, narrow.src), (wide.dst, narrow.dst)):
        if asked is not None and (has is None or not ip_network(has).subnet_of(ip_network(asked))):  # type: ignore[arg-type]
            return False
    return wide.in_port in (None, narrow.in_port) and wide.eth_dst in (None, narrow.eth_dst)
