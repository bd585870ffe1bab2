"""Hosts in the VM for other people's programs: `python -m scenarios.vm --hosts N --link LINK`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.vm.hosts import HostLink, LinkError, parse_link
from scenarios.vm.pytest_plugin import run_on_hosts
from tests.conftest import PROJECT

TALK = """
import socket, subprocess, sys, time
server = subprocess.Popen(["ip", "netns", "exec", sys.argv[1], sys.executable, "-c", '''
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    there = server.accept()[0]
    there.recv(1)
    there.sendall(b"x" * 1_000_000)
    there.close()
'''])
time.sleep(1)
for family in (socket.AF_INET, socket.AF_INET6):
    address = socket.getaddrinfo(sys.argv[1], 7000, family, socket.SOCK_STREAM)[0]
    began = time.monotonic()
    there = socket.socket(*address[:2])
    there.connect(address[4])
    print(round(time.monotonic() - began, 6))
    there.sendall(b"x")
    there.recv(1)
    began, got = time.monotonic(), 1
    while data := there.recv(1 << 20):
        got += len(data)
    print(got, round(time.monotonic() - began, 3))
server.kill()
"""
KEEPALIVE = """
import socket, subprocess, sys, time
server = socket.create_server(("h0", 7000))
client = subprocess.Popen(["ip", "netns", "exec", "h1", sys.executable, "-c",
    "import socket, time; s = socket.create_connection(('h0', 7000)); s.recv(1)"])
there = server.accept()[0]
there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
subprocess.run(["ip", "netns", "exec", "h1", "ip", "link", "set", "eth0", "down"], check=True)
began = time.monotonic()
try:
    there.recv(1)
except OSError as error:
    print(type(error).__name__, round(time.monotonic() - began, 3))
client.kill()
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("20 Mbit/s, 300 ms", HostLink(20_000_000, 300_000_000)),
        ("1 Gbit/s", HostLink(1_000_000_000, 0)),
        ("100 Gbit/s,0 s", HostLink(100_000_000_000, 0)),
    ],
)
def test_a_link_is_a_rate_and_a_delay(text: str, wanted: HostLink) -> None:
    assert parse_link(text) == wanted


@pytest.mark.parametrize("text", ["", "300 ms", "20 Mbit/s, 300 ms, 1 %", "20, 300", "20 Mbit/s, soon"])
def test_another_link_is_refused(text: str) -> None:
    with pytest.raises(LinkError, match='allowed: a rate and a one-way delay, such as "20 Mbit/s, 300 ms"'):
        parse_link(text)


@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_have_the_rate_and_the_delay_of_their_link(tmp_path: Path, hosts: int) -> None:
    found = run_on_hosts(sys.executable, "-c", TALK, f"h{hosts - 1}", hosts=hosts, link="20 Mbit/s, 300 ms")
    assert found.returncode == 0, found.stderr
    over_4, got_4, over_6, got_6 = found.stdout.splitlines()
    for connected in (over_4, over_6):  # a SYN and its answer, and the time to send them
        assert 0.6 <= float(connected) < 0.6 + 4 * 2 * 90 * 8 / 20e6
    for line in (got_4, got_6):
        got, seconds = line.split()
        assert int(got) == 1_000_000 and float(seconds) > 8e6 / 20e6


def test_two_hours_of_keepalive_pass_in_seconds(tmp_path: Path) -> None:
    found = run_on_hosts(sys.executable, "-c", KEEPALIVE, link="20 Mbit/s, 300 ms")
    assert found.returncode == 0, found.stderr
    kind, seconds = found.stdout.split()
    # 7,200 s without data, then nine probes 75 s apart (tcp(7)); far timers of the kernel are late by up to an eighth.
    assert kind == "TimeoutError" and 7200 + 9 * 75 <= float(seconds) <= 1.125 * (7200 + 9 * 75)


OPEN_FILES = """
ulimit -Sn
ulimit -Sn 5000 && ulimit -Sn
python -m scenarios.vm.openvswitch up
grep "Max open files" "/proc/$(cat /run/openvswitch/ovs-vswitchd.pid)/limits"
"""


def test_a_command_has_linuxs_usual_limit_of_open_files_and_switches_have_a_higher_one() -> None:
    found = run_on_hosts("sh", "-ec", OPEN_FILES)
    usual, raised, switches = found.stdout.splitlines()
    assert (usual, raised) == ("1024", "5000"), found.stderr
    assert int(switches.split()[3]) >= 65_536  # each port takes several


