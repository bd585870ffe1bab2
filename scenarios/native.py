"""What this machine's own kernel lacks to carry an experiment on the wall clock, outside the VM.

Looks, and changes nothing: what must be tried is tried in a network namespace that ends with the trial.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

SETUP = "bash scenarios/setup.sh"
PROGRAMS = ("ip", "tc", "ovs-vsctl", "ovs-vswitchd", "ovsdb-server", "mnexec", "setpriv", "ping", "iperf", "ifconfig")
"""The programs that the testbed starts, in the VM or outside."""

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
_TRY_S = 20
_KERNEL = "apt-get install linux-image-amd64 (any kernel of Debian's has it), and boot that"
_TRIALS = (
    # what the kernel must be able to do, and what shows it
    ("veth cables", "ip link add near type veth peer name far"),
    ("the shaper HTB", "tc qdisc add dev lo root handle 1: htb"),
    ("the delay netem", "tc qdisc add dev lo root netem delay 1ms"),
)


@dataclass(frozen=True)
class Lack:
    """Something that is missing, and the command (or the deed) that mends it."""

    what: str
    mend: str


def lacking() -> list[Lack]:
    """What this machine lacks to run an experiment on its own kernel; nothing where all is there.

    Without root nothing more than that can be told.
    """
    if programs := missing_programs():
        return [Lack(f"the programs {', '.join(programs)}", SETUP)]
    if os.geteuid() != 0:
        return [Lack("root, without which no more can be told", "sudo python scenarios/run.py --doctor")]
    return [*_kernel(), *_open_vswitch()]


def missing_programs() -> list[str]:
    """The programs of PROGRAMS that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


def _kernel() -> Iterator[Lack]:
    for what, trial in _TRIALS:
        if _status("unshare", "--net", *trial.split()) != 0:
            yield Lack(f"{what} in this machine's kernel", _KERNEL)


def _open_vswitch() -> Iterator[Lack]:
    asked = _said("ovs-vsctl", "--timeout=5", "get", "Open_vSwitch", ".", "datapath_types")
    if asked is None:
        yield Lack("Open vSwitch running", "service openvswitch-switch start")
    elif "system" not in asked:
        module = _status("modinfo", "openvswitch") == 0
        mend = "modprobe openvswitch && service openvswitch-switch restart" if module else _KERNEL
        yield Lack("Open vSwitch's datapath in this machine's kernel", mend)


def _status(*command: str) -> int:
    ended = _run(*command)
    return 127 if ended is None else ended.returncode


def _said(*command: str) -> str | None:
    """What a command prints; None where it fails."""
    ended = _run(*command)
    return ended.stdout if ended is not None and ended.returncode == 0 else None


def _run(*command: str) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": _PATH},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
