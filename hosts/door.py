"""An agent's door: the listener that its predecessor in a ring connects to, and nobody else gets through.

Whoever connects has to say the run's token first (`wire.greeting`). Who does not, says something else, or says
nothing for a while, is hung up on and told of in one line; neither silence nor a flood keeps the predecessor out.
"""

import hmac
import select
import socket
import sys
import time
from collections.abc import Callable

from hosts import wire

BACKLOG = 64
_MOST_WAITING = 64  # strangers that have said nothing yet; one more, and the first of them goes
_GREETING_S = 5.0  # how long a stranger may take to say who it is
_ALL_TOLD = 8  # of a flood of refusals, so many are told one by one


class Refusals:
    """Tells of what was refused on stderr, a line each; of a flood the first few, then whenever it has doubled."""

    def __init__(self, who: str, *, write: Callable[[str], object] = sys.stderr.write) -> None:
        self._who, self._write = who, write
        self.count = 0

    def tell(self, sentence: str) -> None:
        """Count a refusal, and say the sentence unless many have been said."""
        self.count += 1
        if self.count <= _ALL_TOLD or self.count & (self.count - 1) == 0:
            so_far = f" (refused {self.count:,} so far)" if self.count > _ALL_TOLD else ""
            self._write(f"{self._who}: {sentence}{so_far}\n")


class _Stranger:
    """A connection that has not said all of its greeting."""

    def __init__(self, connection: socket.socket, address: tuple[str, int], since_s: float) -> None:
        self.connection, self.name, self.since_s = connection, f"{address[0]}:{address[1]}", since_s
        self.said = b""


class Door:
    """The door of an agent whose ring connections carry this token; `listener` is bound, and is the door's from now on.

    Nothing here blocks but `admit`.
    """

    def __init__(self, listener: socket.socket, *, token: bytes, refusals: Refusals) -> None:
        self._listener, self._token, self._refusals = listener, token, refusals
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._strangers: list[_Stranger] = []
        self._guests: dict[tuple[int, int], socket.socket] = {}  # those who know the token, by ring and rank

    def fileno(self) -> int:
        """The descriptor that is readable when somebody has come."""
        return self._listener.fileno()

    def look(self) -> None:
        """Take in whoever has come; hear those who have something to say, and send away those who must not come in."""
        for _ in range(BACKLOG):
            try:
                connection, address = self._listener.accept()
            except OSError:  # nobody is there, or who was has left again
                break
            connection.setblocking(False)
            self._strangers.append(_Stranger(connection, address, time.monotonic()))
        for stranger in list(self._strangers):
            self._hear(stranger)
        for stranger in self._strangers[:-_MOST_WAITING]:
            self._refuse(stranger, "too many others wait")

    def wait_s(self) -> float | None:
        """How long until `look` has to be called if nobody comes; None where nobody is awaited."""
        if not self._strangers:
            return None
        return max(0.0, self._strangers[0].since_s + _GREETING_S - time.monotonic())

    def admit(self, *, epoch: int, rank: int, deadline_s: float) -> socket.socket | None:
        """The connection that this rank has made for this ring, blocking as it was told to; None if it does not come.

        All others are sent away: between rings nobody has any business here.
        """
        end_s = time.monotonic() + deadline_s
        while (guest := self._guests.pop((epoch, rank), None)) is None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            poll = select.poll()
            for waiting in (self._listener, *(stranger.connection for stranger in self._strangers)):
                poll.register(waiting, select.POLLIN)
            poll.poll(1000 * min(left_s, _GREETING_S))
            self.look()
        self.clear()
        if guest is not None:
            guest.setblocking(True)
        return guest

    def clear(self) -> None:
        """Send away whoever waits."""
        for stranger in list(self._strangers):
            self._refuse(stranger, "it has not said the run's token")
        for (epoch, rank), guest in self._guests.items():
            self._refusals.tell(f"refused a connection of GPU {rank} for ring {epoch}: nobody awaits it")
            guest.close()
        self._guests.clear()

    def _hear(self, stranger: _Stranger) -> None:
        try:
            got = stranger.connection.recv(wire.GREETING_BYTES - len(stranger.said))
        except BlockingIOError:
            if time.monotonic() - stranger.since_s >= _GREETING_S:
                self._refuse(stranger, f"it has not said the run's token within {_GREETING_S:g} s")
            return
        except OSError:
            got = b""
        stranger.said += got
        if not got:
            self._refuse(stranger, "it left without saying the run's token")
        elif len(stranger.said) == wire.GREETING_BYTES:
            self._judge(stranger)

    def _judge(self, stranger: _Stranger) -> None:
        magic, rank, epoch, token = wire.greeted(stranger.said)
        if not hmac.compare_digest(token, self._token) or not magic:
            self._refuse(stranger, "it does not know the run's token")
        elif (epoch, rank) in self._guests:
            self._refuse(stranger, f"GPU {rank} has one for ring {epoch} already")
        else:
            self._strangers.remove(stranger)
            self._guests[epoch, rank] = stranger.connection
            while len(self._guests) > BACKLOG:
                self._guests.pop(next(iter(self._guests))).close()

    def _refuse(self, stranger: _Stranger, why: str) -> None:
        stranger.connection.close()
        self._strangers.remove(stranger)
        self._refusals.tell(f"refused a connection from {stranger.name}: {why}")
