"""A run on a Dask cluster of this machine: the same numbers, also where a worker dies in the middle."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from analysis.results.reader import open_run
from scenarios.engines.dask import Cluster
from tests.conftest import PROJECT
from tests.fakes.commands import run
from tests.fakes.processes import await_that, descendants
from tests.fakes.runs import rows, started

RECORDED = Path(__file__).with_name("nanoseconds.json")
WORKERS = 2
MODEL = ["fig4b", "--engine", "model", "--collectives", "40000", "--modes", "base,joint", "--chunk", "8 MB"]
MODEL += ["--no-report", "--set", "collective.kind=allreduce"]


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def cluster(folder):
    """The address of a scheduler, its workers' processes and its own."""
    address = f"tcp://127.0.0.1:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DASK_TEMPORARY_DIRECTORY": str(folder)}

    def dask(role, *arguments):
        program = f"import sys; from distributed.cli.dask_{role} import main; sys.argv[0] = 'dask'; main()"
        command = [sys.executable, "-c", program, *map(str, arguments), "--host", "127.0.0.1", "--no-dashboard"]
        return subprocess.Popen(command, env=environment, stdout=-3, stderr=-3, start_new_session=True)

    wanted = ["--no-nanny", "--nthreads", "1", "--local-directory", folder, "--death-timeout", "120"]
    scheduler = dask("scheduler", "--port", address.rpartition(":")[2])
    workers = [dask("worker", address, *wanted) for _ in range(WORKERS)]
    try:
        wait_for_workers(address)
        yield address, workers, scheduler
    finally:
        for process in [*workers, scheduler]:
            process.kill()
            process.wait()


def wait_for_workers(address):
    from distributed import Client

    until = time.monotonic() + 120
    while True:
        try:
            with Client(address, timeout=10, set_as_default=False) as client:
                client.wait_for_workers(WORKERS, timeout=60)
                return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.2)


def wait_until(there, process):
    """Wait for what is there while a process runs, and return it as it was found: a process that starts another
    program has no arguments for an instant, so looking twice may find less."""
    found = None

    def is_there():
        nonlocal found
        found = there()
        assert found or process.poll() is None, process.communicate()
        return found

    await_that(is_there, 120)
    return found


def has_vm(worker):
    """Whether a worker has a VM at work."""
    for pid in descendants(worker.pid):
        with suppress(psutil.Error):
            if "linux" in " ".join(psutil.Process(pid).cmdline()):
                return True
    return False


def test_a_worker_killed_in_the_middle_changes_no_number_and_a_killed_scheduler_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(*MODEL, "--out", "here")
    with cluster(tmp_path / "dask") as (address, workers, scheduler):
        with started(*MODEL, "--dask", address, "--out", "there", cwd=tmp_path) as process:
            wait_until(lambda: list(tmp_path.glob("there/parts/[!.]*")), process)
            workers[0].kill()
            _, err = process.communicate(timeout=300)
        assert process.returncode == 0 and "failed" not in err, err
        with started(*MODEL, "--seed", "2", "--dask", address, "--out", "alone", cwd=tmp_path) as process:
            wait_until(lambda: list(tmp_path.glob("alone/parts/[!.]*")), process)
            scheduler.kill()
            _, err = process.communicate(timeout=300)
        assert process.returncode == 1
        assert err.endswith(f"--resume alone\nrun.py: the Dask scheduler at {address} has ended\n")
    assert rows("there").equals(rows("here"))


def test_points_are_emulated_on_the_workers_and_again_where_one_dies_or_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = ["--no-report", "--modes", "base,joint", "--collectives", "3", "--seed", "3", "--engine", "emulation"]
    with cluster(tmp_path / "dask") as (address, workers, _):
        endless = ["--no-report", "--modes", "base", "--collectives", "500", "--engine", "emulation"]
        with started(*endless, "--dask", address, "--out", "interrupted", cwd=tmp_path) as process:
            wait_until(lambda: any(map(has_vm, workers)), process)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=10)
        assert process.returncode == 130
        await_that(lambda: not any(map(has_vm, workers)))
        assert not (tmp_path / "interrupted").exists()
        with started(*wanted, "--dask", address, "--out", "there", cwd=tmp_path) as process:
            busy = wait_until(lambda: next(filter(has_vm, workers), None), process)  # one worker may get both points
            busy.kill()
            _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert not has_vm(busy)
    recorded = {(row["mode"], row["collective"]): row["completion_ns"] for row in json.loads(RECORDED.read_text())}
    found = {(row["mode"], row.collective): round(row.completion_s * 1e9) for _, row in rows("there").iterrows()}
    assert found == {key: ns for key, ns in recorded.items() if key[0] in ("base", "joint")}
    assert len(open_run("there").transfers) == 6 * 7 * 8
    assert open_run("there").provenance["vm"]["after"] is not None


def test_a_result_that_is_being_fetched_when_the_scheduler_dies_is_not_waited_for(tmp_path):
    with cluster(tmp_path / "dask") as (address, _, scheduler):
        there = Cluster(address)
        try:
            future = there.submit(bytes, 400_000_000)  # a second on the way
            time.sleep(0.15)
            scheduler.kill()
            with pytest.raises((OSError, CancelledError)) as ended:
                future.result(timeout=60)
            assert not isinstance(ended.value, TimeoutError)
        finally:
            there.shutdown()


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    address = f"tcp://127.0.0.1:{free_port()}"
    run("--engine", "model", "--dask", address, status=1)
    err = capsys.readouterr().err
    assert err.startswith(f"run.py: no Dask scheduler answers at {address}: ") and len(err.splitlines()) == 1
    run("--engine", "model", "--dask", "somewhere", "--jobs", "2", status=2)
    assert capsys.readouterr().err.startswith("--jobs: cannot be combined with --dask")
    assert list(tmp_path.iterdir()) == []
