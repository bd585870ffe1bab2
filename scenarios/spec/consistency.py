"""Checks of a scenario's values together; each value by itself is valid."""

import math
from collections.abc import Iterator, Set
from contextlib import contextmanager
from itertools import pairwise

from analysis.model.optimal_schedule import COPIED, MAX_GPUS
from hosts.agent.transport import Transport
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, TRAINING
from hosts.collectives.schedule import ScheduleError
from scenarios.policies.decide import flows_without_path, probes_of, rank_order_of
from scenarios.policies.knowledge import LATE, PORTS, PROBED
from scenarios.policies.policy import Mode
from scenarios.spec import admission_checks, faults, jobs, program, te
from scenarios.spec.collective import CollectiveSpec, workload_of
from scenarios.spec.keys import MAX_CONFIGURATIONS
from scenarios.spec.scenario import MAX_OPTIMUM, RunSpec, Scenario
from topologies import units
from topologies.conditions import sampler
from topologies.conditions.sampler import ConditionsSpec
from topologies.errors import Mistake, SpecError, conflicts, did_you_mean, format_value
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.shaping.rate_scale import FULL_SCALE, ScaleError

MAX_PROBES = 400  # their connections are open at the same time
MIN_CHANGE_S = 0.005  # Open vSwitch's interval for revalidating kernel flows (`scenarios.vm.openvswitch`)


def inconsistencies(scenario: Scenario, unread: Set[str], *, at_prompt: bool = False) -> Iterator[Mistake]:
    """Yield the mistakes in a scenario's values together; each value by itself is valid.

    `unread` are the tables with an invalid value, for which the scenario has defaults; checks that depend on them are
    skipped. `at_prompt`: the scenario's collective may never run.
    """
    spanned = math.prod(len(axis.values) for axis in scenario.sweep)
    if spanned > MAX_CONFIGURATIONS:
        yield Mistake("sweep", f"its axes span {spanned:,} configurations; allowed: {MAX_CONFIGURATIONS:,} at most")
        return
    configs, mistakes = scenario.configurations(), list[Mistake]()
    if "run" not in unread and not any(table.startswith("policy") for table in unread):
        mistakes += _check_modes(scenario)
    fabrics: dict[FabricSpec, Fabric] = {}
    if "fabric" not in unread:
        for spec in dict.fromkeys(config.fabric for config in configs):
            with _collect(mistakes):
                fabrics[spec] = build_fabric(spec)
    if "conditions" not in unread:
        for conditions in dict.fromkeys(config.conditions for config in configs):
            with _collect(mistakes):
                sampler.check(conditions)
    if not unread & {"run", "collective"}:
        for run in dict.fromkeys(config.run for config in configs):
            mistakes += _check_scale(run)
    if not mistakes and not unread:
        for config in configs:
            with _collect(mistakes):  # planning a training draws conditions, whose trace may be missing
                mistakes += [
                    *_check_program(config, fabrics[config.fabric]),
                    *_check_workload(config, fabrics[config.fabric], at_prompt=at_prompt),
                    *_check_queue(config),
                    *_check_classes(config),
                    *_check_changing_conditions(config),
                    *_check_control(config),
                    *_check_probes(config),
                    *_check_referees(config),
                    *_check_te(config),
                ]
        mistakes += [] if mistakes else _check_bests(scenario)
        for spec, struck, count in dict.fromkeys(
            (config.fabric, config.faults, config.collective.count) for config in configs
        ):
            mistakes += faults.check(struck, fabrics[spec], count=count)
        runs_none = at_prompt or scenario.program.command is not None  # of the collectives that are counted
        for spec, conditions, count in dict.fromkeys(
            (config.fabric, config.conditions, config.collective.count) for config in configs
        ):
            with _collect(mistakes):
                sampler.check_links(fabrics[spec], conditions)
                mistakes += _check_trace(fabrics[spec], conditions, None if runs_none else count)
    yield from dict.fromkeys(mistakes)


