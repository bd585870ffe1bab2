"""Pictures of one collective: its timeline, its trace and the fabric that it crossed."""

import itertools
import json
import math
import shutil
from collections import defaultdict

import pyarrow.parquet as pq
import pytest

from analysis.collective import Move, lanes
from analysis.figures import draw
from analysis.layout import positions
from tests.test_figures import MODES, both, data, modelled, rows_of  # noqa: F401


def test_a_timeline_of_a_measured_collective_is_what_was_measured(both):
    stored = pq.read_table(both / "transfers.parquet").to_pandas()
    stored = stored[(stored.setting == 0) & (stored.collective == 0)]
    rank = {f"g{i}": i for i in range(8)}
    drawn = {
        (r["mode"], int(r["step"]), rank[r["src"]], rank[r["dst"]], int(r["chunk"])): (
            float(r["start_s"]),
            float(r["end_s"]),
        )
        for r in data(both, "paper-timeline")
    }
    assert drawn == {(r["mode"], r.step, r.src, r.dst, r.chunk): (r.start_s, r.end_s) for _, r in stored.iterrows()}
    for row in data(both, "paper-timeline"):
        assert row["measured"] == "True"
        on_the_way_s = 8 * 1_000_000 / float(row["rate_bps"]) + float(row["delay_s"])
        assert float(row["end_s"]) - float(row["leaves_s"]) == pytest.approx(on_the_way_s, rel=1e-4)  # stored in ns


def test_a_timeline_of_the_model_ends_when_the_model_says_and_takes_the_links_of_the_path(modelled):
    drawn, stored = data(modelled, "paper-timeline"), rows_of(modelled)
    settings = json.loads((modelled / "settings.json").read_text())
    joined = {(link["src"], link["dst"]) for link in settings[0]["fabric"]["links"]}
    for mode in MODES:
        moves = [row for row in drawn if row["mode"] == mode]
        row = stored[(stored["mode"] == mode) & (stored.collective == 0)].iloc[0]
        assert max(float(move["end_s"]) for move in moves) == pytest.approx(row.completion_s)
        assert {move["measured"] for move in moves} == {"False"}
        held = defaultdict(set)
        for move in moves:
            hops = move["via"].split(">")
            assert (hops[0], hops[-1]) == (move["src"], move["dst"])
            assert set(itertools.pairwise(hops)) <= joined
            held[move["dst"]].add(int(move["chunk"]))
        assert all(len(chunks) == 5 for chunks in held.values())  # all but its own, each once
    svg = (modelled / "figures" / "paper-timeline.svg").read_text()
    assert "predicted" in svg
    assert "measured" not in svg


def test_conditions_drawn_again_are_held_against_what_is_stored(tmp_path, modelled):
    """A seed that is not the one of the rows gives other times: then there is no timeline, and no fabric."""
    shutil.copytree(modelled, tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    path = tmp_path / "run" / "settings.json"
    settings = json.loads(path.read_text())
    settings[0]["values"]["run.seed"] = 99
    path.write_text(json.dumps(settings))
    draw(tmp_path / "run")
    assert not list((tmp_path / "run" / "figures").glob("*timeline*"))


@pytest.mark.parametrize("kind", ["both", "modelled"])
def test_the_trace_is_in_the_trace_event_format(kind, request):
    folder = request.getfixturevalue(kind)
    trace = json.loads((folder / "figures" / "paper-timeline.json").read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, spans = set(), defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            what = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}
            key = "name" if event["name"].endswith("name") else "sort_index"
            assert isinstance(event["args"][key], what[event["name"]])
            named.add((event["pid"], event["tid"]))
        else:
            assert isinstance(event["cat"], str)
            assert event["ts"] >= 0
            assert event["dur"] > 0
            spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(spans) <= named
    for events in spans.values():  # a viewer drops, or draws wrongly, what overlaps in a thread
        assert all(one[1] <= other[0] + 1e-6 for one, other in itertools.pairwise(sorted(events)))
    drawn = data(folder, "paper-timeline")
    assert sum(map(len, spans.values())) == len(drawn)
    assert max(end for events in spans.values() for _, end in events) == pytest.approx(
        1e6 * max(float(row["end_s"]) for row in drawn)
    )


def test_the_fabrics_data_say_which_links_a_ring_edge_takes(both):
    settings, drawn = json.loads((both / "settings.json").read_text()), data(both, "paper-fabric")
    conditions = pq.read_table(both / "conditions.parquet").to_pandas()
    rates = conditions[(conditions.setting == 0) & (conditions.collective == 0)].set_index("link").rate_bps
    stored = rows_of(both)
    for mode in MODES:
        links = [row for row in drawn if row["mode"] == mode]
        assert {int(row["link"]): int(row["rate_bps"]) for row in links} == rates.to_dict()
        here = (stored["mode"] == mode) & (stored.collective == 0) & (stored.setting == 0) & (stored.engine == "model")
        paths = [path for path in stored[here].iloc[0].paths if path >= 0]
        taken = {int(row["link"]) for row in links if row["kind"] == "wan" and row["edge"]}
        assert taken == {link for path in paths for link in settings[0]["fabric"]["paths"][path]["links"]}
        assert {row["edge"] for row in links} - {""} == set(map(str, range(8)))


def test_no_two_nodes_of_a_fabric_stand_on_each_other_nor_between_two_others_of_a_site(modelled, both):
    for folder in (modelled, both):
        fabric = json.loads((folder / "settings.json").read_text())[0]["fabric"]
        placed = positions(fabric)
        for one, other in itertools.combinations(placed.values(), 2):
            assert math.dist(one, other) > 0.3
        for site in (0, 1):
            names = [node["name"] for key in ("gpus", "border_routers") for node in fabric[key] if node["site"] == site]
            for a, b, c in itertools.permutations([placed[name] for name in names], 3):
                away = abs((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])) / math.dist(a, b)
                assert away > 0.15


def test_moves_share_a_lane_only_one_after_the_other():
    def move(leaves_s, end_s):
        return Move(step=1, src=0, dst=1, chunk=0, start_s=0, leaves_s=leaves_s, end_s=end_s)

    moves = [move(0, 3), move(1, 4), move(3, 5), move(3.95, 8)]
    assert lanes(moves) == [0, 1, 0, 2]
    assert lanes(moves, touching=0.05) == [0, 1, 0, 1]
