"""The files of a run in its folder: begun, resumed, completed, and described by their provenance.

Every file is written completely or not at all. A folder belongs to a run once it has a provenance.json, which is
written after scenario.toml and settings.json. The run is complete when provenance.json records when it ended; a run
that is not complete can be resumed.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.results import reader, schema
from analysis.results.columns import OF_PARTS
from analysis.results.paragraphs import About, Paragraph, those_about
from analysis.results.rows import Point
from analysis.results.writer import Writer, atomic_replacement, temporary_of, write_table, write_text
from hosts.collectives.chakra import files_of
from scenarios.engines import ENGINES
from scenarios.engines.base import FaultOutcome, Snapshot
from scenarios.experiment.point_results import ConfigResult
from scenarios.experiment.results_csv import summary_csv
from scenarios.experiment.run_folder import RunFolder
from scenarios.experiment.stored_settings import settings_as_json
from scenarios.policies.conditions import conditions_of
from scenarios.policies.policy import Mode
from scenarios.policies.user_policy import split_reference
from scenarios.spec import ScenarioError
from scenarios.spec.changed_files import data_of
from scenarios.spec.keys import KEYS
from scenarios.spec.load import of_its_time, resolved, scenario_of
from scenarios.spec.scenario import Scenario, values_of
from scenarios.testbed.capture import CAPTURES
from topologies.errors import format_value
from topologies.packs import table as packs

_CONDITIONS_AT_A_TIME = 1000
_ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ("longhaul", "numpy", "pyarrow", "pandas", "matplotlib", "os-ken", "rich", "scipy", "distributed")
_GIT_TIMEOUT_S = 20


_OF_JOBS = ("name", "background", "start_s")

POLICIES = "policies"
"""The folder with copies of the files of the user's own policies."""


@dataclass(frozen=True)
class Recorded:
    """The scenario and the engines that a run folder was created with, and the digests of its input files."""

    text: str
    scenario: Scenario
    engines: tuple[str, ...]
    sha256: Mapping[str, str]

    def differences(self, scenario: Scenario, engines: Sequence[str] | None) -> Iterator[str]:
        """Yield a sentence for each difference of a requested scenario; `engines` None means none were requested."""
        before, now = values_of(self.scenario), values_of(scenario)
        functions = [_function_files(one) for one in (self.scenario, scenario)]
        before["policy"], now["policy"] = (_without_paths(one) for one in (self.scenario, scenario))
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key):
                what = f"{_shown_value(key, now)} is requested, but the folder has {_shown_value(key, before)}"
                yield f"--resume: {key}: {what}; allowed: the same scenario"
        if engines is not None and tuple(engines) != self.engines:
            what = f"{' and '.join(engines)} is requested, but the folder has {' and '.join(self.engines)}"
            yield f"--engine: {what}; allowed: the same"
        digests_before, digests = (sha256(paths.values()) for paths in functions)
        for name, path in functions[1].items():
            if name in functions[0] and digests[str(path)] != digests_before[str(functions[0][name])]:
                yield f"--resume: {_changed_file(path)}"
        for file, digest in _digests(scenario).items():
            if self.sha256.get(file, digest) != digest:
                yield f"--resume: {_changed_file(file)}"


def recorded(path: Path) -> Recorded:
    """Read what the run in this folder was created with; raises ResultsError if there is no run or it is damaged."""
    provenance = reader.read_provenance(path)
    try:
        text = of_its_time((path / reader.SCENARIO).read_text(encoding="utf-8"))
        scenario = scenario_of(text, path=path / reader.SCENARIO, is_stored=True, pieces=_stored_pieces(path))
    except ScenarioError as error:
        changed = _changed_input(provenance.get("sha256"))
        why = f"{path / reader.SCENARIO} is damaged: {error.mistakes[0]}" if changed is None else _changed_file(changed)
        raise reader.ResultsError(why) from None
    except (OSError, UnicodeDecodeError) as error:
        raise reader.ResultsError(f"{path / reader.SCENARIO} cannot be read: {error}") from None
    engines: Any = provenance.get("engines")
    digests = provenance.get("sha256", {})
    if engines == [reader.PROGRAM]:
        raise reader.ResultsError(f"{path} is a program's run, which cannot be resumed; allowed: a run of collectives")
    has_types = isinstance(digests, dict) and isinstance(provenance.get("resumed"), list)
    if not has_types or engines not in map(list, ENGINES.values()) or provenance["seed"] != scenario.run.seed:
        raise reader.ResultsError(f"{path} is damaged: its provenance does not match its scenario")
    for file, digest in sha256(_function_files(scenario).values()).items():
        if digests.get(_name_in(file, path), digest) != digest:
            raise reader.ResultsError(_changed_file(file))
    return Recorded(text, scenario, tuple(engines), digests)