@contextmanager
def _collect(mistakes: list[Mistake]) -> Iterator[None]:
    """Add the mistakes of a SpecError raised within to `mistakes`."""
    try:
        yield
    except SpecError as error:
        mistakes += error.mistakes


def _check_modes(scenario: Scenario) -> Iterator[Mistake]:
    """Check that the modes to compare exist and that their knowledge is available."""
    for name in scenario.run.modes:
        if name not in scenario.modes:
            allowed = f"{', '.join(scenario.modes)}{did_you_mean(name, scenario.modes)}"
            yield Mistake("run.modes", f"{format_value(name)} is not known; allowed: {allowed}")
        elif scenario.run.is_real and scenario.mode(name).knowledge.kind in (PORTS, PROBED):
            text = f"{name} uses {scenario.mode(name).knowledge}, which the wall clock does not provide"
            yield Mistake("run.modes", f"{text}; allowed: the virtual clock, or any other knowledge")


def _check_scale(run: RunSpec) -> Iterator[Mistake]:
    """Check that rates are scaled on the wall clock only: virtual time needs no scale and would not show it."""
    if not run.is_real and run.scale != FULL_SCALE:
        yield Mistake("run.rate_scale", f"{run.scale} is for the wall clock; allowed: 1 with the virtual clock")


def _check_program(config: Scenario, fabric: Fabric) -> Iterator[Mistake]:
    """Check what a program needs: the network knows its connections only as pairs of GPUs."""
    yield from program.check_captures(config.program, fabric)
    yield from faults.check_times(config.faults, of_program=config.program.command is not None)
    if config.program.command is None:
        return
    yield from program.check(config.program, config.mode(config.run.modes[0]), fabric)
    yield from program.check_routing(fabric)
    ranks = config.program.ranks_of(config.gpus)
    for number, fault in enumerate(config.faults, 1):
        if fault.kind == "agent killed" and int(fault.target) not in ranks and int(fault.target) < config.gpus:
            allowed = f"allowed: the GPUs of program.ranks, {', '.join(map(str, ranks))}"
            yield Mistake(f"fault[{number}].what", f"the program has no rank on GPU {fault.target}; {allowed}")
    if config.jobs and config.run.is_real:
        text = "jobs beside a program cannot be combined with the wall clock; allowed: virtual"
        yield Mistake("job", text)


def _check_changing_conditions(config: Scenario) -> Iterator[Mistake]:
    """Check conditions that change by time, which need fair queues in virtual time, without faults and classes."""
    for number, one in enumerate(config.policies, 1):
        for key, text in _check_policy_times(config, one):
            yield Mistake(f"policy[{number}].{key}", text)
    if config.conditions.every_s is None:
        return
    others = {
        "the wall clock": config.run.is_real,
        "faults": config.faults and config.program.command is None,
        "classes": config.classes,
        "control.counted": config.control.counted
        and config.program.command is None,  # conditions would not change during a reconfiguration
    }
    yield from conflicts("conditions.every", "a time", others)


def _check_policy_times(config: Scenario, policy: Mode) -> Iterator[tuple[str, str]]:
    """Yield mistakes, with their keys, in what a policy does by time: paths can only change when conditions do, by
    knowledge of that time, and not before the switches have carried out the previous change."""
    every_s, within_s = config.conditions.every_s, policy.reroute.within_s
    knowledge, text = format_value(str(policy.knowledge)), format_value(str(policy.reroute))
    if every_s is None:
        if policy.knowledge.kind == LATE:
            yield "knowledge", f"{knowledge} is given as a time; allowed: only with conditions.every"
        if within_s is not None:
            yield "reroute", f"{text} is given as a time; allowed: only with conditions.every"
        return
    if within_s is None:
        return
    every, trip_s = units.format_delay(every_s), 2 * max(config.control_delays_s or (0,))
    if round(within_s * 1e9) % round(every_s * 1e9):
        yield "reroute", f"{text} is not a multiple of conditions.every; allowed: every {every}, twice that, and so on"
    if policy.knowledge.kind not in ("oracle", LATE):
        yield "knowledge", f"{knowledge} cannot be combined with reroute {text}; allowed: oracle, stale TIME"
    if config.transport.queue != "fair":
        yield "reroute", f'{text} cannot be combined with transport.queue "{config.transport.queue}"; allowed: "fair"'
    if trip_s >= every_s:
        trip = f"{text} needs a shorter round trip to the switches than {units.format_delay(trip_s)}"
        yield "reroute", f"{trip}; allowed: less than conditions.every"
    delays_s = sorted({*config.control_delays_s} or {0.0})
    gaps_s = [later - sooner for sooner, later in pairwise([*delays_s, delays_s[0] + within_s])]
    if min(gaps_s) < MIN_CHANGE_S * (1 - 1e-9):
        least = units.format_delay(MIN_CHANGE_S)
        yield "reroute", f"{text} makes switches change less than {least} apart; allowed: {least} apart, or at once"
    if "policy" in config.run.referees:
        yield "reroute", f"{text} cannot be combined with the best policy, which keeps paths; allowed: one of the two"


