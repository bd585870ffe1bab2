"""AllReduces of two ranks over UDP, with a scheme of one's own for losses: what `selective_repeat` and `erasure_code`
share. An AllReduce is two exchanges of half the buffer, both ways at once."""

import json
import os
import socket
import struct
import time
from collections.abc import Iterable
from typing import ClassVar

RANK, HOSTS, PORT = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split(), 7000
HEAD = struct.Struct("!BII")
DATA, END, MISSING = range(3)
_LARGEST, _ASKED_FOR = 65_535, 2000


class Exchange:
    """A message each way. A scheme says what follows a datagram (`further`), and looks at what arrives (`arrived`).

    What is missing at the end is asked for, and again when nothing of it has come for `patience_s`. Who has all goes
    on, and still sends again what the other rank asks for: all messages of a rank are alike.
    """

    early: ClassVar[list[bytes]] = []  # of the next exchange, which the other rank has begun

    def __init__(self, link: socket.socket, stage: int, message: list[bytes], patience_s: float) -> None:
        self.link, self.stage, self.message = link, stage, message
        self.patience_s, self.due_s = patience_s, 0.0
        self.got: list[bytes | None] = [None] * len(message)
        self.lacking, self.asked = len(message), set[int]()

    def further(self, number: int) -> Iterable[tuple[int, bytes]]:
        """Return further datagrams, with numbers from the message's length on, that follow this one."""
        return ()

    def arrived(self, number: int, payload: bytes) -> None:
        """Learn that a datagram with this number has arrived."""

    def send(self, kind: int, number: int = 0, payload: bytes = b"", *, stage: int | None = None) -> None:
        """Send a datagram of this exchange or of an earlier one; the socket waits for the port."""
        self.link.send(HEAD.pack(kind, self.stage if stage is None else stage, number) + payload)

    def run(self) -> None:
        """Send the message, and receive the other one."""
        for data in [self.early.pop() for _ in range(len(self.early))]:
            self._process(data)
        for number, payload in enumerate(self.message):
            for one in ((number, payload), *self.further(number)):
                self.send(DATA, *one)
                self._take(0)
        self.send(END)
        self.due_s = time.monotonic() + self.patience_s
        while self.lacking:
            left_s = self.due_s - time.monotonic()
            if left_s > 0:
                self._take(left_s)
            else:
                self.ask(number for number, have in enumerate(self.got) if have is None)

    def linger(self) -> None:
        """Answer the other rank until it is silent."""
        while self._take(3 * self.patience_s):
            pass

    def keep(self, number: int, payload: bytes) -> None:
        if self.got[number] is None:
            self.got[number] = payload
            self.lacking -= 1
            self.due_s = time.monotonic() + self.patience_s

    def ask(self, wanted: Iterable[int]) -> None:
        numbers, self.due_s = [*wanted], time.monotonic() + self.patience_s
        self.asked.update(numbers)
        for first in range(0, len(numbers), _ASKED_FOR):
            part = numbers[first : first + _ASKED_FOR]
            self.send(MISSING, 0, struct.pack(f"!{len(part)}I", *part))

    def _take(self, wait_s: float) -> bool:
        """Process the next datagram, for which it waits so long at most; return whether there was one."""
        self.link.settimeout(wait_s)
        try:
            data = self.link.recv(_LARGEST)
        except (BlockingIOError, TimeoutError):
            return False
        finally:
            self.link.settimeout(None)
        self._process(data)
        return True

    def _process(self, data: bytes) -> None:
        (kind, stage, number), payload = HEAD.unpack_from(data), data[HEAD.size :]
        if kind == MISSING and stage <= self.stage:  # what is still to be sent need not be sent again
            for (one,) in struct.iter_unpack("!I", payload):
                self.send(DATA, one, self.message[one], stage=stage)
        elif stage > self.stage and kind != MISSING:
            self.early.insert(0, data)
        elif stage != self.stage:
            return  # it came twice
        elif kind == END:
            self.ask(one for one, have in enumerate(self.got) if have is None and one not in self.asked)
        else:
            if number < len(self.message):
                self.keep(number, payload)
            self.arrived(number, payload)


def message(rank: int, chunks: int, payload: int) -> list[bytes]:
    """Return what a rank sends, each datagram with other bytes; their number `payload` is a multiple of 8."""
    return [struct.pack("!II", rank, number) * (payload // 8) for number in range(chunks)]


def main(scheme: type[Exchange], arguments: list[str]) -> None:
    """Run AllReduces; rank 0 prints how long each took, in s. Raises ValueError if other bytes arrive.

    The arguments are CHUNKS PAYLOAD COUNT ROUND_TRIP_S PATIENCE_S: how many datagrams of so many bytes an exchange has,
    how many AllReduces there are, and after how long something is asked for again.
    """
    chunks, payload, count = map(int, arguments[:3])
    round_trip_s, patience_s = map(float, arguments[3:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        link.bind((HOSTS[RANK], PORT))
        link.connect((HOSTS[1 - RANK], PORT))
        time.sleep(round_trip_s)  # the other rank is there by then
        for number in range(count):
            begin = time.monotonic()
            for stage in (2 * number, 2 * number + 1):
                exchange = scheme(link, stage, message(RANK, chunks, payload), patience_s)
                exchange.run()
                if exchange.got != message(1 - RANK, chunks, payload):
                    raise ValueError(f"exchange {stage} delivered other bytes than were sent")
            if not RANK:
                print(json.dumps(time.monotonic() - begin), flush=True)
        exchange.linger()
