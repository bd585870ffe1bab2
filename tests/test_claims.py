"""The paper's claims, held against series of times."""

from functools import partial

import numpy as np

from analysis.claims import claims
from analysis.metrics import gain


def test_an_order_of_which_one_step_is_open_is_open():
    """Three clear steps do not make up for two modes that cannot be told apart."""
    rng = np.random.default_rng(3)
    shares = {"base": 1.0, "ccl": 0.9, "wan": 0.7, "joint": 0.67}
    series = {mode: share + 0.01 * rng.standard_normal(4000) for mode, share in shares.items()}
    assert claims(series, partial(gain, block=10, seed=1)).order_holds is True
    series["ccl"] = series["base"] + 0.01 * rng.standard_normal(4000)
    found = claims(series, partial(gain, block=10, seed=1))
    assert (found.order_holds, found.relations) == (None, ("~", ">", ">"))
