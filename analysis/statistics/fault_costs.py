"""What each fault of a point cost, in words: measured, or predicted where nothing was measured; seeds are pooled.

The records are the rows of faults.parquet. Those of the engine "model" have the outcome `PREDICTED` with a predicted
cost, `PARTLY` with that of later collectives than the one within which the fault begins, or `NOT_PREDICTED` without
one, and no times of detection and recovery.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.results.reader import Run
from analysis.results.rows import Point
from analysis.statistics.contests import Setting, repetitions, shared_words
from analysis.statistics.declared_faults import AGENT, CONTROLLER, DOWN, LOSSY, SLOWED, kind_of
from analysis.statistics.fault_outcomes import AS_BEFORE, MOST_COSTS, NOT_BEFORE_NEXT, NOT_IN_RUN
from analysis.statistics.intervals import Interval, mean_of_draws
from analysis.statistics.rates import are_drawn
from topologies.conditions.sampler import ConditionsSpec
from topologies.errors import list_all, list_first
from topologies.fabric.fabric import Fabric
from topologies.units import format_delay

Numbers = Mapping[Point, npt.NDArray[np.int64]]
"""The numbers of the collectives of each point, [K]."""

PREDICTED, PARTLY, NOT_PREDICTED = "predicted", "predicted in part", "not predicted"
"""The outcomes of a fault of a point that was not measured: with a predicted cost, with that of the collectives after
the one within which it begins, and without one."""
_WHY_NOT = "the model has no time of detection, losses or failed attempts"
_MOST_SEEDS = 4
_RESOLUTION_S = 1e-9  # of measured times
_ROUNDING = 1e-6  # of a cost that is the largest error itself
_SOON_S = 1e-6  # the shortest time of a recovery that is told
_RECOVERED = "recovered"
_COSTS = {
    DOWN: "links down: recovered when all switches had confirmed other paths; packets take these then or up to 5 ms "
    "later, as Open vSwitch revalidates cached decisions: costs may differ by 5 ms for this alone; what a cost has "
    "beyond that of the other paths is mostly the time in which what was lost is sent again",
    LOSSY: "links with losses: nothing is repaired; the cost is the time in which what was lost is sent again",
    SLOWED: "slow agents: nothing is repaired; the cost is that of their lower rates, for as long as these last",
    CONTROLLER: "killed controllers: recovered when a new one had started; switches forward as before until then, "
    "and the pause in which it starts is neither in costs nor in completion times",
    AGENT: "killed agents: recovered when new ones had started; the cost is that of the failed attempt, from the "
    "collective's beginning until the failure was detected; the time from then until the collective is run again (new "
    "agents, new connections) is neither in costs nor in completion times",
}
"""What the times of recovery and the costs are, by the kind of fault."""
_FAILED = ", and that of failed attempts, each from its beginning until the failure"  # where no path was left
_MASKED = "masked"
_WHY_MASKED = {LOSSY: "TCP alone makes up for losses", SLOWED: "nothing failed, links were slower"}
SUCCEEDED = (
    "Measured times of collectives are those of the attempts that succeeded: failed ones before them are in the costs "
    "of faults alone."
)
_NOTHING = "about 0"
_NEVER = {NOT_IN_RUN: "not as before within the run", NOT_BEFORE_NEXT: "not as before when the next fault begins"}
_NOT_MEASURED = "not as before within the measurement"
_MOST_TOLD = 4  # faults, and modes, whose costs are in a sentence
_MOST_PARTS = 4  # collectives whose costs are told
_LITTLE = 0.01  # of a cost, or of its largest part: what is less is not told by itself
_LASTING = {True: "from the other paths", False: "for as long as the fault lasts"}
"""What the lasting part of a cost is from, by whether the fault takes links down."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPart:
    """What is measured of a fault at a point of which other collectives are predicted alone.

    Of the `of` collectives that it hits, `hit` are measured: those until its measured end, or, if it outlasts the
    measurement, until its predicted one. `predicted_s` is the predicted cost in the measured ones, `in_all_s` that in
    all, s, None if not known. `is_ahead` tells that later collectives than the last measured one are predicted; then
    `until` is the first one that the fault is predicted not to hit any more, if it outlasts the measurement, and
    `as_before` the predicted one from which on times are as before; None for none.
    """

    hit: int
    of: int
    predicted_s: float | None = None
    in_all_s: float | None = None
    is_ahead: bool = False
    until: int | None = None
    as_before: int | None = None


