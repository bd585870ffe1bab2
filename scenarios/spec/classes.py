"""Classes of traffic as a scenario declares them: read from its [[class]] tables. Pure.

[[class]]
name = "gold"
priority = 0               # the lowest is served first on WAN ports
share = 0.2                # the part of a port's rate that it has in any case
ceiling = 0.9              # and the most that it gets
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scenarios.spec.values import check_unique, fitting, name_of, numbers, read_tables, whole
from topologies.errors import Mistake, SpecError, shown
from topologies.shaping.classes import Service

MAX_CLASSES = 7
MAX_PRIORITY = 100

_PRIORITY = whole(0, MAX_PRIORITY)
KINDS = {
    "name": name_of("class"),
    "priority": replace(_PRIORITY, allowed=f"{_PRIORITY.allowed}, another for each class"),
    "share": numbers((int, float), 0, 1),
    "ceiling": fitting("a number from 0 to 1, more than 0", (int, float), lambda given: 0 < given <= 1, float),
}
"""The keys of a [[class]] table, each with what it allows."""


@dataclass(frozen=True, kw_only=True)
class ClassSpec:
    """One class: the lowest priority is served first; parts of a WAN port's rate that it has, and has at most."""

    name: str
    priority: int
    share: float = 0.0
    ceiling: float = 1.0

    @property
    def words(self) -> str:
        """The class in words, with the parts that are not its own to begin with."""
        share = f", {self.share * 100:g} % assured" * (self.share > 0)
        return f"{self.name} {self.priority}{share}{f', at most {self.ceiling * 100:g} %' * (self.ceiling < 1)}"

    def written(self) -> dict[str, Any]:
        """The table that declares it."""
        return {"name": self.name, "priority": self.priority, "share": self.share, "ceiling": self.ceiling}


def in_order(classes: tuple[ClassSpec, ...]) -> tuple[ClassSpec, ...]:
    """The classes in the order in which they are served."""
    return tuple(sorted(classes, key=lambda one: one.priority))


def dscp_of(classes: tuple[ClassSpec, ...], name: str | None) -> int:
    """The DSCP of a class, a class selector by its place in the order (RFC 2474); 0 where a job has none."""
    names = [one.name for one in in_order(classes)]
    return 0 if name is None else 8 * (names.index(name) + 1)


def services(classes: tuple[ClassSpec, ...]) -> tuple[Service, ...]:
    """What WAN ports serve, in their order: the classes, and last whatever is of none; nothing without classes."""
    if not classes:
        return ()
    found = [
        Service(dscp=dscp_of(classes, one.name), assured=one.share, ceiling=one.ceiling) for one in in_order(classes)
    ]
    return (*found, Service(dscp=0))


def of_flows(classes: tuple[ClassSpec, ...], dscp: Sequence[int]) -> dict[str, list[Any]]:
    """Flows with these DSCPs as the timing model has them: the place of each in the order of service, `of_flow`, and
    what is `assured` to each place and its `ceilings`."""
    found = services(classes)
    place = {one.dscp: index for index, one in enumerate(found)}
    return {
        "of_flow": [place[one] for one in dscp],
        "assured": [one.assured for one in found],
        "ceilings": [one.ceiling for one in found],
    }


def read(tables: list[object]) -> tuple[ClassSpec, ...]:
    """The classes that a scenario's list of tables declares; raises SpecError with mistakes, as "class[1].name"."""
    needs = ("name", "priority")
    values = read_tables("class", tables, KINDS, most=MAX_CLASSES, required=needs, check=_check)
    found = tuple(ClassSpec(**one) for one in values)
    for field in needs:
        check_unique("class", found, field, KINDS[field])
    shares = sum(one.share for one in found)
    if shares > 1 + 1e-9:
        raise SpecError([Mistake("class", f"the shares are {shares:g} together; allowed: 1 at most")])
    return found


def _check(table: dict[str, Any], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """As `read_tables` wants it."""
    share, ceiling = values.get("share", 0.0), values.get("ceiling", 1.0)
    if share > ceiling:
        yield ".share", f"{shown(table['share'])} is above the ceiling; allowed: up to {ceiling:g}"
