"""Conditions from a recorded trace: a CSV file of time, link and rate. Read without pandas, as the VM reads it too.

    time,link,rate
    0,g0>g1,40 Gbit/s
    0,g1>g0,12500000000

Times are seconds from the start of the trace, rounded to the nanosecond, and never decrease. A rate is text with a
unit, or a number of bit/s. A link keeps its rate from one row to its next row. Every listed link needs a row at time 0.
Every WAN link must be listed; the links within sites must be listed either all or not at all, and if not, another
sampler draws their rates.
"""

import csv
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt

from topologies.conditions.synthetic import Uniform
from topologies.errors import ConditionsError, Mistake, list_first
from topologies.units import parse_rate_bps

MAX_BYTES = 256_000_000
"""Largest trace file that is read: all of its rows are held in memory."""

_HEADER = ["time", "link", "rate"]
_MAX_TIME_NS = 10**18  # some thirty years, and well below 2^63
_MAX_LISTED = 20  # mistakes that are listed: if the file is no trace at all, every line is a mistake
_KEY = "conditions.trace"


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A sampler that replays a trace: collective k has the rates in force at k * `step_ns`.

    `times_ns` holds the times of every link's rows (whole ns, increasing) and `rates_from_bps` the rates from then on
    (bit/s). Both are empty for a link that the trace omits; its rates are drawn by `unlisted`.
    """

    path: Path
    times_ns: tuple[npt.NDArray[np.int64], ...]
    rates_from_bps: tuple[npt.NDArray[np.float64], ...]
    end_ns: int
    step_ns: int
    unlisted: Uniform | None

    @property
    def limit(self) -> int:
        """The number of collectives that the trace covers: it ends with its last row."""
        return self.end_ns // self.step_ns + 1

    @property
    def mean_bps(self) -> npt.NDArray[np.float64]:
        """Every link's time-average rate over the trace, [links] bit/s."""
        means = np.zeros(len(self.times_ns)) if self.unlisted is None else self.unlisted.mean_bps
        for link, (times_ns, rates) in enumerate(zip(self.times_ns, self.rates_from_bps, strict=True)):
            if times_ns.size:
                held_ns = np.diff(times_ns, append=self.end_ns)
                means[link] = (rates * held_ns).sum() / self.end_ns if self.end_ns else rates[-1]
        return means

    def rates_bps(self, start: int, count: int) -> npt.NDArray[np.float64]:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s.

        Raises ConditionsError if the trace ends before the last of them.
        """
        if start + count > self.limit:
            covers = f"the trace ends at {self.end_ns / 1e9:g} s and covers {self.limit} collectives"
            raise ConditionsError([Mistake(_KEY, f"{self.path}: {covers}; {start + count} are needed")])
        now_ns = np.arange(start, start + count) * self.step_ns
        table = np.empty((count, len(self.times_ns)))
        if self.unlisted is not None:
            table[:] = self.unlisted.rates_bps(start, count)
        for link, (times_ns, rates) in enumerate(zip(self.times_ns, self.rates_from_bps, strict=True)):
            if times_ns.size:
                table[:, link] = rates[np.searchsorted(times_ns, now_ns, side="right") - 1]
        return table


def read_trace(
    path: Path,
    links: Sequence[str],
    *,
    within_sites: Collection[str] = (),
    step_s: float = 1.0,
    unlisted: Uniform | None = None,
) -> Trace:
    """Read a trace of these links, with a collective every `step_s` seconds.

    The links `within_sites` may be omitted all together; `unlisted` then draws their rates.

    Raises ConditionsError, each mistake with its file and line: a file that cannot be read, is larger than MAX_BYTES
    or ends within a line, a wrong header, a row without exactly three fields, a time that is not a number, is negative
    or decreases, an unknown link, a malformed rate, two rates of a link at one time, a link without a rate at time 0.
    The first _MAX_LISTED are listed and the others counted.
    """
    rows: dict[str, dict[int, int]] = {name: {} for name in links}
    mistakes: list[str] = []
    more_mistakes, end_ns = 0, 0
    try:
        for line, fields in _records(path):
            try:
                end_ns = _add_row(fields, rows, end_ns)
            except ValueError as error:
                if len(mistakes) < _MAX_LISTED:
                    mistakes.append(f"{path}:{line}: {error}")
                else:
                    more_mistakes += 1
    except (OSError, ValueError, csv.Error) as error:  # ValueError: not UTF-8, or a null byte in the file's name
        mistakes.append(f"{path}: cannot be read as a trace: {getattr(error, 'strerror', None) or error}")
    if more_mistakes:
        mistakes.append(f"{path}: and {more_mistakes:,} more mistakes")
    optional = () if any(rows[name] for name in within_sites) else within_sites
    unset = [name for name, taken in rows.items() if 0 not in taken and name not in optional]
    if unset and not mistakes:
        rest = "those within sites may be left out, all together" if within_sites else "none may be left out"
        text = f"no rate at time 0 for {list_first(unset, 3)}; every link of the fabric needs one ({rest})"
        mistakes.append(f"{path}: {text}")
    if mistakes:
        raise ConditionsError(Mistake(_KEY, text) for text in mistakes)
    return Trace(
        path=path,
        times_ns=tuple(np.array(list(taken), dtype=np.int64) for taken in rows.values()),
        rates_from_bps=tuple(np.array(list(taken.values()), dtype=np.float64) for taken in rows.values()),
        end_ns=end_ns,
        step_ns=round(step_s * 1e9),
        unlisted=None if all(rows.values()) else unlisted,
    )


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header, each with its line number; blank lines are skipped."""
    _check_file(path)
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        if [field.strip() for field in header] != _HEADER:
            raise ValueError(f"its first line is {','.join(header)!r}; it must be {','.join(_HEADER)!r}")
        for fields in reader:
            if fields:
                yield reader.line_num, [field.strip() for field in fields]


def _check_file(path: Path) -> None:
    # Opening or reading a device or a pipe could block or never end, so the kind of file is checked before.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"it has {status.st_size:,} bytes; allowed: {MAX_BYTES:,} at most")
    with path.open("rb") as file:
        file.seek(max(0, status.st_size - 1))
        # A file cut off within "40 Gbit/s", after the number, would be read as 40 bit/s.
        if file.read(1) not in (b"\n", b""):
            raise ValueError("it is cut off: its last line has no newline")


def _add_row(fields: list[str], rows: dict[str, dict[int, int]], now_ns: int) -> int:
    """Add a row to `rows` and return its time in ns; `now_ns` is the time of the row before.

    Raises ValueError for a malformed row.
    """
    if len(fields) != len(_HEADER):
        raise ValueError(f"{len(fields)} fields; a row has three: time, link, rate")
    time, link, rate = fields
    try:
        exact_ns = Decimal(time) * 10**9
    except ArithmeticError:
        exact_ns = Decimal("NaN")
    if not (exact_ns.is_finite() and 0 <= exact_ns <= _MAX_TIME_NS):
        raise ValueError(f"{time!r} is not a time; allowed: seconds from 0 to 1e9")
    time_ns = round(exact_ns)
    if time_ns < now_ns:
        raise ValueError(f"time {time} comes after {now_ns / 1e9:g}; times must not decrease")
    if link not in rows:
        raise ValueError(f"the fabric has no link {link!r}; its links are {list_first(list(rows), 3)}")
    if time_ns in rows[link]:
        raise ValueError(f"link {link} has two rates at time {time}, to the nanosecond; allowed: one")
    rows[link][time_ns] = parse_rate_bps(f"{rate} bit/s" if rate.isdecimal() else rate)
    return time_ns
