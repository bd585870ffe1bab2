"""No two lines or bars of a figure look the same, however many there are."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import pytest
from matplotlib.colors import to_rgb

from analysis.figures import bars, busbw, program, style
from analysis.figures.style import MODE_STYLES, ModeStyle, dashed_style, line_style, name_modes, value_styles
from hosts.collectives import kinds
from scenarios.api import plot
from tests.fakes.stored import write_run

ALGORITHMS = [
    "ring",
    "tree",
    "double-tree",
    "bruck",
    "halving-doubling",
    "chain",
    "hierarchical",
    "hierarchical-direct",
    "direct",
]


def looks(lines: Iterable[Any], *names: str) -> set[str]:
    """Return how these lines look, by the getters of Matplotlib's artists."""
    return {repr([getattr(one, f"get_{name}")() for name in names]) for one in lines}


def own_looks(styles: Iterable[ModeStyle]) -> tuple[set[str], set[str]]:
    """Return how lines without markers, and how bars, of these styles look."""
    styles = list(styles)
    return {f"{one.colour} {one.line} {one.width}" for one in styles}, {f"{one.colour} {one.hatch}" for one in styles}


def test_lines_differ_in_colour_then_in_dashes_and_markers() -> None:
    styles = [line_style(index) for index in range(100)]
    unmarked = [{key: value for key, value in one.items() if key != "marker"} for one in styles]
    assert len({*map(repr, unmarked)}) == 100
    assert len({one["color"] for one in styles[:12]}) == len({one["marker"] for one in styles[:12]}) == 12
    assert all(one["linestyle"] == "-" for one in styles[:12]) and styles[12]["linestyle"] != "-"


@pytest.mark.parametrize("count", [5, 20, 60])
def test_values_and_policies_differ_as_lines_and_as_bars(count: int) -> None:
    names = [f"value {number}" for number in range(count)]
    assert [len(one) for one in own_looks(value_styles(names).values())] == [count] * 2
    name_modes(names)
    try:
        assert [len(one) for one in own_looks(MODE_STYLES.values())] == [count + 4] * 2
    finally:
        name_modes([])


def test_missing_whiskers_are_explained_with_their_panel_if_others_have_them_or_another_reason(tmp_path) -> None:
    """The measured times are too few for an interval; the predicted ones, of which there are 400, have one."""
    folder = write_run(tmp_path / "run", overrides={"run.modes": ["base", "wan"]}, modelled=400, emulated=4)
    note = plot(folder, "comparison").legends[0].get_title().get_text().replace("\n", " ")
    assert "no whiskers (measured and predicted): too few collectives for an interval" in note
    assert note.count("no whiskers") == 1


def test_modes_have_the_order_in_which_they_are_given_and_the_first_has_the_widest_line() -> None:
    name_modes(["never", "joint", "wan"])
    try:
        assert [*MODE_STYLES][:3] == ["never", "joint", "wan"] and {*MODE_STYLES} >= {"base", "ccl"}
        widths = [style.width for style in MODE_STYLES.values()][:3]
        assert widths == sorted(widths, reverse=True)
    finally:
        name_modes([])
    assert [*MODE_STYLES] == ["base", "ccl", "wan", "joint"]


def alike_in_grey(lines: Iterable[tuple[str, Any, float]]) -> list[Any]:
    """Return the pairs of lines (colour, dashes and width) that are hard to tell apart in grey: with the same dashes,
    about the same width, and less than a tenth of the scale from black to white between them (Rec. 601)."""
    shades = [(sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), to_rgb(colour), strict=True)), *look)
              for colour, *look in lines]  # fmt: skip
    return [
        (one, other)
        for one, other in combinations(shades, 2)
        if repr(one[1]) == repr(other[1])
        and abs(one[0] - other[0]) < 0.1
        and max(one[2], other[2]) < 1.3 * min(one[2], other[2])
    ]


def test_lines_without_markers_can_be_told_apart_in_grey() -> None:
    links = [dashed_style(index) for index in range(6)]
    assert alike_in_grey((one["color"], one["linestyle"], 1.0) for one in links) == []
    name_modes(f"policy {number}" for number in range(8))
    try:
        assert alike_in_grey((one.colour, one.line, one.width) for one in MODE_STYLES.values()) == []
    finally:
        name_modes([])


def test_no_two_algorithms_of_the_bus_bandwidth_share_a_colour() -> None:
    rows = [
        busbw.Row(algorithm, "base", size, size * (2.0 + number), measured=False)
        for number, algorithm in enumerate(ALGORITHMS)
        for size in (1000, 2000)
    ]
    figure = busbw.picture("AllReduce", rows).figure
    assert len(looks(figure.axes[0].lines, "color")) == len(ALGORITHMS)
    assert len(looks(figure.legends[0].get_lines(), "color", "marker")) == len(ALGORITHMS)


def test_an_algorithm_looks_the_same_in_any_order_and_beside_any_others() -> None:
    """In `collectives.py`, in a run's figures and beside schedules of files."""
    every = {name for names in kinds.ALGORITHMS.values() for name in names}
    assert {*style.ALGORITHMS} >= every
    seen: dict[str, set[str]] = {}
    for names in (sorted(every), [*style.ALGORITHMS], ["own.xml", "tree", "direct"], ["direct", "ring", "b.xml"]):
        styles = value_styles(names)
        assert len({(one.colour, one.marker) for one in styles.values()}) == len(names)
        for name, one in styles.items():
            seen.setdefault(name, set()).add(repr((one.colour, one.marker, one.line, one.hatch)))
    assert all(len(seen[name]) == 1 for name in every)


def test_no_two_links_of_a_program_look_the_same() -> None:
    count = 64
    samples = [(at_ns, [at_ns // 100] * count, [at_ns / 10] * count) for at_ns in (0, 10**7, 2 * 10**7)]
    run = {
        "run_s": 0.02,
        "ranks": [{"rank": 0, "gpu": "g0", "status": 0, "end_s": 0.02}],
        "links": [{"link": f"R{number}>R{number + 1}"} for number in range(count)],
    }
    patches = program.picture(run, samples).figure.axes[0].patches
    assert len(looks(patches, "edgecolor", "linestyle", "linewidth")) == count


@pytest.mark.parametrize("measured", [False, True])
def test_the_legend_of_plain_bars_has_their_names_and_colours(measured: bool) -> None:
    shown = [bars.Bar("a", "base", 1, measured=measured), bars.Bar("a", "ccl", 2, measured=measured)]
    figure = bars.picture(shown, name="x", y="y", note="predicted: all").figure
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["base", "ccl"]
    drawn = [one.get_facecolor() for one in figure.axes[0].patches]
    assert [one.get_facecolor() for one in legend.get_patches()] == drawn


@pytest.mark.parametrize("scale", [style.BANDWIDTH, style.WAN_BANDWIDTH])
def test_rates_get_lighter_and_the_highest_is_seen_on_white_paper(scale: Any) -> None:
    """The contrast is that of WCAG 2.1, (1 + 0.05) / (luminance + 0.05) with white."""

    def luminance(share: float) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in scale(share)[:3]]
        return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)))

    found = [luminance(step / 50) for step in range(51)]
    assert found == sorted(found) and 1.05 / (found[-1] + 0.05) > 2.2
