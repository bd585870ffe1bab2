"""What people have measured, converted: every form gives the trace or the delays that were written, and what cannot be
read without a guess is refused in one sentence.

The oracle of the round trip is the table from which the files are written.
"""

import json
import os
import resource
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.api import run, scenario
from scenarios.spec import ScenarioError
from scenarios.spec.load import scenario_of
from tests.conftest import PROJECT
from topologies.conditions.clock import in_utc
from topologies.conditions.convert.__main__ import main
from topologies.conditions.convert.tables import time_of_name
from topologies.conditions.trace import read_trace
from topologies.errors import ConditionsError

SITES = ["--site", "Zürich=s0", "--site", "Genève=s1"]
LINKS = ["s0b0>s1b0", "s1b0>s0b0"]
THERE, BACK = (f"{{}},{link},{{}}\n" for link in LINKS)
TRACE = "time,link,rate\n" + "".join(
    (THERE if there else BACK).format(time, rate)
    for time, there, rate in [(0, 1, "4.3 Gbit/s"), (0, 0, "3.9 Gbit/s"), (10, 1, "4.1 Gbit/s"), (10, 0, "0 bit/s")]
)
NEEDED = "the scenario needs a WAN with these links and no others:"
BEGINS = "it begins at its first time, "
DOWN = "1 rate of 0: the link is down then"
LONG = "0,Zürich,Genève,4300\n0,Genève,Zürich,3900\n10,Zürich,Genève,4100\n10,Genève,Zürich,0\n"
IPERF = {
    "start": {"timestamp": {"timesecs": 1769903995}},
    "intervals": [
        {"sum": {"start": 0, "end": 1, "bits_per_second": 1e9, "omitted": True}},
        {"sum": {"start": 1, "end": 2.0005, "bits_per_second": 4.3e9, "omitted": False}},
        {"sum": {"start": 2.0005, "end": 3, "bits_per_second": 9412345678.5}},
    ],
}
IPERF_TRACE = "# begins 2026-01-31T23:59:56Z\ntime,link,rate\n0,{0},4.3 Gbit/s\n1.0005,{0},9.412345678 Gbit/s\n".format(
    LINKS[0]
)
MATRIX = "time,0\nGbit/s,Zürich,Genève\nZürich,,4.3\nGenève,3.9,\n"


def with_header(header: str, text: str = LONG) -> str:
    return f"{header}\n{text}"


def converted(folder: Path, files: Mapping[str, str | bytes], *options: str) -> int:
    """Convert files, of which the paths come first, and return the exit status."""
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return main([*(str(folder / name) for name in files), *options])


