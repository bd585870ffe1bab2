"""A program's run inside the VM, as root: ``python -m scenarios.program.guest REQUEST``.

REQUEST is JSON: the configuration (`to_json`), the run folder, the working directory, and the environment and the user
of the program. Brings the network up, starts the ranks, and prints one JSON object per line as it goes: {"doing":
WORDS} while the network comes up; {"began": ...}; {"rank", "stream", "text" (base64)} for output; {"rank", "ended",
"at_ns", "stopped"} for each rank, which was `stopped` if it only waited for others that had ended; {"at_ns", "bytes",
"capacity_bytes"} for each sample of the WAN's ports; {"event": ...} for the events of faults
(`analysis.statistics.fault_outcomes`); {"at_ns", "seen"} for the rates of links that the counters of ports have shown
in a row of conditions, or the messages of a collective; {"round": ...} for each round of jobs, with the beginning and
the end of each job; {"collective": ...} for each collective of a script that uses the backend `longhaul`; {"over": ...}
at the end. Times are in ns since the ranks were started.
"""

import base64
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hosts.agent.clock import sleep_until
from scenarios.policies.conditions import conditions_of
from scenarios.program.collective_server import CollectiveServer
from scenarios.program.collectives import Group, Surroundings
from scenarios.program.condition_changes import ProgramTimeline
from scenarios.program.fault_times import FaultTimes
from scenarios.program.job_rounds import JobRounds
from scenarios.program.kernel_log import memory_troubles
from scenarios.program.marks import Marks
from scenarios.program.preload import Preloaded, PreloadError
from scenarios.program.ranks import FILES, RankFiles, User, start_shell
from scenarios.program.rows import rows_as_collectives
from scenarios.program.servers import LOOK_NS, Endings, HostSockets, useless
from scenarios.program.sockets import rate_bounds_bps, set_up_sockets
from scenarios.signals import guarded
from scenarios.spec.faults import Fault, dead_cables
from scenarios.spec.program import COLLECTIVES, FAKE, LONGHAUL, PRELOADING, ProgramSpec, gpu_variables, variables
from scenarios.spec.roles import Role
from scenarios.spec.scenario import Scenario, from_json
from scenarios.testbed.__main__ import leave, tell
from scenarios.testbed.capture import CAPTURES, CaptureError, Captures
from scenarios.testbed.path_warmup import warm
from scenarios.testbed.platform import VIRTUAL, Platform
from scenarios.testbed.testbed import Failure, Testbed
from topologies.fabric.failures import cable
from topologies.fabric.ports import links_in_grain
from topologies.linux import make_timers_exact
from topologies.shaping.classes import classes_of
from topologies.shaping.frames import TCP_FRAMES

_FIRST_S = 1e-9  # how long the first rank runs before the others start
_GRACE_S = 2.0  # from SIGTERM to SIGKILL
_MAX_SAMPLES = 4096  # after so many samples, the interval doubles
_CHUNK = 65536
_NO_PROCESS = b"Resource temporarily unavailable", b"start new thread", b"Cannot fork"  # said where a fork failed
_YIELDS = 3  # yields of the processor, for the threads that carry the output


def main(arguments: list[str]) -> int:
    """Run a program and print its records; return an exit status, which is 0 also for a program that fails."""
    request = json.loads(arguments[0])
    scenario = from_json(request["setting"])
    config = rows_as_collectives(scenario)
    platform = Platform.real(config.run.scale, own_kernel=False) if config.run.is_real else VIRTUAL
    Path("/proc/sys/vm/panic_on_oom").write_text("0")  # a program that exhausts the memory must not end the VM
    try:
        with Testbed(
            config, platform=platform, tell=tell, fair_links=fair_links(config), has_agents=bool(config.jobs)
        ) as testbed:
            tell("the controller's paths")
            timeline = ProgramTimeline(testbed, config)
            if timeline.changes_paths:
                testbed.apply_rules_together()
                warm(testbed.share, config.program.ranks_of(config.fabric.gpus_per_site))
            # The jobs come first: the sockets' settings must not change their connections.
            jobs = JobRounds(testbed) if config.jobs else None
            if jobs is not None:
                timeline.connected()
            lowest_bps, fastest_bps = rate_bounds_bps(config, testbed.conditions)
            set_up_sockets(testbed, fastest_bps, lowest_bps=lowest_bps, paths_change=timeline.changes_paths)
            testbed.tell = _say_nothing  # from now on records are events of the run
            with (
                testbed.host_ports(fastest_bps),
                Run(testbed, config.program, request, timeline=timeline, jobs=jobs, coupled=scenario) as run,
            ):
                run.wait()
                _emit(over=run.end())
            leave(platform)
    except (CaptureError, PreloadError, *Failure) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the program cannot be started: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _say_nothing(_: str) -> None:
    """Print nothing, in the place of `tell`."""


