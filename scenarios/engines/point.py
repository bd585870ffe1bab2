"""One point of the emulation: its VM, what the VM says line by line, and what is expected of it by the plan."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from analysis.results.rows import Rows, joined, packed, unpacked
from analysis.statistics.fault_outcomes import fault_outcomes
from hosts.collectives.ring import timed
from scenarios import vm
from scenarios.engines.base import Doing, News, Seen, Slice, Struck
from scenarios.engines.framing import bundled, unbundled
from scenarios.engines.prediction import Expectations
from scenarios.engines.watchdog import Watchdog, patience_s
from scenarios.spec.scenario import Scenario, from_json, to_json
from scenarios.testbed import capabilities, launch
from scenarios.testbed.platform import VIRTUAL, Ground
from scenarios.testbed.record import Event

# What a VM takes, as measured with 8 to 256 GPUs: 120 MB for the system, Open vSwitch and the controller, 2.3 MB a GPU
# (its host and its agent), 20 kB for each pair of GPUs of a site (its link's class and its share of every table).
_SYSTEM_BYTES = 512 * 2**20  # with room for the kernel's cache of files and for the choice of rings
_GPU_BYTES, _PAIR_BYTES = 2_500_000, 20_000
_TRACE_SHARE = 6  # of a trace's size, for its rows while they are read
_KEPT_BYTES = 65536  # of what a VM says on stderr
WRONG_DATA = "delivered wrong data"
"""What a testbed says where that is why it ends."""
_COPIES = (
    2.5  # of a chunk for each GPU: its buffer, and what TCP holds, over the whole ring a chunk a GPU and a quarter
)


class EmulationError(RuntimeError):
    """A point that could not be run to its end; one sentence that names it."""


class WrongError(EmulationError):
    """A point whose collectives delivered wrong bytes or chose what the plan does not: no second try makes it good."""


@dataclass(frozen=True)
class Task:
    """One mode at one setting, `place` being the setting's place among those of the run."""

    place: int
    setting: Scenario
    mode: str

    @property
    def name(self) -> str:
        """The point in words."""
        return f"emulation, {self.setting.label}, {self.mode}"


def memory_bytes(setting: Scenario) -> int:
    """The memory of a VM that can run a setting."""
    pairs = sum(gpus * gpus for gpus in setting.fabric.gpus_per_site)
    chunks = round(_COPIES * setting.gpus * carried_chunk_bytes(setting))
    trace = setting.conditions.trace
    rows = 0 if trace is None else _TRACE_SHARE * trace.stat().st_size
    return _SYSTEM_BYTES + _GPU_BYTES * setting.gpus + _PAIR_BYTES * pairs + chunks + rows


def most_gpus(setting: Scenario, room_bytes: int) -> Scenario | None:
    """The setting with as many GPUs as a VM with that much memory can run, the largest sites made smaller; None where
    not even two GPUs a site can be."""
    sites = setting.fabric.gpus_per_site
    for most in range(max(sites), 1, -1):
        fewer = replace(setting, fabric=replace(setting.fabric, gpus_per_site=tuple(min(n, most) for n in sites)))
        if memory_bytes(fewer) <= room_bytes:
            return fewer
    return None


def carried_chunk_bytes(setting: Scenario) -> int:
    """The bytes that the emulation carries for a chunk."""
    return setting.run.scale.chunk_bytes(setting.collective.chunk_bytes)


@cache
def _own_kernel() -> bool:
    """Whether this machine's own kernel carries experiments on the wall clock; asked once."""
    return not capabilities.lacking()


def ground(setting: Scenario) -> Ground:
    """What the testbed of a setting stands on: the VM, or in real time this machine's own kernel where it serves."""
    return Ground.real(setting.run.scale, own_kernel=_own_kernel()) if setting.run.is_real else VIRTUAL


def run_point(
    task: Task, put: Callable[[News], None], on_start: Callable[[Callable[[], None]], None] | None = None
) -> None:
    """Run one point in a VM, from its first collective on, and return when it is over.

    Every collective goes to `put` as soon as it has been told. Raises EmulationError where the point is not run to
    its end, vm.CannotRunError where this machine cannot run its VM.
    """
    setting, words = task.setting, Words()
    arguments = [to_json(setting), task.mode, str(setting.collective.count)]
    put(Doing(setting=task.place, mode=task.mode, doing="the start of the testbed"))
    with Watchdog(patience_s(setting), waits_for="the testbed to start") as watchdog:
        reader = Reader(task, put, watchdog.heard)

        def started(stop: Callable[[], None]) -> None:
            watchdog.guard(stop)
            if on_start is not None:
                on_start(stop)

        try:
            status = launch.testbed(
                arguments,
                memory_bytes=memory_bytes(setting),
                stdout=reader,
                stderr=words,
                ground=ground(setting),
                on_start=started,
            )
        except vm.VMError as error:
            if isinstance(error, vm.CannotRunError):
                raise
            raise EmulationError(f"{task.name}: {watchdog.sentence() if watchdog.stuck else error}") from None
    if watchdog.stuck is not None:
        raise EmulationError(f"{task.name}: {watchdog.sentence()}")
    if status != 0:
        kind = WrongError if WRONG_DATA in words.last() else EmulationError
        raise kind(f"{task.name}, after {reader.done} collectives: {words.last() or 'it said nothing'}")


