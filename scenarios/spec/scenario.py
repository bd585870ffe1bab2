"""The scenario language: every key once, what values may be together, and the configurations that a sweep spans.

In a scenario file, `NAME = value` in `[TABLE]` is the key "TABLE.NAME". KEYS declares each: the field that holds its
value (the field's default is the key's), its kind (unit, range, how it is written) and what it means. A configuration
is a scenario without a sweep. Files are read by `load`.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from analysis.model.optimum import COPIED, MOST_GPUS
from hosts.agent.transport import Transport
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, OWN_SIZES, TRACE, TRAINING, JobSpan, Workload
from hosts.collectives.schedule import ScheduleError
from hosts.collectives.training import ACROSS, GRADIENTS, PIPELINES, Training
from hosts.embedding.ring import MAX_EXACT_GPUS, OBJECTIVES
from scenarios.policies import policy
from scenarios.policies.decide import probes_of, rank_order_of, routes_greedily, shared_links
from scenarios.policies.knowledge import LATE, PORTS, PROBED
from scenarios.policies.policy import MODES, Mode
from scenarios.spec import admission, classes, faults, jobs, program, te
from scenarios.spec.admission import TRANSFER, AdmissionPlan, AdmissionSpec, Transfer
from scenarios.spec.classes import ClassSpec
from scenarios.spec.collective import CollectiveSpec, carried, routed, workload_of
from scenarios.spec.faults import Fault
from scenarios.spec.jobs import JobSpec, workload_of_jobs
from scenarios.spec.program import ProgramSpec
from scenarios.spec.te import TeSpec
from scenarios.spec.training import TrainingPlan
from scenarios.spec.values import (
    DELAY,
    NAME,
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
from topologies.conditions import links, sampler
from topologies.conditions.sampler import LEAST_EVERY_S, MAX_COEFFICIENT, SAMPLERS, ConditionsSpec
from topologies.errors import Mistake, SpecError, beside, did_you_mean, first_of, shown
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
from topologies.shaping.rate_scale import EVERYTHING, MAX_DIVISOR, RateScale, ScaleError

MAX_COLLECTIVES = 10_000_000
MAX_PROBES = 400  # whose connections are there at once
LEAST_CHANGE_S = 0.005  # after which Open vSwitch's kernel flows are looked over again (`scenarios.vm.openvswitch`)
LEAST_PROBE_BYTES, MAX_PROBE_BYTES = 10_000, 1_000_000
MAX_CONTROL_DELAY_S = 1.0  # of a change of rules, which takes a round trip, the controller waits for 5 s
MAX_SEED = 2**63 - 1
_MOST_S = 1000.0
MAX_AXIS_VALUES = 100
LEAST_LOSS, MAX_LOSS = 1e-9, 0.1  # of frames: netem counts in 2^-32, and agents do not wait for TCP without end
MAX_OPTIMUM = 300
"""Most collectives whose best policy is searched for: that takes the square of what all modes choose for them."""
MAX_SETTINGS = 1000
"""Most configurations that the axes of [sweep] may span together."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What is compared, and by what it is measured; the seed of everything random; the clock and the rate scale of the
    emulation."""

    modes: tuple[str, ...] = tuple(MODES)
    referees: tuple[str, ...] = ()
    search: float = 2.0
    seed: int = 1
    clock: str = "virtual"
    scale: RateScale = EVERYTHING

    @property
    def is_real(self) -> bool:
        """Whether the emulation runs in real time."""
        return self.clock == "wall"


@dataclass(frozen=True, kw_only=True)
class ControlSpec:
    """The control plane: whether the time that it takes to change ring and paths is part of a collective's, the delay
    from the controller to the switches, one way, the same everywhere or of each site, None on one machine; and the size
    of a probe."""

    counted: bool = False
    delay_s: float | tuple[float, ...] | None = None
    probe_bytes: int = 250_000


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep: a key and its values (GPUs per site, bytes, seconds ...), in the order given."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One experiment: every mode in its run, at every configuration that its sweep spans.

    Of one of those configurations, `at` are the swept keys and their values there.
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
        """GPUs over all sites."""
        return sum(self.fabric.gpus_per_site)

    @property
    def workload(self) -> Workload:
        """What every collective, or every round of jobs, does; raises ScheduleError where that makes no sense."""
        if self.jobs:
            sites, seed = self.fabric.gpus_per_site, self.run.seed
            found = workload_of_jobs(
                self.jobs,
                self.collective,
                self.classes,
                sites=sites,
                seed=seed,
                training=self.training_plan,
                admission=self.admission_plan,
            )
        elif self.training_plan is not None:
            found = self.training_plan.workload(range(self.gpus))
        else:
            found = workload_of(self.collective, self.fabric.gpus_per_site)
        return routed(found, self.fabric)

    @property
    def kinds(self) -> set[str]:
        """The kinds of what a configuration repeats: of its collective, or of its jobs."""
        return {job.collective(self.collective).kind for job in self.jobs} or {self.collective.kind}

    @property
    def training_plan(self) -> TrainingPlan | None:
        """The training of a configuration; None where neither its collective nor a job is any."""
        if TRAINING not in self.kinds:
            return None
        return TrainingPlan(self.training, self.fabric, self.conditions, self.run.seed)

    @property
    def admission_plan(self) -> AdmissionPlan | None:
        """What the transfers of a configuration ask; None where no job is any."""
        if all(job.kind != TRANSFER for job in self.jobs):
            return None
        dead = faults.dead_cables([one for one in self.faults if one.is_throughout], build_fabric(self.fabric))
        return AdmissionPlan(self.admission, self.fabric, self.conditions, self.classes, dead)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """What becomes of the transfers of a configuration."""
        plan = self.admission_plan
        return () if plan is None else plan.transfers(self.jobs)

    @property
    def carried(self) -> Workload:
        """The workload that the emulation of a configuration carries, at its rate scale."""
        return carried(self.workload, self.run.scale)

    @property
    def control_delays_s(self) -> tuple[float, ...]:
        """The delay from the controller to the switches of each site, one way; empty where there is none."""
        delay_s = self.control.delay_s
        return (delay_s,) * len(self.fabric.gpus_per_site) if isinstance(delay_s, float) else delay_s or ()

    def mode(self, name: str) -> Mode:
        """The mode of this name, a built-in one or a policy of the scenario's own."""
        return self.modes[name]

    @property
    def modes(self) -> Mapping[str, Mode]:
        """The modes that there are, by name."""
        return MODES | {one.name: one for one in self.policies}

    def value(self, key: str) -> Any:
        """The value of a key: a number in bit/s, bytes or seconds, text, a tuple, or a spec of its own."""
        declared = KEYS[key]
        return getattr(getattr(self, declared.owner) if declared.owner else self, declared.attribute)

    def with_values(self, values: Mapping[str, Any]) -> "Scenario":
        """This scenario with other values of these keys."""
        changes: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            changes.setdefault(KEYS[key].owner, {})[KEYS[key].attribute] = value
        own = changes.pop("", {})
        return replace(self, **own, **{name: replace(getattr(self, name), **new) for name, new in changes.items()})

    def settings(self) -> tuple["Scenario", ...]:
        """The configurations, one for each combination of swept values, the last axis varying fastest; made once."""
        return self._settings

    @cached_property
    def _settings(self) -> tuple["Scenario", ...]:
        plain, found = replace(self, sweep=()), []
        for values in itertools.product(*(axis.values for axis in self.sweep)):
            at = dict(zip((axis.key for axis in self.sweep), values, strict=True))
            one = replace(plain.with_values(at), at=tuple(at.items()))
            one = replace(one, collective=one.collective.with_chunk(one.gpus))
            is_trace = one.conditions.sampler == "trace"
            found.append(one if is_trace else replace(one, conditions=replace(one.conditions, trace=None)))
        return tuple(found)

    @cached_property
    def label(self) -> str:
        """The configuration in words: "8 GPUs, 64 MB, 10 us", and whatever else was swept.

        A single number of GPUs is two sites of half as many each; other fabrics have theirs by site, "4+4+4+4 GPUs".
        """
        sites = self.fabric.gpus_per_site
        gpus = self.gpus if sites == sites[:1] * 2 else "+".join(map(str, sites))
        wan, delay = self.fabric.wan, units.format_delay(self.conditions.wan_delay_s)
        if any(one.delay_s is not None for one in self.conditions.links):
            delay = f"delays by link, else {delay}"
        words = [f"{gpus} GPUs", *self._named, (wan.name or "own WAN") if wan.km else delay]
        if self.conditions.links and "conditions.links" not in dict(self.at):
            words.append(f"links {first_of([one.links for one in self.conditions.links], 3)}")
        for key, value in self.at:
            is_named = key == "fabric.wan" and value.km
            if not is_named and (key not in (*_OUTERMOST, *_IN_LABEL) or (self.jobs and key == "training.pipeline")):
                if key in (
                    "job",
                    "class",
                    "conditions.links",
                    "fault",
                ):  # tables are too long; how many jobs there are has been said
                    words.append(", ".join(one.words for one in value) or f"without {KEYS[key].attribute}")
                    continue
                written = KEYS[key].kind.write(value)
                name = "controller delay" if key == "control.delay" else key.partition(".")[2].replace("_", " ")
                words.append(f"{name} {str(written).lower() if isinstance(written, bool) else written}")
        if self.fabric.grain != DEFAULTS.fabric.grain:
            words.append(f"{self.fabric.grain} grain")
        if self.fabric.rails is not None and "fabric.rails" not in dict(self.at):
            words.append(f"{self.fabric.rails} rail{'s' * (self.fabric.rails != 1)}")
        if self.fabric.routing != DEFAULTS.fabric.routing and "fabric.routing" not in dict(self.at):
            words.append(self.fabric.routing)
        if self.run.is_real:
            carried = units.format_size(self.run.scale.chunk_bytes(self.collective.chunk_bytes))
            size = f" with {carried}" if self.kinds - {*OWN_SIZES} else ""
            scaled = "" if self.run.scale == EVERYTHING else f" at {self.run.scale} of the rates{size}"
            words.append(f"wall clock{scaled}")
        return ", ".join(words)

    @property
    def _named(self) -> Iterator[str]:
        """The collective in words, its kind where it is not the paper's, and its size."""
        spec = self.collective
        if self.jobs:
            yield f"{len(self.jobs)} job{'s' * (len(self.jobs) != 1)}"
        if spec.kind == TRAINING and not self.jobs:
            yield f"training {self.training.pipeline}"
            yield self.training.words(self.gpus)
            return
        if (spec.kind, spec.algorithm) != (DEFAULTS.collective.kind, DEFAULTS.collective.algorithm):
            yield f"{spec.kind} {spec.algorithm or ''}".strip()
        of_collective = not self.jobs and spec.kind not in OWN_SIZES
        if of_collective or any(job.has_default_size(spec) for job in self.jobs):
            yield units.format_size(spec.chunk_bytes if spec.size_bytes is None else spec.size_bytes)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The columns that results have for what was swept, beside those that all results have."""
        return {
            f"{key}_s" if KEYS[key].kind.unit == DELAY.unit and key != "control.delay" else key: (
                value
                if isinstance(value, bool | int | float | str) and key != "control.delay"  # or sites have their own
                else (key == "fabric.wan" and value.name) or str(KEYS[key].kind.write(value))
            )
            for key, value in self.at
            if key not in (*_OUTERMOST, "run.seed")
        }

    def shared_links(self, mode: str) -> tuple[str, ...]:
        """The logical links or ports, by name, that two flows of a configuration's collective can use at once."""
        fabric, every = build_fabric(self.fabric), [[fault] for fault in self.faults]
        dead = dict.fromkeys(faults.dead_cables(struck, fabric) for struck in (*every, self.faults))
        detours = tuple(cables for cables in dead if cables)
        return shared_links(fabric, self.workload, self.mode(mode), detours=detours)

    def keeps_rates(self, mode: Mode) -> int:
        """For how many collectives a mode goes by the same rates of links: those by which tunnels have theirs."""
        return self.te.collectives if self.fabric.routing == te.ROUTING and not mode.reroutes else 1

    def has_course(self, mode: str) -> bool:
        """Whether what a mode chooses anew when is more than a matter of the collectives' numbers."""
        chosen_by = self.mode(mode)
        return not chosen_by.is_periodic or (chosen_by.keeps_paths and bool(self.faults))

    def measures_demands(self, mode: Mode) -> bool:
        """Whether tunnels have their rates in a mode by what was measured of demands."""
        is_engineered = self.fabric.routing == te.ROUTING and not mode.reroutes
        return is_engineered and self.te.demand == te.MEASURED

    def routes_greedily(self, mode: str) -> bool:
        """Whether a mode chooses WAN paths of a configuration's collective greedily, as there are too many."""
        return routes_greedily(build_fabric(self.fabric), self.workload, self.mode(mode))

    def searches_rings(self, mode: str) -> bool:
        """Whether a mode searches for the rings of a configuration's collective, as a site is too large to be exact."""
        too_large = max(self.fabric.gpus_per_site) > MAX_EXACT_GPUS
        return too_large and self.mode(mode).reembeds and self.workload.is_ring

    @property
    def has_best_ring(self) -> bool:
        """Whether the fastest ring is known: of an allgather of whole blocks around one ring whose edges share no link,
        where conditions do not change by time."""
        spec = self.collective
        is_plain = self.workload.is_ring and (spec.kind, spec.channels, spec.pieces) == ("allgather", 1, 1)
        return is_plain and self.conditions.every_s is None and not self.shared_links("joint")

    @property
    def has_best_schedule(self) -> bool:
        """Whether the best schedule of whole blocks can be searched for: of collectives that add nothing, where each
        message takes one way, of those between its GPUs that the search knows, and conditions do not change by time."""
        spec, fabric = self.collective, self.fabric
        is_whole = spec.kind in COPIED and spec.schedule is None and (spec.channels, spec.pieces) == (1, 1)
        has_ways = fabric.routing == "single" or (fabric.routing == "ecmp" and fabric.grain == "logical")
        is_small = self.gpus <= MOST_GPUS and not fabric.has_planes
        return is_whole and has_ways and is_small and self.conditions.every_s is None

    @property
    def searches_schedules(self) -> bool:
        """Whether best schedules are searched for."""
        return "schedule" in self.run.referees and self.has_best_schedule

    def fair_links(self, mode: str) -> tuple[str, ...] | None:
        """The links or ports that the emulation's flows share fairly in a mode; None where it queues in fifo.

        In real time a timer may be later than what a fair share takes, so there queues are as if nothing were shared.
        So they are for logical links of which none is shared. A way of many ports needs the short segments of fair
        queues in any case: long ones wait at each port that is slower than the last. So does a way whose rates change
        while messages are on it, as what has been queued behind a link does not heed its new rate. Jobs have it always,
        so that each is measured as it is alone while nothing overlaps.
        """
        if self.run.is_real or self.transport.queue == "fifo":
            return None
        shared = self.shared_links(mode)
        is_short = self.fabric.grain == "physical" or self.conditions.every_s is not None
        is_short = is_short or self.fabric.routing == te.ROUTING or bool(self.jobs)
        return shared if shared or is_short else None


