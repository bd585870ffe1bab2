"""What strangers do to an experiment, and that it goes on: agents' doors, control connections, the controller."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts import wire
from hosts.door import Door, Refusals
from tests.conftest import PROJECT, VM

TOKEN = bytes(range(wire.TOKEN_BYTES))
HOSTILE = "tests.guest.hostile"


# --- an agent's door ------------------------------------------------------------------------------------------------


class Doorway:
    """A door on loopback, and what it says."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.listener, self.said = listener, list[str]()
        self.door = Door(listener, token=TOKEN, refusals=Refusals("GPU 5", write=self.said.append))

    def knock(self, words: bytes) -> socket.socket:
        made = socket.create_connection(self.address, timeout=20)
        made.sendall(words)
        return made


@pytest.fixture
def doorway() -> Iterator[Doorway]:
    found = Doorway()
    yield found
    found.door.clear()
    found.listener.close()


def greeting(epoch: int = 3, rank: int = 4, token: bytes = TOKEN) -> bytes:
    return wire.greeting(epoch=epoch, rank=rank, token=token)


def test_who_knows_the_token_is_let_in_and_its_first_bytes_after_it_stay(doorway: Doorway) -> None:
    with closing(doorway.knock(greeting() + b"more")):
        admitted = doorway.door.admit(epoch=3, rank=4, deadline_s=20)
        assert admitted is not None and admitted.getblocking()
        assert admitted.recv(100) == b"more"
        admitted.close()
    assert doorway.said == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" * 5, "does not know the run's token"),
        (greeting(token=TOKEN[:-1] + b"\0"), "does not know the run's token"),
        (greeting(token=bytes(32)), "does not know the run's token"),
        (b"X" + greeting()[1:], "does not know the run's token"),
        (greeting()[:-1], "has not said the run's token"),
        (b"", "has not said the run's token"),
        (greeting(epoch=2), "nobody awaits it"),
        (greeting(rank=5), "nobody awaits it"),
    ],
)
def test_who_does_not_is_refused_in_one_line_and_the_predecessor_gets_in(
    doorway: Doorway, words: bytes, why: str
) -> None:
    with closing(doorway.knock(words)) as stranger, closing(doorway.knock(greeting())):
        admitted = doorway.door.admit(epoch=3, rank=4, deadline_s=20)
        assert admitted is not None
        admitted.close()
        with pytest.raises(ConnectionResetError) if len(words) > wire.GREETING_BYTES else closing(stranger):
            assert stranger.recv(1) == b""
    assert len(doorway.said) == 1 and why in doorway.said[0] and doorway.said[0].count("\n") == 1
    assert doorway.said[0].startswith("GPU 5: refused a connection")


def test_a_flood_is_refused_in_a_few_lines_and_does_not_keep_the_predecessor_out(doorway: Doorway) -> None:
    silent = [doorway.knock(b"") for _ in range(60)]  # as many as the kernel keeps
    guest = list[socket.socket | None]()
    admitting = threading.Thread(target=lambda: guest.append(doorway.door.admit(epoch=3, rank=4, deadline_s=30)))
    admitting.start()
    silent += [doorway.knock(b"") for _ in range(300)]
    with closing(doorway.knock(greeting())):
        admitting.join(40)
        assert guest and guest[0] is not None
        guest[0].close()
    for stranger in silent:
        stranger.close()
    assert 8 <= len(doorway.said) <= 20


def test_a_predecessor_that_does_not_come_is_given_up_in_time(doorway: Doorway) -> None:
    assert doorway.door.admit(epoch=3, rank=4, deadline_s=0.2) is None


# --- control connections --------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 50))
def test_lines_are_whole_however_the_stream_is_cut(lines: list[bytes], step: int) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    stream, reader = b"".join(line + b"\n" for line in lines), wire.Lines()
    found = [line for at in range(0, len(stream), step) for line in reader.feed(stream[at : at + step])]
    assert found == [line + b"\n" for line in lines]


@pytest.mark.parametrize("step", [1 << 10, 1 << 16, 1 << 20])
def test_a_line_without_end_is_one_refusal_and_takes_no_memory(step: int) -> None:
    reader = wire.Lines()
    stream = b"x" * (20 * wire.MAX_LINE_BYTES) + b'\n{"do":"touch"}\n'
    found = [line for at in range(0, len(stream), step) for line in reader.feed(stream[at : at + step])]
    assert [len(line) > wire.MAX_LINE_BYTES - 1 for line in found] == [True, False]
    with pytest.raises(wire.WireError, match="does not end within"):
        wire.command(found[0])
    assert wire.command(found[1]) == {"do": "touch"}
    assert len(reader._pending) == 0


