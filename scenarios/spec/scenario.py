"""The scenario language: all keys, and the configurations that a sweep spans.

In a scenario file, `NAME = value` in `[TABLE]` is the key "TABLE.NAME". KEYS declares each key: the field that holds
its value (whose default is the key's default), the kind of its values (unit, range, how it is written) and its meaning.
A configuration is a scenario without a sweep. `load` reads files, and `consistency` checks values together.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from analysis.model.optimal_schedule import COPIED, MAX_GPUS
from hosts.agent.transport import Transport
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, SELF_SIZED_KINDS, TRACE, TRAINING, JobSpan, Workload
from hosts.collectives.training import ACROSS, GRADIENTS, PIPELINES, Training
from hosts.embedding.ring import MAX_EXACT_GPUS, OBJECTIVES
from scenarios.policies import policy
from scenarios.policies.decide import routes_greedily, shared_links
from scenarios.policies.policy import MODES, Mode
from scenarios.spec import admission, classes, faults, jobs, program, te
from scenarios.spec.admission import TRANSFER, AdmissionPlan, AdmissionSpec, Transfer
from scenarios.spec.classes import ClassSpec
from scenarios.spec.collective import CollectiveSpec, routed, scaled_workload, workload_of
from scenarios.spec.faults import Fault
from scenarios.spec.jobs import JobSpec, workload_of_jobs
from scenarios.spec.program import ProgramSpec
from scenarios.spec.te import TeSpec
from scenarios.spec.training import TrainingPlan
from scenarios.spec.values import (
    DELAY,
    NAME,
    NAME_SIGNS,
    RATES,
    SCHEDULE_FILE,
    SIZE,
    TRUTH,
    Kind,
    numbers,
    one_of,
    quantity,
    texts,
    unique,
    whole,
)
from topologies import units
from topologies.conditions import link_overrides
from topologies.conditions.sampler import MAX_COEFFICIENT, MIN_EVERY_S, SAMPLERS, ConditionsSpec
from topologies.errors import format_value, list_first
from topologies.fabric.fabric import (
    GRAINS,
    MAX_GPUS_PER_SITE,
    MAX_HASH_SEED,
    MAX_PIECES,
    MAX_SWITCHES_PER_TIER,
    ROUTINGS,
    Fabric,
    FabricSpec,
    build_fabric,
    even_split,
)
from topologies.fabric.maps import ALLOWED, read_wan, write_wan
from topologies.fabric.wan import MAX_PATHS
from topologies.shaping.classes import FRAME_BYTES, MAX_BUFFER_BYTES
from topologies.shaping.rate_scale import FULL_SCALE, MAX_DIVISOR, RateScale

MAX_COLLECTIVES = 10_000_000
MIN_PROBE_BYTES, MAX_PROBE_BYTES = 10_000, 1_000_000
MAX_CONTROL_DELAY_S = 1.0  # a change of rules takes a round trip, and the controller waits 5 s for it
MAX_SEED = 2**63 - 1
_MAX_S = 1000.0
MAX_AXIS_VALUES = 100
MIN_LOSS, MAX_LOSS = 1e-9, 0.1  # of frames: netem's unit is 2^-32, and agents stop waiting for TCP at some point
MAX_OPTIMUM = 300
"""Most collectives for which the best policy is computed: the effort grows as the square of the modes' choices."""
MAX_CONFIGURATIONS = 1000
"""Most configurations that the axes of [sweep] may span together."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What is compared (`modes`) and with which references (`referees`), how long a best schedule is searched for, the
    seed of all random numbers, and the clock and the rate scale of the emulation."""

    modes: tuple[str, ...] = tuple(MODES)
    referees: tuple[str, ...] = ()
    search: float = 2.0
    seed: int = 1
    clock: str = "virtual"
    scale: RateScale = FULL_SCALE

    @property
    def is_real(self) -> bool:
        """Whether the emulation runs in real time."""
        return self.clock == "wall"


