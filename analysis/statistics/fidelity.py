"""The fidelity of an emulated run: how close measured times are to the model's, and how many packets were lost."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from topologies.errors import list_first
from topologies.units import format_count

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.01
"""The model holds if the median of measured/predicted is at most this far from 1, and so is the 99th percentile of its
distance from 1."""

_MAX_NAMED = 4
_AT_ONCE = 0.005  # ratios below it are 0.00 in words
_WHY_AT_ONCE = (
    "0.00: its data had arrived, and waited for a lost frame of the one before it on its connection, with whose "
    "arrival its time begins"
)
"""Why a transfer can take no time."""
_LEFT_OUT = "disturbed by a fault and left out of the comparison with the model"


@dataclass(frozen=True, kw_only=True)
class Fifo:
    """Fidelity of the collectives measured in fifo queues.

    `least_ratio` and `greatest_ratio` are the extremes of measured/predicted times of collectives, `quickest_transfer`
    and `slowest_transfer` those of single transfers. `retransmitted_bytes` are payload, None over verbs, where nobody
    counts them. `fairness` is the lowest of Jain's fairness indices of shared links, `fairness_link` the name of that
    link (None and "" if no link was shared).
    """

    collectives: int
    least_ratio: float
    greatest_ratio: float
    quickest_transfer: float
    slowest_transfer: float
    drops: int
    retransmitted_bytes: int | None
    fairness: float | None
    fairness_link: str

    @property
    def holds(self) -> bool:
        """Whether the time of every collective and every transfer is within TOLERANCE of the model's."""
        ratios = self.least_ratio, self.greatest_ratio, self.quickest_transfer, self.slowest_transfer
        return all(abs(ratio - 1) <= TOLERANCE for ratio in ratios)

    @property
    def took(self) -> str:
        """The range of measured/predicted times of collectives."""
        return _range(self.least_ratio, self.greatest_ratio)

    @property
    def transfers_took(self) -> str:
        """The range of measured/predicted times of transfers."""
        return _range(self.quickest_transfer, self.slowest_transfer)

    def cause(self, *, lossy: bool) -> str:
        """Why the model does not hold, in words after "fifo queues, "; `lossy`: WAN links are configured to lose
        frames. Lost packets count before shares: TCP's repair of one takes a round trip at least."""
        if self.drops and lossy:
            return f"as WAN links lose frames (fabric.wan_loss), which {self._sender} sends again"
        if self.drops:
            return f"whose finite buffers drop packets, which {self._sender} sends again"
        if self.retransmitted_bytes is None:
            return "where flows share links by what each sends"
        return "where TCP decides how flows share links"

    @property
    def _sender(self) -> str:
        return "the transport" if self.retransmitted_bytes is None else "TCP"

    @property
    def retransmitted_mb(self) -> str:
        """The megabytes that TCP retransmitted; "-" where nobody counts them."""
        return "-" if self.retransmitted_bytes is None else f"{self.retransmitted_bytes / 1e6:,.1f}"

    @property
    def words(self) -> str:
        """The numbers as a sentence, without the full stop."""
        worst, at_once = "", f" ({_WHY_AT_ONCE})" * (self.drops > 0 and self.quickest_transfer < _AT_ONCE)
        if self.fairness is not None:
            worst = f"; shares are least fair on {self.fairness_link} (Jain's index {self.fairness:.2f} of 1)"
        again = "" if self.retransmitted_bytes is None else f" and {self.retransmitted_mb} MB retransmitted"
        return (
            f"collectives took {self.took} as long as predicted and single transfers {self.transfers_took}{at_once}, "
            f"with {format_count(self.drops, 'drop')}{again}{worst}"
        )


