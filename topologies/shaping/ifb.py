"""IFB devices: packets that arrive at a port are redirected through one first, so that they can be delayed, dropped or
shaped on ingress. Pure.

*Delays.* If links are shared, propagation delay is applied after all the shared links on a flow's path.

TCP takes a packet in a netem as delivered (`skb_orphan_partial` in the kernel), so TCP small queues do not limit what a
flow has queued beyond a netem: a flow that waits at a slower link after a netem would take more than its share of the
links before it. So the whole delay of a path is applied at its end, at the receiving GPU, by source address; if the
WAN's delay depends on the path, by the tunnel's tag as well. If packets without a tag may leave the fixed path, the
WAN's delay is applied after the cable of each WAN link instead. For each delay there is an ifb with a netem as root
qdisc: a filter on the interface's ingress redirects packets to it, and they continue from there.

*Losses.* A frame that a WAN link loses has used the link's rate: an ifb after the link's cable drops it, and may delay
the others. The dropped frames depend on a seed and the link.

*NICs.* A GPU's sending direction is shaped where its leaf receives, in the switches' network namespace: the ifb of the
leaf's port has the HTB class.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from socket import inet_aton, inet_ntoa

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Ifb:
    """An ifb for packets that arrive at `interface` from the addresses `sources` ("10.0.0.0/25"), or from all if there
    are none.

    `rank` is the GPU whose network namespace has both interfaces; None is the switches' namespace. `loss` is the share
    of packets that the ifb drops, from 0 to 1, drawn from `seed`. With neither loss nor delay it has no netem, and may
    have classes. `matches` are tc's matches of packets in tunnels for this ifb; they take precedence over addresses.
    """

    name: str
    rank: int | None
    interface: str
    sources: tuple[str, ...]
    delay_ns: int
    loss: float = 0.0
    seed: int | None = None
    matches: tuple[str, ...] = ()

    def filters(self) -> Iterator[str]:
        """Yield the lines for tc that redirect packets to the ifb; the interface must have an ingress qdisc."""
        matches = [f"prio 1 u32 {match}" for match in self.matches]
        matches += [f"prio 2 u32 match ip src {source}" for source in self.sources]
        for match in matches or ["prio 1 matchall"]:
            yield (
                f"filter add dev {self.interface} parent ffff: protocol ip {match} "
                f"action mirred egress redirect dev {self.name}"
            )


def nic_name(rank: int) -> str:
    """Return the name of the ifb that shapes a GPU's sending direction."""
    return f"nic{rank}"


def nics(fabric: Fabric) -> tuple[Ifb, ...]:
    """Return the ifbs that shape the GPUs' sending direction, by rank."""
    port = {port.peer: port.interface for s in fabric.switches if s.kind == "leaf" for port in s.ports}
    return tuple(
        Ifb(name=nic_name(gpu.rank), rank=None, interface=port[gpu.name], sources=(), delay_ns=0) for gpu in fabric.gpus
    )


def delays(
    fabric: Fabric,
    delays_s: Floats,
    *,
    wan_loss: float = 0.0,
    seed: int = 0,
    paths: Sequence[str] = (),
    moving: bool = False,
) -> tuple[Ifb, ...]:
    """Return the ifbs that apply these delays of links, [links] s: one for each interface and delay above 0 ns.

    With the loss `wan_loss`, a share from 0 to 1, there is one for each WAN link too. With `paths`, tc's match of
    packets that have come over each path in a tunnel, delays that depend on the path are applied at the receivers as
    well; packets without a tunnel are on the fixed path. Names are numbered, because an interface's name may already
    have the maximal length. Raises ValueError if the delays within a site differ between border routers, so that the
    delay between two GPUs is not determined by the GPUs and the WAN path. If links are `moving`, WAN delays are applied
    after each link.
    """
    delays_ns = np.rint(delays_s * 1e9).astype(np.int64)
    ends_ns, wan_ns = _end_to_end_ns(fabric, delays_ns), np.zeros_like(delays_ns)
    if ends_ns is None or moving:
        wan = np.array([link.kind == "wan" for link in fabric.links])
        wan_ns = np.where(wan, delays_ns, 0)
        ends_ns = _end_to_end_ns(fabric, delays_ns - wan_ns)
        if ends_ns is None:
            raise ValueError("delays that differ between border routers; allowed: one delay for all links of a site")
    path_ns, tags = np.zeros(len(fabric.paths), np.int64), () if wan_loss or not wan_ns.any() else paths
    if tags:
        path_ns[:] = [wan_ns[list(path.links)].sum() for path in fabric.paths]
        wan_ns = np.zeros_like(wan_ns)
    return (*_after_wan_links(fabric, wan_ns, wan_loss, seed), *_at_receivers(fabric, ends_ns, path_ns, tags))


