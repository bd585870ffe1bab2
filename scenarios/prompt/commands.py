"""What the prompt can be told to do, as values. Pure."""

from dataclasses import dataclass


class PromptError(Exception):
    """What was typed cannot be done: one sentence with the offending word and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Resample:
    """New conditions: the next ones, or the first of another seed."""

    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A logical link's rate, by the link's index."""

    link: int
    rate_bps: int


@dataclass(frozen=True, kw_only=True)
class Delay:
    """A logical link's delay, by the link's index."""

    link: int
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A ring: "best", "rank", ranks in order, or None to show the one there is."""

    order: str | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class SetMode:
    """A mode by its name, or None to show the one there is."""

    name: str | None


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """So many AllGathers of chunks of this size."""

    chunk_bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Flows:
    """The flow rules of a switch."""

    switch: str


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A capture of a link, by its index, into a file; both None to end the captures under way."""

    link: int | None
    file: str | None


@dataclass(frozen=True, kw_only=True)
class Iperf:
    """TCP from one rank to another for so many seconds."""

    src: int
    dst: int
    seconds: int


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A cable between two nodes, to go up or down."""

    a: str
    b: str
    up: bool


@dataclass(frozen=True)
class Wan:
    """The WAN links."""


@dataclass(frozen=True)
class Paths:
    """The WAN paths of the ring."""


Command = Resample | Rate | Delay | Ring | SetMode | AllGather | Flows | Capture | Iperf | Cable | Wan | Paths