@dataclass(frozen=True, kw_only=True)
class FaultResult:
    """A fault of a point: its number in the scenario from 1 (0 if no fault was declared), what it was, in which
    collective, how it ended, after how long it was detected and recovered from, and what it cost; s, None for never or
    not known.

    The cost is what the collectives that it made slower lost, less what those that it made faster gained, `gained_s`.
    `as_before` is the collective from which on times are those without it, or why there is none, as `fault_outcomes`
    has them, and `until` the first one that it did not hit any more. `lasting_cost_s` is the part of the cost that
    lasts as long as the fault, such as that of slower paths; the rest is what the fault itself took. `costs` has both
    for each of the first collectives that it hit, as `fault_outcomes` has them, and `jobs` the same of each job of the
    rounds that is waited for, with how far that may be off if it is measured. `error_s` is how far the cost may be off,
    as far as the point's predictions are; `collectives` is in how many collectives the predicted cost arises, if it is
    not that of all. `collectives_lost` attempts failed because of it. Of a measured fault `predicted` is the outcome in
    the model, "" if that was not run, and `predicted_s` the cost there. `is_timed` tells that a measured one was to
    last for a time, and `is_in_force` that it still is when the run ends; not where that was not stored. `part` is what
    is measured of it, if other collectives of its point are predicted alone.
    """

    number: int
    what: str
    at_collective: int
    outcome: str
    detected_s: float | None = None
    recovered_s: float | None = None
    cost_s: float | None = None
    gained_s: float | None = None
    lasting_cost_s: float | None = None
    costs: Sequence[Mapping[str, Any]] | None = None
    jobs: Sequence[Mapping[str, Any]] | None = None
    as_before: int | None = None
    until: int | None = None
    error_s: float | None = None
    collectives: int | None = None
    collectives_lost: int = 0
    predicted: str = ""
    predicted_s: float | None = None
    is_timed: bool = False
    is_in_force: bool = False
    part: MeasuredPart | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the fault was injected, and its outcome measured."""
        return self.outcome not in (PREDICTED, PARTLY, NOT_PREDICTED)

    @property
    def is_absent(self) -> bool:
        """Whether it is one of a predicted point whose times have nothing of it: a loss, or a killed process."""
        return self.outcome == NOT_PREDICTED and self.kind not in (DOWN, SLOWED)

    @property
    def told_jobs(self) -> Sequence[Mapping[str, Any]]:
        """The costs to the jobs, if rounds have several: that of a single one is the rounds'."""
        return self.jobs if self.jobs is not None and len(self.jobs) > 1 else ()

    @property
    def lost_s(self) -> float | None:
        """What the collectives that it made slower lost, s; None if that is not known."""
        return None if self.cost_s is None or self.gained_s is None else self.cost_s + self.gained_s

    @property
    def kind(self) -> str:
        """What kind of fault it is: a key of what costs are."""
        return kind_of(self.what)

    @property
    def outcome_words(self) -> str:
        """How the fault ended, in words that fit a cost: "masked: TCP alone makes up for losses"."""
        why = _WHY_MASKED.get(self.kind) if self.outcome == _MASKED else None
        return self.outcome if why is None else f"{self.outcome}: {why}"

    @property
    def words(self) -> str:
        """The fault in words, such as "agent 1 killed in collective 2: recovered after 12 ms, cost 10.5 ms"."""
        return FaultCost(results=(self,)).words


