"""Flows that share links in the VM: real TCP gets the shares of processor sharing, computed here by hand.

tests/guest/sharing.py runs all CASES inside the VM in one boot. tests/scenarios/test_every_collective.py checks that
another boot gives the same times to the nanosecond.
"""

import json
from collections import Counter
from typing import Any

import pytest

from tests.conftest import VM
from tests.guest.turns import FIRST_PORT, SOCKETS

Report = dict[str, Any]
MB = 10**6
WAYS = {
    "0-1": ["s0l0"],
    "0-4": ["s0l0", "s0p0", "s0b0", "s1b0", "s1p0", "s1l0"],
    "0-5": ["s0l0", "s0p0", "s0b0", "s1b1", "s1p0", "s1l0"],
    "1-6": ["s0l0", "s0p0", "s0b0", "s1b0", "s1p0", "s1l1"],
    "2-4": ["s0l1", "s0p0", "s0b1", "s1b0", "s1p0", "s1l0"],
}
_one: dict[str, Any] = {"rates": {"g0>g1": 40e9}, "delays": [0.7e-6, 10e-6], "shared": 1}
# The links of flow 0-4: it shares the first with 0-5, the second with 1-6 and the third with 2-4.
_first, _second, _third = "g0>s0b0", "s0b0>s1b0", "s1b0>g4"
_two: dict[str, Any] = {
    "delays": [0.7e-6, 10e-6],
    "shared": 2,
    "flows": [[*way, 8 * MB, 0] for way in ((0, 4), (0, 5), (1, 6))],
}
_three: dict[str, Any] = {
    "rates": {_first: 60e9, _second: 80e9, _third: 40e9},
    "shared": 3,
    "flows": [[0, 4, 8 * MB, 0], [0, 5, 16 * MB, 0], [1, 6, 24 * MB, 0], [2, 4, 8 * MB, 0.4e-3]],
}
_ports = {"g0>s0l0": 60e9, "s0b0>s1b0": 80e9, "s1l0>g4": 40e9}  # shared by the same three pairs of flows
CASES: dict[str, dict[str, Any]] = {
    "alone": _one | {"flows": [[0, 1, 8 * MB, 0]]},
    "equal": _one | {"flows": [[0, 1, 8 * MB, 0]] * 3},
    "unequal": _one | {"flows": [[0, 1, 8 * MB, 0], [0, 1, 16 * MB, 0], [0, 1, 24 * MB, 0]]},
    "staggered": _one | {"flows": [[0, 1, 8 * MB, 0], [0, 1, 8 * MB, 0.8e-3]]},
    "slow first": _two | {"rates": {_first: 40e9, _second: 60e9}},
    "slow second": _two | {"rates": {_first: 60e9, _second: 40e9}},
    "three links": _three | {"delays": [0.7e-6, 10e-6]},
    "three links, 1 ms": _three | {"delays": [0.7e-6, 1e-3]},
    "three ports": _three | {"delays": [0.7e-6, 10e-6], "rates": _ports, "physical": True},
}
# 8 MB take 1.6 ms at 40 Gbit/s. The times at which each flow's bytes have been served, in ms:
SERVED_MS: dict[str, list[float]] = {
    "alone": [1.6],
    "equal": [4.8, 4.8, 4.8],  # a third each
    # A third of the rate each until 3 x 1.6; the other two then have 8 and 16 MB left and get half each until
    # 4.8 + 2 x 1.6; the last has 8 MB left.
    "unequal": [4.8, 8.0, 9.6],
    "staggered": [2.4, 3.2],  # 4 MB of the first before the second starts, 4 MB at half the rate; then the second alone
    "slow first": [3.2, 3.2, 1.6],  # 20 each on the first link, which leaves 40 of the second
    "slow second": [3.2, 1.6, 3.2],  # 20 each on the second link, which leaves 40 of the first
    # Until 0.4 ms, 0-4 and 0-5 have 30 Gbit/s each and 1-6 has 50: they send 1.5, 1.5 and 2.5 MB. Then 2-4 halves the
    # third link: 0-4 and 2-4 have 20, 0-5 has 40, 1-6 has 60. 2.6 ms later, at 3.0, 0-4 has sent its other 6.5 MB, and
    # the others 13 of 14.5, 19.5 of 21.5 and 6.5 of 8 MB: the rest takes 0.2 ms at 60, 0.2 at 80 and 0.3 at 40.
    "three links": [3.0, 3.2, 3.2, 3.3],
    "three links, 1 ms": [3.0, 3.2, 3.2, 3.3],
    "three ports": [3.0, 3.2, 3.2, 3.3],
}


