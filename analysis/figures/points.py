"""The points of a stored run, as figures and the report need them: what was measured, what was varied, in what words.

A point is one engine, configuration and mode. Knows the columns of a run's tables and the values of its configurations;
drawing is left to others.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.figures.style import MODE_STYLES, name_modes
from analysis.results.reader import Run
from analysis.statistics.answer import COLLECTIVE_NAMES
from analysis.statistics.intervals import Numbers, Series, block_length
from topologies.conditions import links
from topologies.conditions.sampler import ConditionsSpec
from topologies.fabric.fabric import GRAINS, Fabric, FabricSpec, build_fabric
from topologies.fabric.maps import read_wan
from topologies.units import format_delay, format_rate_range, format_size

Floats = npt.NDArray[np.float64]

ENGINES = ("model", "emulation")

_LABELS = {
    "fabric.gpus": "GPUs",
    "collective.kind": "collective",
    "collective.algorithm": "algorithm",
    "collective.channels": "channels",
    "collective.pieces": "pieces of a block",
    "collective.schedule": "schedule",
    "collective.chunk": "chunk size",
    "collective.size": "size",
    "conditions.wan_delay": "WAN link delay",
    "conditions.intra_delay": "link delay within a site",
    "conditions.intra_rate": "bandwidth within a site",
    "conditions.wan_rate": "WAN bandwidth",
    "conditions.mean": "mean bandwidth (share of the highest)",
    "conditions.deviation": "standard deviation (share of the highest bandwidth)",
    "conditions.mean_stay": "mean stay in a state (collectives)",
    "conditions.coefficient": "coefficient of the autoregressive process",
    "conditions.sampler": "conditions",
    "conditions.every": "time until conditions change",
    "conditions.interval": "time from one collective to the next",
    "conditions.links": "links of their own",
    "conditions.trace_step": "trace time per collective",
    "collective.reembed_every": "collectives per embedding",
    "collective.ring": "a ring has the least",
    "collective.count": "number of collectives",
    "collective.emulated": "number of collectives emulated",
    "fabric.leaves": "leaves per site",
    "fabric.spines": "spines per site",
    "fabric.border_routers": "border routers per site",
    "fabric.wan": "WAN topology",
    "fabric.buffer": "buffer of a link",
    "fabric.wan_loss": "loss on a WAN link",
    "run.seed": "seed",
    "job": "jobs",
    "class": "classes",
    "run.rate_scale": "rate scale",
    "transport.line_rate": "start",
    "transport.congestion_control": "congestion control",
    "transport.queue": "queues",
    "transport.ecn_threshold": "ECN threshold",
    "training.pipeline": "pipeline",
    "training.micro_batches": "micro-batches",
    "training.replicas": "replicas",
    "training.memory": "memory for activations",
    "training.activations": "activations of a micro-batch",
}
_COLUMNS = {
    "fabric.gpus": "gpus",
    "collective.chunk": "chunk_bytes",
    "collective.size": "size_bytes",
    "conditions.wan_delay": "wan_delay_s",
}
_WORDS: Mapping[str, Mapping[str, str]] = {
    "collective.kind": COLLECTIVE_NAMES,
    "transport.line_rate": {"True": "at line rate", "False": "in slow start"},
}
_SIZES = (
    *("collective.chunk", "collective.size"),
    *(f"training.{name}" for name in ("activations", "held", "memory", "gradient_size")),
)
_TIMES = (
    *("_delay", "trace_step", "conditions.every", "conditions.interval", "collective.budget"),
    *("training.forward", "training.backward"),
)
"""How the keys end whose values are times."""
_COLLECTIVE = ("collective.kind", "collective.algorithm")
_CONDITIONS = {  # the unit that the value of each key has, where it is not a plain number or text
    **dict.fromkeys(("intra_rate", "wan_rate"), "_bps"),
    **dict.fromkeys(("intra_delay", "wan_delay", "trace_step"), "_s"),
    **dict.fromkeys(("sampler", "mean", "deviation", "mean_stay", "trace"), ""),
}
_LATER = {"coefficient": "", "links": "", "every": "_s", "interval": "_s"}
"""Of the conditions what runs of earlier versions lack."""
_NEEDED = (
    *(f"fabric.{name}" for name in ("gpus", "leaves", "spines", "border_routers", "wan")),
    *(f"conditions.{name}" for name in _CONDITIONS),
    *("collective.chunk", "collective.reembed_every", "run.seed"),
)
_OF_CLASSES = {"of_flow", "assured", "ceilings"}
_FACETS = 8  # values of a second swept key that stand side by side in one figure


class FigureError(ValueError):
    """A run of which this cannot be drawn; one sentence that says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration:
    """A configuration of a run (a scenario without a sweep): its index, its label, the value of every key.

    `swept` has the values of the keys that the run sweeps; `shared_links` are, for each mode, the names of the links
    that flows can share. `schedule` is its schedule as settings.json has it, None in runs of versions that had the ring
    AllGather alone; `classes` are the classes of its flows in the order in which WAN links serve them, if any, and
    `admission` is what became of its transfers (`scenarios.spec.admission`). `jobs` are its jobs: the name of each,
    when it starts, and of training the range of its transfers, its places and what each of these computes.
    """

    index: int
    label: str
    swept: Mapping[str, Any]
    values: Mapping[str, Any]
    shared_links: Mapping[str, Sequence[str]]
    schedule: Mapping[str, Any] | None = None
    classes: Mapping[str, Any] | None = None
    admission: Sequence[Mapping[str, Any]] = ()
    jobs: Sequence[Mapping[str, Any]] = ()

    def value(self, key: str) -> Any:
        """The value of a scenario's key."""
        return self.values[key] if key in self.values else self.swept[key]

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return int(self.values["run.seed"])

    @property
    def kind(self) -> str:
        """The kind of collective as the scenario has it: "allgather"; "jobs" where there are several."""
        if self.values.get("job"):
            return "jobs"
        return str(self.values.get("collective.kind", "allgather"))

    @property
    def has_blocks(self) -> bool:
        """Whether anything has blocks of collective.chunk: no training, nor jobs that all have sizes of their own."""
        jobs = self.values.get("job")
        own = ("chunk", "size", "rate", "schedule")
        return not all(any(key in job for key in own) for job in jobs) if jobs else self.kind != "training"

    @property
    def algorithm(self) -> str:
        """The algorithm that was run: "ring", or the name of the file with the schedule."""
        file = None if self.kind == "jobs" else self.values.get("collective.schedule")
        return (
            ("ring" if self.schedule is None else str(self.schedule["algorithm"]))
            if file is None
            else Path(str(file)).name
        )

    @property
    def collective(self) -> str:
        """The collective as it is written: "AllGather"."""
        return COLLECTIVE_NAMES.get(self.kind, "collective")

    @property
    def is_ring_allgather(self) -> bool:
        """Whether it is an AllGather of whole chunks around one ring, the paper's collective."""
        plain = all(self.values.get(f"collective.{key}", 1) == 1 for key in ("channels", "pieces"))
        return (self.kind, self.algorithm) == ("allgather", "ring") and plain

    @cached_property
    def fabric(self) -> Fabric:
        """The fabric; raises FabricError where it cannot be built, other errors where values are of other types."""
        wan, gpus = read_wan(self.values["fabric.wan"]), tuple(self.values["fabric.gpus"])
        own: dict[str, Any] = {
            "sites": tuple(self.values.get("fabric.sites", ())),
            "paths": self.values.get("fabric.paths"),
        }
        counts = {name: _tuples(self.values[f"fabric.{name}"]) for name in ("leaves", "spines", "border_routers")}
        grain = str(self.values.get("fabric.grain", GRAINS[0]))
        return build_fabric(FabricSpec(gpus_per_site=gpus, wan=wan, grain=grain, **counts, **own))

    @property
    def conditions(self) -> ConditionsSpec:
        """What the conditions are drawn from."""
        given = {name: _tuples(self.values[f"conditions.{name}"]) for name in _CONDITIONS}
        later = {name: unit for name, unit in _LATER.items() if f"conditions.{name}" in self.values}
        given |= {name: self.values[f"conditions.{name}"] for name in later}
        units = {name + unit: given.pop(name) for name, unit in (_CONDITIONS | later).items() if unit}
        trace, own = given.pop("trace"), links.read(given.pop("links", {}))
        return ConditionsSpec(**given, **units, trace=None if trace is None else Path(trace), links=own)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def configurations_of(run: Run) -> list[Configuration]:
    """The configurations of a run; raises FigureError where values that figures need are missing."""
    found = []
    for index, stored in enumerate(run.settings):
        values, shared = stored["values"], stored.get("shared_links", stored.get("shared_wan_links", {}))
        if not isinstance(values, dict) or not isinstance(stored["swept"], dict):
            lacking = ["values"]
        else:
            lacking = [key for key in _NEEDED if key not in values]
        if not isinstance(shared, dict) or not all(_are_names(names) for names in shared.values()):
            lacking.append("shared_links")
        schedule = stored.get("schedule")
        if schedule is not None and (not isinstance(schedule, dict) or not isinstance(schedule.get("algorithm"), str)):
            lacking.append("schedule")
        classes = stored.get("classes")
        if classes is not None and not (isinstance(classes, dict) and classes.keys() == _OF_CLASSES):
            lacking.append("classes")
        if lacking or stored["setting"] != index:
            what = f"lacks {', '.join(lacking)}" if lacking else "is not in its place"
            raise FigureError(f"{run.path} is damaged: setting {index} of its settings.json {what}")
        label = re.sub(r"(?<=\d )us\b", "µs", str(stored["label"]))
        about = {"swept": stored["swept"], "values": values, "shared_links": shared, "schedule": schedule}
        about |= {"classes": classes, "admission": stored.get("admission", ()), "jobs": stored.get("jobs") or ()}
        found.append(Configuration(index=index, label=label, **about))
    return found


