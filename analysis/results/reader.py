"""Reading run folders (format version 1), and the names of their files.

    from analysis.results import load
    load("results/paper-20260101-120000").groupby(["engine", "mode"]).completion_s.mean()

An unfinished run, still under way or interrupted, can be read too: its collectives are in parts/ (see `writer`) until
they are merged into collectives.parquet at the end. Reading changes nothing in a folder.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.results import schema
from analysis.results.columns import JOBS, OF_PARTS
from analysis.results.paragraphs import Paragraph, paragraph_of
from analysis.results.rows import Point
from analysis.results.schema import SCHEMAS

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
SCENARIO, PROVENANCE, SETTINGS, PARTS = "scenario.toml", "provenance.json", "settings.json", "parts"
SENTENCES = "sentences.json"
COLLECTIVES, CONDITIONS, FAULTS = (f"{name}.parquet" for name in ("collectives", "conditions", "faults"))
SUMMARY, FIGURES, REPORT, LOG = "summary.csv", "figures", "report.html", "log.txt"

SETTINGS_ATTRIBUTE = "longhaul settings"
"""The attribute (`DataFrame.attrs`) of a frame of rows that has the settings of its run."""

PROGRAM = "program"
"""In place of the engines of a run that executed a user's program and has no collectives."""

_PART = re.compile(r"([a-z]+)-(\d{1,9})-([A-Za-z0-9][A-Za-z0-9_.-]*)-(\d{1,9})\.collectives\.parquet")
_QUIET, _GAPS = 0.1, 10.0  # of a run, and of the time between two choices: a mode that chooses no more has stopped
_OLD_PARTS = "points"  # journals of rows in unfinished runs of earlier versions


class SharedSettings(list[dict[str, Any]]):
    """The settings of a run as an attribute of its rows. Pandas copies attributes deeply for every column that is taken
    from a frame, which took longer than the model of a sweep; nothing changes these, so that all copies share them."""

    def __deepcopy__(self, _memo: object) -> "SharedSettings":
        return self


class ResultsError(ValueError):
    """A folder from which no run can be read; the message is one sentence that names it."""


class Tables(NamedTuple):
    """The collectives of a run, and by name the other tables of `OF_PARTS` that it has; each table has those of some
    consecutive collectives of a point."""

    collectives: Sequence[pa.Table]
    others: Mapping[str, Sequence[pa.Table]]


class Part(NamedTuple):
    """The files of some consecutive collectives of a point, from number `start` on, and by name those of the other
    tables of `OF_PARTS`."""

    point: Point
    start: int
    collectives: Path
    others: Mapping[str, Path]


@dataclass(frozen=True, eq=False)
class Run:
    """A run as stored in its folder; docs/results.md describes the tables, which are empty if nothing was emulated.
    `sentences` is what the command said of the run; there is none in runs of earlier versions."""

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
    sentences: tuple[Paragraph, ...] = ()


