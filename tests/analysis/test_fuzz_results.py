"""Run directories with any of their files mutated: what is there, or one sentence, soon, and in bounded memory."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results import reader, schema
from analysis.results.rows import Point
from analysis.results.writer import Writer, write_table
from tests.fakes.stored import some_rows, write_run
from tests.fuzz import anything, bounded, fuzzed, mutated, one_line

JSON_FILE = [
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"null", b"-1", b"1e999", b'"format": 2', b'"ended": null', b"9" * 5000,
    b"\xff", b"PAR1", b"\n",
]  # fmt: skip
POINT = Point("emulation", 0, "base")
PARTS = [f"parts/emulation-0000-base-00000000.{what}.parquet" for what in ("collectives", "transfers")]
FILES = ["provenance.json", "settings.json", "collectives.parquet", "faults.parquet", *PARTS]


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small complete run, and a part of its rows as if it were not complete."""
    folder = tmp_path_factory.mktemp("run") / "run"
    write_run(folder, overrides={"run.modes": ["base"]}, modelled=5, emulated=3)
    writer = Writer(folder, reader.read_settings(folder), {POINT: 3})
    writer.add(POINT, some_rows(0, 3, measured=True))
    account = {"fault": 0, "at_collective": 1, "what": "x", "detected_s": None, "recovered_s": 0.5}
    account |= {"collectives_lost": 0, "bytes_again": 0, "outcome": "recovered"}
    record = {"engine": "emulation", "setting": 0, "mode": "base", **account}
    write_table(folder / "faults.parquet", schema.FAULTS, [schema.faults_table([record])])
    return folder


@fuzzed
@given(st.sampled_from(FILES), st.booleans(), st.data())
def test_the_results_reader(
    stored_run: Path, tmp_path_factory: pytest.TempPathFactory, name: str, complete: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(stored_run, folder)
    settings = reader.read_settings(folder)
    if not complete:  # then the parts are read
        provenance = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(provenance | {"ended": None}))
    seed = (folder / name).read_bytes()
    (folder / name).write_bytes(data.draw(mutated([seed], JSON_FILE) | anything(JSON_FILE)))
    with bounded():
        for read in (lambda: reader.open_run(folder), lambda: Writer(folder, settings, {POINT: 3})):
            try:
                read()
            except reader.ResultsError as error:
                one_line(error)
