"""Run folders: what is appended is there whole or not at all, damage is told, and reading gives everything back."""

import json
import random

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results.journal import Journal, JournalError, records
from analysis.results.reader import Point, ResultsError, load, open_run
from analysis.results.rows import Rows, RowsError, joined, packed, unpacked
from scenarios.engines.model import Model
from scenarios.experiment.place import FolderError, Place
from scenarios.experiment.run_directory import RunFolder
from scenarios.experiment.runner import Run, run_in
from scenarios.experiment.spans import Spans
from scenarios.experiment.store import Store
from scenarios.spec.load import Override, load_scenario


def some_rows(start, count, *, n=8, measured=False, seed=1):
    random_ = np.random.default_rng([seed, start])
    rows = {
        "completion_s": random_.random(count),
        "ring": random_.permuted(np.tile(np.arange(n, dtype=np.int16), (count, 1)), axis=1),
        "paths": random_.integers(-1, 200, (count, n), dtype=np.int16),
        "reembedded": random_.random(count) < 0.5,
        "rerouted": np.ones(count, dtype=np.bool_),
    }
    if measured:
        rows |= {"predicted_s": random_.random(count), "drops": random_.integers(0, 9, count)}
        transfers = random_.integers(0, 10**9, (count * 3, 7))
        transfers[:, 0] = np.repeat(np.arange(start, start + count), 3)
        rows["transfers"] = transfers
    return Rows(start=start, **rows)


def same(one, other):
    for name in ("completion_s", "ring", "paths", "reembedded", "rerouted", "predicted_s", "drops", "transfers"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and np.array_equal(a, b)), name
    return one.start == other.start


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("n", [2, 16, 200])
def test_rows_come_back_as_they_were(measured, n):
    rows = some_rows(7, 5, n=n, measured=measured)
    assert same(unpacked(packed(rows)), rows)
    assert same(joined([rows.part(7, 9), rows.part(9, 10), rows.part(10, 12)]), rows)


@given(st.binary(max_size=200))
def test_what_is_no_rows_is_refused(data):
    with pytest.raises(RowsError):
        unpacked(data)


def test_cut_rows_are_refused():
    whole = packed(some_rows(0, 3, measured=True))
    for end in range(len(whole)):
        with pytest.raises(RowsError):
            unpacked(whole[:end])
    with pytest.raises(RowsError):
        unpacked(whole + b"x")


