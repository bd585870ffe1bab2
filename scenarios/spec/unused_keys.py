"""Keys without effect, by rules that define which configurations use a key.

A key that no configuration of a scenario uses is refused if it is given, and left out when a scenario is written.
"""

import math
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import replace
from typing import Any, NamedTuple

from hosts.collectives.kinds import MESSAGES, SELF_SIZED_KINDS, TRACE, TRAINING
from hosts.collectives.schedule import ScheduleError
from hosts.collectives.schedule_files import is_msccl
from scenarios.policies.knowledge import ORACLE, PROBED
from scenarios.policies.policy import Mode
from scenarios.spec import te
from scenarios.spec.admission import ADMITTING_ROUTING
from scenarios.spec.jobs import TRANSFER
from scenarios.spec.keys import KEYS, MAX_CONFIGURATIONS
from scenarios.spec.scenario import DEFAULTS, Scenario
from topologies.conditions.sampler import SAMPLERS, delays_s, ranges_bps, sampler
from topologies.fabric.fabric import build_fabric


class Rule(NamedTuple):
    """Which configurations use some keys: decided by `applies` from the tables `rests_on`, described in `allowed`.

    A key that has its default value is normally not refused, because nothing is lost and files of earlier versions
    contain such keys; it is refused if `always` is true.
    """

    keys: tuple[str, ...]
    allowed: str
    applies: Callable[[Scenario], bool]
    rests_on: tuple[str, ...]
    always: bool = False


class UnusedKey(NamedTuple):
    """Why a key has no effect, and whether it is refused even if it has its default value."""

    text: str
    always: bool


def unused_keys(scenario: Scenario, unread: Set[str] = frozenset()) -> dict[str, UnusedKey]:
    """Return the keys that no configuration of a scenario uses, with reasons; a whole table is named as "class[1]".

    Keys whose rules depend on tables that are `unread`, because a value in them is wrong, are left out.
    """
    if math.prod(len(axis.values) for axis in scenario.sweep) > MAX_CONFIGURATIONS:
        return {}  # too many configurations to look at, which is a mistake of its own
    unused: dict[str, UnusedKey] = {}
    for rule in RULES:
        if not any(table.startswith(rule.rests_on) for table in unread) and not _has_effect(rule, scenario):
            for key in rule.keys:
                unused.setdefault(key, UnusedKey(f"does nothing here; allowed: {rule.allowed}", rule.always))
    if not any(table.startswith(("class", "job", "policy", "fabric")) for table in unread):
        unused |= {
            key: UnusedKey(text, always=True) for key, text in (*_unused_classes(scenario), *_unused_policies(scenario))
        }
    return unused


def _has_effect(rule: Rule, scenario: Scenario) -> bool:
    try:
        return any(map(rule.applies, scenario.configurations()))
    except (ValueError, ScheduleError):  # the configuration has another mistake, which is reported
        return True


def _modes_of(config: Scenario) -> list[Mode]:
    return [config.modes[name] for name in config.run.modes if name in config.modes]


def _has_kind(*kinds: str) -> Callable[[Scenario], bool]:
    return lambda config: not config.kinds.isdisjoint(kinds)


def _uses_sampler(samplers: Collection[str]) -> Callable[[Scenario], bool]:
    return lambda config: config.conditions.sampler in samplers


def _has_blocks(config: Scenario) -> bool:
    return not config.kinds <= {*SELF_SIZED_KINDS}


def _reads_msccl(config: Scenario) -> bool:
    """Whether messages come from a file of MSCCL, which gives their chunks no size."""
    specs = [job.collective(config.collective) for job in config.jobs] or [config.collective]
    files = [spec.schedule for spec in specs if spec.kind == MESSAGES and spec.schedule is not None]
    return any(map(is_msccl, files))


def _has_chunk(config: Scenario) -> bool:
    """Whether a size is not given by [training] or a file."""
    return _has_blocks(config) or _reads_msccl(config)


def _may_choose_rings(config: Scenario) -> bool:
    """Whether an objective may be needed to choose rings."""
    return bool(config.run.referees) or any(mode.reembeds for mode in _modes_of(config))


def _uses_reembed_every(config: Scenario) -> bool:
    """Whether a mode uses `collective.reembed_every`, as its period or as the horizon over which a gain is weighed."""
    modes = _modes_of(config)
    if any(mode.reroute.kind == "every" and mode.reroute.number is None for mode in modes):
        return True
    if any("gain" in (mode.reroute.kind, mode.reembed.kind) and mode.horizon is None for mode in modes):
        return True
    moves = _has_blocks(config) or config.workload.groups != ()
    return moves and any(mode.reembed.kind == "every" and mode.reembed.number is None for mode in modes)


