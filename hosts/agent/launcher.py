"""Forks one agent per host: `python -m hosts.agent.launcher PARENT`, with the agents' settings as JSON on stdin.

In the VM, starting Python and importing modules take longest, so both happen once, in this process, and each agent is
a fork of it. The launcher forks agents in rank order, so that they are the same from boot to boot, and waits until the
last one has ended. It dies with its parent, and the agents die with it.
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hosts.agent import messages, transport
from hosts.agent.agent import Agent, Job
from hosts.agent.execution import AgentError, reason
from hosts.agent.payload import Payload
from topologies.linux import die_with_parent, enter_network, make_timers_exact


def main() -> None:
    """Fork an agent for every GPU in the JSON object on stdin, and wait until all have ended.

    The object is `{"gpus": [...], "job": {...}}`. A GPU has a `rank`, `address`, `interface`, `host_pid` (a process in
    its host's network namespace) and `control_fd`; the job has the fields of `agent.Job`.
    """
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the communicator ends its agents itself
    request = json.load(sys.stdin)
    gpus, job_values = request["gpus"], request["job"]
    chosen = transport.CongestionControl(**job_values["transport"].pop("congestion_control"))
    settings = transport.Transport(**job_values["transport"], congestion_control=chosen)
    job = Job(**job_values | {"transport": settings, "limits": transport.Limits(**job_values["limits"])})
    transport.lift_memory_limit()
    payload = _payload(job)
    fds = [gpu["control_fd"] for gpu in gpus]
    launcher_pid, agents = os.getpid(), set[int]()
    for index, gpu in enumerate(gpus):
        if (pid := os.fork()) == 0:
            die_with_parent(launcher_pid)
            if later := fds[index + 1 :]:  # so that a control connection is closed when its agent ends
                os.closerange(min(later), max(later) + 1)  # no other descriptor lies between them
            _child(socket.socket(fileno=fds[index]), gpu, job, payload)
        agents.add(pid)
        os.close(fds[index])
    _outlive(agents)


def _payload(job: Job) -> Payload:
    """Return the payload of a job. Only sums need numpy, which takes long to import in the VM."""
    if not job.sums:
        return Payload(windows=job.windows, window_bytes=job.window_bytes)
    from hosts.agent.reduction import Sums

    return Sums(windows=job.windows, window_bytes=job.window_bytes)


def _child(control: socket.socket, gpu: Mapping[str, Any], job: Job, payload: Payload) -> None:
    """Run an agent in its forked process until it ends; does not return."""
    try:
        _enter(gpu["host_pid"])
        make_timers_exact()
        agent = Agent(rank=gpu["rank"], address=gpu["address"], interface=gpu["interface"], job=job, payload=payload)
        try:
            messages.send(control, {"pid": os.getpid()})
            _serve(agent, control)
        finally:
            agent.abort()
    except (AgentError, OSError, ValueError) as error:
        text = f"cannot go on: {reason(error)}" if isinstance(error, OSError) else str(error)
        with suppress(OSError):
            messages.send(control, {"error": text})
    except Exception:  # a bug, which must be visible in the log
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _serve(agent: Agent, control: socket.socket) -> None:
    """Execute commands until the communicator closes the control connection or a command fails, which ends the agent;
    then the agents that are connected to it fail as well. Between commands the listener checks new connections."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(agent.listener, select.POLLIN)
    while True:
        wait_s = agent.listener.wait_s()
        ready = [fd for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000 + 1)]
        if control.fileno() not in ready:
            agent.listener.poll()
            continue
        command = messages.receive(control)
        if command is None:
            return
        messages.send(control, getattr(agent, command.pop("do"))(**command) or {})


def _enter(host_pid: int) -> None:
    """Enter the network namespace of a GPU's host, a process."""
    try:
        fd = os.open(f"/proc/{host_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise AgentError(f"has no host: process {host_pid} has no network ({reason(error)})") from None
    try:
        enter_network(fd)
    finally:
        os.close(fd)


def _outlive(agents: set[int]) -> None:
    """Wait until all agents have ended; on SIGTERM kill the remaining ones and reap them here, not in init."""

    def kill(*_: object) -> None:
        for pid in agents:
            os.kill(pid, signal.SIGKILL)  # safe: an unreaped child keeps its pid

    signal.signal(signal.SIGTERM, kill)
    while agents:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        agents.discard(ended.si_pid)  # before reaping it: afterwards its pid may belong to another process
        os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    main()
