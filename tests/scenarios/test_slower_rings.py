"""Where a chosen ring is slower than that in rank order although all is known, the answer tells why."""

import pytest

from scenarios.api import load
from scenarios.experiment import command

SLOW = 'fault=[{at="collective 1",what="agent 1 slow 10x",for="3 collectives"}]'
EQUAL = ["--set", 'conditions.wan_rate="40 Gbit/s"', "--set", 'conditions.intra_rate="100 Gbit/s"', "--set", SLOW]
PLAIN = ["--engine", "model", "--gpus", "16", "--wan-delay", "5 ms", "--set", 'collective.size="256 MB"']
PLAIN += ["--set", "collective.reembed_every=1", "--no-report"]


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ([*EQUAL, "--collectives", "6", "--modes", "base,ccl"], True),
        ([*EQUAL, "--collectives", "6", "--modes", "base,ccl", "--set", "control.counted=true"], False),
        (["--collectives", "60", "--modes", "base,ccl,wan,joint"], False),
    ],
    ids=["ties", "counted", "drawn"],
)
def test_a_chosen_ring_that_is_slower_than_rank_order_is_explained(tmp_path, capsys, more, is_told):
    assert command.run([*PLAIN, "--set", 'collective.ring="cycle time"', *more, "--out", str(tmp_path / "run")]) == 0
    answer = " ".join(capsys.readouterr().out.split())
    mean_s = load(tmp_path / "run").groupby("mode").completion_s.mean()
    told = "ccl than base; a chosen ring has the least cycle time" in answer
    assert told is is_told
    if "counted" not in " ".join(more):
        assert bool(mean_s["ccl"] > mean_s["base"]) is is_told