def _stored_pieces(path: Path) -> list[object]:
    """Return the number of pieces that a run has stored for each configuration; none if its settings are damaged."""
    try:
        return [setting["values"].get("collective.pieces") for setting in reader.read_settings(path)]
    except (reader.ResultsError, AttributeError):
        return []


def _read_settings(path: Path, scenario: Scenario) -> list[dict[str, Any]]:
    """Read a run's settings; raises ResultsError unless rows get the same columns and jobs from them as from the
    scenario."""
    settings, own = reader.read_settings(path), json.loads(json.dumps(settings_as_json(scenario)))

    def columns(of: list[dict[str, Any]]) -> list[Any]:
        of_jobs = (
            [each.get("rounds_differ"), *([job[name] for name in _OF_JOBS] for job in each.get("jobs", []))]
            for each in of
        )
        return [(reader.point_columns(of, Point("", index, "")), jobs) for index, jobs in enumerate(of_jobs)]

    try:
        is_same = columns(settings) == columns(own)
    except (LookupError, TypeError):
        is_same = False
    if not is_same:
        raise reader.ResultsError(f"{path / reader.SETTINGS} is damaged: it does not match {reader.SCENARIO}")
    return settings


def _changed_input(digests: object) -> str | None:
    """Return the first input file that differs from its recorded digest, or is gone."""
    for file, digest in digests.items() if isinstance(digests, dict) else ():
        path = Path(str(file))
        if packs.is_pack(file) and packs.digest_of(file) != digest:
            return str(file)
        if path.is_absolute() and (not path.is_file() or sha256([path])[str(path)] != digest):
            return str(file)
    return None


def _changed_file(path: object) -> str:
    if packs.is_pack(path):
        what = "have changed since the run began" if packs.digest_of(str(path)) else "are no longer there"
        return f"the data of {path} {what}; allowed: the same files"
    return f"{path} has changed since the run began; allowed: the same file"


def _name_in(file: str, folder: Path) -> str:
    """Return a file's path as it is used for digests: relative to the run's folder if it is inside."""
    path, folder = Path(file).absolute(), folder.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _function_files(scenario: Scenario) -> dict[str, Path]:
    """Return the files of the policies that are functions of the user, by policy name."""
    return {
        policy.name: split_reference(policy.function)[0] for policy in scenario.policies if policy.function is not None
    }


def _without_paths(scenario: Scenario) -> tuple[Mode, ...]:
    """Return a scenario's policies with functions by name only, because their files are compared by content."""
    return _with_paths(scenario, dict.fromkeys(_function_files(scenario).values(), "-")).policies


def _with_paths(scenario: Scenario, paths: Mapping[Path, str]) -> Scenario:
    """Return the scenario with the paths of its policies' files replaced by these."""
    policies = []
    for policy in scenario.policies:
        if policy.function is None:
            policies.append(policy)
        else:
            path, name = split_reference(policy.function)
            policies.append(replace(policy, function=f"{paths[path]}:{name}"))
    return replace(scenario, policies=tuple(policies))


