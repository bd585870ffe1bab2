"""Schedules of collectives: what they deliver, and the detection of broken schedules."""

import random
from collections import Counter
from dataclasses import replace
from itertools import cycle, islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.collectives.algorithms import ring_allgather
from hosts.collectives.kinds import ALGORITHMS, contents, schedule
from hosts.collectives.schedule import Schedule, ScheduleError, Transfer, prove, then

CASES = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


def carried_out(found: Schedule, kind: str, sites: tuple[int, ...], seed: int) -> None:
    """Execute a schedule on numbers, in a random order that flows and dependencies allow, and check every sum.

    Independent of `prove`: real buffers, real additions, and messages that are in flight for any time.
    """
    n, rng = sum(sites), random.Random(seed)
    values = np.random.default_rng(seed).integers(1, 1 << 40, (n, found.slots))
    holds, wanted = contents(kind, places=n, slots=found.slots, scratch=found.scratch)
    buffers = [[int(values[p, s]) if holds[p][s] else 0 for s in range(found.slots)] for p in range(n)]
    left: set[int] = set()
    arrived: set[int] = set()
    flying: dict[int, list[tuple[int, list[int]]]] = {}
    queue = {flow: [i for i, t in enumerate(found.transfers) if t.flow == flow] for flow in range(len(found.flows))}
    while len(arrived) < len(found.transfers):
        ready = [("send", f) for f, q in queue.items() if q and set(found.transfers[q[0]].after) <= arrived]
        kind_of, flow = rng.choice(ready + [("arrive", f) for f, q in flying.items() if q])
        if kind_of == "send":
            index = queue[flow].pop(0)
            left.add(index)
            data = [buffers[found.flows[flow].src][slot] for slot, _ in found.transfers[index].slots]
            flying.setdefault(flow, []).append((index, data))
        else:
            index, data = flying[flow].pop(0)
            transfer, here = found.transfers[index], buffers[found.flows[flow].dst]
            for (_, slot), value in zip(transfer.slots, data, strict=True):
                here[slot] = here[slot] + value if transfer.adds else value
            arrived.add(index)
    for place in range(n):
        for slot, want in enumerate(wanted[place]):
            if want:
                bits = [i for i in range(n * found.slots) if want >> i & 1]
                right = sum(int(values[divmod(bit, found.slots)]) for bit in bits)
                assert buffers[place][slot] == right, f"slot {slot} of place {place}"


def test_a_sendrecv_sends_to_the_next_rank_and_an_alltoallv_in_proportion_to_the_distance() -> None:
    """nccl-tests' alltoallv sends d / (n (n - 1) / 2) of a rank's bytes to the rank d after it."""
    for n, pieces in ((2, 1), (5, 1), (6, 3)):
        for kind in ("sendrecv", "alltoallv"):
            found = schedule(kind, "direct", sites=(n - 1, 1), pieces=pieces)
            sent = np.zeros((n, n))
            for transfer in found.transfers:
                flow = found.flows[transfer.flow]
                sent[flow.src, flow.dst] += len(transfer.slots) / (found.slots / 2)
            away = (np.arange(n)[None, :] - np.arange(n)[:, None]) % n
            assert sent == pytest.approx(1.0 * (away == 1) if kind == "sendrecv" else away / (n * (n - 1) / 2))
    with pytest.raises(ScheduleError, match="alltoallv among 65 GPUs; allowed: up to 64"):
        schedule("alltoallv", "direct", sites=(32, 33))


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_algorithm_does_its_collective_under_any_order_of_arrivals(
    kind: str, algorithm: str, data: st.DataObject
) -> None:
    sites = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    channels = data.draw(st.integers(1, 3)) if algorithm == "ring" else 1
    found = schedule(kind, algorithm, sites=sites, channels=channels, pieces=data.draw(st.integers(1, 3)))
    carried_out(found, kind, sites, data.draw(st.integers(0, 2**32)))


CHANGES = ("drop", "duplicate", "slot", "adds", "after", "flow")


