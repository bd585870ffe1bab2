"""Classes of traffic as a scenario declares them: read from its [[class]] tables. Pure.

[[class]]
name = "gold"
priority = 0               # the lowest is served first on WAN ports
share = 0.2                # the part of a port's rate that it has in any case
ceiling = 0.9              # and the most that it gets
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from topologies.errors import Mistake, SpecError, check_unique, read_tables, shown
from topologies.shaping.classes import Service

MAX_CLASSES = 7
MAX_PRIORITY = 100

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")

WORDS = {
    "name": "1 to 32 letters, digits, '-', '_' and '.', another for each class",
    "priority": f"a whole number from 0 to {MAX_PRIORITY}, another for each class",
    "share": "a number from 0 to 1",
    "ceiling": "a number from 0 to 1, more than 0",
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
    fields = read_tables("class", tables, most=MAX_CLASSES, keys=WORDS, read=_read)
    found = tuple(ClassSpec(**one) for one in fields)
    for field in ("name", "priority"):
        check_unique("class", found, field, WORDS[field])
    shares = sum(one.share for one in found)
    if shares > 1 + 1e-9:
        raise SpecError([Mistake("class", f"the shares are {shares:g} together; allowed: 1 at most")])
    return found


def _read(table: dict[str, Any], fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """As `read_tables` wants it."""
    fields |= table
    for key, allowed in WORDS.items():
        if key in table and not _fits(key, table[key]):
            yield f".{key}", f"{shown(table[key])} is not allowed; allowed: {allowed}"
        elif key not in table and key in ("name", "priority"):
            yield f".{key}", f"is missing; allowed: {allowed}"
    share, ceiling = table.get("share", 0), table.get("ceiling", 1)
    if _fits("share", share) and _fits("ceiling", ceiling) and share > ceiling:
        yield ".share", f"{shown(share)} is above the ceiling; allowed: up to {ceiling:g}"


def _fits(key: str, value: object) -> bool:
    if key == "name":
        return isinstance(value, str) and _NAME.fullmatch(value) is not None
    if key == "priority":
        return type(value) is int and 0 <= value <= MAX_PRIORITY
    return type(value) in (int, float) and 0 <= value <= 1 and (key == "share" or value > 0)  # type: ignore[operator]
