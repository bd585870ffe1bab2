"""The keys of a scenario whose WAN has exactly the links that a trace has. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, product

from topologies.fabric.link_names import node_of

Keys = Mapping[str, tuple[str, ...]]
"""The lines of each table of a scenario."""

_BORDER = re.compile(r"s(\d{1,4})b(\d{1,4})", re.ASCII)
_WITHIN = re.compile(r"g\d+|s\d+[lpn]\d+", re.ASCII)  # GPUs, leaves, planes and NICs
_DEFAULT = 2  # sites, and border routers of each
_GPUS = 4  # of each site: any number will do
_MOST_LINKS = 8  # that a sentence has


def wan_keys(links: Iterable[str]) -> Keys:
    """Return the lines of the tables [fabric] and [fabric.wan] for a WAN of these directed links ("s0b0>s1b0"); links
    within sites do not count. Empty if the default WAN has these links, or if no WAN has them: if a link lacks its
    other direction, or a border router all links."""
    names = [name for name in links if not any(map(_WITHIN.fullmatch, _nodes(name)))]
    cables = {(*sorted(_nodes(name)), name.partition("#")[2]): _nodes(name) for name in names}
    routers = sorted({node for ends in cables.values() for node in ends})
    borders = [(int(match[1]), int(match[2])) for match in map(_BORDER.fullmatch, routers) if match]
    counts = list(Counter(site for site, _ in sorted(borders)).values())
    of_counts = {(site, number) for site, count in enumerate(counts) for number in range(count)}
    if len(names) != 2 * len(cables) or {*borders} != of_counts or len(counts) < _DEFAULT:
        return {}
    tables: dict[str, tuple[str, ...]] = {}
    lines = [f"gpus = {[_GPUS] * len(counts)}"] * (len(counts) > _DEFAULT)
    if set(counts) != {_DEFAULT}:
        lines.append(f"border_routers = {counts[0] if len(set(counts)) == 1 else counts}")
    if lines:
        tables["fabric"] = tuple(lines)
    if {frozenset(ends) for ends in cables.values()} != _mesh(counts) or len(cables) != len(_mesh(counts)):
        transit = [node for node in routers if not _BORDER.fullmatch(node)]
        of_transit = [f"routers = [{', '.join(map(_quoted, transit))}]"] * bool(transit)
        pairs = ", ".join(f"[{', '.join(map(_quoted, sorted(ends)))}]" for ends in cables.values())
        tables["fabric.wan"] = (*of_transit, f"links = [{pairs}]")
    return tables


def in_a_sentence(keys: Keys) -> str:
    """Return keys for a message: "[fabric] border_routers = 1, [fabric.wan] links = [["s0b0", "s1b0"]]"."""
    text = ", ".join(f"[{table}] {', '.join(lines)}" for table, lines in keys.items())
    if text.count("], [") > _MOST_LINKS:
        return f"{text.partition('links = ')[0]}links = [...] with these"
    return text


def in_toml(keys: Keys) -> str:
    """Return keys as tables of a scenario."""
    return "\n".join(line for table, lines in keys.items() for line in (f"[{table}]", *lines))


def _nodes(name: str) -> tuple[str, str]:
    start, _, far = name.partition(">")
    return start, node_of(far)


def _mesh(border_routers: list[int]) -> set[frozenset[str]]:
    """Return the cables that join every border router with every one of the other sites."""
    sites = [[f"s{site}b{number}" for number in range(count)] for site, count in enumerate(border_routers)]
    return {frozenset(ends) for a, b in combinations(sites, 2) for ends in product(a, b)}


def _quoted(name: str) -> str:
    return f'"{name}"'
