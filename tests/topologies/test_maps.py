"""WANs from maps: topohub, tables and GraphML are read or refused with a reason, and paths are the shortest."""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import topohub
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from topologies.conditions.sampler import ConditionsSpec, delays_s, ranges_bps
from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.map_links import great_circle_km
from topologies.fabric.maps import MAX_FILE_BYTES, read_wan, write_wan
from topologies.fabric.ports import links_in_grain
from topologies.fabric.wan import (
    KM_PER_MS,
    MAP_PATHS,
    MAX_IDLE_ROUTERS,
    WanGraph,
    WanSpec,
    candidate_paths,
)

NOBEL = "topohub:sndlib/nobel-us"


def over(wan: str, *sites: str, **more: Any) -> Fabric:
    return build_fabric(FabricSpec(gpus_per_site=(2,) * len(sites), wan=read_wan(wan), sites=sites, **more))


def mistake(value: object) -> str:
    with pytest.raises(FabricError) as caught:
        read_wan(value)
    ((key, text),) = caught.value.mistakes
    assert key == "fabric.wan" and "\n" not in text and len(text) < 1000
    return text


# --- maps of topohub --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ends", "round_trip_ms"),
    [("sndlib/nobel-us", ("Palo Alto", "Princeton"), 40.3), ("topozoo/Abilene", ("Sunnyvale", "new-york"), 44.4)],
)
@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_the_fixed_path_has_the_delay_of_the_shortest_path_on_the_map(
    name: str, ends: tuple[str, str], round_trip_ms: float, grain: str
) -> None:
    fabric = over(f"topohub:{name}", *ends, grain=grain)
    raw = topohub.get(name)
    place = {node["id"]: index for index, node in enumerate(raw["nodes"])}
    km = np.zeros((len(place), len(place)))
    for edge in raw["edges"]:
        km[place[edge["source"]], place[edge["target"]]] = edge["dist"]
    titles = [node["name"].replace("-", " ").lower() for node in raw["nodes"]]
    src, dst = (titles.index(end.replace("-", " ").lower()) for end in ends)
    expected_s = dijkstra(csr_array(km), directed=False, indices=src)[dst] / KM_PER_MS / 1e3
    by_name = dict(
        zip((one.name for one in links_in_grain(fabric).all), delays_s(fabric, ConditionsSpec()), strict=True)
    )
    for sites in ((0, 1), (1, 0)):
        routers = fabric.paths_between[sites][0].name.split(">")
        found_s = sum(by_name[f"{a}>{b}"] for a, b in pairwise(routers))
        assert found_s == pytest.approx(expected_s, abs=1e-8)
        assert 2e3 * found_s == pytest.approx(round_trip_ms, rel=2e-3)


