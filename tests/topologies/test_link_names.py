"""The notations of links, and every place that reads one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.policies.conditions import conditions_of
from scenarios.prompt import arguments
from scenarios.prompt.arguments import PromptError
from scenarios.spec.load import Override, load_scenario
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.link_names import directions, in_short
from topologies.fabric.ports import links_in_grain

NODES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
FABRIC = build_fabric(FabricSpec(gpus_per_site=(4, 4)))
NAMES = {link.name: link.index for link in links_in_grain(FABRIC).all}
BOTH = NAMES["s0b0>s1b0"], NAMES["s1b0>s0b0"]


@given(NODES, NODES, st.sampled_from(["", " "]))
def test_a_direction_has_two_notations_and_both_directions_have_one(a, b, space):
    one = (f"{a}>{b}",)
    assert directions(f"{a}{space}>{space}{b}") == directions(f"{a}{space}:{space}{b}") == one
    assert directions(f"{a}-{b}") == (*one, f"{b}>{a}")


def test_both_directions_of_a_cable_have_one_short_name_and_one_direction_keeps_its_own():
    names = ["s0b0>s1b0", "s1b0>s0b0#2", "s1b0>s0b0", "s0b1>s1b1", "s0b0>s1b0#2"]
    short = in_short(names)
    assert short == ["s0b0-s1b0", "s1b0-s0b0#2", "s0b1>s1b1"]
    assert sorted(one for name in short for one in directions(name)) == sorted(names)


@pytest.mark.parametrize("text", ["", "s0b0", "a>b>c", "a->b", "*>b", "a:", "-b", "1>2", "a b"])
def test_what_is_no_link_is_returned_as_it_is(text):
    assert directions(text) == (text,)


def scenario(**values):
    return load_scenario("paper", [Override(key, value, key) for key, value in values.items()])


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("s0b0>s1b0", BOTH[:1]),
        ("s0b0:s1b0", BOTH[:1]),
        ("s1b0-s0b0", BOTH),
        ("s0b0:*", [index for name, index in NAMES.items() if name.startswith("s0b0>")]),
    ],
)
def test_conditions_of_links_take_every_notation(name, slow):
    (config,) = scenario(**{"conditions.links": {name: {"rate": "1 Gbit/s"}}}).configurations()
    rates_bps = conditions_of(config).drawn.rates_bps(0, 50)
    assert set(np.flatnonzero((rates_bps == 1e9).all(axis=0)).tolist()) == set(slow)


@pytest.mark.parametrize("sign", ">:-")
def test_a_trace_takes_every_notation(tmp_path: Path, sign):
    pairs = [(link.src, link.dst) for link in links_in_grain(FABRIC).all if link.kind == "wan"]
    kept = [(a, b) for a, b in pairs if sign != "-" or a < b]
    rows = [f"0,{a}{sign}{b},{number + 1} Gbit/s" for number, (a, b) in enumerate(kept)]
    (tmp_path / "t.csv").write_text("\n".join(["time,link,rate", *rows, ""]))
    values = {"conditions.sampler": "trace", "conditions.trace": str(tmp_path / "t.csv"), "collective.count": 1}
    (config,) = scenario(**values).configurations()
    (rates_bps,) = conditions_of(config).drawn.rates_bps(0, 1)
    for number, (a, b) in enumerate(kept):
        assert rates_bps[NAMES[f"{a}>{b}"]] == (number + 1) * 1e9
        assert sign != "-" or rates_bps[NAMES[f"{b}>{a}"]] == (number + 1) * 1e9


def test_a_trace_with_two_rates_of_a_direction_at_one_time_is_refused(tmp_path: Path):
    (tmp_path / "t.csv").write_text("time,link,rate\n0,s0b0-s1b0,1 Gbit/s\n0,s1b0>s0b0,2 Gbit/s\n")
    with pytest.raises(ValueError, match="link s1b0>s0b0 has two rates at time 0"):
        scenario(**{"conditions.sampler": "trace", "conditions.trace": str(tmp_path / "t.csv"), "collective.count": 1})


def test_the_prompt_takes_every_notation_and_a_capture_one_direction():
    assert arguments.link_rate(FABRIC, "s0b0:s1b0 40 Gbit/s") == (BOTH[:1], 40_000_000_000)
    assert arguments.link_rate(FABRIC, "s0b0-s1b0 40 Gbit/s") == (BOTH, 40_000_000_000)
    assert arguments.link_delay(FABRIC, "s0b0-s1b0 5 ms") == (BOTH, 5e-3)
    assert arguments.link_file(FABRIC, "s0b0:s1b0 a.pcap") == (BOTH[0], "a.pcap")
    with pytest.raises(PromptError, match='"s0b0-s1b0" is both directions; allowed: one of them, such as s0b0>s1b0'):
        arguments.link_file(FABRIC, "s0b0-s1b0 a.pcap")


def test_captures_take_every_notation():
    captured = {name: scenario(**{"program.capture": [name]}).program.capture for name in ("s0b0:s1b0", "s0b0-s1b0")}
    assert captured == {"s0b0:s1b0": ("s0b0>s1b0",), "s0b0-s1b0": ("s0b0>s1b0", "s1b0>s0b0")}
