"""The comparison of measured times with the model: its numbers, and what makes it fail."""

import numpy as np

from analysis.statistics.fidelity import fidelity


def part(measured_s, predicted_s, drops=0, late=False):
    return np.array([measured_s]), np.array([predicted_s]), np.array([drops]), np.array([late])


def test_fidelity_is_the_median_ratio_the_tail_and_the_drops():
    assert fidelity([]) is None
    none = np.zeros(0)
    assert fidelity([(none, none, none.astype(int), none.astype(bool))]) is None  # a fault struck every one of them
    found = fidelity([part(1.01, 1.0), part(2.0, 2.0, 3), part(2.94, 3.0)])
    assert (found.collectives, found.median_ratio, found.drops, found.late) == (3, 1.0, 3, None)
    assert 0.0198 <= found.p99_abs_error <= 0.02


def test_the_model_holds_by_median_and_tail_and_drops_are_warned_of_beside_it():
    for parts, holds, warned in (
        ([part(1.0, 1.0)], True, False),
        ([part(1.000004, 1.0)] * 3, True, False),
        ([part(1.0, 1.0, 3)], True, True),
        ([part(1.02, 1.0)] * 3, False, True),
        ([part(1.0, 1.0)] * 2 + [part(1.011, 1.0)], False, True),
    ):
        found = fidelity(parts)
        assert (found.holds, bool(found.warnings), "\nWARNING: " in str(found)) == (holds, warned, warned)


def test_on_the_wall_clock_collectives_that_the_machine_was_too_slow_for_are_counted():
    found = fidelity([part(1.0, 1.0, late=True), part(1.0, 1.0), part(1.0, 1.0, late=True)], is_real=True)
    assert found.late == 2 and "too slow for 2 collectives" in str(found)
    punctual = fidelity([part(1.0, 1.0)], is_real=True)
    assert (punctual.late, punctual.warnings) == (0, ())
