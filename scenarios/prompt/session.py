"""A session at the prompt: decides where the network runs, brings it up, runs the prompt, and always takes it down.

In virtual time the network is in the VM, and the user types lines on the host (`scenarios.prompt.dialogue`). On the
wall clock the network is on this machine's own kernel if that has everything needed, else in the VM, and the prompt
runs at the user's terminal.
``python -m scenarios.prompt.session SCENARIO FOLDER WHERE CALLER`` runs in the VM, as root. SCENARIO is a configuration
(`to_json`), FOLDER the session's run folder, WHERE the banner's line on where the network is, and CALLER, in JSON, the
user, environment and directory for programs of the verb `run`.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hosts.collectives.kinds import ALGORITHMS
from scenarios import vm
from scenarios.policies.decide import flows_without_path
from scenarios.policies.knowledge import ORACLE
from scenarios.policies.policy import MODES
from scenarios.program.watchdog import ADVICE, PROMPT, ClockWatchdog, virtual_ns, watched
from scenarios.prompt.dialogue import LineServer, checking_signals, history
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.consistency import with_paths
from scenarios.spec.jobs import TRANSFER
from scenarios.spec.scenario import Scenario, from_json, to_json
from scenarios.spec.te import TeSpec
from scenarios.testbed.launch import compile_modules
from scenarios.testbed.platform import VIRTUAL, Platform
from topologies.fabric.fabric import build_fabric

_ROOT = Path(__file__).resolve().parent.parent.parent
_VM_BYTES = 2 * 2**30
_WANTED_BYTES = (6 * 2**30, 4 * 2**30, 2 * 2**30)  # in virtual time sizes are not scaled
_LEAD_S = 0.08  # per GPU; generous, as the user of a prompt does not notice it
_LOOK_S = 0.5
_REACTION_S = 5.0  # processor time within which an interrupted command should end
_PROMPT_TIMES = 20  # without a terminal, the prompt itself may compute this many times as long as a command
_HISTORY = ".history"  # in the run folder: in the VM, nothing else outlives the session


def launch(scenario: Scenario, *, out: Path | None) -> int:
    """Run a session on the network of a scenario (of a sweep, of its first configuration); return an exit status.

    The prompt runs one collective at a time, under conditions that do not change by themselves and in a mode that knows
    the links as they are; the scenario's jobs, training or messages run by the verb `round`. Its times leave out the
    cost of changing ring and paths. The session's files go into a run folder, which is removed if it stays empty.
    Raises FolderError if that folder cannot be made, and vm.VMError if the VM cannot run.
    """
    from scenarios.experiment.run_folder import RunFolder
    from scenarios.testbed import own_kernel
    from scenarios.vm import terminal

    configurations = scenario.configurations()
    config, count = configurations[0], len(configurations)
    virtual = not config.run.is_real
    lacks = [] if virtual else own_kernel.lacking()
    memory_bytes = _memory_bytes(config) if virtual else _VM_BYTES
    if virtual or lacks:
        vm.check(memory_bytes=memory_bytes)
    run_folder = RunFolder.new(out) if out is not None else RunFolder.dated(f"{scenario.name}-prompt", datetime.now())
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))  # the terminal was closed
    # As in a shell: dying of Ctrl-\ would leave the terminal in the state that readline has set.
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    config, left_out = _supported(config)
    note = f"the first of {count} configurations of the sweep, " if count > 1 else ""
    note += "".join(f"without its {part}, " for part in left_out)
    try:
        if not virtual and not lacks:
            return serve(config, own_kernel=True, folder=run_folder.path, where=f"{note}on this machine's own kernel")
        where = f"{note}in the VM, in virtual time"
        if not virtual:
            lack = lacks[0].what.partition(",")[0]
            where = f"{note}in the VM (on this machine's own kernel it would need {lack}; --doctor shows more)"
        caller = _caller()
        # Mininet imports distutils; setuptools' version of it takes five times as long to load as Python's.
        inside = {"PYTHONPATH": str(_ROOT), "SETUPTOOLS_USE_DISTUTILS": "stdlib", "PYTHONHASHSEED": "0"}
        at_terminal, folder = terminal.is_terminal(), str(run_folder.path.resolve())
        print("longhaul: starting the VM", file=sys.stderr, flush=True)
        compile_modules()
        lines = LineServer(build_fabric(config.fabric), at_terminal=at_terminal, history=history_file(os.environ))
        with lines.editing() if virtual else nullcontext(), _watched(lines, config, at_terminal) as on_start:
            status = vm.run(
                [sys.executable, "-m", "scenarios.prompt.session", to_json(config), folder, where, json.dumps(caller)],
                clock="virtual" if virtual else "wall",
                memory_bytes=memory_bytes,
                results=run_folder.path,
                environment={**os.environ, **inside},
                stdin=None if virtual or at_terminal else 0,
                use_terminal=at_terminal,
                answer=lines if virtual else None,
                on_start=on_start if virtual else None,
                on_interrupt=lines.interrupt,
            )
        return status or int(lines.refused > 0)
    finally:
        _keep_history(run_folder.path)
        run_folder.abandon()
        run_folder.close()


def _supported(config: Scenario) -> tuple[Scenario, list[str]]:
    """Return a configuration without the parts that the prompt does not support, and words for each part left out."""
    left_out = []
    if config.classes:
        left_out.append("classes")
    config = replace(config, jobs=tuple(replace(job, traffic_class=None) for job in config.jobs), classes=())
    fabric = build_fabric(config.fabric)
    if flows_without_path(fabric, replace(config, jobs=()).workload):
        kind, (algorithm, *_) = next((kind, names) for kind in ALGORITHMS if (names := with_paths(fabric, kind)))
        left_out.append(f"collective, whose flows lack WAN paths (it begins with {kind} by {algorithm})")
        config = replace(config, collective=CollectiveSpec(kind=kind, algorithm=algorithm))
    if config.faults:
        left_out.append("faults (the verb link takes cables down)")
        config = replace(config, faults=())
    if config.control.knowledge != ORACLE:
        left_out.append("control.knowledge (modes know the links as they are)")
        config = replace(config, control=replace(config.control, knowledge=ORACLE))
    policies = tuple(policy for policy in config.policies if policy.knowledge == ORACLE)
    if policies != config.policies:
        left_out.append('policies whose knowledge is not "oracle"')
        config = replace(config, policies=policies, run=replace(config.run, modes=tuple(MODES)))
    if config.conditions.every_s:
        left_out.append("changes over time")
        config = replace(config, conditions=replace(config.conditions, every_s=None, interval_s=None))
    te = replace(config.te, demand=TeSpec.demand, sample_s=TeSpec.sample_s)
    if te != config.te:
        left_out.append("measured demands")
        config = replace(config, te=te)
    if config.control.counted:
        left_out.append("counted costs")
        config = replace(config, control=replace(config.control, counted=False))
    return config, left_out


@contextmanager
def _watched(lines: LineServer, config: Scenario, at_terminal: bool) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield the `on_start` callback for `vm.run`, which starts a thread that watches the VM until the context ends.

    The thread reports when a command stops the clock. It kills a command that does not react to Ctrl-C. It ends the VM
    if that does not help, or if nobody can press Ctrl-C; the context then raises VMError. Without a terminal the prompt
    itself has more time than a command, as it may have to compute.
    """
    reasons: list[str] = []  # why the thread has ended the VM
    patience_s, advice = config.program.patience_s, "Ctrl-C ends it" if at_terminal else ADVICE
    after_interrupt = partial(ClockWatchdog, _REACTION_S, "Ctrl-C has not ended it, so the session is ended")

    def watch(stop: Callable[[], None], over: threading.Event) -> None:
        watchdog, watched_line = ClockWatchdog(patience_s, advice), None
        while not over.wait(_LOOK_S):
            if not lines.is_answered:
                watched_line = None
                continue
            if watched_line != (line := (lines.answers, lines.is_interrupted)):
                watched_line = line
                watchdog = after_interrupt() if lines.is_interrupted else ClockWatchdog(patience_s, advice)
                may_end, was_killed = lines.is_interrupted, False
            if not watchdog.look(virtual_ns(), 0, began=True):
                continue
            if may_end and not was_killed and at_terminal and watchdog.end_cause():
                # Sometimes the kernel worker that would deliver Ctrl-C to the prompt never gets to run.
                _print_over_terminal(f"{watchdog.cause} does not react to Ctrl-C, and is killed")
                watchdog, was_killed = after_interrupt(), True
                continue
            if may_end or (not at_terminal and watchdog.cause not in (None, PROMPT)):
                reasons.append(str(watchdog.sentence))
                stop()
                return
            _print_over_terminal(str(watchdog.sentence))
            may_end = not at_terminal
            watchdog = ClockWatchdog(_PROMPT_TIMES * patience_s if may_end else patience_s, advice)

    try:
        with watched(watch) as on_start:
            yield on_start
    except vm.VMError:
        if reasons:
            raise vm.VMError(reasons[0]) from None
        raise