@dataclass(frozen=True, kw_only=True)
class ControlSpec:
    """The control plane. `counted`: a collective's time includes the reconfiguration of ring and paths before it.
    `delay_s` is the one-way delay from the controller to the switches, the same for all sites or one for each; with
    None the controller is on the same machine. `probe_bytes` is the size of a probe."""

    counted: bool = False
    delay_s: float | tuple[float, ...] | None = None
    probe_bytes: int = 250_000


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep: a key and its values (GPUs per site, bytes, seconds ...), in the given order."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One experiment: every mode of its run, in every configuration that its sweep spans.

    In a configuration, which is one point of the sweep, `at` holds the swept keys with their values.
    """

    name: str = "scenario"
    fabric: FabricSpec = field(default_factory=FabricSpec)
    conditions: ConditionsSpec = field(default_factory=ConditionsSpec)
    collective: CollectiveSpec = field(default_factory=CollectiveSpec)
    run: RunSpec = field(default_factory=RunSpec)
    transport: Transport = field(default_factory=Transport)
    program: ProgramSpec = field(default_factory=ProgramSpec)
    training: Training = field(default_factory=Training)
    control: ControlSpec = field(default_factory=ControlSpec)
    admission: AdmissionSpec = field(default_factory=AdmissionSpec)
    te: TeSpec = field(default_factory=TeSpec)
    faults: tuple[Fault, ...] = ()
    jobs: tuple[JobSpec, ...] = ()
    classes: tuple[ClassSpec, ...] = ()
    policies: tuple[Mode, ...] = ()
    sweep: tuple[Axis, ...] = ()
    at: tuple[tuple[str, Any], ...] = field(default=(), compare=False)

    @property
    def gpus(self) -> int:
        """The number of GPUs of all sites."""
        return sum(self.fabric.gpus_per_site)

    @property
    def workload(self) -> Workload:
        """The workload of each collective, or of each round of jobs; raises ScheduleError if it is not possible."""
        if self.jobs:
            sites, seed = self.fabric.gpus_per_site, self.run.seed
            workload = workload_of_jobs(
                self.jobs,
                self.collective,
                self.classes,
                sites=sites,
                seed=seed,
                training=self.training_plan,
                admission=self.admission_plan,
            )
        elif self.training_plan is not None:
            workload = self.training_plan.workload(range(self.gpus))
        else:
            workload = workload_of(self.collective, self.fabric.gpus_per_site)
        return routed(workload, self.fabric)

    @property
    def kinds(self) -> set[str]:
        """The kinds of what a configuration repeats: of its jobs, or of its collective if it has no jobs."""
        return {job.collective(self.collective).kind for job in self.jobs} or {self.collective.kind}

    @property
    def training_plan(self) -> TrainingPlan | None:
        """The training of a configuration; None if neither its collective nor one of its jobs is training."""
        if TRAINING not in self.kinds:
            return None
        return TrainingPlan(self.training, self.fabric, self.conditions, self.run.seed)

    @property
    def admission_plan(self) -> AdmissionPlan | None:
        """The plan that admits a configuration's transfers; None if it has no transfers."""
        if all(job.kind != TRANSFER for job in self.jobs):
            return None
        dead = faults.dead_cables([one for one in self.faults if one.is_throughout], build_fabric(self.fabric))
        return AdmissionPlan(self.admission, self.fabric, self.conditions, self.classes, dead)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The transfers of a configuration with their outcomes."""
        plan = self.admission_plan
        return () if plan is None else plan.transfers(self.jobs)

    @property
    def carried_workload(self) -> Workload:
        """The workload that the emulation of a configuration carries, scaled by its rate scale."""
        return scaled_workload(self.workload, self.run.scale)

    @property
    def control_delays_s(self) -> tuple[float, ...]:
        """The one-way delay from the controller to the switches of each site, s; empty if no delay is set."""
        delay_s = self.control.delay_s
        return (delay_s,) * len(self.fabric.gpus_per_site) if isinstance(delay_s, float) else delay_s or ()

    def mode(self, name: str) -> Mode:
        """Return the mode with this name, which is built in or one of the scenario's policies."""
        return self.modes[name]

    @property
    def modes(self) -> Mapping[str, Mode]:
        """All modes by name: the built-in ones and the scenario's policies."""
        return MODES | {one.name: one for one in self.policies}

    def value(self, key: str) -> Any:
        """Return the value of a key: a number in bit/s, bytes or seconds, text, a tuple, or a spec's object."""
        declared = KEYS[key]
        return getattr(getattr(self, declared.owner) if declared.owner else self, declared.attribute)

    def with_values(self, values: Mapping[str, Any]) -> "Scenario":
        """Return this scenario with the given values of these keys."""
        changes: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            changes.setdefault(KEYS[key].owner, {})[KEYS[key].attribute] = value
        own = changes.pop("", {})
        return replace(self, **own, **{name: replace(getattr(self, name), **new) for name, new in changes.items()})

    def configurations(self) -> tuple["Scenario", ...]:
        """Return the configurations, one per combination of swept values, the last axis varying fastest."""
        return self._configurations

    @cached_property
    def _configurations(self) -> tuple["Scenario", ...]:
        plain, configs = replace(self, sweep=()), []
        for values in itertools.product(*(axis.values for axis in self.sweep)):
            at = dict(zip((axis.key for axis in self.sweep), values, strict=True))
            config = replace(plain.with_values(at), at=tuple(at.items()))
            config = replace(config, collective=config.collective.with_chunk(config.gpus))
            if config.conditions.sampler != "trace":
                config = replace(config, conditions=replace(config.conditions, trace=None))
            configs.append(config)
        return tuple(configs)

    @cached_property
    def label(self) -> str:
        """The configuration in words: "8 GPUs, 64 MB, 10 us", followed by further swept values.

        A single number of GPUs means two equal sites; for other fabrics the sites are listed, as in "4+4+4+4 GPUs".
        """
        sites = self.fabric.gpus_per_site
        gpus = self.gpus if sites == sites[:1] * 2 else "+".join(map(str, sites))
        wan, delay = self.fabric.wan, units.format_delay(self.conditions.wan_delay_s)
        if any(one.delay_s is not None for one in self.conditions.links):
            delay = f"delays by link, else {delay}"
        words = [f"{gpus} GPUs", *self._collective_words, (wan.name or "own WAN") if wan.km else delay]
        if self.conditions.links and "conditions.links" not in dict(self.at):
            words.append(f"links {list_first([one.links for one in self.conditions.links], 3)}")
        words += filter(None, (self._swept_words(key, value) for key, value in self.at))
        if self.fabric.grain != DEFAULTS.fabric.grain:
            words.append(f"{self.fabric.grain} grain")
        if self.fabric.rails is not None and "fabric.rails" not in dict(self.at):
            words.append(f"{self.fabric.rails} rail{'s' * (self.fabric.rails != 1)}")
        if self.fabric.routing != DEFAULTS.fabric.routing and "fabric.routing" not in dict(self.at):
            words.append(self.fabric.routing)
        if self.run.is_real:
            carried = units.format_size(self.run.scale.chunk_bytes(self.collective.chunk_bytes))
            size = f" with {carried}" if self.kinds - {*SELF_SIZED_KINDS} else ""
            scaled = "" if self.run.scale == FULL_SCALE else f" at {self.run.scale} of the rates{size}"
            words.append(f"wall clock{scaled}")
        return ", ".join(words)

    def _swept_words(self, key: str, value: Any) -> str:
        """Return a swept value in words; empty if the label has it already."""
        if key == "fabric.wan" and value.km:
            return ""
        is_training = key == "training.pipeline" and bool(self.jobs)
        if key in (*_OUTERMOST, *_IN_LABEL) and not is_training:
            return ""
        if key in ("job", "class", "conditions.links", "fault"):  # their tables are too long to be written out
            return ", ".join(each.words for each in value) or f"without {KEYS[key].attribute}"
        name = "controller delay" if key == "control.delay" else key.partition(".")[2].replace("_", " ")
        written = KEYS[key].kind.write(value)
        return f"{name} {str(written).lower() if isinstance(written, bool) else written}"

    @property
    def _collective_words(self) -> Iterator[str]:
        """Yield the collective in words: its kind, if it is not the default, and its size."""
        spec = self.collective
        if self.jobs:
            yield f"{len(self.jobs)} job{'s' * (len(self.jobs) != 1)}"
        if spec.kind == TRAINING and not self.jobs:
            yield f"training {self.training.pipeline}"
            yield self.training.words(self.gpus)
            return
        if (spec.kind, spec.algorithm) != (DEFAULTS.collective.kind, DEFAULTS.collective.algorithm):
            yield f"{spec.kind} {spec.algorithm or ''}".strip()
        of_collective = not self.jobs and spec.kind not in SELF_SIZED_KINDS
        if of_collective or any(job.has_default_size(spec) for job in self.jobs):
            yield units.format_size(spec.chunk_bytes if spec.size_bytes is None else spec.size_bytes)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The columns that results have for swept values, in addition to those that all results have."""
        columns = {}
        for key, value in self.at:
            kind, is_number = KEYS[key].kind, key != "control.delay"  # which may be a list
            if key in (*_OUTERMOST, "run.seed"):
                continue
            is_plain = is_number and isinstance(value, bool | int | float | str)
            cell = value if is_plain else (key == "fabric.wan" and value.name) or str(kind.write(value))
            columns[f"{key}_s" if is_number and kind.unit == DELAY.unit else key] = cell
        return columns

    def shared_links(self, mode: str) -> tuple[str, ...]:
        """Return the names of the logical links or ports that two flows of the collective can use at the same time."""
        fabric, every = build_fabric(self.fabric), [[fault] for fault in self.faults]
        dead = dict.fromkeys(faults.dead_cables(struck, fabric) for struck in (*every, self.faults))
        detours = tuple(cables for cables in dead if cables)
        return shared_links(fabric, self.workload, self.mode(mode), detours=detours)

    def collectives_per_rates(self, mode: Mode) -> int:
        """Return for how many collectives a mode keeps the link rates for which tunnel rates were computed."""
        return self.te.collectives if self.fabric.routing == te.ROUTING and not mode.reroutes else 1

    def has_timeline(self, mode: str) -> bool:
        """Return whether a mode's decision times depend on more than the indices of the collectives."""
        chosen_by = self.mode(mode)
        return not chosen_by.is_periodic or (chosen_by.keeps_paths and bool(self.faults))

    def measures_demands(self, mode: Mode) -> bool:
        """Return whether a mode's tunnel rates are computed from measured demands."""
        is_engineered = self.fabric.routing == te.ROUTING and not mode.reroutes
        return is_engineered and self.te.demand == te.MEASURED

    def routes_greedily(self, mode: str) -> bool:
        """Return whether a mode chooses the WAN paths greedily, because there are too many combinations."""
        return routes_greedily(build_fabric(self.fabric), self.workload, self.mode(mode))

    def searches_rings(self, mode: str) -> bool:
        """Return whether a mode finds rings by a heuristic search, because a site is too large for the exact method."""
        too_large = max(self.fabric.gpus_per_site) > MAX_EXACT_GPUS
        return too_large and self.mode(mode).reembeds and self.workload.is_ring

    @property
    def has_best_ring(self) -> bool:
        """Whether the fastest ring is known: for an allgather of whole blocks around one ring whose edges share no
        link, under conditions that do not change by time."""
        spec = self.collective
        is_plain = self.workload.is_ring and (spec.kind, spec.channels, spec.pieces) == ("allgather", 1, 1)
        return is_plain and self.conditions.every_s is None and not self.shared_links("joint")

    @property
    def has_best_schedule(self) -> bool:
        """Whether the best schedule can be searched for: for whole blocks of collectives that add nothing up, on few
        GPUs, where each message takes one path that the search knows, under conditions that do not change by time."""
        spec, fabric = self.collective, self.fabric
        is_whole = spec.kind in COPIED and spec.schedule is None and (spec.channels, spec.pieces) == (1, 1)
        has_known_paths = fabric.routing == "single" or (fabric.routing == "ecmp" and fabric.grain == "logical")
        is_small = self.gpus <= MAX_GPUS and not fabric.has_planes
        return is_whole and has_known_paths and is_small and self.conditions.every_s is None

    @property
    def searches_schedules(self) -> bool:
        """Whether best schedules are searched for."""
        return "schedule" in self.run.referees and self.has_best_schedule

    def fair_links(self, mode: str) -> tuple[str, ...] | None:
        """Return the links or ports on which the emulation shares rates fairly in a mode; None if it uses fifo queues.

        In real time a timer may be later than a fair share takes, so queues are fifo there. They are also fifo for
        logical links if flows share none. Fair queues, with their short segments, are needed even without shared links:
        on paths of several ports, because long segments wait at each port that is slower than the last; where rates
        change while messages are under way, because data queued behind a link does not adapt to its new rate; with
        traffic engineering; and with jobs, so that a job that overlaps with nothing takes as long as it does alone.
        """
        if self.run.is_real or self.transport.queue == "fifo":
            return None
        shared = self.shared_links(mode)
        is_short = self.fabric.grain == "physical" or self.conditions.every_s is not None
        is_short = is_short or self.fabric.routing == te.ROUTING or bool(self.jobs)
        return shared if shared or is_short else None


