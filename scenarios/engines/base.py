"""The interface of engines: an engine computes or measures the completion time of each collective in each mode. The
command runs one or several engines over the same configurations and handles their events alike."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from analysis.results.rows import Rows
from scenarios.spec.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineEvent:
    """An event of a point, given by its mode and the index `setting` of its configuration in the engine's arguments."""

    setting: int
    mode: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice(EngineEvent):
    """The results of consecutive collectives."""

    rows: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Retrying(EngineEvent):
    """The point failed and is tried once more; `why` is a sentence that names the point and the error."""

    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Failed(EngineEvent):
    """The point was given up; `why` is a sentence that names the point and the error. With `is_final` it would fail
    again in the same way."""

    why: str
    is_final: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot(EngineEvent):
    """The state of the machine that the point ran on; `moment` is "before" or "after" its collectives."""

    moment: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class FaultOutcome(EngineEvent):
    """The outcome of one fault, as `analysis.statistics.fault_outcomes` returns it."""

    account: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Activity(EngineEvent):
    """The point begins a new step, such as "collective 3: the AllGather"."""

    doing: str


IsStored = Callable[[int, str, int, int], bool]
"""(configuration's index, mode, start, stop) -> whether collectives start .. stop-1 of this point are stored."""


def none_stored(_config: int, _mode: str, _start: int, _stop: int) -> bool:
    """Return False: the `IsStored` of a new run."""
    return False


class Engine(Protocol):
    """Computes or measures collectives."""

    @property
    def name(self) -> str:
        """The engine's name in results."""

    @property
    def jobs(self) -> int:
        """How many of its parts run beside each other."""

    def run(self, configs: Sequence[Scenario], is_stored: IsStored = none_stored) -> Generator[EngineEvent, None, None]:
        """Run all collectives of all modes of the configurations that are not stored; yields events in any order.

        `configs` are configurations, that is scenarios without a sweep. Slices may have any size and may repeat stored
        collectives, because a point that ended early may be run from its start. A point that fails is tried once more,
        unless that would hide a wrong result; if it fails again, it is reported as Failed and the others continue.
        Closing the generator ends the run and all its processes.
        """
