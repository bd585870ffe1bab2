"""Times of recorded conditions: numbers of seconds, times since 1970 in several units, or ISO 8601 dates; such dates
alone. Pure."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

from topologies.errors import format_value
from topologies.units import format_delay, parse_number

UNITS_NS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
"""The units of times that are numbers, in nanoseconds."""

MAX_TIME_NS = 10**18  # some thirty years, and well below 2^63
_EPOCHS = ((10**17, "nanoseconds", 1), (10**14, "microseconds", 10**3), (10**11, "milliseconds", 10**6))
"""Numbers from which on a first time is the time since 1970 in a unit, and this unit in nanoseconds. In seconds, these
numbers are dates after the year 5000."""
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,18}))?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
SETTABLE = "1980", "2199"
"""The first and the last year of dates to which a clock can be set: Linux takes none before 1970, nor in the year 2232,
and none that is earlier than the time since its boot."""

DATES = f"a date with a time, such as 2026-01-01T00:00:00, UTC without a zone, from {SETTABLE[0]} to {SETTABLE[1]}"


def date_ns(text: str) -> int:
    """Return the nanoseconds from 1970 to a date with a time in ISO 8601 to which a clock can be set, in UTC if it has
    no zone; raises ValueError. Digits after the ninth are rounded."""
    try:
        if (match := _ISO.fullmatch(text)) and SETTABLE[0] <= text[:4] <= SETTABLE[1]:
            return round(_since_1970_s(match) * 10**9)
    except ValueError:
        pass
    raise ValueError(f"{format_value(text)} is not allowed; allowed: {DATES}")


def in_utc(since_1970_ns: int) -> str:
    """Return an instant, in ns since 1970, as a date with a time of day: "2026-01-01 06:41:00 UTC"."""
    return f"{datetime.fromtimestamp(since_1970_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def as_date(since_1970_ns: int) -> str:
    """Return an instant, in ns since 1970, in ISO 8601 to the nanosecond, as `date_ns` reads it."""
    whole, rest = divmod(since_1970_ns, 10**9)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def span_words(begin_ns: int, end_ns: int, begins_ns: int | None) -> str:
    """Return a span of a trace, in ns from its beginning: "from 40 s to 60 s", or as dates if it is known when in ns
    since 1970 the trace begins."""
    if begins_ns is not None:
        return f"from {as_date(begins_ns + begin_ns)} to {as_date(begins_ns + end_ns)}"
    return f"from {format_delay(begin_ns / 1e9) if begin_ns else '0 s'} to {format_delay(end_ns / 1e9)}"


def _since_1970_s(match: re.Match[str]) -> Decimal:
    """Return the seconds from 1970 to a match of `_ISO`; raises ValueError if there is no such date."""
    whole = datetime.fromisoformat(match[1] + (match[3] or ""))
    since = (whole if whole.tzinfo else whole.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return Decimal(since.days * 86_400 + since.seconds) + Decimal(f"0.{match[2] or 0}")


_EPOCH_S = 10**9  # 2001: an earlier time is taken for one since the beginning of something else


class Clock:
    """Reads times, as nanoseconds from the first one: numbers in seconds or the unit of an epoch, or ISO dates.

    With a `unit` of UNITS_NS, numbers are in that unit, whatever their size.
    """

    def __init__(self, unit: str | None = None) -> None:
        self._origin: Decimal | None = None
        self._given = unit
        self._unit = unit or "seconds"
        self._unit_ns, self._is_iso, self._has_zone = UNITS_NS[self._unit], False, False

    @property
    def since(self) -> str:
        """What is added to a time that is counted from the first one, in words."""
        return " s from the first" if self._origin else ""

    def ns(self, text: str) -> int:
        """Return a time, to the nanosecond; raises ValueError."""
        try:
            value = self._value(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a time; allowed: {self._allowed}") from None
        if self._origin is None:
            self._origin = value
        exact_ns = (value - self._origin) * self._unit_ns
        if abs(exact_ns) > MAX_TIME_NS:
            raise ValueError(f"{text!r} is not within 1e9 s from the first time; allowed: times of some 30 years")
        return round(exact_ns)

    @property
    def _allowed(self) -> str:
        if self._origin is None:
            return "seconds, such as 12.5, or such as 2026-01-31T12:00:00.5Z"
        zone = " with a zone" if self._has_zone else " without a zone"
        return f"such as the first one, a date with a time{zone}" if self._is_iso else f"{self._unit}, as the first one"

    def _value(self, text: str) -> Decimal:
        """Return a time in the clock's unit; raises ValueError."""
        match = _ISO.fullmatch(text)
        if self._origin is None:
            self._is_iso, self._has_zone = match is not None, match is not None and match[3] is not None
        if self._is_iso != (match is not None) or (match and self._has_zone != (match[3] is not None)):
            raise ValueError
        if match is None:
            number = parse_number(text)
            if self._origin is None and self._given is None:
                known = (one[1:] for one in _EPOCHS if abs(number) >= one[0])
                self._unit, self._unit_ns = next(known, ("seconds", 10**9))
            return number
        return _since_1970_s(match)

    def notes(self, first: str) -> Iterator[str]:
        """Yield how times were read, if not as seconds from 0."""
        if self._unit != "seconds":
            yield f"its times are taken as {self._unit}"
        if self._origin:
            yield f"it begins at its first time, {first}{self._date()}"

    @property
    def begins_ns(self) -> int | None:
        """The first time in ns since 1970, if it is a date or a time since then; None for one that is too early."""
        since_s = (self._origin or Decimal(0)) * self._unit_ns / 10**9
        return round(since_s * 10**9) if _EPOCH_S <= since_s < 10 * _EPOCH_S else None

    @property
    def offset_ns(self) -> int:
        """The first time in ns, as it is written."""
        return round((self._origin or Decimal(0)) * self._unit_ns)

    def _date(self) -> str:
        """Return the date that the first time is in seconds since 1970, in brackets; "" for a time too early for that,
        and for one that is written as a date."""
        return "" if self._is_iso or self.begins_ns is None else f" ({in_utc(self.begins_ns)})"
