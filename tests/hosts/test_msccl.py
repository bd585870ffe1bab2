"""MSCCL's XML: programs of msccl-tools are read, do their collective, and stay the same when written and read back;
programs that messages cannot express are proven step by step, and an interpreter of steps agrees."""

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.max_plus import times
from hosts.collectives import msccl, schedule_files
from hosts.collectives.kinds import ROOTED, schedule
from hosts.collectives.schedule import Flow, Schedule, ScheduleError
from tests.conftest import PROJECT
from tests.fakes.msccl_programs import (
    alltoall_in_place,
    always_right,
    exchange,
    one_pass,
    pass_on,
    ring_with_copies,
)
from tests.hosts.test_schedules import CASES, carried_out

DATA = PROJECT / "tests" / "data" / "msccl"  # the README above it names the sources of the files

# Kind, GPUs and messages. A ring and allpairs of n GPUs send 2 n (n-1) messages. With two nodes of two GPUs, each node
# has two rings of two GPUs for either half of the buffer (2 x 2 x 2 x 2 messages); across nodes there are 2 x 2 x 2.
PROGRAMS = {
    "allreduce_ring": ("allreduce", 4, 24),
    "allreduce_allpairs": ("allreduce", 4, 24),
    "allreduce_hierarchical": ("allreduce", 4, 24),
    "allreduce_recursive_doubling_halving": ("allreduce", 4, 16),
    "allgather_ring": ("allgather", 4, 24),
    "alltoall_allpairs": ("alltoall", 4, 12),
    "alltoall_two_step": ("alltoall", 4, 12),
    "alltoall_three_step": ("alltoall", 4, 12),
}


