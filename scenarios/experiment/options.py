"""The command line's options and how they are read; all mistakes in them are reported at once.

--help and unknown options are handled before anything slow is imported.
"""

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.engines import ENGINES
from scenarios.spec import ScenarioError, scenario_names
from topologies.command_line import CommandParser
from topologies.errors import did_you_mean, format_value

if TYPE_CHECKING:
    from scenarios.spec.load import Override
    from scenarios.spec.scenario import Scenario

DONE, FAILED, BAD_USAGE, CANNOT = 0, 1, 2, 3
"""Exit statuses."""
MAX_JOBS = 256
PROMPT_SCALE = "1/1000"
"""The rate scale of a prompt, unless the user gives another."""
DEFAULT = "paper"

_RUN = "run.py"
_ELSEWHERE = (
    "--data",
    "--out",
    "--resume",
    "--dask",
    "--cli",
    "--capture",
    "--policy",
    "--sweep",
    "--export",
    "--dry-run",
)
"""Options of run.py that other commands lack and that set no key."""

EXPORTS = ("goal", "msccl", "chakra")
"""The formats of --export."""

RANK_OUTPUT = ("0", "all", "none")
"""Whose output is printed while a program runs."""

_KEYS = {
    "modes": ("run.modes",),
    "gpus": ("fabric.gpus",),
    "chunk": ("collective.chunk",),
    "size": ("collective.size",),
    "wan_delay": ("conditions.wan_delay",),
    "seed": ("run.seed",),
    "collectives": ("collective.count", "collective.emulated"),  # the same number in both engines
    "rate_scale": ("run.rate_scale",),
    "clock": ("run.clock",),
}
"""The scenario's keys that an option sets."""
_COLLECTIVE_TABLES = ("collective", "training", "admission")
"""The tables that have no effect on a program."""
_SWEPT = ("gpus", "chunk", "size", "wan_delay", "seed")
"""The options that accept several values, which form an axis of the sweep."""


_EXCLUDED = {
    "export": ("json", "no_report", "cli", "resume", "dask", "out"),
    "cli": ("json", "no_report", "dry_run", "resume", "dask"),
}
"""For each of these options, the options that it excludes."""


