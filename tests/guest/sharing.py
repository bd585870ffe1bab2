"""Runs inside the VM: TCP flows that share links of the default fabric, with fair queues; prints one JSON object.

`python -m tests.guest.sharing CASES WAYS`: CASES is a JSON object of cases by name, each with `rates` by link (bit/s,
others have FAST_BPS), `flows` of [source, destination, bytes, start in s], the `delays` of links within a site and of
the WAN in s, how many links of a route are `shared`, and whether links are `physical` ports. WAYS are the switches on
the route between each pair of all cases, by pair such as "0-4". A case's result is when each flow's message had
arrived, including the label of 24 bytes after it, in ns since the first start, the dropped packets and the
retransmitted bytes. Under "kernel" is what ip and tc show before, during and after the first case's shaping.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.agent.transport import fair_share_limits, retransmitted_bytes, set_queued_bytes
from scenarios.vm import openvswitch
from tests.guest.network import MSG_EOR, flows, inside, namespace, sh
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.ports import links_in_grain
from topologies.mininet_network import Network, netlink_of
from topologies.shaping.classes import Shaping
from topologies.shaping.tc import DropCounter, Shaper, TcError

Floats = npt.NDArray[np.float64]

FAST_BPS, LABEL_BYTES, BUFFER_BYTES = 400e9, 24, 268_435_456
LEAD_NS = 50_000_000
_PR_SET_TIMERSLACK = 29
LIBC = ctypes.CDLL(None)


def prepare(fabric: Fabric, pids: tuple[int, ...], case: Mapping[str, Any], fastest_bps: float) -> None:
    """Apply the agents' settings on every host: buffers, windows and segments, and flows that start at line rate."""
    window = fair_share_limits(
        message_bytes=min(flow[2] for flow in case["flows"]), shared_links=case["shared"], fastest_bps=fastest_bps
    )
    for gpu, pid in zip(fabric.gpus, pids, strict=True):
        with namespace(pid):
            for name in ("tcp_rmem", "tcp_wmem"):
                Path(f"/proc/sys/net/ipv4/{name}").write_text(f"4096 {BUFFER_BYTES} {BUFFER_BYTES}")
            set_queued_bytes(window.queued_bytes)
        with netlink_of(pid) as netlink:
            netlink.set_segment_bytes(gpu.interface, window.segment_bytes)
        inside(pid, f"ip route change 10.0.0.0/8 dev {gpu.interface} initcwnd 20000 initrwnd 20000")


def connect(fabric: Fabric, pids: tuple[int, ...], src: int, dst: int, port: int) -> tuple[socket.socket, ...]:
    """Return both ends of a new connection that has carried a byte each way."""
    with namespace(pids[dst]):
        listener = socket.create_server((fabric.gpus[dst].ip, port))
    with namespace(pids[src]):
        out = socket.create_connection((fabric.gpus[dst].ip, port))
    with listener:
        arrived, _ = listener.accept()
    for end in (out, arrived):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for a, b in ((out, arrived), (arrived, out)):
        a.send(b"x")
        b.recv(1)
    return out, arrived


@contextmanager
def child(action: Any) -> Iterator[Any]:
    """Runs a function in a child process; yields a function that waits for its result and returns it."""
    answers, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        LIBC.prctl(_PR_SET_TIMERSLACK, 1)
        os.write(tells, json.dumps(action()).encode())
        os._exit(0)
    os.close(tells)
    try:
        yield lambda: json.loads(os.read(answers, 1000))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(answers)


def transfers(fabric: Fabric, pids: tuple[int, ...], wanted: list[list[Any]]) -> dict[str, Any]:
    """Run flows; return when each one's message had arrived, ns since the first start, and the retransmitted bytes."""
    most = max(flow[2] for flow in wanted)
    message, room = memoryview(bytes(most)), bytearray(most + LABEL_BYTES)
    ends = [connect(fabric, pids, src, dst, 7000 + n) for n, (src, dst, *_) in enumerate(wanted)]
    time.sleep(0.1)
    zero_ns = time.monotonic_ns() + LEAD_NS

    def sends(out: socket.socket, size: int, start_s: float) -> Any:
        def action() -> int:
            time.sleep((zero_ns + round(start_s * 1e9) - time.monotonic_ns()) / 1e9)
            body = message[:size]
            while body:
                body = body[out.send(body, MSG_EOR) :]
            return out.send(message[:LABEL_BYTES])

        return action

    def receives(arrived: socket.socket, size: int) -> Any:
        def action() -> int:
            arrived.recv_into(room, size + LABEL_BYTES, socket.MSG_WAITALL)
            return time.monotonic_ns() - zero_ns

        return action

    with ExitStack() as running:
        answers = []
        for (out, arrived), (_, _, size, start_s) in zip(ends, wanted, strict=True):
            answers.append(running.enter_context(child(receives(arrived, size))))
            running.enter_context(child(sends(out, size, start_s)))
        ended_ns = [answer() for answer in answers]
    again = sum(retransmitted_bytes(out) for out, _ in ends)
    for closed in (end for pair in ends for end in pair):
        closed.close()
    return {"ended_ns": ended_ns, "retransmitted": again}


