"""Programs in fabrics that spread flows: every connection takes one path, by a hash of its addresses and ports."""

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.fakes.runs import ended

PYTHON = sys.executable
UNIT, COUNT = 100_000, 8  # the connections send 1, 2, 4 ... units, so that the bytes on a link tell which passed it
ENDS = f"""
import os, socket, sys, threading, time
rank, hosts, kind = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split(), sys.argv[1]
sizes = [{UNIT} << number for number in range({COUNT})]
def each(work, *lists):
    threads = [threading.Thread(target=work, args=one) for one in zip(*lists)]
    for one in threads: one.start()
    for one in threads: one.join()
if kind == "udp":
    if rank == 0:
        for size in sizes:
            own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for _ in range(size // 5000): own.sendto(bytes(5000), (hosts[1], 7000))
    time.sleep(0.1)  # until the last has arrived
    raise SystemExit
if rank == 1:
    server = socket.create_server(("", 7000), backlog=64)
    def receive(connection):
        while connection.recv(1 << 20): pass
        connection.sendall(b"k")
    each(receive, [server.accept()[0] for _ in sizes])
else:
    time.sleep(0.05)
    def send(connection, size):
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"k"
    each(send, [socket.create_connection((hosts[1], 7000)) for _ in sizes], sizes)
"""
FLAT = ("--set", 'conditions.wan_rate="40 Gbit/s"', "--set", 'conditions.intra_rate="200 Gbit/s"')


def links(folder: Path, kind: str, *options: str) -> dict[str, int]:
    """Run the program between g0 and g4, and return the bytes that each WAN link carried, by its name."""
    (folder / "ends.py").write_text(ENDS)
    asked = ("--modes", "base", "--set", "program.ranks=[0, 4]", *FLAT, *options)
    ended("paper", *asked, "--json", "--out", "run", "--exec", f"{PYTHON} ends.py {kind}", cwd=folder)
    with (folder / "run" / "links.csv").open() as file:
        return {row["link"]: int(row["bytes"]) for row in csv.DictReader(file)}


def connections(carried: dict[str, int]) -> dict[str, list[int]]:
    """Return by link out of site 0 the connections of whose sizes its bytes consist; headers are equal parts of all."""
    outwards = {name: size for name, size in carried.items() if name.startswith("s0")}
    of_unit = sum(outwards.values()) / (2**COUNT - 1)
    units = {name: round(size / of_unit) for name, size in outwards.items()}
    assert all(abs(outwards[name] / of_unit - number) < 0.2 for name, number in units.items())
    return {name: [bit for bit in range(COUNT) if number >> bit & 1] for name, number in units.items()}


@pytest.mark.parametrize(("routing", "kind"), [("ecmp", "tcp"), ("ecmp", "udp"), ("spray", "tcp")])
def test_every_connection_takes_one_path_and_together_they_take_several(
    tmp_path: Path, routing: str, kind: str
) -> None:
    options = ("--set", f"fabric.routing={routing}")
    carried = links(tmp_path, kind, *options)
    over = connections(carried)
    assert sorted(number for found in over.values() for number in found) == list(range(COUNT))  # each on one link
    assert sum(map(bool, over.values())) >= 2
    if kind == "tcp" and routing == "ecmp":
        (tmp_path / "run").rename(tmp_path / "first")
        assert links(tmp_path, kind, *options) == carried
        (tmp_path / "run").rename(tmp_path / "second")
        other = links(tmp_path, kind, *options, "--set", "fabric.hash_seed=3")
        assert other != carried


def test_connections_over_rails_take_a_plane_each_and_return_when_one_has_failed(tmp_path: Path) -> None:
    rails = ("--set", "fabric.grain=physical", "--set", "fabric.rails=2")
    ports = ["g0>s0n0", "s0n0>s0p0", "s0n0>s0p1"]
    captured = "--set", f"program.capture={json.dumps(ports)}"
    carried = links(tmp_path, "tcp", *rails, *captured)
    assert connections(carried)["s0b0>s1b0"] == [*range(COUNT)]  # a mode that chooses no paths takes the fixed one
    packets = packets_of(tmp_path / "run")
    assert packets["g0>s0n0"] == packets["s0n0>s0p0"] + packets["s0n0>s0p1"]
    assert min(packets.values()) > 50  # both planes
    (tmp_path / "run").rename(tmp_path / "first")
    fault = 'fault=[{at = "0 s", what = "link s0n0-s0p1 down"}]'
    links(tmp_path, "tcp", *rails, *captured, "--set", fault)
    after = packets_of(tmp_path / "run")
    assert after["s0n0>s0p1"] == 0 and after["s0n0>s0p0"] == after["g0>s0n0"] > 50


