"""What a run has given so far, kept in memory: an interrupted command has no time to read its tables again."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.results.rows import Point
from analysis.statistics.answer import answer
from analysis.statistics.contests import Place
from analysis.statistics.declared_faults import unmodelled_sentence
from analysis.statistics.intervals import Series, series_of, summarise
from analysis.statistics.job_times import series_of_jobs
from analysis.statistics.number_words import bracketed, estimate
from scenarios.engines.base import Slice
from scenarios.spec.labels import setting_of
from scenarios.spec.scenario import Scenario, plain_values

_MOST = 20_000_000  # collectives whose times are kept
_MOST_POINTS = 24  # that have a line

Arrays = dict[str, npt.NDArray[Any]]


class SoFar:
    """The times of a run's points, from their first collectives on as far as they have arrived without a gap."""

    def __init__(self, configs: dict[str, Sequence[Scenario]]) -> None:
        """Begin with nothing; `configs` are the configurations by engine."""
        self._configs = configs
        self._parts: dict[Point, dict[int, Arrays]] = {}
        self._sizes: dict[Point, dict[int, int]] = {}

    def take(self, engine: str, part: Slice) -> None:
        """Add the results of consecutive collectives, which may come in any order. Beyond 20 million they are counted
        alone, as they would take too much memory."""
        rows, point = part.rows, Point(engine, part.setting, part.mode)
        self._sizes.setdefault(point, {})[rows.start] = len(rows)
        if sum(self._done.values()) > _MOST:
            return
        times: Arrays = {name: rows[name] for name in ("completion_s", "reembedded", "rerouted")}
        times |= {f"job {number}": one for number, one in enumerate(rows.jobs.get("completion_s", np.empty((0, 0))).T)}
        self._parts.setdefault(point, {})[rows.start] = times

    @property
    def _done(self) -> dict[Point, int]:
        return {point: sum(sizes.values()) for point, sizes in self._sizes.items()}

    def has(self, point: Point) -> bool:
        """Return whether there are results of a point."""
        return point in self._parts

    def lines(self, why: str = "interrupted") -> Iterator[str]:
        """Yield how far the run came, and `why` no further, the answer over what there is, and a line for each point;
        nothing if there is nothing."""
        if not self._parts:
            return
        counts = {
            Point(engine, index, mode): len(config.collective.numbers)
            for engine, configs in self._configs.items()
            for index, config in enumerate(configs)
            for mode in config.run.modes
        }
        series, jobs = dict[Point, Series](), dict[Point, dict[str, Series]]()
        for point in counts:
            if parts := self._parts_of(point):
                series[point], jobs[point] = self._series(point, parts)
        done = self._done
        whole = sum(done.get(point) == count for point, count in counts.items())
        known = sum(one.number.size for one in series.values())
        of = f" (below: {known:,} without a gap)" if known < sum(done.values()) else ""
        yield (
            f"{why} after {sum(done.values()):,} of {sum(counts.values()):,} collectives{of}, "
            f"{whole} of {len(counts)} points complete:"
        )
        if not series:
            return
        configs = {index: config for each in self._configs.values() for index, config in enumerate(each)}
        settings = [setting_of(index, configs[index]) for index in sorted({point.setting for point in series})]
        times = {(point.engine, Place(point.setting, point.mode)): one for point, one in series.items()}
        of_jobs = {(point.engine, Place(point.setting, point.mode)): one for point, one in jobs.items()}
        yield answer(settings, times, of_jobs)
        modelled = {point.setting for point in series if point.engine == "model"}
        yield from filter(None, [unmodelled_sentence(plain_values(configs[index])["fault"] for index in modelled)])
        yield ""
        for point, one in [*series.items()][:_MOST_POINTS]:
            label, mean_s = self._configs[point.engine][point.setting].label, summarise(one).mean_s
            mean = f"mean {estimate(mean_s, 1e3, 3)} ms {bracketed(mean_s, 1e3, 3)}"
            yield f"{point.engine}, {label}, {point.mode}: {one.number.size:,} of {counts[point]:,}, {mean}"
        if len(series) > _MOST_POINTS:
            yield f"and {len(series) - _MOST_POINTS} more points"

    def _parts_of(self, point: Point) -> list[Arrays]:
        """Return the parts of a point that follow each other from its first collective on."""
        numbers, parts, arrived = self._configs[point.engine][point.setting].collective.numbers, list[Arrays](), 0
        for start, part in sorted(self._parts.get(point, {}).items()):
            if arrived < len(numbers) and start == numbers[arrived]:
                parts.append(part)
                arrived += len(part["completion_s"])
        return parts

    def _series(self, point: Point, parts: Sequence[Arrays]) -> tuple[Series, dict[str, Series]]:
        """Return the times of a point's rounds, and those of its jobs."""
        config = self._configs[point.engine][point.setting]
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        times_s = whole["completion_s"]
        reembedded, rerouted = (whole[name].astype(bool) for name in ("reembedded", "rerouted"))
        number = np.array(config.collective.numbers[: times_s.size])
        chosen: Any = {"reembedded": reembedded, "rerouted": rerouted, "exact_from": config.exact_from(point.engine)}
        series = series_of(number, times_s, config.conditions, **chosen)
        named = {job.name: whole[f"job {number}"] for number, job in enumerate(config.workload.jobs) if config.jobs}
        return series, series_of_jobs(series, named)
