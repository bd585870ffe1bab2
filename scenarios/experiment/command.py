"""The command: reads options, checks that the engines can run, creates or opens the run folder, and runs."""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from controller.routing.multipath import ECMP_CHANNELS
from hosts.collectives.chakra import of_rank
from hosts.collectives.schedule import ScheduleError
from scenarios.engines.emulation import Emulation, check_delays, check_faults, check_waits, emulated
from scenarios.engines.machines import LEAST_GPUS, with_machines
from scenarios.engines.model import Model, as_modelled, check_known
from scenarios.engines.pool import Executors, processes
from scenarios.engines.preflight import at_a_time, check_capacity, check_program, check_vm
from scenarios.experiment.options import BAD_USAGE, DONE, FAILED, Request, parse_request
from scenarios.experiment.results_json import links_of, plan_as_json
from scenarios.experiment.run_folder import FolderError, RunFolder
from scenarios.experiment.run_notes import admission_notes, notes_of_run
from scenarios.policies.decide import spread_pairs, spreads_over
from scenarios.policies.knowledge import ENDS, PORTS, PROBED
from scenarios.policies.policy import MODES
from scenarios.signals import OutputError
from scenarios.spec import ScenarioError, file_notes
from scenarios.spec.load import resolved
from scenarios.spec.notes import notes_on
from scenarios.spec.pieces import choices_begun
from scenarios.spec.program import LONGHAUL
from scenarios.spec.run import AUTO
from scenarios.spec.scenario import DEFAULTS, Scenario
from scenarios.testbed.capture import CAPTURED, CAPTURES
from scenarios.vm import CannotRunError, VMError
from topologies.errors import list_first
from topologies.fabric.fabric import LogicalLink, build_fabric
from topologies.fabric.ports import DirectedPort
from topologies.heartbeat import heartbeat

if TYPE_CHECKING:
    from scenarios.experiment.runner import Part

_MAX_LINKS = 200  # links of a kind that are printed


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    try:
        with heartbeat(_reading):
            request = parse_request(arguments)
        _check_searches(request)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    configs = request.scenario.configurations()
    if request.export is not None and not request.dry_run:
        _tell(file_notes.notes_on(configs))
        return _export(request.scenario, *request.export)
    runs_engines = not (request.cli or request.dry_run or request.scenario.program.is_given)
    emulates = runs_engines and "emulation" in request.engines
    with heartbeat(lambda: "looking at what the configurations assume and share"):
        notes = list(notes_on(configs[:1] if request.cli else configs, emulates=emulates))
        if request.scenario.program.is_given or request.cli:
            of_each = configs[:1] if request.cli else configs
            notes += dict.fromkeys(note for config in of_each for note in _path_notes(config))
        else:
            notes += [*notes_of_run(configs), *_emulated_notes(request, configs)]
    _tell(notes)
    if request.scenario.program.is_given and not request.dry_run:
        return _program(request, arguments)
    if request.cli:
        return _prompt(request)
    if request.dry_run:
        plans = [(engine.name, configs) for engine, configs in _parts(request)]
        print(plan_as_json(plans) if request.json else _plan(request.scenario, plans))
        return DONE
    return _run_somewhere(request, arguments, notes)


def _reading() -> str:
    """Return what reading a scenario is doing: the model may choose pieces at many points."""
    begun, expected, tried = choices_begun()
    if not begun:
        return "reading the scenario"
    attempt = f", try {tried:,}" if tried else ""
    return f"choosing collective.pieces, number {begun:,} of {expected:,}{attempt}"


def _tell(notes: Iterable[str]) -> None:
    """Print notes on stderr, after all of them are known."""
    for note in list(notes):
        print(f"run.py: {note}", file=sys.stderr)


