"""A snapshot of the machine that runs the collectives: kernel, Open vSwitch, every qdisc, and the kernel's settings.

It is taken before the first collective and after the last one for a run's provenance, so that a changed setting can be
detected. It changes nothing, and runs inside the VM, where imports are slow.
"""

import os
import platform
import subprocess
from pathlib import Path

from scenarios.vm.errors import VMError
from topologies.mininet_network import inside

_TIMEOUT_S = 60
_ROOT = Path("/proc/sys")
_LONGEST = 2**16  # bytes; a setting is read by one call
_FOLDERS = ("net/core", "net/ipv4")
_OTHERS = ("kernel/randomize_va_space", "kernel/sched_rt_runtime_us", "vm/overcommit_memory")


def take(host_pid: int) -> dict[str, object]:
    """Take a snapshot; `host_pid` is a process in a GPU's network namespace.

    `sysctls` has the settings of the switches' namespace by name, and under "gpu" those that differ in the GPU's.
    """
    version = _output(["ovs-vswitchd", "--version"]).partition("\n")[0]
    switches = sysctls()
    with inside(host_pid):
        gpu = sysctls()
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "openvswitch": version.rpartition(" ")[2],
        "sysctls": {**switches, "gpu": {name: value for name, value in gpu.items() if switches.get(name) != value}},
        "qdiscs": _output(["tc", "qdisc", "show"]).splitlines(),
    }


def sysctls() -> dict[str, str]:
    """Return the settings of this thread's network namespace for TCP and forwarding, and a few of the whole system."""
    names = [f"{folder}/{file.name}" for folder in _FOLDERS for file in os.scandir(_ROOT / folder) if file.is_file()]
    settings = {}
    for name in [*sorted(names), *_OTHERS]:
        try:
            # This takes three system calls; a file object would take ten, and there are hundreds of settings.
            fd = os.open(_ROOT / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.read(fd, _LONGEST)
            finally:
                os.close(fd)
        except OSError:  # the setting is write-only, or this kernel lacks it
            continue
        settings[name.replace("/", ".")] = " ".join(text.decode().split())
    return settings


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout
    except subprocess.TimeoutExpired:
        raise VMError(f"{command[0]} did not end within {_TIMEOUT_S} s") from None
