"""A synchronous client of the controller's Unix socket, with deadlines."""

import math
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.api.protocol import ProtocolError, read_object, write_line
from topologies.fabric.failures import Cables

_RETRY_S = 0.02
_SLACK_S = 1.0  # after the time at which the controller sends its reply
_MAX_REPLY = 1 << 22  # bytes


class ControllerError(RuntimeError):
    """Raised if the controller is not running, does not answer in time, or refuses; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class RouteReply:
    """The result of a route request, which all switches have confirmed.

    `paths` has the path of every crossing in the request, as indices in `Fabric.paths`. `flow_paths` has the fields of
    the `FlowPath` of every flow in the request. `limits_bps`, [classes, paths], is the rate of each class in each
    path's tunnel, empty if tunnels have no limits. `messages` is the number of OpenFlow messages sent, `took_s` the
    duration by the controller's clock. Switches may follow cached decisions for a moment longer (Open vSwitch: 5 ms).
    """

    paths: tuple[int, ...]
    messages: int
    took_s: float
    flow_paths: tuple[tuple[int, int, int], ...] = ()
    limits_bps: Sequence[Sequence[float]] = ()


class Controller:
    """A connection to the controller whose socket is at `path`; the first request connects.

    A reply may take `deadline_s`. `token` is the run's token, if the controller was started with one. Every method
    raises ControllerError.
    """

    def __init__(self, path: Path, *, deadline_s: float = 30.0, token: str | None = None) -> None:
        self._path, self._deadline_s = path, deadline_s
        self._token = {} if token is None else {"token": token}
        self._socket: socket.socket | None = None

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def wait_ready(
        self, *, timeout_s: float, alive: Callable[[], bool] = lambda: True, without: Collection[str] = ()
    ) -> None:
        """Wait until the controller runs and every switch except those in `without` has its default rules.

        Waiting for the controller to answer ends early when `alive` returns that its process has ended.
        """
        end = time.monotonic() + timeout_s
        while self._socket is None:
            try:
                self._connect()
            except ControllerError:
                if not alive():
                    raise self._error("has ended before it was ready") from None
                if time.monotonic() >= end:
                    raise
                time.sleep(_RETRY_S)
        wait_s = max(0.0, end - time.monotonic())
        reply = self._ask({"ask": "status", "wait_s": wait_s}, deadline_s=wait_s + _SLACK_S)
        late = ", ".join(name for name in reply["not_ready"] if name not in without)
        if late:
            raise self._error(f"still waits for {late} after {timeout_s:g} s")

    def route(
        self,
        *,
        crossings: Iterable[tuple[int, int]],
        rates_bps: Iterable[float],
        delays_s: Iterable[float],
        chunk_bytes: int,
        best: bool,
        flows: Iterable[tuple[int, int, int, int]] = (),
        asks: Iterable[tuple[int, float]] = (),
        stay: bool = False,
        kept: Iterable[float] = (),
        probes: Iterable[tuple[int, int, int, int]] = (),
        given: Iterable[tuple[int, int, int]] = (),
        connections: Iterable[tuple[int, int]] = (),
        channels: int = 1,
        wants: Iterable[float] = (),
    ) -> RouteReply:
        """Put every crossing (rank, rank of another site) on its path and all other pairs back on the default path.

        `rates_bps` and `delays_s`, [links], are the current conditions. With `best` a crossing takes the path of least
        cost for a chunk of `chunk_bytes`, otherwise the fixed path. `flows` (rank, rank, channel, TCP source port) are
        routed by the fabric's routing, if that is not "single"; the other arguments are as in `RouteRequest`. Returns
        when every switch has confirmed.
        """
        request = {
            "ask": "route",
            "crossings": [[int(src), int(dst)] for src, dst in crossings],
            "rates_bps": [float(rate) for rate in rates_bps],
            "delays_s": [float(delay) for delay in delays_s],
            "chunk_bytes": int(chunk_bytes),
            "best": bool(best),
            "flows": [[int(number) for number in flow] for flow in flows],
            "stay": stay,
            "asks": [[index, None if math.isinf(rate) else rate] for index, rate in asks],
            "kept": list(kept),
            "probes": [[int(number) for number in probe] for probe in probes],
            "given": [[int(number) for number in one] for one in given],
            "connections": [[int(src), int(dst)] for src, dst in connections],
            "channels": channels,
            "wants": [None if math.isinf(rate) else float(rate) for rate in wants],
        }
        reply = self._ask(request, deadline_s=self._deadline_s)
        return RouteReply(
            paths=tuple(reply["paths"]),
            messages=reply["messages"],
            took_s=reply["took_s"],
            flow_paths=tuple((path, up, down) for path, up, down in reply["ways"]),
            limits_bps=reply["limits"],
        )

    def status(self) -> dict[str, Any]:
        """Return the controller's state as a dictionary.

        `not_ready`: the switches without default rules; `generation`: the last generation of routes; `routes`: the
        pairs off the default path, [src, dst, path, generation] each; `flows`: the flows with a route of their own,
        [src, dst, port, path, up, down] each; `limits`: as `limits_bps` of `RouteReply`; `dead`: the cables that the
        default paths avoid, [node, node] each; `outages`: the last `controller.routing.link_state.Outage`s.
        """
        return self._ask({"ask": "status"}, deadline_s=self._deadline_s)

    def tell_dead(self, cables: Cables) -> None:
        """Tell which cables are dead of those whose switches all have another controller; returns when every switch
        has confirmed the paths around them."""
        dead = sorted(sorted(one) for one in cables)
        self._ask({"ask": "cables", "dead": dead}, deadline_s=self._deadline_s)

    def counters(self) -> dict[str, tuple[int, int, dict[int, int]]]:
        """Return OpenFlow's port statistics of every switch that is not down.

        For each switch: when the request was sent and when the answer was complete (CLOCK_MONOTONIC, ns), and the
        bytes that each port has sent so far, by port number.
        """
        ports = self._ask({"ask": "counters"}, deadline_s=self._deadline_s)["ports"]
        return {name: (asked_ns, answered_ns, dict(sent)) for name, (asked_ns, answered_ns, sent) in ports.items()}

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
        connection = self._connect()
        try:
            reply = read_object(_exchange(connection, write_line(request | self._token), deadline_s))
        except (OSError, ProtocolError) as error:
            self.close()  # a late reply must not answer the next request
            if isinstance(error, ProtocolError):
                raise self._error(f"sent a malformed reply: {error}") from None
            late = isinstance(error, TimeoutError)
            raise self._error(f"has not answered within {deadline_s:g} s" if late else "has ended") from None
        if reply.get("ok") is not True:
            raise self._error(f"reports: {reply.get('error')}")
        return reply

    def _error(self, predicate: str) -> ControllerError:
        return ControllerError(f"the controller at {self._path} {predicate}")


def _exchange(connection: socket.socket, line: bytes, deadline_s: float) -> bytes:
    """Send a line and return the one line of the reply; raises OSError, and ProtocolError if the reply is too long."""
    end = time.monotonic() + deadline_s
    connection.settimeout(deadline_s)
    connection.sendall(line)
    reply = b""
    while not reply.endswith(b"\n"):
        connection.settimeout(max(end - time.monotonic(), 1e-6))
        received = connection.recv(65536)
        if not received:
            raise ConnectionResetError
        reply += received
        if len(reply) > _MAX_REPLY:
            raise ProtocolError(f"more than {_MAX_REPLY} bytes")
    return reply
