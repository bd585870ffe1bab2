"""Programs of ranks: executed on numbers, and by the agents' own code over loopback, where all damage is found."""

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.agent.buffers import LENT, Buffers
from hosts.agent.clock import now_ns
from hosts.agent.connections import TcpIncoming, TcpOutgoing
from hosts.agent.execution import Execution
from hosts.agent.payload import Payload
from hosts.agent.rank_program import Program, Receive
from hosts.agent.reduction import Sums
from hosts.agent.transport import allow_lending
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, Workload, contents, workload
from hosts.collectives.rank_programs import flow_bytes, has_sums, message_bytes, moves, programs, windows
from hosts.collectives.schedule import Builder, Flow, Schedule, ScheduleError, Stream, Transfer

CASES = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]
SUMS = [(kind, algorithm) for kind, algorithm in CASES if kind in ("reducescatter", "allreduce", "reduce")]
WORD = 1 << 32


# --- on numbers -----------------------------------------------------------------------------------------------------


def on_numbers(found: Workload, of_ranks: Sequence[Program], seed: int) -> list[dict[int, int]]:
    """Return what the slots of every rank hold at the end, with one number per slot and messages in a random order.

    Independent of the agents' code. A buffer exists only from the arrival that begins its use until its last task.
    """
    rng = random.Random(seed)
    count, _ = windows(found)
    pool = [rng.randrange(WORD) for _ in range(count)]
    holds = [{slot: one.multiplier * pool[window] % WORD for slot, window in one.own} for one in of_ranks]
    done: list[set[int]] = [set() for _ in of_ranks]
    left = [[use.tasks for use in one.uses] for one in of_ranks]
    kept: list[dict[int, int]] = [{} for _ in of_ranks]  # by slot, its current use
    out = {(a, b, c): list(sends) for a, one in enumerate(of_ranks) for b, c, sends in one.sends}
    flying: dict[tuple[int, int, int], list[list[int]]] = {key: [] for key in out}
    due = {(b, a, c): list(tasks) for a, one in enumerate(of_ranks) for b, c, tasks in one.receives}
    assert out.keys() == due.keys()

    def finish(rank: int, slot: int) -> None:
        left[rank][kept[rank][slot]] -= 1
        assert left[rank][kept[rank][slot]] >= 0

    streams = [[list(tasks) for tasks in one.computations] for one in of_ranks]
    while any(due.values()):
        for rank, of_rank in enumerate(streams):
            for stream in of_rank:
                while stream and done[rank].issuperset(stream[0].after):
                    done[rank].add(stream.pop(0).task)
        sendable = [key for key, sends in out.items() if sends and done[key[0]].issuperset(sends[0].after)]
        key = rng.choice(sendable + [key for key, queue in flying.items() if queue])
        src, dst, _ = key
        if key in sendable and (not flying[key] or rng.random() < 0.5):
            send = out[key].pop(0)
            for slot in send.slots:
                assert slot not in kept[src] or left[src][kept[src][slot]] > 0, "a sent slot has given back its buffer"
            flying[key].append([holds[src][slot] for slot in send.slots])
            for slot in send.slots:
                if slot in kept[src]:
                    finish(src, slot)
            continue
        values, receive = flying[key].pop(0), due[key].pop(0)
        for slot, use, value, terms in zip(receive.slots, receive.uses, values, receive.terms, strict=True):
            assert value == sum(factor * pool[window] for window, factor in terms) % WORD
            if kept[dst].get(slot) != use:
                assert slot not in kept[dst] or left[dst][kept[dst][slot]] == 0, (
                    "a buffer is reused while tasks still need it"
                )
                kept[dst][slot] = use
            holds[dst][slot] = (holds[dst].get(slot, 0) + value) % WORD if receive.adds else value
            finish(dst, slot)
        done[dst].add(receive.task)
    assert not any(out.values()) and not any(count for one in left for count in one)
    return holds


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@settings(max_examples=20)
@given(data=st.data())
def test_the_programs_of_all_ranks_together_do_the_collective(kind: str, algorithm: str, data: st.DataObject) -> None:
    sites = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    channels = data.draw(st.integers(1, 3)) if algorithm == "ring" else 1
    pieces, n = data.draw(st.integers(1, 3)), sum(sites)
    found = workload(kind, algorithm, sites=sites, size_bytes=1, channels=channels, pieces=pieces)
    placement = data.draw(st.permutations(range(n)))
    of_ranks = programs(found, placement)
    seed = data.draw(st.integers(0, 2**32))
    ends = on_numbers(found, of_ranks, seed)
    slots = found.schedule.slots
    rng = random.Random(seed)
    pool = [rng.randrange(WORD) for _ in range(windows(found)[0])]
    begins = {
        (rank, slot): one.multiplier * pool[window] % WORD
        for rank, one in enumerate(of_ranks)
        for slot, window in one.own
    }
    before, wanted = contents(kind, places=n, slots=slots)
    assert begins.keys() == {(placement[p], s) for p in range(n) for s in range(slots) if before[p][s]}
    if not has_sums(found):  # every slot has its own window, so that no two ranks' data can be confused
        assert sorted(window for one in of_ranks for _, window in one.own) == list(range(len(begins)))
    for place in range(n):
        for slot, bits in enumerate(wanted[place]):
            if bits:
                parts = [divmod(bit, slots) for bit in range(n * slots) if bits >> bit & 1]
                total = sum(begins[placement[p], s] for p, s in parts) % WORD
                assert ends[placement[place]][slot] == total


