"""The paper's claims: held, not held, or open; and how many collectives share a ring or conditions."""

import numpy as np

from analysis.statistics.claims import claims
from analysis.statistics.intervals import Series
from scenarios.experiment.summary import series_of
from tests.fakes.commands import scenario


def found(order="base ccl wan joint", joint=0.67, noise=0.0, count=4000):
    """Claims of series whose totals fall in this order, joint being that share of base."""
    rng, modes = np.random.default_rng(3), order.split()
    shares = dict(zip(modes, np.linspace(1, joint, len(modes)), strict=True))
    times = {mode: share + noise * rng.standard_normal(count) for mode, share in shares.items()}
    return claims({mode: Series(np.arange(count), times_s, 10) for mode, times_s in times.items()})


def test_claims_are_reported_as_found():
    for arguments, order_holds, joint_holds in (
        ({}, True, True),
        ({"order": "base wan ccl joint"}, False, True),
        ({"joint": 0.9}, True, False),
        ({"joint": 0.999999, "noise": 0.5}, None, False),
        ({"order": "base joint"}, None, True),
        ({"order": "ccl wan"}, None, None),
        ({"count": 3}, None, None),  # too few for an interval
    ):
        assert (found(**arguments).order_holds, found(**arguments).joint_holds) == (order_holds, joint_holds), arguments
    assert found("base wan ccl joint").order_text == "base > wan > ccl > joint"
    assert "~" in found(joint=0.999999, noise=0.5).relations


def test_collectives_hang_together_that_share_a_ring_or_conditions():
    def blocks(setting):
        return [series_of(setting, mode, np.arange(9), np.ones(9)).block for mode in ("base", "ccl", "wan", "joint")]

    assert blocks(scenario()) == [1, 10, 1, 10]
    assert blocks(scenario(conditions__sampler="gaussian", collective__reembed_every=7)) == [1, 7, 1, 7]
    markov = blocks(scenario(conditions__sampler="markov", conditions__mean_stay=3, collective__reembed_every=7))
    assert min(markov) >= 30 and markov[0] == markov[2]
    assert markov[1] == markov[3] and markov[1] % 7 == 0 <= markov[1] - markov[0] < 7
