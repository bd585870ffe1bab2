"""The VM as its users meet it: the real kernel, started as an unprivileged user wherever the tests may choose one."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import NOBODY, PROJECT, VM

WHO = NOBODY if os.getuid() == 0 else os.getuid()


def python(*, script: str) -> tuple[str, ...]:
    return ("--", "python3", "-c", script)


def sentence(err: str) -> str:
    """Return the one sentence that a failed command printed."""
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("longhaul: "), err
    return lines[0]


# --- what COMMAND sees, and what it cannot touch --------------------------------------------------------------------


def test_command_is_root_inside(vm: VM) -> None:
    assert vm.run("--", "id", "-u").out == "0\n"


def test_what_is_written_inside_is_gone_except_in_the_results(vm: VM) -> None:
    results = vm.folder / "results"
    script = f"""set -e
        echo 1 >/etc/longhaul-was-here; cat /etc/longhaul-was-here
        echo 2 >{vm.folder}/beside; echo 3 >{results}/kept"""
    ended = vm.run("--results", str(results), "--", "sh", "-c", script)
    assert (ended.status, ended.out) == (0, "1\n")
    assert not Path("/etc/longhaul-was-here").exists()
    assert not (vm.folder / "beside").exists()
    kept = results / "kept"
    assert kept.read_text() == "3\n"
    assert kept.stat().st_uid == WHO


def test_the_working_directory_the_environment_and_the_arguments_arrive_whole(vm: VM) -> None:
    folder = vm.folder / 'it\'s a "dir" $HOME'
    folder.mkdir(mode=0o755)
    script = 'printf "%s|%s|%s|%s" "$PWD" "$MINE" "${DISPLAY-none}" "$1"'
    ended = vm.run(
        "--", "sh", "-c", script, "sh", "two\nlines; $(id)", cwd=folder, env={"MINE": "a'b\"c", "DISPLAY": ":9"}
    )
    assert ended.out == f"{folder}|a'b\"c|none|two\nlines; $(id)"


def test_the_python_of_the_project_runs_inside(vm: VM) -> None:
    ended = vm.run("--", sys.executable, "-c", "import scenarios.vm; print(scenarios.vm.__name__)")
    assert ended.out == "scenarios.vm\n", ended.err


# --- streams and statuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_stdout_and_stderr_stay_apart_and_bytes_stay_as_they_are(vm: VM, clock: str) -> None:
    data = os.urandom(300_000) + b"\r\n\x03\x04\x11\x13\n\n"
    ended = vm.run("--clock", clock, "--", "sh", "-c", "cat; printf 'err\\r\\n' >&2", input=data)
    assert ended.raw_out == data
    assert ended.raw_err == b"err\r\n"


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_much_output_arrives_whole_however_slowly_it_is_read(vm: VM, clock: str) -> None:
    with vm.start("--clock", clock, "--", "seq", "1000000", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        data = process.stdout.read(200_000)
        time.sleep(1)
        data += process.stdout.read()
        assert process.wait(timeout=60) == 0
    assert data == b"".join(b"%d\n" % number for number in range(1, 1_000_001))


def test_output_comes_while_the_command_still_runs(vm: VM) -> None:
    with vm.start("--", "sh", "-c", "echo first; read answer; echo $answer") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        assert process.poll() is None
        process.stdin.write(b"second\n")
        process.stdin.close()
        assert process.stdout.readline() == b"second\n"
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 128 + 15),
        (("sh", "-c", "kill -KILL $$"), 128 + 9),
        (("no-such-command",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_exit_statuses_pass_through(vm: VM, command: tuple[str, ...], status: int) -> None:
    assert vm.run("--", *command).status == status


def test_a_daemon_left_behind_does_not_keep_the_vm(vm: VM) -> None:
    ended = vm.run("--clock", "wall", "--", "sh", "-c", "sleep 1000 & (sleep 1000; echo never) & echo done", timeout=30)
    assert (ended.status, ended.out) == (0, "done\n")


def test_a_reader_that_leaves_ends_the_vm_as_in_any_pipeline(vm: VM) -> None:
    with vm.start("--", "yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=10) == 128 + signal.SIGPIPE


def test_a_full_disk_under_the_output_is_one_sentence(vm: VM) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = vm.run("--", "echo", "hello", stdout=full)
    assert ended.status == 1
    assert "cannot be passed on: No space left" in sentence(ended.err)


# --- the clocks -----------------------------------------------------------------------------------------------------


def test_an_hour_of_sleep_takes_no_time_and_the_date_moves_on(vm: VM) -> None:
    started = time.monotonic()
    ended = vm.run("--", "sh", "-c", "date +%s; sleep 3600; date +%s")
    assert time.monotonic() - started < 60
    before, after = map(int, ended.out.split())
    assert after - before == 3600
    assert abs(before - time.time()) < 120


NETEM = """
set -e
ip netns add a; ip link add v type veth peer name e netns a; ip link set v up; ip -n a link set e up
ip addr add 10.0.0.1/24 dev v; ip -n a addr add 10.0.0.2/24 dev e
tc qdisc add dev v root netem delay 5ms
ping -q -c 1 10.0.0.2 >/dev/null
ping -c 5 -i 0.2 10.0.0.2
"""


def test_a_ping_across_five_milliseconds_reads_five_milliseconds(vm: VM) -> None:
    ended = vm.run("--", "sh", "-c", NETEM)
    times = [float(found) for found in re.findall(r"time=([\d.]+) ms", ended.out)]
    assert len(times) == 5, ended.err
    assert all(abs(ms - 5) <= 0.001 for ms in times), times


def test_on_the_wall_clock_netem_delays_in_real_time(vm: VM) -> None:
    ended = vm.run(
        "--clock", "wall", "--", "sh", "-c", NETEM + "cut -d' ' -f1 /proc/uptime; sleep 1.5; cut -d' ' -f1 /proc/uptime"
    )
    times = [float(found) for found in re.findall(r"time=([\d.]+) ms", ended.out)]
    assert len(times) == 5, ended.err
    assert min(times) >= 5 and statistics.median(times) < 50
    before, after = map(float, ended.out.split()[-2:])
    assert 1.5 <= after - before < 30


# --- Open vSwitch ---------------------------------------------------------------------------------------------------

SWITCH = """
set -e
"$PY" -m scenarios.vm.openvswitch up
ovs-vsctl add-br s1
for n in 1 2; do
  ip netns add h$n; ip link add v$n type veth peer name e netns h$n; ip link set v$n up; ip -n h$n link set e up
  ip -n h$n addr add 10.0.0.$n/24 dev e; ovs-vsctl add-port s1 v$n
