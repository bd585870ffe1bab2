"""Traffic control in the kernel: apply a Shaping, verify the kernel's state, and count the drops of the whole network.

The switches must be up first, because Open vSwitch replaces the queueing discipline of a port when it adds the port.
"""

import contextlib
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from socket import if_indextoname, if_nametoindex
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import links_in_grain
from topologies.mininet_network import inside
from topologies.shaping import netlink
from topologies.shaping.classes import QUANTUM_BYTES, QUEUE_PACKETS, ClassKey, HtbClass, Shaping, class_name, mismatch
from topologies.shaping.frames import MTU_BYTES, TCP_FRAMES
from topologies.shaping.ifb import Ifb
from topologies.shaping.netlink import Datapaths, Netem, RtNetlink

Floats = npt.NDArray[np.float64]

_DEVICE = re.compile(r"^ *([^ :]+):((?: +\d+)+)$", re.MULTILINE)
_TIMEOUT_S = 120  # for tc, which takes a second for the largest fabric
_MAX_LINES = 20_000  # per run of tc, which crashes at some 100,000 lines
_RECEIVE_DROPS, _TRANSMIT_DROPS = 3, 11  # columns of /proc/net/dev


class TcError(Exception):
    """Raised if traffic control cannot be applied, or the kernel holds another one; the message is one sentence."""