@dataclass(frozen=True)
class Key:
    """A key of a scenario: its name, its field, its kind, its meaning, and the samplers that use it.

    `within` is the field of Scenario that contains this field, if it does not have the name of the key's table.
    """

    name: str
    attribute: str
    kind: Kind
    meaning: str
    samplers: tuple[str, ...] = SAMPLERS
    within: str | None = None

    @property
    def table(self) -> str:
        """The table of the key; "" for keys outside tables."""
        return self.name.rpartition(".")[0]

    @property
    def owner(self) -> str:
        """The field of Scenario that contains the key's field; "" for Scenario itself."""
        return self.table if self.within is None else self.within


def _tables(name: str, read: Callable[[list[object]], Sequence[Any]]) -> Kind:
    """Return the kind of lists of tables, each of which declares an object with a method `written`."""
    return Kind(f"[[{name}]] tables", (list,), read, lambda specs: [one.written() for one in specs], is_object=True)


def _read_ratios(given: list[object]) -> tuple[float, ...]:
    if len(given) > 2:
        raise ValueError(f"{format_value(given)} has {len(given)} numbers; allowed: {_RATIOS.allowed}")
    return tuple(map(_RATIO.read, given))


_TITLE = texts(f"1 to 64 {NAME_SIGNS}", re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}").fullmatch)
_FILE = texts(
    "the path of a CSV file of time, link and rate, in printable text", lambda text: text and text.isprintable(), Path
)
_ALGORITHM = one_of(*dict.fromkeys(chain.from_iterable(ALGORITHMS.values())))
_COUNT = whole(1, MAX_COLLECTIVES, "collectives")
_SHARE = numbers((int, float), 0, 10**15, "share of the highest rate")
_LOSS = numbers((int, float), MIN_LOSS, MAX_LOSS, "share of frames", or_zero=True)
_SEARCH = numbers((int, float), 0.01, 1000, "some seconds of a processor")
_TFLOPS = numbers((int, float), 0.001, 10**9)
_STAY = numbers((int, float), 1, 10**15, "collectives")
_COEFFICIENT = numbers((int, float), 0, MAX_COEFFICIENT)
_ONE_DELAY = quantity(units.DELAY, "5 ms", (1e-9, MAX_CONTROL_DELAY_S))
_EVERY = quantity(units.DELAY, "100 ms", (MIN_EVERY_S, _MAX_S))
_SAMPLE = quantity(units.DELAY, "10 ms", (te.MIN_SAMPLE_S, _MAX_S))
_PROBE = quantity(units.SIZE, "250 kB", (MIN_PROBE_BYTES, MAX_PROBE_BYTES))
_FRAMES = quantity(units.SIZE, "500 kB", (FRAME_BYTES, MAX_BUFFER_BYTES), " (one frame)")
_CONTROL_DELAY = Kind(
    f"{_ONE_DELAY.allowed}, or a list of one for a site",
    (str, list),
    lambda given: tuple(map(_ONE_DELAY.read, given)) if isinstance(given, list) else _ONE_DELAY.read(given),
    lambda value: list(map(_ONE_DELAY.write, value)) if isinstance(value, tuple) else _ONE_DELAY.write(value),
    unit=DELAY.unit,
)
_RTO = quantity(units.DELAY, "10 ms", (1e-3, 1.0))
_KEPT = Kind(
    f"{_COUNT.allowed} for collectives, or {_SAMPLE.allowed.replace('10 ms', '100 ms')}",
    (int, str),
    lambda given: _SAMPLE.read(given) if isinstance(given, str) else _COUNT.read(given),
    lambda every: _SAMPLE.write(every) if isinstance(every, float) else every,
)
_SCALE = Kind(
    f'text such as "1/1000", 1 to 1/{MAX_DIVISOR}', (str, int), lambda n: RateScale.parse(str(n)), str, is_object=True
)
_MODE = texts(f"{', '.join(MODES)}, or the name of a policy", NAME.fullmatch)
_MODES = Kind(
    f"a list of {', '.join(MODES)} and the names of policies",
    (list,),
    lambda modes: unique(map(_MODE.read, modes), modes),
    list,
)
REFEREES = ("ring", "schedule", "policy")
_REFEREES = Kind(
    f"a list of {', '.join(REFEREES)}",
    (list,),
    lambda names: unique(map(one_of(*REFEREES).read, names), names) if names else (),
    list,
)
_WAN = Kind(ALLOWED, (str, dict), read_wan, write_wan, is_object=True)
_NODE = texts("the name of a node of the map, in printable text", lambda text: text and text.isprintable())
_NODES = Kind(
    "a list of a node's name for each site", (list,), lambda nodes: tuple(map(_NODE.read, nodes)), list, is_object=True
)
_ALL, _EACH, _TIER = whole(4, 2 * MAX_GPUS_PER_SITE), whole(2, MAX_GPUS_PER_SITE), whole(1, MAX_SWITCHES_PER_TIER)
_GPUS = Kind(
    f"{_ALL.allowed} for two equal sites, or a list with {_EACH.allowed} for each site",
    (int, list),
    lambda gpus: tuple(map(_EACH.read, gpus)) if isinstance(gpus, list) else even_split(_ALL.read(gpus)),
    lambda sites: sum(sites) if sites == sites[:1] * 2 else list(sites),
)
_SWITCHES = Kind(
    f"{_TIER.allowed}, or a list of one for each site",
    (int, list),
    lambda counts: tuple(map(_TIER.read, counts)) if isinstance(counts, list) else _TIER.read(counts),
    lambda counts: list(counts) if isinstance(counts, tuple) else counts,
)
_RATIO = numbers((int, float), 0.01, 1000)
_RATIOS = Kind(
    f"{_RATIO.allowed}, or a list of one for the leaves and one for the spines",
    (int, float, list),
    lambda ratios: _read_ratios(ratios) if isinstance(ratios, list) else (_RATIO.read(ratios),),
    lambda ratios: ratios[0] if len(ratios) == 1 else list(ratios),
)
_FAULTS = _tables("fault", faults.read)
_JOBS = _tables("job", jobs.read)
_CLASSES = _tables("class", classes.read)
_LINKS = Kind(
    "a table of links, each with a rate, a delay or both",
    (dict,),
    link_overrides.read,
    link_overrides.write,
    is_object=True,
)
_POLICIES = _tables("policy", policy.read)
_CONTROL, _QUEUE = one_of("cubic", "reno", "bbr", "dctcp"), one_of("fair", "fifo")
_DRAWN = SAMPLERS[:4]
_GAUSSIAN, _MARKOV, _AR1, _TRACE = ("gaussian",), ("markov",), ("ar1",), ("trace",)

KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key("name", "name", _TITLE, "The scenario's name."),
        Key("fabric.gpus", "gpus_per_site", _GPUS, "GPUs in total, on two equal sites, or in each site."),
        Key("fabric.leaves", "leaves", _SWITCHES, "Leaf switches of a site; its GPUs are divided among them."),
        Key("fabric.spines", "spines", _SWITCHES, "Spine switches of a site."),
        Key("fabric.border_routers", "border_routers", _SWITCHES, "Border routers of a site, with the WAN links."),
        Key("fabric.wan", "wan", _WAN, "The WAN between border routers: a preset, a map, or routers and links."),
        Key("fabric.sites", "sites", _NODES, "The nodes of the map at which the sites are."),
        Key(
            "fabric.paths",
            "paths",
            whole(1, MAX_PATHS),
            "Candidate paths between two border routers, shortest first; by default all, on a map at least four.",
        ),
        Key("fabric.grain", "grain", one_of(*GRAINS), "What has a rate: logical links, or ports of cables."),
        Key("fabric.routing", "routing", one_of(*ROUTINGS), "Routing of flows whose paths no mode chooses."),
        Key(
            "fabric.rails",
            "rails",
            _TIER,
            "Planes that replace leaves and spines; a GPU has a port with an equal share of its rate on each.",
        ),
        Key(
            "fabric.oversubscription",
            "oversubscription",
            _RATIOS,
            "Downlink over uplink capacity of leaves and of spines; by default all ports have the same rate.",
        ),
        Key("fabric.hash_seed", "hash_seed", whole(0, MAX_HASH_SEED), "Seed of the hash by which ecmp chooses paths."),
        Key(
            "fabric.buffer",
            "buffer_bytes",
            _FRAMES,
            "Size of a link's fifo queue; by default unlimited.",
            within="transport",
        ),
        Key(
            "fabric.wan_loss",
            "wan_loss",
            _LOSS,
            "Random frame loss of each WAN link; needs a buffer, and the model ignores it.",
            within="transport",
        ),
        Key("conditions.sampler", "sampler", one_of(*SAMPLERS), "Source of each link's available bandwidth."),
        Key("conditions.intra_rate", "intra_rate_bps", RATES, "Range of available bandwidths within a site."),
        Key("conditions.wan_rate", "wan_rate_bps", RATES, "Range of available WAN bandwidths.", _DRAWN),
        Key("conditions.intra_delay", "intra_delay_s", DELAY, "Propagation delay of a link within a site."),
        Key("conditions.wan_delay", "wan_delay_s", DELAY, "Propagation delay of a WAN link."),
        Key("conditions.mean", "mean", _SHARE, "Mean of the bandwidths before they are clipped.", _GAUSSIAN),
        Key("conditions.deviation", "deviation", _SHARE, "Their standard deviation before clipping.", _GAUSSIAN),
        Key("conditions.mean_stay", "mean_stay", _STAY, "Mean time until a link's bandwidth changes.", _MARKOV),
        Key("conditions.coefficient", "coefficient", _COEFFICIENT, "Coefficient of the process per collective.", _AR1),
        Key("conditions.trace", "trace", _FILE, "Recorded bandwidths; path relative to the scenario's file.", _TRACE),
        Key("conditions.trace_step", "trace_step_s", DELAY, "Time in the trace between two collectives.", _TRACE),
        Key("conditions.links", "links", _LINKS, "Rates and delays of single links, by class, pattern or name."),
        Key("conditions.every", "every_s", _EVERY, "Time between two changes of conditions; by default a collective."),
        Key("conditions.interval", "interval_s", _EVERY, "Time from a collective to the next, with every.", _DRAWN),
        Key(
            "collective.kind",
            "kind",
            one_of(*ALGORITHMS, MESSAGES, TRAINING, TRACE),
            "The collective that is repeated.",
        ),
        Key("collective.algorithm", "algorithm", _ALGORITHM, "Its algorithm; by default the first of its kind."),
        Key("collective.channels", "channels", whole(1, 64), "Parallel rings, every other one in reverse direction."),
        Key("collective.pieces", "pieces", whole(1, 4096), "Messages into which each block is split, for pipelining."),
        Key("collective.schedule", "schedule", SCHEDULE_FILE, "Schedule file; path relative to the scenario's file."),
        Key(
            "collective.tflops", "tflops", _TFLOPS, "Speed of a GPU, 10^12 operations a second, for num_ops of a trace."
        ),
        Key("collective.chunk", "chunk_bytes", SIZE, "Bytes of a block: what each GPU contributes to an allgather."),
        Key("collective.size", "size_bytes", SIZE, "Bytes of the whole buffer, in place of collective.chunk."),
        Key("collective.count", "count", _COUNT, "How many collectives the model computes."),
        Key("collective.reembed_every", "reembed_every", _COUNT, "Collectives after which a new ring is chosen."),
        Key("collective.ring", "ring", one_of(*OBJECTIVES), "Objective that a ring minimizes."),
        Key("collective.emulated", "emulated", _COUNT, "How many of them the emulation measures, from the first on."),
        Key("collective.budget", "budget_s", DELAY, "Longest acceptable time; results tell whether it is kept."),
        Key("run.modes", "modes", _MODES, "Modes to compare: nothing adapts, rings do, WAN paths do, or both."),
        Key("run.referees", "referees", _REFEREES, "References for the times: the best ring, schedule or policy."),
        Key("run.search", "search", _SEARCH, "Time to search for each best schedule, by the solver's own clock."),
        Key("run.seed", "seed", whole(0, MAX_SEED), "Seed of all random numbers."),
        Key("run.clock", "clock", one_of("virtual", "wall"), "Clock of the emulation; wall is real time."),
        Key("run.rate_scale", "scale", _SCALE, "Factor for rates and chunks on the wall clock."),
        Key("transport.line_rate", "line_rate", TRUTH, "Whether flows start at line rate, not in slow start."),
        Key("transport.congestion_control", "congestion_control", _CONTROL, "TCP's congestion control."),
        Key("transport.slow_start_after_idle", "slow_start_after_idle", TRUTH, "Whether idle flows slow-start."),
        Key("transport.rto_min", "rto_min_s", _RTO, "Lower bound of TCP's retransmission timeout, in virtual time."),
        Key("transport.queue", "queue", _QUEUE, "Queueing where flows share a link; the wall clock always uses fifo."),
        Key("transport.ecn_threshold", "ecn_threshold_bytes", _FRAMES, "Fifo queue length that marks frames."),
        Key("program.command", "command", program.COMMAND, "Your own program, run on the GPUs' hosts; also --exec."),
        Key("program.ranks", "ranks", program.RANKS, "GPUs that it runs on, its rank 0 first; by default all."),
        Key("program.env", "env", program.ENV, "Variables of its environment."),
        Key("program.deadline", "deadline_s", DELAY, "Time after which it is ended, by the clock of the run."),
        Key("program.sample", "sample_s", DELAY, "Time between readings of the WAN ports' counters, by that clock."),
        Key("program.patience", "patience_s", DELAY, "Processor time for which virtual time may stand still."),
        Key("program.message", "message_bytes", SIZE, "Size of the messages for which WAN paths are chosen."),
        Key("program.memory", "memory_bytes", SIZE, "Memory for all of its processes."),
        Key("program.output", "output_bytes", SIZE, "How much of a rank's output is kept, and of its error output."),
        Key("program.files", "files_bytes", SIZE, "Room for the files that it writes."),
        Key("program.capture", "capture", program.CAPTURE, "Links whose packets are captured; also --capture."),
        Key("training.pipeline", "pipeline", one_of(*PIPELINES), "Order in which stages process micro-batches."),
        Key("training.micro_batches", "micro_batches", whole(1, 4096), "Micro-batches of a replica in an iteration."),
        Key("training.chunks", "chunks", whole(1, 64), "Model chunks of a stage, for interleaved."),
        Key("training.replicas", "replicas", whole(1, MAX_GPUS_PER_SITE), "Data-parallel replicas of the pipeline."),
        Key(
            "training.across", "across", one_of(*ACROSS), "What sites divide: the stages of replicas, or the replicas."
        ),
        Key("training.forward", "forward_s", DELAY, "Time of a micro-batch's forward pass in a stage."),
        Key("training.backward", "backward_s", DELAY, "Time of a micro-batch's backward pass in a stage."),
        Key("training.weights", "weights_s", DELAY, "Its part for weight gradients, for zero-bubble; by default half."),
        Key("training.activations", "activation_bytes", SIZE, "Bytes of a micro-batch between two stages, each way."),
        Key("training.held", "held_bytes", SIZE, "Bytes kept until a micro-batch's backward; by default as many."),
        Key("training.memory", "memory_bytes", SIZE, "Memory of a GPU for them; by default enough."),
        Key("training.gradients", "gradients", one_of(*GRADIENTS), "Algorithm by which replicas sum their gradients."),
        Key("training.gradient_size", "gradient_bytes", SIZE, "Bytes of a stage's gradients."),
        Key("training.buckets", "buckets", whole(1, 256), "Buckets of gradients, summed during the last backward."),
        Key("training.every", "every", whole(1, 1000), "Iterations per gradient sum; together a collective."),
        Key("control.counted", "counted", TRUTH, "Whether a collective's time includes the reconfiguration before it."),
        Key(
            "control.delay",
            "delay_s",
            _CONTROL_DELAY,
            "One-way delay from the controller to the switches, or to those of each site.",
        ),
        Key("control.probe", "probe_bytes", _PROBE, "Size of a probe; probed knowledge sends one on each path."),
        Key(
            "admission.protect",
            "protect",
            one_of(*admission.PROTECT),
            "What promises to transfers are protected from: nothing, or the failure of any one WAN link.",
        ),
        Key("admission.recovery", "recovery_s", DELAY, "Time reserved before each deadline for a link failure."),
        Key("te.every", "every", _KEPT, "How long tunnel rates are kept, unless a link fails or recovers."),
        Key(
            "te.pieces",
            "pieces",
            whole(1, MAX_PIECES),
            "Pieces into which each WAN message is split; each takes a tunnel.",
            within="fabric",
        ),
        Key(
            "te.demand",
            "demand",
            one_of("requested", te.MEASURED),
            "Demand of a class between two sites: what its jobs request, or what counters of its tunnels measured.",
        ),
        Key("te.sample", "sample_s", _SAMPLE, "Time over which the rate of a measured demand is averaged."),
        Key("job", "jobs", _JOBS, "Jobs that run at the same time in each round, each on its GPUs."),
        Key("class", "classes", _CLASSES, "Traffic classes: their order of service on WAN ports, and their shares."),
        Key("policy", "policies", _POLICIES, "Your own modes: when they choose rings and paths, knowing what."),
        Key("fault", "faults", _FAULTS, "Faults: what fails, when, and for how long."),
    )
}
"""Every key of a scenario except those of [sweep], in the order in which they are written."""

