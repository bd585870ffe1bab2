"""The ranks of a user's program, inside the VM: each is a shell of an unprivileged user on its GPU's host.

A rank sees what a host would: its network is the GPU's, and the file system is the machine's, read-only except for the
working directory, which all ranks share, and a /tmp and a /dev/shm per rank. Everything written there goes to one file
system of limited size (`RankFiles`), so nothing of the machine changes. This guards against accidents, not malice.
"""

import errno
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.program.computed import Computed, computed
from scenarios.spec.program import COLLECTIVES, HOSTFILE, PRELOAD
from topologies.fabric.ipv6 import address_of
from topologies.linux import make_timers_exact, mount, unmount, unshare
from topologies.namespaces import (
    MS_BIND,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    NEW_CGROUP,
    NEW_IPC,
    NEW_MOUNT,
    NEW_NET,
    NEW_UTS,
    identities,
    join,
    starting_in,
)
from topologies.shaping.rdma import DEVICES, device_numbers

FILES = "files"
"""The folder within the run folder for the files that the program wrote into its working directory."""

_MOST_COMPUTED = 64_000_000  # characters of what a rank tells of its computing
_COMPUTED = ".longhaul-computed"  # of a rank's /dev/shm; made by what is in the folder `rank`
_MS_RDONLY, _MS_REMOUNT = 1, 32
_DAC_READ_SEARCH = 2  # <linux/capability.h>
_INODES = 200_000
_MAX_OF_MEMORY = 0.7  # share for a single process
_OPEN_FILES = 1024  # of a process, which may raise the limit itself
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


@dataclass(frozen=True, kw_only=True)
class User:
    """The unprivileged user that ranks run as; with `reads_all` it may read every file, whatever its permissions."""

    uid: int
    gid: int
    reads_all: bool

    @property
    def capabilities(self) -> int:
        """The mask of the capabilities that ranks have."""
        return 1 << _DAC_READ_SEARCH if self.reads_all else 0

    @property
    def setpriv(self) -> tuple[str, ...]:
        """The beginning of a command line that runs the rest as this user."""
        caps = "-all,+dac_read_search" if self.reads_all else "-all"
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--no-new-privs"]
        if self.reads_all:  # otherwise access(2), by which shells find programs, ignores that capability
            ids.append("--securebits=+no_setuid_fixup")
        return ("setpriv", *ids, f"--inh-caps={caps}", f"--ambient-caps={caps}", f"--bounding-set={caps}", "--")

    def kill_all(self, host: int | None = None) -> int:
        """Kill all processes of this user in one system call, so that none can fork; return how many there were.

        With `host`, the pidfd of the first process of a host, only that host's are killed.
        """
        count = sum(1 for _ in self._processes())
        if count:
            with nullcontext() if host is None else starting_in(host):
                child = os.fork()
                if child == 0:
                    try:
                        os.setresuid(self.uid, self.uid, self.uid)
                        os.kill(-1, signal.SIGKILL)  # which reaches the processes of the caller's PID namespace
                    finally:
                        os._exit(0)
            os.waitpid(child, 0)
        return count

    def _processes(self) -> Iterator[Path]:
        for process in Path("/proc").iterdir():
            try:
                is_theirs = process.name.isdecimal() and process.stat().st_uid == self.uid
                if is_theirs and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    yield process
            except OSError:  # the process has ended
                continue


