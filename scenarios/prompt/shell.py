"""The prompt: Mininet's command line with Longhaul's verbs. Every mistake or failure is reported in one sentence, and
the prompt continues.

The docstring of a `do_` method is its line in `help`: verb and arguments, a colon, and what it does.
"""

import base64
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
from mininet.cli import CLI
from mininet.log import lg

from scenarios.program.ranks import describe_status
from scenarios.prompt import arguments, iperf, text
from scenarios.prompt.arguments import PromptError
from scenarios.prompt.dialogue import LineClient
from scenarios.prompt.testbed import InteractiveTestbed
from scenarios.spec import ScenarioError
from scenarios.spec.load import resolved, scenario_of
from scenarios.testbed.capture import Capture, CaptureError
from scenarios.testbed.testbed import Failure
from scenarios.vm.openvswitch import count_packets
from topologies.errors import format_value
from topologies.fabric.failures import NO_CABLES, cable
from topologies.fabric.link_names import end
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import classes_of
from topologies.units import format_delay

_ASK_S, _PING_S = 30, 3
_IPERF_S, _VIRTUAL_IPERF_S = 5, 0.1  # 0.1 s at full rate carries more than 5 s at a scale of 1/1000
_MIN_SHOWN_NS = 1000
_END_S = 2.0  # the time that a command has to end
_READS_RULES = re.compile(r"^ *(flows|dpctl)\b|\bovs-ofctl\b")  # lines that read the counters of rules
_NOT_INHERITED = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK  # not inherited by a node's shell that is started meanwhile

MININET = (
    "nodes: the names of all nodes",
    "net: the cables, node by node",
    "dump: hosts and switches with their addresses",
    "intfs: the interfaces of every node",
    "ports: the OpenFlow ports of every switch",
    "pingpair: the first two GPUs ping each other",
    "NODE CMD: run a command on a node, names of GPUs as addresses: g0 ping -c 3 g4",
    "dpctl CMD: an ovs-ofctl command on all switches: dpctl dump-ports",
    "exit: leave, and take everything down, as Ctrl-D does",
)
"""Mininet's own verbs that `help` lists, in the format of the `do_` docstrings."""