def nodes_that_share_no_label(wan: WanSpec, count: int) -> tuple[str, ...]:
    """The first, the last and the middle one of the nodes whose label no other node has: a rule to choose sites by."""
    own = [index for index, title in enumerate(wan.titles) if wan.nodes_named(title) == (index,)]
    return tuple(wan.titles[index] for index in (own[0], own[-1], own[len(own) // 2])[:count])


def test_every_map_of_topohub_can_be_a_wan_between_sites_that_are_chosen_by_a_rule() -> None:
    """229 of 229 maps, each with two and with three sites: all of SNDlib (26) and of the Topology Zoo (203)."""
    folder = Path(topohub.__file__).parent / "data"
    used: Counter[str] = Counter()
    for group in ("sndlib", "topozoo"):
        for file in sorted((folder / group).glob("*.json")):
            wan = read_wan(f"topohub:{group}/{file.stem}")
            for count in (2, 3):
                sites = nodes_that_share_no_label(wan, count)
                fabric = build_fabric(FabricSpec(gpus_per_site=(2,) * count, border_routers=1, wan=wan, sites=sites))
                assert not fabric.wan.unmeasured and len(fabric.wan.delay_s) == 2 * len(fabric.wan.links)
                assert len(fabric.wan.routers) <= MAX_IDLE_ROUTERS and all(fabric.paths_between.values())
                used[group] += 1
    assert used == {"sndlib": 2 * 26, "topozoo": 2 * 203}


def test_a_resolved_scenario_with_a_map_loads_without_topohub(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [Override("fabric.wan", NOBEL, "set"), Override("fabric.sites", ["Houston", "Seattle"], "set")]
    asked = load_scenario("paper", overrides)
    assert "nobel-us" in asked.configurations()[0].label and "10 us" not in asked.configurations()[0].label
    text = resolved(asked)
    monkeypatch.setitem(sys.modules, "topohub", None)
    assert scenario_of(text) == asked
    with pytest.raises(ScenarioError, match="topohub is not installed"):
        load_scenario("paper", overrides)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"fabric.sites": ["Palo Alto"]}, "fabric.sites: has 1 for the 2 sites"),
        ({"fabric.sites": ["Palo Alto", "Princetown"]}, '"Princetown" is not a node of.*did you mean Princeton'),
        ({}, "fabric.sites: is missing; allowed: a node of nobel-us"),
        ({"fabric.sites": ["Palo Alto", 3]}, "3 is a number"),
        ({"fabric.sites": ["Palo Alto", "palo-alto"]}, '"palo-alto" is the node of two sites'),
        (
            {"fabric.sites": ["Boulder", "Lincoln"], "fabric.border_routers": 8, "fabric.paths": 20},
            "more than 1024 loop-free.*fabric.paths",
        ),
        ({"fabric.wan": "mesh", "fabric.sites": ["A", "B"]}, '"mesh" has no nodes for sites; allowed: a map'),
        ({"fabric.wan": "topohub:sndlib/nobel-uk"}, '"sndlib/nobel-uk".*did you mean nobel-us'),
        ({"fabric.wan": "topohub:sndlib/nobel-uk"}, "of sndlib abilene, .* and [0-9]+ more"),
        ({"fabric.wan": "topohub:sndlb/nobel-us"}, 'no group "sndlb"; allowed: backbone, .*did you mean sndlib'),
        ({"fabric.wan": "topohub:../../etc/passwd"}, "is not a map of topohub"),
        ({"fabric.wan": "mash"}, "did you mean mesh"),
        ({"fabric.wan": "/nowhere/a.graphml"}, "not an existing file"),
    ],
)
def test_unknown_maps_and_invalid_site_nodes_are_refused(given: dict[str, Any], named: str) -> None:
    values = {"fabric.wan": NOBEL} | given
    with pytest.raises(ScenarioError, match=named):
        load_scenario("tenants", [Override(key, value, key) for key, value in values.items()])


# --- tables -----------------------------------------------------------------------------------------------------------

kms = st.none() | st.floats(0, 1e5)
titles = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_wan_table_is_read_back_as_it_was_written(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([f"R{i}" for i in range(9)]), min_size=2, max_size=9, unique=True))
    links = tuple(pairwise(names))

    capacities = st.just(0) | st.integers(1000, 10**15)

    def each(of: Any, count: int) -> st.SearchStrategy[Any]:
        return st.just(()) | st.lists(of, min_size=count, max_size=count).map(tuple)

    wan = WanSpec(
        preset=None,
        routers=tuple(names),
        links=links,
        name=data.draw(titles),
        titles=data.draw(each(titles, len(names))),
        places=data.draw(each(st.tuples(st.floats(-180, 180), st.floats(-90, 90)), len(names))),
        km=data.draw(each(kms, len(links))),
        rates_bps=data.draw(each(capacities, len(links))),
    )
    if wan.km and wan.rates_bps:
        back_km, back_rates_bps = data.draw(each(kms, len(links))), data.draw(each(capacities, len(links)))
        wan = replace(wan, back_km=back_km, back_rates_bps=back_rates_bps)
    assert read_wan(write_wan(wan)) == wan


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"km": [1.0, 2.0]}, "km has 2 entries; allowed: a list of one for each of the 1 links"),
        ({"km": [-1.0]}, "km has -1.0"),
        ({"km": [math.nan]}, "km has nan"),
        ({"km": "far"}, 'km is "far"'),
        ({"places": [[0, 91], [0, 0]]}, "places has [0, 91]"),
        ({"titles": ["A", "\n"]}, 'titles has "\\n"'),
        ({"rates": ["3 parsec"]}, 'rates has "3 parsec"'),
        ({"name": 3}, "name is 3"),
        ({"back_km": [1.0]}, "back_km is given without km"),
        ({"kind": 1}, 'unknown key "kind"'),
    ],
)
def test_an_invalid_wan_table_is_refused_with_the_offending_value(changes: dict[str, Any], named: str) -> None:
    assert named in mistake({"routers": ["A", "B"], "links": [["A", "B"]]} | changes)


# --- GraphML ----------------------------------------------------------------------------------------------------------

