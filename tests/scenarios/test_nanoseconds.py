"""Completion times of the emulation as they were recorded, to the nanosecond: nothing that is measured changes unseen.

`nanoseconds.json` has the 3 collectives of every mode of `ARGUMENTS`. A change that is meant to change times records
them anew, and says so.
"""

import json
from pathlib import Path

from analysis.results import load
from tests.fakes.runs import ended

ARGUMENTS = [
    "--engine",
    "emulation",
    "--gpus",
    "8",
    "--collectives",
    "3",
    "--modes",
    "base,wan,ccl,joint",
    "--seed",
    "3",
]
RECORDED = Path(__file__).with_name("nanoseconds.json")


def test_every_mode_takes_the_recorded_nanoseconds(tmp_path: Path) -> None:
    ended(*ARGUMENTS, "--out", "run", cwd=tmp_path)
    rows = load(tmp_path / "run")
    found = {
        (row["mode"], row.collective): [round(row.completion_s * 1e9), list(row.ring), list(row.paths), row.drops]
        for _, row in rows.iterrows()
    }
    recorded = json.loads(RECORDED.read_text())
    assert found == {
        (row["mode"], row["collective"]): [row[name] for name in ("completion_ns", "ring", "paths", "drops")]
        for row in recorded
    }
    # The bound is that of the conditions, which all modes share, and none is faster.
    assert rows.groupby("collective").bound_s.nunique().to_list() == [1, 1, 1]
    assert (rows.bound_s > 0).all() and (rows.completion_s > rows.bound_s).all()
