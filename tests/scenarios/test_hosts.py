"""Each GPU's host is a machine of its own, for programs and for commands at the prompt: no way to another host but the
network, and sockets, ports and limits as a host has them."""

import csv
import json
import re
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.agent.transport import Transport
from scenarios.program.sockets import held_bytes, initial_segments, socket_limits
from tests.conftest import VM
from tests.guest import isolation
from tests.scenarios.test_program import program
from tests.scenarios.test_prompt import RUN
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric

PYTHON = sys.executable


def test_two_hosts_reach_each_other_over_the_network_only_and_unattended_commands_end(vm: VM) -> None:
    """Every way that exists is found within a host, and none but files across."""
    lines = (
        f"run g0,g2: {PYTHON} {isolation.SCRIPT}",
        *isolation.commands_of(("g0", "g2"), ("10.0.0.1", "10.1.0.1")),
        "g0 cat",
        "sh sh counters.sh >/run/counters 2>&1 &",
        "allgather chunk 8 MB",  # by agents, whose buffers are others
        "g0 cat /proc/sys/net/ipv4/tcp_wmem",
        "g0 read line; echo read $?",
        "g0 X=here; sleep 1",
        "sh cat /run/counters",
        "g0 bash -c 'trap \"\" INT; while :; do sleep 1; done'",
        "sh sleep 100",
        "g0 echo $X$((6 * 7)) in $(hostname) as $(ps -C ip -o pid=)",
        "py net.addHost('h9')",
        "py g0.popen('sleep 1000')",  # still runs when the session ends
    )
    switches = " ".join(f"s{site}b{number}" for site in (0, 1) for number in (0, 1))
    (vm.folder / "counters.sh").write_text(
        f"sleep 0.5; for switch in {switches}; do ovs-ofctl -O OpenFlow13 dump-flows $switch; done"
    )
    asked = ("--cli", "--gpus", "4", "--set", 'program.deadline="30 s"')
    ended = vm.run(*asked, program=[RUN], input="\n".join(lines).encode(), timeout=400)
    assert ended.status == 1, ended.err  # two commands were ended
    of_ranks, of_nodes = isolation.results(ended.out)
    isolation.check(of_ranks, shared=isolation.SHARED)
    isolation.check(of_nodes, shared=isolation.OF_NODES)
    # Two crossings of the ring carry three blocks each, through two routers.
    assert sum(map(int, re.findall(r"n_bytes=(\d+)", ended.out))) == pytest.approx(2 * 3 * 2 * 8e6, rel=0.05)
    assert "4096\t16384\t4194304" in ended.out
    assert "read 1\r\n" in ended.out
    assert "no host can be added to a running network, as " in ended.out
    assert ended.out.count("the command was ended after 30 s (program.deadline)") == 2
    assert re.search(r"here42 in g0 as +1\r\n", ended.out)


PROGRAM = """
import os, socket, subprocess, sys, time
rank, hosts = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split()
sleep_until = lambda at_s: time.sleep(max(0, at_s - time.monotonic()))
start = time.monotonic()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7000))
udp.settimeout(1)

def received():
    count = 0
    try:
        while True:
            udp.recv(65536)
            count += 1
    except TimeoutError:
        return count

# Datagrams of a flow that no switch has seen, whole ones and fragmented ones: all at one instant, and 800 Mbit/s
# in bursts of 7.2 MB. They have to wait for the host's port of 1 Gbit/s, as no buffer on the way has room for them.
sizes = ((8000, 1000, 0, 1000), (40000, 200, 0, 200), (8000, 1800, 0.072, 900))
for number, (size, count, gap_s, burst) in enumerate(sizes):
    sleep_until(start + 5 * number)
    if rank == 0:
        time.sleep(0.1)
        begun = time.monotonic()
        for sent in range(count):
            if sent % burst == 0:
                sleep_until(begun + sent // burst * gap_s)
            udp.sendto(bytes(size), (hosts[1], 7000))
        print("sent", size, count, time.monotonic() - begun)
    elif rank == 1:
        print("got", size, received())

sleep_until(start + 20)  # a receiver that does not read
if rank == 0:
    for _ in range(500):
        udp.sendto(bytes(1000), (hosts[1], 7000))
elif rank == 1:
    time.sleep(1)
    print("late", received())

sleep_until(start + 30)  # TCP within the site, and over the WAN with buffers that the program sets
for server, client, size, buffer in ((1, 0, 40_000_000, None), (2, 0, 25_000_000, 1 << 26)):
    options = [(socket.SOL_SOCKET, name, buffer) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF) if buffer]
    if rank == server:
        with socket.socket() as listening:
            for option in options:
                listening.setsockopt(*option)
            listening.bind(("", 7100))
            listening.listen()
            there, left = listening.accept()[0], size
        while left:
            left -= len(there.recv(1 << 20))
        there.sendall(b"!")
    elif rank == client:
        time.sleep(0.1)
        there = socket.socket()
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"dctcp" if not buffer else b"cubic")
        for option in options:
            there.setsockopt(*option)
        there.connect((hosts[server], 7100))
        begun = time.monotonic()
        there.sendall(bytes(size))
        sent_s = time.monotonic() - begun
        there.recv(1)
        print("tcp", size, sent_s, time.monotonic() - begun)
    sleep_until(start + (40 if not buffer else 50))

if rank == 0:
    print("found", subprocess.run(["bash", "-c", "PATH=private:$PATH; mine"], capture_output=True, text=True).stdout)
    try:
        children = [subprocess.Popen(["sleep", "1"]) for _ in range(60)]
    except BlockingIOError as error:
        print("refused", error)
"""