@dataclass(frozen=True, kw_only=True)
class JobFidelity:
    """Fidelity of one job over all measured rounds in which it has this class ("" for none): the median of
    measured/predicted, and the 99th percentile of its distance from 1."""

    job: str
    job_class: str
    median_ratio: float
    p99_abs_error: float

    def __str__(self) -> str:
        of_class = f" in class {self.job_class}" if self.job_class else ""
        return f"job {self.job}{of_class}: median {self.median_ratio:.4f}, p99 {percentage(self.p99_abs_error)}"


@dataclass(frozen=True, kw_only=True)
class ModeFidelity:
    """Fidelity of one mode of one configuration (its index is `setting`) over all measured collectives: the median of
    measured/predicted, and the 99th percentile of its distance from 1."""

    setting: int
    mode: str
    median_ratio: float
    p99_abs_error: float

    def __str__(self) -> str:
        which = f"{self.mode} of setting {self.setting}" if self.setting else self.mode
        return f"{which}: median {self.median_ratio:.4f}, p99 {percentage(self.p99_abs_error)}"


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """The measured collectives that a fault disturbed, which are not compared with the model: how many there are, the
    packets dropped in them, and the payload that TCP retransmitted in them."""

    collectives: int
    drops: int
    retransmitted_bytes: int


