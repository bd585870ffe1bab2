"""Quantities as text: which are parsed, which are refused with which reason, and exact round trips.

`test_fuzz` tries arbitrary text.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import units
from topologies.units import UnitError


def test_quantities_are_parsed_as_people_write_them():
    assert units.parse_rate_bps("40 Gbit/s") == 40_000_000_000
    assert units.parse_rate_bps(" 2.5Gbit/s ") == 2_500_000_000
    assert units.parse_rate_range_bps("20-200 Gbit/s") == (20_000_000_000, 200_000_000_000)
    assert units.parse_rate_range_bps("500 Mbit/s - 1 Gbit/s") == (500_000_000, 1_000_000_000)
    assert units.parse_rate_range_bps("40 Gbit/s") == (40_000_000_000, 40_000_000_000)
    assert units.parse_size_bytes("8 MB") == 8_000_000
    assert units.parse_size_bytes("8MiB") == 8_388_608
    assert units.parse_delay_s("10 us") == 10e-6
    assert units.parse_delay_s("0.7 µs") == units.parse_delay_s("0.7 μs") == 0.7e-6


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (units.parse_rate_bps, "0 Gbit/s", "zero"),
        (units.parse_rate_bps, "-1 Gbit/s", "greater than zero"),
        (units.parse_rate_bps, "nan Gbit/s", "finite"),
        (units.parse_rate_bps, "inf Gbit/s", "finite"),
        (units.parse_rate_bps, "1.5 bit/s", "not a whole number of bit/s"),
        (units.parse_rate_bps, "1001 Tbit/s", "too large"),
        (units.parse_rate_bps, "40", "allowed: a number and one of"),
        (units.parse_rate_bps, "4 Gbit/s - 5 Gbit/s", "not a rate"),
        (units.parse_rate_bps, "40 Gbps", "did you mean Gbit/s?"),
        (units.parse_rate_bps, "40 Gb/s", "did you mean Gbit/s?"),
        (units.parse_rate_bps, "40 gbit/s", "did you mean Gbit/s?"),
        (units.parse_size_bytes, "8 mb", "did you mean MB?"),
        (units.parse_size_bytes, "8 Gbit/s", "wrong unit for a size"),
        (units.parse_size_bytes, "0.5 B", "too small"),
        (units.parse_size_bytes, "1.5 B", "not a whole number of bytes"),
        (units.parse_delay_s, "10 m", "wrong unit for a delay"),
        (units.parse_delay_s, "1 h", "ns, us, ms, s"),
        (units.parse_delay_s, "0 us", "zero"),
        (units.parse_delay_s, "1001 s", "too large"),
        (units.parse_delay_s, "1e400 s", "not a delay"),
        (units.parse_rate_range_bps, "200-20 Gbit/s", "reversed"),
        (units.parse_rate_range_bps, "20-20 Gbit/s", "empty range"),
        (units.parse_rate_range_bps, "1000 Mbit/s-1 Gbit/s", "empty range"),
        (units.parse_rate_range_bps, "-", "not a range"),
        (units.parse_rate_range_bps, "20", "not a range"),
        (units.parse_rate_range_bps, "0-20 Gbit/s", "zero"),
    ],
)
def test_an_invalid_quantity_is_refused_in_one_line_with_the_reason(parse, text, says):
    with pytest.raises(UnitError) as refusal:
        parse(text)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_zero_is_a_delay_in_any_unit_where_it_is_allowed():
    assert [units.parse_delay_or_zero_s(text) for text in ("0 s", "0.0ms", "0 µs", "1 ms")] == [0.0, 0.0, 0.0, 1e-3]
    for text in ("0", "-0 s", "0 MB"):
        with pytest.raises(units.UnitError):
            units.parse_delay_or_zero_s(text)


@given(st.integers(min_value=1, max_value=10**15))
def test_a_formatted_rate_or_size_parses_back_exactly(value):
    assert units.parse_rate_bps(units.format_rate(value)) == value
    assert units.parse_size_bytes(units.format_size(value)) == value


@given(st.tuples(st.integers(1, 10**15), st.integers(1, 10**15)).map(sorted))
def test_a_formatted_rate_range_parses_back_exactly(ends):
    assert units.parse_rate_range_bps(units.format_rate_range(tuple(ends))) == tuple(ends)


@given(st.floats(min_value=1e-9, max_value=1000))
def test_a_formatted_delay_parses_back_as_the_same_float(delay_s):
    assert units.parse_delay_s(units.format_delay(delay_s)) == delay_s


def test_quantities_are_formatted_in_the_unit_that_a_reader_expects():
    assert units.format_rate(40_000_000_000) == "40 Gbit/s"
    assert units.format_rate_range((20_000_000_000, 200_000_000_000)) == "20-200 Gbit/s"
    assert units.format_rate_range((500_000_000, 1_000_000_000)) == "500 Mbit/s - 1 Gbit/s"
    assert units.format_size(8_388_608) == "8 MiB"
    assert units.format_size(64_000_000) == "64 MB"
    assert units.format_delay(7e-7) == "700 ns"
    assert units.format_delay(1e-3) == "1 ms"