def packets_of(run: Path) -> dict[str, int]:
    """Return the number of captured packets of each link."""
    captures = json.loads((run / "program.json").read_text())["captures"]
    return {one["link"]: one["packets"] for one in captures}


def test_connections_over_a_link_that_fails_go_on_over_others(tmp_path: Path) -> None:
    down = ", ".join(f'{{at = "50.5 ms", what = "link s0b0-{end} down"}}' for end in ("s1b0", "s1b1"))
    carried = links(tmp_path, "tcp", "--set", "fabric.routing=ecmp", "--set", f"fault=[{down}]")
    total = sum(size for name, size in carried.items() if name.startswith("s0"))
    assert total >= UNIT * (2**COUNT - 1)  # all arrived, some of it sent again
    assert carried["s0b1>s1b0"] + carried["s0b1>s1b1"] > total / 2


def test_a_promise_is_kept_whatever_a_program_sends_from_the_same_gpus(tmp_path: Path) -> None:
    """For 20 ms every GPU sends as much as it can, over 8 connections to each GPU of the other site."""
    (tmp_path / "flood.py").write_text(FLOOD)
    (tmp_path / "own.toml").write_text(
        '[fabric]\nrouting = "spray"\n[conditions]\nwan_rate = "10 Gbit/s"\nintra_rate = "20 Gbit/s"\n'
        '[[job]]\nname = "copy"\nkind = "transfer"\nranks = [0, 4]\nsize = "10 MB"\ndeadline = "10 ms"\n'
    )
    asked = ("own.toml", "--modes", "base", "--json", "--exec", f"{PYTHON} flood.py")
    said = ended(*asked, "--out", "run", cwd=tmp_path)[1]
    assert "a program's packets with the DSCP 8 would be of this class, too" in said
    assert "copy: promise kept in 2 of 2 rounds, by 10 ms of a round; complete at 9." in said
    carried = json.loads((tmp_path / "run" / "program.json").read_text())["links"]
    assert min(one["bytes"] / one["capacity_bytes"] for one in carried) > 0.5


FLOOD = """
import os, socket, threading, time
began, rank = time.monotonic(), int(os.environ["RANK"])
def drain(connection):
    while connection.recv(1 << 20): pass
def send(peer):
    with socket.create_connection((f"g{peer}", 7000)) as connection:
        while True: connection.sendall(bytes(1 << 20))
server = socket.create_server(("", 7000), backlog=64)
time.sleep(0.001)
for peer in [*range(4, 8)] * 8 if rank < 4 else [*range(4)] * 8:
    threading.Thread(target=send, args=(peer,), daemon=True).start()
def serve():
    while True: threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
time.sleep(0.0215 - (time.monotonic() - began))
os._exit(0)
"""


def test_a_job_beside_a_program_is_sprayed_as_without_it(tmp_path: Path) -> None:
    """Two ranks exchange 8 MB over four paths of 10 Gbit/s, 1.6 ms and 12 us: its messages are cut, connections
    of a program are not."""
    (tmp_path / "own.toml").write_text(
        '[fabric]\nrouting = "spray"\n[conditions]\nwan_rate = "10 Gbit/s"\nintra_rate = "100 Gbit/s"\n'
        '[[job]]\nname = "one"\nkind = "allgather"\nranks = [1, 5]\nchunk = "8 MB"\n'
    )
    ended("own.toml", "--modes", "base", "--out", "run", "--exec", "sleep 0.01", cwd=tmp_path)
    with (tmp_path / "run" / "jobs.csv").open() as file:
        times_s = [float(row["completion_s"]) for row in csv.DictReader(file)]
    assert len(times_s) >= 4 and times_s == pytest.approx([1.6e-3 + 12e-6] * len(times_s), rel=1e-3)
