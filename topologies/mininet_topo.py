"""The declared fabric as a Mininet topology: the same hosts, switches, ports, addresses and cables.

It is also a custom file for the command mn, to run with the same fabric's controller, `python -m controller --gpus 8`:

    mn --custom topologies/mininet_topo.py --topo longhaul,gpus=8 --controller remote \
       --switch ovs,protocols=OpenFlow13 --test pingall

`mn` makes every name of this module a variable of its own, so none may clash with mn's variables. `mininet_network`
builds an experiment's network from this topology.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from mininet.link import TCIntf
from mininet.topo import Topo
from mininet.util import splitArgs

if "__file__" not in globals():  # mn executes the file without __file__ and without the project's root in sys.path
    _root = Path((lambda: None).__code__.co_filename).resolve().parent.parent
    # The packages that setup.sh installed, if they are for the Python that runs mn.
    _packages = _root.glob(f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
    sys.path += map(str, [_root, *_packages])

from topologies.errors import FabricError, Mistake, did_you_mean, format_value
from topologies.fabric.addressing import Gpu
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.machines import Share
from topologies.mininet_nodes import GpuHost
from topologies.shaping.frames import MTU_BYTES

PREFIX_LENGTH = 8
"""Prefix length of every GPU's address: all GPUs of all sites are in one subnet, so that hosts need no routes."""

_run_by_mn = "__file__" not in globals()
_parameters = ("gpus", "leaves", "spines", "border_routers", "wan")
_links, _switches, _controllers = ("default", "tc", "tcu"), ("default", "ovs", "ovsk"), ("remote", "ryu", "none")
_addresses = "the controller's rules have the addresses of the fabric's own GPUs"


class NeighbourlyHost(GpuHost):
    """A GPU's host for a network that Mininet builds by itself. It knows the MAC addresses of all others, as with mn's
    --arp: the switches forward no broadcasts."""

    _enter_neighbours = ""

    def startShell(self, mnopts: str | None = None) -> None:
        """Make the host's namespaces, and allow commands at once; raises NetworkError."""
        super().startShell(mnopts)
        self.await_namespaces(self.params["ip"].partition("/")[0])
        self.ready()

    def config(self, neighbours: tuple[Gpu, ...] = (), **params: object) -> object:
        """Configure the host as Mininet does, and enter these GPUs as permanent neighbours."""
        result = super().config(**params)
        device = self.defaultIntf()
        lines = [f"ip neigh replace {gpu.ip} lladdr {gpu.mac} dev {device}" for gpu in neighbours]
        self._enter_neighbours = "; ".join(lines)
        self.cmd(self._enter_neighbours)
        return result

    def cmd(self, *arguments: Any, **options: Any) -> Any:
        """Run a command in the host's shell and return its output; after Mininet's own command that brings an interface
        up again, enter the neighbours again, which Linux has deleted."""
        output = super().cmd(*arguments, **options)
        if self._enter_neighbours and arguments[0] == "ifconfig" and arguments[-1] == "up":
            super().cmd(self._enter_neighbours)
        return output


class LonghaulTopo(Topo):
    """A fabric as a Mininet topology."""

    def build(
        self, *counts: object, fabric: Fabric | None = None, share: Share | None = None, **parameters: object
    ) -> None:
        """Declare hosts, switches and links of `fabric`, or if None of the fabric of `parameters`, which are those of
        `FabricSpec.parse`; mn passes `counts`, values of these in their order. Of a fabric that machines share, only
        what is whole in this machine's `share` is declared.

        Raises FabricError for a parameter that is not known, and for a fabric that cannot be built; if mn runs, which
        would end other networks on this machine, the message is printed and mn ends with status 2.
        """
        alone = fabric is None  # run by mn: there is no `mininet_network` to configure hosts and links
        if fabric is None:
            try:
                fabric = build_fabric(FabricSpec.parse(**_known(counts, parameters)))
            except FabricError as error:
                if not _run_by_mn:
                    raise
                _refuse_mn(f"--topo longhaul: {error}")
        share = share or Share(fabric)
        for gpu in (gpu for gpu in fabric.gpus if share.has(gpu.name)):
            others = tuple(other for other in fabric.gpus if other is not gpu)
            own = {"cls": NeighbourlyHost, "neighbours": others} if alone else {}
            self.addHost(gpu.name, ip=f"{gpu.ip}/{PREFIX_LENGTH}", mac=gpu.mac, **own)
        for switch in (switch for switch in fabric.switches if share.has(switch.name)):
            self.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13", failMode="secure")
        mtu = (
            {"ifconfig": ["mtu", str(MTU_BYTES)]} if alone else {}
        )  # for both ends, whatever class mn's --link chooses
        hosts = {gpu.name for gpu in fabric.gpus}
        for cable in (cable for cable in fabric.cables if share.has(cable.a) and share.has(cable.b)):
            ends = [(cable.a, cable.a_port), (cable.b, cable.b_port)]
            if alone:  # Mininet makes a cable in its first node, which must know the number of a process of the other
                ends.sort(key=lambda end: end[0] in hosts)
            (a, a_port), (b, b_port) = ends
            self.addLink(a, b, port1=a_port, port2=b_port, **mtu)