@dataclass(frozen=True, kw_only=True)
class FaultCost:
    """The same fault of a point with each of its seeds, which are repetitions; `results` has one for each.

    `beside` has the other faults of the point that hit some of the same collectives, whose cost is then counted for
    each of them: their numbers, with whether they hit just the same ones.
    """

    results: tuple[FaultResult, ...]
    beside: Mapping[int, bool] = field(default_factory=dict)

    @property
    def cost_s(self) -> Interval | None:
        """The mean cost over the seeds for which it is known, s; None if it is for none. One seed has no interval."""
        known = [one.cost_s for one in self.results if one.cost_s is not None]
        return mean_of_draws(np.array(known)) if known else None

    @property
    def jobs(self) -> dict[str, list[Mapping[str, Any]]]:
        """The costs to each job of rounds that have several, by its name, for each seed for which they are known."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for job in (job for one in self.results for job in one.told_jobs):
            found.setdefault(job["job"], []).append(job)
        return found

    @property
    def lasting_cost_s(self) -> float | None:
        """The mean over the seeds of the cost's lasting part, s; None if it is not known for all with a cost."""
        known = [one.lasting_cost_s for one in self.results if one.cost_s is not None]
        values = [value for value in known if value is not None]
        return sum(values) / len(values) if values and len(values) == len(known) else None

    @property
    def what(self) -> str:
        """What failed, and when, in words."""
        return f"{self.results[0].what} in collective {self.results[0].at_collective:,}"

    @property
    def words(self) -> str:
        """The fault in words, as those of one result, with the mean cost and its interval if there are more."""
        return f"{self.what}: {self.outcome}"

    @property
    def some_words(self) -> str:
        """In which of the collectives that it hits its cost arises, if not in all: " in the 2 measured ones of 5
        collectives that it hits"."""
        known = [one.part for one in self.results if one.part is not None and one.part.hit != one.part.of]
        if not known:
            return some_collectives(self.results[0].collectives)
        hit, of = ({getattr(one, name) for one in known} for name in ("hit", "of"))
        if len(known) < len(self.results) or len(hit) > 1 or len(of) > 1:
            return " in the measured ones of the collectives that it hits"
        return f" in the {hit.pop():,} measured ones of {of.pop():,} collectives that it hits"

    @property
    def _some_of_all(self) -> str:
        """What `some_words` tells, with the predicted cost in all collectives if it is known."""
        parts = [one.part for one in self.results]
        known = [one.in_all_s for one in parts if one is not None and one.hit != one.of and one.in_all_s is not None]
        in_all = f" (predicted in all: {costs_words(known, 0.0)})" if len(known) == len(parts) else ""
        return f"{self.some_words}{in_all}"

    @property
    def outcome(self) -> str:
        """How the fault ended, and what it cost, in words."""
        first, cost = self.results[0], self.cost_words
        if not first.is_measured:
            some = self.some_words
            if cost is None:
                lost = max(one.collectives_lost for one in self.results)
                failed = f"; {attempts_words(lost)}" if lost else ""
                return f"{NOT_PREDICTED}, as {_WHY_NOT}{failed}{self._end_words}"
            is_part = first.outcome == PARTLY
            how = f"{PARTLY}:" if is_part else PREDICTED
            whose = f"{how} {self._cost_is} {cost}{some}{self.beside_words}{self._parts}"
            rest = f"; not within collective {first.at_collective:,}, as {_WHY_NOT}" if is_part else ""
            return f"{whose}{self.jobs_words}{rest}{self._as_before}{self._end_words}"
        counts = Counter(one.outcome_words for one in self.results)
        costs = [cost or "", *map(_job_words, self.jobs.values())]
        if first.kind == DOWN and {*counts} == {_RECOVERED} and all(one.startswith(_NOTHING) for one in costs):
            return f"without effect on the time, {self._cost_is} {cost}{self.jobs_words}{self._end_words}"
        outcomes = [
            f"{outcome} with {_seeds(count)}" if len(counts) > 1 else outcome for outcome, count in counts.items()
        ]
        after = _after([one.recovered_s for one in self.results if one.recovered_s is not None])
        beside = self._predicted_words
        whose = f"{self._cost_is} {cost}{self.beside_words}{beside}{self._some_of_all}"
        told_cost = "" if cost is None else f", {whose}{self._parts}{self.jobs_words}"
        return f"{', '.join(outcomes)}{after and f' {after}'}{told_cost}{self._as_before}{self._end_words}"

    @property
    def beside_words(self) -> str:
        """With which other faults it shares its cost: " together with fault 2"; "" if with none."""
        if not self.beside or self.cost_words in (None, _NOTHING):
            return ""
        names = [f"fault {number}" if number else "one that was not declared" for number in self.beside]
        return f" {'' if all(self.beside.values()) else 'in part '}together with {list_all(names)}"

    @property
    def predicted_cost_s(self) -> float | None:
        """The mean over the seeds of the predicted cost of a measured fault, s; None if it is not known for all."""
        known = [None if one.predicted == PARTLY else one.predicted_s for one in self.results]
        values = [value for value in known if value is not None]
        return sum(values) / len(values) if len(values) == len(known) else None

    @property
    def _predicted_words(self) -> str:
        """The predicted cost beside the measured one, in brackets."""
        later_s = [one.predicted_s for one in self.results if one.predicted == PARTLY and one.predicted_s is not None]
        if len(later_s) == len(self.results):
            return f" (not predicted, but in later collectives {costs_words(later_s, 0.0)})"
        if self.predicted_cost_s is None:
            is_unknown = all(one.predicted in (PARTLY, NOT_PREDICTED) for one in self.results)
            return " (not predicted)" if is_unknown else ""
        return f" (predicted {costs_words([self.predicted_cost_s], 0.0)})"

    @property
    def apart_s(self) -> tuple[float, float] | None:
        """The means over the seeds of what collectives lost and what others gained, s; None unless there is both, each
        further from 0 than it may be off."""
        known = [(one.lost_s, one.gained_s) for one in self.results if one.lost_s is not None]
        if not known:
            return None
        lost_s, gained_s = (sum(one or 0.0 for one in each) / len(known) for each in zip(*known, strict=True))
        least_s = max(_RESOLUTION_S, *(one.error_s or 0.0 for one in self.results))
        return (lost_s, gained_s) if min(lost_s, gained_s) > least_s else None

    @property
    def _apart_words(self) -> str:
        """What was lost and what was gained, if a cost is the difference of both, with the collectives if it is that of
        one seed; "" otherwise."""
        if self.apart_s is None:
            return ""
        (first, *others), (lost_s, gained_s) = self.results, self.apart_s
        if others or not first.costs or len(first.costs) == MOST_COSTS:
            return f": {_time(lost_s)} lost in some collectives, {_time(gained_s)} gained in others"
        lost, gained = (
            {one["collective"]: abs(one["cost_s"]) for one in self._told_costs if (one["cost_s"] < 0) is is_gain}
            for is_gain in (False, True)
        )
        return f": {_time(lost_s)} lost{_told_in(lost)}, {_time(gained_s)} gained{_told_in(gained)}"

    @property
    def _told_costs(self) -> list[Mapping[str, Any]]:
        """What each collective that the first seed's fault hit lost or gained, where that is further from 0 than it may
        be off."""
        least_s = max(self.results[0].error_s or 0.0, _RESOLUTION_S)
        return [one for one in self.results[0].costs or () if abs(one["cost_s"]) > least_s]

    @property
    def as_before_words(self) -> str:
        """From which collective on times are as before; "" if that is not known, or no time was another one."""
        known = [one.as_before for one in self.results if one.as_before is not None]
        if not known or all(one.as_before == one.at_collective for one in self.results):
            return ""
        never = Counter(_never(one) for one in self.results if one.as_before is not None and one.as_before < 0)
        numbers = sorted(one for one in known if one >= 0)
        parts = [f"as before from collective {numbers[0]:,} on"] if numbers else []
        if numbers and numbers[0] < numbers[-1]:
            parts = [f"as before from collective {numbers[0]:,} to {numbers[-1]:,} on, by seed"]
        parts += [words + f" with {_seeds(count)}" * (count < len(known)) for words, count in never.items()]
        return ", ".join(parts)

    @property
    def _as_before(self) -> str:
        if self.as_before_words:
            return f"; {self.as_before_words}"
        is_same = all(one.as_before == one.at_collective for one in self.results)
        return f"; no time is off by more than {AS_BEFORE * 100:g} %" if is_same and self._told_costs else ""

    @property
    def in_force(self) -> int:
        """With how many seeds it is still in force when the run ends."""
        return sum(one.is_in_force for one in self.results)

    @property
    def _end_words(self) -> str:
        """That the fault is still in force when the run ends, or in which collective it ended, if it was to last for a
        time: "; still down at the end of the run"."""
        state = "down" if self.results[0].kind == DOWN else "in force"
        some = f" with {_seeds(self.in_force)}" if self.in_force < len(self.results) else ""
        still = f"; still {state} at the end of the run{some}" if self.in_force else ""
        last = sorted({one.until - 1 for one in self.results if one.is_timed and one.until is not None})
        which = f"{last[0]:,}" if len(last) == 1 else f"{last[0]:,} to {last[-1]:,}, by seed" if last else ""
        return f"{still}{self._beyond_words(state)}{f'; it ended in collective {which}' if last else ''}"

    def _beyond_words(self, state: str) -> str:
        """That the fault is in this state when the measurement ends, and until when it is predicted to be: "; still
        down when the measurement ends (predicted: until collective 8)"."""
        last = sorted({one.part.until - 1 for one in self.results if one.part is not None and one.part.until})
        if not last:
            return ""
        which = f"{last[0]:,}" if len(last) == 1 else f"{last[0]:,} to {last[-1]:,}, by seed"
        return f"; still {state} when the measurement ends (predicted: until collective {which})"

    @property
    def _cost_is(self) -> str:
        return "cost to the rounds" if self.jobs else "cost"

    @property
    def jobs_words(self) -> str:
        """What the fault cost each job of the rounds, the latest first, and of one seed in which rounds and from what:
        "; to the jobs: infer 32 ms (all from the other paths), train about 0"; "" unless rounds have several."""
        worst = sorted(self.jobs.items(), key=lambda job: -_mean_job_s(job[1]))
        words = [f"{name} {_job_words(costs)}{self._job_parts(costs)}" for name, costs in worst]
        return f"; to the jobs: {list_first(words, _MOST_PARTS)}" if words else ""

    def _job_parts(self, costs: Sequence[Mapping[str, Any]]) -> str:
        """In which rounds a cost to a job arose, and how much of it lasts as long as the fault, in brackets; "" if that
        is not known, or the cost is that of several seeds."""
        (first, *_), (one, *others) = self.results, costs
        least_s = max(one.get("error_s", 0.0), _RESOLUTION_S)
        if others or abs(one["cost_s"]) <= least_s:
            return ""
        known = one.get("costs") or ()
        parts = {part["collective"]: part["cost_s"] for part in known if abs(part["cost_s"]) > least_s}
        lasting_s = one.get("lasting_cost_s") or 0.0
        told = [] if parts.keys() <= {first.at_collective} or len(known) == MOST_COSTS else [_in_rounds(parts)]
        if first.is_measured and abs(lasting_s) > least_s:  # of a predicted cost, all of it does
            told.append(f"{_share(one['cost_s'], lasting_s, least_s)} {_LASTING[first.kind == DOWN]}")
        return f" ({'; '.join(told)})" if told else ""

    @property
    def _parts(self) -> str:
        """Which collectives a measured cost arose in, and how much of it lasts as long as the fault; "" if it is all in
        one collective, or of several seeds."""
        first, *others = self.results
        least_s = max(first.error_s or 0.0, _RESOLUTION_S)
        parts = {one["collective"]: one["cost_s"] for one in self._told_costs}
        if others or not parts:
            return self._apart_words
        most_s = max(map(abs, parts.values()))
        parts = {number: one_s for number, one_s in parts.items() if abs(one_s) > _LITTLE * most_s}
        is_rest = len(parts) < len(self._told_costs)
        text = self._apart_words or f": {_in_collectives(parts)}{', little in others' * is_rest}"
        if len(first.costs or ()) == MOST_COSTS and not self._apart_words:
            text = ""  # there may be more
        elif len(parts) == 1:  # a fault is said to be in its collective
            where = f"{', almost all' * is_rest} in collective {next(iter(parts)):,}"
            text = where if is_rest or first.at_collective not in parts else ""
        lasting_s, cost_s = first.lasting_cost_s or 0.0, first.cost_s or 0.0
        if abs(lasting_s) > least_s and first.is_measured:  # of a predicted cost, all of it does
            text += f"; {_share(cost_s, lasting_s, least_s)} of it {_LASTING[first.kind == DOWN]}"
        return text

    @property
    def cost_words(self) -> str | None:
        """The cost in words, such as "10.5 ms", or the mean over seeds with what is known of it; None if unknown."""
        known = [one.cost_s for one in self.results if one.cost_s is not None]
        if not known:
            return None
        text = costs_words(known, max(one.error_s or 0.0 for one in self.results))
        later = " in later collectives" if any(one.outcome == PARTLY for one in self.results) else ""
        return text + self._why_negative(known[0]) * (len(known) == 1 and text != _NOTHING) + later

    def _why_negative(self, cost_s: float) -> str:
        why = ": the other paths happened to be faster" if self.results[0].kind == DOWN else ""
        return f" (negative{why})" if cost_s < 0 else ""


