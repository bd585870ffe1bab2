"""The figure of a run over time: its collectives, the rates under which they ran, and faults as spans."""

import csv
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.figures import fabric, faults, over_time
from analysis.figures.__main__ import draw
from analysis.figures.collective_detail import collectives_of
from analysis.figures.over_time import times_of_day
from analysis.figures.run_points import configurations_of, points_of
from analysis.report import __main__ as report
from analysis.results import load
from analysis.results.reader import open_run
from analysis.results.schema import SCHEMAS
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario
from tests.fakes.commands import FakeTestbeds, run, testbeds  # noqa: F401
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.link_names import directions

FAULT = 'fault=[{at="collective %d",what="link s0b0-s1b0 down",for="3 collectives"}]'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def drawn(name="run-over-time"):
    with Path("out", "figures", f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    return rows, Path("out", "figures", f"{name}.svg").read_text()


def modelled(*options, count=40):
    words = [word for one in options for word in ("--set", one)]
    run("--engine", "model", "--modes", "base,joint", "--collectives", count, *words, "--out", "out", "--no-report")
    draw("out")


@pytest.mark.parametrize("sampler", ["markov", "ar1"])
def test_it_has_the_stored_time_of_each_collective_and_the_rates_of_its_conditions(sampler):
    modelled(f"conditions.sampler={sampler}")
    rows, svg = drawn()
    stored = load("out").set_index(["mode", "collective"]).completion_s
    assert {(row["mode"], int(row["collective"])): float(row["completion_s"]) for row in rows} == stored.to_dict()
    (config,) = load_scenario("out/scenario.toml").configurations()
    conditions = conditions_of(config)
    index = {link.name: link.index for link in conditions.shared.all}
    rates_bps = conditions.drawn.rates_bps(0, 40)
    shown = [key.partition(" ")[2] for key in rows[0] if key.startswith("rate_bps ")]
    assert 0 < len(shown) <= 6 and all(name in svg.replace("&gt;", ">") for name in shown)
    for row in rows:
        for name in shown:
            assert float(row[f"rate_bps {name}"]) == rates_bps[int(row["collective"]), index[name]]


def test_only_links_that_are_used_have_lines():
    run("--engine", "model", "--modes", "base", "--collectives", 40, "--set", "conditions.sampler=ar1", "--out", "out")
    rows, _ = drawn()
    assert [key for key in rows[0] if key.startswith("rate_bps ")] == ["rate_bps s0b0>s1b0", "rate_bps s1b0>s0b0"]


@pytest.mark.parametrize(("wan_rate", "are_alike"), [("10 Gbit/s", True), ("5-10 Gbit/s", False)])
def test_modes_that_take_the_same_times_are_told_to_lie_on_each_other(wan_rate, are_alike):
    same = 'conditions.intra_rate="20 Gbit/s"', f'conditions.wan_rate="{wan_rate}"'
    modelled(FAULT % 10, *same)
    times = load("out").pivot(index="collective", columns="mode", values="completion_s")
    assert np.allclose(times.base, times.joint, rtol=1e-3) == are_alike
    assert ("base and joint take the same times and lie on each other." in drawn()[1]) == are_alike


def test_a_late_fault_moves_the_window_and_is_marked():
    modelled(FAULT % 1000, count=2000)
    rows, svg = drawn()
    numbers = {int(row["collective"]) for row in rows}
    assert (min(numbers), max(numbers)) == (980, 1179)
    assert "a fault is in force" in svg and "Collectives 980 to 1,179 of 2,000." in svg


@pytest.mark.parametrize(
    ("engine", "emulated", "said"),
    [
        ("emulation", '"18-28"', "Collectives 18 to 28 of 40."),
        ("both", '"18-28"', None),
        ("both", "7", None),
        ("both", "40", None),
        ("emulation", "7", None),
        ("model", "7", None),
    ],
)
def test_what_is_drawn_is_told_among_the_collectives_of_the_run(testbeds, engine, emulated, said):
    testbeds(FakeTestbeds())
    options = [word for one in (f"collective.emulated={emulated}", "collective.count=40") for word in ("--set", one)]
    options += ["--set", "conditions.sampler=markov", "--no-report", "--out", "out"]
    run("--engine", engine, "--modes", "base", *options)
    draw("out")
    _, svg = drawn()
    assert re.findall(r"Collectives [\d,]+ to [\d,]+ of [\d,]+\.", svg) == [said] * (said is not None)


def test_conditions_by_time_show_every_row_in_force_and_independent_draws_have_no_such_figure():
    modelled("conditions.sampler=ar1", 'conditions.every="1 ms"', 'conditions.interval="40 ms"')
    rows, svg = drawn()
    assert {int(row["collective"]) for row in rows} == set(range(10)) and "one every 40 ms" in svg
    run("--engine", "model", "--modes", "base", "--collectives", 5, "--out", "plain", "--no-report")
    assert not [path for path in draw("plain") if "over-time" in path.name]


def picture_of(folder="out"):
    """Return the axes of the times, of the rates, and of the clock, if there is one, and the notes below."""
    found = open_run(folder)
    one, *_ = every = configurations_of(found)
    figure = over_time.picture("paper", found, points_of(found, every), one).figure
    figure.draw_without_rendering()
    times, rates = figure.axes
    return times, rates, next(iter(times.child_axes), None), " ".join(figure.legends[0].get_title().get_text().split())


@pytest.mark.parametrize(
    ("options", "each", "label"),
    [
        (("conditions.sampler=ar1", 'conditions.every="1 ms"', 'conditions.interval="40 ms"'), 40, "conditions (ms)"),
        (("conditions.sampler=trace", "conditions.trace=trace.csv", 'conditions.trace_step="2 s"'), 2, "trace (s)"),
        (("conditions.sampler=markov",), None, ""),
    ],
)
def test_conditions_that_have_times_have_an_axis_of_time(options, each, label):
    """The times at the axis above are those of the collectives below, counted from the beginning of the conditions."""
    names = [link.name for link in build_fabric(FabricSpec(gpus_per_site=(4, 4))).links]
    rows = [f"{at},{name},{1 + at % 7} Gbit/s" for at in range(100) for name in names]
    Path("trace.csv").write_text("\n".join(["time,link,rate", *rows]))
    modelled(*options)
    times, _, clock, _ = picture_of()
    if each is None:
        assert clock is None
        return
    assert clock.get_xlabel().endswith(label)
    for tick in clock.get_xticks():  # at the place of the collective that begins then
        at = clock.transData.transform((tick, 0))[0]
        assert times.transData.inverted().transform((at, 0))[0] == pytest.approx(tick / each)


def test_links_that_are_left_out_are_told_and_each_of_many_has_a_row():
    """Lines of six links on one axis would cross each other: each is drawn above the line of its own 0."""
    modelled("conditions.sampler=markov")
    times, rates, _, notes = picture_of()
    assert "6 of 8 WAN links are shown: those used most." in notes
    names = [label.get_text() for label in rates.get_yticklabels()]
    shown, _ = drawn()
    columns = [name for name in shown[0] if name.startswith("rate_bps ")]
    assert [f"rate_bps {name}" for name in names] == columns and rates.get_legend() is None
    assert times.get_window_extent().x1 > 0.97 * times.figure.bbox.width
    assert all(label.get_window_extent().x0 >= 0 for label in rates.get_yticklabels())
    highest = max(float(row[column]) for row in shown for column in columns)
    lines = [line for line in rates.lines if len(line.get_xdata()) > 2]
    for row, (line, column) in enumerate(zip(lines, columns, strict=True)):
        heights, zero = line.get_ydata(), len(columns) - 1 - row
        assert zero <= heights.min() and heights.max() < zero + 1
        assert (heights.max() - zero) / 0.82 == pytest.approx(max(float(one[column]) for one in shown) / highest)


def test_a_dead_link_is_drawn_as_dead_while_its_fault_is_in_force():
    """Two parallel links of one constant rate: the first is down in collectives 3 to 5."""
    wan = 'fabric.wan={links=[["s0b0","s1b0"],["s0b0","s1b0"]]}'
    options = ("fabric.border_routers=1", wan, 'conditions.wan_rate="25 Gbit/s"', 'conditions.intra_rate="99 Gbit/s"')
    modelled(*options, FAULT % 3, count=9)
    _, rates, _, notes = picture_of()
    assert "A link that is down has the rate 0." in notes
    lines = {line.get_label(): line for line in rates.lines}
    assert set(lines) == {"s0b0-s1b0", "s0b0-s1b0#2"}
    for name, at_4 in (("s0b0-s1b0", 0), ("s0b0-s1b0#2", 25)):
        x, y = lines[name].get_data()
        rate = {at: y[np.searchsorted(x, at, side="right") - 1] for at in (2.4, 2.6, 4.0, 5.4, 5.6)}
        assert rate == {2.4: 25, 2.6: at_4, 4.0: at_4, 5.4: at_4, 5.6: 25}
    assert rates.get_ylim()[0] < 0  # the axis does not hide the line at 0
    rows, _ = drawn()
    down = {int(row["collective"]): float(row["rate_bps s0b0>s1b0"]) for row in rows if row["mode"] == "base"}
    assert down == {number: 0.0 if 3 <= number < 6 else 25e9 for number in range(9)}
    assert {float(row["rate_bps s0b0>s1b0#2"]) for row in rows} == {25e9}


def test_the_gaps_of_a_trace_are_marked():
    """A row each second, except from 12 s to 16 s: collectives 13 to 15 have the rate of 12 s."""
    names = [link.name for link in build_fabric(FabricSpec(gpus_per_site=(4, 4))).links if link.kind == "wan"]
    rows = [f"{at},{name},{10 + at % 7} Gbit/s" for at in range(40) if not 12 < at < 16 for name in names]
    Path("trace.csv").write_text("\n".join(["time,link,rate", *rows]))
    modelled("conditions.sampler=trace", "conditions.trace=trace.csv", 'conditions.trace_step="1 s"', count=30)
    _, rates, _, _ = picture_of()
    (gap,), _ = zip(*[spans_of(rates)], strict=True)
    assert gap == pytest.approx([12.5, 15.5])
    assert "no reading" in drawn()[1]


def test_a_gap_of_one_link_shades_its_row_alone():
    """Only one of three links that are used lacks rows; the others are measured throughout."""
    names = [link.name for link in build_fabric(FabricSpec(gpus_per_site=(4, 4))).links if link.kind == "wan"]
    lacking = "s0b0>s1b0"
    rows = [f"{at},{name},{10 + (at * (2 + place)) % 7} Gbit/s" for at in range(40) for place, name in enumerate(names)
            if name != lacking or not 12 < at < 16]  # fmt: skip
    Path("trace.csv").write_text("\n".join(["time,link,rate", *rows]))
    options = ("conditions.sampler=trace", "conditions.trace=trace.csv", 'conditions.trace_step="1 s"')
    modelled(*options, count=30)
    _, rates, _, _ = picture_of()
    names = [label.get_text() for label in rates.get_yticklabels()]
    (shade,) = (patch.get_extents().transformed(rates.transData.inverted()) for patch in rates.patches)
    assert (shade.x0, shade.x1) == pytest.approx((12.5, 15.5))
    row = len(names) - 1 - names.index(lacking)
    assert row - 1e-6 < shade.y0 < shade.y1 < row + 1
    assert "no reading" in drawn()[1]
    shutil.rmtree("out")
    # Two lines fit on one axis, where the shade would be that of both.
    few = [row for row in rows if row.split(",")[1] in (lacking, "s1b0>s0b0")]
    Path("trace.csv").write_text("\n".join(["time,link,rate", *few]))
    modelled(*options, "fabric.border_routers=1", count=30)
    _, rates, _, _ = picture_of()
    assert [label.get_text() for label in rates.get_yticklabels()] == [lacking, "s1b0>s0b0"]
    assert len(rates.patches) == 1


@pytest.mark.parametrize(
    ("emulated", "shown"), [("3", range(200)), ('"150-152"', range(200)), ('"300-302"', range(300, 400))]
)
def test_with_both_engines_the_predicted_collectives_of_the_whole_run_are_drawn(testbeds, emulated, shown):
    """At most 200 of 400, with the three measured ones; the longest of all is named if it is not among these."""
    testbeds(FakeTestbeds())
    options = (f"collective.emulated={emulated}", "collective.count=400", "conditions.sampler=markov")
    words = [word for one in options for word in ("--set", one)]
    run("--engine", "both", "--modes", "base", *words, "--out", "out", "--no-report")
    times, *_, notes = picture_of()
    lines = {line.get_linestyle() == "None": line.get_xdata().tolist() for line in times.lines}
    stored = load("out")
    assert lines[False] == [*shown]
    assert lines[True] == stored[stored.engine == "emulation"].collective.to_list()
    longest = int(stored.collective[stored.completion_s.argmax()])
    assert (f"The longest of all is number {longest} in base" in notes) == (longest not in shown)


def test_links_whose_rates_change_are_shown_before_constant_ones_that_are_used_more():
    """All traffic of a site passes its constant link to a city, and some of it each link between two cities."""
    access = [("s0b0", "a"), ("s1b0", "b"), ("s2b0", "c")]
    both = [("a", "b"), ("b", "c"), ("a", "c")]
    between = [f"{one}>{other}" for pair in both for one, other in (pair, pair[::-1])]
    rows = [f"0,{one}>{other},400 Gbit/s" for pair in access for one, other in (pair, pair[::-1])]
    rows += [f"{at},{link},{3 + at % 5} Gbit/s" for at in range(40) for link in between]
    Path("trace.csv").write_text("\n".join(["time,link,rate", *rows]))
    wan = f'fabric.wan={{routers=["a","b","c"],links={json.dumps([*access, *both])}}}'
    options = ("fabric.gpus=[2,2,2]", "fabric.border_routers=1", wan)
    modelled(*options, "conditions.sampler=trace", "conditions.trace=trace.csv")
    *_, notes = picture_of()
    shown = {name.removeprefix("rate_bps ") for name in drawn()[0][0] if name.startswith("rate_bps ")}
    links = json.loads(Path("out", "settings.json").read_text())[0]["fabric"]
    names = [f"{link['src']}>{link['dst']}" for link in links["links"]]
    used = {names[at] for path in {one for each in load("out").paths for one in each if one >= 0}
            for at in links["paths"][path]["links"]}  # fmt: skip
    assert len(shown) == 6 and shown >= used & {*between} and len(used & {*between}) >= 3
    assert "6 of 12 WAN links are shown: those used" in notes


def test_links_of_one_constant_rate_are_one_line_with_a_name_for_both_directions():
    slow = 'fault=[{at="collective 3",what="agent 3 slow 4x"}]'
    run("--engine", "model", "--modes", "base", "--set", slow, "--set", 'conditions.wan_rate="40 Gbit/s"',
        "--collectives", 12, "--out", "out", "--no-report")  # fmt: skip
    _, rates, _, notes = picture_of()
    assert len([line for line in rates.lines if len(line.get_xdata())]) == 1
    fabric = json.loads(Path("out", "settings.json").read_text())[0]["fabric"]
    names = [f"{link['src']}>{link['dst']}" for link in fabric["links"]]
    paths = {path for each in load("out").paths for path in each if path >= 0}
    used = {names[link] for path in paths for link in fabric["paths"][path]["links"]}
    (text,) = rates.get_legend().get_texts()
    assert text.get_text() == "s0b0-s1b0" and {*directions(text.get_text())} == used
    assert f"{len(used)} of 8 WAN links are shown: those used." in notes


@pytest.mark.parametrize("recovered_s", [0.0, 0.25])
def test_the_collective_that_a_fault_hit_is_shown_and_a_fault_counts_once(testbeds, recovered_s):
    testbeds(FakeTestbeds())
    run("--engine", "emulation", "--modes", "base,joint", "--collectives", 8, "--set", FAULT % 3, "--out", "out",
        "--no-report")  # fmt: skip
    about = {"engine": "emulation", "setting": 0, "number": 1, "at_collective": 3, "what": "link s0b0-s1b0 down"}
    about |= {
        "detected_s": 0.0,
        "recovered_s": recovered_s,
        "cost_s": 0.1,
        "cost_collectives": 0,
        "outcome": "recovered",
    }
    costs = [{"collective": number, "cost_s": 0.05, "lasting_cost_s": 0.01} for number in (3, 4)]
    about |= {"lasting_cost_s": 0.02, "costs": costs}
    rows = [about | {"mode": mode, "collectives_lost": 0, "bytes_again": 9} for mode in ("base", "joint")]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["faults"]), "out/faults.parquet")
    for collective, shown in ((None, "3"), (1, "1")):
        draw("out", collective=collective)
        with Path("out", "figures", "run-timeline.csv").open() as file:
            assert {row["collective"] for row in csv.DictReader(file)} == {shown}
    found = faults.picture("paper", open_run("out"))
    assert [row["costs"] for row in csv.DictReader(found.data.splitlines())] == ["3:0.05 4:0.05"] * 2
    figure = found.figure
    assert figure.get_suptitle() == "1 fault in 2 modes: 0 collectives lost, 18 bytes retransmitted"
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["fault 1, base", "fault 1, joint"]
    assert figure.get_supxlabel() == "fault 1: link s0b0-s1b0 down in collective 3"
    *times, costs = figure.axes
    assert len(times) == (recovered_s > 0)  # where all markers would be at "≤ 1 µs", the costs alone are drawn
    assert [(bar.get_x(), bar.get_width()) for bar in costs.patches] == [(0, 100), (0, 100)]
    assert costs.get_xlabel().startswith("cost (ms)")
    for axes in times:
        least_s, most_s = axes.get_xlim()
        assert 0.5e-6 < least_s < 1e-6 and recovered_s < most_s <= 13 * recovered_s
        unit = axes.get_xlabel().partition("(")[2].partition(")")[0]
        assert axes.get_xticklabels()[1].get_text() == {"ms": "≤ 0.001", "µs": "≤ 1"}[unit]


