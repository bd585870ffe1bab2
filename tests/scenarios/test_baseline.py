"""--baseline of a swept key: what competes then, and which baselines exclude each other."""

import json
from pathlib import Path

import pytest

from analysis.results import load
from scenarios.experiment import command

SWEPT = ["--sweep", "collective.algorithm=ring,hierarchical", "--gpus", "4", "--set", "collective.pieces=1"]


def test_a_baseline_of_a_swept_key_makes_its_values_compete_in_each_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--engine", "model", "--collectives", "80", "--modes", "base,wan", *SWEPT, "--no-report"]
    named = ["--baseline", "algorithm=hierarchical", "--out", str(tmp_path / "run")]
    assert command.run([*run, *named, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    means = load(tmp_path / "run").groupby(["setting", "mode"]).completion_s.mean()
    assert [(point["mode"], point["baseline"]) for point in points] == [
        *(("base", "hierarchical"), ("wan", "hierarchical")),
        *(("base", None), ("wan", None)),
    ]
    for number, point in enumerate(points):
        own, other = means[number // 2, point["mode"]], means[1, point["mode"]]
        assert point["gain"] == pytest.approx(1 - own / other, abs=1e-9)
    assert command.run([*run, *named[:2], "--out", str(tmp_path / "again")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ring and hierarchical compared over 80 AllGathers each (timing model) in base and wan")
    assert "compared, slowest first" in said and "the modes, slowest first" not in said


@pytest.mark.parametrize(("modes", "status"), [("base,wan", 2), ("base", 0)])
def test_of_modes_and_swept_values_only_one_can_have_a_baseline(
    modes: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--baseline", "mode=base", "--baseline", "algorithm=ring"]
    assert command.run(["--dry-run", "--engine", "model", "--modes", modes, *SWEPT, *named]) == status
    assert ("only one of them can compete" in capsys.readouterr().err) == (status == 2)


def test_a_baseline_of_delays_counts_beside_a_swept_algorithm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--sweep", "conditions.wan_delay=1 ms,2 ms", "--baseline", "wan_delay=2 ms", "--out", str(tmp_path / "r")]
    run = ["--engine", "model", "--collectives", "80", "--modes", "base", *SWEPT, "--no-report", "--json"]
    assert command.run([*run, *sizes]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert {point["baseline"] for point in points} == {None, "2 ms"}
