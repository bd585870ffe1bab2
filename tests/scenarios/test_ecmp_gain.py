"""What ECMP alone would gain is told beside what re-routing gains, and equals a run with that routing."""

import pytest

from scenarios.experiment.ecmp import ecmp_gains, lines_of
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
    assert f"ECMP alone, without re-routing, would gain {told['gain'] * 100:.1f} % over base (timing model" in said


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