def test_the_cost_of_a_measured_fault_is_written_below(testbeds):
    testbeds(FakeTestbeds())
    run(
        "--engine",
        "emulation",
        "--modes",
        "base",
        "--collectives",
        12,
        "--set",
        FAULT % 3,
        "--out",
        "out",
        "--no-report",
    )
    draw("out")
    rows, svg = drawn()
    assert len(rows) == 12 and "Lines: predicted; markers: measured." in svg
    assert np.allclose([float(row["completion_s"]) for row in rows], load("out").completion_s)


@pytest.mark.parametrize(
    ("engine", "note"), [("both", "Lines: predicted; markers: measured."), ("emulation", "Markers: measured.")]
)
def test_predictions_of_collectives_that_were_not_measured_come_from_the_model(testbeds, engine, note):
    """No straight line joins measured collectives that do not follow each other."""
    testbeds(FakeTestbeds())
    options = (
        "--set",
        "conditions.sampler=markov",
        "--set",
        "collective.count=12",
        "--set",
        "collective.emulated=every 4th",
    )
    run("--engine", engine, "--modes", "base", *options, "--out", "out", "--no-report")
    found = open_run("out")
    (one,) = configurations_of(found)
    times, _ = over_time.picture("paper", found, points_of(found, [one]), one).figure.axes[:2]
    drawn = {line.get_linestyle() == "None": line.get_xdata().tolist() for line in times.lines}
    assert drawn == {True: [0, 4, 8]} | ({False: list(range(12))} if engine == "both" else {})
    draw("out")
    assert note in Path("out", "figures", "run-over-time.svg").read_text()