def _are_names(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(name, str) for name in found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """The rows of one engine, configuration and mode, in the order of their collectives."""

    engine: str
    configuration: Configuration
    mode: str
    rows: pd.DataFrame

    @cached_property
    def completion_s(self) -> Floats:
        """What each collective took, [K] seconds."""
        return np.asarray(self.rows["completion_s"], dtype=np.float64)

    @cached_property
    def number(self) -> Numbers:
        """Which collectives these are, [K], from 0."""
        return np.asarray(self.rows["collective"], dtype=np.int64)

    @cached_property
    def predicted_s(self) -> Floats:
        """What the model says each takes, [K] seconds."""
        return np.asarray(self.rows["predicted_s"], dtype=np.float64)

    @cached_property
    def series(self) -> Series:
        """The completion times, for intervals."""
        return self._series(self.number, self.completion_s)

    def among(self, number: Numbers) -> Series:
        """The completion times of those of these collectives that it has, for intervals."""
        if np.array_equal(self.number, number):
            return self.series
        chosen = np.isin(self.number, number)
        return self._series(self.number[chosen], self.completion_s[chosen])

    @property
    def _kept(self) -> int:
        """How many collectives in a row keep what was chosen before the first of them."""
        every = int(self.configuration.values["collective.reembed_every"])
        for policy in self.configuration.values.get("policy") or ():
            if policy["name"] == self.mode:
                moments = [str(policy.get(key, "")).split() for key in ("reroute", "reembed")]
                numbers = [one[1:2] if len(one) < 3 else ["1"] for one in moments if one[:1] == ["every"]]  # or a time
                return math.lcm(*(int(one[0]) if one else every for one in numbers))
        return every if self.rows["reembedded"].any() else 1

    def _series(self, number: Numbers, times_s: Floats) -> Series:
        values = self.configuration.values
        block = block_length(
            times_s,
            ring_shared_by=self._kept,
            sampler=values["conditions.sampler"],
            memory=self.configuration.conditions.memory(times_s),
        )
        return Series(number, times_s, block)


Points = Mapping[tuple[str, int, str], Point]
"""Points by engine, index of the configuration and mode."""


def points_of(run: Run, configurations: Sequence[Configuration]) -> dict[tuple[str, int, str], Point]:
    """The points of a run by engine, configuration and mode: the model's first, the others in their order.

    Raises FigureError where the run holds no collective, or one of a mode or an engine that does not exist.
    """
    if run.collectives.empty:
        raise FigureError(f"{run.path} holds no collective yet: there is nothing to draw")
    found: dict[tuple[str, int, str], Point] = {}
    declared = [name for one in configurations for name in one.values.get("run.modes", ())]
    name_modes(declared)
    grouped = run.collectives.groupby(["engine", "setting", "mode"], sort=False, observed=True)
    for (engine, index, mode), rows in grouped:
        if mode not in MODE_STYLES or engine not in ENGINES or not 0 <= index < len(configurations):
            raise FigureError(f"{run.path} holds a point ({engine}, setting {index}, {mode}) that its settings lack")
        sorted_already = rows["collective"].is_monotonic_increasing
        ordered = rows if sorted_already else rows.sort_values("collective", kind="stable")
        found[engine, index, mode] = Point(engine=engine, configuration=configurations[index], mode=mode, rows=ordered)
    order = list(MODE_STYLES)
    return {key: found[key] for key in sorted(found, key=lambda k: (ENGINES.index(k[0]), k[1], order.index(k[2])))}


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The configurations of one figure: alike but for the value of `across` (its x axis) and of `facet` (its panels).

    `name` distinguishes it from other groups in a file's name, "" where there is one group.
    """

    name: str
    across: str
    facet: str | None
    configurations: tuple[Configuration, ...]

    @property
    def x_label(self) -> str:
        """What was varied, in words."""
        return self.key_words(self.across)

    def key_words(self, key: str) -> str:
        """A scenario's key in words; what an AllGather's chunk is to others is a block."""
        is_block = key == "collective.chunk" and any(one.kind != "allgather" for one in self.configurations)
        return "block size" if is_block else _LABELS.get(key, key)

    def cells(self, one: Configuration) -> dict[str, Any]:
        """What was varied, by column (with its unit): numbers, or words where numbers would be the same."""
        keys = [self.across] if self.facet is None else [self.facet, self.across]
        return {_COLUMNS.get(key, key): self._plain(key, one.value(key)) for key in keys}

    def _plain(self, key: str, value: Any) -> Any:
        values = {repr(one.value(key)): one.value(key) for one in self.configurations}.values()
        numbers = [plain(key, item) for item in values]
        return plain(key, value) if len(set(map(str, numbers))) == len(numbers) else words(key, value)

    @cached_property
    def facets(self) -> dict[str, tuple[Configuration, ...]]:
        """The configurations of each panel by its title, each in the order of the sweep."""
        found: dict[str, list[Configuration]] = {}
        for one in self.configurations:
            key = self.facet
            title = "" if key is None else f"{self.key_words(key)} {words(key, one.value(key))}"
            found.setdefault(title, []).append(one)
        return {title: tuple(there) for title, there in found.items()}

    @cached_property
    def ticks(self) -> dict[str, float | None]:
        """The values of what was varied in words, each with its number where all of them have one of their own."""
        values = {words(self.across, one.value(self.across)): one.value(self.across) for one in self.configurations}
        numbers = [_number(self.across, value) for value in values.values()]
        alone = None in numbers or len(set(numbers)) < len(numbers) or len(numbers) < 2
        return dict.fromkeys(values) if alone else dict(zip(values, numbers, strict=True))

    def place(self, one: Configuration) -> int:
        """Which of the ticks a configuration stands at."""
        return list(self.ticks).index(words(self.across, one.value(self.across)))

    @property
    def title(self) -> str:
        """What was not varied, in words."""
        first = self.configurations[0]
        size = "collective.chunk" if first.values.get("collective.size") is None else "collective.size"
        wan = first.value("fabric.wan")
        is_long = isinstance(wan, Mapping) and bool(wan.get("km"))
        keys = ["fabric.gpus", *_COLLECTIVE, size, "fabric.wan" if is_long else "conditions.wan_delay"]
        keys += [key for key in first.swept if key not in keys]
        return ", ".join(text for key in keys if key not in (self.across, self.facet) and (text := self._titled(key)))

    def _titled(self, key: str) -> str:
        """What a key is in all configurations; empty where that goes without saying."""
        first = self.configurations[0]
        if key in _COLLECTIVE:
            if all(one.is_ring_allgather for one in self.configurations):
                return ""
            alike = {one.collective if key == "collective.kind" else one.algorithm for one in self.configurations}
            return alike.pop() if len(alike) == 1 else ""
        text = words(key, first.value(key))
        is_training = all(one.kind == "training" for one in self.configurations)
        if is_training and key in ("collective.chunk", "training.pipeline"):  # which is its algorithm
            return ""
        if key == "collective.chunk":
            if not any(one.has_blocks for one in self.configurations):
                return ""
            return f"{'chunks' if self.key_words(key) == 'chunk size' else 'blocks'} of {text}"
        known = {"fabric.gpus": f"{text} GPUs", "conditions.wan_delay": f"WAN links of {text}"}
        return known.get(key, f"{self.key_words(key)} {text}")


def groups_of(configurations: Sequence[Configuration]) -> list[Group]:
    """The configurations in groups, one for each figure.

    Across goes the longest axis of the sweep, numbers before words and seeds last; the next stands in panels beside
    each other where it has few values, and every other one makes a figure for each of its values.
    """
    first = configurations[0]
    axes = {key: len({repr(one.value(key)) for one in configurations}) for key in first.swept}
    ranked = sorted(axes, key=lambda key: (key == "run.seed", _number(key, first.value(key)) is None, -axes[key]))
    is_chunk = first.values.get("collective.size") is None
    across, *others = ranked or ["collective.chunk" if is_chunk else "collective.size"]
    return grouped(configurations, across, others[0] if others and axes[others[0]] <= _FACETS else None)


def grouped(configurations: Sequence[Configuration], across: str, facet: str | None) -> list[Group]:
    """The configurations in groups that are alike but for these two keys."""
    apart = [key for key in configurations[0].swept if key not in (across, facet)]
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        groups.setdefault(tuple(_file_words(key, one.value(key)) for key in apart), []).append(one)
    return [
        Group(name="-".join(which), across=across, facet=facet, configurations=tuple(found))
        for which, found in groups.items()
    ]


def collective_words(configurations: Iterable[Configuration]) -> str:
    """The collective of all of these as it is written: "AllGather"; "collective" where they differ."""
    names = {one.collective for one in configurations}
    return names.pop() if len(names) == 1 else "collective"


def _number(key: str, value: Any) -> float | None:
    """A value as a place on an axis, None where it is none: a seed is a number, but no quantity."""
    found = plain(key, value)
    is_quantity = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if is_quantity and key != "run.seed" else None


def plain(key: str, value: Any) -> Any:
    """A value as a table holds it: one number where it is one, words otherwise."""
    if key == "fabric.gpus" and isinstance(value, list):
        return sum(value)
    return value if isinstance(value, int | float | str) else words(key, value)


def words(key: str, value: Any) -> str:
    """A value in words: "8", "3+5", "64 MB", "10 µs", and "none" for no tables."""
    if key == "fabric.gpus" and value == value[:1] * 2:
        return str(sum(value))
    if key in _SIZES and value is not None:
        return format_size(value)
    if value is not None and key.endswith(_TIMES):
        return format_delay(value).replace("us", "µs")
    if key.endswith("_rate") and isinstance(value, list):
        return format_rate_range((value[0], value[1]))
    if key == "conditions.links":
        value = [" ".join([name, *own.values()]).replace("us", "µs") for name, own in value.items()]
    if isinstance(value, list | Mapping):
        joint = ", " if key == "conditions.links" or any(isinstance(item, Mapping) for item in value) else "+"
        return (
            str(value.get("name", "own"))
            if isinstance(value, Mapping)
            else joint.join(map(_item_words, value)) or ("no fault" if key == "fault" else "none")
        )
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return _WORDS.get(key, {}).get(text, text)


def named(key: str, value: Any) -> str:
    """A key with its value in words: "WAN bandwidth 40 Gbit/s"."""
    return f"{_LABELS.get(key, key)} {words(key, value)}"


def _item_words(item: Any) -> str:
    """An item of a list in words: a fault, of a table of jobs or classes its name, and the class of a job."""
    if not isinstance(item, Mapping):
        return str(item)
    if "what" in item:  # a fault
        return str(item["what"])
    return str(item.get("name", "own")) + (f" ({item['class']})" if "class" in item else "")


def _file_words(key: str, value: Any) -> str:
    """A key and its value as part of a file's name: "wan_delay-100us"."""
    text = re.sub(r"[^A-Za-z0-9.+_]", "", words(key, value).replace("µ", "u")).lstrip(".") or "other"
    return f"{key.rpartition('.')[2]}-{text}"
