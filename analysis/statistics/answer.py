"""The result of a run in one sentence: what was compared, what is fastest, by how much, and how surely."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from types import MappingProxyType

from analysis.statistics.contests import (
    MODE,
    Contest,
    Place,
    Repetition,
    Setting,
    as_in_sentences,
    contests_of,
    pooled_by_seeds,
    repetition_of,
    repetitions,
    seeds_words,
    shared_words,
    which_words,
)
from analysis.statistics.intervals import (
    FEW,
    Interval,
    Series,
    are_equal,
    ascending,
    gain_through,
    shared,
    summarise,
)
from analysis.statistics.job_times import job_sentence
from analysis.statistics.jobs_in_words import BACKGROUND, REQUESTS
from analysis.statistics.number_words import (
    ROUNDING,
    all_words,
    at_words,
    collective_name,
    counted,
    decimals,
    fixed,
    has_interval,
    interval_words,
    is_alike,
    longer_words,
    milliseconds,
    milliseconds_of,
    percent,
    quoted,
    share_words,
    why_none,
)
from topologies.errors import list_all, list_first

_MAX_RUNS = 4  # changes of the best along a number that are still told one by one
_MAX_NAMES = 4
_MOST_OWN = 2  # modes of the scenario's own that are told wherever they stand
_CHOOSING = {"ccl": "embedding alone", "wan": "paths alone", "joint": "both"}  # what modes choose
_PAIR = 2  # values of a number between which nothing grows that they do not tell
_STEADY = 0.01  # a change of a time along a line, as a share, that is not told
_RIPPLE = 0.05  # steps against a trend, as a share of its range, that are not told


_ROUND_OF_REQUESTS = (
    "(A round takes until all messages have arrived; a request that is prefilled where it is decoded sends none, and "
    "its first token may be later.)"
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one contest.

    `best` has the lowest of the mean times `means_s`. `equal` took the same times as it, if only in these
    collectives (`only_here`) where the intervals of their means differ, `tied` have a difference whose interval
    includes zero, and `unsure` one without an interval, with the reason. `loose` are told from it by their own 95 %
    interval, but not if all comparisons of the sentence are to hold together with 95 % (Bonferroni). `below` is the
    gain of the best over its baseline; if the best is the baseline, `below_next` is its gain over `next`, the one
    with the next higher mean. `over_baseline` has the gain of each other alternative over the baseline, and
    `over_others` that of the best over each other one. `quantity` is what `means_s` are, in words.
    """

    contest: Contest
    best: str
    means_s: Mapping[str, float]
    equal: tuple[str, ...]
    tied: tuple[str, ...]
    unsure: Mapping[str, str]
    loose: tuple[str, ...]
    below: Interval | None
    next: str | None
    below_next: Interval | None
    over_baseline: Mapping[str, Interval]
    over_others: Mapping[str, Interval]
    quantity: str = "mean"
    only_here: bool = False

    @property
    def leaders(self) -> tuple[str, ...]:
        """The best, followed by what is equal to it or cannot be told from it."""
        return (self.best, *self.equal, *self.tied, *self.unsure)


