"""Mininet's node, link and interface classes without the programs that Mininet starts for each of them.

In User-Mode Linux starting a program takes 10 to 40 ms, and a shell in the way Mininet starts it 1.6 s. So a node
starts its shell only for its first command. `mininet_network` builds the network of these classes.
"""

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Host, Node, OVSSwitch, RemoteController

from topologies import namespaces

_TIMEOUT_S = 60  # for programs that take milliseconds


class NetworkError(Exception):
    """Raised for a network that cannot be built or used; the message is one sentence."""


class LateShell(Node):
    """A node whose shell is started by its first command, and again after a command such as `exit` has ended it."""

    isSetup = True  # otherwise Mininet would start programs to check which ones are installed
    has_empty_input = False
    """Whether commands find the end of their input at once, where nobody can type any."""
    pid: int
    inNamespace: bool
    _ready = False

    def startShell(self, mnopts: str | None = None) -> None:
        """Start no shell yet."""
        self.pid = os.getpid()

    def cmd(self, *arguments: Any, **options: Any) -> Any:
        """Run a command in the node's shell and return its output; before `ready`, run nothing and return ""."""
        if not self._ready:  # Mininet's constructors bring interfaces up, which the network does by itself
            return ""
        self._start_shell()
        return super().cmd(*arguments, **options)

    def sendCmd(self, *arguments: Any, **options: Any) -> Any:
        """Start a command in the node's shell without waiting for it."""
        self._start_shell()
        # The shell prints a mark at a command's end. An interrupt just afterwards makes it print a second mark, which
        # must be read before the next command.
        while any(events & select.POLLIN for _, events in self.pollOut.poll(0)):
            self.read()
        if self.has_empty_input:
            words = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
            return super().sendCmd(_without_input(" ".join(map(str, words))), **options)
        return super().sendCmd(*arguments, **options)

    def ready(self) -> None:
        """Allow commands: the network is built."""
        self._ready = True

    def terminate(self) -> None:
        """End the node's shell, if it has one."""
        self._ready = False
        super().terminate()

    def _start_shell(self) -> None:
        if self.shell is not None and self.shell.poll() is not None:
            self.cleanup()
        if self.shell is None:
            before = self.pid, self.inNamespace, self.has_empty_input
            self.inNamespace = False  # the shell joins the node's existing namespace instead of making one
            self.has_empty_input = False  # Mininet sets up the terminal
            try:
                super().startShell(mnopts="-d")
            finally:
                self.pid, self.inNamespace, self.has_empty_input = before

    def _popen(self, cmd: list[str], **params: Any) -> "subprocess.Popen[bytes]":
        if cmd[:2] == ["mnexec", "-d"]:
            # Without -c, which closes every possible descriptor: 65536 system calls at the VM's limit. Without -d too:
            # a Ctrl-C at the prompt would end the shell if it came before mnexec has made the new session.
            cmd, params["close_fds"], params["start_new_session"] = cmd[2:], True, True
        popen: subprocess.Popen[bytes] = super()._popen(cmd, **params)
        return popen


def _without_input(command: str) -> str:
    """Return a shell's command that runs `command` in the shell itself, with an empty standard input."""
    # As Mininet does for a command that ends with `&`, which this one no longer does.
    tell_pid = r"; printf '\001%d\012' $!" if command.rstrip().endswith("&") else ""
    return f"eval {shlex.quote(command)} </dev/null{tell_pid}"


