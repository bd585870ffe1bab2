"""The testbeds of one network on several machines: each does the same, and they exchange what only one of them knows.

All run the same program on the same scenario, so all decide the same. Each builds the hosts and switches of its own
sites and runs their agents. What a decision or a record rests on is exchanged first, over a link of their own from each
machine to the first (`join0` and so on), which takes virtual time: nothing is exchanged while a collective runs.
"""

import json
import socket
import time
from contextlib import ExitStack
from typing import Any

from topologies.mininet_nodes import NetworkError, run_program

ENDED = "another machine of this network has ended"
"""What begins the sentence of a testbed that has lost another one, which has told why."""
_PORT = 6654
_RETRY_S = 0.01
_TIMEOUT_S = 600.0  # of virtual time


class Peers:
    """The connections of the testbed `number` among `machines`; one alone has none. A context manager.

    Raises NetworkError if a connection cannot be made or ends.
    """

    def __init__(self, number: int = 0, machines: int = 1) -> None:
        self.number, self.machines = number, machines
        self._files: list[Any] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Peers":
        if self.machines == 1:
            return self
        others = range(1, self.machines) if self.number == 0 else [self.number]
        lines = []
        for other in others:
            address = f"192.168.{other}.{1 if self.number == 0 else 2}/24"
            lines += [f"link set dev join{other - 1} up", f"address add {address} dev join{other - 1}"]
        run_program(["ip", "-batch", "-"], "".join(line + "\n" for line in lines))
        for other in others:
            made = self._accepted(other) if self.number == 0 else self._connected()
            made.settimeout(None)  # a collective may take longer; if a machine fails, the others are ended
            self._files.append(self._stack.enter_context(made.makefile("rw")))
            self._stack.enter_context(made)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all machines, in their order, as JSON has them; each must call this."""
        if self.machines == 1:
            return [value]
        try:
            if self.number:
                (first,) = self._files
                _send(first, value)
                return list(_receive(first))
            values = [value, *map(_receive, self._files)]
            for file in self._files:
                _send(file, values)
        except (OSError, ValueError) as error:
            raise NetworkError(f"{ENDED} ({error})") from None
        return values

    def _accepted(self, other: int) -> socket.socket:
        with socket.create_server((f"192.168.{other}.1", _PORT)) as server:
            server.settimeout(_TIMEOUT_S)
            return server.accept()[0]

    def _connected(self) -> socket.socket:
        end = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return socket.create_connection((f"192.168.{self.number}.1", _PORT))
            except OSError as error:  # it does not listen yet
                if time.monotonic() > end:
                    raise NetworkError(f"the first machine cannot be reached: {error.strerror}") from None
                time.sleep(_RETRY_S)


def _send(file: Any, value: object) -> None:
    file.write(json.dumps(value) + "\n")
    file.flush()


def _receive(file: Any) -> Any:
    return json.loads(file.readline())
