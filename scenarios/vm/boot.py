"""The texts of a boot: the kernel's command line, and the request to the VM's init.

Pure functions, which start no process and read no file. guest.sh handles the request.
"""

import base64
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from scenarios.vm.errors import VMUsageError

Clock = Literal["virtual", "wall"]
CLOCKS: tuple[Clock, ...] = ("virtual", "wall")


MACHINE = "LONGHAUL_MACHINE"
"""The environment variable with the number of the joined machine in which a command runs."""


class Member(NamedTuple):
    """A machine among several that are joined in virtual time (`scenarios.vm.joined`): its number, the file descriptor
    of their memory, the links (machine, machine, delay in ns), and the date at which they all begin, in ns since 1970.
    """

    number: int
    fd: int
    links: tuple[tuple[int, int, int], ...]
    date_ns: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kernel's arguments; random numbers differ between the machines."""
        links = ",".join(f"{one}-{other}-{delay_ns}" for one, other, delay_ns in self.links)
        return (
            f"join={self.fd}:{self.number}:{links}",
            f"time-travel-start={self.date_ns}",
            f"random.seed={1 + self.number}",
        )


_INIT = Path(__file__).with_name("guest.sh")

# Variables that have a meaning outside the VM only: sockets, displays and sessions of the host, and the folder for
# temporary files, which inside the VM is its own /tmp.
# fmt: off
_OUTSIDE = frozenset((
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_SESSION_ID",
    "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "TMPDIR", "TMP", "TEMP", "OLDPWD", "PWD", "SHLVL", "_",
    "LD_PRELOAD", "TMUX", "TMUX_PANE", "STY", "MAIL",
))
# fmt: on
_OUTSIDE_PREFIXES = ("SSH_", "SUDO_", "GPG_", "SYSTEMD_", "VSCODE_")

_ROOT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def kernel_command_line(
    *, clock: Clock, memory_bytes: int, consoles: Sequence[Sequence[int]], member: Member | None = None
) -> tuple[str, ...]:
    """Return the kernel's arguments for a boot.

    ``consoles`` are the VM's consoles in the order of guest.sh, each as the file descriptors of its input and its
    output that are open in the kernel's process.
    """
    init = str(_INIT)
    if '"' in init or "\n" in init:
        raise VMUsageError(f"Longhaul cannot run from {init!r}: move it to a path without quotes or line breaks")
    return (
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"mem={memory_bytes // 2**20}M",
        "con=null",
        *(f"con{number}={','.join(f'fd:{fd}' for fd in fds)}" for number, fds in enumerate(consoles)),
        # The kernel would create a folder for its management console here, and leave it behind when it is killed. In
        # /proc no folder can be created, not even by root, and the kernel then does without.
        "uml_dir=/proc/",
        "quiet",
        # Without this, addresses would differ between boots, and with them hash orders and the order of events.
        "norandmaps",
        # Sockets exist, but no interface has an address unless it is given one, and nothing is sent.
        "ipv6.disable_ipv6=1",
        "fb_tunnels=none",
        # No network devices except those that are created later.
        "dummy.numdummies=0",
        "ifb.numifbs=0",
        # Random ports choose paths, and random waits times: without a seed no run would repeat another.
        *(("time-travel=inf-cpu", "random.seed=1") if clock == "virtual" else ()),
        *(() if member is None else member.arguments),
        f'init="{init}"',
    )


def guest_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command in the VM, as root's: the caller's variables that make sense there.

    Names of the host's sessions and sockets are removed; PATH gets the folders of root's programs. Unless the caller
    sets these variables, Python does not buffer its output, writes no byte code (the file system is discarded), and has
    the same hashes in every boot.
    """
    inside = {
        name: value
        for name, value in environment.items()
        if name not in _OUTSIDE and not name.startswith(_OUTSIDE_PREFIXES)
    }
    folders = [folder for folder in inside.get("PATH", "").split(":") if folder]
    inside["PATH"] = ":".join([*folders, *(folder for folder in _ROOT_PATH if folder not in folders)])
    inside |= {"USER": "root", "LOGNAME": "root"}
    defaults = {"HOME": "/root", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return defaults | inside


def request(
    command: Sequence[str],
    *,
    directory: str,
    environment: Mapping[str, str],
    results: str | None,
    date_ns: int | None,
    terminal: bool,
    stdin: bool,
    open_files: int | None = None,
) -> bytes:
    """Return the request to the VM's init, which goes over the control console: a line with a number of bytes, and
    so many of shell code in base64.

    COMMAND's environment is exactly ``environment``. ``results`` is the one folder of the host that can be written.
    ``date_ns`` is the date at which COMMAND begins, in ns since 1970, by default the host's.
    With ``terminal`` COMMAND has the VM's terminal; otherwise its three streams are pipes, and without ``stdin`` the
    first is empty. ``open_files`` is its limit of open files, by default the highest. Every word is quoted for the
    shell, so that it may contain any character.
    """
    words = ["setsid", *(["--ctty"] if terminal else []), "env", "-i", "--"]
    words += [f"{name}={value}" for name, value in environment.items()]
    if "=" in command[0]:  # env would take the command for another variable
        words += ["sh", "-c", 'exec "$0" "$@"']
    limit = "" if open_files is None else f"ulimit -Sn {open_files}; "
    text = "\n".join(
        (
            f"directory={shlex.quote(directory)}",
            f"results={shlex.quote(results or '')}",
            f"date={'' if date_ns is None else f'@{date_ns // 10**9}.{date_ns % 10**9:09}'}",
            f"terminal={'yes' if terminal else 'no'}",
            f"stdin={'yes' if stdin else 'no'}",
            f"launch() {{ {limit}exec {shlex.join([*words, *command])}; }}",
        )
    )
    code = base64.b64encode(os.fsencode(text))
    return b"%d\n%s" % (len(code), code)