@pytest.mark.parametrize(
    ("conditions", "spans"),
    [
        # A collective is drawn from half a number before its own to half a number after it, and takes that long.
        (["conditions.sampler=markov"], [(2.5, 5.5), (None, 7.5), (8.5, 9.5)]),
        # One begins every 40 ms at its number: 10 ms into collective 6 is a quarter of a number later.
        (
            ["conditions.sampler=markov", 'conditions.every="10 ms"', 'conditions.interval="40 ms"'],
            [(3, 6), (6.25, 8), (9, 10)],
        ),
    ],
)
def test_a_fault_is_drawn_from_its_instant_to_its_end_on_the_axis(testbeds, conditions, spans):
    """A controller that is killed is started again at once: it does not fail until the end."""
    testbeds(FakeTestbeds())
    struck = [("collective 3", "link s0b0-s1b0 down", 3), ("10 ms into collective 6", "link s0b1-s1b1 down", 2)]
    tables = [f'{{at="{at}",what="{what}",for="{lasts} collectives"}}' for at, what, lasts in struck]
    tables.append('{at="collective 9",what="controller killed"}')
    options = [word for one in (*conditions, f"fault=[{','.join(tables)}]") for word in ("--set", one)]
    run("--engine", "emulation", "--modes", "base", "--collectives", 12, *options, "--out", "out", "--no-report")
    times, rates, *_ = picture_of()
    took_s = load("out").set_index("collective").completion_s[6]
    assert took_s > 0.015 or spans[1][0]  # or else the fault would begin at the collective's end
    spans = [(5.5 + 0.01 / took_s if begin is None else begin, end) for begin, end in spans]
    for axes in (times, rates):
        shaded = [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches]
        assert np.allclose([(one.x0, one.x1) for one in shaded], spans)
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_few_collectives_have_ticks_at_whole_numbers_alone():
    run("--engine", "model", "--modes", "base", "--collectives", 3, "--set", FAULT % 1, "--out", "out", "--no-report")
    for axes in picture_of()[:2]:
        assert {0.0, 1.0, 2.0} <= {*axes.get_xticks()} and all(tick == int(tick) for tick in axes.get_xticks())


