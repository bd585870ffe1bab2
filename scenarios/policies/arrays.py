"""A schedule, and what could be chosen before collectives, as arrays for compiled loops."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ranks = npt.NDArray[np.int16]


class Work(NamedTuple):
    """The schedule: the places of each flow, `src` and `dst` [F], `is_stream` [F], and `is_first` [F], whether it is
    the first between its places; `flow` and `amount` of each transfer [T] and, in CSR form, the transfers that it waits
    for, `after_at` [T + 1] and `after`; the bits of a slot, and of the message for which paths are compared."""

    src: Ints
    dst: Ints
    is_stream: Bools
    is_first: Bools
    flow: Ints
    amount: Floats
    after_at: Ints
    after: Ints
    slot_bits: float
    message_bits: float


class Anew(NamedTuple):
    """The best placements, [K, n], their paths, [K, F], and their predicted times, [K] s."""

    ranks: Ranks
    path: Ranks
    seconds: Floats
