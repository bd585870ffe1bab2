"""The timeline of a collective: what is outlined, narrow messages, and which of many modes are drawn."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path

from analysis.figures import fabric, timeline, wan_map
from analysis.figures.__main__ import tasks_of
from analysis.figures.collective_detail import collectives_of
from analysis.figures.run_points import configurations_of, points_of
from analysis.figures.timeline import most_different, outlines
from analysis.results.reader import open_run
from scenarios.experiment import command
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario
from tests.fakes.commands import FakeTestbeds, run, testbeds  # noqa: F401
from topologies.fabric.ports import links_in_grain

DOWN = '{at="collective 4",what="link s0b0-s1b0 down"}'
SLOW = '{at="collective 2",what="agent 3 slow 10x"}'


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0.01, 30), st.integers(0, 3)).map(
            lambda one: (one[0], one[0] + one[1], float(one[2]), one[2] + 1.0)
        ),
        max_size=20,
    )
)
def test_outlines_cover_the_bars_and_long_bars_have_one_of_their_own(boxes):
    found = outlines(boxes, thin=5.0)
    for left, right, top, bottom in boxes:
        around = [one for one in found if one[2:] == (top, bottom) and one[0] <= left and right <= one[1]]
        assert around and (right - left < 5 or (left, right, top, bottom) in around)
    ends = {end for box in boxes for end in box[:2]}
    assert all(end in ends for one in found for end in one[:2])


def test_short_neighbours_have_one_outline_and_those_far_apart_have_two():
    short = [(float(at), at + 1.0, 0.0, 1.0) for at in (0, 1, 2, 40, 41)]
    assert outlines(short, thin=5.0) == [(0.0, 3.0, 0.0, 1.0), (40.0, 42.0, 0.0, 1.0)]


@pytest.mark.parametrize(
    ("times_s", "shown"),
    [([5.0], [0]), ([5.0, 5.0], [0, 1]), ([5.0, 5.1, 9.0, 1.0, 5.2, 7.0], [0, 2, 3, 5]), ([3.0] * 6, [0, 1, 2, 3])],
)
def test_of_many_modes_the_timeline_shows_the_first_and_those_that_differ_most(times_s, shown):
    assert most_different(times_s, 4) == shown


def test_a_message_that_is_narrower_than_an_edge_is_drawn_in_its_own_colour(tmp_path):
    """The fastest messages of this run are a thousandth of it long; white edges would cover them."""
    folder = tmp_path / "run"
    words = (
        "--set",
        "collective.pieces=32",
        "--modes",
        "base",
        "--gpus",
        "16",
    )
    assert command.run(["--engine", "model", "--collectives", "1", *words, "--no-report", "--out", str(folder)]) == 0
    run = open_run(folder)
    configurations = configurations_of(run)
    shown = collectives_of(run, points_of(run, configurations), configurations[0], number=0)
    drawn = timeline.picture("paper", shown)
    bars = drawn.figure.axes[0].collections[-3]
    assert len(bars.get_paths()) == len(shown[0].transfers)
    for path, edge, face in zip(bars.get_paths(), bars.get_edgecolors(), bars.get_facecolors(), strict=True):
        width = np.ptp(path.vertices[:, 0]) / drawn.figure.axes[0].get_xlim()[1]
        assert tuple(edge) == tuple(face) if width < 0.005 else True
    explained = " ".join(drawn.figure.get_supxlabel().split())
    assert "Its shade: the rank" in explained and "number where there is room" not in explained


def test_numbers_and_the_lowest_rate_are_told_as_they_are_drawn(tmp_path):
    """Messages that overlap have no room for numbers, and of one constant WAN both crossing edges are the slowest."""
    words = ("--set", 'conditions.wan_rate="10 Gbit/s"', "--wan-delay", "8 ms", "--modes", "base", "--no-report")
    assert command.run(["--engine", "model", "--collectives", "1", *words, "--out", str(tmp_path / "run")]) == 0
    run = open_run(tmp_path / "run")
    one, *_ = configurations = configurations_of(run)
    figure = timeline.picture("paper", collectives_of(run, points_of(run, configurations), one, number=0)).figure
    bold = [text.get_text() for text in figure.axes[0].texts if text.get_weight() == "bold"]
    assert bold == ["10 Gbit/s"] * 2
    explained = " ".join(figure.get_supxlabel().split())
    assert "Its shade, and its number where there is room: the rank where it started." in explained
    assert "the lowest in bold" in explained


@pytest.mark.parametrize(
    ("faults", "number", "hit"),
    [
        (f"{DOWN},{SLOW}", 2, "agent 3 slow 10x"),
        (DOWN, 4, "link s0b0-s1b0 down"),
        ("", 0, ""),
    ],
)
def test_the_first_predicted_collective_that_a_fault_hit_is_shown_with_its_rates(tmp_path, faults, number, hit):
    """A slow GPU sends at a tenth of the rates drawn, and a link that is down has none. Titles have the ranges from
    which conditions are drawn, and the longest delay of a WAN link."""
    links = 'conditions.links={"s0b1>s1b1" = {delay = "100 ms"}}'
    words = ["--set", f"fault=[{faults}]", "--set", links, "--modes", "base", "--wan-delay", "40 ms", "--no-report"]
    assert command.run(["--engine", "model", "--collectives", "6", *words, "--out", str(tmp_path / "run")]) == 0
    found = open_run(tmp_path / "run")
    configurations = configurations_of(found)
    points = points_of(found, configurations)
    of_collective = timeline.picture, fabric.picture
    pictures = [task() for task in tasks_of(found, configurations, points) if task.func in of_collective]
    title = " ".join(pictures[0].figure.get_suptitle().split())
    assert f"collective {number}{hit and f', hit by {hit}'}" in title and len(pictures) == 2
    for picture in pictures:
        shown = " ".join(picture.figure.get_suptitle().split())
        assert shown.count("WAN 40 ms to 100 ms and 10-100 Gbit/s") == 1 and shown.count(" ms") == 2
        assert "20-200 Gbit/s within sites" in shown
    (config,) = load_scenario(str(tmp_path / "run/scenario.toml")).configurations()
    conditions = conditions_of(config)
    drawn_bps = conditions.drawn.rates_bps(number, 1)[0]
    rows = {int(row["link"]): row for row in csv.DictReader(io.StringIO(pictures[1].data))}
    for link in conditions.shared.all:
        is_down = "down" in hit and {link.src, link.far_end} == {"s0b0", "s1b0"}
        share = 0.1 if "slow" in hit and link.src == "g3" else 1 - is_down
        assert int(rows[link.index]["rate_bps"]) == pytest.approx(drawn_bps[link.index] * share, abs=1)


def test_rates_over_time_are_computed_for_the_flows_that_have_a_row(tmp_path):
    """Of 240 flows of an AllToAll, 32 have a row; the rates of each of their messages over time add up to its size."""
    words = ["--set", "collective.kind=alltoall", "--modes", "base", "--gpus", "16", "--no-report"]
    assert command.run(["--engine", "model", "--collectives", "1", *words, "--out", str(tmp_path / "run")]) == 0
    found = open_run(tmp_path / "run")
    configurations = configurations_of(found)
    (one,) = collectives_of(found, points_of(found, configurations), configurations[0], number=0)
    assert len(one.flows) == 240 and len(one.shown) == 32
    assert {*one.spans} == {timed.transfer for timed in one.transfers if timed.flow in one.shown}
    for timed in one.transfers:
        if timed.flow in one.shown:
            bits = sum((end - start) * share for start, end, share in one.spans[timed.transfer])
            assert bits * one.flows[timed.flow].rate_bps == pytest.approx(8 * timed.size)


def test_the_time_before_a_fault_counts_for_the_link_and_only_the_rest_for_what_came_after_it(testbeds):
    """Each of the seven steps takes 8 ms, so that the path visits each of seven GPUs in turn: g3 sends over the WAN
    from 8 to 16 ms, and g7 from 40 to 48 ms. The link that both use, once for each direction, fails at 10 ms."""

    def eight_ms(row, mode):
        steps = range(7)
        sent, arrived = ([8_000_000 * (step + late) for step in steps for _ in range(8)] for late in (0, 1))
        return {"sent_ns": sent, "arrived_ns": arrived, "completion_s": 0.056, "undisturbed": row["collective"] != 1}

    testbeds(FakeTestbeds(changes=eight_ms))
    fault = 'fault=[{at="10 ms into collective 1",what="link s0b0-s1b0 down",for="1 collectives"}]'
    run("--engine", "emulation", "--modes", "base", "--collectives", 3, "--set", fault, "--out", "out", "--no-report")
    found = open_run("out")
    (configuration,) = configurations_of(found)
    points = points_of(found, [configuration])
    for number, over_wan_ms, after_ms in ((0, 16, 0), (1, 2, 14)):
        (one,) = collectives_of(found, points, configuration, number=number)
        took_ms = {name: cost.seconds * 1e3 for name, cost in one.costs.items()}
        after = took_ms.pop("after link s0b0-s1b0 down", 0)
        routers = sum(time_ms for name, time_ms in took_ms.items() if "b0" in name)
        assert (routers, after) == (pytest.approx(over_wan_ms), pytest.approx(after_ms))
        assert sum(took_ms.values()) + after == pytest.approx(56)
        # Of 7 messages of 8 MB, the first and a quarter of the second were sent before the failure.
        (link,) = (one for one in links_in_grain(configuration.fabric).all if one.name == "s0b0>s1b0")
        sent_bits = wan_map.utilisation(one)[link.index] * one.rates_bps[link.index] * 0.056
        assert sent_bits == pytest.approx(64e6 * (1.25 if after else 7), rel=1e-3)


def test_the_outline_of_small_bars_leaves_their_shade():
    """Pieces of blocks overlap on the WAN: a line around each of their low bars would cover all of them."""
    pieces = [(at, at + 40.0, 0.05 * at, 0.05 * at + 0.05) for at in map(float, range(12))]
    (staircase,) = timeline.around(pieces, thin=5.0, aside=1.0)
    outline = Path([*staircase, staircase[0]])
    centres = [((left + right) / 2, (top + bottom) / 2) for left, right, top, bottom in pieces]
    assert outline.contains_points(centres).all()
    assert not outline.contains_points([(0.5, 0.5), (45.0, 0.05)]).any()  # beside its two ends
    (narrow,) = timeline.around([(10.0, 11.0, 0.0, 0.8)], thin=5.0, aside=1.0)
    assert {x for x, _ in narrow} == {9.0, 12.0}
    wide = (0.0, 40.0, 0.0, 0.8)
    assert timeline.around([wide], thin=5.0, aside=1.0) == [[(0.0, 0.0), (40.0, 0.0), (40.0, 0.8), (0.0, 0.8)]]
