"""`run.py diloco`: its bandwidths against closed forms and the paper's table, its figure and its error messages."""

import csv
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import pytest

from scenarios.studies import harness
from scenarios.studies.diloco import LEVELS, MODELS, PAPER, STUDY
from tests.fakes.commands import assert_refused, printed

main = partial(harness.main, STUDY)
# One bucket, so that no sum begins before the step is over.
OWN = ("--parameters", "1e6", "--layers", "1", "--step", "90 ms", "--every", "12", "--fragments", "4", "--bits", "8")
FAR = ("--set", "conditions.wan_delay=20 ms", "--from", "1 Mbit/s", "--to", "10 Gbit/s")
METHODS = {  # steps between two sums, fragments, overlap, bits
    "data parallel": (1, 1, 0, 16),
    "DiLoCo (local SGD)": (12, 1, 0, 16),
    "Streaming DiLoCo": (12, 4, 0, 16),
    "Streaming, overlapped": (12, 4, 1, 16),
    "Streaming, overlapped, fewer bits": (12, 4, 1, 8),
    "Decoupled, fewer bits": (12, 4, 1, 16),  # to the syncer and back: twice as many bytes
}


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    found: Any = printed(main, capsys, *arguments)
    return {line["method"]: line for line in found}


def test_the_least_bandwidths_are_those_of_the_closed_forms(capsys: pytest.CaptureFixture[str]) -> None:
    """A round is H c + P max(0, T - tau c), where two sites exchange a fragment in T = 2 (half of it / rate + delay).
    Four delays of 20 ms in a sum for a step of 90 ms leave data parallelism, at any rate, below 80 %."""
    found = lines(capsys, *OWN, *FAR)
    assert list(found) == list(METHODS)
    for method, (every, fragments, overlap, bits) in METHODS.items():
        utilisation = {int(rate): share for rate, share in found[method]["utilisation"].items()}
        assert len(utilisation) > 30 and min(utilisation) == 1e6 and max(utilisation) == 10e9
        for rate, share in utilisation.items():
            sum_s = 1e6 * bits / fragments / rate + 2 * (20e-3 + 2e-6)
            round_s = every * 90e-3 + fragments * max(0.0, sum_s - overlap * 90e-3)
            assert share == pytest.approx(every * 90e-3 / round_s, rel=1e-3)
        for level in LEVELS:
            spare_s = every * 90e-3 * (100 / level - 1) / fragments + overlap * 90e-3 - 2 * 20e-3
            least_bps = found[method]["least_bps"][str(level)]
            if spare_s <= 0:
                assert least_bps is None
            else:
                assert least_bps == pytest.approx(1e6 * bits / fragments / spare_s, rel=1e-3)
    assert found["data parallel"]["least_bps"]["80"] is None
    assert found["Streaming, overlapped"]["least_bps"]["99"] < 100e6


def test_sums_of_layers_follow_each_other_one_delay_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A third of a step is forward. The second half of a layer's sum leaves once the first half has come, a delay
    later, and the next sum at once: L layers take L delays beside their bytes, and the last half another one."""
    layers, step_s, delay_s = 8, 90e-3, 20e-3
    shape = ("--parameters", "1e6", "--layers", str(layers), "--step", "90 ms", "--every", "12")
    found = lines(capsys, *shape, *FAR)["data parallel"]
    rates = {int(rate): share for rate, share in found["utilisation"].items() if float(rate) > 1e9}
    assert len(rates) >= 8
    for rate, share in rates.items():
        half_s = 1e6 * 16 / layers / 2 / rate
        took_s = step_s * (1 / 3 + 2 / 3 / layers) + layers * (2 * half_s + delay_s) + delay_s
        assert share == pytest.approx(step_s / took_s, rel=1e-3)


def test_the_papers_bandwidths_are_those_of_somewhat_smaller_models(capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's simulator and this model differ by the same factor for all methods, except where one message of
    several layers, which the paper sends layer by layer, is all that no step hides (99 %, and Streaming without
    overlap)."""
    found = lines(capsys, "--model", "1B")
    for method, line in found.items():
        if method not in PAPER["1B"]:
            assert method == "Decoupled, fewer bits" and line["paper_gbps"] is None
            continue
        assert line["paper_gbps"] == list(PAPER["1B"][method])
        for level, paper_gbps in zip(LEVELS, PAPER["1B"][method], strict=True):
            if level <= 95 and paper_gbps >= 1:  # the paper gives one digit after the point, in steps of 1.2
                assert 0.95 < line["least_bps"][str(level)] / 1e9 / paper_gbps < 1.35, (method, level)
    assert set(MODELS) == set(PAPER)
    for other in (("--every", "50"), ("--set", "conditions.wan_delay=20 ms")):
        changed = lines(capsys, "--model", "1B", *other, "--from", "5 Gbit/s", "--to", "20 Gbit/s")
        assert changed["DiLoCo (local SGD)"]["paper_gbps"] is None


