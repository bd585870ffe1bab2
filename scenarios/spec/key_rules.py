"""Rules on which keys a configuration uses: one that it does not use changes nothing, whatever its value is.

A key that no configuration of a scenario uses is told to the user (`unused_keys`), and labels name only keys that their
configuration uses.
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from hosts.agent.transport import VERBS, Transport
from hosts.collectives.kinds import MESSAGES, SELF_SIZED_KINDS, TRACE, TRAINING, Workload
from hosts.collectives.schedule import ScheduleError
from hosts.collectives.schedule_files import is_msccl
from hosts.collectives.training import Training
from scenarios.policies.knowledge import PROBED
from scenarios.policies.policy import Mode, When
from scenarios.spec import te
from scenarios.spec.admission import ADMITTING_ROUTING, AdmissionSpec
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.jobs import BACKGROUND, TRANSFER, JobSpec
from scenarios.spec.keys import KEYS
from scenarios.spec.program import ProgramSpec
from scenarios.spec.run import RunSpec
from topologies.conditions.sampler import SAMPLERS, ConditionsSpec, delays_s, ranges_bps, sampler
from topologies.fabric.fabric import FabricSpec, build_fabric


class Configuration(Protocol):
    """What the rules look at in a configuration, as `Scenario` has it."""

    @property
    def fabric(self) -> FabricSpec: ...
    @property
    def conditions(self) -> ConditionsSpec: ...
    @property
    def collective(self) -> CollectiveSpec: ...
    @property
    def run(self) -> RunSpec: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def program(self) -> ProgramSpec: ...
    @property
    def training(self) -> Training: ...
    @property
    def admission(self) -> AdmissionSpec: ...
    @property
    def te(self) -> te.TeSpec: ...
    @property
    def jobs(self) -> tuple[JobSpec, ...]: ...
    @property
    def kinds(self) -> Set[str]: ...
    @property
    def modes(self) -> Mapping[str, Mode]: ...
    @property
    def workload(self) -> Workload: ...
    def asks(self, mode: Mode) -> bool: ...


class Rule(NamedTuple):
    """Which configurations use some keys: decided by `applies` from the tables `rests_on`. `why` says what is missing
    where a key is unused, and names the key or the choice that would give it a meaning."""

    keys: tuple[str, ...]
    why: str
    applies: Callable[[Configuration], bool]
    rests_on: tuple[str, ...]


def uses(config: Configuration, key: str) -> bool:
    """Return whether a configuration uses a key, by the rules on whole keys."""
    return all(has_effect(rule, config) for rule in RULES if key in rule.keys)


def has_effect(rule: Rule, config: Configuration) -> bool:
    """Return whether a configuration uses the keys of a rule."""
    try:
        return rule.applies(config)
    except (ValueError, ScheduleError):  # the configuration has another mistake, which is reported
        return True


def _modes_of(config: Configuration) -> list[Mode]:
    return [config.modes[name] for name in config.run.modes if name in config.modes]


def _has_kind(*kinds: str) -> Callable[[Configuration], bool]:
    return lambda config: not config.kinds.isdisjoint(kinds)


def _uses_sampler(samplers: Collection[str]) -> Callable[[Configuration], bool]:
    return lambda config: config.conditions.sampler in samplers


def _has_blocks(config: Configuration) -> bool:
    return not config.kinds <= {*SELF_SIZED_KINDS}


def _reads_msccl(config: Configuration) -> bool:
    """Whether messages come from a file of MSCCL, which gives their chunks no size."""
    specs = [job.collective(config.collective) for job in config.jobs] or [config.collective]
    files = [spec.schedule for spec in specs if spec.kind == MESSAGES and spec.schedule is not None]
    return any(map(is_msccl, files))


def _has_chunk(config: Configuration) -> bool:
    """Whether a size is not given by [training] or a file."""
    return _has_blocks(config) or _reads_msccl(config)


def _may_choose_rings(config: Configuration) -> bool:
    """Whether an objective may be needed to choose rings, for a mode that has none of its own."""
    return bool(config.run.referees) or any(mode.reembeds and mode.ring is None for mode in _modes_of(config))


def _has_ring(config: Configuration) -> bool:
    """Whether places form a ring: not those of a round of jobs. A program's collectives may have any algorithm."""
    if config.jobs:  # whose workload is not asked, as transfers may be impossible here
        return config.program.is_given
    return config.program.is_given or config.workload.is_ring


