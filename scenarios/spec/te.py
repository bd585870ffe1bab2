"""Traffic engineering: the [te] table, and what it cannot be combined with. Pure.

`te.pieces` is a field of the fabric, since it determines the paths of flows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scenarios.policies.policy import Mode
from scenarios.spec.classes import ClassSpec
from topologies.errors import Mistake, conflicts
from topologies.units import format_delay

ROUTING, MEASURED = "te", "measured"
MIN_SAMPLE_S = 100e-6  # a reading takes half of that


@dataclass(frozen=True, kw_only=True)
class TeSpec:
    """The [te] table: how often tunnel rates are computed, and for which demands.

    `every` is for how many collectives the rates are kept, or as a float for how many seconds from a collective's
    beginning; a link that fails or recovers ends this time early. `demand` is "requested" or "measured", which is a
    rate over `sample_s`.
    """

    every: int | float = 1
    demand: str = "requested"
    sample_s: float = 10e-3

    @property
    def collectives(self) -> int:
        """The number of collectives for which rates are kept; 1 if they change by time."""
        return self.every if isinstance(self.every, int) else 1

    @property
    def readings(self) -> int:
        """The number of counter readings in a collective after which rates are recomputed; 0 for never."""
        return 0 if isinstance(self.every, int) else round(self.every / self.sample_s)


def check(
    spec: TeSpec, modes: Mapping[str, Mode], classes: tuple[ClassSpec, ...], others: Mapping[str, object]
) -> Iterator[Mistake]:
    """Yield what is wrong with traffic engineering for these modes and classes; `others` maps what it cannot be
    combined with to whether the scenario has it."""
    if isinstance(spec.every, float):
        every, sample = format_delay(spec.every), format_delay(spec.sample_s)
        if spec.demand != MEASURED:
            text = f"{every} cannot be combined with te.demand {spec.demand}, which is constant within a collective"
            yield Mistake("te.every", f'{text}; allowed: a number of collectives, or te.demand "{MEASURED}"')
        elif round(spec.every * 1e9) % round(spec.sample_s * 1e9):
            yield Mistake("te.every", f"{every} is not a multiple of te.sample, {sample}; allowed: a multiple of it")
    yield from conflicts("fabric.routing", "te", others)
    for name, mode in modes.items():
        if not mode.reroutes and (mode.knowledge.is_measured or not mode.is_periodic):
            text = f"te cannot be combined with {name}; allowed: modes that choose rings never or every K, unmeasured"
            yield Mistake("fabric.routing", text)
    for one in classes:
        if one.ceiling < 1:
            yield Mistake(
                "class", f"{one.name} has a ceiling of {one.ceiling:g}, which te does not support; allowed: 1"
            )
