"""``python -m controller [--gpus N | --fabric FILE] [--socket PATH] [--port N]``: the controller of one fabric."""

import sys

from controller import framework  # isort: skip  (before whatever uses sockets)

import argparse
import logging
import os
import signal
import socket
from pathlib import Path

from controller.declaration import COUNTS, DeclarationError, default_socket, fabric_of
from controller.lines import ProtocolError
from controller.protocol import MAX_TOKEN
from controller.service import SocketTakenError
from topologies.wan import WAN_PRESETS

_FAILED = 0  # no signal's number
_LOOK_AGAIN_S = 0.01
_LOGGED = 300  # characters of what is logged


def main(arguments: list[str]) -> int:
    """Run the controller until SIGTERM or SIGINT; return its exit status: 0 then, 1 if it failed, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, handlers=[_log()])
    counts = {name: getattr(options, name) for name in COUNTS if getattr(options, name) is not None}
    try:
        fabric = fabric_of(options.fabric, counts)
    except DeclarationError as error:
        print(f"controller: {error}", file=sys.stderr)
        return 2
    try:
        token = _read_token(options.token)
    except (OSError, ProtocolError) as error:
        print(f"controller: the token {options.token} cannot be had: {_sentence(error)}", file=sys.stderr)
        return 2
    stopped, stop = _signals()
    try:
        options.socket = options.socket or default_socket()
        if _is_listened_on(options.port):  # the framework would only log it, and stay deaf
            raise SocketTakenError(f"port {options.port} cannot be listened on: it is in use")
        threads = framework.start(
            "controller.app", port=options.port, fabric=fabric, socket_path=options.socket, token=token
        )
    except (SocketTakenError, ValueError) as error:
        print(f"controller: {_sentence(error)}", file=sys.stderr)
        return 1
    framework.hub.spawn(_watch, threads, stop)
    framework.hub.spawn(_tell, options.port, options.socket)
    why = ord(stopped.recv(1))
    framework.AppManager.get_instance().applications["RouteApp"].close()
    if why == _FAILED:
        print(f"controller: the OpenFlow listener on port {options.port} has ended", file=sys.stderr)
    return 1 if why == _FAILED else 0


class _OneLine(logging.Formatter):
    """A line for everything, also for what the framework tells with a traceback, as of a message that is malformed."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        words = record.getMessage().replace("\n", "; ")[:_LOGGED]
        if record.exc_info and record.exc_info[1] is not None:
            words += f" ({type(record.exc_info[1]).__name__}: {str(record.exc_info[1])[:_LOGGED]})"
        return f"controller: {words}"


def _log() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    return handler


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controller", description="Route one fabric by OpenFlow 1.3.")
    add = parser.add_argument
    add("--gpus", metavar="N", help="how many GPUs the fabric has: 8 (the default), or a number per site, as 3+5")
    for name in COUNTS[1:4]:
        add(f"--{name.replace('_', '-')}", metavar="N", help=f"{name.replace('_', ' ')} of a site (default 2)")
    add("--wan", metavar="NAME", help=f"of {', '.join(WAN_PRESETS)} (default {WAN_PRESETS[0]})")
    add("--fabric", type=Path, metavar="FILE", help="the declared fabric, as JSON, instead of all of these")
    add("--socket", type=Path, metavar="PATH", help="the Unix socket to answer on (default one for each user)")
    add("--port", type=_port, default=6653, metavar="N", help="the TCP port for switches, on loopback (default 6653)")
    add("--token", type=Path, metavar="FILE", help="a request must carry what this file holds")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no TCP port; allowed: 1 to 65535")
    return int(text)


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    with path.open("rb") as file:
        found = file.read(MAX_TOKEN + 1).strip()
    if not found.isalnum() or len(found) > MAX_TOKEN:
        raise ProtocolError(f"allowed is a file of 1 to {MAX_TOKEN} letters and digits")
    return found.decode()


def _sentence(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).replace("\n", "; ")


def _signals() -> tuple[socket.socket, socket.socket]:
    """A socket that gets a byte, the signal's number, for SIGTERM and SIGINT, and the other end, to write more to."""
    stopped, stop = socket.socketpair()
    stop.setblocking(False)
    # The interpreter itself writes the number, at whatever moment the signal comes; a handler could be called after
    # the main thread has gone to wait, or not on it at all.
    signal.set_wakeup_fd(stop.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return stopped, stop


def _is_listened_on(port: int) -> bool:
    """Whether somebody listens on this port of loopback; does not listen itself, so it keeps nobody from it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((framework.LOOPBACK, port))
        except OSError:
            return True
    return False


def _tell(port: int, path: Path) -> None:
    """Say one line once switches can connect."""
    while not _is_listened_on(port):
        framework.hub.sleep(_LOOK_AGAIN_S)
    print(f"controller: {framework.version()}, port {port}, {path}", flush=True)


def _watch(threads: list[object], stop: socket.socket) -> None:
    """The framework's threads never end unless they fail."""
    framework.hub.joinall(threads)
    stop.send(bytes([_FAILED]))


if __name__ == "__main__":
    result = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(result)  # the framework's threads wait for switches for ever, and an ordinary exit would wait for them
