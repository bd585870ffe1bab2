"""Figures of programs: the steps of a sweep, and the utilisation of WAN links over time."""

import csv
from typing import Any

import pytest

from analysis.figures import program
from analysis.figures.style import MODE_STYLES, name_modes

RATES_GBPS = (10, 25, 50, 100)


def steps(values: list[dict[str, Any]], times_s: list[float | None], more: int = 3) -> Any:
    """Return the axes of the figure of these runs, the first of 3 steps and all others of `more`, and the texts of its
    legend."""
    counts = [3] + [more] * (len(values) - 1)
    figure = program.steps(
        list(map(program.StepsOfRun, values, times_s, counts)), "4 GPUs, 10 us, command ./step"
    ).figure
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return figure.axes[0], texts


def test_step_times_are_over_a_numeric_axis_with_a_title_and_units() -> None:
    values = [{"conditions.wan_rate": f"{rate} Gbit/s"} for rate in RATES_GBPS]
    axes, texts = steps(values, [0.08, 0.032, None, 0.008])
    assert axes.get_xscale() == "log" and texts == []
    (line,) = axes.lines
    assert line.get_xdata() == pytest.approx([10e9, 25e9, 100e9])
    assert line.get_ydata() == pytest.approx([80, 32, 8])
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"{rate} Gbit/s" for rate in RATES_GBPS]
    assert axes.get_xlabel() == "WAN bandwidth"
    assert axes.get_ylabel().replace("\n", " ") == "step time (ms), median of 3 steps, each on its slowest rank"
    assert (line.get_linestyle(), line.get_marker()) == ("-", "o")
    assert axes.figure.get_suptitle() == "Step time of a program\n4 GPUs, 10 µs, command ./step"
    axes, _ = steps([{"conditions.wan_rate": f"{rate} Gbit/s"} for rate in (10, 20, 30)], [0.3, 0.2, 0.1], 5)
    assert (axes.get_xscale(), axes.lines[0].get_linestyle()) == ("linear", "-")
    assert "median of 3 to 5 steps" in axes.get_ylabel().replace("\n", " ")


def test_computing_is_drawn_within_the_steps_and_every_marker_is_whole() -> None:
    """Rank 3 computes for 50 ms a step. Its median step is shorter than that of each step's slowest rank."""
    runs = [
        program.StepsOfRun({"conditions.wan_rate": f"{gbps} Gbit/s"}, step_s, 10, (3, step_s - 0.004, 0.05))
        for gbps, step_s in ((5, 0.13), (10, 0.09), (100, 0.054))
    ]
    picture = program.steps(runs, "")
    axes = picture.figure.axes[0]
    step, part = axes.lines
    rows = csv.DictReader(picture.data.splitlines())
    assert [(row["computing_rank"], float(row["computing_s"])) for row in rows] == [("3", 0.05)] * 3
    assert step.get_ydata() == pytest.approx([130, 90, 54]) and part.get_ydata() == pytest.approx([50, 50, 50])
    assert part.get_markerfacecolor() == "none" != step.get_markerfacecolor()
    axes.figure.draw_without_rendering()
    for line in axes.lines:
        radius = line.get_markersize() / 2 * axes.figure.dpi / 72
        for x, y in axes.transData.transform(line.get_xydata()):
            assert axes.bbox.x0 <= x - radius and x + radius <= axes.bbox.x1 and y + radius <= axes.bbox.y1


def test_modes_that_take_the_same_steps_are_both_seen() -> None:
    name_modes([])  # those of an earlier test have other widths
    values = [{"conditions.wan_delay_s": delay_s, "mode": mode} for delay_s in (0.001, 0.005) for mode in MODE_STYLES]
    axes, texts = steps(values, [0.1] * len(values))
    assert texts == [*MODE_STYLES]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 ms", "5 ms"]
    assert [line.get_color() for line in axes.lines] == [style.colour for style in MODE_STYLES.values()]
    widths = [line.get_markersize() for line in axes.lines]
    assert widths == sorted(widths, reverse=True) and len({*widths}) == len(widths)


@pytest.mark.parametrize("key", ["run.seed", "fabric.routing"])
def test_steps_of_names_are_points_and_a_quantity_is_the_axis_wherever_it_is_swept(key: str) -> None:
    names = (1, 2, 30) if key == "run.seed" else ("single", "ecmp", "spray")
    axes, _ = steps([{key: name} for name in names], [0.1, 0.2, 0.3])
    (line,) = axes.lines
    assert (line.get_linestyle(), [*line.get_xdata()]) == ("None", [0, 1, 2])
    values = [{"fabric.gpus": gpus, key: name} for gpus in ("4", "8") for name in names]
    axes, texts = steps(values, [0.1] * 6)
    assert [[*line.get_xdata()] for line in axes.lines] == [[4, 8]] * 3
    assert axes.get_xlabel() == "GPUs" and len({*texts}) == 3


