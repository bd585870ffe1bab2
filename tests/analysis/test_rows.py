"""Rows as bytes come back as they were; other bytes are refused."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results.rows import RowsError, joined, packed, unpacked
from tests.fakes.stored import some_rows


def assert_same(one, other, ignored=()):
    for name in {field.name for field in fields(one)} - set(ignored):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        assert a is None or np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f"), name


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("n", [2, 16, 200])
def test_rows_come_back_as_they_were(measured, n):
    rows = some_rows(7, 5, n=n, measured=measured)
    assert_same(unpacked(packed(rows)), rows)
    assert_same(joined([rows.part(7, 9), rows.part(9, 10), rows.part(10, 12)]), rows)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    with pytest.raises(RowsError):
        unpacked(data)


def test_cut_rows_are_refused():
    whole = packed(some_rows(0, 3, measured=True))
    for cut in (*(whole[:end] for end in range(len(whole))), whole + b"x"):
        with pytest.raises(RowsError):
            unpacked(cut)
