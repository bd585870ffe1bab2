"""SNDlib's dynamic traffic matrices: a folder with a file for each time, XML or native. Reads files.

Those of Abilene are 5 minutes apart, those of GEANT 15, and those of Germany50 5 minutes or a day. A file's name has
its time: demandMatrix-abilene-zhang-5min-20040301-0005.xml. Where files are missing or have no demand, the previous
matrix holds.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from topologies.errors import format_value
from topologies.packs.published import MAX_MATRICES, Array, Demands, Floats, PackError, counted, kept, matrix, shown
from topologies.packs.sndlib import read

_TIME = re.compile(r"(\d{8})(?:-(\d{4}))?(?!\d)", re.ASCII)
_MOST_UNKEPT = 100
_SUFFIXES = (".xml", ".txt", ".native")


def demands(source: str) -> Demands:
    """Return the matrices of a folder in the order of their times; raises PackError.

    More than a hundred are kept as numbers (`published.kept`): reading thousands of files takes a minute.
    """
    folder, found = Path(source), files(source)
    if not 1 <= len(found) <= MAX_MATRICES:
        raise PackError(f"{shown(folder)} has {len(found):,} matrices; allowed: 1 to {MAX_MATRICES:,}, as .xml or .txt")
    by_time: dict[float, Path] = {}
    for file in found:
        if (first := by_time.setdefault(_seconds(file), file)) is not file:
            raise PackError(f"{shown(file)} has the time of {shown(first)}; allowed: a time for each file")
    nodes, bps = _read([by_time[time_s] for time_s in sorted(by_time)])
    measured = bps.any(axis=(1, 2))
    if not measured.any():
        raise PackError(f"{shown(folder)} has no demand above 0; allowed: matrices with demands")
    times_s = np.array(sorted(by_time))[measured]
    steps_s = np.diff(times_s)
    usual_s = float(np.median(steps_s)) if steps_s.size else 1.0
    missing = int(sum(round(step_s / usual_s) - 1 for step_s in steps_s))
    told = {
        "missing matrices, in whose place the previous one holds": missing,
        "matrices without demands, which are left out": int((~measured).sum()),
    }
    return Demands(
        nodes=nodes,
        times_s=times_s - times_s[0],
        bps=bps[measured],
        interval_s=usual_s,
        notes=counted(told),
    )


def files(source: str) -> list[Path]:
    """Return the files of a folder, by name; raises PackError."""
    try:
        return sorted(file for file in Path(source).iterdir() if file.suffix in _SUFFIXES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackError(f"{format_value(source)} cannot be read: {reason}; allowed: a folder of matrices") from None


def _seconds(file: Path) -> float:
    """Return the time that a file's name has, in seconds since 1970; raises PackError."""
    match = _TIME.search(file.stem)
    try:
        digits = f"{match[1]}{match[2] or '0000'}" if match else ""
        return datetime.strptime(digits, "%Y%m%d%H%M").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise PackError(f"{shown(file)} has no time in its name; allowed: such as -20040301-0005.xml") from None


def _read(files: Sequence[Path]) -> tuple[tuple[str, ...], Floats]:
    """Return the nodes and the matrices, [T, n, n] bit/s, of files; raises PackError."""

    def made() -> dict[str, Array]:
        nodes = tuple(read(files[0]).nodes)
        bps = np.stack([matrix(read(file).demands, nodes, shown(file)) for file in files])
        return {"nodes": np.array(nodes), "bps": bps}

    found = kept(files, "matrices", made) if len(files) > _MOST_UNKEPT else made()
    return tuple(map(str, found["nodes"])), found["bps"]
