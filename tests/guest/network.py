"""Runs inside the VM: builds fabrics, shapes them, and sends over them; prints one JSON object.

It holds the raw output of ovs-vsctl, ovs-ofctl, ip and tc; the tests compare that with the declared fabric.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import psutil

from scenarios.vm import openvswitch
from topologies.conditions.sampler import ConditionsSpec, delays_s
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec
from topologies.mininet_network import Network
from topologies.mininet_nodes import NetworkError
from topologies.shaping import netlink, tc
from topologies.shaping.classes import Shaping

MSG_EOR = 0x80
UNEQUAL = FabricSpec(gpus_per_site=(3, 5), wan=WanSpec(preset="five-router"))
CHUNK_BYTES = 8_000_000
MANY = 2500  # classes, about as many as with 64 GPUs
LIBC = ctypes.CDLL(None)


def sh(line: str) -> str:
    return subprocess.run(line.split(), check=True, capture_output=True, text=True).stdout


def inside(pid: int, line: str) -> str:
    return sh(f"nsenter --net=/proc/{pid}/ns/net {line}")


def seen() -> dict[str, Any]:
    """Return the bridges, interfaces and processes that exist, to compare before and after a network."""
    return {
        "bridges": sh("ovs-vsctl list-br").split(),
        "interfaces": sorted(link["ifname"] for link in json.loads(sh("ip -j link"))),
        "processes": sorted(  # not the kernel's threads, which come and go
            one.info["name"] for one in psutil.process_iter(["name", "cmdline"]) if one.info["cmdline"]
        ),
    }


def topology(fabric: Fabric) -> dict[str, Any]:
    """Build a fabric, report its parts, and remove it again."""
    before = seen()
    with Network(fabric, controller_port=6653) as built:
        hosts = built.hosts
        found = {
            "bridges": json.loads(sh("ovs-vsctl --format=json list Bridge")),
            "ports": json.loads(sh("ovs-vsctl --format=json list Interface")),
            "controllers": json.loads(sh("ovs-vsctl --format=json list Controller")),
            "openflow": {s.name: sh(f"ovs-ofctl -O OpenFlow13 show {s.name}") for s in fabric.switches},
            "links": json.loads(sh("ip -j -d link")),
            "hosts": [
                {kind: json.loads(inside(pid, f"ip -j {kind}")) for kind in ("addr", "neigh")}
                for pid in built.host_pids
            ],
            "mininet": {
                "hosts": [(host.name, host.IP(), host.MAC()) for host in hosts],
                "switches": [switch.name for switch in built.switches],
                "links": sorted(sorted((link.intf1.name, link.intf2.name)) for link in built.links),
                "command": hosts[1].cmd("ip -br addr show dev g1-eth0").split(),
                "popen": hosts[1].popen("ip -br link show dev g1-eth0").communicate()[0].decode().split(),
                "switch_command": built.switches[0].cmd("echo $((6 * 7))").split(),
            },
        }
    built.stop()
    with Network(fabric, controller_port=6653):
        found["again"] = sh("ovs-vsctl list-br").split()
    return {"before": before, "built": found, "after": seen()}


def flows(fabric: Fabric, way: tuple[str, ...], src: int, dst: int) -> None:
    """Install rules that route a pair of GPUs over the switches of `way`, in both directions."""
    ports = {(switch.name, port.peer): port.number for switch in fabric.switches for port in switch.ports}
    for a, b, passed in ((src, dst, way), (dst, src, way[::-1])):
        here, there = fabric.gpus[a], fabric.gpus[b]
        for hop in pairwise((*passed, there.name)):
            match = f"ip,nw_src={here.ip},nw_dst={there.ip}"
            sh(f"ovs-ofctl -O OpenFlow13 add-flow {hop[0]} {match},actions=output:{ports[hop]}")


@contextmanager
def namespace(pid: int) -> Iterator[None]:
    with Path("/proc/self/ns/net").open("rb") as home, Path(f"/proc/{pid}/ns/net").open("rb") as there:
        assert LIBC.setns(there.fileno(), 0) == 0
        yield
        assert LIBC.setns(home.fileno(), 0) == 0


def prepare(built: Network) -> None:
    """Let flows start at line rate, so that only the network determines how long a chunk takes."""
    for pid, host in zip(built.host_pids, built.hosts, strict=True):
        with namespace(pid):
            for name in ("tcp_rmem", "tcp_wmem"):
                Path(f"/proc/sys/net/ipv4/{name}").write_text("4096 268435456 268435456")
        inside(pid, f"ip route change 10.0.0.0/8 dev {host.name}-eth0 initcwnd 20000 initrwnd 20000")


def seconds(built: Network, src: int, dst: int, chunk_bytes: int = CHUNK_BYTES) -> float:
    """Send a chunk from one GPU to another; return how long it takes in s."""
    chunk, room = bytes(chunk_bytes), bytearray(chunk_bytes)
    with namespace(built.host_pids[dst]):
        listener = socket.create_server((built.hosts[dst].IP(), 7000))
    with namespace(built.host_pids[src]):
        out = socket.create_connection((built.hosts[dst].IP(), 7000))
    arrived, _ = listener.accept()
    for end in (out, arrived):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for a, b in ((out, arrived), (arrived, out)):
        a.send(b"x")
        b.recv(1)
    time.sleep(0.1)
    began, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tells, str(time.clock_gettime_ns(time.CLOCK_MONOTONIC)).encode())
        body = memoryview(chunk)[:-1]
        while body:
            body = body[out.send(body, MSG_EOR) :]
        out.send(chunk[-1:])
        os._exit(0)
    assert arrived.recv_into(room, chunk_bytes, socket.MSG_WAITALL) == chunk_bytes
    end_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    os.waitpid(child, 0)
    start_ns = int(os.read(began, 32))
    for closed in (out, arrived, listener):
        closed.close()
    os.close(began)
    os.close(tells)
    return (end_ns - start_ns) / 1e9


def undecided(built: Network, dropped: tc.DropCounter) -> dict[str, Any]:
    """Stop ovs-vswitchd, so that packets without a cached decision are lost; return the drops counted by the counter
    and by Open vSwitch."""

    def lost() -> int:
        return int(re.search(r"lost:(\d+)", sh("ovs-dpctl show"))[1])  # type: ignore[index]

    before = lost()
    switchd = int(sh("pidof ovs-vswitchd"))
    os.kill(switchd, signal.SIGSTOP)
    try:
        sh("ovs-dpctl del-flows")
        with namespace(built.host_pids[0]):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sender:
            for _ in range(5000):
                sender.sendto(bytes(8000), (built.hosts[1].IP(), 9))
        time.sleep(1)
        return {"counted": dropped.drops(), "lost": lost() - before}
    finally:
        os.kill(switchd, signal.SIGCONT)


def refused(action: Any) -> str:
    """Return the message of the TcError that `action` raises, "" if it raises none."""
    try:
        action()
    except tc.TcError as error:
        return str(error)
    return ""


def losses(fabric: Fabric, rates: npt.NDArray[np.float64]) -> dict[str, list[Any]]:
    """Return the qdiscs of three ports while each loses a quarter of its packets, then half, and then none."""
    delays = delays_s(fabric, ConditionsSpec())
    found: dict[str, list[Any]] = {}
    with tc.Shaper(Shaping(fabric=fabric, delays_s=delays, late_s=1e-3), rates) as shaper:
        for port in ("s0l0-eth2", "s0l0-eth3", "s0b0-eth3"):  # to a GPU, without a class, over the WAN
            for share in (0.25, 0.5, 0.0):
                shaper.lose(port, share)
                found.setdefault(port, []).append(json.loads(sh(f"tc -j qdisc show dev {port}")))
        shaper.check(rates)
    return found


def shaped() -> dict[str, Any]:
    """Shape the default fabric, send over it, and tamper with the shaping."""
    fabric = build_fabric(FabricSpec())
    link = {link.name: link.index for link in fabric.links}
    found: dict[str, Any] = {"seconds": {}}
    with Network(fabric, controller_port=6653) as built:
        prepare(built)
        rates = 20e9 + 1e9 * np.arange(len(fabric.links), dtype=np.float64)  # all different
        shaper = tc.Shaper(Shaping(fabric=fabric, delays_s=delays_s(fabric, ConditionsSpec())), rates)
        dropped = tc.DropCounter(built.host_pids)
        child = os.fork()  # it inherits all open files, which must not keep processes that are stopped from ending
        if child == 0:
            time.sleep(1e6)
            os._exit(0)
        found["classes"] = {port: sh(f"tc class show dev {port}") for port in shaper.shaping.interfaces}
        found["qdiscs"] = json.loads(sh("tc -j qdisc show"))
        for name, way, src, dst in (
            ("one leaf", ("s0l0",), 0, 1),
            ("spine 0", ("s0l0", "s0p0", "s0l1"), 0, 3),
            ("spine 1", ("s0l0", "s0p1", "s0l1"), 0, 2),
            ("wan", ("s0l1", "s0p1", "s0b0", "s1b1", "s1p0", "s1l0"), 3, 5),
        ):
            flows(fabric, way, src, dst)
            found["seconds"][name] = seconds(built, src, dst)
        changed = rates.copy()
        changed[link["g0>g1"]], changed[link["s0b0>s1b1"]] = 123_456_789_012, 11e9
        shaper.change(changed)
        found["seconds"]["one leaf, changed"] = seconds(built, 0, 1)
        found["seconds"]["wan, changed"] = seconds(built, 3, 5)
        found["drops before"] = dropped.drops()
        sh("tc class change dev s0l0-eth2 parent 1: classid 1:1 htb rate 98gbit ceil 98gbit quantum 200000")
        found["meddled"] = refused(lambda: shaper.check(changed))
        shaper.change(changed)
        sh("tc qdisc change dev s0l0-eth2 parent 1:1 handle 2: netem limit 1")
        found["seconds"]["dropping"] = seconds(built, 0, 1)
        found["drops after"], found["drops then"] = dropped.drops(), dropped.drops()
        found["undecided"] = undecided(built, dropped)
        found["twice"] = refused(lambda: tc.Shaper(shaper.shaping, rates))
        found["qdiscs after a failure"] = json.loads(sh("tc -j qdisc show dev s0l0-eth2"))
        shaper.close()
        with patch.object(Shaping, "structure", lambda *_: "qdisc add dev s0l0-eth1 root handle 1: htb nonsense 1\n"):
            found["refused"] = refused(lambda: tc.Shaper(shaper.shaping, rates))
        found["qdiscs after"] = json.loads(sh("tc -j qdisc show"))
        found["losses"] = losses(fabric, rates)
        other = tc.Shaper(Shaping(fabric=fabric, delays_s=delays_s(fabric, ConditionsSpec(wan_delay_s=3e-3))), rates)
        found["seconds"]["wan, 3 ms"] = seconds(built, 3, 5)
        sh("ip link delete dev s0l0-eth2")
        found["port gone"] = refused(lambda: other.check(rates))
        found["change without port"] = refused(lambda: other.change(rates))
        other.close()
        found["no such port"] = refused(lambda: tc.Shaper(shaper.shaping, rates))
        dropped.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found


def many_classes() -> dict[str, Any]:
    """Set the rates of more classes than fit into one message; return what tc prints, and the errors of bad changes."""
    numbers = range(1, MANY + 1)
    sh("ip link add many type dummy")
    lines = ["qdisc add dev many root handle 1: htb"]
    lines += [f"class add dev many parent 1: classid 1:{n:x} htb rate 1mbit quantum 1500" for n in numbers]
    nonsense = "class add dev many parent 1: classid 1:1 htb rate nonsense"
    with patch.object(tc, "_MAX_LINES", 1000):
        found: dict[str, Any] = {"refused": refused(lambda: tc.run_tc("\n".join([*lines, nonsense, ""])))}
    index = socket.if_nametoindex("many")
    rates = {(index, n): 125_000 * n for n in numbers}
    with closing(netlink.RtNetlink()) as routing:
        held = routing.change_rates(rates, burst_ns=64, quantum_bytes=1500)
        assert held == routing.rates(index)
        found["held"] = [(minor, 8 * rate) for (_, minor), (rate, _) in held.items()]
        found["tc"] = sh("tc class show dev many")
        with patch.object(netlink, "MAX_SENT_BYTES", 1 << 30):
            try:
                routing.change_rates(rates, burst_ns=64, quantum_bytes=1500)
            except OSError as error:
                found["too long"] = error.strerror
    sh("ip link delete many")
    return found


def without_open_vswitch() -> dict[str, Any]:
    """Try to build a network without Open vSwitch; return the error, and the interfaces before and after."""
    before = sh("ip -br link")
    try:
        with Network(build_fabric(UNEQUAL), controller_port=6653):
            return {"error": ""}
    except NetworkError as error:
        return {"error": str(error), "before": before, "after": sh("ip -br link")}


if __name__ == "__main__":
    missing = without_open_vswitch()
    many = many_classes()
    openvswitch.up()
    topology_seen, shaped_seen = topology(build_fabric(UNEQUAL)), shaped()
    print(json.dumps({"missing": missing, "many": many, "topology": topology_seen, "shaped": shaped_seen}))
