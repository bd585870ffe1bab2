"""Run folders: rows are written in parts in any order and read back whole, each once; damage gives one sentence."""

import json
import random
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.figures.__main__ import draw
from analysis.report.__main__ import write as write_report
from analysis.results import schema
from analysis.results import writer as writing
from analysis.results.reader import ResultsError, load, open_run
from analysis.results.rows import Point, joined
from analysis.results.writer import Writer
from scenarios.experiment.stored_settings import settings_as_json
from tests.fakes.commands import scenario
from tests.fakes.stored import some_rows, write_run

OLD = Path(__file__).parent / "old_run"
SCENARIO = {"fabric.gpus": 4, "run.modes": ["base", "joint"]}
SETTINGS = settings_as_json(scenario(**SCENARIO))
BASE, MEASURED = Point("model", 0, "base"), Point("emulation", 0, "base")


def begun(path: Path, count: int, point: Point = BASE) -> Writer:
    """Return a writer of one point into a new run folder."""
    path.mkdir(exist_ok=True)
    known = {"format": 1, "ended": None, "started": "", "seed": 1, "command": []}
    (path / "provenance.json").write_text(json.dumps(known))
    (path / "settings.json").write_text(json.dumps(SETTINGS))
    (path / "scenario.toml").write_text("")
    return Writer(path, SETTINGS, {point: range(count)})


@pytest.mark.parametrize("removed", ["*", "*.collectives.parquet", "*.transfers.parquet"])
def test_a_run_whose_parts_are_removed_while_it_goes_on_does_not_end_without_their_rows(tmp_path, removed):
    writer = begun(tmp_path, 5, MEASURED)
    writer.add(MEASURED, some_rows(0, 5, n=2, measured=True))
    for part in (tmp_path / "parts").glob(removed):
        part.unlink()
    with pytest.raises(ResultsError, match="lacks files that the run has written to it"):
        writer.write_tables()
    assert not (tmp_path / "collectives.parquet").exists()


@pytest.mark.parametrize(("point", "measured"), [(BASE, False), (MEASURED, True)])
@pytest.mark.parametrize("n", [2, 200])
def test_stored_rows_are_read_back_unchanged(tmp_path, point, measured, n):
    rows = some_rows(0, 5, n=n, measured=measured)
    with closing(begun(tmp_path, 5, point)) as writer:
        for start, stop in ((0, 2), (2, 3), (3, 5)):
            writer.add(point, rows.part(start, stop))
        (found,) = writer.rows(point)
    absent = {"predicted_s": rows.completion_s, "drops": np.zeros(5), "late": np.zeros(5), "undisturbed": np.ones(5)}
    absent |= {"reconfigure_s": np.full(5, np.nan), "reconfigure_messages": np.zeros(5)}
    absent |= {"rerouted_within": np.zeros(5), "moved_within": np.zeros(5)}
    in_fifo = "retransmitted_bytes", "quickest_transfer", "slowest_transfer", "fairness"
    absent |= dict.fromkeys((*in_fifo, "best_schedule_s", "best_schedule_bound_s"), np.full(5, np.nan))
    absent |= {"fairness_link": np.full(5, "", dtype=object)}
    for name in found.columns:
        np.testing.assert_array_equal(found[name], rows.columns.get(name, absent.get(name)), name)
    assert found.columns.keys() >= rows.columns.keys()
    transfers = open_run(tmp_path).transfers
    assert len(transfers) == (15 if measured else 0)
    parts = list(tmp_path.glob("parts/*counters.parquet"))
    assert bool(parts) == measured
    if measured:
        (part,) = parts
        counters = pq.read_table(part).to_pandas()
        assert np.array_equal((counters.until_s * 1e9).round(), rows.records["counters"][:, 3])
        numbers = counters[["collective", "link", "sent_bytes"]].to_numpy().tolist()
        assert numbers == rows.records["counters"][:, [0, 1, 4]].tolist()
        assert np.array_equal((transfers.end_s * 1e9).round(), rows.records["transfers"][:, 6])
        assert transfers.iloc[:, 3:8].to_numpy().tolist() == rows.records["transfers"][:, :5].tolist()


