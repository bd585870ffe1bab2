"""Text is legible where a paper has a figure, notes have no word alone on a line, and a fabric fits a page."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from matplotlib.collections import PathCollection

from analysis.figures.__main__ import draw
from analysis.figures.output import canvas, legend
from scenarios.api import plot
from tests.fakes.stored import write_run

COLUMN, PAGE, LEAST_PT = 3.3, 7.2, 5.0  # inches of a column and of the text of a page, and the least size of a text
FAULT = [{"at": "collective 1", "what": "agent 1 slow 10x", "for": "2 collectives"}]


def sizes_pt(svg: Path) -> dict[str, float]:
    """Return the size of each text of an SVG file where the figure is as wide as a column, or, if it is drawn wider
    than a page, as a page."""
    root = ET.parse(svg).getroot()
    width_pt = float(root.attrib["viewBox"].split()[2])
    scale = (COLUMN if width_pt <= PAGE * 72 + 0.1 else PAGE) * 72 / width_pt
    found = {}
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        size = re.search(r"font(?:-size)?: (?:[a-z]+ )*([\d.]+)px", text.attrib["style"])
        assert size is not None, text.attrib
        found["".join(text.itertext())] = float(size[1]) * scale
    return found


@pytest.mark.parametrize(
    ("overrides", "modelled", "emulated"),
    [
        ({"fabric.gpus": 16, "fault": FAULT, "collective.budget": "20 ms"}, 8, 4),
        ({"sweep.conditions.wan_delay": ["1 ms", "5 ms"], "run.modes": ["base"], "fabric.grain": "physical"}, 8, 0),
        ({"sweep.collective.reembed_every": [1, 5], "sweep.fabric.gpus": [4, 8], "run.modes": ["base", "ccl"]}, 8, 0),
        ({"job": [{"name": "a", "ranks": [0, 4]}, {"name": "b", "ranks": [1, 5]}]}, 8, 3),
    ],
    ids=["faults", "physical", "sweep", "jobs"],
)
def test_all_texts_of_a_run_s_figures_have_five_points_in_a_paper(tmp_path, overrides, modelled, emulated):
    engines = ("model", "emulation") if emulated else ("model",)
    run = write_run(tmp_path / "run", overrides=overrides, modelled=modelled, emulated=emulated or 1, engines=engines)
    drawn = [file for file in draw(run) if file.suffix == ".svg"]
    assert len(drawn) >= 3
    small = {file.name: {text: at for text, at in sizes_pt(file).items() if at < LEAST_PT - 0.05} for file in drawn}
    assert not any(small.values()), small


def test_no_word_of_a_note_is_left_alone_on_a_line():
    with canvas(5.6, 3) as figure:
        figure.subplots()
        legend(figure, [], "no whiskers: too few collectives for an interval (base, ccl, joint, mean of wan)")
    lines = figure.legends[0].get_title().get_text().splitlines()
    assert len(lines) == 2 and all(len(line.split()) > 2 for line in lines)


def test_a_note_about_whiskers_has_no_line_of_one_word(tmp_path):
    run = write_run(tmp_path / "run", modelled=13, emulated=13)
    lines = plot(run).legends[0].get_title().get_text().splitlines()
    assert any(line.startswith("no whiskers") for line in lines)
    assert all(len(line.split()) > 1 for line in lines), lines


TRIANGLE = {"routers": ["OSLO", "ROME", "CORK"], "links": [["s0b0", "OSLO"], ["s1b0", "ROME"], ["s2b0", "CORK"],
            ["OSLO", "ROME"], ["OSLO", "CORK"], ["ROME", "CORK"]]}  # fmt: skip


def test_the_fabric_of_four_modes_fits_a_page_and_its_names_fit_their_nodes(tmp_path):
    overrides = {"fabric.gpus": [4, 4, 4], "fabric.border_routers": 1, "fabric.wan": TRIANGLE}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=5, emulated=2), "fabric")
    figure.draw_without_rendering()
    width, height = figure.get_size_inches()
    assert height * PAGE / width <= 10.2  # inches of an A4 page with margins
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert len(panels) == 4 and all("(measured)" in axes.get_title() for axes in panels)
    for axes in panels:
        written = {text.get_text(): text.get_window_extent() for text in axes.texts}
        (diamonds,) = [
            one
            for one in axes.collections
            if isinstance(one, PathCollection) and len(one.get_offsets()) == 3 and len(one.get_sizes()) == 1
        ]
        diagonal = math.sqrt(2 * diamonds.get_sizes()[0]) * figure.dpi / 72
        for name in ("OSLO", "ROME", "CORK"):
            assert written[name].width + 0.6 * written[name].height <= 1.05 * diagonal  # capitals alone
        routers = {text.get_text(): text for text in axes.texts if re.fullmatch(r"s\db0", text.get_text())}
        assert len(routers) == 3
        for text in routers.values():
            box = text.get_bbox_patch().get_window_extent()
            own = text.get_window_extent()
            assert box.x0 <= own.x0 and own.x1 <= box.x1
        for number in range(12):
            assert written[f"g{number}"].width <= 17 * figure.dpi / 72


@pytest.mark.parametrize("gpus", [16, 48])
def test_names_of_many_gpus_are_beside_their_nodes_without_overlap_or_left_out(tmp_path, gpus):
    figure = plot(write_run(tmp_path / "run", overrides={"fabric.gpus": gpus}, modelled=5, emulated=2), "fabric")
    figure.draw_without_rendering()
    for axes in (axes for axes in figure.axes if axes.get_title()):
        boxes = [text.get_window_extent() for text in axes.texts if re.fullmatch(r"g\d+", text.get_text())]
        assert len(boxes) in (0, gpus)
        for index, one in enumerate(boxes):
            assert not any(one.shrunk(0.9, 0.8).overlaps(other.shrunk(0.9, 0.8)) for other in boxes[:index])
            assert figure.bbox.x0 <= one.x0 and one.x1 <= figure.bbox.x1


def test_a_figure_of_a_run_with_a_fault_is_found_by_its_name(tmp_path):
    """Its caption tells the fault, so that its task is a task within another."""
    fault = [{"at": "collective 1", "what": "link s0b0-s1b0 down", "for": "2 collectives"}]
    run = write_run(tmp_path / "run", overrides={"fault": fault, "fabric.gpus": 4}, modelled=5, emulated=3)
    assert plot(run, "comparison").axes and plot(run, "cdf").axes