class RankFiles:
    """The file system that ranks write to: `size_bytes` at `folder`, with an overlay layer of the working directory and
    each rank's own /tmp and /dev/shm. `ranks` are the names of the ranks' hosts, and `hosts` maps the host names that
    ranks know to addresses."""

    def __init__(
        self,
        folder: Path,
        *,
        directory: Path,
        user: User,
        ranks: Sequence[str],
        size_bytes: int,
        hosts: Mapping[str, str],
    ) -> None:
        self._folder, self._directory, self._user = folder, directory, user
        self._ranks, self._size_bytes, self._hosts = ranks, size_bytes, hosts

    def make(self) -> None:
        """Make the file system; raises OSError. Whatever was made, `close` removes."""
        folder = self._folder
        folder.mkdir(mode=0o700)
        mount("tmpfs", folder, "tmpfs", data=f"size={self._size_bytes},nr_inodes={_INODES},mode=755")
        self._layer("work", self._directory, mode=0o755, owner=self._user)
        for rank, name in enumerate(self._ranks):
            self._layer(f"tmp{rank}", Path("/tmp"), mode=0o1777)  # noqa: S108 - each rank has its own
            self._make_folder(f"shm{rank}", mode=0o1777)
            for number, text in enumerate(identities(name).values()):
                (folder / f"identity{rank}.{number}").write_text(text)
        devices = self._make_folder("dev", mode=0o755)
        for name, (major, minor) in _DEVICES.items():
            os.mknod(devices / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            (devices / name).chmod(0o666)
        verbs = device_numbers()
        if verbs:
            (devices / DEVICES.name).mkdir()
        for name, number in verbs.items():  # the kernel lets a rank open its own host's only
            os.mknod(devices / DEVICES.name / name, 0o666 | stat.S_IFCHR, number)
            (devices / DEVICES.name / name).chmod(0o666)
        for name, target in _LINKS.items():
            (devices / name).symlink_to(target)
        for name in ("pts", "shm"):
            (devices / name).mkdir()
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        lines += [f"{one} {name}" for name, address in self._hosts.items() for one in (address, address_of(address))]
        (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))
        # There are no name servers, and a lookup would wait seconds for an answer.
        (folder / "gai.conf").write_text("precedence ::ffff:0:0/96 100\n")  # names stand for IPv4 where both will do
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")

    def listen(self, rank: int | None) -> socket.socket:
        """Return a listening socket that ranks find once they are prepared: this rank alone, as COLLECTIVES, or all of
        them, as PRELOAD, if it is None. Raises OSError."""
        path = self._folder / ("preload" if rank is None else f"collectives{rank}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(path))
        path.chmod(0o600)
        os.chown(path, self._user.uid, self._user.gid)
        listener.listen()
        return listener

    def close(self) -> None:
        """Unmount and remove everything; no process may use it any more."""
        unmount(self._folder)
        with suppress(FileNotFoundError):
            self._folder.rmdir()

    @property
    def is_full(self) -> bool:
        """Whether the file system has no free block or no free inode."""
        state = os.statvfs(self._folder)
        return state.f_bavail == 0 or state.f_favail == 0

    def computed(self) -> list[Computed | None]:
        """Return for each rank how long it has computed by `longhaul.compute` or `longhaul-compute`, and the steps that
        it reported; None for a rank that has told neither."""
        return [_computed(self._folder / f"shm{rank}" / _COMPUTED) for rank in range(len(self._ranks))]

    def prepare(self, rank: int, *, host: int, hidden: str, limit: int, memory_bytes: int | None) -> None:
        """Move the calling process, which still runs as root, into the environment of a rank; raises OSError.

        `host` is the pidfd of the first process of the rank's host, in whose PID namespace this process must have been
        started. `hidden` is a mount that the rank must not see. `limit` is the number of processes that its user may
        have; each gets at most the share `_MAX_OF_MEMORY` of `memory_bytes`. With None processes may reserve more
        memory than there is, as fake tensors do.
        """
        join(host, NEW_NET | NEW_UTS | NEW_CGROUP)
        Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory, the program is killed, not the testbed
        unshare(NEW_MOUNT | NEW_IPC)  # System V memory, like files in /dev/shm, ends with the rank
        mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
        unmount(Path(hidden))
        devices = self._folder / "dev"
        mount("devpts", devices / "pts", "devpts", flags=MS_NOSUID, data="mode=620,ptmxmode=666")
        mount(self._folder / f"shm{rank}", devices / "shm", flags=MS_BIND)
        working, temporary = self._folder / "work", self._folder / f"tmp{rank}"
        # The machine's files below /tmp are visible in each rank's layer of it, too.
        mount(temporary, Path("/tmp"), flags=MS_BIND)  # noqa: S108
        mount(working, self._directory, flags=MS_BIND)
        for file in ("hosts", "nsswitch.conf", "gai.conf"):
            if Path("/etc", file).exists():
                mount(self._folder / file, Path("/etc", file), flags=MS_BIND)
        mount(devices, Path("/dev"), flags=MS_BIND | MS_REC)
        mount("sysfs", Path("/sys"), "sysfs", flags=_MS_RDONLY | MS_NOSUID)
        mount("proc", Path("/proc"), "proc", flags=MS_NOSUID)
        for number, target in enumerate(identities(self._ranks[rank])):
            mount(self._folder / f"identity{rank}.{number}", target, flags=MS_BIND)
        self._mount_run(rank)
        Path(HOSTFILE).write_text("".join(f"{name}\n" for name in self._ranks))
        mount("none", Path("/"), flags=_MS_REMOUNT | MS_BIND | _MS_RDONLY)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if device_numbers():  # RDMA pins the memory that it uses; hosts with such devices lift the limit
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
        # Linux's usual limit. Launchers close all descriptors that a process may have, one by one, in each child.
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_OPEN_FILES, most_files), most_files))
        # Out of memory, the VM's kernel would reload programs' pages again and again before it kills a process.
        if memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (round(_MAX_OF_MEMORY * memory_bytes),) * 2)
        else:  # both would count what is reserved only
            Path("/proc/sys/vm/overcommit_memory").write_text("1")
        make_timers_exact()
        os.chdir(self._directory)

    def _mount_run(self, rank: int) -> None:
        """Mount the rank's /run, with the sockets that there are, whose files the new /run may hide."""
        found = dict[str, int]()
        for name, target in ((f"collectives{rank}", COLLECTIVES), ("preload", PRELOAD)):
            with suppress(FileNotFoundError):
                found[target] = os.open(self._folder / name, os.O_PATH)
        mount("tmpfs", Path("/run"), "tmpfs", flags=MS_NOSUID, data="size=64k,mode=755")
        for target, file in found.items():
            Path(target).touch()
            mount(Path(f"/proc/self/fd/{file}"), Path(target), flags=MS_BIND)
            os.close(file)

    def keep(self, target: Path, *, most_bytes: int) -> tuple[int, int]:
        """Copy the files written in the working directory to `target`; return how many were copied and how many not.

        Skips anything but regular files, and files that would exceed `most_bytes` in all. Raises OSError.
        """
        top, kept, skipped = self._folder / "work.layer", 0, 0
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                file = Path(folder, name)
                status = file.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
                    skipped += 1
                    continue
                most_bytes -= status.st_size
                copy = target / file.relative_to(top)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
                kept += 1
        return kept, skipped

    def _layer(self, name: str, below: Path, *, mode: int, owner: User | None = None) -> None:
        """Mount `below` at a name in the folder, under a layer that takes all writes."""
        merged, lower = self._make_folder(name), self._make_folder(f"{name}.below")
        upper, work = self._make_folder(f"{name}.layer", mode=mode), self._make_folder(f"{name}.work")
        if owner is not None:
            os.chown(upper, owner.uid, owner.gid)
        mount(below, lower, flags=MS_BIND)  # a path without characters that overlay reserves in its options
        mount("overlay", merged, "overlay", data=f"lowerdir={lower},upperdir={upper},workdir={work}")

    def _make_folder(self, name: str, *, mode: int = 0o700) -> Path:
        path = self._folder / name
        path.mkdir()
        path.chmod(mode)
        return path


