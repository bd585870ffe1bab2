"""The network in the VM: it is the declared fabric, its links have their rates and delays, and it leaves nothing.

tests/guest/network.py runs inside and reports the output of ovs-vsctl, ovs-ofctl, ip and tc, which these tests compare
with the fabric.
"""

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.conftest import PROJECT, VM
from tests.fakes.mn import run_mn
from tests.guest import isolation
from tests.guest.network import CHUNK_BYTES, MANY
from tests.guest.network import UNEQUAL as UNEQUAL_SPEC
from topologies.conditions.sampler import ConditionsSpec, delays_s
from topologies.errors import FabricError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.mininet_topo import LonghaulTopo
from topologies.shaping.classes import Shaping

Report = dict[str, Any]
UNEQUAL, DEFAULT = build_fabric(UNEQUAL_SPEC), build_fabric(FabricSpec())


@pytest.fixture(scope="module")
def report(module_vm: VM) -> Report:
    """The report of tests/guest/network.py from one boot."""
    found: Report = module_vm.report("network")
    return found


@pytest.fixture(scope="module")
def built(report: Report) -> Report:
    """The report on the unequal fabric while it was up."""
    found: Report = report["topology"]["built"]
    return found


def rows(table: Report) -> list[Report]:
    """Return the rows of a table in ovs-vsctl's JSON as dictionaries, with its maps and sets as Python values."""

    def plain(value: Any) -> Any:
        if isinstance(value, list) and value[0] == "map":
            return dict(value[1])
        return value[1] if isinstance(value, list) else value

    return [dict(zip(table["headings"], map(plain, row), strict=True)) for row in table["data"]]


# --- the fabric as built --------------------------------------------------------------------------------------------


def test_the_bridges_are_the_declared_switches(built: Report) -> None:
    bridges = {bridge["name"]: bridge for bridge in rows(built["bridges"])}
    assert bridges.keys() == {switch.name for switch in UNEQUAL.switches}
    for switch in UNEQUAL.switches:
        bridge = bridges[switch.name]
        assert int(bridge["datapath_id"], 16) == switch.dpid
        assert (bridge["fail_mode"], bridge["protocols"], bridge["datapath_type"]) == ("secure", "OpenFlow13", "")
    assert {controller["target"] for controller in rows(built["controllers"])} == {"tcp:127.0.0.1:6653"}


def test_the_ports_have_their_declared_openflow_numbers(built: Report) -> None:
    for switch in UNEQUAL.switches:
        shown = built["openflow"][switch.name]
        assert "(OF1.3)" in shown and f"dpid:{switch.dpid:016x}" in shown
        ports = {int(number): name for number, name in re.findall(r"^ (\d+)\((.+?)\): addr", shown, re.MULTILINE)}
        assert ports == {port.number: port.interface for port in switch.ports}
        states = re.findall(r"^ +(\d+)\(.*\n.*\n +state: +(\w+)", shown, re.MULTILINE)
        assert len(states) == len(ports) and {state for _, state in states} == {"LIVE"}
    assert not [row["name"] for row in rows(built["ports"]) if row["error"] != []]


def test_every_cable_connects_its_declared_ports_and_every_interface_has_mtu_9000(built: Report) -> None:
    links = {link["ifname"]: link for link in built["links"]}
    interface = {(s.name, port.peer): port.interface for s in UNEQUAL.switches for port in s.ports}
    for cable in UNEQUAL.cables:
        near = interface.get((cable.a, cable.b))
        far = interface[cable.b, cable.a]
        if near is not None:
            assert links[far]["link"] == near and links[near]["link"] == far
        for name in filter(None, (near, far)):
            assert links[name]["linkinfo"]["info_kind"] == "veth"
            assert links[name]["linkinfo"]["info_slave_kind"] == "openvswitch"
            assert (links[name]["mtu"], "UP" in links[name]["flags"]) == (9000, True)
    addresses = [links[name]["address"] for name in (*interface.values(), *(s.name for s in UNEQUAL.switches))]
    assert {address[:2] for address in addresses} == {"06", "0a"}  # fixed, not random, so that every boot is the same
    assert len(set(addresses)) == len(addresses)


