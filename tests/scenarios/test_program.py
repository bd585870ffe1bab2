"""User programs on the hosts of the GPUs: `run.py --exec`, in the VM as users start it."""

import base64
import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from analysis.results.reader import ResultsError, load
from controller.routing.wan_path_choice import Router
from scenarios.experiment import command as experiment
from scenarios.policies.conditions import conditions_of
from scenarios.program.condition_changes import ProgramTimeline
from scenarios.program.rank import longhaul
from scenarios.program.rows import rows_as_collectives
from scenarios.program.session import RunState, notes, progress_table, result_of, step_time, steps_told, tokens_per_s
from scenarios.program.watchdog import command_of
from scenarios.spec import ScenarioError
from scenarios.spec.faults import active_at
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from scenarios.spec.scenario import from_json, to_json
from tests.conftest import PROJECT
from tests.fakes.commands import scenario
from tests.fakes.packets import HEADERS, pcap_lengths
from tests.fakes.processes import await_that
from tests.fakes.runs import ended, started
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, cables_of
from topologies.fabric.ports import links_in_grain

GUEST = PROJECT / "tests" / "guest"
PYTHON = sys.executable
CONSTANT = ("--set", 'conditions.wan_rate="40 Gbit/s"', "--set", 'conditions.intra_rate="100 Gbit/s"')

SOCKETS = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 0:
    sum(range(2_000_000))  # the others, who start at once, find it listening nevertheless
    with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
        there, _ = server.accept()
    with there:
        there.sendall(b"!")
        start, got = time.monotonic(), 0
        while part := there.recv(1 << 20):
            got += len(part)
        print(got, time.monotonic() - start)
else:
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as there:
        there.recv(1)
        there.sendall(bytes(100_000_000))
    open("written", "w").write(os.environ["LONGHAUL_GPU"] + os.environ["WORD"])
"""


def program(folder: Path, command: str, *options: str, status: int = 0) -> tuple[dict, str]:
    """Run a program into FOLDER/run; return the object that --json printed, and the error output."""
    arguments = ("paper", "--modes", "base", "--out", "run", "--json", "--exec", command, *options)
    out, said = ended(*arguments, cwd=folder, status=status)
    return json.loads(out), said


def test_two_ranks_send_over_the_wan_at_its_rate(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOCKETS)
    options = ("--set", "program.ranks=[1, 4]", "--set", 'program.env={WORD = "!"}', "--wan-delay", "5 ms")
    found, said = program(tmp_path, f"{PYTHON} mine.py", *CONSTANT, *options)
    assert [one["status"] for one in found["ranks"]] == [0, 0]
    assert [one["gpu"] for one in found["ranks"]] == ["g1", "g4"]
    got, seconds = (tmp_path / "run/output/0.stdout").read_text().split()
    assert int(got) == 100_000_000
    # One byte is sent, and 100 MB return at 40 Gbit/s of payload; the start of the connection is not modelled.
    assert float(seconds) == pytest.approx(2 * 5e-3 + 8 * 100e6 / 40e9, rel=0.05)
    carried = {link["link"]: link["bytes"] for link in found["links"]}
    assert carried["s1b0>s0b0"] == pytest.approx(100e6 * HEADERS, rel=0.01)
    assert sum(carried.values()) == pytest.approx(100e6 * HEADERS, rel=0.02)
    assert (tmp_path / "run/files/written").read_text() == "g4!"
    assert not (tmp_path / "written").exists()
    assert "processors take no virtual time" in said
    rows = (tmp_path / "run/links.csv").read_text().splitlines()
    assert rows[0] == "time_s,link,bytes,capacity_bytes"
    assert {row.split(",")[1] for row in rows[1:]} == set(carried)
    with (tmp_path / "run/figures/program.csv").open() as file:
        drawn = [row for row in csv.DictReader(file) if row["link"] == "s1b0>s0b0"]
    spans = [(float(row["until_s"]) - float(row["from_s"])) * float(row["utilisation"]) for row in drawn]
    assert sum(spans) * 40e9 / 8 * HEADERS == pytest.approx(carried["s1b0>s0b0"], rel=1e-4)
    assert (tmp_path / "run/figures/program.svg").exists()


def test_ranks_begin_at_the_given_date_to_the_nanosecond_and_otherwise_at_the_machines(tmp_path: Path) -> None:
    seen = {}
    for folder, options in {
        "first": ("--set", "program.date=2001-02-03T04:05:06.000007"),
        "second": ("--set", 'program.date="2001-02-03T06:05:06.000007000+02:00"'),
        "host": (),
    }.items():
        (tmp_path / folder).mkdir()
        began_s = time.time()
        program(tmp_path / folder, "date +%s%N; sleep 0.25; date +%s%N", *options, "--gpus", "2")
        outputs = [(tmp_path / folder / "run" / "output" / f"{rank}.stdout").read_text() for rank in range(2)]
        seen[folder] = [[int(line) for line in one.splitlines()] for one in outputs]
        if folder == "host":
            # The VM boots at the machine's date; the set-up takes virtual time, which may run ahead.
            assert all(began_s <= at_ns / 1e9 <= time.time() + 60 for one in seen[folder] for at_ns in one)
    date = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    began_ns = int(date.timestamp()) * 10**9 + 7_000
    assert seen["first"] == seen["second"]
    for rank, (at_ns, later_ns) in enumerate(seen["first"]):
        assert at_ns == began_ns if rank == 0 else began_ns < at_ns < began_ns + 100
        assert later_ns - at_ns == pytest.approx(250_000_000, abs=100)


RECEIVES = """
import os, socket, time
there = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(("", there[1])) as server:
        server.accept()[0].sendall(bytes(10_000_000))
else:
    with socket.create_connection(there) as connection:
        start, got = time.monotonic(), 0
        while part := connection.recv(1 << 20):
            got += len(part)
        print(got, time.monotonic() - start)
