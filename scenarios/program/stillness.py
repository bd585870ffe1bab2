"""Notices from outside a program that stops the VM's clock: it computes, or spins, and virtual time stands still.

Nobody can distinguish the two for certain. A program that loads or makes something has signs of life: it prints, its
processes come and go, its memory grows. One that spins has none.
"""

import time
from collections.abc import Hashable

import psutil

_SILENT_TIMES = 20  # so many times as long may a program with signs of life take
_START_S = 180.0  # as long as a busy machine takes to bring the network up
_GRAIN_BYTES = 4 << 20


class Stillness:
    """Watches one VM; `sentence` says why it must be ended once `look` has returned True.

    `patience_s` is the wall time in which neither virtual time passes nor a sign of life comes.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._virtual_ns, self._moved_s = -1, time.monotonic()
        self._life: Hashable = None
        self._lived_s = time.monotonic()
        self._most_bytes = 0
        self.sentence: str | None = None

    def look(self, virtual_ns: int, lines: int, *, began: bool) -> bool:
        """Whether it is time to end the VM, of which so much virtual time and so many lines are known."""
        now_s = time.monotonic()
        if virtual_ns != self._virtual_ns:
            self._virtual_ns, self._moved_s, self._lived_s = virtual_ns, now_s, now_s
        patience_s = self._patience_s if began else max(self._patience_s, _START_S)
        life = (lines, began, *self._signs())
        if life != self._life:
            self._life, self._lived_s = life, now_s
        still_s = now_s - self._moved_s
        if now_s - self._lived_s < patience_s and still_s < _SILENT_TIMES * patience_s:
            return False
        if not began:
            self.sentence = f"the VM printed nothing for {patience_s:.0f} s while the network came up"
        else:
            self.sentence = (
                f"virtual time has stood still for {still_s:.0f} s of wall time, as a process of the program computes "
                "or spins: let it sleep or block where it waits, give it longer with program.patience, or take the "
                "wall clock with --clock wall --rate-scale 1/1000"
            )
        return True

    def _signs(self) -> tuple[Hashable, ...]:
        """The processes of the VM, and the most memory that it has had."""
        try:
            inside = [
                child for child in psutil.Process().children(recursive=True) if "rootfstype=hostfs" in child.cmdline()
            ]
            self._most_bytes = max([self._most_bytes, *(one.memory_info().rss for one in inside[:1])])
        except psutil.Error:  # one has ended just now
            return (0,)
        return (frozenset(one.pid for one in inside), self._most_bytes // _GRAIN_BYTES)
