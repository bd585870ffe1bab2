"""Runs inside the VM: two hosts on a line of seven Open vSwitch switches, HTB at 100 Gbit/s on every port.

Prints one JSON object: the seconds that each 8 MiB TCP message took from its first byte sent to its last received,
and the packets dropped anywhere.
"""

import ctypes
import json
import multiprocessing
import os
import socket
import subprocess
import time
from pathlib import Path

from scenarios.vm import openvswitch

SWITCHES, MESSAGES, MESSAGE_BYTES = 7, 12, 8 * 2**20


def sh(line: str) -> str:
    return subprocess.run(line.split(), check=True, capture_output=True, text=True).stdout


def build() -> list[str]:
    """Make the hosts and the switches, shape every port, and return the ports' names."""
    for number in range(1, SWITCHES + 1):
        # Fixed addresses, so that everything ordered by their hashes is the same in every boot.
        sh(f"ovs-vsctl add-br s{number} -- set bridge s{number} other-config:hwaddr=02:00:00:00:01:0{number}")
    ports = []
    for number in range(SWITCHES + 1):  # link number joins switch `number` to the next; the ends are the hosts
        left, right = f"r{number}", f"l{number + 1}"
        macs = f"02:00:00:00:02:0{number}", f"02:00:00:00:03:0{number}"
        sh(f"ip link add {left} address {macs[0]} type veth peer name {right} address {macs[1]}")
        for port, switch in ((left, number), (right, number + 1)):
            if 1 <= switch <= SWITCHES:
                sh(f"ovs-vsctl add-port s{switch} {port}")
                sh(f"ip link set {port} up")
                ports.append(port)
    for host, port, address in (("h1", "r0", "10.0.0.1/24"), ("h2", f"l{SWITCHES + 1}", "10.0.0.2/24")):
        sh(f"ip netns add {host}")
        sh(f"ip link set {port} netns {host}")
        sh(f"ip -n {host} addr add {address} dev {port}")
        sh(f"ip -n {host} link set {port} up")
    for port in ports:
        sh(f"tc qdisc add dev {port} root handle 1: htb default 1")
        sh(f"tc class add dev {port} parent 1: classid 1:1 htb rate 100gbit burst 128k cburst 128k quantum 60000")
        sh(f"tc qdisc add dev {port} parent 1:1 bfifo limit 1000000000")
    sh("sysctl -qw net.core.wmem_max=67108864 net.core.rmem_max=67108864")
    for host in ("h1", "h2"):
        for name in ("rmem", "wmem"):
            sizes = f"net.ipv4.tcp_{name}=4096 33554432 67108864"
            subprocess.run(["ip", "netns", "exec", host, "sysctl", "-qw", sizes], check=True)
    return ports


def receive(channel: "multiprocessing.connection.Connection") -> None:
    enter("h2")
    server = socket.create_server(("10.0.0.2", 5001))
    channel.send("listening")
    connection, _ = server.accept()
    buffer = bytearray(MESSAGE_BYTES)
    for _ in range(MESSAGES):
        got = connection.recv_into(buffer, MESSAGE_BYTES, socket.MSG_WAITALL)
        channel.send((got, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
        connection.send(b"k")


def send(channel: "multiprocessing.connection.Connection") -> None:
    enter("h1")
    connection = socket.create_connection(("10.0.0.2", 5001), source_address=("10.0.0.1", 5001))
    data = os.urandom(MESSAGE_BYTES)
    for _ in range(MESSAGES):
        channel.send(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        connection.sendall(data)
        connection.recv(1)


def enter(host: str) -> None:
    """Move this process into a host's network namespace."""
    with Path("/run/netns", host).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def main() -> None:
    openvswitch.up()
    ports = build()
    # Fork instead of spawn: importing modules again would take longer in the VM than all that is measured here.
    context = multiprocessing.get_context("fork")
    (received, at_receiver), (sent, at_sender) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    receiver = context.Process(target=receive, args=(at_receiver,))
    receiver.start()
    assert received.recv() == "listening"
    sender = context.Process(target=send, args=(at_sender,))
    sender.start()
    seconds = []
    for _ in range(MESSAGES):
        start_ns = sent.recv()
        length, end_ns = received.recv()
        assert length == MESSAGE_BYTES
        seconds.append((end_ns - start_ns) / 1e9)
    sender.join()
    receiver.join()
    drops = sum(entry["drops"] for port in ports for entry in json.loads(sh(f"tc -s -j qdisc show dev {port}")))
    openvswitch.down()
    print(json.dumps({"seconds": seconds, "drops": drops, "mtu": 1500}))


if __name__ == "__main__":
    main()
