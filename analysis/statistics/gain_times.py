"""When the fastest mode of a run under recorded conditions gains: a recording has good and bad times, which a mean over
it hides."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from analysis.statistics.answer import engines_told, judged
from analysis.statistics.contests import MODE, Place, Setting, as_in_sentences, contests_of
from analysis.statistics.intervals import Flags, Floats, Numbers, Series, shared
from analysis.statistics.number_words import at_words, fixed, milliseconds
from topologies.conditions.clock import in_utc
from topologies.conditions.sampler import ConditionsSpec
from topologies.errors import list_all
from topologies.units import format_delay

_FASTER = 0.01  # by which share of its time a collective is to be faster to count
_MOST_OF_IT = 0.9  # of the time saved, whose place is told
_PART = 2 / 3  # a place that is a larger part of the run tells nothing
_LESS_OF_IT = (0.8, 0.7, 0.6, 0.5)  # whose place is told instead if it has twice as much as an even spread would have
_DENSE = 2
_MOST_RUNS = 4  # of slower collectives that are named
_MOST_CONTESTS = 3
_HOUR_S = 3600


def gain_times_sentence(
    settings: Sequence[Setting],
    times: Mapping[tuple[str, Place], Series],
    conditions: Mapping[int, ConditionsSpec],
    in_gaps: Mapping[int, Collection[int]] = MappingProxyType({}),
    begins_ns: Mapping[int, int | None] = MappingProxyType({}),
) -> str:
    """Return in how many collectives the best mode of the answer is faster than the baseline, in how many slower and by
    how much, and where most of the time is saved; "" if conditions are not recorded, for many configurations, or if the
    baseline is the best.

    `times` are those by engine and point, and `conditions` those of a configuration by its index; `in_gaps` are its
    collectives in gaps of its trace, as far as known, and `begins_ns` when its trace begins, in ns since 1970.
    """
    told = [
        (measured, verdict)
        for measured, verdict in judged(as_in_sentences(contests_of(settings)), times)
        if measured.contest.key == MODE and all(one.recorded for one in measured.times.values())
    ]
    if len(told) > _MOST_CONTESTS:
        return ""
    parts = list[str]()
    for measured, verdict in told:
        baseline, contest = verdict.contest.baseline, measured.contest
        pair = shared([measured.times[name] for name in (baseline, verdict.best) if name in measured.times])
        if pair is None or len(pair) < 2 or verdict.below is None:
            continue
        base, best = pair
        where = f" {at_words(', '.join(value.words for value in contest.at))}" if len(told) > 1 else ""
        index = contest.all_places[0].setting
        count = _faster_words(base, best, verdict.best, baseline, is_first=not parts)
        held, slower = _gap_words(base, best, in_gaps.get(index, ())), _slower_words(base, best)
        place = _place_words(base, best, _Clock(conditions[index], begins_ns.get(index)))
        parts.append(f"{count}{where}{held}{place}{slower}")
    return f"{'; '.join(parts)}." if parts else ""


@dataclass(frozen=True)
class _Clock:
    """The conditions of a configuration, and when its trace begins, in ns since 1970, if that is known."""

    conditions: ConditionsSpec
    begins_ns: int | None

    def at(self, number: int) -> str:
        """Return when a collective begins in the trace, "" without one, or where it repeats or is read by time."""
        spec = self.conditions
        if spec.sampler != "trace" or spec.trace_repeat or spec.every_s is not None:
            return ""
        return time_in_trace(number * spec.trace_step_s, self.begins_ns)


def worst_sentence(
    settings: Sequence[Setting],
    times: Mapping[tuple[str, Place], Series],
    conditions: Mapping[int, ConditionsSpec],
    begins_ns: Mapping[int, int | None] = MappingProxyType({}),
) -> str:
    """Return which collective takes longest, and when that is in the trace, in the best mode of the answer and in the
    baseline; "" without a trace, and for many configurations.

    The arguments are those of `gain_times_sentence`.
    """
    traced = {index for index, one in conditions.items() if one.sampler == "trace"}
    found = list[tuple[int, dict[str, Series], str]]()  # the configuration, times by name, and where that is
    for measured, verdict in judged(as_in_sentences(contests_of(settings)), times):
        contest = measured.contest
        here = {one: measured.times[one] for one in (verdict.best, contest.baseline) if one in measured.times}
        where = at_words(", ".join(value.words for value in contest.at))
        if contest.key == MODE and contest.all_places[0].setting in traced:
            found.append((contest.all_places[0].setting, here, where))
    places = {place for _, place in times}
    if not contests_of(settings) and len(places) == 1:
        (place,) = places
        (engine,) = engines_told(settings, times).values()
        found += [(place.setting, {place.mode: times[engine, place]}, "")] if place.setting in traced else []
    if not 0 < len(found) <= _MOST_CONTESTS:
        return ""
    parts = [
        f"{_longest_words(series, _Clock(conditions[index], begins_ns.get(index)))} in {name}"
        + (f" {where}" if len(found) > 1 else "")
        for index, here, where in found
        for name, series in here.items()
    ]
    return f"The longest is {'; '.join(parts)}."


def _longest_words(series: Series, clock: _Clock) -> str:
    """Return the time of the longest collective, its number, and when it begins in the trace."""
    longest = int(series.completion_s.argmax())
    number = int(series.number[longest])
    when = clock.at(number)
    at = f", at {when} of the trace," if when else ""
    return f"collective {number:,} of {milliseconds(float(series.completion_s[longest]))} ms{at}"


def _faster_words(base: Series, best: Series, name: str, baseline: str, *, is_first: bool) -> str:
    faster = int(_is_faster(base, best).sum())
    of = "all" if faster == base.number.size else f"{faster:,} of"
    which = f"{'In' if is_first else 'in'} {of} {base.number.size:,} collectives"
    return f"{which} {name} is faster than {baseline} by more than {_FASTER * 100:.0f} %"


def _is_faster(base: Series, best: Series) -> Flags:
    return best.completion_s < (1 - _FASTER) * base.completion_s


def _gap_words(base: Series, best: Series, in_gaps: Collection[int]) -> str:
    """Return how many of the collectives in which the best mode is faster have rates that a trace does not have."""
    faster = base.number[_is_faster(base, best)]
    held = int(np.isin(faster, sorted(in_gaps)).sum())
    return f" ({held:,} of these in gaps of the trace, across which the previous rates hold)" if held else ""


def _slower_words(base: Series, best: Series) -> str:
    """Return in how many collectives the best mode is slower, and by how much in them all together."""
    slower = best.completion_s > (1 + _FASTER) * base.completion_s
    if not slower.any():
        return ""
    longer = float(best.completion_s[slower].sum() / base.completion_s[slower].sum()) - 1
    more = f"{fixed(longer * 100, 0 if longer >= 0.1 else 1)} % longer over these together"
    which, count = _runs_words(base.number[slower]), f"{int(slower.sum()):,}"
    return f"; in {count}{f' ({which})' * bool(which)} it is slower by more than {_FASTER * 100:.0f} %, {more}"


def _runs_words(numbers: Numbers) -> str:
    """Return ascending numbers in words, those that follow each other as one: "3, 14 and 15", "7 and 20 to 24"; "" if
    that takes too many."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    if len(runs) > _MOST_RUNS:
        return ""
    words = list[str]()
    for run in runs:
        first, last = (f"{int(end):,}" for end in (run[0], run[-1]))
        words += [f"{first} to {last}"] if run.size > 2 else list(dict.fromkeys([first, last]))
    return list_all(words)


