"""What a fault cost, in words, and the costs that the model predicts for points that are not measured."""

import math
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.figures.faults_in_force import of_point
from analysis.figures.run_points import configurations_of
from analysis.report.__main__ import _by_collective
from analysis.results.reader import open_run
from analysis.results.rows import Point
from analysis.statistics.contests import Setting
from analysis.statistics.fault_costs import (
    FaultCost,
    FaultResult,
    attempts_sentence,
    cost_words,
    fault_costs_sentence,
    faults_by_point,
    pooled_costs,
    predicted_attempts_sentence,
)
from analysis.statistics.fault_outcomes import NOT_IN_RUN, as_before, fault_outcomes
from analysis.statistics.without_faults import mean_without_s
from scenarios.engines.base import FaultOutcome
from scenarios.engines.model import Model, with_counted_faults
from scenarios.experiment import fault_results
from scenarios.experiment.fault_results import as_record, heading, predicted_faults, with_errors
from scenarios.experiment.run_files import RunFiles
from scenarios.experiment.run_folder import RunFolder
from scenarios.experiment.run_paragraphs import around_failures
from scenarios.spec.faults import Fault
from scenarios.spec.load import scenario_of
from tests.fakes.runs import answer, ended
from topologies.units import format_delay

DOWN = FaultResult(number=1, what="link s0b0-s1b0 down", at_collective=1204, outcome="recovered")
RUN = '[fabric]\nborder_routers = 3\n[collective]\ncount = 40\n[run]\nmodes = ["base", "joint"]\n'
LINK = '[[fault]]\nat = "collective 4"\nwhat = "link s0b0-s1b0 down"\nfor = "3 collectives"\n'
ONE_CABLE = '[fabric]\nborder_routers = 1\n[fabric.wan]\nlinks = [["s0b0", "s1b0", {rate = "9 Gbit/s"}]]\n'
STAYS = '[[fault]]\nat = "collective 12"\nwhat = "agent 1 slow 10x"\n'
LEAF = '[[fault]]\nat = "collective 20"\nwhat = "switch s0l0 down"\nfor = "2 collectives"\n'
WITHIN = '[[fault]]\nat = "1 ms into collective 30"\nwhat = "link s0b0-s1b0 down"\nfor = "2 collectives"\n'


def having(**values):
    return FaultResult(**{**DOWN.__dict__, **values})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (having(recovered_s=0.012, cost_s=0.0105), "recovered after 12 ms, cost 10.5 ms"),
        (having(recovered_s=1e-6, cost_s=0.0983287), "recovered after 1 us, cost 98.33 ms"),
        (having(recovered_s=0.0, cost_s=2.5), "recovered within 1 us, cost 2.5 s"),
        (
            having(recovered_s=1e-6, cost_s=-0.021117, error_s=1e-5),
            "recovered after 1 us, cost -21.12 ms (negative: the other paths happened to be faster)",
        ),
        (
            having(recovered_s=1e-6, cost_s=-9e-6, error_s=1e-5),
            "without effect on the time, cost about 0",
        ),
        (having(what="agent 1 slow 2x", cost_s=9e-6, error_s=1e-5), "recovered, cost about 0"),
        (having(recovered_s=1e-6, cost_s=11e-6, error_s=1e-5), "recovered after 1 us, cost 11 us"),
        (having(outcome="masked"), "masked"),
        (having(outcome="masked", cost_s=1e-12), "masked, cost about 0"),
        (
            having(what="link s0b0-s1b0 loss 1 %", outcome="masked", cost_s=0.0376),
            "masked: TCP alone makes up for losses, cost 37.6 ms",
        ),
        (
            having(what="agent 1 slow 10x", outcome="masked", cost_s=0.02),
            "masked: nothing failed, links were slower, cost 20 ms",
        ),
        (having(outcome="predicted", cost_s=0.02), "predicted cost 20 ms"),
        (
            having(outcome="predicted", cost_s=0.02, collectives=10_000),
            "predicted cost 20 ms in the first 10,000 collectives that it hits",
        ),
        (
            having(outcome="not predicted"),
            "not predicted, as the model has no time of detection, losses or failed attempts",
        ),
    ],
)
def test_each_outcome_has_its_words(fault, said):
    assert fault.words == f"{fault.what} in collective 1,204: {said}"


def test_only_other_paths_explain_a_negative_cost():
    assert having(what="agent 1 killed", cost_s=-0.01).words.endswith("recovered, cost -10 ms (negative)")


def times_s(text, mode):
    """Return the model's times of all collectives of a scenario in one mode."""
    parts = [part for part in Model().run(scenario_of(text).configurations()) if part.mode == mode]
    return np.concatenate([part.rows.completion_s for part in sorted(parts, key=lambda part: part.rows.start)])


@pytest.mark.parametrize("mode", ["base", "joint"])
def test_a_predicted_cost_is_the_difference_of_runs_with_and_without_the_fault(mode):
    (config,) = scenario_of(RUN + LINK + STAYS).configurations()
    struck, healthy = times_s(RUN + LINK + STAYS, mode), times_s(RUN, mode)
    link, stays = predicted_faults(config, mode, struck)
    assert link.cost_s == pytest.approx((struck - healthy)[4:7].sum(), abs=1e-12)
    assert stays.cost_s == pytest.approx((struck - healthy)[12:].sum(), abs=1e-12) and stays.cost_s > 0.1
    assert (link.number, link.at_collective, stays.number, stays.at_collective) == (1, 4, 2, 12)


