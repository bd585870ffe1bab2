"""Ticks of a swept key: each value has its label where two rows have room for all, and no two labels overlap."""

from itertools import combinations

import pytest
from matplotlib.axes import Axes

from analysis.figures import busbw
from analysis.figures.output import canvas
from analysis.figures.swept_axis import swept_axis


def assert_apart(axes: Axes) -> None:
    """Assert that no two labels of a row of the x axis touch, or leave the figure."""
    figure = axes.figure
    figure.draw_without_rendering()
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    for row in (0, 1):
        boxes = [label.get_window_extent() for label in labels if label.get_text().count("\n") == row]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


def labels_of(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize("count", [5, 9])
def test_every_size_of_a_sweep_has_its_number(count: int, modes: int) -> None:
    sizes = [10**6 * 2**power for power in range(count)]
    rows = [
        busbw.Row(algorithm, f"mode{mode}", size, size * (1.0 + 0.1 * rank), False)
        for rank, algorithm in enumerate(("ring", "direct"))
        for mode in range(modes)
        for size in sizes
    ]
    for axes in busbw.picture("AllGather", rows).figure.axes:
        assert {text.strip() for text in labels_of(axes)} == {f"{size // 10**6} MB" for size in sizes}
        assert_apart(axes)


@pytest.mark.parametrize(
    ("numbers", "inches", "rows", "all_told"),
    [
        ((0, 5, 10, 15, 20, 25, 30), 3.4, 1, True),
        ((0, 1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60), 3.4, 2, True),
        (tuple(range(0, 300, 2)), 3.4, 1, False),  # two rows do not help
    ],
)
def test_labels_are_in_two_rows_where_one_is_too_short(
    numbers: tuple[int, ...], inches: float, rows: int, all_told: bool
) -> None:
    with canvas(inches + 0.8, 2.5) as figure:
        axes = figure.subplots()
        axes.plot(numbers, numbers)
        swept_axis([str(number) for number in numbers], [*map(float, numbers)]).draw(axes, inches=inches)
    found = labels_of(axes)
    assert 1 + max(text.count("\n") for text in found) == rows
    assert ({text.strip() for text in found} == {str(number) for number in numbers}) is all_told
    assert_apart(axes)