_Names = Callable[[Verdict], Sequence[str]]
"""Takes the outcome of a contest, and returns some of its alternatives."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """The times of the alternatives of a contest, by name, and the engine that they come from.

    Each alternative has at least so many `collectives` with each of `seeds`, in words.
    """

    contest: Contest
    times: Mapping[str, Series]
    engine: str
    repetitions: tuple[Repetition, ...]
    collectives: int

    @property
    def is_measured(self) -> bool:
        """Whether the times were measured instead of predicted."""
        return self.engine == "emulation"


def answer(
    settings: Sequence[Setting],
    times: Mapping[tuple[str, Place], Series],
    jobs: Mapping[tuple[str, Place], Mapping[str, Series]] = MappingProxyType({}),
) -> str:
    """Return the sentence on a run's completion times, by engine ("model" or "emulation") and point, and if its rounds
    have several `jobs`, what each of them takes.

    If both engines ran a contest, the measured times count, unless the model has more collectives and all faults.
    Points without times are left out. Rounds of nothing but requests are compared by the times of these alone.
    """
    told = judged(as_in_sentences(contests_of(settings)), times)
    kinds = {str(job.get("kind", "")) for one in settings for job in one.jobs}
    of_jobs = job_sentence(settings, jobs, follows=bool(told) and not kinds <= {REQUESTS, BACKGROUND})
    if not told or (of_jobs and kinds and kinds <= {REQUESTS, BACKGROUND}):
        return f"{of_jobs.removesuffix('.')}{_hash_of_jobs(settings)}." if of_jobs else _alone(settings, times)
    if REQUESTS in kinds:
        of_jobs = f"{_ROUND_OF_REQUESTS} {of_jobs}"
    contests, verdicts = [one for one, _ in told], [verdict for _, verdict in told]
    count = sum(len(one.times) - 1 for one in contests)
    if not all(one.contest.is_rivalry for one in contests):
        means = "; ".join(map(side_by_side, verdicts))
        doubts = f"{_other_work(contests)}{_hash_doubt(contests, verdicts)}"
        return f"{_compared(contests)}: {means}{doubts}. {of_jobs}".strip()
    doubts = f"{_together(verdicts, count)}{_without_keys(verdicts)}{_hash_doubt(contests, verdicts)}"
    return f"{_compared(contests)}: {outcomes(verdicts)}{doubts}. {of_jobs}".strip()


def judged(contests: Sequence[Contest], times: Mapping[tuple[str, Place], Series]) -> list[tuple[Measured, Verdict]]:
    """Return the times and the outcome of each contest in the engine that counts for the answer, as one of all the
    comparisons that it makes; contests without times are left out."""
    measured = [one for one in (_with_times(each, times) for each in contests) if one is not None]
    count = sum(len(one.times) - 1 for one in measured)
    return [(one, verdict_of(one.contest, one.times, comparisons=count)) for one in measured]


def engines_told(settings: Sequence[Setting], times: Mapping[tuple[str, Place], Series]) -> dict[Place, str]:
    """Return the engine whose times the answer tells of each point, so that what is told beside it is of the same."""
    found = {place: engine for place, (engine, _) in _of_most_collectives(times).items()}
    for measured, _ in judged(contests_of(settings), times):
        found |= dict.fromkeys(measured.contest.all_places, measured.engine)
    return found


def winners(
    settings: Sequence[Setting], times: Mapping[tuple[str, Place], Series]
) -> list[tuple[str, Place, tuple[Place, ...]]]:
    """Return the name and a point of the fastest in each contest of the sentence, and all points of the contest."""
    measured = (_with_times(each, times) for each in as_in_sentences(contests_of(settings)) if each.is_rivalry)
    found = [(one.contest, verdict_of(one.contest, one.times).best) for one in measured if one is not None]
    return [(best, next(iter(contest.places[best].values())), contest.all_places) for contest, best in found]


def verdict_of(contest: Contest, times: Mapping[str, Series], *, comparisons: int = 1) -> Verdict:
    """Return the outcome of a contest, over the collectives that all of its alternatives have, as one of so many
    `comparisons`."""
    names, common = list(times), shared(list(times.values()))
    series = dict(zip(names, common if common is not None else times.values(), strict=True))
    means = {name: float(one.completion_s.mean()) for name, one in series.items()}
    order = ascending(means, contest.baseline)
    best, others = order[0], order[1:]
    third = series.get(contest.baseline)
    over = {name: _gain(series[name], series[best], third) for name in others}
    equal = tuple(name for name in others if are_equal(series[name], series[best]))
    differing = [name for name in others if name not in equal]
    following = differing[0] if differing else None
    is_baseline = best == contest.baseline or contest.baseline in equal
    told = [name for name in differing if not over[name].why and over[name].low > ROUNDING]
    together = {name: _gain(series[name], series[best], third, confidence=1 - 0.05 / comparisons) for name in told}
    return Verdict(
        contest=contest,
        best=best,
        means_s=means,
        equal=equal,
        tied=tuple(name for name in differing if not over[name].why and over[name].low <= ROUNDING),
        unsure={name: over[name].why for name in differing if over[name].why},
        loose=tuple(name for name in told if not together[name].low > ROUNDING),
        below=None if is_baseline or contest.baseline not in series else over[contest.baseline],
        next=following,
        below_next=None if following is None else over[following],
        over_baseline={name: _gain(third, series[name], None) for name in names if name != contest.baseline}
        if third is not None
        else {},
        over_others=over,
        only_here=len({_interval_of(series[name]) for name in (best, *equal)}) > 1,
    )


def _interval_of(series: Series) -> str:
    """Return the interval of a mean as it is told."""
    return interval_words(summarise(series).mean_s, 1e3, " ms")


def _gain(slower: Series, faster: Series, third: Series | None, *, confidence: float = 0.95) -> Interval:
    found = gain_through(third, slower, faster, confidence=confidence)
    return Interval(value=math.nan, low=math.nan, high=math.nan, why=FEW) if found is None else found


def _with_times(contest: Contest, times: Mapping[tuple[str, Place], Series]) -> Measured | None:
    """Return a contest with the times of one engine; None if fewer than two alternatives have times there."""
    found = []
    for engine in ("model", "emulation"):
        here = {place: series for (of, place), series in times.items() if of == engine}
        places = contest.known_places(here)
        if len(places) > 1:
            found.append(
                Measured(
                    contest=contest if engine == "model" else replace(contest, unmodelled=()),
                    times=contest.times(here),
                    engine=engine,
                    repetitions=tuple({one for by_seeds in places.values() for one in by_seeds}),
                    collectives=min(
                        here[place].number.size for by_seed in places.values() for place in by_seed.values()
                    ),
                )
            )
    # Predictions of a fault that the model has not would say that nothing has happened.
    lacks = contest.is_unmodelled
    return max(
        found,
        key=lambda one: (len(one.times), lacks and one.is_measured, one.collectives, one.is_measured),
        default=None,
    )


def _of_most_collectives(times: Mapping[tuple[str, Place], Series]) -> dict[Place, tuple[str, Series]]:
    """Return the engine with most collectives of each point, the measured one of two with as many, and its times."""
    ordered = sorted(times.items(), key=lambda item: (item[1].number.size, item[0][0] != "model"))
    return {place: (engine, series) for (engine, place), series in ordered}


def _alone(settings: Sequence[Setting], times: Mapping[tuple[str, Place], Series]) -> str:
    """Return the sentence on points of which no two are comparable."""
    by_place, parts = _of_most_collectives(times), list[str]()
    for group in repetitions(settings):
        here = [(one, by_place[place]) for one in group for place in by_place if place.setting == one.index]
        if not here:
            continue
        mode = next(place.mode for place in by_place if place.setting == here[0][0].index)
        seeded = [repetition_of(one) for one, _ in here]
        times_s = dict(zip(seeded, (series for _, (_, series) in here), strict=True))
        mean_s = summarise(pooled_by_seeds(times_s, seeded)).mean_s
        count = counted(
            [collective_name(group[0].kind, group[0].iterations)],
            [series.number.size for _, (_, series) in here],
            [engine == "emulation" for _, (engine, _) in here],
            seeds=seeds_words(seeded),
            each=False,
        )
        label = shared_words([one.label for one in group])
        hashed = [mode] if any(mode in one.hashed for one in group) else []
        doubt = _one_hash(hashed, [mode], seeded, has_interval=has_interval(mean_s))
        mean = f"a mean of {milliseconds_of(mean_s)} ms{interval_words(mean_s, 1e3, ' ms')}"
        parts.append(f"{label}: {mean} in {mode} over {count}{doubt}")
    what = "no mode to compare it with" if len(parts) == 1 else "these differ in no value that could be compared"
    return f"{list_first(parts, _MAX_NAMES, separator='; ')}; {what}."


def _compared(contests: Sequence[Measured]) -> str:
    """Return what was compared, over how many collectives, and where."""
    names = list(dict.fromkeys(name for one in contests for name in one.times))
    what = list_all(names) if len(names) <= 2 * _MAX_NAMES else f"{names[0]} to {names[-1]} ({len(names)})"
    number = counted(
        [collective_name(one.contest.kind, one.contest.iterations) for one in contests],
        [one.collectives for one in contests],
        [one.is_measured for one in contests],
        seeds=min((seeds_words(one.repetitions) for one in contests), key=len),
    )
    where = contests[0].contest.label if len(contests) == 1 else f"{len(contests)} configurations"
    modes = list(dict.fromkeys(place.mode for one in contests for place in one.contest.all_places))
    told = list_all(modes) if len(modes) <= _MAX_NAMES else list_first(modes, _MAX_NAMES)
    of_mode = "" if contests[0].contest.key == MODE else f" in {told}"
    return f"{what} compared over {number}{of_mode}{where and f', {where}'}"


def outcomes(verdicts: Sequence[Verdict]) -> str:
    """Return the outcome of all contests: along a number if they differ by one, or else by what is best."""
    if len(verdicts) == 1:
        return f"{_outcome(verdicts)}{_along(verdicts[0])}"
    if said := _by_lines(verdicts):
        return said
    trend = ""
    if all(len(one.contest.at) == 1 and one.contest.at[0].number is not None for one in verdicts):
        ordered = sorted(verdicts, key=lambda one: one.contest.at[0].number or 0)
        runs = [list(some) for _, some in groupby(ordered, key=lambda one: one.best)]
        growth = _growth([(one.contest.at[0].words, one) for one in ordered]) if len(ordered) > _PAIR else []
        if 1 < len(runs) <= _MAX_RUNS:
            told = [f"{_outcome(run, where=_span(run, runs))}{_trend(run)}" for run in runs]
            return "; ".join([*told, *growth])
        trend = "; ".join([_trend(ordered) if len(runs) == 1 else "", *growth])
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for one in verdicts:
        groups.setdefault(one.leaders, []).append(one)
    total, by_size = len(verdicts), sorted(groups.values(), key=lambda group: -len(group))
    return "; ".join(_outcome(group, where=_at(group, total)) for group in by_size) + trend + _turns(verdicts)


def _by_lines(verdicts: Sequence[Verdict]) -> str:
    """Return the outcome of contests that differ by several keys, of which one is a quantity: along that quantity, at
    each combination of the others. It is "" if none is, or if that is too much for a sentence."""
    keys = range(len(verdicts[0].contest.at))
    if len(keys) < 2 or any(len(one.contest.at) != len(keys) for one in verdicts):
        return ""
    lines = [_lines(verdicts, key) for key in keys if all(one.contest.at[key].number is not None for one in verdicts)]
    few = [each for each in lines if len(each) <= _MAX_NAMES and all(len(line) > 1 for line in each.values())]
    if not few:
        return ""
    by_words: dict[str, list[str]] = {}
    for at, line in max(few, key=_most_turns).items():
        by_words.setdefault(_along_line(line), []).append(quoted(at))
    if "" in by_words:
        return ""
    return "; ".join(f"at {list_all(at)}: {words}" for words, at in by_words.items())


def _along_line(line: "_Line") -> str:
    """Return the outcome along a quantity, with how the baseline's time goes and what embedding and paths save; "" if
    the best changes too often."""
    sure = [list(run) for _, run in groupby(line, key=lambda each: (each[1].best, bool(_open(each[1]))))]
    runs = [list(run) for _, run in groupby(line, key=lambda each: each[1].best)]
    runs = sure if len(sure) <= _MAX_RUNS and not _saved_by_each(line) else runs
    if len(runs) > _MAX_RUNS:
        return ""
    growth, saved = _growth(line), _saved_by_each(line)
    if saved:  # with four modes in each line, all margins and doubts would be too much
        return "; ".join([*growth, saved, _best_of_runs(runs, line)])
    return "; ".join([*growth, *(_of_run(run, line) for run in runs)])


def _growth(line: "_Line") -> list[str]:
    """Return what the baseline takes at both ends of a line, unless that is about the same."""
    (first, one), (last, other) = line[0], line[-1]
    name = one.contest.baseline
    begin_s, end_s = one.means_s.get(name), other.means_s.get(name)
    if begin_s is None or end_s is None or math.isclose(begin_s, end_s, rel_tol=_STEADY):
        return []
    return [f"{name} takes {milliseconds(begin_s)} ms at {first} and {milliseconds(end_s)} ms at {last}"]


def _where_along(run: "_Line", line: "_Line") -> str:
    """Return where in a line neighbours are: " from 8 MB on"; "" for all of it."""
    is_first, is_last = run[0] == line[0], run[-1] == line[-1]
    return "" if is_first and is_last else _span_words([at for at, _ in run], is_first=is_first, is_last=is_last)


def _of_run(run: "_Line", line: "_Line") -> str:
    """Return the outcome of neighbours in a line of which the same alternative is best."""
    group, words, where = [one for _, one in run], [at for at, _ in run], _where_along(run, line)
    if all(one.next is None for one in group):
        return f"{_winner(group, where)}"
    best = list_all([group[0].best, *dict.fromkeys(name for one in group for name in one.equal)])
    is_open = all(map(_open, group))
    verb = "has the lowest mean" if is_open else ("are" if best != group[0].best else "is") + " fastest"
    tied, untested = (
        _places_in([(at, names_of(one)) for at, one in run], words) for names_of in (lambda one: one.tied, _untested)
    )
    doubt = _doubt(tied, untested, _why_untested(group, _untested))
    if longer := _longer(group):
        return f"{best} {verb}{where}{_doubt_and_longer(group, doubt, longer)}"
    return f"{best} {verb}{where}{_margin_along(group)}{doubt}"


def _open(one: Verdict) -> tuple[str, ...]:
    """Return what the best of a contest cannot be told from, or was not tested against."""
    return (*one.tied, *_untested(one))


def _untested(one: Verdict) -> tuple[str, ...]:
    """Return the next one of a contest if its difference from the best has no interval."""
    return tuple(name for name in one.unsure if name == one.next)


def _places_in(names_at: Sequence[tuple[str, Sequence[str]]], words: Sequence[str]) -> list[str]:
    """Return names with the places in a line where they were found, given those found at each place of a part of it."""
    places: dict[tuple[str, ...], list[str]] = {}
    for at, names in names_at:
        if names:
            places.setdefault(tuple(names), []).append(at)
    return [
        f"{list_all(names)}{_at_some(at, words) if len(at) < len(names_at) else ''}" for names, at in places.items()
    ]


def _at_some(some: Sequence[str], words: Sequence[str]) -> str:
    """Return some values of a line's in words, neighbours as a range: " at 8 MB", " from 8 MB to 64 MB"."""
    at = [words.index(one) for one in some]
    if len(at) > 2 and at[-1] - at[0] == len(at) - 1:
        return f" from {some[0]} to {some[-1]}"
    return f" at {list_all(some)}"


