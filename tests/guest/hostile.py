"""Runs inside the VM: what a GPU, a stranger and a madman can do to an experiment under way; prints one JSON object.

`python -m tests.guest.hostile SCENARIO`. Every attempt is made between two collectives of the same communicator.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from hosts import wire
from hosts.agent import PORT as AGENT_PORT
from scenarios.control import PORT
from scenarios.loader import load_scenario
from scenarios.plan import MODES
from scenarios.testbed import Testbed

RUN = Path("/run/longhaul")

KNOCK = textwrap.dedent("""
    import json, socket, struct, sys
    address, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    said = {"garbage": [b"GET / HTTP/1.1\\r\\n\\r\\n" * 10], "silence": [b""], "short": [b"LHhi"],
            "token": [struct.pack("!4sHxxQ32s", b"LHhi", 4, 99, bytes(32))], "flood": [b"x"] * 1000}[what]
    kept = []
    for words in said:
        made = socket.socket()
        made.settimeout(3)
        made.connect((address, port))
        made.sendall(words)
        kept.append(made)
    if what == "short":
        kept[0].shutdown(socket.SHUT_WR)
    got = []
    for made in kept[:5]:
        made.settimeout(30)
        try:
            got.append(len(made.recv(100)))
        except ConnectionResetError:
            got.append(0)
    print(json.dumps(got))
""")

REACH = textwrap.dedent("""
    import json, socket, sys
    found = []
    for address, port in json.loads(sys.argv[1]):
        made = socket.socket()
        made.settimeout(3)
        try:
            made.connect((address, port))
            found.append([address, port])
        except OSError:
            pass
    print(json.dumps(found))
""")


def in_host(pid: int, script: str, *arguments: str) -> Any:
    """What a Python script says in the network of a GPU."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-S", "-c", script, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)


def addresses() -> list[str]:
    """Every IPv4 address of the network that the switches and the controller are in."""
    shown = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, text=True, check=True).stdout
    return [entry["local"] for link in json.loads(shown) for entry in link["addr_info"]]


def listening() -> list[str]:
    shown = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in shown.splitlines()]


def knock_at_agents(testbed: Testbed, pids: tuple[int, ...]) -> dict[str, Any]:
    """From GPU 0, at the door of GPU 5, which is in the other site."""
    address = testbed.fabric.gpus[5].ip
    return {what: in_host(pids[0], KNOCK, address, str(AGENT_PORT), what)
            for what in ("garbage", "silence", "short", "token", "flood")}  # fmt: skip


def ask_controller() -> list[str]:
    """What a client without the token, and one with another, gets to hear; and what a flood of garbage does."""
    heard = []
    for line in (b'{"ask":"status"}\n', b'{"ask":"status","token":"0"}\n', b"garbage\n" * 1000, b"x" * 100_000):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(RUN / "controller.sock"))
            try:
                client.sendall(line)
                client.shutdown(socket.SHUT_WR)
                got = b"".join(iter(lambda: client.recv(65536), b""))
            except OSError:
                got = b""
            heard.append(got.decode())
    return heard


def speak_openflow() -> None:
    """Garbage, truncation, a flood and a switch that nobody knows, on the port that the switches use."""
    hello = b"\x04\x00\x00\x08\x00\x00\x00\x01"
    for said in (b"garbage" * 1000, hello[:5], hello * 2000, hello + b"\x04\x06\x00\x04\x00\x00\x00\x01", b""):
        with socket.create_connection(("127.0.0.1", PORT), timeout=10) as switch:
            try:
                switch.sendall(said)
                switch.shutdown(socket.SHUT_WR)
                switch.settimeout(10)
                while switch.recv(65536):
                    pass
            except OSError:
                pass


def speak_to_agents(testbed: Testbed) -> None:
    """Garbage, a command without an end and a flood on the agents' own control connections."""
    controls = testbed._communicator._controls._ours
    controls[0].sendall(b"garbage\n" * 1000)
    controls[1].sendall(b"x" * (3 * wire.MAX_LINE_BYTES) + b"\n")
    controls[2].sendall(b'{"do":"allgather"}\n{"do":"abort","now":true}\n\xff\xfe\n[]\n')


def modes() -> dict[str, str]:
    """The mode of what lies in the run's folder, and its own."""
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in RUN.iterdir() if path.is_socket()}
    return {"folder": oct(stat.S_IMODE(RUN.stat().st_mode)), **found}


def main(scenario: str) -> None:
    found: dict[str, Any] = {}
    with Testbed(load_scenario(scenario)) as testbed:
        pids = testbed.network.host_pids
        rows = testbed.run(MODES["joint"], count=6)
        times = [next(rows).completion_s]
        everywhere = [[address, port] for address in [*addresses(), "10.0.0.254", "10.255.255.255"] for port in (PORT,)]
        found["modes"], found["listening"] = modes(), listening()
        found["reached"] = [in_host(pid, REACH, json.dumps(everywhere)) for pid in (pids[0], pids[-1])]
        hostile = [
            lambda: knock_at_agents(testbed, pids),
            ask_controller,
            speak_openflow,
            lambda: speak_to_agents(testbed),
        ]
        found["heard"] = []
        for act in hostile:
            found["heard"].append(act())  # type: ignore[operator]
            time.sleep(0.2)
            times.append(next(rows).completion_s)
        testbed._communicator.build_ring(list(range(len(pids))))
        times.append(next(rows).completion_s)
    found["times"] = times
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    os.chdir("/")
    main(sys.argv[1])
