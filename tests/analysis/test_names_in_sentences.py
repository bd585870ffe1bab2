"""Names of alternatives that have commas, in the sentences and orders of runs and of programs."""

import re

import numpy as np
import pytest

from analysis.statistics.contests import Place, contests_of
from analysis.statistics.intervals import Series
from analysis.statistics.orders import orders_of
from analysis.statistics.program_answer import program_answer
from tests.analysis.test_answer import algorithm, delay, noisy, routing, said, settings_of, size

QUOTED = {
    "the first fastest": ([1, 2, 3, 4], '"single, ring" is fastest; "single, mesh", the next, takes 100.0 % longer'),
    "below the baseline": ([4, 3, 2, 1], '"ecmp, mesh" is fastest, 75.0 % below "single, ring"'),
    "equal ones": ([4, 1, 3, 1], '"single, mesh" and "ecmp, mesh" are equally fast, and fastest, 75.0 % below "single'),
}


@pytest.mark.parametrize(("means", "part"), QUOTED.values(), ids=QUOTED)
def test_names_of_several_values_are_in_quotes(means, part):
    """ "single, ring and ecmp, mesh" would be three names, or four."""
    ats = [[routing(route), algorithm(name)] for route in ("single", "ecmp") for name in ("ring", "mesh")]
    cases = [(at, {"base": mean}) for at, mean in zip(ats, means, strict=True)]
    text = said(cases, hashed=("base",))
    assert text.startswith('"single, ring", "single, mesh", "ecmp, ring" and "ecmp, mesh" compared over')
    assert part in text and '; "ecmp, ring" and "ecmp, mesh" have one draw of ECMP' in text
    times = {Place(index, "base"): Series(np.arange(400), mean * noisy(1, 7)) for index, mean in enumerate(means)}
    ((_, order),) = orders_of((one, one.times(times)) for one in contests_of(settings_of(cases, {})))
    assert sorted(re.findall('"([^"]*)"', order)) == ["ecmp, mesh", "ecmp, ring", "single, mesh", "single, ring"]


def test_different_work_of_several_values_is_in_quotes():
    """Nobody could tell whether 12 ms belong to what is before or after them."""
    cases = [([delay(ms), size(mb)], {"base": ms * mb / 1e3}) for ms in (1, 5) for mb in (4, 8)]
    means = '4 ms at "1 ms, 4 MB", 8 ms at "1 ms, 8 MB", 20 ms at "5 ms, 4 MB" and 40 ms at "5 ms, 8 MB"'
    given = {(index, "base"): mean for index, (_, by_mode) in enumerate(cases) for mean in by_mode.values()}
    times = {Place(*place): mean for place, mean in given.items()}
    text = program_answer(settings_of(cases, {}), times, "median step")
    assert text.endswith(f"the median step is {means}.")
    assert text.startswith('"1 ms, 4 MB", "1 ms, 8 MB", "5 ms, 4 MB" and "5 ms, 8 MB" compared by')
