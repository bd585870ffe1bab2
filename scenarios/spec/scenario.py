"""A scenario as a value, the configurations that its sweep spans, and configurations as JSON.

`keys` declares the keys of the scenario language, whose values are in these fields. A configuration is a scenario
without a sweep. `load` reads files, and `consistency` checks values together.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model.optimal_schedule import COPIED, MAX_GPUS
from analysis.statistics.rates import exact_from
from hosts.agent.transport import Transport
from hosts.collectives.kinds import TRAINING, Workload
from hosts.collectives.training import Training
from hosts.embedding.ring import MAX_EXACT_GPUS
from scenarios.policies.decide import (
    has_choice_of_paths,
    has_choice_of_placements,
    messages_on_a_choice_of_delays,
    probes_between,
    routes_greedily,
    shared_links,
)
from scenarios.policies.knowledge import ORACLE, Knowledge
from scenarios.policies.policy import MODES, NEVER, Mode
from scenarios.spec import faults, te
from scenarios.spec.admission import ADMITTING_ROUTING, AdmissionPlan, AdmissionSpec, Transfer, wan_cables
from scenarios.spec.classes import ClassSpec
from scenarios.spec.collective import CollectiveSpec, routed, scaled_workload, workload_of
from scenarios.spec.faults import Fault
from scenarios.spec.jobs import TRANSFER, JobSpec
from scenarios.spec.key_rules import uses
from scenarios.spec.keys import KEYS, OUTERMOST
from scenarios.spec.labels import cell_text, label_of
from scenarios.spec.pieces import chosen_pieces, is_most_tried, remember
from scenarios.spec.pieces import expect as expect_pieces
from scenarios.spec.program import ProgramSpec
from scenarios.spec.round_workload import workload_of_jobs
from scenarios.spec.run import RunSpec
from scenarios.spec.te import TeSpec
from scenarios.spec.training import TrainingPlan
from scenarios.spec.transfer_class import with_own_class
from scenarios.spec.values import (
    DELAY,
    Kind,
)
from topologies.conditions.background_load import sent_bps
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler, trace_of
from topologies.conditions.trace import Trace
from topologies.errors import SpecError
from topologies.fabric.fabric import (
    FabricSpec,
    build_fabric,
)
from topologies.fabric.failures import cable
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import wan_of

MAX_OPTIMUM = 300
"""Most collectives for which the best policy is computed: the effort grows as the square of the modes' choices."""