def _margin_along(group: Sequence[Verdict]) -> str:
    """Return by how much the best is below the baseline along a line."""
    known = [(one, one.below) for one in group if one.below is not None]
    if len(known) < len(group):
        return ""
    return f", {_shares(known, f'below {group[0].contest.baseline}', in_order=True)}"


def _saved_by_each(line: "_Line") -> str:
    """Return what re-embedding alone, re-routing alone and both save along a line; "" unless modes that do so were
    compared with the baseline."""
    if any(not {*_CHOOSING} <= {*one.over_baseline} for _, one in line):
        return ""
    parts = list[str]()
    for mode, what in _CHOOSING.items():
        gains = [(at, one.over_baseline[mode]) for at, one in line]
        unsure = [at for at, gain in gains if gain.why or gain.low <= ROUNDING]
        low, high = (share_words(end(gain.value for _, gain in gains)) for end in (min, max))
        span = f"{low} %" if low == high else f"{low} to {high} %"
        is_nowhere = len(unsure) == len(gains) or len(unsure) > _MAX_NAMES
        doubt = f" ({'nowhere surely' if is_nowhere else f'not surely at {list_all(unsure)}'})" if unsure else ""
        parts.append(f"{mode} ({what}) {'' if parts else 'saves '}{span}{doubt}")
    return list_all(parts)


