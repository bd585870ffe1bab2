"""What an interrupted run of collectives tells: the answer over what there is, and how much that is."""

import re
import signal
import time

import numpy as np
import pytest

from analysis.results.reader import COLLECTIVES, PARTS
from analysis.results.rows import Rows
from scenarios.engines.base import Slice
from scenarios.experiment.so_far import SoFar
from scenarios.spec.load import Override, load_scenario
from tests.fakes import runs
from tests.fakes.processes import await_that


def configs(**values):
    values = {"collective.count": 100, "run.modes": ["base", "wan"]} | values
    return load_scenario("paper", [Override(key, value, key) for key, value in values.items()]).configurations()


def part(setting, mode, start, times_s, **more):
    none = np.zeros(len(times_s), dtype=bool)
    columns = {"completion_s": np.array(times_s), "reembedded": none, "rerouted": none}
    return Slice(setting=setting, mode=mode, rows=Rows(start, columns, **more))


def test_what_there_is_is_compared_over_what_all_have_and_counted():
    so_far = SoFar({"model": configs()})
    so_far.take("model", part(0, "wan", 5, [0.5] * 5))  # parts may come in any order
    so_far.take("model", part(0, "base", 0, np.linspace(1, 2, 100)))
    so_far.take("model", part(0, "wan", 0, np.linspace(0.5, 0.6, 5)))
    so_far.take("model", part(0, "wan", 50, [9.0] * 10))  # what comes before is missing
    first, sentence, _, *points = so_far.lines()
    assert first == "interrupted after 120 of 200 collectives (below: 110 without a gap), 1 of 2 points complete:"
    assert (
        sentence.startswith("base and wan compared over 10 to 100 AllGathers each") or "over 10 AllGathers" in sentence
    )
    gain = 1 - (np.linspace(0.5, 0.6, 5).sum() + 2.5) / np.linspace(1, 2, 100)[:10].sum()
    assert f"wan has the lowest mean, {gain * 100:.1f} % below base (too few collectives" in sentence
    assert [re.sub(r"^.*, (base|wan): ", r"\1 ", one).partition(",")[0] for one in points] == [
        "base 100 of 100",
        "wan 10 of 100",
    ]


def test_jobs_of_an_interrupted_sweep_are_told():
    jobs = [[{"name": "a", "ranks": [0, 4]}], [{"name": "a", "ranks": [0, 4]}, {"name": "b", "ranks": [1, 5]}]]
    so_far = SoFar({"model": configs(**{"sweep.job": jobs, "run.modes": ["base"]})})
    so_far.take("model", part(0, "base", 0, [1.0] * 100, jobs={"completion_s": np.full((100, 1), 1.0)}))
    so_far.take("model", part(1, "base", 0, [3.0] * 70, jobs={"completion_s": np.tile([1.5, 3.0], (70, 1))}))
    text = "\n".join(so_far.lines())
    assert "a takes 1,000 ms alone; 1,500 ms beside b, 50.0 % longer" in text and "b takes 3,000 ms" in text


def test_nothing_is_told_of_a_run_without_results():
    assert [*SoFar({"model": configs()}).lines()] == []


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_interrupted_run_ends_with_its_answer_so_far(tmp_path, options):
    folder = tmp_path / "run"
    words = ("--engine", "model", "--modes", "base,wan", "--collectives", 3_000_000, "--no-report", *options)
    with runs.started(*words, "--out", folder, cwd=tmp_path) as run:
        await_that(lambda: (folder / PARTS).exists(), 60)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    told, other = (err, out) if options else (out, err)
    assert run.returncode == 130
    assert re.search(r"interrupted after [\d,]+ of 6,000,000 collectives", told) and "compared" not in other


def test_a_run_that_is_interrupted_while_it_draws_tells_its_answer(tmp_path):
    words = ("--engine", "model", "--modes", "base,wan", "--collectives", 70, "--chunk", "1 MB,2 MB,3 MB,4 MB")
    with runs.started(*words, "--out", tmp_path / "run", cwd=tmp_path) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "[8/8]" in line:
                break
        await_that(lambda: (tmp_path / "run" / COLLECTIVES).exists(), 60)
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted after 560 of 560 collectives, 8 of 8 points complete:\nbase and wan compared" in out
