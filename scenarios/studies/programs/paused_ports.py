"""The VM's command: two switches that a WAN link joins, whose ports are paused when queues are long, and what then
passes to two receivers.

    python -m scenarios.studies.programs.paused_ports CASE

CASE is a `Case` as JSON. All senders but the last send to the first receiver and the last, a bystander, to the second,
by TCP or in UDP datagrams as fast as their ports let them. It prints a JSON object, as the fields of `Passed`.

Queues, rates and delays are the kernel's, but it knows no pause frames. This program reads the queues every `POLL_NS`,
and a pause is a rate of 1 byte/s, which it gives to the port that sends once a frame would have arrived there; that
port may send one frame more. A queue's bytes are not counted by the link that they came over: here only the WAN leads
to the receivers' ports, and what waits for the WAN pauses all senders.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from socket import if_nametoindex

from hosts.agent.clock import now_ns, sleep_until
from scenarios.vm.hosts import HostLink, batch, set_up
from topologies.linux import enter_network, make_timers_exact
from topologies.shaping.classes import QUANTUM_BYTES, QUEUE_PACKETS, VIRTUAL_LATE_S
from topologies.shaping.frames import MTU_BYTES
from topologies.shaping.netlink import RtNetlink

POLL_NS = 50_000
_LEAD_NS = 20_000_000  # before the first frame
_PORT = 5201
_DATAGRAM = MTU_BYTES - 28  # of IPv4 and UDP
_SEND_BUFFER = 100_000  # so that a sender waits for its port
_TCP_BUFFERS = "4096 131072 67108864"  # as large as any window here
_FIRST = 1  # the minor number of each port's class


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is sent over which ports: senders with ports of `host_bps`, and the WAN's rate and one-way delay.

    `queue` is that of the receivers' ports, in tc's syntax. Without `xoff_bytes`, no port is paused. `near` are the two
    thresholds of what waits for the WAN, which pause the senders. Bytes are counted for `bins` times `bin_ns`.
    """

    over_tcp: bool
    senders: int
    host_bps: int
    wan_bps: int
    delay_ns: int
    queue: str
    xoff_bytes: int | None
    xon_bytes: int
    near: tuple[int, int]
    bins: int
    bin_ns: int


@dataclass(frozen=True, kw_only=True)
class Passed:
    """The bytes of frames that each receiver's port has sent in each bin, the most that waited in the first one, and
    the frames that any queue has dropped."""

    receivers: list[list[int]]
    peak_bytes: int
    dropped: int


class _Port:
    """An HTB port of a switch or, with its number, of a host; raises OSError."""

    def __init__(self, device: str, rate_bps: int, queue: str, host: int | None = None) -> None:
        self._rate = rate_bps // 8
        burst = max(1, round(self._rate * VIRTUAL_LATE_S))
        limits = f"rate {rate_bps}bit ceil {rate_bps}bit burst {burst} cburst {burst} quantum {QUANTUM_BYTES}"
        lines = [
            f"qdisc add dev {device} root handle 1: htb default {_FIRST} direct_qlen {QUEUE_PACKETS}",
            f"class add dev {device} parent 1: classid 1:{_FIRST} htb {limits}",
            f"qdisc add dev {device} parent 1:{_FIRST} {queue}",
        ]
        batch("tc", lines, "" if host is None else f"h{host}")
        with _inside(host):
            self._kernel, self._class = RtNetlink(), (if_nametoindex(device), _FIRST)

    def queue(self) -> tuple[int, int]:
        """Return the bytes of frames that the port has sent, and those that wait."""
        return self._kernel.queues(self._class[0])[self._class]

    def pause(self, is_paused: bool) -> None:
        """Stop the port, or let it send."""
        rate = 1 if is_paused else self._rate
        self._kernel.change_rates(
            {self._class: rate}, burst_ns=round(VIRTUAL_LATE_S * 1e9), quantum_bytes=QUANTUM_BYTES
        )


class _Threshold:
    """The thresholds of a queue, which pause ports some time later."""

    def __init__(self, xoff_bytes: int, xon_bytes: int, delay_ns: int, ports: Sequence[_Port]) -> None:
        self._xoff_bytes, self._xon_bytes, self._delay_ns, self._ports = xoff_bytes, xon_bytes, delay_ns, ports
        self._has_paused, self._under_way = False, list[tuple[int, bool]]()

    def look(self, instant_ns: int, waiting_bytes: int) -> None:
        """Pause the ports, or let them send, if the message arrives by now; send one if a threshold is passed."""
        if waiting_bytes >= self._xoff_bytes if not self._has_paused else waiting_bytes <= self._xon_bytes:
            self._has_paused = not self._has_paused
            self._under_way.append((instant_ns + self._delay_ns, self._has_paused))
        while self._under_way and self._under_way[0][0] <= instant_ns:
            _, is_paused = self._under_way.pop(0)
            for port in self._ports:
                port.pause(is_paused)


@contextmanager
def _inside(host: int | None) -> Iterator[None]:
    """Move this thread into the network of a host, if there is one, until the context ends."""
    if host is None:
        yield
        return
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path(f"/run/netns/h{host}").open("rb") as there:
        enter_network(there.fileno())
        try:
            yield
        finally:
            enter_network(home.fileno())


