"""Quantities as people write them: rates, sizes and delays, from text and back to text.

Inside the code a rate is an int of bit/s, a size an int of bytes and a time a float of seconds. Text such as
``"40 Gbit/s"``, ``"8 MB"`` or ``"10 us"`` lives in scenario files, on the command line and on screens, and is read
and written here alone. Units are case-sensitive, because ``Mb`` and ``MB`` differ by a factor of eight; decimal
prefixes are powers of 1000 (``MB``) and binary ones powers of 1024 (``MiB``).
"""

import re
from collections.abc import Mapping
from decimal import ROUND_DOWN, Context, Decimal
from typing import NamedTuple

from topologies.errors import shown


class UnitError(ValueError):
    """Text that is not a quantity of the kind asked for; the message is one sentence that carries the text."""


class Quantity(NamedTuple):
    """One kind of quantity: its units as multiples of the base unit, and the range the product can work with."""

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

# Twenty digits either side of the point hold every double and every rate in range, and keep the arithmetic short for
# any text; for the same reason there are no exponents.
_NUMBER, _UNIT = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*", r"([A-Za-z/]{1,8})"
_QUANTITY = re.compile(_NUMBER + _UNIT)
_RANGE = re.compile(rf"{_NUMBER}{_UNIT}?\s*[-–]\s*{_NUMBER}{_UNIT}")
_EXACT = Context(prec=100)
_DECIMALS = Decimal("1e-25")  # written at most


def parse_rate_bps(text: str) -> int:
    """Read a rate such as ``"40 Gbit/s"`` as a whole number of bit/s; raises UnitError."""
    return _whole(text, RATE)


def parse_rate_range_bps(text: str) -> tuple[int, int]:
    """Read a range of rates such as ``"20-200 Gbit/s"`` or ``"500 Mbit/s - 1 Gbit/s"`` as (lowest, highest) bit/s.

    A range without a unit at its lower end takes the unit of the upper one; a single rate, ``"40 Gbit/s"``, is both
    ends of a range that does not vary. Raises UnitError for text that is neither, for a range upside down and for an
    empty one (both ends equal).
    """
    if _QUANTITY.fullmatch(text.strip()):
        return (parse_rate_bps(text),) * 2
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UnitError(f'{shown(text)} is not a range of rates; allowed: LOW-HIGH UNIT, such as "20-200 Gbit/s"')
    low, high = parse_rate_bps(f"{match[1]} {match[2] or match[4]}"), parse_rate_bps(f"{match[3]} {match[4]}")
    if low >= high:
        problem = "an empty range" if low == high else "a range upside down"
        raise UnitError(f"{shown(text)} is {problem}; allowed: LOW-HIGH UNIT with HIGH above LOW, or one rate")
    return low, high


def parse_size_bytes(text: str) -> int:
    """Read a size such as ``"8 MB"`` (decimal) or ``"8 MiB"`` (binary) as a whole number of bytes; raises UnitError."""
    return _whole(text, SIZE)


def parse_delay_s(text: str) -> float:
    """Read a delay such as ``"10 us"`` (or ``"10 µs"``) as seconds, the float nearest to the text; raises UnitError."""
    return float(_parsed(text, DELAY))


def format_rate(rate_bps: int) -> str:
    """Write a rate in the largest unit it fills, exactly: ``parse_rate_bps(format_rate(x)) == x``."""
    return _formatted(Decimal(int(rate_bps)), RATE)


def format_rate_range(range_bps: tuple[int, int]) -> str:
    """Write (lowest, highest) bit/s as one range, sharing the unit where both ends have it: ``"20-200 Gbit/s"``."""
    low, high = (format_rate(end) for end in range_bps)
    if low == high:
        return low
    low_number, low_unit = low.split(" ")
    return f"{low_number}-{high}" if high.endswith(f" {low_unit}") else f"{low} - {high}"


def format_size(size_bytes: int) -> str:
    """Write a size exactly, in a binary unit where it is a whole number of those and of no decimal one."""
    for unit in ("GiB", "MiB", "KiB") if size_bytes % 1000 else ():
        count, rest = divmod(size_bytes, int(_BINARY[unit]))
        if count and not rest:
            return f"{count} {unit}"
    return _formatted(Decimal(int(size_bytes)), SIZE)


def format_delay(delay_s: float) -> str:
    """Write a delay in the largest unit it fills, with the fewest digits that ``parse_delay_s`` reads back as equal."""
    return _formatted(Decimal(repr(delay_s)), DELAY)


def _formatted(value: Decimal, kind: Quantity) -> str:
    units = [unit for unit in kind.units if unit not in _BINARY]
    unit = max((unit for unit in units if kind.units[unit] <= value), key=kind.units.__getitem__, default=units[0])
    number = _EXACT.divide(value, kind.units[unit]).quantize(_DECIMALS, ROUND_DOWN, _EXACT)
    return f"{number:f}".rstrip("0").rstrip(".") + f" {unit}"


def _whole(text: str, of: Quantity) -> int:
    value = _parsed(text, of)
    if value != int(value):
        raise UnitError(f"{shown(text)} is not a whole number of {of.base}")
    return int(value)


def _parsed(text: str, of: Quantity) -> Decimal:
    """The quantity in its base unit; raises UnitError."""
    plain = text.strip().replace("µs", "us").replace("μs", "us")  # Unicode has two micro signs
    match = _QUANTITY.fullmatch(plain)
    allowed = f'allowed: a number and one of {", ".join(of.units)}, such as "{of.example}"'
    if match is None:
        is_negative = plain[:1] in ("-", "−") and plain[1:].lstrip()[:1].isdigit()
        is_infinite = plain.lstrip("+-").lower().startswith(("nan", "inf"))
        why = ": it must be greater than zero" if is_negative else ": it must be finite" if is_infinite else ""
        raise UnitError(f"{shown(text)} is not a {of.noun}{why}; {allowed}")
    if match[2] not in of.units:
        spelled = re.sub(r"(?:bps|b/s|bits/s)$", "bit/s", match[2].lower())
        meant = next((f" (did you mean {known}?)" for known in of.units if known.lower() == spelled), "")
        raise UnitError(f"{shown(text)} has the wrong unit for a {of.noun}; {allowed}{meant}")
    quantities = (match.groups(), of.least.split(), of.most.split())
    value, least, most = (_EXACT.multiply(Decimal(number), of.units[unit]) for number, unit in quantities)
    if not least <= value <= most:
        problem = "zero" if value == 0 else "too small" if value < least else "too large"
        raise UnitError(f"{shown(text)} is {problem}: a {of.noun} lies within {of.least} and {of.most}")
    return value
