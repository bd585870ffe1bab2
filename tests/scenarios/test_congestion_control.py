"""Congestion control by crossing: what sockets of programs tell of themselves, and the words for it."""

import csv
import json
from pathlib import Path

import pytest

from tests.fakes.runs import ended

NETWORK = """
[fabric]
gpus = [2, 2]
border_routers = 1
buffer = "1 MB"
[conditions]
wan_delay = "1 ms"
[transport]
queue = "fifo"
ecn_threshold = "250 kB"
[run]
modes = ["base"]
"""
ASKS = """
import json, os, socket, time
FAMILIES = {"4": socket.AF_INET, "6": socket.AF_INET6}
rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
def told(connection):
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\\0")[0].decode()
    options = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[5]
    return name, bool(options & 8)  # TCPI_OPT_ECN
listeners = {version: socket.create_server(("", 5000 + int(version)), family=family)
             for version, family in FAMILIES.items()}
found = []
for server in range(last):  # each rank connects to all of lower numbers, over both protocols
    for version, family in FAMILIES.items():
        if rank == server:
            for _ in range(last - server):
                connection, _ = listeners[version].accept()
                found.append((version, connection.recv(1).decode(), *told(connection)))
                connection.close()
        elif rank > server:
            address = socket.getaddrinfo(f"g{server}", 5000 + int(version), family)[0][4]
            while True:
                connection = socket.socket(family)
                try:
                    connection.connect(address)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            connection.sendall(str(rank).encode())
            found.append((version, str(server), *told(connection)))
            connection.recv(1)
print(json.dumps(found))
"""


@pytest.mark.parametrize("intra,wan", [("dctcp", "bbr"), ("cubic", "dctcp")])
def test_a_programs_connections_have_the_congestion_control_of_their_crossing_at_both_ends(
    tmp_path: Path, intra: str, wan: str
) -> None:
    """GPUs 0 and 1 are in site 0, 2 and 3 in site 1. Only dctcp's connections use ECN."""
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "mine.toml").write_text(f"{NETWORK}\n[transport.congestion_control]\nintra = '{intra}'\nwan = '{wan}'")
    ended("mine.toml", "--exec", "python3 asks.py", "--out", "run", cwd=tmp_path)
    for rank in range(4):
        told = json.loads((tmp_path / f"run/output/{rank}.stdout").read_text())
        assert len(told) == 6
        for _, other, name, uses_ecn in told:
            wanted = intra if rank // 2 == int(other) // 2 else wan
            assert (name, uses_ecn) == (wanted, wanted == "dctcp")


def test_a_sweep_tells_the_parts_in_words(tmp_path: Path) -> None:
    sweep = "transport.congestion_control={ intra = 'dctcp', wan = 'bbr' },reno"
    ended("--engine", "model", "--modes", "base", "--collectives", "9", "--sweep", sweep, "--out", "run", cwd=tmp_path)
    rows = [*csv.DictReader((tmp_path / "run/summary.csv").open())]
    words = "dctcp within sites and bbr between them"
    assert {row["transport.congestion_control"] for row in rows} == {words, "reno"}
    labels = {one["label"].rpartition(", ")[2] for one in json.loads((tmp_path / "run/settings.json").read_text())}
    assert labels == {f"congestion control {words}", "congestion control reno"}


CLASSES = """
[fabric]
gpus = [2, 2]
border_routers = 1
[conditions]
wan_rate = "1 Gbit/s"
wan_delay = "5 ms"
[transport]
line_rate = false
congestion_control = "reno"
[collective]
chunk = "4 MB"
count = 1
emulated = 1
[run]
modes = ["base"]
[[class]]
name = "bronze"
priority = 1
[[class]]
name = "gold"
priority = 0
congestion_control = "bbr"
"""
JOBS = "".join(
    f'[[job]]\nname = "{name}"\nranks = [{rank}, {rank + 2}]\nclass = "{name}"\n'
    for rank, name in enumerate(("gold", "bronze"))
)


def test_connections_of_a_class_have_its_congestion_control_at_both_ends(tmp_path: Path) -> None:
    """`ss` shows the connections of the agents on each host while jobs run."""
    (tmp_path / "mine.toml").write_text(CLASSES + JOBS)
    ended("mine.toml", "--exec", "sh -c 'sleep 0.03; ss -tin'", "--out", "run", cwd=tmp_path)
    for rank, wanted in enumerate(("bbr", "reno", "bbr", "reno")):
        head, *lines = (tmp_path / f"run/output/{rank}.stdout").read_text().splitlines()
        assert head.startswith("State") and [line.split()[0] for line in lines] == ["ESTAB", wanted] * 2


@pytest.mark.parametrize(
    "more,wrong",
    [
        (
            'congestion_control = "dctcp"',
            'class[3].congestion_control: "dctcp" is not known; allowed: cubic, reno, bbr',
        ),
        ('[program]\ncommand = "true"', "a program's sockets choose it (TCP_CONGESTION); allowed: jobs of the class"),
    ],
)
def test_a_class_s_congestion_control_that_could_not_be_kept_is_refused(tmp_path: Path, more: str, wrong: str) -> None:
    (tmp_path / "mine.toml").write_text(f'{CLASSES}[[class]]\nname = "iron"\npriority = 2\n{more}\n')
    _, said = ended("mine.toml", "--dry-run", cwd=tmp_path, status=2)
    assert wrong in said
