"""Checks of a scenario's values together; each value by itself is valid."""

import math
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import pairwise

from analysis.model.optimal_schedule import COPIED, MAX_GPUS
from analysis.statistics.contests import MODE
from hosts.agent.transport import ROCE, TCP, VERBS
from hosts.collectives.background import MATRIX
from hosts.collectives.kinds import ALGORITHMS
from hosts.collectives.schedule import ScheduleError
from hosts.embedding.ring import MAX_RING_SITES
from scenarios.policies.decide import flows_without_path, probes_of, rank_order_of
from scenarios.policies.knowledge import LATE, PORTS, PROBED
from scenarios.policies.policy import Mode
from scenarios.spec import admission_checks, faults, jobs, program, te
from scenarios.spec.collective import CollectiveSpec, workload_of
from scenarios.spec.emulated import Emulated, numbers_of
from scenarios.spec.exclusions import exclusions
from scenarios.spec.keys import MAX_CONFIGURATIONS
from scenarios.spec.labels import baseline_of, value_words
from scenarios.spec.movement import Movement
from scenarios.spec.round_workload import JobError
from scenarios.spec.scenario import MAX_OPTIMUM, Scenario
from topologies import units
from topologies.conditions import background_load, sampler
from topologies.conditions.sampler import ConditionsSpec
from topologies.errors import Mistake, SpecError, did_you_mean, format_value, list_first
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.shaping.rate_scale import ScaleError

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
        mistakes += [*_check_modes(scenario), *_check_baseline(configs)]
    fabrics: dict[FabricSpec, Fabric] = {}
    if "fabric" not in unread:
        for spec in dict.fromkeys(config.fabric for config in configs):
            with _collect(mistakes):
                fabrics[spec] = build_fabric(spec)
    if "conditions" not in unread:
        for conditions in dict.fromkeys(config.conditions for config in configs):
            with _collect(mistakes):
                sampler.check(conditions)
    if not mistakes and not unread:
        for config in configs:
            with _collect(mistakes):  # planning a training draws conditions, whose trace may be missing
                excluded = list(exclusions(config))
                mistakes += [
                    *excluded,
                    *_check_program(config, fabrics[config.fabric]),
                    *([] if excluded else _check_workload(config, fabrics[config.fabric], at_prompt=at_prompt)),
                    *_check_queue(config),
                    *_check_changing_conditions(config),
                    *_check_control(config),
                    *_check_probes(config),
                    *_check_rings(config),
                    *_check_machines(config),
                    *_check_moves(config),
                    *_check_referees(config),
                    *_check_emulated(config),
                    *te.check(config.te, config.fabric.routing),
                ]
        mistakes += [] if mistakes else [*_check_bests(scenario), *_check_crossings(configs)]
        for spec, struck, count in dict.fromkeys(
            (
                config.fabric,
                config.faults,
                faults.MAX_NUMBER + 1 if config.program.is_given else config.collective.count,
            )
            for config in configs
        ):
            mistakes += faults.check(struck, fabrics[spec], count=count)
        runs_none = at_prompt or scenario.program.is_given  # of the collectives that are counted
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


def _check_baseline(configs: Sequence[Scenario]) -> Iterator[Mistake]:
    """Check that what is wanted as the baseline is a mode of the run, or a value of a swept key."""
    found = {MODE: list(configs[0].run.modes)}
    for key in dict(configs[0].at):
        found[key] = list(dict.fromkeys(value_words(key, dict(one.at)[key]) for one in configs))
    try:
        wanted = baseline_of(configs[0])
    except ValueError as error:
        yield Mistake("run.baseline", str(error))
        return
    if MODE in wanted and len(wanted) > 1 and len(found[MODE]) > 1:
        several = "names a mode and a swept key's value, and only one of them can compete"
        yield Mistake("run.baseline", f"{several}; allowed: one of the two, or one mode")
    for key, words in wanted.items():
        if words not in found[key]:
            kind = "a mode of" if key == MODE else f"a value of {key} in"
            text = f"{format_value(words)} is not {kind} this run; allowed: {list_first(found[key], 8)}"
            yield Mistake("run.baseline", text)


def _check_modes(scenario: Scenario) -> Iterator[Mistake]:
    """Check that the modes to compare exist."""
    for name in scenario.run.modes:
        if name not in scenario.modes:
            allowed = f"{', '.join(scenario.modes)}{did_you_mean(name, scenario.modes)}"
            yield Mistake("run.modes", f"{format_value(name)} is not known; allowed: {allowed}")


