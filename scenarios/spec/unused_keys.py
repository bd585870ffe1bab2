"""Keys without effect, by rules that define which configurations use a key.

A key that no configuration of a scenario uses is told to the user if it is given, and left out when a scenario is
written.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from hosts.collectives.schedule import ScheduleError
from scenarios.policies.knowledge import ORACLE, PORTS
from scenarios.policies.policy import Mode
from scenarios.spec import classes, faults, jobs, te
from scenarios.spec.jobs import TRANSFER
from scenarios.spec.key_rules import RULES, Rule
from scenarios.spec.keys import MAX_CONFIGURATIONS
from scenarios.spec.scenario import Scenario

_Tables = Sequence[Mapping[str, object]]
Tables = Mapping[str, Sequence[_Tables]]
"""The lists of tables that a user gave, by key: the one list of "job", or a list for each value of its axis."""


def unused_keys(
    scenario: Scenario, unread: Set[str] = frozenset(), tables: Tables = MappingProxyType({})
) -> dict[str, str]:
    """Return why keys are used by no configuration, by key: "te.every", "job[1].pattern", and "class[1]" for a table.

    `tables` are the given ones; without them their keys are not looked at. Keys whose rules depend on tables that are
    `unread`, because a value in them is wrong, are left out.
    """
    if math.prod(len(axis.values) for axis in scenario.sweep) > MAX_CONFIGURATIONS:
        return {}  # too many configurations to look at, which is a mistake of its own
    unused: dict[str, str] = {}
    for rule in RULES:
        if not any(table.startswith(rule.rests_on) for table in unread) and not _has_effect(rule, scenario):
            for key in rule.keys:
                unused.setdefault(key, rule.why)
    if not any(table.startswith(("class", "job", "policy", "fault", "fabric", "collective")) for table in unread):
        unused |= _unused_classes(scenario)
        unused |= _unused_in_tables(scenario, tables)
    return unused


def _has_effect(rule: Rule, scenario: Scenario) -> bool:
    try:
        return any(map(rule.applies, scenario.configurations()))
    except (ValueError, ScheduleError):  # the configuration has another mistake, which is reported
        return True


def _unused_classes(scenario: Scenario) -> dict[str, str]:
    """Return the classes that no job has; one with a share affects admission in any case, and the packets of a program
    may have the DSCP of any class."""
    configs = scenario.configurations()
    if any(config.program.is_given for config in configs):
        return {}
    used = {job.traffic_class for config in configs for job in config.jobs}
    if used - {None, *(each.name for config in configs for each in config.classes)}:
        return {}  # a job names a class that does not exist, which is a mistake of its own
    for config in configs:
        if any(job.kind == TRANSFER for job in config.jobs):
            used |= {each.name for each in config.classes if each.share}
    swept = [axis.values for axis in scenario.sweep if axis.key == "class"]
    return {
        f"class[{number}]": f"no [[job]] has the class {each.name}, and no program runs"
        for classes in (swept[0] if swept else [scenario.classes])
        for number, each in enumerate(classes, 1)
        if each.name not in used
    }


def _unused_in_tables(scenario: Scenario, tables: Tables) -> dict[str, str]:
    """Return the keys within [[job]], [[policy]] and [[fault]] tables that have no effect because of others.

    With a sweep, a key has none if it has none in any of the lists of tables and of the configurations.
    """
    configs = scenario.configurations()
    kinds = {config.collective.kind for config in configs}
    engineers = any(config.fabric.routing == te.ROUTING for config in configs)
    found: dict[str, list[str | None]] = {}

    def look(name: str, unused: Callable[[int, _Tables], Iterator[tuple[str, str]]]) -> None:
        for of_axis in tables.get(name, ()):
            for number, table in enumerate(of_axis, 1):
                reasons = dict(unused(number, of_axis))
                for key in table:
                    found.setdefault(f"{name}[{number}].{key}", []).append(reasons.get(key))

    for kind in kinds:
        look("job", lambda number, of_axis, kind=kind: jobs.unused(of_axis[number - 1], kind))  # type: ignore[misc]
    look("policy", lambda number, _: _unused_in_policy(scenario.policies[number - 1], engineers=engineers))
    look("fault", lambda number, of_axis: faults.unused(of_axis[number - 1]))
    if not (_only_first_shares_differ(tables.get("class", ())) or any(one.admits for one in configs)):
        look("class", _unused_in_class)
    return {key: first for key, (first, *others) in found.items() if first is not None and None not in others}


def _unused_in_class(number: int, tables: _Tables) -> Iterator[tuple[str, str]]:
    """Yield the keys of one of the [[class]] tables that have no effect because of the others."""
    table = tables[number - 1]
    if table is _first_served(tables) and table.get("share"):
        yield "share", classes.served_first(str(table["name"]))


def _first_served(tables: _Tables) -> Mapping[str, object] | None:
    return min(tables, key=lambda table: int(str(table["priority"])), default=None)


def _only_first_shares_differ(of_axis: Sequence[_Tables]) -> bool:
    """Return whether lists of [[class]] tables would be equal without the shares of the classes that are served first:
    a note tells of these, as an axis cannot have the same value twice."""
    plain = [
        [{key: value for key, value in each.items() if key != "share" or each is not first} for each in tables]
        for tables, first in ((tables, _first_served(tables)) for tables in of_axis)
    ]
    return any(one in plain[:place] for place, one in enumerate(plain))


def _unused_in_policy(mode: Mode, *, engineers: bool) -> Iterator[tuple[str, str]]:
    """Yield the keys of a [[policy]] table that have no effect because of its others; `engineers` tells whether rates
    of tunnels depend on knowledge, too."""
    if "gain" not in (mode.reroute.kind, mode.reembed.kind):
        yield "horizon", 'neither reroute nor reembed is "gain"'
    if mode.knowledge != ORACLE and not (mode.reroutes or mode.reembeds or engineers):
        yield "knowledge", "reroute and reembed are never"
    if not mode.reembeds:
        yield "ring", "reembed is never"
    if mode.knowledge.kind != PORTS:
        yield "measure_every", f"knowledge is not {PORTS}"