HEADER = "time,source,destination,throughput_mbps"
FORMS: dict[str, tuple[dict[str, str | bytes], list[str], str, list[str]]] = {
    # files, options, the trace, and what is told
    "a unit in the header": ({"a.csv": with_header(HEADER)}, [], TRACE, [DOWN]),
    "a unit in the header that --unit does not change": (
        {"a.csv": with_header(HEADER)},
        ["--unit", "Gbit/s"],
        TRACE,
        ["--unit Gbit/s does not hold for 4 values with a unit of their own", DOWN],
    ),
    "in brackets": ({"a.csv": with_header("t,from,to,rate (Mbit/s)")}, [], TRACE, [DOWN]),
    "in square ones": ({"a.csv": with_header("t,src,dst,bandwidth [Mbps]")}, [], TRACE, [DOWN]),
    "named": ({"a.csv": with_header("time,source,destination,value")}, ["--unit", "Mbit/s"], TRACE, [DOWN]),
    "inferred": (
        {"a.csv": with_header("time,source,destination,value")},
        [],
        TRACE,
        ["4 values without a unit, taken as Mbit/s, by their size; --unit names another one", DOWN],
    ),
    "bytes": (
        {"a.csv": with_header("time,source,destination,rate (MB/s)", "0,Zürich,Genève,5\n")},
        [],
        f"time,link,rate\n0,{LINKS[0]},40 Mbit/s\n",
        [],
    ),
    "units with the values": (
        {"a.csv": with_header("time,source,destination,value", "0,Zürich,Genève,4.3 Gbit/s\n")},
        [],
        f"time,link,rate\n0,{LINKS[0]},4.3 Gbit/s\n",
        [],
    ),
    "without a header": (
        {"a.csv": LONG},
        ["--unit", "Mbit/s"],
        TRACE,
        ["a.csv: its columns are taken by their order: time, source, destination, value", DOWN],
    ),
    "another order and columns": (
        {"a.csv": "loss,rate_mbps,dst,src,time\n0.1,4300,Genève,Zürich,0\n"},
        [],
        f"time,link,rate\n0,{LINKS[0]},4.3 Gbit/s\n",
        ['a.csv: not used: the column "loss"'],
    ),
    "tabs": ({"a.csv": with_header(HEADER).replace(",", "\t")}, [], TRACE, [DOWN]),
    "semicolons and decimal commas": (
        {"a.csv": "time;source;destination;rate (Gbit/s)\n0;Zürich;Genève;4,3\n"},
        [],
        f"time,link,rate\n0,{LINKS[0]},4.3 Gbit/s\n",
        [],
    ),
    "a mark, quotes, comments and Windows' line ends": (
        {"a.csv": ("\ufeff# measured\r\n" + with_header(HEADER).replace("Zürich", '"Zürich"').replace("\n", "\r\n"))},
        [],
        TRACE,
        [DOWN],
    ),
    "UTF-16": ({"a.csv": with_header(HEADER).encode("utf-16")}, [], TRACE, [DOWN]),
    "not in order": (
        {"a.csv": with_header(HEADER, "".join(reversed(LONG.splitlines(keepends=True))))},
        [],
        TRACE,
        [DOWN],
    ),
    "epoch in ms": (
        {"a.csv": with_header(HEADER, LONG.replace("\n10,", "\n1769904005000,").replace("0,", "1769903995000,", 1))
            .replace("\n0,", "\n1769903995000,")},
        [],
        f"# begins 2026-01-31T23:59:55Z\n{TRACE}",
        ["its times are taken as milliseconds", f"{BEGINS}1769903995000 (2026-01-31 23:59:55 UTC)", DOWN],
    ),
    "ms in the header": (
        {"a.csv": with_header(HEADER.replace("time", "time_ms"), LONG.replace("\n10,", "\n10000,"))},
        [],
        TRACE,
        ["its times are taken as milliseconds", DOWN],
    ),
    "dates with a zone": (
        {"a.csv": with_header(HEADER, "2026-01-31T23:59:55+01:00,Zürich,Genève,4300\n2026-01-31T23:00:05Z,Zürich,"
                              "Genève,4100\n")},
        [],
        f"# begins 2026-01-31T22:59:55Z\ntime,link,rate\n0,{LINKS[0]},4.3 Gbit/s\n10,{LINKS[0]},4.1 Gbit/s\n",
        ["it begins at its first time, 2026-01-31T23:59:55+01:00"],
    ),
    "names of links": (
        {"a.csv": "time,link,rate_mbps\n0,s0b0-s1b0,4300\n0,Zürich->R1,1\n0,s0:s2b1,2\n"},
        [],
        f"time,link,rate\n0,s0b0>R1,1 Mbit/s\n0,{LINKS[0]},4.3 Gbit/s\n0,s0b0>s2b1,2 Mbit/s\n0,{LINKS[1]},4.3 Gbit/s\n",
        ["s0b0-s1b0: each value holds for both directions"],
    ),
    "a column for each link": (
        {"a.csv": "Zeit;Zürich>Genève (Gbit/s);Genève->Zürich (Mbit/s)\n0;4,3;3900\n10;4,1;0\n"},
        [],
        TRACE,
        [DOWN],
    ),
    "a gap, and a link that begins late": (
        {"a.csv": with_header(HEADER, "0,s0,s1,1\n1,s0,s1,2\n2,s0,s1,\n3,s0,s1,3\n4,s0,s1,4\n3,s1,s0,5\n4,s1,s1,6\n")},
        [],
        "time,link,rate\n0,{0},1 Mbit/s\n0,{1},5 Mbit/s\n1,{0},2 Mbit/s\n3,{0},3 Mbit/s\n3,{1},5 Mbit/s\n"
        "4,{0},4 Mbit/s\n".format(*LINKS),
        [
            "1 of 7 values missing, of s0b0>s1b0: the previous one holds",
            "1 value from a site to itself not used",
            's0b0>s1b0 has 1 gap, in which the previous value holds: from 1 s to 3 s (the median step is 1 s)',
            "no value at the first time for s1b0>s0b0: the first one of the link holds until then",
        ],
    ),
    "matrices with lines of time": (
        {"a.csv": MATRIX + "# time: 10\nGbit/s,Genève,Zürich\nZürich,4.1,\nGenève,,0\n"},
        [],
        TRACE,
        [DOWN],
    ),
    "a matrix a file": (
        {
            "m-5.csv": MATRIX.partition("\n")[2],
            "m-15.csv": "Gbit/s,Zürich,Genève\nZürich,0,4.1\nGenève,0,0\n",
        },
        [],
        TRACE,
        [
            "m-5.csv: its time is 5, from its name",
            "m-15.csv: its time is 15, from its name",
            "it begins at its first time, 5",
            DOWN,
        ],
    ),
    "iperf3": (
        {"a.json": json.dumps(IPERF)},
        ["--link", LINKS[0]],
        IPERF_TRACE,
        ["a.json: 1 omitted interval at its beginning not used", f"{BEGINS}1769903996 (2026-01-31 23:59:56 UTC)"],
    ),
    "iperf3 of two sites": (
        {"a.json": json.dumps(IPERF)},
        ["--link", "Zürich:Genève"],
        IPERF_TRACE,
        ["a.json: 1 omitted interval at its beginning not used", f"{BEGINS}1769903996 (2026-01-31 23:59:56 UTC)"],
    ),
    "a trace": (
        {"a.csv": TRACE},
        [],
        TRACE,
        [DOWN],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_trace_that_was_measured_and_what_was_assumed_is_told(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, options, trace, told = FORMS[form]
    monkeypatch.chdir(tmp_path)
    assert converted(Path(), files, *SITES, *options) == 0
    out, err = capsys.readouterr()
    assert out == trace
    keys = [f"convert: {NEEDED}", "[fabric]", "border_routers = 1"] * (
        all(link in trace for link in LINKS) and "R1" not in trace
    )
    lines = [line for line in err.splitlines() if "rates are given in one direction only" not in line]
    assert lines == [*(f"convert: {note}" for note in told), *keys]
    links = {line.split(",")[1] for line in trace.splitlines()[1:]}
    is_one_way = any(">".join(reversed(link.split(">"))) not in links for link in links)
    assert len(err.splitlines()) - len(lines) == is_one_way


CABLES = ["--link", "a-b 1=s0-s1", "--link", "a-b 2=s0b0:s1b0#2", "--link", "back=s1b0>s0b0#2"]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a-b 1 [Gbit/s],time_s,a-b 2 [Gbit/s],back [Gbit/s]\n4.3,0,1,2\n4.3,5,,2\n", CABLES),
        ("time,link,gbps\n0,a-b 1,4.3\n0,a-b 2,1\n0,back,2\n5,a-b 1,4.3\n5,a-b 2,\n5,back,2\n", CABLES),
        ("time,link,gbps\n0,s0-s1,4.3\n0,Zürich:s1#2,1\n0,s1b0>s0b0#2,2\n5,Zürich-s1,4.3\n5,s1>s0#2,2\n", []),
    ],
)
def test_several_cables_between_two_sites_have_numbers_and_names_stand_for_links(
    text: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert converted(tmp_path, {"a.csv": text}, *SITES, "--unit", "Gbit/s", *options) == 0
    out, err = capsys.readouterr()
    there = ["0,{0},4.3 Gbit/s", "0,{0}#2,1 Gbit/s", "0,{1},4.3 Gbit/s", "0,{1}#2,2 Gbit/s", "5,{0},4.3 Gbit/s"]
    rows = [row.format(*LINKS) for row in (*there, "5,{1},4.3 Gbit/s", "5,{1}#2,2 Gbit/s")]
    assert out.splitlines() == ["time,link,rate", *rows]
    assert "each value holds for both directions" in err and 'links = [["s0b0", "s1b0"], ["s0b0", "s1b0"]]' in err
    (tmp_path / "trace.csv").write_text(out)
    wan = 'gpus = 4\nborder_routers = 1\n[fabric.wan]\nlinks = [["s0b0", "s1b0"], ["s0b0", "s1b0"]]'
    use = f'[conditions]\nsampler = "trace"\ntrace = "{tmp_path / "trace.csv"}"'
    run(scenario_of(f"[fabric]\n{wan}\n{use}\n[collective]\ncount = 2\n"), "model")


@pytest.mark.parametrize(
    ("text", "options", "delays"),
    [
        (",Zürich,Genève\nZürich,0,45\nGenève,44.5,0\n", [], ["45 ms", "44.5 ms"]),
        ("rtt (ms),Zürich,Genève\nZürich,0,45\nGenève,45,0\n", ["--rtt"], ["22.5 ms", "22.5 ms"]),
        (",Zürich,Genève\nZürich,0,45\nGenève,0,0\n", ["--unit", "us"], ["45 us", "0 s"]),
        ("source,destination,latency_ms\nZürich,Genève,45\nGenève,Zürich,40\n", [], ["45 ms", "40 ms"]),
        ("time,link,delay_ms\n0,s0-s1,45\n1,s0-s1,40\n2,s0-s1,41\n", [], ["41 ms", "41 ms"]),
        ("link,rtt_ms\ns0-s1,45\n", [], ["22.5 ms", "22.5 ms"]),
    ],
)
def test_latencies_become_delays_that_a_scenario_takes(
    text: str, options: list[str], delays: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "delays.toml"
    assert converted(tmp_path, {"a.csv": text}, "--as", "delays", *SITES, *options, "--out", str(out)) == 0
    table = tomllib.loads(out.read_text())["conditions"]["links"]
    assert table == {link: {"delay": delay} for link, delay in zip(LINKS, delays, strict=True)}
    (tmp_path / "mine.toml").write_text("[fabric]\nborder_routers = 1\n" + out.read_text())
    assert {one.links for one in scenario(tmp_path / "mine.toml").conditions.links} == {*LINKS}


def test_round_trips_that_are_missing_are_named_with_the_delay_that_their_links_then_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pairs within a site are no links; one link has no value at all, and one lacks the second of two."""
    rows = ["s0b0;;;10,2;14,8", "s0b1;;;12,0;11,4", "s1b0;10,4;12,2;;", "s1b1;;11,6;;"]
    head, full = "rtt_ms;s0b0;s0b1;s1b0;s1b1", rows[2]
    out = tmp_path / "delays.toml"
    first, second = ("\n".join([head, *rows[:2], row, rows[3]]) + "\n" for row in (full, "s1b0;10,4;;;"))
    assert converted(tmp_path, {"a.csv": first, "b.csv": second}, "--as", "delays", "--rtt", "--out", str(out)) == 0
    lacking = capsys.readouterr().err.splitlines()[:2]
    assert lacking == [
        "convert: 1 of 16 values missing, of s1b0>s0b1: the others of the link are used",
        "convert: no value for s1b1>s0b0: such a link has the delay conditions.wan_delay in a run, 10 us unless that "
        "is set",
    ]
    assert "s1b1>s0b0" not in tomllib.loads(out.read_text())["conditions"]["links"]
    assert scenario_of("").configurations()[0].conditions.wan_delay_s == 10e-6


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        ("", [], "a: it is empty; allowed"),
        ("# only a comment\n", [], "a: it has no rows"),
        (HEADER + "\n", [], "a:1: it has no row below its header"),
        (b"\x7fELF\x02\x01\x01\x00\xd0\xff", [], "a: line 1: byte 9 (0xD0) is not UTF-8"),
        (b"PK\x03\x04\x00\x00" * 9, [], "a:1: no column of"),
        (HEADER + "\n0,s0,s1," + "9" * 500, [], "a:2: a field of 500 characters; allowed: 200"),
        (HEADER + "\n0,s0,s1," + "9" * 200_000, [], "a:2: it is not valid CSV: field larger than field limit"),
        (HEADER + '\n0,s0,"s1,4\n', [], "it is not valid CSV: unexpected end of data"),
        (HEADER + "\n0,s0,s1,nan\n", [], 'a:2: "nan" is not a number'),
        (HEADER + "\n0,s0,s1,inf\n", [], 'a:2: "inf" is not a number'),
        (HEADER + "\n0,s0,s1,-4\n", [], 'a:2: "-4 mbps" is negative; allowed: 0 or more'),
        (HEADER + "\n0,s0,s1,0.0001\n", [], "allowed: 0 or 1 kbit/s to 1000 Tbit/s"),
        (HEADER + "\n0,s0,s1,1e300\n", [], "allowed: 0 or 1 kbit/s to 1000 Tbit/s"),
        (HEADER + "\n0,s0,s1,4 parsecs\n", [], "has the wrong unit for a rate"),
        (HEADER + "\n0,s0,s1,4,5\n", [], "a:2: 5 fields; allowed: 4, as in the first row"),
        (HEADER + "\n0,s0,s1,4\n0,s0b0,s1,5\n", [], 'a:3: s0b0>s1b0 has a second value at time "0" (a:2)'),
        (HEADER + "\n0,s0,s1,4\nnoon,s0,s1,5\n", [], "a:3: 'noon' is not a time; allowed: seconds, as the first one"),
        (HEADER + "\n0,s0,s1,4\n1e30,s0,s1,5\n", [], "a:3: '1e30' is not within 1e9 s"),
        (HEADER + "\n0,s0,s1,\n", [], "no link has a value, among those read"),
        (HEADER + "\n0,s0,Bern,4\n", [], 'a:2: "Bern" is not a site with a node'),
        (HEADER + "\n0,s0,Zurich,4\n", [], '(did you mean Zürich?)'),
        (HEADER + "\n0,s0,Genève 1,4\n", [], 'a site with --site "Genève 1=s0" (so far: "Zürich", "Genève")'),
        ("t;Zürich-Genève;Zürich-Bern\n0;1,5;2,5\n", [], 'a:2, column "Zürich-Bern": "Bern" is not a site with a node'),
        ("t,s0-s1,s0-s1\n0,1,2\n", [], 'a:1: two columns are "s0-s1"; allowed: one a link'),
        ("t,s0-s1,s0-s2\n0,1\n", [], "a:2: 2 fields; allowed: 3, as in the first row"),
        ("t,s0-s1\n", [], "a:1: it has no row below its header"),
        ("t,s0-s1,Zürich-s1\n0,1,2\n", [], 'for another cable: --link "Zürich-s1=s0b0-s1b0#2"'),
        (with_header(HEADER), ["--link", "x=Bern"], '--link "x=Bern" assigns no link to a new name; allowed: NAME='),
        (with_header(HEADER), ["--link", "x=s0-s1", "--link", "x=s0-s2"], '"x=s0-s2" assigns no link to a new name'),
        (HEADER + "\n0,Zürich,s0,4\n", [], 'a:2: "Zürich" and "s0" are both s0b0; allowed: a node for each'),
        ("time,source,destination,loss,jitter\n0,s0,s1,4,5\n", [], "is the value; allowed: the columns time, source"),
        ("time;link;rate_mbps\n0;s0>s1;12,500\n", [], 'a:2: "12,500" may have thousands or decimals'),
        ("time,link,rate_mbps\n0,here,4\n", [], 'a:2: "here" is not a link; allowed: such as s0b0>s1b0'),
        (",s0,s1\ns0,0,4\n", ["--from", "matrix"], 'a:1: no row for "s1"; allowed: a square matrix'),
        (",s0,s1\ns0,0,4\ns2,0,4\n", ["--from", "matrix"], 'a:3: "s2" is not the name of a column'),
        (",s0,s0\ns0,0,4\n", ["--from", "matrix"], 'a:1: two columns are "s0"'),
        ("time,0\n,s0,s1\ns0,0\ns1,0,4\n", [], "a:3: 2 fields; allowed: 3"),
        ("[" * 100_000, ["--link", "s0:s1"], "a: it is nested too deeply"),
        ("{", ["--link", "s0:s1"], "a:1: it is not valid JSON"),
        ("{}", ["--link", "s0:s1"], "a: it has no intervals"),
        ('{"error": "unable to connect"}', ["--link", "s0:s1"], 'iperf3 failed: "unable to connect"'),
        ('{"intervals": [{}]}', ["--link", "s0:s1"], "a: intervals[0].sum is missing"),
        ('{"intervals": [{"sum": {"start": 0, "bits_per_second": NaN}}]}', ["--link", "s0:s1"], "NaN is not a number"),
        ('{"intervals": [{"sum": {"start": 0, "bits_per_second": -5}}]}', ["--link", "s0:s1"], "is negative"),
        ('{"intervals": [{"sum": {"start": 0}}]}', ["--link", "s0:s1"], "intervals[0].sum.bits_per_second is"),
        (json.dumps(IPERF), [], "--link is given 0 times; allowed: once for each file of iperf3, of which there are 1"),
        (json.dumps(IPERF), ["--link", "s0:s1", "--as", "delays"], "iperf3 has rates; allowed: --as rates"),
        (with_header(HEADER), ["--link", "s0:s1"], "allowed: once for each file of iperf3, of which there are 0"),
        (with_header(HEADER), ["--unit", "ms"], '--unit "ms" is not a unit of rates'),
        (with_header(HEADER), ["--site", "Bern"], '--site "Bern" assigns no node'),
        (with_header(HEADER), ["--site", "Bern=New-York"], "or NAME=ROUTER for a router of the WAN, whose names are"),
        (with_header(HEADER), ["--site", "Bern=SaltLakeCity"], '"Bern=SaltLakeCity" assigns no node; allowed: NAME=s0'),
        (with_header(HEADER), ["--site", "Zürich=s4"], "assigns Zürich a second time"),
        (with_header(HEADER), ["--rtt"], "--rtt is for delays"),
        (with_header(HEADER), ["--out", "a"], '--out "a" exists; allowed: a new file'),
        (with_header(HEADER), ["--out", "none/b"], '--out "none/b" cannot be written: No such file'),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_refused_in_one_sentence(
    content: str | bytes,
    options: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert converted(Path(), {"a": content}, *SITES, *options) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert named in last and any(words in last for words in ("allowed", "cannot be written", "within 1e9 s"))
    assert out == "" and (tmp_path / "a").read_bytes() == (content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("kind", ["rates", "delays"])
@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("{time}src,dst,{unit}\n{zero}s0,s1,8.5\n", "{unit}"),
        ("{time}src,dst,available ({unit})\n{zero}s0,s1,8.5\n", "available ({unit})"),
        ("{time}src,dst,loss,jitter,value_{unit}\n{zero}s0,s1,1,2,8.5\n", "value_{unit}"),
        ("time;s0>s1 [{unit}];s1>s0\n0;8,5;9\n", "s0>s1 [{unit}]"),
        ("time,s0>s1_{unit},s1>s0_{unit}\n0,8.5,9\n", "s0>s1_{unit}"),
        ("{unit},s0,s1\ns0,,8.5\ns1,9,\n", "{unit}"),
        ("from ({unit}),s0,s1\ns0,,8.5\ns1,9,\n", "from ({unit})"),
    ],
)
def test_a_unit_of_the_other_quantity_is_refused_with_what_is_allowed(
    kind: str, table: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Delays that are converted without --as would else become rates of the same digits, and rates delays."""
    other, unit = ("delays", "ms") if kind == "rates" else ("rates", "Mbps")
    words = {"time": "time," * (kind == "rates"), "zero": "0," * (kind == "rates"), "unit": unit}
    files, options = {"a.csv": table.format(**words)}, ["--as", kind] if kind == "delays" else []
    assert converted(tmp_path, files, *options) == 2
    out, err = capsys.readouterr()
    allowed = "bit/s, kbit/s" if kind == "rates" else "ns, us, ms, s)"
    assert out == "" and err.count("\n") == 1
    assert f'a.csv:1: "{named.format(**words)}" names {unit}, a unit of {other}; allowed: --as {other}, or' in err
    assert allowed in err
    if table.startswith("{time}"):  # the other quantity needs a time, or none
        return
    assert converted(tmp_path, files, "--as", other) == 0


def test_a_time_an_unused_column_and_a_sites_name_may_end_as_units_of_the_other_quantity_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "time_ms,src,dst,rtt_ms,rate_mbps\n0,s0,s1,8,900\n"
    assert converted(tmp_path, {"long.csv": long}) == 0
    assert "0,s0b0>s1b0,900 Mbit/s" in capsys.readouterr().out
    wide = "time,gcp_eu>gcp_us,gcp_us>gcp_eu\n0,900 Mbit/s,800 Mbit/s\n"
    assert converted(tmp_path, {"wide.csv": wide}, "--site", "gcp_eu=s0", "--site", "gcp_us=s1") == 0
    assert "0,s0b0>s1b0,900 Mbit/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "header", "values", "says"),
    [
        (
            "rates",
            "time,src,dst,rate",
            ["10 Gbit/s", "20 Gbit/s", "30 Gbit/s"],
            "rates are given in one direction only, of s0b0>s1b0, and a WAN link needs both",
        ),
        (
            "delays",
            "src,dst,delay",
            ["10 ms", "20 ms", "30 ms"],
            "no row names s1b0>s0b0, s1b0>s2b0, s2b0>s1b0: such a link has the delay conditions.wan_delay in a run, 10",
        ),
    ],
)
def test_links_that_no_row_names_are_told(
    kind: str, header: str, values: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three sites, one direction between A and B is named, and both between A and C; none between B and C."""
    time, sites = "0," * (kind == "rates"), ["--site", "A=s0", "--site", "B=s1", "--site", "C=s2"]
    ends = [("A", "B"), ("A", "C"), ("C", "A")]
    rows = [f"{time}{src},{dst},{value}" for (src, dst), value in zip(ends, values, strict=True)]
    assert converted(tmp_path, {"some.csv": "\n".join([header, *rows])}, "--as", kind, *sites) == 0
    assert f"convert: {says}" in capsys.readouterr().err
    rows.append(f"{time}B,A,{values[0]}")
    rows += [f"{time}{src},{dst},{values[0]}" for src, dst in (("B", "C"), ("C", "B"))]
    assert converted(tmp_path, {"all.csv": "\n".join([header, *rows])}, "--as", kind, *sites) == 0
    told = capsys.readouterr().err
    assert "no row names" not in told and "other direction" not in told


def test_a_trace_that_cannot_be_written_to_its_end_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,link,rate_mbps\n" + "".join(f"{t},s0b0>s1b0,{t}\n" for t in range(1, 9999)))
    ended = subprocess.run(
        [sys.executable, "-m", "topologies.conditions.convert", "a.csv", "--out", "trace.csv"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2 and "trace.csv" in ended.stderr and "cannot be written" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero")):
        assert main([str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("stem", "time"),
    [
        ("matrix-2026-01-31T12-30-05Z", "2026-01-31T12:30:05Z"),
        ("20260131_1230", "2026-01-31T12:30:00"),
        ("site2-0010", "0010"),
        ("m1769903995.5", "1769903995.5"),
        ("matrix", None),
    ],
)
def test_a_files_name_tells_its_time(stem: str, time: str | None) -> None:
    assert time_of_name(stem) == time


rates = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(LINKS), st.just(0) | st.integers(1_000, 10**15)),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[:2],
)
UNITS = {"bps": 1, "kbps": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9, "MB/s": 8 * 10**6}


@given(rates, st.sampled_from([*UNITS]), st.sampled_from([",", ";", "\t", "|"]))
def test_a_trace_has_the_rates_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, rates: list[tuple[int, str, int]], unit: str, sign: str
) -> None:
    """Written in any unit and order, and read back as a scenario reads it; a link's first rate holds from the start."""
    folder = tmp_path_factory.mktemp("convert")
    rows = [(f"{ms / 1000}", *link.split(">"), f"{Decimal(bps) / UNITS[unit]:f}") for ms, link, bps in rates]
    text = "".join(sign.join(row) + "\n" for row in [("time", "source", "destination", f"rate ({unit})"), *rows])
    assert converted(folder, {"a.csv": text}, "--out", str(folder / "trace.csv")) == 0
    names = sorted({link for _, link, _ in rates})
    trace = read_trace(folder / "trace.csv", names, may_be_down=names)
    first = min(ms for ms, _, _ in rates)
    for link, times_ns, bps in zip(names, trace.times_ns, trace.rates_from_bps, strict=True):
        wanted = sorted((ms - first, rate) for ms, of, rate in rates if of == link)
        wanted = wanted if wanted[0][0] == 0 else [(0, wanted[0][1]), *wanted]
        assert [(at // 10**6, int(rate)) for at, rate in zip(times_ns.tolist(), bps, strict=True)] == wanted


@pytest.mark.parametrize(
    ("first", "second", "begins"),
    [
        ("1767243600", "1767243660", "2026-01-01 05:00:00 UTC"),
        ("1767243600500", "1767243660500", "2026-01-01 05:00:00 UTC"),
        ("2026-01-01T06:00:00+01:00", "2026-01-01T06:01:00+01:00", "2026-01-01 05:00:00 UTC"),
        ("2026-01-01T05:00:00", "2026-01-01T05:01:00", "2026-01-01 05:00:00 UTC"),
        ("0", "60", None),
        ("12", "72", None),
    ],
)
def test_a_trace_keeps_the_time_of_day_of_what_was_measured(
    first: str, second: str, begins: str | None, tmp_path: Path
) -> None:
    """Read back as a scenario reads it, with a first row that was left out by hand, the instant is the same."""
    rows = f"time,link,rate_mbps\n{first},s0b0>s1b0,900\n{second},s0b0>s1b0,800\n"
    assert converted(tmp_path, {"a.csv": rows}, "--out", str(tmp_path / "trace.csv")) == 0
    trace = read_trace(tmp_path / "trace.csv", ["s0b0>s1b0"])
    assert (None if trace.begins_ns is None else in_utc(trace.begins_ns)) == begins
    assert any(begins in note for note in trace.notes) if begins else not trace.notes
    lines = (tmp_path / "trace.csv").read_text().splitlines(keepends=True)
    (tmp_path / "later.csv").write_text("".join(line for line in lines if not line.startswith("0,")))
    later = read_trace(tmp_path / "later.csv", ["s0b0>s1b0"])
    assert later.begins_ns is None if begins is None else later.begins_ns == (trace.begins_ns or 0) + 60 * 10**9


FOUR = [("A", "B"), ("B", "A"), ("A", "C"), ("C", "A")]


@pytest.mark.parametrize(
    ("pairs", "options", "tables"),
    [
        (FOUR[:2], [], "[fabric]\nborder_routers = 1"),
        (
            FOUR,
            [],
            "[fabric]\ngpus = [4, 4, 4]\nborder_routers = 1\n[fabric.wan]\n"
            'links = [["s0b0", "s1b0"], ["s0b0", "s2b0"]]',
        ),
        (
            [("s0b0", "R9"), ("R9", "s0b0"), ("s1b0", "R9"), ("R9", "s1b0")],
            [],
            '[fabric]\nborder_routers = 1\n[fabric.wan]\nrouters = ["R9"]\nlinks = [["R9", "s0b0"], ["R9", "s1b0"]]',
        ),
        (
            [(a, b) for one in ("s0b0", "s0b1") for other in ("s1b0", "s1b1") for a, b in ((one, other), (other, one))],
            [],
            "",
        ),
        (FOUR[:1], [], ""),
        ([("s0b1", "s1b0"), ("s1b0", "s0b1")], [], ""),
    ],
)
def test_the_tables_that_are_told_make_the_trace_the_conditions_of_a_scenario(
    pairs: list[tuple[str, str]], options: list[str], tables: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is told of a trace that no WAN fits: a link lacks its other direction, or a border router all links."""
    rows = "".join(f"{time},{a},{b},40\n" for time in (0, 9) for a, b in pairs)
    sites = ["--site", "A=s0", "--site", "B=s1", "--site", "C=s2"]
    text = f"time,source,destination,gbps\n{rows}"
    assert converted(tmp_path, {"a.csv": text}, *sites, "--out", str(tmp_path / "trace.csv")) == 0
    told = capsys.readouterr().err
    assert (f"convert: {NEEDED}\n{tables}\n" in told) if tables else (NEEDED not in told)
    of_trace = f'[conditions]\nsampler = "trace"\ntrace = "{tmp_path}/trace.csv"\n'
    collective = '[collective]\nkind = "broadcast"\nalgorithm = "direct"\ncount = 5\n'
    if tables or len(pairs) == 8:
        assert scenario_of(f"{of_trace}{collective}{tables}\n").configurations()
    if tables:
        with pytest.raises(ScenarioError, match=r"no rate at time 0|has no link"):
            scenario_of(f"{of_trace}{collective}")


def test_a_trace_with_fewer_links_is_refused_with_the_keys_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "time,link,rate\n0,s0b0>s1b0,40 Gbit/s\n0,s1b0>s0b0,40 Gbit/s\n9,s1b0>s0b0,1e9\n"
    )
    names = [
        f"{a}>{b}" for one in ("s0b0", "s0b1") for other in ("s1b0", "s1b1") for a, b in ((one, other), (other, one))
    ]
    with pytest.raises(ConditionsError, match=r"WAN links of the trace alone: \[fabric\] border_routers = 1$"):
        read_trace(tmp_path / "trace.csv", names)


@pytest.mark.parametrize(
    ("pairs", "is_told"),
    [
        ([(0, 1), (1, 2), (0, 2)], True),
        ([(0, 1), (0, 2)], True),
        ([(0, 1)], False),  # a pair of sites has no other city
    ],
)
def test_a_wan_of_single_links_between_sites_is_told_to_leave_nothing_to_choose(
    pairs: list[tuple[int, int]], is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = [(one, other) for pair in pairs for one, other in (pair, pair[::-1])]
    rows = [f"{at},s{one}b0,s{other}b0,4" for at in range(3) for one, other in ways]
    text = "\n".join(["time,source,destination,rate (Gbit/s)", *rows]) + "\n"
    assert converted(tmp_path, {"a.csv": text}, "--out", str(tmp_path / "trace.csv")) == 0
    assert ("no two sites have more than one path here" in capsys.readouterr().err) is is_told


def test_a_converted_trace_and_the_sample_are_conditions_of_a_scenario(tmp_path: Path) -> None:
    """The model runs both; of the converted one, whose rates fall to a tenth, the last collectives are slower."""
    rows = "".join(f"{time},{link.replace('>', ',')},{40 if time < 5 else 4}\n" for time in range(10) for link in LINKS)
    out = tmp_path / "trace.csv"
    assert converted(tmp_path, {"a.csv": f"time,source,destination,gbps\n{rows}"}, "--out", str(out)) == 0
    values = {"conditions.sampler": "trace", "conditions.trace": str(out), "run.modes": ["base"]}
    values |= {"fabric.gpus": 4, "fabric.border_routers": 1, "collective.count": 10}
    took = run(scenario("paper", values), engine="model")["completion_s"]
    assert took[5:].mean() > 2 * took[:5].mean()
    sample = PROJECT / "scenarios" / "sample-trace.csv"
    assert sample.read_text().startswith("# A synthetic trace")
    values |= {"conditions.trace": str(sample), "fabric.border_routers": 2, "conditions.trace_repeat": True}
    assert len(run(scenario("paper", values | {"collective.count": 100}), engine="model")) == 100


def test_a_site_may_be_a_border_router_or_a_router_of_the_wan(tmp_path: Path) -> None:
    text = (
        "time,source,destination,gbps\n0,Berlin,Palo Alto,4\n0,Palo Alto,Berlin,5\n0,Berlin,Bern,6\n0,Bern,Berlin,7\n"
    )
    sites = ("--site", "Berlin=s0b1", "--site", "Palo Alto=PaloAlto", "--site", "Bern=R3")
    assert converted(tmp_path, {"a.csv": text}, *sites, "--out", str(tmp_path / "trace.csv")) == 0
    links = [line.split(",")[1:] for line in (tmp_path / "trace.csv").read_text().splitlines()[1:]]
    assert sorted(links) == [
        ["PaloAlto>s0b1", "5 Gbit/s"], ["R3>s0b1", "7 Gbit/s"], ["s0b1>PaloAlto", "4 Gbit/s"], ["s0b1>R3", "6 Gbit/s"]
    ]  # fmt: skip


# --- one direction ----------------------------------------------------------------------------------------------------

ONE_WAY = "time,src,dst,mbps\n0,Zürich,Genève,4300\n10,Zürich,Genève,4100\n"


def test_one_direction_alone_is_told_with_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "one.csv"
    assert converted(tmp_path, {"a.csv": ONE_WAY}, *SITES, "--out", str(out)) == 0
    told = capsys.readouterr().err
    assert "rates are given in one direction only, of s0b0>s1b0, and a WAN link needs both: --both-directions" in told
    wan = '[fabric]\nborder_routers = 1\n[conditions]\nsampler = "trace"\ntrace = "one.csv"\n[collective]\ncount = 2\n'
    with pytest.raises(ScenarioError, match=r"no rate at time 0 for s1b0>s0b0; .* --both-directions uses each"):
        scenario_of(wan, path=tmp_path / "a.toml")
    out.unlink()
    assert converted(tmp_path, {"a.csv": ONE_WAY}, *SITES, "--both-directions", "--out", str(out)) == 0
    assert "s0b0>s1b0: each value is used for both directions" in capsys.readouterr().err
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    of_link = {link: [(at, rate) for at, other, rate in rows if other == link] for link in LINKS}
    assert of_link[LINKS[0]] == of_link[LINKS[1]] == [("0", "4.3 Gbit/s"), ("10", "4.1 Gbit/s")]
    scenario_of(wan, path=tmp_path / "a.toml")


def test_a_direction_that_is_measured_keeps_its_own_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert converted(tmp_path, {"a.csv": f"time,src,dst,mbps\n{LONG}"}, *SITES, "--both-directions") == 0
    assert capsys.readouterr().out == TRACE


@pytest.mark.parametrize("sign", ["-", ">", ":", "->"])
def test_a_link_of_two_columns_may_be_named(sign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"Zürich{sign}Genève"
    assert converted(tmp_path, {"a.csv": ONE_WAY}, "--link", f"{name}=s0b1-s1b1#2") == 0
    assert {line.split(",")[1] for line in capsys.readouterr().out.splitlines()[1:]} == {"s0b1>s1b1#2", "s1b1>s0b1#2"}


def test_two_border_routers_of_one_site_have_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert converted(tmp_path, {"a.csv": ONE_WAY}, "--site", "Zürich=s0b0", "--site", "Genève=s0b1") == 2
    assert '"Zürich" and "Genève" are s0b0 and s0b1, of one site' in capsys.readouterr().err
    assert converted(tmp_path, {"b.csv": ONE_WAY}, "--link", "Zürich-Genève=s0b0-s0b1") == 0  # asked for


def test_many_files_have_one_line_on_their_times_which_pushes_no_other_one_away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for at in range(20):
        rate = 0 if at == 7 else 5
        (tmp_path / f"m-{at:03}.csv").write_text(f"Gbit/s,s0,s1\ns0,,{rate}\ns1,5,\n")
    ended = subprocess.run(
        [sys.executable, "-m", "topologies.conditions.convert", *sorted(map(str, tmp_path.glob("m-*.csv")))],
        capture_output=True, text=True, check=True, cwd=PROJECT,
    )  # fmt: skip
    times = [line for line in ended.stderr.splitlines() if "from their names" in line or "from its name" in line]
    assert len(times) == 1 and "20 files have their times from their names: " in times[0]
    assert "m-000.csv has 000, ..., " in times[0] and times[0].endswith("m-019.csv has 019")
    assert "1 rate of 0: the link is down then" in ended.stderr


def test_a_negative_rate_is_refused_as_such_with_and_without_a_unit(tmp_path):
    """0 is an outage, and allowed."""
    for value in ("-3 Gbit/s", "-3"):
        (tmp_path / "a.csv").write_text(f"time,source,destination,rate\n0,s0,s1,{value}\n1,s0,s1,4\n")
        ended = subprocess.run(
            [sys.executable, "-m", "topologies.conditions.convert", tmp_path / "a.csv"],
            capture_output=True, text=True, check=False, cwd=PROJECT,
        )  # fmt: skip
        assert ended.returncode == 2 and "is negative; allowed: 0 or more" in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("first_s", "begin", "end"),
    [
        (0, "5400 s", "7800 s"),
        (1_772_432_000, "2026-03-02T07:43:20Z", "2026-03-02T08:23:20Z"),
    ],
)
def test_the_converter_and_a_run_tell_a_gap_by_the_same_times(
    first_s: int, begin: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half an hour without values, which come every ten minutes otherwise, with times of a program such as iperf3."""
    rows = "".join(f"{first_s + 600 * k},4,{'' if 10 <= k < 13 else 5}\n" for k in range(40))
    assert converted(tmp_path, {"a.csv": f"time,s1>s0 (Gbit/s),s0>s1 (Gbit/s)\n{rows}"}) == 0
    out, err = capsys.readouterr()
    assert f"has 1 gap, in which the previous value holds: from {begin} to {end} (the median step is 600 s)" in err
    (tmp_path / "trace.csv").write_text(out)
    (note,) = [one for one in read_trace(tmp_path / "trace.csv", LINKS, step_s=600.0).notes if "missing" in one]
    assert f"s0b0>s1b0 from {begin} to {end} (rows every 600 s otherwise), in collectives 10 to 12" in note
