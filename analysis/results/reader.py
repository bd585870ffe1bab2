"""Run folders, format version 1: the one module that knows what lies where in one, for writers and for readers.

    from analysis.results import load
    load("results/paper-20260101-120000").groupby(["engine", "mode"]).completion_s.mean()

A run that is under way, or was cut short, is a run too: its collectives are in journals in points/ (see `journal`),
one for each point, and at the end in collectives.parquet. Reading changes nothing in a folder.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from analysis.results import schema
from analysis.results.journal import Found, JournalError, records
from analysis.results.rows import Rows, RowsError, first, joined, unpacked

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
SCENARIO, PROVENANCE, SETTINGS, POINTS = "scenario.toml", "provenance.json", "settings.json", "points"
COLLECTIVES, TRANSFERS, CONDITIONS = "collectives.parquet", "transfers.parquet", "conditions.parquet"
FAULTS, STRUCK = "faults.parquet", "faults.struck"
SUMMARY, FIGURES, REPORT, LOG = "summary.csv", "figures", "report.html", "log.txt"

_GROUP = 200_000  # rows that are held at a time


class ResultsError(ValueError):
    """A folder that is no run folder, or not one that can be read; one sentence that names it."""


class Point(NamedTuple):
    """One point of a run: one mode at one setting (its index in settings.json) in one engine."""

    engine: str
    setting: int
    mode: str

    @property
    def file(self) -> str:
        """The journal of this point, in points/."""
        return f"{self.engine}-{self.setting:04}-{self.mode}.rows"


@dataclass(frozen=True, eq=False)
class Run:
    """A run as its folder holds it; the tables are as README describes them, empty where nothing was emulated."""

    path: Path
    provenance: dict[str, Any]
    settings: list[dict[str, Any]]
    collectives: "pd.DataFrame"
    transfers: "pd.DataFrame"
    conditions: "pd.DataFrame"
    faults: "pd.DataFrame"
    scenario_text: str
    complete: bool


def load(directory: str | Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """The collectives of a run, a row each: all columns, or these.

    Also of a run that is not complete: what was reported is there. Raises ResultsError for a folder that is no run's,
    of a newer format, or damaged.
    """
    path = Path(directory)
    provenance = read_provenance(path)
    return _frame(_collectives(path, read_settings(path), provenance, columns))


def open_run(directory: str | Path) -> Run:
    """Everything that a run folder holds; raises ResultsError as `load`."""
    path = Path(directory)
    provenance = read_provenance(path)
    settings = read_settings(path)
    complete = is_complete(provenance)
    transfers, conditions = (
        _transfers(path, settings) if not complete else _table(path / TRANSFERS, schema.TRANSFERS),
        _table(path / CONDITIONS, schema.CONDITIONS),
    )
    return Run(
        path=path,
        provenance=provenance,
        settings=settings,
        collectives=_frame(_collectives(path, settings, provenance, None)),
        transfers=_frame(transfers),
        conditions=_frame(conditions),
        faults=_frame(_faults(path) if not complete else _table(path / FAULTS, schema.FAULTS)),
        scenario_text=_text(path / SCENARIO),
        complete=complete,
    )


def is_complete(provenance: dict[str, Any]) -> bool:
    """Whether every point of the run is finished, and its tables are written."""
    return provenance["ended"] is not None


def read_provenance(path: Path) -> dict[str, Any]:
    """What is known of how a run came about; raises ResultsError where `path` is no run folder of this format."""
    if not path.is_dir():
        raise ResultsError(f"{path} is no run folder: there is no such folder")
    if not (path / PROVENANCE).is_file():
        raise ResultsError(f"{path} is no run folder: it has no {PROVENANCE}")
    provenance: dict[str, Any] = _json(path / PROVENANCE, dict)
    found = provenance.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise ResultsError(f"{path} is of format {found}, which is newer than this version reads: allowed is {FORMAT}")
    if found != FORMAT or not {"ended", "started", "seed", "command"} <= provenance.keys():
        raise ResultsError(f"{path} is no run folder: its {PROVENANCE} is not one of format {FORMAT}")
    return provenance


def read_settings(path: Path) -> list[dict[str, Any]]:
    """The settings of a run in the order of their indices; raises ResultsError where they cannot be read."""
    settings: list[dict[str, Any]] = _json(path / SETTINGS, list)
    keys = {"setting", "label", "swept", "values", "fabric", "columns"}
    if not settings or not all(isinstance(setting, dict) and keys <= setting.keys() for setting in settings):
        raise ResultsError(f"{path / SETTINGS} is damaged: it is no list of settings")
    return settings


def points_of(path: Path) -> Iterator[Point]:
    """The points of an unfinished run of which there are rows, in the order of their names."""
    for file in sorted((path / POINTS).glob("*-*-*.rows")):
        engine, setting, mode = file.stem.split("-", 2)
        if setting.isdigit():
            yield Point(engine, int(setting), mode)


def struck_of(path: Path) -> list[dict[str, Any]]:
    """What became of the faults of an unfinished run, each once, as last told; raises ResultsError where it is
    damaged."""
    journal, found = path / POINTS / STRUCK, {}
    try:
        for _, data in records(journal) if journal.exists() else ():
            record = json.loads(data)
            found[tuple(record[name] for name in ("engine", "setting", "mode", "fault", "at_collective"))] = record
    except OSError as error:
        raise ResultsError(f"{journal} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{error if isinstance(error, JournalError) else f'{journal} is damaged'}") from None
    return list(found.values())


def _faults(path: Path) -> pa.Table:
    struck = struck_of(path)
    try:
        return schema.faults_table(struck)
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise ResultsError(f"{path / POINTS / STRUCK} is damaged") from None


def stored(path: Path, point: Point) -> Iterator[Rows]:
    """The rows of an unfinished run's point, in order, many at a time; raises ResultsError where they are damaged."""
    journal = path / POINTS / point.file
    try:
        places: list[tuple[int, Found]] = [(first(data), found) for found, data in records(journal)]
        held: list[Rows] = []
        with journal.open("rb") as file:
            for _, place in sorted(places):
                file.seek(place.offset)
                held.append(unpacked(file.read(place.size)))
                if sum(map(len, held)) >= _GROUP:
                    yield from _runs(held)
                    held = []
        yield from _runs(held)
    except OSError as error:
        raise ResultsError(f"{journal} cannot be read: {error.strerror}") from None
    except (JournalError, RowsError) as error:
        raise ResultsError(
            f"{error if isinstance(error, JournalError) else f'{journal} is damaged: {error}'}"
        ) from None


