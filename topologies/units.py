"""Conversion of rates, sizes and delays from text to numbers and back.

The code keeps a rate as an int of bit/s, a size as an int of bytes and a time as a float of seconds. Text such as
``"40 Gbit/s"``, ``"8 MB"`` or ``"10 us"`` occurs in scenario files, on the command line and in output, and only this
module parses and writes it. Units are case-sensitive, because ``Mb`` and ``MB`` differ by a factor of eight. Decimal
prefixes are powers of 1000 (``MB``), binary prefixes powers of 1024 (``MiB``).
"""

import re
from collections.abc import Mapping
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Context, Decimal
from typing import NamedTuple

from topologies.errors import format_value


class UnitError(ValueError):
    """Raised for text that is not a quantity of the expected kind; the message is one sentence with that text."""


class Quantity(NamedTuple):
    """A kind of quantity: its units as multiples of the base unit, and its least and greatest allowed values."""

    noun: str
    base: str
    units: Mapping[str, Decimal]
    example: str
    least: str
    most: str


_DECIMAL = {prefix: Decimal(1000**power) for power, prefix in enumerate(("", "k", "M", "G", "T"))}
_BINARY = {f"{prefix}iB": Decimal(1024**power) for power, prefix in enumerate("KMG", start=1)}
_RATES = {f"{prefix}bit/s": factor for prefix, factor in _DECIMAL.items()}
_SIZES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()} | _BINARY
_DELAYS = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}

