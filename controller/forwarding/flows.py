"""Flow rules, and the messages that install and remove them, as values: the part of OpenFlow 1.3 that is used here.

Rules are for IPv4, but those of tunnels, which look at the destination MAC alone. `rules` makes them, `switches` sends
them.
"""

from dataclasses import dataclass, field

DEFAULT_PRIORITY = 100
TURN_PRIORITY = 110  # a default rule for packets to send back out of their input port
TUNNEL_PRIORITY = 200
ROUTE_PRIORITY = 200  # at leaves, which no tunnel passes
FLOW_PRIORITY = 210  # also at leaves

IN_PORT = 0xFFFF_FFF8
"""OpenFlow's OFPP_IN_PORT; a switch drops a packet that its port's number would send back out of its input port."""

ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF
LAST_GENERATION = 0x7FFF_FFFF

_OURS = 0x4C48 << 48  # "LH"
_ROUTE = 1 << 32
_OF_FLOW = 1 << 31
_SPINE_SHIFT = 24  # there are fewer paths than that
DEFAULT_COOKIE = _OURS
ROUTES_COOKIE, ROUTES_MASK = _OURS | _ROUTE, ALL_BITS ^ (LAST_GENERATION | _OF_FLOW)
"""The cookie and mask that match all routes of all generations, and no other rule."""
TUNNEL_COOKIE = _OURS | 2 << 32


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a rule matches: IPv4 addresses or networks ("10.0.0.1", "10.1.0.0/24"), TCP source port, input port,
    destination MAC."""

    src: str | None = None
    dst: str | None = None
    in_port: int | None = None
    eth_dst: str | None = None
    tcp_src: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A flow entry: sets the MACs to `eth_dst` and `eth_src`, if given, and sends the packet out of `out_port`."""

    priority: int
    cookie: int
    match: Match
    out_port: int
    eth_dst: str | None = None
    eth_src: str | None = None


@dataclass(frozen=True, kw_only=True)
class Install:
    """Add a rule to a switch; it replaces one with the same match and priority atomically."""

    switch: str
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete a switch's rules whose cookie is this under the mask and whose match is at least as narrow as `match`."""

    switch: str
    cookie: int
    mask: int = ALL_BITS
    match: Match = field(default_factory=Match)


Message = Install | Remove
Stage = tuple[Message, ...]
"""Messages that may take effect in any order; every switch has confirmed all of its own before the next stage."""


def route_cookie(generation: int, *, of_flow: bool = False) -> int:
    """The cookie of the routes of a generation, 1 to LAST_GENERATION: of pairs of GPUs, or of flows."""
    return ROUTES_COOKIE | generation | (_OF_FLOW if of_flow else 0)


def tunnel_over(path: int, spine: int = -1) -> int:
    """The number of the tunnel over the WAN path of that index, and behind it through the spine of that index in its
    site, -1 for the one that the default rules take."""
    return spine + 1 << _SPINE_SHIFT | path


def over(tunnel: int) -> tuple[int, int]:
    """The path and the spine of a tunnel; the inverse of `tunnel_over`."""
    return tunnel & (1 << _SPINE_SHIFT) - 1, (tunnel >> _SPINE_SHIFT) - 1


def tunnel_tag(tunnel: int) -> str:
    """The MAC address that replaces the destination's in the tunnel of that number, and the source's from there on.

    Locally administered, and never a GPU's.
    """
    return _tag(tunnel + 1)


def tunnels_match(path: int, *, left: bool = False) -> str:
    """tc's u32 match of packets in any tunnel over the WAN path of that index, or of those that have `left` it."""
    tag, at = tunnel_tag(tunnel_over(path)).split(":"), -8 if left else -14
    pair = f"match u16 0x{tag[0]}{tag[1]} 0xffff at {at} match u16 0x{tag[4]}{tag[5]} 0xffff at {at + 4}"
    return f"{pair} match u8 0x{tag[3]} 0xff at {at + 3}"


def _tag(number: int) -> str:
    return ":".join(f"{byte:02x}" for byte in b"\x06\x4c" + number.to_bytes(4, "big"))


NO_TUNNEL = _tag(0)
"""The MAC address that the default rules give packets on their way over the WAN, for both ends of it at the leaf."""
