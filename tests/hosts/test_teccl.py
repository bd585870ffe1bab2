"""TE-CCL's schedules: its own schedules of meshes, files in all forms that it writes, and invalid files."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from analysis.model.max_plus import times
from hosts.collectives import schedule_files, teccl
from hosts.collectives.schedule import Flow, Schedule, ScheduleError
from tests.conftest import PROJECT
from tests.fakes.teccl_outputs import Graph, allgather, alltoall
from tests.hosts.test_schedules import carried_out

DATA = PROJECT / "tests" / "data"  # its README names the sources of the files


def last_s(found: Schedule) -> float:
    """Return when the last chunk arrives if it occupies each flow for 1 s, without delay."""
    flows = len(found.flows), 1
    return float(times(found.transfers, np.zeros(flows), np.ones(flows)).arrives_s.max())


@pytest.mark.parametrize(("side", "seconds"), [(4, 8.0), (6, 18.0)])
def test_te_ccls_mesh_schedule_is_an_allgather_that_takes_its_stated_time(side: int, seconds: float) -> None:
    path = DATA / f"teccl_mesh_{side}.json"
    found = schedule_files.read(path, kind="allgather", gpus=side * side)
    assert last_s(found) == json.loads(path.read_text())["4-Collective_Finish_Time"] == seconds
    assert found.notes == ()


def star(gpus: range, switch: int) -> Graph:
    return {switch: list(gpus)} | {gpu: [switch] for gpu in gpus}


RING: Graph = {0: [1, 3], 1: [0, 2], 2: [1, 3], 3: [2, 0]}
# Two chassis: switches 0 and 5; GPU 1 and GPU 6 join them.
CHASSIS: Graph = {0: [1, 2, 3], 5: [6, 7], 1: [0, 6], 2: [0], 3: [0], 6: [5, 1], 7: [5]}
BEHIND: Graph = {0: [1, 2, 9], 9: [0, 3], 1: [0], 2: [0], 3: [9]}  # two switches in a row

# Kind, GPUs, messages, and the text.
CORPUS: dict[str, tuple[str, int, int, str]] = {
    "a ring": ("allgather", 4, 12, allgather(RING)),
    "several chunks": ("allgather", 4, 24, allgather(RING, chunks=2)),
    "a switch": ("allgather", 4, 12, allgather(star(range(1, 5), 0), [0])),
    "two switches and GPUs in between": ("allgather", 5, 20, allgather(CHASSIS, [0, 5])),
    "two switches in a row": ("allgather", 3, 6, allgather(BEHIND, [0, 9])),
    "A*, with a switch as a node": ("allgather", 4, 12, allgather(star(range(1, 5), 0), [0], hop_by_hop=True)),
    "A*, with two switches": ("allgather", 5, 20, allgather(CHASSIS, [0, 5], hop_by_hop=True)),
    "an AlltoAll": ("alltoall", 4, 12, alltoall(star(range(1, 5), 0), [0])),
    "an AlltoAll over GPUs": ("alltoall", 4, 16, alltoall(RING)),
    "an AlltoAll in the older keys": ("alltoall", 4, 16, alltoall(RING, older=True)),
    "fractions": ("alltoall", 4, 48, alltoall(RING, volumes=(0.25, 0.25, 0.5))),
    "fractions over chassis": ("alltoall", 5, 68, alltoall(CHASSIS, [0, 5], volumes=(0.2, 0.8))),
    "rounded fractions": ("alltoall", 3, 12, alltoall(BEHIND, [0, 9], volumes=(0.123457, 0.876543))),
}


def test_13_of_13_outputs_in_te_ccls_forms_are_read_and_do_their_collective(tmp_path: Path) -> None:
    path, read = tmp_path / "a.json", 0
    for name, (kind, gpus, messages, text) in CORPUS.items():
        path.write_text(text)
        found = schedule_files.read(path, kind=kind, gpus=gpus)
        assert (found.places, len(found.transfers)) == (gpus, messages), name
        carried_out(found, kind, (gpus,), read)
        read += 1
    assert read == len(CORPUS) == 13


def test_nodes_with_gaps_become_gpus_in_order_and_switches_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(CORPUS["two switches and GPUs in between"][3])
    found = schedule_files.read(path, kind="allgather", gpus=5)
    assert found.notes == (
        "a.json: the file's switches 0, 5 are left out, as the fabric has its own; of its epochs only the order counts",
        "a.json: GPUs are numbered without gaps: the file's node 1 is GPU 0, 2 is GPU 1, 3 is GPU 2 and 2 more",
    )
    flows = {(flow.src, flow.dst) for flow in found.flows if isinstance(flow, Flow)}
    # Within a chassis all GPUs send to each other over the switch; between them only the nodes 1 and 6 do.
    inside = {(a, b) for part in ((0, 1, 2), (3, 4)) for a in part for b in part if a != b}
    assert flows == inside | {(0, 3), (3, 0)}


def test_chunks_that_come_twice_are_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    text = json.loads(allgather(RING))
    text["7-Flows"].append("Chunk 0 from 0 traveled over 0->1 in epoch 7")
    path.write_text(json.dumps(text))
    found = schedule_files.read(path, kind="allgather", gpus=4)
    assert len(found.transfers) == 12
    assert found.notes == (
        "a.json: 1 of the file's flows are left out: they bring a chunk to a GPU that has it already",
    )


def test_the_parts_of_an_alltoalls_chunk_are_its_volumes(tmp_path: Path) -> None:
    _, found = teccl.read(tmp_path, CORPUS["fractions"][3])
    assert found.notes == () and found.slots - found.scratch == 2 * 4 * 4  # quarters
    assert Counter(len(one.slots) for one in found.transfers) == {1: 32, 2: 16}


def test_volumes_that_are_no_simple_fractions_are_rounded_and_told(tmp_path: Path) -> None:
    _, found = teccl.read(tmp_path, CORPUS["rounded fractions"][3])
    parts = (found.slots - found.scratch) // (2 * 3)
    taken = sorted({len(one.slots) for one in found.transfers})
    # 10/81 = 0.12346 is out of reach of 64 parts; 7/57 = 0.12281 is within 0.001.
    assert sum(taken) == parts <= teccl.MAX_PARTS and abs(taken[0] / parts - 0.123457) <= 0.001
    assert not any("rounded" in note for note in found.notes)
    _, found = teccl.read(tmp_path, alltoall(RING, volumes=(0.97, 0.02, 0.01)))
    assert re.fullmatch(r"the volumes .* rounded to 1/\d+ of a chunk, by up to 0\.0\d+ of a chunk", found.notes[0])
    (tmp_path / "a.json").write_text(alltoall(RING, volumes=(0.97, 0.02, 0.01)))
    carried_out(schedule_files.read(tmp_path / "a.json", kind="alltoall", gpus=4), "alltoall", (4,), 3)


def lines(*flows: str, **more: object) -> str:
    """Return an output with these flows between two GPUs, after those that make GPU 0 and 1 sources."""
    whole = ["0 from 1 traveled over 1->0 in epoch 0", "0 from 0 traveled over 0->1 in epoch 0", *flows]
    return json.dumps({"7-Flows": [f"Chunk {flow}" for flow in whole]} | more)


DEMANDS = "8-Chunk paths"
THERE = "1 from 0 traveled over 0->1 with volume 1.0 in epoch 0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"7-Flows":' + "[" * 100_000, "not JSON"),
        ('{"7-Flows": 3}', "not a list"),
        ('{"7-Flows": []}', "not a list"),
        ('{"Flows": []}', 'not JSON with a list "7-Flows", as TE-CCL writes its schedules'),
        ('{"7-Flows": ["Chunk 0 from 1 went away"]}', "went away"),
        ('{"7-Flows": ["Chunk 0 from 1 traveled over 1->0 in epoch 0"]}', "1 of its nodes send a chunk of their own"),
        (lines("0 from 0 traveled over 2->1 in epoch 0"), "2->1 in epoch 0, and 2 does not have it by then"),
        (lines("0 from 1 traveled over 1->1 in epoch 0"), "1->1"),
        (lines("99999 from 1 traveled over 1->0 in epoch 0"), "200,000 slots"),
        (lines("1 from 1 traveled over 1->0 in epoch 0"), "does not do its allgather"),
        (lines(THERE), 'an AlltoAll without "8-Chunk paths", which say which fraction of a chunk takes which path'),
        (lines(THERE, **{DEMANDS: {"a": []}}), "'a' is not a demand; allowed: 'Demand at D for chunk C from S met"),
        (
            lines(THERE, **{DEMANDS: {"Demand at 1 for chunk 1 from 0 met by epoch 0": [[[0, "0->1"]]]}}),
            "'0->1' of 'Demand at 1 .*' is not a hop; allowed: 'I->J with volume V in epoch E'",
        ),
        (
            lines(THERE, **{DEMANDS: {"Demand at 1 for chunk 1 from 0 met by epoch 0": [[[0, "1->0 in epoch 3"]]]}}),
            "has the path 1->0 in epoch 3; allowed: from its source over other GPUs to its destination",
        ),
        (
            lines(THERE, **{DEMANDS: {"Demand at 1 for chunk 1 from 0 met by epoch 0": [[[0, "0->1 in epoch 3"]]]}}),
            "it has chunks for 1 pairs of 2 GPUs; allowed: equally many for each of the 2 pairs",
        ),
        (
            lines(THERE, **{DEMANDS: {"Demand at 1 for chunk 1 from 0 met by epoch 0": [[]]}}),
            "has the path without hops",
        ),
    ],
)
def test_an_invalid_te_ccl_file_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=words) as refused:
        schedule_files.read(path, kind="allgather", gpus=2)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)
