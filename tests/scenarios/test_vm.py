"""The VM as users run it: the real kernel, started as an unprivileged user where the tests can switch users."""

import io
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scenarios.program.session import RunState, failures, notes, result_of
from scenarios.spec.load import load_scenario
from scenarios.vm import machine, resources, run
from tests.conftest import AS_NOBODY, PROJECT, VM, WHO
from tests.guest import mappings

GUEST = str(PROJECT / "tests" / "guest" / "vm.py")


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_command_in_the_vm_has_its_input_folder_environment_clock_and_switches(vm: VM, clock: str) -> None:
    folder, results = vm.folder / 'it\'s a "dir" $HOME', vm.folder / "results"
    folder.mkdir(mode=0o755)
    data = os.urandom(300_000) + b"\r\n\x03\x04\x11\x13\n\n"
    argument, mine = "two\nlines; $(id)", "a'b\"c"
    began, date = time.monotonic(), time.time()
    with vm.start(
        *("--clock", clock, "--results", str(results), "--", sys.executable, GUEST, clock, str(results), argument),
        cwd=folder,
        env={"MINE": mine, "DISPLAY": ":9"},
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        writer = threading.Thread(target=lambda: (process.stdin.write(data), process.stdin.close()))
        writer.start()
        out = process.stdout.read(len(data) + 200_000)
        time.sleep(1)  # a slow reader must not lose output
        out += process.stdout.read()
        writer.join()
        assert process.wait(timeout=60) == 0  # although the command left processes behind
        took_s = time.monotonic() - began
        assert process.stderr.read() == b"err\r\n"
    assert out[: len(data)] == data
    assert out[len(data) :] == b"".join(b"%d\n" % number for number in range(1, 1_000_001))

    seen = json.loads((results / "report.json").read_text())
    assert (seen["user"], seen["written"], seen["package"]) == (0, "1", "scenarios.vm")
    assert not Path("/etc/longhaul-was-here").exists() and not (vm.folder / "beside").exists()
    assert (results / "report.json").stat().st_uid == WHO
    assert (seen["directory"], seen["argument"]) == (str(folder), argument)
    assert seen["environment"] == {"MINE": mine, "DISPLAY": None}

    before, passed_s, on_the_clock_s = seen["slept"]
    assert abs(before - date) < 120 and passed_s == pytest.approx(on_the_clock_s, abs=0.1)
    assert len(seen["ping_ms"]) == 5
    if clock == "virtual":  # an hour of sleep takes almost no time, and 5 ms are exactly 5 ms
        assert passed_s == pytest.approx(3600, abs=0.1) and took_s < 300
        assert all(abs(ms - 5) <= 0.001 for ms in seen["ping_ms"]), seen["ping_ms"]
        readings = seen["readings"]
        # Reading the clock advances it, so that a loop that waits for a time ends, also in two processes by turns.
        assert 5_000 < readings["loops"] <= 10_000
        steps = [step for step in readings["steps"] if step]
        # Not exactly 256 ns: the host's input and output interrupt the VM meanwhile.
        assert len(steps) in (2, 3) and all(256 <= step < 266 for step in steps), readings["steps"]
        assert 50 < seen["turns"] <= 100
        # All processes have one clock.
        assert readings["child_ns"] == 0 and 1_000_000 <= readings["after_ns"] < 1_100_000
    else:
        assert 1.5 <= passed_s < 30
        assert 0 < seen["readings"]["child_ns"] < seen["readings"]["after_ns"]
        assert min(seen["ping_ms"]) >= 5 and statistics.median(seen["ping_ms"]) < 50
        lacking = "[Lack(what='Open vSwitch running', remedy='service openvswitch-switch start')]"
        assert seen["abilities"] == f"{lacking} []\n"

    received, flows, handlers, *rest = seen["switch"]
    assert received == "3 received" and int(flows) >= 2  # forwarded in the kernel's datapath, not in user space
    assert int(handlers) == 1  # the VM has one CPU; without a handler no new flow would ever be forwarded
    assert rest[:4] == ["stopped", "0", "0", "empty again"]
    assert "up already" in rest[4] and rest[5:] == ["s2", "s3"]  # running switches are kept, broken ones are replaced


class Output(io.BytesIO):
    """Output of a VM, with an event that is set at the first write."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.begun.set()
        return super().write(data)


def test_two_concurrent_vms_share_no_files_processes_or_cores(
    kernel_image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "CORE_MARK", f"longhaul-test-{os.getpid()}-core-")
    # At the end, the names that stand among the arguments of all processes.
    names = r"cat /proc/[0-9]*/cmdline | tr '\000' '\n' | grep -x '[ab]' | sort -u"
    script = f"echo $1 | tee /tmp/mine; read go; echo $go; cat /tmp/mine; {names}"
    environment = {"PATH": os.environ["PATH"], "LONGHAUL_KERNEL": str(kernel_image)}

    def one(name: str, stdin: int, out: Output) -> int:
        command = ["sh", "-c", script, "sh", name]
        return run(command, memory_bytes=2**29, environment=environment, stdin=stdin, stdout=out)

    pipes, outs = [os.pipe(), os.pipe()], [Output(), Output()]
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(one, name, *x) for name, *x in zip("ab", [end for end, _ in pipes], outs, strict=True)]
        allowed = []
        try:
            assert all(out.begun.wait(60) for out in outs)  # while the commands still run
            for process in psutil.process_iter(["cmdline"]):
                with suppress(psutil.Error):  # it has ended
                    if str(kernel_image) in (process.info["cmdline"] or []):
                        allowed.append(tuple(process.cpu_affinity()))
        finally:
            for _, end in pipes:
                os.write(end, b"go\n")
                os.close(end)
        assert [future.result(60) for future in ended] == [0, 0]
    for start, _ in pipes:
        os.close(start)
    one_said, other_said = (out.getvalue().split() for out in outs)
    assert (one_said, other_said) == ([b"a", b"go", b"a", b"a"], [b"b", b"go", b"b", b"b"])
    cores = os.sched_getaffinity(0)
    assert len(allowed) > 4 and len(set(allowed)) == min(2, len(cores))  # each VM stays on one core
    assert len(cores) == 1 or all(len(one) == 1 and cores.issuperset(one) for one in allowed)


@pytest.mark.parametrize(
    ("command", "status"), [(("test", "-t", "1"), 1), (("sh", "-c", "kill -KILL $$"), 137), (("no-such",), 127)]
)
def test_exit_statuses_pass_through_and_stdout_to_a_pipe_is_no_terminal(
    vm: VM, command: tuple[str, ...], status: int
) -> None:
    assert vm.run("--clock", "wall", "--", *command, stdin=subprocess.DEVNULL).status == status


def test_a_closed_stdout_pipe_ends_the_vm_with_sigpipe(vm: VM) -> None:
    with vm.start("--", "yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=10) == 128 + signal.SIGPIPE


def test_two_boots_take_identical_ideal_times_at_100_gbit_and_keep_vector_registers(vm: VM) -> None:
    program, source = vm.folder / "registers", PROJECT / "tests" / "guest" / "registers.c"
    command = ["gcc", "-O2", "-Wall", "-Werror", "-mgeneral-regs-only", "-pthread", "-o", program, source]
    subprocess.run(command, check=True)
    script = f"{sys.executable} {PROJECT}/tests/guest/line.py && {program}"
    boots, flags = [], Path("/proc/cpuinfo").read_text().split()
    for _ in range(2):
        ended = vm.run("--", "sh", "-c", script, timeout=300)
        assert ended.status == 0, ended.err
        line, registers = ended.out.splitlines()
        boots.append(json.loads(line))
        # Vector registers survive faults, signals and context switches:
        assert registers.split() == ["avx512" if "avx512f" in flags else "avx", "200"]
    assert boots[0] == boots[1] and boots[0]["drops"] == 0
    # A packet of 1500 bytes has 1448 bytes of payload (20 IP, 20 TCP, 12 TCP timestamps), and HTB counts 1514.
    ideal_s = 8 * 8 * 2**20 / (100e9 * 1448 / 1514)
    steady = boots[0]["seconds"][4:]  # the congestion window has grown
    assert [statistics.median(steady), max(steady)] == pytest.approx([ideal_s] * 2, rel=0.01)


def test_a_slow_host_changes_no_time_process_identifier_or_random_number_in_the_vm(
    kernel_image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VM's init asks for the command over a console. Open vSwitch, for one, sorts by identifiers that it draws from
    random numbers and its own number, and what a failed link costs depends on that order."""
    send, waits_s = machine.Console.send, iter((0.0, 0.05, 1.0))

    def send_late(console: machine.Console, data: bytes = b"") -> None:
        if data:
            time.sleep(next(waits_s))
        send(console, data)

    monkeypatch.setattr(machine.Console, "send", send_late)
    script = "echo $$; head -c 8 /dev/urandom | od -An -tx8; cut -d ' ' -f 1 /proc/uptime"
    found = []
    for _ in range(3):
        out = io.BytesIO()
        assert run(["sh", "-c", script], stdout=out) == 0
        found.append(out.getvalue())
    assert found[0] == found[1] == found[2] and found[0].endswith(b"\n0.00\n")
    assert next(waits_s, None) is None  # each boot has waited


def test_clocks_and_timeouts_of_processes_are_exact_in_virtual_time(vm: VM) -> None:
    """The time stamp counter in every encoding, process and thread, and the timeouts of sockets."""
    program, source = vm.folder / "tsc", PROJECT / "tests" / "guest" / "tsc.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, source], check=True)

    def inside(clock: str, *command: str) -> list[str]:
        script = f"{program} && (grep MHz /proc/cpuinfo; true) && {shlex.join(command)}"
        ended = vm.run("--clock", clock, "--", "sh", "-c", script, cwd=PROJECT)
        assert ended.status == 0, ended.err
        return ended.out.splitlines()

    *lines, told, waits = inside("virtual", sys.executable, "-m", "tests.guest.timeouts")
    counted, waited = readings(lines), json.loads(waits)
    assert len(counted) == 28 and told == "cpu MHz\t\t: 1000.000"
    assert 1_000_000 <= counted.pop("spin")[0] < 1_011_000  # a loop that waits for the counter is 1 % late at most
    assert all(clock == counter and 5_000_000 <= clock < 5_100_000 for clock, counter in counted.values()), counted
    whole_ms = [1, 1, 2, 3, 7, 50, 200, 1_000, 30_000]  # rounded up
    for kind in ("receive", "datagram", "send"):
        assert waited[kind] == pytest.approx([ms * 1_000_000 for ms in whole_ms], rel=0, abs=1_000), kind
    assert 20_000_000 <= waited["received"] < 20_100_000

    # On the wall clock, the counter is the processor's own, whose rate is the same outside.
    alone = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    there, here = (
        statistics.median(counter / clock for clock, counter in readings(lines).values())
        for lines in (inside("wall", "true"), alone)
    )
    assert there == pytest.approx(here, rel=0.2)  # a busy machine stops a process between two readings


def readings(lines: list[str]) -> dict[str, tuple[int, int]]:
    """Return what tests/guest/tsc.c prints: by name, how far the clock moved, in ns, and the time stamp counter."""
    return {name: (int(clock), int(counter)) for name, clock, counter in map(str.split, lines)}


def test_memory_in_more_pieces_than_the_host_maps_is_kept_and_what_is_filled_and_freed_stays_in_few(vm: VM) -> None:
    command = ("--memory", "1 GiB", "--", sys.executable, "-m", "tests.guest.mappings")
    with vm.start(*command, cwd=PROJECT) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        said, bytes_held = process.stdout.readline().split()
        assert said == b"held"
        most = max(map(mappings_of, psutil.Process(process.pid).children(recursive=True)))
        # A mapping for every 64 kB, and those of Python's own files and memory.
        assert most < int(bytes_held) / 65_536 + 1_000
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"kept 0 0 0 0\n", process.stderr.read()
        assert process.stdout.readline() == b"small\n"
        newest = max(psutil.Process(process.pid).children(recursive=True), key=lambda one: (one.create_time(), one.pid))
        # This machine maps nothing more for it.
        subprocess.run(["prlimit", "--as=0:0", "--pid", str(newest.pid)], check=True, **AS_NOBODY)
        process.stdin.write(b"\n")
        process.stdin.close()
        said, status, troubles = process.stdout.readline().split(b" ", 2)
        assert (said, int(status)) == (b"ended", -signal.SIGSEGV)
        assert process.wait(timeout=60) == 0
    # What is said of a program with such processes.
    config = load_scenario("paper")
    result = result_of(config, RunState(Path(), (0,), over=json.loads(troubles)), None, 0.0)
    assert "this machine refused memory to a process of the VM, which was ended" in failures(result, config, Path())[0]
    said_so = any(re.match("the memory of python.* is in more pieces than the ", one) for one in notes(result, config))
    # Some machines allow more mappings than Linux does by itself.
    assert said_so == (int(Path("/proc/sys/vm/max_map_count").read_text()) < mappings.BLOCKS)


def mappings_of(process: psutil.Process) -> int:
    """Return how many mappings the host keeps for a process."""
    try:
        return Path(f"/proc/{process.pid}/maps").read_text().count("\n")
    except OSError:  # it has ended
        return 0


def test_zero_copy_sends_are_not_copied_on_arrival_and_are_freed_once_read(vm: VM) -> None:
    ended = vm.run("--", sys.executable, str(PROJECT / "tests" / "guest" / "zerocopy.py"))
    assert (ended.status, ended.out) == (0, "[]\n[(0, 0, 0)] True\n"), ended.err


def test_memory_contents_and_page_faults_in_the_vm_equal_those_on_the_host(vm: VM) -> None:
    command = [sys.executable, "-m", "tests.guest.pages"]
    here = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(here)["forks"] == [0] * 6  # no page is wrong after a fork
    assert vm.report("pages") == json.loads(here)


def test_paths_are_read_in_the_vm_as_on_the_host_wherever_they_end(vm: VM) -> None:
    command = [sys.executable, "-m", "tests.guest.paths"]
    here = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(here)["4095"] == {"open": 9, "EFAULT": 1} and json.loads(here)["4096"] == {"ENAMETOOLONG": 10}
    assert vm.report("paths") == json.loads(here)
