"""Each GPU's host is a machine of its own, for programs and for commands at the prompt: no way to another host but the
network, and sockets, ports and limits as a host has them."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.agent.transport import Transport
from scenarios.program.sockets import path_bytes, socket_limits
from tests.conftest import PROJECT, VM
from tests.scenarios.test_program import program
from tests.scenarios.test_prompt import RUN
from topologies.fabric.fabric import FabricSpec, build_fabric

PYTHON = sys.executable
ISOLATION = PROJECT / "tests" / "guest" / "isolation.py"
NOT_IN_KERNEL = {"key", "process_vm_readv"}
SHARED = {f"{what} in the working directory" for what in ("socket", "pipe", "mapped file", "lock")}
OF_NODES = {f"{what} in /tmp" for what in ("socket", "pipe", "mapped file", "lock")} | {"terminal"}


def test_two_hosts_reach_each_other_over_the_network_only_and_unattended_commands_end(vm: VM) -> None:
    """Every way that exists is found within a host, and none but files across."""
    rank = f'env LONGHAUL_HOSTS="10.0.0.1 10.1.0.1" RANK={{}} {PYTHON} {ISOLATION}'
    lines = (
        f"run g0,g2: {PYTHON} {ISOLATION}",
        f"g0 {rank.format(0)} >/run/found 2>&1 &",
        f"g2 {rank.format(1)}",
        "wait 1 s",
        "sh cat /run/found",
        "g0 cat",
        "g0 read line; echo read $?",
        "g0 X=here",
        "g0 bash -c 'trap \"\" INT; while :; do sleep 1; done'",
        "sh sleep 100",
        "g0 echo $X$((6 * 7)) in $(hostname) as $(ps -C ip -o pid=)",
        "py g0.popen('sleep 1000')",  # still runs when the session ends
    )
    asked = ("--cli", "--gpus", "4", "--set", 'program.deadline="30 s"')
    ended = vm.run(*asked, program=[RUN], input="\n".join(lines).encode(), timeout=400)
    assert ended.status == 1, ended.err  # two commands were ended
    of_ranks, of_nodes = (json.loads(found) for found in re.findall(r'\{"within".*\}\}', ended.out))
    for found, shared in ((of_ranks, SHARED), (of_nodes, SHARED | OF_NODES)):
        within, across = ({way for way, leads in found[where].items() if leads} for where in ("within", "across"))
        assert {*found["within"]} - within <= NOT_IN_KERNEL
        assert across == shared
    assert "read 1\n" in ended.out
    assert ended.out.count("the command was ended after 30 s (program.deadline)") == 2
    assert re.search(r"here42 in g0 as +1\n", ended.out)


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

# Datagrams of a flow that no switch has seen, whole ones and fragmented ones: all at one instant, and 900 Mbit/s on
# average in bursts of 1.1 MB. They have to wait for the port of 1 Gbit/s, which is the first with a small buffer.
for number, (size, count, gap_s, burst) in enumerate([(8000, 2000, 0, 2000), (40000, 300, 0, 300), (8000, 1500, 1e-2, 140)]):
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
for server, client, size, buffer in ((1, 0, 100_000_000, None), (2, 0, 50_000_000, 1 << 26)):
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
    keys |= {"transport.queue": "fifo", "fabric.buffer": "10 MB", "program.ranks": [0, 1, 2], "program.processes": 10}
    options = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    options += ["--set", 'link=[{links="g*>g*", buffer="300 kB"}]'] if False else []
    found, said = program(tmp_path, f"{PYTHON} mine.py", "--gpus", "4", *options)
    lines = [(tmp_path / f"run/output/{rank}.stdout").read_text().splitlines() for rank in (0, 1)]
    assert lines[0] == [] and lines[1] == [] and said == "" and found == {}
    with (tmp_path / "run" / "ranks.csv").open() as file:
        assert [row["udp_receive_drops"] for row in csv.DictReader(file)] == []
