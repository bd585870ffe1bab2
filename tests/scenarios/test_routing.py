"""`fabric.routing`: ECMP and spraying in the plan and the model, and their agreement with the emulation."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model import fluid
from hosts.collectives.rank_programs import message_bytes
from hosts.collectives.schedule import Flow
from scenarios.engines.prediction import Plan, decisions_of, lower_bound
from scenarios.policies.conditions import Conditions, conditions_of
from scenarios.policies.decide import Decisions
from scenarios.policies.measured_knowledge import links_by_flow
from scenarios.spec.load import ScenarioError, load_scenario
from scenarios.spec.scenario import Scenario, from_json, to_json
from tests.conftest import VM
from tests.fakes.commands import scenario
from tests.fakes.runs import measured, measured_as_recorded

ALL = "collective.kind=alltoall"
FLAT = "conditions.intra_rate=80 Gbit/s", "conditions.wan_rate=10 Gbit/s"


def planned(setting: Scenario, mode: str, count: int = 5) -> tuple[Conditions, Decisions]:
    conditions = conditions_of(setting)
    return conditions, decisions_of(setting, mode, conditions, start=0, count=count)


def times_s(setting: Scenario, mode: str, count: int = 5) -> "list[float]":
    conditions, decisions = planned(setting, mode, count)
    return [float(one) for one in Plan(setting, mode, decisions, conditions).completion_s()]


def test_the_routing_appears_in_labels_survives_storing_and_can_be_swept() -> None:
    one = scenario("fabric.routing=ecmp", "fabric.hash_seed=7")
    assert ", ecmp, hash seed 7" in one.label and "single" not in scenario().label
    assert from_json(to_json(one)).fabric == one.fabric
    with pytest.raises(ScenarioError, match="allowed: single, ecmp, spray"):
        scenario("fabric.routing=random")
    swept = scenario('sweep.fabric.routing=["single", "spray"]')
    assert ["routing single" in point.label for point in swept.configurations()] == [True, False]
    with pytest.raises(ScenarioError, match="sprayed over all paths, the workload has 8,192 channels; allowed: 5,000"):
        scenario("fabric.routing=spray", "fabric.grain=physical", "fabric.spines=32", "collective.channels=64")


@pytest.mark.parametrize("mode", ["wan", "joint"])
def test_modes_that_choose_paths_take_the_same_time_under_every_routing(mode: str) -> None:
    single = times_s(scenario(ALL), mode)
    assert times_s(scenario(ALL, "fabric.routing=ecmp"), mode) == single
    assert times_s(scenario(ALL, "fabric.routing=spray"), mode) == pytest.approx(single, rel=1e-3)


def test_spraying_uses_all_wan_links_ecmp_a_hashed_subset_and_single_routing_one() -> None:
    """Sixteen messages cross in each direction, over one link of 10 Gbit/s or four."""
    size = "collective.chunk=8 MB", ALL, *FLAT, "conditions.wan_delay=1 ns", "conditions.intra_delay=1 ns"
    message_s = 8 * scenario(*size).workload.largest_message_bytes / 10e9
    assert times_s(scenario(*size), "base", 1) == pytest.approx([16 * message_s], rel=1e-3)
    assert times_s(scenario(*size, "fabric.routing=spray"), "base", 1) == pytest.approx([4 * message_s], rel=1e-3)
    hashed = scenario(*size, "fabric.routing=ecmp")
    _, decisions = planned(hashed, "base", 1)
    fullest = max(Counter(path for path in decisions.path[0].tolist() if path >= 0).values())
    assert 4 < fullest < 16
    assert times_s(hashed, "base", 1) == pytest.approx([fullest * message_s], rel=1e-3)


def test_different_hash_seeds_choose_different_paths() -> None:
    found = {
        tuple(planned(scenario(ALL, "fabric.routing=ecmp", f"fabric.hash_seed={seed}"), "base", 1)[1].path[0])
        for seed in range(5)
    }
    assert len(found) == 5


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["single", "ecmp", "spray"]),
    st.sampled_from(["logical", "physical"]),
    st.sampled_from([("allgather", "ring"), ("alltoall", "direct"), ("allreduce", "double-tree")]),
    st.sampled_from(["base", "ccl", "joint"]),
    st.sampled_from(["mesh", "five-router"]),
    st.integers(0, 99),
)
def test_completion_times_respect_the_lower_bound_and_match_the_fluid_model(
    routing: str, grain: str, kind: tuple[str, str], mode: str, wan: str, seed: int
) -> None:
    setting = scenario(
        f"fabric.routing={routing}",
        f"fabric.grain={grain}",
        f"fabric.wan={wan}",
        f"collective.kind={kind[0]}",
        f"collective.algorithm={kind[1]}",
        f"run.seed={seed}",
    )
    conditions, decisions = planned(setting, mode, 3)
    completion_s = Plan(setting, mode, decisions, conditions).completion_s()
    bound_s = lower_bound(setting, conditions)(0, conditions.shared_bps(0, 3))
    assert (completion_s >= bound_s * (1 - 1e-9)).all()
    # The links that the scenario reports as shared include all links that carry several flows.
    links = links_by_flow(setting.workload, decisions, conditions, start=0)
    names = [link.name for link in conditions.shared.all]
    for row in links:
        used = Counter(link for flow in row for link in {*flow[flow >= 0].tolist()})
        assert {names[link] for link, flows in used.items() if flows > 1} <= {*setting.shared_links(mode)}
    alone_s = fluid.completion_s(
        setting.workload.schedule.transfers,
        links,
        conditions.shared_bps(0, 3),
        decisions.alpha_s,
        slot_bytes=setting.workload.slot_bytes,
    )
    assert completion_s == pytest.approx(alone_s, rel=1e-9)


FAULTS = """
[fabric]
grain = "GRAIN"
routing = "ROUTING"
[collective]
kind = "alltoall"
chunk = "8 MB"
count = 5
[conditions]
wan_delay = "1 ms"
[run]
modes = ["base"]
[[fault]]
at = "collective 1"
what = "link s0b0-s1b0 down"
for = "1 collectives"
[[fault]]
at = "collective 2"
what = "switch s1p0 down"
for = "1 collectives"
[[fault]]
at = "collective 3"
what = "agent 5 killed"
"""


@pytest.mark.parametrize(("routing", "grain"), [("ecmp", "logical"), ("spray", "physical")])
def test_ecmp_and_spraying_avoid_failed_links_and_reconnect_a_restarted_agent(
    tmp_path: Path, routing: str, grain: str
) -> None:
    (tmp_path / "faults.toml").write_text(FAULTS.replace("GRAIN", grain).replace("ROUTING", routing))
    # The collective in which an agent died does not count.
    # The spine that goes down may lose some last acknowledgements.
    answer = measured(tmp_path / "run", "faults.toml", "--engine", "both", collectives=4, drops=5)
    times = {point["engine"]: point["mean_s"] for point in answer["points"]}
    assert times["model"] == pytest.approx(times["emulation"], rel=0.005)
    setting = load_scenario(str(tmp_path / "faults.toml"))
    conditions, decisions = planned(setting, "base", 5)
    (dead,) = (link.index for link in conditions.fabric.links if link.name == "s0b0>s1b0")
    over = [
        {link for path in row if path >= 0 for link in conditions.fabric.paths[path].links} for row in decisions.path
    ]
    assert [dead in row for row in over] == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("routing", "grain", "kind", "channels"),
    [
        pytest.param("ecmp", "logical", "allgather", 2, marks=pytest.mark.slow),
        pytest.param("spray", "logical", "alltoall", 1, marks=pytest.mark.slow),
        ("spray", "physical", "allgather", 2),
    ],
)
def test_every_boot_is_the_same_and_as_the_model_says(
    tmp_path: Path, routing: str, grain: str, kind: str, channels: int
) -> None:
    values = f"fabric.routing={routing}", f"fabric.grain={grain}", f"collective.channels={channels}"
    command = ("--engine", "emulation", "--modes", "ccl", "--collectives", "3")
    measured_as_recorded(tmp_path / "run", *command, sets=(*values, f"collective.kind={kind}"))


def test_every_port_carries_the_bytes_that_the_plan_assigns_to_it(vm: VM) -> None:
    text = '[fabric]\ngrain = "physical"\nrouting = "{}"\n[collective]\nkind = "alltoall"\ncount = 2\n'
    text += '[run]\nmodes = ["base"]\n'
    files = [vm.folder / f"{routing}.toml" for routing in ("ecmp", "spray")]
    for file in files:
        file.write_text(text.format(file.stem))
    for file, sent in zip(files, vm.report("routing", *map(str, files)), strict=True):
        setting = load_scenario(str(file))
        conditions, decisions = planned(setting, "base", 2)
        (_, links), schedule = (
            links_by_flow(setting.workload, decisions, conditions, start=0),
            setting.workload.schedule,
        )
        names = [port.name for port in conditions.shared.all]
        wanted = Counter[str]()
        for transfer in schedule.transfers:
            assert isinstance(schedule.flows[transfer.flow], Flow)
            passed = links[transfer.flow]
            wanted.update({names[port]: message_bytes(setting.workload, transfer) for port in passed[passed >= 0]})
        assert len({*wanted.values()}) > 2  # the loads of ports differ
        for name, carried in sent.items():
            assert wanted[name] <= carried < wanted[name] * 1.01 + 1e6, name  # headers and acknowledgements
