"""The offline optimum, against all sequences of candidates and against online policies."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.offline_optimal_policy import offline_optimum


def total_s(chosen: list[int], times_s: np.ndarray, switch_s: np.ndarray, first_s: np.ndarray) -> float:
    changes = sum(switch_s[a, b] for a, b in pairwise(chosen))
    return float(first_s[chosen[0]] + changes + sum(times_s[k, one] for k, one in enumerate(chosen)))


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.floats(0, 3), st.booleans(), st.integers(0, 2**32))
def test_the_offline_optimum_equals_the_best_of_all_sequences_of_candidates(
    count: int, candidates: int, cost: float, cannot: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    times_s, first_s = random.random((count, candidates)), random.random(candidates)
    times_s[:, 1:] = np.where(cannot & (random.random((count, candidates - 1)) < 0.3), np.inf, times_s[:, 1:])
    switch_s = cost * random.random((candidates, candidates))
    found = offline_optimum(times_s, switch_s, first_s=first_s)
    best_s = min(
        total_s(list(chosen), times_s, switch_s, first_s) for chosen in product(range(candidates), repeat=count)
    )
    assert found.total_s == pytest.approx(best_s, rel=1e-12)
    assert total_s(found.chosen.tolist(), times_s, switch_s, first_s) == pytest.approx(best_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(200))
def test_no_online_policy_beats_the_offline_optimum(seed: int) -> None:
    """The policies take the best candidate in every K-th collective, always or only if the gain repays the cost."""
    random = np.random.default_rng(seed)
    count, candidates = 60, 12
    stay = random.random()
    times_s = random.random((count, candidates))
    for k in range(1, count):
        times_s[k] = np.where(random.random(candidates) < stay, times_s[k - 1], times_s[k])
    cost_s = random.random() * random.choice([0.1, 1.0])
    switch_s = cost_s * (1 - np.eye(candidates))
    best_s = offline_optimum(times_s, switch_s).total_s
    for period in (1, 3, 10, count):
        for share in (0.0, 1.0):
            now, found_s = int(times_s[0].argmin()), 0.0
            for k in range(count):
                wanted = int(times_s[k].argmin())
                gain_s = times_s[k, now] - times_s[k, wanted]
                if k % period == 0 and wanted != now and gain_s >= share * cost_s:
                    now, found_s = wanted, found_s + cost_s
                found_s += times_s[k, now]
            assert best_s <= found_s * (1 + 1e-12)


def test_the_offline_optimum_is_the_best_each_time_at_no_cost_and_fixed_at_a_high_cost() -> None:
    times_s = np.random.default_rng(1).random((50, 6))
    assert (offline_optimum(times_s, np.zeros((6, 6))).chosen == times_s.argmin(axis=1)).all()
    fixed = offline_optimum(times_s, 1e3 * (1 - np.eye(6)))
    assert (fixed.chosen == times_s.sum(axis=0).argmin()).all()
    assert fixed.total_s == pytest.approx(times_s.sum(axis=0).min())
    assert offline_optimum(np.zeros((0, 2)), np.zeros((2, 2))).total_s == 0


@pytest.mark.parametrize(
    ("times_s", "switch_s", "says"),
    [
        (np.ones((3, 2)), np.ones((3, 3)), "allowed for 2 candidates"),
        (np.ones((3, 2)), -np.ones((2, 2)), "a cost of a change is -1.0"),
        (np.full((3, 2), np.nan), np.ones((2, 2)), "a time is nan"),
        (np.array([[1.0, 1.0], [np.inf, np.inf]]), np.ones((2, 2)), "collective 1 has no candidate"),
    ],
)
def test_invalid_times_and_switching_costs_are_refused(times_s: np.ndarray, switch_s: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        offline_optimum(times_s, switch_s)