def test_a_long_fault_has_the_cost_of_its_first_collectives(monkeypatch):
    monkeypatch.setattr(fault_results, "_MOST_COLLECTIVES", 5)
    (config,) = scenario_of(RUN + LINK + STAYS).configurations()
    struck, healthy = times_s(RUN + LINK + STAYS, "base"), times_s(RUN, "base")
    link, stays = predicted_faults(config, "base", struck)
    assert (link.collectives, stays.collectives) == (None, 5)
    assert stays.cost_s == pytest.approx((struck - healthy)[12:17].sum(), abs=1e-12)


def test_no_cost_is_predicted_where_the_model_has_a_part_of_the_fault_only():
    """The attempts that a dead leaf makes fail, and what happens within a collective, are not in the model's times."""
    (config,) = scenario_of(RUN + LINK + LEAF + WITHIN).configurations()
    found = predicted_faults(config, "base", times_s(RUN + LINK + LEAF, "base"))
    assert [one.cost_s is None for one in found] == [False, True, False]
    told = ["predicted", "not predicted", "predicted in part"]
    assert [one.outcome for one in found] == [as_record(one)["outcome"] for one in found] == told
    assert all(one.words.partition(": ")[2].startswith(one.outcome) for one in found)


@pytest.mark.parametrize("mode", ["base", "joint"])
def test_a_fault_within_a_collective_has_the_predicted_cost_of_those_after_it(mode):
    """The model has it from collective 31 on, which is known from runs with it and without any."""
    longer = WITHIN.replace('"2 collectives"', '"5 collectives"')
    (config,) = scenario_of(RUN + longer).configurations()
    struck, healthy = times_s(RUN + longer, mode), times_s(RUN, mode)
    (found,) = predicted_faults(config, mode, struck)
    later_s = (struck - healthy)[31:35]
    assert (found.cost_s, found.at_collective) == (pytest.approx(later_s.sum(), abs=1e-12), 30)
    assert [one["collective"] for one in found.costs] == [31, 32, 33, 34]
    assert " in later collectives" in found.words and "; not within collective 30, as the model has no" in found.words
    assert {*np.flatnonzero(struck != healthy).tolist()} <= {31, 32, 33, 34}
    mean_s = mean_without_s(np.arange(40), struck, struck, [found])
    assert mean_s == pytest.approx(healthy.mean())


def test_predicted_times_have_nothing_of_a_killed_agent_so_they_are_those_without_it():
    killed = '[[fault]]\nat = "collective 3"\nwhat = "agent 1 killed"\n'
    (config,) = scenario_of(RUN + killed).configurations()
    struck = times_s(RUN + killed, "base")
    found = predicted_faults(config, "base", struck)
    assert [one.outcome for one in found] == ["not predicted"]
    assert mean_without_s(np.arange(40), struck, struck, found) == struck.mean() == times_s(RUN, "base").mean()
    (leaf,) = scenario_of(RUN + LEAF).configurations()
    cut = times_s(RUN + LEAF, "base")
    assert mean_without_s(np.arange(40), cut, cut, predicted_faults(leaf, "base", cut)) is None


def test_a_stored_fault_without_a_predicted_cost_is_not_called_predicted():
    """Runs of earlier versions have "predicted" in both rows, and NaN for a cost that is not known."""
    row = {"engine": "model", "setting": 0, "mode": "base", "number": 1, "what": "link s0b0-s1b0 down"}
    row |= {"at_collective": 3, "outcome": "predicted", "detected_s": math.nan, "recovered_s": math.nan}
    row |= {"cost_collectives": 0, "lasting_cost_s": math.nan, "costs": None, "jobs": None, "collectives_lost": 0}
    (both,) = faults_by_point([row | {"cost_s": 0.01}, row | {"cost_s": math.nan}]).values()
    assert [(one.outcome, one.cost_s) for one in both] == [("predicted", 0.01), ("not predicted", None)]


def test_a_cost_may_be_off_as_far_as_predictions_of_undisturbed_collectives_are():
    """Collectives of 10 ms that are 1 % off: a fault that hits two of them is known to 0.2 ms."""
    columns = {"collective": range(8), "predicted_s": 0.01, "completion_s": 0.0101, "undisturbed": True}
    rows = pd.DataFrame(columns)
    rows.loc[3, ["completion_s", "undisturbed"]] = [0.05, False]
    results = [having(at_collective=3), having(at_collective=6, number=2), having(at_collective=5, number=0)]
    declared = (Fault(collective=3, kind="link down", lasts=2), Fault(collective=6, kind="switch down"))
    assert [one.error_s for one in with_errors(results, declared, rows)] == pytest.approx([2e-4, 2e-4, 1e-4])


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ("", "rates are drawn at random, and this is one draw (seed 1): other seeds have other costs"),
        ("[sweep]\nrun.seed = [5, 3]\n", "rates are drawn at random, once with each seed (3, 5)"),
        ('[conditions]\nwan_rate = "10 Gbit/s"\nintra_rate = "20 Gbit/s"\n', None),
        # The range that [conditions] has by default is that of no link.
        (f'{ONE_CABLE}[conditions]\nintra_rate = "20 Gbit/s"\n', None),
    ],
)
def test_the_heading_says_whether_costs_depend_on_chance(conditions, says):
    rest = RUN.replace("[fabric]\nborder_routers = 3\n", "") if "fabric" in conditions else RUN
    text = heading(scenario_of(conditions + rest).configurations())
    assert says in text if says else "random" not in text