@dataclass(frozen=True, kw_only=True)
class ControlSpec:
    """The control plane. `counted`: a collective's time includes the reconfiguration of ring and paths before it.
    `delay_s` is the one-way delay from the controller to the switches, the same for all sites or one for each; with
    None the controller is on the same machine. `probe_bytes` is the size of a probe. `knowledge` is what modes know of
    the links' rates, except for policies with knowledge of their own."""

    counted: bool = False
    delay_s: float | tuple[float, ...] | None = None
    probe_bytes: int = 250_000
    knowledge: Knowledge = ORACLE


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep: a key and its values (GPUs per site, bytes, seconds ...), in the given order."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One experiment: every mode of its run, in every configuration that its sweep spans.

    In a configuration, which is one point of the sweep, `at` holds the swept keys with their values. `notes` tell how
    values were rounded when they were read, and which keys had no effect. `round_number` is the round whose background
    traffic `workload` has.
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
    round_number: int = 0
    at: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

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
                number=self.round_number,
                matrix_bps=self._matrix_bps(self.round_number),
            )
        elif self.training_plan is not None:
            workload = self.training_plan.workload(range(self.gpus))
        else:
            workload = workload_of(self.collective, self.fabric.gpus_per_site)
        return routed(workload, self.fabric)

    def _matrix_bps(self, number: int) -> tuple[tuple[float, ...], ...]:
        """What the load sends from site to site in a round; () if it sends nothing."""
        load = self.conditions.load
        if load is None or not load.sends:
            return ()
        rows = sent_bps(load, self.fabric.wan, self.fabric.sites)
        return tuple(map(tuple, rows[number % len(rows)].tolist()))

    @property
    def heaviest_round(self) -> int:
        """The number of the round in which the load sends most; 0 if it sends nothing."""
        load = self.conditions.load
        if load is None or not load.sends:
            return 0
        return int(sent_bps(load, self.fabric.wan, self.fabric.sites).sum(axis=(1, 2)).argmax())

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
        down = [one for one in self.faults if one.is_throughout and self.is_promised_for(one)]
        dead = faults.dead_cables(down, build_fabric(self.fabric))
        served = self.class_links if self.classes else frozenset[int]()
        return AdmissionPlan(self.admission, self.fabric, self.conditions, self.classes, dead, served)

    def is_promised_for(self, fault: Fault) -> bool:
        """Whether promises take this fault into account: a WAN link that is down from the first collective to the end,
        or with `admission.recovery` at any time."""
        is_wan_link = fault.kind == "link down" and cable(*fault.ends) in wan_cables(build_fabric(self.fabric))
        recovers = self.admission.protects and self.admission.recovery_s is not None
        return is_wan_link and (fault.is_throughout or recovers)

    @property
    def has_drawn_jobs(self) -> bool:
        """Whether the messages of any job, background traffic or requests, are drawn for every round."""
        return any(job.is_drawn for job in self.jobs)

    @property
    def counted_modes(self) -> tuple[str, ...]:
        """The modes of which it is told how often they have chosen: where one decides by itself when to, all that ever
        choose, so that it can be compared with them."""
        modes = [self.mode(name) for name in self.run.modes]
        if all(mode.is_periodic for mode in modes):
            return ()
        return tuple(mode.name for mode in modes if mode.reroutes or mode.reembeds)

    def exact_from(self, engine: str) -> int | None:
        """Return from how many collectives on times that are all alike are exact (`rates.exact_from`)."""
        return exact_from(
            build_fabric(self.fabric),
            self.conditions,
            is_measured=engine != "model",
            is_drawn=self.has_drawn_jobs or self.transport.wan_loss > 0,
        )

    @property
    def program_probes(self) -> npt.NDArray[np.int16]:
        """The probes that a program's mode sends before the ranks start, [P, 3]: over each path between every two of
        the program's GPUs in two sites."""
        gpus = self.program.ranks_of(self.fabric.gpus_per_site)
        return probes_between(build_fabric(self.fabric), self.mode(self.run.modes[0]), itertools.permutations(gpus, 2))

    def of_round(self, number: int) -> "Scenario":
        """Return the configuration with the workload of a round: the same flows, but other drawn messages."""
        return replace(self, round_number=number) if self.has_drawn_jobs else self

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
        """Return the mode with this name, which is built in or one of the scenario's policies.

        Where all messages are those of admitted transfers it chooses no paths: their tunnels are what was promised.
        """
        mode = self.modes[name]
        if not (mode.reroutes and self.has_tunnels_alone):
            return mode
        reembed = NEVER if mode.function is not None else mode.reembed
        return replace(mode, reroute=NEVER, reembed=reembed, function=None)

    @property
    def has_tunnels_alone(self) -> bool:
        """Whether a configuration has admitted transfers and nothing else."""
        return self.admits and all(job.kind == TRANSFER for job in self.jobs) and not self.program.is_given

    @property
    def admits(self) -> bool:
        """Whether a configuration has transfers that are admitted."""
        return self.fabric.routing == ADMITTING_ROUTING and any(job.kind == TRANSFER for job in self.jobs)

    @property
    def class_links(self) -> frozenset[int]:
        """The links or ports that serve classes, if there are any: those of the WAN, and within sites those that
        admitted transfers share with other traffic."""
        fabric = build_fabric(self.fabric)
        if not (self.classes and self.admits):
            return wan_of(fabric)
        everyone = set(range(self.gpus))
        others = [job.ranks for job in self.jobs if job.kind != TRANSFER] + [None] * self.program.is_given
        used = set().union(*(everyone if ranks is None else ranks for ranks in others))
        sending = set().union(*(job.ranks or () for job in self.jobs if job.kind == TRANSFER))
        ends = {fabric.gpus[rank].name for rank in used & sending}
        within = [each for each in links_in_grain(fabric).all if each.kind in ("to_br", "from_br")]
        return wan_of(fabric) | {each.index for each in within if {each.src, each.dst} & ends}

    @property
    def modes(self) -> Mapping[str, Mode]:
        """All modes by name: the built-in ones and the scenario's policies, with the knowledge that they have."""
        found = MODES | {one.name: one for one in self.policies}
        knowledge = self.control.knowledge
        if knowledge == ORACLE:
            return found
        return {name: mode.informed(knowledge) if self.asks(mode) else mode for name, mode in found.items()}

    def asks(self, mode: Mode) -> bool:
        """Return whether anything depends on a mode's knowledge: its own choices, or the rates of tunnels."""
        return mode.reroutes or mode.reembeds or self.engineers(mode)

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

    def capturing(self, folder: Path) -> "Scenario":
        """Return this scenario, whose captures of collectives are written to a folder."""
        return replace(self, run=replace(self.run, captures=folder))

    def configurations(self) -> tuple["Scenario", ...]:
        """Return the configurations, one per combination of swept values, the last axis varying fastest."""
        return self._configurations

    @cached_property
    def _configurations(self) -> tuple["Scenario", ...]:
        undecided = self._undecided()
        for one in undecided:
            if one._chooses_pieces:
                expect_pieces(one.collective, one.fabric, one.conditions, one.run.scale)
        return tuple(config._with_pieces() for config in undecided)

    def remember_pieces(self, numbers: Sequence[object]) -> None:
        """Take these numbers of pieces, one for each configuration, where the timing model would choose them."""
        configs = self._undecided()
        for config, number in zip(configs, numbers, strict=False) if len(configs) == len(numbers) else ():
            if config.collective.pieces is None:
                remember(config.collective, config.fabric, config.conditions, config.run.scale, number)

    def _undecided(self) -> tuple["Scenario", ...]:
        """Return the configurations without the choices of the timing model."""
        plain, configs = replace(self, sweep=()), []
        for values in itertools.product(*(axis.values for axis in self.sweep)):
            at = dict(zip((axis.key for axis in self.sweep), values, strict=True))
            config = replace(plain.with_values(at), at=tuple(at.items()))
            config = replace(config, collective=config.collective.with_chunk(config.gpus))
            configs.append(config._without_unused()._with_outages()._with_transfer_class())
        return tuple(configs)

    def _without_unused(self) -> "Scenario":
        """Return the configuration without values that only other configurations of its sweep use, where they would
        have an effect."""
        config = self
        if config.conditions.sampler != "trace":
            config = replace(config, conditions=replace(config.conditions, trace=None))
        if not config.transport.congestion_control.heeds_marks:
            config = replace(config, transport=replace(config.transport, ecn_threshold_bytes=None))
        return config if config.jobs or config.program.is_given else replace(config, classes=())

    def _with_transfer_class(self) -> "Scenario":
        """Return the configuration with a class for its admitted transfers if other traffic shares links with them."""
        if not (self.admits and (self.program.is_given or any(job.kind != TRANSFER for job in self.jobs))):
            return self
        jobs, classes = with_own_class(self.jobs, self.classes)
        return replace(self, jobs=jobs, classes=classes)

    @property
    def trace(self) -> Trace | None:
        """The trace of a configuration's conditions, None without one; raises SpecError if it cannot be read."""
        if self.conditions.trace is None:
            return None
        return trace_of(sampler(build_fabric(self.fabric), self.conditions, seed=self.run.seed))

    def _with_pieces(self) -> "Scenario":
        """Return the configuration with the number of pieces that the timing model chooses, unless one is given. It is
        chosen for each collective of a script by itself, as sizes differ."""
        spec, chooses = self.collective, self._chooses_pieces
        if spec.pieces is not None or self.program.is_given:
            return self
        pieces = chosen_pieces(spec, self.fabric, self.conditions, self.run.scale) if chooses else 1
        return replace(self, collective=replace(spec, pieces=pieces, chooses=chooses))

    @property
    def _chooses_pieces(self) -> bool:
        return self.collective.pieces is None and not self.program.is_given and not self.jobs

    @property
    def has_most_pieces(self) -> bool:
        """Whether the timing model has chosen the largest number of pieces that it tried."""
        spec = replace(self.collective, pieces=None, chooses=False)
        return self.collective.chooses and is_most_tried(spec, self.fabric, self.conditions, self.run.scale)

    def _with_outages(self) -> "Scenario":
        """Return the configuration with the outages of its trace among its faults. A trace that cannot be read has none
        here: `consistency` refuses it."""
        try:
            trace = self.trace
        except SpecError:
            return self
        if trace is None:
            return self
        struck = faults.outages(trace, build_fabric(self.fabric), count=self.collective.count)
        return replace(self, faults=(*self.faults, *(one for one in struck if one not in self.faults)))

    @cached_property
    def label(self) -> str:
        """The configuration in words, with every key that has an effect and is not at its default
        (`labels.label_of`)."""
        return label_of(self, DEFAULTS, uses=lambda key: uses(self, key))

    @property
    def hashed_modes(self) -> tuple[str, ...]:
        """The modes whose flows between sites ECMP's hash spreads: those that choose no paths."""
        is_spread = self.fabric.routing == "ecmp" and len(self.fabric.gpus_per_site) > 1
        return tuple(mode for mode in self.run.modes if is_spread and not self.mode(mode).reroutes)

    @property
    def chooses_rings(self) -> bool:
        """Whether any of the run's modes may re-embed."""
        return any(self.mode(mode).reembeds for mode in self.run.modes)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The columns that results have for swept values, in addition to those that all results have."""
        columns = {}
        for key, value in self.at:
            kind, is_number = KEYS[key].kind, key != "control.delay"  # which may be a list
            if key in (*OUTERMOST, "run.seed"):
                continue
            is_plain = is_number and isinstance(value, bool | int | float | str)
            cell = value if is_plain else cell_text(key, value)
            columns[f"{key}_s" if is_number and kind.unit == DELAY.unit else key] = cell
        return columns

    def shared_links(self, mode: str) -> tuple[str, ...]:
        """Return the names of the logical links or ports that two flows of the collective can use at the same time."""
        fabric, every = build_fabric(self.fabric), [[fault] for fault in self.faults]
        dead = dict.fromkeys(faults.dead_cables(struck, fabric) for struck in (*every, self.faults))
        detours = tuple(cables for cables in dead if cables)
        return shared_links(fabric, self.workload, self.mode(mode), detours=detours)

    def engineers(self, mode: Mode) -> bool:
        """Return whether traffic engineering divides the WAN among a mode's flows."""
        return self.fabric.routing == te.ROUTING and not mode.reroutes

    def collectives_per_rates(self, mode: Mode) -> int:
        """Return for how many collectives a mode keeps the link rates for which tunnel rates were computed."""
        return self.te.collectives if self.engineers(mode) else 1

    def has_timeline(self, mode: str) -> bool:
        """Return whether a mode's decision times depend on more than the indices of the collectives."""
        chosen_by = self.mode(mode)
        return not chosen_by.is_periodic or (chosen_by.keeps_paths and bool(self.faults))

    def measures_demands(self, mode: Mode) -> bool:
        """Return whether a mode's tunnel rates are computed from measured demands."""
        return self.engineers(mode) and self.te.demand == te.MEASURED

    def routes_greedily(self, mode: str) -> bool:
        """Return whether a mode chooses the WAN paths greedily, because there are too many combinations."""
        return routes_greedily(build_fabric(self.fabric), self.workload, self.mode(mode))

    def messages_on_a_choice_of_delays(self, mode: str) -> int:
        """Return how many messages a flow sends between sites whose paths differ in delay, where a mode chooses a path
        for one of them; 0 where it does not choose by that rule, or has no such sites."""
        chosen_by = self.mode(mode)
        if not chosen_by.reroutes or chosen_by.function is not None or self.has_tunnels_alone:
            return 0
        fabric = build_fabric(self.fabric)
        of_links_s = links_in_grain(fabric).delays_s(delays_s(fabric, self.conditions))
        return messages_on_a_choice_of_delays(fabric, self.workload, of_links_s)

    def choices_of_one(self, mode: str) -> tuple[str, ...]:
        """Return what a mode re-chooses although there is only one to choose: "WAN path", "ring" or "placement"."""
        fabric, workload, chosen_by = build_fabric(self.fabric), self.workload, self.mode(mode)
        found = ["WAN path"] if chosen_by.reroutes and not has_choice_of_paths(fabric, workload) else []
        if chosen_by.reembeds and not has_choice_of_placements(fabric, workload):
            found.append("ring" if workload.is_ring else "placement")
        return tuple(found)

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


