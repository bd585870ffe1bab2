"""`fabric.rails` and `fabric.oversubscription`: port rates, the resulting times, and agreement with the emulation."""

from pathlib import Path

import pytest

from scenarios.engines.model import Model
from scenarios.spec.load import ScenarioError, resolved, scenario_of
from scenarios.spec.scenario import Scenario, from_json, to_json
from tests.fakes.commands import scenario, times
from tests.fakes.runs import measured
from topologies.conditions.sampler import ranges_bps
from topologies.fabric.fabric import build_fabric
from topologies.fabric.ports import links_in_grain

FLAT = "conditions.intra_rate=800 Gbit/s", "conditions.wan_rate=10 Tbit/s", "conditions.wan_delay=1 ns"
ONE = "fabric.grain=physical", *FLAT, "conditions.intra_delay=1 ns", "collective.count=1", 'run.modes=["base"]'
RING = "collective.kind=allreduce", "collective.size=512 MB"


def ports_bps(setting: Scenario) -> "dict[str, float]":
    fabric = build_fabric(setting.fabric)
    low, high = ranges_bps(fabric, setting.conditions)
    assert (low == high).all()
    return dict(zip((port.name for port in links_in_grain(fabric).all), low.tolist(), strict=True))


def time_s(*values: str, mode: str = "base") -> float:
    (found,) = times([scenario(*ONE, *values, f'run.modes=["{mode}"]')], Model())[0, mode]
    return float(found)


def test_the_oversubscription_of_a_tier_is_its_downlink_over_its_uplink_capacity() -> None:
    site = "fabric.gpus=[6, 4]", "fabric.leaves=[3, 2]", "fabric.spines=[4, 2]", "fabric.border_routers=[1, 2]"
    bps = ports_bps(scenario(*ONE, *site, "fabric.oversubscription=[2, 3]"))

    def total_bps(near: str, far: str) -> float:
        return sum(rate for name, rate in bps.items() if name.startswith(near) and name.partition(">")[2][:3] == far)

    for number, (leaves, spines) in enumerate([(3, 4), (2, 2)]):
        here = f"s{number}"
        down_bps = 2 * 800e9  # two GPUs on each leaf
        for leaf in range(leaves):
            assert total_bps(f"{here}l{leaf}>", f"{here}p") == pytest.approx(down_bps / 2)
        for spine in range(spines):
            below_bps = total_bps(f"{here}p{spine}>", f"{here}l")
            assert total_bps(f"{here}p{spine}>", f"{here}b") == pytest.approx(below_bps / 3)
        assert total_bps(f"{here}b0>", f"{here}p") == pytest.approx(
            total_bps(f"{here}p", f"{here}b0"[:3]) / (number + 1)
        )
    assert {bps[f"g{rank}>{leaf}"] for rank, leaf in ((0, "s0l0"), (5, "s0l2"), (9, "s1l1"))} == {800e9}
    assert bps["s0b0>s1b1"] == 10e12
    named = scenario(*ONE, "fabric.oversubscription=4", 'conditions.links={"s0l0>s0p0" = {rate = "7 Gbit/s"}}')
    assert ports_bps(named)["s0l0>s0p0"] == 7e9 and ports_bps(named)["s0l0>s0p1"] == 200e9


def test_an_all_to_all_slows_down_in_proportion_to_the_leaf_oversubscription() -> None:
    """Two GPUs of a leaf send 12 messages to other leaves over its uplinks, which have 1/r of the GPUs' rate."""
    asked = "collective.kind=alltoall", "collective.size=512 MB", "fabric.routing=spray", "fabric.border_routers=1"
    message_s = 8 * 512e6 / 8 / 800e9
    for ratio in (1, 2, 8):
        found_s = time_s(*asked, f"fabric.oversubscription=[{ratio}, 0.01]")
        assert found_s == pytest.approx(max(7.0, 6.0 * ratio) * message_s, rel=1e-3)


def test_each_rail_plane_has_an_equal_share_of_a_gpus_rate() -> None:
    bps = ports_bps(scenario(*ONE, "fabric.rails=4", "fabric.oversubscription=2"))
    assert bps["g1>s0n1"] == bps["s0n1>g1"] == 800e9
    assert {bps[f"s0n1>s0p{plane}"] for plane in range(4)} == {bps[f"s0p{plane}>s0n1"] for plane in range(4)} == {200e9}
    up_bps = [bps[f"s0p2>s0b{router}"] for router in range(2)]
    assert sum(up_bps) == 4 * 200e9 / 2
    plain = ports_bps(scenario(*ONE, "fabric.rails=4"))
    assert plain["s0p2>s0b1"] == 200e9 and len(plain) == 2 * (8 + 8 * 4 + 2 * 4 * 2 + 4)


