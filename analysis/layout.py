"""Where the nodes of a stored fabric stand on a picture of it: sites around the middle, the WAN's routers within.

Pure geometry, the same for the same fabric. A site's GPUs and border routers stand on one circle, so that no link
between two of them leads through a third.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Point = tuple[float, float]

_BETWEEN = 1.1  # from a site to the middle where the sites are joined directly, and as much again through routers
_NODE = 0.36  # the least distance between neighbours on a circle


def positions(fabric: Mapping[str, Any]) -> dict[str, Point]:
    """The place of every GPU, border router and transit router by name."""
    sites = sorted({gpu["site"] for gpu in fabric["gpus"]})
    members = [_of(fabric["gpus"], site) + _of(fabric["border_routers"], site) for site in sites]
    radius = max(0.8, _NODE * max(map(len, members)) / (2 * math.pi))
    middle = max(_BETWEEN * (2 if fabric["transit"] else 1), radius * (1 / math.sin(math.pi / len(sites)) - 1))
    placed: dict[str, Point] = {}
    for place, site in enumerate(sites):
        angle = math.pi - 2 * math.pi * place / len(sites)  # site 0 on the left, then clockwise
        centre = ((middle + radius) * math.cos(angle), (middle + radius) * math.sin(angle))
        placed |= _site(_of(fabric["gpus"], site), _of(fabric["border_routers"], site), centre, radius, angle)
    return placed | _transit(fabric["transit"], 0.6 * middle)


def _of(nodes: Sequence[Mapping[str, Any]], site: int) -> list[str]:
    return [node["name"] for node in nodes if node["site"] == site]


def _site(
    gpus: Sequence[str], routers: Sequence[str], centre: Point, radius: float, outward: float
) -> dict[str, Point]:
    """A site's nodes evenly around a circle: the border routers toward the middle of the picture, then the GPUs."""
    step = 2 * math.pi / (len(gpus) + len(routers))
    # On the left of the picture, border router 0 is above border router 1; on the right too.
    left = math.cos(outward) < 0
    turn = -step if left else step
    first = outward + math.pi - turn * (len(routers) - 1) / 2
    return {
        name: (centre[0] + radius * math.cos(first + place * turn), centre[1] + radius * math.sin(first + place * turn))
        for place, name in enumerate([*routers, *(gpus[::-1] if left else gpus)])
    }


def _transit(names: Sequence[str], reach: float) -> dict[str, Point]:
    """Transit routers around the middle, the first on the left, the others clockwise."""
    angles = [math.pi - 2 * math.pi * place / max(1, len(names)) for place in range(len(names))]
    return {name: (reach * math.cos(a), 0.75 * reach * math.sin(a)) for name, a in zip(names, angles, strict=True)}
