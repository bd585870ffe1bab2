"""Schedules written as GOAL and read back: the text has the schedule's times, and LogGOPSim's times are the model's."""

import heapq
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.max_plus import times
from hosts.collectives import goal, operations, schedule_files
from hosts.collectives.kinds import ALGORITHMS, schedule
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream
from tests.conftest import PROJECT
from tests.hosts.test_schedules import CASES

SLOT_BYTES, DELAY_NS = 100_000.0, 1000.0

# The times that LogGOPSim (commit 76451de of its public repository) prints for this text, converted by its txt2bin,
# with -L 1000 -o 0 -g 0 -G 1 -O 0 -S 1000000000: each rank has one port of 8 Gbit/s in each direction, and s bytes
# take s - 1 ns. In these schedules a rank sends and receives one message at a time.
LOGGOPSIM_NS = {
    ((2, 2), "allgather", "ring"): 302997,
    ((2, 2), "allgather", "halving-doubling"): 301998,
    ((2, 2), "allreduce", "ring"): 605994,
    ((2, 2), "allreduce", "halving-doubling"): 603996,
    ((2, 2), "allreduce", "chain"): 605994,
    ((2, 2), "broadcast", "chain"): 302997,
    ((2, 2), "gather", "tree"): 301998,
    ((4, 4), "allgather", "ring"): 706993,
    ((4, 4), "reducescatter", "halving-doubling"): 702997,
    ((4, 4), "allreduce", "ring"): 1413986,
    ((4, 4), "allreduce", "halving-doubling"): 1405994,
    ((4, 4), "reduce", "chain"): 706993,
    ((4, 4), "broadcast", "hierarchical"): 403996,
    ((4, 4), "scatter", "tree"): 702997,
    ((3, 2), "allgather", "ring"): 403996,
    ((3, 2), "allreduce", "ring"): 807992,
}


def last_ns(found: Schedule) -> float:
    """Return when the last transfer arrives by the timing model, in ns."""
    flows = len(found.flows), 1
    return float(times(found.transfers, np.full(flows, DELAY_NS), np.full(flows, SLOT_BYTES)).arrives_s.max())


@pytest.mark.parametrize("case", LOGGOPSIM_NS, ids=str)
def test_model_times_of_schedules_equal_those_of_loggopsim(case: tuple[tuple[int, ...], str, str]) -> None:
    sites, kind, algorithm = case
    found = schedule(kind, algorithm, sites=sites)
    model_ns = last_ns(found)
    assert model_ns == pytest.approx(LOGGOPSIM_NS[case], rel=1e-4)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_goal_text_of_a_schedule_gives_the_times_of_the_model(kind: str) -> None:
    for algorithm in ALGORITHMS[kind]:
        found = schedule(kind, algorithm, sites=(3, 2), pieces=2)
        placement = [3, 0, 4, 1, 2]
        ours = last_ns(found)
        text = goal.text(found, placement=placement, slot_bytes=SLOT_BYTES)
        assert last_arrival_ns(text, ranks=5) == pytest.approx(ours, rel=1e-12), algorithm


def last_arrival_ns(text: str, *, ranks: int) -> float:
    """Return when the last message of a GOAL text arrives, in ns, with a link of 1 byte/ns for every pair of ranks.

    A send that requires the previous send begins when that one has left.
    """
    assert text.startswith(f"num_ranks {ranks}\n")
    size, left, arrived, waits = {}, {}, {}, {}
    for rank, block in enumerate(re.findall(r"rank \d+ \{\n(.*?)\n\}", text, re.DOTALL)):
        for line in block.splitlines():
            if match := re.fullmatch(r"s(\d+): send (\d+)b to (\d+) tag (\d+) nic \d+", line):
                assert match[1] == match[4]
                assert f"r{match[1]}: recv {match[2]}b from {rank} tag {match[1]} nic" in text
                size[match[1]] = int(match[2])
            elif match := re.fullmatch(r"s(\d+) requires ([sr])(\d+)", line):
                waits.setdefault(match[1], []).append((match[2], match[3]))
            else:
                assert re.fullmatch(r"r\d+: recv \d+b from \d+ tag \d+ nic \d+", line), line
    for tag in sorted(size, key=int):
        begin = max((left[one] if what == "s" else arrived[one] for what, one in waits.get(tag, ())), default=0.0)
        left[tag] = begin + size[tag]
        arrived[tag] = left[tag] + DELAY_NS
    return max(arrived.values())


