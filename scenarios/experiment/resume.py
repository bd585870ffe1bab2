"""A run that was begun before: what it was of, whether what is asked for now is the same, and what it has found."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.results.reader import SCENARIO, Point, ResultsError, load, read_provenance
from analysis.statistics.fidelity import Measured
from scenarios.spec import ScenarioError
from scenarios.spec.load import scenario_of
from scenarios.spec.scenario import KEYS, Scenario, values_of
from topologies.errors import shown

_NUMBERS = ["engine", "setting", "mode", "collective", "completion_s", "predicted_s", "drops", "late", "undisturbed"]


@dataclass(frozen=True)
class Recorded:
    """What a run folder was begun with."""

    text: str
    scenario: Scenario
    engines: tuple[str, ...]
    trace_sha256: str | None

    def differences(self, scenario: Scenario, engines: Sequence[str] | None) -> Iterator[str]:
        """Every way in which what is asked for now is something else, in sentences; engines may be left open."""
        before, now = values_of(self.scenario), values_of(scenario)
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key):
                told = f"{_words(key, now)} is asked for, and the folder is of {_words(key, before)}"
                yield f"--resume: {key}: {told}: allowed is the same scenario"
        if engines is not None and tuple(engines) != self.engines:
            told = f"{' and '.join(engines)} is asked for, and the folder is of {' and '.join(self.engines)}"
            yield f"--engine: {told}: allowed is the same"
        if trace_sha256(scenario) != self.trace_sha256:
            yield f"--resume: conditions.trace: {scenario.conditions.trace} is not what it was when the run began"


def recorded(path: Path) -> Recorded:
    """What the run in this folder was begun with; raises ResultsError where it is none or is damaged."""
    provenance = read_provenance(path)
    try:
        text = (path / SCENARIO).read_text(encoding="utf-8")
        scenario = scenario_of(text, path=path / SCENARIO)
    except ScenarioError as error:
        raise ResultsError(f"{path / SCENARIO} is damaged: {error.mistakes[0]}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path / SCENARIO} cannot be read: {error}") from None
    engines = tuple(provenance.get("engines", ()))
    if not engines or not set(engines) <= {"model", "emulation"} or provenance["seed"] != scenario.run.seed:
        raise ResultsError(f"{path} is damaged: its provenance is not that of its scenario")
    return Recorded(text, scenario, engines, provenance.get("trace_sha256"))


def trace_sha256(scenario: Scenario) -> str | None:
    """The digest of the trace that a scenario's conditions come from, None where they come from none."""
    path = scenario.conditions.trace
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _words(key: str, values: dict[str, Any]) -> str:
    if key not in values:
        return "no value"
    write = KEYS[key.removeprefix("sweep.")].kind.write
    return shown([write(value) for value in values[key]] if key.startswith("sweep.") else write(values[key]))


class Kept:
    """What a complete run has found."""

    def __init__(self, path: Path) -> None:
        self._frame = load(path, columns=_NUMBERS).sort_values("collective")

    def times(self, point: Point) -> npt.NDArray[np.float64] | None:
        """The completion times of a point."""
        frame = self._frame
        is_its = (frame.engine == point.engine) & (frame.setting == point.setting) & (frame["mode"] == point.mode)
        found: npt.NDArray[np.float64] = frame.completion_s[is_its].to_numpy()
        return found if found.size else None

    def measured(self) -> Iterator[Measured]:
        """What was measured undisturbed, for a certificate."""
        rows = self._frame[(self._frame.engine != "model") & self._frame.undisturbed]
        if len(rows):
            times = rows.completion_s.to_numpy(), rows.predicted_s.to_numpy()
            yield *times, rows.drops.to_numpy(), rows.late.to_numpy()