@pytest.fixture(scope="module")
def report(module_vm: VM) -> Report:
    """The report of tests/guest/sharing.py from one boot."""
    found: Report = module_vm.report("sharing", json.dumps(CASES), json.dumps(WAYS))
    return found


def delay_s(case: str, src: int, dst: int) -> float:
    inner_s, wan_s = CASES[case]["delays"]
    return float(inner_s) if src // 4 == dst // 4 else 2 * inner_s + wan_s


@pytest.mark.parametrize("case", CASES)
def test_every_flow_ends_when_processor_sharing_predicts(report: Report, case: str) -> None:
    found = report[case]
    assert (found["drops"], found["retransmitted"]) == ({}, 0)
    wanted = [
        served_ms / 1e3 + delay_s(case, *flow[:2])
        for served_ms, flow in zip(SERVED_MS[case], CASES[case]["flows"], strict=True)
    ]
    assert [ended_ns / 1e9 for ended_ns in found["ended_ns"]] == pytest.approx(wanted, rel=0.005)
    assert max(found["ended_ns"]) / 1e9 == pytest.approx(max(wanted), rel=0.001)


# --- the kernel's devices and qdiscs ----------------------------------------------------------------------------------


def kinds(qdiscs: list[Report]) -> Counter[str]:
    return Counter(qdisc["kind"] for qdisc in qdiscs)


def test_ports_have_fair_queues_and_gpus_delay_arriving_packets(report: Report) -> None:
    switches, *hosts = report["kernel"]["during"]
    assert kinds(switches["qdiscs"])["fq"] == 96 and kinds(switches["qdiscs"])["netem"] == 0
    for qdisc in switches["qdiscs"]:
        if qdisc["kind"] == "fq":
            options = qdisc["options"]
            assert (options["quantum"], options["initial_quantum"]) == (9014, 9014)
            assert options["limit"] == options["flow_limit"] == 10_000_000
    for host in hosts:
        assert kinds(host["qdiscs"])["netem"] == 2 and kinds(host["qdiscs"])["ingress"] == 1
        ifbs = [link for link in host["links"] if link["ifname"].startswith("delay")]
        assert [(link["mtu"], "UP" in link["flags"]) for link in ifbs] == [(9000, True)] * 2
    assert list(report["kernel"]["delays_ns"].values()) == [[700, 11_400]] * 8


def test_closing_the_shaping_restores_devices_and_qdiscs(report: Report) -> None:
    before, after = report["kernel"]["before"], report["kernel"]["after"]
    for was, remains in zip(before, after, strict=True):
        assert [link["ifname"] for link in remains["links"]] == [link["ifname"] for link in was["links"]]
        assert kinds(remains["qdiscs"]) == kinds(was["qdiscs"]) and kinds(remains["qdiscs"]).keys() <= {"noqueue"}


def test_a_second_shaping_is_refused_and_packet_loss_is_set_and_removed(report: Report) -> None:
    assert "has the queueing discipline htb already" in report["kernel"]["twice"]
    assert kinds(report["kernel"]["lost 0.25"]) == {"htb": 1, "netem": 1}
    assert kinds(report["kernel"]["lost 0.0"]) == {"htb": 1, "fq": 1}


def test_drops_in_an_ifb_device_are_counted(report: Report) -> None:
    assert report["kernel"]["drops"] == {report["kernel"]["dropping"]: 2}  # one of three packets fits the queue


def test_a_new_socket_does_not_inherit_a_closed_sockets_turn_in_the_fair_queue(vm: VM) -> None:
    # Otherwise the order of packets would depend on the address at which the kernel allocates a socket.
    arrived = [port for port in vm.report("turns") if port >= FIRST_PORT]
    assert arrived == list(range(FIRST_PORT, FIRST_PORT + SOCKETS))
