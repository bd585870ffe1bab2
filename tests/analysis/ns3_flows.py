"""Simulate TCP flows through switches with fair queues in ns-3, in an environment with PyPI's ns3.

`python ns3_flows.py` reads a JSON list of networks from stdin and prints a JSON object per line and network. In a
network, `up_bps` and `down_bps` are the rates of the hosts' cables to and from the switch, `delay_s` is the delay of a
cable, and `flows` are [source, destination, bytes, window in bytes]; all flows connect at one instant. With
`acks_apart`, acknowledgements have separate cables, so fast that they never queue. With `wan_bps`, each half of the
hosts has its own switch, and a cable with these two rates and the delay `wan_delay_s` joins the switches. In the
result, `arrived_s` holds the seconds from that instant to the arrival of each flow's last byte, and `dropped` the
number of dropped packets.
"""

import json
import sys
from typing import Any

from ns import ns

SEGMENT_BYTES, MTU_BYTES = 8948, 9000

ns.cppyy.cppdef(
    """
    namespace flows {
    using namespace ns3;
    std::vector<uint64_t> missing;
    std::vector<double> arrived;
    uint64_t dropped = 0;

    void Arrived(uint32_t flow, Ptr<const Packet> packet, const Address&) {
        missing[flow] -= packet->GetSize();
        if (missing[flow] == 0) arrived[flow] = Simulator::Now().GetSeconds();
    }
    void Dropped(Ptr<const QueueDiscItem>) { dropped++; }
    void Begin(Ptr<BulkSendApplication> sender, uint32_t window) {
        sender->GetSocket()->SetAttribute("SndBufSize", UintegerValue(window));
    }
    void Clear() {
        missing.clear();
        arrived.clear();
        dropped = 0;
    }
    void Add(Ptr<Node> src, Ptr<Node> dst, Ipv4Address to, uint64_t bytes, uint32_t window) {
        uint32_t flow = missing.size();
        uint16_t port = 1000 + flow;
        missing.push_back(bytes);
        arrived.push_back(-1);
        auto sink = CreateObject<PacketSink>();
        sink->SetAttribute("Protocol", TypeIdValue(TcpSocketFactory::GetTypeId()));
        sink->SetAttribute("Local", AddressValue(InetSocketAddress(Ipv4Address::GetAny(), port)));
        sink->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Arrived, flow));
        dst->AddApplication(sink);
        auto sender = CreateObject<BulkSendApplication>();
        sender->SetAttribute("Protocol", TypeIdValue(TcpSocketFactory::GetTypeId()));
        sender->SetAttribute("Remote", AddressValue(InetSocketAddress(to, port)));
        sender->SetAttribute("MaxBytes", UintegerValue(bytes));
        sender->SetAttribute("SendSize", UintegerValue(SEGMENT));
        sender->SetStartTime(Seconds(1));
        src->AddApplication(sender);
        Simulator::Schedule(Seconds(1) + NanoSeconds(1), &Begin, sender, window);
    }
    void Watch(Ptr<QueueDisc> queue) { queue->TraceConnectWithoutContext("Drop", MakeCallback(&Dropped)); }
    }
    """.replace("SEGMENT", str(SEGMENT_BYTES))
)


