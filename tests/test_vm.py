"""The VM as its users meet it: the real kernel, started as an unprivileged user wherever the tests may choose one."""

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scenarios.vm import CannotRunError, kconfig, kernel
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


# --- two at once, and the end ---------------------------------------------------------------------------------------


def test_two_vms_run_side_by_side_without_noticing_each_other(vm: VM) -> None:
    script = "echo $1 >/tmp/mine; echo started; read go; cat /tmp/mine; ls /proc | grep -c '^[0-9]'"
    both = [vm.start("--memory", "512 MiB", "--", "sh", "-c", script, "sh", name) for name in ("one", "two")]
    try:
        for process in both:
            assert process.stdout is not None and process.stdout.readline() == b"started\n"
        outs = [process.communicate(b"go\n", timeout=60)[0].split() for process in both]
    finally:
        for process in both:
            process.kill()
    assert [out[0] for out in outs] == [b"one", b"two"]
    assert outs[0][1] == outs[1][1]  # as many processes: its own


def leftovers(image: Path) -> list[str]:
    """Return the processes that run a kernel, except the dead that nobody has waited for yet."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                str(image).encode() in (process / "cmdline").read_bytes()
                and " Z " not in (process / "stat").read_text()
            ):
                found.append(process.name)
        except OSError:
            continue
    return found


def names() -> set[str]:
    """Return what the VM's user has in the folders for temporary files, theirs alone: others use those, too."""
    found = set()
    for path in (path for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid == WHO:
                found.add(str(path))
    return found


@pytest.mark.alone
@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("when", ["booting", "running"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_every_way_to_end_it_leaves_nothing(
    vm: VM, kernel_image: Path, number: signal.Signals, status: int, when: str, clock: str
) -> None:
    before = names()
    with vm.start("--clock", clock, "--", "sh", "-c", "echo up; sleep 1 & cat; sleep 100000") as process:
        assert process.stdout is not None and process.stderr is not None
        if when == "running":
            assert process.stdout.readline() == b"up\n"
        else:
            while not leftovers(kernel_image):
                time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        deadline = time.monotonic() + 10
        while leftovers(kernel_image) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert leftovers(kernel_image) == []
        assert process.stderr.read() == b""
    assert names() - before == set()


@pytest.mark.alone
def test_a_launcher_killed_at_any_instant_of_its_start_leaves_nothing(vm: VM, kernel_image: Path) -> None:
    for attempt in range(30):
        with vm.start("--clock", "wall", "--", "sleep", "1000") as process:
            while not leftovers(kernel_image):
                pass
            time.sleep(0.0005 * (attempt % 15))
            process.kill()
        deadline = time.monotonic() + 20
        while leftovers(kernel_image) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert leftovers(kernel_image) == [], f"attempt {attempt}"


# --- when it cannot -------------------------------------------------------------------------------------------------


def test_a_guest_that_panics_says_so(vm: VM) -> None:
    # Wipe the code of init, which then dies of a signal: the kernel cannot go on without.
    script = (
        "import re\n"
        "for line in open('/proc/1/maps'):\n"
        "    if ' r-xp ' in line and 'dash' in line or ' r-xp ' in line and 'libc' in line:\n"
        "        low, high = (int(x, 16) for x in re.match('([0-9a-f]+)-([0-9a-f]+)', line).groups())\n"
        "        with open('/proc/1/mem', 'r+b', buffering=0) as memory:\n"
        "            memory.seek(low); memory.write(bytes(high - low))\n"
    )
    ended = vm.run(*python(script=script), timeout=60)
    assert ended.status == 1
    assert "kernel panicked" in sentence(ended.err) and "init" in ended.err


def test_a_guest_that_runs_out_of_memory_says_so(vm: VM) -> None:
    ended = vm.run("--memory", "256 MiB", *python(script="x = []\nwhile True: x.append(b'x' * 2**22)"), timeout=60)
    assert ended.status == 1
    assert "ran out of memory" in sentence(ended.err) and "--memory" in ended.err


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "words"),
    [
        (("--", "true"), {"LONGHAUL_KERNEL": "/no/kernel"}, 3, "run `bash scenarios/setup.sh`"),
        (("--", "true"), {"LONGHAUL_KERNEL": "/bin/true"}, 3, "/bin/true is no User-Mode Linux kernel"),
        (("--", "true"), {"LONGHAUL_KERNEL": "/no/kernel"}, 3, "/no/kernel is no User-Mode Linux kernel"),
        (("--memory", "900 TB", "--", "true"), {}, 3, "no room for the VM's 900 TB of memory"),
        (("--memory", "1 MB", "--", "true"), {}, 2, "1 MB of memory is too little"),
        (("--results", "/etc/x", "--", "true"), {}, 3, "results folder /etc/x cannot be made: Permission denied"),
        (("--results", "/etc", "--", "true"), {}, 3, "results folder /etc is not writable"),
        (("--results", "/", "--", "true"), {}, 2, "/ cannot be the results folder"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence_before_anything_starts(
    vm: VM, arguments: tuple[str, ...], environment: dict[str, str], status: int, words: str
) -> None:
    if os.getuid() != 0 and "/etc" in arguments and os.access("/etc", os.W_OK):
        pytest.fail("the tests' own user may write to /etc")
    ended = vm.run(*arguments, env=environment)
    assert ended.status == status
    assert words in sentence(ended.err)


def test_a_kernel_without_the_options_names_them(vm: VM) -> None:
    fake = vm.folder / "linux"
    fake.write_text("#!/bin/sh\necho CONFIG_UML=y\necho CONFIG_OPENVSWITCH=y\n")
    fake.chmod(0o755)
    ended = vm.run("--", "true", env={"LONGHAUL_KERNEL": str(fake)})
    assert ended.status == 3
    assert "was built without CONFIG_64BIT=y" in sentence(ended.err) and "more options" in ended.err


def test_bad_usage_ends_with_status_two(vm: VM) -> None:
    for arguments in (("--",), ("--clock", "sundial", "--", "true"), ("--memory", "2 apples", "--", "true")):
        ended = vm.run(*arguments)
        assert ended.status == 2
        assert "Traceback" not in ended.err and "usage:" in ended.err


def test_a_machine_that_forbids_ptrace_is_named(vm: VM) -> None:
    launcher = [sys.executable, str(PROJECT / "tests/guest/without_ptrace.py")]
    ended = subprocess.run(
        [*launcher, sys.executable, "-m", "scenarios.vm", "--", "true"],
        env=vm.environment, capture_output=True, text=True, cwd=PROJECT, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "forbids ptrace" in sentence(ended.stderr)


def test_a_kernel_that_is_not_built_is_named_with_what_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(
        CannotRunError, match=r"not built yet \(looked in .*longhaul.*\): run `bash scenarios/setup.sh`"
    ):
        kernel.find_kernel({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_kernel_in_the_virtual_environment_serves_those_who_did_not_build_it(
    kernel_image: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fingerprint = kconfig.wanted_fingerprint()
    copy = kernel.cached(tmp_path / "lib" / "longhaul", "6.12.1-1", fingerprint)
    copy.parent.mkdir(parents=True)
    shutil.copy2(kernel_image, copy)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert kernel.find_kernel({"XDG_CACHE_HOME": str(tmp_path)}) == copy


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CannotRunError, match="x86_64 machines only, and this one is aarch64"):
        kernel.find_kernel({})
