"""The time to change rings and paths: predicted, measured, and part of completion times with `control.counted`."""

import re
from dataclasses import replace

import numpy as np
import pytest

from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import workload
from scenarios.engines.model import Model
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.policies import cost
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import scenario_of
from tests.fakes.runs import answer, ended, rows
from topologies.conditions.sampler import ConditionsSpec, delays_s
from topologies.fabric.fabric import FabricSpec, build_fabric

WORDS = """
[conditions]
wan_delay = "1 ms"
[collective]
count = 40
[control]
counted = true
[[policy]]
name = "each"
reroute = "every 1"
reembed = "every 1"
"""


def test_connecting_time_equals_an_event_by_event_replay_of_the_handshakes() -> None:
    """The replay covers random placements of schedules with one flow per rank and with several."""
    fabric, spec = build_fabric(FabricSpec(gpus_per_site=(3, 4))), ConditionsSpec(wan_delay_s=1e-3)
    delays = delays_s(fabric, spec)
    router, chance = Router(fabric, delays), np.random.default_rng(2)

    def delay_s(src: int, dst: int) -> float:
        sites = fabric.gpus[src].site, fabric.gpus[dst].site
        path = -1 if sites[0] == sites[1] else fabric.paths_between[sites][0].index
        return float(sum(delays[link] for link in fabric.edge_links(src, dst, path)))

    for algorithm in (("allgather", "ring"), ("alltoall", "direct"), ("broadcast", "tree")):
        load = workload(*algorithm, sites=fabric.gpus_per_site, size_bytes=7_000)
        placements = np.array([chance.permutation(7) for _ in range(5)], dtype=np.int16)
        found = cost.connecting_s(router, load, placements)
        for placement, took_s in zip(placements.tolist(), found, strict=True):
            pairs = [(placement[a], placement[b]) for a, b in zip(*load.schedule.ends, strict=True)]
            now_s, said_s = 0.0, []
            for rank in range(7):
                for src, dst in pairs:
                    if src == rank:
                        now_s += delay_s(src, dst) + delay_s(dst, src)
                        said_s.append((src, dst, now_s + delay_s(src, dst)))
            heard_s = [max([now_s, *(at for _, dst, at in said_s if dst == rank)]) for rank in range(7)]
            over_s = max([*heard_s, *(heard_s[dst] + delay_s(dst, src) for src, dst, _ in said_s)])
            assert took_s == pytest.approx(over_s, rel=1e-9)


def test_counted_reconfiguration_time_is_added_to_the_completion_time() -> None:
    (setting,) = scenario_of(WORDS).configurations()
    free = replace(setting, control=replace(setting.control, counted=False))
    with_cost, without = (
        {one.mode: one.rows for one in Model(batch=1000).run([which])}  # type: ignore[union-attr]
        for which in (setting, free)
    )
    for mode in setting.run.modes:
        waits_s = with_cost[mode].reconfigure_s
        assert waits_s is not None
        expected = without[mode].completion_s + np.nan_to_num(waits_s)
        assert with_cost[mode].completion_s == pytest.approx(expected, rel=1e-12)
        assert without[mode].reconfigure_s is None
        assert waits_s[0] > 6e-3  # two round trips, and one more for the last messages
    assert np.isnan(with_cost["base"].reconfigure_s[1:]).all()  # type: ignore[index]
    assert (with_cost["wan"].reconfigure_s[1:] == 0).all()  # type: ignore[index]


def test_reconfiguration_times_do_not_depend_on_how_a_run_is_split_into_parts() -> None:
    (setting,) = scenario_of(WORDS).configurations()
    conditions = conditions_of(setting)
    for mode in ("joint", "each"):
        whole, *parts = (
            Plan(
                setting, mode, decisions_of(setting, mode, conditions, start=a, count=b - a), conditions, a
            ).reconfiguring_s()
            for a, b in ((0, 40), (0, 7), (7, 25), (25, 40))
        )
        assert np.array_equal(np.concatenate(parts), whole, equal_nan=True)


def test_a_gain_policy_reembeds_only_if_the_gain_over_its_horizon_exceeds_the_cost() -> None:
    """With long delays and short messages new connections pay off over a very long horizon only."""
    dear = '[conditions]\nwan_delay = "10 ms"\n[collective]\nchunk = "1 MB"\ncount = 30\n[control]\ncounted = true\n'
    of = '[[policy]]\nname = "weighs"\nreroute = "gain 0"\nreembed = "gain 0"\n'
    chosen = {}
    for horizon in (1, 1_000_000):
        (setting,) = scenario_of(f"{dear}{of}horizon = {horizon}").configurations()
        decisions = decisions_of(setting, "weighs", conditions_of(setting), start=0, count=30)
        chosen[horizon] = int(decisions.reembedded.sum())
    assert chosen[1] == 0
    assert chosen[1_000_000] > 10


def test_measured_reconfiguration_times_equal_the_predicted_ones(tmp_path):
    (tmp_path / "cost.toml").write_text(WORDS)
    wanted = ("--modes", "joint,each", "--collectives", "11", "--engine", "both")
    fidelity = answer(tmp_path / "run", "cost.toml", *wanted)["fidelity"]
    assert abs(fidelity["median_ratio"] - 1) < 1e-3 and fidelity["p99_abs_error"] < 0.01
    found = rows(tmp_path / "run")
    waits_s = found.set_index(["mode", "collective", "engine"]).reconfigure_s.unstack()
    assert waits_s["emulation"].to_list() == pytest.approx(waits_s["model"].to_list(), abs=50e-9)
    assert (found.completion_s > found.reconfigure_s.fillna(0)).all()


def test_a_remote_controller_takes_a_round_trip_to_the_farthest_site_that_it_changes(tmp_path):
    """The measured times equal the predicted ones and the closed form for two sites."""
    far = WORDS.replace("counted = true", 'counted = true\ndelay = ["2 ms", "5 ms"]')
    (tmp_path / "far.toml").write_text(far)
    wanted = ("--modes", "wan", "--collectives", "8", "--engine", "both", "--no-report", "--out", tmp_path / "run")
    ended("far.toml", *wanted, cwd=tmp_path)
    here = {name: of.reset_index(drop=True) for name, of in rows(tmp_path / "run").groupby("engine")}
    model, emulation = here["model"], here["emulation"]
    assert model.reconfigure_s.to_numpy() == pytest.approx(emulation.reconfigure_s.to_numpy(), abs=50e-9)
    (setting,) = scenario_of(far).configurations()
    fabric = conditions_of(setting).fabric
    for k in range(1, 8):
        both = zip(model.paths[k - 1], model.paths[k], strict=True)
        moved = {fabric.paths[old].src_site for old, new in both if old != new}
        trip_s = 2 * max(({0: 2e-3, 1: 5e-3}[site] for site in moved), default=0.0)
        assert model.reconfigure_s[k] == pytest.approx(trip_s, abs=1e-9)
    assert len({round(one, 6) for one in model.reconfigure_s[1:]}) > 1


@pytest.mark.parametrize(
    ("control", "says"),
    [
        ('delay = ["1 ms"]', "control.delay: 1 delay for 2 sites; allowed: one for each"),
        ('delay = "2 s"', '"2 s" is too large: a delay must be between 1 ns and 1 s'),
        ('delay = "1 ms"\n[run]\nclock = "wall"', "control.delay: cannot be combined with the wall clock"),
    ],
)
def test_invalid_controller_delays_are_refused(control, says):
    with pytest.raises(ScenarioError, match=re.escape(says)):
        scenario_of(f"[control]\n{control}")
