"""The points of a stored run, as figures and the report need them: their rows, the swept keys and how both are worded.

A point is a combination of engine, configuration and mode. This module knows the columns of a run's tables and the keys
of its configurations; other modules do the drawing.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.figures.style import MODE_STYLES, ModeStyle, name_modes, place_of, value_styles
from analysis.figures.swept_axis import SweptAxis, swept_axis
from analysis.results.reader import Run
from analysis.statistics.contests import JOBS, SEEDS, Setting, Value, is_choice
from analysis.statistics.intervals import Numbers, Series, series_of, with_blocks_of_equal
from analysis.statistics.jobs_in_words import (
    BACKGROUND,
    COLLECTIVE_NAMES,
    JOINED,
    REQUESTS,
    all_words_of,
    amount_of,
    measured_as,
    told_apart,
    words_of,
)
from analysis.statistics.number_words import collective_name
from analysis.statistics.rates import Range, exact_from, ranges_of, untold
from topologies.conditions import background_load, link_overrides
from topologies.conditions.sampler import ConditionsSpec, delays_s
from topologies.fabric.fabric import GRAINS, Fabric, FabricSpec, build_fabric
from topologies.fabric.maps import read_wan
from topologies.fabric.ports import links_in_grain
from topologies.text_files import short_path
from topologies.units import format_delay, format_rate_range, format_size, parse_delay_s

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
    "conditions.links": "individual links",
    "conditions.trace_step": "trace time per collective",
    "collective.reembed_every": "collectives per embedding",
    "collective.ring": "ring minimises",
    "collective.count": "number of collectives",
    "collective.emulated": "number of collectives emulated",
    "fabric.leaves": "leaves per site",
    "fabric.spines": "spines per site",
    "fabric.border_routers": "border routers per site",
    "fabric.wan": "WAN topology",
    "fabric.paths": "candidate paths",
    "fabric.hash_seed": "seed of the hash",
    "fabric.buffer": "buffer of a link",
    "fabric.wan_loss": "loss on a WAN link",
    "run.seed": "seed",
    "job": "jobs",
    "class": "classes",
    "run.rate_scale": "rate scale",
    "transport.line_rate": "TCP start",
    "transport.congestion_control": "congestion control",
    "transport.queue": "queues",
    "transport.ecn_threshold": "ECN threshold",
    "transport.slow_start_after_idle": "slow start after idle",
    "transport.rto_min": "least retransmission timeout",
    "transport.rdma": "verbs devices",
    "transport.protocol": "protocol of collectives",
    "control.counted": "reconfiguration counted",
    "control.delay": "delay of the controller",
    "control.knowledge": "knowledge of the rates",
    "control.probe": "size of a probe",
    "te.every": "tunnel rates kept",
    "te.pieces": "pieces of a WAN message",
    "te.demand": "demand of a class",
    "te.sample": "sample of a demand",
    "admission.protect": "promises protected from",
    "admission.recovery": "time reserved for a failure",
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
    "transport.line_rate": {"true": "at line rate", "false": "in slow start"},
    "collective.pieces": {"default": "chosen"},
}
_SIZES = (
    *("collective.chunk", "collective.size"),
    *("fabric.buffer", "transport.ecn_threshold", "control.probe"),
    *(f"training.{name}" for name in ("activations", "held", "memory", "gradient_size")),
)
_TIMES = (
    *("_delay", "trace_step", "conditions.every", "conditions.interval", "collective.budget"),
    *("training.forward", "training.backward", "training.weights"),
    *("control.delay", "transport.rto_min", "te.sample", "admission.recovery"),
)
"""Endings of the keys whose values are times."""
_COLLECTIVE = ("collective.kind", "collective.algorithm")
_CONDITIONS = {  # the keys of the conditions, with the unit suffix of the field of ConditionsSpec
    **dict.fromkeys(("intra_rate", "wan_rate"), "_bps"),
    **dict.fromkeys(("intra_delay", "wan_delay", "trace_step"), "_s"),
    **dict.fromkeys(("sampler", "mean", "deviation", "mean_stay", "trace"), ""),
}
_LATER = {"coefficient": "", "trace_repeat": "", "links": "", "every": "_s", "interval": "_s", "load": "", "moves": ""}
"""Further keys of the conditions, which runs of earlier versions lack."""
_NEEDED = (
    *(f"fabric.{name}" for name in ("gpus", "leaves", "spines", "border_routers", "wan")),
    *(f"conditions.{name}" for name in _CONDITIONS),
    *("collective.chunk", "collective.reembed_every", "run.seed"),
)
_CLASS_KEYS = {"of_flow", "assured", "ceilings"}
_FILES = ("conditions.trace", "collective.schedule")
_MAX_FACETS = 8  # values of a second swept key up to which it has panels in one figure
MAX_LINES = 7
"""Lines, or groups of bars, up to which they can be told apart in one panel; of more, each gets a row (`ranking`)."""
_TABLES = ("class", "fault")
_COMPUTING = ("training", "messages", "chakra", "requests")  # kinds of jobs whose schedules may have computations
_FEW = 2  # jobs of a name that are named one by one
_WAN_DELAY = re.compile(r"WAN (links of )?[\d.]+ (µs|ms|s)\b")
_RATE = re.compile(r"(?P<where>wan|intra) rate (?P<rate>[\d.,-]+ [A-Za-z]*bit/s)")
_KNOWLEDGE, _AGED = "control.knowledge", re.compile(r"stale (?P<count>\d+)|stale (?P<time>.* ?s)")
_KEPT = "te.every"  # a number of collectives, or a time in seconds


class FigureError(ValueError):
    """A run cannot be drawn; the message is one sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration:
    """A configuration of a run, one point of the sweep: its index, its label, and the values of all keys.

    `swept` holds the values of the swept keys; `shared_links`, for each mode, the names of the links that flows can
    share. `schedule` is the schedule as stored in settings.json, None in runs of early versions, which only had the
    ring AllGather. `classes` are the classes of flows in the order in which WAN links serve them, if any. `admission`
    has the outcomes of its transfers (`scenarios.spec.admission`). `further` has the keys in words that are neither
    swept nor at their defaults, beyond sizes, GPUs and the WAN. `told` has the values of swept keys in words by which
    the run's configurations are told apart, and `hashed` are the modes whose flows ECMP's hash spreads. `jobs` has the
    name and the start of each job, and for a training job the range of its transfers, its positions and what each of
    them computes. `rounds_differ`: background traffic was drawn for every round, and `schedule` is that of the first;
    earlier versions drew it once. `deciding` are the modes whose choices are counted.
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
    rounds_differ: bool = False
    at: tuple[Value, ...] = ()
    baseline: Mapping[str, str] = field(default_factory=dict)
    further: tuple[str, ...] = ()
    deciding: tuple[str, ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)
    hashed: tuple[str, ...] = ()

    def words(self, key: str) -> str:
        """Return the value of a key in words; of two configurations that differ in it, they differ."""
        return self.told.get(key) or words(key, self.value(key))

    def value(self, key: str) -> Any:
        """Return the value of a scenario's key."""
        return self.values[key] if key in self.values else self.swept[key]

    @property
    def seed(self) -> int:
        """The seed of all random draws."""
        return int(self.values["run.seed"])

    @property
    def kind(self) -> str:
        """The kind of collective as written in a scenario ("allgather"), or "jobs" for a scenario with jobs."""
        if self.values.get("job"):
            return "jobs"
        return str(self.values.get("collective.kind", "allgather"))

    @property
    def measures_of_jobs(self) -> dict[str, str]:
        """What the time of a job is, by its name, for each job whose time is not that of its completion."""
        jobs = self.values.get("job") or ()
        return {str(job["name"]): words for job in jobs if (words := measured_as(job))}

    @property
    def amounts_of_jobs(self) -> dict[str, str]:
        """How many repetitions a job's time is that of, by its name, for each job that has several."""
        jobs = self.values.get("job") or ()
        return {str(job["name"]): words for job in jobs if (words := amount_of(job))}

    @property
    def has_drawn_jobs(self) -> bool:
        """Whether the messages of any job are drawn at random."""
        return any(job.get("kind") in (BACKGROUND, REQUESTS) for job in self.values.get("job") or ())

    @property
    def computes(self) -> bool:
        """Whether GPUs may compute: their streams are otherwise the clocks of jobs, which wait."""
        jobs = self.values.get("job") or ()
        own = self.values.get("collective.kind")
        return not jobs or any("schedule" in job or job.get("kind", own) in _COMPUTING for job in jobs)

    @property
    def has_blocks(self) -> bool:
        """Whether collective.chunk has an effect: not in training, and not if every job has a size of its own."""
        jobs = self.values.get("job")
        if jobs:
            own = ("chunk", "size", "rate", "schedule", "requests")
            return any(job.get("kind") != "training" and job.keys().isdisjoint(own) for job in jobs)
        return self.kind != "training"

    @property
    def algorithm(self) -> str:
        """The algorithm ("ring"), or the name of the file with the schedule."""
        file = None if self.kind == "jobs" else self.values.get("collective.schedule")
        if file is not None:
            return Path(str(file)).name
        return "ring" if self.schedule is None else str(self.schedule["algorithm"])

    @property
    def collective(self) -> str:
        """The kind of collective as written in texts: "AllGather"."""
        return collective_name(self.kind, self.iterations)

    @property
    def iterations(self) -> int:
        """How many iterations of training a collective has."""
        return int(self.values.get("training.every", 1)) if self.kind == "training" else 1

    @property
    def titled_kind(self) -> str:
        """The collective in a title, where a round is one of jobs."""
        return "rounds of jobs" if self.kind == "jobs" else self.collective

    @property
    def jobs_in_words(self) -> tuple[str, ...]:
        """The jobs of its rounds."""
        return tuple(map(words_of, self.values.get("job") or ()))

    @property
    def is_ring_allgather(self) -> bool:
        """Whether it is an AllGather of whole chunks around one ring, the paper's collective."""
        is_plain = all(self.values.get(f"collective.{key}", 1) == 1 for key in ("channels", "pieces"))
        return (self.kind, self.algorithm) == ("allgather", "ring") and is_plain

    @cached_property
    def fabric(self) -> Fabric:
        """The fabric; raises FabricError if it cannot be built, and other errors for values of wrong types."""
        wan, gpus = read_wan(self.values["fabric.wan"]), tuple(self.values["fabric.gpus"])
        later: dict[str, Any] = {  # keys that runs of earlier versions lack
            "sites": tuple(self.values.get("fabric.sites", ())),
            "paths": self.values.get("fabric.paths"),
            "grain": str(self.values.get("fabric.grain", GRAINS[0])),
        }
        counts = {name: _tuples(self.values[f"fabric.{name}"]) for name in ("leaves", "spines", "border_routers")}
        return build_fabric(FabricSpec(gpus_per_site=gpus, wan=wan, **counts, **later))

    @cached_property
    def wan_delays_s(self) -> tuple[float, float]:
        """The shortest and the longest delay of a WAN link in one direction, in seconds."""
        of_links = delays_s(self.fabric, self.conditions)
        wan = [of_links[link.index] for link in links_in_grain(self.fabric).all if link.kind == "wan"]
        return float(min(wan)), float(max(wan))

    @cached_property
    def rates(self) -> Mapping[str, tuple[Range, ...]]:
        """The ranges of rates, as `analysis.statistics.rates` has them."""
        return ranges_of(self.fabric, self.conditions)

    @property
    def title(self) -> str:
        """The label with the ranges of the WAN's delays and of rates that it does not tell."""
        told = self.label.split(", ")
        delays = _delays_words([self]) if len(self.value("fabric.gpus")) > 1 else ""
        wan = [f"WAN links of {delays}"] if delays and not {delays, f"WAN {delays}"} & {*told} else []
        given, told_otherwise = _given_rates(told)
        return ", ".join(_with_wan_rate([*told_otherwise, *wan], [*untold([self.rates], told), *given]))

    @property
    def conditions(self) -> ConditionsSpec:
        """The specification from which the conditions are drawn."""
        units = _CONDITIONS | {name: unit for name, unit in _LATER.items() if f"conditions.{name}" in self.values}
        fields: dict[str, Any] = {}
        for name, unit in units.items():
            value = self.values[f"conditions.{name}"]
            fields[name + unit] = _tuples(value) if name in _CONDITIONS else value
        trace, own = fields.pop("trace"), link_overrides.read(fields.pop("links", {}))
        load = fields.pop("load", None)
        return ConditionsSpec(
            **fields,
            trace=None if trace is None else Path(trace),
            links=own,
            load=None if load is None else background_load.read(load),
        )


