"""Chakra traces: times against ASTRA-sim and against single collectives, and one sentence for every invalid trace."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.max_plus import times
from hosts.collectives import chakra, chakra_writer, goal, operations
from hosts.collectives.kinds import ALGORITHMS, TRACE, Workload, contents, schedule, workload
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, final_contents
from tests.conftest import PROJECT
from tests.hosts.test_schedules import CASES

DATA = PROJECT / "tests" / "data" / "chakra"  # its README names the sources of the files

# The time at which the last rank ends, as ASTRA-sim (commit c459ab6, analytical backend 599a047, congestion unaware)
# prints it for these files on one switch of 4 NPUs, with 5 GB/s (of 2^30 bytes) and 500 ns per link: rings, all-to-all
# direct, endpoint delay 1, one chunk.
ASTRA_SIM_NS = {
    "all_reduce": 300442,
    "all_gather": 588940,
    "reduce_scatter": 150955,
    "all_to_all": 49830,
    "step": 4146704,
    "layers": 4591118,
}
LINK_S, BYTE_S = 2 * 500e-9, 1 / (5 * 2**30)


def arrivals_s(found: Workload) -> np.ndarray:
    """Return when each transfer arrives if every flow has an equal link of its own."""
    is_flow = [[isinstance(server, Flow)] for server in found.schedule.flows]
    alpha, beta = np.where(is_flow, LINK_S, 0.0), np.where(is_flow, BYTE_S, 1.0)
    return times(found.schedule.transfers, alpha, beta).arrives_s[:, 0]


@pytest.mark.parametrize("name", ASTRA_SIM_NS)
def test_a_trace_takes_the_time_that_astra_sim_reports(name: str) -> None:
    found = chakra.read(DATA / f"{name}.*.et", sites=(2, 2))
    assert 1e9 * arrivals_s(found).max() == pytest.approx(ASTRA_SIM_NS[name], rel=0.01)


def test_a_trace_of_a_training_step_ends_at_the_hand_computed_times() -> None:
    """Two stages of two replicas, by hand: 300 us, 2 MB there, 900 us, 2 MB back, 600 us, sums of 8 MB, 100 us."""
    found = chakra.read(DATA / "step.*.et", sites=(2, 2))
    act, half = LINK_S + 2e6 * BYTE_S, LINK_S + 4e6 * BYTE_S
    wanted = {0: 300e-6 + act + 900e-6 + act + 600e-6 + 2 * half + 100e-6, 2: 300e-6 + act + 900e-6 + 2 * half + 100e-6}
    ends, at = found.schedule.ends[1], arrivals_s(found)
    for place, seconds in wanted.items():
        mine = [
            when
            for when, transfer in zip(at, found.schedule.transfers, strict=True)
            if found.schedule.flows[transfer.flow] == Stream(place)
        ]
        assert max(mine) == pytest.approx(seconds, rel=1e-12)
    assert {(ends[one.flow], found.schedule.flows[one.flow]) for one in found.schedule.transfers if one.adds} == {
        (dst, Flow(src, dst, 1)) for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2))
    }


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_a_schedule_written_as_traces_and_read_back_has_the_same_times(
    tmp_path: Path, kind: str, algorithm: str
) -> None:
    found = schedule(kind, algorithm, sites=(3, 2), pieces=2)
    placement = list(reversed(range(found.places)))
    for rank, content in enumerate(chakra_writer.messages(found, placement=placement, slot_bytes=1000)):
        (tmp_path / f"it.{rank}.et").write_bytes(content)
    again = chakra.read(tmp_path / "it.*.et", sites=(found.places,)).schedule
    alpha_s, byte_s = 1e-6, 1e-9

    def arrivals(one: Schedule, slot_bytes: float, names: Sequence[int]) -> list[tuple[int, int, float]]:
        flows = (len(one.flows), 1)
        at = times(one.transfers, np.full(flows, alpha_s), np.full(flows, byte_s * slot_bytes)).arrives_s[:, 0]
        return sorted(
            (names[flow.src], names[flow.dst], round(1e9 * when))
            for (flow, _), when in zip(one.sends(), at, strict=True)
        )

    assert arrivals(again, 1, range(found.places)) == arrivals(found, 1000, placement)


# --- files in the trace format, written independently of the reader ---------------------------------------------------


def varint(number: int) -> bytes:
    found = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: object) -> bytes:
    one = {
        bool: lambda: field(27, int(value)),  # type: ignore[call-overload]
        int: lambda: field(9, value),  # type: ignore[arg-type]
        str: lambda: field(29, value),  # type: ignore[arg-type]
        list: lambda: field(28, field(1, bytes(value))),  # type: ignore[call-overload]
        bytes: lambda: value,
    }[type(value)]()
    return field(10, field(1, name) + one)


def node(
    number: int,
    kind: int,
    *,
    data: Iterable[int] = (),
    control: Iterable[int] = (),
    us: int = 0,
    name: str = "",
    **values: object,
) -> bytes:
    waits = b"".join(field(5, one) for one in data) + field(4, b"".join(map(varint, control)))
    head = field(1, number) + field(2, name or f"n{number}") + field(3, kind) + waits + field(7, us)
    return head + b"".join(attribute(name, value) for name, value in values.items())


METADATA = field(1, "0.0.4")
COMP, SEND, RECV, COLL = 4, 5, 6, 7


def file_of(*messages: bytes, metadata: bytes = METADATA) -> bytes:
    return b"".join(varint(len(one)) + one for one in (metadata, *messages))


def trace(folder: Path, *ranks: bytes) -> Path:
    for rank, content in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(content)
    return folder / "t.*.et"


def all_reduce(number: int = 0, size: int = 999, **more: object) -> bytes:
    return node(number, COLL, comm_type=0, comm_size=size, **more)  # type: ignore[arg-type]


def called(kind: int, caller: str, first: int = 0, **values: object) -> tuple[bytes, ...]:
    """Return a message node and its callers, as Chakra's converter writes PyTorch's: a caller's name has the ranks."""
    return (
        node(first, COMP, name=caller, is_cpu_op=True),
        node(first + 1, COMP, name="record_param_comms", control=[first], data=[first], is_cpu_op=True),
        node(first + 2, kind, control=[first + 1], data=[first + 1], comm_size=8, **values),  # type: ignore[arg-type]
    )


