"""How a collective's transfers shared links: their times against those of max-min fair shares, and Jain's index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Transfer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the transfers of one collective got of what max-min fair shares would have given them.

    `quickest` and `slowest` are the least and the greatest of their times over the fair ones. `fairness` is the least
    of the links' indices and `link` that link's name; NaN and "" where no link was shared.
    """

    quickest: float
    slowest: float
    fairness: float
    link: str


def jain_index(shares: Floats) -> float:
    """Jain's fairness index of shares: 1 where all are equal, 1/n where one of n has everything.

    (sum x)^2 / (n sum x^2), of Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984, where a share is a flow's throughput over its fair one.
    """
    return float(shares.sum() ** 2 / (shares.size * (shares**2).sum()))


def busy_s(transfers: Sequence[Transfer], begins_s: Floats, arrives_s: Floats) -> Floats:
    """For how long each transfer was under way, [T] s: from when it could begin, or the one before it on its flow had
    arrived if that was later, until it had arrived itself."""
    since_s = begins_s.copy()
    last: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        if transfer.flow in last:
            since_s[index] = max(since_s[index], arrives_s[last[transfer.flow]])
        last[transfer.flow] = index
    return arrives_s - since_s


def shares(measured_s: Floats, fair_s: Floats, links: Mapping[str, Sequence[int]]) -> Shares:
    """The shares of transfers that took `measured_s` and would fairly have taken `fair_s`, [T] s each, above 0.

    `links` has by name the transfers that took each shared link. A transfer's share is fair_s / measured_s, as its
    throughput over its max-min fair one. One that took no time has none: it was there, and its connection waited for a
    lost frame of the one before it.
    """
    ratios = measured_s / fair_s
    used = {name: ratios[list(users)] for name, users in links.items()}
    indices = {name: jain_index(1 / found[found > 0]) for name, found in used.items() if (found > 0).any()}
    worst = min(indices, key=lambda name: indices[name], default="")
    return Shares(
        quickest=float(ratios.min()),
        slowest=float(ratios.max()),
        fairness=indices.get(worst, np.nan),
        link=worst,
    )