@pytest.mark.parametrize("measured", [False, True])
def test_joining_the_parts_of_rows_gives_the_original_rows(measured):
    rows = some_rows(7, 5, n=16, measured=measured)
    again = joined([rows.part(7, 9), rows.part(9, 10), rows.part(10, 12)])
    for one, other in ((rows.columns, again.columns), (rows.records, again.records)):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert np.array_equal(array, other[name], equal_nan=array.dtype.kind == "f"), name


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_batches_in_any_order_are_stored_once_and_an_interrupted_run_resumes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("run")
    cuts = sorted(data.draw(st.sets(st.integers(1, 39), max_size=8)))
    whole = some_rows(0, 40, measured=True)
    batches = [whole.part(start, stop) for start, stop in zip([0, *cuts], [*cuts, 40], strict=True)]
    order = data.draw(st.permutations(batches))
    first = order[: data.draw(st.integers(0, len(order)))]
    there = {number for rows in first for number in range(rows.start, rows.stop)}
    ready = next(number for number in range(41) if number not in there)
    for arriving, fresh_count, before in ((first, len(there), 0), (order, 40 - ready, ready), (order, 0, 40)):
        with closing(begun(path, 40, MEASURED)) as writer:
            assert writer.has(MEASURED, before) and not writer.has(MEASURED, before + 1)
            fresh = [rows for rows in (writer.add(MEASURED, batch) for batch in arriving) if rows is not None]
        numbers = [number for rows in fresh for number in range(rows.start, rows.stop)]
        assert len(numbers) == len(set(numbers)) == fresh_count
        assert load(path).collective.to_list() == list(range(ready if before == 0 and arriving is first else 40))
    writer.write_tables()
    assert load(path).completion_s.to_list() == whole.completion_s.tolist()
    assert len(open_run(path).transfers) == 120 == len(pq.read_table(path / "transfers.parquet"))


def test_parts_of_a_long_point_are_written_to_disk_before_it_is_complete(tmp_path, monkeypatch):
    writer = begun(tmp_path, 100)
    writer.add(BASE, some_rows(0, 10))
    assert load(tmp_path).empty
    monkeypatch.setattr(writing, "PART_S", 0.0)
    writer.add(BASE, some_rows(10, 10))
    assert len(load(tmp_path)) == 20


def test_damaged_missing_or_foreign_parts_are_refused(tmp_path):
    with closing(begun(tmp_path / "run", 30, MEASURED)) as writer:
        writer.add(MEASURED, some_rows(0, 10, measured=True))
    with closing(begun(tmp_path / "run", 30, MEASURED)) as writer:
        writer.add(MEASURED, some_rows(10, 10, measured=True))
    parts = sorted(path.name for path in (tmp_path / "run/parts").iterdir())
    assert parts == [
        f"emulation-0000-base-{n:08}.{what}.parquet"
        for n in (0, 10)
        for what in ("collectives", "counters", "probes", "transfers")
    ]

    def refused(*, count=30, point=MEASURED):
        with pytest.raises(ResultsError) as error:
            begun(tmp_path / "copy", count, point)
        assert str(tmp_path / "copy/parts/emulation-0000-base-000000") in str(error.value)
        shutil.rmtree(tmp_path / "copy")
        shutil.copytree(tmp_path / "run", tmp_path / "copy")

    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    refused(count=19)
    refused(point=BASE)
    for missing in parts[:4]:
        (tmp_path / "copy/parts" / missing).unlink()
        refused()
    (tmp_path / "copy/parts" / parts[0]).write_bytes((tmp_path / "run/parts" / parts[4]).read_bytes())
    refused()
    (tmp_path / "copy/parts" / parts[4]).write_bytes((tmp_path / "run/parts" / parts[4]).read_bytes()[:-1])
    with pytest.raises(ResultsError, match=r"base-00000010\.collectives\.parquet is damaged"):
        load(tmp_path / "copy")
    refused()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "run", overrides=SCENARIO, modelled=40, emulated=5)


@pytest.fixture
def run(stored, tmp_path):
    shutil.copytree(stored, tmp_path / "run")
    return tmp_path / "run"


def test_a_stored_run_is_read_back_with_valid_rings_paths_and_decisions(stored):
    run = open_run(stored)
    assert run.complete
    frame = run.collectives
    assert frame.groupby(["engine", "mode"]).size().to_list() == [5, 5, 40, 40] and frame.equals(load(stored))
    model = frame[frame.engine == "model"]
    assert (model.completion_s == model.predicted_s).all() and (model.drops == 0).all()
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
    joint = model[model["mode"] == "joint"]
    assert joint[joint.reembedded].collective.to_list() == [0, 10, 20, 30] and joint.rerouted.all()
    assert len(run.transfers) == 2 * 5 * 3 * 4 and set(run.conditions.collective) == set(range(5))


def test_load_reads_only_the_requested_columns(stored):
    assert list(load(stored, columns=["mode", "completion_s"]).columns) == ["mode", "completion_s"]
    with pytest.raises(ResultsError, match="no column completion; allowed: engine, setting"):
        load(stored, columns=["completion"])


def test_an_unfinished_run_is_read_up_to_its_last_stored_collective(tmp_path, stored):
    directory = write_run(
        tmp_path / "half", overrides=SCENARIO, modelled=40, emulated=5, unfinished={"base": 3, "joint": 2}
    )
    run = open_run(directory)
    assert not run.complete and len(run.transfers) == (3 + 2) * 3 * 4
    key = ["engine", "mode", "collective"]
    there = run.collectives.merge(load(stored), on=key, suffixes=("", "_whole"))
    assert there.groupby(["engine", "mode"]).size().to_list() == [3, 2, 3, 2] and len(there) == len(run.collectives)
    assert there.completion_s.equals(there.completion_s_whole)


