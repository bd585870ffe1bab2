"""Modes with measured ports beside a program: what busy ports show, and the paths that are chosen by it."""

import csv
import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.policies.busy_ports import LEAST_BYTES, BusyPorts
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, scenario_of
from tests.fakes.packets import HEADERS
from tests.fakes.runs import ended

FRAME = 9014
PAYLOAD = 8948 / FRAME
LINKS = [f"s{a}b{x}>s{1 - a}b{y}" for a in (0, 1) for x in (0, 1) for y in (0, 1)]
ROW_S, ROWS = 0.3, 6
FIRST = "s0b0>s1b0"
FIRST_MBPS = [200, 200, 40, 40, 40, 200, 200, 200]  # 150 Mbit/s on average
OTHER_MBPS = 100

SCENARIO = """
[fabric]
gpus = [1, 1]
[conditions]
intra_rate = "100 Gbit/s"
wan_delay = "2 ms"
sampler = "trace"
trace = "wan.csv"
every = "300 ms"
[run]
modes = ["reads"]
[[policy]]
name = "reads"
reroute = "gain 0.02"
knowledge = "measured ports"
measure_every = "3 ms"
[[policy]]
name = "old"
reroute = "every 1"
knowledge = "stale 1"
"""
# Sends as fast as it can, or so many bytes every ms; the receiver prints what has arrived at the end of each row.
STREAM = f"""
import os, socket, sys, time
began, each = time.monotonic(), int(sys.argv[1])
if os.environ["RANK"] == "0":
    with socket.create_server(("", 7000)) as server:
        connection, got = server.accept()[0], 0
    connection.settimeout(0.001)
    for row in range(1, {ROWS + 1}):
        while time.monotonic() < began + row * {ROW_S}:
            try:
                got += len(connection.recv(1 << 16))
            except TimeoutError:
                pass
        print(time.monotonic() - began, got)
    connection.close()
else:
    with socket.create_connection(("g1", 7000)) as connection:
        try:
            while True:
                connection.sendall(bytes(each or 1 << 16))
                time.sleep(0.001 if each else 0)
        except OSError:
            pass
"""


def rates(folder: Path, *options: str, each: int = 0) -> tuple[list[float], list[tuple[int, str, float]]]:
    """Run the stream; return what arrived in each row, in Mbit/s, and what ports have shown: row, link, Mbit/s."""
    rows = [
        f"{row * ROW_S},{link},{rate if link == FIRST else OTHER_MBPS}e6"
        for row, rate in enumerate(FIRST_MBPS)
        for link in LINKS
    ]
    (folder / "wan.csv").write_text("\n".join(["time_s,link,rate_bps", *rows]) + "\n")
    (folder / "measured.toml").write_text(SCENARIO)
    (folder / "stream.py").write_text(STREAM)
    command = f"{sys.executable} stream.py {each}"
    ended("measured.toml", "--out", "run", *options, "--set", "program.ranks=[1, 0]", "--exec", command, cwd=folder)
    lines = [line.split() for line in (folder / "run/output/0.stdout").read_text().splitlines()]
    at = np.array([[0.0, 0.0], *([float(seconds), float(got)] for seconds, got in lines)])
    goodput = 8e-6 * np.diff(at[:, 1]) / np.diff(at[:, 0])
    seen = []
    if (folder / "run/measured.csv").exists():
        with (folder / "run/measured.csv").open() as file:
            seen = [
                (round(float(row["time_s"]) / ROW_S) - 1, row["link"], float(row["rate_bps"]) / 1e6)
                for row in csv.DictReader(file)
            ]
    return goodput.tolist(), seen


