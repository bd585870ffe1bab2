"""What each job of a run's rounds takes in each configuration, in words. Jobs are no rivals: they do different work."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.statistics.contests import (
    JOBS,
    Place,
    Setting,
    is_choice,
    pooled_by_seeds,
    repetition_of,
    repetitions,
    shared_words,
    varied_keys,
    with_short_tables,
)
from analysis.statistics.intervals import Floats, Interval, Series, gain, is_settled
from analysis.statistics.jobs_in_words import (
    BACKGROUND,
    JOINED,
    Job,
    amount_of,
    differing_fields,
    is_same_work,
    measured_as,
    own_words,
    short_words,
    words_of,
)
from analysis.statistics.number_words import (
    ALIKE,
    ROUNDING,
    at_words,
    collective_name,
    counted,
    is_noticeable,
    is_zero,
    longer_words,
    milliseconds,
    percent,
    why_none,
)
from topologies.errors import list_all, list_first
from topologies.units import parse_delay_or_zero_s, parse_delay_s

_MOST, _MOST_MODES = 8, 2  # configurations, and modes, whose times are told
_MOST_ALIKE = 2  # differences of which each says so itself that all collectives have it
_MOST_TIMES = 8  # of all jobs, beyond which each is told in short
_MOST_JOBS = 4  # that are named
_MOST_CLAUSES, _MOST_IN_CLAUSE = 6, 4  # jobs that have a clause each, and times in one of them
_MOST_BESIDE = 3  # jobs that are named where another one runs beside them
_WHOLE = 0.95  # of a job's time: another one that runs for less of it is told for how much
_SELF_SUFFICIENT = ("without ", "from ", "on ", "by ", "for ", "once")
"""Beginnings of words that need no "with"."""

Times = Mapping[str, Series]
"""The completion times of the jobs of a point, by name, each from the job's start."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rounds:
    """A configuration with the times of its jobs, and the words of what else is swept but jobs and seeds: all of it,
    what somebody chooses of it (a routing), and what is given (a delay)."""

    setting: Setting
    times: Times
    elsewhere: str
    chosen: str = ""
    given: str = ""

    def job(self, name: str) -> Job:
        """Return one of its jobs."""
        return next(job for job in self.setting.jobs if job["name"] == name)

    def others(self, name: str) -> tuple[Job, ...]:
        """Return its jobs but one."""
        return tuple(job for job in self.setting.jobs if job["name"] != name)


def series_of_jobs(rounds: Series, completion_s: Mapping[str, Floats]) -> dict[str, Series]:
    """Return the times of the jobs of a point, [K] s each, as series, given those of its rounds. A job that had no time
    in some round is left out."""
    return {
        name: replace(rounds, completion_s=times_s)
        for name, times_s in completion_s.items()
        if times_s.size == rounds.number.size
    }