def same(a: Schedule, b: Schedule) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in ("places", "slots", "scratch", "flows", "transfers"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_msccl_tools_does_its_collective_and_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    kind, gpus, messages = PROGRAMS[name]
    found = schedule_files.read(DATA / f"{name}.xml", kind=kind, gpus=gpus)
    assert len(found.transfers) == messages
    for seed in range(10):
        carried_out(found, kind, (gpus,), seed)
    path = tmp_path / "again.xml"
    path.write_text(msccl.text(found, kind=kind, placement=range(gpus)))
    assert same(schedule_files.read(path, kind=kind, gpus=gpus), found)


@pytest.mark.parametrize(("kind", "algorithm"), [case for case in CASES if case[0] in msccl.KINDS.values()])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_schedule_written_as_msccl_xml_is_read_back_equivalent(
    kind: str, algorithm: str, data: st.DataObject
) -> None:
    sites = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    channels = data.draw(st.integers(1, 3)) if algorithm == "ring" else 1
    found = schedule(kind, algorithm, sites=sites, channels=channels, pieces=data.draw(st.integers(1, 3)))
    n = found.places
    placement = data.draw(st.permutations(range(1, n)).map(lambda rest: [0, *rest]))
    if kind not in ROOTED:
        placement = data.draw(st.permutations(placement))
    read_kind, again = msccl.read(Path("it"), msccl.text(found, kind=kind, placement=placement))
    assert (read_kind, again.slots) == (kind, found.slots)
    # Independent of the writer: the same messages between the ranks, at the same positions on their flows.
    assert sorted(described(again)) == sorted(described(found, placement))
    assert same(msccl.canonical(again), again)
    carried_out(again, kind, sites, data.draw(st.integers(0, 99)))
    in_order = msccl.text(again, kind=kind, placement=range(n))
    assert same(msccl.read(Path("it"), in_order)[1], again)


def described(found: Schedule, placement: list[int] | None = None) -> list[object]:
    """Return every message as its ranks, channel and position on its flow, with its dependencies in the same form."""
    ranks = placement or range(found.places)
    counts: dict[int, int] = {}
    names = []
    for transfer in found.transfers:
        flow = found.flows[transfer.flow]
        assert isinstance(flow, Flow)
        counts[transfer.flow] = counts.get(transfer.flow, 0) + 1
        names.append((ranks[flow.src], ranks[flow.dst], flow.channel, counts[transfer.flow]))
    return [
        (names[index], len(transfer.slots), transfer.adds, sorted(names[one] for one in transfer.after))
        for index, transfer in enumerate(found.transfers)
    ]


def test_the_written_xml_has_the_form_that_msccl_reads() -> None:
    found = schedule("alltoall", "direct", sites=(2, 1))
    root = ElementTree.fromstring(msccl.text(found, kind="alltoall", placement=[2, 0, 1]))
    assert {key: root.get(key) for key in ("ngpus", "coll", "nchunksperloop", "inplace")} == {
        "ngpus": "3", "coll": "alltoall", "nchunksperloop": "3", "inplace": "0"
    }  # fmt: skip
    for gpu in root:
        assert (gpu.get("i_chunks"), gpu.get("o_chunks"), gpu.get("s_chunks")) == ("3", "3", "0")
        assert [block.get("id") for block in gpu] == [str(number) for number in range(len(gpu))]
        steps = [step for block in gpu for step in block]
        assert sorted(step.get("type") for step in steps) == ["cpy", "r", "r", "s", "s"]
        rank = int(gpu.get("id"))
        (own,) = (step for step in steps if step.get("type") == "cpy")
        assert (own.get("srcbuf"), own.get("srcoff"), own.get("dstbuf"), own.get("dstoff")) == (
            "i", str(rank), "o", str(rank)
        )  # fmt: skip
        for block in gpu:
            for step in block:
                if step.get("type") == "s":  # chunk q of rank p's input goes to chunk p of rank q's output
                    assert step.get("srcoff") == block.get("send") and step.get("dstoff") == str(rank)


RING = (DATA / "allreduce_ring.xml").read_text()
ALLPAIRS = (DATA / "allreduce_allpairs.xml").read_text()


def swapped(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<", "not XML"),
        ("<algo/>", "coll is ''"),
        ("<a>" * 100_000, "not allowed here"),
        (swapped(RING, "<gpu", "<gpu id='0'><gpu"), "line 2: the element 'gpu' is not allowed here"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + RING, "line 1: it has a document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd">' + RING, "document type"),
        (swapped(RING, 'name="', 'name="&x;'), "undefined entity"),
        (swapped(RING, 'coll="allreduce"', 'coll="custom"'), "'custom', .* its writer knows; .* the kind messages"),
        (swapped(RING, 'coll="allreduce"', 'coll="sum"'), "coll is 'sum'; allowed: allgather"),
        (swapped(RING, 'ngpus="4"', 'ngpus="5"'), "4 GPUs with ngpus 5"),
        (swapped(RING, 'ngpus="4"', 'ngpus="1000000"'), "1,000,000"),
        (swapped(RING, 'nchunksperloop="4"', 'nchunksperloop="999999999"'), "999,999,999 slots"),
        (swapped(RING, 'srcoff="', 'srcoff="9'), "i 90 of GPU 0 is outside its buffer"),
        (swapped(RING, 'type="s"', 'type="q"'), "of the type 'q'"),
        (swapped(RING, 'chan="0"', 'chan="64"'), "chan is 64"),
        (swapped(RING, 'type="rrs"', 'type="rcs"'), "does not do its allreduce: chunk 3 of GPU 0's buffer ends with 3"),
        (re.sub(r'type="s".*?/>', 'type="nop" cnt="0"/>', RING, count=1), "is not sent at the other end"),
        (swapped(ALLPAIRS, 'cnt="4"', 'cnt="3"'), "it receives 4 chunks, but GPU 0 sends 3"),
        (swapped(ALLPAIRS, 'depid="2" deps="1"', 'depid="77" deps="1"'), "step 1 of threadblock 77"),
        (swapped(ALLPAIRS, 'type="re" srcbuf="s"', 'type="re" srcbuf="i"'), "adds a contribution to a sum that has it"),
        (swapped(RING, "<tb", '<copy i_off="-1" o_off="0"/><tb'), "a copy from i -1 to o 0; allowed: offsets of 0"),
        (one_pass(4, waits=False).text, r"adds to chunk 0 of GPU 0 without waiting for the step on line \d+, which"),
        (exchange(2, waits=False).text, r"adds to chunk 0 of GPU 0 without waiting for the step on line \d+, which"),
        (pass_on(3, coll="allreduce").text, "does not do its allreduce: .* with 0 contributions, .* the 3 required"),
    ],
)  # fmt: skip
def test_an_invalid_msccl_file_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=words) as refused:
        msccl.read(Path("a.xml"), text)
    assert str(refused.value).startswith("a.xml")
    assert "\n" not in str(refused.value)


def test_threadblocks_that_deadlock_are_refused_with_the_line() -> None:
    def gpu(number: int) -> str:
        step = 'srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"'
        return (
            f'<gpu id="{number}"><tb id="0" send="{1 - number}" recv="{1 - number}" chan="0">\n'
            f'<step s="0" type="r" {step}/>\n<step s="1" type="s" {step}/></tb></gpu>\n'
        )

    text = f'<algo nchunksperloop="1" ngpus="2" coll="allreduce">\n{gpu(0)}{gpu(1)}</algo>'
    with pytest.raises(ScheduleError, match=r"^a.xml, line [34567]: a step [rs] waits for itself"):
        msccl.read(Path("a.xml"), text)


def test_a_schedule_that_msccl_xml_cannot_express_is_refused() -> None:
    found = schedule("allgather", "ring", sites=(2, 2))
    with pytest.raises(ScheduleError, match=r"\[0, 0, 1, 2\]"):
        msccl.text(found, kind="allgather", placement=[0, 0, 1, 2])
    with pytest.raises(ScheduleError, match="messages"):
        msccl.text(found, kind="messages", placement=range(4))