"""


def test_a_program_runs_in_every_configuration_of_a_sweep_and_its_rows_name_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECEIVES)
    options = ("--set", "program.ranks=[0, 3]", "--set", 'conditions.intra_rate="100 Gbit/s"', "--gpus", "4")
    options += ("--wan-delay", "1 ms,5 ms")
    sweep = ("--sweep", "conditions.wan_rate=1 Gbit/s,10 Gbit/s")
    found, said = program(tmp_path, f"{PYTHON} mine.py", *options, *sweep)
    assert said.count("processors take no virtual time") == 1
    took_s = []
    for number, one in enumerate(found["configurations"], 1):
        got, seconds = (tmp_path / "run" / str(number) / "output/1.stdout").read_text().split()
        assert int(got) == 10_000_000 and one["configuration"] == number
        assert one == json.loads((tmp_path / "run" / str(number) / "program.json").read_text())
        took_s.append(float(seconds))
    # The last packet of the handshake and the first data each take a delay, and the data are sent at the link's rate.
    wanted_s = [2 * delay_s + 8 * 10e6 / rate_bps for delay_s in (1e-3, 5e-3) for rate_bps in (1e9, 10e9)]
    assert took_s == pytest.approx(wanted_s, rel=1e-3)
    with (tmp_path / "run/ranks.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ("configuration", "conditions.wan_delay_s", "conditions.wan_rate", "rank")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (str(number), delay, rate, rank)
        for number, (delay, rate) in enumerate(product(("0.001", "0.005"), ("1 Gbit/s", "10 Gbit/s")), 1)
        for rank in "01"
    ]
    with (tmp_path / "run/links.csv").open() as file:
        carried = {
            row["configuration"]: int(row["bytes"]) for row in csv.DictReader(file) if row["link"] == "s0b0>s1b0"
        }
    assert list(carried.values()) == pytest.approx([10e6 * HEADERS] * 4, rel=1e-3)


CHANGING = """
import os, socket, subprocess, time, longhaul
start = time.monotonic()
longhaul.compute(0.003)
subprocess.run(["longhaul-compute", "0.002"], check=True)
print(time.monotonic() - start)
if os.environ["RANK"] == "0":
    with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
        there, _ = server.accept()
    while there.recv(1 << 20):
        pass
else:
    time.sleep(0.001)
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as there:
        for _ in range(100):
            there.sendall(bytes(1_000_000))
