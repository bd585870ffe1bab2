"""One collective as it was measured."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One collective as it was measured.

    `completion_s` is from the first beginning to the last end over all ranks. `ring` is in the order of the ring, and
    `path` the index in `Fabric.paths` for each of its edges, -1 within a site. `drops` counts packets lost anywhere.
    `attempts` is how often it was begun, `faults` are those in force when its ring and paths were chosen (their places
    in the scenario, from 0), and `undisturbed` tells that nothing else happened to it: the model can speak of it.
    Since the first beginning, in ns: `start_ns[rank]` when each rank began, `arrived_ns[rank][step - 1]` when it had
    received the chunk of each step whole.
    """

    collective: int
    completion_s: float
    ring: tuple[int, ...]
    path: tuple[int, ...]
    reembedded: bool
    rerouted: bool
    drops: int
    late: bool
    start_ns: tuple[int, ...]
    arrived_ns: tuple[tuple[int, ...], ...]
    attempts: int = 1
    faults: tuple[int, ...] = ()
    undisturbed: bool = True