class Prompt(CLI):  # type: ignore[misc]
    """A prompt on a testbed. As in Mininet, the constructor runs it, until exit or Ctrl-D.

    If lines do not come from a terminal, only answers are printed, and no prompts. With `lines_from_host` the host
    sends the lines, as in virtual time. Captures go to `folder`. `caller` holds the user and environment
    (`program.session.of_caller`) and the directory for programs of the verb `run`; with None, `run` is refused.
    """

    def __init__(
        self,
        testbed: InteractiveTestbed,
        *,
        folder: Path,
        lines_from_host: bool = False,
        caller: Mapping[str, Any] | None = None,
    ) -> None:
        self._caller = caller
        self._testbed, self._fabric, self._folder = testbed, testbed.fabric, folder
        self._captures: list[Capture] = []
        lg.ch.stream = sys.stdout  # Mininet logs the answers of its verbs
        self._client = LineClient(self._request) if lines_from_host else None
        self._begun_ns = 0
        self._interrupts = -1
        self.failures = 0
        if lines_from_host or not os.isatty(0):
            self.prompt = ""
        self.use_rawinput = not lines_from_host
        try:
            super().__init__(testbed.testbed.network, stdin=self._client or sys.stdin)
        finally:
            self._end_captures()

    # --- Longhaul's verbs --------------------------------------------------------------------------------------------

    def do_wan(self, line: str) -> None:
        """wan: every WAN link: its rate, its delay, and the collectives' bytes on it"""
        arguments.words(line, "wan alone", 0, 0)
        bed = self._testbed
        print(text.wan(bed.state(), last_bytes=bed.last_bytes, all_bytes=bed.all_bytes, scale=bed.scale))

    def do_resample(self, line: str) -> None:
        """resample [SEED]: draw new conditions: the next ones of the current seed, or the first ones of another seed"""
        print(f"in force: {self._testbed.resample(arguments.seed(line))}")

    def do_rate(self, line: str) -> None:
        """rate LINK RATE: set the rate of a link (in the physical grain, of a port): rate s0b0>s1b0 40 Gbit/s"""
        links, rate_bps = arguments.link_rate(self._fabric, line)
        for link in links:
            self._testbed.set_rate(link, rate_bps)
            state = self._testbed.state()
            down = link in state.shared.failed(state.dead)
            print(text.rated(state.shared.all[link].name, rate_bps, self._testbed.scale, down=down))

    def do_delay(self, line: str) -> None:
        """delay LINK TIME: set the delay of a link (in the physical grain, of a port): delay s0b0>s1b0 5 ms"""
        links, delay_s = arguments.link_delay(self._fabric, line)
        for link in links:
            name = links_in_grain(self._fabric).all[link].name
            print(text.delayed(name, delay_s, self._testbed.set_delay(link, delay_s)))

    def do_ring(self, line: str) -> None:
        """ring [ORDER|best|rank]: show or set the ring, or the placement: ring best, ring 0 2 1 3 7 5 6 4"""
        order = arguments.ring(self._fabric, line)
        if order is not None:
            self._testbed.set_ring(order)
        bed = self._testbed.testbed
        show = text.ring if bed.config.workload.is_ring else text.placement
        print(show(self._fabric, bed.placement))

    def do_paths(self, line: str) -> None:
        """paths: the WAN paths of the collective's flows: what each would cost, and which is in use"""
        arguments.words(line, "paths alone", 0, 0)
        bed = self._testbed
        message_bytes = bed.testbed.config.workload.largest_message_bytes
        print(text.paths(bed.state(), bed.pairs, message_bytes=message_bytes, scale=bed.scale))

    def do_tunnels(self, line: str) -> None:
        """tunnels: the WAN tunnels that traffic engineering uses: the rate and the number of flows of each"""
        arguments.words(line, "tunnels alone", 0, 0)
        print(text.tunnels(self._testbed.state(), scale=self._testbed.scale))

    def do_mode(self, line: str) -> None:
        """mode [MODE]: show or set the mode, which re-embeds or re-routes: base, ccl, wan or joint"""
        name = arguments.mode(line, self._testbed.testbed.config.modes)
        if name is not None:
            self._testbed.set_mode(name)
        print(text.mode(self._testbed.mode, self._testbed.reembed_every, self._testbed.fabric.spec.routing))

    def do_policy(self, line: str) -> None:
        """policy [NAME]: the same as mode; NAME is a mode or one of the scenario's policies"""
        self.do_mode(line)

    def do_run(self, line: str) -> None:
        """run [GPU,...:] COMMAND: run a program on all GPUs or on these, as --exec does: run g0,g4: python mine.py"""
        if self._caller is None:
            raise PromptError("run needs a network in the VM, started in a folder of yours; allowed: NODE CMD")
        ranks, command = arguments.program(self._fabric, line)
        request = {**self._caller, "folder": str(self._folder)}
        printer = OutputPrinter([self._fabric.gpus[rank].name for rank in ranks])
        try:
            with self._at_high_priority():
                self._testbed.run_program(command, ranks, request, printer)
        except KeyboardInterrupt:
            print("\naborted: the program's processes were killed")
        self.failures += printer.has_failed

    def do_allgather(self, line: str) -> None:
        """allgather [chunk] SIZE [COUNT] [ALGORITHM]: run AllGathers; Ctrl-C aborts"""
        self._run("allgather", line)

    def do_reducescatter(self, line: str) -> None:
        """reducescatter [chunk] SIZE [COUNT] [ALGORITHM]: every GPU gets the sum of all GPUs' blocks for it"""
        self._run("reducescatter", line)

    def do_allreduce(self, line: str) -> None:
        """allreduce [chunk] SIZE [COUNT] [ALGORITHM]: every GPU gets the sum of all buffers"""
        self._run("allreduce", line)

    def do_alltoall(self, line: str) -> None:
        """alltoall [chunk] SIZE [COUNT] [ALGORITHM]: every GPU sends a block to every other"""
        self._run("alltoall", line)

    def do_broadcast(self, line: str) -> None:
        """broadcast [chunk] SIZE [COUNT] [ALGORITHM]: every GPU gets g0's buffer"""
        self._run("broadcast", line)

    def do_reduce(self, line: str) -> None:
        """reduce [chunk] SIZE [COUNT] [ALGORITHM]: g0 gets the sum of all buffers"""
        self._run("reduce", line)

    def do_gather(self, line: str) -> None:
        """gather [chunk] SIZE [COUNT] [ALGORITHM]: g0 gets every GPU's block"""
        self._run("gather", line)

    def do_scatter(self, line: str) -> None:
        """scatter [chunk] SIZE [COUNT] [ALGORITHM]: every GPU gets one of g0's blocks"""
        self._run("scatter", line)

    def do_sendrecv(self, line: str) -> None:
        """sendrecv [chunk] SIZE [COUNT] [ALGORITHM]: every GPU sends its buffer to the next"""
        self._run("sendrecv", line)

    def do_alltoallv(self, line: str) -> None:
        """alltoallv [chunk] SIZE [COUNT] [ALGORITHM]: every GPU sends most to the GPUs farthest after it"""
        self._run("alltoallv", line)

    def _run(self, kind: str, line: str) -> None:
        """Run collectives of a kind and print measured and predicted time and their ratio; Ctrl-C aborts."""
        asked = arguments.collective(kind, line)
        is_real = self._testbed.testbed.platform.is_real
        try:
            for _ in range(asked.times):
                record, predicted_s = self._testbed.run(
                    kind, asked.size_bytes, asked.algorithm, is_chunk=asked.is_chunk
                )
                done = self._testbed.collective
                cut = f", {done.pieces} pieces" * ((done.pieces or 1) > 1)
                words = f"{kind} {record.collective}, {done.words(self._testbed.gpus)}{cut}"
                print(text.collective(words, record, predicted_s, is_real=is_real), flush=True)
        except KeyboardInterrupt:
            print("\naborted; the next collective starts new agents")
            return
        scale = self._testbed.scale
        if scale.divisor > 1:
            size = text.size(scale.chunk_bytes(self._testbed.collective.chunk_bytes))
            print(f"rate scale {scale}: blocks of {size} were carried at {scale} of the rates; times are real")

    def do_collective(self, line: str) -> None:
        """collective KIND [chunk] SIZE [COUNT] [ALGORITHM]: run collectives of a kind: collective allreduce 8 MB"""
        self._run(*arguments.kind_of(line))

    def do_round(self, line: str) -> None:
        """round [COUNT]: run the scenario's jobs together, its training or its messages; measured and predicted time"""
        try:
            for _ in range(arguments.rounds(line)):
                found = self._testbed.run_round()
                print("\n".join(text.job(name, *times_s) for name, times_s in found.items()), flush=True)
        except KeyboardInterrupt:
            print("\naborted; the next collective starts new agents")

    def do_demand(self, line: str) -> None:
        """demand [clear]: what the requested transfers are promised over the links as they are now; or forget them"""
        if line.split() not in ([], ["clear"]):
            raise PromptError(f"got {format_value(line.strip())}; allowed: demand [clear]")
        if line.split():
            self._testbed.requests = ()
        promises = [transfer.sentence for transfer in self._testbed.requested_round().transfers]
        print("\n".join(promises) or "no transfer is requested; allowed: request one with admit or in the scenario")

    def do_admit(self, line: str) -> None:
        """admit SIZE GPU GPU by TIME: request one more transfer, and run all requested ones; or RATE ... for TIME"""
        bed = self._testbed
        config = bed.requested_round([arguments.transfer(self._fabric, line, f"admit{len(bed.requests) + 1}")])
        *_, requested = config.transfers
        print(requested.sentence, flush=True)
        if requested.workload is None:
            return
        try:
            completed_s = bed.deliver(config)
        except KeyboardInterrupt:
            print("\naborted; the next collective starts new agents")
            return
        bed.requests = config.jobs
        print("\n".join(text.delivered(one, completed_s) for one in config.transfers if one.workload is not None))

    def do_wait(self, line: str) -> None:
        """wait TIME: let time pass: wait 100 ms"""
        time.sleep(arguments.duration(line))

    def do_time(self, line: str) -> None:
        """time [COMMAND]: the time since the machine (the VM) booted, or how long a command takes"""
        if line:
            super().do_time(line)
        else:
            print(f"{time.monotonic():.9f} s")

    def do_save(self, line: str) -> None:
        """save FILE: write the links, the mode, the collective and transfers as a scenario for run.py: save now.toml"""
        path = self._folder / arguments.file(line)
        written = resolved(self._testbed.scenario())
        try:
            scenario_of(written)
        except ScenarioError as error:
            raise PromptError(f"run.py would not run it: {'; '.join(error.mistakes)}") from None
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(written + "\n")
        except FileExistsError:
            raise PromptError(f"{path} already exists; allowed: the name of a new file") from None
        other = "; its mode chooses another placement" if self._testbed.has_other_placement() else ""
        print(f"written: {path}, for run.py{other}")

    def do_flows(self, line: str) -> None:
        """flows SWITCH: the OpenFlow rules of a switch, in readable form"""
        switch = arguments.switch(self._fabric, line)
        dump = ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", switch]
        ended = subprocess.run(dump, capture_output=True, text=True, check=False, timeout=_ASK_S)
        if ended.returncode != 0:
            raise PromptError(f"the rules of {switch} cannot be read: {ended.stderr.strip() or 'no reason given'}")
        print(text.flows(ended.stdout, self._fabric, switch))

    def do_capture(self, line: str) -> None:
        """capture LINK FILE|stop: write a logical link's packets to a pcap file, until stop"""
        link_file = arguments.link_file(self._fabric, line)
        if link_file is None:
            if not self._captures:
                raise PromptError("no capture is running; allowed: capture LINK FILE")
            self._end_captures()
            self._testbed.testbed.restore_links()
            return
        link, file = link_file
        classes = [htb_class for htb_class in classes_of(self._fabric) if htb_class.link == link]
        capture = Capture(links_in_grain(self._fabric).all[link].name, classes, self._folder / file)
        self._captures.append(capture)
        self._testbed.testbed.restore_links()
        print(f"capturing {capture.link} into {capture.file} until `capture stop` or the end of the session")

    def _end_captures(self) -> None:
        captures, self._captures = self._captures, []
        for capture in captures:
            capture.stop()
            lost = f"; {capture.lost} more were lost" if capture.lost else ""
            print(f"{capture.link}: {capture.packets} packets in {capture.file}{lost}")

    def do_iperf(self, line: str) -> None:
        """iperf [GPU GPU [SECONDS]]: TCP goodput between two GPUs, compared with the rate of the slowest link"""
        src, dst, seconds = arguments.flow(self._fabric, line, _IPERF_S if self._client is None else _VIRTUAL_IPERF_S)
        state = self._testbed.state()
        reason = text.unreachable(self._fabric, [(src, dst)], state.dead)
        if reason:
            raise PromptError(reason)
        wait_s = _PING_S + int(self._testbed.longest_s())
        address = self._fabric.gpus[dst].ip
        if " 0 received" in self.mn.hosts[src].cmd(f"ping -c 3 -i 0.2 -w {wait_s} {address}"):
            # TCP would try to connect for minutes.
            raise PromptError(f"g{dst} does not answer pings of g{src}, so TCP cannot connect either")
        self._testbed.set_transport()
        pids = self._testbed.testbed.network.host_pids
        with self._testbed.steady() if self._client is None else nullcontext():
            carried_bps = iperf.carried_bps(src_pid=pids[src], dst_pid=pids[dst], address=address, seconds=seconds)
        route = state.route(src, dst)
        slowest = state.shared.all[min(route.links, key=lambda link: float(state.set_bps[link]))].name
        rates = {"carried_bps": carried_bps, "rate_bps": route.rate_bps}
        print(text.iperf(src=src, dst=dst, slowest=slowest, scale=self._testbed.scale, **rates))

    def do_link(self, line: str) -> None:
        """link NODE NODE up|down: bring a cable up or down, of several between two nodes the second by NODE#2"""
        one, up = arguments.cable_change(self._fabric, line)
        self._testbed.set_cable(one, up=up)
        print(f"{one.a} - {end(one.b, one.number)} is {'up' if up else 'down'}", flush=True)
        self._testbed.await_cable(one, up=up)

    # --- Mininet's verbs, adapted to this network ---------------------------------------------------------------------

    def do_links(self, _line: str) -> None:
        """links: the cables, and whether they are up"""
        dead = self._testbed.state().dead
        cables = {
            port.interface: cable(switch.name, port.peer) for switch in self._fabric.switches for port in switch.ports
        }
        for link in self.mn.links:
            ends = next((cables[intf.name] for intf in (link.intf1, link.intf2) if intf.name in cables), None)
            print(link, link.status() if ends is None else "down" if ends in dead else "up")

    def do_pingall(self, line: str) -> None:
        """pingall [SECONDS]: every GPU pings every other, and waits up to SECONDS for each reply"""
        longest_s = str(1 + int(self._testbed.longest_s()))
        (wait_s,) = arguments.words(line, "pingall [SECONDS]", 0, 1) or [longest_s]
        self.mn.pingAll(str(arguments.whole(wait_s, "a number of seconds", 1, arguments.MAX_SECONDS)))

    def do_x(self, line: str) -> None:
        """Raise PromptError without a display, as `do_xterm` does; otherwise open terminals."""
        _require_display("x")
        super().do_x(line)

    def do_xterm(self, line: str, term: str = "xterm") -> None:
        """xterm NODE: a terminal on a node, where there is a display"""
        _require_display(term)
        super().do_xterm(line, term)

    def do_switch(self, line: str) -> None:
        """switch NAME start|stop: start or stop a switch"""
        name, up = arguments.switch_change(self._fabric, line)
        super().do_switch(line)
        self._testbed.await_switch(name, up=up)

    def do_source(self, line: str) -> None:
        """source FILE: run the commands of a file"""
        if not Path(line.strip()).is_file():
            raise PromptError(f"{format_value(line.strip())} is not a file; allowed: source FILE")
        super().do_source(line)

    def do_sh(self, line: str) -> None:
        """sh CMD: run a command in the network namespace of the switches"""
        self._want_keys()
        with self._at_high_priority():
            if self.isatty():
                super().do_sh(f"exec chrt --other 0 sh -c {shlex.quote(line)}")
            else:
                self._run_unattended(["chrt", "--other", "0", "sh", "-c", line])

    def _run_unattended(self, command: Sequence[str]) -> None:
        """Run a command with an empty input, for at most `program.deadline`; raises PromptError if that ends it."""
        sys.stdout.flush()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                poll = select.poll()
                with os.fdopen(os.pidfd_open(process.pid), "rb", 0) as end:
                    poll.register(end, select.POLLIN)
                    if not poll.poll(self._deadline_s * 1000):
                        raise PromptError(self._overdue)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # safe: it has not been waited for
                raise

    def do_py(self, line: str) -> None:
        """py EXPRESSION: a Python expression; net is Mininet's network"""
        try:
            with self._at_high_priority():
                super().do_py(line)
        except KeyboardInterrupt:
            super().do_px("None")  # otherwise Python takes this exception for uncaught, and dies of SIGINT at its exit
            raise

    def do_help(self, line: str) -> None:
        """help [VERB]: every verb in one line, or one of them"""
        helps, words = self._helps(), line.split()
        if words:
            verb = arguments.choice(words[0], "verb", helps)
            helps = {verb: helps[verb]}
        width = max(len(head) for head, _ in helps.values())
        for head, about in helps.values():
            print(f"  {head.ljust(width)}  {about}")

    def _helps(self) -> dict[str, tuple[str, str]]:
        """Return the help by verb: the verb with its arguments, and what it does."""
        docs = [str(method.__doc__) for name, method in vars(Prompt).items() if name.startswith("do_")]
        lines = [doc.partition(": ") for doc in (*docs, *MININET) if ": " in doc]
        return {head.split()[0]: (head, about) for head, _, about in lines}

    def do_EOF(self, line: str) -> Any:
        """Leave."""
        if self.isatty():
            print()
        return self.do_exit(line)

    # --- reading and executing lines ---------------------------------------------------------------------------------

    @classmethod
    def initReadline(cls) -> None:
        """Do nothing: `session` manages the history."""

    def onecmd(self, line: str) -> Any:
        """Execute a line; any failure is printed as a sentence and counted, and the prompt continues."""
        try:
            if _READS_RULES.search(line):
                count_packets(self._fabric.switches[0].name)
            return super().onecmd(line)
        except (PromptError, CaptureError, *Failure) as error:
            print(error)
        except OSError as error:
            print(f"{format_value(line.strip())} failed: {error.strerror or error}")
        except Exception as error:  # Mininet's own verbs may raise anything
            print(f"{format_value(line.strip())} failed: {type(error).__name__}: {error}")
        self.failures += 1
        return None

    def default(self, line: str) -> None:
        """Run a command on a node; raise PromptError if the line begins with no node."""
        first, *rest = line.split() or [""]
        if first in self.mn and not rest:
            raise PromptError(f"{first} is a node; allowed: {first} CMD, such as {first} ip addr")
        if first not in self.mn:
            verbs = [name.removeprefix("do_") for name in self.get_names() if name.startswith("do_")]
            raise PromptError(
                arguments.unknown_verb(line, verbs, [*self.mn], is_program=shutil.which(first) is not None)
            )
        if self.mn[first] in self.mn.hosts:
            self._testbed.set_transport()
        self.mn[first].has_empty_input = not self.isatty()
        # Set up before the command starts, so that no Ctrl-C is lost.
        with self._at_high_priority(_NOT_INHERITED), _interrupts() as self._interrupts:
            super().default(line)

    def waitForNode(self, node: Any) -> None:
        """Print the output of a node's command until it or the shell ends; pass on Ctrl-C and, at a terminal, keys.

        Without a terminal, end a command that takes longer than `program.deadline`, and raise PromptError.
        """
        at_terminal = self.isatty()
        overdue_s = None if at_terminal else time.monotonic() + self._deadline_s
        ways_to_end = [*_WAYS]
        self._want_keys()
        # The descriptor of a process becomes readable when the process ends.
        with (
            os.fdopen(os.pidfd_open(node.shell.pid), "rb", 0) as shell,
            _unbuffered() if at_terminal else nullcontext(),
        ):
            poll = select.poll()
            for source in (node.stdout, shell, self._interrupts, *([0] if at_terminal else [])):
                poll.register(source, select.POLLIN)
            while node.waiting:
                events = poll.poll(None if overdue_s is None else max(0.0, overdue_s - time.monotonic()) * 1000)
                if not events and ways_to_end:
                    ways_to_end.pop(0)(node)
                    overdue_s = time.monotonic() + _END_S if ways_to_end else None
                for fd, _ in events:
                    if fd == self._interrupts:
                        if signal.SIGINT in os.read(fd, 4096):
                            _interrupt(node)
                    elif fd == shell.fileno():  # its output, if any, has been printed: stdout comes first
                        node.waiting = False
                    elif fd != 0:
                        print(node.monitor() if node.waiting else "", end="", flush=True)
                    elif typed := os.read(0, 4096):
                        node.write(typed.decode(errors="replace"))
                    else:
                        poll.unregister(0)
        # Input that this command has not read must not become part of the node's next command.
        termios.tcflush(node.slave, termios.TCIFLUSH)
        if len(ways_to_end) < len(_WAYS):
            raise PromptError(self._overdue)

    @property
    def _deadline_s(self) -> float:
        return self._testbed.testbed.config.program.deadline_s

    @property
    def _overdue(self) -> str:
        """Why a command was ended that nobody could have ended by Ctrl-C."""
        return f"the command was ended after {self._deadline_s:g} s (program.deadline), as it did not end by itself"

    def precmd(self, line: str) -> str:
        """Record when the execution of a line starts."""
        self._begun_ns = time.monotonic_ns()
        return line

    def postcmd(self, stop: Any, line: str) -> Any:
        """In virtual time, print how long the line took."""
        took_ns = time.monotonic_ns() - self._begun_ns
        if self._client is not None and took_ns >= _MIN_SHOWN_NS and not stop:
            print(f"({format_delay(took_ns / 1e9)} of virtual time)")
        return stop

    def _want_keys(self) -> None:
        if self._client is not None:
            self._client.want_keys()

    @contextmanager
    def _at_high_priority(self, policy: int = os.SCHED_FIFO) -> Iterator[None]:
        """Within the context, run this process and the kernel's workers, which deliver Ctrl-C, at real-time priority.

        In virtual time a process that computes never loses the processor to others of the same priority.
        """
        if self._client is None:
            yield
            return
        workers = [int(comm.parent.name) for comm in Path("/proc").glob("[0-9]*/comm") if _is_worker(comm)]
        pids = [0, *workers]  # 0 is this process
        try:
            for pid in pids:
                os.sched_setscheduler(pid, policy, os.sched_param(2 if pid else 1))
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))

    def _request(self) -> dict[str, Any]:
        """Return the fields of a request for a line (`dialogue`)."""
        dead = [sorted(ends) for ends in self._testbed.state().dead]
        return {"verbs": self._verbs(), "modes": [*self._testbed.testbed.config.modes], "dead": dead}

    def _verbs(self) -> list[str]:
        return sorted({*self._helps()} - {"NODE"})

    def completenames(self, text: str, *_: Any) -> list[str]:
        """Complete the first word of a line: a verb or a node."""
        return self._completed([], text)

    def complete_help(self, text: str, *_: Any) -> list[str]:
        """Complete the argument of `help`: a verb that has help."""
        return self._completed(["help"], text)

    def completedefault(self, text: str, line: str, begin: int, *_: Any) -> list[str]:
        """Complete any other word of a line."""
        return self._completed(line[:begin].split(), text)

    def _completed(self, words: Sequence[str], text: str) -> list[str]:
        dead = self._testbed.state().dead if words[:1] == ["link"] else NO_CABLES
        modes = self._testbed.testbed.config.modes
        return arguments.completed(self._fabric, words, text, dead=dead, verbs=self._verbs(), modes=modes)


