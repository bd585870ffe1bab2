"""The testbeds of one network on several machines: each does the same, and they exchange what only one of them knows.

All run the same program on the same scenario, so all decide the same. Each builds the hosts and switches of its own
sites and runs their agents. What a decision or a record rests on is exchanged first, over a link of their own from each
machine to the first (`join0` and so on), which takes virtual time: nothing is exchanged while a collective runs.
"""

import json
import os
import socket
import time
from contextlib import ExitStack
from typing import Any

from hosts.agent.clock import Timer
from topologies.mininet_nodes import NetworkError, run_program

ENDED = "another machine of this network has ended"
"""What begins the sentence of a testbed that has lost another one, which has told why."""
_PORT = 6654
_RETRY_S = 0.01
_TIMEOUT_S = 600.0  # of virtual time
_SPARE_NS = 10_000  # a message may take longer than the one whose way was measured


class Peers:
    """The connections of the testbed `number` among `machines`; one alone has none. A context manager.

    An exchange ends at one instant on all. `latency_ns` is what exchanges have taken so far, each from the moment at
    which the last machine called it, so that it is the same on all. Raises NetworkError if a connection cannot be made
    or ends.
    """

    def __init__(self, number: int = 0, machines: int = 1) -> None:
        self.number, self.machines, self.latency_ns = number, machines, 0
        self._ended_ns = 0  # when the last exchange ended
        self._one_way_ns = 0  # from the first machine to the others, the longest
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
            # Otherwise a message waits until the one before it is acknowledged.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(None)  # a collective may take longer; if a machine fails, the others are ended
            self._files.append(self._stack.enter_context(made.makefile("rw")))
            self._stack.enter_context(made)
        self._timer = self._stack.enter_context(Timer())
        for file in self._files:
            if self.number:
                _send(file, time.monotonic_ns())
            else:
                sent_ns = _receive(file)
                self._one_way_ns = max(self._one_way_ns, time.monotonic_ns() - sent_ns)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all machines, in their order, as JSON has them; each must call this."""
        if self.machines == 1:
            return [value]
        own = [time.monotonic_ns(), value]  # all have one clock
        try:
            if self.number:
                (first,) = self._files
                _send(first, own)
                told = _receive(first)
                _send(first, None)
                self._ended_ns = _receive(first)
            else:
                told = [own, *map(_receive, self._files)]
                for file in self._files:
                    _send(file, told)
                for file in self._files:  # a long message takes several round trips
                    _receive(file)
                self._ended_ns = time.monotonic_ns() + self._one_way_ns + _SPARE_NS
                for file in self._files:
                    _send(file, self._ended_ns)
        except (OSError, ValueError) as error:
            raise NetworkError(f"{ENDED} ({error})") from None
        self._sleep_until(self._ended_ns)
        self.latency_ns += self._ended_ns - max(at_ns for at_ns, _ in told)
        return [each for _, each in told]

    def instant(self) -> int:
        """Return an instant that is now on all machines, ns of CLOCK_MONOTONIC; each must call this."""
        self.exchange(None)
        return time.monotonic_ns() if self.machines == 1 else self._ended_ns

    def _sleep_until(self, instant_ns: int) -> None:
        """Sleep until an instant of CLOCK_MONOTONIC, to the ns: other sleeps of this thread may end 50 us late."""
        self._timer.set(instant_ns)
        os.read(self._timer.fileno(), 8)

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
