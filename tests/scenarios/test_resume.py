"""Interrupted and resumed runs: no finished point is lost, no row is duplicated, and the final results are the same.

LONGHAUL_KILLS=20 sets the number of kills; the few kills by default are enough for everyday changes.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.results.reader import ResultsError, load, open_run, read_provenance
from scenarios.experiment import command
from scenarios.experiment.run_folder import RunFolder
from tests.conftest import AS_NOBODY
from tests.fakes.processes import await_that
from tests.fakes.runs import KEY, ended, rows, started

KILLS = int(os.environ.get("LONGHAUL_KILLS", "0"))
MODEL = ["--no-report", "fig4a", "--engine", "model", "--collectives", "30000", "--chunk", "8 MB,16 MB", "--jobs", "2"]
EMULATION = [
    "--no-report",
    "--engine",
    "both",
    "--gpus",
    "4",
    "--modes",
    "base,joint",
    "--collectives",
    "12",
    "--jobs",
    "2",
]


def is_run(folder):
    try:
        read_provenance(folder)
    except ResultsError:
        return False
    return True


def killed(*arguments, folder, cwd, after_s, there=is_run):
    """Run the command, and kill it with all its processes by kill -9 `after_s` seconds after `there(folder)` is true.

    Return whether it was killed before it ended, and its error output.
    """
    with started(*arguments, cwd=cwd) as process:
        await_that(lambda: there(folder) or process.poll() is not None, 120)
        try:
            _, said = process.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
            return True, said
        assert process.returncode == 0, said
        return False, said


def assert_finished_points_are_there(said, folder):
    """Assert that the folder has all rows of every point printed as finished; return the number of such points."""
    there = load(folder)
    settings = {setting["label"]: setting["setting"] for setting in open_run(folder).settings}
    pattern = r"\[[0-9/]+\] (\w+), (.*), (\w+): ([0-9,]+) of "
    finished = re.findall(pattern, "\n".join(line for line in said.splitlines() if ", mean " in line))
    for engine, label, mode, count in finished:
        is_its = (there.engine == engine) & (there.setting == settings[label]) & (there["mode"] == mode)
        assert sorted(there[is_its].collective) == list(range(int(count.replace(",", ""))))
    return len(finished)


def assert_kept(before, after):
    """Assert that every earlier row still exists, with the same completion time."""
    both = before.merge(after, on=KEY, suffixes=("", "_after"), how="left")
    assert both.completion_s.equals(both.completion_s_after)


def cut_short(arguments, *, kills, tmp_path, longest_s, seed):
    """Kill runs `kills` times in all, resuming each until it is complete; return their folders."""
    dice = random.Random(seed)
    folders, before = [], pd.DataFrame()
    done = 0
    while done < kills or before is not None:
        new = not folders or before is None
        if new:
            folders.append(tmp_path / f"run{len(folders)}")
        wanted = [*arguments, "--out", folders[-1]] if new else ["--resume", folders[-1], "--no-report", "--jobs", "2"]
        after_s = dice.uniform(0, longest_s) if done < kills else 600
        was_killed, said = killed(*wanted, folder=folders[-1], cwd=tmp_path, after_s=after_s)
        assert_finished_points_are_there(said, folders[-1])
        after = rows(folders[-1])
        if not new and before is not None and len(before):
            assert_kept(before, after)
        before = after if was_killed else None
        done += was_killed
    return folders


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The folder of a model run that was never interrupted."""
    path = tmp_path_factory.mktemp("uncut")
    ended(*MODEL, "--out", "whole", cwd=path)
    return path / "whole"


def test_a_model_run_killed_at_random_instants_resumes_to_identical_results(tmp_path, uncut):
    whole = rows(uncut)
    assert len(whole) == 8 * 30_000
    for folder in cut_short(MODEL, kills=KILLS or 3, tmp_path=tmp_path, longest_s=1.2, seed=1):
        assert rows(folder).equals(whole)
        assert (folder / "summary.csv").read_bytes() == (uncut / "summary.csv").read_bytes()
        assert not (folder / "parts").exists()


def has_measured(folder):
    return any(folder.glob("parts/emulation-*.collectives.parquet"))


