"""The time to change rings and paths: predicted, measured, and part of completion times with `control.counted`."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results.reader import reconfigurations_of
from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import workload
from scenarios.engines.model import Model
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.experiment.run_paragraphs import change_costs_sentence
from scenarios.policies import cost
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import scenario_of
from tests.fakes.runs import answer, ended, rows
from topologies.fabric.fabric import build_fabric

THREE_SITES = """
[fabric]
gpus = [2, 3, 2]
[fabric.wan]
routers = ["X", "Y"]
links = [["s0b0", "X"], ["s0b1", "Y"], ["X", "Y"], ["X", "s1b0"], ["Y", "s1b1"], ["Y", "s2b0"], ["X", "s2b1"],
         ["s0b0", "s1b0"]]
"""
FABRIC = build_fabric(scenario_of(THREE_SITES).fabric)
ALGORITHMS = ("allgather", "ring"), ("alltoall", "direct"), ("broadcast", "tree")
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


def replayed_s(pairs, delay_s, ranks):
    """Return the time to connect these (source, destination) pairs, event by event; `delay_s(src, dst)` is the delay of
    a packet from rank to rank: the SYN, its answer, the first message, and the answer to all first messages."""
    now_s, said_s = 0.0, []
    for rank in range(ranks):
        for src, dst in pairs:
            if src == rank:
                now_s += delay_s(src, dst) + delay_s(dst, src)
                said_s.append((src, dst, now_s + delay_s(src, dst)))
    heard_s = [max([now_s, *(at for _, dst, at in said_s if dst == rank)]) for rank in range(ranks)]
    return max([*heard_s, *(heard_s[dst] + delay_s(dst, src) for src, dst, _ in said_s)])


def crossings(fabric, load, placement):
    """Return the (source, destination) ranks of each flow, None within a site."""
    site = [gpu.site for gpu in fabric.gpus]
    pairs = [(int(placement[a]), int(placement[b])) for a, b in zip(*load.schedule.ends, strict=True)]
    return [pair if site[pair[0]] != site[pair[1]] else None for pair in pairs], pairs


@given(seed=st.integers(0, 2**32 - 1), chooses=st.booleans(), algorithm=st.sampled_from(ALGORITHMS))
@settings(max_examples=60, deadline=None)
def test_new_connections_take_the_routes_in_force_each_direction_its_own(seed, chooses, algorithm):
    """The wait equals an event-by-event replay over three sites whose links have random delays of their own: a packet
    from rank a to rank b takes the path of the crossing from a to b before, if there was one and the mode chooses
    paths, and otherwise the first path between their sites."""
    chance = np.random.default_rng(seed)
    delays = chance.uniform(1e-6, 0.2, len(FABRIC.links))
    router = Router(FABRIC, delays)
    load = workload(*algorithm, sites=FABRIC.gpus_per_site, size_bytes=7_000)
    ranks = len(FABRIC.gpus)
    between = {pair: [path.index for path in paths] for pair, paths in FABRIC.paths_between.items()}
    site = [gpu.site for gpu in FABRIC.gpus]

    def first(src, dst):
        return between[site[src], site[dst]][0]

    placement = np.array([chance.permutation(ranks) for _ in range(5)], dtype=np.int16)
    path, routes = np.full((5, len(load.schedule.flows)), -1, dtype=np.int16), []
    for row in range(5):
        of_pair = {}
        for flow, pair in enumerate(crossings(FABRIC, load, placement[row])[0]):
            if pair is not None:
                index = int(chance.choice(between[site[pair[0]], site[pair[1]]])) if chooses else first(*pair)
                path[row, flow] = of_pair.setdefault(pair, index)
        routes.append(of_pair)
    found = cost.reconfiguring_s(
        router,
        load,
        placement=placement,
        path=path,
        before=(placement[:0], path[:1]),
        chooses=np.full(5, True),
        routed=True,
    )
    for row in range(5):
        in_force = routes[row - 1] if row else {}

        def delay_s(src, dst, in_force=in_force):
            over = -1 if site[src] == site[dst] else in_force.get((src, dst), first(src, dst))
            return float(sum(delays[link] for link in FABRIC.edge_links(src, dst, over)))

        pairs = crossings(FABRIC, load, placement[row])[1]
        is_kept = row > 0 and (placement[row] == placement[row - 1]).all()
        assert found[row] == pytest.approx(0.0 if is_kept else replayed_s(pairs, delay_s, ranks), rel=1e-9)


def test_counted_reconfiguration_time_is_added_to_the_completion_time() -> None:
    (setting,) = scenario_of(WORDS).configurations()
    free = replace(setting, control=replace(setting.control, counted=False))
    with_cost, without = (
        {one.mode: one.rows for one in Model(batch=1000).run([which])}  # type: ignore[union-attr]
        for which in (setting, free)
    )
    for mode in setting.run.modes:
        waits_s = with_cost[mode]["reconfigure_s"]
        expected = without[mode].completion_s + np.nan_to_num(waits_s)
        assert with_cost[mode].completion_s == pytest.approx(expected, rel=1e-12)
        assert "reconfigure_s" not in without[mode].columns
        assert waits_s[0] > 6e-3  # two round trips, and one more for the last messages
    assert np.isnan(with_cost["base"]["reconfigure_s"][1:]).all()
    assert (with_cost["wan"]["reconfigure_s"][1:] == 0).all()


def test_only_reconfigurations_that_changed_something_are_counted(tmp_path):
    """The oracle compares the stored rings and paths of consecutive collectives, and looks at the stored times."""
    text = """
        [conditions]
        sampler = "markov"
        wan_delay = "10 ms"
        [collective]
        count = 120
        [control]
        counted = true
        delay = "1 ms"
    """
    (tmp_path / "lasting.toml").write_text(text)
    points = answer(tmp_path / "json", "lasting.toml", "--engine", "model")["points"]
    stored = rows(tmp_path / "json")
    for point in points:
        here = stored[stored["mode"] == point["mode"]].reset_index()
        rings, paths = ([list(one) for one in here[name]] for name in ("ring", "paths"))
        changed = [k for k in range(1, 120) if rings[k] != rings[k - 1] or paths[k] != paths[k - 1]]
        times_s = here.reconfigure_s.to_numpy()
        assert point["first_reconfigure_s"] == times_s[0] > 0.05
        assert point["reconfigurations"] == len(changed)
        assert point["mean_reconfigure_s"] == (pytest.approx(times_s[changed].mean()) if changed else None)
        moved = [k for k in changed if sorted(paths[k]) != sorted(paths[k - 1]) or rings[k] == rings[k - 1]]
        assert point["path_changes"] == len(moved)
    by_mode = {one["mode"]: one for one in points}
    assert by_mode["ccl"]["path_changes"] == by_mode["base"]["path_changes"] == 0
    assert 0 < by_mode["wan"]["path_changes"] < 119  # for every collective it chooses, but not other paths
    assert by_mode["joint"]["path_changes"] < by_mode["joint"]["reconfigurations"]
    said, _ = ended("lasting.toml", "--engine", "model", "--out", tmp_path / "told", cwd=tmp_path)
    wan, joint = by_mode["wan"], by_mode["joint"]
    lines = [line.strip() for line in said.splitlines()]
    assert any(line.endswith(f" at first; 2.000, {wan['reconfigurations']} times") for line in lines)
    mean = f"{joint['mean_reconfigure_s'] * 1e3:.3f}, {joint['reconfigurations']} times"
    assert any(line.endswith(f"{mean}, paths {joint['path_changes']} times") for line in lines)
    page = (tmp_path / "told" / "report.html").read_text()
    cells = {one["mode"]: f"{1e3 * one['first_reconfigure_s']:.3f} at first" for one in points}
    assert f">{cells['base']}</td>" in page  # as the terminal has it: no "-" that nothing explains
    assert f">{cells['joint']}; {mean}, paths {joint['path_changes']} times</td>" in page


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
    wanted = ("--modes", "joint", "--collectives", "11", "--engine", "both")
    fidelity = answer(tmp_path / "run", "cost.toml", *wanted)["fidelity"]
    assert abs(fidelity["median_ratio"] - 1) < 1e-3 and fidelity["p99_abs_error"] < 0.01
    found = rows(tmp_path / "run")
    waits_s = found.set_index(["mode", "collective", "engine"]).reconfigure_s.unstack()
    assert waits_s["emulation"].to_list() == pytest.approx(waits_s["model"].to_list(), abs=50e-9)
    assert (found.completion_s > found.reconfigure_s.fillna(0)).all()


LOSSES = """
[fabric.wan]
links = [["s0b0", "s1b0"], ["s0b1", "s1b1"]]
[conditions]
wan_rate = "40 Gbit/s"
intra_rate = "200 Gbit/s"
wan_delay = "5 ms"
[collective]
kind = "allreduce"
size = "96 MB"
count = 4
[run]
modes = ["base", "wan"]
[[fault]]
at = "20 ms into collective 1"
what = "link s0b0-s1b0 down"
"""


def test_connections_that_recovery_makes_anew_after_losses_are_in_no_time_and_in_no_change_of_paths(tmp_path):
    """The other path is as fast, and a change of paths needs no new connections: collectives after the one that has
    lost packets take the time of those before it, in both modes, and the fault costs nothing in them."""
    (tmp_path / "losses.toml").write_text(LOSSES)
    sets = ("control.counted=true",)
    told = answer(tmp_path / "run", "losses.toml", "--engine", "emulation", "--collectives", "4", sets=sets)
    found = rows(tmp_path / "run")
    assert (found[found.collective == 1].drops > 100).all() and set(found["mode"]) == {"base", "wan"}
    first, later = found[found.collective == 0], found[found.collective >= 2]
    assert (first.reconfigure_s > 0.03).all()  # six WAN delays
    assert (later.reconfigure_s.fillna(0) == 0).all()
    assert later.completion_s.to_list() == pytest.approx([first.completion_s.min() - 0.030017] * 4, rel=1e-3)
    assert "change of paths" not in told["answer"]
    for point in told["points"]:
        (fault,) = point["faults"]
        assert {part["collective"]: part["cost_s"] for part in fault["costs"]}[2] == pytest.approx(0, abs=1e-4)
        assert fault["as_before"] == 2


APART = """
[conditions]
wan_delay = "5 ms"
[conditions.links]
"s0b0>X" = { delay = "50 ms" }
"s0b1>Y" = { delay = "20 ms" }
"Y>s2b0" = { delay = "80 ms" }
[collective]
chunk = "100 kB"
[control]
counted = true
delay = ["2 ms", "5 ms", "1 ms"]
[run]
modes = ["each"]
[[policy]]
name = "each"
reroute = "every 1"
reembed = "every 1"
"""
ECMP = """
[fabric]
gpus = 4
routing = "ecmp"
[conditions]
wan_delay = "5 ms"
[collective]
chunk = "100 kB"
reembed_every = 1
[control]
counted = true
delay = ["2 ms", "5 ms"]
[run]
modes = ["ccl"]
"""


ENGINEERED = """
[fabric]
gpus = [2, 3]
wan = "five-router"
routing = "te"
grain = "physical"
[te]
every = 2
[conditions]
wan_delay = "1 ms"
[collective]
kind = "alltoall"
chunk = "100 kB"
reembed_every = 3
[control]
counted = true
delay = ["1 ms", "4 ms"]
[run]
modes = ["ccl"]
"""
CHANGING = """
[fabric]
gpus = [2, 2]
[conditions]
wan_delay = "1 ms"
every = "2 ms"
[collective]
chunk = "8 MB"
reembed_every = 3
[control]
counted = true
delay = "1 ms"
[run]
modes = ["joint"]
"""


@pytest.mark.parametrize(
    ("words", "count", "least"),
    [(THREE_SITES + APART, 6, 3), (ECMP, 3, 2), (ENGINEERED, 5, 3), (CHANGING, 5, 5)],
    ids=["three sites", "ecmp", "te", "conditions by time"],
)
def test_measured_waits_equal_the_predicted_ones_on_paths_of_different_delay_and_for_spread_flows(
    words, count, least, tmp_path
):
    (tmp_path / "far.toml").write_text(words)
    wanted = ("--collectives", count, "--engine", "both", "--no-report", "--out", tmp_path / "run")
    ended("far.toml", *wanted, cwd=tmp_path)
    waits_s = rows(tmp_path / "run").set_index(["collective", "engine"]).reconfigure_s.unstack()
    assert waits_s["emulation"].to_list() == pytest.approx(waits_s["model"].to_list(), rel=2e-6, abs=1e-6, nan_ok=True)
    assert (waits_s["model"] > 0).sum() >= least
    found = rows(tmp_path / "run").set_index(["collective", "engine"]).completion_s.unstack()
    assert found["emulation"].to_list() == pytest.approx(found["model"].to_list(), rel=5e-3)


def test_a_remote_controller_takes_a_round_trip_to_the_farthest_site_that_it_changes():
    """The closed form for two sites; that measured times are the predicted ones is tested above."""
    far = WORDS.replace("counted = true", 'counted = true\ndelay = ["2 ms", "5 ms"]')
    (setting,) = scenario_of(far + '[run]\nmodes = ["wan"]\n').configurations()
    fabric = conditions_of(setting).fabric
    (model,) = (one.rows for one in Model(batch=1000).run([setting]))  # type: ignore[union-attr]
    for k in range(1, len(model["paths"])):
        both = zip(model["paths"][k - 1], model["paths"][k], strict=True)
        moved = {fabric.paths[old].src_site for old, new in both if old != new}
        trip_s = 2 * max(({0: 2e-3, 1: 5e-3}[site] for site in moved), default=0.0)
        assert model["reconfigure_s"][k] == pytest.approx(trip_s, abs=1e-9)
    assert len({round(one, 6) for one in model["reconfigure_s"][1:]}) > 1


@pytest.mark.parametrize(
    ("control", "says"),
    [
        ('delay = ["1 ms"]', "control.delay: 1 delay for 2 sites; allowed: one for each"),
        ('delay = "2 s"', '"2 s" is too large: a delay must be between 1 ns and 1 s'),
    ],
)
def test_invalid_controller_delays_are_refused(control, says):
    with pytest.raises(ScenarioError, match=re.escape(says)):
        scenario_of(f"[control]\n{control}")


def test_what_a_change_of_paths_and_one_of_the_ring_take_is_in_the_answer_where_it_counts():
    """Two changes are of the paths alone, of 4 ms each, and two of the ring; the first one opens all connections."""
    rows = pd.DataFrame(
        {
            "collective": range(6),
            "ring": [[0, 1], [0, 1], [0, 1], [1, 0], [0, 1], [0, 1]],
            "paths": [[0, 2], [1, 2], [0, 2], [0, 2], [0, 2], [0, 2]],
            "reconfigure_s": [0.016, 0.004, 0.004, 0.012, 0.020, 0.0],
            "rerouted_within": 0,
            "moved_within": 0,
        }
    )
    changes = reconfigurations_of(rows, "model")
    paths = replace(changes, rings=0, rings_s=None)

    def said(counted, points):
        config = SimpleNamespace(control=SimpleNamespace(counted=counted))
        points = [SimpleNamespace(mode=mode, changes=each) for mode, each in points.items()]
        return change_costs_sentence([SimpleNamespace(engine="model", config=config, points=points)])

    assert said(True, {"wan": paths, "joint": changes}) == (
        "A change of paths alone takes 4 ms (wan 2 times, joint 2 times); one of the ring, with its connections, takes "
        "16 ms (joint 2 times); both are in these times."
    )
    assert said(True, {"wan": paths}).endswith("(wan 2 times); it is in these times.")
    assert not said(False, {"wan": paths})
