"""Faults as a scenario declares them: read from its [[fault]] tables, checked, and what they do to conditions. Pure.

    [[fault]]
    at = "40 ms into collective 12"   # or "collective 12": before it begins
    what = "link s0b0-s1b0 down"
    for = "3 collectives"             # until the end where this is left out

Collectives count from 0, as in the results; one that is lost and run again counts twice for how long a fault lasts.
What carries faults out is `mishaps`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scenarios.spec.document import Given, did_you_mean, shown
from topologies.errors import Mistake, SpecError, first_of
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NONE, Cables, around, cable, dead_links
from topologies.units import UnitError, format_delay, parse_delay_s

MAX_FAULTS = 100
MAX_NUMBER = 10_000_000  # collectives a scenario can have
MAX_SLOWER = 1000
KEYS = ("at", "what", "for")
KINDS = ("link down", "link loss", "switch down", "controller killed", "agent killed", "agent slow")

Floats = npt.NDArray[np.float64]

_AT = re.compile(r"(?:(?P<after>.{1,40}?) into )?collective (?P<number>[0-9]{1,9})")
_FOR = re.compile(r"(?P<number>[0-9]{1,9}) collectives?")
_NODE = r"[A-Za-z][A-Za-z0-9_]{0,8}"
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_WHAT = {
    "link down": re.compile(rf"link (?P<target>{_NODE}-{_NODE}) down"),
    "link loss": re.compile(rf"link (?P<target>{_NODE}-{_NODE}) loss (?P<amount>{_NUMBER}) ?%"),
    "switch down": re.compile(rf"switch (?P<target>{_NODE}) down"),
    "controller killed": re.compile(r"controller killed(?P<target>)"),
    "agent killed": re.compile(r"agent (?P<target>[0-9]{1,6}) killed"),
    "agent slow": re.compile(rf"agent (?P<target>[0-9]{{1,6}}) slow (?P<amount>{_NUMBER})x"),
}
_ALLOWED = (
    '"link A-B down", "link A-B loss 1 %", "switch S down", "controller killed", "agent R killed", "agent R slow 10x"'
)

_PATTERNS: Mapping[str, tuple[tuple[re.Pattern[str], ...], str]] = {
    "at": ((_AT,), '"collective 12" and "40 ms into collective 12"'),
    "what": (tuple(_WHAT.values()), _ALLOWED),
    "for": ((_FOR,), '"3 collectives"'),
}


class FaultError(SpecError):
    """Faults that cannot be: every mistake, by its key, as in "fault[1].at"."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: before the collective of this number, or `after_s` seconds into it, for so many collectives.

    `kind` is of KINDS. `target` is a cable's "a-b", a switch, an agent's rank, or nothing. `amount` is the share that
    is lost, or how many times slower. `lasts` is None for a fault that stays.
    """

    collective: int
    kind: str
    target: str = ""
    amount: float = 0.0
    after_s: float | None = None
    lasts: int | None = None

    @property
    def what(self) -> str:
        """The fault in a scenario's words."""
        first, _, rest = self.kind.partition(" ")
        words = f"{first} {self.target} {rest}" if self.target else self.kind
        if self.kind == "link loss":
            return f"{words} {self.amount * 100:.9g} %"
        return f"{words} {self.amount:.9g}x" if self.kind == "agent slow" else words

    @property
    def at(self) -> str:
        """When it happens, in a scenario's words."""
        place = f"collective {self.collective}"
        return place if self.after_s is None else f"{format_delay(self.after_s)} into {place}"

    @property
    def ends(self) -> tuple[str, str]:
        """The two ends of the link."""
        a, _, b = self.target.partition("-")
        return a, b

    def written(self) -> dict[str, str]:
        """The table that declares it."""
        table = {"at": self.at, "what": self.what}
        return table if self.lasts is None else table | {"for": f"{self.lasts} collective{'s' * (self.lasts != 1)}"}


def read(given: Given) -> tuple[Fault, ...]:
    """The faults that a scenario's list of tables declares; raises FaultError with every mistake."""
    if not isinstance(given.value, list):
        raise FaultError([Mistake("fault", f"{shown(given.value)} is no list of tables: allowed is [[fault]]")])
    if len(given.value) > MAX_FAULTS:
        raise FaultError([Mistake("fault", f"{len(given.value)} faults are too many: allowed are {MAX_FAULTS}")])
    mistakes: list[Mistake] = []
    faults = [_one(f"fault[{place}]", table, mistakes) for place, table in enumerate(given.value, 1)]
    if mistakes:
        raise FaultError(mistakes)
    return tuple(fault for fault in faults if fault is not None)


def _one(place: str, table: object, mistakes: list[Mistake]) -> Fault | None:
    before = len(mistakes)
    if not isinstance(table, dict):
        mistakes.append(Mistake(place, f"{shown(table)} is no table: allowed are {', '.join(KEYS)}"))
        return None
    for key in table:
        if key not in KEYS:
            hint = did_you_mean(str(key), KEYS)
            mistakes.append(Mistake(f"{place}.{key}", f"is no key of a fault, allowed: {', '.join(KEYS)}{hint}"))
    at = _matched(place, "at", table, mistakes)
    what = _matched(place, "what", table, mistakes)
    lasts = _matched(place, "for", table, mistakes) if "for" in table else None
    fault = Fault(
        collective=int(at["number"]) if at else 0,
        after_s=_after(place, at, mistakes) if at else None,
        kind=next((kind for kind, pattern in _WHAT.items() if what and what.re is pattern), ""),
        target=what["target"] if what else "",
        amount=float(what.groupdict().get("amount") or 0) if what else 0.0,
        lasts=int(lasts["number"]) if lasts else None,
    )
    mistakes += [Mistake(f"{place}.{key}", text) for key, text in _alone(fault)]
    if fault.kind == "link loss":
        fault = replace(fault, amount=fault.amount / 100)
    if fault.kind.startswith("agent"):
        fault = replace(fault, target=str(int(fault.target)))
    return fault if len(mistakes) == before else None


