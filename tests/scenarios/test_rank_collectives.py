"""The rank's side of the backend `longhaul` without torch: plans are executed between threads over real sockets."""

import random
import socket
import threading
import time
from contextlib import ExitStack
from itertools import accumulate

import numpy as np
import pytest

from hosts.agent import messages as agents
from hosts.collectives import kinds
from scenarios.program.rank.longhaul_torch import meeting, wire
from scenarios.program.rank.longhaul_torch.connections import Connections, Listener, Peer
from scenarios.program.rank.longhaul_torch.execution import Slots
from scenarios.program.rank.longhaul_torch.fate import Fate
from scenarios.program.rank.longhaul_torch.messages import Messages
from scenarios.program.rank.longhaul_torch.planner import Planner as Client
from scenarios.program.rank.longhaul_torch.waking import Wake
from scenarios.program.rank.longhaul_torch.worker import Collective, Worker
from tests.fakes.planner import Planner

SUMS = ("allreduce", "reduce", "reducescatter")


class Handle:
    """The end of a piece of work."""

    def __init__(self):
        self.ended, self.sentence, self.source, self.waits_for = threading.Event(), None, None, tuple

    def begin(self, what):
        pass

    def finish(self, sentence=None, source=-1):
        self.sentence, self.source = sentence, source
        self.ended.set()

    def wait(self):
        assert self.ended.wait(30), "it did not end"
        return self.sentence


class Rank:
    """One of a group's ranks, whose number in the world is ten more."""

    def __init__(self, number, count, path, name):
        self.number, self.name, self.wakes = number, name, [Wake(), Wake()]
        self.listener, self.token = Listener("127.0.0.1"), bytes([number]) * wire.TOKEN_BYTES
        self.client = Client(str(path), name, self.wakes[0])
        self.peer = Peer(*self.listener.address, self.token)
        ranks = [10 + rank for rank in range(count)]
        self.connections = Connections(rank=number, ranks=ranks, listener=self.listener, token=self.token)

    def meet(self, peers, store, timeout_s=10):
        ranks = self.connections.ranks
        self.connections.peers = peers
        if self.client.group(list(range(len(peers))), made="a", timeout_s=timeout_s):
            self.connections.connect_all(timeout_s)
        self.connections.wakes = self.wakes
        fate = Fate(ranks[self.number], self.connections, lambda why: store.setdefault("failure", why))
        shared = {"name": self.name, "rank": ranks[self.number], "connections": self.connections, "fate": fate}
        self.worker = Worker(planner=self.client, wake=self.wakes[0], **shared)
        self.messages = Messages(wake=self.wakes[1], **shared)

    def close(self):
        for wake in self.wakes:
            wake.is_over = True
            wake.set()
        self.worker.join()
        self.messages.join()
        self.connections.close()
        self.client.close()
        self.listener.close()


