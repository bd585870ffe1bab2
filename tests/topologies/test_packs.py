"""Packs: published data are read as they are documented, and hostile files are refused in one sentence."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import topohub

from scenarios.spec import FOLDER, ScenarioError
from scenarios.spec.load import DATA, Override, load_scenario, resolved, scenario_of
from topologies.conditions.sampler import delays_s, ranges_bps
from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.maps import read_wan, write_wan
from topologies.fabric.ports import links_in_grain
from topologies.packs.published import PackError, kept
from topologies.packs.table import PACKS, demands_of, moves_of

NODES = {"uk1.uk": (-0.1, 51.5), "de1.de": (8.7, 50.1), "it1.it": (9.2, 45.5), "fr1.fr": (2.3, 48.9)}
LINKS = {
    ("uk1.uk", "de1.de"): 2500,
    ("de1.de", "it1.it"): 10000,
    ("fr1.fr", "uk1.uk"): 2500,
    ("it1.it", "fr1.fr"): 2500,
}
WANTED: dict[tuple[str, str], float] = {("uk1.uk", "it1.it"): 30.5, ("it1.it", "uk1.uk"): 12, ("fr1.fr", "de1.de"): 7}


def xml(wanted: dict[tuple[str, str], float] = WANTED, head: str = "", unit: str = "<unit>MBITPERSEC</unit>") -> str:
    """A network in SNDlib's XML."""
    nodes = "".join(
        f'<node id="{name}"><coordinates><x>{x}</x><y>{y}</y></coordinates></node>' for name, (x, y) in NODES.items()
    )
    links = "".join(
        f'<link id="{a}-{b}"><source>{a}</source><target> {b} </target><preInstalledModule><capacity>0</capacity>'
        f"</preInstalledModule><additionalModules><addModule><capacity>{mbit}</capacity><cost>7</cost></addModule>"
        f"</additionalModules></link>"
        for (a, b), mbit in LINKS.items()
    )
    rows = "".join(
        f'<demand id="{a}_{b}"><source>{a}</source><target>{b}</target><demandValue>{mbit}</demandValue></demand>'
        for (a, b), mbit in wanted.items()
    )
    return (
        f'<?xml version="1.0"?>{head}<network xmlns="http://sndlib.zib.de/network"><meta>{unit}</meta>'
        f'<nodes coordinatesType="geographical"><!-- <node id="x"> -->{nodes}</nodes><links>{links}</links>'
        f"<demands>{rows}</demands></network>"
    )


def rows(mark: str, of: dict[tuple[str, str], float], before: str, after: str) -> str:
    return "".join(f"  {mark}{at} ( {a} {b} ) {before}{mbit}{after}\n" for at, ((a, b), mbit) in enumerate(of.items()))


NATIVE = f"""?SNDlib native format; type: network; version: 1.0
# a comment ( of no meaning )
META (
  granularity  = 15min
  unit  = MBITPERSEC
)
NODES (
{"".join(f"  {name} ( {x} {y} ){chr(10)}" for name, (x, y) in NODES.items())})
LINKS (
{rows("L", LINKS, "0.00 0.00 0.00 0.00 ( ", " 7.00 )")})
DEMANDS (
{rows("D", WANTED, "1 ", " UNLIMITED")})
"""

REGIONS = (
    "Dallas",
    "Toronto",
    "Washington DC",
    "Frankfurt",
    "London",
    "Madrid",
    "Osaka",
    "Sydney",
    "Tokyo",
    "Sao Paulo",
)


def rtt_ms(a: str, b: str) -> float:
    """A round trip from region to region, which is another one back."""
    at, to = REGIONS.index(a), REGIONS.index(b)
    return round(10 + 7.25 * abs(at - to) + 0.5 * (at > to), 2)


