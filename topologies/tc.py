"""Traffic control in effect: apply the shaping, read back what the kernel holds, count what was dropped anywhere.

What is to be applied is `shaping`'s; the switches must be up first, since Open vSwitch replaces the qdisc of a port
that it takes.
"""

import contextlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from socket import if_indextoname, if_nametoindex

import numpy as np
import numpy.typing as npt

from topologies.datapaths import Datapaths
from topologies.rtnetlink import HtbClass, HtbRate, NetemDelay, RtNetlink
from topologies.shaping import QUANTUM_BYTES, QUEUE_PACKETS, ClassKey, Shaping, class_name, mismatch

Floats = npt.NDArray[np.float64]

_DEVICE = re.compile(r"^ *([^ :]+):((?: +\d+)+)$", re.MULTILINE)
_PATIENCE_S = 120  # for tc, which takes a second for the largest fabric
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
        self._index = {name: index for index, name in self._ports.items()}
        self._netlink = RtNetlink()
        try:
            self._check_free()
        except BaseException:
            self._netlink.close()
            raise
        try:
            _tc(shaping.structure(rates_bps))
            self._delay()
            self._check_delays()
            self.change(rates_bps)
            self.check(rates_bps)
        except BaseException:
            self.close()
            raise

    def change(self, rates_bps: Floats) -> None:
        """Give every link the rate of these conditions, [links] bit/s; returns once the kernel has told of every
        class what it holds now.

        Raises TcError with port, wanted and found rate unless it is what it should be to the byte/s.
        """
        wanted = self.shaping.wanted(rates_bps)
        burst_ns = round(self.shaping.late_s * 1e9)
        changes = [
            HtbRate(interface=self._index[name], minor=minor, rate=rate, burst_ns=burst_ns, quantum=QUANTUM_BYTES)
            for (name, minor), rate in wanted.items()
        ]
        try:
            self._compare(wanted, self._netlink.change_classes(changes))
        except OSError as error:
            raise TcError(error.strerror) from None

    def check(self, rates_bps: Floats) -> None:
        """Raise TcError with port, wanted and found rate unless every class holds these conditions to the byte/s."""
        held = [found for index in self._ports for found in self._netlink.classes(index)]
        self._compare(self.shaping.wanted(rates_bps), held)

    def _compare(self, wanted: Mapping[ClassKey, int], held: Iterable[HtbClass]) -> None:
        found = {(self._ports[one.interface], one.minor): (one.rate, one.ceil) for one in held}
        sentence = mismatch(wanted, found)
        if sentence:
            raise TcError(sentence)

    def lose(self, interface: str, share: float) -> None:
        """Have a port lose this share of what it sends, from 0 to 1; a large segment is lost as a whole.

        What waits in a netem stays. Raises TcError.
        """
        own = [lane for lane in self.shaping.lanes if lane.interface == interface]
        bare = [lane for lane in own if lane.key not in self.shaping.delays_ns]
        kind = f"{'netem' if share else 'pfifo'} limit {QUEUE_PACKETS}"
        lines = [
            f"qdisc replace dev {lane.interface} parent 1:{lane.minor:x} handle {lane.minor + 1:x}: {kind}\n"
            for lane in bare
        ]
        if not own:
            place = f"dev {interface} root handle 1:"
            loss = f"qdisc replace {place} netem limit {QUEUE_PACKETS} loss {share * 100:.9g}%\n"
            lines.append(loss if share else f"qdisc del dev {interface} root\n")
        _tc("".join(lines))
        self._delay({lane.key: share for lane in own if share or lane not in bare})

    def close(self) -> None:
        """Take the shaping away, as far as its ports are still there."""
        with contextlib.suppress(TcError):
            _tc(self.shaping.removal(), "-force")  # some may be gone
        self._netlink.close()

    def __enter__(self) -> "Shaper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_free(self) -> None:
        """Raise TcError where a port is shaped already, as that is not for us to take away."""
        for qdisc in self._netlink.qdiscs():
            if qdisc.interface in self._ports and qdisc.kind != "noqueue":
                raise TcError(f"port {self._ports[qdisc.interface]} has the queueing discipline {qdisc.kind} already")

    def _delay(self, losses: Mapping[ClassKey, float] | None = None) -> None:
        """Give every netem its delay, which tc itself cannot say so exactly; or these, with what they lose."""
        known = self.shaping.delays_ns
        delays = [
            NetemDelay(
                interface=self._index[key[0]],
                minor=key[1],
                delay_ns=known.get(key, 0),
                limit=QUEUE_PACKETS,
                loss=0.0 if losses is None else losses[key],
            )
            for key in (known if losses is None else losses)
        ]
        if not delays:
            return
        try:
            self._netlink.change_delays(delays)
        except OSError as error:
            raise TcError(error.strerror) from None

    def _check_delays(self) -> None:
        found = {
            (self._ports[qdisc.interface], qdisc.parent or 0): qdisc.delay_ns
            for qdisc in self._netlink.qdiscs()
            if qdisc.interface in self._ports
        }
        for lane in self.shaping.lanes:
            wanted_ns, found_ns = self.shaping.delays_ns.get(lane.key, 0), found.get(lane.key, 0)
            if found_ns != wanted_ns:
                raise TcError(f"{class_name(lane.key)} should delay by {wanted_ns} ns and delays by {found_ns} ns")


def _index(interface: str) -> int:
    try:
        return if_nametoindex(interface)
    except OSError:
        raise TcError(f"there is no port {interface} to shape") from None


class DropCounter:
    """Counts packets dropped since it was made: by a queue of this network namespace, by any interface, or by a
    datapath that waited for Open vSwitch to decide.

    `host_pids` are processes in the network namespaces of the hosts.
    """

    def __init__(self, host_pids: Sequence[int]) -> None:
        self._devices = [Path(f"/proc/{pid}/net/dev") for pid in ("self", *host_pids)]
        self._netlink, self._datapaths = RtNetlink(), Datapaths()
        self._seen = self._read()

    def drops(self) -> dict[str, int]:
        """The packets dropped since the last call, by the interface (or its queue) or the datapath that did."""
        now = self._read()
        fresh, self._seen = now - self._seen, now
        return dict(fresh)

    def close(self) -> None:
        """Stop counting."""
        self._netlink.close()
        self._datapaths.close()

    def _read(self) -> Counter[str]:
        found: Counter[str] = Counter(self._datapaths.lost())
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


def _tc(batch: str, *options: str) -> None:
    """Run a batch of tc to its end; raises TcError with the first line that fails."""
    try:
        done = subprocess.run(
            ["tc", *options, "-batch", "-"],
            input=batch,
            capture_output=True,
            text=True,
            check=False,
            process_group=0,  # Ctrl-C at a prompt is not for it
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise TcError(f"tc has not ended after {_PATIENCE_S} s") from None
    if done.returncode == 0:
        return
    words = [line for line in done.stderr.splitlines() if not line.startswith("Command failed")]
    reason = words[-1].removeprefix("Error: ").strip() if words else f"status {done.returncode}"
    failed = re.search(r"^Command failed -:(\d+)", done.stderr, re.MULTILINE)
    line = batch.splitlines()[int(failed[1]) - 1] if failed else "its batch"
    raise TcError(f"tc does not take `{line}`: {reason}")
