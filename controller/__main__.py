"""``python -m controller [--gpus N | --fabric FILE] [--socket PATH] [--port N]``: run the controller of one fabric."""

import sys

from controller import compat  # isort: skip  (before any module that uses sockets)

import argparse
import logging
import math
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from controller.api.protocol import MAX_TOKEN
from controller.api.server import SocketTakenError
from controller.config import COUNTS, DeclarationError, default_socket, fabric_of, sentence
from topologies.command_line import CommandParser
from topologies.fabric.fabric import Fabric
from topologies.fabric.wan import WAN_PRESETS
from topologies.linux import make_timers_exact

_FAILED = 0  # written to the socket of signal numbers; no signal has this number
_POLL_S = 0.01
_LOGGED = 300  # most characters of a message in the log


def main(arguments: list[str]) -> int:
    """Run the controller until SIGTERM or SIGINT; return exit status 0 then, 1 if it fails, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        fabric = fabric_of(options.fabric, {n: getattr(options, n) for n in COUNTS if getattr(options, n) is not None})
        token, elsewhere = _read_token(options.token), _elsewhere(options.elsewhere, fabric)
    except DeclarationError as error:
        return _fail(2, str(error))
    if any(elsewhere.values()):
        make_timers_exact()  # of the threads to come, which wait for these times
    stopped, stop = _signals()
    try:
        path = options.socket or default_socket()
        if _is_listened_on(options.port):  # the framework would only log the error, and no switch could connect
            raise SocketTakenError(f"port {options.port} cannot be listened on: it is in use")
        of_app = {"fabric": fabric, "socket_path": path, "token": token, "elsewhere": elsewhere}
        threads = compat.start("controller.app", port=options.port, host=options.listen, **of_app)
    except (SocketTakenError, ValueError) as error:
        return _fail(1, sentence(error))
    compat.hub.spawn(_watch, threads, stop)
    compat.hub.spawn(_announce, options.port, path)
    reason = ord(stopped.recv(1))
    compat.AppManager.get_instance().applications["RouteApp"].close()
    return _fail(1, f"the OpenFlow listener on port {options.port} has ended") if reason == _FAILED else 0


def _fail(status: int, message: str) -> int:
    print(f"controller: {message}", file=sys.stderr)
    return status


class _OneLine(logging.Formatter):
    """Formats every log record as one line, even where the framework logs a traceback (for a malformed message)."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage().replace("\n", "; ")[:_LOGGED]
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {str(record.exc_info[1])[:_LOGGED]})"
        return f"controller: {text}"


def _parser() -> CommandParser:
    parser = CommandParser(prog="python -m controller", description="Route one fabric by OpenFlow 1.3.")
    add = parser.add_argument
    add("--gpus", metavar="N", help="number of GPUs in the fabric, 8 by default, or a number per site, as in 3+5")
    for name in COUNTS[1:4]:
        add(f"--{name.replace('_', '-')}", metavar="N", help=f"{name.replace('_', ' ')} per site (default 2)")
    add("--wan", metavar="NAME", help=f"WAN preset, one of {', '.join(WAN_PRESETS)} (default {WAN_PRESETS[0]})")
    add("--fabric", type=Path, metavar="FILE", help="JSON file that declares the fabric, instead of the options above")
    add("--socket", type=Path, metavar="PATH", help="Unix socket for requests (by default one per user)")
    add("--port", type=_port, default=6653, metavar="N", help="TCP port for switches (default 6653)")
    add("--listen", default=compat.LOOPBACK, metavar="ADDRESS", help="address of that port (default loopback)")
    add(
        "--elsewhere",
        default="",
        metavar="NAMES",
        help="switches of the fabric that have another controller, as s1l0,s1p0; with =SECONDS to their answers",
    )
    add("--token", type=Path, metavar="FILE", help="file with the token that every request must carry")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a TCP port; allowed: 1 to 65535")
    return int(text)


def _elsewhere(names: str, fabric: Fabric) -> Mapping[str, float]:
    """Return the switches that have another controller, and after how many seconds they confirm its messages.

    Raises DeclarationError for a switch that is not in the fabric, and for a text that is not a time.
    """
    parts = [name.partition("=") for name in names.split(",") if name]
    known = {switch.name for switch in fabric.switches}
    found = dict[str, float]()
    for name, _, after in parts:
        if name not in known:
            raise DeclarationError(f"--elsewhere {name}: the fabric has no such switch")
        try:
            found[name] = float(after or 0)
        except ValueError:
            found[name] = -1.0
        if not 0 <= found[name] < math.inf:
            raise DeclarationError(f"--elsewhere {name}={after}: allowed: a time in seconds, 0 or more")
    return found


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN + 1).strip()
    except OSError as error:
        raise DeclarationError(f"the token file {path} cannot be read: {sentence(error)}") from None
    if not token.isalnum() or len(token) > MAX_TOKEN:
        raise DeclarationError(f"the token file {path} must hold 1 to {MAX_TOKEN} letters and digits")
    return token.decode()


def _signals() -> tuple[socket.socket, socket.socket]:
    """Return a socket that receives the number of each SIGTERM and SIGINT as a byte, and its other end to write to."""
    stopped, stop = socket.socketpair()
    stop.setblocking(False)
    # The interpreter writes the number as soon as the signal arrives. A Python handler would run too late, after the
    # main thread has begun to wait, or not on that thread at all.
    signal.set_wakeup_fd(stop.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return stopped, stop


def _is_listened_on(port: int) -> bool:
    """Return whether a port of loopback is in use. Only binds, so that no other process finds the port in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((compat.LOOPBACK, port))
        except OSError:
            return True
    return False


def _announce(port: int, path: Path) -> None:
    """Wait until switches can connect, then print one line."""
    while not _is_listened_on(port):
        compat.hub.sleep(_POLL_S)
    print(f"controller: {compat.version()}, port {port}, {path}", flush=True)


def _watch(threads: list[object], stop: socket.socket) -> None:
    """Wait for the framework's threads, which end only if they fail, and report that to `main`."""
    compat.hub.joinall(threads)
    stop.send(bytes([_FAILED]))


if __name__ == "__main__":
    result = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(result)  # an ordinary exit would wait for the framework's threads, which never end