@dataclass(frozen=True)
class Key:
    """One key of a scenario: the field that holds it, its kind, its meaning, and the samplers that heed it.

    `within` is the scenario's field that holds that, where it is not of the table's name.
    """

    name: str
    attribute: str
    kind: Kind
    meaning: str
    samplers: tuple[str, ...] = SAMPLERS
    within: str | None = None

    @property
    def table(self) -> str:
        """The table that it is in, "" for those of the scenario itself."""
        return self.name.rpartition(".")[0]

    @property
    def owner(self) -> str:
        """The scenario's field whose attribute it is, "" for the scenario itself."""
        return self.table if self.within is None else self.within


def _tables(name: str, read: Callable[[list[object]], Sequence[Any]]) -> Kind:
    """A list of tables, each of which is an object that can be `written`."""
    return Kind(f"[[{name}]] tables", (list,), read, lambda found: [one.written() for one in found], is_object=True)


def _ratios(given: list[object]) -> tuple[float, ...]:
    if len(given) > 2:
        raise ValueError(f"{shown(given)} has {len(given)} numbers; allowed: {_RATIOS.allowed}")
    return tuple(map(_RATIO.read, given))


_TITLE = texts("1 to 64 letters, digits, '-', '_' and '.'", re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}").fullmatch)
_FILE = texts(
    "the path of a CSV file of time, link and rate, in printable text", lambda text: text and text.isprintable(), Path
)
_ALGORITHM = one_of(*dict.fromkeys(chain.from_iterable(ALGORITHMS.values())))
_COUNT = whole(1, MAX_COLLECTIVES, "collectives")
_SHARE = numbers((int, float), 0, 10**15, "share of the highest rate")
_LOSS = numbers((int, float), LEAST_LOSS, MAX_LOSS, "share of frames", or_zero=True)
_SEARCH = numbers((int, float), 0.01, 1000, "some seconds of a processor")
_TFLOPS = numbers((int, float), 0.001, 10**9)
_STAY = numbers((int, float), 1, 10**15, "collectives")
_COEFFICIENT = numbers((int, float), 0, MAX_COEFFICIENT)
_ONE_DELAY = quantity(units.DELAY, "5 ms", (1e-9, MAX_CONTROL_DELAY_S))
_EVERY = quantity(units.DELAY, "100 ms", (LEAST_EVERY_S, _MOST_S))
_SAMPLE = quantity(units.DELAY, "10 ms", (te.LEAST_SAMPLE_S, _MOST_S))
_PROBE = quantity(units.SIZE, "250 kB", (LEAST_PROBE_BYTES, MAX_PROBE_BYTES))
_FRAMES = quantity(units.SIZE, "500 kB", (FRAME_BYTES, MAX_BUFFER_BYTES), " (one frame)")
_CONTROL_DELAY = Kind(
    f"{_ONE_DELAY.allowed}, or a list of one for a site",
    (str, list),
    lambda given: tuple(map(_ONE_DELAY.read, given)) if isinstance(given, list) else _ONE_DELAY.read(given),
    lambda found: list(map(_ONE_DELAY.write, found)) if isinstance(found, tuple) else _ONE_DELAY.write(found),
    unit=DELAY.unit,
)
_RTO = quantity(units.DELAY, "10 ms", (1e-3, 1.0))
_KEPT = Kind(
    f"{_COUNT.allowed} for collectives, or {_SAMPLE.allowed.replace('10 ms', '100 ms')}",
    (int, str),
    lambda given: _SAMPLE.read(given) if isinstance(given, str) else _COUNT.read(given),
    lambda found: _SAMPLE.write(found) if isinstance(found, float) else found,
)
_SCALE = Kind(
    f'text such as "1/1000", 1 to 1/{MAX_DIVISOR}', (str, int), lambda n: RateScale.parse(str(n)), str, is_object=True
)
_MODE = texts("the name of a mode", NAME.fullmatch)
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
    lambda ratios: _ratios(ratios) if isinstance(ratios, list) else (_RATIO.read(ratios),),
    lambda ratios: ratios[0] if len(ratios) == 1 else list(ratios),
)
_FAULTS = _tables("fault", faults.read)
_JOBS = _tables("job", jobs.read)
_CLASSES = _tables("class", classes.read)
_LINKS = Kind("a table of links, each with a rate, a delay or both", (dict,), links.read, links.write, is_object=True)
_POLICIES = _tables("policy", policy.read)
_CONTROL, _QUEUE = one_of("cubic", "reno", "bbr", "dctcp"), one_of("fair", "fifo")
_DRAWN = SAMPLERS[:4]
_GAUSSIAN, _MARKOV, _AR1, _TRACE = ("gaussian",), ("markov",), ("ar1",), ("trace",)

KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key("name", "name", _TITLE, "The scenario's name."),
        Key("fabric.gpus", "gpus_per_site", _GPUS, "How many GPUs there are, over two sites or in each site."),
        Key("fabric.leaves", "leaves", _SWITCHES, "Leaf switches of a site, over which its GPUs are divided."),
        Key("fabric.spines", "spines", _SWITCHES, "Spine switches of a site."),
        Key("fabric.border_routers", "border_routers", _SWITCHES, "Routers of a site that have WAN links."),
        Key("fabric.wan", "wan", _WAN, "The WAN between border routers: a preset, a map, or routers and links."),
        Key("fabric.sites", "sites", _NODES, "The nodes of the map that the sites stand at."),
        Key(
            "fabric.paths",
            "paths",
            whole(1, MAX_PATHS),
            "How many paths join two border routers, the shortest; all of a table, four or more of a map.",
        ),
        Key("fabric.grain", "grain", one_of(*GRAINS), "What has a rate: links of every two GPUs, or ports of cables."),
        Key(
            "fabric.routing", "routing", one_of(*ROUTINGS), "What flows take where a mode does not choose their paths."
        ),
        Key(
            "fabric.rails",
            "rails",
            _TIER,
            "Planes on each of which a GPU has a port of its share of the rate, in place of leaves and spines.",
        ),
        Key(
            "fabric.oversubscription",
            "oversubscription",
            _RATIOS,
            "What the leaves' ports down have over those up, and the spines'; all alike, if not given.",
        ),
        Key("fabric.hash_seed", "hash_seed", whole(0, MAX_HASH_SEED), "Seed of the hash by which ecmp chooses."),
        Key(
            "fabric.buffer",
            "buffer_bytes",
            _FRAMES,
            "Room in a link's fifo queue; all that comes, if not given.",
            within="transport",
        ),
        Key(
            "fabric.wan_loss",
            "wan_loss",
            _LOSS,
            "How many frames each WAN link loses at random, with a buffer; not in the model.",
            within="transport",
        ),
        Key("conditions.sampler", "sampler", one_of(*SAMPLERS), "Where each link's available bandwidth comes from."),
        Key("conditions.intra_rate", "intra_rate_bps", RATES, "Range of available bandwidths within a site."),
        Key("conditions.wan_rate", "wan_rate_bps", RATES, "Range of available WAN bandwidths.", _DRAWN),
        Key("conditions.intra_delay", "intra_delay_s", DELAY, "Propagation delay of a link within a site."),
        Key("conditions.wan_delay", "wan_delay_s", DELAY, "Propagation delay of a WAN link."),
        Key("conditions.mean", "mean", _SHARE, "Mean of the bandwidths before they are clipped.", _GAUSSIAN),
        Key("conditions.deviation", "deviation", _SHARE, "Their standard deviation before clipping.", _GAUSSIAN),
        Key("conditions.mean_stay", "mean_stay", _STAY, "Mean time until a link's bandwidth changes.", _MARKOV),
        Key("conditions.coefficient", "coefficient", _COEFFICIENT, "How much of it stays a collective later.", _AR1),
        Key("conditions.trace", "trace", _FILE, "Recorded bandwidths; relative to the scenario's file.", _TRACE),
        Key("conditions.trace_step", "trace_step_s", DELAY, "The trace's time between two collectives.", _TRACE),
        Key(
            "conditions.links", "links", _LINKS, "Links with rates and delays of their own, by class, pattern or name."
        ),
        Key("conditions.every", "every_s", _EVERY, "Time until conditions change; if not given a collective."),
        Key("conditions.interval", "interval_s", _EVERY, "Time from one collective to the next, with every.", _DRAWN),
        Key(
            "collective.kind",
            "kind",
            one_of(*ALGORITHMS, MESSAGES, TRAINING, TRACE),
            "The collective that is repeated.",
        ),
        Key("collective.algorithm", "algorithm", _ALGORITHM, "Its algorithm; by default the first of its kind."),
        Key("collective.channels", "channels", whole(1, 64), "Rings at once, every other one the other way round."),
        Key("collective.pieces", "pieces", whole(1, 4096), "Messages that each block is sent as, which pipelines."),
        Key("collective.schedule", "schedule", SCHEDULE_FILE, "A schedule; relative to the scenario's file."),
        Key("collective.tflops", "tflops", _TFLOPS, "10^12 operations a second of a GPU, for the num_ops of a trace."),
        Key("collective.chunk", "chunk_bytes", SIZE, "Bytes of a block: what each GPU contributes to an allgather."),
        Key("collective.size", "size_bytes", SIZE, "Bytes of the whole buffer, in place of collective.chunk."),
        Key("collective.count", "count", _COUNT, "How many collectives the model computes."),
        Key("collective.reembed_every", "reembed_every", _COUNT, "How many collectives use a ring before a new one."),
        Key("collective.ring", "ring", one_of(*OBJECTIVES), "What a ring is chosen to have the least of."),
        Key("collective.emulated", "emulated", _COUNT, "How many of them the emulation measures, from the first."),
        Key("collective.budget", "budget_s", DELAY, "What each should take at most; results say whether it does."),
        Key("run.modes", "modes", _MODES, "What is compared: nothing adapts, the ring does, the paths do, or both."),
        Key("run.referees", "referees", _REFEREES, "What times are stored beside: the best ring, schedule or policy."),
        Key("run.search", "search", _SEARCH, "How long each best schedule is searched for, by the search's own clock."),
        Key("run.seed", "seed", whole(0, MAX_SEED), "Seed of everything random."),
        Key("run.clock", "clock", one_of("virtual", "wall"), "Clock of the emulation; wall is real time."),
        Key("run.rate_scale", "scale", _SCALE, "What rates and chunks are multiplied by on the wall clock."),
        Key("transport.line_rate", "line_rate", TRUTH, "Whether flows start at line rate, not in slow start."),
        Key("transport.congestion_control", "congestion_control", _CONTROL, "TCP's congestion control."),
        Key("transport.slow_start_after_idle", "slow_start_after_idle", TRUTH, "Whether idle flows slow-start."),
        Key(
            "transport.rto_min", "rto_min_s", _RTO, "TCP's lower bound of its retransmission timeout, in virtual time."
        ),
        Key("transport.queue", "queue", _QUEUE, "How flows wait where they share a link; on the wall clock in fifo."),
        Key(
            "transport.ecn_threshold",
            "ecn_threshold_bytes",
            _FRAMES,
            "Above what a fifo queue marks frames, for dctcp.",
        ),
        Key(
            "program.command", "command", program.COMMAND, "A program of your own, run on the GPUs' hosts; also --exec."
        ),
        Key("program.ranks", "ranks", program.RANKS, "The GPUs that it runs on, its rank 0 first; all, if not given."),
        Key("program.env", "env", program.ENV, "Variables of its environment."),
        Key("program.deadline", "deadline_s", DELAY, "When it is ended, by the run's own clock."),
        Key("program.sample", "sample_s", DELAY, "How often the WAN's ports are looked at, by that clock."),
        Key("program.patience", "patience_s", DELAY, "Time of a processor in which virtual time may stand still."),
        Key("program.message", "message_bytes", SIZE, "What WAN paths are chosen for: a message from each GPU."),
        Key("program.memory", "memory_bytes", SIZE, "Memory for all of its processes."),
        Key("program.output", "output_bytes", SIZE, "What is kept of a rank's output, and of its errors."),
        Key("program.files", "files_bytes", SIZE, "Room for the files that it writes."),
        Key("program.capture", "capture", program.CAPTURE, "Links whose packets are kept; also --capture."),
        Key("training.pipeline", "pipeline", one_of(*PIPELINES), "The order in which stages take micro-batches."),
        Key("training.micro_batches", "micro_batches", whole(1, 4096), "Micro-batches of an iteration, a replica's."),
        Key("training.chunks", "chunks", whole(1, 64), "Parts of the model that a stage has, of interleaved."),
        Key("training.replicas", "replicas", whole(1, MAX_GPUS_PER_SITE), "Copies of the model, each of the stages."),
        Key("training.across", "across", one_of(*ACROSS), "What the sites divide: each replica, or the replicas."),
        Key("training.forward", "forward_s", DELAY, "Time of a micro-batch's forward in a stage."),
        Key("training.backward", "backward_s", DELAY, "Time of its backward."),
        Key("training.weights", "weights_s", DELAY, "Its part for weights, of zero-bubble; by default half."),
        Key("training.activations", "activation_bytes", SIZE, "Bytes from a stage to the next, and back, of each."),
        Key("training.held", "held_bytes", SIZE, "Bytes that a stage keeps until a backward; as many, if not given."),
        Key("training.memory", "memory_bytes", SIZE, "What a GPU has for them; enough, if not given."),
        Key("training.gradients", "gradients", one_of(*GRADIENTS), "How replicas sum their gradients."),
        Key("training.gradient_size", "gradient_bytes", SIZE, "Bytes of a stage's gradients."),
        Key("training.buckets", "buckets", whole(1, 256), "Parts in which they are summed during the last backward."),
        Key("training.every", "every", whole(1, 1000), "Iterations from a sum to the next, which are a collective."),
        Key("control.counted", "counted", TRUTH, "Whether collectives last from when their conditions are known."),
        Key(
            "control.delay",
            "delay_s",
            _CONTROL_DELAY,
            "Delay from the controller to switches, one way, or of each site.",
        ),
        Key("control.probe", "probe_bytes", _PROBE, "Bytes of a probe, of which probed knowledge has one a path."),
        Key(
            "admission.protect",
            "protect",
            one_of(*admission.PROTECT),
            "What promises to transfers are protected from: nothing, or the failure of any one WAN link.",
        ),
        Key("admission.recovery", "recovery_s", DELAY, "Left before each deadline for a link that fails meanwhile."),
        Key("te.every", "every", _KEPT, "How long the rates of tunnels are kept, unless a link changes."),
        Key(
            "te.pieces",
            "pieces",
            whole(1, MAX_PIECES),
            "Of each message over the WAN, which tunnels are given to.",
            within="fabric",
        ),
        Key(
            "te.demand",
            "demand",
            one_of("requested", te.MEASURED),
            "What a class wants from a site to another: what its jobs request, or what its tunnels' counters showed.",
        ),
        Key("te.sample", "sample_s", _SAMPLE, "Over how long a measured demand's rate is."),
        Key("job", "jobs", _JOBS, "What runs at once in a round, each job on its GPUs."),
        Key("class", "classes", _CLASSES, "Whose traffic WAN ports serve first, and how much of it."),
        Key("policy", "policies", _POLICIES, "When rings and paths are chosen anew, and by what knowledge."),
        Key("fault", "faults", _FAULTS, "What fails, when, and for how long."),
    )
}
"""Every key of a scenario but those of [sweep], in the order in which they are written."""

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

