"""What a collective showed once it had ended, in any world."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from scenarios.policies.situation import Action

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """S readings of the byte counters of L links or ports: `sent_bytes` [S, L], for the indices `link` [L]. Each value
    was read at an instant between `since_s` and `until_s` [S, L], seconds from the collective's start."""

    link: npt.NDArray[np.int32]
    since_s: Floats
    until_s: Floats
    sent_bytes: npt.NDArray[np.int64]


def readings(counters: npt.NDArray[np.int64]) -> Readings:
    """Build `Readings` from rows [S * L, 4], link by link: link or port, earliest and latest instant in ns, bytes."""
    link, first = np.unique(counters[:, 0], return_index=True)
    _, since_ns, until_ns, sent = counters.reshape(max(1, link.size), -1, 4).transpose(2, 1, 0)
    return Readings(
        link=counters[np.sort(first), 0].astype(np.int32),
        since_s=since_ns / 1e9,
        until_s=until_ns / 1e9,
        sent_bytes=sent,
    )


class NotMeasuredError(ValueError):
    """Raised where a policy looks at a collective that is not measured; the message is one sentence."""


@dataclass(frozen=True)
class SkippedOutcome:
    """The outcome of a collective that was not run, because only some are measured: the action is carried out before
    the next one, and nothing was observed."""

    number: int
    action: Action

    def __getattr__(self, name: str) -> Any:
        raise NotMeasuredError(f"collective {self.number} is not measured (collective.emulated)")


class Outcome(Protocol):
    """What was observed of collective `number`, before which `action` was carried out.

    `placement` [n] is the rank at each place, and `path` [F] the WAN path of each flow, -1 within a site. `links`,
    [F, H], are the links or ports that flows passed, -1 for unused entries. `sent_s` and `arrived_s`, [T] s, are when
    each message was handed over and had arrived. `readings` are those of the counters that the policy has read. A world
    may compute all of them when they are asked for.
    """

    @property
    def number(self) -> int: ...
    @property
    def action(self) -> Action: ...
    @property
    def placement(self) -> npt.NDArray[np.int16]: ...
    @property
    def path(self) -> npt.NDArray[np.int16]: ...
    @property
    def links(self) -> npt.NDArray[np.int32]: ...
    @property
    def sent_s(self) -> Floats: ...
    @property
    def arrived_s(self) -> Floats: ...
    @property
    def readings(self) -> Readings: ...
