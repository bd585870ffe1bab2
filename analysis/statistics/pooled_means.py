"""The means over seeds that the sentence of a run compares: its table has each seed by itself."""

from collections.abc import Iterator, Mapping, Sequence

from analysis.statistics.contests import Contest, Place, Setting, contests_of, seeds_words
from analysis.statistics.intervals import Series, gain, summarise
from analysis.statistics.number_words import bracketed, estimate


def pooled_lines(settings: Sequence[Setting], times: Mapping[tuple[str, Place], Series]) -> Iterator[str]:
    """Yield a line for each contest with several seeds in each engine, given the times by engine and point: "model, 8
    GPUs, 3 seeds: base 12.300 ms [12.100, 12.500]; wan 9.840 ms [9.700, 9.990], 20.0% [19.5, 20.4]"."""
    contests = [one for one in contests_of(settings) if len(one.repetitions) > 1]
    for engine in dict.fromkeys(of for of, _ in times):
        known = {place: series for (of, place), series in times.items() if of == engine}
        for contest in contests:
            if series := contest.times(known):
                yield f"{_where(engine, contest)}: {'; '.join(_words(contest, series))}"


def _where(engine: str, contest: Contest) -> str:
    return ", ".join([engine, *(value.words for value in contest.at), seeds_words(contest.repetitions)])


def _words(contest: Contest, series: Mapping[str, Series]) -> Iterator[str]:
    """Yield each alternative with its mean, and its gain over the baseline if the table has such gains."""
    baseline = series.get(contest.baseline) if contest.is_choice or contest.is_named else None
    for name, one in series.items():
        mean_s = summarise(one).mean_s
        words = f"{name} {estimate(mean_s, 1e3, 3)} ms {bracketed(mean_s, 1e3, 3)}"
        saved = None if baseline is None or name == contest.baseline else gain(baseline, one)
        yield words if saved is None else f"{words}, {estimate(saved, 100, 1)}% {bracketed(saved, 100, 1)}"
