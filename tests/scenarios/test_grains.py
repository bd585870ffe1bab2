"""Comparison of algorithms with the ring in both grains: closed forms, reversed orders, the figure, and refusals."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import Flow
from scenarios.studies import harness
from scenarios.studies.grains import STUDY
from tests.fakes.commands import assert_refused, printed

main = partial(harness.main, STUDY)

Lines = dict[tuple[str, str, str, int], dict[str, Any]]

# With one leaf per site and a negligibly fast and near WAN, only the rate of the GPUs' cables matters.
PLAIN = ("fabric.leaves=1", "conditions.intra_rate=80 Gbit/s", "conditions.wan_rate=80 Tbit/s")
NO_DELAYS = ("conditions.intra_delay=1 ns", "conditions.wan_delay=1 ns")


def lines(capsys: pytest.CaptureFixture[str], *arguments: str, settings: tuple[str, ...] = ()) -> Lines:
    """Return the printed lines by grain, kind, algorithm and number of GPUs."""
    found = printed(main, capsys, *arguments, *(word for text in settings for word in ("--set", text)))
    assert all(line["grain"] == grain for grain, own in found.items() for line in own)
    return {
        (line["grain"], line["kind"], line["algorithm"], line["gpus"]): line for own in found.values() for line in own
    }


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_hierarchical_direct_takes_its_closed_form_time_in_both_grains(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """With two sites of m GPUs, each of the two exchanges within a site takes the time of one block over logical links;
    over one port per direction a GPU sends 2m - 1 blocks, as in the ring."""
    asked = ("--kinds", kind, "--algorithms", "hierarchical-direct", "--gpus", "4,8,16", "--collectives", "1")
    found = lines(capsys, *asked, "--size", "80 MB", settings=PLAIN + NO_DELAYS)
    for gpus in (4, 8, 16):
        phases, block_s = {"allgather": 1, "allreduce": 2}[kind], 80e6 / gpus / 10e9
        for grain, blocks in (("logical", 2), ("physical", gpus - 1)):
            assert found[grain, kind, "ring", gpus]["predicted_s"] == pytest.approx(
                phases * (gpus - 1) * block_s, rel=1e-3
            )
            direct = found[grain, kind, "hierarchical-direct", gpus]
            assert direct["predicted_s"] == pytest.approx(phases * blocks * block_s, rel=1e-3)
            assert direct["over_ring"] == pytest.approx(blocks / (gpus - 1), rel=1e-3)
            assert direct["low"] == direct["high"] == pytest.approx(direct["over_ring"], rel=1e-12)
            assert direct["measured_s"] is None


def test_hierarchical_direct_sends_each_block_over_the_wan_once_and_to_its_whole_site() -> None:
    found = schedule("allgather", "hierarchical-direct", sites=(3, 5))
    crossing = [(flow, one) for flow, one in found.sends() if (flow.src < 3) != (flow.dst < 3)]
    assert sorted(flow.src for flow, _ in crossing) == list(range(8))
    assert all([slot for slot, _ in one.slots] == [flow.src] for flow, one in crossing)
    within = {flow for flow, _ in found.sends() if (flow.src < 3) == (flow.dst < 3)}
    assert within == {Flow(a, b) for a in range(8) for b in range(8) if a != b and (a < 3) == (b < 3)}


def test_algorithms_that_beat_the_ring_over_logical_links_lose_to_it_over_ports(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = lines(capsys, "--gpus", "16", "--algorithms", "hierarchical-direct,double-tree", "--collectives", "100")
    for kind, algorithm, less in (("allgather", "hierarchical-direct", 0.4), ("allreduce", "double-tree", 0.8)):
        logical, physical = (found[grain, kind, algorithm, 16] for grain in ("logical", "physical"))
        assert logical["low"] < logical["over_ring"] < logical["high"] < less
        assert 1 < physical["low"] < physical["over_ring"] < physical["high"]
    assert [found["logical", "allreduce", name, 16]["pieces"] for name in ("ring", "double-tree")] == [1, 16]


def test_one_table_is_printed_for_each_grain(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--kinds", "allgather", "--gpus", "4", "--algorithms", "direct", "--collectives", "2"]
    assert main(asked) == 0
    tables = [text.splitlines() for text in capsys.readouterr().out.split("\n\n")]
    assert [table[0] for table in tables] == ["logical grain", "physical grain"]
    for _, heads, *rows in tables:
        assert "measured" not in heads
        assert [row.split()[3] for row in rows] == ["ring", "direct"]
        assert rows[0].split()[-1] == "1.000"


def test_the_figure_is_written_as_svg_and_png_with_its_data_as_csv_and_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("--gpus", "4,8", "--algorithms", "bruck,chain", "--collectives", "60", "--figure", str(tmp_path / "both"))
    found = lines(capsys, *asked)
    rows = list(csv.DictReader((tmp_path / "both.csv").open()))
    assert len(rows) == len(found) == 2 * 2 * 3 + 2 * 2 * 2
    for row in rows:
        line = found[row["grain"], row["kind"], row["algorithm"], int(row["gpus"])]
        assert float(row["over_ring"]) == line["over_ring"]
    svg = (tmp_path / "both.svg").read_text()
    assert all(word in svg for word in ("allgather, logical grain", "allreduce, physical grain", "bruck", "8 GPUs"))
    assert (tmp_path / "both.png").stat().st_size > 1000
    assert json.loads((tmp_path / "both.json").read_text()).keys() == {"logical", "physical"}


def test_both_grains_are_measured_as_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--engine", "emulation", "--kinds", "allgather", "--gpus", "4", "--collectives", "2", "--size", "16 MB")
    found = lines(capsys, *asked, "--algorithms", "hierarchical-direct")
    assert len(found) == 4
    for line in found.values():
        assert line["measured_s"] == pytest.approx(line["predicted_s"], rel=0.005)
        assert line["measured_over_ring"] == pytest.approx(line["over_ring"], rel=0.005)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--grains", "logical,virtual"], "virtual"),
        (["--kinds", "alltoall"], "--kinds: 'alltoall' has no ring"),
        (["--kinds", "allsum"], "--kinds: 'allsum'"),
        (["--algorithms", "spiral"], "--algorithms: 'spiral'; allowed: ring"),
        (["--gpus", "eight"], "--gpus: eight"),
        (["--gpus", "7"], "7 GPUs"),
        (["--mode", "best"], "best"),
        (["--size", "8 parsec"], "parsec"),
        (["--pieces", "0"], "pieces"),
        (["--collectives", "0"], "--collectives: 0; allowed: 1 to"),
        (["--jobs", "0"], "--jobs: 0"),
        (["--set", "fabric.spines=0"], "fabric.spines"),
        (["--set", "sweep.run.seed=[1, 2]"], "sweep of run.seed"),
        (["--set", "fabric.grain=logical"], "--set fabric.grain: is set for every row; allowed: --grains"),
        (["--set", "job=[{}]"], "paper has jobs, which have algorithms of their own; allowed: none"),
        (["--figure", "/no/such/folder/x"], "/no/such/folder"),
        (["--figure", "/proc/x"], "--figure: /proc cannot be written to"),
    ],
)
def test_an_invalid_argument_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert_refused(main, capsys, arguments, says)