class OutputPrinter:
    """Prints the output of a program's ranks as it arrives, in whole lines, and at the end everything that went wrong.

    `names` are the ranks' GPUs; with several ranks, each line begins with its GPU's name. `has_failed` tells whether a
    rank has ended with another status than 0.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._unprinted = names, dict[tuple[int, str], bytes]()
        self._problems: list[str] = []
        self.has_failed = False

    def __call__(self, **line: Any) -> None:
        """Process one record of `program.guest`, given by its fields."""
        if "stream" in line:
            key = line["rank"], line["stream"]
            *whole, rest = (self._unprinted.get(key, b"") + base64.b64decode(line["text"])).split(b"\n")
            self._unprinted[key] = rest
            self._print(line["rank"], whole)
        elif line.get("signal") == "SIGTERM":
            self._problems.append(f"the ranks were ended at the deadline after {line['deadline_ns'] / 1e9:g} s")
        elif line.get("ended"):
            self.has_failed = True
            self._problems.append(f"{self._names[line['rank']]} {describe_status(line['ended'])}")
        elif "over" in line:
            over = line["over"]
            for (rank, _), rest in self._unprinted.items():
                self._print(rank, [rest] if rest else [])
            if over["left_running"]:
                self._problems.append(f"{over['left_running']} processes were still running, and were killed")
            for rank, counts in enumerate(over["counted"]):
                if counts["udp_receive_drops"]:
                    what = f"{counts['udp_receive_drops']:,} UDP datagrams were dropped: a socket's buffer was full"
                    self._problems.append(f"{self._names[rank]}: {what}")
            if over["crowded"]:
                self._problems.append("the program met its limit of processes and threads (program.processes)")
            for rank, _, lost in over["discarded"]:
                self._problems.append(f"{self._names[rank]}: {lost:,} bytes were discarded")
            print("".join(f"{problem}\n" for problem in self._problems), end="", flush=True)

    def _print(self, rank: int, lines: Sequence[bytes]) -> None:
        name = f"{self._names[rank]}: " if len(self._names) > 1 else ""
        print("".join(f"{name}{line.decode(errors='replace')}\n" for line in lines), end="", flush=True)


def _require_display(verb: str) -> None:
    if not os.environ.get("DISPLAY"):
        missing = "a display, and there is none here (the VM has none)"
        raise PromptError(f"{verb} needs {missing}; use g0 CMD to run a command")


def _is_worker(comm: Path) -> bool:
    """Return whether this /proc/PID/comm file belongs to a kernel worker that is not bound to a processor."""
    try:
        return comm.read_text().startswith("kworker/u")
    except OSError:  # it has ended
        return False


def _interrupt(node: Any) -> None:
    """Interrupt a node's command, and kill children of its shell that are between fork and exec.

    Such a child still has the shell's handler for SIGINT, and would lose the interrupt.
    """
    node.sendInt()
    with suppress(psutil.Error):
        shell = psutil.Process(node.shell.pid)
        for child in shell.children(recursive=True):
            if child.cmdline() in ([], shell.cmdline()):  # during exec a process has no arguments for an instant
                child.kill()


def _kill_commands(node: Any) -> None:
    """Kill all processes that a node's shell has started in the foreground or background."""
    with suppress(psutil.Error):
        for child in psutil.Process(node.shell.pid).children(recursive=True):
            child.kill()


def _kill_shell(node: Any) -> None:
    """Kill a node's shell; the node's next command starts a new one."""
    node.shell.kill()


_WAYS = (_interrupt, _kill_commands, _kill_shell)
"""How a command of a node is ended that nobody else can end, one after the other."""


@contextmanager
def _interrupts() -> Iterator[int]:
    """Within the context, signals such as Ctrl-C's can be read from the yielded descriptor, one byte with the number
    each, and SIGINT does not interrupt this process."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written by the C handler, so that a poll wakes up at once
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, before)
        os.close(writer)
        os.close(reader)


@contextmanager
def _unbuffered() -> Iterator[None]:
    """Within the context, have the terminal deliver each key as it is pressed, instead of whole lines."""
    before, changed = termios.tcgetattr(0), termios.tcgetattr(0)
    changed[3] &= ~termios.ICANON
    termios.tcsetattr(0, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