class Shaper:
    """A context manager that shapes a fabric's network until it is closed.

    This process must be in the switches' network namespace. `host_pids` are processes in the network namespaces of the
    GPUs, by rank (of a fabric that machines share, of those here); fair sharing, the physical grain and finite buffers
    need them. Raises TcError if delays cannot be shaped, or the kernel refuses the shaping or holds another one
    afterwards.
    """

    def __init__(self, shaping: Shaping, rates_bps: Floats, host_pids: Sequence[int] | Mapping[int, int] = ()) -> None:
        self.shaping = shaping
        self._releasing: frozenset[str] = frozenset()
        try:
            ifbs = shaping.ifbs
        except ValueError as error:
            raise TcError(str(error)) from None
        pids = dict(enumerate(host_pids)) if isinstance(host_pids, Sequence) else host_pids
        self._ifbs = IfbDevices(ifbs, pids)
        self._senders = SenderNetems(shaping.fabric, pids if shaping.buffer else {})
        ifb_names = {ifb.name for ifb in ifbs}
        self._ifindex = {name: _ifindex(name) for name in shaping.interfaces if name not in ifb_names}
        self._netlink = RtNetlink()
        try:
            self._check_unshaped()
        except BaseException:
            self._netlink.close()
            raise
        try:
            self._ifbs.make()
            self._senders.release()
            self._ifindex = {name: _ifindex(name) for name in shaping.interfaces}
            self._ports = {index: name for name, index in self._ifindex.items()}
            run_tc(shaping.structure(rates_bps))
            self._set_netems({key: Netem(delay_ns) for key, delay_ns in shaping.delays_ns.items()})
            self._check_delays()
            self.change(rates_bps)
            self.check(rates_bps)
        except BaseException:
            self.close()
            raise

    def change(self, rates_bps: Floats) -> None:
        """Set every link's rate, [links] bit/s; return once the kernel has confirmed the new rate of every class.

        Raises TcError, with the port, the wanted and the confirmed rate, if a class differs by a byte/s.
        """
        wanted = self.shaping.wanted(rates_bps)
        rates = {(self._ifindex[name], minor): rate for (name, minor), rate in wanted.items()}
        children = {
            (self._ifindex[name], minor): child
            for (name, minor), child in self.shaping.child_classes(rates_bps).items()
        }
        marks_us = {key: us for key, us in self.shaping.marks_us(rates_bps).items() if key[0] not in self._releasing}
        burst_ns = round(self.shaping.late_s * 1e9)
        try:
            self._netlink.change_marks({(self._ifindex[name], minor): us for (name, minor), us in marks_us.items()})
            held = self._netlink.change_rates(rates, burst_ns=burst_ns, quantum_bytes=QUANTUM_BYTES, children=children)
        except OSError as error:
            raise TcError(error.strerror) from None
        self._compare(rates_bps, held)

    def move(self, delays_s: Floats) -> None:
        """Give the WAN links of a `moving` shaping other delays, [links] s; packets under way keep theirs. Raises
        TcError."""
        before, self.shaping = self.shaping, replace(self.shaping, delays_s=delays_s)
        now_ns = self.shaping.delays_ns
        self._set_netems({key: Netem(ns) for key, ns in now_ns.items() if before.delays_ns.get(key) != ns})
        self._ifbs.move(self.shaping.ifbs)

    def check(self, rates_bps: Floats) -> None:
        """Raise TcError, with the port, the wanted and the read rate, if a class's rate differs by a byte/s."""
        held = {key: rates for index in self._ports for key, rates in self._netlink.rates(index).items()}
        self._compare(rates_bps, held)

    def _compare(self, rates_bps: Floats, held: Mapping[netlink.ClassId, tuple[int, int]]) -> None:
        held_by_key = {(self._ports[index], minor): rates for (index, minor), rates in held.items()}
        problem = mismatch(self.shaping.wanted(rates_bps), held_by_key, self.shaping.child_classes(rates_bps))
        if problem:
            raise TcError(problem)

    def tunnel_bytes(self) -> dict[int, int]:
        """Return the payload in bytes that each tunnel has sent, taking all frames as full; raises OSError.

        The keys are the tunnels' indices, which follow those of links or ports. It may be called from any thread in
        this network namespace.
        """
        first, leaves = len(links_in_grain(self.shaping.fabric).all), self.shaping.leaves
        tunnels = {(self._ifindex[htb.interface], htb.minor): htb.link for htb in leaves if htb.link >= first}
        with contextlib.closing(RtNetlink()) as kernel:
            of_ports = [kernel.sent_bytes(port) for port in {port for port, _ in tunnels}]
        return {
            tunnels[key]: TCP_FRAMES.payload_of(size)
            for port in of_ports
            for key, size in port.items()
            if key in tunnels
        }

    def queues(self, interfaces: Collection[str]) -> dict[ClassKey, tuple[int, int]]:
        """Return for each class of these interfaces that is below no other the bytes of frames that it has sent, and
        those that wait for its rate; raises OSError.

        What waits below a ceiling of its own does not count: it may wait although the class could send more.
        """
        with contextlib.closing(RtNetlink()) as kernel:
            of_ports = {name: kernel.queues(self._ifindex[name]) for name in interfaces}
        services, read = self.shaping.services, dict[ClassKey, tuple[int, int]]()
        for htb in self.shaping.classes:
            if htb.interface not in of_ports:
                continue
            sent, queued = of_ports[htb.interface][self._ifindex[htb.interface], htb.minor]
            if not htb.parent:
                read[htb.key] = sent, queued
            elif not services or services[htb.service].ceiling == 1:
                port = htb.interface, htb.parent
                read[port] = read[port][0], read[port][1] + queued
        return read

    def lose(self, interface: str, share: float) -> None:
        """Make a port lose this share (0 to 1) of the packets it sends; a large segment is lost as a whole.

        Packets that are queued in a netem remain there. Raises TcError.
        """
        classes = [htb for htb in self.shaping.leaves if htb.interface == interface]
        if classes:
            self._lose_in_classes(classes, share)
        elif share:
            loss = f"netem limit {QUEUE_PACKETS} loss {share * 100:.9g}%"
            run_tc(f"qdisc replace dev {interface} root handle 1: {loss}\n")
        else:
            run_tc(f"qdisc del dev {interface} root\n")

    def _lose_in_classes(self, classes: Sequence[HtbClass], share: float) -> None:
        """Set the loss of these classes; those without a delay have a netem, instead of a queue, only for a loss."""
        delays_ns = self.shaping.delays_ns
        undelayed = [htb for htb in classes if htb.key not in delays_ns]
        kind = f"netem limit {QUEUE_PACKETS}" if share else self.shaping.queue
        run_tc("".join(f"qdisc replace {htb.queue(kind)}\n" for htb in undelayed))
        netems = classes if share else [htb for htb in classes if htb.key in delays_ns]
        self._set_netems({htb.key: Netem(delays_ns.get(htb.key, 0), share) for htb in netems})

    def release_at(self, interfaces: Collection[str], rates_bps: Floats) -> None:
        """On these interfaces, replace queues without a netem by one of 1 ns, so that packets leave the accounting of
        the sockets that sent them (see `SenderNetems`); give the others their queues back. Raises TcError."""
        changing, self._releasing = self._releasing ^ frozenset(interfaces), frozenset(interfaces)
        classes = [htb for htb in self.shaping.leaves if htb.interface in changing]
        netem = f"netem limit {QUEUE_PACKETS}"
        kinds = [netem if htb.interface in self._releasing else self.shaping.queue for htb in classes]
        run_tc("".join(f"qdisc replace {htb.queue(kind)}\n" for htb, kind in zip(classes, kinds, strict=True)))
        self._set_netems({htb.key: Netem(1) for htb in classes if htb.interface in self._releasing})
        self.change(rates_bps)

    def redirect_again(self) -> None:
        """Restore what a port loses as its link goes down: Open vSwitch then removes filters for arriving packets."""
        self._ifbs.redirect_again()

    def close(self) -> None:
        """Remove the shaping from all ports that still exist."""
        with contextlib.suppress(TcError):
            run_tc(self.shaping.removal(), "-force")  # some ports may no longer exist
        self._ifbs.remove()
        self._senders.restore()
        self._netlink.close()

    def __enter__(self) -> "Shaper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_unshaped(self) -> None:
        """Raise TcError if a port is shaped already: `close` would remove that shaping."""
        ports = {index: name for name, index in self._ifindex.items()}
        for qdisc in self._netlink.qdiscs():
            if qdisc.interface in ports and qdisc.kind != "noqueue":
                raise TcError(f"port {ports[qdisc.interface]} has the queueing discipline {qdisc.kind} already")

    def _set_netems(self, netems: Mapping[ClassKey, Netem]) -> None:
        """Set netems over netlink: tc cuts delays to whole microseconds, and refuses those above 274 s."""
        by_id = {(self._ifindex[name], minor): netem for (name, minor), netem in netems.items()}
        try:
            self._netlink.change_netems(by_id, limit_packets=QUEUE_PACKETS)
        except OSError as error:
            raise TcError(error.strerror) from None

    def _check_delays(self) -> None:
        qdiscs = [qdisc for qdisc in self._netlink.qdiscs() if qdisc.interface in self._ports]
        held = {(self._ports[qdisc.interface], qdisc.parent or 0): qdisc.delay_ns for qdisc in qdiscs}
        for key in (htb.key for htb in self.shaping.classes):
            wanted_ns, held_ns = self.shaping.delays_ns.get(key, 0), held.get(key, 0)
            if held_ns != wanted_ns:
                raise TcError(f"{class_name(key)} should delay by {wanted_ns} ns but delays by {held_ns} ns")


