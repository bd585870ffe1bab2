"""The prompt's argument parsing, state, predictions and printed text, tested as values without a network."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.forwarding.flow_mods import DEFAULT_COOKIE, NO_TUNNEL, ROUTES_COOKIE, TUNNEL_COOKIE, tunnel_tag
from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import ALGORITHMS
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.policies.conditions import conditions_of
from scenarios.policies.policy import MODES
from scenarios.prompt import arguments, text
from scenarios.prompt.arguments import PromptError
from scenarios.prompt.shell import OutputPrinter
from scenarios.prompt.state import State, edges, pairs
from scenarios.testbed.capture import merge
from tests.fakes.commands import scenario
from topologies.fabric.fabric import GRAINS, Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, cables_of
from topologies.fabric.wan import WanSpec
from topologies.shaping.rate_scale import RateScale

FABRIC = build_fabric(FabricSpec())
LINK = {link.name: link.index for link in FABRIC.links}
PATH = {path.name: path.index for path in FABRIC.paths}
CYCLE = WanSpec(preset=None, links=(("s0b0", "s1b0"), ("s1b0", "s2b0"), ("s2b0", "s3b0"), ("s3b0", "s0b0")))
ROUND = build_fabric(FabricSpec(gpus_per_site=(2, 2, 2, 2), border_routers=1, wan=CYCLE))
READERS: dict[str, Callable[[str], Any]] = {
    "wan": lambda line: arguments.words(line, "wan alone", 0, 0),
    "resample": arguments.seed,
    "mode": arguments.mode,
    "allgather": partial(arguments.collective, "allgather"),
    "broadcast": partial(arguments.collective, "broadcast"),
    "rate": lambda line: arguments.link_rate(FABRIC, line),
    "delay": lambda line: arguments.link_delay(FABRIC, line),
    "run": lambda line: arguments.program(FABRIC, line),
    "ring": lambda line: arguments.ring(FABRIC, line),
    "flows": lambda line: arguments.switch(FABRIC, line),
    "switch": lambda line: arguments.switch_change(FABRIC, line),
    "capture": lambda line: arguments.link_file(FABRIC, line),
    "iperf": lambda line: arguments.flow(FABRIC, line, 5),
    "link": lambda line: arguments.cable_change(FABRIC, line),
}


def read(line: str) -> Any:
    verb, _, rest = line.partition(" ")
    return READERS[verb](rest)


def state(*, dead: Cables = NO_CABLES, routes: Any = (), fabric: Fabric = FABRIC, rate_bps: float = 5e10) -> State:
    links = len(fabric.links)
    status = {"dead": [sorted(ends) for ends in dead], "routes": routes}
    return State(fabric=fabric, set_bps=np.full(links, rate_bps), delays_s=np.full(links, 1e-5), status=status)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("resample", None),
        ('rate s0b0>s1b0 "40Gbit/s"', ((LINK["s0b0>s1b0"],), 40_000_000_000)),
        ("delay s0b0>s1b0 5 ms", ((LINK["s0b0>s1b0"],), 0.005)),
        ("ring best", "best"),
        ("run echo a: b", (tuple(range(8)), "echo a: b")),
        ("run g4,0:  echo a: b", ((4, 0), "echo a: b")),
        ("ring g7,g6,g5,g4 3 2 1 0", tuple(range(7, -1, -1))),
        ('allgather "8 MiB" 10', (8 << 20, False, 10, None)),
        ("broadcast 8 MB chain", (8_000_000, False, 1, "chain")),
        ("broadcast 8 MB 3 double-tree", (8_000_000, False, 3, "double-tree")),
        ("allgather chunk 8 MB 2", (8_000_000, True, 2, None)),
        ("switch s0b1 start", ("s0b1", True)),
        ("capture s0b0>s1b0 wan.pcap", (LINK["s0b0>s1b0"], "wan.pcap")),
        ("capture stop", None),
        ("iperf g0 4 2", (0, 4, 2)),
        ("link s0l0 g0 up", (FABRIC.cables[0], True)),
        ("link s0b0-s1b0 down", (next(one for one in FABRIC.cables if one.name == "s0b0-s1b0"), False)),
    ],
)
def test_a_command_line_is_parsed_into_values(line: str, value: object) -> None:
    assert read(line) == value


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("wan please", "please"),
        ("resample -1", "-1"),
        ("rate s0b0>s1b1x 1 Gbit/s", "did you mean s0b0>s1b1?"),
        ("rate s0b0>s1b0 40 gbps", "did you mean Gbit/s?"),
        ("delay s0b0>s1b0 soon", "soon"),
        ("ring bset", "did you mean best?"),
        ("ring 0 1 2", "g3, g4, g5, g6, g7"),
        ("ring 0 1 2 3 4 5 6 9", "g0 to g7"),
        ("mode bse", "base, ccl, wan, joint (did you mean base?)"),
        ("allgather 8", '"8"'),
        ("allgather 8 MB 0", '"0"'),
        ("allgather 8 MB chain", "ring, halving-doubling"),
        ("broadcast chain", "chain"),
        ("switch s0b1 stopp", "stop"),
        ("capture s0b0>s1b0 /etc/passwd", "/etc/passwd"),
        ("iperf g0 g0", "g0"),
        ("link g0 g1 down", "s0l0"),
    ],
)
def test_a_mistake_is_refused_in_one_sentence_that_names_the_word_or_the_allowed_values(line: str, named: str) -> None:
    with pytest.raises(PromptError) as refused:
        read(line)
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_a_ring_between_sites_without_a_wan_path_is_refused() -> None:
    with pytest.raises(PromptError, match="g1 to g4"):
        arguments.ring(ROUND, "0 1 4 5 2 3 6 7")


@given(st.sampled_from(sorted(READERS)), st.text())
def test_any_text_is_parsed_or_refused_in_one_sentence(verb: str, line: str) -> None:
    try:
        READERS[verb](line)
    except PromptError as error:
        assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("kind", ["allgather", "alltoall", "broadcast"])
@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("grain", GRAINS)
def test_the_prompts_prediction_equals_that_of_the_model_engine(mode: str, kind: str, grain: str) -> None:
    wanted = f"collective.kind={kind}", f"fabric.grain={grain}", "conditions.wan_delay=1 ms", "run.seed=3"
    setting = scenario(*wanted, collective__count=1)
    conditions, repeated = conditions_of(setting), setting.workload
    plan = decisions_of(setting, mode, conditions, start=0, count=1)
    placement, used = plan.placement[0].tolist(), plan.path[0].tolist()
    flows, fabric = pairs(repeated.schedule, placement), conditions.fabric
    routes = [[*ends, path, 1] for ends, path in zip(flows, used, strict=True) if path >= 0]
    (rates_bps,), delays = conditions.shared_bps(0, 1), conditions.shared_delays_s
    now = State(fabric=fabric, set_bps=rates_bps, delays_s=delays, status={"dead": [], "routes": routes})
    ways = [now.route(src, dst) for src, dst in flows]
    assert [way.delay_s for way in ways] == pytest.approx(plan.alpha_s[0])
    assert [8 * repeated.slot_bytes / way.rate_bps for way in ways] == pytest.approx(plan.beta_s[0])
    predicted_s = now.predicted_s(repeated.schedule, placement, slot_bytes=repeated.slot_bytes)
    (engines_s,) = Plan(setting, mode, plan, conditions).completion_s()
    assert predicted_s == pytest.approx(engines_s)
    src, dst = next(ends for ends, path in zip(flows, used, strict=True) if path >= 0)
    size = repeated.largest_message_bytes
    chosen = Router(fabric, conditions.delays_s).best(
        now.logical_bps[None], np.array([src]), np.array([dst]), chunk_bytes=size
    )
    cheapest = text.paths(now, flows, message_bytes=size, scale=RateScale()).splitlines()[1]
    assert cheapest.startswith(fabric.paths[chosen.path[0]].name)
    assert ("in use" in cheapest) == (chosen.path[0] == now.path(src, dst))


def test_a_pair_uses_its_installed_route_or_else_the_first_path_without_a_failed_link() -> None:
    routes, pairs = [[3, 4, PATH["s0b1>s1b1"], 7]], [(3, 4), (0, 5), (7, 0), (0, 1)]
    whole, failed = state(routes=routes), state(routes=routes, dead=frozenset({cable("s0b0", "s1b0")}))
    assert [whole.path(*pair) for pair in pairs] == [PATH["s0b1>s1b1"], PATH["s0b0>s1b0"], PATH["s1b0>s0b0"], -1]
    assert [failed.path(*pair) for pair in pairs] == [PATH["s0b1>s1b1"], PATH["s0b0>s1b1"], PATH["s1b0>s0b1"], -1]


def test_failed_links_are_shown_and_never_in_use() -> None:
    dead = frozenset({cable("s0b0", "s1b0"), cable("s0p0", "s0b1"), cable("s0p1", "s0b1")})
    routes = [[3, 4, PATH["s0b0>s1b0"], 1], [7, 0, PATH["s1b1>s0b0"], 2]]
    now = state(dead=dead, routes=routes)
    assert (now.set_bps == 5e10).all()
    wan = text.wan(now, last_bytes={}, all_bytes={}, scale=RateScale())
    assert [line.split()[0] for line in wan.splitlines() if "down" in line] == ["s0b0>s1b0", "s1b0>s0b0"]
    lines = text.paths(now, edges(range(8)), message_bytes=8_000_000, scale=RateScale()).splitlines()
    there, back = lines[:5], lines[5:]
    assert there[1].startswith("s0b0>s1b1") and back[1].startswith("s1b1>s0b0") and "in use" in back[1]
    assert all("down" in line and "in use" not in line and "ms" not in line for line in (*there[2:], *back[2:]))
    assert all("g3>s0b1" in line for line in there if line.startswith("s0b1"))
    everything = text.paths(state(rate_bps=0.0), edges(range(8)), message_bytes=8_000_000, scale=RateScale())
    assert "from g3 to g4" in everything and "from g7 to g0" in everything and "in use" not in everything


@pytest.mark.parametrize(
    ("dead", "pairs", "named"),
    [
        ({cable("g0", "s0l0")}, [(0, 1), (7, 0)], ["g0", "g0 - s0l0"]),
        (cables_of(FABRIC, "s0l0"), [(7, 0)], ["g0", "g0 - s0l0"]),
        ({cable(f"s0b{a}", f"s1b{b}") for a in (0, 1) for b in (0, 1)}, [(3, 4)], ["g4 to g7", "s0b1 - s1b0"]),
        (
            {cable("s0l0", "s0p0"), cable("s0l1", "s0p1"), cable("s0b0", "s1b0"), cable("s1l0", "s1p0")},
            [(1, 2)],
            ["g1", "g2", ": s0l0 - s0p0 and s0l1 - s0p1 are"],
        ),
    ],
)
def test_unreachable_gpus_are_named_with_the_failed_cables(
    dead: Cables, pairs: list[tuple[int, int]], named: list[str]
) -> None:
    reason = text.unreachable(FABRIC, pairs, frozenset(dead))
    assert all(word in reason for word in named) and "\n" not in reason
    assert text.unreachable(FABRIC, [(5, 6)], frozenset(dead)) == ""
    apart = text.unreachable(ROUND, [(0, 4)], NO_CABLES)  # no path joins these sites, even when every cable is up
    assert "g0" in apart and "g4" in apart and text.unreachable(ROUND, [(0, 2), (7, 0)], NO_CABLES) == ""


DUMP = f"""NXST_FLOW reply (xid=0x4):
 cookie={DEFAULT_COOKIE:#x}, duration=9.1s, table=0, n_packets=3, n_bytes=294, priority=100,ip,nw_dst=10.0.0.1 \
actions=set_field:02:00:00:00:00:00->eth_dst,output:1
 cookie={DEFAULT_COOKIE:#x}, duration=9.1s, table=0, n_packets=0, n_bytes=0, priority=100,ip,nw_src=10.0.0.1,\
nw_dst=10.1.0.0/23 actions=output:"s0l0-eth3"
 cookie={DEFAULT_COOKIE:#x}, duration=9.1s, table=0, n_packets=0, n_bytes=0, priority=110,ip,in_port=3,\
nw_src=10.0.0.0/23,nw_dst=10.1.0.0/23 actions=set_field:{NO_TUNNEL}->eth_dst,IN_PORT
 cookie={ROUTES_COOKIE | 12:#x}, duration=1.1s, table=0, n_packets=7, n_bytes=70000, priority=200,ip,\
nw_src=10.0.0.1,nw_dst=10.1.0.1 actions=set_field:{tunnel_tag(1)}->eth_dst,set_field:{tunnel_tag(1)}->eth_src,output:4
 cookie={TUNNEL_COOKIE:#x}, duration=1.1s, table=0, n_packets=2, n_bytes=20, priority=190,\
dl_dst={tunnel_tag(2)} actions=output:3
 cookie=0x0, duration=1.1s, table=0, n_packets=1, n_bytes=10, priority=5,arp actions=CONTROLLER:65535
"""


def test_flow_rules_are_printed_with_fabric_names_in_order_of_priority() -> None:
    assert [line.split() for line in text.flows(DUMP, FABRIC, "s0l0").splitlines()] == [
        ["rule", "from", "to", "coming", "goes", "to", "packets", "bytes"],
        ["route", "12", "g0", "g4", "s0p1,", "tagged", "s0b0>s1b1", "7", "70", "kB"],
        ["tunnel", "any", "any", "tagged", "s0b1>s1b0", "s0p0", "2", "20", "B"],
        ["default", "site", "0", "site", "1", "from", "s0p0", "back,", "tag", "off", "0", "0", "B"],
        ["default", "any", "g0", "g0,", "tag", "off", "3", "294", "B"],
        ["default", "g0", "site", "1", "s0p0", "0", "0", "B"],
        DUMP.splitlines()[-1].split(),  # a foreign rule, printed unchanged
    ]


@pytest.mark.parametrize("status", [0, 3, -9])
def test_a_program_has_failed_if_a_rank_ends_with_another_status_than_zero(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = OutputPrinter(["g0", "g4"])
    printer(rank=0, ended=0)
    printer(rank=1, ended=status)
    counted = [{"udp_receive_drops": 0}, {"udp_receive_drops": 1200}]
    printer(over={"left_running": 1, "discarded": [], "counted": counted, "crowded": True})
    assert printer.has_failed == bool(status)
    said = capsys.readouterr().out
    assert ("g4 ended" in said) == bool(status)
    assert "g4: 1,200 UDP datagrams were dropped" in said and "g0: 0" not in said and "program.processes" in said


def test_captures_of_several_ports_are_merged_in_order_of_time(tmp_path: Path) -> None:
    packets = [struct.pack("<IIII", 9, at, 2, 9000) + bytes([at, at]) for at in range(6)]
    parts = [tmp_path / "0", tmp_path / "1"]
    parts[0].write_bytes(b"h" * 24 + packets[0] + packets[3])
    parts[1].write_bytes(b"h" * 24 + packets[1] + packets[2] + packets[4] + packets[5] + packets[5][:10])  # cut short
    merge(parts, tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == b"h" * 24 + b"".join(packets)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rate s0b0>s1b0", ""),
        ("switch s0b0", "start stop"),
        ("ring g0 g2", "g1 g3 g4 g5 g6 g7"),
        ("link g5", "s1l0"),
        ("link g5 s1l0", "up"),
        ("link g4 s1l0", "down"),
        ("g0 ping", "g0 g1 g2 g3 g4 g5 g6 g7"),
        ("mode", "base calm"),
        ("policy", "base calm"),
        ("run", "g0: g1: g2: g3: g4: g5: g6: g7:"),
        ("run g0:", ""),
        ("admit 20 MB g0", "g0 g1 g2 g3 g4 g5 g6 g7 by for"),
        ("collective allgather 8 MB", " ".join(ALGORITHMS["allgather"])),
    ],
)
def test_tab_completion_offers_exactly_the_words_that_may_follow(typed: str, offered: str) -> None:
    found = arguments.completions(FABRIC, typed.split(), frozenset({cable("g5", "s1l0")}), ["base", "calm"])
    assert list(found) == offered.split()
