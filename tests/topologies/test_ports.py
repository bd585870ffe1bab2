"""The ports that flows pass, compared with packets that follow the controller's flow rules and with logical links."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.forwarding import rules
from controller.routing.switch_paths import FabricPaths
from tests.fakes.flowtables import FakeNetwork, fabrics, failures, hops_of, with_default_rules
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.ports import PORT_KINDS, Ports, delays_of, links_of

FABRIC = build_fabric(FabricSpec(gpus_per_site=(4, 4), leaves=2, spines=2, border_routers=2))


def edges(fabric: Fabric) -> list[tuple[int, int, int]]:
    """Return every (src, dst, path) of a fabric; path is -1 within a site."""
    sites, pairs = fabric.gpu_sites, permutations(range(len(fabric.gpus)), 2)
    return [
        (a, b, path)
        for a, b in pairs
        for path in (
            [-1] if sites[a] == sites[b] else [one.index for one in fabric.paths_between.get((sites[a], sites[b]), ())]
        )
    ]


def walked(network: FakeNetwork, src: int, dst: int) -> list[str]:
    """Return the ports that a packet passes according to the switches' flow tables."""
    gpus = network.fabric.gpus
    return [f"{a}>{b}" for a, b in hops_of((gpus[src].name, *network.walk(network.sent(src, dst)), gpus[dst].name))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_computed_ports_are_those_that_packets_pass_by_the_flow_rules(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    dead = data.draw(st.one_of(st.just(frozenset()), failures(fabric)))
    ways, ports, found = FabricPaths(fabric, dead), Ports(fabric, dead), edges(fabric)
    network, routes, tunnels = with_default_rules(ways), (), frozenset()
    for generation, (src, dst, path) in enumerate(data.draw(st.permutations(found))[:30], 1):
        wanted = {} if path < 0 else {(src, dst): path}
        change = rules.change(ways, routes, wanted, generation=generation, tunnels=tunnels)
        network.apply(*(message for stage in change.stages for message in stage))
        routes, tunnels = change.routes, change.tunnels
        names = [ports.all[port].name for port in ports.edge(src, dst, path)]
        assert names == walked(network, src, dst)
    src, dst, path = (np.array(column) for column in zip(*found, strict=True))
    together = ports.of(src, dst, path)
    for row, edge in zip(together, found, strict=True):
        assert tuple(port for port in row if port >= 0) == ports.edge(*edge)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fabrics())
def test_logical_links_and_delays_of_paths_match_the_fabric(fabric: Fabric) -> None:
    src, dst, path = np.array(edges(fabric)).T
    found, delays_s = links_of(fabric, src, dst, path), np.arange(1.0, len(fabric.links) + 1)
    for row, delay_s, edge in zip(found, delays_of(found, delays_s), edges(fabric), strict=True):
        links = fabric.edge_links(*edge)
        assert tuple(link for link in row if link >= 0) == links
        assert delay_s == sum(link + 1 for link in links)


def test_every_cable_has_a_port_in_each_direction() -> None:
    ports = Ports(FABRIC).all
    assert [port.index for port in ports] == list(range(2 * len(FABRIC.cables)))
    assert {frozenset((port.src, port.dst)) for port in ports} == {frozenset((c.a, c.b)) for c in FABRIC.cables}
    count = {kind: sum(port.kind == kind for port in ports) for kind in PORT_KINDS}
    # 8 GPUs; 2 sites of 2 leaves, 2 spines and 2 border routers; 4 WAN links both ways
    assert list(count.values()) == [8, 8, 8, 8, 8, 8, 8]
    assert {p.kind for p in ports if p.src in FABRIC.border_routers and p.dst in FABRIC.border_routers} == {"wan"}


def test_links_of_transit_routers_are_wan_ports() -> None:
    fabric = build_fabric(FabricSpec.parse(gpus=8, wan="five-router"))
    ports = Ports(fabric)
    wan = {port.name for port in ports.all if port.kind == "wan"}
    assert wan == {link.name for link in fabric.links if link.kind == "wan"}


def test_the_spines_of_a_flow_can_be_given_explicitly() -> None:
    ports = Ports(FABRIC)

    def names(*given: object) -> list[str]:
        return [ports.all[port].name for port in ports.edge(*given)]  # type: ignore[arg-type]

    assert names(0, 3) == ["g0>s0l0", "s0l0>s0p1", "s0p1>s0l1", "s0l1>g3"]
    assert names(0, 3, -1, (0, 0)) == ["g0>s0l0", "s0l0>s0p0", "s0p0>s0l1", "s0l1>g3"]
    ends = ["s0b0>s1b0", "s1b0>s1p1", "s1p1>s1l0", "s1l0>g5"]
    path = FABRIC.paths_between[0, 1][0].index
    assert names(0, 5, path) == ["g0>s0l0", "s0l0>s0p0", "s0p0>s0b0", *ends]
    assert names(0, 5, path, (1, -1)) == ["g0>s0l0", "s0l0>s0p1", "s0p1>s0b0", *ends]


@pytest.mark.parametrize(
    ("edge", "says"),
    [
        ((0, 0, -1), "no path -1 leads from rank 0 to rank 0"),
        ((0, 4, -1), "no path -1 leads from rank 0 to rank 4"),
        ((4, 0, 0), "no path 0 leads from rank 4 to rank 0"),
        ((0, 1, 0), "no path 0 leads from rank 0 to rank 1"),
        ((0, 4, 0, (2, 0)), "spine 2; allowed: 0 to 1"),
        ((0, 3, -1, (0, 1)), "spines 0 and 1 within a site"),
    ],
)
def test_nonexistent_paths_and_spines_are_refused(edge: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Ports(FABRIC).edge(*edge)
    if len(edge) == 3:
        with pytest.raises(ValueError, match=says):
            links_of(FABRIC, *(np.array([part]) for part in edge))
