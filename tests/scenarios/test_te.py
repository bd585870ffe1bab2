"""Traffic engineering: its decisions and predictions, and the rates of the tunnels in the emulation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import load
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import Decisions
from scenarios.policies.measured_knowledge import HEADROOM, measured_demands
from scenarios.policies.outcome import Readings
from scenarios.spec.load import ScenarioError, load_scenario, resolved, scenario_of
from scenarios.spec.scenario import Scenario, from_json, to_json
from tests.conftest import VM
from tests.fakes.commands import scenario
from tests.fakes.runs import answer, measured

TE, ALL = "fabric.routing=te", "collective.kind=alltoall"
FLAT = "conditions.intra_rate=400 Gbit/s", "conditions.wan_rate=10 Gbit/s", "conditions.wan_delay=1 ns"
SEGMENT_BYTES = 65_000  # upper bound of what TCP sends as one segment


def planned(setting: Scenario, count: int = 5, mode: str = "base") -> Decisions:
    return decisions_of(setting, mode, conditions_of(setting), start=0, count=count)


def time_s(setting: Scenario) -> float:
    return float(Plan(setting, "base", planned(setting, 1), conditions_of(setting)).completion_s()[0])


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["logical", "physical"]),
    st.sampled_from(["allgather", "alltoall"]),
    st.sampled_from(["base", "ccl"]),
    st.sampled_from(["mesh", "five-router"]),
    st.integers(0, 99),
)
def test_tunnel_rates_fit_the_link_rates_and_every_flow_has_a_positive_rate(
    grain: str, kind: str, mode: str, wan: str, seed: int
) -> None:
    sets = f"fabric.grain={grain}", f"collective.kind={kind}", f"fabric.wan={wan}", f"run.seed={seed}"
    setting = scenario(TE, "te.pieces=5", *sets)
    conditions, found = conditions_of(setting), planned(setting, 3, mode)
    for limits_bps, path, rates_bps in zip(found.limits_bps, found.path, conditions.rates_bps(0, 3), strict=True):
        load_bps = np.zeros(len(rates_bps))
        for over in conditions.fabric.paths:
            load_bps[list(over.links)] += limits_bps[over.index]
        assert (load_bps <= rates_bps * (1 + 1e-9)).all()
        assert (limits_bps[path[path >= 0]] > 0).all()
    assert (Plan(setting, mode, found, conditions).completion_s() > 0).all()


def test_sites_behind_a_very_slow_link_complete_at_its_rate() -> None:
    text = '"s0b0>s1b0" = { rate = "1 Mbit/s" }'
    setting = scenario(
        ALL, *FLAT, TE, "fabric.gpus=[2, 2, 2]", "fabric.border_routers=1", f"conditions.links={{ {text} }}"
    )
    assert time_s(setting) == pytest.approx(4 * 8 * setting.workload.largest_message_bytes / 1e6, rel=2e-5)


def test_te_loads_wan_links_in_proportion_to_their_rates_and_spraying_equally() -> None:
    """Over four links of 10, 10, 10 and 30 Gbit/s, 60 pieces take the time at 60 Gbit/s; sprayed, at 40 Gbit/s."""
    text = '"s0b1>s1b1" = { rate = "30 Gbit/s" }, "s1b1>s0b1" = { rate = "30 Gbit/s" }'
    sets = ALL, *FLAT, f"conditions.links={{ {text} }}"
    bits = 16 * 8 * scenario(*sets).workload.largest_message_bytes
    assert time_s(scenario(*sets, TE, "te.pieces=60")) == pytest.approx(bits / 60e9, rel=2e-3)
    assert time_s(scenario(*sets, "fabric.routing=spray")) == pytest.approx(bits / 40e9, rel=2e-3)


UNEVEN = """
[fabric]
gpus = [1, 1, 2]
border_routers = 1
routing = "te"
[fabric.wan]
routers = ["R"]
links = [
  ["s0b0", "s1b0", { delay = "1 ms", rate = "10 Gbit/s" }],
  ["s0b0", "R", { delay = "1 ms", rate = "30 Gbit/s" }],
  ["R", "s1b0", { delay = "1 ms", rate = "30 Gbit/s" }],
  ["R", "s2b0", { delay = "1 ms", rate = "30 Gbit/s" }],
]
[conditions]
intra_rate = "400 Gbit/s"
[run]
modes = ["base"]
[[job]]
kind = "background"
pattern = "permutation"
ranks = [0, 1]
rate = "8 Gbit/s"
chunk = "1 MB"
duration = "10 ms"
[[job]]
ranks = [2, 3]
"""


def test_the_objective_utilisation_uses_all_wan_links_equally_and_delay_the_shortest_alone() -> None:
    """A job wants 8 Gbit/s over links of 10 and 30 Gbit/s, of which the first are the shorter way; another stays in a
    third site."""
    found = {}
    for objective in ("delay", "utilisation"):
        setting = scenario_of(f'{UNEVEN}[te]\nobjective = "{objective}"\n')
        plan, fabric = planned(setting, 1), conditions_of(setting).fabric
        found[objective] = [float(plan.limits_bps[0, over.index]) for over in fabric.paths_between[0, 1]]
    assert found["delay"] == pytest.approx([8e9, 0.0], rel=1e-6)
    assert found["utilisation"] == pytest.approx([2e9, 6e9], rel=1e-6)


JOBS = """
[fabric]
routing = "te"
border_routers = 1
[conditions]
wan_rate = "10 Gbit/s"
intra_rate = "400 Gbit/s"
[[class]]
name = "gold"
priority = 0
[[class]]
name = "bronze"
priority = 1
SHARE
[[job]]
name = "first"
class = "gold"
ranks = [0, 4]
[[job]]
name = "second"
class = "bronze"
ranks = [1, 5]
[[job]]
kind = "background"
pattern = "permutation"
rate = "1 Gbit/s"
chunk = "1 MB"
duration = "10 ms"
ranks = [2, 6]
class = "gold"
"""


@pytest.mark.parametrize(("share", "left"), [("", 0.01), ("share = 0.25", 0.25)])
def test_classes_are_served_in_priority_order_and_later_ones_keep_their_share(
    tmp_path: Path, share: str, left: float
) -> None:
    (tmp_path / "jobs.toml").write_text(JOBS.replace("SHARE", share))
    setting = load_scenario(str(tmp_path / "jobs.toml"))
    found = planned(setting, 1)
    gold, bronze = found.limits_bps[0].reshape(2, -1).sum(axis=1)  # summed over both directions
    assert (gold, bronze) == (pytest.approx(20e9 * (1 - left)), pytest.approx(20e9 * left, rel=1e-5))
    _, of_jobs = Plan(setting, "base", found, conditions_of(setting)).with_jobs()
    assert of_jobs is not None and of_jobs.completion_s[0, 1] == pytest.approx(8 * 8e6 / (10e9 * left), rel=0.01)


def test_background_traffic_is_given_only_its_stated_rate_and_others_get_the_rest(tmp_path: Path) -> None:
    """Background traffic of 1 Gbit/s from each GPU, alone in its class, leaves the rest to the other class."""
    text = JOBS.replace("SHARE", "").replace('name = "first"\nclass = "gold"', 'name = "first"\nclass = "bronze"')
    (tmp_path / "jobs.toml").write_text(text)
    gold, bronze = planned(load_scenario(str(tmp_path / "jobs.toml")), 1).limits_bps[0].reshape(2, -1).sum(axis=1)
    assert gold == pytest.approx(2 * 1e9, rel=1e-6) and gold + bronze == pytest.approx(20e9, rel=1e-6)


FAULTS = """
[fabric]
routing = "te"
wan = "five-router"
[conditions]
wan_delay = "1 ms"
[collective]
kind = "alltoall"
count = 5
emulated = 5
[te]
every = 3
pieces = 4
[run]
modes = ["base"]
[[fault]]
at = "collective 1"
what = "link R3-R4 down"
for = "1 collectives"
[[fault]]
at = "8 ms into collective 3"
what = "link R0-R1 down"
"""


def test_tunnel_rates_are_kept_until_the_next_period_or_a_link_failure(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text(FAULTS)
    setting = load_scenario(str(tmp_path / "faults.toml"))
    found = decisions_of(setting, "base", conditions_of(setting), start=0, count=5).limits_bps
    same = [[bool((one == other).all()) for other in found] for one in found]
    assert same[0] == [True, False, True, False, False]
    parts = [decisions_of(setting, "base", conditions_of(setting), start=k, count=1).limits_bps for k in range(5)]
    assert (np.concatenate(parts) == found).all()


def _ends(setting: Scenario) -> list[tuple[int, int]]:
    """Return the source and destination site of each path."""
    return [(path.src_site, path.dst_site) for path in conditions_of(setting).fabric.paths]


NIC = """
[fabric]
routing = "te"
grain = "physical"
gpus = [2, 2, 2]
border_routers = 1
[fabric.wan]
routers = ["R"]
links = [["s0b0", "R"], ["s1b0", "R"], ["R", "s2b0"]]
[conditions]
intra_rate = "400 Gbit/s"
wan_rate = "10 Gbit/s"
[conditions.links]
"g0>s0l0" = { rate = "6 Gbit/s" }
[te]
demand = "measured"
[collective]
count = 6
emulated = 6
[run]
modes = ["base"]
[[job]]
kind = "scatter"
ranks = [0, 2, 4]
chunk = "8 MB"
[[job]]
name = "alone"
kind = "scatter"
ranks = [3, 5]
chunk = "32 MB"
"""


def test_measured_demand_shrinks_for_an_underused_tunnel_and_grows_for_a_full_one(tmp_path: Path) -> None:
    """GPU 0 sends to two sites at once, 3 Gbit/s each, although each demand requests all 6 Gbit/s of its port. So the
    other demand on the shared link is given 5 Gbit/s at first, then a tenth more each time until the link is full."""
    (tmp_path / "nic.toml").write_text(NIC)
    setting = load_scenario(str(tmp_path / "nic.toml"))
    found, paths = planned(setting, 6), _ends(setting)
    alone_bps = found.limits_bps[:, paths.index((1, 2))]
    assert alone_bps / 1e9 == pytest.approx([5, 5.5, 6.05, 6.655, 6.7, 6.7], rel=1e-3)
    assert found.limits_bps[1:, paths.index((0, 1))] / 1e9 == pytest.approx([3.3] * 5, rel=1e-3)
    round_s = Plan(setting, "base", found, conditions_of(setting)).completion_s()
    assert round_s == pytest.approx(8 * 32e6 / alone_bps, rel=1e-3)
    parts = [decisions_of(setting, "base", conditions_of(setting), start=k, count=1).limits_bps for k in (4, 1, 5)]
    assert (np.concatenate(parts) == found.limits_bps[[4, 1, 5]]).all()
    (tmp_path / "nic.toml").write_text(NIC.replace("[te]", "[te]\nevery = 2"))
    kept = planned(load_scenario(str(tmp_path / "nic.toml")), 6).limits_bps[:, paths.index((1, 2))]
    assert kept / 1e9 == pytest.approx([5, 5, 5.5, 5.5, 6.05, 6.05], rel=1e-3)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 10**9), min_size=4, max_size=4)), min_size=1),
    st.integers(1, 9),
)
def test_measured_demand_is_the_highest_mean_rate_over_a_sample_plus_headroom(
    grown: list[tuple[int, list[int]]], tenths: int
) -> None:
    """Readings are 10 ms apart, but the last one comes sooner: its mean rate therefore spans two intervals."""
    setting = scenario(TE, "fabric.wan=five-router", "fabric.border_routers=1")
    fabric, workload = conditions_of(setting).fabric, setting.workload
    ways = [path.index for path in fabric.paths if path.src_site == 0]
    at_s = np.array([0, 10e-3, 20e-3, 30e-3, 30e-3 + tenths * 1e-3])
    sent = {ways[way]: np.cumsum([0, *more]) for way, more in grown}
    read = Readings(
        link=len(fabric.links) + np.array(list(sent), np.int32),
        since_s=np.tile(at_s[:, None], len(sent)),
        until_s=np.tile(at_s[:, None], len(sent)),
        sent_bytes=np.array(list(sent.values())).T,
    )
    ((_, found), nothing) = measured_demands(fabric, workload, read, sample_s=10e-3)[0]
    total = np.sum(list(sent.values()), axis=0)
    windows = [(0, 1), (1, 2), (2, 3), (2, 4)]
    most = max(8 * (total[b] - total[a]) / (at_s[b] - at_s[a]) for a, b in windows)
    assert np.isnan(nothing).all()
    assert found == pytest.approx(HEADROOM * most) if most else np.isnan(found)


IDLE = NIC.replace("400 Gbit/s", "40 Gbit/s").replace("10 Gbit/s", "1 Gbit/s").replace("6 Gbit/s", "40 Gbit/s")
IDLE = IDLE.replace('demand = "measured"', 'demand = "measured"\nevery = "10 ms"\nsample = "5 ms"\npieces = 2')
IDLE = IDLE.replace("[0, 2, 4]", "[0, 4]").replace("8 MB", "500 kB").replace("32 MB", "5 MB").replace("= 6", "= 2")
IDLE_S = 20e-3 + (5e6 * 8 - 20e-3 * 0.5e9) / 1e9
"""Both jobs have 0.5 Gbit/s, and the first ends after 8 ms. In the second period of 10 ms it sends nothing, so that the
other job has all 1 Gbit/s from 20 ms on."""


def test_by_time_te_gives_a_job_the_rate_that_a_finished_job_leaves(tmp_path: Path) -> None:
    (tmp_path / "idle.toml").write_text(IDLE)
    setting = load_scenario(str(tmp_path / "idle.toml"))
    found, of_jobs = Plan(setting, "base", planned(setting, 2), conditions_of(setting)).with_jobs()
    assert found == pytest.approx([IDLE_S] * 2, rel=1e-3)
    assert of_jobs is not None and of_jobs.completion_s[:, 0] == pytest.approx([8e-3] * 2, rel=5e-3)
    kept = replace(setting, te=replace(setting.te, every=1))
    assert time_s(kept) == pytest.approx(5e6 * 8 / 0.5e9, rel=1e-3)


def test_tunnel_rates_follow_the_knowledge_of_the_policy(tmp_path: Path) -> None:
    text = '[[policy]]\nname = "known"\nreembed = "every 2"\nknowledge = "mean"\n[fabric]\nrouting = "te"\n'
    (tmp_path / "known.toml").write_text(text + 'wan = "five-router"\n[run]\nmodes = ["known", "base"]')
    setting = load_scenario(str(tmp_path / "known.toml"))
    known, base = (planned(setting, 3, mode).limits_bps for mode in ("known", "base"))
    assert (known[1:] == known[0]).all() and not (base[1:] == base[0]).all(axis=1).any()


LATE = """
[fabric]
routing = "te"
wan = "five-router"
[conditions]
wan_rate = "1-2 Gbit/s"
intra_rate = "20 Gbit/s"
wan_delay = "1 ms"
[collective]
count = 1
emulated = 1
[te]
demand = "measured"
every = "10 ms"
pieces = 4
[run]
modes = ["base"]
[[class]]
name = "gold"
priority = 0
[[job]]
kind = "alltoall"
ranks = [0, 1, 4, 5]
chunk = "2 MB"
[[job]]
class = "gold"
kind = "alltoall"
ranks = [2, 3, 6, 7]
chunk = "1 MB"
start = "15 ms"
"""


def test_te_keys_survive_storing_and_invalid_combinations_are_refused() -> None:
    one = scenario(TE, "te.every=4", "te.pieces=8")
    assert (from_json(to_json(one)).te.every, from_json(to_json(one)).fabric.pieces) == (4, 8)
    assert ", te, " in one.label and one.label.endswith(", te every 4, te pieces 8")
    one = scenario(TE, "te.every=100 ms", "te.demand=measured")
    assert from_json(to_json(one)).te.every == 0.1 and scenario_of(resolved(one)).te == one.te
    by_time = {
        "te.sample=30 ms": "100 ms is not a multiple of te.sample, 30 ms",
        "te.every=99 us": '"99 us" is too small',
        "te.every=fast": '"fast" is not a delay',
        "te.every=1.5": "1.5 is not a whole number; allowed: a whole number",
    }
    for value, said in by_time.items():
        with pytest.raises(ScenarioError, match=said):
            scenario(TE, "te.every=100 ms", "te.demand=measured", value)
    refused = {
        "te.pieces=65": "65 is too large; allowed: a whole number from 1 to 64",
        "te.every=0": "0 is too small",
        "te.sample=99 us": '"99 us" is too small: a delay must be between 100 us and 1000 s',
    }
    for value, said in refused.items():
        with pytest.raises(ScenarioError, match=said):
            scenario(TE, value)


def test_emulated_te_times_match_the_model_under_link_failures(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text(FAULTS.replace("every = 3", 'every = 1\ndemand = "measured"'))
    # Collective 3, during which a link fails, does not count.
    measured(tmp_path / "run", "faults.toml", "--engine", "emulation", collectives=4)


FIFO = """
[fabric]
gpus = [1, 1]
routing = "te"
[conditions]
wan_rate = "2-10 Gbit/s"
intra_rate = "100 Gbit/s"
wan_delay = "2 ms"
[transport]
queue = "fifo"
[collective]
chunk = "16 MB"
pieces = 1
emulated = 2
[te]
pieces = 40
[run]
modes = ["base"]
"""


def test_tunnels_have_fifo_queues_that_take_the_modelled_time_and_drop_what_does_not_fit(tmp_path: Path) -> None:
    """One message fills all tunnels, over 40 connections that begin with whole windows, so that 1 MB is overrun."""
    (tmp_path / "fifo.toml").write_text(FIFO)
    measured(tmp_path / "run", "fifo.toml", "--engine", "emulation", collectives=2, median=0.01, p99=0.01)
    small = ("--set", 'fabric.buffer="1 MB"', "--engine", "emulation")
    first, again = (answer(tmp_path / name, "fifo.toml", *small) for name in ("small", "again"))
    assert first["fidelity"]["drops"] > 0
    assert [one["mean_s"] for one in first["points"]] == [one["mean_s"] for one in again["points"]]


def test_demands_measured_in_the_emulation_match_the_model(tmp_path: Path) -> None:
    inside = '[[job]]\nname = "inside"\nkind = "broadcast"\nranks = [1, 0]\nchunk = "4 MB"\n'
    (tmp_path / "nic.toml").write_text(NIC + inside)
    measured(tmp_path / "run", "nic.toml", "--engine", "emulation", collectives=6)
    jobs = pd.read_parquet(tmp_path / "run" / "jobs.parquet")
    within = jobs[jobs.job == "inside"]  # within a site there are no tunnels and no bursts
    assert within.completion_s.to_numpy() == pytest.approx(within.predicted_s.to_numpy(), rel=4e-3)
    alone_s = jobs[jobs.job == "alone"].completion_s.to_numpy()
    assert alone_s[[0, -1]] == pytest.approx([8 * 32e6 / 5e9, 8 * 32e6 / 6.7e9], rel=0.02)
    counters = pd.read_parquet(tmp_path / "run" / "counters.parquet")
    sent = counters[counters.collective == 5].groupby("link").sent_bytes.max()
    assert sorted(sent) == pytest.approx([8e6, 8e6, 32e6], rel=1e-3)


def test_te_over_rails_takes_the_modelled_time_in_the_emulation(tmp_path: Path) -> None:
    rails = ("fabric.grain=physical", "fabric.rails=2", "fabric.routing=te")
    options = [word for text in rails for word in ("--set", text)]
    measured(
        tmp_path / "run",
        "paper",
        "--engine",
        "emulation",
        "--modes",
        "base",
        *options,
        sets=("collective.emulated=3",),
        collectives=3,
    )


TIMED = """
[fabric]
routing = "te"
[conditions]
every = "2 ms"
[collective]
kind = "alltoall"
chunk = "8 MB"
emulated = 3
"""


def test_te_takes_the_modelled_time_in_the_emulation_while_conditions_change(tmp_path: Path) -> None:
    """Two packets of each flow wait where it is slowest. They were taken to have passed a port whose rate fell below
    that of the tunnel that begins there: predictions were 15 % short."""
    (tmp_path / "timed.toml").write_text(TIMED)
    measured(tmp_path / "run", "timed.toml", "--engine", "emulation", "--modes", "base", collectives=3, p99=0.01)


def test_by_time_te_takes_the_modelled_time_in_the_emulation(tmp_path: Path) -> None:
    (tmp_path / "idle.toml").write_text(IDLE)
    measured(tmp_path / "run", "idle.toml", "--engine", "emulation", collectives=2)
    assert load(tmp_path / "run").completion_s.to_numpy() == pytest.approx([IDLE_S] * 2, rel=2e-3)


def test_by_time_te_lends_the_rate_of_a_higher_class_to_others_until_it_starts(tmp_path: Path) -> None:
    """When the higher class starts, it has the rate that the other class leaves. Earlier, the other had a hundredth of
    each link; what it owes from then counts in bytes, so that a frame takes no longer than the new rates allow."""
    (tmp_path / "late.toml").write_text(LATE)
    measured(tmp_path / "run", "late.toml", "--engine", "emulation", collectives=1)


def test_emulated_tunnels_keep_their_rates_without_wan_queues_or_drops_during_updates(vm: VM) -> None:
    file = vm.folder / "te.toml"
    text = FAULTS.partition("[[fault]]")[0].replace("every = 3", "every = 1")
    text = text.replace("count = 5", 'chunk = "20 MB"\ncount = 5')
    file.write_text(text.replace('wan_delay = "1 ms"', 'wan_delay = "1 ms"\nintra_rate = "400 Gbit/s"'))
    found = vm.report("tunnels", str(file), "0.003", "0.012")
    assert len(found["sent"]) > 3
    for name, wanted in found["wanted"].items():
        assert abs(found["sent"][name] - wanted) <= max(0.01 * wanted, SEGMENT_BYTES), name
    assert max(found["queued"].values()) <= 4 * SEGMENT_BYTES  # from more than a hundred flows
    assert found["moved"] > found["flows"] / 4
    assert found["drops"] == [0, 0]