@pytest.mark.parametrize("placement", [[0, 1, 2], [0, 1, 2, 2], [1, 2, 3, 4]])
def test_a_placement_that_does_not_contain_each_rank_once_is_refused(placement: list[int]) -> None:
    with pytest.raises(ValueError, match="each once"):
        programs(workload("allgather", "ring", sites=(2, 2), size_bytes=4), placement)


def test_a_schedule_that_sends_an_empty_slot_is_refused() -> None:
    builder = Builder(places=2, slots=2)
    builder.send(0, 1, [1])
    broken = Workload(kind="allgather", algorithm="own", schedule=builder.done(), slot_bytes=4)
    with pytest.raises(ScheduleError, match="transfer 0 sends slot 1 of place 0, which is empty"):
        programs(broken, [0, 1])


def test_the_number_of_receive_buffers_per_rank_equals_a_hand_count() -> None:
    """The most blocks that a rank holds at once because it has yet to forward them or has begun to add them up."""
    for kind, algorithm, most in (
        ("allgather", "ring", [1] * 8),
        ("allreduce", "ring", [1] * 8),
        ("alltoall", "direct", [0] * 8),
        ("allgather", "halving-doubling", [3] * 8),  # a rank receives 1 + 2 + 4 blocks and forwards the first 3
        ("broadcast", "direct", [0] * 8),
        ("broadcast", "chain", [0, *[1] * 6, 0]),
    ):
        found = workload(kind, algorithm, sites=(4, 4), size_bytes=8)
        assert [one.buffers for one in programs(found, range(8))] == most, (kind, algorithm)


@given(st.permutations(range(9)).flatmap(lambda ranks: st.integers(2, 9).map(lambda n: ranks[:n])))
def test_the_moves_of_a_ring_name_its_step_ranks_and_chunk(order: list[int]) -> None:
    """In step s the rank at place p forwards the chunk that the rank s - 1 places before it began with."""
    n = len(order)
    ring = [sorted(order).index(rank) for rank in order]
    found = moves(workload("allgather", "ring", sites=(n - 1, 1), size_bytes=n), ring)
    assert [(one.step, one.src, one.dst, one.chunk) for one in found] == [
        (step, ring[p], ring[(p + 1) % n], ring[(p - step + 1) % n]) for step in range(1, n) for p in range(n)
    ]


