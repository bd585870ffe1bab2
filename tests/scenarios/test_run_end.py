"""How a run ends, and how it behaves in its surroundings: signals, terminals, pipes and working folders."""

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from analysis.results.reader import load
from tests.fakes.processes import Process, await_that, descendants, living
from tests.fakes.runs import RUN, ended, started


def test_an_interrupted_run_leaves_no_process_and_a_resumable_folder(tmp_path):
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
    """Run at a terminal; return the exit status and the screen output. Call `then(process)` once a table is shown."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = Process([*RUN, *arguments], cwd=cwd, stderr=theirs, stdout=subprocess.PIPE, env=environment)
    os.close(theirs)
    with process:
        shown = until_closed(ours, lambda: then(process))
        process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, shown.decode(errors="replace")  # a killed process may end within a character


def until_closed(ours, then):
    """Return everything written to a terminal until it is closed; call `then` once a table is shown."""
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


def test_a_terminal_shows_a_live_table_and_gets_its_cursor_back(tmp_path):
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


def test_a_closed_stdout_pipe_causes_no_traceback(tmp_path):
    with started("--engine", "model", "--json", cwd=tmp_path) as process:
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in said and "Exception" not in said


def test_unwritable_stdout_is_not_reported_as_an_unwritable_run_folder(tmp_path):
    options = ["--engine", "model", "--collectives", "4", "--gpus", "4", "--no-report", "--out", "there"]
    with Path("/dev/full").open("w") as full:
        for again in (options, ["--resume", "there", "--no-report"]):
            found = subprocess.run([*RUN, *again], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
            assert found.returncode == 1
            assert found.stderr.endswith("run.py: the output cannot be written: No space left on device\n")
    ended("--resume", "there", "--no-report", cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "status"), [("--dry-run 2>&-", 0), ("--gpus x 2>&-", 2), ("--cli --gpus 4 <&-", 0)]
)
def test_a_standard_stream_that_is_closed_from_the_start_does_not_change_how_a_command_ends(
    tmp_path, arguments, status
):
    command = ["bash", "-c", f"{shlex.join(RUN)} {arguments}"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == status and "Traceback" not in found.stdout + found.stderr
    assert ("nothing was run" in found.stdout) == ("--dry-run" in arguments)


def test_the_command_works_in_any_folder_and_despite_a_module_of_the_same_name(tmp_path):
    (tmp_path / "topologies.py").write_text("raise SystemExit('the wrong module')\n")
    ended("--dry-run", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})


def test_an_unwritable_report_is_reported_and_does_not_fail_the_run(tmp_path):
    """A run without its report or figures is complete; resuming it writes the missing files."""
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
