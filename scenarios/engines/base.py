"""The interface of an engine: something that gives the completion time of each collective in each mode.

The command runs one engine or several over the same configurations and treats their events alike.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from analysis.results.rows import Rows
from scenarios.spec.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineEvent:
    """An event of a point: of one mode of the configuration with this index among those that the engine was given."""

    setting: int
    mode: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice(EngineEvent):
    """Consecutive collectives."""

    rows: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Retrying(EngineEvent):
    """The point failed and is tried once more; `why` is a sentence that names it."""

    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Failed(EngineEvent):
    """The point was given up; `why` is a sentence that names it."""

    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot(EngineEvent):
    """The state of the machine that the point ran on; `moment` is "before" or "after" its collectives."""

    moment: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class FaultOutcome(EngineEvent):
    """What came of one fault: a row of `fault_outcomes`."""

    account: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Activity(EngineEvent):
    """What the point begins to do: "collective 3: the AllGather"."""

    doing: str


IsStored = Callable[[int, str, int, int], bool]
"""Whether the collectives start .. stop-1 of a mode of a configuration are stored: (setting, mode, start, stop)."""


def none_stored(_setting: int, _mode: str, _start: int, _stop: int) -> bool:
    """The `IsStored` of a new run."""
    return False


class Engine(Protocol):
    """A way to run collectives, computed or measured."""

    @property
    def name(self) -> str:
        """The engine as results name it."""

    def run(
        self, settings: Sequence[Scenario], is_stored: IsStored = none_stored
    ) -> Generator[EngineEvent, None, None]:
        """Every collective of every mode of every configuration that is not stored, in slices of any size and order.

        A configuration is a scenario without a sweep. A slice may repeat stored collectives, as a point that ended
        early may be run anew. A point that fails is tried once more, unless that would hide a wrong result, and is
        Failed when it fails again; the rest goes on. Closing the generator ends the run and every process of it.
        """
