"""Ctrl-C at any moment: the command soon ends with status 130 and leaves no process, and the run can be resumed.

`python -m pytest -m slow tests/scenarios/test_interrupted.py -s` tries fifty moments and prints how long each took.
"""

import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from analysis.results.reader import PROVENANCE, load
from tests.conftest import PROJECT
from tests.fakes import runs
from tests.fakes.processes import Process, await_that, descendants, living

SMALL = ["--modes", "base,joint", "--collectives", "6", "--chunk", "100 kB", "--jobs", "2"]
_LONGEST_S = 7.0  # the run takes longer, or hardly less, so that instants are drawn from all of it
_BACK_S = 5.0  # a machine without other work needs two seconds
_STARTED_S = 0.3  # before that Python may have no handler yet and is killed, which a shell reports as 130, too


def interrupted(folder: Path, after_s: float, *, begun: bool) -> tuple[int, float, str]:
    """Run the command and interrupt it `after_s` after its start or, if `begun`, after its run folder exists.

    Return the exit status, the seconds from the interrupt to the end, and the error output."""
    with runs.started(*SMALL, "--out", folder, cwd=folder.parent) as run:
        while begun and not list(folder.parent.glob(f"{folder.name}*/{PROVENANCE}")) and run.poll() is None:
            time.sleep(0.01)
        time.sleep(after_s)
        below = descendants(run.pid)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=_BACK_S * 10)
        took = time.monotonic() - began
    time.sleep(0.3)
    assert not set(below) & living().keys()
    return run.returncode, took, said


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 6))])
def test_ctrl_c_at_random_instants_leaves_no_process_and_a_run_that_can_be_resumed(tmp_path: Path, part: int) -> None:
    chance = random.Random(20260101 + part)
    unfinished = []
    for number in range(10 if part else 2):
        begun = number % 2 == 1
        after_s = chance.uniform(0, 1 if number == 1 else _LONGEST_S)
        folder = tmp_path / f"run-{number}"
        status, took_s, said = interrupted(folder, after_s, begun=begun)
        print(f"after {after_s:5.2f} s: status {status}, back in {took_s:.2f} s")
        assert took_s < _BACK_S
        if status == 0:
            continue
        assert status == 130 or (status == -signal.SIGINT and after_s < _STARTED_S and not begun), said
        assert "Traceback" not in said
        if (folder / PROVENANCE).exists():
            load(folder)
            unfinished.append(folder)
        else:
            assert not folder.exists() or not any(folder.iterdir())
    assert unfinished, "every run was over, or not yet begun, when it was interrupted"
    for folder in unfinished[-1:]:
        runs.ended("--resume", folder, cwd=tmp_path)
        assert len(load(folder)) == 2 * 2 * 6