"""


def test_link_rates_change_over_time_and_a_capture_matches_the_port_counters(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CHANGING)
    rates = {"conditions.wan_rate": "10-100 Gbit/s", "conditions.intra_rate": "200 Gbit/s"}
    keys = {"program.ranks": [1, 4], "conditions.every": "2 ms", **rates}
    options = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    found, said = program(tmp_path, f"{PYTHON} mine.py", *options, "--capture", "s1b0>s0b0")
    assert [rank["computed_s"] for rank in found["ranks"]] == pytest.approx([0.005, 0.005])
    (part,) = re.findall(
        r"computing \(longhaul.compute\) takes ([0-9.]+) % of rank [01]'s [0-9.]+ s; the rest is", said
    )
    assert float(part) == pytest.approx(100 * 0.005 / max(rank["end_s"] for rank in found["ranks"]), abs=1)
    computed = [float((tmp_path / f"run/output/{rank}.stdout").read_text()) for rank in (0, 1)]
    assert computed == pytest.approx([0.005] * 2, abs=2e-4)  # plus the start of a process
    # The data begins to flow at 6 ms, in the 4th row of conditions, and ends when the integral of the rate is its size.
    paper = [Override(key, value, key) for key, value in keys.items() if not key.startswith("program.")]
    setting = rows_as_collectives(load_scenario("paper", paper))
    conditions = conditions_of(setting)
    link = next(one.index for one in conditions.fabric.links if one.name == "s1b0>s0b0")
    at_s, left = 6e-3, 100e6 * 8.0
    while left > 0:
        row = int(at_s / 2e-3 + 1e-9)
        rate_bps, until_s = conditions.rates_bps(row, 1)[0, link], (row + 1) * 2e-3
        step_s = min(until_s - at_s, left / rate_bps)
        at_s, left = at_s + step_s, left - rate_bps * step_s
    assert found["ranks"][0]["end_s"] == pytest.approx(at_s, abs=5e-4)
    assert (found["changes"], found["rerouted"]) == (int(found["run_s"] / 2e-3), 0)
    of_link = next(one for one in found["links"] if one["link"] == "s1b0>s0b0")
    whole = sum(float(conditions.rates_bps(row, 1)[0, link]) * 2e-3 / 8 for row in range(found["changes"]))
    rest = float(conditions.rates_bps(found["changes"], 1)[0, link]) / 8 * (found["run_s"] - found["changes"] * 2e-3)
    # A full frame of 9,014 bytes has 8,948 of payload, to which rates apply.
    assert of_link["capacity_bytes"] == pytest.approx((whole + rest) * 9014 / 8948, rel=1e-4)
    # The capture has as many bytes as the port counted.
    (captured,) = found["captures"]
    packets = pcap_lengths((tmp_path / "run" / captured["file"]).read_bytes())
    assert len(packets) == captured["packets"] and captured["lost"] == 0
    assert sum(packets) == of_link["bytes"] > 100e6
    with pytest.raises(ResultsError, match="of a program, which has no collectives"):
        load(tmp_path / "run")


def test_rerouting_busy_connections_loses_and_retransmits_nothing_and_is_reproducible(
    tmp_path: Path,
) -> None:
    """On a shorter path, packets overtake those under way on the old path, thousands at a time."""
    (tmp_path / "mine.py").write_text(CHANGING)
    keys = {"program.ranks": [1, 4], "conditions.every": "2 ms", "conditions.intra_rate": "200 Gbit/s"}
    options = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    options += ["--modes", "wan", "--set", "fabric.wan=five-router", "--wan-delay", "1 ms"]
    found, _ = program(tmp_path, f"{PYTHON} mine.py", *options)
    assert found["rerouted"] >= 20 and found["drops"] == 0
    assert [one["retransmitted_segments"] for one in found["ranks"]] == [0, 0]
    assert sum(one["bytes"] > 1e6 for one in found["links"] if one["link"].startswith("s1")) >= 2  # paths in use
    # The scenario in the run folder reproduces the run, to the nanosecond and the byte.
    again, _ = ended("run/scenario.toml", "--out", "again", "--json", cwd=tmp_path)
    same = {name: value for name, value in found.items() if name not in ("wall_s", "folder")}
    assert {name: value for name, value in json.loads(again).items() if name in same} == same
    assert (tmp_path / "again/links.csv").read_bytes() == (tmp_path / "run/links.csv").read_bytes()


BESIDE = """
name = "beside"
[fabric]
gpus = [2, 2]
[conditions]
wan_rate = "10 Gbit/s"
intra_rate = "100 Gbit/s"
wan_delay = "1 ms"
[run]
modes = ["base"]
[program]
ranks = [0, 2]
[[job]]
ranks = [1, 3]
"""


def test_jobs_run_beside_a_program_and_share_links_with_it(tmp_path: Path) -> None:
    """An AllGather between the sites begins with the ranks, the program's 10 MB once the client is connected, at 4 ms.
    Then both have half of the WAN's rate, and each has all of it while it is alone."""
    (tmp_path / "beside.toml").write_text(BESIDE + 'name = "ring"\nkind = "allgather"\nchunk = "8 MB"\n')
    late = "    time.sleep(0.001)\n    with socket.create_connection"
    (tmp_path / "mine.py").write_text(RECEIVES.replace("    with socket.create_connection", late))
    for run in ("run", "again"):
        ended("beside.toml", "--out", run, "--exec", f"{PYTHON} mine.py", cwd=tmp_path)
    for name in ("jobs.csv", "ranks.csv", "links.csv", "output/1.stdout"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with (tmp_path / "run/jobs.csv").open() as file:
        (row,) = csv.DictReader(file)  # the second round is not over when the program ends
    with (tmp_path / "run/ranks.csv").open() as file:
        end_s = float([*csv.DictReader(file)][1]["end_s"])
    rate, delay_s = 10e9 / 8, 1e-3
    ring_left = 8e6 - rate * 4e-3  # when the program begins to send
    first_s = 4e-3 + ring_left / (rate / 2)
    assert (row["round"], row["job"]) == ("0", "ring") and abs(float(row["start_s"])) < 1e-6
    assert float(row["completion_s"]) == pytest.approx(first_s + delay_s, rel=2e-3)
    second_s = first_s + delay_s + 1e-4
    left = 10e6 - ring_left - rate * (second_s - first_s)
    assert end_s == pytest.approx(second_s + left / (rate / 2) + delay_s, rel=2e-3)


def test_a_program_gets_what_the_class_of_a_job_leaves(tmp_path: Path) -> None:
    job = 'name = "ring"\nkind = "allgather"\nchunk = "8 MB"\nclass = "gold"\n[[class]]\nname = "gold"\npriority = 10\n'
    (tmp_path / "beside.toml").write_text(BESIDE + job)
    (tmp_path / "mine.py").write_text(RECEIVES)
    ended("beside.toml", "--out", "run", "--exec", f"{PYTHON} mine.py", cwd=tmp_path)
    with (tmp_path / "run/jobs.csv").open() as file:
        times_s = [float(row["completion_s"]) for row in csv.DictReader(file)]
    assert times_s == pytest.approx([8 * 8e6 / 10e9 + 1e-3] * len(times_s), rel=1e-3)
    # In each round of 7.5 ms, the link is free for 1.1 ms, and the program needs 8 ms.
    assert len(times_s) in (7, 8, 9)


def test_background_traffic_repeats_until_the_program_ends(tmp_path: Path) -> None:
    """A round has 50 messages of 100 kB from each of two GPUs, one each 160 us."""
    noise = 'name = "noise"\nkind = "background"\npattern = "permutation"\nrate = "5 Gbit/s"\nduration = "8 ms"\n'
    (tmp_path / "beside.toml").write_text(f'{BESIDE}{noise}chunk = "100 kB"\n')
    out, _ = ended("beside.toml", "--out", "run", "--json", "--exec", "sleep 0.1", cwd=tmp_path)
    found = json.loads(out)
    with (tmp_path / "run/jobs.csv").open() as file:
        rows = [(float(row["start_s"]), float(row["completion_s"])) for row in csv.DictReader(file)]
    # From the first to the last message, its time on the link, and the delay; then a pause of 0.1 ms.
    round_s = rows[1][0] - rows[0][0]
    assert 49 * 160e-6 + 8 * 100e3 / 10e9 + 1e-3 <= rows[0][1] <= 50 * 160e-6 + 8 * 100e3 / 10e9 + 1e-3 + 1e-5
    assert round_s == pytest.approx(rows[0][1] + 1e-4, abs=1e-6)
    assert len(rows) == found["rounds"] == int(0.1 / round_s)
    carried = {link["link"]: link["bytes"] for link in found["links"]}
    whole = 50 * 100e3 * HEADERS * len(rows)
    assert whole <= carried["s0b0>s1b0"] <= whole * 1.01 + 50 * 100e3 * HEADERS


FAULTS = """
name = "struck"
fault = [
    { at = "20 ms", what = "link s0b0-s1b0 down", for = "30 ms" },
    { at = "70 ms", what = "agent 2 slow 1000x", for = "10 ms" },
    { at = "100 ms", what = "controller killed", for = "40 ms" },
    { at = "110 ms", what = "link s0b0-s1b0 down", for = "15 ms" },
    { at = "200 ms", what = "link s0b0-s1b0 loss 100 %", for = "5 ms" },
    { at = "300 ms", what = "agent 3 killed" },
    { at = "1250 ms", what = "link s0b0-s1b0 down", for = "20 ms" },
    { at = "9 s", what = "switch s0b0 down" },
]
[fabric]
gpus = [2, 2]
[conditions]
every = "50 ms"
wan_rate = "10 Gbit/s"
intra_rate = "50 Gbit/s"
[conditions.links]
wan.delay = "5 ms"
"s1b0>s0b0".delay = "3 ms"
[run]
modes = ["wan"]
[program]
ranks = [0, 2, 3]
capture = ["s1b0>s0b1"]
"""


def test_faults_strike_a_program_at_their_times_and_the_controller_moves_its_packets(tmp_path: Path) -> None:
    """Rank 1 sends a datagram each ms. It takes the delay of its path, and waits only for a host that is too slow."""
    (tmp_path / "struck.toml").write_text(FAULTS)
    command = f"{PYTHON} {GUEST / 'pulses.py'} 1300"
    for run in ("run", "again"):
        out, said = ended("struck.toml", "--out", run, "--json", "--exec", command, cwd=tmp_path)
        assert "fault[8], switch s0b0 down, did not begin: the program had ended before 9 s" in said
    found = json.loads(out)
    for name in ("output/0.stdout", "faults.csv", "links.csv", "ranks.csv"):  # two boots
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    lines = (tmp_path / "run/output/0.stdout").read_text().splitlines()
    took_ms = {int(sent) // 1_000_000: int(took) / 1e6 for sent, took in map(str.split, lines)}
    # Without a controller, nobody leads packets around the link that is down.
    lost = {*range(111, 126), *range(201, 206)}
    assert set(range(1300)) - set(took_ms) == lost and found["drops"] == len(lost)
    slow_ms = 8 * (8000 + 42) / (50e9 * HEADERS) * 1000 * 1e3  # of a frame at a thousandth of the rate
    for sent, took in took_ms.items():
        delay_ms = 5 if 20 < sent <= 50 or 1250 < sent <= 1270 else 3
        waits_ms = min((sent - 71) * (slow_ms - 1), 80 - sent) if 70 < sent < 80 else 0.0  # at 80 ms the queue empties
        assert took == pytest.approx(delay_ms + waits_ms, abs=0.02), sent
    (captured,) = found["captures"]
    assert (captured["packets"], captured["lost"]) == (50, 0)  # those on the detour
    assert [one["status"] for one in found["ranks"]] == [0, 0, -9]
    assert found["ranks"][2]["end_s"] == pytest.approx(0.3, abs=1e-5)
    with (tmp_path / "run/faults.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["began_s"]) for row in rows] == pytest.approx([0.02, 0.07, 0.1, 0.11, 0.2, 0.3, 1.25], abs=1e-5)
    outcomes = ["recovered", "masked", "recovered", "masked", "masked", "rank 2 ended", "recovered"]
    assert [row["outcome"] for row in rows] == outcomes
    assert float(rows[0]["over_s"]) == pytest.approx(0.05, abs=1e-5) and float(rows[0]["recovered_s"]) < 0.01


class Network:
    """A stand-in for a testbed: it records the link rates that were set, and those by which paths were chosen."""

    def __init__(self) -> None:
        self.changed: list[np.ndarray] = []
        self.routed: list[tuple[np.ndarray, bool]] = []
        self.avoided: list[Cables] = []

    def change(self, rates_bps: np.ndarray) -> None:
        self.changed.append(rates_bps)

    def route_all(
        self,
        mode: object,
        rates_bps: np.ndarray,
        *,
        best: bool,
        dead: Cables,
        given: dict[tuple[int, int], int],
        wanted_bps: np.ndarray | None,
    ) -> int:
        assert not given and wanted_bps is None
        self.routed.append((rates_bps, best))
        self.avoided.append(dead)
        return 2

    def settle(self) -> None:
        pass


OWN = """
def mine(now):
    assert now.embedded <= now.routed and len(now.rates_bps) > 8
    return now.number == 2 or now.rerouted_s < 0.6 * now.kept_s, now.number == 5
"""


def slowest_s(fabric: Fabric, delays_s: np.ndarray, rates_bps: np.ndarray, paths: list[int], size: int) -> float:
    """Return the completion time when each GPU sends one message to each GPU of other sites and flows share links."""
    ends = [(a, b) for a in fabric.gpus for b in fabric.gpus if a.site != b.site]
    links = [
        links_in_grain(fabric).of(*map(np.array, (a.rank, b.rank, path)))
        for (a, b), path in zip(ends, paths, strict=True)
    ]
    ways = [[int(link) for link in way if link >= 0] for way in links]
    users = Counter(link for way in ways for link in way)
    return max(
        sum(delays_s[link] for link in way) + 8 * size / min(rates_bps[link] / users[link] for link in way)
        for way in ways
    )


@pytest.mark.parametrize(
    ("policy", "knowledge"),
    [("never", "oracle"), ("every 3", "stale 1"), ("drift 0.43", "oracle"), ("gain 0.5", "oracle"), (None, "oracle")],
)
def test_a_policy_chooses_paths_again_as_conditions_change_over_time(
    tmp_path: Path, policy: str | None, knowledge: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    of = {"reroute": policy, "reembed": "every"} if policy else {"function": f"{tmp_path}/own.py:mine"}
    mine = {"name": "mine", "knowledge": knowledge, **of}
    keys = {"policy": [mine], "run.modes": ["mine"], "conditions.every": "1 ms", "program.command": "true"}
    keys |= {"program.message": "3 MB", "fabric.gpus": [2, 2]}
    setting = rows_as_collectives(load_scenario("paper", [Override(key, value, key) for key, value in keys.items()]))
    network, count = Network(), 40
    timeline = ProgramTimeline(network, setting)  # type: ignore[arg-type]
    for number in range(1, count):
        assert timeline.next_ns == number * 1_000_000
        timeline.advance(timeline.next_ns)
    conditions = conditions_of(setting)
    true, router = conditions.rates_bps(0, count), Router(conditions.fabric, conditions.delays_s)
    assert np.array_equal(network.changed, true[1:])
    src, dst = np.nonzero(conditions.fabric.gpu_sites[:, None] != conditions.fabric.gpu_sites)

    def best(rates: np.ndarray) -> list[int]:
        return list(router.choose_jointly(rates[None], src[None], dst[None], chunk_bytes=3_000_000).path[0])

    def time_s(rates: np.ndarray, paths: list[int]) -> float:
        return slowest_s(conditions.fabric, conditions.delays_s, rates, paths, 3_000_000)

    chosen, force = list[int](), list(router.fixed(true[:1], src[None], dst[None]).path[0])
    for row in range(count):
        rates, basis = true[row], true[chosen[-1]] if chosen else np.zeros_like(true[0])
        drifted = np.mean(np.abs(rates - basis) / np.maximum(rates, basis)) >= 0.43
        kept_s, anew_s = time_s(rates, force), time_s(rates, best(rates))
        mine_says = row in (2, 5) or anew_s < 0.6 * kept_s
        if {
            "never": False,
            "every 3": row % 3 == 0,
            "drift 0.43": drifted,
            "gain 0.5": kept_s - anew_s >= 0.5 * kept_s,
        }.get(str(policy), mine_says):
            chosen.append(row)
            force = best(rates)
    assert policy in ("never", "every 3") or 3 < len(chosen) < count - 3
    believed = [true[max(0, row - 1) if knowledge == "stale 1" else row] for row in chosen]
    first = [] if chosen[:1] == [0] else [(true[0], False)]  # the fixed paths
    asked = [*first, *((rates, True) for rates in believed)]
    assert [(rates.tolist(), is_best) for rates, is_best in network.routed] == [(r.tolist(), one) for r, one in asked]
    assert (timeline.rerouted, timeline.messages) == (len(asked) - 1, 2 * len(asked))


def test_new_paths_are_in_force_once_the_controllers_messages_have_arrived(tmp_path: Path) -> None:
    """At 100 ms the short path gets slow. The controller is 8 ms away, and the program, which waits for nothing, goes
    on on the old path until then, also if costs are counted. Nothing else waits for the controller, whose switches
    confirm at 116 ms."""
    links = [f"s{a}b{x}>s{1 - a}b{y}" for a in (0, 1) for x in (0, 1) for y in (0, 1)]
    lines = ["time_s,link,rate_bps", *(f"0,{link},1e10" for link in links), "0.1,s1b0>s0b0,1e8", "1,s0b0>s1b0,1e10"]
    (tmp_path / "wan.csv").write_text("\n".join(lines) + "\n")
    keys = [
        'conditions.links={wan={delay="5 ms"}, "s1b0>s0b0"={delay="3 ms"}}',
        "conditions.sampler=trace",
        "conditions.trace=wan.csv",
        "conditions.every=50 ms",
        "control.delay=8 ms",
        "control.counted=true",
        'fault=[{at = "104 ms", what = "agent 1 slow 2x"}]',
        "program.ranks=[0, 2]",
    ]
    options = ["--modes", "wan", "--gpus", "4", *(word for key in keys for word in ("--set", key))]
    command = f"{PYTHON} {GUEST / 'pulses.py'} 140"
    found = json.loads(ended("--out", "run", "--json", "--exec", command, *options, cwd=tmp_path)[0])
    sent = [tuple(map(int, line.split())) for line in (tmp_path / "run/output/0.stdout").read_text().splitlines()]
    assert (len(sent), found["drops"], found["rerouted"]) == (140, 0, 1)
    for at_ns, took_ns in sent:
        delay_ns = 3_000_000 if at_ns < 108_500_000 else 5_000_000
        assert took_ns == pytest.approx(delay_ns, abs=10_000), at_ns
    assert found["faults"][0]["began_s"] == pytest.approx(0.104, abs=1e-5)


@pytest.mark.parametrize(("rule", "rows"), [("every 1", range(9)), ("drift 0.03", [0, 2, 4, 5, 6])])
def test_paths_are_chosen_under_the_faults_that_are_in_force_then(rule: str, rows: Sequence[int]) -> None:
    """Each millisecond, a rule knows which links have failed and which hosts are slow; the controller finds out by
    itself what has failed. A leaf that is down cuts GPUs off, which no choice avoids: they are left out of a request,
    and of a rule's rates, and put back once it is up."""
    tables = [
        {"at": "1500 us", "what": "link s0b0-s1b0 down", "for": "2 ms"},
        {"at": "4500 us", "what": "agent 1 slow 4x", "for": "1 ms"},
        {"at": "6500 us", "what": "switch s1l0 down", "for": "1 ms"},
    ]
    rates = {"conditions.wan_rate": "10 Gbit/s", "conditions.intra_rate": "50 Gbit/s", "conditions.every": "1 ms"}
    mine = {"policy": [{"name": "mine", "reroute": rule, "reembed": "never"}], "run.modes": ["mine"]}
    keys = mine | rates | {"program.command": "true", "fault": tables}
    setting = rows_as_collectives(load_scenario("paper", [Override(key, value, key) for key, value in keys.items()]))
    network = Network()
    timeline = ProgramTimeline(network, setting)  # type: ignore[arg-type]
    for number in range(1, 9):
        at_ns = number * 1_000_000
        timeline.advance(at_ns, active_at(setting.faults, at_ns))
        if number in (6, 7):  # the leaf fails, and is back
            timeline.struck(active_at(setting.faults, at_ns + 500_000), routes=True, anew=False)
    conditions = conditions_of(replace(setting, faults=()))
    fabric, plain = conditions.fabric, conditions.rates_bps(0, 9)
    plain[5, [link.index for link in fabric.links if link.src == "g1"]] /= 4
    again = [7] if rule == "every 1" else []  # the pairs that were left out at 7 ms
    assert np.array_equal([told for told, _ in network.routed], plain[sorted([*rows, *again])])
    assert np.array_equal(network.changed[4], plain[5])
    assert network.avoided.count(cables_of(fabric, "s1l0")) == len(again)


def test_a_link_whose_rate_is_0_at_the_beginning_of_a_trace_is_down_for_a_program(tmp_path: Path) -> None:
    links = [f"s{a}b{x}>s{1 - a}b{y}" for a in (0, 1) for x in (0, 1) for y in (0, 1)]
    rates = {"s0b0>s1b0": 0} | dict.fromkeys(links[1:], 10**10)
    lines = ["time_s,link,rate_bps", *(f"0,{link},{rate}" for link, rate in rates.items()), "1,s0b1>s1b0,0"]
    (tmp_path / "wan.csv").write_text("\n".join([*lines, "2,s0b1>s1b0,1e10"]) + "\n")
    setting = scenario(
        "program.command=sleep 1", "conditions.sampler=trace", f"conditions.trace={tmp_path / 'wan.csv'}"
    )
    (configuration,) = setting.configurations()
    found = [(one.what, one.at, one.lasts_s) for one in rows_as_collectives(configuration).faults]
    assert found == [("link s0b0-s1b0 down", "0 s", None)]


def test_a_step_takes_as_long_as_on_its_slowest_rank() -> None:
    told = [(0, 0, 1.0), (1, 0, 3.0), (0, 1, 2.0), (1, 1, 1.0), (0, 2, 9.0)]
    assert step_time(told) == 3.0  # of 3, 2 and 9
    assert step_time([]) is None


def test_steps_and_tokens_are_told_on_lines_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "output"
    folder.mkdir()
    for rank, steps in enumerate((((0.5, 4096), (0.25, 2.5e16)), ((1.0, 4096), (0.5, 0)))):
        for step, tokens in steps:
            longhaul.report(step, tokens=tokens)
        print("longhaul: step 3 tokens many\nlonghaul: step 0.1 token 3\nsaid longhaul: step 1 tokens 1")
        (folder / f"{rank}.stdout").write_text(capsys.readouterr().out)
    told = list(steps_told(tmp_path, 3))
    assert told == [(0, 0, 0.5, 4096), (0, 1, 0.25, 2.5e16), (1, 0, 1.0, 4096), (1, 1, 0.5, 0)]
    assert tokens_per_s(told) == pytest.approx((2 * 4096 + 2.5e16) / (1.0 + 0.5))
    assert tokens_per_s([*told, (0, 2, 1.0, None)]) is None and tokens_per_s([]) is None
    longhaul.report(step=0.125)
    assert capsys.readouterr().out == "longhaul: step 0.125000000\n"
    for tokens in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"{tokens} is not a number of tokens; allowed: a number from 0 up"):
            longhaul.report(1.0, tokens)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("longhaul: step 0.5\nlonghaul: steps follow\nmine: step x\n", ""),
        (
            "longhaul: step abc\n",
            'rank 1 printed "longhaul: step abc", which tells no step; allowed: longhaul: step SECONDS',
        ),
        (
            "longhaul: step 1\nlonghaul: step -1\nlonghaul: step 0.5 tokens x\nlonghaul: step\n",
            'rank 1 printed "longhaul: step -1" and 2 more such lines, which tell no step',
        ),
    ],
)
def test_lines_that_tell_no_step_are_told_once(lines: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "0.stdout").write_text("longhaul: step 0.25\n")
    (tmp_path / "output" / "1.stdout").write_text(lines)
    (config,) = scenario("program.command=sleep 1").configurations()
    result = result_of(config, RunState(tmp_path, (0, 4)), None, 1.0)
    told = [note for note in notes(result, config) if re.search("tells? no step", note)]
    assert len(told) == bool(said) and all(note.startswith(said) for note in told)


def test_the_progress_table_has_a_line_for_each_rank(tmp_path: Path) -> None:
    state = RunState(tmp_path, (0, 4, 5))
    lines = [
        {"began": True, "links": [], "beginning_ns": 0},
        {"rank": 1, "stream": "stdout", "text": base64.b64encode(b"one\n\x1b[31mtw").decode()},
        {"rank": 1, "stream": "stdout", "text": base64.b64encode(b"o\n").decode()},
        {"rank": 0, "ended": 3, "at_ns": 1_250_000_000},
        {"rank": 2, "ended": 0, "at_ns": 2_000_000_000},
    ]
    state.write("".join(json.dumps(line) + "\n" for line in lines).encode())
    assert list(state.rank_rows()) == [
        ("0", "g0", "ended with status 3, at 1.250 s", "0", ""),
        ("1", "g4", "runs", "13", "[31mtwo"),
        ("2", "g5", "done, at 2.000 s", "0", ""),
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(progress_table(state, 12.0))
    text = console.file.getvalue()
    assert "2.000 s of the run's time, 12 s of wall time: 1 of 3 ranks run, 1 done, 1 failed" in text
    assert len(text.splitlines()) == 5


def test_iperf_measures_the_rate_of_the_wan_link(tmp_path: Path) -> None:
    command = "if [ $RANK = 0 ]; then timeout 1 iperf -s; true; else iperf -c g0 -t 0.2 -f m; fi"
    options = ("--set", "program.ranks=[0, 4]", "--wan-delay", "1 ms")
    program(tmp_path, command, *CONSTANT, *options)
    said = (tmp_path / "run/output/0.stdout").read_text()
    assert float(re.findall(r"([0-9.]+) Gbits/sec", said)[-1]) == pytest.approx(40, rel=0.03)


def test_a_hostile_program_is_bounded_by_its_limits_and_each_violation_is_reported(tmp_path: Path) -> None:
    small = ("program.deadline='1 s'", 'program.output="1 MB"', 'program.files="32 MB"', 'program.memory="800 MB"')
    options = [word for one in small for word in ("--set", one)]
    found, said = program(tmp_path, f"{PYTHON} {GUEST / 'hostile_program.py'}", "--gpus", "6", *options, status=1)
    statuses = [one["status"] for one in found["ranks"]]
    output = {rank: (tmp_path / f"run/output/{rank}.stdout").read_bytes() for rank in (1, 4, 5)}
    assert found["deadline"] and found["run_s"] < 4
    assert "ended at the deadline of 1 s" in said
    assert statuses[0] in (-9, -15)  # ended by SIGTERM, or by SIGKILL where SIGTERM is ignored
    assert statuses[1] == 0 and output[1] == b"x" * 1_000_000
    assert "64,536,000 bytes of rank 1's output were discarded: program.output keeps 1,000,000" in said
    assert statuses[2] == 1 and "No space left" in (tmp_path / "run/output/2.stderr").read_text()
    assert "filled the 32,000,000 bytes of program.files" in said
    assert sum(file.stat().st_size for file in (tmp_path / "run/files").iterdir()) <= 32_000_000
    assert statuses[3] in (1, -9, 137)  # its allocation failed, or it was killed when memory ran out
    assert output[4].split(b" ", 1)[0] == b"6" and b"'g4-eth0'" in output[4] and output[4].endswith(b"True\n")
    assert 100 < int(output[5]) <= 600
    assert f"{found['left_running']} processes were still running" in said and found["left_running"] >= int(output[5])
    why = r'rank [23] after "(OSError|MemoryError).*": run/output has the output'
    assert re.search(rf"ranks? 2(, 3)? ended with status 1, {why}", said)


def test_ranks_that_together_exhaust_memory_are_told_which_key_has_more(tmp_path: Path) -> None:
    hold = "import os, time; held = [os.urandom(1 << 20) for _ in range(150)]; time.sleep(5)"
    said = program(tmp_path, f"exec {PYTHON} -c '{hold}'", "--set", 'program.memory="300 MB"', status=1)[1]
    killed = r"Linux killed [2-8] processes \(python.*\): set program.memory above 300 MB"
    assert re.search(f"memory was full, of which sockets' buffers are a part, so {killed}", said)
    assert re.search(r"ranks .* ended by signal 9: run/output has the output", said)


def test_an_interrupted_program_leaves_its_output_so_far_and_says_where(tmp_path: Path) -> None:
    output = tmp_path / "run" / "output" / "0.stdout"
    with started("--gpus", 4, "--exec", "echo hi; while sleep 1; do :; done", "--out", "run", cwd=tmp_path) as process:
        await_that(lambda: (output.exists() and output.read_text() == "hi\n") or process.poll() is not None, 120)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and output.read_text() == "hi\n", said
    left = "the unfinished run is in run; a program's run cannot be resumed, only started again in another folder"
    assert said.endswith(f"run.py: {left}\nrun.py: interrupted\n")
    _, refused = ended("--resume", "run", cwd=tmp_path, status=2)
    assert "cannot be resumed" in refused  # as it has said


def test_a_rank_that_stalls_virtual_time_is_named_and_killed(tmp_path: Path) -> None:
    command = "if [ $RANK = 2 ]; then cat more >/dev/null; while :; do :; done; fi; sleep 1"
    with (tmp_path / "more").open("wb") as file:
        file.truncate(1_000_000_000)  # more than the VM can cache
    small = [
        word for one in ("patience='3 s'", "memory='40 MB'", "files='32 MB'") for word in ("--set", f"program.{one}")
    ]
    found, said = program(tmp_path, command, *small, "--gpus", "4", status=1)
    assert "virtual time has stood still" in said and "as rank 2 (`sh -c if [ $RANK = 2 ]" in said
    assert "--clock wall --rate-scale 1/1000" in said and "give the program more with program.memory" in said
    assert found["ended_early"] and {one["status"] for one in found["ranks"]} == {None}


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        (["--exec", ""], '--exec: "" is not allowed'),
        (["--exec", "true", "--engine", "model"], "--engine cannot be combined with --exec"),
        (
            ["--exec", "true", "--resume", "run"],
            "--exec: cannot be combined with --resume, as a program cannot be resumed",
        ),
        (["--capture", "s0b0>s1b9"], '--capture: "s0b0>s1b9" is not a link; allowed:'),
        (["--capture", "s0b0>s1b0", "--engine", "model"], "--capture: cannot be combined with --engine model"),
        (["--exec", "true", "--chunk", "1 MB"], "--chunk cannot be combined with --exec, which runs no collectives"),
        (
            ["--exec", "true", "--set", "collective.kind=alltoall"],
            "--set collective.kind cannot be combined with --exec",
        ),
        (["--exec", "true", "--capture", "s0b0>s1b9"], '"s0b0>s1b9" is not a link; allowed:'),
        (["--exec", "true", "--policy", "mine.py"], 'mine.py" is not understood; allowed: FILE:NAME'),
        (["--exec", "true", "--set", 'program.message="0 B"'], 'program.message: "0 B" is zero'),
        (["--exec", "printf \udcff"], "is not allowed; allowed: a command for the shell"),
        (["--exec", "true", "--cli"], "--cli cannot be combined with --exec"),
        (["--exec", "true", "--set", "program.ranks=[8]"], "there is no rank 8; allowed: 0 to 7"),
        (["--exec", "true", "--set", "program.ranks=[1,1]"], "[1, 1] is not allowed"),
        (["--exec", "true", "--set", "program.env={A = 1}"], "A is 1; allowed: a table"),
        (
            ["--exec", "true", "--set", "program.env={A = 'b', RANK = '3'}"],
            "RANK is set by the run; allowed: names",
        ),
        (["--exec", "true", "--set", "program.date=2026-01-01"], "2026-01-01 is a date or a time; allowed: host, or a"),
        (["--exec", "true", "--set", "program.date=today"], '"today" is not allowed; allowed: host, or a date'),
        (["--exec", "true", "--set", "program.date=1970-01-01T00:00:00"], "1970-01-01 00:00:00 is not allowed"),
        (["--exec", "true", "--set", "program.memory='1 B'"], 'program.memory: "1 B" is too small'),
        (["--exec", "true", "--set", "program.memory='2 MB'"], 'program.memory: "2 MB" is too little for the ranks'),
        (["--exec", "true", "--set", "program.memory='7999999 B'"], 'allowed: "8 MB" or more'),
        (["--sweep", "program.deadline=1 s,2 s"], "cannot be swept"),
        (
            ["--exec", "true", "--set", 'fault=[{at="0 s",what="agent 3 killed"}]', "--set", "program.ranks=[0, 4]"],
            "fault[1].what: the program has no rank on GPU 3; allowed: the GPUs of program.ranks, 0, 4",
        ),
    ],
)
def test_invalid_program_options_are_refused_before_the_run(
    options: list[str], mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiment.run(options) == 2
    assert mistake in capsys.readouterr().err


def test_a_scenario_without_a_program_is_written_without_a_program_table() -> None:
    assert "[program]" not in resolved(load_scenario("paper"))


@given(
    command=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip),
    ranks=st.none() | st.lists(st.integers(0, 7), min_size=1, unique=True),
    env=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True), st.text("ab =\"'{}#é")),
)
def test_a_program_survives_being_written_to_toml_and_json(
    command: str, ranks: list[int] | None, env: dict[str, str]
) -> None:
    given_ = {"program.command": command, "program.env": env} | ({} if ranks is None else {"program.ranks": ranks})
    try:
        found = scenario(**given_)
    except ScenarioError:
        pytest.fail("a program that is allowed was refused")
    assert found.program.command == command and dict(found.program.env) == env
    assert scenario_of(resolved(found)).program == from_json(to_json(found)).program == found.program


