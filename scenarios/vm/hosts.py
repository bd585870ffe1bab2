"""Hosts in the VM, for other people's programs and tests: ``python -m scenarios.vm --hosts 2 --link "1 Gbit/s, 9 ms"``.

Host number i is the network namespace hi with the addresses 10.0.0.(i+1) and fd00::(i+1), and names hold everywhere.
Two hosts are joined by one link. More of them have a link each to a switch, and one back, of that rate; a packet takes
the delay once. The command runs in h0, and `ip netns exec h1 COMMAND` runs another in h1.

As a program it is what the VM runs: ``python -m scenarios.vm.hosts COUNT RATE DELAY COMMAND…``, with the rate in bit/s,
0 without a limit, and the delay in ns.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from topologies import units

MAX_HOSTS = 200
_QUEUE_PACKETS = 1_000_000  # netem drops what exceeds its limit, which must not come from the emulation
_TOLD = 10  # hosts between two lines of progress, as the clock stands still meanwhile
_CONF = Path("/proc/sys/net/ipv6/conf")
_QUIET = {"accept_dad": "0", "router_solicitations": "0", "accept_ra": "0", "disable_ipv6": "0"}


class LinkError(ValueError):
    """A link that cannot be understood; the message says what is allowed."""


class HostLink(NamedTuple):
    """A link between hosts: its rate in bit/s, 0 without a limit, and its one-way delay in ns."""

    rate_bps: int = 0
    delay_ns: int = 0


def parse_link(text: str) -> HostLink:
    """Return the link that a text describes, such as "20 Mbit/s, 300 ms"; raises LinkError."""
    parts = [part.strip() for part in text.split(",")]
    try:
        delay_s = units.parse_delay_or_zero_s(parts[1]) if len(parts) > 1 else 0.0
        if len(parts) > 2:
            raise units.UnitError(f"{text!r} has {len(parts)} parts")
        return HostLink(units.parse_rate_bps(parts[0]), round(delay_s * 1e9))
    except units.UnitError as error:
        raise LinkError(f'{error}; allowed: a rate and a one-way delay, such as "20 Mbit/s, 300 ms"') from None


def command_line(hosts: int, link: HostLink, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command in the VM on the first of these hosts."""
    return [sys.executable, "-m", "scenarios.vm.hosts", str(hosts), str(link.rate_bps), str(link.delay_ns), *command]


def _ip_lines(count: int) -> Iterator[str]:
    """Yield the lines for `ip -batch` that make namespaces and cables."""
    for number in range(count):
        yield f"netns add h{number}"
    if count == 2:
        yield "link add eth0 netns h0 type veth peer name eth0 netns h1"
        return
    yield "link add switch type bridge"
    yield "link set switch up"
    for number in range(count):
        yield f"link add port{number} type veth peer name eth0 netns h{number}"
        yield f"link set port{number} master switch up gso_max_segs 1"


def _mac(number: int) -> str:
    return f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}"


def _host_lines(number: int, count: int) -> Iterator[str]:
    """Yield the lines for `ip -batch` within a host that set its addresses and, as first packets would otherwise wait
    for an answer of ARP, those of the others."""
    yield "link set lo up"
    yield f"link set eth0 address {_mac(number)}"
    yield "link set eth0 up gso_max_segs 1"  # a large segment would pass the link as one packet
    yield f"address add 10.0.0.{number + 1}/24 dev eth0"
    yield f"address add fd00::{number + 1:x}/64 dev eth0 nodad"
    for other in range(count):
        if other != number:
            for address in (f"10.0.0.{other + 1}", f"fd00::{other + 1:x}"):
                yield f"neighbour add {address} lladdr {_mac(other)} dev eth0 nud permanent"


def _qdisc(device: str, link: HostLink, *, delayed: bool) -> str:
    rate = f" rate {link.rate_bps}bit" if link.rate_bps else ""
    delay = f" delay {link.delay_ns / 1e6:.6f}ms" if delayed else ""
    return f"qdisc add dev {device} root netem limit {_QUEUE_PACKETS}{delay}{rate}"


def batch(program: str, lines: Iterator[str] | Sequence[str], namespace: str = "") -> None:
    """Have `ip` or `tc` do these lines, in a named network namespace if one is given; raises OSError or
    CalledProcessError."""
    inside = ["-n", namespace] if namespace else []
    subprocess.run([program, *inside, "-batch", "-"], input="\n".join(lines), text=True, check=True)


def set_up(count: int, link: HostLink) -> None:
    """Make the hosts; raises OSError or CalledProcessError."""
    batch("ip", _ip_lines(count))
    shapes_switch = count > 2 and link.rate_bps > 0
    if shapes_switch:
        batch("tc", [_qdisc(f"port{number}", link, delayed=False) for number in range(count)])
    files = [f"echo {value} > {_CONF}/{name}/{key}" for name in ("lo", "eth0") for key, value in _QUIET.items()]
    for number in range(count):
        if number and number % _TOLD == 0:
            print(f"longhaul: {number} of {count} hosts are made", file=sys.stderr, flush=True)
        subprocess.run(["ip", "netns", "exec", f"h{number}", "sh", "-c", " && ".join(files)], check=True)
        batch("ip", _host_lines(number, count), f"h{number}")
        if link != HostLink():
            batch("tc", [_qdisc("eth0", link, delayed=True)], f"h{number}")
    names = [f"10.0.0.{number + 1} h{number}" for number in range(count)]
    names += [f"fd00::{number + 1:x} h{number}" for number in range(count)]
    with Path("/etc/hosts").open("a") as file:
        file.write("".join(f"{line}\n" for line in names))


def main(arguments: Sequence[str]) -> int:
    """Make the hosts and run the command in the first one; return an exit status."""
    count, rate, delay, *command = arguments
    try:
        set_up(int(count), HostLink(int(rate), int(delay)))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"longhaul: the hosts cannot be made: {error}", file=sys.stderr)
        return 1
    os.execvp("ip", ["ip", "netns", "exec", "h0", *command])  # noqa: S606


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
