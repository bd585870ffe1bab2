"""Several links between the same two routers: names, paths against a brute force, and how they are given."""

from itertools import pairwise, product
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.flowtables import wans
from topologies.conditions.sampler import ConditionsSpec, delays_s, ranges_bps
from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import cable, cable_name, directions_of, failed_links
from topologies.fabric.link_names import both, directions, end, node_of, number_of
from topologies.fabric.maps import read_wan, write_wan
from topologies.fabric.wan import WanSpec, candidate_paths, resolve_wan

NODES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
TWO = [["s0b0", "s1b0"], ["s0b0", "s1b0"], ["s0b1", "s1b1", {"delay": "15 ms", "rate": "40 Gbit/s"}]]


def fabric_of(links: list[Any], **values: Any) -> Fabric:
    return build_fabric(FabricSpec(gpus_per_site=(2, 2), wan=read_wan({"links": links}), **values))


@given(NODES, NODES, st.integers(1, 40))
def test_a_cable_has_one_name_from_both_ends_and_in_every_notation(a: str, b: str, number: int) -> None:
    there, back = both(a, b, number)
    assert directions(there) == (there,) == directions(there.replace(">", ":"))
    assert directions(f"{a}-{end(b, number)}") == (there, back)
    assert (node_of(end(a, number)), number_of(end(a, number))) == (a, number)
    if a != b:
        one = cable(a, end(b, number))
        assert one == cable(b, end(a, number)) == cable(end(a, number), end(b, number))
        assert {f"{near}>{far}" for near, far in directions_of(one)} == {there, back}
        assert cable_name(one) == f"{min(a, b)}-{end(max(a, b), number)}"


def test_two_links_between_two_routers_are_links_paths_and_cables_of_their_own() -> None:
    fabric = fabric_of(TWO)
    wan = [link.name for link in fabric.links if link.kind == "wan"]
    assert wan == ["s0b0>s1b0", "s1b0>s0b0", "s0b0>s1b0#2", "s1b0>s0b0#2", "s0b1>s1b1", "s1b1>s0b1"]
    assert [path.name for path in fabric.paths_between[0, 1]] == ["s0b0>s1b0", "s0b0>s1b0#2", "s0b1>s1b1"]
    assert [path.name for path in fabric.paths_between[1, 0]] == ["s1b0>s0b0", "s1b0>s0b0#2", "s1b1>s0b1"]
    index = {link.name: link.index for link in fabric.links}
    failed = failed_links(fabric, frozenset({cable("s0b0", "s1b0#2")}))
    assert failed == (index["s0b0>s1b0#2"], index["s1b0>s0b0#2"])
    ports = {(switch.name, port.peer): port for switch in fabric.switches for port in switch.ports}
    assert ports["s0b0", "s1b0"].interface != ports["s0b0", "s1b0#2"].interface


def test_the_third_entry_of_a_link_is_its_delay_and_its_rate() -> None:
    fabric = fabric_of(TWO)
    spec = ConditionsSpec(wan_delay_s=0.001, wan_rate_bps=(10**9, 2 * 10**9))
    names = [link.name for link in fabric.links]
    delay_s = dict(zip(names, delays_s(fabric, spec).tolist(), strict=True))
    assert (delay_s["s0b0>s1b0#2"], delay_s["s0b1>s1b1"], delay_s["s1b1>s0b1"]) == (0.001, 0.015, 0.015)
    rates = dict(zip(names, ranges_bps(fabric, spec).T.tolist(), strict=True))
    assert (rates["s0b0>s1b0#2"], rates["s1b1>s0b1"]) == ([1e9, 2e9], [40e9, 40e9])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"links": [["s0b0", "s1b0", {"delai": "5 ms"}]]}, r"unknown key .delai. of the link s0b0-s1b0.*mean delay"),
        ({"links": [["s0b0", "s1b0", {"delay": "5"}]]}, r'delays has "5"; allowed: the delays of the links'),
        ({"links": [["s0b0", "s1b0", {"rate": "-1 Gbit/s"}]]}, r"rates has .-1 Gbit/s"),
        (
            {"links": [["s0b0", "s1b0", {"rate": "1 Gbit/s"}]], "rates": ["1 Gbit/s"]},
            "rates is given, and links have a",
        ),
        ({"links": [["s0b0", "s1b0", {"delay": "1 ms"}]], "km": [10]}, "km is given together with delays"),
        ({"links": [["s0b0", "s1b0", "5 ms"]]}, r"a list of pairs of names.*third entry"),
        ({"links": [["s0b0", "s1b0"], ["s0b0"]]}, r"a list of pairs of names"),
    ],
)
def test_a_wrong_link_is_refused_with_what_is_allowed(table: Any, said: str) -> None:
    with pytest.raises(FabricError, match=said):
        read_wan(table)


