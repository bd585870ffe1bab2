"""A measurement as it is written in a file, and the units of its value. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from statistics import median

from topologies.errors import format_value
from topologies.units import LINK_DELAY, UnitError, parse_delay_or_zero_s, parse_number, parse_rate_or_zero_bps

KINDS = ("rates", "delays")

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_RATE_UNIT = re.compile(
    r"([kmgt]?)(?:(bit/s|bits/s|bps|b/s|bits?_per_sec(?:ond)?|bitps)|(bytes?/s|bytes?_per_sec(?:ond)?))", re.IGNORECASE
)
_BYTES = re.compile(r"([kKMGT]?)(?:B/s|Bps)")  # a capital B in a unit that is not in capitals throughout
_DELAY_UNITS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "sec": "1"}
_IN_HEADER = re.compile(r"\s*(.*?)\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]\s*")  # "rate (Gbit/s)"
_LATER_WORDS = re.compile(r"[_\s.]+")
_INFERRED = ((10**6, "bit/s"), (10**3, "Mbit/s"), (0, "Gbit/s"))  # by the least median
_EXACT = Context(prec=100)
_MOST_BPS, _LEAST_BPS = 10**15, 10**3
_MOST_S = 10
_UNITS = {"rates": "bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, B/s, MB/s, GB/s", "delays": "ns, us, ms, s"}
UNIT_NAMES = "; ".join(f"{units} for {kind}" for kind, units in _UNITS.items())


class ConvertError(ValueError):
    """Raised for what cannot be converted; the message is one sentence with the file and the line."""


@dataclass(frozen=True)
class Reading:
    """A measurement as written: a link's `value` at a `time`, "" without one, and the place of both in the files.

    `ends` are the link's two ends, or one text that names the link. `unit` is that of the file, "" without one.
    """

    time: str
    ends: tuple[str, ...]
    value: str
    unit: str
    where: str


def counted(count: int, noun: str) -> str:
    """Return a count in words: "1 value", "2 values"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def is_unit(text: str, kind: str) -> bool:
    """Return whether a text is a unit of "rates" or "delays"."""
    return _factor(text, kind) is not None


def split_header(text: str, kind: str) -> tuple[str, str]:
    """Return a column's name in lower case without its unit, and its unit as written, "" without one."""
    name, unit = name_and_unit(text, kind)
    return name.casefold(), unit


def name_and_unit(text: str, kind: str) -> tuple[str, str]:
    """Return a column's name without its unit, and its unit, both as written, "" without one."""
    if (match := _IN_HEADER.fullmatch(text)) and is_unit(match[2], kind):
        return match[1], match[2]
    if is_unit(text, kind) and (kind == "rates" or len(text) > 1):
        return "", text  # "bits_per_second"; but s may be a source
    for parted in _LATER_WORDS.finditer(text):
        if is_unit(text[parted.end() :], kind):
            return text[: parted.start()], text[parted.end() :]
    return text.strip(), ""


def check_unit(text: str, kind: str, where: str) -> None:
    """Raise ConvertError if a column's name, or a matrix's first field, names a unit of the other quantity alone: its
    values would be taken in a unit of `kind`."""
    (other,) = (one for one in KINDS if one != kind)
    unit = name_and_unit(text, other)[1]
    if unit and not name_and_unit(text, kind)[1]:
        allowed = f"--as {other}, or a unit of {kind} ({_UNITS[kind]})"
        raise ConvertError(f"{where}: {format_value(text)} names {unit}, a unit of {other}; allowed: {allowed}")


def may_be_site(text: str) -> bool:
    """Return whether the end of a link's name that could be a unit may be that of a site's: "gcp_eu>gcp_us"."""
    return _IN_HEADER.fullmatch(text) is None and _LATER_WORDS.split(text)[-1].casefold() in ("us", "s")


def _factor(unit: str, kind: str) -> Decimal | None:
    """Return a unit as a multiple of bit/s or s; None for another text."""
    if kind == "delays":
        return Decimal(_DELAY_UNITS[unit.lower()]) if unit.lower() in _DELAY_UNITS else None
    if match := _BYTES.fullmatch(unit):
        return Decimal(8 * _PREFIXES[match[1].lower()])
    if match := _RATE_UNIT.fullmatch(unit):
        return Decimal(_PREFIXES[match[1].lower()] * (8 if match[3] else 1))
    return None


def inferred_unit(readings: Sequence[Reading], kind: str) -> str:
    """Return the unit that values without any are taken in: of delays ms, of rates by the size of their median."""
    if kind == "delays":
        return "ms"
    known = [abs(number) for one in readings if (number := _number(one.value)) is not None and number]
    return next(unit for least, unit in _INFERRED if not known or median(known) >= least)


def has_unit(reading: Reading) -> bool:
    """Return whether a reading's value or its file names the unit."""
    return bool(reading.unit) or reading.value[-1:].isalpha()


def quantity(reading: Reading, unit: str, kind: str) -> Decimal:
    """Return a reading's value in bit/s, whole, or in s; `unit` is that of a value that names none.

    Raises ConvertError for a value that is no such quantity.
    """
    number = _number(reading.value)
    try:
        if number is None and reading.value[-1:].isalpha() and reading.value.lstrip("+-−")[:1].isdigit():
            text = reading.value
            return Decimal(
                parse_rate_or_zero_bps(text) if kind == "rates" else repr(parse_delay_or_zero_s(text, LINK_DELAY))
            )
        value = _EXACT.multiply(parse_number(reading.value), _factor(unit, kind) or Decimal(1))
    except UnitError as error:
        raise ConvertError(f"{reading.where}: {error}") from None
    shown = format_value(f"{reading.value} {unit}")
    if value < 0:
        raise ConvertError(f"{reading.where}: {shown} is negative; allowed: 0 or more")
    if kind == "delays":
        if value and not Decimal("1e-9") <= value <= _MOST_S:
            raise ConvertError(f"{reading.where}: {shown} is not a delay of a link; allowed: 0 or 1 ns to {_MOST_S} s")
        return value
    if value and not _LEAST_BPS <= value <= _MOST_BPS:
        raise ConvertError(f"{reading.where}: {shown} is not a rate of a link; allowed: 0 or 1 kbit/s to 1000 Tbit/s")
    return value.to_integral_value(context=_EXACT)


def _number(text: str) -> Decimal | None:
    try:
        return parse_number(text)
    except UnitError:
        return None
