"""What ECMP alone would gain is told beside what re-routing gains, and equals a run with that routing."""

import math

import pytest

from analysis.statistics.answer import difference
from analysis.statistics.intervals import FEW, Interval
from scenarios.experiment.ecmp import EcmpGain, ecmp_gains, lines_of
from scenarios.spec.load import scenario_of
from tests.fakes.runs import answer, ended, rows

RUN = '[fabric]\nborder_routers = 3\n[collective]\nkind = "alltoall"\ncount = 300\n[run]\nmodes = ["base", "wan"]\n'


def test_the_gain_of_ecmp_is_that_of_a_run_with_it(tmp_path):
    (tmp_path / "both.toml").write_text(RUN)
    found = answer(tmp_path / "fixed", "both.toml", "--engine", "model")
    (told,) = found["ecmp"]
    answer(tmp_path / "ecmp", "both.toml", "--engine", "model", "--set", "fabric.routing=ecmp")
    means = [
        here[here["mode"] == "base"].completion_s.mean() for here in (rows(tmp_path / "fixed"), rows(tmp_path / "ecmp"))
    ]
    assert told["gain"] == pytest.approx(1 - means[1] / means[0], rel=1e-12) and told["gain"] > 0.2
    assert (told["setting"], told["collectives"]) == (0, 300)
    said, _ = ended("both.toml", "--engine", "model", "--out", tmp_path / "again", cwd=tmp_path)
    assert told["gain_low"] < told["gain"] < told["gain_high"]
    share = f"{told['gain'] * 100:.1f} % below base (95 % interval {told['gain_low'] * 100:.1f} to "
    assert f"ECMP alone, without re-routing, would be {share}" in said


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([(0.02, 0.01, 0.03)], "2.0 % below base (95 % interval 1.0 to 3.0 %)"),
        ([(-0.02, -0.03, -0.01)], "2.0 % above base (95 % interval 1.0 to 3.0 %)"),
        ([(0.001, -0.01, 0.02)], "not distinguishable from base (95 % interval of the gain -1.0 to 2.0 %)"),
        ([(0.0, 0.0, 0.0)], "equal to base"),
        ([(-0.008, math.nan, math.nan)], "0.8 % above base (too few collectives for an interval: 60 or more)"),
        (
            [(0.02, 0.01, 0.03), (0.05, 0.04, 0.06), (-0.01, -0.02, -0.005), (0.0, -0.01, 0.01)],
            "2.0 to 5.0 % below base (95 % intervals within 1.0 to 6.0 %) at 2, 1.0 % above base (95 % interval 0.5 to "
            "2.0 %) at 1, not distinguishable from base (95 % interval of the gain -1.0 to 1.0 %) at 1",
        ),
    ],
)
def test_gains_losses_and_what_cannot_be_told_have_sentences_of_their_own(gains, said):
    intervals = [Interval(value=v, low=low, high=high, why=FEW * math.isnan(low)) for v, low, high in gains]
    assert difference(intervals, "base") == said
    (_, line) = lines_of([EcmpGain(index, one, 60, index > 0) for index, one in enumerate(intervals)])
    assert line.startswith(f"ECMP alone, without re-routing, would be {said}")
    assert ("without faults" in line) == (len(gains) > 1)


@pytest.mark.parametrize(
    "text",
    [
        RUN.replace('"base", "wan"', '"base", "ccl"'),
        RUN.replace('"base", "wan"', '"wan"'),
        RUN.replace("border_routers = 3", "border_routers = 1"),
        RUN.replace("[fabric]", '[fabric]\nrouting = "spray"'),
        RUN.replace("[fabric]\nborder_routers = 3", "[fabric]\ngpus = [6]"),
    ],
)
def test_nothing_is_told_where_nothing_is_compared(text):
    (config,) = scenario_of(text).configurations()
    assert ecmp_gains([(0, config)]) == [] and list(lines_of([])) == []
