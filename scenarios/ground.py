"""What a testbed stands on: whose Open vSwitch, which clock, at which scale, and how late timers may be."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts.communicator import LEAD_S
from topologies.scale import EVERYTHING, RateScale
from topologies.shaping import VIRTUAL_LATE_S

WALL_LATE_S = 1e-3
"""How late a timer of an unburdened machine may be in real time, for a class to lose nothing by it."""
WALL_LEAD_S = 0.3

CAPACITY = "capacity"
"""Instead of a mode: measure what the machine carries, and run no collective."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a testbed stands on.

    `own_openvswitch`: bring up and take down an Open vSwitch of its own, as in the VM; else the machine's must run.
    `folder` is for its files and is made if need be. `scale` is applied to what is carried, `late_s` is how late a
    timer may be, and `lead_s` how long the agents have to hear of a collective. `is_real`: time passes as on a clock.
    """

    own_openvswitch: bool = True
    folder: Path = Path("/run/longhaul")
    scale: RateScale = EVERYTHING
    late_s: float = VIRTUAL_LATE_S
    lead_s: float = LEAD_S
    is_real: bool = False

    @classmethod
    def real(cls, scale: RateScale, *, own_kernel: bool) -> "Ground":
        """Of an experiment on the wall clock: on the machine's own kernel and Open vSwitch, or else in a VM."""
        return cls(own_openvswitch=not own_kernel, scale=scale, late_s=WALL_LATE_S, lead_s=WALL_LEAD_S, is_real=True)

    @classmethod
    def parse(cls, text: str) -> "Ground":
        """What `str` has made of the ground of an experiment on the wall clock; raises ScaleError."""
        place, _, scale = text.partition(" ")
        return cls.real(RateScale.parse(scale), own_kernel=place == "machine")

    def __str__(self) -> str:
        return f"{'vm' if self.own_openvswitch else 'machine'} {self.scale}"

    @contextmanager
    def files(self) -> Iterator[Path]:
        """A folder for the time of an experiment: `folder` in the VM, on a machine one of this experiment's own."""
        if self.own_openvswitch:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
            yield Path(folder)


VIRTUAL = Ground()