Every configuration has all modes anyway, and a rate is another thing in another grain, so no table has both.
"""


def values_of(scenario: Scenario) -> dict[str, Any]:
    """The value of every key, and of every axis of the sweep as "sweep.KEY"."""
    return {key: scenario.value(key) for key in KEYS} | {f"sweep.{axis.key}": axis.values for axis in scenario.sweep}


# --- what is wrong with values together -----------------------------------------------------------------------------


def inconsistencies(scenario: Scenario, unread: Set[str]) -> Iterator[Mistake]:
    """What is wrong with a scenario's values together, each of them being right.

    `unread` are tables with a value that is wrong by itself, in place of which the scenario has the default: what rests
    on those is not looked at.
    """
    spanned = math.prod(len(axis.values) for axis in scenario.sweep)
    if spanned > MAX_SETTINGS:
        yield Mistake("sweep", f"its axes span {spanned:,} settings; allowed: {MAX_SETTINGS:,} at most")
        return
    settings, mistakes = scenario.settings(), list[Mistake]()
    if "run" not in unread and not any(table.startswith("policy") for table in unread):
        mistakes += _of_modes(scenario)
    fabrics: dict[FabricSpec, Fabric] = {}
    if "fabric" not in unread:
        for spec in dict.fromkeys(one.fabric for one in settings):
            with _collected(mistakes):
                fabrics[spec] = build_fabric(spec)
    if "conditions" not in unread:
        for conditions in dict.fromkeys(one.conditions for one in settings):
            with _collected(mistakes):
                sampler.check(conditions)
    if not unread & {"run", "collective"}:
        for run in dict.fromkeys(one.run for one in settings):
            mistakes += _of_scale(run)
    if not mistakes and not unread:
        for one in settings:
            with _collected(mistakes):  # training is planned for the conditions, and a trace may not be there
                mistakes += [
                    *_of_program(one, fabrics[one.fabric]),
                    *_of_workload(one),
                    *_of_queue(one),
                    *_of_classes(one),
                    *_of_time(one),
                    *_of_control(one),
                    *_of_probes(one),
                    *_of_referees(one),
                    *_of_te(one),
                ]
        mistakes += [] if mistakes else _of_bests(scenario)
        for spec, struck, count in dict.fromkeys((one.fabric, one.faults, one.collective.count) for one in settings):
            mistakes += faults.check(struck, fabrics[spec], count=count)
        for spec, conditions, count in dict.fromkeys((s.fabric, s.conditions, s.collective.count) for s in settings):
            with _collected(mistakes):
                sampler.check_links(fabrics[spec], conditions)
                mistakes += _of_trace(fabrics[spec], conditions, count)
    yield from dict.fromkeys(mistakes)


@contextmanager
def _collected(mistakes: list[Mistake]) -> Iterator[None]:
    """Add the mistakes of a SpecError raised within to `mistakes`."""
    try:
        yield
    except SpecError as error:
        mistakes += error.mistakes


def _of_modes(scenario: Scenario) -> Iterator[Mistake]:
    """Whether there are the modes that are compared, and whether what they go by is there."""
    for name in scenario.run.modes:
        if name not in scenario.modes:
            allowed = f"{', '.join(scenario.modes)}{did_you_mean(name, scenario.modes)}"
            yield Mistake("run.modes", f"{shown(name)} is not known; allowed: {allowed}")
        elif scenario.run.is_real and scenario.mode(name).knowledge.kind in (PORTS, PROBED):
            text = f"{name} goes by {scenario.mode(name).knowledge} beside the wall clock"
            yield Mistake("run.modes", f"{text}; allowed: the virtual clock, or any other knowledge")


def _of_scale(run: RunSpec) -> Iterator[Mistake]:
    """Virtual time needs no scale, and would not show it."""
    if not run.is_real and run.scale != EVERYTHING:
        yield Mistake("run.rate_scale", f"{run.scale} is for the wall clock; allowed: 1 with the virtual clock")


def _of_program(setting: Scenario, fabric: Fabric) -> Iterator[Mistake]:
    """A program's connections are between two GPUs, and the network knows nothing else of them."""
    if setting.program.command is None:
        return
    yield from program.check(setting.program, setting.mode(setting.run.modes[0]), fabric)
    if setting.fabric.routing != "single":
        yield Mistake("fabric.routing", f"{setting.fabric.routing} is beside a program; allowed: single")
    if setting.fabric.has_planes:
        yield Mistake("fabric.rails", f"{setting.fabric.rails} are beside a program; allowed: 1, or none")
    if setting.control.counted:
        yield Mistake("control.counted", "true is beside a program, which waits for nothing; allowed: false")


