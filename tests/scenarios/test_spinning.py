"""Programs that spin while they wait, unmodified: their times are those of a program that blocks."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.fakes.runs import ended

WAN = ("--wan-delay", "10 ms", "--set", 'conditions.wan_rate="1 Gbit/s"', "--set", 'conditions.intra_rate="10 Gbit/s"')
HOWS = ("block", "recv", "poll", "epoll", "many", "yield", "thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled programs."""
    found = tmp_path_factory.mktemp("spinning")
    for name in ("spin", "handover"):
        source = PROJECT / "tests" / "guest" / f"{name}.c"
        subprocess.run(["gcc", "-O2", "-Wall", "-pthread", "-o", found / name, source], check=True)
    return found


def run(folder: Path, out: str, command: str) -> list[list[float]]:
    """Run a command on a rank in each of two sites; return the numbers that each line of the last rank has."""
    (folder / "mine.sh").write_text(command)
    options = ("--gpus", "4", "--set", "program.ranks=[0, 2]", "--modes", "base", "--json", "--out", out, *WAN)
    found = json.loads(ended(*options, "--exec", "sh mine.sh", cwd=folder)[0])
    assert [rank["status"] for rank in found["ranks"]] == [0, 0]
    return lines_of(folder, out, 1)


def lines_of(folder: Path, out: str, rank: int) -> list[list[float]]:
    """Return the numbers that each line of a rank of a finished run has."""
    lines = (folder / out / "output" / f"{rank}.stdout").read_text().splitlines()
    return [[float(word) for word in line.split()] for line in lines]


def test_a_spinning_program_takes_the_times_of_one_that_blocks_to_the_nanosecond(folder: Path) -> None:
    command = "for how in $HOWS; do ./spin 8 3 $how; ./spin 300000 2 $how; done"
    found = run(folder, "first", f"HOWS='{' '.join(HOWS)}'\n{command}")
    assert len(found) == 5 * len(HOWS)
    times = [[one[0] for one in found[5 * number : 5 * number + 5]] for number in range(len(HOWS))]
    assert times[0][0] == pytest.approx(20e-3, rel=1e-3)
    for how, one in zip(HOWS, times, strict=True):
        assert one == times[0], how
    assert run(folder, "second", f"HOWS='{' '.join(HOWS)}'\n{command}") == found


def test_a_program_that_asks_when_the_time_stamp_counter_has_moved_is_exact_and_sleeps_rarely(folder: Path) -> None:
    """Sleeps are what a run of Open MPI takes on this machine: each costs two system calls and a timer."""
    found = run(folder, "tsc", "for how in block tsc; do ./spin 8 100 $how; ./spin 300000 2 $how; done")
    blocks, spins = [one[0] for one in found[:102]], [one[0] for one in found[102:]]
    few, more = spins.pop(100), spins.pop(102)
    assert spins == blocks
    # A first wait of 20 ms takes some 800 sleeps, and all of them 2,000 until the thread is known not to wait for a
    # time. From then on there is one per event, and a handful until the sleeps have grown to the length of a wait.
    assert few < 2_000 + 100 * 50, more


def test_a_thread_that_spins_in_memory_alone_takes_the_times_of_one_that_blocks(folder: Path) -> None:
    blocks, pauses, *spins = run(folder, "in_memory", "for how in block pause memory memory; do ./spin 8 1 $how; done")
    assert [blocks] * 3 == [pauses, *spins]


def test_a_thread_that_waits_in_memory_for_one_that_could_run_lets_it_run(folder: Path) -> None:
    """MPICH waits so for the C library's threads that read files."""
    ((took_s,),) = run(folder, "in_turn", "./handover")
    assert 0 < took_s < 20e-9  # a ns for each turn in which others run: there are two ranks


def test_a_loop_that_waits_for_a_time_is_at_most_a_hundredth_late(folder: Path) -> None:
    found = run(folder, "clock", "./spin clock")
    assert 1.0 <= found[0][0] <= 1.0101


READS = """
import os, time
if ASKS: os.read(os.open("/dev/null", os.O_RDONLY), 1)
now = time.perf_counter_ns
begin = now()
for _ in range(60_000): now()
print((now() - begin) / 1e9)
for wait_s in (0.003, 0.2):
    begin = now()
    while now() - begin < wait_s * 1e9: pass
    print((now() - begin) / 1e9 - wait_s)
begin, end = now(), os.times().elapsed + 0.2
while os.times().elapsed < end: pass
print((now() - begin) / 1e9)
"""


@pytest.mark.parametrize("asks", [False, True])
def test_reading_the_clock_takes_little_time_and_a_wait_by_it_ends_in_time(folder: Path, asks: bool) -> None:
    """A program that has asked in vain, as an interpreter does when it starts, is not taken for one that waits."""
    (folder / "reads.py").write_text(READS.replace("ASKS", str(asks)))
    run(folder, f"reads-{asks}", "python3 reads.py")
    for rank in (0, 1):
        (lost_s,), (short_s,), (long_s,), (times_s,) = lines_of(folder, f"reads-{asks}", rank)
        assert 3e-3 < lost_s < 0.06  # a share of the time spun would have grown to years, and was 5 s with a limit
        assert 0 <= short_s < 3e-3 * 0.011 and 0 <= long_s < 20e-6
        assert 0.19 < times_s < 0.2021  # times counts in steps of 10 ms


ASKS = """
import os, time
if os.environ["RANK"] == "0": os._exit(0)
(there, asks), (answers, back) = os.pipe(), os.pipe()
if not os.fork():
    while True:
        for _ in range(25): os.read(there, 1)
        for _ in range(25): os.write(back, b"x")
begin = time.perf_counter_ns()
while time.perf_counter_ns() - begin < 0.05 * 1e9:
    for _ in range(25): os.write(asks, b"x")
    for _ in range(25): os.read(answers, 1)
print((time.perf_counter_ns() - begin) / 1e9)
os._exit(0)
"""


def test_processes_that_ask_each_other_until_a_time_has_come_end_in_time(folder: Path) -> None:
    """Neither spins by itself: each finds what it has waited for. They ask 25 times in a row, as the kernel counts
    calls, a million before the first sleep, and a switch between processes takes as long as 50 of them."""
    (folder / "asks.py").write_text(ASKS)
    ((took_s,),) = run(folder, "asks", "python3 asks.py")
    assert 0.05 <= took_s < 0.0502


VAIN = """
import select, time
begin, nothing = time.perf_counter_ns(), select.epoll()
for _ in range(40_000): nothing.poll(0)
print((time.perf_counter_ns() - begin) / 1e9)
"""


def test_a_program_that_asks_often_in_vain_and_waits_for_nothing_loses_seconds(folder: Path) -> None:
    """A hundredth of the time so far at every eighth call, without a limit, took more than 1000 s."""
    (folder / "vain.py").write_text(VAIN)
    ((took_s,),) = run(folder, "vain", "python3 vain.py")
    assert took_s < 15
