"""run.py papers pauses: what the kernel's own queues show, against what a fluid does, and its answer."""

from dataclasses import replace

import pytest

from scenarios.papers import pauses
from scenarios.papers.paper import NOT_CLAIMED, SAME_DIRECTION, Settings
from scenarios.papers.pauses import FIFO, PAUSED_TCP, PAUSES
from scenarios.studies.papers import paper

NET_BPS = 8e9 - 2e9  # four flows that arrive at the congested port, less what leaves it
LATE_BYTES = NET_BPS * 10e-3 / 8


def test_queues_of_the_kernel_hold_what_a_round_trip_brings_and_its_paused_ports_stop_the_bystander() -> None:
    """A buffer of a bandwidth-delay product pauses at the first frame: a round trip of 10 ms at full rate, then the
    port needs 30 ms for what has come, and waits for another 10 ms."""
    ((_, seen),) = pauses.measured([(PAUSES, 1.0)], jobs=1)
    assert seen.lost == 0 and seen.peak_bytes == pytest.approx(LATE_BYTES, rel=0.01)
    congested_bps, bystander_bps = seen.means
    assert congested_bps == pytest.approx(2e9 * 40 / 50, rel=0.01)
    assert bystander_bps == pytest.approx(2e9 * 10 / 50, rel=0.01)
    assert (seen.bystander_bps == 0).sum() >= 20 and seen.bystander_bps[:2].min() > 0.9e9


def test_what_arrives_late_is_lost_in_half_of_that_buffer_and_tcp_without_pauses_leaves_the_bystander_its_rate() -> (
    None
):
    ((_, seen),) = pauses.measured([(PAUSES, 0.5)], jobs=1)
    # 1.25 MB of 7.5 + 2.5 MB that are sent to the port during the round trip have no room.
    assert seen.lost == pytest.approx(1.25 / 10, rel=0.1)
    found = dict(pauses.measured([(FIFO, 1.0), (PAUSED_TCP, 1.0)], jobs=2))
    assert found[FIFO, 1.0].bystander_bps[15:].min() == pytest.approx(2e9, rel=0.01)
    assert found[PAUSED_TCP, 1.0].means[1] < 1e9 and found[PAUSED_TCP, 1.0].lost == 0


def test_a_case_that_cannot_be_made_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from scenarios.api import RunError

    wrong = replace(pauses.case(FIFO, 1.0), queue="bfifo limit nothing")
    monkeypatch.setattr(pauses, "case", lambda *_: wrong)
    with pytest.raises(RunError, match=r"the program paused_ports has failed with exit status 1: .*tc"):
        list(pauses.measured([(FIFO, 1.0)], jobs=1))


def test_the_answer_has_the_paper_s_one_claim_and_a_picture_without_a_vm() -> None:
    answer = paper("pauses").repeat(Settings(measures=False, jobs=1, seed=1), lambda _: None)
    assert [one.verdict for one in answer.claims] == [SAME_DIRECTION] + [NOT_CLAIMED] * (len(answer.claims) - 1)
    assert not any(one.is_measured for one in answer.claims)
    shares = {line["buffer"]: line["share"] for line in answer.lines if line["scheme"] == PAUSES}
    assert max(shares.values()) < 0.4 and min(shares.values()) == pytest.approx(0.2, rel=0.01)
    assert answer.picture is not None and answer.picture().data.startswith("panel,name,")