@pytest.mark.parametrize(("more", "shown"), [(9_014, 100), (50_000, 100.4)])
def test_a_packet_that_counts_early_is_no_use_but_more_is_never_hidden_and_the_legend_is_outside(
    more: int, shown: float
) -> None:
    at_s, full = [0.0, 0.01, 0.02, 0.03], 12_500_000  # bytes in 10 ms of 10 Gbit/s
    sent = [0, full // 2, full // 2 + full + more, full // 2 + 2 * (full + more)]
    samples = [(round(t * 1e9), [count], [10e9 * t / 8]) for t, count in zip(at_s, sent, strict=True)]
    rank = {"rank": 0, "gpu": "g0", "status": 0, "end_s": 0.03}
    run = {"run_s": 0.03, "ranks": [rank], "links": [{"link": "s0b0>s1b0"}]}
    figure = program.picture(run, samples).figure
    assert figure.get_suptitle() == "WAN links and ranks of a program"
    figure.draw_without_rendering()
    above = figure.axes[0]
    (stairs,) = above.patches
    assert [*stairs.get_data().values] == pytest.approx([50, shown, shown])
    assert above.get_ylim() == (0, pytest.approx(shown))
    assert above.get_legend().get_window_extent().y0 >= above.get_window_extent().y1


@pytest.mark.filterwarnings("error")
def test_a_server_that_is_ended_after_the_run_has_not_failed_and_leaves_room_for_the_axes() -> None:
    samples = [(round(t * 1e9), [round(t * 1e6)], [t * 1e9]) for t in (0.0, 0.1, 0.3, 1.4)]
    ranks = [
        {"rank": 0, "gpu": "g0", "status": -15, "end_s": 1.4, "stopped": True},
        {"rank": 1, "gpu": "g2", "status": 0, "end_s": 0.3, "stopped": False},
        {"rank": 2, "gpu": "g3", "status": 1, "end_s": 0.3, "stopped": False},
    ]
    picture = program.picture({"run_s": 0.3, "ranks": ranks, "links": [{"link": "s0b0>s1b0"}]}, samples)
    assert picture.svg.startswith("<?xml")
    above, below = picture.figure.axes
    (stairs,) = above.patches
    assert max(stairs.get_data().edges) == pytest.approx(300)
    assert [bar.get_width() for bar in below.patches] == pytest.approx([300] * 3)
    colours = [bar.get_facecolor() for bar in below.patches]
    assert colours[0] == colours[1] != colours[2]
    assert [bar.get_hatch() for bar in below.patches] == [None, None, "///"]  # seen in grey, too
    assert "Hatched: ranks that failed." in picture.figure.get_supxlabel().replace("\n", " ")


def test_the_parts_of_a_step_are_stacked_to_its_time_in_each_run() -> None:
    runs = {"base": (0.002, 0.014, 0.001), "joint": (0.002, 0.004, 0.0)}
    results: list[tuple[dict[str, Any], dict[str, float] | None]] = [
        ({"mode": mode}, dict(zip(("computing_s", "exposed_s", "waiting_s"), parts_s, strict=True)))
        for mode, parts_s in runs.items()
    ]
    for (_, means), parts_s in zip(results, runs.values(), strict=True):
        assert means is not None
        means["step_s"] = sum(parts_s)
    made = program.parts([*results, ({"mode": "wan"}, None)], "4 GPUs, 10 us")
    axes = made.figure.axes[0]
    ends = {
        bar.get_y(): max(one.get_x() + one.get_width() for one in axes.patches if one.get_y() == bar.get_y())
        for bar in axes.patches
    }
    assert sorted(ends.values(), reverse=True) == pytest.approx([17, 6])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["base", "joint"]
    assert [text.get_text() for text in made.figure.legends[0].get_texts()] == ["computing", "exposed", "waiting"]
    assert len(made.data.splitlines()) == 3 and made.data.startswith("mode,step_s,computing_s,exposed_s,waiting_s\n")


@pytest.mark.parametrize(
    ("what", "over_s", "recovered_s", "end_ms"),
    [
        ("link s0b0-s1b0 down", 0.02, 0.001, 20),
        ("link s0b0-s1b0 down", None, 0.001, 30),
        ("controller killed", None, 0.008, 18),  # a new one is started at once
        ("controller killed", None, None, 30),
        ("agent 1 killed", None, None, 30),  # a rank stays dead
    ],
)
def test_a_fault_is_shaded_while_it_is_in_force(
    what: str, over_s: float | None, recovered_s: float | None, end_ms: float
) -> None:
    samples = [(round(t * 1e7), [t * 10_000_000], [10e9 * t / 100 / 8]) for t in range(4)]
    rank = {"rank": 0, "gpu": "g0", "status": 0, "end_s": 0.03}
    fault = {"what": what, "began_s": 0.01, "over_s": over_s, "recovered_s": recovered_s}
    run = {"run_s": 0.03, "ranks": [rank], "links": [{"link": "s0b0>s1b0"}], "faults": [fault]}
    above, below = program.picture(run, samples).figure.axes
    for axes in (above, below):
        (span,) = [patch for patch in axes.patches if patch.get_alpha() == 0.12]
        ends = span.get_extents().transformed(axes.transData.inverted())
        assert (ends.x0, ends.x1) == pytest.approx((10, end_ms))


def test_figures_of_the_runs_of_a_sweep_tell_in_what_these_differ() -> None:
    rank = {"rank": 0, "gpu": "g0", "status": 0, "end_s": 0.03}
    run = {"run_s": 0.03, "ranks": [rank], "links": [{"link": "s0b0>s1b0"}]}
    samples = [(round(t * 1e9), [round(t * 1e9)], [10e9 * t / 8]) for t in (0.0, 0.01, 0.02, 0.03)]
    found = []
    for delay_s, mode in ((0.001, "base"), (0.02, "base"), (0.02, "wan")):
        made = program.picture(run | {"values": {"conditions.wan_delay_s": delay_s, "mode": mode}}, samples)
        found.append(made.figure.get_suptitle().splitlines()[1])
        assert found[-1] in made.caption
    assert found == [f"WAN link delay {words}" for words in ("1 ms, mode base", "20 ms, mode base", "20 ms, mode wan")]