def _print_over_terminal(line: str) -> None:
    """Print a line on stderr, also while the terminal is in raw mode or the cursor is within a line."""
    print(f"\r\nlonghaul: {line}\r", file=sys.stderr, flush=True)


def _caller() -> dict[str, Any] | None:
    """Return user, environment and directory for the verb `run`; None if the VM cannot see the current directory."""
    from scenarios.program.session import of_caller
    from scenarios.vm.resources import working_directory

    try:
        directory = working_directory(None, results=None)
    except vm.VMUsageError:
        return None
    return None if directory == "/" else {**of_caller(), "directory": directory}


def serve(
    config: Scenario, *, own_kernel: bool, folder: Path, where: str, caller: Mapping[str, Any] | None = None
) -> int:
    """Keep the network of a configuration up for as long as the prompt is open; return an exit status.

    The status is 1 if lines do not come from a terminal and one of them failed.
    `own_kernel`: this is the machine's own kernel, and not the VM's. Captures go to `folder`, and `caller` is as for
    Prompt. Installs handlers of its own for SIGINT, SIGTERM and SIGHUP.
    """
    # These import Mininet, which is installed only where the network runs, and is slow to load.
    from scenarios.prompt import text
    from scenarios.prompt.arguments import PromptError
    from scenarios.prompt.shell import Prompt
    from scenarios.prompt.testbed import InteractiveTestbed
    from scenarios.testbed.testbed import Failure, Testbed

    signal.signal(signal.SIGINT, _interrupt_once)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    virtual = not config.run.is_real
    platform = VIRTUAL if virtual else Platform.real(config.run.scale, own_kernel=own_kernel)
    up = threading.Event()  # once set, parts that come up are not reported

    def tell(part: str) -> None:
        if not up.is_set():
            _report(f"bringing up {part}")

    try:
        with nullcontext() if virtual else checking_signals(), platform.files() as files:
            platform = replace(platform, folder=files)
            if not virtual:
                platform = replace(platform, lead_s=max(platform.lead_s, _LEAD_S * config.gpus))
            # Training and messages have no size that a verb could give: `round` runs them as they are.
            own = None if config.collective.kind in ALGORITHMS else config.collective
            at_first = replace(config, jobs=(), collective=config.collective if own is None else CollectiveSpec())
            with Testbed(at_first, platform=platform, tell=tell, at_prompt=True) as testbed:
                requests = tuple(job for job in config.jobs if job.kind == TRANSFER)
                jobs = tuple(job for job in config.jobs if job.kind != TRANSFER)
                interactive = InteractiveTestbed(testbed, requests, jobs, own)
                up.set()
                banner = text.banner(testbed.fabric, platform.scale, where=where, folder=str(folder))
                # Without a terminal, stdout has nothing but answers.
                print(banner, file=sys.stdout if os.isatty(0) else sys.stderr, flush=True)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                try:
                    earlier = history(history_file(os.environ), folder / _HISTORY)
                    with earlier if os.isatty(0) and not virtual else nullcontext():
                        prompt = Prompt(interactive, folder=folder, lines_from_host=virtual, caller=caller)
                finally:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    _report("taking everything down again")
        return 1 if prompt.failures and not os.isatty(0) else 0
    except (*Failure, PromptError) as error:
        _report(str(error))
        return 1
    except KeyboardInterrupt:
        _report("interrupted")
        return 128 + signal.SIGINT