def _check_control(config: Scenario) -> Iterator[Mistake]:
    """Check the delays of the controller: one for each site, and in virtual time only."""
    delays_s, sites = config.control.delay_s, len(config.fabric.gpus_per_site)
    if isinstance(delays_s, tuple) and len(delays_s) != sites:
        yield Mistake(
            "control.delay",
            f"{len(delays_s)} delay{'s' * (len(delays_s) != 1)} for {sites} sites; allowed: one for each",
        )
    if delays_s is not None and config.run.is_real:
        yield Mistake("control.delay", "cannot be combined with the wall clock; allowed: virtual")


def _check_probes(config: Scenario) -> Iterator[Mistake]:
    """Check what probes need: a probe is a separate message, sent at line rate over the path of its two ranks."""
    probing = [name for name in config.run.modes if config.modes[name].knowledge.kind == PROBED]
    if not probing:
        return
    transport, routing = config.transport, config.fabric.routing
    others = {
        f'fabric.routing "{routing}"': routing != "single",
        "fabric.rails": config.fabric.has_planes,
        "transport.line_rate false": not transport.line_rate,
        "fabric.buffer": transport.buffer_bytes is not None,
    }
    yield from conflicts("run.modes", f"{probing[0]}, which probes,", others)
    if config.program.command is not None:
        return  # a program with such a mode is reported elsewhere, and has no collective
    fabric = build_fabric(config.fabric)
    in_order = rank_order_of(fabric, config.workload)
    for name in probing:
        if (count := len(probes_of(fabric, config.mode(name), config.workload, in_order))) > MAX_PROBES:
            text = f"{name} has {count:,} probes, one for each path of each crossing"
            yield Mistake("run.modes", f"{text}; allowed: {MAX_PROBES}")


def _check_referees(config: Scenario) -> Iterator[Mistake]:
    """Check that references are known: for collectives without faults, best schedules and policies for some hundred."""
    if not config.run.referees:
        return
    kind, count = config.collective.kind, config.collective.count
    traced = all(fault.is_traced for fault in config.faults)
    others = {
        "jobs": config.jobs,
        "outages in the trace" if traced else "faults": config.faults,
        "a program": config.program.command,
        kind: kind in (MESSAGES, TRAINING),
    }
    for other in (name for name, is_there in others.items() if is_there):
        text = f"cannot be combined with {other}, of which no best is known"
        yield Mistake("run.referees", f"{text}; allowed: one of the two")
    for what in ("schedule", "policy"):
        if what in config.run.referees and count > MAX_OPTIMUM:
            text = f"the best {what} of {count:,} collectives; allowed: collective.count up to {MAX_OPTIMUM}"
            yield Mistake("run.referees", text)


