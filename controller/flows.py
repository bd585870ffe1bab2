"""Flow rules, and the messages that install and remove them, as values: the part of OpenFlow 1.3 that is used here.

Every rule is for IPv4. Which rules there are is left to `rules`, sending them to `switches`.
"""

from dataclasses import dataclass, field

STANDING_PRIORITY = 100
TURN_PRIORITY = 110  # a standing rule for what would otherwise leave by the port it came in by
ROUTE_PRIORITY = 200

IN_PORT = 0xFFFF_FFF8
"""OpenFlow's OFPP_IN_PORT; a switch drops what an ordinary port number would send back where it came from."""

ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF
LAST_GENERATION = 0xFFFF_FFFF

_OURS = 0x4C48 << 48  # "LH"
_ROUTE = 1 << 32
STANDING_COOKIE = _OURS
ROUTES_COOKIE, ROUTES_MASK = _OURS | _ROUTE, ALL_BITS ^ LAST_GENERATION
"""The cookie and mask that all routes of all generations answer to, and no standing rule does."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a rule matches: IPv4 addresses or networks ("10.0.0.1", "10.1.0.0/24"), the port in, the MAC address to."""

    src: str | None = None
    dst: str | None = None
    in_port: int | None = None
    eth_dst: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A flow entry: rewrites the destination's MAC address where `eth_dst` says so, then sends out of `out_port`."""

    priority: int
    cookie: int
    match: Match
    out_port: int
    eth_dst: str | None = None


@dataclass(frozen=True, kw_only=True)
class Install:
    """Add a rule to a switch; it takes the place of one with the same match and priority, in one stroke."""

    switch: str
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete the rules of a switch whose cookie is this under the mask and which match no more than `match`."""

    switch: str
    cookie: int
    mask: int = ALL_BITS
    match: Match = field(default_factory=Match)


Message = Install | Remove
Stage = tuple[Message, ...]
"""Messages that may take effect in any order; every switch has confirmed all of its own before the next stage."""


def route_cookie(generation: int) -> int:
    """The cookie of the routes of a generation, 1 to LAST_GENERATION."""
    return ROUTES_COOKIE | generation


def tag(number: int) -> str:
    """The MAC address that stands for the destination's while a packet follows a route with a tag of this number.

    Locally administered, and never a GPU's. Number 0 stands for no route: the standing rules alone.
    """
    return ":".join(f"{byte:02x}" for byte in b"\x06\x4c" + number.to_bytes(4, "big"))