def _runs(held: list[Rows]) -> Iterator[Rows]:
    """Rows without gaps joined; those of a point that is under way may have some."""
    while held:
        length = next((i for i in range(1, len(held)) if held[i].start != held[i - 1].stop), len(held))
        yield joined(held[:length])
        held = held[length:]


def collectives_of(path: Path, settings: list[dict[str, Any]], points: Sequence[Point]) -> Iterator[pa.Table]:
    """The collectives of these points of an unfinished run, table by table."""
    wanted = collectives_schema(settings)
    for point in points:
        for rows in stored(path, point):
            with _settings_read(path):
                table = schema.collectives_table(rows, _columns(settings, point), wanted)
            yield table


def transfers_of(path: Path, settings: list[dict[str, Any]], points: Sequence[Point]) -> Iterator[pa.Table]:
    """The transfers of these points of an unfinished run, table by table."""
    for point in points:
        for rows in stored(path, point):
            with _settings_read(path):
                table = schema.transfers_table(rows, _columns(settings, point))
            yield table


@contextmanager
def _settings_read(path: Path) -> Iterator[None]:
    """Say that the settings are damaged where rows cannot be put under them."""
    try:
        yield
    except ResultsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException):
        raise ResultsError(f"{path / SETTINGS} is damaged: it is not of these rows") from None


def collectives_schema(settings: list[dict[str, Any]]) -> pa.Schema:
    """The columns of the collectives of a run with these settings."""
    return schema.collectives_schema(settings[0]["columns"])


def _columns(settings: list[dict[str, Any]], point: Point) -> dict[str, Any]:
    if point.setting >= len(settings):
        raise ResultsError(f"{point.file} is of a setting that {SETTINGS} does not have")
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
    with _settings_read(path):
        wanted = collectives_schema(settings)
    strangers = [name for name in columns or () if name not in wanted.names]
    if strangers:
        raise ResultsError(f"{path} has no column {strangers[0]}: allowed are {', '.join(wanted.names)}")
    if is_complete(provenance):
        return _table(path / COLLECTIVES, wanted, columns)
    found = pa.concat_tables([wanted.empty_table(), *collectives_of(path, settings, list(points_of(path)))])
    return found if columns is None else found.select(list(columns))


def _transfers(path: Path, settings: list[dict[str, Any]]) -> pa.Table:
    points = [point for point in points_of(path) if point.engine != "model"]
    return pa.concat_tables([schema.TRANSFERS.empty_table(), *transfers_of(path, settings, points)])


def _table(path: Path, wanted: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    if not path.exists() and path.name != COLLECTIVES:
        return wanted.empty_table()
    try:
        found = schema.read_table(path, columns)
    except (OSError, pa.ArrowException) as error:
        words = str(error).partition("\n")[0]
        raise ResultsError(f"{path} is damaged or missing: {words[:200]}") from None
    if columns is None and found.schema.names != wanted.names:
        raise ResultsError(f"{path} is damaged: its columns are not those of the run's settings")
    return found


def _frame(table: pa.Table) -> "pd.DataFrame":
    import pandas as pd  # half a second that writers need not spend

    lists = {kind: pd.ArrowDtype(kind) for kind in {field.type for field in table.schema} if pa.types.is_list(kind)}
    frame: pd.DataFrame = table.to_pandas(types_mapper=lists.get)
    return frame


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None


def _json(path: Path, kind: type) -> Any:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ResultsError):
            raise
        raise ResultsError(f"{path} is damaged: it is no JSON") from None
    if not isinstance(found, kind):
        raise ResultsError(f"{path} is damaged: it holds no {kind.__name__}")
    return found