def _emulated_notes(request: Request, configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield that a given number of collectives to measure has no effect, or is cut to that of all collectives."""
    where = request.emulated_by or "collective.emulated"
    if "emulation" not in request.engines:
        if request.emulated_by:
            yield f"{where}: unused: nothing is measured with --engine model"
        return
    default = DEFAULTS.collective.emulated
    cut = {
        one.collective.count: one.collective.emulated
        for one in configs
        if isinstance(one.collective.emulated, int)
        and one.collective.emulated > one.collective.count
        and (request.emulated_by or one.collective.emulated != default)
    }
    for count, number in cut.items():
        yield f"{where}: {number:,} is more than collective.count, {count:,}: all of these are measured"


def _path_notes(config: Scenario) -> Iterator[str]:
    """Yield notes on the WAN paths of a program or at a prompt, where any GPU may send to any other."""
    fabric, mode = build_fabric(config.fabric), config.run.modes[0]
    if config.mode(mode).reroutes and all(len(paths) < 2 for paths in fabric.paths_between.values()):
        yield f"{mode} has no WAN path to choose: no two sites have more than one"
    routing = spreads_over(fabric, config.mode(mode))
    if routing is not None and config.fabric.routing == "ecmp":
        count = len(spread_pairs(fabric, within=config.fabric.grain == "physical"))
        if (channels := routing.channels_of_connections(count)) < ECMP_CHANNELS:
            spread = f"{channels} channel{'s' * (channels != 1)} instead of {ECMP_CHANNELS}"
            yield f"connections of two GPUs are spread over {spread}, as there are {count:,} pairs of GPUs"
    knowledge, learns = config.mode(mode).knowledge, config.program.backend == LONGHAUL
    if not learns and knowledge.kind in (ENDS, PORTS) and (knowledge.kind == ENDS or config.conditions.every_s is None):
        yield (
            f"{mode} learns nothing of {knowledge}, and expects the mean rates: it is measured in the collectives of "
            f'program.backend "{LONGHAUL}"{" or in the rows of conditions.every" if knowledge.kind == PORTS else ""}'
        )
    if config.program.is_given and knowledge.kind == PROBED:
        yield f"{mode} sends its probes once, before the ranks start, and knows what they show until the end"
    if config.program.is_given:
        yield from admission_notes([config])
        awaited = [one for one in config.faults if not (one.of_program or one.is_traced)]
        if awaited and config.program.backend != LONGHAUL:
            yield (
                f"{awaited[0].what} at {awaited[0].at}: collectives of a program are those that ranks announce, by the "
                f'backend "{LONGHAUL}" of torch.distributed; if they announce none, the fault does not begin'
            )
    if pairs := [f"{a} and {b}" for a, b in fabric.unjoined_sites]:
        yield f"no WAN path joins the sites {', '.join(pairs)}: packets between their GPUs are lost"


def _check_searches(request: Request) -> None:
    """Raise ScenarioError for a run that searches for best schedules without OR-Tools, which they need."""
    searches = any(one.searches_schedules for one in request.scenario.configurations())
    if searches and not request.dry_run and find_spec("ortools") is None:
        raise ScenarioError(["run.referees: schedule needs OR-Tools: .venv/bin/pip install 'longhaul[optimum]'"])


def _run_somewhere(request: Request, arguments: Sequence[str], notes: Sequence[str]) -> int:
    """Run on the workers of a Dask cluster, or of this machine without one, and return the exit status."""
    if request.dask is None:
        return _run(request, _parts(request), arguments, notes)
    from scenarios.engines.dask import Cluster, ClusterError  # slow to import

    try:
        with Cluster(request.dask) as cluster:
            return _run(request, _parts(request, cluster.executors), arguments, notes)
    except ClusterError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return FAILED


def _export(scenario: Scenario, form: str, path: str) -> int:
    """Write a schedule into a file, of each rank if its name has a *, or to stdout if it is "-"; return the status."""
    from scenarios.experiment.export import exported

    try:
        files = exported(scenario, form)
        if path != "-":
            for rank, content in enumerate(files):
                (of_rank(Path(path), rank) if form == "chakra" else Path(path)).write_bytes(content)
    except ScheduleError as error:
        print(f"--export: {error}", file=sys.stderr)
        return BAD_USAGE
    except OSError as error:
        print(f"--export: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return BAD_USAGE
    if path == "-":
        print(files[0].decode(), end="")
    return DONE


def _prompt(request: Request) -> int:
    """Open a prompt and return the exit status."""
    from scenarios.prompt.session import launch

    out = None if request.out is None else Path(request.out)
    try:
        return launch(request.scenario, out=out)
    except VMError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return error.status
    except FolderError as error:
        print(_unmade_folder(request, error), file=sys.stderr)
        return BAD_USAGE


def _program(request: Request, arguments: Sequence[str]) -> int:
    """Run the user's program and write its run folder; return the exit status."""
    from scenarios.program.command import run_program

    configs = request.scenario.configurations()
    try:
        if request.scenario.run.is_real:
            with heartbeat(lambda: "measuring the capacity of the VM"):
                for config in configs:
                    check_program(config)
        folder = _run_folder(request)
    except VMError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return error.status
    except FolderError as error:
        print(_unmade_folder(request, error), file=sys.stderr)
        return BAD_USAGE
    modes = request.scenario.run.modes
    if not request.modes_given and {*modes} >= {*MODES}:  # nothing names modes: all are compared by default
        modes = modes[:1]
    shown = request.rank_output
    return run_program(request.scenario, folder, ["run.py", *arguments], modes, as_json=request.json, shown=shown)


def _unmade_folder(request: Request, error: FolderError) -> str:
    """Return the message for a run folder that cannot be used, after the option that names it if one was given."""
    if request.resume is not None:
        return f"--resume: {error}"
    return f"--out: {error}" if request.out is not None else f"run.py: {error}; allowed: --out DIR for another folder"


def _run(request: Request, parts: Sequence["Part"], arguments: Sequence[str], notes: Sequence[str]) -> int:
    """Run the engines that this machine supports, and write the results into the run folder, beside the `notes` that
    were told; return the exit status."""
    try:
        usable, unmeasured = _usable(request, parts)
        folder = _run_folder(request)
    except VMError as error:
        remedy = " (to predict only: --engine model)" if isinstance(error, CannotRunError) else ""
        print(f"run.py: {error}{remedy}", file=sys.stderr)
        return error.status
    except ValueError as error:
        print(_unmade_folder(request, error) if isinstance(error, FolderError) else error, file=sys.stderr)
        return BAD_USAGE
    return _open_and_run(request, usable, folder, arguments, notes=notes, unmeasured=unmeasured)


def _usable(request: Request, parts: Sequence["Part"]) -> tuple[list["Part"], str | None]:
    """Return the engines, with as many jobs as this machine has room for, and why nothing can be measured, if so.

    On a machine without a VM, CannotRunError is raised for users who name an engine, choose the wall clock or resume a
    run; users who do not choose an engine get the model. Raises ValueError for configurations that cannot be emulated.
    """
    engine_is_open = not (request.engine_given or request.resume or request.scenario.run.is_real)
    usable: list[Part] = []
    unmeasured = None
    for wanted_engine, configs in parts:
        engine = wanted_engine
        if len(parts) == 1 and isinstance(engine, Model) and request.resume is None:
            check_known(configs)
        if isinstance(engine, Emulation):
            check_waits(configs)
            check_delays(configs)
            if request.resume is None:
                check_faults(configs)
            if engine.elsewhere is None:
                try:
                    with heartbeat(lambda: "checking that the VM boots"):
                        check_vm(configs)
                except CannotRunError as error:
                    if not engine_is_open:
                        raise
                    unmeasured = str(error)
                else:
                    with heartbeat(lambda: "measuring the capacity of the VM"):
                        check_capacity(configs)
                    engine = _with_room(request, engine, configs)
        usable.append((engine, configs))
    return usable, unmeasured


def _with_room(request: Request, engine: Emulation, configs: Sequence[Scenario]) -> Emulation:
    """Return the engine with as many parallel points as have a core for each of their VMs, unless --jobs is given, and
    fit in memory; raises CannotRunError if --jobs is higher than that."""
    machines = max(config.run.machines for config in configs)
    if request.scenario.run.machines == AUTO:
        several = f"{machines} VMs a point of {LEAST_GPUS} GPUs or more that can be divided"
        none = f"one VM a point: no core is left over, or none has {LEAST_GPUS} GPUs and can be divided"
        print(f"run.py: run.machines auto: {several if machines > 1 else none}", file=sys.stderr)
    engine = engine if request.jobs_given else Emulation(jobs=max(1, engine.jobs // machines))
    jobs = at_a_time(configs, engine.jobs)
    if jobs == min(engine.jobs, sum(len(config.run.modes) for config in configs)):
        return engine
    room = f"there is room for the memory of {jobs} VM{'' if jobs == 1 else 's'} at a time"
    if request.jobs_given:
        raise CannotRunError(f"{room}, not for {engine.jobs}; allowed: --jobs {jobs}")
    print(f"run.py: {room}, so at most that many run", file=sys.stderr)
    return Emulation(jobs=jobs)


def _run_folder(request: Request) -> RunFolder:
    """Open or create the folder for the run; raises FolderError if that fails."""
    if request.resume is not None:
        return RunFolder(Path(request.resume))
    if request.out is not None:
        return RunFolder.new(Path(request.out))
    return RunFolder.dated(request.scenario.name, datetime.now())


def _open_and_run(
    request: Request,
    parts: Sequence["Part"],
    folder: RunFolder,
    arguments: Sequence[str],
    *,
    notes: Sequence[str],
    unmeasured: str | None,
) -> int:
    # Parquet is slow to import, and most mistakes are found before this point.
    from analysis.results.reader import ResultsError
    from scenarios.experiment.run_files import RunFiles
    from scenarios.experiment.runner import Run, print_again, run_in

    command = ["run.py", *arguments]
    if request.scenario.program.capture:
        parts = [(engine, _capturing(configs, folder.path.resolve() / CAPTURES)) for engine, configs in parts]
    run = Run(request.scenario, parts, request.json, unmeasured, reports=not request.no_report)
    try:
        if request.resume is None:
            files = RunFiles.begun(folder, request.scenario, engines=request.engines, command=command, notes=notes)
        else:
            files = RunFiles.resumed(folder, request.scenario, command=command)
        status = print_again(files, run) if files.complete else run_in(files, run)
        _tell(_capture_notes(folder.path))
        return status
    except ResultsError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return FAILED
    except OutputError:
        raise
    except OSError as error:
        print(f"run.py: {folder.path} cannot be written to: {error.strerror or error}", file=sys.stderr)
        return FAILED


def _capturing(configs: Sequence[Scenario], folder: Path) -> tuple[Scenario, ...]:
    """Return the configurations, each of which captures into a folder: this one, or one in it with its number."""
    folder.mkdir(exist_ok=True)
    if len(configs) == 1:
        return (configs[0].capturing(folder),)
    capturing = []
    for number, config in enumerate(configs, 1):
        of_config = folder / str(number)
        of_config.mkdir(exist_ok=True)
        capturing.append(config.capturing(of_config))
    return tuple(capturing)


def _capture_notes(folder: Path) -> Iterator[str]:
    """Yield a sentence for each captured link of each point in a run folder."""
    for table in sorted((folder / CAPTURES).rglob(CAPTURED)):
        with table.open() as file:
            for row in csv.DictReader(file):
                path, lost = table.parent.relative_to(folder) / row["file"], int(row["lost"])
                more = f"; tcpdump lost {lost:,} more" if lost else ""
                yield f"{int(row['packets']):,} packets of {row['link']} are in {path}{more}"


def _parts(request: Request, elsewhere: Executors | None = None) -> list["Part"]:
    """Return the chosen engines, each with its configurations."""
    configs = request.scenario.configurations()
    model: Part = (
        Model(jobs=request.jobs, executors=elsewhere or processes),
        tuple(as_modelled(config) for config in configs),
    )
    emulation: Part = (
        Emulation(jobs=request.jobs, elsewhere=elsewhere),
        with_machines([emulated(config) for config in configs], 1 if elsewhere else None),
    )
    return [{"model": model, "emulation": emulation}[name] for name in request.engines]


def _plan(scenario: Scenario, plans: Sequence[tuple[str, Sequence[Scenario]]]) -> str:
    """Describe what would be run: the scenario with every default, and each engine's points as TOML comments."""
    modes = scenario.run.modes
    lines, total = [], 0
    of = f"each of {', '.join(modes)}" if len(modes) > 1 else modes[0]
    for engine, configs in plans:
        for config in configs:
            count = len(config.collective.numbers)
            lines.append(f"{engine}, {config.label}: {count:,} collective{'s' * (count > 1)} in {of}")
            total += len(modes) * count
    if scenario.program.is_given:
        lines = [
            f"the program on {len(config.program.ranks_of(config.fabric.gpus_per_site))} GPUs, "
            f"with the WAN paths of {modes[0]}"
            f"{f': {config.label}' if len(plans[0][1]) > 1 else ''}"
            for config in plans[0][1]
        ]
    for links, indices in links_of(plans[0][1]).items():
        lines += _link_lines(links, plans[0][1][indices[0]].label)
    lines.append(
        "nothing was run"
        if scenario.program.is_run
        else f"{total:,} collective{'s' * (total > 1)} in all; nothing was run"
    )
    return "\n".join([resolved(scenario), *(f"# {line}" for line in lines)])


def _link_lines(links: Sequence[LogicalLink | DirectedPort], where: str) -> list[str]:
    """List the names of a fabric's logical links or ports, as traces use them: first the WAN, then sites."""
    lines = [f"the {'ports' if isinstance(links[0], DirectedPort) else 'logical links'} of {where}:"]
    for what, names in (
        ("WAN", [link.name for link in links if link.kind == "wan"]),
        ("within sites", [link.name for link in links if link.kind != "wan"]),
    ):
        all_in_json = " (--json has all)" if len(names) > _MAX_LINKS else ""
        lines.append(f"  {what}: {list_first(names, _MAX_LINKS)}{all_in_json}")
    return lines
