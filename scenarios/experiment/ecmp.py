"""What ECMP alone would gain over fixed paths, beside what re-routing gains: predicted by the timing model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from analysis.statistics.answer import difference
from analysis.statistics.intervals import Interval, gain, series_of
from controller.routing.wan_path_choice import NoPathError
from hosts.collectives.schedule import ScheduleError
from scenarios.engines.prediction import plan_of
from scenarios.policies.decide import has_choice_of_paths
from scenarios.spec.exclusions import exclusions
from scenarios.spec.scenario import Scenario
from topologies.fabric.fabric import build_fabric

_MOST_COLLECTIVES, _MOST_TRANSFERS = 2000, 1_000_000  # that are predicted, which takes about a second


class EcmpGain(NamedTuple):
    """The gain of ECMP over fixed paths in base, a share, over the first `collectives` of a configuration, `intact` if
    the configuration has faults, which are left out."""

    setting: int
    gain: Interval
    collectives: int
    intact: bool


def ecmp_gains(configs: Iterable[tuple[int, Scenario]]) -> list[EcmpGain]:
    """Return the gain for each of these configurations, with their indices, in which a mode that re-routes is compared
    with base over several WAN paths. Faults are left out."""
    found, first = [], dict[int, Scenario]()
    for index, config in configs:
        first.setdefault(index, config)
    for index, config in first.items():
        if _is_asked(config) and (known := _gain(config)) is not None:
            found.append(EcmpGain(index, *known, bool(config.faults)))
    return found


def lines_of(gains: Sequence[EcmpGain]) -> Iterator[str]:
    """Yield the lines that tell these gains, if there are any."""
    if not gains:
        return
    count = max(one.collectives for one in gains)
    of = [f"timing model, the first {count:,} collectives" if count > 1 else "timing model, the first collective"]
    of += ["without faults"] * any(one.intact for one in gains)
    where = f", {len(gains)} configurations" if len(gains) > 1 else ""
    yield ""
    yield (
        f"ECMP alone, without re-routing, would be {difference([one.gain for one in gains], 'base')}{where} "
        f"({', '.join(of)}; --set fabric.routing=ecmp)"
    )


def _is_asked(config: Scenario) -> bool:
    """Return whether a comparison leaves open what ECMP alone would gain."""
    modes = config.run.modes
    if "base" not in modes or config.fabric.routing != "single" or len(config.fabric.gpus_per_site) == 1:
        return False
    if not any(config.mode(mode).reroutes for mode in modes):
        return False
    return has_choice_of_paths(build_fabric(config.fabric), config.workload)


@lru_cache(maxsize=256)
def _gain(config: Scenario) -> tuple[Interval, int] | None:
    """Return the gain and over how many collectives; None if flows cannot be spread there."""
    transfers = len(config.workload.schedule.transfers)
    count = max(1, min(config.collective.count, _MOST_COLLECTIVES, _MOST_TRANSFERS // transfers))
    spread = replace(config, fabric=replace(config.fabric, routing="ecmp"))
    try:
        if any(exclusions(spread)):
            return None
        times_s = [plan_of(one, "base", count).completion_s() for one in (config, spread)]
    except (NoPathError, ScheduleError):
        return None
    fixed = np.zeros(count, bool)  # nothing is chosen anew
    single, ecmp = (
        series_of(np.arange(count), each, config.conditions, reembedded=fixed, rerouted=fixed) for each in times_s
    )
    found = gain(single, ecmp)
    return None if found is None else (found, count)