def test_a_mode_that_reads_ports_leaves_a_slow_link_one_row_later_and_does_not_learn_when_it_is_fast_again(
    tmp_path: Path,
) -> None:
    """The link that is best on average is slow from the third row on. Once it is read, the connection moves to one of
    the others; that the first link is fast again, no packet shows."""
    goodput, seen = rates(tmp_path)
    # In each row packets of the one before arrive during a delay: 0.7 % of it.
    wanted = [FIRST_MBPS[0], FIRST_MBPS[1], FIRST_MBPS[2], OTHER_MBPS, OTHER_MBPS, OTHER_MBPS]
    carried = [wanted[0] * (1 - 8e-3 / ROW_S), *wanted[1:]]
    late = [0.0, *(2e-3 / ROW_S * (before - now) for before, now in pairwise(wanted))]
    assert goodput == pytest.approx([one + more for one, more in zip(carried, late, strict=True)], rel=0.02)
    assert [row for row, _, _ in seen] == [*range(ROWS)][: len(seen)] and len(seen) >= ROWS - 1
    assert [link for _, link, _ in seen[:3]] == [FIRST] * 3
    (other,) = {link for _, link, _ in seen[3:]}
    assert other in LINKS[1:4]
    assert [rate for _, _, rate in seen] == pytest.approx(wanted[: len(seen)], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("base", FIRST_MBPS[:ROWS]),
        ("wan", [max(rate, OTHER_MBPS) for rate in FIRST_MBPS[:ROWS]]),
        ("old", [200, 200, 40, 100, 100, 100]),
    ],
)
def test_other_knowledge_moves_the_connection_at_once_later_or_never(
    tmp_path: Path, mode: str, wanted: list[float]
) -> None:
    goodput, seen = rates(tmp_path, "--modes", mode)
    assert goodput[1:] == pytest.approx(wanted[1:], rel=0.03) and not seen


def test_a_port_that_a_program_does_not_fill_shows_nothing(tmp_path: Path) -> None:
    """The program sends 10 Mbit/s, so no port has a queue: the first link is believed to have its mean rate."""
    goodput, seen = rates(tmp_path, each=1250)
    assert goodput[1:] == pytest.approx([10.0] * (ROWS - 1), rel=0.05) and not seen


@given(
    st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(1, 400)), min_size=1, max_size=30),
    st.integers(10_000_000, 10_000_000_000),
    st.integers(100_000, 20_000_000),
)
def test_a_port_shows_never_more_than_its_rate_and_nearly_all_of_it_if_it_is_never_idle(
    bursts: list[tuple[int, int]], rate_bps: int, every_ns: int
) -> None:
    """A port serves the packets of bursts, given as pauses and numbers of packets, one after the other."""
    frame_ns = 8e9 * FRAME / rate_bps
    for is_idle in (True, False):
        arrive, leave, now = list[float](), list[float](), 0.0
        for pause_ns, packets in bursts:
            now += pause_ns if is_idle else 0
            for _ in range(packets):
                arrive.append(now)
                # It leaves the queue, and is counted, as soon as the one before has been sent.
                leave.append(max(now, leave[-1] + frame_ns) if leave else now)
        ports, came, gone, busy = BusyPorts(2), np.array(arrive), np.array(leave), list[tuple[int, int]]()
        for at_ns in range(0, min(int(gone[-1]), 3000 * every_ns) + every_ns, every_ns):
            sent = int((gone <= at_ns).sum())
            queued = int((came <= at_ns).sum()) - sent
            ports.read(at_ns, np.array([sent, 0]) * FRAME, np.array([queued, 0]) * FRAME)
            if queued:
                busy.append((at_ns, sent))
        found, idle = ports.rates_bps()
        assert np.isnan(idle) and not found > rate_bps * PAYLOAD + 1
        if not is_idle:  # one stretch
            frames = busy[-1][1] - busy[0][1] if busy else 0
            assert np.isnan(found) == (frames * FRAME < LEAST_BYTES)
            assert np.isnan(found) or found >= rate_bps * PAYLOAD * (1 - 2 / frames) - 1


def test_no_stretch_goes_on_across_a_missing_reading() -> None:
    ports = BusyPorts(1)
    for at_ns in (0, 1_000_000):
        ports.read(at_ns, np.array([at_ns]), np.array([1]))
    ports.interrupt()
    ports.read(10_000_000, np.array([1_500_000]), np.array([1]))  # it may have been idle meanwhile
    (rate_bps,) = ports.rates_bps()
    assert rate_bps == pytest.approx(8e9 * PAYLOAD * (1 - FRAME / 1e6), rel=1e-6)  # one packet less


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"conditions.every": None, "program.backend": "longhaul", "control.delay": "1 ms"},
            "and control.delay makes readings late; allowed: with conditions.every, or without control.delay",
        ),
        ({"policy": "1 s"}, "and its second reading arrives after 1 s; allowed: before the next row"),
        ({"control.delay": "298 ms"}, "and its second reading arrives after 301 ms; allowed: before the next row"),
        ({"transport.queue": "fifo"}, "reads, which knows measured ports, cannot be combined with transport.queue"),
    ],
)
def test_readings_that_come_too_late_or_mean_nothing_are_refused(options: dict[str, str | None], says: str) -> None:
    text = SCENARIO.replace('sampler = "trace"\ntrace = "wan.csv"\n', "") + "[program]\ncommand = 'true'\n"
    if "conditions.every" in options:
        text = text.replace('every = "300 ms"\n', "")
    if "policy" in options:
        text = text.replace("3 ms", str(options["policy"]))
    overrides = [Override(key, value, key) for key, value in options.items() if value and key != "policy"]
    with pytest.raises(ScenarioError) as refusal:
        scenario_of(text, overrides)
    assert any(says in mistake for mistake in refusal.value.mistakes)


