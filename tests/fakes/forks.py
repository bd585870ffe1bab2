"""The command forked by a process that has imported all that it may need, which takes an eighth less processor time.

The command's own process, with its supervisor, signals, folder, environment and streams, is as if it had been started;
only its imports are not done again. What is about starting it, or ends it early, starts it (`runs.started`).
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
    "analysis.model.fluid_kernel",
    "analysis.model.varying_kernel",
)


def run(arguments, cwd, timeout_s=600):
    """Run the command to its end; returns its exit status, its output and its error output."""
    server = _server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        asked = {"arguments": arguments, "cwd": str(cwd), "environment": dict(os.environ)}
        server.settimeout(timeout_s)
        try:
            socket.send_fds(server, [json.dumps(asked).encode()], [out.fileno(), err.fileno()])
            answer = server.recv(_REQUEST_BYTES)
        except BaseException:
            server.close()  # which ends the command, and the server
            _server.cache_clear()
            raise
        assert answer, "the process that forks commands has ended"
        out.seek(0)
        err.seek(0)
        return int(answer), out.read(), err.read()


@cache
def _server():
    """The connection to a server of this process's own, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # It becomes no child of this process, for tests that look at all of those.
        subprocess.run([sys.executable, "-m", __name__], stdin=theirs, cwd=PROJECT, check=True)
    return ours


def _serve():
    """Fork a command for each request; returns at the end of the connection, and in each of those processes its exit
    status."""
    requests = socket.socket(fileno=0)
    for name in _MODULES:
        importlib.import_module(name)
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
        if requests in ready:  # nobody waits for it any more
            os.kill(pid, signal.SIGKILL)  # its own child ends with it
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if requests not in ready:
            requests.send(b"%d" % status)


def _command(requests, fds, arguments, cwd, environment):
    from scenarios import run, signals

    os.setsid()
    os.chdir(cwd)
    requests.detach()
    for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), *fds)):  # in the place of the server's
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