def _check_program(config: Scenario, fabric: Fabric) -> Iterator[Mistake]:
    """Check what a program needs: the network knows its connections only as pairs of GPUs."""
    yield from program.check_captures(config.program, fabric)
    yield from faults.check_times(config.faults, of_program=config.program.is_given)
    if not config.program.is_given:
        return
    yield from program.check(config.program, fabric)
    yield from _check_program_readings(config)
    ranks = config.program.ranks_of(config.fabric.gpus_per_site)
    for number, fault in enumerate(config.faults, 1):
        if fault.kind == "agent killed" and int(fault.target) not in ranks and int(fault.target) < config.gpus:
            allowed = f"allowed: the GPUs of program.ranks, {', '.join(map(str, ranks))}"
            yield Mistake(f"fault[{number}].what", f"the program has no rank on GPU {fault.target}; {allowed}")
        if fault.mark_rank is not None and fault.mark_rank >= len(ranks):
            text = f"the program has no rank {fault.mark_rank}; allowed: 0 to {len(ranks) - 1}"
            yield Mistake(f"fault[{number}].at", text)


def _check_program_readings(config: Scenario) -> Iterator[Mistake]:
    """Check that ports are read, and readings arrive, before the row of conditions that they show is over, or else that
    collectives of a script are planned by them."""
    for mode in (config.modes[name] for name in config.run.modes if name in config.modes):
        if mode.knowledge.kind != PORTS or mode.measure_every_s is None:
            continue
        every_s, delay_s = config.conditions.every_s, max(config.control_delays_s, default=0.0)
        text = f"{mode.name} reads ports in each row of a program's conditions"
        if every_s is None:
            if delay_s and config.program.backend == program.LONGHAUL:
                late = f"{mode.name} reads ports before collectives of a script, and control.delay makes readings late"
                yield Mistake("run.modes", f"{late}; allowed: with conditions.every, or without control.delay")
        elif mode.measure_every_s + delay_s >= every_s:
            first = units.format_delay(mode.measure_every_s + delay_s)
            yield Mistake(
                "run.modes", f"{text}, and its second reading arrives after {first}; allowed: before the next row"
            )


def _check_changing_conditions(config: Scenario) -> Iterator[Mistake]:
    """Check policies that act by time."""
    for number, one in enumerate(config.policies, 1):
        for key, text in _check_policy_times(config, config.modes[one.name]):
            is_given = key == "knowledge" and one.inherits
            yield Mistake("control.knowledge" if is_given else f"policy[{number}].{key}", text)
    knowledge = config.control.knowledge
    if knowledge.kind == LATE and config.conditions.every_s is None:
        text = f"{format_value(str(knowledge))} is given as a time; allowed: only with conditions.every"
        yield Mistake("control.knowledge", text)


def _check_policy_times(config: Scenario, policy: Mode) -> Iterator[tuple[str, str]]:
    """Yield mistakes, with their keys, in what a policy does by time: paths can only change when conditions do, by
    knowledge of that time, and not before the switches have carried out the previous change."""
    every_s, within_s = config.conditions.every_s, policy.reroute.within_s
    knowledge, text = format_value(str(policy.knowledge)), format_value(str(policy.reroute))
    if every_s is None:
        if policy.knowledge.kind == LATE and not policy.inherits:
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
    if trip_s >= every_s:
        trip = f"{text} needs a shorter round trip to the switches than {units.format_delay(trip_s)}"
        yield "reroute", f"{trip}; allowed: less than conditions.every"
    delays_s = sorted({*config.control_delays_s} or {0.0})
    gaps_s = [later - sooner for sooner, later in pairwise([*delays_s, delays_s[0] + within_s])]
    if min(gaps_s) < MIN_CHANGE_S * (1 - 1e-9):
        least = units.format_delay(MIN_CHANGE_S)
        yield "reroute", f"{text} makes switches change less than {least} apart; allowed: {least} apart, or at once"


def _check_control(config: Scenario) -> Iterator[Mistake]:
    """Check the delays of the controller: one for each site."""
    delays_s, sites = config.control.delay_s, len(config.fabric.gpus_per_site)
    if isinstance(delays_s, tuple) and len(delays_s) != sites:
        yield Mistake(
            "control.delay",
            f"{len(delays_s)} delay{'s' * (len(delays_s) != 1)} for {sites} sites; allowed: one for each",
        )


