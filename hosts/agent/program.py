"""What a rank does in a collective, as the communicator tells its agent.

Every byte that arrives can be checked by itself. A rank begins with data of its own in some slots; each such slot is a
*window* into one pool of words that all ranks have, times a number of the rank where sums are made. What a slot holds
later is a sum of *terms*, each a window times a coefficient: one rank's number for a copy, and the sum of those of all
ranks that contributed for a sum.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Term = tuple[int, int]
"""A window, by its number in the collective, and its coefficient modulo 2^32."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """Send these slots as one message; without slots, `size_bytes` of a window times the rank's multiplier.

    `after` are the tasks of this rank, arrivals and computations, that it waits for.
    """

    task: int
    slots: tuple[int, ...] = ()
    size_bytes: int = 0
    window: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Receive:
    """A message that arrives: its slots here, the terms of each, and the use (an index) that each is a part of.

    Without slots it is `size_bytes` with the only terms that there are.
    """

    task: int
    slots: tuple[int, ...] = ()
    terms: tuple[tuple[Term, ...], ...] = ()
    uses: tuple[int, ...] = ()
    adds: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Compute for so many ns, after these tasks of this rank."""

    task: int
    duration_ns: int
    after: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Use:
    """What a slot holds from the first message that arrives in it until nobody needs it: one use of a buffer.

    `arrivals` are the messages that write it, `tasks` those and the ones that send it. `total` are the terms of the
    finished sum where it is not sent on, to a rank that would check it; else it is empty.
    """

    arrivals: int = 0
    tasks: int = 0
    total: tuple[Term, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """A rank's part of a schedule.

    `sends` are by connection, (rank, channel) of the other end, in the order in which the schedule first uses them;
    `receives` in the order of (rank, channel); `computations` by stream. `own` are pairs (slot, window) of what the
    rank begins with, times its `multiplier`; `buffers` is how many buffers of a slot it needs if all messages arrive in
    the order in which they were sent. `sizes` are pairs (slot, bytes) where slots are of several sizes, else none; all
    slots of a message have one.
    """

    sends: tuple[tuple[int, int, tuple[Send, ...]], ...] = ()
    receives: tuple[tuple[int, int, tuple[Receive, ...]], ...] = ()
    computations: tuple[tuple[Computation, ...], ...] = ()
    own: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    uses: tuple[Use, ...] = ()
    multiplier: int = 1
    buffers: int = 0

    def as_json(self) -> dict[str, Any]:
        """The program as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Program":
        """The program that `as_json` gave this object for."""

        def ends(name: str, kind: type) -> Any:
            return tuple((rank, channel, _made(kind, tasks)) for rank, channel, tasks in found[name])

        return cls(
            sends=ends("sends", Send),
            receives=ends("receives", Receive),
            computations=tuple(_made(Computation, tasks) for tasks in found["computations"]),
            own=_tuples(found["own"]),
            sizes=_tuples(found["sizes"]),
            uses=_made(Use, found["uses"]),
            multiplier=found["multiplier"],
            buffers=found["buffers"],
        )


def _made(kind: type, objects: list[dict[str, Any]]) -> Any:
    return tuple(kind(**{name: _tuples(value) for name, value in one.items()}) for one in objects)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
