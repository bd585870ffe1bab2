"""Runs inside the VM: attacks a running experiment from a GPU's host and from outside; prints one JSON object.

`python -m tests.guest.hostile SCENARIO`. Each attack takes place between two collectives of the same communicator.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from controller.process import PORT
from hosts.agent.agent import PORT as AGENT_PORT
from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.testbed import Testbed

RUN = Path("/run/longhaul")

# Connect to ADDRESS PORT once for each of the strings in DATA, send it, and print what the first five receive.
CONNECT = """
import json, socket, sys
made = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 3) for _ in json.loads(sys.argv[3])]
for one, data in zip(made, json.loads(sys.argv[3])):
    one.sendall(bytes.fromhex(data))
got = []
for one in made[:5]:
    one.settimeout(30)
    try:
        got.append(len(one.recv(100)))
    except ConnectionResetError:
        got.append(0)
print(json.dumps(got))
"""

# Print which of ADDRESSES accept a connection at PORT.
REACH = """
import json, socket, sys
def reached(address):
    with socket.socket() as made:
        made.settimeout(3)
        return made.connect_ex((address, int(sys.argv[2]))) == 0
print(json.dumps([address for address in json.loads(sys.argv[1]) if reached(address)]))
"""

TO_AGENT = {
    "garbage": [b"GET / HTTP/1.1\r\n\r\n" * 10],
    "silence": [b""],
    "short": [b"LHhi"],
    "token": [b"LHhi" + bytes([0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99]) + bytes(32)],
    "flood": [b"x"] * 1000,
}
TO_CONTROLLER = b'{"ask":"status"}\n', b'{"ask":"status","token":"0"}\n', b"garbage\n" * 1000, b"x" * 100_000
HELLO = b"\x04\x00\x00\x08\x00\x00\x00\x01"
TO_OPENFLOW = b"garbage" * 1000, HELLO[:5], HELLO * 2000, HELLO + b"\x04\x06\x00\x04\x00\x00\x00\x01", b""


def in_host(pid: int, script: str, *arguments: str) -> Any:
    """Run a Python script in the network namespace of a GPU's host; return the JSON that it prints."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-S", "-c", script, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)


def addresses() -> list[str]:
    """Return every IPv4 address in the network namespace of the switches and the controller."""
    shown = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, text=True, check=True).stdout
    return [entry["local"] for link in json.loads(shown) for entry in link["addr_info"]]


def listening() -> list[str]:
    shown = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in shown.splitlines()]


def connect_to_agent(testbed: Testbed, pid: int) -> dict[str, Any]:
    """Connect from a GPU's host to the listening agent of GPU 5; return what each kind of data got in answer."""
    where = testbed.fabric.gpus[5].ip, str(AGENT_PORT)
    return {what: in_host(pid, CONNECT, *where, json.dumps([one.hex() for one in data]))
            for what, data in TO_AGENT.items()}  # fmt: skip


def exchange(client: socket.socket, data: bytes) -> str:
    """Send `data`; return everything that comes back."""
    client.settimeout(30)
    try:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b"")).decode(errors="replace")
    except OSError:
        return ""


def ask_controller() -> list[str]:
    """Return the controller's answers to no token, a wrong token, a flood of garbage, and a line without an end."""
    answers = []
    for data in TO_CONTROLLER:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(RUN / "controller.sock"))
            answers.append(exchange(client, data))
    return answers


def speak_openflow() -> None:
    """Send garbage, a truncated hello, a flood, and an unknown switch's messages to the controller's OpenFlow port."""
    for data in TO_OPENFLOW:
        with socket.create_connection(("127.0.0.1", PORT), timeout=10) as switch:
            exchange(switch, data)


def modes() -> dict[str, str]:
    """Return the file modes of the testbed's folder and of the sockets in it."""
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in RUN.iterdir() if path.is_socket()}
    return {"folder": oct(stat.S_IMODE(RUN.stat().st_mode)), **found}


def main(scenario: str) -> None:
    found: dict[str, Any] = {}
    with Testbed(load_scenario(scenario)) as testbed:
        pids = testbed.network.host_pids
        rows = PointRun(testbed, MODES["joint"]).records(range(5))
        times = [next(rows).completion_s]
        everywhere = json.dumps([*addresses(), "10.0.0.254", "10.255.255.255"])
        found["modes"], found["listening"] = modes(), listening()
        found["reached"] = [in_host(pid, REACH, everywhere, str(PORT)) for pid in (pids[0], pids[-1])]
        for what, act in {
            "agent": lambda: connect_to_agent(testbed, pids[0]),
            "controller": ask_controller,
            "openflow": speak_openflow,
        }.items():
            found[what] = act()
            time.sleep(0.2)
            times.append(next(rows).completion_s)
        testbed._communicator.connect(list(range(len(pids))))
        times.append(next(rows).completion_s)
    found["times"] = times
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    os.chdir("/")
    main(sys.argv[1])
