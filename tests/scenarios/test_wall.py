"""Runs on the wall clock: scaled rates, comparison with the machine's capacity, and marks on late collectives."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.results.reader import open_run
from scenarios.engines import preflight
from scenarios.engines.preflight import check, demand_bps, divisor
from scenarios.vm import CannotRunError
from tests.conftest import PROJECT
from tests.fakes.commands import run
from tests.fakes.runs import ended
from topologies.shaping.rate_scale import RateScale

WALL = ("--engine", "emulation", "--clock", "wall", "--chunk", "64 MB", "--gpus", "4")
FAULTS = """
[[fault]]
at = "collective 1"
what = "link s0b0-s1b0 down"
for = "1 collectives"
[[fault]]
at = "collective 2"
what = "agent 2 killed"
"""


@pytest.mark.alone
def test_every_output_of_a_run_on_the_wall_clock_is_labelled_with_clock_and_rate_scale(tmp_path):
    (tmp_path / "f.toml").write_text(FAULTS)
    where = tmp_path / "run"
    chosen = ("--rate-scale", "1/1000", "--modes", "joint", "--collectives", "3", "--no-report", "--out", where)
    out, err = ended(tmp_path / "f.toml", *WALL, *chosen, cwd=tmp_path)
    faults = "link s0b0-s1b0 down at collective 1 for 1 collective, agent 2 killed at collective 2"
    label = (
        f"4 GPUs, 64 MB blocks, 256 MB buffer, 10 us, {faults}, wall clock at 1/1000 of the rates with blocks of 64 kB"
    )
    assert label in out and label in err
    assert re.search(r"^this machine carries [\d.]+ Gbit/s between 4 hosts$", err, re.MULTILINE)
    assert re.search(r"fidelity: \d collectives measured, .*, \d late$", out, re.MULTILINE)
    found = open_run(where)
    assert found.settings[0]["label"] == label
    assert {'clock = "wall"', 'rate_scale = "1/1000"'} <= set((where / "scenario.toml").read_text().splitlines())
    with (where / "summary.csv").open(newline="") as file:
        summary = [(row["clock"], row["rate_scale"], row["carried_chunk_bytes"]) for row in csv.DictReader(file)]
    assert summary == [("wall", "1/1000", "64000")]
    rows = pq.read_table(where / "collectives.parquet").to_pandas()
    assert rows.late.dtype == bool and rows.collective.tolist() == [0, 1, 2]
    # Other tests load the machine, so that times can be late; a wrong rate scale would still show.
    calm = rows[rows.collective == 0]
    assert 0.8 < (calm.completion_s / calm.predicted_s).median() < 3
    assert found.faults.what.tolist() == ["link s0b0-s1b0 down", "agent 2 killed"]
    assert set(found.faults.outcome) == {"recovered"}
    assert (found.faults.detected_s <= found.faults.recovered_s).all()


def test_rates_beyond_the_machines_capacity_are_refused_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(*WALL, "--out", "run", status=3)
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "at the rate scale 1 a collective of this scenario sends up to" in sentence
    assert re.search(r"carries [\d.]+ Gbit/s, of which half is allowed: take --rate-scale 1/\d+", sentence)
    assert not Path("run").exists()


def test_a_run_on_the_machines_own_kernel_leaves_nothing_and_restores_its_settings(vm):
    found = vm.report("own", options=("--clock", "wall", "--memory", "3 GiB"))
    assert found["first"]["status"] == 0, found["first"]["err"]
    assert "measuring what this machine carries on its own kernel" in found["first"]["err"]
    (point,) = json.loads(found["first"]["out"])["points"]
    assert (point["clock"], point["rate_scale"], point["carried_chunk_bytes"]) == ("wall", "1/1000", 64_000)
    assert found["second"] == 128 + signal.SIGTERM
    assert found["before"]["processes"] == found["before"]["files"] == []
    assert found["after"] == found["before"]
    assert found["at the end"] == found["before"]


def test_the_demand_of_a_ring_is_the_sum_of_its_edge_rates():
    # Chunks of 1 MB in 1 ms and in 2 ms are 8 and 4 Gbit/s: the second collective has the largest demand, 16 Gbit/s.
    edges_s = np.array([[2e-3, 2e-3], [1e-3, 1e-3]])
    assert demand_bps(edges_s, slot_bytes=10**6) == pytest.approx(16e9)


def test_a_demand_up_to_half_of_the_machines_capacity_is_allowed():
    check(16e9, 3.2e9, RateScale(10))
    with pytest.raises(CannotRunError, match=r"sends up to 1\.6 Gbit/s at a time, .* carries 3\.19 Gbit/s, .* 1/20$"):
        check(16e9, 3.19e9, RateScale(10))
    assert [divisor(demand, 1.0) for demand in (0.5, 1, 1.1, 4.9, 5.1, 99, 501)] == [1, 1, 2, 5, 10, 100, 1000]


def test_the_timer_latency_monitor_measures_how_long_a_process_was_stopped():
    script = """
import sys
from hosts.monitor import TimerLatency
with TimerLatency() as watch:
    watch.worst_s()
    print("ready", flush=True)
    sys.stdin.readline()
    print(watch.worst_s())
"""
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=PROJECT, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate("\n", timeout=30)
    assert 0.45 < float(out) < 30


def test_a_program_whose_rates_exceed_the_machines_capacity_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "measured_bps", lambda *_: 10e9)
    rates = ("--set", "conditions.wan_rate=10 Gbit/s", "--set", "conditions.intra_rate=20 Gbit/s")
    asked = ("--modes", "base", "--exec", "true", "--clock", "wall", "--out", tmp_path / "run", *rates)
    run(*asked, status=3)
    told = capsys.readouterr().err  # a ring of 8 crosses the WAN twice
    assert "send up to 140 Gbit/s at a time" in told and "take --rate-scale 1/50" in told
    run(*asked, "--set", "program.ranks=[0, 4]", status=3)
    assert "send up to 20 Gbit/s at a time" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