def _of_time(setting: Scenario) -> Iterator[Mistake]:
    """Conditions that change by time are those of fair queues in virtual time, without faults and classes."""
    for number, one in enumerate(setting.policies, 1):
        for key, text in _of_time_within(setting, one):
            yield Mistake(f"policy[{number}].{key}", text)
    if setting.conditions.every_s is None:
        return
    others = {
        "the wall clock": setting.run.is_real,
        "faults": setting.faults,
        "classes": setting.classes,
        "control.counted": setting.control.counted,  # conditions would stand still while ring and paths are changed
    }
    yield from beside("conditions.every", "is given", others)


def _of_time_within(setting: Scenario, one: Mode) -> Iterator[tuple[str, str]]:
    """What is wrong with what a policy has by time, with its key: paths change with conditions, and with what is known
    then, and so that the switches have followed before the next change."""
    every_s, within_s, trip_s = (
        setting.conditions.every_s,
        one.reroute.within_s,
        2 * max(setting.control_delays_s or (0,)),
    )
    if every_s is None:
        for key, value in (("knowledge", one.knowledge), ("reroute", one.reroute)):
            if one.knowledge.kind == LATE if key == "knowledge" else within_s is not None:
                yield key, f"{shown(str(value))} is by time; allowed: that with conditions.every"
        return
    if within_s is None:
        return
    text, every = shown(str(one.reroute)), units.format_delay(every_s)
    if round(within_s * 1e9) % round(every_s * 1e9):
        yield "reroute", f"{text} is no multiple of conditions.every; allowed: every {every}, twice that, and so on"
    if one.knowledge.kind not in ("oracle", LATE):
        yield "knowledge", f"{shown(str(one.knowledge))} beside reroute {text}; allowed: oracle, stale TIME"
    if setting.transport.queue != "fair":
        yield "reroute", f'{text} is beside transport.queue "{setting.transport.queue}"; allowed: "fair"'
    if trip_s >= every_s:
        trip = units.format_delay(trip_s)
        yield "reroute", f"{text} is beside a round trip of {trip} to the switches; allowed: less than conditions.every"
    delays_s = sorted({*setting.control_delays_s} or {0.0})
    gaps_s = [later - sooner for sooner, later in pairwise([*delays_s, delays_s[0] + within_s])]
    if min(gaps_s) < LEAST_CHANGE_S * (1 - 1e-9):
        least = units.format_delay(LEAST_CHANGE_S)
        yield "reroute", f"{text} has switches change within less than {least}; allowed: {least} apart, or at once"
    if "policy" in setting.run.referees:
        yield "reroute", f"{text} is beside the best policy, which keeps paths; allowed: one of the two"