def job_sentence(
    settings: Sequence[Setting], times: Mapping[tuple[str, Place], Times], *, follows: bool = False
) -> str:
    """Return what each job takes in each configuration, by engine and point: "train takes 30.24 ms alone; 32.99 ms
    beside infer 8 MB, 9.1 % longer (95 % interval 8.6 to 9.6 %)".

    It is "" for more than two modes, and where a round is one job, the same in all configurations, and its time that of
    the round. If it `follows` a
    sentence on the rounds, it leaves out what that has told. The engine with more configurations, or else more rounds,
    counts, and of two with as many the measured one. Where nothing is drawn, so that its rounds are those of the other
    one, too, that one's time is beside each.
    """
    varied = varied_keys(settings)
    is_other = any(measured_as(job) for one in settings for job in one.jobs)
    is_told = is_other or JOBS in varied or any(len(one.jobs) > 1 for one in settings)
    modes = list(dict.fromkeys(mode for one in settings for mode in one.modes))
    if not is_told or len(modes) > _MOST_MODES:
        return ""
    of_modes, compared = list[str](), list[Interval]()
    before: tuple[str, str, list[_Rounds]] | None = None  # the first of two modes, its engine and its rounds
    for mode in modes:
        here = [replace(one, modes=(mode,)) for one in settings if mode in one.modes]
        (_, others), (engine, rounds) = sorted(
            ((engine, [*_rounds(here, times, varied, engine)]) for engine in ("model", "emulation")),
            key=lambda one: (len(one[1]), _least(one[1]), one[0] == "emulation"),
        )
        names = list(dict.fromkeys(name for one in rounds for name in one.times))
        if not names:
            return ""
        where = f" in {mode}" * (len(modes) == 1)
        head = "" if follows or of_modes else f"{_head(names, rounds, engine, where)}: "
        in_mode = f"in {mode} " * (len(modes) > 1)
        in_other = {one.setting.index: one for one in before[2]} if before and before[1] == engine else {}
        of_names = {
            name: _Job(
                name=name,
                rounds=tuple(one for one in rounds if name in one.times),
                by_jobs=JOBS in varied,
                other=before[0] if before else "",
                in_other=in_other,
                beside={one.setting.index: one.times for one in others},
                is_predicted=engine == "model",
            )
            for name in names
        }
        before = before or (mode, engine, rounds)
        is_short = sum(len(one.rounds) for one in of_names.values()) > _MOST_TIMES
        shown = _shown(of_names.values()) if is_short else names
        gains = [each for name in shown for each in of_names[name].gains]
        # Where all lack an interval, the end of the sentence says why; beside others each says so itself.
        lacking = [_lacks(one) for one in gains if is_noticeable(one)]
        tells_why = any(lacking) and not all(lacking)
        takes = [of_names[name].takes(tells_why=tells_why, is_short=is_short) for name in shown]
        compared += [] if tells_why else gains
        rest = _rest([of_names[name] for name in names if name not in shown])
        of_modes.append(f"{head}{in_mode}{'; '.join([*takes, *rest])}")
    whys = [one for one in compared if _lacks(one)]
    without = f" ({why_none(whys)})" if whys else ""
    told = "; ".join(of_modes) if without else _alike_once("; ".join(of_modes))
    return f"{'Of the jobs, ' * follows}{told}{without}."


def _alike_once(told: str) -> str:
    """Return what jobs take with what many of its differences have in common told once, at the end."""
    if told.count(ALIKE) <= _MOST_ALIKE:
        return told
    rest = "those without an interval" if " interval " in told else "all differences"
    return f"{told.replace(ALIKE, '')} ({rest} are the same in every collective)"


def _rounds(
    settings: Sequence[Setting], times: Mapping[tuple[str, Place], Times], varied: set[str], engine: str
) -> Iterator[_Rounds]:
    """Yield the configurations that have times of an engine, pooled over seeds, without those of background jobs."""
    for group in repetitions(with_short_tables(settings)):
        first = group[0]
        seeded = [repetition_of(one) for one in group]
        places = [(engine, Place(one.index, one.modes[0])) for one in group]
        known = {one: times[place] for one, place in zip(seeded, places, strict=True) if place in times}
        waited_for = [str(job["name"]) for job in first.jobs if job.get("kind") != BACKGROUND]
        found = {
            name: pooled_by_seeds({one: of_seed[name] for one, of_seed in known.items()}, seeded)
            for name in waited_for
            if known and all(name in of_seed for of_seed in known.values())
        }
        elsewhere = [value for value in first.at if value.key in varied - {JOBS}]
        if found:
            yield _Rounds(
                setting=first,
                times=found,
                elsewhere=", ".join(value.words for value in elsewhere),
                chosen=", ".join(value.words for value in elsewhere if is_choice(value.key)),
                given=", ".join(value.words for value in elsewhere if not is_choice(value.key)),
            )