def in_print(text: str) -> str:
    """Return words of the command as figures and the report have them: "10 µs" for "10 us"."""
    return re.sub(r"(?<=\d )us\b", "µs", text)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def configurations_of(run: Run) -> list[Configuration]:
    """Return the configurations of a run; raises FigureError if its settings.json lacks values that figures need."""
    configurations = []
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
        if classes is not None and not (isinstance(classes, dict) and classes.keys() == _CLASS_KEYS):
            lacking.append("classes")
        if lacking or stored["setting"] != index:
            what = f"lacks {', '.join(lacking)}" if lacking else f"has the index {stored['setting']}"
            raise FigureError(f"{run.path} is damaged: setting {index} of its settings.json {what}")
        label = in_print(str(stored["label"]))
        about = {"swept": stored["swept"], "values": values, "shared_links": shared, "schedule": schedule}
        about |= {"classes": classes, "admission": stored.get("admission", ()), "jobs": stored.get("jobs") or ()}
        about["rounds_differ"] = stored.get("rounds_differ") is True
        about |= {"at": _values_at(stored), "baseline": stored.get("baseline") or {}}
        about |= {name: tuple(stored.get(name, ())) for name in ("deciding", "hashed")}
        about["further"] = tuple(map(in_print, stored.get("further", ())))
        configurations.append(Configuration(index=index, label=label, **about))
    in_words = {
        key: told(key, [one.value(key) for one in configurations], [_words_at(one, key) for one in configurations])
        for key in _swept(configurations)
    }
    return [replace(one, told={key: words[one.index] for key, words in in_words.items()}) for one in configurations]