done
ip netns exec h1 ping -q -c 3 -i 0.2 10.0.0.2 | grep -o '3 received'
ovs-appctl dpctl/dump-flows | grep -c 'actions:[0-9]'
cat /proc/$(pidof ovs-vswitchd)/task/*/comm | grep -c '^handler'
"$PY" -m scenarios.vm.openvswitch down
pidof ovs-vswitchd ovsdb-server || echo stopped
ip -br link | grep -c ovs-system || true
"$PY" -m scenarios.vm.openvswitch up && ovs-vsctl show | grep -c Bridge || echo empty again
"""


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_open_vswitch_comes_up_forwards_in_the_kernel_and_goes_down(vm: VM, clock: str) -> None:
    ended = vm.run("--clock", clock, "--", "sh", "-c", SWITCH, env={"PY": sys.executable})
    received, flows, handlers, *rest = ended.out.splitlines()
    assert received == "3 received", ended.err
    assert int(flows) >= 2  # the kernel's datapath has them, not user space
    assert int(handlers) == 1  # the VM has one CPU: none means that nothing new is ever forwarded
    assert rest == ["stopped", "0", "0", "empty again"]


def test_open_vswitch_is_not_brought_up_outside_the_vm() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "scenarios.vm.openvswitch", "up"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert ended.returncode == 1
    assert "inside the VM only" in ended.stderr and "Traceback" not in ended.stderr


def test_seven_switches_carry_a_hundred_gigabit_alike_in_every_boot(vm: VM) -> None:
    boots = []
    for _ in range(2):
        ended = vm.run("--", sys.executable, str(PROJECT / "tests/guest/line.py"), timeout=300)
        assert ended.status == 0, ended.err
        boots.append(json.loads(ended.out))
    assert boots[0]["drops"] == boots[1]["drops"] == 0
    # Of a packet's 1500 bytes 1448 are payload (IP 20, TCP 20 and its timestamps 12), and HTB counts 1514.
    ideal_s = 8 * 8 * 2**20 / (100e9 * 1448 / 1514)
    for boot in boots:
        steady = boot["seconds"][4:]  # the congestion window has grown
        assert statistics.median(steady) == pytest.approx(ideal_s, rel=0.01)
        assert max(steady) == pytest.approx(ideal_s, rel=0.01)
    assert boots[0]["seconds"] == boots[1]["seconds"]
