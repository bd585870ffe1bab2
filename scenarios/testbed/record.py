"""What the testbed records: one record for each collective, and the events around faults."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Event = Mapping[str, Any]
"""Something that happened because of a fault; its kinds and fields are in `analysis.statistics.fault_outcomes`."""


@dataclass(frozen=True)
class Reconfiguration:
    """What was changed before a collective: whether the mode chose its ring and its paths anew, and the time from
    before its ring was chosen until the controller had its paths in force, with the OpenFlow messages that this took;
    None where neither a ring was chosen nor paths were asked for.
    """

    reembedded: bool = False
    rerouted: bool = False
    took_ns: int | None = None
    messages: int | None = None


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """One collective as it was measured; all times are in ns.

    `ring` is in the order of the ring, `path` the index in `Fabric.paths` for each of its edges, -1 within a site.
    `reembedded`, `rerouted` and `reconfigure_*` are of its `Reconfiguration`. `drops` counts packets lost anywhere.
    `late`: timers were later than the shaping allows for. `attempts` is how often it was begun, `faults` are those in
    force when its ring and paths were chosen (their indices in the scenario), and `undisturbed` is True where the model
    can predict it: nothing else happened to it.

    Since the first rank began, `start_ns[rank]` is when each rank began and `arrived_ns[rank][step - 1]` when it had
    received the chunk of each step whole.
    """

    collective: int
    ring: tuple[int, ...]
    path: tuple[int, ...]
    reembedded: bool
    rerouted: bool
    reconfigure_ns: int | None
    reconfigure_messages: int | None
    start_ns: tuple[int, ...]
    arrived_ns: tuple[tuple[int, ...], ...]
    drops: int
    late: bool
    attempts: int
    faults: tuple[int, ...]
    undisturbed: bool

    @property
    def completion_s(self) -> float:
        """From the first beginning to the last end, seconds."""
        return (max(arrived[-1] for arrived in self.arrived_ns) - min(self.start_ns)) / 1e9

    def as_json(self) -> dict[str, Any]:
        """The fields as the testbed prints them: with `completion_s` and `reconfigure_s` in seconds, without None."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.reconfigure_ns is not None:
            fields["reconfigure_s"] = fields.pop("reconfigure_ns") / 1e9
        return fields | {"completion_s": self.completion_s}
