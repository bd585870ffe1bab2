"""The declared faults of a configuration: which are in force for a collective, and what they do to its links.

`for = "3 collectives"` counts attempts, so that a fault lasts for fewer collectives of which attempts were lost.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from analysis.figures.run_points import Configuration
from analysis.results.reader import Run
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, cables_of
from topologies.fabric.ports import links_in_grain
from topologies.units import parse_delay_s

Floats = npt.NDArray[np.float64]

_AT = re.compile(r"(?:(?P<after>.+?) into )?collective (?P<number>[0-9]+)")  # a fault's `at`
_CUT = re.compile(r"(?:link|switch) (?P<ends>\S+) down")  # a fault's `what` that takes cables down
_SLOW = re.compile(r"agent (?P<rank>[0-9]+) slow (?P<times>[0-9.]+)x")


@dataclass(frozen=True, kw_only=True)
class FaultInForce:
    """A declared fault: its index, what it is, the collective before or in which it begins, after how long in that
    (None: before it), and for how many collectives it lasts."""

    index: int
    what: str
    first: int
    after_s: float | None
    lasts: float

    @property
    def end(self) -> float:
        """The first collective that it does not hit any more."""
        return self.first + self.lasts

    @property
    def ends(self) -> tuple[str, str]:
        """The two ends of the link that it takes down, or a switch and ""; both "" if it takes nothing down."""
        cut = _CUT.fullmatch(self.what)
        a, _, b = cut["ends"].partition("-") if cut else ("", "", "")
        return a, b

    def begun_by(self, number: int) -> bool:
        """Return whether it is in force when this collective begins."""
        return self.first + (self.after_s is not None) <= number < self.end


def declared(configuration: Configuration) -> list[FaultInForce]:
    """Return the faults of a configuration as if no attempt were lost."""
    found = []
    for index, fault in enumerate(configuration.values.get("fault") or ()):
        at, what = _AT.fullmatch(str(fault["at"])), str(fault["what"])
        if at is None:
            continue
        is_restarted = "for" not in fault and what.endswith(" killed")
        lasts = int(str(fault["for"]).split()[0]) if "for" in fault else 1 if is_restarted else math.inf
        after_s = parse_delay_s(at["after"]) if at["after"] else None
        first = int(at["number"])
        found.append(FaultInForce(index=index, what=what, first=first, after_s=after_s, lasts=lasts))
    return found


def of_point(run: Run, configuration: Configuration, engine: str, mode: str) -> list[FaultInForce]:
    """Return the faults of a point, for as many collectives as they lasted for there."""
    faults, table = declared(configuration), run.faults
    if table.empty or not faults:
        return faults
    here = table[(table["engine"] == engine) & (table["setting"] == configuration.index) & (table["mode"] == mode)]
    lost = [(row.fault, row.at_collective, row.collectives_lost) for row in here.itertuples() if row.collectives_lost]
    return [_shortened(fault, lost, is_measured=engine != "model") for fault in faults]


def _shortened(fault: FaultInForce, lost: Sequence[tuple[int, int, int]], *, is_measured: bool) -> FaultInForce:
    """Return a fault without the attempts that were lost while it was in force: of a predicted point the lost ones are
    its own, of a measured one all that any fault has caused. It hits one collective at least."""
    attempts = 0
    for index, at, count in sorted(lost, key=lambda one: one[1]):
        within = fault.first <= at < fault.end - attempts
        attempts += count if (within if is_measured else index == fault.index) else 0
    return replace(fault, lasts=max(1, fault.lasts - attempts))


def dead_cables(fabric: Fabric, faults: Sequence[FaultInForce], number: int) -> Cables:
    """Return the cables that are down when a collective begins."""
    dead = NO_CABLES
    for fault in faults:
        a, b = fault.ends
        if a and fault.begun_by(number):
            dead |= {cable(a, b)} if b else cables_of(fabric, a)
    return dead


def slowed_bps(fabric: Fabric, faults: Sequence[FaultInForce], number: int, rates_bps: Floats) -> Floats:
    """Return the rates of logical links or ports, [links], when a collective begins, with those of slow GPUs."""
    rates = rates_bps.copy()
    for fault in faults:
        slow = _SLOW.fullmatch(fault.what)
        if slow and fault.begun_by(number):
            name = fabric.gpus[int(slow["rank"])].name
            rates[[link.index for link in links_in_grain(fabric).all if link.src == name]] /= float(slow["times"])
    return rates


def dead_links(fabric: Fabric, dead: Cables) -> list[int]:
    """Return the indices of the links or ports over cables that are down."""
    return [link.index for link in links_in_grain(fabric).all if cable(link.src, link.far_end) in dead]
