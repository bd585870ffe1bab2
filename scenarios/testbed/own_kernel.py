"""Check whether this machine's own kernel can run an experiment on the wall clock, outside the VM.

The check changes nothing: it tries each capability in a network namespace that ends with the trial.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from scenarios.vm.errors import SETUP

PROGRAMS = ("ip", "tc", "ovs-vsctl", "ovs-vswitchd", "ovsdb-server", "mnexec", "setpriv", "ping", "iperf", "ifconfig")
"""The programs that the testbed starts, in the VM or outside it."""

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
_TIMEOUT_S = 20
_KERNEL = "apt-get install linux-image-amd64 (any kernel of Debian's has it), and boot that"
_TRIALS = (
    # capability, and a command that needs it
    ("veth cables", "ip link add near type veth peer name far"),
    ("the shaper HTB", "tc qdisc add dev lo root handle 1: htb"),
    ("the delay netem", "tc qdisc add dev lo root netem delay 1ms"),
)


@dataclass(frozen=True)
class Lack:
    """A missing requirement, and the command or step that provides it."""

    what: str
    remedy: str


def lacking() -> list[Lack]:
    """List the requirements that this machine lacks to run an experiment on its own kernel.

    Without root only the programs can be checked.
    """
    if programs := missing_programs():
        return [Lack(f"the programs {', '.join(programs)}", SETUP)]
    if os.geteuid() != 0:
        return [Lack("root, without which nothing else can be checked", "sudo python scenarios/run.py --doctor")]
    return [*_missing_in_kernel(), *_missing_open_vswitch()]


def missing_programs() -> list[str]:
    """Return the names in PROGRAMS that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


def _missing_in_kernel() -> Iterator[Lack]:
    for what, trial in _TRIALS:
        if _output("unshare", "--net", *trial.split()) is None:
            yield Lack(f"{what} in this machine's kernel", _KERNEL)


def _missing_open_vswitch() -> Iterator[Lack]:
    types = _output("ovs-vsctl", "--timeout=5", "get", "Open_vSwitch", ".", "datapath_types")
    if types is None:
        yield Lack("Open vSwitch running", "service openvswitch-switch start")
    elif "system" not in types:
        has_module = _output("modinfo", "openvswitch") is not None
        mend = "modprobe openvswitch && service openvswitch-switch restart" if has_module else _KERNEL
        yield Lack("Open vSwitch's datapath in this machine's kernel", mend)


def _output(*command: str) -> str | None:
    """Return a command's output; None if it fails or is not installed."""
    environment, nothing = os.environ | {"PATH": _PATH}, subprocess.DEVNULL
    try:
        return subprocess.check_output(
            command, env=environment, stdin=nothing, stderr=nothing, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
