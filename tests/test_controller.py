"""The controller: what it says to whom, and what it does to real switches in the VM."""

import json
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import rules
from controller.client import Controller, ControllerError
from controller.flows import IN_PORT, Rule
from controller.lines import ProtocolError, write_line
from controller.protocol import RouteRequest, line_limit_bytes, parse_request, read_spec, write_spec
from controller.ways import Ways
from tests.conftest import PROJECT, VM
from tests.fakeswitch import FakeSwitch, Seen
from topologies.fabric import FabricSpec, build_fabric
from topologies.wan import WanSpec

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


# --- what may be asked ----------------------------------------------------------------------------------------------


def test_a_route_request_arrives_as_it_was_asked() -> None:
    request = parse_request(write_line(ROUTE), FABRIC)
    assert isinstance(request, RouteRequest)
    assert (request.crossings, request.chunk_bytes, request.best) == (((3, 4), (7, 0)), 8_000_000, True)
    assert set(request.rates_bps) == {1e9} and len(request.delays_s) == LINKS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ask": "reboot"}, "\"ask\" is 'reboot'; allowed"),
        ({"colour": 1}, "nothing is known of 'colour'"),
        ({"crossings": [[3, 4], [3, 4]]}, "[3, 4] is given twice"),
        ({"crossings": [[3, 8]]}, "[3, 8] names a rank beyond 0 to 7"),
        ({"crossings": [[-1, 4]]}, "[-1, 4] names a rank beyond"),
        ({"crossings": [[0, 1]]}, "no path leads over the WAN from rank 0 to rank 1"),
        ({"crossings": [[True, 4]]}, "[True, 4] is no pair of ranks"),
        ({"crossings": [[3, 4]] * 9}, "not a list of at most 8 pairs"),
        ({"rates_bps": [1e9]}, f'"rates_bps" is 1 values, not a list of {LINKS}'),
        ({"rates_bps": [0] * LINKS}, '"rates_bps[0]" is 0, not a number from 1'),
        ({"rates_bps": ["fast"] * LINKS}, "is 'fast', not a number"),
        ({"delays_s": [-1] * LINKS}, '"delays_s[0]" is -1'),
        ({"chunk_bytes": 1.5}, '"chunk_bytes" is 1.5'),
        ({"chunk_bytes": 0}, '"chunk_bytes" is 0'),
        ({"best": 1}, '"best" is 1, not true or false'),
    ],
)
def test_what_cannot_be_served_is_told_with_its_value(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError) as told:
        parse_request(write_line(ROUTE | change), FABRIC)
    assert words in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("missing", sorted(set(ROUTE) - {"ask"}))
def test_a_field_that_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ProtocolError, match=f'needs "{missing}"'):
        parse_request(write_line({key: value for key, value in ROUTE.items() if key != missing}), FABRIC)


@pytest.mark.parametrize(
    "line",
    [b"", b"route", b"\xff\xfe", b"[" * 100_000, b"[1]", b'{"ask":NaN}', b'{"ask":"status","wait_s":1e999}',
     b'{"ask":"status","wait_s":' + b"9" * 4000 + b"}", b'{"ask":"status","wait_s":' + b"9" * 9000 + b"}"],
)  # fmt: skip
def test_garbage_is_a_protocol_error_on_one_line(line: bytes) -> None:
    with pytest.raises(ProtocolError) as told:
        parse_request(line, FABRIC)
    assert "\n" not in str(told.value) and len(str(told.value)) < 200


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["ask", "wait_s", *ROUTE]), inner)).map(lambda value: json.dumps(value).encode()))  # fmt: skip  # noqa: E501
def test_no_line_at_all_is_anything_but_a_request_or_a_protocol_error(line: bytes) -> None:
    try:
        parse_request(line, FABRIC)
    except ProtocolError as told:
        assert "\n" not in str(told)


@pytest.mark.parametrize(
    "spec",
    [
        FabricSpec(),
        FabricSpec(gpus_per_site=(3, 5), leaves=(1, 2), wan=WanSpec(preset="five-router")),
        FabricSpec(wan=WanSpec(preset=None, routers=("X",), links=(("s0b0", "X"), ("X", "s1b0")))),
    ],
)
def test_a_declared_fabric_is_read_back_as_it_was_written(spec: FabricSpec) -> None:
    assert read_spec(write_spec(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is no JSON object"),
        ('{"gpus_per_site": 4}', '"gpus_per_site" is one number'),
        ('{"gpus_per_site": [4, "4"]}', "not a whole number or a list"),
        ('{"gpu": [4, 4]}', "nothing is known of 'gpu'"),
        ('{"wan": 3}', '"wan" is 3'),
        ('{"wan": {"preset": 3}}', '"preset" is 3'),
        ('{"wan": {"links": [["a"]]}}', "allowed are names, and pairs of them"),
        ('{"wan": {"routers": [1]}}', "1 is no name of a router"),
    ],
)
def test_a_fabric_that_is_none_is_told(text: str, words: str) -> None:
    with pytest.raises(ProtocolError) as told:
        read_spec(text)
    assert words in str(told.value)


