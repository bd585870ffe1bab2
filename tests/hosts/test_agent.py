"""The parts of an agent, without a VM: payload, sums, messages, handshake, TCP limits and imports."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hosts.agent import messages
from hosts.agent.handshake import BACKLOG, Listener
from hosts.agent.payload import PIECE_BYTES, Payload
from hosts.agent.reduction import Sums
from hosts.agent.transport import MAX_BUFFER_BYTES, Transport, limits
from tests.conftest import PROJECT

CHUNK = 5 * PIECE_BYTES + 12344
RANKS = 5
PAYLOAD, SAME_PAYLOAD = (Payload(windows=RANKS, window_bytes=CHUNK) for _ in range(2))
TOKEN = bytes(range(messages.TOKEN_BYTES))

ranks = st.integers(0, RANKS - 1)
collectives = st.integers(0, 10**9)


def chunk(rank: int, collective: int, payload: Payload = PAYLOAD) -> bytearray:
    return bytearray(b"".join(payload.views(rank, collective=collective, size_bytes=CHUNK)))


def first_difference(data: bytearray, rank: int, collective: int, payload: Payload = PAYLOAD) -> int | None:
    parts = payload.parts(CHUNK)
    assert [part.start for part in parts] + [CHUNK] == [0] + [part.stop for part in parts] and len(parts) > 1
    return first_wrong(data, payload, collective, [(rank, 1)])


def first_wrong(data: bytearray, payload: Payload, collective: int, terms: list[tuple[int, int]]) -> int | None:
    view, parts = memoryview(data), payload.parts(len(data))
    found = [
        payload.first_difference(view[part.start : part.stop], part, collective=collective, terms=terms)
        for part in parts
    ]
    assert all(byte is None or byte in part for byte, part in zip(found, parts, strict=True))
    return next((byte for byte in found if byte is not None), None)


# --- payload --------------------------------------------------------------------------------------------------------


@given(ranks, collectives)
def test_a_chunk_has_its_size_and_every_rank_generates_the_same_bytes_for_it(rank: int, collective: int) -> None:
    data = chunk(rank, collective)
    assert len(data) == CHUNK
    assert first_difference(data, rank, collective, SAME_PAYLOAD) is None


@given(ranks, collectives, st.sets(st.tuples(st.integers(0, CHUNK - 1), st.integers(0, 7)), min_size=1, max_size=9))
@example(0, 0, {(0, 0)})
@example(0, 0, {(CHUNK - 1, 7)})
@example(0, 0, {(PIECE_BYTES - 1, 0)})
@example(0, 0, {(PIECE_BYTES, 0)})
def test_flipped_bits_of_a_chunk_are_found_at_the_first_wrong_byte(
    rank: int, collective: int, wrong: set[tuple[int, int]]
) -> None:
    data = chunk(rank, collective)
    for byte, bit in wrong:
        data[byte] ^= 1 << bit
    assert first_difference(data, rank, collective) == min(wrong)[0]


@given(ranks, ranks, collectives, st.integers(0, 3))
def test_a_chunk_of_another_rank_or_collective_is_detected_within_its_first_8_bytes(
    rank: int, other: int, collective: int, age: int
) -> None:
    if (other, age) == (rank, 0):
        return
    found = first_difference(chunk(other, collective), rank, collective + age)
    assert found is not None and found < 8


@given(ranks, collectives, st.sampled_from(list(combinations(range(3), 2))))
def test_swapped_pieces_of_a_chunk_are_detected(rank: int, collective: int, swap: tuple[int, int]) -> None:
    data = chunk(rank, collective)
    a, b = (slice(piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES) for piece in swap)
    data[a], data[b] = data[b], data[a]
    found = first_difference(data, rank, collective)
    assert found is not None and found - swap[0] * PIECE_BYTES in range(8)


def test_all_pieces_of_many_ranks_and_collectives_differ() -> None:
    payload = Payload(windows=16, window_bytes=64_000_000)
    pieces = [
        bytes(view[:64])
        for collective in range(100, 116)
        for rank in range(16)
        for view in payload.views(rank, collective=collective, size_bytes=64_000_000)
    ]
    assert len(set(pieces)) == len(pieces)


# --- sums -------------------------------------------------------------------------------------------------------------


def sums(multiplier: int = 1, windows: int = RANKS, size: int = CHUNK) -> Sums:
    found = Sums(windows=windows, window_bytes=size)
    found.multiply(multiplier)
    return found


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(ranks, st.integers(0, 2**32 - 1)), min_size=1, max_size=5),
    st.none() | st.tuples(st.integers(0, CHUNK - 1), st.integers(0, 7)),
)
def test_a_sum_of_ranks_data_is_verified_to_the_last_bit(
    collective: int, parts: list[tuple[int, int]], flip: tuple[int, int] | None
) -> None:
    total = 0
    for window, multiplier in parts:  # without numpy: each word has 16 bytes of one integer, so no carry leaves it
        own, words = chunk(window, collective), bytearray(4 * CHUNK)
        for place in range(4):
            words[place::16] = own[place::4]
        total += multiplier * int.from_bytes(words, "little")
    terms: dict[int, int] = {}
    for window, multiplier in parts:
        terms[window] = (terms.get(window, 0) + multiplier) % 2**32
    data, words = bytearray(CHUNK), total.to_bytes(4 * CHUNK, "little")
    for place in range(4):
        data[place::4] = words[place::16]
    if flip is not None:
        data[flip[0]] ^= 1 << flip[1]
    assert first_wrong(data, sums(), collective, sorted(terms.items())) == (None if flip is None else flip[0])


def test_a_rank_adds_its_own_data_to_received_parts_as_it_would_send_it() -> None:
    rank = sums(multiplier=7)
    sent = b"".join(rank.views(3, collective=9, size_bytes=CHUNK))
    assert first_wrong(bytearray(sent), sums(), 9, [(3, 7)]) is None
    arrived = bytearray(b"".join(sums(multiplier=5).views(3, collective=9, size_bytes=CHUNK)))
    for part in rank.parts(CHUNK):
        rank.add_own(memoryview(arrived)[part.start : part.stop], part, collective=9, window=3)
    assert first_wrong(arrived, sums(), 9, [(3, 12)]) is None
    rank.add(memoryview(arrived), memoryview(sent))
    assert first_wrong(arrived, sums(), 9, [(3, 19)]) is None


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        yield a, b


def test_control_messages_of_any_size_arrive_in_order_with_their_boundaries(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sent: list[dict[str, Any]] = [
        {"do": "abort"},
        {},
        {"do": "connect", "program": list(range(300_000))},
        {"do": "run"},
    ]
    thread = threading.Thread(target=lambda: [messages.send(pair[0], message) for message in sent])
    thread.start()  # the large message is more than the socket holds
    assert [messages.receive(pair[1]) for _ in sent] == sent
    thread.join()
    pair[0].close()
    assert messages.receive(pair[1]) is None


@pytest.mark.parametrize(
    "data", [b".\xff", b".[]", b".5", b'.{"do"', b"{}", b"." + b" " * 2 * messages.PACKET_BYTES + b"{}"]
)
def test_malformed_control_messages_are_refused(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].send(data)
    with pytest.raises(ValueError):
        messages.receive(pair[1])


@given(ranks, collectives, st.integers(1, 10**12), st.sampled_from(["collective", "task", "size_bytes"]))
def test_a_label_is_accepted_only_for_its_own_collective_task_and_size(
    task: int, collective: int, size_bytes: int, other: str
) -> None:
    wanted = {"collective": collective, "task": task, "size_bytes": size_bytes}
    data = messages.label(**wanted)
    assert len(data) == messages.LABEL_BYTES == 24
    assert messages.label_fault(data, **wanted) is None
    assert messages.label_fault(data, **wanted | {other: wanted[other] + 1}) is not None


@given(st.binary(min_size=messages.LABEL_BYTES, max_size=messages.LABEL_BYTES), st.binary(max_size=64))
def test_random_bytes_are_neither_a_label_nor_a_hello(label: bytes, hello: bytes) -> None:
    assert messages.label_fault(label, collective=1, task=2, size_bytes=3) is not None
    assert messages.parse_hello(hello) is None


# --- handshake ------------------------------------------------------------------------------------------------------


class Peers:
    """A listener on loopback, with its log and with connections to it."""

    def __init__(self) -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        self.address, self.bound, self.log = bound.getsockname(), bound, list[str]()
        self.listener = Listener(bound, token=TOKEN, name="GPU 5", log=self.log.append)

    def connect(self, data: bytes) -> socket.socket:
        made = socket.create_connection(self.address, timeout=20)
        made.sendall(data)
        return made


@pytest.fixture
def peers() -> Iterator[Peers]:
    found = Peers()
    yield found
    found.listener.clear()
    found.bound.close()


def hello(epoch: int = 3, rank: int = 4, channel: int = 1, token: bytes = TOKEN) -> bytes:
    return messages.hello(epoch=epoch, rank=rank, channel=channel, token=token)


def admit(peers: Peers, timeout_s: float = 20) -> socket.socket | None:
    """Return the connection of rank 4 on channel 1 in epoch 3, or None if it does not come in time."""
    return peers.listener.admit([(3, 4, 1)], timeout_s=timeout_s).get((3, 4, 1))


def test_a_peer_with_the_token_is_admitted_and_bytes_after_its_hello_are_kept(peers: Peers) -> None:
    with closing(peers.connect(hello() + b"more")):
        admitted = admit(peers)
        assert admitted is not None and admitted.getblocking()
        assert admitted.recv(100) == b"more"
        admitted.close()
    assert peers.log == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" * 5, "token"),
        (hello(token=TOKEN[:-1] + b"\0"), "token"),
        (hello(token=bytes(32)), "token"),
        (b"X" + hello()[1:], "token"),
        (hello()[:-1], "token"),
        (b"", "nothing"),
        (hello(epoch=2), "no such connection"),
        (hello(rank=5), "no such connection"),
        (hello(channel=0), "no such connection"),
    ],
)
def test_an_unexpected_peer_is_refused_with_one_log_line_and_the_expected_one_admitted(
    peers: Peers, data: bytes, why: str
) -> None:
    with closing(peers.connect(data)) as stranger, closing(peers.connect(hello())):
        admitted = admit(peers)
        assert admitted is not None
        admitted.close()
        with pytest.raises(ConnectionResetError) if len(data) > messages.HELLO_BYTES else closing(stranger):
            assert stranger.recv(1) == b""
    assert len(peers.log) == 1 and why in peers.log[0] and peers.log[0].count("\n") == 1
    assert peers.log[0].startswith("GPU 5: refused ")


def test_the_peers_that_connected_are_admitted_in_the_requested_order(peers: Peers) -> None:
    wanted = [(3, rank, channel) for rank in range(4) for channel in range(2)]
    made = [peers.connect(hello(rank=rank, channel=channel)) for _, rank, channel in reversed(wanted[1:])]
    found = peers.listener.admit(wanted, timeout_s=1)
    assert list(found) == wanted[1:]
    for (_, rank, channel), connection in zip(reversed(wanted[1:]), made, strict=True):
        connection.sendall(bytes([rank, channel]))
        assert found[3, rank, channel].recv(9) == bytes([rank, channel])
    for connection in (*found.values(), *made):
        connection.close()
    assert peers.log == []


def test_a_flood_of_silent_peers_is_logged_in_few_lines_and_the_expected_one_admitted(peers: Peers) -> None:
    silent = [peers.connect(b"") for _ in range(BACKLOG - 4)]
    admitted = list[socket.socket | None]()
    thread = threading.Thread(target=lambda: admitted.append(admit(peers, 30)))
    thread.start()
    silent += [peers.connect(b"") for _ in range(300)]
    with closing(peers.connect(hello())):
        thread.join(40)
        assert admitted and admitted[0] is not None
        admitted[0].close()
    for stranger in silent:
        stranger.close()
    assert 8 <= len(peers.log) <= 20


def test_waiting_for_a_peer_or_for_its_hello_times_out(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert admit(peers, 0.2) is None
    assert peers.listener.wait_s() is None
    monkeypatch.setattr("hosts.agent.handshake.HELLO_S", 0.0)
    with closing(peers.connect(b"")) as silent:
        peers.listener.poll()
        assert silent.recv(1) == b""
        assert len(peers.log) == 1 and peers.listener.wait_s() is None


# --- TCP ------------------------------------------------------------------------------------------------------------


@given(st.integers(2, 16), st.integers(1, 64_000_024))
def test_socket_buffers_and_windows_hold_all_bytes_that_a_flow_can_queue(ranks: int, message_bytes: int) -> None:
    most = (ranks - 1) * message_bytes
    limit = limits(Transport(), flow_bytes=most)
    assert most < limit.send_buffer_bytes <= MAX_BUFFER_BYTES
    assert min(most, 2**30) <= limit.window_bytes <= 2**30
    # The first window that a Linux receiver announces is half of its buffer.
    assert limit.window_bytes - 2**20 <= limit.receive_buffer_bytes // 2 <= MAX_BUFFER_BYTES // 2
    assert limit.initial_segments * (9000 - 52) >= limit.window_bytes
    assert not limit.is_windowed


def test_a_flow_of_more_bytes_than_a_socket_takes_is_windowed() -> None:
    limit = limits(Transport(), flow_bytes=10**13)
    assert limit.is_windowed and (limit.send_buffer_bytes, limit.window_bytes) == (MAX_BUFFER_BYTES, 2**30)


def test_the_agent_launcher_imports_no_heavy_modules() -> None:
    script = "import json, sys, hosts.agent.launcher; print(json.dumps(list(sys.modules)))"
    ran = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, check=True, cwd=PROJECT)
    own = {name for name in json.loads(ran.stdout) if name.startswith("topologies")}
    assert not {"numpy", "asyncio", "subprocess", "multiprocessing"} & set(json.loads(ran.stdout))
    shaping = {f"topologies.shaping{name}" for name in ("", ".frames", ".netlink")}
    assert own == {"topologies", "topologies.linux", *shaping}
    assert not any("verbs" in name or "queue_pairs" in name for name in json.loads(ran.stdout))
