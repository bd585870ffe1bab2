"""The harness of studies, by the documented recipe: its table, its JSON, its figure, its errors."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scenarios.studies import harness
from tests.conftest import PROJECT

ASKED = ("--delays", "10 us,20 ms", "--collectives", "60", "--set", 'run.modes=["base", "joint"]')


@pytest.fixture(scope="module")
def study() -> harness.Study:
    """The study of docs/design.md, as it stands there."""
    (text,) = re.findall(r"```python\n(# delays\.py\n.*?)```", (PROJECT / "docs" / "design.md").read_text(), re.S)
    assert text.count("\n") <= 60
    names: dict[str, Any] = {}
    exec(text, names)
    found = names["STUDY"]
    assert isinstance(found, harness.Study)
    return found


def test_the_documented_study_prints_its_table_and_its_json_and_draws_its_figure(
    study: harness.Study, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert harness.main(study, [*ASKED, "--figure", str(tmp_path / "gains")]) == 0
    told = capsys.readouterr()
    heads, *rows = told.out.splitlines()
    assert heads.split("  ")[-1].strip() == "95 % interval" and len(rows) == 2
    assert told.err.splitlines() == [
        f"run.py delays: {tmp_path}/gains.{kind}" for kind in ("svg", "png", "csv", "json")
    ]
    assert harness.main(study, [*ASKED, "--json"]) == 0
    stored = (tmp_path / "gains.json").read_text()
    assert capsys.readouterr().out == stored
    gains = {row["setting"]: row["gain"] for row in json.loads(stored) if row["mode"] == "joint"}
    assert gains[1] < gains[0] / 2  # a delay that no mode avoids takes most of the time
    with (tmp_path / "gains.csv").open() as file:
        assert [float(row["y"]) for row in csv.DictReader(file)] == list(gains.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--delays", "far"], "run.py delays: sweep.conditions.wan_delay"),
        (["--set", "run.modes=wan"], "run.py delays: "),
        (["nowhere"], "run.py delays: "),
        (["--figure", "none/gains"], "run.py delays: "),
    ],
)
def test_an_error_of_a_study_is_a_sentence_after_its_name(
    study: harness.Study, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert harness.main(study, ["--collectives", "10", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(says) and told.err.count("\n") == 1
