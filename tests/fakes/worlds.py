"""A world without a network: every flow takes as long as its links say, whatever the others do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from scenarios.policies.play import Player
from scenarios.policies.situation import Action

Floats = npt.NDArray[np.float64]


@dataclass
class FakeWorld:
    """Collectives of one message on each of `pairs`; conditions are `rates_bps`, a row of [links] for each collective.

    It records what was `done`: by collective, the ranks and the paths that were in force, None for the fixed paths.
    """

    rates_bps: Floats
    player: Player
    done: list[tuple[list[int], list[int] | None]] = field(default_factory=list)

    def run(self, number: int, decide: Callable[[], Action]) -> Any:
        action = decide()
        placement, routing = self.player.in_force.after(action)
        self.done.append((placement.ranks.tolist(), None if routing is None else routing.path.tolist()))
        arrived_s = 8e6 / self.rates_bps[number]
        return SimpleNamespace(number=number, action=action, sent_s=np.zeros_like(arrived_s), arrived_s=arrived_s)


class FakeChoices:
    """Two places and two paths of a link each: the faster path is the best, and ranks are in the order of the rates."""

    in_order = np.array([0, 1], np.int16)
    arrays = None

    def placements(self, rates_bps: Floats) -> npt.NDArray[np.int16]:
        return np.argsort(rates_bps, axis=1, kind="stable").astype(np.int16)

    def paths(self, placement: Any, rates_bps: Floats, *, chosen: bool) -> npt.NDArray[np.int16]:
        best = rates_bps.argmax(axis=1) if chosen else np.zeros(len(rates_bps))
        return best[:, None].astype(np.int16)

    def seconds(self, placement: Any, path: Any, rates_bps: Floats) -> Floats:
        return 8e6 / np.take_along_axis(rates_bps, path.astype(np.intp), axis=1)[:, 0]
