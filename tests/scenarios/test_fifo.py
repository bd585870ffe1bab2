"""Fifo queues, where TCP determines the rates of flows: what a run stores and reports, and that it completes."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.results import load
from tests.fakes.commands import FakeTestbeds, run, testbeds  # noqa: F401
from tests.fakes.runs import answer, assert_recorded

FIFO = ("--set", "transport.queue=fifo")
DIRECT = ("--set", "collective.kind=alltoall", "--set", "collective.algorithm=direct")


def late(row: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return changes by which transfer 0, from GPU 0 to 1, takes 1 s, and those of GPU 0 to the other site 2 s, the
    last of them 6 s; some packets are dropped and retransmitted."""
    arrived = [1_000_000_000] + [2_000_000_000] * 55
    arrived[6] = 6_000_000_000
    times = {"sent_ns": [0] * 56, "arrived_ns": arrived, "completion_s": 6.0}
    return times | {"drops": 4, "retransmitted_bytes": 35_792}


def test_drops_retransmissions_and_fairness_are_in_rows_summary_json_and_report(testbeds, capsys):
    testbeds(FakeTestbeds(changes=late))
    run("--engine", "emulation", *FIFO, *DIRECT, "--modes", "base", "--collectives", "2", "--json", "--out", "run")
    answer = json.loads(capsys.readouterr().out)
    rows = load("run")
    assert rows.retransmitted_bytes.to_list() == [35_792] * 2
    assert (rows.slowest_transfer > rows.quickest_transfer).all() and rows.fairness.between(1 / 16, 1).all()
    (point,) = answer["points"]
    assert (point["drops"], point["retransmitted_bytes"]) == (8, 71_584)
    assert point["fairness"] == rows.fairness.min() and point["fairness_link"] in point["shared_links"]
    assert point["slowest_transfer"] == rows.slowest_transfer.max()
    with Path("run/summary.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert (float(line["fairness"]), line["fairness_link"]) == (point["fairness"], point["fairness_link"])
    warnings = answer["fidelity"]["warnings"]
    assert len(warnings) == 1 and "8 drops and 0.1 MB retransmitted" in warnings[0]
    assert f"least fair on {point['fairness_link']} " in warnings[0] and answer["fidelity"]["holds"] is False
    page = Path("run/report.html").read_text()
    assert "<h2>FIFO queues</h2>" in page and "the model does not hold in fifo queues" in page
    run("--resume", "run")
    printed = capsys.readouterr().out
    assert "retransmitted (MB)" in printed and f"{point['fairness_link']} {point['fairness']:.2f}" in printed


def test_no_fairness_link_is_named_if_no_link_is_shared(testbeds):
    testbeds(FakeTestbeds(changes=lambda row, _: {"retransmitted_bytes": 0}))
    run("--engine", "emulation", *FIFO, "--modes", "base", "--collectives", "1", "--no-report", "--out", "run")
    (row,) = load("run").to_dict("records")
    assert row["fairness_link"] == "" and row["fairness"] != row["fairness"]


def test_runs_with_fair_queues_report_no_fairness_and_no_retransmissions(testbeds, capsys):
    testbeds(FakeTestbeds())
    run("--engine", "emulation", *DIRECT, "--modes", "base", "--collectives", "1", "--json", "--out", "run")
    answer = json.loads(capsys.readouterr().out)
    assert "fifo" not in answer["fidelity"] and "fairness" not in answer["points"][0]
    assert load("run").retransmitted_bytes.isna().all()
    assert "FIFO queues" not in Path("run/report.html").read_text()


# --- measured in VMs ------------------------------------------------------------------------------------------------


def measured(folder: Path, *arguments: str) -> dict[str, Any]:
    command = ("--engine", "emulation", *FIFO, *DIRECT, "--modes", "base", "--collectives", "2")
    found: dict[str, Any] = answer(folder, *command, *arguments)
    return found


def test_cubic_with_finite_buffers_drops_and_retransmits_and_the_run_warns_of_the_model(tmp_path):
    answer = measured(tmp_path / "run", "--wan-delay", "10 ms", "--set", "fabric.buffer=1 MB")
    fifo, rows = answer["fidelity"]["fifo"], load(tmp_path / "run")
    assert fifo["least_ratio"] > 2 and fifo["slowest_transfer"] > 2
    # Every dropped frame of a message has 8,948 bytes, except for its last one; acknowledgements are dropped, too.
    assert rows.drops.sum() == fifo["drops"] > 1000
    assert fifo["retransmitted_bytes"] == pytest.approx(8948 * fifo["drops"], rel=0.2)
    assert 0 < fifo["fairness"] < 0.9 and fifo["fairness_link"] in answer["points"][0]["shared_links"]
    assert any("does not hold in fifo queues" in warning for warning in answer["fidelity"]["warnings"])


def test_losses_in_one_collective_do_not_change_the_time_of_the_next(tmp_path):
    """Under constant conditions the time is constant; only the first collective meets switches still unused."""
    calm = ("--set", "conditions.wan_rate=40 Gbit/s", "--set", "conditions.intra_rate=100 Gbit/s")
    measured(tmp_path / "run", "--set", "fabric.buffer=500 kB", "--chunk", "2 MB", *calm, "--collectives", "3")
    rows = load(tmp_path / "run")
    assert rows.drops.min() > 1000
    assert rows.completion_s[1] == rows.completion_s[2] == pytest.approx(rows.completion_s[0], rel=0.01)
    assert rows.drops[1] == rows.drops[2]


def test_dctcp_with_ecn_has_less_than_a_fiftieth_of_the_drops_of_cubic(tmp_path):
    start = ("--set", "fabric.buffer=1 MB", "--set", "transport.line_rate=false", "--collectives", "1")
    cubic = measured(tmp_path / "cubic", *start)["fidelity"]["fifo"]
    marking = ("--set", "transport.congestion_control=dctcp", "--set", "transport.ecn_threshold=200 kB")
    dctcp = measured(tmp_path / "dctcp", *start, *marking)["fidelity"]["fifo"]
    assert dctcp["drops"] < cubic["drops"] / 50
    assert dctcp["greatest_ratio"] < 1.5 < cubic["least_ratio"]


@pytest.mark.slow
def test_collectives_complete_with_a_buffer_of_one_frame(tmp_path):
    answer = measured(tmp_path / "run", "--set", "fabric.buffer=9014 B", "--chunk", "200 kB")
    assert answer["fidelity"]["fifo"]["retransmitted_bytes"] > 0
    assert answer["fidelity"]["collectives"] == 2


def test_wan_links_lose_the_share_that_is_asked_for_by_the_seed_alone(tmp_path):
    """In each of two collectives 8 messages of 4 MB cross the WAN, 447 full frames each, and acknowledgements. The same
    packets are lost as in another boot."""
    lossy = ("--gpus", "4", "--chunk", "4 MB", "--set", "fabric.buffer=100 MB", "--set", "fabric.wan_loss=0.01")
    answer = measured(tmp_path / "run", *lossy)
    first = load(tmp_path / "run")
    assert 0.6 < first.drops.sum() / (0.01 * 2 * 8 * 447) < 2  # there are fewer acknowledgements than frames
    assert first.retransmitted_bytes.sum() >= 8948
    same = [first[column].to_list() for column in ("completion_s", "drops", "retransmitted_bytes")]
    assert_recorded("test_wan_links_lose_the_share_that_is_asked_for_by_the_seed_alone", same)
    assert answer["fidelity"]["lossy"] is True
    text = "WAN links lose frames (fabric.wan_loss), which the model does not include"
    assert text in answer["fidelity"]["warnings"]