DEFAULTS = Scenario()
_IN_LABEL = ("collective.size", "collective.kind", "collective.algorithm", "training.pipeline")
_OUTERMOST = ("fabric.gpus", "collective.chunk", "conditions.wan_delay")
SWEPT = (
    *_OUTERMOST,
    *(
        key
        for key in KEYS
        if key
        not in (*_OUTERMOST, "name", "fabric.grain", "run.modes", "run.referees", "run.search", "run.clock", "policy")
        and not key.startswith("program.")
    ),
)
"""The keys that a sweep may vary, the outermost axis first.

Modes are not an axis, since every configuration has all of them. Nor is the grain: a rate means something different in
the other grain, so one table of results cannot hold both.
"""


def values_of(scenario: Scenario) -> dict[str, Any]:
    """Return the value of every key, and of every axis of the sweep under "sweep.KEY"."""
    return {key: scenario.value(key) for key in KEYS} | {f"sweep.{axis.key}": axis.values for axis in scenario.sweep}


# --- configurations as JSON -----------------------------------------------------------------------------------------


BEFORE = {"collective.ring": "slowest edge"}
"""Values of runs that were made before these keys existed, if they differ from today's defaults."""


def plain_values(config: Scenario) -> dict[str, Any]:
    """Return the value of every key of a configuration as JSON can hold it: bit/s, bytes, seconds, text, lists."""
    return {key: _to_json_value(KEYS[key].kind, config.value(key)) for key in KEYS}


