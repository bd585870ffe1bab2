"""The physical limits: where real TCP and queues differ from the timing model, as known before a run. Pure.

This is the one list of them. A limit has a condition of a configuration, a sentence for users, and the source of the
limit. Users are told the sentences before a run (`scenarios.spec.notes`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from analysis.statistics.shared_link_notes import Note, Valued, by_sentence
from hosts.agent.messages import LABEL_BYTES
from hosts.agent.transport import VERBS, Transport
from hosts.collectives.rank_programs import flow_bytes, small_message_bytes
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import delays_s, ranges_bps, sampler
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import VIRTUAL_LATE_S
from topologies.shaping.frames import TCP_FRAMES, Frames
from topologies.units import format_delay, format_rate, format_size

TOLD_ERROR = 1e-3
"""Users are told of small messages whose times may differ from the model's by more than this share."""
MAX_EXACT_BPS = 400e9
"""The fastest links at which HTB was found to keep rates (docs/validation.md)."""
MIN_STEADY_S = 200e-6
"""The shortest time between changes of conditions at which measured times were found to be the model's."""
MAX_QUEUED_S = 80.0
"""The longest time that a connection's bytes may wait at a link: TCP resends after at most 120 s (TCP_RTO_MAX)."""
_MAX_ROWS = 1000  # of a trace, whose rates are looked at

Floats = npt.NDArray[np.float64]


class Load(Protocol):
    """What limits depend on; without messages of known sizes their sizes are None."""

    @property
    def fastest_bps(self) -> float:
        """The highest rate of any link, bit/s."""

    @property
    def slowest_bps(self) -> float:
        """The lowest rate of any link that is up, bit/s."""

    @property
    def every_s(self) -> float | None:
        """The time between changes of conditions; None if they are constant while messages are sent."""

    @property
    def under_way_bytes(self) -> float:
        """The most bytes that a connection across the WAN needs under way: its rate, alone, times its round trip."""

    @property
    def connection_bytes(self) -> int | None:
        """The bytes of the busiest connection in a collective."""

    @property
    def message_bytes(self) -> int | None:
        """The bytes of the largest message of a flow, for the flow for which they are least."""

    @property
    def transport(self) -> Transport:
        """What carries the messages."""


@dataclass(frozen=True, kw_only=True)
class KnownLoad:
    """A `Load` of given values, for studies that are not scenarios."""

    fastest_bps: float
    slowest_bps: float
    message_bytes: int | None
    connection_bytes: int | None
    under_way_bytes: float = 0.0
    every_s: float | None = None
    transport: Transport = field(default_factory=Transport)


class ScenarioLoad:
    """The `Load` of a configuration, computed when needed. A program's messages are not known."""

    def __init__(self, config: Scenario) -> None:
        self.config = config

    @cached_property
    def _fabric(self) -> Fabric:
        return build_fabric(self.config.fabric)

    @cached_property
    def _rates_bps(self) -> Floats:
        """The lowest and the highest rate of every link, [2, links] bit/s."""
        spec = self.config.conditions
        if spec.trace is None and spec.load is None:
            return ranges_bps(self._fabric, spec)
        drawn = sampler(self._fabric, spec, seed=self.config.run.seed)
        rows = drawn.rates_bps(0, min(drawn.limit or _MAX_ROWS, self.config.collective.count, _MAX_ROWS))
        return np.stack([rows.min(axis=0), rows.max(axis=0)])

    @property
    def every_s(self) -> float | None:
        return self.config.conditions.every_s

    @property
    def transport(self) -> Transport:
        return self.config.transport

    @property
    def fastest_bps(self) -> float:
        return float(self._rates_bps[1].max())

    @property
    def slowest_bps(self) -> float:
        return float(self._rates_bps[0][self._rates_bps[0] > 0].min(initial=np.inf))

    @cached_property
    def under_way_bytes(self) -> float:
        links = links_in_grain(self._fabric)
        delay_s, high_bps = delays_s(self._fabric, self.config.conditions), links.slowest_bps(self._rates_bps[1:])[0]
        delay_s = links.delays_s(delay_s)
        most = 0.0
        for path in self._fabric.paths:
            on_path = list(path.links)
            most = max(most, 2 * float(delay_s[on_path].sum()) * float(high_bps[on_path].min()) / 8)
        return most

    @cached_property
    def connection_bytes(self) -> int | None:
        return None if self.config.program.is_run else flow_bytes(self.config.carried_workload)

    @cached_property
    def message_bytes(self) -> int | None:
        return None if self.config.program.is_run else small_message_bytes(self.config.carried_workload)


@dataclass(frozen=True)
class Limit:
    """A physical limit: what it `rests_on` (its source), and `sentence`, which returns why a configuration is beyond
    it, None if it is not. The emulation refuses to run beyond a limit that `is_refused`."""

    rests_on: str
    sentence: Callable[[Load], Note | None]
    is_refused: bool = False


