"""The packets that a network has lost, whatever lost them: those that hosts have sent and no host has received.

A queueing discipline that is reset, because its interface goes down, counts no drop, and neither does a switch that
sends a packet to a port that is down. But each host counts the packets that it sends and those that it receives.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.fabric.fabric import Fabric
from topologies.shaping.frames import TCP_FRAMES

_COLUMNS = re.compile(r"^\s*(\S+):(.*)$", re.MULTILINE)
_HEADERS_BYTES = 14 + 52  # of Ethernet, and of IP and TCP with timestamps
_MAX_WAITS = 100
Exchange = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """Packets and bytes, Ethernet headers included, that all hosts have sent and received so far."""

    sent: int
    sent_bytes: int
    received: int
    received_bytes: int


class PacketBalance:
    """Counts lost packets on the interfaces of a fabric's hosts, `host_pids` by rank, from now on. Of a fabric that
    machines share, these are the hosts here, and `exchange` returns the values of all machines.

    Nothing may be under way now. A segment of several frames that is lost as a whole counts as the full frames of its
    bytes, and so do parts of one that Open vSwitch has cut on the way.
    """

    def __init__(self, fabric: Fabric, host_pids: Mapping[int, int], exchange: Exchange) -> None:
        self._hosts = [(fabric.gpus[rank].interface, Path(f"/proc/{pid}/net/dev")) for rank, pid in host_pids.items()]
        self._exchange = exchange
        self._before = self._read()

    def lost(self, longest_s: float) -> int:
        """Wait until nothing is under way, and return the packets lost since the last call.

        `longest_s` is how long a packet may be under way.
        """
        now = self._read()
        for _ in range(_MAX_WAITS):
            time.sleep(longest_s)
            last, now = now, self._read()
            if now == last:
                break
        before, self._before = self._before, now
        packets = (now.sent - now.received) - (before.sent - before.received)
        lost_bytes = (now.sent_bytes - now.received_bytes) - (before.sent_bytes - before.received_bytes)
        payload = (
            lost_bytes - _HEADERS_BYTES * packets
        )  # a segment that is cut gets more packets and headers, not more payload
        return max(0, packets, -(-payload // TCP_FRAMES.payload_bytes))

    def _read(self) -> _Counts:
        """Read what the hosts of all machines have counted."""
        sent = sent_bytes = received = received_bytes = 0
        for interface, file in self._hosts:
            columns = dict(_COLUMNS.findall(file.read_text()))[interface].split()
            received_bytes, received = received_bytes + int(columns[0]), received + int(columns[1])
            sent_bytes, sent = sent_bytes + int(columns[8]), sent + int(columns[9])
        machines = self._exchange([sent, sent_bytes, received, received_bytes])
        sent, sent_bytes, received, received_bytes = (sum(counts) for counts in zip(*machines, strict=True))
        return _Counts(sent=sent, sent_bytes=sent_bytes, received=received, received_bytes=received_bytes)
