"""What is compared, however much it is, has one figure that can be read in a column of a paper, the fastest first."""

from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.__main__ import draw
from scenarios.api import plot
from tests.analysis.test_styles import ALGORITHMS
from tests.fakes.stored import write_run

POLICIES = [{"name": f"every{number}", "reroute": f"every {number}"} for number in (2, 3, 5, 8)]
MODES = ["base", "ccl", "wan", "joint", *(one["name"] for one in POLICIES)]


def means_of(folder, *keys):
    """Return the mean times by the values of these keys, computed from the stored rows."""
    return pq.read_table(folder / "collectives.parquet").to_pandas().groupby([*keys]).completion_s.mean()


def labels(axes: Axes) -> list[str]:
    return [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]


def beside(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def assert_readable(figure: Figure) -> None:
    """Assert that the figure fits into a column, and that no text is small, cut or on another one."""
    assert figure.get_figwidth() <= 3.3
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    for axes in figure.axes:
        rows = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert all(above.y0 >= below.y1 for above, below in pairwise(rows))
        for text in (*axes.get_yticklabels(), *axes.texts, axes._left_title):
            box = text.get_window_extent()
            assert text.get_fontsize() >= 6.5
            assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= 0, text.get_text()


def test_nine_algorithms_have_a_row_each_at_every_size_with_the_fastest_first(tmp_path):
    sizes = {"1 MB": 1_000_000, "512 MB": 512_000_000}
    overrides = {"fabric.gpus": 4, "collective.kind": "allreduce", "run.modes": ["base"]}
    overrides |= {"sweep.collective.algorithm": ALGORITHMS, "sweep.collective.size": [*sizes]}
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=80, engines=("model",))
    figure = plot(folder, "ranking")
    assert_readable(figure)
    means_s = means_of(folder, "collective.size", "collective.algorithm")
    for axes, (words, size) in zip(figure.axes, sizes.items(), strict=True):
        here = means_s[size].sort_values(kind="stable")
        assert axes.get_title(loc="left") == f"size {words}"
        assert sorted(labels(axes)) == sorted(ALGORITHMS)
        assert [here[name] for name in labels(axes)] == pytest.approx([*here])  # equal ones in any order
        shares = {name: f"{100 * (1 - here[name] / here['ring']):.1f} %".replace("-", "−") for name in ALGORITHMS}
        for name, text in zip(labels(axes), beside(axes), strict=True):
            assert text.removeprefix("~ ") == ("baseline" if name == "ring" else shares[name])
    assert plot(folder).get_suptitle() == figure.get_suptitle()  # it is in place of the comparison


def test_eight_modes_have_a_row_each_measured_and_predicted(tmp_path):
    overrides = {"policy": POLICIES, "run.modes": MODES, "fabric.gpus": 4}
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=80, emulated=6)
    figure = plot(folder, "ranking")
    assert_readable(figure)
    predicted, measured = figure.axes
    names = {mode: next(label for label in labels(measured) if label.split()[0] == mode) for mode in MODES}
    assert sorted(names.values()) == sorted(labels(predicted)) == sorted(labels(measured))
    for axes, engine, count in ((predicted, "model", "80"), (measured, "emulation", "first 6 of 80")):
        here = means_of(folder, "engine", "mode")[engine]
        order = [label.split()[0] for label in labels(axes)]
        assert [here[mode] for mode in order] == pytest.approx(sorted(here)), engine
        assert f" {count} AllGathers" in axes.get_title(loc="left").replace("\n", " ")


@pytest.mark.parametrize("modes", [["base"], ["base", "joint"]])
def test_nine_values_of_a_text_key_alone_have_a_row_or_a_panel_each(tmp_path, modes):
    overrides = {"fabric.gpus": 4, "collective.kind": "allreduce", "run.modes": modes}
    overrides |= {"sweep.collective.algorithm": ALGORITHMS}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=80, engines=("model",)), "ranking")
    assert_readable(figure)
    if len(modes) == 1:
        assert sorted(labels(figure.axes[0])) == sorted(ALGORITHMS)
    else:
        assert [axes.get_title(loc="left") for axes in figure.axes] == [f"algorithm {name}" for name in ALGORITHMS]
        assert all({label.split()[0] for label in labels(axes)} == {*modes} for axes in figure.axes)


def test_a_distribution_shows_the_baseline_and_the_fastest_and_names_those_that_it_leaves_out(tmp_path):
    policies = [{"name": f"every{number}", "reroute": f"every {number}"} for number in range(2, 11)]
    modes = ["base", "wan", *(one["name"] for one in policies)]
    overrides = {"policy": policies, "run.modes": modes, "fabric.gpus": 4}
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=80, engines=("model",))
    legend = plot(folder, "cdf").legends[0]
    drawn = [text.get_text().split()[0] for text in legend.get_texts()]
    means_s = means_of(folder, "mode")
    slowest = max((mode for mode in modes if mode != "base"), key=lambda mode: means_s[mode])
    assert sorted(drawn) == sorted(mode for mode in modes if mode != slowest)
    assert f"left out, as slower: {slowest};" in legend.get_title().get_text()


def test_what_does_not_fit_into_one_figure_is_in_further_ones_and_different_work_keeps_its_order(tmp_path):
    sizes = [f"{number} MB" for number in range(70, 60, -1)]
    jobs = [[{"name": "a", "ranks": [0, 1], "size": size}, {"name": "b", "ranks": [2, 3]}] for size in sizes]
    overrides = {"fabric.gpus": 4, "sweep.job": jobs, "run.modes": ["base"]}
    folder = write_run(tmp_path / "jobs", overrides=overrides, modelled=4, engines=("model",))
    assert not any("fastest first" in file.read_text() for file in draw(folder) if file.suffix == ".svg")
    figure = plot(folder, "ranking")
    assert [label.partition(" +")[0] for label in labels(figure.axes[0])] == [f"a {size}" for size in sizes]
    overrides = {"fabric.gpus": 4, "collective.kind": "allreduce", "run.modes": ["base"]}
    overrides |= {"sweep.collective.algorithm": ALGORITHMS, "sweep.collective.size": sizes[:7]}
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=4, engines=("model",))
    assert any("fastest first" in file.read_text() for file in draw(folder) if file.suffix == ".svg")
    titles = [axes.get_title(loc="left") for number in (0, 1) for axes in plot(folder, "ranking", number=number).axes]
    assert titles == [f"size {size}" for size in sizes[:7]]