class IfbDevices:
    """The ifbs of a shaping, in the network namespaces of this process and of the GPUs' hosts."""

    def __init__(self, ifbs: Sequence[Ifb], host_pids: Mapping[int, int] = MappingProxyType({})) -> None:
        self._by_pid: dict[str, list[Ifb]] = {}
        for ifb in ifbs:
            pid = "self" if ifb.rank is None else str(host_pids[ifb.rank])
            self._by_pid.setdefault(pid, []).append(ifb)
        self._begun: list[str] = []

    def make(self) -> None:
        """Make the ifbs; raises TcError if the kernel refuses one or holds another delay afterwards."""
        for pid, ifbs in self._by_pid.items():
            self._begun.append(pid)
            try:
                with inside(pid), contextlib.closing(RtNetlink()) as kernel:
                    self._make(kernel, ifbs)
            except OSError as error:
                raise TcError(error.strerror) from None

    def move(self, ifbs: Sequence[Ifb]) -> None:
        """Give the switches' ifbs other delays; raises TcError."""
        now = {ifb.name: ifb for ifb in ifbs if ifb.rank is None}
        changed = [now[ifb.name] for ifb in self._by_pid.get("self", ()) if now[ifb.name].delay_ns != ifb.delay_ns]
        netems = {(if_nametoindex(ifb.name), 0): Netem(ifb.delay_ns, ifb.loss, ifb.seed) for ifb in changed}
        try:
            with contextlib.closing(RtNetlink()) as kernel:
                kernel.change_netems(netems, limit_packets=QUEUE_PACKETS)
        except OSError as error:
            raise TcError(error.strerror) from None
        self._by_pid["self"] = [now[ifb.name] for ifb in self._by_pid.get("self", ())]

    def redirect_again(self) -> None:
        """Redirect packets to the ifbs again at the switches' ports that have lost their filters; raises TcError."""
        ifbs = self._by_pid.get("self", ())
        with contextlib.closing(RtNetlink()) as kernel:
            redirecting = {qdisc.interface for qdisc in kernel.qdiscs() if qdisc.kind == "ingress"}
        lost = [ifb for ifb in ifbs if _ifindex(ifb.interface) not in redirecting]
        if lost:
            run_tc("".join(line + "\n" for line in _redirections(lost)))

    def _make(self, kernel: RtNetlink, ifbs: Sequence[Ifb]) -> None:
        for ifb in ifbs:
            kernel.add_ifb(ifb.name, mtu_bytes=MTU_BYTES)
        with_netem = [ifb for ifb in ifbs if ifb.delay_ns or ifb.loss]
        lines = [f"qdisc add dev {ifb.name} root handle 1: netem limit {QUEUE_PACKETS}" for ifb in with_netem]
        run_tc("".join(line + "\n" for line in (*lines, *_redirections(ifbs))))
        index = {ifb.name: if_nametoindex(ifb.name) for ifb in with_netem}
        wanted = {(index[ifb.name], 0): Netem(ifb.delay_ns, ifb.loss, ifb.seed) for ifb in with_netem}
        kernel.change_netems(wanted, limit_packets=QUEUE_PACKETS)
        held = {qdisc.interface: qdisc.delay_ns for qdisc in kernel.qdiscs() if qdisc.parent is None}
        for ifb in with_netem:
            if (held_ns := held.get(index[ifb.name])) != ifb.delay_ns:
                where = f"{ifb.name}, the ifb of {ifb.interface},"
                raise TcError(f"{where} should delay by {ifb.delay_ns} ns but delays by {held_ns} ns")

    def remove(self) -> None:
        """Remove the ifbs that still exist."""
        for pid in self._begun:
            ifbs = self._by_pid[pid]
            with contextlib.suppress(OSError), inside(pid), contextlib.closing(RtNetlink()) as kernel:
                for interface in _redirected(ifbs):
                    with contextlib.suppress(OSError):
                        kernel.delete_ingress(interface)
                for ifb in ifbs:
                    with contextlib.suppress(OSError):
                        kernel.delete_link(ifb.name)