def _matched(place: str, key: str, table: Mapping[str, Any], mistakes: list[Mistake]) -> re.Match[str] | None:
    """What a key's text is by the first pattern of its own that it fits."""
    patterns, allowed = _PATTERNS[key]
    value = table.get(key)
    if key not in table:
        mistakes.append(Mistake(f"{place}.{key}", f"is missing: allowed is {allowed}"))
        return None
    words = " ".join(value.split()) if isinstance(value, str) and len(value) <= 200 else ""
    found = next((match for pattern in patterns if (match := pattern.fullmatch(words))), None)
    if found is None:
        mistakes.append(Mistake(f"{place}.{key}", f"{shown(value)} is not understood: allowed is {allowed}"))
    return found


def _after(place: str, at: re.Match[str], mistakes: list[Mistake]) -> float | None:
    if at["after"] is None:
        return None
    try:
        return parse_delay_s(at["after"])
    except UnitError as error:
        mistakes.append(Mistake(f"{place}.at", str(error)))
        return None


def _alone(fault: Fault) -> Iterator[tuple[str, str]]:
    """What is wrong with a fault by itself: the key and the sentence."""
    if fault.collective > MAX_NUMBER:
        yield "at", f"collective {fault.collective:,} is too large: allowed is 0 to {MAX_NUMBER:,}"
    if fault.lasts is not None and not 1 <= fault.lasts <= MAX_NUMBER:
        yield "for", f"{fault.lasts:,} collectives are not allowed: allowed is 1 to {MAX_NUMBER:,}"
    if fault.kind == "agent killed" and fault.lasts is not None:
        yield "for", "does nothing: a killed agent is started again as soon as it is missed; leave it out"
    if fault.kind == "link loss" and not 0 < fault.amount <= 100:
        yield "what", f"{fault.amount:g} % cannot be lost: allowed is more than 0 % and up to 100 %"
    if fault.kind == "agent slow" and not 1 < fault.amount <= MAX_SLOWER:
        yield "what", f"{fault.amount:g}x is not slower: allowed is more than 1x and up to {MAX_SLOWER}x"


def check(faults: Iterable[Fault], fabric: Fabric, *, count: int) -> Iterator[Mistake]:
    """What is wrong with faults in this fabric and with so many collectives."""
    cables = {cable(c.a, c.b): f"{c.a}-{c.b}" for c in fabric.cables}
    switches = [switch.name for switch in fabric.switches]
    for place, fault in enumerate(faults, 1):
        if fault.collective >= count:
            text = f"collective {fault.collective:,} is not run: allowed is 0 to {count - 1:,}"
            yield Mistake(f"fault[{place}].at", text)
        if fault.kind.startswith("link") and cable(*fault.ends) not in cables:
            hint = did_you_mean(fault.target, cables.values()) or f", such as {next(reversed(cables.values()))}"
            yield Mistake(f"fault[{place}].what", f"{fault.target} is no link: allowed is a cable of the fabric{hint}")
        if fault.kind.startswith("switch") and fault.target not in switches:
            text = f"{fault.target} is no switch: allowed is {first_of(switches, 12)}"
            yield Mistake(f"fault[{place}].what", text)
        if fault.kind.startswith("agent") and int(fault.target) >= len(fabric.gpus):
            text = f"there is no agent {fault.target}: allowed is 0 to {len(fabric.gpus) - 1}"
            yield Mistake(f"fault[{place}].what", text)


def active(faults: Iterable[Fault], collective: int) -> tuple[Fault, ...]:
    """The faults in force when a collective begins, where none is ever lost."""
    return tuple(
        fault
        for fault in faults
        if fault.collective + (fault.after_s is not None) <= collective
        and (fault.lasts is None or collective < fault.collective + fault.lasts)
    )


def dead_cables(faults: Collection[Fault], fabric: Fabric) -> Cables:
    """The cables that nothing passes while these faults are in force."""
    links = [cable(*fault.ends) for fault in faults if fault.kind == "link down"]
    return NONE.union(links, *(around(fabric, fault.target) for fault in faults if fault.kind == "switch down"))


def slowed(rates_bps: Floats, faults: Collection[Fault], fabric: Fabric) -> Floats:
    """Rates, [..., links], when everything that a slow agent sends takes as many times as long."""
    found = rates_bps.copy()
    for fault in faults:
        if fault.kind == "agent slow":
            name = fabric.gpus[int(fault.target)].name
            found[..., [link.index for link in fabric.links if link.src == name]] /= fault.amount
    return found


def known(rates_bps: Floats, faults: Collection[Fault], fabric: Fabric) -> Floats:
    """Rates, [..., links], as who chooses rings and paths knows them: slowed, and 0 where a link has no way left."""
    found = slowed(rates_bps, faults, fabric)
    found[..., list(dead_links(fabric, dead_cables(faults, fabric)))] = 0.0
    return found
