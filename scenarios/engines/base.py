"""What an engine is: something that tells how long each collective of a setting takes in each mode.

The command asks one engine or several for the same settings and treats what they answer alike.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from analysis.results.rows import Rows
from scenarios.spec.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """Some collectives in a row of one mode at one setting, `setting` being its place in what the engine was given."""

    setting: int
    mode: str
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class Again:
    """A point that failed and is tried once more; `why` is a sentence that names it."""

    setting: int
    mode: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A point that was given up; `why` is a sentence that names it."""

    setting: int
    mode: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the machine was like that a point ran on; `moment` is "before" or "after" its collectives."""

    setting: int
    mode: str
    moment: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Struck:
    """What became of a fault (`trial.Account`, but for None where a number never was)."""

    setting: int
    mode: str
    account: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What a point has begun to do, in words: "collective 3: the AllGather"."""

    setting: int
    mode: str
    doing: str


News = Slice | Again | Failed | Seen | Struck | Doing
Have = Callable[[int, str, int, int], bool]
"""Whether the collectives start .. stop-1 of a mode at a setting are there already: (setting, mode, start, stop)."""


def nothing(_setting: int, _mode: str, _start: int, _stop: int) -> bool:
    """The `Have` of a run that begins."""
    return False


class Engine(Protocol):
    """A way to run collectives, by reckoning or by doing."""

    @property
    def name(self) -> str:
        """The engine as results name it."""

    def run(self, settings: Sequence[Scenario], have: Have = nothing) -> Generator[News, None, None]:
        """Every collective of every mode of every setting that is not there yet, in slices of any size and order.

        A setting is a scenario without a sweep. A slice may have collectives that are there, as a point that was cut
        short may be run anew. What fails is tried again once, unless that would hide a wrong result, and Failed when it
        fails again; the rest goes on.
        Closing the generator ends the run and leaves nothing behind.
        """
