"""The rate scale: what it reads, and that it leaves times as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.scale import MAX_DIVISOR, RateScale, ScaleError


@pytest.mark.parametrize(("text", "divisor"), [("1/1000", 1000), (" 1 / 8 ", 8), ("1", 1), ("1/1", 1)])
def test_a_scale_is_one_part_in_a_whole_number(text: str, divisor: int) -> None:
    assert RateScale.parse(text) == RateScale(divisor)


@pytest.mark.parametrize("text", ["", "0", "2/3", "1/0", "-1/10", "1/1.5", "0.001", "1000", f"1/{MAX_DIVISOR + 1}"])
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ScaleError, match="allowed is"):
        RateScale.parse(text)


@given(st.integers(1, MAX_DIVISOR))
def test_a_scale_reads_back_as_it_is_written(divisor: int) -> None:
    assert RateScale.parse(str(RateScale(divisor))) == RateScale(divisor)


@given(st.integers(1, 10_000), st.integers(10**9, 200 * 10**9), st.integers(10**6, 64 * 10**6))
def test_times_stay(divisor: int, rate_bps: int, chunk_bytes: int) -> None:
    scale = RateScale(divisor)
    carried = scale.chunk_bytes(chunk_bytes)
    assert carried * divisor == pytest.approx(chunk_bytes, abs=divisor / 2)
    assert scale.rate_bps(rate_bps) == scale.rates_bps(np.array([rate_bps], dtype=np.float64))[0]
    meant_s = 8 * carried * divisor / rate_bps
    assert 8 * carried / scale.rate_bps(rate_bps) == pytest.approx(meant_s, rel=1e-4)


def test_what_would_be_nothing_is_one_bit_a_second_or_refused() -> None:
    assert RateScale(1000).rate_bps(3) == 1
    assert RateScale(1000).rates_bps(np.array([3.0])).tolist() == [1.0]
    assert RateScale(1000).chunk_bytes(500) == 1
    with pytest.raises(ScaleError, match="499 B at the rate scale 1/1000"):
        RateScale(1000).chunk_bytes(499)
