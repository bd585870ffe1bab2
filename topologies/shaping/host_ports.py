"""The ports by which hosts send, with a rate of their own and a queue that holds senders up. For programs on finite
buffers.

On a real host a program that sends faster than the port waits until the port's queue has room in the socket's buffer.
With finite buffers, hosts send at no rate of their own (`tc.SenderNetems`), and any burst would overflow the first
buffer on its way. So a host's port gets an HTB class with its rate, and what ends the accounting of a packet by the
socket that sent it, a netem of 1 ns, moves behind that port: to the ingress of the leaf, or in the physical grain to
the queue of the NIC's class, which then never has to hold more than a packet.
"""

import contextlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import links_in_grain
from topologies.mininet_network import inside
from topologies.shaping.classes import QUANTUM_BYTES, QUEUE_PACKETS
from topologies.shaping.frames import TCP_FRAMES
from topologies.shaping.ifb import Ifb, nic_name
from topologies.shaping.tc import IfbDevices, SenderNetems, Shaper, TcError, run_tc

Floats = npt.NDArray[np.float64]


class HostPorts:
    """A context manager that gives the GPUs' ports these rates, [n] bit/s of payload; `host_pids` are by rank, of a
    fabric that machines share of those here.

    `shaper` has shaped the network with finite buffers and the rates of links or ports `shaped_bps`. With `late_s`, as
    in `Shaping`, a port makes up for a late timer. Entering raises TcError if the kernel refuses.
    """

    def __init__(
        self, shaper: Shaper, host_pids: Mapping[int, int], rates_bps: Floats, *, shaped_bps: Floats, late_s: float
    ) -> None:
        self._fabric, self._shaper, self._pids = shaper.shaping.fabric, shaper, host_pids
        self._rates_bps, self._shaped_bps, self._late_s = rates_bps, shaped_bps, late_s
        self._senders = SenderNetems(self._fabric, host_pids)
        port = {port.peer: port.interface for switch in self._fabric.switches for port in switch.ports}
        gpus = [self._fabric.gpus[rank] for rank in host_pids]
        self._nics = {nic_name(gpu.rank) for gpu in gpus if self._fabric.spec.grain == "physical"}
        behind = () if self._nics else gpus
        names = [(f"port{gpu.rank}", port[gpu.name]) for gpu in behind]
        ifbs = [Ifb(name=name, rank=None, interface=leaf, sources=(), delay_ns=1) for name, leaf in names]
        self._behind = IfbDevices(ifbs)

    def __enter__(self) -> "HostPorts":
        try:
            self._behind.make()
            if self._nics:
                self._shaper.release_at(self._nics, self._shaped_bps)
            self._senders.restore()
            for rank, pid in self._pids.items():
                lines = self._lines(self._fabric.gpus[rank].interface, round(float(self._rates_bps[rank])))
                with inside(pid):
                    run_tc("".join(f"{line}\n" for line in lines))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._senders.restore()
        with contextlib.suppress(TcError):  # something has ended meanwhile
            self._senders.release()
            if self._nics:
                self._shaper.release_at((), self._shaped_bps)
        self._behind.remove()

    def _lines(self, interface: str, rate_bps: int) -> tuple[str, ...]:
        """Return the lines for tc that give a port its rate."""
        wire = TCP_FRAMES.wire_bytes_per_s(rate_bps)
        burst = max(1, round(wire * self._late_s))
        limits = f"rate {8 * wire}bit burst {burst} cburst {burst} quantum {QUANTUM_BYTES}"
        return (
            f"qdisc add dev {interface} root handle 1: htb default 1 direct_qlen {QUEUE_PACKETS}",
            f"class add dev {interface} parent 1: classid 1:1 htb {limits}",
            f"qdisc add dev {interface} parent 1:1 pfifo limit {QUEUE_PACKETS}",
        )


def port_rates_bps(fabric: Fabric, rates_bps: Floats) -> Floats:
    """Return the rate of each GPU's port, [n] bit/s: that of the fastest of its links, because in the logical grain a
    GPU has several. `rates_bps` are those of all links or ports."""
    links = links_in_grain(fabric).all
    return np.array([max(rates_bps[link.index] for link in links if link.src == gpu.name) for gpu in fabric.gpus])