CORPUS = {
    "one pass, in place": one_pass(4),
    "one pass, out of place": one_pass(3, in_place=False),
    "two rounds of partial sums": exchange(2),
    "three rounds of partial sums": exchange(3),
    "a ring in place with copies": ring_with_copies(4, in_place=True),
    "a ring out of place with copies": ring_with_copies(4, in_place=False),
    "an AlltoAll in place": alltoall_in_place(3),
    "a custom collective": pass_on(3),
    "an AllReduce that is none": pass_on(3, coll="allreduce"),
    "a race": one_pass(4, waits=False),
}
READ = {"as a collective": 7, "as messages": 10}
WITHOUT_CONTENTS = "its steps are proven to do its allreduce, but its messages are carried without contents"


def test_7_of_10_programs_of_the_writers_forms_are_read_as_collectives_and_all_as_messages() -> None:
    read = dict.fromkeys(READ, 0)
    for name, program in CORPUS.items():
        _, messages = msccl.read(Path("a.xml"), program.text, as_messages=True, chunk_bytes=1000)
        read["as messages"] += 1
        assert "is not proven" in messages.notes[0], name
        try:
            kind, found = msccl.read(Path("a.xml"), program.text)
        except ScheduleError as refused:
            assert "the kind messages" in str(refused), name  # each refusal names the way to run it
            if program.root.get("coll") != "custom":
                assert not always_right(program.text, range(30)), name
            continue
        read["as a collective"] += 1
        assert always_right(program.text, range(30)), name
        if found.notes:
            assert found.notes[0].startswith(WITHOUT_CONTENTS)
        else:
            carried_out(found, kind, (found.places,), 1)
        sent = [len(one.slots) or one.size for one in found.transfers]
        assert sorted(1000 * one for one in sent) == sorted(one.size for one in messages.transfers), name
    assert read == READ


def test_the_one_pass_program_of_msccl_tools_takes_one_exchange() -> None:
    found = schedule_files.read(DATA / "allreduce_1step.xml", kind="allreduce", gpus=4)
    assert found.notes == (
        f"allreduce_1step.xml: {WITHOUT_CONTENTS}: a GPU adds or copies data later than it arrives, "
        "which only the steps say",
    )
    assert {one.after for one in found.transfers} == {()} and len(found.transfers) == 12
    flows = len(found.flows), 1
    # Every GPU sends its whole buffer of 4 chunks to each other GPU at once: 4 s at 1 s per chunk, and the delay.
    assert times(found.transfers, np.full(flows, 0.5), np.ones(flows)).arrives_s.max() == 4.5


def test_partial_sums_are_sent_after_the_message_that_completes_them() -> None:
    _, found = msccl.read(Path("a.xml"), exchange(3).text)
    flows = len(found.flows), 1
    assert times(found.transfers, np.full(flows, 0.5), np.ones(flows)).arrives_s.max() == 3 * 1.5


def test_a_custom_program_is_carried_as_messages_in_the_order_of_its_steps() -> None:
    kind, found = msccl.read(Path("a.xml"), pass_on(3).text, as_messages=True, chunk_bytes=50)
    assert kind == "messages" and found.flows == (Flow(0, 1), Flow(1, 2))
    assert [(one.size, one.after) for one in found.transfers] == [(100, ()), (100, (0,))]
    assert found.notes == ("its messages carry no contents, and what they do (coll 'custom') is not proven",)


def test_a_program_of_too_many_steps_is_not_proven_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msccl, "MAX_PROVEN_STEPS", 10)
    with pytest.raises(ScheduleError, match=r"a\.xml: it has 36 steps, too many to prove, .* or the kind messages"):
        msccl.read(Path("a.xml"), one_pass(4).text)


def test_a_declared_encoding_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    text = RING.replace('name="', 'name="Z\u00fcrich ')
    for content in (
        b"\xef\xbb\xbf" + text.encode(),
        b"<?xml version='1.0' encoding='ISO-8859-1'?>" + text.encode("latin-1"),
        text.replace("\n", "\r\n").encode("utf-16"),
    ):
        path.write_bytes(content)
        assert schedule_files.read(path, kind="allreduce", gpus=4).slots == 4


def test_a_randomly_changed_program_is_refused_or_still_does_its_collective() -> None:
    rng = random.Random(5)
    refused = without_contents = 0
    texts = [(DATA / f"{name}.xml").read_text() for name in ("allreduce_ring", "allreduce_allpairs")]
    texts += [one_pass(3).text, exchange(2).text, (DATA / "allreduce_hierarchical.xml").read_text()]
    for _ in range(600):
        text = rng.choice(texts)
        numbers = list(re.finditer(r'(?:off|cnt|deps|depid)="(\d+)', text))
        chosen = rng.choice(numbers)
        text = text[: chosen.start(1)] + str(rng.randrange(6)) + text[chosen.end(1) :]
        try:
            kind, found = msccl.read(Path("a.xml"), text)
        except ScheduleError:
            refused += 1
            continue
        if found.notes:
            without_contents += 1
            assert always_right(text, range(10))
        else:
            carried_out(found, kind, (found.places,), 1)
    assert 100 < refused < 500 and without_contents > 20
