"""Runs inside the VM: `packetdrill.py BINARY FOLDER exact|own` prints a JSON object with what packetdrill says of the
IPv4 scripts below a folder, {name: {"exact": bool, "own": bool, "packets": [[what, seconds], ...], "why": line}}.

Each script has a network namespace. `exact` is whether it passes within 10 us; `own`, whether with packetdrill's own
tolerance, which is 4 ms and an eighth of the time since the last event. A script that passes exactly is run once.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

# What packetdrill's run_all.py gives a script for IPv4.
ARGUMENTS = (
    *("-v", "--send_omit_free", "--ip_version=ipv4", "--local_ip=192.168.0.1", "--gateway_ip=192.168.0.1"),
    *("--netmask_ip=255.255.0.0", "--remote_ip=192.0.2.1", "-D", "TFO_COOKIE=3021b9d889017eeb"),
    *("-D", "CODE=host_unreachable", "-D", "CMSG_LEVEL_IP=SOL_IP", "-D", "CMSG_TYPE_RECVERR=IP_RECVERR"),
)
EXACT = ["--tolerance_usecs=10", "--tolerance_percent=0"]
LONGEST_S = 180
# The scripts' own set-up starts sysctl some thirty times, which takes most of the wall time.
SYSCTL = 'sysctl() { for one in "${@:2}"; do name=${one%%=*}; echo "${one#*=}" >"/proc/sys/${name//.//}"; done; }\n'
_REASON = re.compile(r"\S+\.pkt:\d+: |assertion|\S+: error")
_PACKET = re.compile(r"(?P<way>inbound|outbound) \w+ packet: +(?P<s>[\d.]+) (?P<flags>\S+) [^(]*\((?P<bytes>\d+)\)")
_PR_SET_TIMERSLACK = 29


def ran(binary: Path, script: Path, *options: str) -> tuple[bool, list[list[Any]], str]:
    """Run a script; return whether it passes, its packets, and the last line that says why not."""
    command = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "-", str(binary), *ARGUMENTS, *options]
    try:
        ended = subprocess.run(
            [*command, script.name],
            cwd=script.parent,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, [], f"it does not end within {LONGEST_S} s"
    packets = [
        [f"{one['way']} {one['flags']} {one['bytes']}", float(one["s"])] for one in _PACKET.finditer(ended.stdout)
    ]
    said = [line.strip() for line in ended.stderr.splitlines() if _REASON.match(line)]
    return ended.returncode == 0, packets, said[-1] if said else f"status {ended.returncode}"


def main(binary: Path, folder: Path, most: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    shorter = Path("/tmp/sysctl.sh")
    shorter.write_text(SYSCTL)
    os.environ["BASH_ENV"] = str(shorter)
    found = dict[str, Any]()
    for script in sorted(path for path in folder.rglob("*.pkt") if not path.name.endswith("v6.pkt")):
        exact, packets, why = ran(binary, script, *EXACT) if most == "exact" else (False, [], "")
        own = exact
        if not exact:
            own, packets, why = ran(binary, script)
        found[str(script.relative_to(folder))] = {"exact": exact, "own": own, "packets": packets, "why": why}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
