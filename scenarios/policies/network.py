"""The fabric and a schedule as arrays, for compiled loops."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Network(NamedTuple):
    """The fabric: `site` of each rank [n]; `inside` [n, n], the link between ranks of a site; `up` [n, B] and `down`
    [B, n], the links to and from border routers; `between` [S, S, P], the candidate paths of two sites, -1 after the
    last one; `ends` [paths, 2], their border routers; `wan` [paths, H], their links, -1 after the last one; the delays
    of these, `wan_delay_s` [paths], and of all links, `delay_s` [links]."""

    site: Ints
    inside: Ints
    up: Ints
    down: Ints
    between: Ints
    ends: Ints
    wan: Ints
    wan_delay_s: Floats
    delay_s: Floats


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
