"""The controller's process without switches: its socket, its clients and its termination."""

import json
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.client import Controller, ControllerError
from controller.api.protocol import line_limit_bytes, write_line, write_spec
from tests.controller.conftest import FABRIC, ROUTE, SPEC, Process, exchange, free_port


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A controller that the module's tests share, so that none may end it."""
    with closing(Process(tmp_path_factory.mktemp("controller"))) as found:
        found.up()
        yield found


def test_malformed_requests_get_one_error_line_each_and_the_controller_keeps_serving(shared: Process) -> None:
    replies = exchange(shared.path, b'garbage\n\n{"ask":"status"}\n[]\n' + write_line(ROUTE))
    assert [reply["ok"] for reply in replies] == [False, False, True, False, False]
    assert replies[2]["not_ready"] == [switch.name for switch in FABRIC.switches]
    assert replies[4]["error"] == "the switch s0l0 is not connected"
    limit = line_limit_bytes(FABRIC)
    for end in (b"", b"\n"):
        (reply,) = exchange(shared.path, b"x" * (limit + 1) + end)  # and the client is disconnected
        assert not reply["ok"] and str(limit) in reply["error"]
    assert len(exchange(shared.path, b" " * limit + b'\n{"ask":"status"}\n')) == 2
    assert exchange(shared.path, b'{"ask":"status"}') == []  # an unfinished line is not a request


def test_the_socket_is_private_to_the_user_and_switches_connect_only_on_loopback(shared: Process) -> None:
    mode = shared.path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    listening = subprocess.run(["ss", "-Hltn", f"sport = :{shared.port}"], capture_output=True, text=True, check=True)
    assert [line.split()[3] for line in listening.stdout.splitlines()] == [f"127.0.0.1:{shared.port}"]


def test_a_switch_without_openflow_13_is_logged_once_in_words(process: Process) -> None:
    """OpenFlow 1.3.5, 7.5.1: a hello is a header, and may have a bitmap of versions (type 1) behind it."""
    running = process.up()
    hellos = [struct.pack("!BBHI", 1, 0, 8, 1)] * 2  # 1.0 alone, as Open vSwitch sends it; it tries again
    hellos += [struct.pack("!BBHIHHI", 5, 0, 16, 1, 1, 8, 0b110010)]  # 1.0, 1.3 and 1.4
    hellos += [struct.pack("!BBHI", 3, 0, 8, 1)]  # 1.2 and earlier ones
    for hello in hellos:
        with socket.create_connection(("127.0.0.1", process.port)) as switch:
            switch.settimeout(20)
            switch.sendall(hello)
            got = b""
            while len(got) < 16:  # the controller's own hello; then an error, or a request for features
                got += switch.recv(4096)
    assert running.stderr is not None
    said: list[str] = []
    while sum("protocols" in line for line in said) < 2:
        said.append(running.stderr.readline().decode())
    running.terminate()
    said += running.stderr.read().decode().splitlines(keepends=True)
    text = "controller: a switch at 127.0.0.1 speaks OpenFlow {} and not 1.3, and is refused: set its protocols"
    shown = [line.removesuffix(" to OpenFlow13\n") for line in said if "protocols" in line]
    assert shown == [text.format("1.0 at most"), text.format("1.2 at most")]


def test_a_controller_that_had_too_many_open_files_serves_clients_again(process: Process) -> None:
    pid = process.up().pid
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    few = next(number for number in range(len(used) + 1) if number not in used)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, limits[1]))
    assert exchange(process.path, b'{"ask":"status"}\n')[0]["ok"]  # its descriptor was reserved before
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.settimeout(20)
        waiting.connect(str(process.path))
        waiting.sendall(b'{"ask":"status"}\n')
        time.sleep(0.2)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert json.loads(waiting.recv(1 << 16))["ok"]


def test_a_controller_without_a_folder_for_its_socket_says_so_in_one_sentence() -> None:
    command = [sys.executable, "-m", "controller", f"--port={free_port()}"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/proc"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("controller: the socket's folder cannot be created: ") and "--socket" in done.stderr


def test_a_client_beyond_the_limit_is_refused(shared: Process) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(9)]
        for client in clients:
            client.settimeout(20)
            client.connect(str(shared.path))
        assert "too many clients" in json.loads(clients[8].recv(1000))["error"]
        clients[0].close()
        time.sleep(0.2)
        assert exchange(shared.path, b'{"ask":"status"}\n')[0]["ok"]