def start_shell(
    command: str,
    *,
    host: int,
    user: User,
    environment: Mapping[str, str],
    prepare: Callable[[], None],
    stdin: Path | None = None,
) -> Any:
    """Start a shell with this command in a new session (setsid); its output streams are non-blocking pipes, and its
    input is a file, by default an empty one.

    It is in the PID namespace of the process with the pidfd `host`. `prepare` is called in the new process while it
    still runs as root. Raises OSError, also if `prepare` fails.
    """
    # The prompt runs at real-time priority, which the rank must not inherit: one that spins would hold the prompt up.
    demote = [] if os.sched_getscheduler(0) == os.SCHED_OTHER else ["chrt", "--other", "0"]
    try:
        with starting_in(host), Path(stdin or os.devnull).open("rb") as file:
            process = subprocess.Popen(
                [*user.setpriv, *demote, "sh", "-c", command],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - there is one thread
            )
    except subprocess.SubprocessError as error:
        raise OSError(errno.EPERM, f"a rank cannot be confined: {error}") from None
    assert process.stdout is not None and process.stderr is not None
    for stream in (process.stdout, process.stderr):
        os.set_blocking(stream.fileno(), False)
    return process


def describe_status(status: int | None) -> str:
    """Describe the exit status of a rank; None for one that did not end."""
    if status is None:
        return "did not end"
    if status < 0:
        return f"ended by signal {-status}"
    return f"ended with status {status}"


def _computed(path: Path) -> Computed | None:
    """Return what a rank's file tells of its computing, of which the rank may have made anything; None without it."""
    try:
        with path.open(errors="replace") as file:
            found = computed(file.read(_MOST_COMPUTED).splitlines())
    except OSError:
        return None
    return found if found.whole_s or found.steps else None
