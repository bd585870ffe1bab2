"""Measured knowledge: link rates from message times, port counters and probes, the decisions based on these rates, and
the replay of every decision from a run folder."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.rank_programs import moves
from hosts.collectives.schedule import Flow, Schedule, Transfer
from scenarios.engines.prediction import Plan, PointPredictor, decisions_of
from scenarios.policies.beliefs import MeasuredEnds
from scenarios.policies.conditions import conditions_of
from scenarios.policies.cost import delays_between_s, probing_s
from scenarios.policies.knowledge import PORTS
from scenarios.policies.measured_knowledge import (
    counted_alone,
    is_observed,
    links_by_flow,
    links_passed,
    predicted_readings,
    probe_takes_s,
    probed_before,
    probed_links,
    rates_from_counters,
    rates_from_messages,
    rates_from_probes,
    updated_rates,
)
from scenarios.policies.outcome import Readings, readings
from scenarios.spec import ScenarioError, faults
from scenarios.spec.faults import active
from scenarios.spec.load import load_scenario, scenario_of
from tests.fakes.runs import answer, measured, rows
from topologies.fabric.maps import read_wan
from topologies.shaping.classes import SHORT_SEGMENT_BYTES

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
PORTS_POLICY = """
[control]
delay = ["1 ms", "2 ms"]
[conditions]
sampler = "markov"
mean_stay = 3
[collective]
count = 6
emulated = 6
[run]
modes = ["ports"]
[[policy]]
name = "ports"
reroute = "every 1"
reembed = "every 2"
knowledge = "measured ports"
measure_every = "700 us"
"""


PROBES = """
[control]
counted = true
delay = ["1 ms", "2 ms"]
[conditions]
sampler = "markov"
mean_stay = 3
[collective]
count = {count}
emulated = {count}
[run]
modes = ["probes"]
[[policy]]
name = "probes"
reroute = "gain 0.05"
reembed = "every 2"
knowledge = "probed"
"""


def setting_of(more="", count=30):
    (setting,) = scenario_of(POLICIES.format(count=count) + more).configurations()
    return setting


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_message_times_measure_the_bottleneck_rate_of_used_links_and_of_no_unused_link(grain):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"')
    conditions = conditions_of(setting)
    decisions = decisions_of(setting, "base", conditions, start=0, count=5)
    links = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = Plan(setting, "base", decisions, conditions).times()
    for row, true_bps in enumerate(conditions.shared_bps(0, 5)):
        ends = {"sent_s": found.begins_s[:, row], "arrived_s": found.arrives_s[:, row]}
        seen_bps = rates_from_messages(setting.workload, links[row], conditions.shared_delays_s, **ends)
        used = np.unique(links[row][links[row] >= 0])
        assert (~np.isnan(seen_bps)).nonzero()[0].tolist() == used.tolist()
        assert (seen_bps[used] <= true_bps[used] + 1).all()
        if grain == "logical":  # on this grain each flow of a ring has its links to itself
            for passed in links[row]:
                passed = passed[passed >= 0]
                assert seen_bps[passed] == pytest.approx(np.full(passed.size, true_bps[passed].min()), rel=1e-9)


def test_the_rate_of_a_link_that_two_flows_share_is_measured_from_both_together():
    setting = setting_of("[fabric]\ngpus = [2, 2]\n[[job]]\nranks = [0, 2]\n[[job]]\nranks = [0, 2]")
    conditions = conditions_of(setting)
    decisions = decisions_of(setting, "base", conditions, start=0, count=1)
    (links,) = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = Plan(setting, "base", decisions, conditions).times()
    ends = {"sent_s": found.begins_s[:, 0], "arrived_s": found.arrives_s[:, 0]}
    seen_bps = rates_from_messages(setting.workload, links, conditions.shared_delays_s, **ends)
    (true_bps,) = conditions.shared_bps(0, 1)
    for passed in links:
        slowest = passed[passed >= 0][true_bps[passed[passed >= 0]].argmin()]
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=1e-9)


def test_empty_messages_measure_no_rate():
    sizes = {0: 0.0, 1: 1000.0}  # by link
    schedule = Schedule(
        places=3,
        slots=0,
        flows=(Flow(0, 1), Flow(0, 2)),
        transfers=tuple(Transfer(flow=flow, size=size) for flow, size in sizes.items()),
    )
    workload = Workload(kind="messages", algorithm="it", schedule=schedule, slot_bytes=1)
    ends = {"sent_s": np.zeros(2), "arrived_s": np.array([1e-3, 1e-3 + 8e-6])}
    seen_bps = rates_from_messages(workload, np.array([[0], [1]], np.int32), np.full(2, 1e-3), **ends)
    assert np.isnan(seen_bps[0]) and seen_bps[1] == pytest.approx(1e9)


@pytest.mark.parametrize("mode", ["greedy", "calm", "ports", "probes"])
def test_decisions_of_measuring_policies_do_not_depend_on_batch_boundaries(mode):
    more = '[[policy]]\nname = "ports"\nreroute = "every 2"\nreembed = "every 3"\nknowledge = "measured ports"\n'
    more += '[[policy]]\nname = "probes"\nreroute = "gain 0.1"\nreembed = "every 3"\nknowledge = "probed"\n'
    setting = setting_of(more)
    conditions = conditions_of(setting)
    whole = decisions_of(setting, mode, conditions, start=0, count=30)
    again = setting_of(more, count=31)
    part = decisions_of(again, mode, conditions_of(again), start=17, count=9)
    for name in ("placement", "path", "reembedded", "rerouted", "alpha_s", "beta_s"):
        assert (getattr(part, name) == getattr(whole, name)[17:26]).all()
    chosen = np.concatenate([whole.placement, whole.path], axis=1)
    assert (chosen[1:] != chosen[:-1]).any(axis=1).sum() > 1


def test_before_any_measurement_every_link_is_believed_to_have_its_mean_rate():
    setting = setting_of('[[policy]]\nname = "mean"\nreroute = "every 1"\nreembed = "every 2"\nknowledge = "mean"')
    found = [decisions_of(setting, mode, conditions_of(setting), start=0, count=1) for mode in ("greedy", "mean")]
    assert found[0].placement.tolist() == found[1].placement.tolist()
    assert found[0].path.tolist() == found[1].path.tolist()


def test_too_short_a_time_between_readings_of_port_counters_is_refused():
    with pytest.raises(ScenarioError, match='"99 us" is too small: a delay must be between 100 us'):
        scenario_of('[[policy]]\nname = "p"\nreroute = "every"\nknowledge = "measured ports"\nmeasure_every = "99 us"')


def test_testbed_decisions_from_message_times_replay_from_the_run_folder(tmp_path):
    (tmp_path / "measured.toml").write_text(POLICIES.format(count=10))
    fidelity = answer(tmp_path / "run", "measured.toml", "--engine", "emulation", "--modes", "greedy")["fidelity"]
    assert (fidelity["collectives"], fidelity["drops"]) == (10, 0)
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).configurations()
    conditions = conditions_of(setting)
    collectives, transfers = rows(tmp_path / "run"), pd.read_parquet(tmp_path / "run" / "transfers.parquet")
    for mode, here in collectives.groupby("mode"):
        expected, chosen = PointPredictor(setting, mode), set()
        for row in here.itertuples():
            found = expected.of(row.collective)
            assert found.placement.tolist() == list(row.ring)
            assert found.path.tolist() == list(row.paths)
            chosen.add((tuple(row.ring), tuple(row.paths)))
            ends = transfers[(transfers["mode"] == mode) & (transfers.collective == row.collective)]
            task = [move.task for move in moves(setting.carried_workload, list(row.ring))]
            sent_s, arrived_s = np.empty((2, len(task)))
            sent_s[task], arrived_s[task] = ends.start_s, ends.end_s
            expected.observed(row.collective, sent_s=sent_s, arrived_s=arrived_s)
            (true_bps,) = conditions.shared_bps(row.collective, 1)
            ranks, paths = np.array([row.ring]), np.array([row.paths])
            (links,) = links_passed(setting.workload, ranks, paths, conditions, start=row.collective, spreads=False)
            seen_bps = rates_from_messages(
                setting.workload, links, conditions.shared_delays_s, sent_s=sent_s, arrived_s=arrived_s
            )
            slowest_bps = [true_bps[passed[passed >= 0]].min() for passed in links]
            assert seen_bps[links[:, 0]] == pytest.approx(np.array(slowest_bps), rel=1e-3)
        assert len(chosen) > 2


@given(
    rate_bps=st.floats(1e9, 2e11),
    parts=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 5e-3)), min_size=1, max_size=6),
    every_s=st.floats(1e-4, 5e-3),
    wide_s=st.lists(st.floats(0, 5e-4), min_size=1, max_size=7),
)
def test_a_rate_measured_from_port_counters_never_exceeds_the_link_rate(rate_bps, parts, every_s, wide_s):
    """A link sends segments in bursts with gaps, and counts a segment when it begins; the instant of a reading is only
    known to lie between its `since_s` and `until_s`."""
    at_s, begins_s = 0.0, []
    for segments, gap_s in parts:
        begins_s += [at_s + number * 8 * SHORT_SEGMENT_BYTES / rate_bps for number in range(segments)]
        at_s = begins_s[-1] + 8 * SHORT_SEGMENT_BYTES / rate_bps + gap_s
    read_s = np.arange(0, at_s + every_s, every_s)
    wide = np.resize(wide_s, read_s.size)
    sent = np.searchsorted(begins_s, read_s, side="right") * SHORT_SEGMENT_BYTES
    found = Readings(
        link=np.array([1]), since_s=(read_s - wide)[:, None], until_s=(read_s + wide)[:, None], sent_bytes=sent[:, None]
    )
    none, seen_bps = rates_from_counters(found, links=2, fair=True)
    assert np.isnan(none)
    assert np.isnan(seen_bps) or 0 < seen_bps <= rate_bps * (1 + 1e-6) + 1


def test_idle_links_keep_their_believed_rate_and_the_fullest_link_limits_the_flow():
    before_bps = np.array([50.0, 40.0, 30.0, 20.0, 90.0, 60.0])
    seen_bps = np.array([np.nan, 25.0, 25.0, 25.0, 80.0, np.nan])
    flows = np.array([[1, 2, -1], [3, 1, -1], [4, 5, -1]], dtype=np.int32)
    # Link 2 is the fullest link of the first flow's route. Link 3 was measured faster than believed, so that it is now
    # the fullest of the second route. On the third route only link 4 was measured.
    assert updated_rates(PORTS, before_bps, seen_bps, flows).tolist() == [50.0, 40.0, 25.0, 25.0, 80.0, 60.0]


@pytest.mark.parametrize("grain", ["logical", "physical"])
@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_predicted_counters_measure_at_most_the_link_rate_and_nearly_all_for_a_ring(grain, kind):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"').with_values({"collective.kind": kind})
    conditions = conditions_of(setting)
    decisions = decisions_of(setting, "base", conditions, start=0, count=1)
    (links,) = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = Plan(setting, "base", decisions, conditions).times()
    (true_bps,), names = conditions.shared_bps(0, 1), [link.name for link in conditions.shared.all]
    link = counted_alone(conditions.fabric, links)
    fair = setting.fair_links("base") is not None
    read = predicted_readings(setting.workload, links, true_bps, link, found, every_s=1e-4, fair=fair)
    seen_bps = rates_from_counters(read, links=len(names), fair=fair)
    used = set(links[links >= 0].tolist())
    if grain == "physical":  # a GPU's own port is left out: it counts bytes before they queue
        assert {names[one] for one in used - set(link.tolist())} == {name for name in names if name.startswith("g")}
    elif kind == "allgather":
        assert set(link.tolist()) == used
    else:  # several logical links leave a GPU through the same port
        assert {conditions.shared.all[one].kind for one in link} == {"wan"}
    assert (seen_bps[link] <= true_bps[link] + 1).all()
    slowest = min(used, key=lambda one: true_bps[one])
    if kind == "allgather" and slowest in link:
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=0.05)


def test_testbed_decisions_from_port_counters_replay_from_the_run_folder(tmp_path):
    (tmp_path / "ports.toml").write_text(PORTS_POLICY)
    fidelity = answer(tmp_path / "run", "ports.toml", "--engine", "emulation")["fidelity"]
    assert (fidelity["collectives"], fidelity["drops"]) == (6, 0)
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).configurations()
    assert setting.mode("ports").measure_every_s == 700e-6
    conditions, expected, chosen = conditions_of(setting), PointPredictor(setting, "ports"), set()
    counters = pd.read_parquet(tmp_path / "run" / "counters.parquet")
    for row in rows(tmp_path / "run").itertuples():
        found = expected.of(row.collective)
        assert (found.placement.tolist(), found.path.tolist()) == (list(row.ring), list(row.paths))
        chosen.add((tuple(row.ring), tuple(row.paths)))
        here = counters[counters.collective == row.collective]
        columns = (here.link, here.since_s * 1e9, here.until_s * 1e9, here.sent_bytes)
        read = readings(np.rint(np.column_stack(columns)).astype(np.int64))
        assert (read.until_s - read.since_s < 1e-3).all()  # excludes the control delays to the switches
        expected.observed(row.collective, sent_s=np.empty(0), arrived_s=np.empty(0), readings=read)
        ranks, paths = np.array([row.ring]), np.array([row.paths])
        (links,) = links_passed(setting.workload, ranks, paths, conditions, start=row.collective, spreads=False)
        assert set(read.link.tolist()) == set(links[links >= 0].tolist())
        (true_bps,) = conditions.shared_bps(row.collective, 1)
        seen_bps = rates_from_counters(read, links=true_bps.size, fair=False)
        slowest = min(read.link.tolist(), key=lambda one: true_bps[one])
        assert (seen_bps[read.link] <= true_bps[read.link] + 1).all()
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=0.15)
    assert len(chosen) > 2


NEAR = '[[policy]]\nname = "near"\nreroute = "every {every}"\nknowledge = "probed"\n'


@pytest.mark.parametrize("wan", ["mesh", "five-router"])
@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_a_probe_measures_the_rate_of_the_slowest_link_on_its_path(grain, wan):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"\nwan = "{wan}"\n' + NEAR.format(every=1))
    conditions = conditions_of(setting)
    probes = probed_before(setting, setting.mode("near"), conditions, 4, None)
    crossings = {(src, dst) for src, dst, _ in probes.tolist()}
    assert crossings == {(3, 4), (7, 0)}
    assert len(probes) == sum(len(conditions.fabric.paths_between[pair]) for pair in ((0, 1), (1, 0)))
    links = probed_links(conditions, 4, probes)
    seen_bps = rates_from_probes(conditions, 4, probes, probe_takes_s(conditions, 4, probes, 250_000), 250_000)
    (true_bps,) = conditions.shared_bps(4, 1)
    used = np.unique(links[links >= 0])
    assert (~np.isnan(seen_bps)).nonzero()[0].tolist() == used.tolist()
    for row in links:
        way = row[row >= 0]
        assert seen_bps[way].min() == pytest.approx(true_bps[way].min(), rel=1e-6)


def test_probed_knowledge_chooses_the_oracles_paths_when_no_two_paths_share_a_wan_link():
    setting = setting_of(NEAR.format(every=1), count=200).with_values({"conditions.sampler": "uniform"})
    conditions = conditions_of(setting)
    probed, known = (decisions_of(setting, mode, conditions, start=0, count=200) for mode in ("near", "wan"))
    assert (probed.path == known.path).all()
    assert (probed.path[1:] != probed.path[:-1]).any()


def test_the_answer_to_a_probe_returns_over_the_path_in_force():
    """One probe: its connection takes two round trips, and its answer takes half of a third."""
    values = {"fabric.wan": read_wan("five-router"), "fabric.gpus": (2, 2), "collective.kind": "alltoall"}
    setting = setting_of(NEAR.format(every=1), count=1).with_values(values | {"conditions.wan_delay": 2e-3})
    conditions = conditions_of(setting)
    router, workload = Router(conditions.fabric, conditions.delays_s), setting.workload
    ends = list(zip(*workload.schedule.ends, strict=True))
    flow = ends.index((2, 0))
    took_s = {}
    for over in conditions.fabric.paths_between[1, 0]:
        path = np.full(len(ends), -1, dtype=np.int16)
        path[flow] = over.index
        in_force = np.arange(4, dtype=np.int16)[None], path[None]
        (delay_s,) = delays_between_s(router, workload, *in_force, routed=True)
        probes = np.array([[0, 2, conditions.fabric.paths_between[0, 1][0].index]], dtype=np.int16)
        took_s[len(over.links)] = probing_s(router, probes, np.array([1.0]), delay_s=delay_s)
    least, most = min(took_s), max(took_s)
    assert most > least and took_s[most] - took_s[least] == pytest.approx(3 * 2e-3 * (most - least))


def test_probing_takes_a_round_trip_and_transmission_per_probe_plus_two_round_trips():
    """Computed by hand: eight probes over WAN links of 10 Gbit/s, before every third collective."""
    keys = '[conditions.links]\nwan = { rate = "10 Gbit/s", delay = "2 ms" }\n[control]\ncounted = true\n'
    setting = setting_of(keys + NEAR.format(every=3), count=7)
    conditions = conditions_of(setting)
    waits_s = Plan(
        setting, "near", decisions_of(setting, "near", conditions, start=0, count=7), conditions
    ).reconfiguring_s()
    trip_s = 2 * (2e-3 + 2 * 700e-9)
    probing_s = 8 * (8 * 250_000 / 10e9 + trip_s) + 2 * trip_s
    assert np.isnan(waits_s[[1, 2, 4, 5]]).all()
    assert waits_s[[3, 6]] == pytest.approx([probing_s, probing_s], rel=1e-9)
    assert waits_s[0] > probing_s + trip_s  # plus the setup of the ring's connections
    weighs = setting_of("[[policy]]" + PROBES.partition("[[policy]]")[2], count=5)
    waits_s = Plan(
        weighs, "probes", decisions_of(weighs, "probes", conditions_of(weighs), start=0, count=5), conditions
    ).reconfiguring_s()
    assert (waits_s > 0).all()  # a gain policy probes before every decision


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('[fabric]\ngpus = 32\n[collective]\nkind = "alltoall"', "near has 2,048 probes, .*; allowed: 400"),
        ('[control]\nprobe = "2 MB"', '"2 MB" is too large: a size must be between 10 kB and 1 MB'),
    ],
)
def test_settings_that_probes_do_not_support_are_refused(keys, says):
    with pytest.raises(ScenarioError, match=says):
        scenario_of(NEAR.format(every=1) + keys)


@pytest.mark.parametrize("delay", ["10 us", "1 ms"])
def test_probes_show_rates_where_flows_begin_in_slow_start(delay, tmp_path):
    own = NEAR.format(every=1) + f'[conditions]\nwan_delay = "{delay}"\n[transport]\nline_rate = false\n'
    own += '[collective]\ncount = 2\nemulated = 2\n[run]\nmodes = ["near"]\n'
    (tmp_path / "slowly.toml").write_text(own)
    assert answer(tmp_path / "run", "slowly.toml")["fidelity"]["drops"] == 0
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).configurations()
    conditions, probes = conditions_of(setting), pd.read_parquet(tmp_path / "run" / "probes.parquet")
    assert len(probes) == 16
    for number, here in probes.groupby("collective"):
        sent = here[["src", "dst", "path"]].to_numpy().astype(np.int16)
        took_s = (here.arrived_s - here.sent_s).to_numpy()
        assert took_s == pytest.approx(probe_takes_s(conditions, number, sent, 250_000), rel=0.004)


def test_probes_through_the_ports_of_tunnels_take_the_predicted_times_and_both_engines_choose_alike(tmp_path):
    """Such a port makes up for 2 us: of a probe's 250 kB at 60 Gbit/s that is 6 %."""
    own = (
        NEAR.format(every=1)
        + '[fabric]\nrouting = "te"\n[collective]\ncount = 3\nemulated = 3\n[run]\nmodes = ["near"]\n'
    )
    (tmp_path / "tunnels.toml").write_text(own)
    fidelity = measured(tmp_path / "run", "tunnels.toml", collectives=3, p99=0.001)["fidelity"]
    assert fidelity["collectives"] == 3
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).configurations()
    conditions, probes = conditions_of(setting), pd.read_parquet(tmp_path / "run" / "probes.parquet")
    for number, here in probes.groupby("collective"):
        sent = here[["src", "dst", "path"]].to_numpy().astype(np.int16)
        took_s = (here.arrived_s - here.sent_s).to_numpy()
        assert took_s == pytest.approx(probe_takes_s(conditions, number, sent, 250_000, tunnels=True), rel=0.004)
        assert abs(took_s / probe_takes_s(conditions, number, sent, 250_000) - 1).max() > 0.02
    found = rows(tmp_path / "run").set_index(["engine", "collective"]).sort_index()
    assert [*map(list, found.loc["emulation"].paths)] == [*map(list, found.loc["model"].paths)]