def test_a_placement_that_is_not_a_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 0\]"):
        goal.text(schedule("allgather", "ring", sites=(1, 1)), placement=[0, 0], slot_bytes=1)


# --- reading --------------------------------------------------------------------------------------------------------

DATA = PROJECT / "tests" / "data" / "goal"  # the README above it names the sources of the files

# The times that LogGOPSim (as above) prints for each rank, for files of its own generator.
SCHEDGEN_NS = {
    "allreduce_ring": [1413986] * 8,
    "allreduce_ring_calc": [635994] * 4,
    "allreduce_recdoub": [1405994] * 8,
    "alltoall_linear": [400996, 400996, 501995, 601994, 701993],
    "bcast_binomial": [199998, 200998, 200998, 201998, 300997, 301997, 301997, 302997],
    "reduce_binomial": [302997, 201998, 100999, 100999, 0, 0, 0, 0],
    "reduce_calc": [316997, 215998, 107999, 107999, 0, 0, 0, 0],
}


def model_ns(found: Schedule) -> float:
    """Return when the last task of a schedule in bytes ends on links of 1 byte/ns, in ns."""
    is_flow = [[isinstance(server, Flow)] for server in found.flows]
    alpha, beta = np.where(is_flow, DELAY_NS, 0.0), np.where(is_flow, 1.0, 1e9)
    return float(times(found.transfers, alpha, beta).arrives_s.max())


# In an alltoall every rank sends several messages at once. LogGOPSim sends them one by one; the model here does not.
@pytest.mark.parametrize("name", [name for name in SCHEDGEN_NS if name != "alltoall_linear"])
def test_a_schedgen_file_takes_the_time_that_loggopsim_reports(name: str) -> None:
    found = schedule_files.read(DATA / f"{name}.goal", kind="messages", gpus=len(SCHEDGEN_NS[name]))
    assert model_ns(found) == pytest.approx(max(SCHEDGEN_NS[name]), rel=1e-3)


@pytest.mark.parametrize("name", SCHEDGEN_NS)
def test_with_one_port_per_rank_every_rank_ends_when_loggopsim_reports(name: str) -> None:
    found = schedule_files.read(DATA / f"{name}.goal", kind="messages", gpus=len(SCHEDGEN_NS[name]))
    assert one_port_ns(found) == SCHEDGEN_NS[name]


