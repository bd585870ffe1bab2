"""Runs a program of the user's in a VM, watches it from outside, and leaves its run folder.

The ranks, their confinement and the counters of ports are the business of `inside`, in the VM.
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
"""Where the run's folder has each rank's output, the bytes on WAN links over time, the ranks, and all of it as JSON."""

COMPUTING = (
    "computing took no time in the run's clock: longhaul.compute(SECONDS) in Python, or longhaul-compute SECONDS "
    "elsewhere, has a rank take so long"
)
"""What is said at the end of every run in virtual time."""

_RANK = Path(__file__).with_name("rank")
_NOBODY = 65534
_LOOK_S = 0.5
_LAST_BYTES = 500
_TELL_S = 10.0  # where stderr is no terminal
_TURN_OFF = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A thread that waits by spinning would stop the clock."""


@dataclass
class Account:
    """What is known of a run, filled in as the VM's lines of JSON come (`inside` lists them).

    Output goes to files in `folder` at once; `printed` is how many bytes of it there are by rank, and `last` the end of
    it. `samples` are looks at the WAN links: the ns since the start, and of each link the bytes that it has carried
    and could have. `virtual_ns` is how long the ranks have run by their own clock, and `lines` counts what has come.
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
        """Take in what the VM prints."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
            self.lines += 1

    def flush(self) -> None:
        """Do nothing: every whole line has been taken in."""

    def close(self) -> None:
        """Close the files of output."""
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
        """How the run stands, in a line."""
        if not self.began:
            return f"{self.doing}, {wall_s:.0f} s of wall time"
        failed, count = sorted(rank for rank, (status, _) in self.ended.items() if status), len(self.gpus)
        states = [f"{count - len(self.ended)} of {count} ranks run"]
        states += [f"{len(self.ended) - len(failed)} done"] * (len(self.ended) > len(failed))
        states += [f"{len(failed)} failed"] * bool(failed)
        return f"{self.virtual_ns / 1e9:.3f} s of the run's time, {wall_s:.0f} s of wall time: {', '.join(states)}"

    def ranks(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Each rank: its number and GPU, what it does, the bytes that it has printed, and the last line of them."""
        for rank, gpu in enumerate(self.gpus):
            status, at_ns = self.ended.get(rank, (None, 0))
            doing = "runs" if status is None else f"{how(status) if status else 'done'}, at {at_ns / 1e9:.3f} s"
            yield str(rank), f"g{gpu}", doing if self.began else "", f"{self.printed.get(rank, 0):,}", self.said(rank)

    def said(self, rank: int) -> str:
        """The last line that a rank has printed, or its end."""
        line = self.last.get(rank, b"").decode(errors="replace").rstrip("\r\n").rpartition("\n")[2]
        return "".join(filter(str.isprintable, line.rpartition("\r")[2]))


def run(setting: Scenario, *, place: Place) -> tuple[Account, str | None]:
    """Run the program of a configuration; returns its account, and why it was ended early if it was.

    Raises VMError where the VM cannot run or fails.
    """
    spec, words = setting.program, Words()
    directory = working_directory(None, results=None)
    if directory == "/":
        raise vm.VMUsageError("a program cannot be run in /: start it in a folder of yours")
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
    return account, None if status == 0 else words.last() or "the testbed failed without a word"


@contextmanager
def _attended(account: Account, stillness: Stillness, began_s: float) -> Iterator[Any]:
    """Yields what `vm.run` calls when the VM is started: from then on, until the context ends, a thread shows the
    account on stderr and ends a VM whose clock stands still."""
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
    """How a run stands: the time, virtual and wall, and a line for each rank."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "GPU", "state", "printed, B"):
        table.add_column(name, justify="right" if name in ("rank", "printed, B") else "left", no_wrap=True)
    table.add_column("last line", no_wrap=True, overflow="ellipsis")
    for row in account.ranks():
        table.add_row(*map(Text, row))
    return Group(Text(account.state(wall_s), no_wrap=True, overflow="ellipsis"), table)


def of_caller() -> dict[str, Any]:
    """The environment and the user of the ranks of a program that this process's user runs."""
    uid = os.getuid()
    user = {"uid": uid or _NOBODY, "gid": os.getgid() if uid else _NOBODY, "reads_all": not uid}
    return {"environment": _environment(), "user": user}


def _environment() -> dict[str, str]:
    """The user's environment as far as it means something in the VM, with `python` found wherever that is."""
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
    """The run as one object: its ranks, WAN links and all that was noticed."""
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
    """What went wrong in a run (`told`), a sentence each; none where all ranks ended with 0."""
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
        # Who failed said why at last, and the first to end made others fail; who was ended may have said anything.
        failed = [one for one in ranks if (one["status"] or 0) > 0 and one["last_line"]]
        first = min(failed, key=lambda one: one["end_s"], default=None)
        why = "" if first is None else f', rank {first["rank"]} after "{first["last_line"]}"'
        sentences.append(f"{which} {words}{why}: {folder / OUTPUT} has the output")
    return sentences


def notes(found: Mapping[str, Any], setting: Scenario) -> Iterator[str]:
    """What a user should know of a run besides, a sentence each."""
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
        yield f"{found['files_left_out']} of what it wrote were no plain files and are not kept"
    if found["files_error"]:
        yield f"its files could not be kept: {found['files_error']}"
    if found["left_running"]:
        yield f"{found['left_running']} processes still ran when the ranks had ended, and were ended"
    if setting.run.is_real:
        yield "real time: computing took the time that this machine needs"
    else:
        yield COMPUTING


def leave(account: Account, found: Mapping[str, Any]) -> None:
    """Write the run's tables and figures; raises OSError."""
    from analysis.figures.program import picture  # matplotlib takes its time to import

    write_text(account.folder / PROGRAM, json.dumps(found, indent=1) + "\n")
    write_text(account.folder / RANKS, ranks_csv(found))
    if account.samples:
        write_text(account.folder / LINKS, links_csv(account))
        folder = account.folder / FIGURES
        folder.mkdir(exist_ok=True)
        picture(found, account.samples).write(folder)


def links_csv(account: Account) -> str:
    """The bytes on each WAN link from the start until each look at them, and those there was room for, a row each, as
    CSV."""
    rows = [
        (at_ns / 1e9, link["name"], sent[number], capacity[number])
        for at_ns, sent, capacity in account.samples
        for number, link in enumerate(account.links)
    ]
    return _csv(("time_s", "link", "bytes", "capacity_bytes"), rows)


def ranks_csv(found: Mapping[str, Any]) -> str:
    """The ranks of a run (`told`) as CSV."""
    columns = ("rank", "gpu", "status", "start_s", "end_s", "retransmitted_segments", "discarded_bytes")
    return _csv(columns, [[one[name] for name in columns] for one in found["ranks"]])


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
