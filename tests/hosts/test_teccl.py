"""TE-CCL's schedules: its own schedules of meshes, and invalid files."""

import json

import numpy as np
import pytest

from analysis.model.max_plus import times
from hosts.collectives import schedule_files
from hosts.collectives.schedule import ScheduleError
from tests.conftest import PROJECT

DATA = PROJECT / "tests" / "data"  # its README names the sources of the files


@pytest.mark.parametrize(("side", "seconds"), [(4, 8.0), (6, 18.0)])
def test_te_ccls_mesh_schedule_is_an_allgather_that_takes_its_stated_time(side: int, seconds: float) -> None:
    path = DATA / f"teccl_mesh_{side}.json"
    found = schedule_files.read(path, kind="allgather", gpus=side * side)
    flows = len(found.flows), 1  # a chunk occupies a link for 1 s, without delay
    took_s = times(found.transfers, np.zeros(flows), np.ones(flows)).arrives_s.max()
    assert took_s == json.loads(path.read_text())["4-Collective_Finish_Time"] == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"7-Flows":' + "[" * 100_000, "not JSON"),
        ('{"7-Flows": 3}', "not a list"),
        ('{"7-Flows": []}', "not a list"),
        ('{"7-Flows": ["Chunk 0 from 1 went away"]}', "went away"),
        ('{"7-Flows": ["Chunk 0 from 5 traveled over 1->2 in epoch 0"]}', "GPU 1 does not have it"),
        ('{"7-Flows": ["Chunk 0 from 1 traveled over 1->1 in epoch 0"]}', "1->1"),
        ('{"7-Flows": ["Chunk 0 from 1 traveled over 1->99999 in epoch 0"]}', "100,000 GPUs"),
        ('{"7-Flows": ["Chunk 99999 from 1 traveled over 1->0 in epoch 0"]}', "200,000 slots"),
        ('{"7-Flows": ["Chunk 0 from 1 traveled over 1->0 in epoch 0"]}', "does not do its allgather"),
    ],
)
def test_an_invalid_te_ccl_file_is_refused_in_one_sentence(tmp_path, text: str, words: str) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=words) as refused:
        schedule_files.read(path, kind="allgather", gpus=2)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)
