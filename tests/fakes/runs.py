"""Runs the command in a separate process, and reads the rows that it stored."""

import hashlib
import json
import os
import re
import subprocess
import sys

from analysis.results import load, open_run
from tests.conftest import PROJECT
from tests.fakes import forks
from tests.fakes.processes import Process

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]
RECORDED = PROJECT / "tests" / "instants.json"
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
    """Run the command until it ends, forked, or started anew if `popen` is given; return its output and its error
    output."""
    if popen:
        with started(*arguments, cwd=cwd, **popen) as process:
            out, said = process.communicate(timeout=600)
        found = process.returncode
    else:
        found, out, said = forks.run([*map(str, arguments)], cwd)
    assert found == status, said
    assert "Traceback" not in said, said
    return out, said


def answer(out, *arguments, sets=(), report=False):
    """Return the JSON of a run into the folder `out`, with `sets` as keys of the scenario ("key=value").

    A report is written only on request, as it takes as long as the rest of a short run.
    """
    options = [word for one in sets for word in ("--set", one)] + ["--no-report"] * (not report)
    return json.loads(ended("--json", "--out", out, *arguments, *options, cwd=out.parent)[0])


def measured(out, *arguments, collectives=None, median=0.002, p99=0.005, drops=0, **asked):
    """Do what `answer` does; assert that the measured times are the model's, that TCP retransmitted nothing without
    need, that at most so many packets were lost, and the number of measured collectives."""
    found = answer(out, *arguments, **asked)
    fidelity = found["fidelity"]
    assert fidelity["drops"] <= drops and "again" not in fidelity and collectives in (None, fidelity["collectives"])
    assert abs(fidelity["median_ratio"] - 1) <= median and fidelity["p99_abs_error"] <= p99
    return found


def measured_as_recorded(out, *arguments, **asked):
    """Do what `measured` does; assert that all transfers begin and end at the nanoseconds recorded for this test in an
    earlier boot."""
    found = measured(out, *arguments, **asked)
    transfers = open_run(out).transfers
    assert len(transfers)
    this = re.sub(r"(@.*)? \(call\)$", "", os.environ["PYTEST_CURRENT_TEST"])  # without the group of xdist
    assert_recorded(this, [transfers.start_s.to_list(), transfers.end_s.to_list()])
    return found


def assert_recorded(name, values):
    """Assert that instants are those of an earlier boot, whose checksum tests/instants.json has under this name.

    With LONGHAUL_RECORD=1, record the checksum instead, after a change that is meant to change times; do not run tests
    in parallel then.
    """
    recorded = json.loads(RECORDED.read_text())
    found = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
    if os.environ.get("LONGHAUL_RECORD") == "1":
        RECORDED.write_text(json.dumps(dict(sorted({**recorded, name: found}.items())), indent=2) + "\n")
    else:
        assert recorded.get(name) == found, f"{name}: other instants than recorded, or none are; see {__name__}"


def rows(folder):
    found = load(folder).sort_values(KEY, ignore_index=True)
    assert not found.duplicated(KEY).any()
    return found