topos = {"longhaul": LonghaulTopo}


def validate(options: Any) -> None:
    """Check mn's options, as mn calls this with them before it builds a network: print the first one that the topology
    cannot honour, and end mn with status 2."""
    if splitArgs(options.topo)[0] in topos:
        for sentence in _unusable(options):
            _refuse_mn(sentence)


def _refuse_mn(sentence: str) -> NoReturn:
    print(f"mn: {' '.join(sentence.split())}", file=sys.stderr)
    raise SystemExit(2)


def _known(counts: tuple[object, ...], parameters: dict[str, object]) -> dict[str, Any]:
    """Return parameters by name; raises FabricError for one that is unknown, or whose value has another type."""
    given = dict(zip(_parameters, counts, strict=False)) | parameters
    mistakes = []
    if len(counts) > len(_parameters):
        mistakes.append(Mistake("topo", f"{len(counts)} values; allowed: {', '.join(_parameters)}"))
    for name, value in given.items():
        text = {"gpus": "a number, or one for each site as 3+5", "wan": "the name of a preset"}
        of_type = {"gpus": (int, str), "wan": (str,)}.get(name, (int,))
        if name not in _parameters:
            hint = did_you_mean(name, _parameters)
            mistakes.append(Mistake(name, f"unknown parameter; allowed: {', '.join(_parameters)}{hint}"))
        elif type(value) not in of_type:
            mistakes.append(Mistake(name, f"{format_value(value)}; allowed: {text.get(name, 'a whole number')}"))
    if mistakes:
        raise FabricError(mistakes)
    return given


def _unusable(options: Any) -> Iterator[str]:
    """Yield a sentence for each of mn's options that the topology cannot honour."""
    link, positional, parameters = splitArgs(options.link)
    if link not in _links:
        yield f"--link {link}: its interfaces have no MTU of {MTU_BYTES}; allowed: {', '.join(_links)}"
    yield from _unusable_parameters(link, positional, parameters)
    for name, given, allowed in (
        ("switch", [options.switch], _switches),
        ("controller", options.controller, _controllers),
    ):
        for one in given:
            kind, _, more = splitArgs(one)
            if kind not in allowed:
                yield f"--{name} {kind}: the topology needs OpenFlow 1.3; allowed: {', '.join(allowed)}"
            if (version := more.get("protocols", "OpenFlow13")) != "OpenFlow13":
                yield f"--{name} protocols={version}: the controller speaks OpenFlow 1.3 alone; allowed: OpenFlow13"
    if splitArgs(options.host)[0] != "proc":
        yield f"--host {options.host}: hosts must know each other's addresses; allowed: proc"
    for name in ("mac", "innamespace", "cluster", "nat"):
        if getattr(options, name, None):
            yield f"--{name}: {_addresses}, and it knows no other nodes; allowed: without --{name}"


def _unusable_parameters(link: str, positional: list[object], parameters: dict[str, object]) -> Iterator[str]:
    names = [*inspect.signature(TCIntf.config).parameters][1:-1]
    if link == "default" and (positional or parameters):
        yield f"--link {link}: has no parameters; allowed: --link tc,bw=10,delay=5ms"
        return
    for value in positional:
        yield f"--link {link},{value}: a value without a name; allowed: {', '.join(names)}, as in tc,bw=10"
    for name, value in parameters.items():
        if name not in names:  # Mininet ignores it
            yield f"--link {name}={value}: unknown parameter; allowed: {', '.join(names)}{did_you_mean(name, names)}"
        elif name == "bw" and not (isinstance(value, int | float) and 0 < value <= TCIntf.bwParamMax):
            most = f"a number of Mbit/s, up to {TCIntf.bwParamMax:,}, which is Mininet's limit"
            yield f"--link bw={value}: allowed: {most}"
        elif name in ("delay", "jitter") and not re.fullmatch(r"[\d.]+[mu]?s", str(value)):
            why = "" if isinstance(value, str) else "has no unit; "  # tc would take it for microseconds
            yield f"--link {name}={value}: {why}allowed: a time such as 5ms"
