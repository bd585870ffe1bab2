"""Quantities as people write them: rates, sizes and delays, from text and back to text.

Inside the code a rate is an int of bit/s, a size an int of bytes and a time a float of seconds. Text such as
``"40 Gbit/s"``, ``"8 MB"`` or ``"10 us"`` lives in scenario files, on the command line and on screens, and is read
and written here alone. Units are case-sensitive, because ``Mb`` and ``MB`` differ by a factor of eight; decimal
prefixes are powers of 1000 (``MB``) and binary ones powers of 1024 (``MiB``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType


class UnitError(ValueError):
    """Text that is no quantity of the kind asked for; the message is one sentence that carries the text."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One kind of quantity: its units as multiples of the base unit, and the range the product can work with."""

    noun: str
    example: str
    units: Mapping[str, Fraction]
    least: str
    most: str

    @property
    def limits(self) -> tuple[Fraction, Fraction]:
        return _exact(self.least, self), _exact(self.most, self)


_RATE = _Kind(
    noun="a rate",
    example="40 Gbit/s",
    units=MappingProxyType({f"{p}bit/s": Fraction(1000**i) for i, p in enumerate(("", "k", "M", "G", "T"))}),
    least="1 bit/s",
    most="1000 Tbit/s",
)
_SIZE = _Kind(
    noun="a size",
    example="8 MB",
    units=MappingProxyType(
        {f"{p}B": Fraction(1000**i) for i, p in enumerate(("", "k", "M", "G", "T"))}
        | {f"{p}iB": Fraction(1024**i) for i, p in enumerate(("K", "M", "G"), start=1)}
    ),
    least="1 B",
    most="1000 TB",
)
_DELAY = _Kind(
    noun="a delay",
    example="10 us",
    units=MappingProxyType(
        {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 10**3), "s": Fraction(1)}
    ),
    least="1 ns",
    most="1000 s",
)

# Twenty digits either side of the point hold every double and every rate in range, and keep the arithmetic small
# whatever text is thrown at it; there are no exponents for the same reason.
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-z/]{{1,8}})")
_RANGE = re.compile(rf"({_NUMBER})\s*([A-Za-z/]{{1,8}})?\s*[-–]\s*({_NUMBER})\s*([A-Za-z/]{{1,8}})")

_SHOWN = 40  # characters of a text that a message repeats
_DECIMALS = 25


def parse_rate_bps(text: str) -> int:
    """Read a rate such as ``"40 Gbit/s"`` as a whole number of bit/s; raises UnitError."""
    return _whole(text, _RATE)


def parse_rate_range_bps(text: str) -> tuple[int, int]:
    """Read a range of rates such as ``"20-200 Gbit/s"`` or ``"500 Mbit/s - 1 Gbit/s"`` as (lowest, highest) bit/s.

    A range without a unit at its lower end takes the unit of the upper one; a rate alone, ``"40 Gbit/s"``, is one that
    does not vary, and both ends are it. Raises UnitError for text that is neither, for a range upside down and for an
    empty one (both ends equal).
    """
    if _QUANTITY.fullmatch(text.strip()):
        return (parse_rate_bps(text),) * 2
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UnitError(f'{_quoted(text)} is no range of rates: allowed is LOW-HIGH UNIT, such as "20-200 Gbit/s"')
    low_number, low_unit, high_number, high_unit = match.groups()
    low = parse_rate_bps(f"{low_number} {low_unit or high_unit}")
    high = parse_rate_bps(f"{high_number} {high_unit}")
    if low == high:
        raise UnitError(f"{_quoted(text)} is an empty range: allowed is LOW-HIGH UNIT with HIGH above LOW, or one rate")
    if low > high:
        raise UnitError(f"{_quoted(text)} is a range upside down: its lower end must come first")
    return low, high


def parse_size_bytes(text: str) -> int:
    """Read a size such as ``"8 MB"`` (decimal) or ``"8 MiB"`` (binary) as a whole number of bytes; raises UnitError."""
    return _whole(text, _SIZE)


def parse_delay_s(text: str) -> float:
    """Read a delay such as ``"10 us"`` (or ``"10 µs"``) as seconds, the float nearest to the text; raises UnitError."""
    return float(_exact_in_range(text, _DELAY))


def format_rate(rate_bps: int) -> str:
    """Write a rate in the largest unit it fills, exactly: ``parse_rate_bps(format_rate(x)) == x``."""
    return _formatted(Fraction(rate_bps), _RATE)


