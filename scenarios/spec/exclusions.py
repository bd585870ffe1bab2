"""What cannot be combined: one table of pairs of features, each with its reason. Pure.

A feature is what a configuration asks for under a key. Two features of one configuration that exclude each other are a
mistake at the key of the first. The reference of all keys lists the pairs (`rows`).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from hosts.agent.transport import TCP, VERBS, Transport
from hosts.collectives.kinds import MESSAGES, TRAINING
from scenarios.policies.decide import ways_of
from scenarios.policies.knowledge import ENDS, PORTS, PROBED
from scenarios.policies.policy import Mode
from scenarios.spec import te
from scenarios.spec.admission import ADMITTING_ROUTING
from scenarios.spec.faults import CABLE_KINDS, KILLED_KINDS, Fault
from scenarios.spec.jobs import TRANSFER, JobSpec
from scenarios.spec.keys import KEYS
from scenarios.spec.program import HOST_DATE
from scenarios.spec.scenario import Scenario
from topologies.errors import Mistake, format_value
from topologies.fabric.fabric import build_fabric
from topologies.shaping.frames import TCP_FRAMES

Found = Iterable[tuple[str, str]]
"""Where a configuration has a feature: each key with the value in words."""
ONE_OF_TWO = "one of the two"


class Feature(NamedTuple):
    """A feature: its name, and where a configuration has it."""

    name: str
    found: Callable[[Scenario], Found]


class Exclusion(NamedTuple):
    """Two features that exclude each other, `why`, and what is `allowed` in their place."""

    one: Feature
    other: Feature
    why: str
    allowed: str = ONE_OF_TWO


def exclusions(config: Scenario) -> Iterator[Mistake]:
    """Yield a mistake for every pair of features of a configuration that exclude each other."""
    for row in TABLE:
        if any(row.other.found(config)):
            for key, words in row.one.found(config):
                text = f"{words} cannot be combined with {row.other.name}: {row.why}"
                yield Mistake(key, f"{text}; allowed: {row.allowed}")


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the pairs of features that exclude each other with the reasons, for the documentation."""
    for row in TABLE:
        yield row.one.name, row.other.name, row.why


def _is_given(key: str, has: Callable[[Scenario], object], name: str | None = None) -> Feature:
    """Return the feature of a key's value, where `has` is true; its default name is the key."""

    def found(config: Scenario) -> Found:
        if has(config):
            written = KEYS[key].kind.write(config.value(key))
            yield key, written if isinstance(written, str) else format_value(written)

    return Feature(name or key, found)


def _is_value(key: str, value: object) -> Feature:
    """Return the feature of a key that has this value."""
    return _is_given(key, lambda config: config.value(key) == value, f"{key} {format_value(value)}")


def _has(name: str, key: str, has: Callable[[Scenario], object]) -> Feature:
    """Return the feature of configurations for which `has` is true, which messages call by its name."""
    return Feature(name, lambda config: [(key, name)] if has(config) else [])


def _mode(name: str, has: Callable[[Mode], object], what: Callable[[Mode], str]) -> Feature:
    """Return the feature of modes to compare for which `has` is true; `what` describes one in messages."""

    def found(config: Scenario) -> Found:
        modes = [config.mode(one) for one in config.run.modes]
        return [("run.modes", f"{mode.name}, which {what(mode)},") for mode in modes if has(mode)]

    return Feature(name, found)


def _fault(name: str, has: Callable[[Scenario, Fault], object]) -> Feature:
    """Return the feature of faults for which `has` is true."""

    def found(config: Scenario) -> Found:
        for number, fault in enumerate(config.faults, 1):
            if has(config, fault):
                key = "conditions.trace" if fault.is_traced else f"fault[{number}]"
                yield key, f"{fault.what} at {fault.at}"

    return Feature(name, found)


def _transfers(config: Scenario) -> list[tuple[int, JobSpec]]:
    return [(number, job) for number, job in enumerate(config.jobs, 1) if job.kind == TRANSFER]


