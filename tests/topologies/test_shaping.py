"""Shaping as tc commands, compared with an independent parser of these commands; and the rate scale."""

import ipaddress
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, Switch, build_fabric
from topologies.fabric.wan import WanSpec
from topologies.shaping import netlink
from topologies.shaping.classes import VIRTUAL_LATE_S, Buffer, Service, Shaping, classes_of, mismatch, wan_of
from topologies.shaping.frames import ROCE_FRAMES, TCP_FRAMES
from topologies.shaping.ifb import prefixes
from topologies.shaping.netlink import ChildClass
from topologies.shaping.rate_scale import MAX_DIVISOR, RateScale, ScaleError

counts = st.integers(1, 3)
specs = st.builds(
    FabricSpec,
    gpus_per_site=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    leaves=counts,
    spines=counts,
    border_routers=counts,
    wan=st.sampled_from((WanSpec(), WanSpec(preset="five-router"))),
)


def shaping_of(fabric: Fabric, late_s: float = VIRTUAL_LATE_S, *, fair: bool = False) -> Shaping:
    return Shaping(fabric=fabric, delays_s=delays_s(fabric, ConditionsSpec()), late_s=late_s, fair=fair)


def rates_of(fabric: Fabric) -> npt.NDArray[np.float64]:
    return sampler(fabric, ConditionsSpec(), seed=3).rates_bps(0, 1)[0]