def load(directory: str | Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """Return the collectives of a run, a row each, with all columns or only `columns`.

    An unfinished run has those that are on the disk already. Columns that runs of earlier versions lack have the values
    of `schema.LATER`. Raises ResultsError for a folder without a run, of a newer format, or with damaged files.
    """
    path = Path(directory)
    provenance, settings = read_provenance(path), read_settings(path)
    rows = frame(_collectives(path, settings, provenance, columns))
    rows.attrs[SETTINGS_ATTRIBUTE] = SharedSettings(settings)
    return rows


def run_of_rows(rows: "pd.DataFrame") -> Run:
    """Return rows that `load` or `scenarios.api.run` returned as a run, which has no other tables and no folder.

    Raises ResultsError for another frame, or one of which the columns that tell collectives apart are missing.
    """
    settings = getattr(rows, "attrs", {}).get(SETTINGS_ATTRIBUTE)
    needed = ("engine", "setting", "mode", "collective", "completion_s", "reembedded", "rerouted")
    if settings is None or not set(needed) <= set(rows.columns):
        what = "rows as run(...) or load(...) returned them, with the columns " + ", ".join(needed)
        raise ResultsError(f"the frame has no settings or lacks columns; allowed: {what}")
    others = dict.fromkeys(("transfers", "jobs", "conditions", "faults"), rows.head(0))
    return Run(
        path=Path("the frame"),
        provenance={},
        settings=settings,
        collectives=rows,
        scenario_text="",
        complete=True,
        **others,
    )


def open_run(directory: str | Path, tables: Tables | None = None) -> Run:
    """Read everything that a run folder holds; raises ResultsError as `load` does.

    `tables` are those of which it has parts, if the caller has them already.
    """
    path = Path(directory)
    provenance = read_provenance(path)
    settings = read_settings(path)
    if tables is None:
        collectives = _collectives(path, settings, provenance, None)
        transfers = _other_table(path, provenance, "transfers")
    else:
        collectives = _joined(collectives_schema(settings), tables.collectives)
        transfers = _joined(SCHEMAS["transfers"], tables.others.get("transfers", ()))
    return Run(
        path=path,
        provenance=provenance,
        settings=settings,
        collectives=frame(collectives),
        transfers=frame(transfers),
        jobs=load_jobs(path) if tables is None else jobs_in(tables),
        conditions=frame(_table(path / CONDITIONS, SCHEMAS["conditions"])),
        faults=frame(_table(path / FAULTS, SCHEMAS["faults"])),
        scenario_text=_text(path / SCENARIO),
        complete=is_complete(provenance),
        sentences=read_sentences(path),
    )


def load_jobs(directory: str | Path) -> "pd.DataFrame":
    """Return the jobs of a run, a row for each job of each round; reads and raises as `load` does."""
    path = Path(directory)
    return frame(_other_table(path, read_provenance(path), JOBS))


def jobs_in(tables: Tables) -> "pd.DataFrame":
    """Return the jobs in these tables in the form of `load_jobs`."""
    return frame(_joined(SCHEMAS[JOBS], tables.others.get(JOBS, ())))


class Choices(NamedTuple):
    """Before how many collectives of a point paths, and the placement, were chosen again, and how many of these choices
    were what was in force already."""

    rerouted: int
    reembedded: int
    same_paths: int
    same_placement: int

    def words(self, collectives: int) -> str:
        """Return how often it has chosen before these collectives: "re-routed 5, re-embedded 0 of 19; 2 of the 5
        choices of paths were the paths in force already"."""
        told = [f"re-routed {self.rerouted:,}, re-embedded {self.reembedded:,} of {collectives:,}"]
        if self.same_paths:
            told.append(
                f"{self.same_paths:,} of the {self.rerouted:,} choices of paths were the paths in force already"
            )
        if self.same_placement:
            told.append(
                f"{self.same_placement:,} of the {self.reembedded:,} choices of a ring were the ring in force already"
            )
        return "; ".join(told)


def choices_of(rows: "pd.DataFrame") -> Choices:
    """Return the choices of a point, given its rows in order. The choice before collective 0 is left out: nothing is in
    force yet. A choice is what was in force already if it equals that of the collective before, as far as that is among
    the rows."""
    moved, of_paths = _changes(rows)
    number = rows["collective"].to_numpy()
    later, follows = number > 0, np.diff(number, prepend=-1) == 1
    rerouted, reembedded = (rows[name].to_numpy(dtype=bool) & later for name in ("rerouted", "reembedded"))
    return Choices(
        rerouted=int(rerouted.sum()),
        reembedded=int(reembedded.sum()),
        same_paths=int((rerouted & follows & ~of_paths).sum()),
        same_placement=int((reembedded & follows & ~moved).sum()),
    )


def last_words(rows: "pd.DataFrame") -> str:
    """Return before which collective of a point it re-routed, and re-embedded, last, given its rows in order, if it has
    stopped early: for a tenth of the run, and ten times as long as between two choices on average; "" otherwise. A rule
    of one's own can stop by mistake, which means over a run tell late."""
    number = rows["collective"].to_numpy()
    after, told = int(number[-1]) + 1, list[str]()
    for name, what in (("rerouted", "re-routed"), ("reembedded", "re-embedded")):
        chosen = number[rows[name].to_numpy(dtype=bool) & (number > 0)]
        if chosen.size and after - chosen[-1] >= max(_QUIET * after, _GAPS * chosen[-1] / chosen.size):
            told.append(f"it {what} last before collective {chosen[-1]:,} of {after:,}")
    return "; ".join(told)


@dataclass(frozen=True, kw_only=True)
class Reconfigurations:
    """The reconfigurations of a point after collective 0 that changed something: how many, their mean time (None if
    none has one), and how many changed the paths: where the placement changed too, the paths in use, whichever of its
    flows take them. `first_s` is the time of the first one, before collective 0, which opens all connections; None if
    it has none. `alone` of them changed the paths and left the placement, in `alone_s` on average, and `rings` changed
    the placement, in `rings_s`; None if there are none. `within` is how often paths were chosen while collectives ran,
    and `moved` how many of these choices changed them.
    """

    first_s: float | None
    count: int
    mean_s: float | None
    of_paths: int
    within: int = 0
    moved: int = 0
    alone: int = 0
    alone_s: float | None = None
    rings: int = 0
    rings_s: float | None = None

    @property
    def words(self) -> str:
        """The times in ms: that of the first one, and the mean of the others with how many they were, and how often
        paths changed if they did, but not each time: "60.021 at first; 12.008, 40 times, paths 8 times"; and how often
        they were chosen while collectives ran: "within collectives 12 times, paths 9 times"; "" for none.
        """
        told = [] if self.first_s is None else [f"{self.first_s * 1e3:,.3f} at first"]
        if self.count and self.mean_s is not None:
            paths = f", paths {_times(self.of_paths)}" * (0 < self.of_paths < self.count)
            told.append(f"{self.mean_s * 1e3:,.3f}, {_times(self.count)}{paths}")
        if self.within:
            paths = f", paths {_times(self.moved)}" * (self.moved < self.within)
            told.append(f"within collectives {_times(self.within)}{paths}")
        return "; ".join(told)


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count:,} times")


