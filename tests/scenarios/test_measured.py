"""Knowledge that is measured: what messages and counters tell of links, what is chosen by that, and that every choice
replays."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.path_choice import Router
from hosts.collectives.program import moves
from scenarios.engines.prediction import Expectations, Plan, decided
from scenarios.policies.conditions import conditions_of
from scenarios.policies.cost import probing_s
from scenarios.policies.knowledge import PORTS
from scenarios.policies.measured import (
    Readings,
    at_ends,
    at_ports,
    at_probes,
    counted_alone,
    learnt,
    links_by_flow,
    links_passed,
    predicted_readings,
    probe_takes_s,
    probed_before,
    probed_links,
    readings,
    tells,
)
from scenarios.spec import ScenarioError, faults
from scenarios.spec.faults import active
from scenarios.spec.load import load_scenario, scenario_of
from tests.fakes.runs import answer, rows
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
    (setting,) = scenario_of(POLICIES.format(count=count) + more).settings()
    return setting


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_messages_tell_the_slowest_link_of_their_way_and_nothing_of_other_links(grain):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"')
    conditions = conditions_of(setting)
    decisions = decided(setting, "base", conditions, start=0, count=5)
    links = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = Plan(setting, "base", decisions, conditions).times()
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
    found = Plan(setting, "base", decisions, conditions).times()
    ends = {"sent_s": found.begins_s[:, 0], "arrived_s": found.arrives_s[:, 0]}
    seen_bps = at_ends(setting.workload, links, conditions.shared_delays_s, **ends)
    (true_bps,) = conditions.shared_bps(0, 1)
    for passed in links:
        slowest = passed[passed >= 0][true_bps[passed[passed >= 0]].argmin()]
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=1e-9)


@pytest.mark.parametrize("mode", ["greedy", "calm", "ports", "probes"])
def test_however_the_work_is_cut_the_choices_are_the_same(mode):
    more = '[[policy]]\nname = "ports"\nreroute = "every 2"\nreembed = "every 3"\nknowledge = "measured ports"\n'
    more += '[[policy]]\nname = "probes"\nreroute = "gain 0.1"\nreembed = "every 3"\nknowledge = "probed"\n'
    setting = setting_of(more)
    conditions = conditions_of(setting)
    whole = decided(setting, mode, conditions, start=0, count=30)
    again = setting_of(more, count=31)
    part = decided(again, mode, conditions_of(again), start=17, count=9)
    for name in ("placement", "path", "reembedded", "rerouted", "alpha_s", "beta_s"):
        assert (getattr(part, name) == getattr(whole, name)[17:26]).all()
    chosen = np.concatenate([whole.placement, whole.path], axis=1)
    assert (chosen[1:] != chosen[:-1]).any(axis=1).sum() > 1


def test_before_anything_was_used_every_link_has_its_rate_in_the_long_run():
    setting = setting_of('[[policy]]\nname = "mean"\nreroute = "every 1"\nreembed = "every 2"\nknowledge = "mean"')
    found = [decided(setting, mode, conditions_of(setting), start=0, count=1) for mode in ("greedy", "mean")]
    assert found[0].placement.tolist() == found[1].placement.tolist()
    assert found[0].path.tolist() == found[1].path.tolist()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            'knowledge = "measured ports"\nmeasure_every = "99 us"',
            '"99 us" is too small; allowed: text with a unit, 100 us',
        ),
        ('knowledge = "mean"\nmeasure_every = "1 ms"', "measure_every: has no effect with this knowledge"),
        ('knowledge = "measured ports"\n[run]\nmodes = ["p"]\nclock = "wall"', "which the wall clock does not provide"),
    ],
)
def test_what_counters_cannot_tell_is_refused(keys, says):
    with pytest.raises(ScenarioError, match=says):
        scenario_of(f'[[policy]]\nname = "p"\nreroute = "every 1"\n{keys}')


def test_every_choice_of_the_testbed_replays_from_what_the_run_folder_has(tmp_path):
    (tmp_path / "measured.toml").write_text(POLICIES.format(count=10))
    fidelity = answer(tmp_path / "run", "measured.toml", "--engine", "emulation")["fidelity"]
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


@given(
    rate_bps=st.floats(1e9, 2e11),
    parts=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 5e-3)), min_size=1, max_size=6),
    every_s=st.floats(1e-4, 5e-3),
    wide_s=st.lists(st.floats(0, 5e-4), min_size=1, max_size=7),
)
def test_counters_never_tell_more_than_a_link_has(rate_bps, parts, every_s, wide_s):
    """A link sends segments that count as they begin, in bursts with gaps; readings are somewhere in wide instants."""
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
    none, seen_bps = at_ports(found, links=2, fair=True)
    assert np.isnan(none)
    assert np.isnan(seen_bps) or 0 < seen_bps <= rate_bps * (1 + 1e-6) + 1


def test_idle_links_keep_what_is_believed_and_the_fullest_of_a_way_is_taken_to_have_limited_the_flow():
    before_bps = np.array([50.0, 40.0, 30.0, 20.0, 90.0, 60.0])
    seen_bps = np.array([np.nan, 25.0, 25.0, 25.0, 80.0, np.nan])
    flows = np.array([[1, 2, -1], [3, 1, -1], [4, 5, -1]], dtype=np.int32)
    # Link 2 was the fullest of its way; link 3 proved faster than believed, so it is the fullest of the next; of the
    # last only link 4 is known.
    assert learnt(PORTS, before_bps, seen_bps, flows).tolist() == [50.0, 40.0, 25.0, 25.0, 80.0, 60.0]


@pytest.mark.parametrize("grain", ["logical", "physical"])
@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_predicted_counters_tell_at_most_what_links_have_and_of_a_ring_nearly_all_of_it(grain, kind):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"').with_values({"collective.kind": kind})
    conditions = conditions_of(setting)
    decisions = decided(setting, "base", conditions, start=0, count=1)
    (links,) = links_by_flow(setting.workload, decisions, conditions, start=0)
    found = Plan(setting, "base", decisions, conditions).times()
    (true_bps,), names = conditions.shared_bps(0, 1), [link.name for link in conditions.shared.all]
    link = counted_alone(conditions.fabric, links)
    fair = setting.fair_links("base") is not None
    read = predicted_readings(setting.workload, links, true_bps, link, found, every_s=1e-4, fair=fair)
    seen_bps = at_ports(read, links=len(names), fair=fair)
    used = set(links[links >= 0].tolist())
    if grain == "physical":  # a port's counter is its own; what a GPU sends is counted before it waits
        assert {names[one] for one in used - set(link.tolist())} == {name for name in names if name.startswith("g")}
    elif kind == "allgather":
        assert set(link.tolist()) == used
    else:  # other links of a GPU leave by the same ports
        assert {conditions.shared.all[one].kind for one in link} == {"wan"}
    assert (seen_bps[link] <= true_bps[link] + 1).all()
    slowest = min(used, key=lambda one: true_bps[one])
    if kind == "allgather" and slowest in link:
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=0.05)


def test_every_choice_by_counters_replays_from_those_that_the_run_folder_has(tmp_path):
    (tmp_path / "ports.toml").write_text(PORTS_POLICY)
    fidelity = answer(tmp_path / "run", "ports.toml", "--engine", "emulation")["fidelity"]
    assert (fidelity["collectives"], fidelity["drops"]) == (6, 0)
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).settings()
    assert setting.mode("ports").measure_every_s == 700e-6
    conditions, expected, chosen = conditions_of(setting), Expectations(setting, "ports"), set()
    counters = pd.read_parquet(tmp_path / "run" / "counters.parquet")
    for row in rows(tmp_path / "run").itertuples():
        found = expected.of(row.collective)
        assert (found.placement.tolist(), found.path.tolist()) == (list(row.ring), list(row.paths))
        chosen.add((tuple(row.ring), tuple(row.paths)))
        here = counters[counters.collective == row.collective]
        columns = (here.link, here.since_s * 1e9, here.until_s * 1e9, here.sent_bytes)
        read = readings(np.rint(np.column_stack(columns)).astype(np.int64))
        assert (read.until_s - read.since_s < 1e-3).all()  # the delays to the switches are no part of it
        expected.saw(row.collective, sent_s=np.empty(0), arrived_s=np.empty(0), readings=read)
        ranks, paths = np.array([row.ring]), np.array([row.paths])
        (links,) = links_passed(setting.workload, ranks, paths, conditions, start=row.collective, spreads=False)
        assert set(read.link.tolist()) == set(links[links >= 0].tolist())
        (true_bps,) = conditions.shared_bps(row.collective, 1)
        seen_bps = at_ports(read, links=true_bps.size, fair=False)
        slowest = min(read.link.tolist(), key=lambda one: true_bps[one])
        assert (seen_bps[read.link] <= true_bps[read.link] + 1).all()
        assert seen_bps[slowest] == pytest.approx(true_bps[slowest], rel=0.15)
    assert len(chosen) > 2


NEAR = '[[policy]]\nname = "near"\nreroute = "every {every}"\nknowledge = "probed"\n'


@pytest.mark.parametrize("wan", ["mesh", "five-router"])
@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_a_probed_path_is_believed_to_carry_what_its_slowest_link_does(grain, wan):
    setting = setting_of(f'[fabric]\ngrain = "{grain}"\nwan = "{wan}"\n' + NEAR.format(every=1))
    conditions = conditions_of(setting)
    probes = probed_before(setting, setting.mode("near"), conditions, 4, None)
    crossings = {(src, dst) for src, dst, _ in probes.tolist()}
    assert crossings == {(3, 4), (7, 0)}
    assert len(probes) == sum(len(conditions.fabric.paths_between[pair]) for pair in ((0, 1), (1, 0)))
    links = probed_links(conditions, 4, probes)
    seen_bps = at_probes(conditions, 4, probes, probe_takes_s(conditions, 4, probes, 250_000), 250_000)
    (true_bps,) = conditions.shared_bps(4, 1)
    used = np.unique(links[links >= 0])
    assert (~np.isnan(seen_bps)).nonzero()[0].tolist() == used.tolist()
    for row in links:
        way = row[row >= 0]
        assert seen_bps[way].min() == pytest.approx(true_bps[way].min(), rel=1e-6)


def test_with_probes_paths_are_chosen_as_by_an_oracle_where_no_two_share_a_link_of_the_wan():
    setting = setting_of(NEAR.format(every=1), count=200).with_values({"conditions.sampler": "uniform"})
    conditions = conditions_of(setting)
    probed, known = (decided(setting, mode, conditions, start=0, count=200) for mode in ("near", "wan"))
    assert (probed.path == known.path).all()
    assert (probed.path[1:] != probed.path[:-1]).any()


def test_the_answer_to_a_probe_takes_the_path_that_is_in_force():
    """One probe, whose connection is made in two round trips and whose answer takes half of a third."""
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
        in_force = np.arange(4, dtype=np.int16), path
        probes = np.array([[0, 2, conditions.fabric.paths_between[0, 1][0].index]], dtype=np.int16)
        took_s[len(over.links)] = probing_s(router, workload, probes, np.array([1.0]), in_force=in_force)
    least, most = min(took_s), max(took_s)
    assert most > least and took_s[most] - took_s[least] == pytest.approx(3 * 2e-3 * (most - least))


def test_probes_take_a_round_trip_and_their_transmission_each_and_two_round_trips_together():
    """By hand: eight of them, over WAN links of 10 Gbit/s, before every third collective."""
    keys = '[conditions.links]\nwan = { rate = "10 Gbit/s", delay = "2 ms" }\n[control]\ncounted = true\n'
    setting = setting_of(keys + NEAR.format(every=3), count=7)
    conditions = conditions_of(setting)
    waits_s = Plan(
        setting, "near", decided(setting, "near", conditions, start=0, count=7), conditions
    ).reconfiguring_s()
    trip_s = 2 * (2e-3 + 2 * 700e-9)
    probing_s = 8 * (8 * 250_000 / 10e9 + trip_s) + 2 * trip_s
    assert np.isnan(waits_s[[1, 2, 4, 5]]).all()
    assert waits_s[[3, 6]] == pytest.approx([probing_s, probing_s], rel=1e-9)
    assert waits_s[0] > probing_s + trip_s  # the connections of the ring
    weighs = setting_of("[[policy]]" + PROBES.partition("[[policy]]")[2], count=5)
    waits_s = Plan(
        weighs, "probes", decided(weighs, "probes", conditions_of(weighs), start=0, count=5), conditions
    ).reconfiguring_s()
    assert (waits_s > 0).all()  # it has to know before it can decide


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('[run]\nclock = "wall"\nmodes = ["near"]', "near uses probed, which the wall clock does not provide"),
        ('[fabric]\nrouting = "spray"', 'near, which probes, cannot be combined with fabric.routing "spray"; allowed: one of the two'),
        ("[transport]\nline_rate = false", "near, which probes, cannot be combined with transport.line_rate false"),
        ('[fabric]\nbuffer = "1 MB"\n[transport]\nqueue = "fifo"', "near, which probes, cannot be combined with fabric.buffer"),
        ('[fabric]\ngpus = 32\n[collective]\nkind = "alltoall"', "near has 2,048 probes, .*; allowed: 400"),
        ('[control]\nprobe = "2 MB"', '"2 MB" is too large; allowed: text with a unit, 10 kB to 1 MB'),
    ],
)
def test_probes_that_cannot_be_are_refused(keys, says):
    with pytest.raises(ScenarioError, match=says):
        scenario_of(NEAR.format(every=1) + keys)


def test_every_choice_by_probes_replays_from_the_run_folder_and_their_time_is_as_predicted(tmp_path):
    (tmp_path / "probes.toml").write_text(PROBES.format(count=5))
    fidelity = answer(tmp_path / "run", "probes.toml")["fidelity"]
    assert (fidelity["collectives"], fidelity["drops"]) == (5, 0)
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).settings()
    conditions, expected, chosen = conditions_of(setting), Expectations(setting, "probes"), set()
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
    assert len(chosen) > 2


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
def test_beside_faults_every_choice_replays_and_goes_round_what_is_down(grain, mode):
    (setting,) = scenario_of(STRUCK.format(count=14)).with_values({"fabric.grain": grain}).settings()
    conditions, expected = conditions_of(setting), Expectations(setting, mode)
    (dead,) = [link.index for link in conditions.fabric.links if link.name == "s0b0>s1b0"]
    over = [path.index for path in conditions.fabric.paths if dead in path.links]
    for k in range(14):
        planned = decided(setting, mode, conditions, start=k, count=1)
        found = expected.of(k, [index for index, fault in enumerate(setting.faults) if fault in conditions.in_force(k)])
        assert (found.placement.tolist(), found.path.tolist()) == (
            planned.placement[0].tolist(),
            planned.path[0].tolist(),
        )
        assert not (3 <= k < 7 and np.isin(found.path, over).any())
        seen = Plan(setting, mode, planned, conditions, k).times()
        expected.saw(k, sent_s=seen.begins_s[:, 0], arrived_s=seen.arrives_s[:, 0])


def test_what_is_down_is_known_at_once_and_what_is_slow_once_it_was_seen():
    (setting,) = scenario_of(STRUCK.format(count=14)).settings()
    conditions, seen = conditions_of(setting), dict[int, float]()
    names = [link.name for link in conditions.fabric.links]
    wan, slow = names.index("s0b0>s1b0"), names.index("g2>g3")

    def after(number, before_bps):
        """Both links are seen in each collective, the first at 7 Gbit/s, the second as it is."""
        now_bps = before_bps.copy()
        now_bps[[wan, slow]] = 7e9, conditions.shared_bps(number, 1)[0][slow]
        return now_bps

    believed = conditions.believed(setting.mode("greedy").knowledge, after)
    for k in range(14):
        (rates_bps,) = believed.rates_bps(k, 1)
        seen[k] = rates_bps[slow]
        assert rates_bps[wan] == (0 if 3 <= k < 7 else 7e9 if k else conditions.mean_bps[wan])
        if k:
            assert rates_bps[slow] == conditions.shared_bps(k - 1, 1)[0][slow]
    (true_bps,) = conditions.drawn.rates_bps(5, 1)
    assert seen[6] == pytest.approx(true_bps[slow] / 10)


def test_nothing_is_learnt_of_a_collective_in_which_a_cable_is_cut_nor_without_a_controller():
    faults = load_faults(
        ("1 ms into collective 2", "link s0b0-s1b0 down", None),
        ("1 ms into collective 3", "agent 1 slow 2x", None),
        ("collective 5", "switch s0p0 down", None),
        ("1 ms into collective 6", "controller killed", None),
        ("collective 8", "controller killed", "2 collectives"),
    )
    assert [k for k in range(12) if not tells(faults, active(faults, k), k)] == [2, 8, 9]


def load_faults(*found):
    tables = [{"at": at, "what": what} | ({} if lasts is None else {"for": lasts}) for at, what, lasts in found]
    return faults.read(tables)


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_probes_go_round_what_is_down_and_tell_what_is_slow(grain):
    """On the mesh paths are those of an oracle then, too, before every collective."""
    near = '[[policy]]\nname = "near"\nreroute = "every 1"\nknowledge = "probed"\n[[fault]]'
    of = STRUCK.format(count=14).replace('["greedy", "calm"]', '["near"]').replace("[[fault]]", near, 1)
    (setting,) = scenario_of(of).with_values({"fabric.grain": grain, "conditions.sampler": "uniform"}).settings()
    conditions = conditions_of(setting)
    probed, known = (decided(setting, mode, conditions, start=0, count=14) for mode in ("near", "wan"))
    assert (probed.path == known.path).all()
    counts = [len(probed_before(setting, setting.mode("near"), conditions, k, None)) for k in range(14)]
    assert counts == [8] * 3 + [6] * 4 + [8] * 7
