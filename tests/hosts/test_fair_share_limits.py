"""Segment sizes and queue limits of TCP flows that share links fairly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.agent.transport import fair_share_limits

FULL_BYTES = 9000 - 20 - 20 - 12  # the payload of a full packet
ROOM = 193, 321  # the kernel's MAX_TCP_HEADER and a byte, for the smallest and the largest caches and drivers


@given(st.integers(1, 10**9), st.integers(0, 9), st.floats(1e6, 4e11))
def test_a_segment_is_1_to_7_full_packets_and_two_or_three_segments_may_be_queued(
    size: int, links: int, rate_bps: float
) -> None:
    windows = fair_share_limits(message_bytes=size, shared_links=links, fastest_bps=rate_bps)
    for room in ROOM:
        packets = (windows.segment_bytes - room) // FULL_BYTES
        assert 1 <= packets <= 7 and windows.segment_bytes <= 65536  # a segment is one IP packet on an IFB device
    memory = packets * FULL_BYTES + 700
    # TCP sends one more while less than the limit is queued, which gives this number of segments.
    assert 1 + windows.queued_bytes // memory == (2 if links <= 3 else 3)


@pytest.mark.parametrize(
    ("message_bytes", "fastest_bps", "packets"),
    [(8_000_000, 60e9, 1), (8_000_000, 200e9, 2), (16_000_000, 60e9, 2), (64_000_000, 60e9, 7), (1, 400e9, 4)],
)
def test_segment_size_grows_with_message_size_and_link_rate(
    message_bytes: int, fastest_bps: float, packets: int
) -> None:
    found = fair_share_limits(message_bytes=message_bytes, shared_links=1, fastest_bps=fastest_bps)
    assert (found.segment_bytes - ROOM[0]) // FULL_BYTES == packets


@given(st.integers(1, 10**9), st.integers(0, 9), st.floats(1e6, 4e11))
def test_with_changing_rates_segments_are_single_packets_and_two_may_be_queued(
    size: int, links: int, rate_bps: float
) -> None:
    found = fair_share_limits(message_bytes=size, shared_links=links, fastest_bps=rate_bps, steady=False)
    assert FULL_BYTES < found.segment_bytes < 2 * FULL_BYTES
    assert 1 + found.queued_bytes // (FULL_BYTES + 700) == 2
