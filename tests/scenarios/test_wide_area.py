"""Collectives with a time budget, and the bundled scenarios of an AllReduce between two sites."""

import csv
import json
from pathlib import Path

import pytest

from analysis.figures.__main__ import draw
from analysis.results.reader import open_run
from scenarios.engines.model import Model
from scenarios.experiment import command
from scenarios.spec.load import load_scenario
from tests.fakes.commands import times
from tests.fakes.runs import answer, ended
from tests.fakes.stored import write_run


@pytest.mark.parametrize("name", ["wide-area", "wide-area-flows"])
def test_the_modelled_time_of_a_pair_equals_the_alpha_beta_closed_form(name: str) -> None:
    """A ring of two ranks transfers two halves one after the other, each with the delay of the WAN."""
    settings = load_scenario(name).configurations()
    found = times(settings, Model())
    assert len(settings) == {"wide-area": 36, "wide-area-flows": 24}[name]
    for place, one in enumerate(settings):
        wan_s, rate_bps = one.conditions.wan_delay_s, one.conditions.wan_rate_bps[0]
        assert found[place, "base"] == pytest.approx(2 * (wan_s + 150e6 * 8 / rate_bps), rel=2e-4)


def test_an_allreduce_fits_its_budget_at_line_rate_but_not_in_tcp_slow_start(tmp_path: Path) -> None:
    """A tenth of the bytes, 15 MB a half. In slow start, n round trips carry 10 (2^n - 1) segments of 8,948 bytes: the
    last segments of the first half leave after seven round trips, and the second half takes at most two more."""
    sweep = ["--sweep", "conditions.wan_delay=20 ms", "--sweep", "conditions.wan_rate=25 Gbit/s"]
    sweep += ["--sweep", "transport.congestion_control=cubic"]
    values = ["collective.size=30 MB", "collective.budget=290 ms"]
    found = answer(tmp_path / "run", "wide-area", "--engine", "emulation", *sweep, sets=values, report=True)
    fast, slow = found["points"]
    assert fast["mean_s"] == pytest.approx(2 * (20e-3 + 15e6 * 8 / 25e9), rel=0.01)
    assert 7 * 40e-3 + 20e-3 < slow["mean_s"] < 7 * 40e-3 + 20e-3 + 3 * 40e-3
    assert (fast["fitting"], slow["fitting"]) == (1, 0)
    assert fast["spare_s"] == pytest.approx(0.29 - fast["mean_s"]) and slow["spare_s"] == 0.29 - slow["mean_s"] < 0
    rows = list(csv.DictReader((tmp_path / "run/figures/wide-area-budget.csv").open()))
    assert {row["transport.line_rate"]: row["fitting"] for row in rows} == {"at line rate": "1", "in slow start": "0"}
    said = ended("--resume", tmp_path / "run", cwd=tmp_path)[0]
    assert f"290 ms: mean fits, {fast['spare_s'] * 1e3:,.3f} ms left" in said
    assert f"290 ms: mean does not fit, {-slow['spare_s'] * 1e3:,.3f} ms late" in said


def test_collectives_within_the_budget_are_counted_for_each_swept_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = ["--engine", "model", "--collectives", "200", "--modes", "base,joint", "--no-report", "--out", "run"]
    wanted += ["--sweep", "collective.budget=1 us,15 ms,1 s", "--chunk", "8 MB"]
    assert command.run([*wanted, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    stored = open_run(tmp_path / "run").collectives.groupby(["setting", "mode"]).completion_s
    for point in points:
        times_s = stored.get_group((point["setting"], point["mode"]))
        assert point["fitting"] == (times_s <= point["budget_s"]).sum()
        assert point["spare_s"] == pytest.approx(point["budget_s"] - times_s.mean())
    assert [point["fitting"] for point in points[:2]] == [0, 0]
    assert [point["fitting"] for point in points[4:]] == [200, 200] and 0 < points[2]["fitting"] < 200
    assert command.run(["--resume", "run", "--no-report"]) == 0
    said = capsys.readouterr().out
    assert f"; {points[2]['fitting']} of 200 fit" in said and "1 us: mean does not fit, " in said
    assert "late; none fits" in said and "left; all fit" in said
    (line, *_) = (tmp_path / "run/summary.csv").read_text().splitlines()
    assert {"budget_s", "spare_s", "fitting"} <= {*line.split(",")}


def test_the_budget_figure_has_every_point_and_is_drawn_only_with_a_budget(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", modelled=5, emulated=5)
    assert not [path for path in draw(plain) if path.stem.endswith("-budget")]
    sweep = {"sweep.transport.line_rate": [True, False], "sweep.conditions.wan_delay": ["1 ms", "2 ms"]}
    folder = write_run(tmp_path / "run", overrides=sweep | {"collective.budget": "12 ms"}, modelled=5, emulated=5)
    assert [path.suffix for path in draw(folder) if path.stem == "paper-budget"] == [".svg", ".png", ".csv"]
    rows = list(csv.DictReader((folder / "figures/paper-budget.csv").open()))
    assert len(rows) == 2 * 2 * 2 * 4  # TCP starts, delays, engines and modes
    for row in rows:
        assert float(row["least_s"]) <= float(row["mean_s"]) <= float(row["most_s"])
        assert float(row["spare_s"]) == pytest.approx(12e-3 - float(row["mean_s"]))
    text = (folder / "figures/paper-budget.svg").read_text()
    assert all(words in text for words in ("start in slow start", "joint", "model", "budget"))
