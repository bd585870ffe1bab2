"""What is typed at the prompt and what it says, as text and values: no network is needed."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.flows import ROUTES_COOKIE, STANDING_COOKIE, tag
from controller.routing import Router
from controller.ways import Ways
from scenarios.plan import MODES, decide
from scenarios.prompt import completion, flowwords, forecast, history, pcap, words
from scenarios.prompt.commands import (
    AllGather,
    Cable,
    Capture,
    Delay,
    Flows,
    Iperf,
    Paths,
    PromptError,
    Rate,
    Resample,
    Ring,
    SetMode,
    Wan,
)
from scenarios.prompt.grammar import VERBS, parse
from topologies.conditions import ConditionsSpec, delays_s, sampler
from topologies.fabric import FabricSpec, build_fabric
from topologies.scale import RateScale
from topologies.wan import WanSpec

FABRIC = build_fabric(FabricSpec())
LINK = {link.name: link.index for link in FABRIC.links}
CYCLE = WanSpec(preset=None, links=(("s0b0", "s1b0"), ("s1b0", "s2b0"), ("s2b0", "s3b0"), ("s3b0", "s0b0")))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("wan", Wan()),
        ("paths", Paths()),
        ("resample", Resample(seed=None)),
        ("resample 7", Resample(seed=7)),
        ("rate s0b0>s1b0 40 Gbit/s", Rate(link=LINK["s0b0>s1b0"], rate_bps=40_000_000_000)),
        ('rate g0>g1 "40Gbit/s"', Rate(link=LINK["g0>g1"], rate_bps=40_000_000_000)),
        ("delay s0b0>s1b0 5 ms", Delay(link=LINK["s0b0>s1b0"], delay_s=0.005)),
        ("ring", Ring(order=None)),
        ("ring best", Ring(order="best")),
        ("ring rank", Ring(order="rank")),
        ("ring 0 1 2 3 4 5 6 7", Ring(order=tuple(range(8)))),
        ("ring g7,g6,g5,g4,g3,g2,g1,g0", Ring(order=tuple(range(7, -1, -1)))),
        ("mode", SetMode(name=None)),
        ("mode joint", SetMode(name="joint")),
        ("allgather 64 MB", AllGather(chunk_bytes=64_000_000, count=1)),
        ("allgather 64MB 3", AllGather(chunk_bytes=64_000_000, count=3)),
        ('allgather "8 MiB" 10', AllGather(chunk_bytes=8 << 20, count=10)),
        ("flows s0l0", Flows(switch="s0l0")),
        ("capture s0b0>s1b0 wan.pcap", Capture(link=LINK["s0b0>s1b0"], file="wan.pcap")),
        ("capture stop", Capture(link=None, file=None)),
        ("iperf", Iperf(src=0, dst=7, seconds=5)),
        ("iperf g0 g4", Iperf(src=0, dst=4, seconds=5)),
        ("iperf g0 4 2", Iperf(src=0, dst=4, seconds=2)),
        ("link s0b0 s1b0 down", Cable(a="s0b0", b="s1b0", up=False)),
        ("link s0l0 g0 up", Cable(a="s0l0", b="g0", up=True)),
    ],
)
def test_what_is_typed_is_understood(line: str, command: object) -> None:
    verb, _, rest = line.partition(" ")
    assert parse(verb, rest, FABRIC) == command


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("wan please", "allowed is wan alone"),
        ("resample -1", "allowed is a whole number from 0"),
        ("resample 1 2", "allowed is resample [SEED]"),
        ("rate", "nothing is given: allowed is rate LINK RATE"),
        ("rate s0b0>s1b0", "allowed is rate LINK RATE"),
        ("rate s0b0>s1b1x 1 Gbit/s", "did you mean s0b0>s1b1?"),
        ("rate s0b0>s1b0 -1 Gbit/s", "must be greater than zero"),
        ("rate s0b0>s1b0 40 gbps", "did you mean Gbit/s?"),
        ("delay s0b0>s1b0 soon", "is no delay"),
        ("ring bset", "did you mean best?"),
        ("ring 0 1 2", "the ring lacks g3, g4, g5, g6, g7"),
        ("ring 0 0 1 2 3 4 5 6", "g0 is in the ring twice"),
        ("ring 0 1 2 3 4 5 6 9", "is no GPU: allowed is g0 to g7"),
        ("mode fast", "allowed is base, ccl, wan, joint"),
        ("allgather", "allgather needs a size"),
        ("allgather many", "is no size"),
        ("allgather 8 MB 0", "allowed is a whole number from 1"),
        ("allgather 8 MB -3", "allowed is a whole number from 1"),
        ("allgather 8 mb", "has the wrong unit"),
        ("flows", "allowed is flows SWITCH"),
        ("flows g0", "is no switch"),
        ("capture s0b0>s1b0", "allowed is capture LINK FILE"),
        ("capture s0b0>s1b0 /etc/passwd", "without a folder"),
        ("capture s0b0>s1b0 .hidden", "is no name for the file"),
        ("iperf g0", "allowed is iperf GPU GPU"),
        ("iperf g0 g0", "both are g0"),
        ("iperf g0 s0l0", "is no GPU"),
        ("link g0 g1 down", "no cable joins g0 and g1: g0 is joined to s0l0"),
        ("link g0 s0l0", "allowed is link NODE NODE up, or down"),
        ("link g0 s9l9 up", "is no node"),
    ],
)
def test_what_is_mistyped_is_one_sentence(line: str, words: str) -> None:
    verb, _, rest = line.partition(" ")
    with pytest.raises(PromptError) as refused:
        parse(verb, rest, FABRIC)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@given(st.sampled_from(sorted(VERBS)), st.text())
def test_no_line_is_a_traceback(verb: str, line: str) -> None:
    try:
        parse(verb, line, FABRIC)
    except PromptError as error:
        assert str(error) and "\n" not in str(error)


def test_a_ring_must_go_along_the_wan() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2, 2, 2), border_routers=1, wan=CYCLE))
    with pytest.raises(PromptError, match="no path leads over the WAN from g1 to g4"):
        parse("ring", "0 1 4 5 2 3 6 7", fabric)
    parse("ring", "0 1 2 3 4 5 6 7", fabric)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_forecast_is_the_models(mode: str) -> None:
    conditions, chunk_bytes = ConditionsSpec(wan_delay_s=1e-3), 8_000_000
    drawn, delays = sampler(FABRIC, conditions, seed=3), delays_s(FABRIC, conditions)
    plan = decide(
        FABRIC, drawn, delays_s=delays, mode=MODES[mode], chunk_bytes=chunk_bytes, reembed_every=10, start=0, count=1
    )
    rates_bps = drawn.rates_bps(0, 1)[0]
    ring, used = plan.ring[0].tolist(), plan.path[0].tolist()
    ways = [
        forecast.way(FABRIC, src, dst, path, rates_bps=rates_bps, delays_s=delays)
        for (src, dst), path in zip(forecast.edges(ring), used, strict=True)
    ]
    assert [way.delay_s for way in ways] == pytest.approx(plan.edge_alpha_s[0])
    assert [8 * chunk_bytes / way.rate_bps for way in ways] == pytest.approx(plan.edge_beta_s[0])
    crossing = next(place for place, path in enumerate(used) if path >= 0)
    src, dst = np.array([ring[crossing]]), np.array([ring[(crossing + 1) % len(ring)]])
    cheapest = Router(FABRIC, delays).best(rates_bps[None], src, dst, chunk_bytes=chunk_bytes).path[0]
    said = words.paths(
        FABRIC, ring, used, rates_bps=rates_bps, delays_s=delays, chunk_bytes=chunk_bytes, scale=RateScale()
    )
    first = said.splitlines()[1]  # the cheapest of the first crossing's
    assert first.startswith(FABRIC.paths[cheapest].name)
    assert ("in use" in first) == (cheapest == used[crossing])


def test_a_path_is_the_routes_or_the_first_that_is_whole() -> None:
    index = {path.name: path.index for path in FABRIC.paths}
    routes, pairs = [[3, 4, index["s0b1>s1b1"], 7]], [(3, 4), (0, 5), (7, 0), (0, 1)]
    whole = forecast.paths_now(FABRIC, pairs, {"routes": routes, "dead": []})
    assert whole == (index["s0b1>s1b1"], index["s0b0>s1b0"], index["s1b0>s0b0"], -1)
    around = forecast.paths_now(FABRIC, pairs, {"routes": routes, "dead": [["s0b0", "s1b0"]]})
    assert around == (index["s0b1>s1b1"], index["s0b0>s1b1"], index["s1b0>s0b1"], -1)


DUMP = f"""NXST_FLOW reply (xid=0x4):
 cookie={STANDING_COOKIE:#x}, duration=9.1s, table=0, n_packets=3, n_bytes=294, priority=100,ip,nw_dst=10.0.0.1 \
actions=set_field:02:00:00:00:00:00->eth_dst,output:1
 cookie={STANDING_COOKIE:#x}, duration=9.1s, table=0, n_packets=0, n_bytes=0, priority=100,ip,nw_src=10.0.0.1,\
nw_dst=10.1.0.0/24 actions=output:"s0l0-eth3"
 cookie={STANDING_COOKIE:#x}, duration=9.1s, table=0, n_packets=0, n_bytes=0, priority=110,ip,in_port=3,\
nw_src=10.0.0.0/24,nw_dst=10.1.0.0/24 actions=set_field:{tag(0)}->eth_dst,IN_PORT
 cookie={ROUTES_COOKIE | 12:#x}, duration=1.1s, table=0, n_packets=7, n_bytes=70000, priority=200,ip,\
in_port=3,dl_dst={tag(2)},nw_src=10.0.0.1,nw_dst=10.1.0.1 actions=output:4
 cookie=0x0, duration=1.1s, table=0, n_packets=1, n_bytes=10, priority=5,arp actions=CONTROLLER:65535
"""


def test_rules_are_readable_and_those_that_win_come_first() -> None:
    said = flowwords.readable(DUMP, flowwords.names(Ways(FABRIC), "s0l0")).splitlines()
    assert [line.split() for line in said] == [
        ["rule", "from", "to", "coming", "goes", "to", "packets", "bytes"],
        ["route", "12", "g0", "g4", "tagged", "2,", "from", "s0p0", "s0p1", "7", "70", "kB"],
        ["standing", "site", "0", "site", "1", "from", "s0p0", "back,", "tag", "off", "0", "0", "B"],
        ["standing", "any", "g0", "g0,", "tag", "off", "3", "294", "B"],
        ["standing", "g0", "site", "1", "s0p0", "0", "0", "B"],
        DUMP.splitlines()[-1].split(),  # somebody else's, as it is
    ]


def test_a_capture_is_what_wireshark_reads() -> None:
    head = pcap.header()
    magic, major, minor, zone, _, snap, kind = struct.unpack("<IHHiIII", head)
    assert (magic, major, minor, zone, snap, kind) == (0xA1B23C4D, 2, 4, 0, pcap.SNAP_BYTES, 1)
    assert pcap.record(b"abc", length=9000, at_ns=5_000_000_007) == struct.pack("<IIII", 5, 7, 3, 9000) + b"abc"


def test_a_links_packets_are_those_of_its_class() -> None:
    frame = bytes(12) + b"\x08\x00" + bytes(12) + bytes([10, 0, 0, 1, 10, 1, 0, 2])
    assert pcap.belongs(frame, None)
    assert pcap.belongs(frame, "src 10.0.0.1") and not pcap.belongs(frame, "src 10.1.0.2")
    assert pcap.belongs(frame, "dst 10.1.0.2") and not pcap.belongs(frame, "dst 10.0.0.1")
    assert not pcap.belongs(frame[:12] + b"\x08\x06" + frame[14:], "src 10.0.0.1")
    assert not pcap.belongs(b"short", "src 10.0.0.1")


@pytest.mark.parametrize(
    ("typed", "text", "offered"),
    [
        (["mode"], "", ["base", "ccl", "wan", "joint"]),
        (["rate"], "s0b0>s1", ["s0b0>s1b0", "s0b0>s1b1"]),
        (["rate", "s0b0>s1b0"], "", []),
        (["flows"], "s1p", ["s1p0", "s1p1"]),
        (["ring"], "b", ["best"]),
        (["ring", "g0", "g2"], "g", ["g1", "g3", "g4", "g5", "g6", "g7"]),
        (["link", "g5"], "", ["s1l0"]),
        (["link", "g5", "s1l0"], "d", ["down"]),
        (["g0", "ping"], "g6", ["g6"]),
        (["capture"], "st", ["stop"]),
        (["nonsense"], "", []),
    ],
)
def test_tab_offers_what_can_come_next(typed: list[str], text: str, offered: list[str]) -> None:
    assert completion.following(FABRIC, typed, text) == offered


def test_tab_offers_verbs_and_nodes_at_the_beginning() -> None:
    assert completion.beginnings(FABRIC, "al") == ["allgather"]
    assert completion.beginnings(FABRIC, "pi") == ["pingall", "pingpair"]
    assert completion.beginnings(FABRIC, "s0b") == ["s0b0", "s0b1"]


def test_quantities_are_shown_to_be_read() -> None:
    assert words.rate(43_214_567_890) == "43.21 Gbit/s" and words.rate(950) == "950 bit/s"
    assert words.size(449_204_000) == "449.2 MB" and words.size(12) == "12 B"
    assert words.duration(0.0123456) == "12.35 ms" and words.duration(36.5) == "36.500 s"
    assert words.delay(11.4e-6) == "11.4 us" and words.delay(0.0) == "0"


def test_the_scale_stands_in_every_output_with_rates() -> None:
    scale, rates, delays = RateScale(500), np.full(len(FABRIC.links), 5e10), np.full(len(FABRIC.links), 1e-5)
    ring = tuple(range(8))
    used = [next(iter(forecast.candidates(FABRIC, a, b)), None) for a, b in forecast.edges(ring)]
    paths = [-1 if path is None else path.index for path in used]
    link = LINK["s0b0>s1b0"]
    said = (
        words.wan(FABRIC, rates_bps=rates, delays_s=delays, last_bytes={link: 1000}, all_bytes={}, scale=scale),
        words.paths(FABRIC, ring, paths, rates_bps=rates, delays_s=delays, chunk_bytes=8_000_000, scale=scale),
        words.rated("g0>g1", 50_000_000_000, scale),
        words.iperf(src=0, dst=1, carried_bps=99e6, slowest="g0>g1", rate_bps=5e10, scale=scale),
        words.banner(FABRIC, scale, where="here", folder="there"),
    )
    assert all("1/500" in text for text in said)
    assert "500 kB" in said[0] and "100 Mbit/s" in said[2] and "(99.0 %)" in said[3] and "49.5 Gbit/s" in said[3]
    assert words.scale_note(RateScale(1)) == ""


def test_a_history_is_the_users() -> None:
    assert str(history.place({"HOME": "/home/a"})) == "/home/a/.local/state/longhaul/history"
    assert str(history.place({"HOME": "/home/a", "XDG_STATE_HOME": "/b"})) == "/b/longhaul/history"