def simulated(wanted: dict[str, Any]) -> dict[str, Any]:
    """Simulate one network and return its result.

    Host h has two addresses on its cable to the switch: 10.0.h.1, from which it sends and to which acknowledgements
    return, and 10.1.h.1, to which data are sent. Its cable for acknowledgements has the address 10.2.h.1.
    """
    found, routing = ns.cppyy.gbl.flows, ns.Ipv4StaticRoutingHelper()
    count, subnet, host = len(wanted["up_bps"]), ns.Ipv4Mask("255.255.255.0"), ns.Ipv4Mask("255.255.255.255")
    nodes = ns.NodeContainer()
    nodes.Create(count + 3)
    ns.InternetStackHelper().Install(nodes)
    fair = ns.TrafficControlHelper()
    # CoDel's control law never acts, so that every flow has a queue and the queues are served in turn byte by byte.
    never = ("Target", ns.StringValue("100s"), "Interval", ns.StringValue("100s"))
    room = ("MaxSize", ns.StringValue("1000000p"), "Flows", ns.UintegerValue(65_535))
    fair.SetRootQueueDisc("ns3::FqCoDelQueueDisc", *never, *room)
    ip = [nodes.Get(node).GetObject[ns.Ipv4]() for node in range(count + 3)]
    switches = [count, count + 2] if "wan_bps" in wanted else [count]

    def joined(number: int, switch: int, rates_bps: list[float], net: int, delay_s: float) -> list[int]:
        """Connect a host or a switch to a switch, and return the interface at either end."""
        cable = ns.PointToPointHelper()
        cable.SetQueue("ns3::DropTailQueue", "MaxSize", ns.StringValue("1p"))
        cable.SetDeviceAttribute("Mtu", ns.UintegerValue(MTU_BYTES))
        cable.SetChannelAttribute("Delay", ns.StringValue(f"{round(delay_s * 1e9)}ns"))
        devices = cable.Install(nodes.Get(number), nodes.Get(switch))
        queues = fair.Install(devices)
        for end, rate_bps in enumerate(rates_bps):
            devices.Get(end).SetAttribute("DataRate", ns.StringValue(f"{round(rate_bps)}bps"))
            found.Watch(queues.Get(end))
        ns.Ipv4AddressHelper(ns.Ipv4Address(f"10.{net}.{number}.0"), subnet).Assign(devices)
        return [ip[node].GetInterfaceForDevice(devices.Get(end)) for end, node in enumerate((number, switch))]

    def route(node: int, to: str, mask: str, over: str, interface: int) -> None:
        table = routing.GetStaticRouting(ip[node])
        table.AddNetworkRouteTo(ns.Ipv4Address(to), ns.Ipv4Mask(mask), ns.Ipv4Address(over), interface)

    if len(switches) > 1:
        ways = joined(*switches, wanted["wan_bps"], 3, wanted["wan_delay_s"])
    for number in range(count):
        site = number * len(switches) // count
        data = joined(
            number, switches[site], [wanted["up_bps"][number], wanted["down_bps"][number]], 0, wanted["delay_s"]
        )
        acks = joined(number, count + 1, [1e12, 1e12], 2, wanted["delay_s"])
        further = ns.Ipv4InterfaceAddress(ns.Ipv4Address(f"10.1.{number}.1"), host)
        further.SetSecondary()
        ip[number].AddAddress(data[0], further)
        route(number, "10.1.0.0", "255.255.0.0", f"10.0.{number}.2", data[0])
        route(switches[site], f"10.1.{number}.1", "255.255.255.255", f"10.0.{number}.1", data[1])
        for other in {*range(len(switches))} - {site}:
            route(switches[other], f"10.1.{number}.1", "255.255.255.255", f"10.3.{count}.{site + 1}", ways[other])
        net, interface = (2, acks[0]) if wanted["acks_apart"] else (0, data[0])
        route(number, "10.0.0.0", "255.255.0.0", f"10.{net}.{number}.2", interface)
        route(count + 1, f"10.0.{number}.1", "255.255.255.255", f"10.2.{number}.1", acks[1])
    found.Clear()
    for src, dst, size, window in wanted["flows"]:
        found.Add(nodes.Get(src), nodes.Get(dst), ns.Ipv4Address(f"10.1.{dst}.1"), size, window)
    ns.Simulator.Stop(ns.Seconds(60))
    ns.Simulator.Run()
    arrived_s = [at - 1 for at in found.arrived]
    ns.Simulator.Destroy()
    return {"arrived_s": arrived_s, "dropped": int(found.dropped)}


def main() -> None:
    tcp = {"SegmentSize": SEGMENT_BYTES, "InitialCwnd": 10_000, "DelAckCount": 1, "RcvBufSize": 100_000_000}
    for name, value in tcp.items():
        ns.Config.SetDefault(f"ns3::TcpSocket::{name}", ns.UintegerValue(value))
    # Acknowledgements arrive at a different interface from the one that has their destination address.
    ns.Config.SetDefault("ns3::Ipv4::StrongEndSystemModel", ns.BooleanValue(False))
    for wanted in json.load(sys.stdin):
        print(json.dumps(simulated(wanted)), flush=True)


if __name__ == "__main__":
    main()
