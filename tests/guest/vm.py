"""Runs inside a VM of either clock; reports in FOLDER/report.json what a command sees, can do and cannot do there.

`vm.py CLOCK FOLDER ARGUMENT`. Copies its input to stdout, writes a line to stderr and many to stdout, and leaves two
processes behind.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import scenarios.vm

CABLE = """
set -e
ip netns add a; ip link add v type veth peer name e netns a; ip link set v up; ip -n a link set e up
ip addr add 10.0.0.1/24 dev v; ip -n a addr add 10.0.0.2/24 dev e
tc qdisc add dev v root netem delay 5ms
ping -q -c 1 10.0.0.2 >/dev/null
ping -c 5 -i 0.2 10.0.0.2
"""
SWITCH = """
set -e
"$PY" -m scenarios.vm.openvswitch up
ovs-vsctl add-br s1
for n in 1 2; do
  ip netns add h$n; ip link add v$n type veth peer name f netns h$n; ip link set v$n up; ip -n h$n link set f up
  ip -n h$n addr add 10.0.1.$n/24 dev f; ovs-vsctl add-port s1 v$n
done
ip netns exec h1 ping -q -c 3 -i 0.2 10.0.1.2 | grep -o '3 received'
ovs-appctl dpctl/dump-flows | grep -c 'actions:[0-9]'
cat /proc/$(pidof ovs-vswitchd)/task/*/comm 2>/dev/null | grep -c '^handler'
"$PY" -m scenarios.vm.openvswitch down
pidof ovs-vswitchd ovsdb-server || echo stopped
ip -br link | grep -c ovs-system || true
"$PY" -m scenarios.vm.openvswitch up && ovs-vsctl show | grep -c Bridge || echo empty again
ovs-vsctl add-br s2
"$PY" -m scenarios.vm.openvswitch up 2>&1 && ovs-vsctl list-br
kill -KILL $(pidof ovs-vswitchd); while pidof -q ovs-vswitchd; do sleep 0.01; done
"$PY" -m scenarios.vm.openvswitch up && ovs-vsctl add-br s3 && ovs-vsctl list-br
"$PY" -m scenarios.vm.openvswitch down
"""
ABILITIES = """
from scenarios.testbed import own_kernel
from scenarios.vm import openvswitch
before = own_kernel.lacking()
openvswitch.up()
print(before, own_kernel.lacking())
"""


def sh(script: str) -> str:
    ended = subprocess.run(
        ["sh", "-c", script], env=os.environ | {"PY": sys.executable}, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


def slept(seconds: float) -> list[float]:
    before, began = time.time(), time.monotonic()
    time.sleep(seconds)
    return [before, time.time() - before, time.monotonic() - began]


def clock_readings() -> dict[str, object]:
    """Read the clock in a loop until it moves, in a child process at once, and after a child has slept 1 ms."""
    time.sleep(0.001)
    began, loops = time.monotonic_ns(), 0
    while time.monotonic_ns() == began:
        loops += 1
    steps = [time.monotonic_ns() for _ in range(20)]
    time.sleep(0.001)
    began = time.monotonic_ns()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, str(time.monotonic_ns()).encode())
        time.sleep(0.001)
        os._exit(0)
    os.waitpid(child, 0)
    return {
        "loops": loops,
        "steps": [after - before for before, after in pairwise(steps)],
        "child_ns": int(os.read(reader, 100)) - began,
        "after_ns": time.monotonic_ns() - began,
    }


def turns_of_two() -> int:
    """Return how often two processes can wake each other, and one read the clock a thousand times, until it moves."""
    ours, theirs = socket.socketpair()
    if (child := os.fork()) == 0:
        ours.close()
        while word := theirs.recv(1):
            theirs.send(word)
        os._exit(0)
    theirs.close()
    began, turns = time.monotonic_ns(), 0
    while time.monotonic_ns() == began:
        ours.send(b"1")
        ours.recv(1)
        for _ in range(1000):
            time.monotonic_ns()
        turns += 1
    ours.close()
    os.waitpid(child, 0)
    return turns


def main() -> None:
    clock, folder, argument = sys.argv[1:]
    sys.stdout.buffer.write(sys.stdin.buffer.read())
    sys.stderr.write("err\r\n")
    Path("/etc/longhaul-was-here").write_text("1")
    Path(folder).with_name("beside").write_text("2")
    seen = {
        "user": os.getuid(),
        "written": Path("/etc/longhaul-was-here").read_text(),
        "directory": str(Path.cwd()),
        "environment": {name: os.environ.get(name) for name in ("MINE", "DISPLAY")},
        "argument": argument,
        "package": scenarios.vm.__name__,
        "slept": slept(3600 if clock == "virtual" else 1.5),
        "readings": clock_readings(),
        "turns": turns_of_two(),
        "ping_ms": [float(ms) for ms in re.findall(r"time=([\d.]+) ms", sh(CABLE))],
        "switch": sh(SWITCH).splitlines(),
        "abilities": sh(f'"$PY" -c "{ABILITIES}"') if clock == "wall" else None,
    }
    Path(folder, "report.json").write_text(json.dumps(seen))
    sys.stdout.flush()
    subprocess.run(["seq", "1000000"], check=True)
    subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000; echo never"])


if __name__ == "__main__":
    main()