@given(st.lists(st.integers(0, 12), unique=True, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_spans_know_what_is_missing(there, start, stop):
    spans = Spans()
    for number in there:
        spans.add(number, number + 1)
    missing = [number for first, end in spans.gaps(start, stop) for number in range(first, end)]
    assert missing == [number for number in range(start, stop) if number not in there]
    assert spans.covers(start, stop) == (not missing)


def test_a_journal_that_is_cut_anywhere_has_the_records_before_the_cut_and_can_be_gone_on_with(tmp_path):
    path = tmp_path / "journal"
    written = [b"", b"one\n", b"00000000 1\n\n" * 3, bytes(range(256))]
    with Journal(path) as journal:
        for data in written:
            journal.append(data)
    whole = path.read_bytes()
    ends = [0]
    for place, _ in records(path):
        ends.append(place.offset + place.size + 1)
    for cut in range(len(whole)):
        for tail in (b"", bytes(40)):  # the size of a file can be on the disk before what is in it
            path.write_bytes(whole[:cut] + tail)
            expected = written[: max(i for i, end in enumerate(ends) if end <= cut)]
            assert [data for _, data in records(path)] == expected
            with Journal(path) as journal:
                journal.append(b"more")
            assert [data for _, data in records(path)] == [*expected, b"more"]


def test_a_journal_with_damage_before_a_whole_record_is_refused(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for number in range(3):
            journal.append(b"record %d" % number)
    whole = bytearray(path.read_bytes())
    last = whole.rindex(b"record 2")
    for place in range(whole.index(b"record 2") - 12):
        damaged = whole.copy()
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(JournalError, match="journal is damaged at byte"):
            list(records(path))
    assert last


SCENARIO = [("collective.count", 40), ("run.modes", ["base", "joint"]), ("fabric.gpus", 4)]


def a_run(path, *, scenario=None, engines=("model",)):
    scenario = scenario or load_scenario("paper", [Override(key, value, key) for key, value in SCENARIO])
    folder = RunFolder.begun(Place.new(path), scenario, engines=engines, command=["run.py"])
    return folder, Run(scenario, [(Model(jobs=1, batch=10), scenario.settings())], json=True)


@pytest.fixture
def complete(tmp_path, capsys):
    folder, run = a_run(tmp_path / "run")
    assert run_in(folder, run) == 0
    return tmp_path / "run"


@pytest.fixture
def unfinished(tmp_path):
    """A run that was cut short: 30 collectives of one point, 20 of another."""
    folder, run = a_run(tmp_path / "half")
    with_slices = Model(jobs=1, batch=10).run(run.scenario.settings())
    store = Store(folder.path, run.counts())
    for part in store.kept(with_slices, "model"):
        if part.rows.start >= 20 and part.mode == "base":
            break
    store.close()
    folder.place.close()
    return tmp_path / "half"


def test_a_run_is_read_back_with_its_ring_and_its_paths(complete):
    run = open_run(complete)
    assert run.complete
    assert not (complete / "points").exists()
    frame = run.collectives
    assert len(frame) == 80 and frame.equals(load(complete))
    assert (frame.completion_s == frame.predicted_s).all() and (frame.drops == 0).all()
    assert set(frame.gpus_per_site) == {"2+2"} and set(frame.gpus) == {4}
    paths = {path["index"]: path for path in run.settings[0]["fabric"]["paths"]}
    kinds = [link["kind"] for link in run.settings[0]["fabric"]["links"]]
    sites = [gpu["site"] for gpu in run.settings[0]["fabric"]["gpus"]]
    for row in frame.itertuples():
        assert sorted(row.ring) == [0, 1, 2, 3]
        after = [*row.ring[1:], row.ring[0]]
        for src, dst, path in zip(row.ring, after, row.paths, strict=True):
            assert (path >= 0) == (sites[src] != sites[dst])
            assert path < 0 or {kinds[link] for link in paths[path]["links"]} == {"wan"}
    joint = frame[frame["mode"] == "joint"]
    assert joint[joint.reembedded].collective.to_list() == [0, 10, 20, 30] and joint.rerouted.all()
    assert run.transfers.empty and run.conditions.empty


def test_only_the_columns_asked_for_are_read(complete):
    assert list(load(complete, columns=["mode", "completion_s"]).columns) == ["mode", "completion_s"]
    with pytest.raises(ResultsError, match="no column completion: allowed are engine, setting"):
        load(complete, columns=["completion"])


def test_any_reader_of_parquet_reads_it(complete):
    assert pd.read_parquet(complete / "collectives.parquet").groupby("mode").size().to_dict() == {
        "base": 40,
        "joint": 40,
    }
    assert str(pq.read_schema(complete / "collectives.parquet").field("ring").type).startswith("list<")


def test_a_run_that_is_not_complete_is_read_as_far_as_it_goes(unfinished, complete):
    run = open_run(unfinished)
    assert not run.complete
    whole = load(complete)
    for mode, count in (("base", 30), ("joint", 20)):
        part = run.collectives[run.collectives["mode"] == mode]
        assert part.collective.to_list() == list(range(count))
        there = whole[(whole["mode"] == mode) & (whole.collective < count)]
        assert part.completion_s.to_list() == there.completion_s.to_list()


def test_what_is_no_run_folder_is_a_sentence(tmp_path, complete):
    with pytest.raises(ResultsError, match="nowhere is no run folder: there is no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(ResultsError, match=r"other is no run folder: it has no provenance\.json"):
        load(tmp_path / "other")
    (tmp_path / "other/provenance.json").write_text('{"name": "something else"}')
    with pytest.raises(ResultsError, match=r"is no run folder: its provenance\.json is not one of format 1"):
        load(tmp_path / "other")
    known = json.loads((complete / "provenance.json").read_text())
    (complete / "provenance.json").write_text(json.dumps(known | {"format": 2}))
    with pytest.raises(ResultsError, match="is of format 2, which is newer than this version reads: allowed is 1"):
        load(complete)


@pytest.mark.parametrize("name", ["provenance.json", "settings.json", "collectives.parquet"])
def test_a_damaged_file_is_a_sentence_and_never_wrong_numbers(complete, name):
    whole = (complete / name).read_bytes()
    expected = load(complete)
    dice = random.Random(name)
    for attempt in range(40):
        damaged = bytearray(whole[: dice.randrange(len(whole))] if attempt % 2 else whole)
        if damaged and not attempt % 2:
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        (complete / name).write_bytes(damaged)
        try:
            found = load(complete)
        except ResultsError as error:
            assert str(complete) in str(error) and "\n" not in str(error)
        else:  # what is changed is nothing that the rows rest on
            assert name != "collectives.parquet" or found.equals(expected)
            assert attempt % 2 == 0 or len(damaged) == len(whole)


def test_other_parts_stay_readable(complete):
    (complete / "transfers.parquet").write_bytes(b"PAR1 not")
    assert len(load(complete)) == 80
    with pytest.raises(ResultsError, match=r"transfers\.parquet is damaged"):
        open_run(complete)


def test_a_folder_is_one_runs_at_a_time(tmp_path):
    place = Place.new(tmp_path / "run")
    with pytest.raises(FolderError, match="run is being written to by another run: allowed is one at a time"):
        Place(tmp_path / "run")
    place.close()
    Place(tmp_path / "run").close()


def test_no_row_is_kept_twice(tmp_path):
    folder, run = a_run(tmp_path / "run")
    with_rows = list(Model(jobs=1, batch=15).run(run.scenario.settings()))
    store = Store(folder.path, run.counts())
    assert len(list(store.kept(with_rows[:2], "model"))) == 2
    assert list(store.kept(with_rows[:2], "model")) == []
    kept = [part.rows for part in store.kept(Model(jobs=1, batch=40).run(run.scenario.settings()), "model")]
    assert {(rows.start, rows.stop) for rows in kept} == {(10, 40)}
    assert all(store.finished(point) for point in store.points)
    store.close()
    assert load(folder.path).groupby(["mode", "collective"]).size().max() == 1
    assert len(load(folder.path)) == 80
    assert store.points == (Point("model", 0, "base"), Point("model", 0, "joint"))
    folder.place.close()
