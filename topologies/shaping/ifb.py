"""Where propagation delay is applied while links are shared: behind all the shared links of a way. Pure.

A netem counts as delivery for TCP (`skb_orphan_partial` in the kernel), so TCP small queues no longer limit what a flow
has queued beyond it: a flow that waits at a slower link behind a netem takes more than its share of the links before
it. So all of a way's delay is applied where it ends, at the receiving GPU, by source address; only where the delay of
the WAN depends on the path is it applied behind the cable of each WAN link. An interface delays what arrives by an ifb:
a filter of its ingress redirects the packets to it, its root is a netem, and they go on from there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Ifb:
    """An ifb that delays packets which arrive on `interface` from these addresses, or from all if there are none.

    `rank` is the GPU in whose network namespace both are, None for that of the switches.
    """

    name: str
    rank: int | None
    interface: str
    sources: tuple[str, ...]
    delay_ns: int

    def filters(self) -> Iterator[str]:
        """tc's batch lines that redirect the packets to it; the interface must have an ingress queueing discipline."""
        redirect = f"action mirred egress redirect dev {self.name}"
        for match in [f"u32 match ip src {source}/32" for source in self.sources] or ["matchall"]:
            yield f"filter add dev {self.interface} parent ffff: protocol ip prio 1 {match} {redirect}"


def ifbs(fabric: Fabric, delays_s: Floats) -> tuple[Ifb, ...]:
    """The ifbs of a fabric whose links have these delays, [links] seconds: one for each interface and delay above 0 ns.

    Their names are numbered, since those of interfaces may be as long as Linux allows.
    """
    at_wan = _differ(fabric, delays_s)
    found: dict[tuple[int | None, str, int], list[str]] = {}
    if at_wan:
        port = {(switch.name, port.peer): port.interface for switch in fabric.switches for port in switch.ports}
        for link in fabric.links:
            if link.kind == "wan":
                found[None, port[link.dst, link.src], _ns(delays_s[link.index])] = []
    for dst in fabric.gpus:
        for src in fabric.gpus:
            if src is not dst:
                delay_ns = _ns(_end_s(fabric, delays_s, src.rank, dst.rank, at_wan=at_wan))
                found.setdefault((dst.rank, dst.interface, delay_ns), []).append(src.ip)
    return tuple(
        Ifb(name=f"delay{number}", rank=rank, interface=interface, sources=tuple(sources), delay_ns=delay_ns)
        for number, ((rank, interface, delay_ns), sources) in enumerate(
            (key, sources) for key, sources in found.items() if key[2] > 0
        )
    )


def _differ(fabric: Fabric, delays_s: Floats) -> bool:
    """Whether two paths between the same sites have different delays."""
    return any(
        len({_ns(delays_s[list(path.links)].sum()) for path in paths}) > 1 for paths in fabric.paths_between.values()
    )


def _end_s(fabric: Fabric, delays_s: Floats, src: int, dst: int, *, at_wan: bool) -> float:
    """The delay to apply at the end of the way from rank to rank; all paths between two sites have the same."""
    paths = fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site), ())
    if fabric.gpus[src].site == fabric.gpus[dst].site:
        over = fabric.edge_links(src, dst, -1)
    elif paths:
        over = fabric.edge_links(src, dst, paths[0].index)
    else:  # the WAN joins the sites by way of a third one only
        return 0.0
    return float(sum(delays_s[link] for link in over if not (at_wan and fabric.links[link].kind == "wan")))


def _ns(delay_s: float) -> int:
    return round(float(delay_s) * 1e9)