DEFAULTS = Scenario()


def values_of(scenario: Scenario) -> dict[str, Any]:
    """Return the value of every key, and of every axis of the sweep under "sweep.KEY"."""
    return {key: scenario.value(key) for key in KEYS} | {f"sweep.{axis.key}": axis.values for axis in scenario.sweep}


# --- configurations as JSON -----------------------------------------------------------------------------------------


BEFORE = {"collective.ring": "slowest edge"}
"""Values of runs that were made before these keys existed, if they differ from today's defaults."""


def plain_values(config: Scenario) -> dict[str, Any]:
    """Return the value of every key of a configuration as JSON can hold it: bit/s, bytes, seconds, text, lists."""
    return {key: plain_value(key, config.value(key)) for key in KEYS}


def plain_value(key: str, value: Any) -> Any:
    """Return a value of a key as JSON can hold it."""
    return _to_json_value(KEYS[key].kind, value)


def configuration(values: Mapping[str, Any], swept: Iterable[str] = (), captures: str | None = None) -> Scenario:
    """Return the configuration with these `plain_values`, unchecked; keys that an older run lacks have the values of
    BEFORE or their defaults.

    `swept` are the keys in which it differs from the other configurations of its sweep, and `captures` is the folder of
    `RunSpec.captures`.
    """
    read = BEFORE | {key: _from_json_value(KEYS[key].kind, value) for key, value in values.items()}
    config = replace(DEFAULTS.with_values(read), at=tuple((key, read[key]) for key in swept))
    return config if captures is None else config.capturing(Path(captures))


def to_json(config: Scenario) -> str:
    """Write a checked configuration as text for another process; `from_json` is the inverse."""
    captures = config.run.captures
    of_run = {} if captures is None else {"captures": str(captures)}
    return json.dumps({"values": plain_values(config), "swept": [key for key, _ in config.at], **of_run})


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