ARGUMENT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20).filter(
    lambda text: not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", text) and not text.endswith("x86_64")
)


@given(
    arguments=st.lists(ARGUMENT, min_size=1, max_size=5),
    before=st.lists(st.sampled_from(["A=1", "PATH=/bin:/x", "EMPTY="]), max_size=3),
    rank=st.integers(0, 10**6),
    random=st.binary(max_size=16),
    padding=st.sampled_from([[], [""]]),
)
def test_the_rank_and_command_of_a_process_are_read_from_its_stack(
    arguments: list[str], before: list[str], rank: int, random: bytes, padding: list[str]
) -> None:
    # The kernel's layout: random bytes, platform, padding, arguments, environment variables, file name.
    parts = ["x86_64", *padding, *arguments, *before, f"RANK={rank}", "LAST=1", "/bin/x", "", ""]
    command = " ".join(arguments)
    found = command_of(random + "\0".join(parts).encode())
    assert found is not None and found.startswith(f"rank {rank} (`{command[:100]}")
    assert command_of("\0".join(arguments).encode()) is None
    alone = command_of(
        random + "\0".join(["x86_64", *padding, *arguments, *before, "LAST=1", "/bin/x", "", ""]).encode()
    )
    assert alone is not None and alone.startswith(f"`{command[:100]}")
    gone = ["x86_64", *padding, *("" for _ in arguments), *before, "LAST=1", "/bin/x", "", ""]
    assert command_of(random + "\0".join(gone).encode()) is None


