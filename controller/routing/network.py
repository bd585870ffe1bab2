"""The fabric as arrays, for compiled loops."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
