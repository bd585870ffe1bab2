"""Faults that begin when a program prints a mark."""

import csv
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.program.marks import Marks
from scenarios.spec import ScenarioError, faults
from scenarios.spec.load import scenario_of
from tests.fakes.runs import ended

DOWN = "link s0b0-s1b0 down"
SCENARIO = """
[fabric]
gpus = [2, 2]
[conditions]
wan_rate = "10 Gbit/s"
intra_rate = "50 Gbit/s"
[conditions.links]
wan.delay = "5 ms"
"s1b0>s0b0".delay = "3 ms"
[run]
modes = ["base"]
[program]
ranks = [0, 2]
[[fault]]
at = 'mark "step 40"'
what = "link s0b0-s1b0 down"
for = "20 ms"
[[fault]]
at = '5 ms after mark "step 100 done" of rank 0'
what = "link s0b0-s1b0 down"
for = "10 ms"
[[fault]]
at = 'mark "step 170" of rank 0'
what = "agent 0 killed"
"""
STEPS = """
import os, socket, time
start_ns, count, size = time.monotonic_ns(), 150, 8000  # no virtual time has passed since the ranks' start
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    if os.environ["RANK"] == "0":
        own.bind(("", 7000))
        number = 0
        while number < count - 1:
            number, sent_ns = (int(word) for word in own.recv(size).split()[:2])
            print(number, sent_ns - start_ns, time.monotonic_ns() - sent_ns, flush=True)
            if number == 100:
                print("step", " 100  done", time.monotonic_ns() - start_ns, flush=True)
    else:
        for number in range(count):
            time.sleep(max(0.0, (start_ns + number * 1_000_000 - time.monotonic_ns()) / 1e9))
            own.sendto(f"{number} {time.monotonic_ns()} ".encode().ljust(size), (os.environ["MASTER_ADDR"], 7000))
            time.sleep(0.0001)
            print(f"step {number}", flush=True)
        print("step 100 done", "step 170", flush=True)
"""


def test_a_fault_begins_when_a_rank_prints_its_mark(tmp_path: Path) -> None:
    """Rank 1 sends a datagram each ms, and prints its number 0.1 ms later: after the 40th, a link fails for 20 ms.
    Rank 0 prints its mark when the 100th arrives, at 103 ms, and the link fails for 10 ms from 108 ms on."""
    (tmp_path / "marked.toml").write_text(SCENARIO)
    (tmp_path / "steps.py").write_text(STEPS)
    for run in ("run", "again"):
        command = f"{sys.executable} steps.py"
        _, said = ended("marked.toml", "--out", run, "--exec", command, cwd=tmp_path)
        assert 'fault[3], agent 0 killed, did not begin: the program had ended before mark "step 170" of rank 0' in said
    for name in ("output/0.stdout", "faults.csv", "links.csv", "ranks.csv"):  # two boots
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    lines = [line.split() for line in (tmp_path / "run/output/0.stdout").read_text().splitlines()]
    took_ms = {int(words[0]): int(words[2]) / 1e6 for words in lines if words[0] != "step"}
    slow = {*range(41, 61), *range(109, 119)}
    late = {*range(61, 67), *range(119, 125)}  # Open vSwitch may take 5 ms to lead packets back
    assert set(took_ms) == {*range(150)}
    for number in {*range(150)} - late:
        assert took_ms[number] == pytest.approx(5 if number in slow else 3, abs=0.02), number
    with (tmp_path / "run/faults.csv").open() as file:
        first, second = csv.DictReader(file)
    (printed_ns,) = (int(words[3]) for words in lines if words[0] == "step")
    assert (first["at"], second["at"]) == ('mark "step 40"', '5 ms after mark "step 100 done" of rank 0')
    assert float(first["began_s"]) == pytest.approx(0.0401, abs=1e-5)
    assert float(second["began_s"]) == pytest.approx(printed_ns / 1e9 + 5e-3, abs=1e-5)
    spans = [float(one["over_s"]) - float(one["began_s"]) for one in (first, second)]
    assert spans == pytest.approx([20e-3, 10e-3], abs=1e-5)


ASKING = """
import json, os, socket, time
start_ns, rank = time.monotonic_ns(), int(os.environ["RANK"])
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect(os.environ["LONGHAUL_COLLECTIVES"])
    answers = asking.makefile()
    def say(**asked):
        asking.sendall(json.dumps(asked).encode() + b"\\n")
        return json.loads(answers.readline())
    for number in range(4):
        time.sleep((start_ns + (number + 1) * 10_000_000 + rank * 100_000 - time.monotonic_ns()) / 1e9)
        group = {"group": "all" if number < 2 else "later"}
        say(ask="group", made="a", ranks=[0, 1], **group)
        say(ask="plan", number=number, kind="broadcast", bytes=4096, unit=4, root=0, **group)
    time.sleep(0.01)
"""