def format_rate_range(range_bps: tuple[int, int]) -> str:
    """Write (lowest, highest) bit/s as one range, sharing the unit where both ends have it: ``"20-200 Gbit/s"``."""
    low, high = (format_rate(end) for end in range_bps)
    if low == high:
        return low
    low_number, low_unit = low.split(" ")
    return f"{low_number}-{high}" if high.endswith(f" {low_unit}") else f"{low} - {high}"


def format_size(size_bytes: int) -> str:
    """Write a size exactly, in a binary unit where it is a whole number of those and of no decimal one."""
    if size_bytes % 1000:
        for unit in ("GiB", "MiB", "KiB"):
            count, rest = divmod(size_bytes, int(_SIZE.units[unit]))
            if count and not rest:
                return f"{count} {unit}"
    return _formatted(Fraction(size_bytes), _SIZE)


def format_delay(delay_s: float) -> str:
    """Write a delay in the largest unit it fills, with the fewest digits that ``parse_delay_s`` reads back as equal."""
    return _formatted(Fraction(repr(delay_s)), _DELAY)


def _formatted(value: Fraction, kind: _Kind) -> str:
    decimal = [(unit, scale) for unit, scale in kind.units.items() if not unit.endswith("iB")]
    unit, scale = max((pair for pair in decimal if pair[1] <= value), key=lambda pair: pair[1], default=decimal[0])
    # Decimal scales and values of at most twenty-five decimals: the quotient times 10^25 is whole, nothing is lost.
    whole, rest = divmod(int(value / scale * 10**_DECIMALS), 10**_DECIMALS)
    number = f"{whole}.{rest:0{_DECIMALS}d}".rstrip("0").rstrip(".")
    return f"{number} {unit}"


def _whole(text: str, kind: _Kind) -> int:
    value = _exact_in_range(text, kind)
    if value.denominator != 1:
        raise UnitError(f"{_quoted(text)} is no whole number of {'bytes' if kind is _SIZE else 'bit/s'}")
    return value.numerator


def _exact_in_range(text: str, kind: _Kind) -> Fraction:
    value = _exact(text, kind)
    least, most = kind.limits
    if not least <= value <= most:
        problem = "zero" if value == 0 else "too small" if value < least else "too large"
        raise UnitError(f"{_quoted(text)} is {problem}: {kind.noun} lies within {kind.least} and {kind.most}")
    return value


def _exact(text: str, kind: _Kind) -> Fraction:
    match = _QUANTITY.fullmatch(_plain(text))
    if match is None:
        raise UnitError(f"{_quoted(text)} is no {_bare(kind)}: {_why_not(text, kind)}")
    number, unit = match.groups()
    if unit not in kind.units:
        raise UnitError(f"{_quoted(text)} has the wrong unit for {kind.noun}: {_allowed(kind)}{_meant(unit, kind)}")
    return Fraction(number) * kind.units[unit]


def _plain(text: str) -> str:
    """The text without outer blanks, both micro signs of Unicode as the letter u."""
    return text.strip().replace("µs", "us").replace("μs", "us")


def _why_not(text: str, kind: _Kind) -> str:
    stripped = text.strip()
    if stripped[:1] in ("-", "−") and stripped[1:].lstrip()[:1].isdigit():
        return f"it must be greater than zero; {_allowed(kind)}"
    if stripped.lstrip("+-").lower().startswith(("nan", "inf")):
        return f"it must be finite; {_allowed(kind)}"
    return _allowed(kind)


def _allowed(kind: _Kind) -> str:
    return f'allowed is a number and one of {", ".join(kind.units)}, such as "{kind.example}"'


def _meant(unit: str, kind: _Kind) -> str:
    spelled = re.sub(r"(?:bps|b/s|bits/s)$", "bit/s", unit.lower())
    alike = [known for known in kind.units if known.lower() == spelled]
    return f" (did you mean {alike[0]}?)" if alike else ""


def _bare(kind: _Kind) -> str:
    return kind.noun.removeprefix("a ")


def _quoted(text: str) -> str:
    """The text as it can be shown: printable, on one line, cut where it is long."""
    shown = text[:_SHOWN] + "…" * (len(text) > _SHOWN)
    return f'"{shown}"' if shown.isprintable() else f'"{shown.encode("unicode_escape").decode("ascii")}"'