def _words_at(one: Configuration, key: str) -> str:
    return next((value.words for value in one.at if value.key == key), "")


def _swept(configurations: Sequence[Configuration]) -> Iterable[str]:
    return dict.fromkeys(key for one in configurations for key in one.swept)


def told(key: str, values: Sequence[Any], otherwise: Sequence[str] = ()) -> list[str]:
    """Return these values of a key in words, so that different ones have different words: those of labels, `otherwise`,
    or at last numbers."""
    told = [words(key, value) for value in values]
    if key == JOBS:
        told = told_apart([jobs or () for jobs in values])
        short = list(map(_with_ranges, told))
        told = short if len({*short}) == len({*told}) else told
    if len({*told}) < len({*map(repr, values)}) and key in _TABLES:
        told = [", ".join(map(_whole, value)) or "none" for value in values]
    elif len({*told}) < len({*map(repr, values)}) and all(otherwise):
        told = list(otherwise) or told
    numbers: dict[str, list[str]] = {}  # those of the values with the same words
    for text, value in zip(told, values, strict=True):
        if repr(value) not in (alike := numbers.setdefault(text, [])):
            alike.append(repr(value))
    return [
        text if len(numbers[text]) == 1 else f"{text} (no. {numbers[text].index(repr(value)) + 1})"
        for text, value in zip(told, values, strict=True)
    ]