def test_a_run_of_the_model_tells_what_faults_cost_in_the_table_the_report_and_the_figure(tmp_path):
    (tmp_path / "struck.toml").write_text(RUN + LINK + STAYS)
    said, _ = ended("struck.toml", "--engine", "model", "--out", tmp_path / "out", cwd=tmp_path)
    costs_ms = {mode: times_s(RUN + LINK + STAYS, mode) - times_s(RUN, mode) for mode in ("base", "joint")}
    costs_ms = {mode: [1e3 * later[4:7].sum(), 1e3 * later[12:].sum()] for mode, later in costs_ms.items()}
    page, figure = (
        " ".join(re.sub("<[^>]*>", " ", (tmp_path / "out" / name).read_text()).split())
        for name in ("report.html", "figures/struck-over-time.svg")
    )
    table = page[page.index("Detected and recovered") : page.index("The order of the modes")]
    for mode, (link_ms, stays_ms) in costs_ms.items():
        assert f"{link_ms:,.3f}" in table and f"{stays_ms:,.3f}" in table and mode in table
        for cost_ms in (link_ms, stays_ms):  # as on the terminal, in the unit that shows it
            number = f"{cost_ms:.4g} ms" if cost_ms < 1e3 else f"{cost_ms / 1e3:.4g} s"
            assert f"{mode} {number if cost_ms > 1e-6 else 'about 0'}" in figure
    assert "this is one draw (seed 1)" in table and "this is one draw (seed 1)" in figure
    assert "predicted to cost" in figure and not list((tmp_path / "out/figures").glob("*-faults.svg"))
    cost_s = costs_ms["base"][1] / 1e3
    lines = said.splitlines()
    first = lines.index("  fault 2, agent 1 slow 10x in collective 12")
    shown = lines[first + 1]
    assert shown.startswith("    base: predicted cost ") and lines[first + 2].startswith("    joint: predicted cost ")
    worst = r"([0-9.]+ ms in collective \d+, ){3}.* and \d+ more"
    end = "; not as before within the run; still in force at the end of the run"
    told = re.fullmatch(rf"    base: predicted cost ([0-9.]+) s: {worst}{end}", shown)
    assert float(told[1]) == pytest.approx(cost_s, rel=1e-3)
    table = pd.read_csv(tmp_path / "out" / "summary.csv").set_index("mode")
    assert table["fault.2.cost_s"]["base"] == pytest.approx(cost_s, rel=1e-9)


def test_what_costs_consist_of_is_told_for_the_kinds_of_faults_that_were_measured():
    """A killed agent loses no packet: its cost is the failed attempt. Only links that go down have other paths."""
    killed, lossy = having(what="agent 3 killed", collectives_lost=1), having(what="link s0b0-s1b0 loss 1 %")
    assert cost_words([having(outcome="predicted"), having(outcome="not predicted", what="agent 3 killed")]) == ()
    (words,) = cost_words([killed, having(outcome="predicted")])
    assert words.startswith("killed agents: ") and "TCP" not in words and "other paths" not in words
    assert "from the collective's beginning until the failure was detected" in words
    assert "new connections) is neither in costs nor in completion times" in words
    (undeclared,) = cost_words([having(number=0, what="rank 2: the agent has ended")])
    assert undeclared == words
    down, loss = cost_words([lossy, DOWN])
    assert down.startswith("links down: ") and "failed attempts" not in down and loss.startswith("links with losses: ")
    assert "is sent again" in down and "is sent again" in loss
    for what, begins in (("switch s0l0 down", down), ("link s0b0-s1b0 loss 100 %", loss)):
        (failed,) = cost_words([having(what=what, collectives_lost=2)])
        assert failed.startswith(begins) and "failed attempts" in failed
    for what, begins in (("agent 1 slow 2x", "slow agents: "), ("controller killed", "killed controllers: ")):
        (words,) = cost_words([having(what=what)])
        assert words.startswith(begins) and "TCP" not in words


def test_measured_times_are_said_to_be_those_of_attempts_that_succeeded_where_others_failed():
    lost = having(what="agent 3 killed", collectives_lost=1)
    assert attempts_sentence([DOWN, lost]).startswith(
        "Measured times of collectives are those of the attempts that succ"
    )
    assert attempts_sentence([DOWN]) == attempts_sentence([having(outcome="predicted", collectives_lost=1)]) == ""


def test_seeds_are_repetitions_of_a_fault(tmp_path):
    """Mean and interval over six seeds are those of six pairs of runs; scipy has no interval for skewed costs, so that
    of costs without skewness is compared with it in another test."""
    (tmp_path / "struck.toml").write_text(RUN + LINK)
    found = answer(tmp_path / "out", "struck.toml", "--engine", "model", "--sweep", "run.seed=1,2,3,4,5,6")
    for one in found["fault_costs"]:
        costs_s = []
        for seed in range(1, 7):
            text = RUN.replace("[run]\n", f"[run]\nseed = {seed}\n")
            costs_s.append((times_s(text + LINK, one["mode"]) - times_s(text, one["mode"]))[4:7].sum())
        assert one["mean_cost_s"] == pytest.approx(np.mean(costs_s), abs=1e-12) and one["seeds"] == 6
        assert one["cost_low_s"] < np.mean(costs_s) < one["cost_high_s"]
    assert {one["mode"] for one in found["fault_costs"]} == {"base", "joint"}


