"""Runs on two hosts, as RANK 0 and 1 of LONGHAUL_HOSTS: tries every way from one host to the other around the network.

Rank 0 offers a secret in each way, first to a process of its own host, which has to find it, and then to rank 1. Rank 0
prints which ways led to the secret or to its processes, as JSON: {"within": {WAY: BOOL}, "across": {WAY: BOOL}}.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

PORT, KEY, NUMBER, SECRET = 7700, 0x4C48, 4242, b"the secret of rank 0"
FOLDERS = {"/tmp": Path("/tmp"), "/dev/shm": Path("/dev/shm"), "the working directory": Path()}
PIDS = range(1, 3000)
SCRIPT = Path(__file__)
NOT_IN_KERNEL = {"key", "process_vm_readv"}
SHARED = {f"{what} in the working directory" for what in ("socket", "pipe", "mapped file", "lock")}
"""The ways from one rank of a program to another."""
OF_NODES = SHARED | {f"{what} in /tmp" for what in ("socket", "pipe", "mapped file", "lock")} | {"terminal"}
"""The ways from one of Mininet's nodes to another."""
_IPC_CREAT, _IPC_NOWAIT, _IPC_RMID, _GETVAL, _SETVAL = 0o1000, 0o4000, 0, 12, 16
_PTRACE_SEIZE, _ADD_KEY, _REQUEST_KEY, _USER_KEYRING = 0x4206, 248, 249, -4

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class Message(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_long), ("text", ctypes.c_char * 64))


class Span(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Offer:
    """What rank 0 offers; `close` takes it back."""

    def __init__(self) -> None:
        self.signals = 0
        signal.signal(signal.SIGUSR1, self._count)
        self.memory = ctypes.create_string_buffer(SECRET)
        self.segment = libc.shmget(KEY, 4096, _IPC_CREAT | 0o666)
        ctypes.memmove(libc.shmat(self.segment, None, 0), SECRET, len(SECRET))
        self.semaphore = libc.semget(KEY, 1, _IPC_CREAT | 0o666)
        libc.semctl(self.semaphore, 0, _SETVAL, NUMBER)
        self.queue = libc.msgget(KEY, _IPC_CREAT | 0o666)
        libc.msgsnd(self.queue, ctypes.byref(Message(1, SECRET)), len(SECRET), 0)
        self.abstract = listening("\0isolation")
        terminal, _ = os.openpty()
        self.terminal = terminal, ptsname(terminal)
        Path(self.terminal[1]).chmod(0o666)
        libc.syscall(_ADD_KEY, b"user", b"isolation", SECRET, len(SECRET), _USER_KEYRING)
        self.opened: list[Any] = [self.abstract]
        for folder in FOLDERS.values():
            self.opened.append(listening(str(folder / "socket")))
            (folder / "socket").chmod(0o666)
            os.mkfifo(folder / "pipe", 0o666)
            (folder / "pipe").chmod(0o666)
            self.opened.append(os.fdopen(os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK), "wb", 0))
            self.opened[-1].write(SECRET)
            (folder / "memory").write_bytes(SECRET)
            self.opened.append((folder / "memory").open("rb"))
            fcntl.flock(self.opened[-1], fcntl.LOCK_EX)
        self.facts = {
            "pid": os.getpid(),
            "at": ctypes.addressof(self.memory),
            "terminal": self.terminal[1],
        } | identity()

    def _count(self, *_: object) -> None:
        self.signals += 1

    def close(self) -> None:
        """Remove everything that was offered."""
        libc.shmctl(self.segment, _IPC_RMID, None)
        libc.semctl(self.semaphore, 0, _IPC_RMID)
        libc.msgctl(self.queue, _IPC_RMID, None)
        for one in self.opened:
            one.close()
        for folder in FOLDERS.values():
            for name in ("socket", "pipe", "memory"):
                (folder / name).unlink()


def ptsname(terminal: int) -> str:
    """Return the path of a pseudo-terminal's other end (os.ptsname came with Python 3.13)."""
    name = ctypes.create_string_buffer(64)
    libc.ptsname_r(terminal, name, len(name))
    return name.value.decode()


