"""Checks whether this machine can run the emulation: memory for the VMs, a VM that boots, capacity on the wall clock.

All GPUs of a ring send at once, so a ring demands the sum of its edges' rates. It may be half of the rate that hosts
can send without shaping; the other half of the processor time is needed to keep timers on time.
"""

import io
import itertools
import json
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hosts.agent import libibverbs
from hosts.agent.transport import VERBS
from scenarios import vm
from scenarios.engines.emulation import StderrTail, Watchdog, carried_chunk_bytes, memory_bytes, platform, size_key
from scenarios.engines.prediction import plan_of
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.jobs import JobSpec
from scenarios.spec.program import ProgramSpec
from scenarios.spec.scenario import Scenario, to_json
from scenarios.testbed import launch
from scenarios.testbed.platform import CAPACITY, Platform
from topologies.shaping.rate_scale import RateScale
from topologies.units import format_size

ALLOWED_SHARE = 0.5
_BOOT_PATIENCE_S = 60.0  # a boot takes less than a second, on a busy machine a few seconds


def check_vm(configs: Sequence[Scenario]) -> None:
    """Boot a VM and raise vm.CannotRunError if this machine cannot run a VM for each of these configurations, or lacks
    what they need in it. If there is too little memory, the message names the largest number of GPUs that fits."""
    in_vm = [config for config in configs if platform(config).own_openvswitch]
    if not in_vm:
        return
    if any(config.transport.protocol == VERBS for config in in_vm) and not libibverbs.is_installed():
        raise vm.CannotRunError(
            f'transport.protocol "{VERBS}" needs libibverbs, which is not installed',
            remedy="run `bash scenarios/setup.sh`, which installs the package ibverbs-providers",
        )
    largest = max(in_vm, key=memory_bytes)
    try:
        vm.check(memory_bytes=memory_bytes(largest))
    except vm.NoRoomError as error:
        # Jobs name their ranks, so with fewer GPUs they would be different jobs.
        fewer = None if largest.jobs else most_gpus(largest, error.room_bytes)
        if fewer is None:
            smaller = f"{error.remedy}, or use a smaller {size_key(largest)}"
            raise vm.NoRoomError(
                error.problem, remedy=smaller, room_bytes=error.room_bytes, option=error.option
            ) from None
        chunk = format_size(carried_chunk_bytes(largest))
        raise vm.CannotRunError(
            error.problem,
            remedy=f"{error.remedy}, or use fewer than {largest.gpus} GPUs: with chunks of {chunk} there is room for "
            f"{fewer.gpus}",
        ) from None
    with Watchdog(_BOOT_PATIENCE_S, waits_for="its first boot") as watchdog:
        try:
            vm.run(["true"], memory_bytes=memory_bytes(largest), directory="/", on_start=watchdog.guard)
        except vm.VMError as error:
            if watchdog.stuck is not None:
                raise vm.CannotRunError(watchdog.sentence()) from None
            raise vm.CannotRunError(error.problem, remedy=error.remedy, option=error.option, log=error.log) from None


def most_gpus(config: Scenario, room_bytes: int) -> Scenario | None:
    """Return the configuration with the largest sites reduced to the most GPUs that a VM of `room_bytes` can run.
    Returns None if not even two GPUs per site fit."""
    sites = config.fabric.gpus_per_site

    def cut(most: int) -> Scenario:
        return replace(config, fabric=replace(config.fabric, gpus_per_site=tuple(min(n, most) for n in sites)))

    sizes = range(2, max(sites) + 1)  # more GPUs take more memory
    fits = bisect_left(sizes, True, key=lambda most: memory_bytes(cut(most)) > room_bytes)
    return cut(sizes[fits - 1]) if fits else None


def at_a_time(configs: Sequence[Scenario], jobs: int) -> int:
    """Return how many VMs, at most `jobs`, this machine has memory for at a time."""
    points = [config for config in configs for _ in config.run.modes]
    needs_bytes = (memory_bytes(config) if platform(config).own_openvswitch else 0 for config in points)
    largest = sorted(needs_bytes, reverse=True)[:jobs]
    while len(largest) > 1 and any(largest):
        try:
            vm.check(memory_bytes=sum(largest))
        except vm.CannotRunError:
            largest.pop()
        else:
            break
    return len(largest)


