"""What a testbed stands on: whose Open vSwitch, which clock, and what is put back in a kernel that is not its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts.communicator import LEAD_S
from topologies.nodes import NetworkError, run_program
from topologies.scale import EVERYTHING, RateScale
from topologies.shaping import VIRTUAL_LATE_S

WALL_LATE_S = 1e-3
"""How late a timer of an unburdened machine may be in real time, for a class to lose nothing by it."""
WALL_LEAD_S = 0.3

_SYSCTLS = ("net/core/netdev_max_backlog", "net/ipv4/tcp_mem")
_SWITCH_KEYS = ("max-idle", "max-revalidator")


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a testbed stands on.

    `own_openvswitch`: bring up and take down an Open vSwitch of its own, as in the VM; else the machine's must run.
    `folder` is for its files and is made if need be. `scale` is applied to what is carried, `late_s` is how late a
    timer may be, and `lead_s` how long the agents have to hear of a collective.
    """

    own_openvswitch: bool = True
    folder: Path = Path("/run/longhaul")
    scale: RateScale = EVERYTHING
    late_s: float = VIRTUAL_LATE_S
    lead_s: float = LEAD_S


VIRTUAL = Ground()


@contextmanager
def put_back() -> Iterator[None]:
    """Put back at the end what a network changes for the whole machine: two sysctls, two settings of Open vSwitch.

    Raises NetworkError where Open vSwitch does not answer.
    """
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


_VSCTL = ("ovs-vsctl", "--timeout=10", "--no-wait")


def _switch_setting(key: str) -> str:
    """A setting of the machine's Open vSwitch, nothing where it has none."""
    command = [*_VSCTL, "--if-exists", "get", "Open_vSwitch", ".", f"other_config:{key}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines()
        raise NetworkError(f"Open vSwitch does not answer: {said[-1] if said else 'ovs-vsctl failed'}")
    return ended.stdout.strip().strip('"')