@pytest.mark.parametrize("mode", ["base", "ccl", "wan", "joint"])
def test_four_rails_equal_one_when_channels_or_sprayed_pieces_use_all_of_them(mode: str) -> None:
    one_s = time_s(*RING, "fabric.rails=1", mode=mode)
    assert one_s == pytest.approx(14 * 8 * 64e6 / 800e9, rel=1e-3)
    assert time_s(*RING, "fabric.rails=4", "collective.channels=4", mode=mode) == pytest.approx(one_s, rel=0.01)
    assert time_s(*RING, "fabric.rails=4", mode=mode) == pytest.approx(4 * one_s, rel=0.01)
    spread_s = time_s(*RING, "fabric.rails=4", "fabric.routing=spray", "fabric.paths=1", mode=mode)
    assert spread_s == pytest.approx(one_s, rel=0.01)


def test_flows_from_one_gpu_to_several_others_use_all_rails() -> None:
    """Seven messages on four rails, each a quarter as fast as the GPU: two share each rail, but one has its own."""
    asked = "collective.kind=alltoall", "collective.size=512 MB", "fabric.rails=4", "fabric.oversubscription=0.1"
    assert time_s(*asked) == pytest.approx(4 * 2 * 8 * 64e6 / 800e9, rel=0.01)


@pytest.mark.parametrize("broken", ["switch s0p1 down", "link s0n2-s0p3 down"])
def test_a_failed_rail_of_four_costs_a_quarter_of_the_rate(broken: str) -> None:
    fault = f'fault=[{{at = "collective 0", what = "{broken}"}}]'
    for values in (
        (*RING, "fabric.rails=4", "fabric.routing=spray", "fabric.border_routers=1"),
        (*RING, "fabric.rails=4", "collective.channels=12"),
    ):
        assert time_s(*values, fault) == pytest.approx(time_s(*values) * 4 / 3, rel=0.01)


def test_rails_survive_storing_appear_in_labels_and_replace_leaves_and_spines() -> None:
    one = scenario(*ONE, "fabric.rails=2", "fabric.oversubscription=1.5")
    assert ", 2 rails" in one.label and from_json(to_json(one)) == one
    text = resolved(one)
    assert "leaves" not in text and "spines" not in text and scenario_of(text).fabric == one.fabric
    swept = scenario(*ONE, "sweep.fabric.oversubscription=[1, [2, 3]]")
    shown = [point.label for point in swept.configurations()]
    assert "oversubscription 1.0," in shown[0] and "oversubscription 2.0,3.0," in shown[1]
    assert "leaves" in resolved(scenario(*ONE, "sweep.fabric.oversubscription=[1, 2]"))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["fabric.rails=0"], "0 is too small; allowed: a whole number from 1 to 32"),
        (["fabric.rails=true"], "true is a boolean; allowed: a whole number"),
        (["fabric.rails=2", "fabric.leaves=4"], "2 rails together with leaves or spines, which rails replace"),
        (["fabric.rails=2", "fabric.oversubscription=[1, 2]"], "2 tiers; allowed: with fabric.rails one number"),
        (["fabric.rails=2", "fabric.grain=logical"], "applies to ports, which the logical grain does not have"),
        (["fabric.oversubscription=2", "fabric.grain=logical"], "applies to ports, which the logical grain"),
        (["fabric.oversubscription=0"], "0 is too small; allowed: a number from 0.01 to 1,000"),
        (["fabric.oversubscription=nan"], "not finite; allowed: a number from 0.01 to 1,000"),
        (["fabric.oversubscription=[1, 2, 3]"], "has 3 numbers; allowed: a number"),
        (["fabric.oversubscription=[1, true]"], "true is a boolean; allowed: a number"),
    ],
)
def test_invalid_rails_or_oversubscription_are_refused_in_one_sentence(values: "list[str]", says: str) -> None:
    with pytest.raises(ScenarioError) as told:
        scenario(*ONE, *values)
    assert says in str(told.value) and len(str(told.value).splitlines()) == 1


FAULTS = """
[fabric]
gpus = 4
border_routers = 1
grain = "physical"
rails = 4
routing = "spray"
oversubscription = 1
[conditions]
intra_rate = "80 Gbit/s"
wan_rate = "160 Gbit/s"
[collective]
kind = "allreduce"
size = "64 MB"
count = 3
[run]
modes = ["base"]
[[fault]]
at = "collective 1"
what = "switch s1p2 down"
for = "1 collectives"
[[fault]]
at = "collective 2"
what = "link s0n1-s0p0 down"
"""


def test_emulated_spraying_over_rails_matches_the_model_with_and_without_a_failed_rail(tmp_path: Path) -> None:
    (tmp_path / "rails.toml").write_text(FAULTS)
    found = measured(tmp_path / "run", "rails.toml", "--engine", "both", collectives=3, median=0.01, p99=0.01)
    assert {point["engine"] for point in found["points"]} == {"model", "emulation"}


def test_emulated_channels_of_a_path_choosing_mode_use_their_rail_planes(tmp_path: Path) -> None:
    text = FAULTS.partition("[[fault]]")[0].replace("border_routers = 1", "").replace("160", "10-100")
    text = text.replace("spray", "single").replace("base", "joint").replace('"64 MB"', '"64 MB"\nchannels = 4')
    (tmp_path / "joint.toml").write_text(text)
    measured(tmp_path / "run", "joint.toml", "--engine", "emulation", collectives=3)