def has(prefix: str, address: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(prefix)


class ParsedBatch:
    """A parsed tc batch: the classes of each port with their rates, delays and queues, and the filters into them."""

    def __init__(self, text: str) -> None:
        self.rate: dict[tuple[str, int], int] = {}
        self.filters: dict[str, list[tuple[int, str, str, int]]] = defaultdict(list)
        self.hashed: dict[str, tuple[int, int]] = {}  # of a port with a hash table: its mask and offset in IP's header
        self.default: dict[str, int] = {}
        self.queues: dict[tuple[str, int], str] = {}
        self.first_filter: dict[str, str] = {}
        for line in text.splitlines():
            words = line.split()
            port = words[words.index("dev") + 1]
            if words[0] == "filter":
                self.first_filter.setdefault(port, line)
                if "u16" in words:
                    continue
            if found := re.search(r"^qdisc add .* root .* htb default (\w+) ", line):
                assert port not in self.default, f"{port} has two roots"
                self.default[port] = int(found[1], 16)
            elif found := re.search(r"^class (?:add|change) .* classid 1:(\w+) htb rate (\d+)bit ceil (\d+)bit ", line):
                key = port, int(found[1], 16)
                assert key not in self.rate and found[2] == found[3]
                self.rate[key] = int(found[2])
            elif found := re.search(r"parent 1:(\w+) handle \w+: netem limit \d{7,}$", line):
                self.queues[port, int(found[1], 16)] = "netem"
            elif found := re.search(r" u32 ht 1:(\w+): match ip (src|dst) (\S+)/32 flowid 1:(\w+)$", line):
                self.filters[port].append((int(found[1], 16), found[2], found[3], int(found[4], 16)))
            elif found := re.search(r" u32 match u32 0 0 at 0 link 1: hashkey mask (\w+) at (\d+)$", line):
                assert port not in self.hashed
                self.hashed[port] = int(found[1], 16), int(found[2])
            elif line.startswith("filter "):
                assert line.endswith(" handle 1: u32 divisor 256") and port not in self.filters, line
            else:
                other = re.search(r"^qdisc add dev \S+ parent 1:(\w+) (pfifo|fq .*) limit \d{7,}$", line)
                assert other, line
                self.queues[port, int(other[1], 16)] = other[2]

    def class_of(self, port: str, src: str, dst: str) -> int | None:
        """Return the class of a packet from src to dst on a port, or None."""
        mask, offset = self.hashed.get(port, (0, 0))
        header = bytes(12) + ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed
        key = int.from_bytes(header[offset : offset + 4], "big") & mask
        for bucket, field, address, minor in self.filters.get(port, ()):
            if bucket == key and address == {"src": src, "dst": dst}[field]:
                return minor
        return self.default.get(port) or None


def all_routes(fabric: Fabric) -> "list[tuple[str, str, tuple[str, ...], list[str]]]":
    """Return every route between two GPUs: source, destination, the switches passed, and its logical links."""
    site_spines = defaultdict(list)
    for switch in fabric.switches:
        if switch.kind == "spine":
            site_spines[switch.site].append(switch.name)
    found = []
    for a in fabric.gpus:
        for b in fabric.gpus:
            if a is b:
                continue
            if a.site != b.site:
                for path in fabric.paths_between[a.site, b.site]:
                    routers = path.name.split(">")
                    links = [f"{a.name}>{routers[0]}", *(">".join(hop) for hop in pairwise(routers))]
                    links.append(f"{routers[-1]}>{b.name}")
                    for up in site_spines[a.site]:
                        found += [
                            (a.name, b.name, (a.leaf, up, *routers, down, b.leaf), links)
                            for down in site_spines[b.site]
                        ]
            elif a.leaf == b.leaf:
                found.append((a.name, b.name, (a.leaf,), [f"{a.name}>{b.name}"]))
            else:
                found += [
                    (a.name, b.name, (a.leaf, spine, b.leaf), [f"{a.name}>{b.name}"]) for spine in site_spines[a.site]
                ]
    return found


@settings(deadline=None, max_examples=40)
@given(specs)
def test_every_route_passes_one_class_per_logical_link_over_any_spine(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    shaping, rates = shaping_of(fabric), rates_of(fabric)
    read = ParsedBatch(shaping.structure(rates))
    port = {(switch.name, port.peer): port.interface for switch in fabric.switches for port in switch.ports}
    ip = {gpu.name: gpu.ip for gpu in fabric.gpus}
    link = {link.name: link for link in fabric.links}
    for src, dst, switches, links in all_routes(fabric):
        passed = [port[hop] for hop in pairwise((*switches, dst))]
        shaped = [(at, read.class_of(at, ip[src], ip[dst])) for at in passed]
        classes = [(at, minor) for at, minor in shaped if minor is not None]
        want = [8 * TCP_FRAMES.wire_bytes_per_s(int(rates[link[name].index])) for name in links]
        assert [read.rate[key] for key in classes] == want, (src, dst, switches)
        assert {(link[name].kind, shaping.delays_ns.get(key, 0)) for key, name in zip(classes, links, strict=True)} <= {
            ("wan", 10_000),
            ("intra", 700),
            ("to_br", 700),
            ("from_br", 700),
        }


@settings(deadline=None, max_examples=40)
@given(specs)
def test_with_fair_sharing_every_route_is_delayed_once_after_its_last_class(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    shaping = shaping_of(fabric, fair=True)
    arrives = {(s.name, port.peer): port.interface for s in fabric.switches for port in s.ports}
    arrives |= {(gpu.name, gpu.leaf): gpu.interface for gpu in fabric.gpus}
    gpu = {one.name: one for one in fabric.gpus}
    for src, dst, switches, links in all_routes(fabric):
        wanted_ns = sum(10_000 if fabric.links[index].kind == "wan" else 700 for index in link_indices(fabric, links))
        passed = {arrives[there, here] for here, there in pairwise((*switches, dst))}
        delays = [
            (one.rank, one.delay_ns)
            for one in shaping.ifbs
            if one.interface in passed and (not one.sources or any(has(prefix, gpu[src].ip) for prefix in one.sources))
        ]
        assert sum(delay_ns for _, delay_ns in delays) == wanted_ns, (src, dst, switches)
        assert {rank for rank, _ in delays} <= {None, gpu[dst].rank}
        if len(switches) == 1 or (spec.wan.preset == "mesh" and len(links) == 3):
            assert [rank for rank, _ in delays] == [gpu[dst].rank]
    assert len({one.name for one in shaping.ifbs}) == len(shaping.ifbs)
    assert len({(one.rank, one.interface, one.delay_ns) for one in shaping.ifbs}) == len(shaping.ifbs)
    assert shaping_of(fabric).ifbs == ()


@settings(deadline=None, max_examples=20)
@given(specs)
def test_with_path_tags_every_route_is_delayed_once_at_its_destination(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    shaping = replace(shaping_of(fabric, fair=True), paths=tuple(f"tag {path.index}" for path in fabric.paths))
    arrives = {(s.name, port.peer): port.interface for s in fabric.switches for port in s.ports}
    arrives |= {(gpu.name, gpu.leaf): gpu.interface for gpu in fabric.gpus}
    gpu, delay_ns = {one.name: one for one in fabric.gpus}, {one.name: one.delay_ns for one in shaping.ifbs}
    index = {path.name: path.index for path in fabric.paths}
    filters = defaultdict(list)  # by interface: priority, match and IFB device
    for line in (line for one in shaping.ifbs for line in one.filters()):
        found = re.fullmatch(
            r"filter add dev (\S+) .* prio (\d) u32 (.*) action mirred egress redirect dev (\S+)", line
        )
        assert found is not None, line
        filters[found[1]].append((int(found[2]), found[3], found[4]))
    for src, dst, switches, links in all_routes(fabric):
        wanted_ns = sum(10_000 if fabric.links[index].kind == "wan" else 700 for index in link_indices(fabric, links))
        crosses = gpu[src].site != gpu[dst].site
        path = index[">".join(name for name in switches if name[0] == "R" or "b" in name)] if crosses else -1
        is_fixed = crosses and fabric.paths_between[gpu[src].site, gpu[dst].site][0].index == path
        tags = [f"tag {path}"] * crosses + [None] * (is_fixed or not crosses)
        for tag in tags:
            total_ns = 0
            for here, there in pairwise((*switches, dst)):
                on = filters[arrives[there, here]]
                redirected = [
                    one
                    for one in on
                    if one[1] == tag or (one[1].startswith("match ip src ") and has(one[1].split()[-1], gpu[src].ip))
                ]
                if redirected:
                    total_ns += delay_ns[min(redirected)[2]]
                    assert there == dst
            assert total_ns == wanted_ns, (src, dst, switches, tag)
    assert not any(one.name.startswith("wan") for one in shaping.ifbs)


@given(st.sets(st.integers(0, 2**32 - 1) | st.integers(10 << 24, (10 << 24) + 40), min_size=1), st.data())
def test_prefixes_have_all_of_the_addresses_and_none_of_the_others(numbers: set[int], data: st.DataObject) -> None:
    own = data.draw(st.sets(st.sampled_from(sorted(numbers))))
    mine, others = ([str(ipaddress.ip_address(one)) for one in each] for each in (own, numbers - own))
    found = prefixes(mine, others)
    assert all(sum(has(prefix, address) for prefix in found) == 1 for address in mine)
    assert not any(has(prefix, address) for prefix in found for address in others)
    if not others:
        assert len(found) == bool(mine)


@settings(deadline=None, max_examples=40)
@given(specs)
def test_every_wan_link_has_random_loss_with_its_own_seed_and_the_same_delays(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    plain = replace(shaping_of(fabric), buffer=Buffer(limit_bytes=10**6))
    lossy = replace(plain, wan_loss=0.01, seed=7)
    arrives = {(s.name, port.peer): port.interface for s in fabric.switches for port in s.ports}
    losing = [one for one in lossy.ifbs if one.loss]
    assert sorted(one.interface for one in losing) == sorted(
        arrives[link.dst, link.src] for link in fabric.links if link.kind == "wan"
    )
    assert {(one.loss, one.rank, one.sources) for one in losing} == {(0.01, None, ())}
    assert len({one.seed for one in losing}) == len(losing) == len({one.name for one in losing})
    other = [one.seed for one in replace(lossy, seed=8).ifbs if one.loss]
    assert not set(other) & {one.seed for one in losing} and losing == [one for one in lossy.ifbs if one.loss]

    def delaying(shaping: Shaping) -> list[tuple[object, ...]]:
        return [(one.rank, one.interface, one.sources, one.delay_ns) for one in shaping.ifbs if one.delay_ns]

    assert delaying(lossy) == delaying(plain)
    assert not any(one.loss or one.seed is not None for one in plain.ifbs)


@settings(deadline=None, max_examples=40)
@given(specs)
def test_in_the_physical_grain_every_route_passes_one_class_per_cable(spec: FabricSpec) -> None:
    fabric = build_fabric(replace(spec, grain="physical"))
    shaping = Shaping(fabric=fabric, delays_s=delays_s(build_fabric(spec), ConditionsSpec()))
    rates = 1e9 * (1 + np.arange(2 * len(fabric.cables), dtype=np.float64))
    index = {f"{a}>{b}": 2 * n + turned for n, c in enumerate(fabric.cables) for turned, (a, b) in _both(c.a, c.b)}
    read = ParsedBatch(shaping.structure(rates))
    leaves = {(s.name, port.peer): port.interface for s in fabric.switches for port in s.ports}
    ifbs = {one.interface: one.name for one in shaping.ifbs if one.rank is None and one.delay_ns == 0}
    for src, dst, switches, _ in all_routes(fabric):
        ports = [ifbs[leaves[switches[0], src]], *(leaves[hop] for hop in pairwise((*switches, dst)))]
        found = [read.rate[port, read.default[port]] for port in ports]
        names = [">".join(hop) for hop in pairwise((src, *switches, dst))]
        assert found == [8 * TCP_FRAMES.wire_bytes_per_s(int(rates[index[name]])) for name in names], (
            src,
            dst,
            switches,
        )
    assert len(shaping.classes) == len(rates) and not any(read.filters.values())
    with pytest.raises(ValueError, match=f"the fabric has {len(rates)} links or ports, one rate each"):
        shaping.wanted(rates[1:])


def _both(a: str, b: str) -> "list[tuple[int, tuple[str, str]]]":
    return [(0, (a, b)), (1, (b, a))]


def link_indices(fabric: Fabric, names: list[str]) -> list[int]:
    index = {link.name: link.index for link in fabric.links}
    return [index[name] for name in names]


def test_with_fair_sharing_every_class_has_a_fair_queue_that_acknowledgements_bypass() -> None:
    fabric = build_fabric(FabricSpec())
    fair, fifo = (ParsedBatch(shaping_of(fabric, fair=fair).structure(rates_of(fabric))) for fair in (True, False))
    assert fair.rate == fifo.rate and fair.filters == fifo.filters and fair.default == fifo.default
    assert fair.queues.keys() == fifo.queues.keys() == fair.rate.keys()
    assert {queue.split()[0] for queue in fifo.queues.values()} == {"netem"}
    (queue,) = set(fair.queues.values())
    assert queue.startswith("fq nopacing maxrate 30gbit ") and " quantum 9014 initial_quantum 9014 " in queue
    assert fair.first_filter.keys() == fair.default.keys()
    for line in fair.first_filter.values():  # IP's length field is 52: IP header 20, TCP header 20, timestamps 12
        assert line.endswith(f" u32 match u16 {52:#06x} 0xffff at 2 flowid 1:0")


def test_with_fair_sharing_delays_that_differ_between_border_routers_are_refused() -> None:
    fabric = build_fabric(FabricSpec())
    delays = delays_s(fabric, ConditionsSpec())
    index = {link.name: link.index for link in fabric.links}
    delays[index["g0>s0b0"]] = 5e-6  # longer than through s0b1
    with pytest.raises(ValueError, match="differ between border routers; allowed:"):
        _ = Shaping(fabric=fabric, delays_s=delays, fair=True).ifbs


@pytest.mark.parametrize("late_s", [1.1e-6, 1e-3])
def test_the_burst_of_a_class_is_its_rate_times_the_timer_latency(late_s: float) -> None:
    shaping = shaping_of(fabric := build_fabric(FabricSpec()), late_s)
    lines = re.findall(r" rate (\d+)bit .* burst (\d+) cburst (\d+) ", shaping.structure(rates_of(fabric)))
    assert len(lines) == len(shaping.classes)
    for bits, burst, ceil_burst in lines:
        assert burst == ceil_burst
        assert 8 * int(burst) / int(bits) == pytest.approx(late_s, rel=1e-3)


@given(st.integers(10**6, 4 * 10**11), st.integers(1, 100_000))
def test_full_frames_carry_payload_at_the_configured_rate(rate_bps: int, frames: int) -> None:
    wire = frames * (6 + 6 + 2 + 9000)  # Ethernet addresses and type, then an IP packet
    payload = frames * (9000 - 20 - 20 - 12)  # less the IPv4 and TCP headers and TCP timestamps
    seconds = wire / TCP_FRAMES.wire_bytes_per_s(rate_bps)
    assert 8 * payload / seconds == pytest.approx(rate_bps, rel=1e-12, abs=8)


@given(st.integers(10**6, 4 * 10**11), st.integers(1, 10**7))
def test_messages_of_roce_are_cut_into_packets_of_4096_bytes(rate_bps: int, message_bytes: int) -> None:
    cut = [4096] * (message_bytes // 4096) + [message_bytes % 4096] * (message_bytes % 4096 > 0)
    wire = sum(14 + 20 + 8 + 12 + size + 4 for size in cut)  # Ethernet, IPv4, UDP, base transport header, checksum
    assert ROCE_FRAMES.wire_bytes(message_bytes) == wire
    assert 8 * 4096 / (4154 / ROCE_FRAMES.wire_bytes_per_s(rate_bps)) == pytest.approx(rate_bps, rel=1e-12, abs=8)
    assert TCP_FRAMES.payload_of(TCP_FRAMES.frame_bytes) == 8948 and ROCE_FRAMES.payload_of(4154) == 4096


def test_link_delays_are_exact_to_the_nanosecond_when_timers_are_never_late() -> None:
    fabric = build_fabric(FabricSpec())
    given = {"wan": 0.0123456789, "intra": 0.7e-6, "to_br": 1e-9, "from_br": 0.0}
    delays = np.array([given[link.kind] for link in fabric.links])
    wanted_ns = {"wan": 12_345_679, "intra": 700, "to_br": 1}
    found = Shaping(fabric=fabric, delays_s=delays).delays_ns
    for one in classes_of(fabric):
        assert found.get(one.key) == wanted_ns.get(fabric.links[one.link].kind)
    late = Shaping(fabric=fabric, delays_s=delays, late_s=1e-3).delays_ns  # below 10 us it is negligible
    assert late == {key: ns for key, ns in found.items() if ns >= 10_000}


def test_a_rate_mismatch_is_reported_with_port_wanted_and_actual_rate() -> None:
    wanted = {("s0l0-eth1", 1): 1000, ("s0l0-eth1", 10): 2000}
    right = {key: (rate, rate) for key, rate in wanted.items()}
    assert mismatch(wanted, right) is None
    found = mismatch(wanted, right | {("s0l0-eth1", 10): (2000, 2001)})
    assert found == "class 1:a of port s0l0-eth1 should have 16000 bit/s but has 16008 bit/s"
    assert "does not exist" in str(mismatch(wanted, {("s0l0-eth1", 1): (1000, 1000)}))
    assert "should not exist" in str(mismatch(wanted, right | {("s0l0-eth2", 1): (5, 5)}))


@pytest.mark.parametrize(("grain", "sending"), [("logical", 2), ("physical", 3)])
def test_service_classes_exist_only_at_wan_ports_with_their_shares_of_the_rate(grain: str, sending: int) -> None:
    fabric = build_fabric(FabricSpec(grain=grain))
    served = [Service(dscp=8, assured=0.25), Service(dscp=16, ceiling=0.5), Service(dscp=0)]
    plain = Shaping(fabric=fabric, delays_s=delays_s(fabric, ConditionsSpec()), fair=True)
    shaping = replace(plain, services=tuple(served), sending_services=sending, segment_bytes=64_000)
    shaping = replace(shaping, serving=wan_of(fabric))
    rates = rates_of(fabric)
    lines, without = (one.structure(rates).splitlines() for one in (shaping, plain))
    near = {one.name for one in (*_site_switches(fabric), *fabric.gpus)}
    wan = {port.interface for one in fabric.switches for port in one.ports if {one.name, port.peer}.isdisjoint(near)}
    assert len(wan) == 8
    assert [line for line in lines if _port(line) not in wan] == [line for line in without if _port(line) not in wan]
    for port in wan:
        here = "\n".join(line for line in lines if _port(line) == port)
        (rate,) = re.findall(r"parent 1: classid 1:1 htb rate (\d+)bit ceil \1bit", here)
        below = re.findall(r"parent 1:1 classid 1:(\w+) htb rate (\d+)bit ceil (\d+)bit .* prio (\d+)", here)
        whole = int(rate) // 8
        parts = [(whole * 0.25, whole), (0, whole * 0.5), (0, whole)]
        for (minor, own, most, priority), (assured, ceiling), number in zip(below, parts, range(3), strict=True):
            assert (int(minor, 16), int(priority)) == (2 + number, number)
            assert abs(int(own) / 8 - max(1, assured)) <= 0.5 and abs(int(most) / 8 - ceiling) <= 0.5
        # A class with an assured part or a ceiling makes up for the time that the port takes for a segment of each
        # of the others.
        bursts_ns = [shaping.child_classes(rates)[port, minor].burst_ns for minor in (2, 3, 4)]
        assert bursts_ns == [round(1e9 * 64_000 * (sending - 1) / whole)] * 2 + [0]
        tos = re.findall(r"match ip tos (0x\w+) 0xfc flowid 1:(\w+)", here)
        assert [(int(value, 16) >> 2, int(minor, 16)) for value, minor in tos] == [(8, 2), (16, 3), (0, 4)]
        assert "htb default 4 " in here and "parent 1:1 fq" not in here  # a class with inner classes has no queue


def test_a_link_of_a_gpu_that_serves_classes_has_them_below_its_own_class_at_every_spine() -> None:
    """The packets of other GPUs at the same ports are in none of them, and those of no class come last."""
    fabric = build_fabric(FabricSpec())
    (link,) = (one for one in fabric.links if (one.kind, one.src, one.dst) == ("to_br", "g0", "s0b0"))
    ports = [port.interface for one in fabric.switches for port in one.ports if port.peer == "s0b0"]
    spines = [name for name in ports if name.startswith("s0p")]
    plain = Shaping(fabric=fabric, delays_s=delays_s(fabric, ConditionsSpec()), fair=True)
    services = Service(dscp=8), Service(dscp=0)
    shaping = replace(plain, services=services, serving=frozenset({link.index}), sending_services=2)
    rates = rates_of(fabric)
    lines, without = (one.structure(rates).splitlines() for one in (shaping, plain))
    assert [line for line in lines if _port(line) not in spines] == [
        line for line in without if _port(line) not in spines
    ]
    assert len(spines) == 2
    address = f"match ip src {fabric.gpus[0].ip}/32"
    for port in spines:
        here = [line for line in lines if _port(line) == port]
        found = [re.sub(".* u32 ", "", line) for line in here if address in line]
        assert found == [
            f"{address} match ip tos 0x20 0xfc flowid 1:5",
            f"{address} match ip tos 0x00 0xfc flowid 1:6",
            f"ht 1:1: {address} flowid 1:6",
        ]
        assert sum("parent 1:1 classid" in line for line in here) == 2
        others = [line for line in without if _port(line) == port and "1:1" not in line and address not in line]
        assert set(others) <= set(here)


def _port(line: str) -> str:
    words = line.split()
    return words[words.index("dev") + 1]


def _site_switches(fabric: Fabric) -> list[Switch]:
    return [switch for switch in fabric.switches if switch.kind in ("leaf", "spine")]


def test_an_inner_class_is_compared_with_its_own_rate_and_its_ceiling() -> None:
    wanted, children = {("p", 1): 1000, ("p", 2): 500}, {("p", 2): ChildClass(rate=250, parent=1, priority=0)}
    right = {("p", 1): (1000, 1000), ("p", 2): (250, 500)}
    assert mismatch(wanted, right, children) is None
    found = mismatch(wanted, right | {("p", 2): (500, 500)}, children)
    assert found == "class 1:2 of port p should have 2000 bit/s but has 4000 bit/s"


@pytest.mark.parametrize(("gpus", "most"), [(8, 1), (16, 1), (64, 4), (128, 12)])
def test_rates_are_sent_in_few_netlink_messages_that_fit_the_kernels_buffer(gpus: int, most: int) -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(gpus // 2, gpus // 2)))
    bodies = [netlink._htb_body((n, one.minor), 10**9, 64, 1500) for n, one in enumerate(classes_of(fabric))]
    parts = list(netlink.portions(bodies))
    assert [body for part in parts for body in part] == bodies
    assert 1 <= len(parts) <= most
    for part in parts:  # a netlink message must fit the socket's send buffer less the 32 bytes that the kernel uses
        assert 0 < sum(16 + len(body) for body in part) <= 212992 - 32


# --- the rate scale -------------------------------------------------------------------------------------------------


def test_a_rate_scale_is_one_over_a_whole_number() -> None:
    for text, divisor in (("1/1000", 1000), (" 1 / 8 ", 8), ("1", 1), ("1/1", 1)):
        assert RateScale.parse(text) == RateScale.parse(str(RateScale(divisor))) == RateScale(divisor)
    for text in ("", "0", "2/3", "1/0", "-1/10", "1/1.5", "0.001", "1000", f"1/{MAX_DIVISOR + 1}"):
        with pytest.raises(ScaleError, match="allowed:"):
            RateScale.parse(text)


@given(st.integers(1, 10_000), st.integers(10**9, 200 * 10**9), st.integers(10**6, 64 * 10**6))
def test_a_rate_scale_keeps_times_and_rounds_no_rate_or_chunk_to_zero(
    divisor: int, rate_bps: int, chunk_bytes: int
) -> None:
    scale = RateScale(divisor)
    carried = scale.chunk_bytes(chunk_bytes)
    assert carried * divisor == pytest.approx(chunk_bytes, abs=divisor / 2)
    assert scale.rate_bps(rate_bps) == scale.rates_bps(np.array([rate_bps], dtype=np.float64))[0]
    meant_s = 8 * carried * divisor / rate_bps
    assert 8 * carried / scale.rate_bps(rate_bps) == pytest.approx(meant_s, rel=1e-4)
    assert RateScale(1000).rates_bps(np.array([3.0])).tolist() == [RateScale(1000).rate_bps(3)] == [1]
    with pytest.raises(ScaleError, match="499 B at the rate scale 1/1000"):
        RateScale(1000).chunk_bytes(499)
