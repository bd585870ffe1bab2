"""What a figure draws is seen whole: nothing is cut off at an edge, and no label covers another."""

from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Affine2D

from analysis.figures import calendar, fabric
from analysis.figures.output import canvas, log_ticks
from scenarios.api import plot
from tests.fakes.stored import write_run

PAGE = 7.2  # inches of the text of a page


def drawn(figure: Figure) -> Figure:
    figure.draw_without_rendering()
    return figure


def overlapping(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Return the pairs of these texts of a drawn figure of which one covers a part of the other."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_visible() and text.get_text()]
    return [(one, other) for (one, box), (other, own) in combinations(boxes, 2) if box.overlaps(own)]


def swept_jobs(count: int, theirs: int = 1) -> list[list[dict]]:
    """Return values of `sweep.job`, which differ in the size of the second job."""
    others = [{"name": f"theirs-{number}", "ranks": [2 + number, 6 + number]} for number in range(theirs)]
    return [
        [{"name": "mine", "ranks": [0, 1, 4, 5], "kind": "alltoall"}, *({**one, "size": f"{at} MB"} for one in others)]
        for at in range(1, count + 1)
    ]


def test_labels_wider_than_the_figure_are_wrapped_in_its_legend(tmp_path):
    jobs = swept_jobs(3, theirs=2)
    for job in jobs:
        job.append({"name": "a-third-job-with-a-long-name", "ranks": [0, 3, 7], "kind": "alltoall", "size": "70 MB"})
    run = write_run(
        tmp_path / "run", overrides={"sweep.job": jobs, "run.modes": ["base"]}, modelled=9, engines=("model",)
    )
    figure = drawn(plot(run, "cdf"))
    (legend,) = figure.legends
    width, height = figure.bbox.size
    parts = [*legend.get_texts(), *legend.legend_handles, legend]
    assert any("\n" in text.get_text() for text in legend.get_texts()) and len(legend.legend_handles) == 3
    for box in (part.get_window_extent() for part in parts):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
    assert overlapping(legend.get_texts()) == []
    assert legend.get_window_extent().y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)