@pytest.mark.parametrize(
    ("fabric", "count"), [("", 5), ('[fabric]\ngrain = "physical"\nrails = 2\nrouting = "ecmp"', 3)]
)
def test_decisions_from_probes_replay_from_the_run_folder_and_probing_time_is_predicted(tmp_path, fabric, count):
    (tmp_path / "probes.toml").write_text(PROBES.format(count=count) + fabric)
    fidelity = answer(tmp_path / "run", "probes.toml")["fidelity"]
    assert (fidelity["collectives"], fidelity["drops"]) == (count, 0)
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).configurations()
    conditions, expected, chosen = conditions_of(setting), PointPredictor(setting, "probes"), set()
    found = rows(tmp_path / "run").set_index(["engine", "collective"]).sort_index()
    assert found.loc["emulation"].reconfigure_s.to_numpy() == pytest.approx(
        found.loc["model"].reconfigure_s.to_numpy(), rel=0.001
    )
    probes = pd.read_parquet(tmp_path / "run" / "probes.parquet")
    for row in found.loc["emulation"].reset_index().itertuples():
        here = probes[probes.collective == row.collective]
        columns = (here.src, here.dst, here.path, here.sent_s * 1e9, here.arrived_s * 1e9)
        table = np.rint(np.column_stack(columns)).astype(np.int64)
        expected.probed(row.collective, table)
        again = expected.of(row.collective)
        assert (again.placement.tolist(), again.path.tolist()) == (list(row.ring), list(row.paths))
        chosen.add((tuple(row.ring), tuple(row.paths)))
        (true_bps,) = conditions.shared_bps(row.collective, 1)
        for way, (_, _, _, sent_ns, arrived_ns) in zip(
            probed_links(conditions, row.collective, table[:, :3].astype(np.int16)), table, strict=True
        ):
            slowest_bps, delay_s = true_bps[way[way >= 0]].min(), conditions.shared_delays_s[way[way >= 0]].sum()
            rate_bps = 8 * setting.control.probe_bytes / ((arrived_ns - sent_ns) / 1e9 - delay_s)
            assert rate_bps == pytest.approx(slowest_bps, rel=0.005)
    assert len(chosen) >= count // 2


