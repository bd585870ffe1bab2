"""MSCCL's XML: programs of msccl-tools are read, do their collective, and stay the same when written and read back."""

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.collectives import msccl, schedule_files
from hosts.collectives.kinds import ROOTED, schedule
from hosts.collectives.schedule import Flow, Schedule, ScheduleError
from tests.conftest import PROJECT
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


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
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
        (swapped(RING, 'coll="allreduce"', 'coll="custom"'), "coll is 'custom'; allowed: allgather"),
        (swapped(RING, 'ngpus="4"', 'ngpus="5"'), "4 GPUs with ngpus 5"),
        (swapped(RING, 'ngpus="4"', 'ngpus="1000000"'), "1,000,000"),
        (swapped(RING, 'nchunksperloop="4"', 'nchunksperloop="999999999"'), "999,999,999 slots"),
        (swapped(RING, 'srcoff="', 'srcoff="9'), "is empty here"),
        (swapped(RING, 'type="s"', 'type="q"'), "of the type 'q'"),
        (swapped(RING, 'chan="0"', 'chan="64"'), "chan is 64"),
        (swapped(RING, 'type="rrs"', 'type="rcs"'), "it does not do its allreduce: "),
        (re.sub(r'type="s".*?/>', 'type="nop" cnt="0"/>', RING, count=1), "is not sent at the other end"),
        (swapped(ALLPAIRS, 'cnt="4"', 'cnt="3"'), "it receives 4 chunks, but GPU 0 sends 3"),
        (swapped(ALLPAIRS, 'depid="2" deps="1"', 'depid="77" deps="1"'), "step 1 of threadblock 77"),
        (swapped(ALLPAIRS, 'type="re" srcbuf="s"', 'type="re" srcbuf="i"'), "are both in the buffer already"),
        # This program keeps in scratch what would have to be added while the chunk is still being sent.
        ((DATA / "allreduce_1step.xml").read_text(), "read as messages, .* it does not do its allreduce"),
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


def test_a_randomly_changed_program_is_refused_or_still_does_its_collective() -> None:
    rng = random.Random(5)
    refused = 0
    for _ in range(400):
        name = rng.choice(["allreduce_ring", "allreduce_allpairs", "allreduce_hierarchical"])
        text = (DATA / f"{name}.xml").read_text()
        numbers = list(re.finditer(r'(?:off|cnt|deps|depid)="(\d+)', text))
        chosen = rng.choice(numbers)
        text = text[: chosen.start(1)] + str(rng.randrange(6)) + text[chosen.end(1) :]
        try:
            kind, found = msccl.read(Path("a.xml"), text)
        except ScheduleError:
            refused += 1
            continue
        carried_out(found, kind, (found.places,), 1)
    assert 100 < refused < 400
