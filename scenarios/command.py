"""The command: options to a plan, engines asked whether they can, a folder made or found again, and the run."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios import progress
from scenarios.answer import plan_as_json
from scenarios.capacity import check_capacity
from scenarios.document import ScenarioError
from scenarios.emulation import Emulation, at_a_time, check, check_chunks, check_faults, emulated
from scenarios.loader import resolved
from scenarios.model import Model, as_reckoned
from scenarios.options import BAD_USAGE, Asked, asked
from scenarios.place import FolderError, Place
from scenarios.spec import Scenario
from scenarios.vm import CannotRunError, VMError
from scenarios.workers import Over, over_tasks

if TYPE_CHECKING:
    from scenarios.engine import Engine
    from scenarios.running import Part

DONE, FAILED, CANNOT = 0, 1, 3
"""Exit statuses."""


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    try:
        wanted = asked(arguments)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    if wanted.cli:
        return _prompt(wanted)
    if wanted.dry_run:
        plans = [(engine.name, settings) for engine, settings in _parts(wanted)]
        print(plan_as_json(plans) if wanted.json else _plan(wanted.scenario, plans))
        return DONE
    if wanted.dask is None:
        return _run(wanted, _parts(wanted), arguments)
    from scenarios.cluster import Cluster, ClusterError  # takes its time to import

    try:
        with Cluster(wanted.dask) as cluster:
            return _run(wanted, _parts(wanted, cluster.over_tasks), arguments)
    except ClusterError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return FAILED


def _prompt(wanted: Asked) -> int:
    """Have a prompt; return the exit status."""
    from scenarios.prompt.launch import launch

    out = None if wanted.out is None else Path(wanted.out)
    try:
        return launch(wanted.scenario, out=out)
    except VMError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return error.status
    except FolderError as error:
        print(f"--out: {error}", file=sys.stderr)
        return BAD_USAGE


def _run(wanted: Asked, parts: Sequence["Part"], arguments: Sequence[str]) -> int:
    """Run these engines where they can be run, and there is a folder for it."""
    try:
        parts = [_able(wanted, *part) for part in parts]
        place = _place(wanted)
    except VMError as error:
        alone = " (or reckon alone: --engine model)" if isinstance(error, CannotRunError) else ""
        print(f"run.py: {error}{alone}", file=sys.stderr)
        return error.status
    except ValueError as error:
        option = "--resume: " if wanted.resume else "--out: "
        print(f"{option if isinstance(error, FolderError) else ''}{error}", file=sys.stderr)
        return BAD_USAGE
    return _begin(wanted, parts, place, arguments)


def _able(wanted: Asked, engine: "Engine", settings: Sequence[Scenario]) -> "Part":
    """An engine that this machine is able to run, with its settings; raises CannotRunError and ValueError."""
    if not isinstance(engine, Emulation):
        return engine, settings
    check_chunks(settings)
    if wanted.resume is None:
        check_faults(settings)
    if engine.elsewhere is not None:
        return engine, settings
    check(settings)
    check_capacity(settings)
    jobs = at_a_time(settings, engine.jobs)
    if jobs == min(engine.jobs, sum(len(setting.run.modes) for setting in settings)):
        return engine, settings
    room = f"there is room for the memory of {jobs} VM{'' if jobs == 1 else 's'} at a time"
    if wanted.jobs_given:
        raise CannotRunError(f"{room}, and not of {engine.jobs}: allowed is --jobs {jobs}")
    print(f"run.py: {room}, so that many are run", file=sys.stderr)
    return Emulation(jobs=jobs), settings


def _place(wanted: Asked) -> Place:
    """The folder for the run; raises FolderError where it cannot be had."""
    if wanted.resume is not None:
        return Place(Path(wanted.resume))
    if wanted.out is not None:
        return Place.new(Path(wanted.out))
    return Place.dated(wanted.scenario.name, datetime.now())


def _begin(wanted: Asked, parts: Sequence["Part"], place: Place, arguments: Sequence[str]) -> int:
    # Parquet takes its time to import, and most mistakes are found before anything is run.
    from analysis.results import ResultsError
    from scenarios.folder import RunFolder
    from scenarios.running import Run, run_in, tell_again

    command = ["run.py", *arguments]
    run = Run(wanted.scenario, parts, wanted.json)
    try:
        if wanted.resume is None:
            folder = RunFolder.begun(place, wanted.scenario, engines=wanted.engines, command=command)
        else:
            folder = RunFolder.resumed(place, command=command)
        return tell_again(folder, run) if folder.complete else run_in(folder, run)
    except ResultsError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"run.py: {place.path} cannot be written to: {error.strerror or error}", file=sys.stderr)
        return FAILED


def _parts(wanted: Asked, elsewhere: Over | None = None) -> list["Part"]:
    """The engines that are asked for, each with the settings it is for."""
    settings = wanted.scenario.settings()
    model: Part = (
        Model(jobs=wanted.jobs, over=elsewhere or over_tasks),
        tuple(as_reckoned(setting) for setting in settings),
    )
    emulation: Part = (
        Emulation(jobs=wanted.jobs, elsewhere=elsewhere),
        tuple(emulated(setting) for setting in settings),
    )
    return [{"model": model, "emulation": emulation}[name] for name in wanted.engines]


def _plan(scenario: Scenario, plans: Sequence[tuple[str, Sequence[Scenario]]]) -> str:
    """What would be run: the scenario with every default, and each engine's points."""
    modes = scenario.run.modes
    lines, total = [], 0
    for engine, settings in plans:
        for setting in settings:
            count = setting.collective.count
            lines.append(f"{engine}, {progress.label(setting)}: {count:,} collectives in each of {', '.join(modes)}")
            total += len(modes) * count
    return "\n".join([resolved(scenario), *lines, f"{total:,} collectives in all; nothing was run"])
