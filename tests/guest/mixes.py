"""Runs inside the VM: random mixes of transfers, each on a testbed of its own; prints a JSON list.

`mixes.py SEEDS [PROTECTED [RECOVERY [LINKS]]]`: a list of seeds such as "0,1,2", the share of mixes that is protected,
by how many ms transfers of these must complete before their deadlines, 0 for none, and how many WAN links fail at most.

For each seed, "promised" has the outcome of every transfer and, if it was promised, its due time and its completion; a
protected mix also runs with each of these WAN links in turn `down`, from the beginning or, with a recovery, from a
random instant on. "forced": if a request is refused that would not fit without any reserve either, the mix runs once
more with the first such request forced in beside the promises before it. For that, the calendar takes links to be
faster by a factor, `times`. `late` are the transfers that were late then; for a protected mix, in the first case that
has any.
"""

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from controller.admission import Capacities
from scenarios.policies.policy import MODES
from scenarios.spec import ScenarioError, admission, round_workload
from scenarios.spec.faults import Fault
from scenarios.spec.load import scenario_of
from scenarios.spec.scenario import Scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import Testbed
from topologies.fabric.fabric import build_fabric

MAX_TIMES = 50.0
FABRICS = (
    "",
    'wan = "five-router"',
    'grain = "physical"',
    'grain = "physical"\nrails = 3\noversubscription = 2',
    'grain = "physical"\noversubscription = [2, 1.5]',
)


def mix(seed: int, *, protected: float = 0.2, recovery_ms: float = 200) -> Scenario:
    """Return a random mix of transfers, not all of them refused; with chance `protected`, it survives any WAN link's
    failure."""
    draw = random.Random(seed)
    while True:
        try:
            return drawn(draw, protected, recovery_ms)
        except ScenarioError:  # all are refused
            pass


