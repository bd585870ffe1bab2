"""The referees: every mode's time beside the fastest ring, the best schedule and the bound, in order."""

import json
import sys
from typing import Any

import pytest

from scenarios.referees import main

FOUR = ("--set", "fabric.gpus=4")


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("delay", ["10 us", "10 ms"])
@pytest.mark.parametrize("gpus", ["4", "8", "14"])
def test_no_mode_beats_the_fastest_ring_and_no_ring_its_bounds(
    gpus: str, delay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("--set", f"fabric.gpus={gpus}", "--set", f"conditions.wan_delay={delay}")
    for line in lines(capsys, "--collectives", "5", "--seconds", "0", *keys):
        assert line["bound_s"] <= line["ring_bound_s"] * (1 + 1e-12) <= line["ring_s"] * (1 + 2e-12)
        best_mode_s = min(line["modes_s"].values())
        assert line["ring_bound_s"] <= best_mode_s * (1 + 1e-12)
        if int(gpus) <= 8:
            assert line["ring_bound_s"] == line["ring_s"] <= best_mode_s * (1 + 1e-12)
        assert line["schedule_s"] is line["schedule_bound_s"] is line["proven"] is None


def test_without_or_tools_a_line_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert main(["--collectives", "1", *FOUR]) == 0
    out, said = capsys.readouterr()
    assert "pip install 'longhaul[optimum]'" in said and "Traceback" not in said
    assert "fastest ring" in out and "proven" not in out


@pytest.mark.optimum
@pytest.mark.parametrize("kind", ["allgather", "broadcast", "alltoall", "scatter", "gather"])
@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_the_best_schedule_of_four_gpus_is_proven_and_between_the_bound_and_the_modes(
    kind: str, grain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("--set", f"collective.kind={kind}", "--set", f"fabric.grain={grain}")
    for line in lines(capsys, "--collectives", "2", *FOUR, *keys):
        assert line["proven"]
        assert line["bound_s"] <= line["schedule_bound_s"] <= line["schedule_s"]
        if (kind, grain) == ("allgather", "logical"):
            assert line["schedule_s"] <= line["ring_s"] <= min(line["modes_s"].values()) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--collectives", "0"], "--collectives: 0: allowed is 1 to 1,000"),
        (["--seconds", "-1"], "--seconds: -1.0: allowed is 0"),
        (["tenants"], "tenants has jobs, faults or messages"),
        (["--set", "fabric.gpu=8"], "did you mean gpus?"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
