"""The links that measurements name, by their sites, which are mapped to nodes of the fabric, or by nodes. Pure."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from topologies.conditions.convert.readings import ConvertError, Reading
from topologies.errors import did_you_mean, format_value, list_first
from topologies.fabric.link_names import both, directions

_SITE = re.compile(r"s\d{1,4}", re.ASCII)
_NODE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}", re.ASCII)
_OF_SITE = re.compile(r"(s\d{1,4})[blpn]\d", re.ASCII)
_GPU = re.compile(r"g\d{1,6}", re.ASCII)
_ALLOWED = (
    "NAME=s0 for the first border router of a site, NAME=s0b1 for another one, or NAME=ROUTER for a router of the WAN, "
    "whose names are a letter and up to 8 letters, digits and _"
)
_OF_FABRIC = re.compile(r"s\d{1,4}[blpn]\d{1,4}|g\d{1,6}|R\d{1,4}", re.ASCII)
_NUMBERED = re.compile(r"(.*?)#([1-9]\d{0,3})", re.ASCII)


def site_map(assignments: Iterable[str]) -> dict[str, str]:
    """Return the node of each site that "NAME=s0", "NAME=s0b1" or "NAME=NODE" assigns; raises ConvertError."""
    nodes: dict[str, str] = {}
    for text in assignments:
        name, equals, node = (part.strip() for part in text.rpartition("="))
        if not (name and equals and _NODE.fullmatch(node)):
            raise ConvertError(f"--site {format_value(text)} assigns no node; allowed: {_ALLOWED}")
        if name in nodes:
            raise ConvertError(f"--site {format_value(text)} assigns {name} a second time; allowed: one node each")
        nodes[name] = border_router(node)
    return nodes


def link_map(assignments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the directed links of each name of a link that "NAME=s0b0-s1b0#2" or "NAME=s0:s1" assigns; raises
    ConvertError."""
    links: dict[str, tuple[str, ...]] = {}
    for text in assignments:
        name, _, link = (part.strip() for part in text.rpartition("="))
        found = directions(re.sub(r"\b(s\d{1,4})\b(?!b)", r"\1b0", link))
        if not name or ">" not in found[0] or name in links:
            allowed = "NAME=s0b0-s1b0 for both directions, NAME=s0b0:s1b0 for one, each with #2 for a second cable"
            raise ConvertError(f"--link {format_value(text)} assigns no link to a new name; allowed: {allowed}")
        links[name] = found
    return links


def border_router(node: str) -> str:
    """Return the first border router of a site, and any other node as it is."""
    return f"{node}b0" if _SITE.fullmatch(node) else node


def links_of(
    reading: Reading, sites: Mapping[str, str], links: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the directed links of a reading, two for a link without a direction ("A-B"), none from a site to itself;
    `links` has the links of names. Raises ConvertError for a site that neither is a node nor has one assigned.
    """
    if (named := next((name for name in _names_of(reading) if name in links), None)) is not None:
        return links[named]
    ends, number = reading.ends, 1
    if len(ends) == 1:
        numbered = None if reading.ends[0] in sites else _NUMBERED.fullmatch(reading.ends[0])
        ends, number = _ends(reading, sites, numbered[1] if numbered else ends[0]), int(numbered[2] if numbered else 1)
    first, second = (_node(one, sites, reading.where) for one in ends[:2])
    if first == second:
        if ends[0] != ends[1]:
            text = f"{format_value(ends[0])} and {format_value(ends[1])} are both {first}; allowed: a node for each"
            raise ConvertError(f"{reading.where}: {text}")
        return ()
    if {*ends[:2]} <= {*sites} and is_within_site(f"{first}>{second}"):
        text = f"{format_value(ends[0])} and {format_value(ends[1])} are {first} and {second}, of one site"
        allowed = f"nodes of different sites, or with --link {format_value(f'{ends[0]}-{ends[1]}={first}-{second}')}"
        raise ConvertError(f"{reading.where}: {text}, between which no WAN link is; allowed: {allowed}")
    found = both(first, second, number)
    return found if len(ends) == 3 else found[:1]


def _names_of(reading: Reading) -> tuple[str, ...]:
    """Return the names by which --link may call the link of a reading."""
    if len(reading.ends) == 1:
        return reading.ends
    return tuple(sign.join(reading.ends) for sign in ("-", ">", ":", "->"))


def links_by_name(
    reading: Reading, sites: Mapping[str, str], links: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the directed links of a reading as `links_of` does, or its own name of the link if that fails: what has no
    value may name what the fabric does not have."""
    try:
        return links_of(reading, sites, links)
    except ConvertError:
        return (">".join(reading.ends),)


def is_within_site(link: str) -> bool:
    """Return whether both ends of a link belong to one site, where no WAN link is."""
    ends = [_OF_SITE.match(end) for end in link.split(">")]
    return None not in ends and len({end[1] for end in ends if end}) == 1


def is_of_wan(link: str) -> bool:
    """Return whether a link is neither within a site nor at a GPU."""
    return not is_within_site(link) and not any(map(_GPU.fullmatch, link.split(">")))


def _ends(reading: Reading, sites: Mapping[str, str], text: str) -> tuple[str, ...]:
    """Return the two ends that a link's name, without its number, has, and a third text if it is both directions."""
    for sign in ("->", ">", ":", "-"):
        for at in (match.start() for match in re.finditer(re.escape(sign), text)):
            ends = text[:at].strip(), text[at + len(sign) :].strip()
            if all(end in sites or _is_node(end) for end in ends):
                return (*ends, "both") if sign == "-" else ends
    parts = next((text.split(sign) for sign in ("->", ">", ":", "-") if text.count(sign) == 1), [])
    if len(parts) == 2 and all(part.strip() for part in parts):
        return parts[0].strip(), parts[1].strip()  # one of which has no node, which is told
    allowed = f"such as s0b0>s1b0, or SITE>SITE, or with --link {format_value(f'{text}=s0b0-s1b0')}"
    raise ConvertError(f"{reading.where}: {format_value(text)} is not a link; allowed: {allowed}")


def _is_node(name: str) -> bool:
    return bool(_SITE.fullmatch(name) or _OF_FABRIC.fullmatch(name))


def _node(name: str, sites: Mapping[str, str], where: str) -> str:
    if name in sites:
        return sites[name]
    if _is_node(name):
        return border_router(name)
    known = list_first([format_value(one) for one in sites], 6) or "none"
    allowed = f"a node such as s0b0, or a site with --site {format_value(f'{name}=s0')} (so far: {known})"
    # Somebody who writes "rome 1" beside "rome" has several of them, and has not misspelled one.
    meant = "" if any(name.startswith(site) for site in sites) else did_you_mean(name, sites)
    raise ConvertError(f"{where}: {format_value(name)} is not a site with a node; allowed: {allowed}{meant}")