def _are_mixed(config: Scenario) -> bool:
    return config.fabric.routing == ADMITTING_ROUTING and 0 < len(_transfers(config)) < len(config.jobs)


def _rates(config: Scenario) -> Found:
    requested = [(number, job.rate_bps) for number, job in _transfers(config) if job.rate_bps is not None]
    return [(f"job[{number}].rate", f"a rate of {rate:,} bit/s") for number, rate in requested]


def _ceilings(config: Scenario) -> Found:
    return [("class", f"the ceiling {one.ceiling:g} of {one.name}") for one in config.classes if one.ceiling < 1]


def _controls(config: Scenario) -> Found:
    own = [one for one in config.classes if one.congestion_control is not None]
    return [("class", f"the congestion control {one.congestion_control} of {one.name}") for one in own]


def _ceilings_of_transfers(config: Scenario) -> Found:
    name = next((job.traffic_class for _, job in _transfers(config)), None)
    own = tuple(one for one in config.classes if one.name == name)
    return _ceilings(replace(config, classes=own)) if _are_mixed(config) else []


def _rerouted_by_time(config: Scenario) -> Found:
    for number, one in enumerate(config.policies, 1):
        if one.reroute.within_s is not None:
            yield f"policy[{number}].reroute", format_value(str(one.reroute))


def _knowing(kind: str) -> Callable[[Scenario], Found]:
    """Return where a program's mode, which is the first one, knows this."""

    def found(config: Scenario) -> Found:
        mode = config.mode(config.run.modes[0])
        if mode.knowledge.kind == kind and config.program.is_given:
            yield "run.modes", f"{mode.name}, which knows {mode.knowledge},"

    return found


def _share_between_machines(config: Scenario) -> Found:
    """Where several machines have flows that share links, and no finite buffer lets senders go at once.

    In one machine TCP small queues hold a sender up until its packets are behind the last link. In another machine
    nothing can do so within the delay, so a flow waits at a slower link there and takes more of the links before it:
    what ended after 3.35 ms ended after 3.92 ms.
    """
    if config.run.machines == 1 or config.transport.buffer_bytes is not None:
        return
    for mode in config.run.modes:
        if shared := config.shared_links(mode):
            yield "run.modes", f"{mode}, whose flows may share {shared[0]},"


def _spreads_script(config: Scenario) -> Found:
    """Where connections of a script are spread by their ports, so that nobody knows their paths."""
    mode = config.mode(config.run.modes[0])
    if config.program.is_given and ways_of(build_fabric(config.fabric), mode) is not None:
        yield "fabric.routing", format_value(config.fabric.routing)