def spans_of(axes):
    """Return the shaded spans of a panel on its axis, and where lines stand across it."""
    shaded = [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches]
    across = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
    return [end for one in shaded for end in (one.x0, one.x1)], across


def test_every_lost_attempt_makes_a_fault_shorter_by_a_collective(testbeds):
    """Of three collectives, two attempts at the first were lost in base, and none in joint."""
    testbeds(FakeTestbeds())
    run("--engine", "emulation", "--modes", "base,joint", "--collectives", 8, "--set", FAULT % 3, "--out", "out",
        "--no-report")  # fmt: skip
    about = {"engine": "emulation", "setting": 0, "number": 1, "at_collective": 3, "what": "link s0b0-s1b0 down"}
    about |= {"detected_s": 0.0, "recovered_s": 0.1, "cost_s": 0.1, "cost_collectives": 0, "bytes_again": 9}
    rows = [about | {"mode": mode, "outcome": "recovered"} for mode in ("base", "joint")]
    for lost, spans, dashed in (([2, 0], [2.5, 5.5], [3.5]), ([2, 2], [2.5, 3.5], []), ([3, 3], [2.5, 3.5], [])):
        table = [row | {"collectives_lost": count} for row, count in zip(rows, lost, strict=True)]
        pq.write_table(pa.Table.from_pylist(table, SCHEMAS["faults"]), "out/faults.parquet")
        times, _, _, notes = picture_of()
        assert spans_of(times) == (pytest.approx(spans), dashed)
        where = "was over in base after collective 3, in joint after collective 5 (dashed: where earlier than in all)"
        lost_there = f"{where}: every attempt that was lost counts as a collective."
        assert (lost_there in " ".join(notes.split())) == bool(dashed) == ("dashed" in notes)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_fault_of_a_given_time_is_over_earlier_where_collectives_take_longer(testbeds, failed):
    """30 ms from 1 ms into collective 3: in base within that, which takes 200 ms there, in joint within a later one."""
    testbeds(FakeTestbeds())
    fault = 'fault=[{at="1 ms into collective 3",what="link s0b0-s1b0 down",for="30 ms"}]'
    run("--engine", "emulation", "--modes", "base,joint", "--collectives", 9, "--set", fault, "--out", "out",
        "--no-report")  # fmt: skip
    stored = pq.read_table("out/collectives.parquet")
    took_s = {"base": 0.2, "joint": 0.01}
    taken = [took_s[row["mode"]] if row["collective"] >= 3 else 0.03 for row in stored.to_pylist()]
    at = stored.schema.get_field_index("completion_s")
    pq.write_table(stored.set_column(at, stored.schema.field(at), pa.array(taken)), "out/collectives.parquet")
    about = {"engine": "emulation", "setting": 0, "number": 1, "at_collective": 3, "what": "link s0b0-s1b0 down"}
    about |= {"detected_s": 0.0, "recovered_s": 0.0, "cost_s": 0.1, "cost_collectives": 0, "bytes_again": 9}
    rows = [about | {"mode": mode, "until": until, "outcome": "recovered", "collectives_lost": lost}
            for mode, until, lost in (("base", 4, failed), ("joint", 7, 0))]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["faults"]), "out/faults.parquet")
    times, _, _, notes = picture_of()
    (_, end), dashed = spans_of(times)
    assert (end, *dashed) == pytest.approx((6 - 0.5 + 0.1, 3 - 0.5 + 31 / 200))
    included = ", failed attempts included," if failed else ""
    where = "was over in base in collective 3, in joint in collective 6 (dashed: where earlier than in all)"
    said = f"The fault link s0b0-s1b0 down {where}: its 30 ms count while collectives run{included} and end early where"
    assert said in " ".join(notes.split())
    assert "lost" not in notes


