"""The VM as its users meet it: the real kernel, started as an unprivileged user wherever the tests may choose one."""

import io
import json
import os
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

from scenarios.vm import resources, run
from tests.conftest import PROJECT, VM, WHO

GUEST = str(PROJECT / "tests" / "guest" / "vm.py")


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_command_in_the_vm(vm: VM, clock: str) -> None:
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
        time.sleep(1)  # a slow reader loses nothing
        out += process.stdout.read()
        writer.join()
        assert process.wait(timeout=60) == 0  # whatever the command has left behind
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
    if clock == "virtual":  # an hour takes no time, and 5 ms are 5 ms
        assert passed_s == pytest.approx(3600, abs=0.1) and took_s < 300
        assert all(abs(ms - 5) <= 0.001 for ms in seen["ping_ms"]), seen["ping_ms"]
        readings = seen["readings"]
        assert 5_000 < readings["loops"] <= 10_000 and readings["steps"] == [
            256,
            256,
        ]  # who loops does not loop for ever
        assert 50 < seen["turns"] <= 100  # nor do two for each other
        assert readings["child_ns"] == 0 and 1_000_000 <= readings["after_ns"] < 1_100_000  # one clock for all
    else:
        assert 1.5 <= passed_s < 30
        assert 0 < seen["readings"]["child_ns"] < seen["readings"]["after_ns"]
        assert min(seen["ping_ms"]) >= 5 and statistics.median(seen["ping_ms"]) < 50
        lacking = "[Lack(what='Open vSwitch running', mend='service openvswitch-switch start')]"
        assert seen["abilities"] == f"{lacking} []\n"

    received, flows, handlers, *rest = seen["switch"]
    assert received == "3 received" and int(flows) >= 2  # in the kernel's datapath, not in user space
    assert int(handlers) == 1  # the VM has one CPU: none means that nothing new is ever forwarded
    assert rest[:4] == ["stopped", "0", "0", "empty again"]
    assert "up already" in rest[4] and rest[5:] == ["s2", "s3"]  # what is up stays, what is broken is new


class Output(io.BytesIO):
    """Output of a VM, and the moment at which there is any."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.begun.set()
        return super().write(data)


def test_two_vms_side_by_side_have_nothing_in_common(kernel_image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "CORE_MARK", f"longhaul-test-{os.getpid()}-core-")
    # Programs and not processes are counted: threads of the kernel, which come and go, run none.
    script = "echo $1 | tee /tmp/mine; read go; echo $go; cat /tmp/mine; readlink /proc/[0-9]*/exe | grep -c ."
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
    assert (one_said[:3], other_said[:3]) == ([b"a", b"go", b"a"], [b"b", b"go", b"b"])
    assert one_said[3] == other_said[3] and int(one_said[3]) > 1
    cores = os.sched_getaffinity(0)
    assert len(allowed) > 4 and len(set(allowed)) == min(2, len(cores))  # each stays on a core of its own
    assert len(cores) == 1 or all(len(one) == 1 and cores.issuperset(one) for one in allowed)


@pytest.mark.parametrize(
    ("command", "status"), [(("test", "-t", "1"), 1), (("sh", "-c", "kill -KILL $$"), 137), (("no-such",), 127)]
)
def test_exit_statuses_pass_through_and_a_pipe_is_no_terminal(vm: VM, command: tuple[str, ...], status: int) -> None:
    assert vm.run("--clock", "wall", "--", *command, stdin=subprocess.DEVNULL).status == status


def test_a_reader_that_leaves_ends_the_vm_as_in_any_pipeline(vm: VM) -> None:
    with vm.start("--", "yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=10) == 128 + signal.SIGPIPE


def test_boots_are_alike_with_seven_switches_at_a_hundred_gigabit_and_registers_survive(vm: VM) -> None:
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
        # Vector registers survive faults, signals and other processes:
        assert registers.split() == ["avx512" if "avx512f" in flags else "avx", "200"]
    assert boots[0] == boots[1] and boots[0]["drops"] == 0
    # Of a packet's 1500 bytes 1448 are payload (IP 20, TCP 20 and its timestamps 12), and HTB counts 1514.
    ideal_s = 8 * 8 * 2**20 / (100e9 * 1448 / 1514)
    steady = boots[0]["seconds"][4:]  # the congestion window has grown
    assert [statistics.median(steady), max(steady)] == pytest.approx([ideal_s] * 2, rel=0.01)


def test_what_is_sent_without_a_copy_is_not_copied_when_it_arrives_and_free_once_it_is_read(vm: VM) -> None:
    ended = vm.run("--", sys.executable, str(PROJECT / "tests" / "guest" / "zerocopy.py"))
    assert (ended.status, ended.out) == (0, "[]\n[(0, 0, 0)] True\n"), ended.err


def test_a_process_finds_in_its_memory_and_is_told_of_faults_what_it_is_on_this_machine(vm: VM) -> None:
    command = [sys.executable, "-m", "tests.guest.pages"]
    here = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(here)["forks"] == [0] * 6  # pages that are wrong
    assert vm.report("pages") == json.loads(here)
