"""The sockets of users' programs: buffers that grow as Linux's usual ones do, up to what the paths need.

The agents' sockets hold whole messages, so that no agent waits for another. A program instead sees what it would see on
a host of its own: `send` returns once the data fits the socket's buffer, and waits for the network otherwise.
"""

import errno
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv4Network
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from controller.routing.switch_paths import FabricPaths
from hosts.agent.transport import MAX_BUFFER_BYTES, MAX_WINDOW_BYTES, Transport, lift_memory_limit, rto_min_s
from scenarios.policies.conditions import Conditions
from scenarios.spec.scenario import Scenario
from scenarios.testbed.testbed import Testbed
from scenarios.vm.openvswitch import prioritize_handlers
from topologies.fabric.fabric import Fabric
from topologies.fabric.ipv6 import network_of
from topologies.fabric.ports import links_in_grain
from topologies.mininet_network import inside, netlink_of
from topologies.shaping.frames import MTU_BYTES
from topologies.shaping.ipv6 import Ipv6Netlink

Floats = npt.NDArray[np.float64]

# The usual values of Linux, for machines with at least 128 MB (tcp_init in net/ipv4/tcp.c).
_RECEIVE, _SEND = (4096, 131_072, 6_291_456), (4096, 16_384, 4_194_304)
_ROOM = 1.25  # for the segments that are queued on the way, and for the memory that they take beside their payload
_SEGMENT_BYTES = 8948  # TCP's payload of a full packet
_INITIAL_SEGMENTS = 10  # Linux's initial window (RFC 6928)
# The kernel computes a sender's buffer in 32 bits, from its window and from the packets that may overtake one
# (`tcp_sndbuf_expand`): 2 or, with BBR, 3 times 16,640 bytes for each. With more packets no buffer grows: a connection
# of 625 MB in flight kept the initial 16 kB, and carried 62 kB a round trip.
_MOST_PACKETS = 32_768
_LEAST_REORDERED = 64  # packets
_USUAL_REORDERED = 3  # Linux's default
_REAL_DELAY_S = 0.1
_MAX_ROWS = 4096  # of conditions that change over time


@dataclass(frozen=True, kw_only=True)
class SocketLimits:
    """The buffers of TCP sockets, each as (least, initial, greatest) bytes, and how many packets may overtake one
    before TCP takes it for lost."""

    receive: tuple[int, int, int]
    send: tuple[int, int, int]
    reordered_packets: int


@dataclass(frozen=True, kw_only=True)
class Route:
    """TCP's settings of a host's route: the congestion window with which connections begin, in segments, the lower
    bound of their timeout, and their congestion control; None for those of the host."""

    initial_segments: int
    timeout_s: float | None
    congestion_control: str | None


