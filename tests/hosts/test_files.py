"""Files of schedules are told apart by what is in them, and whatever is in them, one sentence says what is wrong."""

import os
import random
import re
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hosts.collectives import files, goal, msccl, text_file
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, schedule
from hosts.collectives.schedule import ScheduleError
from tests.conftest import PROJECT

DATA = PROJECT / "tests" / "data"
SEEDS = [path.read_bytes() for path in sorted([*DATA.glob("goal/*"), *DATA.glob("msccl/*")])]
SEEDS.append((DATA / "teccl_mesh_4.json").read_bytes())
NOTES = [
    word.encode() for word in ("-1", "0", "9" * 30, "\0", "<!ENTITY a 'b'>", "&a;", "{", "}", "/*", "requires", "é")
]


def test_a_file_is_taken_for_what_is_in_it_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "schedule.txt"
    ring = schedule("allgather", "ring", sites=(2, 2))
    path.write_text("\n" + goal.text(ring, placement=range(4), slot_bytes=7))
    assert {transfer.size for transfer in files.read(path, kind="messages", gpus=4).transfers} == {7}
    path.write_text("\n" + msccl.text(ring, kind="allgather", placement=range(4)).strip())
    assert files.read(path, kind="allgather", gpus=4).slots == 4
    path.write_text(" " + (DATA / "teccl_mesh_4.json").read_text())
    assert files.read(path, kind="allgather", gpus=16).slots == 16


@pytest.mark.parametrize(
    ("name", "kind", "gpus", "words"),
    [
        ("goal/allreduce_ring.goal", "allreduce", 8, "GOAL of messages between 8 GPUs, asked for as allreduce"),
        ("goal/allreduce_ring.goal", "messages", 6, "between 6: allowed are the kind messages and 8 GPUs"),
        ("msccl/allreduce_ring.xml", "allgather", 4, "allowed are the kind allreduce and 4 GPUs"),
        ("msccl/allreduce_ring.xml", "allreduce", 8, "allowed are the kind allreduce and 4 GPUs"),
        ("teccl_mesh_4.json", "allreduce", 16, "allowed are the kind allgather and 16 GPUs"),
        ("teccl_mesh_4.json", "allgather", 8, "allowed are the kind allgather and 16 GPUs"),
        ("none", "allgather", 8, "No such file"),
        ("goal", "allgather", 8, "not a regular file"),
    ],
)
def test_another_kind_or_number_of_gpus_is_a_sentence(name: str, kind: str, gpus: int, words: str) -> None:
    with pytest.raises(ScheduleError, match=words) as refused:
        files.read(DATA / name, kind=kind, gpus=gpus)
    assert str(refused.value).startswith(str(DATA / name))


def test_what_is_not_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(ScheduleError, match=f"^{path}: "):
                files.read(path, kind="messages", gpus=2)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ScheduleError, match=f"allowed are {text_file.MOST_BYTES:,} bytes"):
        files.read(tmp_path / "large", kind="messages", gpus=2)


def outcome(path: Path, content: bytes) -> str:
    """What reading this comes to: "" if it is a schedule. Anything but ScheduleError is an error of the test."""
    path.write_bytes(content)
    said = ""
    for kind in (MESSAGES, *ALGORITHMS):  # of which a file can be one
        for gpus in (2, 4, 5, 8, 16):
            try:
                files.read(path, kind=kind, gpus=gpus)
            except ScheduleError as error:
                said = str(error)
                assert said.startswith(f"{path}") and "\n" not in said and len(said) < 600
                if "asked for as" not in said:
                    return said
            else:
                return ""
    return said


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"")
@example(b"<" * 1000)
@example(b"{" * 100_000)
@example(b'{"7-Flows": ["Chunk 0 from \xd9\xa1 traveled over 0->1 in epoch 0"]}')
def test_any_bytes_are_a_sentence(tmp_path: Path, content: bytes) -> None:
    assert outcome(tmp_path / "f", content)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SEEDS), st.integers(0, 2**32), st.integers(1, 5))
def test_a_file_that_is_changed_anywhere_is_a_schedule_or_a_sentence(
    tmp_path: Path, content: bytes, seed: int, changes: int
) -> None:
    rng = random.Random(seed)
    for _ in range(changes):
        begin = rng.randrange(len(content) + 1)
        end = min(len(content), begin + rng.choice((0, 1, 8, 200)))
        kind = rng.choice(("number", "byte", "drop", "repeat", "word", "line"))
        if kind == "number" and (numbers := list(re.finditer(rb"-?\d+", content))):
            chosen = rng.choice(numbers)
            new = str(rng.choice((-1, 0, 1, 2, 3, 7, 64, 10**6, 10**12, rng.randrange(10**20)))).encode()
            content = content[: chosen.start()] + new + content[chosen.end() :]
        elif kind == "byte":
            content = content[:begin] + bytes([rng.randrange(256)]) + content[begin + 1 :]
        elif kind == "drop":
            content = content[:begin] + content[end:]
        elif kind == "repeat":
            content = content[:end] + content[begin:]
        elif kind == "word":
            content = content[:begin] + rng.choice(NOTES) + content[begin:]
        else:
            lines = content.split(b"\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            content = b"\n".join(lines)
    outcome(tmp_path / "f", content)
