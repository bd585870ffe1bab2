"""Notes on collectives that are due more often than they can end."""

from pathlib import Path

import pytest

from scenarios.spec.notes import notes_on
from tests.fakes.commands import scenario
from tests.fakes.runs import answer

SLOW = {"conditions.wan_rate": "1 Gbit/s", "conditions.wan_delay": "5 ms", "conditions.intra_delay": "1 us"}
TAKES_MS = 5 + 8  # 1 MB at 1 Gbit/s, and the delay


def told(**values: object) -> list[str]:
    configs = scenario(**SLOW, fabric__gpus=4, run__modes=["base"], **values).configurations()
    return [note for note in notes_on(configs, emulates=False) if " every " in f" {note}"]


@pytest.mark.parametrize(("every", "is_told"), [("12.9 ms", True), ("13.1 ms", False)])
def test_a_job_that_is_due_before_it_can_end_is_told_once(every: str, is_told: bool) -> None:
    """Alone it would take 13 ms; its class and the other job change nothing of that."""
    job = {"name": "infer", "kind": "allgather", "chunk": "1 MB", "ranks": [0, 2], "count": 5, "every": every}
    other = {"name": "train", "kind": "allreduce", "size": "40 MB", "count": 2}
    both = [{**job, "class": "gold"}, other]
    found = told(**{"sweep.job": [[job], both, [other]], "class": [{"name": "gold", "priority": 0}]})
    said = f"job infer: one AllGather is due every {every}, but takes about {TAKES_MS} ms (model"
    assert [note.startswith(said) for note in found] == [True] * is_told
    assert told(job=[{**job, "count": 1}]) == []


@pytest.mark.parametrize(("interval", "is_told"), [("12.9 ms", True), ("13.1 ms", False)])
def test_collectives_that_begin_before_the_one_before_has_ended_are_told(interval: str, is_told: bool) -> None:
    """Conditions may change while a collective runs; only the next collective is not to begin meanwhile, unsaid."""
    job = {"name": "only", "kind": "allgather", "chunk": "1 MB", "ranks": [0, 2]}
    keys = {"conditions.every": "1 ms", "conditions.interval": interval, "job": [job]}
    (found,) = told(**keys) or [""]
    assert found.startswith(f"every {interval} a collective begins that takes about {TAKES_MS} ms") == is_told
    assert is_told or not found


@pytest.mark.parametrize(("interval", "is_told"), [("10 ms", True), ("20 ms", False)])
def test_the_answer_says_itself_that_collectives_by_the_clock_overlap(
    interval: str, is_told: bool, tmp_path: Path
) -> None:
    sets = [f'{key}="{value}"' for key, value in SLOW.items()]
    sets += ["fabric.gpus=2", "collective.pieces=1", 'conditions.every="1 ms"', f'conditions.interval="{interval}"']
    asked = ("--modes", "base", "--chunk", "1 MB", "--collectives", "5", "--engine", "model")
    said = answer(tmp_path / "run", *asked, sets=sets)["answer"]
    assert (f"Every {interval} a collective begins that takes about {TAKES_MS} ms" in said) == is_told


@pytest.mark.parametrize("every", ["119 ms", "10 s"])
def test_training_that_is_due_before_its_computing_ends_is_told(every: str) -> None:
    """Four micro-batches of 30 ms at each GPU take 120 ms, and a pipeline is not shorter."""
    keys = {"training.micro_batches": 4, "training.forward": "10 ms", "training.backward": "20 ms"}
    found = told(**keys, job=[{"name": "train", "kind": "training", "count": 2, "every": every}])
    assert [float(note.split(" about ")[1].split(" ms")[0].replace(",", "")) > 120 for note in found] == (
        [True] if every == "119 ms" else []
    )