def _has_open_period(config: Configuration) -> bool:
    """Whether a mode uses `collective.reembed_every`, as its period or as the horizon over which a gain is weighed."""
    modes = _modes_of(config)
    if any(mode.reroute.kind == "every" and mode.reroute.number is None for mode in modes):
        return True
    if any("gain" in (mode.reroute.kind, mode.reembed.kind) and mode.horizon is None for mode in modes):
        return True
    return any(mode.reembed.kind == "every" and mode.reembed.number is None for mode in modes)


def _may_move(config: Configuration) -> bool:
    """Whether a period of `collective.reembed_every` matters: not if only placements have it, and none can change."""
    for mode in _modes_of(config):
        if "gain" in (mode.reroute.kind, mode.reembed.kind) or mode.reroute == When("every"):
            return True
    return _has_blocks(config) or config.workload.groups != ()


def _describes_a_job(config: Configuration) -> bool:
    """Whether [collective] describes what some job does, or what is repeated if there are no jobs."""
    kinds = {job.kind for job in config.jobs}
    return not kinds or not kinds.isdisjoint({None, config.collective.kind})


def _has_default_size(config: Configuration) -> bool:
    jobs = config.jobs
    return not jobs or any(
        job.has_default_size(config.collective) or (job.kind == BACKGROUND and job.chunk_bytes is None) for job in jobs
    )


def _uses_tunnels(config: Configuration) -> bool:
    return not all(mode.reroutes for mode in _modes_of(config))


def _has_influence(attribute: str, other: Callable[[Any], Any]) -> Callable[[Configuration], bool]:
    """Return a test whether replacing a rate range or delay by `other(value)` changes the rate or delay of any link."""

    def applies(config: Configuration) -> bool:
        conditions, wan = config.conditions, config.fabric.wan
        if len(config.fabric.gpus_per_site) == 1 and attribute.startswith("wan"):
            return True  # another rule has the reason
        has_own = wan.km or wan.rates_bps or wan.delays_s
        if not (conditions.links or has_own or conditions.sampler == "trace"):
            return True
        fabric = build_fabric(config.fabric)
        changed = replace(conditions, **{attribute: other(getattr(conditions, attribute))})
        if attribute.endswith("delay_s"):
            return bool((delays_s(fabric, conditions) != delays_s(fabric, changed)).any())
        if conditions.sampler == "trace":
            means = [sampler(fabric, each, seed=config.run.seed).mean_bps for each in (conditions, changed)]
            return bool((means[0] != means[1]).any())
        return bool((ranges_bps(fabric, conditions) != ranges_bps(fabric, changed)).any())

    return applies


def _doubled(range_bps: tuple[int, int]) -> tuple[int, int]:
    return 2 * range_bps[0], 2 * range_bps[1]


