"""The table of collectives: closed-form times, shared links, the marked best algorithm, and refused arguments."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.figures.busbw import Row, crossovers, picture
from scenarios import api
from scenarios.engines.base import Failed
from scenarios.engines.model import Model
from scenarios.studies import harness
from scenarios.studies.collectives import STUDY
from tests.conftest import PROJECT
from tests.fakes.commands import assert_refused, printed

main = partial(harness.main, STUDY)

EQUAL = ["intra_rate=80 Gbit/s", "wan_rate=80 Gbit/s", "intra_delay=1 us", "wan_delay=1 ns"]
CONSTANT = [word for text in EQUAL for word in ("--set", f"conditions.{text}")]
GOAL = str(PROJECT / "tests" / "data" / "goal" / "allreduce_ring.goal")
RATE, N = 10e9, 8  # bytes/s, GPUs


def test_a_ring_allreduce_over_equal_links_takes_its_closed_form_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(
        main, capsys, *CONSTANT, "--kind", "allreduce", "--algorithms", "ring", "--from", "8 MB", "--to", "64 MB"
    )
    assert [line["size"] for line in found if line["mode"] == "base"] == [8_000_000, 32_000_000]
    for line in found:
        # The ring crosses the WAN twice; a crossing adds two delays of 1 us, which a chunk meets once in each phase.
        transmission_s = 2 * (N - 1) * line["size"] / N / RATE
        assert transmission_s < line["predicted_s"] < transmission_s + 2 * (N + 1) * 1.001e-6
        assert line["algbw"] == pytest.approx(line["size"] / line["predicted_s"])
        assert line["busbw"] == pytest.approx(line["algbw"] * 2 * (N - 1) / N)
        assert line["shared_links"] == []
        assert sum(line["critical_path"].values()) == pytest.approx(line["predicted_s"])


def test_a_shared_wan_link_is_named_and_its_rate_is_divided_among_the_flows(capsys: pytest.CaptureFixture[str]) -> None:
    """The WAN is so slow that only the crossings of an alltoall matter: 16 messages share one link."""
    slow = ["--set", "conditions.wan_rate=80 Mbit/s", "--set", "conditions.intra_rate=80 Gbit/s"]
    asked = ["--kind", "alltoall", "--modes", "base", "--from", "8 MB", "--to", "8 MB", *slow]
    (line,) = printed(main, capsys, *asked)
    assert "s0b0>s1b0" in line["shared_links"]
    assert line["predicted_s"] == pytest.approx(16 * 1e6 / 10e6, rel=1e-3)
    assert line["bound_s"] < line["predicted_s"]
    assert sum(line["critical_path"].values()) == pytest.approx(line["predicted_s"])


def test_every_output_names_the_grain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In an alltoall, 4 messages of a GPU share its logical link to the border router, and all 7 share its port."""
    asked = ["--kind", "alltoall", "--modes", "base", "--from", "8 MB", "--to", "8 MB", *CONSTANT]
    asked += ["--set", "conditions.wan_rate=80 Tbit/s", "--set", "fabric.leaves=1", "--set", "fabric.spines=4"]
    for grain, messages in (("logical", N // 2), ("physical", N - 1)):
        (line,) = printed(main, capsys, *asked, "--set", f"fabric.grain={grain}")
        assert line["grain"] == grain
        assert line["predicted_s"] == pytest.approx(messages * 1e6 / RATE, rel=0.01)
        figure = str(tmp_path / grain)
        assert main([*asked, "--set", f"fabric.grain={grain}", "--figure", figure]) == 0
        heading, *_ = capsys.readouterr().out.splitlines()
        words = heading.split(", ")
        assert words[0] == "alltoall" and f"{grain} grain" in words and "wan rate 80 Tbit/s" in words
        assert f"{grain} grain" in (tmp_path / f"{grain}.svg").read_text()


def test_the_algorithm_marked_best_for_a_size_is_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--kind", "broadcast", "--modes", "base", "--pieces", "16", "--from", "1 kB", "--factor", "64"]
    found = printed(main, capsys, *asked)
    assert main(asked) == 0
    marked = [row.split() for row in capsys.readouterr().out.splitlines() if row.endswith("best")]
    for size in {line["size"] for line in found}:
        best = min((line for line in found if line["size"] == size), key=lambda line: line["predicted_s"])
        assert [row[4] for row in marked if row[0] == f"{size:,}"] == [best["algorithm"]]


def test_the_figure_marks_where_the_lines_of_the_best_algorithms_cross() -> None:
    """With linear bandwidths a is 1 ahead at 1 and 1 behind at 2, so that the lines cross halfway on the axis of
    sizes; with logarithmic ones where 5 is 4 (6 / 4)^t."""
    rows = [Row("a", "base", size, busbw, False) for size, busbw in ((1, 5.0), (2, 5.0), (3, 5.0))]
    rows += [Row("b", "base", size, busbw, False) for size, busbw in ((1, 4.0), (2, 6.0), (3, 7.0))]
    ((size, *names),) = crossovers(rows, is_log=False)
    assert size == pytest.approx(2**0.5) and names == ["a", "b"]
    ((size, *names),) = crossovers(rows, is_log=True)
    assert 4 * 1.5 ** np.log2(size) == pytest.approx(5) and names == ["a", "b"]


def test_a_label_of_a_crossing_lies_over_no_curve_or_stands_below_the_figure() -> None:
    sizes = (4, 16, 64, 256, 1000)
    of = {"a": (1, 2, 4, 8, 9), "b": (0.5, 1, 3, 7, 12), "c": (0.02, 0.04, 0.1, 0.2, 0.3)}
    for long in ("", "-of-a-long-name"):
        rows = [Row(f"{name}{long}", "base", size * 10**6, value * 1e9, False)
                for name, values in of.items() for size, value in zip(sizes, values, strict=True)]  # fmt: skip
        figure = picture("AllReduce", rows).figure
        figure.draw_without_rendering()
        (axes,), (legend,) = figure.axes, figure.legends
        (dotted,) = (line for line in axes.lines if line.get_linestyle() == ":")
        assert 256e6 < dotted.get_xdata()[0] < 1000e6
        words = f"a{long} | b{long}"
        assert ([one.get_text() for one in axes.texts] == [words]) is (not long)
        assert (words in " ".join(legend.get_title().get_text().split())) is bool(long)
        for label in axes.texts:
            box = label.get_window_extent()
            for line in axes.lines[:3]:
                x, y = axes.transData.transform(line.get_xydata()).T
                at = np.linspace(box.x0, box.x1, 20)
                assert not ((np.interp(at, x, y) > box.y0) & (np.interp(at, x, y) < box.y1)).any()


SLOW_WAN = ["--set", "conditions.wan_rate=80 Mbit/s", "--modes", "base", "-n", "1"]


def nccl(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """Return the lines of the table that nccl-tests would print, in words, without comments."""
    assert main([*CONSTANT, *arguments, "--nccl"]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]


def test_options_and_columns_are_those_of_nccl_tests(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--kind", "all_reduce_perf", "-b", "8M", "-e", "32M", "-f", "2", "-g", "8", "-w", "1", "-c", "0"]
    head, *rows = nccl(capsys, *asked, "--algorithms", "ring", *SLOW_WAN)
    assert " ".join(head) == "size count type redop root" + " time algbw busbw #wrong" * 2
    assert [row[0] for row in rows] == ["8388608", "16777216", "33554432"]  # M is MiB there
    for row in rows:
        assert row[1:5] == [str(int(row[0]) // 4), "uint32", "sum", "-1"] and row[8] == "N/A" and row[9:] == row[5:9]
        assert float(row[7]) == pytest.approx(float(row[6]) * 2 * (N - 1) / N, abs=0.01)
    stepped = nccl(capsys, "--kind", "sendrecv", "-b", "1M", "-e", "3M", "-i", "1M", *SLOW_WAN)
    assert [int(row[0]) for row in stepped[1:]] == [1 << 20, 2 << 20, 3 << 20]


def test_without_algorithms_there_is_one_table_of_the_fastest_at_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    """Small blocks have one delay by `direct`; large ones share fewer bytes of the WAN by `hierarchical-direct`."""
    asked = ["--kind", "all_gather_perf", "-b", "1K", "-e", "1G", "-f", "1024", "-n", "1"]
    lines = printed(main, capsys, *CONSTANT, *asked, "--modes", "base")
    best_s = {size: min(line["predicted_s"] for line in lines if line["size"] == size) for size in (1 << 10, 1 << 20)}
    _, *rows = nccl(capsys, *asked)
    assert [int(row[0]) for row in rows] == [1 << 10, 1 << 20, 1 << 30]
    for row, (size, least_s) in zip(rows, best_s.items(), strict=False):
        assert int(row[0]) == size and float(row[5]) == pytest.approx(1e6 * least_s, abs=0.01)
    assert main([*CONSTANT, *asked, "--nccl"]) == 0
    said = capsys.readouterr().out
    assert said.count("Avg bus bandwidth") == 1 and "mode base" in said and "mode wan" not in said
    assert "direct from 1024 on, hierarchical-direct from 1048576 on, mode base" in said
    assert main([*CONSTANT, *asked, "--nccl", "--algorithms", "ring,direct", "--modes", "base,wan"]) == 0
    assert capsys.readouterr().out.count("Avg bus bandwidth") == 4


def test_every_output_tells_in_how_many_pieces_slots_are_sent(capsys: pytest.CaptureFixture[str]) -> None:
    """A chain of n GPUs passes k pieces on in (n - 1 + k - 1) / k times the time of the whole buffer on a link."""
    asked = ["--kind", "broadcast", "--algorithms", "chain", "--modes", "base", "-b", "8 MB", "-e", "8 MB", *CONSTANT]
    chosen = ["--set", 'collective.pieces="chosen"']
    for options, known in (([], 1), (["--pieces", "4"], 4), (chosen, None)):
        (line,) = printed(main, capsys, *asked, *options)
        pieces = line["pieces"]
        assert pieces == known if known else pieces > 8
        assert line["predicted_s"] == pytest.approx((N - 1 + pieces - 1) / pieces * 8e6 / RATE, rel=0.05)
        assert main([*asked, *options]) == main([*asked, *options, "--nccl"]) == 0
        said = f"every slot is sent in {pieces} piece{'s' * (pieces > 1)}"
        why = (
            " (--pieces); run.py lets the timing model choose" if known else ", chosen by the timing model as in run.py"
        )
        assert capsys.readouterr().out.count(said + why) == 2


@pytest.mark.parametrize(
    ("test", "root", "share", "crossing"),
    [
        # share: the elements of a rank's call in those of the size; crossing: the share of the size on the WAN link
        ("gather", "0", 1 / 8, 4 / 8),
        ("scatter", "0", 1 / 8, 4 / 8),
        ("sendrecv", "-1", 1, 1),
        ("alltoallv", "-1", 1 / 8, sum(q - p for p in range(4) for q in range(4, 8)) / 28),
        ("hypercube", "-1", 1 / 8, 4 * 4 / 8),
    ],
)
def test_the_tests_of_nccl_tests_take_the_time_of_the_slow_wan(
    capsys: pytest.CaptureFixture[str], test: str, root: str, share: float, crossing: float
) -> None:
    """With one slow link between two sites of four GPUs, only the bytes over it matter, of all flows together."""
    (line,) = printed(main, capsys, *CONSTANT, "--kind", test, "-b", "28 MB", "-e", "28 MB", *SLOW_WAN)[:1]
    assert line["predicted_s"] == pytest.approx(28e6 * crossing / 10e6, rel=1e-2)
    assert line["bound_s"] <= line["predicted_s"] and (line["root"], line["redop"]) == (int(root), "none")
    assert line["count_each"] == 28_000_000 // 4 * share
    factor = 1 if test == "sendrecv" else 7 / 8
    assert line["busbw"] == pytest.approx(28e6 / line["predicted_s"] * factor)
    assert line["algbw"] == pytest.approx(line["busbw"] / (1 if test == "hypercube" else factor))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--kind", "hypercube", "-g", "6"], "--kind: a hypercube of 6 GPUs; allowed: a power of two, such as 4"),
        (["-i", "1M", "-f", "2"], "--step and --factor together"),
        (["-b", "1", "-e", "1G", "-i", "1"], "--step: 1 bytes"),
        (["-w", "-1"], "--warmup: -1"),
        (["--kind", "allsum"], "allsum"),
        (["--algorithms", "spiral"], "spiral"),
        (["--from", "8 parsec"], "parsec"),
        (["--from", "8 MB", "--to", "1 MB"], "8,000,000"),
        (["--set", "fabric.gpus=7"], "fabric.gpus"),
        (["--modes", "best"], "best"),
        (["no-such-scenario"], "no-such-scenario"),
        (["--figure", "/no/such/folder/x"], "/no/such/folder"),
        (["--collectives", "0"], "--collectives"),
        (["--jobs", "0"], "--jobs"),
        (["--schedule", "/no/such/x"], "/no/such/x"),
        (["--schedule", GOAL, "--kind", "messages"], '--kind: "messages" has no sizes; allowed: allgather'),
    ],
)
def test_an_invalid_argument_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    assert_refused(main, capsys, arguments, word)


def test_what_a_schedule_file_leaves_out_is_said_beside_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(PROJECT / "tests" / "data" / "msccl" / "allreduce_1step.xml")
    asked = ["--kind", "allreduce", "--schedule", file, "--from", "1 MB", "--to", "1 MB", "--set", "fabric.gpus=4"]
    assert main([*asked, "--collectives", "1", "--modes", "base"]) == 0
    said = capsys.readouterr().err
    assert said.count("collectives.py: allreduce_1step.xml: its steps are proven to do its allreduce, but its") == 1


def test_without_a_vm_predictions_are_printed_with_the_reason_for_no_measurements(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHAUL_KERNEL", "/nonexistent")
    asked = ["--algorithms", "ring", "--from", "8 MB", "--to", "8 MB", "--collectives", "2", "--modes", "base"]
    predicted = printed(main, capsys, *asked)
    assert main([*asked, "--engine", "both", "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out) == predicted and predicted[0]["measured_s"] is None
    last = said.err.splitlines()[-1]
    assert last.startswith("collectives.py: nothing was measured: ") and "/nonexistent" in last
    assert main([*asked, "--engine", "emulation"]) == 3
    said = capsys.readouterr()
    assert said.out == "" and "/nonexistent" in said.err


def test_results_of_the_other_points_are_printed_if_one_point_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailsOnce(Model):
        def run(self, *arguments: Any) -> Any:
            for item in super().run(*arguments):
                lost = item.setting == 0 and item.mode == "base"
                yield Failed(setting=0, mode="base", why="the first point: lost") if lost else item

    monkeypatch.setattr(api, "Model", FailsOnce)
    asked = ["--algorithms", "ring", "--from", "8 MB", "--to", "32 MB", "--json"]
    assert main(asked) == 1
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "collectives.py: the first point: lost"
    found = [(line["size"], line["mode"]) for line in json.loads(said.out)]
    assert found == [(8_000_000, "wan"), (32_000_000, "base"), (32_000_000, "wan")]