def _join(case: Case) -> tuple[list[_Port], _Port, list[_Port]]:
    """Make the hosts, the switches and the WAN; return the ports of the senders, of the WAN and to the receivers."""
    receivers = range(case.senders, case.senders + 2)
    hosts = range(receivers.stop)
    set_up(len(hosts), HostLink())  # all on one switch, from which the receivers are moved to another
    # The WAN's delay is that of a switch in its middle, behind the queue of the near port.
    lines = [f"link add {name} type bridge" for name in ("far", "middle")]
    lines += ["link add wan type veth peer name wan-in", "link add wan-out type veth peer name landing"]
    masters = {"wan": "switch", "wan-in": "middle", "wan-out": "middle", "landing": "far"}
    masters |= {f"port{host}": "far" if host in receivers else "switch" for host in hosts}
    batch("ip", lines + [f"link set {name} master {switch} mtu {MTU_BYTES} up" for name, switch in masters.items()])
    batch("ip", [f"link set {switch} mtu {MTU_BYTES} up" for switch in ("switch", "middle", "far")])
    for host in hosts:
        batch("ip", [f"link set eth0 mtu {MTU_BYTES}"], f"h{host}")
        with _inside(host):
            for name in ("tcp_rmem", "tcp_wmem"):
                Path("/proc/sys/net/ipv4", name).write_text(_TCP_BUFFERS)
    delay = f"root netem limit {QUEUE_PACKETS} delay {case.delay_ns / 1e6:.6f}ms"
    batch("tc", [f"qdisc add dev {name} {delay}" for name in ("wan-in", "wan-out")])
    endless = f"pfifo limit {QUEUE_PACKETS}"
    # After a netem with any delay TCP and UDP take a packet as sent: else it would count against their buffers until it
    # has arrived, as all hosts are in one kernel.
    return (
        [_Port("eth0", case.host_bps, endless, host) for host in hosts[: case.senders]],
        _Port("wan", case.wan_bps, f"netem limit {QUEUE_PACKETS} delay 1us"),
        [_Port(f"port{host}", case.host_bps, case.queue) for host in receivers],
    )


def _connect(case: Case) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return a socket of each sender, connected to its receiver, and those of the receivers."""
    kind = socket.SOCK_STREAM if case.over_tcp else socket.SOCK_DGRAM
    bound, senders, received = dict[int, socket.socket](), list[socket.socket](), list[socket.socket]()
    for host in (case.senders, case.senders + 1):
        with _inside(host):
            bound[host] = socket.socket(socket.AF_INET, kind)
        bound[host].bind(("", _PORT))
        if case.over_tcp:
            bound[host].listen(case.senders)
    for host in range(case.senders):
        with _inside(host):
            sender = socket.socket(socket.AF_INET, kind)
        to = bound[case.senders + (host == case.senders - 1)]
        if case.over_tcp:
            sender.connect((f"h{case.senders + (host == case.senders - 1)}", _PORT))
            received.append(to.accept()[0])
        else:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            sender.connect((f"h{case.senders + (host == case.senders - 1)}", _PORT))
            to.sendto(b"", (f"h{host}", _PORT))  # the switches learn where the receiver is
            received.append(to)  # nobody reads it: what does not fit is thrown away
        senders.append(sender)
    return senders, received


def _send(sender: socket.socket, data: bytes, start_ns: int) -> None:
    make_timers_exact()
    sleep_until(start_ns)
    while True:
        sender.sendall(data)


def _drain(received: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    while received.recv_into(buffer, len(buffer), socket.MSG_TRUNC):  # the kernel drops the payload, without a copy
        pass


def measure(case: Case) -> Passed:
    """Make the network and send; return what has passed. Raises OSError or CalledProcessError."""
    near, wan, (first, second) = _join(case)
    senders, received = _connect(case)
    start_ns = now_ns() + _LEAD_NS
    data = bytes(1_000_000 if case.over_tcp else _DATAGRAM)
    for sender in senders:
        threading.Thread(target=_send, args=(sender, data, start_ns), daemon=True).start()
    for connection in received if case.over_tcp else ():
        threading.Thread(target=_drain, args=(connection,), daemon=True).start()
    at_receivers = at_senders = None
    if case.xoff_bytes is not None:
        at_receivers = _Threshold(case.xoff_bytes, case.xon_bytes, case.delay_ns, [wan])
        at_senders = _Threshold(*case.near, 0, near)
    make_timers_exact()
    sent, peak = list[tuple[int, int]](), 0
    for elapsed_ns in range(0, case.bins * case.bin_ns + 1, POLL_NS):
        sleep_until(start_ns + elapsed_ns)
        passed, waiting = first.queue()
        peak = max(peak, waiting)
        if at_receivers and at_senders:
            at_receivers.look(elapsed_ns, waiting)
            at_senders.look(elapsed_ns, wan.queue()[1])
        if elapsed_ns % case.bin_ns == 0:
            sent.append((passed, second.queue()[0]))
    by_port = zip(*sent, strict=True)
    with closing(RtNetlink()) as kernel:
        dropped = sum(one.drops for one in kernel.qdiscs() if one.parent is not None)  # a root counts them, too
    bins = [[after - before for before, after in pairwise(one)] for one in by_port]
    return Passed(receivers=bins, peak_bytes=peak, dropped=dropped)


def main() -> None:
    """Print what has passed in the case that the command line names."""
    print(json.dumps(asdict(measure(Case(**json.loads(sys.argv[1]))))), flush=True)
    os._exit(0)  # senders send on


if __name__ == "__main__":
    main()
