"""Traffic classes: read from a scenario's [[class]] tables. Pure.

[[class]]
name = "gold"
priority = 0               # WAN ports serve the lowest number first
share = 0.2                # the guaranteed part of a port's rate
ceiling = 0.9              # the largest part of it that the class gets
congestion_control = "bbr" # of its jobs' connections, in place of that of [transport]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scenarios.spec.values import check_unique, fitting, name_of, numbers, one_of, read_tables, whole
from topologies.errors import Mistake, SpecError, format_value
from topologies.shaping.classes import Service

MAX_CLASSES = 7
MAX_PRIORITY = 100

_PRIORITY = whole(0, MAX_PRIORITY)
KINDS = {
    "name": name_of("class"),
    "priority": replace(_PRIORITY, allowed=f"{_PRIORITY.allowed}, another for each class"),
    "share": numbers((int, float), 0, 1),
    "ceiling": fitting("a number from 0 to 1, more than 0", (int, float), lambda given: 0 < given <= 1, float),
    # Not dctcp: it needs marks, and the fair queues of classes mark nothing.
    "congestion_control": one_of("cubic", "reno", "bbr"),
}
"""The keys of a [[class]] table and the values that each of them allows."""


@dataclass(frozen=True, kw_only=True)
class ClassSpec:
    """A traffic class. WAN ports serve the lowest `priority` first. `share` is the guaranteed part of a port's rate and
    `ceiling` the largest part. `congestion_control` is TCP's on the connections of its jobs, None for that of
    [transport]. `is_added`: no [[class]] declares it (`transfer_class`)."""

    name: str
    priority: int
    share: float = 0.0
    ceiling: float = 1.0
    congestion_control: str | None = None
    is_added: bool = field(default=False, compare=False)

    @property
    def words(self) -> str:
        """The class in words, "class gold (priority 0)", with the rest if it differs from the defaults."""
        share = f" with {self.share * 100:g} % assured" if self.share > 0 else ""
        ceiling = f" at most {self.ceiling * 100:g} %" if self.ceiling < 1 else ""
        control = "" if self.congestion_control is None else f" by {self.congestion_control}"
        return f"class {self.name} (priority {self.priority}){share}{ceiling}{control}"

    def written(self) -> dict[str, Any]:
        """Return the [[class]] table that declares this class."""
        own = {} if self.congestion_control is None else {"congestion_control": self.congestion_control}
        return {"name": self.name, "priority": self.priority, "share": self.share, "ceiling": self.ceiling, **own}


def in_order(classes: tuple[ClassSpec, ...]) -> tuple[ClassSpec, ...]:
    """Return the classes in service order."""
    return tuple(sorted(classes, key=lambda each: each.priority))


def served_first(name: str) -> str:
    """Return why the share of the class that is served first has no effect."""
    return f"{name} is served first, and gets what it sends, up to its ceiling"


def dscp_of(classes: tuple[ClassSpec, ...], name: str | None) -> int:
    """Return the DSCP of a class: the class selector (RFC 2474) of its position in service order; 0 for no class."""
    names = [each.name for each in in_order(classes)]
    return 0 if name is None else 8 * (names.index(name) + 1)


def services(classes: tuple[ClassSpec, ...]) -> tuple[Service, ...]:
    """Return the services of WAN ports in order: the classes, then traffic without a class; empty without classes."""
    if not classes:
        return ()
    served = [
        Service(dscp=dscp_of(classes, each.name), assured=each.share, ceiling=each.ceiling)
        for each in in_order(classes)
    ]
    return (*served, Service(dscp=0))


def controls(classes: tuple[ClassSpec, ...]) -> dict[int, str]:
    """Return the congestion control of each class that has one of its own, by its DSCP."""
    return {dscp_of(classes, one.name): one.congestion_control for one in classes if one.congestion_control is not None}


def of_flows(classes: tuple[ClassSpec, ...], dscp: Sequence[int]) -> dict[str, list[Any]]:
    """Return the classes of flows with these DSCPs in the timing model's form: `of_flow`, the index of each flow's
    class in service order, and by that index the `assured` shares and the `ceilings`."""
    served = services(classes)
    index_of = {each.dscp: index for index, each in enumerate(served)}
    return {
        "of_flow": [index_of[each] for each in dscp],
        "assured": [each.assured for each in served],
        "ceilings": [each.ceiling for each in served],
    }


def read(tables: list[object]) -> tuple[ClassSpec, ...]:
    """Return the classes that a scenario's tables declare; raises SpecError with mistakes such as "class[1].name"."""
    needs = ("name", "priority")
    values = read_tables("class", tables, KINDS, most=MAX_CLASSES, required=needs, check=_check)
    served = tuple(ClassSpec(**each) for each in values)
    for key in needs:
        check_unique("class", served, key, KINDS[key])
    shares = sum(each.share for each in served)
    if shares > 1 + 1e-9:
        raise SpecError([Mistake("class", f"the shares are {shares:g} together; allowed: 1 at most")])
    return served


def _check(table: dict[str, Any], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Check the values of one table against each other, for `read_tables`."""
    share, ceiling = values.get("share", 0.0), values.get("ceiling", 1.0)
    if share > ceiling:
        yield ".share", f"{format_value(table['share'])} is above the ceiling; allowed: up to {ceiling:g}"