def configuration(values: Mapping[str, Any], swept: Iterable[str] = ()) -> Scenario:
    """Return the configuration with these `plain_values`, unchecked; keys that an older run lacks have the values of
    BEFORE or their defaults.

    `swept` are the keys in which it differs from the other configurations of its sweep.
    """
    read = BEFORE | {key: _from_json_value(KEYS[key].kind, value) for key, value in values.items()}
    return replace(DEFAULTS.with_values(read), at=tuple((key, read[key]) for key in swept))


def to_json(config: Scenario) -> str:
    """Write a checked configuration as text for another process; `from_json` is the inverse."""
    return json.dumps({"values": plain_values(config), "swept": [key for key, _ in config.at]})


def from_json(text: str | bytes) -> Scenario:
    """Return the configuration that `to_json` wrote."""
    return configuration(**json.loads(text))


def _to_json_value(kind: Kind, value: Any) -> Any:
    if kind.is_object and value is not None:
        return kind.write(value)
    return [_to_json_value(kind, item) for item in value] if isinstance(value, tuple) else value


def _from_json_value(kind: Kind, stored: Any) -> Any:
    if kind.is_object and stored is not None:
        return kind.read(stored)
    return tuple(_from_json_value(kind, item) for item in stored) if isinstance(stored, list) else stored


