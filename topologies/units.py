"""Conversion of rates, sizes and delays from text to numbers and back.

The code keeps a rate as an int of bit/s, a size as an int of bytes and a time as a float of seconds. Text such as
``"40 Gbit/s"``, ``"8 MB"`` or ``"10 us"`` occurs in scenario files, on the command line and in output, and only this
module parses and writes it. Units are case-sensitive, because ``Mb`` and ``MB`` differ by a factor of eight. Decimal
prefixes are powers of 1000 (``MB``), binary prefixes powers of 1024 (``MiB``).
"""

import re
from collections.abc import Mapping
from decimal import ROUND_DOWN, Context, Decimal
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

RATE = Quantity("rate", "bit/s", _RATES, "40 Gbit/s", least="1 bit/s", most="1000 Tbit/s")
SIZE = Quantity("size", "bytes", _SIZES, "8 MB", least="1 B", most="1000 TB")
DELAY = Quantity("delay", "s", _DELAYS, "10 us", least="1 ns", most="1000 s")

# Twenty digits on either side of the point represent every delay that is written and every rate in range. The limit
# keeps the exact arithmetic short for any text; exponents are not allowed for the same reason.
_NUMBER, _UNIT = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*", r"([A-Za-z/]{1,8})"
_QUANTITY = re.compile(_NUMBER + _UNIT)
_RANGE = re.compile(rf"{_NUMBER}{_UNIT}?\s*[-–]\s*{_NUMBER}{_UNIT}")
_ZERO_DELAY = re.compile(r"0{1,20}(?:\.0{1,20})?\s*(?:ns|[uµμ]s|ms|s)")
_EXACT = Context(prec=100)
_DECIMALS = Decimal("1e-25")  # numbers are written to this precision


def parse_rate_bps(text: str) -> int:
    """Parse a rate such as ``"40 Gbit/s"`` to a whole number of bit/s; raises UnitError."""
    return _parse_whole(text, RATE)


def parse_rate_range_bps(text: str) -> tuple[int, int]:
    """Parse a range of rates such as ``"20-200 Gbit/s"`` or ``"500 Mbit/s - 1 Gbit/s"`` to (lowest, highest) bit/s.

    If the lower end has no unit, it has that of the upper end. A single rate such as ``"40 Gbit/s"`` is a constant:
    both ends are that rate. Raises UnitError for any other text, for a range whose lower end is above the upper one,
    and for a range whose two ends are equal.
    """
    if _QUANTITY.fullmatch(text.strip()):
        return (parse_rate_bps(text),) * 2
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        allowed = 'LOW-HIGH UNIT, such as "20-200 Gbit/s", or one rate'
        raise UnitError(f"{format_value(text)} is not a range of rates; allowed: {allowed}")
    low, high = parse_rate_bps(f"{match[1]} {match[2] or match[4]}"), parse_rate_bps(f"{match[3]} {match[4]}")
    if low >= high:
        problem = "an empty range" if low == high else "a reversed range"
        raise UnitError(f"{format_value(text)} is {problem}; allowed: LOW-HIGH UNIT with HIGH above LOW, or one rate")
    return low, high


def parse_size_bytes(text: str) -> int:
    """Parse a size such as ``"8 MB"`` (decimal) or ``"8 MiB"`` (binary) to an int of bytes; raises UnitError."""
    return _parse_whole(text, SIZE)


def parse_delay_s(text: str) -> float:
    """Parse a delay such as ``"10 us"`` (or ``"10 µs"``) to the nearest float of seconds; raises UnitError."""
    return float(_parse(text, DELAY))


def parse(text: str, kind: Quantity) -> int | float:
    """Parse a rate, size or delay as the functions above, within the least and greatest value of `kind`."""
    return float(_parse(text, kind)) if kind.noun == DELAY.noun else _parse_whole(text, kind)


def parse_delay_or_zero_s(text: str) -> float:
    """Parse a delay, or zero in any unit, to seconds; raises UnitError."""
    return 0.0 if _ZERO_DELAY.fullmatch(text.strip()) else parse_delay_s(text)


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


def _parse_whole(text: str, kind: Quantity) -> int:
    value = _parse(text, kind)
    if value != int(value):
        raise UnitError(f"{format_value(text)} is not a whole number of {kind.base}")
    return int(value)


def _parse(text: str, kind: Quantity) -> Decimal:
    """Parse text to a quantity in its base unit; raises UnitError."""
    plain = text.strip().replace("µs", "us").replace("μs", "us")  # Unicode has two micro signs
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
    value, least, most = (_EXACT.multiply(Decimal(number), kind.units[unit]) for number, unit in quantities)
    if not least <= value <= most:
        problem = "too small" if value < least else "too large"
        if value == 0:
            problem = "zero"
        raise UnitError(
            f"{format_value(text)} is {problem}: a {kind.noun} must be between {kind.least} and {kind.most}"
        )
    return value
