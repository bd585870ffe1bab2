"""What a boot consists of, as text: the kernel's command line, and the request that the VM's init is handed.

Nothing here starts or reads anything. guest.sh is the other side of the request.
"""

import base64
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from scenarios.vm.errors import VMUsageError

Clock = Literal["virtual", "wall"]
CLOCKS: tuple[Clock, ...] = ("virtual", "wall")

# Names that mean something outside the VM only: sockets, displays and sessions of the host, and the folder for
# temporary files, which inside is the VM's own /tmp.
# fmt: off
_OUTSIDE = frozenset((
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_SESSION_ID",
    "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "TMPDIR", "TMP", "TEMP", "OLDPWD", "PWD", "SHLVL", "_",
    "LD_PRELOAD", "TMUX", "TMUX_PANE", "STY", "MAIL",
))
# fmt: on
_OUTSIDE_PREFIXES = ("SSH_", "SUDO_", "GPG_", "SYSTEMD_", "VSCODE_")

_ROOT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# The VM mounts its own file systems here, which hide the host's files.
HIDDEN = ("/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The file descriptors, open in the kernel's process, of the VM's four consoles (see guest.sh): input, output."""

    kernel: tuple[int, ...]
    stdout: tuple[int, ...]
    stderr: tuple[int, ...]
    control: tuple[int, ...]


def kernel_command_line(
    *, clock: Clock, memory_bytes: int, init: str, folder: str, channels: Channels
) -> tuple[str, ...]:
    """Return the kernel's arguments for a boot.

    ``init`` is the path of guest.sh. ``folder`` is an existing folder in which the kernel cannot create files: it
    would keep a folder for its management console there and leave it behind when it is killed.
    """
    if '"' in init or "\n" in init:
        raise VMUsageError(f"Longhaul cannot run from {init!r}: move it to a folder without quotes or line breaks")
    return (
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"mem={memory_bytes // 2**20}M",
        "con=null",
        *(
            f"con{number}={','.join(f'fd:{fd}' for fd in fds)}"
            for number, fds in enumerate((channels.kernel, channels.stdout, channels.stderr, channels.control))
        ),
        f"uml_dir={folder}",
        "quiet",
        # Addresses that differ from boot to boot change hash orders and with them the order of events.
        "norandmaps",
        "ipv6.disable=1",
        # No devices beyond those that are made later.
        "dummy.numdummies=0",
        "ifb.numifbs=0",
        *(("time-travel=inf-cpu",) if clock == "virtual" else ()),
        f'init="{init}"',
    )


def guest_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a caller's environment that means the same inside the VM, as root's.

    Names of the host's sessions and sockets go; PATH gains the folders of root's programs; Python writes its output
    at once, leaves no byte code in a file system that is thrown away, and orders its hashes the same in every boot,
    unless the caller says otherwise.
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
    terminal: bool,
    stdin: bool,
) -> bytes:
    """Return what the VM's init is handed over the control console: shell that it evaluates, in one line of base64.

    ``environment`` is set as it is, and nothing else. ``results`` is the one folder of the host that can be written.
    With ``terminal`` COMMAND has the VM's terminal; otherwise its three streams are pipes, and without ``stdin`` the
    first is empty. Every word is quoted for the shell, whatever it holds.
    """
    words = ["setsid", *(["--ctty"] if terminal else []), "env", "-i", "--"]
    words += [f"{name}={value}" for name, value in environment.items()]
    if "=" in command[0]:  # env would take it for one more variable
        words += ["sh", "-c", 'exec "$0" "$@"']
    text = "\n".join(
        (
            f"directory={shlex.quote(directory)}",
            f"results={shlex.quote(results or '')}",
            f"terminal={'yes' if terminal else 'no'}",
            f"stdin={'yes' if stdin else 'no'}",
            f"launch() {{ exec {shlex.join([*words, *command])}; }}",
        )
    )
    return base64.b64encode(os.fsencode(text)) + b"\n"


def check_directory(directory: str, *, results: str | None) -> None:
    """Raise VMUsageError when a working directory of the host cannot be seen inside the VM."""
    path = PurePath(directory)
    hidden = next((folder for folder in HIDDEN if path.is_relative_to(folder)), None)
    if hidden is not None and (results is None or not path.is_relative_to(results)):
        raise VMUsageError(f"the working directory {directory} is hidden in the VM, which has its own {hidden}")
