"""Jobs that repeat by time: when their collectives begin, what their time is, and that the testbed agrees."""

from pathlib import Path

import numpy as np
import pytest

from analysis.results.reader import open_run
from scenarios.engines.model import Batch, rows_of
from scenarios.engines.prediction import link_bytes
from scenarios.spec.load import resolved, scenario_of
from scenarios.spec.scenario import Scenario
from tests.fakes.runs import ended, measured

RATES = "[conditions]\nintra_rate='100 Gbit/s'\nwan_rate='10 Gbit/s'\nwan_delay='1 ms'\n"
HEAD = f"{RATES}[collective]\ncount=2\nemulated=2\nchunk='1 MB'\n[run]\nmodes=['base']\n"
GATHER = "[[job]]\nname='gather{}'\nranks=[2, 3, 6, 7]\n{}"
OTHER = "[[job]]\nname='train'\nranks=[0, 1, 4, 5]\nkind='allreduce'\nsize='8 MB'\ncount=3\n"


def config(text: str) -> Scenario:
    (found,) = scenario_of(HEAD + text).configurations()
    return found


def times(text: str) -> tuple[float, list[float]]:
    """Return the time of the first round, and those of its jobs, s."""
    rows = rows_of(Batch(0, config(text), ("base",), 0, 1))["base"]
    return float(rows["completion_s"][0]), rows.jobs["completion_s"][0].tolist()


def apart(period_ms: float, *, start_ms: float = 0, count: int = 5) -> str:
    """Return as many jobs as a periodic one has collectives, of which each starts when that is due."""
    starts = [f"start='{start_ms + at * period_ms} ms'\n" if start_ms + at * period_ms else "" for at in range(count)]
    return "".join(GATHER.format(at, start) for at, start in enumerate(starts))


@pytest.mark.parametrize(("start", "beside"), [(0, ""), (3, OTHER)])
def test_a_job_that_repeats_by_time_is_as_several_jobs_that_start_then(start: int, beside: str) -> None:
    """The period is longer than a collective takes; several jobs were the only way before."""
    begins = f"start='{start} ms'\n" * bool(start)
    round_s, (of_job, *_) = times(GATHER.format("", f"{begins}count=5\nevery='20 ms'\n") + beside)
    wanted_s, of_jobs = times(apart(20, start_ms=start) + beside)
    assert round_s == pytest.approx(wanted_s, rel=1e-9)
    assert of_job == pytest.approx(np.mean(of_jobs[:5]), rel=1e-9)
    assert round_s > 80e-3 > of_job


def test_a_period_that_is_too_short_is_back_to_back_and_collectives_are_late() -> None:
    wanted_s, (whole_s,) = times(GATHER.format("", "count=5\n"))
    round_s, (of_job,) = times(GATHER.format("", "count=5\nevery='1 us'\n"))
    assert round_s == wanted_s == whole_s
    _, (alone,) = times(GATHER.format("", ""))
    assert alone < of_job < whole_s  # each waits for those before it


def test_the_bytes_and_the_bound_of_a_periodic_job_are_those_of_its_collectives() -> None:
    every, once = (config(GATHER.format("", more)) for more in ("start='1 ms'\ncount=3\nevery='9 ms'\n", ""))
    assert link_bytes(every, "base", "gather") == link_bytes(once, "base", "gather")
    bounds = [float(rows_of(Batch(0, one, ("base",), 0, 1))["base"]["bound_s"][0]) for one in (every, once)]
    assert bounds[0] == pytest.approx(1e-3 + 2 * 9e-3 + bounds[1])


def test_a_periodic_job_survives_writing_and_is_told_in_words(tmp_path: Path) -> None:
    text = HEAD + GATHER.format("", "kind='allgather'\ncount=3\nevery='20 ms'\n") + OTHER
    assert scenario_of(resolved(scenario_of(text))) == scenario_of(text)
    assert "gather allgather 3 times every 20 ms on GPUs 2,3,6,7" in config(text[len(HEAD) :]).label
    path = tmp_path / "periodic.toml"
    path.write_text(text)
    shown, _ = ended(path, "--engine", "model", "--no-report", "--out", "run", cwd=tmp_path)
    assert "gather (mean of 3 AllGathers every 20 ms) takes " in shown
    (note,) = scenario_of(HEAD + GATHER.format("", "every='20 ms'\n")).notes
    assert note.endswith("job[1].every: unused: count is 1")


def test_training_that_repeats_by_time_is_drawn_with_its_own_computations(tmp_path: Path) -> None:
    """A figure finds computations by streams, of which gates and clocks have their own."""
    text = HEAD + "[[job]]\nname='train'\nkind='training'\nranks=[0, 1, 4, 5]\ncount=2\nevery='60 ms'\n[training]\n"
    path = tmp_path / "training.toml"
    path.write_text(f"{text}micro_batches=2\nreplicas=2\nforward='1 ms'\nbackward='2 ms'\n")
    ended(path, "--engine", "model", "--out", "run", cwd=tmp_path)
    run = open_run(tmp_path / "run")
    assert run.jobs.completion_s.max() < 60e-3 < run.collectives.completion_s.min()


# --- in the VM ------------------------------------------------------------------------------------------------------


def test_a_periodic_job_beside_another_is_measured_as_predicted(tmp_path: Path) -> None:
    path = tmp_path / "periodic.toml"
    path.write_text(HEAD + GATHER.format("", "start='2 ms'\ncount=4\nevery='9 ms'\n") + OTHER)
    measured(tmp_path / "run", path, "--engine", "emulation", median=0.01, p99=0.01)
    jobs = open_run(tmp_path / "run").jobs
    assert set(jobs.job) == {"gather", "train"} and len(jobs) == 4
    assert (jobs.completion_s / jobs.predicted_s - 1).abs().max() <= 0.01
