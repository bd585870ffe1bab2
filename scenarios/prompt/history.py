"""What was typed at earlier prompts: read when one begins, kept when it ends, for as long as a terminal is there.

In the VM only the results folder outlives a prompt, so the new history is left there, and `adopt` takes it from there
to its place, which is the user's: $XDG_STATE_HOME/longhaul/history, or ~/.local/state/longhaul/history.
"""

import contextlib
import os
import readline
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

_NAME = ".history"
_LINES = 1000


def place(environment: Mapping[str, str]) -> Path:
    """Where a user's history is."""
    home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "/"), ".local", "state"))
    return Path(home, "longhaul", "history")


@contextlib.contextmanager
def kept(remembered: Path | None, folder: Path) -> Iterator[None]:
    """Have readline know what was typed before, and leave all of it in `folder` at the end.

    Without a terminal there is nothing to do. A history that cannot be had is no reason to be without a prompt.
    """
    if not os.isatty(0):
        yield
        return
    readline.set_history_length(_LINES)
    readline.set_completer_delims(" \t\n")  # names of links have characters in them at which it would stop
    if remembered is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(remembered)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(folder / _NAME)


def adopt(folder: Path, environment: Mapping[str, str]) -> None:
    """Take the history that a prompt has left in `folder` to its place."""
    left, target = folder / _NAME, place(environment)
    if not left.exists():
        return
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(left, target)
        target.chmod(0o600)
    left.unlink()
