"""A scenario as TOML: the same document, with arrays as people write them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.experiment import command
from scenarios.spec.toml_text import toml_text

BREAKS = "\n\r\x85\u2028"
KEYS = st.text("ab-[]{}\",= '" + BREAKS, min_size=1, max_size=4)
VALUES = st.recursive(
    st.integers(-9, 9) | st.booleans() | st.text("ab[]{},\"'\\= " + BREAKS, max_size=6) | st.text("c", max_size=70),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_the_text_is_that_of_the_document(document: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(document)) == document


def test_arrays_are_on_one_line_where_they_fit_and_always_in_inline_tables() -> None:
    long = [f"value number {number}" for number in range(9)]
    jobs = [[{"name": "a", "ranks": [0, 1], "size": "1 MB"}, {"name": "b", "ranks": [2, 3], "size": "2 MB"}]] * 2
    lines = toml_text({"gpus": [4, 4], "long": long, "table": {"job": jobs}}).splitlines()
    assert lines[0] == "gpus = [4, 4]"
    assert lines[1:11] == ["long = [", *(f'    "{one}",' for one in long)]
    row = '[{ name = "a", ranks = [0, 1], size = "1 MB" }, { name = "b", ranks = [2, 3], size = "2 MB" }]'
    assert lines[11:] == ["]", "", "[table]", "job = [", f"    {row},", f"    {row},", "]"]


def test_a_dry_run_breaks_no_list_in_an_inline_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = '{ name = "train", ranks = [2, 3, 6, 7], size = "60 MB", count = 4 }'
    (tmp_path / "mine.toml").write_text(
        f'[run]\nmodes = ["base"]\n[collective]\nkind = "allreduce"\n[sweep]\njob = [[{job}]]'
    )
    assert command.run(["mine.toml", "--engine", "model", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"job = [[{job}]]" in lines and 'modes = ["base"]' in lines
