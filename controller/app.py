"""The OpenFlow app: keeps the standing rules on every switch, and puts a collective's crossings on their paths.

Thin on purpose: `routing` chooses, `rules` says what to tell the switches and in which order, `switches` tells them,
`service` has the socket. Here the events and the requests meet.
"""

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

from controller import protocol, rules
from controller.declaration import configured
from controller.flows import LAST_GENERATION
from controller.framework import CONFIG, DEAD, MAIN, OFP_VERSION, App, hub, ofp_event, set_ev_cls
from controller.lines import ProtocolError, write_line
from controller.protocol import RouteRequest, StatusRequest
from controller.routing import Router
from controller.service import Reply, Service
from controller.switches import SETTLE_S, SwitchError, Switches
from controller.ways import Ways
from topologies.fabric import Fabric

DEADLINE_S = 5.0
"""How long the switches may take to confirm one stage of a change."""

_LOG = logging.getLogger("longhaul.controller")


class RouteApp(App):
    """Routes one fabric and answers on a Unix socket at `socket_path`, only who knows the `token` if there is one.

    A switch is ready once it has confirmed its standing rules. Routes are changed one request at a time, and only
    while every switch is ready. A change that fails may have been made in part; the next request takes all routes
    away first. The socket is closed by `close`; what the switches were told outlives the controller.
    """

    OFP_VERSIONS = (OFP_VERSION,)

    def __init__(
        self,
        *args: Any,
        fabric: Fabric | None = None,
        socket_path: Path | None = None,
        token: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if fabric is None or socket_path is None:  # loaded by its module's name: ryu-manager controller.app
            fabric, socket_path = configured()
        self._token = token
        self._fabric, self._ways, self._switches = fabric, Ways(fabric), Switches(fabric.switches)
        self._ready: set[str] = set()
        self._waiters: list[
            Any
        ] = []  # a queue for each status request that waits, told of every switch that gets ready
        self._routes: tuple[rules.Route, ...] = ()
        self._generation = 0
        self._in_doubt = False
        self._one_at_a_time = hub.Semaphore(1)
        self._service = Service(
            socket_path,
            self._answer,
            limit_bytes=protocol.line_limit_bytes(fabric),
            too_long=_error(f"a line is longer than {protocol.line_limit_bytes(fabric)} bytes"),
            too_many=_error("too many clients at once"),
        )

    def start(self) -> Any:
        """Take requests; called by the framework once all apps are there."""
        thread = super().start()
        self._service.start()
        return thread

    def close(self) -> None:
        """Take the socket away; called once, at the end."""
        self._service.close()

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN, DEAD])
    def connection_changed(self, event: Any) -> None:
        """A switch has connected and told its id, or its connection has ended."""
        datapath = event.datapath
        if event.state == DEAD:
            name = self._switches.left(datapath)
            if name is not None:
                self._lost(name)
            return
        self._ready.discard(self._switches.names.get(datapath.id, ""))  # before it can be sent anything but a greeting
        name = self._switches.joined(datapath)
        if name is None:
            _LOG.warning("a switch that the fabric does not have connected: datapath id %s", datapath.id)
            return
        hub.spawn(self._greet, name)  # it waits for confirmations, which come by this thread

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN)
    def barrier_passed(self, event: Any) -> None:
        """A switch has done all that it was told before the barrier."""
        self._switches.confirmed(event.msg.datapath, event.msg.xid)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG, MAIN])
    def error_came(self, event: Any) -> None:
        """A switch has refused a message."""
        message = event.msg
        self._switches.refused(message.datapath, message.xid, message.type, message.code)

    def _lost(self, name: str) -> None:
        self._ready.discard(name)
        _LOG.warning("the switch %s has disconnected", name)

    def _greet(self, name: str) -> None:
        with self._one_at_a_time:
            try:
                self._switches.send(rules.greeting(self._ways, name, self._routes), deadline_s=DEADLINE_S)
            except SwitchError as error:
                _LOG.warning("%s", error)
                return
            self._ready.add(name)
        for waiter in self._waiters:
            waiter.put(name)

    def _answer(self, line: bytes) -> Reply:
        """The reply to a request's line; whatever goes wrong, it is one line."""
        try:
            request = protocol.parse_request(line, self._fabric, token=self._token)
            answer = self._status(request) if isinstance(request, StatusRequest) else self._route(request)
        except ProtocolError as error:
            return Reply(line=_error(str(error)), refused=str(error))
        except SwitchError as error:
            return Reply(line=_error(str(error)))
        except Exception as error:  # a client that waits is told, whatever it was
            _LOG.exception("a request failed")
            return Reply(line=_error(f"the request failed: {type(error).__name__}: {error}"))
        return Reply(line=write_line({"ok": True, **answer}))

    def _status(self, request: StatusRequest) -> dict[str, Any]:
        end, news = time.monotonic() + request.wait_s, hub.Queue()
        self._waiters.append(news)
        try:
            while self._waiting_for() and (left := end - time.monotonic()) > 0:
                news.get(timeout=left)
        except hub.QueueEmpty:
            pass
        finally:
            self._waiters.remove(news)
        routes = [[r.src, r.dst, r.path, r.generation] for r in self._routes]
        return {"not_ready": self._waiting_for(), "generation": self._generation, "routes": routes}

    def _waiting_for(self) -> list[str]:
        """The switches that are not ready, after a look at the connections."""
        for name in self._switches.hang_up():
            self._lost(name)
        missing = self._switches.missing()
        return [s.name for s in self._fabric.switches if s.name not in self._ready or s.name in missing]

    def _route(self, request: RouteRequest) -> dict[str, Any]:
        started = time.monotonic()
        paths = _choose(self._fabric, request)
        with self._one_at_a_time:
            late = self._waiting_for()
            if late:
                raise SwitchError(f"the switch {late[0]} is not connected")
            if self._in_doubt:
                everywhere = tuple(rules.no_routes(switch.name) for switch in self._fabric.switches)
                self._switches.send([everywhere], deadline_s=DEADLINE_S)
                self._routes, self._in_doubt = (), False
            generation = self._generation % LAST_GENERATION + 1
            wanted = dict(zip(request.crossings, paths, strict=True))
            change = rules.change(self._ways, self._routes, wanted, generation=generation)
            if change.stages:
                self._generation, self._in_doubt = generation, True
                self._switches.send(change.stages, deadline_s=DEADLINE_S, settle_s=SETTLE_S)
                self._routes, self._in_doubt = change.routes, False
        messages = sum(len(stage) for stage in change.stages)
        return {"paths": paths, "messages": messages, "took_s": time.monotonic() - started}


def _choose(fabric: Fabric, request: RouteRequest) -> list[int]:
    """The path of every crossing, as its index in `fabric.paths`."""
    if not request.crossings:
        return []
    src, dst = np.array(request.crossings).T
    rates_bps = np.broadcast_to(np.array(request.rates_bps), (src.size, len(request.rates_bps)))
    router = Router(fabric, np.array(request.delays_s))
    if request.best:
        routes = router.best(rates_bps, src, dst, chunk_bytes=request.chunk_bytes)
    else:
        routes = router.fixed(rates_bps, src, dst)
    return [int(path) for path in routes.path]


def _error(sentence: str) -> bytes:
    return write_line({"ok": False, "error": sentence})
