"""Loads Python modules once for all ranks, in the VM, in a process of the user's interpreter that is forked for each.

`rank/preload` has what runs in that process and in the ranks.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scenarios.program.ranks import User
from scenarios.spec.program import PRELOADING

_MAX_LINE = 4096


class PreloadError(Exception):
    """Raised if modules cannot be loaded; the message is one sentence."""


class Preloaded:
    """A process that has loaded modules; `close` ends it, and all programs that were forked from it."""

    def __init__(
        self,
        modules: Sequence[str],
        interpreter: str,
        *,
        listener: socket.socket,
        user: User,
        environment: Mapping[str, str],
        directory: Path,
        prepare: Callable[[], None],
    ) -> None:
        """Load the modules with this interpreter, as a command in this directory would find it, and serve a listening
        socket. `prepare` is called in the new process while it is root. Raises PreloadError."""
        found = shutil.which(directory / interpreter if "/" in interpreter else interpreter, path=environment["PATH"])
        if found is None:
            raise PreloadError(f'program.preload: the interpreter "{interpreter}" of the command is not found')
        reading, writing = os.pipe()
        rights = (writing, user.uid, user.gid, user.capabilities)
        command = [found, str(PRELOADING / "longhaul_zygote.py"), str(listener.fileno()), *map(str, rights), *modules]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environment, "LONGHAUL_ZYGOTE": "1"},
                pass_fds=(listener.fileno(), writing),
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - there is one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(reading)
            raise PreloadError(f"program.preload: {found} cannot be started: {error}") from None
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb") as answers:
            line = answers.readline(_MAX_LINE)
        if line != b"\n":
            self.close()
            why = line.decode(errors="replace").strip() or "it ended"
            raise PreloadError(f"program.preload: {found} cannot load {', '.join(modules)}: {why}")

    def close(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