def markdown(regions: tuple[str, ...] = REGIONS, bold: str = "**") -> str:
    """A page of IBM Cloud: the newest table, one of zones, and an older one."""
    head = f"| Average latency (ms) | {' | '.join(regions)} |\n| --- |{' :---: |' * len(regions)}\n"
    rows = "".join(
        f"| {bold}{a}{bold} | {' | '.join(str(rtt_ms(a, b)) if a != b else ' ' for b in regions)} |\n" for a in regions
    )
    old = "| Average latency (ms) | Dallas | Toronto |\n| --- | --- | --- |\n| **Dallas** |  | 999 |\n"
    return f"<!-- GENERATED -->\n## 3 Mar 2024\n{head}{rows}{{: caption='Table 1'}}\n\n## 2 Mar 2024\n{old}".replace(
        "999", "9"
    )


SKYPLANE = """src_region,src_tier,src_instance_class,dst_region,dst_tier,dst_class,tag,throughput_recieved,success
aws:us-east-1,PREMIUM,m5,aws:eu-west-1,PREMIUM,m5,4998401224.92,4731003970.08,True
aws:eu-west-1,PREMIUM,m5,aws:us-east-1,PREMIUM,m5,4998401224.92,4200000000.4,True
aws:us-east-1,PREMIUM,m5,gcp:us-west1-a,STANDARD,n2,1,2000000000,True
aws:us-east-1,PREMIUM,m5,gcp:us-west1-a,PREMIUM,n2,1,3000000000,True
gcp:us-west1-a,PREMIUM,n2,aws:us-east-1,PREMIUM,m5,1,3500000000,True
gcp:us-west1-a,PREMIUM,n2,aws:eu-west-1,PREMIUM,m5,1,3100000000,True
aws:eu-west-1,PREMIUM,m5,gcp:us-west1-a,PREMIUM,n2,1,3200000000,True
aws:ap-east-1,PREMIUM,m5,aws:us-east-1,PREMIUM,m5,0,0,False
aws:us-east-1,PREMIUM,m5,aws:ap-east-1,PREMIUM,m5,0,,True
"""
PINGS = """src_region,src_tier,src_instance_class,dst_region,dst_tier,dst_instance_class,min_rtt,avg_rtt,max_rtt,mdev
aws:us-east-1,PREMIUM,m5,aws:eu-west-1,PREMIUM,m5,66,66.5,67,0.1
gcp:us-west1-a,PREMIUM,n2,gcp:us-east4-a,PREMIUM,n2,,,,
"""


def dot(capacity: str = '"1Gbps"') -> str:
    """YATES's topology of four switches in a ring, each with a host."""
    named = "".join(f's{n}[type=switch,id={n},ip="1.1.1.{n}"];\nh{n}[type=host];\n' for n in (1, 2, 4, 12))
    ring = [(1, 2), (2, 4), (4, 12), (12, 1)]
    pairs = [f"s{a} -> s{b}" for a, b in (*ring, *((b, a) for a, b in ring))] + [f"h{n} -> s{n}" for n in (1, 2, 4, 12)]
    return f"digraph topology {{\n{named}" + "".join(f"{one} [cost=0, capacity={capacity}];\n" for one in pairs) + "}\n"


AMERICAN, GERMAN = ("SNVAng", "CHINng", "WASHng"), ("Berlin", "Frankfurt", "Muenchen")


def renamed(text: str, names: tuple[str, ...]) -> str:
    """A network with other names of three nodes, such as those of Abilene or Germany50."""
    for here, there in zip(("uk1.uk", "de1.de", "it1.it"), names, strict=True):
        text = text.replace(here, there)
    return text


def tle(number: int, degrees: float) -> str:
    """The elements of a satellite on a circular orbit of 14.8 turns a day, so far from its northward crossing."""
    one = f"1 {number:05d}U 00000A   00001.00000000  .00000000  00000-0  00000+0 0    0"
    two = f"2 {number:05d}  51.9000 100.0000 0000001   0.0000 {degrees:8.4f} 14.80000000    0"
    signs = [sum(int(sign) if sign.isdigit() else sign == "-" for sign in line) % 10 for line in (one, two)]
    return f"Ring {number}\n{one}{signs[0]}\n{two}{signs[1]}\n"