KINDS = ["allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall", "reducescatter"]


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [(kind, name) for kind in KINDS for name in (None, "hierarchical", "direct") if name in (None, *ALGORITHMS[kind])],
)
def test_a_trace_of_one_collective_equals_that_collective(tmp_path: Path, kind: str, algorithm: str | None) -> None:
    each = file_of(node(0, COLL, comm_type=KINDS.index(kind), comm_size=60_000))
    found = chakra.read(trace(tmp_path, *[each] * 5), sites=(3, 2), algorithm=algorithm)
    size = 60_000 * (5 if kind in ("allgather", "gather") else 1)
    alone = workload(kind, algorithm or ALGORITHMS[kind][0], sites=(3, 2), size_bytes=size)
    # The flows of a traced collective have a channel of their own, 1.
    mine = {
        flow: [
            (one.slots, one.adds, one.size)
            for one in found.schedule.transfers
            if found.schedule.flows[one.flow] == Flow(flow.src, flow.dst, 1)
        ]
        for flow in alone.schedule.flows
        if isinstance(flow, Flow)
    }
    for flow, ours in mine.items():
        assert ours == [
            (one.slots, one.adds, len(one.slots) * alone.slot_bytes)
            for one in alone.schedule.transfers
            if alone.schedule.flows[one.flow] == flow
        ]
    rng = np.random.default_rng(1)
    of_pair = rng.uniform(1e-6, 1e-3, (2, 5, 5))

    def last_s(one: Workload) -> float:
        rows = [of_pair[:, f.src, f.dst] if isinstance(f, Flow) else (0.0, 1.0) for f in one.schedule.flows]
        alpha, beta = np.array(rows).T[..., None]
        return float(times(one.schedule.transfers, alpha, beta * one.slot_bytes).arrives_s.max())

    assert last_s(found) == last_s(alone)
    held, wanted = contents(kind, places=5, slots=alone.schedule.slots)
    assert [[bool(one) for one in row] for row in found.initial_contents] == [
        [bool(one) for one in row] for row in held
    ]
    for row, right in zip(final_contents(found.schedule, found.initial_contents), wanted, strict=True):
        assert all(content == want for content, want in zip(row, right, strict=True) if want)