@pytest.fixture
def group(tmp_path):
    """Make groups, `group(ranks, ...)`; it has the planner as `group.planner`."""
    with ExitStack() as stack:

        def make(count, *, name="0", planner=None, **options):
            if planner is None:
                folder = tmp_path / name
                folder.mkdir()
                planner = Planner(folder, **options)
                stack.callback(planner.close)
                planner.paths = [planner.socket_of(rank) for rank in range(count)]
            make.planner = planner
            ranks = [Rank(number, count, planner.paths[number], name) for number in range(count)]
            peers, store = [rank.peer for rank in ranks], {}
            threads = [threading.Thread(target=rank.meet, args=(peers, store)) for rank in ranks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for rank in ranks:
                stack.callback(rank.close)
            return ranks

        yield make


def issue(rank, handle, *, kind, words, add=None, root=0, timeout_s=20.0, fill=None, store=None):
    """Issue a collective over words: `fill(plan, block)` has a block's initial words or None, `store` gets them all."""
    kept = {}

    def slots(plan):
        count = {"alltoall": 2 * len(plan.placement), "broadcast": 1, "reduce": 1, "allreduce": 1}.get(
            kind, len(plan.placement)
        )
        each, size = plan.slots // count, plan.slot_bytes
        views, filled = {}, set()
        for block in range(count):
            data = np.zeros(each * size // 4, np.uint32)
            contents = fill(plan, block) if fill else None
            if contents is not None:
                data[: len(contents)] = contents
                filled.update(range(block * each, (block + 1) * each))
            kept[block] = data
            raw = memoryview(data).cast("B")
            views |= {block * each + piece: raw[piece * size : (piece + 1) * size] for piece in range(each)}
        return Slots(views, filled, size)

    def finish(plan):
        if store is not None:
            store(plan, kept)

    def added(into, data):
        np.frombuffer(into, np.uint32)[:] += np.frombuffer(data, np.uint32)

    one = Collective(kind, kind, 4 * words, 4, slots, finish, lambda: None, added if kind in SUMS else None, root)
    rank.worker.issue([one], handle, timeout_s)


def test_labels_are_the_agents_own():
    for collective, task, size in [(0, 0, 0), (7, 12, 4096), (1 << 50, (1 << 32) - 1, 1 << 40)]:
        found = wire.label(collective=collective, task=task, size_bytes=size)
        assert found == agents.label(collective=collective, task=task, size_bytes=size)
        assert wire.parse_label(found) == (task, collective, size)
    assert wire.LABEL_BYTES == agents.LABEL_BYTES
    assert set(wire.KINDS) == {*kinds.ALGORITHMS} - {*kinds.SHIFTED}  # which torch makes of messages


def run_case(ranks, draw, numbers):
    """Run one random collective with words of all ranks; return the results by rank."""
    count, kind = len(ranks), draw.choice(wire.KINDS)
    each = draw.choice([1, 2, 3, 17, 1000, 100_000])
    root = draw.randrange(count) if kind in kinds.ROOTED else 0
    is_whole = kind in ("broadcast", "reduce", "allreduce")
    blocks = 1 if is_whole else count
    data = numbers.integers(0, 1 << 32, (count, blocks, each), dtype=np.uint32)  # [rank][block]
    results, handles = {}, []
    for rank in ranks:
        mine = rank.number

        def fill(plan, block, mine=mine):
            if kind == "alltoall":
                return data[mine, plan.placement[block]] if block < count else None
            if kind in ("allgather", "gather"):
                return data[mine, 0] if plan.placement[block] == mine else None
            if kind in ("broadcast", "scatter") and mine != root:
                return None
            return data[mine, 0 if is_whole else plan.placement[block]]

        def store(plan, kept, mine=mine):
            first = count if kind == "alltoall" else 0
            results[mine] = {
                (0 if is_whole else plan.placement[block - first]): words[:each].copy()
                for block, words in kept.items()
                if block >= first
            }

        handles.append(Handle())
        issue(rank, handles[-1], kind=kind, words=each * blocks, root=root, fill=fill, store=store)
    assert [handle.wait() for handle in handles] == [None] * count
    total = data.sum(axis=0, dtype=np.uint32)
    for mine in range(count):
        expected = {
            "allgather": lambda: {rank: data[rank, 0] for rank in range(count)},
            "gather": lambda mine=mine: {rank: data[rank, 0] for rank in range(count)} if mine == root else {},
            "alltoall": lambda mine=mine: {r: data[r, mine] for r in range(count) if r != mine},
            "broadcast": lambda: {0: data[root, 0]},
            "scatter": lambda mine=mine: {mine: data[root, mine]},
            "allreduce": lambda: {0: total[0]},
            "reduce": lambda mine=mine: {0: total[0]} if mine == root else {},
            "reducescatter": lambda mine=mine: {mine: total[mine]},
        }[kind]()
        for block, words in expected.items():
            np.testing.assert_array_equal(results[mine][block], words, f"{kind} of {each} words on rank {mine}")


@pytest.mark.parametrize(("count", "connects"), [(2, True), (3, False), (5, True), (8, False)])
def test_random_plans_give_every_rank_its_words(group, count, connects):
    ranks = group(count, seed=count, connects=connects)
    draw, numbers = random.Random(count), np.random.default_rng(count)
    for _ in range(40):
        run_case(ranks, draw, numbers)
    told = [message for _, message in group.planner.told(lambda all_told: len(all_told) >= 40 * count)]
    assert sorted(one["number"] for one in told) == sorted(list(range(40)) * count)
    for one in told:
        assert one["asked_ns"] <= one["begun_ns"] <= one["sent_ns"] <= one["ended_ns"]


def test_ranks_tell_the_times_of_their_messages_if_the_run_wants_them(group):
    """What is sent and what arrives are the messages of the plan, and no message arrives before it is sent."""
    ranks, draw, numbers = group(4, seed=5, messages=True), random.Random(5), np.random.default_rng(5)
    for _ in range(10):
        run_case(ranks, draw, numbers)
    told, sent, arrived = group.planner.told(lambda all_told: len(all_told) >= 40), {}, {}
    assert len(told) == 40
    for _, one in told:
        for task, at_ns, size in one["sent"]:
            assert 0 <= at_ns <= one["sent_ns"] - one["begun_ns"] and size >= 0
            sent[one["number"], task] = one["begun_ns"] + at_ns
        for task, at_ns in one["arrived"]:
            assert 0 <= at_ns <= one["ended_ns"] - one["begun_ns"]
            arrived[one["number"], task] = one["begun_ns"] + at_ns
    assert sent.keys() == arrived.keys()
    assert all(sent[key] < arrived[key] for key in sent)
    for number in range(10):
        tasks = sorted(task for of, task in sent if of == number)
        assert tasks == [*range(len(tasks))]


def test_messages_larger_than_the_kernels_buffers_do_not_stop_a_group(group):
    ranks = group(3)
    words = 12_000_000  # 48 MB
    handles, results = [Handle() for _ in ranks], {}
    for rank, handle in zip(ranks, handles, strict=True):
        data = np.full(words // 3, rank.number + 1, np.uint32)
        issue(
            rank,
            handle,
            kind="alltoall",
            words=words,
            fill=lambda plan, block, data=data: data if block < 3 else None,
            store=lambda plan, kept, me=rank.number: results.__setitem__(
                me, {plan.placement[block - 3]: set(kept[block][: words // 3].tolist()) for block in range(3, 6)}
            ),
        )
    assert [handle.wait() for handle in handles] == [None] * 3
    for mine, found in results.items():
        assert {rank: values for rank, values in found.items() if rank != mine} == {
            rank: {rank + 1} for rank in range(3) if rank != mine
        }


def test_a_rank_that_issues_nothing_is_named_when_the_time_is_over(group):
    ranks = group(3)
    handles = [Handle(), Handle()]
    for rank, handle in zip(ranks, handles, strict=False):
        issue(rank, handle, kind="allgather", words=30, timeout_s=0.5, fill=lambda plan, block: np.zeros(10))
    sentences = [handle.wait() for handle in handles]
    assert any("nothing came from" in one and "rank 12" in one for one in sentences)
    assert all('allgather number 0 (120 bytes) of the group "0" failed on rank 1' in one for one in sentences)
    told = group.planner.told(lambda all_told: any(message["tell"] == "failed" for _, message in all_told))
    assert any(message["tell"] == "failed" for _, message in told)


def test_a_rank_that_ends_is_named_at_once_on_all_others(group):
    ranks = group(4, connects=False)
    draw, numbers = random.Random(1), np.random.default_rng(1)
    for _ in range(10):  # so that there are connections
        run_case(ranks, draw, numbers)
    handles = [Handle() for _ in range(3)]
    begun = time.monotonic()
    for rank, handle in zip(ranks[1:], handles, strict=True):
        issue(rank, handle, kind="allreduce", words=50, fill=lambda plan, block: np.zeros(50))
    ranks[0].connections.shut_down()
    ranks[0].listener.close()
    for handle in handles:
        assert "rank 10" in handle.wait()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (
            ("allgather", 30),
            ("allgather", 60),
            ("with 120 bytes, where transfer 0 of allgather number 0 with 60 bytes was due", "(240 bytes)"),
        ),
        (("allgather", 40_000), ("allgather", 400), ("allgather number 0",)),
        (("allgather", 40), ("reducescatter", 40), ("allgather number 0", "reducescatter number 0")),
        (("broadcast", 10), ("allreduce", 10), ("broadcast number 0", "allreduce number 0")),
    ],
)
def test_ranks_that_disagree_are_told_about_what(group, mine, theirs, words):
    ranks, handles = group(2), [Handle(), Handle()]
    for rank, handle, (kind, size) in zip(ranks, handles, (mine, theirs), strict=True):
        issue(rank, handle, kind=kind, words=size, timeout_s=2.0, fill=lambda plan, block: np.zeros(1))
    sentences = [handle.wait() for handle in handles]
    told = " ".join(filter(None, sentences))
    assert "was due" in told
    assert all(word in told for word in words)


def test_a_late_plan_of_one_group_does_not_hold_up_another(group):
    first = group(2)
    planner = group.planner
    second = group(2, name="1", planner=planner)
    planner.silent = {0, 1}
    late = [Handle(), Handle()]
    for rank, handle in zip(first, late, strict=True):
        issue(rank, handle, kind="broadcast", words=1, timeout_s=2.0, fill=lambda plan, block: np.zeros(1))
    while len([1 for _, message in planner.asked if message["ask"] == "plan"]) < 2:
        time.sleep(0.01)
    planner.silent = set()
    quick = [Handle(), Handle()]
    for rank, handle in zip(second, quick, strict=True):
        issue(rank, handle, kind="broadcast", words=1, fill=lambda plan, block: np.zeros(1))
    assert [handle.wait() for handle in quick] == [None, None]
    assert not any(handle.ended.is_set() for handle in late)
    assert "the run gave no plan" in late[0].wait()


def test_messages_are_matched_by_source_and_tag_in_the_order_of_issue(group):
    ranks = group(3)
    draw = random.Random(5)
    sizes = [draw.choice([0, 1, 70, 4000, 3_000_000]) for _ in range(60)]
    sent = [(draw.choice([0, 2]), draw.choice([0, 1, 7]), bytes([at]) * size) for at, size in enumerate(sizes)]
    targets = [(src, tag, memoryview(bytearray(len(data))), data, Handle()) for src, tag, data in sent]
    # Receives keep the order within a source and a tag, and are otherwise shuffled.
    order = [
        key
        for key, count in {(s, t): sum(1 for a, b, *_ in sent if (a, b) == (s, t)) for s, t, _ in sent}.items()
        for _ in range(count)
    ]
    draw.shuffle(order)
    handles = []
    for src, tag, data in sent:
        handles.append(Handle())
        ranks[src].messages.send(1, tag, memoryview(data), handles[-1].finish, 20.0)
    left = {key: [one for one in targets if one[:2] == key] for key in set(order)}
    for key in order:
        src, tag, target, _, handle = left[key].pop(0)
        ranks[1].messages.receive(src, tag, target, handle.finish, 20.0)
    for src, _, target, data, handle in targets:
        assert handle.wait() is None
        assert (bytes(target), handle.source) == (data, src)
    assert [handle.wait() for handle in handles] == [None] * len(handles)


def test_a_message_from_any_rank_tells_from_which(group):
    ranks = group(3)
    handle, target = Handle(), memoryview(bytearray(3))
    ranks[0].messages.receive(None, 4, target, handle.finish, 20.0)
    ranks[2].messages.send(0, 4, memoryview(b"abc"), Handle().finish, 20.0)
    assert (handle.wait(), handle.source, bytes(target)) == (None, 2, b"abc")


def test_a_message_that_does_not_come_is_named(group):
    ranks, handle = group(2), Handle()
    ranks[0].messages.receive(1, 4, memoryview(bytearray(3)), handle.finish, 0.3)
    assert handle.wait() == (
        'recv of 3 bytes with tag 4 from rank 11 in the group "0" failed on rank 10: recv of 3 bytes with tag 4 from '
        "rank 11 did not end within 0.3 s: nothing came from rank 11"
    )


def test_only_who_knows_the_token_gets_a_connection():
    listener, arrived = Listener("127.0.0.1"), threading.Event()
    token = bytes(range(32))
    listener.expect(token, lambda key, connection: (connection.close(), arrived.set()))
    try:
        import socket

        for data in (b"x" * wire.HELLO_BYTES, wire.hello(rank=0, channel=0, carries=0, token=b"y" * 32)):
            with socket.create_connection(listener.address) as peer:
                peer.sendall(data)
                assert peer.recv(1) == b""
        assert not arrived.is_set()
        with socket.create_connection(listener.address) as peer:
            data = wire.hello(rank=0, channel=0, carries=0, token=token)
            for begin, end in zip([0, 5], accumulate([5, len(data) - 5]), strict=True):
                peer.sendall(data[begin:end])
            assert arrived.wait(5)
    finally:
        listener.close()


def test_a_rank_waits_for_a_store_that_is_late_and_not_for_one_that_cannot_be_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert meeting.found("127.0.0.1", port, 10.0)
    accepted = []

    def serve_late():
        time.sleep(0.2)
        with socket.create_server(("127.0.0.1", port)) as server:
            accepted.append(server.accept()[0])

    late = threading.Thread(target=serve_late)
    late.start()
    assert meeting.found("127.0.0.1", port, 60.0)
    late.join(60)
    assert len(accepted) == 1
    accepted[0].close()
    assert not meeting.found("127.0.0.1", port, 0.05)
    begin = time.monotonic()
    assert meeting.found("no..host", port, 600.0)  # torch tells that there is no such host
    assert time.monotonic() - begin < 300
