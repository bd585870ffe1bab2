"""The Python API: makes a scenario, runs it in either engine, compares the modes of stored runs in pairs, and plots.

    from scenarios.api import compare, run, scenario

    rows = run(scenario("fig4a", {"collective.count": 1000}), out="results/mine")
    compare(rows, baseline="wan")  # or compare("results/mine", baseline="wan")
    plot(rows)  # or plot("results/mine", "over_time")

Every failure is an exception whose text is a sentence, and what `run.py` would say of a scenario on stderr is a
`ScenarioWarning`. `analysis.results` reads run folders.
"""

import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from analysis.results.reader import (
    SETTINGS_ATTRIBUTE,
    ResultsError,
    SharedSettings,
    collectives_schema,
    load,
    open_run,
    point_columns,
    run_of_rows,
)
from analysis.results.rows import Point
from analysis.results.schema import collectives_table
from analysis.statistics.intervals import gain, shared, summarise
from scenarios.engines import ENGINES
from scenarios.engines.base import Engine, Failed, Slice
from scenarios.engines.emulation import Emulation, check_delays, check_faults, check_waits, emulated
from scenarios.engines.machines import with_machines
from scenarios.engines.model import Model, as_modelled
from scenarios.engines.preflight import at_a_time, check_capacity, check_vm
from scenarios.experiment.run_folder import RunFolder
from scenarios.experiment.stored_settings import settings_as_json
from scenarios.spec import ScenarioError
from scenarios.spec.changed_files import forget_changed
from scenarios.spec.load import Override, load_scenario
from scenarios.spec.notes import notes_on
from scenarios.spec.scenario import Scenario
from scenarios.vm import CannotRunError
from topologies.errors import format_value

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.figures.__main__ import Task
    from analysis.figures.run_points import Configuration, PointRows
    from scenarios.experiment.runner import Part

__all__ = [
    "CannotRunError",
    "ResultsError",
    "RunError",
    "ScenarioError",
    "ScenarioWarning",
    "compare",
    "plot",
    "run",
    "scenario",
]


_QUIET_S = 2.0  # between two lines of progress


class ScenarioWarning(UserWarning):
    """What a user should know of a scenario that can be run, such as a key without effect; one sentence."""


class RunError(RuntimeError):
    """A point that could not be run; one sentence that names it."""


def scenario(source: str | Path = "paper", values: Mapping[str, object] | None = None) -> Scenario:
    """Load the scenario with this name ("fig4a") or TOML file, with these values in place of its own.

    The keys of `values` are dotted, their values as in TOML: {"collective.chunk": "64 MB", "fabric.gpus": [3, 5]};
    "sweep.KEY" takes the list of values to sweep. Raises ScenarioError (a ValueError) with every mistake, one line
    each; warns (ScenarioWarning) of values that are rounded and of keys that have no effect.
    """
    if not isinstance(values, Mapping | None) or not all(isinstance(key, str) for key in values or ()):
        raise ValueError(f"{format_value(values)} is not a mapping; allowed: a mapping of dotted keys to values")
    overrides = [Override(key, value, key) for key, value in (values or {}).items()]
    found = load_scenario(str(source), overrides)
    for note in found.notes:
        warnings.warn(note, ScenarioWarning, stacklevel=2)
    return found