def settings_as_json(scenario: Scenario) -> list[dict[str, Any]]:
    """Return every configuration as stored in settings.json: the swept values, the value of every key, the fabric that
    the result rows refer to, the schedule, traffic classes and jobs if it has any, and for each mode the shared
    links."""
    return [
        {
            "setting": index,
            "label": config.label,
            "swept": {key: _to_json_value(KEYS[key].kind, value) for key, value in config.at},
            "columns": config.columns,
            "values": plain_values(config),
            "fabric": _fabric_as_json(build_fabric(config.fabric)),
            "schedule": _schedule_as_json(config.workload),
            "classes": classes.of_flows(config.classes, config.workload.dscp) if config.classes else None,
            "jobs": [
                {"name": one.name, "start_s": one.start_s, "background": one.is_background} | _works_as_json(one)
                for one in config.workload.jobs
            ],
            "shared_links": {mode: list(config.shared_links(mode)) for mode in config.run.modes},
            **_admission_as_json(config),
        }
        for index, config in enumerate(scenario.configurations())
    ]


def _admission_as_json(config: Scenario) -> dict[str, Any]:
    """Return a configuration's transfers with outcomes, if any, each with the range of its schedule's transfers."""
    spans = {one.name: [one.transfers.start, one.transfers.stop] for one in config.workload.jobs}
    transfers = [one.as_json() | {"transfers": spans.get(one.job.name, [0, 0])} for one in config.transfers]
    return {"admission": transfers} if transfers else {}


