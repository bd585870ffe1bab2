"""Roles of a program: commands for some of its ranks each, and servers that end with their clients."""

import csv
import json
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.experiment.options import parse_request
from scenarios.program.servers import Endings, HostSockets, useless
from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, resolved, scenario_of
from scenarios.spec.roles import Role, of_option
from scenarios.spec.scenario import Scenario, from_json, to_json
from tests.fakes.runs import ended

PYTHON = shlex.quote(sys.executable)
SITES = 'name = "two"\n[fabric]\ngpus = [3, 2]\n'


def of_file(text: str) -> Scenario:
    return scenario_of(SITES + text)


def of_command(*commands: str) -> Scenario:
    options = [word for command in commands for word in ("--exec", command)]
    return parse_request(["paper", "--gpus", "3+2", *options]).scenario


def commands(scenario: Scenario) -> dict[int, str]:
    """Return the command of each GPU on which a program runs, in the order of ranks."""
    spec = scenario.program
    return {gpu: spec.all_roles[role].command for gpu, role in spec.roles_of(scenario.fabric.gpus_per_site)}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["true"], dict.fromkeys(range(5), "true")),
        (["g0: a", "g4: b"], {0: "a", 4: "b"}),
        (["g4: b", "g0: a"], {0: "a", 4: "b"}),
        (["g0,g3-g4: a"], {0: "a", 3: "a", 4: "a"}),
        (["g1-3: a"], {1: "a", 2: "a", 3: "a"}),
        (["site 1: a", "g0: b: c"], {0: "b: c", 3: "a", 4: "a"}),
        (["sites 0-1: a"], dict.fromkeys(range(5), "a")),
        (["rank 0: a", "ranks 1-4: b"], {0: "a", 1: "b", 2: "b", 3: "b", 4: "b"}),
        (["g2: a", "others: b"], {0: "b", 1: "b", 2: "a", 3: "b", 4: "b"}),
        (["site 0, g4: a"], {0: "a", 1: "a", 2: "a", 4: "a"}),
    ],
)
def test_each_exec_runs_on_the_gpus_before_its_colon(given: list[str], wanted: Mapping[int, str]) -> None:
    assert commands(of_command(*given)) == wanted


@pytest.mark.parametrize("text", ["echo g0: a", "./g0:a", "PATH=a:b true", "g0 : a", "http://g0: x", "g0:a"])
def test_a_colon_elsewhere_belongs_to_the_command(text: str) -> None:
    assert of_option(text) == ({"on": "g0", "command": "a"} if text == "g0 : a" else {"command": text})


def test_tables_have_roles_and_keys_of_all_roles() -> None:
    scenario = of_file(
        """
        [[program]]
        name = "server"
        command = "serve"
        on = [0]
        until = "client"
        deadline = "3 s"
        [[program]]
        name = "client"
        command = "ask"
        on = "site 1"
        start = "5 ms"
        env = { WORD = "x" }
        """
    )
    server, client = scenario.program.roles
    assert (server.command, server.until, client.start_s, dict(client.env)) == ("serve", "client", 5e-3, {"WORD": "x"})
    assert scenario.program.deadline_s == 3.0
    assert commands(scenario) == {0: "serve", 3: "ask", 4: "ask"}
    assert scenario_of(resolved(scenario)).program == scenario.program == from_json(to_json(scenario)).program


@pytest.mark.parametrize("on", ["[0, 3]", '["g0", "g3"]', '["g0", "rank 3"]', '"g0, g3"'])
def test_gpus_are_listed_by_number_or_by_name(on: str) -> None:
    scenario = of_file(f'[[program]]\ncommand = "a"\non = {on}\n[[program]]\ncommand = "b"\non = "others"')
    assert commands(scenario) == {0: "a", 1: "b", 2: "b", 3: "a", 4: "b"}