def test_a_dry_run_of_a_program_prints_a_runnable_scenario_without_points(tmp_path: Path) -> None:
    command = [sys.executable, str(PROJECT / "scenarios" / "run.py"), "--exec", "true", "--dry-run"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert tomllib.loads(said)["program"]["command"] == "true"
    assert "# the program on 8 GPUs" in said and "collectives" not in said.partition("# the program")[2]
    found = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert json.loads(found)["points"] == []


STEPS = """
import os, longhaul
if os.environ["RANK"] == "0":
    for step in (0.25, 0.5, 0.125):
        longhaul.compute(step)
        longhaul.report(step=step)
print("rank", os.environ["RANK"])
"""


def test_several_modes_and_rates_are_compared_by_the_steps_that_the_program_tells(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEPS)
    sets = ("--set", "program.ranks=[0, 3]", "--gpus", "4", "--sweep", "conditions.wan_rate=1 Gbit/s,10 Gbit/s")
    command = ("--modes", "base,wan", "--exec", f"{PYTHON} mine.py", "--rank-output", "all")
    out, err = ended(*sets, *command, "--out", "run", cwd=tmp_path)
    assert "take no virtual time" not in err  # as the program computes by longhaul.compute
    parts = re.findall(r"([0-9.]+) % of rank 0's median step of 250 ms at wan rate", out)
    assert parts == ["100.0"] * 4
    assert "Computing (longhaul.compute) takes " in out and ", more than half everywhere; the rest is communi" in out
    assert out.count("[rank 0] longhaul: step 0.250000000\n") == out.count("[rank 1] rank 1\n") == 4
    table = out.partition("step, s")[2].splitlines()[1:5]
    assert [line.split()[1:3] for line in table] == [["0.250000", "3"]] * 4
    by = "compared by the median step (each as long as on its slowest rank), 2 configurations"
    assert f"base and wan {by}: base and wan take the same time" in out
    assert [line.rpartition(", ")[2] for line in table] == ["base", "wan", "base", "wan"]
    with (tmp_path / "run/steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    told = [(row["configuration"], row["mode"], row["rank"], float(row["step_s"])) for row in rows]
    modes = [("1", "base"), ("2", "wan"), ("3", "base"), ("4", "wan")]
    assert told == [(*one, "0", step_s) for one in modes for step_s in (0.25, 0.5, 0.125)]
    with (tmp_path / "run/figures/steps.csv").open() as file:
        drawn = [(row["conditions.wan_rate"], row["mode"], float(row["step_s"])) for row in csv.DictReader(file)]
    assert drawn == [(rate, mode, 0.25) for rate in ("1 Gbit/s", "10 Gbit/s") for mode in ("base", "wan")]


def test_a_command_that_the_shell_cannot_run_is_tried_in_one_configuration_only(tmp_path: Path) -> None:
    sets = (
        "--set",
        "program.ranks=[0, 3]",
        "--gpus",
        "4",
        "--sweep",
        "conditions.wan_rate=1 Gbit/s,10 Gbit/s,20 Gbit/s",
    )
    _, err = ended(*sets, "--modes", "base", "--exec", "./nothing", "--out", "run", cwd=tmp_path, status=1)
    assert "the shell could not run the command, so 2 more runs were left out" in err
    assert (
        "ended with status 127" in err and err.count("./nothing: not found") == 2
    )  # as it was printed, and in the sentence
    assert [one.name for one in (tmp_path / "run").iterdir() if one.is_dir()] == ["1"]


@pytest.mark.parametrize(
    ("named", "ran"), [('modes = ["base", "wan"]\n', ["base", "wan"]), ("", ["base"]), ('modes = ["ccl"]\n', ["ccl"])]
)
def test_the_modes_that_a_file_names_run_a_program_and_its_note_tells_of_computing(
    tmp_path: Path, named: str, ran: list[str]
) -> None:
    text = f'[fabric]\ngpus = 2\n[program]\ncommand = "true"\n[run]\nseed = 1\n{named}'
    (tmp_path / "mine.toml").write_text(text)
    out, err = ended("mine.toml", "--json", cwd=tmp_path)
    found = json.loads(out)
    assert [one["mode"] for one in found.get("configurations", [found])] == ran
    assert err.count("processors take no virtual time") == 1


@pytest.mark.parametrize(("options", "shown"), [((), "rank 0\n"), (("--rank-output", "none"), "")])
def test_the_output_of_rank_0_is_printed_unless_it_is_not_wanted(
    tmp_path: Path, options: tuple[str, ...], shown: str
) -> None:
    sets = ("--set", "program.ranks=[0, 3]", "--gpus", "4", "--modes", "base")
    out, _ = ended(*sets, *options, "--exec", "echo rank $RANK", "--out", "run", cwd=tmp_path)
    assert out.startswith(f"{shown}rank   GPU") and (tmp_path / "run/output/1.stdout").read_text() == "rank 1\n"
    assert f"the output of {'the other' if shown else 'all'} ranks is in run/output\n" in out
