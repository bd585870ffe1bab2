"""Runs a user's program in a VM, watches it from outside, and writes its run folder.

`guest` starts and confines the ranks and reads the ports' counters, in the VM.
"""

import base64
import csv
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, BinaryIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.results.reader import FIGURES
from analysis.results.writer import write_text
from analysis.statistics.contests import differing_words, shared_words
from analysis.statistics.fault_outcomes import Event, fault_outcomes
from analysis.statistics.number_words import fixed, milliseconds
from analysis.statistics.rates import drawn_sentence
from scenarios import vm
from scenarios.engines.emulation import StderrTail, network_bytes
from scenarios.engines.emulation import memory_bytes as carrying_bytes
from scenarios.program import collective_results, gpu_accounts, script_steps
from scenarios.program.computed import Computed, ComputedOfStep, Reported
from scenarios.program.ranks import FILES, describe_status
from scenarios.program.rows import rows_as_collectives
from scenarios.program.watchdog import ClockWatchdog, watched
from scenarios.spec.program import LAUNCHERS, TOOLS, ProgramSpec
from scenarios.spec.scenario import Scenario, to_json
from scenarios.testbed import launch
from scenarios.vm.boot import guest_environment
from scenarios.vm.resources import working_directory
from topologies.errors import format_value, list_first
from topologies.fabric.fabric import build_fabric
from topologies.units import format_delay, format_size

OUTPUT, LINKS, RANKS, FAULTS, JOBS = "output", "links.csv", "ranks.csv", "faults.csv", "jobs.csv"
"""In the run folder: each rank's output, the bytes on WAN links over time, the ranks, the faults, and the jobs."""

COLLECTIVES = "collectives.csv"
"""In the run folder: the collectives of a script that used the backend `longhaul`."""

MEASURED = "measured.csv"
"""In the run folder: the rates of links that ports or messages have shown, for a mode that measures them."""

STEPS = "steps.csv"
"""In the run folder: the time of each step that ranks told."""

PROGRAM = "program.json"
"""In the run folder: the whole result as JSON."""

COUNTED = ("retransmitted_segments", "udp_receive_drops")
"""What is counted on each rank's host, as columns of `ranks.csv`."""

_NOT_RUN = 126, 127  # exit statuses of a shell
_OF_STEP = ("rank", "step", "step_s")

CROWDED = (
    "the ranks met the limit of {:,} processes and threads per rank on average (program.processes): no more could be "
    "started"
)
"""The note at the end of a run that met the limit of processes."""

COMPUTING = (
    "processors take no virtual time: a rank computes for SECONDS only in longhaul.compute(SECONDS) of Python, in the "
    "command longhaul-compute SECONDS, or in a sleep"
)
"""The note at the end of a run in virtual time in which no rank was seen to compute."""

_MOST_TOLD = 8  # runs whose parts are told
_BOUND = 0.5  # of the time, above which a program is bound by computing
_MOST_OF_RUN = 1.01  # of a run's time, above which a rank's steps, one after the other, are those of several processes
_NOBODY = 65534
_MOST_MAPPINGS = Path("/proc/sys/vm/max_map_count")
_LOOK_S = 0.5
_LAST_BYTES = 500
_REPORT_S = 10.0  # between two progress lines if stderr is no terminal
_NO_SPINNING = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables that prevent threads from spinning while they wait, which would stop the clock."""


Shows = Callable[[int, str, bytes], None]
"""Takes what a rank has printed: the rank, "stdout" or "stderr", and the bytes."""

_NUMBER = rb"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_STEP = re.compile(rb"^longhaul: step " + _NUMBER + rb"(?: tokens " + _NUMBER + rb")?\s*$", re.MULTILINE)
"""A line by which a program tells how long a step took, in seconds, and its tokens (`longhaul.report`)."""

Told = tuple[int, int, float, float | None]
"""A step that a rank told: the rank, the step's number from 0 on, its time in s, and its tokens if it told them."""

_LIKE_STEP = re.compile(rb"^longhaul: step\b[^\n]*", re.MULTILINE)


