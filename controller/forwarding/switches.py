"""The connections of switches: sends OpenFlow 1.3 messages and waits for barriers, through os-ken or Ryu."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from types import MappingProxyType
from typing import Any

from controller.compat import has_hung_up, hub
from controller.forwarding.flow_mods import ALL_BITS, Install, Match, Message, Rule, Stage
from topologies.fabric.addressing import Switch

_IPV4 = 0x0800
_TCP = 6
_OF_CHANNELS = 1  # the table with the routes of channels
_CHANNEL = "reg0"  # the register that holds a packet's channel
_SYMMETRIC_L3L4_UDP, _MODULO_N = 3, 0  # nx_hash_fields and nx_mp_algorithm of Open vSwitch (nicira-ext.h)

_POLL_S = 0.25  # interval between looks for closed connections while answers are awaited

SETTLE_S = 0.02
"""How long after its barrier a stage has certainly taken effect. Open vSwitch confirms a change of its tables, but
packets follow cached decisions, which it revalidates at least every 5 ms (udpif_revalidator in ofproto-dpif-upcall.c).
"""


@dataclass(frozen=True)
class PortBytes:
    """The bytes `sent` so far by each port of a switch, by port number, read at an instant of CLOCK_MONOTONIC between
    `asked_ns` and `answered_ns`."""

    asked_ns: int
    answered_ns: int
    sent: Mapping[int, int]


class SwitchError(RuntimeError):
    """Raised if a switch is not connected, is late to answer or refuses a rule; the message names the switch."""


class Switches:
    """The connections of a fabric's switches, without those that have another controller: those `elsewhere` confirm
    what that one sends them after these times, s, for which `send` waits as for the others.

    The app's thread reports events by `connected`, `disconnected`, `confirmed`, `counted` and `refused`. `send` and
    `port_bytes` block another thread until the switches have answered; only one of these calls may run at a time.
    """

    def __init__(self, switches: Iterable[Switch], elsewhere: Mapping[str, float] = MappingProxyType({})) -> None:
        self.elsewhere = elsewhere
        self.names = {switch.dpid: switch.name for switch in switches}
        self._connections: dict[str, Any] = {}
        self._lock = hub.Semaphore(1)  # protects the connections, which several threads change
        self._news = hub.Queue()
        self._awaited: dict[tuple[str, int], bool] = {}  # (switch, xid) of messages sent: whether an answer is due
        self._counted: dict[tuple[str, int], dict[int, int]] = {}  # counters received so far, by (switch, xid)
        self._answered_ns: dict[str, int] = {}

    def missing(self) -> list[str]:
        """Return the names of the switches that are not connected, in the fabric's order."""
        return [name for name in self.names.values() if name not in self._connections]

    def hang_up(self) -> None:
        """Drop the connections that the switches have closed."""
        with self._lock:
            ended = [datapath for datapath in self._connections.values() if has_hung_up(datapath)]
        for datapath in ended:
            self.drop(datapath)

    def connection(self, name: str) -> Any:
        """Return a switch's connection, or None."""
        return self._connections.get(name)

    def drop(self, datapath: Any) -> None:
        """Close a connection, if it is still its switch's current one; the switch then connects again."""
        if datapath is not None and self.disconnected(datapath):
            datapath.send(b"", close_socket=True)  # wakes the framework's writing thread, which then ends

    def connected(self, datapath: Any) -> str | None:
        """Record that a switch has connected; return its name, or None if the fabric has no such switch."""
        name = self.names.get(datapath.id)
        if name is not None:
            with self._lock:
                self._connections[name] = datapath
        return name

    def disconnected(self, datapath: Any) -> bool:
        """Record that a connection has ended; return whether it was still its switch's current one."""
        name = self.names.get(datapath.id, "")
        with self._lock:
            if self._connections.get(name) is not datapath:
                return False
            del self._connections[name]
        self._news.put((name, None, f"the switch {name} has disconnected"))
        return True

    def confirmed(self, datapath: Any, xid: int) -> None:
        """Record that a switch has confirmed the barrier `xid`."""
        self._news.put((self.names.get(datapath.id), xid, None))

    def counted(self, datapath: Any, xid: int, sent: Mapping[int, int], *, more: bool) -> None:
        """Record the bytes that ports have sent, from a switch's answer to `xid`; with `more`, other parts follow."""
        name = self.names.get(datapath.id, "")
        self._counted.setdefault((name, xid), {}).update(sent)
        if not more:
            self._answered_ns[name] = time.monotonic_ns()
            self._news.put((name, xid, None))

    def refused(self, datapath: Any, xid: int, kind: int, code: int) -> None:
        """Record that a switch has answered message `xid` with an OpenFlow error."""
        name = self.names.get(datapath.id)
        self._news.put((name, xid, f"the switch {name} refuses a rule with OpenFlow error type {kind}, code {code}"))

    def send(self, stages: Iterable[Stage], *, deadline_s: float, settle_s: float = 0.0) -> None:
        """Send the stages in order, each `settle_s` after the switches have confirmed the previous one.

        Raises SwitchError if a switch is not connected, disconnects, refuses a message, or has not confirmed a stage
        after `deadline_s`. Messages sent by then are not undone.
        """
        for number, stage in enumerate(stages):
            if number:
                hub.sleep(settle_s)
            self._forget()
            by_switch: dict[str, list[Message]] = {}
            for message in stage:
                by_switch.setdefault(message.switch, []).append(message)
            begun = time.monotonic()
            for name, messages in by_switch.items():
                if name not in self.elsewhere:
                    self._post(name, _barriered(messages))
            self._await_answers(begun + deadline_s, deadline_s)
            longest_s = max((self.elsewhere.get(name, 0.0) for name in by_switch), default=0.0)
            if (left_s := begun + longest_s - time.monotonic()) > 0:
                hub.sleep(left_s)

    def port_bytes(self, names: Iterable[str], *, deadline_s: float) -> dict[str, PortBytes]:
        """Return the bytes that these switches' ports have sent, by OpenFlow's port statistics; raises as `send`."""
        self._forget()
        asked_ns = {}
        for name in names:
            asked_ns[name] = time.monotonic_ns()
            self._post(name, _port_request)
        self._await_answers(time.monotonic() + deadline_s, deadline_s)
        return {
            name: PortBytes(asked_ns[name], self._answered_ns[name], self._counted[name, xid])
            for name, xid in self._awaited
        }

    def _forget(self) -> None:
        """Forget earlier messages, their answers, and earlier news of connections."""
        self._awaited.clear()
        self._counted.clear()
        while not self._news.empty():
            self._news.get()

    def _post(self, name: str, create: Callable[[Any], Sequence[Any]]) -> None:
        """Send a switch the messages that `create` returns for its connection; a switch must answer the last one."""
        datapath = self._connections.get(name)
        if datapath is None:
            raise SwitchError(f"the switch {name} is not connected")
        requests = create(datapath)
        for request in requests:
            datapath.set_xid(request)
            request.serialize()
            self._awaited[name, request.xid] = request is requests[-1]
        # All messages in one write: the framework's queue would wake a thread for each message.
        if not datapath.send(b"".join(bytes(request.buf) for request in requests)):
            raise SwitchError(f"the switch {name} has disconnected")

    def _await_answers(self, end: float, deadline_s: float) -> None:
        waiting = {name: xid for (name, xid), is_due in self._awaited.items() if is_due}
        while waiting:
            left_s = end - time.monotonic()
            if left_s <= 0:
                late = ", ".join(waiting)
                raise SwitchError(f"no answer within {deadline_s:g} s from the switch {late}")
            try:
                name, xid, problem = self._news.get(timeout=min(left_s, _POLL_S))
            except hub.QueueEmpty:
                self.hang_up()
                continue
            concerns = name in waiting if xid is None else (name, xid) in self._awaited
            if problem is not None and concerns:
                raise SwitchError(problem)
            if name in waiting and waiting[name] == xid:
                del waiting[name]


