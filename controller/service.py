"""The controller's Unix socket: takes a request a line, has it answered, and knows nothing of what is asked.

The socket is for the user who started the controller (mode 0600). Lines and clients are bounded.
"""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from controller.framework import hub

MAX_CLIENTS = 8
_BACKLOG = 16

Answer = Callable[[bytes], bytes]
"""From a request's line to its reply's; raises nothing."""


class SocketTakenError(OSError):
    """A socket that cannot be had: one sentence with its path."""


class Service:
    """Serves `answer` on the socket at `path`, each client in a thread of the framework's, from `start` to `close`.

    A line longer than `limit_bytes` gets `too_long` for an answer, and so does one client too many get `too_many`;
    both are then hung up on. Raises SocketTakenError where the path is in use or no socket can be there.
    """

    def __init__(self, path: Path, answer: Answer, *, limit_bytes: int, too_long: bytes, too_many: bytes) -> None:
        self._path, self._answer, self._limit_bytes = path, answer, limit_bytes
        self._too_long, self._too_many = too_long, too_many
        self._clients = 0
        self._listener = _listen(path)
        self._inode = path.stat().st_ino

    def start(self) -> None:
        """Take clients from now on, in a thread of its own."""
        hub.spawn(self._accept)

    def close(self) -> None:
        """Remove the socket, unless somebody has put another in its place."""
        self._listener.close()
        try:
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self._clients >= MAX_CLIENTS:
                with client:
                    _send(client, self._too_many)
                continue
            self._clients += 1
            hub.spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                self._converse(client)
        finally:
            self._clients -= 1

    def _converse(self, client: socket.socket) -> None:
        """Answer line by line until the client has gone or oversteps."""
        pending = bytearray()
        while True:
            try:
                got = client.recv(65536)
            except OSError:
                return
            if not got:
                return
            pending += got
            while (end := pending.find(b"\n")) >= 0 and end <= self._limit_bytes:
                line = bytes(pending[:end])
                del pending[: end + 1]
                if not _send(client, self._answer(line)):
                    return
            if len(pending) > self._limit_bytes:
                _send(client, self._too_long)
                return


def _send(client: socket.socket, line: bytes) -> bool:
    try:
        client.sendall(line)
    except OSError:
        return False
    return True


def _listen(path: Path) -> socket.socket:
    """A listening socket that only this user can reach, from its first instant on."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _remove_stale(path)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if isinstance(error, SocketTakenError):
            raise
        raise SocketTakenError(f"no socket can be made at {path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that a controller left when it was killed; anything else at its place is not ours to remove."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise SocketTakenError(f"another controller serves {path}")