def _redirections(ifbs: Sequence[Ifb]) -> Iterator[str]:
    """Yield the lines for tc that redirect packets to these ifbs at interfaces without an ingress qdisc."""
    yield from (f"qdisc add dev {name} handle ffff: ingress" for name in _redirected(ifbs))
    for ifb in ifbs:
        yield from ifb.filters()


def _redirected(ifbs: Sequence[Ifb]) -> list[str]:
    """Return the interfaces whose packets these ifbs receive, each once."""
    return list(dict.fromkeys(ifb.interface for ifb in ifbs))


class SenderNetems:
    """The GPUs' interfaces, at which TCP takes its segments as delivered; `host_pids` are by rank.

    All switches are in one kernel, so TCP small queues would hold back a flow whose segments are queued anywhere; in a
    real network they see only the sender's interface. A netem, here of 1 ns, ends their accounting
    (`skb_orphan_partial`).
    """

    def __init__(self, fabric: Fabric, host_pids: Mapping[int, int]) -> None:
        self._interfaces = {str(pid): fabric.gpus[rank].interface for rank, pid in host_pids.items()}

    def release(self) -> None:
        """Add the netems; raises TcError if the kernel refuses."""
        for pid, name in self._interfaces.items():
            try:
                with inside(pid), contextlib.closing(RtNetlink()) as kernel:
                    run_tc(f"qdisc add dev {name} root handle 1: netem limit {QUEUE_PACKETS}\n")
                    kernel.change_netems({(if_nametoindex(name), 0): Netem(1)}, limit_packets=QUEUE_PACKETS)
            except OSError as error:
                raise TcError(error.strerror) from None

    def restore(self) -> None:
        """Remove the netems from the interfaces of hosts that still exist."""
        for pid, name in self._interfaces.items():
            with contextlib.suppress(OSError, TcError), inside(pid):
                run_tc(f"qdisc del dev {name} root\n")


