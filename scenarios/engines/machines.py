"""Among how many VMs `run.machines = "auto"` divides each point."""

import os
from collections.abc import Sequence
from dataclasses import replace

from scenarios.spec.exclusions import exclusions
from scenarios.spec.run import AUTO
from scenarios.spec.scenario import Scenario

LEAST_GPUS = 64
"""With fewer GPUs two VMs gained nothing (docs/clocks.md, *One network in several VMs*)."""


def with_machines(configs: Sequence[Scenario], cores: int | None = None) -> tuple[Scenario, ...]:
    """Return the configurations with a number of VMs in the place of "auto".

    A point gets a VM for each core that no other point needs, at most one a site, if it has LEAST_GPUS and nothing that
    needs one VM. `cores` are those of this process by default.
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    points = sum(len(config.run.modes) for config in configs)
    return tuple(_with(config, cores // points) if config.run.machines == AUTO else config for config in configs)


def _with(config: Scenario, cores: int) -> Scenario:
    most = min(cores, len(config.fabric.gpus_per_site))
    several = replace(config, run=replace(config.run, machines=most))
    is_worth = most > 1 and config.gpus >= LEAST_GPUS and next(exclusions(several), None) is None
    return several if is_worth else replace(config, run=replace(config.run, machines=1))