def one_port_ns(found: Schedule) -> list[int]:
    """Return when each rank ends, in ns, if it has one port in each direction and does one task at a time (LogGOPS).

    Events are processed in the order of their times, ties in the order of insertion; o, O and g are 0, and s bytes
    occupy a port for s - 1 ns.
    """
    tasks, servers = found.transfers, found.flows
    cpu, out, done = ([0] * found.places for _ in range(3))
    missing = [set(task.after) for task in tasks]
    before: list[int | None] = [None] * len(tasks)
    last: dict[int, int] = {}
    for index, task in enumerate(tasks):
        before[index], last[task.flow] = last.get(task.flow), index
    listed, begun = set[int](), set[int | None]([None])
    events: list[tuple[int, int, str, int]] = []
    numbers = itertools.count()

    def at(index: int) -> int:
        server = servers[tasks[index].flow]
        return server.src if isinstance(server, Flow) else server.place

    def list_ready() -> None:
        for index in range(len(tasks)):
            if index not in listed and not missing[index] and before[index] in begun:
                listed.add(index)
                free = max(cpu[at(index)], out[at(index)] if isinstance(servers[tasks[index].flow], Flow) else 0)
                heapq.heappush(events, (free, next(numbers), "begin", index))

    list_ready()
    while events:
        now, number, what, index = heapq.heappop(events)
        task, server, rank = tasks[index], servers[tasks[index].flow], at(index)
        is_message, length = isinstance(server, Flow), round(task.size) - 1
        if what == "arrive":
            rank = server.dst
        free = max(cpu[rank], out[rank]) if what == "begin" and is_message else cpu[rank]
        if free > now:
            heapq.heappush(events, (free, number, what, index))
            continue
        if what == "begin" and is_message:
            out[rank], done[rank] = now + length, max(done[rank], now)
            heapq.heappush(events, (now + round(DELAY_NS), next(numbers), "arrive", index))
        else:
            cpu[rank] = done[rank] = now + (length if is_message else round(task.size * 1e9))
            for waits in missing:
                waits.discard(index)
        begun.add(index)
        list_ready()
    return done


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_schedule_written_as_goal_and_read_back_has_the_same_times(
    kind: str, algorithm: str, data: st.DataObject
) -> None:
    sites = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    channels = data.draw(st.integers(1, 3)) if algorithm == "ring" else 1
    found = schedule(kind, algorithm, sites=sites, channels=channels, pieces=data.draw(st.integers(1, 3)))
    placement = data.draw(st.permutations(range(found.places)))
    again = goal.read(Path("it"), goal.text(found, placement=placement, slot_bytes=1000))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    alpha, beta = rng.uniform(1e-6, 1e-3, (2, len(found.flows), 3))
    where = {flow: index for index, flow in enumerate(again.flows)}
    rows = [where[Flow(placement[f.src], placement[f.dst], f.channel)] for f in found.flows]
    ours = times(found.transfers, alpha, beta * 1000)
    back = np.argsort(rows)
    theirs = times(again.transfers, alpha[back], beta[back])
    for index, row in enumerate(rows):
        mine = [number for number, transfer in enumerate(found.transfers) if transfer.flow == index]
        same = [number for number, transfer in enumerate(again.transfers) if transfer.flow == row]
        np.testing.assert_allclose(ours.arrives_s[mine], theirs.arrives_s[same], rtol=1e-12)


def test_computations_and_messages_written_as_goal_are_read_back_unchanged() -> None:
    text = read_text(
        "l1: calc 1500 cpu 2\nl2: send 10b to 1 tag 7 nic 3\nl2 requires l1\n"
        "l3: recv 5b from 1\nl4: calc 20\nl4 requires l3",
        "l1: recv 10b from 0 tag 7\nl2: send 5b to 0\nl2 requires l1",
    )
    found = goal.read(Path("it"), text)
    again = goal.read(Path("it"), goal.text(found, placement=[0, 1], slot_bytes=1))
    assert (again.flows, again.transfers) == (found.flows, found.transfers)
    assert set(found.flows) == {Stream(0, 2), Flow(0, 1, 3), Flow(1, 0, 0), Stream(0, 0)}
    assert model_ns(found) == pytest.approx(1500 + 10 + DELAY_NS + 5 + DELAY_NS + 20)


def read_text(*ranks: str) -> str:
    blocks = "".join(f"rank {rank} {{\n{text}\n}}\n" for rank, text in enumerate(ranks))
    return f"num_ranks {len(ranks)}\n{blocks}"


def test_comments_spaces_and_labels_are_parsed_as_by_txt2bin() -> None:
    plain = read_text("a: send 8b to 1 tag 3", "a: recv 8b from 0 tag 3\nb: calc 5\nb requires a")
    odd = (
        "/* a comment\n rank 9 { */ num_ranks  2 // two\r\nrank 0{ send 8 b to 1 tag 3 cpu 0 nic 0\r\n }rank 1 {\n\n"
        "\tirequires2 : recv 8b from 0 tag 3 cpu 4\n send_ :calc 5 // send\nsend_   requires irequires2\n}"
    )
    a, b = goal.read(Path("a"), plain), goal.read(Path("b"), odd)
    assert (a.flows, a.transfers) == (b.flows, b.transfers)