@pytest.mark.parametrize(
    ("knowledge", "options", "where"),
    [
        ("measured ports", (), ' of program.backend "longhaul" or in the rows of conditions.every'),
        ("measured ends", ("--set", 'conditions.every="1 s"'), ' of program.backend "longhaul"'),
        ("measured ports", ("--set", 'conditions.every="1 s"'), None),
        ("measured ends", ("--set", 'program.backend="longhaul"'), None),
    ],
)
def test_knowledge_that_a_program_never_gives_is_told(
    tmp_path: Path, knowledge: str, options: tuple[str, ...], where: str | None
) -> None:
    policy = f'[[policy]]\nname = "blind"\nreroute = "every"\nreembed = "never"\nknowledge = "{knowledge}"\n'
    (tmp_path / "blind.toml").write_text(policy)
    _, said = ended("blind.toml", "--modes", "blind", "--dry-run", "--exec", "true", *options, cwd=tmp_path)
    text = f"blind learns nothing of {knowledge}, and expects the mean rates: it is measured in the collectives{where}"
    assert (f"run.py: {text}\n" in said) == (where is not None)
    assert where is not None or "learns nothing" not in said


PROBED = """
[fabric]
gpus = [2, 2]
[conditions]
intra_rate = "100 Gbit/s"
[conditions.links]
wan.rate = "10 Gbit/s"
"s0b1>s1b0".rate = "40 Gbit/s"
"s1b0>s0b1".rate = "20 Gbit/s"
[run]
modes = ["probing"]
[[policy]]
name = "probing"
reroute = "every"
reembed = "never"
knowledge = "probed"
"""
ONE = """
import os, socket, sys, time
if os.environ["RANK"] == "2":
    with socket.create_server(("", 7000)) as server:
        connection = server.accept()[0]
    while connection.recv(1 << 20): pass
elif os.environ["RANK"] == "0":
    time.sleep(0.01)
    with socket.create_connection(("g2", 7000)) as connection:
        connection.sendall(bytes(10_000_000))
"""


