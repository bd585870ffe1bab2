"""The asking side of the controller: a synchronous client of its Unix socket, with deadlines. Imports little."""

import socket
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.lines import ProtocolError, read_object, write_line

_LOOK_AGAIN_S = 0.02
_SLACK_S = 1.0  # for a reply to arrive that was due now
_MOST_BYTES = 1 << 20  # of a reply, which has a few lines for every switch at most


class ControllerError(RuntimeError):
    """The controller is not there, does not answer in time, or says no: one sentence that names it."""


@dataclass(frozen=True, kw_only=True)
class RouteReply:
    """The path of every crossing asked for, as indices in `Fabric.paths`; all are in force.

    `messages` counts the OpenFlow messages it took, `took_s` the controller's time by the clock it lives under.
    """

    paths: tuple[int, ...]
    messages: int
    took_s: float


class Controller:
    """A conversation with the controller whose socket is at `path`; a reply may take `deadline_s`.

    `token` is the run's, if the controller was given one. Every method raises ControllerError.
    """

    def __init__(self, path: Path, *, deadline_s: float = 30.0, token: str | None = None) -> None:
        self._path, self._deadline_s = path, deadline_s
        self._proof = {} if token is None else {"token": token}
        self._socket: socket.socket | None = None
        self._pending = b""

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the next request calls again."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._pending = None, b""

    def wait_ready(
        self, *, timeout_s: float, alive: Callable[[], bool] = lambda: True, without: Collection[str] = ()
    ) -> None:
        """Return once the controller runs and every switch but those `without` has its standing rules.

        `alive` tells whether its process still is; if not, there is nothing to wait for.
        """
        end = time.monotonic() + timeout_s
        while self._socket is None:
            try:
                self._connect()
            except ControllerError:
                if not alive():
                    raise ControllerError(f"the controller at {self._path} has ended before it was ready") from None
                if time.monotonic() >= end:
                    raise
                time.sleep(_LOOK_AGAIN_S)
        wait_s = max(0.0, end - time.monotonic())
        reply = self._ask({"ask": "status", "wait_s": wait_s}, deadline_s=wait_s + _SLACK_S)
        late = ", ".join(name for name in reply["not_ready"] if name not in without)
        if late:
            raise ControllerError(f"after {timeout_s:g} s the controller at {self._path} still waits for {late}")

    def route(
        self,
        *,
        crossings: Iterable[tuple[int, int]],
        rates_bps: Iterable[float],
        delays_s: Iterable[float],
        chunk_bytes: int,
        best: bool,
    ) -> RouteReply:
        """Put every crossing (rank, rank of another site) on its path and all other pairs back on the fixed one.

        `rates_bps` and `delays_s`, [links], are the conditions now. `best`: the path of least cost for a chunk of
        that size, otherwise the fixed one. Returns when every switch has confirmed.
        """
        request = {
            "ask": "route",
            "crossings": [[int(src), int(dst)] for src, dst in crossings],
            "rates_bps": [float(rate) for rate in rates_bps],
            "delays_s": [float(delay) for delay in delays_s],
            "chunk_bytes": int(chunk_bytes),
            "best": bool(best),
        }
        reply = self._ask(request, deadline_s=self._deadline_s)
        return RouteReply(paths=tuple(reply["paths"]), messages=reply["messages"], took_s=reply["took_s"])

    def status(self) -> dict[str, Any]:
        """`not_ready`: the switches without standing rules; `generation`: the last one; `routes` off the fixed path:
        [src, dst, path, generation] each; `dead`: the cables, [node, node] each, that the fixed paths lead around."""
        return self._ask({"ask": "status"}, deadline_s=self._deadline_s)

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(self._deadline_s)
            try:
                self._socket.connect(str(self._path))
            except OSError as error:
                self.close()
                raise ControllerError(f"no controller answers at {self._path}: {error.strerror or error}") from None
        return self._socket

    def _ask(self, request: dict[str, Any], *, deadline_s: float) -> dict[str, Any]:
        line = self._exchange(self._connect(), write_line(request | self._proof), deadline_s)
        try:
            reply = read_object(line)
        except ProtocolError as error:
            raise ControllerError(f"the controller at {self._path} answers nonsense: {error}") from None
        if reply.get("ok") is not True:
            raise ControllerError(f"the controller at {self._path} says: {reply.get('error')}")
        return reply

    def _exchange(self, connection: socket.socket, line: bytes, deadline_s: float) -> bytes:
        """Send a line and return the one that answers it; hang up if there is none, or it may come later."""
        end = time.monotonic() + deadline_s
        trouble = "has ended"
        try:
            connection.settimeout(deadline_s)
            connection.sendall(line)
            while b"\n" not in self._pending:
                connection.settimeout(max(end - time.monotonic(), 1e-6))
                got = connection.recv(65536)
                if not got:
                    raise ConnectionResetError
                self._pending += got
                if len(self._pending) > _MOST_BYTES:
                    trouble = f"answers with more than {_MOST_BYTES} bytes"
                    raise ConnectionAbortedError
        except OSError as error:
            if isinstance(error, TimeoutError):
                trouble = f"has not answered within {deadline_s:g} s"
            self.close()
            raise ControllerError(f"the controller at {self._path} {trouble}") from None
        reply, _, self._pending = self._pending.partition(b"\n")
        return reply
