"""Collectives over RDMA verbs: agents' messages are SENDs of soft-RoCE, and take what the model predicts."""

import ctypes
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from hosts.agent import libibverbs
from scenarios import api, vm
from scenarios.engines.preflight import check_vm
from scenarios.spec import ScenarioError
from tests.fakes.runs import RUN

TWO = {
    "fabric.gpus": 2,
    "conditions.wan_rate": "10 Gbit/s",
    "conditions.intra_rate": "100 Gbit/s",
    "conditions.wan_delay": "10 ms",
    "conditions.intra_delay": "1 us",
    "collective.chunk": "8 MB",
    "collective.pieces": 1,
    "collective.count": 3,
    "collective.emulated": 3,
    "run.modes": ["base"],
    "transport.protocol": "verbs",
}
PACKET_S = 8 * 4154 / (10e9 * 4154 / 4096)
"""The time of a full frame on a WAN link whose payload has 10 Gbit/s."""


def measured(**keys: object) -> pd.DataFrame:
    return api.run(api.scenario("paper", {**TWO, **keys}), engine="emulation")


def test_a_message_of_rdma_takes_its_bytes_at_the_links_rate_and_its_delays_in_every_boot() -> None:
    """Two GPUs exchange one block each: the closed form is bytes over rate, and the delays of the three links."""
    once, again = measured(), measured()
    expected_s = 8 * 8_000_000 / 10e9 + 10e-3 + 2 * 1e-6
    assert once.completion_s.to_numpy() == pytest.approx(expected_s, abs=2 * PACKET_S)
    assert once.completion_s.tolist() == again.completion_s.tolist()
    assert once.retransmitted_bytes.isna().all()


@pytest.mark.parametrize(
    "keys",
    [
        {"collective.kind": "allreduce", "fabric.gpus": 4, "collective.pieces": 3},
        {"conditions.sampler": "markov", "conditions.wan_rate": "5-20 Gbit/s", "conditions.every": "2 ms"},
        {"fabric.border_routers": 2, "run.modes": ["joint"], "conditions.wan_rate": "5-20 Gbit/s", "fabric.gpus": 4},
        {"run.machines": 2, "fabric.gpus": 4},
        {"collective.kind": "alltoall", "fabric.gpus": 6, "fabric.grain": "physical", "collective.chunk": "2 MB"},
        {"fabric.gpus": 6, "collective.algorithm": "hierarchical", "collective.chunk": "2 MB"},
        {
            "fabric.gpus": 4,
            "fabric.border_routers": 2,
            "fault": [{"at": "collective 1", "what": "link s0b0-s1b0 down"}],
        },
    ],
    ids=[
        "sums and pieces",
        "changing rates",
        "chosen paths",
        "two machines",
        "shared ports",
        "shared links",
        "a failed link",
    ],
)
def test_collectives_over_rdma_are_as_predicted_and_deliver_every_byte(keys: dict[str, object]) -> None:
    rows = measured(**keys)
    assert len(rows) == 3 and rows.undisturbed.all()  # wrong bytes and lost connections are attempted again, and told
    assert rows.completion_s.to_numpy() == pytest.approx(rows.predicted_s.to_numpy(), rel=1e-3)


def test_a_lost_frame_costs_what_is_under_way_behind_it_and_a_collective_without_one_nothing() -> None:
    """Go-back-N: what was sent after the lost frame, a round trip of it and what waits at the link, is sent again."""
    lossy = {"transport.queue": "fifo", "fabric.buffer": "1 GB", "fabric.wan_loss": 1e-4, "collective.chunk": "32 MB"}
    rows = measured(**lossy, **{"collective.count": 6, "collective.emulated": 6})
    late_s = (rows.completion_s - rows.predicted_s).to_numpy()
    lost, most_s = rows.drops.to_numpy(), 2 * 10e-3 + 8 * 32_000_000 / 10e9
    assert 0 < (lost > 0).sum() < len(rows)
    assert abs(late_s[lost == 0]) == pytest.approx(0, abs=20e-6)
    assert (late_s[lost > 0] > 1e-3).all() and (late_s <= lost * most_s + 20e-6).all()


@pytest.mark.parametrize("what", ["link s0b0-s1b0 down", "agent 1 killed"])
def test_a_fault_within_a_collective_is_noticed_and_repaired_over_rdma_too(what: str) -> None:
    """What is lost is sent again after a timeout, and a dead peer is noticed at once, not at the deadline of 60 s."""
    lasts = {"for": "1 collective"} if "link" in what else {}
    fault = {"at": "8 ms into collective 1", "what": what, **lasts}
    rows = measured(**{"fabric.border_routers": 2, "fault": [fault]})
    before, hit, after = rows.completion_s
    assert (before, after) == pytest.approx(rows.predicted_s.to_numpy()[[0, 2]], rel=1e-3)
    assert hit < 1 and rows.undisturbed.tolist() == [True, False, True]


def test_the_hosts_devices_send_the_messages(tmp_path: Path) -> None:
    """What the kernel counts on a host (`rdma statistic`) at the prompt: a SEND for each message and each label."""
    (tmp_path / "two.toml").write_text(
        '[fabric]\ngpus = 2\n[collective]\nchunk = "1 MB"\npieces = 1\n[transport]\nprotocol = "verbs"\n'
    )
    lines = "g0 rdma statistic show link\nallgather chunk 1 MB\ng0 rdma statistic show link\nexit\n"
    ended = subprocess.run(
        [*RUN, "two.toml", "--cli"], cwd=tmp_path, input=lines, capture_output=True, text=True, timeout=300, check=True
    )
    before, after = (
        dict(zip(words[2::2], map(int, words[3::2]), strict=False))
        for words in (line.split() for line in ended.stdout.splitlines() if line.strip().startswith("link rxe_g0"))
    )
    assert before["rdma_recvs"] == 0 and after["rdma_recvs"] == 3  # one that opens paths, the message and its label
    assert after["sent_pkts"] >= -(-1_000_000 // 4096)


def test_a_machine_without_libibverbs_is_told_so_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, **_: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    libibverbs._library.cache_clear()
    with pytest.raises(vm.CannotRunError, match=r"needs libibverbs, which is not installed.*scenarios/setup\.sh"):
        check_vm([api.scenario("paper", TWO)])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"transport.rdma": "siw"}, 'transport.rdma is "siw"; allowed: transport.rdma "rxe", or "tcp"'),
        ({"fabric.routing": "ecmp", "fabric.gpus": 4}, "a fabric.routing that spreads flows"),
        ({"run.clock": "wall"}, "the wall clock"),
    ],
)
def test_what_verbs_cannot_do_is_refused_with_its_reason(keys: dict[str, object], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        api.scenario("paper", {**TWO, **keys})
