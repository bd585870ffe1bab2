"""Rings of agents in the VM: what arrives, how long it takes, what a ring leaves, and what happens when one dies."""

import json
import signal
import sys
from typing import Any

import numpy as np
import pytest

from analysis.timing import completion_s
from hosts.communicator import Communicator
from hosts.transport import Transport
from tests.conftest import PROJECT, VM
from topologies.fabric import FabricSpec, build_fabric

RANK_ORDER = list(range(8))
FABRIC = build_fabric(FabricSpec())
TIMEOUT_S = 300
RATE_BPS = 20e9


def in_vm(vm: VM, what: str, *, memory: str = "2 GiB", **options: Any) -> Any:
    """What a function of tests/guest/ring.py returns."""
    command = [sys.executable, "-m", "tests.guest.ring", what, json.dumps(options)]
    ended = vm.run("--memory", memory, "--", *command, timeout=TIMEOUT_S, cwd=PROJECT)
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def model_s(ring: list[int], edges: dict[str, list[float]], chunk_bytes: int) -> float:
    """What the timing model says of a ring all of whose other edges are infinitely fast."""
    slow = [edges.get(str(rank), [np.inf, 0.0]) for rank in [*ring[1:], ring[0]]]  # the edge into each successor
    alpha, beta = np.array([[[delay for _, delay in slow]], [[8 * chunk_bytes / rate for rate, _ in slow]]])
    return float(completion_s(alpha, beta)[0])


def completion(collective: dict[str, Any]) -> float:
    return (max(arrived[-1] for arrived in collective["arrived_ns"]) - min(collective["start_ns"])) / 1e9


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [8_000_000, 64_000_000])
def test_every_collective_takes_what_its_slow_link_takes_from_the_first_on(vm: VM, chunk_bytes: int) -> None:
    edges = [{"1": [RATE_BPS, delay_s]} for delay_s in (10e-6, 1e-3, 10e-3)]
    found = in_vm(vm, "times", memory="4 GiB", edges=edges, ring=RANK_ORDER, chunk_bytes=chunk_bytes, count=2)
    for shaped, collectives in zip(edges, found, strict=True):
        ((rate_bps, delay_s),) = shaped.values()
        closed_form_s = 7 * 8 * chunk_bytes / rate_bps + delay_s
        assert model_s(RANK_ORDER, shaped, chunk_bytes) == pytest.approx(closed_form_s)
        for collective in collectives:
            assert collective["faults"] == []
            assert completion(collective) == pytest.approx(closed_form_s, rel=0.003)


def test_a_ring_of_slow_links_stores_and_forwards_as_the_model_says_and_again_in_another_boot(vm: VM) -> None:
    ring = [0, 3, 1, 2, 7, 5, 4, 6]
    draw = np.random.default_rng(1)
    edges = [
        {str(rank): [float(draw.uniform(10e9, 40e9)), float(draw.choice([1e-6, 10e-6, 1e-3]))] for rank in ring}
        for _ in range(3)
    ]
    options = {"edges": edges, "ring": ring, "chunk_bytes": 8_000_000, "count": 2}
    found, again = (in_vm(vm, "times", **options) for _ in range(2))
    for shaped, collectives in zip(edges, found, strict=True):
        for collective in collectives:
            # After a pause a link lets its burst of 64 KB pass at once, of the 8 MB that all links carry each step.
            assert completion(collective) == pytest.approx(model_s(ring, shaped, 8_000_000), rel=0.01)
    assert found == again  # to the nanosecond, beginnings included


def test_ordinary_start_up_is_slower_the_first_time_only_as_far_as_tcp_makes_it(vm: VM) -> None:
    edges = [{"1": [RATE_BPS, 10e-3]}]
    options = {"edges": edges, "ring": RANK_ORDER, "chunk_bytes": 8_000_000, "count": 4}
    ((first, *_, last),) = in_vm(vm, "times", transport={"line_rate": False}, **options)
    least_s = model_s(RANK_ORDER, edges[0], 8_000_000)
    assert completion(first) > 1.5 * least_s  # ten segments at first, doubled every 10 ms
    assert least_s * 0.99 < completion(last) < completion(first)


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_every_byte_is_checked_and_a_wrong_one_found_wherever_it_goes(vm: VM) -> None:
    ring = [0, 2, 1, 3, 7, 6, 5, 4]
    flips: list[list[int]] = [[], [0, 1, 0], [7, 7, 299_999], [5, 3, 262_144], []]
    found = in_vm(vm, "damage", chunk_bytes=300_000, ring=ring, flips=flips)
    for flip, faults in zip(flips, found, strict=True):
        wanted = []
        if flip:
            rank, first_step, byte = flip
            place = ring.index(rank)
            chunk = ring[(place - first_step) % 8]
            # Where it was damaged, and everywhere it was forwarded to.
            wanted = [(ring[(place + more) % 8], first_step + more, chunk) for more in range(8 - first_step)]
            assert {fault["text"] for fault in faults} == {f"byte {byte} is wrong"}
        assert sorted((fault["rank"], fault["step"], fault["chunk"]) for fault in faults) == sorted(wanted)


