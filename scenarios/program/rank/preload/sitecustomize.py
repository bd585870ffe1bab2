"""Runs at the start of every Python interpreter of a rank (`program.preload`): hands the program over to a process that
has the wanted modules in memory, and stands in for it: it passes on signals, and ends as the program ends.

What cannot be handed over (another interpreter, options such as -X or -I, a prompt) starts as always. The user's own
sitecustomize runs in any case.
"""

import array
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_LIMITS = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})
_SOCKET = "/run/longhaul-preload"
_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    *(signal.SIGCONT, signal.SIGWINCH),
)


def _run_of_user() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    own = str(Path(__file__).parent)
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != own])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def _program(words: list[str]) -> tuple[list[str], bool] | None:
    """Return the arguments of an interpreter from its script, -m or -c on, and whether its output is unbuffered; None
    for what cannot be handed over."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while words and words[0] == "-u":
        words, unbuffered = words[1:], True
    if not words or (words[0].startswith("-") and (words[0] not in ("-m", "-c") or len(words) < 2)):
        return None
    return words, unbuffered


def _inherits_more() -> bool:
    """Return whether the interpreter has got more than input, output and errors, as workers of multiprocessing do."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                return True
        except OSError:  # the descriptor of the list itself
            continue
    return False


def _hand_over() -> None:
    """Hand the program over and end as it ends; return if that is not possible."""
    found = _program(sys.orig_argv[1:])
    if found is None or os.environ.get("LONGHAUL_ZYGOTE") or _inherits_more():
        return
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(_SOCKET)
    except OSError:  # a program that is not a rank's
        return
    answers = connection.makefile("rb")
    greeting = json.loads(answers.readline() or b"{}")
    if greeting != {"executable": os.path.realpath(sys.executable), "prefix": sys.prefix, "version": sys.version}:
        return
    words, unbuffered = found
    request = {
        "words": words,
        "unbuffered": unbuffered,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "path": sys.path,
        "umask": _umask(),
        "limits": [[kind, *resource.getrlimit(kind)] for kind in _LIMITS],
        "executable": sys.executable,
        "orig_argv": sys.orig_argv,
    }
    # Otherwise a signal between the request and the handlers would start the program here, a second time.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    data = json.dumps(request).encode()
    rights = array.array("i", [0, 1, 2])
    try:
        connection.sendmsg([len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError:  # one of the three is closed
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return
    connection.sendall(data)
    pid = json.loads(answers.readline() or b"{}").get("pid")
    if pid is None:
        os._exit(1)  # the process with the modules has ended, as the run has
    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: _pass_on(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    for descriptor in rights:
        os.close(descriptor)  # so that a pipe ends when the program closes it
    status = json.loads(answers.readline() or b"{}").get("status", 1)
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 1)


def _pass_on(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_run_of_user()
_hand_over()
