"""The one evaluator of a schedule's times: many instances under constant conditions, or one whose network changes.

All rules are those of `fluid`, whose event loop computes all times where flows may share links or the network changes.
Where neither is the case, the recursion of `max_plus` gives the same times, bit for bit, several times as fast.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from analysis.model import fluid, max_plus
from analysis.model.fluid import Classes, Links
from analysis.model.max_plus import CompiledSchedule, Floats, Times, Transfer

if TYPE_CHECKING:
    from analysis.model import fluid_jit


class Unshared(NamedTuple):
    """The networks of K instances in which no two flows share a link: for each flow its delay and the time of a slot,
    [K, F] s; 0 and 1 for a stream."""

    delay_s: Floats
    slot_s: Floats


class Shared(NamedTuple):
    """The networks of K instances in which flows may share links; the fields are the parameters of `fluid.times`."""

    links: Links
    capacity_bps: Floats
    delay_s: Floats
    classes: Classes | None = None


class Evaluator:
    """A schedule that is evaluated in any number of networks, with slots of `slot_bytes`.

    `compiled` returns the schedule compiled for `max_plus`; by default it is compiled here when it is needed. Raises
    the errors of `fluid.times` and `max_plus.times`.
    """

    def __init__(
        self,
        transfers: Sequence[Transfer],
        *,
        flows: int,
        slot_bytes: float,
        compiled: Callable[[], CompiledSchedule] | None = None,
    ) -> None:
        self._transfers, self._flows, self._slot_bytes = transfers, flows, slot_bytes
        self._compiled = compiled or (lambda: CompiledSchedule(transfers))

    @cached_property
    def _unshared(self) -> CompiledSchedule:
        return self._compiled()

    @cached_property
    def _program(self) -> "fluid_jit.Program":
        return fluid.program_of(self._transfers, self._flows)

    def completion_s(self, network: Unshared | Shared) -> Floats:
        """Return when the last transfer of each instance arrives, [K] s."""
        if isinstance(network, Unshared):
            return self._unshared.completion_s(network.delay_s.T, network.slot_s.T)
        links, capacity_bps, delay_s, classes = network
        return fluid.completion_s(
            self._program, links, capacity_bps, delay_s, slot_bytes=self._slot_bytes, classes=classes
        )

    def times(self, network: Unshared | Shared) -> Times:
        """Return when every transfer begins, leaves and arrives; `fluid.SharedTimes` where flows may share links."""
        if isinstance(network, Unshared):
            return max_plus.times(self._transfers, network.delay_s.T, network.slot_s.T)
        links, capacity_bps, delay_s, classes = network
        return fluid.times(self._program, links, capacity_bps, delay_s, slot_bytes=self._slot_bytes, classes=classes)

    def runs(
        self, network: Shared, *, packet_bytes: float = 0.0, queued_at: Links | None = None
    ) -> Iterator[fluid.Run]:
        """Yield a run of each instance, whose network may change while it runs, as `fluid.runs` does."""
        links, capacity_bps, delay_s, classes = network
        return fluid.runs(
            self._program,
            links,
            capacity_bps,
            delay_s,
            slot_bytes=self._slot_bytes,
            classes=classes,
            packet_bytes=packet_bytes,
            queued_at=queued_at,
        )
