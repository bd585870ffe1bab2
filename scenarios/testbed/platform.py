"""The platform of a testbed: a VM or this machine's kernel, its clock, rate scale and timer tolerance; and host-wide
settings that are restored."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts.communicator import LEAD_S
from topologies.shaping.classes import VIRTUAL_LATE_S
from topologies.shaping.rate_scale import EVERYTHING, RateScale

WALL_LATE_S = 1e-3
"""In real time, seconds: an HTB class loses no capacity to timers that are late by up to this."""
WALL_LEAD_S = 0.3

_SYSCTLS = ("net/core/netdev_max_backlog", "net/ipv4/tcp_mem")
_SWITCH_KEYS = ("max-idle", "max-revalidator")
_VSCTL = ("ovs-vsctl", "--timeout=10", "--no-wait")

CAPACITY = "capacity"
"""In place of a mode: measure the throughput of the machine, and run no collective."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The platform that a testbed runs on.

    `own_openvswitch`: start and stop an Open vSwitch, as in the VM; else the machine's own must be running. `folder`
    is for the testbed's files, and is made if need be. `scale` applies to rates and chunks, `late_s` is how late a
    timer may be, and `lead_s` the time from the command to begin a collective to its beginning. `is_real`: the clock
    is the wall clock.
    """

    own_openvswitch: bool = True
    folder: Path = Path("/run/longhaul")
    scale: RateScale = EVERYTHING
    late_s: float = VIRTUAL_LATE_S
    lead_s: float = LEAD_S
    is_real: bool = False

    @classmethod
    def real(cls, scale: RateScale, *, own_kernel: bool) -> "Platform":
        """For the wall clock: on the machine's own kernel and Open vSwitch, or else in a VM."""
        return cls(own_openvswitch=not own_kernel, scale=scale, late_s=WALL_LATE_S, lead_s=WALL_LEAD_S, is_real=True)

    @classmethod
    def parse(cls, text: str) -> "Platform":
        """The platform for the wall clock that `str` gave this text for; raises ScaleError."""
        place, _, scale = text.partition(" ")
        return cls.real(RateScale.parse(scale), own_kernel=place == "machine")

    def __str__(self) -> str:
        return f"{'vm' if self.own_openvswitch else 'machine'} {self.scale}"

    @contextmanager
    def files(self) -> Iterator[Path]:
        """A folder for the time of an experiment: `folder` in the VM, elsewhere a temporary one."""
        if self.own_openvswitch:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
            yield Path(folder)


VIRTUAL = Platform()


@contextmanager
def put_back() -> Iterator[None]:
    """Restore at the end what a network changes for the whole host: two sysctls, two settings of Open vSwitch.

    Raises NetworkError where Open vSwitch does not answer.
    """
    from topologies.mininet_nodes import run_program  # slow to import, as it imports Mininet

    sysctls = {path: path.read_text() for path in (Path("/proc/sys", name) for name in _SYSCTLS)}
    settings = {key: _switch_setting(key) for key in _SWITCH_KEYS}
    try:
        yield
    finally:
        for path, text in sysctls.items():
            path.write_text(text)
        for key, value in settings.items():
            change = ["set", "Open_vSwitch", ".", f"other_config:{key}={value}"]
            if not value:
                change = ["remove", "Open_vSwitch", ".", "other_config", key]
            run_program([*_VSCTL, *change])


def _switch_setting(key: str) -> str:
    """A setting of the host's Open vSwitch, "" where it is not set."""
    from topologies.mininet_nodes import NetworkError

    command = [*_VSCTL, "--if-exists", "get", "Open_vSwitch", ".", f"other_config:{key}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # of its own 10 s
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines()
        raise NetworkError(f"Open vSwitch does not answer: {lines[-1] if lines else 'ovs-vsctl failed'}")
    return ended.stdout.strip().strip('"')