@dataclass(frozen=True, kw_only=True)
class PointCosts:
    """The faults of a point, pooled over its seeds: what its configurations share in words, their indices, the engine,
    the mode and what each fault cost."""

    label: str
    settings: tuple[int, ...]
    engine: str
    mode: str
    faults: tuple[FaultCost, ...]

    def as_json(self) -> list[dict[str, Any]]:
        """Return an object for each fault."""
        return [
            {
                "engine": self.engine,
                "settings": list(self.settings),
                "mode": self.mode,
                "number": one.results[0].number,
                "what": one.results[0].what,
                "at_collective": one.results[0].at_collective,
                "outcomes": sorted({each.outcome for each in one.results}),
                "seeds": len(one.results),
                "mean_cost_s": None if cost is None else cost.value,
                "mean_lost_s": _mean_known(each.lost_s for each in one.results),
                "mean_gained_s": _mean_known(each.gained_s for each in one.results),
                "mean_lasting_cost_s": one.lasting_cost_s,
                "mean_predicted_cost_s": one.predicted_cost_s,
                "as_before": [each.as_before for each in one.results],
                "mean_job_costs_s": {name: _mean_job_s(costs) for name, costs in one.jobs.items()},
                "cost_low_s": None if cost is None or cost.why else cost.low,
                "cost_high_s": None if cost is None or cost.why else cost.high,
                "collectives": one.results[0].collectives,
            }
            for one in self.faults
            for cost in (one.cost_s,)
        ]


