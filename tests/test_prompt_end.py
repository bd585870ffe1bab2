"""How a session at the prompt ends, in the VM and on a kernel that can do it, and how it begins without a person."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.conftest import NOBODY, PROJECT, VM
from tests.processes import descendants, living
from tests.seated import ANSWER_S, COMING_UP_S, RUN, carried_bps, sit_down

GUEST = str(PROJECT / "tests" / "guest" / "prompt.py")


@pytest.fixture(scope="module")
def on_its_own_kernel() -> dict[str, Any]:
    """What was seen of a session as root on a kernel with Open vSwitch and netem: the VM's, used as the machine."""
    ended = subprocess.run(
        [sys.executable, "-m", "scenarios.vm", "--clock", "wall", "--", sys.executable, GUEST],
        cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT), "SETUPTOOLS_USE_DISTUTILS": "stdlib"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.alone
def test_root_on_a_kernel_that_can_do_it_has_the_network_there(on_its_own_kernel: dict[str, Any]) -> None:
    seen = on_its_own_kernel
    assert "on this machine's own kernel" in seen["banner"]
    assert "0% dropped (12/12 received)" in seen["pingall"]
    assert "ratio" in seen["allgather"]
    assert "aborted" in seen["aborted"]
    assert carried_bps(seen["iperf"]) > 40e6
    assert len(seen["bridges while it is up"]) == 12


@pytest.mark.parametrize("end", ["exit", "a signal", "Ctrl-C while it comes up"])
@pytest.mark.alone
def test_whatever_ends_it_nothing_is_left_on_that_kernel(on_its_own_kernel: dict[str, Any], end: str) -> None:
    seen = on_its_own_kernel
    assert seen["status"] == {"exit": 0, "a signal": 143, "Ctrl-C while it comes up": 130}
    assert seen["after"][end] == seen["before"]


def test_a_signal_ends_the_vm_with_all_that_is_in_it(vm: VM) -> None:
    child = sit_down(vm)
    child.expect("bringing up the shaping", timeout=COMING_UP_S)
    below = descendants(child.pid)
    assert below
    child.kill(signal.SIGTERM)
    child.expect("run.py: interrupted", timeout=ANSWER_S)
    child.expect(pexpect.EOF, timeout=ANSWER_S)
    child.close()
    assert child.exitstatus == 143
    assert not set(below) & living().keys()
    assert not list((vm.folder / "results").iterdir())


LOST = """
import signal, threading, time
from scenarios.prompt import session
signal.signal(signal.SIGTERM, session._end)
session._insist()
def strike():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # to another thread: it wakes no reader of a line
threading.Thread(target=strike, daemon=True).start()
input()
"""


def test_a_signal_that_does_not_wake_the_prompt_is_repeated() -> None:
    with subprocess.Popen([sys.executable, "-c", LOST], cwd=PROJECT, stdin=subprocess.PIPE) as child:
        try:
            assert child.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            child.kill()


def test_commands_may_come_from_a_file(vm: VM) -> None:
    become: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    ended = subprocess.run(
        [sys.executable, RUN, "--cli", "--gpus", "4"],
        input="g0 ping -c 1 g2\nnodes\nallgather 64 MB\n",
        env=vm.environment, cwd=vm.folder, capture_output=True, text=True, check=False, timeout=COMING_UP_S, **become,
    )  # fmt: skip
    assert ended.returncode == 0
    assert " 0% packet loss" in ended.stdout and "g0 g1 g2 g3" in ended.stdout and "ratio" in ended.stdout
    assert "bringing up the agents" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cli", "--json"), "--json is beside --cli"),
        (("--cli", "--rate-scale", "2/3"), '--rate-scale: "2/3" is no rate scale: allowed is 1/N'),
        (("--cli", "--gpus", "7"), "--gpus"),
        (("--rate-scale", "1/1000"), "--rate-scale: 1/1000 is for the wall clock: allowed with the virtual clock is 1"),
    ],
)
def test_what_the_command_refuses(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, RUN, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert words in ended.stderr and ended.stdout == ""
    assert list(tmp_path.iterdir()) == []
