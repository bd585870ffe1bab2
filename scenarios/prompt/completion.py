"""What Tab offers, and the verbs of Mininet's that are worth knowing. Pure."""

from collections.abc import Sequence

from scenarios.plan import MODES
from scenarios.prompt.grammar import VERBS
from topologies.fabric import Fabric

MININETS = (
    ("nodes", "", "all nodes"),
    ("net", "", "the cables, node by node"),
    ("links", "", "the cables, and whether they are up"),
    ("dump", "", "hosts and switches with their addresses"),
    ("intfs", "", "the interfaces of every node"),
    ("ports", "", "the OpenFlow ports of every switch"),
    ("pingall", "[SECONDS]", "every GPU pings every other, waiting so long for each"),
    ("pingpair", "", "the first two GPUs ping each other"),
    ("NODE", "CMD", "run a command on a node, names of GPUs as addresses: g0 ping -c 3 g4"),
    ("xterm", "NODE", "a terminal on a node, where there is a display"),
    ("dpctl", "CMD", "an ovs-ofctl command on all switches: dpctl dump-ports"),
    ("switch", "NAME start|stop", "start or stop a switch"),
    ("source", "FILE", "run the commands of a file"),
    ("sh", "CMD", "run a command beside the network, where the switches are"),
    ("py", "EXPRESSION", "a Python expression; net is Mininet's network"),
    ("time", "COMMAND", "how long a command takes"),
    ("exit", "", "leave, and take everything down (Ctrl-D does it, too)"),
)
"""Mininet's own verbs: name, words, and what it does in one line."""


def beginnings(fabric: Fabric, text: str) -> list[str]:
    """The verbs and nodes that begin with this text."""
    names = [*VERBS, *(name for name, *_ in MININETS if name.islower()), "help", *_nodes(fabric)]
    return sorted({name for name in names if name.startswith(text)})


def following(fabric: Fabric, words: Sequence[str], text: str) -> list[str]:
    """What can come behind these words of a line and begins with this text."""
    return [name for name in _next(fabric, words) if name.startswith(text)]


def _next(fabric: Fabric, words: Sequence[str]) -> Sequence[str]:
    verb, given = words[0], words[1:]
    gpus, nodes = [gpu.name for gpu in fabric.gpus], _nodes(fabric)
    links = [link.name for link in fabric.links]
    places: dict[str, list[Sequence[str]]] = {  # what can stand in each place behind a verb
        "rate": [links],
        "delay": [links],
        "capture": [[*links, "stop"]],
        "mode": [list(MODES)],
        "flows": [[switch.name for switch in fabric.switches]],
        "iperf": [gpus, gpus],
        "link": [nodes, _neighbours(fabric, given[0]) if given else [], ["up", "down"]],
        "switch": [[switch.name for switch in fabric.switches], ["start", "stop"]],
        "help": [[*VERBS, *(name for name, *_ in MININETS)]],
        "ring": [["best", "rank", *gpus], *([[name for name in gpus if name not in given]] * len(gpus))],
    }
    everywhere = gpus if verb in nodes else nodes if verb in ("xterm", "x", "noecho") else []
    behind = places.get(verb, [])
    return behind[len(given)] if len(given) < len(behind) else everywhere


def _neighbours(fabric: Fabric, node: str) -> list[str]:
    return [b if node == a else a for a, b in ((cable.a, cable.b) for cable in fabric.cables) if node in (a, b)]


def _nodes(fabric: Fabric) -> list[str]:
    return [*(gpu.name for gpu in fabric.gpus), *(switch.name for switch in fabric.switches)]
