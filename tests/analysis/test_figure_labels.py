"""No label of a figure looks struck through: lines that cross it are below it, and it has a background."""

from collections.abc import Iterator
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from analysis.figures import faults, plain
from analysis.figures.__main__ import tasks_of
from analysis.figures.run_points import configurations_of, points_of
from analysis.results.reader import open_run
from tests.fakes.stored import write_run

SIZES = ["100 kB", "1 MB", "8 MB", "64 MB"]
RUNS = {
    "gains on both sides of 0": {"run.baseline": ["mode=wan"]},
    "crossing bandwidths": {
        "run.modes": ["base"],
        "fabric.gpus": 4,
        "collective.kind": "allreduce",
        "sweep.collective.algorithm": ["ring", "direct", "tree"],
        "sweep.collective.size": SIZES,
    },
    "a budget": {"collective.budget": "3 ms", "sweep.collective.chunk": ["1 MB", "2 MB"]},
}


def lines_of(axes: Axes) -> Iterator[tuple[object, float]]:
    """Yield the paths in pixels of all lines of a panel, of its grid, too, each with how far in front it is."""
    for line in axes.lines:
        if line.get_visible() and line.get_linestyle() != "None":
            yield line.get_transform().transform_path(line.get_path()), line.get_zorder()
    for axis in (axes.xaxis, axes.yaxis):
        below = 0.5 if axes.get_axisbelow() is True else axis.get_zorder()
        for line in axis.get_gridlines():
            if line.get_visible():
                yield line.get_transform().transform_path(line.get_path()), below


def struck_through(figure: Figure) -> list[str]:
    """Return the labels that a line crosses in front of them or, where they have no background, at all."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            middle = Bbox.from_extents(box.x0 + 1, box.y0 + 0.25 * box.height, box.x1 - 1, box.y1 - 0.25 * box.height)
            inner = Bbox.intersection(middle, axes.bbox)  # lines end at the axes
            if inner is None:
                continue
            patch = text.get_bbox_patch()
            has_ground = bool(text.get_path_effects()) or (patch is not None and patch.get_facecolor()[3] >= 0.8)
            for path, order in lines_of(axes):
                if path.intersects_bbox(inner, filled=False) and not (has_ground and order <= text.get_zorder()):
                    found.append(text.get_text())
    return found


def figures_of(folder) -> Iterator[Figure]:
    run = open_run(folder)
    configurations = configurations_of(run)
    pictures = [task() for task in tasks_of(run, configurations, points_of(run, configurations))]
    yield from (one.figure for one in pictures if one is not None)


def test_a_label_on_a_line_without_a_background_is_found():
    figure = Figure()
    axes = figure.subplots()
    axes.axhline(0.5)
    text = axes.annotate("−7.6 %", (0.5, 0.5), va="center")
    assert struck_through(figure) == ["−7.6 %"]
    text.set_bbox({"facecolor": "white"})
    assert struck_through(figure) == []


@pytest.mark.parametrize("overrides", [pytest.param(one, id=name) for name, one in RUNS.items()])
def test_no_label_is_struck_through(tmp_path, overrides):
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=80, emulated=4)
    for figure in figures_of(folder):
        assert struck_through(figure) == []


def test_no_label_of_training_and_of_transfers_is_struck_through(tmp_path):
    swept = {"sweep.conditions.wan_delay": ["1 ms", "5 ms", "20 ms"]}
    options = {"modelled": 1, "engines": ("model",)}
    for number, (scenario, overrides) in enumerate((("geopipe", swept), ("admission", {}))):
        for figure in figures_of(write_run(tmp_path / f"{number}", scenario=scenario, overrides=overrides, **options)):
            assert struck_through(figure) == []


def test_no_cost_of_a_fault_is_struck_through():
    costs = pd.DataFrame(
        {
            **{"engine": "emulation", "setting": 0, "mode": "base", "what": "link down", "detected_s": float("nan")},
            **{"recovered_s": [2e-3, 4e-3, float("nan")], "cost_s": [1e-3, 4e-3, float("nan")]},
            **{"number": [1, 2, 3], "at_collective": [1, 2, 3], "collectives_lost": 0, "bytes_again": 0},
            "outcome": ["recovered", "recovered", "unknown: no traffic"],
        }
    )
    picture = faults.picture("x", SimpleNamespace(faults=costs, settings=[]))
    assert picture is not None
    assert struck_through(picture.figure) == []


def test_small_numbers_on_a_logarithmic_axis_are_powers_of_ten_and_no_markup() -> None:
    spots = [plain.Spot("a", 10.0**power, 1) for power in (-5, -4, -3, -2)]
    figure = plain.picture(spots, name="x", x="share", y="y", log_x=True).figure
    figure.canvas.draw()
    labels = {label.get_text() for label in figure.axes[0].get_xticklabels()}
    assert {"10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²"} <= labels and not any("$" in label for label in labels)
