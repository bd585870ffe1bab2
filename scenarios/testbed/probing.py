"""Probes over candidate paths in a testbed: the rules and windows that they need, and the times that they take."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hosts.agent.transport import limits
from hosts.monitor import probe
from scenarios.testbed.testbed import Probe, Testbed
from topologies.fabric.fabric import Fabric
from topologies.mininet_network import netlink_of

_PORTS = 31_000  # the first TCP port of probes: above agents' ports, below the kernel's ephemeral ports


def with_ports(fabric: Fabric, probes: Iterable[Sequence[int]]) -> list[Probe]:
    """Return probes, given as source, destination and path, each with its TCP source port, by which its path is
    chosen."""
    first = {pair: paths[0].index for pair, paths in fabric.paths_between.items() if paths}
    site = fabric.gpu_sites.tolist()
    return [(src, dst, path, _PORTS + path - first[site[src], site[dst]]) for src, dst, path in probes]


def open_windows(testbed: Testbed, probes: Sequence[Probe], size_bytes: int | None) -> None:
    """Let new connections between the ends of probes begin with windows for messages of this size; None: as without
    that. Without line rate nothing is done, as routes would change connections of the agents. Raises OSError."""
    if not testbed.config.transport.line_rate:
        return
    windows = None if size_bytes is None else limits(testbed.config.transport, flow_bytes=size_bytes).initial_segments
    for src, dst in dict.fromkeys((src, dst) for src, dst, _, _ in probes):
        if (pid := testbed.network.pids_here.get(src)) is None:
            continue
        with netlink_of(pid) as netlink:
            ends = testbed.fabric.gpus[src].interface, testbed.fabric.gpus[dst].ip
            netlink.set_route(*ends, initial_segments=windows)


def times_ns(testbed: Testbed, probes: Sequence[Probe], size_bytes: int) -> npt.NDArray[np.int64]:
    """Send the probes, one after the other; return when each was sent and had arrived, [P, 2] ns (`Testbed.own_ns`).
    Raises OSError."""
    ends = [(src, dst, port) for src, dst, _, port in probes]
    warms = not testbed.config.transport.line_rate
    found = probe(
        testbed.fabric,
        testbed.network.pids_here,
        ends,
        size_bytes=size_bytes,
        sets_buffers=warms or testbed.config.program.is_given,  # agents' hosts have settings for their own messages
        warms=warms,
        exchange=testbed.exchange,
        clock_ns=lambda: testbed.own_ns,
    )
    return np.array(found, dtype=np.int64).reshape(-1, 2)
