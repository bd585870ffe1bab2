"""The declared fabric: names and addresses valid for Linux and OpenFlow, logical links, and WAN paths."""

import ipaddress
import json
import re
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.wan import MAX_ALL_PATHS, MAX_PATHS, WanSpec

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
    return dict(caught.value.mistakes)


def wan_names(fabric: Fabric, a: int, b: int) -> list[str]:
    return [path.name for path in fabric.paths_between[a, b]]


@settings(deadline=None, max_examples=60)
@given(specs)
def test_names_and_addresses_are_unique_and_valid_and_every_port_has_one_cable(spec: FabricSpec) -> None:
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
def test_ranks_leaves_and_logical_links_match_the_papers_model(spec: FabricSpec) -> None:
    fabric = build_fabric(spec)
    assert [gpu.rank for gpu in fabric.gpus] == list(range(sum(spec.gpus_per_site)))
    assert fabric.gpu_sites.tolist() == [s for s, count in enumerate(spec.gpus_per_site) for _ in range(count)]
    loads = Counter(gpu.leaf for gpu in fabric.gpus)
    for site in range(len(spec.gpus_per_site)):
        there = [loads[switch.name] for switch in fabric.switches if (switch.site, switch.kind) == (site, "leaf")]
        assert max(there) - min(there) <= 1
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


def test_wan_paths_are_all_loop_free_paths_with_the_shortest_first() -> None:
    mesh = build_fabric(FabricSpec())
    assert wan_names(mesh, 0, 1) == ["s0b0>s1b0", "s0b0>s1b1", "s0b1>s1b0", "s0b1>s1b1"]
    assert wan_names(mesh, 1, 0) == ["s1b0>s0b0", "s1b0>s0b1", "s1b1>s0b0", "s1b1>s0b1"]
    five = build_fabric(FabricSpec(border_routers=1, wan=WanSpec(preset="five-router")))
    ways = ["R4>R3", "R1>R2>R3", "R4>R2>R3", "R1>R2>R4>R3"]
    assert wan_names(five, 0, 1) == [f"s0b0>R0>{way}>s1b0" for way in ways]
    for fabric in (mesh, five):
        assert [path.index for path in fabric.paths] == list(range(len(fabric.paths)))
        for path in fabric.paths:
            hops = [fabric.links[link] for link in path.links]
            assert [hops[0].src, *(hop.dst for hop in hops)] == path.name.split(">")
            assert all(a.dst == b.src for a, b in pairwise(hops))
            ends = (path.src_br, path.src_site, hops[0].src), (path.dst_br, path.dst_site, hops[-1].dst)
            assert all(fabric.border_routers[br] == end and fabric.br_sites[br] == site for br, site, end in ends)


def test_no_path_leads_through_a_third_site() -> None:
    chain = (("s0b0", "s1b0"), ("s1b0", "s2b0"))
    line = custom(*chain, gpus=(2, 2, 2))
    assert line.site_cycle is None and line.unjoined_sites == ((0, 2),)
    closed = custom(*chain, ("s2b0", "X"), ("X", "s0b0"), routers=("X",), gpus=(2, 2, 2))
    assert wan_names(closed, 0, 2) == ["s0b0>X>s2b0"]
    assert closed.site_cycle == (0, 1, 2) and closed.unjoined_sites == ()


def test_a_single_site_has_no_wan_and_sites_may_have_one_gpu() -> None:
    alone = build_fabric(FabricSpec(gpus_per_site=(3,), border_routers=5))
    assert {link.kind for link in alone.links} == {"intra"} and len(alone.links) == 6
    assert (alone.paths, alone.border_routers, alone.site_cycle) == ((), (), (0,))
    assert {switch.kind for switch in alone.switches} == {"leaf", "spine"}
    lonely = build_fabric(FabricSpec(gpus_per_site=(1, 1, 2), border_routers=1))
    assert [gpu.site for gpu in lonely.gpus] == [0, 1, 2, 2] and lonely.site_cycle == (0, 1, 2)
    assert sorted(link.name for link in lonely.links if link.kind == "intra") == ["g2>g3", "g3>g2"]


def test_the_fixed_ring_visits_the_sites_in_an_order_that_the_wan_allows() -> None:
    around = [(f"s{a}b0", f"s{b}b0") for a, b in ((0, 2), (2, 1), (1, 3), (3, 0))]
    assert custom(*around, gpus=(2, 2, 2, 2)).site_cycle == (0, 2, 1, 3)
    assert build_fabric(FabricSpec(gpus_per_site=(2, 2, 2, 2))).site_cycle == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("count", "direct", "named"), [(9, [], f"more than {MAX_PATHS} "), (40, [("s0b0", "s1b0")], "too dense")]
)
def test_a_wan_with_too_many_paths_is_refused(count: int, direct: list[tuple[str, str]], named: str) -> None:
    routers = tuple(f"X{i}" for i in range(count))
    links = [(a, b) for i, a in enumerate(routers) for b in routers[:i]]
    with pytest.raises(FabricError, match=named):
        custom(*direct, *links, ("s0b0", "X0"), *([] if direct else [("s1b0", "X8")]), routers=routers)


