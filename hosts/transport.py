"""How the GPUs' TCP is set up: windows, buffers and routes, for one network namespace at a time.

A flow starts at line rate, as on an RDMA fabric, when nothing of TCP can hold it back: the congestion window (by a
route to the successor with an initial window of its own), the receiver's window (by buffers that are large from the
start, for the first window of a Linux receiver is half its buffer) and the sender's buffer. None of them costs memory
until it is used, and the queues of a ring hold about two chunks a GPU at most, since a chunk is in one place at a
time. The choice is pure; what applies it is at the end and asks for the privileges of root in the namespace.
"""

import errno
import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_WINDOW_BYTES = 1 << 30  # the largest that TCP can announce (RFC 7323), near enough
MAX_BUFFER_BYTES = (1 << 31) - 1
_HEADERS_BYTES = 52  # IP 20, TCP 20 and its timestamps 12
_SIOCGIFMTU = 0x8921
_PLENTY_PAGES = 1 << 30
_SPARE = 5, 4  # memory that a buffer is charged for bytes queued, at most, as a fraction


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The `[transport]` settings. With `line_rate` flows start at line rate; without, as TCP does by default.

    `congestion_control` is the name of an algorithm that the kernel has; `slow_start_after_idle` lets TCP forget its
    window between collectives; `mtu_bytes` is what the GPUs' interfaces must have.
    """

    line_rate: bool = True
    congestion_control: str = "cubic"
    slow_start_after_idle: bool = False
    mtu_bytes: int = 9000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What TCP needs for a collective: the window of a flow and its buffers, in bytes, and the window in segments."""

    window_bytes: int
    initial_segments: int
    receive_buffer_bytes: int
    send_buffer_bytes: int


def limits(transport: Transport, *, ranks: int, message_bytes: int) -> Limits:
    """The limits for collectives in which a GPU sends up to ranks - 1 messages of `message_bytes` to its successor.

    All of them may be under way at once, so the window has room for as many as TCP allows. The sender's buffer must
    hold all that its GPU has received and not sent yet, or GPUs that wait to send and do not receive would block each
    other: raises ValueError where no buffer is that large.
    """
    most = (ranks - 1) * message_bytes
    send = most * _SPARE[0] // _SPARE[1] + (1 << 20)
    if send > MAX_BUFFER_BYTES:
        raise ValueError(
            f"{ranks} GPUs with chunks of {message_bytes} bytes would queue {most} bytes at one of them; "
            f"a Linux socket takes {MAX_BUFFER_BYTES * _SPARE[1] // _SPARE[0]}"
        )
    window = min(most + (1 << 20), MAX_WINDOW_BYTES)
    return Limits(
        window_bytes=window,
        initial_segments=-(-window // (transport.mtu_bytes - _HEADERS_BYTES)),
        receive_buffer_bytes=min(2 * window + (1 << 20), MAX_BUFFER_BYTES),
        send_buffer_bytes=send,
    )


def sysctls(transport: Transport, limit: Limits) -> Mapping[str, str]:
    """What a GPU's namespace is set to, by the path below /proc/sys."""
    # Linux's own middle value where TCP is to start as it does by default; the buffer then grows by itself.
    receive = limit.receive_buffer_bytes if transport.line_rate else 131072
    return {
        "net/ipv4/tcp_rmem": f"4096 {receive} {limit.receive_buffer_bytes}",
        "net/ipv4/tcp_wmem": f"4096 {limit.send_buffer_bytes} {limit.send_buffer_bytes}",
        "net/ipv4/tcp_slow_start_after_idle": "1" if transport.slow_start_after_idle else "0",
        "net/ipv4/tcp_no_metrics_save": "1",  # nothing of one ring's connections may show in the next ring's
    }


_NEWROUTE, _DELROUTE, _ERROR = 24, 25, 2
_REQUEST, _ACK, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_DST, _OIF, _METRICS, _INITCWND = 1, 4, 8, 11
_MAIN_TABLE, _STATIC, _LINK_SCOPE, _UNICAST = 254, 4, 253, 1


def route_request(*, address: str, interface_index: int, initial_segments: int | None) -> bytes:
    """The netlink message that sets a route to this one address over an interface, or with None takes it away."""
    metrics = b"" if initial_segments is None else _attribute(_INITCWND, struct.pack("=I", initial_segments))
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, _MAIN_TABLE, _STATIC, _LINK_SCOPE, _UNICAST, 0)
    body += _attribute(_DST, socket.inet_aton(address)) + _attribute(_OIF, struct.pack("=I", interface_index))
    kind, flags = _DELROUTE, _REQUEST | _ACK
    if metrics:
        body += _attribute(_METRICS, metrics)
        kind, flags = _NEWROUTE, _REQUEST | _ACK | _CREATE | _REPLACE
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


# --- effects, each in the namespace of the process that calls -------------------------------------------------------


def set_sysctls(values: Mapping[str, str]) -> None:
    """Set these; raises OSError."""
    for name, value in values.items():
        Path("/proc/sys", name).write_text(value)


def change_route(*, address: str, interface: str, initial_segments: int | None) -> None:
    """Set the route to an address, with an initial window; None takes it away. Raises OSError where that fails."""
    request = route_request(
        address=address, interface_index=socket.if_nametoindex(interface), initial_segments=initial_segments
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as netlink:
        netlink.sendto(request, (0, 0))
        reply = netlink.recv(4096)
    _, kind, *_, error = struct.unpack_from("=IHHIIi", reply)
    if kind != _ERROR or error:
        raise OSError(-error, f"the route to {address} over {interface} could not be changed")


def windows(connection: socket.socket) -> tuple[int, int]:
    """The congestion window in bytes and the window that the other end announces, in bytes (TCP_INFO)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    segment_bytes, segments = struct.unpack_from("=I", info, 16)[0], struct.unpack_from("=I", info, 80)[0]
    return segment_bytes * segments, struct.unpack_from("=I", info, 228)[0]


def retransmitted_bytes(connection: socket.socket) -> int:
    """The payload bytes that this end has sent more than once (TCP_INFO)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    found: int = struct.unpack_from("=Q", info, 208)[0]
    return found


def check_mtu(interface: str, *, mtu_bytes: int) -> None:
    """Raise OSError unless an interface has this MTU."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        reply = fcntl.ioctl(any_socket, _SIOCGIFMTU, struct.pack("16si12x", interface.encode(), 0))
    found = struct.unpack_from("16si", reply)[1]
    if found != mtu_bytes:
        raise OSError(errno.EINVAL, f"{interface} has an MTU of {found} bytes, not {mtu_bytes}")


def lift_memory_limit() -> None:
    """Let TCP use all memory there is, in every namespace: below its limits it would shrink windows."""
    Path("/proc/sys/net/ipv4/tcp_mem").write_text(f"{_PLENTY_PAGES} {_PLENTY_PAGES} {_PLENTY_PAGES}")
