"""Which declared faults the timing model's times are without, as its answer, report and captions tell."""

import csv
import json
import re
from xml.etree import ElementTree as ET

import pytest

from analysis.figures.__main__ import draw
from analysis.report import __main__ as report
from analysis.statistics.declared_faults import declared, unmodelled_sentence, until_end_sentence
from scenarios.engines.model import check_known
from scenarios.spec.load import scenario_of
from scenarios.spec.scenario import plain_values
from tests.fakes.stored import write_run

LINK = {"at": "3 ms into collective 20", "what": "link s0b0-s1b0 down", "for": "5 collectives"}


@pytest.mark.parametrize(
    "fault",
    [
        LINK,
        {"at": "collective 20", "what": "link s0b0-s1b0 down"},
        {"at": "collective 2", "what": "switch s0b1 down", "for": "1 collectives"},
        {"at": "collective 0", "what": "agent 3 slow 2.5x"},
        {"at": "1 ms into collective 0", "what": "agent 3 slow 2x"},
        {"at": "collective 1", "what": "link s0b0-s1b0 loss 1 %"},
        {"at": "collective 1", "what": "agent 3 killed"},
        {"at": "collective 1", "what": "controller killed", "for": "2 collectives"},
    ],
    ids=lambda fault: f"{fault['what']}, {fault['at']}",
)
def test_a_fault_is_told_as_missing_exactly_if_the_model_alone_refuses_it(fault):
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in fault.items())
    configs = list(scenario_of(f"fault = [{{{table}}}]").configurations())
    try:
        check_known(configs)
        refused = False
    except ValueError:
        refused = True
    words = unmodelled_sentence(plain_values(config)["fault"] for config in configs)
    assert bool(words) is refused and (not refused or fault["what"] in words)
    assert len(declared(plain_values(configs[0])["fault"])) == 1


def test_a_fault_within_a_collective_counts_from_the_next_one_on_if_it_lasts_that_long():
    assert unmodelled_sentence([[LINK], [LINK], None]) == (
        "The timing model's times are without link s0b0-s1b0 down within collective 20 "
        "(they have it from collective 21 on)."
    )
    short = unmodelled_sentence([[LINK | {"for": "1 collective"}, {"at": "collective 7", "what": "agent 1 killed"}]])
    assert short == (
        "The timing model's times are without link s0b0-s1b0 down within collective 20; agent 1 killed in collective 7."
    )
    loss = unmodelled_sentence([[{"at": "collective 3", "what": "link s0b0-s1b0 loss 1 %"}]])
    assert loss.endswith("without link s0b0-s1b0 loss 1 % from collective 3 on.")
    assert unmodelled_sentence([[{"at": "20 ms", "what": "agent 1 killed"}]]) == ""  # a program's, without a model


@pytest.mark.parametrize(
    ("until", "has_it", "to_its_end"),
    [
        ([21, 21], "it ends in that one", ""),
        ([22, 22], "they have it in collective 21", "collective 21"),
        ([25, 25], "they have it in collectives 21 to 24", "collective 24"),
        ([23, 25], "they have it in collectives 21 to 24 at most", "one of the collectives 22 to 24"),
        ([None, None], "they have it from collective 21 on", ""),
    ],
)
def test_in_which_collectives_the_model_has_a_fault_that_lasts_for_a_time_is_a_statement(until, has_it, to_its_end):
    """Its end is known at each point, so nothing is conditional."""
    tables, ends = [[LINK | {"for": "100 ms"}]], {(1, LINK["what"]): until}
    assert unmodelled_sentence(tables, ends).endswith(f"down within collective 20 ({has_it}).")
    ending = f"The timing model has link s0b0-s1b0 down to the end of {to_its_end}, in which it ends."
    assert until_end_sentence(tables, ends) == (ending if to_its_end else "")


@pytest.mark.parametrize("engines", [("model", "emulation"), ("emulation",)])
def test_the_report_and_the_captions_tell_what_predicted_times_are_without(tmp_path, engines):
    fault = LINK | {"at": "1 ms into collective 3"}
    folder = tmp_path / "run"
    write_run(
        folder, overrides={"fault": [fault], "run.modes": ["base", "joint"]}, modelled=30, emulated=8, engines=engines
    )
    page = report.write(folder).read_text()
    words = "times are without link s0b0-s1b0 down within collective 3 (they have it from collective 4 on)"
    answer = page.partition('<p class="answer">')[2].partition("</p>")[0].replace("&#39;", "'")
    assert (words in answer) is ("model" in engines)
    captioned = [file.name for file in draw(folder) if file.suffix == ".svg" and words in file.read_text()]
    assert (captioned == []) is ("model" not in engines)
    if captioned:
        assert {"run.svg", "run-cdf.svg", "run-over-time.svg"} <= {*captioned}, captioned
        assert "run-fidelity.svg" not in captioned
    # A PNG has no caption: the figure has to say it.
    for name in captioned:
        texts = ET.parse(folder / "figures" / name).getroot().iter("{http://www.w3.org/2000/svg}text")
        assert words in " ".join(" ".join("".join(text.itertext()).split()) for text in texts), name


@pytest.mark.parametrize(
    ("scenario", "kind", "cut"),
    [("paper", "fabric", "s0b0-s1b0"), ("nobel-us", "map", "Boulder-Houston")],
)
def test_a_link_that_fails_within_the_shown_collective_is_dashed_red_with_its_instant(tmp_path, scenario, kind, cut):
    fault = LINK | {"at": "1.5 ms into collective 3", "what": f"link {cut} down"}
    overrides = {"fault": [fault], "run.modes": ["base", "joint"]}
    folder = write_run(tmp_path / "run", scenario=scenario, overrides=overrides, modelled=9, emulated=8)
    draw(folder)
    name = {"paper": "run"}.get(scenario, scenario)  # with a fault it is not the paper's
    drawn = (folder / "figures" / f"{name}-{kind}.svg").read_text()
    dashed = re.findall(r'<path [^>]*style="[^"]*stroke-dasharray[^"]*stroke: #d00000', drawn)
    assert len(dashed) == 4  # both directions in each of two panels
    assert "Dashed: goes down within the collective, 1.5 ms after its beginning." in drawn
    with (folder / "figures" / f"{name}-{kind}.csv").open() as file:
        rows = list(csv.DictReader(file))
    a, b = cut.split("-")
    assert {(row["src"], row["dst"]) for row in rows if row["fails_s"]} == {(a, b), (b, a)}
    assert {row["fails_s"] for row in rows} == {"", "0.0015"}
    draw(folder, collective=4)  # which begins with the dead link
    assert "Dashed: goes" not in (folder / "figures" / f"{name}-{kind}.svg").read_text()