# --- the process and its socket, without switches -------------------------------------------------------------------


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


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    found = Process(tmp_path)
    yield found
    for started in found.started:
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


def test_garbage_gets_one_line_each_and_the_controller_goes_on(process: Process) -> None:
    process.up()
    replies = exchange(process.path, b'garbage\n\n{"ask":"status"}\n[]\n' + write_line(ROUTE))
    assert [reply["ok"] for reply in replies] == [False, False, True, False, False]
    assert replies[2]["not_ready"] == [switch.name for switch in FABRIC.switches]
    assert replies[4]["error"] == "the switch s0l0 is not connected"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_endless_line_is_refused_and_hung_up_on(process: Process, end: bytes) -> None:
    process.up()
    line = b"x" * (line_limit_bytes(FABRIC) + 1) + end
    assert exchange(process.path, line) == [
        {"ok": False, "error": f"a line is longer than {len(line) - len(end) - 1} bytes"}
    ]
    assert exchange(process.path, b'{"ask":"status"}\n')[0]["ok"]


def test_the_largest_route_request_fits_the_line() -> None:
    big = build_fabric(FabricSpec(gpus_per_site=(32, 32)))
    longest = [123_456_789_012_345.6] * len(big.links)
    line = write_line(ROUTE | {"rates_bps": longest, "delays_s": [1.2345678901234567e-05] * len(big.links)})
    assert len(line) <= line_limit_bytes(big)


def test_the_socket_is_the_users_own_and_switches_are_heard_on_loopback_alone(process: Process) -> None:
    process.up()
    mode = process.path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    heard = subprocess.run(["ss", "-Hltn", f"sport = :{process.port}"], capture_output=True, text=True, check=True)
    assert [line.split()[3] for line in heard.stdout.splitlines()] == [f"127.0.0.1:{process.port}"]


def test_more_clients_than_it_serves_are_told_so(process: Process) -> None:
    process.up()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(9)]
    try:
        for client in clients:
            client.settimeout(20)
            client.connect(str(process.path))
        assert json.loads(clients[8].recv(1000))["error"] == "too many clients at once"
        clients[0].close()
        time.sleep(0.2)
        assert exchange(process.path, b'{"ask":"status"}\n')[0]["ok"]
    finally:
        for client in clients:
            client.close()


def test_who_does_not_know_the_token_is_told_so_and_no_more(process: Process, tmp_path: Path) -> None:
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


def test_a_client_that_goes_on_being_refused_is_hung_up_on(process: Process) -> None:
    running = process.up()
    assert len(exchange(process.path, b"garbage\n" * 99 + b'{"ask":"status"}\n')) == 100
    assert len(exchange(process.path, b"garbage\n" * 100)) == 100
    running.terminate()
    _, err = running.communicate(timeout=20)
    told = "controller: refused a request: b'garbage' is no JSON"
    assert err.decode().splitlines() == [told, told, "controller: hung up on a client after 100 refused requests"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_and_takes_the_socket_away(process: Process, number: signal.Signals) -> None:
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


def test_what_a_killed_controller_left_is_taken_over_and_what_is_in_use_is_not(process: Process) -> None:
    process.up().kill()
    running = process.up()
    for change, words in (
        ({"port": free_port()}, f"another controller serves {process.path}"),
        ({"socket": f"{process.path}2"}, f"port {process.port} cannot be listened on: it is in use"),
        ({"port": free_port(), "socket": process.declared}, f"{process.declared} exists and is no socket"),
        ({"port": free_port(), "socket": "/nowhere/s"}, "no socket can be made at /nowhere/s: No such file"),
    ):
        ended = process.start(**change)
        _, err = ended.communicate(timeout=20)
        assert ended.returncode == 1 and err.decode().startswith(f"controller: {words}") and err.count(b"\n") == 1
    assert running.poll() is None and Controller(process.path).status()["ok"]


def test_a_fabric_that_cannot_be_is_bad_usage(process: Process) -> None:
    process.declared.write_text(write_spec(replace(SPEC, gpus_per_site=(1, 4))))
    for change, words in (
        ({}, b"1 gpus in a site"),
        ({"fabric": "/nowhere"}, b"No such file"),
        ({"port": 0}, b"no TCP port"),
    ):
        ended = process.start(**change)
        _, err = ended.communicate(timeout=20)
        assert ended.returncode == 2 and words in err and b"Traceback" not in err


def test_the_client_waits_for_the_switches_no_longer_than_it_is_told(process: Process) -> None:
    process.start()
    begin = time.monotonic()
    with pytest.raises(ControllerError, match="still waits for s0l0, s0l1"):
        Controller(process.path).wait_ready(timeout_s=4)
    assert 3.9 < time.monotonic() - begin < 10


def test_the_client_does_not_wait_for_a_process_that_has_ended(tmp_path: Path) -> None:
    with pytest.raises(ControllerError, match="has ended before it was ready"):
        Controller(tmp_path / "s").wait_ready(timeout_s=1000, alive=lambda: False)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "has not answered within 0.5 s"), (b"what?\n", "answers nonsense"), (b"", "has ended")],
)
def test_the_client_names_a_controller_that_does_not_answer(tmp_path: Path, answer: bytes | None, words: str) -> None:
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