KEYS = "".join(
    f'<key id="{name}" for="{of}" attr.name="{name}" attr.type="{kind}"/>'
    for name, of, kind in (
        ("label", "node", "string"), ("Longitude", "node", "double"), ("Latitude", "node", "double"),
        ("LinkSpeedRaw", "edge", "double"), ("dist", "edge", "double"),
    )
)  # fmt: skip


def graphml(nodes: str, edges: str, before: str = "") -> str:
    space = 'xmlns="http://graphml.graphdrawing.org/xmlns"'
    graph = f'<graph edgedefault="undirected">{nodes}{edges}</graph>'
    return f'<?xml version="1.0" encoding="utf-8"?>{before}<graphml {space}>{KEYS}{graph}</graphml>'


def node(key: str, **data: object) -> str:
    return f'<node id="{key}">{"".join(f"""<data key="{k}">{v}</data>""" for k, v in data.items())}</node>'


def edge(a: str, b: str, **data: object) -> str:
    inside = "".join(f'<data key="{k}">{v}</data>' for k, v in data.items())
    return f'<edge source="{a}" target="{b}">{inside}</edge>'


THREE = (
    node("0", label="Zürich", Longitude=8.54, Latitude=47.37)
    + node("1", label="Genève", Longitude=6.14, Latitude=46.2)
    + node("2", label="s0b0")
)


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_a_graphml_file_sets_router_names_link_delays_and_rates(tmp_path: Path, grain: str) -> None:
    """Zürich and Genève are 224 km apart; the file's path is relative to the scenario's folder."""
    links = edge("0", "1", LinkSpeedRaw=1e10) + edge("1", "2", dist=204.2) + edge("2", "0", dist=100) + edge("0", "1")
    (tmp_path / "swiss.graphml").write_text(graphml(THREE, links))
    text = 'fabric.wan = "swiss.graphml"\nfabric.gpus = [2, 2]\nfabric.sites = ["zürich", "Genève"]\n'
    asked = scenario_of(f'{text}fabric.grain = "{grain}"', path=tmp_path / "scenario.toml").configurations()[0]
    fabric = build_fabric(asked.fabric)
    assert asked.fabric.wan.routers == ("Zurich", "Geneve", "Ns0b0") and asked.fabric.wan.places == ()
    names = [one.name for one in links_in_grain(fabric).all]
    delay = dict(zip(names, delays_s(fabric, asked.conditions), strict=True))
    rates = dict(zip(names, ranges_bps(fabric, asked.conditions).T.tolist(), strict=True))
    assert delay["Zurich>Geneve"] == pytest.approx(224 / KM_PER_MS / 1e3, rel=0.01)
    assert delay["Geneve>Ns0b0"] == 1e-3 and delay["Zurich>s0b0"] == 0.0
    assert rates["Geneve>Zurich"] == [1e10, 1e10] and rates["Geneve>Ns0b0"] == [1e10, 1e11]
    paths = [path.name for path in fabric.paths_between[0, 1]]
    assert paths[0] == "s0b0>Zurich>Geneve>s1b0" and "s0b0>Zurich>Ns0b0>Geneve>s1b0" in paths


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (graphml(THREE, edge("0", "1"), '<!DOCTYPE a [<!ENTITY b "c">]>'), "has a document type"),
        (graphml(THREE, ""), "has 0 links"),
        (graphml("".join(node(str(i)) for i in range(1025)), edge("0", "1", dist=1)), "has 1,025 nodes"),
        (graphml(THREE, edge("0", "9")), 'an edge ends at "9", which is not a node'),
        (graphml(THREE + node("1"), edge("0", "1")), 'line 1: the node "1" is also in line 1'),
        (graphml(THREE, '<edge source="0"/>'), "a edge without target; allowed: with source and target"),
        ("<graphml>" * 50 + "</graphml>" * 50, "elements 41 deep"),
        ("<a/>", 'is not GraphML: its root is "a"'),
        ("<a", "is not XML, line 1"),
        ("", "is not XML"),
        ("\ud800", "is not UTF-8"),
        ("x" * (MAX_FILE_BYTES + 1), "is too large"),
    ],
)
def test_a_file_that_is_not_a_valid_map_is_refused_in_one_sentence(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "wrong.graphml").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert named in mistake(str(tmp_path / "wrong.graphml"))


