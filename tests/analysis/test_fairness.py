"""Fairness of transfers that share links: Jain's index, the times of transfers, and warnings about fifo queues."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.fairness import busy_s, jain_index, shares
from analysis.statistics.fidelity import fidelity, fifo_of
from analysis.statistics.transfer_times import times_of
from hosts.collectives.schedule import Transfer


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_jains_index_equals_its_formula_in_exact_fractions(given_shares: list[int]) -> None:
    exact = Fraction(sum(given_shares) ** 2, len(given_shares) * sum(one**2 for one in given_shares))
    assert jain_index(np.array(given_shares, float)) == pytest.approx(float(exact), rel=1e-12)


def test_jains_index_of_k_equal_users_among_n_is_k_over_n() -> None:
    """The paper's examples: k of n users have equal shares, the others none."""
    assert jain_index(np.array([3.0, 3.0, 3.0])) == 1
    assert jain_index(np.array([1.0] * 20 + [0.0] * 80)) == pytest.approx(0.2)


def test_busy_time_starts_when_a_transfer_may_begin_and_its_predecessor_has_arrived() -> None:
    transfers = [Transfer(flow=0, size=1), Transfer(flow=1, size=1), Transfer(flow=0, size=1), Transfer(flow=0, size=1)]
    begins, arrives = np.array([0.0, 1.0, 0.0, 9.0]), np.array([4.0, 2.0, 7.0, 10.0])
    assert busy_s(transfers, begins, arrives).tolist() == [4, 1, 3, 1]
    assert begins.tolist() == [0, 1, 0, 9]


def test_messages_are_matched_with_transfers_and_computations_run_one_after_the_other() -> None:
    """Two messages from rank 0 to 1, and then two computations on rank 1, which begin after one message each."""
    transfers = [
        Transfer(flow=0, size=1),
        Transfer(flow=0, size=1),
        Transfer(flow=1, size=5.0, after=(0,)),
        Transfer(flow=1, size=5.0, after=(1,)),
    ]
    messages = pd.DataFrame({"src": [0, 0], "dst": [1, 1], "start_s": [0.0, 0.0], "end_s": [1.0, 2.0]})
    handed_s, over_s = times_of(transfers, [(0, 1), (1, 1)], messages)
    assert (handed_s, over_s) == ([0, 0, 1, 2], [1, 2, 6, 11])
    with pytest.raises(ValueError, match="fewer messages"):
        times_of(transfers, [(0, 1), (1, 1)], messages[:1])
    with pytest.raises(ValueError, match="more messages"):
        times_of(transfers[1:2], [(0, 1), (1, 1)], messages)


def test_fairness_is_reported_for_the_least_fair_link() -> None:
    fair = np.array([2.0, 2.0, 1.0, 4.0])
    # On "a" both took twice the fair time; on "b" one took the fair time and one four times as long: shares 1 and 1/4.
    found = shares(np.array([4.0, 4.0, 1.0, 16.0]), fair, {"a": [0, 1], "b": [2, 3]})
    assert (found.quickest, found.slowest, found.link) == (1, 4, "b")
    assert found.fairness == pytest.approx(1.25**2 / (2 * (1 + 1 / 16)))
    # A transfer that arrives together with its predecessor, on a connection that was waiting, has no share.
    found = shares(np.array([4.0, 0.0, 1.0, 16.0]), fair, {"a": [0, 1], "b": [1, 1]})
    assert (found.quickest, found.link, found.fairness) == (0, "a", 1)
    alone = shares(fair, fair, {})
    assert (alone.quickest, alone.slowest, alone.link) == (1, 1, "") and np.isnan(alone.fairness)


def rows(**changes: object) -> pd.DataFrame:
    one = {"completion_s": 1.0, "predicted_s": 1.0, "drops": 0, "retransmitted_bytes": 0.0, "quickest_transfer": 1.0}
    one |= {"setting": 0, "mode": "base"}
    return pd.DataFrame([one | {"slowest_transfer": 1.0, "fairness": np.nan, "fairness_link": ""} | changes])


def test_a_fifo_run_warns_how_far_the_model_is_off_and_names_the_least_fair_link() -> None:
    other = rows(quickest_transfer=np.nan)
    one = rows(
        completion_s=1.5, drops=3, retransmitted_bytes=27e3, quickest_transfer=0.5, fairness=0.9, fairness_link="a"
    )
    two = rows(
        completion_s=12.34, drops=2, retransmitted_bytes=9e5, slowest_transfer=1240.4, fairness=0.5, fairness_link="b"
    )
    assert fifo_of([other]) is None
    frames = [other, one, two]
    found = fidelity(frames)
    assert found is not None and not found.holds and found.fifo is not None and found.fifo.collectives == 2
    first, second = found.warnings
    assert first == (
        "the model does not hold in fifo queues, whose finite buffers drop packets, which TCP sends again: collectives "
        "took 1.50 to 12.3 times as long as predicted and single transfers 0.50 to 1,240 times, with 5 drops and "
        "0.9 MB retransmitted; shares are least fair on b (Jain's index 0.50 of 1)"
    )
    assert "predictions for this configuration do not hold" in second  # because other queues were measured too
    assert "WARNING: the model does not hold in fifo queues" in str(found)


def test_a_fifo_run_within_one_percent_of_the_model_gives_no_warning() -> None:
    near = fidelity([rows(slowest_transfer=1.009)])
    assert near is not None and near.holds and near.warnings == ()
    late = fidelity([rows(quickest_transfer=0.98, fairness=1.0, fairness_link="a")])
    assert late is not None and not late.holds and len(late.warnings) == 1


def test_the_warning_names_what_makes_the_model_wrong_in_fifo_queues() -> None:
    """Lost frames make single transfers late, and others arrive at once behind them."""
    late, at_once = (
        {"completion_s": 1.7, "slowest_transfer": 5.01, "quickest_transfer": 0.0},
        "0.00: its data had arrived",
    )

    def told(lossy: bool, drops: int) -> str:
        found = fidelity([rows(**late, drops=drops)], lossy=lossy)
        assert found is not None
        return found.warnings[0]

    begins = "the model does not hold in fifo queues, "
    assert told(True, 3).startswith(f"{begins}as WAN links lose frames (fabric.wan_loss), which TCP sends again: ")
    assert told(False, 3).startswith(f"{begins}whose finite buffers drop packets, which TCP sends again: ")
    assert at_once in told(True, 3) and at_once in told(False, 3)
    for lossy in (True, False):
        assert told(lossy, 0).startswith(f"{begins}where TCP decides how flows share links: ") and at_once not in told(
            lossy, 0
        )


def test_configured_wan_loss_is_reported_and_its_drops_give_no_further_warning() -> None:
    frames = [rows(drops=2)]
    found = fidelity(frames, lossy=True)
    assert found is not None and found.holds
    assert found.warnings == ("WAN links lose frames (fabric.wan_loss), which the model does not include",)


def test_drops_outside_fifo_queues_still_warn_of_a_network_that_should_be_lossless() -> None:
    frames = [rows(quickest_transfer=np.nan, drops=2), rows(slowest_transfer=9, drops=7)]
    found = fidelity(frames)
    assert found is not None and found.drops == 9
    assert [warning for warning in found.warnings if "lose none" in warning] == [
        "2 packets lost in a network that should lose none: these times are not those of a lossless fabric"
    ]
