"""The Scenario: one experiment as frozen values, and the settings that its sweep spans.

Knows how flat values by key make a scenario and how a scenario falls apart into them again; knows no files: reading
one, with every mistake found, is for `loader`.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hosts.agent.transport import Transport
from scenarios.spec.faults import Fault
from topologies.conditions.sampler import ConditionsSpec
from topologies.fabric.fabric import FabricSpec, even_split
from topologies.shaping.rate_scale import EVERYTHING, RateScale


@dataclass(frozen=True, kw_only=True)
class CollectiveSpec:
    """The collective that is repeated: its kind, the bytes each GPU contributes, how often, how often re-embedded.

    `emulated` is how many of them the emulation measures, from the first, where it is less than `count`.
    """

    kind: str
    chunk_bytes: int
    count: int
    reembed_every: int
    emulated: int


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What is compared, and the seed of everything random; the clock and the rate scale of the emulation."""

    modes: tuple[str, ...]
    seed: int
    clock: str = "virtual"
    scale: RateScale = EVERYTHING

    @property
    def is_real(self) -> bool:
        """Whether the emulation runs in real time."""
        return self.clock == "wall"


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep: a key and its values (GPUs per site, bytes, seconds ...), in the order given."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One experiment: every mode in its run, at every setting that its sweep spans.

    Of one of those settings, `at` are the swept keys and their values there.
    """

    name: str
    fabric: FabricSpec
    conditions: ConditionsSpec
    collective: CollectiveSpec
    run: RunSpec
    transport: Transport
    sweep: tuple[Axis, ...] = ()
    faults: tuple[Fault, ...] = ()
    at: tuple[tuple[str, Any], ...] = field(default=(), compare=False)

    @property
    def gpus(self) -> int:
        """GPUs over all sites."""
        return sum(self.fabric.gpus_per_site)

    def settings(self) -> tuple["Scenario", ...]:
        """One scenario without a sweep for each combination of swept values, the last axis varying fastest."""
        plain = {key: value for key, value in values_of(self).items() if not key.startswith("sweep.")}
        keys = [axis.key for axis in self.sweep]
        found = []
        for combination in itertools.product(*(axis.values for axis in self.sweep)):
            at = dict(zip(keys, combination, strict=True))
            found.append(replace(assembled(plain | at), at=tuple(at.items())))
        return tuple(found)


def assembled(values: Mapping[str, Any]) -> Scenario:
    """The scenario of these values by key (``sweep.KEY`` for an axis), every one of them there and right.

    Raises FabricError where a number of GPUs does not divide over the sites.
    """
    axes = {key.removeprefix("sweep."): axis for key, axis in values.items() if key.startswith("sweep.")}
    if "fabric.gpus" in axes:
        axes["fabric.gpus"] = tuple(_gpus_per_site(gpus) for gpus in axes["fabric.gpus"])
    return Scenario(
        name=values["name"],
        fabric=fabric_spec(values, values["fabric.gpus"]),
        conditions=conditions_spec(values),
        collective=CollectiveSpec(
            kind=values["collective.kind"],
            chunk_bytes=values["collective.chunk"],
            count=values["collective.count"],
            reembed_every=values["collective.reembed_every"],
            emulated=values["collective.emulated"],
        ),
        run=RunSpec(
            modes=values["run.modes"],
            seed=values["run.seed"],
            clock=values["run.clock"],
            scale=values["run.rate_scale"],
        ),
        transport=Transport(
            line_rate=values["transport.line_rate"],
            congestion_control=values["transport.congestion_control"],
            slow_start_after_idle=values["transport.slow_start_after_idle"],
        ),
        sweep=tuple(Axis(key, axis) for key, axis in axes.items()),
        faults=values["fault"],
    )


def fabric_spec(values: Mapping[str, Any], gpus: int | tuple[int, ...]) -> FabricSpec:
    """The fabric of these values with that many GPUs; raises FabricError where they do not divide over the sites."""
    return FabricSpec(
        gpus_per_site=_gpus_per_site(gpus),
        leaves=values["fabric.leaves"],
        spines=values["fabric.spines"],
        border_routers=values["fabric.border_routers"],
        wan=values["fabric.wan"],
    )


def _gpus_per_site(gpus: int | tuple[int, ...]) -> tuple[int, ...]:
    return even_split(gpus) if isinstance(gpus, int) else gpus


def conditions_spec(values: Mapping[str, Any]) -> ConditionsSpec:
    """The conditions of these values."""
    return ConditionsSpec(
        sampler=values["conditions.sampler"],
        intra_rate_bps=values["conditions.intra_rate"],
        wan_rate_bps=values["conditions.wan_rate"],
        intra_delay_s=values["conditions.intra_delay"],
        wan_delay_s=values["conditions.wan_delay"],
        mean=values["conditions.mean"],
        deviation=values["conditions.deviation"],
        mean_stay=values["conditions.mean_stay"],
        trace=values["conditions.trace"] if values["conditions.sampler"] == "trace" else None,
        trace_step_s=values["conditions.trace_step"],
    )


def values_of(scenario: Scenario) -> dict[str, Any]:
    """The values by key of which `assembled` makes this scenario."""
    fabric, conditions, collective = scenario.fabric, scenario.conditions, scenario.collective
    return {
        "name": scenario.name,
        "fabric.gpus": fabric.gpus_per_site,
        "fabric.leaves": fabric.leaves,
        "fabric.spines": fabric.spines,
        "fabric.border_routers": fabric.border_routers,
        "fabric.wan": fabric.wan,
        "conditions.sampler": conditions.sampler,
        "conditions.intra_rate": conditions.intra_rate_bps,
        "conditions.wan_rate": conditions.wan_rate_bps,
        "conditions.intra_delay": conditions.intra_delay_s,
        "conditions.wan_delay": conditions.wan_delay_s,
        "conditions.mean": conditions.mean,
        "conditions.deviation": conditions.deviation,
        "conditions.mean_stay": conditions.mean_stay,
        "conditions.trace": conditions.trace,
        "conditions.trace_step": conditions.trace_step_s,
        "collective.kind": collective.kind,
        "collective.chunk": collective.chunk_bytes,
        "collective.count": collective.count,
        "collective.reembed_every": collective.reembed_every,
        "collective.emulated": collective.emulated,
        "run.modes": scenario.run.modes,
        "run.seed": scenario.run.seed,
        "run.clock": scenario.run.clock,
        "run.rate_scale": scenario.run.scale,
        "transport.line_rate": scenario.transport.line_rate,
        "transport.congestion_control": scenario.transport.congestion_control,
        "transport.slow_start_after_idle": scenario.transport.slow_start_after_idle,
        "fault": scenario.faults,
    } | {f"sweep.{axis.key}": axis.values for axis in scenario.sweep}
