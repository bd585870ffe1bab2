"""What ranks record of their steps under `program.gpu`, and what a run makes of it: rows, means and notes, in files."""

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.program import script_steps
from scenarios.program.rank.longhaul_gpu import recording
from scenarios.program.rank.longhaul_gpu.recording import Recorder
from scenarios.program.rank.longhaul_gpu.streams import Device

BEGINNING_NS = 1_000_000


class Rank:
    """A rank that trains: its clock stands still but where it waits."""

    def __init__(self, ranks: int = 2) -> None:
        self.ns = BEGINNING_NS
        self.device = Device(lambda: self.ns, lambda seconds: setattr(self, "ns", self.ns + round(seconds * 1e9)))
        self.recorder = Recorder(ranks)
        self.number = 0

    def kernel(self, us: int, name: str = "aten::mm", flops: float = 0.0) -> None:
        self.recorder.kernel(self.device.current, name, self.device.busy(us / 1e6), flops, flops / 1e12)

    def collective(self, us: int, kind: str = "allreduce", *, ranks: tuple[int, ...] = (0, 1)) -> Any:
        """Begin a collective when the stream has computed what it holds; it takes so long."""
        begun_ns = max(self.ns, self.device.current.end_ns)
        one = self.recorder.begun(
            "0",
            ranks,
            number=self.number,
            kind=kind,
            size_bytes=1000,
            asked_ns=begun_ns,
            begun_ns=begun_ns,
            after=self.device.current.after,
        )
        self.number += 1
        self.recorder.ended(one, begun_ns + us * 1000)
        return one

    def join(self, collective: Any) -> None:
        self.ns = max(self.ns, collective.ended_ns)
        self.device.join((collective.id,))

    def step(self) -> None:
        self.recorder.stepped(self.ns, max(self.ns, self.device.current.end_ns))

    def train(self, steps: int) -> None:
        """Steps of 330 us: kernels of 70 us, one of 30 us beside a collective of 160 us, then one of 60 us, 30 us in
        which nothing runs, and a kernel of 10 us."""
        for _ in range(steps):
            for us in (40, 30):
                self.kernel(us, flops=1e6)
            reduced = self.collective(160)
            self.kernel(30, "aten::add")
            self.join(reduced)
            self.kernel(60)
            self.device.wait(self.device.end_ns)
            self.ns += 30_000
            self.kernel(10)
            self.device.wait(self.device.end_ns)
            self.step()


def left(folder: Path, *ranks: Rank) -> list[script_steps.Records]:
    for number, rank in enumerate(ranks):
        rank.recorder.end(str(folder / f"steps-{number}.json"))
    return script_steps.read(folder, len(ranks), BEGINNING_NS)


def test_a_step_is_told_with_its_parts_and_its_utilisation(tmp_path: Path) -> None:
    rank = Rank()
    rank.train(4)
    (records,) = left(tmp_path, rank)
    rows = [dict(zip(script_steps.COLUMNS, row, strict=True)) for row in script_steps.rows([records])]
    assert [row["step"] for row in rows] == [0, 1, 2]  # the first one has no begin
    # By hand: kernels 40 + 30 + 30 + 60 + 10, a collective of 160 beside 30 of them, idle for 30.
    for row in rows:
        assert row["begin_s"] == pytest.approx(330e-6 * (row["step"] + 1))
        parts = [row[name] for name in ("computing_s", "exposed_s", "waiting_s", "overlap_s", "communication_s")]
        assert parts == pytest.approx([170e-6, 130e-6, 30e-6, 30e-6, 160e-6])
        assert row["step_s"] == pytest.approx(330e-6) == pytest.approx(sum(parts[:3]))
        assert row["flops"] == 2e6 and row["utilisation"] == pytest.approx(2e6 / 1e12 / 330e-6)
    told = [dict(zip(script_steps.EXPOSED_COLUMNS, row, strict=True)) for row in script_steps.exposed_rows([records])]
    assert [(one["number"], one["ranks"], one["kind"]) for one in told] == [(n, "0 1", "allreduce") for n in (1, 2, 3)]
    assert [one["exposed_s"] for one in told] == pytest.approx([130e-6] * 3)