def task_bytes(task: Task) -> bytes:
    """A point as a task for `measured`."""
    return json.dumps({"place": task.place, "mode": task.mode, "scenario": to_json(task.setting)}).encode()


def measured(task: bytes, on_start: Callable[[Callable[[], None]], None] | None = None) -> bytes:
    """Run a whole point, and return all that it had to say; raises as `run_point`."""
    said = json.loads(task)
    news: list[News] = []
    run_point(Task(said["place"], from_json(said["scenario"]), said["mode"]), news.append, on_start)
    seen = {item.moment: json.dumps(item.facts).encode() for item in news if isinstance(item, Seen)}
    rows = joined([item.rows for item in news if isinstance(item, Slice)])
    struck = json.dumps([dict(item.account) for item in news if isinstance(item, Struck)]).encode()
    return bundled({"rows": packed(rows), "struck": struck, **seen})


def measured_by_dask(task: bytes) -> bytes:
    """`measured` on a Dask worker, which ends the VM when nobody wants the point any more."""
    from scenarios.engines.dask import attended

    with attended() as on_start:
        return measured(task, on_start)


def news_of(task: bytes, result: bytes) -> Iterator[News]:
    """What a point had to say, from what `measured` returned."""
    said, parts = json.loads(task), unbundled(result)
    rows, struck = parts.pop("rows"), json.loads(parts.pop("struck"))
    for moment, facts in parts.items():
        yield Seen(setting=said["place"], mode=said["mode"], moment=moment, facts=json.loads(facts))
    for account in struck:
        yield Struck(setting=said["place"], mode=said["mode"], account=account)
    yield Slice(setting=said["place"], mode=said["mode"], rows=unpacked(rows))


class Reader:
    """Takes a VM's output in, line by line, and passes news on of each collective, fault and look at the machine; what
    differs from the plan is an EmulationError. `heard` is told of every line, and what it says comes next."""

    def __init__(
        self, task: Task, put: Callable[[News], None], heard: Callable[[str | None], object] = lambda _: None
    ) -> None:
        self._task, self._put, self._heard = task, put, heard
        self._expected = Expectations(task.setting, task.mode)
        self._events: list[Event] = []
        self._unread = b""
        self.done = 0

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._heard(said.get("doing"))
            if "collective" in said:
                self._take(said)
            elif "event" in said:
                self._note(said["event"])
            elif "doing" in said:
                self._put(Doing(setting=self._task.place, mode=self._task.mode, doing=said["doing"]))
            else:
                ((moment, facts),) = said.items()
                self._put(Seen(setting=self._task.place, mode=self._task.mode, moment=moment, facts=facts))

    def flush(self) -> None:
        """There is nothing to flush: a line is passed on when it is whole."""

    def _note(self, event: Event) -> None:
        """Keep an event, and at the last one pass on what came of every fault."""
        self._events.append(event)
        if event["event"] == "ended":
            for account in fault_outcomes(self._events):
                self._put(Struck(setting=self._task.place, mode=self._task.mode, account=account))

    def _take(self, row: dict[str, Any]) -> None:
        k, faults = row["collective"], row.get("faults", ())
        expected = self._expected.of(k, faults)
        chosen = not any(self._task.setting.faults[place].kind == "controller killed" for place in faults)
        for name, planned in (("ring", expected.ring.tolist()), ("path", expected.path.tolist())):
            if chosen and row[name] != planned:
                where = f"{self._task.name}, collective {k}"
                raise WrongError(f"{where}: the {name} {row[name]} was chosen, and the plan says {planned}")
        rows = Rows(
            start=k,
            completion_s=np.array([row["completion_s"]], dtype=np.float64),
            predicted_s=np.array([expected.predicted_s]),
            ring=np.array([row["ring"]], dtype=np.int16),
            paths=np.array([row["path"]], dtype=np.int16),
            reembedded=np.array([row["reembedded"]]),
            rerouted=np.array([row["rerouted"]]),
            drops=np.array([row["drops"]], dtype=np.int64),
            late=np.array([row["late"]]) if self._task.setting.run.is_real else None,
            undisturbed=np.array([row.get("undisturbed", True)]),
            bound_s=self._expected.bound_s(k),
            reconfigure_s=np.array([row.get("reconfigure_s", np.nan)], dtype=np.float64),
            reconfigure_messages=np.array([row.get("reconfigure_messages", 0)], dtype=np.int64),
            transfers=_transfers(row),
        )
        self._put(Slice(setting=self._task.place, mode=self._task.mode, rows=rows))
        self.done += 1


def _transfers(row: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which rank sent which chunk to whom, and when, of one collective: the columns of `rows.TRANSFER`."""
    made = timed(row["ring"], start_ns=row["start_ns"], arrived_ns=row["arrived_ns"])
    found = [(row["collective"], t.step, t.src, t.dst, t.chunk, t.start_ns, t.end_ns) for t in made]
    return np.array(found, dtype=np.int64)


class Words:
    """Takes in what a VM says on stderr, to be quoted where it fails."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        del self._data[:-_KEPT_BYTES]

    def flush(self) -> None:
        """There is nothing to flush."""

    def text(self) -> str:
        """All that it said, or the end of it."""
        return self._data.decode(errors="replace")

    def last(self) -> str:
        """The last line that says something; nothing where there is none."""
        return next((line.strip() for line in reversed(self.text().splitlines()) if line.strip()), "")