def test_groups_form_by_name_or_dimension_and_disjoint_groups_share_slots(tmp_path: Path) -> None:
    ranks = [
        file_of(
            all_reduce(0, pg_name="in" + str(rank // 2)),
            all_reduce(1, involved_dim=[False, True, True]),
            all_reduce(2, involved_dim=[True, False]),
            all_reduce(3, involved_dim=[True]),
            all_reduce(4, pg_name=f"alone {rank}"),
        )
        for rank in range(4)
    ]
    found = chakra.read(trace(tmp_path, *ranks), sites=(2, 2))
    flows = {flow for flow in found.schedule.flows if isinstance(flow, Flow)}
    inside = {(0, 1), (1, 0), (2, 3), (3, 2)}
    # Named groups have channel 1; groups across sites, which pair the same ranks differently, have 2; and so on.
    assert {(flow.src, flow.dst) for flow in flows if flow.channel in (1, 3)} == inside
    assert {(flow.src, flow.dst) for flow in flows if flow.channel == 2} == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert {(flow.src, flow.dst) for flow in flows if flow.channel == 4} == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert found.schedule.slots == 3 * 2 + 4
    ends = final_contents(found.schedule, found.initial_contents)
    for place, row in enumerate(ends):
        assert [content.bit_count() for content in row] == [2] * 6 + [4] * 4
        assert row[0] == ends[place ^ 1][0] and row[2] == ends[place ^ 2][2] and row[9] == ends[0][9]


def test_a_rank_starts_a_groups_next_collective_after_completing_the_previous_one(tmp_path: Path) -> None:
    both = file_of(all_reduce(7, 8_000), all_reduce(3, 8_000))
    found = chakra.read(trace(tmp_path, both, both), sites=(1, 1))
    one = LINK_S + 4_000 * BYTE_S
    assert arrivals_s(found).max() == pytest.approx(4 * one, rel=1e-12)


def later_first() -> bytes:
    """Return a file whose first collective needs the result of its second one, after a computation."""
    late, early = all_reduce(1, 8_000, data=[3]), all_reduce(2, 8_000)
    return file_of(late, early, node(3, COMP, data=[2], us=1000))


def numbered(kind: int, size: int, type_: int) -> bytes:
    """Return a collective node whose comm_size is an attribute of this protobuf type, by field number."""
    value = size << 1 if type_ in (15, 17) else size
    coded = field(type_, value)
    if type_ in (19, 21):
        coded = varint(type_ << 3 | (5 if type_ == 19 else 1)) + size.to_bytes(4 if type_ == 19 else 8, "little")
    return node(0, COLL, comm_type=kind) + field(10, field(1, "comm_size") + coded)


ONE_S = 2 * (LINK_S + 4_000 * BYTE_S)  # an AllReduce of 8 kB between two ranks
CORPUS = {
    "a collective that needs a later one of its group": ([later_first()] * 2, 2 * ONE_S + 1e-3),
    # Rank 1 can begin the first collective of its file only after the message that rank 0 sends after its own first.
    "an order that a message gives": (
        [
            file_of(all_reduce(1, 8_000), node(2, SEND, data=[1], comm_dst=1, comm_size=0), all_reduce(3, 8_000)),
            file_of(all_reduce(1, 8_000, data=[2]), node(2, RECV, comm_src=0, comm_size=0), all_reduce(3, 8_000)),
        ],
        2 * ONE_S + LINK_S,
    ),
    "files in different orders": (
        [
            file_of(all_reduce(1, 8_000, name="a"), all_reduce(2, 16_000, name="b")),
            file_of(all_reduce(2, 16_000, name="b"), all_reduce(1, 8_000, name="a")),
        ],
        ONE_S + 2 * (LINK_S + 8_000 * BYTE_S),
    ),
    # Both could come first on rank 0, but on rank 1 the later one of rank 0's file has to.
    "an order that one rank gives": (
        [
            file_of(all_reduce(1, 8_000), all_reduce(2, 16_000)),
            file_of(all_reduce(1, 8_000, data=[2]), all_reduce(2, 16_000)),
        ],
        ONE_S + 2 * (LINK_S + 8_000 * BYTE_S),
    ),
    "a group of one rank": (
        [
            file_of(all_reduce(1, 9, pg_name=f"tp{rank}"), all_reduce(2, 8_000, data=[1], pg_name="dp"))
            for rank in (0, 1)
        ],
        ONE_S,
    ),
    "an empty collective": ([file_of(all_reduce(1, 0), all_reduce(2, 8_000, data=[1]))] * 2, ONE_S + 2 * LINK_S),
    "an empty message": (
        [file_of(node(1, SEND, comm_dst=1, comm_size=0)), file_of(node(1, RECV, comm_src=0, comm_size=0))],
        LINK_S,
    ),
    "a ctrl_dep on a missing node": ([file_of(all_reduce(2, 8_000, control=[0]))] * 2, ONE_S),
} | {f"a size as field {type_}": ([file_of(numbered(0, 8_000, type_))] * 2, ONE_S) for type_ in (7, 9, 11, 13, 17, 21)}


def test_14_of_14_traces_in_forms_that_the_format_allows_are_read(tmp_path: Path) -> None:
    read = 0
    for name, (ranks, seconds) in CORPUS.items():
        found = chakra.read(trace(tmp_path, *ranks), sites=(1, 1))
        assert arrivals_s(found).max() == pytest.approx(seconds, rel=1e-9), name
        read += 1
    assert read == len(CORPUS) == 14


def test_empty_collectives_of_every_kind_synchronise_and_deliver_nothing(tmp_path: Path) -> None:
    for kind in range(len(KINDS)):
        late = node(0, COMP, us=500), node(1, COLL, data=[0], comm_type=kind, comm_size=0)
        early = (node(1, COLL, comm_type=kind, comm_size=0),)
        path = trace(tmp_path, *(file_of(*nodes) for nodes in (late, early, early, early)))
        found = chakra.read(path, sites=(2, 2))
        assert {one.size for _, one in found.schedule.sends()} == {0.0} and found.schedule.slots == 0
        # The late rank is the root: all others wait for it, unless it only receives.
        only_receives = KINDS[kind] in ("gather", "reduce")
        assert arrivals_s(found).max() >= 500e-6 + (0 if only_receives else LINK_S)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_collectives_of_groups_in_any_acyclic_order_are_read_and_respect_it(data: st.DataObject) -> None:
    """Random collectives of random groups with random dependencies, on each rank shuffled in the file."""
    several = st.sets(st.integers(0, 3), min_size=2).map(frozenset)
    groups = data.draw(st.lists(several, min_size=1, max_size=3, unique=True))
    calls = data.draw(st.lists(st.sampled_from(range(len(groups))), min_size=1, max_size=6))
    files, waits = [], {}
    for rank in range(4):
        own = [number for number, group in enumerate(calls) if rank in groups[group]]
        nodes = []
        for position, number in enumerate(own):
            before = data.draw(st.lists(st.sampled_from(own[:position]), max_size=2)) if position else []
            waits[rank, number] = {*before}
            size = len(groups[calls[number]]) * slot_of(number)
            nodes.append(all_reduce(number, size, data=sorted({*before}), pg_name=f"g{calls[number]}"))
        files.append(file_of(*data.draw(st.permutations(nodes))))
    with tempfile.TemporaryDirectory() as folder:
        found = chakra.read(trace(Path(folder), *files), sites=(2, 2)).schedule
    flows = len(found.flows), 1
    timing = times(found.transfers, np.full(flows, LINK_S), np.full(flows, BYTE_S))
    starts, ends = found.ends
    numbers = {slot_of(number): number for number in range(len(calls))}
    begins, arrives = ({(rank, number): [] for rank, number in waits} for _ in range(2))
    for index, one in enumerate(found.transfers):
        number = numbers[round(one.size / len(one.slots))]
        begins[starts[one.flow], number].append(timing.begins_s[index, 0])
        arrives[ends[one.flow], number].append(timing.arrives_s[index, 0])
    for (rank, number), earlier in waits.items():
        for before in earlier:  # a rank sends nothing of a collective before it has all of those that it depends on
            assert min(begins[rank, number]) >= max(arrives[rank, before]) - 1e-12


def slot_of(number: int) -> int:
    """Return the bytes of a slot of collective `number`, by which its messages are known."""
    return 4 * (101 + number)


def test_a_barrier_sums_one_word_and_message_sizes_next_to_sums_round_up_to_words(tmp_path: Path) -> None:
    ends = [
        node(0, SEND, comm_dst=1, comm_size=5, comm_tag=-3),
        node(0, RECV, comm_src=0, comm_size=5, comm_tag=-3),
    ]
    barrier = node(1, COLL, data=[0], comm_type=9, comm_size=0)
    found = chakra.read(trace(tmp_path, *(file_of(end, barrier) for end in ends)), sites=(1, 1))
    assert {transfer.size for _, transfer in found.schedule.sends()} == {8.0, 4.0} and found.unit_bytes == 4
    found = chakra.read(trace(tmp_path, *(file_of(end) for end in ends)), sites=(1, 1))
    assert [transfer.size for _, transfer in found.schedule.sends()] == [5.0]


def test_computations_take_their_duration_or_operations_over_tflops_on_gpu_and_cpu(tmp_path: Path) -> None:
    ranks = [
        file_of(
            node(0, COMP, us=30, num_ops=7_000_000),
            node(1, COMP, us=20, is_cpu_op=True),
            node(2, COLL, us=10, is_cpu_op=True),  # the CPU's work to launch a collective
            node(3, 1, data=[0]),
            node(4, SEND, data=[3], control=[2], comm_size=1000, comm_src=0, comm_dst=1),
        ),
        file_of(node(9, RECV, comm_src=0, comm_size=1000), node(2, COMP, data=[9], us=0)),
    ]
    path = trace(tmp_path, *ranks)
    for tflops, begins_s in ((None, 30e-6), (0.1, 70e-6), (1.0, 30e-6)):
        found = chakra.read(path, sites=(1, 1), tflops=tflops)
        assert arrivals_s(found).max() == pytest.approx(begins_s + LINK_S + 1000 * BYTE_S, rel=1e-12)
    assert found.schedule.flows == (Stream(0, 0), Stream(0, 1), Flow(0, 1))


def test_a_rank_computes_in_file_order_without_stalling_for_a_node_that_awaits_a_sum(tmp_path: Path) -> None:
    """A backward pass of 30 layers overlaps the sum of its first gradients; their optimizer comes last in the file."""
    chain = [node(one, COMP, us=10, data=[one - 1] if one else []) for one in range(30)]
    each = file_of(*chain, all_reduce(50, 800_000, data=[0]), node(51, COMP, us=5, data=[50]))
    found = chakra.read(trace(tmp_path, each, each), sites=(1, 1))
    assert 2 * (LINK_S + 400_000 * BYTE_S) > 140e-6
    assert arrivals_s(found).max() == pytest.approx(305e-6, rel=1e-12)


def test_ctrl_deps_in_files_of_chakras_converters_are_callers_and_not_dependencies(tmp_path: Path) -> None:
    sent = [node(0, COMP, us=50, control=[77]), node(1, SEND, control=[0, 1], comm_dst=1, comm_size=8)]
    end = file_of(node(1, RECV, comm_src=0, comm_size=8))
    schema = field(2, field(1, "schema") + field(29, "1.0.2-chakra.0.0.4"))
    found = chakra.read(trace(tmp_path, file_of(*sent, metadata=schema), end), sites=(1, 1))
    assert [one.after for one in found.schedule.transfers] == [(), ()]
    sent = [node(0, COMP, us=50, control=[77]), node(1, SEND, control=[0], comm_dst=1, comm_size=8)]
    found = chakra.read(trace(tmp_path, file_of(*sent), end), sites=(1, 1))
    assert [one.after for one in found.schedule.transfers] == [(), (0,)]
    assert found.schedule.notes == ("t.*.et: 1 ctrl_deps on nodes that are in no file count as met",)


def test_a_trace_exported_as_goal_takes_the_same_time() -> None:
    for name in ("step", "layers"):
        found = chakra.read(DATA / f"{name}.*.et", sites=(2, 2))
        again = goal.read(Path("it"), goal.text(found.schedule, placement=range(4), slot_bytes=1))
        is_flow = [[isinstance(server, Flow)] for server in again.flows]
        alpha, beta = np.where(is_flow, LINK_S, 0.0), np.where(is_flow, BYTE_S, 1.0)
        goal_s = times(again.transfers, alpha, beta).arrives_s.max()
        assert goal_s == pytest.approx(arrivals_s(found).max(), rel=1e-9)


def alone(*messages: bytes) -> tuple[bytes, bytes]:
    """Return the files of two ranks in one AllReduce; the first rank has these messages as well."""
    return file_of(*messages, all_reduce(99)), file_of(all_reduce(99))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), "0 files for 2 GPUs"),
        ((file_of(),), ": 1 file for 2 GPUs"),
        ((file_of(), file_of(), file_of()), "3 files for 2 GPUs; allowed: one for each, and at most 1,024 GPUs$"),
        ((b"", b""), r"t\.0\.et: it is empty"),
        ((file_of(), file_of()), "has no message"),
        ((file_of(), b"\x0a"), r"t\.1\.et, message 1: the file ends after 0 of its 10 bytes"),
        ((file_of()[:3], file_of()), "message 1: the file ends after 2 of its 7 bytes"),
        ((b"\xff" * 9, b""), "message 1: it ends within a number"),
        ((b"\xff" * 20, b""), "message 1: a number has more than 10 bytes"),
        ((varint(2**60) + b"x", b""), "message 1: it has 1,152,921,504,606,846,976 bytes; allowed: 16,777,216"),
        ((file_of(metadata=node(0, COMP)), b""), "message 1: it is not GlobalMetadata"),
        (alone(b"\x0b"), "message 2: a field has the wire type 3"),
        (alone(b"\x0d1"), "message 2: a field is longer than the message"),
        (alone(b"\x12\x05a"), "message 2: a field is longer than the message"),
        (alone(field(1, "a")), "its field 1 is not a number"),
        (alone(field(10, 3)), "its field 10 is a number"),
        (alone(node(99, COMP)), "message 3: the id 99 is that of another node"),
        (alone(node(0, 8)), "its type is 8; allowed: 0 to 7"),
        (alone(node(0, 2)), "it is a MEM_LOAD_NODE"),
        (alone(node(0, COMP, us=2**64 - 1)), "its duration_micros is 18,446,744,073,709,551,615; allowed: 10,000,000"),
        (alone(node(0, COMP, num_ops=5)), "5 num_ops and no duration_micros; allowed: with collective.tflops"),
        (alone(node(0, COMP, num_ops=-5)), "its num_ops -5; allowed: a whole number from 0"),
        (alone(node(0, COMP, data=[98])), "node 0: it has the data_dep 98, which names no node of the file"),
        (alone(node(0, COMP, us=1, data=[0])), "node 0: COMP_NODE 'n0' waits for itself"),
        (alone(node(0, COMP, us=1, data=[99]), all_reduce(1, data=[0])), "on rank 0 and 1 on rank 1"),
        (alone(node(0, SEND)), "its comm_dst is missing"),
        (alone(node(0, SEND, comm_dst=0, comm_size=1)), "its comm_dst is 0, its own rank"),
        (alone(node(0, SEND, comm_dst=2, comm_size=1)), "its comm_dst 2; allowed: a whole number from 0 to 1"),
        (alone(node(0, SEND, comm_src=1, comm_dst=1, comm_size=1)), "its comm_src 1; allowed: a whole number from 0"),
        (alone(node(0, SEND, comm_dst="1", comm_size=1)), "its comm_dst '1'; allowed"),
        (alone(node(0, SEND, comm_dst=1, comm_size=-1)), "its comm_size -1; allowed: a whole number from 0"),
        (alone(node(0, SEND, comm_dst=1, comm_size=1)), "node 0: COMM_SEND_NODE 'n0' has no matching recv"),
        (alone(node(0, RECV, comm_src=1, comm_size=1)), "node 0: COMM_RECV_NODE 'n0' has no matching send"),
        (alone(node(0, COLL, comm_type=10, comm_size=1)), "its comm_type 10; allowed: a whole number from 0 to 9"),
        (alone(node(0, COLL, comm_type=0)), "its comm_size is missing"),
        (alone(all_reduce(0, involved_dim=[True] * 17)), "a list has more than 16 booleans"),
        (alone(all_reduce(0, pg_name=3)), "its pg_name is not text, or too long"),
        (alone(all_reduce(0, involved_dim=3)), "its involved_dim is not a list of booleans"),
        (alone(node(0, SEND, comm_size=1)), "its comm_dst is missing; allowed: a whole number from 0 to 1"),
        (alone(node(0, SEND, comm_size=1, pg_name="p")), "no caller such as .* and the group 'p' the ranks 0; allowed"),
        (
            tuple(file_of(*called(SEND, "nccl:send 1->0", pg_name="p")) for _ in range(2)),
            "t.0.et, node 2: .* has a caller 'nccl:send 1->0' and the group 'p' the ranks 0, 1; allowed: a comm_dst",
        ),
        (
            tuple(file_of(*called(SEND, "nccl:send 0->9", pg_name="p")) for _ in range(2)),
            "has a caller 'nccl:send 0->9' and the group",
        ),
        (alone(all_reduce(0, pg_name="x" * 201)), "allowed: text of 200 bytes at most"),
        (
            (file_of(*(all_reduce(one, pg_name=f"g{one}") for one in range(65))),) * 2,
            "the group 'g64' has a rank that is in 64 other groups",
        ),
        (alone(all_reduce(0)), "the group of 2 ranks has 2 collectives on rank 0 and 1 on rank 1"),
        ((file_of(all_reduce(0, 9)), file_of(all_reduce(0, 8))), "of 8 bytes here and allreduce of 9 on rank 0"),
        ((file_of(all_reduce(0, pg_name="a")), file_of(all_reduce(0, pg_name="b"))), "has no message"),
    ],
)  # fmt: skip
def test_an_invalid_trace_is_refused_in_one_sentence(tmp_path: Path, ranks: tuple[bytes, ...], words: str) -> None:
    path = trace(tmp_path, *ranks)
    with pytest.raises(ScheduleError, match=words) as refused:
        chakra.read(path, sites=(1, 1))
    assert str(refused.value).startswith(str(tmp_path)) and "\n" not in str(refused.value)


