"""The controller's Unix socket: takes a request a line, has it answered, and knows nothing of what is asked.

The socket is for the user who started the controller (mode 0600). Lines, clients, and what a client may get wrong are
bounded.
"""

import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controller.framework import hub

MAX_CLIENTS = 8
MAX_REFUSED = 100
"""Requests of one client that may be refused before it is hung up on."""

_BACKLOG = 16
_SEND_S = 10  # for a client to take its reply
_LOG = logging.getLogger("longhaul.controller")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply's line, and for a request that is none why it was refused, to be logged."""

    line: bytes
    refused: str | None = None


Answer = Callable[[bytes], Reply]
"""From a request's line to its reply; raises nothing."""


class SocketTakenError(OSError):
    """A socket that cannot be had: one sentence with its path."""


class Service:
    """Serves `answer` on the socket at `path`, each client in a thread of the framework's, from `start` to `close`.

    A line longer than `limit_bytes` gets `too_long` for an answer, and so does one client too many get `too_many`;
    both are then hung up on, and so is who goes on asking what is refused; each is told of in a line. Raises
    SocketTakenError where the path is in use or no socket can be there.
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
                _LOG.warning("refused a client: %d are served already", MAX_CLIENTS)
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
        pending, refused = bytearray(), 0
        # A client that takes no replies must not hold on to its place; Python's own timeouts would limit reading too.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        while True:
            try:
                got = client.recv(65536)
            except OSError:
                return
            if not got:
                return
            pending += got
            while (end := pending.find(b"\n")) >= 0 and end <= self._limit_bytes:
                reply = self._answer(bytes(pending[:end]))
                del pending[: end + 1]
                refused += reply.refused is not None
                if reply.refused is not None and refused == 1:
                    _LOG.warning("refused a request: %s", reply.refused)
                if not _send(client, reply.line):
                    return
                if refused == MAX_REFUSED:
                    _LOG.warning("hung up on a client after %d refused requests", refused)
                    return
            if len(pending) > self._limit_bytes:
                _send(client, self._too_long)
                _LOG.warning("refused a request: a line is longer than %d bytes", self._limit_bytes)
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