def struck_beyond_what_is_measured():
    """Run 20 predicted and 6 measured collectives of base; from the fourth on a link is down for 300 ms, which the
    measured ones do not reach. Return the predicted times."""
    fault = 'fault=[{at="collective 4",what="link s0b0-s1b0 down",for="300 ms"}]'
    constant = ('conditions.wan_rate="20 Gbit/s"', 'conditions.intra_rate="200 Gbit/s"', 'conditions.wan_delay="5 ms"')
    options = [word for one in (*constant, 'collective.size="96 MB"', fault) for word in ("--set", one)]
    run("--modes", "base", "--collectives", 20, "--set", "collective.emulated=6", *options, "--out", "out",
        "--no-report")  # fmt: skip
    about = {"engine": "emulation", "setting": 0, "mode": "base", "number": 1, "at_collective": 4, "until": None}
    about |= {"what": "link s0b0-s1b0 down", "detected_s": 0.0, "recovered_s": 0.0, "cost_s": 0.1, "bytes_again": 0}
    about |= {"cost_collectives": 0, "outcome": "recovered", "collectives_lost": 0, "as_before": -1}
    stored = [one for one in pq.read_table("out/faults.parquet").to_pylist() if one["engine"] == "model"]
    pq.write_table(pa.Table.from_pylist([*stored, about], SCHEMAS["faults"]), "out/faults.parquet")
    found = load("out")
    return found[found.engine == "model"].sort_values("collective").completion_s.to_numpy()


