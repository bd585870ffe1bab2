"""Runs inside the VM: bursts into the finite queues of shaped links; prints one JSON object.

`python -m tests.guest.buffers CASES`: CASES is a JSON object of cases by name, each with the `rate_bps` of the link
from GPU 0 to GPU 1, and the `limit_bytes` and `ecn_threshold_bytes` (or null) of its buffer. With `frames`, GPU 0 sends
that many datagrams at once, each of which fills a frame; the result lists each datagram that `arrived`, in order of
arrival, by its number and whether it was marked (ECN). With `tcp_bytes`, it sends that much on a connection with an
open window; the result is the number of bytes that the queue then holds. Both results have the number of dropped
packets. Under "left" are the qdiscs of the hosts after the shaping was removed.
"""

import json
import socket
import struct
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from hosts.agent.transport import frame_segment_bytes
from scenarios.vm import openvswitch
from tests.guest.network import flows, inside, namespace, sh
from tests.guest.sharing import connect
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.mininet_network import Network, netlink_of
from topologies.shaping.classes import Buffer, Shaping
from topologies.shaping.tc import DropCounter, Shaper

DATAGRAM_BYTES = 9000 - 28
ECT0, CE = 2, 3
_PORT, _ROOM_BYTES = 9000, 1 << 28
_IP_RECVTOS = 13
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def shaped(fabric: Fabric, case: dict[str, Any], pids: tuple[int, ...]) -> Shaper:
    rates = np.full(len(fabric.links), 400e9)
    rates[fabric.intra_index[0, 1]] = case["rate_bps"]
    buffer = Buffer(limit_bytes=case["limit_bytes"], ecn_threshold_bytes=case["ecn_threshold_bytes"])
    return Shaper(Shaping(fabric=fabric, delays_s=np.zeros(len(fabric.links)), buffer=buffer), rates, pids)


def burst(fabric: Fabric, pids: tuple[int, ...], case: dict[str, Any]) -> dict[str, Any]:
    """Send a case's datagrams at one instant."""
    with namespace(pids[1]):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((fabric.gpus[1].ip, _PORT))
    with namespace(pids[0]):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM_BYTES)
        receiver.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
        receiver.settimeout(0.5)
        sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ROOM_BYTES)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECT0)
        to = fabric.gpus[1].ip, _PORT
        sender.sendto(bytes(DATAGRAM_BYTES), to)  # so that the switches know the flow
        time.sleep(0.1)
        for number in range(case["frames"]):
            sender.sendto(struct.pack("=I", number) + bytes(DATAGRAM_BYTES - 4), to)
        found = []
        while True:
            try:
                data, extra, _, _ = receiver.recvmsg(DATAGRAM_BYTES, 200)
            except TimeoutError:
                break
            (number,) = struct.unpack_from("=I", data)
            found.append((number, extra[0][2][0] & 3 == CE))
    return {"arrived": found[1:]}


def tcp(fabric: Fabric, pids: tuple[int, ...], case: dict[str, Any]) -> dict[str, Any]:
    """Send a case's bytes over TCP at one instant, in segments of one frame; return what the queue holds just after."""
    for gpu, pid in zip(fabric.gpus[:2], pids, strict=False):
        inside(pid, f"ip route change 10.0.0.0/8 dev {gpu.interface} initcwnd 20000 initrwnd 20000")
        with netlink_of(pid) as netlink:
            netlink.set_segment_bytes(gpu.interface, frame_segment_bytes())
        with namespace(pid):
            for name in ("tcp_rmem", "tcp_wmem"):
                Path("/proc/sys/net/ipv4", name).write_text(f"4096 {_ROOM_BYTES} {_ROOM_BYTES}")
    out, arrived = connect(fabric, pids, 0, 1, 7000)
    with out, arrived:
        time.sleep(0.1)
        out.sendall(bytes(case["tcp_bytes"]))
        time.sleep(2e-6)
        qdiscs = json.loads(sh("tc -s -j qdisc show dev s0l0-eth2"))
        return {"held_bytes": max(qdisc["backlog"] for qdisc in qdiscs if qdisc["kind"] != "htb")}


def main(cases: dict[str, Any]) -> None:
    fabric = build_fabric(FabricSpec())
    openvswitch.up()
    with Network(fabric, controller_port=6653) as built:
        pids = built.host_pids
        flows(fabric, ("s0l0",), 0, 1)
        found: dict[str, Any] = {}
        for name, case in cases.items():
            with shaped(fabric, case, pids), closing(DropCounter(pids)) as drops:
                action = tcp if "tcp_bytes" in case else burst
                found[name] = action(fabric, pids, case) | {"drops": drops.drops()}
        found["left"] = [inside(pid, "tc qdisc show") for pid in pids]
        print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