def _with_ranges(jobs: str) -> str:
    """Return jobs in words with three or more of a name and successive numbers as one: "train + gather0-4"."""
    runs: list[tuple[str, list[str]]] = []  # a name, and the words of its jobs
    for text in jobs.split(JOINED):
        stem = text.rstrip("0123456789")
        alike = runs[-1][1] if runs and stem not in ("", text) and runs[-1][0] == stem else []
        if alike and int(text[len(stem) :]) == int(alike[-1][len(stem) :]) + 1:
            alike.append(text)
        else:
            runs.append((stem, [text]))
    return JOINED.join(
        f"{alike[0]}-{alike[-1][len(stem) :]}" if len(alike) > _FEW else JOINED.join(alike) for stem, alike in runs
    )


def _values_at(stored: Mapping[str, Any]) -> tuple[Value, ...]:
    """Return the swept values of a configuration in words; runs of earlier versions lack them."""
    at = stored.get("at")
    if at is None:
        return tuple(Value(key, words(key, value), number_of(key, value)) for key, value in stored["swept"].items())
    return tuple(Value(key, in_print(text), None if key in SEEDS else number) for key, text, number in at)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


@dataclass(frozen=True, kw_only=True, eq=False)
class PointRows:
    """The rows of an engine, a configuration and a mode, in the order of collectives; `beside` are those of all modes
    there, if they are known."""

    engine: str
    configuration: Configuration
    mode: str
    rows: pd.DataFrame
    beside: list["PointRows"] = field(default_factory=list, repr=False)

    @cached_property
    def completion_s(self) -> Floats:
        """The completion time of each collective, [K] s."""
        return np.asarray(self.rows["completion_s"], dtype=np.float64)

    @cached_property
    def number(self) -> Numbers:
        """The numbers of the collectives, [K], counted from 0."""
        return np.asarray(self.rows["collective"], dtype=np.int64)

    @cached_property
    def predicted_s(self) -> Floats:
        """The time that the model predicts for each collective, [K] s."""
        return np.asarray(self.rows["predicted_s"], dtype=np.float64)

    @cached_property
    def series(self) -> Series:
        """The completion times as a series, from which intervals are computed: the same as of a mode with the same
        times."""
        return with_blocks_of_equal(self._own_series, (one._own_series for one in self.beside))

    @cached_property
    def _own_series(self) -> Series:
        chosen: Any = {name: np.asarray(self.rows[name], dtype=bool) for name in ("reembedded", "rerouted")}
        chosen["one_draw"] = self.configuration.has_drawn_jobs and not self.configuration.rounds_differ
        chosen["exact_from"] = exact_from(
            self.configuration.fabric,
            self.configuration.conditions,
            is_measured=self.engine != "model",
            is_drawn=self.configuration.has_drawn_jobs or bool(self.configuration.values.get("fabric.wan_loss")),
        )
        return series_of(self.number, self.completion_s, self.configuration.conditions, **chosen)

    @property
    def repetitions(self) -> str:
        """What to say beside the number of its collectives if they are of several seeds; "" if not."""
        return ""

    def among(self, number: Numbers) -> Series:
        """Return the series of the point's collectives that are among these numbers."""
        if np.array_equal(self.number, number):
            return self.series
        return self.series.rows(np.isin(self.number, number))


