"""Runs inside the VM, and on the machine itself: memory contents and page faults as a process sees them, as JSON.

No answer depends on the kernel's version, so both must print the same. Memory has `PAGES` pages; a fault is reported by
its si_code, the page and the offset of its address, and whether the processor says that it was a write.
"""

import ctypes
import json
import mmap
import os
import random
import signal
import tempfile
from collections.abc import Callable
from typing import Any

PAGE, PAGES = 4096, 96
NONE, READ, WRITE = 0, 1, 2
PRIVATE, FIXED, ANONYMOUS = 2, 0x10, 0x20
SI_CODE, SI_ADDR, ERR, CR2 = 8, 16, 40 + 19 * 8, 40 + 22 * 8  # offsets in siginfo and ucontext of x86-64
WROTE = 2  # in the error code

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Action(ctypes.Structure):
    _fields_ = (
        ("handler", HANDLER),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Faults:
    """Records faults in some memory, and then makes the page readable and writable."""

    def __init__(self, base: int) -> None:
        self.base, self.seen = base, list[list[int]]()
        self._action = Action(handler=HANDLER(self._fault), flags=4)  # SA_SIGINFO
        libc.sigaction(signal.SIGSEGV, ctypes.byref(self._action), None)

    def _fault(self, _: int, info: int, context: int) -> None:
        code = ctypes.c_int.from_address(info + SI_CODE).value
        address = ctypes.c_ulong.from_address(info + SI_ADDR).value
        err, cr2 = (ctypes.c_ulong.from_address(context + at).value for at in (ERR, CR2))
        self.seen.append([code, *divmod(address - self.base, PAGE), err & WROTE, cr2 - address])
        page = address & -PAGE
        if code == 1:  # SEGV_MAPERR
            libc.mmap(page, PAGE, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, -1, 0)
        else:
            libc.mprotect(page, PAGE, READ | WRITE)


def memory(prot: int = READ | WRITE, file: int = -1) -> int:
    """Map new private memory, or a file privately; return its address."""
    found = libc.mmap(None, PAGES * PAGE, prot, PRIVATE | (ANONYMOUS if file < 0 else 0), file, 0)
    assert found not in (None, 2**64 - 1)
    return int(found)


def read(address: int) -> int:
    """Return a byte, read by a C function so that a Python handler can run at its fault."""
    zero = ctypes.create_string_buffer(1)
    return int(libc.memcmp(address, ctypes.addressof(zero), 1))


def faults() -> list[list[int]]:
    """Cause faults at pages without a right, new, read before, shared by a fork, and without a mapping."""
    base = memory()
    found = Faults(base)
    for page in range(0, 48, 2):
        libc.memset(base + page * PAGE, page, PAGE)
    libc.mprotect(base, 24 * PAGE, READ)
    libc.mprotect(base + 24 * PAGE, 24 * PAGE, NONE)
    libc.munmap(base + 80 * PAGE, 4 * PAGE)
    for page in (2, 3):
        read(base + page * PAGE)  # no fault
    for page in (2, 3, 4, 5):
        libc.memset(base + page * PAGE + page, 7, 1)
    for page in (24, 25, 80):
        read(base + page * PAGE + 9)
    for page in (26, 27, 81):
        libc.memset(base + page * PAGE + 9, 7, 1)
    libc.mprotect(base + 8 * PAGE, PAGE, READ | WRITE)
    libc.memset(base + 8 * PAGE, 1, 1)  # no fault
    libc.mprotect(base + 8 * PAGE, PAGE, READ)
    libc.memset(base + 8 * PAGE, 1, 1)
    found.seen.append([read(base + page * PAGE) for page in (2, 8, 10, 26)])
    of_child: list[list[int]] = in_child(lambda: again(base, found))
    return found.seen + of_child


def again(base: int, found: Faults) -> list[list[int]]:
    """Cause faults after a fork, which must keep rights and contents."""
    found.seen.clear()
    for page in (10, 11):
        libc.memset(base + page * PAGE + 1, 7, 1)
        read(base + (page + 20) * PAGE)
    found.seen.append([read(base + page * PAGE) for page in (10, 12, 30)])
    return found.seen


def in_child(work: Callable[[], Any]) -> Any:
    """Do `work` in a forked child, while the parent waits; return its result."""
    near, far = os.pipe()
    if (child := os.fork()) == 0:
        os.write(far, json.dumps(work()).encode())
        os._exit(0)
    os.close(far)
    with os.fdopen(near) as said:
        found = json.loads(said.read())
    assert os.waitpid(child, 0)[1] == 0
    return found


def shared_by_forks() -> list[int]:
    """Return how many pages are wrong in three generations of processes, each of which writes to some and reads all."""
    draw, base = random.Random(1), memory()
    wrote = dict.fromkeys(range(PAGES), 0)

    def generation(number: int, wrote: dict[int, int]) -> list[int]:
        wrote = dict(wrote)

        def write(value: int) -> None:
            for page in draw.sample(range(PAGES), 30):
                wrote[page] = value
                libc.memset(base + page * PAGE, value, PAGE)

        def wrong() -> int:
            return sum(ctypes.string_at(base + page * PAGE, PAGE) != bytes([to]) * PAGE for page, to in wrote.items())

        write(number)
        of_child = in_child(lambda: generation(number + 10, wrote)) if number < 30 else []
        before = wrong()
        write(number + 1)
        return [before, wrong(), *of_child]

    return generation(10, wrote)


def of_files() -> list[int]:
    """Return counts of a file's bytes as a private mapping that was written to, a shared one, and a read see them."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes([5]) * PAGES * PAGE)
        file.flush()
        base = memory(file=file.fileno())
        for page in (1, 2, 50):
            libc.memset(base + page * PAGE + 3, 9, 1)
        own = ctypes.string_at(base, PAGES * PAGE)
        with mmap.mmap(file.fileno(), PAGES * PAGE) as shared:
            kept = shared[:].count(bytes([5]))
            shared[PAGE] = 8
            told = in_child(lambda: [shared[PAGE], shared.__setitem__(2 * PAGE, 4)])
            file.seek(0)
            return [own.count(bytes([9])), kept, told[0], shared[2 * PAGE], file.read().count(bytes([5])), read(base)]


def by_signals() -> list[int]:
    """Return how children end: killed, by access to an unmapped address or to one of the kernel's, and by an exit."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ended = []
    for work in (
        lambda: os.kill(os.getpid(), signal.SIGSEGV),
        lambda: libc.memset(8, 1, 1),
        lambda: libc.memset(2**63, 1, 1),  # not canonical: a general protection fault
        lambda: os._exit(7),
    ):
        if (child := os.fork()) == 0:
            work()
            os._exit(0)
        ended.append(os.waitpid(child, 0)[1])
    return [status & 0xFF7F for status in ended]  # without the bit for a core dump


if __name__ == "__main__":
    print(json.dumps({"faults": faults(), "forks": shared_by_forks(), "files": of_files(), "signals": by_signals()}))