def test_an_emulation_killed_while_it_measures_resumes_to_identical_times(tmp_path):
    ended(*EMULATION, "--out", "whole", cwd=tmp_path)
    whole = rows(tmp_path / "whole")
    measuring = tmp_path / "measuring"
    one_by_one = [*EMULATION, "--jobs", "1", "--out", measuring]
    assert killed(*one_by_one, folder=measuring, cwd=tmp_path, after_s=0.5, there=has_measured)[0]
    before = rows(measuring)
    assert (before.engine == "emulation").any() and len(before) < len(whole)
    ended("--resume", measuring, "--no-report", cwd=tmp_path)
    assert_kept(before, rows(measuring))
    more = cut_short(EMULATION, kills=KILLS, tmp_path=tmp_path, longest_s=12, seed=2) if KILLS else []
    for folder in [measuring, *more]:
        found = rows(folder)
        for column in whole.columns.drop("reconfigure_s"):
            assert found[column].equals(whole[column]), column
        # The number of clock reads in controller and switches differs between boots, by some 0.1 ms of time.
        np.testing.assert_allclose(found.reconfigure_s, whole.reconfigure_s, rtol=0.1, atol=1e-3)
        transfers = open_run(folder).transfers
        assert not transfers.duplicated(["mode", "collective", "step", "src"]).any()
        assert len(transfers) == 2 * 12 * 3 * 4