@dataclass
class RunState:
    """The state of a run as seen from outside, updated from the VM's JSON records (`guest` lists them).

    Output is written to files in `folder` at once; by rank, `printed` is its size in bytes, and `last` holds its last
    bytes. By rank too, `ended` is the exit status and the ns since the start; `stopped` are the ranks that were ended
    because they only waited for others, which had ended. `samples` are samples of the WAN links: the ns since the
    start, and for each link the bytes that it has carried and could have carried; `in_collectives` has the same of the
    time in which collectives of the script ran, None without any. `seen` are the rates that counters of
    ports have shown, by link, with the ns since the start. `virtual_ns` is the latest virtual
    time known, since the ranks' start, and `lines` counts the records. `events` are those of faults
    (`analysis.statistics.fault_outcomes`), `rounds` has the beginning and the end of each job in ns, by name, and
    `collectives` has those of the script (`collective_results`). `beginning_ns` is the ranks' start by the VM's
    CLOCK_MONOTONIC, and `records` what they have recorded of their steps under `program.gpu`.
    """

    folder: Path
    gpus: tuple[int, ...]
    shows: Shows = lambda rank, stream, output: None
    doing: str = "the VM's start"
    links: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[int, list[int], list[float]]] = field(default_factory=list)
    in_collectives: tuple[list[float], list[float]] | None = None
    seen: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    rounds: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    records: list[script_steps.Records] = field(default_factory=list)
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    printed: dict[int, int] = field(default_factory=dict)
    last: dict[int, bytes] = field(default_factory=dict)
    began: bool = False
    beginning_ns: int = 0
    deadline: bool = False
    over: dict[str, Any] | None = None
    virtual_ns: int = 0
    lines: int = 0
    _unread: bytes = b""
    _files: dict[tuple[int, str], BinaryIO] = field(default_factory=dict)

    def write(self, data: bytes) -> None:
        """Process output of the VM; a partial record is kept until the rest of it arrives."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._process(json.loads(line))
            self.lines += 1

    def flush(self) -> None:
        """Do nothing: `write` has processed every whole record."""

    def close(self) -> None:
        """Close the output files."""
        for file in self._files.values():
            file.close()

    def _process(self, line: Mapping[str, Any]) -> None:
        self.virtual_ns = max(self.virtual_ns, line.get("at_ns", 0))
        lists: dict[str, list[Any]] = {"event": self.events, "round": self.rounds, "collective": self.collectives}
        for name in lists.keys() & line.keys():
            lists[name].append(line[name])
        if "doing" in line:
            self.doing = line["doing"]
        elif "began" in line:
            self.began, self.links, self.beginning_ns = True, line["links"], line["beginning_ns"]
        elif "stream" in line:
            file = self._files.get((line["rank"], line["stream"]))
            if file is None:
                path = self.folder / OUTPUT / f"{line['rank']}.{line['stream']}"
                path.parent.mkdir(exist_ok=True)
                file = self._files[line["rank"], line["stream"]] = path.open("wb", buffering=0)
            output, rank = base64.b64decode(line["text"]), line["rank"]
            file.write(output)
            self.printed[rank] = self.printed.get(rank, 0) + len(output)
            self.shows(rank, line["stream"], output)
            self.last[rank] = (self.last.get(rank, b"") + output)[-_LAST_BYTES:]
        elif "ended" in line:
            self.ended[line["rank"]] = line["ended"], line["at_ns"]
            if line.get("stopped"):
                self.stopped.add(line["rank"])
        elif "bytes" in line:
            self.samples.append((line["at_ns"], line["bytes"], line["capacity_bytes"]))
        elif "in_collectives" in line:
            sent, possible = line["in_collectives"]
            self.in_collectives = (sent, possible) if any(possible) else None
        elif "seen" in line:
            self.seen.append((line["at_ns"], line["seen"]))
        elif "deadline_ns" in line:
            self.deadline = True
        elif "over" in line:
            self.over = line["over"]

    def summary(self, wall_s: float) -> str:
        """Return the progress of the run in one line."""
        if not self.began:
            return f"{self.doing}, {wall_s:.0f} s of wall time"
        count, failed = len(self.gpus), sum(self._has_failed(rank) for rank in self.ended)
        done = len(self.ended) - failed
        states = [f"{count - len(self.ended)} of {count} ranks run"]
        if done:
            states.append(f"{done} done")
        if failed:
            states.append(f"{failed} failed")
        return f"{self.virtual_ns / 1e9:.3f} s of the run's time, {wall_s:.0f} s of wall time: {', '.join(states)}"

    def _has_failed(self, rank: int) -> bool:
        return self.ended[rank][0] != 0 and rank not in self.stopped

    def rank_rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield a table row per rank: rank, GPU, state, bytes printed, and the last line printed."""
        for rank, gpu in enumerate(self.gpus):
            state = "runs" if self.began else ""
            if rank in self.ended:
                status, at_ns = self.ended[rank]
                words = describe_status(status) if self._has_failed(rank) else "done"
                state = f"{words}, at {at_ns / 1e9:.3f} s"
            yield str(rank), f"g{gpu}", state, f"{self.printed.get(rank, 0):,}", self.last_line(rank)

    def last_line(self, rank: int) -> str:
        """Return the last line that a rank has printed, or the end of it if it is long."""
        line = self.last.get(rank, b"").decode(errors="replace").rstrip("\r\n").rpartition("\n")[2]
        return "".join(filter(str.isprintable, line.rpartition("\r")[2]))


