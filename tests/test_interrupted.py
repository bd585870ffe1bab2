"""Ctrl-C at any moment of run.py: back at the shell soon, status 130, nothing left, and the run can be gone on with.

`LONGHAUL_INSTANTS=50 python -m pytest tests/test_interrupted.py -s` tries fifty moments and prints how long each took.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.results import PROVENANCE, load
from tests.conftest import PROJECT
from tests.test_emulation import descendants, living

INSTANTS = int(os.environ.get("LONGHAUL_INSTANTS", "5"))
RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]
SMALL = ["--modes", "base,joint", "--collectives", "6", "--chunk", "100 kB", "--jobs", "2"]
_LONGEST_S = 12.0  # the run takes longer, or hardly less: instants are drawn from all of it
_BACK_S = 25.0  # five seconds on a machine without other work
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
        if status == 0:  # it was over before
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