def faults_of(run: Run) -> dict[Point, tuple[FaultResult, ...]]:
    """Return the faults of each point of a run, each with the part of it that is measured."""
    if run.faults.empty:
        return {}
    groups = run.collectives.groupby(["engine", "setting", "mode"], observed=True)["collective"]
    return faults_by_point(
        run.faults.to_dict("records"), {Point(*key): rows.to_numpy(dtype=np.int64) for key, rows in groups}
    )


def faults_by_point(
    records: Iterable[Mapping[str, Any]], numbers: Numbers = MappingProxyType({})
) -> dict[Point, tuple[FaultResult, ...]]:
    """Return the faults of each point, in the order of the records, which have the columns of FAULTS. Measured ones
    have the part that is measured if the `numbers` of the collectives of their point and of the predicted one are
    given."""
    found = dict[Point, tuple[FaultResult, ...]]()
    for record in records:
        point = Point(record["engine"], record["setting"], record["mode"])
        values: dict[str, Any] = {name: record[name] for name in ("number", "what", "at_collective", "outcome")}
        for name in ("detected_s", "recovered_s", "cost_s", "gained_s", "lasting_cost_s", "as_before", "until"):
            value = record.get(name)  # records of unfinished runs of earlier versions lack some
            values[name] = None if value is None or math.isnan(value) else value
        for name in ("as_before", "until"):
            values[name] = None if values[name] is None else int(values[name])
        for name in ("costs", "jobs"):
            costs = record[name]  # None, NaN or NA where it is not known
            values[name] = tuple(map(dict, costs)) if isinstance(costs, list | tuple | np.ndarray) else None
        values["collectives"] = record["cost_collectives"] or None
        values["collectives_lost"] = record["collectives_lost"]
        if values["outcome"] == PREDICTED and values["cost_s"] is None:  # as runs of earlier versions have it
            values["outcome"] = NOT_PREDICTED
        is_known = values["as_before"] is not None or values["outcome"] == NOT_PREDICTED
        stays = values["until"] is None and kind_of(values["what"]) in (DOWN, LOSSY, SLOWED)
        found[point] = (*found.get(point, ()), FaultResult(**values, is_in_force=is_known and stays))
    for point, here in found.items():
        model = point._replace(engine="model")
        if point != model and point in numbers and model in numbers:
            known = {(one.number, one.at_collective): one for one in found.get(model, ())}
            found[point] = tuple(
                _with_part(one, known.get((one.number, one.at_collective)), numbers[point], numbers[model])
                for one in here
            )
    return found


