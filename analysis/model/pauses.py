"""Frames over links whose far ends pause them (priority flow control, IEEE 802.1Qbb): queues, pauses, losses, rates.

A node counts the bytes that came over a link and wait in its ports. When they reach a threshold, it pauses the link,
until few of them are left. Both messages take the link's delay, as do the frames that are still under way when a pause
begins; a port's buffer that has no room for those loses them. Ports are FIFO: a frame that waits for a paused link
holds up those behind it, wherever they go. Senders react to nothing but pauses.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ARRIVES, _SENT, _PAUSES, _RESUMES = range(4)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link: its rate (bit/s), one-way delay (s), and the bytes that fit into the buffer of the port that sends on it.

    When `xoff_bytes` or more that came over the link wait at its far end, that pauses the link, and when no more than
    `xon_bytes` are left, it lets it send again.
    """

    rate_bps: float
    delay_s: float
    buffer_bytes: float = inf
    xoff_bytes: float = inf
    xon_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What links and flows have done: the bytes of each flow that arrived in each bin of time, [flows, bins], the bytes
    of each that were lost, the most bytes that waited in each link's port, and for how long each was paused (s)."""

    arrived_bytes: Floats
    lost_bytes: Floats
    peak_bytes: Floats
    paused_s: Floats


class _Port:
    """The near end of a link: its FIFO of (flow, hop), what it does, and the bytes that wait at the far end."""

    def __init__(self, link: Link) -> None:
        self.link, self.frames = link, deque[tuple[int, int]]()
        self.is_sending = self.is_paused = False
        self.behind_bytes, self.has_far_end_paused = 0, False
        self.peak_frames, self.paused_at_s, self.paused_s = 0, 0.0, 0.0


class _Network:
    """Ports, and the events that are due, by time and then in the order in which they were scheduled."""

    def __init__(self, links: Sequence[Link], paths: Sequence[Sequence[int]], frame_bytes: int, bins: Floats) -> None:
        self.ports, self._paths, self._frame_bytes = [_Port(link) for link in links], paths, frame_bytes
        self._edges_s, self._events, self._scheduled = bins, list[tuple[float, int, int, int, int]](), 0
        self.arrived, self.lost = np.zeros((len(paths), len(bins) - 1)), np.zeros(len(paths))

    def run(self) -> None:
        """Send from time 0 until the end of the last bin."""
        for flow, path in enumerate(self._paths):
            self.ports[path[0]].frames.append((flow, 0))
            self._send(path[0], 0.0)
        while self._events[0][0] < self._edges_s[-1]:  # one is always due: a sender sends on, or a pause ends
            now_s, _, kind, one, other = heappop(self._events)
            if kind == _ARRIVES:
                self._arrive(one, other, now_s)
            elif kind == _SENT:
                self._sent(one, now_s)
            else:
                self._obey(self.ports[one], kind == _PAUSES, now_s)
                self._send(one, now_s)

    def _schedule(self, at_s: float, kind: int, one: int, other: int = 0) -> None:
        self._scheduled += 1
        heappush(self._events, (at_s, self._scheduled, kind, one, other))

    def _send(self, link: int, now_s: float) -> None:
        """Begin to send the first frame of a port, if it may."""
        port = self.ports[link]
        if port.frames and not (port.is_sending or port.is_paused):
            port.is_sending = True
            self._schedule(now_s + 8 * self._frame_bytes / port.link.rate_bps, _SENT, link)

    def _sent(self, link: int, now_s: float) -> None:
        port = self.ports[link]
        flow, hop = port.frames.popleft()
        port.is_sending = False
        if hop == 0:
            port.frames.append((flow, 0))
        else:
            self._count(self._paths[flow][hop - 1], -self._frame_bytes, now_s)
        self._schedule(now_s + port.link.delay_s, _ARRIVES, flow, hop)
        self._send(link, now_s)

    def _arrive(self, flow: int, hop: int, now_s: float) -> None:
        """Have a frame arrive over the link of a hop: at its receiver, or at the next port."""
        path = self._paths[flow]
        if hop + 1 == len(path):
            self.arrived[flow, np.searchsorted(self._edges_s, now_s, side="right") - 1] += self._frame_bytes
            return
        port = self.ports[path[hop + 1]]
        if (len(port.frames) + 1) * self._frame_bytes > port.link.buffer_bytes:
            self.lost[flow] += self._frame_bytes
            return
        port.frames.append((flow, hop + 1))
        port.peak_frames = max(port.peak_frames, len(port.frames))
        self._count(path[hop], self._frame_bytes, now_s)
        self._send(path[hop + 1], now_s)

    def _count(self, link: int, change_bytes: int, now_s: float) -> None:
        """Count bytes that came over a link and wait at its far end, which pauses the link or lets it send."""
        port = self.ports[link]
        port.behind_bytes += change_bytes
        if not port.has_far_end_paused and port.behind_bytes >= port.link.xoff_bytes:
            port.has_far_end_paused = True
            self._schedule(now_s + port.link.delay_s, _PAUSES, link)
        elif port.has_far_end_paused and port.behind_bytes <= port.link.xon_bytes:
            port.has_far_end_paused = False
            self._schedule(now_s + port.link.delay_s, _RESUMES, link)

    def _obey(self, port: _Port, is_paused: bool, now_s: float) -> None:
        port.paused_s += 0.0 if is_paused else now_s - port.paused_at_s
        port.is_paused, port.paused_at_s = is_paused, now_s


def simulate(
    links: Sequence[Link], paths: Sequence[Sequence[int]], *, frame_bytes: int, bin_s: float, bins: int
) -> Observed:
    """Send frames along the paths, each a list of links by index, from time 0 on and without end.

    The first link of each path is that of the flow's sender, which always has a frame to send; no two flows share it.
    """
    edges_s = bin_s * np.arange(bins + 1, dtype=np.float64)
    network = _Network(links, paths, frame_bytes, edges_s)
    network.run()
    running_s = [edges_s[-1] - port.paused_at_s if port.is_paused else 0.0 for port in network.ports]
    return Observed(
        arrived_bytes=network.arrived,
        lost_bytes=network.lost,
        peak_bytes=frame_bytes * np.array([port.peak_frames for port in network.ports]),
        paused_s=np.array([port.paused_s for port in network.ports]) + running_s,
    )
