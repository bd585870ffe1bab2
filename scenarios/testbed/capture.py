"""Capture of a logical link's packets with tcpdump, as they leave the ports that shape it, into a pcap file.

It runs in the switches' network namespace. A file has timestamps in nanoseconds and the first 256 bytes of each packet.
"""

import heapq
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from topologies.fabric.fabric import Fabric
from topologies.fabric.machines import Share
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import HtbClass, classes_of

CAPTURES = "captures"
"""The folder within the run folder for captures."""

CAPTURED = "captured.csv"
"""In the folder of a point's captures: the links, their files, and the packets in each and lost ones."""

_SNAP_BYTES = 256  # captured of each packet: all headers and a little of the payload
_HEADER_BYTES, _RECORD_BYTES = 24, 16  # size of a pcap file's header, and of each packet's header in it
_BUFFER_KIB = 65536  # of packets that a tcpdump has not written yet, taken when it starts
_TIMEOUT_S = 10.0


class CaptureError(Exception):
    """Raised for a capture that cannot begin; the message is one sentence."""


def _classes(fabric: Fabric, name: str) -> list[HtbClass]:
    """Return the HTB classes that shape a link, given by name; each has a tcpdump of its own."""
    shared = links_in_grain(fabric).all
    return [port for port in classes_of(fabric) if shared[port.link].name == name]


def buffered_bytes(fabric: Fabric, names: Sequence[str]) -> int:
    """Return the memory that captures of these links take for packets, whether there are any or not."""
    return _BUFFER_KIB * 1024 * sum(len(_classes(fabric, name)) for name in names)


class Capture:
    """A capture of the HTB classes that shape a link into a new file, from now until `stop`.

    `packets` and `lost` are the captured packets and those that tcpdump missed, known after `stop`. Raises CaptureError
    if the file exists or cannot be made, or tcpdump cannot run.
    """

    def __init__(self, link: str, classes: Sequence[HtbClass], file: Path) -> None:
        self.link, self.file, self.packets, self.lost = link, file, 0, 0
        # One file per class, as a link may be shaped at several ports. AppArmor lets tcpdump write only to few names,
        # and names of this form are among them.
        self._parts = [file.with_name(f"{file.name}.{index}.pcap") for index in range(len(classes))]
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            raise CaptureError(f"{file} exists already; allowed: the name of a new file") from None
        except OSError as error:
            raise CaptureError(f"{file} cannot be made: {error.strerror}") from None
        try:
            for shaped, part in zip(classes, self._parts, strict=True):
                self._processes.append(_start_tcpdump(shaped, part))
        except BaseException:
            self.stop()
            file.unlink()
            raise

    def stop(self) -> None:
        """End the capture; the file then has every packet that has left until now."""
        for process in self._processes:
            packets, lost = _stop_tcpdump(process)
            self.packets, self.lost = self.packets + packets, self.lost + lost
        parts = [part for part in self._parts if part.exists()]
        if parts:
            merge(parts, self.file)
        for part in parts:
            part.unlink()


class Captures:
    """Captures of links by name, each into a file of the folder `folder`, which is made, from now until `stop`; of a
    fabric that machines share, those of the links that this machine shapes.

    Raises CaptureError and OSError.
    """

    def __init__(self, share: Share, names: Sequence[str], folder: Path) -> None:
        self._captures: list[Capture] = []
        if names:
            folder.mkdir(parents=True, exist_ok=True)
        src = {link.name: link.src for link in links_in_grain(share.fabric).all}
        try:
            for name in (name for name in names if share.has(src[name])):
                file = folder / f"{name.replace('>', '-')}.pcap"
                self._captures.append(Capture(name, _classes(share.fabric, name), file))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> list[dict[str, Any]]:
        """End the captures; return for each the link, the name of its file, and the packets in it and lost ones."""
        captures, self._captures = self._captures, []
        for capture in captures:
            capture.stop()
        return [{"link": one.link, "file": one.file.name, "packets": one.packets, "lost": one.lost} for one in captures]


def merge(parts: Sequence[Path], file: Path) -> None:
    """Merge pcap files (little-endian, with nanoseconds) into one file, in order of time."""
    with file.open("wb") as out, ExitStack() as stack:
        sources = [stack.enter_context(part.open("rb")) for part in parts]
        headers = [source.read(_HEADER_BYTES) for source in sources]
        out.write(headers[0])
        out.writelines(packet for _, packet in heapq.merge(*map(_records, sources), key=itemgetter(0)))


def _records(source: IO[bytes]) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield the records after a pcap file's header: the time (s, ns) and the whole record."""
    while len(head := source.read(_RECORD_BYTES)) == _RECORD_BYTES:
        seconds, ns, kept = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4, 8))
        yield (seconds, ns), head + source.read(kept)


def _start_tcpdump(shaped: HtbClass, file: Path) -> "subprocess.Popen[bytes]":
    """Start tcpdump to capture a class into a file; return once it listens. Raises CaptureError."""
    command = ["tcpdump", "-i", shaped.interface, "-Q", "out", "-s", str(_SNAP_BYTES), "--time-stamp-precision", "nano"]
    options = [
        "-n",
        "-U",
        "--immediate-mode",
        "-B",
        str(_BUFFER_KIB),
        "-w",
        "-",
        f"ip {shaped.match}" if shaped.match else "",
    ]
    try:
        with file.open("wb") as out:  # opened here, because tcpdump drops root's rights before it opens a file
            process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                process_group=0,  # so that Ctrl-C does not end it
            )
    except FileNotFoundError:
        raise CaptureError("capture needs tcpdump: bash scenarios/setup.sh installs it") from None
    assert process.stderr is not None
    output = process.stderr.readline()
    if b"listening on" not in output:
        process.kill()
        process.wait()
        raise CaptureError(f"tcpdump fails on {shaped.interface}: {output.decode(errors='replace').strip()}")
    return process


def _stop_tcpdump(process: "subprocess.Popen[bytes]") -> tuple[int, int]:
    """End a tcpdump once it has written all packets; return the numbers of packets in its file and of lost ones."""
    stat, end = Path(f"/proc/{process.pid}/stat"), time.monotonic() + _TIMEOUT_S
    # Every packet wakes tcpdump at once (immediate mode), so when it sleeps its buffer is empty.
    while process.poll() is None and ") S " not in stat.read_text() and time.monotonic() < end:
        time.sleep(0.001)
    process.terminate()
    assert process.stderr is not None
    with process:
        output = process.stderr.read().decode(errors="replace")
    counts = {what: int(number) for number, what in re.findall(r"(\d+) packets? (captured|dropped by kernel)", output)}
    return counts.get("captured", 0), counts.get("dropped by kernel", 0)
