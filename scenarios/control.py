"""The controller as a process of the testbed's: started, looked after, ended. What it is asked is the testbed's."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from controller.client import Controller
from controller.protocol import write_spec
from topologies.fabric import FabricSpec

PORT = 6653
_END_S = 10.0  # for it to end once it has been told to
_DYING_S = 0.5
_TOKEN_BYTES = 32


class ControllerProcess:
    """The controller of one fabric; a context manager that ends it.

    Its socket, the fabric it reads and the run's token are in `folder`, which is its owner's alone.
    """

    def __init__(self, fabric: FabricSpec, folder: Path) -> None:
        self._folder, self._spec, self._token_file = folder, folder / "fabric.json", folder / "token"
        self.socket = folder / "controller.sock"
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
        """Its process, while there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; `client().wait_ready` tells when it is up."""
        arguments = [f"--fabric={self._spec}", f"--socket={self.socket}", f"--token={self._token_file}"]
        command = [sys.executable, "-m", "controller", *arguments, f"--port={PORT}"]
        # In a process group of its own: Ctrl-C at a prompt is not for it.
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def ends(self) -> bool:
        """Whether it has ended, or does within a moment: who hangs up may be dying."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DYING_S)
        return not self.alive()

    def kill(self) -> None:
        """End it on the spot, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Have it end, by force if need be."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def client(self) -> Controller:
        """A client that knows the token."""
        return Controller(self.socket, token=self._token)
