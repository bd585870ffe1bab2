"""What the host gives a VM: room for the guest's memory, and a results folder. Looks, and changes nothing else."""

import os
from collections.abc import Mapping
from pathlib import Path

from scenarios.vm.errors import CannotRunError, VMUsageError
from topologies.units import format_size

# Less than this and the kernel, Open vSwitch and one Python process do not fit.
LEAST_MEMORY_BYTES = 256 * 2**20
DEFAULT_MEMORY_BYTES = 2 * 2**30


def check_memory(memory_bytes: int) -> None:
    """Raise VMUsageError for a guest memory that no VM can boot with."""
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise VMUsageError(
            f"{format_size(memory_bytes)} of memory is too little for the VM: allowed is "
            f"{format_size(LEAST_MEMORY_BYTES)} or more"
        )


def memory_folder(memory_bytes: int, environment: Mapping[str, str]) -> str:
    """Return a folder whose file system holds a guest's memory, memory-backed ones first.

    The kernel keeps the guest's memory in a file there that never has a name. Raises CannotRunError when no folder
    has the room or allows programs to be mapped from it.
    """
    named = [environment[name] for name in ("TMPDIR", "TMP", "TEMP") if environment.get(name)]
    reasons = []
    for folder in dict.fromkeys(["/dev/shm", *named, "/tmp", "/var/tmp"]):  # noqa: S108 - only looked at
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
        else:
            return folder
    raise CannotRunError(
        f"there is no room for the VM's {about(memory_bytes)} of memory ({', '.join(reasons)}): free some",
        option="give the VM less with --memory",
    )


def about(size_bytes: int) -> str:
    """A size in words, to a tenth of a gigabyte or, below one, to a megabyte; never more than it is."""
    grain = 10**8 if size_bytes >= 10**9 else 10**6
    return format_size(size_bytes // grain * grain) if size_bytes >= grain else format_size(size_bytes)


def working_directory(directory: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of a working directory, by default the caller's; raises VMUsageError when it is gone."""
    try:
        return str(Path(directory or ".").resolve(strict=True))
    except OSError as error:
        raise VMUsageError(f"the working directory {directory or '.'} cannot be used: {error.strerror}") from None


def results_folder(results: str | os.PathLike[str]) -> str:
    """Return the absolute path of a results folder, made when its parent exists; raises VMError's kinds.

    The root itself and the folders where the VM keeps its own system are refused.
    """
    path = Path(results).resolve()
    within = next((top for top in ("/proc", "/sys", "/dev") if path.is_relative_to(top)), None)
    if path == Path("/") or (within and not path.is_relative_to("/dev/shm")):  # noqa: S108
        raise VMUsageError(f"{path} cannot be the results folder: it holds the system; name a folder of your own")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise CannotRunError(f"the results folder {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise CannotRunError(f"the results folder {path} is not writable by you")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise CannotRunError(f"the results folder {path} is on a file system that is mounted read-only")
    return str(path)


def _file_system(folder: str) -> str:
    """Return the type of the file system that a folder is on, such as ``tmpfs``."""
    mounts = (line.split(" ") for line in Path("/proc/mounts").read_text().splitlines())
    real = Path(folder).resolve()
    holding = [
        (len(point), number, kind) for number, (_, point, kind, *_) in enumerate(mounts) if real.is_relative_to(point)
    ]
    return max(holding)[2] if holding else ""


def _available_memory() -> int:
    """Return the bytes of memory and swap that the host can still give."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree") if name in fields)
