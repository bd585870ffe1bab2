"""How a run of the command ends, and what it makes of where it is started: signals, terminals, pipes, folders."""

import os
import pty
import select
import shutil
import signal
import subprocess
from pathlib import Path

from analysis.results.reader import load
from tests.fakes.processes import Process, await_that, descendants, living
from tests.fakes.runs import RUN, ended, started


def test_an_interrupted_run_leaves_no_process_and_a_folder_to_go_on_with(tmp_path):
    options = ["fig5a", "--engine", "model", "--collectives", "1000000", "--jobs", "2"]
    with started(*options, cwd=tmp_path) as process:
        await_that(lambda: any(tmp_path.glob("results/*/parts/[!.]*")))
        below = descendants(process.pid)
        assert len(below) >= 2
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    (folder,) = tmp_path.glob("results/*")
    goes_on = f"run.py: the results so far are kept; resume with --resume results/{folder.name}\n"
    *progress, kept, interrupted = said.splitlines(keepends=True)
    assert kept + interrupted == goes_on + "run.py: interrupted\n"
    assert all(line.startswith("[0/16] model, ") for line in progress)
    assert not set(below) & living().keys()
    assert len(load(folder)) > 0


def watched(*arguments, cwd, then):
    """Run at a terminal; returns the exit status and what was shown. Once there is a table, `then` has the process."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = Process([*RUN, *arguments], cwd=cwd, stderr=theirs, stdout=subprocess.PIPE, env=environment)
    os.close(theirs)
    with process:
        shown = until_closed(ours, lambda: then(process))
        process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, shown.decode()


def until_closed(ours, then):
    """All that is written to a terminal; once there is a table, `then` is called."""
    shown, has_table = b"", False
    while True:
        assert select.select([ours], [], [], 60)[0], shown
        try:
            shown += os.read(ours, 4096)
        except OSError:
            return shown
        if not has_table and b"\x1b[?25l" in shown:
            has_table = True
            then()


def test_on_a_terminal_there_is_a_live_table_and_afterwards_the_cursor(tmp_path):
    status, shown = watched("--engine", "model", "--collectives", "50", cwd=tmp_path, then=lambda process: None)
    assert status == 0
    assert "model: 4 of 4 points" in shown and "50 of 50" in shown

    def kill(process):
        (command, *_) = descendants(process.pid)
        os.kill(command, signal.SIGSTOP)  # so that the signal does not reach it
        process.send_signal(signal.SIGINT)

    arguments = ["fig5a", "--engine", "model", "--collectives", "1000000", "--jobs", "1", "--out", "killed"]
    status, shown = watched(*arguments, cwd=tmp_path, then=kill)
    assert status == 130
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l") and shown.endswith("run.py: interrupted\r\n")


def test_a_reader_that_stops_reading_is_no_traceback(tmp_path):
    with started("--engine", "model", "--json", cwd=tmp_path) as process:
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in said and "Exception" not in said


def test_output_that_cannot_be_written_is_not_taken_for_the_folder(tmp_path):
    options = ["--engine", "model", "--collectives", "4", "--gpus", "4", "--no-report", "--out", "there"]
    with Path("/dev/full").open("w") as full:
        for again in (options, ["--resume", "there", "--no-report"]):
            found = subprocess.run([*RUN, *again], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
            assert found.returncode == 1
            assert found.stderr.endswith("run.py: the output cannot be written: No space left on device\n")
    ended("--resume", "there", "--no-report", cwd=tmp_path)


def test_it_works_from_anywhere_and_against_a_stray_install(tmp_path):
    (tmp_path / "topologies.py").write_text("raise SystemExit('the wrong module')\n")
    ended("--dry-run", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})


def test_a_report_that_cannot_be_written_is_told_and_takes_nothing_of_the_run_with_it(tmp_path):
    """A run whose page lacks its figures is complete; going on with it writes what lacks."""
    ended("--engine", "model", "--collectives", 4, "--gpus", 4, "--out", "there", cwd=tmp_path)
    folder = tmp_path / "there"
    page = folder / "report.html"
    text = page.read_text()
    page.unlink()
    ended("--resume", "there", cwd=tmp_path)
    assert page.read_text() == text
    page.unlink()
    shutil.rmtree(folder / "figures")
    (folder / "figures").write_text("in the way")
    out, said = ended("--resume", "there", cwd=tmp_path)
    assert "report.html could not be written" in said and "base" in out