def _lacks(gain: Interval) -> bool:
    """Return whether a gain is worth a reason for having no interval."""
    return bool(gain.why) and is_noticeable(gain)


def _least(rounds: Sequence[_Rounds]) -> int:
    return min((series.number.size for one in rounds for series in one.times.values()), default=0)


def _head(names: Sequence[str], rounds: Sequence[_Rounds], engine: str, in_mode: str) -> str:
    """Return which jobs the sentence is about, over how many rounds, and where."""
    sizes = [series.number.size for one in rounds for series in one.times.values()]
    number = counted([collective_name("jobs")], sizes, [engine == "emulation"], each=len(rounds) > 1)
    several = f" in {len(rounds)} configurations" if len(rounds) > 1 else ""
    where = shared_words([one.setting.label for one in rounds])
    who = list_all(names) if len(names) <= _MOST_JOBS else list_first(names, _MOST_JOBS)
    return f"{who}{several} over {number}{in_mode}, {where}"


def _gains(name: str, rounds: Sequence[_Rounds], by_jobs: bool) -> Iterator[Interval | None]:
    """Yield the gain of a job in each of these configurations over the first one in which it has the same work; None
    for that one itself."""
    firsts = list[_Rounds]()
    for one in rounds:
        like = (
            first
            for first in firsts
            if is_same_work(first.job(name), one.job(name)) and (not by_jobs or first.elsewhere == one.elsewhere)
        )
        first = next(like, None)
        if first is None:
            firsts.append(one)
        yield None if first is None else gain(first.times[name], one.times[name])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """A job of a mode in all of its configurations, with those in the other mode `other`, by index, to compare it with;
    `by_jobs`: the jobs are swept, so that its own changes are those beside other jobs. `beside` has the other engine's
    times of its mode, by index; if this one's are predicted (`is_predicted`), measured ones."""

    name: str
    rounds: Sequence[_Rounds]
    by_jobs: bool
    other: str = ""
    in_other: Mapping[int, _Rounds] = field(default_factory=dict)
    beside: Mapping[int, Times] = field(default_factory=dict)
    is_predicted: bool = False

    @property
    def gains(self) -> list[Interval]:
        """All gains that are told of it."""
        own = (each for each in _gains(self.name, self.rounds, self.by_jobs) if each is not None)
        return [*own, *(found for one in self.rounds for found, _ in self._across(one))]

    @property
    def longest(self) -> float:
        """By how much longer it takes at most than where it is compared with, as a share; below any if nowhere."""
        return max((-each.value for each in self.gains), default=-math.inf)

    @property
    def by_rounds(self) -> list[tuple[_Rounds, float]]:
        """By how much longer it takes at most in each configuration that is compared with another one, as a share."""
        own = zip(self.rounds, _gains(self.name, self.rounds, self.by_jobs), strict=True)
        each = [(one, [*([found] if found else []), *(gain for gain, _ in self._across(one))]) for one, found in own]
        return [(one, max(-gain.value for gain in gains)) for one, gains in each if gains]

    @property
    def most_changed(self) -> float:
        """By how much its time differs at most from that which it is compared with, as a share; 0 if nowhere."""
        most = max((abs(each.value) for each in self.gains), default=0.0)
        return most if most > ROUNDING else 0.0

    @property
    def is_asked_about(self) -> bool:
        """Whether it does the same work in another way in some configurations, such as in another class."""
        jobs = [one.job(self.name) for one in self.rounds]
        return any(is_same_work(jobs[0], job) and words_of(jobs[0]) != words_of(job) for job in jobs)

    @property
    def varies(self) -> bool:
        """Whether it is itself another in some configurations."""
        return len({words_of(one.job(self.name)) for one in self.rounds}) > 1

    @property
    def most_s(self) -> float:
        """Its longest mean time, s."""
        return max(float(one.times[self.name].completion_s.mean()) for one in self.rounds)

    def _across(self, one: _Rounds) -> Iterator[tuple[Interval, str]]:
        """Yield its gain in a configuration over the first one with the same jobs under the same conditions in which
        something else was chosen, over the first one in which these jobs do the same work in another way, and over the
        other mode, each with what it is over."""
        words = sorted(map(words_of, one.setting.jobs))
        for first in self.rounds if self.by_jobs else ():
            if first.given == one.given and sorted(map(words_of, first.setting.jobs)) == words:
                if first.chosen != one.chosen and (found := gain(first.times[self.name], one.times[self.name])):
                    yield found, at_words(first.chosen)
                break
        yield from self._in_another_way(one)
        other = self.in_other.get(one.setting.index)
        if other is not None and self.name in other.times:
            found = gain(other.times[self.name], one.times[self.name])
            if found is not None:
                yield found, f"in {self.other}"

    def _in_another_way(self, one: _Rounds) -> Iterator[tuple[Interval, str]]:
        """Yield its gain over the first configuration in which the same jobs do the same work in another way (a job in
        another class), with what it is over, unless that is what it is compared with anyway."""
        alike = [each for each in self.rounds if each.elsewhere == one.elsewhere and _is_same_work(each, one)]
        if not self.by_jobs or alike[0] is one:
            return
        job = one.job(self.name)
        same = (each for each in self.rounds if each.elsewhere == one.elsewhere)
        if alike[0] is next(each for each in same if is_same_work(each.job(self.name), job)):
            return
        if found := gain(alike[0].times[self.name], one.times[self.name]):
            own = _own_words(self.name, alike[0], (alike[0], one))
            yield found, own or f"beside {_others_words(self.name, alike[0], (alike[0], one))}"

    def _as_first(self, one: _Rounds, gained: Interval) -> str:
        """Return as where it takes as long, if it does, by this gain over the first configuration that it is compared
        with: beside other comparisons "as long" alone could be as long as in those."""
        if longer_words(gained) != "as long":
            return ""
        like = (each for each in self.rounds if not self.by_jobs or each.elsewhere == one.elsewhere)
        first = next(each for each in like if is_same_work(each.job(self.name), one.job(self.name)))
        return f" as{_where(self.name, first, self.rounds)}"

    def _other_engines(self, one: _Rounds) -> str:
        """Return its time in the other engine, if that is comparable: " (measured 63.27)"."""
        found = self.beside.get(one.setting.index, {}).get(self.name)
        if found is None or not (is_settled(found) and is_settled(one.times[self.name])):
            return ""
        how = "measured" if self.is_predicted else "predicted"
        return f" ({how} {milliseconds(float(found.completion_s.mean()))})"

    def takes(self, *, tells_why: bool, is_short: bool) -> str:
        """Return what it takes in each configuration, and if it `tells_why`, why a gain has no interval. In short it is
        not told for which share of its time others run beside it."""
        parts = list[str]()
        for one, found in zip(self.rounds, _gains(self.name, self.rounds, self.by_jobs), strict=True):
            across = [
                (each, f" {'as' if longer_words(each) == 'as long' else 'than'} {than}")
                for each, than in self._across(one)
            ]
            told = across if found is None else [(found, self._as_first(one, found) if across else ""), *across]
            words = [
                f"{longer_words(each)}{f' ({why_none([each])})' * (tells_why and _lacks(each))}{than}"
                for each, than in told
            ]
            time = f"{milliseconds(float(one.times[self.name].completion_s.mean()))} ms{self._other_engines(one)}"
            words = words[:1] if all(abs(each.value) <= ROUNDING for each, _ in told) else words
            compared = f", {list_all(words)}" if words else ""
            where = _where(self.name, one, self.rounds)
            runs = _beside_for(self.name, one) if not is_short and (compared or " beside " in where) else ""
            parts.append(f"{time}{where}{runs}{compared}")
        told_parts = [*parts[:_MOST], *([f"{len(parts) - _MOST} more below"] if len(parts) > _MOST else [])]
        amounts = {amount_of(one.job(self.name)) for one in self.rounds}  # several are told beside the times
        job = self.rounds[0].job(self.name)
        measure = measured_as(job) or (amount_of(job) if len(amounts) == 1 else "")
        return f"{self.name}{f' ({measure})' * bool(measure)} takes {'; '.join(told_parts)}"


