"""A script's last steps as Chakra traces, which are read back with the same times, and as a timeline."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.figures.rank_timeline import picture
from analysis.model.max_plus import times
from hosts.collectives import chakra
from hosts.collectives.chakra_writer import Call, Computation, content
from hosts.collectives.schedule import Flow
from scenarios.program import script_steps, script_trace
from tests.hosts.test_chakra import COLL, COMP, field, node, varint
from tests.scenarios.test_script_steps import Rank, left

ALPHA_NS, NS_PER_BYTE = 5_000, 0.1
BYTES = 1_000_000
HALF_NS = round(BYTES / 2 * NS_PER_BYTE)


def predicted_s(pattern: Path, sites: tuple[int, ...]) -> float:
    """Return the model's time of a trace if every flow has an equal link of its own."""
    found = chakra.read(pattern, sites=sites)
    is_flow = [[isinstance(server, Flow)] for server in found.schedule.flows]
    alpha, beta = np.where(is_flow, ALPHA_NS / 1e9, 0.0), np.where(is_flow, NS_PER_BYTE / 1e9, 1.0)
    return float(times(found.schedule.transfers, alpha, beta).arrives_s.max())


def all_reduce(ranks: Sequence[Rank]) -> list[Any]:
    """Sum BYTES of two ranks around a ring, each in two messages of half of them: by hand, the second one leaves when
    the other rank's first one is there and its own first one is sent, and a rank ends when it has both."""
    begun_ns = [max(rank.ns, rank.device.current.end_ns) for rank in ranks]
    whole_ns = ALPHA_NS + HALF_NS
    calls = []
    for number, rank in enumerate(ranks):
        mine, other = begun_ns[number], begun_ns[1 - number]
        one = rank.recorder.begun(
            "0",
            (0, 1),
            number=rank.number,
            kind="allreduce",
            size_bytes=BYTES,
            asked_ns=mine,
            begun_ns=mine,
            after=rank.device.current.after,
        )
        rank.number += 1
        rank.recorder.ended(one, max(mine + whole_ns, other + HALF_NS) + whole_ns)
        calls.append(one)
    return calls


PARTS = st.tuples(*[st.integers(1, 300)] * 3, st.integers(0, 400))
"""us of kernels before, beside and after a collective, and of the host's own work after these."""


def trained(steps: Sequence[Sequence[tuple[int, int, int, int]]]) -> list[Rank]:
    """Return two ranks that have trained, with these times of each in each step."""
    ranks = [Rank(), Rank()]
    for rank in ranks:
        rank.step()
    for step in steps:
        for rank, (before, _, _, _) in zip(ranks, step, strict=True):
            rank.kernel(before)
        for rank, call, (_, beside, after, idle) in zip(ranks, all_reduce(ranks), step, strict=True):
            rank.kernel(beside)
            rank.join(call)
            rank.kernel(after, "aten::add")
            rank.device.wait(rank.device.end_ns)
            rank.ns += idle * 1000
            rank.kernel(7)
            rank.device.wait(rank.device.end_ns)
            rank.step()
    return ranks


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(PARTS, PARTS), min_size=1, max_size=3))
def test_a_trace_that_is_read_back_takes_the_time_of_the_steps(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[tuple[int, int, int, int], ...]]
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    shown = script_steps.window(left(folder, *trained(steps)), 2)
    assert shown is not None and shown.steps == tuple(range(len(steps)))
    script_trace.write(shown, folder)
    assert not (folder / "chakra" / "comm_groups.json").exists()  # all ranks need no name
    measured_s = (shown.end_ns - shown.begin_ns) / 1e9
    # Times in the files are whole microseconds, and a collective's two ends are rounded in each step.
    assert predicted_s(folder / "chakra" / "trace.*.et", (1, 1)) == pytest.approx(measured_s, abs=2e-6 * len(steps))


def test_many_short_kernels_take_the_time_that_they_have_taken_together() -> None:
    """4.4 us would be 4 in the file; a thousand of them end at 4,400 and not at 4,000."""
    kernels = [
        Computation(id=one, name="k", begin_ns=4_400 * one, took_ns=4_400, flops=1.0, after=(one - 1,))
        for one in range(1000)
    ]
    data, durations = content(kernels, 0), []
    for message in messages(data)[1:]:
        (us,) = [value for number, value in chakra._fields(message) if number == 7]
        durations.append(us)
    assert sum(durations) == 4_400 and {*durations} == {4, 5}


def messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        size, at = chakra._varint(data, 0)
        found.append(data[at : at + size])
        data = data[at + size :]
    return found