STRUCK = (
    POLICIES
    + """
[[fault]]
at = "collective 3"
what = "link s0b0-s1b0 down"
for = "4 collectives"
[[fault]]
at = "collective 5"
what = "agent 2 slow 10x"
for = "5 collectives"
"""
)


@pytest.mark.parametrize("grain", ["logical", "physical"])
@pytest.mark.parametrize("mode", ["greedy", "calm"])
def test_decisions_under_faults_replay_and_avoid_the_failed_wan_link(grain, mode):
    (setting,) = scenario_of(STRUCK.format(count=14)).with_values({"fabric.grain": grain}).configurations()
    conditions, expected = conditions_of(setting), PointPredictor(setting, mode)
    (dead,) = [link.index for link in conditions.fabric.links if link.name == "s0b0>s1b0"]
    over = [path.index for path in conditions.fabric.paths if dead in path.links]
    for k in range(14):
        planned = decisions_of(setting, mode, conditions, start=k, count=1)
        found = expected.of(k, [index for index, fault in enumerate(setting.faults) if fault in conditions.in_force(k)])
        assert (found.placement.tolist(), found.path.tolist()) == (
            planned.placement[0].tolist(),
            planned.path[0].tolist(),
        )
        assert not (3 <= k < 7 and np.isin(found.path, over).any())
        seen = Plan(setting, mode, planned, conditions, k).times()
        expected.observed(k, sent_s=seen.begins_s[:, 0], arrived_s=seen.arrives_s[:, 0])


