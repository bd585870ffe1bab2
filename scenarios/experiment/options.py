"""The command line's options: what they are, and what they ask for, with every mistake in them found at once."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scenarios.experiment import place
from scenarios.experiment.place import FolderError
from scenarios.spec.document import ScenarioError, did_you_mean, scenario_names, shown
from scenarios.spec.load import Override, assignment, axis, load_scenario, scenario_of
from scenarios.spec.scenario import Scenario

BAD_USAGE = 2
MAX_JOBS = 256
PROMPT_SCALE = "1/1000"
"""The rate scale of a prompt unless another is asked for."""
DEFAULT = "paper"
ENGINES = {"model": ("model",), "emulation": ("emulation",), "both": ("model", "emulation")}
"""What may be asked for, and the engines that are then run."""

_AXES = {
    "gpus": "fabric.gpus",
    "chunk": "collective.chunk",
    "wan_delay": "conditions.wan_delay",
    "seed": "run.seed",
}


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
        metavar="SCENARIO",
        help=f"a TOML file or one of {names} (default {DEFAULT})",
    )
    add(
        "--engine",
        choices=list(ENGINES),
        help="reckon times, measure them in the VM, or both (default: both, or model alone where no VM runs)",
    )
    add("--modes", metavar="MODE[,MODE]", help="of base, ccl, wan, joint")
    add("--gpus", metavar="N[,N]", help="GPUs over all sites, or of each as 3+5; several are a sweep")
    add("--chunk", metavar="SIZE[,SIZE]", help='bytes a GPU contributes, such as "8 MB"; several are a sweep')
    add("--wan-delay", metavar="T[,T]", help='delay of a WAN link, such as "10 us"; several are a sweep')
    add("--collectives", metavar="N", help="how many at every point")
    add("--seed", metavar="S[,S]", help="of everything random; several are a sweep")
    add("--clock", metavar="CLOCK", help="of the emulation: virtual (default), or wall, which is real time")
    add("--set", metavar="TABLE.KEY=VALUE", action="append", default=[], help="any key of the scenario, repeatable")
    add(
        "--sweep",
        metavar="TABLE.KEY=A,B",
        action="append",
        default=[],
        help="several values of any key of the scenario, each with each of every other sweep's, repeatable",
    )
    add("--out", metavar="DIR", help="folder for the results, new or empty (default results/NAME-DATE-TIME)")
    add("--resume", metavar="DIR", help="go on with the run in this folder, which was cut short")
    add("--jobs", metavar="N", help="processes (default: one for each core)")
    add("--dask", metavar="ADDRESS", help="run the points on the workers of the Dask scheduler there")
    add("--dry-run", action="store_true", help="tell what would be run, and stop")
    add("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    add("--cli", action="store_true", help="a Mininet prompt on the network of the scenario, in real time")
    add("--rate-scale", metavar="1/N", help="on the wall clock: rates and chunks are divided by N (--cli: 1000)")
    add("--doctor", action=_Alone, nargs=0, help="tell what this machine can do, what is missing, and what mends it")
    return parser


class _Alone(argparse.Action):
    """An option that stands alone; run.py has seen to it where it does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error("--doctor is beside other arguments: allowed is run.py --doctor alone")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line asks for."""

    scenario: Scenario
    engines: tuple[str, ...]
    engine_given: bool
    jobs: int
    jobs_given: bool
    dask: str | None
    out: str | None
    resume: str | None
    dry_run: bool
    json: bool
    cli: bool


def asked(arguments: Sequence[str]) -> Asked:
    """What these arguments ask for; raises ScenarioError with every mistake, SystemExit where an option is unknown."""
    options = _parser().parse_args(arguments)
    mistakes: list[str] = []
    overrides = _overrides(options)
    for read, text in [(assignment, text) for text in options.set] + [(axis, text) for text in options.sweep]:
        try:
            overrides.append(read(text))
        except ScenarioError as error:
            mistakes += error.mistakes
    jobs = len(os.sched_getaffinity(0)) if options.jobs is None else _integer_or_text(options.jobs)
    if not isinstance(jobs, int) or not 1 <= jobs <= MAX_JOBS:
        mistakes.append(f"--jobs: {shown(jobs)} is not allowed: allowed is a whole number from 1 to {MAX_JOBS}")
    mistakes += _clashes(options)
    scenario, engines = None, ENGINES[options.engine or "both"]
    try:
        if options.resume is not None:
            scenario, engines = _resumed(options, overrides)
        else:
            if options.out is not None:
                place.check(Path(options.out))
            scenario = load_scenario(options.scenario or DEFAULT, overrides)
    except FolderError as error:
        mistakes.append(f"--out: {error}")
    except ScenarioError as error:
        mistakes += error.mistakes
    else:
        if scenario.run.is_real and (options.jobs is None or options.cli):
            jobs = 1
        if scenario.run.is_real and jobs != 1:
            mistakes.append(f"--jobs: {shown(jobs)} is not allowed: on the wall clock points run one at a time")
    if mistakes:
        raise ScenarioError(mistakes)
    assert isinstance(jobs, int) and scenario is not None
    return Asked(
        scenario=scenario,
        engines=engines,
        engine_given=options.engine is not None,
        jobs=jobs,
        jobs_given=options.jobs is not None,
        dask=options.dask,
        out=options.out,
        resume=options.resume,
        dry_run=options.dry_run,
        json=options.json,
        cli=options.cli,
    )


def _clashes(options: argparse.Namespace) -> list[str]:
    """Options that do not go with each other."""
    mistakes = []
    if options.dask is not None and options.jobs is not None:
        mistakes.append("--jobs: is beside --dask, whose workers say how many they do: allowed is one of the two")
    if not options.cli:
        return mistakes
    beside = {
        "--json": options.json,
        "--dry-run": options.dry_run,
        "--resume": options.resume is not None,
        "--dask": options.dask is not None,
    }
    mistakes += [f"{name} is beside --cli: allowed is one of both" for name, on in beside.items() if on]
    if options.clock == "virtual":
        mistakes.append("--clock: virtual is beside --cli, and a prompt is in real time: allowed is wall")
    return mistakes


def _resumed(options: argparse.Namespace, overrides: Sequence[Override]) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario and the engines of the run to go on with; raises ScenarioError where others are asked for."""
    from analysis.results.reader import ResultsError  # with Parquet, which takes its time
    from scenarios.experiment.run_directory import recorded

    mistakes = ["--out: is beside --resume: allowed is one of the two"] if options.out is not None else []
    try:
        before = recorded(Path(options.resume))
    except ResultsError as error:
        raise ScenarioError([*mistakes, f"--resume: {error}"]) from None
    if options.scenario is None:
        wanted = scenario_of(before.text, overrides, path=Path(options.resume, "scenario.toml"))
    else:
        wanted = load_scenario(options.scenario, overrides)
    mistakes += before.differences(wanted, None if options.engine is None else ENGINES[options.engine])
    if mistakes:
        raise ScenarioError(mistakes)
    return wanted, before.engines