def test_peers_of_group_messages_come_from_caller_names_or_groups_of_two_ranks(tmp_path: Path) -> None:
    """A pipeline of ranks 1 to 3, and a pair of 0 and 3 without caller names: the same as with peers in the nodes."""

    def files(peers: bool) -> Workload:
        def one(kind: int, group: str, mine: int, other: int, peer: int, first: int) -> tuple[bytes, ...]:
            names = {SEND: f"nccl:send {mine}->{other}", RECV: f"nccl:recv {mine}<-{other}"}
            named = {"comm_dst" if kind == SEND else "comm_src": peer} if peers else {"pg_name": group}
            return called(kind, names[kind] if group == "pipeline" else "c10d::p2p", first, **named)

        ranks = (
            file_of(*one(SEND, "pair", 0, 1, 3, 0)),
            file_of(*one(SEND, "pipeline", 0, 1, 2, 0), *one(SEND, "pipeline", 0, 1, 2, 3)),
            file_of(
                *one(RECV, "pipeline", 1, 0, 1, 0),
                *one(RECV, "pipeline", 1, 0, 1, 3),
                *one(SEND, "pipeline", 1, 2, 3, 6),
            ),
            file_of(*one(RECV, "pair", 1, 0, 0, 0), *one(RECV, "pipeline", 2, 1, 2, 3)),
        )
        return chakra.read(trace(tmp_path, *ranks), sites=(2, 2))

    found, wanted = files(peers=False).schedule, files(peers=True).schedule
    assert (found.flows, found.transfers) == (wanted.flows, wanted.transfers)
    flows = [flow for flow in found.flows if isinstance(flow, Flow)]
    assert {(flow.src, flow.dst) for flow in flows} == {(0, 3), (1, 2), (2, 3)}


