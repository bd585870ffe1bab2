"""The faults that a scenario declares, read from its tables, and which of them the timing model's times are without."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from topologies.errors import list_all, list_first
from topologies.units import parse_delay_s

_AT = re.compile(r"(?:(?P<after>.+?) into )?collective (?P<number>[0-9]+)")  # a fault's `at`
CUT = re.compile(r"(?:link|switch) (?P<ends>\S+) down")
"""A fault's `what` that takes cables down."""
SLOW = re.compile(r"agent (?P<rank>[0-9]+) slow (?P<times>[0-9.]+)x")
"""A fault's `what` that makes a GPU slow."""
DOWN, LOSSY, SLOWED, CONTROLLER, AGENT = "down", "loss", "slow", "controller", "agent"
"""The kinds of faults: cables go down, a link loses packets, a GPU is slow, a controller ends, an agent ends."""
_KINDS = (
    (CUT, DOWN),
    (re.compile(r"link \S+ loss .*"), LOSSY),
    (SLOW, SLOWED),
    (re.compile("controller killed|the controller has died"), CONTROLLER),
)
_MOST = 4  # faults that are named

Ends = Mapping[tuple[int, str], Sequence[int | None]]
"""By the number of a fault and what it is, the first collective at each predicted point that it does not hit any more,
None where it stays until the run ends."""
NO_ENDS: Ends = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class DeclaredFault:
    """A declared fault: its number from 1, what it is, the collective before or in which it begins, after how long in
    that (None: before it), and for how many collectives it lasts; if it lasts for `lasts_s` seconds in which
    collectives run, until the end as far as this tells."""

    number: int
    what: str
    first: int
    after_s: float | None
    lasts: float
    lasts_s: float | None = None

    @property
    def end(self) -> float:
        """The first collective that it does not hit any more."""
        return self.first + self.lasts

    @property
    def ends(self) -> tuple[str, str]:
        """The two ends of the link that it takes down, or a switch and ""; both "" if it takes nothing down."""
        cut = CUT.fullmatch(self.what)
        a, _, b = cut["ends"].partition("-") if cut else ("", "", "")
        return a, b

    def begun_by(self, number: int) -> bool:
        """Return whether it is in force when this collective begins."""
        return self.first + (self.after_s is not None) <= number < self.end

    @property
    def is_to_end(self) -> bool:
        """Whether it is declared to end by itself, in some later collective."""
        return self.lasts_s is not None or 1 < self.lasts < math.inf

    @property
    def is_modelled(self) -> bool:
        """Whether the timing model has what it does to the collectives that begin with it."""
        return kind_of(self.what) in (DOWN, SLOWED)


def kind_of(what: str) -> str:
    """Return the kind of a fault, given what it is in a scenario's or a result's words."""
    return next((kind for form, kind in _KINDS if form.fullmatch(what)), AGENT)


def declared(faults: Iterable[Mapping[str, Any]] | None) -> list[DeclaredFault]:
    """Return faults, as tables of a scenario, as if no attempt were lost; those of a program are left out."""
    found = []
    for number, fault in enumerate(faults or (), 1):
        at, what = _AT.fullmatch(str(fault["at"])), str(fault["what"])
        if at is None:
            continue
        is_restarted = "for" not in fault and what.endswith(" killed")
        count = re.fullmatch(r"([0-9]+) collectives?", str(fault.get("for", "")))
        lasts = int(count[1]) if count else 1 if is_restarted else math.inf
        lasts_s = parse_delay_s(str(fault["for"])) if "for" in fault and not count else None
        after_s = parse_delay_s(at["after"]) if at["after"] else None
        first = int(at["number"])
        found.append(
            DeclaredFault(number=number, what=what, first=first, after_s=after_s, lasts=lasts, lasts_s=lasts_s)
        )
    return found


def unmodelled_sentence(tables: Iterable[Iterable[Mapping[str, Any]] | None], ends: Ends = NO_ENDS) -> str:
    """Return a sentence on what the timing model's times of these configurations are without, given the tables of their
    faults and where those that last for a time end: what happens within a collective, losses and killed processes; ""
    if they have all faults."""
    parts = dict.fromkeys(_missing(one, ends) for faults in tables for one in declared(faults))
    parts.pop("", None)
    return f"The timing model's times are without {list_first([*parts], _MOST, '; ')}." if parts else ""


def until_end_sentence(tables: Iterable[Iterable[Mapping[str, Any]] | None], ends: Ends) -> str:
    """Return a sentence on faults that the timing model has for longer than they last, given the tables of faults and
    their ends: of those that last for a time, until the end of the collective within which they end; "" if there are
    none."""
    parts = dict.fromkeys(_to_its_end(one, ends) for faults in tables for one in declared(faults))
    parts.pop("", None)
    return f"The timing model has {list_first([*parts], _MOST, '; ')}." if parts else ""


def still_in_force_sentence(
    tables: Iterable[Iterable[Mapping[str, Any]] | None], in_force: Mapping[tuple[int, str], Collection[str]]
) -> str:
    """Return a sentence on the faults that were to end and have not when the run ends, given the tables of faults, and
    the modes in which each is still in force, none of them for all modes; "" if there are none."""
    ending = {(one.number, one.what) for faults in tables for one in declared(faults) if one.is_to_end}
    parts = [
        f"{what}{f' (in {list_all([*modes])})' if modes else ''}"
        for (number, what), modes in in_force.items()
        if (number, what) in ending
    ]
    return f"Still in force when the run ends: {list_first(parts, _MOST, '; ')}." if parts else ""


def _to_its_end(fault: DeclaredFault, ends: Ends) -> str:
    """Return to the end of which collectives the model has a fault that lasts for a time; "" if it has none of it, has
    all of it, or has it until the run ends."""
    begin = fault.first + (fault.after_s is not None)
    last = sorted({until - 1 for until in ends.get((fault.number, fault.what), ()) if until is not None})
    if fault.lasts_s is None or not fault.is_modelled or not last or last[-1] < begin:
        return ""
    which = f"collective {last[-1]:,}" if len(last) == 1 else f"one of the collectives {last[0]:,} to {last[-1]:,}"
    return f"{fault.what} to the end of {which}, in which it ends"


def _missing(fault: DeclaredFault, ends: Ends) -> str:
    """Return what the model has not of a fault; "" if it has all of it."""
    if not fault.is_modelled:
        number = f"collective {fault.first:,}"
        return f"{fault.what} in {number}" if fault.lasts <= 1 else f"{fault.what} from {number} on"
    if fault.after_s is None:
        return ""
    rest = "" if fault.lasts <= 1 else f" (they have it from collective {fault.first + 1:,} on)"
    if fault.lasts_s is not None:
        rest = _later_part(fault.first + 1, ends.get((fault.number, fault.what), ()))
    return f"{fault.what} within collective {fault.first:,}{rest}"


def _later_part(first: int, until: Sequence[int | None]) -> str:
    """Return in which collectives after the one within which it begins the model has a fault that lasts for a time, if
    it is known `until` which it lasts at each point."""
    if not until:
        return " (they have it in the next one if it lasts until that)"
    if None in until:
        return f" (they have it from collective {first:,} on)"
    last = max(one - 1 for one in until if one is not None)
    if last < first:
        return " (it ends in that one)"
    at_most = " at most" * (len({*until}) > 1)
    return f" (they have it in collective{f' {first:,}' if last == first else f's {first:,} to {last:,}'}{at_most})"
