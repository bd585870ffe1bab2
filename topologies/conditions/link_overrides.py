"""Rates and delays for selected links: the table [conditions.links], by class, pattern or name. Pure.

[conditions.links]
wan = { rate = "40-100 Gbit/s", delay = "5 ms" }   # a class of links
"g0>*" = { rate = "10 Gbit/s" }                    # a pattern: all links out of GPU 0
"s0b0>s1b0" = { delay = "20 ms" }                  # one link, or one port
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies import units
from topologies.errors import ConditionsError, Mistake, did_you_mean, format_value, list_first
from topologies.fabric.fabric import Fabric
from topologies.fabric.link_names import directions
from topologies.fabric.ports import links_in_grain

Indices = npt.NDArray[np.intp]

CLASSES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "logical": {"wan": ("wan",), "gpu-gpu": ("intra",), "gpu-border": ("to_br", "from_br")},
    "physical": {
        "wan": ("wan",),
        "access": ("gpu_leaf", "leaf_gpu"),
        "leaf-spine": ("leaf_spine", "spine_leaf"),
        "spine-border": ("spine_br", "br_spine"),
    },
}
"""By grain, the kinds of links or ports in each class."""

KEY = "conditions.links"
MAX_ENTRIES = 1000
WORDS = {
    "rate": 'a range of rates such as "20-200 Gbit/s", or one rate',
    "delay": 'text with a unit, such as "10 us", or "0 s"',
}
_WILDCARDS = "*?["


@dataclass(frozen=True, kw_only=True)
class LinkConditions:
    """An entry of the table: a class, pattern or name in `links`, and a range of rates (bit/s), a delay (s) or both."""

    links: str
    rate_bps: tuple[int, int] | None = None
    delay_s: float | None = None

    @property
    def words(self) -> str:
        """The entry in words: "wan 40-100 Gbit/s 5 ms"."""
        return " ".join([self.links, *self.written().values()])

    def written(self) -> dict[str, str]:
        """Return the entry's values as the scenario's table has them."""
        rate = {} if self.rate_bps is None else {"rate": units.format_rate_range(self.rate_bps)}
        return rate if self.delay_s is None else rate | {"delay": _format_delay(self.delay_s)}


def read(table: Mapping[str, object]) -> tuple[LinkConditions, ...]:
    """Read a scenario's table [conditions.links]; raises ConditionsError with keys such as "conditions.links.wan"."""
    if len(table) > MAX_ENTRIES:
        raise ConditionsError([Mistake(KEY, f"{len(table):,} entries are too many; allowed: {MAX_ENTRIES:,}")])
    mistakes, entries = list[Mistake](), list[LinkConditions]()
    for name, values in table.items():
        wrong = [Mistake(f"{KEY}.{name}{suffix}", text) for suffix, text in _entry_mistakes(values)]
        mistakes += wrong
        if not wrong and isinstance(values, dict):
            rate, delay = values.get("rate"), values.get("delay")
            rate_bps = None if rate is None else units.parse_rate_range_bps(rate)
            delay_s = None if delay is None else units.parse_delay_or_zero_s(delay, units.LINK_DELAY)
            entries.append(LinkConditions(links=name, rate_bps=rate_bps, delay_s=delay_s))
    if mistakes:
        raise ConditionsError(mistakes)
    return tuple(entries)


def write(entries: Sequence[LinkConditions]) -> dict[str, Any]:
    """Return the table that declares these entries; the inverse of `read`."""
    return {entry.links: entry.written() for entry in entries}


def _entry_mistakes(values: object) -> Iterator[tuple[str, str]]:
    """Yield the mistakes of an entry's values: the suffix of the scenario key (such as ".rate"), and the text."""
    if not isinstance(values, dict) or not values:
        what = "is empty" if values == {} else f"{format_value(values)} is not a table"
        yield "", f"{what}; allowed: the keys {', '.join(WORDS)}, at least one"
        return
    for key, value in values.items():
        if key not in WORDS:
            yield f".{key}", f"unknown key of a link, allowed: {', '.join(WORDS)}{did_you_mean(key, WORDS)}"
        elif not isinstance(value, str):
            yield f".{key}", f"{format_value(value)} is not text; allowed: {WORDS[key]}"
        else:
            try:
                _ = (
                    units.parse_rate_range_bps(value)
                    if key == "rate"
                    else units.parse_delay_or_zero_s(value, units.LINK_DELAY)
                )
            except units.UnitError as error:
                yield f".{key}", str(error)


def _format_delay(delay_s: float) -> str:
    return units.format_delay(delay_s) if delay_s else "0 s"


def resolved(fabric: Fabric, entries: Sequence[LinkConditions]) -> list[tuple[LinkConditions, Indices]]:
    """Return the entries, each with the indices of the links or ports it matches, in the order to apply them.

    Classes come first, then patterns, then names, each in the given order, so that the more specific entry wins.
    Raises ConditionsError for an entry that matches no link or port in the fabric's grain.
    """
    grain, links = fabric.spec.grain, links_in_grain(fabric).all
    classes, names = CLASSES[grain], [link.name for link in links]
    index_of = {name: index for index, name in enumerate(names)}
    of_classes, of_patterns, of_names = (list[tuple[LinkConditions, list[int]]]() for _ in range(3))
    mistakes = []
    for entry in entries:
        name = entry.links
        if name in classes:
            indices = [link.index for link in links if link.kind in classes[name]]
            of_classes.append((entry, indices))
        elif indices := [index_of[one] for one in directions(name) if one in index_of]:
            of_names.append((entry, indices))
        else:
            is_pattern = any(sign in name for sign in _WILDCARDS)
            indices = [
                index for link, index in index_of.items() if is_pattern and fnmatchcase(link, name.replace(":", ">"))
            ]
            of_patterns.append((entry, indices))
        if not indices:
            kind = "link" if grain == "logical" else "port"
            allowed = f"{', '.join(classes)}, a {kind} ({list_first(names, 3)}) or a pattern such as {names[0][:2]}>*"
            meant = did_you_mean(name, [*classes, *names])
            text = f"no {kind} of the fabric's {grain} grain has that name; allowed: {allowed}{meant}"
            mistakes.append(Mistake(f"{KEY}.{name}", text))
    if mistakes:
        raise ConditionsError(mistakes)
    return [(entry, np.array(indices)) for entry, indices in (*of_classes, *of_patterns, *of_names)]
