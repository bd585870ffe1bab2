"""Authenticated listener for an agent's incoming connections.

A peer must send a hello with the run's token (`messages.hello`), whole in its first segment and within HELLO_S;
otherwise its connection is closed, which is logged (rate-limited). Silent peers, even a flood of them, cannot keep the
expected peers out.
"""

import hmac
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence

from hosts.agent import messages

BACKLOG = 64  # limit for connections not accepted yet, and for accepted ones that have sent nothing
HELLO_S = 5.0
_LOGGED_SINGLY = 8  # refusals logged one by one; after them only the 16th, 32nd, 64th ...

Peer = tuple[int, int, int]
"""The identity of an expected connection: its epoch, the rank that opens it, and its channel."""


class Listener:
    """A listener on `bound`, a bound socket that it takes over; it accepts connections whose hello has `token`.

    Each refusal is logged on a line that begins with `name`. Only `admit` blocks.
    """

    def __init__(
        self, bound: socket.socket, *, token: bytes, name: str, log: Callable[[str], object] = sys.stderr.write
    ) -> None:
        self._listener, self._token, self._name, self._log = bound, token, name, log
        bound.listen(BACKLOG)
        bound.setblocking(False)
        self._silent: dict[socket.socket, tuple[str, float]] = {}  # peer and deadline in s; the oldest is first
        self._authenticated: dict[Peer, socket.socket] = {}  # those that sent the token
        self._refused = 0

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is a connection to accept."""
        return self._listener.fileno()

    def poll(self) -> None:
        """Accept new connections, check the hellos that have arrived, and refuse peers that are silent for too long."""
        for _ in range(BACKLOG):
            try:
                connection, (host, port) = self._listener.accept()
            except OSError:  # no connection is waiting, or it has been closed again
                break
            connection.setblocking(False)
            self._silent[connection] = f"{host}:{port}", time.monotonic() + HELLO_S
        for connection, (peer, deadline_s) in list(self._silent.items()):
            try:
                data = connection.recv(messages.HELLO_BYTES)
            except BlockingIOError:
                if time.monotonic() < deadline_s and len(self._silent) <= BACKLOG:
                    continue
                data = b""
            except OSError:
                data = b""
            del self._silent[connection]
            epoch, rank, channel, token = messages.parse_hello(data) or (0, 0, 0, b"")
            if hmac.compare_digest(token, self._token):
                self._authenticated[epoch, rank, channel] = connection
            else:
                self._refuse(connection, peer, "it did not send the run's token" if data else "it sent nothing")

    def wait_s(self) -> float | None:
        """Return in how many seconds `poll` must be called even if no connection arrives; None if no peer is silent."""
        oldest = next(iter(self._silent.values()), None)
        return None if oldest is None else max(0.0, oldest[1] - time.monotonic())

    def admit(self, peers: Sequence[Peer], *, timeout_s: float) -> dict[Peer, socket.socket]:
        """Wait for the connections of `peers`, at most `timeout_s`, and return those that arrived; close all others."""
        end_s = time.monotonic() + timeout_s
        while not self._authenticated.keys() >= set(peers) and (left_s := end_s - time.monotonic()) > 0:
            poll = select.poll()
            for readable in (self._listener, *self._silent):
                poll.register(readable, select.POLLIN)
            poll.poll(1000 * min(left_s, HELLO_S))
            self.poll()
        admitted = {peer: self._authenticated.pop(peer) for peer in peers if peer in self._authenticated}
        self.clear()
        for connection in admitted.values():
            connection.setblocking(True)
        return admitted

    def clear(self) -> None:
        """Refuse every connection that has not been admitted."""
        for connection, (peer, _) in self._silent.items():
            self._refuse(connection, peer, "it sent nothing")
        for (epoch, rank, channel), connection in self._authenticated.items():
            peer = f"GPU {rank}, channel {channel}, epoch {epoch}"
            self._refuse(connection, peer, "the schedule has no such connection now")
        self._silent.clear()
        self._authenticated.clear()

    def _refuse(self, connection: socket.socket, peer: str, why: str) -> None:
        connection.close()
        self._refused += 1
        if self._refused <= _LOGGED_SINGLY or self._refused.bit_count() == 1:
            self._log(f"{self._name}: refused connection {self._refused:,}, from {peer}: {why}\n")