RATE = Quantity("rate", "bit/s", _RATES, "40 Gbit/s", least="1 kbit/s", most="1000 Tbit/s")
SIZE = Quantity("size", "bytes", _SIZES, "8 MB", least="1 B", most="1000 TB")
DELAY = Quantity("delay", "s", _DELAYS, "10 us", least="1 ns", most="1000 s")
LINK_DELAY = DELAY._replace(most="10 s")
_LONG = {**_DELAYS, "min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
SPAN = DELAY._replace(units=_LONG, most="1000 d", noun="time", example="10 h")
"""A delay of a link: TCP waits for an answer for 120 s at most, and a path and the way back may have several links."""

# Forty digits on either side of the point represent everything that programs write, and with the limit on the exponent
# they keep the exact arithmetic short for any text.
_DIGITS = r"[0-9](?:_?[0-9]){0,39}"
_NUMBER = rf"((?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]{{1,3}})?)"
_UNIT = r"([A-Za-z/]{1,8})"
_SIGNED = re.compile(rf"[+-]?{_NUMBER}")
_QUANTITY = re.compile(rf"\+?{_NUMBER}\s*{_UNIT}")
_RANGE = re.compile(rf"{_NUMBER}\s*{_UNIT}?\s*[-–]\s*{_NUMBER}\s*{_UNIT}")
_EXACT = Context(prec=100)
_DECIMALS = Decimal("1e-25")  # numbers are written to this precision


def parse_number(text: str) -> Decimal:
    """Parse a number as programs write it, exactly: ``"12"``, ``"-0.5"``, ``"9043348420.68"``, ``"1.5E-3"``.

    Underscores may separate digits. Raises UnitError for other text, such as ``"nan"``, ``"1,000"`` or ``"0x10"``, and
    for more than 40 digits on either side of the point or 3 in the exponent.
    """
    plain = text.strip().replace("−", "-")
    if not _SIGNED.fullmatch(plain):
        comma = ": it has a comma" if "," in plain else ""
        raise UnitError(f"{format_value(text)} is not a number{comma}; allowed: such as 12, 0.5 or 1e9")
    return Decimal(plain.replace("_", ""))


def rounded(value: Decimal) -> int:
    """Return the whole number closest to a value, the even one of two equally close ones."""
    return int(value.to_integral_value(ROUND_HALF_EVEN, _EXACT))


def parse_whole_number(text: str, *, least: int = 0, most: int = 10**18) -> int:
    """Parse a whole number, which may be written as ``"1e9"`` or ``"12.0"``; raises UnitError."""
    value = parse_number(text)
    allowed = f"allowed: a whole number from {least:,} to {most:,}"
    if not least <= value <= most:
        raise UnitError(f"{format_value(text)} is too {'small' if value < least else 'large'}; {allowed}")
    if value != rounded(value):
        raise UnitError(f"{format_value(text)} is not a whole number; {allowed}")
    return rounded(value)


def parse_rate_bps(text: str) -> int:
    """Parse a rate such as ``"40 Gbit/s"`` to the closest whole number of bit/s; raises UnitError."""
    return rounded(_parse(text, RATE))


def parse_rate_or_zero_bps(text: str) -> int:
    """Parse a rate, or zero in any unit, to the closest whole number of bit/s; raises UnitError."""
    _check_sign(text, RATE)
    return 0 if _is_zero(text, RATE) else parse_rate_bps(text)


def parse_rate_range_bps(text: str) -> tuple[int, int]:
    """Parse a range of rates such as ``"20-200 Gbit/s"`` or ``"500 Mbit/s - 1 Gbit/s"`` to (lowest, highest) bit/s.

    If the lower end has no unit, it has that of the upper end. A single rate such as ``"40 Gbit/s"`` is a constant:
    both ends are that rate. Raises UnitError for any other text, for a range whose lower end is above the upper one,
    and for a range whose two ends are equal.
    """
    if _QUANTITY.fullmatch(_plain(text)):
        return (parse_rate_bps(text),) * 2
    match = _RANGE.fullmatch(_plain(text))
    if match is None:
        allowed = 'LOW-HIGH UNIT, such as "20-200 Gbit/s", or one rate'
        raise UnitError(f"{format_value(text)} is not a range of rates; allowed: {allowed}")
    low, high = parse_rate_bps(f"{match[1]} {match[2] or match[4]}"), parse_rate_bps(f"{match[3]} {match[4]}")
    if low >= high:
        problem = "an empty range" if low == high else "a reversed range"
        raise UnitError(f"{format_value(text)} is {problem}; allowed: LOW-HIGH UNIT with HIGH above LOW, or one rate")
    return low, high


def parse_size_bytes(text: str) -> int:
    """Parse a size such as ``"8 MB"`` (decimal) or ``"8 MiB"`` (binary) to the closest whole number of bytes; raises
    UnitError."""
    return rounded(_parse(text, SIZE))


def parse_delay_s(text: str, kind: Quantity = DELAY) -> float:
    """Parse a delay such as ``"10 us"`` (or ``"10 µs"``) to the nearest float of seconds; raises UnitError."""
    return float(_parse(text, kind))


def parse(text: str, kind: Quantity) -> int | float:
    """Parse a rate, size or delay as the functions above, within the least and greatest value of `kind`."""
    return float(_parse(text, kind)) if kind.base == DELAY.base else rounded(_parse(text, kind))


def parse_delay_or_zero_s(text: str, kind: Quantity = DELAY) -> float:
    """Parse a delay, or zero in any unit, to seconds; raises UnitError."""
    _check_sign(text, kind)
    return 0.0 if _is_zero(text, DELAY) else parse_delay_s(text, kind)


def rounding(text: str, kind: Quantity) -> str:
    """Return how a text of rates or sizes, such as ``"1.5 bit/s"``, is rounded, in words: "to whole bit/s"; "" if it is
    exact. Of a range both ends may be rounded."""
    matched = _QUANTITY.fullmatch(_plain(text)) or _RANGE.fullmatch(_plain(text))
    if matched is None or kind.base == DELAY.base:
        return ""
    parts = matched.groups()
    ends = [(number, unit or parts[-1]) for number, unit in zip(parts[::2], parts[1::2], strict=True)]
    exact = (_value(number, kind.units[unit]) for number, unit in ends if unit in kind.units)
    return f"to whole {kind.base}" if any(value != rounded(value) for value in exact) else ""


def format_count(count: int, noun: str) -> str:
    """Return a number of things in words: "1 stage", "2,000 stages", "2 rounds of 100 iterations"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun, whose words follow its first one if these begin with "of": "rounds of jobs"."""
    first, *rest = noun.split(" of ", maxsplit=1)
    return " of ".join([f"{first}{'es' if first.endswith(('ch', 's')) else 's'}", *rest])


def format_rate(rate_bps: int) -> str:
    """Write a rate exactly, in the largest unit not above it: ``parse_rate_bps(format_rate(x)) == x``."""
    return _format(Decimal(int(rate_bps)), RATE)


def format_rate_range(range_bps: tuple[int, int]) -> str:
    """Write (lowest, highest) bit/s as a range, with the unit once if both ends have the same: ``"20-200 Gbit/s"``."""
    low, high = (format_rate(end) for end in range_bps)
    if low == high:
        return low
    low_number, low_unit = low.split(" ")
    return f"{low_number}-{high}" if high.endswith(f" {low_unit}") else f"{low} - {high}"


def format_size(size_bytes: int) -> str:
    """Write a size exactly: in a binary unit if it is a multiple of one but not of 1000, else in a decimal unit."""
    for unit in ("GiB", "MiB", "KiB") if size_bytes % 1000 else ():
        count, rest = divmod(size_bytes, int(_BINARY[unit]))
        if count and not rest:
            return f"{count} {unit}"
    return _format(Decimal(int(size_bytes)), SIZE)


def format_delay(delay_s: float) -> str:
    """Write a delay in the largest unit not above it, with the fewest digits that ``parse_delay_s`` reads as equal."""
    return _format(Decimal(repr(delay_s)), DELAY)


def _format(value: Decimal, kind: Quantity) -> str:
    units = [unit for unit in kind.units if unit not in _BINARY]
    unit = max((unit for unit in units if kind.units[unit] <= value), key=kind.units.__getitem__, default=units[0])
    number = _EXACT.divide(value, kind.units[unit]).quantize(_DECIMALS, ROUND_DOWN, _EXACT)
    return f"{number:f}".rstrip("0").rstrip(".") + f" {unit}"


def _parse(text: str, kind: Quantity) -> Decimal:
    """Parse text to a quantity in its base unit; raises UnitError."""
    plain = _plain(text)
    match = _QUANTITY.fullmatch(plain)
    allowed = f'allowed: a number and one of {", ".join(kind.units)}, such as "{kind.example}"'
    if match is None:
        why = ""
        if plain[:1] in ("-", "−") and plain[1:].lstrip()[:1].isdigit():
            why = ": it must be greater than zero"
        elif plain.lstrip("+-").lower().startswith(("nan", "inf")):
            why = ": it must be finite"
        raise UnitError(f"{format_value(text)} is not a {kind.noun}{why}; {allowed}")
    if match[2] not in kind.units:
        spelled = re.sub(r"(?:bps|b/s|bits/s)$", "bit/s", match[2].lower())
        meant = next((f" (did you mean {known}?)" for known in kind.units if known.lower() == spelled), "")
        raise UnitError(f"{format_value(text)} has the wrong unit for a {kind.noun}; {allowed}{meant}")
    quantities = (match.groups(), kind.least.split(), kind.most.split())
    value, least, most = (_value(number, kind.units[unit]) for number, unit in quantities)
    if not least <= value <= most:
        problem = "too small" if value < least else "too large"
        if value == 0:
            problem = "zero"
        raise UnitError(
            f"{format_value(text)} is {problem}: a {kind.noun} must be between {kind.least} and {kind.most}"
        )
    return value


def _plain(text: str) -> str:
    return text.strip().replace("µs", "us").replace("μs", "us")  # Unicode has two micro signs


def _value(number: str, unit: Decimal) -> Decimal:
    return _EXACT.multiply(Decimal(number.replace("_", "")), unit)


def _check_sign(text: str, kind: Quantity) -> None:
    """Refuse a negative quantity that may be zero."""
    if _plain(text)[:1] in ("-", "−") and _plain(text)[1:].lstrip()[:1].isdigit():
        raise UnitError(f'{format_value(text)} is negative; allowed: 0 or more, such as "{kind.example}"')


def _is_zero(text: str, kind: Quantity) -> bool:
    match = _QUANTITY.fullmatch(_plain(text))
    return match is not None and match[2] in kind.units and not Decimal(match[1].replace("_", ""))
