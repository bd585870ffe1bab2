"""Full frames of the transports: how much of a link's rate is payload. Pure."""

from dataclasses import dataclass

MTU_BYTES = 9000
"""The MTU of all interfaces."""
ETHERNET_BYTES = 14


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The full frames of a transport: the bytes of payload in one, and its `frame_bytes` with all headers, without
    Ethernet's preamble and checksum. A packet that only acknowledges has `ack_bytes`, as IP counts them."""

    payload_bytes: int
    frame_bytes: int
    ack_bytes: int

    @property
    def wire_per_payload(self) -> float:
        """Bytes of full frames for a byte of payload."""
        return self.frame_bytes / self.payload_bytes

    def wire_bytes(self, message_bytes: int) -> int:
        """Return the bytes of a message of so much payload with the headers of its frames."""
        frames = -(-message_bytes // self.payload_bytes)
        return message_bytes + frames * (self.frame_bytes - self.payload_bytes)

    def payload_of(self, wire_bytes: float) -> int:
        """Return the payload in bytes of full frames with `wire_bytes` in all."""
        return round(wire_bytes * self.payload_bytes / self.frame_bytes)

    def wire_bytes_per_s(self, rate_bps: int) -> int:
        """Return the rate of full frames, in whole bytes/s, that carry `rate_bps` of payload; at least 1."""
        return max(1, (2 * rate_bps * self.frame_bytes + 8 * self.payload_bytes) // (16 * self.payload_bytes))


TCP_HEADER_BYTES = 20 + 32
"""IPv4, and TCP with timestamps (RFC 7323)."""
TCP_FRAMES = Frames(
    payload_bytes=MTU_BYTES - TCP_HEADER_BYTES, frame_bytes=MTU_BYTES + ETHERNET_BYTES, ack_bytes=TCP_HEADER_BYTES
)
_ROCE_BYTES = 20 + 8 + 12 + 4
ROCE_FRAMES = Frames(payload_bytes=4096, frame_bytes=4096 + ETHERNET_BYTES + _ROCE_BYTES, ack_bytes=_ROCE_BYTES + 4)
"""RoCE version 2 with InfiniBand's largest MTU: IPv4, UDP, the base transport header and the checksum (InfiniBand
Architecture Specification, annex A17), and in an acknowledgement its own header."""
