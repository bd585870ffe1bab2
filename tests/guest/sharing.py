"""Runs inside the VM: TCP flows that share links of the default fabric, shaped fairly; prints one JSON object.

`python -m tests.guest.sharing CASES`: CASES is a JSON object of cases by name, each with `rates` by link (bit/s, others
have FAST), `flows` of [source, destination, bytes, start in s], `delays` of the links within a site and of the WAN in
s, `shared` links of a way, and the switches on the `ways` between pairs, "0-4". A case's result is when each flow's
message had arrived whole, with the label of 24 bytes behind it, in ns since the first start, and what was lost on the
way.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hosts.agent.transport import retransmitted_bytes, set_queued_bytes, windows_of
from scenarios.vm import openvswitch
from tests.guest.network import MSG_EOR, flows, inside, namespace, sh
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.mininet_network import Network, netlink_of
from topologies.shaping.classes import Shaping
from topologies.shaping.tc import DropCounter, Shaper, TcError

FAST_BPS, LABEL_BYTES, BUFFER_BYTES = 400e9, 24, 268_435_456
LEAD_NS = 50_000_000
_PR_SET_TIMERSLACK = 29
LIBC = ctypes.CDLL(None)


def prepare(fabric: Fabric, pids: tuple[int, ...], case: Mapping[str, Any], fastest_bps: float) -> None:
    """The agents' settings in every host: buffers, windows and segments, and flows that start at the line's rate."""
    window = windows_of(
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
    """Both ends of a connection that has carried a byte each way."""
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
    """A function that runs in a process of its own, and what it returns when asked."""
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


def transfers(fabric: Fabric, pids: tuple[int, ...], wanted: list[list[Any]]) -> list[int]:
    """When each flow's message had arrived, ns since the first start."""
    most = max(flow[2] for flow in wanted)
    message, room = memoryview(bytes(most)), bytearray(most + LABEL_BYTES)
    ends = [connect(fabric, pids, src, dst, 7000 + n) for n, (src, dst, *_) in enumerate(wanted)]
    time.sleep(0.1)
    zero_ns = time.monotonic_ns() + LEAD_NS
    running = []

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

    found = []
    for (out, arrived), (_, _, size, start_s) in zip(ends, wanted, strict=True):
        running += [child(receives(arrived, size)), child(sends(out, size, start_s))]
    answers = [one.__enter__() for one in running]
    for answer in answers[::2]:
        found.append(answer())
    for one in running:
        one.__exit__(None, None, None)
    assert not sum(retransmitted_bytes(out) for out, _ in ends)
    for closed in (end for pair in ends for end in pair):
        closed.close()
    return found


def run(fabric: Fabric, built: Network, case: Mapping[str, Any]) -> dict[str, Any]:
    """A case's flows, and the traffic control while they were under way."""
    index = {link.name: link.index for link in fabric.links}
    rates = np.full(len(fabric.links), FAST_BPS)
    for name, rate_bps in case["rates"].items():
        rates[index[name]] = rate_bps
    inner_s, wan_s = case["delays"]
    delays = np.array([wan_s if link.kind == "wan" else inner_s for link in fabric.links])
    for switch in fabric.switches:
        sh(f"ovs-ofctl -O OpenFlow13 del-flows {switch.name}")
    pairs = {tuple(map(int, pair.split("-"))): way for pair, way in case["ways"].items()}
    for (src, dst), way in pairs.items():
        flows(fabric, tuple(way), src, dst)
    prepare(fabric, built.host_pids, case, max(case["rates"].values()))
    with Shaper(Shaping(fabric=fabric, delays_s=delays, fair=True), rates, built.host_pids):
        drops = DropCounter(built.host_pids)
        ended = transfers(fabric, built.host_pids, case["flows"])
        dropped = drops.drops()
        drops.close()
    return {"ended_ns": ended, "drops": dropped}


def main(cases: dict[str, Any]) -> None:
    fabric = build_fabric(FabricSpec())
    openvswitch.up()
    found = {}
    with Network(fabric, controller_port=6653) as built:
        for name, case in cases.items():
            try:
                found[name] = run(fabric, built, case)
            except TcError as error:
                found[name] = {"error": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