_WALL = _has("the wall clock", "run.clock", lambda config: config.run.is_real)
_FIFO, _FAIR = _is_value("transport.queue", "fifo"), _is_value("transport.queue", "fair")
_BUFFER = _is_given("fabric.buffer", lambda config: config.transport.buffer_bytes is not None)
_RAILS = _is_given("fabric.rails", lambda config: config.fabric.has_planes)
_BUFFER_ON_RAILS = _is_given(
    "fabric.buffer",
    lambda config: config.transport.buffer_bytes is not None and config.fabric.has_planes,
    "fabric.buffer with fabric.rails",
)
_SMALL_BUFFER = _is_given(
    "fabric.buffer",
    lambda config: TCP_FRAMES.wire_bytes(config.control.probe_bytes) > (config.transport.buffer_bytes or math.inf),
    "a fabric.buffer smaller than a probe",
)
_SLOW_START = _is_value("transport.line_rate", value=False)
_IDLE_SLOW_START = _is_value("transport.slow_start_after_idle", value=True)
_RTO_MIN = _is_given("transport.rto_min", lambda config: config.transport.rto_min_s != Transport.rto_min_s)
_VERBS = _is_value("transport.protocol", VERBS)
_RDMA = _is_given("transport.rdma", lambda config: config.transport.rdma is not None)
_TE = _is_value("fabric.routing", te.ROUTING)
_TE_ON_RAILS = _is_given(
    "fabric.routing",
    lambda config: config.fabric.routing == te.ROUTING and config.fabric.has_planes,
    f'fabric.routing "{te.ROUTING}" on rails',
)
_TE_OVER_ROUTERS = _is_given(
    "fabric.routing",
    lambda config: (
        config.fabric.routing == te.ROUTING and any(len(path.links) > 1 for path in build_fabric(config.fabric).paths)
    ),
    f'fabric.routing "{te.ROUTING}" over WAN paths of several links',
)
_UNADMITTED = _is_given(
    "fabric.routing",
    lambda config: config.fabric.routing != ADMITTING_ROUTING,
    f"a fabric.routing other than {ADMITTING_ROUTING}",
)
_PHYSICAL = _is_value("fabric.grain", "physical")
_TIMED = _is_given("conditions.every", lambda config: config.conditions.every_s is not None)
_COUNTED = _is_value("control.counted", value=True)
_COUNTED_ONE_WAY = _has(
    "control.counted with another collective than those of rings",
    "control.counted",
    lambda config: (
        config.control.counted
        and (config.jobs or config.collective.kind not in ("allgather", "allreduce", "reducescatter"))
    ),
)
_CONTROL_DELAY = _is_given("control.delay", lambda config: config.control.delay_s is not None)
_TE_TIME = _is_given(
    "te.every",
    lambda config: config.fabric.routing == te.ROUTING and isinstance(config.te.every, float),
    "te.every as a time",
)
_REQUESTED = _is_value("te.demand", "requested")
_CLASSES = _has("classes", "class", lambda config: config.classes)
_CEILING = Feature("a class with a ceiling below 1", _ceilings)
_CONTROL_OF_CLASS = Feature("a class with a congestion control", _controls)
_JOBS = _has("jobs", "job", lambda config: config.jobs)
_TRANSFERS = _has("transfers", "job", _transfers)
_MIXED = _has("admitted transfers together with other jobs", "job", _are_mixed)
_MIXED_CEILING = Feature("a ceiling below 1 of admitted transfers' class", _ceilings_of_transfers)
_RATES = Feature("a transfer that requests a rate", _rates)
_ADMITTED = _has(
    "an admitted transfer",
    "job",
    lambda config: config.fabric.routing == ADMITTING_ROUTING and _transfers(config),
)
_TE_BESIDE_PROGRAM = _has(
    f'a program with fabric.routing "{te.ROUTING}"',
    "fabric.routing",
    lambda config: config.fabric.routing == te.ROUTING and config.program.is_given,
)
_STRUCK = _has("faults of collectives", "fault", lambda config: config.faults and not config.program.is_given)
_JOBS_BESIDE = _has("jobs beside a program", "job", lambda config: config.jobs and config.program.is_given)
_DECLARED = _has("faults", "fault", lambda config: not all(one.is_traced for one in config.faults))
_OUTAGES = _has("outages in the trace", "conditions.trace", lambda config: any(one.is_traced for one in config.faults))
_SLOW_AGENT = _fault("a slow agent", lambda config, fault: fault.kind == "agent slow" and not fault.of_program)
_LINK_LOSS = _fault("a link loss", lambda _, fault: fault.kind == "link loss")
_PROBING = _mode("a mode that probes", lambda mode: mode.knowledge.kind == PROBED, lambda _: "probes")
_CUT_AND_DELAYED = _fault(
    "a link or switch that fails beside control.delay or probes",
    lambda config, fault: (
        fault.kind in CABLE_KINDS and (config.control.delay_s is not None or next(iter(_PROBING.found(config)), None))
    ),
)
_REROUTING = _mode("a mode that chooses WAN paths", lambda mode: mode.reroutes, lambda _: "chooses WAN paths")
_KEEPING = _mode("a mode that keeps WAN paths", lambda mode: mode.keeps_paths, lambda _: "keeps WAN paths")
_NOT_PERIODIC = _mode(
    "a mode that chooses rings alone, by drift or gain",
    lambda mode: not mode.reroutes and not mode.is_periodic,
    lambda _: "does not choose rings by their number alone",
)
_MEASURING = _mode(
    "a mode that chooses rings alone, by measured rates",
    lambda mode: not mode.reroutes and mode.knowledge.is_measured,
    lambda mode: f"knows {mode.knowledge}",
)
_REROUTED_BY_TIME = Feature("a policy that re-routes by time", _rerouted_by_time)
_PROBING_SLOWLY = Feature(
    "a mode that probes without transport.line_rate",
    lambda config: [] if config.transport.line_rate else _PROBING.found(config),
)
_PROBED_BY_PROGRAM = Feature("a program's mode that probes", _knowing(PROBED))
_ENDS_OF_PROGRAM = Feature("a program's mode with measured ends", _knowing(ENDS))
_READ_BESIDE_PROGRAM = Feature("a program's mode with measured ports", _knowing(PORTS))
_SPREAD_SCRIPT = Feature("a fabric that spreads a program's connections", _spreads_script)
_REFEREES = _is_given("run.referees", lambda config: config.run.referees)
_BEST_POLICY = _has("the best policy in run.referees", "run.referees", lambda config: "policy" in config.run.referees)
_KINDS = [_is_value("collective.kind", kind) for kind in (MESSAGES, TRAINING)]
_PROGRAM = _has("a program", "program.command", lambda config: config.program.is_given)
_PROGRAM_ALONE = _has(
    "a program without jobs", "program.command", lambda config: config.program.is_given and not config.jobs
)
_PROGRAM_RUN = _has("a program that is run", "program.command", lambda config: config.program.is_run)
_SPREAD = _is_given(
    "fabric.routing",
    lambda config: config.fabric.routing in ("ecmp", "spray", ADMITTING_ROUTING),
    "a fabric.routing that spreads flows",
)
_DATE = _is_given("program.date", lambda config: config.program.date != HOST_DATE)
_PARTLY = _is_given(
    "collective.emulated",
    lambda config: not isinstance(config.collective.emulated, int),
    "a range or a period of collective.emulated",
)
_OBSERVING = _mode(
    "a mode with measured knowledge",
    lambda mode: mode.knowledge.is_measured,
    lambda mode: f"knows {mode.knowledge}",
)
_MEASURED_DEMAND = _is_value("te.demand", te.MEASURED)

