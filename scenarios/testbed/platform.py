"""The platform of a testbed: a VM or this machine's kernel, with clock, rate scale and timer tolerance; and the
restoring of host-wide settings."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hosts.communicator import LEAD_S
from topologies.shaping.classes import VIRTUAL_LATE_S
from topologies.shaping.rate_scale import FULL_SCALE, RateScale

WALL_LATE_S = 1e-3
"""Timer tolerance in real time, s: an HTB class loses no capacity if timers are late by up to this."""
WALL_LEAD_S = 0.3

_SYSCTLS = ("net/core/netdev_max_backlog", "net/ipv4/tcp_mem")
_SWITCH_KEYS = ("max-idle", "max-revalidator")
_VSCTL = ("ovs-vsctl", "--timeout=10", "--no-wait")

CAPACITY = "capacity"
"""Passed instead of a mode: measure the machine's throughput, and run no collective."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The platform that a testbed runs on.

    With `own_openvswitch` the testbed starts and stops Open vSwitch, as in the VM; without it the machine's own must be
    running. `folder` is for the testbed's files, and is made if it does not exist. `scale` applies to rates and chunks,
    `late_s` is the tolerated timer lateness, and `lead_s` the time from the command to begin a collective to its
    beginning. `is_real` is true if the clock is the wall clock. If the VM `is_joined` with others, `machine` is its
    number among them.
    """

    own_openvswitch: bool = True
    folder: Path = Path("/run/longhaul")
    scale: RateScale = FULL_SCALE
    late_s: float = VIRTUAL_LATE_S
    lead_s: float = LEAD_S
    is_real: bool = False
    machine: int = 0
    is_joined: bool = False

    @classmethod
    def real(cls, scale: RateScale, *, own_kernel: bool) -> "Platform":
        """Make a platform on the wall clock: on the machine's own kernel and Open vSwitch, or in a VM."""
        return cls(own_openvswitch=not own_kernel, scale=scale, late_s=WALL_LATE_S, lead_s=WALL_LEAD_S, is_real=True)

    @classmethod
    def parse(cls, text: str) -> "Platform":
        """Parse the text that `str` gives for a platform on the wall clock; raises ScaleError."""
        host, _, scale = text.partition(" ")
        return cls.real(RateScale.parse(scale), own_kernel=host == "machine")

    def __str__(self) -> str:
        return f"{'vm' if self.own_openvswitch else 'machine'} {self.scale}"

    @contextmanager
    def files(self) -> Iterator[Path]:
        """Provide a folder during an experiment: `folder` in the VM, elsewhere a temporary one."""
        if self.own_openvswitch:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
            yield Path(folder)


VIRTUAL = Platform()


def joined(machine: int) -> Platform:
    """Return the platform of the VM with this number among several that are joined."""
    return replace(VIRTUAL, machine=machine, is_joined=True)


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore, when the context ends, the host-wide settings that a network changes: two sysctls, two of Open vSwitch.

    Raises NetworkError if Open vSwitch does not answer.
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
    """Return a setting of the host's Open vSwitch, "" if it is not set; raises NetworkError."""
    from topologies.mininet_nodes import NetworkError

    command = [*_VSCTL, "--if-exists", "get", "Open_vSwitch", ".", f"other_config:{key}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # ovs-vsctl's is 10 s
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        raise NetworkError(f"Open vSwitch does not answer: {lines[-1] if lines else 'ovs-vsctl failed'}")
    return result.stdout.strip().strip('"')