def _memory_bytes(config: Scenario) -> int:
    """Return the memory of the VM: the largest of `_WANTED_BYTES` that fits the host, or what the scenario needs."""
    from scenarios.engines.emulation import memory_bytes

    least = memory_bytes(config)
    for wanted in _WANTED_BYTES:
        if wanted <= least:
            break
        try:
            vm.check(memory_bytes=wanted)
        except vm.NoRoomError:
            continue
        return wanted
    return least


def _report(line: str) -> None:
    print(f"longhaul: {line}", file=sys.stderr, flush=True)


def _interrupt_once(*_: object) -> NoReturn:
    """Handle Ctrl-C while the network comes up; a second one must not cut the clean-up short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def history_file(environment: Mapping[str, str]) -> Path:
    """Return the file with the user's history of earlier prompts."""
    home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "/"), ".local", "state"))
    return Path(home, "longhaul", "history")


def _keep_history(folder: Path) -> None:
    """Move the history that a session has left in `folder` to the user's history file."""
    left, target = folder / _HISTORY, history_file(os.environ)
    if left.exists():
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(left, target)
            target.chmod(0o600)
        left.unlink()


def main(arguments: list[str]) -> int:
    """Serve one session in the VM."""
    config, folder, where, caller = arguments
    return serve(from_json(config), own_kernel=False, folder=Path(folder), where=where, caller=json.loads(caller))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