def run(
    config: Scenario, *, folder: Path, shows: Shows, tells: bool = True, directory: Path | None = None
) -> tuple[RunState, str | None]:
    """Run the program of a configuration, with its files in a folder; return its state, and the reason if the run was
    cut short, else None. `shows` is called with what the ranks print; if it `tells`, stderr shows the progress. Ranks
    begin in a `directory`, by default in the caller's.

    Raises VMError if the VM cannot run, or fails before the ranks start.
    """
    spec, stderr_tail = config.program, StderrTail()
    begins_in = working_directory(directory, results=None)
    if begins_in == "/":
        raise vm.VMUsageError("a program cannot be run in /: change to a folder of yours first")
    state = RunState(folder, spec.ranks_of(config.fabric.gpus_per_site), shows)
    request = {"setting": to_json(config), **of_caller(), "folder": str(folder.resolve()), "directory": begins_in}
    launch.compile_modules()
    began_s = time.monotonic()
    of_network = carrying_bytes(config) if config.jobs else network_bytes(config)
    memory_bytes = of_network + spec.memory_bytes + spec.files_bytes
    watchdog = ClockWatchdog(spec.patience_s, memory_bytes=memory_bytes)
    try:
        with watched(partial(_watch, state, watchdog, began_s, tells=tells)) as on_start:
            status = vm.run(
                [sys.executable, "-m", "scenarios.program.guest", json.dumps(request)],
                clock="wall" if config.run.is_real else "virtual",
                memory_bytes=memory_bytes,
                results=folder,
                directory=launch.ROOT,
                environment=launch.environment(),
                stdout=state,
                stderr=stderr_tail,
                on_start=on_start,
            )
    except vm.VMError as error:
        if watchdog.sentence is None:
            if isinstance(error, vm.NoRoomError):
                remedy = f"{error.remedy}, or set program.memory below {format_size(spec.memory_bytes)}"
                raise vm.CannotRunError(error.problem, remedy=remedy) from None
            if isinstance(error, vm.CannotRunError) or not state.began:
                raise
            return state, str(error)
        return state, watchdog.sentence
    finally:
        state.close()
    if spec.gpu is not None:
        state.records = script_steps.read(folder / FILES, len(state.gpus), state.beginning_ns)
    return state, None if status == 0 else stderr_tail.last() or "the testbed failed without a message"


def _watch(
    state: RunState,
    watchdog: ClockWatchdog,
    began_s: float,
    stop: Callable[[], None],
    over: threading.Event,
    *,
    tells: bool,
) -> None:
    """Show progress on stderr, if it `tells`, until `over` is set; call `stop` to end the VM if its clock has
    stopped."""
    console, due_s = Console(stderr=True, quiet=not tells), time.monotonic() + _REPORT_S
    with Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live:
        while not over.wait(_LOOK_S):
            now_s = time.monotonic()
            if live is not None:
                live.update(progress_table(state, now_s - began_s), refresh=True)
            elif tells and now_s >= due_s:
                print(state.summary(now_s - began_s), file=sys.stderr, flush=True)
                due_s = now_s + _REPORT_S
            if watchdog.look(state.virtual_ns, state.lines, began=state.began):
                stop()
                break


def progress_table(state: RunState, wall_s: float) -> Group:
    """Return the progress of a run for a terminal: a line with virtual and wall time, and a line for each rank."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "GPU", "state", "printed, B"):
        table.add_column(name, justify="right" if name in ("rank", "printed, B") else "left", no_wrap=True)
    table.add_column("last line", no_wrap=True, overflow="ellipsis")
    for row in state.rank_rows():
        table.add_row(*map(Text, row))
    return Group(Text(state.summary(wall_s), no_wrap=True, overflow="ellipsis"), table)


def of_caller() -> dict[str, Any]:
    """Return the fields `environment` and `user` of a request to run a program for the user of this process."""
    uid = os.getuid()
    user = {"uid": uid or _NOBODY, "gid": os.getgid() if uid else _NOBODY, "reads_all": not uid}
    return {"environment": _environment(), "user": user}


def _environment() -> dict[str, str]:
    """Return the user's environment variables that make sense in the VM, with this Python as a fallback in PATH."""
    environment = guest_environment(os.environ)
    home = environment.get("HOME", "")
    folders = [str(TOOLS), *environment["PATH"].split(":"), str(Path(sys.executable).parent)]
    modules = [str(TOOLS), *filter(None, [environment.get("PYTHONPATH")])]
    own = {
        "PATH": ":".join(dict.fromkeys(folders)),
        "PYTHONPATH": ":".join(modules),
        "HOME": "/tmp",  # noqa: S108
        "USER": "nobody",
        "LOGNAME": "nobody",
    }
    return {"PYTHONUSERBASE": f"{home}/.local", **_NO_SPINNING, **LAUNCHERS, **environment, **own}


def _steps_of(state: RunState, computed: Sequence[Computed]) -> tuple[list[Told], bool]:
    """Return each step of a run, and whether it is not known on which rank each was.

    Of steps that `longhaul.report` told the host is known, also if a launcher forwards what is printed there to its own
    rank. They are all if no more were printed. Printed ones that a launcher forwards cannot be told from its rank's own
    unless they take more time, one after the other, than there was.
    """
    reported = [
        (rank, step.number, round(step.step_s, 9), step.tokens)
        for rank, one in enumerate(computed)
        for step in one.steps
    ]
    printed = list(steps_told(state.folder, len(computed)))
    if len(reported) >= len(printed):
        return reported, False
    took_s = dict[int, float]()
    for rank, _, step_s, _ in printed:
        took_s[rank] = took_s.get(rank, 0.0) + step_s
    return printed, max(took_s.values()) > _MOST_OF_RUN * _run_ns(state) / 1e9


