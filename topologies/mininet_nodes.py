"""Mininet's node, link and interface classes without the programs that Mininet starts for each of them.

In User-Mode Linux starting a program takes 10 to 40 ms, and a shell as Mininet starts it 1.6 s: a node starts its shell
when it gets its first command. The network itself is built by `mininet_network`.
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

_TIMEOUT_S = 60  # for a program that takes milliseconds


class NetworkError(Exception):
    """A network that cannot be built; one sentence."""


class LateShell(Node):
    """A node whose shell is started by its first command."""

    isSetup = True  # or Mininet would start programs to look for others
    pid: int
    inNamespace: bool
    _ready = False

    def startShell(self, mnopts: str | None = None) -> None:
        """Start no shell yet."""
        self.pid = os.getpid()

    def cmd(self, *arguments: Any, **options: Any) -> Any:
        """Run a command in the node's shell and return its output; none before `ready`."""
        if not self._ready:  # Mininet's constructors bring interfaces up, as the network does itself
            return ""
        self._open()
        return super().cmd(*arguments, **options)

    def sendCmd(self, *arguments: Any, **options: Any) -> Any:
        """Have the node's shell run a command, and do not wait for it."""
        self._open()
        # An interrupt that reaches the shell behind a command's end has it print another of the marks that end one.
        while any(events & select.POLLIN for _, events in self.pollOut.poll(0)):
            self.read()
        return super().sendCmd(*arguments, **options)

    def ready(self) -> None:
        """Run commands from now on: the network is built."""
        self._ready = True

    def terminate(self) -> None:
        """End the node's shell, if it has one."""
        self._ready = False
        super().terminate()

    def _open(self) -> None:
        if self.shell is None:
            pid, namespaced = self.pid, self.inNamespace
            self.inNamespace = False  # the shell joins the node's namespace and makes none
            try:
                super().startShell(mnopts="-d")
            finally:
                self.pid, self.inNamespace = pid, namespaced

    def _popen(self, cmd: list[str], **params: Any) -> "subprocess.Popen[bytes]":
        if cmd[:2] == ["mnexec", "-d"]:
            # Not with -c, which closes every descriptor there could be: 65536 system calls at a VM's limits. Nor with
            # -d, before whose new session a Ctrl-C at a prompt would end it.
            cmd = ["mnexec", "-a", str(self.pid), *cmd[2:]]
            params["close_fds"] = params["start_new_session"] = True
        popen: subprocess.Popen[bytes] = super()._popen(cmd, **params)
        return popen


class GpuHost(LateShell, Host):
    """A GPU's host: a network namespace, held by an `ip` that also sets it up and ends with this process."""

    _holder: "subprocess.Popen[str] | None" = None

    def startShell(self, mnopts: str | None = None) -> None:
        """Make the namespace."""
        command = ["mnexec", "-n", "-p", "ip", "-oneline", "-batch", "-"]
        self._holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C at a prompt is not for it
        )
        self.pid = self._holder.pid

    def await_namespace(self) -> None:
        """Return once the namespace is there."""
        assert self._holder is not None and self._holder.stdout is not None
        if not self._holder.stdout.readline():  # mnexec prints its pid behind the namespace's making
            raise NetworkError(f"the network namespace of {self.name} cannot be made: mnexec failed")

    def configure(self, *lines: str) -> None:
        """Run these lines of `ip` in the namespace; raises NetworkError where one fails."""
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
            self._holder.terminate()  # a process forked meanwhile may hold the pipe open
            self._holder.wait()
            self._holder = None


class FabricSwitch(LateShell, OVSSwitch):
    """An Open vSwitch bridge; all of a network are made by one ovs-vsctl."""

    controller_at: str | None = None
    """The address of the one of the network's controllers that it connects to; None: to all."""

    def start(self, controllers: Sequence[Any]) -> None:
        """Connect to the controllers."""
        super().start([one for one in controllers if self.controller_at in (None, one.IP())])

    @staticmethod
    def isOldOVS() -> bool:
        """False: versions with OpenFlow 1.3 are not those that Mininet calls old."""
        return False

    def bridgeOpts(self) -> str:
        """Mininet's, and a fixed address: a random one would change hashes from boot to boot."""
        address = "0a:" + int(self.dpid, 16).to_bytes(8, "big")[-5:].hex(":")
        return f"{super().bridgeOpts()} other-config:hwaddr={address}"

    def dpctl(self, *arguments: str) -> Any:
        """Run an ovs-ofctl command on it, in the version of OpenFlow that it speaks."""
        return self.cmd("ovs-ofctl", "-O", "OpenFlow13", arguments[0], self.name, *arguments[1:])

    @classmethod
    def batchStartup(cls, switches: Sequence["FabricSwitch"], run: Callable[..., Any] | None = None) -> Any:
        """Make all the bridges."""
        return super().batchStartup(switches, run=run or run_program)

    @classmethod
    def batchShutdown(cls, switches: Sequence["FabricSwitch"], run: Callable[..., Any] | None = None) -> Any:
        """Remove all the bridges."""
        if switches:
            commands = " -- ".join(f"--if-exists del-br {switch}" for switch in switches)
            (run or run_program)(["ovs-vsctl", *commands.split()])
        for switch in switches:
            switch.terminate()
        return switches


class ElsewhereController(LateShell, RemoteController):
    """A controller that is started elsewhere, before or after the network."""

    def checkListening(self) -> None:
        """Do nothing: the switches will connect to it."""


class PlannedIntf(Intf):
    """An interface that the network makes and sets up together with all others."""

    def config(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Leave it to the network."""
        return {}


class PlannedLink(Link):
    """A veth pair that the network makes together with all others."""

    @classmethod
    def makeIntfPair(cls, *_: Any, **__: Any) -> None:
        """Leave it to the network."""


def run_program(command: str | Sequence[str], text: str = "", *, shell: bool = False, check: bool = True) -> None:
    """Run a program, without the shell that Mininet asks for: its commands are plain words.

    Raises NetworkError with the first line of its output where it fails, and where it takes more than a minute.
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    try:
        ended = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NetworkError(f"{words[0]} has not ended after {_TIMEOUT_S} s") from None
    if check and ended.returncode != 0:
        output = (ended.stderr or ended.stdout).strip().splitlines() or ["no output"]
        raise NetworkError(f"{words[0]} failed with status {ended.returncode}: {output[0]}")