def test_a_wan_with_parallel_links_is_written_and_read_again() -> None:
    wan = read_wan({"links": TWO})
    assert read_wan(write_wan(wan)) == wan and wan.delays_s == (None, None, 0.015)


def brute(spec: WanSpec, near: list[str], far: list[str], km: "list[float] | None") -> list[tuple[float, int]]:
    """Return length and hops of every loop-free path over cables, by networkx's search of a multigraph."""
    graph = networkx.MultiGraph()
    for index, (a, b) in enumerate(spec.links):
        graph.add_edge(a, b, key=index)
    found = []
    for a, b in product(near, far):
        between = graph.subgraph([*spec.routers, a, b])
        if a in between and b in between:
            for path in networkx.all_simple_edge_paths(between, a, b):
                found.append((sum(km[key] for _, _, key in path) if km else 0.0, len(path)))
    return sorted(found)


@settings(max_examples=150, deadline=None)
@given(wans((1, 1)), st.data())
def test_candidate_paths_are_those_of_a_search_over_single_cables(spec: WanSpec, data: st.DataObject) -> None:
    km = data.draw(st.lists(st.integers(1, 9), min_size=len(spec.links), max_size=len(spec.links)))
    most = data.draw(st.integers(1, 12))
    try:
        graphs = [
            resolve_wan(
                WanSpec(preset=None, routers=spec.routers, links=spec.links, km=lengths), (("s0b0",), ("s1b0",))
            )
            for lengths in ((), tuple(map(float, km)))
        ]
    except FabricError:  # not connected
        return
    whole, measured = graphs
    wanted = brute(spec, ["s0b0"], ["s1b0"], None)
    if len(wanted) <= 1024:
        paths = candidate_paths(whole)[0, 1]
        assert sorted((0.0, len(path) - 1) for path in paths) == wanted
        assert len({*paths}) == len(paths)
        for path in paths:
            assert len({node_of(name) for name in path}) == len(path)
    lengths = {names[0]: value for names, value in zip(measured.names, measured.km, strict=True)}
    lengths |= {names[1]: value for names, value in zip(measured.names, measured.km, strict=True)}
    for (a, b), paths in candidate_paths(measured, most).items():
        found = sorted(sum(lengths[f"{node_of(x)}>{y}"] for x, y in pairwise(path)) for path in paths)
        ends = (["s0b0"], ["s1b0"]) if (a, b) == (0, 1) else (["s1b0"], ["s0b0"])
        assert found == [length for length, _ in brute(spec, *ends, list(map(float, km)))][:most]


def test_the_shortest_paths_are_found_among_thousands_over_parallel_links() -> None:
    """Five links between each two routers, of which the last are the shortest."""
    routers = ("A", "B", "C", "D")
    hops = list(pairwise(("s0b0", *routers, "s1b0")))
    links = tuple(hop for hop in hops for _ in range(5))
    km = [float(10 - 2 * (index % 5)) for index in range(len(links))]
    spec = WanSpec(preset=None, routers=routers, links=links, km=tuple(km))
    graph = resolve_wan(spec, (("s0b0",), ("s1b0",)))
    lengths = {name: km for names, km in zip(graph.names, graph.km, strict=True) for name in names}
    paths = candidate_paths(graph, 12)[0, 1]
    found = [sum(lengths[f"{node_of(x)}>{y}"] for x, y in pairwise(path)) for path in paths]
    assert (
        found == [length for length, _ in brute(spec, ["s0b0"], ["s1b0"], km)][:12] == [10.0] + [12.0] * 5 + [14.0] * 6
    )