def _best_of_runs(runs: Sequence["_Line"], line: "_Line") -> str:
    """Return what is best along a line, and where it cannot be told from another one."""
    unsure, verdicts = [at for at, one in line if _open(one)], [one for _, one in line]
    names = [
        f"{list_all([run[0][1].best, *_all([one for _, one in run], lambda one: one.equal)])}{_where_along(run, line)}"
        for run in runs
    ]
    if not unsure:
        return f"{list_all(names)} {'are' if any(one.equal for one in verdicts) else 'is'} fastest"
    is_tested = any(one.tied for one in verdicts)
    doubt = f"nowhere {'told from' if is_tested else 'tested against'} all others"
    if len(unsure) < len(line):
        others = f"all others{_at_some(unsure, [at for at, _ in line])}"
        doubt = f"not {'told from' if is_tested else 'tested against'} {others}"
    return f"{list_all(names)} {'has' if len(names) == 1 else 'have'} the lowest mean, {doubt}"


def _turns(verdicts: Sequence[Verdict]) -> str:
    """Return where the lowest mean passes from one alternative to another in contests that differ by two keys: along
    the quantity with most values, at each value of the other key. It is "" if that is too much for a sentence."""
    if len({one.best for one in verdicts}) == 1 or any(len(one.contest.at) != 2 for one in verdicts):
        return ""
    lines = [_lines(verdicts, key) for key in (0, 1) if all(one.contest.at[key].number is not None for one in verdicts)]
    if not lines:
        return ""
    by_words: dict[str, list[str]] = {}
    for at, line in max(lines, key=_most_turns).items():
        turns = _turns_of(line)
        if len(turns) > 2:
            return ""
        steps = (
            f"passes from {one.best} to {other.best} between {here} and {there}"
            for (here, one), (there, other) in turns
        )
        by_words.setdefault(" and ".join(steps) or f"is that of {line[0][1].best} throughout", []).append(at)
    if len(by_words) > _MAX_NAMES:
        return ""
    told = [
        f"{steps} at {list_all(at) if len(at) <= _MAX_NAMES else list_first(at, _MAX_NAMES)}"
        for steps, at in by_words.items()
    ]
    return f"; the lowest {verdicts[0].quantity} {'; it '.join(told)}"