def _with_part(
    fault: FaultResult,
    predicted: FaultResult | None,
    measured: npt.NDArray[np.int64],
    modelled: npt.NDArray[np.int64],
) -> FaultResult:
    """Return a measured fault with the part of it that is measured, given the same fault of the model, and the numbers
    of the collectives of both points; the fault itself if all of them are measured."""
    if predicted is None or np.isin(modelled, measured).all():
        return fault
    is_ahead = bool(modelled.max() > measured.max())
    is_beyond = is_ahead and fault.until is None
    end = fault.until or predicted.until or math.inf
    hit, all_hit = (here[(here >= fault.at_collective) & (here < end)] for here in (measured, modelled))
    is_whole, costs = predicted.outcome == PREDICTED, predicted.costs or ()
    has_all = len(costs) < MOST_COSTS or (hit.size and hit.max() <= costs[-1]["collective"])
    in_measured_s = sum(float(one["cost_s"]) for one in costs if one["collective"] in hit)
    part = MeasuredPart(
        hit=hit.size,
        of=all_hit.size,
        predicted_s=in_measured_s if is_whole and has_all else None,
        in_all_s=predicted.cost_s if is_whole and predicted.collectives is None else None,
        is_ahead=is_ahead,
        until=predicted.until if is_beyond else None,
        as_before=predicted.as_before if is_ahead else None,
    )
    return replace(fault, part=part, is_in_force=fault.is_in_force and not part.until)


def _never(fault: FaultResult) -> str:
    """Return why no times are as before, of a fault for which that is known; what is measured tells nothing of the
    collectives that are predicted after it."""
    if fault.as_before == NOT_BEFORE_NEXT or fault.part is None or not fault.part.is_ahead:
        return _NEVER[fault.as_before or NOT_IN_RUN]
    later = fault.part.as_before
    return _NOT_MEASURED if later is None or later < 0 else f"{_NOT_MEASURED} (predicted: from collective {later:,} on)"


def ends_of(faults: Iterable[FaultResult]) -> dict[tuple[int, str], list[int | None]]:
    """Return the ends of faults at predicted points, as `analysis.statistics.declared_faults` has them."""
    found = dict[tuple[int, str], list[int | None]]()
    for one in faults:
        found.setdefault((one.number, one.what), []).append(one.until)
    return found


def told(faults: Mapping[Point, Sequence[FaultResult]]) -> dict[Point, Sequence[FaultResult]]:
    """Return the faults that are told: predicted ones only of points that were not measured."""
    measured = {(point.setting, point.mode) for point, here in faults.items() if here and point.engine != "model"}
    return {
        point: here
        for point, here in faults.items()
        if here and (point.engine != "model" or (point.setting, point.mode) not in measured)
    }


def pooled_costs(settings: Sequence[Setting], faults: Mapping[Point, Sequence[FaultResult]]) -> list[PointCosts]:
    """Return the faults that are told, of points that differ only in the seed as one, in the order of settings."""
    shown, found = told(faults), list[PointCosts]()
    for engine in dict.fromkeys(point.engine for point in shown):
        for group in repetitions(settings):
            for mode in dict.fromkeys(mode for one in group for mode in one.modes):
                here = [one for one in group if shown.get(Point(engine, one.index, mode))]
                alike: dict[tuple[int, str, int], list[FaultResult]] = {}
                for one in here:
                    predicted = faults.get(Point("model", one.index, mode), ())
                    for fault in _with_predictions(shown[Point(engine, one.index, mode)], predicted):
                        alike.setdefault((fault.number, fault.what, fault.at_collective), []).append(fault)
                if here:
                    label = shared_words([one.label for one in here])
                    found.append(
                        PointCosts(
                            label=f"{label}, {_seeds(len(here))}" if len(here) > 1 else label,
                            settings=tuple(one.index for one in here),
                            engine=engine,
                            mode=mode,
                            faults=beside_each_other([tuple(results) for results in alike.values()]),
                        )
                    )
    return found


