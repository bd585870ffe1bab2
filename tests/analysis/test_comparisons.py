"""The comparisons in --json: they hold, alone and together, as Student's t says, and are those of the terminal."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from analysis.results import load
from analysis.statistics.comparisons import comparisons_of
from analysis.statistics.contests import Place, Setting, Value
from analysis.statistics.intervals import Series
from tests.fakes.commands import run

COUNT = 200


def series(share_off, t_value):
    """Times of 1 s, or so much shorter on average, with a deviation for which Student's t is `t_value`."""
    swing = np.tile([1.0, -1.0], COUNT // 2)
    deviation = share_off * COUNT**0.5 / (t_value * swing.std(ddof=1))
    return Series(np.arange(COUNT), 1.0 - share_off + deviation * swing)


def test_a_comparison_holds_alone_or_together_with_the_others_as_students_t_says():
    t_values = [1.0, 2.2, 2.7, 30.0]
    settings = [
        Setting(index=index, label=f"8 GPUs, {index} MB", kind="allgather", modes=("base", "wan"), baseline={},
                at=(Value("collective.chunk", f"{index} MB", float(index)),))
        for index in range(len(t_values))
    ]  # fmt: skip
    base = Series(np.arange(COUNT), np.ones(COUNT))
    times = {("model", Place(index, "base")): base for index in range(len(t_values))}
    times |= {("model", Place(index, "wan")): series(0.01, t_value) for index, t_value in enumerate(t_values)}
    found = [one.as_json() for one in comparisons_of(settings, times)]
    alone, together = (stats.t.ppf(1 - 0.025 / number, COUNT - 1) for number in (1, len(t_values)))
    assert 2.2 < together < 2.7  # so that one holds only by itself
    assert [one["holds"] for one in found] == [t_value > alone for t_value in t_values]
    assert [one["holds_together"] for one in found] == [t_value > together for t_value in t_values]
    assert {one["comparisons_together"] for one in found} == {len(t_values)}
    for one, t_value in zip(found, t_values, strict=True):
        assert (one["name"], one["over"], one["is_over_baseline"]) == ("wan", "base", True)
        half = 0.01 * alone / t_value
        assert [one["gain"], one["gain_low"], one["gain_high"]] == pytest.approx([0.01, 0.01 - half, 0.01 + half])


def test_a_comparison_without_an_interval_says_why_and_neither_holds_nor_not():
    settings = [Setting(index=0, label="", kind="allgather", modes=("base", "wan"), baseline={}, at=())]
    few = {("model", Place(0, mode)): Series(np.arange(3), np.full(3, 1.0 + index)) for index, mode in
           enumerate(("base", "wan"))}  # fmt: skip
    (one,) = [one.as_json() for one in comparisons_of(settings, few)]
    assert (one["name"], one["over"], one["mean_s"], one["over_mean_s"], one["gain"]) == ("wan", "base", 2.0, 1.0, -1.0)
    assert "too few collectives" in one["no_interval"]
    assert [one[name] for name in ("gain_low", "gain_high", "holds", "holds_together")] == [None] * 4


def test_the_comparisons_in_json_are_those_that_the_terminal_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("--engine", "model", "--modes", "base,ccl,wan", "--collectives", "400", "--no-report", "--out", "out")
    out = capsys.readouterr().out
    run("--resume", "out", "--json", "--no-report")
    found = json.loads(capsys.readouterr().out)["comparisons"]
    total_s = load("out").groupby("mode").completion_s.sum()
    for one in found:
        assert one["gain"] == pytest.approx(1 - total_s[one["name"]] / total_s[one["over"]])
        assert (one["mean_s"], one["over_mean_s"]) == pytest.approx(
            (total_s[one["name"]] / 400, total_s[one["over"]] / 400)
        )
    holds = {frozenset((one["name"], one["over"])): one["holds"] for one in found}
    assert len(holds) == len(found) == 3  # each pair once
    order = re.search(r"^model, .*: (\w+ [>~] \w+ [>~] \w+)$", out, re.MULTILINE)[1].split()
    for slower, sign, faster in (order[:3], order[2:]):
        assert holds[frozenset((faster, slower))] is (sign == ">")
    shown = re.findall(r"(-?[\d.]+)% \[(-?[\d.]+), (-?[\d.]+)\]", out)
    printed = sorted([float(each) / 100 for each in one] for one in shown)
    over_base = (one for one in found if one["is_over_baseline"])
    ends = sorted([one["gain"], one["gain_low"], one["gain_high"]] for one in over_base)
    assert np.array(ends) == pytest.approx(np.array(printed), abs=6e-4) and len(ends) == 2
