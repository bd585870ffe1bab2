"""Quantities as text: which are parsed, which are refused with which reason, and exact round trips.

`test_fuzz` tries arbitrary text.
"""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import units
from topologies.units import UnitError, format_count


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
        (units.parse_rate_bps, "1001 Tbit/s", "too large"),
        (units.parse_rate_bps, "999 bit/s", "too small: a rate must be between 1 kbit/s and"),
        (lambda text: units.parse_delay_s(text, units.LINK_DELAY), "11 s", "between 1 ns and 10 s"),
        (units.parse_rate_bps, "40", "allowed: a number and one of"),
        (units.parse_rate_bps, "4 Gbit/s - 5 Gbit/s", "not a rate"),
        (units.parse_rate_bps, "40 Gbps", "did you mean Gbit/s?"),
        (units.parse_rate_bps, "40 Gb/s", "did you mean Gbit/s?"),
        (units.parse_rate_bps, "40 gbit/s", "did you mean Gbit/s?"),
        (units.parse_size_bytes, "8 mb", "did you mean MB?"),
        (units.parse_size_bytes, "8 Gbit/s", "wrong unit for a size"),
        (units.parse_size_bytes, "0.5 B", "too small"),
        (units.parse_delay_s, "10 m", "wrong unit for a delay"),
        (units.parse_delay_s, "1 h", "ns, us, ms, s"),
        (units.parse_delay_s, "0 us", "zero"),
        (units.parse_delay_s, "1001 s", "too large"),
        (units.parse_delay_s, "1e400 s", "too large"),
        (units.parse_delay_s, "1e4000 s", "not a delay"),
        (units.parse_rate_bps, "1e bit/s", "not a rate"),
        (units.parse_rate_bps, "1__0 bit/s", "not a rate"),
        (units.parse_rate_bps, "1,000 Mbit/s", "not a rate"),
        (units.parse_number, "1,000", "it has a comma"),
        (units.parse_number, "nan", "not a number"),
        (units.parse_number, "0x10", "not a number"),
        (units.parse_number, "1" * 41, "not a number"),
        (units.parse_whole_number, "1.5", "not a whole number"),
        (units.parse_whole_number, "-1", "too small; allowed: a whole number from 0"),
        (units.parse_whole_number, "1e19", "too large"),
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


def test_numbers_are_parsed_as_programs_write_them():
    assert units.parse_number("9043348420.68") == Decimal("9043348420.68")
    numbers = ("1e9", "1E9", "+1e+09", "1_000_000_000", "1000000000.", " 1000000000.0 ", "10000000000e-1")
    assert {units.parse_number(text) for text in numbers} == {10**9}
    assert {units.parse_whole_number(text) for text in numbers} == {10**9}
    assert units.parse_number(".5") == units.parse_number("5e-1") == -units.parse_number("-0.5") == Decimal("0.5")
    assert units.parse_rate_bps("1e9 bit/s") == units.parse_rate_bps("1_000 Mbit/s") == 10**9
    assert units.parse_rate_range_bps("1e-3 - 2.5E0 Gbit/s") == (10**6, 25 * 10**8)
    assert units.parse_rate_range_bps("1e-3-2 Gbit/s") == (10**6, 2 * 10**9)
    assert units.parse_delay_s("1.5e-3 s") == 1.5e-3
    assert units.parse_size_bytes("8e6 B") == 8_000_000


def test_a_rate_and_a_size_are_rounded_to_whole_units_and_the_reader_of_text_can_tell():
    assert units.parse_rate_bps("9043348420.68 bit/s") == 9_043_348_421
    assert [units.parse_size_bytes(text) for text in ("1.5 B", "2.5 B", "1.2 KiB")] == [2, 2, 1229]
    assert units.rounding("1.5 bit/s", units.RATE) == units.rounding("1-1.0000000001 Gbit/s", units.RATE)
    assert units.rounding("1.5 bit/s", units.RATE) == "to whole bit/s"
    assert units.rounding("1.2 KiB", units.SIZE) == "to whole bytes"
    for text, kind in (("1.5 Gbit/s", units.RATE), ("10-20 Gbit/s", units.RATE), ("1.5 ns", units.DELAY)):
        assert units.rounding(text, kind) == ""


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_float_is_the_number_that_python_prints(number):
    assert float(units.parse_number(repr(number))) == number
    assert units.rounded(units.parse_number(repr(number))) == round(Fraction(repr(number)))


def test_zero_is_a_rate_in_any_unit_where_it_is_allowed():
    rates = ("0 bit/s", "0.0Gbit/s", "0e9 bit/s", "1 Mbit/s")
    assert [units.parse_rate_or_zero_bps(text) for text in rates] == [0, 0, 0, 10**6]
    for text in ("0", "-0 bit/s", "0 MB"):
        with pytest.raises(units.UnitError):
            units.parse_rate_or_zero_bps(text)


def test_zero_is_a_delay_in_any_unit_where_it_is_allowed():
    assert [units.parse_delay_or_zero_s(text) for text in ("0 s", "0.0ms", "0 µs", "1 ms")] == [0.0, 0.0, 0.0, 1e-3]
    for text in ("0", "-0 s", "0 MB"):
        with pytest.raises(units.UnitError):
            units.parse_delay_or_zero_s(text)


@given(st.integers(min_value=1, max_value=10**15))
def test_a_formatted_rate_or_size_parses_back_exactly(value):
    if value >= 1000:
        assert units.parse_rate_bps(units.format_rate(value)) == value
    assert units.parse_size_bytes(units.format_size(value)) == value


@given(st.tuples(st.integers(1000, 10**15), st.integers(1000, 10**15)).map(sorted))
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


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "stage", "1 stage"),
        (2, "stage", "2 stages"),
        (0, "drop", "0 drops"),
        (2000, "micro-batch", "2,000 micro-batches"),
        (1, "independent block of collectives", "1 independent block of collectives"),
        (2, "round of 100 iterations", "2 rounds of 100 iterations"),
    ],
)
def test_a_number_of_things_has_the_right_plural(count, noun, text):
    assert format_count(count, noun) == text
