"""Runs a user's program in a VM, watches it from outside, and writes its run folder.

`inside` starts and confines the ranks and reads the ports' counters, in the VM.
"""

import base64
import csv
import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.results.reader import FIGURES
from analysis.results.writer import write_text
from scenarios import vm
from scenarios.engines.emulation import Words, network_bytes
from scenarios.experiment.place import Place
from scenarios.program.ranks import how
from scenarios.program.stillness import Stillness
from scenarios.spec.scenario import Scenario, to_json
from scenarios.testbed import launch
from scenarios.vm.boot import guest_environment
from scenarios.vm.resources import working_directory
from topologies.units import format_size

OUTPUT, LINKS, RANKS, PROGRAM = "output", "links.csv", "ranks.csv", "program.json"
"""In the run folder: each rank's output, the bytes on WAN links over time, the ranks, and the whole result as JSON."""

COMPUTING = (
    "computing took no virtual time: to have a rank compute for SECONDS, call longhaul.compute(SECONDS) in Python or "
    "the command longhaul-compute SECONDS"
)
"""The note at the end of every run in virtual time."""

_RANK = Path(__file__).with_name("rank")
_NOBODY = 65534
_LOOK_S = 0.5
_LAST_BYTES = 500
_TELL_S = 10.0  # between two progress lines if stderr is no terminal
_TURN_OFF = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables that prevent threads from spinning while they wait, which would stop the clock."""


@dataclass
class Account:
    """The state of a run as seen from outside, updated from the VM's JSON records (`inside` lists them).

    Output is written to files in `folder` at once; by rank, `printed` is its size in bytes, and `last` holds its last
    bytes. By rank too, `ended` is the exit status and the ns since the start. `samples` are samples of the WAN links:
    the ns since the start, and for each link the bytes that it has carried and could have carried. `virtual_ns` is the
    latest virtual time known, since the ranks' start, and `lines` counts the records.
    """

    folder: Path
    gpus: tuple[int, ...]
    doing: str = "the VM's start"
    links: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[int, list[int], list[float]]] = field(default_factory=list)
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    printed: dict[int, int] = field(default_factory=dict)
    last: dict[int, bytes] = field(default_factory=dict)
    began: bool = False
    deadline: bool = False
    over: dict[str, Any] | None = None
    virtual_ns: int = 0
    lines: int = 0
    _unread: bytes = b""
    _files: dict[tuple[int, str], BinaryIO] = field(default_factory=dict)

    def write(self, data: bytes) -> None:
        """Process output of the VM; a partial record is kept until the rest of it arrives."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
            self.lines += 1

    def flush(self) -> None:
        """Do nothing: `write` has processed every whole record."""

    def close(self) -> None:
        """Close the output files."""
        for file in self._files.values():
            file.close()

    def _take(self, line: Mapping[str, Any]) -> None:
        self.virtual_ns = max(self.virtual_ns, line.get("at_ns", 0))
        if "doing" in line:
            self.doing = line["doing"]
        elif "began" in line:
            self.began, self.links = True, line["links"]
        elif "stream" in line:
            file = self._files.get((line["rank"], line["stream"]))
            if file is None:
                path = self.folder / OUTPUT / f"{line['rank']}.{line['stream']}"
                path.parent.mkdir(exist_ok=True)
                file = self._files[line["rank"], line["stream"]] = path.open("wb", buffering=0)
            text, rank = base64.b64decode(line["text"]), line["rank"]
            file.write(text)
            self.printed[rank] = self.printed.get(rank, 0) + len(text)
            self.last[rank] = (self.last.get(rank, b"") + text)[-_LAST_BYTES:]
        elif "ended" in line:
            self.ended[line["rank"]] = line["ended"], line["at_ns"]
        elif "bytes" in line:
            self.samples.append((line["at_ns"], line["bytes"], line["capacity_bytes"]))
        elif "deadline_ns" in line:
            self.deadline = True
        elif "over" in line:
            self.over = line["over"]

    def state(self, wall_s: float) -> str:
        """Return the progress of the run in one line."""
        if not self.began:
            return f"{self.doing}, {wall_s:.0f} s of wall time"
        failed, count = sorted(rank for rank, (status, _) in self.ended.items() if status), len(self.gpus)
        states = [f"{count - len(self.ended)} of {count} ranks run"]
        states += [f"{len(self.ended) - len(failed)} done"] * (len(self.ended) > len(failed))
        states += [f"{len(failed)} failed"] * bool(failed)
        return f"{self.virtual_ns / 1e9:.3f} s of the run's time, {wall_s:.0f} s of wall time: {', '.join(states)}"

    def ranks(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield a table row per rank: rank, GPU, state, bytes printed, and the last line printed."""
        for rank, gpu in enumerate(self.gpus):
            status, at_ns = self.ended.get(rank, (None, 0))
            doing = "runs" if status is None else f"{how(status) if status else 'done'}, at {at_ns / 1e9:.3f} s"
            yield str(rank), f"g{gpu}", doing if self.began else "", f"{self.printed.get(rank, 0):,}", self.said(rank)

    def said(self, rank: int) -> str:
        """Return the last line that a rank has printed, or the end of it if it is long."""
        line = self.last.get(rank, b"").decode(errors="replace").rstrip("\r\n").rpartition("\n")[2]
        return "".join(filter(str.isprintable, line.rpartition("\r")[2]))


def run(setting: Scenario, *, place: Place) -> tuple[Account, str | None]:
    """Run the program of a configuration; return its account, and the reason if the run was cut short, else None.

    Raises VMError if the VM cannot run, or fails before the ranks start.
    """
    spec, words = setting.program, Words()
    directory = working_directory(None, results=None)
    if directory == "/":
        raise vm.VMUsageError("a program cannot be run in /: change to a folder of yours first")
    account = Account(place.path, spec.ranks_of(setting.gpus))
    request = {"setting": to_json(setting), **of_caller(), "folder": str(place.path.resolve()), "directory": directory}
    began_s = time.monotonic()
    memory_bytes = network_bytes(setting) + spec.memory_bytes + spec.files_bytes
    stillness = Stillness(spec.patience_s, memory_bytes=memory_bytes)
    try:
        with _attended(account, stillness, began_s) as on_start:
            status = vm.run(
                [sys.executable, "-m", "scenarios.program.inside", json.dumps(request)],
                clock="wall" if setting.run.is_real else "virtual",
                memory_bytes=memory_bytes,
                results=place.path,
                directory=launch.ROOT,
                environment=launch.environment(),
                stdout=account,
                stderr=words,
                on_start=on_start,
            )
    except vm.VMError as error:
        if stillness.sentence is None:
            if isinstance(error, vm.NoRoomError):
                remedy = f"{error.remedy}, or set program.memory below {format_size(spec.memory_bytes)}"
                raise vm.CannotRunError(error.what, remedy=remedy) from None
            if isinstance(error, vm.CannotRunError) or not account.began:
                raise
            return account, str(error)
        return account, stillness.sentence
    finally:
        account.close()
    return account, None if status == 0 else words.last() or "the testbed failed without a message"


@contextmanager
def _attended(account: Account, stillness: Stillness, began_s: float) -> Iterator[Any]:
    """Yields the `on_start` callback for `vm.run`, which starts a thread that watches the VM until the context ends.

    The thread shows progress on stderr, and ends the VM if its clock has stopped (`Stillness`).
    """
    over, threads = threading.Event(), list[threading.Thread]()

    def attend(stop: Any) -> None:
        console, told_s = Console(stderr=True), time.monotonic()
        with (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live
        ):
            while not over.wait(_LOOK_S):
                now_s = time.monotonic()
                if live is not None:
                    live.update(shown(account, now_s - began_s), refresh=True)
                elif now_s >= told_s + _TELL_S:
                    print(account.state(now_s - began_s), file=sys.stderr, flush=True)
                    told_s = now_s
                if stillness.look(account.virtual_ns, account.lines, began=account.began):
                    stop()
                    break

    def started(stop: Any) -> None:
        threads.append(threading.Thread(target=attend, args=(stop,), daemon=True))
        threads[0].start()

    try:
        yield started
    finally:
        over.set()
        for thread in threads:
            thread.join()


def shown(account: Account, wall_s: float) -> Group:
    """Return the progress of a run for a terminal: a line with virtual and wall time, and a line for each rank."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "GPU", "state", "printed, B"):
        table.add_column(name, justify="right" if name in ("rank", "printed, B") else "left", no_wrap=True)
    table.add_column("last line", no_wrap=True, overflow="ellipsis")
    for row in account.ranks():
        table.add_row(*map(Text, row))
    return Group(Text(account.state(wall_s), no_wrap=True, overflow="ellipsis"), table)


def of_caller() -> dict[str, Any]:
    """Return the fields `environment` and `user` of a request to run a program for the user of this process."""
    uid = os.getuid()
    user = {"uid": uid or _NOBODY, "gid": os.getgid() if uid else _NOBODY, "reads_all": not uid}
    return {"environment": _environment(), "user": user}


def _environment() -> dict[str, str]:
    """Return the user's environment variables that make sense in the VM, with this Python as a fallback in PATH."""
    found = guest_environment(os.environ)
    home = found.get("HOME", "")
    folders = [str(_RANK), *found["PATH"].split(":"), str(Path(sys.executable).parent)]
    modules = [str(_RANK), *filter(None, [found.get("PYTHONPATH")])]
    own = {
        "PATH": ":".join(dict.fromkeys(folders)),
        "PYTHONPATH": ":".join(modules),
        "HOME": "/tmp",  # noqa: S108
        "USER": "nobody",
        "LOGNAME": "nobody",
    }
    return {"PYTHONUSERBASE": f"{home}/.local", **_TURN_OFF, **found, **own}


def told(setting: Scenario, account: Account, why: str | None, wall_s: float) -> dict[str, Any]:
    """Return the result of a run, which is the content of program.json: its ranks, WAN links and counters."""
    gpus = setting.program.ranks_of(setting.gpus)
    over = account.over or {}
    discarded = {(rank, name): count for rank, name, count in over.get("discarded", ())}
    again = over.get("retransmitted", [None] * len(gpus))
    return {
        "command": setting.program.command,
        "mode": setting.run.modes[0],
        "clock": setting.run.clock,
        "run_s": account.virtual_ns / 1e9,
        "wall_s": round(wall_s, 3),
        "ended_early": why,
        "deadline": account.deadline,
        "ranks": [
            {
                "rank": rank,
                "gpu": f"g{gpu}",
                "status": account.ended[rank][0] if rank in account.ended else None,
                "start_s": 0.0 if account.began else None,
                "end_s": account.ended[rank][1] / 1e9 if rank in account.ended else None,
                "retransmitted_segments": again[rank],
                "discarded_bytes": sum(discarded.get((rank, name), 0) for name in ("stdout", "stderr")),
                "last_line": account.said(rank),
            }
            for rank, gpu in enumerate(gpus)
        ],
        "links": [
            {
                "link": link["name"],
                "bytes": account.samples[-1][1][number],
                "capacity_bytes": account.samples[-1][2][number],
            }
            for number, link in enumerate(account.links)
            if account.samples
        ],
        "drops": over.get("drops"),
        "openflow_messages": over.get("openflow_messages"),
        "changes": over.get("changes"),
        "rerouted": over.get("rerouted"),
        "captures": over.get("captures"),
        "left_running": over.get("left_running"),
        "files": over.get("files"),
        "files_left_out": over.get("files_left_out"),
        "files_error": over.get("files_error") or None,
        "files_full": over.get("full"),
    }


def failures(found: Mapping[str, Any], setting: Scenario, folder: Path) -> list[str]:
    """Return a sentence for each failure in a run (a result of `told`); none if all ranks ended with 0."""
    spec, sentences = setting.program, list[str]()
    if found["ended_early"]:
        sentences.append(found["ended_early"])
    if found["deadline"]:
        sentences.append(f"the ranks were ended at the deadline of {spec.deadline_s:g} s (program.deadline)")
    bad = [one for one in found["ranks"] if one["status"] != 0]
    by_how: dict[str, list[Mapping[str, Any]]] = {}
    for one in bad:
        by_how.setdefault(how(one["status"]), []).append(one)
    for words, ranks in by_how.items():
        which = f"rank{'s' * (len(ranks) > 1)} {', '.join(str(one['rank']) for one in ranks)}"
        # A rank that failed has printed the reason last, and the first one made the others fail. The last line of a
        # rank that was killed has no such meaning.
        failed = [one for one in ranks if (one["status"] or 0) > 0 and one["last_line"]]
        first = min(failed, key=lambda one: one["end_s"], default=None)
        why = "" if first is None else f', rank {first["rank"]} after "{first["last_line"]}"'
        sentences.append(f"{which} {words}{why}: {folder / OUTPUT} has the output")
    return sentences


def notes(found: Mapping[str, Any], setting: Scenario) -> Iterator[str]:
    """Yield a sentence for each other thing that a user should know of a run."""
    spec = setting.program
    discarded = {one["rank"]: one["discarded_bytes"] for one in found["ranks"] if one["discarded_bytes"]}
    for rank, count in discarded.items():
        yield f"{count:,} bytes of rank {rank}'s output were discarded: program.output keeps {spec.output_bytes:,}"
    for one in found["captures"] or ():
        if one["lost"]:
            yield f"{one['lost']} packets of {one['link']} are not in {one['file']}: tcpdump lost them"
    if found["files_full"]:
        yield f"the files of the program filled the {spec.files_bytes:,} bytes of program.files"
    if found["files_left_out"]:
        yield f"{found['files_left_out']} of the program's files are not kept: not regular files, or too large"
    if found["files_error"]:
        yield f"the program's files could not be kept: {found['files_error']}"
    if found["left_running"]:
        yield f"{found['left_running']} processes were still running after the ranks had ended, and were killed"
    if setting.run.is_real:
        yield "real time: computing took the time that this machine needs"
    else:
        yield COMPUTING


def leave(account: Account, found: Mapping[str, Any]) -> None:
    """Write the run's tables and figures; raises OSError."""
    from analysis.figures.program import picture  # slow to import, because of matplotlib

    write_text(account.folder / PROGRAM, json.dumps(found, indent=1) + "\n")
    write_text(account.folder / RANKS, ranks_csv(found))
    if account.samples:
        write_text(account.folder / LINKS, links_csv(account))
        folder = account.folder / FIGURES
        folder.mkdir(exist_ok=True)
        picture(found, account.samples).write(folder)


def links_csv(account: Account) -> str:
    """Return links.csv: for every sample and WAN link, the bytes carried since the start, and the capacity in bytes."""
    rows = [
        (at_ns / 1e9, link["name"], sent[number], capacity[number])
        for at_ns, sent, capacity in account.samples
        for number, link in enumerate(account.links)
    ]
    return _csv(("time_s", "link", "bytes", "capacity_bytes"), rows)


def ranks_csv(found: Mapping[str, Any]) -> str:
    """Return ranks.csv: the ranks of a run (a result of `told`)."""
    columns = ("rank", "gpu", "status", "start_s", "end_s", "retransmitted_segments", "discarded_bytes")
    return _csv(columns, [[one[name] for name in columns] for one in found["ranks"]])


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
