"""Open vSwitch inside the VM: ``up`` starts it with a database of its own, ``down`` stops it.

Both are for the VM, never for the host: the host's Open vSwitch is neither used nor touched. From a shell,
``python -m scenarios.vm.openvswitch up`` (or ``down``). ``awake`` makes its switches reconnect to a controller without
delay, in the VM and on the host.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scenarios.vm.errors import VMError

RUN = Path("/run/openvswitch")
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")

# ovs-vswitchd counts CPUs once its clock, which starts with the machine, has passed ten seconds, and until then
# assumes none (count_cpu_cores in lib/ovs-thread.c): a switch made sooner has no thread to handle packets that
# the kernel has no flow for, and forwards nothing.
_CPUS_COUNTED_S = 10
_STOP_S = 10
_START_S = 120  # of each of its programs, which detach at once
_DAEMONS = ("ovs-vswitchd", "ovsdb-server")

# ovs-vswitchd (3.1 to 3.7, at least) does not wait for the timers of connections that are to be made again
# (`ofservice_wait` in ofproto/connmgr.c): where nothing else happens it looks at them when it gathers statistics, every
# five seconds. Any connection to its control socket wakes it.
_WAKE_EVERY_S = 0.1
_WAKE_LIMIT_S = 1.0


def up() -> bool:
    """Start Open vSwitch with an empty database, and return once its switches can forward.

    Returns False, and leaves all as it is, where it is up already; what is left of one that has lost a part is stopped
    first. Raises VMError with a sentence when a part of it does not start.
    """
    _check_in_vm()
    if all(map(_process, _DAEMONS)):
        return False
    down()
    RUN.mkdir(exist_ok=True)
    database = RUN / "conf.db"
    _run("ovsdb-tool", "create", str(database), str(SCHEMA))
    _run("ovsdb-server", str(database), f"--remote=punix:{RUN}/db.sock", *_daemon("ovsdb-server"))
    _run("ovs-vsctl", "--no-wait", "init")
    if "time-travel=" in Path("/proc/cmdline").read_text():
        time.sleep(max(0.0, _CPUS_COUNTED_S + 0.1 - time.clock_gettime(time.CLOCK_MONOTONIC)))
        _run("ovs-vswitchd", f"unix:{RUN}/db.sock", *_daemon("ovs-vswitchd"))
    else:  # where sleeping costs real time, set the daemon's own clock forward, as its tests do
        _run("ovs-vswitchd", f"unix:{RUN}/db.sock", "--enable-dummy", *_daemon("ovs-vswitchd"))
        _run("ovs-appctl", "-t", "ovs-vswitchd", "time/warp", str(1000 * (_CPUS_COUNTED_S + 1)))
    return True


def down() -> None:
    """Stop Open vSwitch, its switches with it, and remove its database; does nothing where it is not up."""
    _check_in_vm()
    for daemon in _DAEMONS:
        process = _process(daemon)
        if process is None:
            continue
        # --cleanup takes the kernel's datapath and its ports away too.
        _run("ovs-appctl", "-t", daemon, "exit", *(["--cleanup"] if daemon == "ovs-vswitchd" else []))
        deadline = time.monotonic() + _STOP_S
        while process.exists():  # it answers before it ends
            if time.monotonic() > deadline:
                raise VMError(f"{daemon} did not stop within {_STOP_S} s")
            time.sleep(0.01)
    shutil.rmtree(RUN, ignore_errors=True)


def _check_in_vm() -> None:
    if Path("/proc/sys/kernel/hostname").read_text().strip() != "longhaul" or os.getuid() != 0:
        raise VMError("Open vSwitch is brought up and down inside the VM only: run this by `python -m scenarios.vm`")


def _process(daemon: str) -> Path | None:
    """Where /proc has a daemon that has not ended."""
    try:
        process = Path("/proc", (RUN / f"{daemon}.pid").read_text().strip())
        return process if (process / "comm").read_text().strip() == daemon else None
    except OSError:
        return None


def _daemon(name: str) -> tuple[str, ...]:
    return ("--detach", "--no-chdir", f"--pidfile={RUN}/{name}.pid", f"--log-file={RUN}/{name}.log", "-vconsole:off")


def _run(*command: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_S)
    except subprocess.TimeoutExpired:
        raise VMError(f"{command[0]} has not ended after {_START_S} s") from None
    except FileNotFoundError:
        raise VMError(f"{command[0]} is not installed: run `bash scenarios/setup.sh`") from None
    if ended.returncode != 0:
        words = (ended.stderr or ended.stdout).strip().splitlines()
        raise VMError(f"{command[0]} failed with status {ended.returncode}: {words[-1] if words else 'no output'}")


def take_turns(controller_pid: int) -> None:
    """Have Open vSwitch look over the kernel's flows after all that this controller sends to several switches at one
    instant: the controller, and the thread that reads what it sends, run before any other. Raises OSError.

    They are looked over no sooner than 5 ms after the last time (`udpif_revalidator` in ofproto-dpif-upcall.c), so
    what a switch is told after that has begun is heeded that much later.
    """
    threads = [int(thread.name) for thread in Path("/proc", str(controller_pid), "task").iterdir()]
    for thread in (*threads, int((RUN / "ovs-vswitchd.pid").read_text())):
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))


@contextmanager
def awake() -> Iterator[None]:
    """Have ovs-vswitchd look at its timers ten times a second for the time of the context, if it can be found."""
    done = threading.Event()

    def wake() -> None:
        while not done.wait(_WAKE_EVERY_S):
            with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as control:
                control.settimeout(_WAKE_LIMIT_S)
                number = int((RUN / "ovs-vswitchd.pid").read_text())
                control.connect(str(RUN / f"ovs-vswitchd.{number}.ctl"))

    thread = threading.Thread(target=wake, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main(arguments: list[str]) -> int:
    """Bring Open vSwitch up or down, unless it is already; return an exit status."""
    actions = {"up": up, "down": down}
    if len(arguments) != 1 or arguments[0] not in actions:
        print(f"usage: python -m scenarios.vm.openvswitch up|down, not {' '.join(arguments)!r}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if actions[arguments[0]]() is False:
            print("longhaul: Open vSwitch is up already", file=sys.stderr)
    except VMError as error:
        print(f"longhaul: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
