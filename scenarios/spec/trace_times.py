"""When collectives begin in a recorded trace, in words."""

from analysis.statistics.gain_times import time_in_trace
from scenarios.spec.scenario import Scenario


def trace_time(config: Scenario, collective: int) -> str:
    """Return when a collective begins in the trace of a configuration: ", at 3,600 s (1:00:00) of the trace,"; "" if it
    has none whose rows are read by collective."""
    trace = config.trace
    if trace is None or config.conditions.every_s is not None:
        return ""
    return f", at {time_in_trace(collective % trace.length * trace.step_ns / 1e9, trace.begins_ns)} of the trace,"