def test_every_request_without_the_right_token_gets_the_same_refusal(process: Process, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("5ecret\n")
    running = process.start(token=tmp_path / "token")
    assert running.stdout is not None and running.stdout.readline().startswith(b"controller: ")
    wrong = [{"ask": "status"}, {"ask": "status", "token": "5ecre"}, {"ask": "status", "token": 5}, ROUTE]
    refused = {"ok": False, "error": "the run's token is missing or wrong"}
    assert exchange(process.path, b"".join(map(write_line, wrong))) == [refused] * 4
    with Controller(process.path, token="5ecret") as client:
        assert client.status()["ok"]
    running.terminate()
    _, err = running.communicate(timeout=20)
    assert err == b"controller: refused a request: the run's token is missing or wrong\n"


def test_a_client_is_disconnected_after_100_refused_requests(process: Process) -> None:
    running = process.up()
    assert len(exchange(process.path, b"garbage\n" * 99 + b'{"ask":"status"}\n')) == 100
    assert len(exchange(process.path, b"garbage\n" * 100)) == 100
    running.terminate()
    _, err = running.communicate(timeout=20)
    refused, again, ended = err.decode().splitlines()
    assert refused == again and "b'garbage'" in refused and "disconnected a client after 100" in ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_controller_with_status_0_and_removes_its_socket(
    process: Process, number: signal.Signals
) -> None:
    running = process.up()
    client = Controller(process.path)
    assert client.status()["generation"] == 0
    running.send_signal(number)
    _, err = running.communicate(timeout=20)
    assert (running.returncode, err) == (0, b"")
    assert not process.path.exists()
    with pytest.raises(ControllerError, match=f"the controller at {process.path} has ended"):
        client.status()
    with pytest.raises(ControllerError, match=f"no controller answers at {process.path}"):
        client.status()


def test_a_killed_controllers_socket_is_taken_over_but_one_in_use_is_not(process: Process) -> None:
    process.up().kill()
    running = process.up()
    for change, words in (
        ({"port": free_port()}, f"another controller serves {process.path}"),
        ({"socket": f"{process.path}2"}, f"port {process.port} cannot be listened on: it is in use"),
        ({"port": free_port(), "socket": process.declared}, f"{process.declared} exists and is not a socket"),
        ({"port": free_port(), "socket": "/nowhere/s"}, "no socket can be created at /nowhere/s: No such file"),
    ):
        ended = process.start(**change)
        _, err = ended.communicate(timeout=20)
        assert ended.returncode == 1 and err.decode().startswith(f"controller: {words}") and err.count(b"\n") == 1
    assert running.poll() is None and Controller(process.path).status()["ok"]


def test_an_invalid_fabric_port_or_token_ends_the_controller_with_status_2(process: Process) -> None:
    good = process.declared.with_name("good.json")
    good.write_text(write_spec(SPEC))
    process.declared.write_text(write_spec(replace(SPEC, gpus_per_site=(0, 4))))
    for change, words in (
        ({}, b"0 gpus in a site"),
        ({"fabric": "/nowhere"}, b"No such file"),
        ({"fabric": good, "token": "/nowhere"}, b"No such file"),
        ({"fabric": good, "token": good}, b"letters and digits"),
        ({"fabric": good, "elsewhere": "s0l0,s9l0"}, b"--elsewhere s9l0: the fabric has no such switch"),
        ({"fabric": good, "elsewhere": "s0l0=-1"}, b"--elsewhere s0l0=-1: allowed: a time in seconds, 0 or more"),
        ({"fabric": good, "elsewhere": "s0l0=soon"}, b"--elsewhere s0l0=soon: allowed: a time in seconds, 0 or more"),
        ({"port": 0}, b"not a TCP port"),
    ):
        ended = process.start(**change)
        _, err = ended.communicate(timeout=20)
        assert ended.returncode == 2 and words in err and b"Traceback" not in err


def test_the_client_waits_for_the_switches_only_until_its_timeout(process: Process) -> None:
    process.start()
    while not process.path.exists():  # a busy machine starts it late
        time.sleep(0.1)
    begin = time.monotonic()
    with pytest.raises(ControllerError, match="still waits for s0l0, s0l1"):
        Controller(process.path).wait_ready(timeout_s=4)
    assert 3.9 < time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "has not answered within 0.5 s"), (b"what?\n", "sent a malformed reply"), (b"", "has ended")],
)
def test_the_clients_error_names_a_controller_that_does_not_answer(
    tmp_path: Path, answer: bytes | None, words: str
) -> None:
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            if answer is None:
                time.sleep(2)
            else:
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(ControllerError, match=f"the controller at {path} {words}"):
        Controller(path, deadline_s=0.5).status()
    thread.join()
    server.close()