def test_the_table_tells_what_no_bandwidth_reaches_and_the_figure_has_all_points(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*OWN, *FAR[:2], "--from", "100 Mbit/s", "--to", "1 Gbit/s", "--figure", str(tmp_path / "shown")]) == 0
    told = capsys.readouterr().out
    assert "data parallel more than 1 Gbit/s; DiLoCo (local SGD) 0.2 Gbit/s; " in told
    assert (
        "1M parameters in 1 layer, a step of 0.09 s, a sum every 12 steps, 4 fragments, overlapped with 1 step, fewer "
        "bits: 8, WAN delay 20 ms; predicted" in told
    )
    assert '"all": 100 Mbit/s is enough.' in told and '"none": 1 Gbit/s is not enough.' in told
    with (tmp_path / "shown.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {*METHODS} and len(rows) >= 5 * 9


def test_one_bandwidth_gives_the_utilisations_there_and_all_that_the_answer_holds_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The oracle is the closed form above; a model of one's own says which layers it has from another one."""
    own = (
        "--parameters",
        "1e6",
        "--step",
        "90 ms",
        "--layers",
        "1",
        "--every",
        "12",
        "--fragments",
        "4",
        "--bits",
        "8",
    )
    at = ("--from", "25 Mbit/s", "--to", "25 Mbit/s", "--set", "conditions.wan_delay=50 ms")
    found = lines(capsys, *own, *at)
    told = (main([*own, *at, "--figure", str(tmp_path / "one")]), capsys.readouterr().out)[1]
    for method, (every, fragments, overlap, bits) in METHODS.items():
        sum_s = 1e6 * bits / fragments / 25e6 + 2 * 50e-3
        share = every * 90e-3 / (every * 90e-3 + fragments * max(0.0, sum_s - overlap * 90e-3))
        assert list(found[method]["utilisation"]) == ["25000000"]
        assert found[method]["utilisation"]["25000000"] == pytest.approx(share, rel=1e-3)
        assert f"{method} {100 * share:.1f} %" in told and found[method]["parameters"]["wan_delay"] == "WAN delay 50 ms"
    assert "Of the time at 25 Mbit/s, this is computing: data parallel " in told and "at 0.025 Gbit/s (%)" in told
    assert "WAN delay 50 ms" in (tmp_path / "one.json").read_text()
    main([*(word for word in own if word not in ("--layers", "1")), *at])
    assert "48 layers taken from the model 10B; --layers and --step set others" in capsys.readouterr().err


@pytest.mark.parametrize(("minutes", "there"), [(10, 6 / 7), (60, 1 / 2)])
def test_goodput_while_sites_die_and_return_is_near_the_binomial_sum(
    capsys: pytest.CaptureFixture[str], minutes: int, there: float
) -> None:
    """A round of 12 steps takes 1.08 s, so an outage of ten minutes costs little more than itself."""
    failing = ("--sites", "5", "--quorum", "3", "--between", "1 h", "--outage", f"{minutes} min", "--from", "5 Gbit/s")
    found = lines(capsys, *OWN, "--to", "10 Gbit/s", *failing)
    assert [line["method"] for line in found.values() if "failing" in line] == ["Decoupled, fewer bits"]
    line = found["Decoupled, fewer bits"]
    assert (line["training"]["sites"], line["training"]["quorum"]) == (5, 3)
    binomial = {
        quorum: sum(k / 5 * comb(5, k) * there**k * (1 - there) ** (5 - k) for k in range(quorum, 6))
        for quorum in (5, 3)
    }
    assert [one["quorum"] for one in line["failing"]] == [5, 3]
    for one in line["failing"]:
        assert one["binomial"] == pytest.approx(binomial[one["quorum"]])
        assert one["goodput"] == pytest.approx(binomial[one["quorum"]], abs=0.03)
        assert 0 < one["lost"] < 0.01  # a few seconds of each hour
    assert main([*OWN, "--to", "10 Gbit/s", *failing]) == 0
    told = capsys.readouterr().out
    assert f"Goodput of 5 sites that die every 1 h, for {minutes} min; predicted" in told and "\n3 of 5 " in told


def test_a_grace_time_costs_nothing_where_all_sites_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    some = ("--from", "100 Mbit/s", "--to", "200 Mbit/s", "--sites", "3", "--quorum", "1")
    without, graced = (lines(capsys, *OWN, *some, *more) for more in ((), ("--grace", "1 s")))
    assert graced["Decoupled, fewer bits"]["training"]["grace"] == "1 s"
    assert graced["Decoupled, fewer bits"]["utilisation"] == without["Decoupled, fewer bits"]["utilisation"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--fragments", "200"), "training.fragments of 200 with training.every of 100; allowed: 1 to 100"),
        (("--overlap", "7"), "training.overlap of 7 with training.every of 100 and training.fragments of 16"),
        (("--step", "1"), '--step: "1" is not a delay'),
        (("--from", "2 Gbit/s", "--to", "1 Gbit/s"), "--to: 1 Gbit/s; allowed: from --from, 2 Gbit/s, up"),
        (("--parameters", "0"), "--parameters: 0"),
        (("--layers", "300"), "--layers: 300; allowed: 1 to 256"),
        (("--bits", "64"), "training.bits: 64 is too large"),
        (("--sites", "1"), "--sites: 1; allowed: 2 to 64"),
        (("--sites", "4", "--quorum", "5"), "--quorum: 5; allowed: 1 to 4"),
        (("--between", "10 h"), "--outage is missing, which --between needs; allowed: both or none"),
        (("--between", "10 years", "--outage", "1 h"), '--between: "10 years" has the wrong unit for a time'),
    ],
)
def test_options_that_describe_no_training_are_refused(
    capsys: pytest.CaptureFixture[str], typed: tuple[str, ...], says: str
) -> None:
    assert_refused(main, capsys, typed, says)
