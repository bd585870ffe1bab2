"""Which declared faults the timing model's times are without, as its answer, report and captions tell."""

import json

import pytest

from analysis.figures.__main__ import draw
from analysis.report import __main__ as report
from analysis.statistics.declared_faults import declared, unmodelled_sentence
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
        assert {"paper.svg", "paper-cdf.svg", "paper-over-time.svg"} <= {*captioned}, captioned
        assert "paper-fidelity.svg" not in captioned