_Line = Sequence[tuple[str, Verdict]]
"""Contests in the order of a number, with its words."""


def _turns_of(line: _Line) -> list[_Line]:
    """Return the pairs of neighbours of which other alternatives are best."""
    return [pair for pair in pairwise(line) if pair[0][1].best != pair[1][1].best]


def _most_turns(lines: Mapping[str, _Line]) -> tuple[bool, int]:
    """Return what tells the better key along which to look: one along which the best changes, or with more values."""
    return any(map(_turns_of, lines.values())), max(map(len, lines.values()))


def _lines(verdicts: Sequence[Verdict], key: int) -> dict[str, _Line]:
    """Return contests that differ by several keys by the words of the others, in the order of this one's numbers and
    with its words."""
    lines: dict[str, list[tuple[float, str, Verdict]]] = {}
    for one in verdicts:
        value, others = one.contest.at[key], (*one.contest.at[:key], *one.contest.at[key + 1 :])
        at = ", ".join(other.words for other in others)
        lines.setdefault(at, []).append((value.number or 0, value.words, one))
    return {
        words: [(at, one) for _, at, one in sorted(line, key=lambda each: each[0])] for words, line in lines.items()
    }


def side_by_side(verdict: Verdict) -> str:
    """Return the mean of each alternative of a contest that is none: different work takes different times."""
    baseline, means = verdict.contest.baseline, verdict.means_s
    told = [f"{milliseconds(mean_s)} ms {at_words(name)}" for name, mean_s in means.items()]
    if verdict.contest.is_named and baseline in means:
        over = (verdict.over_baseline.get(name) for name in means)
        words = ("the baseline" if each is None else longer_words(each) for each in over)
        return f"the {verdict.quantity} is {'; '.join(map(', '.join, zip(told, words, strict=True)))}"
    most, along = 2 * _MAX_NAMES, _along(verdict).removeprefix("; ")
    return along if len(told) > most and along else f"the {verdict.quantity} is {list_all(told)}"


def _other_work(contests: Sequence[Measured]) -> str:
    """Return why alternatives are not ranked whose buffers differ although no size is swept."""
    buffers = list(dict.fromkeys(size for one in contests for size in one.contest.buffers))
    if not buffers:
        return ""
    sizes = list_all(buffers) if len(buffers) <= _MAX_NAMES else f"{buffers[0]} to {buffers[-1]}"
    return f"; these are not ranked, as buffers differ with blocks of one size: {sizes} (collective.size sets the same)"


def _without_keys(verdicts: Sequence[Verdict]) -> str:
    """Return which of the competing keys the timing model does not include, where its times differ by others."""
    keys = dict.fromkeys(key for one in verdicts if one.next is not None for key in one.contest.unmodelled)
    return f"; the timing model does not include {list_all([*keys])}" if keys else ""


def _hash_doubt(contests: Sequence[Measured], verdicts: Sequence[Verdict]) -> str:
    """Return which alternatives were measured with one seed of ECMP's hash, of whose effect they tell nothing."""
    is_told = any(one.contest.is_rivalry or one.contest.is_named for one in verdicts)
    gains = [each for one in verdicts for each in (*one.over_others.values(), *one.over_baseline.values())]
    spread = [one for one in contests if any(name in one.contest.hashed for name in one.times)]
    hashed = list(dict.fromkeys(name for one in spread for name in one.times if name in one.contest.hashed))
    names = list(dict.fromkeys(name for one in spread for name in one.times))
    where = ""
    if len(spread) < len(contests):
        at = [", ".join(value.words for value in one.contest.at) for one in spread]
        short = which_words([one.contest for one in spread], [one.contest for one in contests])
        where = f" at {short or list_first(at, _MAX_NAMES, separator='; ')}"
    seeds = [each for one in spread for each in one.repetitions]
    return _one_hash(hashed, names, seeds, where, has_interval=is_told and any(map(has_interval, gains)))


def _hash_of_jobs(settings: Sequence[Setting]) -> str:
    """Return that one draw of ECMP's hash decides which jobs share links, where that is so."""
    hashed = [one for one in settings if {*one.modes} & {*one.hashed}]
    if not hashed or len({repetition_of(one).hash_seed for one in hashed}) > 1:
        return ""
    which = "one draw of ECMP's hash (fabric.hash_seed) decides which jobs share links"
    return f"; {which}: with others they may take other times"


