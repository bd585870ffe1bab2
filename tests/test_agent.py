"""What GPUs say to each other and what they carry: control lines, labels, content, limits and routes, without a VM."""

import ctypes
import json
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hosts import wire
from hosts.content import PIECE_BYTES, Content
from hosts.transport import MAX_BUFFER_BYTES, Transport, limits, route_request, sysctls

CHUNK = 3 * PIECE_BYTES + 12345
RANKS = 5
CONTENT, SAME_CONTENT = (Content(ranks=RANKS, chunk_bytes=CHUNK) for _ in range(2))

ranks = st.integers(0, RANKS - 1)
collectives = st.integers(0, 10**9)


def chunk(rank: int, collective: int, content: Content = CONTENT) -> bytearray:
    return bytearray(b"".join(content.views(rank=rank, collective=collective)))


def first_difference(data: bytearray, rank: int, collective: int, content: Content = CONTENT) -> int | None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    return content.first_difference(address, rank=rank, collective=collective)


# --- content --------------------------------------------------------------------------------------------------------


@given(ranks, collectives)
def test_a_chunk_is_as_long_as_told_and_equal_to_itself_wherever_it_is_made(rank: int, collective: int) -> None:
    data = chunk(rank, collective)
    assert len(data) == CHUNK
    assert first_difference(data, rank, collective, SAME_CONTENT) is None


@given(ranks, collectives, st.integers(0, CHUNK - 1), st.integers(0, 7))
@example(0, 0, 0, 0)
@example(0, 0, CHUNK - 1, 7)
@example(0, 0, PIECE_BYTES - 1, 0)
@example(0, 0, PIECE_BYTES, 0)
def test_any_single_wrong_bit_is_found_where_it_is(rank: int, collective: int, byte: int, bit: int) -> None:
    data = chunk(rank, collective)
    data[byte] ^= 1 << bit
    assert first_difference(data, rank, collective) == byte


@given(ranks, collectives, st.sets(st.integers(0, CHUNK - 1), min_size=2, max_size=20))
def test_of_several_wrong_bytes_the_first_is_told(rank: int, collective: int, wrong: set[int]) -> None:
    data = chunk(rank, collective)
    for byte in wrong:
        data[byte] ^= 255
    assert first_difference(data, rank, collective) == min(wrong)


@given(ranks, ranks, collectives, st.integers(0, 3))
def test_the_chunk_of_another_rank_or_an_earlier_collective_is_found_in_its_first_bytes(
    rank: int, other: int, collective: int, age: int
) -> None:
    if (other, age) == (rank, 0):
        return
    found = first_difference(chunk(other, collective), rank, collective + age)
    assert found is not None and found < 8


def test_no_two_pieces_of_many_collectives_are_alike() -> None:
    content = Content(ranks=16, chunk_bytes=64_000_000)
    seen: set[bytes] = set()
    pieces = 0
    for collective in range(100, 116):
        for rank in range(16):
            views = content.views(rank=rank, collective=collective)
            seen.update(bytes(view[:64]) for view in views)
            pieces += len(views)
    assert len(seen) == pieces


@given(ranks, collectives, st.sampled_from(list(combinations(range(3), 2))))
def test_pieces_that_changed_places_are_found(rank: int, collective: int, swap: tuple[int, int]) -> None:
    data = chunk(rank, collective)
    a, b = (slice(place * PIECE_BYTES, (place + 1) * PIECE_BYTES) for place in swap)
    data[a], data[b] = data[b], data[a]
    found = first_difference(data, rank, collective)
    assert found is not None and found - swap[0] * PIECE_BYTES in range(8)


def test_a_large_chunk_is_in_no_more_pieces_than_linux_sends_at_a_time() -> None:
    views = Content(ranks=2, chunk_bytes=10**9).views(rank=1, collective=1)
    assert len(views) <= 1024 and sum(map(len, views)) == 10**9


def test_another_seed_gives_other_bytes() -> None:
    assert first_difference(chunk(0, 0, Content(ranks=RANKS, chunk_bytes=CHUNK, seed=1)), 0, 0) is not None


# --- messages -------------------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {
    "connect": {"epoch": 1, "successor": 2, "address": "10.0.0.1"},
    "accept": {"epoch": 1, "predecessor": 0},
    "confirm": {},
    "touch": {},
    "abort": {},
    "again": {},
    "allgather": {"collective": 7, "start_ns": 10**9, "arrivals": [3, 2, 1], "flip": []},
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("name", GOOD)
def test_every_command_arrives_as_it_was_sent(name: str) -> None:
    sent = {"do": name, **GOOD[name]}
    assert wire.command(wire.line(sent)) == sent


def test_every_command_is_tried_here() -> None:
    assert GOOD.keys() == wire.COMMANDS.keys()


@given(st.binary(max_size=100).map(lambda data: data + b"\n"))
@example(b"[" * 60000 + b"\n")
@example(b'{"do": ["connect"]}\n')
@example(b'{"do": "abort", "do": "flood"}\n')
@example(b"\xff\n")
def test_what_is_no_command_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.command(data)