def _of_control(setting: Scenario) -> Iterator[Mistake]:
    """The controller's delays are those of sites, and of the VM's own loopback in virtual time."""
    delays_s, sites = setting.control.delay_s, len(setting.fabric.gpus_per_site)
    if isinstance(delays_s, tuple) and len(delays_s) != sites:
        yield Mistake("control.delay", f"{len(delays_s)} delays for {sites} sites; allowed: one for each")
    if delays_s is not None and setting.run.is_real:
        yield Mistake("control.delay", "is beside the wall clock; allowed: virtual")


def _of_probes(setting: Scenario) -> Iterator[Mistake]:
    """A probe is a message of its own, sent at line rate over the path of its two ranks."""
    probing = [name for name in setting.run.modes if setting.modes[name].knowledge.kind == PROBED]
    if not probing:
        return
    transport, routing = setting.transport, setting.fabric.routing
    others = {
        f'fabric.routing "{routing}"': routing != "single",
        "fabric.rails": setting.fabric.has_planes,
        "transport.line_rate false": not transport.line_rate,
        "fabric.buffer": transport.buffer_bytes is not None,
    }
    yield from beside("run.modes", f"{probing[0]} probes,", others)
    if setting.program.command is not None:
        return  # which has a mistake of its own, and no collective
    fabric = build_fabric(setting.fabric)
    in_order = rank_order_of(fabric, setting.workload)
    for name in probing:
        if (count := len(probes_of(fabric, setting.mode(name), setting.workload, in_order))) > MAX_PROBES:
            text = f"{name} has {count:,} probes, one for each path of each crossing"
            yield Mistake("run.modes", f"{text}; allowed: {MAX_PROBES}")


