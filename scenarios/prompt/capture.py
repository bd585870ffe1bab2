"""Captures: a link's packets, as they leave the port that shapes it, to a file. In the switches' network namespace."""

import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

from scenarios.prompt import pcap
from scenarios.prompt.commands import PromptError
from topologies.shaping import Lane

_ALL_FRAMES = 0x0003  # ETH_P_ALL
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_AUXDATA = 263, 6, 8
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_BUFFER_BYTES = 64 * 2**20


class Capture:
    """A capture of the classes that shape a link into a new file, from now until `stop`.

    Raises PromptError where the file is there already or cannot be made.
    """

    def __init__(self, link: str, lanes: Sequence[Lane], file: Path) -> None:
        self.link, self.file = link, file
        self.packets = self.lost = 0
        try:
            self._out = file.open("xb")
        except FileExistsError:
            raise PromptError(f"{file} is there already: allowed is the name of a new file") from None
        except OSError as error:
            raise PromptError(f"{file} cannot be made: {error.strerror}") from None
        self._out.write(pcap.header())
        self._wake, self._woken = os.pipe()
        self._matches = {_tap(lane.interface): lane.match for lane in lanes}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, with everything written that has left until now; does nothing the second time."""
        if self._out.closed:
            return
        os.write(self._woken, b"x")
        self._thread.join()
        for tap in self._matches:
            _, dropped = struct.unpack("II", tap.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
            self.lost += dropped
            tap.close()
        os.close(self._wake)
        os.close(self._woken)
        self._out.close()

    def _run(self) -> None:
        taps = {tap.fileno(): tap for tap in self._matches}
        poll = select.poll()
        for fd in (*taps, self._wake):
            poll.register(fd, select.POLLIN)
        stopping = False
        while not stopping:
            ready = [fd for fd, _ in poll.poll()]
            stopping = self._wake in ready
            for fd in taps if stopping else ready:
                self._drain(taps[fd])
            self._out.flush()

    def _drain(self, tap: socket.socket) -> None:
        """Write what has been seen on one port."""
        while True:
            try:
                packet, notes, _, (_, _, way, *_) = tap.recvmsg(pcap.SNAP_BYTES, 256)
            except OSError:  # nothing more for now, or the port has gone down
                return
            if way != socket.PACKET_OUTGOING or not pcap.belongs(packet, self._matches[tap]):
                continue
            told = {(level, kind): data for level, kind, data in notes}
            seconds, ns = struct.unpack_from("qq", told[socket.SOL_SOCKET, _SO_TIMESTAMPNS])
            _, length = struct.unpack_from("II", told[_SOL_PACKET, _PACKET_AUXDATA])
            self._out.write(pcap.record(packet, length=length, at_ns=seconds * 10**9 + ns))
            self.packets += 1


def _tap(interface: str) -> socket.socket:
    """A socket that gets a copy of every frame at an interface."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    tap.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    tap.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    tap.bind((interface, _ALL_FRAMES))
    return tap
