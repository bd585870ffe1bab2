"""The process that all agents are forked from: `python -m hosts.nursery PARENT`, with the specification on stdin.

Starting Python and importing take longest in the VM, so both happen once, here, and each agent is a fork of this small
process. It forks them in rank order, so that they are alike from boot to boot, and then waits until the last has
ended. It dies with its parent and they die with it.
"""

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from hosts import transport, wire
from hosts.agent import Agent, AgentError, reason
from hosts.content import Content
from hosts.door import Refusals

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_libc = ctypes.CDLL(None, use_errno=True)


def _serve(agent: Agent, control: socket.socket, refusals: Refusals) -> None:
    """Obey until the communicator goes away or the agent fails, which ends it: then its neighbours fail as well.

    What is no command is refused and changes nothing; so is whoever comes to the agent's door meanwhile.
    """
    poll, lines = select.poll(), wire.Lines()
    poll.register(control, select.POLLIN)
    poll.register(agent.door, select.POLLIN)
    while True:
        wait_s = agent.door.wait_s()
        ready = [fd for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000 + 1)]
        if control.fileno() not in ready:
            agent.door.look()
            continue
        data = control.recv(wire.MAX_LINE_BYTES)
        if not data:
            return
        for line in lines.feed(data):
            try:
                command = wire.command(line)
            except wire.WireError as error:
                refusals.tell(f"refused a command: {error}")
                continue
            control.sendall(wire.line(agent.obey(command)))


def _live(control: socket.socket, spec: Mapping[str, Any], gpu: Mapping[str, Any], content: Content) -> None:
    """An agent's whole life, in the process that was forked for it."""
    _enter(gpu["host_pid"])
    _libc.prctl(_PR_SET_TIMERSLACK, 1)  # or a sleep may end 50 us late
    refusals = Refusals(f"GPU {gpu['rank']}")
    agent = Agent(
        rank=gpu["rank"],
        address=gpu["address"],
        interface=gpu["interface"],
        settings=transport.Transport(**spec["transport"]),
        limits=transport.Limits(**spec["limits"]),
        content=content,
        chunk_bytes=spec["chunk_bytes"],
        reply_s=spec["deadline_s"],
        token=spec["token"],
        refusals=refusals,
    )
    try:
        control.sendall(wire.line({"pid": os.getpid()}))
        _serve(agent, control, refusals)
    finally:
        agent.abort()


def _child(control: socket.socket, spec: Mapping[str, Any], gpu: Mapping[str, Any], content: Content) -> NoReturn:
    status = 1
    try:
        _live(control, spec, gpu, content)
        status = 0
    except (AgentError, OSError, ValueError) as error:
        text = f"cannot go on: {reason(error)}" if isinstance(error, OSError) else str(error)
        with suppress(OSError):
            control.sendall(wire.line({"error": text}))
    except Exception:  # a mistake of ours, to be seen
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _enter(host_pid: int) -> None:
    """Enter the network of the process that is a GPU's host."""
    try:
        fd = os.open(f"/proc/{host_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise AgentError(f"has no host: process {host_pid} has no network ({reason(error)})") from None
    try:
        if _libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"process {host_pid}'s network cannot be entered")
    finally:
        os.close(fd)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it, in the process `parent`, ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def main() -> None:
    """Fork an agent for every GPU of the specification that stands on stdin, in rank order, and outlive them all."""
    _die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the communicator ends its agents itself
    try:
        spec = wire.spec(sys.stdin.buffer.readline(wire.MAX_SPEC_BYTES + 1))
    except wire.WireError as error:
        sys.exit(f"the nursery of the agents refuses what it is to do: {error}")
    transport.lift_memory_limit()
    content = Content(ranks=len(spec["gpus"]), chunk_bytes=spec["chunk_bytes"])
    controls = [socket.socket(fileno=gpu["control_fd"]) for gpu in spec["gpus"]]
    agents: set[int] = set()
    for gpu, control in zip(spec["gpus"], controls, strict=True):
        agents.add(_fork(control, controls, spec, gpu, content))
    for control in controls:  # so that each is closed when its agent ends
        control.close()
    _outlive(agents)


def _fork(
    control: socket.socket,
    controls: Sequence[socket.socket],
    spec: Mapping[str, Any],
    gpu: Mapping[str, Any],
    content: Content,
) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _die_with_parent(parent)
        for other in controls:
            if other is not control:
                other.close()
        _child(control, spec, gpu, content)
    return pid


def _outlive(agents: set[int]) -> None:
    """Wait until all agents have ended; SIGTERM kills those that have not, so that none is left to anyone else."""

    def kill(*_: object) -> None:
        for pid in agents:
            os.kill(pid, signal.SIGKILL)  # it is ours until we have waited for it

    signal.signal(signal.SIGTERM, kill)
    while agents:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        agents.discard(ended.si_pid)  # first forgotten and then reaped: its number may be another process's next
        os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    main()
