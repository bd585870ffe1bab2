"""Every emulated collective as a row of collectives.csv, written the moment it is measured, so that none is lost."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scenarios.engine import Slice
from scenarios.spec import Scenario

COLUMNS = (
    "engine",
    "mode",
    "gpus",
    "chunk_bytes",
    "wan_delay_s",
    "collective",
    "completion_s",
    "predicted_s",
    "drops",
    "ring",
    "paths",
)


def recorded(parts: Iterable[Slice], engine: str, settings: Sequence[Scenario], path: Path) -> Iterator[Slice]:
    """Pass slices on, those that were measured after they are in the file at `path`; raises OSError where they cannot
    be written.

    `ring` is the order of the ranks and `paths` the number of the WAN path of each edge of it (-1 within a site).
    """
    for part in parts:
        if part.measured is not None:
            new = not path.exists()  # made for the first row: a run that measures nothing leaves nothing
            with path.open("a", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerows([*([COLUMNS] if new else []), *_rows(part, engine, settings[part.setting])])
        yield part


def _rows(part: Slice, engine: str, setting: Scenario) -> Iterator[list[object]]:
    found = part.measured
    assert found is not None
    which = (setting.gpus, setting.collective.chunk_bytes, setting.conditions.wan_delay_s)
    for row, measured_s in enumerate(part.completion_s.tolist()):
        words = (" ".join(map(str, numbers[row].tolist())) for numbers in (found.ring, found.path))
        numbers = (measured_s, float(found.predicted_s[row]), int(found.drops[row]))
        yield [engine, part.mode, *which, part.start + row, *numbers, *words]