def _check_probes(config: Scenario) -> Iterator[Mistake]:
    """Check that probes, whose connections are open at the same time, are not too many."""
    probing = [name for name in config.run.modes if config.modes[name].knowledge.kind == PROBED]
    if not probing:
        return
    fabric, is_program = build_fabric(config.fabric), config.program.is_given
    for name in probing:
        if is_program:
            probes = config.program_probes
        else:
            probes = probes_of(fabric, config.mode(name), config.workload, rank_order_of(fabric, config.workload))
        if (count := len(probes)) > MAX_PROBES:
            of_each = "two of the program's GPUs in two sites" if is_program else "crossing"
            text = f"{name} has {count:,} probes, one for each path of each {of_each}"
            yield Mistake("run.modes", f"{text}; allowed: {MAX_PROBES}")


def _check_rings(config: Scenario) -> Iterator[Mistake]:
    """Check that rings, if a mode or a referee chooses them, are over few sites: every order of the sites is tried."""
    sites = len(config.fabric.gpus_per_site)
    choosing = [name for name in config.run.modes if config.modes[name].reembeds]
    choosing += [f"run.referees {name}" for name in config.run.referees]
    if sites > MAX_RING_SITES and choosing and not config.program.is_given:
        text = f"{choosing[0]} chooses rings over {sites} sites; allowed: up to {MAX_RING_SITES}"
        yield Mistake("run.modes", f"{text}, or modes that keep the ring")


def _check_machines(config: Scenario) -> Iterator[Mistake]:
    sites = len(config.fabric.gpus_per_site)
    if config.run.machines > sites:
        yield Mistake("run.machines", f"{config.run.machines} machines for {sites} sites; allowed: up to one a site")


def _check_moves(config: Scenario) -> Iterator[Mistake]:
    """Check that links move where their movement is carried out: beside a program, on the shortest paths."""
    moves = config.conditions.moves
    if moves is None:
        return
    needs = {
        "a program": config.program.is_given,
        "conditions.every, the time from one row to the next": config.conditions.every_s is not None,
        'run.modes = ["base"]': config.run.modes == ("base",),
        'fabric.routing = "single"': config.fabric.routing == "single",
        "the virtual clock": not config.run.is_real,
        "no faults, jobs or buffers": not (config.faults or config.jobs or config.transport.buffer_bytes),
    }
    if lacking := [what for what, is_there in needs.items() if not is_there]:
        yield Mistake("conditions.moves", f"{format_value(moves)} is for other scenarios; allowed: with {lacking[0]}")
    else:
        Movement(config).check()


def _check_referees(config: Scenario) -> Iterator[Mistake]:
    """Check that best schedules and policies are of some hundred collectives."""
    count = config.collective.count
    for what in ("schedule", "policy"):
        if what in config.run.referees and count > MAX_OPTIMUM:
            text = f"the best {what} of {count:,} collectives; allowed: collective.count up to {MAX_OPTIMUM}"
            yield Mistake("run.referees", text)


def _check_emulated(config: Scenario) -> Iterator[Mistake]:
    """Check that the model computes the collectives that the emulation measures."""
    spec = config.collective
    is_beyond = isinstance(spec.emulated, Emulated) and (spec.emulated.last or 0) >= spec.count
    if is_beyond or not numbers_of(spec.emulated, spec.count):
        text = f"{format_value(str(spec.emulated))} goes beyond the {spec.count:,} collectives of collective.count"
        yield Mistake("collective.emulated", f"{text}; allowed: numbers from 0 to {spec.count - 1:,}")


def _check_bests(scenario: Scenario) -> Iterator[Mistake]:
    """Check that the fastest ring and the best schedule, if requested, are known in at least one configuration."""
    if "schedule" in scenario.run.referees and not any(one.has_best_schedule for one in scenario.configurations()):
        text = "no best schedule is known here; allowed: ring, policy, or whole blocks that take one path, of "
        yield Mistake("run.referees", f"{text}{', '.join(COPIED)}, and up to {MAX_GPUS} GPUs")
    if "ring" in scenario.run.referees and not any(one.has_best_ring for one in scenario.configurations()):
        text = "no best ring is known here; allowed: policy, or whole blocks around one ring that shares no link"
        yield Mistake("run.referees", text)


def _check_crossings(configs: Sequence[Scenario]) -> Iterator[Mistake]:
    """Check that a congestion control of connections between sites has some in at least one configuration."""
    chosen = [config.transport.congestion_control for config in configs]
    apart = [one for one in chosen if not one.is_one]
    if apart and all(len(config.fabric.gpus_per_site) == 1 for config in configs):
        text = f"{apart[0].words}, but fabric.gpus has one site; allowed: one name for all connections"
        yield Mistake("transport.congestion_control", text)


