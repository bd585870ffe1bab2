"""Traffic engineering: what it decides and predicts, and that the emulation's tunnels have those rates."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.engines.prediction import decided, predicted, predicted_with_jobs
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import Decisions
from scenarios.spec.load import ScenarioError, load_scenario
from scenarios.spec.scenario import Scenario, from_json, to_json
from tests.conftest import VM
from tests.fakes.commands import scenario
from tests.fakes.runs import measured

TE, ALL = "fabric.routing=te", "collective.kind=alltoall"
FLAT = "conditions.intra_rate=400 Gbit/s", "conditions.wan_rate=10 Gbit/s", "conditions.wan_delay=1 ns"
SEGMENT_BYTES = 65_000  # of TCP, at most


def planned(setting: Scenario, count: int = 5, mode: str = "base") -> Decisions:
    return decided(setting, mode, conditions_of(setting), start=0, count=count)


def time_s(setting: Scenario) -> float:
    return float(predicted(setting, "base", planned(setting, 1), conditions_of(setting), start=0)[0])


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["logical", "physical"]),
    st.sampled_from(["allgather", "alltoall"]),
    st.sampled_from(["base", "ccl"]),
    st.sampled_from(["mesh", "five-router"]),
    st.integers(0, 99),
)
def test_tunnels_fit_into_links_and_no_flow_is_without_a_rate(
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
    assert (predicted(setting, mode, found, conditions, start=0) > 0).all()


def test_all_links_of_the_wan_carry_a_message_in_proportion_to_their_rates() -> None:
    """Over four links of 10, 10, 10 and 30 Gbit/s 60 pieces have the time of 60 Gbit/s; sprayed, the slowest's."""
    text = '"s0b1>s1b1" = { rate = "30 Gbit/s" }, "s1b1>s0b1" = { rate = "30 Gbit/s" }'
    sets = ALL, *FLAT, f"conditions.links={{ {text} }}"
    bits = 16 * 8 * scenario(*sets).workload.largest_message_bytes
    assert time_s(scenario(*sets, TE, "te.pieces=60")) == pytest.approx(bits / 60e9, rel=2e-3)
    assert time_s(scenario(*sets, "fabric.routing=spray")) == pytest.approx(bits / 40e9, rel=2e-3)


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
def test_classes_are_served_in_their_order_and_later_ones_have_their_share(
    tmp_path: Path, share: str, left: float
) -> None:
    (tmp_path / "jobs.toml").write_text(JOBS.replace("SHARE", share))
    setting = load_scenario(str(tmp_path / "jobs.toml"))
    found = planned(setting, 1)
    gold, bronze = found.limits_bps[0].reshape(2, -1).sum(axis=1)  # of both directions
    assert (gold, bronze) == (pytest.approx(20e9 * (1 - left)), pytest.approx(20e9 * left, rel=1e-5))
    _, jobs_s = predicted_with_jobs(setting, "base", found, conditions_of(setting), start=0)
    assert jobs_s is not None and jobs_s[0, 1] == pytest.approx(8 * 8e6 / (10e9 * left), rel=0.01)


def test_a_stated_rate_is_all_that_is_wanted(tmp_path: Path) -> None:
    """Background traffic of 1 Gbit/s from each GPU alone in its class leaves the rest to the other."""
    text = JOBS.replace("SHARE", "").replace('name = "first"\nclass = "gold"', 'name = "first"\nclass = "bronze"')
    (tmp_path / "jobs.toml").write_text(text)
    gold, bronze = planned(load_scenario(str(tmp_path / "jobs.toml")), 1).limits_bps[0].reshape(2, -1).sum(axis=1)
    messages_bps = 8 * 1e6 / 10e-3  # a message each, and no time for a second one
    assert gold == pytest.approx(2 * messages_bps, rel=1e-6) and gold + bronze == pytest.approx(20e9, rel=1e-6)


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


def test_rates_are_kept_until_their_time_is_over_or_a_link_fails(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text(FAULTS)
    setting = load_scenario(str(tmp_path / "faults.toml"))
    found = decided(setting, "base", conditions_of(setting), start=0, count=5).limits_bps
    same = [[bool((one == other).all()) for other in found] for one in found]
    assert same[0] == [True, False, True, False, False]
    parts = [decided(setting, "base", conditions_of(setting), start=k, count=1).limits_bps for k in range(5)]
    assert (np.concatenate(parts) == found).all()


def test_the_keys_are_kept_and_what_it_cannot_be_beside_is_told() -> None:
    one = scenario(TE, "te.every=4", "te.pieces=8")
    assert (from_json(to_json(one)).te.every, from_json(to_json(one)).fabric.pieces) == (4, 8)
    assert one.label.endswith(", te")
    refused = {
        "te.pieces=65": "65 is too large; allowed: a whole number from 1 to 64",
        "te.every=0": "0 is too small",
        "run.clock=wall": "te is beside the wall clock",
        "transport.queue=fifo": 'te is beside transport.queue "fifo"',
        "control.counted=true": "te is beside control.counted",
        "conditions.every=5 ms": "te is beside conditions.every",
    }
    for value, said in refused.items():
        with pytest.raises(ScenarioError, match=said):
            scenario(TE, value)


def test_measured_times_are_the_model_s_whatever_links_fail(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text(FAULTS.replace("every = 3", "every = 1"))
    measured(tmp_path / "run", "faults.toml", "--engine", "emulation", collectives=4)  # that with no fault under way


def test_tunnels_have_their_rates_the_wan_queues_nothing_and_an_update_loses_nothing(vm: VM) -> None:
    file = vm.folder / "te.toml"
    text = FAULTS.partition("[[fault]]")[0].replace("every = 3", "every = 1")
    text = text.replace("count = 5", 'chunk = "32 MB"\ncount = 5')
    file.write_text(text.replace('wan_delay = "1 ms"', 'wan_delay = "1 ms"\nintra_rate = "400 Gbit/s"'))
    found = vm.report("tunnels", str(file), "0.005", "0.02")
    assert len(found["sent"]) > 3
    for name, wanted in found["wanted"].items():
        assert abs(found["sent"][name] - wanted) <= max(0.01 * wanted, SEGMENT_BYTES), name
    assert max(found["queued"].values()) <= 4 * SEGMENT_BYTES  # of more than a hundred flows
    assert found["moved"] > found["flows"] / 4
    assert found["drops"] == [0, 0]
