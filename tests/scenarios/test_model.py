"""The model engine: results do not depend on batches and processes, all modes see the same conditions; its workers."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.engines.base import Slice
from scenarios.engines.model import Model
from scenarios.engines.pool import FailedTask, processes, results
from scenarios.engines.prediction import critical_path, link_bytes
from scenarios.policies.policy import MODES
from tests.conftest import PROJECT
from tests.fakes.commands import scenario, times
from tests.fakes.processes import await_that, descendants, living


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 70),
    every=st.integers(1, 30),
    modes=st.permutations(list(MODES)),
    chosen=st.sampled_from(["uniform", "gaussian", "markov", "ar1"]),
)
def test_completion_times_do_not_depend_on_batch_size_or_order_of_modes(batch, every, modes, chosen):
    values = {"collective__count": 61, "collective__reembed_every": every, "conditions__sampler": chosen}
    whole = times(scenario(**values, run__modes=list(MODES)).configurations(), Model(batch=61))
    parts = times(scenario(**values, run__modes=modes).configurations(), Model(batch=batch))
    assert set(whole) == set(parts)
    assert all((whole[key] == parts[key]).all() for key in whole)


def test_completion_times_do_not_depend_on_the_number_of_processes_but_on_the_seed():
    swept = {"collective__count": 300, "fabric__gpus": [3, 5]}
    settings = scenario(**swept, sweep__run__seed=[1, 2]).configurations()
    alone, together = times(settings, Model(jobs=1, batch=100)), times(settings, Model(jobs=3, batch=40))
    assert len(alone) == 8
    assert all((alone[key] == together[key]).all() for key in alone)
    assert not any((alone[0, mode] == alone[1, mode]).any() for mode in MODES)


def test_every_mode_and_every_chunk_size_sees_the_same_conditions():
    """With one border router per site there is no path to choose: modes with equal embeddings take equal times."""
    fixed = {"fabric__gpus": 4, "fabric__border_routers": 1, "collective__count": 50}
    by_mode = times(scenario(**fixed).configurations(), Model())
    assert (by_mode[0, "base"] == by_mode[0, "wan"]).all()
    assert (by_mode[0, "ccl"] == by_mode[0, "joint"]).all()
    assert not (by_mode[0, "base"] == by_mode[0, "ccl"]).all()
    # Delays are negligible here, so times are proportional to the chunk size if the drawn rates are equal.
    small, large = (
        times(scenario(**fixed, collective__chunk=c).configurations(), Model()) for c in ("500 MB", "1000 MB")
    )
    assert large[0, "base"] == pytest.approx(2 * small[0, "base"], rel=2e-2)


def test_the_critical_path_of_several_collectives_has_their_mean_time():
    (setting,) = scenario(collective__count=5, run__modes=["base"]).configurations()
    found = critical_path(setting, "base", 5)
    assert sum(found.values()) == pytest.approx(times([setting], Model())[0, "base"].mean(), rel=1e-12)
    assert len(found) > len(critical_path(setting, "base", 1))  # other links are slow in other collectives


def test_every_link_of_a_ring_carries_the_chunks_of_all_other_gpus():
    (setting,) = scenario(collective__chunk="8 MB").configurations()
    edges = {f"g{rank}>g{rank + 1}" for rank in (0, 1, 2, 4, 5, 6)}
    crossings = {"g3>s0b0", "s0b0>s1b0", "s1b0>g4", "g7>s1b0", "s1b0>s0b0", "s0b0>g0"}
    assert link_bytes(setting, "base") == dict.fromkeys(edges | crossings, 7 * 8_000_000)


def test_the_model_engine_imports_no_large_libraries():
    large = "pandas", "pyarrow", "scipy", "matplotlib", "rich", "distributed"
    program = f"import sys, scenarios.engines.model; print(*sys.modules.keys() & {set(large)})"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def doubled(task):
    return task * 2


def failing_on_three(task):
    if task == 3:
        raise ValueError("no threes")
    return task


def dying_once(path):
    """Create the file of the task and kill this process at the first attempt; succeed at the second."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def always_dying_on_two(task):
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def over(function, tasks, jobs, ahead=1):
    with processes(jobs) as executors:
        return dict(results(function, tasks, executors, ahead=ahead))


