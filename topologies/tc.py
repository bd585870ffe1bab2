"""Traffic control in effect: apply the shaping, read back what the kernel holds, count what was dropped anywhere.

What is to be applied is `shaping`'s; the switches must be up first, since Open vSwitch replaces the qdisc of a port
that it takes.
"""

import contextlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from socket import if_indextoname, if_nametoindex

import numpy as np
import numpy.typing as npt

from topologies.rtnetlink import RtNetlink
from topologies.shaping import Shaping, class_name, mismatch

Floats = npt.NDArray[np.float64]

_DELAY_TOLERANCE_NS = 64  # the kernel counts tc's delays in ticks of 64 ns, and cuts down
_DEVICE = re.compile(r"^ *([^ :]+):((?: +\d+)+)$", re.MULTILINE)
_RECEIVE_DROPS, _TRANSMIT_DROPS = 3, 11  # columns of /proc/net/dev


class TcError(Exception):
    """Traffic control that could not be applied, or that is not what was applied; one sentence."""


class Shaper:
    """Shapes a fabric's network for as long as it is open; this process must be in the switches' network namespace.

    Raises TcError where the kernel refuses the shaping or holds another one afterwards.
    """

    def __init__(self, shaping: Shaping, rates_bps: Floats) -> None:
        self.shaping = shaping
        self._ports = {_index(name): name for name in shaping.interfaces}
        self._netlink = RtNetlink()
        self._tc = _Tc()
        try:
            self._tc.run(shaping.structure(rates_bps))
            self.check(rates_bps)
            self._check_delays()
        except BaseException:
            self.close()
            raise

    def change(self, rates_bps: Floats) -> None:
        """Give every link the rate of these conditions, [links] bit/s; returns once the kernel holds them all.

        Raises TcError, as `check` does.
        """
        self._tc.run(self.shaping.rates(rates_bps))
        self.check(rates_bps)

    def check(self, rates_bps: Floats) -> None:
        """Raise TcError with port, wanted and found rate unless every class holds these conditions to the byte/s."""
        found = {
            (name, held.minor): (held.rate, held.ceil)
            for index, name in self._ports.items()
            for held in self._netlink.classes(index)
        }
        sentence = mismatch(self.shaping.wanted(rates_bps), found)
        if sentence:
            raise TcError(sentence)

    def close(self) -> None:
        """Take the shaping away, as far as its ports are still there."""
        with contextlib.suppress(TcError):
            self._tc.run(self.shaping.removal())
        self._tc.close()
        self._netlink.close()

    def __enter__(self) -> "Shaper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_delays(self) -> None:
        found = {
            (self._ports[qdisc.interface], qdisc.parent or 0): qdisc.delay_ns
            for qdisc in self._netlink.qdiscs()
            if qdisc.interface in self._ports
        }
        for lane in self.shaping.lanes:
            wanted_ns, found_ns = self.shaping.delays_ns.get(lane.key, 0), found.get(lane.key, 0)
            if abs(found_ns - wanted_ns) > _DELAY_TOLERANCE_NS:
                raise TcError(f"{class_name(lane.key)} should delay by {wanted_ns} ns and delays by {found_ns} ns")


def _index(interface: str) -> int:
    try:
        return if_nametoindex(interface)
    except OSError:
        raise TcError(f"there is no port {interface} to shape") from None


class DropCounter:
    """Counts packets dropped since it was made: by a queue of this network namespace, or by any interface.

    `host_pids` are processes in the network namespaces of the hosts.
    """

    def __init__(self, host_pids: Sequence[int]) -> None:
        self._devices = [Path(f"/proc/{pid}/net/dev") for pid in ("self", *host_pids)]
        self._netlink = RtNetlink()
        self._seen = self._read()

    def drops(self) -> dict[str, int]:
        """The packets dropped since the last call, by the interface that dropped them or whose queue did."""
        now = self._read()
        fresh, self._seen = now - self._seen, now
        return dict(fresh)

    def close(self) -> None:
        """Stop counting."""
        self._netlink.close()

    def _read(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in self._devices:
            for name, columns in _DEVICE.findall(path.read_text()):
                counts = columns.split()
                found[name] += int(counts[_RECEIVE_DROPS]) + int(counts[_TRANSMIT_DROPS])
        # A classful qdisc counts most of what the queues beneath it drop, so the greater of the two is right.
        roots: Counter[int] = Counter()
        queues: Counter[int] = Counter()
        for qdisc in self._netlink.qdiscs():
            (roots if qdisc.parent is None else queues)[qdisc.interface] += qdisc.drops
        for index, count in (roots | queues).items():
            with contextlib.suppress(OSError):  # it has gone since
                found[if_indextoname(index)] += count
        return found


class _Tc:
    """A tc that takes batches until it is closed: starting one takes longer than a hundred changes."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            ["tc", "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,  # Ctrl-C at a prompt is not for it
        )
        self._lines = 0

    def run(self, batch: str) -> None:
        """Run a batch to its end; raises TcError with the first line that fails, and is of no more use then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(batch + "qdisc show dev lo\n")  # the answer tells that all before it is done
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TcError(self._failure(batch)) from None
        if not self._process.stdout.readline():
            raise TcError(self._failure(batch))
        self._lines += batch.count("\n") + 1

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()  # a process forked meanwhile may hold the pipe open; every batch has been answered
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _failure(self, batch: str) -> str:
        """What tc had against a line of the batch."""
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()
        words = [line for line in said.splitlines() if not line.startswith("Command failed")]
        reason = words[-1].removeprefix("Error: ").strip() if words else f"status {self._process.returncode}"
        failed = re.search(r"^Command failed -:(\d+)", said, re.MULTILINE)
        lines = batch.splitlines()
        place = int(failed[1]) - self._lines - 1 if failed else -1
        line = lines[place] if 0 <= place < len(lines) else "its batch"
        return f"tc does not take `{line}`: {reason}"
