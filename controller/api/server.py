"""The controller's Unix socket: reads requests and writes replies, one line each. The app computes the replies.

Only the user that runs the controller can connect (mode 0600). The number of clients, the length of a line and the
number of refused requests per client are bounded; a client that exceeds a bound gets an error and is disconnected.
"""

import logging
import os
import socket
import socketserver
import stat
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from controller.api.protocol import ProtocolError, write_line
from controller.compat import hub

MAX_CLIENTS = 8
MAX_REFUSED = 100
_SEND_S = 10  # how long a client may take to receive its reply
_AGAIN_S = 0.5  # how long after a failure clients are accepted again
_LOG = logging.getLogger("longhaul.controller")

Answer = Callable[[bytes], Mapping[str, Any]]
"""Function from a request's line to the reply. It raises ProtocolError, and nothing else, to refuse a request."""


class SocketTakenError(OSError):
    """Raised if the socket is in use or cannot be created; the message is one sentence with its path."""


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers requests on the socket at `path` by `answer`, with one of the framework's threads for each client.

    `limit_bytes` is the longest line of a request. Raises SocketTakenError if the path is in use or cannot be created.
    """

    request_queue_size = 16

    def __init__(self, path: Path, answer: Answer, *, limit_bytes: int) -> None:
        self.path, self.answer, self.limit_bytes = path, answer, limit_bytes
        self._clients = 0
        before = os.umask(0o177)  # no other user can ever connect, not even just after the socket is created
        try:
            _remove_stale(path)
            super().__init__(str(path), _Client)
        except OSError as error:
            if isinstance(error, SocketTakenError):
                raise
            raise SocketTakenError(f"no socket can be created at {path}: {error.strerror or error}") from None
        finally:
            os.umask(before)
        self._inode = path.stat().st_ino

    def accept_clients(self) -> None:
        """Accept clients until `close`. (`serve_forever` uses a `select` that Ryu's green threads do not replace.)"""
        while True:
            try:
                self.process_request(*self.get_request())
            except OSError as error:
                if self.fileno() < 0:  # the socket was closed
                    return
                _LOG.warning("cannot accept a client: %s", error.strerror)
                hub.sleep(_AGAIN_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a new thread, or refuse it if there are too many."""
        if self._clients < MAX_CLIENTS:
            self._clients += 1
            hub.spawn(self.process_request_thread, request, client_address)
            return
        with suppress(OSError):
            request.sendall(error_line("too many clients at once"))
        super().shutdown_request(request)
        _LOG.warning("refused a client: %d are served already", MAX_CLIENTS)

    def shutdown_request(self, request: Any) -> None:
        """Close a client's connection, as its thread ends."""
        self._clients -= 1
        super().shutdown_request(request)

    def close(self) -> None:
        """Close and remove the socket, unless another one has replaced it at its path."""
        self.server_close()
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


class _Client(socketserver.StreamRequestHandler):
    server: Server
    rbufsize = 1 << 16

    def handle(self) -> None:
        # A client that receives no replies must not block one of the MAX_CLIENTS. `timeout` would also limit the time
        # between requests.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        with suppress(OSError):
            self._converse()

    def _converse(self) -> None:
        limit, refused = self.server.limit_bytes, 0
        while (line := self.rfile.readline(limit + 1)).endswith(b"\n"):
            try:
                reply = write_line(self.server.answer(line[:-1]))
            except ProtocolError as error:
                reply, refused = error_line(str(error)), refused + 1
                if refused == 1:
                    _LOG.warning("refused a request: %s", error)
            self.wfile.write(reply)
            if refused == MAX_REFUSED:
                _LOG.warning("disconnected a client after %d refused requests", refused)
                return
        if len(line) > limit:
            self.wfile.write(error_line(f"a line is longer than {limit} bytes"))
            _LOG.warning("refused a request: a line is longer than %d bytes", limit)


def error_line(sentence: str) -> bytes:
    """Return the reply to a request that is refused."""
    return write_line({"ok": False, "error": sentence})


def _remove_stale(path: Path) -> None:
    """Remove the socket of a controller that was killed; raises SocketTakenError for anything else at the path."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise SocketTakenError(f"another controller serves {path}")