class GpuHost(LateShell, Host):
    """A GPU's host: namespaces of its own (`topologies.namespaces`), held by an `ip` process that also configures its
    network and ends with this process. All other processes of the host end with that one."""

    _holder: "subprocess.Popen[str] | None" = None
    _pidfd = -1

    def startShell(self, mnopts: str | None = None) -> None:
        """Start making the namespaces, and no shell; `await_namespaces` waits for them."""
        self._started: list[subprocess.Popen[bytes]] = []
        # The host's first process inherits that it ignores SIGCHLD, so the kernel reaps the orphans that it adopts.
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            with namespaces.starting_in(None):
                self._holder = subprocess.Popen(
                    [*namespaces.FIRST, "ip", "-oneline", "-batch", "-"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    process_group=0,  # so that Ctrl-C at a prompt does not end it
                )
        except OSError as error:
            raise NetworkError(f"the namespaces of {self.name} cannot be made: {error.strerror}") from None
        finally:
            signal.signal(signal.SIGCHLD, before)
        self.pid = self._holder.pid
        self._pidfd = os.pidfd_open(self.pid)

    def await_namespaces(self, address: str) -> None:
        """Wait until the namespaces exist, and make them those of a host with this IP address; raises NetworkError."""
        self.configure()
        try:
            namespaces.furnish(self._pidfd, self.name, address)
        except OSError as error:
            raise NetworkError(f"the namespaces of {self.name} cannot be set up: {error.strerror}") from None

    def _popen(self, cmd: list[str], **params: Any) -> "subprocess.Popen[bytes]":
        """Start a process of the host."""
        kinds = namespaces.OF_HOST
        if cmd[:2] == ["mnexec", "-da"]:  # Mininet's way of joining a host's namespaces, but not all of them
            cmd, params["start_new_session"] = cmd[3:], True
        if any("mnexec -a 1 " in word for word in cmd):  # the tunnel to a display: 1 is the machine's first process
            kinds = namespaces.NEW_NET
        params["preexec_fn"] = partial(namespaces.join, self._pidfd, kinds)
        with namespaces.starting_in(self._pidfd) if kinds == namespaces.OF_HOST else contextlib.nullcontext():
            popen = super()._popen(cmd, **params)
        self._started.append(popen)
        return popen

    def configure(self, *lines: str) -> None:
        """Run these lines of `ip` in the namespace; raises NetworkError if one fails."""
        assert self._holder is not None and self._holder.stdin is not None and self._holder.stdout is not None
        batch = "".join(line + "\n" for line in (*lines, "link show dev lo"))
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.write(batch)
            self._holder.stdin.flush()
        if not self._holder.stdout.readline():
            raise NetworkError(f"{self.name} cannot be set up: ip or unshare failed in its namespaces")

    def terminate(self) -> None:
        """End all processes of the host, and its namespaces."""
        super().terminate()
        if self._holder is None or self._holder.stdin is None or self._holder.stdout is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.kill()  # closing the pipe may not end it: a process forked meanwhile may hold it open
        for process in self._started:  # the holder cannot end before this process has reaped its own children there
            process.kill()
            process.wait()
        self._holder.wait()
        os.close(self._pidfd)
        self._holder = None


class FabricSwitch(LateShell, OVSSwitch):
    """An Open vSwitch bridge; one ovs-vsctl makes all bridges of a network."""

    controller_at: str | None = None
    """The address of the controller that this switch connects to; None: it connects to all of the network's."""

    def start(self, controllers: Sequence[Any]) -> None:
        """Connect to the controllers, or only to the one at `controller_at`."""
        super().start([controller for controller in controllers if self.controller_at in (None, controller.IP())])

    @staticmethod
    def isOldOVS() -> bool:
        """Return False: a version with OpenFlow 1.3 is not what Mininet calls old."""
        return False

    def bridgeOpts(self) -> str:
        """Return Mininet's options and a fixed MAC address: a random one would change hashes from boot to boot."""
        address = "0a:" + int(self.dpid, 16).to_bytes(8, "big")[-5:].hex(":")
        return f"{super().bridgeOpts()} other-config:hwaddr={address}"

    def dpctl(self, *arguments: str) -> Any:
        """Run an ovs-ofctl command on the switch, in its version of OpenFlow, and return the output."""
        return self.cmd("ovs-ofctl", "-O", "OpenFlow13", arguments[0], self.name, *arguments[1:])

    @classmethod
    def batchStartup(cls, switches: Sequence["FabricSwitch"], run: Callable[..., Any] | None = None) -> Any:
        """Make all bridges."""
        return super().batchStartup(switches, run=run or run_program)

    @classmethod
    def batchShutdown(cls, switches: Sequence["FabricSwitch"], run: Callable[..., Any] | None = None) -> Any:
        """Remove all bridges."""
        if switches:
            commands = " -- ".join(f"--if-exists del-br {switch}" for switch in switches)
            (run or run_program)(["ovs-vsctl", *commands.split()])
        for switch in switches:
            switch.terminate()
        return switches


class ElsewhereController(LateShell, RemoteController):
    """A controller that is started elsewhere, before or after the network."""

    def checkListening(self) -> None:
        """Do nothing: the controller may not run yet, and switches connect to it once it does."""


class PlannedIntf(Intf):
    """An interface that the network makes and configures together with all others."""

    def config(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Do nothing: the network configures the interface."""
        return {}


class PlannedLink(Link):
    """A veth pair that the network makes together with all others."""

    @classmethod
    def makeIntfPair(cls, *_: Any, **__: Any) -> None:
        """Do nothing: the network makes the pair."""


def run_program(command: str | Sequence[str], text: str = "", *, shell: bool = False, check: bool = True) -> None:
    """Run a program with `text` as its input. Mininet asks for a `shell`, which its plain commands do not need.

    Raises NetworkError with the first line of the output if the program fails, and after _TIMEOUT_S.
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    try:
        ended = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NetworkError(f"{words[0]} did not end within {_TIMEOUT_S} s") from None
    if check and ended.returncode != 0:
        output = (ended.stderr or ended.stdout).strip().splitlines() or ["no output"]
        raise NetworkError(f"{words[0]} failed with status {ended.returncode}: {output[0]}")