def _check_queue(config: Scenario) -> Iterator[Mistake]:
    """Check what loss and ECN marks need of queues."""
    transport = config.transport
    if transport.protocol == VERBS and transport.device_kind != ROCE:
        text = f"{VERBS} connects queue pairs of soft-RoCE, and transport.rdma is {format_value(transport.rdma)}"
        yield Mistake("transport.protocol", f'{text}; allowed: transport.rdma "{ROCE}", or "{TCP}"')
    size, threshold = transport.buffer_bytes, transport.ecn_threshold_bytes
    if transport.wan_loss and size is None:
        yield Mistake("fabric.wan_loss", f"{transport.wan_loss:g} needs a fabric.buffer; allowed: both or 0")
    if threshold is not None:
        key, text = "transport.ecn_threshold", units.format_size(threshold)
        if size is None or threshold >= size:
            below = f"is not below the {units.format_size(size)} of" if size is not None else "needs a"
            yield Mistake(key, f"{text} {below} fabric.buffer; allowed: a threshold below a buffer")


def _check_workload(config: Scenario, fabric: Fabric, *, at_prompt: bool) -> Iterator[Mistake]:
    """Check that the workload is possible, and that on the wall clock every message has at least a byte."""
    of_jobs = jobs.check(config.jobs, config.gpus, config.classes)
    has_program = config.program.is_given
    if config.jobs and not has_program and all(job.is_background for job in config.jobs):
        yield Mistake("job", "all jobs are background; allowed: at least one job that is not, or a program")
    if mistakes := [*of_jobs, *admission_checks.check(config)]:
        yield from mistakes
        return
    if mistakes := [*_check_matrix(config)]:
        yield from mistakes
        return
    try:
        _ = config.carried_workload
        if config.heaviest_round:
            _ = config.of_round(config.heaviest_round).workload
        may_send_elsewhere = at_prompt and any(with_paths(fabric, kind) for kind in ALGORITHMS)
        if (config.jobs or not has_program) and not may_send_elsewhere:
            yield from _check_paths(config, fabric)
    except ScheduleError as error:
        yield Mistake(f"job[{error.number}]" if isinstance(error, JobError) else _blamed_key(config), str(error))
    except ScaleError as error:
        yield Mistake("run.rate_scale", str(error))


def _check_matrix(config: Scenario) -> Iterator[Mistake]:
    """Check that a load that sends has one job for it, and what both need."""
    load, key = config.conditions.load, f"{background_load.KEY}.as"
    senders = [number for number, job in enumerate(config.jobs, 1) if job.sends_matrix]
    if load is None or not load.sends:
        needs = f'{key} = "{background_load.FLOWS}"'
        yield from (Mistake(f"job[{one}].pattern", f"{MATRIX} needs a load; allowed: with {needs}") for one in senders)
    elif len(senders) != 1:
        text = f"{background_load.FLOWS} are sent by one job; allowed: one of kind background with the pattern {MATRIX}"
        yield Mistake(key, f"{text}, not {len(senders)}")
    elif not config.fabric.sites:
        yield Mistake(key, f"{background_load.FLOWS} need sites at the WAN's nodes; allowed: with fabric.sites")
    elif config.conditions.every_s is not None:
        yield Mistake(key, f"{background_load.FLOWS} have a matrix for each round; allowed: without conditions.every")
    elif config.fabric.routing == te.ROUTING:
        yield Mistake(key, f"{background_load.FLOWS} ask for no tunnels; allowed: a fabric.routing other than te")
    else:
        (number,) = senders
        site = [index for index, gpus in enumerate(config.fabric.gpus_per_site) for _ in range(gpus)]
        ranks = config.jobs[number - 1].ranks or range(config.gpus)
        if without := {*site} - {site[rank] for rank in ranks}:
            text = f"{list(ranks)} has no GPU of site {min(without)}; allowed: one of each site at least"
            yield Mistake(f"job[{number}].ranks", text)


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
    return "collective.pieces" if (spec.pieces or 1) > 1 else "collective.kind"  # too many transfers


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
    """Check that a trace and a load can be read and cover `count` collectives, if that is given; raises
    ConditionsError."""
    if conditions.trace is None and conditions.load is None:
        return
    limit = sampler.sampler(fabric, conditions, seed=0).limit
    if limit is not None and count is not None and count > limit:
        what, key = ("trace", "trace_repeat") if conditions.trace is not None else ("load", "load.repeat")
        text = f"{count:,} is too large: the {what} covers {limit:,}; allowed: up to that, or conditions.{key} = true"
        yield Mistake("collective.count", text)