def test_the_predicted_cost_stands_beside_the_measured_one_of_the_same_collectives():
    """A fault that outlasts the measured collectives has a prediction for more of them, which is not comparable."""
    setting = Setting(index=0, label="8 GPUs", kind="allgather", at=(), modes=("base",), baseline={})

    def told(measured, predicted):
        faults = {Point("emulation", 0, "base"): [measured], Point("model", 0, "base"): predicted}
        (point,) = pooled_costs([setting], faults)
        (fault,), (entry,) = point.faults, point.as_json()
        return fault.words.partition("recovered")[2], entry["mean_predicted_cost_s"], cost_words(fault.results)

    measured, model = having(cost_s=0.01, as_before=1207), having(outcome="predicted", cost_s=0.009, as_before=1207)
    assert told(measured, [model])[:2] == (", cost 10 ms (predicted 9 ms); as before from collective 1,207 on", 0.009)
    assert told(measured, [])[:2] == (", cost 10 ms; as before from collective 1,207 on", None)
    unknown = having(outcome="not predicted", as_before=None)
    words, cost_s, (_, why) = told(measured, [unknown])
    assert (words[:29], cost_s) == (", cost 10 ms (not predicted);", None)
    assert why == "not predicted: the model has no time of detection, losses or failed attempts"
    partly = having(outcome="predicted in part", cost_s=0.0, as_before=1207)
    words, cost_s, (_, why) = told(measured, [partly])
    assert words.startswith(", cost 10 ms (not predicted, but in later collectives about 0);") and cost_s is None
    assert why == "not predicted: the model has no time of detection, losses or failed attempts"
    longer = having(cost_s=0.01, as_before=NOT_IN_RUN)
    assert told(longer, [model])[:2] == (", cost 10 ms; not as before within the run", None)
    assert told(measured, [having(outcome="predicted", cost_s=0.009, at_collective=3)])[1] is None


@pytest.mark.parametrize(("fault", "is_told"), [(LINK, True), (STAYS, False)])
def test_modes_that_choose_no_paths_are_told_to_take_others_around_a_failed_link(tmp_path, fault, is_told):
    (tmp_path / "struck.toml").write_text(RUN + fault)
    said, _ = ended("struck.toml", "--engine", "model", "--out", tmp_path / "out", cwd=tmp_path)
    line = "(around a failed link other paths are taken in every mode, also in base, which chooses no paths otherwise)"
    assert (line in said.splitlines()) is is_told


def test_the_changes_of_a_mode_that_chooses_nothing_are_those_around_failures():
    """Base changes twice, when a link fails and when it is back; ccl changes its ring, too."""
    (config,) = scenario_of(RUN.replace('"joint"', '"ccl"') + LINK).configurations()
    points = [
        SimpleNamespace(mode=mode, faults=[having()], changes=SimpleNamespace(count=count))
        for mode, count in (("base", 2), ("ccl", 5))
    ]
    (line,) = around_failures([SimpleNamespace(config=config, points=points)])
    assert line.endswith(
        "also in base and ccl, which choose no paths otherwise; under reconfiguration, these are all changes of base"
    )


def test_the_interval_of_costs_without_skewness_is_students():
    costs_s = np.array([0.010, 0.012, 0.016, 0.020, 0.022])
    low, high = stats.t.interval(0.95, 4, loc=0.016, scale=stats.sem(costs_s))
    pooled = FaultCost(results=tuple(having(outcome="predicted", cost_s=cost_s) for cost_s in costs_s))
    assert (pooled.cost_s.low, pooled.cost_s.high) == pytest.approx((low, high))
    assert pooled.words.endswith(
        f": predicted cost 16 ms on average over 5 seeds (95 % interval {1e3 * low:.4g} ms to {1e3 * high:.4g} ms)"
    )


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (
            [having(cost_s=0.01, recovered_s=0.001), having(cost_s=-0.02, recovered_s=0.002)],
            "recovered after 1 ms to 2 ms, cost -5 ms on average over 2 seeds, which have -20 ms to 10 ms (too few "
            "seeds for an interval: 5 or more)",
        ),
        ([having(outcome="predicted", cost_s=0.01)] * 3, "predicted cost 10 ms with each of 3 seeds"),
        ([having(outcome="masked"), having(cost_s=0.01)], "masked with 1 seed, recovered with 1 seed, cost 10 ms"),
    ],
)
def test_few_seeds_are_told_without_an_interval(results, said):
    assert FaultCost(results=tuple(results)).words == f"link s0b0-s1b0 down in collective 1,204: {said}"


def test_of_many_collectives_the_worst_are_told_first_on_the_terminal_and_in_the_report():
    """Of 15 collectives that a predicted fault hits, the last but one is the worst."""
    costs_s = {120 + k: 0.05 + 0.001 * k for k in range(15)} | {133: 0.12, 124: 0.0}
    costs = [{"collective": k, "cost_s": cost_s, "lasting_cost_s": cost_s} for k, cost_s in costs_s.items()]
    one = having(outcome="predicted", cost_s=sum(costs_s.values()), costs=costs, at_collective=120)
    worst = [f"{ms} ms in collective {k}" for ms, k in ((120, 133), (64, 134), (62, 132), (61, 131))]
    assert one.words.endswith(f": {', '.join(worst)} and 10 more")
    assert _by_collective(one) == "133: 120.000; 134: 64.000; 132: 62.000; 131: 61.000 and 11 more"


