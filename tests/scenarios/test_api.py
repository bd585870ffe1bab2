"""The Python API: `run` returns the rows that the command stores, and `compare` gains as computed from these rows."""

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.results import load
from scenarios.api import ResultsError, RunError, ScenarioError, compare, plot, run, scenario
from scenarios.experiment.command import run as command

SHORT = ["--engine", "model", "--gpus", "6,8", "--modes", "joint,base", "--collectives", "120", "--no-report"]
VALUES = {"sweep.fabric.gpus": [6, 8], "run.modes": ["joint", "base"], "collective.count": 120}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folders `two` and `three`, which have that many border routers; `three` has more WAN paths."""
    folders = {name: tmp_path_factory.mktemp("runs") / name for name in ("two", "three")}
    assert command([*SHORT, "--out", str(folders["two"])]) == 0
    assert command([*SHORT, "--set", "fabric.border_routers=3", "--out", str(folders["three"])]) == 0
    return folders


def test_run_returns_the_rows_that_the_command_stores(stored: dict[str, Path]) -> None:
    rows, wanted = run(scenario("paper", VALUES), jobs=2), load(stored["two"])
    assert set(wanted.columns) == set(rows.columns)
    rows, wanted = (found.sort_values(["setting", "mode", "collective"]) for found in (rows, wanted))
    for column in wanted.columns:
        if column in ("ring", "paths"):
            assert [list(cell) for cell in rows[column]] == [list(cell) for cell in wanted[column]]
        else:
            np.testing.assert_array_equal(rows[column].to_numpy(), wanted[column].to_numpy(), err_msg=column)


@pytest.mark.parametrize(("against", "baseline"), [(None, "joint"), ("three", None), ("three", "base")])
def test_compare_computes_gains_over_pairs_of_the_same_collectives(
    stored: dict[str, Path], against: str | None, baseline: str | None
) -> None:
    found = compare(stored["two"], None if against is None else stored[against], baseline=baseline)
    mine, others = load(stored["two"]), load(stored[against or "two"])
    assert len(found) == 4
    for row in found.itertuples():
        times = mine[(mine.setting == row.setting) & (mine["mode"] == row.mode)].completion_s.to_numpy()
        least = others[(others.setting == row.setting) & (others["mode"] == row.baseline)].completion_s.to_numpy()
        assert row.baseline == (baseline or row.mode)
        assert row.gain == pytest.approx(1 - times.sum() / least.sum())
        assert (row.collectives, row.mean_s) == (120, pytest.approx(times.mean()))
        assert row.gain_low <= row.gain <= row.gain_high


def test_parts_and_copies_of_rows_are_taken_as_the_rows_and_share_their_settings(stored: dict[str, Path]) -> None:
    """Each column that Pandas takes would copy the settings of a whole sweep otherwise."""
    rows = load(stored["two"])
    (settings,) = rows.attrs.values()
    wanted = compare(rows, baseline="joint")
    for part in (rows.copy(), rows[rows.collective >= 0], rows.sort_values("collective", kind="stable")):
        assert all(one is settings for one in (*part.attrs.values(), *part["mode"].attrs.values()))
        pd.testing.assert_frame_equal(compare(part, baseline="joint"), wanted)
    pd.testing.assert_frame_equal(compare(pickle.loads(pickle.dumps(rows)), baseline="joint"), wanted)


def test_run_stores_what_the_command_stores(stored: dict[str, Path], tmp_path: Path) -> None:
    rows = run(scenario("paper", VALUES), out=tmp_path / "mine")
    wanted, kept = load(stored["two"]), load(tmp_path / "mine")
    key = ["setting", "mode", "collective"]
    for found in (rows, kept):
        pd.testing.assert_frame_equal(
            found.sort_values(key, ignore_index=True), wanted.sort_values(key, ignore_index=True), check_exact=True
        )
    assert {path.name for path in (tmp_path / "mine").iterdir()} >= {"summary.csv", "report.html", "scenario.toml"}
    assert (tmp_path / "mine" / "summary.csv").read_text() == (stored["two"] / "summary.csv").read_text()
    with pytest.raises(ValueError, match="mine is not empty; allowed: a new folder"):
        run(scenario("paper", VALUES), out=tmp_path / "mine")


def test_a_run_that_fails_leaves_no_folder_without_results(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(now):\n    return 1 / 0\n")
    values = {"policy": [{"name": "mine", "function": f"{tmp_path}/mine.py:mine"}], "run.modes": ["mine"]}
    with pytest.raises(RunError, match="division by zero"):
        run(scenario("paper", {**values, "collective.count": 5}), out=tmp_path / "out")
    assert not (tmp_path / "out" / "parts").exists()
    with pytest.raises(ValueError, match="is not a folder"):
        run(scenario("paper", VALUES), out=tmp_path / "mine.py" / "out")


@pytest.mark.parametrize("against", [None, "rows", "folder"])
def test_compare_takes_what_run_returned(stored: dict[str, Path], against: str | None) -> None:
    rows = run(scenario("paper", VALUES))
    other = {None: None, "rows": load(stored["three"]), "folder": stored["three"]}[against]
    wanted = compare(stored["two"], None if against is None else stored["three"], baseline="base")
    pd.testing.assert_frame_equal(compare(rows, other, baseline="base"), wanted, check_exact=True)
    with pytest.raises(ResultsError, match=r"allowed: rows as run\(\.\.\.\)"):
        compare(pd.DataFrame(rows.to_dict()), baseline="base")


def test_invalid_arguments_of_the_api_raise_an_error_with_the_reason(stored: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"collective\.chunk: .*8 GB/s"):
        scenario("paper", {"collective.chunk": "8 GB/s"})
    with pytest.raises(ValueError, match=r"has a \[program\], which only run.py can run"):
        run(scenario("paper", {"program.command": "true"}))
    with pytest.raises(ScenarioError, match=r"run\.seed: None is of the type NoneType; allowed: a whole number"):
        scenario("paper", {"run.seed": None})
    with pytest.raises(ValueError, match="allowed: a mapping of dotted keys"):
        scenario("paper", {1: 2})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match='"x" jobs; allowed: a whole number from 1'):
        run(scenario(), jobs="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"quantum.*model, emulation"):
        run(scenario(), "quantum")
    with pytest.raises(ValueError, match=r"against.*baseline"):
        compare(stored["two"])
    with pytest.raises(ResultsError, match='has no mode "ccl"; allowed: joint, base'):
        compare(stored["two"], baseline="ccl")
    with pytest.raises(ResultsError, match=str(tmp_path)):
        compare(tmp_path, baseline="base")
    assert command(["--engine", "model", "--collectives", "5", "--out", str(tmp_path / "other")]) == 0
    with pytest.raises(ResultsError, match="sweep"):
        compare(stored["two"], tmp_path / "other")


def test_plots_are_figures_of_rows_and_folders_and_other_kinds_are_refused_with_those_that_there_are(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    one = scenario(values={"collective.count": 30, "conditions.sampler": "ar1", "run.modes": ["base", "joint"]})
    rows = run(one)
    (top, *_), picture = plot(rows).axes, plot(rows)._repr_png_()
    assert "mean time" in top.get_ylabel() and picture.startswith(b"\x89PNG")
    assert "number of the AllGather" in plot(rows, "over_time").axes[-1].get_xlabel()
    run(one, out="kept")
    assert {type(plot("kept", kind)) for kind in ("comparison", "cdf", "timeline", "over_time")} == {type(plot(rows))}
    with pytest.raises(ValueError, match='the frame has no figure "fidelity"; allowed: comparison, cdf, over_time'):
        plot(rows, "fidelity")
    with pytest.raises(ValueError, match="3 is not a figure of the kind cdf; allowed: 0 to 0"):
        plot(rows, "cdf", number=3)
    with pytest.raises(ResultsError, match="nowhere"):
        plot("nowhere")


GOAL = "num_ranks 2\nrank 0 {{\nl1: send {size}b to 1 tag 0\n}}\nrank 1 {{\nl1: recv {size}b from 0 tag 0\n}}\n"
TRACE = "time,link,rate\n" + "".join(
    f"{second},{link},{{rate}} Gbit/s\n" for second in range(3) for link in ("s0b0>s1b0", "s1b0>s0b0")
)
POLICY = "def mine(now):\n    return {always}, {always}\n"
EDITED: dict[str, tuple[dict[str, object], str]] = {
    "schedule": ({"collective.kind": "messages", "collective.schedule": "FILE", "fabric.gpus": [1, 1]}, GOAL),
    "job": ({"job": [{"name": "one", "kind": "messages", "schedule": "FILE", "ranks": [0, 4]}]}, GOAL),
    "trace": ({"conditions.sampler": "trace", "conditions.trace": "FILE", "fabric.border_routers": 1}, TRACE),
    "policy": ({"policy": [{"name": "mine", "function": "FILE:mine"}], "run.modes": ["mine"]}, POLICY),
}


@pytest.mark.parametrize("kind", EDITED)
def test_a_file_that_is_edited_between_two_runs_is_read_again(tmp_path: Path, kind: str) -> None:
    """The oracle is another file with the new contents, which nothing has been remembered of."""
    values, text = EDITED[kind]

    def times(file: str) -> list[float]:
        of_file = json.loads(json.dumps(values).replace("FILE", str(tmp_path / file)))
        return run(scenario("paper", {"run.modes": ["base"], "collective.count": 3, **of_file})).completion_s.tolist()

    def write(file: str, *, is_new: bool) -> None:
        given = {"size": 4_000_000, "rate": 10, "always": True} if is_new else {"size": 900, "rate": 5, "always": False}
        (tmp_path / file).write_text(text.format(**given))

    write("edited.x", is_new=False)
    before = times("edited.x")
    assert times("edited.x") == before
    write("edited.x", is_new=True)
    write("other.x", is_new=True)
    assert times("edited.x") == times("other.x") != before


def test_a_scenario_that_was_loaded_before_reads_an_edited_file_again(tmp_path: Path) -> None:
    (tmp_path / "a.goal").write_text(GOAL.format(size=900))
    values = {"collective.kind": "messages", "collective.schedule": str(tmp_path / "a.goal"), "fabric.gpus": [1, 1]}
    loaded = scenario("paper", {"run.modes": ["base"], "collective.count": 1, **values})
    (before,) = run(loaded).completion_s
    (tmp_path / "a.goal").write_text(GOAL.format(size=4_000_000))
    (after,) = run(loaded).completion_s
    assert after > before