def test_a_fault_that_the_measured_collectives_do_not_reach_the_end_of_is_drawn_until_its_predicted_one(testbeds):
    """The markers end in collective 5; the span, and the link's rate 0, end 300 ms after the fault's beginning."""
    testbeds(FakeTestbeds())
    ends_s = np.cumsum(struck_beyond_what_is_measured()[4:])
    last = int(np.searchsorted(ends_s, 0.3))
    within = (0.3 - ends_s[last - 1]) / (ends_s[last] - ends_s[last - 1])
    assert 2 <= last < 12  # after the measured ones, and before the run's end
    times, rates, _, notes = picture_of()
    for axes in (times, rates):
        assert spans_of(axes)[0] == pytest.approx([3.5, 4 + last + within - 0.5])
    some = f"in the 2 measured ones of {last + 1} collectives that it hits"
    assert f"link s0b0-s1b0 down in collective 4 cost base 100 ms {some}." in notes
    explained = " ".join(faults.picture("paper", open_run("out")).figure.get_supxlabel().split())
    assert explained == f"fault 1: link s0b0-s1b0 down in collective 4; costs {some}"
    at, rate = next(line.get_data() for line in rates.lines if min(line.get_ydata()) == 0)
    assert at[np.flatnonzero(rate == 0)[-1] + 1] == pytest.approx(4 + last + within - 0.5)


def test_each_mode_is_named_where_a_fault_of_a_given_time_was_over_in_it(testbeds):
    """25 ms from the beginning of collective 3: wan and base have had them in 13 and 12 ms steps, joint in 5 ms, and
    ccl in 9 ms."""
    testbeds(FakeTestbeds())
    fault = 'fault=[{at="collective 3",what="link s0b0-s1b0 down",for="25 ms"}]'
    run("--engine", "emulation", "--modes", "wan,base,joint,ccl", "--collectives", 10, "--set", fault, "--out", "out",
        "--no-report")  # fmt: skip
    stored = pq.read_table("out/collectives.parquet")
    took_s = {"base": 0.012, "wan": 0.013, "joint": 0.005, "ccl": 0.009}
    taken = [took_s[row["mode"]] for row in stored.to_pylist()]
    at = stored.schema.get_field_index("completion_s")
    pq.write_table(stored.set_column(at, stored.schema.field(at), pa.array(taken)), "out/collectives.parquet")
    about = {"engine": "emulation", "setting": 0, "number": 1, "at_collective": 3, "what": "link s0b0-s1b0 down"}
    about |= {"detected_s": 0.0, "recovered_s": 0.0, "cost_s": 0.1, "cost_collectives": 0, "bytes_again": 9}
    untils = {"base": 6, "wan": 5, "joint": 8, "ccl": 6}  # 25 ms are 2.08, 1.92, 5 and 2.78 collectives
    rows = [about | {"mode": mode, "until": until, "outcome": "recovered", "collectives_lost": 0}
            for mode, until in untils.items()]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["faults"]), "out/faults.parquet")
    times, _, _, notes = picture_of()
    (_, end), dashed = spans_of(times)
    assert (end, dashed) == (pytest.approx(8 - 0.5), pytest.approx([3 - 0.5 + 25 / 13, 3 - 0.5 + 25 / 12]))
    ends = "wan in collective 4, in base and ccl in collective 5, in joint in collective 7 (dashed"
    assert f"The fault link s0b0-s1b0 down was over in {ends}" in " ".join(notes.split())


def test_a_predicted_fault_that_cuts_gpus_off_is_over_once_attempts_have_failed():
    """A leaf that is down for two collectives: both are attempts at collective 5, and the third one succeeds."""
    fault = 'fault=[{at="collective 5",what="switch s0l0 down",for="2 collectives"}]'
    run("--engine", "model", "--modes", "base", "--collectives", 10, "--set", fault, "--out", "out", "--no-report")
    times, *_ = picture_of()
    assert spans_of(times) == (pytest.approx([4.5, 5.5]), [])


