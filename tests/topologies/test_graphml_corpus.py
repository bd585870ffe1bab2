"""A corpus of maps in the forms that the field's writers produce: how many are read, and why the others are not.

The WAN that is read is compared with the graph that was written, which networkx holds.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import topohub

from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.map_links import great_circle_km
from topologies.fabric.maps import read_wan
from topologies.fabric.wan import KM_PER_MS, MAX_IDLE_ROUTERS

CITIES = {"Oslo": (10.75, 59.91), "Bergen": (5.32, 60.39), "Göteborg": (11.97, 57.71), "Århus": (10.2, 56.16)}
EDGES = [("Oslo", "Bergen"), ("Oslo", "Göteborg"), ("Göteborg", "Århus"), ("Århus", "Bergen")]
SITES = ("Oslo", "Århus")


@dataclass(frozen=True)
class Case:
    """A file of the corpus: what writes it, and what the delays (s) and capacities (bit/s) of its links are, by ends;
    or the reason for which it is refused."""

    write: Callable[[Path], None]
    delay_s: Callable[[str, str], float | None] = lambda a, b: None
    rate_bps: Callable[[str, str], int] = lambda a, b: 0
    refused: str = ""


def apart_s(a: str, b: str) -> float:
    return great_circle_km(CITIES[a], CITIES[b]) / KM_PER_MS / 1e3


def zoo(kind: Any = networkx.Graph, **of_edges: Any) -> networkx.Graph:
    """A graph with the attributes of the Topology Zoo."""
    graph = kind(Network="Nordic", Creator="Topology Zoo Toolset", DateObtained="3/02/11", hierarchic=0)
    for index, (label, (longitude, latitude)) in enumerate(CITIES.items()):
        about = {"Country": "Norway", "type": "Green", "Internal": 1, "hyperedge": 0, "id": index}
        graph.add_node(str(index), label=label, Longitude=longitude, Latitude=latitude, **about)
    keys = [*CITIES]
    for a, b in EDGES:
        graph.add_edge(str(keys.index(a)), str(keys.index(b)), LinkLabel="10 Gbps", **of_edges)
    return graph


def written(graph: networkx.Graph, **options: Any) -> Callable[[Path], None]:
    return lambda path: networkx.write_graphml(graph, path, **options)


def changed(graph: networkx.Graph, *changes: tuple[str, str], encoding: str = "utf-8") -> Callable[[Path], None]:
    """Write a graph with parts of its text replaced."""

    def write(path: Path) -> None:
        networkx.write_graphml(graph, path)
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_bytes(text.encode(encoding))

    return write


def both_ways(graph: networkx.Graph, **back: Any) -> networkx.Graph:
    """Add the opposite of each edge of a directed graph, with these attributes."""
    for a, b in list(graph.edges()):
        graph.add_edge(b, a, **back)
    return graph


def with_unknown_nodes() -> networkx.Graph:
    """Two nodes "None" without coordinates, one of them a hyperedge, and an island, as the Zoo has them."""
    graph = zoo()
    for key, label in (("8", "None"), ("9", "None"), ("10", "Reykjavik"), ("11", "Nuuk")):
        graph.add_node(key, label=label, hyperedge=int(key == "8"))
    graph.add_edges_from([("0", "8"), ("8", "1"), ("9", "8"), ("10", "11")])
    return graph


def doubled(kind: Any) -> networkx.Graph:
    graph = both_ways(zoo(kind), LinkSpeedRaw=10**10) if kind is networkx.MultiDiGraph else zoo(kind)
    for a, b in list(graph.edges()):
        graph.add_edge(a, b, LinkSpeedRaw=10**9)
    return graph


def plain(number: int = 4, kind: Any = networkx.Graph, **of_edges: Any) -> networkx.Graph:
    """A graph as a program makes it: numbers for nodes, and no places."""
    graph = networkx.cycle_graph(number, create_using=kind)
    for a, b in graph.edges():
        graph.edges[a, b].update(of_edges)
    return graph


YED = """<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
  <!--Created by yEd 3.22-->
  <key for="port" id="d0" yfiles.type="portgraphics"/>
  <key attr.name="description" attr.type="string" for="node" id="d5"/>
  <key for="node" id="d6" yfiles.type="nodegraphics"/>
  <key attr.name="latency" attr.type="double" for="edge" id="d9"><default>2.5</default></key>
  <key for="edge" id="d10" yfiles.type="edgegraphics"/>
  <graph edgedefault="directed" id="G">
    <data key="d0"/>
    <node id="n0"><data key="d6"><y:ShapeNode><y:Geometry height="30.0" width="30.0" x="1" y="2"/>
      <y:NodeLabel>Oslo<y:LabelModel><y:SmartNodeLabelModel distance="4.0"/></y:LabelModel></y:NodeLabel>
    </y:ShapeNode></data></node>
    <node id="g" yfiles.foldertype="group"><data key="d6"><y:ProxyAutoBoundsNode><y:Realizers active="0">
      <y:GroupNode><y:NodeLabel>Sweden</y:NodeLabel></y:GroupNode></y:Realizers></y:ProxyAutoBoundsNode></data>
      <graph edgedefault="directed" id="g:">
        <node id="g::n0"><data key="d6"><y:ShapeNode><y:NodeLabel>Göteborg</y:NodeLabel></y:ShapeNode></data></node>
      </graph>
    </node>
    <node id="n2"><port name="p"/><data key="d6"><y:ShapeNode><y:NodeLabel>Århus</y:NodeLabel></y:ShapeNode></data>
    </node>
    <edge id="e0" source="n0" target="g::n0"><data key="d10"><y:PolyLineEdge/></data></edge>
    <edge id="e1" source="g::n0" target="n2" targetport="p"><data key="d9">7.5</data></edge>
  </graph>