def run(
    scenario: Scenario,
    engine: str = "model",
    *,
    jobs: int = 1,
    out: str | Path | None = None,
    failed: list[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "pd.DataFrame":
    """Run every point of a scenario and return one row per collective.

    With `out`, a new or an empty folder, everything is stored there as run.py stores it, report included; otherwise
    nothing is. The columns are those of collectives.parquet. The emulation measures the first `collective.emulated`
    collectives of each point; the engine "both" also predicts all of them. `jobs` is the number of parallel processes
    or VMs: at most as many VMs as fit in memory, and one on the wall clock. Warns (ScenarioWarning) of what was assumed
    of files, and of physical limits that the scenario is beyond.

    Reasons of points that fail are added to the list `failed`, if it is given, and the rows of the other points are
    returned. Without `out`, `progress` is called with the number of points that are done, and that of all; by default
    it writes a line on stderr every few seconds. With `out`, run.py's own lines on stderr show it.

    Raises ValueError for an engine, a scenario or a folder that cannot be used, vm.CannotRunError if this machine
    cannot run the VM, RunError if a point fails and `failed` is not given; the rows of the other points are then in the
    folder.
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; allowed: {', '.join(ENGINES)}")
    forget_changed()
    parts = [engine_for(scenario, name, jobs=jobs) for name in ENGINES[engine]]
    notes = notes_on(scenario.configurations(), emulates="emulation" in ENGINES[engine])
    for note in notes:
        if note not in scenario.notes:  # which `scenario` has told
            warnings.warn(note, ScenarioWarning, stacklevel=2)
    if out is not None:
        return _stored(scenario, parts, failed, Path(out), notes)
    return _in_memory(scenario, parts, failed, progress or _lines())


def _lines() -> Callable[[int, int], None]:
    """Return a function that writes how many points are done on stderr, at most one line in `_QUIET_S` seconds."""
    last_s = time.monotonic()

    def told(done: int, count: int) -> None:
        nonlocal last_s
        if done < count and time.monotonic() - last_s >= _QUIET_S:
            last_s = time.monotonic()
            print(f"run: {done} of {count} points", file=sys.stderr, flush=True)

    return told


def _in_memory(
    scenario: Scenario, parts: "Sequence[Part]", failed: list[str] | None, progress: Callable[[int, int], None]
) -> "pd.DataFrame":
    slices: list[tuple[int, str, Slice]] = []
    counts, done = Counter[tuple[int, int, str]](), 0
    points = sum(len(configurations) for _, configurations in parts) * len(scenario.run.modes)
    progress(done, points)
    for order, (runner, configurations) in enumerate(parts):
        with closing(runner.run(configurations)) as events:
            for event in events:
                if isinstance(event, Failed):
                    if failed is None:
                        raise RunError(event.why)
                    failed.append(event.why)
                if isinstance(event, Slice):
                    slices.append((order, runner.name, event))
                    point = (order, event.setting, event.mode)
                    counts[point] += len(event.rows)
                    done += counts[point] == len(configurations[event.setting].collective.numbers)
                    progress(done, points)
    wanted = [[len(one.collective.numbers) for one in configurations] for _, configurations in parts]
    slices = [one for one in slices if counts[_point_of(one)] == wanted[one[0]][one[2].setting]]  # whole points
    slices.sort(key=lambda one: (one[0], one[2].setting, scenario.run.modes.index(one[2].mode), one[2].rows.start))
    stored = settings_as_json(scenario)
    columns = collectives_schema(stored)
    tables = (
        collectives_table(part.rows, point_columns(stored, Point(name, part.setting, part.mode)), columns)
        for _, name, part in slices
    )
    rows = pa.concat_tables([columns.empty_table(), *tables]).to_pandas()
    rows.attrs[SETTINGS_ATTRIBUTE] = SharedSettings(json.loads(json.dumps(stored)))
    return rows


def _point_of(part: tuple[int, str, Slice]) -> tuple[int, int, str]:
    order, _, event = part
    return order, event.setting, event.mode


def _stored(
    scenario: Scenario, parts: "Sequence[Part]", failed: list[str] | None, path: Path, notes: Sequence[str]
) -> "pd.DataFrame":
    from scenarios.experiment.run_files import RunFiles
    from scenarios.experiment.run_notes import notes_of_run
    from scenarios.experiment.runner import Run, carry_out

    folder, names = RunFolder.new(path), [runner.name for runner, _ in parts]
    try:
        told = [*notes, *notes_of_run(scenario.configurations())]
        files = RunFiles.begun(folder, scenario, engines=names, command=["scenarios.api.run"], notes=told)
    except OSError as error:
        folder.close()
        raise RunError(f"{path} cannot be written to: {error.strerror or error}") from None
    try:
        try:
            done = carry_out(files, Run(scenario, parts, json=False))
        except OSError as error:
            raise RunError(f"{path} cannot be written to: {error.strerror or error}") from None
        if done.wrong and failed is None:
            raise RunError("; ".join(done.wrong))
        if failed is not None:
            failed += [why.removeprefix("failed: ") for why in done.wrong]
    finally:
        if not files.complete:
            files.discard()  # only if it holds no results
        folder.close()
    return load(path)


def engine_for(scenario: Scenario, engine: str, *, jobs: int = 1) -> tuple[Engine, list[Scenario]]:
    """Return the model or the emulation and its configurations, checked; arguments and errors as for `run`."""
    if not isinstance(scenario, Scenario):
        raise ValueError(f"{format_value(scenario)} is not a scenario; allowed: the result of scenario(...)")
    if not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"{format_value(jobs)} jobs; allowed: a whole number from 1")
    if scenario.program.is_given:
        raise ValueError("the scenario has a [program], which only run.py can run; allowed: a scenario without one")
    if engine == "model":
        return Model(jobs=jobs), [as_modelled(one) for one in scenario.configurations()]
    configurations = list(with_machines([emulated(one) for one in scenario.configurations()]))
    check_waits(configurations)
    check_delays(configurations)
    check_faults(configurations)
    check_vm(configurations)
    check_capacity(configurations)
    return Emulation(jobs=1 if scenario.run.is_real else at_a_time(configurations, jobs)), configurations


def compare(
    directory: "str | Path | pd.DataFrame",
    against: "str | Path | pd.DataFrame | None" = None,
    *,
    baseline: str | None = None,
) -> "pd.DataFrame":
    """Return by how much the points of a run are faster than their baselines: one row per point that has a baseline.

    A run is a run folder, or the rows that `run` or `analysis.results.load` returned. The baseline of a point is the
    point with the same engine and configuration in the run `against` (default: this run) and in the mode `baseline`
    (default: the same mode). Both runs must have the same configurations, in the same order.
    Columns: `engine`, `setting`, `label`, `mode`, `baseline`, `collectives` (those that both points have), `mean_s`,
    `baseline_mean_s`, `gain` (1 - mean / baseline's mean) and the ends of its 95 % interval, `gain_low` and
    `gain_high`, computed from pairs of the same collectives; both are NaN if no interval is valid, and `no_interval`
    says why not.

    Raises ResultsError for a folder that cannot be read and for runs that cannot be compared, ValueError without
    `against` and `baseline`.
    """
    import pandas as pd

    if against is None and baseline is None:
        raise ValueError("nothing to compare with: give another run as `against`, or a mode as `baseline`")
    own, other = (_name_of(one) for one in (directory, directory if against is None else against))
    configurations, points = _points(directory)
    baseline_configurations, baseline_points = (configurations, points) if against is None else _points(against)
    if [one.swept for one in configurations] != [one.swept for one in baseline_configurations]:
        raise ResultsError(f"{own} and {other} cannot be compared: they sweep different values")
    modes = dict.fromkeys(mode for _, _, mode in baseline_points)
    if baseline is not None and baseline not in modes:
        raise ResultsError(f"{other} has no mode {format_value(baseline)}; allowed: {', '.join(modes)}")
    rows = []
    for (engine, config, mode), point in points.items():
        baseline_point = baseline_points.get((engine, config, baseline or mode))
        pair = None if baseline_point is None else shared([baseline_point.series, point.series])
        saving = None if pair is None else gain(*pair)
        if baseline_point is None or pair is None or saving is None:
            continue
        rows.append(
            {
                "engine": engine,
                "setting": config,
                "label": point.configuration.label,
                "mode": mode,
                "baseline": baseline_point.mode,
                "collectives": pair[0].number.size,
                "mean_s": summarise(pair[1]).mean_s.value,
                "baseline_mean_s": summarise(pair[0]).mean_s.value,
                "gain": saving.value,
                "gain_low": saving.low,
                "gain_high": saving.high,
                "no_interval": saving.why,
            }
        )
    if not rows:
        wanted = "any of its modes" if baseline is None else f"the mode {format_value(baseline)}"
        raise ResultsError(f"{other} has none of the collectives of {own} in {wanted}")
    return pd.DataFrame(rows)


def plot(run: "str | Path | pd.DataFrame", kind: str = "comparison", *, number: int = 0) -> "Figure":
    """Return a figure of a run, as a Matplotlib figure, which a notebook shows.

    A run is a run folder, or the rows that `run` or `analysis.results.load` returned. Kinds are the names of the
    modules in `analysis.figures` that draw: "comparison", "cdf", "fidelity", "over_time", "timeline" and others, as far
    as the run has what they need; a "ranking" replaces a comparison with too many lines. Of several figures of a kind,
    `number` chooses one, from 0.

    Raises ResultsError for a run that cannot be read or drawn, ValueError for a kind or a number that it does not have.
    """
    from analysis.figures.__main__ import kind_of, tasks_of
    from analysis.figures.run_points import FigureError

    stored = open_run(run) if isinstance(run, str | Path) else run_of_rows(run)
    try:
        configurations, points = _points(run)
        kinds: dict[str, list[Task]] = {}
        for task in tasks_of(stored, configurations, points):
            kinds.setdefault(kind_of(task), []).append(task)
        kinds.setdefault("comparison", kinds.get("ranking", []))
        if kind not in kinds:
            raise ValueError(f"{_name_of(run)} has no figure {format_value(kind)}; allowed: {', '.join(kinds)}")
        if not isinstance(number, int) or not 0 <= number < len(kinds[kind]):
            most = len(kinds[kind]) - 1
            raise ValueError(f"{format_value(number)} is not a figure of the kind {kind}; allowed: 0 to {most}")
        picture = kinds[kind][number]()
    except FigureError as error:
        raise ResultsError(str(error)) from None
    if picture is None:
        raise ResultsError(f"{_name_of(run)} has nothing to draw as {kind}; allowed: another kind")
    return picture.figure


def _name_of(run: "str | Path | pd.DataFrame") -> str:
    return str(run) if isinstance(run, str | Path) else "the frame"


def _points(
    directory: "str | Path | pd.DataFrame",
) -> "tuple[list[Configuration], dict[tuple[str, int, str], PointRows]]":
    """Return the configurations of a run, and its points by engine, index of the configuration and mode."""
    from analysis.figures.run_points import FigureError, configurations_of, points_of  # imports Matplotlib

    stored = open_run(directory) if isinstance(directory, str | Path) else run_of_rows(directory)
    try:
        configurations = configurations_of(stored)
        return configurations, points_of(stored, configurations)
    except FigureError as error:
        raise ResultsError(str(error)) from None
