"""TCP settings of a GPU's network namespace: windows and buffers.

A flow starts at line rate, as on an RDMA fabric, if three limits are large enough: the congestion window (the route to
the receiver sets its initial value, see `RtNetlink.set_route`), the receiver's window (a Linux receiver first announces
half its buffer, so the buffer is large from the start) and the sender's buffer. None of them takes memory until it is
used: a message is queued at one GPU at a time, so the queues of a ring hold at most about two chunks per GPU. The
functions that apply the settings are at the end of the module, and need root in the namespace.
"""

import errno
import fcntl
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from topologies.shaping.frames import ROCE_FRAMES, TCP_FRAMES, Frames

MAX_WINDOW_BYTES = 1 << 30  # about the largest that TCP can announce (RFC 7323)
MAX_BUFFER_BYTES = (1 << 31) - 1
_HEADERS_BYTES = 52  # IP 20, TCP 20 and its timestamps 12
_SIOCGIFMTU = 0x8921
_SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000  # not in Python 3.11's socket module
_PLENTY_PAGES = 1 << 30
_SPARE = 5, 4  # a socket buffer is charged at most 5/4 of the bytes queued in it
_SPARE_BYTES = 1 << 20
_SEGMENTS, _SEGMENT_S = 768, 0.7e-6  # segments in a message, and the shortest time of one
_SEGMENT_MEMORY_BYTES = 700  # memory of a queued segment in addition to its payload
_OVERTAKING_PACKETS = 1 << 17  # these fill the largest window, and are fewer bytes than half the sequence numbers
_RTT_LOG, _ANY_RTT_LOG = 9, 30  # Linux's tcp_tso_rtt_log by default, and for round trips of any length
_WAIT_MARGIN = 1.25  # headers, labels, and segments that have left just before the first acknowledgement
_MAX_RTO_MIN_S = 100.0  # Linux's timeouts end at 120 s (TCP_RTO_MAX)
_MOST_PACKETS = 1 << 16  # of soft-RoCE, by the VM's kernel
_ROOM_BYTES = 500  # room for TCP's headers in a segment; less than a packet


TCP, VERBS = "tcp", "verbs"
"""The protocols by which agents carry collectives: TCP, and SENDs of RDMA verbs over RoCE."""
ROCE = "rxe"
"""The kind of verbs devices that the protocol VERBS uses, soft-RoCE."""