_MACHINES = _is_given("run.machines", lambda config: config.run.machines > 1)
_CAPTURED = _is_given("program.capture", lambda config: config.program.capture)
_SHARING = Feature("a mode whose flows share links", _share_between_machines)
_SUDDEN = _fault(
    "a fault within a collective, or one that ends a process",
    lambda _, fault: fault.after_s is not None or fault.lasts_s is not None or fault.kind in KILLED_KINDS,
)
_READING = _mode(
    "a mode with measured ports",
    lambda mode: mode.knowledge.kind == PORTS,
    lambda mode: f"knows {mode.knowledge}",
)
_ONE_MACHINE = "1"
_LATE = "its timers are later than a packet takes, so links have fifo queues"
_NO_BEST = "no best is known there"
_FAIR_VIRTUAL = "fair queues in virtual time"

TABLE = (
    Exclusion(_BUFFER, _FAIR, "only a fifo queue has a size", 'transport.queue "fifo"'),
    Exclusion(_BUFFER, _WALL, "late timers overrun a queue", "the virtual clock"),
    Exclusion(
        _BUFFER_ON_RAILS,
        _KEEPING,
        "each collective has new connections there",
        "reroute never and every 1",
    ),
    Exclusion(_BUFFER, _LINK_LOSS, "a link's loss takes the place of its queue"),
    Exclusion(_RDMA, _WALL, "its timers are later than a packet takes", "the virtual clock"),
    Exclusion(_VERBS, _WALL, "its timers are later than a packet takes", "the virtual clock"),
    Exclusion(_VERBS, _PROGRAM_RUN, "a program chooses its own transport", "collectives of agents"),
    *(
        Exclusion(_VERBS, other, f"not emulated yet: {what}", f'transport.protocol "{TCP}"')
        for other, what in (
            (_SPREAD, "paths that are found by the ports of TCP"),
            (_TE, "senders that a tunnel's rate holds up"),
        )
    ),
    Exclusion(_RTO_MIN, _WALL, "not every machine's kernel can set it", "the default, or the virtual clock"),
    Exclusion(_PROBING, _WALL, "late timers change the time of a probe", "the virtual clock, or other knowledge"),
    Exclusion(
        _PROBING_SLOWLY,
        _COUNTED,
        "not modelled yet: the time in which the connections of probes leave slow start",
    ),
    Exclusion(_PROBING, _SMALL_BUFFER, "the time of a probe that loses packets does not show a rate"),
    Exclusion(
        _TIMED,
        _WALL,
        "collectives took up to 16 % less time than predicted, and why is not known",
    ),
    Exclusion(
        _REROUTED_BY_TIME, _STRUCK, "not modelled yet: paths around failures that are chosen within a collective"
    ),
    Exclusion(
        _SLOW_AGENT,
        _TIMED,
        "not modelled yet: packets that are queued at a slow agent when rates change, up to 1.5 % of a collective",
    ),
    Exclusion(_REROUTED_BY_TIME, _FIFO, "not modelled yet: packets that wait in queues of the path before", _FAIR.name),
    Exclusion(_REROUTED_BY_TIME, _BEST_POLICY, "the best policy keeps paths for a whole collective"),
    Exclusion(_CLASSES, _WALL, _LATE, _FAIR_VIRTUAL),
    Exclusion(_TRANSFERS, _WALL, _LATE, _FAIR_VIRTUAL),
    Exclusion(_ADMITTED, _FIFO, "TCP decides how flows share a fifo queue, so nothing can be promised", _FAIR_VIRTUAL),
    Exclusion(
        _RATES, _UNADMITTED, "only admission keeps a rate for it", f'a size and a deadline, or "{ADMITTING_ROUTING}"'
    ),
    Exclusion(
        _REROUTING,
        _ADMITTED,
        "not modelled yet: chosen paths beside its tunnels",
        "modes such as base, transfers alone, or another fabric.routing",
    ),
    Exclusion(_SLOW_START, _ADMITTED, "flows begin slower than it is promised", "true"),
    Exclusion(_IDLE_SLOW_START, _ADMITTED, "flows begin slower than it is promised", "false"),
    Exclusion(_PHYSICAL, _MIXED, "they share ports within sites, which have no classes", "transfers alone, or logical"),
    Exclusion(
        _MIXED_CEILING,
        _MIXED,
        "a port cannot make up for the time in which it finishes a segment of another class",
        "transfers alone, or a ceiling of 1",
    ),
    Exclusion(_TE, _WALL, _LATE),
    Exclusion(
        _TE_OVER_ROUTERS,
        _TIMED,
        "not modelled yet: packets that wait behind a tunnel's first link when rates change, 40 % and more",
        "WAN paths of one link",
    ),
    Exclusion(
        _TE_TIME, _COUNTED, "not modelled yet: tunnels that change within a collective", "a number of collectives"
    ),
    Exclusion(
        _TE_ON_RAILS, _STRUCK, "not modelled yet: tunnels around a plane that is down, up to 3 % of a collective"
    ),
    Exclusion(_TE, _CEILING, "not modelled yet: tunnels' rates that know of ceilings", "a ceiling of 1"),
    Exclusion(
        _NOT_PERIODIC,
        _TE,
        "not modelled yet: rates of tunnels before such a choice is known",
        "reembed never or every K",
    ),
    Exclusion(_MEASURING, _TE, "not modelled yet: rates of links measured through tunnels", "unmeasured knowledge"),
    Exclusion(
        _TE_TIME,
        _REQUESTED,
        "what is requested is constant within a collective",
        f'a number of collectives, or te.demand "{te.MEASURED}"',
    ),
    Exclusion(_PARTLY, _OBSERVING, "it has to see every collective", "a number of collectives, or other knowledge"),
    Exclusion(_PARTLY, _MEASURED_DEMAND, "it has to be read in every collective", "a number of collectives"),
    Exclusion(_PARTLY, _BUFFER, "TCP's windows follow from the collectives before", "a number of collectives"),
    Exclusion(_REFEREES, _JOBS, _NO_BEST),
    Exclusion(_REFEREES, _DECLARED, _NO_BEST),
    Exclusion(_REFEREES, _OUTAGES, _NO_BEST),
    Exclusion(_REFEREES, _PROGRAM, _NO_BEST),
    *(Exclusion(_REFEREES, kind, _NO_BEST) for kind in _KINDS),
    Exclusion(_CONTROL_OF_CLASS, _PROGRAM_ALONE, "a program's sockets choose it (TCP_CONGESTION)", "jobs of the class"),
    Exclusion(_TE_BESIDE_PROGRAM, _JOBS, "not emulated yet: tunnels of jobs' flows beside those of connections"),
    Exclusion(_TE_BESIDE_PROGRAM, _CLASSES, "not emulated yet: a tunnel of connections for each class"),
    *(
        Exclusion(_TE_BESIDE_PROGRAM, struck, "not emulated yet: rates of connections' tunnels once a link is back")
        for struck in (_DECLARED, _OUTAGES)
    ),
    Exclusion(_TE_BESIDE_PROGRAM, _RAILS, "not emulated yet: tunnels of connections over planes"),
    Exclusion(_TE_BESIDE_PROGRAM, _CONTROL_DELAY, "not emulated yet: rates of tunnels that take time to arrive"),
    Exclusion(_JOBS_BESIDE, _WALL, "its timers are later than a packet takes", "the virtual clock"),
    Exclusion(_DATE, _WALL, "this machine's own clock would be set", "the virtual clock"),
    Exclusion(
        _PROBED_BY_PROGRAM,
        _JOBS_BESIDE,
        "not emulated yet: probes over the routes of their agents",
        "a program without jobs, or other knowledge",
    ),
    Exclusion(_ENDS_OF_PROGRAM, _SPREAD_SCRIPT, "nobody knows which paths its messages take", "single paths"),
    Exclusion(_ENDS_OF_PROGRAM, _TE, "not modelled yet: rates of links measured through tunnels", "other knowledge"),
    Exclusion(_ENDS_OF_PROGRAM, _WALL, "its timers are later than a packet takes", "the virtual clock"),
    Exclusion(_MACHINES, _WALL, "only virtual time can be the same in several machines", _ONE_MACHINE),
    *(
        Exclusion(_MACHINES, other, f"not emulated yet: {what}", _ONE_MACHINE)
        for other, what in (
            (_SUDDEN, "what fails in one machine while the others go on"),
            (_PROGRAM, "the hosts of a program in several machines"),
            (_READING, "ports before slower links in another machine, which send what then waits there"),
            (_CUT_AND_DELAYED, "rules that the switches of one machine have before those of another"),
            (_COUNTED_ONE_WAY, "connections from one machine alone, on whose way the others are waited for"),
            (_TIMED, "packets that wait in another machine when rates change, up to 7 % of a collective"),
            (_SHARING, "shares of links before those that are in another machine, up to 17 % of a job's time"),
        )
    ),
    Exclusion(_READ_BESIDE_PROGRAM, _FIFO, "not emulated yet: such a queue holds what is on the way, too", _FAIR.name),
)
"""Every pair of features that exclude each other. Pairs of values under one key, and values that need another one, are
checked in `consistency`."""
