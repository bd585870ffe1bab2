"""The OpenFlow app: keeps the standing rules on every switch, and puts a collective's crossings on their paths.

Thin on purpose: `routing` chooses, `rules` says what to tell the switches and in which order, `forwarding` has what
they were told, `switches` tells them, `outages` knows what is down, `service` has the socket. Here the events and the
requests meet.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller import protocol
from controller.declaration import configured
from controller.forwarding import Forwarding, choose
from controller.framework import CONFIG, DEAD, MAIN, OFP_VERSION, App, hub, ofp_event, set_ev_cls
from controller.lines import ProtocolError, write_line
from controller.outages import Outages
from controller.protocol import RouteRequest, StatusRequest
from controller.routing import NoPathError
from controller.service import Reply, Service
from controller.switches import SwitchError, Switches
from controller.ways import Ways
from topologies.fabric import Fabric
from topologies.outage import Cables, around

_LOG = logging.getLogger("longhaul.controller")


class RouteApp(App):
    """Routes one fabric and answers on a Unix socket at `socket_path`, only who knows the `token` if there is one.

    A switch is ready once it has confirmed its standing rules. Routes are changed one request at a time, and only
    once every switch has been ready. What goes down later is led around at once, without being asked: the standing
    rules lead over the first path that is whole, and every crossing of the last request gets a path chosen anew under
    its conditions. A change that fails may have been made in part; the next one begins with the standing rules alone.
    The socket is closed by `close`; what the switches were told outlives the controller.
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
        self._token, self._fabric = token, fabric
        self._switches, self._outages = Switches(fabric.switches), Outages(fabric)
        self._forwarding = Forwarding(fabric, self._switches)
        self._request: RouteRequest | None = None  # the last one, whose crossings are led around what goes down
        self._waiters: list[Any] = []  # queues, of status requests that wait, told of every switch that gets ready
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
            self._switches.left(datapath)
            self._notice()
            return
        # Before it can be sent anything but a greeting.
        self._forwarding.ready.discard(self._switches.names.get(datapath.id, ""))
        name = self._switches.joined(datapath)
        if name is None:
            _LOG.warning("a switch that the fabric does not have connected: datapath id %s", datapath.id)
            return
        self._outages.reported(name, [_state(port) for port in datapath.ports.values()])
        hub.spawn(self._greet, name)  # it waits for confirmations, which come by this thread

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN)
    def port_changed(self, event: Any) -> None:
        """A port of a switch has gone down or come up."""
        name = self._switches.names.get(event.msg.datapath.id)
        if name is not None:
            deleted = event.msg.reason == event.msg.datapath.ofproto.OFPPR_DELETE
            number, down = _state(event.msg.desc)
            self._outages.reported(name, [(number, down or deleted)])
            hub.spawn(self._lead_around)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN)
    def barrier_passed(self, event: Any) -> None:
        """A switch has done all that it was told before the barrier."""
        self._switches.confirmed(event.msg.datapath, event.msg.xid)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG, MAIN])
    def error_came(self, event: Any) -> None:
        """A switch has refused a message."""
        message = event.msg
        self._switches.refused(message.datapath, message.xid, message.type, message.code)

    def _notice(self) -> None:
        """Take note of switches that have left, whoever was the first to see it."""
        for name in self._switches.missing():
            if name in self._forwarding.ready:
                self._forwarding.ready.discard(name)
                self._outages.left(name)
                _LOG.warning("the switch %s has disconnected", name)
                hub.spawn(self._lead_around)

    def _greet(self, name: str) -> None:
        with self._one_at_a_time:
            try:
                self._forwarding.greet(name)
            except SwitchError as error:
                _LOG.warning("%s", error)
                return
            self._outages.came(name)
            self._catch_up()
        for waiter in self._waiters:
            waiter.put(name)

    def _lead_around(self) -> None:
        """Lead everything around what is dead by now, and back onto what is not any more."""
        with self._one_at_a_time:
            self._catch_up()

    def _catch_up(self) -> None:
        before, dead = self._forwarding.ways.dead, self._outages.dead()
        if dead == before:
            self._outages.nothing_new()
            if self._forwarding.in_doubt:  # what was to be led around is whole again before that was done
                self._put(dead, self._wanted(dead))
            return
        outage, wanted = self._outages.begin(before, dead), self._wanted(dead)
        paths = {crossing: self._forwarding.path(*crossing) for crossing in wanted}
        if not self._put(dead, wanted):
            return
        outage.done_ns = time.monotonic_ns()
        for (src, dst), old in paths.items():
            if (new := self._forwarding.path(src, dst)) != old:
                outage.moved.append([src, dst, old, new])
                names = [self._fabric.paths[index].name for index in (old, new)]
                _LOG.warning("ranks %d to %d: the path %s is replaced by %s", src, dst, *names)

    def _put(self, dead: Cables, wanted: Mapping[tuple[int, int], int]) -> bool:
        try:
            self._forwarding.put(Ways(self._fabric, dead), wanted)
        except SwitchError as error:  # one that has gone meanwhile is told of by an event of its own
            _LOG.warning("the ways around what is down are not complete: %s", error)
            return False
        return True

    def _wanted(self, dead: Cables) -> dict[tuple[int, int], int]:
        """The path of every crossing last asked for, under the conditions of then and with these cables dead."""
        found = {}
        for crossing in self._request.crossings if self._request is not None else ():
            assert self._request is not None
            try:
                found[crossing] = choose(self._fabric, replace(self._request, crossings=(crossing,)), dead)[0]
            except NoPathError as error:
                _LOG.warning("%s", error)
        return found

    def _answer(self, line: bytes) -> Reply:
        """The reply to a request's line; whatever goes wrong, it is one line."""
        try:
            request = protocol.parse_request(line, self._fabric, token=self._token)
            answer = self._status(request) if isinstance(request, StatusRequest) else self._route(request)
        except ProtocolError as error:
            return Reply(line=_error(str(error)), refused=str(error))
        except (SwitchError, NoPathError) as error:
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
        routes = [[r.src, r.dst, r.path, r.generation] for r in self._forwarding.routes]
        return {
            "not_ready": self._waiting_for(),
            "generation": self._forwarding.generation,
            "routes": routes,
            "outages": self._outages.told(),
            "dead": sorted(sorted(cable) for cable in self._forwarding.ways.dead),
        }

    def _waiting_for(self) -> list[str]:
        """The switches that are not ready, after a look at the connections."""
        self._switches.hang_up()
        self._notice()
        missing = self._switches.missing()
        return [s.name for s in self._fabric.switches if s.name not in self._forwarding.ready or s.name in missing]

    def _route(self, request: RouteRequest) -> dict[str, Any]:
        started = time.monotonic()
        with self._one_at_a_time:
            waiting = self._waiting_for()
            self._catch_up()
            late = [name for name in waiting if not self._led_around(name)]
            if late:
                raise SwitchError(f"the switch {late[0]} is not connected")
            ways = self._forwarding.ways
            paths = choose(self._fabric, request, ways.dead)
            messages = self._forwarding.put(ways, dict(zip(request.crossings, paths, strict=True)))
            self._request = request
        return {"paths": paths, "messages": messages, "took_s": time.monotonic() - started}

    def _led_around(self, name: str) -> bool:
        """Whether no way leads over a switch any more; one that GPUs hang on cannot be spared."""
        ways = self._forwarding.ways
        return ways.switches[name].kind != "leaf" and around(self._fabric, name) <= ways.dead


def _state(port: Any) -> tuple[int, bool]:
    """The number of a port, and whether nothing can pass it (OpenFlow's OFPPC_PORT_DOWN and OFPPS_LINK_DOWN)."""
    return port.port_no, bool(port.config & 1 or port.state & 1)


def _error(sentence: str) -> bytes:
    return write_line({"ok": False, "error": sentence})