def _is_same_work(one: _Rounds, other: _Rounds) -> bool:
    """Return whether two configurations have the same jobs, which all do the same work."""
    mine, its = ({str(job["name"]): job for job in each.setting.jobs} for each in (one, other))
    return mine.keys() == its.keys() and all(is_same_work(job, its[name]) for name, job in mine.items())


def _shown(jobs: Collection[_Job]) -> list[str]:
    """Return the names of all jobs if a clause of each can tell its times, or else of the one that is asked about: of
    those that do their work in another way somewhere, or of all, that whose time changes most; where none does, one
    that itself differs between the configurations, or else the one that takes longest."""
    if len(jobs) <= _MOST_CLAUSES and all(len(job.rounds) <= _MOST_IN_CLAUSE for job in jobs):
        return [job.name for job in jobs]
    order = [max(jobs, key=lambda job: (job.is_asked_about, job.most_changed, job.varies, job.longest, job.most_s))]
    return [job.name for job in order]


def _rest(others: Sequence[_Job]) -> list[str]:
    """Return what each of the other jobs takes, and how much longer at most; of many only the latter of all."""
    if len(others) < _MOST_CLAUSES:
        return [_in_a_clause(job) for job in others]
    longest = max(job.longest for job in others)
    what = f"the {len(others)} other jobs take"
    if longest == -math.inf:
        return [f"{what} at most {milliseconds(max(job.most_s for job in others))} ms"]
    return [f"{what} {_at_most(longest)}" if longest > ROUNDING else f"{what} no longer"]