def beside_each_other(faults: Sequence[tuple[FaultResult, ...]]) -> tuple[FaultCost, ...]:
    """Return the faults of a point, each with those that hit some of the same collectives."""

    def span(one: FaultResult) -> tuple[float, float]:
        return one.at_collective, math.inf if one.until is None else one.until

    def shares(one: FaultResult, other: FaultResult) -> bool:
        (begin, end), (begins, ends) = span(one), span(other)
        return max(begin, begins) < min(end, ends) or _hit(one) & _hit(other) != set()

    return tuple(
        FaultCost(
            results=here,
            beside={
                other[0].number: span(here[0]) == span(other[0])
                for other in faults
                if other is not here and _has_effect(other[0]) and shares(here[0], other[0])
            },
        )
        for here in faults
    )


def _hit(fault: FaultResult) -> set[int]:
    return {one["collective"] for one in fault.costs or ()}


def _has_effect(fault: FaultResult) -> bool:
    """Return whether a fault may have had a part in what the collectives that it hit lost."""
    return fault.cost_s is None or abs(fault.cost_s) > max(fault.error_s or 0.0, _RESOLUTION_S)


def _with_predictions(measured: Sequence[FaultResult], predicted: Sequence[FaultResult]) -> Iterator[FaultResult]:
    """Yield measured faults with the outcome and the cost that are predicted of the same ones, if they have hit the
    same collectives: those of a fault that outlasts the measured ones are not all known. Predicted ones stay."""
    known = {(one.number, one.at_collective): one for one in predicted}
    for one in measured:
        like = known.get((one.number, one.at_collective)) if one.is_measured else None
        if like is not None and like.outcome == PREDICTED and one.part is not None and one.part.hit != one.part.of:
            yield replace(one, predicted=PREDICTED, predicted_s=one.part.predicted_s)
        elif like is None or (one.as_before == NOT_IN_RUN) is not (like.as_before == NOT_IN_RUN):
            is_unknown = like is not None and like.outcome in (PARTLY, NOT_PREDICTED)
            yield replace(one, predicted=NOT_PREDICTED) if is_unknown else one
        else:
            yield replace(one, predicted=like.outcome, predicted_s=like.cost_s)


def fault_costs_sentence(points: Sequence[PointCosts]) -> str:
    """Return which of several faults cost what in each mode, those that hit the same collectives together; "" with a
    single one, for several configurations, and where there are too many."""
    if len({(one.engine, one.label) for one in points}) != 1:
        return ""
    by_fault: dict[int, dict[str, FaultCost]] = {}
    for point in points:
        for fault in point.faults:
            by_fault.setdefault(fault.results[0].number, {})[point.mode] = fault
    if not 1 < len(by_fault) <= _MOST_TOLD or len(points) > _MOST_TOLD or 0 in by_fault:
        return ""
    told, parts = set[int](), list[str]()
    for number, costs in by_fault.items():
        if number in told:
            continue
        (first, *_) = costs.values()
        alike = sorted([number, *(other for other, is_same in first.beside.items() if is_same)])
        told |= {*alike}
        words = {mode: _sum_words(one) for mode, one in costs.items()}
        each = next(iter(words.values())) if len({*words.values()}) == 1 else ""
        modes = {each: [mode for mode, cost in words.items() if cost == each] for each in words.values()}
        own = [f"{each} in {list_all(those)}" for each, those in modes.items()]
        cost = f"{each}{' in each mode' * (len(words) > 1)}" if each else ", ".join(own)
        names = f"faults {list_all([*map(str, alike)])} together cost" if len(alike) > 1 else f"fault {number} costs"
        part = [f"fault {other}" for other, is_same in first.beside.items() if not is_same]
        whose = f"{', '.join(dict.fromkeys(by_fault[one][points[0].mode].results[0].what for one in alike))}"
        parts.append(f"{names} {cost} ({whose}{f', in part the same as of {list_all(part)}' if part else ''})")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _sum_words(fault: FaultCost) -> str:
    return f"{fault.cost_words}{fault.some_words}" if fault.cost_words else "a time that is not predicted"


def cost_words(faults: Iterable[FaultResult]) -> tuple[str, ...]:
    """Return what the times of recovery and the costs of the measured ones of these faults are, in words for each kind
    of fault that there is, and why some have no prediction."""
    measured = [one for one in faults if one.is_measured]
    kinds = {one.kind for one in measured}
    failed = {one.kind for one in measured if one.collectives_lost and one.kind in (DOWN, LOSSY)}
    unpredicted = [f"not predicted: {_WHY_NOT}"] * any(one.predicted in (PARTLY, NOT_PREDICTED) for one in measured)
    return (*(words + _FAILED * (kind in failed) for kind, words in _COSTS.items() if kind in kinds), *unpredicted)


def attempts_words(lost: int) -> str:
    """Return that so many attempts fail because no path is left."""
    return f"{lost:,} attempt{'s fail' if lost > 1 else ' fails'}, as no path is left"