def check_capacity(configs: Sequence[Scenario]) -> None:
    """If configurations use the wall clock, measure this machine's capacity and compare it with their demand. Raises
    vm.CannotRunError if the capacity is too low, vm.VMError if it cannot be measured."""
    real = [config for config in configs if config.run.is_real]
    if not real:
        return
    largest = max(real, key=lambda config: config.gpus)  # its network has the highest load
    carried_bps = measured_bps(largest, platform(largest))
    for config in real:
        for mode in config.run.modes:
            demand = demand_bps(plan_of(config, mode).decisions.beta_s, slot_bytes=config.workload.slot_bytes)
            check(demand, carried_bps, config.run.scale)


def check_program(config: Scenario) -> None:
    """As `check_capacity`, for a program, which always runs in the VM: all ranks may send at once, each to the next."""
    ranks = config.program.ranks_of(config.fabric.gpus_per_site)
    if not config.run.is_real or len(ranks) < 2:
        return
    fixed = replace(config.conditions, every_s=None, interval_s=None)
    job = JobSpec(name="ranks", ranks=ranks)
    ring = replace(config, collective=CollectiveSpec(count=1), jobs=(job,), conditions=fixed, program=ProgramSpec())
    demand = demand_bps(plan_of(ring, "base").decisions.beta_s, slot_bytes=ring.workload.slot_bytes)
    carried_bps = measured_bps(ring, Platform.real(config.run.scale, own_kernel=False))
    check(demand, carried_bps, config.run.scale, sending="the program's ranks, each to the next, send")


def check(
    demand_bps: float, carried_bps: float, scale: RateScale, *, sending: str = "a collective of this scenario sends"
) -> None:
    """Raise vm.CannotRunError if the demand exceeds, at this rate scale, half of the machine's capacity `carried_bps`.
    `demand_bps` is unscaled; `sending` is subject and verb of the message."""
    wanted_bps, allowed_bps = demand_bps / scale.divisor, carried_bps * ALLOWED_SHARE
    if wanted_bps > allowed_bps:
        raise vm.CannotRunError(
            f"at the rate scale {scale} {sending} up to {_gbps(wanted_bps)} at a time, and this machine carries "
            f"{_gbps(carried_bps)}, of which half is allowed: "
            f"take --rate-scale 1/{divisor(demand_bps, allowed_bps)}"
        )


def divisor(demand_bps: float, allowed_bps: float) -> int:
    """Return the first divisor among 1, 2, 5, 10, 20 ... that reduces a demand to the allowed rate."""
    divisors: Iterator[int] = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return next(divisor for divisor in divisors if demand_bps / divisor <= allowed_bps)


def demand_bps(beta_s: npt.NDArray[np.float64], *, slot_bytes: int) -> float:
    """Return the highest total rate of all flows in any of these collectives; `beta_s` is [K, F]."""
    return float((8 * slot_bytes / beta_s).sum(axis=1).max())


def measured_bps(config: Scenario, on: Platform) -> float:
    """Measure the total rate that the hosts of a configuration's fabric can send on a platform, in a separate network.
    Raises vm.VMError if it cannot be measured."""
    where = "in the VM" if on.own_openvswitch else "on its own kernel"
    print(f"measuring what this machine carries {where}", file=sys.stderr, flush=True)
    output, errors = io.BytesIO(), StderrTail()
    status = launch.testbed(
        [to_json(config), CAPACITY, "0"],
        memory_bytes=memory_bytes(config),
        stdout=output,
        stderr=errors,
        platform=on,
    )
    if status != 0:
        reason = errors.last() or "no reason was printed"
        raise vm.VMError(f"what this machine carries could not be measured: {reason}")
    carried_bps = float(json.loads(output.getvalue().splitlines()[-1])["carried_bps"])  # earlier lines are progress
    print(f"this machine carries {_gbps(carried_bps)} between {config.gpus} hosts", file=sys.stderr, flush=True)
    return carried_bps


def _gbps(rate_bps: float) -> str:
    return f"{rate_bps / 1e9:.3g} Gbit/s"
