"""``python -m controller [--gpus N | --fabric FILE] [--socket PATH] [--port N]``: the controller of one fabric."""

import sys

from controller import compat  # isort: skip  (before whatever uses sockets)

import argparse
import logging
import os
import signal
import socket
from pathlib import Path

from controller.api.protocol import MAX_TOKEN
from controller.api.server import SocketTakenError
from controller.config import COUNTS, DeclarationError, default_socket, fabric_of, sentence
from topologies.fabric.wan import WAN_PRESETS

_FAILED = 0  # not a signal's number
_POLL_S = 0.01
_LOGGED = 300  # characters of a logged message


def main(arguments: list[str]) -> int:
    """Run the controller until SIGTERM or SIGINT. Exit status: 0 then, 1 if it fails, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        fabric = fabric_of(options.fabric, {n: getattr(options, n) for n in COUNTS if getattr(options, n) is not None})
        token = _read_token(options.token)
    except DeclarationError as error:
        return _fail(2, str(error))
    stopped, stop = _signals()
    try:
        path = options.socket or default_socket()
        if _is_listened_on(options.port):  # the framework would only log it, and wait for switches in vain
            raise SocketTakenError(f"port {options.port} cannot be listened on: it is in use")
        given = {"fabric": fabric, "socket_path": path, "token": token}
        threads = compat.start("controller.app", port=options.port, host=options.listen, **given)
    except (SocketTakenError, ValueError) as error:
        return _fail(1, sentence(error))
    compat.hub.spawn(_watch, threads, stop)
    compat.hub.spawn(_announce, options.port, path)
    reason = ord(stopped.recv(1))
    compat.AppManager.get_instance().applications["RouteApp"].close()
    return _fail(1, f"the OpenFlow listener on port {options.port} has ended") if reason == _FAILED else 0


def _fail(status: int, what: str) -> int:
    print(f"controller: {what}", file=sys.stderr)
    return status


class _OneLine(logging.Formatter):
    """One line for every record, also where the framework logs a traceback, as for a malformed message."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage().replace("\n", "; ")[:_LOGGED]
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {str(record.exc_info[1])[:_LOGGED]})"
        return f"controller: {text}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controller", description="Route one fabric by OpenFlow 1.3.")
    add = parser.add_argument
    add("--gpus", metavar="N", help="how many GPUs the fabric has: 8 (the default), or a number per site, as 3+5")
    for name in COUNTS[1:4]:
        add(f"--{name.replace('_', '-')}", metavar="N", help=f"{name.replace('_', ' ')} of a site (default 2)")
    add("--wan", metavar="NAME", help=f"of {', '.join(WAN_PRESETS)} (default {WAN_PRESETS[0]})")
    add("--fabric", type=Path, metavar="FILE", help="the declared fabric, as JSON, instead of all of these")
    add("--socket", type=Path, metavar="PATH", help="the Unix socket to answer on (default one for each user)")
    add("--port", type=_port, default=6653, metavar="N", help="the TCP port for switches (default 6653)")
    add("--listen", default=compat.LOOPBACK, metavar="ADDRESS", help="the address that it is at (default loopback)")
    add("--token", type=Path, metavar="FILE", help="a request must carry what this file holds")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a TCP port; allowed: 1 to 65535")
    return int(text)


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN + 1).strip()
    except OSError as error:
        raise DeclarationError(f"the token {path} cannot be read: {sentence(error)}") from None
    if not token.isalnum() or len(token) > MAX_TOKEN:
        raise DeclarationError(f"the token {path} cannot be used: expected 1 to {MAX_TOKEN} letters and digits")
    return token.decode()


def _signals() -> tuple[socket.socket, socket.socket]:
    """A socket that receives a byte, the signal's number, for SIGTERM and SIGINT; and its other end, to write more."""
    stopped, stop = socket.socketpair()
    stop.setblocking(False)
    # The interpreter writes the number whenever the signal comes; a handler could run after the main thread has begun
    # to wait, or not on it at all.
    signal.set_wakeup_fd(stop.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return stopped, stop


def _is_listened_on(port: int) -> bool:
    """Whether this port of loopback is in use; does not listen itself, so that no other process finds it in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((compat.LOOPBACK, port))
        except OSError:
            return True
    return False


def _announce(port: int, path: Path) -> None:
    """Print one line once switches can connect."""
    while not _is_listened_on(port):
        compat.hub.sleep(_POLL_S)
    print(f"controller: {compat.version()}, port {port}, {path}", flush=True)


def _watch(threads: list[object], stop: socket.socket) -> None:
    """Report the end of the framework's threads, which end only if they fail."""
    compat.hub.joinall(threads)
    stop.send(bytes([_FAILED]))


if __name__ == "__main__":
    result = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(result)  # the framework's threads wait for switches for ever, and an ordinary exit would wait for them
