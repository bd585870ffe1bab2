"""TE-CCL's schedules: its own for a 4 x 4 mesh, and files that are none."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.model.max_plus import times
from hosts.collectives import teccl
from hosts.collectives.kinds import contents
from hosts.collectives.schedule import ScheduleError, prove

# From teccl/examples/schedules of github.com/microsoft/TE-CCL (MIT licence, copyright Microsoft Corporation).
MESH = Path(__file__).with_name("teccl_mesh_4.json")


def test_its_schedule_of_a_mesh_is_an_allgather_that_takes_as_long_as_it_says() -> None:
    found = teccl.read(MESH)
    prove(found, *contents("allgather", places=16, slots=16))
    flows = len(found.flows), 1  # a chunk takes a link for a second, without delay
    took_s = times(found.transfers, np.zeros(flows), np.ones(flows)).arrives_s.max()
    assert took_s == json.loads(MESH.read_text())["4-Collective_Finish_Time"] == 8.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"7-Flows": 3}', "not a list"),
        ('{"7-Flows": []}', "not a list"),
        ('{"7-Flows": ["Chunk 0 from 1 went away"]}', "went away"),
        ('{"7-Flows": ["Chunk 0 from 5 traveled over 1->2 in epoch 0"]}', "GPU 1 does not have it"),
        ('{"7-Flows": ["Chunk 0 from 1 traveled over 1->1 in epoch 0"]}', "1->1"),
        ('{"7-Flows": ["Chunk 0 from 1 traveled over 1->99999 in epoch 0"]}', "100000 GPUs"),
        ('{"7-Flows": ["Chunk 99999 from 1 traveled over 1->0 in epoch 0"]}', "100000 chunks"),
    ],
)
def test_a_file_that_is_none_is_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=words) as refused:
        teccl.read(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="No such file"):
        teccl.read(tmp_path / "none.json")