def test_a_failed_link_is_known_at_once_and_a_slow_link_after_its_first_measurement():
    (setting,) = scenario_of(STRUCK.format(count=14)).configurations()
    conditions, mode, seen = conditions_of(setting), setting.mode("greedy"), dict[int, float]()
    names = [link.name for link in conditions.fabric.links]
    wan, slow = names.index("s0b0>s1b0"), names.index("g2>g3")

    belief, flow = MeasuredEnds(setting, mode, conditions), {wan: 0, slow: 1}
    links = np.full((len(setting.workload.schedule.flows), 1), -1, dtype=np.int32)
    links[[*flow.values()], 0] = [*flow]

    def outcome(number):
        """Messages over both links: over the first at 7 Gbit/s, over the second at its true rate."""
        arrived_s = np.zeros(len(setting.workload.schedule.transfers))
        for link, bps in ((wan, 7e9), (slow, conditions.shared_bps(number, 1)[0][slow])):
            own = [at for at, one in enumerate(setting.workload.schedule.transfers) if one.flow == flow[link]]
            bits = np.cumsum([8 * setting.workload.schedule.transfers[at].amount for at in own])
            arrived_s[own] = conditions.shared_delays_s[link] + bits * setting.workload.slot_bytes / bps
        return SimpleNamespace(number=number, links=links, sent_s=np.zeros_like(arrived_s), arrived_s=arrived_s)

    for k in range(14):
        rates_bps = belief.before(k)
        seen[k] = rates_bps[slow]
        assert rates_bps[wan] == (0 if 3 <= k < 7 else 7e9 if k else conditions.mean_bps[wan])
        if k:
            assert rates_bps[slow] == round(conditions.shared_bps(k - 1, 1)[0][slow])
        belief.after(outcome(k))
    (true_bps,) = conditions.drawn.rates_bps(5, 1)
    assert seen[6] == pytest.approx(true_bps[slow] / 10)