</graphml>
"""

HYPER = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">
<node id="Oslo"/><node id="Bergen"/><node id="Århus"/>
<hyperedge><endpoint node="Oslo"/><endpoint node="Århus"/></hyperedge>
<hyperedge><endpoint node="Oslo"/><endpoint node="Bergen"/><endpoint node="Århus"/></hyperedge>
</graph></graphml>"""


def ms(value: float) -> Callable[[str, str], float]:
    return lambda a, b: value / 1e3


def bps(value: int) -> Callable[[str, str], int]:
    return lambda a, b: value


BACK = both_ways(zoo(networkx.DiGraph, LinkSpeedRaw=10**10), LinkSpeedRaw=10**9)
CORPUS = {
    "zoo": Case(written(zoo()), apart_s),
    "zoo with speeds": Case(written(zoo(LinkSpeed="10", LinkSpeedUnits="G", LinkSpeedRaw=1e10)), apart_s, bps(10**10)),
    "zoo, speed and unit": Case(written(zoo(LinkSpeed="155", LinkSpeedUnits="M")), apart_s, bps(155_000_000)),
    "zoo, unknown nodes and an island": Case(written(with_unknown_nodes()), apart_s),
    "zoo, all nodes unknown": Case(
        changed(zoo(), *((f">{one}</data>", ">None</data>") for one in CITIES)),
        refused='"Oslo" is not a node of this WAN',
    ),
    "Latin-1": Case(changed(zoo(), ("utf-8", "ISO-8859-1"), encoding="latin-1"), apart_s),
    "Windows": Case(changed(zoo(), ("utf-8", "windows-1252"), ("\n", "\r\n"), encoding="cp1252"), apart_s),
    "UTF-16": Case(changed(zoo(), ("utf-8", "UTF-16"), encoding="utf-16"), apart_s),
    "UTF-8 with a mark": Case(changed(zoo(), encoding="utf-8-sig"), apart_s),
    "Latin-1 that says UTF-8": Case(changed(zoo(), encoding="latin-1"), refused="is not UTF-8"),
    "with a document type": Case(
        changed(zoo(), ("<graphml ", "<!DOCTYPE graphml><graphml ")), refused="has a document type"
    ),
    "one line": Case(written(zoo(), prettyprint=False), apart_s),
    "ids of edges": Case(written(zoo(networkx.MultiGraph), edge_id_from_attribute=None), apart_s),
    "types inferred": Case(written(zoo(dist=1), infer_numeric_types=True), ms(1 / KM_PER_MS)),
    "DiGraph, one way": Case(written(zoo(networkx.DiGraph)), apart_s),
    "DiGraph, two rates": Case(written(BACK), apart_s, lambda a, b: 10**10 if (a, b) in EDGES else 10**9),
    "MultiGraph": Case(written(doubled(networkx.MultiGraph)), apart_s, bps(10**9)),
    "MultiDiGraph": Case(
        written(doubled(networkx.MultiDiGraph)),
        apart_s,
        lambda a, b: 10**9 if (a, b) in EDGES else 11 * 10**9,
    ),
    "numbers alone": Case(written(plain())),
    "latency in ms": Case(written(plain(latency=2.5)), ms(2.5)),
    "delay with a unit": Case(written(plain(delay="2500us")), ms(2.5)),
    "delay_s": Case(written(plain(delay_s=0.0025)), ms(2.5)),
    "length_km": Case(written(plain(length_km=204.2)), ms(1)),
    "distance in miles": Case(written(plain(distance="100 mi")), ms(160.9344 / KM_PER_MS)),
    "dist_m": Case(written(plain(dist_m=204_200)), ms(1)),
    "bandwidth in bit/s": Case(written(plain(bandwidth=25_000_000_000)), rate_bps=bps(25 * 10**9)),
    "bandwidth_gbps": Case(written(plain(bandwidth_gbps=25)), rate_bps=bps(25 * 10**9)),
    "capacity 100G": Case(written(plain(capacity="100G")), rate_bps=bps(10**11)),
    "bw without a unit": Case(written(plain(bw=10))),
    "a missing value": Case(written(plain(dist=float("nan"), LinkSpeedRaw="None"))),
    "yEd": Case(lambda path: path.write_text(YED) and None, lambda a, b: 7.5e-3 if "Århus" in (a, b) else 2.5e-3),
    "hyperedges": Case(lambda path: path.write_text(HYPER) and None),
    "GML": Case(lambda path: networkx.write_gml(zoo(), path), refused="is not XML, line 1"),
}