def test_unequal_sites_and_odd_chunks_run_too(vm: VM) -> None:
    assert in_vm(vm, "damage", gpus=[3, 5], chunk_bytes=1, ring=[0, 7, 1, 6, 2, 5, 3, 4], flips=[[], []]) == [[], []]


# --- rings ----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_an_old_ring(vm: VM) -> None:
    made = [RANK_ORDER, RANK_ORDER[::-1], [0, 3, 1, 2, 7, 5, 4, 6], RANK_ORDER]
    (before, routes_before), *on_rings, (after, routes_after) = in_vm(vm, "rings", rings=made)
    assert before == after == [[]] * 8
    assert routes_before == routes_after
    for epoch, (ring, (sockets, routes)) in enumerate(zip(made, on_rings, strict=True), 1):
        for rank, seen in enumerate(sockets):
            place = ring.index(rank)
            me, successor, predecessor = (
                FABRIC.gpus[other].ip for other in (rank, ring[(place + 1) % 8], ring[place - 1])
            )
            assert seen == sorted(
                [
                    ["ESTAB", f"{me}:{20000 + epoch}", f"{successor}:4791"],
                    ["ESTAB", f"{me}:4791", f"{predecessor}:{20000 + epoch}"],
                    ["LISTEN", f"{me}:4791", "0.0.0.0:*"],
                ]
            )
            added = set(routes[rank]) - set(routes_before[rank])
            assert [route.split()[0] for route in added] == [successor]
            assert all("initcwnd" in route for route in added)


# --- failures -------------------------------------------------------------------------------------------------------


def test_an_agent_that_dies_is_named_at_once_and_nothing_is_left(vm: VM) -> None:
    found = in_vm(vm, "failure", rank=5, signal_number=signal.SIGKILL, after_s=0.2)
    assert found["error"] == "collective 1 failed: the process of GPU 5 died"
    assert found["took_s"] < 1
    assert found["left"] == [] and found["sockets"] == [[]] * 8


def test_an_agent_that_dies_before_there_is_a_ring_is_named(vm: VM) -> None:
    found = in_vm(vm, "failure", rank=3, signal_number=signal.SIGKILL, after_s=0)
    assert found["error"] == "ring 1 failed: the process of GPU 3 died"
    assert found["left"] == [] and found["sockets"] == [[]] * 8


def test_an_agent_that_stands_still_is_named_by_its_deadline_and_nothing_is_left(vm: VM) -> None:
    found = in_vm(vm, "failure", rank=2, signal_number=signal.SIGSTOP, after_s=0.2)
    assert found["error"] == "collective 1 failed: GPU 2 did not answer within 5 s"
    assert 5 < found["took_s"] < 20
    assert found["left"] == [] and found["sockets"] == [[]] * 8


def test_what_cannot_start_is_named(vm: VM) -> None:
    no_host, mtu, congestion = in_vm(vm, "refusals")
    assert (
        no_host
        == "the agents' start failed: GPU 7 has no host: process 999999 has no network (No such file or directory)"
    )
    assert mtu == "the agents' start failed: GPU 0 cannot go on: g0-eth0 has an MTU of 9000 bytes, not 1500"
    assert congestion == "the agents' start failed: GPU 0 has no congestion control called 'pigeon'"


@pytest.mark.parametrize("ring", [[0, 1, 2], [*range(7), 6], [*range(8), 0]])
def test_what_is_no_ring_of_all_gpus_is_refused(ring: list[int]) -> None:
    with pytest.raises(ValueError, match="it must have each rank once"):
        Communicator.build_ring(_unstarted(), ring)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"chunk_bytes": 0}, "a chunk has 0 bytes"), ({"chunk_bytes": 10**9}, "a Linux socket takes")],
)
def test_chunks_that_cannot_be_are_refused_before_anything_starts(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Communicator(FABRIC, host_pids=[1] * 8, transport=Transport(), **options)


def _unstarted() -> Communicator:
    communicator = Communicator.__new__(Communicator)
    communicator._ranks = range(8)
    return communicator
