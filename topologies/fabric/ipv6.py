"""IPv6 addresses of hosts: 6rd (RFC 5969), in which an address contains its host's IPv4 address. Pure."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

PREFIX = IPv6Network("fd4c:4f4e::/32")
"""The network of all hosts: the next 32 bits of an address are the host's IPv4 address."""


def address_of(ipv4: str) -> str:
    """Return the IPv6 address of the host with an IPv4 address."""
    return str(IPv6Address(int(PREFIX.network_address) | int(IPv4Address(ipv4)) << 64 | 1))


def network_of(network: IPv4Network) -> IPv6Network:
    """Return the IPv6 network of the hosts in an IPv4 network."""
    first = int(PREFIX.network_address) | int(network.network_address) << 64
    return IPv6Network((first, PREFIX.prefixlen + network.prefixlen))