def test_faults_that_hit_the_same_collectives_are_told_to_cost_the_same_time():
    """Two slow agents at a time cost 695 ms together, not 695 ms each; a link that fails later costs its own."""
    slow = [
        having(number=n, what=f"agent {n} slow 10x", at_collective=2, until=7, outcome="predicted", cost_s=0.695)
        for n in (1, 2)
    ]
    faults = [*slow, having(number=3, at_collective=9, until=10, outcome="predicted", cost_s=0.058)]
    settings = [Setting(index=0, label="a", kind="", at=(), modes=("base", "wan"), baseline={})]
    points = pooled_costs(settings, {Point("model", 0, mode): faults for mode in ("base", "wan")})
    told = [one.outcome for one in points[0].faults]
    assert told[0].startswith("predicted cost 695 ms together with fault 2")
    assert told[1].startswith("predicted cost 695 ms together with fault 1") and "together" not in told[2]
    assert fault_costs_sentence(points) == (
        "Faults 1 and 2 together cost 695 ms in each mode (agent 1 slow 10x, agent 2 slow 10x); fault 3 costs 58 ms in "
        "each mode (link s0b0-s1b0 down)."
    )
    longer = [slow[0], having(number=2, at_collective=3, until=20, outcome="predicted", cost_s=1.0)]
    points = pooled_costs(settings, {Point("model", 0, "base"): longer})
    assert points[0].faults[0].outcome.startswith("predicted cost 695 ms in part together with fault 2")


def test_attempts_that_fail_are_in_the_answer_of_a_predicted_run_and_no_other_paths_are_told_of():
    lost = having(outcome="not predicted", collectives_lost=2)
    assert lost.words.endswith("failed attempts; 2 attempts fail, as no path is left")
    assert predicted_attempts_sentence([("base", [lost, lost]), ("joint", [lost])]) == (
        "In base and joint 2 attempts fail, as no path is left: their time is in no mean, and is not predicted."
    )
    assert predicted_attempts_sentence([("base", [having(outcome="predicted")])]) == ""
    (config,) = scenario_of(RUN + LINK).configurations()
    points = [SimpleNamespace(mode="base", faults=[lost], changes=None)]
    assert [*around_failures([SimpleNamespace(config=config, points=points)])] == []


def test_a_cost_tells_its_collectives_and_what_other_paths_take_of_it():
    """Of two collectives the second one begins without the link; a third has a cost within the error."""
    parts = [(3, 0.1237, 0.0), (4, 0.0598, 0.0597), (5, 1e-6, 0.0)]
    costs = [{"collective": k, "cost_s": cost_s, "lasting_cost_s": lasts_s} for k, cost_s, lasts_s in parts]
    one = having(cost_s=0.1835, lasting_cost_s=0.0597, costs=costs, recovered_s=0.0, error_s=1e-5)
    said = "recovered within 1 us, cost 183.5 ms: 123.7 ms in collective 3, 59.8 ms in collective 4"
    assert one.words.endswith(f": {said}; 59.7 ms of it from the other paths")
    later = having(cost_s=0.0598, lasting_cost_s=0.0598, costs=costs[1:2], error_s=1e-5)
    assert later.words.endswith(": recovered, cost 59.8 ms in collective 4; all of it from the other paths")
    alone = having(cost_s=0.1237, lasting_cost_s=0.0, costs=costs[:1], error_s=1e-5, at_collective=3)
    assert alone.words.endswith(": recovered, cost 123.7 ms")


def test_rows_of_faults_are_in_the_order_of_points_and_not_of_their_ends(tmp_path):
    scenario = scenario_of(RUN + LINK)
    files = RunFiles.begun(RunFolder.new(tmp_path / "run"), scenario, engines=["emulation"], command=["run.py"])
    (row,) = fault_outcomes([{"event": "injected", "at_ns": 0, "collective": 4, "fault": 0, "kind": "link down",
                              "what": "link s0b0-s1b0 down", "cables": []}])  # fmt: skip
    for mode in ("joint", "base"):
        files.record_faults("emulation", [FaultOutcome(setting=0, mode=mode, account=row)])
    assert pd.read_parquet(tmp_path / "run" / "faults.parquet")["mode"].to_list() == ["base", "joint"]


JOBS = """[conditions]
wan_rate = "40 Gbit/s"
intra_rate = "100 Gbit/s"
[collective]
kind = "allreduce"
count = 8
[run]
modes = ["base"]
[[job]]
name = "infer"
ranks = [0, 4]
size = "8 MB"
[[job]]
name = "train"
ranks = [2, 3, 6, 7]
size = "400 MB"
"""
SLOW = '[[fault]]\nat = "collective 5"\nwhat = "agent 0 slow 10x"\nfor = "2 collectives"\n'


def test_each_job_of_the_rounds_has_its_own_cost(tmp_path):
    """The slow agent is not the training's, so rounds are as long as before. What inference loses is the difference of
    two runs in jobs.parquet, with the fault and without; the terminal, --json, the report and the figure tell it."""
    took_s = {}
    for name, text in (("struck", JOBS + SLOW), ("whole", JOBS)):
        (tmp_path / f"{name}.toml").write_text(text)
        said, _ = ended(f"{name}.toml", "--engine", "model", "--out", tmp_path / name, cwd=tmp_path)
        jobs = pd.read_parquet(tmp_path / name / "jobs.parquet")
        infer_s = jobs[jobs.job == "infer"].set_index("collective").completion_s
        took_s[name] = said, jobs[jobs.collective.isin([5, 6])].groupby("job").completion_s.sum(), infer_s
    lost_s = took_s["struck"][1] - took_s["whole"][1]
    assert lost_s["infer"] > 1e-3 and abs(lost_s["train"]) < 1e-9
    cost_ms, said = f"{1e3 * lost_s['infer']:.4g} ms", took_s["struck"][0]
    by_round_ms = [f"{1e3 * took_s['struck'][2][k] - 1e3 * took_s['whole'][2][k]:.4g} ms in round {k}" for k in (5, 6)]
    told = f"infer {cost_ms} ({', '.join(by_round_ms)}), train about 0"
    assert f"    base: predicted cost to the rounds about 0; to the jobs: {told}\n" in said
    assert "by how much the rounds that they hit, and each job in these, took longer" in said
    (row,) = pd.read_parquet(tmp_path / "struck/faults.parquet").to_dict("records")
    stored_s = {one["job"]: one["cost_s"] for one in row["jobs"]}
    assert stored_s == pytest.approx(lost_s.to_dict(), abs=1e-12)
    table = pd.read_csv(tmp_path / "struck/summary.csv")
    assert table["fault.1.job.infer.cost_s"].item() == pytest.approx(lost_s["infer"], abs=1e-12)
    found = answer(tmp_path / "json", "struck.toml", "--engine", "model")
    (one,) = found["fault_costs"]
    assert one["mean_job_costs_s"] == pytest.approx(lost_s.to_dict(), abs=1e-12)
    for file in ("report.html", "figures/struck-over-time.svg"):
        page = (tmp_path / "struck" / file).read_text()
        assert f"infer {1e3 * lost_s['infer']:,.3f}" in page and "rounds" in page


