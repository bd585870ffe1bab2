"""Conditions from a recorded trace: a CSV file of time, link and rate. Read without pandas, as the VM reads it too.

    time,link,rate
    0,g0>g1,40 Gbit/s
    0,g1>g0,12500000000

Times are in seconds, or ISO 8601 dates with times, and never decrease; the first one is the beginning of the trace. A
rate is text with a unit, or a number of bit/s. A link keeps its rate from one row to its next row. Every listed link
needs a row at the beginning. Every WAN link must be listed; the links within sites must be listed either all or not at
all, and if not, another sampler draws their rates. A link with the rate 0 is down: see `Trace.outages`. A comment
`# begins 2026-01-01T05:00:00Z` tells when time 0 is, if times are seconds from it.
"""

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from topologies.conditions.clock import Clock, date_ns, in_utc, span_words
from topologies.conditions.synthetic import Uniform
from topologies.conditions.wan_keys import in_a_sentence, wan_keys
from topologies.errors import ConditionsError, Mistake, list_all, list_first
from topologies.fabric.link_names import directions, in_short, reverse
from topologies.text_files import TextFileError, opened_text, shown_path, stamp_of
from topologies.units import (
    RATE,
    UnitError,
    format_delay,
    parse_number,
    parse_rate_or_zero_bps,
    rounded,
    rounding,
)

MAX_BYTES = 256_000_000
"""Largest trace file that is read: all of its rows are held in memory."""