def test_exposed_time_is_told_by_kind_and_by_link_and_the_notes_say_nothing_of_a_whole_run(tmp_path: Path) -> None:
    ranks = Rank(), Rank()
    for rank in ranks:
        rank.train(3)
    ended = [
        {"ranks": (0, 1), "number": 1, "kind": "allreduce", "links": ["a>b", "b>a"]},
        {"ranks": (0, 1), "number": 2, "kind": "allreduce", "links": []},
    ]
    found = script_steps.summary(left(tmp_path, *ranks), 2, ended)
    assert found is not None and (found["steps"], found["ranks"]) == (4, 2)
    assert found["exposed_by_kind"] == pytest.approx({"allreduce": 130e-6})
    assert found["exposed_by_link"] == pytest.approx({"a>b": 65e-6, "b>a": 65e-6, "within sites": 65e-6})
    assert list(script_steps.notes(found)) == []
    (note,) = script_steps.notes(script_steps.summary(left(tmp_path, *ranks), 3, ended))
    assert note.startswith("the run has neither a timeline nor traces of its ranks: some ranks have left no records")
    text = "\n".join(script_steps.table(found))
    assert "exposed across a>b" in text and "0.065000" in text and "exposed in allreduce" in text


def test_a_message_is_communication_of_its_kind_on_no_link(tmp_path: Path) -> None:
    rank = Rank()
    rank.step()
    rank.kernel(10)
    came = rank.recorder.begun(
        "0", (1, 0), number=0, kind="recv", size_bytes=80, asked_ns=rank.ns, begun_ns=rank.ns, after=()
    )
    rank.recorder.ended(came, rank.ns + 50_000)
    rank.ns += 50_000
    rank.step()
    (records,) = left(tmp_path, rank)
    ((step,), (row,)) = records.steps, script_steps.exposed_rows([records])
    assert (step.computing_ns, step.exposed_ns, step.waiting_ns) == (10_000, 40_000, 0)
    assert row[2:6] == ["1 0", 0, "recv", 80]
    found = script_steps.summary([records], 1, ())
    assert found is not None and found["exposed_by_kind"] == {"recv": 40e-6} and found["exposed_by_link"] == {}


def test_a_collective_that_outlasts_a_step_counts_in_both(tmp_path: Path) -> None:
    rank = Rank()
    rank.step()
    rank.kernel(10)
    late = rank.collective(100)
    rank.kernel(20)
    rank.device.wait(rank.device.end_ns)
    rank.step()
    rank.kernel(5)
    rank.join(late)
    rank.kernel(5)
    rank.device.wait(rank.device.end_ns)
    rank.step()
    (records,) = left(tmp_path, rank)
    first, second = records.steps
    assert (first.computing_ns, first.exposed_ns, first.overlap_ns) == (30_000, 0, 20_000)
    assert (second.computing_ns, second.exposed_ns, second.overlap_ns) == (10_000, 75_000, 5_000)
    assert first.waiting_ns == second.waiting_ns == 0


def test_a_step_whose_kernels_the_host_has_issued_ahead_is_split_when_it_is_over(tmp_path: Path) -> None:
    """Without a wait, the host is through before the GPU has begun."""
    rank = Rank()
    for _ in range(3):
        rank.kernel(100)
        rank.step()
    (records,) = left(tmp_path, rank)
    assert [(one.step_ns, one.computing_ns) for one in records.steps] == [(100_000, 100_000)] * 2


def test_what_each_kernel_and_collective_waited_for_is_kept_of_the_last_steps(tmp_path: Path) -> None:
    rank = Rank()
    rank.train(recording.KEPT_STEPS + 3)
    (records,) = left(tmp_path, rank)
    assert [kept.step for kept in records.kept] == [*range(2, recording.KEPT_STEPS + 2)]
    kept = records.kept[0]
    first, second, beside, joined, last = kept.kernels
    (reduced,) = kept.collectives
    assert reduced.after == (second.id,) and beside.after == (second.id,) and second.after == (first.id,)
    assert {*joined.after} == {beside.id, reduced.id} and last.after == (joined.id,)
    assert [one.name for one in kept.kernels] == ["aten::mm", "aten::mm", "aten::add", "aten::mm", "aten::mm"]
    assert (reduced.begun_ns, reduced.ended_ns) == (kept.begin_ns + 70_000, kept.begin_ns + 230_000)


