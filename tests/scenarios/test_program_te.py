"""Traffic engineering for a program: tunnels get rates for what its connections send."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.runs import ended

WAN_BPS = 200e6
TWO_SENDERS = """
[fabric]
gpus = [1, 1, 1]
routing = "te"
border_routers = 1
[fabric.wan]
routers = ["R"]
links = [["s0b0", "R"], ["s1b0", "R"], ["R", "s2b0"]]
[conditions]
intra_rate = "10 Gbit/s"
wan_rate = "200 Mbit/s"
wan_delay = "2 ms"
[te]
demand = "measured"
every = "300 ms"
sample = "50 ms"
[run]
modes = ["base"]
"""
# g0 sends 2,500 B each ms, until 570 ms; g1 as much as it can. g2 prints what has arrived from each at some instants.
STREAMS = """
import os, socket, threading, time
began, rank, got = time.monotonic(), int(os.environ["RANK"]), [0, 0]
def receive(port):
    with socket.create_server(("", 7000 + port)) as server:
        connection = server.accept()[0]
    while data := connection.recv(1 << 16):
        got[port] += len(data)
if rank == 2:
    for port in (0, 1):
        threading.Thread(target=receive, args=[port], daemon=True).start()
    for mark in (0.1, 0.29, 0.35, 0.55, 0.65, 0.89, 0.95, 1.19):
        time.sleep(max(0.0, began + mark - time.monotonic()))
        print(time.monotonic() - began, *got, flush=True)
    os._exit(0)
with socket.create_connection(("g2", 7000 + rank)) as connection:
    try:
        while True:
            if rank == 0 and time.monotonic() < began + 0.57:
                connection.sendall(bytes(2500))
            elif rank == 1:
                connection.sendall(bytes(1 << 16))
            time.sleep(0.001 * (1 - rank))
            if rank == 0 and time.monotonic() > began + 1.3:
                break
    except OSError:
        pass
"""


@pytest.mark.parametrize(("every", "sample_ms"), [('"300 ms"', 50), ("1", 30)])
def test_a_site_gets_what_another_was_measured_not_to_use(tmp_path: Path, every: str, sample_ms: int) -> None:
    """Two sites share a link to the third. At first each has half of it. After 300 ms the first is known to send 20
    Mbit/s, and gets a tenth more than the most that it sent in a sample; it ends before 600 ms, and after 900 ms the
    other has the whole link. A whole number counts ten samples."""
    te = f'every = {every}\nsample = "{sample_ms} ms"'
    (tmp_path / "te.toml").write_text(TWO_SENDERS.replace('every = "300 ms"\nsample = "50 ms"', te))
    (tmp_path / "streams.py").write_text(STREAMS)
    found = json.loads(
        ended("te.toml", "--out", "run", "--json", "--exec", f"{sys.executable} streams.py", cwd=tmp_path)[0]
    )
    assert found["drops"] == 0 and [one["retransmitted_segments"] for one in found["ranks"]] == [0, 0, 0]
    lines = [[*map(float, line.split())] for line in (tmp_path / "run/output/2.stdout").read_text().splitlines()]
    marks = np.array(lines)
    spans = np.diff(marks, axis=0)[::2]
    slow, fast = 8 * (spans[:, 1:] / spans[:, :1]).T
    assert slow == pytest.approx([20e6, 20e6, 0, 0], rel=0.02)
    # In 50 ms it sends 50 or 51 packets of 2,500 B, which with their headers count as 2,547 B of full frames.
    left = WAN_BPS - 1.1 * (sample_ms + 0.5) * 8 * 2547 / (sample_ms / 1e3)
    assert fast == pytest.approx([WAN_BPS / 2, left, left, WAN_BPS], rel=0.01)


SPREAD = """
[fabric]
gpus = [1, 1]
routing = "te"
[conditions]
intra_rate = "10 Gbit/s"
wan_delay = "2 ms"
sampler = "trace"
trace = "wan.csv"
every = "400 ms"
[run]
modes = ["base"]
"""
MANY = """
import os, socket, threading, time
began, count, total = time.monotonic(), 64, [0]
if os.environ["RANK"] == "1":
    server = socket.create_server(("", 7000), backlog=count)
    def receive(connection):
        while data := connection.recv(1 << 16):
            total[0] += len(data)
    for _ in range(count):
        threading.Thread(target=receive, args=[server.accept()[0]], daemon=True).start()
    for mark in (0.2, 0.39, 0.68, 0.79, 1.0, 1.19):
        time.sleep(max(0.0, began + mark - time.monotonic()))
        print(time.monotonic() - began, total[0], flush=True)
    os._exit(0)
def send():
    with socket.create_connection(("g1", 7000)) as connection:
        try:
            while True:
                connection.sendall(bytes(1 << 16))
        except OSError:
            pass
for _ in range(count):
    threading.Thread(target=send).start()
"""
LINKS = [f"s{a}b{x}>s{1 - a}b{y}" for a in (0, 1) for x in (0, 1) for y in (0, 1)]


def test_many_connections_fill_all_tunnels_under_the_rates_of_each_row(tmp_path: Path) -> None:
    """One link has 200, 40 and 200 Mbit/s, and three others 100: in all, 500, 340 and 500. What waited in its tunnel
    when it became slow arrives up to 0.25 s late, and so does what overtook it."""
    mbps = [200, 40, 200, 200]
    rows = [
        f"{0.4 * row},{link},{rate if link == LINKS[0] else 100}e6" for row, rate in enumerate(mbps) for link in LINKS
    ]
    (tmp_path / "wan.csv").write_text("\n".join(["time_s,link,rate_bps", *rows]) + "\n")
    (tmp_path / "te.toml").write_text(SPREAD)
    (tmp_path / "many.py").write_text(MANY)
    out, _ = ended("te.toml", "--out", "run", "--json", "--exec", f"{sys.executable} many.py", cwd=tmp_path)
    found = json.loads(out)
    assert found["drops"] == 0 and sum(one["retransmitted_segments"] for one in found["ranks"]) == 0
    used = [one["bytes"] / one["capacity_bytes"] for one in found["links"] if one["link"].startswith("s0")]
    assert used == pytest.approx([1.0] * 4, abs=0.02)
    lines = [[*map(float, line.split())] for line in (tmp_path / "run/output/1.stdout").read_text().splitlines()]
    goodput = [8 * (b - a) / (t - s) for (s, a), (t, b) in zip(lines[::2], lines[1::2], strict=True)]
    assert goodput == pytest.approx([500e6, 340e6, 500e6], rel=0.02)