@pytest.mark.parametrize(("count", "theirs"), [(3, 2), (6, 2), (11, 1)])
def test_the_jobs_of_many_configurations_fit_a_page_and_their_labels_do_not_overlap(tmp_path, count, theirs):
    overrides = {"sweep.job": swept_jobs(count, theirs), "run.modes": ["base"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=9, engines=("model",))
    figure = drawn(plot(run, "job_times"))
    every = [axes for axes in figure.axes if axes.axison]
    assert figure.get_figwidth() <= PAGE and len(every) == 1 + theirs
    is_flat = bool(every[0].get_xlabel())
    ticks = [axes.get_yticklabels() if is_flat else axes.get_xticklabels() for axes in every]
    assert [len(of_axes) for of_axes in ticks] == [count] * len(every)
    for axes in every:  # a label along an axis is not longer than it
        label = axes.yaxis.label.get_window_extent()
        assert is_flat or label.height <= axes.get_window_extent().height
    labels = [*(axes.title for axes in every), *(text for of_axes in ticks for text in of_axes)]
    assert overlapping(labels) == []
    for box in (text.get_window_extent() for text in labels):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width
    for one, other in combinations([axes.get_tightbbox() for axes in every], 2):
        assert not one.overlaps(other)


def test_a_comparison_of_both_engines_and_a_timeline_are_no_wider_than_a_page(tmp_path):
    run = write_run(tmp_path / "run", overrides={"run.modes": ["base", "joint"]}, modelled=40, emulated=4)
    for kind in ("comparison", "timeline"):
        figure = drawn(plot(run, kind))
        assert figure.get_figwidth() <= PAGE and figure.get_figheight() <= 1.4 * PAGE


def test_all_panels_of_a_ranking_have_one_kind_of_scale_which_is_told(tmp_path):
    """Of 24 GPUs times differ by more than a logarithmic axis needs, of 4 GPUs they do not."""
    overrides = {"collective.kind": "allreduce", "collective.size": "64 MB", "run.modes": ["base"]}
    overrides |= {"conditions.wan_delay": "10 ms", "conditions.wan_rate": "40 Gbit/s", "sweep.fabric.gpus": [4, 24]}
    names = [
        "ring",
        "direct",
        "tree",
        "hierarchical",
        "hierarchical-direct",
        "double-tree",
        "halving-doubling",
        "bruck",
    ]
    overrides["sweep.collective.algorithm"] = names
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    figure = drawn(plot(run, "ranking"))
    times = [
        [x for line in axes.lines if line.get_marker() != "None" for x in line.get_xdata()] for axes in figure.axes
    ]
    ratios = [max(of_axes) / min(of_axes) for of_axes in times]
    assert len(ratios) == 2 and max(ratios) > 8 > min(ratios)
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    assert "logarithmic" in figure.axes[-1].get_xlabel()


def beside_each_other(axes: Axes) -> list[tuple[str, str]]:
    """Return the labels of ticks of a drawn panel that cover each other."""
    return [pair for labels in (axes.get_xticklabels(), axes.get_yticklabels()) for pair in overlapping(labels)]


@pytest.mark.parametrize("inches", [2.0, 3.3, 5.2, 8.0])
@pytest.mark.parametrize("ends", [(22, 105), (1, 7), (30, 210), (0.5, 40), (1, 3e4)])
def test_the_labels_of_a_logarithmic_axis_have_room_and_are_the_roundest(ends, inches):
    """Of a short axis each number would be labelled: those up to 100 run together."""
    with canvas(inches, 2.0) as figure:
        axes = figure.subplots()
        axes.plot(ends, ends, "o")
        axes.set_xscale("log")
        axes.set_yscale("log")
        log_ticks(axes.xaxis)
        log_ticks(axes.yaxis)
    drawn(figure)
    assert beside_each_other(axes) == []
    labels = [label.get_text() for label in axes.get_xticklabels()]
    tens = [f"{10**power:,}" for power in range(5) if ends[0] <= 10**power <= ends[1]]
    assert len(labels) >= 2 and ({*tens} <= {*labels} or len(tens) > 3)


@pytest.mark.parametrize("most", [6, 9])
def test_the_ticks_of_swept_sizes_have_room_on_axes_of_any_width(tmp_path, most):
    overrides = {
        "sweep.collective.size": [f"{2**power} MB" for power in range(most)],
        "sweep.collective.algorithm": ["ring", "hierarchical", "hierarchical-direct"],
        "collective.kind": "allreduce",
        "run.modes": ["base"],
    }
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    for kind in ("comparison", "busbw"):
        assert [pair for axes in drawn(plot(run, kind)).axes for pair in beside_each_other(axes)] == []


def test_the_rates_of_links_side_by_side_do_not_run_together(tmp_path):
    wan = {
        "routers": ["A", "B", "C"],
        "links": [["s0b0", "A"], ["s1b0", "B"], ["s2b0", "C"], ["A", "B"], ["B", "C"], ["A", "C"]],
    }
    overrides = {"fabric.gpus": [4, 4, 4], "fabric.border_routers": 1, "fabric.wan": wan, "collective.kind": "alltoall"}
    overrides |= {"conditions.wan_rate": "20 Gbit/s", "run.modes": ["base"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    (axes, *_) = drawn(plot(run, "fabric")).axes
    rates = [text for text in axes.texts if text.get_text() == "20"]
    assert len(rates) == 12 and overlapping(rates) == []
    gap = 0.3 * rates[0].get_window_extent().width  # about half a digit
    boxes = [text.get_window_extent().padded(gap / 2, 0) for text in rates]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("gbps", "highest"),
    [
        ([10, 40, 17, 33, 1000, 1000], 40),  # two links without a limit
        ([10, 40, 17, 1000, 1000, 1000, 1000], 40),  # most links have none
        ([1, 40, 40, 40], 40),  # a slow link
        ([10, 20, 70], 70),
        ([25, 25], 25),
    ],
)
def test_a_scale_of_rates_ends_at_those_that_limit(gbps, highest):
    assert fabric.highest_shown([1e9 * one for one in gbps]) == 1e9 * highest


def test_links_without_a_limit_spoil_no_colours_and_arrows_end_outside_of_nodes(tmp_path):
    """Cities have names that make their diamonds large, and access links of 1,000 Gbit/s, which are no limit."""
    cities = ["Berlin", "Paris", "Madrid"]
    access = [[f"s{site}b0", city] for site, city in enumerate(cities)]
    between = [list(pair) for pair in combinations(cities, 2)]
    rates = {f"{a}>{b}": 1000 for pair in access for a, b in (pair, pair[::-1])}
    both = [f"{a}>{b}" for pair in between for a, b in (pair, pair[::-1])]
    rates |= {name: 10 + 6 * place for place, name in enumerate(both)}
    trace = tmp_path / "trace.csv"
    trace.write_text("time,link,rate\n" + "".join(f"0,{name},{rate} Gbit/s\n" for name, rate in rates.items()))
    overrides = {"fabric.gpus": [4, 4, 4], "fabric.border_routers": 1, "run.modes": ["base", "joint"]}
    overrides |= {"fabric.wan": {"routers": cities, "links": [*access, *between]}, "collective.kind": "alltoall"}
    overrides |= {"conditions.sampler": "trace", "conditions.trace": str(trace), "conditions.intra_rate": "99 Gbit/s"}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=1, engines=("model",))
    figure = drawn(plot(run, "fabric"))
    axes, *_ = figure.axes
    bar = next(one for one in figure.axes if "WAN link" in one.get_xlabel())
    assert bar.get_xlim() == (0, 40) and "lightest: up to 1,000" in bar.get_xlabel()
    heads = next(one for one in axes.collections if type(one) is PolyCollection)
    tips = axes.transData.transform([path.vertices[0] for path in heads.get_paths()])
    whole = axes.transData.transform(np.concatenate([path.vertices for path in heads.get_paths()]))
    assert len(tips) >= 12
    nodes = [one for one in axes.collections if isinstance(one, PathCollection) and len(one.get_sizes())]
    shapes = [
        one.get_paths()[0].transformed(Affine2D(one.get_transforms()[0])).transformed(Affine2D().translate(*middle))
        for one in nodes
        for middle in axes.transData.transform(one.get_offsets())
    ]
    boxes = [text.get_bbox_patch().get_window_extent() for text in axes.texts if text.get_text() in ("s0b0", "s1b0")]
    assert len(shapes) == 15 and len(boxes) == 2
    assert not any(shape.contains_points(whole).any() for shape in shapes)
    assert not any(box.contains(x, y) for box in boxes for x, y in tips)
    numbers = [text for text in axes.texts if text.get_text().replace(",", "").isdigit()]
    assert numbers and all(text.get_bbox_patch().get_facecolor()[3] >= 0.8 for text in numbers)


def test_a_white_edge_covers_no_bar_of_a_timeline(tmp_path):
    """Of 32 pieces in flight at once, a bar has a lane that is lower than its edge would be."""
    overrides = {"fabric.gpus": 2, "collective.kind": "allreduce", "collective.size": "64 MB", "run.modes": ["base"]}
    overrides |= {"collective.pieces": 32, "conditions.wan_delay": "10 ms", "conditions.wan_rate": "40 Gbit/s"}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    axes, *_ = drawn(plot(run, "timeline")).axes
    bars = next(one for one in axes.collections if len(one.get_paths()) > 100)
    points = axes.figure.dpi / 72
    sides = [path.get_extents(bars.get_transform()) for path in bars.get_paths()]
    least = [min(box.width, box.height) / points for box in sides]
    is_white = [tuple(edge[:3]) == (1, 1, 1) for edge in bars.get_edgecolors()]
    assert len(least) == len(is_white) and min(least) < 0.7
    assert all(size > 3 * bars.get_linewidths()[0] for size, white in zip(least, is_white, strict=True) if white)


@pytest.mark.parametrize("failing", [{}, {3: 0.01, 7: 0.01}])
def test_the_calendar_of_a_round_marks_the_instant_at_which_a_link_goes_down(failing):
    admitted = {"job": "mine", "outcome": "admitted", "sentence": "mine is admitted", "transfers": [0, 1]}
    admitted |= {"start_s": 0.0, "due_s": 0.7, "edges_s": [0.0, 0.2], "rates_bps": {"g0>g4": [8e9]}}
    configuration = SimpleNamespace(admission=[admitted], title="a round", label="a round")
    about = {"configuration": configuration, "number": 0, "mode": "base", "measured": True, "flows": []}
    one = SimpleNamespace(**about, failing=failing, transfers=[SimpleNamespace(end_s=0.2)])
    figure = calendar.picture("run", [one]).figure
    (axes,) = figure.axes
    down = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert axes.get_xlabel().endswith("(ms)") and down == ([10] if failing else [])
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("a link goes down" in words) is bool(failing) and "deadline" in words


def lightness(colour):
    """Return the lightness of a colour in grey, CIE L*, 0 to 100."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def test_bars_of_a_timeline_that_are_filled_in_part_are_seen_in_grey(tmp_path):
    """Every block's bar, also where it is not filled, is darker than the rows behind it, and its edge than both."""
    overrides = {
        "fabric.routing": "ecmp",
        "collective.kind": "alltoall",
        "run.modes": ["base"],
        "fabric.grain": "physical",
    }
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    axes, *_ = drawn(plot(run, "timeline")).axes
    bars, empty, *_ = (one for one in axes.collections if isinstance(one, PolyCollection))
    row = min(lightness(patch.get_facecolor()) for patch in axes.patches)
    faces, edges = ([tuple(each[:3]) for each in colours] for colours in (bars.get_facecolor(), bars.get_edgecolor()))
    assert len(empty.get_paths()) > 0
    for face, edge in {*zip(faces, edges, strict=True)}:
        unfilled = tuple((1 - empty.get_alpha()) * part + empty.get_alpha() for part in face)
        assert lightness(face) + 4 < lightness(unfilled) < row - 4
        assert lightness(edge) < lightness(face) - 4 or edge == (1.0, 1.0, 1.0)


def test_the_legend_of_a_calendar_names_the_routers_of_each_promised_area():
    """Areas of several transfers over the same routers have the same look, others have another one."""
    ways = {"mine": ("g0", ["s0b0>s1b0", "s0b1>s1b1"]), "other": ("g1", ["s0b1>s1b1", "s0b0>s1b1"])}
    admitted = [
        {"job": job, "outcome": "admitted", "sentence": f"{job} is admitted", "transfers": [0, 1], "start_s": 0.0,
         "due_s": 0.7, "edges_s": [0.0, 0.2], "rates_bps": {f"{gpu}>{way}>g4": [8e9] for way in over}}
        for job, (gpu, over) in ways.items()
    ]  # fmt: skip
    admitted[0]["rates_bps"]["g0>s0b1>s1b0>g4"] = [0.0]  # chosen in no interval
    configuration = SimpleNamespace(admission=admitted, title="a round", label="a round")
    about = {"configuration": configuration, "number": 0, "mode": "base", "measured": True, "flows": []}
    figure = calendar.picture("run", [SimpleNamespace(**about, failing={}, transfers=[])]).figure
    named = {
        text.get_text().removeprefix("promised over "): (handle.get_facecolor(), handle.get_hatch())
        for text, handle in zip(figure.legends[0].get_texts(), figure.legends[0].legend_handles, strict=True)
        if "promised" in text.get_text()
    }
    assert [*named] == ["s0b0 → s1b0", "s0b1 → s1b1", "s0b0 → s1b1"] and len({*named.values()}) == 3
    for axes, (_, over) in zip(figure.axes, ways.values(), strict=True):
        areas = [(patch.get_facecolor(), patch.get_hatch()) for patch in axes.patches if patch.get_fill()]
        assert areas == [named[way.replace(">", " → ")] for way in over]