def test_probes_before_the_ranks_start_show_the_slowest_links_and_the_program_takes_the_best_path(
    tmp_path: Path,
) -> None:
    (tmp_path / "probed.toml").write_text(PROBED)
    (tmp_path / "one.py").write_text(ONE)
    for run in ("run", "again"):
        _, said = ended("probed.toml", "--out", run, "--exec", f"{sys.executable} one.py", cwd=tmp_path)
        assert "probing sends its probes once, before the ranks start, and knows what they show until the end" in said
    for name in ("measured.csv", "links.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with (tmp_path / "run" / "measured.csv").open() as file:
        found = {one["link"]: float(one["rate_bps"]) for one in csv.DictReader(file)}
    fast = {"s0b1>s1b0": 40e9, "g0>s0b1": 40e9, "s1b0>g3": 40e9, "s1b0>s0b1": 20e9, "g2>s1b0": 20e9, "s0b1>g1": 20e9}
    slow = {"s0b0>s1b0": 10e9, "s1b1>s0b1": 10e9, "g1>s0b0": 10e9, "s1b1>g2": 10e9}
    for link, rate_bps in (fast | slow).items():
        assert found[link] == pytest.approx(rate_bps, rel=0.005), link
    with (tmp_path / "run" / "links.csv").open() as file:
        carried = {one["link"]: int(one["bytes"]) for one in csv.DictReader(file)}
    assert carried["s0b1>s1b0"] > 10_000_000 and max(carried[link] for link in ("s0b0>s1b0", "s0b0>s1b1")) == 0


COLLECTIVES = """
import json, os, socket, time
rank = int(os.environ["RANK"])
run = socket.socket(socket.AF_UNIX)
run.connect(os.environ["LONGHAUL_COLLECTIVES"])
lines = run.makefile("rwb")
def say(**message):
    lines.write(json.dumps(message).encode() + b"\\n")
    lines.flush()
say(ask="group", group="all", made="a", ranks=[0, 1])
lines.readline()
if rank == 0:
    with socket.create_server(("", 7000)) as server:
        other = server.accept()[0]
else:
    other = socket.create_connection(("g0", 7000))
for number in range(10):
    asked = time.monotonic_ns()
    say(ask="plan", group="all", number=number, kind="broadcast", bytes=20_000_000, unit=4, root=0)
    assert "plan" in json.loads(lines.readline())
    begun = time.monotonic_ns()
    if rank == 0:
        other.sendall(bytes(20_000_000))
        other.recv(1)
    else:
        left = 20_000_000
        while left:
            left -= len(other.recv(min(left, 1 << 20)))
        other.sendall(b"x")
    say(tell="ended", group="all", number=number, asked_ns=asked, begun_ns=begun, ended_ns=time.monotonic_ns())
"""
CONSTANT = """
[fabric]
gpus = [1, 1]
[conditions]
intra_rate = "100 Gbit/s"
wan_rate = "1-10 Gbit/s"
[run]
modes = ["reads"]
seed = 9
[[policy]]
name = "reads"
reroute = "every 1"
knowledge = "measured ports"
measure_every = "1 ms"
[program]
backend = "longhaul"
command = "true"
"""


def test_a_script_is_planned_by_what_ports_have_shown_until_then_also_if_conditions_never_change(
    tmp_path: Path,
) -> None:
    """All WAN links have the same mean, and the drawn rates of this seed are all below it. So one is tried after the
    other, and then the best one stays. The true rates are those that are drawn for the run."""
    (tmp_path / "reads.toml").write_text(CONSTANT)
    (tmp_path / "mine.py").write_text(COLLECTIVES)
    ended("reads.toml", "--out", "run", "--exec", f"{sys.executable} mine.py", cwd=tmp_path)
    (config,) = scenario_of(CONSTANT).configurations()
    conditions = conditions_of(config)
    true_bps = dict(zip([link.name for link in conditions.shared.all], conditions.shared_bps(0, 1)[0], strict=True))
    with (tmp_path / "run" / "measured.csv").open() as file:
        seen = {row["link"]: float(row["rate_bps"]) for row in csv.DictReader(file)}
    with (tmp_path / "run" / "collectives.csv").open() as file:
        taken = [row["paths"].split(":")[1] for row in csv.DictReader(file)]
    assert len(taken) == 10
    for link, rate_bps in seen.items():
        assert 0.985 * true_bps[link] <= rate_bps <= true_bps[link]
    assert len({*taken[:4]}) == len(seen) == 4
    best = max(taken[:4], key=true_bps.__getitem__)
    assert taken[4:] == [best] * 6


def test_the_use_of_a_link_is_told_of_the_run_of_samples_with_data_and_of_collectives(tmp_path: Path) -> None:
    """Ten broadcasts of 20 MB at 10 Gbit/s take 16 ms each, 4 ms before and after it on the link, and 20 ms of idling
    follow: the link is full for 16 of 24 ms of a collective and of 44 of the run. Samples are 1 ms apart."""
    text = CONSTANT.replace("reads", "base").partition("[[policy]]")[0].replace("1-10", "10")
    text = text.replace("[conditions]\n", '[conditions]\nwan_delay = "4 ms"\n')
    sends = COLLECTIVES.replace("ended_ns=time.monotonic_ns())", "ended_ns=time.monotonic_ns())\n    time.sleep(0.02)")
    (tmp_path / "base.toml").write_text(f'{text}[program]\nbackend = "longhaul"\nsample = "1 ms"\ncommand = "true"\n')
    (tmp_path / "mine.py").write_text(sends)
    command = ("base.toml", "--out", "run", "--exec", f"{sys.executable} mine.py")
    out, _ = ended(*command, "--json", cwd=tmp_path)
    (used,) = [one for one in json.loads(out)["links"] if one["bytes"] > 100e6]
    assert used["in_collectives_bytes"] == pytest.approx(10 * 20e6 * HEADERS, rel=0.01)
    shares = [used[f"{when}bytes"] / used[f"{when}capacity_bytes"] for when in ("", "in_use_", "in_collectives_")]
    assert shares == pytest.approx([16 / 44, 0.9, 16 / 24], abs=0.06)
