"""The OpenFlow app: keeps the default rules on every switch, and puts a collective's crossings on their paths.

This module handles the switches' events and the clients' requests. The rest is in the subpackages: `routing` chooses
paths and keeps the link state, `forwarding` keeps track of the switches' rules and changes them, `api` has the socket.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller.api import protocol
from controller.api.protocol import CablesRequest, CountersRequest, ProtocolError, RouteRequest, StatusRequest
from controller.api.server import Server
from controller.compat import CONFIG, DEAD, HELLO, MAIN, OFP_VERSION, App, hub, ofp_event, set_ev_cls
from controller.config import configured
from controller.forwarding.rules import Route
from controller.forwarding.state import (
    DEADLINE_S,
    NO_FLOWS,
    FlowPaths,
    Forwarding,
    Limits,
    State,
    choose,
    choose_flow_paths,
)
from controller.forwarding.switches import SwitchError, Switches
from controller.routing.link_state import LinkState
from controller.routing.switch_paths import FabricPaths
from controller.routing.wan_path_choice import NoPathError
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, cables_of, reachable

_LOG = logging.getLogger("longhaul.controller")


class RouteApp(App):
    """Routes one fabric, and answers requests on a Unix socket at `socket_path`; with `token`, requests must carry it.

    A switch is ready once it has confirmed its default rules. Routes change by one request at a time, and only once
    every switch has been ready. When links or switches fail later, traffic is rerouted at once: the default rules take
    the first path without a dead cable, and a new path is chosen for every crossing of the last request, under that
    request's conditions. `close` closes the socket; the rules stay in the switches when the controller ends.
    """

    OFP_VERSIONS = (OFP_VERSION,)

    def __init__(
        self,
        *args: Any,
        fabric: Fabric | None = None,
        socket_path: Path | None = None,
        token: str | None = None,
        elsewhere: Mapping[str, float] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if fabric is None or socket_path is None:  # started by the module's name: ryu-manager controller.app
            fabric, socket_path = configured()
        if fabric.spec.routing == "te":
            import_module("scipy.optimize")  # takes a second, by which the first request would be late
        self._token, self._fabric, self._elsewhere = token, fabric, elsewhere
        self._switches, self._link_state = Switches(fabric.switches, elsewhere), LinkState(fabric)
        self._forwarding = Forwarding(fabric, self._switches)
        self._request: RouteRequest | None = None  # the last one served
        self._limits: Limits = []  # the last limits of tunnels
        self._waiters: list[Any] = []  # a queue for each waiting status request, of the names of switches made ready
        self._refused: set[tuple[str, str]] = set()  # addresses of switches, and the versions that they speak
        self._one_at_a_time = hub.Semaphore(1)
        self._server = Server(socket_path, self._answer, limit_bytes=protocol.line_limit_bytes(fabric))

    def start(self) -> Any:
        """Accept requests; the framework calls this once all apps exist."""
        thread = super().start()
        hub.spawn(self._server.accept_clients)
        return thread

    def close(self) -> None:
        """Close and remove the socket; called once, at the end."""
        self._server.close()

    # --- Events of switches ---------------------------------------------------------------------------------------

    @set_ev_cls(ofp_event.EventOFPHello, HELLO)
    def greeted(self, event: Any) -> None:
        """Log a switch whose hello does not offer this version of OpenFlow, once: it will try again for ever.

        Without a list of versions, a hello offers its own and all earlier ones.
        """
        hello, address = event.msg, str(event.msg.datapath.address[0])
        listed = [version for element in getattr(hello, "elements", None) or () for version in element.versions]
        versions = ", ".join(f"1.{version - 1}" for version in sorted(listed)) or f"1.{hello.version - 1} at most"
        if (OFP_VERSION in listed if listed else hello.version >= OFP_VERSION) or (address, versions) in self._refused:
            return
        self._refused.add((address, versions))
        text = "a switch at %s speaks OpenFlow %s and not 1.3, and is refused: set its protocols to OpenFlow13"
        _LOG.warning(text, address, versions)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN, DEAD])
    def connection_changed(self, event: Any) -> None:
        """Handle a switch that has connected and sent its datapath id, or whose connection has ended."""
        datapath = event.datapath
        if event.state == DEAD:
            self._switches.disconnected(datapath)
            self._note_departures()
            return
        # Not ready any more, before `connected` makes it possible to send the switch any message but a hello.
        self._forwarding.ready.discard(self._switches.names.get(datapath.id, ""))
        name = self._switches.connected(datapath)
        if name is None:
            _LOG.warning("a switch that the fabric does not have connected: datapath id %s", datapath.id)
            return
        self._link_state.reported(name, [_port_state(port) for port in datapath.ports.values()])
        hub.spawn(self._greet, name)  # in a new thread, as it waits for confirmations that this thread receives

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN)
    def port_changed(self, event: Any) -> None:
        """Handle a port that has gone down, come up or been deleted."""
        message = event.msg
        name = self._switches.names.get(message.datapath.id)
        if name is not None:
            number, down = _port_state(message.desc)
            deleted = message.reason == message.datapath.ofproto.OFPPR_DELETE
            self._link_state.reported(name, [(number, down or deleted)])
            hub.spawn(self._reroute)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN)
    def barrier_passed(self, event: Any) -> None:
        """Handle a barrier reply: the switch has executed all messages before the barrier."""
        self._switches.confirmed(event.msg.datapath, event.msg.xid)

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN)
    def ports_counted(self, event: Any) -> None:
        """Handle a switch's port statistics."""
        message = event.msg
        more = bool(message.flags & message.datapath.ofproto.OFPMPF_REPLY_MORE)
        sent = {port.port_no: port.tx_bytes for port in message.body}
        self._switches.counted(message.datapath, message.xid, sent, more=more)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG, MAIN])
    def error_received(self, event: Any) -> None:
        """Handle an OpenFlow error: a switch has refused a message."""
        message = event.msg
        self._switches.refused(message.datapath, message.xid, message.type, message.code)

    def _note_departures(self) -> None:
        """Update the link state for switches that have disconnected; any thread may be the first to notice."""
        for name in self._switches.missing():
            if name in self._forwarding.ready:
                self._forwarding.ready.discard(name)
                self._link_state.disconnected(name)
                _LOG.warning("the switch %s has disconnected", name)
                hub.spawn(self._reroute)

    def _greet(self, name: str) -> None:
        with self._one_at_a_time:
            try:
                self._forwarding.greet(name)
            except SwitchError as error:
                _LOG.warning("%s", error)
                return
            self._link_state.connected(name)
            self._reconcile()
        for waiter in self._waiters:
            waiter.put(name)

    # --- Routing around failures ----------------------------------------------------------------------------------

    def _reroute(self) -> None:
        with self._one_at_a_time:
            self._reconcile()

    def _reconcile(self) -> None:
        """Make the switches' rules match the link state and the last request.

        Called after every change of either. A failure is logged, and retried at the next event or request.
        """
        forwarding, dead = self._forwarding, self._link_state.dead()
        outage = self._link_state.begin(forwarding.paths.dead, dead) if dead != forwarding.paths.dead else None
        if outage is None:
            self._link_state.nothing_new()
            if forwarding.state is State.CONFIRMED:
                return
        wanted, of_flows, limits = self._choose_again(dead)
        paths_before = {crossing: forwarding.path(*crossing) for crossing in wanted}
        flows_before = forwarding.paths_of_flows()
        try:
            forwarding.reconcile(FabricPaths(self._fabric, dead), wanted, of_flows)
        except SwitchError as error:  # if a switch has disconnected, that event will call this again
            _LOG.warning("the paths around failed links are not complete: %s", error)
            return
        self._limits = limits
        if outage is not None:
            moved = [(*pair, old, new) for pair, old in paths_before.items() if (new := forwarding.path(*pair)) != old]
            flows_after = forwarding.paths_of_flows()
            flows = ((*key[:2], old, flows_after.get(key, old)) for key, old in flows_before.items())
            moved += dict.fromkeys(move for move in flows if move[2] != move[3])
            outage.done_ns, outage.moved = time.monotonic_ns(), [list(move) for move in moved]
            for src, dst, *paths in moved:
                names = [self._fabric.paths[index].name for index in paths]
                _LOG.warning("ranks %d to %d: the path %s is replaced by %s", src, dst, *names)

    def _choose_again(self, dead: Cables) -> tuple[dict[tuple[int, int], int], FlowPaths, Limits]:
        """Choose again for the last request, under its conditions and with these cables dead.

        Return the path of every crossing and the `FlowPath` of every flow that has one, and the limits of tunnels.
        """
        if (request := self._request) is None:
            return {}, NO_FLOWS, []
        reach = reachable(self._fabric, dead)
        for src, dst in dict.fromkeys(
            (*request.crossings, *(flow[:2] for flow in request.flows), *request.connections)
        ):
            if not reach[src, dst]:
                _LOG.warning("no path leads over the WAN from rank %d to rank %d", src, dst)
        crossings = tuple(pair for pair in request.crossings if reach[pair])
        flows = tuple(flow for flow in request.flows if reach[flow[:2]])
        asks = tuple(ask for flow, ask in zip(request.flows, request.asks, strict=False) if reach[flow[:2]])
        connections = tuple(pair for pair in request.connections if reach[pair])
        wants = tuple(want for pair, want in zip(request.connections, request.wants, strict=False) if reach[pair])
        possible = replace(request, crossings=crossings, flows=flows, asks=asks, connections=connections, wants=wants)
        paths = choose(self._fabric, possible, dead)
        of_flows, limits = choose_flow_paths(self._fabric, possible, dead, paths, self._forwarding.paths_of_flows())
        return dict(zip(crossings, paths, strict=True)), of_flows, limits

    # --- Requests -------------------------------------------------------------------------------------------------

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        """Return the reply to a request's line; raises ProtocolError and nothing else."""
        try:
            request = protocol.parse_request(line, self._fabric, token=self._token)
            if isinstance(request, StatusRequest):
                answer = self._status(request)
            elif isinstance(request, CountersRequest):
                answer = self._counters()
            elif isinstance(request, CablesRequest):
                self._link_state.told(request.dead)
                self._reroute()
                answer = {}
            else:
                answer = self._route(request)
        except ProtocolError:
            raise
        except (SwitchError, NoPathError) as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # the client waits for a reply, even after a mistake in the controller
            _LOG.exception("a request failed")
            return {"ok": False, "error": f"the request failed: {type(error).__name__}: {error}"}
        return {"ok": True, **answer}

    def _status(self, request: StatusRequest) -> dict[str, Any]:
        end, made_ready = time.monotonic() + request.wait_s, hub.Queue()
        self._waiters.append(made_ready)
        try:
            while self._not_ready() and (left_s := end - time.monotonic()) > 0:
                made_ready.get(timeout=left_s)
        except hub.QueueEmpty:
            pass
        finally:
            self._waiters.remove(made_ready)
        routes = self._forwarding.routes
        return {
            "not_ready": self._not_ready(),
            "generation": self._forwarding.generation,
            "routes": [[r.src, r.dst, r.path, r.generation] for r in routes if r.port is None],
            "flows": [[r.src, r.dst, r.port, r.path, self._spine_up(r), r.down] for r in routes if r.is_of_flow],
            "limits": self._limits,
            "outages": self._link_state.recent(),
            "dead": sorted(sorted(cable) for cable in self._forwarding.paths.dead),
        }

    def _counters(self) -> dict[str, Any]:
        with self._one_at_a_time:
            names, dead = [switch.name for switch in self._fabric.switches], self._forwarding.paths.dead
            if dead:
                names = [name for name in names if not cables_of(self._fabric, name) <= dead]
            counts = self._switches.port_bytes(names, deadline_s=DEADLINE_S)
        return {"ports": {name: [n.asked_ns, n.answered_ns, list(n.sent.items())] for name, n in counts.items()}}

    def _route(self, request: RouteRequest) -> dict[str, Any]:
        started = time.monotonic()
        with self._one_at_a_time:
            waiting = self._not_ready()
            self._reconcile()
            current = self._forwarding.paths
            for name in waiting:  # only a switch with no live cable and no GPU may be missing
                if current.switches[name].kind == "leaf" or not cables_of(self._fabric, name) <= current.dead:
                    raise SwitchError(f"the switch {name} is not connected")
            paths = choose(self._fabric, request, current.dead)
            of_flows, limits = choose_flow_paths(
                self._fabric, request, current.dead, paths, self._forwarding.paths_of_flows()
            )
            messages = self._forwarding.reconcile(current, dict(zip(request.crossings, paths, strict=True)), of_flows)
            self._request, self._limits = request, limits
        return {
            "paths": paths,
            "ways": [[flow.path, flow.up, flow.down] for flow in [*of_flows.values()][: len(request.flows)]],
            "limits": limits,
            "messages": messages,
            "took_s": time.monotonic() - started,
        }

    def _spine_up(self, route: Route) -> int:
        """Return the index of the spine that a route's leaf sends to."""
        return self._forwarding.paths.spines(self._fabric.gpus[route.src].site).index(route.spine)

    def _not_ready(self) -> list[str]:
        """Return this controller's switches that lack their default rules or have disconnected."""
        self._switches.hang_up()
        self._note_departures()
        missing = self._switches.missing()
        here = (switch.name for switch in self._fabric.switches if switch.name not in self._elsewhere)
        return [name for name in here if name not in self._forwarding.ready or name in missing]


def _port_state(port: Any) -> tuple[int, bool]:
    """Return the number of a port, and whether it is down (OpenFlow's OFPPC_PORT_DOWN or OFPPS_LINK_DOWN)."""
    return port.port_no, bool(port.config & 1 or port.state & 1)