def small_message_error(message_bytes: int, slowest_bps: float, frames: Frames = TCP_FRAMES) -> float:
    """Return by which share of a message's transmission time the emulation may differ from the model.

    A message has the headers of every begun frame, and rates include only those of full frames. A label follows it, and
    acknowledgements, of at most that size, share the opposite link. At the slowest link it may be early by the lateness
    that classes make up for.
    """
    sent = (frames.wire_bytes(message_bytes) + 2 * frames.wire_bytes(LABEL_BYTES)) / frames.wire_per_payload
    return max(sent / message_bytes - 1, slowest_bps / 8 * VIRTUAL_LATE_S / message_bytes)


def roughly(size_bytes: float) -> str:
    """Write a size with three digits."""
    return format_size(int(float(f"{size_bytes:.3g}")))


def _window(load: Load) -> Note | None:
    needs, has_bytes = load.under_way_bytes, load.transport.most_under_way_bytes
    if min(needs, np.inf if load.connection_bytes is None else load.connection_bytes) <= has_bytes:
        return None
    window, then = load.transport.window_words, "measured times will be longer than predicted"
    most = f"{has_bytes / 1e9:.3g} GB"
    if load.connection_bytes is None:
        then = "a program's connection alone cannot fill the path"
    return Valued(
        f"a connection needs up to {needs / 1e9:,.3g} GB under way (rate times round trip), and {window} has at "
        f"most {most}: {then}",
        f"a connection needs more under way (rate times round trip) than the {most} of {window}, so {then}",
        f"up to {needs / 1e9:,.3g} GB",
    )


def _small(load: Load) -> Note | None:
    if load.message_bytes is None or not load.connection_bytes:
        return None
    error = small_message_error(load.message_bytes, load.slowest_bps, load.transport.frames)
    if error < TOLD_ERROR:
        return None
    size = "at most a byte" if load.message_bytes <= 1 else format_size(load.message_bytes)
    change = f"{100 * error:.2g} %" if error < 1 else f"a factor of {error + 1:,.0f}"
    why = "are so small that headers, labels and timers, which the model does not have, change the time to send one"
    return Valued(f"messages of {size} {why} by up to {change}", f"messages {why}", f"{size} by up to {change}")


def _fast(load: Load) -> str | None:
    if load.fastest_bps <= MAX_EXACT_BPS:
        return None
    return (
        f"links of up to {format_rate(round(load.fastest_bps))} are faster than the "
        f"{format_rate(round(MAX_EXACT_BPS))} at which the emulation was checked: it rounds a packet's time to whole ns"
    )


def _rounded(load: Load) -> str | None:
    if load.transport.protocol != VERBS:
        return None  # segments of TCP are long enough
    frames, rounding_s = load.transport.frames, 1e-9
    frame_s = 8 * frames.payload_bytes / load.fastest_bps
    if rounding_s / frame_s < TOLD_ERROR:
        return None
    return (
        f"a full frame of RoCE takes {1e9 * frame_s:.0f} ns on links of {format_rate(round(load.fastest_bps))}, and "
        f"the emulation counts whole ns: measured times can be shorter by up to {100 * rounding_s / frame_s:.1g} %"
    )


def _restless(load: Load) -> str | None:
    every_s = load.every_s
    if every_s is None or every_s >= MIN_STEADY_S:
        return None
    return (
        f"conditions change every {format_delay(every_s)}, sooner than the {format_delay(MIN_STEADY_S)} at which the "
        "emulation was checked: packets that are queued have passed links at older rates"
    )


def _waiting(load: Load) -> Note | None:
    waits_s = 8 * (load.connection_bytes or 0) / load.slowest_bps
    if waits_s <= MAX_QUEUED_S:
        return None
    resent = f"TCP resends what waits for more than about {MAX_QUEUED_S:g} s"
    size, then = roughly(load.connection_bytes or 0), "measured times will be longer than predicted"
    return Valued(
        f"the {size} of a connection take {waits_s:,.0f} s at the slowest link, and {resent}: {then}",
        f"{resent}, as the bytes of a connection do at the slowest link, so {then}",
        f"{size} for {waits_s:,.0f} s",
    )


LIMITS: Sequence[Limit] = (
    Limit("RFC 7323, 2.3: a window has at most 2^30 bytes", _window),
    Limit("frames and labels on the wire, and HTB's bursts (topologies/shaping/classes.py)", _small),
    Limit("psched_ratecfg_precompute and l2t_ns in Linux: whole ns per packet (docs/validation.md)", _fast),
    Limit("psched_l2t_ns in Linux: whole ns per packet", _rounded),
    Limit("measured (docs/validation.md, conditions that change by time)", _restless),
    Limit("TCP_RTO_MAX in Linux", _waiting, is_refused=True),
)
"""Every physical limit."""


def notes(loads: Sequence[tuple[str, Load]], *, emulates: bool = False) -> Iterator[str]:
    """Yield a sentence for each limit that loads are beyond, with their labels unless it is all of them; with
    `emulates` only for those with which the emulation runs."""
    for limit in (one for one in LIMITS if not (emulates and one.is_refused)):
        found = [(label, limit.sentence(load)) for label, load in loads]
        yield from by_sentence([(label, [sentence] if sentence else []) for label, sentence in found])


def notes_on(configs: Sequence[Scenario], *, emulates: bool) -> Iterator[str]:
    """Yield the `notes` on configurations, by their labels."""
    yield from notes([(config.label, ScenarioLoad(config)) for config in configs], emulates=emulates)
