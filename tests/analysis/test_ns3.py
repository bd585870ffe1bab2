"""The timing model of flows that share links against ns-3's TCP with fair queues: ``pytest -m ns3``.

The tests install ns-3 from the package index into an environment of its own (500 MB; needs a C++ compiler).
"""

import json
import math
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.model import fluid
from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import Transfer
from tests.conftest import PROJECT, own_python

pytestmark = pytest.mark.ns3

NS3 = "ns3==3.44.post0"
GPUS, MESSAGE_BYTES, DELAY_S = 8, 2_000_000, 100e-9
SEGMENT_BYTES, FRAME_BYTES = 8948, 9000 + 2  # ns-3's point-to-point links add 2 bytes to a packet
ACK_BYTES = 52 + 2

DIRECT = schedule("alltoall", "direct", sites=(GPUS // 2, GPUS // 2))
ENDS = np.array([(flow.src, flow.dst) for flow in DIRECT.flows])


def network(seed: int, *, segments: int, acks_apart: bool) -> dict[str, Any]:
    """Return a switch with random rates to and from each GPU, and a flow between every ordered pair of GPUs."""
    up_bps, down_bps = np.random.default_rng(seed).uniform(20e9, 200e9, (2, GPUS)).tolist()
    flows = [[src, dst, MESSAGE_BYTES, segments * SEGMENT_BYTES] for src, dst in ENDS.tolist()]
    rates = {"up_bps": up_bps, "down_bps": down_bps}
    return {**rates, "delay_s": DELAY_S, "acks_apart": acks_apart, "flows": flows}


def two_sites(seed: int, *, wan_delay_s: float) -> dict[str, Any]:
    """Return a network with half of the GPUs at either end of a WAN cable. The window of a flow that crosses has one
    segment more, and the bandwidth-delay product of its fair share of the cable."""
    found = network(seed, segments=2, acks_apart=True)
    found["wan_bps"] = np.random.default_rng([seed, 1]).uniform(10e9, 100e9, 2).tolist()
    for flow, (src, dst) in zip(found["flows"], ENDS.tolist(), strict=True):
        if (src < GPUS // 2) != (dst < GPUS // 2):
            share_bps = max(found["wan_bps"]) / (GPUS // 2) ** 2
            flow[3] += (1 + math.ceil(share_bps * wan_delay_s / (8 * FRAME_BYTES))) * SEGMENT_BYTES
    return found | {"wan_delay_s": wan_delay_s}


NETWORKS = {
    **{f"acknowledgements apart, seed {seed}": network(seed, segments=2, acks_apart=True) for seed in (1, 2, 3)},
    **{f"two sites, seed {seed}": two_sites(seed, wan_delay_s=10e-6) for seed in (1, 2, 3)},
    "acknowledgements among data": network(1, segments=8, acks_apart=False),
}


@pytest.fixture(scope="module")
def ratios() -> Iterator[dict[str, np.ndarray]]:
    """For each network, the ratio of ns-3's to the model's arrival time of every message, and of the last arrival."""
    with own_python([NS3]) as python:
        command = [python, PROJECT / "tests/analysis/ns3_flows.py"]
        asked = json.dumps(list(NETWORKS.values()))
        ended = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        found = map(json.loads, ended.stdout.splitlines()[-len(NETWORKS) :])
        yield {
            name: ratios_to_model(one, measured) for (name, one), measured in zip(NETWORKS.items(), found, strict=True)
        }


def ratios_to_model(one: dict[str, Any], measured: dict[str, Any]) -> np.ndarray:
    assert measured["dropped"] == 0
    arrived_s = np.array(measured["arrived_s"])
    assert (arrived_s > 0).all()
    wan_bps = one.get("wan_bps", [])
    capacity_bps = np.array([*one["up_bps"], *one["down_bps"], *wan_bps]) * SEGMENT_BYTES / FRAME_BYTES
    site = ENDS * 2 // GPUS
    wan = np.where((site[:, 0] != site[:, 1]) & bool(wan_bps), 2 * GPUS + site[:, 0], -1)
    links = np.column_stack([ENDS + np.array([0, GPUS]), wan]).astype(np.int32)
    delay_s = (2 * one["delay_s"] + (wan >= 0) * one.get("wan_delay_s", 0))[None]
    # The handshake of a connection that crosses takes the WAN's delay once: its answer has a cable of its own.
    wait, set_up = Transfer(flow=len(links), size=one.get("wan_delay_s", 0.0)), (wan >= 0).tolist()
    transfers = [wait, *(replace(task, after=(0,)) if set_up[task.flow] else task for task in DIRECT.transfers)]
    links, delay_s = np.vstack([links, [[-1] * 3]]).astype(np.int32), np.append(delay_s, [[0.0]], axis=1)
    model = fluid.times(transfers, links[None], capacity_bps[None], delay_s, slot_bytes=MESSAGE_BYTES)
    predicted_s = model.arrives_s[1:, 0]
    return np.append(arrived_s / predicted_s, arrived_s.max() / predicted_s.max())


@pytest.mark.parametrize("name", [name for name in NETWORKS if "apart" in name])
def test_ns3_messages_at_one_switch_arrive_when_the_fluid_model_predicts(
    ratios: dict[str, np.ndarray], name: str
) -> None:
    *messages, completion = ratios[name] - 1
    assert len(messages) == GPUS * (GPUS - 1)
    assert abs(completion) < 0.002
    assert np.abs(messages).max() < 0.03


@pytest.mark.parametrize("name", [name for name in NETWORKS if "sites" in name])
def test_ns3_messages_that_cross_the_wan_arrive_when_the_fluid_model_predicts(
    ratios: dict[str, np.ndarray], name: str
) -> None:
    """Messages within a site are left out: crossing flows, with which they share ports, have larger windows."""
    *messages, completion = ratios[name] - 1
    crosses = (ENDS[:, 0] < GPUS // 2) != (ENDS[:, 1] < GPUS // 2)
    assert abs(completion) < 0.005
    assert np.abs(np.array(messages)[crosses]).max() < 0.02


def test_ns3_acknowledgements_among_data_slow_completion_by_their_share_of_the_bytes(
    ratios: dict[str, np.ndarray],
) -> None:
    """Each port carries an acknowledgement for every full frame: 0.6 %. Queued ones make single messages deviate."""
    *messages, completion = ratios["acknowledgements among data"] - 1
    assert completion == pytest.approx(ACK_BYTES / FRAME_BYTES, abs=0.001)
    assert abs(np.median(messages)) < 0.01
