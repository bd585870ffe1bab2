"""Where means keep a time budget, in the sentence of a run."""

import pytest

from analysis.statistics.budget_words import Kept, budget_sentence
from analysis.statistics.contests import Value


def kept(*at, mode="base", fitting, mean_ms, of=500, budget_s=0.15):
    is_kept = mean_ms <= budget_s * 1e3
    return Kept(at=at, mode=mode, budget_s=budget_s, is_kept=is_kept, fitting=fitting, collectives=of)


def gpus(number):
    return Value("fabric.gpus", f"{number} GPUs", number)


def algorithm(name):
    return Value("collective.algorithm", name)


RING = [
    kept(gpus(8), fitting=398, mean_ms=116), kept(gpus(16), fitting=277, mean_ms=142),
    kept(gpus(32), fitting=142, mean_ms=164),
]  # fmt: skip


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], ""),
        (RING, "up to 16 GPUs (277 of 500 collectives do), and not from 32 GPUs on (142 of 500 collectives do)"),
        (RING[::-1], "up to 16 GPUs (277 of 500 collectives do), and not from 32 GPUs on (142 of 500 collectives do)"),
        (RING[:2], "throughout, at 16 GPUs with the fewest (277 of 500 collectives do)"),
        ([kept(fitting=1, of=1, mean_ms=100)], "at base"),
        (
            [kept(fitting=500, mean_ms=100), kept(mode="joint", fitting=3, mean_ms=170)],
            "at base, not at joint (3 of 500 collectives do)",
        ),
        (
            [
                kept(gpus(n), algorithm(name), fitting=500 * (n * late < 20), mean_ms=100 if n * late < 20 else 200)
                for n in (8, 16)
                for name, late in (("ring", 2), ("mesh", 1))
            ],
            "at ring: up to 8 GPUs, and not from 16 GPUs on; at mesh: throughout",
        ),
        (
            [kept(gpus(n), algorithm(name), fitting=500, mean_ms=100) for n in (8, 16) for name in ("ring", "mesh")],
            "throughout",
        ),
    ],
)
def test_the_answer_tells_where_the_mean_keeps_the_budget_and_which_share_of_collectives(points, said):
    assert budget_sentence(points) == (said and f"The mean keeps 150 ms (collective.budget) {said}.")


def test_budgets_that_are_swept_are_told_one_by_one():
    points = [kept(fitting=each, mean_ms=100, budget_s=budget_s) for each, budget_s in ((0, 0.01), (500, 1.0))]
    said = "The mean keeps the budget (collective.budget) at 10 ms: not at base; at 1 s: at base."
    assert budget_sentence(points) == said
