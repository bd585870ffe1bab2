"""os-ken's switch tests of OpenFlow 1.3: what Open vSwitch does in the VM is what its userspace datapath does.

openflow_guest.py runs the tester in the VM. The judge of the VM's kernel is the same Open vSwitch with its userspace
datapath, which forwards without the kernel's. Run with ``pytest -m references``; nothing has to be put anywhere.
"""

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3
from os_ken.ofproto.ofproto_protocol import ProtocolDesc
from os_ken.tests import switch

from controller.forwarding.flow_mods import Install, Match, Rule
from controller.forwarding.switches import flow_mod
from tests.conftest import PROJECT, VM, own_python
from tests.references.conftest import Record
from tests.references.page import FAILED, PASSED, SKIPPED, Outcome, Suite

pytestmark = [pytest.mark.references, pytest.mark.timeout(3600)]

VERSION = metadata.version("os-ken")
ONE_BUCKET = "the whole stream in one bucket of the group"
BY_HASH = (
    (ONE_BUCKET, "OK"),
    "the kernel's datapath puts the whole stream into one bucket of the group, as its hash of an ARP packet has no "
    "addresses, and the userspace datapath spreads it by MAC addresses; OpenFlow leaves the choice open",
)
BURST = (
    ("OK", "Added incorrect meters"),
    "OK in the kernel's datapath; the userspace datapath reports the meter with a burst size that was not set",
)
DIFFERENT = dict.fromkeys(("group: 01_SELECT_Ether 3", "group: 01_SELECT_Weight_Ether 3"), BY_HASH) | {
    f"meter: 01_DROP_{rate} {n}": BURST for rate in ("00_KBPS_00_1M", "01_PKTPS_00_100") for n in (1, 2, 3)
}
"""The cases that differ between the two datapaths, how they end, and why. That is Open vSwitch's, and not the VM's."""
LEFT_OUT = "a stream of more than 200 packets a second takes minutes; cases with slower streams have the same rules"
NOT_IN_SUITE = {"match reg0", "NXActionMultipath"}  # what the controller uses and OpenFlow 1.3 does not have

Case, Verdict = tuple[str, str], tuple[str, str]
"""The descriptions of the file and of the case; OK or ERROR, and what the tester says."""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with this version of os-ken and the green threads that the tester needs."""
    with own_python([f"os-ken=={VERSION}", "eventlet==0.41.3"]) as found:
        yield found


def cases() -> dict[Case, tuple[str, set[str]]]:
    """Return every case of the suite with its short name and the features that its rules use."""
    found = dict[Case, tuple[str, set[str]]]()
    for path in sorted((Path(switch.__file__).parent / "of13").rglob("*.json")):
        title, *several = json.loads(path.read_text())
        for number, case in enumerate(several, 1):
            found[title, case["description"]] = f"{title} {number}", set(features(case["prerequisite"]))
    return found


def features(message: Any, role: str = "match") -> Iterator[str]:
    """Yield the matches, actions, instructions, groups and meters of messages in os-ken's form of JSON."""
    for key, value in message.items() if isinstance(message, dict) else ():
        if key == "OXMTlv":
            yield f"{role} {value['field']}"
        elif key == "OFPInstructionActions":
            yield f"{key} {value['type']}"
        elif key.startswith(("OFPAction", "NXAction", "OFPInstruction", "OFPGroup", "OFPMeter")):
            yield key
        yield from features(value, "set" if key == "OFPActionSetField" else role)
    for value in message if isinstance(message, list) else ():
        yield from features(value, role)


def of_controller() -> set[str]:
    """Return the features of all rules that the controller can install, from rules in which every field is given."""
    match = Match(src="10.0.0.0/24", dst="10.0.0.1", in_port=1, eth_dst="06:4c:00:00:00:01", tcp_src=1, channel=1)
    assert None not in astuple(match)
    macs = {"eth_dst": "06:4c:00:00:00:01", "eth_src": "06:4c:00:00:00:02"}
    rules = (Rule(priority=1, cookie=1, match=match, **more) for more in (macs, {"channels": 4}))
    datapath = ProtocolDesc(ofproto_v1_3.OFP_VERSION)
    sent = [flow_mod(datapath, Install(switch="s0l0", rule=rule)) for rule in rules]
    for message in sent:
        message.serialize()
    return set(features([message.to_jsondict() for message in sent]))


def verdicts(vm: VM, python: Path, datapath: str) -> dict[Case, Verdict]:
    """Boot the VM and return what the tester says of every case."""
    guest = [str(python), "-m", "tests.references.openflow_guest", datapath]
    ended = vm.run("--memory", "2 GiB", "--", *guest, timeout=1800, cwd=PROJECT)
    assert ended.status == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith("[")]
    return {(title, case): (verdict, says) for title, case, verdict, says in lines}


def outcome(name: str, kernel: Verdict, userspace: Verdict) -> Outcome:
    """Judge a case by its verdicts in both datapaths."""
    if kernel[1].startswith("left out"):
        return Outcome(SKIPPED, LEFT_OUT)
    if kernel[0] == userspace[0] == "OK":
        return Outcome(PASSED)
    ends = tuple(reason(says) if verdict == "ERROR" else verdict for verdict, says in (kernel, userspace))
    if ends[0] == ends[1]:
        return Outcome(SKIPPED, f"Open vSwitch ends with this in both datapaths: {ends[0]}")
    expected, why = DIFFERENT.get(name, (None, ""))
    return Outcome(FAILED, why if ends == expected else f"{ends[0]} in the kernel's datapath, {ends[1]} in userspace")


def reason(says: str) -> str:
    """Return what the tester says of an error, without measured numbers and with the names of OpenFlow's errors."""
    if found := re.fullmatch(r".*: OFPErrorMsg\[type=(\w+), code=(\w+)\]", says):
        error = ofproto_v1_3.ofp_error_to_jsondict(*(int(number, 16) for number in found.groups()))
        return str(error["code"]).partition("(")[0]
    if says.startswith("Received unexpected throughput") and " 0.00kbps" in says:
        return ONE_BUCKET
    return re.split(r": (?:\{|meter_stats)", says)[0].rstrip(".")


def test_the_vm_switches_as_open_vswitchs_userspace_datapath_does(vm: VM, python: Path, record: Record) -> None:
    suite = cases()

    def run() -> Mapping[str, Outcome]:
        with ThreadPoolExecutor() as pool:
            kernel, userspace = pool.map(lambda datapath: verdicts(vm, python, datapath), ("system", "netdev"))
        assert kernel.keys() == userspace.keys() == suite.keys()
        return {name: outcome(name, kernel[case], userspace[case]) for case, (name, _) in suite.items()}

    what = (
        "All cases of os-ken's switch tester for OpenFlow 1.3, which runs under the project's launcher of controllers: "
        "a case passes if the kernel's datapath and the userspace datapath of the same Open vSwitch do in the VM what "
        "OpenFlow says. Skipped are those in which both do something else, alike. Streams are of 15 s instead of 30 s."
    )
    outcomes = record(Suite("os-ken's switch tests", VERSION, "PyPI's os-ken", what), run)
    assert len(outcomes) >= 991
    assert {one.why for one in outcomes.values() if one.kind == FAILED} <= {why for _, why in DIFFERENT.values()}
    ours, passed = of_controller(), set[str]()
    for name, used in suite.values():
        if outcomes[name].kind == PASSED:
            passed |= used
        else:
            assert not used <= ours, f"{name} uses only what the controller uses"
    assert ours - passed == NOT_IN_SUITE