# --- switches that misbehave ------------------------------------------------------------------------------------------


class Fakes:
    """A controller whose switches are all fake, and ready."""

    def __init__(self, process: Process) -> None:
        self.running, self.port, self.seen = process.up(), process.port, Seen()
        self.switches: dict[str, FakeSwitch] = {}
        for switch in FABRIC.switches:
            self.connect(switch.name)
        self.controller = Controller(process.path)
        self.controller.wait_ready(timeout_s=30)

    def connect(self, name: str) -> None:
        dpid = next(switch.dpid for switch in FABRIC.switches if switch.name == name)
        self.switches[name] = FakeSwitch(name, dpid, self.port, self.seen)

    def route(self, path: int) -> tuple[int, ...]:
        """Put ranks 3 and 4 on this path, by conditions that make it the best."""
        rates = [1e9 if link.kind == "wan" else 1e11 for link in FABRIC.links]
        rates[FABRIC.paths[path].links[0]] = 1e11
        return self.controller.route(
            crossings=[(3, 4)], rates_bps=rates, delays_s=[0] * LINKS, chunk_bytes=10**6, best=True
        ).paths

    def events(self) -> list[tuple[str, str, int, int]]:
        """What happened since they were last asked for."""
        found, self.seen.events = self.seen.events, []
        return found


@pytest.fixture
def fakes(process: Process) -> Iterator[Fakes]:
    found = Fakes(process)
    yield found
    for switch in found.switches.values():
        switch.close()


def test_every_stage_waits_until_the_slowest_switch_has_confirmed_the_one_before(fakes: Fakes) -> None:
    assert fakes.route(1) == (1,)
    fakes.events()
    fakes.switches["s0p1"].delay_s = fakes.switches["s0l1"].delay_s = 0.3
    assert fakes.route(2) == (2,)
    events = [(switch, what) for switch, what, _, _ in fakes.events()]
    ahead = {"s0p1", "s0b1", "s1b0", "s1p0", "s1l0"}  # path 2 leads from border router 1 to border router 0
    laid, switched = events.index(("s0l1", "add")), events.index(("s0l1", "confirm"))
    assert set(events[:laid]) == {(name, what) for name in ahead for what in ("add", "confirm")}
    assert {what for _, what in events[laid:switched]} == {"add"}
    assert {switch for switch, what in events[switched + 1 :] if what == "delete"} == {
        "s0p1",
        "s0b0",
        "s1b1",
        "s1p0",
        "s1l0",
    }
    assert "add" not in {what for _, what in events[switched + 1 :]}


def test_old_rules_go_by_the_cookie_of_their_generation(fakes: Fakes) -> None:
    fakes.route(1)
    (first,) = {cookie for _, what, cookie, _ in fakes.events() if what == "add" and cookie & 0xFFFFFFFF}
    fakes.route(2)
    events = fakes.events()
    (second,) = {cookie for _, what, cookie, _ in events if what == "add"}
    assert {(cookie, mask) for _, what, cookie, mask in events if what == "delete"} == {(first, 2**64 - 1)}
    assert second != first


def test_a_switch_that_does_not_confirm_is_named_and_the_next_request_starts_from_a_clean_table(fakes: Fakes) -> None:
    fakes.switches["s1b0"].silent = True
    with pytest.raises(ControllerError, match="says: no answer within 5 s from the switch s1b0"):
        fakes.route(2)
    assert ("s0l1", "add") not in {(s, w) for s, w, cookie, _ in fakes.events() if cookie & 0xFFFFFFFF}
    fakes.switches["s1b0"].silent = False
    assert fakes.route(3) == (3,)
    events = fakes.events()
    cleared = {switch for switch, what, _, mask in events if what == "delete" and mask == 0xFFFFFFFF << 32}
    assert cleared == {switch.name for switch in FABRIC.switches}
    assert fakes.controller.status()["routes"] == [[3, 4, 3, 2]]


