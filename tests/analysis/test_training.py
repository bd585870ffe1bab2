"""The figures of training: the bars of the pipeline diagram, and the savings of overlapping by distance."""

import csv
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.figures.run_points import configurations_of, points_of
from analysis.figures.training import AXES, crossings, iteration_times
from analysis.results.reader import load, open_run
from scenarios.experiment import command
from tests.conftest import PROJECT

WANTED = ["geopipe", "--engine", "model", "--collectives", "1", "--set", "training.micro_batches=16", "--out", "run"]


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_training_figures_agree_with_the_stored_iteration_times(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    swept = "conditions.wan_delay=1 us,9.8 ms", "conditions.wan_rate=1.25 Gbit/s,3 Gbit/s"
    assert command.run([*WANTED, *(part for one in swept for part in ("--sweep", one))]) == 0
    assert "more before a cut than in 1F1B" in capsys.readouterr().out
    found = table(tmp_path / "run" / "figures" / "geopipe-distance.csv")
    times = load("run").groupby(["conditions.wan_rate", "wan_delay_s", "training.pipeline"]).completion_s.mean()
    assert len(found) == len(times) == 2 * 2 * 2
    for row in found:
        at = row["panel"].removeprefix("WAN bandwidth "), round(float(row["km"]) / 204e3, 9)
        of = {name: times[*at, name] for name in ("1f1b", "overlapped")}
        bubble = {name: 1 - 16 * 30e-3 / seconds for name, seconds in of.items()}
        assert float(row["iteration_s"]) == pytest.approx(of[row["pipeline"]], rel=1e-12)
        assert float(row["bubble_ratio"]) == pytest.approx(bubble[row["pipeline"]], rel=1e-12)
        if row["pipeline"] == "overlapped":
            saved = 100 * (1 - of["overlapped"] / of["1f1b"]), 100 * (1 - bubble["overlapped"] / bubble["1f1b"])
            written = row["iteration below 1f1b (%)"], row["bubble ratio below 1f1b (%)"]
            assert list(map(float, written)) == pytest.approx(saved, rel=1e-9)
    by_rate = table(tmp_path / "run" / "figures" / "geopipe-rate.csv")
    assert {float(row["wan_rate_gbps"]) for row in by_rate} == {1.25, 3.0}
    assert sorted(row["iteration_s"] for row in by_rate) == sorted(row["iteration_s"] for row in found)
    bars = table(tmp_path / "run" / "figures" / "geopipe-stages.csv")
    assert len(bars) == 2 * 4 * 2 * 16  # of the configurations that differ most
    bars = [bar for bar in bars if bar["setting"] == "0"]
    assert len(bars) == 4 * 2 * 16
    for gpu in ("g0", "g1", "g2", "g3"):
        own = [(float(bar["start_s"]), float(bar["end_s"]), bar["work"]) for bar in bars if bar["gpu"] == gpu]
        assert all(end <= start + 1e-12 for (_, end, _), (start, _, _) in pairwise(own))
        assert all(end - start == pytest.approx({"F": 10e-3, "B": 20e-3}[work]) for start, end, work in own)
    forwards = [(bar["gpu"], bar["micro_batch"]) for bar in bars if bar["work"] == "F"]
    assert len(set(forwards)) == 4 * 16
    events = json.loads((tmp_path / "run" / "figures" / "geopipe-timeline.json").read_text())["traceEvents"]
    named = Counter(event["name"] for event in events if event.get("cat") == "computation")
    assert named == {f"{what} {number}": 4 for what in ("forward", "backward") for number in range(16)}
    assert "geopipe-stages" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "delays", "numbers", "rings"),
    [
        ("geopipe", "1 us,9.8 ms", True, True),
        ("geopipe", "1 us,2 us", True, False),
        ("mine", "1 us,9.8 ms", False, False),
    ],
)
def test_a_published_result_is_drawn_for_its_own_scenario_alone(name, delays, numbers, rings, tmp_path, monkeypatch):
    """Rings mark where a saving is the published one; where none is, none are spoken of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text((PROJECT / "scenarios/geopipe.toml").read_text())
    swept = ["--sweep", f"conditions.wan_delay={delays}", "--sweep", "conditions.wan_rate=90 Gbit/s,99 Gbit/s"]
    assert command.run([name if name == "geopipe" else "mine.toml", *WANTED[1:], *swept]) == 0
    words = " ".join((tmp_path / "run" / "figures" / f"{name}-distance.svg").read_text().split())
    assert ("78.91" in words, "GeoPipe" in words, "rings are a fit" in words) == (numbers, numbers, rings)
    assert "bubble ratio saved" in words


@pytest.mark.parametrize(("rates", "scale"), [((1, 2.5, 10, 100), "log"), ((20, 40, 100), "linear")])
def test_rates_that_span_more_than_a_decade_are_not_squeezed_and_the_title_has_what_all_share(
    rates, scale, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = (PROJECT / "scenarios/geopipe.toml").read_text().partition("[sweep]")[0]
    swept = f"conditions.wan_rate = {json.dumps([f'{rate} Gbit/s' for rate in rates])}"
    swept += '\ntraining.pipeline = ["1f1b", "overlapped"]\n'
    text = text.replace("[conditions]", '[conditions]\nwan_delay = "50 ms"')
    Path("rates.toml").write_text(f"{text}[sweep]\n{swept}")
    assert command.run(["rates.toml", *WANTED[1:], "--no-report"]) == 0
    found = open_run("run")
    every = configurations_of(found)
    (axis,) = (one for one in AXES if one.name == "rate")
    drawn = iteration_times(axis, "rates", every, points_of(found, every)).figure
    assert {axes.get_xscale() for axes in drawn.axes} == {scale}
    title = " ".join(drawn.get_suptitle().split())
    assert title.startswith("Time of a training iteration 4 GPUs, ") and "50 ms" in title and "Gbit/s, " in title
    assert "wan rate" not in title and "overlapped" not in title


def test_every_training_job_gets_its_own_pipeline_diagram(tmp_path, monkeypatch):
    """Two jobs with GPU orders of their own; one begins later, one does two iterations of two replicas. Each diagram
    has the GPUs and computations of its job and ends within its time in jobs.parquet."""
    monkeypatch.chdir(tmp_path)
    jobs = (
        "{kind='training', name='late', ranks=[5, 1], start='40 ms'}, {kind='allgather', name='other'}, "
        "{kind='training', name='two', ranks=[0, 2, 4, 6], count=2}"
    )
    small = "training.replicas=2", "training.micro_batches=4", "training.across=pipeline", "run.modes=['base']"
    sets = [part for one in (f"job=[{jobs}]", *small) for part in ("--set", one)]
    assert command.run(["--engine", "model", "--collectives", "1", "--out", "run", *sets]) == 0
    took_s = pq.read_table("run/jobs.parquet").to_pandas().set_index("job").completion_s
    for name, gpus, count, start_s in (("late", ["g5", "g1"], 1, 0.04), ("two", ["g0", "g2", "g4", "g6"], 2, 0.0)):
        bars = table(tmp_path / "run" / "figures" / f"run-{name}-stages.csv")
        assert list(dict.fromkeys(bar["gpu"] for bar in bars)) == gpus
        assert len(bars) == len(gpus) * 4 * 2 * count
        assert all(bar["work"] in "FB" for bar in bars)
        assert min(float(bar["start_s"]) for bar in bars) == pytest.approx(start_s)
        assert max(float(bar["end_s"]) for bar in bars) - start_s <= took_s[name] * (1 + 1e-12)
    assert not (tmp_path / "run" / "figures" / "run-other-stages.csv").exists()
    assert not (tmp_path / "run" / "figures" / "run-stages.csv").exists()


def test_crossings_of_a_level_are_interpolated_between_the_neighbouring_points():
    assert crossings([0, 10, 20, 30], [1, 3, 5, 2], 4) == pytest.approx([15, 20 + 10 / 3])
    assert crossings([0, 10], [1, 3], 4) == []
