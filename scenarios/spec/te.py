"""Traffic engineering: the [te] table. Pure.

`te.pieces` is a field of the fabric, since it determines the paths of flows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from topologies.errors import Mistake
from topologies.units import format_delay

ROUTING, MEASURED = "te", "measured"
MIN_SAMPLE_S = 100e-6  # a reading takes half of that
SAMPLES = 10  # that stand for a collective where none can be counted


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


def of_program(spec: TeSpec) -> TeSpec:
    """Return the table for a program's measured demands: it has no collectives, so SAMPLES readings stand for one."""
    return spec if isinstance(spec.every, float) else replace(spec, every=spec.every * SAMPLES * spec.sample_s)


def check(spec: TeSpec, routing: str) -> Iterator[Mistake]:
    """Yield a mistake if tunnel rates are computed at times that are not those of readings."""
    if routing == ROUTING and isinstance(spec.every, float) and round(spec.every * 1e9) % round(spec.sample_s * 1e9):
        every, sample = format_delay(spec.every), format_delay(spec.sample_s)
        yield Mistake("te.every", f"{every} is not a multiple of te.sample, {sample}; allowed: a multiple of it")
