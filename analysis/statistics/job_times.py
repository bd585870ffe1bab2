"""What each job of a run's rounds takes in each configuration, in words. Jobs are no rivals: they do different work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.statistics.contests import (
    JOBS,
    Place,
    Setting,
    pooled_by_seeds,
    repetition_of,
    repetitions,
    shared_words,
    varied_keys,
    with_short_tables,
)
from analysis.statistics.intervals import Floats, Interval, Series, gain
from analysis.statistics.jobs_in_words import (
    BACKGROUND,
    JOINED,
    Job,
    differing_fields,
    is_same_work,
    own_words,
    short_words,
    words_of,
)
from analysis.statistics.number_words import at_words, counted, longer_words, milliseconds, why_none
from topologies.errors import list_all

_MOST, _MOST_MODES = 8, 2  # configurations, and modes, whose times are told
_SELF_SUFFICIENT = ("without ", "from ", "on ", "by ", "for ", "once")
"""Beginnings of words that need no "with"."""

Times = Mapping[str, Series]
"""The completion times of the jobs of a point, by name, each from the job's start."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rounds:
    """A configuration with the times of its jobs, and the words of what else is swept but jobs and seeds."""

    setting: Setting
    times: Times
    elsewhere: str

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

    It is "" for more than two modes, and where a round is one job, the same in all configurations. If it `follows` a
    sentence on the rounds, it leaves out what that has told. The engine with more configurations, or else more rounds,
    counts, and of two with as many the measured one.
    """
    varied = varied_keys(settings)
    is_told = JOBS in varied or any(len(one.jobs) > 1 for one in settings)
    modes = list(dict.fromkeys(mode for one in settings for mode in one.modes))
    if not is_told or len(modes) > _MOST_MODES:
        return ""
    of_modes, compared = list[str](), list[Interval]()
    for mode in modes:
        here = [replace(one, modes=(mode,)) for one in settings if mode in one.modes]
        engine, rounds = max(
            ((engine, [*_rounds(here, times, varied, engine)]) for engine in ("model", "emulation")),
            key=lambda one: (len(one[1]), _least(one[1]), one[0] == "emulation"),
        )
        names = list(dict.fromkeys(name for one in rounds for name in one.times))
        if not names:
            return ""
        head = "" if follows else f"{_head(names, rounds, engine)}: "
        in_mode = f"in {mode} " * (len(modes) > 1)
        of_names = {name: [one for one in rounds if name in one.times] for name in names}
        gains = [each for name in names for each in _gains(name, of_names[name], JOBS in varied) if each]
        # Where all lack an interval, the end of the sentence says why; beside others each says so itself.
        lacking = [bool(one.why) for one in gains if one.value]
        tells_why = any(lacking) and not all(lacking)
        takes = [_takes(name, of_names[name], JOBS in varied, tells_why=tells_why) for name in names]
        compared += [] if tells_why else gains
        of_modes.append(f"{head}{in_mode}{'; '.join(takes)}")
    whys = [one for one in compared if one.why and one.value]
    without = f" ({why_none(whys)})" if whys else ""
    return f"{'Of the jobs, ' * follows}{'; '.join(of_modes)}{without}."


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
        elsewhere = [value.words for value in first.at if value.key in varied - {JOBS}]
        if found:
            yield _Rounds(setting=first, times=found, elsewhere=", ".join(elsewhere))


def _least(rounds: Sequence[_Rounds]) -> int:
    return min((series.number.size for one in rounds for series in one.times.values()), default=0)


def _head(names: Sequence[str], rounds: Sequence[_Rounds], engine: str) -> str:
    """Return which jobs the sentence is about, over how many rounds, and where."""
    sizes = [series.number.size for one in rounds for series in one.times.values()]
    number = counted(["jobs"], sizes, [engine == "emulation"], each=len(rounds) > 1)
    several = f" in {len(rounds)} configurations" if len(rounds) > 1 else ""
    where = shared_words([one.setting.label for one in rounds])
    return f"{list_all(names)}{several} over {number} in {rounds[0].setting.modes[0]}, {where}"


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


def _takes(name: str, rounds: Sequence[_Rounds], by_jobs: bool, *, tells_why: bool) -> str:
    """Return what a job takes in each of these configurations, and if it `tells_why`, why a gain has no interval."""
    parts = list[str]()
    for one, found in zip(rounds, _gains(name, rounds, by_jobs), strict=True):
        part = f"{milliseconds(float(one.times[name].completion_s.mean()))} ms{_where(name, one, rounds)}"
        if found is not None:
            part += f", {longer_words(found)}"
            part += f" ({why_none([found])})" * bool(tells_why and found.why and found.value)
        parts.append(part)
    told = [*parts[:_MOST], *([f"{len(parts) - _MOST} more below"] if len(parts) > _MOST else [])]
    return f"{name} takes {'; '.join(told)}"


def _where(name: str, one: _Rounds, rounds: Sequence[_Rounds]) -> str:
    """Return how a job's configuration differs from the others that have it: " with 8 MB", " beside infer 32 MB"."""
    own = differing_fields([(each.job(name),) for each in rounds])[name]
    mine = own_words(one.job(name), own)
    words = f" {'' if mine.startswith(_SELF_SUFFICIENT) else 'with '}{mine}" if mine else ""
    if len({tuple(map(words_of, each.others(name))) for each in rounds}) > 1:
        others, fields = one.others(name), differing_fields([each.others(name) for each in rounds])
        beside = JOINED.join(short_words(job, fields[str(job["name"])]) for job in others)
        words += f" beside {beside}" if others else " alone"
    if len({each.elsewhere for each in rounds}) > 1:
        words += f" {at_words(one.elsewhere)}"
    return words