def test_sockets_ports_and_limits_of_a_program_are_those_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "mine").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "private" / "mine").chmod(0o755)
    (tmp_path / "private").chmod(0o700)  # of root, if the test runs as root: then the rank may read it nevertheless
    keys = {"conditions.wan_rate": "1 Gbit/s", "conditions.intra_rate": "1 Gbit/s", "conditions.wan_delay": "20 ms"}
    keys |= {"transport.queue": "fifo", "fabric.buffer": "6 MB", "program.ranks": [0, 1, 2], "program.processes": 10}
    options = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    found, said = program(tmp_path, f"{PYTHON} mine.py", "--gpus", "4", *options)
    output = {rank: (tmp_path / f"run/output/{rank}.stdout").read_text() for rank in (0, 1)}
    assert [one["status"] for one in found["ranks"]] == [0, 0, 0] and found["drops"] == 0
    rate_bps = 1e9
    sent = re.findall(r"sent (\d+) (\d+) (.*)", output[0])
    assert re.findall(r"got (\d+) (\d+)", output[1]) == [(size, count) for size, count, _ in sent]
    for size, count, took_s in sent[:2]:  # until at most a socket's buffer of 213 kB is left, headers aside
        assert float(took_s) == pytest.approx(8 * (int(size) * int(count) - 106_000) / rate_bps, rel=0.04)
    (late,) = re.findall(r"late (\d+)", output[1])
    with (tmp_path / "run" / "ranks.csv").open() as file:
        assert [int(row["udp_receive_drops"]) for row in csv.DictReader(file)] == [0, 500 - int(late), 0]
    assert 0 < int(late) < 500 and f"rank 1's host dropped {500 - int(late)} UDP datagrams" in said
    within, over_wan = ([float(word) for word in line.split()] for line in re.findall(r"tcp (.*)", output[0]))
    assert within[2] == pytest.approx(8 * within[0] / rate_bps, rel=0.01)
    # TCP's buffers hold at most twice what a round trip over the WAN does: `send` waits for the rest.
    assert within[2] > within[1] > 8 * (within[0] - 4 * 0.04 * rate_bps / 8) / rate_bps
    # A round trip more than the path needs, because the first window that a receiver announces is at most 64 kB.
    assert over_wan[2] == pytest.approx(8 * over_wan[0] / rate_bps + 2 * 0.04, rel=0.02)
    assert "found mine\n" in output[0]
    assert "refused [Errno 11]" in output[0] and "limit of 10 processes and threads per rank" in said


FABRICS = [build_fabric(FabricSpec(gpus_per_site=gpus)) for gpus in ((2, 3), (2, 2, 2))]


@given(st.sampled_from(FABRICS), st.integers(0, 2**32 - 1))
def test_paths_hold_no_more_than_the_socket_limits_assume(fabric: Fabric, seed: int) -> None:
    """Compared with every path between two GPUs and back, which the bound must reach if all links are alike."""
    random = np.random.default_rng(seed)
    rates_bps, delays_s = (random.uniform(low, high, len(fabric.links)) for low, high in ((1e8, 2e11), (1e-6, 0.2)))
    sites = fabric.gpu_sites.tolist()

    def ways(src: int, dst: int) -> list[list[int]]:
        paths = [path.index for path in fabric.paths_between.get((sites[src], sites[dst]), ())]
        return [list(fabric.edge_links(src, dst, path)) for path in (paths if sites[src] != sites[dst] else [-1])]

    for alike in (False, True):
        if alike:
            rates_bps, delays_s = np.full_like(rates_bps, 1e10), np.full_like(delays_s, 1e-2)
        bound = held_bytes(fabric, delays_s, rates_bps)
        for src, dst in permutations(range(len(sites)), 2):
            back_s = max(delays_s[way].sum() for way in ways(dst, src))
            held = max(rates_bps[way].min() * (delays_s[way].sum() + back_s) / 8 for way in ways(src, dst))
            assert bound[sites[src], sites[dst]] >= held * (1 - 1e-9)
            assert not alike or bound[sites[src], sites[dst]] == pytest.approx(held)


@given(st.floats(0, 1e12), st.booleans())
def test_sockets_have_the_usual_limits_of_linux_unless_the_paths_need_more(held: float, line_rate: bool) -> None:
    transport = Transport(line_rate=line_rate)
    limits, first = socket_limits(held, transport), initial_segments(held, transport)
    usual = (131_072, 6_291_456, 16_384, 4_194_304)  # tcp(7), for machines of at least 128 MB
    assert limits.receive[0] == limits.send[0] == 4096
    # A buffer of which the growth cannot be calculated (see below) has to begin large.
    assert limits.send[1] == (usual[2] if 3 * 16_640 * first < 2**31 and first <= 32_768 else limits.send[2])
    assert usual[0] <= limits.receive[1] <= limits.receive[2] < 2**31
    assert usual[3] <= limits.send[2] < 2**31 and usual[1] <= limits.receive[2]
    # A window is half a receiver's buffer, and a sender's buffer has to hold the window, with its memory.
    enough = min(2 * held, 2**31 - 1)
    assert limits.receive[2] >= enough and limits.send[2] >= enough
    if line_rate:
        assert limits.receive[1] >= enough and first * 8948 >= min(held, 2**30)
    else:
        assert limits.receive[1] == usual[0] and first == 10
    if held < 25_000:
        assert (limits.receive, limits.send, first) == ((4096, *usual[:2]), (4096, *usual[2:]), 10)
    assert limits.reordered_packets == 3
    overtaken = socket_limits(held, transport, paths_change=True).reordered_packets
    assert overtaken * 8948 >= min(held, 250e6)
    # tcp_sndbuf_expand calculates in 32 bits: 3 times (bbr) 16,640 bytes for each packet of 9000 bytes.
    assert 3 * 16_640 * (overtaken + 1) < 2**31
