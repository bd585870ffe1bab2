"""How fairly a collective's transfers shared links: their times relative to max-min fair shares, and Jain's index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Transfer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How the transfers of one collective compare with max-min fair sharing.

    `quickest` and `slowest` are the minimum and maximum of measured time / time with fair shares. `fairness` is the
    lowest fairness index of all shared links and `link` the name of that link; NaN and "" if no link was shared.
    """

    quickest: float
    slowest: float
    fairness: float
    link: str


def jain_index(shares: Floats) -> float:
    """Return Jain's fairness index of shares: 1 if all are equal, 1/n if one of n has everything.

    (sum x)^2 / (n sum x^2): Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984; a share x is a flow's throughput over its fair throughput.
    """
    return float(shares.sum() ** 2 / (shares.size * (shares**2).sum()))


def busy_s(transfers: Sequence[Transfer], begins_s: Floats, arrives_s: Floats) -> Floats:
    """Return how long each transfer was in progress, [T] s: from the time when it could begin, or when the previous one
    on its flow arrived if that was later, until its own arrival."""
    since_s = begins_s.copy()
    last: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        if transfer.flow in last:
            since_s[index] = max(since_s[index], arrives_s[last[transfer.flow]])
        last[transfer.flow] = index
    return arrives_s - since_s


def shares(measured_s: Floats, fair_s: Floats, links: Mapping[str, Sequence[int]]) -> Shares:
    """Compare the measured times of transfers with those under max-min fair sharing, `fair_s` > 0, [T] s each.

    `links` maps the name of each shared link to the transfers that used it. A transfer's share is fair_s / measured_s,
    which is its throughput over its max-min fair throughput. A transfer that took no time has no share: its data had
    arrived already, but its connection was waiting for a lost frame of the previous transfer.
    """
    ratios = measured_s / fair_s
    used = {name: ratios[list(users)] for name, users in links.items()}
    indices = {name: jain_index(1 / on_link[on_link > 0]) for name, on_link in used.items() if (on_link > 0).any()}
    worst = min(indices, key=lambda name: indices[name], default="")
    return Shares(
        quickest=float(ratios.min()),
        slowest=float(ratios.max()),
        fairness=indices.get(worst, np.nan),
        link=worst,
    )
