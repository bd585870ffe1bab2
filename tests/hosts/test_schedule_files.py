"""Schedule files: their format is detected from the contents, and others are refused (arbitrary bytes: test_fuzz)."""

import os
import socket
from pathlib import Path

import pytest

from hosts.collectives import goal, msccl, schedule_files, untrusted_file
from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import ScheduleError
from tests.conftest import PROJECT

DATA = PROJECT / "tests" / "data"


def test_the_format_of_a_schedule_file_is_detected_from_its_contents_not_its_name(tmp_path: Path) -> None:
    path = tmp_path / "schedule.txt"
    ring = schedule("allgather", "ring", sites=(2, 2))
    path.write_text("\n" + goal.text(ring, placement=range(4), slot_bytes=7))
    assert {transfer.size for transfer in schedule_files.read(path, kind="messages", gpus=4).transfers} == {7}
    path.write_text("\n" + msccl.text(ring, kind="allgather", placement=range(4)).strip())
    assert schedule_files.read(path, kind="allgather", gpus=4).slots == 4
    path.write_text(" " + (DATA / "teccl_mesh_4.json").read_text())
    assert schedule_files.read(path, kind="allgather", gpus=16).slots == 16


@pytest.mark.parametrize(
    ("name", "kind", "gpus", "words"),
    [
        ("goal/allreduce_ring.goal", "allreduce", 8, "GOAL of messages between 8 GPUs, asked for as allreduce"),
        ("goal/allreduce_ring.goal", "messages", 6, "between 6; allowed: the kind messages and 8 GPUs"),
        ("msccl/allreduce_ring.xml", "allgather", 4, "the kind allreduce or messages and 4 GPUs"),
        ("msccl/allreduce_ring.xml", "allreduce", 8, r"4 GPUs, or a \[\[job\]\] with 4 ranks, such as ranks = \[0, 1,"),
        ("teccl_mesh_4.json", "allreduce", 16, "allowed: the kind allgather and 16 GPUs"),
        ("teccl_mesh_4.json", "allgather", 8, "allowed: the kind allgather and 16 GPUs"),
        ("none", "allgather", 8, "No such file"),
        ("goal", "allgather", 8, "not a regular file"),
    ],
)
def test_a_schedule_file_for_another_kind_or_number_of_gpus_is_refused(
    name: str, kind: str, gpus: int, words: str
) -> None:
    with pytest.raises(ScheduleError, match=words) as refused:
        schedule_files.read(DATA / name, kind=kind, gpus=gpus)
    assert str(refused.value).startswith(str(DATA / name))


def test_a_pipe_socket_or_device_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(ScheduleError, match=f"^{path}: "):
                schedule_files.read(path, kind="messages", gpus=2)


def test_a_schedule_file_over_the_size_limit_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ScheduleError, match=f"allowed: {untrusted_file.MAX_BYTES:,} bytes"):
        schedule_files.read(tmp_path / "large", kind="messages", gpus=2)
