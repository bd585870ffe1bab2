"""The timing model of a ring AllGather, by ring position: `max_plus` on the ring's transfers.

A ring edge has a delay alpha and takes a time beta to send one chunk. In step s = 1 .. n-1 edge r, from ring position r
to position r+1, sends the chunk that position r received in step s-1 (in step 1 its own).
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Compiled, times

Floats = npt.NDArray[np.float64]


def completion_s(edge_alpha_s: Floats, edge_beta_s: Floats) -> Floats:
    """Completion time of K ring AllGathers over n ranks, [K] seconds: when the last chunk has reached its last GPU.

    `edge_alpha_s` and `edge_beta_s`, [K, n] seconds, are by ring position. Raises ValueError for arrays whose shapes
    differ or that hold fewer than two ranks.
    """
    if edge_alpha_s.shape != edge_beta_s.shape or edge_alpha_s.ndim != 2 or edge_alpha_s.shape[1] < 2:
        raise ValueError(f"alpha {edge_alpha_s.shape} and beta {edge_beta_s.shape}: both must be [K, n], n at least 2")
    return _compiled(edge_alpha_s.shape[1]).completion_s(edge_alpha_s.T, edge_beta_s.T)


def transfer_times_s(edge_alpha_s: Floats, edge_beta_s: Floats) -> tuple[Floats, Floats]:
    """When each chunk of one ring AllGather begins to leave and has arrived: [steps, n] seconds each, by ring position.

    `edge_alpha_s` and `edge_beta_s` are [n] seconds.
    """
    n = len(edge_alpha_s)
    found = times(_transfers(n), edge_alpha_s[:, None], edge_beta_s[:, None])
    return found.begins_s.reshape(n - 1, n), found.arrives_s.reshape(n - 1, n)


class _Transfer(NamedTuple):
    flow: int
    after: tuple[int, ...]
    amount: float = 1.0


def _transfers(n: int) -> tuple[_Transfer, ...]:
    """The transfers of a ring AllGather, step by step, each waiting for the one before it on the ring."""
    return tuple(
        _Transfer(position, () if step == 0 else ((step - 1) * n + (position - 1) % n,))
        for step in range(n - 1)
        for position in range(n)
    )


@cache
def _compiled(n: int) -> Compiled:
    return Compiled(_transfers(n))
