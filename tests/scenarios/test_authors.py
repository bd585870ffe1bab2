"""`run.py authors`: what it prints, which files it writes, and which arguments it refuses."""

import csv
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from scenarios.studies import harness
from scenarios.studies.authors import STUDY
from tests.conftest import PROJECT
from tests.fakes.commands import assert_refused, printed

main = partial(harness.main, STUDY)

FEW = ("--collectives", "40")


def test_the_output_folder_holds_the_printed_results_and_a_seed_repeats_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = printed(main, capsys, *FEW, "--seed", "3", "--out", str(tmp_path / "one"))
    assert json.loads((tmp_path / "one" / "authors.json").read_text()) == found
    assert (found["draws"], found["seed"], found["collectives"], found["wan_delay_s"]) == ("own", 3, 40, 1e-5)
    assert {row["published_s"] for row in found["totals"]} == {None}  # the published totals are of 100,000 collectives
    with (tmp_path / "one" / "figures" / "authors.csv").open() as file:
        rows = {(row["size_mb"], row["variation"], row["mode"]): row for row in csv.DictReader(file)}
    for line in found["sensitivity"]:
        for mode, gain in line["gain"].items():
            row = rows[str(line["size_mb"]), line["variation"], mode]
            assert (float(row["gain"]), float(row["total_s"])) == (gain["value"], line["total_s"][mode])
    assert {path.suffix for path in (tmp_path / "one" / "figures").iterdir()} == {".svg", ".png", ".csv"}
    provenance = json.loads((tmp_path / "one" / "provenance.json").read_text())
    assert provenance["command"][:4] == ["run.py", "authors", *FEW]
    assert printed(main, capsys, *FEW, "--seed", "3", "--out", str(tmp_path / "two")) == found
    assert printed(main, capsys, *FEW, "--seed", "4", "--out", str(tmp_path / "three")) != found


def test_published_totals_are_compared_only_for_the_same_collectives_and_wan_delay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.authors.study.PUBLISHED_COLLECTIVES", 40)
    for row in printed(main, capsys, *FEW, "--out", str(tmp_path / "same"))["totals"]:
        assert row["difference"] == pytest.approx(row["total_s"] / row["published_s"] - 1)
    found = printed(main, capsys, *FEW, "--wan-delay", "1 ms", "--out", str(tmp_path / "farther"))
    assert {row["difference"] for row in found["totals"]} == {None}


def test_printed_tables_contain_the_sizes_modes_and_variations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*FEW, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    for words in ("8 MB", "16 MB", "32 MB", "64 MB", "joint", "initial ring in rank order", "independent ports"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--collectives", "9"), "run.py authors: --collectives: 9; allowed: 10 to 1,000,000"),
        (("--seed", "-1"), "run.py authors: --seed: -1; allowed: 0 to"),
        (("--wan-delay", "far"), '"far" is not a delay'),
        (("--draws", "nowhere"), "run.py authors: nowhere cannot be read: No such file or directory"),
        (("--draws", "."), "run.py authors: . has no 0.pkl"),
        (("--out", "full"), "--out: full is not empty"),
    ],
)
def test_an_invalid_argument_is_refused_in_one_sentence_and_leaves_no_files(
    arguments: tuple[str, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert_refused(main, capsys, [*FEW, *arguments], sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]  # the command has left no files


def test_too_few_draws_and_unreadable_draws_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.pkl").touch()
    assert main(["--draws", str(tmp_path), *FEW]) == 2
    assert "has 12 draws; allowed: 41 or more" in capsys.readouterr().err
    assert main(["--draws", str(tmp_path), "--collectives", "11"]) == 2
    assert "0.pkl is not a pickle of plain data" in capsys.readouterr().err


def test_run_py_passes_its_arguments_to_the_authors_command() -> None:
    done = subprocess.run(
        [sys.executable, PROJECT / "scenarios" / "run.py", "authors", "--collectives", "1"],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "run.py authors: --collectives: 1; allowed: 10 to 1,000,000\n"