def test_ranks_number_the_gpus_of_a_program() -> None:
    scenario = of_file('[program]\nranks = [4, 0, 2]\nrole = [{command = "a", on = "rank 0"}, {command = "b"}]')
    assert [*commands(scenario).items()] == [(4, "a"), (0, "b"), (2, "b")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[[program]]\non = "g0"', "program.role[1].command: is missing"),
        ('[[program]]\ncommand = "a"\non = "g9"', "there is no GPU 9; allowed: 0 to 4"),
        ('[[program]]\ncommand = "a"\non = "site 2"', "there is no site 2; allowed: 0 to 1"),
        ('[[program]]\ncommand = "a"\non = "rank 7"', "there is no rank 7; allowed: 0 to 4"),
        ('[[program]]\ncommand = "a"\non = "the left one"', '"the left one" is not understood; allowed: GPUs such as'),
        ('[[program]]\ncommand = "a"\non = "g3-g1"', "ends before it begins"),
        ('[[program]]\ncommand = "a"\non = []', "[] is not a list of GPUs, each once"),
        ('[[program]]\ncommand = "a"\non = "g0"\n[[program]]\ncommand = "b"\non = "site 0"', "g0 has two roles"),
        ('[[program]]\ncommand = "a"\non = "rank 0"', "g1, g2, g3, g4 have no role"),
        ('[[program]]\ncommand = "a"\n[[program]]\ncommand = "b"\non = "sites 0-1"', "no GPU is left for it"),
        ('[[program]]\ncommand = "a"\nuntil = "b"', '"b" is not a role; allowed: itself'),
        ('[[program]]\nname = "a"\ncommand = "a"\nuntil = "a"', "a would wait for itself"),
        ('[[program]]\nname = "a"\ncommand = "a"\non = "g0"\n[[program]]\nname = "a"\ncommand = "b"', '"a" is that of'),
        ('[[program]]\ncommand = "a"\nenv = {RANK = "1"}', "RANK is set by the run"),
        ('[[program]]\ncommand = "a"\ninput = "nowhere"', 'nowhere" cannot be read'),
        ('[[program]]\ncommand = "a"\nwhere = "g0"', "program.where: unknown key"),
        ('[[program]]\ncommand = "a"\ndeadline = "1 s"\n[[program]]\ncommand = "b"\ndeadline = "1 s"', "given twice"),
        ('[program]\ncommand = "a"\nrole = [{command = "b"}]', "is given together with program.command"),
        ('[program]\nranks = [0]\nrole = [{command = "b", on = "g1"}]', "g1 is not in program.ranks; allowed: g0"),
    ],
)
def test_a_wrong_role_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        of_file(text)
    assert sentence in "\n".join(caught.value.mistakes)


def test_an_option_replaces_the_program_of_a_file() -> None:
    roles = Override("program.role", [{"command": "b", "on": "g1"}], "--exec")
    assert commands(scenario_of(f'{SITES}[program]\ncommand = "a"', [roles])) == {1: "b"}
    command = Override("program.command", "b", "--exec")
    assert commands(scenario_of(f'{SITES}[[program]]\ncommand = "a"\non = "g0"', [command]))[4] == "b"


@given(st.lists(st.sampled_from([None, "itself", "a", "b"]), min_size=2, max_size=4), st.data())
def test_a_server_is_useless_once_all_that_do_not_listen_have_ended(
    untils: list[str | None], data: st.DataObject
) -> None:
    roles = [Role(command="x", name="abcd"[index], until=until) for index, until in enumerate(untils)]
    role_of = [*range(len(roles)), data.draw(st.integers(0, len(roles) - 1))]
    state = [data.draw(st.sampled_from(["ended", "listens", "runs", "is to start"])) for _ in role_of]
    left = [rank for rank in range(len(role_of)) if state[rank] != "ended"]
    running = [rank for rank in left if state[rank] != "is to start"]
    wanted = {
        rank
        for rank in running
        if untils[role_of[rank]] in ("a", "b")
        and not any(roles[role_of[other]].name == untils[role_of[rank]] for other in left)
    }
    servers = {rank for rank in running if state[rank] == "listens" and untils[role_of[rank]] is None}
    if "ended" in state and all(rank in wanted or rank in servers for rank in left):
        wanted |= servers
    listening = [rank for rank in left if state[rank] == "listens"]
    assert useless(roles, role_of, running, [*{*left} - {*running}], listening) == wanted


def test_the_kernels_tables_tell_who_listens(tmp_path: Path) -> None:
    """The real tables of this machine, with sockets that this test opens."""
    before = HostSockets.read(_tables())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 21_987))
        port = server.getsockname()[1]
        found = HostSockets.read(_tables())
        assert found.open_ports >= {("tcp", port), ("udp", 21_987)}
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert HostSockets.read(_tables()).connections >= found.connections + 2
    assert ("tcp", port) not in HostSockets.read(_tables()).open_ports - before.open_ports


def _tables() -> dict[str, str]:
    files = {name: Path("/proc/net", name) for name in ("tcp", "tcp6", "udp", "udp6")}
    return {name: file.read_text() for name, file in files.items() if file.exists()}


def test_a_server_keeps_its_connections_for_a_while() -> None:
    endings, ms = Endings(), 1_000_000
    assert endings.due([0, 1, 2], [1, 2], [1], 0) == []
    assert endings.due([0, 1, 2], [1, 2], [1], 10 * ms) == [0]
    assert endings.due([1, 2], [1, 2], [1], 999 * ms) == []
    assert endings.due([1, 2], [1, 2], [1], 1000 * ms) == [1]
    assert endings.due([2], [2], [], 2000 * ms) == []
    assert Endings({0: 0}, {0: 5 * ms}).due([0], [], [], 14 * ms) == []