def test_a_file_has_the_fields_of_the_schema_to_the_byte() -> None:
    """The expected messages are written by the encoder of the reader's tests."""
    nodes = [
        Computation(id=70, name="aten::mm", begin_ns=13_000, took_ns=4_000, flops=2e9, after=(3,)),
        Call(71, "allgather 5", "allgather", 4096, "2", 4, 17_000, 40_000, (70,)),
        Call(72, "broadcast 0", "broadcast", 512, "", 8, 40_000, 41_000, (70, 71)),
    ]
    found = messages(content(nodes, 10_000))
    gpu = {"is_cpu_op": False}

    expected = [
        (node(1, COMP, us=3, name="host", is_cpu_op=True), 0),
        (node(2, COMP, us=4, name="aten::mm", **gpu, num_ops=2_000_000_000), 3),
        (node(3, COLL, us=23, name="allgather 5", **gpu, comm_type=2, comm_size=1024, pg_name="2"), 7),
        (node(4, COLL, us=1, name="broadcast 0", **gpu, comm_type=5, comm_size=512), 30),
    ]
    waits = [b"", varint(1), varint(2), varint(2) + varint(3)]
    assert found[0] == field(1, "0.0.4")
    for got, (data, begin_us), wait in zip(found[1:], expected, waits, strict=True):
        wanted = {number: value for number, value in chakra._fields(data) if number in (1, 2, 3, 7)}
        wanted |= {6: begin_us} | ({5: wait} if wait else {})
        fields = list(chakra._fields(got))
        assert {number: value for number, value in fields if number != 10} == wanted
        assert [value for number, value in fields if number == 10] == [
            value for number, value in chakra._fields(data) if number == 10
        ]


def test_a_group_of_some_ranks_has_a_name_and_a_collective_that_not_all_have_is_left_out(tmp_path: Path) -> None:
    ranks = [Rank(4) for _ in range(4)]
    for number, rank in enumerate(ranks):
        rank.step()
        rank.kernel(10)
        pair = (0, 2) if number in (0, 2) else (1, 3)
        rank.join(rank.collective(50, ranks=pair))
        if number == 0:
            rank.join(rank.collective(20, "broadcast", ranks=(0, 1, 2, 3)))  # the others' are in another step
        rank.kernel(10)
        rank.device.wait(rank.device.end_ns)
        rank.step()
    shown = script_steps.window(left(tmp_path, *ranks), 4)
    assert shown is not None
    script_trace.write(shown, tmp_path)
    assert json.loads((tmp_path / "chakra/comm_groups.json").read_text()) == {"1": [0, 2], "2": [1, 3]}
    found = chakra.read(tmp_path / "chakra/trace.*.et", sites=(2, 2))
    flows = {(one.src, one.dst) for one in found.schedule.flows if isinstance(one, Flow)}
    assert flows == {(0, 2), (2, 0), (1, 3), (3, 1)}


def test_a_name_that_is_no_text_is_written(tmp_path: Path) -> None:
    ranks = trained([((50, 30, 20, 5),) * 2])
    for rank in ranks:
        rank.kernel(5, "half \ud800")
        rank.device.wait(rank.device.end_ns)
        rank.step()
    shown = script_steps.window(left(tmp_path, *ranks), 2)
    assert shown is not None
    script_trace.write(shown, tmp_path)
    assert b"half ?" in (tmp_path / "chakra/trace.1.et").read_bytes()


def test_there_is_no_window_without_a_step_of_every_rank(tmp_path: Path) -> None:
    one, other = Rank(), Rank()
    one.train(3)
    other.train(1)
    assert script_steps.window(left(tmp_path, one, other), 2) is None
    assert script_steps.window([], 0) is None


def test_a_timeline_has_every_kernel_and_collective_of_every_rank(tmp_path: Path) -> None:
    ranks = trained([((50, 30, 20, 5),) * 2, ((60, 30, 20, 0),) * 2])
    ranks[0].device.current = ranks[0].device.new()
    records = left(tmp_path, *ranks)
    shown = script_steps.window(records, 2)
    assert shown is not None
    made = picture("Ranks of a program, base", script_trace.timeline(shown, ["g0", "g4"]))
    assert {path.name for path in made.write(tmp_path)} == {
        f"program-timeline.{ending}" for ending in ("svg", "png", "csv", "json")
    }
    events = json.loads((tmp_path / "program-timeline.json").read_text())["traceEvents"]
    names = {(one["pid"], one["args"]["name"]) for one in events if one["name"] == "thread_name"}
    assert names == {(pid, name) for pid in (1, 2) for name in ("steps", "stream 0", "group 0")}
    drawn = [one for one in events if one["ph"] == "X"]
    for pid, rank in enumerate(records, 1):
        kernels = [one for one in drawn if (one["pid"], one["cat"]) == (pid, "kernel")]
        wanted = [(one.name, one.begin_ns / 1e3, one.took_ns / 1e3) for kept in rank.kept for one in kept.kernels]
        assert [(one["name"], one["ts"], one["dur"]) for one in kernels] == [
            (name, pytest.approx(ts), pytest.approx(dur)) for name, ts, dur in wanted
        ]
        calls = [one for one in drawn if (one["pid"], one["cat"]) == (pid, "collective")]
        assert [one["args"]["bytes"] for one in calls] == [BYTES] * 2
        assert [one["dur"] for one in drawn if (one["pid"], one["cat"]) == (pid, "step")] == [
            pytest.approx(step.step_ns / 1e3) for step in rank.steps
        ]
    rows = list(csv.DictReader((tmp_path / "program-timeline.csv").open()))
    computing = sum(float(row["end_s"]) - float(row["begin_s"]) for row in rows if row["what"] == "kernels")
    told = [dict(zip(script_steps.COLUMNS, row, strict=True)) for row in script_steps.rows(records)]
    assert computing == pytest.approx(sum(row["computing_s"] for row in told))