Points = Mapping[tuple[str, int, str], PointRows]
"""Points by engine, index of the configuration and mode."""


def points_of(run: Run, configurations: Sequence[Configuration]) -> dict[tuple[str, int, str], PointRows]:
    """Return the points of a run, those of the model first, then by configuration and mode.

    Raises FigureError if the run holds no collective, or one of an unknown engine, configuration or mode.
    """
    if run.collectives.empty:
        raise FigureError(f"{run.path} holds no collective yet: there is nothing to draw")
    points: dict[tuple[str, int, str], PointRows] = {}
    declared = [name for one in configurations for name in one.values.get("run.modes", ())]
    name_modes(declared, {str(one.values.get("fabric.routing", "single")) for one in configurations})
    grouped = run.collectives.groupby(["engine", "setting", "mode"], sort=False, observed=True)
    for (engine, index, mode), rows in grouped:
        if mode not in MODE_STYLES or engine not in ENGINES or not 0 <= index < len(configurations):
            raise FigureError(f"{run.path} holds a point ({engine}, setting {index}, {mode}) that its settings lack")
        is_sorted = rows["collective"].is_monotonic_increasing
        ordered = rows if is_sorted else rows.sort_values("collective", kind="stable")
        points[engine, index, mode] = PointRows(
            engine=engine, configuration=configurations[index], mode=mode, rows=ordered
        )
    for (engine, index, _), point in points.items():
        point.beside.extend(one for (other, at, _), one in points.items() if (other, at) == (engine, index))
    return {key: points[key] for key in sorted(points, key=lambda k: (ENGINES.index(k[0]), k[1], place_of(k[2])))}


def settings_of(points: Points) -> list[Setting]:
    """Return the configurations of these points, each with the modes that it has among them."""
    found: dict[int, dict[str, Configuration]] = {}
    for _, index, mode in points:
        found.setdefault(index, {})[mode] = next(
            point.configuration for (_, here, _), point in points.items() if here == index
        )
    order = list(MODE_STYLES)
    return [
        Setting(
            index=index,
            label=(one := next(iter(found[index].values()))).label,
            kind=one.kind,
            iterations=one.iterations,
            own=tuple(str(policy["name"]) for policy in one.values.get("policy") or ()),
            at=one.at,
            modes=tuple(sorted(found[index], key=_order_of(one, order))),
            baseline=one.baseline,
            jobs=tuple(one.values.get("job") or ()),
            hashed=one.hashed,
        )
        for index in sorted(found)
    ]