def _one_hash(
    hashed: Sequence[str],
    names: Sequence[str],
    repetitions: Sequence[Repetition],
    where: str = "",
    *,
    has_interval: bool,
) -> str:
    if not hashed or len({one.hash_seed for one in repetitions}) > 1:
        return ""
    what = "this" if len(names) == 1 else list_all(hashed) if len(hashed) <= _MAX_NAMES else "what ECMP spreads"
    has = "all have" if len(hashed) == len(names) > 1 else f"{what} {'has' if len(hashed) == 1 else 'have'}"
    others = "intervals do not cover others" if has_interval else "others may take other times"
    return f"; {has} one draw of ECMP's hash (fabric.hash_seed){where}: {others}"


def _together(verdicts: Sequence[Verdict], count: int) -> str:
    """Return which differences are not sure if all `count` comparisons are to hold together; "" if all are."""
    loose = [one for one in verdicts if one.loose]
    if not loose:
        return ""
    if all(map(_open, loose)) and _by_lines(verdicts):  # where the best is told from all others, it is so together
        return "; each by its own 95 % interval"
    by_best: dict[str, list[Verdict]] = {}
    for one in loose:
        by_best.setdefault(one.best, []).append(one)
    # Others have been told before, by their own intervals.
    more = "more " if any((one.tied or one.unsure) and not one.loose for one in verdicts) else ""
    total = len(verdicts)

    def at(group: Sequence[Verdict]) -> str:
        return f" at {all_words(total)}" if 1 < total == len(group) else _where(group, total, more)

    parts = [
        f"{best} cannot be told from {', and from '.join(f'{list_all(names)}{at(those)}' for names, those in alike)}"
        for best, group in by_best.items()
        for alike in [_by_contests(group, lambda one: one.loose)]
    ]
    if len(parts) > _MAX_NAMES or (_by_lines(verdicts) and len(loose) > 1):
        parts = [f"the best cannot be told from another one{at(loose).partition(' (')[0]}"]
    each = "each comparison has its own 95 % interval"
    return f"; {each}: with 95 % for {all_words(count)} together, {list_all(parts)}"


def _trend(run: Sequence[Verdict]) -> str:
    """Return how the gain of the best over the baseline goes along a number, over contests in the number's order."""
    gains = [one.below.value for one in run if one.below is not None]
    shown, words = [share_words(gain) for gain in gains], [one.contest.at[0].words for one in run]
    if len(gains) < max(3, len(run)) or len(set(shown)) == 1:
        return ""
    span = f"from {shown[0]} % at {words[0]} to {shown[-1]} % at {words[-1]}"
    gain_of = f"the gain of {run[0].best}"
    least_step = _RIPPLE * (max(gains) - min(gains))
    steps = [after - before for before, after in pairwise(gains)]
    falls, rises = (all(sign * step <= least_step for step in steps) for sign in (1, -1))
    if falls or rises:
        half = gains[0 if falls else -1] / 2
        crossed = next((at for at, pair in enumerate(pairwise(gains)) if min(pair) < half <= max(pair)), None)
        tail = ""
        if crossed is not None:
            between = f"between {words[crossed]} and {words[crossed + 1]}"
            tail = f", and half of it is {'lost' if falls else 'reached'} {between}"
        return f"; {gain_of} {'falls' if falls else 'rises'} {span}{tail}"
    inner = [f"highest at {words[gains.index(max(gains))]}"] * (max(gains) > max(gains[0], gains[-1]))
    inner += [f"lowest at {words[gains.index(min(gains))]}"] * (min(gains) < min(gains[0], gains[-1]))
    return f"; {gain_of} goes {span}{f' and is {list_all(inner)}' if inner else ''}"


def _span(run: Sequence[Verdict], runs: Sequence[Sequence[Verdict]]) -> str:
    """Return where along a number a run of contests is: " up to 64 MB", " from 128 MB on"."""
    words = [one.contest.at[0].words for one in run]
    return _span_words(words, is_first=run is runs[0], is_last=run is runs[-1])


def _span_words(words: Sequence[str], *, is_first: bool, is_last: bool) -> str:
    least, most = words[0], words[-1]
    if least == most:
        return f" at {least}"
    if is_first:
        return f" up to {most}"
    return f" from {least} on" if is_last else f" from {least} to {most}"


def _where(some: Sequence[Verdict], total: int, more: str = "") -> str:
    """Return at which contests, out of `total`, something holds, by their values if they are few: " at 8 MB and 16 MB",
    " at 2 of 4 (8 GPUs, 1 MB; 16 GPUs, 1 MB)", " at 7 of 20"; "" for all and for none."""
    if len(some) in (0, total):
        return ""
    names = [", ".join(value.words for value in one.contest.at) for one in some]
    number = f" at {len(some)} {more}of {total}"
    if len(names) > _MAX_NAMES or not all(names):
        return number
    is_plain = not any(", " in one or one.startswith("without ") for one in names)
    return f" at {list_all(names)}" if is_plain else f"{number} ({'; '.join(names)})"


def _at(group: Sequence[Verdict], total: int) -> str:
    """Return at which contests, out of `total`, a group is: " at all 4", " at 8 MB and 16 MB"."""
    return f" at {all_words(total)}" if len(group) == total else _where(group, total)


def _outcome(group: Sequence[Verdict], where: str = "") -> str:
    """Return the outcome of contests in which the same alternative is best."""
    if longer := _longer(group):
        behind = _doubt_and_longer(group, _doubts(group), longer)
        return f"{_winner(group, where)}{behind}{_own(group, [str(group[0].next)])}"
    margin, doubts = _margin(group), _doubts(group)
    told = [str(group[0].next)] if margin and not doubts else []
    return f"{_winner(group, where)}{margin}{doubts}{_own(group, told)}"