def test_moves_of_other_collectives_name_the_block_and_the_depth_in_the_longest_chain() -> None:
    alltoall = moves(workload("alltoall", "direct", sites=(2, 1), size_bytes=3), [2, 0, 1])
    assert {(one.step, one.src, one.dst, one.chunk) for one in alltoall} == {
        (1, src, dst, dst) for src in range(3) for dst in range(3) if src != dst
    }
    chain = moves(workload("allreduce", "chain", sites=(2, 1), size_bytes=4), [0, 1, 2])
    assert [(one.step, one.src, one.dst) for one in chain] == [(1, 2, 1), (2, 1, 0), (3, 0, 1), (4, 1, 2)]
    assert {one.chunk for one in moves(exchange(), [0, 1])} == {-1}


# --- over loopback --------------------------------------------------------------------------------------------------


@contextmanager
def connections(of_ranks: Sequence[Program]) -> Iterator[tuple[dict[Any, socket.socket], dict[Any, socket.socket]]]:
    """Open a TCP connection over loopback for every flow, and yield the senders' and the receivers' ends."""
    outgoing, incoming = {}, {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for src, one in enumerate(of_ranks):
            for dst, channel, _ in one.sends:
                outgoing[src, dst, channel] = socket.create_connection(server.getsockname())
                outgoing[src, dst, channel].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                allow_lending(outgoing[src, dst, channel])
                incoming[src, dst, channel] = server.accept()[0]
    try:
        yield outgoing, incoming
    finally:
        for made in (*outgoing.values(), *incoming.values()):
            made.close()


class Agents:
    """The agents' code over loopback, with a thread for each rank."""

    def __init__(self, found: Workload, of_ranks: Sequence[Program]) -> None:
        self.found, self.of_ranks = found, of_ranks
        count, size = windows(found)
        kind = Sums if has_sums(found) else Payload
        self.payloads: list[Payload] = [kind(windows=count, window_bytes=size) for _ in of_ranks]
        for payload, one in zip(self.payloads, of_ranks, strict=True):
            if payload.sums is not None:
                payload.sums.multiply(one.multiplier)
        self.buffers = [Buffers(found.largest_slot_bytes, scratch_bytes=one.part_bytes) for one in self.payloads]
        self.collective = 0

    def run(
        self, flip: Sequence[int] = (), *, receive_buffer: int | None = None, send_buffer: int | None = None
    ) -> tuple[list[Any], list[tuple[int, int, str]]]:
        """Return the answers of all ranks, and the faults as (rank, task, text) in the order of the arrivals."""
        self.collective += 1
        answers: list[Any] = [None] * len(self.of_ranks)

        def carry_out(rank: int) -> None:
            one = self.of_ranks[rank]
            answers[rank] = Execution(
                one,
                collective=self.collective,
                outgoing=[TcpOutgoing(outgoing[rank, dst, channel]) for dst, channel, _ in one.sends],
                incoming=[TcpIncoming(incoming[src, rank, channel]) for src, channel, _ in one.receives],
                payload=self.payloads[rank],
                buffers=self.buffers[rank],
                slot_bytes=self.found.largest_slot_bytes,
                deadline_s=20,
                flip=flip,
                is_windowed=send_buffer is not None,
            ).run(now_ns())

        with connections(self.of_ranks) as (outgoing, incoming):
            if receive_buffer is not None:
                for one in incoming.values():
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            if send_buffer is not None:
                for one in outgoing.values():
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            threads = [threading.Thread(target=carry_out, args=(rank,)) for rank in range(len(self.of_ranks))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert None not in answers
        faults = [
            (dict(answer["arrived_ns"])[fault["task"]], rank, fault["task"], fault["text"])
            for rank, answer in enumerate(answers)
            for fault in answer["faults"]
        ]
        return answers, [tuple(fault[1:]) for fault in sorted(faults)]  # type: ignore[misc]


def receives(one: Program) -> dict[int, Receive]:
    return {receive.task: receive for _, _, tasks in one.receives for receive in tasks}


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_every_flipped_bit_is_found_with_its_rank_and_transfer(kind: str, algorithm: str) -> None:
    """Seven flipped bits for each algorithm, more than 200 in all."""
    rng = random.Random(f"{kind} {algorithm}")
    found = workload(kind, algorithm, sites=(3, 3), size_bytes=6 * rng.randrange(4, 4000), pieces=rng.choice([1, 2]))
    placement = rng.sample(range(6), 6)
    of_ranks = programs(found, placement)
    agents = Agents(found, of_ranks)
    whole, faults = agents.run()
    assert faults == []
    transfers = found.schedule.transfers
    assert sorted(task for answer in whole for task, _ in answer["arrived_ns"]) == list(range(len(transfers)))
    assert sorted(task for answer in whole for task, _ in answer["sent_ns"]) == list(range(len(transfers)))
    for _ in range(7):
        task = rng.randrange(len(transfers))
        byte = rng.randrange(message_bytes(found, transfers[task]))
        flow = found.schedule.flows[transfers[task].flow]
        assert isinstance(flow, Flow)
        rank = placement[flow.dst]
        number, at = divmod(byte, found.slot_bytes)
        slot = transfers[task].slots[number][1]
        assert receives(of_ranks[rank])[task].slots[number] == slot
        _, faults = agents.run([task, byte])
        assert (rank, task, f"byte {at} of slot {slot} is wrong") in faults
        assert {text.split(" is ")[1] for _, _, text in faults} == {"wrong"}
        # A wrong byte keeps its offset in the slot through all sums.
        assert {int(text.split()[1]) // 4 for _, _, text in faults} == {at // 4}
    assert agents.run()[1] == []
    for buffers, one in zip(agents.buffers, of_ranks, strict=True):
        assert buffers.made <= sum(use.tasks > 1 for use in one.uses)  # after nine collectives


def test_a_message_larger_than_the_receive_window_is_received_completely() -> None:
    """The connection is readable before the message is complete; its rest, with the label, must wake the reader too."""
    found = workload("alltoall", "direct", sites=(2, 1), size_bytes=900_000)
    agents = Agents(found, programs(found, range(3)))
    for _ in range(5):
        assert agents.run(receive_buffer=20_000)[1] == []


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_collectives_far_larger_than_all_buffers_are_delivered_whole_and_block_nobody(
    kind: str, algorithm: str
) -> None:
    """Every rank's messages wait for buffers of ranks that receive, and whose own messages wait."""
    found = workload(kind, algorithm, sites=(3, 3), size_bytes=6 * 1_000_000, pieces=2)
    agents = Agents(found, programs(found, range(6)))
    for _ in range(2):
        answers, faults = agents.run(receive_buffer=20_000, send_buffer=20_000)
        assert faults == []
        assert sorted(task for answer in answers for task, _ in answer["arrived_ns"]) == list(
            range(len(found.schedule.transfers))
        )
    _, faults = agents.run([len(found.schedule.transfers) - 1, 1], receive_buffer=20_000, send_buffer=20_000)
    assert {text.split(" of ")[0] for _, _, text in faults} <= {"byte 1", "byte 1 is wrong"} and faults


def test_a_buffer_sent_without_copying_is_not_reused_before_it_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver's window is small, so that most of a message stays in the sender's memory until it is received."""
    found = workload("allgather", "ring", sites=(2, 2), size_bytes=4 * 400_000)
    of_ranks = programs(found, range(4))
    agents = Agents(found, of_ranks)
    lent = 0

    def lend(self: Buffers, buffer: memoryview, connection: socket.socket) -> None:
        nonlocal lent
        lent += 1
        keep(self, buffer, connection)

    def faults() -> list[tuple[int, int, str]]:
        for buffers, one in zip(agents.buffers, of_ranks, strict=True):
            buffers.prepare(one.buffers)  # as the agent does for new connections
        return agents.run(receive_buffer=20_000)[1]

    keep = Buffers.lend
    monkeypatch.setattr(Buffers, "lend", lend)
    assert [faults() for _ in range(3)] == [[], [], []]
    assert lent >= 3 * 4
    assert all(buffers.made <= one.buffers + LENT + 1 for buffers, one in zip(agents.buffers, of_ranks, strict=True))
    # Without lending, the next message is written into the buffer too early.
    monkeypatch.setattr(Buffers, "lend", lambda self, buffer, _: self.give_back(buffer))
    assert any(faults() for _ in range(3))


@pytest.mark.parametrize(("kind", "algorithm"), SUMS)
def test_a_sum_without_one_of_its_contributions_is_detected(kind: str, algorithm: str) -> None:
    rng = random.Random(f"{kind} {algorithm}")
    found = workload(kind, algorithm, sites=(3, 3), size_bytes=6 * rng.randrange(4, 4000))
    of_ranks = list(programs(found, range(6)))
    for _ in range(3):
        rank, task = rng.choice(
            [(rank, task) for rank, one in enumerate(of_ranks) for task, r in receives(one).items() if r.adds]
        )
        one = of_ranks[rank]
        forgetful = tuple(
            (src, channel, tuple(replace(r, adds=r.adds and r.task != task) for r in tasks))
            for src, channel, tasks in one.receives
        )
        _, faults = Agents(found, [*of_ranks[:rank], replace(one, receives=forgetful), *of_ranks[rank + 1 :]]).run()
        assert faults, f"rank {rank} overwrites with transfer {task}"


def test_sums_across_different_slots_are_verified() -> None:
    builder = Builder(places=3, slots=2)
    builder.send(0, 1, [(0, 1)], adds=True)
    builder.send(1, 2, [(1, 0)], adds=True)
    builder.send(2, 0, [0])
    found = Workload(kind="allreduce", algorithm="own", schedule=builder.done(), slot_bytes=400)
    of_ranks = programs(found, [0, 1, 2])
    assert len(receives(of_ranks[0])[2].terms[0]) == 2  # two windows: slot 0 of places 0 and 2, slot 1 of place 1
    agents = Agents(found, of_ranks)
    assert agents.run()[1] == []
    assert agents.run([1, 7])[1] == [(2, 1, "byte 7 of slot 0 is wrong"), (0, 2, "byte 7 of slot 0 is wrong")]


def exchange() -> Workload:
    """Return a workload of messages between two places, with computations between the messages."""
    flows = (Flow(0, 1), Stream(1), Flow(1, 0), Flow(0, 1, 2), Stream(0, 1))
    transfers = (
        Transfer(flow=0, size=3.0),
        Transfer(flow=1, size=0.003, after=(0,)),
        Transfer(flow=1, size=0.0, after=(0,)),
        Transfer(flow=2, size=2.5, after=(1, 2)),
        Transfer(flow=3, size=0.0, after=(3,)),
        Transfer(flow=4, size=0.002, after=(3,)),
        Transfer(flow=4, size=0.001),
        Transfer(flow=3, size=1.0, after=(5, 6)),
    )
    schedule = Schedule(places=2, slots=0, flows=flows, transfers=transfers)
    return Workload(kind=MESSAGES, algorithm="own", schedule=schedule, slot_bytes=1000)


def test_agents_delay_messages_until_computations_end_and_vice_versa() -> None:
    found = exchange()
    assert flow_bytes(found) == 3000 + 24
    agents = Agents(found, programs(found, [1, 0]))
    answers, faults = agents.run()
    assert faults == []
    sent = dict(pair for answer in answers for pair in answer["sent_ns"])
    arrived = dict(pair for answer in answers for pair in answer["arrived_ns"])
    for task, transfer in enumerate(found.schedule.transfers):
        assert sent[task] >= max((arrived[one] for one in transfer.after), default=0)
        if isinstance(found.schedule.flows[transfer.flow], Stream):
            assert arrived[task] - sent[task] >= transfer.size * 1e9
    assert sent[2] == arrived[1] and sent[6] == arrived[5]  # a stream does one computation at a time
    assert sent[7] == arrived[6]
    assert agents.run([0, 2999])[1] == [(0, 0, "byte 2999 is wrong")]
    assert agents.run([7, 0])[1] == [(0, 7, "byte 0 is wrong")]