def _check_bests(scenario: Scenario) -> Iterator[Mistake]:
    """Check that the fastest ring and the best schedule, if requested, are known in at least one configuration."""
    if "schedule" in scenario.run.referees and not any(one.has_best_schedule for one in scenario.configurations()):
        text = "no best schedule is known here; allowed: ring, policy, or whole blocks that take one path, of "
        yield Mistake("run.referees", f"{text}{', '.join(COPIED)}, and up to {MAX_GPUS} GPUs")
    if "ring" in scenario.run.referees and not any(one.has_best_ring for one in scenario.configurations()):
        text = "no best ring is known here; allowed: policy, or whole blocks around one ring that shares no link"
        yield Mistake("run.referees", text)


def _check_classes(config: Scenario) -> Iterator[Mistake]:
    """Check what classes need: fair queues in virtual time, and jobs."""
    if not config.classes:
        return
    if config.run.is_real or config.transport.queue != "fair":
        where = "on the wall clock" if config.run.is_real else f'with transport.queue "{config.transport.queue}"'
        yield Mistake("class", f"classes {where}; allowed: fair queues in virtual time")
    if not config.jobs:
        yield Mistake("class", "classes without a [[job]] that has one; allowed: both or none")


def _check_te(config: Scenario) -> Iterator[Mistake]:
    """Check what traffic engineering needs: fair queues in virtual time, and constant conditions in a collective."""
    if config.fabric.routing != te.ROUTING:
        return
    others = {
        "the wall clock": config.run.is_real,
        'transport.queue "fifo"': config.transport.queue != "fair",
        "conditions.every": config.conditions.every_s is not None,
        "control.counted": config.control.counted,
        "fabric.rails": config.fabric.has_planes,
    }
    yield from te.check(config.te, {name: config.mode(name) for name in config.run.modes}, config.classes, others)


def _check_queue(config: Scenario) -> Iterator[Mistake]:
    """Check finite queues, which need fifo links and virtual time, and ECN marks, which only dctcp reacts to; and the
    bound of the retransmission timeout, which not every machine's kernel can set."""
    transport, key = config.transport, "fabric.buffer"
    size, threshold = transport.buffer_bytes, transport.ecn_threshold_bytes
    if size is not None:
        text = f"{units.format_size(size)} cannot be combined with"
        if transport.queue != "fifo":
            yield Mistake(key, f'{text} transport.queue "{transport.queue}"; allowed: "fifo"')
        if config.run.is_real:
            yield Mistake(key, f"{text} the wall clock, whose timers overrun a queue; allowed: virtual")
        if config.fabric.has_planes and any(config.mode(name).keeps_paths for name in config.run.modes):
            why = "as each collective has new connections; allowed: reroute never and every 1"
            yield Mistake(key, f"{text} rails and a mode that keeps paths, {why}")
        if any(fault.kind == "link loss" for fault in config.faults):
            yield Mistake(key, f"{text} a link loss, which takes the queue's place; allowed: one of the two")
    if transport.wan_loss and size is None:
        yield Mistake("fabric.wan_loss", f"{transport.wan_loss:g} needs a fabric.buffer; allowed: both or 0")
    if config.run.is_real and transport.rto_min_s != Transport.rto_min_s:
        text = f"{units.format_delay(transport.rto_min_s)} is on the wall clock"
        yield Mistake("transport.rto_min", f"{text}; allowed: {units.format_delay(Transport.rto_min_s)} there")
    if threshold is not None:
        key, text = "transport.ecn_threshold", units.format_size(threshold)
        if transport.congestion_control != "dctcp":
            name = transport.congestion_control
            yield Mistake(key, f'{text} cannot be combined with the congestion control {name}; allowed: "dctcp"')
        if size is None or threshold >= size:
            below = f"is not below the {units.format_size(size)} of" if size is not None else "needs a"
            yield Mistake(key, f"{text} {below} fabric.buffer; allowed: a threshold below a buffer")