def _after_wan_links(fabric: Fabric, wan_ns: Integers, wan_loss: float, seed: int) -> Iterator[Ifb]:
    """Yield an ifb for each WAN link that delays packets, by `wan_ns` [links], or loses them."""
    port = {(switch.name, port.peer): port.interface for switch in fabric.switches for port in switch.ports}
    for link in fabric.links:
        if link.kind == "wan" and (wan_loss or wan_ns[link.index]):
            sequence = np.random.SeedSequence((seed, link.index))
            yield Ifb(
                name=f"wan{link.index}",
                rank=None,
                interface=port[link.dst, link.near_end],
                sources=(),
                delay_ns=int(wan_ns[link.index]),
                loss=wan_loss,
                seed=int(sequence.generate_state(1, np.uint64)[0]) if wan_loss else None,
            )


def _at_receivers(fabric: Fabric, ends_ns: Integers, path_ns: Integers, tags: Sequence[str]) -> Iterator[Ifb]:
    """Yield an ifb for each receiving GPU and delay above 0 ns.

    The delay from rank to rank is `ends_ns` [n, n], to which every WAN path adds its `path_ns`. Packets with one of the
    `tags` (tc's matches, by path) have come over that path, all others over the fixed path.
    """
    numbers, of_path_ns = count(), path_ns.tolist()
    for dst, to_dst_ns in zip(fabric.gpus, ends_ns.T.tolist(), strict=True):
        sources, matches = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
        of_paths = [defaultdict[int, list[str]](list) for _ in tags]
        for src, end_ns in zip(fabric.gpus, to_dst_ns, strict=True):
            if src is dst:
                continue
            between = fabric.paths_between.get((src.site, dst.site), ()) if tags else ()
            sources[end_ns + sum(of_path_ns[path.index] for path in between[:1])].append(src.ip)
            for path in between:
                of_paths[path.index][end_ns + of_path_ns[path.index]].append(src.ip)
        for tag, by_delay in zip(tags, of_paths, strict=True):
            for delay_ns, addresses in by_delay.items():
                if len(by_delay) == 1:
                    matches[delay_ns].append(tag)
                else:
                    others = [ip for ns, ips in by_delay.items() if ns != delay_ns for ip in ips]
                    matches[delay_ns] += [f"{tag} match ip src {prefix}" for prefix in prefixes(addresses, others)]
        for delay_ns in dict.fromkeys((*sources, *matches)):
            if delay_ns > 0:
                others = [ip for ns, ips in sources.items() if ns != delay_ns for ip in ips]
                yield Ifb(
                    name=f"delay{next(numbers)}",
                    rank=dst.rank,
                    interface=dst.interface,
                    sources=prefixes(sources[delay_ns], others),
                    delay_ns=delay_ns,
                    matches=tuple(matches[delay_ns]),
                )


def prefixes(addresses: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return the fewest prefixes ("10.0.0.0/25") that have all of these IPv4 addresses and none of the `others`.

    Every packet passes the filters for them one by one, so that a filter for each GPU would cost more than its bytes.
    A prefix is as long as possible for the addresses that it has.
    """
    return tuple(_prefixes(_numbers(addresses), _numbers(others), bits=32))


def _numbers(addresses: Sequence[str]) -> list[int]:
    return sorted(int.from_bytes(inet_aton(address), "big") for address in addresses)


def _prefixes(wanted: Sequence[int], unwanted: Sequence[int], *, bits: int) -> Iterator[str]:
    """Yield the prefixes of the `wanted` addresses, sorted, which share all but their last `bits` bits with each other
    and with the `unwanted` ones."""
    if not wanted:
        return
    if not unwanted:
        free = (wanted[0] ^ wanted[-1]).bit_length()
        first = inet_ntoa((wanted[0] >> free << free).to_bytes(4, "big"))
        yield f"{first}/{32 - free}"
        return
    middle = (wanted[0] >> bits << bits) + (1 << bits - 1)
    at, other = bisect_left(wanted, middle), bisect_left(unwanted, middle)
    yield from _prefixes(wanted[:at], unwanted[:other], bits=bits - 1)
    yield from _prefixes(wanted[at:], unwanted[other:], bits=bits - 1)


def _end_to_end_ns(fabric: Fabric, delays_ns: Integers) -> Integers | None:
    """Return the delay from rank to rank, [n, n] ns, 0 without a path; None if a delay depends on the WAN path."""
    within = fabric.intra_index >= 0
    delay_ns = np.where(within, delays_ns[fabric.intra_index], 0)
    for (src_site, dst_site), paths in fabric.paths_between.items():
        src, dst = (np.nonzero(fabric.gpu_sites == site)[0] for site in (src_site, dst_site))
        over = [
            delays_ns[fabric.to_br_index[src, path.src_br]][:, None]
            + delays_ns[list(path.links)].sum()
            + delays_ns[fabric.from_br_index[path.dst_br, dst]]
            for path in paths
        ]
        if any((other != over[0]).any() for other in over):
            return None
        if over:
            delay_ns[np.ix_(src, dst)] = over[0]
    return delay_ns