def sites_of(name: str, graph_nodes: tuple[str, ...]) -> tuple[str, str]:
    return SITES if "Oslo" in graph_nodes or CORPUS[name].refused else (graph_nodes[0], graph_nodes[2])


def read(name: str, path: Path) -> Fabric:
    CORPUS[name].write(path)
    wan = read_wan(str(path))
    sites = sites_of(name, wan.titles)
    return build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1, wan=wan, sites=sites))


def test_the_corpus_of_graphml_is_read_except_for_what_is_no_graphml(tmp_path: Path) -> None:
    """29 of 33 files are read; of the others, one is in another encoding than it says, one has a document type, one is
    GML, and one has no label by which to name its nodes."""
    refused = {}
    for name in CORPUS:
        try:
            read(name, tmp_path / "map.graphml")
        except FabricError as error:
            refused[name] = str(error)
    assert (len(CORPUS), len(CORPUS) - len(refused)) == (33, 29)
    assert {name for name, case in CORPUS.items() if case.refused} == {*refused}


@pytest.mark.parametrize("name", CORPUS)
def test_every_form_gives_the_delays_and_capacities_that_were_written(name: str, tmp_path: Path) -> None:
    case = CORPUS[name]
    if case.refused:
        with pytest.raises(FabricError, match=case.refused):
            read(name, tmp_path / "map.graphml")
        return
    fabric = read(name, tmp_path / "map.graphml")
    spec, wan = fabric.spec.wan, fabric.wan
    title = dict(zip(spec.routers, spec.titles, strict=True))
    used = {hop for paths in fabric.paths_between.values() for path in paths for hop in pairwise(path.name.split(">"))}
    known = [(a, b) for a, b in used if {a, b} <= {*title} and len({title[a], title[b]} & {*CITIES}) != 1]
    known = [(a, b) for a, b in known if title[a] in CITIES] or known
    assert known
    for a, b in known:
        expected_s = case.delay_s(title[a], title[b])
        assert wan.delay_s.get(f"{a}>{b}") == (None if expected_s is None else pytest.approx(expected_s, abs=1e-8))
        assert wan.capacity_bps.get(f"{a}>{b}", 0) == case.rate_bps(title[a], title[b]), (title[a], title[b])


def notes_of(name: str, path: Path) -> str:
    """Return what is told of a map.

    A fabric is remembered by its links, and may be that of another file with the same ones, so notes are the file's.
    """
    fabric = read(name, path)
    return "\n".join((*read_wan(str(path)).notes, *fabric.wan.notes))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("zoo", ""),
        ("DiGraph, two rates", ""),
        ("DiGraph, one way", "4 links have one direction only, whose length and capacity are taken for the other"),
        ("MultiGraph", "4 parallel links are joined with others: capacities add up"),
        ("latency in ms", '"latency" of 4 links has no unit and is taken as ms'),
        ("bandwidth in bit/s", '"bandwidth" of 4 links has no unit and is taken as bit/s'),
        ("bw without a unit", 'not used: give it one, as in bw="10 Gbit/s" or bw_gbps="10"'),
        ("zoo, unknown nodes and an island", "2 routers (Reykjavik, Nuuk) and 1 link of the WAN have no connection"),
        ("hyperedges", "1 hyperedge of one or more than two nodes are left out"),
        ("yEd", "2 links have one direction only"),
    ],
)
def test_what_was_assumed_or_left_out_is_told(name: str, told: str, tmp_path: Path) -> None:
    found = notes_of(name, tmp_path / "map.graphml")
    assert told in found and (told or not found)


