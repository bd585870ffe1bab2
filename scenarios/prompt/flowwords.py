"""Flow rules to be read: what `ovs-ofctl dump-flows` says, in the fabric's own names. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from controller.flows import ROUTES_COOKIE, ROUTES_MASK, STANDING_COOKIE, tag
from controller.ways import Ways
from scenarios.prompt.words import size, table

_COUNT = re.compile(r"n_packets=(\d+), n_bytes=(\d+)")
_TAG = re.compile("^" + tag(0)[:5] + "((?::[0-9a-f]{2}){4})$")


@dataclass(frozen=True, kw_only=True)
class Names:
    """What addresses and ports of one switch stand for: by address, by network, by port number, by MAC address."""

    hosts: Mapping[str, str]
    networks: Mapping[str, str]
    ports: Mapping[str, str]
    macs: Mapping[str, str]


def names(ways: Ways, switch: str) -> Names:
    """The names of a fabric, as one of its switches needs them."""
    return Names(
        hosts={gpu.ip: gpu.name for gpu in ways.fabric.gpus},
        networks={network: f"site {site}" for site, network in enumerate(ways.networks)},
        ports={str(port.number): port.peer for port in ways.switches[switch].ports}
        | {port.interface: port.peer for port in ways.switches[switch].ports},
        macs={gpu.mac: gpu.name for gpu in ways.fabric.gpus},
    )


def readable(dump: str, known: Names) -> str:
    """A table of the rules in a dump, those that win first; a line that is not understood is given as it is."""
    rows: list[tuple[int, tuple[str, ...]]] = []
    strange: list[str] = []
    for line in dump.splitlines():
        if "actions=" not in line:
            continue  # the dump's heading
        rule = _rule(line.strip(), known)
        if rule is None:
            strange.append(line.strip())
        else:
            rows.append(rule)
    rows.sort(key=lambda row: -row[0])
    headings = ("rule", "from", "to", "coming", "goes to", "packets", "bytes")
    return "\n".join([*table(headings, [cells for _, cells in rows], numbers=(5, 6)), *strange])


def _rule(line: str, known: Names) -> tuple[int, tuple[str, ...]] | None:
    """A rule's priority and its cells; None where it has something in it that rules of ours have not."""
    about, _, actions = line.partition("actions=")
    fields = [field.strip() for field in about.split(",")]
    matched = dict(field.split("=", 1) for field in fields if "=" in field)
    cookie, counted = int(matched.get("cookie", "0"), 0), _COUNT.search(about)
    priority, kind, done = int(matched.get("priority", "32768")), _kind(cookie), _done(actions, known)
    if kind is None or done is None or counted is None:
        return None
    coming = [_tagged(matched["dl_dst"], known)] if "dl_dst" in matched else []
    if "in_port" in matched:
        port = matched["in_port"].strip('"')
        coming.append(f"from {known.ports.get(port, port)}")
    packets, carried = counted.groups()
    ends = (_end(matched.get("nw_src"), known), _end(matched.get("nw_dst"), known))
    return priority, (kind, *ends, ", ".join(coming), done, packets, size(int(carried)))


def _kind(cookie: int) -> str | None:
    if cookie == STANDING_COOKIE:
        return "standing"
    return f"route {cookie & ~ROUTES_MASK}" if cookie & ROUTES_MASK == ROUTES_COOKIE else None


def _end(address: str | None, known: Names) -> str:
    if address is None:
        return "any"
    return known.hosts.get(address) or known.networks.get(address) or address


def _tagged(mac: str, known: Names) -> str:
    """What a destination's MAC address says: the tag that a packet carries, or whose it is."""
    tagged = _TAG.match(mac)
    if tagged:
        number = int(tagged[1].replace(":", ""), 16)
        return f"tagged {number}" if number else "untagged"
    return known.macs.get(mac, mac)


def _done(actions: str, known: Names) -> str | None:
    """Where a rule sends, and what it makes of the tag."""
    target, tagged = "", ""
    for action in actions.split(","):
        verb, _, value = action.partition(":")
        if action == "IN_PORT":
            target = "back"
        elif verb == "output":
            target = known.ports.get(value.strip('"'), value)
        elif verb == "set_field" and value.endswith("->eth_dst"):
            mac = value.removesuffix("->eth_dst")
            tagged = ", tag off" if mac in known.macs or mac == tag(0) else f", {_tagged(mac, known)}"
        else:
            return None
    return target + tagged if target else None
