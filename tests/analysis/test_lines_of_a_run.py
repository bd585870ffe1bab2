"""One line has one look in all figures of a run, also in grey, and the budget figure has every number that it tells."""

import re
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from scenarios.api import load, plot
from tests.fakes.stored import write_run

ALGORITHMS = ["ring", "hierarchical", "direct", "tree", "bruck", "halving-doubling"]


def looks(figure: Figure) -> dict[str, tuple[str, str, str]]:
    """Return the colour, the marker and the dashes of each entry of a figure's legend by its label."""
    (legend,) = figure.legends
    handles = zip(legend.get_texts(), legend.get_lines(), strict=True)
    return {
        text.get_text(): (one.get_color(), one.get_marker(), str(one._unscaled_dash_pattern)) for text, one in handles
    }


def test_an_algorithm_looks_the_same_in_all_figures_of_a_run_and_their_axis_has_one_name(tmp_path):
    overrides = {"collective.kind": "allreduce", "run.modes": ["base"], "collective.budget": "20 ms"}
    overrides |= {"sweep.collective.algorithm": ALGORITHMS[:4], "sweep.collective.size": ["1 MB", "8 MB", "64 MB"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=20, engines=("model",))
    figures = {kind: plot(run, kind) for kind in ("comparison", "busbw", "budget", "cdf")}
    shown = {kind: {name: looks(figure)[name] for name in ALGORITHMS[:4]} for kind, figure in figures.items()}
    assert all(one == shown["comparison"] for one in shown.values())
    named = {figures[kind].axes[-1].get_xlabel() for kind in ("comparison", "busbw", "budget")}
    assert named == {"size"}
    for kind in ("comparison", "busbw", "budget"):
        figures[kind].draw_without_rendering()
        labels = [label.get_text() for label in figures[kind].axes[-1].get_xticklabels()]
        assert labels == ["1 MB", "8 MB", "64 MB"], kind


def test_curves_of_ordered_values_differ_in_dashes_and_markers_not_in_shades_alone(tmp_path):
    overrides = {"run.modes": ["joint"], "conditions.sampler": "markov", "conditions.mean_stay": 4}
    overrides |= {"sweep.control.knowledge": ["oracle", *(f"stale {age}" for age in (1, 2, 3, 4, 6))]}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=60, engines=("model",)), "cdf")
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
    assert len(curves) == 6
    for one, other in combinations(curves, 2):
        assert one.get_marker() != other.get_marker() not in ("", "None")
    dashes = [str(line._unscaled_dash_pattern) for line in curves]
    assert all(one != other for one, other in pairwise(dashes))
    assert {(marker, dash) for _, marker, dash in looks(figure).values()} == {
        (line.get_marker(), str(line._unscaled_dash_pattern)) for line in curves
    }


@pytest.mark.parametrize("is_fixed", [False, True])
def test_the_budget_figure_has_a_number_for_each_point_and_names_bars_only_where_it_has_some(tmp_path, is_fixed):
    overrides = {"collective.kind": "allreduce", "run.modes": ["base"], "collective.budget": "150 ms"}
    overrides |= {"sweep.collective.algorithm": ["ring", "hierarchical"], "sweep.fabric.gpus": [4, 8]}
    overrides |= {"collective.size": "64 MB", "sweep.conditions.wan_delay": ["1 ms", "5 ms", "20 ms"]}
    if is_fixed:
        overrides |= {"conditions.wan_rate": "40 Gbit/s", "conditions.intra_rate": "100 Gbit/s"}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=20, engines=("model",))
    figure = plot(run, "budget")
    figure.draw_without_rendering()
    means_s = load(run).groupby("setting").completion_s.mean()
    written = [text for axes in figure.axes for text in axes.texts]
    number = re.compile(r"[+−][\d.]+")
    assert len(written) == len(means_s) == 12 and all(number.fullmatch(text.get_text()) for text in written)
    left_ms = sorted(float(text.get_text().replace("−", "-")) for text in written)
    assert left_ms == pytest.approx(sorted(150 - 1e3 * means_s), abs=1)
    boxes = [(axes, text.get_window_extent()) for axes in figure.axes for text in axes.texts]
    assert all(box.y0 >= axes.get_window_extent().y1 for axes, box in boxes)  # above all lines
    assert not any(one.overlaps(other) for (_, one), (_, other) in combinations(boxes, 2))
    bars = {
        (number, round(float(one.get_transform().transform(segment)[0][0]), 2))
        for number, axes in enumerate(figure.axes)
        for one in axes.collections
        if isinstance(one, LineCollection)
        for segment in one.get_segments()
    }
    assert len(bars) == (0 if is_fixed else 12)  # none lies on another
    note = figure.legends[0].get_title().get_text().replace("\n", " ")
    assert bool(bars) == ("shortest to longest" in note) == (not is_fixed)
    assert "budget 150 ms" in looks(figure)


@pytest.mark.parametrize("most", [3.0, 7.9, 50.0])
def test_a_logarithmic_axis_has_at_least_two_labels(most):
    from analysis.figures.output import canvas, log_ticks

    for least in (0.011, 1.0, 53.0, 60.0, 2.1e4):
        with canvas(4, 3) as figure:
            axes = figure.subplots()
            axes.plot([1, 2], [least, most * least])
            axes.set_yscale("log")
            log_ticks(axes.yaxis)
        low, high = axes.get_ylim()
        labels = [
            label.get_text()
            for label, at in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
            if low <= at <= high and label.get_text()
        ]
        assert len(labels) >= 2, (least, most, np.round([low, high], 3))
