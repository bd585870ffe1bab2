"""Runs inside the VM, as root: sessions at the prompt that take the VM's kernel for the machine's own.

Open vSwitch is brought up first, as a distribution's service would be; the prompt must then find it. Prints one JSON
object.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pexpect
import psutil

from scenarios.vm import openvswitch

RUN = Path(__file__).parent.parent.parent / "scenarios" / "run.py"
PROMPT = "mininet> "
COLLECTIVES = {"allgather": "64 MB", "allreduce": "64 MB", "alltoall": "64 MB", "broadcast": "64 MB tree"}
SYSCTLS = ("net/core/netdev_max_backlog", "net/ipv4/tcp_mem")


def sh(line: str) -> str:
    return subprocess.run(line.split(), check=True, capture_output=True, text=True).stdout


def state() -> dict[str, Any]:
    """Return everything that a prompt could leave behind."""
    return {
        "bridges": sh("ovs-vsctl list-br"),
        "other_config": sh("ovs-vsctl get Open_vSwitch . other_config").strip(),
        "interfaces": sorted(link["ifname"] for link in json.loads(sh("ip -j link"))),
        "qdiscs": sh("tc qdisc show"),
        "sysctls": [Path("/proc/sys", name).read_text() for name in SYSCTLS],
        "files": sorted(str(path) for path in Path("/run").rglob("*") if path.parts[2] != "openvswitch"),
        "processes": sorted(
            " ".join(one.info["cmdline"]) for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"]
        ),
    }


def sit_down(folder: str) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        sys.executable, [str(RUN), "--cli", "--clock", "wall", "--gpus", "4"],
        cwd=folder, dimensions=(50, 160), encoding="utf-8", timeout=180,
        env={**os.environ, "TERM": "xterm", "XDG_STATE_HOME": f"{folder}/state", "TMPDIR": "/run"},
    )  # fmt: skip


def ask(child: "pexpect.spawn[str]", line: str) -> str:
    child.sendline(line)
    child.expect_exact(PROMPT)
    return str(child.before)


def ended(child: "pexpect.spawn[str]") -> Any:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def main() -> None:
    openvswitch.up()
    sh("ovs-vsctl set Open_vSwitch . other_config:max-idle=12345")
    with tempfile.TemporaryDirectory() as folder:
        seen: dict[str, Any] = {"before": state(), "after": {}, "status": {}}
        child = sit_down(folder)
        child.expect_exact(PROMPT)
        seen["banner"] = str(child.before)
        seen["bridges"] = len(sh("ovs-vsctl list-br").split())
        seen["pingall"] = ask(child, "pingall")
        ask(child, "rate g0>g1 50 Gbit/s")
        seen["iperf"] = ask(child, "iperf g0 g1 3")
        seen["collectives"] = {verb: ask(child, f"{verb} {size}") for verb, size in COLLECTIVES.items()}
        ask(child, "rate g0>g1 1 Gbit/s")
        child.sendline("allgather chunk 640 MB")
        time.sleep(3)
        child.send("\x03")
        child.expect_exact(PROMPT)
        seen["aborted"] = str(child.before)
        child.sendline("exit")
        seen["status"]["exit"] = ended(child)
        seen["after"]["exit"] = state()

        child = sit_down(folder)
        child.expect_exact(PROMPT)
        child.kill(signal.SIGTERM)
        seen["status"]["a signal"] = ended(child)
        seen["after"]["a signal"] = state()

        child = sit_down(folder)
        child.expect_exact("bringing up the controller")
        child.send("\x03")
        seen["status"]["Ctrl-C while it comes up"] = ended(child)
        seen["after"]["Ctrl-C while it comes up"] = state()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
