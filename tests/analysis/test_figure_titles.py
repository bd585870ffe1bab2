"""The titles of panels stay within the figure, and beside one another."""

from itertools import combinations

import pytest
from matplotlib.text import Text

from analysis.figures.output import canvas
from scenarios.api import plot
from tests.analysis.test_figure_labels import figures_of
from tests.fakes.stored import write_run

LONG = "measured and predicted, the same first 2 of 60 iterations, mode base, under conditions of a recording"


def titles_of(figure):
    """Return the boxes (pixels) of the titles of panels and of the figure, by text."""
    figure.draw_without_rendering()
    of_panels = [one for axes in figure.axes for one in axes.get_children() if isinstance(one, Text)]
    of_panels = [one for one in of_panels if one.get_text() and not any(one in axes.texts for axes in figure.axes)]
    whole = [figure._suptitle] if figure._suptitle is not None else []
    return [(one.get_text(), one.get_window_extent()) for one in (*of_panels, *whole)]


def assert_readable(figure):
    titles = titles_of(figure)
    for text, box in titles:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height, text
    for (text, box), (other, beside) in combinations(titles, 2):
        assert not box.overlaps(beside), (text, other)


@pytest.mark.parametrize("loc", ["left", "center"])
def test_long_titles_are_wrapped_to_the_room_that_there_is(loc):
    with canvas(8.4, 3) as figure:
        for axes, title in zip(figure.subplots(1, 3), ["short", LONG, f"{LONG}\na second line"], strict=True):
            axes.set_ylabel("time (ms)")
            axes.set_title(title, loc=loc, fontsize=8.5)
    assert_readable(figure)
    texts = [text for text, _ in titles_of(figure)]
    assert texts[0] == "short" and [text.replace("\n", " ") for text in texts[1:]] == [LONG, f"{LONG} a second line"]


@pytest.mark.parametrize(
    ("scenario", "overrides", "emulated"),
    [
        ("geopipe", {"sweep.conditions.wan_rate": ["10 Gbit/s", "25 Gbit/s"], "training.micro_batches": 4}, 2),
        ("paper", {"collective.count": 50_000, "run.modes": ["base", "joint"]}, 10),
    ],
)
def test_no_title_of_a_runs_figures_is_cut_off(scenario, overrides, emulated, tmp_path):
    folder = write_run(tmp_path / "run", scenario=scenario, overrides=overrides, modelled=60, emulated=emulated)
    for figure in figures_of(folder):
        assert_readable(figure)


@pytest.mark.parametrize("kind", ["comparison", "timeline"])
def test_given_and_drawn_rates_are_told_in_the_same_words(tmp_path, kind):
    for number, (given, told) in enumerate(
        [
            ({"conditions.wan_rate": "25 Gbit/s"}, ("WAN", "25 Gbit/s", "20-200 Gbit/s within sites")),
            ({"conditions.intra_rate": "100 Gbit/s"}, ("WAN", "10-100 Gbit/s", "100 Gbit/s within sites")),
        ]
    ):
        overrides = {"run.modes": ["base"], "conditions.wan_delay": "7 ms", "fabric.gpus": 4} | given
        run = write_run(tmp_path / str(number), overrides=overrides, modelled=5, engines=("model",))
        title = " ".join(plot(run, kind).get_suptitle().split())
        assert all(words in title for words in told) and " rate " not in title, title