def _ifindex(interface: str) -> int:
    try:
        return if_nametoindex(interface)
    except OSError:
        raise TcError(f"there is no port {interface} to shape") from None


class DropCounter:
    """Counts dropped packets: by queues, by interfaces, and by datapaths whose packets Open vSwitch read too slowly.

    `host_pids` are processes in the network namespaces of the hosts.
    """

    def __init__(self, host_pids: Collection[int]) -> None:
        self._devices = [Path(f"/proc/{pid}/net/dev") for pid in ("self", *host_pids)]
        self._kernels: dict[str, RtNetlink] = {}
        for pid in ("self", *map(str, host_pids)):
            with inside(pid):
                self._kernels[pid] = RtNetlink()
        self._datapaths = Datapaths()
        self._seen = self._read()

    def drops(self) -> dict[str, int]:
        """Return the packets dropped since the last call (at first: since the counter was made), by the name of the
        interface (also for its queues) or datapath."""
        now = self._read()
        fresh, self._seen = now - self._seen, now
        return dict(fresh)

    def close(self) -> None:
        """Stop counting."""
        for kernel in self._kernels.values():
            kernel.close()
        self._datapaths.close()

    def _read(self) -> Counter[str]:
        drops: Counter[str] = Counter(self._datapaths.lost())
        for path in self._devices:
            for name, columns in _DEVICE.findall(path.read_text()):
                counts = columns.split()
                drops[name] += int(counts[_RECEIVE_DROPS]) + int(counts[_TRANSMIT_DROPS])
        for pid, kernel in self._kernels.items():
            if dropped := _queue_drops(kernel):
                with contextlib.suppress(OSError), inside(pid):  # the host may have ended meanwhile
                    drops.update(_with_names(dropped))
        return drops


def _queue_drops(kernel: RtNetlink) -> Counter[int]:
    """Return the packets that queues have dropped, by the index of their interface."""
    # A classful qdisc also counts most drops of the queues beneath it, so the greater of the two counts is right.
    roots: Counter[int] = Counter()
    queues: Counter[int] = Counter()
    for qdisc in kernel.qdiscs():
        (roots if qdisc.parent is None else queues)[qdisc.interface] += qdisc.drops
    return roots | queues


def _with_names(drops: Mapping[int, int]) -> Counter[str]:
    """Replace the indices of interfaces in this thread's network namespace by their names."""
    by_name: Counter[str] = Counter()
    for index, count in drops.items():
        with contextlib.suppress(OSError):  # the interface may have been deleted meanwhile
            by_name[if_indextoname(index)] += count
    return by_name


def run_tc(batch: str, *options: str) -> None:
    """Run a batch of tc in this thread's network namespace.

    Raises TcError with the first line that fails, or after _TIMEOUT_S.
    """
    all_lines = batch.splitlines(keepends=True)
    for start in range(0, len(all_lines), _MAX_LINES):
        lines = all_lines[start : start + _MAX_LINES]
        try:
            done = subprocess.run(
                ["tc", *options, "-batch", "-"],
                input="".join(lines),
                capture_output=True,
                text=True,
                check=False,
                process_group=0,  # so that Ctrl-C at a prompt does not end it
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise TcError(f"tc did not end within {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            output = [line for line in done.stderr.splitlines() if not line.startswith("Command failed")]
            reason = output[-1].removeprefix("Error: ").strip() if output else f"status {done.returncode}"
            failed = re.search(r"^Command failed -:(\d+)", done.stderr, re.MULTILINE)
            line = lines[int(failed[1]) - 1].rstrip() if failed else "its batch"
            raise TcError(f"tc refuses `{line}`: {reason}")