def _order_of(one: Configuration, known: Sequence[str]) -> Callable[[str], int]:
    """Return the order of modes: as they were given in the run, or else as styles have them."""
    given = list(one.values.get("run.modes", ())) or list(known)
    return lambda mode: given.index(mode) if mode in given else len(given)


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureGroup:
    """The configurations of one figure, which differ only in the keys `across` (its x axis) and `facet` (its panels).

    If they have one mode, they may also differ in the keys `compared`: lines, which otherwise are modes, are then their
    values. `name` tells its file apart from those of other groups; "" if there is one group.
    """

    name: str
    across: str
    facet: str | None
    configurations: tuple[Configuration, ...]
    compared: tuple[str, ...] = ()

    def line(self, one: Configuration, mode: str) -> str:
        """Return the name of the line of a point: its mode, or the values of the compared keys."""
        compared = [value for value in one.at if value.key in self.compared]
        return ", ".join(one.words(JOBS) if value.key == JOBS else value.words for value in compared) or mode

    @cached_property
    def styles(self) -> Mapping[str, ModeStyle]:
        """The styles of all lines by name, in drawing order."""
        if not self.compared:
            return MODE_STYLES
        return value_styles(dict.fromkeys(self.line(one, "") for one in self.configurations))

    @property
    def x_label(self) -> str:
        """The label of the x axis."""
        if self.across == _KNOWLEDGE and self.is_numeric:
            is_count = all(tick.isdecimal() for tick in self.axis.ticks)
            return f"age of the known rates{' (collectives)' * is_count}"
        return self.key_words(self.across)

    def key_words(self, key: str) -> str:
        """Return a scenario's key in words; collective.chunk is the chunk size of AllGathers, or a block size."""
        if key == "conditions.wan_delay" and any(
            entry.delay_s is not None for one in self.configurations for entry in one.conditions.links
        ):
            return "delay of WAN links without one of their own"
        is_block = key == "collective.chunk" and any(one.kind != "allgather" for one in self.configurations)
        return "block size" if is_block else label_of(key)

    def cells(self, one: Configuration) -> dict[str, Any]:
        """Return a configuration's values of `facet` and `across` by column (with its unit).

        They are plain values, or words if plain values would not tell all configurations apart.
        """
        keys = [self.across] if self.facet is None else [self.facet, self.across]
        return {_COLUMNS.get(key, key): self._plain(key, one) for key in keys}

    def _plain(self, key: str, one: Configuration) -> Any:
        values = {repr(one.value(key)): one.value(key) for one in self.configurations}.values()
        numbers = [plain(key, item) for item in values]
        is_plain = len(set(map(str, numbers))) == len(numbers) and key != JOBS
        return plain(key, one.value(key)) if is_plain else one.words(key)

    @cached_property
    def facets(self) -> dict[str, tuple[Configuration, ...]]:
        """The configurations of each panel by its title, in the order of the sweep."""
        facets: dict[str, list[Configuration]] = {}
        for one in self.configurations:
            key = self.facet
            title = "" if key is None else f"{self.key_words(key)} {one.words(key)}"
            facets.setdefault(title, []).append(one)
        return {title: tuple(members) for title, members in facets.items()}

    @cached_property
    def axis(self) -> SweptAxis:
        """The x axis: the values of `across`, numeric if these are two or more different quantities of one unit."""
        values = {one.words(self.across): one.value(self.across) for one in self.configurations}
        axis = swept_axis(list(values), numbers_of(self.across, list(values.values())))
        if not (axis.is_numeric and self.across == _KNOWLEDGE):
            return axis
        return axis._replace(ticks=tuple("0" if one == "oracle" else one.removeprefix("stale ") for one in values))

    @property
    def ticks(self) -> tuple[str, ...]:
        """The values of `across` in words."""
        return self.axis.labels

    @property
    def is_numeric(self) -> bool:
        """Whether the x axis is numeric."""
        return self.axis.is_numeric

    def tick(self, one: Configuration) -> int:
        """Return the index of a configuration's tick."""
        return self.ticks.index(one.words(self.across))

    @property
    def lines(self) -> tuple[str, ...]:
        """The names of all lines: those of modes, or of compared values."""
        modes = {one.index: one.values.get("run.modes", ("",)) for one in self.configurations}
        return tuple(dict.fromkeys(self.line(one, mode) for one in self.configurations for mode in modes[one.index]))

    @property
    def is_crowded(self) -> bool:
        """Whether it has more lines, or more equally distant ticks, than can be told apart in one panel."""
        return len(self.lines) > MAX_LINES or (not self.is_numeric and len(self.ticks) > MAX_LINES)

    @property
    def title(self) -> str:
        """The values of the keys that are the same in the whole group, in words."""
        first = self.configurations[0]
        size = "collective.chunk" if first.values.get("collective.size") is None else "collective.size"
        wan = first.value("fabric.wan")
        is_long = isinstance(wan, Mapping) and bool(wan.get("km"))
        has_wan = len(first.value("fabric.gpus")) > 1
        keys = ["fabric.gpus", *_COLLECTIVE, size]
        keys += ["fabric.wan" if is_long else "conditions.wan_delay"] if has_wan else []
        keys += [key for key in first.swept if key not in keys]
        differing = (*[self.across] * (len(self.ticks) > 1), self.facet, *self.compared)
        titled = [text for key in keys if key not in differing and (text := self._titled(key))]
        jobs = [text for text in first.jobs_in_words if all(text in one.jobs_in_words for one in self.configurations)]
        shared = [*jobs, *(text for text in first.further if all(text in one.further for one in self.configurations))]
        told = [*shared, *(value.words for value in first.at)]
        rates = untold([one.rates for one in self.configurations], told)
        given, shared = _given_rates(shared)
        return ", ".join([*_with_wan_rate(titled, [*rates, *given]), *shared])

    def _titled(self, key: str) -> str:
        """Return the value of a key that all configurations share, in words; "" if it need not be mentioned."""
        first = self.configurations[0]
        if key in _COLLECTIVE:
            if all(one.is_ring_allgather for one in self.configurations):
                return ""
            alike = {one.titled_kind if key == "collective.kind" else one.algorithm for one in self.configurations}
            return alike.pop() if len(alike) == 1 else ""
        text = first.words(key)
        is_training = all(one.kind == "training" for one in self.configurations)
        if is_training and key in ("collective.chunk", "training.pipeline"):  # unused; the pipeline is the algorithm
            return ""
        if key == "collective.chunk":
            if not any(one.has_blocks for one in self.configurations):
                return ""
            return f"{'chunks' if self.key_words(key) == 'chunk size' else 'blocks'} of {text}"
        known = {"fabric.gpus": f"{text} GPUs"}
        if key == "conditions.wan_delay":  # one site alone has none
            with_wan = [one for one in self.configurations if len(one.value("fabric.gpus")) > 1]
            known[key] = f"WAN links of {_delays_words(with_wan)}"
        return known.get(key, f"{self.key_words(key)} {text}")


