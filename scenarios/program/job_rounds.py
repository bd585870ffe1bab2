"""The jobs that run beside a program, inside the VM: rounds of collectives and background traffic, one after the other.

The first round begins with the program's ranks. Each further round begins as soon as the one before is over, until the
program ends.
"""

import threading
from collections.abc import Mapping
from typing import Any

from hosts.communicator import CollectiveError, Completed
from scenarios.testbed.testbed import Testbed
from topologies.linux import make_timers_exact

_PAUSE_S = 100e-6  # between two rounds, in which every agent gets the command to begin; commands take no virtual time


class JobRounds:
    """Runs the jobs of a testbed with agents, in a thread, from `start` to `stop`.

    `error` is why they ended before `stop`, None if they did not. `take` returns the rounds that are over.
    """

    def __init__(self, testbed: Testbed) -> None:
        self._testbed, self._spans = testbed, testbed.config.workload.jobs
        testbed.placement = tuple(range(testbed.config.gpus))
        testbed.connect()
        testbed.set_queues()  # for the program: each connection of an agent has set its own segments
        self._start_ns, self._begins = 0, threading.Event()
        self._is_over = False
        self._rounds: list[tuple[int, Completed]] = []  # not taken yet, each with its beginning
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: str | None = None

    def start(self) -> int:
        """Start the first round; return its beginning (CLOCK_MONOTONIC, ns), which is yet to come. Raises
        CollectiveError."""
        self._thread.start()
        self._begins.wait()
        if self.error is not None:
            raise CollectiveError(self.error)
        return self._start_ns

    def take(self, since_ns: int) -> list[Mapping[str, Any]]:
        """Return the rounds that have ended since the last call: of each, by job, when it began and when its last
        message arrived, in ns since this instant."""
        rounds, self._rounds = self._rounds, []
        return [
            {
                span.name: [
                    start_ns + round(span.start_s * 1e9) - since_ns,
                    max(completed.arrived_ns[span.transfers.start : span.transfers.stop]) - since_ns,
                ]
                for span in self._spans
            }
            for start_ns, completed in rounds
        ]

    def stop(self) -> None:
        """End the jobs, in the middle of a round."""
        self._is_over = True
        self._testbed.kill_agents()

    def _run(self) -> None:
        make_timers_exact()
        after_s = None
        while not self._is_over:
            try:
                completed = self._testbed.run_round(after_s=after_s, on_start=self._note_start)
                if completed.faults:
                    raise CollectiveError(f"a job delivered wrong data: {completed.faults[0]}")
            except (CollectiveError, OSError) as error:  # an OSError if `stop` has closed what it is using
                if not self._is_over:
                    self.error = str(error)
                self._begins.set()
                return
            self._rounds.append((self._start_ns, completed))
            after_s = _PAUSE_S

    def _note_start(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._begins.set()