def _describes_a_job(config: Scenario) -> bool:
    """Whether [collective] describes what some job does, or what is repeated if there are no jobs."""
    kinds = {job.kind for job in config.jobs}
    return not kinds or not kinds.isdisjoint({None, config.collective.kind})


def _has_default_size(config: Scenario) -> bool:
    jobs = config.jobs
    return not jobs or any(
        job.has_default_size(config.collective) or (job.is_background and job.chunk_bytes is None) for job in jobs
    )


def _uses_tunnels(config: Scenario) -> bool:
    return not all(mode.reroutes for mode in _modes_of(config))


def _has_influence(attribute: str, other: Callable[[Any], Any]) -> Callable[[Scenario], bool]:
    """Return a test whether replacing a rate range or delay by `other(value)` changes the rate or delay of any link."""

    def applies(config: Scenario) -> bool:
        conditions, wan = config.conditions, config.fabric.wan
        if len(config.fabric.gpus_per_site) == 1 and attribute.startswith("wan"):
            return True  # another rule has the reason
        if not (conditions.links or wan.km or wan.rates_bps or conditions.sampler == "trace"):
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


_TRAINING_KEYS = tuple(key for key in KEYS if key.startswith("training."))
_REPLICA_KEYS = ("training.gradients", "training.gradient_size", "training.buckets", "training.across")
_PROGRAM_KEYS = tuple(key for key in KEYS if key.startswith("program.") and key != "program.command")
_PROGRAM_RUN_KEYS = ("program.ranks", "program.message", "program.sample")  # not used at the prompt
_SAMPLER_SETS = dict.fromkeys(key.samplers for key in KEYS.values() if key.samplers != SAMPLERS)
_TE_KEYS = ("te.every", "te.demand", "te.sample")
_SIZE_KEYS = ("collective.chunk", "collective.size")
_SCHEDULE_KEYS = ("collective.algorithm", "collective.channels", "collective.pieces", "collective.schedule")
_LINK_TABLES, _KIND_TABLES, _MODE_TABLES = ("conditions", "fabric"), ("collective", "job"), ("run", "policy")

