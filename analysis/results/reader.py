"""Run directories, format version 1: which file holds what, and reading all of it.

    from analysis.results import load
    load("results/paper-20260101-120000").groupby(["engine", "mode"]).completion_s.mean()

A run that is under way, or was cut short, can be read too: its collectives are in parts/ (see `writer`), and at the end
in collectives.parquet. Reading changes nothing in a directory.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from analysis.results import schema
from analysis.results.rows import Point

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
SCENARIO, PROVENANCE, SETTINGS, PARTS = "scenario.toml", "provenance.json", "settings.json", "parts"
COLLECTIVES, TRANSFERS, JOBS, COUNTERS, PROBES, CONDITIONS, FAULTS = (
    f"{name}.parquet" for name in ("collectives", "transfers", "jobs", "counters", "probes", "conditions", "faults")
)
_OF_PARTS = COLLECTIVES, TRANSFERS, JOBS, COUNTERS, PROBES
SUMMARY, FIGURES, REPORT, LOG = "summary.csv", "figures", "report.html", "log.txt"

PROGRAM = "program"
"""In place of the engines of a run: a program of the user's, which has no collectives."""

_PART = re.compile(r"([a-z]+)-(\d{1,9})-([A-Za-z0-9][A-Za-z0-9_.-]*)-(\d{1,9})\.collectives\.parquet")
_OLD_PARTS = "points"  # journals of rows, of which runs of earlier versions that were cut short consist


class ResultsError(ValueError):
    """A directory of which no run can be read; one sentence that names it."""


class Tables(NamedTuple):
    """The collectives, the transfers, the jobs, the counters and the probes of a run, each in tables of some
    consecutive ones of a point."""

    collectives: Sequence[pa.Table]
    transfers: Sequence[pa.Table]
    jobs: Sequence[pa.Table]
    counters: Sequence[pa.Table]
    probes: Sequence[pa.Table]


class Part(NamedTuple):
    """The files with some consecutive collectives of a point, the first of them `start`, and with their transfers,
    jobs, counters and probes."""

    point: Point
    start: int
    collectives: Path
    transfers: Path
    jobs: Path
    counters: Path
    probes: Path


@dataclass(frozen=True, eq=False)
class Run:
    """A run as its directory holds it; the tables are as README describes them, empty where nothing was emulated."""

    path: Path
    provenance: dict[str, Any]
    settings: list[dict[str, Any]]
    collectives: "pd.DataFrame"
    transfers: "pd.DataFrame"
    jobs: "pd.DataFrame"
    conditions: "pd.DataFrame"
    faults: "pd.DataFrame"
    scenario_text: str
    complete: bool


