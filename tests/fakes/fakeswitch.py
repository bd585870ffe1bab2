"""Fake OpenFlow 1.3 switches that misbehave as a test wants. Written from the specification, byte by byte."""

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

HELLO, ERROR, ECHO, ECHO_REPLY, FEATURES, FEATURES_REPLY, FLOW_MOD = 0, 1, 2, 3, 5, 6, 14
MULTIPART, MULTIPART_REPLY, BARRIER, BARRIER_REPLY = 18, 19, 20, 21
PORT_STATS, PORT_DESC, FLOW_MOD_FAILED, TABLE_FULL = 4, 13, 5, 1
ADD, DELETE = 0, 3


@dataclass
class Seen:
    """The events at all switches, in order: (switch, event, cookie, cookie mask)."""

    events: list[tuple[str, str, int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, switch: str, what: str, cookie: int = 0, mask: int = 0) -> None:
        with self.lock:
            self.events.append((switch, what, cookie, mask))


class FakeSwitch:
    """A switch that connects at once. It confirms barriers after `delay_s`, unless it is `silent`. If it is `full`, it
    refuses rules; with `hangs_up` it closes the connection at the next rule."""

    def __init__(self, name: str, dpid: int, port: int, seen: Seen, *, silent: bool = False) -> None:
        self.name, self.dpid, self.seen = name, dpid, seen
        self.sent_bytes: list[int] = []  # by port from 1 on
        self.delay_s, self.silent, self.full, self.hangs_up = 0.0, silent, False, False
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def hung_up_on(self, timeout_s: float) -> bool:
        """Wait until the controller has closed the connection; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            try:
                self._say(HELLO, 1)
                while head := self._read(8):
                    _, kind, length, xid = struct.unpack("!BBHI", head)
                    if not self._hear(kind, xid, head + self._read(length - 8)):
                        return
            except OSError:
                return

    def _hear(self, kind: int, xid: int, message: bytes) -> bool:
        if kind == ECHO:
            self._say(ECHO_REPLY, xid, message[8:])
        elif kind == FEATURES:
            self._say(FEATURES_REPLY, xid, struct.pack("!QIBBxxII", self.dpid, 0, 1, 0, 0, 0))
        elif kind == MULTIPART and struct.unpack_from("!H", message, 8)[0] == PORT_STATS:
            for port, sent_bytes in enumerate(self.sent_bytes, 1):  # a reply each; all but the last announce more
                more = int(port < len(self.sent_bytes))
                counters = struct.pack("!Ixxxx12QII", port, 0, 0, 0, sent_bytes, *[0] * 10)
                self._say(MULTIPART_REPLY, xid, struct.pack("!HHxxxx", PORT_STATS, more) + counters)
        elif kind == MULTIPART:
            self._say(MULTIPART_REPLY, xid, struct.pack("!HHxxxx", PORT_DESC, 0))
        elif kind == FLOW_MOD:
            cookie, mask, _, command = struct.unpack_from("!QQBB", message, 8)
            self.seen.add(self.name, {ADD: "add", DELETE: "delete"}[command], cookie, mask)
            if self.full:
                self._say(ERROR, xid, struct.pack("!HH", FLOW_MOD_FAILED, TABLE_FULL) + message[:64])
            return not self.hangs_up
        elif kind == BARRIER and not self.silent:
            time.sleep(self.delay_s)
            self.seen.add(self.name, "confirm")
            self._say(BARRIER_REPLY, xid)
        return True

    def _say(self, kind: int, xid: int, body: bytes = b"") -> None:
        self._socket.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body)

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            got = self._socket.recv(count - len(found))
            if not got:
                return b""
            found += got
        return found
