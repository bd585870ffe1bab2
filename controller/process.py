"""Starts, watches and ends the controller as a child process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from controller.api.client import Controller
from controller.api.protocol import write_spec
from topologies.fabric.fabric import FabricSpec

PORT = 6653
_TERMINATE_S = 10.0  # from SIGTERM to SIGKILL
_DYING_S = 0.5  # how long `ends` waits for a process that may be about to end
_TOKEN_BYTES = 32


class ControllerProcess:
    """The controller process of one fabric, as a context manager.

    `folder`, which is made private to its owner, holds the socket, the declared fabric and the run's token. `listen`
    is the address at which the controller listens for switches, loopback by default. The switches `elsewhere` have
    another controller, and confirm what that one sends them after these times, s.
    """

    def __init__(
        self,
        fabric: FabricSpec,
        folder: Path,
        *,
        listen: str | None = None,
        elsewhere: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._listen = [] if listen is None else [f"--listen={listen}"]
        named = ",".join(f"{name}={after_s}" for name, after_s in elsewhere.items())
        self._listen += [f"--elsewhere={named}"] if elsewhere else []
        self.socket, self._spec, self._token_file = (
            folder / name for name in ("controller.sock", "fabric.json", "token")
        )
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        self._spec.write_text(write_spec(fabric))
        self._token = os.urandom(_TOKEN_BYTES).hex()
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(self._token)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ControllerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id, or None if the controller is not started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; `client().wait_ready` returns once it can be used."""
        arguments = [f"--fabric={self._spec}", f"--socket={self.socket}", f"--token={self._token_file}"]
        command = [sys.executable, "-m", "controller", *arguments, f"--port={PORT}", *self._listen]
        # In a new process group, so that Ctrl-C at a prompt does not interrupt it.
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def ends(self) -> bool:
        """Return whether the process has ended or ends within 0.5 s: one that closes its connections may be ending."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DYING_S)
        return not self.alive()

    def kill(self) -> None:
        """Kill the process at once, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the process by SIGTERM, then by SIGKILL if it has not ended after 10 s."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERMINATE_S)
            self.kill()

    def client(self) -> Controller:
        """Return a client that sends the token."""
        return Controller(self.socket, token=self._token)
