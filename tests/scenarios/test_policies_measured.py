"""Policies in the testbed: its decisions match the plan, and its times match the model."""

import pandas as pd

from analysis.results import open_run
from tests.fakes.runs import answer, measured, rows

POLICIES = """
[fabric]
gpus = 4
[collective]
count = 10
emulated = 10
[run]
modes = ["base", "each", "gains", "inf", "kept"]
[[policy]]
name = "each"
reroute = "every 1"
reembed = "every 1"
knowledge = "stale 0"
[[policy]]
name = "gains"
reroute = "gain 0"
reembed = "gain 0"
[[policy]]
name = "inf"
reroute = "gain inf"
reembed = "gain inf"
[[policy]]
name = "kept"
reroute = "drift 0.45"
reembed = "gain 0.2"
knowledge = "ewma 0.3"
"""


def test_testbed_decisions_and_times_of_policies_match_the_plan(tmp_path):
    """The run fails if the testbed decides differently from the plan; the model runs all policies, the testbed 2."""
    (tmp_path / "policies.toml").write_text(POLICIES)
    answer(tmp_path / "all", "policies.toml", "--engine", "model")
    ends = {mode: here.completion_s.to_list() for mode, here in rows(tmp_path / "all").groupby("mode")}
    assert ends["each"] == ends["gains"] and ends["inf"] == ends["base"]
    some = ('run.modes=["gains", "kept"]',)
    measured(tmp_path / "run", "policies.toml", "--engine", "both", sets=some, collectives=20, p99=0.002)
    found = rows(tmp_path / "run")
    choices = found.groupby(["engine", "mode"])[["reembedded", "rerouted"]]
    acted = {key: here.to_numpy().tolist() for key, here in choices}
    assert all(acted["model", mode] == acted["emulation", mode] for mode in ("gains", "kept"))
    assert 0 < sum(map(any, acted["model", "kept"])) < 10


STRUCK = """
[fabric]
gpus = 4
[conditions]
sampler = "markov"
mean_stay = 3
[collective]
count = 8
chunk = "1 MB"
reembed_every = 3
[run]
modes = ["ends", "fourth", "ports"]
[[policy]]
name = "ends"
reroute = "gain 0.1"
reembed = "gain 0.1"
knowledge = "measured ends"
[[policy]]
name = "fourth"
reroute = "every 4"
knowledge = "stale 1"
[[policy]]
name = "ports"
reroute = "every 1"
reembed = "every 2"
knowledge = "measured ports"
measure_every = "100 us"
[[fault]]
at = "100 us into collective 1"
what = "link s0b0-s1b0 down"
for = "2 collectives"
[[fault]]
at = "100 us into collective 5"
what = "link s0b1-s1b1 down"
for = "3 collectives"
[[fault]]
at = "150 us into collective 5"
what = "agent 2 killed"
"""


def test_testbed_decisions_and_times_match_the_plan_under_link_and_agent_faults(tmp_path):
    """The run compares every decision of the testbed with the plan, and a difference would end it."""
    (tmp_path / "struck.toml").write_text(STRUCK)
    fidelity = answer(tmp_path / "run", "struck.toml", "--engine", "emulation")["fidelity"]
    found, struck = rows(tmp_path / "run"), open_run(tmp_path / "run").faults
    assert set(struck.outcome) == {"recovered"}
    assert struck.collectives_lost.groupby(struck.number).sum().to_dict() == {1: 0, 2: 0, 3: 3}  # one per mode
    kept = found[found["mode"] == "fourth"]
    # Every fourth, and after a cable was cut or repaired; the lost attempt at collective 5 counts as one collective
    # in the duration of the fault.
    assert kept.collective[kept.rerouted].tolist() == [0, 2, 3, 4, 5, 7]
    assert fidelity["collectives"] == 18 and abs(fidelity["median_ratio"] - 1) < 0.001
    counters = pd.read_parquet(tmp_path / "run" / "counters.parquet")
    # No rates are learnt from a collective during which a cable is cut.
    assert sorted(set(counters.collective)) == [0, 2, 3, 4, 6, 7]