def test_a_trace_whose_ranks_wait_for_each_other_is_refused(tmp_path: Path) -> None:
    def rank(peer: int) -> bytes:
        received = node(0, RECV, comm_src=peer, comm_size=8)
        return file_of(received, node(1, SEND, data=[0], comm_dst=peer, comm_size=8))

    with pytest.raises(ScheduleError, match=r"COMM_(SEND|RECV)_NODE 'n[01]' waits for itself"):
        chakra.read(trace(tmp_path, rank(1), rank(0)), sites=(1, 1))


def test_a_trace_over_a_limit_or_unfit_for_the_sites_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path, *alone())
    with pytest.raises(ScheduleError, match="allowed: a name with one \\*"):
        chakra.read(tmp_path / "t.0.et", sites=(1, 1))
    with pytest.raises(ScheduleError, match="none of its collectives has the algorithm chain-of; allowed: bruck"):
        chakra.read(path, sites=(1, 1), algorithm="chain-of")
    some = file_of(all_reduce(0, involved_dim=[True, False]))
    with pytest.raises(ScheduleError, match="but sites have 1, 2 GPUs"):
        chakra.read(trace(tmp_path, some, some, some), sites=(1, 2))
    (tmp_path / "t.2.et").unlink()
    trace(tmp_path, *alone())
    monkeypatch.setattr(chakra, "MAX_SLOTS", 3)
    with pytest.raises(ScheduleError, match="more than 3 slots of all GPUs together"):
        chakra.read(path, sites=(1, 1))
    monkeypatch.setattr(chakra, "MAX_OPERATIONS", 3)
    with pytest.raises(ScheduleError, match="more than 3 operations"):
        chakra.read(path, sites=(1, 1))
    trace(tmp_path, *alone(*(node(one, COMP, us=1, data=range(one)) for one in range(4))))
    monkeypatch.setattr(chakra, "MAX_OPERATIONS", 300)
    monkeypatch.setattr(chakra, "MAX_WAITS", 5)
    with pytest.raises(ScheduleError, match="nodes depend on more than 5 others"):
        chakra.read(path, sites=(1, 1))
    monkeypatch.undo()
    monkeypatch.setattr(operations, "MAX_WAITS", 1)
    with pytest.raises(ScheduleError, match=r"t\.0\.et.*have more than 1 dependencies"):
        chakra.read(path, sites=(1, 1))


def test_a_trace_becomes_a_workload_of_kind_trace_with_fixed_ranks(tmp_path: Path) -> None:
    found = chakra.read(trace(tmp_path, *alone()), sites=(1, 1))
    assert (found.kind, found.algorithm, found.slot_bytes, found.groups) == (TRACE, "t.*.et", 1, ())
