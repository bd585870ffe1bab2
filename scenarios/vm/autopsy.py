"""Why a VM ended before its command did, in one sentence, from what its kernel printed. Pure."""

import re
import signal

from scenarios.vm.errors import CannotRunError, VMError

_PANIC = re.compile(r"Kernel panic - not syncing: (.+)")


def error(log: str, *, status: int, ready: bool) -> VMError:
    """Return the error for a kernel that ended by itself.

    ``log`` is what it printed, ``status`` its exit status (128+n for death by signal n), ``ready`` whether COMMAND
    had been started.
    """
    if panic := _PANIC.search(log):
        if "ut of memory" in panic[1]:
            return VMError("the VM ran out of memory", option="give it more with --memory")
        return VMError(f"the VM's kernel panicked: {panic[1].strip()}")
    if not ready and "ptrace" in log:
        return CannotRunError(
            f"this machine forbids ptrace, which the VM's kernel runs its processes with ({_last_line(log)}): allow it "
            "(in a container, with --cap-add=SYS_PTRACE or a seccomp profile that has it)"
        )
    if status == 128 + signal.SIGBUS or "SIGBUS" in log or "Bus error" in log:
        return CannotRunError(
            "this machine ran out of room for the VM's memory: free some", option="give it less with --memory"
        )
    how = f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"
    when = "while COMMAND ran" if ready else "before COMMAND started"
    last = _last_line(log)
    return VMError(f"the VM's kernel {how} {when}" + (f"; its last words: {last}" if last else ""))


def _last_line(log: str) -> str:
    lines = [re.sub(r"^\[[ \d.]+\] *", "", line).strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line), "")
