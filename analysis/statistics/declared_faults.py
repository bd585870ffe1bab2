"""The faults that a scenario declares, read from its tables, and which of them the timing model's times are without."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from topologies.errors import list_first
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


def unmodelled_sentence(tables: Iterable[Iterable[Mapping[str, Any]] | None]) -> str:
    """Return a sentence on what the timing model's times of these configurations are without, given the tables of their
    faults: what happens within a collective, losses and killed processes; "" if they have all faults."""
    parts = dict.fromkeys(_missing(one) for faults in tables for one in declared(faults))
    parts.pop("", None)
    return f"The timing model's times are without {list_first([*parts], _MOST, '; ')}." if parts else ""


def until_end_sentence(tables: Iterable[Iterable[Mapping[str, Any]] | None]) -> str:
    """Return a sentence on faults that the timing model has for longer than they last, given the tables of faults: of
    those that last for a time, until the end of the collective within which they end; "" if there are none."""
    parts = [one.what for faults in tables for one in declared(faults) if one.lasts_s is not None and one.is_modelled]
    which = list_first([*dict.fromkeys(parts)], _MOST, "; ")
    return f"If it ends within a collective, the timing model has {which} to the end of that one." if parts else ""


def _missing(fault: DeclaredFault) -> str:
    """Return what the model has not of a fault; "" if it has all of it."""
    if not fault.is_modelled:
        number = f"collective {fault.first:,}"
        return f"{fault.what} in {number}" if fault.lasts <= 1 else f"{fault.what} from {number} on"
    if fault.after_s is None:
        return ""
    rest = "" if fault.lasts <= 1 else f" (they have it from collective {fault.first + 1:,} on)"
    if fault.lasts_s is not None:
        rest = " (they have it in the next one if it lasts until that)"
    return f"{fault.what} within collective {fault.first:,}{rest}"
