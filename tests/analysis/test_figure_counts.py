"""Figures of one run count its collectives alike and say which part they show; a quantity has one unit in a figure."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from analysis.figures import faults, referees
from scenarios.api import plot
from tests.fakes.stored import write_run

SEEDS = {
    "sweep.fabric.hash_seed": ("60 AllGathers, with each of 3 hash seeds", "60 predicted, with each of 3 hash seeds"),
    "sweep.run.seed": ("180 AllGathers of 3 seeds", "180 predicted of 3 seeds"),
}


def titles(figure) -> list[str]:
    return [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.get_title()]


def unit_of(label: str) -> str:
    return re.findall(r"\(([^()]+)\)", label)[0]


@pytest.mark.parametrize("key", SEEDS)
def test_means_and_distributions_count_the_collectives_of_several_seeds_alike(tmp_path, key):
    overrides = {key: [1, 2, 5], "fabric.routing": "ecmp", "run.modes": ["base", "wan"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60, engines=("model",))
    for kind, words in zip(("comparison", "cdf"), SEEDS[key], strict=True):
        assert [title.removeprefix("timing model, ") for title in titles(plot(run, kind))] == [words]


def test_a_part_of_the_collectives_is_called_one(tmp_path):
    run = write_run(tmp_path / "run", overrides={"run.modes": ["base", "wan"]}, modelled=80, emulated=6)
    assert titles(plot(run)) == [
        "timing model, 80 AllGathers",
        "measured and predicted, the same first 6 of 80 AllGathers",
    ]
    assert titles(plot(run, "cdf")) == ["80 predicted, first 6 measured"]
    assert "12 collectives of all modes" in plot(run, "fidelity").get_suptitle()
    jobs = [{"name": "a", "ranks": [0, 4]}, {"name": "b", "ranks": [1, 5]}]
    run = write_run(tmp_path / "jobs", overrides={"job": jobs}, modelled=8, emulated=3)
    assert "mean over 3 of 8 rounds" in plot(run, "job_times").legends[0].get_title().get_text()
    periods = {"sweep.collective.reembed_every": [1, 5], "run.modes": ["ccl"]}
    run = write_run(tmp_path / "periods", overrides=periods, modelled=8, emulated=3)
    note = plot(run, "periods").legends[0].get_title().get_text()
    assert note == "lines: predicted, mean of 8; filled markers: measured, mean of 3"


def test_panels_of_very_different_times_have_one_unit(tmp_path):
    sizes = ["10 kB", "1 MB", "512 MB"]
    overrides = {
        "collective.kind": "allreduce",
        "fabric.gpus": 4,
        "run.modes": ["base"],
        "conditions.wan_delay": "0.3 ms",
    }
    overrides |= {"sweep.collective.algorithm": ["ring", "direct"], "sweep.collective.size": sizes}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=9, engines=("model",))
    assert {unit_of(axes.get_xlabel()) for axes in plot(run, "cdf").axes if axes.axison} == {"ms"}
    bandwidth = plot(run, "busbw").axes[0]
    bandwidth.figure.draw_without_rendering()
    shown = [label.get_text() for label in bandwidth.get_xticklabels() if label.get_text()]
    assert shown == sizes  # as the axis of mean times has them
    periods = {
        "sweep.collective.reembed_every": [1, 5],
        "sweep.collective.chunk": ["1 kB", "64 MB"],
        "run.modes": ["ccl"],
    }
    run = write_run(tmp_path / "periods", overrides=periods, modelled=8, engines=("model",))
    assert len({axes.get_ylabel() for axes in plot(run, "periods").axes}) == 1


def test_times_of_referees_and_of_faults_have_one_unit():
    settings = {"small": ({"base": 2e-5}, {"best": 1e-5}, 9e-6), "large": ({"base": 3e-3}, {"best": 2e-3}, 1e-3)}
    panels = referees.picture(settings, collectives=2000, name="x").figure
    assert len({axes.get_xlabel() for axes in panels.axes}) == 1
    assert "2,000 collectives" in panels.get_supxlabel()
    about = {"engine": "emulation", "setting": 0, "mode": "base", "what": "link down", "outcome": "recovered"}
    times = {"detected_s": [2e-5, 3e-3], "recovered_s": [2e-3, 4.0], "cost_s": float("nan"), "number": [1, 2]}
    rows = pd.DataFrame(about | times | {"at_collective": [1, 2], "collectives_lost": 0, "bytes_again": 0})
    picture = faults.picture("x", SimpleNamespace(faults=rows, settings=[]))
    assert picture is not None
    (axes,) = picture.figure.axes
    picture.figure.draw_without_rendering()
    assert unit_of(axes.get_xlabel()) == "ms"
    labels = [label.get_text() for label in axes.get_xticklabels() if label.get_text()]
    assert {"0.01", "1", "1,000"} <= {*labels} and not any(character.isalpha() for one in labels for character in one)


def test_what_is_left_of_a_budget_has_the_unit_of_its_axis(tmp_path):
    overrides = {"collective.budget": "9 s", "collective.chunk": "1 GB", "run.modes": ["base"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    figure = plot(run, "budget")
    (axes,) = figure.axes
    (line,) = (one for one in axes.lines if len(one.get_xdata()) == 1)
    assert figure.legends[0].get_texts()[-1].get_text() == "budget 9 s"
    assert unit_of(axes.get_ylabel()) == "s"
    assert "above: s of the budget" in figure.legends[0].get_title().get_text()
    left_s = float(axes.texts[0].get_text().replace("−", "-"))
    assert left_s == pytest.approx(9 - line.get_ydata()[0], abs=0.05)


def test_a_long_legend_takes_no_room_from_the_panels(tmp_path):
    heights = {}
    for count in (1, 7):
        policies = [{"name": f"a-policy-with-a-long-name-{number}", "reroute": "every 2"} for number in range(count)]
        overrides = {"policy": policies, "run.modes": ["base", *(one["name"] for one in policies)], "fabric.gpus": 2}
        overrides |= {"sweep.collective.chunk": ["1 MB", "2 MB"]}
        run = write_run(tmp_path / str(count), overrides=overrides, modelled=5, emulated=2)
        figure = plot(run, "cdf")
        figure.draw_without_rendering()
        heights[count] = figure.axes[0].get_window_extent().height
    assert heights[7] == pytest.approx(heights[1], rel=0.15)