def test_resuming_a_complete_run_prints_its_results_again_and_changes_no_file(tmp_path):
    out, _ = ended("--engine", "model", "--collectives", "20", "--json", "--out", "run", cwd=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again, said = ended("--resume", "run", "--json", cwd=tmp_path)
    assert json.loads(again) == json.loads(out)
    assert said == "run.py: run is complete: nothing is left to run\n"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of a run that was interrupted before any point was complete."""
    path = tmp_path_factory.mktemp("interrupted")
    arguments = ["fig4a", "--engine", "model", "--collectives", "1000000", "--jobs", "1", "--out", "run"]
    with started(*arguments, cwd=path) as process:
        await_that(lambda: any(path.glob("run/parts/[!.]*")))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "resume with --resume run\n" in said
    assert len(load(path / "run")) > 0
    return path / "run"


@pytest.fixture
def unfinished(interrupted, tmp_path, monkeypatch):
    shutil.copytree(interrupted, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fig4a", "--seed", "2"], "--resume: run.seed: 2 is requested, but the folder has 1"),
        (["--seed", "2"], "--resume: run.seed: 2 is requested, but the folder has 1"),
        (["--set", "fabric.wan=five-router"], 'fabric.wan: "five-router" is requested, but the folder has "mesh"'),
        (["fig4b", "--collectives", "1000000"], "--resume: name: "),
        (["--engine", "both"], "--engine: model and emulation is requested, but the folder has model"),
        (["--out", "other"], "--out: cannot be combined with --resume"),
    ],
)
def test_resuming_with_different_options_is_refused_and_the_difference_is_named(unfinished, capsys, arguments, says):
    before = contents(unfinished)
    assert command.run([*arguments, "--resume", "run"]) == 2
    assert says in capsys.readouterr().err
    assert contents(unfinished) == before


def test_a_foreign_or_damaged_run_folder_is_refused_in_one_sentence(unfinished, capsys):
    def refused(folder, says, status):
        assert command.run(["--resume", folder]) == status
        said = capsys.readouterr().err
        assert says in said and "Traceback" not in said and len(said.splitlines()) <= 2

    Path("foreign").mkdir()
    for name in ("foreign", "nowhere"):
        refused(name, f"--resume: {name} is not a run folder", 2)
    part = max(unfinished.glob("parts/*"))
    whole = part.read_bytes()
    part.write_bytes(whole[:4000] + b"????" + whole[4004:])
    refused("run", f"{part.name} is damaged", 1)
    part.write_bytes(whole)
    (unfinished / "points").mkdir()
    refused("run", "run was left unfinished by an earlier version", 1)
    (unfinished / "points").rmdir()
    known = (unfinished / "provenance.json").read_text()
    for text, says in (
        (known.replace('"format": 1', '"format": 9'), "is of format 9, which is newer than this version reads"),
        (known[: len(known) // 2], "provenance.json is damaged"),
        (known.replace('"model"', '"magic"'), "its provenance does not match its scenario"),
        (known.replace('"model"', "{}"), "its provenance does not match its scenario"),
        (known.replace('"resumed": [', '"resumed": 1, "before": ['), "its provenance does not match its scenario"),
    ):
        assert text != known
        (unfinished / "provenance.json").write_text(text)
        refused("run", says, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [("values", []), ("values", {}), ("columns", "x"), ("columns", {"other": 1}), ("jobs", None), ("jobs", [{}])],
)
def test_settings_that_do_not_match_the_scenario_are_refused_in_one_sentence(unfinished, capsys, key, value):
    settings = json.loads((unfinished / "settings.json").read_text())
    settings[0][key] = value
    (unfinished / "settings.json").write_text(json.dumps(settings))
    assert command.run(["--resume", "run"]) == 1
    assert capsys.readouterr().err == "run.py: run/settings.json is damaged: it does not match scenario.toml\n"


def test_rows_never_get_another_seed_from_edited_settings(unfinished, capsys):
    settings = json.loads((unfinished / "settings.json").read_text())
    settings[0]["values"]["run.seed"] += 1
    (unfinished / "settings.json").write_text(json.dumps(settings))
    assert command.run(["--resume", "run"]) == 1
    assert "settings.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "is_ours"),
    [
        ((".provenance.json.new", "scenario.toml", ".settings.json.new"), True),
        (("scenario.toml",), False),
        ((".provenance.json.new", "notes.txt"), False),
        (("parts/model-0000-base.parquet",), False),
    ],
)
def test_only_the_remains_of_a_run_killed_before_its_start_are_overwritten(tmp_path, monkeypatch, there, is_ours):
    monkeypatch.chdir(tmp_path)
    for name in there:
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "run" / name).write_text("mine")
    assert command.run(["--resume", "run"]) == 2
    assert command.run(["--engine", "model", "--collectives", "5", "--no-report", "--out", "run"]) == 2 * (not is_ours)
    if is_ours:
        assert len(rows("run")) == 4 * 5 and not list(Path("run").glob(".*"))
    else:
        assert contents(tmp_path / "run") == {tmp_path / "run" / name: b"mine" for name in there}


def test_two_runs_into_one_folder_are_refused(unfinished, capsys):
    with closing(RunFolder(unfinished)):
        assert command.run(["--resume", "run"]) == 2
        assert capsys.readouterr().err == "--resume: run is being written to by another run; allowed: one at a time\n"
    place = RunFolder.new(Path("new"))
    assert command.run(["--engine", "model", "--out", "new"]) == 2
    assert "--out: new is being written to by another run" in capsys.readouterr().err
    place.close()


def test_a_folder_is_free_once_closed_although_a_forked_process_lives_on(tmp_path):
    with closing(RunFolder(tmp_path)):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        RunFolder(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_full_disk_ends_a_run_in_one_sentence_and_it_resumes_once_there_is_room(tmp_path, uncut):
    arguments = ["--no-report", "fig4a", "--engine", "model", "--collectives", "30000", "--chunk", "8 MB"]

    def full():  # the rows of mode base, all with one ring, fit into it; those of joint do not
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    _, said = ended(*arguments, "--jobs", "1", "--out", "run", cwd=tmp_path, status=1, preexec_fn=full)
    assert said.splitlines()[-2:] == [
        "run.py: run cannot be written to: File too large",
        "run.py: the results so far are kept; resume with --resume run",
    ]
    assert_finished_points_are_there(said, tmp_path / "run")
    assert len(rows(tmp_path / "run")) > 0
    ended("--resume", "run", "--no-report", cwd=tmp_path)
    whole = rows(uncut)
    assert rows(tmp_path / "run").equals(whole[whole.setting == 0].reset_index(drop=True))


def test_an_unwritable_folder_is_refused_in_one_sentence(interrupted):
    # pytest makes its own temporary folders inaccessible to other users, repeatedly.
    home = Path(tempfile.mkdtemp(prefix="longhaul-test-"))
    folder = home / "run"
    shutil.copytree(interrupted, folder)
    for path in [home, folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        _, said = ended("--resume", "run", cwd=home, status=2, **AS_NOBODY)
        assert said == "--resume: run cannot be written to: Permission denied\n"
        _, said = ended("--engine", "model", "--out", "run/new", cwd=home, status=2, **AS_NOBODY)
        assert said == "--out: run/new cannot be written to: Permission denied\n"
    finally:
        for path in [home, folder, folder / "parts"]:
            path.chmod(0o755)
        shutil.rmtree(home)