def test_a_measured_fault_that_delays_a_job_is_not_without_effect():
    """The failed attempt of 7 ms is part of what each job lost."""
    events = [
        {"event": "injected", "at_ns": 0, "collective": 2, "fault": 0, "kind": "link down", "what": DOWN.what,
         "cables": []},
        {"event": "failed", "at_ns": 9, "collective": 3, "why": "lost", "lost": 1, "retransmitted_bytes": 0,
         "spent_ns": 7_000_000},
        {"event": "over", "at_ns": 10, "collective": 4, "fault": 0},
        {"event": "ended", "at_ns": 11, "why": ""},
    ]  # fmt: skip
    rounds_s = dict.fromkeys(range(6), 1e-6)
    jobs_s = {"infer": ({**rounds_s, 2: 0.032}, {2: 0.005}), "train": (rounds_s, {})}
    (row,) = fault_outcomes(events, rounds_s, {}, jobs_s)
    assert {one["job"]: one["cost_s"] for one in row["jobs"]} == pytest.approx({"infer": 0.039001, "train": 0.007002})
    late = having(recovered_s=0.0, cost_s=2e-6, error_s=3e-6, jobs=(
        {"job": "infer", "cost_s": 0.032, "error_s": 1e-6}, {"job": "train", "cost_s": -1e-6, "error_s": 1e-6},
    ))  # fmt: skip
    struck = having(what=DOWN.what, at_collective=2, recovered_s=0.0, cost_s=7e-3, jobs=row["jobs"])
    of_infer = "infer 39 ms (32 ms in round 2, 7.001 ms in round 3; 5 ms from the other paths)"
    assert struck.words.endswith(f"; to the jobs: {of_infer}, train 7.002 ms (1 us in round 2, 7.001 ms in round 3)")
    told = "cost to the rounds about 0; to the jobs: infer 32 ms, train about 0"
    assert late.words.endswith(f": recovered within 1 us, {told}")
    same = having(recovered_s=0.0, cost_s=2e-6, error_s=3e-6, jobs=late.jobs[1:] * 2)
    assert same.words.partition(": ")[2].startswith("without effect on the time, ")


def test_the_cost_to_a_job_may_be_off_as_far_as_its_own_predictions():
    rows = pd.DataFrame({"collective": range(8), "predicted_s": 0.01, "completion_s": 0.0101, "undisturbed": True})
    jobs = ({"job": "infer", "cost_s": 0.032},)
    times_s = {"infer": (np.full(8, 0.0051), np.full(8, 0.005))}  # 2 % of 5 ms
    link = (Fault(collective=3, kind="link down", lasts=2),)
    (found,) = with_errors([having(at_collective=3, jobs=jobs)], link, rows, times_s)
    assert found.jobs[0]["error_s"] == pytest.approx(2e-4) and found.error_s == pytest.approx(2e-4)


def test_little_parts_of_a_cost_are_not_told_by_themselves():
    """Of 575.9 us, 0.2 us are in collectives in which times may be off as far: what is told need not add up."""
    parts = [(4, 1.457e-6, 0.0), (5, 574.2e-6, 574.2e-6), (6, 0.2e-6, 0.1e-6)]
    costs = [{"collective": k, "cost_s": cost_s, "lasting_cost_s": lasts_s} for k, cost_s, lasts_s in parts]
    about = {"costs": costs, "recovered_s": 0.0, "error_s": 5e-7, "at_collective": 4, "as_before": 4}
    one = having(what=DOWN.what, cost_s=575.9e-6, lasting_cost_s=574.3e-6, **about)
    assert one.words.endswith(
        ", cost 575.9 us, almost all in collective 5; almost all of it from the other paths; no time is off by more "
        "than 1 %"
    )
    two = [*costs, {"collective": 7, "cost_s": 300e-6, "lasting_cost_s": 300e-6}]
    several = having(what=DOWN.what, cost_s=875.9e-6, lasting_cost_s=574.3e-6, **about | {"costs": two})
    of = "574.2 us in collective 5, 300 us in collective 7, little in others; 574.3 us of it from the other paths"
    assert f", cost 875.9 us: {of}; " in several.words


@pytest.mark.parametrize(
    ("late_s", "following", "found"),
    [
        ({2: 0.0, 3: 0.0, 4: 0.0}, None, 2),
        ({2: 0.5, 3: 0.0, 4: 0.0}, None, 3),
        ({2: 0.5, 3: 0.0, 4: -0.5, 5: 0.009}, None, 5),
        ({2: 0.5, 3: 0.0, 4: 0.02}, None, -1),
        ({2: 0.5, 3: 0.3, 4: 0.0}, 4, -2),
        ({2: 0.5, 3: 0.0, 4: 0.5}, 4, 3),
        ({1: 0.5}, None, None),
    ],
)
def test_times_are_as_before_from_a_collective_on(late_s, following, found):
    """Of collectives that take 1 s without a fault, which begins in collective 2: within 10 ms is as before."""
    assert as_before(late_s, dict.fromkeys(range(9), 1.0), 2, following) == found


