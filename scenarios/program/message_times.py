"""What the ranks of a script tell of the messages of a collective, from which a policy can measure links. Pure.

Measured ends (`beliefs.MeasuredEnds`) need of each message when it was handed over and when it had arrived. Messages of
less than a full packet show nothing: what they take on a link is mostly headers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosts.collectives.kinds import Workload
from scenarios.policies.measured_knowledge import rates_from_messages
from topologies.fabric.ports import SharedLinks
from topologies.shaping.classes import FRAME_BYTES

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankMessages:
    """A rank's messages by task: when each was handed over and its bytes, and when each had arrived, in ns of one clock
    of all ranks."""

    sent: Mapping[int, tuple[int, int]]
    arrived: Mapping[int, int]


def rates_shown(
    workload: Workload,
    places: Sequence[int],
    crossings: Mapping[tuple[int, int], int],
    told: Sequence[RankMessages],
    *,
    shared: SharedLinks,
    shared_delays_s: Floats,
) -> Floats:
    """Return the rates that a collective's messages show, [links or ports] bit/s, NaN for links that show none.

    `places` has the GPU at each place of the schedule, `crossings` the WAN path of every two GPUs in two sites, and
    `told` what each rank has told. Raises ValueError if a message is missing.
    """
    begins, ends = workload.schedule.ends
    count = len(workload.schedule.transfers)
    sent = {task: one for rank in told for task, one in rank.sent.items()}
    arrived = {task: at_ns for rank in told for task, at_ns in rank.arrived.items()}
    if not sent.keys() == arrived.keys() == set(range(count)):
        raise ValueError(f"{len(sent):,} messages were sent and {len(arrived):,} have arrived; allowed: {count:,} each")
    src, dst = (np.array([places[place] for place in side], np.int16) for side in (begins, ends))
    path = np.array([crossings.get(pair, -1) for pair in zip(src.tolist(), dst.tolist(), strict=True)], np.int16)
    zero_ns = min(at_ns for at_ns, _ in sent.values())  # so that the times are exact as floats
    return rates_from_messages(
        workload,
        shared.of(src, dst, path),
        shared_delays_s,
        sent_s=np.array([sent[task][0] - zero_ns for task in range(count)]) / 1e9,
        arrived_s=np.array([arrived[task] - zero_ns for task in range(count)]) / 1e9,
        sizes_bytes=[sent[task][1] for task in range(count)],
        least_bytes=FRAME_BYTES,
    )