def _copies(scenario: Scenario) -> dict[Path, str]:
    """Return the names of the copies of policies' files in the run's folder, by path of the original."""
    copies: dict[Path, str] = {}
    for path in dict.fromkeys(_function_files(scenario).values()):
        names = (f"{POLICIES}/{path.stem}{f'-{n}' if n else ''}{path.suffix}" for n in count())
        copies[path] = next(name for name in names if name not in copies.values())
    return copies


def _input_files(scenario: Scenario) -> list[Path]:
    """Return all files that the scenario's configurations are read from, except those of policies."""
    files = [
        file
        for config in scenario.configurations()
        for path in (
            *(config.conditions.trace, config.collective.schedule),
            *(file for job in config.jobs for file in job.files),
        )
        if path is not None
        for file in files_of(path)
    ]
    return list(dict.fromkeys(files))


def _digests(scenario: Scenario) -> dict[str, str]:
    """Return the digests of a scenario's files, except those of policies, by path, and of its packs' data by name."""
    return sha256(_input_files(scenario)) | {name: packs.digest_of(name) for name in data_of(scenario)}


def sha256(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files by path."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _shown_value(key: str, values: dict[str, Any]) -> str:
    if key not in values:
        return "no value"
    write = KEYS[key.removeprefix("sweep.")].kind.write
    return format_value([write(value) for value in values[key]] if key.startswith("sweep.") else write(values[key]))


class RunFiles:
    """The files of one run, in a folder that this process has locked."""

    def __init__(self, folder: RunFolder, provenance: dict[str, Any], configs: list[dict[str, Any]]) -> None:
        self.folder, self.path = folder, folder.path
        self._provenance, self._configurations = provenance, configs
        self._faults: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.final: set[Point] = set()
        """The points that have failed and would fail again."""
        self.remedy = ""
        """What to do instead of resuming the run, in words; "" where that helps."""

    @classmethod
    def begun(
        cls,
        folder: RunFolder,
        scenario: Scenario,
        *,
        engines: Sequence[str],
        command: Sequence[str],
        notes: Sequence[str] | None = None,
    ) -> "RunFiles":
        """Write the first files of a new run; raises OSError if they cannot be written. `notes` are what was told
        before it, None for a run of which no sentences are kept."""
        provenance = {
            "format": reader.FORMAT,
            "name": scenario.name,
            "started": now(),
            "ended": None,
            "command": list(command),
            "seed": scenario.run.seed,
            "engines": list(engines),
            "resumed": [],
            "failed": [],
            "vm": None,
            **circumstances(),
            "sha256": _digests(scenario),
        }
        copies = _copies(scenario)
        files = cls(folder, provenance, settings_as_json(scenario))
        try:
            with atomic_replacement(
                folder.path / reader.PROVENANCE
            ) as temporary:  # marks the files that follow as this run's
                for path, name in copies.items():
                    copy = folder.path / name
                    copy.parent.mkdir(exist_ok=True)
                    shutil.copyfile(path, copy)
                    provenance["sha256"][name] = sha256([copy])[str(copy)]
                temporary.write_text(files._provenance_text(), encoding="utf-8")
                write_text(folder.path / reader.SCENARIO, resolved(_with_paths(scenario, copies)))
                write_text(folder.path / reader.SETTINGS, json.dumps(files._configurations))
                if notes is not None:
                    files._write_sentences([Paragraph(about=About.NOTES, lines=tuple(notes))])
        except BaseException:
            files.discard()
            folder.close()
            raise
        return files

    @classmethod
    def resumed(cls, folder: RunFolder, scenario: Scenario, *, command: Sequence[str]) -> "RunFiles":
        """Open the files of a run of this scenario to be resumed.

        Raises ResultsError if it holds no run or is damaged, OSError if it cannot be written.
        """
        provenance = reader.read_provenance(folder.path)
        if not reader.is_complete(provenance):
            reader.check_readable_parts(folder.path)
        files = cls(folder, provenance, _read_settings(folder.path, scenario))
        for half in folder.path.rglob(".*.new"):
            half.unlink(missing_ok=True)  # files that were being written when the run ended
        if (folder.path / reader.FAULTS).exists():
            for record in reader.table_in(folder.path / reader.FAULTS, schema.SCHEMAS["faults"]).to_pylist():
                files._note_fault(record)
        if files.complete:
            shutil.rmtree(folder.path / reader.PARTS, ignore_errors=True)
            return files
        provenance["resumed"].append({"started": now(), "command": list(command), **circumstances()})
        provenance["failed"] = []
        files._write_provenance()
        if (folder.path / reader.SENTENCES).exists():
            files.tell(())  # what was said of the points so far no longer holds
        return files

    def writer(self, numbers: Mapping[Point, range]) -> Writer:
        """Return a writer of the run's rows; `numbers` are those of the collectives of every point."""
        return Writer(self.path, self._configurations, numbers)

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return reader.is_complete(self._provenance)

    def record_snapshot(self, snapshot: Snapshot) -> None:
        """Record the state of the machine at the first emulated point."""
        point = {"setting": snapshot.setting, "mode": snapshot.mode}
        vm = self._provenance["vm"] or {"point": point, "before": None, "after": None}
        if vm["point"] != point or vm[snapshot.moment] is not None:
            return
        facts = dict(snapshot.facts)
        for name in ("kernel", "openvswitch"):
            vm[name] = facts.pop(name)
        vm[snapshot.moment] = facts
        self._provenance["vm"] = vm
        if snapshot.moment == "after":
            self._write_provenance()

    @property
    def faults(self) -> list[Mapping[str, Any]]:
        """The outcomes of faults so far, as rows of faults.parquet: the measured ones first, by configuration and mode,
        in whatever order points have ended."""
        modes = [one["values"]["run.modes"] for one in self._configurations]

        def place(fault: Mapping[str, Any]) -> tuple[Any, ...]:
            mode = modes[fault["setting"]].index(fault["mode"])
            return fault["engine"] == "model", fault["setting"], mode, fault["at_collective"], fault["number"]

        return sorted(self._faults.values(), key=place)

    def record_faults(self, engine: str, outcomes: Iterable[FaultOutcome]) -> None:
        """Store the outcomes of faults, each of which replaces an earlier one of the same fault; raises OSError."""
        for outcome in outcomes:
            unknown = dict.fromkeys(("gained_s", "lasting_cost_s", "costs", "jobs", "as_before", "until"))
            whole = {"cost_collectives": 0, **unknown, **outcome.account}
            self._note_fault({"engine": engine, "setting": outcome.setting, "mode": outcome.mode, **whole})
        write_table(self.path / reader.FAULTS, schema.SCHEMAS["faults"], [schema.faults_table(self.faults)])

    def _note_fault(self, record: Mapping[str, Any]) -> None:
        which = tuple(record[name] for name in ("engine", "setting", "mode", "number", "at_collective"))
        self._faults[which] = record

    def log(self, line: str) -> None:
        """Add a line to the log."""
        with (self.path / reader.LOG).open("a", encoding="utf-8") as file:
            file.write(f"{now()} {line}\n")

    def write_conditions(self, configs: Sequence[Scenario]) -> None:
        """Write the conditions of these configurations' collectives, for every link; raises OSError."""
        write_table(self.path / reader.CONDITIONS, schema.SCHEMAS["conditions"], _conditions(configs))

    def end(self, results: Sequence[ConfigResult], failed: Mapping[Point, str]) -> None:
        """Write the summary and how the run ended; the run is complete unless points failed. Raises OSError."""
        if results:
            write_text(self.path / reader.SUMMARY, summary_csv(results))
        self._provenance["failed"] = [{**point._asdict(), "why": why} for point, why in failed.items()]
        if not failed:
            self._provenance["ended"] = now()
        self._write_provenance()
        if self.complete:  # the tables contain all parts
            shutil.rmtree(self.path / reader.PARTS, ignore_errors=True)

    def tell(self, paragraphs: Iterable[Paragraph]) -> None:
        """Store what the run tells at its end, after the notes before it; raises OSError."""
        notes = those_about(reader.read_sentences(self.path), About.NOTES)
        self._write_sentences([*notes, *paragraphs])

    def _write_sentences(self, paragraphs: Iterable[Paragraph]) -> None:
        write_text(self.path / reader.SENTENCES, json.dumps([asdict(one) for one in paragraphs if one.lines], indent=1))

    def report(self, tables: reader.Tables | None = None) -> Callable[[], str | None]:
        """Begin to draw figures of the stored results, in forked processes; `tables` are the tables already read.

        Returns a function that writes the report once the run has ended, and returns a sentence if drawing or writing
        failed.
        """
        # matplotlib is slow to import, and most commands that fail do so before anything is drawn.
        from analysis.figures.run_points import FigureError
        from analysis.report.__main__ import PendingReport, start_drawing, write

        begun: tuple[reader.Run, PendingReport] | None = None

        def attempt(work: Callable[[], Any]) -> str | None:
            try:
                work()
            except (FigureError, reader.ResultsError) as error:
                return f"no report was made: {error}"
            except OSError as error:
                return f"{self.path / reader.REPORT} could not be written: {error.strerror or error}"
            return None

        def begin() -> None:
            nonlocal begun
            run = reader.open_run(self.path, tables)
            begun = run, start_drawing(run)

        def finish() -> None:
            assert begun is not None
            run, pictures = begun
            ended = replace(
                run,
                provenance=reader.read_provenance(self.path),
                sentences=reader.read_sentences(self.path),
                complete=self.complete,
            )
            write(self.path, ended, pictures)

        why = attempt(begin)
        return lambda: why or attempt(finish)

    @property
    def reported(self) -> bool:
        """Whether the report exists."""
        return (self.path / reader.REPORT).exists()

    def discard(self) -> bool:
        """Remove the files, and the folder if it was made for them, unless there are results; return whether it did."""
        if self._provenance["resumed"] or (self.path / reader.PARTS).exists():
            return False
        tables = (f"{name}.parquet" for name in OF_PARTS)  # which are empty if all points have failed
        for name in (*tables, reader.CONDITIONS, reader.FAULTS, reader.LOG):
            (self.path / name).unlink(missing_ok=True)
        marker = temporary_of(self.path / reader.PROVENANCE)
        with suppress(FileNotFoundError):
            (self.path / reader.PROVENANCE).rename(marker)
        for name in (reader.SCENARIO, reader.SETTINGS, reader.SENTENCES, marker.name):
            (self.path / name).unlink(missing_ok=True)
        for made in (POLICIES, CAPTURES):
            shutil.rmtree(self.path / made, ignore_errors=True)
        self.folder.abandon()
        return True

    def _write_provenance(self) -> None:
        write_text(self.path / reader.PROVENANCE, self._provenance_text())

    def _provenance_text(self) -> str:
        return json.dumps(self._provenance, indent=1) + "\n"


def _conditions(configs: Sequence[Scenario]) -> Iterator[pa.Table]:
    for index, config in enumerate(configs):
        conditions, numbers = conditions_of(config), config.collective.numbers
        at_a_time = _CONDITIONS_AT_A_TIME if numbers.step == 1 else 1
        for first in range(0, len(numbers), at_a_time):
            start = numbers[first]
            rates = conditions.drawn.rates_bps(start, len(numbers[first : first + at_a_time]))
            yield schema.conditions_table(index, start, rates, conditions.shared_delays_s)


# --- provenance: the commit, the versions of packages, the machine ---------------------------------------------------


def circumstances() -> dict[str, Any]:
    """Return the part of provenance.json that can change when a run is resumed."""
    return {"git": _git(), "versions": _versions(), "machine": _machine()}


def now() -> str:
    """Return the current time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
    }


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _git() -> dict[str, Any] | None:
    """Return the commit, and whether tracked files differ from it; None outside a checkout."""
    commit = _git_output("rev-parse", "HEAD")
    if commit is None or not (_ROOT / ".git").exists():
        return None
    return {"commit": commit, "dirty": bool(_git_output("status", "--porcelain", "--untracked-files=no"))}


def _git_output(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], check=False, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
