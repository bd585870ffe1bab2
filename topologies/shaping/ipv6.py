"""IPv6 of hosts: 6rd (RFC 5969). Packets to an address (`topologies.fabric.ipv6`) cross the fabric within IPv4 packets
to the host of that address: by the same paths, queues and rates, with 20 bytes more each.

Nothing else is sent: the tunnels have no neighbour discovery, no multicast groups and no router solicitations.
"""

import os
import socket
import struct
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

from topologies.fabric.ipv6 import PREFIX, address_of
from topologies.shaping.netlink import (
    REQUEST_ACK,
    REQUEST_CREATE,
    REQUEST_REPLACE,
    RtNetlink,
    attribute,
    route_metrics,
)

INTERFACE = "ip6"
"""The name of the interface with a host's IPv6 address."""

_HEADER_BYTES = 20  # of the IPv4 packet around an IPv6 packet
_TTL = 64
_INHERITED = 1  # the traffic class of the IPv6 packet, and with it its DSCP
_RTM_NEWLINK, _RTM_NEWADDR, _RTM_NEWROUTE = 16, 20, 24
_IFINFOMSG, _IFADDRMSG, _RTMSG = struct.Struct("=BxHiII"), struct.Struct("=BBBBi"), struct.Struct("=8BI")
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_INFO_KIND, _IFLA_INFO_DATA = 3, 4, 18, 1, 2
_LOCAL, _TUNNEL_TTL, _TUNNEL_TOS, _6RD_PREFIX, _6RD_PREFIX_LENGTH = 2, 4, 5, 11, 13  # IFLA_IPTUN_* of linux/if_tunnel.h
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 2
_RTA_DST, _RTA_OIF, _RTA_METRICS = 1, 4, 8
_MAIN, _STATIC, _UNIVERSE, _UNICAST = 254, 4, 0, 1


class Ipv6Netlink(RtNetlink):
    """IPv6 of the network namespace in which it is opened."""

    @property
    def has_tunnel(self) -> bool:
        """Whether the host has its IPv6 address already."""
        return any(name == INTERFACE for _, name in socket.if_nameindex())

    def add_tunnel(self, ipv4: str, *, mtu_bytes: int) -> None:
        """Give the host with this IPv4 address, whose interface has this MTU, its IPv6 address; raises OSError."""
        data = attribute(_LOCAL, socket.inet_aton(ipv4)) + attribute(_TUNNEL_TTL, bytes([_TTL]))
        data += attribute(_TUNNEL_TOS, bytes([_INHERITED]))
        data += attribute(_6RD_PREFIX, PREFIX.network_address.packed)
        data += attribute(_6RD_PREFIX_LENGTH, struct.pack("=H", PREFIX.prefixlen))
        body = _IFINFOMSG.pack(0, 0, 0, 0, 0)
        body += attribute(_IFLA_IFNAME, INTERFACE.encode() + b"\0")
        body += attribute(_IFLA_MTU, struct.pack("=I", mtu_bytes - _HEADER_BYTES))
        body += attribute(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, b"sit") + attribute(_IFLA_INFO_DATA, data))
        self._request(_RTM_NEWLINK, REQUEST_CREATE, body, "the interface for IPv6 cannot be made")
        index = socket.if_nametoindex(INTERFACE)
        for name in (INTERFACE, "lo"):
            Path("/proc/sys/net/ipv6/conf", name, "disable_ipv6").write_text("0")
        up = _IFINFOMSG.pack(0, 0, index, _IFF_UP, _IFF_UP)
        self._request(_RTM_NEWLINK, REQUEST_ACK, up, "the interface for IPv6 cannot be brought up")
        packed = IPv6Address(address_of(ipv4)).packed
        body = _IFADDRMSG.pack(socket.AF_INET6, 128, _IFA_F_NODAD, _UNIVERSE, index)
        body += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
        self._request(_RTM_NEWADDR, REQUEST_REPLACE, body, f"the address {address_of(ipv4)} is refused")

    def set_route6(
        self, network: IPv6Network, *, initial_segments: int, rto_min_ms: int | None, congestion_control: str | None
    ) -> None:
        """Set the route to a network, with the initial congestion window and, if given, the least timeout of TCP over
        it and its congestion control; raises OSError."""
        body = _RTMSG.pack(socket.AF_INET6, network.prefixlen, 0, 0, _MAIN, _STATIC, _UNIVERSE, _UNICAST, 0)
        body += attribute(_RTA_DST, network.network_address.packed)
        body += attribute(_RTA_OIF, struct.pack("=I", socket.if_nametoindex(INTERFACE)))
        body += attribute(_RTA_METRICS, route_metrics(initial_segments, rto_min_ms, congestion_control))
        self._request(_RTM_NEWROUTE, REQUEST_REPLACE, body, f"the route to {network} cannot be set")

    def _request(self, kind: int, flags: int, body: bytes, failure: str) -> None:
        ((code, _),) = self._send(kind, flags, [body])
        if code:
            raise OSError(code, f"{failure}: {os.strerror(code)}")
