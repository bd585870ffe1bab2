"""Mininet's node, link and interface classes without the programs that Mininet starts for each of them.

In User-Mode Linux starting a program takes 10 to 40 ms, and a shell in the way Mininet starts it 1.6 s. So a node
starts its shell only for its first command. `mininet_network` builds the network of these classes.
"""

import contextlib
import os
import select
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Host, Node, OVSSwitch, RemoteController

_TIMEOUT_S = 60  # for programs that take milliseconds


class NetworkError(Exception):
    """Raised for a network that cannot be built or used; the message is one sentence."""


class LateShell(Node):
    """A node whose shell is started by its first command, and again after a command such as `exit` has ended it."""

    isSetup = True  # otherwise Mininet would start programs to check which ones are installed
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
            pid, namespaced = self.pid, self.inNamespace
            self.inNamespace = False  # the shell joins the node's existing namespace instead of making one
            try:
                super().startShell(mnopts="-d")
            finally:
                self.pid, self.inNamespace = pid, namespaced

    def _popen(self, cmd: list[str], **params: Any) -> "subprocess.Popen[bytes]":
        if cmd[:2] == ["mnexec", "-d"]:
            # Without -c, which closes every possible descriptor: 65536 system calls at the VM's limit. Without -d too:
            # a Ctrl-C at the prompt would end the shell if it came before mnexec has made the new session.
            cmd = ["mnexec", "-a", str(self.pid), *cmd[2:]]
            params["close_fds"] = params["start_new_session"] = True
        popen: subprocess.Popen[bytes] = super()._popen(cmd, **params)
        return popen


class GpuHost(LateShell, Host):
    """A GPU's host: a network namespace, held by an `ip` process that also configures it and ends with this process."""

    _holder: "subprocess.Popen[str] | None" = None

    def startShell(self, mnopts: str | None = None) -> None:
        """Start making the namespace, and no shell; `await_namespace` waits for it."""
        command = ["mnexec", "-n", "-p", "ip", "-oneline", "-batch", "-"]
        self._holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # so that Ctrl-C at a prompt does not end it
        )
        self.pid = self._holder.pid

    def await_namespace(self) -> None:
        """Wait until the namespace exists; raises NetworkError if it cannot be made."""
        assert self._holder is not None and self._holder.stdout is not None
        if not self._holder.stdout.readline():  # mnexec prints its pid once it has made the namespace
            raise NetworkError(f"the network namespace of {self.name} cannot be made: mnexec failed")

    def configure(self, *lines: str) -> None:
        """Run these lines of `ip` in the namespace; raises NetworkError if one fails."""
        assert self._holder is not None and self._holder.stdin is not None and self._holder.stdout is not None
        batch = "".join(line + "\n" for line in (*lines, "link show dev lo"))
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.write(batch)
            self._holder.stdin.flush()
        if not self._holder.stdout.readline():
            raise NetworkError(f"the interfaces of {self.name} cannot be set up: ip failed in its namespace")

    def terminate(self) -> None:
        """End the node's shell and its namespace."""
        super().terminate()
        if self._holder is not None and self._holder.stdin is not None and self._holder.stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                self._holder.stdin.close()
            self._holder.stdout.close()
            self._holder.terminate()  # closing the pipe may not end it: a process forked meanwhile may hold it open
            self._holder.wait()
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