NAT = """
import subprocess
from mininet.net import Mininet
from mininet.node import OVSBridge
from mininet.topo import SingleSwitchTopo
from scenarios.vm import openvswitch
openvswitch.up()
net = Mininet(SingleSwitchTopo(), switch=OVSBridge, controller=None, ipBase="172.16.0.0/24")
net.addNAT().configDefault()
net.start()
print("1 received" in net["h1"].cmd("ping -c 1 10.0.0.2"))
subprocess.run(["iptables", "--table", "nat", "--flush"], check=True)
print("0 received" in net["h1"].cmd("ping -c 1 -W 1 10.0.0.2"))
net.stop()
"""


def test_mininets_hosts_reach_others_by_network_address_translation() -> None:
    found = run_on_hosts(sys.executable, "-c", NAT)
    # h1 has no route to Mininet's hosts, so that only the address of h0 gets an answer.
    assert found.stdout.split() == ["True", "True"], found.stderr


USED = """
def test_two_hosts_are_so_far_apart(virtual_hosts):
    ended = virtual_hosts("ping", "-c", "1", "h1", link="1 Gbit/s, 20 ms")
    assert ended.returncode == 0 and "time=40" in ended.stdout, ended
"""


def test_the_fixture_of_the_pytest_plugin_runs_a_command_on_hosts(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["scenarios.vm.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(USED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    found = subprocess.run(
        command,
        cwd=PROJECT,
        env=environment | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in found.stdout, found.stdout


FIREWALL = """
set -e
ip netns exec h1 nft add table ip mine
ip netns exec h1 nft add chain ip mine before '{ type nat hook prerouting priority -100 ; }'
ip netns exec h1 nft add rule ip mine before tcp dport 7000 dnat to 10.0.0.2:7001
ip netns exec h1 nft add chain ip mine within '{ type filter hook input priority 0 ; }'
ip netns exec h1 nft add rule ip mine within tcp dport 7002 ct state new reject with tcp reset
ip netns exec h1 python3 -c "
import socket
server = socket.create_server(('', 7001))
server.accept()[0].sendall(b'translated')" & server=$!
sleep 0.1
python3 - << 'END'
import errno, socket
print(socket.create_connection(("h1", 7000)).recv(100).decode())
try:
    socket.create_connection(("h1", 7002))
except OSError as error:
    print(errno.errorcode[error.errno])
END
ip link add link eth0 name eth0.7 type vlan id 7 && echo vlan
wait $server
"""
SOCKETS = """
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
own.bind(("10.0.0.1", 7003))
own.listen()
other = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
other.connect(("10.0.0.1", 7003))
other.sendall(b"mptcp")
print(own.accept()[0].recv(10).decode())
first = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
first.bind(("10.0.0.1", 7004))
first.listen()
second = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
second.connect(("10.0.0.1", 7004))
second.sendall(b"sctp")
print(first.accept()[0].recv(10).decode())
"""


def test_hosts_have_mptcp_and_sctp_sockets() -> None:
    found = run_on_hosts(sys.executable, "-c", SOCKETS)
    assert found.stdout.split() == ["mptcp", "sctp"], found.stderr


@pytest.mark.slow
@pytest.mark.programs
def test_hosts_translate_and_refuse_by_nftables() -> None:
    found = run_on_hosts("sh", "-c", FIREWALL)
    assert found.stdout.split() == ["translated", "ECONNREFUSED", "vlan"], found.stderr


def test_wrong_numbers_of_hosts_and_links_alone_are_refused() -> None:
    found = run_on_hosts("true", hosts=1)
    assert found.returncode == 2 and "a whole number from 2 to 200" in found.stderr


def test_a_command_begins_at_the_given_date_on_hosts_and_without() -> None:
    for options in ((), ("--hosts", "2", "--link", "20 Mbit/s, 300 ms")):
        command = [sys.executable, "-m", "scenarios.vm", "--date", "2001-02-03T04:05:06.07", *options, "--"]
        found = subprocess.run([*command, "date", "-u", "+%FT%T.%N"], capture_output=True, text=True, check=True)
        assert found.stdout == "2001-02-03T04:05:06.070000000\n"
    command[4] = "yesterday"
    refused = subprocess.run([*command, "date"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and '"yesterday" is not allowed; allowed: a date with a time' in refused.stderr