def test_the_paths_of_all_sites_together_fit_the_16_bits_in_which_they_are_stored() -> None:
    """32 border routers in each of 7 sites have 7 x 6 x 32 x 32 = 43,008 paths."""
    with pytest.raises(FabricError, match="43,008 paths lead from site to site; allowed: 32,767"):
        build_fabric(FabricSpec(gpus_per_site=(2,) * 7, border_routers=32))
    assert np.iinfo(np.int16).max == MAX_ALL_PATHS


WIDE = {"gpus_per_site": (2, 2, 2, 2), "border_routers": 26, "routers": ("wide_nine",)}
WIDE |= {"links": [(f"s{site}b{index}", "wide_nine") for site in range(4) for index in range(26)]}


@pytest.mark.parametrize(
    ("changes", "keys", "named"),
    [
        ({"links": [("s0b0", "A")], "routers": ("A",)}, "wan.links", "no link leads from s0b0 to s1b0"),
        ({"links": [("s0b0", "s0b0")]}, "wan.links", "to itself"),
        ({"links": [("s0b0", "s9b0")]}, "wan.links", '"s9b0"'),
        ({"links": []}, "wan.links", "not connected"),
        ({"routers": ("A", "A")}, "wan.routers", '"A" is named twice; allowed: once'),
        ({"routers": ("g0",)}, "wan.routers", '"g0" is reserved'),
        ({"routers": ("much_too_long",)}, "wan.routers", "not a name"),
        ({"routers": ("0x",)}, "wan.routers", "not a name"),
        (WIDE, None, "longer than Linux's 15"),
        ({"gpus_per_site": (2, 2, 2), "wan": WanSpec(preset="five-router")}, "wan", "two sites"),
        ({"wan": WanSpec(preset="ring")}, "wan", "allowed: mesh, five-router"),
        ({"wan": WanSpec(routers=("A",))}, "wan", "a preset or a table"),
        ({"gpus_per_site": (1,)}, "gpus", "1 GPU alone has nothing to send to"),
        ({"gpus_per_site": (4,) * 11}, "gpus", "11 sites; allowed: 1 to 10"),
        ({"gpus_per_site": (0, 4)}, "gpus", "0 gpus in a site; a site has 1 to 256"),
        (
            {"gpus_per_site": (0, 4), "leaves": 0, "spines": (2, 2, 2), "border_routers": 99},
            "gpus leaves spines border_routers",
            "",
        ),
    ],
)
def test_an_invalid_fabric_is_refused_with_every_offending_key(
    changes: dict[str, Any], keys: str | None, named: str
) -> None:
    given = {"gpus_per_site": (2, 2), "border_routers": 1} | changes
    links, routers = given.pop("links", [("s0b0", "s1b0")]), given.pop("routers", ())
    found = mistakes_of(FabricSpec(**{"wan": WanSpec(preset=None, routers=routers, links=tuple(links))} | given))
    assert any(named in text for text in found.values()), found
    assert keys is None or set(found) == {f"fabric.{key}" for key in keys.split()}


@pytest.mark.parametrize(
    ("links", "remedy"),
    [
        ([("s0b0", "s1b0")] * 2, "1"),
        ([("s0b0", "A"), ("A", "s1b0"), ("A", "s1b1")], "[1, 2]"),
        ([("s0b1", "s1b0")], None),  # as s0b1 is not the first of its site
        ([("s0b0", "s0b1")], None),  # as the second site has no link at all
        ([("s0b0", "A"), ("s1b0", "s1b1")], None),  # as fewer routers leave two islands
    ],
)
def test_a_wan_that_is_not_connected_is_told_how_many_border_routers_would_be(
    links: list[tuple[str, str]], remedy: str | None
) -> None:
    routers = tuple({name for ends in links for name in ends if name == "A"})
    given: dict[str, Any] = {"gpus_per_site": (2, 2), "wan": WanSpec(preset=None, routers=routers, links=tuple(links))}
    text = mistakes_of(FabricSpec(**given))["fabric.wan.links"]
    assert text.partition("; allowed: ")[2].split(", or fabric.border_routers = ")[1:] == [remedy] * (
        remedy is not None
    )
    if remedy is not None:
        counts = json.loads(remedy)
        assert build_fabric(FabricSpec(**given, border_routers=tuple(counts) if isinstance(counts, list) else counts))


@pytest.mark.parametrize(("gpus", "counts"), [(8, (4, 4)), ("6", (3, 3)), ("3+5", (3, 5)), ("2+3+4", (2, 3, 4))])
def test_the_command_line_accepts_a_total_or_a_number_of_gpus_per_site(
    gpus: int | str, counts: tuple[int, ...]
) -> None:
    tiers = {"leaves": 1, "spines": 3, "border_routers": 4}
    spec = FabricSpec(gpus_per_site=counts, wan=WanSpec(preset="five-router"), **tiers)
    assert FabricSpec.parse(gpus=gpus, wan="five-router", **tiers) == spec
    assert FabricSpec.parse(gpus=gpus) == FabricSpec(gpus_per_site=counts)


@pytest.mark.parametrize("gpus", ["", "eight", "3+", "-8", "9" * 7, "٣", 7])
def test_an_invalid_number_of_gpus_is_refused(gpus: str | int) -> None:
    with pytest.raises(FabricError, match="GPUs") as caught:
        FabricSpec.parse(gpus=gpus)
    assert caught.value.mistakes[0].key == "fabric.gpus"