@pytest.mark.parametrize(
    ("rank_0", "ns"),
    [
        # The send begins when the message has been received.
        ("r: recv 100b from 1\ns: send 10b to 1\ns requires r", 100 + DELAY_NS + 10 + DELAY_NS),
        # The send begins when the receive begins to wait.
        ("r: recv 100b from 1\ns: send 10b to 1\ns irequires r", 100 + DELAY_NS),
        # Dependencies are transitive: a computation waits for the receive, or the receive for a computation.
        (
            "r: recv 100b from 1\nt: calc 7\ns: send 10b to 1\nt requires r\ns requires t",
            107 + DELAY_NS + 10 + DELAY_NS,
        ),
        ("t: calc 700\nr: recv 100b from 1\ns: send 10b to 1\nr requires t\ns irequires r", 710 + DELAY_NS),
        # A computation begins when the previous one on its CPU has ended.
        (
            "t: calc 5000\nu: calc 100\ns: send 10b to 1\nr: recv 100b from 1\nu requires t\ns irequires u",
            5010 + DELAY_NS,
        ),
        ("t: calc 5000\nu: calc 100\ns: send 10b to 1\nr: recv 100b from 1\ns irequires u", 5010 + DELAY_NS),
        ("t: calc 5000\nu: calc 100 cpu 1\ns: send 10b to 1\nr: recv 100b from 1\ns irequires u", 5000),
    ],
)
def test_requires_waits_for_the_end_of_an_operation_and_irequires_for_its_beginning(rank_0: str, ns: float) -> None:
    found = goal.read(Path("it"), read_text(rank_0, "s: send 100b to 0\nr: recv 10b from 0"))
    assert model_ns(found) == pytest.approx(ns)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 2: the file ends after 0 ranks"),
        ("num_ranks 1\n", "line 1: num_ranks 1"),
        ("num_ranks 99999\n", "99,999; allowed: 2 to 1,024"),
        ("num_ranks 2\nnum_ranks 2\n", "line 2: num_ranks 2"),
        ("rank 0 {\n}", "line 1: rank 0"),
        ("num_ranks 2\nrank 0 {\n}\nrank 0 {", "line 4: rank 0; .* each once"),
        ("num_ranks 2\nrank 2 {", "line 2: rank 2"),
        ("num_ranks 2\nrank 0 {", "ends within a rank"),
        ("num_ranks 2\nrank 0 {\n}", "ends after 1 ranks"),
        (read_text(""), "num_ranks 1"),
        (read_text("", ""), "has no message"),
        (read_text("calc 5", ""), "has no message"),
        (read_text("wait 8b to 1", ""), "line 3: 'wait 8b to 1' is not GOAL here"),
        (read_text("send 8b to 1 nic 0 cpu 0", ""), "is not GOAL here"),
        (read_text("send 8b from 1", ""), "send from; allowed: send to and recv from"),
        (read_text("recv 8b from -1", ""), "line 3: a recv has no matching send"),
        (read_text("recv 8b from 1 tag -1", "send 8b to 0\nsend 8b to 0"), "line 7: a send has no matching recv"),
        (read_text("r: recv 8b from -1", "s: send 8b to 0\nt: recv 8b from 0\ns requires t"), "has no matching send"),
        (read_text("send 8b to -1", ""), "send to -1; allowed: the ranks 0 to 1"),
        (read_text("send 8b to 0", ""), "line 3: a send has no matching recv"),
        (read_text("send 8b to 2", ""), "send to 2"),
        (read_text("send 1.5b to 1", ""), "send of 1.5 bytes; allowed: a whole number of bytes from 0"),
        (read_text("send 1000000000001b to 1", ""), "1000000000001 bytes; allowed: .* to 1,000,000,000,000"),
        (read_text("send 1b to 1 nic 1024", ""), "NIC 1024"),
        (read_text("send 1b to 1 cpu 256", ""), "CPU 256"),
        (read_text("calc 10000000000001", ""), "calc of 10000000000001 ns"),
        (read_text("a: calc 1\na: calc 1", ""), "line 4: the label a is given twice"),
        (read_text("a: calc 1\na requires b", ""), "line 4: the label b is unknown"),
        (read_text("b: calc 1", "a: calc 1\na requires b"), "the label b is unknown"),
        (read_text("l: send 8b to 1", ""), "line 3: send l has no matching recv"),
        (read_text("", "l: recv 8b from 0"), "line 6: recv l has no matching send"),
        (read_text("send 8b to 1 tag 1", "recv 8b from 0 tag 2"), "has no"),
        (read_text("send 8b to 1\nsend 8b to 1", "recv 8b from 0"), "line 4: a send has no matching recv"),
        (read_text("a: calc 1\na requires a", ""), "line 3: calc a waits for itself"),
        (read_text("a: calc 1\nb: calc 1\na requires b\nb irequires a", ""), r"line [34]: calc [ab] waits for itself"),
        (
            read_text(*(f"r: recv 8b from {other}\ns: send 8b to {other}\ns requires r" for other in (1, 0))),
            r"line \d+: (recv r|send s) waits for itself",
        ),
        (read_text("/* and so on", ""), "ends within a rank"),
    ],
)  # fmt: skip
def test_an_invalid_goal_text_is_refused_in_one_sentence_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=words) as refused:
        goal.read(Path("a.goal"), text)
    assert str(refused.value).startswith("a.goal")
    assert "\n" not in str(refused.value)