def test_a_cost_of_both_signs_tells_what_was_lost_and_what_was_gained():
    costs = [{"collective": k, "cost_s": c, "lasting_cost_s": c} for k, c in ((4, 0.06), (5, 0.037), (6, -0.053))]
    one = having(cost_s=0.044, gained_s=0.053, costs=costs, at_collective=4, as_before=7, recovered_s=0.0)
    parts = "97 ms lost (60 ms in collective 4, 37 ms in collective 5), 53 ms gained in collective 6"
    assert one.words.endswith(f", cost 44 ms: {parts}; as before from collective 7 on")
    predicted = having(outcome="predicted", **{k: one.__dict__[k] for k in ("cost_s", "gained_s", "costs")})
    assert predicted.words.endswith(f": predicted cost 44 ms: {parts}")
    seeds = FaultCost(results=(one, having(cost_s=0.01, gained_s=0.0, as_before=-1)))
    assert "53.5 ms lost in some collectives, 26.5 ms gained in others" in seeds.words
    assert seeds.words.endswith("; as before from collective 7 on, not as before within the run with 1 seed")
    only_slower = having(cost_s=0.044, gained_s=1e-6, error_s=1e-5, as_before=-2)
    assert only_slower.words.endswith(", cost 44 ms; not as before when the next fault begins")
    assert having(cost_s=1e-3, gained_s=0.0, as_before=1204).words.endswith(", cost 1 ms")


def test_a_predicted_fault_tells_gains_and_when_times_are_as_before(tmp_path):
    """The same run without the fault tells which collectives are slower, and which are faster."""
    (tmp_path / "struck.toml").write_text(RUN + LINK)
    found = answer(tmp_path / "out", "struck.toml", "--engine", "model")
    for one, point in zip(found["fault_costs"], found["points"], strict=True):
        later_s = times_s(RUN + LINK, one["mode"]) - times_s(RUN, one["mode"])
        assert one["mean_lost_s"] == pytest.approx(later_s[4:7][later_s[4:7] > 0].sum(), abs=1e-12)
        assert one["mean_gained_s"] == pytest.approx(-later_s[4:7][later_s[4:7] < 0].sum(), abs=1e-12)
        (off,) = np.nonzero(np.abs(later_s) > 0.01 * times_s(RUN, one["mode"]))
        assert off.size == 0 or off[0] >= 4
        assert point["faults"][0]["as_before"] == one["as_before"][0] == (off[-1] + 1 if off.size else 4)


@pytest.mark.parametrize("mode", ["base", "joint"])
def test_a_time_is_as_many_collectives_as_begin_within_it(mode):
    """In the model; counted one by one, with the times of a run in which the fault stays."""
    timed, for_good = (STAYS + line for line in ('for = "400 ms"\n', ""))
    passed_s, hit = 0.0, 0
    for time_s in times_s(RUN + for_good, mode)[12:]:
        if passed_s >= 0.4:
            break
        passed_s, hit = passed_s + time_s, hit + 1
    assert 1 < hit < 20
    counted = times_s(RUN + STAYS + f'for = "{hit} collectives"\n', mode)
    assert times_s(RUN + timed, mode).tolist() == counted.tolist()
    (config,) = scenario_of(RUN + timed).configurations()
    (fault,) = predicted_faults(config, mode, counted)
    assert fault.until == 12 + hit and fault.cost_s == pytest.approx((counted - times_s(RUN, mode))[12:].sum())


def test_times_of_faults_that_overlap_are_counted_together():
    """Both are in force at once, so that each is over after the same time as alone in a run with both."""
    other = '[[fault]]\nat = "collective 14"\nwhat = "link s0b0-s1b0 down"\nfor = "300 ms"\n'
    (config,) = scenario_of(RUN + STAYS + 'for = "400 ms"\n' + other).configurations()
    slow, link = with_counted_faults(config, "base").faults
    ended = [STAYS + f'for = "{slow.lasts} collectives"\n', other.replace("300 ms", f"{link.lasts} collectives")]
    struck_s = times_s(RUN + "".join(ended), "base")
    for fault, lasts_s in ((slow, 0.4), (link, 0.3)):
        passed_s = np.cumsum(struck_s[fault.collective :])
        assert passed_s[fault.lasts - 2] < lasts_s <= passed_s[fault.lasts - 1]


def test_the_answer_tells_that_the_model_has_a_fault_to_the_end_of_a_collective(tmp_path):
    (tmp_path / "struck.toml").write_text(RUN + STAYS + 'for = "400 ms"\n')
    found = answer(tmp_path / "out", "struck.toml", "--engine", "model", report=True)
    stored = open_run(tmp_path / "out").faults
    first, last = (int(until) - 1 for until in (stored["until"].min(), stored["until"].max()))
    assert first < last  # joint is faster
    which = f"one of the collectives {first} to {last}, in which it ends"
    assert f"The timing model has agent 1 slow 10x to the end of {which}." in found["answer"]
    (configuration,) = configurations_of(open_run(tmp_path / "out"))
    for row in stored.itertuples():
        (fault,) = of_point(open_run(tmp_path / "out"), configuration, "model", row.mode)
        assert fault.end == row.until and "for 400 ms" in configuration.label
    assert "for 400 ms" in (tmp_path / "out/figures/struck-over-time.svg").read_text()


