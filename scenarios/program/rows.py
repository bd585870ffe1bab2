"""A program's configuration as policies see it: a row of conditions takes the place of each collective."""

from dataclasses import replace

from scenarios.policies.policy import NEVER, Mode, When
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.faults import in_time
from scenarios.spec.scenario import Scenario

_MAX_ROWS = 4096  # whose rates are looked at before the run


def rows_as_collectives(config: Scenario) -> Scenario:
    """Return a configuration in which every row of conditions stands for a collective, if conditions change over time.

    A program has no collectives, so policies count rows of conditions instead: `every TIME` becomes a number of rows.
    Messages have the program's size, unless jobs run beside it, and its ranks are never re-embedded. All faults have
    times, also the outages of a trace.
    """
    policies = tuple(replace(policy, reembed=NEVER) for policy in config.policies)
    every, every_s = config.collective.reembed_every, config.conditions.every_s
    collective = CollectiveSpec(chunk_bytes=config.program.message_bytes, reembed_every=every)
    if config.jobs:
        rows = 1 if every_s is None else min(_MAX_ROWS, 1 + int(config.program.deadline_s / every_s))
        collective = replace(config.collective, count=rows)
    config = replace(config, policies=policies, collective=collective, faults=in_time(config.faults))
    if every_s is None:
        return config
    policies = tuple(_by_rows(policy, every_s) for policy in policies)
    conditions = replace(config.conditions, interval_s=every_s, trace_step_s=every_s)
    return replace(config, policies=policies, conditions=conditions)


def _by_rows(policy: Mode, every_s: float) -> Mode:
    """Return the policy with `every TIME` replaced by a number of rows that are `every_s` apart."""
    within_s = policy.reroute.within_s
    return policy if within_s is None else replace(policy, reroute=When("every", round(within_s / every_s)))