CORPUS = {
    "an empty message": (
        read_text("send 0b to 1 tag 5", "r: recv 0b from 0 tag 5\nc: calc 7\nc requires r"),
        DELAY_NS + 7,
    ),
    "two sizes": (read_text("send 80b to 1", "recv 100b from 0"), 80 + DELAY_NS),
    "to itself": (
        read_text("s: send 99b to 0\nr: recv 99b from 0\nt: send 5b to 1\nt requires r", "recv 5b from 0"),
        5 + DELAY_NS,
    ),
    "numbers as other programs write them": (
        read_text("c: calc 1.5e3\ns: send 1e2b to 1\ns requires c", "recv 100b from 0"),
        1600 + DELAY_NS,
    ),
    "fractions of a nanosecond": (
        read_text("c: calc 10.4\ns: send 1b to 1\ns requires c", "recv 1b from 0"),
        11 + DELAY_NS,
    ),
    # The message of rank 2 is the first that can arrive; that of rank 1 waits for a computation.
    "from any rank": (
        read_text(
            "a: recv 9b from -1 tag 3\nb: recv 7b from -1 tag 3\nb requires a",
            "c: calc 50\ns: send 7b to 0 tag 3\nd: calc 50\nd requires c\ns requires d",
            "send 9b to 0 tag 3",
        ),
        107 + DELAY_NS,
    ),
    "with any tag": (read_text("recv 8b from 1 tag -1", "send 8b to 0 tag 77"), 8 + DELAY_NS),
    "three ranks": (
        read_text("send 6b to 1", "r: recv 6b from 0\ns: send 6b to 2\ns requires r", "recv 6b from 1"),
        2 * (6 + DELAY_NS),
    ),
    "a rank that does nothing": (read_text("send 6b to 1", "recv 6b from 0", ""), 6 + DELAY_NS),
    "a cpu and a nic without spaces": (read_text("send8b to1tag4cpu1nic2", "recv8b from0tag4"), 8 + DELAY_NS),
}


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_10_of_10_texts_that_the_grammar_allows_are_read_in_every_encoding(tmp_path: Path, coding: str) -> None:
    path, read = tmp_path / "a.goal", 0
    for name, (text, ns) in CORPUS.items():
        path.write_bytes(text.replace("\n", "\r\n" if coding == "utf-8-sig" else "\n").encode(coding))
        ranks = text.count("{")
        found = schedule_files.read(path, kind="messages", gpus=ranks)
        assert model_ns(found) == pytest.approx(ns), name
        read += 1
    assert read == len(CORPUS) == 10


