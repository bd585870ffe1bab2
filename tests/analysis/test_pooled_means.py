"""The means over seeds below the table are those of all collectives of all seeds."""

import re

import numpy as np
import pytest

from analysis.statistics.contests import Place, Setting, Value
from analysis.statistics.intervals import Series
from analysis.statistics.pooled_means import pooled_lines


def lines(key, seeds):
    """Return the lines of two modes at two delays with each seed, and the times, in s by delay, mode and seed."""
    settings, times, known = [], {}, {}
    for delay in (1, 5):
        for seed in range(seeds):
            at = (Value("conditions.wan_delay", f"{delay} ms", delay), Value(key, f"seed {seed}"))
            about = {"kind": "allgather", "modes": ("base", "wan"), "baseline": {}}
            settings.append(Setting(index=len(settings), label="8 GPUs", at=at, **about))
            for mode, share in (("base", 1.0), ("wan", 0.8)):
                luck = np.random.default_rng(10 * delay + seed).uniform(0.9, 1.1, 100)
                known[delay, mode, seed] = share * delay * luck
                place = Place(settings[-1].index, mode)
                times["model", place] = Series(np.arange(100), known[delay, mode, seed])
    return [*pooled_lines(settings, times)], known


@pytest.mark.parametrize(("key", "words"), [("run.seed", "3 seeds"), ("fabric.hash_seed", "3 hash seeds")])
def test_a_line_has_the_means_and_gains_over_all_seeds(key, words):
    told, known = lines(key, 3)
    assert [one.partition(": ")[0] for one in told] == [f"model, {ms} ms, {words}" for ms in (1, 5)]
    for delay, line in zip((1, 5), told, strict=True):
        found = [float(one.replace(",", "")) for one in re.findall(r"([\d,.]+) ms \[", line)]
        means = [1e3 * np.mean([known[delay, mode, seed] for seed in range(3)]) for mode in ("base", "wan")]
        assert found == pytest.approx(means, abs=6e-4) and ", 20.0% [all alike]" in line


def test_one_seed_has_no_line():
    assert lines("run.seed", 1)[0] == []
