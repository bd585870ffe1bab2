"""Several VMs that share one virtual time: `python -m scenarios.vm --join LINK`."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scenarios.vm.errors import VMUsageError
from scenarios.vm.joined import JoinedLink, check, parse_link
from tests.conftest import VM
from tests.fakes.processes import await_that

UP = """
m=$LONGHAUL_MACHINE
up() { ip link set $1 mtu 9000 up; ip addr add $2 dev $1; }
"""
ECHO = """
import socket, sys, time
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "answers":
    there.bind(("0.0.0.0", 7))
    while True:
        there.sendto(*there.recvfrom(100))
time.sleep(1)
for _ in range(3):
    began = time.monotonic_ns()
    there.sendto(b"x", (sys.argv[1], 7))
    there.recv(1)
    print(time.monotonic_ns() - began, flush=True)
"""
MESSAGES = """
import socket, sys, time
SIZE, COUNT = 4_000_000, 12
if sys.argv[1] == "receives":
    there = socket.create_server(("0.0.0.0", 7)).accept()[0]
    for _ in range(COUNT):
        left = SIZE
        while left:
            left -= len(there.recv(min(left, 1 << 20)))
        there.sendall(b"x")
else:
    time.sleep(1)
    there = socket.create_connection((sys.argv[1], 7))
    for _ in range(COUNT):
        began = time.monotonic_ns()
        there.sendall(bytes(SIZE))
        there.recv(1)
        print(time.monotonic_ns() - began, flush=True)
"""
SHAPED = "tc qdisc add dev $1 root handle 1: htb default 1; tc class add dev $1 parent 1: classid 1:1 htb rate 10gbit"
BURSTS = "burst 20k cburst 20k; tc qdisc add dev $1 parent 1:1 pfifo limit 100000; ethtool -K $1 tso off gso off"
SHAPE = f"shape() {{ {SHAPED} {BURSTS}; }} 2>/dev/null >&2\n"
FLOOD = """
import socket, sys, time
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "receives":
    there.setsockopt(socket.SOL_SOCKET, 33, 1 << 29)  # SO_RCVBUFFORCE
    there.bind(("0.0.0.0", 7))
    there.settimeout(9)
    numbers = [int.from_bytes(there.recv(9000)[:4]) for _ in range(8000)]
    print(len(numbers), numbers == sorted(numbers), flush=True)
else:
    time.sleep(1)
    there.setsockopt(socket.SOL_SOCKET, 32, 1 << 29)  # SO_SNDBUFFORCE
    for number in range(8000):
        there.sendto(number.to_bytes(4) + bytes(8000), (sys.argv[1], 7))
    time.sleep(10)
"""


def ran(vm: VM, links: list[str], script: str, *, programs: dict[str, str] | None = None) -> dict[int, list[str]]:
    """Run a script in each of the joined machines; return the lines that each printed."""
    for name, text in (programs or {}).items():
        (vm.folder / name).write_text(text)
    joins = [word for link in links for word in ("--join", link)]
    ended = vm.run(*joins, "--", "sh", "-c", UP + script, timeout=300)
    assert ended.status == 0, ended.err
    lines: dict[int, list[str]] = {}
    for line in ended.out.splitlines():
        number, _, text = line.partition(": ")
        lines.setdefault(int(number), []).append(text)
    return lines


@pytest.mark.parametrize("delay", ["1 us", "37.001 us", "20 ms"])
def test_a_round_trip_takes_the_links_delay_twice_to_the_nanosecond(vm: VM, delay: str) -> None:
    script = """
        up join0 10.0.0.$((m + 1))/24
        if [ $m = 0 ]; then exec python3 echo.py 10.0.0.2; fi
        timeout 3 python3 echo.py answers || true
    """
    (_, *others) = ran(vm, [f"0-1, {delay}"], script, programs={"echo.py": ECHO})[0]  # the first waits for ARP
    wanted_ns = 2 * {"1 us": 1_000, "37.001 us": 37_001, "20 ms": 20_000_000}[delay]
    assert [int(took_ns) for took_ns in others] == [wanted_ns] * 2


def test_machines_that_no_link_joins_directly_reach_each_other_over_others(vm: VM) -> None:
    script = """
        case $m in
            0) up join0 10.0.0.1/24; ip route add default via 10.0.0.2; python3 echo.py 10.0.1.2 ;;
            1) up join0 10.0.0.2/24; up join1 10.0.1.1/24; echo 1 >/proc/sys/net/ipv4/ip_forward; sleep 5 ;;
            2) up join1 10.0.1.2/24; ip route add default via 10.0.1.1; timeout 5 python3 echo.py answers ;;
        esac; true
    """
    (_, *others) = ran(vm, ["0-1, 30 us", "1-2, 400 us"], script, programs={"echo.py": ECHO})[0]
    assert others == ["860000"] * 2


def test_a_packet_on_a_faster_link_arrives_before_an_earlier_one_on_a_slower_link(vm: VM) -> None:
    """A machine that waits for the slower one had taken that for its next event, and its kernel ended."""
    script = """
        for n in 0 1; do up join$n 10.0.$n.$((m + 1))/24; done
        if [ $m = 1 ]; then exec python3 two.py; fi
        sleep 1; for n in 0 1; do ping -c 1 10.0.$n.2 >/dev/null; done
        (echo slow >/dev/udp/10.0.0.2/7; sleep 0.001; echo fast >/dev/udp/10.0.1.2/7; sleep 1)
    """
    receives = """