def test_the_entities_of_a_file_are_not_expanded(tmp_path: Path) -> None:
    """A thousand million laughs: nine levels of ten references each."""
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    bomb = f'<!DOCTYPE graphml [<!ENTITY l0 "ha">{levels}]>'
    (tmp_path / "bomb.graphml").write_text(graphml(node("0", label="&l9;"), "", bomb))
    assert "document type" in mistake(str(tmp_path / "bomb.graphml"))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (
            {"dist": -1},
            'the link "Zürich" to "Genève" of the map "wrong", line 1, has dist -1; allowed: 0 to 100,000 km',
        ),
        ({"dist": "far"}, 'has dist "far"'),
        ({"latency": "1 week"}, "has latency 1 week; allowed: 0 to 100,000 km, or 0 to 490 ms"),
        ({"LinkSpeedRaw": -3}, "has LinkSpeedRaw -3; allowed: 0 to 10^15 bit/s"),
        ({"capacity": "10 GB/s"}, "has capacity 10 GB/s"),
    ],
)
def test_wrong_data_of_a_link_matter_if_a_path_between_the_sites_passes_it(
    tmp_path: Path, data: dict[str, object], named: str
) -> None:
    path = tmp_path / "wrong.graphml"
    path.write_text(graphml(THREE, edge("0", "1", **data)))
    with pytest.raises(FabricError) as refusal:
        over(str(path), "Zürich", "Genève")
    assert named in str(refusal.value)
    path.write_text(graphml(THREE + node("3", label="Bern"), edge("0", "1", **data) + edge("1", "2") + edge("1", "3")))
    fabric = over(str(path), "Bern", "s0b0")
    assert any(named in note for note in fabric.wan.notes)


def test_great_circle_distances_are_those_of_a_sphere() -> None:
    """Compares with half of the earth's circumference and with the spherical law of cosines."""
    assert great_circle_km((0, 0), (180, 0)) == pytest.approx(20_015.1, abs=0.1)
    (x, y), (u, v) = (math.radians(2.35), math.radians(48.86)), (math.radians(139.69), math.radians(35.69))
    angle = math.acos(math.sin(y) * math.sin(v) + math.cos(y) * math.cos(v) * math.cos(u - x))
    assert great_circle_km((2.35, 48.86), (139.69, 35.69)) == pytest.approx(6371.0088 * angle, rel=1e-9)


# --- shortest paths ---------------------------------------------------------------------------------------------------


def loop_free(links: list[tuple[str, str]], way: tuple[str, ...], far: str) -> Iterator[tuple[str, ...]]:
    for a, b in links:
        for here, there in ((a, b), (b, a)):
            if here == way[-1] and there not in way:
                if there == far:
                    yield (*way, there)
                elif not there.startswith("s"):
                    yield from loop_free(links, (*way, there), far)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
def test_candidate_paths_are_the_shortest_and_the_same_in_both_directions(
    count: int, chance: Any, most: int, far: bool
) -> None:
    routers = tuple(f"R{i}" for i in range(count))
    links = [(a, b) for i, a in enumerate(routers) for b in routers[:i] if i == routers.index(b) + 1]
    links += [(a, b) for i, a in enumerate(routers) for b in routers[: max(0, i - 1)] if chance.random() < 0.6]
    links += [("s0b0", "R0"), ("s0b1", "R0"), ("s1b0", routers[-1]), ("s2b0", chance.choice(routers))]
    km = {frozenset(ends): chance.choice([1.0, 2.5, 7.0]) if far else 1.0 for ends in links}
    lengths = tuple(km[frozenset(ends)] for ends in links) if far else ()
    graph = WanGraph((("s0b0", "s0b1"), ("s1b0",), ("s2b0",)), routers, tuple(links), lengths)
    given = most if chance.random() < 0.5 or not far else None  # None: MAP_PATHS, and paths that avoid a link
    found, most = candidate_paths(graph, given), given or MAP_PATHS

    def length(path: tuple[str, ...]) -> float:
        return sum(km[frozenset(hop)] for hop in pairwise(path))

    for (a, b), paths in found.items():
        assert {path[::-1] for path in paths} == set(found[b, a])
        for near in graph.border_routers[a]:
            for end in graph.border_routers[b]:
                here = [path for path in paths if (path[0], path[-1]) == (near, end)]
                everything = sorted(loop_free(links, (near,), end), key=length)
                assert len(set(here)) == len(here) and set(here) <= set(everything)
                assert [*map(length, here[:most])] == [*map(length, islice(everything, most))]
                assert given is None or len(here) <= most
                for link in map(frozenset, links) if given is None else ():
                    is_left = any(link not in map(frozenset, pairwise(path)) for path in everything)
                    assert is_left == any(link not in map(frozenset, pairwise(path)) for path in here)