@pytest.mark.parametrize(("jobs", "ahead"), [(1, 1), (3, 1), (2, 3)])
def test_the_pool_completes_every_task_and_reports_one_that_fails_twice_as_lost(jobs, ahead):
    assert over(doubled, range(20), jobs, ahead) == {task: task * 2 for task in range(20)}
    assert over(doubled, [], jobs, ahead) == {}
    assert over(failing_on_three, range(6), jobs, ahead) == {
        0: 0,
        1: 1,
        2: 2,
        3: FailedTask("ValueError: no threes"),
        4: 4,
        5: 5,
    }


@pytest.mark.parametrize("ahead", [1, 4])
def test_the_task_of_a_killed_worker_is_retried_once_and_then_reported_as_lost(tmp_path, ahead):
    # Never is more than one task that kills its worker queued at a worker.
    paths = [tmp_path / str(number) for number in range(5 if ahead == 1 else 2)]
    assert over(dying_once, paths, 2, ahead) == dict.fromkeys(paths, "done")
    found = over(always_dying_on_two, range(8), 2, ahead)
    assert "ended before its task was done" in found.pop(2).why
    assert found == {task: task for task in range(8) if task != 2}


def test_a_worker_process_killed_between_two_tasks_is_replaced():
    with processes(2) as executors:
        pid = executors[0].submit(os.getpid).result()
        os.kill(pid, signal.SIGKILL)
        assert dict(results(doubled, range(4), executors)) == {task: task * 2 for task in range(4)}


def killed_while_its_result_is_sent(_):
    def send_half(self, data, write=os.write):
        write(self.fileno(), bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = send_half
    return bytes(10**5)


@pytest.mark.timeout(120)
def test_a_worker_killed_while_sending_its_result_does_not_block_the_pool():
    with processes(2) as executors:
        # Start both workers, because the second one inherits the files that are open here.
        assert [one.submit(doubled, 2).result() for one in executors] == [4, 4]
        ((_, lost),) = results(killed_while_its_result_is_sent, [1], executors[:1])
        assert "ended before its task was done" in lost.why
        assert dict(results(doubled, range(4), executors)) == {task: task * 2 for task in range(4)}


def unpicklable(task):
    return lambda: task


def test_a_result_that_cannot_be_pickled_is_reported_as_lost():
    ((_, lost),) = over(unpicklable, [1], 2).items()
    assert "pickle" in lost.why


def test_an_executor_listed_n_times_gets_n_tasks_at_a_time():
    """For example, all workers of a Dask cluster are one executor."""
    together = threading.Barrier(3)
    with ThreadPoolExecutor(3) as threads:
        found = dict(results(lambda task: (together.wait(timeout=60), task)[1], range(3), [threads] * 3))
    assert found == {0: 0, 1: 1, 2: 2}


def test_workers_continue_while_earlier_results_are_consumed(tmp_path):
    paths = [tmp_path / str(number) for number in range(6)]
    with processes(2) as executors:
        next(results(Path.touch, paths, executors))
        await_that(paths[2].exists)  # although no further result is consumed


def test_no_worker_process_survives_a_closed_run_or_a_killed_parent():
    run = Model(jobs=2, batch=10).run(scenario(collective__count=10**6).configurations())
    next(run)
    below = descendants(os.getpid())
    assert len(below) >= 2
    run.close()
    assert not set(below) & living().keys()
    program = "import time; from scenarios.engines.pool import processes\n"
    program += "with processes(2) as workers:\n    [w.submit(time.sleep, 99) for w in workers]; print(); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-uc", program], cwd=PROJECT, stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        below = descendants(parent.pid)
        parent.kill()
    assert len(below) == 2
    await_that(lambda: not set(below) & living().keys(), 10)


def test_killing_all_worker_processes_during_a_run_does_not_change_its_results():
    given = scenario(collective__count=400).configurations()
    whole, found, killed = times(given, Model()), {}, set()
    for part in Model(jobs=2, batch=20).run(given):
        assert isinstance(part, Slice), part
        found.setdefault((part.setting, part.mode), {})[part.rows.start] = part.rows.completion_s
        if not killed:
            killed = set(descendants(os.getpid()))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
    assert len(killed) == 2
    assert all((np.concatenate([parts[k] for k in sorted(parts)]) == whole[key]).all() for key, parts in found.items())
