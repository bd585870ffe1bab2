"""What is wrong with a scenario's values together, each of them being right: fabrics, traces and sizes that cannot be.

Whatever rests on a value that is wrong by itself is passed over: that mistake is told already.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

from hosts.embedding.ring import MAX_EXACT_GPUS
from scenarios.policies.decide import MODES
from scenarios.spec import faults
from scenarios.spec.keys import KEYS, SWEPT
from scenarios.spec.scenario import conditions_spec, fabric_spec
from topologies.conditions import sampler
from topologies.conditions.sampler import SAMPLERS
from topologies.errors import Mistake, SpecError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.shaping.rate_scale import EVERYTHING, ScaleError

MAX_SETTINGS = 1000
"""Most settings that the axes of [sweep] may span together."""


def together(values: Mapping[str, Any], given: Iterable[str]) -> Iterator[Mistake]:
    """What is wrong with `values`, by key those that are right one by one, of which the user gave the keys `given`."""
    yield from _misplaced(values, given)
    axes = {key: values[f"sweep.{key}"] for key in SWEPT if f"sweep.{key}" in values}
    spans = prod(len(axis) for axis in axes.values())
    if spans > MAX_SETTINGS:
        yield Mistake("sweep", f"its axes span {spans:,} settings: allowed are {MAX_SETTINGS:,} at most")
        return
    fabrics: dict[FabricSpec, Fabric] = {}
    mistakes: dict[Mistake, None] = {}
    looked: set[object] = set()
    for combination in product(*axes.values()):
        setting = {**values, **dict(zip(axes, combination, strict=True))}
        mistakes |= dict.fromkeys(_of_setting(setting, fabrics, looked))
    yield from mistakes
    if "fault" in values and "collective.count" in values:
        for fabric in fabrics.values():
            yield from faults.check(values["fault"], fabric, count=values["collective.count"])
    if _complete(values, "run"):
        yield from _beyond_embedding(list(fabrics.values()), values["run.modes"])


def _of_setting(values: Mapping[str, Any], fabrics: dict[FabricSpec, Fabric], looked: set[object]) -> list[Mistake]:
    """What is wrong with one setting, but for what was looked at with another; `fabrics` are those that can be."""
    mistakes: list[Mistake] = []
    fabric = None
    if _complete(values, "fabric"):
        with _collected(mistakes):
            spec = fabric_spec(values, values["fabric.gpus"])
            if spec not in looked:
                looked.add(spec)
                fabrics[spec] = build_fabric(spec)
            fabric = fabrics.get(spec)
    if _complete(values, "conditions"):
        with _collected(mistakes):
            declared = conditions_spec(values)
            look = (declared, None if fabric is None else fabric.spec, values.get("collective.count"))
            if look not in looked:
                looked.add(look)
                sampler.check(declared)
                mistakes += [] if fabric is None else _beyond_trace(fabric, values)
    if _complete(values, "run"):
        mistakes += _beyond_scale(values)
    return mistakes


@contextmanager
def _collected(mistakes: list[Mistake]) -> Iterator[None]:
    """Add the mistakes of a SpecError raised within to `mistakes`."""
    try:
        yield
    except SpecError as error:
        mistakes += error.mistakes


def _complete(values: Mapping[str, Any], table: str) -> bool:
    """Whether every key of the table has a value that can be read, its axes in [sweep] included."""
    return all(key in values for key in KEYS if key.startswith(f"{table}."))


def _misplaced(values: Mapping[str, Any], given: Iterable[str]) -> Iterator[Mistake]:
    """Keys given for a sampler that is not the one chosen: they would be read and do nothing."""
    chosen = values.get("sweep.conditions.sampler", (values.get("conditions.sampler"),))
    for key in given:
        plain = key.removeprefix("sweep.")
        samplers = KEYS[plain].samplers if plain in KEYS else SAMPLERS
        if None not in chosen and not {*chosen} & {*samplers}:
            told = f"does nothing with the sampler {' or '.join(chosen)}"
            yield Mistake(key, f"{told}: allowed only with {', '.join(samplers)}")


def _beyond_trace(fabric: Fabric, values: Mapping[str, Any]) -> list[Mistake]:
    if "run.seed" not in values or "collective.count" not in values:
        return []
    limit = sampler.sampler(fabric, conditions_spec(values), seed=values["run.seed"]).limit
    if limit is None or values["collective.count"] <= limit:
        return []
    return [Mistake("collective.count", f"{values['collective.count']:,} is too large: the trace covers {limit:,}")]


def _beyond_embedding(fabrics: Sequence[Fabric], modes: Sequence[str]) -> Iterator[Mistake]:
    embedding = [mode for mode in modes if MODES[mode].reembeds]
    largest = max((max(fabric.gpus_per_site) for fabric in fabrics), default=0)
    if embedding and largest > MAX_EXACT_GPUS:
        text = f"{largest} GPUs in a site are too many for {' and '.join(embedding)}: the exact ring choice allows"
        yield Mistake("fabric.gpus", f"{text} {MAX_EXACT_GPUS} at most")


def _beyond_scale(values: Mapping[str, Any]) -> Iterator[Mistake]:
    """Virtual time needs no scale, and would not show it; on the wall clock a chunk must keep a byte at least."""
    scale = values["run.rate_scale"]
    if values["run.clock"] == "virtual" and scale != EVERYTHING:
        yield Mistake("run.rate_scale", f"{scale} is for the wall clock: allowed with the virtual clock is 1")
    try:
        scale.chunk_bytes(values.get("collective.chunk", scale.divisor))
    except ScaleError as error:
        yield Mistake("run.rate_scale", str(error))