def test_faults_are_named_once_and_modes_have_the_order_of_all_figures(testbeds):
    """Configurations whose first faults differ need other names than numbers."""
    testbeds(FakeTestbeds())
    cut, slow = (f'[{{at="collective 2",what="{what}"}}]' for what in ("link s0b0-s1b0 down", "agent 3 slow 4x"))
    sweep = ("--set", f"sweep.fault=[{cut},{slow}]", "--out", "out", "--no-report")
    run("--engine", "emulation", "--modes", "joint,base,wan", "--collectives", 4, *sweep)
    about = {"engine": "emulation", "number": 1, "at_collective": 2, "detected_s": 0.0, "recovered_s": 0.0}
    about |= {"cost_s": 0.1, "cost_collectives": 0, "bytes_again": 9, "collectives_lost": 0, "outcome": "recovered"}
    of_settings = enumerate(("link s0b0-s1b0 down", "agent 3 slow 4x"))
    rows = [about | {"setting": n, "what": what, "mode": mode}
            for n, what in of_settings for mode in ("joint", "base", "wan")]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["faults"]), "out/faults.parquet")
    found = open_run("out")
    points_of(found, configurations_of(found))  # which sets the order of modes
    figure = faults.picture("run", found).figure
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == [f"fault {name}, {mode}" for name in "ab" for mode in ("joint", "base", "wan")]
    words = "fault a: link s0b0-s1b0 down in collective 2\nfault b: agent 3 slow 4x in collective 2"
    assert figure.get_supxlabel() == words
    *_, notes = picture_of()
    assert "link s0b0-s1b0 down in collective 2 cost joint 100 ms, base 100 ms, wan 100 ms." in notes
    page = report.write("out").read_text()
    table = page[page.index("<h2>Faults</h2>") :]
    modes = re.findall(r"<td[^>]*>(base|wan|joint)</td>", table[: table.index("</table>")])
    assert modes == ["joint", "base", "wan"] * 2
    assert {text.get_text() for text in figure.axes[-1].texts} == {"100 ms"}  # as in the sentence


def test_a_collective_that_was_run_again_is_said_to_have_the_time_of_the_attempt_that_succeeded(testbeds, capsys):
    """An agent is killed in collective 3: the answer, captions, figures and report say which attempts times are of."""
    testbeds(FakeTestbeds())
    kill = 'fault=[{at="1 ms into collective 3",what="agent 3 killed"}]'
    run("--engine", "emulation", "--modes", "base,joint", "--collectives", 8, "--set", kill, "--out", "out",
        "--no-report")  # fmt: skip
    assert "attempts that succeeded" not in capsys.readouterr().out  # no attempt was lost there
    about = {"engine": "emulation", "setting": 0, "number": 1, "at_collective": 3, "what": "agent 3 killed"}
    about |= {"detected_s": 0.06, "recovered_s": 0.09, "cost_s": 0.08, "cost_collectives": 0, "bytes_again": 9}
    rows = [about | {"mode": mode, "collectives_lost": 1, "outcome": "recovered"} for mode in ("base", "joint")]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["faults"]), "out/faults.parquet")
    said = "attempts that succeeded: failed ones before them are in the costs of faults alone."
    run("--resume", "out", "--no-report")
    printed = capsys.readouterr().out
    assert said in printed.partition("fidelity:")[0] and "(killed agents: recovered when new ones" in printed
    *_, notes = picture_of()
    assert said in notes
    for collective, is_said in ((3, True), (2, False)):
        draw("out", collective=collective)
        timeline = re.sub("<[^>]*>|\\s+", " ", Path("out", "figures", "run-timeline.svg").read_text())
        assert ("the one that succeeded is drawn" in re.sub(" +", " ", timeline)) == is_said
    title = " ".join(faults.picture("run", open_run("out")).figure.get_suptitle().split())
    assert title == "1 fault in 2 modes: 2 collectives lost, 18 bytes sent again, those of failed attempts included"
    page = report.write("out").read_text()
    assert said in page and "Killed agents: recovered when new ones had started" in page


def test_of_a_single_round_the_marker_is_whole_and_the_axis_has_its_number_alone(testbeds):
    testbeds(FakeTestbeds())
    fault = 'fault=[{at="10 ms into collective 0",what="link s0b0-s1b0 down"}]'
    run("--engine", "emulation", "--modes", "base", "--collectives", 1, "--set", fault, "--out", "out", "--no-report")
    times, rates, _, notes = picture_of()
    shown = [tick for tick in rates.get_xticks() if rates.get_xlim()[0] <= tick <= rates.get_xlim()[1]]
    assert shown == [0] and "as far into the width of a collective" in notes
    share = 0.01 / load("out").completion_s[0]
    (begin, _), _ = spans_of(times)
    assert begin == pytest.approx(-0.5 + share)
    assert_whole(times)