def _check_workload(config: Scenario, fabric: Fabric, *, at_prompt: bool) -> Iterator[Mistake]:
    """Check that the workload is possible, and that on the wall clock every message has at least a byte."""
    spec = config.collective
    of_jobs = jobs.check(config.jobs, spec.kind, config.gpus, config.classes)
    has_program = config.program.command is not None
    if config.jobs and not has_program and all(job.is_background for job in config.jobs):
        yield Mistake("job", "all jobs are background; allowed: at least one job that is not, or a program")
    if mistakes := [*of_jobs, *admission_checks.check(config)]:
        yield from mistakes
        return
    try:
        _ = config.carried_workload
        may_send_elsewhere = at_prompt and any(with_paths(fabric, kind) for kind in ALGORITHMS)
        if (config.jobs or not has_program) and not may_send_elsewhere:
            yield from _check_paths(config, fabric)
    except ScheduleError as error:
        yield Mistake(_blamed_key(config), str(error))
    except ScaleError as error:
        yield Mistake("run.rate_scale", str(error))


def _blamed_key(config: Scenario) -> str:
    """Return the key whose value makes the workload impossible."""
    spec = config.collective
    if config.jobs:
        return "job"
    if config.training_plan is not None:
        return "training.pipeline"
    if spec.schedule is not None or spec.kind not in ALGORITHMS:
        return "collective.kind" if spec.schedule is None else "collective.schedule"
    algorithm = spec.algorithm or ALGORITHMS[spec.kind][0]
    if algorithm not in ALGORITHMS[spec.kind]:
        return "collective.algorithm"
    if spec.channels > 1 and algorithm != "ring":
        return "collective.channels"
    return "collective.pieces" if spec.pieces > 1 else "collective.kind"  # too many transfers


def _check_paths(config: Scenario, fabric: Fabric) -> Iterator[Mistake]:
    """Check that a WAN path joins the two sites of every flow: the sites may be in a line, or a tree."""
    workload, spec = config.workload, config.collective
    lost = flows_without_path(fabric, workload)
    if not lost:
        return
    flow, src, dst = lost[0]
    a, b = sorted(fabric.gpu_sites[[src, dst]].tolist())
    why = f"no WAN path joins the sites {a} and {b}, as border routers carry no traffic of other sites"
    what, key = f"{workload.algorithm} sends from g{src} to g{dst}, and", "collective.schedule"
    allowed = "links or transit routers that join them"
    if config.jobs:
        transfers = workload.schedule.transfers
        names = [job.name for job in workload.jobs if any(transfers[at].flow == flow for at in job.transfers)]
        what, key = f"{names[0]} sends from g{src} to g{dst}, and", "job"
    elif config.training_plan is not None:
        key = "training.across"
    elif spec.schedule is None:
        key, allowed = "collective.algorithm", f"{allowed}{_fitting(spec.kind, fabric)}"
        what = "no ring can visit every site once:" if workload.is_ring else what
    yield Mistake(key, f"{what} {why}; allowed: {allowed}")


def with_paths(fabric: Fabric, kind: str) -> list[str]:
    """Return the algorithms of a kind of collective whose flows all have paths over the WAN."""
    specs = [CollectiveSpec(kind=kind, algorithm=name) for name in ALGORITHMS[kind]]
    workloads = {str(spec.algorithm): workload_of(spec, fabric.gpus_per_site) for spec in specs}
    return [name for name, workload in workloads.items() if not flows_without_path(fabric, workload)]


def _fitting(kind: str, fabric: Fabric) -> str:
    """Return the algorithms of a kind whose flows all have paths, or else those of other kinds, as further ways out."""
    if of_kind := with_paths(fabric, kind):
        return f", or the algorithm {' or '.join(of_kind)}"
    of_others = [f"{other} by {' or '.join(names)}" for other in ALGORITHMS if (names := with_paths(fabric, other))]
    return "".join(f", or {one}" for one in of_others)


def _check_trace(fabric: Fabric, conditions: ConditionsSpec, count: int | None) -> Iterator[Mistake]:
    """Check that a trace can be read and covers `count` collectives, if that is given; raises ConditionsError."""
    limit = None if conditions.trace is None else sampler.sampler(fabric, conditions, seed=0).limit
    if limit is not None and count is not None and count > limit:
        yield Mistake("collective.count", f"{count:,} is too large: the trace covers {limit:,}")
