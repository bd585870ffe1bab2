"""Delays between the controller and its switches: netem on loopback, with one address of the controller per site.

Switches and controller share a network namespace, so loopback carries their connections, and no traffic of GPUs.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from socket import if_nametoindex

from topologies.fabric.fabric import Fabric
from topologies.mininet_nodes import run_program
from topologies.shaping.classes import QUEUE_PACKETS
from topologies.shaping.netlink import Netem, RtNetlink
from topologies.shaping.tc import TcError

_NET = "127.0.1."  # prefix of the controller's addresses: .1 for site 0, and so on
_FIRST_BAND = 2  # band 1 has all other traffic of loopback
_MAX_BANDS = 16


def addresses(fabric: Fabric) -> dict[str, str]:
    """Return the address at which each switch connects to the controller; that of transit routers is the last."""
    sites = len(fabric.gpus_per_site)
    return {switch.name: f"{_NET}{1 + (sites if switch.site is None else switch.site)}" for switch in fabric.switches}


def delays_s(site_delays_s: tuple[float, ...]) -> dict[str, float]:
    """Return the one-way delay to each of these addresses, from those to sites; transit routers have the longest."""
    return {f"{_NET}{number}": delay for number, delay in enumerate((*site_delays_s, max(site_delays_s)), 1)}


@contextmanager
def delayed(by_address: Mapping[str, float]) -> Iterator[None]:
    """Delay packets to and from these addresses of loopback by these seconds, each way, until the context ends.

    Raises NetworkError or TcError if the kernel refuses, or holds another delay afterwards.
    """
    bands = {address: band for band, address in enumerate(by_address, _FIRST_BAND)}
    lines = [f"qdisc add dev lo root handle 1: prio bands {1 + len(bands)} priomap {' '.join('0' * _MAX_BANDS)}"]
    for address, band in bands.items():
        lines.append(f"qdisc add dev lo parent 1:{band} handle {band + 1:x}: netem limit {QUEUE_PACKETS}")
        for end in ("src", "dst"):
            lines.append(
                f"filter add dev lo parent 1: protocol ip prio 1 u32 match ip {end} {address}/32 flowid 1:{band}"
            )
    run_program(["tc", "-batch", "-"], "".join(f"{line}\n" for line in lines))
    try:
        loopback = if_nametoindex("lo")
        wanted = {band: round(by_address[address] * 1e9) for address, band in bands.items()}
        with closing(RtNetlink()) as kernel:
            netems = {(loopback, band): Netem(delay_ns) for band, delay_ns in wanted.items()}
            kernel.change_netems(netems, limit_packets=QUEUE_PACKETS)
            qdiscs = [qdisc for qdisc in kernel.qdiscs() if qdisc.interface == loopback and qdisc.parent]
        held = {qdisc.parent: qdisc.delay_ns for qdisc in qdiscs}
        if held != wanted:
            raise TcError(f"loopback should delay by {wanted} ns but delays by {held} ns")
        yield
    except OSError as error:
        raise TcError(f"loopback does not delay: {error.strerror}") from None
    finally:
        run_program(["tc", "qdisc", "del", "dev", "lo", "root"], check=False)
