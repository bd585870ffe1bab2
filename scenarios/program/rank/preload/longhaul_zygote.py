"""The process from which the Python programs of ranks are forked (`program.preload`), with modules in its memory.

    python longhaul_zygote.py LISTENER READY UID GID CAPABILITIES MODULE...

runs as root with the user's effective rights, imports the modules, writes a line to the descriptor READY (the reason if
a module cannot be imported), and serves the Unix socket of the descriptor LISTENER. Whoever connects
(`sitecustomize`) gets a process of its own in its own namespaces, with its own input, output, directory, environment
and arguments, and with no more rights than it has itself. CAPABILITIES is the mask of those that ranks have.

It uses the standard library only, because the interpreter is the user's.
"""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import types
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, NamedTuple

_NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount cgroup uts ipc pid net
_CAPBSET_DROP, _SET_SECUREBITS, _SET_NO_NEW_PRIVS, _SET_DUMPABLE, _CAP_AMBIENT = 24, 28, 38, 4, 47
_AMBIENT_RAISE, _NO_SETUID_FIXUP = 2, 1 << 2
_CAPABILITY_VERSION = 0x20080522
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_FAILED = 1
_LATER = {"torch": ("torch._dynamo",)}
"""Modules that others import only when they are used, as torch does for the first optimizer: that takes half as much
processor time as torch itself."""

_libc = ctypes.CDLL(None, use_errno=True)


class User(NamedTuple):
    """The user of the ranks, and the mask of the capabilities that they have."""

    uid: int
    gid: int
    capabilities: int


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _prctl(*arguments: int) -> None:
    _check(_libc.prctl(*(ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:5])))


def _set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low = (effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, inheritable & 0xFFFFFFFF)
    high = (effective >> 32, permitted >> 32, inheritable >> 32)
    _check(_libc.capset(header, struct.pack("=6I", *low, *high)))


def _permitted() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapPrm:"))


def _become(user: User) -> None:
    """Give up all rights but those of the user, for good, as setpriv does for a rank's shell."""
    uid, gid, capabilities = user
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for number in range(last + 1):
        if not capabilities >> number & 1:
            _prctl(_CAPBSET_DROP, number)
    if capabilities:
        _prctl(_SET_SECUREBITS, _NO_SETUID_FIXUP)
    os.setresuid(uid, uid, uid)
    _set_capabilities(capabilities, capabilities, capabilities)
    for number in range(last + 1):
        if capabilities >> number & 1:
            _prctl(_CAP_AMBIENT, _AMBIENT_RAISE, number)
    _prctl(_SET_NO_NEW_PRIVS, 1)
    _prctl(_SET_DUMPABLE, 1)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request and its three descriptors."""
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    length, data = int.from_bytes(head, "big"), b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return json.loads(data), descriptors


def _tell(connection: socket.socket, **message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _serve(listener: socket.socket, user: User) -> dict[str, Any]:
    """Fork a process for every connection; return the request in each process that is to run one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _stand_by(connection, user)
        connection.close()


def _stand_by(connection: socket.socket, user: User) -> dict[str, Any]:
    """Fork the process that runs the program in the namespaces of the one at the other end; return in it alone. In this
    one wait for its end, tell it, and end."""
    greeting = {"executable": os.path.realpath(sys.executable), "prefix": sys.prefix, "version": sys.version}
    try:
        _tell(connection, **greeting)
        request, descriptors = _receive(connection)
    except (OSError, EOFError):
        os._exit(0)  # the other end is another interpreter
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        process = os.pidfd_open(pid)
        _check(_libc.setns(process, _NAMESPACES))
        os.close(process)
        child = os.fork()
        if child == 0:
            os.setsid()  # otherwise a signal to its process group would reach those of other ranks
            for kind, *limits in request["limits"]:
                resource.setrlimit(kind, tuple(limits))
            _become(user)
            _tell(connection, pid=os.getpid())
            connection.close()
            _take_on(request, descriptors)
            return request
    except OSError as error:
        os.write(descriptors[2], f"the program could not be started from its preloaded modules: {error}\n".encode())
        os._exit(_FAILED)
    for descriptor in (0, 1, 2, *descriptors):
        os.close(descriptor)
    ends = select.poll()
    ends.register(os.pidfd_open(child), select.POLLIN)
    ends.register(connection, select.POLLIN)
    ends.poll()
    if select.select([connection], [], [], 0)[0]:  # the process that stands in was killed
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):  # it was killed
        _tell(connection, status=os.waitstatus_to_exitcode(status))
    os._exit(0)


def _take_on(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take on the descriptors, directory, environment and module path of the process that stands in for this one."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.umask(request["umask"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    sys.executable, sys.orig_argv = request["executable"], request["orig_argv"]
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        lines = name == "stderr" or (mode == "w" and os.isatty(number))
        stream: Any = open(
            number, mode, buffering=1 if lines else -1, errors=_ERRORS[name], encoding="utf-8", closefd=False
        )
        if mode == "w" and request["unbuffered"]:
            stream.reconfigure(write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "numpy" in sys.modules:  # the module random does so by itself
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and os.environ.get(_AUTOLOAD, "1") == "1":
        sys.modules["torch"]._import_device_backends()  # extensions depend on the environment of the rank


_ERRORS = {"stdin": "strict", "stdout": "strict", "stderr": "backslashreplace"}


def _main_module(file: str | None) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None, __loader__=None, __package__=None)
    if file is not None:
        main.__file__ = os.path.abspath(file)
    sys.modules["__main__"] = main
    return main


def _run(words: list[str]) -> None:
    """Run a program as the interpreter does: a script, -m MODULE or -c CODE, with their arguments."""
    first, *rest = words
    if first == "-m":
        import runpy

        _main_module(None)
        sys.argv = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), _main_module(None).__dict__)
        return
    sys.argv = words
    if os.path.isdir(first) or first.endswith((".zip", ".pyz")):
        import runpy

        runpy.run_path(first, run_name="__main__")
        return
    try:
        with open(first, "rb") as file:
            code = file.read()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {os.path.abspath(first)!r}: {why}", file=sys.stderr)
        sys.exit(2)
    sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
    exec(compile(code, os.path.abspath(first), "exec"), _main_module(first).__dict__)


def _without_own_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    _print_exception(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    own, ready = map(int, sys.argv[1:3])
    user = User(*map(int, sys.argv[3:6]))
    os.environ[_AUTOLOAD] = "0"
    os.seteuid(user.uid)
    _set_capabilities(user.capabilities, _permitted(), 0)
    try:
        for name in sys.argv[6:]:
            import_module(name)
            for later in _LATER.get(name, ()):
                with suppress(ImportError):  # another version has other modules
                    import_module(later)
    except Exception as error:
        os.write(ready, f"{type(error).__name__}: {error}".splitlines()[0].encode() + b"\n")
        sys.exit(_FAILED)
    os.seteuid(0)
    gc.collect()
    gc.freeze()  # so that a collection does not copy what is shared
    os.write(ready, b"\n")
    os.close(ready)
    request = _serve(socket.socket(fileno=own), user)
    _print_exception = sys.excepthook
    sys.excepthook = _without_own_frames
    _run(request["words"])