def started(program: str, hangup: str = "SIG_DFL") -> "subprocess.Popen[str]":
    """Start a supervised command with the body `program`, in which `end(n)` sends signal n to the supervisor."""
    body = textwrap.indent(textwrap.dedent(program), "    ")
    command = f"""
import os, signal, subprocess, sys, time
from scenarios.signals import supervised
def end(number=signal.SIGINT):
    os.kill(os.getppid(), number)
    for _ in range(2000):  # a signal that arrives just before a sleep begins does not end it
        time.sleep(0.01)
def command():
{body}
signal.signal(signal.SIGHUP, signal.{hangup})
sys.exit(supervised(command))
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return Process([sys.executable, "-c", command], cwd=PROJECT, **pipes)  # type: ignore[call-overload]


def ended(program: str, hangup: str = "SIG_DFL") -> tuple[int, str, str]:
    """Run a supervised command to its end; return its exit status, its output and its error output."""
    with started(program, hangup) as process:
        out, err = process.communicate(timeout=15)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("end()", 130),
        ("end(signal.SIGTERM)", 143),
        ("end(signal.SIGHUP)", 129),
        ("try:\n    end()\nfinally:\n    print('cleaned up')", 130),
        ("try:\n    end()\nfinally:\n    end()", 130),  # a second signal changes nothing
        ("try:\n    end()\nexcept BaseException:\n    pass\ntime.sleep(20)", 130),  # as extension modules may do
        ("try:\n    end()\nexcept BaseException:\n    raise ValueError('Invalid bounding box')", 130),
        ("try:\n    end()\nexcept BaseException:\n    return 1", 130),
        ("try:\n    end()\nexcept BaseException:\n    return 0", 0),  # the command had done all its work
        ("class Doomed:\n    def __del__(self):\n        end()\nDoomed()\ntime.sleep(20)", 130),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nend()", 130),  # like a long call in C
    ],
)
def test_a_signal_ends_a_command_with_its_status_and_one_line_of_output(program: str, status: int) -> None:
    began = time.monotonic()
    found, out, err = ended(program)
    assert found == status
    assert time.monotonic() - began < _BACK_S
    assert out == ("cleaned up\n" if "cleaned" in program else "")
    assert err == ("-c: interrupted\n" if status else "")


def test_other_ends_of_a_command_keep_their_exit_status_and_error_output() -> None:
    assert ended("print('done')\nreturn 7") == (7, "done\n", "")
    status, _, err = ended("raise ValueError('Invalid bounding box')")
    assert status == 1 and "ValueError: Invalid bounding box" in err
    assert ended("os.kill(os.getpid(), signal.SIGKILL)") == (137, "", "-c: killed by signal 9\n")
    early = "-c: ended early with status {}, by os._exit in a policy or a library\n"
    assert [ended(f"os._exit({status})") for status in (0, 7)] == [(1, "", early.format(0)), (7, "", early.format(7))]
    assert ended("sys.exit(2)") == (2, "", "")


def test_a_command_ends_although_its_caller_ignores_sigchld() -> None:
    ignoring = ["env", "--ignore-signal=CHLD", *runs.RUN, "--dry-run"]
    found = subprocess.run(ignoring, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0 and "nothing was run" in found.stdout


FAMILY = """
subprocess.Popen(["sleep", "60"])
heir = "trap 'sleep 0.7; exit' TERM; while :; do sleep 0.1; done"
subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", heir], start_new_session=True)
print("up", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
time.sleep(60)
"""


def test_no_process_remains_of_a_command_that_had_to_be_killed() -> None:
    """Processes of its group are killed; a process that cleans up when its parent dies is waited for."""
    with started(FAMILY) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        below = descendants(process.pid)
        assert len(below) >= 3
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
        assert not set(below) & living().keys()


def test_a_command_dies_with_its_supervisor() -> None:
    with started("print('up', flush=True)\ntime.sleep(60)") as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        below = descendants(process.pid)
        process.kill()
        assert process.stdout.read() == ""  # every process that could write to the pipe is about to end
        assert below
        await_that(lambda: not set(below) & living().keys(), 5)


def test_a_command_under_nohup_survives_a_hangup() -> None:
    program = "os.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(2.5)\nprint('done')\nreturn 0"
    assert ended(program, "SIG_IGN") == (0, "done\n", "")


def test_ctrl_z_stops_a_command_and_sigcont_resumes_it() -> None:
    def states() -> str:
        pids = [process.pid, *descendants(process.pid)]
        return "".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids)

    with started("print('up', flush=True)\ntime.sleep(3)\nprint('done')\nreturn 0") as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        for number, wanted in ((signal.SIGTSTP, "TT"), (signal.SIGCONT, "SS")):
            process.send_signal(number)
            await_that(lambda wanted=wanted: states() == wanted, 10)  # type: ignore[misc]
        assert process.wait(15) == 0 and process.stdout.read() == "done\n"


def test_an_interrupt_during_imports_prints_no_traceback() -> None:
    for command, said in (((runs.RUN[1], "--engine", "model"), "run.py: interrupted\n"), (("-m", "scenarios.vm"), "")):
        # Python reports every module once it is imported, which tells when to interrupt.
        watched = [sys.executable, "-X", "importtime", *command, "--", "true"]
        with subprocess.Popen(watched, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.split("|")[-1].strip() in ("numpy.version", "scenarios.vm.errors"):
                    process.send_signal(signal.SIGINT)
                    break
            _, err = process.communicate(timeout=60)
        lines = [line for line in err.splitlines(keepends=True) if not line.startswith("import time:")]
        assert "".join(lines) == said
        assert process.returncode == 130
