"""The declared faults of a configuration: which are in force for a collective, and what they do to its links.

`for = "3 collectives"` counts attempts, so that a fault lasts for fewer collectives of which attempts were lost. How
many collectives a fault of `for = "200 ms"` hits is stored with its outcome at each point.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from analysis.figures.run_points import Configuration
from analysis.results.reader import Run
from analysis.statistics.declared_faults import SLOW, DeclaredFault, declared
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, cables_of
from topologies.fabric.ports import links_in_grain

Floats = npt.NDArray[np.float64]


def of_point(run: Run, configuration: Configuration, engine: str, mode: str) -> list[DeclaredFault]:
    """Return the faults of a point, for as many collectives as they lasted for there."""
    faults, table = declared(configuration.values.get("fault")), run.faults
    if table.empty or not faults:
        return faults
    here = table[(table["engine"] == engine) & (table["setting"] == configuration.index) & (table["mode"] == mode)]
    until = {row.number: row.until for row in here.itertuples() if not math.isnan(row.until)}
    faults = [
        replace(one, lasts=max(1, until[one.number] - one.first))
        if one.lasts_s is not None and one.number in until
        else one
        for one in faults
    ]
    lost = [(row.number, row.at_collective, row.collectives_lost) for row in here.itertuples() if row.collectives_lost]
    is_measured = engine != "model"
    return [one if one.lasts_s is not None else _shortened(one, lost, is_measured=is_measured) for one in faults]


def _shortened(fault: DeclaredFault, lost: Sequence[tuple[int, int, int]], *, is_measured: bool) -> DeclaredFault:
    """Return a fault without the attempts that were lost while it was in force: of a predicted point the lost ones are
    its own, of a measured one all that any fault has caused. It hits one collective at least."""
    attempts = 0
    for number, at, count in sorted(lost, key=lambda one: one[1]):
        within = fault.first <= at < fault.end - attempts
        attempts += count if (within if is_measured else number == fault.number) else 0
    return replace(fault, lasts=max(1, fault.lasts - attempts))


def dead_cables(fabric: Fabric, faults: Sequence[DeclaredFault], number: int) -> Cables:
    """Return the cables that are down when a collective begins."""
    return NO_CABLES.union(*(_cables(fabric, fault) for fault in faults if fault.begun_by(number)))


def links_of_fault(fabric: Fabric, fault: DeclaredFault) -> tuple[int, ...]:
    """Return the indices of the links or ports that are down while a fault is in force."""
    return tuple(dead_links(fabric, _cables(fabric, fault)))


def failing_links(fabric: Fabric, faults: Sequence[DeclaredFault], number: int) -> dict[int, float]:
    """Return the links or ports, by index, over cables that go down while a collective runs, and after how many seconds
    of it they do."""
    dead, found = dead_cables(fabric, faults, number), dict[int, float]()
    for fault in sorted(faults, key=lambda one: -(one.after_s or 0.0)):
        if fault.after_s is not None and fault.first == number:
            found |= dict.fromkeys(dead_links(fabric, _cables(fabric, fault) - dead), fault.after_s)
    return found


def _cables(fabric: Fabric, fault: DeclaredFault) -> Cables:
    """Return the cables that a fault takes down."""
    a, b = fault.ends
    return cables_of(fabric, a) if not b else frozenset({cable(a, b)})


def slowed_bps(fabric: Fabric, faults: Sequence[DeclaredFault], number: int, rates_bps: Floats) -> Floats:
    """Return the rates of logical links or ports, [links], when a collective begins, with those of slow GPUs."""
    rates = rates_bps.copy()
    for fault in faults:
        slow = SLOW.fullmatch(fault.what)
        if slow and fault.begun_by(number):
            name = fabric.gpus[int(slow["rank"])].name
            rates[[link.index for link in links_in_grain(fabric).all if link.src == name]] /= float(slow["times"])
    return rates


def dead_links(fabric: Fabric, dead: Cables) -> list[int]:
    """Return the indices of the links or ports over cables that are down."""
    return [link.index for link in links_in_grain(fabric).all if cable(link.src, link.far_end) in dead]
