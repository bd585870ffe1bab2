"""Runs inside the VM: os-ken's switch tester as an app of the project's launcher, with two Open vSwitch bridges.

``python -m tests.references.openflow_guest DATAPATH_TYPE`` prints a line of JSON for each case: its file's description,
its own, "OK" or "ERROR", and what the tester says of an error.

The tester waits by green threads, so os-ken's hub is loaded here with these, before the launcher loads it. The tester
is used as it is but for three things that are told below.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ["OSKEN_HUB_TYPE"] = "eventlet"

import os_ken.lib.hub
import os_ken.lib.packet.packet  # the tester takes its names from the modules that are loaded
import os_ken.log  # noqa: F401  (it declares an option that the tester reads)
from os_ken import cfg
from os_ken.tests.switch import tester

from controller import compat
from controller.forwarding.switches import SETTLE_S
from scenarios.vm import openvswitch

PORT = 6653
LONGEST_S = 15  # of the 30 s of a stream; a meter's bucket holds what it lets pass in a second, 7 % of that
MOST_PER_S = 200  # packets; 12 streams of those that start have 9 to 100 times as many
BURSTS_S = 0.1  # between bursts, instead of 10 ms
LEFT_OUT = "left out"


class StreamLeftOut(tester.TestError):
    """Raised instead of sending a stream of too many packets."""

    def __init__(self, rate: float) -> None:
        tester.OSKenException.__init__(self, msg=f"{LEFT_OUT}: {rate:g} packets a second")


class SwitchTester(tester.OfTester):
    """The tester, with pauses: a change of rules has taken effect only some time after its barrier, in which the tester
    computes on a real machine, and which takes no time here. Streams are shorter and come in bursts, and those of most
    packets are left out."""

    def _test_initialize_flow(self, datapath: tester.OpenFlowSw) -> None:
        super()._test_initialize_flow(datapath)
        compat.hub.sleep(SETTLE_S)

    def _test_msg_install(self, datapath: tester.OpenFlowSw, message: object) -> None:
        super()._test_msg_install(datapath, message)
        compat.hub.sleep(SETTLE_S)

    def _continuous_packet_send(self, pkt: dict[str, Any]) -> None:
        stream = pkt[tester.KEY_PACKETS]
        if stream[tester.KEY_PKTPS] > MOST_PER_S:
            raise StreamLeftOut(stream[tester.KEY_PKTPS])
        stream[tester.KEY_DURATION_TIME] = min(stream[tester.KEY_DURATION_TIME], LONGEST_S)
        super()._continuous_packet_send(pkt)

    def _test_file_execute(self, testfile: tester.TestFile) -> object:
        kept, info = [], self.logger.info

        def keep(text: str, *values: str) -> None:  # a line with the verdict, and after an error one with the reason
            info(text, *values)
            if values and values[-1] in (tester.TEST_OK, tester.TEST_ERROR):
                kept.append([testfile.description, *values, ""])
            elif text.startswith(" " * 8):
                kept[-1][-1] = values[0]

        self.logger.info = keep
        try:
            return super()._test_file_execute(testfile)
        finally:
            self.logger.info = info
            print(*map(json.dumps, kept), sep="\n", flush=True)


def build(datapath_type: str) -> None:
    """Make the bridges and the three cables between them, as the tester wants them."""
    lines = [f"link add a{n} type veth peer name b{n}\nlink set a{n} up\nlink set b{n} up" for n in (1, 2, 3)]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    words = ["ovs-vsctl"]
    for dpid, (bridge, side) in enumerate((("target", "a"), ("tester", "b")), 1):
        words += f"-- add-br {bridge} -- set bridge {bridge} datapath_type={datapath_type} fail_mode=secure".split()
        words += ["protocols=OpenFlow13", f"other-config:datapath-id={dpid:016x}"]
        for n in (1, 2, 3):
            words += f"-- add-port {bridge} {side}{n} -- set interface {side}{n} ofport_request={n}".split()
        words += f"-- set-controller {bridge} tcp:127.0.0.1:{PORT}".split()
    subprocess.run(words, check=True)


def main() -> None:
    """Run all of the tests for OpenFlow 1.3."""
    openvswitch.up()
    build(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the tester ends its process by this
    cfg.CONF.set_override("dir", str(Path(tester.__file__).parent / "of13"), "test-switch")
    compat.hub.joinall(compat.start("tests.references.openflow_guest", port=PORT))


if __name__ == "__main__":
    tester.CONTINUOUS_THREAD_INTVL = BURSTS_S
    main()
