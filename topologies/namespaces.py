"""The namespaces of a GPU's host. They make it a machine of its own, although all hosts share one kernel.

A host has its own network, host name, System V and POSIX memory and queues, processes with their /proc, control group,
/dev/shm, machine id and boot id, so that programs of two hosts find each other over the network only. What hosts do
share is the file system, as over NFS, unless a caller mounts others (`scenarios.program.ranks`).

The first process of a host is started with `FIRST`, and its end kills all processes of the host; `furnish` then sets
up its namespaces from outside. (To fork this process for that would be slow: in User-Mode Linux the pages of a process
are mapped anew when it forks.) Another process is made one of the host's in two steps, as a process cannot change its
own PID namespace: its parent starts it within `starting_in`, and it calls `join` before it executes its program.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from topologies.linux import mount, set_namespaces, unshare

NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_PID, NEW_NET = 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
"""Kinds of namespaces, the kernel's CLONE_NEW flags."""
NEW_MOUNT = 0x20000
OF_HOST = NEW_NET | NEW_MOUNT | NEW_UTS | NEW_IPC | NEW_CGROUP
"""All kinds of a host's namespaces except that of processes."""

FIRST = ("unshare", "--net", "--mount", "--uts", "--ipc", "--cgroup", "--mount-proc")
"""The beginning of the command line of a host's first process, which must be started in a new PID namespace."""

_FS = 0x200
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_HOST_NAME = Path("/etc/hostname")
_NAMES = Path("/etc/hosts")
_SHM, _QUEUES = Path("/dev/shm"), Path("/dev/mqueue")  # noqa: S108 - each host has its own


@contextmanager
def starting_in(process: int | None) -> Iterator[None]:
    """Start processes of this thread, within the context, in the PID namespace of a process given by its pidfd, or in a
    new one if it is None; no thread can be started meanwhile. Raises OSError."""
    with Path("/proc/thread-self/ns/pid").open("rb") as home:
        if process is None:
            unshare(NEW_PID)
        else:
            set_namespaces(process, NEW_PID)
        try:
            yield
        finally:
            set_namespaces(home.fileno(), NEW_PID)


@contextmanager
def _visiting(process: int) -> Iterator[None]:
    """Move this thread into namespaces of a process given by its pidfd, except that of processes; raises OSError."""
    directory = Path.cwd()
    unshare(_FS)  # a thread that shares its working directory with others cannot change its mounts
    with ExitStack() as stack:
        stack.callback(os.chdir, directory)  # at last: the kernel has changed it to the root
        for name in ("net", "uts", "ipc", "mnt"):
            home = stack.enter_context(Path("/proc/thread-self/ns", name).open("rb"))
            stack.callback(set_namespaces, home.fileno(), 0)
        set_namespaces(process, NEW_NET | NEW_UTS | NEW_IPC | NEW_MOUNT)
        yield


def furnish(process: int, name: str, address: str) -> None:
    """Make the namespaces of a host's first process (`FIRST`), given by its pidfd, those of a host with this name and
    IP address. Raises OSError."""
    with _visiting(process):
        socket.sethostname(name)
        mount("sysfs", Path("/sys"), "sysfs")
        mount("tmpfs", _SHM, "tmpfs", flags=MS_NOSUID | MS_NODEV, data="mode=1777")
        if _QUEUES.is_mount():
            mount("mqueue", _QUEUES, "mqueue")
        # Programs look up their own name, and would wait for an answer of a name server.
        names = f"127.0.0.1 localhost\n{address} {name}\n"
        for target, text in {**identities(name), _NAMES: names}.items():
            file = _SHM / "identity"
            file.write_text(text)
            mount(file, target, flags=MS_BIND)
            file.unlink()  # the mount keeps it


def join(process: int, kinds: int = OF_HOST) -> None:
    """Move this process, which has one thread, into namespaces of a process given by its pidfd. Raises OSError."""
    directory = Path.cwd()
    set_namespaces(process, kinds)
    if kinds & NEW_MOUNT:
        os.chdir(directory)  # the kernel has changed it to the root


def identities(name: str) -> dict[Path, str]:
    """Return the texts of the files that identify the machine, for a host with this name: the same in every boot, as
    everything else is."""
    machine, boot = (
        hashlib.blake2b(f"{kind} {name}".encode(), digest_size=16).hexdigest() for kind in ("machine", "boot")
    )
    parts = (boot[:8], boot[8:12], "4" + boot[13:16], "8" + boot[17:20], boot[20:])  # a UUID of version 4 (RFC 9562)
    texts = dict.fromkeys(_MACHINE_IDS, machine) | {_HOST_NAME: name, BOOT_ID: "-".join(parts)}
    return {file: f"{text}\n" for file, text in texts.items() if file.is_file()}