@dataclass(frozen=True, kw_only=True)
class CongestionControl:
    """The kernel's algorithms of connections within a site (`intra`) and between sites (`wan`)."""

    intra: str = "cubic"
    wan: str = "cubic"

    @property
    def is_one(self) -> bool:
        """Whether all connections have the same."""
        return self.intra == self.wan

    @property
    def words(self) -> str:
        """The algorithm in words: "cubic", or "dctcp within sites and bbr between them"."""
        return self.intra if self.is_one else f"{self.intra} within sites and {self.wan} between them"

    def of(self, *, crosses: bool) -> str:
        """Return the algorithm of a connection that crosses from one site to another, or does not."""
        return self.wan if crosses else self.intra

    def of_route(self, *, crosses: bool) -> str | None:
        """Return the algorithm that a route must name; None where it is that of the host, `intra`."""
        return self.wan if crosses and not self.is_one else None

    @property
    def heeds_marks(self) -> bool:
        """Whether some connections are sent by dctcp, which needs ECN's marks."""
        return "dctcp" in (self.intra, self.wan)


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The `[transport]` settings. With `line_rate` flows start at line rate; without it they begin in slow start, but
    receivers announce room for all from the start.

    With `slow_start_after_idle` TCP resets its window between collectives. `mtu_bytes` is the MTU that the GPUs'
    interfaces must have. `queue` is the queue of a link that flows share: "fair" gives each an equal share, "fifo"
    serves them in order of arrival. A fifo queue holds `buffer_bytes` of frames (None: unlimited) and ECN-marks frames
    that find more than `ecn_threshold_bytes` in it. A WAN link drops the fraction `wan_loss` of all frames. TCP
    retransmits after a timeout of at least `rto_min_s` plus a round trip (RFC 6298, with Linux's lower bound). Hosts
    have verbs devices of the kind `rdma`, "rxe" or "siw", if it is not None, and programs may use them. Agents carry
    collectives by `protocol`, which is TCP or VERBS.
    """

    line_rate: bool = True
    congestion_control: CongestionControl = CongestionControl()
    slow_start_after_idle: bool = False
    mtu_bytes: int = 9000
    queue: str = "fair"
    buffer_bytes: int | None = None
    ecn_threshold_bytes: int | None = None
    wan_loss: float = 0.0
    rto_min_s: float = 0.2
    rdma: str | None = None
    protocol: str = TCP

    @property
    def frames(self) -> Frames:
        """The full frames of the protocol."""
        return ROCE_FRAMES if self.protocol == VERBS else TCP_FRAMES

    @property
    def most_under_way_bytes(self) -> int:
        """The bytes that a connection can have under way: TCP's window, or the packets that soft-RoCE sends before the
        first one is acknowledged."""
        return _MOST_PACKETS * ROCE_FRAMES.payload_bytes if self.protocol == VERBS else MAX_WINDOW_BYTES

    @property
    def window_words(self) -> str:
        """What limits the bytes under way, in words."""
        return "soft-RoCE's window" if self.protocol == VERBS else "TCP's window"

    @property
    def device_kind(self) -> str | None:
        """The kind of the hosts' verbs devices; None if they have none."""
        return self.rdma or (ROCE if self.protocol == VERBS else None)

    @property
    def all_use_ecn(self) -> bool:
        """Whether all connections ask for ECN. If only a part of them is of dctcp, that part does by itself, and others
        do not: marks at a length that is meant for dctcp would slow them down."""
        return self.ecn_threshold_bytes is not None and self.congestion_control.is_one


@dataclass(frozen=True, kw_only=True)
class Limits:
    """TCP's limits for a collective: window and buffers of a flow in bytes, and the initial window in segments.

    `is_windowed` tells that a connection may carry more in a collective than a sender's buffer holds.
    """

    window_bytes: int
    initial_segments: int
    receive_buffer_bytes: int
    send_buffer_bytes: int
    is_windowed: bool = False


def limits(transport: Transport, *, flow_bytes: int, flow_messages: int = 1) -> Limits:
    """Return the limits for collectives in which a connection carries up to `flow_bytes` in up to `flow_messages`.

    All messages may be in flight at once. The window therefore has room for all these bytes, as far as TCP allows, and
    for two short segments per message: its last one and its label. The sender's buffer holds everything that its GPU
    has received and not sent yet, as far as Linux allows.
    """
    send = flow_bytes * _SPARE[0] // _SPARE[1] + _SPARE_BYTES
    window = min(flow_bytes + _SPARE_BYTES, MAX_WINDOW_BYTES)
    full_bytes = transport.mtu_bytes - _HEADERS_BYTES
    return Limits(
        window_bytes=window,
        initial_segments=-(-window // full_bytes) + max(0, 2 * flow_messages - _SPARE_BYTES // full_bytes),
        receive_buffer_bytes=min(2 * window + (1 << 20), MAX_BUFFER_BYTES),
        send_buffer_bytes=min(send, MAX_BUFFER_BYTES),
        is_windowed=send > MAX_BUFFER_BYTES,
    )


@dataclass(frozen=True, kw_only=True)
class FairShareLimits:
    """Limits that give flows fair shares of the links they share, by keeping little of each flow queued on its path.

    `segment_bytes` is the largest segment of TCP, headers included (the interface's `gso_ipv4_max_size`).
    `queued_bytes` is the memory that a flow may have queued at shared links (`tcp_limit_output_bytes`).
    """

    segment_bytes: int
    queued_bytes: int


def fair_share_limits(
    *, message_bytes: int, shared_links: int, fastest_bps: float, steady: bool = True, mtu_bytes: int = 9000
) -> FairShareLimits:
    """Return the windows for messages of up to `message_bytes` whose paths have up to `shared_links` shared links.

    A flow has two segments queued on its path, or three if four or more of its links are shared: any of them could be
    the bottleneck, and must not run empty.

    If rates are not `steady`, a segment is one full packet, and two are queued over any number of links: packets that
    are queued after a link when it slows down have passed it at the old rate.
    """
    full = frame_segment_bytes(mtu_bytes)
    segment = (
        segment_bytes(message_bytes=message_bytes, fastest_bps=fastest_bps, mtu_bytes=mtu_bytes) if steady else full
    )
    segments = 2 if shared_links <= 3 or not steady else 3
    # TCP sends one more segment as long as less than the limit is queued. So the limit lies between the sizes of
    # `segments` - 1 and `segments` segments.
    queued = (segments - 0.6) * (segment - _ROOM_BYTES + _SEGMENT_MEMORY_BYTES)
    return FairShareLimits(segment_bytes=segment, queued_bytes=round(queued))


def segment_bytes(*, message_bytes: int, fastest_bps: float, mtu_bytes: int = 9000) -> int:
    """Return the `FairShareLimits.segment_bytes` of a connection whose largest message has `message_bytes`.

    A segment is 1 to 7 full packets: as close to 1/768 of the message as possible, but at least about 0.7 us at the
    fastest link. Shares are the fairer the less of a message is queued, but HTB truncates a segment's time to whole ns.
    The size does not depend on other connections, so a job that overlaps with no other takes the same time as alone.
    """
    full_bytes = mtu_bytes - _HEADERS_BYTES
    wanted = message_bytes / _SEGMENTS / full_bytes, fastest_bps / 8 * _SEGMENT_S / mtu_bytes
    return min(7, max(1, *(round(count) for count in wanted))) * full_bytes + _ROOM_BYTES


def frame_segment_bytes(mtu_bytes: int = 9000) -> int:
    """Return the `segment_bytes` that makes every segment one frame, because a finite queue drops whole segments."""
    return mtu_bytes - _HEADERS_BYTES + _ROOM_BYTES


def rto_min_s(transport: Transport, *, wait_s: float) -> float | None:
    """Return a lower bound of the retransmission timeout with which TCP does not resend what waits in queues.

    `wait_s` is the longest time in which a connection gets no acknowledgement while nothing is lost, without
    propagation. None if the transport's own bound is enough. A connection that has measured only the empty path times
    out after a round trip plus this bound (RFC 6298, 2.2 to 2.4, with Linux's lower bound of RTTVAR).
    """
    needed_s = min(wait_s * _WAIT_MARGIN, _MAX_RTO_MIN_S)
    return needed_s if needed_s > transport.rto_min_s else None


# --- effects, each in the network namespace of the calling process --------------------------------------------------


def set_sysctls(transport: Transport, limit: Limits) -> None:
    """Write the TCP sysctls for these limits; raises OSError."""
    values = {
        # Without line rate, too: an agent reads a message once it has arrived whole, for which Linux does not let the
        # buffer grow (`tcp_rcv_space_adjust`), so a window of one message would last for the whole run.
        "tcp_rmem": f"4096 {limit.receive_buffer_bytes} {limit.receive_buffer_bytes}",
        "tcp_wmem": f"4096 {limit.send_buffer_bytes} {limit.send_buffer_bytes}",
        "tcp_slow_start_after_idle": "1" if transport.slow_start_after_idle else "0",
        "tcp_no_metrics_save": "1",  # old connections must not influence new ones
    }
    if transport.all_use_ecn:
        values["tcp_ecn"] = "1"
    if transport.rto_min_s != Transport.rto_min_s:
        values["tcp_rto_min_us"] = str(round(transport.rto_min_s * 1e6))
    for name, value in values.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def set_queued_bytes(queued_bytes: int) -> int:
    """Set the bytes that a flow may have queued (TCP small queues) and return the old value. Raises OSError."""
    file = Path("/proc/sys/net/ipv4/tcp_limit_output_bytes")
    before = int(file.read_text())
    file.write_text(str(queued_bytes))
    return before


def allow_overtaking() -> None:
    """Have TCP detect losses of new connections by timeout only; raises OSError.

    By default TCP would retransmit packets that later ones overtake when a flow moves to a shorter path.
    """
    for name, value in (
        ("tcp_recovery", 0),  # no RACK, which detects losses by time
        ("tcp_max_reordering", _OVERTAKING_PACKETS),  # upper limit of tcp_reordering
        ("tcp_reordering", _OVERTAKING_PACKETS),
    ):
        Path("/proc/sys/net/ipv4", name).write_text(str(value))
    probe_no_losses()  # acknowledgements pause when the path gets longer


def probe_no_losses() -> None:
    """Have TCP send no tail loss probes on new connections, which acknowledgements in a queue would cause.

    A probe resends the last segment after two round trips without an acknowledgement. Raises OSError.
    """
    Path("/proc/sys/net/ipv4/tcp_early_retrans").write_text("0")


def make_long_segments(*, always: bool) -> None:
    """Have TCP make the longest segments on all paths, or only on those with short round trips; raises OSError.

    By default TCP makes segments of about a millisecond at the rate that it has measured if round trips are long
    (`tcp_tso_autosize`). Where messages wait in queues, that makes many segments, and their acknowledgements take a
    part of the opposite link.
    """
    log = _ANY_RTT_LOG if always else _RTT_LOG
    Path("/proc/sys/net/ipv4/tcp_tso_rtt_log").write_text(str(log))


def windows(connection: socket.socket) -> tuple[int, int]:
    """Return the congestion window and the window that the other end announces, in bytes."""
    info = _tcp_info(connection)
    segment_bytes, segments, announced_bytes = (struct.unpack_from("=I", info, at)[0] for at in (16, 80, 228))
    return segment_bytes * segments, announced_bytes


def round_trip_s(connection: socket.socket) -> float:
    """Return the round trip that TCP has measured, in seconds."""
    us: int = struct.unpack_from("=I", _tcp_info(connection), 68)[0]
    return us / 1e6


def retransmitted_bytes(connection: socket.socket) -> int:
    """Return the payload bytes that this end has retransmitted."""
    count: int = struct.unpack_from("=Q", _tcp_info(connection), 208)[0]
    return count


def allow_lending(connection: socket.socket) -> None:
    """Allow MSG_ZEROCOPY, sending from this process's memory without a copy, on a connection."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_ZEROCOPY, 1)


def completed(connection: socket.socket) -> int:
    """Return how many more MSG_ZEROCOPY sends have completed, so that their memory is free, since the last call."""
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
    """Raise OSError unless the interface has this MTU."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        reply = fcntl.ioctl(any_socket, _SIOCGIFMTU, struct.pack("16si12x", interface.encode(), 0))
    actual = struct.unpack_from("16si", reply)[1]
    if actual != mtu_bytes:
        raise OSError(errno.EINVAL, f"{interface} has an MTU of {actual} bytes, not {mtu_bytes}")


def lift_memory_limit() -> None:
    """Let TCP use all memory, in every namespace; near its default limits it would shrink windows."""
    Path("/proc/sys/net/ipv4/tcp_mem").write_text(f"{_PLENTY_PAGES} {_PLENTY_PAGES} {_PLENTY_PAGES}")