def _place_words(base: Series, best: Series, clock: _Clock) -> str:
    """Return in which collectives, and when in a trace, most of the time is saved, if that is a part of the run."""
    saved_s = np.maximum(base.completion_s - best.completion_s, 0.0)
    share = next((one for one in (_MOST_OF_IT, *_LESS_OF_IT) if _is_a_place(saved_s, one)), None)
    if share is None:
        return ", spread over the run"
    first, last = shortest_with(saved_s, share)
    begin, end = base.number[first], base.number[last]
    which = f"in collective {begin:,}" if begin == end else f"in collectives {begin:,} to {end:,}"
    return f"; {share * 100:.0f} % of the time saved is saved {which}{_when(base.number[[first, last]], clock)}"


def _is_a_place(saved_s: Floats, share: float) -> bool:
    """Return whether the fewest consecutive values, [K], with this share of their sum are so few that it tells
    something."""
    first, last = shortest_with(saved_s, share)
    part = (last - first + 1) / saved_s.size
    return part <= _PART if share == _MOST_OF_IT else part * _DENSE <= share


def shortest_with(saved_s: Floats, share: float) -> tuple[int, int]:
    """Return the first and the last index of the fewest consecutive values, [K] with a sum above 0, that have this
    share of their sum."""
    total_s = np.concatenate([[0.0], np.cumsum(saved_s)])
    # For each beginning the first end that is far enough; the rounding of sums must not ask for more than all.
    ends = np.searchsorted(total_s, total_s[:-1] + share * total_s[-1] * (1 - 1e-12))
    lengths = np.where(ends < total_s.size, ends - np.arange(saved_s.size), total_s.size)
    first = int(lengths.argmin())
    return first, int(ends[first]) - 1


def _when(ends: Numbers, clock: _Clock) -> str:
    """Return the time in a trace that these collectives span, if it does not repeat."""
    begin, end = (clock.at(int(number)) for number in ends)
    if not begin:
        return ""
    return f", at {begin} of the trace" if begin == end else f", from {begin} to {end} of the trace"


def time_in_trace(seconds: float, begins_ns: int | None = None) -> str:
    """Return a time in a trace in words: "240 s", and with hours, minutes and seconds from an hour on: "38,400 s
    (10:40:00)"; with the time of day if it is known when the trace begins, in ns since 1970: "240 s (2026-01-01
    05:04:00 UTC)"."""
    told = [] if begins_ns is None else [in_utc(begins_ns + round(seconds * 1e9))]
    text = format_delay(seconds) if seconds else "0 s"
    if seconds >= _HOUR_S:
        whole = round(seconds)
        text = f"{seconds:,.10g} s"
        told.insert(0, f"{whole // _HOUR_S}:{whole % _HOUR_S // 60:02}:{whole % 60:02}")
    return f"{text} ({', '.join(told)})" if told else text