class ScenarioParser(CommandParser):
    """The parser of a command that runs a scenario: of an option that it lacks, it names the key that --set can set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, is_operand=_is_scenario, **kwargs)

    def unknown(self, option: str) -> str:
        """Return a hint for an option that does not exist: an option or a key of nearly the same name."""
        name = option.lstrip("-").replace("-", "_")
        known = [option for action in self._actions for option in action.option_strings]
        if hint := did_you_mean(option.replace("_", "-"), known, cutoff=0.8):
            return hint
        keys = _KEYS.get(name, ())
        if self.prog != _RUN and option in (*_ELSEWHERE, "--exec"):
            return f" (it is an option of {_RUN})"
        if "--set" in known and not keys:
            from scenarios.spec.keys import KEYS  # which imports numpy

            keys = tuple(key for key in KEYS if name in (key, key.partition(".")[2]))
        return f" (did you mean --set {keys[0]}=VALUE?)" if "--set" in known and keys else super().unknown(option)


STUDIES = {
    "authors": "the paper's authors' own simulation",
    "collectives": "by size and algorithm",
    "diloco": "utilisation by bandwidth of DiLoCo and others",
    "grains": "algorithms against the ring in both grains",
    "papers": "figures that others published",
    "permutation": "ECMP and spraying",
    "referees": "how far from the best each mode is",
    "requests": "prefill in two sites",
    "sizing": "a datacenter for training",
    "variability": "how variable a WAN must be for re-routing to pay",
}
"""The studies of `run.STUDIES`, with what they are about."""


def _is_scenario(word: str) -> bool:
    return word in scenario_names() or word.endswith(".toml") or "/" in word


def parser() -> argparse.ArgumentParser:
    """Return the parser of run.py's options."""
    options = ScenarioParser(
        prog=_RUN,
        description="Run every mode of a scenario in every configuration of its sweep, and write a run folder.",
        epilog="Studies with options of their own: "
        + ", ".join(f"run.py {name} ({what})" for name, what in STUDIES.items())
        + ". Random faults: campaign.py.",
    )
    names = ", ".join(scenario_names())
    add = options.add_argument
    add("scenario", nargs="?", metavar="SCENARIO", help=f"a TOML file or one of {names} (default {DEFAULT})")
    add(
        "--engine",
        choices=list(ENGINES),
        help="predict times, measure them in the VM, or both (default: both, or model alone where no VM runs)",
    )
    add("--modes", metavar="MODE[,MODE]", help="modes to compare: base, ccl, wan, joint and the names of policies")
    add(
        "--policy", metavar="FILE:NAME", action="append", default=[], help="a Python function or class that adds a mode"
    )
    add("--gpus", metavar="N[,N]", help="GPUs in total, or of each site as 3+5; several are a sweep")
    add("--chunk", metavar="SIZE[,SIZE]", help='bytes that a GPU contributes, such as "8 MB"; several are a sweep')
    add("--size", metavar="SIZE[,SIZE]", help="bytes of the whole buffer, in place of --chunk; several are a sweep")
    add("--wan-delay", metavar="T[,T]", help='delay of a WAN link, such as "10 us"; several are a sweep')
    add("--collectives", metavar="N", help="number of collectives at every point")
    add("--seed", metavar="S[,S]", help="seed of all random numbers; several repeat every point")
    add("--clock", metavar="CLOCK", help="clock of the emulation: virtual (default), or wall, which is real time")
    add("--set", metavar="TABLE.KEY=VALUE", action="append", default=[], help="set any key of the scenario; repeatable")
    add(
        "--sweep",
        metavar="TABLE.KEY=A,B",
        action="append",
        default=[],
        help="vary any key of the scenario, in all combinations with other sweeps; repeatable",
    )
    add(
        "--baseline",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="what the others are compared with: mode=wan, or a value of a swept key, as algorithm=ring; repeatable",
    )
    add("--data", metavar="DIR", help="folder of the published data that packs read (default: the scenario's folder)")
    add("--out", metavar="DIR", help="folder for the results, new or empty (default results/NAME-DATE-TIME)")
    add("--resume", metavar="DIR", help="resume the interrupted run in this folder")
    add("--jobs", metavar="N", help="parallel processes (default: one per core)")
    add("--dask", metavar="ADDRESS", help="run the points on the workers of this Dask scheduler")
    add("--dry-run", action="store_true", help="print what would be run, and stop")
    add(
        "--rank-output",
        choices=RANK_OUTPUT,
        help="with --exec: print the output of rank 0 while it runs (default), of all ranks, or of none; with --json, "
        "on stderr and none by default",
    )
    add(
        "--export",
        nargs=2,
        metavar=("FORMAT", "FILE"),
        help="write the first schedule of the first mode as goal, msccl or chakra, and stop; the file - is stdout; "
        "chakra is a file of each rank, with * for its number in the name",
    )
    add(
        "--no-report",
        action="store_true",
        help="skip figures and report; `python -m analysis.report DIR` makes them later",
    )
    add("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    add("--cli", action="store_true", help="open a Mininet prompt on the scenario's network")
    add(
        "--exec",
        metavar="COMMAND",
        action="append",
        help="run your own program on every GPU's host instead of collectives; repeatable with GPUs, such as "
        '"g0: iperf3 -s" and "g4: iperf3 -c g0 -n 100M"',
    )
    add("--capture", metavar="LINK", action="append", help="capture the packets of a link; repeatable")
    add("--rate-scale", metavar="1/N", help="on the wall clock: divide rates and chunks by N (at a prompt: 1000)")
    add(
        "--doctor",
        action=_Alone,
        nargs=0,
        help="print what this machine supports, what is missing, and how to install it",
    )
    return options


class _Alone(argparse.Action):
    """An option that must be the only argument; run.py handles that case before it parses options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error("--doctor cannot be combined with other arguments; allowed: run.py --doctor alone")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The parsed command line. `emulated_by` is the option that sets collective.emulated alone, if one does."""

    scenario: "Scenario"
    engines: tuple[str, ...]
    engine_given: bool
    jobs: int
    jobs_given: bool
    dask: str | None
    out: str | None
    resume: str | None
    dry_run: bool
    json: bool
    no_report: bool
    cli: bool
    export: tuple[str, str] | None
    rank_output: str
    modes_given: bool
    emulated_by: str | None


def parse_request(arguments: Sequence[str]) -> Request:
    """Parse these arguments; raises ScenarioError with every mistake, SystemExit for an unknown option."""
    options = parser().parse_args(arguments)
    from scenarios.experiment.run_folder import FolderError, check  # which imports numpy
    from scenarios.spec.load import assignment, axis, load_scenario, toml_or_text

    mistakes = list(_clashes(options))
    overrides = _overrides(options, mistakes)
    for read, text in [(assignment, text) for text in options.set] + [(axis, text) for text in options.sweep]:
        try:
            overrides.append(read(text))
        except ScenarioError as error:
            mistakes += error.mistakes
    mistakes += _contradictions(overrides)
    scenario, engines = None, ENGINES[options.engine or "both"]
    try:
        if options.resume is not None and options.exec is None:
            scenario, engines = _resumed(options, overrides)
        elif options.resume is None:
            if options.out is not None:
                check(Path(options.out))
            scenario = load_scenario(
                DEFAULT if options.scenario is None else options.scenario, overrides, at_prompt=options.cli
            )
    except FolderError as error:
        mistakes.append(f"--out: {error}")
    except ScenarioError as error:
        mistakes += error.mistakes
    is_real = scenario is not None and scenario.run.is_real
    jobs = _jobs(options, is_real=is_real)
    if not 1 <= jobs <= (1 if is_real else MAX_JOBS):
        why = (
            "on the wall clock points run one at a time" if is_real else f"allowed: a whole number from 1 to {MAX_JOBS}"
        )
        mistakes.append(f"--jobs: {format_value(toml_or_text(options.jobs))} is not allowed; {why}")
    if scenario is not None and scenario.program.is_given:
        mistakes += _program_clashes(options, scenario, overrides)
    elif scenario is not None and options.rank_output is not None:
        mistakes.append("--rank-output: no program is run; allowed: with --exec, or a scenario with a [program]")
    if mistakes or scenario is None:
        raise ScenarioError(mistakes)
    return Request(
        scenario=scenario,
        engines=engines,
        engine_given=options.engine is not None,
        jobs=jobs,
        jobs_given=options.jobs is not None,
        export=None if options.export is None else tuple(options.export),
        rank_output=options.rank_output or ("none" if options.json else "0"),
        modes_given=options.modes is not None,
        emulated_by=next(
            (one.where for one in overrides if one.key == "collective.emulated" and one.where != "--collectives"), None
        ),
        **{name: getattr(options, name) for name in ("dask", "out", "resume", "dry_run", "json", "no_report", "cli")},
    )


def _jobs(options: argparse.Namespace, *, is_real: bool) -> int:
    """Return the number of processes; 0 if the given one is not a number."""
    if options.cli or (is_real and options.jobs is None):
        return 1
    if options.jobs is None:
        return min(MAX_JOBS, len(os.sched_getaffinity(0)))
    return int(options.jobs) if re.fullmatch(r"[0-9]{1,9}", options.jobs) else 0


def _clashes(options: argparse.Namespace) -> list[str]:
    """Return the mistakes of options that cannot be combined."""
    mistakes = []
    given = {name: f"--{name.replace('_', '-')}" for name, value in vars(options).items() if value}
    if options.dask is not None and options.jobs is not None:
        mistakes.append("--jobs: cannot be combined with --dask, whose workers decide; allowed: one of the two")
    if options.out is not None and options.resume is not None:
        mistakes.append("--out: cannot be combined with --resume; allowed: one of the two")
    if options.exec is not None and options.resume is not None:
        mistakes.append(
            "--exec: cannot be combined with --resume, as a program cannot be resumed; allowed: one of the two"
        )
    if options.capture and (options.engine == "model" or options.dask):
        other = "--dask, whose workers have other files" if options.dask else "--engine model, which sends no packets"
        mistakes.append(f"--capture: cannot be combined with {other}; allowed: one of the two")
    if options.export is not None and options.export[0] not in EXPORTS:
        mistakes.append(f"--export: {format_value(options.export[0])} is not a format; allowed: {', '.join(EXPORTS)}")
    elif options.export is not None and options.export[0] == "chakra" and Path(options.export[1]).name.count("*") != 1:
        mistakes.append(
            f"--export: {format_value(options.export[1])} for a file of each rank; allowed: a name with one * for the "
            "rank, such as ring.*.et"
        )
    for option, others in _EXCLUDED.items():
        if option in given:
            clashes = [given[name] for name in others if name in given]
            mistakes += [f"{name} cannot be combined with {given[option]}; allowed: one of the two" for name in clashes]
    return mistakes


def _program_clashes(
    options: argparse.Namespace, scenario: "Scenario", overrides: Sequence["Override"]
) -> Iterator[str]:
    """Yield the mistakes of options and values that cannot be combined with a program."""
    from scenarios.spec.program import LONGHAUL

    what = "[program]" if options.exec is None else "--exec"
    clashes = [name for name in ("engine", "no_report", "cli", "resume", "dask", "export") if getattr(options, name)]
    given = [f"--{name.replace('_', '-')}" for name in clashes]
    # A file may have a [collective] for runs without the program; policies may use `reembed_every` to weigh a gain.
    used = {"reembed_every"}
    if any(config.program.backend == LONGHAUL for config in scenario.configurations()):
        used |= {"algorithm", "channels", "pieces", "ring"}
    for one in overrides:
        table, _, key = one.key.removeprefix("sweep.").partition(".")
        if table in _COLLECTIVE_TABLES and not (table == "collective" and key in used) and not scenario.jobs:
            given.append(one.where)
    for option in dict.fromkeys(given):
        yield f"{option} cannot be combined with {what}, which runs no collectives; allowed: one of the two"


def _resumed(options: argparse.Namespace, overrides: Sequence["Override"]) -> tuple["Scenario", tuple[str, ...]]:
    """Return the scenario and the engines of the run to resume; raises ScenarioError if the options differ."""
    from analysis.results.reader import ResultsError  # imports Parquet, which is slow
    from scenarios.experiment.run_files import recorded
    from scenarios.spec.load import load_scenario, scenario_of

    folder = Path(options.resume)
    try:
        before = recorded(folder)
    except ResultsError as error:
        raise ScenarioError([f"--resume: {error}"]) from None
    if options.scenario is None:
        wanted = scenario_of(before.text, overrides, path=folder / "scenario.toml", is_stored=True)
    else:
        wanted = load_scenario(options.scenario, overrides)
    mistakes = list(before.differences(wanted, None if options.engine is None else ENGINES[options.engine]))
    if mistakes:
        raise ScenarioError(mistakes)
    return wanted, before.engines


def _list_mistakes(option: str, where: str, text: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the mistakes of an option's list of values that its separators show."""
    words = [word for word in re.split(r"[\s,;+/|]+", text) if word]
    if option == "modes" and words == ["all"]:
        yield f'{where}: "all" is not a mode; allowed: base, ccl, wan and joint, which all run without {where}'
    elif option == "modes" and any(re.search(r"[\s;+/|]", part.strip()) for part in parts):
        yield f"{where}: {format_value(text)} is not a list; allowed: modes separated by commas, {','.join(words)}"
    elif option == "gpus" and len({*parts}) < len(parts) and all(part.strip().isdecimal() for part in parts):
        sites = "+".join(part.strip() for part in parts)
        yield f"{where}: {format_value(text)} is a sweep with a value twice; allowed: {sites} for GPUs of each site"


def _overrides(options: argparse.Namespace, mistakes: list[str]) -> list["Override"]:
    """Return the options that set keys of the scenario; an option with several values is an axis of its sweep.

    Mistakes in the lists are added to `mistakes`, and such an option is left out.
    """
    from scenarios.spec.load import DATA, Override, shortened, split_at_commas, toml_or_text

    given = [text.partition("=")[::2] for text in options.set]
    clocks = [value.strip(" \"'") for key, value in given if key.strip() == "run.clock"]
    clock = options.clock or [*clocks, "virtual"][0]  # for a prompt, which does not use the scenario's clock
    is_scaled = options.cli and clock == "wall"
    overrides = [Override("run.rate_scale", PROMPT_SCALE, "--cli")] if is_scaled else []
    for option, keys in _KEYS.items():
        text = getattr(options, option)
        if text is None:
            continue
        where = f"--{option.replace('_', '-')}"
        typed = f"{where} {shortened(text)}"
        try:
            parts = split_at_commas(text) if option in (*_SWEPT, "modes") else [text]
        except ValueError as error:
            mistakes.append(f"{where}: {error}")
            continue
        if wrong := list(_list_mistakes(option, where, text, parts)):
            mistakes += wrong
            continue
        values = [toml_or_text(_gpu_list(part) if option == "gpus" else part) for part in parts]
        if option in _SWEPT and len(values) > 1:
            overrides.append(Override(f"sweep.{keys[0]}", values, where, typed))
        else:
            # If the value of --collectives is wrong, one message is enough.
            used = keys if isinstance(values[0], int | float) else keys[:1]
            overrides += [Override(key, values if option == "modes" else values[0], where, typed) for key in used]
    if options.exec:
        overrides.append(_program(options.exec))
    if options.data is not None:
        overrides.append(Override(DATA, options.data, DATA))
    if options.capture:
        overrides.append(Override("program.capture", options.capture, "--capture"))
    if options.baseline:
        overrides.append(Override("run.baseline", options.baseline, "--baseline"))
    of_policies = [
        Override("policy", {"name": text.rpartition(":")[2], "function": text}, f"--policy {text}")
        for text in options.policy
    ]
    overrides = [*of_policies, *overrides]  # first, so that --modes can name them and still lists all modes that run
    if options.cli:
        overrides.append(Override("run.clock", clock, "--cli"))
    return overrides


def _program(commands: Sequence[str]) -> "Override":
    """Return what options --exec set: the one command of all ranks, or roles."""
    from scenarios.spec.load import Override, shortened
    from scenarios.spec.roles import of_option

    tables, typed = [of_option(text) for text in commands], f"--exec {shortened(commands[0])}"
    if len(tables) == 1 and "on" not in tables[0]:
        return Override("program.command", commands[0], "--exec", typed)
    return Override("program.role", tables, "--exec", typed)


def single_value(option: str, text: str) -> "Override":
    """Return what an option of run.py (its name as in `_KEYS`) sets in a command where it has one value; raises
    ScenarioError for several."""
    from scenarios.spec.load import Override, shortened, split_at_commas, toml_or_text

    where = f"--{option.replace('_', '-')}"
    try:
        is_list = len(split_at_commas(text)) > 1
    except ValueError as error:
        raise ScenarioError([f"{where}: {error}"]) from None
    if is_list:
        raise ScenarioError([f"{where}: {format_value(text)} has several values; allowed: one here (run.py sweeps)"])
    return Override(
        _KEYS[option][0],
        toml_or_text(_gpu_list(text) if option == "gpus" else text),
        where,
        f"{where} {shortened(text)}",
    )


def _contradictions(overrides: Iterable["Override"]) -> Iterator[str]:
    """Yield a message for every key that two different options set.

    Exempt are `policy`, which lists policies, and `collective.emulated`, which --collectives sets only by default.
    """
    first: dict[str, Override] = {}
    for override in overrides:
        key = override.key.removeprefix("sweep.")
        before = first.setdefault(key, override)
        may_repeat = key in ("policy", "collective.emulated") or "--cli" in (before.where, override.where)
        if before.where != override.where and not may_repeat:
            yield f"{override.where} cannot be combined with {before.where}: both set {key}; allowed: one of the two"


def _gpu_list(gpus: str) -> str:
    """Return GPUs by site, "3+5", as a TOML list; any other text unchanged."""
    return f"[{gpus.replace('+', ',')}]" if re.fullmatch(r"\s*[0-9]+(\+[0-9]+)+\s*", gpus) else gpus