def _of_referees(setting: Scenario) -> Iterator[Mistake]:
    """The best is known of single collectives without faults, and the best policy of some hundred of them."""
    if not setting.run.referees:
        return
    kind, count = setting.collective.kind, setting.collective.count
    beside = {
        "jobs": setting.jobs,
        "faults": setting.faults,
        "a program": setting.program.command,
        kind: kind in (MESSAGES, TRAINING),
    }
    for what in (what for what, is_there in beside.items() if is_there):
        yield Mistake("run.referees", f"is given beside {what}, of which no best is known; allowed: one of the two")
    for what in ("schedule", "policy"):
        if what in setting.run.referees and count > MAX_OPTIMUM:
            text = f"the best {what} of {count:,} collectives; allowed: collective.count up to {MAX_OPTIMUM}"
            yield Mistake("run.referees", text)


def _of_bests(scenario: Scenario) -> Iterator[Mistake]:
    """Whether the fastest ring and the best schedule are known in any configuration, where they are asked for."""
    asked = scenario.run.referees
    if "schedule" in asked and not any(one.has_best_schedule for one in scenario.settings()):
        text = "no best schedule is known here; allowed: ring, policy, or whole blocks that take one way, of "
        yield Mistake("run.referees", f"{text}{', '.join(COPIED)}, and up to {MOST_GPUS} GPUs")
    if "ring" in scenario.run.referees and not any(one.has_best_ring for one in scenario.settings()):
        text = "no best ring is known here; allowed: policy, or whole blocks around one ring that shares no link"
        yield Mistake("run.referees", text)


def _of_classes(setting: Scenario) -> Iterator[Mistake]:
    """Whether WAN ports can serve classes: with fair queues, in virtual time, and to jobs."""
    if not setting.classes:
        return
    if setting.run.is_real or setting.transport.queue != "fair":
        where = "on the wall clock" if setting.run.is_real else f'with transport.queue "{setting.transport.queue}"'
        yield Mistake("class", f"classes {where}; allowed: fair queues in virtual time")
    if not setting.jobs:
        yield Mistake("class", "classes without a [[job]] that is of one; allowed: both or none")


def _of_te(setting: Scenario) -> Iterator[Mistake]:
    """Traffic engineering is for fair queues in virtual time, and where conditions stay during a collective."""
    if setting.fabric.routing != te.ROUTING:
        return
    others = {
        "the wall clock": setting.run.is_real,
        'transport.queue "fifo"': setting.transport.queue != "fair",
        "conditions.every": setting.conditions.every_s is not None,
        "control.counted": setting.control.counted,
        "fabric.rails": setting.fabric.has_planes,
    }
    yield from te.check(setting.te, {name: setting.mode(name) for name in setting.run.modes}, setting.classes, others)


def _of_queue(setting: Scenario) -> Iterator[Mistake]:
    """Finite queues are those of links that send in the order of arrival, in virtual time; dctcp alone heeds marks. Not
    every machine's kernel has a bound of the retransmission timeout that can be set."""
    transport, key = setting.transport, "fabric.buffer"
    size, threshold = transport.buffer_bytes, transport.ecn_threshold_bytes
    if size is not None:
        text = f"{units.format_size(size)} is"
        if transport.queue != "fifo":
            yield Mistake(key, f'{text} beside transport.queue "{transport.queue}"; allowed: "fifo"')
        if setting.run.is_real:
            yield Mistake(key, f"{text} beside the wall clock, whose timers overrun a queue; allowed: virtual")
        if setting.fabric.has_planes and any(setting.mode(name).keeps_paths for name in setting.run.modes):
            text = f"{text} beside rails and a mode that keeps paths, whose connections are new for each collective"
            yield Mistake(key, f"{text}; allowed: reroute never and every 1")
        if any(fault.kind == "link loss" for fault in setting.faults):
            yield Mistake(key, f"{text} beside a link loss, which takes the queue's place; allowed: one of the two")
    if transport.wan_loss and size is None:
        yield Mistake("fabric.wan_loss", f"{transport.wan_loss:g} is beside no fabric.buffer; allowed: both or 0")
    if setting.run.is_real and transport.rto_min_s != Transport.rto_min_s:
        text = f"{units.format_delay(transport.rto_min_s)} is on the wall clock"
        yield Mistake("transport.rto_min", f"{text}; allowed: {units.format_delay(Transport.rto_min_s)} there")
    if threshold is not None:
        key, text = "transport.ecn_threshold", f"{units.format_size(threshold)} is"
        if transport.congestion_control != "dctcp":
            name = transport.congestion_control
            yield Mistake(key, f'{text} beside the congestion control {name}; allowed: "dctcp"')
        if size is None or threshold >= size:
            room = "no fabric.buffer" if size is None else f"a fabric.buffer of {units.format_size(size)}"
            yield Mistake(key, f"{text} beside {room}; allowed: a threshold below a buffer")


