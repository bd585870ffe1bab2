"""The record of a collective that the testbed has run: what was chosen for it, and what was measured."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reconfiguration:
    """The changes before a collective: whether the mode re-embedded and re-routed, and what that cost.

    `took_ns` is the time from the start of choosing the placement until the controller had installed the paths,
    `messages` the number of OpenFlow messages; both are None if neither a placement nor paths were chosen. Of a network
    on several machines, `took_ns` is this machine's.
    """

    reembedded: bool = False
    rerouted: bool = False
    took_ns: int | None = None
    messages: int | None = None


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """The measurement of one collective. All times are in ns; optional fields are None if they were not measured.

    - `placement`: the rank at each position of the schedule.
    - `path`: for each flow the index in `Fabric.paths` of its WAN path, -1 within a site.
    - `reembedded`, `rerouted`, `reconfigure_*`: the `Reconfiguration` before it.
    - `start_ns[rank]`: the beginning of each rank; `sent_ns`, `arrived_ns`: by transfer of the schedule
      (`hosts.communicator.Completed`). All are since the first rank began.
    - `drops`: packets lost anywhere; if the configuration has faults, also those that links lose by these, in frames.
    - `retransmitted_bytes`: payload that TCP retransmitted; None if an agent has died since, and over verbs.
    - `later`: the paths of all flows after each change of tunnels during the collective.
    - `counters`: rows of a link or port (index), the two instants between which its counter was read, since the
      collective's beginning, and the bytes that it had sent since the first reading.
    - `probes`: rows of source, destination, path, and the instants at which the probe was sent and had arrived, since
      the first was sent.
    - `moved`: rows of a change of conditions (from 0 on) at which paths were chosen, and the path of every flow, for
      modes that re-route during a collective; `reconfigure_messages` includes the messages for that.
    - `late`: whether timers were later than the shaping allows for.
    - `faults`: the indices of the faults in force when placement and paths were chosen.
    - `undisturbed`: whether nothing else happened to the collective, so that the model can predict it.
    """

    collective: int
    placement: tuple[int, ...]
    path: tuple[int, ...]
    reembedded: bool
    rerouted: bool
    reconfigure_ns: int | None
    reconfigure_messages: int | None
    start_ns: tuple[int, ...]
    sent_ns: tuple[int, ...]
    arrived_ns: tuple[int, ...]
    drops: int
    retransmitted_bytes: int | None = None
    later: tuple[tuple[int, ...], ...] | None = None
    counters: tuple[tuple[int, ...], ...] | None = None
    probes: tuple[tuple[int, ...], ...] | None = None
    moved: tuple[tuple[int, ...], ...] | None = None
    late: bool
    faults: tuple[int, ...]
    undisturbed: bool

    @property
    def completion_s(self) -> float:
        """The time from the first rank's beginning to the last arrival, in seconds."""
        return (max(self.arrived_ns) - min(self.start_ns)) / 1e9

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the testbed's output: `completion_s` and `reconfigure_s` in seconds, without None."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.reconfigure_ns is not None:
            fields["reconfigure_s"] = fields.pop("reconfigure_ns") / 1e9
        return fields | {"completion_s": self.completion_s}
