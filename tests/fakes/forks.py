"""The command forked by a process that has imported all that it may need: half the processor time of a short run.

The command's own process, with its supervisor, signals, folder, environment and streams, is as if it had been started;
only its imports are not done again. What is about starting it, or ends it early, starts it (`runs.started`).
"""

import gc
import importlib
import json
import os
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
    "analysis.model.fluid_kernel",
    "analysis.model.varying_kernel",
)


def run(arguments, cwd, timeout_s=600):
    """Run the command to its end; returns its exit status, its output and its error output."""
    server = _server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        asked = {"arguments": arguments, "cwd": str(cwd), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(asked).encode()], [out.fileno(), err.fileno()])
        pid = int(server.recv(_REQUEST_BYTES))
        server.settimeout(timeout_s)
        try:
            status = int(server.recv(_REQUEST_BYTES))
        except BaseException:
            os.kill(pid, 9)  # what it has started ends with it
            server.settimeout(None)
            server.recv(_REQUEST_BYTES)
            raise
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()


@cache
def _server():
    """The connection to a server of this process's own, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # It is no child of this process, for tests that look at all of those.
        subprocess.run([sys.executable, "-m", __name__], stdin=theirs, cwd=PROJECT, check=True)
    return ours


def _serve():
    """Fork a command for each request; returns at the end of the connection, and in each of those processes its exit
    status."""
    requests = socket.socket(fileno=0)
    _import()
    while True:
        request, fds, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not request:
            return 0
        pid = os.fork()
        if pid == 0:
            return _command(requests, fds, **json.loads(request))
        requests.send(b"%d" % pid)
        for fd in fds:
            os.close(fd)
        requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _command(requests, fds, arguments, cwd, environment):
    from scenarios import run, signals

    os.setsid()
    os.chdir(cwd)
    for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), *fds)):  # in the place of the server's
        os.dup2(fd, number)
        os.close(fd)
    requests.detach()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [run.__file__, *arguments]
    return signals.supervised(run.main)


def _import():
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    sys.exit(_serve())
