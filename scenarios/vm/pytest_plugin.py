"""A pytest plugin: the fixture `virtual_hosts` runs commands on hosts in virtual time.

A project's conftest.py has ``pytest_plugins = ["scenarios.vm.pytest_plugin"]``, and a test calls the fixture:

    def test_a_client_gives_up_after_an_hour(virtual_hosts):
        ended = virtual_hosts("python3", "client.py", hosts=2, link="20 Mbit/s, 300 ms")
        assert ended.returncode == 0 and ended.stdout == "gave up after 3600.0 s\\n"
"""

import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def virtual_hosts() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs a command on the first of some hosts in a new VM, and returns what
    ``subprocess.run`` does, with the output as text."""
    return run_on_hosts


def run_on_hosts(
    *command: str, hosts: int = 2, link: str | None = None, memory: str | None = None, timeout_s: float | None = 600.0
) -> "subprocess.CompletedProcess[str]":
    """Run a command on the first of this many hosts, joined by a link such as "20 Mbit/s, 300 ms".

    `memory` is the VM's, such as "4 GiB", and `timeout_s` a limit of wall time. Raises subprocess.TimeoutExpired.
    """
    options = ["--hosts", str(hosts)]
    options += [] if link is None else ["--link", link]
    options += [] if memory is None else ["--memory", memory]
    return subprocess.run(
        [sys.executable, "-m", "scenarios.vm", *options, "--", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