def _any_of(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


_TRAINING_KEYS = tuple(key for key in KEYS if key.startswith("training."))
_REPLICA_KEYS = tuple(
    f"training.{name}" for name in ("gradients", "gradient_size", "buckets", "across", "fragments", "overlap", "bits")
)
_PROGRAM_KEYS = tuple(key for key in KEYS if key.startswith("program.") and key != "program.command")
_PROGRAM_RUN_KEYS = ("program.ranks", "program.message", "program.sample")  # not used at the prompt
_SAMPLER_SETS = dict.fromkeys(key.samplers for key in KEYS.values() if key.samplers != SAMPLERS)
_TE_KEYS = ("te.every", "te.demand", "te.sample")
_SIZE_KEYS = ("collective.chunk", "collective.size")
_SCHEDULE_KEYS = ("collective.algorithm", "collective.channels", "collective.pieces", "collective.schedule")
_LINK_TABLES, _KIND_TABLES, _MODE_TABLES = ("conditions", "fabric"), ("collective", "job"), ("run", "policy")
_WAN_KEYS = (
    *("fabric.border_routers", "fabric.wan", "fabric.sites", "fabric.paths", "fabric.wan_loss"),
    *("conditions.wan_rate", "conditions.wan_delay", "conditions.load", "conditions.moves"),
)

RULES = (
    *(
        Rule(
            tuple(key.name for key in KEYS.values() if key.samplers == samplers),
            f"conditions.sampler is not {_any_of(samplers)}",
            _uses_sampler(samplers),
            ("conditions",),
        )
        for samplers in _SAMPLER_SETS
    ),
    Rule(
        ("conditions.interval",),
        "conditions.every is not given",
        lambda config: config.conditions.every_s is not None,
        ("conditions",),
    ),
    Rule(
        _TRAINING_KEYS, f"neither the collective nor a job has the kind {TRAINING}", _has_kind(TRAINING), _KIND_TABLES
    ),
    Rule(
        ("training.weights",),
        "training.pipeline is not zero-bubble",
        lambda config: config.training.pipeline == "zero-bubble",
        ("training",),
    ),
    Rule(
        _REPLICA_KEYS,
        "training.replicas is 1",
        lambda config: config.training.replicas > 1,
        ("training", *_KIND_TABLES),
    ),
    Rule(
        ("training.held",),
        "training.memory is not given",
        lambda config: config.training.memory_bytes is not None,
        ("training",),
    ),
    Rule(
        ("collective.tflops",),
        f"neither the collective nor a job has the kind {TRACE}",
        _has_kind(TRACE),
        _KIND_TABLES,
    ),
    Rule(("collective.chunk",), f"every size is given by [{TRAINING}] or by a file", _has_chunk, _KIND_TABLES),
    Rule(("collective.size",), f"every size is given by [{TRAINING}] or by a file", _has_blocks, _KIND_TABLES),
    Rule(
        ("collective.ring",),
        f"collective.kind is {MESSAGES}, {TRACE} or {TRAINING}, which have no ring to choose",
        _has_blocks,
        _KIND_TABLES,
    ),
    Rule(
        _SCHEDULE_KEYS,
        f"collective.kind is {TRAINING}, whose schedule follows from [{TRAINING}]",
        lambda config: config.kinds != {TRAINING},
        _KIND_TABLES,
    ),
    Rule(("collective.kind", *_SCHEDULE_KEYS), "every [[job]] has another kind", _describes_a_job, _KIND_TABLES),
    Rule(
        _SIZE_KEYS,
        "every [[job]] has a size of its own",
        lambda config: _has_default_size(config) or _reads_msccl(config),
        _KIND_TABLES,
    ),
    Rule(
        ("collective.ring",),
        "no mode chooses rings by it, and run.referees is empty",
        _may_choose_rings,
        _MODE_TABLES,
    ),
    Rule(
        ("collective.ring",),
        "collective.algorithm is not ring, or there are jobs, so no objective chooses places",
        _has_ring,
        (*_KIND_TABLES, "training"),
    ),
    Rule(
        ("collective.reembed_every",),
        'no mode has "every" without a number, or "gain" without a horizon',
        _has_open_period,
        _MODE_TABLES,
    ),
    Rule(
        ("collective.reembed_every",),
        "no GPU of this collective.kind can take another's place",
        _may_move,
        (*_MODE_TABLES, *_KIND_TABLES, "training"),
    ),
    Rule(
        ("conditions.wan_delay",),
        "every WAN link has a length or a delay of its own",
        _has_influence("wan_delay_s", lambda delay_s: delay_s + 1),
        _LINK_TABLES,
    ),
    Rule(
        ("conditions.intra_delay",),
        "every link within sites has a delay of its own",
        _has_influence("intra_delay_s", lambda delay_s: delay_s + 1),
        _LINK_TABLES,
    ),
    Rule(
        ("conditions.wan_rate",),
        "every WAN link has a rate of its own",
        _has_influence("wan_rate_bps", _doubled),
        _LINK_TABLES,
    ),
    Rule(
        ("conditions.intra_rate",),
        "every link within sites has a rate of its own",
        _has_influence("intra_rate_bps", _doubled),
        _LINK_TABLES,
    ),
    Rule(_WAN_KEYS, "fabric.gpus has one site", lambda config: len(config.fabric.gpus_per_site) > 1, ("fabric",)),
    Rule(
        ("fabric.hash_seed",),
        "fabric.routing is not ecmp",
        lambda config: config.fabric.routing == "ecmp",
        ("fabric",),
    ),
    Rule(
        (*_TE_KEYS, "te.pieces", "te.objective"),
        f"fabric.routing is not {te.ROUTING}",
        lambda config: config.fabric.routing == te.ROUTING,
        ("fabric",),
    ),
    Rule(_TE_KEYS, "every mode chooses WAN paths itself", _uses_tunnels, _MODE_TABLES),
    Rule(("te.sample",), f"te.demand is not {te.MEASURED}", lambda config: config.te.demand == te.MEASURED, ("te",)),
    Rule(
        ("admission.protect",),
        f"there is no [[job]] of the kind {TRANSFER} with fabric.routing {ADMITTING_ROUTING}",
        lambda config: config.fabric.routing == ADMITTING_ROUTING and any(job.kind == TRANSFER for job in config.jobs),
        ("job", "fabric"),
    ),
    Rule(
        ("admission.recovery",),
        "admission.protect is not link",
        lambda config: config.admission.protects,
        ("admission",),
    ),
    Rule(
        ("control.probe",),
        f"no mode has the knowledge {PROBED}",
        lambda config: any(mode.knowledge.kind == PROBED for mode in _modes_of(config)),
        _MODE_TABLES,
    ),
    Rule(
        ("control.knowledge",),
        "no mode without knowledge of its own chooses anything",
        lambda config: any(mode.inherits and config.asks(mode) for mode in _modes_of(config)),
        (*_MODE_TABLES, "fabric"),
    ),
    Rule(
        tuple(key for key in _PROGRAM_KEYS if key not in (*_PROGRAM_RUN_KEYS, "program.capture")),
        "there is no program.command, [[program]] or --exec, and no prompt (--cli)",
        lambda config: config.program.is_given,
        ("program",),
    ),
    Rule(
        ("transport.rdma",),
        "there is no program.command, [[program]] or --exec, no prompt (--cli), and transport.protocol is tcp",
        lambda config: config.program.is_given or config.transport.protocol == VERBS,
        ("program", "transport"),
    ),
    Rule(
        ("transport.line_rate", "transport.congestion_control", "transport.slow_start_after_idle"),
        "transport.protocol is verbs",
        lambda config: config.program.is_given or config.transport.protocol != VERBS,
        ("program", "transport"),
    ),
    Rule(
        _PROGRAM_RUN_KEYS,
        "there is no program.command, [[program]] or --exec",
        lambda config: config.program.is_run,
        ("program",),
    ),
    Rule(
        ("program.capture",),
        "at a prompt (--cli) the verb capture does it",
        lambda config: config.program.is_run or not config.program.is_given,
        ("program",),
    ),
    Rule(
        ("run.machines",),
        "a prompt (--cli) has one VM",
        lambda config: config.program.is_run or not config.program.is_given,
        ("program", "run"),
    ),
    Rule(
        ("run.search",),
        "run.referees does not list schedule",
        lambda config: "schedule" in config.run.referees,
        ("run",),
    ),
    Rule(("run.rate_scale",), "run.clock is not wall", lambda config: config.run.is_real, ("run",)),
    Rule(
        ("transport.ecn_threshold",),
        "transport.congestion_control is not dctcp",
        lambda config: config.transport.congestion_control.heeds_marks,
        ("transport",),
    ),
)
