"""The timeline of a collective: what is outlined, narrow messages, and which of many modes are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figures import timeline
from analysis.figures.collective_detail import collectives_of
from analysis.figures.run_points import configurations_of, points_of
from analysis.figures.timeline import most_different, outlines
from analysis.results.reader import open_run
from scenarios.experiment import command


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
    assert "number and shade" not in drawn.svg and "Its shade: the rank" in drawn.svg
