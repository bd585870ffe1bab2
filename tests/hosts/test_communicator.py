"""Rings of agents in the VM: delivered bytes, completion times, cleanup, and the failure of an agent.

tests/guest/ring.py runs all of JOBS inside the VM, in one boot.
"""

import json
import signal
from typing import Any

import numpy as np
import pytest

from analysis.model.max_plus import completion_s
from hosts.collectives.kinds import schedule, workload
from hosts.communicator import Communicator
from tests.conftest import VM
from tests.guest.ring import allgather
from topologies.fabric.fabric import FabricSpec, build_fabric

RANK_ORDER = list(range(8))
OTHER_RING = [0, 3, 1, 2, 7, 5, 4, 6]
FABRIC = build_fabric(FabricSpec())
SIZES = (8_000_000, 32_000_000)
EDGE = [{"1": [20e9, delay_s]} for delay_s in (10e-6, 1e-3, 10e-3)]  # rate in bit/s and delay in s, by rank
DRAW = np.random.default_rng(1)
EDGES = [
    {str(rank): [float(DRAW.uniform(10e9, 40e9)), float(DRAW.choice([1e-6, 10e-6, 1e-3]))] for rank in OTHER_RING}
    for _ in range(2)
]
FLIPPED_RING = [0, 2, 1, 3, 7, 6, 5, 4]
FLIPS: list[list[int]] = [[], [0, 1, 0], [7, 7, 299_999], [5, 3, 262_144], []]  # the receiving rank, the step, the byte


def transfer(rank: int, step: int) -> int:
    """Return the transfer that a rank receives in a step: every step has one transfer from each place to the next."""
    return 8 * (step - 1) + (FLIPPED_RING.index(rank) - 1) % 8


DAMAGE = [flip and [transfer(*flip[:2]), flip[2]] for flip in FLIPS]
RINGS = [RANK_ORDER, RANK_ORDER[::-1], OTHER_RING, RANK_ORDER]

slow_links = {"edges": EDGES, "ring": OTHER_RING, "chunk_bytes": SIZES[0], "count": 1}
one_slow_link = {"ring": RANK_ORDER, "chunk_bytes": SIZES[0]}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "slow links": ("times", slow_links),
    "one slow link, 8000000": ("times", one_slow_link | {"edges": EDGE[::2], "count": 1}),
    "one slow link, 32000000": ("times", one_slow_link | {"edges": EDGE[1:2], "chunk_bytes": SIZES[1], "count": 1}),
    "slow start": ("times", one_slow_link | {"edges": EDGE[2:], "count": 3, "transport": {"line_rate": False}}),
    "damage": ("damage", {"chunk_bytes": 300_000, "ring": FLIPPED_RING, "flips": DAMAGE}),
    "odd": ("damage", {"gpus": [3, 5], "chunk_bytes": 1, "ring": [0, 7, 1, 6, 2, 5, 3, 4], "flips": [[], []]}),
    "rings": ("rings", {"rings": RINGS}),
    "killed": ("failure", {"rank": 5, "signal_number": signal.SIGKILL, "after_s": 0.2}),
    "killed at once": ("failure", {"rank": 3, "signal_number": signal.SIGKILL, "after_s": 0}),
    "stopped": ("failure", {"rank": 2, "signal_number": signal.SIGSTOP, "after_s": 0.2}),
    "refusals": ("refusals", {}),
    "dctcp, bbr": ("controls", {"ring": RANK_ORDER, "intra": "dctcp", "wan": "bbr"}),
    "cubic, dctcp": ("controls", {"ring": RANK_ORDER, "intra": "cubic", "wan": "dctcp"}),
}


@pytest.fixture(scope="module")
def report(module_vm: VM) -> dict[str, Any]:
    """The results of all JOBS in the VM."""
    found: dict[str, Any] = module_vm.report("ring", json.dumps(JOBS))
    return found


def model_s(ring: list[int], edges: dict[str, list[float]], chunk_bytes: int) -> float:
    """Return the timing model's prediction for a ring with these slow edges, whose other edges are infinitely fast."""
    slow = [edges.get(str(rank), [np.inf, 0.0]) for rank in [*ring[1:], ring[0]]]  # the edge into each successor
    alpha, beta = np.array([[[delay] for _, delay in slow], [[8 * chunk_bytes / rate] for rate, _ in slow]])
    return float(completion_s(schedule("allgather", "ring", sites=(len(ring) - 1, 1)).transfers, alpha, beta)[0])


def completion(collective: dict[str, Any]) -> float:
    return float(max(collective["arrived_ns"]) - min(collective["start_ns"])) / 1e9


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", SIZES)
def test_a_ring_with_one_slow_link_takes_its_closed_form_from_the_first_collective_on(
    report: Any, chunk_bytes: int
) -> None:
    _, options = JOBS[f"one slow link, {chunk_bytes}"]
    for edges, collectives in zip(options["edges"], report[f"one slow link, {chunk_bytes}"], strict=True):
        ((rate_bps, delay_s),) = edges.values()
        closed_form_s = 7 * 8 * chunk_bytes / rate_bps + delay_s
        assert model_s(RANK_ORDER, edges, chunk_bytes) == pytest.approx(closed_form_s)
        for collective in collectives:
            assert collective["faults"] == []
            assert completion(collective) == pytest.approx(closed_form_s, rel=0.003)


