"""The command line: options to overrides, a scenario to engines, results to the screen and to a folder."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from scenarios import folder, progress
from scenarios.answer import as_json, as_text, plan_as_json
from scenarios.certificate import Certifier
from scenarios.document import ScenarioError, did_you_mean, scenario_names, shown
from scenarios.emulation import Emulation, EmulationError, check, emulated
from scenarios.engine import Engine
from scenarios.folder import FolderError, RunFolder
from scenarios.loader import Override, assignment, load_scenario, resolved
from scenarios.model import Model
from scenarios.record import recorded
from scenarios.results import SettingResult, gathered
from scenarios.spec import Scenario
from scenarios.vm import CannotRunError, VMError
from scenarios.workers import WorkerError
from topologies.scale import RateScale, ScaleError

DONE, FAILED, BAD_USAGE, CANNOT = 0, 1, 2, 3
"""Exit statuses."""

MAX_JOBS = 256

_Part = tuple[Engine, Sequence[Scenario]]


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line and name the option that was perhaps meant."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with status 2."""
        stranger = re.match(r"unrecognized arguments: (-\S+)", message)
        options = [option for action in self._actions for option in action.option_strings]
        hint = did_you_mean(stranger[1].partition("=")[0], options) if stranger else ""
        self.exit(BAD_USAGE, f"{self.prog}: {message}{hint}; {self.prog} --help lists what is allowed\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="run.py",
        description="Run a scenario: every mode at every setting, in an engine; write a folder of results.",
        allow_abbrev=False,
    )
    names = ", ".join(scenario_names())
    add = parser.add_argument
    add(
        "scenario",
        nargs="?",
        default="paper",
        metavar="SCENARIO",
        help=f"a TOML file or one of {names} (default paper)",
    )
    engines = ["model", "emulation", "both"]
    add("--engine", choices=engines, default="both", help="reckon times, measure them in the VM, or both (default)")
    add("--modes", metavar="MODE[,MODE]", help="of base, ccl, wan, joint")
    add("--gpus", metavar="N[,N]", help="GPUs over all sites; several are a sweep")
    add("--chunk", metavar="SIZE[,SIZE]", help='bytes a GPU contributes, such as "8 MB"; several are a sweep')
    add("--wan-delay", metavar="T[,T]", help='delay of a WAN link, such as "10 us"; several are a sweep')
    add("--collectives", metavar="N", help="how many at every point")
    add("--seed", metavar="S", help="of everything random")
    add("--set", metavar="TABLE.KEY=VALUE", action="append", default=[], help="any key of the scenario, repeatable")
    add("--out", metavar="DIR", help="folder for the results, new or empty (default results/NAME-DATE-TIME)")
    add("--jobs", metavar="N", help="processes (default: one for each core)")
    add("--dry-run", action="store_true", help="tell what would be run, and stop")
    add("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    add("--cli", action="store_true", help="a Mininet prompt on the network of the scenario, in real time")
    add("--rate-scale", metavar="1/N", help="in real time: rates and chunks are divided by N (default 1/1000)")
    add("--doctor", action=_Alone, nargs=0, help="tell what this machine can do, what is missing, and what mends it")
    return parser


class _Alone(argparse.Action):
    """An option that stands alone; run.py has seen to it where it does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error("--doctor is beside other arguments: allowed is run.py --doctor alone")


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    options = _parser().parse_args(arguments)
    if options.cli:
        return _prompt(options)
    try:
        if options.rate_scale is not None:
            raise ScenarioError(["--rate-scale: rates are carried whole in virtual time: allowed is beside --cli"])
        scenario, jobs = _checked(options)
        engines = _engines(options.engine, scenario, jobs)
        if options.dry_run:
            plans = [(engine.name, settings) for engine, settings in engines]
            print(plan_as_json(plans) if options.json else _plan(scenario, plans))
            return DONE
        for engine, settings in engines:
            if isinstance(engine, Emulation):
                check(settings)
        place = (
            RunFolder(Path(options.out)) if options.out is not None else RunFolder.dated(scenario.name, datetime.now())
        )
    except CannotRunError as error:
        print(f"run.py: {error} (or reckon alone: --engine model)", file=sys.stderr)
        return CANNOT
    except (ScenarioError, FolderError, ValueError) as error:
        prefix = "--out: " if isinstance(error, FolderError) else ""
        print(f"{prefix}{error}", file=sys.stderr)
        return BAD_USAGE
    return _run(scenario, engines, place, json=options.json)


def _prompt(options: argparse.Namespace) -> int:
    """Have a prompt; return the exit status."""
    from scenarios.prompt.launch import DEFAULT_SCALE, launch

    try:
        if options.json or options.dry_run:
            raise ScenarioError(
                [f"{'--json' if options.json else '--dry-run'} is beside --cli: allowed is one of both"]
            )
        scenario, _ = _checked(options)
        out = None if options.out is None else Path(options.out)
        scale = DEFAULT_SCALE if options.rate_scale is None else RateScale.parse(options.rate_scale)
        return launch(scenario, out=out, scale=scale)
    except VMError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return error.status
    except (ScenarioError, FolderError, ValueError) as error:
        prefix = {FolderError: "--out: ", ScaleError: "--rate-scale: "}.get(type(error), "")
        print(f"{prefix}{error}", file=sys.stderr)
        return BAD_USAGE


def _engines(chosen: str, scenario: Scenario, jobs: int) -> list[_Part]:
    """The engines of the option --engine, each with the settings it is for."""
    settings = scenario.settings()
    model: _Part = (Model(jobs=jobs), settings)
    emulation: _Part = (Emulation(jobs=jobs), tuple(emulated(setting) for setting in settings))
    return {"model": [model], "emulation": [emulation], "both": [model, emulation]}[chosen]


def _run(scenario: Scenario, engines: Sequence[_Part], place: RunFolder, *, json: bool) -> int:
    certifier, results = Certifier(), list[SettingResult]()
    try:
        for part in engines:
            if isinstance(part[0], Emulation):
                place.describe(scenario)  # so that rows can be read whatever becomes of the run
            results += _results(*part, place, certifier)
        place.fill(scenario, results)
    except CannotRunError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return CANNOT
    except (EmulationError, WorkerError, OSError, MemoryError) as error:
        if isinstance(error, EmulationError) and results:
            place.fill(scenario, results)  # what the model has said stands
        print(f"run.py: {error or 'out of memory'}", file=sys.stderr)
        return FAILED
    finally:
        place.abandon()  # which leaves whatever has been written
    certificate = certifier.certificate()
    if json:
        print(as_json(str(place.path), results, certificate))
    else:
        print("\n\n".join([as_text(results), *([str(certificate)] if certificate else []), f"results in {place.path}"]))
    return DONE


def _results(
    engine: Engine, settings: Sequence[Scenario], place: RunFolder, certifier: Certifier
) -> list[SettingResult]:
    with closing(engine.run(settings)) as parts, closing(progress.shown(parts, engine.name, settings)) as seen:
        kept = certifier.watched(seen)
        if isinstance(engine, Emulation):
            kept = recorded(kept, engine.name, settings, place.path / "collectives.csv")
        return sorted(gathered(kept, engine.name, settings), key=lambda result: result.place)


def _checked(options: argparse.Namespace) -> tuple[Scenario, int]:
    """The scenario and the number of processes that the options ask for; raises ScenarioError with every mistake."""
    mistakes: list[str] = []
    overrides = _overrides(options)
    for text in options.set:
        try:
            overrides.append(assignment(text))
        except ScenarioError as error:
            mistakes += error.mistakes
    jobs = len(os.sched_getaffinity(0)) if options.jobs is None else _integer_or_text(options.jobs)
    if not isinstance(jobs, int) or not 1 <= jobs <= MAX_JOBS:
        mistakes.append(f"--jobs: {shown(jobs)} is not allowed: allowed is a whole number from 1 to {MAX_JOBS}")
    try:
        if options.out is not None:
            folder.check(Path(options.out))
    except FolderError as error:
        mistakes.append(f"--out: {error}")
    try:
        scenario = load_scenario(options.scenario, overrides)
    except ScenarioError as error:
        mistakes += error.mistakes
    if mistakes:
        raise ScenarioError(mistakes)
    assert isinstance(jobs, int)
    return scenario, jobs


def _overrides(options: argparse.Namespace) -> list[Override]:
    """The options that are keys of the scenario; one with several values is an axis of its sweep."""
    overrides = []
    if options.modes is not None:
        overrides.append(Override("run.modes", _parts(options.modes), "--modes"))
    for option, key in (("gpus", "fabric.gpus"), ("chunk", "collective.chunk"), ("wan_delay", "conditions.wan_delay")):
        text = getattr(options, option)
        if text is not None:
            values = [_integer_or_text(part) if option == "gpus" else part for part in _parts(text)]
            several = len(values) > 1
            where = f"--{option.replace('_', '-')}"
            overrides.append(Override(f"sweep.{key}" if several else key, values if several else values[0], where))
    # Who says how many wants that many in either engine.
    for option, key in (
        ("collectives", "collective.count"),
        ("collectives", "collective.emulated"),
        ("seed", "run.seed"),
    ):
        text = getattr(options, option)
        if text is not None:
            overrides.append(Override(key, _integer_or_text(text), f"--{option}"))
    return overrides


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _integer_or_text(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) else text


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
