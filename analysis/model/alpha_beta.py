"""The timing model: when every chunk of a ring AllGather leaves and arrives, and when all have.

A ring edge has a delay alpha and takes a time beta to send one chunk. In step s = 1 .. n-1 edge r, from ring position r
to position r+1, sends the chunk that position r received in step s-1 (in step 1 its own). GPUs store and forward, and
an edge sends one chunk at a time:

    F(s, r) = max(A(s-1, r-1), F(s-1, r)) + beta_r      the chunk has left, whole
    A(s, r) = F(s, r) + alpha_r                         it has arrived, whole

with A(0, .) = F(0, .) = 0; completion is the greatest A(n-1, .). Exact for this model, a max-plus recursion (Baccelli
et al., "Synchronization and Linearity", 1992); nothing is random in it.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BATCH = 4096  # collectives at a time: the clocks of a ring of 16 then stay in the second-level cache


def completion_s(edge_alpha_s: Floats, edge_beta_s: Floats) -> Floats:
    """Completion time of K ring AllGathers over n ranks, [K] seconds: when the last chunk has reached its last GPU.

    `edge_alpha_s` and `edge_beta_s`, [K, n] seconds, are by ring position. Raises ValueError for arrays whose shapes
    differ or that hold fewer than two ranks.
    """
    if edge_alpha_s.shape != edge_beta_s.shape or edge_alpha_s.ndim != 2 or edge_alpha_s.shape[1] < 2:
        raise ValueError(f"alpha {edge_alpha_s.shape} and beta {edge_beta_s.shape}: both must be [K, n], n at least 2")
    completion = np.empty(len(edge_alpha_s))
    for start in range(0, len(completion), _BATCH):
        batch = slice(start, start + _BATCH)
        *_, arrived_s = _times(edge_alpha_s[batch].T, edge_beta_s[batch].T)
        completion[batch] = arrived_s.max(axis=0)
    return completion


def transfer_times_s(edge_alpha_s: Floats, edge_beta_s: Floats) -> tuple[Floats, Floats]:
    """When each chunk of one ring AllGather begins to leave and has arrived: [steps, n] seconds each, by ring position.

    `edge_alpha_s` and `edge_beta_s` are [n] seconds.
    """
    *leaves_s, _ = (times[:, 0].copy() for times in _times(edge_alpha_s[:, None], edge_beta_s[:, None]))
    return np.array(leaves_s), np.array(leaves_s) + edge_beta_s + edge_alpha_s


def _times(alpha_s: Floats, beta_s: Floats) -> Iterator[Floats]:
    """For each step when every edge begins to send, and at last when the last chunks have arrived: [n, K] each.

    The same array each time, ranks first, so that a batch stays in the cache.
    """
    alpha_s, beta_s = np.ascontiguousarray(alpha_s), np.ascontiguousarray(beta_s)
    sent, received = np.zeros_like(beta_s), np.zeros_like(beta_s)
    for _ in range(len(beta_s) - 1):
        np.maximum(sent[1:], received[:-1], out=sent[1:])
        np.maximum(sent[0], received[-1], out=sent[0])
        yield sent
        sent += beta_s
        np.add(sent, alpha_s, out=received)
    yield received
