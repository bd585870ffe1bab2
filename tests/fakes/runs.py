"""The command in a process of its own, and the rows that it stored."""

import subprocess
import sys

from analysis.results import load
from tests.conftest import PROJECT
from tests.fakes.processes import Process

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]
KEY = ["engine", "setting", "mode", "collective"]


def started(*arguments, cwd, **popen):
    return Process(
        [*RUN, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **popen,
    )


def ended(*arguments, cwd, status=0, **popen):
    """Run the command to its end; returns its output and its error output."""
    with started(*arguments, cwd=cwd, **popen) as process:
        out, said = process.communicate(timeout=600)
    assert process.returncode == status, said
    assert "Traceback" not in said, said
    return out, said


def rows(folder):
    found = load(folder).sort_values(KEY, ignore_index=True)
    assert not found.duplicated(KEY).any()
    return found
