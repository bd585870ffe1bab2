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
    with path.open("x", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for part in parts:
            setting = settings[part.setting]
            which = (setting.gpus, setting.collective.chunk_bytes, setting.conditions.wan_delay_s)
            if part.measured is not None:
                for row, measured_s in enumerate(part.completion_s.tolist()):
                    found = part.measured
                    words = (" ".join(map(str, numbers[row].tolist())) for numbers in (found.ring, found.path))
                    numbers = (measured_s, float(found.predicted_s[row]), int(found.drops[row]))
                    table.writerow([engine, part.mode, *which, part.start + row, *numbers, *words])
                file.flush()
            yield part
