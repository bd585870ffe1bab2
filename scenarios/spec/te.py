"""Traffic engineering as a scenario declares it, in [te], and what it cannot be beside. Pure.

The number of `te.pieces` is the fabric's, as the ways of flows are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scenarios.policies.policy import Mode
from scenarios.spec.classes import ClassSpec
from topologies.errors import Mistake

ROUTING, MEASURED = "te", "measured"
LEAST_SAMPLE_S = 100e-6  # a reading takes half of that


@dataclass(frozen=True, kw_only=True)
class TeSpec:
    """How many collectives the rates of tunnels are kept, unless a link fails or comes back; and whether demands are
    what is requested, or what is measured, as a rate over `sample_s`."""

    every: int = 1
    demand: str = "requested"
    sample_s: float = 10e-3


def check(modes: Mapping[str, Mode], classes: tuple[ClassSpec, ...], beside: Mapping[str, object]) -> Iterator[Mistake]:
    """What is wrong with traffic engineering for these modes and classes, and `beside` what is true of these."""
    for what in (what for what, is_there in beside.items() if is_there):
        yield Mistake("fabric.routing", f"te is beside {what}; allowed: one of the two")
    for name, mode in modes.items():
        if not mode.reroutes and (mode.knowledge.is_measured or not mode.is_periodic):
            text = f"te is beside {name}; allowed: modes that choose rings never or every K and go by no measurement"
            yield Mistake("fabric.routing", text)
    for one in classes:
        if one.ceiling < 1:
            yield Mistake("class", f"{one.name} has a ceiling of {one.ceiling:g} beside te; allowed: 1")