def test_a_folder_that_is_not_a_run_is_refused_in_one_sentence(tmp_path, run):
    with pytest.raises(ResultsError, match="nowhere is not a run folder: there is no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(ResultsError, match=r"other is not a run folder: it has no provenance\.json"):
        load(tmp_path / "other")
    (tmp_path / "other/provenance.json").write_text('{"name": "something else"}')
    with pytest.raises(ResultsError, match=r"is not a run folder: its provenance\.json is not one of format 1"):
        load(tmp_path / "other")
    known = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps(known | {"format": 2}))
    with pytest.raises(ResultsError, match="is of format 2, which is newer than this version reads; allowed: 1"):
        load(run)


def test_a_damaged_table_is_refused_in_one_sentence_and_never_gives_wrong_numbers(run, stored):
    """test_fuzz.py damages every file; this test checks that a damaged table that can be read still has its values."""
    whole, dice = (run / "collectives.parquet").read_bytes(), random.Random(1)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        (run / "collectives.parquet").write_bytes(damaged)
        try:
            assert load(run).equals(load(stored))
        except ResultsError as error:
            assert str(run) in str(error) and "\n" not in str(error)
    shutil.copy(stored / "collectives.parquet", run)
    (run / "transfers.parquet").write_bytes(b"PAR1 not")
    assert len(load(run)) == 90
    with pytest.raises(ResultsError, match=r"transfers\.parquet is damaged"):
        open_run(run)


def test_a_run_stored_by_an_earlier_version_is_read_drawn_and_reported(tmp_path):
    shutil.copytree(OLD, tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert [round(time_s * 1e9) for time_s in run.collectives.completion_s] == [7213153, 10753517, 7688110]
    assert run.collectives.bound_s.isna().all() and run.collectives.reconfigure_s.isna().all()
    assert (run.collectives.reconfigure_messages == 0).all()
    assert load(tmp_path / "run", columns=["bound_s", "mode"]).columns.to_list() == ["bound_s", "mode"]
    assert len(run.transfers) == 3 * 7 * 8 and len(run.conditions) == 3 * 64
    draw(tmp_path / "run")
    assert (tmp_path / "run/figures/paper-timeline.svg").exists() and write_report(tmp_path / "run").exists()


def test_faults_of_a_run_of_an_earlier_version_have_no_cost_and_are_reported_beside_those_that_have(tmp_path):
    folder = write_run(tmp_path / "run", overrides={"run.modes": ["base"]}, modelled=5, emulated=3)
    known = {"engine": "emulation", "setting": 0, "mode": "base", "at_collective": 1, "what": "link s0b0-s1b0 down",
             "detected_s": 0.0, "recovered_s": 0.25e-3, "collectives_lost": 0, "bytes_again": 2_500_000,
             "outcome": "recovered"}  # fmt: skip
    table = schema.faults_table([known | {"number": 1, "cost_s": -3.5e-3}, known | {"number": 2, "cost_s": 0.6125}])
    writing.write_table(folder / "faults.parquet", schema.SCHEMAS["faults"], [table])
    assert open_run(folder).faults.cost_s.to_list() == [-3.5e-3, 0.6125]
    page = write_report(folder).read_text()
    assert "<h2>Faults</h2>" in page and all(f">{words}<" in page for words in ("612.500", "-3.500", "0.250"))
    pq.write_table(table.drop_columns(["cost_s", "lasting_cost_s", "costs", "jobs"]), folder / "faults.parquet")
    assert (
        open_run(folder).faults.cost_s.isna().all() and open_run(folder).faults.recovered_s.to_list() == [0.25e-3] * 2
    )
    assert write_report(folder).exists()


def test_faults_of_an_earlier_version_which_counted_from_0_have_the_numbers_of_messages(tmp_path):
    folder = write_run(tmp_path / "run", overrides={"run.modes": ["base"]}, modelled=5, emulated=3)
    known = {"engine": "emulation", "setting": 0, "mode": "base", "at_collective": 1, "what": "agent 1 killed",
             "detected_s": 0.0, "recovered_s": 1.0, "collectives_lost": 0, "bytes_again": 0,
             "outcome": "recovered"}  # fmt: skip
    table = schema.faults_table([known | {"number": 0, "cost_s": 1.0} for _ in range(3)])
    former = pa.array([0, 1, -1], pa.int32())  # the last one was not declared
    names = ["fault" if name == "number" else name for name in table.schema.names]
    table = table.set_column(table.schema.get_field_index("number"), "number", former).rename_columns(names)
    pq.write_table(table, folder / "faults.parquet")
    assert open_run(folder).faults.number.to_list() == [1, 2, 0]


def test_an_unfinished_run_of_an_earlier_version_is_refused_instead_of_read_as_empty(run):
    known = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps(known | {"ended": None}))
    (run / "points").mkdir()
    assert len(load(run)) == 90  # its tables were written: only some points had failed
    (run / "collectives.parquet").unlink()
    with pytest.raises(ResultsError, match="left unfinished by an earlier version; run it again in a new folder"):
        load(run)
