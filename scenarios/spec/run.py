"""What a run compares, and how: the values of a scenario's table `run`."""

from dataclasses import dataclass, field
from pathlib import Path

from scenarios.policies.policy import MODES
from topologies.shaping.rate_scale import FULL_SCALE, RateScale

AUTO = 0
"""The number of VMs that `scenarios.engines.machines` chooses, "auto" where it is written."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What is compared (`modes`), with which `baseline` and references (`referees`), how long a best schedule is
    searched for, the seed of all random numbers, and the clock and the rate scale of the emulation, which divides a
    point's sites among `machines` VMs, with AUTO among as many as `scenarios.engines.machines` chooses. `captures` is
    not a key: it is the folder for captures of a run's collectives, None if nothing is captured."""

    modes: tuple[str, ...] = tuple(MODES)
    baseline: tuple[str, ...] = ()
    referees: tuple[str, ...] = ()
    search: float = 2.0
    seed: int = 1
    clock: str = "virtual"
    scale: RateScale = FULL_SCALE
    machines: int = 1
    captures: Path | None = field(default=None, compare=False)

    @property
    def is_real(self) -> bool:
        """Whether the emulation runs in real time."""
        return self.clock == "wall"
