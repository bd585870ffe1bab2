"""Frames over links that are paused, against what a fluid does: the buffer that loses nothing, shares, idle ports."""

from math import inf

import pytest

from analysis.model.pauses import Link, Observed, simulate

FRAME, RATE = 1000, 10e9
ONE_FRAME = 3 * FRAME  # what a fluid does not have: frames that are being sent, and where thresholds are passed


def incast(
    senders: int, *, drain: float, delay: float, xoff: float, xon: float = 0.0, buffer: float = inf, until: float = 0.05
) -> Observed:
    """Send from this number of hosts over one link of RATE; all but the last one pass one port, which has `drain` of
    RATE, and the last one another."""
    host, port = RATE / senders, drain * RATE
    near = [Link(rate_bps=host, delay_s=1e-6, xoff_bytes=5 * FRAME, xon_bytes=3 * FRAME)] * senders
    wan = Link(rate_bps=RATE, delay_s=delay, xoff_bytes=xoff, xon_bytes=xon)
    far = [Link(rate_bps=port, delay_s=1e-6, buffer_bytes=buffer), Link(rate_bps=RATE, delay_s=1e-6)]
    paths = [(one, senders, senders + 1 + (one == senders - 1)) for one in range(senders)]
    return simulate([*near, wan, *far], paths, frame_bytes=FRAME, bin_s=until / 100, bins=100)


def alone(*, drain: float, delay: float, xoff: float, xon: float = 0.0, buffer: float = inf) -> Observed:
    """Send one flow over a link of RATE that pauses its sender, to a port with `drain` of RATE, for 100 ms."""
    links = [
        Link(rate_bps=RATE, delay_s=delay, xoff_bytes=xoff, xon_bytes=xon),
        Link(rate_bps=drain * RATE, delay_s=1e-6, buffer_bytes=buffer),
    ]
    return simulate(links, [(0, 1)], frame_bytes=FRAME, bin_s=1e-3, bins=100)


@pytest.mark.parametrize("drain", [0.01, 0.25, 0.8])
@pytest.mark.parametrize("delay", [100e-6, 500e-6])
def test_what_arrives_in_a_round_trip_after_the_threshold_is_the_room_that_loses_nothing(
    drain: float, delay: float
) -> None:
    late = (1 - drain) * RATE * 2 * delay / 8
    seen = alone(drain=drain, delay=delay, xoff=50 * FRAME, xon=0)
    assert seen.peak_bytes[1] == pytest.approx(50 * FRAME + late, abs=ONE_FRAME)
    enough = alone(drain=drain, delay=delay, xoff=50 * FRAME, buffer=50 * FRAME + late + ONE_FRAME)
    assert enough.lost_bytes.sum() == 0
    short = alone(drain=drain, delay=delay, xoff=50 * FRAME, buffer=50 * FRAME + late / 2)
    # Each pause loses what has no room: a pause takes until the buffer is empty, and a round trip on either side.
    on_s = 8 * 50 * FRAME / ((1 - drain) * RATE) + 2 * delay
    cycle_s = on_s + 8 * (50 * FRAME + late / 2) / (drain * RATE) + 2 * delay
    assert short.lost_bytes.sum() / (late / 2) == pytest.approx(0.1 / cycle_s, abs=1.5, rel=0.1)


@pytest.mark.parametrize("drain,delay,xoff,xon", [(0.5, 1e-3, 0.5, 0.1), (0.5, 1e-3, 2.0, 1.0), (0.2, 2e-4, 0.01, 0.0)])
def test_a_port_idles_if_a_round_trip_empties_what_is_left_when_the_sender_may_go_on(
    drain: float, delay: float, xoff: float, xon: float
) -> None:
    """Thresholds are in bandwidth-delay products. Its period: fill to xoff, a round trip more, drain to xon, a round
    trip until frames arrive again."""
    product = RATE * 2 * delay / 8
    seen = alone(drain=drain, delay=delay, xoff=xoff * product, xon=xon * product)
    fill, least = 1 - drain, max(0.0, xon - drain)
    on, off = (xoff - least) / fill + 1, (xoff + fill - xon) / drain + 1  # in round trips
    carried = seen.arrived_bytes[0, 20:].sum() * 8 / 80e-3
    assert carried == pytest.approx(RATE * on / (on + off), rel=0.04)
    assert carried < 0.97 * drain * RATE if xon < drain else carried == pytest.approx(drain * RATE, rel=0.01)


@pytest.mark.parametrize("senders", [2, 5, 9])
@pytest.mark.parametrize("drain", [0.05, 0.1])
def test_a_bystander_gets_what_each_flow_to_the_congested_port_gets(senders: int, drain: float) -> None:
    """Frames wait in one queue, to which each sender brings as much, so that none gets more than another."""
    product = RATE * 200e-6 / 8
    seen = incast(senders, drain=drain, delay=100e-6, xoff=product / 2, xon=product / 4)
    rates = seen.arrived_bytes[:, 40:].sum(axis=1) * 8 / 30e-3
    assert rates[:-1].sum() == pytest.approx(drain * RATE, rel=0.01)
    assert rates[-1] == pytest.approx(drain * RATE / (senders - 1), rel=0.1)
    free = incast(senders, drain=drain, delay=100e-6, xoff=inf, buffer=product)
    assert free.arrived_bytes[-1, 40:].sum() * 8 / 30e-3 == pytest.approx(RATE / senders, rel=0.01)
    lost = free.lost_bytes[:-1].sum() * 8 / 50e-3
    assert lost == pytest.approx((1 - 1 / senders - drain) * RATE, rel=0.05) and free.lost_bytes[-1] == 0
    assert free.paused_s.max() == 0


def test_pauses_spread_from_link_to_link_to_the_senders_and_lose_nothing() -> None:
    """Four links in a row, the last one slow: each buffer holds its threshold and what a round trip brings."""
    delays, xoff, slow = (200e-6, 50e-6, 5e-6), 20 * FRAME, 0.1
    links = [Link(rate_bps=RATE, delay_s=delay, xoff_bytes=xoff, xon_bytes=10 * FRAME) for delay in delays]
    seen = simulate(
        [*links, Link(rate_bps=slow * RATE, delay_s=1e-6)], [(0, 1, 2, 3)], frame_bytes=FRAME, bin_s=1e-3, bins=50
    )
    assert seen.lost_bytes.sum() == 0 and seen.arrived_bytes[0, 10:].sum() * 8 / 40e-3 < slow * RATE * 1.01
    for delay, peak in zip(delays, seen.peak_bytes[1:], strict=True):
        assert xoff <= peak <= xoff + RATE * 2 * delay / 8 + ONE_FRAME
    assert (seen.paused_s[:3] > 0.8 * 50e-3).all() and (seen.paused_s <= 50e-3).all()