def predicted_attempts_sentence(points: Iterable[tuple[str, Sequence[FaultResult]]]) -> str:
    """Return a sentence on the attempts that fail in predicted points, of which there are the modes with their faults;
    "" if none does."""
    lost = dict[int, list[str]]()
    for mode, faults in points:
        at = dict[int, int]()  # attempts under several faults at a time count for each of them
        for one in faults:
            at[one.at_collective] = max(at.get(one.at_collective, 0), one.collectives_lost)
        if count := sum(at.values()):
            lost.setdefault(count, []).append(mode)
    told = [f"in {list_all(list(dict.fromkeys(modes)))} {attempts_words(count)}" for count, modes in lost.items()]
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}: their time is in no mean, and is not predicted." if text else ""


def attempts_sentence(faults: Iterable[FaultResult]) -> str:
    """Return a sentence on which attempts the measured times are those of; "" if none failed because of a fault."""
    return SUCCEEDED if any(one.is_measured and one.collectives_lost for one in faults) else ""


def chance(conditions: Iterable[tuple[Fabric, ConditionsSpec, int]]) -> str:
    """Return whether costs depend on chance, given fabrics and conditions with their seeds; "" if no rates are drawn at
    random, but recorded or constant."""
    seeds = sorted({seed for fabric, spec, seed in conditions if not spec.is_recorded and are_drawn(fabric, spec)})
    if not seeds:
        return ""
    if len(seeds) == 1:
        return f"rates are drawn at random, and this is one draw (seed {seeds[0]}): other seeds have other costs"
    return f"rates are drawn at random, once with each seed ({list_first([*map(str, seeds)], _MOST_SEEDS)})"


def some_collectives(count: int | None) -> str:
    """Return in which collectives a predicted cost arises, if it is not that of all."""
    return "" if count is None else f" in the first {count:,} collectives that it hits"


def _mean_job_s(costs: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(one["cost_s"]) for one in costs) / len(costs)


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def _in_collectives(parts: Mapping[int, float], what: str = "collective") -> str:
    """Return times, in s by the number of a collective, in words: the largest first, if not all are told."""
    told = worst_first(parts) if len(parts) > _MOST_PARTS else parts
    return list_first([f"{_time(cost_s)} in {what} {number:,}" for number, cost_s in told.items()], _MOST_PARTS)


def worst_first(parts: Mapping[int, float]) -> dict[int, float]:
    """Return times by the number of a collective, those furthest from 0 first, as far as their words differ."""
    return dict(sorted(parts.items(), key=lambda part: (-float(f"{abs(part[1]):.4g}"), part[0])))


def _in_rounds(parts: Mapping[int, float]) -> str:
    """Return in which rounds a cost arose, and how much in each if there are several."""
    return f"in round {next(iter(parts)):,}" if len(parts) == 1 else _in_collectives(parts, "round")


def _share(cost_s: float, part_s: float, least_s: float) -> str:
    """Return a part of a cost in words: "all" if it is the whole to `least_s`, "almost all", or its time."""
    if abs(cost_s - part_s) <= least_s:
        return "all"
    return "almost all" if abs(cost_s - part_s) <= _LITTLE * abs(cost_s) else _time(part_s)


def _told_in(parts: Mapping[int, float]) -> str:
    """Return in which collectives a sum arose, and how much in each if there are several."""
    if len(parts) == 1:
        return f" in collective {next(iter(parts)):,}"
    return f" ({_in_collectives(parts)})" if parts else ""


def _job_words(costs: Sequence[Mapping[str, Any]]) -> str:
    """Return the costs to a job, one for each seed, in words."""
    return costs_words([one["cost_s"] for one in costs], max(one.get("error_s", 0.0) for one in costs))


def costs_words(known: Sequence[float], error_s: float) -> str:
    """Return costs, one for each seed for which it is known, in words, given how far they may be off."""
    mean, least_s = mean_of_draws(np.array(known)), max(error_s, _RESOLUTION_S)
    text = _time(mean.value) if abs(mean.value) > least_s * (1 + _ROUNDING) else _NOTHING
    if len(known) == 1:
        return text
    if max(known) - min(known) <= least_s:
        return f"{text} with each of {_seeds(len(known))}"
    low, high = (mean.low, mean.high) if not mean.why else (min(known), max(known))
    ends = f"{_time(low)} to {_time(high)}"
    if mean.why:
        return f"{text} on average over {_seeds(len(known))}, which have {ends} ({mean.why})"
    return f"{text} on average over {_seeds(len(known))} (95 % interval {ends})"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _time(seconds: float) -> str:
    """Return a time with four digits, in a unit that shows it."""
    return f"-{_time(-seconds)}" if seconds < 0 else format_delay(float(f"{seconds:.4g}"))


def _after(times_s: Sequence[float]) -> str:
    """Return after what time, or what times, faults were recovered from."""
    if not times_s:
        return ""
    if max(times_s) < _SOON_S:
        return f"within {_time(_SOON_S)}"
    least, most = _time(max(min(times_s), _SOON_S)), _time(max(times_s))
    return f"after {most}" if least == most else f"after {least} to {most}"
