"""Rows: a part of them, and parts put together."""

from dataclasses import fields

import numpy as np
import pytest

from analysis.results.rows import joined
from tests.fakes.stored import some_rows


@pytest.mark.parametrize("measured", [False, True])
def test_parts_that_are_joined_are_the_whole(measured: bool) -> None:
    rows = some_rows(7, 5, n=16, measured=measured)
    again = joined([rows.part(7, 9), rows.part(9, 10), rows.part(10, 12)])
    for name in (field.name for field in fields(rows)):
        one, other = getattr(rows, name), getattr(again, name)
        assert (one is None) == (other is None), name
        assert one is None or np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"), name