def _doubt_and_longer(group: Sequence[Verdict], doubt: str, longer: str) -> str:
    """Return what the best cannot be told from, before by how much longer the next takes: that sentence has another
    subject. Where the next is all that it cannot be told from, both are one clause."""
    names = {str(one.next) for one in group}
    if doubt and len(names) == 1 and all({*_open(one)} == names for one in group):
        return f"{doubt}, which {longer.partition(', the next, ')[2]}"
    return f"{doubt}; {longer}"


def _own(group: Sequence[Verdict], told: Sequence[str]) -> str:
    """Return how the modes that the scenario itself defines stand to the baseline and to the best, without those that
    are leaders somewhere or have been `told`; "" for more than two of them."""
    leaders = {name for one in group for name in one.leaders}
    names = [name for name in group[0].contest.own if name not in (*leaders, *told, group[0].contest.baseline)]
    known = [name for name in names if all(name in one.over_baseline for one in group)]
    if not known or len(known) > _MOST_OWN:
        return ""
    parts = list[str]()
    for name in known:
        over = [(one, one.over_baseline[name]) for one in group]
        if all(abs(gain.value) <= ROUNDING for _, gain in over):  # by how much the best is below it has been told
            intervals = [interval_words(gain, 100, " %") for _, gain in over if has_interval(gain)]
            average = f" on average{intervals[0] if len(over) == 1 else ''}" if intervals else ""
            parts.append(f"; {name} takes the same time as {group[0].contest.baseline}{average}")
            continue
        if all(gain.value <= 0 for _, gain in over):
            over = [(one, replace(gain, value=-gain.value, low=-gain.high, high=-gain.low)) for one, gain in over]
            standing = f"takes {_shares(over, f'longer than {group[0].contest.baseline}')}"
        else:
            standing = f"is {_shares(over, f'below {group[0].contest.baseline}')}"
        of_best = [(one, one.over_others[name]) for one in group]
        is_base = group[0].best == group[0].contest.baseline
        behind = "" if is_base else f", and {group[0].best} {_shares(of_best, f'below {name}')}"
        parts.append(f"; {name} {standing}{behind}")
    return "".join(parts)


def _winner(group: Sequence[Verdict], where: str) -> str:
    """Return which alternative is best, as surely as it is so."""
    best = group[0].best
    if all(one.next is None for one in group):
        if unmodelled := group[0].contest.unmodelled:
            same = f"has the same time for {list_all([best, *group[0].equal])}"
            return f"the timing model does not include {list_all(unmodelled)}, so it {same}{where}"
        return f"{list_all([best, *group[0].equal])} take the same time{_only_here(group)}{where}"
    if all(one.equal for one in group):
        best = list_all([best, *_all(group, lambda one: one.equal)])
        where = f"{_only_here(group)}{where}"
        return f"{best} are equally fast{where}, and fastest" if not _is_open(group) else f"{best} are equal{where}"
    return f"{best} {'has the lowest mean' if _is_open(group) else 'is fastest'}{where}"


def _only_here(group: Sequence[Verdict]) -> str:
    return " in each of these collectives (their intervals differ)" if any(one.only_here for one in group) else ""


def _doubts(group: Sequence[Verdict]) -> str:
    """Return what the best cannot be told from: alternatives that are tied with it; and that it was not tested against
    the next one, if its difference has no interval. The baseline is left out if the margin has told so already."""
    tied, untested = (
        [
            f"{list_all([f'{name}{_at_gain(group[0], name)}' if len(group) == 1 else name for name in alike])}"
            f"{_where(at, len(group))}"
            for alike, at in _by_contests(group, names_of)
        ]
        for names_of in (lambda one: one.tied, _doubtful)
    )
    names = [name for one in group for name in (*one.tied, *_doubtful(one))]
    if len(group) == 1 and group[0].below is None and names == [group[0].next] and not _longer(group):
        tied, untested = ["it"] * bool(tied), ["it"] * bool(untested)
    return _doubt(tied, untested, _why_untested(group, _doubtful))


def _doubt(tied: Sequence[str], untested: Sequence[str], why: str) -> str:
    """Return what the best cannot be told from, and what it was not tested against, which says nothing of them."""
    told = [f"cannot be told from {', and from '.join(tied)}"] * bool(tied)
    told += [f"not tested against {', and against '.join(untested)}{why}"] * bool(untested)
    return f", but {', and '.join(told)}" if told else ""


def _why_untested(group: Sequence[Verdict], names_of: _Names) -> str:
    """Return in brackets why differences have no interval, and what would help, unless the margin, which then has none
    either, has said so."""
    told = [(one, name) for one in group for name in names_of(one)]
    has_margin = all(one.below is not None and not one.below.why for one, _ in told)
    whys = dict.fromkeys(why_none([one.over_others[name]]) for one, name in told if has_margin)
    return f" ({'; '.join(whys)})" if whys else ""


