"""Open vSwitch kept awake while its switches look for a controller.

ovs-vswitchd (3.1 to 3.7, at least) does not wait for the timers of connections that are to be made again
(`ofservice_wait` in ofproto/connmgr.c): where nothing else happens it looks at them when it gathers statistics, every
five seconds.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scenarios.vm.openvswitch import RUN

_EVERY_S = 0.1
_PATIENCE_S = 1.0


@contextmanager
def awake() -> Iterator[None]:
    """Have ovs-vswitchd look at its timers ten times a second for the time of the context, if it can be found."""
    done = threading.Event()
    thread = threading.Thread(target=_wake_until, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _wake_until(done: threading.Event) -> None:
    while not done.wait(_EVERY_S):
        with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as control:
            control.settimeout(_PATIENCE_S)
            number = int((RUN / "ovs-vswitchd.pid").read_text())
            control.connect(str(RUN / f"ovs-vswitchd.{number}.ctl"))  # it wakes for whoever calls, and nothing is said
