"""How a run of the command ends, and what it makes of where it is started: signals, terminals, pipes, folders."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from analysis.results import load
from tests.processes import children, living
from tests.test_run import RUN, run


@pytest.mark.parametrize(
    ("number", "group", "jobs", "status"),
    [
        (signal.SIGINT, True, 2, 130),
        (signal.SIGINT, False, 1, 130),
        (signal.SIGTERM, False, 2, 143),
        (signal.SIGTERM, True, 2, 143),
    ],
)
def test_an_interrupted_run_leaves_no_process_and_a_folder_to_go_on_with(tmp_path, number, group, jobs, status):
    options = ["fig5a", "--engine", "model", "--collectives", "1000000", "--jobs", str(jobs)]
    process = subprocess.Popen(
        [sys.executable, RUN, *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("results/*/points/*.rows")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    workers = children(process.pid)
    (os.killpg if group else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    (folder,) = tmp_path.glob("results/*")
    goes_on = f"run.py: what was found is kept; go on with --resume results/{folder.name}\n"
    assert said == goes_on + "run.py: interrupted\n"
    time.sleep(0.2)
    assert not set(workers) & living().keys()
    assert len(load(folder)) > 0


def test_on_a_terminal_there_is_a_live_table(tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, RUN, "--engine", "model", "--collectives", "50"],
        cwd=tmp_path,
        stderr=theirs,
        stdout=subprocess.PIPE,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:
            break
        shown += chunk
    process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert "model: 4 of 4 points" in shown.decode()
    assert "50 of 50" in shown.decode()


def test_a_reader_that_stops_reading_is_no_traceback(tmp_path):
    done = subprocess.run(
        f"set -o pipefail; {sys.executable} {RUN} --engine model --json | true",
        shell=True,
        executable="/bin/bash",
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_it_works_from_anywhere_and_against_a_stray_install(tmp_path):
    (tmp_path / "topologies.py").write_text("raise SystemExit('the wrong module')\n")
    done = subprocess.run(
        [sys.executable, RUN, "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_report_that_cannot_be_written_is_told_and_takes_nothing_of_the_run_with_it(tmp_path):
    """A run whose page lacks its figures is complete; going on with it writes what lacks."""
    run("--collectives", 4, "--gpus", 4, "--out", "there", cwd=tmp_path)
    folder = tmp_path / "there"
    page = folder / "report.html"
    text = page.read_text()
    page.unlink()
    run("--resume", "there", cwd=tmp_path)
    assert page.read_text() == text
    page.unlink()
    for path in (folder / "figures").iterdir():
        path.unlink()
    (folder / "figures").rmdir()
    (folder / "figures").write_text("in the way")
    done = run("--resume", "there", cwd=tmp_path)
    assert "report.html could not be written" in done.stderr
    assert "base" in done.stdout
