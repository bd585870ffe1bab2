"""Runs inside the VM: the life cycle of ``python -m controller`` with Open vSwitch bridges. Prints one JSON object.

This module makes the bridges from the fabric's cables itself, without the project's code for building networks. Every
WAN port delays by 1 ms, so that packets are in flight while routes change.
"""

import ctypes
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from controller.api.client import Controller, ControllerError, RouteReply
from controller.api.protocol import write_spec
from hosts.agent.transport import allow_overtaking
from scenarios.vm import openvswitch
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

SOCKET, DECLARED, PORT = Path("/run/controller.sock"), Path("/run/fabric.json"), 6653
CHUNK_BYTES = 8_000_000
PAUSES_S = 0, 0.0005, 0.003, 0.02  # shorter and longer than switches take to apply a change

Part = Callable[[str, socket.socket], Any]
"""The sender or receiver of some traffic, called with the receiver's address and a control socket: it sends a byte over
the latter once it runs, and returns what it counted."""


def sh(line: str, **options: object) -> str:
    ended = subprocess.run(line.split(), capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    return str(ended.stdout)


def build(fabric: Fabric) -> None:
    """Make bridges, cables and hosts: everything but rules."""
    kinds = {switch.name: switch.kind for switch in fabric.switches}
    links, bridges, wan = [], ["ovs-vsctl"], []
    for gpu in fabric.gpus:
        sh(f"ip netns add {gpu.name}")
    for cable in fabric.cables:
        a = cable.a + f"-eth{cable.a_port}" + ("" if cable.a in kinds else f" netns {cable.a}")
        b = cable.b + f"-eth{cable.b_port}" + ("" if cable.b in kinds else f" netns {cable.b}")
        links.append(f"link add {a} type veth peer name {b}")
        if kinds.get(cable.a) in ("border", "transit") and kinds[cable.b] in ("border", "transit"):
            wan += [f"{cable.a}-eth{cable.a_port}", f"{cable.b}-eth{cable.b_port}"]
    for switch in fabric.switches:
        bridges += ["--", "add-br", switch.name, "--", "set", "bridge", switch.name, "fail_mode=secure"]
        bridges += ["protocols=OpenFlow13", f"other-config:datapath-id={switch.dpid:016x}"]
        bridges += ["--", "set-controller", switch.name, f"tcp:127.0.0.1:{PORT}"]
        bridges += ["--", "set", "controller", switch.name, "max_backoff=1000"]
        for port in switch.ports:
            bridges += ["--", "add-port", switch.name, port.interface, "--", "set", "interface", port.interface]
            bridges += [f"ofport_request={port.number}"]
            links.append(f"link set {port.interface} up")
    sh("ip -batch -", input="\n".join(links))
    subprocess.run(bridges, check=True)
    for name in wan:
        sh(f"tc qdisc add dev {name} root netem delay 1ms limit 100000")
    for gpu in fabric.gpus:
        lines = [
            "link set lo up",
            f"link set g{gpu.rank}-eth0 address {gpu.mac} up",
            f"addr add {gpu.ip}/8 dev {gpu.interface}",
        ]
        lines += [
            f"neigh add {other.ip} lladdr {other.mac} dev {gpu.interface} nud permanent"
            for other in fabric.gpus
            if other != gpu
        ]
        sh(f"ip -n {gpu.name} -batch -", input="\n".join(lines))


def start_controller() -> "subprocess.Popen[str]":
    python = os.environ.get("CONTROLLER_PYTHON", sys.executable)
    command = [python, "-m", "controller", "--fabric", str(DECLARED), "--socket", str(SOCKET), "--port", str(PORT)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)


def dump(switch: str) -> list[str]:
    """Return a switch's rules as ovs-ofctl prints them, without counters."""
    lines = sh(f"ovs-ofctl -O OpenFlow13 --no-stats --no-names dump-flows {switch}").splitlines()
    return sorted(line.strip() for line in lines if "actions=" in line)


def ping(fabric: Fabric, src: int, dst: int, *, count: int) -> int:
    """Send `count` pings, 2 ms apart; return how many come back."""
    out = subprocess.run(
        [*f"ip netns exec {fabric.gpus[src].name} ping -q -i 0.002 -W 1 -c {count} {fabric.gpus[dst].ip}".split()],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    return int(re.findall(r"(\d+) received", out)[0])


class Traffic:
    """A sender on one GPU's host and a receiver on another's, which run in the background."""

    def __init__(self, fabric: Fabric, src: int, dst: int, *, send: Part, receive: Part) -> None:
        a, b = fabric.gpus[src], fabric.gpus[dst]
        self._parts = []
        for host, part, address in ((b, receive, b.ip), (a, send, b.ip)):
            ours, theirs = socket.socketpair()
            child = os.fork()
            if child == 0:
                try:
                    with Path("/run/netns", host.name).open() as namespace:
                        if ctypes.CDLL(None).setns(namespace.fileno(), 0) != 0:
                            raise OSError("setns")
                    counted = part(address, theirs)
                    theirs.recv(1)
                    theirs.sendall(json.dumps(counted).encode())
                finally:
                    os._exit(0)
            theirs.close()
            assert ours.recv(1) == b"r"  # the part runs
            self._parts.append((child, ours))

    def end(self) -> tuple[Any, Any]:
        """End the traffic, after in-flight packets have arrived; return what the sender and the receiver counted."""
        ends = []
        for child, ours in reversed(self._parts):  # the sender first
            ours.sendall(b"e")
            ends.append(json.loads(b"".join(iter(lambda ours=ours: ours.recv(65536), b""))))  # type: ignore[misc]
            os.waitpid(child, 0)
            time.sleep(0.5)
        return ends[0], ends[1]


class Stream(Traffic):
    """Numbered datagrams, one every 0.3 ms."""

    def __init__(self, fabric: Fabric, src: int, dst: int) -> None:
        super().__init__(fabric, src, dst, send=send, receive=receive)

    def counts(self) -> dict[str, int]:
        """Return how many datagrams were sent, lost, and received more than once."""
        sent, (received, different) = self.end()
        return {"sent": sent, "lost": sent - different, "duplicates": received - different}


def pour(address: str, control: socket.socket) -> tuple[int, int]:
    """Send by TCP as fast as possible; return the bytes sent, and the segments retransmitted."""
    # Packets may be reordered: by a shorter path, and in a burst while a switch decides on the first one.
    allow_overtaking()
    with socket.create_connection((address, 9)) as out:
        control.sendall(b"r")
        sent, block = 0, bytes(2**17)
        while not select.select([control], [], [], 0)[0]:
            sent += out.send(block)
        out.shutdown(socket.SHUT_WR)
        out.recv(1)  # wait until the other side has read everything
        information = out.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return sent, struct.unpack_from("I", information, 100)[0]  # tcpi_total_retrans


def drain(address: str, control: socket.socket) -> int:
    """Receive a connection's bytes until it ends; return their number."""
    with socket.create_server((address, 9)) as server:
        control.sendall(b"r")
        connection, received = server.accept()[0], 0
        with connection:
            while got := len(connection.recv(2**20)):
                received += got
        return received


def send(address: str, control: socket.socket) -> int:
    out, number = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
    control.sendall(b"r")
    while not select.select([control], [], [], 0.0003)[0]:
        out.sendto(number.to_bytes(8, "big"), (address, 9))
        number += 1
    return number


def receive(address: str, control: socket.socket) -> tuple[int, int]:
    into, received, numbers = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0, set()
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    into.bind((address, 9))
    control.sendall(b"r")
    while True:
        ready = select.select([into, control], [], [])[0]
        if into in ready:
            numbers.add(into.recv(64))
            received += 1
        elif control in ready:
            return received, len(numbers)


def dropped(fabric: Fabric) -> int:
    """Return the packets that all ports of all switches have dropped."""
    outs = [sh(f"ovs-ofctl -O OpenFlow13 dump-ports {switch.name}") for switch in fabric.switches]
    return sum(int(drops) for out in outs for drops in re.findall(r"drop=(\d+)", out))


def wan_packets(fabric: Fabric) -> dict[str, int]:
    """Return the packets that each WAN link has carried, by direction, from the transmit counters of its ports."""
    kinds = {switch.name: switch.kind for switch in fabric.switches}
    found: dict[str, int] = {}
    for switch in fabric.switches:
        if switch.kind in ("border", "transit"):
            out = sh(f"ovs-ofctl -O OpenFlow13 --no-names dump-ports {switch.name}")
            sent = {int(port): int(packets) for port, packets in re.findall(r"port +(\d+):.*\n.*tx pkts=(\d+)", out)}
            ports = [port for port in switch.ports if kinds[port.peer] in ("border", "transit")]
            found |= {f"{switch.name}>{port.peer}": sent[port.number] for port in ports}
    return found


def carried(fabric: Fabric, src: int, dst: int, *, count: int) -> dict[str, int]:
    """Return which WAN links carry `count` pings and their answers, with the number of packets on each."""
    before = wan_packets(fabric)
    assert ping(fabric, src, dst, count=count) == count
    return {link: packets - before[link] for link, packets in wan_packets(fabric).items() if packets != before[link]}


def rates_for(fabric: Fabric, path: int, chance: random.Random) -> "np.ndarray[Any, Any]":
    """Return rates under which this path is the best one between its two sites: only its WAN links are fast."""
    rates = np.array([chance.uniform(20e9, 200e9) if link.kind != "wan" else 1e9 for link in fabric.links]).round()
    rates[list(fabric.paths[path].links)] = 100e9
    for link in fabric.links:  # and only its border routers have fast links within the sites
        ends = (fabric.border_routers[fabric.paths[path].src_br], fabric.border_routers[fabric.paths[path].dst_br])
        if link.kind in ("to_br", "from_br") and not {link.src, link.dst} & set(ends):
            rates[link.index] = 1e9
    return rates


def ask(
    controller: Controller, fabric: Fabric, path: int, pairs: Iterable[tuple[int, int]], chance: random.Random
) -> RouteReply:
    return controller.route(
        crossings=pairs, rates_bps=rates_for(fabric, path, chance), delays_s=[1e-6] * len(fabric.links),
        chunk_bytes=CHUNK_BYTES, best=True,
    )  # fmt: skip


def refusal(controller: Controller, fabric: Fabric) -> str:
    try:
        ask(controller, fabric, 1, [(0, len(fabric.gpus) - 1)], random.Random(1))
    except ControllerError as error:
        return str(error)
    return "it was done"


class Life:
    """The life cycle of a controller: it comes up, changes routes under traffic, dies, restarts, loses a switch and is
    stopped. Routes are requested for the crossings of `pair`, and from the last rank to the first.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.chance = fabric, random.Random(1)
        self.pair = fabric.gpus_per_site[0] - 1, fabric.gpus_per_site[0]
        self.paths = [path.index for path in fabric.paths_between[0, 1]]
        self.process = start_controller()
        self.controller = Controller(SOCKET)
        self.controller.wait_ready(timeout_s=60, alive=lambda: self.process.poll() is None)

    def ask(self, path: int, *others: tuple[int, int]) -> list[int]:
        return list(ask(self.controller, self.fabric, path, [self.pair, *others], self.chance).paths)

    def carried(self) -> Any:
        time.sleep(0.05)  # switches apply cached decisions for another 5 ms
        return carried(self.fabric, *self.pair, count=50)

    def rules(self) -> dict[str, Any]:
        return {switch.name: dump(switch.name) for switch in self.fabric.switches}

    def up(self) -> dict[str, object]:
        n = len(self.fabric.gpus)
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        return {
            "default_rules": self.rules(),
            "pairs_lost": [(a, b) for a, b in pairs if ping(self.fabric, a, b, count=1) != 1],
            "default": self.carried(),
        }

    def changing(self) -> dict[str, object]:
        live, moved = Stream(self.fabric, *self.pair), []
        for _ in range(100):
            path = self.chance.choice(self.paths)
            moved.append((path, self.ask(path, (len(self.fabric.gpus) - 1, 0))))
            time.sleep(self.chance.choice(PAUSES_S))
        found: dict[str, object] = {"changes": moved, "live": live.counts()}
        # The sender's own link is the bottleneck, so that no path has a queue.
        sender = self.fabric.gpus[self.pair[0]]
        sh(f"ip netns exec {sender.name} tc qdisc add dev {sender.interface} root netem rate 10gbit limit 100000")
        before, load, messages = dropped(self.fabric), Traffic(self.fabric, *self.pair, send=pour, receive=drain), []
        for _ in range(30):
            messages.append(
                ask(self.controller, self.fabric, self.chance.choice(self.paths), [self.pair], self.chance).messages
            )
            time.sleep(self.chance.choice(PAUSES_S))
        (sent, again), received = load.end()
        found["loaded"] = {
            "sent": sent, "received": received, "retransmitted": again, "messages": messages,
            "dropped": dropped(self.fabric) - before,
        }  # fmt: skip
        routed = {}
        for path in self.chance.sample(self.paths, min(len(self.paths), 6)):
            self.ask(path)
            routed[self.fabric.paths[path].name] = self.carried()
        return found | {"routed": routed}

    def killed(self, default_rules: object) -> dict[str, object]:
        last = self.paths[-1]
        assert self.fabric.border_routers[self.fabric.paths[last].src_br] != "s0b0"  # off the path of the answers
        self.ask(last)
        held = self.rules()
        self.process.kill()
        self.process.wait()
        time.sleep(30)
        found: dict[str, object] = {
            "routed_rules": held,
            "kept_when_dead": held == self.rules(),
            "routed_when_dead": self.carried(),
            "asked_when_dead": refusal(self.controller, self.fabric),
        }
        live = Stream(self.fabric, *self.pair)
        self.process = start_controller()
        self.controller.wait_ready(timeout_s=60, alive=lambda: self.process.poll() is None)
        return found | {"live_restart": live.counts(), "default_rules_again": default_rules == self.rules()}

    def without_a_switch(self, default_rules: dict[str, Any]) -> dict[str, object]:
        last = self.paths[-1]
        self.ask(last)
        victim = self.fabric.paths[last].name.split(">")[0]
        sh(f"ovs-ofctl -O OpenFlow13 del-flows {victim}")
        sh(f"ovs-vsctl del-controller {victim}")
        time.sleep(1)
        (around,) = self.ask(last)
        found: dict[str, object] = {
            "asked_without_switch": self.fabric.paths[around].name,
            "routed_without_switch": self.carried(),
            "rules_without_controller": dump(victim),
        }
        sh(f"ovs-vsctl set-controller {victim} tcp:127.0.0.1:{PORT}")
        self.controller.wait_ready(timeout_s=60)
        found["reconnected"] = set(default_rules[victim]) <= set(dump(victim))
        self.ask(last)
        return found | {"routed_reconnected": self.carried()}

    def stopped(self) -> dict[str, object]:
        self.controller.close()
        found: dict[str, object] = {}
        for name, number in (("sigterm", signal.SIGTERM), ("sigint", signal.SIGINT)):
            self.process.send_signal(number)
            found[name] = (self.process.wait(timeout=30), SOCKET.exists())
            if name == "sigterm":
                self.process = start_controller()
                Controller(SOCKET).wait_ready(timeout_s=60)
        return found


def life(fabric: Fabric) -> dict[str, object]:
    """Return the observations of each stage of a controller's life cycle."""
    one = Life(fabric)
    found = one.up()
    default_rules: Any = found["default_rules"]
    return found | one.changing() | one.killed(default_rules) | one.without_a_switch(default_rules) | one.stopped()


FABRICS = {
    "mesh": FabricSpec(),
    "five-router": FabricSpec(gpus_per_site=(3, 5), wan=WanSpec(preset="five-router")),
}


def main(name: str) -> None:
    fabric = build_fabric(FABRICS[name])
    openvswitch.up()
    DECLARED.write_text(write_spec(FABRICS[name]))
    build(fabric)
    print(json.dumps(life(fabric)))


if __name__ == "__main__":
    main(sys.argv[1])
