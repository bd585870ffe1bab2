"""The figure of periods: its table marks the period with the least mean time of every policy in the stored rows."""

import csv

import pytest

from analysis.results.reader import load
from scenarios.api import plot
from scenarios.experiment import command
from tests.fakes.stored import write_run


def test_the_periods_figure_marks_the_best_period_of_each_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wanted = ["--sweep", "collective.reembed_every=1,5,40", "--wan-delay", "10 us,10 ms", "--collectives", "200"]
    assert command.run(["policies", "--engine", "model", "--out", "run", *wanted]) == 0
    assert "oracle" in capsys.readouterr().out
    means = load("run").groupby(["wan_delay_s", "mode", "collective.reembed_every"]).completion_s.mean()
    with (tmp_path / "run" / "figures" / "policies-periods.csv").open() as file:
        found = list(csv.DictReader(file))
    delays = {"10 µs": 1e-5, "10 ms": 1e-2}
    assert len(found) == 2 * 5 * 3
    for row in found:
        of_policy = means[delays[row["panel"]], row["mode"]]
        assert float(row["mean_s"]) == pytest.approx(of_policy[int(row["period"])], rel=1e-12)
        if row["mode"] != "base":
            assert (row["best"] == "True") == (of_policy.idxmin() == int(row["period"]))
    best = {(row["panel"], row["mode"]): int(row["period"]) for row in found if row["best"] == "True"}
    assert best["10 µs", "oracle"] == 1
    assert best["10 ms", "oracle"] > 1  # new connections cost more than a new ring saves
    assert ("10 µs", "base") not in best
    assert (tmp_path / "run" / "figures" / "policies-periods.svg").exists()
    assert "policies-periods" in (tmp_path / "run" / "report.html").read_text()


def test_more_panels_than_are_drawn_are_told(tmp_path):
    sizes = [f"{number} MB" for number in range(1, 11)]
    overrides = {"fabric.gpus": 4, "run.modes": ["base", "ccl"], "sweep.collective.reembed_every": [1, 5]}
    run = write_run(tmp_path / "run", overrides=overrides | {"sweep.collective.chunk": sizes}, modelled=5, emulated=2)
    figure = plot(run, "periods")
    assert len(figure.axes) == 8
    assert "the first 8 of 10 panels" in figure.legends[0].get_title().get_text()
