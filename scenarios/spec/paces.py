"""Collectives that begin more often than they can end: repetitions of jobs, and collectives by the clock."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from analysis.statistics.jobs_in_words import COLLECTIVE_NAMES
from analysis.statistics.number_words import ROUNDING, milliseconds
from controller.routing.wan_path_choice import NoPathError
from hosts.collectives.schedule import ScheduleError
from scenarios.spec.jobs import TRANSFER
from scenarios.spec.pieces import MOST_TRANSFERS, seconds_at_mean_rates
from scenarios.spec.scenario import Scenario
from topologies.errors import SpecError
from topologies.units import format_delay


def notes_on(configs: Sequence[Scenario]) -> list[str]:
    """Return a sentence for each job of configurations whose repetitions are due sooner than one of them ends, and for
    collectives by the clock of which the next begins before the one before has ended, as the timing model predicts."""
    jobs, seconds = dict[tuple[str, str, float], list[float]](), _Seconds()
    for config in configs:
        for job in config.jobs:
            if job.every_s is not None and job.count > 1 and not job.is_drawn and job.kind != TRANSFER:
                alone = replace(job, start_s=0.0, count=1, every_s=None, traffic_class=None)
                took_s = seconds.of(replace(config, jobs=(alone,)))
                if took_s > job.every_s * (1 + ROUNDING):
                    kind = COLLECTIVE_NAMES.get(job.kind or config.collective.kind, "repetition")
                    jobs.setdefault((job.name, kind, job.every_s), []).append(took_s)
    told = [
        f"job {name}: one {kind} is due every {format_delay(every_s)}, but takes {_about(times_s)}, so each waits for "
        "those before it, and the job's time has these waits"
        for (name, kind, every_s), times_s in jobs.items()
    ]
    return told + overlaps(configs, seconds)


def overlaps(configs: Sequence[Scenario], seconds: "_Seconds | None" = None) -> list[str]:
    """Return the sentences of `notes_on` on collectives by the clock. `seconds` remembers predicted times."""
    collectives, seconds = dict[float, list[float]](), seconds or _Seconds()
    for config in configs:
        if config.conditions.every_s is not None and not config.program.is_given:
            interval_s, took_s = config.conditions.begins_every_s, seconds.of(config)
            if took_s > interval_s * (1 + ROUNDING):
                collectives.setdefault(interval_s, []).append(took_s)
    return [
        f"every {format_delay(interval_s)} a collective begins that takes {_about(times_s)}: the next one is due "
        "before it ends, but each has the network to itself; conditions.interval, or a trace's trace_step, changes that"
        for interval_s, times_s in collectives.items()
    ]


class _Seconds:
    """The predicted times of configurations, of which those that differ in nothing that matters here share one."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float] = {}

    def of(self, config: Scenario) -> float:
        """Return the time of a collective or a round in s; 0 if it is not possible, or too large to be tried."""
        collective = replace(config.collective, count=1, reembed_every=1, emulated=1, measured=None, budget_s=None)
        alike = config.jobs, collective, config.training, config.fabric, config.conditions
        if alike not in self._known:
            self._known[alike] = _predicted(config)
        return self._known[alike]


def _predicted(config: Scenario) -> float:
    try:
        workload = config.workload
        if len(workload.schedule.transfers) > MOST_TRANSFERS:
            return 0.0
        return seconds_at_mean_rates(workload, config.collective.ring, config.fabric, config.conditions)
    except (SpecError, ScheduleError, NoPathError):  # which the checks of a scenario report
        return 0.0


def _about(times_s: Sequence[float]) -> str:
    least, most = milliseconds(min(times_s)), milliseconds(max(times_s))
    return f"about {least if least == most else f'{least} to {most}'} ms (model of fixed paths at the mean rates)"
