"""Schedules as GOAL: the text says what the schedule does, and LogGOPSim's times of it are the model's."""

import re

import numpy as np
import pytest

from analysis.model.max_plus import times
from hosts.collectives import goal
from hosts.collectives.kinds import ALGORITHMS, schedule
from hosts.collectives.schedule import Schedule

SLOT_BYTES, DELAY_NS = 100_000.0, 1000.0

# What LogGOPSim (commit 76451de of its public repository) prints of this text, converted by its txt2bin, with
# -L 1000 -o 0 -g 0 -G 1 -O 0 -S 1000000000: a network in which each rank has one port each way of 8 Gbit/s, and s bytes
# take s - 1 ns. These are the schedules in which a rank sends and receives one message at a time.
LOGGOPSIM_NS = {
    ((2, 2), "allgather", "ring"): 302997,
    ((2, 2), "allgather", "halving-doubling"): 301998,
    ((2, 2), "allreduce", "ring"): 605994,
    ((2, 2), "allreduce", "halving-doubling"): 603996,
    ((2, 2), "allreduce", "chain"): 605994,
    ((2, 2), "broadcast", "chain"): 302997,
    ((2, 2), "gather", "tree"): 301998,
    ((4, 4), "allgather", "ring"): 706993,
    ((4, 4), "reducescatter", "halving-doubling"): 702997,
    ((4, 4), "allreduce", "ring"): 1413986,
    ((4, 4), "allreduce", "halving-doubling"): 1405994,
    ((4, 4), "reduce", "chain"): 706993,
    ((4, 4), "broadcast", "hierarchical"): 403996,
    ((4, 4), "scatter", "tree"): 702997,
    ((3, 2), "allgather", "ring"): 403996,
    ((3, 2), "allreduce", "ring"): 807992,
}


def last_ns(found: Schedule) -> float:
    """When the last transfer has arrived by the model."""
    flows = len(found.flows), 1
    return float(times(found.transfers, np.full(flows, DELAY_NS), np.full(flows, SLOT_BYTES)).arrives_s.max())


@pytest.mark.parametrize("case", LOGGOPSIM_NS, ids=str)
def test_the_model_takes_as_long_as_loggopsim(case: tuple[tuple[int, ...], str, str]) -> None:
    sites, kind, algorithm = case
    found = schedule(kind, algorithm, sites=sites)
    model_ns = last_ns(found)
    assert model_ns == pytest.approx(LOGGOPSIM_NS[case], rel=1e-4)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_text_alone_gives_the_same_times(kind: str) -> None:
    for algorithm in ALGORITHMS[kind]:
        found = schedule(kind, algorithm, sites=(3, 2), pieces=2)
        placement = [3, 0, 4, 1, 2]
        ours = last_ns(found)
        text = goal.text(found, placement=placement, slot_bytes=SLOT_BYTES)
        assert last_arrival_ns(text, ranks=5) == pytest.approx(ours, rel=1e-12), algorithm


def last_arrival_ns(text: str, *, ranks: int) -> float:
    """When the last message has arrived by a GOAL text, each pair of ranks with a link of its own, a byte a ns.

    A send that requires the one before it begins when that has left.
    """
    assert text.startswith(f"num_ranks {ranks}\n")
    size, left, arrived, waits = {}, {}, {}, {}
    for rank, block in enumerate(re.findall(r"rank \d+ \{\n(.*?)\n\}", text, re.DOTALL)):
        for line in block.splitlines():
            if match := re.fullmatch(r"s(\d+): send (\d+)b to (\d+) tag (\d+) nic \d+", line):
                assert match[1] == match[4]
                assert f"r{match[1]}: recv {match[2]}b from {rank} tag {match[1]} nic" in text
                size[match[1]] = int(match[2])
            elif match := re.fullmatch(r"s(\d+) requires ([sr])(\d+)", line):
                waits.setdefault(match[1], []).append((match[2], match[3]))
            else:
                assert re.fullmatch(r"r\d+: recv \d+b from \d+ tag \d+ nic \d+", line), line
    for tag in sorted(size, key=int):
        begin = max((left[one] if what == "s" else arrived[one] for what, one in waits.get(tag, ())), default=0.0)
        left[tag] = begin + size[tag]
        arrived[tag] = left[tag] + DELAY_NS
    return max(arrived.values())


def test_a_placement_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 0\]"):
        goal.text(schedule("allgather", "ring", sites=(1, 1)), placement=[0, 0], slot_bytes=1)