@pytest.mark.parametrize("lasts", ["200 s", "100 collectives"])
def test_a_fault_that_outlasts_the_run_is_told_to_be_in_force_at_its_end(tmp_path, lasts):
    """It is to end, and has not; the sentence tells it, and each mode's line. No end of it within the run is told."""
    (tmp_path / "struck.toml").write_text(RUN + LINK.replace("3 collectives", lasts))
    said, _ = ended("struck.toml", "--engine", "model", "--out", tmp_path / "out", "--no-report", cwd=tmp_path)
    assert "Still in force when the run ends: link s0b0-s1b0 down." in said.splitlines()[0]
    lines = [line for line in said.splitlines() if line.strip().startswith(("base: predicted", "joint: predicted"))]
    assert len(lines) == 2 and all("; still down at the end of the run" in line for line in lines)
    assert "in which it ends" not in said and "If it ends" not in said


def test_a_fault_that_is_over_or_was_to_stay_is_in_no_sentence_on_what_is_still_in_force(tmp_path):
    (tmp_path / "struck.toml").write_text(RUN + LINK + STAYS)
    said, _ = ended("struck.toml", "--engine", "model", "--out", tmp_path / "out", "--no-report", cwd=tmp_path)
    assert "Still in force" not in said and "still down" not in said
    assert said.count("; still in force at the end of the run") == 2  # the slow agent, in both modes


def measured_in_part(lasts, *, measured=6):
    """Return the fault of a point of base of which so many collectives are measured and 40 predicted, under constant
    rates, with a link down before collective 4; and by how much a collective takes longer under it, in s."""
    constant = '[conditions]\nwan_rate = "20 Gbit/s"\nintra_rate = "200 Gbit/s"\n'
    links = '[fabric.wan]\nlinks = [["s0b0", "s1b0"], ["s0b1", "s1b1", {rate = "10 Gbit/s"}]]\n'
    text = links + RUN.partition("border_routers = 3\n")[2] + constant + LINK.replace("3 collectives", lasts)
    (config,) = scenario_of(text).configurations()
    struck_s = times_s(text, "base")
    about = {"setting": 0, "mode": "base"}
    predicted = [as_record(one) | about | {"engine": "model"} for one in predicted_faults(config, "base", struck_s)]
    later_s = float(struck_s[4] - struck_s[3])
    numbers = range(4, measured)
    record = predicted[0] | {"engine": "emulation", "outcome": "recovered", "recovered_s": 0.0, "until": None}
    record |= {"costs": [{"collective": one, "cost_s": later_s, "lasting_cost_s": later_s} for one in numbers]}
    record |= {"cost_s": later_s * len(numbers), "lasting_cost_s": later_s * len(numbers), "as_before": NOT_IN_RUN}
    points = {Point("model", 0, "base"): np.arange(40), Point("emulation", 0, "base"): np.arange(measured)}
    found = faults_by_point([*predicted, record], points)
    setting = Setting(index=0, label="8 GPUs", kind="allreduce", at=(), modes=("base",), baseline={})
    ((point,),) = (pooled_costs([setting], found),)
    return point.faults[0], struck_s, later_s


def test_of_a_fault_that_is_measured_in_part_the_lines_say_so_and_when_it_is_predicted_to_end():
    """Two of its collectives are measured: their cost is not that of all, and it is not in force when the run ends."""
    fault, struck_s, later_s = measured_in_part("100 ms")
    hit = int(np.searchsorted(np.cumsum(struck_s[4:]), 0.1)) + 1
    assert later_s > 0.001 and 2 < hit < 20
    said = fault.outcome
    cost, whole = (format_delay(float(f"{one * later_s:.4g}")) for one in (2, hit))
    assert f"cost {cost} (predicted {cost}) in the 2 measured ones of {hit} collectives that it hits" in said
    assert f"(predicted in all: {whole})" in said
    assert f"not as before within the measurement (predicted: from collective {4 + hit} on)" in said
    assert said.endswith(f"; still down when the measurement ends (predicted: until collective {3 + hit})")
    assert fault.in_force == 0 and "the run" not in said


def test_a_fault_that_outlasts_measurement_and_prediction_is_in_force_at_the_end_of_the_run():
    fault, _, later_s = measured_in_part("200 s")
    said, cost = fault.outcome, format_delay(float(f"{2 * later_s:.4g}"))
    assert f"cost {cost} (predicted {cost}) in the 2 measured ones of 36 collectives that it hits" in said
    assert said.endswith("; not as before within the measurement; still down at the end of the run")
    assert fault.in_force == 1
    assert fault.predicted_cost_s == pytest.approx(2 * later_s)  # of the same collectives


def test_of_a_fault_that_is_measured_in_all_its_collectives_nothing_is_said_of_parts():
    fault, *_ = measured_in_part("200 s", measured=40)
    assert "measured ones" not in fault.outcome and "not as before within the run" in fault.outcome


def test_the_end_of_a_measured_fault_that_lasts_for_a_time_is_told():
    """Within which collective it ended is measured, and so is that it did not."""
    record = asdict(having(as_before=1206, until=1205)) | {"engine": "emulation", "setting": 0, "mode": "base"}
    record |= {"cost_collectives": 0}

    def words(**values):
        (fault,) = faults_by_point([record | values])[Point("emulation", 0, "base")]
        return replace(fault, is_timed=True).words

    assert words().endswith("; as before from collective 1,206 on; it ended in collective 1,204")
    assert words(until=None).endswith("; as before from collective 1,206 on; still down at the end of the run")
    assert "at the end" not in words(until=None, as_before=None)  # as runs of earlier versions have it
