"""Runs inside the VM: `tc_testing.py FOLDER FILE...` runs these files of tests with the kernel's tc-testing.

Prints a JSON object, {file: {test: [ok, why]}}, in which `ok` is null for a test that was skipped."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEVICE = "flower0"  # where a test needs a device that exists
_LINE = re.compile(r"(not )?ok \d+ (\w+) - (.*?)(?: # skipped - (.*))?")


def results(tap: str) -> dict[str, tuple[bool | None, str]]:
    """Return how every test of a report ended, by its number and name, and what the report says of it."""
    found = dict[str, tuple[bool | None, str]]()
    name = ""
    for line in tap.splitlines():
        if match := _LINE.fullmatch(line):
            failed, number, title, skipped = match.groups()
            name = f"{number} {title}"
            found[name] = (None if skipped is not None else not failed, skipped or "")
        elif name and line.strip() and not found[name][1]:
            found[name] = (found[name][0], line.strip())
    return found


def main(folder: Path, *files: str) -> None:
    time.sleep(0.01)  # until the first tick, 1 ms after boot, timers are coarse, and tc computes other default bursts
    subprocess.run(["ip", "link", "add", DEVICE, "type", "dummy"], check=True)
    report = Path("/tmp/report.tap")
    found = dict[str, Any]()
    for file in files:
        report.unlink(missing_ok=True)
        command = [sys.executable, "tdc.py", "-f", f"tc-tests/{file}.json", "-d", DEVICE, "--outfile", str(report)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(f"{file}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
        found[file] = results(report.read_text())
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
