"""A run on a Dask cluster of this machine: the same numbers, also where a worker dies in the middle."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from analysis.results.reader import open_run
from tests.conftest import PROJECT
from tests.fakes.runs import KEY, ended, rows, started

WORKERS = 2
MODEL = ["fig4b", "--engine", "model", "--collectives", "150000", "--modes", "base,joint"]


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def dask(role, *arguments, environment):
    program = f"import sys; from distributed.cli.dask_{role} import main; sys.argv[0] = 'dask'; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def cluster(folder: Path):
    """The address of a scheduler, and its workers' processes."""
    address = f"tcp://127.0.0.1:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DASK_TEMPORARY_DIRECTORY": str(folder)}
    own = ["--host", "127.0.0.1"]
    scheduler = dask("scheduler", *own, "--port", address.rpartition(":")[2], "--no-dashboard", environment=environment)
    wanted = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", folder, "--death-timeout", "120"]
    workers = [dask("worker", address, *own, *wanted, environment=environment) for _ in range(WORKERS)]
    try:
        wait_for_workers(address)
        yield address, workers
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


def test_a_worker_killed_in_the_middle_changes_no_number(tmp_path):
    ended(*MODEL, "--out", "here", cwd=tmp_path)
    with cluster(tmp_path / "dask") as (address, workers):
        with started(*MODEL, "--dask", address, "--out", "there", cwd=tmp_path) as process:
            until = time.monotonic() + 120
            while not list(tmp_path.glob("there/parts/*.parquet")):
                assert time.monotonic() < until and process.poll() is None, process.communicate()
                time.sleep(0.02)
            workers[0].kill()
            _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert len(re.findall(r"^\[", said, re.MULTILINE)) == 8 and "failed" not in said, said
    assert rows(tmp_path / "there").equals(rows(tmp_path / "here"))


def test_points_are_emulated_on_the_workers_and_again_where_one_dies(tmp_path):
    wanted = ["--modes", "base,joint", "--collectives", "3", "--engine", "emulation"]
    with cluster(tmp_path / "dask") as (address, workers):
        with started(*wanted, "--dask", address, "--out", "there", cwd=tmp_path) as process:
            until = time.monotonic() + 120
            while not has_vm(workers[0].pid):
                assert time.monotonic() < until and process.poll() is None, process.communicate()
                time.sleep(0.05)
            workers[0].kill()
            _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert not has_vm(workers[0].pid)
    ended(*wanted, "--out", "here", cwd=tmp_path)
    there, here = rows(tmp_path / "there"), rows(tmp_path / "here")
    assert there[KEY].equals(here[KEY]) and len(there) == 6
    assert there.completion_s.to_list() == pytest.approx(here.completion_s.to_list(), rel=1e-3)
    assert len(open_run(tmp_path / "there").transfers) == 6 * 7 * 8
    assert open_run(tmp_path / "there").provenance["vm"]["after"] is not None


def has_vm(pid):
    """Whether a process has a VM at work."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"linux" in (stat.parent / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_an_interrupted_run_leaves_no_vm_on_the_workers_and_goes_on_here(tmp_path):
    wanted = ["--modes", "base", "--collectives", "500", "--engine", "emulation"]
    with cluster(tmp_path / "dask") as (address, workers):
        with started(*wanted, "--dask", address, cwd=tmp_path) as process:
            until = time.monotonic() + 120
            while not any(has_vm(worker.pid) for worker in workers):
                assert time.monotonic() < until and process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
        assert process.returncode == 130
        until = time.monotonic() + 60
        while any(has_vm(worker.pid) for worker in workers):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert list(tmp_path.glob("results/*")) == []


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    _, said = ended("--engine", "model", "--dask", address, cwd=tmp_path, status=1)
    assert said.startswith(f"run.py: no Dask scheduler answers at {address}: ") and len(said.splitlines()) == 1
    _, said = ended("--engine", "model", "--dask", "somewhere", "--jobs", "2", cwd=tmp_path, status=2)
    assert said.startswith("--jobs: is beside --dask")
    assert list(tmp_path.iterdir()) == []