@dataclass(frozen=True, kw_only=True)
class SlowStart:
    """Fidelity of the collectives in fair queues whose connections earlier ones have used, over all points without
    `transport.line_rate`: how many there are, the median of measured/predicted, and the 99th percentile of its distance
    from 1 (both None if there are none)."""

    collectives: int
    median_ratio: float | None = None
    p99_abs_error: float | None = None

    @property
    def words(self) -> str:
        """Why the model does not hold, and how near it is otherwise, as a sentence without the full stop."""
        why = "connections begin in slow start (transport.line_rate = false), which the model does not include"
        if self.median_ratio is None or self.p99_abs_error is None:
            return why
        return (
            f"{why}: in {format_count(self.collectives, 'collective')} on connections that earlier ones have used, "
            f"median {self.median_ratio:.4f}, p99 {percentage(self.p99_abs_error)}"
        )


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Fidelity over the measured collectives that no fault disturbed: the median of measured/predicted, the 99th
    percentile of its distance from 1, the packets dropped anywhere, and the payload that TCP retransmitted (None if
    that was not counted). `disturbed` are the others, None without any.

    `late` is the number of collectives for which the machine was too slow on a wall clock (None in virtual time).
    `fifo` is the fidelity in fifo queues, None without any; `modes` and `jobs` are those for which the model does not
    hold, None if it holds for all; `lossy` is True if WAN links are configured to lose frames, otherwise None.
    `again` are the modes in which TCP retransmitted although nothing was lost, None if there are none. `each_job` are
    all jobs outside fifo queues, the worst first, None without any. `what` is measured: None if collectives.
    `slow_start` is None if all connections start at line rate.
    """

    collectives: int
    median_ratio: float
    p99_abs_error: float
    drops: int
    retransmitted_bytes: int | None = None
    late: int | None = None
    fifo: Fifo | None = None
    modes: tuple[ModeFidelity, ...] | None = None
    jobs: tuple[JobFidelity, ...] | None = None
    again: tuple[str, ...] | None = None
    lossy: bool | None = None
    disturbed: Disturbed | None = None
    each_job: tuple[JobFidelity, ...] | None = None
    what: str | None = None
    slow_start: SlowStart | None = None

    def __str__(self) -> str:
        late = "" if self.late is None else f", {self.late:,} late"
        return "\n".join([f"fidelity: {self.words}{late}", *(f"WARNING: {warning}" for warning in self.warnings)])

    @property
    def words(self) -> str:
        """The numbers as one line: measured, dropped and retransmitted with the disturbed collectives."""
        again, left_out = self.all_retransmitted_bytes, self.left_out
        return (
            f"{format_count(self.measured, self.noun)} measured{left_out and f', {left_out}'}, "
            f"median measured/predicted {self.median_ratio:.4f}, "
            f"p99 of |measured/predicted - 1| {percentage(self.p99_abs_error)}, {self.drops_words}"
            + (f", {again / 1e6:,.3f} MB retransmitted" if again else "")
            + (f"; {self.jobs_words}" if self.each_job else "")
        )

    @property
    def noun(self) -> str:
        """What was measured: "collective", or "round" if these are rounds of jobs."""
        return self.what or "collective"

    @property
    def jobs_words(self) -> str:
        """The numbers of each job in each of its classes, the worst first: those of rounds, which end with their last
        job, do not tell them."""
        return list_first([*map(str, self.each_job or ())], _MAX_NAMED, "; ")

    @property
    def measured(self) -> int:
        """The number of measured collectives, with the disturbed ones."""
        return self.collectives + (0 if self.disturbed is None else self.disturbed.collectives)

    @property
    def all_drops(self) -> int:
        """The packets dropped in all measured collectives."""
        return self.drops + (0 if self.disturbed is None else self.disturbed.drops)

    @property
    def all_retransmitted_bytes(self) -> int:
        """The payload that TCP retransmitted in all measured collectives, as far as it was counted."""
        return (self.retransmitted_bytes or 0) + (0 if self.disturbed is None else self.disturbed.retransmitted_bytes)

    @property
    def left_out(self) -> str:
        """How many of the measured collectives are not compared, and why; "" if all are."""
        return "" if self.disturbed is None else f"{self.disturbed.collectives:,} of them {_LEFT_OUT}"

    @property
    def drops_words(self) -> str:
        """The packets dropped in all measured collectives, and how many of them in disturbed ones."""
        words, here = format_count(self.all_drops, "drop"), 0 if self.disturbed is None else self.disturbed.drops
        if not here:
            return words
        return f"{words} ({'all' if here == self.all_drops else f'{here:,}'} in disturbed collectives)"

    @property
    def holds(self) -> bool:
        """Whether the median and the 99th percentile are within TOLERANCE of the model's predictions, over all
        collectives, for each mode of each configuration and for each job, and in fifo queues every transfer is.

        Few collectives of one mode, such as those after a change, do not show among those of all modes, but in the
        difference between modes."""
        near = _is_near(self.median_ratio, self.p99_abs_error) and not self.modes and not self.jobs
        return near and (self.fifo is None or self.fifo.holds)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each problem: the model does not hold, packets were lost, the machine was too slow."""
        sentences = []
        unfair = None if self.fifo is None or self.fifo.holds else self.fifo
        if unfair is not None:
            why = "the model does not hold in fifo queues, "
            sentences.append(f"{why}{unfair.cause(lossy=bool(self.lossy))}: {unfair.words}")
        if not self.holds and (unfair is None or unfair.collectives != self.collectives):
            off = f"median {self.median_ratio:.4f}, p99 of its distance from 1 {percentage(self.p99_abs_error)}"
            modes = self.modes or ()
            more = [f"{len(modes) - _MAX_NAMED} more modes"] if len(modes) > _MAX_NAMED else []
            off = "; ".join(map(str, (off, *modes[:_MAX_NAMED], *more, *(self.jobs or ()))))
            sentences.append(
                f"measured times differ from the model's by more than {TOLERANCE:.0%} ({off}): "
                "predictions for this configuration do not hold"
            )
        if self.slow_start is not None and not self.holds:
            sentences.append(self.slow_start.words)
        if self.lossy:
            sentences.append("WAN links lose frames (fabric.wan_loss), which the model does not include")
        elif drops := self.drops - (0 if unfair is None else unfair.drops):
            lost = f"{format_count(drops, 'packet')} lost in a network that should lose none"
            sentences.append(f"{lost}: these times are not those of a lossless fabric")
        if self.again:
            sentences.append(
                f"TCP retransmitted in {', '.join(self.again)} although nothing was lost: these times are not those of "
                "the network alone"
            )
        if self.late:
            late = format_count(self.late, "collective")
            sentences.append(f"this machine was too slow for {late}, marked in the column late")
        return tuple(sentences)