class Run:
    """Runs the ranks of a program; as a context manager, starts them, and leaves no process of theirs behind.

    `emit` is called with the fields of each record. Without a timeline, conditions and paths stay as they are, and
    nothing fails. With `coupled`, the policy of that scenario chooses for the collectives of a script that uses the
    backend `longhaul`.
    """

    def __init__(
        self,
        testbed: Testbed,
        program: ProgramSpec,
        request: Mapping[str, Any],
        *,
        timeline: ProgramTimeline | None,
        jobs: JobRounds | None = None,
        coupled: Scenario | None = None,
        emit: Callable[..., object] | None = None,
    ) -> None:
        self._testbed, self._spec, self._folder = testbed, program, Path(request["folder"])
        self._timeline, self._jobs, self._emit = timeline, jobs, emit or _emit
        self._environment: Mapping[str, str] = request["environment"]
        self._user, self._directory = User(**request["user"]), Path(request["directory"])
        placed = self._spec.roles_of(testbed.fabric.spec.gpus_per_site)
        self._gpus, self._role_of = [gpu for gpu, _ in placed], [role for _, role in placed]
        self._roles = self._spec.all_roles
        self._to_start = _starts(self._roles, self._role_of)
        self._endings, self._stopped = Endings(), dict[int, int | None]()
        self._kept_connections: list[int] = []  # ranks that only waited for others when the deadline came
        self._shared = links_in_grain(testbed.fabric).all
        self._classes = classes_of(testbed.fabric)
        ports = {port.link: port.interface for port in self._classes if self._shared[port.link].kind == "wan"}
        self._wan_links = list(ports)
        self._links = [{"name": self._shared[link].name, "interface": interface} for link, interface in ports.items()]
        self._counters = [Path("/sys/class/net", port, "statistics/tx_bytes") for port in ports.values()]
        self._rank_files = RankFiles(
            testbed.platform.folder / "program",
            directory=self._directory,
            user=self._user,
            ranks=[testbed.fabric.gpus[gpu].name for gpu in self._gpus],
            size_bytes=self._spec.files_bytes,
            hosts={gpu.name: gpu.ip for gpu in testbed.fabric.gpus},
        )
        self._selector = selectors.SelectSelector()  # other selectors round timeouts up to a millisecond
        self._running: dict[int, Any] = {}
        self._streams = 0
        self._kept_bytes: dict[tuple[int, str], int] = {}
        self._discarded_bytes: dict[tuple[int, str], int] = {}
        self._captures: Captures | None = None
        self._coupled = coupled
        self._shown_bps: Any = np.empty(0)  # what ports had shown before the last plan
        self._server: CollectiveServer | None = None
        self._preloaded: Preloaded | None = None
        self._counted_before = [self._counted(gpu) for gpu in self._gpus]
        self._sent_bytes_before = self._sent_bytes()
        self._beginning_ns = self._since_ns = 0
        self._faults = FaultTimes(
            testbed,
            self._record_event,
            kill_rank=self._kill_rank,
            changed=self._adapt_to_faults,
            is_busy=lambda: timeline is not None and timeline.is_routing,
        )
        self._marks = Marks(testbed.config.faults if timeline is not None else ())
        self._announced: dict[int, Fault] = {}  # the faults that have got their times from collectives
        self._events: list[dict[str, Any]] = []  # not emitted yet
        self._had_controller = True
        self._rates_bps = self._carried_bps()
        self._capacity_bytes = np.zeros(len(self._wan_links))
        self._collective_runs, self._in_collectives = False, np.zeros((2, len(self._wan_links)))
        self._full = self._was_refused = False
        self._limit = program.processes * len(self._gpus)
        self._tasks_before = self._most_tasks = 0

    def __enter__(self) -> "Run":
        try:
            with _deferring_interrupts():
                self._rank_files.make()
                if self._coupled is not None and self._timeline is not None:
                    self._server = self._serve_collectives(self._coupled, self._timeline)
                if self._spec.preload:
                    self._preloaded = self._preload()
                self._begin()
            self._start_ranks(0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        make_timers_exact()
        self._captures = Captures(self._testbed.share, self._spec.capture, self._folder / CAPTURES)
        if self._spec.capture:
            self._testbed.restore_links()
        self._testbed.drops()
        if self._has_faults:
            self._faults.advance(0)  # what fails from the beginning on
            self._faults.settle()
            self._testbed.lost_packets()
        begins_ns = None if self._jobs is None else self._jobs.start()
        self._tasks_before = _tasks()
        if begins_ns is not None:
            sleep_until(begins_ns)
        self._ports_before = [HostSockets.of(self._host_pid(rank)).open_ports for rank in range(len(self._gpus))]
        self._beginning_ns = time.monotonic_ns()
        if self._spec.date_ns is not None:
            time.clock_settime_ns(time.CLOCK_REALTIME, self._spec.date_ns)
        self._emit(began=True, links=self._links, beginning_ns=self._beginning_ns)
        if self._timeline is not None:  # what probes have shown
            self._emit_seen(0, self._timeline.seen_bps)
        self._sample()

    def _start_ranks(self, now_ns: int) -> int | None:
        """Start the ranks that are due at this time; return when others are due next, None for never."""
        while self._to_start and self._to_start[0][0] <= now_ns:
            _, ranks = self._to_start.pop(0)
            with _deferring_interrupts():  # Ctrl-C must not come between a rank's start and its registration
                for rank in ranks:
                    self._start(rank)
            # Rank 0 listens before the others connect: a rank of torch that is refused retries after a random time.
            time.sleep(_FIRST_S)
        return self._to_start[0][0] if self._to_start else None

    def _preparing(self, rank: int, host: int) -> Callable[[], None]:
        """Return the function that moves a new process into the environment of a rank on a host, given by its pidfd."""
        return partial(
            self._rank_files.prepare,
            rank,
            host=host,
            hidden=str(self._folder),
            limit=self._limit,
            memory_bytes=None if self._spec.tensors == FAKE else self._spec.memory_bytes,
        )

    def _preload(self) -> Preloaded:
        """Load the modules of `program.preload`, in an environment like that of rank 0."""
        self._emit(doing=f"the modules {', '.join(self._spec.preload)}")
        host = os.pidfd_open(self._host_pid(0))
        try:
            with self._rank_files.listen(None) as listener:
                return Preloaded(
                    self._spec.preload,
                    self._spec.interpreter,
                    listener=listener,
                    user=self._user,
                    environment=self._variables(0),
                    directory=self._directory,
                    prepare=self._preparing(0, host),
                )
        finally:
            os.close(host)

    def _start(self, rank: int) -> None:
        host = os.pidfd_open(self._host_pid(rank))
        prepare = self._preparing(rank, host)
        role = self._roles[self._role_of[rank]]
        try:
            process = start_shell(
                role.command,
                host=host,
                user=self._user,
                environment=self._variables(rank),
                prepare=prepare,
                stdin=role.input,
            )
        finally:
            os.close(host)
        self._running[rank] = process
        pidfd = os.pidfd_open(process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ, (rank, None))
        for name in ("stdout", "stderr"):
            self._selector.register(getattr(process, name), selectors.EVENT_READ, (rank, name))
            self._streams += 1

    def __exit__(self, *_: object) -> None:
        with _deferring_interrupts():
            for process in self._running.values():
                process.kill()  # a rank that has just been started may still be root's, out of reach of `kill_all`
                process.wait()  # otherwise its host could not end
            self._user.kill_all()
            if self._preloaded is not None:
                self._preloaded.close()
            self._stop_captures()
            if self._server is not None:
                self._server.close()
            self._rank_files.close()

    def _serve_collectives(self, scenario: Scenario, timeline: ProgramTimeline) -> CollectiveServer:
        """Answer the ranks that ask for collectives, which the scenario's policy chooses for."""
        fabric, mode = self._testbed.fabric, scenario.mode(scenario.run.modes[0])
        now = Surroundings(
            believed_bps=lambda: timeline.believed_bps(self._faults.active()),
            true_bps=lambda: timeline.rates_bps,
            dead=lambda: dead_cables(self._faults.active(), fabric),
            mean_bps=timeline.mean_bps,
            delays_s=self._testbed.router.delays_s,
            look=partial(self._look_at_ports, timeline),
            install_s=2 * max(scenario.control_delays_s, default=0.0),
            learn=None if timeline.learn is None else partial(self._learn, timeline.learn),
            shared_delays_s=timeline.shared_delays_s,
        )

        def new_group(ranks: Sequence[int]) -> Group:
            gpus = [self._gpus[rank] for rank in ranks]
            return Group(fabric, now, mode=mode, spec=scenario.collective, gpus=gpus)

        return CollectiveServer(
            {rank: self._rank_files.listen(rank) for rank in range(len(self._gpus))},
            self._selector,
            paths=timeline,
            new_group=new_group,
            record=self._record_collective,
            announced=self._begin_announced_faults,
        )

    def _learn(self, learn: Callable[[Any], None], seen_bps: Any) -> None:
        """Have the policy learn the rates that messages have shown. Without a controller nobody installs the paths that
        they were to take."""
        if self._faults.has_controller:
            learn(seen_bps)
            self._emit_seen(self._now_ns(), seen_bps)

    def _look_at_ports(self, timeline: ProgramTimeline) -> None:
        """Have a policy with measured ports learn what they have shown until now."""
        seen_bps = timeline.before_collective()
        if not np.array_equal(seen_bps, self._shown_bps, equal_nan=True):
            self._shown_bps = seen_bps
            self._emit_seen(self._now_ns(), seen_bps)

    def _emit_seen(self, at_ns: int, seen_bps: Any) -> None:
        """Emit rates of links that a policy has measured, NaN where none was."""
        seen = zip(self._shared, seen_bps, strict=False)  # none without measured knowledge
        if rates := {link.name: float(rate) for link, rate in seen if not np.isnan(rate)}:
            self._emit(at_ns=at_ns, seen=rates)

    def _record_collective(self, ended: Mapping[str, Any]) -> None:
        """Emit a collective of the script, with times since the ranks' start and the names of GPUs and paths."""
        fabric, begun = self._testbed.fabric, self._beginning_ns
        gpus, paths = fabric.gpus, fabric.paths
        links = {fabric.links[link].name for _, _, path in ended["crossings"] for link in paths[path].links}
        self._emit(
            collective={
                **ended,
                "placement": [gpus[self._gpus[rank]].name for rank in ended["placement"]],
                "links": sorted(links),
                "crossings": [[gpus[a].name, gpus[b].name, paths[path].name] for a, b, path in ended["crossings"]],
                "asked_ns": [at_ns - begun for at_ns in ended["asked_ns"]],
                "begun_ns": [at_ns - begun for at_ns in ended["begun_ns"]],
                "ended_ns": ended["ended_ns"] - begun,
            }
        )

    def _stop_captures(self) -> list[dict[str, Any]]:
        stopped = [] if self._captures is None else self._captures.stop()
        return [capture | {"file": f"{CAPTURES}/{capture['file']}"} for capture in stopped]

    def _variables(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank."""
        set_by_run = variables(self._testbed.fabric, self._gpus, rank)
        role = self._roles[self._role_of[rank]]
        if self._server is not None:
            set_by_run["LONGHAUL_COLLECTIVES"] = COLLECTIVES
            if self._spec.backend == LONGHAUL:
                set_by_run["LONGHAUL_BACKEND"] = LONGHAUL
        set_by_run |= gpu_variables(self._spec, rank)
        found = {**self._environment, **set_by_run, **dict(self._spec.env), **dict(role.env)}
        if self._spec.preload:
            found["PYTHONPATH"] = ":".join([str(PRELOADING), *filter(None, [found.get("PYTHONPATH")])])
        return found

    def wait(self) -> None:
        """Wait until all ranks have ended; end them at the deadline by SIGTERM, and `_GRACE_S` later by SIGKILL."""
        interval_ns, samples = round(self._spec.sample_s * 1e9), 0
        next_ns, deadline_ns = interval_ns, round(self._spec.deadline_s * 1e9)
        signals = [signal.SIGTERM, signal.SIGKILL]
        while self._running or self._to_start:
            now_ns = self._now_ns()
            start_ns = self._start_ranks(now_ns)
            if now_ns >= deadline_ns and signals:
                self._to_start, start_ns = [], None
                if signals[0] == signal.SIGTERM:
                    self._kept_connections = sorted(
                        self._endings.since_ns.keys() & self._running.keys() - self._stopped.keys()
                    )
                self._signal_ranks(signals.pop(0), now_ns)
                deadline_ns += round(_GRACE_S * 1e9)
            fault_ns = self._apply_faults(now_ns)
            change_ns = self._apply_conditions(now_ns)
            read_ns = self._read_ports(now_ns)
            if now_ns >= next_ns:
                self._sample()
                self._emit_rounds()
                samples += 1
                if samples % _MAX_SAMPLES == 0:
                    interval_ns *= 2
                next_ns = now_ns - now_ns % interval_ns + interval_ns
            end_ns = self._end_servers(now_ns)
            due_ns = [next_ns, deadline_ns if signals else None, fault_ns, change_ns, read_ns, start_ns, end_ns]
            until_ns = min(at_ns for at_ns in due_ns if at_ns is not None)
            self._process_events(max(0, until_ns - self._now_ns()) / 1e9)
            self._note_collectives()

    def _end_servers(self, now_ns: int) -> int | None:
        """End the ranks that only wait for ranks which have ended; return when to look at them again, None for never.

        They get SIGTERM, and `_GRACE_S` later all processes on their hosts SIGKILL.
        """
        if len(self._roles) == 1 or len(self._running) + len(self._waiting) == len(self._gpus):
            return None  # nobody has ended
        for rank, kill_ns in self._stopped.items():
            if rank in self._running and kill_ns is not None and now_ns >= kill_ns:
                self._kill_rank(self._gpus[rank])
                self._stopped[rank] = None
        running = {rank for rank in self._running if rank not in self._stopped}
        sockets = {rank: HostSockets.of(self._host_pid(rank)) for rank in running}
        listening = {rank for rank in running if sockets[rank].open_ports - self._ports_before[rank]}
        found = useless(self._roles, self._role_of, running, self._waiting, listening)
        connected = {rank for rank in found if sockets[rank].connections}
        declared = {rank for rank in found if self._roles[self._role_of[rank]].until is not None}
        for rank in self._endings.due(found, connected, declared, now_ns):
            self._stopped[rank] = now_ns + round(_GRACE_S * 1e9)
            self._signal_rank(rank, signal.SIGTERM)
        kills_ns = [ns for rank, ns in self._stopped.items() if rank in self._running and ns is not None]
        looks_ns = [now_ns + LOOK_NS] if found else []
        return min([*kills_ns, *looks_ns], default=None)

    @property
    def _waiting(self) -> list[int]:
        """The ranks that are to start later."""
        return [rank for _, ranks in self._to_start for rank in ranks]

    def _host_pid(self, rank: int) -> int:
        return self._testbed.network.host_pids[self._gpus[rank]]

    def _apply_faults(self, now_ns: int) -> int | None:
        """Inject and end the faults of this instant; return when the next one is due, None for never."""
        if not self._has_faults:
            return None
        self._faults.advance(now_ns)
        self._emit_events()
        return self._faults.next_ns(now_ns)

    @property
    def _has_faults(self) -> bool:
        return self._timeline is not None and bool(self._testbed.config.faults)

    def _adapt_to_faults(self) -> None:
        """Put rates and paths into force as they are after a fault has begun or ended, or with a new controller."""
        assert self._timeline is not None
        self._add_capacity()
        before, self._had_controller = self._had_controller, self._faults.has_controller
        anew = self._had_controller and not before
        self._timeline.struck(self._faults.active(), routes=self._had_controller, anew=anew)
        self._rates_bps = self._carried_bps()

    def _kill_rank(self, gpu: int) -> None:
        """Kill all processes of the rank on this GPU."""
        host = os.pidfd_open(self._testbed.network.host_pids[gpu])
        try:
            self._user.kill_all(host)
        finally:
            os.close(host)

    def _record_event(self, event: str, **fields: Any) -> None:
        """Record an event of a fault, with the present time."""
        self._events.append({"event": event, "collective": 0, "at_ns": time.monotonic_ns(), **fields})

    def _emit_events(self) -> None:
        """Emit the recorded events, with times since the ranks' start."""
        events, self._events = self._events, []
        for event in events:
            times = {name: event[name] - self._beginning_ns for name in ("at_ns", "detected_ns") if name in event}
            outages = [self._since_start(outage) for outage in event.get("outages", ())]
            self._emit(event=event | times | ({"outages": outages} if outages else {}))

    def _emit_rounds(self) -> None:
        """Emit the rounds of jobs that have ended."""
        for jobs in self._jobs.take(self._beginning_ns) if self._jobs is not None else ():
            self._emit(round=jobs)

    def _since_start(self, outage: Mapping[str, Any]) -> dict[str, Any]:
        """Return an outage of the controller's with times since the ranks' start; 0 stays "not yet"."""
        times = {name: outage[name] and outage[name] - self._beginning_ns for name in ("seen_ns", "done_ns")}
        return {**outage, **times}

    def _apply_conditions(self, now_ns: int) -> int | None:
        """Put the conditions of this instant into force; return when they change next, None for never."""
        if self._timeline is None:
            return None
        if self._timeline.next_ns is not None and now_ns >= self._timeline.next_ns:
            self._add_capacity()
            self._timeline.advance(now_ns, self._faults.active(), routes=self._faults.has_controller)
            self._emit_seen(now_ns, self._timeline.seen_bps)
            self._rates_bps = self._carried_bps()
        return self._timeline.next_ns

    def _read_ports(self, now_ns: int) -> int | None:
        """Read the counters of ports for a mode that measures them; return when to read next, None for never."""
        if self._timeline is None:
            return None
        return self._timeline.read(now_ns, reaches=self._faults.has_controller)

    def _carried_bps(self) -> Any:
        """Return the rates of the WAN links as shaped (after rate scaling), [WAN links] bit/s."""
        if self._timeline is None:
            return np.zeros(len(self._wan_links))
        carried_bps = self._testbed.platform.scale.rates_bps(self._timeline.rates_bps)[self._wan_links]
        dead = dead_cables(self._faults.active(), self._testbed.fabric)
        down = [cable(self._shared[link].src, self._shared[link].far_end) in dead for link in self._wan_links]
        return np.where(down, 0.0, carried_bps)

    def _add_capacity(self) -> int:
        """Add what the WAN links could have carried since the last call to their capacities; return the instant. Rates
        are those of payload, and ports count whole frames, so a capacity is that of full frames."""
        now_ns = self._now_ns()
        self._capacity_bytes += TCP_FRAMES.wire_per_payload * self._rates_bps * (now_ns - self._since_ns) / 8e9
        self._since_ns = now_ns
        return now_ns

    def end(self) -> dict[str, Any]:
        """Kill the processes that the ranks have left running, and return the fields of the record "over"."""
        self._sample()
        if self._server is not None and not self._collective_runs:
            self._emit(in_collectives=self._in_collectives.tolist())
        jobs_error = None
        if self._jobs is not None:
            self._jobs.stop()
            self._emit_rounds()
            jobs_error = self._jobs.error
        captures = self._stop_captures()
        at_ns, left = self._now_ns(), self._user.kill_all()
        while self._streams:
            self._process_events(None)
        drops = self._testbed.drops()
        if self._timeline is not None:
            self._timeline.finish()
        if self._has_faults:
            self._faults.record_outages()
            self._record_event("ended", why="")
            self._emit_events()
            drops = max(drops, self._testbed.lost_packets())
        full, computed = self._full or self._rank_files.is_full, self._rank_files.computed()
        try:
            kept, lost = self._rank_files.keep(self._folder / FILES, most_bytes=self._spec.files_bytes)
            unkept = ""
        except OSError as error:
            kept, lost, unkept = 0, 0, error.strerror or str(error)
        timeline_fields: dict[str, Any] = {}
        if self._timeline is not None:
            timeline_fields = {
                "openflow_messages": self._timeline.messages,
                "changes": self._timeline.count,
                "rerouted": self._timeline.rerouted,
            }
        return timeline_fields | {
            "at_ns": at_ns,
            "jobs_error": jobs_error,
            "captures": captures,
            "left_running": left,
            "unfinished_collectives": 0 if self._server is None else self._server.unfinished(),
            "kept_connections": self._kept_connections,
            "drops": drops,
            "counted": [
                {name: count - before[name] for name, count in self._counted(gpu).items()}
                for gpu, before in zip(self._gpus, self._counted_before, strict=True)
            ],
            "discarded": [[rank, name, count] for (rank, name), count in self._discarded_bytes.items()],
            "files": kept,
            "files_left_out": lost,
            "files_error": unkept,
            "full": full,
            "computed": computed,
            "crowded": self._is_crowded,
            **memory_troubles(),
        }

    @property
    def _is_crowded(self) -> bool:
        """Whether the ranks have had as many processes and threads as they may, or said so: the most of them may have
        been there only within an instant, unnoticed."""
        return self._most_tasks >= self._limit or (self._was_refused and 2 * self._most_tasks >= self._limit)

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._beginning_ns

    def _signal_ranks(self, number: signal.Signals, now_ns: int) -> None:
        self._emit(deadline_ns=now_ns, signal=number.name)
        if number == signal.SIGKILL:
            self._user.kill_all()
            return
        for rank in self._running:
            self._signal_rank(rank, number)

    def _signal_rank(self, rank: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the rank has just ended
            os.killpg(self._running[rank].pid, number)

    def _process_events(self, wait_s: float | None) -> None:
        """Wait up to `wait_s` (None: for ever) for output or the end of a rank, and process what has come."""
        events = self._selector.select(wait_s)
        self._most_tasks = max(self._most_tasks, _tasks() - self._tasks_before)
        for key, _ in events:
            if callable(key.data):
                key.data()
                continue
            rank, name = key.data
            if name is None:
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
                status = self._running.pop(rank).wait()
                self._emit(rank=rank, ended=status, at_ns=self._now_ns(), stopped=rank in self._stopped)
                self._full = self._full or self._rank_files.is_full
                continue
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if name == "stdout":
                self._begin_marked_faults(rank, data)
            if data:
                self._forward_output(rank, name, data)
            else:
                self._selector.unregister(key.fileobj)
                self._streams -= 1

    def _begin_marked_faults(self, rank: int, data: bytes) -> None:
        """Give the faults whose marks are in this output of a rank their time, which is now."""
        for index in self._marks.found(rank, data):
            assert self._timeline is not None
            fault = replace(self._testbed.config.faults[index], marked_ns=self._now_ns())
            self._timeline.begin(index, fault)
            self._faults.begin(index, fault)

    def _begin_announced_faults(self, number: int) -> None:
        """Begin and end the faults that do so before this collective of a script, and give those within it their time,
        which is now."""
        now_ns = self._now_ns()
        for index, fault in enumerate(self._testbed.config.faults):
            if not fault.announced or self._timeline is None:
                continue
            if fault.collective == number:
                begun = self._announced[index] = replace(fault, marked_ns=now_ns)
                self._timeline.begin(index, begun)
                self._faults.begin(index, begun)
            elif fault.is_over(number) and index in self._announced:
                begun = self._announced.pop(index)
                lasts_s = max(0, now_ns - begun.begins_ns) / 1e9
                self._timeline.begin(index, replace(begun, lasts_s=lasts_s))
                self._faults.finish(index, now_ns)
        self._apply_faults(now_ns)

    def _forward_output(self, rank: int, name: str, data: bytes) -> None:
        """Pass on what a rank printed up to its limit; the rest is read and dropped, so that the rank never blocks."""
        self._was_refused = self._was_refused or any(words in data for words in _NO_PROCESS)
        kept = self._kept_bytes.get((rank, name), 0)
        part = data[: max(0, self._spec.output_bytes - kept)]
        self._kept_bytes[rank, name] = kept + len(part)
        if len(part) < len(data):
            self._discarded_bytes[rank, name] = self._discarded_bytes.get((rank, name), 0) + len(data) - len(part)
        if part:
            self._emit(rank=rank, stream=name, text=base64.b64encode(part).decode())

    def _sample(self) -> None:
        sent = [now - before for now, before in zip(self._sent_bytes(), self._sent_bytes_before, strict=True)]
        self._emit(at_ns=self._add_capacity(), bytes=sent, capacity_bytes=self._capacity_bytes.tolist())

    def _note_collectives(self) -> None:
        """Count what WAN links carry, and could carry, while any collective of a script runs."""
        runs = self._server is not None and self._server.runs()
        if runs == self._collective_runs:
            return
        self._collective_runs = runs
        self._add_capacity()
        sent = np.subtract(self._sent_bytes(), self._sent_bytes_before)
        counted = np.array([sent, self._capacity_bytes], dtype=np.float64)
        self._in_collectives += -counted if runs else counted

    def _sent_bytes(self) -> list[int]:
        return [int(file.read_text()) for file in self._counters]

    def _counted(self, gpu: int) -> dict[str, int]:
        """Return what a GPU's host has counted: segments that TCP has retransmitted, and datagrams that UDP has dropped
        as a socket's receive buffer was full."""
        lines = Path(f"/proc/{self._testbed.network.host_pids[gpu]}/net/snmp").read_text().splitlines()
        counts = dict[str, int]()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            protocol, *words = names.split()
            counts |= {protocol + name: int(value) for name, value in zip(words, values.split()[1:], strict=True)}
        # MemErrors are datagrams that found a full buffer of all sockets together.
        dropped = counts["Udp:RcvbufErrors"] + counts.get("Udp:MemErrors", 0)
        return {"retransmitted_segments": counts["Tcp:RetransSegs"], "udp_receive_drops": dropped}


def _starts(roles: Sequence[Role], role_of: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return when which ranks start, in ns since the beginning: roles in the order of their starts, and in each role
    the first rank alone before the others."""
    starts = []
    for index in sorted(range(len(roles)), key=lambda index: roles[index].start_s):
        ranks = [rank for rank, role in enumerate(role_of) if role == index]
        at_ns = round(roles[index].start_s * 1e9)
        starts += [(at_ns, some) for some in (ranks[:1], ranks[1:]) if some]
    return starts


def _tasks() -> int:
    """Return the number of processes and threads of the VM, in all namespaces."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def fair_links(config: Scenario) -> tuple[str, ...] | None:
    """Return the names of the links or ports that connections share fairly: all of them, or None with fifo queues."""
    if config.run.is_real or config.transport.queue == "fifo":
        return None
    return tuple(link.name for link in links_in_grain(conditions_of(config).fabric).all)


@contextmanager
def _deferring_interrupts() -> Iterator[None]:
    """Defer a Ctrl-C that comes within the context: KeyboardInterrupt is raised at the end of it."""
    interrupts = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def _emit(**fields: object) -> None:
    """Print a record, and yield the processor so that it leaves the VM even if the program spins next."""
    print(json.dumps(fields), flush=True)
    for _ in range(_YIELDS):
        os.sched_yield()


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