def test_what_follows_a_future_or_another_stream_waits_for_it(tmp_path: Path) -> None:
    """As in DistributedDataParallel, which waits for futures, and with `Stream.wait_stream`."""
    rank = Rank()
    rank.step()
    rank.kernel(10)
    reduced = rank.collective(50)
    rank.ns = reduced.ended_ns
    rank.recorder.settled([reduced.id])
    rank.kernel(10)
    rank.kernel(10)
    main, side = rank.device.current, rank.device.new()
    side.follow(main.end_ns, main.after)
    rank.device.current = side
    rank.kernel(10)
    rank.device.wait(rank.device.end_ns)
    rank.step()
    (records,) = left(tmp_path, rank)
    ((kept,), first) = records.kept, records.kept[0].kernels[0]
    assert [one.stream for one in kept.kernels] == [0, 0, 0, 1]
    second, third, beside = kept.kernels[1:]
    assert {*second.after} == {first.id, reduced.id} and third.after == (second.id,) and beside.after == (third.id,)
    assert beside.begin_ns == third.begin_ns + third.took_ns


def test_what_is_beyond_the_limits_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_STEPS", 5)
    monkeypatch.setattr(recording, "KEPT_KERNELS", 8)  # 4 for each of 2 ranks, and a step has 5
    rank = Rank()
    rank.train(9)
    records = left(tmp_path, rank)
    assert len(records[0].steps) == 5 and records[0].left_out == 3 and records[0].kept == ()
    told = list(script_steps.notes(script_steps.summary(records, 1, ())))
    assert "3 of rank 0" in told[0] and "neither a timeline nor traces" in told[1]


def test_records_of_a_program_without_steps_do_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MAX_PENDING", 100)
    rank = Rank()
    for _ in range(1000):
        rank.kernel(1)
        rank.collective(1)
        rank.ns = rank.device.end_ns + 2_000
    assert len(rank.recorder._busy) <= 100 and len(rank.recorder._collectives) <= 100
    rank.recorder.end(str(tmp_path / "steps-0.json"))
    assert not (tmp_path / "steps-0.json").exists()
    rank.train(4)  # of these, the first cannot be told, as something before it was forgotten
    (records,) = left(tmp_path, rank)
    assert len(records.steps) + records.left_out == 3 and records.steps[-1].exposed_ns == 130_000


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": []}', '{"groups": [[1]], "names": 3}', "1e999", "[" * 9999])
def test_a_file_that_is_no_record_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps-0.json").write_text(text)
    assert script_steps.read(tmp_path, 1, 0) == [] and script_steps.summary([], 1, ()) is None


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("kept", 0, "kernels", 0, 1), 99),
        (("kept", 0, "kernels", 0, 4), -1),
        (("kept", 0, "kernels", 0, 5), float("inf")),
        (("kept", 0, "collectives", 0, 3), "allsum"),
        (("kept", 0, "collectives", 0, 4), -5),
        (("kept", 0, "end_ns"), 0),
        (("steps", 0, 2), 10**400),
        (("steps", 0, 9), float("nan")),
        (("steps", 0, 10, 0, 0), -1),
        (("names",), None),
        (("left_out",), "many"),
    ],
)
def test_a_record_with_what_no_rank_records_is_left_out(tmp_path: Path, where: tuple[Any, ...], value: Any) -> None:
    rank = Rank()
    rank.train(3)
    (records,) = left(tmp_path, rank)
    assert records.kept
    given = json.loads((tmp_path / "steps-0.json").read_text())
    place = given
    for key in where[:-1]:
        place = place[key]
    assert place[where[-1]] is not None
    place[where[-1]] = value
    (tmp_path / "steps-0.json").write_text(json.dumps(given))
    assert script_steps.read(tmp_path, 1, 0) == []


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank()
    rank.train(2)
    rank.recorder.end(str(tmp_path / "missing" / "steps-0.json"))
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