import socket, time
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
there.bind(("0.0.0.0", 7))
print(*(there.recv(9).decode().strip() for _ in range(2)))
"""
    (lines,) = ran(vm, ["0-1, 20 ms", "0-1, 1 ms"], f"bash -c '{UP}{script}'", programs={"two.py": receives}).values()
    assert lines == ["fast slow"]


def test_messages_take_the_times_of_one_machine_and_the_same_nanoseconds_on_a_busy_host(vm: VM) -> None:
    """The oracle is a cable with netem in one machine; its timer is a nanosecond late."""
    joined = (
        SHAPE
        + """
        up join0 10.0.0.$((m + 1))/24; shape join0
        [ $m = 0 ] && exec python3 messages.py 10.0.0.2
        python3 messages.py receives
    """
    )
    alone = (
        SHAPE
        + """
        for n in a b; do ip netns add $n; done
        ip link add join0 netns a type veth peer name join0 netns b
        for n in a b; do
            nsenter --net=/run/netns/$n sh -c "$(cat setup.sh)"
        done
        ip netns exec b python3 messages.py receives & ip netns exec a python3 messages.py 10.0.0.2
    """
    )
    setup = (
        SHAPE
        + """
        shape join0; ip link set join0 mtu 9000 up
        ip addr add 10.0.0.$(ip netns identify | tr ab 12)/24 dev join0
        ip link add ifb0 type ifb && ip link set ifb0 up && tc qdisc add dev ifb0 root netem delay 100us limit 100000
        tc qdisc add dev join0 ingress
        tc filter add dev join0 ingress matchall action mirred egress redirect dev ifb0
    """
    )
    (vm.folder / "setup.sh").write_text(setup)
    first = ran(vm, ["0-1, 100 us"], joined, programs={"messages.py": MESSAGES})[0]
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            again = ran(vm, ["0-1, 100 us"], joined)[0]
        finally:
            busy.kill()
    assert again == first
    ended = vm.run("--", "sh", "-c", alone, timeout=300)
    assert ended.status == 0, ended.err
    for took_ns, alone_ns in zip(first[6:], ended.out.split()[6:], strict=True):  # TCP's window has grown
        assert int(took_ns) == pytest.approx(int(alone_ns), abs=100)  # 3.4 ms; a packet's header takes 50 ns


def test_more_than_the_machines_shared_memory_holds_arrives_in_order(vm: VM) -> None:
    script = """
        up join0 10.0.0.$((m + 1))/24; ping -c 1 10.0.0.$((2 - m)) >/dev/null
        echo 10000 >/proc/sys/net/core/netdev_max_backlog  # all arrive at one instant
        if [ $m = 0 ]; then exec python3 flood.py 10.0.0.2; else exec python3 flood.py receives; fi
    """
    assert ran(vm, ["0-1, 100 ms"], script, programs={"flood.py": FLOOD})[1] == ["8000 True"]  # 64 MB, all on the way


def test_a_machine_that_has_ended_holds_up_nobody_and_the_first_bad_status_is_returned(vm: VM) -> None:
    ended = vm.run("--join", "0-1, 1 us", "--", "sh", "-c", "[ $LONGHAUL_MACHINE = 0 ] && sleep 1000 || exit 7")
    assert ended.status == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_all_machines_end_with_one_and_with_the_command(vm: VM, kernel_image: Path, number: signal.Signals) -> None:
    def kernels() -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"])
        return [one for one in found if (one.info["cmdline"] or [])[:1] == [str(kernel_image)]]

    with vm.start("--join", "0-1, 10 ms", "--", "sh", "-c", "echo up; sleep 1; kill -STOP $$") as process:
        assert process.stdout is not None and process.stderr is not None
        for _ in range(2):
            assert re.fullmatch(rb"[01]: up\n", process.stdout.readline())
        began = time.monotonic()
        if number == signal.SIGKILL:  # of one machine
            kernels()[0].kill()
        else:
            process.send_signal(number)
        assert process.wait(timeout=30) == {signal.SIGKILL: 1, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert time.monotonic() - began < 10
        await_that(lambda: not kernels(), 10)
        if number == signal.SIGKILL:
            assert process.stderr.read().decode().startswith("longhaul: the VM")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0-1, 10 ms", JoinedLink(0, 1, 10_000_000)),
        ("3 - 2,1.5us", JoinedLink(3, 2, 1_500)),
    ],
)
def test_a_link_is_two_machines_and_a_delay(text: str, wanted: JoinedLink) -> None:
    assert parse_link(text) == wanted


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--join", "0-0, 1 ms"], "'0-0, 1 ms' does not name two machines"),
        (["--join", "0-99, 1 ms"], "'0-99, 1 ms' names machine 99; allowed: 0 to 15"),
        (["--join", "0-1"], "allowed: two machines and a one-way delay"),
        (["--join", "0-1, 0 ms"], "allowed:"),
        (["--join", "0-2, 1 ms"], "no link joins machine 1 with machine 0"),
        (["--join", "0-1, 1 ms", "--hosts", "2"], "--join cannot be combined with --hosts"),
        (["--join", "0-1, 1 ms", "--clock", "wall"], "--join needs --clock virtual"),
    ],
)
def test_links_that_cannot_be_are_refused_in_a_sentence(vm: VM, arguments: list[str], sentence: str) -> None:
    ended = vm.run(*arguments, "--", "true")
    assert ended.status == 2
    assert sentence in ended.err


def test_more_links_than_the_kernel_has_are_refused() -> None:
    with pytest.raises(VMUsageError, match="up to 64 links"):
        check(2, [JoinedLink(0, 1, 1)] * 65)