def test_every_gpu_has_its_addresses_and_a_permanent_arp_entry_for_every_other(built: Report) -> None:
    assert len(built["hosts"]) == len(UNEQUAL.gpus)
    for gpu, host in zip(UNEQUAL.gpus, built["hosts"], strict=True):
        (own,) = [link for link in host["addr"] if link["ifname"] == gpu.interface]
        assert (own["address"], own["mtu"], own["operstate"]) == (gpu.mac, 9000, "UP")
        assert [(a["local"], a["prefixlen"]) for a in own["addr_info"]] == [(gpu.ip, 8)]
        known = {(entry["dst"], entry["lladdr"], entry["state"][0]) for entry in host["neigh"]}
        assert known == {(other.ip, other.mac, "PERMANENT") for other in UNEQUAL.gpus if other is not gpu}


def test_mininets_objects_match_the_fabric_and_its_commands_run(built: Report) -> None:
    seen = built["mininet"]
    assert [tuple(host) for host in seen["hosts"]] == [(gpu.name, gpu.ip, gpu.mac) for gpu in UNEQUAL.gpus]
    assert set(seen["switches"]) == {switch.name for switch in UNEQUAL.switches}
    cables = [sorted((f"{c.a}-eth{c.a_port}", f"{c.b}-eth{c.b_port}")) for c in UNEQUAL.cables]
    assert seen["links"] == sorted(cables)
    assert seen["command"][1:] == ["UP", "10.0.0.2/8"]
    assert seen["popen"][2] == "02:00:00:00:00:01"
    assert seen["switch_command"] == ["42"]


def test_a_stopped_network_leaves_no_devices_or_processes_and_can_start_again(report: Report) -> None:
    assert set(report["topology"]["built"]["again"]) == {switch.name for switch in UNEQUAL.switches}
    before, after = report["topology"]["before"], report["topology"]["after"]
    assert after["bridges"] == [] and after["interfaces"] == before["interfaces"] == ["lo"]
    assert after["processes"] == before["processes"]


def test_a_network_that_cannot_be_built_gives_the_reason_and_leaves_nothing_behind(report: Report) -> None:
    missing = report["missing"]
    assert missing["error"].startswith("Open vSwitch does not answer, is it running? (ovs-vsctl failed with status ")
    assert missing["before"] == missing["after"]


# --- the shaping in the kernel --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shaped(report: Report) -> Report:
    found: Report = report["shaped"]
    return found


def rate_bps(name: str) -> float:
    """Return the first rate that tests/guest/network.py gives a link."""
    return 20e9 + 1e9 * next(link.index for link in DEFAULT.links if link.name == name)