def _in_a_clause(job: _Job) -> str:
    """Return the range of a job's times, and by how much it takes longer at most, and where."""
    times = sorted({milliseconds(float(one.times[job.name].completion_s.mean())) for one in job.rounds}, key=_number)
    span = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
    told = f"{job.name} takes {span} ms"
    if job.longest == -math.inf:
        return told
    if job.longest <= ROUNDING:
        return f"{told}, nowhere longer" if len(times) > 1 else told
    where = next(_where(job.name, one, job.rounds) for one, most in job.by_rounds if most == job.longest)
    return f"{told}, {_at_most(job.longest)},{where}"


def _at_most(longer: float) -> str:
    """Return by how much longer something takes at most, as a share."""
    return "less than 0.1 % longer" if is_zero(percent(longer)) else f"at most {percent(longer)} % longer"


def _number(words: str) -> float:
    return float(words.replace(",", ""))


def _beside_for(name: str, one: _Rounds) -> str:
    """Return for how much of a job's time the other jobs of its round run, if not for all of it, in brackets; "" where
    that is not known, as of jobs of requests. Of a job that repeats its work every so often it is the time of the
    repetitions, by their mean: "about"."""
    timed = {
        str(job["name"]): job
        for job in one.setting.jobs
        if str(job["name"]) in one.times and (not measured_as(job) or "every" in job)
    }
    if name not in timed:
        return ""
    own_s, parts = one.times[name].completion_s, dict[str, float]()
    for other, job in timed.items():
        there_s = one.times[other].completion_s
        if other != name and there_s.size == own_s.size:
            parts[other] = _part_beside(timed[name], own_s, job, there_s)
    short = {other: part for other, part in parts.items() if part < _WHOLE}
    if len(short) > _MOST_JOBS or not short:
        return ""
    told = [
        f"{other} {'runs ' * (at == 0)}for {'about ' * ('every' in {*timed[name], *timed[other]})}{part * 100:.0f} %"
        for at, (other, part) in enumerate(short.items())
    ]
    return f" ({list_all(told)} of this time)"


