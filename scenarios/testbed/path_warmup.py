"""Warming of Open vSwitch's kernel flow tables by packets over every WAN path, before paths change in full flight.

A packet whose flow is not in a switch's kernel goes through user space. When a connection in full flight moves to
another path, hundreds of packets do so at once: those that exceed the socket's buffer are lost, and the others are
overtaken by later packets. The kernel's flows of a tunnel match only its tag and the receiver, and stay, so one packet
for each is enough.
"""

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from controller.forwarding.flow_mods import NO_TUNNEL
from controller.forwarding.rules import Route, install
from controller.routing.switch_paths import FabricPaths
from topologies.fabric.fabric import Fabric
from topologies.fabric.machines import Share

_IPV4 = 0x0800
_ICMP_ECHO_REPLY = bytes([0, 0, 0xFF, 0xFF, 0, 0, 0, 0])  # with checksum; ignored by a host that sent no echo request
_TTL = 64
_DELIVERY_S = 1.0
_BURST = 32  # packets to user space at once: far fewer than its socket's buffer holds


class Frame(NamedTuple):
    """An Ethernet frame, and the interface of a leaf's port that sends it."""

    interface: str
    data: bytes


def frames(fabric: Fabric, gpus: Sequence[int]) -> Iterator[Frame]:
    """Yield a frame for each candidate path between two of these GPUs (ranks), as the sender's leaf sends it once the
    pair is in the path's tunnel; frames that would match the same kernel flows are yielded once."""
    paths, sent = FabricPaths(fabric), set[tuple[str, str, str]]()
    ends = [(fabric.gpus[a], fabric.gpus[b]) for a in gpus for b in gpus]
    for path, (src, dst) in product(fabric.paths, ends):
        if (src.site, dst.site) != (path.src_site, path.dst_site):
            continue
        spine = paths.spine(src, paths.routers_of(path)[0])
        rule = install(paths, Route(src=src.rank, dst=dst.rank, path=path.index, spine=spine, generation=1)).rule
        interface = next(port.interface for port in paths.switches[src.leaf].ports if port.number == rule.out_port)
        # Routes put no pair into the tunnel of its default path.
        address = NO_TUNNEL if path.index == paths.default(src.rank, dst.rank) else rule.eth_dst
        assert address is not None
        if (interface, address, dst.ip) not in sent:
            sent.add((interface, address, dst.ip))
            yield Frame(interface, _mac(address) + _mac(src.mac) + struct.pack(">H", _IPV4) + _ip(src.ip, dst.ip))


def warm(share: Share, gpus: Sequence[int]) -> None:
    """Send the frames of this machine's share, when one machine alone would, and wait until all have arrived; raises
    OSError."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        for number, frame in enumerate(frames(share.fabric, gpus)):
            if number % _BURST == 0:
                time.sleep(_DELIVERY_S)
            if frame.interface in share.interfaces:
                out.sendto(frame.data, (frame.interface, _IPV4))
    time.sleep(_DELIVERY_S)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ip(src: str, dst: str) -> bytes:
    """Encode an IPv4 packet without options that holds an ICMP echo reply."""
    size = 20 + len(_ICMP_ECHO_REPLY)
    ends = socket.inet_aton(src) + socket.inet_aton(dst)
    words = struct.unpack(">10H", struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0, _TTL, socket.IPPROTO_ICMP, 0) + ends)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    head = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0, _TTL, socket.IPPROTO_ICMP, total ^ 0xFFFF)
    return head + ends + _ICMP_ECHO_REPLY
