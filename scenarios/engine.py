"""What an engine is: something that tells how long each collective of a setting takes in each mode.

The command asks one engine or several for the same settings and treats what they answer alike.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scenarios.spec import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """What is known beside the time of collectives that were run, [K] each: the model's prediction for the same
    conditions (seconds), packets dropped anywhere, and the ring and the WAN paths used, [K, n]."""

    predicted_s: npt.NDArray[np.float64]
    drops: npt.NDArray[np.int64]
    ring: npt.NDArray[np.int16]
    path: npt.NDArray[np.int16]


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """The completion times (seconds) of some collectives, the first being `start`, of one mode at one setting.

    `setting` is the place in the settings that the engine was given; `measured` is None where times are reckoned.
    """

    setting: int
    mode: str
    start: int
    completion_s: npt.NDArray[np.float64]
    measured: Measured | None = None


class Engine(Protocol):
    """A way to run collectives, by reckoning or by doing."""

    @property
    def name(self) -> str:
        """The engine as results name it."""

    def run(self, settings: Sequence[Scenario]) -> Generator[Slice, None, None]:
        """Every collective of every mode of every setting once, in slices of any size and order.

        A setting is a scenario without a sweep. Closing the generator ends the run and leaves nothing behind.
        """