def constellation(count: int = 34) -> dict[str, str]:
    """A ring of satellites on one orbit, and two cities below it, as satgenpy writes them."""
    return {
        "tles.txt": f"1 {count}\n" + "".join(tle(number, 360 * number / count) for number in range(count)),
        "isls.txt": "".join(f"{min(a, b)} {max(a, b)}\n" for a in range(count) for b in [(a + 1) % count]),
        "ground_stations.txt": "0,Manila,0,0,0,1,2,3\n1,Dalian,25,20,0\n",
        "description.txt": "max_gsl_length_m=1500000.0\nmax_isl_length_m=2000000.0\n",
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a small file of every pack."""
    files = {
        "geant.xml": xml(),
        "abilene.xml": renamed(xml(), AMERICAN),
        "germany50.xml": renamed(xml(), GERMAN),
        "native.txt": NATIVE,
        "network-latency.md": markdown(),
        "throughput.csv": SKYPLANE,
        "latency.csv": PINGS,
        "topologies/abilene.dot": dot(),
        "hosts/abilene.hosts": "h4\nh1\nh2\nh12\n",
        "demands/abilene.txt": "0 1e6 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n" * 2,
    }
    files |= {f"kuiper/{name}": text for name, text in constellation().items()}
    for minutes in (0, 5, 10, 20, 25):
        name = f"demandMatrix-abilene-zhang-5min-20040301-00{minutes:02d}.xml"
        files[f"matrices/{name}"] = xml({ends: mbit * minutes for ends, mbit in WANTED.items()})
        files[f"directed-abilene-zhang-5min-over-6months-ALL/{name}"] = renamed(files[f"matrices/{name}"], AMERICAN)
        of_day = f"demandMatrix-germany50-DFN-1day-200502{minutes + 1:02}.xml"
        german = renamed(files[f"matrices/{name}"], GERMAN)
        files[f"directed-germany50-DFN-aggregated-1day-over-1month/{of_day}"] = german
        files[f"directed-geant-uhlig-15min-over-4months-ALL/{name}"] = files[f"matrices/{name}"]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def between(wan: str, *sites: str) -> tuple[Fabric, dict[str, float], dict[str, float]]:
    """The fabric over a pack's WAN, with the delays and the rates of its links by name."""
    spec = FabricSpec(gpus_per_site=(1,) * len(sites), border_routers=1, wan=read_wan(wan), sites=sites)
    assert read_wan(write_wan(spec.wan)) == spec.wan
    fabric, conditions = build_fabric(spec), load_scenario("paper").conditions
    names = [link.name for link in links_in_grain(fabric).all]
    of_delay, of_rate = delays_s(fabric, conditions), ranges_bps(fabric, conditions)[1]
    return fabric, dict(zip(names, of_delay, strict=True)), dict(zip(names, of_rate, strict=True))


@pytest.mark.parametrize("file", ["geant.xml", "native.txt"])
def test_sndlib_gives_capacities_lengths_and_demands(data: Path, file: str) -> None:
    """London and Frankfurt are 640 km apart, and the first demand is from London to Milan."""
    fabric, delay, rate = between(f"sndlib:{data / file}", "uk1.uk", "it1.it")
    assert rate["de1de>it1it"] == 10e9 and rate["uk1uk>de1de"] == rate["de1de>uk1uk"] == 2.5e9
    assert delay["uk1uk>de1de"] == pytest.approx(640 / 204.2 / 1e3, rel=0.01)
    assert fabric.paths_between[0, 1][0].name.startswith("s0b0>uk1uk>")
    found = demands_of(f"sndlib:{data / file}")
    at = found.nodes.index
    assert found.bps.sum() == pytest.approx(49.5e6)
    assert found.bps[0, at("uk1.uk"), at("it1.it")] == pytest.approx(30.5e6)


def test_dynamic_matrices_are_in_the_order_of_their_times_and_gaps_are_told(data: Path) -> None:
    found = demands_of(f"matrices:{data / 'matrices'}")
    assert found.times_s.tolist() == [0, 300, 900, 1200] and found.interval_s == 300
    assert found.bps.sum(axis=(1, 2)) == pytest.approx([49.5e6 * minutes for minutes in (5, 10, 20, 25)])
    assert found.notes == (
        "missing matrices, in whose place the previous one holds: 1",
        "matrices without demands, which are left out: 1",
    )


def test_topohubs_demands_are_those_of_its_map() -> None:
    found = demands_of("topohub:sndlib/abilene")
    raw = topohub.get("sndlib/abilene")
    assert found.bps.sum() == 1e6 * sum(sum(of.values()) for of in raw["graph"]["demands"].values())
    names = [node["name"] for node in raw["nodes"]]
    assert found.bps[0, found.nodes.index(names[5]), found.nodes.index(names[10])] == 3580e6


@pytest.mark.parametrize("form", ["markdown", "matrix", "long"])
def test_a_table_of_round_trips_joins_every_two_regions_by_half_of_their_mean(data: Path, form: str) -> None:
    path = data / ("network-latency.md" if form == "markdown" else "rtt.csv")
    if form == "matrix":
        rows = "\n".join(f"{a}," + ",".join(str(rtt_ms(a, b)) if a != b else "" for b in REGIONS) for a in REGIONS)
        path.write_text(f"Source,{','.join(REGIONS)}\n{rows}\n")
    elif form == "long":
        rows = "\n".join(f"{a},{b},{rtt_ms(a, b)}" for a in REGIONS for b in REGIONS if a != b)
        path.write_text(f"source,destination,rtt\n{rows}\n")
    fabric, delay, _ = between(f"latency:{path}", *REGIONS)
    assert len(fabric.wan.links) == 45 and not fabric.wan.routers
    for (a, b), (path_ab,) in fabric.paths_between.items():
        mean_ms = (rtt_ms(REGIONS[a], REGIONS[b]) + rtt_ms(REGIONS[b], REGIONS[a])) / 2
        assert 2e3 * delay[path_ab.name] == pytest.approx(mean_ms, abs=2e-6)


def test_tables_of_an_azure_page_are_read_whatever_the_number_of_their_columns(data: Path) -> None:
    """Each tab of the page has the destinations of one geography, which may be one region alone."""
    path = data / "azure.md"
    tables = ["| Source | East US | East US 2 |\n|---|---|---|\n| East US |  | 11 |\n| East US 2 | 13 |  |\n"]
    tables += ["| Source | Qatar Central |\n|---|---|\n| East US | 190 |\n| East US 2 | 194 |\n| Qatar Central |  |\n"]
    path.write_text("#### [East US](#tab/EastUS/Americas)\n\n" + "\n#### [Qatar](#tab/Qatar/MEA)\n\n".join(tables))
    _, delay, _ = between(f"latency:{path}", "East US", "East US 2", "Qatar Central")
    assert (delay["s0b0>s1b0"], delay["s0b0>s2b0"], delay["s1b0>s2b0"]) == pytest.approx((6e-3, 95e-3, 97e-3))


def test_skyplanes_links_have_the_throughput_of_each_direction_and_failures_make_none(data: Path) -> None:
    sites = ("aws:us-east-1", "aws:eu-west-1", "gcp:us-west1-a")
    fabric, delay, rate = between(f"skyplane:{data / 'throughput.csv'}", *sites)
    assert (rate["s0b0>s1b0"], rate["s1b0>s0b0"]) == (4731003970, 4200000000)
    assert rate["s0b0>s2b0"] == 3e9 and delay["s0b0>s1b0"] == delay["s1b0>s0b0"] == 33.25e-3
    assert [*fabric.wan.unmeasured] == [("s0b0", "s2b0"), ("s2b0", "s1b0")]
    with pytest.raises(FabricError, match="aws:ap-east-1"):
        between(f"skyplane:{data / 'throughput.csv'}", "aws:us-east-1", "aws:ap-east-1")


def test_yates_hosts_stand_for_their_switches(data: Path) -> None:
    _, _, rate = between(f"yates:{data / 'abilene'}", "s1", "s4")
    assert rate["s1>s2"] == 1e9 and "h1>s1" not in rate
    found = demands_of(f"yates:{data / 'abilene'}")
    assert found.nodes == ("s4", "s1", "s2", "s12") and found.times_s.tolist() == [0, 3600]
    assert found.bps[1].tolist() == [[0, 1e6, 2, 3], [4, 0, 6, 7], [8, 9, 0, 11], [12, 13, 14, 0]]


def test_a_link_of_yates_that_is_out_in_a_direction_is_on_no_path(data: Path) -> None:
    """Not one with the rate 0, nor, for lack of a capacity, one with the rate of the sampler, 100 Gbit/s."""
    up, out = 's1 -> s2 [cost=0, capacity="1Gbps"]', 's1 -> s2 [cost=0, capacity="0Gbps"]'
    (data / "topologies/abilene.dot").write_text(dot().replace(up, out))
    fabric, _, rate = between(f"yates:{data / 'abilene'}", "s1", "s4")
    assert {"s1>s2", "s2>s1"}.isdisjoint(rate) and len(fabric.wan.links) == 3 + 2  # with those to the sites
    assert [path.name for path in fabric.paths_between[0, 1]] == ["s0b0>s1>s12>s4>s1b0"]
    left_out = "links with the capacity 0 in a direction, which are left out: 1"
    assert any(left_out in note for note in read_wan(f"yates:{data / 'abilene'}").notes)


def test_a_constellations_links_are_as_long_as_geometry_says_and_hand_over(data: Path) -> None:
    """Neighbours on a circular orbit keep their distance, which follows from Kepler's third law; a station is at least
    as far from a satellite as the orbit is high."""
    pytest.importorskip("sgp4")
    source = f"satellites:{data / 'kuiper'}@0 s-200 s"
    found = moves_of(source, 1.0)
    radius_km = (398600.4 / (14.8 * 2 * np.pi / 86400) ** 2) ** (1 / 3)
    apart_s, up_s = 2 * radius_km * np.sin(np.pi / 34) / 299_792.458, (radius_km - 6378.137) / 299_792.458
    ground = np.array([bool({*ends} & {*found.stations}) for ends in found.links])
    assert found.delays_s.shape[0] == 201 and found.delays_s[:, ~ground] == pytest.approx(apart_s, rel=5e-3)
    of_ground = found.delays_s[:, ground]
    assert np.nanmin(of_ground) > 0.98 * up_s and np.nanmax(of_ground) <= 1500 / 299_792.458
    assert np.isnan(of_ground).any(axis=0).sum() >= 2  # links end, and others begin
    fabric, _, _ = between(source, *found.stations)
    first = sorted(column[np.isfinite(column)][0] for column in found.delays_s.T)
    assert sorted({*fabric.wan.delay_s.values()} - {0.0}) == pytest.approx(sorted({*np.round(first, 9)}), abs=2e-9)


@pytest.mark.parametrize("name", sorted(path.stem for path in (FOLDER / "packs").glob("*.toml")))
def test_every_scenario_of_a_pack_loads_with_its_data_and_only_loads_and_movements_need_them_again(
    data: Path, name: str
) -> None:
    if name == "satellites":
        pytest.importorskip("sgp4")
    asked = load_scenario(str(FOLDER / "packs" / f"{name}.toml"), [Override(DATA, str(data), DATA)])
    build_fabric(asked.fabric)
    text = resolved(asked)
    shutil.rmtree(data)
    if asked.conditions.load is None and asked.conditions.moves is None:
        assert scenario_of(text).fabric == asked.fabric
    with pytest.raises(ScenarioError):
        load_scenario(str(FOLDER / "packs" / f"{name}.toml"), [Override(DATA, str(data), DATA)])


# --- hostile files ----------------------------------------------------------------------------------------------------

HOSTILE: list[tuple[str, str, str | bytes, str]] = [
    ("sndlib", "a.xml", xml(head='<!DOCTYPE a [<!ENTITY b "c">]>'), "has a document type; allowed: XML without one"),
    (
        "sndlib",
        "a.xml",
        xml({("uk1.uk", "it1.it"): -1}),
        'the demandValue of demand 1 is "-1"; allowed: a number from 0',
    ),
    ("sndlib", "a.xml", xml({("uk1.uk", "nowhere"): 1}), '"nowhere" is not a node; allowed: a node of the file'),
    ("sndlib", "a.xml", xml(unit="<unit>PARSEC</unit>"), 'the unit "PARSEC"; allowed: MBITPERSEC'),
    ("sndlib", "a.xml", xml().replace("</link>", "", 1), "4 elements link begin and 3 end"),
    ("sndlib", "a.xml", xml().replace("<source>", "<origin>"), "link 1 lacks a part; allowed: source, target"),
    ("sndlib", "a.xml", "<a/>", "is no file of SNDlib"),
    ("sndlib", "a.xml", "<network " * 100_000, "has 0 nodes"),
    ("sndlib", "a.xml", b"\xff\xfe\xff", "is not UTF-16"),
    ("sndlib", "a.txt", NATIVE.replace("MBITPERSEC", "MILES"), 'the unit "MILES"; allowed: MBITPERSEC'),
    ("sndlib", "a.txt", NATIVE.replace("2500", "many"), 'a value is "many"'),
    ("sndlib", "a.txt", NATIVE.replace("uk1.uk de1.de", "uk1.uk"), "is not a row of LINKS"),
    ("sndlib", "a.txt", NATIVE[: NATIVE.index("  L2")], "ends within LINKS; allowed: a ) after its rows"),
    (
        "sndlib",
        "a.txt",
        NATIVE.replace("de1.de ( 8.7", "uk1.uk ( 8.7"),
        "is not a row of NODES; allowed: ID ( ... ), once",
    ),
    ("sndlib", "a.xml", xml().replace('id="de1.de"', 'id="uk1.uk"'), "node 2 has no id of its own"),
    ("matrices", "m", "", "cannot be read: Not a directory"),
    ("matrices", "m/a-2004.xml", xml(), '"a-2004.xml" has no time in its name; allowed: such as'),
    ("matrices", "m/a-20041301-0000.xml", xml(), "has no time in its name"),
    ("matrices", "m/a-20040301.xml", xml({("uk1.uk", "it1.it"): 0}), "has no demand above 0"),
    ("latency", "a.md", "hello", "has no table of round-trip times"),
    ("latency", "a.md", markdown().replace("| 17.25", "| -17.25"), 'a round trip in ms is "-17.25"; allowed: a number'),
    ("latency", "a.md", markdown().replace("| 17.25 ", "", 1), "10 fields; allowed: 11"),
    ("latency", "a.csv", "source,destination,rtt\na,b,1e9\n", 'a round trip in ms is "1e9"'),
    ("latency", "a.csv", "source,destination,rtt\na,b\n", "2 fields; allowed: 3"),
    ("latency", "a.csv", f"source,destination,rtt\n{'a' * 200_000},b,1\n", "it is not valid CSV: field larger than"),
    ("yates", "topologies/a.dot", "digraph {" + "a" + " " * 3_000_000 + "!;}", "is no statement"),
    ("sndlib", "a.xml", "<network " + "<link " * 500_000 + "</link>" * 500_000, "500,000 elements link begin"),
    ("sndlib", "a.xml", "<network " + "<!--" * 1_000_000, "has 0 nodes"),
    ("skyplane", "a.csv", "src_region,dst_region\n", "lacks the column src_tier, dst_tier and throughput_received"),
    ("skyplane", "a.csv", SKYPLANE.replace("4731003970.08", "nan"), 'throughput_recieved is "nan"'),
    ("skyplane", "a.csv", SKYPLANE.replace(",True", "", 1), "another number of fields"),
    ("skyplane", "a.csv", "\n".join(SKYPLANE.split("\n")[:2]), "no two regions with a throughput in both"),
    ("skyplane", "a.csv", SKYPLANE + '"', "it is not valid CSV"),
    ("yates", "topologies/a.dot", "graph", "is no topology; allowed: digraph"),
    ("yates", "topologies/a.dot", dot('"fast"'), "has no capacity; allowed: such as capacity="),
    ("yates", "topologies/a.dot", dot().replace("s1 -> s2", "s1 -> s9"), '"s9" is not declared'),
    ("yates", "topologies/a.dot", dot().replace("s2 -> s1", "s1 -> s2"), "s1 -> s2 is there twice"),
    ("yates", "topologies/a.dot", dot().replace("s1 ->", "s1 ~>"), "is no statement"),
    ("topohub", "", "", "names no source; allowed: topohub:SOURCE"),
]


@pytest.mark.parametrize(
    ("pack", "name", "content", "named"), HOSTILE, ids=[f"{number} {each[0]}" for number, each in enumerate(HOSTILE)]
)
def test_a_hostile_file_is_refused_in_one_sentence(
    tmp_path: Path, pack: str, name: str, content: str | bytes, named: str
) -> None:
    source = ""
    if name:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        source = str({"matrices": tmp_path / name.split("/", maxsplit=1)[0], "yates": tmp_path / "a"}.get(pack, path))
    messages = []
    if "wan" in PACKS[pack].gives:
        try:
            read_wan(f"{pack}:{source}")
        except FabricError as error:
            messages += [mistake.text for mistake in error.mistakes]
    if "demands" in PACKS[pack].gives:
        try:
            demands_of(f"{pack}:{source}")
        except PackError as error:
            messages.append(str(error))
    assert any(named in text for text in messages), [text[:400] for text in messages]
    assert all("\n" not in text and "; allowed: " in text and len(text) < 400 for text in messages)


NODE = '{"id": 0, "name": "a"}'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"nodes": [', 'topohub\'s map "sndlib/abilene" cannot be read: Expecting value: line 1'),
        ("[1]", 'topohub\'s map "sndlib/abilene" is [1]; allowed: a table'),
        ('{"nodes": {"a": 1}}', 'nodes of "sndlib/abilene" are {a = 1}; allowed: a list'),
        ('{"nodes": [{"name": "a"}]}', 'have {name = "a"}; allowed: a table with id'),
        ('{"nodes": ["a"]}', 'have "a"; allowed: a table with id'),
        (f'{{"nodes": [{NODE}], "edges": [{{"source": 0}}]}}', "have {source = 0}; allowed: a table with source and"),
        (f'{{"nodes": [{NODE}], "edges": [{{"source": 0, "target": 7}}]}}', '"7" is not a node'),
        (f'{{"nodes": [{NODE}], "graph": {{"demands": [3]}}}}', "are [3]; allowed: a table of tables"),
        (
            f'{{"nodes": [{NODE}], "graph": {{"demands": {{"0": {{"7": -3}}}}}}}}',
            'a demand of topohub is "-3"; allowed',
        ),
        (f'{{"nodes": [{NODE}], "graph": {{"demands": {{"0": {{"7": 3}}}}}}}}', "has 1 nodes; allowed for demands: 2"),
    ],
)
def test_a_damaged_map_of_topohub_is_refused_in_one_sentence(
    content: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / "sndlib" / "abilene.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    monkeypatch.setattr(topohub, "__file__", str(tmp_path / "__init__.py"))
    messages = []
    try:
        read_wan("topohub:sndlib/abilene")
    except FabricError as error:
        messages += [mistake.text for mistake in error.mistakes]
    try:
        demands_of("topohub:sndlib/abilene")
    except PackError as error:
        messages.append(str(error))
    assert any(named in text for text in messages), messages
    assert all("\n" not in text and "; allowed" in text for text in messages), messages


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("tles.txt", "1 00001U", "1 x", 'satellite 1 is "1 x'),
        ("tles.txt", "Ring 3\n", "", "satellite 3 is"),
        ("tles.txt", "Ring 0\n", "Ring 0\n1\n2\nRing 0\n", "satellite 0 is"),
        ("tles.txt", "14.80000000", "99.80000000", "has no orbit at that time"),
        ("isls.txt", "0 1\n", "0 99\n", '"isls.txt":1 is "99"; allowed: a number from 0 to 33'),
        ("isls.txt", "0 1\n", "0\n", '"0" is no link; allowed: two satellites'),
        ("ground_stations.txt", "1,Dalian,25,20,0\n", "", "has 1 ground stations; allowed: 2 to 20"),
        ("ground_stations.txt", "25,20", "95,20", 'is "95"; allowed: a number from -90 to 90'),
        ("description.txt", "max_gsl", "max_gls", 'max_gsl_length_m is ""; allowed: a number'),
    ],
)
def test_a_hostile_constellation_is_refused(data: Path, file: str, old: str, new: str, named: str) -> None:
    pytest.importorskip("sgp4")
    path = data / "kuiper" / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(PackError) as caught:
        moves_of(f"satellites:{data / 'kuiper'}@0 s-10 s", 1.0)
    assert named in str(caught.value) and "; allowed: " in str(caught.value)


