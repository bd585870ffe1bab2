"""What a network changes in a kernel and an Open vSwitch that are not its own, put back when it goes."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topologies.nodes import NetworkError, run_program

_SYSCTLS = ("net/core/netdev_max_backlog", "net/ipv4/tcp_mem")
_SWITCH_KEYS = ("max-idle", "max-revalidator")


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
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # of its own 10 s
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines()
        raise NetworkError(f"Open vSwitch does not answer: {said[-1] if said else 'ovs-vsctl failed'}")
    return ended.stdout.strip().strip('"')