SERVER = """
import os, socket, sys
server = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    there = server.accept()[0]
    while data := there.recv(65536):
        there.sendall(data)
    print("served", flush=True)
"""
CLIENT = """
import socket, sys, time
there = socket.create_connection(("g0", 7000))
for line in sys.stdin:
    began = time.monotonic()
    there.sendall(line.encode())
    got = there.recv(100).decode()
    print(got.strip(), time.monotonic() - began)
"""


def run_roles(folder: Path, text: str, status: int = 0) -> tuple[Any, str]:
    (folder / "mine.toml").write_text(text)
    out, said = ended("mine.toml", "--modes", "base", "--out", "run", "--json", cwd=folder, status=status)
    return json.loads(out), said


def test_a_server_is_ended_with_its_clients_which_start_later_and_read_a_file(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "words").write_text("one\ntwo\n")
    found, said = run_roles(
        tmp_path,
        f"""
        [fabric]
        gpus = 4
        [conditions]
        wan_delay = "10 ms"
        wan_rate = "10 Gbit/s"
        intra_rate = "10 Gbit/s"
        [[program]]
        name = "server"
        command = "{PYTHON} server.py"
        on = "g0"
        [[program]]
        name = "clients"
        command = "{PYTHON} client.py; echo $WORD"
        on = "g2"
        start = "100 ms"
        env = {{ WORD = "done" }}
        input = "words"
        """,
    )
    server, client = found["ranks"]
    assert server["stopped"] and server["status"] == -15 and server["role"] == "server"
    assert (client["status"], client["gpu"], client["role"]) == (0, "g2", "clients")
    assert (tmp_path / "run/output/0.stdout").read_text() == "listening\nserved\n"
    first, second, last = (tmp_path / "run/output/1.stdout").read_text().splitlines()
    assert (first.split()[0], second.split()[0], last) == ("one", "two", "done")
    assert float(first.split()[1]) == pytest.approx(20e-3, rel=1e-3)
    # A handshake and two round trips of 20 ms; the server's last moments do not count.
    assert found["run_s"] == pytest.approx(100e-3 + 3 * 20e-3, rel=1e-3)
    assert server["end_s"] < found["run_s"] + 0.1
    assert "status" not in said
    with (tmp_path / "run/ranks.csv").open() as file:
        assert [(row["role"], row["start_s"]) for row in csv.DictReader(file)] == [
            ("server", "0.0"),
            ("clients", "0.1"),
        ]


PEER = """
import socket, sys, time
server = socket.create_server(("", 7000))
time.sleep(0.01)
kept = socket.create_connection((sys.argv[1], 7000))
time.sleep(float(sys.argv[2]))
"""


def test_servers_that_stay_connected_to_each_other_are_named_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(PEER)
    # The server on g2 is connected to itself, and ends by itself.
    peers = {"g0": "g1 1000", "g1": "g0 1000", "g2": "g2 1"}
    roles = [*(f"{gpu}: exec {{}} peer.py {told}" for gpu, told in peers.items()), "g3: sleep 0.5"]
    commands = [word for role in roles for word in ("--exec", role.format(PYTHON))]
    options = ("--gpus", "4", "--modes", "base", "--set", 'program.deadline="3 s"', "--out", "run")
    _, said = ended(*options, *commands, cwd=tmp_path, status=1)
    assert "the ranks were ended at the deadline of 3 s" in said
    assert "ranks 0, 1 listened and kept TCP connections when all others had ended: give their role `until`" in said


def test_a_role_ends_with_the_one_that_it_waits_for_and_a_failure_is_told(tmp_path: Path) -> None:
    found, said = run_roles(
        tmp_path,
        """
        [fabric]
        gpus = 4
        [[program]]
        name = "watch"
        command = "trap '' TERM; sleep 100; sleep 100"
        on = "g1"
        until = "work"
        [[program]]
        name = "work"
        command = "sleep 1; exit 3"
        on = "g0"
        [[program]]
        command = "sleep 2"
        on = "g2"
        """,
        status=1,
    )
    worker, watcher, other = found["ranks"]
    assert (worker["status"], watcher["status"], other["status"]) == (3, -9, 0)
    assert watcher["stopped"] and not worker["stopped"] and not other["stopped"]
    assert watcher["end_s"] == pytest.approx(1.0 + 2.0, abs=0.1)  # it ignores SIGTERM
    assert "rank 0 ended with status 3" in said and "rank 1" not in said
