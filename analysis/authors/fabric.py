"""The fabric of the authors' simulator: eight GPUs in two datacenters, and five routers between their border switches.

Nodes are numbered: GPUs 0 to 7, the first four in one datacenter; its border switches 8 and 9, the other's 10 and 11;
routers 12 to 16. Links are undirected: what is drawn of one counts for both directions.
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
"""The router that both border switches of a datacenter are linked to."""
_BETWEEN_ROUTERS = ((12, 13), (12, 16), (13, 14), (14, 15), (14, 16), (15, 16))

LINKS: Sequence[tuple[int, int]] = (
    *(pair for site in SITES for pair in combinations(site, 2)),
    *((gpu, border) for site, borders in zip(SITES, _BORDERS, strict=True) for gpu in site for border in borders),
    *((border, gate) for borders, gate in zip(_BORDERS, _GATES, strict=True) for border in borders),
    *_BETWEEN_ROUTERS,
)
"""The two nodes of each link, the lower first."""

_OF_GPUS = np.array([min(link) < GPUS for link in LINKS])
NOMINAL_GBPS: npt.NDArray[np.float64] = np.where(_OF_GPUS, 200.0, 100.0)
"""The capacity of which a draw gives a share, [links] Gbit/s."""

GPU_LINK_DELAY_S = 7e-7

LINK: npt.NDArray[np.int64] = np.full((NODES, NODES), -1)
"""The link between two nodes, -1 where there is none."""
for _index, (_a, _b) in enumerate(LINKS):
    LINK[_a, _b] = LINK[_b, _a] = _index
LINK.setflags(write=False)

CHAINS: npt.NDArray[np.int64] = np.array([list(permutations(site)) for site in SITES])
"""All orders of a datacenter's GPUs, [2, orders, 4]."""

BORDERS: npt.NDArray[np.int64] = np.array(_BORDERS)
GATES: npt.NDArray[np.int64] = np.array(_GATES)

WAN_PATHS: Sequence[Sequence[int]] = ((12, 16, 15), (12, 13, 14, 15), (12, 16, 14, 15), (12, 13, 14, 16, 15))
"""All simple paths from the first datacenter's gate to the second's."""


def delays_s(wan_delay_s: float) -> npt.NDArray[np.float64]:
    """The propagation delay of each link, [links] s: `wan_delay_s` of those that are not a GPU's."""
    return np.where(_OF_GPUS, GPU_LINK_DELAY_S, wan_delay_s)