def shaping_of(fabric: Fabric, case: Mapping[str, Any]) -> tuple[Shaping, Floats]:
    """Return a case's shaping and rates."""
    shaped = build_fabric(FabricSpec(grain="physical")) if case.get("physical") else fabric
    index = {link.name: link.index for link in links_in_grain(shaped).all}
    rates = np.full(len(index), FAST_BPS)
    for name, rate_bps in case["rates"].items():
        rates[index[name]] = rate_bps
    inner_s, wan_s = case["delays"]
    delays = np.array([wan_s if link.kind == "wan" else inner_s for link in fabric.links])
    return Shaping(fabric=shaped, delays_s=delays, fair=True), rates


def run(fabric: Fabric, pids: tuple[int, ...], case: Mapping[str, Any]) -> dict[str, Any]:
    """Run a case's flows while its shaping is in force."""
    prepare(fabric, pids, case, max(case["rates"].values()))
    shaping, rates = shaping_of(fabric, case)
    with Shaper(shaping, rates, pids), closing(DropCounter(pids)) as drops:
        return transfers(fabric, pids, case["flows"]) | {"drops": drops.drops()}


def seen(pids: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the interfaces and qdiscs in the network namespaces of the switches and of every host."""
    shown = {"links": "ip -j link", "qdiscs": "tc -j qdisc show"}
    switches = {name: json.loads(sh(line)) for name, line in shown.items()}
    return [switches, *({name: json.loads(inside(pid, line)) for name, line in shown.items()} for pid in pids)]


def kernel(fabric: Fabric, pids: tuple[int, ...], case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel's interfaces, qdiscs and drops before, during and after a shaping that also loses packets at a
    port and drops them in an IFB device."""
    found: dict[str, Any] = {"before": seen(pids)}
    shaping, rates = shaping_of(fabric, case)
    with Shaper(shaping, rates, pids) as shaper:
        found["during"] = seen(pids)
        found["delays_ns"] = {}
        for rank, pid in enumerate(pids):
            with netlink_of(pid) as netlink:
                found["delays_ns"][rank] = sorted(one.delay_ns for one in netlink.qdiscs() if one.kind == "netem")
        try:
            Shaper(shaping, rates, pids)
        except TcError as error:
            found["twice"] = str(error)
        for share in (0.25, 0.0):
            shaper.lose("s0b0-eth3", share)
            found[f"lost {share}"] = json.loads(sh("tc -j qdisc show dev s0b0-eth3"))
        with closing(DropCounter(pids)) as drops:
            address = ip_address(fabric.gpus[0].ip)
            name = next(
                one.name
                for one in shaping.ifbs
                if one.rank == 1 and any(address in ip_network(source) for source in one.sources)
            )
            inside(pids[1], f"tc qdisc change dev {name} root handle 1: netem delay 1ms limit 1")
            with namespace(pids[0]):
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with sender:
                for _ in range(3):
                    sender.sendto(b"x", (fabric.gpus[1].ip, 9))
            time.sleep(0.1)
            found["drops"], found["dropping"] = drops.drops(), name
    found["after"] = seen(pids)
    return found


def main(cases: dict[str, Any], ways: dict[str, list[str]]) -> None:
    fabric = build_fabric(FabricSpec())
    openvswitch.up()
    with Network(fabric, controller_port=6653) as built:
        for pair, way in ways.items():
            src, dst = map(int, pair.split("-"))
            flows(fabric, tuple(way), src, dst)
        found = {name: run(fabric, built.host_pids, case) for name, case in cases.items()}
        print(json.dumps(found | {"kernel": kernel(fabric, built.host_pids, next(iter(cases.values())))}))


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