_COLUMNS = {  # names that other programs write, in lower case
    "time": ("time", "time_s", "t", "timestamp", "datetime"),
    "link": ("link",),
    "rate": ("rate", "rate_bps"),
}
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
BEGINS = "# begins "
"""The beginning of a comment that tells the instant of time 0 as a date."""
_BEGINS = re.compile(rf"{BEGINS.strip()}\s+(\S+)", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+", re.ASCII)
_NODE = r"(?:s\d+[blpn]\d+|[gR]\d+)"
_OF_NODES = re.compile(rf"{_NODE}(?:->|[>:-]){_NODE}(?:#\d+)?", re.ASCII)
_CONVERTER = "; python -m topologies.conditions.convert makes a trace of measurements between sites (--site NAME=s0)"
_MAX_LISTED = 20  # mistakes that are listed: if the file is no trace at all, every line is a mistake
GAP = 1.5
"""A step between a link's rows is a gap if it is longer than so many times the median one."""
_REGULAR, _LEAST_STEPS = 0.9, 10  # steps that are about the median one, and their number, of rows at regular times
_MAX_GAPS, _MAX_LINKS = 3, 3  # that a note tells, and links of each
_LEAST_BARE_BPS = 1_000_000  # a smaller number without a unit was probably meant in another one
_KEY = "conditions.trace"
_ONE_WAY = "python -m topologies.conditions.convert --both-directions uses each of its values for both"


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A sampler that replays a trace: collective k has the rates in force at k * `step_ns`.

    `times_ns` holds the times of every link's rows (whole ns from the beginning, increasing) and `rates_from_bps`
    the rates from then on (bit/s, 0 while the link is down). Both are empty for a link that the trace omits; its
    rates are drawn by `unlisted`. If it `repeats`, it begins again one step after its last row. `notes` tell what
    was assumed of the file or not used. `begins_ns` is its beginning in ns since 1970, if the file tells it.
    """

    path: Path
    times_ns: tuple[npt.NDArray[np.int64], ...]
    rates_from_bps: tuple[npt.NDArray[np.float64], ...]
    end_ns: int
    step_ns: int
    unlisted: Uniform | None
    repeats: bool = False
    notes: tuple[str, ...] = ()
    begins_ns: int | None = None
    _shaped_bps: tuple[npt.NDArray[np.float64], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shaped_bps", tuple(map(_without_outages, self.rates_from_bps)))

    @property
    def length(self) -> int:
        """The number of collectives from the trace's first row to its last one."""
        return self.end_ns // self.step_ns + 1

    @property
    def limit(self) -> int | None:
        """The number of collectives that the trace covers: it ends with its last row, unless it repeats."""
        return None if self.repeats else self.length

    @property
    def in_gaps(self) -> frozenset[int]:
        """The collectives of the trace's first passage in which a rate holds across a gap of its link's rows."""
        return _in_gaps(self.times_ns, self.step_ns)

    def in_gaps_of(self, count: int, link: int | None = None) -> set[int]:
        """Return those of the first `count` collectives that are in gaps, in any passage: in those of the link with
        this index, or in any."""
        of_links = self.times_ns if link is None else self.times_ns[link : link + 1]
        in_gaps = _in_gaps(of_links, self.step_ns)
        return {number for number in range(count) if number % self.length in in_gaps}

    @property
    def mean_bps(self) -> npt.NDArray[np.float64]:
        """Every link's time-average rate over the trace, [links] bit/s."""
        means = np.zeros(len(self.times_ns)) if self.unlisted is None else self.unlisted.mean_bps
        end_ns = self.length * self.step_ns if self.repeats else self.end_ns
        for link, (times_ns, rates) in enumerate(zip(self.times_ns, self.rates_from_bps, strict=True)):
            if times_ns.size:
                held_ns = np.diff(times_ns, append=end_ns)
                means[link] = (rates * held_ns).sum() / end_ns if end_ns else rates[-1]
        return np.maximum(1.0, means)  # of a link that is down throughout

    def rates_bps(self, start: int, count: int) -> npt.NDArray[np.float64]:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s above 0.

        A link that is down has the rate that it had before, or else the next one. Raises ConditionsError if the trace
        ends before the last of these collectives.
        """
        if self.limit is not None and start + count > self.limit:
            covers = f"the trace ends at {self.end_ns / 1e9:g} s and covers {self.limit} collectives"
            raise ConditionsError([Mistake(_KEY, f"{shown_path(self.path)}: {covers}; {start + count} are needed")])
        now_ns = np.arange(start, start + count) % self.length * self.step_ns
        table = np.empty((count, len(self.times_ns)))
        if self.unlisted is not None:
            table[:] = self.unlisted.rates_bps(start, count)
        for link, (times_ns, rates) in enumerate(zip(self.times_ns, self._shaped_bps, strict=True)):
            if times_ns.size:
                table[:, link] = rates[np.searchsorted(times_ns, now_ns, side="right") - 1]
        return table

    def outages(self) -> Iterator[tuple[int, int, int]]:
        """Yield each link's runs of collectives in which it is down: its index, the first collective, and the first one
        after them, in the trace's first passage."""
        for link, (times_ns, rates) in enumerate(zip(self.times_ns, self.rates_from_bps, strict=True)):
            ends_ns = [*times_ns[1:].tolist(), self.length * self.step_ns]
            first = stop = -1
            for row in np.flatnonzero(rates == 0).tolist():
                begins, ends = (-(-int(at) // self.step_ns) for at in (times_ns[row], ends_ns[row]))
                if begins > stop:
                    if first < stop:
                        yield link, first, stop
                    first = begins
                stop = ends
            if first < stop:
                yield link, first, stop


def _without_outages(rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return rates with every 0 replaced by the last rate before it, or else by the first one after it."""
    up = np.flatnonzero(rates > 0)
    if len(up) in (0, len(rates)):
        return np.ones_like(rates) if rates.size and not len(up) else rates
    before = np.searchsorted(up, np.arange(len(rates)), side="right") - 1
    return rates[up[np.maximum(before, 0)]]


def read_trace(
    path: Path,
    links: Sequence[str],
    *,
    within_sites: Collection[str] = (),
    step_s: float = 1.0,
    repeats: bool = False,
    unlisted: Uniform | None = None,
    may_be_down: Collection[str] = (),
    left_out: Collection[str] = (),
) -> Trace:
    """Read a trace of these links, with a collective every `step_s` seconds, which may repeat.

    The links `within_sites` may be omitted all together; `unlisted` then draws their rates. Only the links in
    `may_be_down` may have the rate 0. Rows of links in `left_out` are not used, nor are columns other than time, link
    and rate. Lines that begin with # are comments.

    Raises ConditionsError, each mistake with its file and line: a file that cannot be read, is larger than MAX_BYTES
    or ends within a line, a header without one of the columns, a row with another number of fields than the header, a
    time that is malformed or decreases, an unknown link, a malformed rate, two rates of a link at one time, a link
    without a rate at the first time. The first _MAX_LISTED are listed and the others counted.
    """
    names = tuple(links), tuple(within_sites), frozenset(may_be_down), frozenset(left_out)
    file = _read(path, stamp_of(path), *names)
    return Trace(
        path=path,
        times_ns=file.times_ns,
        rates_from_bps=file.rates_bps,
        end_ns=file.end_ns,
        step_ns=round(step_s * 1e9),
        unlisted=None if all(map(len, file.times_ns)) else unlisted,
        repeats=repeats,
        notes=(*file.notes, *_gap_notes(names[0], file, round(step_s * 1e9))),
        begins_ns=file.begins_ns,
    )


@dataclass(frozen=True)
class _File:
    times_ns: tuple[npt.NDArray[np.int64], ...]
    rates_bps: tuple[npt.NDArray[np.float64], ...]
    end_ns: int
    notes: tuple[str, ...]
    begins_ns: int | None


def _in_gaps(times_ns: Iterable[npt.NDArray[np.int64]], step_ns: int) -> frozenset[int]:
    """Return the collectives in which a rate holds across a gap of these links' rows, in the first passage."""
    return frozenset(number for gap, _ in _gaps(times_ns) for number in gap.collectives(step_ns))


def _gap_notes(names: Sequence[str], file: _File, step_ns: int) -> Iterator[str]:
    """Yield a sentence on the gaps of the links of these names, and in which collectives a rate from before a gap holds
    for longer than the usual step."""
    found = [(gap, in_short([names[link] for link in links])) for gap, links in _gaps(file.times_ns)]
    if found:
        gaps = [_gap_words(gap, links, step_ns, file.begins_ns) for gap, links in found]
        yield f"the previous rates hold where rows are missing: {list_first(gaps, _MAX_GAPS, '; ')}"


class _Gap(NamedTuple):
    """The times (ns) of the rows before and after a gap, and the usual step between rows."""

    begin_ns: int
    end_ns: int
    usual_ns: int

    def collectives(self, step_ns: int) -> range:
        """Return the collectives in which the row before the gap holds for longer than usual."""
        return range(-(-(self.begin_ns + self.usual_ns) // step_ns), -(-self.end_ns // step_ns))


def _gaps(times_ns: Iterable[npt.NDArray[np.int64]]) -> list[tuple[_Gap, list[int]]]:
    """Return the gaps of links that have rows at regular times otherwise, in order, each with the indices of its links.
    Rows for each change alone have no regular times."""
    links_of: dict[_Gap, list[int]] = {}
    for link, of_link in enumerate(times_ns):
        steps = np.diff(of_link)
        usual = float(np.median(steps)) if steps.size >= _LEAST_STEPS else 0.0
        is_usual = (steps <= GAP * usual) & (steps >= usual / GAP)
        if usual and is_usual.mean() >= _REGULAR:
            for at in np.flatnonzero(steps > GAP * usual).tolist():
                gap = _Gap(int(of_link[at]), int(of_link[at + 1]), round(usual))
                links_of.setdefault(gap, []).append(link)
    return sorted(links_of.items())


def _gap_words(gap: _Gap, links: Sequence[str], step_ns: int, begins_ns: int | None) -> str:
    met = gap.collectives(step_ns)
    which = f"collectives {met[0]:,} to {met[-1]:,}" if len(met) > 1 else f"collective {met.start:,}"
    of, span = list_first(links, _MAX_LINKS), span_words(gap.begin_ns, gap.end_ns, begins_ns)
    return f"{of} {span} (rows every {format_delay(gap.usual_ns / 1e9)} otherwise){f', in {which}' if met else ''}"


@lru_cache(maxsize=2)
def _read(
    path: Path,
    _: object,
    links: tuple[str, ...],
    within_sites: tuple[str, ...],
    may_be_down: frozenset[str],
    left_out: frozenset[str],
) -> _File:
    """Read a trace file, as `read_trace`; the second argument identifies its contents for the cache."""
    rows = _Rows(links, may_be_down, left_out)
    mistakes: list[str] = []
    more_mistakes = 0
    try:
        with opened_text(path, most_bytes=MAX_BYTES) as file:
            for line, fields in rows.records(file):
                try:
                    rows.add(fields)
                except ValueError as error:
                    if len(mistakes) < _MAX_LISTED:
                        mistakes.append(f"{shown_path(path)}:{line}: {error}")
                    else:
                        more_mistakes += 1
    except TextFileError as error:
        mistakes.append(f"{shown_path(path)}: {error}")
    except (ValueError, csv.Error) as error:
        mistakes.append(f"{shown_path(path)}: cannot be read as a trace: {error}")
    if more_mistakes:
        mistakes.append(
            f"{shown_path(path)}: and {more_mistakes:,} more mistakes{_CONVERTER if rows.names_sites else ''}"
        )
    optional = () if any(rows.rates_bps[name] for name in within_sites) else within_sites
    unset = [name for name, taken in rows.rates_bps.items() if 0 not in taken and name not in optional]
    if unset and not mistakes:
        rest = "those within sites may be left out, all together" if within_sites else "none may be left out"
        at = f"time {rows.first_time}" if rows.first_time else "time 0"
        text = f"no rate at {at} for {list_first(unset, 3)}; every link of the fabric needs one ({rest})"
        mistakes.append(f"{shown_path(path)}: {text}{_remedy(rows.rates_bps, unset, within_sites)}")
    if mistakes:
        raise ConditionsError(Mistake(_KEY, text) for text in mistakes)
    return _File(
        times_ns=tuple(np.array(list(taken), dtype=np.int64) for taken in rows.rates_bps.values()),
        rates_bps=tuple(np.array(list(taken.values()), dtype=np.float64) for taken in rows.rates_bps.values()),
        end_ns=rows.now_ns,
        notes=tuple(rows.notes()),
        begins_ns=rows.begins_ns,
    )


def _remedy(rates_bps: Mapping[str, Mapping[int, int]], unset: Collection[str], within_sites: Collection[str]) -> str:
    """Return how the trace gets the other directions of its links, if it lacks no more, or how the fabric gets the WAN
    that the trace has, if the trace lacks links but has the others whole."""
    if not set(unset).isdisjoint(within_sites) or any(rates_bps[name] for name in unset):
        return ""
    if all(rates_bps.get(reverse(name)) for name in unset):
        return f", and the trace has the other directions alone; {_ONE_WAY}"
    keys = wan_keys(name for name, taken in rates_bps.items() if taken and name not in within_sites)
    return f", or the fabric has the WAN links of the trace alone: {in_a_sentence(keys)}" if keys else ""


class _Rows:
    """The rows of a trace: each link's rates (bit/s) by time (ns from the first row), and how they were written."""

    def __init__(self, links: Iterable[str], may_be_down: frozenset[str], left_out: frozenset[str]) -> None:
        self.rates_bps: dict[str, dict[int, int]] = {name: {} for name in links}
        self.now_ns, self.first_time = 0, ""
        self._may_be_down, self._left_out = may_be_down, left_out
        self._delimiter, self._columns = ",", [0, 1, 2]
        self._header: list[str] = []
        self._clock = Clock()
        self._zero_ns: int | None = None  # the instant of time 0 that a comment tells, in ns since 1970
        self.names_sites = False  # whether a row has a link whose ends are no names of a fabric's own nodes
        self._count = self._rounded = self._commas = self._unused = self._bare = 0

    def records(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows below the header, each with its line number; blank lines and comments are skipped."""
        lines = _Lines(file)
        head = next((line for line in lines if line.strip()), "")
        self._read_header(head)
        before = lines.count - 1
        reader = csv.reader(chain([head], lines), delimiter=self._delimiter, strict=True, skipinitialspace=True)
        next(reader, None)
        for fields in reader:
            if any(field.strip() for field in fields):
                # A file that is cut off within 9043348420, or within "40 Gbit/s" after the number, has another rate.
                if not lines.is_whole and len(fields) - 1 in self._columns and not fields[-1].endswith("bit/s"):
                    raise ValueError("it may be cut off: its last line has neither a newline nor a unit")
                yield before + reader.line_num, [field.strip() for field in fields]
        self._zero_ns = lines.zero_ns

    @property
    def begins_ns(self) -> int | None:
        """When the first row is, in ns since 1970, if its time or a comment tells it."""
        of_comment = None if self._zero_ns is None else self._zero_ns + self._clock.offset_ns
        return of_comment if self._clock.begins_ns is None else self._clock.begins_ns

    def _read_header(self, head: str) -> None:
        for delimiter in _DELIMITERS:
            named = [field.strip() for field in next(csv.reader([head], delimiter=delimiter), [])]
            lower = [field.casefold() for field in named]
            places = [[lower.index(name) for name in names if name in lower] for names in _COLUMNS.values()]
            if all(places):
                self._header, self._delimiter = named, delimiter
                self._columns = [place[0] for place in places]
                return
        first = head.rstrip("\n")[:200]
        raise ValueError(
            f"its first line is {first!r}; allowed: the columns time, link and rate, as 'time,link,rate'{_CONVERTER}"
        )

    def add(self, fields: list[str]) -> None:
        """Add a row; raises ValueError for a malformed one."""
        if len(fields) != len(self._header):
            what = "three: time, link, rate" if len(self._header) == 3 else f"{len(self._header)}, as the header"
            raise ValueError(f"{len(fields)} fields; a row has {what}")
        time, link, rate = (fields[column] for column in self._columns)
        time_ns = self._clock.ns(time if self._delimiter == "," else self._with_point(time))
        self.first_time = self.first_time or time
        if time_ns < self.now_ns:
            raise ValueError(
                f"time {time} comes after {self.now_ns / 1e9:g}{self._clock.since}; times must not decrease"
            )
        named = directions(link)
        if self._left_out.issuperset(named):
            self._unused, self.now_ns = self._unused + 1, time_ns
            return
        if not self.rates_bps.keys() >= {*named}:
            known = list_first(list(self.rates_bps), 3)
            hint = "" if self.names_sites or _OF_NODES.fullmatch(link) else _CONVERTER
            self.names_sites = self.names_sites or bool(hint)
            raise ValueError(f"the fabric has no link {link!r}; its links are {known}{hint}")
        if twice := [one for one in named if time_ns in self.rates_bps[one]]:
            raise ValueError(f"link {twice[0]} has two rates at time {time}, to the nanosecond; allowed: one")
        rate_bps, is_rounded = _rate_bps(rate if self._delimiter == "," else self._with_point(rate))
        if rate_bps == 0 and not self._may_be_down.issuperset(named):
            allowed = f", or 0 for links such as {min(self._may_be_down)}" if self._may_be_down else ""
            raise ValueError(f"the rate of {link} is 0; allowed: above 0{allowed}")
        self._count, self._rounded = self._count + 1, self._rounded + is_rounded
        self._bare += 0 < rate_bps < _LEAST_BARE_BPS and rate[-1:].isdigit()
        for one in named:
            self.rates_bps[one][time_ns] = rate_bps
        self.now_ns = time_ns

    def _with_point(self, text: str) -> str:
        """Return a number with a decimal point, of a file whose fields no comma separates; raises ValueError."""
        number = text.partition(" ")[0]
        if _THOUSANDS.fullmatch(number):
            raise ValueError(f"{number} may be a number with thousands or with decimals; allowed: a decimal point")
        self._commas += number.count(",") == 1
        return text.replace(",", ".") if number.count(",") == 1 else text

    def notes(self) -> Iterator[str]:
        """Yield what was assumed of the file or not used."""
        if self._delimiter != ",":
            yield f"its fields are separated by {_DELIMITERS[self._delimiter]}"
        if self._commas:
            yield f"the decimal commas of {self._commas:,} numbers were read as points"
        others = [name or "without a name" for index, name in enumerate(self._header) if index not in self._columns]
        if others:
            are = f"columns {list_all(others)} are" if len(others) > 1 else f"column {others[0]} is"
            yield f"the {are} not used"
        yield from self._clock.notes(self.first_time)
        if self.begins_ns is not None and self._clock.begins_ns is None:
            yield f"it begins at {in_utc(self.begins_ns)}"
        if self._unused:
            yield f"{self._unused:,} row{'s' * (self._unused != 1)} of links that the fabric leaves out not used"
        if self._bare:
            of = f"{self._bare:,} of {self._count:,} rates"
            yield f"{of} are numbers without a unit below 1,000,000, taken as bit/s: write 40 Gbit/s for another unit"
        if self._rounded:
            yield f"{self._rounded:,} of {self._count:,} rates were rounded to whole bit/s"


class _Lines:
    """The lines of a file, with comments as empty lines; `count` of them were read, and the last one `is_whole` if it
    had a newline. `zero_ns` is the instant of time 0, in ns since 1970, if a comment "# begins 2026-01-01T05:00:00Z"
    tells it."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.count, self.is_whole = file, 0, True
        self.zero_ns: int | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.count, self.is_whole = self.count + 1, line.endswith("\n")
            is_comment = line.lstrip().startswith("#")
            if is_comment and (told := _BEGINS.fullmatch(line.strip())):
                with suppress(ValueError):  # then it is a comment as others are
                    self.zero_ns = date_ns(told[1])
            yield "\n" if is_comment else line


def _rate_bps(text: str) -> tuple[int, bool]:
    """Return a rate in bit/s, which is its unit if the text has none, and whether it was rounded; raises UnitError."""
    if not text[-1:].isdigit() and not text.endswith("."):
        return parse_rate_or_zero_bps(text), bool(rounding(text, RATE))
    try:
        exact = parse_number(text)
    except UnitError:
        exact = Decimal(-1)
    if exact and not 1 <= exact <= 10**15:
        return parse_rate_or_zero_bps(f"{text} bit/s"), False  # refuses it in words
    whole = rounded(exact)
    return whole, whole != exact
