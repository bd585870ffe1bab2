"""Failed cables: which logical links and GPUs lose their paths, compared with a graph search that ignores tiers."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.flowtables import fabrics, failures, usable
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, cables_of, cut_off, failed_links, reachable

FABRIC = build_fabric(FabricSpec())


def reached(fabric: Fabric, failed: Cables, start: str, over: set[str], number: int | None = None) -> set[str]:
    """Return the nodes that the working cables connect to `start`, through switches of `over` only; with `number`, only
    over the cables with this number between two nodes."""
    seen, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        for c in fabric.cables:
            if here in (c.a, c.b) and cable(c.a, f"{c.b}#{c.number}") not in failed and number in (None, c.number):
                other = c.b if here == c.a else c.a
                if other not in seen:
                    seen.add(other)
                    frontier += [other] * (other in over)
    return seen


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_logical_link_has_failed_exactly_if_no_working_cables_connect_its_ends(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    failed = data.draw(failures(fabric))
    gone = set(failed_links(fabric, failed))
    site = {gpu.name: gpu.site for gpu in fabric.gpus} | dict(zip(fabric.border_routers, fabric.br_sites, strict=True))
    for link in fabric.links:
        leaves = {gpu.leaf for gpu in fabric.gpus if gpu.name in (link.src, link.dst)}
        tier = {s.name for s in fabric.switches if s.kind == "spine" and s.site == site.get(link.src)}
        over, number = (leaves | tier, None) if link.kind != "wan" else (set(), link.number)
        assert (link.dst in reached(fabric, failed, link.src, over, number)) == (link.index not in gone), link


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_unreachable_gpus_are_reported_with_cables_whose_repair_reconnects_them(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    failed = data.draw(failures(fabric))
    everywhere = {switch.name for switch in fabric.switches}
    groups, reach = cut_off(fabric, failed), reachable(fabric, failed)
    group_of = {rank: index for index, group in enumerate(groups) for rank in group.ranks}
    for a in fabric.gpus:
        near = reached(fabric, failed, a.name, everywhere)
        for b in fabric.gpus:
            assert b.name in near or not reach[a.rank, b.rank]
            assert not reach[a.rank, b.rank] or group_of.get(a.rank) == group_of.get(b.rank)
            if a.site != b.site:
                between = fabric.paths_between[a.site, b.site]
                assert reach[a.rank, b.rank] == any(usable(fabric, failed, path, a.rank, b.rank) for path in between)
    nodes = everywhere | {gpu.name for gpu in fabric.gpus}
    for group in groups:
        assert group.cables and group.cables <= failed
        first = fabric.gpus[group.ranks[0]].name
        before, after = (reached(fabric, these, first, everywhere) for these in (failed, failed - group.cables))
        assert after > before if before != nodes else group.cables == failed


WAN = frozenset(cable(f"s0b{a}", f"s1b{b}") for a in (0, 1) for b in (0, 1))
LEAF = frozenset({cable("s0l1", "s0p0"), cable("s0l1", "s0p1")})
# Without these, the leaves cannot reach each other, but both reach the WAN.
APART = frozenset({cable("s0l0", "s0p0"), cable("s0l1", "s0p1")})


@pytest.mark.parametrize(
    ("failed", "cut"),
    [
        ({cable("g0", "s0l0")}, {(0,): {cable("g0", "s0l0")}}),
        (cables_of(FABRIC, "s1l0"), {(4,): {cable("g4", "s1l0")}, (5,): {cable("g5", "s1l0")}}),
        (LEAF | {cable("s1p0", "s1b0")}, {(2, 3): LEAF}),
        (WAN | {cable("s1l0", "s1p0")}, {(4, 5, 6, 7): WAN}),
        (cables_of(FABRIC, "s0b0"), {}),
        (APART, {}),
        (NO_CABLES, {}),
    ],
)
def test_cut_off_gpus_are_grouped_with_the_failed_cables_that_isolate_them(
    failed: Cables, cut: dict[tuple[int, ...], Cables]
) -> None:
    assert {group.ranks: group.cables for group in cut_off(FABRIC, frozenset(failed))} == cut
    reach = reachable(FABRIC, APART)
    assert not reach[1, 2] and reach[1, 4]
