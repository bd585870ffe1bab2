"""Figures of any collective: their schedules, critical paths and sizes, checked against the stored rows."""

import csv
import itertools
import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.figures import busbw
from analysis.figures.__main__ import draw, main
from analysis.figures.busbw import Row
from analysis.figures.collective_detail import collectives_of
from analysis.figures.run_points import configurations_of, points_of
from analysis.report import __main__ as report
from analysis.results.reader import open_run
from analysis.results.schema import SCHEMAS
from tests.analysis.test_results import OLD
from tests.fakes.stored import write_run
from topologies.fabric.fabric import GRAINS

EQUAL = {  # 10 GB/s everywhere
    "conditions.intra_rate": "80 Gbit/s",
    "conditions.wan_rate": "80 Gbit/s",
    "conditions.intra_delay": "1 us",
    "conditions.wan_delay": "1 us",
}
MODES = {"run.modes": ["base", "joint"]}


def data(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "figures" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def stored(folder: Path, name: str = "collectives") -> pd.DataFrame:
    return pq.read_table(folder / f"{name}.parquet").to_pandas()


def words(folder: Path) -> str:
    """Return the text of all SVG figures of a run."""
    return "\n".join(" ".join(ET.parse(path).getroot().itertext()) for path in (folder / "figures").glob("*.svg"))


KINDS = {
    "a ring": {},
    "a ring's sums": {"collective.kind": "allreduce", "collective.channels": 2},
    "halving-doubling": {"collective.kind": "reducescatter", "collective.algorithm": "halving-doubling"},
    "a chain": {"collective.kind": "broadcast", "collective.algorithm": "chain", "collective.pieces": 5},
    "a tree": {"collective.kind": "reduce", "collective.algorithm": "double-tree", "collective.pieces": 3},
    "sites": {"collective.kind": "allreduce", "collective.algorithm": "hierarchical", "fabric.gpus": [3, 5]},
    "direct": {"collective.kind": "alltoall", "fabric.gpus": 6},
}


SLOW = ("halving-doubling", "a tree")  # whose figures differ least from those of the others


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, one in KINDS.items()],
)
def run(request, tmp_path_factory) -> Path:
    """A reported run of a collective, measured in base and joint."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    write_run(folder, overrides={"fabric.gpus": 4} | MODES | request.param, modelled=12, emulated=2)
    report.write(folder)
    return folder


def follows(late: dict[str, str], early: dict[str, str]) -> bool:
    """Return whether `late` begins when `early` has arrived at its source GPU, or has left the same flow."""
    begins_s, arrives_s = float(late["leaves_s"]), float(early["end_s"])
    ends = [(move["src"], move["dst"], move.get("channel")) for move in (late, early)]
    waited = early["dst"] == late["src"] and abs(begins_s - arrives_s) < 3e-9  # stored in ns
    return waited or (ends[0] == ends[1] and abs(begins_s - (arrives_s - float(early["delay_s"]))) < 3e-9)


def test_the_critical_path_runs_from_start_to_end_without_a_gap(run):
    rows = stored(run).query("engine == 'emulation' and collective == 0").set_index("mode")
    trace = json.loads((run / "figures" / "run-timeline.json").read_text())
    for place, mode in enumerate(("base", "joint"), 1):
        moves = [row for row in data(run, "run-timeline") if row["mode"] == mode]
        path = sorted((row for row in moves if row["critical"] == "True"), key=lambda row: float(row["end_s"]))
        last_s = max(float(row["end_s"]) for row in moves)
        assert float(path[0]["leaves_s"]) == 0 and float(path[-1]["end_s"]) == last_s
        assert all(follows(late, early) for early, late in itertools.pairwise(path))
        events = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == place]
        assert sum(event["args"]["critical"] for event in events) == len(path)
        spent = trace["otherData"]["critical_path_s"][mode]
        assert sum(sum(cost.values()) for cost in spent.values()) == pytest.approx(last_s, rel=1e-12)
        assert last_s == pytest.approx(rows.predicted_s[mode], abs=2e-9)


def test_the_timeline_of_any_collective_shows_every_measured_transfer(run):
    table = stored(run, "transfers").query("collective == 0")
    for mode, here in table.groupby("mode"):
        moves = [row for row in data(run, "run-timeline") if row["mode"] == mode]
        assert len(moves) == len(here)
        drawn = sorted((int(m["step"]), m["src"], m["dst"], float(m["start_s"]), float(m["end_s"])) for m in moves)
        measured = zip(*(here[name] for name in ("step", "src", "dst", "start_s", "end_s")), strict=True)
        assert drawn == sorted((step, f"g{src}", f"g{dst}", *times) for step, src, dst, *times in measured)
        if "transfer" in moves[0]:  # an index in program order, which is the order of the table
            blocks = {int(m["transfer"]): m.get("block", "") for m in moves}
            assert [blocks[i] or "-1" for i in range(len(here))] == [str(chunk) for chunk in here.chunk]


@pytest.mark.parametrize("grain", GRAINS)
def test_timeline_rates_carry_every_message_in_full_and_exceed_no_link_rate(tmp_path, grain):
    values = {"fabric.gpus": 6, "fabric.grain": grain, "collective.kind": "alltoall"}
    write_run(tmp_path / "run", overrides=values | {"run.modes": ["base"]}, modelled=3, emulated=2)
    run = open_run(tmp_path / "run")
    (configuration,) = configurations_of(run)
    (one,) = collectives_of(run, points_of(run, [configuration]), configuration, number=1)
    assert len(one.spans) == len(one.transfers) == 30
    carried = {timed.transfer: 0.0 for timed in one.transfers}
    used: dict[tuple[int, float], float] = {}
    for timed in one.transfers:
        flow = one.flows[timed.flow]
        for start_s, end_s, share in one.spans[timed.transfer]:
            assert 0 < share <= 1 + 1e-9
            carried[timed.transfer] += share * flow.rate_bps * (end_s - start_s) / 8
            for link in flow.links:
                used[link, start_s] = used.get((link, start_s), 0.0) + share * flow.rate_bps
    assert carried == pytest.approx({timed.transfer: timed.size for timed in one.transfers}, rel=1e-6)
    assert all(bps <= one.rates_bps[link] * (1 + 1e-9) for (link, _), bps in used.items())
    report.write(tmp_path / "run")
    assert "Filled: the predicted rate of a message over time" in " ".join(words(tmp_path / "run").split())


@pytest.mark.parametrize("engines", [("model",), ("model", "emulation")])
def test_the_timeline_of_jobs_with_classes_shows_the_rates_their_classes_get(tmp_path, engines):
    jobs = [
        {"name": "a", "ranks": [0, 2], "class": "gold", "size": "4 MB"},
        {"name": "b", "ranks": [1, 3], "class": "bronze", "size": "4 MB"},
    ]
    values = {"fabric.gpus": 4, "collective.kind": "alltoall", "job": jobs, "run.modes": ["base"]} | EQUAL
    values["class"] = [{"name": "gold", "priority": 0}, {"name": "bronze", "priority": 1, "share": 0.25}]
    write_run(tmp_path / "run", overrides=values, modelled=3, emulated=2, engines=engines)
    report.write(tmp_path / "run")
    assert (tmp_path / "run" / "figures" / "run-timeline.svg").exists()
    run = open_run(tmp_path / "run")
    (configuration,) = configurations_of(run)
    (one,) = collectives_of(run, points_of(run, [configuration]), configuration, number=1)
    assert one.measured == ("emulation" in engines)
    shares = {(one.flows[timed.flow].src, timed.transfer): one.spans[timed.transfer] for timed in one.transfers}
    # Both directions of both jobs at once: gold has three quarters until it ends; then bronze has all of the link.
    gold, bronze = ([spans for (src, _), spans in shares.items() if src in those] for those in ((0, 2), (1, 3)))
    assert all([round(share, 9) for _, _, share in spans] == [0.75] for spans in gold)
    assert all([round(share, 9) for _, _, share in spans] == [0.25, 1] for spans in bronze)


def test_only_allgather_figures_and_reports_speak_of_chunks_and_ring_edges(run):
    kind = json.loads((run / "settings.json").read_text())[0]["values"]["collective.kind"]
    page = (run / "report.html").read_text()
    page = re.sub(r"base64,[^\"]*|<pre>.*?</pre>|<style>.*?</style>", "", page, flags=re.DOTALL)
    for text in (words(run), page):
        found = {name for name in ("AllGather", "chunk", "ring edge") if re.search(rf"\b{name}s?\b", text)}
        assert found == ({"AllGather", "chunk", "ring edge"} if kind == "allgather" else set())


def test_the_fabric_figure_lists_the_flows_that_use_each_link(run):
    timeline = data(run, "run-timeline")
    for mode in ("base", "joint"):
        via: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
        for move in timeline:
            if move["mode"] == mode:
                for hop in itertools.pairwise(move["via"].split(">")):
                    via[hop].add((move["src"], move["dst"], move.get("channel", "")))
        for link in data(run, "run-fabric"):
            if link["mode"] == mode:
                flows = link["edge" if "edge" in link else "flows"].split()
                assert len(flows) == len(via[link["src"], link["dst"]])


def test_on_equal_links_a_pipelined_chain_timeline_equals_its_closed_form(tmp_path):
    """Hop h of piece p begins after h hops and p pieces, and the last piece crosses all of them."""
    pieces, size = 4, 40_000_000
    chain = {"collective.kind": "broadcast", "collective.algorithm": "chain", "collective.pieces": pieces}
    overrides = EQUAL | {"fabric.gpus": 4, "run.modes": ["base"], "collective.size": f"{size} B"} | chain
    run = write_run(tmp_path / "run", overrides=overrides, modelled=3, engines=("model",))
    draw(run)
    piece_s = size / pieces / 10e9
    delays_s = [1e-6, 3e-6, 1e-6]  # the second hop crosses the WAN: into it, over it and out of it
    moves = data(run, "run-timeline")
    assert len(moves) == 3 * pieces
    seen: dict[str, int] = defaultdict(int)
    for move in sorted(moves, key=lambda move: int(move["transfer"])):
        hop, piece = int(move["src"][1:]), seen[move["src"]]
        seen[move["src"]] += 1
        begins_s = (hop + piece) * piece_s + sum(delays_s[:hop])
        assert float(move["leaves_s"]) == pytest.approx(begins_s, rel=1e-12)
        assert float(move["end_s"]) == pytest.approx(begins_s + piece_s + delays_s[hop], rel=1e-12)
        assert int(move["bytes"]) == size / pieces
    spent = json.loads((run / "figures" / "run-timeline.json").read_text())["otherData"]["critical_path_s"]["base"]
    assert sum(cost["delay_s"] for cost in spent.values()) == pytest.approx(5e-6)
    assert sum(cost["sending_s"] for cost in spent.values()) == pytest.approx((2 + pieces) * piece_s)


def test_a_timeline_of_many_flows_draws_the_critical_path_and_counts_omitted_rows(tmp_path):
    overrides = {"fabric.gpus": 16, "collective.kind": "alltoall"} | MODES
    run = write_run(tmp_path / "run", overrides=overrides, modelled=3, engines=("model",))
    draw(run)
    svg = (run / "figures" / "run-timeline.svg").read_text()
    assert "208 of 240 rows are left out" in svg
    labels = re.findall(r"(g\d+) → (g\d+)", svg)
    moves = data(run, "run-timeline")
    assert len(moves) == 2 * 240  # the CSV has all transfers
    critical = {(move["src"], move["dst"]) for move in moves if move["critical"] == "True"}
    assert critical <= {*labels} and 32 <= len({*labels}) < 2 * 36
    # The earliest and the latest of all flows are among those that differ most.
    of_base = [move for move in moves if move["mode"] == "base"]
    ends = sorted(float(move["end_s"]) for move in of_base)
    shown = {float(move["end_s"]) for move in of_base if (move["src"], move["dst"]) in labels}
    assert min(shown) == ends[0] and max(shown) == ends[-1]


def by_hand(tmp_path: Path, schedule: dict[str, object], *, completion_s: float, paths: list[int]) -> Path:
    """Write a run over equal links whose schedule, completion time and paths are replaced by these."""
    overrides = EQUAL | {"fabric.gpus": 4, "run.modes": ["base"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=2, engines=("model",))
    settings = json.loads((run / "settings.json").read_text())
    settings[0]["values"]["collective.kind"] = "messages"
    settings[0]["schedule"] = schedule
    (run / "settings.json").write_text(json.dumps(settings))
    table = pq.read_table(run / "collectives.parquet")
    for name, value in (("completion_s", completion_s), ("predicted_s", completion_s), ("paths", paths)):
        place = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(place, field, pa.array([value] * len(table), field.type))
    pq.write_table(table, run / "collectives.parquet")
    return run


SCHEDULE = {
    "algorithm": "file",
    "slot_bytes": 10_000_000,
    "flows": [[0, 1, 0], [1, 0], [1, 2, 0]],
    "transfers": [[0, 1, [], -1], [1, 0.25, [0], -1], [2, 2, [1], -1]],
}


@pytest.mark.parametrize("measured", [False, True])
def test_a_computation_has_its_own_timeline_row_and_its_time_on_the_critical_path(tmp_path, measured):
    """10 MB to g1 take 1 ms and a delay; g1 computes for 250 ms; 20 MB go over the WAN to g2."""
    run = by_hand(tmp_path, SCHEDULE, completion_s=0.253004, paths=[-1, -1, 0])
    if measured:  # computations are not in the transfers table
        table = pq.read_table(run / "collectives.parquet")
        field = table.schema.field("engine")
        table = table.set_column(0, field, pa.array(["emulation"] * len(table), field.type))
        pq.write_table(table, run / "collectives.parquet")
        rows = [(1, 0, 1, -1, 0.0, 0.001001), (2, 1, 2, -1, 0.251001, 0.253004)]
        point = {"engine": "emulation", "setting": 0, "mode": "base", "collective": 0}
        names = ("step", "src", "dst", "chunk", "start_s", "end_s")
        found = [point | dict(zip(names, row, strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(found, schema=SCHEMAS["transfers"]), run / "transfers.parquet")
    draw(run)
    first, second, third = data(run, "run-timeline")
    assert [float(first["end_s"]), float(second["end_s"]), float(third["end_s"])] == pytest.approx(
        [0.001001, 0.251001, 0.253004]
    )
    assert (second["via"], second["rate_bps"], second["bytes"]) == ("g1", "", "")
    assert [row["step"] for row in (first, second, third)] == ["1", "1", "2"]
    assert {row["measured"] for row in (first, second, third)} == {str(measured)}
    trace = json.loads((run / "figures" / "run-timeline.json").read_text())
    spent = trace["otherData"]["critical_path_s"]["base"]
    assert next(iter(spent)) == "g1" and spent["g1"]["sending_s"] == pytest.approx(0.25)
    assert "g1 computes" in words(run)
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"] == [
        "message",
        "computation",
        "message",
    ]


@pytest.mark.parametrize(("every", "waits"), [({}, False), ({"every": "20 ms"}, True)])
def test_repetitions_of_a_job_have_no_row_that_computes_and_clocks_have_one_that_waits(tmp_path, every, waits):
    """Between repetitions each GPU waits for its own end, which takes no time, or for the next tick of a clock."""
    jobs = [[{"name": "a", "size": size, "count": 3} | every] for size in ("1 MB", "2 MB")]
    overrides = {"fabric.gpus": 4, "sweep.job": jobs, "run.modes": ["base"]}
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=1, engines=("model",))
    draw(folder)
    text = words(folder)
    assert "computes" not in text and ("g3 waits" in text, "Rows that wait" in text) == (waits, waits)
    assert "Setting 0 of 0 to 1; --setting draws another." in text
    events = json.loads((folder / "figures/run-timeline.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"site", "wan", *["wait"] * waits}
    assert "Setting 0 of 0 to 1" not in (folder / "figures/run.svg").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"transfers": [[3, 1, [], -1]]},
        {"transfers": [[0, 1, [0], -1]]},
        {"transfers": [[0, -1, [], -1]]},
        {"transfers": [[0, 1, [], 4]]},
        {"transfers": []},
        {"transfers": 7},
        {"flows": [[0, 4, 0], [1, 0], [1, 2, 0]]},
        {"flows": [[0]]},
        {"algorithm": None},
    ],
)
def test_a_damaged_stored_schedule_gives_one_error_sentence(tmp_path, capsys, change):
    run = by_hand(tmp_path, SCHEDULE | change, completion_s=0.253004, paths=[-1, -1, 0])
    assert main([str(run)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "setting 0 of its settings.json" in err and len(err.splitlines()) == 1


def test_a_run_stored_without_schedules_is_drawn_as_ring_allgathers(tmp_path):
    run = shutil.copytree(OLD, tmp_path / "old")
    assert "schedule" not in json.loads((run / "settings.json").read_text())[0]
    draw(run)
    here = stored(run, "transfers").query("collective == 0")
    drawn = [
        (int(row["step"]), row["src"], row["dst"], int(row["chunk"]), float(row["start_s"]), float(row["end_s"]))
        for row in data(run, "paper-timeline")
    ]
    measured = zip(*(here[name] for name in ("step", "src", "dst", "chunk", "start_s", "end_s")), strict=True)
    assert sorted(drawn) == sorted((step, f"g{src}", f"g{dst}", *rest) for step, src, dst, *rest in measured)
    assert "a chunk in transit over a ring edge" in words(run)


def test_an_algorithm_and_size_sweep_gives_times_and_the_bus_bandwidth_of_nccl_tests(tmp_path):
    sweep = {"sweep.collective.algorithm": ["ring", "direct"], "sweep.collective.size": ["1 MB", "64 MB"]}
    overrides = {"fabric.gpus": 4, "collective.kind": "allreduce"} | MODES | sweep
    run = write_run(tmp_path / "run", overrides=overrides, modelled=70, emulated=3)
    draw(run)
    rows = stored(run).query("engine == 'emulation'")
    found = {
        (row["algorithm"], row["mode"], int(row["size_bytes"])): float(row["busbw_bytes_per_s"])
        for row in data(run, "run-busbw")
    }
    means = rows.groupby(["collective.algorithm", "mode", "collective.size"]).completion_s.mean()
    assert found == pytest.approx({key: 2 * 3 / 4 * key[2] / mean for key, mean in means.items()})
    text = words(run)
    assert all(part in text for part in ("AllReduce", "algorithm direct", "size", "64 MB", "3 AllReduces"))
    times = {(row["collective.algorithm"], row["size_bytes"]) for row in data(run, "run")}
    assert times == {(name, size) for name in ("ring", "direct") for size in ("1000000", "64000000")}


def test_no_two_of_twenty_lines_look_alike():
    """Nine algorithms once had seven looks, so that the legend named two for one line."""
    rows = [Row(f"algorithm {number}", "base", size, 1e9 * number, False) for number in range(20) for size in (1, 2)]
    (shown,) = busbw.picture("AllReduce", rows).figure.legends
    looks = {(one.get_color(), one.get_marker()) for one in shown.legend_handles}
    assert len(shown.legend_handles) == len(looks) == 20


@pytest.mark.parametrize(("sizes", "scale"), [((1e5, 4e5), "linear"), ((1e5, 1e6), "log"), ((8e3, 1e6, 5e8), "log")])
def test_bandwidths_that_differ_by_more_than_a_factor_of_5_can_all_be_read(sizes, scale):
    rows = [
        Row(name, "base", round(size), size * rate, False) for size in sizes for name, rate in (("a", 9), ("b", 10))
    ]
    axes = busbw.picture("AllReduce", rows).figure.axes[0]
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale and (low == 0) == (scale == "linear")
    assert all(low <= row.busbw / 1e9 <= high for row in rows)
    assert axes.get_xticks().tolist() == [*sizes]


def test_algorithms_of_the_same_bandwidth_are_all_seen_also_in_grey():
    """Markers are open and of different sizes, and neighbours in the legend have other dashes."""
    rows = [Row(f"algorithm {number}", "base", size, 1e9, False) for number in range(8) for size in (1, 2)]
    lines = [line for line in busbw.picture("AllReduce", rows).figure.axes[0].lines if len(line.get_xdata()) == 2]
    sizes = [line.get_markersize() for line in lines]
    assert sizes == sorted(sizes, reverse=True) and len({*sizes}) == 8
    assert {line.get_markerfacecolor() for line in lines} == {"white"}
    dashes = [str(line._dash_pattern) for line in lines]
    assert all(one != other for one, other in itertools.pairwise(dashes))


def test_six_swept_algorithms_get_a_panel_each_in_one_figure(tmp_path):
    names = ["ring", "direct", "hierarchical", "hierarchical-direct", "tree", "double-tree"]
    sweep = {"sweep.collective.algorithm": names, "sweep.collective.chunk": ["1 MB", "4 MB"]}
    run = write_run(
        tmp_path / "run",
        overrides={"fabric.gpus": 4, "collective.kind": "allreduce"} | MODES | sweep,
        modelled=9,
        engines=("model",),
    )
    draw(run)
    assert len({row["collective.algorithm"] for row in data(run, "run")}) == 6
    titles = [text for text in ET.parse(run / "figures" / "run.svg").getroot().itertext() if "algorithm " in text]
    assert sorted(title.strip() for title in titles) == sorted(f"algorithm {name}" for name in names)


def test_swept_kinds_are_labelled_by_name_and_counted_as_collectives(tmp_path):
    overrides = {"fabric.gpus": 4, "sweep.collective.kind": ["allgather", "reduce"]} | MODES
    run = write_run(tmp_path / "run", overrides=overrides, modelled=10, engines=("model",))
    draw(run)
    svg = (run / "figures" / "run.svg").read_text()
    assert all(part in svg for part in ("AllGather", "Reduce", "10 collectives", "blocks of 8 MB"))
    assert not list((run / "figures").glob("*busbw*"))