def reconfigurations_of(rows: "pd.DataFrame", engine: str) -> Reconfigurations:
    """Return the reconfigurations of a point, given its rows in order.

    One changed something if the placement or the paths differ from the collective before, if it sent messages to the
    switches, or if it takes time in the model. Choices of paths while a collective runs are counted by themselves.
    """
    within = {"within": int(rows["rerouted_within"].sum()), "moved": int(rows["moved_within"].sum())}
    times_s = rows["reconfigure_s"].to_numpy(dtype=np.float64)
    is_first, is_timed = rows["collective"].to_numpy() == 0, np.isfinite(times_s)
    if not is_timed.any():
        return Reconfigurations(first_s=None, count=0, mean_s=None, of_paths=0, **within)
    moved, of_paths = _changes(rows)
    took = times_s > 0 if engine == "model" else rows["reconfigure_messages"].to_numpy() > 0
    changed = is_timed & ~is_first & (moved | of_paths | took)
    return Reconfigurations(
        first_s=next(iter(times_s[is_first & is_timed].tolist()), None),
        count=int(changed.sum()),
        mean_s=float(times_s[changed].mean()) if changed.any() else None,
        of_paths=int((changed & of_paths).sum()),
        alone=int((changed & ~moved).sum()),
        alone_s=_mean(times_s[changed & ~moved]),
        rings=int((changed & moved).sum()),
        rings_s=_mean(times_s[changed & moved]),
        **within,
    )


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None