def steps_told(folder: Path, ranks: int) -> Iterator[Told]:
    """Yield each step that a rank told on stdout."""
    for rank in range(ranks):
        path = folder / OUTPUT / f"{rank}.stdout"
        if path.exists():
            for number, (step_s, tokens) in enumerate(_STEP.findall(path.read_bytes())):
                yield rank, number, float(step_s), float(tokens) if tokens else None


def tokens_per_s(told: Sequence[Told]) -> float | None:
    """Return the tokens of all ranks in all steps by the time of these, each as long as on its slowest rank; None if a
    step lacks its tokens, or took no time."""
    slowest_s = dict[int, float]()
    for _, step, step_s, _ in told:
        slowest_s[step] = max(step_s, slowest_s.get(step, 0.0))
    tokens = [one for *_, one in told if one is not None]
    whole_s = sum(slowest_s.values())
    return sum(tokens) / whole_s if len(tokens) == len(told) and whole_s > 0 else None


def step_time(steps: Sequence[tuple[int, int, float]]) -> float | None:
    """Return the median time of a step, each of which takes as long as on its slowest rank; None without steps, which
    are (rank, step's number, s)."""
    slowest_s = dict[int, float]()
    for _, step, step_s in steps:
        slowest_s[step] = max(step_s, slowest_s.get(step, 0.0))
    return median(slowest_s.values()) if steps else None


def steps_refused(folder: Path, ranks: int) -> tuple[int, str, int] | None:
    """Return the first rank that told a step in a line that is none, that line, and how many such lines there are; None
    without any."""
    found = [
        (rank, line.decode("utf-8", "replace"))
        for rank in range(ranks)
        if (path := folder / OUTPUT / f"{rank}.stdout").exists()
        for line in _LIKE_STEP.findall(path.read_bytes())
        if not _STEP.fullmatch(line)
    ]
    return (*found[0], len(found)) if found else None


def result_of(config: Scenario, state: RunState, why: str | None, wall_s: float) -> dict[str, Any]:
    """Return the result of a run, which is the content of program.json: its ranks, WAN links and counters."""
    placed = config.program.roles_of(config.fabric.gpus_per_site)
    over = state.over or {}
    discarded = {(rank, name): count for rank, name, count in over.get("discarded", ())}
    counted = over.get("counted", [dict.fromkeys(COUNTED)] * len(placed))
    computed = [_computed(one) for one in over.get("computed", [None] * len(placed))]
    has_computed = any(one.whole_s for one in computed)
    told, are_mixed = _steps_of(state, computed)
    steps = [(rank, step, step_s) for rank, step, step_s, _ in told]
    return {
        "command": config.program.command,
        "roles": [role.written() for role in config.program.roles],
        "mode": config.run.modes[0],
        "clock": config.run.clock,
        "run_s": _run_ns(state) / 1e9,
        "wall_s": round(wall_s, 3),
        "step_s": step_time(steps),
        "step_count": len({step for _, step, _ in steps}),
        "tokens_per_s": tokens_per_s(told),
        "steps": steps,
        "are_steps_mixed": are_mixed,
        "steps_refused": steps_refused(state.folder, len(placed)),
        "ended_early": why,
        "deadline": state.deadline,
        "ranks": [
            {
                "rank": rank,
                "gpu": f"g{gpu}",
                "role": _role_name(config.program, role),
                "status": state.ended[rank][0] if rank in state.ended else None,
                "start_s": config.program.all_roles[role].start_s if state.began else None,
                "end_s": state.ended[rank][1] / 1e9 if rank in state.ended else None,
                "stopped": rank in state.stopped,
                "computed_s": computed[rank].whole_s or None,
                "computed_of_steps": computed[rank].of_steps if has_computed else None,
                **counted[rank],
                "discarded_bytes": sum(discarded.get((rank, name), 0) for name in ("stdout", "stderr")),
                "last_line": state.last_line(rank),
            }
            for rank, (gpu, role) in enumerate(placed)
        ],
        "links": [
            {
                "link": link["name"],
                "bytes": state.samples[-1][1][number],
                "capacity_bytes": state.samples[-1][2][number],
                **_in_use(state, number),
            }
            for number, link in enumerate(state.links)
            if state.samples
        ],
        "faults": fault_rows(config, state.events),
        "rounds": len(state.rounds),
        "transfers": _promises(config, state.rounds),
        "collectives": collective_results.summary(state.collectives),
        "gpu_accounts": gpu_accounts.read(state.folder / FILES, len(placed)) if config.program.gpu else [],
        "script_steps": script_steps.summary(state.records, len(placed), state.collectives),
        "unfinished_collectives": over.get("unfinished_collectives"),
        "jobs_error": over.get("jobs_error"),
        "drops": over.get("drops"),
        "openflow_messages": over.get("openflow_messages"),
        "changes": over.get("changes"),
        "rerouted": over.get("rerouted"),
        "captures": over.get("captures"),
        "left_running": over.get("left_running"),
        "kept_connections": over.get("kept_connections", []),
        "files": over.get("files"),
        "files_left_out": over.get("files_left_out"),
        "files_error": over.get("files_error") or None,
        "files_full": over.get("full"),
        "processes_full": over.get("crowded"),
        "needed_mappings": over.get("needed_mappings"),
        "was_refused_mappings": over.get("was_refused_mappings"),
        "exhausted_memory": over.get("exhausted_memory") or [],
    }