def test_a_switch_that_refuses_a_rule_is_named(fakes: Fakes) -> None:
    fakes.switches["s0p1"].full = True
    with pytest.raises(
        ControllerError, match="says: the switch s0p1 refuses a rule with OpenFlow error type 5, code 1"
    ):
        fakes.route(1)


def test_a_switch_that_leaves_in_the_middle_is_named_at_once(fakes: Fakes) -> None:
    fakes.switches["s1p0"].hangs_up = True
    begin = time.monotonic()
    with pytest.raises(ControllerError, match="says: the switch s1p0 has disconnected"):
        fakes.route(1)
    assert time.monotonic() - begin < 4
    fakes.events()
    assert fakes.route(1) == (1,)  # over the other spine
    told = {switch for switch, what, cookie, _ in fakes.events() if what == "add" and cookie & 0xFFFFFFFF}
    assert "s1p1" in told and "s1p0" not in told
    fakes.connect("s1p0")
    fakes.controller.wait_ready(timeout_s=30)
    assert fakes.route(1) == (1,)
    fakes.switches["s0l1"].close()
    with pytest.raises(ControllerError, match="says: the switch s0l1 is not connected"):
        fakes.route(2)


def test_a_stranger_among_the_switches_changes_nothing(fakes: Fakes) -> None:
    stranger = FakeSwitch("stranger", 0xBAD, fakes.port, fakes.seen)
    assert fakes.route(1) == (1,)
    stranger.close()
    assert "stranger" not in {switch for switch, *_ in fakes.events()}


# --- real switches, in the VM ---------------------------------------------------------------------------------------

FABRICS = {"mesh": SPEC, "five-router": FabricSpec(gpus_per_site=(3, 5), wan=WanSpec(preset="five-router"))}


@pytest.mark.parametrize("name", FABRICS)
def test_a_life_with_real_switches(vm: VM, name: str) -> None:
    ended = vm.run("--", sys.executable, str(PROJECT / "tests/guest/openflow.py"), name, timeout=300)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    check_life(found, FABRICS[name])


def check_life(found: dict[str, Any], spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    ways = Ways(fabric)
    for switch in fabric.switches:
        assert found["standing"][switch.name] == sorted(as_ovs(rule) for rule in rules.standing(ways, switch.name))
    assert found["pairs_lost"] == []
    there, back = fabric.paths_between[0, 1], fabric.paths_between[1, 0]
    answers = links_of(back[0].name)
    assert found["default"] == dict.fromkeys([*links_of(there[0].name), *answers], 50)

    # Routes change under a stream of datagrams, and each time to the one path that the conditions make the best.
    assert len(found["changes"]) == 30 and len({asked for asked, _ in found["changes"]}) > 3
    assert all(paths[0] == asked for asked, paths in found["changes"])
    assert found["live"]["sent"] > 5000 and (found["live"]["lost"], found["live"]["duplicates"]) == (0, 0)
    # After the reply, every packet is on the path and on no other.
    assert len(found["routed"]) >= 4
    for path, carried in found["routed"].items():
        assert carried == dict.fromkeys([*links_of(path), *answers], 50)

    last = there[-1]
    assert found["kept_when_dead"] is True
    assert found["routed_when_dead"] == dict.fromkeys([*links_of(last.name), *answers], 50)
    assert found["asked_when_dead"] == "the controller at /run/controller.sock has ended"
    assert found["live_restart"]["sent"] > 1000 and found["live_restart"]["lost"] == 0
    assert found["standing_again"] is True

    victim = last.name.split(">")[0]
    assert victim not in found["asked_without_switch"]
    assert found["routed_without_switch"] == dict.fromkeys([*links_of(found["asked_without_switch"]), *answers], 50)
    assert found["rules_without_controller"] == []
    assert found["reconnected"] is True
    assert found["routed_reconnected"] == dict.fromkeys([*links_of(last.name), *answers], 50)
    assert found["sigterm"] == found["sigint"] == [0, False]


def links_of(path: str) -> list[str]:
    """A path's WAN links: of "a>b>c", "a>b" and "b>c"."""
    names = path.split(">")
    return [f"{a}>{b}" for a, b in pairwise(names)]


def as_ovs(rule: Rule) -> str:
    """A rule as ovs-ofctl writes it."""
    match = rule.match
    fields = {"in_port": match.in_port, "dl_dst": match.eth_dst, "nw_src": match.src, "nw_dst": match.dst}
    words = ["ip", *(f"{field}={value}" for field, value in fields.items() if value is not None)]
    rewrite = f"set_field:{rule.eth_dst}->eth_dst," if rule.eth_dst else ""
    out = "IN_PORT" if rule.out_port == IN_PORT else f"output:{rule.out_port}"
    return f"cookie=0x{rule.cookie:x}, priority={rule.priority},{','.join(words)} actions={rewrite}{out}"
