"""Open vSwitch inside the VM: ``up`` starts it with a new database, ``down`` stops it.

Both work in the VM only; the host's Open vSwitch is neither used nor changed. From a shell, use
``python -m scenarios.vm.openvswitch up`` (or ``down``). ``waking_vswitchd``, in the VM and on the
host, makes switches reconnect to a controller without delay.
"""

import os
import resource
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

# ovs-vswitchd counts CPUs only once its clock, which starts with the machine, has passed ten seconds; before that it
# assumes none (count_cpu_cores in lib/ovs-thread.c). A switch created earlier has no thread to handle packets without a
# flow in the kernel, and forwards nothing.
_CPUS_COUNTED_S = 10
_STOP_S = 10
_START_S = 120  # how long each program may run; the daemons detach at once
_DAEMONS = ("ovs-vswitchd", "ovsdb-server")

# ovs-vswitchd (at least 3.1 to 3.7) does not wake up for the timers by which it reconnects (`ofservice_wait` in
# ofproto/connmgr.c): if nothing else happens, it checks them when it gathers statistics, every five seconds. Any
# connection to its control socket wakes it.
_COUNTED_S = 0.02  # revalidations are at least 5 ms apart
_WAKE_EVERY_S = 0.1
_WAKE_LIMIT_S = 1.0


def up() -> bool:
    """Start Open vSwitch with an empty database, and return True once switches can forward.

    If it is already up, change nothing and return False; if only one of its daemons runs, that one is stopped first.
    Raises VMError with a sentence if a daemon does not start.
    """
    _check_in_vm()
    if all(map(_running, _DAEMONS)):
        return False
    down()
    RUN.mkdir(exist_ok=True)
    database = RUN / "conf.db"
    _run("ovsdb-tool", "create", str(database), str(SCHEMA))
    _run("ovsdb-server", str(database), f"--remote=punix:{RUN}/db.sock", *_daemon_options("ovsdb-server"))
    _run("ovs-vsctl", "--no-wait", "init")
    if "time-travel=" in Path("/proc/cmdline").read_text():
        time.sleep(max(0.0, _CPUS_COUNTED_S + 0.1 - time.clock_gettime(time.CLOCK_MONOTONIC)))
        _run("ovs-vswitchd", f"unix:{RUN}/db.sock", *_daemon_options("ovs-vswitchd"))
    else:  # sleeping would take real time: set the daemon's own clock forward, as its tests do
        _run("ovs-vswitchd", f"unix:{RUN}/db.sock", "--enable-dummy", *_daemon_options("ovs-vswitchd"))
        _run("ovs-appctl", "-t", "ovs-vswitchd", "time/warp", str(1000 * (_CPUS_COUNTED_S + 1)))
    return True


def down() -> None:
    """Stop Open vSwitch with its switches, and remove its database; does nothing if it is not up."""
    _check_in_vm()
    for daemon in _DAEMONS:
        process = _running(daemon)
        if process is None:
            continue
        # --cleanup also removes the kernel's datapath and its ports.
        _run("ovs-appctl", "-t", daemon, "exit", *(["--cleanup"] if daemon == "ovs-vswitchd" else []))
        deadline = time.monotonic() + _STOP_S
        while process.exists():  # the daemon answers the command before it ends
            if time.monotonic() > deadline:
                raise VMError(f"{daemon} did not stop within {_STOP_S} s")
            time.sleep(0.01)
    shutil.rmtree(RUN, ignore_errors=True)


def _check_in_vm() -> None:
    if Path("/proc/sys/kernel/hostname").read_text().strip() != "longhaul" or os.getuid() != 0:
        raise VMError(
            "Open vSwitch can be started and stopped inside the VM only: run this by `python -m scenarios.vm`"
        )


def _running(daemon: str) -> Path | None:
    """Return the folder in /proc of a running daemon, or None if it does not run."""
    try:
        process = Path("/proc", (RUN / f"{daemon}.pid").read_text().strip())
        return process if (process / "comm").read_text().strip() == daemon else None
    except OSError:
        return None


def _daemon_options(name: str) -> tuple[str, ...]:
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


def await_reconfigured() -> None:
    """Wait until Open vSwitch has done all that changes of its ports' links make it do.

    It configures all bridges once such a change is in its queue, and only then forgets what it knew of the ports. So it
    may be the next configuration that removes the ingress qdiscs of these ports: it is made to configure twice. Raises
    VMError.
    """
    for number in range(2):
        _run("ovs-vsctl", "--timeout=10", "set", "Open_vSwitch", ".", f"external_ids:longhaul-links={number}")


def prioritize_controller(controller_pid: int) -> None:
    """Give real-time priority to the controller and to Open vSwitch's main thread, which reads its messages.

    Open vSwitch then revalidates the kernel's flows after it has received everything that the controller sends to
    several switches at one instant. Revalidations are at least 5 ms apart (udpif_revalidator in ofproto-dpif-upcall.c),
    so a message that comes after one has begun would take effect that much later. Raises OSError.
    """
    threads = [int(thread.name) for thread in Path("/proc", str(controller_pid), "task").iterdir()]
    for thread in (*threads, int((RUN / "ovs-vswitchd.pid").read_text())):
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))


def prioritize_handlers() -> None:
    """Give real-time priority to the threads of Open vSwitch that handle packets without a flow in the kernel.

    In virtual time a program sends any number of packets at one instant. With this priority, the first of them has a
    flow before the second one is sent; otherwise all would go to user space, and most would not fit the socket's
    buffer. Raises OSError.
    """
    for thread in Path("/proc", (RUN / "ovs-vswitchd.pid").read_text().strip(), "task").iterdir():
        if (thread / "comm").read_text().startswith("handler"):
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))


def count_packets(switch: str) -> None:
    """Have the rules of all switches count every packet that was forwarded before. `switch` is any of them.

    The kernel counts the packets of its flows, and ovs-vswitchd adds them to its rules only when it revalidates these
    flows: when rules or ports change, and at a prompt by time (`topologies.mininet_network`). A change of a setting
    that only switches with learnt addresses heed makes it revalidate. Raises VMError.
    """
    key = "other_config:forward-bpdu"
    is_on = subprocess.run(
        ["ovs-vsctl", "--timeout=10", "--if-exists", "get", "Bridge", switch, key],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    _run("ovs-vsctl", "--timeout=10", "set", "Bridge", switch, f"{key}={'false' if 'true' in is_on else 'true'}")
    time.sleep(_COUNTED_S)


@contextmanager
def waking_vswitchd() -> Iterator[None]:
    """Wake ovs-vswitchd ten times a second within the context, so that it checks its timers; no error if it is down."""
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
    """Start or stop Open vSwitch; return an exit status."""
    actions = {"up": up, "down": down}
    if len(arguments) != 1 or arguments[0] not in actions:
        print(f"usage: python -m scenarios.vm.openvswitch up|down, not {' '.join(arguments)!r}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.default_int_handler)
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # the daemons have several for each port
    try:
        if actions[arguments[0]]() is False:
            print("longhaul: Open vSwitch is up already", file=sys.stderr)
    except VMError as error:
        print(f"longhaul: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