SPEC: dict[str, Any] = {
    "gpus": [{"rank": 0, "address": "10.0.0.1", "interface": "g0-eth0", "host_pid": 5, "control_fd": 3}],
    "transport": {
        "line_rate": True,
        "congestion_control": "cubic",
        "slow_start_after_idle": False,
        "mtu_bytes": 9000,
    },
    "limits": {"window_bytes": 1, "initial_segments": 1, "receive_buffer_bytes": 1, "send_buffer_bytes": 1},
    "chunk_bytes": 8,
    "deadline_s": 60.0,
    "token": TOKEN.hex(),
}


def test_a_nursery_reads_what_it_is_told() -> None:
    assert wire.spec(json.dumps(SPEC).encode() + b"\n") == SPEC | {"token": TOKEN}


@pytest.mark.parametrize(
    "change",
    [
        {"token": TOKEN.hex()[:-2]}, {"token": "x" * 64}, {"token": 5}, {"gpus": {}}, {"gpus": [5]}, {"gpus": [{}]},
        {"transport": {}}, {"limits": {"window_bytes": -1}}, {"chunk_bytes": 0}, {"chunk_bytes": True},
        {"deadline_s": float("nan")}, {"deadline_s": 0}, {"deadline_s": True}, {"more": 1},
    ],
)  # fmt: skip
def test_a_nursery_refuses_another_specification_in_one_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(wire.WireError) as told:
        wire.spec(json.dumps(SPEC | change).encode() + b"\n")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("data", [b"", b"{}\n", b"garbage\n", b"[" * 100_000 + b"\n", b"x" * (wire.MAX_SPEC_BYTES + 5)])
def test_the_nursery_itself_ends_with_one_line(data: bytes) -> None:
    command = [sys.executable, "-S", "-m", "hosts.nursery", str(os.getpid())]
    ended = subprocess.run(command, input=data, cwd=PROJECT, capture_output=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"the nursery of the agents refuses what it is to do: ")
    assert ended.stderr.count(b"\n") == 1


def test_refusals_are_told_one_by_one_and_then_by_the_doubling() -> None:
    said = list[str]()
    refusals = Refusals("me", write=said.append)
    for _ in range(1000):
        refusals.tell("no")
    assert said[:8] == ["me: no\n"] * 8
    assert [int(found[1]) for line in said[8:] if (found := re.search(r"refused (\d+) so far", line))] == [
        16, 32, 64, 128, 256, 512,
    ]  # fmt: skip


# --- all of it at once, in the VM -----------------------------------------------------------------------------------


def test_an_experiment_goes_on_whatever_strangers_do(vm: VM) -> None:
    scenario = str(PROJECT / "scenarios" / "paper.toml")
    environment = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"}
    command = [sys.executable, "-m", HOSTILE, scenario]
    ended = vm.run("--memory", "3 GiB", "--", *command, timeout=500, cwd=PROJECT, env=environment)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert found["modes"] == {"folder": "0o700", "controller.sock": "0o600"}
    assert found["listening"] == ["127.0.0.1:6653"]
    assert found["reached"] == [[], []]  # no address of the control plane's answers a GPU
    doors, controller, *_ = found["heard"]
    assert doors == {"garbage": [0], "silence": [0], "short": [0], "token": [0], "flood": [0] * 5}
    refused = '{"ok":false,"error":"the run\'s token is missing or wrong"}\n'
    assert controller[:2] == [refused, refused]
    assert controller[2].count("\n") <= 100
    assert len(found["times"]) == 6 and all(0.001 < time < 0.1 for time in found["times"])
    assert "Traceback" not in ended.err
    lines = ended.err.splitlines()
    assert len(lines) < 60 and all(re.match(r"GPU \d: refused |controller: ", line) for line in lines), ended.err


def test_a_length_that_lies_is_no_greeting() -> None:
    magic, *_ = wire.greeted(struct.pack("!4sHxxQ32s", b"LHch", 1, 1, TOKEN))
    assert not magic


def test_tokens_are_compared_in_a_time_that_does_not_tell() -> None:
    for module in ("hosts/door.py", "controller/protocol.py"):
        assert "hmac.compare_digest(" in Path(PROJECT, module).read_text()