def mutated(found: Schedule, change: str, rng: random.Random) -> Schedule | None:
    """Return the schedule with one change of this kind, or None if there is nothing to change."""
    transfers = list(found.transfers)
    fit = {
        "after": [index for index, t in enumerate(transfers) if t.after],
        "slot": list(range(len(transfers))) if found.slots > 1 else [],
        "flow": list(range(len(transfers))) if len(found.flows) > 1 else [],
    }.get(change, list(range(len(transfers))))
    if not fit:
        return None
    index = rng.choice(fit)
    transfer = transfers[index]
    if change in ("drop", "duplicate"):
        by = -1 if change == "drop" else 1
        renumbered = [tuple(one + by * (one > index) for one in t.after if by > 0 or one != index) for t in transfers]
        transfers = [replace(t, after=after) for t, after in zip(transfers, renumbered, strict=True)]
        transfers[index : index + 1] = [transfers[index]] * (1 + by)
    elif change == "slot":
        (a, b), *rest = transfer.slots
        other = rng.choice([slot for slot in range(found.slots) if slot != a])
        transfers[index] = replace(transfer, slots=((other, b), *rest))
    elif change == "adds":
        transfers[index] = replace(transfer, adds=not transfer.adds)
    elif change == "after":
        dropped = rng.choice(transfer.after)
        transfers[index] = replace(transfer, after=tuple(one for one in transfer.after if one != dropped))
    else:
        other = rng.choice([flow for flow in range(len(found.flows)) if flow != transfer.flow])
        transfers[index] = replace(transfer, flow=other)
    return replace(found, transfers=tuple(transfers))


def test_a_thousand_mutated_schedules_fail_the_proof_or_still_do_their_collective() -> None:
    rng = random.Random(7)
    done, refused = Counter(), Counter()
    for (kind, algorithm), change in islice(cycle(product(CASES, CHANGES)), 1200):
        sites = rng.choice([(2, 2), (3, 2), (4, 4), (2, 2, 2)])
        mutant = mutated(schedule(kind, algorithm, sites=sites, pieces=rng.choice([1, 2])), change, rng)
        if mutant is None:
            continue
        done[change] += 1
        try:
            prove(mutant, *contents(kind, places=mutant.places, slots=mutant.slots))
        except ScheduleError:
            refused[change] += 1
            continue
        for seed in range(20):  # accepted mutants are correct, e.g. with a duplicate copy
            carried_out(mutant, kind, sites, seed)
    assert done.total() >= 1000 and set(done) == set(CHANGES)
    assert refused["drop"] == done["drop"] and all(refused[change] > 0 for change in CHANGES), (refused, done)


def test_unknown_kinds_algorithms_and_options_are_refused() -> None:
    for asked, words in (
        ({"kind": "allsum", "algorithm": "ring"}, "allsum"),
        ({"kind": "alltoall", "algorithm": "ring"}, "direct"),
        ({"kind": "allreduce", "algorithm": "tree", "channels": 2}, "2 channels"),
        ({"kind": "allreduce", "algorithm": "ring", "sites": (1,)}, "1 GPUs"),
    ):
        with pytest.raises(ScheduleError, match=words):
            schedule(**{"sites": (2, 2)} | asked)


def test_a_schedule_with_invalid_flows_slots_or_dependencies_is_refused() -> None:
    ring = ring_allgather(3)
    for transfer, words in (
        (Transfer(flow=9, slots=((0, 0),)), "flow 9"),
        (Transfer(flow=0, slots=((5, 0),)), "slot 5"),
        (Transfer(flow=0, slots=((0, 0),), after=(99,)), "waits for transfer 99"),
        (Transfer(flow=0, slots=((0, 0), (1, 0))), "each once"),
    ):
        with pytest.raises(ScheduleError, match=words):
            prove(replace(ring, transfers=(*ring.transfers, transfer)), *contents("allgather", places=3, slots=3))


def test_chained_schedules_that_race_with_each_other_are_refused() -> None:
    with pytest.raises(ScheduleError, match="may still send"):
        then(ring_allgather(4), ring_allgather(4))  # the second could overwrite a block that the first has yet to send
