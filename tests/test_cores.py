"""Every VM has a core of its own, as long as there are some."""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from scenarios.vm import cores
from tests.conftest import PROJECT, VM

ALLOWED = os.sched_getaffinity(0)
pytestmark = [
    pytest.mark.alone,  # the cores are the machine's
    pytest.mark.skipif(len(ALLOWED) < 2, reason="this machine gives the tests one core"),
]
HOLD = "from scenarios.vm import cores\nwith cores.taken() as core: print(core, flush=True); input()"


def test_nobody_gets_a_core_that_another_has() -> None:
    with ExitStack() as stack:
        found = [stack.enter_context(cores.taken()) for _ in range(len(ALLOWED) + 1)]
    assert set(found[:-1]) == ALLOWED and found[-1] is None
    with cores.taken() as again:
        assert again in ALLOWED


def test_the_idlest_is_taken() -> None:
    busy, idle = sorted(ALLOWED)[:2]
    for first in (idle, busy):
        counts = iter([dict.fromkeys(ALLOWED, 7), dict.fromkeys(ALLOWED, 8) | {first: 12}])
        with cores.taken(lambda counts=counts: next(counts)) as core:  # type: ignore[misc]
            assert core == first


def test_the_core_of_one_who_was_killed_is_free() -> None:
    with ExitStack() as stack:
        others = [stack.enter_context(cores.taken()) for _ in range(len(ALLOWED) - 1)]
        with subprocess.Popen([sys.executable, "-c", HOLD], cwd=PROJECT, stdin=-1, stdout=-1) as holder:
            assert holder.stdout is not None
            (core,) = {int(holder.stdout.readline())} - set(others)
            with cores.taken() as none:
                assert none is None
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        with cores.taken() as freed:
            assert freed == core


def test_every_process_of_a_vm_stays_on_its_core(vm: VM, kernel_image: Path) -> None:
    script = "echo up; read go"
    both = [vm.start("--memory", "512 MiB", "--", "sh", "-c", script) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if str(kernel_image).encode() in (path / "cmdline").read_bytes():
                    status = (path / "status").read_text()
                    found += re.findall(r"^Cpus_allowed_list:\t(.*)$", status, re.MULTILINE)
        for process in both:
            process.communicate(b"go\n", timeout=60)
    finally:
        for process in both:
            process.kill()
    assert len(found) > 4 and len(set(found)) == 2
    assert {int(core) for core in found} <= ALLOWED
