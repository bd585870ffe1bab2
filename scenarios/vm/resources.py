"""The host's resources for a VM: room for the guest's memory, a results folder, and a core.

A VM can use only one core at a time, and switches between processes all the time. Spread over several cores, each such
switch would wake a sleeping core, which on a virtual machine takes ten times as long as the switch itself.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scenarios.vm.errors import CannotRunError, NoRoomError, VMUsageError
from topologies.units import format_size

# With less, the kernel, Open vSwitch and one Python process do not fit.
_MIN_MEMORY_BYTES = 256 * 2**20
DEFAULT_MEMORY_BYTES = 2 * 2**30
_AT_MINSIGSTKSZ = 51  # in <linux/auxvec.h>
_HIDDEN = ("/proc", "/sys", "/dev", "/run")  # where the VM mounts its own file systems (see guest.sh)
CORE_MARK = "longhaul-core-"  # prefix of the abstract socket by which a VM reserves its core
_OBSERVE_S = 0.05  # how long cores are observed
_IDLE = (3, 4)  # columns of a line of /proc/stat: idle, and waiting for I/O


def memory_folder(memory_bytes: int, environment: Mapping[str, str]) -> str:
    """Return a folder whose file system has room for a guest's memory, preferably a memory-backed one.

    The kernel keeps the guest's memory in an unnamed file there. Raises VMUsageError if the memory is too small for a
    VM to boot, and NoRoomError if no folder has the room and allows executable mappings.
    """
    if memory_bytes < _MIN_MEMORY_BYTES:
        allowed = f"allowed: {format_size(_MIN_MEMORY_BYTES)} or more"
        raise VMUsageError(f"{format_size(memory_bytes)} of memory is too little for the VM; {allowed}")
    temporary = [str(Path(environment[name]).resolve()) for name in ("TMPDIR", "TMP", "TEMP") if environment.get(name)]
    reasons, most = [], 0
    for folder in dict.fromkeys(["/dev/shm", *temporary, "/tmp", "/var/tmp"]):  # noqa: S108 - no file is created here
        if not os.access(folder, os.W_OK | os.X_OK):
            continue
        state = os.statvfs(folder)
        room = state.f_bavail * state.f_frsize
        if _file_system(folder) == "tmpfs":
            room = min(room, _available_memory())
        if state.f_flag & os.ST_NOEXEC:
            reasons.append(f"{folder} is mounted noexec")
        elif room < memory_bytes:
            reasons.append(f"{folder} has {about(room)}")
            most = max(most, room)
        else:
            return folder
    raise NoRoomError(
        f"there is no room for the VM's {about(memory_bytes)} of memory ({', '.join(reasons)})",
        remedy="free some",
        room_bytes=most,
        option="give the VM less with --memory",
    )


def about(size_bytes: int) -> str:
    """Return a size as text, rounded down to 0.1 GB or, below 1 GB, to 1 MB."""
    grain = 10**8 if size_bytes >= 10**9 else 10**6
    return format_size(size_bytes // grain * grain) if size_bytes >= grain else format_size(size_bytes)


def register_bytes() -> int:
    """Return an upper bound on the memory that a process's floating-point and vector registers take on this CPU.

    It is the size of the largest signal frame that the host's kernel reports (AT_MINSIGSTKSZ), which holds those
    registers and less than 1 kB more. A kernel that does not report it (before 5.14) supports no large registers.
    """
    entries = dict(struct.iter_unpack("=QQ", Path("/proc/self/auxv").read_bytes()))
    return int(entries.get(_AT_MINSIGSTKSZ, 0))


def working_directory(directory: str | os.PathLike[str] | None, *, results: str | None) -> str:
    """Return the absolute path of a working directory, by default the caller's.

    Raises VMUsageError if it does not exist, or is hidden by the VM's own file systems and not in the results folder.
    """
    try:
        path = Path(directory or ".").resolve(strict=True)
    except OSError as error:
        raise VMUsageError(f"the working directory {directory or '.'} cannot be used: {error.strerror}") from None
    hidden = next((folder for folder in _HIDDEN if path.is_relative_to(folder)), None)
    if hidden is not None and (results is None or not path.is_relative_to(results)):
        raise VMUsageError(f"the working directory {path} is hidden in the VM, which has its own {hidden}")
    return str(path)


def results_folder(results: str | os.PathLike[str]) -> str:
    """Return the absolute path of a results folder, and create it if its parent exists.

    Raises VMUsageError for the root and for folders where the VM mounts its own system, CannotRunError if the folder
    cannot be created or written to.
    """
    path = Path(results).resolve()
    within = next((top for top in ("/proc", "/sys", "/dev") if path.is_relative_to(top)), None)
    if path == Path("/") or (within and not path.is_relative_to("/dev/shm")):  # noqa: S108
        raise VMUsageError(f"{path} cannot be the results folder because it belongs to the system; name another folder")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise CannotRunError(f"the results folder {path} cannot be created: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise CannotRunError(f"the results folder {path} is not writable by this user")
    return str(path)


def _file_system(folder: str) -> str:
    """Return the type of the file system that contains a folder, such as ``tmpfs``."""
    mounts = (line.split(" ") for line in Path("/proc/mounts").read_text().splitlines())
    path = Path(folder).resolve()
    containing = [
        (len(point), number, kind) for number, (_, point, kind, *_) in enumerate(mounts) if path.is_relative_to(point)
    ]
    return max(containing)[2] if containing else ""


def _available_memory() -> int:
    """Return the host's available memory and swap in bytes."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree") if name in fields)


@contextmanager
def own_core(idle_ticks: Callable[[], Mapping[int, int]] | None = None) -> Iterator[int | None]:
    """Reserve the idlest core that no other VM of this machine has reserved, for the duration of the context.

    The value is None, and the scheduler decides, if all cores are reserved or this process may use only one.
    `idle_ticks` returns the idle time of each core so far.
    """
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        yield None
        return
    idle_ticks = idle_ticks or _idle_ticks
    before = idle_ticks()
    time.sleep(_OBSERVE_S)
    after = idle_ticks()
    for core in sorted(cores, key=lambda core: (after.get(core, 0) - before.get(core, 0), core), reverse=True):
        # The name of an abstract socket serves as the lock: it becomes free when its holder ends in any way.
        with socket.socket(socket.AF_UNIX) as mark:
            try:
                mark.bind(f"\0{CORE_MARK}{core}")
            except OSError:
                continue
            yield core
            return
    yield None


def _idle_ticks() -> dict[int, int]:
    ticks = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks[int(name[3:])] = sum(int(columns[index]) for index in _IDLE)
    return ticks
