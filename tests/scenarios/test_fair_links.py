"""Collectives whose flows share links: where the emulation shares fairly, and that it does so as the model says."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scenarios.spec.load import load_scenario
from tests.fakes.runs import ended


def test_links_are_shared_fairly_where_flows_can_share_them_in_virtual_time() -> None:
    paper = load_scenario("paper")
    wanted = {"collective.kind": "alltoall", "collective.algorithm": "direct"}
    direct = paper.with_values(wanted)
    assert paper.fair_links("base") is None  # a ring over a mesh
    assert direct.fair_links("base") == direct.shared_links("base") != ()
    assert direct.with_values({"transport.queue": "fifo"}).fair_links("base") is None
    assert replace(direct, run=replace(direct.run, clock="wall")).fair_links("base") is None


def run(folder: Path, queue: str, kind: str, algorithm: str, delay: str) -> "tuple[dict[str, float], list[float]]":
    """The fidelity of three collectives, and when their transfers had arrived."""
    values = {"collective.kind": kind, "collective.algorithm": algorithm, "transport.queue": queue}
    values |= {"conditions.wan_delay": delay, "collective.chunk": "4 MB"}
    options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = ("--json", "--engine", "emulation", "--modes", "base", "--collectives", "3", "--out", folder, *options)
    answer = json.loads(ended(*command, cwd=folder.parent)[0])
    ends: list[float] = pq.read_table(folder / "transfers.parquet").column("end_s").to_pylist()
    return answer["fidelity"], ends


@pytest.mark.parametrize(
    ("kind", "algorithm", "delay"),
    [("alltoall", "direct", "10 us"), ("allreduce", "double-tree", "1 ms"), ("allgather", "hierarchical", "10 ms")],
)
def test_collectives_that_share_links_take_what_the_model_says(
    tmp_path: Path, kind: str, algorithm: str, delay: str
) -> None:
    fidelity, _ = run(tmp_path / "run", "fair", kind, algorithm, delay)
    assert (fidelity["collectives"], fidelity["drops"]) == (3, 0)
    assert abs(fidelity["median_ratio"] - 1) <= 0.002
    assert fidelity["p99_abs_error"] <= 0.01


def test_in_fifo_queues_flows_do_not_get_fair_shares(tmp_path: Path) -> None:
    fair, fifo = (run(tmp_path / queue, queue, "alltoall", "direct", "10 us")[1] for queue in ("fair", "fifo"))
    assert len(fair) == len(fifo) == 3 * 8 * 7
    assert max(abs(a / b - 1) for a, b in zip(fifo, fair, strict=True)) > 0.1
