"""The command in a process of its own, and the rows that it stored."""

import json
import subprocess
import sys

from analysis.results import load, open_run
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


def answer(out, *arguments, sets=(), report=False):
    """The JSON of a run into the folder `out`, with these keys of the scenario ("key=value"), and a report if wanted,
    which takes as long as all else of a short run."""
    options = [word for one in sets for word in ("--set", one)] + ["--no-report"] * (not report)
    return json.loads(ended("--json", "--out", out, *arguments, *options, cwd=out.parent)[0])


def measured(out, *arguments, collectives=None, median=0.002, p99=0.005, **asked):
    """As `answer`, of a run whose measured times are the model's; with as many measured collectives."""
    found = answer(out, *arguments, **asked)
    fidelity = found["fidelity"]
    assert fidelity["drops"] == 0 and collectives in (None, fidelity["collectives"])
    assert abs(fidelity["median_ratio"] - 1) <= median and fidelity["p99_abs_error"] <= p99
    return found


def measured_twice(folder, *arguments, **asked):
    """As `measured`, of a run in which all transfers end at the same nanosecond in another boot."""
    found = [measured(folder / name, *arguments, **asked) for name in ("one", "two")]
    one, two = (open_run(folder / name).transfers for name in ("one", "two"))
    assert len(one) and one.equals(two)
    return found[1]


def rows(folder):
    found = load(folder).sort_values(KEY, ignore_index=True)
    assert not found.duplicated(KEY).any()
    return found
