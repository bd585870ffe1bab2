"""Fault outcomes: when each fault of an emulated point was detected and recovered from, and what it cost.

A fault's recovery is not its cost: traffic moves to another path within milliseconds, but TCP may be back much later,
and the other path may be slower for as long as the fault lasts. So the cost of a fault is the time that the collectives
it hit took longer than the model predicts for them without any fault, including their failed attempts. A fault hits the
collectives that begin or run while it is in force, and those of which an attempt failed because of it. A collective
that several faults hit counts for each of them.

A part of the cost lasts for as long as the fault does: what the model predicts for the collectives that begin with it,
as other paths are slower. The rest is what the fault itself took: the time until traffic was on other paths, TCP's
recovery of what was lost, and failed attempts.

They are a pure function of the events that the testbed records during a run. An event is a mapping with `event` (its
kind), `at_ns` (CLOCK_MONOTONIC), `collective`, and further fields that depend on the kind:

    injected      a declared fault took effect: `fault` (its index in the scenario), `kind`, `what`, and `cables`, the
                  cables "a-b" that it takes down, sorted
    over          the duration of the fault `fault` has passed; if `within` a collective, that is the one before
                  `collective`
    failed        an attempt at a collective failed (`lost` 1), or an agent or the controller failed between collectives
                  (`lost` 0): `why`, the `retransmitted_bytes` of the failed attempt, and `spent_ns`, the time from its
                  beginning to the failure (missing in events of earlier versions)
    restarted     `what`, "agents" or "controller", was started again; the failure had been detected at `detected_ns`
    outages       the controller's list of failed cables, `outages`, each with `died`, `back`, `seen_ns` and `done_ns`,
                  which is 0 until all switches have confirmed the new paths
    retransmitted TCP retransmitted `retransmitted_bytes` within a collective that completed
    completed     a collective that a fault may have affected completed
    ended         the run ended; `why` is the error, "" for none
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

Event = Mapping[str, Any]
NO_TIMES: Mapping[int, float] = MappingProxyType({})
NO_JOBS: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]] = MappingProxyType({})
MOST_COSTS = 100
"""Collectives of which the cost of a fault is told one by one."""
NOT_IN_RUN, NOT_BEFORE_NEXT = -1, -2
"""Instead of the collective from which on times are as before: none until the run ends, or until the next fault."""
AS_BEFORE = 0.01
"""How far a time may be from the predicted one without faults, as a share of that, to be as before."""

UNDECLARED = -1
"""The index of a fault that the scenario does not declare; its number, which users see, is 0."""

_CUTS = ("link down", "switch down")
_AGENTS = ("agent killed", "")  # recovered from when new agents start; "" is an undeclared failure


@dataclass(kw_only=True)
class _Fault:
    """A fault, and the detection, recovery and costs attributed to it; times in ns."""

    index: int
    collective: int
    kind: str
    what: str
    injected_ns: int
    cables: frozenset[str] = field(default=frozenset())
    active: bool = True
    until: int | None = None  # the first collective that it does not hit any more
    ended_within: bool = False  # the one before that
    hit: set[int] = field(default_factory=set)  # further collectives that it has hit
    failing: bool = False  # a collective failed because of it and has not completed since
    detected_ns: int | None = None
    recovered_ns: int | None = None
    collectives_lost: int = 0
    retransmitted_bytes: int = 0

    def detect(self, at_ns: int) -> None:
        if self.detected_ns is None:
            self.detected_ns = at_ns

    def recover(self, at_ns: int, *, detected_ns: int) -> None:
        if self.recovered_ns is None:
            self.detect(detected_ns)
            self.recovered_ns = at_ns

    def hits(self, collective: int) -> bool:
        """Return whether the fault has hit this collective."""
        in_force = self.collective <= collective and (self.until is None or collective < self.until)
        return in_force or collective in self.hit

    def since_s(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else max(0, at_ns - self.injected_ns) / 1e9


def fault_outcomes(
    events: Iterable[Event],
    later_s: Mapping[int, float] = NO_TIMES,
    lasting_s: Mapping[int, float] = NO_TIMES,
    jobs_s: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]] = NO_JOBS,
    healthy_s: Mapping[int, float] = NO_TIMES,
) -> list[dict[str, Any]]:
    """Return a row for each fault of a point, in the order in which the faults took effect.

    `later_s` is by how much each collective, by its number, took longer than predicted without any fault, without its
    failed attempts, in s; `lasting_s` by how much it is predicted to take longer under the faults with which it began;
    `jobs_s` has the same two for each job of the rounds, by its name, and `healthy_s` what collectives are predicted to
    take without any fault. The columns are those of `analysis.results.columns.FAULT`: `detected_s` and
    `recovered_s` are seconds since the injection, None for never; `cost_s` is the cost in s, None if the time of no
    collective that it hit is known; `gained_s` by how much those that it made faster were so; `costs` has the first
    `MOST_COSTS` of its parts; `as_before` is the collective from which on times are those without it, as the function
    of that name returns it; `until` the first collective that it did not hit any more, None if it stayed; `jobs` what
    each job lost; `outcome` is "recovered", "masked" if nothing had to be done, or "aborted: " and why.
    """
    events = list(events)
    faults: list[_Fault] = []
    outages: dict[tuple[Any, ...], Mapping[str, Any]] = {}  # each outage as the controller listed it last
    why = ""
    for event in events:
        at_ns, kind = event["at_ns"], event["event"]
        if kind == "injected":
            faults.append(_declared(event))
        elif kind == "over":
            over = next(fault for fault in faults if fault.index == event["fault"])
            over.active, over.until = False, event["collective"]
            over.ended_within = event.get("within", False)
        elif kind == "failed":
            _fail(faults, event)
        elif kind == "restarted":
            _restart(faults, event)
        elif kind == "outages":
            outages |= {(one["seen_ns"], *one["died"], "", *one["back"]): one for one in event["outages"]}
        elif kind == "retransmitted" and faults:
            faults[-1].retransmitted_bytes += event["retransmitted_bytes"]
        elif kind == "completed":
            for fault in faults:
                fault.failing = False
                if fault.collectives_lost:
                    fault.recover(at_ns, detected_ns=fault.injected_ns)
        elif kind == "ended":
            why = event["why"]
    for index, fault in enumerate(faults):
        later = [other.injected_ns for other in faults[index + 1 :] if other.cables & fault.cables]
        _reroute(fault, [outages[key] for key in sorted(outages)], until_ns=min(later, default=None))
    took_s = _lost_s(events, later_s)
    of_jobs = {name: (_lost_s(events, job_later_s), job_s) for name, (job_later_s, job_s) in jobs_s.items()}
    nexts = [
        min((one.collective for one in faults if one.collective > fault.collective), default=None) for fault in faults
    ]
    return [
        _row(fault, why, took_s, lasting_s, of_jobs)
        | {"as_before": as_before(took_s, healthy_s, fault.collective, following)}
        for fault, following in zip(faults, nexts, strict=True)
    ]


def as_before(
    later_s: Mapping[int, float], healthy_s: Mapping[int, float], first: int, following: int | None
) -> int | None:
    """Return from which collective on the times of all are within `AS_BEFORE` of those without faults, until the run
    ends or the next fault begins: `first`, in which the fault begins, if it made none slower or faster. NOT_IN_RUN or
    NOT_BEFORE_NEXT if there is none, None if no time is known.

    `later_s` is by how much each collective took longer than without faults, by its number, `healthy_s` what it takes
    without them, in s, and `following` the collective in which the next fault begins, None for none.
    """
    numbers = sorted(one for one in later_s if first <= one and one in healthy_s)
    numbers = [one for one in numbers if following is None or one < following]
    if not numbers:
        return None
    off = [at for at, one in enumerate(numbers) if abs(later_s[one]) > AS_BEFORE * healthy_s[one]]
    if not off:
        return first
    after = numbers[off[-1] + 1 :]
    return after[0] if after else NOT_IN_RUN if following is None else NOT_BEFORE_NEXT


def _lost_s(events: Iterable[Event], later_s: Mapping[int, float]) -> dict[int, float]:
    """Return the time that each collective lost, by its number: `later_s` and the time of its failed attempts, in s."""
    lost_s = dict(later_s)
    for event in events:
        if "spent_ns" in event:
            number = event["collective"]
            lost_s[number] = lost_s.get(number, 0.0) + event["spent_ns"] / 1e9
    return lost_s


def _declared(event: Event) -> _Fault:
    return _Fault(
        index=event["fault"],
        collective=event["collective"],
        kind=event["kind"],
        what=event["what"],
        injected_ns=event["at_ns"],
        cables=frozenset(event["cables"]),
        until=event["collective"] + 1 if event["kind"].endswith("killed") else None,
    )


def _undeclared(event: Event, what: str, at_ns: int) -> _Fault:
    number = event["collective"]
    return _Fault(index=UNDECLARED, collective=number, kind="", what=what, injected_ns=at_ns, until=number + 1)


def _fail(faults: list[_Fault], event: Event) -> None:
    """Attribute a failed attempt to a fault, or to an undeclared one that is added."""
    fault = _blamed(faults)
    if fault is None:
        fault = _undeclared(event, event["why"], event["at_ns"])
        faults.append(fault)
    if fault.kind in _AGENTS:
        fault.detect(event["at_ns"])
    if fault.kind in _CUTS:
        fault.recovered_ns, fault.failing = None, True  # alternative paths, if there were any, did not help
    fault.hit.add(event["collective"])
    fault.collectives_lost += event["lost"]
    fault.retransmitted_bytes += event["retransmitted_bytes"]


def _blamed(faults: Sequence[_Fault]) -> _Fault | None:
    """Return the fault to which a failed attempt is attributed, or None.

    It is the oldest agent kill that has not been detected; otherwise the newest active link or switch fault; otherwise
    the newest controller fault or undeclared failure that has not been recovered from.
    """
    for fault in faults:
        if fault.kind == "agent killed" and fault.detected_ns is None:
            return fault
    for fault in reversed(faults):
        if fault.active and fault.kind in (*_CUTS, "link loss"):
            return fault
    for fault in reversed(faults):
        if fault.recovered_ns is None and fault.kind in ("controller killed", ""):
            return fault
    return None


def _restart(faults: list[_Fault], event: Event) -> None:
    """Recover the faults that a restart repairs; a controller that died without an injected fault is a new fault."""
    kinds: tuple[str, ...] = _AGENTS
    if event["what"] == "controller":
        killed = any(fault.kind == "controller killed" and fault.recovered_ns is None for fault in faults)
        kinds = ("controller killed",) if killed else ("",)
        if not killed:
            faults.append(_undeclared(event, "the controller has died", event["detected_ns"]))
    for fault in faults:
        if fault.kind in kinds:
            fault.recover(event["at_ns"], detected_ns=event["detected_ns"])


def _reroute(fault: _Fault, outages: Sequence[Mapping[str, Any]], *, until_ns: int | None) -> None:
    """Set when the controller detected the failure of a fault's cables, and when no path used them any more.

    The cables of a failed switch go down one after another, and new paths may take several attempts. If there were no
    new paths, or collectives failed in spite of them, the fault is recovered from when its cables are back. Outages
    from `until_ns` on belong to another fault.
    """
    since = [outage for outage in outages if outage["seen_ns"] >= fault.injected_ns]
    since = [outage for outage in since if until_ns is None or outage["seen_ns"] < until_ns]
    died = [outage for outage in since if fault.cables & set(outage["died"])]
    if not died:
        return
    fault.detected_ns = died[0]["seen_ns"]
    if fault.failing:
        return
    back = [outage for outage in since if fault.cables & set(outage["back"]) and outage["seen_ns"] >= fault.detected_ns]
    rerouted = [outage for outage in died if not back or outage["seen_ns"] < back[0]["seen_ns"]]
    helped = rerouted and rerouted[-1]["done_ns"] and not fault.collectives_lost
    decisive = (rerouted if helped or not back else back)[-1]
    fault.recovered_ns = decisive["done_ns"] or fault.recovered_ns


def costs_by_collective(numbers: Iterable[int], cost_s: Sequence[float], lasting_s: Sequence[float]) -> dict[str, Any]:
    """Return the columns of a fault's cost, given the numbers of the collectives that it hit, its cost in each, and how
    much of that lasts as long as the fault, in s. A gain is the cost of those that were faster, without its sign."""
    names, parts = ("collective", "cost_s", "lasting_cost_s"), zip(numbers, cost_s, lasting_s, strict=True)
    first = [dict(zip(names, part, strict=True)) for part in islice(parts, MOST_COSTS)]
    gained_s = sum(-one for one in cost_s if one < 0)
    return {"cost_s": sum(cost_s), "gained_s": gained_s, "lasting_cost_s": sum(lasting_s), "costs": first}


def costs_by_job(costs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the column of what a fault cost each job of the rounds, given the columns of these costs by the job's
    name; None without jobs."""
    names = ("cost_s", "lasting_cost_s", "costs")
    return [{"job": job} | {name: cost[name] for name in names} for job, cost in costs.items()] or None