def test_a_label_of_several_nodes_is_refused_as_a_site_with_all_of_them(tmp_path: Path) -> None:
    graph = zoo()
    graph.nodes["3"]["label"] = "Oslo"
    networkx.write_graphml(graph, tmp_path / "twins.graphml")
    wan = read_wan(str(tmp_path / "twins.graphml"))

    def fabric(*sites: str) -> Fabric:
        return build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1, wan=wan, sites=sites))

    with pytest.raises(FabricError, match=r'"Oslo" is the name of 2 nodes .*Oslo \(node "0"\), Oslo_2 \(node "3"\)'):
        fabric("Oslo", "Bergen")
    assert fabric("Göteborg", "Bergen").paths_between[0, 1]
    assert fabric("Oslo_2", "Bergen").paths_between[0, 1][0].name == "s0b0>Oslo_2>Bergen>s1b0"


def random_map(nodes: int, links: int, path: Path) -> networkx.Graph:
    """A connected map with places, of the size of the Topology Zoo's largest."""
    rng = np.random.default_rng(nodes)
    places = rng.uniform((-90, 35), (-80, 40), (nodes, 2))
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    edges = {(int(np.argmin(apart[node, :node])), node) for node in range(1, nodes)}
    order = np.argsort(apart[np.triu_indices(nodes, 1)])
    pairs = zip(*(axis[order].tolist() for axis in np.triu_indices(nodes, 1)), strict=True)
    graph = networkx.Graph()
    for node, (x, y) in enumerate(places.tolist()):
        graph.add_node(str(node), label=f"Town {node}" if node % 5 else "None", Longitude=x, Latitude=y)
    more: Iterator[tuple[int, int]] = (pair for index, pair in enumerate(pairs) if index % 3 == 0 and pair not in edges)
    while len(edges) < links:
        edges.add(next(more))
    graph.add_edges_from((str(a), str(b)) for a, b in sorted(edges))
    networkx.write_graphml(graph, path)
    return graph


@pytest.mark.parametrize(("nodes", "links"), [(197, 245), (754, 899), (1024, 2000)])
def test_a_large_map_is_a_wan_of_its_candidate_paths(nodes: int, links: int, tmp_path: Path) -> None:
    """Of the size of Cogentco, of Kdl, and the largest: the fixed path has the length that Dijkstra's algorithm
    finds."""
    graph = random_map(nodes, links, tmp_path / "large.graphml")
    sites = ("Town 1", f"Town {nodes - 1 - (nodes - 1) % 5 - 1}")
    wan = read_wan(str(tmp_path / "large.graphml"))
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1, wan=wan, sites=sites))
    for a, b, data in graph.edges(data=True):
        ends = ((graph.nodes[end]["Longitude"], graph.nodes[end]["Latitude"]) for end in (a, b))
        data["km"] = great_circle_km(*ends)
    src, dst = (next(node for node, title in graph.nodes(data="label") if title == site) for site in sites)
    expected_s = networkx.dijkstra_path_length(graph, src, dst, weight="km") / KM_PER_MS / 1e3
    fixed = fabric.paths_between[0, 1][0].name.split(">")
    assert sum(fabric.wan.delay_s[f"{a}>{b}"] for a, b in pairwise(fixed)) == pytest.approx(expected_s, abs=1e-7)
    assert len(wan.routers) == nodes and len(fabric.wan.routers) <= MAX_IDLE_ROUTERS
    used = {link for path in fabric.paths for link in path.links}
    assert used == {link.index for link in fabric.links if link.kind == "wan"}
    assert any("lie on no candidate path and are left out" in note for note in fabric.wan.notes)


def test_a_node_link_file_of_topohub_has_what_the_map_by_name_has(tmp_path: Path) -> None:
    """networkx reads topohub's JSON and writes it as GraphML: the same WAN."""
    raw = topohub.get("sndlib/nobel-us")
    graph = networkx.node_link_graph(json.loads(json.dumps(raw)), edges="edges")
    graph.graph.clear()
    for _, data in graph.nodes(data=True):
        data["Longitude"], data["Latitude"] = data.pop("pos")
    for *_, data in graph.edges(data=True):
        for key in ("ecmp_fwd", "ecmp_bwd"):
            data.pop(key)
    networkx.write_graphml(graph, tmp_path / "nobel-us.graphml")
    by_name, by_file = read_wan("topohub:sndlib/nobel-us"), read_wan(str(tmp_path / "nobel-us.graphml"))
    assert (by_file.routers, by_file.places) == (by_name.routers, by_name.places)

    def lengths(wan: Any) -> dict[frozenset[str], float]:
        return {frozenset(ends): km for ends, km in zip(wan.links, wan.km, strict=True)}

    assert lengths(by_file) == lengths(by_name)
