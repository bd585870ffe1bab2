"""The communicator's side of what it and the agents say to each other: JSON lines over a socket for each."""

import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hosts import wire


class Controls:
    """A connection to the agent of each rank: sockets without a name that another process could find."""

    def __init__(self, ranks: int) -> None:
        pairs = [socket.socketpair() for _ in range(ranks)]
        self._ours, self._theirs = ([pair[side] for pair in pairs] for side in (0, 1))
        self._unread = [bytearray() for _ in pairs]

    @property
    def agents_fds(self) -> list[int]:
        """The agents' ends, by rank, until they are handed over."""
        return [end.fileno() for end in self._theirs]

    def hand_over(self) -> None:
        """Close the agents' ends here, once the agents have them."""
        for end in self._theirs:
            end.close()

    def tell(self, rank: int, do: str, **arguments: object) -> None:
        """Tell a rank to do something."""
        with suppress(BrokenPipeError, ConnectionResetError):  # what it died of will be read instead of an answer
            self._ours[rank].sendall(wire.line({"do": do, **arguments}))

    def answers(
        self, do: str, ranks: Sequence[int], *, timeout_s: float
    ) -> tuple[dict[int, dict[str, Any]], set[int], dict[int, str]]:
        """What these ranks answer to `do`; those that have not in that time; the errors, "" of those that died."""
        waiting, failed = set(ranks), {}
        answers: dict[int, dict[str, Any]] = {}
        poll = select.poll()
        for rank in ranks:
            poll.register(self._ours[rank], select.POLLIN)
        rank_of = {self._ours[rank].fileno(): rank for rank in ranks}
        end_s = time.monotonic() + timeout_s
        while waiting and (left_s := end_s - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                rank = rank_of[fd]
                try:
                    answer = self._read(rank, do)
                except wire.WireError as error:
                    answer = {"error": str(error)}
                if answer is None:
                    continue
                if "error" in answer:
                    failed[rank] = answer["error"]
                answers[rank] = answer
                waiting.discard(rank)
                poll.unregister(fd)
        return answers, waiting, failed

    def _read(self, rank: int, do: str) -> dict[str, Any] | None:
        """What a rank has answered, {"error": ""} when it has died, None as long as the line is not complete."""
        try:
            data = self._ours[rank].recv(wire.MAX_LINE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            return {"error": ""}
        unread = self._unread[rank]
        unread += data
        if b"\n" not in unread and len(unread) < wire.MAX_LINE_BYTES:
            return None
        line, _, rest = bytes(unread).partition(b"\n")
        unread[:] = rest
        return wire.answer(line + b"\n", to=do)

    def close(self) -> None:
        """Hang up; may be called again."""
        for end in self._ours:
            end.close()
