"""A program: the part of a schedule that one rank executes, in the form in which the communicator sends it to an agent.

A program lets the agent verify every arriving byte by itself. A rank has data of its own in some slots at the start.
Each such slot is a *window* into one pool of words common to all ranks; where sums are computed, it is multiplied by
the rank's multiplier. The later content of a slot is a sum of *terms*, each a window times a coefficient: the
multiplier of one rank for a copy, and the sum of the multipliers of all contributing ranks for a sum.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Term = tuple[int, int]
"""A window, by its index in the collective, and its coefficient modulo 2^32."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """A message to send: these slots or, without slots, the first `size_bytes` of a window times the rank's multiplier.

    `after` are the tasks of this rank (arrivals and computations) that must be done first.
    """

    task: int
    slots: tuple[int, ...] = ()
    size_bytes: int = 0
    window: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Receive:
    """A message to receive: its slots on this rank, the terms of each, and the index of each slot's use.

    With `adds` the message is added to the slots. A message without slots has `size_bytes`, and `terms` has one entry.
    """

    task: int
    slots: tuple[int, ...] = ()
    terms: tuple[tuple[Term, ...], ...] = ()
    uses: tuple[int, ...] = ()
    adds: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A computation of `duration_ns`, which starts after the tasks `after` of this rank."""

    task: int
    duration_ns: int
    after: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Use:
    """One use of a slot's buffer: from the first message that writes it to the last task that needs the content.

    `arrivals` counts the messages that write it; `tasks` counts these and the messages that send it. `total` are the
    terms of the finished sum if no message sends it on (its receiver would verify it), and otherwise empty.
    """

    arrivals: int = 0
    tasks: int = 0
    total: tuple[Term, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """A rank's part of a schedule.

    `sends` has an entry per outgoing connection: rank and channel of the other end, and the messages in order. The
    connections are in the order in which the schedule first uses them. `receives` has the same per incoming connection,
    ordered by rank and channel. `computations` has an entry per stream. `own` are pairs (slot, window) of the rank's
    initial data, which is multiplied by `multiplier`. `buffers` is the number of buffers that the rank needs if all
    messages arrive in the order in which they were sent. `sizes` are pairs (slot, bytes) if slots differ in size, and
    otherwise empty; all slots of one message have the same size.
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
        """Return the program as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Program":
        """Return the program of an object made by `as_json`."""

        def connections(name: str, kind: type) -> Any:
            return tuple((rank, channel, _objects(kind, tasks)) for rank, channel, tasks in content[name])

        return cls(
            sends=connections("sends", Send),
            receives=connections("receives", Receive),
            computations=tuple(_objects(Computation, tasks) for tasks in content["computations"]),
            own=_tuples(content["own"]),
            sizes=_tuples(content["sizes"]),
            uses=_objects(Use, content["uses"]),
            multiplier=content["multiplier"],
            buffers=content["buffers"],
        )


def message_bytes(task: Send | Receive, sizes: Mapping[int, int], slot_bytes: int) -> int:
    """Return the size of a message in bytes; `sizes` are those of slots that differ from `slot_bytes`."""
    return len(task.slots) * sizes.get(task.slots[0], slot_bytes) if task.slots else task.size_bytes


def _objects(kind: type, objects: list[dict[str, Any]]) -> Any:
    return tuple(kind(**{name: _tuples(value) for name, value in fields.items()}) for fields in objects)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