def load(directory: str | Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """The collectives of a run, a row each: all columns, or these.

    Of a run that is not complete: those that are on the disk. Columns that runs of earlier versions lack have the
    values of `schema.ADDED`. Raises ResultsError for a directory without a run, one
    of a newer format, or a damaged one.
    """
    path = Path(directory)
    provenance = read_provenance(path)
    return frame(_collectives(path, read_settings(path), provenance, columns))


def open_run(directory: str | Path, tables: Tables | None = None) -> Run:
    """Everything that a run directory holds; raises ResultsError as `load`.

    `tables` are what it holds of collectives, transfers, jobs, counters and probes, where that has been read.
    """
    path = Path(directory)
    provenance = read_provenance(path)
    settings = read_settings(path)
    complete = is_complete(provenance)
    return Run(
        path=path,
        provenance=provenance,
        settings=settings,
        collectives=frame(
            _collectives(path, settings, provenance, None)
            if tables is None
            else pa.concat_tables([collectives_schema(settings).empty_table(), *tables.collectives])
        ),
        transfers=frame(
            _beside(path, provenance, TRANSFERS, schema.TRANSFERS)
            if tables is None
            else pa.concat_tables([schema.TRANSFERS.empty_table(), *tables.transfers])
        ),
        jobs=load_jobs(path) if tables is None else jobs_in(tables),
        conditions=frame(_table(path / CONDITIONS, schema.CONDITIONS)),
        faults=frame(_table(path / FAULTS, schema.FAULTS)),
        scenario_text=_text(path / SCENARIO),
        complete=complete,
    )


def load_jobs(directory: str | Path) -> "pd.DataFrame":
    """The jobs of a run, a row for each in each round, as `load` has its collectives; errors as of `load`."""
    path = Path(directory)
    return frame(_beside(path, read_provenance(path), JOBS, schema.JOBS))


def jobs_in(tables: Tables) -> "pd.DataFrame":
    """The jobs in these tables, as `load_jobs` has them."""
    return frame(pa.concat_tables([schema.JOBS.empty_table(), *tables.jobs]))


def is_complete(provenance: dict[str, Any]) -> bool:
    """Whether every point of the run is finished, and its tables are written."""
    return provenance["ended"] is not None


def read_provenance(path: Path) -> dict[str, Any]:
    """How a run came about; raises ResultsError where `path` is not a run directory of this format."""
    if not path.is_dir():
        raise ResultsError(f"{path} is not a run folder: there is no such folder")
    if not (path / PROVENANCE).is_file():
        raise ResultsError(f"{path} is not a run folder: it has no {PROVENANCE}")
    provenance: dict[str, Any] = _json(path / PROVENANCE, dict)
    found = provenance.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise ResultsError(f"{path} is of format {found}, which is newer than this version reads; allowed: {FORMAT}")
    if found != FORMAT or not {"ended", "started", "seed", "command"} <= provenance.keys():
        raise ResultsError(f"{path} is not a run folder: its {PROVENANCE} is not one of format {FORMAT}")
    return provenance


def read_settings(path: Path) -> list[dict[str, Any]]:
    """The settings of a run in the order of their indices; raises ResultsError where they cannot be read."""
    settings: list[dict[str, Any]] = _json(path / SETTINGS, list)
    keys = {"setting", "label", "swept", "values", "fabric", "columns"}
    if not settings or not all(isinstance(setting, dict) and keys <= setting.keys() for setting in settings):
        raise ResultsError(f"{path / SETTINGS} is damaged: it is not a list of settings")
    return settings


def parts_of(path: Path) -> list[Part]:
    """The parts of an unfinished run, in the order of points and collectives."""
    found = (_PART.fullmatch(file.name) for file in (path / PARTS).glob("*"))
    return sorted(part_of(path, Point(m[1], int(m[2]), m[3]), int(m[4])) for m in found if m)


def part_of(path: Path, point: Point, start: int) -> Part:
    """The part of an unfinished run that begins with this collective of a point."""
    stem = path / PARTS / f"{point.engine}-{point.setting:04}-{point.mode}-{start:08}"
    return Part(point, start, *(stem.with_suffix(f".{name}") for name in _OF_PARTS))


def check_readable_parts(path: Path) -> None:
    """Raise ResultsError for a run that an earlier version left unfinished, with its rows in other files."""
    if (path / _OLD_PARTS).is_dir():
        raise ResultsError(f"{path} was left unfinished by an earlier version; run it anew")


def collectives_schema(settings: list[dict[str, Any]]) -> pa.Schema:
    """The columns of the collectives of a run with these settings."""
    return schema.collectives_schema([setting["columns"] for setting in settings])


def point_columns(settings: list[dict[str, Any]], point: Point) -> dict[str, Any]:
    """The columns that are the same in all collectives of a point."""
    setting = settings[point.setting]
    values = setting["values"]
    return {
        "engine": point.engine,
        "setting": point.setting,
        "mode": point.mode,
        "gpus": sum(values["fabric.gpus"]),
        "gpus_per_site": "+".join(map(str, values["fabric.gpus"])),
        "chunk_bytes": values["collective.chunk"],
        "wan_delay_s": values["conditions.wan_delay"],
        "seed": values["run.seed"],
        **setting["columns"],
    }


def _collectives(
    path: Path, settings: list[dict[str, Any]], provenance: dict[str, Any], columns: Sequence[str] | None
) -> pa.Table:
    if provenance.get("engines") == [PROGRAM]:
        raise ResultsError(
            f"{path} is the run folder of a program, which has no collectives: program.json, ranks.csv, links.csv and "
            "figures in it are what there is to read (docs/program.md)"
        )
    try:
        wanted = collectives_schema(settings)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ResultsError(f"{path / SETTINGS} is damaged: it is not of these rows") from None
    unknown = [name for name in columns or () if name not in wanted.names]
    if unknown:
        raise ResultsError(f"{path} has no column {unknown[0]}; allowed: {', '.join(wanted.names)}")
    if is_complete(provenance) or (not (path / PARTS).exists() and (path / COLLECTIVES).exists()):
        return table_in(path / COLLECTIVES, wanted, columns)
    check_readable_parts(path)
    empty = wanted.empty_table() if columns is None else wanted.empty_table().select(list(columns))
    return pa.concat_tables([empty, *(table_in(part.collectives, wanted, columns) for part in parts_of(path))])


def _beside(path: Path, provenance: dict[str, Any], name: str, wanted: pa.Schema) -> pa.Table:
    """A table beside that of the collectives: of a run that is not complete, those of its parts together."""
    if is_complete(provenance) or not (path / PARTS).exists():
        return _table(path / name, wanted)
    files = [file for part in parts_of(path) for file in part[2:] if file.name.endswith(f".{name}") and file.exists()]
    return pa.concat_tables([wanted.empty_table(), *(table_in(file, wanted) for file in files)])


def _table(path: Path, wanted: pa.Schema) -> pa.Table:
    return table_in(path, wanted) if path.exists() else wanted.empty_table()


def table_in(path: Path, wanted: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """All columns of the table in a file, or these; raises ResultsError where it is damaged or missing."""
    try:
        return schema.read_table(path, wanted, columns)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise ResultsError(f"{path} is damaged or missing: {reason[:200]}") from None


def frame(table: pa.Table) -> "pd.DataFrame":
    """A table as a DataFrame, its lists as Arrow has them."""
    import pandas as pd  # half a second that writers need not spend

    lists = {kind: pd.ArrowDtype(kind) for kind in {field.type for field in table.schema} if pa.types.is_list(kind)}
    found: pd.DataFrame = table.to_pandas(types_mapper=lists.get)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None


def _json(path: Path, kind: type) -> Any:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ResultsError):
            raise
        raise ResultsError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(found, kind):
        raise ResultsError(f"{path} is damaged: it is not a {kind.__name__}")
    return found