def percentage(share: float) -> str:
    """Format a share in per cent with two decimals, or more if two significant digits need them: "0.00040 %"."""
    decimals = 2 if not 0 < share < 1e-3 else 1 - math.floor(math.log10(share * 100))
    return f"{share * 100:.{decimals}f} %"


def _is_near(median_ratio: float, p99_abs_error: float) -> bool:
    return abs(median_ratio - 1) <= TOLERANCE and p99_abs_error <= TOLERANCE


def _range(least: float, greatest: float) -> str:
    """Format two ratios: "0.98 to 15.2 times", or "1.00 times" if they look the same."""
    ends = []
    for ratio in (least, greatest):
        decimals = 2 if ratio < 10 else 1
        ends.append(f"{ratio:,.{decimals if ratio < 100 else 0}f}")
    return f"{' to '.join(dict.fromkeys(ends))} times"


def fifo_of(parts: "Iterable[pd.DataFrame]") -> Fifo | None:
    """Return the fidelity in fifo queues from rows of collectives without faults; None without such rows."""
    import pandas as pd

    queued = [part[_is_fifo(part)] for part in parts]
    queued = [part for part in queued if len(part)]
    if not queued:
        return None
    rows = pd.concat(queued)
    ratios = rows["completion_s"] / rows["predicted_s"]
    shared = rows[rows["fairness"].notna()].reset_index()
    worst = shared.loc[shared["fairness"].idxmin()] if len(shared) else None
    return Fifo(
        collectives=len(rows),
        least_ratio=float(ratios.min()),
        greatest_ratio=float(ratios.max()),
        quickest_transfer=float(rows["quickest_transfer"].min()),
        slowest_transfer=float(rows["slowest_transfer"].max()),
        drops=int(rows["drops"].sum()),
        retransmitted_bytes=_whole_sum(rows["retransmitted_bytes"]),
        fairness=None if worst is None else float(worst["fairness"]),
        fairness_link="" if worst is None else str(worst["fairness_link"]),
    )


def _whole_sum(values: "pd.Series[float]") -> int | None:
    """Return the sum of the values that are known; None if none is."""
    return None if values.isna().all() else int(values.sum())


def fidelity(
    parts: "Iterable[pd.DataFrame]",
    jobs: "pd.DataFrame | None" = None,
    *,
    disturbed: "Iterable[pd.DataFrame]" = (),
    is_real: bool = False,
    lossy: bool = False,
    classes: Mapping[tuple[int, str], str | None] = MappingProxyType({}),
    are_rounds: bool = False,
    slow: Collection[int] = (),
) -> Fidelity | None:
    """Return the fidelity from rows of measured collectives without faults, and from the rows of their `jobs`.

    `classes` has the class of a job by its setting and name, if it has one. `are_rounds`: the rows are rounds of jobs.
    `slow` are the settings without `transport.line_rate`.

    `disturbed` are the rows of those that a fault disturbed. `is_real`: they were measured on a wall clock. `lossy`:
    WAN links are configured to lose frames. None without rows of collectives without faults.
    """
    import pandas as pd

    filled = [part for part in parts if len(part)]
    if not filled:
        return None
    rows = pd.concat(filled)
    ratios = rows["completion_s"] / rows["predicted_s"]
    each_job = () if jobs is None or jobs.empty else _each_job(rows, jobs, classes)
    counted, again = rows["retransmitted_bytes"].dropna(), rows[_is_again(rows)]
    return Fidelity(
        collectives=len(rows),
        median_ratio=float(ratios.median()),
        p99_abs_error=float((ratios - 1).abs().quantile(0.99)),
        drops=int(rows["drops"].sum()),
        retransmitted_bytes=int(counted.sum()) if len(counted) else None,
        modes=tuple(_modes_off(rows)) or None,
        again=tuple(dict.fromkeys(again["mode"])) or None,
        late=int(rows["late"].sum()) if is_real else None,
        fifo=fifo_of([rows]),
        jobs=tuple(one for one in each_job if not _is_near(one.median_ratio, one.p99_abs_error)) or None,
        each_job=each_job or None,
        what="round" if are_rounds else None,
        lossy=lossy or None,
        disturbed=_disturbed(disturbed),
        slow_start=_slow_start(rows[rows["setting"].isin([*slow])]) if slow else None,
    )


