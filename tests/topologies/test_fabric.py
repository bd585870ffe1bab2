"""The declared fabric: names and addresses that Linux and OpenFlow accept, logical links, and paths over the WAN."""

import ipaddress
import pickle
import re
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import FabricError, Mistake
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric, even_split
from topologies.fabric.wan import MAX_PATHS, WanSpec

counts = st.integers(1, 4)
specs = st.lists(st.integers(2, 9), min_size=2, max_size=4).flatmap(
    lambda gpus: st.builds(
        FabricSpec,
        gpus_per_site=st.just(tuple(gpus)),
        leaves=st.one_of(counts, st.tuples(*[counts] * len(gpus))),
        spines=counts,
        border_routers=st.one_of(counts, st.tuples(*[counts] * len(gpus))),
    )
)


def custom(
    *links: tuple[str, str], routers: tuple[str, ...] = (), gpus: tuple[int, ...] = (2, 2), brs: int = 1
) -> Fabric:
    wan = WanSpec(preset=None, routers=routers, links=links)
    return build_fabric(FabricSpec(gpus_per_site=gpus, border_routers=brs, wan=wan))


def mistakes_of(spec: FabricSpec) -> dict[str, str]:
    with pytest.raises(FabricError) as caught:
        build_fabric(spec)
    assert caught.value.key == caught.value.mistakes[0].key
    return dict(caught.value.mistakes)


def wan_names(fabric: Fabric, a: int, b: int) -> list[str]:
    return [path.name for path in fabric.paths_between[a, b]]


