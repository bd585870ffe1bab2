"""``python -m controller`` as a process of its own, what it is asked, and by whom."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from controller.api.protocol import write_spec
from tests.conftest import PROJECT
from topologies.fabric.fabric import FabricSpec, build_fabric

SPEC = FabricSpec()
FABRIC = build_fabric(SPEC)
LINKS = len(FABRIC.links)
ROUTE = {
    "ask": "route",
    "crossings": [[3, 4], [7, 0]],
    "rates_bps": [1e9] * LINKS,
    "delays_s": [1e-6] * LINKS,
    "chunk_bytes": 8_000_000,
    "best": True,
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Process:
    """``python -m controller`` with a fabric and no switches."""

    def __init__(self, folder: Path) -> None:
        self.declared, self.path, self.port = folder / "fabric.json", folder / "s", free_port()
        self.declared.write_text(write_spec(SPEC))
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, **change: object) -> "subprocess.Popen[bytes]":
        words = {"fabric": self.declared, "socket": self.path, "port": self.port} | change
        command = [sys.executable, "-m", "controller", *(f"--{key}={value}" for key, value in words.items())]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=PROJECT, **pipes)  # type: ignore[call-overload]
        self.started.append(process)
        return process  # type: ignore[no-any-return]

    def up(self) -> "subprocess.Popen[bytes]":
        process = self.start()
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"controller: ")
        return process

    def close(self) -> None:
        for started in self.started:
            started.kill()
            started.communicate()


def exchange(path: Path, data: bytes) -> list[dict[str, Any]]:
    """Send bytes, hang up one way, and return every reply."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return [json.loads(line) for line in b"".join(iter(lambda: client.recv(65536), b"")).splitlines()]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with closing(Process(tmp_path)) as found:
        yield found
