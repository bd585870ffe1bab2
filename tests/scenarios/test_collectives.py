"""The table of collectives: its numbers by hand, what it says of shared links, and its refusals."""

import json
from itertools import pairwise

import pytest

from analysis.figures.busbw import crossovers
from scenarios.collectives import main

EQUAL = ["intra_rate=80 Gbit/s", "wan_rate=80 Gbit/s", "intra_delay=1 us", "wan_delay=1 ns"]
CONSTANT = [word for text in EQUAL for word in ("--set", f"conditions.{text}")]
RATE, N = 10e9, 8  # bytes a second, GPUs


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_equal_links_give_the_closed_form_of_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, *CONSTANT, "--kind", "allreduce", "--algorithms", "ring", "--from", "8 MB", "--to", "64 MB")
    assert [line["size"] for line in found if line["mode"] == "base"] == [8_000_000, 32_000_000]
    for line in found:
        # Two crossings of the WAN with two delays of 1 us each, of which a chunk meets both once in each phase.
        transmission_s = 2 * (N - 1) * line["size"] / N / RATE
        assert transmission_s < line["time_s"] < transmission_s + 2 * (N + 1) * 1.001e-6
        assert line["algbw"] == pytest.approx(line["size"] / line["time_s"])
        assert line["busbw"] == pytest.approx(line["algbw"] * 2 * (N - 1) / N)
        assert line["shared_links"] == []


def test_flows_that_share_a_link_are_named_and_marked(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = lines(capsys, "--kind", "alltoall", "--modes", "base", "--from", "1 MB", "--to", "1 MB")
    assert line["shared_links"]
    assert main(["--kind", "alltoall", "--modes", "base", "--from", "1 MB", "--to", "1 MB"]) == 0
    assert "direct *" in capsys.readouterr().out


def test_the_best_of_a_size_is_faster_than_all_others_and_the_figure_marks_where_it_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = lines(capsys, *CONSTANT, "--kind", "broadcast", "--modes", "base", "--pieces", "16", "--from", "1 kB")
    rows = [(line["algorithm"], "base", line["size"], line["busbw"], bool(line["shared_links"])) for line in found]
    best = {}
    for line in (line for line in found if not line["shared_links"]):
        best.setdefault(line["size"], []).append((line["time_s"], line["algorithm"]))
    winners = [min(best[size])[1] for size in sorted(best)]
    steps = zip(sorted(best)[1:], pairwise(winners), strict=True)
    changes = [(size, (before, after)) for size, (before, after) in steps if before != after]
    assert crossovers(rows) == changes
    assert changes


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--kind", "allsum"], "allsum"),
        (["--algorithms", "spiral"], "spiral"),
        (["--from", "8 parsec"], "parsec"),
        (["--from", "8 MB", "--to", "1 MB"], "8,000,000"),
        (["--set", "fabric.gpus=7"], "fabric.gpus"),
        (["--modes", "best"], "best"),
        (["no-such-scenario"], "no-such-scenario"),
    ],
)
def test_a_mistake_is_a_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    assert main(arguments) == 2
    assert word in capsys.readouterr().err