def test_a_fault_begins_and_ends_with_the_collectives_that_ranks_announce(tmp_path: Path) -> None:
    """Two ranks ask for a collective each 10 ms, rank 1 0.1 ms later; they are counted over both groups."""
    (tmp_path / "asking.py").write_text(ASKING)
    tables = [
        {"at": "1 ms into collective 1", "what": "link s0b0-s1b0 down", "for": "2 collectives"},
        {"at": "collective 2", "what": "link s0b1-s1b1 down", "for": "1 collectives"},
        {"at": "3 ms into collective 3", "what": "agent 4 killed"},
        {"at": "collective 4", "what": "agent 0 killed"},
    ]
    given = (
        "["
        + ", ".join("{" + ", ".join(f'{key} = "{value}"' for key, value in one.items()) + "}" for one in tables)
        + "]"
    )
    asked = ("paper", "--modes", "base", "--set", "program.ranks=[0, 4]", "--set", f"fault={given}")
    for run in ("run", "again"):
        _, said = ended(*asked, "--out", run, "--exec", f"{sys.executable} asking.py", cwd=tmp_path)
        assert 'collectives of a program are those that ranks announce, by the backend "longhaul"' in said
        assert "fault[4], agent 0 killed, did not begin: the program had ended before collective 4" in said
    assert (tmp_path / "run/faults.csv").read_bytes() == (tmp_path / "again/faults.csv").read_bytes()
    with (tmp_path / "run/faults.csv").open() as file:
        found = {int(one["number"]): one for one in csv.DictReader(file)}
    assert [found[number]["at"] for number in (1, 2, 3)] == [one["at"] for one in tables[:3]]
    began_s = [float(found[number]["began_s"]) for number in (1, 2, 3)]
    assert began_s == pytest.approx([0.021, 0.03, 0.043], abs=1e-4)
    assert [float(found[number]["over_s"]) for number in (1, 2)] == pytest.approx([0.04, 0.04], abs=1e-4)
    assert found[3]["outcome"] == "rank 1 ended"


words = st.text(st.characters(exclude_characters='"', exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(words, st.none() | st.integers(0, 7), st.integers(0, 10**10))
def test_a_fault_at_a_mark_survives_reading_and_writing_and_has_no_time_before(
    mark: str, rank: int | None, after_ns: int
) -> None:
    at = f"{after_ns} ns after " * bool(after_ns) + f'mark "{mark}"' + (f" of rank {rank}" if rank is not None else "")
    (fault,) = faults.read([{"at": at, "what": DOWN, "for": "2 ms"}])
    assert (fault.mark, fault.mark_rank, fault.is_awaited) == (mark, rank, True)
    assert faults.read([fault.written()]) == (fault,)
    assert faults.active_at([fault], 10**12) == ()


@given(st.lists(st.sampled_from([b"epoch 1", b" ", b"\n", b"\tepoch", b" 12", b"x"])), st.integers(1, 9))
def test_a_mark_is_found_in_the_first_complete_line_that_contains_it_however_the_output_is_cut(
    parts: list[bytes], size: int
) -> None:
    output = b"".join(parts)
    table = {"what": DOWN}
    (fault, other) = faults.read([table | {"at": 'mark "epoch 12"'}, table | {"at": 'mark "x" of rank 1'}])
    marks, found = Marks([fault, other]), list[tuple[int, int]]()
    for at in range(0, len(output), size):
        found += [(at, index) for index in marks.found(0, output[at : at + size])]
    found += [(len(output), index) for index in marks.found(0, b"")]
    wanted = list[tuple[int, int]]()
    at = 0
    for line in output.splitlines(keepends=True):
        at += len(line)
        if b"epoch 12" in b" ".join(line.split()):
            ends = (at - 1) // size * size if line.endswith(b"\n") else len(output)
            wanted = [(ends, 0)]
            break
    assert found == wanted


@pytest.mark.parametrize(
    ("at", "command", "says"),
    [
        ('mark "epoch 3" of rank 8', "true", "fault[1].at: the program has no rank 8; allowed: 0 to 7"),
        ('mark " "', "true", 'mark " " has no words; allowed: a part of a line that a rank prints'),
        ("mark epoch 3", "true", '"mark epoch 3" is not understood; allowed: "collective 12"'),
        ('mark "epoch 3"', None, 'mark "epoch 3" is printed by a program, and none runs; allowed: "collective 0"'),
    ],
)
def test_a_mark_that_no_rank_can_print_is_refused(at: str, command: str | None, says: str) -> None:
    program = f"[program]\ncommand = '{command}'\n" if command else ""
    with pytest.raises(ScenarioError) as refusal:
        scenario_of(f"{program}[[fault]]\nat = '{at}'\nwhat = '{DOWN}'\n")
    assert len(refusal.value.mistakes) == 1 and says in refusal.value.mistakes[0]