def socket_limits(held_bytes: float, transport: Transport, *, paths_change: bool = False) -> SocketLimits:
    """Return the limits for paths that hold up to `held_bytes`, a path's rate times its round trip.

    With `line_rate`, a receiver begins with the buffer of one whose path has been filled: it announces half of that. A
    sender's buffer grows to twice its congestion window, and to twice the packets that may overtake one, which are many
    only if `paths_change` during connections. It begins as large as it may become if its window is of more than
    `_MOST_PACKETS`.
    """
    window = _window_bytes(held_bytes)
    receive, send = (min(max(usual[2], 2 * round(_ROOM * window)), MAX_BUFFER_BYTES) for usual in (_RECEIVE, _SEND))
    first = min(max(_RECEIVE[1], 2 * window if transport.line_rate else 0), receive)
    first_send = send if initial_segments(held_bytes, transport) > _MOST_PACKETS else _SEND[1]
    reordered = min(max(2 * window // _SEGMENT_BYTES, _LEAST_REORDERED), _MOST_PACKETS)
    return SocketLimits(
        receive=(_RECEIVE[0], first, receive),
        send=(_SEND[0], first_send, send),
        reordered_packets=reordered if paths_change else _USUAL_REORDERED,
    )


def initial_segments(held_bytes: float, transport: Transport) -> int:
    """Return the congestion window, in segments, with which connections over such paths begin."""
    return max(_INITIAL_SEGMENTS, -(-_window_bytes(held_bytes) // _SEGMENT_BYTES) if transport.line_rate else 0)


def _window_bytes(held_bytes: float) -> int:
    return round(min(_ROOM * held_bytes, MAX_WINDOW_BYTES))


def held_bytes(fabric: Fabric, delays_s: Floats, rates_bps: Floats) -> Floats:
    """Return the most bytes that a path from a GPU of one site to one of another, or of the same, holds in a round
    trip, [sites, sites]; 0 without a path. Delays and rates are those of the logical links, [links] s and bit/s."""
    site = {gpu.name: gpu.site for gpu in fabric.gpus}
    count = len(fabric.gpus_per_site)
    way_s, way_bps = np.zeros((count, count)), np.zeros((count, count))
    ends_s, ends_bps = np.zeros((2, count)), np.zeros((2, count))  # towards border routers, and from them
    for link in fabric.links:
        if link.kind == "wan":
            continue
        if link.kind == "intra":
            most_s, most_bps, index = way_s, way_bps, (site[link.src], site[link.dst])
        else:
            most_s, most_bps = ends_s, ends_bps
            index = (0, site[link.src]) if link.kind == "to_br" else (1, site[link.dst])
        most_s[index] = max(most_s[index], delays_s[link.index])
        most_bps[index] = max(most_bps[index], rates_bps[link.index])
    for path in fabric.paths:
        (src, dst), links = (path.src_site, path.dst_site), list(path.links)
        slowest_bps = min(ends_bps[0, src], ends_bps[1, dst], rates_bps[links].min())
        way_s[src, dst] = max(way_s[src, dst], ends_s[0, src] + delays_s[links].sum() + ends_s[1, dst])
        way_bps[src, dst] = max(way_bps[src, dst], slowest_bps)
    held: Floats = way_bps * (way_s + way_s.T) / 8
    return held


def rate_bounds_bps(config: Scenario, conditions: Conditions) -> tuple[Floats, Floats]:
    """Return the lowest and the highest rate of every link or port during a run of at most `program.deadline`, both
    [links] bit/s."""
    every_s = config.conditions.every_s
    rows = 1 if every_s is None else min(_MAX_ROWS, 1 + int(config.program.deadline_s / every_s))
    if conditions.limit is not None:
        rows = min(rows, conditions.limit)
    rates_bps = conditions.drawn.rates_bps(0, rows)
    return rates_bps.min(axis=0), rates_bps.max(axis=0)


def set_up_sockets(
    testbed: Testbed, rates_bps: Floats, *, lowest_bps: Floats | None = None, paths_change: bool = False
) -> None:
    """Apply [transport] and `socket_limits` to the GPUs' hosts, for these (highest) rates of links or ports (bit/s),
    and have the switches lose no packet of a new flow. Raises OSError.

    In fifo queues that lose nothing, TCP's timeout is longer than the time in which a link of the lowest rate passes
    the full buffers of a connection from each rank to each other. In fair queues little waits.
    """
    fabric, wanted = testbed.fabric, testbed.config.transport
    carried_bps = testbed.platform.scale.rates_bps(links_in_grain(fabric).slowest_bps(rates_bps))
    held = held_bytes(fabric, testbed.router.delays_s, carried_bps)
    if testbed.platform.is_real:  # a busy machine delays packets and acknowledgements
        held = held + carried_bps.max() * _REAL_DELAY_S / 8
    limits = socket_limits(float(held.max()), wanted, paths_change=paths_change)
    timeout_s = None
    if testbed.loses_nothing and not testbed.is_lossless and lowest_bps is not None:
        ranks = len(testbed.config.program.ranks_of(fabric.spec.gpus_per_site))
        slowest_bps = float(testbed.platform.scale.rates_bps(lowest_bps[lowest_bps > 1]).min())
        timeout_s = rto_min_s(wanted, wait_s=8 * ranks * (ranks - 1) * limits.send[2] / slowest_bps)
    lift_memory_limit()
    if testbed.platform.own_openvswitch:  # the VM: elsewhere these settings are the machine's
        prioritize_handlers()
        _allow_for_all(limits)
    networks = [IPv4Network(network) for network in FabricPaths(fabric).networks]
    for gpu, pid in zip(fabric.gpus, testbed.network.host_pids, strict=True):
        with inside(pid):
            for name, text in _sysctls(wanted, limits, is_lossless=testbed.is_lossless).items():
                Path("/proc/sys/net/ipv4", name).write_text(text)
        timeouts_s = [timeout for timeout in (timeout_s, testbed.rto_min_s) if timeout is not None]
        to_sites = [
            Route(
                initial_segments=initial_segments(held[gpu.site, site], wanted),
                timeout_s=max(timeouts_s, default=None),
                congestion_control=wanted.congestion_control.of_route(crosses=site != gpu.site),
            )
            for site in range(len(networks))
        ]
        routes = dict(zip(networks, to_sites, strict=True))
        if testbed.config.jobs:  # whose agents have made routes to single hosts
            others = (other for other in fabric.gpus if other is not gpu)
            routes |= {IPv4Network(other.ip): to_sites[other.site] for other in others}
        _set_routes(gpu.interface, pid, routes)
        if testbed.platform.own_openvswitch:  # elsewhere the kernel is the machine's
            _set_up_ipv6(gpu.ip, pid, routes)


def _set_up_ipv6(ipv4: str, pid: int, routes: Mapping[IPv4Network, Route]) -> None:
    """Give a host IPv6, with the same settings of routes as over IPv4; raises OSError."""
    with inside(pid), closing(Ipv6Netlink()) as netlink:
        if not netlink.has_tunnel:  # a prompt runs one program after another
            netlink.add_tunnel(ipv4, mtu_bytes=MTU_BYTES)
        for network, route in routes.items():
            netlink.set_route6(
                network_of(network),
                initial_segments=route.initial_segments,
                rto_min_ms=None if route.timeout_s is None else ceil(route.timeout_s * 1e3),
                congestion_control=route.congestion_control,
            )


def _set_routes(interface: str, pid: int, routes: Mapping[IPv4Network, Route]) -> None:
    """Set the routes of a host to each network; raises OSError.

    A host whose cable is down has no routes; they are set before its next program once the cable is up.
    """
    with netlink_of(pid) as netlink:
        for network, route in routes.items():
            try:
                netlink.set_route(
                    interface,
                    str(network.network_address),
                    initial_segments=route.initial_segments,
                    rto_min_s=route.timeout_s,
                    congestion_control=route.congestion_control,
                    prefix_length=network.prefixlen,
                )
            except OSError as error:
                if error.errno != errno.ENETDOWN:
                    raise


def _allow_for_all(limits: SocketLimits) -> None:
    """Allow programs what only root may do by default, on all hosts: large buffers (SO_RCVBUF, SO_SNDBUF), and every
    congestion control that the kernel has."""
    Path("/proc/sys/net/core/rmem_max").write_text(str(limits.receive[2]))
    Path("/proc/sys/net/core/wmem_max").write_text(str(limits.send[2]))
    controls = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").write_text(controls)


def _sysctls(transport: Transport, limits: SocketLimits, *, is_lossless: bool) -> dict[str, str]:
    """Return the settings of a host below /proc/sys/net/ipv4."""
    values: dict[str, object] = {
        "tcp_rmem": " ".join(map(str, limits.receive)),
        "tcp_wmem": " ".join(map(str, limits.send)),
        "tcp_slow_start_after_idle": int(transport.slow_start_after_idle),
        "tcp_congestion_control": transport.congestion_control.intra,
        "tcp_no_metrics_save": 1,  # old connections must not influence new ones
        # TCP would hold a short message back until those before it are out of the machine (`tcp_should_autocork`),
        # which takes a network card some microseconds. Here packets are in one kernel until they arrive: a one-byte
        # answer behind 20 MB was late by a round trip.
        "tcp_autocorking": 0,
        "ping_group_range": "0 2147483647",
    }
    if is_lossless:
        values["tcp_reordering"] = limits.reordered_packets
    if transport.all_use_ecn:
        values["tcp_ecn"] = 1
    if transport.rto_min_s != Transport.rto_min_s:
        values["tcp_rto_min_us"] = round(transport.rto_min_s * 1e6)
    return {name: str(value) for name, value in values.items()}
