"""Forks the command from a process that has already imported its modules, which saves an eighth of the processor time.

Apart from the imports, the command runs as if it had been started: with a supervisor, signals, folder, environment and
streams. Tests that concern its start, or that end it early, start it (`runs.started`).
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache

from tests.conftest import PROJECT

_REQUEST_BYTES = 1 << 20
_MODULES = (
    "scenarios.experiment.command",
    "scenarios.experiment.runner",
    "analysis.report.__main__",
    "analysis.model.fluid_jit",
)


def run(arguments, cwd, timeout_s=600):
    """Run the command until it ends; return its exit status, its output and its error output."""
    server = _server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        asked = {"arguments": arguments, "cwd": str(cwd), "environment": dict(os.environ)}
        server.settimeout(timeout_s)
        try:
            socket.send_fds(server, [json.dumps(asked).encode()], [out.fileno(), err.fileno()])
            answer = server.recv(_REQUEST_BYTES)
        except BaseException:
            server.close()  # ends the command, and the server
            _server.cache_clear()
            raise
        assert answer, "the process that forks commands has ended"
        out.seek(0)
        err.seek(0)
        return int(answer), out.read(), err.read()


@cache
def _server():
    """Start a server for this process, which ends with it; return the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # The server forks, so that it is no child of this process: some tests look at all children.
        subprocess.run([sys.executable, "-m", __name__], stdin=theirs, cwd=PROJECT, check=True)
    return ours


def _serve():
    """Fork a command for each request; return 0 at the end of the connection and, in each forked process, the exit
    status of its command."""
    requests = socket.socket(fileno=0)
    for name in _MODULES:
        importlib.import_module(name)
    sys.modules["analysis.figures.output"]._PNG_DPI = 20  # as `few_pixels` in tests/analysis/conftest.py
    gc.collect()
    gc.freeze()
    while True:
        request, fds, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not request:
            return 0
        pid = os.fork()
        if pid == 0:
            return _command(requests, fds, **json.loads(request))
        for fd in fds:
            os.close(fd)
        ended = os.pidfd_open(pid)
        ready, *_ = select.select([ended, requests], [], [])
        os.close(ended)
        if requests in ready:  # the connection was closed: nobody waits for the command any more
            os.kill(pid, signal.SIGKILL)  # its child ends with it
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if requests not in ready:
            requests.send(b"%d" % status)


def _command(requests, fds, arguments, cwd, environment):
    from scenarios import run, signals

    os.setsid()
    os.chdir(cwd)
    requests.detach()
    for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), *fds)):  # replace the server's streams
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [run.__file__, *arguments]
    return signals.supervised(run.main)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    sys.exit(_serve())