def test_a_clock_begins_at_0_and_the_first_marker_is_whole(testbeds):
    testbeds(FakeTestbeds())
    options = ("conditions.sampler=ar1", 'conditions.every="10 ms"', 'conditions.interval="200 ms"')
    words = [word for one in options for word in ("--set", one)]
    run("--engine", "emulation", "--modes", "base", "--collectives", 6, *words, "--out", "out", "--no-report")
    times, _, clock, _ = picture_of()
    ticks = [tick for tick in clock.get_xticks() if tick <= clock.get_xlim()[1]]
    assert ticks[0] == 0 and len(ticks) > 2
    assert times.get_xlim() == (pytest.approx(0, abs=0.1), 6)
    assert_whole(times)


def assert_whole(axes):
    """No marker of a panel reaches beyond it."""
    radius = max(line.get_markersize() for line in axes.lines) / 2 * axes.figure.dpi / 72
    points = [point for line in axes.lines for point in axes.transData.transform(line.get_xydata())]
    assert points
    for x, y in points:
        assert axes.bbox.x0 <= x - radius and x + radius <= axes.bbox.x1 and y + radius <= axes.bbox.y1


def test_configurations_that_are_not_drawn_are_named_and_one_that_is_asked_for_is_drawn():
    ages = ",".join(f'"stale {age}"' for age in range(1, 7))
    modelled("conditions.sampler=markov", f"sweep.control.knowledge=[{ages}]")
    names = {path.stem for path in Path("out", "figures").glob("*over-time.svg")}
    assert names == {"run-over-time", *(f"run-{index}-over-time" for index in (1, 2, 3))}
    caption = re.search(r"<dc:title>(.*?)</dc:title>", drawn()[1], re.DOTALL)[1]
    said = "Of 6 configurations the first 4 in the order of the sweep are drawn. Left out: "
    assert said in caption and caption.index("stale 5; ") < caption.index("stale 6.")
    draw("out", setting=5)
    assert Path("out", "figures", "run-5-over-time.svg").exists()


def test_the_picture_of_the_fabric_tells_which_links_are_down_and_names_parallel_ones():
    wan = 'fabric.wan={links=[["s0b0","s1b0"],["s0b0","s1b0"],["s0b0","s1b0"]]}'
    modelled("fabric.border_routers=1", wan, 'conditions.wan_rate="25 Gbit/s"', FAULT % 3, count=6)
    found = open_run("out")
    one, *_ = every = configurations_of(found)
    shown = collectives_of(found, points_of(found, every), one, number=3)
    figure = fabric.picture("paper", shown).figure
    explained = " ".join(figure.get_supxlabel().split())
    assert "Dotted: down." in explained and "(#2): the second link between the same two." in explained
    for axes in figure.axes[: len(shown)]:
        words = [text.get_text() for text in axes.texts]
        assert words.count("down") == 2 and words.count("25 (#2)") == 2 and words.count("(#3)") == 2
    before = collectives_of(found, points_of(found, every), one, number=2)
    figure = fabric.picture("paper", before).figure
    assert "down" not in [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "Dotted: down" not in figure.get_supxlabel()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 4 * 10**9), st.integers(0, 10**9 - 1), st.floats(0, 1e5), st.floats(4, 1e7))
def test_times_of_day_above_a_figure_are_round_and_where_they_are(begin_s, rest_ns, first_s, lasts_s):
    """Each is as far from the trace's beginning as its place says, by the calendar of Python."""
    begins_ns = begin_s * 10**9 + rest_ns
    found = times_of_day(begins_ns, first_s, first_s + lasts_s)
    assert len(found) <= 7
    for at_s, text in found.items():
        assert first_s - 1e-3 <= at_s <= first_s + lasts_s + 1e-3
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=begin_s, microseconds=rest_ns / 1e3 + at_s * 1e6)
        whole = round(instant.timestamp())
        assert abs(instant.timestamp() - whole) < 1e-3
        shown = datetime.fromtimestamp(whole, UTC)
        assert text.split()[-1] == shown.strftime("%H:%M:%S" if text.count(":") == 2 else "%H:%M")
        assert len(text.split()) == 1 or text.split()[0] == f"{shown:%m-%d}"
    if lasts_s >= 86_400:
        assert len(found) >= 1


def test_a_trace_with_dates_has_the_time_of_day_above_its_figure(tmp_path):
    rows = "".join(f"{60 * k},{link},{20 + k % 7} Gbit/s\n" for k in range(60) for link in ("s0b0>s1b0", "s1b0>s0b0"))
    (tmp_path / "trace.csv").write_text(f"# begins 2026-01-01T05:00:00Z\ntime,link,rate\n{rows}")
    (tmp_path / "mine.toml").write_text(
        '[fabric]\ngpus = [2, 2]\nborder_routers = 1\n[conditions]\nsampler = "trace"\ntrace = "trace.csv"\n'
        'trace_step = "1 min"\n[collective]\ncount = 60\n[run]\nmodes = ["base", "ccl"]\n'
    )
    run("mine.toml", "--engine", "model", "--out", "out")
    drawn = Path("out/figures/mine-over-time.svg").read_text()
    assert "time of day, UTC, from 2026-01-01 05:00:00 on" in drawn
    assert "05:10" in drawn and "05:50" in drawn and "time in the trace" not in drawn