def test_no_rate_is_learnt_when_a_cable_is_cut_mid_collective_or_without_a_controller():
    faults = load_faults(
        ("1 ms into collective 2", "link s0b0-s1b0 down", None),
        ("1 ms into collective 3", "agent 1 slow 2x", None),
        ("collective 5", "switch s0p0 down", None),
        ("1 ms into collective 6", "controller killed", None),
        ("collective 8", "controller killed", "2 collectives"),
    )
    assert [k for k in range(12) if not is_observed(faults, active(faults, k), k)] == [2, 8, 9]


def load_faults(*found):
    tables = [{"at": at, "what": what} | ({} if lasts is None else {"for": lasts}) for at, what, lasts in found]
    return faults.read(tables)


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_probes_avoid_failed_links_and_measure_slow_ones(grain):
    """On the mesh, the chosen paths still equal those of an oracle before every collective."""
    near = '[[policy]]\nname = "near"\nreroute = "every 1"\nknowledge = "probed"\n[[fault]]'
    of = STRUCK.format(count=14).replace('["greedy", "calm"]', '["near"]').replace("[[fault]]", near, 1)
    (setting,) = scenario_of(of).with_values({"fabric.grain": grain, "conditions.sampler": "uniform"}).configurations()
    conditions = conditions_of(setting)
    probed, known = (decisions_of(setting, mode, conditions, start=0, count=14) for mode in ("near", "wan"))
    assert (probed.path == known.path).all()
    counts = [len(probed_before(setting, setting.mode("near"), conditions, k, None)) for k in range(14)]
    assert counts == [8] * 3 + [6] * 4 + [8] * 7