def _changes(rows: "pd.DataFrame") -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return where the placement, and the paths, differ from those of the row before, [K] each: where the placement
    differs too, the paths in use, whichever of its flows take them. Collective 0 differs from nothing."""
    rings, paths = ([tuple(one) for one in rows[name]] for name in ("ring", "paths"))
    crossing = [tuple(sorted(index for index in one if index >= 0)) for one in paths]
    later = rows["collective"].to_numpy() > 0
    moved = _differs(rings) & later
    return moved, np.where(moved, _differs(crossing), _differs(paths)) & later


def _differs(values: Sequence[tuple[int, ...]]) -> npt.NDArray[np.bool_]:
    """Return which values differ from the one before, [K]; the first one does not."""
    return np.array([number > 0 and one != values[number - 1] for number, one in enumerate(values)], dtype=bool)


def is_complete(provenance: dict[str, Any]) -> bool:
    """Return whether every point of the run is finished and the tables of the run are written."""
    return provenance["ended"] is not None


def read_provenance(path: Path) -> dict[str, Any]:
    """Read the provenance of a run; raises ResultsError if `path` is not a run folder of this format."""
    if not path.is_dir():
        problem = "it is a file" if path.exists() else "there is no such folder"
        raise ResultsError(f"{path} is not a run folder: {problem}")
    if not (path / PROVENANCE).is_file():
        raise ResultsError(f"{path} is not a run folder: it has no {PROVENANCE}")
    provenance: dict[str, Any] = _json(path / PROVENANCE, dict)
    version = provenance.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise ResultsError(f"{path} is of format {version}, which is newer than this version reads; allowed: {FORMAT}")
    if version != FORMAT or not {"ended", "started", "seed", "command"} <= provenance.keys():
        raise ResultsError(f"{path} is not a run folder: its {PROVENANCE} is not one of format {FORMAT}")
    return provenance


def read_settings(path: Path) -> list[dict[str, Any]]:
    """Read the settings of a run in the order of their indices; raises ResultsError if they cannot be read."""
    settings: list[dict[str, Any]] = _json(path / SETTINGS, list)
    keys = {"setting", "label", "swept", "values", "fabric", "columns"}
    if not settings or not all(isinstance(setting, dict) and keys <= setting.keys() for setting in settings):
        raise ResultsError(f"{path / SETTINGS} is damaged: it is not a list of settings")
    return settings


def read_sentences(path: Path) -> tuple[Paragraph, ...]:
    """Read what the command said of a run; () if nothing is stored. Raises ResultsError if it cannot be read."""
    if not (path / SENTENCES).exists():
        return ()
    try:
        return tuple(map(paragraph_of, _json(path / SENTENCES, list)))
    except ValueError as error:
        if isinstance(error, ResultsError):
            raise
        raise ResultsError(f"{path / SENTENCES} is damaged: {error}") from None


def parts_of(path: Path) -> list[Part]:
    """Return the parts of an unfinished run, sorted by point and collective."""
    matches = (_PART.fullmatch(file.name) for file in (path / PARTS).glob("*"))
    return sorted(part_of(path, Point(match[1], int(match[2]), match[3]), int(match[4])) for match in matches if match)


def part_of(path: Path, point: Point, start: int) -> Part:
    """Return the file names of the part of an unfinished run that begins with collective `start` of a point."""
    stem = path / PARTS / f"{point.engine}-{point.setting:04}-{point.mode}-{start:08}"
    collectives, *others = (stem.with_suffix(f".{name}.parquet") for name in OF_PARTS)
    return Part(point, start, collectives, dict(zip(OF_PARTS[1:], others, strict=True)))


def check_readable_parts(path: Path) -> None:
    """Raise ResultsError for a run that an earlier version, which stored rows in other files, left unfinished."""
    if (path / _OLD_PARTS).is_dir():
        raise ResultsError(f"{path} was left unfinished by an earlier version; run it again in a new folder")


def collectives_schema(settings: list[dict[str, Any]]) -> pa.Schema:
    """Return the columns of the collectives of a run with these settings."""
    return schema.collectives_schema([setting["columns"] for setting in settings])


def point_columns(settings: list[dict[str, Any]], point: Point) -> dict[str, Any]:
    """Return the columns that are the same in all collectives of a point."""
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
            f"{path} is the run folder of a program, which has no collectives: read program.json, ranks.csv, links.csv "
            "and figures in it instead (docs/program.md)"
        )
    try:
        wanted = collectives_schema(settings)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ResultsError(f"{path / SETTINGS} is damaged: its columns are not those of a run") from None
    unknown = [name for name in columns or () if name not in wanted.names]
    if unknown:
        raise ResultsError(f"{path} has no column {unknown[0]}; allowed: {', '.join(wanted.names)}")
    if is_complete(provenance) or (not (path / PARTS).exists() and (path / COLLECTIVES).exists()):
        return table_in(path / COLLECTIVES, wanted, columns)
    check_readable_parts(path)
    empty = wanted.empty_table() if columns is None else wanted.empty_table().select(list(columns))
    return pa.concat_tables([empty, *(table_in(part.collectives, wanted, columns) for part in parts_of(path))])


def _other_table(path: Path, provenance: dict[str, Any], name: str) -> pa.Table:
    """Read a table other than the collectives; in an unfinished run it is put together from the parts."""
    wanted = SCHEMAS[name]
    if is_complete(provenance) or not (path / PARTS).exists():
        return _table(path / f"{name}.parquet", wanted)
    files = (part.others[name] for part in parts_of(path))
    return _joined(wanted, (table_in(file, wanted) for file in files if file.exists()))


def _joined(columns: pa.Schema, tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([columns.empty_table(), *tables])


def _table(path: Path, wanted: pa.Schema) -> pa.Table:
    return table_in(path, wanted) if path.exists() else wanted.empty_table()


def table_in(path: Path, wanted: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all columns of the table in a file, or only `columns`; raises ResultsError if it is damaged or missing."""
    try:
        return schema.read_table(path, wanted, columns)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise ResultsError(f"{path} is damaged or missing: {reason[:200]}") from None


def frame(table: pa.Table) -> "pd.DataFrame":
    """Convert a table to a DataFrame; lists keep their Arrow type."""
    import pandas as pd  # takes half a second, which writers need not spend

    lists = {kind: pd.ArrowDtype(kind) for kind in {field.type for field in table.schema} if pa.types.is_list(kind)}
    converted: pd.DataFrame = table.to_pandas(types_mapper=lists.get)
    return converted


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None


def _json(path: Path, kind: type) -> Any:
    text = _text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ResultsError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(content, kind):
        raise ResultsError(f"{path} is damaged: it is not a {kind.__name__}")
    return content