@pytest.mark.parametrize("span", ["", "@", "@soon", "@10 s-0 s", "@0 s-9999999 s"])
def test_a_span_that_is_none_is_refused(data: Path, span: str) -> None:
    with pytest.raises(PackError, match=r"allowed: FOLDER@50 s"):
        moves_of(f"satellites:{data / 'kuiper'}{span}", 1.0)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("0 " * 15, "15 numbers; allowed: 16, for 4 hosts"),
        ("0 " * 15 + "-3", 'a demand is "-3"; allowed: numbers from 0'),
        ("0 " * 15 + "x", 'a demand is "x"'),
        ("", "has 0 matrices; allowed: 1 to"),
    ],
)
def test_hostile_demands_of_yates_are_refused(data: Path, line: str, named: str) -> None:
    (data / "demands/abilene.txt").write_text(line)
    with pytest.raises(PackError, match=named.replace("(", r"\(")):
        demands_of(f"yates:{data / 'abilene'}")


def test_a_pack_without_demands_says_which_packs_have_some() -> None:
    with pytest.raises(
        PackError, match="the pack latency has no demands; allowed: sndlib, matrices, topohub and yates"
    ):
        demands_of("latency:a.csv")
    with pytest.raises(PackError, match=r'"sndlip:a" names no pack; .* \(did you mean sndlib\?\)'):
        demands_of("sndlip:a")


def test_a_damaged_file_of_kept_numbers_is_made_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / "cache"))
    made = kept([data / "geant.xml"], "test", lambda: {"one": np.arange(3)})
    (path,) = (data / "cache" / "longhaul" / "packs").iterdir()
    path.write_bytes(path.read_bytes()[:30])
    again = kept([data / "geant.xml"], "test", lambda: {"one": np.arange(3)})
    assert made["one"].tolist() == again["one"].tolist() == [0, 1, 2]
    assert kept([data / "geant.xml"], "test", lambda: {})["one"].tolist() == [0, 1, 2]


def test_every_pack_has_at_most_150_lines() -> None:
    folder = Path(demands_of.__code__.co_filename).parent
    assert all(len((folder / f"{pack.module}.py").read_text().splitlines()) <= 150 for pack in PACKS.values())
