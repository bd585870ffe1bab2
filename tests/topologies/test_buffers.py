"""Finite queues of shaped links, in the VM: how much one holds, which frames it marks, and its removal."""

import json
from typing import Any

import pytest

from tests.conftest import VM
from topologies.shaping.classes import FRAME_BYTES

CASES: dict[str, dict[str, Any]] = {
    "room for 11": {"rate_bps": 40e9, "limit_bytes": 100_000, "ecn_threshold_bytes": None, "frames": 60},
    "room for 1": {"rate_bps": 100e9, "limit_bytes": FRAME_BYTES, "ecn_threshold_bytes": None, "frames": 3},
    "marks at 5": {"rate_bps": 40e9, "limit_bytes": 10**6, "ecn_threshold_bytes": 50_000, "frames": 60},
    "marks at 11": {"rate_bps": 10e9, "limit_bytes": 10**6, "ecn_threshold_bytes": 100_000, "frames": 60},
    "tcp": {"rate_bps": 1e9, "limit_bytes": 300_000, "ecn_threshold_bytes": None, "tcp_bytes": 2_000_000},
    "tcp, marks": {"rate_bps": 1e9, "limit_bytes": 300_000, "ecn_threshold_bytes": 100_000, "tcp_bytes": 2_000_000},
}


@pytest.fixture(scope="module")
def report(module_vm: VM) -> dict[str, Any]:
    found: dict[str, Any] = module_vm.report("buffers", json.dumps(CASES))
    return found


@pytest.mark.parametrize("case", [case for case in CASES if "tcp" not in case])
def test_a_queue_keeps_the_frames_that_fit_and_marks_those_above_its_ecn_threshold(
    report: dict[str, Any], case: str
) -> None:
    """One frame of a burst is sent at once, the queue holds as many whole frames as fit, and the others are dropped."""
    wanted = CASES[case]
    kept = min(wanted["frames"], 1 + wanted["limit_bytes"] // FRAME_BYTES)
    threshold = wanted["ecn_threshold_bytes"] or wanted["limit_bytes"]
    assert report[case]["arrived"] == [[number, number * FRAME_BYTES > threshold] for number in range(kept)]
    assert sum(report[case]["drops"].values()) == wanted["frames"] - kept


@pytest.mark.parametrize("case", [case for case in CASES if "tcp" in case])
def test_a_queue_overrun_by_tcp_is_full_to_within_one_frame(report: dict[str, Any], case: str) -> None:
    limit_bytes = CASES[case]["limit_bytes"]
    assert limit_bytes - FRAME_BYTES <= report[case]["held_bytes"] <= limit_bytes + 100
    assert sum(report[case]["drops"].values()) > 100


def test_removing_the_shaping_leaves_no_qdisc_at_the_hosts(report: dict[str, Any]) -> None:
    assert len(report["left"]) == 8
    for qdiscs in report["left"]:
        assert {line.split()[1] for line in qdiscs.splitlines()} == {"noqueue"}