def _part_beside(own: Job, own_s: Floats, other: Job, other_s: Floats) -> float:
    """Return for which share of the time of a job's work another one's runs, given both and their times, [K] s."""
    if "every" in own or "every" in other:
        (begin_s, end_s), (begins_s, ends_s) = _repetitions_s(own, own_s), _repetitions_s(other, other_s)
        edges_s = np.stack([begins_s, ends_s], axis=1).ravel()
        run_s = np.cumsum(np.stack([np.zeros_like(begins_s), ends_s - begins_s], axis=1).ravel())
        both_s = np.interp(end_s, edges_s, run_s) - np.interp(begin_s, edges_s, run_s)
        return float(both_s.sum() / (end_s - begin_s).sum())
    start_s, starts_s = _start_s(own), _start_s(other)
    until_s = np.minimum(start_s + own_s, starts_s + other_s)
    return float(np.maximum(until_s - max(start_s, starts_s), 0.0).sum() / own_s.sum())


def _repetitions_s(job: Job, times_s: Floats) -> tuple[Floats, Floats]:
    """Return when the repetitions of a job's work begin and end in a round if each takes the mean of its times, one
    after the other, [C] s each; of a job without `every` all of them are one."""
    took_s = float(times_s.mean())
    if "every" not in job:
        return np.array([_start_s(job)]), np.array([_start_s(job) + took_s])
    begin_s = np.arange(int(job.get("count", 1)), dtype=np.float64) * parse_delay_s(str(job["every"])) + _start_s(job)
    end_s = begin_s + took_s
    return begin_s, np.minimum(end_s, np.append(begin_s[1:], math.inf))


def _start_s(job: Job) -> float:
    return parse_delay_or_zero_s(str(job.get("start", "0 s")))


def _where(name: str, one: _Rounds, rounds: Sequence[_Rounds]) -> str:
    """Return how a job's configuration differs from the others that have it: " with 8 MB", " beside infer 32 MB"."""
    own = _own_words(name, one, rounds)
    words = f" {own}" if own else ""
    if len({tuple(map(words_of, each.others(name))) for each in rounds}) > 1:
        words += f" beside {_others_words(name, one, rounds)}" if one.others(name) else " alone"
    if len({each.elsewhere for each in rounds}) > 1:
        words += f" {at_words(one.elsewhere)}"
    return words


def _own_words(name: str, one: _Rounds, rounds: Sequence[_Rounds]) -> str:
    """Return how a job itself differs from that of other configurations: "with 8 MB"; "" where it does not."""
    own = differing_fields([(each.job(name),) for each in rounds])[name]
    mine = own_words(one.job(name), own)
    return f"{'' if mine.startswith(_SELF_SUFFICIENT) else 'with '}{mine}" if mine else ""


def _others_words(name: str, one: _Rounds, rounds: Sequence[_Rounds]) -> str:
    """Return the jobs beside a job, with what tells them from those of its other configurations: "infer 8 MB". Where
    they are many, those that differ are named, and those that are missing elsewhere are counted."""
    others, everywhere = one.others(name), [each.others(name) for each in rounds]
    fields = differing_fields(everywhere)
    words = {str(job["name"]): short_words(job, fields[str(job["name"])]) for job in others}
    if max(map(len, everywhere)) <= _MOST_BESIDE:
        return JOINED.join(words.values())
    own = [words[other] for other in words if fields[other]]
    common = set.intersection(*map(_names_of, everywhere))
    further = [other for other in words if not fields[other] and other not in common]
    further = further if own or further else [*words]
    if (own and len(further) > 1) or len(further) > _MOST_BESIDE:
        further = [f"{len(further)} others"]
    return JOINED.join([*own, *further])


def _names_of(jobs: Iterable[Job]) -> set[str]:
    return {str(job["name"]) for job in jobs}
