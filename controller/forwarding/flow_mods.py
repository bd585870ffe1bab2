"""Flow rules, and the messages that install and remove them, as values: the part of OpenFlow 1.3 that is used here.

Rules of tunnels match the destination MAC only; all others match IPv4. `rules` creates messages, `switches` sends them.
"""

from dataclasses import dataclass, field

DEFAULT_PRIORITY = 100
TURN_PRIORITY = 110  # of default rules that send packets back out of their input port
TUNNEL_PRIORITY = 200
ROUTE_PRIORITY = 200  # at leaves, where there are no tunnel rules
SPREADING_PRIORITY = 205  # also at leaves
FLOW_PRIORITY = 210  # also at leaves

IN_PORT = 0xFFFF_FFF8
"""OpenFlow's OFPP_IN_PORT. A switch drops a packet instead of sending it back out of its input port by port number."""

ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF
LAST_GENERATION = 0x7FFF_FFFF

_OURS = 0x4C48 << 48  # "LH"
_ROUTE = 1 << 32
_OF_FLOW = 1 << 31
_OF_CHANNELS = 1 << 40
_SPINE_SHIFT = 24  # the path's index takes the bits below
DEFAULT_COOKIE = _OURS
ROUTES_COOKIE, ROUTES_MASK = _OURS | _ROUTE, ALL_BITS ^ (LAST_GENERATION | _OF_FLOW | _OF_CHANNELS)
"""The cookie and mask that match all routes of all generations, and no other rule."""
TUNNEL_COOKIE = _OURS | 2 << 32


@dataclass(frozen=True, kw_only=True)
class Match:
    """The match of a rule: source and destination as IPv4 addresses or networks ("10.0.0.1", "10.1.0.0/24"), TCP source
    port, input port, destination MAC. None matches everything. With `channel` it is a match of the second table, of the
    packets to which a spreading rule has given this channel."""

    src: str | None = None
    dst: str | None = None
    in_port: int | None = None
    eth_dst: str | None = None
    tcp_src: int | None = None
    channel: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A flow entry that sets the packet's MACs to `eth_dst` and `eth_src`, if given, and sends it out of `out_port`.

    A spreading rule, with `channels`, instead gives the packet one of so many channels, by a hash of its addresses and
    ports with `seed`, and hands it on to the second table.
    """

    priority: int
    cookie: int
    match: Match
    out_port: int = 0
    eth_dst: str | None = None
    eth_src: str | None = None
    channels: int = 0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Install:
    """Adds a rule to a switch, atomically replacing a rule with the same match and priority."""

    switch: str
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Deletes a switch's rules whose cookie equals `cookie` under `mask` and whose match is within `match`."""

    switch: str
    cookie: int
    mask: int = ALL_BITS
    match: Match = field(default_factory=Match)


Message = Install | Remove
Stage = tuple[Message, ...]
"""Messages that may take effect in any order. Every switch confirms its messages before the next stage is sent."""


def route_cookie(generation: int, *, of_flow: bool = False, of_channels: bool = False) -> int:
    """Return the cookie of a generation's routes (1 to LAST_GENERATION): those of pairs of GPUs, those of flows, or
    with `of_channels` the spreading rules and, if also `of_flow`, the routes of channels."""
    return ROUTES_COOKIE | generation | (_OF_FLOW if of_flow else 0) | (_OF_CHANNELS if of_channels else 0)


def tunnel_over(path: int, spine: int = -1) -> int:
    """Return the number of the tunnel over the WAN path with index `path` and then through the destination site's spine
    with index `spine`, -1 for the spine that the default rules take."""
    return spine + 1 << _SPINE_SHIFT | path


def path_and_spine(tunnel: int) -> tuple[int, int]:
    """Return the indices of a tunnel's path and spine; the inverse of `tunnel_over`."""
    return tunnel & (1 << _SPINE_SHIFT) - 1, (tunnel >> _SPINE_SHIFT) - 1


def tunnel_tag(tunnel: int) -> str:
    """Return the MAC address that replaces the destination's inside a tunnel, and the source's up to the destination.

    It is locally administered, and never the address of a GPU.
    """
    return _tag(tunnel + 1)


def tunnels_match(path: int, *, left: bool = False) -> str:
    """Return tc's u32 match of the packets in any tunnel over the WAN path with this index or, with `left`, of packets
    that have left such a tunnel."""
    tag, offset = tunnel_tag(tunnel_over(path)).split(":"), -8 if left else -14  # of a MAC, before the IP header
    pair = f"match u16 0x{tag[0]}{tag[1]} 0xffff at {offset} match u16 0x{tag[4]}{tag[5]} 0xffff at {offset + 4}"
    return f"{pair} match u8 0x{tag[3]} 0xff at {offset + 3}"


def _tag(number: int) -> str:
    return ":".join(f"{byte:02x}" for byte in b"\x06\x4c" + number.to_bytes(4, "big"))


NO_TUNNEL = _tag(0)
"""The MAC address that default rules give to packets over the WAN: as destination and, at leaves, also as source."""
