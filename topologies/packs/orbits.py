"""Positions of satellites, distances, and the links that shortest paths take while satellites move. Pure.

Orbits are those of SGP4 (the package sgp4, WGS 72). Ground stations are on the ellipsoid of WGS 84; the earth turns by
the mean sidereal time of 1982 (Aoki et al., Astronomy and Astrophysics 105).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from topologies.errors import format_value
from topologies.packs.published import Array, Floats, PackError

LIGHT_KM_PER_S = 299_792.458
_EARTH_KM, _FLATTENING = 6378.137, 1 / 298.257223563


def distances(
    satellites: Mapping[str, tuple[str, str]],
    isls: Sequence[tuple[int, int]],
    stations: Sequence[tuple[float, float, float]],
    at_s: Floats,
) -> tuple[Array, Floats]:
    """Return the ends of all links, [links, 2], and their lengths, [times, links] km, `at_s` after the epoch.

    `satellites` are two-line elements by name, `isls` pairs of satellites, and `stations` ground stations, which are
    numbered after the satellites: latitude, longitude and height in km. Each is linked to every satellite. Raises
    PackError without the package sgp4, and for elements that give no orbit.
    """
    try:
        from sgp4.api import WGS72, Satrec, SatrecArray
    except ImportError:
        why = 'the package sgp4 is not installed; allowed: after ".venv/bin/pip install sgp4"'
        raise PackError(f"orbits of satellites: {why}") from None
    orbits = [Satrec.twoline2rv(*lines, WGS72) for lines in satellites.values()]
    day, part = np.full(len(at_s), orbits[0].jdsatepoch), orbits[0].jdsatepochF + at_s / 86400
    wrong, places, _ = SatrecArray(orbits).sgp4(day, part)
    if wrong.any():
        first = [*satellites][int(np.argwhere(wrong)[0][0])]
        raise PackError(f"{format_value(first)} has no orbit at that time; allowed: elements near their epoch")
    century = ((day - 2451545.0) + part) / 36525
    sidereal_s = 67310.54841 + (876600 * 3600 + 8640184.812866) * century + 0.093104 * century**2
    turned = np.radians(sidereal_s % 86400 / 240)
    at_km = np.concatenate([places, [_ground(station, turned) for station in stations]])
    count = len(orbits)
    ends = np.array([*isls, *((one, count + number) for number in range(len(stations)) for one in range(count))])
    return ends, np.linalg.norm(at_km[ends[:, 0]] - at_km[ends[:, 1]], axis=2).T


def _ground(station: tuple[float, float, float], turned: Floats) -> Floats:
    """Return the positions of a ground station, [times, 3] km, while the earth has turned by these angles."""
    north, east = np.radians(station[:2])
    squared = _FLATTENING * (2 - _FLATTENING)
    normal_km = _EARTH_KM / np.sqrt(1 - squared * np.sin(north) ** 2)
    out_km, angle = (normal_km + station[2]) * np.cos(north), east + turned
    up = np.full_like(angle, (normal_km * (1 - squared) + station[2]) * np.sin(north))
    return np.stack([out_km * np.cos(angle), out_km * np.sin(angle), up], axis=1)


def on_shortest_paths(ends: Array, delays_s: Floats, satellites: int) -> npt.NDArray[np.bool_]:
    """Return which links a shortest path between two ground stations takes at any time, [links].

    `ends` are the two nodes of each link, [links, 2]; nodes from `satellites` on are ground stations, which no path
    passes. `delays_s` are the links' delays, [times, links], NaN where there is no link.
    """
    from scipy.sparse import csr_array  # slow to import, and other packs do not need it
    from scipy.sparse.csgraph import dijkstra

    count, used = int(ends.max()) + 1, np.zeros(len(ends), dtype=bool)
    number = {(a, b): link for link, (a, b) in enumerate(ends.tolist())}
    number |= {(b, a): link for (a, b), link in number.items()}
    for row in delays_s:
        there = np.isfinite(row)
        (a, b), weight = ends[there].T, row[there]
        for source in range(satellites, count - 1):
            # Links lead from satellites only, and from the source.
            out = [(a, b), (b, a)]
            src, dst = (np.concatenate(each) for each in zip(*out, strict=True))
            kept = (src < satellites) | (src == source)
            graph = csr_array((np.tile(weight, 2)[kept], (src[kept], dst[kept])), shape=(count, count))
            _, before = dijkstra(graph, indices=source, return_predecessors=True)
            for far in range(source + 1, count):
                node = far
                while before[node] >= 0:
                    used[number[int(before[node]), node]] = True
                    node = int(before[node])
    return used
