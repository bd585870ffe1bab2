"""The VM's errors, each one sentence for the user with an exit status; and the diagnosis of a dead VM from its log."""

import re
import signal
from pathlib import Path

SETUP = "bash scenarios/setup.sh"

_PANIC = re.compile(r"Kernel panic - not syncing: (.+)")
_REGISTERS = re.compile(r"ptrace [sg]et fp ?regs failed")  # 6.12 has "ptrace set fp regs failed, errno = 14"


class VMError(Exception):
    """The VM failed. The message is one sentence for the user: the ``problem``, and the ``remedy`` if one is known.

    ``status`` is the exit status of a command line; ``option`` is a further remedy for command lines that have the
    option --memory; ``log`` is the file with the output of the VM's kernel, if there is one.
    """

    status = 1

    def __init__(self, problem: str, *, remedy: str = "", option: str = "", log: Path | None = None) -> None:
        text = problem if log is None else f"{problem} (the kernel's log is {log})"
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.problem, self.remedy, self.option, self.log = problem, remedy, option, log


class VMUsageError(VMError):
    """The VM was asked for something it does not offer, and nothing was started."""

    status = 2


class CannotRunError(VMError):
    """This machine cannot run the VM; the message names what is missing and how to get it."""

    status = 3


class NoRoomError(CannotRunError):
    """This machine has no room for the VM's memory; `room_bytes` is the most room that a single folder has."""

    # `room_bytes` has a default, because an error from another machine is reconstructed from its message alone.
    def __init__(self, problem: str, *, room_bytes: int = 0, remedy: str = "", option: str = "") -> None:
        super().__init__(problem, remedy=remedy, option=option)
        self.room_bytes = room_bytes


def death(log: str, *, status: int, ready: bool, kept: Path | None = None) -> VMError:
    """Return an error that explains in one sentence why a kernel ended before COMMAND did. Pure.

    ``log`` is the kernel's output, ``status`` its exit status (128+n for death by signal n), ``ready`` whether COMMAND
    had been started, ``kept`` the file with the log, if it could be written.
    """
    if _REGISTERS.search(log):  # the kernel then panics with a message that does not name the cause
        return CannotRunError(
            "this CPU's register state is larger than the VM's kernel can hold",
            remedy=f"run `{SETUP}` for a kernel that holds more, and unset LONGHAUL_KERNEL if it is set",
            log=kept,
        )
    if panic := _PANIC.search(log):
        if "ut of memory" in panic[1]:
            return VMError("the VM ran out of memory", option="give it more with --memory")
        return VMError(f"the VM's kernel panicked: {panic[1].strip()}", log=kept)
    if not ready and "ptrace" in log:
        return CannotRunError(
            f"this machine forbids ptrace, which the VM's kernel needs to run its processes ({_last_line(log)})",
            remedy="allow it (in a container, with --cap-add=SYS_PTRACE or a seccomp profile that permits it)",
        )
    if status == 128 + signal.SIGBUS or "SIGBUS" in log or "Bus error" in log:
        return CannotRunError(
            "this machine ran out of room for the VM's memory", remedy="free some", option="give it less with --memory"
        )
    how = f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"
    when, last = "while COMMAND ran" if ready else "before COMMAND started", _last_line(log)
    if status == 128 + signal.SIGKILL:  # the kernel could not print anything about it
        how, last = f"{how} (the host may have run out of memory)", ""
    return VMError(f"the VM's kernel {how} {when}" + (f"; its last output: {last}" if last else ""), log=kept)


def _last_line(log: str) -> str:
    lines = [re.sub(r"^\[[ \d.]+\] *", "", line).strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line), "")
