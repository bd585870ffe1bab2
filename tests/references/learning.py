"""A learning switch for OpenFlow 1.3, an app of the project's launcher: ``python -m tests.references.learning PORT``.

Mininet's tree of 1,024 hosts has 33 switches, and ovs-testcontroller takes 16 (MAX_SWITCHES in its source).
"""

import sys
from typing import Any

import os_ken.lib.packet.packet  # noqa: F401  (a frame is sent by it, and the launcher leaves it out)

from controller import compat

MISSED, LEARNED = 0, 1  # priorities


class Learning(compat.App):  # type: ignore[misc]  # the framework has no types
    """Sends a frame to the port from which its destination was heard, or to all."""

    OFP_VERSIONS = (compat.OFP_VERSION,)

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.heard = dict[tuple[int, bytes], int]()

    @compat.set_ev_cls(compat.ofp_event.EventOFPSwitchFeatures, compat.CONFIG)
    def on_connected(self, event: Any) -> None:
        """Have a switch send what no rule is for."""
        datapath = event.msg.datapath
        add(datapath, MISSED, datapath.ofproto.OFPP_CONTROLLER)

    @compat.set_ev_cls(compat.ofp_event.EventOFPPacketIn, compat.MAIN)
    def on_packet(self, event: Any) -> None:
        """Learn where a frame's source is; add a rule for its destination if that is known."""
        message, datapath = event.msg, event.msg.datapath
        destination, source, port = message.data[:6], message.data[6:12], message.match["in_port"]
        self.heard[datapath.id, source] = port
        out = self.heard.get((datapath.id, destination), datapath.ofproto.OFPP_FLOOD)
        if out != datapath.ofproto.OFPP_FLOOD:
            add(datapath, LEARNED, out, eth_dst=destination.hex(":"))
        actions = [datapath.ofproto_parser.OFPActionOutput(out)]
        kept = datapath.ofproto.OFP_NO_BUFFER
        datapath.send_msg(datapath.ofproto_parser.OFPPacketOut(datapath, kept, port, actions, message.data))


def add(datapath: Any, priority: int, port: int, **match: str) -> None:
    """Add a rule that sends what matches to a port."""
    parser, whole = datapath.ofproto_parser, datapath.ofproto.OFPCML_NO_BUFFER
    send = parser.OFPInstructionActions(datapath.ofproto.OFPIT_APPLY_ACTIONS, [parser.OFPActionOutput(port, whole)])
    rule = parser.OFPFlowMod(datapath, priority=priority, match=parser.OFPMatch(**match), instructions=[send])
    datapath.send_msg(rule)


if __name__ == "__main__":
    compat.hub.joinall(compat.start("tests.references.learning", port=int(sys.argv[1])))
