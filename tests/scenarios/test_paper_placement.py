"""run.py papers placement: the flow model of many plans against run.py's own, bounds, the answer, and the testbed."""

from importlib.util import find_spec

import numpy as np
import pytest

from scenarios.api import engine_for
from scenarios.engines.base import Slice
from scenarios.papers import placement
from scenarios.papers.paper import SAME_DIRECTION, Settings
from scenarios.papers.placement import LOCAL, OPTIMISED, RANDOM, REFERENCE, STAGGERED, Model, Plan, plans_of
from scenarios.studies.papers import paper

LEAST_S = 9 * 8 * 8 * 2**20 / 25e9  # nine blocks of 8 MiB over a port of 25 Gbit/s that nothing else uses


def drawn(seed: int) -> Plan:
    orders = placement.random_orders(np.random.default_rng(seed))
    return Plan(orders=orders, starts_s=(0.0, 0.01 * seed, 0.0))


def test_the_ends_of_plans_are_those_that_a_run_predicts() -> None:
    plans = [drawn(seed) for seed in range(3)]
    engine, configs = engine_for(placement.scenario_of(plans), "model")
    run = {
        event.setting: event.rows.jobs["completion_s"][0] for event in engine.run(configs) if isinstance(event, Slice)
    }
    for index, plan in enumerate(plans):
        (ends_s,) = Model().ends_s(plan.orders[None], plan.starts_s)
        assert ends_s - plan.starts_s == pytest.approx(run[index], rel=1e-9)


def test_ranks_stay_on_the_servers_of_their_tenant_and_no_ring_is_faster_than_its_ports() -> None:
    model, assignment = Model(), drawn(4).orders
    plans = plans_of(model, assignment, np.random.default_rng(4))
    ends_s = {name: model.ends_s(plan.orders[None], plan.starts_s)[0] for name, plan in plans.items()}
    for name, plan in plans.items():
        assert (np.sort(plan.orders, axis=1) == np.sort(assignment, axis=1)).all()
        assert ends_s[name].min() >= LEAST_S and ends_s[name].max() >= 1.5 * LEAST_S  # two ports for three tenants
    assert ends_s[OPTIMISED].mean() < min(ends_s[name].mean() for name in (RANDOM, LOCAL, STAGGERED))
    assert ends_s[STAGGERED].mean() <= ends_s[RANDOM].mean()
    if find_spec("ortools"):
        best, proven = placement.reference(model, assignment)
        optimum_s = model.ends_s(best.orders[None], best.starts_s)[0].mean()
        assert proven and ends_s[OPTIMISED].mean() == pytest.approx(optimum_s, rel=1e-3)


def test_the_answer_has_every_plan_and_says_why_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_ASSIGNMENTS", 2)
    found = paper("placement").repeat(Settings(measures=False, jobs=1, seed=1), lambda _: None)
    text = str(found.tables[0])
    plans = [line["plan"] for line in found.lines]
    assert plans[:4] == [RANDOM, LOCAL, STAGGERED, OPTIMISED]
    has_solver = find_spec("ortools") is not None
    assert (plans[4:] == [REFERENCE]) is has_solver
    assert ("CP-SAT is left out: OR-Tools is not installed: .venv/bin/pip install" in text) is not has_solver
    assert {claim.verdict for claim in found.claims} == {SAME_DIRECTION}
    assert found.picture is not None and RANDOM in found.picture().data


def test_a_gain_that_is_none_has_no_sign() -> None:
    """Of starts in turn none is better in some assignments: the last end is the same but for rounding."""
    ends_s = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 4.0]])
    line = placement._line(STAGGERED, ends_s * [[1.0 + 1e-12], [1.25]], ends_s, None)
    assert line.makespan_gains[1] < 0
    text = str(placement._table([line], []))
    assert "(-25.0 to 0.0)" in text and "-0.0" not in text


def test_measured_ends_are_the_predicted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_BLOCK", "2 MiB")
    plan = drawn(1)
    (measured,) = placement.measured_s([plan], jobs=1, progress=lambda _: None)
    assert measured == pytest.approx(Model().ends_s(plan.orders[None], plan.starts_s)[0], rel=2e-3)