def test_tc_shows_every_class_with_the_rate_of_its_link(shaped: Report) -> None:
    rates = np.array([rate_bps(link.name) for link in DEFAULT.links])
    wanted = Shaping(fabric=DEFAULT, delays_s=delays_s(DEFAULT, ConditionsSpec())).wanted(rates)
    factor = {"Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
    found = {}
    for port, text in shaped["classes"].items():
        for minor, rate, unit, ceil in re.findall(r"^class htb 1:(\w+) .* rate (\d+)(\wbit) ceil (\S+) ", text, re.M):
            found[port, int(minor, 16)] = float(rate) * factor[unit]
            assert ceil == rate + unit
    assert found.keys() == wanted.keys()
    for key, rate in found.items():  # tc truncates the printed rate to megabits
        assert 0 <= 8 * wanted[key] - rate < 1e6


def test_every_netem_queue_has_its_links_delay_and_a_large_limit(shaped: Report) -> None:
    wan = {(link.src, link.dst) for link in DEFAULT.links if link.kind == "wan"}
    ports = {port.interface for s in DEFAULT.switches for port in s.ports if (s.name, port.peer) in wan}
    netems = [qdisc for qdisc in shaped["qdiscs"] if qdisc["kind"] == "netem"]
    assert len(netems) == 96 and len({qdisc["dev"] for qdisc in netems} & ports) == len(ports)
    for qdisc in netems:
        wanted_s = 10e-6 if qdisc["dev"] in ports else 0.7e-6
        # The kernel truncates a delay to ticks of 64 ns, and tc 6.1 prints whole microseconds of that.
        assert wanted_s - 1.07e-6 < qdisc["options"]["delay"]["delay"] <= wanted_s
        assert qdisc["options"]["limit"] >= 1_000_000


@pytest.mark.parametrize(
    ("case", "links", "changed_bps", "alpha_s"),
    [
        ("one leaf", ("g0>g1",), None, 0.7e-6),
        ("spine 0", ("g0>g3",), None, 0.7e-6),
        ("spine 1", ("g0>g2",), None, 0.7e-6),
        ("wan", ("g3>s0b0", "s0b0>s1b1", "s1b1>g5"), None, 11.4e-6),
        ("one leaf, changed", (), 123_456_789_012, 0.7e-6),
        ("wan, changed", (), 11e9, 11.4e-6),
        ("wan, 3 ms", ("g3>s0b0", "s0b0>s1b1", "s1b1>g5"), None, 3.0014e-3),
    ],
)
def test_a_chunk_takes_its_paths_delay_plus_its_size_over_the_slowest_links_rate(
    shaped: Report, case: str, links: tuple[str, ...], changed_bps: float | None, alpha_s: float
) -> None:
    slowest = changed_bps or min(rate_bps(name) for name in links)
    expected = alpha_s + 8 * CHUNK_BYTES / slowest
    assert shaped["seconds"][case] == pytest.approx(expected, rel=0.003)


def test_a_rate_changed_by_another_program_is_detected(shaped: Report) -> None:
    error = shaped["meddled"]
    assert "class 1:1 of port s0l0-eth2 " in error and "124367400104 bit/s" in error and "98000000000 bit/s" in error


@pytest.mark.parametrize(
    ("port", "kinds", "kinds_after"),
    [
        ("s0l0-eth2", {"htb": 1, "netem": 3}, {"htb": 1, "pfifo": 3}),
        ("s0l0-eth3", {"netem": 1}, {"noqueue": 1}),
        ("s0b0-eth3", {"htb": 1, "netem": 1}, {"htb": 1, "netem": 1}),
    ],
)
def test_packet_loss_is_set_at_a_ports_qdiscs_and_removed_when_it_ends(
    shaped: Report, port: str, kinds: dict[str, int], kinds_after: dict[str, int]
) -> None:
    lossy, lossier, after = shaped["losses"][port]
    for qdiscs, share in ((lossy, 0.25), (lossier, 0.5)):
        assert Counter(qdisc["kind"] for qdisc in qdiscs) == kinds
        for options in (qdisc["options"] for qdisc in qdiscs if qdisc["kind"] == "netem"):
            assert options["loss-random"]["loss"] == pytest.approx(share) and options["limit"] == 10_000_000
            assert options.get("delay", {"delay": 0})["delay"] == pytest.approx(
                1e-5 * (port == "s0b0-eth3"), abs=1.1e-6
            )
    assert Counter(qdisc["kind"] for qdisc in after) == kinds_after
    assert not any("loss-random" in qdisc.get("options", {}) for qdisc in after)


def test_drops_are_counted_once_at_the_device_that_drops_them(shaped: Report) -> None:
    assert shaped["drops before"] == {}
    assert list(shaped["drops after"]) == ["s0l0-eth2"] and shaped["drops after"]["s0l0-eth2"] > 0
    assert shaped["drops then"] == {}
    # Packets dropped because Open vSwitch was too slow to decide on them:
    assert shaped["undecided"]["lost"] > 0
    assert shaped["undecided"]["counted"]["ovs-system"] == shaped["undecided"]["lost"]


def test_a_command_that_tc_refuses_is_reported_and_closing_removes_the_shaping(shaped: Report) -> None:
    assert "s0l0-eth1" in shaped["twice"] and "htb" in shaped["twice"]
    assert "`qdisc add dev s0l0-eth1 root handle 1: htb " in shaped["refused"]
    assert {qdisc["kind"] for qdisc in shaped["qdiscs after a failure"]} == {"htb", "netem"}  # the first shaping stays
    assert "class 1:1 of port s0l0-eth2 " in shaped["port gone"] and "s0l0-eth2" in shaped["no such port"]
    assert shaped["change without port"].endswith(": No such device")
    assert {qdisc["kind"] for qdisc in shaped["qdiscs after"]} == {"noqueue"}  # closing removes the shaping


def test_more_rates_than_one_netlink_message_holds_are_all_set(report: Report) -> None:
    many = report["many"]
    wanted = [[number, 10**6 * number] for number in range(1, MANY + 1)]
    assert many["held"] == wanted
    shown = re.findall(r"^class htb 1:(\w+) .* rate (\d+)Mbit ", many["tc"], re.M)
    shown += [(minor, f"{rate}000") for minor, rate in re.findall(r" 1:(\w+) .* rate (\d+)Gbit ", many["tc"])]
    assert sorted([int(minor, 16), 10**6 * int(rate)] for minor, rate in shown) == wanted
    assert "`class add dev many parent 1: classid 1:1 htb rate nonsense`" in many["refused"]  # the last of 2,500 lines
    assert re.search(rf"\b{MANY} classes .*: Message too long$", many["too long"])  # the kernel's own text


# --- Mininet's own command ------------------------------------------------------------------------------------------


def test_mn_pingall_reaches_every_gpu_with_the_controller(vm: VM) -> None:
    """And its hosts share nothing but files, as the prompt's."""
    controller = f"{sys.executable} -m controller --gpus 4 --leaves 1 --spines 1"
    lines = ["link g0 s0l0 down", "link g0 s0l0 up", "sh sleep 1", "g0 ping -c 7 -i 0.1 10.1.0.2"]
    lines += isolation.commands_of(("g0", "g3"), ("10.0.0.1", "10.1.0.2"))
    ended = run_mn(vm, controller, "gpus=4,leaves=1,spines=1", look="g3", lines=lines)
    assert "7 packets transmitted, 7 received" in ended
    (found,) = isolation.results(ended)
    isolation.check(found, shared=isolation.OF_NODES)
    assert "*** Results: 0% dropped (12/12 received)" in ended
    assert '"0000000300010000"' in ended and "10.1.0.2/8" in ended and "\n9000" in ended, ended


def test_mn_pingall_reaches_every_gpu_with_the_app_loaded_by_its_module_name(vm: VM) -> None:
    counts = ("gpus = 1+2", "leaves = 1", "spines = 1", "border_routers = 1", "socket = /run/c.sock")
    (vm.folder / "longhaul.conf").write_text("\n".join(("[longhaul]", *counts)))
    script = "from os_ken import cfg; from os_ken.base.app_manager import AppManager as Apps; "
    script += "cfg.CONF(['--config-file', 'longhaul.conf'], project='os_ken'); Apps.run_apps(['controller.app'])"
    controller = f'env OSKEN_HUB_TYPE=native {sys.executable} -c "{script}"'
    links = "--link tc,bw=50,delay=2ms"  # of every cable, in each direction
    ended = run_mn(vm, controller, "gpus=1+2,leaves=1,spines=1,border_routers=1", look="g2", options=links)
    assert "*** Results: 0% dropped (6/6 received)" in ended
    assert "netem" in ended and "delay 2ms" in ended and "rate 50Mbit" in ended and "\n9000" in ended, ended


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--topo longhaul,gpu=8", "mn: --topo longhaul: gpu: unknown parameter; allowed: gpus, leaves,"),
        ("--topo longhaul,gpus=7", "7 GPUs do not divide over 2 sites"),
        ("--topo longhaul,leaves=x", 'leaves: "x"; allowed: a whole number'),
        ("--topo longhaul,8,2,2,2,mesh,1", "6 values; allowed: gpus, leaves, spines, border_routers, wan"),
        ("--link tc,bandwidth=10", "--link bandwidth=10: unknown parameter; allowed: bw, delay,"),
        ("--link tc,bw=40000", "--link bw=40000: allowed: a number of Mbit/s, up to 1,000"),
        ("--link tc,delay=5", "--link delay=5: has no unit; allowed: a time such as 5ms"),
        ("--link default,bw=10", "--link default: has no parameters; allowed: --link tc,bw=10,delay=5ms"),
        ("--link ovs", "--link ovs: its interfaces have no MTU of 9000; allowed: default, tc, tcu"),
        ("--host cfs", "--host cfs: hosts must know each other's addresses; allowed: proc"),
        ("--switch ovs,protocols=OpenFlow10", "the controller speaks OpenFlow 1.3 alone"),
        ("--switch lxbr", "--switch lxbr: the topology needs OpenFlow 1.3; allowed: default, ovs, ovsk"),
        ("--controller ref", "--controller ref: the topology needs OpenFlow 1.3; allowed: remote, ryu, none"),
        ("--mac", "--mac: the controller's rules have the addresses of the fabric's own GPUs"),
    ],
)
def test_mn_refuses_in_a_sentence_what_the_topology_cannot_honour(options: str, says: str) -> None:
    """Before it builds anything, and without the clean-up that would end other networks on this machine."""
    mn = ["mn", "--custom", "topologies/mininet_topo.py", "--test", "none", *options.split()]
    mn += [] if "--topo" in options else ["--topo", "longhaul,gpus=4"]
    mn += [] if "--controller" in options else ["--controller", "remote"]
    ended = subprocess.run(mn, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert says in ended.stderr and ended.stderr.startswith("mn: ") and ended.stderr.count("\n") == 1


def test_the_topology_in_python_raises_for_an_unknown_parameter() -> None:
    with pytest.raises(FabricError, match=r"gpu: unknown parameter; .* \(did you mean gpus\?\)"):
        LonghaulTopo(gpu=8)
