"""What a run tells of rates: which are drawn at random, and the ranges in titles."""

import re

import pytest

from analysis.statistics.rates import drawn_sentence, ranges_of, untold, wan_links_sentence
from scenarios.spec.load import scenario_of
from topologies.conditions.link_overrides import read
from topologies.conditions.sampler import ConditionsSpec
from topologies.fabric.fabric import FabricSpec, build_fabric

MESH = build_fabric(FabricSpec(gpus_per_site=(2, 2)))
ALONE = build_fabric(FabricSpec(gpus_per_site=(4,)))
WAN, WITHIN = "WAN 10-100 Gbit/s (conditions.wan_rate)", "within sites 20-200 Gbit/s (conditions.intra_rate)"
CONSTANT = (40_000_000_000, 40_000_000_000)
OWN = '["s0b0", "s1b0", { rate = "40 Gbit/s" }]'
CABLES, CABLES_ALONE = (
    build_fabric(scenario_of(f"[fabric]\nborder_routers = 1\n[fabric.wan]\nlinks = [{links}]\n").fabric)
    for links in (f'{OWN}, ["s0b0", "s1b0"]', OWN)
)


@pytest.mark.parametrize(
    ("fabric", "values", "said"),
    [
        (MESH, {}, f"Rates are drawn at random: {WAN}, {WITHIN}."),
        # The rates of the WAN are given: those within sites are still drawn, by the default.
        (MESH, {"wan_rate_bps": CONSTANT}, f"Rates are drawn at random: {WITHIN}."),
        (MESH, {"intra_rate_bps": CONSTANT}, f"Rates are drawn at random: {WAN}."),
        (MESH, {"wan_rate_bps": CONSTANT, "intra_rate_bps": CONSTANT}, ""),
        (ALONE, {}, f"Rates are drawn at random: {WITHIN}."),
        (
            MESH,
            {"intra_rate_bps": CONSTANT, "links": read({"s0b0>s1b0": {"rate": "5-6 Gbit/s"}})},
            "Rates are drawn at random: WAN 10-100 Gbit/s (conditions.wan_rate), WAN 5-6 Gbit/s (conditions.links).",
        ),
        # A constant rate beside drawn ones is not drawn, whether a cable's own or one of `conditions.links`.
        (CABLES, {"intra_rate_bps": CONSTANT}, f"Rates are drawn at random: {WAN}."),
        (
            MESH,
            {"intra_rate_bps": CONSTANT, "links": read({"s0b0>s1b0": {"rate": "5 Gbit/s"}})},
            f"Rates are drawn at random: {WAN}.",
        ),
        (CABLES_ALONE, {"intra_rate_bps": CONSTANT}, ""),
        (
            CABLES_ALONE,
            {"intra_rate_bps": CONSTANT, "links": read({"s0b0>s1b0": {"rate": "5-6 Gbit/s"}})},
            "Rates are drawn at random: WAN 5-6 Gbit/s (conditions.links).",
        ),
    ],
)
def test_the_answer_names_the_rates_that_are_random(fabric, values, said):
    assert drawn_sentence([(fabric, ConditionsSpec(**values))]) == said


@pytest.mark.parametrize("lists", ["the WAN", "all links", "no file"])
def test_rates_that_a_trace_omits_are_random(tmp_path, lists):
    links = [one for one in MESH.links if one.kind == "wan" or lists == "all links"]
    rows = [f"{at},{one.name},9 Gbit/s" for at in (0, 1) for one in links]
    if lists != "no file":
        (tmp_path / "trace.csv").write_text("\n".join(["time,link,rate", *rows]))
    spec = ConditionsSpec(sampler="trace", trace=tmp_path / "trace.csv")
    said = drawn_sentence([(MESH, spec)])
    assert said == (f"Rates are drawn at random: {WITHIN}." if lists == "the WAN" else "")


def test_ranges_of_several_configurations_are_told_once():
    specs = [ConditionsSpec(wan_rate_bps=(10**9, high * 10**9)) for high in (2, 2, 3, 4, 5)]
    said = drawn_sentence((MESH, one) for one in specs[:3])
    assert said == f"Rates are drawn at random: WAN 1-2 Gbit/s and 1-3 Gbit/s (conditions.wan_rate), {WITHIN}."
    assert "WAN 1-5 Gbit/s (" in drawn_sentence((MESH, one) for one in specs)


def test_ports_that_oversubscription_makes_are_no_rates_of_the_key():
    """The key has 20 to 200 Gbit/s; a port of a leaf with 4:1 has a quarter of its GPUs' ports."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(4, 4), grain="physical", oversubscription=(4.0,)))
    within = "within sites 20-200 Gbit/s (conditions.intra_rate; ports between switches have more or less, by "
    assert f"{within}fabric.oversubscription)" in drawn_sentence([(fabric, ConditionsSpec())])


def test_a_constant_rate_of_the_wan_is_told_with_the_number_of_links_that_have_it():
    """Two border routers at each of two sites make four links; one at each has one, whose rate is the WAN's."""
    spec = ConditionsSpec(wan_rate_bps=CONSTANT)
    said = wan_links_sentence([(MESH, spec)])
    assert re.fullmatch(r"the WAN has 4 links of [0-9.]+ Gbit/s each, in each direction", said)
    one = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
    assert wan_links_sentence([(one, spec)]) == wan_links_sentence([(MESH, ConditionsSpec())]) == ""


def test_a_title_has_the_ranges_that_its_other_words_do_not_tell():
    ranges = [ranges_of(MESH, ConditionsSpec())]
    assert untold(ranges, ["8 GPUs", "10 us"]) == ["WAN 10-100 Gbit/s", "20-200 Gbit/s within sites"]
    assert untold(ranges, ["wan rate 10-100 Gbit/s"]) == ["20-200 Gbit/s within sites"]
    assert untold(ranges, ["intra rate 20-200 Gbit/s", "wan rate 10-100 Gbit/s"]) == []