def _of_workload(setting: Scenario) -> Iterator[Mistake]:
    """Whether a configuration's collective makes sense, and keeps a byte a message on the wall clock."""
    spec = setting.collective
    of_jobs = jobs.check(setting.jobs, spec.kind, setting.gpus, setting.classes)
    if mistakes := [*of_jobs, *admission.check(setting)]:
        yield from mistakes
        return
    try:
        _ = setting.carried
    except ScheduleError as error:
        of_file = "collective.kind" if spec.schedule is None else "collective.schedule"
        key = of_file if setting.training_plan is None else "training.pipeline"
        yield Mistake("job" if setting.jobs else key, str(error))
    except ScaleError as error:
        yield Mistake("run.rate_scale", str(error))


def _of_trace(fabric: Fabric, conditions: ConditionsSpec, count: int) -> Iterator[Mistake]:
    """Whether a trace can be read and covers the collectives; raises ConditionsError."""
    limit = None if conditions.trace is None else sampler.sampler(fabric, conditions, seed=0).limit
    if limit is not None and count > limit:
        yield Mistake("collective.count", f"{count:,} is too large: the trace covers {limit:,}")


# --- configurations as JSON -----------------------------------------------------------------------------------------


BEFORE = {"collective.ring": "slowest edge"}
"""The values that runs from before these keys had, where the default is another."""


def plain_values(setting: Scenario) -> dict[str, Any]:
    """The value of every key of a configuration as JSON can hold it: bit/s, bytes, seconds, text, lists."""
    return {key: _stored(KEYS[key].kind, setting.value(key)) for key in KEYS}


def configuration(values: Mapping[str, Any], swept: Iterable[str] = ()) -> Scenario:
    """The configuration of these `plain_values`, not checked again; keys that an older run lacks have their defaults,
    or the value that it had without them.

    `swept` are the keys that tell it from other configurations of its sweep.
    """
    read = BEFORE | {key: _restored(KEYS[key].kind, value) for key, value in values.items()}
    return replace(DEFAULTS.with_values(read), at=tuple((key, read[key]) for key in swept))


def to_json(setting: Scenario) -> str:
    """A checked configuration as text, to be handed to another process; `from_json` is the inverse."""
    return json.dumps({"values": plain_values(setting), "swept": [key for key, _ in setting.at]})


def from_json(text: str | bytes) -> Scenario:
    """The configuration that `to_json` wrote."""
    return configuration(**json.loads(text))


def _stored(kind: Kind, value: Any) -> Any:
    if kind.is_object and value is not None:
        return kind.write(value)
    return [_stored(kind, item) for item in value] if isinstance(value, tuple) else value


def _restored(kind: Kind, stored: Any) -> Any:
    if kind.is_object and stored is not None:
        return kind.read(stored)
    return tuple(_restored(kind, item) for item in stored) if isinstance(stored, list) else stored


def described(scenario: Scenario) -> list[dict[str, Any]]:
    """Every configuration as settings.json has it: what was swept, the value of every key, the fabric that its rows
    refer to, its schedule, its classes of traffic and its jobs if any, and for each mode the links that flows can
    share."""
    return [
        {
            "setting": index,
            "label": setting.label,
            "swept": {key: _stored(KEYS[key].kind, value) for key, value in setting.at},
            "columns": setting.columns,
            "values": plain_values(setting),
            "fabric": _described(build_fabric(setting.fabric)),
            "schedule": _written(setting.workload),
            "classes": classes.of_flows(setting.classes, setting.workload.dscp) if setting.classes else None,
            "jobs": [
                {"name": one.name, "start_s": one.start_s, "background": one.is_background} | _worked(one)
                for one in setting.workload.jobs
            ],
            "shared_links": {mode: list(setting.shared_links(mode)) for mode in setting.run.modes},
            **_admitted(setting),
        }
        for index, setting in enumerate(scenario.settings())
    ]


def _admitted(setting: Scenario) -> dict[str, Any]:
    """What became of a setting's transfers, if it has any, each with the first and the last but one of its transfers in
    the schedule."""
    spans = {one.name: [one.transfers.start, one.transfers.stop] for one in setting.workload.jobs}
    found = [one.as_json() | {"transfers": spans.get(one.job.name, [0, 0])} for one in setting.transfers]
    return {"admission": found} if found else {}


def _worked(job: JobSpan) -> dict[str, Any]:
    """What a job's places compute, if it is training, and where that is in the schedule."""
    if not job.works:
        return {}
    return {"transfers": [job.transfers.start, job.transfers.stop], "places": job.places, "works": job.works}


def _written(workload: Workload) -> dict[str, Any]:
    """A workload's schedule: of each flow the places it joins and its channel (of a stream its place and number), of
    each transfer its flow, its slots or seconds, what it waits for, and the place whose block it begins with, if any.
    The transfers behind the first `waited_for` are background traffic. `works` is what each place computes in training,
    in order.
    """
    flows = [list(astuple(flow)) for flow in workload.schedule.flows]
    transfers = [[one.flow, one.amount, list(one.after), workload.owner(one)] for one in workload.schedule.transfers]
    return {
        "algorithm": workload.algorithm,
        "slot_bytes": workload.slot_bytes,
        "flows": flows,
        "transfers": transfers,
        "waited_for": len(workload.waited_for),
        "works": workload.works,
    }


def _described(fabric: Fabric) -> dict[str, Any]:
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
