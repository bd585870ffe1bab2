"""Training that sums its gradients once in several iterations: what the command calls its collectives."""

import re
from pathlib import Path

import pytest

from tests.fakes.runs import answer, ended

TRAINING = """
[fabric]
gpus = 2
[conditions]
intra_rate = "200 Gbit/s"
wan_rate = "8 Gbit/s"
[collective]
count = {count}
[run]
modes = ["base"]
[training]
replicas = 2
across = "data"
micro_batches = 1
forward = "300 ms"
backward = "700 ms"
gradient_size = "1 GB"
bits = 16
every = {every}
"""
SWEEP = '[sweep]\nconditions.wan_delay = ["10 ms", "50 ms"]\n'


@pytest.mark.parametrize(
    ("count", "every", "name"),
    [
        (1, 1, "1 iteration each"),
        (3, 1, "3 iterations each"),
        (1, 100, "1 round of 100 iterations each"),
        (2, 100, "2 rounds of 100 iterations each"),
    ],
)
def test_a_collective_of_training_is_an_iteration_or_a_round_of_several(tmp_path, count, every, name):
    (tmp_path / "train.toml").write_text(TRAINING.format(count=count, every=every) + SWEEP)
    found = answer(tmp_path / "results", "train.toml", "--engine", "model")
    assert f" compared over {name} (timing model) in base, 2 GPUs, " in found["answer"]
    assert "1 stage x 1 micro-batch, 2 replicas" in found["answer"]


def test_rounds_of_different_lengths_are_different_work(tmp_path):
    """A round of 10 computes for 10 s, and one iteration for 1 s: it takes longer, and less by iteration."""
    sweep = "[sweep]\ntraining.every = [1, 10]\n"
    (tmp_path / "train.toml").write_text(TRAINING.replace("every = {every}\n", "").format(count=2) + sweep)
    found = answer(tmp_path / "results", "train.toml", "--engine", "model")
    short_s, long_s = (point["mean_s"] for point in found["points"])
    assert short_s > 1 and long_s > 10 and long_s / 10 < short_s
    assert "over 2 collectives each" in found["answer"]
    assert "fastest" not in found["answer"] and f"{long_s * 1e3:,.0f} ms at every 10" in found["answer"]


def test_the_mean_time_of_an_iteration_tells_in_which_round(tmp_path):
    (tmp_path / "train.toml").write_text(TRAINING.format(count=1, every=10))
    said, _ = ended("train.toml", "--engine", "model", "--no-report", "--out", tmp_path / "run", cwd=tmp_path)
    mean_s, iteration_s = (
        float(re.search(pattern, said)[1].replace(",", ""))
        for pattern in (r"a mean of ([\d,]+) ms", r"base: ([\d,.]+) ms on average in a round of 10, bubble")
    )
    assert iteration_s == pytest.approx(mean_s / 10, abs=0.06)


def test_the_table_tells_of_which_job_no_lower_bound_is_known(tmp_path: Path) -> None:
    path = tmp_path / "rounds.toml"
    path.write_text(
        "[collective]\ncount=2\npieces=1\n[run]\nmodes=['base']\n[sweep]\n"
        "job=[[{kind='training', ranks=[0, 1, 4, 5]}], [{kind='allgather', ranks=[2, 3, 6, 7]}]]\n"
    )
    shown, _ = ended(path, "--engine", "model", "--out", "run", "--no-report", cwd=tmp_path)
    assert "none is known for the kind training" in shown and "for the kind allgather" not in shown
