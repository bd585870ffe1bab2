"""Knowledge that is measured: what messages tell of links, what is chosen by that, and that every choice replays."""

import json

import numpy as np
import pandas as pd
import pytest

from hosts.collectives.program import moves
from scenarios.engines.prediction import Expectations, decided, predicted_times
from scenarios.policies.conditions import conditions_of
from scenarios.policies.measured import at_ends, links_by_flow, links_passed
from scenarios.spec import ScenarioError
from scenarios.spec.load import load_scenario, scenario_of
from tests.fakes.runs import ended, rows

POLICIES = """
[conditions]
sampler = "markov"
mean_stay = 5
[collective]
count = {count}
emulated = {count}
[run]
modes = ["greedy", "calm"]
[[policy]]
name = "greedy"
reroute = "every 1"
reembed = "every 2"
knowledge = "measured ends"
[[policy]]
name = "calm"
reroute = "gain 0.1"
reembed = "gain 0.2"
knowledge = "measured ends"
"""


def setting_of(more="", count=30):
    (setting,) = scenario_of(POLICIES.format(count=count) + more).settings()
    return setting


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_messages_tell_the_slowest_link_of_their_way_and_nothing_of_other_links(grain):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"')
    conditions = conditions_of(setting)
    decisions = decided(setting, "base", conditions, start=0, count=5)
    links = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = predicted_times(setting, "base", decisions, conditions, start=0)
    for row, true_bps in enumerate(conditions.shared_bps(0, 5)):
        ends = {"sent_s": found.begins_s[:, row], "arrived_s": found.arrives_s[:, row]}
        seen_bps = at_ends(setting.workload, links[row], conditions.shared_delays_s, **ends)
        used = np.unique(links[row][links[row] >= 0])
        assert (~np.isnan(seen_bps)).nonzero()[0].tolist() == used.tolist()
        assert (seen_bps[used] <= true_bps[used] + 1).all()
        if grain == "logical":  # there each flow of a ring has its links to itself
            for passed in links[row]:
                passed = passed[passed >= 0]
                assert seen_bps[passed] == pytest.approx(np.full(passed.size, true_bps[passed].min()), rel=1e-9)


def test_two_flows_that_share_a_link_tell_its_rate_together():
    setting = setting_of("[fabric]\ngpus = [2, 2]\n[[job]]\nranks = [0, 2]\n[[job]]\nranks = [0, 2]")
    conditions = conditions_of(setting)
    decisions = decided(setting, "base", conditions, start=0, count=1)
    (links,) = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = predicted_times(setting, "base", decisions, conditions, start=0)
    ends = {"sent_s": found.begins_s[:, 0], "arrived_s": found.arrives_s[:, 0]}
    seen_bps = at_ends(setting.workload, links, conditions.shared_delays_s, **ends)
    (true_bps,) = conditions.shared_bps(0, 1)
    for passed in links:
        slowest = passed[passed >= 0][true_bps[passed[passed >= 0]].argmin()]
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=1e-9)


@pytest.mark.parametrize("mode", ["greedy", "calm"])
def test_however_the_work_is_cut_the_choices_are_the_same(mode):
    setting = setting_of()
    conditions = conditions_of(setting)
    whole = decided(setting, mode, conditions, start=0, count=30)
    again = setting_of(count=31)
    part = decided(again, mode, conditions_of(again), start=17, count=9)
    for name in ("placement", "path", "reembedded", "rerouted", "alpha_s", "beta_s"):
        assert (getattr(part, name) == getattr(whole, name)[17:26]).all()
    assert (whole.placement[1:] != whole.placement[:-1]).any(axis=1).sum() > 1


def test_before_anything_was_used_every_link_has_its_rate_in_the_long_run():
    setting = setting_of('[[policy]]\nname = "mean"\nreroute = "every 1"\nreembed = "every 2"\nknowledge = "mean"')
    found = [decided(setting, mode, conditions_of(setting), start=0, count=1) for mode in ("greedy", "mean")]
    assert found[0].placement.tolist() == found[1].placement.tolist()
    assert found[0].path.tolist() == found[1].path.tolist()


def test_measured_knowledge_beside_a_fault_is_refused():
    with pytest.raises(ScenarioError, match="measured ends, which is of links that keep working"):
        setting_of('[[fault]]\nat = "collective 3"\nwhat = "link s0b0-s1b0 down"\nfor = "1 collectives"')


def test_every_choice_of_the_testbed_replays_from_what_the_run_folder_has(tmp_path):
    (tmp_path / "measured.toml").write_text(POLICIES.format(count=10))
    said, _ = ended("measured.toml", "--engine", "emulation", "--json", "--out", tmp_path / "run", cwd=tmp_path)
    fidelity = json.loads(said)["fidelity"]
    assert (fidelity["collectives"], fidelity["drops"]) == (20, 0)
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).settings()
    conditions = conditions_of(setting)
    collectives, transfers = rows(tmp_path / "run"), pd.read_parquet(tmp_path / "run" / "transfers.parquet")
    for mode, here in collectives.groupby("mode"):
        expected, chosen = Expectations(setting, mode), set()
        for row in here.itertuples():
            found = expected.of(row.collective)
            assert found.placement.tolist() == list(row.ring)
            assert found.path.tolist() == list(row.paths)
            chosen.add((tuple(row.ring), tuple(row.paths)))
            ends = transfers[(transfers["mode"] == mode) & (transfers.collective == row.collective)]
            task = [move.task for move in moves(setting.carried, list(row.ring))]
            sent_s, arrived_s = np.empty((2, len(task)))
            sent_s[task], arrived_s[task] = ends.start_s, ends.end_s
            expected.saw(row.collective, sent_s=sent_s, arrived_s=arrived_s)
            (true_bps,) = conditions.shared_bps(row.collective, 1)
            ranks, paths = np.array([row.ring]), np.array([row.paths])
            (links,) = links_passed(setting.workload, ranks, paths, conditions, start=row.collective, spreads=False)
            seen_bps = at_ends(setting.workload, links, conditions.shared_delays_s, sent_s=sent_s, arrived_s=arrived_s)
            slowest_bps = [true_bps[passed[passed >= 0]].min() for passed in links]
            assert seen_bps[links[:, 0]] == pytest.approx(np.array(slowest_bps), rel=1e-3)
        assert len(chosen) > 2
