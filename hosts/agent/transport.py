"""TCP settings of a GPU's network namespace: windows and buffers.

A flow starts at line rate, as on an RDMA fabric, if none of these limits it: the congestion window (a route to the
receiver has an initial window of its own, see `RtNetlink.set_route`), the receiver's window (the first window of a
Linux receiver is half its buffer, so the buffer is large from the start) and the sender's buffer. None of them takes
memory until it is used: a message is in one place at a time, so the queues of a ring hold about two chunks a GPU at
most. The functions that apply the settings are at the end, and need root in the namespace.
"""

import errno
import fcntl
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_WINDOW_BYTES = 1 << 30  # the largest that TCP can announce (RFC 7323), near enough
MAX_BUFFER_BYTES = (1 << 31) - 1
_HEADERS_BYTES = 52  # IP 20, TCP 20 and its timestamps 12
_SIOCGIFMTU = 0x8921
_SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000  # Python 3.11 has no names for them
_PLENTY_PAGES = 1 << 30
_SPARE = 5, 4  # memory that a buffer is charged for bytes queued, at most, as a fraction
_SPARE_BYTES = 1 << 20
_SEGMENTS, _SEGMENT_S = 768, 0.7e-6  # of a message, and the least time of one
_SEGMENT_MEMORY_BYTES = 700  # that a queued segment takes beside its payload
_OVERTAKING_PACKETS = 1 << 17  # fill the largest window, and are fewer bytes than half of all sequence numbers
_ROOM_BYTES = 500  # the headers that TCP leaves room for in a segment, and less than a packet


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The `[transport]` settings. With `line_rate` flows start at line rate; without, as TCP does by default.

    `congestion_control` is the name of an algorithm that the kernel has; `slow_start_after_idle` lets TCP forget its
    window between collectives; `mtu_bytes` is what the GPUs' interfaces must have. `queue` is what flows wait in where
    they share a link: "fair", each gets an equal share, or "fifo", in the order of arrival. A fifo queue holds
    `buffer_bytes` of frames, whatever comes if None, and marks frames that find more than `ecn_threshold_bytes` in it.
    A WAN link loses the share `wan_loss` of all frames. What is not acknowledged is sent again after `rto_min_s` and a
    round trip at the earliest (RFC 6298, with Linux's lower bound).
    """

    line_rate: bool = True
    congestion_control: str = "cubic"
    slow_start_after_idle: bool = False
    mtu_bytes: int = 9000
    queue: str = "fair"
    buffer_bytes: int | None = None
    ecn_threshold_bytes: int | None = None
    wan_loss: float = 0.0
    rto_min_s: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What TCP needs for a collective: the window of a flow and its buffers, in bytes, and the window in segments."""

    window_bytes: int
    initial_segments: int
    receive_buffer_bytes: int
    send_buffer_bytes: int


def limits(transport: Transport, *, flow_bytes: int, flow_messages: int = 1) -> Limits:
    """The limits for collectives in which one connection carries up to `flow_bytes` in up to `flow_messages`.

    All of them may be under way at once, so the window has room for as many as TCP allows, and for two short segments
    of each message: its label and its end. The sender's buffer must hold all that its GPU has received and not sent
    yet, or GPUs that wait to send and do not receive would block each other: raises ValueError where none is so large.
    """
    send = flow_bytes * _SPARE[0] // _SPARE[1] + _SPARE_BYTES
    if send > MAX_BUFFER_BYTES:
        raise ValueError(
            f"a collective would queue {flow_bytes} bytes on one connection; "
            f"a Linux socket takes {MAX_BUFFER_BYTES * _SPARE[1] // _SPARE[0]}"
        )
    window = min(flow_bytes + _SPARE_BYTES, MAX_WINDOW_BYTES)
    full_bytes = transport.mtu_bytes - _HEADERS_BYTES
    return Limits(
        window_bytes=window,
        initial_segments=-(-window // full_bytes) + max(0, 2 * flow_messages - _SPARE_BYTES // full_bytes),
        receive_buffer_bytes=min(2 * window + (1 << 20), MAX_BUFFER_BYTES),
        send_buffer_bytes=send,
    )


@dataclass(frozen=True, kw_only=True)
class Windows:
    """What lets flows that share links have fair shares of all of them: each has little queued on its way.

    `segment_bytes` is the largest packet that TCP makes, with headers, the interface's `gso_ipv4_max_size`;
    `queued_bytes` is what a flow may have queued at the links that it shares, as memory, `tcp_limit_output_bytes`.
    """

    segment_bytes: int
    queued_bytes: int


def windows_of(
    *, message_bytes: int, shared_links: int, fastest_bps: float, steady: bool = True, mtu_bytes: int = 9000
) -> Windows:
    """The windows for messages of this size at most, over at most `shared_links` links of a way that others use, too.

    Two segments are queued on a way, or three where four or more links are shared: any could be the bottleneck, and
    must not run empty.

    Where rates are not `steady`, segments are full packets and two are queued, over however many links: what waits
    behind a link as that gets slower has passed it at the old rate.
    """
    full = frame_segment_bytes(mtu_bytes)
    segment = (
        segment_bytes(message_bytes=message_bytes, fastest_bps=fastest_bps, mtu_bytes=mtu_bytes) if steady else full
    )
    segments = 2 if shared_links <= 3 or not steady else 3
    # One segment more is sent while less than the limit is queued, so it is between the two numbers of segments.
    queued = (segments - 0.6) * (segment - _ROOM_BYTES + _SEGMENT_MEMORY_BYTES)
    return Windows(segment_bytes=segment, queued_bytes=round(queued))


def segment_bytes(*, message_bytes: int, fastest_bps: float, mtu_bytes: int = 9000) -> int:
    """The `Windows.segment_bytes` of a connection whose largest message has so many bytes.

    A segment is 1/768 of a message and takes about 0.7 us or more at the fastest link, and is 1 to 7 full packets: the
    fewer bytes of a message wait on the way, the fairer the shares, but HTB cuts a segment's time to whole ns. It does
    not depend on what other connections carry, so a job takes the time that it takes alone while nothing overlaps.
    """
    full_bytes = mtu_bytes - _HEADERS_BYTES
    wanted = message_bytes / _SEGMENTS / full_bytes, fastest_bps / 8 * _SEGMENT_S / mtu_bytes
    return min(7, max(1, *(round(count) for count in wanted))) * full_bytes + _ROOM_BYTES


def frame_segment_bytes(mtu_bytes: int = 9000) -> int:
    """The `Windows.segment_bytes` with which every segment is one frame: a finite queue drops segments whole."""
    return mtu_bytes - _HEADERS_BYTES + _ROOM_BYTES


# --- effects, each in the network namespace of the calling process --------------------------------------------------


def set_sysctls(transport: Transport, limit: Limits) -> None:
    """Set what TCP needs for these limits; raises OSError."""
    # Linux's own middle value where TCP is to start as it does by default; the buffer then grows by itself.
    receive = limit.receive_buffer_bytes if transport.line_rate else 131072
    values = {
        "tcp_rmem": f"4096 {receive} {limit.receive_buffer_bytes}",
        "tcp_wmem": f"4096 {limit.send_buffer_bytes} {limit.send_buffer_bytes}",
        "tcp_slow_start_after_idle": "1" if transport.slow_start_after_idle else "0",
        "tcp_no_metrics_save": "1",  # nothing of old connections may show in the next ones
    }
    if transport.ecn_threshold_bytes is not None:
        values["tcp_ecn"] = "1"
    if transport.rto_min_s != Transport.rto_min_s:
        values["tcp_rto_min_us"] = str(round(transport.rto_min_s * 1e6))
    for name, value in values.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def set_queued_bytes(queued_bytes: int) -> int:
    """Set what a flow may have queued on its way (TCP small queues); returns what it was before. Raises OSError."""
    file = Path("/proc/sys/net/ipv4/tcp_limit_output_bytes")
    before = int(file.read_text())
    file.write_text(str(queued_bytes))
    return before


def allow_overtaking() -> None:
    """Have TCP take a packet for lost after a timeout alone, for new connections; raises OSError.

    As it does by default, it would send again what later packets overtake where a flow is given a shorter path.
    """
    for name, value in (
        ("tcp_recovery", 0),  # no RACK, which goes by time
        ("tcp_max_reordering", _OVERTAKING_PACKETS),  # of the next
        ("tcp_reordering", _OVERTAKING_PACKETS),
        ("tcp_early_retrans", 0),  # no probe when acknowledgements pause, as where the path gets longer
    ):
        Path("/proc/sys/net/ipv4", name).write_text(str(value))


def windows(connection: socket.socket) -> tuple[int, int]:
    """The congestion window and the window that the other end announces, in bytes."""
    info = _tcp_info(connection)
    segment_bytes, segments, announced_bytes = (struct.unpack_from("=I", info, at)[0] for at in (16, 80, 228))
    return segment_bytes * segments, announced_bytes


def retransmitted_bytes(connection: socket.socket) -> int:
    """The payload bytes that this end has sent more than once."""
    found: int = struct.unpack_from("=Q", _tcp_info(connection), 208)[0]
    return found


def allow_lending(connection: socket.socket) -> None:
    """Let MSG_ZEROCOPY send from this process's memory without a copy on a connection."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_ZEROCOPY, 1)


def completed(connection: socket.socket) -> int:
    """How many messages that MSG_ZEROCOPY sent no longer need their memory, of those not counted before."""
    count = 0
    with suppress(BlockingIOError):
        while True:
            _, ((_, _, error),), _, _ = connection.recvmsg(0, 64, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            first, last = struct.unpack_from("=II", error, 8)  # of struct sock_extended_err: info, data
            count += last - first + 1
    return count


def _tcp_info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)


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
