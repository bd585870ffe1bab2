"""The physical grain: every port has conditions, flows share ports, and measured times equal predictions."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from scenarios.engines.model import Model
from scenarios.engines.prediction import decisions_of
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import ScenarioError, axis, load_scenario
from tests.fakes.commands import scenario, times
from tests.fakes.runs import ended, measured, measured_as_recorded

PHYSICAL, MODES = "fabric.grain=physical", 'run.modes=["base"]'


def test_in_the_physical_grain_every_port_has_a_rate_in_its_configured_range() -> None:
    setting = scenario(PHYSICAL, "conditions.wan_rate=1-2 Gbit/s", "conditions.intra_rate=30-40 Gbit/s")
    conditions = conditions_of(setting)
    drawn, ports = conditions.shared_bps(0, 50), conditions.shared.all
    assert drawn.shape == (50, 2 * len(conditions.fabric.cables))
    for port, rates in zip(ports, drawn.T, strict=True):
        low, high = (1e9, 2e9) if re.fullmatch(r"s\db\d>s\db\d", port.name) else (30e9, 40e9)
        assert low <= rates.min() < rates.max() <= high
    # Decisions use the rates of logical links, each of which is that of the slowest port on its way.
    names = {link.name: link.index for link in conditions.fabric.links}
    by_port = {port.name: port.index for port in ports}
    known = conditions.rates_bps(0, 50)
    assert (known[:, names["g0>g1"]] == drawn[:, [by_port["g0>s0l0"], by_port["s0l0>g1"]]].min(axis=1)).all()
    up = [by_port[name] for name in ("g3>s0l1", "s0l1>s0p1", "s0p1>s0b1")]
    assert (known[:, names["g3>s0b1"]] == drawn[:, up].min(axis=1)).all()


@pytest.mark.parametrize("kind", ["alltoall", "gather", "scatter", "broadcast"])
def test_in_the_physical_grain_all_messages_of_a_gpu_share_one_nic(kind: str) -> None:
    """Seven messages pass a GPU's port. Of logical links, the one to or from a border router carries most, four."""
    values = f"collective.kind={kind}", "collective.algorithm=direct", "collective.chunk=8 MB", "collective.count=1"
    wide = "conditions.intra_rate=10 Gbit/s", "conditions.wan_rate=1000 Gbit/s"
    setting = scenario(PHYSICAL, *values, *wide, MODES, "fabric.leaves=1", "fabric.spines=8")
    (physical,) = times([setting], Model())[0, "base"]
    delay_s = 2 * 0.7e-6 + 10e-6
    message_s = 8 * setting.workload.largest_message_bytes / 10e9
    assert physical == pytest.approx(7 * message_s + delay_s, rel=1e-3)
    (logical,) = times([setting.with_values({"fabric.grain": "logical"})], Model())[0, "base"]
    assert logical == pytest.approx(4 * message_s + delay_s, rel=1e-3)


def test_in_the_physical_grain_no_two_edges_of_a_ring_share_a_port_so_its_slowest_ports_decide() -> None:
    setting = scenario(PHYSICAL, "collective.count=20", MODES)
    conditions = conditions_of(setting)
    decisions = decisions_of(setting, "base", conditions, start=0, count=20)
    src = decisions.placement
    ways = conditions.passed(0, src, np.roll(src, -1, axis=1), decisions.path)
    assert max(np.unique(row[row >= 0], return_counts=True)[1].max() for row in ways) == 1
    assert setting.shared_links("base") == ()
    # A chunk takes its time on an edge's slowest port, then the delays of the edge; every GPU forwards whole chunks.
    ports_bps, delays_s = conditions.shared_bps(0, 20), conditions.shared_delays_s
    expected_s = []
    for row, bps in zip(ways, ports_bps, strict=True):
        left_s, arrived_s = np.zeros(8), np.zeros(8)
        sends_s = [8 * setting.collective.chunk_bytes / bps[edge[edge >= 0]].min() for edge in row]
        for _ in range(7):
            left_s = np.maximum(np.roll(arrived_s, 1), left_s) + sends_s
            arrived_s = left_s + [delays_s[edge[edge >= 0]].sum() for edge in row]
        expected_s.append(arrived_s.max())
    assert times([setting], Model())[0, "base"] == pytest.approx(expected_s, rel=1e-9)


def test_labels_and_link_names_show_the_grain_and_a_sweep_over_grains_is_refused(tmp_path: Path) -> None:
    assert scenario(PHYSICAL).label.endswith(", physical grain, ring slowest edge") and "grain" not in scenario().label
    answer = json.loads(ended("--dry-run", "--json", "--set", PHYSICAL, cwd=tmp_path)[0])
    assert {point["grain"] for point in answer["points"]} == {"physical"}
    assert "g0>s0l0" in answer["links"][0]["names"] and "g0>g1" not in answer["links"][0]["names"]
    with pytest.raises(ScenarioError, match="cannot be swept"):
        load_scenario("paper", [axis("fabric.grain=logical,physical")])


FAULTS = """
[fabric]
grain = "physical"
[collective]
kind = "alltoall"
chunk = "2 MB"
count = 4
[run]
modes = ["base", "joint"]
[[fault]]
at = "collective 1"
what = "switch s0p0 down"
for = "1 collectives"
[[fault]]
at = "collective 2"
what = "link s0b0-s1b0 down"
for = "1 collectives"
[[fault]]
at = "collective 3"
what = "agent 1 slow 10x"
"""


def test_shared_ports_are_measured_as_predicted_while_faults_are_active(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text(FAULTS)
    answer = measured(tmp_path / "run", "faults.toml", "--engine", "both", collectives=8, p99=0.01)
    times: dict[str, dict[str, float]] = {}
    for point in answer["points"]:
        times.setdefault(point["engine"], {})[point["mode"]] = point["mean_s"]
    assert times["model"] == pytest.approx(times["emulation"], rel=0.01)  # the model engine applies the faults, too
    conditions = pq.read_table(tmp_path / "run" / "conditions.parquet")
    assert conditions.num_rows == 4 * 56  # two directions of 28 cables


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("allreduce", "double-tree"), pytest.param("allgather", "hierarchical", marks=pytest.mark.slow)],
)
def test_over_ports_every_boot_takes_the_same_nanoseconds_and_the_predicted_time(
    tmp_path: Path, kind: str, algorithm: str
) -> None:
    values = PHYSICAL, f"collective.kind={kind}", f"collective.algorithm={algorithm}", "conditions.wan_delay=1 ms"
    command = ("--engine", "emulation", "--modes", "joint", "--collectives", "3")
    measured_as_recorded(tmp_path / "run", *command, sets=values, p99=0.01)


def test_over_paths_of_unequal_delay_shared_ports_are_measured_as_predicted(tmp_path: Path) -> None:
    """A flow holds its last port before it is delayed. With the WAN delay before that port, messages from within the
    site would get the port first, and the collective would take 0.8 of the time."""
    of_wan = "fabric.wan=five-router", "conditions.wan_delay=1 ms", 'conditions.links={"*>g*"={rate="5-10 Gbit/s"}}'
    values = PHYSICAL, "fabric.gpus=4", "collective.kind=alltoall", *of_wan
    command = ("--engine", "emulation", "--modes", "wan", "--collectives", "2")
    measured(tmp_path / "run", *command, sets=values, collectives=2, p99=0.002)