def _works_as_json(job: JobSpan) -> dict[str, Any]:
    """Return the computations at each place of a training job, and the range of its transfers in the schedule."""
    if not job.computations:
        return {}
    return {"transfers": [job.transfers.start, job.transfers.stop], "places": job.places, "works": job.computations}


def _schedule_as_json(workload: Workload) -> dict[str, Any]:
    """Return a workload's schedule: of each flow the two places that it joins and its channel (of a stream its
    place and number); of each transfer its flow, its slots or seconds, the transfers it waits for, and the place
    whose block it begins with, if any. Transfers from index `waited_for` on are background traffic. `works` is what
    each place computes in training, in order."""
    flows = [list(astuple(flow)) for flow in workload.schedule.flows]
    transfers = [[one.flow, one.amount, list(one.after), workload.owner(one)] for one in workload.schedule.transfers]
    return {
        "algorithm": workload.algorithm,
        "slot_bytes": workload.slot_bytes,
        "flows": flows,
        "transfers": transfers,
        "waited_for": len(workload.foreground_transfers),
        "works": workload.computations,
    }


def _fabric_as_json(fabric: Fabric) -> dict[str, Any]:
    kinds = {"intra": "gpu-gpu", "to_br": "gpu-br", "from_br": "br-gpu", "wan": "wan"}
    routers = fabric.border_routers
    return {
        "gpus": [{"rank": g.rank, "name": g.name, "site": g.site, "leaf": g.leaf} for g in fabric.gpus],
        "border_routers": [{"name": name, "site": site} for name, site in zip(routers, fabric.br_sites, strict=True)],
        "transit": [switch.name for switch in fabric.switches if switch.kind == "transit"],
        "links": [{"index": ln.index, "src": ln.src, "dst": ln.dst, "kind": kinds[ln.kind]} for ln in fabric.links],
        "paths": [
            {"index": p.index, "links": list(p.links), "src_br": routers[p.src_br], "dst_br": routers[p.dst_br]}
            for p in fabric.paths
        ],
    }