def drawn(draw: random.Random, protected: float, recovery_ms: float) -> Scenario:
    """Return a random mix of two to six requests, some of them too large; raises ScenarioError if all are refused."""
    fabric = FABRICS[draw.randrange(len(FABRICS))]
    is_protected = draw.random() < protected
    more_ms = recovery_ms if is_protected else 0
    jobs: list[dict[str, object]] = []
    for number in range(draw.randint(2, 6)):
        start = draw.choice([0.0, draw.uniform(0.5, 10)])
        for_ms = draw.uniform(1, 20)
        job: dict[str, object] = {
            "kind": "transfer",
            "name": f"t{number}",
            "ranks": [draw.randrange(4), draw.randrange(4, 8)],
        }
        job |= {"start": f"{start:.3f} ms"} if start else {}
        if draw.random() < 0.4:
            job |= {"rate": f"{draw.uniform(0.1, 4):.3f} Gbit/s", "duration": f"{for_ms:.3f} ms"}
        else:
            job |= {"size": f"{draw.uniform(0.2, 8):.3f} MB", "deadline": f"{start + for_ms + more_ms:.3f} ms"}
        jobs.append(job | ({"latest": f"{start + 100 * for_ms + more_ms:.3f} ms"} if draw.random() < 0.5 else {}))
    tables = ["[[job]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in job.items()) for job in jobs]
    head = f"""
[fabric]
routing = "spray"
{fabric}
[conditions]
wan_rate = "{draw.choice([1, 2, 4])} Gbit/s"
intra_rate = "{draw.choice([2, 4, 8])} Gbit/s"
wan_delay = "{draw.choice(["10 us", "1 ms"])}"
[collective]
count = 1
emulated = 1
[run]
modes = ["base"]
[transport]
rto_min = "10 ms"
[admission]
protect = "{"link" if is_protected else "none"}"
{f'recovery = "{recovery_ms} ms"' if more_ms else ""}
"""
    (found,) = scenario_of("\n".join([head, *tables])).configurations()
    return found


def failing(setting: Scenario, seed: int, most: int | None) -> Iterator[Scenario]:
    """Yield the mix with all links up and, if it is protected, with each of the first `most` WAN links down in turn,
    from the beginning or from an instant on."""
    yield setting
    draw, last_s = random.Random(seed), max(one.edges_s[-1] for one in setting.transfers if one.workload is not None)
    for a, b in build_fabric(setting.fabric).wan.links[:most] if setting.admission.protects else ():
        is_late = setting.admission.recovery_s is not None and draw.random() < 0.5
        after_s = round(draw.uniform(0.0, float(last_s)), 9) if is_late else None
        yield replace(setting, faults=(Fault(collective=0, kind="link down", target=f"{a}-{b}", after_s=after_s),))


def measured(setting: Scenario) -> dict[str, float]:
    """Run the mix; return when each transfer completed, in s after the round's beginning."""
    with Testbed(setting, fair_links=setting.fair_links("base")) as testbed:
        (record,) = (
            one
            for one in Recovery(PointRun(testbed, MODES["base"])).records(range(1))
            if isinstance(one, CollectiveRecord)
        )
    assert record.drops == 0 or any(one.after_s is not None for one in setting.faults)
    spans = setting.workload.jobs
    return {one.name: max(record.arrived_ns[one.transfers.start : one.transfers.stop]) / 1e9 for one in spans}


def promised(setting: Scenario, seed: int, most: int | None) -> list[dict[str, Any]]:
    """Run every case of `failing`; return the transfers' outcomes, the link that is down, due times and completions."""
    found = []
    for one in failing(setting, seed, most):
        there_s, down = measured(one), [fault.words for fault in one.faults]
        found += [
            {
                "job": of.job.name,
                "down": down,
                "outcome": of.outcome,
                "due_s": of.due_s,
                "there_s": there_s.get(of.job.name),
            }
            for of in one.transfers
        ]
    return found


@contextmanager
def reserve(*, times: float, lags: bool = True) -> Iterator[None]:
    """Within the context, admission's calendar takes links to be faster by the factor `times` and, without `lags`, sent
    bytes to arrive at once."""
    capacities = admission._capacities

    def faster(*given: Any) -> Capacities:
        found = capacities(*given)
        return replace(found, bps=times * found.bps)

    none: dict[str, Any] = (
        {} if lags else {"_lags_of": lambda _plan, _fabric, _jobs, of, _: lambda _: np.zeros(sum(map(len, of)))}
    )
    with mock.patch.multiple(admission, **{"_capacities": faster, **none}):
        forget()
        yield
    forget()


def forget() -> None:
    """Clear the caches of answers that were given under another reserve."""
    admission._transfers.cache_clear()
    round_workload.workload_of_jobs.cache_clear()


def forced(setting: Scenario, seed: int, most: int | None) -> dict[str, Any] | None:
    """Force in the first request that must break a promise, and return what happened; None if there is no such one."""
    kept: list[admission.Transfer] = []
    for one in setting.transfers:
        if one.workload is not None:
            kept.append(one)
            continue
        asked = [
            replace(each.job, start_s=each.start_s, deadline_s=each.job.deadline_s and each.due_s, latest_s=None)
            for each in [*kept, one]
        ]
        every = replace(setting, jobs=tuple(asked))
        # A request for a rate, too, counts as kept if all its bytes have arrived when it is due.
        by_then = [
            replace(job, size_bytes=admission._total_bytes(job), deadline_s=each.due_s, rate_bps=None, duration_s=None)
            for job, each in zip(asked, [*kept, one], strict=True)
        ]
        with reserve(times=1 / 0.95, lags=False):
            fits = all(each.workload is not None for each in replace(setting, jobs=tuple(by_then)).transfers)
        times = 1.0
        while not fits and (times := 1.25 * times) < MAX_TIMES:
            with reserve(times=times):
                if all(each.workload is not None for each in every.transfers):
                    for case in failing(every, seed, most):
                        there_s = measured(case)
                        if late := [each.job.name for each in [*kept, one] if there_s[each.job.name] > each.due_s]:
                            break
                    return {"job": one.job.name, "times": times, "late": late}
    return None


def main(seeds: str, protected: str = "0.2", recovery_ms: str = "200", links: str = "") -> None:
    found, most = [], int(links) if links else None
    for seed in map(int, seeds.split(",")):
        setting = mix(seed, protected=float(protected), recovery_ms=float(recovery_ms))
        found.append({"promised": promised(setting, seed, most), "forced": forced(setting, seed, most)})
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