def test_a_ring_of_slow_links_takes_the_time_that_the_model_predicts(report: Any) -> None:
    for edges, collectives in zip(EDGES, report["slow links"], strict=True):
        for collective in collectives:
            # After a pause a link passes its burst of 64 KB at once, out of the 8 MB that each link carries per step.
            assert completion(collective) == pytest.approx(model_s(OTHER_RING, edges, SIZES[0]), rel=0.01)


def test_without_line_rate_slow_start_delays_the_first_collective(report: Any) -> None:
    ((first, *_, last),) = report["slow start"]
    least_s = model_s(RANK_ORDER, EDGE[2], SIZES[0])
    assert completion(first) > 1.5 * least_s  # the window begins with ten segments and doubles every 10 ms
    assert least_s * 0.99 < completion(last) < completion(first)


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_is_reported_by_every_rank_to_which_it_is_forwarded(report: Any) -> None:
    for flip, faults in zip(FLIPS, report["damage"], strict=True):
        wanted = []
        if flip:
            rank, first_step, byte = flip
            index = FLIPPED_RING.index(rank)
            slot = (index - first_step) % 8
            receivers = [(FLIPPED_RING[(index + more) % 8], first_step + more) for more in range(8 - first_step)]
            wanted = [
                (rank, transfer(rank, step), FLIPPED_RING[FLIPPED_RING.index(rank) - 1]) for rank, step in receivers
            ]
            assert {fault["text"] for fault in faults} == {f"byte {byte} of slot {slot} is wrong"}
        assert [(fault["rank"], fault["task"], fault["src"]) for fault in faults] == wanted  # in forwarding order
    assert report["odd"] == [[], []]  # unequal sites, chunks of one byte


# --- rings ----------------------------------------------------------------------------------------------------------


def test_reconnecting_leaves_no_sockets_or_routes_of_the_previous_ring(report: Any) -> None:
    (before, routes_before), *on_rings, (after, routes_after) = report["rings"]
    assert before == after == [[]] * 8
    assert routes_before == routes_after
    for epoch, (ring, (sockets, routes)) in enumerate(zip(RINGS, on_rings, strict=True), 1):
        for rank, seen in enumerate(sockets):
            index = ring.index(rank)
            me, successor, predecessor = (
                FABRIC.gpus[other].ip for other in (rank, ring[(index + 1) % 8], ring[index - 1])
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


@pytest.mark.parametrize(
    ("job", "error", "least_s", "most_s"),
    [
        ("killed", "collective 1 failed: the process of GPU 5 died", 0, 1),
        ("killed at once", "connection 1 failed: the process of GPU 3 died", 0, 20),
        ("stopped", "collective 1 failed: GPU 2 did not answer within 5 s", 5, 20),
    ],
)
def test_the_error_names_a_failed_agent_and_no_process_or_socket_remains(
    report: Any, job: str, error: str, least_s: float, most_s: float
) -> None:
    found = report[job]
    assert found["error"] == error
    assert least_s < found["took_s"] < most_s
    assert found["left"] == [] and found["sockets"] == [[]] * 8


def test_the_error_names_an_agent_that_cannot_start_and_the_reason(report: Any) -> None:
    no_host, mtu, congestion = report["refusals"]
    assert "GPU 7" in no_host and "999999" in no_host
    assert "GPU 0" in mtu and "g0-eth0" in mtu and "9000" in mtu and "1500" in mtu
    assert "GPU 0" in congestion and "'pigeon'" in congestion


@pytest.mark.parametrize("intra,wan", [("dctcp", "bbr"), ("cubic", "dctcp")])
def test_both_ends_of_each_connection_have_the_congestion_control_of_its_crossing(
    report: Any, intra: str, wan: str
) -> None:
    """As ss tells it. Connections use ECN if they are dctcp's, and no others do."""
    site = {gpu.ip: gpu.site for gpu in FABRIC.gpus}
    ends = report[f"{intra}, {wan}"]
    assert len(ends) == 2 * 8
    for local, remote, words in ends:
        wanted = intra if site[local] == site[remote] else wan
        assert [word for word in words if word in ("cubic", "reno", "bbr", "dctcp")] == [wanted]
        assert ("ecn" in words) is (wanted == "dctcp")
    assert sum(site[local] != site[remote] for local, remote, _ in ends) == 2 * 2


@pytest.mark.parametrize("ring", [[0, 1, 2], [*range(7), 6], [*range(8), 0]])
def test_a_ring_that_does_not_contain_each_rank_once_is_refused(ring: list[int]) -> None:
    communicator = Communicator.__new__(Communicator)
    communicator._workload = allgather(FABRIC, 1)
    with pytest.raises(ValueError, match="each once"):
        communicator.connect(ring)


def test_a_schedule_for_another_number_of_gpus_is_refused_before_anything_starts() -> None:
    other = workload("allreduce", "tree", sites=(4, 5), size_bytes=1000)
    with pytest.raises(ValueError, match="9 places; allowed: 8"):
        Communicator(FABRIC, host_pids=[1] * 8, workload=other)
