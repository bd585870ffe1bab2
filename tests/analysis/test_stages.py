"""The pipeline diagram of a sweep: it shows the configurations that differ most, so that their difference is seen."""

import csv

import pytest
from matplotlib.quiver import Quiver

from analysis.figures.__main__ import draw
from analysis.results import load
from scenarios.api import plot
from tests.fakes.stored import write_run

TRAINING = {
    "collective.kind": "training",
    "fabric.gpus": 2,
    "run.modes": ["base"],
    "conditions.wan_delay": "5 ms",
    "conditions.wan_rate": "25 Gbit/s",
    "conditions.intra_rate": "200 Gbit/s",
    "training.replicas": 2,
    "training.across": "data",
    "training.micro_batches": 1,
    "training.forward": "80 ms",
    "training.backward": "160 ms",
    "training.gradient_size": "400 MB",
}


@pytest.mark.parametrize(("buckets", "shown"), [([1, 8, 4], [0, 1]), ([8, 4, 1], [0, 2]), ([8], [0])])
def test_gradients_overlap_computing_in_the_configuration_that_differs_most(tmp_path, buckets, shown):
    """Backward ends at 240 ms: with one bucket gradients leave then, with eight the first after 80 + 160 / 8 ms."""
    overrides = TRAINING | {"sweep.training.buckets": buckets}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=1, engines=("model",))
    draw(run)
    with (run / "figures" / "run-stages.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["setting"]) for row in rows} == {*shown}
    assert max(float(row["end_s"]) for row in rows) == pytest.approx(0.24)
    figure = plot(run, "training", number=2)  # after those of iterations against the WAN
    assert figure.get_figwidth() <= 7.2
    for axes, setting in zip(figure.axes, shown, strict=True):
        (arrows,) = (one for one in axes.collections if isinstance(one, Quiver))
        count = buckets[setting]
        assert arrows.X.min() == pytest.approx(80 + 160 / count)
        assert axes.get_title().startswith(f"buckets {count}\n") == (len(shown) > 1)
        assert axes.get_xlim() == figure.axes[0].get_xlim()


@pytest.mark.parametrize(("micro_batches", "backward_ms"), [(1, 160), (4, 40)])
def test_what_buckets_save_is_what_the_documentation_says(tmp_path, micro_batches, backward_ms):
    """(b - 1) times the smaller of B / b - d, below zero for many buckets, which all wait for the WAN's delay, and of
    T / b, with T = 128 ms for 400 MB at 25 Gbit/s."""
    overrides = TRAINING | {"sweep.training.buckets": [1, 2, 4, 8, 16], "training.backward": f"{backward_ms} ms"}
    overrides |= {"training.micro_batches": micro_batches, "training.forward": f"{backward_ms // 2} ms"}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=1, engines=("model",))
    times_ms = load(run).completion_s * 1e3
    saved = [times_ms[0] - time for time in times_ms]
    told = [(count - 1) * min(backward_ms / count - 5, 128 / count) for count in (1, 2, 4, 8, 16)]
    assert saved == pytest.approx(told, abs=0.5)  # links within sites have a delay, too


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_bars_have_numbers_of_micro_batches_which_the_legend_explains_if_there_are_several(tmp_path, micro_batches):
    overrides = TRAINING | {"training.micro_batches": micro_batches, "sweep.training.buckets": [1, 2]}
    figure = plot(
        write_run(tmp_path / "run", overrides=overrides, modelled=1, engines=("model",)), "training", number=2
    )
    numbers = {text.get_text() for axes in figure.axes for text in axes.texts}
    told = figure.legends[0].get_title().get_text()
    assert numbers == ({"0", "1"} if micro_batches > 1 else set())
    assert ("Numbers: the micro-batch." in told) == (micro_batches > 1)
    assert "Setting 0 of 0 to 1; --setting draws another." in told.replace("\n", " ")