def _barriered(messages: Sequence[Message]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that creates these rules' messages, followed by a barrier, for a connection."""
    return lambda datapath: [
        *(flow_mod(datapath, message) for message in messages),
        datapath.ofproto_parser.OFPBarrierRequest(datapath),
    ]


def _port_request(datapath: Any) -> Sequence[Any]:
    """Create the request for the counters of all ports."""
    return [datapath.ofproto_parser.OFPPortStatsRequest(datapath, 0, datapath.ofproto.OFPP_ANY)]


def flow_mod(datapath: Any, message: Message) -> Any:
    """Return a message as the framework's OFPFlowMod for this connection."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    if isinstance(message, Install):
        rule = message.rule
        more = []
        if rule.channels:
            actions = [_channel_of_packet(parser, rule)]
            more.append(parser.OFPInstructionGotoTable(_OF_CHANNELS))
        else:
            fields = {"eth_dst": rule.eth_dst, "eth_src": rule.eth_src}
            actions = [parser.OFPActionSetField(**{name: mac}) for name, mac in fields.items() if mac is not None]
            actions.append(parser.OFPActionOutput(rule.out_port))
        return parser.OFPFlowMod(
            datapath,
            command=ofproto.OFPFC_ADD,
            cookie=rule.cookie,
            table_id=_table_of(rule.match),
            priority=rule.priority,
            match=parser.OFPMatch(**match_fields(rule.match)),
            instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions), *more],
        )
    return parser.OFPFlowMod(
        datapath,
        command=ofproto.OFPFC_DELETE,
        table_id=_table_of(message.match) if message.mask == ALL_BITS else ofproto.OFPTT_ALL,
        cookie=message.cookie,
        cookie_mask=message.mask,
        out_port=ofproto.OFPP_ANY,
        out_group=ofproto.OFPG_ANY,
        match=parser.OFPMatch(**match_fields(message.match)),
    )


def _table_of(match: Match) -> int:
    """Return the table that has the rules with such a match."""
    return 0 if match.channel is None else _OF_CHANNELS


def _channel_of_packet(parser: Any, rule: Rule) -> Any:
    """Return the action that gives a packet its channel, Open vSwitch's `multipath`: the hash depends on the addresses
    and the ports of TCP and UDP alone, is the same in both directions, and has no random part, unlike a group's."""
    return parser.NXActionMultipath(
        fields=_SYMMETRIC_L3L4_UDP,
        basis=rule.seed & 0xFFFF,
        algorithm=_MODULO_N,
        max_link=rule.channels - 1,
        arg=0,
        ofs_nbits=31,  # the first bit 0, and 32 bits
        dst=_CHANNEL,
    )


def match_fields(match: Match) -> Mapping[str, Any]:
    """Return the fields of an OFPMatch; empty for a match of everything."""
    fields: dict[str, Any] = {"in_port": match.in_port, "eth_dst": match.eth_dst}
    for field, network in (("ipv4_src", match.src), ("ipv4_dst", match.dst)):
        if network is not None:
            fields["eth_type"] = _IPV4
            masked = tuple(IPv4Network(network).with_netmask.split("/"))
            fields[field] = masked if "/" in network else network
    if match.channel is not None:
        fields[_CHANNEL] = match.channel
    if match.tcp_src is not None:
        fields |= {"eth_type": _IPV4, "ip_proto": _TCP, "tcp_src": match.tcp_src}
    return {name: value for name, value in fields.items() if value is not None}
