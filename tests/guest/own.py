"""Runs inside a wall-clock VM with Open vSwitch up: experiments on the VM's kernel as if it were the machine's own.

Prints one JSON object: the exit status and output of a run, the exit status of a second run that got SIGTERM midway,
and what is left behind after each of the two.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from scenarios.vm import openvswitch
from tests.conftest import PROJECT

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py"), "--engine", "emulation", "--clock", "wall"]
SETTING = ["--rate-scale", "1/1000", "--chunk", "64 MB", "--modes", "base", "--gpus", "4", "--no-report"]
OURS = ("controller", "scenarios.testbed.__main__", "hosts.agent.launcher", "mnexec")


def sh(line: str) -> str:
    return subprocess.run(line.split(), capture_output=True, text=True, check=True).stdout


def state() -> dict[str, object]:
    """Return everything on this machine that an experiment might leave behind or change."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return {
        "bridges": sh("ovs-vsctl list-br"),
        "cables": sh("ip -br link show type veth"),
        "other_config": sh("ovs-vsctl get Open_vSwitch . other_config"),
        "sysctls": sh("sysctl net.core.netdev_max_backlog net.ipv4.tcp_mem"),
        "processes": [line for line in lines if any(name in line for name in OURS)],
        "files": [str(path) for path in Path("/tmp").glob("longhaul-*/fabric.json")],
    }


def interrupted() -> int:
    """Return the exit status of a run that gets SIGTERM once its network is up and shaped."""
    with subprocess.Popen([*RUN, *SETTING, "--collectives", "500", "--out", "/tmp/second"]) as process:
        until = time.monotonic() + 120
        while not list(Path("/tmp/second").glob("parts/[!.]*")):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        return process.wait(60)


def main() -> None:
    openvswitch.up()
    before = state()
    run = [*RUN, *SETTING, "--collectives", "1", "--out", "/tmp/first", "--json"]
    first = subprocess.run(run, capture_output=True, text=True, check=False)
    after = state()
    status = interrupted()
    said = {"status": first.returncode, "out": first.stdout, "err": first.stderr}
    print(json.dumps({"before": before, "first": said, "after": after, "second": status, "at the end": state()}))


if __name__ == "__main__":
    main()