def _costs(
    fault: _Fault, hit: Sequence[int], took_s: Mapping[int, float], lasting_s: Mapping[int, float]
) -> dict[str, Any]:
    """Return the columns of a fault's cost in the collectives that it hit."""
    costs = costs_by_collective(hit, [took_s[each] for each in hit], [lasting_s.get(each, 0.0) for each in hit])
    if fault.ended_within and fault.until is not None:  # predicted as if it had lasted until the collective's end
        costs["lasting_cost_s"] -= lasting_s.get(fault.until - 1, 0.0)
    return costs


def _row(
    fault: _Fault,
    why: str,
    took_s: Mapping[int, float],
    lasting_s: Mapping[int, float],
    jobs_s: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]],
) -> dict[str, Any]:
    hit = sorted(number for number in took_s if fault.hits(number))
    costs = _costs(fault, hit, took_s, lasting_s)
    outcome = "masked" if fault.recovered_ns is None else "recovered"
    if why and fault.recovered_ns is None:
        outcome = f"aborted: {why}"
    return {
        "number": fault.index + 1,
        "at_collective": fault.collective,
        "what": fault.what,
        "detected_s": fault.since_s(fault.detected_ns),
        "recovered_s": fault.since_s(fault.recovered_ns),
        **{name: value if hit else None for name, value in costs.items()},
        "jobs": costs_by_job({name: _costs(fault, hit, *job_s) for name, job_s in jobs_s.items() if hit}),
        "until": fault.until,
        "collectives_lost": fault.collectives_lost,
        "bytes_again": fault.retransmitted_bytes,
        "outcome": outcome,
    }