def listening(address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(address)
    made.listen()
    return made


def identity() -> dict[str, str]:
    """Return what a program may take for the identity of its machine."""
    files = {"machine id": "/etc/machine-id", "boot id": "/proc/sys/kernel/random/boot_id"}
    files |= {"name in a file": "/etc/hostname"}
    found = {name: Path(file).read_text() for name, file in files.items() if Path(file).exists()}
    kinds = ("ipc", "pid", "uts", "mnt", "net", "cgroup")
    return (
        found
        | {"host name": socket.gethostname(), "host number": str(libc.gethostid())}
        | {f"{kind} namespace": str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds}
    )


def ways(there: dict[str, Any]) -> dict[str, Callable[[], bool]]:
    """Return the ways to what `there`, the facts of an offer, tells of."""
    found: dict[str, Callable[[], bool]] = {
        "System V memory": lambda: attached() == SECRET,
        "System V semaphore": lambda: libc.semctl(libc.semget(KEY, 1, 0), 0, _GETVAL) == NUMBER,
        "System V queue": lambda: received() == SECRET,
        "abstract socket": lambda: connects("\0isolation"),
        "terminal": lambda: writes(there["terminal"]),
        "key": lambda: libc.syscall(_REQUEST_KEY, b"user", b"isolation", None, _USER_KEYRING) > 0,
        "process_vm_readv": lambda: any(memory_of(pid, there["at"]) == SECRET for pid in PIDS),
        "ptrace": lambda: any(libc.ptrace(_PTRACE_SEIZE, pid, None, None) == 0 for pid in strangers()),
        "signal": lambda: any(signalled(pid) for pid in strangers()),
        "pidfd": lambda: any(has_pidfd(pid) for pid in strangers()),
        "/proc": lambda: any(there["marker"] in text for text in commands().values()),
    }
    for name, folder in FOLDERS.items():
        found[f"socket in {name}"] = partial(connects, str(folder / "socket"))
        found[f"pipe in {name}"] = partial(lambda path: piped(path) == SECRET, folder / "pipe")
        found[f"mapped file in {name}"] = partial(lambda path: mapped(path) == SECRET, folder / "memory")
        found[f"lock in {name}"] = partial(is_locked, folder / "memory")
    for name, text in identity().items():
        found[f"same {name}"] = partial(lambda name, text: there[name] == text, name, text)
    return found


def attached() -> bytes:
    at = libc.shmat(libc.shmget(KEY, 4096, 0), None, 0)
    return b"" if at in (None, ctypes.c_void_p(-1).value) else ctypes.string_at(at)


def received() -> bytes:
    message = Message()
    libc.msgrcv(libc.msgget(KEY, 0), ctypes.byref(message), 64, 0, _IPC_NOWAIT)
    return bytes(message.text)


def connects(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
    return True


def writes(terminal: str) -> bool:
    with os.fdopen(os.open(terminal, os.O_WRONLY | os.O_NOCTTY), "wb", 0) as file:
        file.write(SECRET)
    return True


def memory_of(pid: int, at: int) -> bytes:
    data = ctypes.create_string_buffer(len(SECRET))
    here, there = Span(ctypes.addressof(data), len(SECRET)), Span(at, len(SECRET))
    size = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) if pid != os.getpid() else 0
    return data.raw if size == len(SECRET) else b""


def commands() -> dict[int, str]:
    """Return the command of every process in /proc except this one."""
    found = {}
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[int(one.parent.name)] = one.read_text()
    return {pid: text for pid, text in found.items() if pid != os.getpid()}


def strangers() -> list[int]:
    """Return all processes that exist except those of this host that are not the offering one."""
    own = {pid for pid, text in commands().items() if MARKER not in text} | {os.getpid()}
    return [pid for pid in PIDS if pid not in own and exists(pid)]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def signalled(pid: int) -> bool:
    os.kill(pid, signal.SIGUSR1)
    return True


def has_pidfd(pid: int) -> bool:
    os.close(os.pidfd_open(pid))
    return True


def piped(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as file:
        return file.read(len(SECRET)) or b""


def mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), len(SECRET), prot=mmap.PROT_READ) as memory:
        return memory[:]


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


MARKER = "the-offering-process"


def take(address: str) -> None:
    """Try all ways to rank 0 at this address, and tell it which of them succeeded."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            connection = socket.create_connection((address, PORT))
            break
        time.sleep(0.01)
    with connection, connection.makefile("rw") as stream:
        there, found = json.loads(stream.readline()), {}
        for name, way in ways(there).items():
            try:
                found[name] = way()
            except OSError:
                found[name] = False
        stream.write(json.dumps(found) + "\n")


def offered(server: socket.socket) -> dict[str, bool]:
    """Make an offer to the next process that connects, and return what that found."""
    offer = Offer()
    try:
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as stream:
            stream.write(json.dumps(offer.facts | {"marker": MARKER}) + "\n")
            stream.flush()
            found: dict[str, bool] = json.loads(stream.readline())
        return found | {"signal": found["signal"] and offer.signals > 0}
    finally:
        offer.close()


def commands_of(nodes: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """Return the lines for Mininet's prompt that run this on two nodes with these addresses, and print the results."""
    program = f'env LONGHAUL_HOSTS="{" ".join(addresses)}" RANK={{}} {sys.executable} {SCRIPT}'
    return [
        f"{nodes[0]} {program.format(0)} >/run/found 2>&1 &",
        f"{nodes[1]} {program.format(1)}",
        "sh sleep 1",
        "sh cat /run/found",
    ]


def results(output: str) -> list[dict[str, dict[str, bool]]]:
    """Return what each pair of hosts found, from an output that has it."""
    return [json.loads(found) for found in re.findall(r'\{"within".*\}\}', output)]


def check(found: dict[str, dict[str, bool]], *, shared: set[str]) -> None:
    """Fail unless every way that exists is found within a host, and none but `shared` across."""
    within, across = ({way for way, leads in found[where].items() if leads} for where in ("within", "across"))
    assert (missed := {*found["within"]} - within) <= NOT_IN_KERNEL, missed
    assert across == shared, across ^ shared


def main() -> None:
    rank, hosts = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split()
    if rank == 1:
        take(hosts[0])
    elif sys.argv[1:] != [MARKER]:  # with the marker in the command line, by which others may know this process
        os.execv(sys.executable, [sys.executable, str(SCRIPT), MARKER])
    else:
        with socket.create_server(("", PORT)) as server:
            local = os.posix_spawn(sys.executable, [sys.executable, str(SCRIPT)], {**os.environ, "RANK": "1"})
            within = offered(server)
            os.waitpid(local, 0)
            print(json.dumps({"within": within, "across": offered(server)}))


if __name__ == "__main__":
    main()