@settings(deadline=None, max_examples=60)
@given(specs)
def test_what_linux_and_openflow_see_is_unique_and_fits(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    names = [*(gpu.name for gpu in fabric.gpus), *(switch.name for switch in fabric.switches)]
    interfaces = [gpu.interface for gpu in fabric.gpus]
    interfaces += [port.interface for switch in fabric.switches for port in switch.ports]
    for values in (
        names,
        interfaces,
        [switch.dpid for switch in fabric.switches],
        [gpu.mac for gpu in fabric.gpus],
        [gpu.ip for gpu in fabric.gpus],
        [link.name for link in fabric.links],
    ):
        assert len(set(values)) == len(values)
    assert max(map(len, names)) <= 9
    assert max(map(len, interfaces)) <= 15
    assert all(0 < switch.dpid < 2**64 for switch in fabric.switches)
    assert all(re.fullmatch(r"02(:[0-9a-f]{2}){5}", gpu.mac) for gpu in fabric.gpus)
    assert all(ipaddress.ip_address(gpu.ip) in ipaddress.ip_network("10.0.0.0/8") for gpu in fabric.gpus)


@settings(deadline=None, max_examples=40)
@given(specs)
def test_every_cable_ends_at_the_ports_it_names_and_every_port_has_one_cable(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    port_of = {(switch.name, port.number): port for switch in fabric.switches for port in switch.ports}
    used = []
    for cable in fabric.cables:
        for near, number, far in ((cable.a, cable.a_port, cable.b), (cable.b, cable.b_port, cable.a)):
            if near.startswith("g"):
                assert number == 0
            else:
                used.append((near, number))
                assert port_of[near, number].peer == far
    assert sorted(used) == sorted(port_of)
    assert all(number >= 1 for _, number in port_of)


@settings(deadline=None, max_examples=40)
@given(specs)
def test_the_logical_links_are_those_of_the_paper(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    assert [link.index for link in fabric.links] == list(range(len(fabric.links)))
    expected = set()
    for a in fabric.gpus:
        expected |= {("intra", a.name, b.name) for b in fabric.gpus if b.site == a.site and b is not a}
        for router, site in zip(fabric.border_routers, fabric.br_sites, strict=True):
            if site == a.site:
                expected |= {("to_br", a.name, router), ("from_br", router, a.name)}
    sites = dict(zip(fabric.border_routers, fabric.br_sites, strict=True))
    expected |= {("wan", a, b) for a, b in permutations(sites, 2) if sites[a] != sites[b]}
    assert {(link.kind, link.src, link.dst) for link in fabric.links} == expected
    for table, rows, columns in (
        (fabric.intra_index, [g.name for g in fabric.gpus], [g.name for g in fabric.gpus]),
        (fabric.to_br_index, [g.name for g in fabric.gpus], fabric.border_routers),
        (fabric.from_br_index, fabric.border_routers, [g.name for g in fabric.gpus]),
    ):
        joined = {(link.src, link.dst): link.index for link in fabric.links}
        for i, src in enumerate(rows):
            for j, dst in enumerate(columns):
                assert table[i, j] == joined.get((src, dst), -1)


@settings(deadline=None, max_examples=30)
@given(specs)
def test_ranks_count_through_the_sites_and_gpus_share_the_leaves_evenly(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    assert [gpu.rank for gpu in fabric.gpus] == list(range(sum(spec.gpus_per_site)))
    assert fabric.gpu_sites.tolist() == [s for s, count in enumerate(spec.gpus_per_site) for _ in range(count)]
    for site, count in enumerate(spec.gpus_per_site):
        leaves = [switch.name for switch in fabric.switches if switch.site == site and switch.kind == "leaf"]
        loads = [sum(gpu.leaf == leaf for gpu in fabric.gpus) for leaf in leaves]
        assert sum(loads) == count
        assert max(loads) - min(loads) <= 1


def test_a_path_is_made_of_links_that_meet() -> None:
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset="five-router")))
    assert [path.index for path in fabric.paths] == list(range(len(fabric.paths)))
    for path in fabric.paths:
        hops = [fabric.links[link] for link in path.links]
        assert hops[0].src == fabric.border_routers[path.src_br]
        assert hops[-1].dst == fabric.border_routers[path.dst_br]
        assert all(a.dst == b.src for a, b in pairwise(hops))
        assert fabric.br_sites[path.src_br] == path.src_site
        assert fabric.br_sites[path.dst_br] == path.dst_site


def test_mesh_offers_one_path_for_each_pair_of_border_routers_the_fixed_one_first() -> None:
    fabric = build_fabric(FabricSpec())
    assert wan_names(fabric, 0, 1) == ["s0b0>s1b0", "s0b0>s1b1", "s0b1>s1b0", "s0b1>s1b1"]
    assert wan_names(fabric, 1, 0) == ["s1b0>s0b0", "s1b0>s0b1", "s1b1>s0b0", "s1b1>s0b1"]


def test_five_routers_offer_the_four_ways_from_r0_to_r3_shortest_first() -> None:
    fabric = build_fabric(FabricSpec(border_routers=1, wan=WanSpec(preset="five-router")))
    assert wan_names(fabric, 0, 1) == [
        "s0b0>R0>R4>R3>s1b0",
        "s0b0>R0>R1>R2>R3>s1b0",
        "s0b0>R0>R4>R2>R3>s1b0",
        "s0b0>R0>R1>R2>R4>R3>s1b0",
    ]


def test_no_path_leads_through_a_third_site() -> None:
    chain = (("s0b0", "s1b0"), ("s1b0", "s2b0"))
    with pytest.raises(FabricError, match="no ring visits every site once"):
        custom(*chain, gpus=(2, 2, 2))
    closed = custom(*chain, ("s2b0", "X"), ("X", "s0b0"), routers=("X",), gpus=(2, 2, 2))
    assert wan_names(closed, 0, 2) == ["s0b0>X>s2b0"]


def test_the_fixed_ring_visits_the_sites_in_an_order_the_wan_allows() -> None:
    around = [(f"s{a}b0", f"s{b}b0") for a, b in ((0, 2), (2, 1), (1, 3), (3, 0))]
    assert custom(*around, gpus=(2, 2, 2, 2)).site_cycle == (0, 2, 1, 3)
    assert build_fabric(FabricSpec(gpus_per_site=(2, 2, 2, 2))).site_cycle == (0, 1, 2, 3)


def test_too_many_paths_are_refused_with_their_number() -> None:
    routers = tuple(f"X{i}" for i in range(9))
    links = [(a, b) for i, a in enumerate(routers) for b in routers[:i]]
    with pytest.raises(FabricError, match=f"more than {MAX_PATHS} loop-free paths lead from site 0 to site 1"):
        custom(*links, ("s0b0", "X0"), ("s1b0", "X8"), routers=routers)


def test_a_search_that_would_not_end_is_refused() -> None:
    routers = tuple(f"X{i}" for i in range(40))
    links = [(a, b) for i, a in enumerate(routers) for b in routers[:i]]
    with pytest.raises(FabricError, match="too dense"):
        custom(("s0b0", "s1b0"), *links, ("s0b0", "X0"), routers=routers)


@pytest.mark.parametrize(
    ("links", "routers", "key", "message"),
    [
        ([("s0b0", "A")], ("A",), "fabric.wan.links", "in pieces: no link leads from s0b0 to s1b0"),
        ([("s0b0", "s1b0"), ("s1b0", "s0b0")], (), "fabric.wan.links", "s1b0-s0b0 is given twice"),
        ([("s0b0", "s0b0")], (), "fabric.wan.links", "to itself"),
        ([("s0b0", "s9b0")], (), "fabric.wan.links", "'s9b0' is not a router"),
        ([("s0b0", "s1b0")], ("A", "A"), "fabric.wan.routers", "'A' is named twice"),
        ([("s0b0", "s1b0")], ("g0",), "fabric.wan.routers", "'g0' is reserved for GPUs"),
        ([("s0b0", "s1b0")], ("much_too_long",), "fabric.wan.routers", "not a name for a router"),
        ([("s0b0", "s1b0")], ("0x",), "fabric.wan.routers", "not a name for a router"),
        ([], (), "fabric.wan.links", "in pieces"),
    ],
)
def test_a_wan_that_makes_no_sense_is_refused(
    links: list[tuple[str, str]], routers: tuple[str, ...], key: str, message: str
) -> None:
    wan = WanSpec(preset=None, routers=routers, links=tuple(links))
    mistakes = mistakes_of(FabricSpec(gpus_per_site=(2, 2), border_routers=1, wan=wan))
    assert message in mistakes[key]


@pytest.mark.parametrize(("gpus", "counts"), [(8, (4, 4)), ("6", (3, 3)), ("3+5", (3, 5)), ("2+3+4", (2, 3, 4))])
def test_a_command_line_declares_a_total_or_a_number_per_site(gpus: int | str, counts: tuple[int, ...]) -> None:
    assert FabricSpec.parse(gpus=gpus) == FabricSpec(gpus_per_site=counts)
    tiers = {"leaves": 1, "spines": 3, "border_routers": 4}
    spec = FabricSpec(gpus_per_site=counts, wan=WanSpec(preset="five-router"), **tiers)
    assert FabricSpec.parse(gpus=gpus, wan="five-router", **tiers) == spec


@pytest.mark.parametrize("gpus", ["", "eight", "3+", "-8", "9" * 7, "٣"])
def test_what_is_not_a_number_of_gpus_is_refused(gpus: str) -> None:
    with pytest.raises(FabricError, match="is not a number of GPUs") as caught:
        FabricSpec.parse(gpus=gpus)
    assert caught.value.key == "fabric.gpus"


def test_every_wrong_count_is_told_at_once() -> None:
    spec = FabricSpec(gpus_per_site=(1, 4), leaves=0, spines=(2, 2, 2), border_routers=99)
    mistakes = mistakes_of(spec)
    assert mistakes["fabric.gpus"] == "1 gpus in a site; a site has 2 to 128"
    assert set(mistakes) == {"fabric.gpus", "fabric.leaves", "fabric.spines", "fabric.border_routers"}


def test_presets_and_sites_that_do_not_go_together_are_refused() -> None:
    assert (
        "joins two sites"
        in mistakes_of(FabricSpec(gpus_per_site=(2, 2, 2), wan=WanSpec(preset="five-router")))["fabric.wan"]
    )
    assert "allowed: mesh, five-router" in mistakes_of(FabricSpec(wan=WanSpec(preset="ring")))["fabric.wan"]
    assert "a preset or a table" in mistakes_of(FabricSpec(wan=WanSpec(routers=("A",))))["fabric.wan"]
    assert "2 to 8" in mistakes_of(FabricSpec(gpus_per_site=(4,)))["fabric.gpus"]


def test_gpus_are_split_evenly_or_not_at_all() -> None:
    assert even_split(8) == (4, 4)
    assert even_split(9, sites=3) == (3, 3, 3)
    with pytest.raises(FabricError, match="7 GPUs do not divide over 2 sites"):
        even_split(7)


def test_an_interface_name_too_long_for_linux_is_refused() -> None:
    hub = "wide_nine"
    stars = [(f"s{site}b{index}", hub) for site in range(4) for index in range(26)]
    with pytest.raises(FabricError, match="longer than Linux's 15"):
        custom(*stars, routers=(hub,), gpus=(2, 2, 2, 2), brs=26)


def test_errors_cross_process_boundaries() -> None:
    error = pickle.loads(pickle.dumps(FabricError([Mistake("fabric.gpus", "no")])))
    assert error.key == "fabric.gpus"
    assert str(error) == "fabric.gpus: no"