RULES = (
    *(
        Rule(
            tuple(key.name for key in KEYS.values() if key.samplers == samplers),
            f"with the sampler {' or '.join(samplers)}",
            _uses_sampler(samplers),
            ("conditions",),
            always=True,
        )
        for samplers in _SAMPLER_SETS
    ),
    Rule(
        _TRAINING_KEYS,
        f'with the kind "{TRAINING}" of the collective or of a job',
        _has_kind(TRAINING),
        _KIND_TABLES,
        always=True,
    ),
    Rule(
        ("training.weights",),
        'with training.pipeline = "zero-bubble"',
        lambda config: config.training.pipeline == "zero-bubble",
        ("training",),
        always=True,
    ),
    Rule(
        _REPLICA_KEYS,
        "with training.replicas of 2 or more",
        lambda config: config.training.replicas > 1,
        ("training", *_KIND_TABLES),
    ),
    Rule(
        ("training.held",),
        "with training.memory",
        lambda config: config.training.memory_bytes is not None,
        ("training",),
    ),
    Rule(
        ("collective.tflops",),
        f'with the kind "{TRACE}" of the collective or of a job',
        _has_kind(TRACE),
        _KIND_TABLES,
        always=True,
    ),
    Rule(("collective.chunk",), "the sizes given by [training] or by a file", _has_chunk, _KIND_TABLES, always=True),
    Rule(("collective.size",), "the sizes given by [training] or by a file", _has_blocks, _KIND_TABLES, always=True),
    Rule(
        ("collective.ring",),
        f"with a kind other than {MESSAGES}, {TRACE} and {TRAINING}",
        _has_blocks,
        _KIND_TABLES,
        always=True,
    ),
    Rule(_SCHEDULE_KEYS, "with a kind other than training", lambda config: config.kinds != {TRAINING}, _KIND_TABLES),
    Rule(
        ("collective.kind", *_SCHEDULE_KEYS),
        "with a [[job]] that has no kind, or this one",
        _describes_a_job,
        _KIND_TABLES,
    ),
    Rule(
        _SIZE_KEYS,
        "with a [[job]] that has no size of its own",
        lambda config: _has_default_size(config) or _reads_msccl(config),
        _KIND_TABLES,
    ),
    Rule(("collective.ring",), "with a mode that chooses rings, or run.referees", _may_choose_rings, _MODE_TABLES),
    Rule(
        ("collective.reembed_every",),
        'with a mode whose "every" is without a number, or "gain" without a horizon, and a placement that may change',
        _uses_reembed_every,
        (*_MODE_TABLES, *_KIND_TABLES, "training"),
    ),
    Rule(
        ("conditions.wan_delay",),
        "with WAN links that have neither a length nor a delay of their own",
        _has_influence("wan_delay_s", lambda delay_s: delay_s + 1),
        _LINK_TABLES,
        always=True,
    ),
    Rule(
        ("conditions.intra_delay",),
        "with links within sites that have no delay of their own",
        _has_influence("intra_delay_s", lambda delay_s: delay_s + 1),
        _LINK_TABLES,
    ),
    Rule(
        ("conditions.wan_rate",),
        "with WAN links that have no rate of their own",
        _has_influence("wan_rate_bps", _doubled),
        _LINK_TABLES,
    ),
    Rule(
        ("conditions.intra_rate",),
        "with links within sites that have no rate of their own",
        _has_influence("intra_rate_bps", _doubled),
        _LINK_TABLES,
    ),
    Rule(
        (
            "fabric.border_routers",
            "fabric.wan",
            "fabric.sites",
            "fabric.paths",
            "fabric.wan_loss",
            "conditions.wan_rate",
            "conditions.wan_delay",
        ),
        "with two sites or more",
        lambda config: len(config.fabric.gpus_per_site) > 1,
        ("fabric",),
    ),
    Rule(
        ("fabric.hash_seed",),
        'with fabric.routing = "ecmp"',
        lambda config: config.fabric.routing == "ecmp",
        ("fabric",),
    ),
    Rule(
        (*_TE_KEYS, "te.pieces"),
        f'with fabric.routing = "{te.ROUTING}"',
        lambda config: config.fabric.routing == te.ROUTING,
        ("fabric",),
    ),
    Rule(_TE_KEYS, "with a mode that does not choose WAN paths", _uses_tunnels, _MODE_TABLES),
    Rule(("te.sample",), f'with te.demand = "{te.MEASURED}"', lambda config: config.te.demand == te.MEASURED, ("te",)),
    Rule(
        ("admission.protect",),
        f'with a [[job]] of the kind "{TRANSFER}" and fabric.routing = "{ADMITTING_ROUTING}"',
        lambda config: config.fabric.routing == ADMITTING_ROUTING and any(job.kind == TRANSFER for job in config.jobs),
        ("job", "fabric"),
    ),
    Rule(
        ("admission.recovery",),
        'with admission.protect = "link"',
        lambda config: config.admission.protects,
        ("admission",),
    ),
    Rule(
        ("control.probe",),
        "with a mode whose knowledge is probed",
        lambda config: any(mode.knowledge.kind == PROBED for mode in _modes_of(config)),
        _MODE_TABLES,
    ),
    Rule(
        tuple(key for key in _PROGRAM_KEYS if key not in (*_PROGRAM_RUN_KEYS, "program.capture")),
        "with --exec or program.command, or --cli",
        lambda config: config.program.command is not None,
        ("program",),
    ),
    Rule(
        _PROGRAM_RUN_KEYS, "with --exec or program.command", lambda config: bool(config.program.command), ("program",)
    ),
    Rule(
        ("program.capture",),
        "in a run; at a prompt (--cli) the verb capture does it",
        lambda config: config.program.command != "",
        ("program",),
    ),
    Rule(("run.search",), '"schedule" in run.referees', lambda config: "schedule" in config.run.referees, ("run",)),
)


def _unused_classes(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the classes that no job has, if there are jobs; one with a share affects admission in any case."""
    configs = [config for config in scenario.configurations() if config.jobs]
    used = {job.traffic_class for config in configs for job in config.jobs}
    if used - {None, *(each.name for config in configs for each in config.classes)}:
        return  # a job names a class that does not exist, which is a mistake of its own
    for config in configs:
        if any(job.kind == TRANSFER for job in config.jobs):
            used |= {each.name for each in config.classes if each.share}
    for classes in dict.fromkeys(config.classes for config in configs):
        for number, each in enumerate(classes, 1):
            if each.name not in used:
                yield f"class[{number}]", f"{each.name} does nothing: no job has it; allowed: a [[job]] of it"


def _unused_policies(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the keys of policies that have no effect because of the policy's other values."""
    has_tunnels = any(config.fabric.routing == te.ROUTING for config in scenario.configurations())
    for number, policy in enumerate(scenario.policies, 1):
        if policy.horizon is not None and "gain" not in (policy.reroute.kind, policy.reembed.kind):
            yield f"policy[{number}].horizon", f'{policy.horizon:,} does nothing here; allowed: with "gain"'
        chooses = policy.reroutes or policy.reembeds or has_tunnels  # rates of tunnels depend on knowledge, too
        if policy.knowledge != ORACLE and not chooses:
            text = f"{policy.knowledge} does nothing here; allowed: with reroute or reembed other than never"
            yield f"policy[{number}].knowledge", text


def is_default(scenario: Scenario, key: str) -> bool:
    """Return whether a key has its default value in all configurations."""
    return key in KEYS and all(config.value(key) == DEFAULTS.value(key) for config in scenario.configurations())