@given(st.sampled_from([(name, key) for name, fields in GOOD.items() for key in fields]), json_values)
@example(("accept", "epoch"), True)
@example(("accept", "epoch"), -1)
@example(("accept", "epoch"), 1.0)
@example(("allgather", "arrivals"), [1, "2"])
def test_a_value_of_another_type_is_refused_by_its_name(field: tuple[str, str], value: Any) -> None:
    name, key = field
    wholes = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    whole = type(value) is int and value >= 0
    if {"address": isinstance(value, str), "arrivals": wholes, "flip": wholes}.get(key, whole):
        return
    with pytest.raises(wire.WireError, match=f"the {key} of {name}"):
        wire.command(json.dumps({"do": name, **GOOD[name], key: value}).encode() + b"\n")


@pytest.mark.parametrize("change", [{"more": 1}, {"epoch": None}])
def test_too_many_fields_and_too_few_are_refused(change: dict[str, Any]) -> None:
    fields = {key: value for key, value in (GOOD["accept"] | change).items() if value is not None}
    with pytest.raises(wire.WireError, match="accept has epoch, predecessor with it, not"):
        wire.command(wire.line({"do": "accept", **fields}))


def test_a_line_is_bounded_where_it_is_written_and_where_it_is_read() -> None:
    with pytest.raises(wire.WireError, match=f"{wire.MAX_LINE_BYTES} is the most"):
        wire.line({"text": "x" * wire.MAX_LINE_BYTES})
    with pytest.raises(wire.WireError, match="does not end"):
        wire.message(b"{" + b" " * wire.MAX_LINE_BYTES + b"}\n")
    with pytest.raises(wire.WireError, match="does not end"):
        wire.message(b"{}")


def test_an_answer_is_what_was_asked_for_or_a_sentence() -> None:
    assert wire.answer(b'{"error":"is ill"}\n', to="connect") == {"error": "is ill"}
    right = {"start_ns": 1, "arrived_ns": [2], "faults": [{"step": 1, "chunk": 2, "text": "byte 3 is wrong"}]}
    assert wire.answer(wire.line(right), to="allgather") == right
    for wrong in (
        {},
        {"error": 5},
        right | {"arrived_ns": [-1]},
        right | {"faults": [{"step": 1}]},
        right | {"faults": [1]},
    ):
        with pytest.raises(wire.WireError):
            wire.answer(wire.line(wrong), to="allgather")


@given(ranks, ranks, collectives, collectives, st.integers(1, 10**12), st.integers(1, 10**12))
def test_a_label_is_right_for_its_own_chunk_alone(a: int, b: int, j: int, k: int, length: int, other: int) -> None:
    data = wire.label(collective=j, rank=a, chunk_bytes=length)
    assert len(data) == wire.LABEL_BYTES
    assert wire.label_fault(data, collective=j, rank=a, chunk_bytes=length) is None
    fault = wire.label_fault(data, collective=k, rank=b, chunk_bytes=other)
    assert (fault is None) == ((a, j, length) == (b, k, other))


@given(st.binary(min_size=wire.LABEL_BYTES, max_size=wire.LABEL_BYTES))
def test_stray_bytes_are_no_label(data: bytes) -> None:
    assert wire.label_fault(data, collective=1, rank=2, chunk_bytes=3) is not None


# --- limits and routes ----------------------------------------------------------------------------------------------


@given(st.integers(2, 16), st.integers(1, 64_000_024))
def test_the_buffers_hold_all_that_can_be_queued(ranks: int, message_bytes: int) -> None:
    limit = limits(Transport(), ranks=ranks, message_bytes=message_bytes)
    most = (ranks - 1) * message_bytes
    assert most < limit.send_buffer_bytes <= MAX_BUFFER_BYTES
    assert min(most, 2**30) <= limit.window_bytes <= 2**30
    # A Linux receiver announces half of its buffer at first.
    assert limit.window_bytes - 2**20 <= limit.receive_buffer_bytes // 2 <= MAX_BUFFER_BYTES // 2
    assert limit.initial_segments * (9000 - 52) >= limit.window_bytes


def test_chunks_beyond_what_a_socket_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="64 GPUs with chunks of 64000024 bytes would queue 4032001512 bytes"):
        limits(Transport(), ranks=64, message_bytes=64_000_024)


def test_ordinary_start_up_keeps_linux_own_first_window() -> None:
    ordinary = Transport(line_rate=False, slow_start_after_idle=True)
    values = sysctls(ordinary, limits(ordinary, ranks=8, message_bytes=8_000_024))
    assert values["net/ipv4/tcp_rmem"].split()[1] == "131072"
    assert values["net/ipv4/tcp_slow_start_after_idle"] == "1"


def test_a_route_request_is_padded_to_words_and_says_its_own_length() -> None:
    for segments in (20000, None):
        data = route_request(address="10.1.0.2", interface_index=3, initial_segments=segments)
        assert len(data) % 4 == 0 and int.from_bytes(data[:4], sys.byteorder) == len(data)
        assert b"\x0a\x01\x00\x02" in data


def test_an_agent_imports_little() -> None:
    script = "import sys, hosts.nursery; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, cwd=".")
    assert not {"numpy", "asyncio", "subprocess", "multiprocessing", "topologies"} & set(ran.stdout.split())
