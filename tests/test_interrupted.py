"""Ctrl-C at any moment of run.py: back at the shell soon, status 130, nothing left, and the run can be gone on with.

`LONGHAUL_INSTANTS=50 python -m pytest tests/test_interrupted.py -s` tries fifty moments and prints how long each took.
"""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from analysis.results import PROVENANCE, load
from tests.conftest import PROJECT
from tests.processes import descendants, living

INSTANTS = int(os.environ.get("LONGHAUL_INSTANTS", "5"))
RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]
SMALL = ["--modes", "base,joint", "--collectives", "6", "--chunk", "100 kB", "--jobs", "2"]
_LONGEST_S = 12.0  # the run takes longer, or hardly less: instants are drawn from all of it
_BACK_S = 25.0  # five seconds on a machine without other work
_OVER_S = 3.0  # a run that was over before the interruption has ended by then
_STARTED_S = 0.3  # before that Python itself may not listen yet, and a signal kills it: a shell says 130 then too


def interrupted(folder: Path, after_s: float) -> tuple[int, float, str]:
    """Run, interrupt after so long, and return the exit status, how long it took to end, and what was said."""
    with subprocess.Popen([*RUN, *SMALL, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        time.sleep(after_s)
        below = descendants(run.pid)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=_BACK_S * 4)
        took = time.monotonic() - began
    time.sleep(0.3)
    assert not set(below) & living().keys()
    return run.returncode, took, said.decode()


@pytest.mark.alone
def test_ctrl_c_at_random_instants_leaves_nothing_but_a_run_to_go_on_with(tmp_path: Path) -> None:
    chance = random.Random(20260101)
    unfinished = []
    for number in range(INSTANTS):
        after_s = chance.uniform(0, _LONGEST_S)
        folder = tmp_path / str(number)
        status, took_s, said = interrupted(folder, after_s)
        print(f"after {after_s:5.2f} s: status {status}, back in {took_s:.2f} s")
        assert took_s < _BACK_S
        if status == 0:
            assert took_s < _OVER_S, "the interruption was lost"
            continue
        assert status == 130 or (status == -signal.SIGINT and after_s < _STARTED_S), said
        assert "Traceback" not in said
        if (folder / PROVENANCE).exists():
            load(folder)
            unfinished.append(folder)
        else:
            assert not folder.exists() or not any(folder.iterdir())
    assert unfinished, "every run was over, or not yet begun, when it was interrupted"
    for folder in unfinished[-1:]:
        done = subprocess.run([*RUN, "--resume", str(folder)], capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stderr
        assert len(load(folder)) == 2 * 2 * 6


def ended(program: str, folder: Path) -> tuple[int, str, str]:
    """Run a command whose body is `program`; return its exit status and what it said."""
    body = textwrap.indent(textwrap.dedent(program), "    ")
    command = f"import os, signal, sys, time\nfrom scenarios.interrupt import guarded\n\ndef command():\n{body}\n"
    call = [sys.executable, "-c", f"{command}\nsys.exit(guarded(command))"]
    paths = f"{PROJECT}:{folder}"
    done = subprocess.run(
        call, capture_output=True, text=True, check=False, timeout=60, env=os.environ | {"PYTHONPATH": paths}
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption_is_not_lost_in_an_import_that_takes_every_exception_for_its_own(number, status, tmp_path):
    (tmp_path / "greedy.py").write_text(
        f"import os, signal\ntry:\n    os.kill(os.getpid(), signal.{number})\nexcept BaseException:\n    pass\n"
    )
    program = "import greedy\ntime.sleep(30)\nprint('went on')"
    assert ended(program, tmp_path)[:2] == (status, "")


BY_DEL = "class Doomed:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGINT)\nDoomed()\n"
BY_WEAKREF = "import weakref\nweakref.finalize(type('Doomed', (), {})(), os.kill, os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("dying", [BY_DEL, BY_WEAKREF])
def test_an_interruption_is_not_lost_in_a_finalizer(dying, tmp_path):
    status, told, said = ended(f"{dying}time.sleep(30)\nprint('went on')", tmp_path)
    assert (status, told) == (130, "")
    assert "ignored" not in said


def test_a_second_interruption_does_not_cut_the_clean_up_short(tmp_path):
    program = """
        def clean_up():
            try:
                raise OSError
            except OSError:
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            print("cleaned up")
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        finally:
            clean_up()
    """
    assert ended(program, tmp_path)[:2] == (130, "cleaned up\n")


SWALLOWED = "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
"""As extension modules do when they ask something of Python's side and get an exception for an answer."""


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("time.sleep(30)\nprint('went on')", 130),
        ("raise ValueError('Invalid bounding box')", 130),
        ("return 1", 130),
        ("return 0", 0),  # all was done by then
        ("try:\n    raise OSError\nexcept OSError:\n    time.sleep(1)\n    print('cleaned up')\ntime.sleep(30)", 130),
    ],
)
def test_an_interruption_that_is_swallowed_comes_again(then, status, tmp_path):
    found, told, said = ended(SWALLOWED + then, tmp_path)
    assert found == status and "Traceback" not in said
    assert told == ("cleaned up\n" if "cleaned" in then else "")


def test_an_exception_that_no_interruption_has_become_is_none(tmp_path):
    status, _, said = ended("raise ValueError('Invalid bounding box')", tmp_path)
    assert status == 1 and "ValueError: Invalid bounding box" in said


def test_an_import_that_does_not_end_is_not_waited_for_for_ever(tmp_path):
    (tmp_path / "endless.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(50)\n"
    )
    assert ended("import endless", tmp_path)[0] == 143


def test_a_signal_after_the_end_is_no_traceback(tmp_path):
    program = """
        import atexit
        atexit.register(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(30)))
        return 0
    """
    status, _, said = ended(program, tmp_path)
    assert status == 143 and said == ""