def _computed(told: Sequence[Any] | None) -> Computed:
    """Return what a rank told of its computing, from the VM's record; None if it told nothing."""
    if told is None:
        return Computed(0.0, None)
    whole_s, of_steps, steps = told
    return Computed(whole_s, of_steps, tuple(Reported(*one) for one in steps))


def _run_ns(state: RunState) -> int:
    """Return the time of a run: until its last rank ended, but for ranks that only waited for others."""
    own = [at_ns for rank, (_, at_ns) in state.ended.items() if rank not in state.stopped]
    has_all = len(state.ended) == len(state.gpus)
    return max(own) if has_all and state.stopped and own else state.virtual_ns


def _role_name(program: ProgramSpec, index: int) -> str | None:
    """Return the name of a role, its number from 1 on if it has none; None if the program has one command."""
    return (program.roles[index].name or str(index + 1)) if program.roles else None


def fault_rows(config: Scenario, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return a row for each fault of a run in the order in which they took effect: when it began and ended, in s since
    the ranks' start, and what `analysis.statistics.fault_outcomes` tells of it beside costs of collectives."""
    instants_s: dict[tuple[str, int], float] = {
        (event["event"], event["fault"]): event["at_ns"] / 1e9 for event in events if "fault" in event
    }
    gpus, rows = config.program.ranks_of(config.fabric.gpus_per_site), []
    faults = rows_as_collectives(config).faults
    for outcome in fault_outcomes(events):
        index = outcome["number"] - 1
        fault = faults[index]
        if fault.kind == "agent killed":
            outcome["outcome"] = f"rank {gpus.index(int(fault.target))} ended"
        rows.append(
            {
                "number": outcome["number"],
                "at": fault.at,
                "what": outcome["what"],
                "began_s": instants_s["injected", index],
                "over_s": instants_s.get(("over", index)),
                **{name: outcome[name] for name in ("detected_s", "recovered_s", "outcome")},
            }
        )
    return rows


def _promises(config: Scenario, rounds: Sequence[Mapping[str, Sequence[int]]]) -> list[dict[str, Any]]:
    """Return each promised transfer with when it was due, and the latest of all rounds complete, in s after a round's
    beginning, and in how many rounds the promise was kept."""
    promises = []
    for one in config.transfers:
        took_s = [(of[one.job.name][1] - of[one.job.name][0]) / 1e9 for of in rounds if one.job.name in of]
        kept = sum(bool(one.kept(each_s)["kept"]) for each_s in took_s)
        promised = {"job": one.job.name, "outcome": one.outcome, "due_s": one.due_s, "rounds": len(took_s)}
        promises.append(promised | {"kept": kept, **({"latest_s": one.start_s + max(took_s)} if took_s else {})})
    return promises


def could_not_start(result: Mapping[str, Any]) -> bool:
    """Return whether the shells of all ranks ended because they could not run the command (POSIX, 2.8.2)."""
    return all(rank["status"] in _NOT_RUN for rank in result["ranks"])


def _killed_ranks(result: Mapping[str, Any]) -> set[int]:
    """Return the ranks that faults killed."""
    gpus = {one["gpu"]: one["rank"] for one in result["ranks"]}
    words = [fault["what"].split() for fault in result["faults"]]
    return {gpus[f"g{target}"] for kind, target, *what in words if (kind, what) == ("agent", ["killed"])}


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def failures(result: Mapping[str, Any], config: Scenario, folder: Path | None) -> list[str]:
    """Return a sentence for each failure in a run (a result of `result_of`), whose `folder` is None if it is not kept;
    none if all ranks ended with 0."""
    spec, sentences = config.program, list[str]()
    if result["ended_early"]:
        sentences.append(result["ended_early"])
    if result["jobs_error"]:
        sentences.append(f"the jobs ended before the program: {result['jobs_error']}")
    if result["deadline"]:
        sentences.append(f"the ranks were ended at the deadline of {spec.deadline_s:g} s (program.deadline)")
        if kept := result["kept_connections"]:
            sentences.append(
                f"{_names(kept)} listened and kept TCP connections when all others had ended: give their role "
                "`until`, in a [[program]] table, or end them"
            )
    if result["was_refused_mappings"]:
        sentences.append("this machine refused memory to a process of the VM, which was ended: free some memory")
    if names := result["exhausted_memory"]:
        count = f"{len(names):,} {'process' if len(names) == 1 else 'processes'} ({', '.join(sorted(set(names)))})"
        full = f"memory was full, of which sockets' buffers are a part, so Linux killed {count}"
        sentences.append(f"{full}: set program.memory above {format_size(spec.memory_bytes)}")
    by_status: dict[str, list[Mapping[str, Any]]] = {}
    killed = _killed_ranks(result)
    for rank in result["ranks"]:
        was_killed = rank["status"] == -signal.SIGKILL and rank["rank"] in killed
        if rank["status"] != 0 and not was_killed and not rank["stopped"]:
            by_status.setdefault(describe_status(rank["status"]), []).append(rank)
    for status, ranks in by_status.items():
        names = _names([rank["rank"] for rank in ranks])
        # A rank that failed has printed the reason last, and the first one made the others fail. The last line of a
        # rank that was killed has no such meaning.
        failed = [rank for rank in ranks if (rank["status"] or 0) > 0 and rank["last_line"]]
        first = min(failed, key=lambda rank: rank["end_s"], default=None)
        why = "" if first is None else f', rank {first["rank"]} after "{first["last_line"]}"'
        sentences.append(f"{names} {status}{why}" + (f": {folder / OUTPUT} has the output" if folder else ""))
    return sentences


def notes(result: Mapping[str, Any], config: Scenario) -> Iterator[str]:
    """Yield a sentence for each other thing that a user should know of a run."""
    spec = config.program
    yield from _notes_on_ranks(result["ranks"], spec)
    if spec.gpu is not None:
        yield from gpu_accounts.notes(result["gpu_accounts"])
        yield from script_steps.notes(result["script_steps"])
    began = {fault["number"] for fault in result["faults"]}
    for number, fault in enumerate(config.faults, 1):
        if number not in began and not fault.is_traced:
            yield f"fault[{number}], {fault.what}, did not begin: the program had ended before {fault.at}"
    yield from _notes_on_steps(result["steps_refused"], are_mixed=result["are_steps_mixed"])
    yield from _notes_on_promises(result["transfers"])
    for capture in result["captures"] or ():
        if capture["lost"]:
            yield f"{capture['lost']} packets of {capture['link']} are not in {capture['file']}: tcpdump lost them"
    if result["files_full"]:
        yield f"the files of the program filled the {spec.files_bytes:,} bytes of program.files"
    if result["processes_full"]:
        yield CROWDED.format(spec.processes)
    if result["files_left_out"]:
        yield f"{result['files_left_out']} of the program's files are not kept: not regular files, or too large"
    if result["files_error"]:
        yield f"the program's files could not be kept: {result['files_error']}"
    if result["unfinished_collectives"]:
        yield f"{result['unfinished_collectives']} collectives had not ended on all of their ranks, and are left out"
    if result["left_running"]:
        yield f"{result['left_running']} processes were still running after the ranks had ended, and were killed"
    if result["needed_mappings"]:
        names, most = " and ".join(result["needed_mappings"]), int(_MOST_MAPPINGS.read_text())
        yield (
            f"the memory of {names} is in more pieces than the {most:,} (vm.max_map_count) that this machine maps for "
            "a process at a time: page faults for them took wall time, and no virtual time"
        )


def _notes_on_steps(refused: tuple[int, str, int] | None, *, are_mixed: bool) -> Iterator[str]:
    """Yield a sentence on lines that tell no step, as `steps_refused` returns them, and on steps of unknown ranks."""
    if refused is not None:
        rank, line, count = refused
        more = f" and {count - 1:,} more such line{'s' * (count > 2)}" if count > 1 else ""
        tell = "tell" if count > 1 else "tells"
        allowed = "longhaul: step SECONDS, or longhaul: step SECONDS tokens NUMBER, both from 0 up"
        yield f"rank {rank} printed {format_value(line)}{more}, which {tell} no step; allowed: {allowed}"
    if are_mixed:
        yield (
            "a rank printed steps of more time than the run's, so they are those of several processes, which a "
            "launcher forwards: longhaul.report(step=SECONDS) of Python tells on which host each was"
        )


def _notes_on_promises(transfers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each promised transfer that was complete in a round."""
    for one in transfers:
        if one["rounds"]:
            due, latest = format_delay(one["due_s"]), format_delay(one["latest_s"])
            kept = f"kept in {one['kept']:,} of {one['rounds']:,} rounds, by {due} of a round"
            yield f"{one['job']}: promise {kept}; complete at {latest} at the latest"


def time_notes(config: Scenario, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the time that computing took; none of several runs if ranks took some by
    `longhaul.compute`, as their answer has it."""
    if config.run.is_real:
        return ["real time: computing took the time that this machine needs"]
    if not any(rank["computed_s"] is not None for result in results for rank in result["ranks"]):
        return [COMPUTING]
    return [] if len(results) > 1 else [*filter(None, [computing_sentence(results)])]


def computing_sentence(results: Sequence[Mapping[str, Any]]) -> str:
    """Return what part of its steps, or of its whole time if it has told none, is computing, by `longhaul.compute`, on
    the rank that took longest of those that computed, in each run; "" if none did. What is not computing is
    communication, and waiting for others."""
    parts = [(label, part) for label, part in zip(_told_apart(results), map(_computing, results), strict=True) if part]
    if not parts:
        return ""
    told = [f"{fixed(100 * share, 1)} % of {of}{label}" for label, (of, share) in parts]
    rest = "the rest is communication and waiting"
    if any(result["steps"] and not _computing_of_steps(result) for result in results):
        rest += ", before and between steps too; longhaul.report(step=SECONDS) of Python tells the share of a step"
    bound = [label.removeprefix(" at ") for label, (_, share) in parts if share > _BOUND]
    most = "" if len(parts) == 1 else ", less than half everywhere"
    if bound and len(parts) > 1:
        everywhere = len(bound) == len(parts)
        most = f", more than half {'everywhere' if everywhere else f'at {list_first(bound, _MOST_TOLD)} only'}"
    return f"computing (longhaul.compute) takes {list_first(told, _MOST_TOLD, separator='; ')}{most}; {rest}"


def _told_apart(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where each run was, in words, by what differs between them."""
    if len(results) < 2:
        return [""] * len(results)
    return [f" at {words}" for words in differing_words([one["label"] for one in results])]


def _computing(result: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return in words a time of the rank that took longest of those that computed, its steps or else all of its time,
    and the share of it in which it did; None if no rank computed. Threads that compute at once may fill the whole time,
    and no more."""
    if found := _computing_of_steps(result):
        return f"rank {found.rank}'s median step of {milliseconds(found.step_s)} ms", found.share
    ranks = [one for one in result["ranks"] if one["computed_s"] and one["end_s"]]
    took_s = {one["rank"]: one["end_s"] - (one["start_s"] or 0.0) for one in ranks}
    if not ranks or max(took_s.values()) <= 0:
        return None
    slowest = max(ranks, key=lambda one: took_s[one["rank"]])
    whole_s = took_s[slowest["rank"]]
    return f"rank {slowest['rank']}'s {whole_s:.3f} s", min(1.0, slowest["computed_s"] / whole_s)


def _computing_of_steps(result: Mapping[str, Any]) -> ComputedOfStep | None:
    """Return how much of a step is computing, on the rank whose steps took longest together; None if it is not known of
    that rank."""
    shares = {one["rank"]: one["computed_of_steps"] for one in result["ranks"]}
    steps_s = dict[int, list[float]]()
    for rank, _, step_s in result["steps"]:
        steps_s.setdefault(rank, []).append(step_s)
    took_s = {rank: sum(own) for rank, own in steps_s.items()}
    slowest = max(took_s, key=lambda rank: (round(took_s[rank], 9), shares[rank] is not None, -rank), default=None)
    share = None if slowest is None else shares[slowest]
    if slowest is None or share is None or result["are_steps_mixed"]:
        return None
    step_s = median(steps_s[slowest])
    return ComputedOfStep(slowest, step_s, min(step_s, share * mean(steps_s[slowest])))


def rates_notes(configs: Iterable[Scenario]) -> list[str]:
    """Return a sentence on the rates that are drawn at random, as runs of collectives tell it; none if none are."""
    sentence = drawn_sentence((build_fabric(config.fabric), config.conditions) for config in configs)
    return [f"{sentence[0].lower()}{sentence[1:].removesuffix('.')}"] if sentence else []


def _notes_on_ranks(ranks: Sequence[Mapping[str, Any]], spec: ProgramSpec) -> Iterator[str]:
    """Yield a sentence for everything that a rank has lost."""
    for rank in ranks:
        name = f"rank {rank['rank']}"
        if count := rank["discarded_bytes"]:
            yield f"{count:,} bytes of {name}'s output were discarded: program.output keeps {spec.output_bytes:,}"
        if count := rank["udp_receive_drops"]:
            yield (
                f"{name}'s host dropped {count:,} UDP datagrams, as a socket's receive buffer was full: "
                "let the program read sooner, or set a larger SO_RCVBUF"
            )


def write_results(state: RunState, result: Mapping[str, Any]) -> None:
    """Write the run's tables and figures; raises OSError."""
    from analysis.figures.program import picture  # slow to import, because of matplotlib

    write_text(state.folder / PROGRAM, json.dumps(result, indent=1) + "\n")
    write_text(state.folder / RANKS, ranks_csv(result))
    if result["steps"]:
        write_text(state.folder / STEPS, _csv(_OF_STEP, result["steps"]))
    if result["faults"]:
        columns = tuple(result["faults"][0])
        write_text(state.folder / FAULTS, _csv(columns, [[*fault.values()] for fault in result["faults"]]))
    if state.seen:
        seen = [(at_ns / 1e9, link, round(rate)) for at_ns, rates in state.seen for link, rate in rates.items()]
        write_text(state.folder / MEASURED, _csv(("time_s", "link", "rate_bps"), seen))
    if state.rounds:
        rows = [
            (number, name, begun_ns / 1e9, (ended_ns - begun_ns) / 1e9)
            for number, jobs in enumerate(state.rounds)
            for name, (begun_ns, ended_ns) in jobs.items()
        ]
        write_text(state.folder / JOBS, _csv(("round", "job", "start_s", "completion_s"), rows))
    if state.collectives:
        ended = collective_results.rows(state.collectives)
        write_text(state.folder / COLLECTIVES, _csv(collective_results.COLUMNS, ended))
    if result["script_steps"]:
        write_text(
            state.folder / script_steps.SCRIPT_STEPS, _csv(script_steps.COLUMNS, script_steps.rows(state.records))
        )
        exposed = script_steps.exposed_rows(state.records)
        write_text(state.folder / script_steps.EXPOSED, _csv(script_steps.EXPOSED_COLUMNS, exposed))
        _write_last_steps(state, result)
    if state.samples:
        write_text(state.folder / LINKS, links_csv(state))
        folder = state.folder / FIGURES
        folder.mkdir(exist_ok=True)
        picture(result, state.samples).write(folder)


def _write_last_steps(state: RunState, result: Mapping[str, Any]) -> None:
    """Write the timeline and the traces of the steps that all ranks have kept, if there are any."""
    from analysis.figures.program import which_of  # slow to import, because of matplotlib
    from analysis.figures.rank_timeline import picture
    from scenarios.program import script_trace

    shown = script_steps.window(state.records, len(result["ranks"]))
    if shown is not None:
        script_trace.write(shown, state.folder)
        bars = script_trace.timeline(shown, [rank["gpu"] for rank in result["ranks"]])
        (state.folder / FIGURES).mkdir(exist_ok=True)
        title = f"Ranks of a program, {which_of(result) or result['mode']}"
        picture(title, bars).write(state.folder / FIGURES)


def _in_use(state: RunState, link: int) -> dict[str, float | None]:
    """Return what a link carried and could have carried in the samples in which it carried anything, and while
    collectives of the script ran (None without any), in bytes."""
    used_bytes, possible_bytes = 0, 0.0
    for (_, sent, possible), (_, later_sent, later_possible) in pairwise(state.samples):
        if later_sent[link] > sent[link]:
            used_bytes += later_sent[link] - sent[link]
            possible_bytes += later_possible[link] - possible[link]
    sent_bytes, capacity_bytes = (None, None) if state.in_collectives is None else state.in_collectives
    return {
        "in_use_bytes": used_bytes,
        "in_use_capacity_bytes": possible_bytes,
        "in_collectives_bytes": None if sent_bytes is None else sent_bytes[link],
        "in_collectives_capacity_bytes": None if capacity_bytes is None else capacity_bytes[link],
    }


def links_csv(state: RunState) -> str:
    """Return links.csv: for every sample and WAN link, the bytes carried since the start, and the capacity in bytes."""
    rows = [
        (at_ns / 1e9, link["name"], sent[number], capacity[number])
        for at_ns, sent, capacity in state.samples
        for number, link in enumerate(state.links)
    ]
    return _csv(("time_s", "link", "bytes", "capacity_bytes"), rows)


_OF_RANK = (
    *("rank", "gpu", "role", "status", "stopped", "start_s", "end_s", "computed_s", "computed_of_steps"),
    *(*COUNTED, "discarded_bytes"),
)


def ranks_csv(result: Mapping[str, Any]) -> str:
    """Return ranks.csv: the ranks of a run (a result of `result_of`)."""
    return _csv(_OF_RANK, [[rank[name] for name in _OF_RANK] for rank in result["ranks"]])


def write_sweep(folder: Path, results: Sequence[Mapping[str, Any]], *, draws: bool = True) -> None:
    """Write the tables of configurations of a sweep, which differ in their `values`, and figures if it `draws`; raises
    OSError.

    Rows begin with the configuration's number and its values: those of ranks.csv, and in links.csv the bytes that each
    WAN link has carried and could have carried until the end.
    """
    write_text(folder / PROGRAM, json.dumps({"configurations": results}, indent=1) + "\n")
    keys = [*results[0]["values"]]
    for name, part, columns in ((RANKS, "ranks", _OF_RANK), (LINKS, "links", ("link", "bytes", "capacity_bytes"))):
        rows = [
            [result["configuration"], *result["values"].values(), *(row[column] for column in columns)]
            for result in results
            for row in result[part]
        ]
        write_text(folder / name, _csv(("configuration", *keys, *columns), rows))
    if any(result["steps"] for result in results):
        rows = [
            [result["configuration"], *result["values"].values(), *step]
            for result in results
            for step in result["steps"]
        ]
        write_text(folder / STEPS, _csv(("configuration", *keys, *_OF_STEP), rows))
        if draws:
            _draw_steps(folder, results)
    if draws and any(result["script_steps"] for result in results):
        _draw_parts(folder, results)


def _draw_parts(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write the figure of the parts of steps in each run."""
    from analysis.figures.program import parts  # slow to import, because of matplotlib

    (folder / FIGURES).mkdir(exist_ok=True)
    title = shared_words([result["label"] for result in results])
    parts([(result["values"], result["script_steps"]) for result in results], title).write(folder / FIGURES)


def _draw_steps(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write the figure of the step time against a swept key, a line for each combination of the others."""
    from analysis.figures.program import StepsOfRun, steps  # slow to import, because of matplotlib

    (folder / FIGURES).mkdir(exist_ok=True)
    title = shared_words([result["label"] for result in results])
    runs = [StepsOfRun(one["values"], one["step_s"], one["step_count"], _computing_of_steps(one)) for one in results]
    has_ranks = not any(one["are_steps_mixed"] for one in results)
    steps(runs, title, has_ranks=has_ranks).write(folder / FIGURES)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