def _slow_start(rows: "pd.DataFrame") -> SlowStart:
    """Return the fidelity on connections that earlier collectives have used: not a point's first one, nor the first of
    a new placement. Where queues are finite, every collective has new ones."""
    later = rows[(rows["collective"] > 0) & ~rows["reembedded"].astype(bool) & ~_is_fifo(rows)]
    if later.empty:
        return SlowStart(collectives=0)
    ratios = later["completion_s"] / later["predicted_s"]
    return SlowStart(
        collectives=len(later),
        median_ratio=float(ratios.median()),
        p99_abs_error=float((ratios - 1).abs().quantile(0.99)),
    )


def _disturbed(parts: "Iterable[pd.DataFrame]") -> Disturbed | None:
    found = [part for part in parts if len(part)]
    if not found:
        return None
    return Disturbed(
        collectives=sum(map(len, found)),
        drops=sum(int(part["drops"].sum()) for part in found),
        retransmitted_bytes=sum(int(part["retransmitted_bytes"].sum()) for part in found),
    )


def _is_fifo(rows: "pd.DataFrame") -> "pd.Series[bool]":
    """Return which rows were measured in fifo queues: those with shares of links."""
    return rows["quickest_transfer"].notna()


def _is_again(rows: "pd.DataFrame") -> "pd.Series[bool]":
    """Return in which rows TCP retransmitted although nothing was lost, outside fifo queues."""
    return ~_is_fifo(rows) & (rows["drops"] == 0) & (rows["retransmitted_bytes"] > 0)


def _modes_off(rows: "pd.DataFrame") -> "Iterator[ModeFidelity]":
    """Yield the modes of configurations for which the model does not hold, outside fifo queues."""
    for (setting, mode), here in rows[~_is_fifo(rows)].groupby(["setting", "mode"], sort=False):
        ratios = here["completion_s"] / here["predicted_s"]
        median_ratio, p99_abs_error = float(ratios.median()), float((ratios - 1).abs().quantile(0.99))
        if not _is_near(median_ratio, p99_abs_error):
            yield ModeFidelity(
                setting=int(setting), mode=str(mode), median_ratio=median_ratio, p99_abs_error=p99_abs_error
            )


def _each_job(
    rows: "pd.DataFrame", jobs: "pd.DataFrame", classes: Mapping[tuple[int, str], str | None]
) -> tuple[JobFidelity, ...]:
    """Return the fidelity of each job in each of its classes, the worst first, outside fifo queues, where `Fifo` covers
    all transfers."""
    key = ["engine", "setting", "mode", "collective"]
    measured = jobs.merge(rows.loc[~_is_fifo(rows), key])
    names = zip(measured["setting"].tolist(), measured["job"].tolist(), strict=True)
    measured["class"] = [classes.get((int(setting), str(job))) or "" for setting, job in names]
    found = []
    for (job, job_class), times in measured.groupby(["job", "class"], sort=False):
        ratios = (times["completion_s"] / times["predicted_s"]).dropna()
        if len(ratios):
            numbers = {
                "median_ratio": float(ratios.median()),
                "p99_abs_error": float((ratios - 1).abs().quantile(0.99)),
            }
            found.append(JobFidelity(job=str(job), job_class=str(job_class), **numbers))
    return tuple(sorted(found, key=lambda one: -one.p99_abs_error))