def _by_contests(group: Sequence[Verdict], names_of: _Names) -> list[tuple[list[str], list[Verdict]]]:
    """Return the names that these contests have, those of the same contests together, with these contests."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for name in _all(group, names_of):
        alike.setdefault(tuple(at for at, one in enumerate(group) if name in names_of(one)), []).append(name)
    return [(names, [group[at] for at in contests]) for contests, names in alike.items()]


def _doubtful(verdict: Verdict) -> tuple[str, ...]:
    """Return the next one if it has no interval and is not what the margin compares."""
    is_told = verdict.below is None or verdict.next == verdict.contest.baseline
    return () if is_told else _untested(verdict)


def _at_gain(verdict: Verdict, name: str) -> str:
    """Return the gain of an alternative over the baseline in brackets, if the best has one: " (70.4 %)"."""
    baseline = verdict.contest.baseline
    if verdict.below is None or name == baseline:
        return ""
    return f" ({percent(1 - verdict.means_s[name] / verdict.means_s[baseline])} %)"


def _is_open(group: Sequence[Verdict]) -> bool:
    return any(one.tied or one.unsure for one in group)


def _all(group: Sequence[Verdict], names: _Names) -> list[str]:
    return list(dict.fromkeys(name for one in group for name in names(one)))


def _margin(group: Sequence[Verdict]) -> str:
    """Return by how much the best is below the baseline, and below the next best if that is another one; below the
    next alone without a baseline."""
    known = [(one, one.below) for one in group if one.below is not None]
    if not known:
        following = [(one, one.below_next) for one in group if one.next is not None and one.below_next is not None]
        names = list(dict.fromkeys(str(one.next) for one, _ in following))
        if not following:
            return f", {milliseconds(group[0].means_s[group[0].best])} ms" if len(group) == 1 else ""
        then = f"{names[0]}, the next" if len(names) == 1 else "the next"
        return f", {_shares(following, f'below {then}')}"
    names = list(dict.fromkeys(one.contest.baseline for one, _ in known))
    baseline = names[0] if len(names) == 1 else "the baseline"
    return f", {_shares(known, f'below {baseline}')}{_margin_over_next(known)}"


def _margin_over_next(known: Sequence[tuple[Verdict, Interval]]) -> str:
    """Return by how much the best is below the next best, of contests with a margin over the baseline; "" if that is
    the baseline, or cannot be told from the best, in any of them."""
    over = [
        (one, one.below_next)
        for one, _ in known
        if one.below_next is not None and one.next not in (one.contest.baseline, *one.tied, *one.unsure)
    ]
    if len(over) < len(known):
        return ""
    names = list(dict.fromkeys(str(one.next) for one, _ in over))
    return f", and {_shares(over, f'below {names[0]}, the next best' if len(names) == 1 else 'below the next best')}"


def _longer(group: Sequence[Verdict]) -> str:
    """Return by how much longer the next takes, if the best is a baseline over which there are gains: these are the
    same numbers."""
    if any(one.below is not None or not (one.contest.is_choice or one.contest.is_named) for one in group):
        return ""
    over = [(one, one.over_baseline[name]) for one in group if (name := one.next or "") in one.over_baseline]
    names = list(dict.fromkeys(one.next for one, _ in over))
    longer = [(one, replace(each, value=-each.value, low=-each.high, high=-each.low)) for one, each in over]
    then = f"{names[0]}, the next," if len(names) == 1 else "the next"
    return f"{then} takes {_shares(longer, 'longer')}" if longer else ""


def _shares(told: Sequence[tuple[Verdict, Interval]], what: str, *, in_order: bool = False) -> str:
    """Return the shares of these outcomes in words: "35.3 % below base (95 % interval 35.1 to 35.5 %)", `in_order` the
    first one first where they fall all the way."""
    gains = [each for _, each in told]
    least, most = min(one.value for one in gains), max(one.value for one in gains)
    without = [one for one in gains if one.why]
    ends = [end for one in gains if not one.why for end in (one.low, one.high)]
    whole = Interval(value=least, low=min(ends, default=math.nan), high=max(ends, default=math.nan))
    low, high = (share_words(end, decimals(whole, 100, 1)) for end in (least, most))
    is_falling = in_order and all(after.value <= before.value for before, after in pairwise(gains))
    span = f"{low} %" if low == high else f"{high} to {low} %" if is_falling else f"{low} to {high} %"
    if percent(most) == fixed(0, 1):
        span = "less than 0.1 %"
    if without and len(without) == len(gains):
        return f"{span} {what} ({why_none(without)})"
    where = _where([one for one, each in told if each.why], len(told))
    several = "s within" if len(gains) > 1 else ""
    alike = several and all(one.why or is_alike(one) for one in gains)
    ranges = " (the same in every collective of each)" if alike else interval_words(whole, 100, " %", several)
    text = f"{span} {what}{ranges}"
    return f"{text}, without an interval{where}: {why_none(without)}" if without else text


def _along(verdict: Verdict) -> str:
    """Return how the mean goes along the quantity whose values compete; "" if their key is none, or has two values."""
    numbers = verdict.contest.numbers
    if numbers is None or len(verdict.means_s) < 3:
        return ""
    order = sorted(verdict.means_s, key=lambda name: numbers[name])
    means = [verdict.means_s[name] for name in order]
    rises = [after > before * (1 + ROUNDING) for before, after in pairwise(means)]
    falls = [after < before * (1 - ROUNDING) for before, after in pairwise(means)]
    first, last = (f"{milliseconds(verdict.means_s[name])} ms at {name}" for name in (order[0], order[-1]))
    if not any(rises) and not any(falls):
        return ""
    lowest = order.index(verdict.best)
    if all(rises) or all(falls):
        return f"; the {verdict.quantity} {'rises' if rises[0] else 'falls'} from {first} to {last}"
    if all(falls[:lowest]) and all(rises[lowest:]):
        return (
            f"; the {verdict.quantity} falls from {first} to {milliseconds(means[lowest])} ms there and rises to {last}"
        )
    return f"; from {first} to {last} the {verdict.quantity} neither rises nor falls all the way"
