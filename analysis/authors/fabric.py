"""The fabric of the authors' simulator: eight GPUs in two datacenters, and five routers between their border switches.

Nodes have numbers: GPUs are 0 to 7, with 0 to 3 in the first datacenter. The border switches of the first datacenter
are 8 and 9, those of the second 10 and 11. Routers are 12 to 16. A link has its drawn capacity in both directions.
"""

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt

SITES = (range(4), range(4, 8))
"""The GPUs of each datacenter."""
GPUS, NODES = 8, 17
_BORDERS = ((8, 9), (10, 11))
_ROUTERS = range(12, NODES)
_GATES = (_ROUTERS[0], _ROUTERS[3])
"""For each datacenter, the router that both of its border switches are linked to."""
_BETWEEN_ROUTERS = ((12, 13), (12, 16), (13, 14), (14, 15), (14, 16), (15, 16))

LINKS: Sequence[tuple[int, int]] = (
    *(pair for site in SITES for pair in combinations(site, 2)),
    *((gpu, border) for site, borders in zip(SITES, _BORDERS, strict=True) for gpu in site for border in borders),
    *((border, gate) for borders, gate in zip(_BORDERS, _GATES, strict=True) for border in borders),
    *_BETWEEN_ROUTERS,
)
"""The two end nodes of each link, the lower number first."""

_ENDS_AT_GPU = np.array([min(link) < GPUS for link in LINKS])
NOMINAL_GBPS: npt.NDArray[np.float64] = np.where(_ENDS_AT_GPU, 200.0, 100.0)
"""The nominal capacity of each link, [links] Gbit/s; a draw is a share of it."""

GPU_LINK_DELAY_S = 7e-7

LINK: npt.NDArray[np.int64] = np.full((NODES, NODES), -1)
"""The index of the link between two nodes, -1 if they are not linked."""
for _index, (_a, _b) in enumerate(LINKS):
    LINK[_a, _b] = LINK[_b, _a] = _index
LINK.setflags(write=False)

CHAINS: npt.NDArray[np.int64] = np.array([list(permutations(site)) for site in SITES])
"""All permutations of each datacenter's GPUs, [2, permutations, 4]."""

BORDERS: npt.NDArray[np.int64] = np.array(_BORDERS)
GATES: npt.NDArray[np.int64] = np.array(_GATES)

WAN_PATHS: Sequence[Sequence[int]] = ((12, 16, 15), (12, 13, 14, 15), (12, 16, 14, 15), (12, 13, 14, 16, 15))
"""All simple paths from the first datacenter's gate to the second's."""


def delays_s(wan_delay_s: float) -> npt.NDArray[np.float64]:
    """Return the propagation delay of each link, [links] s: `wan_delay_s` for all links but those of GPUs."""
    return np.where(_ENDS_AT_GPU, GPU_LINK_DELAY_S, wan_delay_s)