def _overrides(options: argparse.Namespace) -> list[Override]:
    """The options that are keys of the scenario; one with several values is an axis of its sweep."""
    overrides = []
    if options.modes is not None:
        overrides.append(Override("run.modes", _parts(options.modes), "--modes"))
    for option, key in _AXES.items():
        text = getattr(options, option)
        if text is not None:
            values = [_value(option, part) for part in _parts(text)]
            several = len(values) > 1
            where = f"--{option.replace('_', '-')}"
            overrides.append(Override(f"sweep.{key}" if several else key, values if several else values[0], where))
    if options.cli:
        overrides.append(Override("run.rate_scale", PROMPT_SCALE, "--cli"))
    # Who says how many wants that many in either engine.
    for option, key in (
        ("collectives", "collective.count"),
        ("collectives", "collective.emulated"),
        ("clock", "run.clock"),
        ("rate_scale", "run.rate_scale"),
    ):
        text = getattr(options, option)
        if text is not None:
            overrides.append(Override(key, _integer_or_text(text), f"--{option.replace('_', '-')}"))
    if options.cli:
        overrides.append(Override("run.clock", "wall", "--cli"))
    return overrides


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _value(option: str, text: str) -> object:
    if option == "gpus" and re.fullmatch(r"[0-9]{1,6}(\+[0-9]{1,6})+", text):
        return [int(part) for part in text.split("+")]
    return _integer_or_text(text) if option in ("gpus", "seed") else text


def _integer_or_text(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) else text
