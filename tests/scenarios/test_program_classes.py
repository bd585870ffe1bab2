"""Classes of the packets of a program, by the DSCP that its sockets set."""

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.fakes.runs import ended

PYTHON = sys.executable
NETWORK = """
[fabric]
gpus = [3, 3]
[conditions]
intra_rate = "100 Gbit/s"
wan_delay = "1 ms"
sampler = "trace"
trace = "wan.csv"
every = "300 ms"
[run]
modes = ["base"]
"""
CLASSES = """
[[class]]
name = "gold"
priority = 0
ceiling = 0.5
[[class]]
name = "silver"
priority = 1
share = 0.2
ceiling = 0.3
"""
LINKS = [f"s{a}b{x}>s{1 - a}b{y}" for a in (0, 1) for x in (0, 1) for y in (0, 1)]
FIRST_BPS, SECOND_BPS = 1e9, 4e8  # from 300 ms on

STREAM = """
import os, socket, sys, time
family, dscp, port = sys.argv[1], [int(word) for word in sys.argv[2:]], 7000
ip = socket.AF_INET6 if family == "6" else socket.AF_INET
began, rank = time.monotonic(), int(os.environ["RANK"])
if rank >= 3:
    with socket.create_server(("::" if family == "6" else "", port), family=ip) as server:
        connection = server.accept()[0]
    marks, got = [0.1, 0.3, 0.35, 0.6], 0
    while marks:
        got += len(connection.recv(1 << 16))
        if time.monotonic() - began >= marks[0]:
            print(time.monotonic(), got)
            del marks[0]
    sys.stdout.flush()
    os._exit(0)
with socket.socket(ip, socket.SOCK_STREAM) as connection:
    if family == "6":
        connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp[rank] << 2)
    else:
        connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp[rank] << 2)
    connection.connect(socket.getaddrinfo(f"g{rank + 3}", port, ip)[0][4])
    try:
        while True:
            connection.sendall(bytes(1 << 16))
    except OSError:
        pass
"""


def write_network(folder: Path) -> None:
    """Write classes.toml, a network with classes, and wan.csv, the rates of its WAN links over time."""
    (folder / "classes.toml").write_text(NETWORK + CLASSES)
    rates = (0, FIRST_BPS), (0.3, SECOND_BPS), (9, SECOND_BPS)
    rows = [f"{at},{link},{rate}" for at, rate in rates for link in LINKS]
    (folder / "wan.csv").write_text("\n".join(["time_s,link,rate_bps", *rows]) + "\n")


@pytest.mark.parametrize(("family", "payload"), [("4", 8948), ("6", 8908)])
def test_streams_get_the_parts_of_the_classes_that_their_dscp_names(tmp_path: Path, family: str, payload: int) -> None:
    """Gold (DSCP 8) is served first, but gets half of the link at most; silver (16) gets 0.3 at most, and what has any
    other DSCP the rest, also when the link has become slower. Over IPv6 a packet carries less."""
    write_network(tmp_path)
    (tmp_path / "stream.py").write_text(STREAM)
    ended("classes.toml", "--out", "run", "--exec", f"{PYTHON} stream.py {family} 8 16 10", cwd=tmp_path)
    for rank, part in ((3, 0.5), (4, 0.3), (5, 0.2)):
        lines = (tmp_path / f"run/output/{rank}.stdout").read_text().splitlines()
        (a_s, a), (b_s, b), (c_s, c), (d_s, d) = (map(float, line.split()) for line in lines)
        found = 8 * (b - a) / (b_s - a_s), 8 * (d - c) / (d_s - c_s)
        wanted = [part * rate * payload / 8948 for rate in (FIRST_BPS, SECOND_BPS)]
        assert found == pytest.approx(wanted, rel=0.01), rank


@pytest.mark.programs
def test_iperf3_measures_the_parts_of_classes(tmp_path: Path) -> None:
    write_network(tmp_path)
    dscp = ["8", "cs2", "af11"]
    roles = [f"g{rank}: sleep 0.001; iperf3 -c g{rank + 3} --json -t 1 --dscp {dscp[rank]}" for rank in range(3)]
    commands = [word for role in ("site 1: iperf3 -s -1", *roles) for word in ("--exec", role)]
    ended("classes.toml", "--out", "run", "--set", "conditions.every=3 s", *commands, cwd=tmp_path)
    with (tmp_path / "run/ranks.csv").open() as file:
        rank_of = {row["gpu"]: row["rank"] for row in csv.DictReader(file)}
    said = [json.loads((tmp_path / f"run/output/{rank_of[gpu]}.stdout").read_text()) for gpu in ("g0", "g1", "g2")]
    goodput = [one["end"]["sum_received"]["bits_per_second"] for one in said]
    assert goodput == pytest.approx([0.5 * FIRST_BPS, 0.3 * FIRST_BPS, 0.2 * FIRST_BPS], rel=0.02)