def test_what_a_goal_text_leaves_open_is_said_in_notes() -> None:
    notes = {name: goal.read(Path("a"), text).notes for name, (text, _) in CORPUS.items()}
    assert {name: found for name, found in notes.items() if found} == {
        "two sizes": ("1 receives have another size than their message, which has the size of its send",),
        "to itself": ("1 messages of a rank to itself take no time",),
        "fractions of a nanosecond": ("1 computations are rounded to whole nanoseconds",),
        "from any rank": (ANY.format(1),),
        "with any tag": (ANY.format(1),),
    }


ANY = (
    "receives from any rank or with any tag, on {} rank, are matched beforehand, in the order in which messages would "
    "arrive if nothing took time"
)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_receives_from_any_rank_get_every_message_once_and_never_deadlock(data: st.DataObject) -> None:
    """Random ranks send at random points between their receives from any: whatever is received, all messages are."""
    ranks = data.draw(st.integers(2, 4))
    order = data.draw(st.lists(st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)), max_size=12))
    lines: list[list[str]] = [[] for _ in range(ranks)]
    # In this order every receive comes after a send to its rank, so that some order without deadlock exists.
    for number, (src, dst) in enumerate(order):
        lines[src].append(f"s{number}: send {number}b to {dst}")
        lines[dst].append(f"r{number}: recv {number}b from -1 tag -1")
    for own in lines:
        names = [line.partition(":")[0] for line in own]
        own += [f"{late} requires {early}" for early, late in itertools.pairwise(names)]
    if not any(src != dst for src, dst in order):
        return
    found = goal.read(Path("a"), read_text(*("\n".join(own) for own in lines)))
    flows = [found.flows[one.flow] for one in found.transfers]
    sent = [(flow.src, flow.dst) for flow in flows if isinstance(flow, Flow)]
    assert sorted(sent) == sorted((src, dst) for src, dst in order if src != dst)


def test_binary_goal_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes((4223).to_bytes(8, "little") + (2).to_bytes(4, "little") + bytes(90))
    with pytest.raises(ScheduleError, match=r"a\.bin: it is binary GOAL, which txt2bin writes and which is not read"):
        schedule_files.read(path, kind="messages", gpus=2)


def test_ranks_that_send_when_their_receive_begins_do_not_deadlock() -> None:
    each = "r: recv 8b from {other}\ns: send 8b to {other}\ns irequires r"
    found = goal.read(Path("it"), read_text(each.format(other=1), each.format(other=0)))
    assert model_ns(found) == 8 + DELAY_NS


def test_a_goal_file_with_too_many_operations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goal, "MAX_OPERATIONS", 3)
    with pytest.raises(ScheduleError, match="line 6: more than 3 operations"):
        goal.read(Path("a.goal"), read_text("calc 1\ncalc 1\ncalc 1\ncalc 1", ""))


def test_a_goal_file_with_too_many_dependencies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # 9 messages arrive at rank 0, and each of 20 that it sends requires all of them.
    out = [f"s{j}: send 1b to 1\n" + "\n".join(f"s{j} requires r{i}" for i in range(1, 10)) for j in range(20)]
    ranks = ["\n".join([*(f"r{i}: recv 1b from {i}" for i in range(1, 10)), *out]), "recv 1b from 0\n" * 20, *[""] * 8]
    text = read_text(*(block if rank == 0 else block + "send 1b to 0" for rank, block in enumerate(ranks)))
    (last,) = {transfer.after for transfer in goal.read(Path("it"), text).transfers if transfer.after}
    assert len(last) == 9  # only the first: the dependencies of later sends are then met
    monkeypatch.setattr(operations, "MAX_WAITS", 150)
    with pytest.raises(ScheduleError, match=r"line \d+: the operations up to here have more than 150 dependencies"):
        goal.read(Path("a.goal"), text)
