"""The folder of a run, from its first file to its last: described before anything is run, completed when all is.

Every file is written whole or not at all, rows excepted, which `store` appends. A run is complete when its provenance
says when it ended; whatever happens before that, it can be gone on with.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from analysis.results import reader as format
from analysis.results import schema
from analysis.results.durable import settle, write_text
from analysis.results.journal import Journal
from analysis.results.reader import Point
from scenarios.engines.base import Seen, Struck
from scenarios.experiment.place import Place
from scenarios.experiment.provenance import circumstances, now, provenance
from scenarios.experiment.resume import trace_sha256
from scenarios.experiment.statistics import SettingResult
from scenarios.experiment.store import Store
from scenarios.experiment.summary import summary_csv
from scenarios.spec.described import described
from scenarios.spec.load import resolved
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import delays_s, sampler
from topologies.fabric.fabric import build_fabric

_CONDITIONS_AT_A_TIME = 1000


class RunFolder:
    """The folder of one run, in a place that is this run's."""

    def __init__(self, place: Place, known: dict[str, Any], settings: list[dict[str, Any]]) -> None:
        self.place, self.path = place, place.path
        self._known, self._settings = known, settings

    @classmethod
    def begun(cls, place: Place, scenario: Scenario, *, engines: Sequence[str], command: Sequence[str]) -> "RunFolder":
        """A folder for a new run; raises OSError where it cannot be written."""
        known = provenance(scenario.name, seed=scenario.run.seed, engines=engines, command=command)
        known["trace_sha256"] = trace_sha256(scenario)
        folder = cls(place, known, described(scenario))
        try:
            (place.path / format.POINTS).mkdir()
            write_text(place.path / format.SCENARIO, resolved(scenario))
            write_text(place.path / format.SETTINGS, json.dumps(folder._settings))
            folder._remember()  # and with that it is a run folder
        except BaseException:
            folder.discard()
            place.close()
            raise
        return folder

    @classmethod
    def resumed(cls, place: Place, *, command: Sequence[str]) -> "RunFolder":
        """The folder of a run to go on with; raises ResultsError where it is none, OSError where it cannot be
        written."""
        known = format.read_provenance(place.path)
        folder = cls(place, known, format.read_settings(place.path))
        for half in place.path.glob(".*.new"):  # files that were being written when the run ended
            half.unlink()
        if format.is_complete(known):
            shutil.rmtree(place.path / format.POINTS, ignore_errors=True)
        else:
            known["resumed"].append({"started": now(), "command": list(command), **circumstances()})
            known["failed"] = []
            (place.path / format.POINTS).mkdir(exist_ok=True)
            folder._remember()
        return folder

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return format.is_complete(self._known)

    def saw(self, seen: Seen) -> None:
        """Remember what the machine of the first emulated point was like."""
        point = {"setting": seen.setting, "mode": seen.mode}
        vm = self._known["vm"] or {"point": point, "before": None, "after": None}
        if vm["point"] != point or vm[seen.moment] is not None:
            return
        facts = dict(seen.facts)
        for name in ("kernel", "openvswitch"):
            vm[name] = facts.pop(name)
        vm[seen.moment] = facts
        self._known["vm"] = vm
        if seen.moment == "after":
            self._remember()

    def struck(self, engine: str, item: Struck) -> None:
        """Keep what became of a fault; raises OSError."""
        record = {"engine": engine, "setting": item.setting, "mode": item.mode, **item.account}
        with Journal(self.path / format.POINTS / format.STRUCK) as journal:
            journal.append(json.dumps(record).encode())
        self.log(f"fault: {item.mode}, {item.account['what']}: {item.account['outcome']}")

    def log(self, line: str) -> None:
        """Add a line to the log."""
        with (self.path / format.LOG).open("a", encoding="utf-8") as file:
            file.write(f"{now()} {line}\n")

    def write_conditions(self, settings: Sequence[Scenario]) -> None:
        """Write the conditions of these settings' collectives, of every link; raises OSError."""
        schema.write_table(self.path / format.CONDITIONS, schema.CONDITIONS, _conditions(settings))

    def complete_with(self, store: Store, results: Sequence[SettingResult], failed: Mapping[Point, str]) -> None:
        """Write the tables and the summary; the run is complete unless points failed. Raises OSError."""
        points = [point for point in store.points if store.begun(point)]
        measured = [point for point in points if point.engine != "model"]
        self._table(format.COLLECTIVES, format.collectives_of(self.path, self._settings, points))
        if measured:
            self._table(format.TRANSFERS, format.transfers_of(self.path, self._settings, measured))
        struck = format.struck_of(self.path)
        if struck:
            schema.write_table(self.path / format.FAULTS, schema.FAULTS, [schema.faults_table(struck)])
        if results:
            write_text(self.path / format.SUMMARY, summary_csv(results))
        self._known["failed"] = [{**point._asdict(), "why": why} for point, why in failed.items()]

    def end(self) -> None:
        """Tell that the run has ended, and, if it is complete, let go of what the tables hold as well."""
        if not self._known["failed"]:
            self._known["ended"] = now()
        self._remember()
        if self.complete:
            shutil.rmtree(self.path / format.POINTS, ignore_errors=True)

    def report(self) -> str | None:
        """Draw the figures of what is stored and write the report; returns a sentence where that was not possible."""
        # matplotlib takes its time to import, and most ways out of the command end before anything is drawn.
        from analysis.figures.points import FigureError
        from analysis.report.__main__ import write

        try:
            write(self.path)
        except (FigureError, format.ResultsError) as error:
            return f"there is no report: {error}"
        except OSError as error:
            return f"{self.path / format.REPORT} could not be written: {error.strerror or error}"
        return None

    @property
    def reported(self) -> bool:
        """Whether there is a report."""
        return (self.path / format.REPORT).exists()

    def discard(self) -> bool:
        """Take the folder away if nothing was found and nothing was there before; returns whether it is gone."""
        if self._known["resumed"] or any(format.points_of(self.path)):
            return False
        shutil.rmtree(self.path / format.POINTS, ignore_errors=True)
        names = (format.SCENARIO, format.SETTINGS, format.PROVENANCE, format.CONDITIONS, format.LOG)
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        self.place.abandon()
        return True

    def _table(self, name: str, parts: Iterator[pa.Table]) -> None:
        columns = schema.TRANSFERS if name == format.TRANSFERS else format.collectives_schema(self._settings)
        schema.write_table(self.path / name, columns, parts)

    def _remember(self) -> None:
        write_text(self.path / format.PROVENANCE, json.dumps(self._known, indent=1) + "\n")
        settle(self.path)


def _conditions(settings: Sequence[Scenario]) -> Iterator[pa.Table]:
    for index, setting in enumerate(settings):
        fabric = build_fabric(setting.fabric)
        drawn = sampler(fabric, setting.conditions, seed=setting.run.seed)
        delays = delays_s(fabric, setting.conditions)
        count = setting.collective.count
        for start in range(0, count, _CONDITIONS_AT_A_TIME):
            rates = drawn.rates_bps(start, min(_CONDITIONS_AT_A_TIME, count - start))
            yield schema.conditions_table(index, start, rates, delays)