def _given_rates(parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the rates that parts of a label tell by their keys, "wan rate 25 Gbit/s", as titles tell drawn ones, "WAN
    25 Gbit/s", and the other parts."""
    rates, others = list[str](), list[str]()
    for part in parts:
        given = _RATE.fullmatch(part)
        if given is None:
            others.append(part)
        else:
            rates.append(f"WAN {given['rate']}" if given["where"] == "wan" else f"{given['rate']} within sites")
    return rates, others


def _with_wan_rate(parts: Sequence[str], rates: Sequence[str]) -> list[str]:
    """Return parts of a title with these rates, where the WAN's delay has its rate beside it: "WAN 5 ms and 25
    Gbit/s"."""
    delay = next((at for at, part in enumerate(parts) if _WAN_DELAY.match(part)), None)
    of_wan = next((rate for rate in rates if rate.startswith("WAN ")), None)
    if delay is None or of_wan is None:
        return [*parts, *rates]
    joined = f"{parts[delay]} and {of_wan.removeprefix('WAN ')}"
    return [*parts[:delay], joined, *parts[delay + 1 :], *(rate for rate in rates if rate != of_wan)]


def _delays_words(with_wan: Sequence[Configuration]) -> str:
    """Return the delays of all WAN links of these configurations in words: "10 µs", or "10 µs to 5 ms"."""
    shortest_s, longest_s = zip(*(one.wan_delays_s for one in with_wan), strict=True)
    ends = (words("conditions.wan_delay", each_s) for each_s in (min(shortest_s), max(longest_s)))
    return " to ".join(dict.fromkeys(ends))


def groups_of(configurations: Sequence[Configuration]) -> list[FigureGroup]:
    """Return the configurations in groups, one for each figure.

    The x axis is the swept key with the most values, quantities before others and seeds last. If there are several
    modes, the next key has panels if it has few values. If there is one, the values that somebody chooses are lines
    rather than an axis, so that they can be compared in one panel, and a further key has panels. All other keys have a
    figure for each combination of their values.
    """
    first = configurations[0]
    axes = {key: len({repr(one.value(key)) for one in configurations}) for key in first.swept}
    quantities = {key for key in axes if None not in numbers_of(key, [one.value(key) for one in configurations])}
    has_one_mode = all(len(one.values.get("run.modes", ())) == 1 for one in configurations)

    def rank(key: str) -> tuple[int, ...]:
        is_quantity, is_line = key in quantities, has_one_mode and is_choice(key)
        return not is_quantity, is_line and not is_quantity, key in SEEDS, -axes[key], is_line

    is_chunk = first.values.get("collective.size") is None
    across, *others = sorted(axes, key=rank) or ["collective.chunk" if is_chunk else "collective.size"]
    compared = _compared(others, axes, quantities) if has_one_mode else ()
    left = [key for key in others if key not in compared]
    return grouped(configurations, across, left[0] if left and axes[left[0]] <= _MAX_FACETS else None, compared)


def _compared(others: Sequence[str], axes: Mapping[str, int], quantities: Collection[str]) -> tuple[str, ...]:
    """Return the keys whose values are lines: of those that are not the x axis, the chosen ones, or else the first.

    There are few lines, or more of a single key, unless its values are `quantities` that nobody chooses. `axes` has the
    number of values of each key.
    """
    lines, compared = 1, list[str]()
    for key in [key for key in others if is_choice(key)] or others[:1]:
        is_series = not is_choice(key) and key in quantities
        if lines * axes[key] <= MAX_LINES or not (compared or is_series):
            lines *= axes[key]
            compared.append(key)
    return tuple(compared)


def grouped(
    configurations: Sequence[Configuration], across: str, facet: str | None, compared: Sequence[str] = ()
) -> list[FigureGroup]:
    """Return the configurations in groups within which only these keys differ."""
    others = [key for key in configurations[0].swept if key not in (across, facet, *compared)]
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        groups.setdefault(tuple(_file_words(key, one.words(key)) for key in others), []).append(one)
    about: dict[str, Any] = {"across": across, "facet": facet, "compared": tuple(compared)}
    return [
        FigureGroup(name="-".join(values), configurations=tuple(members), **about) for values, members in groups.items()
    ]


def collective_words(configurations: Iterable[Configuration]) -> str:
    """Return the kind of collective that these share, as written in texts ("AllGather"), or "collective"."""
    names = {one.collective for one in configurations}
    return names.pop() if len(names) == 1 else "collective"


def number_of(key: str, value: Any) -> float | None:
    """Return a value as a coordinate on an axis, or None if it is not a quantity (a seed, or a range of rates)."""
    is_rate = key.endswith("_rate") and isinstance(value, list) and value[:1] * 2 == value
    number = value[0] if is_rate else plain(key, value)
    is_quantity = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    return float(number) if is_quantity and key not in SEEDS else None


def numbers_of(key: str, values: Sequence[Any]) -> list[float | None]:
    """Return these values of a key as coordinates on one axis: those of `number_of`, and the ages of knowledge, 0 of
    the true rates. Values of two units have none."""
    if key == _KEPT and len({type(value) for value in values}) > 1:
        return [None] * len(values)
    if key != _KNOWLEDGE:
        return [number_of(key, value) for value in values]
    aged = [_AGED.fullmatch(str(value)) for value in values]
    if len({one.lastgroup for one in aged if one}) > 1:
        return [None] * len(values)
    ages = [one and (float(one["count"]) if one["count"] else parse_delay_s(one["time"])) for one in aged]
    return [0.0 if value == "oracle" else age for age, value in zip(ages, values, strict=True)]


def plain(key: str, value: Any) -> Any:
    """Return a value as stored in a table: a single number or text as it is, everything else in words."""
    if key == "fabric.gpus" and isinstance(value, list):
        return sum(value)
    return value if isinstance(value, int | float | str) else words(key, value)


def words(key: str, value: Any) -> str:
    """Return a value in words: "8", "3+5", "64 MB", "10 µs", and "none" for an empty list."""
    if key in _SIZES and value is not None:
        return format_size(value)
    if (isinstance(value, int | float) and key.endswith(_TIMES)) or (key == _KEPT and isinstance(value, float)):
        return format_delay(value).replace("us", "µs")
    if key == "conditions.links":
        return ", ".join(" ".join([name, *own.values()]).replace("us", "µs") for name, own in value.items()) or "none"
    if isinstance(value, list):
        return _list_words(key, value)
    if isinstance(value, Mapping):
        return str(value.get("name", "own"))
    if value is None or isinstance(value, bool):
        text = "default" if value is None else str(value).lower()
    else:
        text = f"{value:g}" if isinstance(value, float) else short_path(value) if key in _FILES else str(value)
    return _WORDS.get(key, {}).get(text, text)


def _list_words(key: str, items: list[Any]) -> str:
    if key == "fabric.gpus" and items == items[:1] * 2:  # two equal sites
        return str(sum(items))
    if key == "fabric.gpus" and len(items) == 1:
        return f"one site of {items[0]}"
    if key.endswith("_rate"):
        return format_rate_range((items[0], items[1]))
    if key.endswith(_TIMES):
        return "+".join(words(key, item) for item in items)
    if key == JOBS:
        return all_words_of(items) or "no jobs"
    separator = ", " if any(isinstance(item, Mapping) for item in items) else "+"
    return separator.join(map(_item_words, items)) or ("no fault" if key == "fault" else "none")


def labelled(key: str, value: Any) -> str:
    """Return a key with its value in words: "WAN bandwidth 40 Gbit/s"."""
    return f"{label_of(key)} {words(key, value)}"


def label_of(key: str) -> str:
    """Return a key in words; of one without words of its own, its last part: "routing"."""
    return _LABELS.get(key, key.rpartition(".")[2].replace("_", " "))


def _item_words(item: Any) -> str:
    """Return an item of a list in words: what a fault does, or the name of a class."""
    if not isinstance(item, Mapping):
        return str(item)
    return str(item.get("name", item.get("what", "own")))  # a fault has no name


def _whole(item: Mapping[str, Any]) -> str:
    """Return a fault or a class with all that its table has."""
    others = {key: value for key, value in item.items() if key not in ("name", "what")}
    return " ".join([_item_words(item), *(f"{key} {value}" for key, value in others.items() if value is not None)])


def _file_words(key: str, value_words: str) -> str:
    """Return a key and its value as part of a file's name: "wan_delay-100us"."""
    text = re.sub(r"[^A-Za-z0-9.+_]", "", value_words.replace("µ", "u")).lstrip(".") or "other"
    return f"{key.rpartition('.')[2]}-{text}"
