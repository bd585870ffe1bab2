"""Run folders with any of their files mutated: what is there, or one sentence, soon, and within bounds of memory."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results import reader
from analysis.results.journal import Journal
from analysis.results.rows import Rows, packed
from tests.conftest import PROJECT
from tests.fuzz import anything, bounded, fuzzed, mutated, one_line

JSON_FILE = [
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"null", b"-1", b"1e999", b'"format": 2', b'"ended": null', b"9" * 5000,
    b"\xff", b"PAR1", b"\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of the model, complete, and a journal of its rows as if it were not."""
    folder = tmp_path_factory.mktemp("run") / "run"
    command = [sys.executable, str(PROJECT / "scenarios" / "run.py"), "--engine", "model", "--collectives", "5"]
    subprocess.run([*command, "--modes", "base", "--out", str(folder)], check=True, capture_output=True, timeout=300)
    rows = Rows(
        start=0,
        completion_s=np.ones(3),
        ring=np.zeros((3, 8), dtype=np.int16),
        paths=np.zeros((3, 8), dtype=np.int16),
        reembedded=np.ones(3, dtype=np.bool_),
        rerouted=np.ones(3, dtype=np.bool_),
    )
    (folder / reader.POINTS).mkdir()
    with Journal(folder / reader.POINTS / "model-0000-base.rows") as journal:
        journal.append(packed(rows))
        journal.append(packed(rows.part(1, 2)))
    account = {"fault": 0, "at_collective": 1, "what": "x", "detected_s": None, "recovered_s": 0.5}
    account |= {"collectives_lost": 0, "bytes_again": 0, "outcome": "recovered"}
    with Journal(folder / reader.POINTS / reader.STRUCK) as journal:
        journal.append(json.dumps({"engine": "emulation", "setting": 0, "mode": "base", **account}).encode())
    return folder


FILES = (
    "provenance.json",
    "settings.json",
    "collectives.parquet",
    "points/model-0000-base.rows",
    "points/faults.struck",
)


@fuzzed
@given(st.sampled_from(FILES), st.booleans(), st.data())
def test_the_results_reader(
    stored_run: Path, tmp_path_factory: pytest.TempPathFactory, name: str, complete: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / reader.POINTS).mkdir(parents=True)
    for file in (*FILES, "scenario.toml"):
        shutil.copy(stored_run / file, folder / file)
    if not complete:  # then the journals are read
        provenance = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(provenance | {"ended": None}))
    seed = (folder / name).read_bytes()
    (folder / name).write_bytes(data.draw(mutated([seed], JSON_FILE) | anything(JSON_FILE)))
    with bounded():
        try:
            reader.open_run(folder)
        except reader.ResultsError as error:
            one_line(error)
