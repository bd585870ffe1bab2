"""Constellations in satgenpy's files (https://github.com/snkas/hypatia). Reads files.

FOLDER@TIME is the constellation at a time after the epoch of its elements, such as "kuiper@50 s"; FOLDER@FROM-TO has
the links that a shortest path between two ground stations takes at any whole second of that span, with their first
delays. The folder has tles.txt, isls.txt, ground_stations.txt and description.txt. A satellite is joined to another as
isls.txt says, if they are within max_isl_length_m, and to every ground station within max_gsl_length_m. In a span no
path passes a third ground station. `orbits` has the positions.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topologies.errors import format_value
from topologies.fabric.map_links import MapLink, MapNode
from topologies.packs.orbits import LIGHT_KM_PER_S, distances, on_shortest_paths
from topologies.packs.published import (
    Array,
    Moves,
    PackError,
    Published,
    delay_of,
    kept,
    lines_of,
    number,
    shown,
    text_of,
)
from topologies.units import DELAY, UnitError, parse_delay_or_zero_s

MAX_SATELLITES, MAX_STATIONS, MAX_ROWS = 10_000, 20, 20_000
_MAX_ISLS, _MAX_DELAYS = 40_000, 20_000_000
_ALLOWED = "FOLDER@50 s, or FOLDER@0 s-200 s"
_TLE = re.compile(r"[12] [ -~]{67}")
_FILES = ("tles.txt", "isls.txt", "ground_stations.txt", "description.txt")


class Sky(NamedTuple):
    """A constellation: elements by satellite, joined satellites, ground stations (latitude, longitude, km), limits."""

    satellites: dict[str, tuple[str, str]]
    isls: list[tuple[int, int]]
    stations: dict[str, tuple[float, float, float]]
    most_isl_km: float
    most_gsl_km: float


def wan(source: str) -> Published:
    """Return the constellation at a time, or the links of shortest paths in a span; raises PackError."""
    found = moves(source, 1.0)
    first_s = [float(column[np.isfinite(column)][:1].sum()) for column in found.delays_s.T]
    links = [MapLink(ends=ends, data=delay_of(s)) for ends, s in zip(found.links, first_s, strict=True) if s > 0]
    names = dict.fromkeys((*found.stations, *(end for link in links for end in link.ends)))
    return Published(nodes={name: MapNode(title=name) for name in names}, links=tuple(links))


def moves(source: str, every_s: float) -> Moves:
    """Return the delays of a span's links every `every_s`; raises PackError."""
    folder, from_s, to_s = _span(source)
    if not 1 <= (rows := round((to_s - from_s) / every_s) + 1) <= MAX_ROWS:
        raise PackError(f"{format_value(source)} has {rows:,} times; allowed: 1 to {MAX_ROWS:,}")
    sky = _sky(folder)
    names = (*sky.satellites, *sky.stations)
    if (size := rows * (len(sky.isls) + len(sky.satellites) * len(sky.stations))) > _MAX_DELAYS:
        raise PackError(
            f"{format_value(source)} has {size:,} delays of links; allowed: {_MAX_DELAYS:,}, as of fewer times"
        )

    def made() -> dict[str, Array]:
        at_s = from_s + np.arange(rows) * every_s
        whole_s = np.arange(from_s, to_s + 1e-9)
        ends, km = distances(sky.satellites, sky.isls, [*sky.stations.values()], np.concatenate([at_s, whole_s]))
        most_km = np.where(ends[:, 1] < len(sky.satellites), sky.most_isl_km, sky.most_gsl_km)
        delays_s = np.where(km <= most_km, km / LIGHT_KM_PER_S, np.nan)
        chosen = np.ones(len(ends), dtype=bool)
        if to_s > from_s:
            chosen = on_shortest_paths(ends, delays_s[rows:], len(sky.satellites))
        return {"ends": ends[chosen], "delays_s": delays_s[:rows][:, chosen]}

    found = kept(files(source), f"{from_s} {to_s} {every_s}", made)
    links = tuple((names[a], names[b]) for a, b in found["ends"].tolist())
    return Moves(stations=tuple(sky.stations), links=links, delays_s=found["delays_s"])


def files(source: str) -> list[Path]:
    """Return the four files of a constellation; raises PackError."""
    folder, *_ = _span(source)
    return [folder / name for name in _FILES]


def _span(source: str) -> tuple[Path, float, float]:
    folder, at, span = source.rpartition("@")
    begin, _, end = span.partition("-")
    try:
        times_s = [parse_delay_or_zero_s(text.strip(), DELAY) for text in (begin, end or begin)]
    except UnitError as error:
        raise PackError(
            f"{format_value(span)} is no time: {error}; allowed: FOLDER@50 s, or FOLDER@0 s-200 s"
        ) from None
    if not at or times_s[1] < times_s[0]:
        raise PackError(f"{format_value(source)} has no time; allowed: {_ALLOWED}")
    return Path(folder), times_s[0], times_s[1]


def _sky(folder: Path) -> Sky:
    tles, isls, stations, description = (folder / name for name in _FILES)
    rows = [line for _, line in lines_of(text_of(tles))][1:]
    satellites: dict[str, tuple[str, str]] = {}
    for count, (name, one, two) in enumerate(zip(rows[::3], rows[1::3], rows[2::3], strict=False)):
        if not (_TLE.fullmatch(one) and _TLE.fullmatch(two) and one[0] + two[0] == "12") or name in satellites:
            raise PackError(
                f"{shown(tles)}: satellite {count:,} is {format_value(one)}; allowed: a name and two elements"
            )
        satellites[name] = (one, two)
    if len(rows) % 3 or not 1 <= len(satellites) <= MAX_SATELLITES:
        raise PackError(f"{shown(tles)} has {len(rows):,} lines of elements; allowed: three for each of 1 to 10,000")
    pairs = []
    for count, line in lines_of(text_of(isls)):
        ends = [int(number(text, f"{shown(isls)}:{count}", most=len(satellites) - 1)) for text in line.split()]
        if len(ends) != 2:
            raise PackError(f"{shown(isls)}:{count}: {format_value(line)} is no link; allowed: two satellites")
        pairs.append((ends[0], ends[1]))
    if len(pairs) > _MAX_ISLS:
        raise PackError(f"{shown(isls)} has {len(pairs):,} links; allowed: {_MAX_ISLS:,}")
    places: dict[str, tuple[float, float, float]] = {}
    for count, line in lines_of(text_of(stations)):
        fields, where = line.split(","), f"{shown(stations)}:{count}"
        if len(fields) not in (5, 8) or fields[1] in satellites or fields[1] in places:
            raise PackError(f"{where}: {format_value(line)} is no station; allowed: ID,NAME,LATITUDE,LONGITUDE,METRES")
        degrees = [number(fields[at], where, least=-most, most=most) for at, most in ((2, 90), (3, 180))]
        places[fields[1]] = (degrees[0], degrees[1], number(fields[4], where, least=-1e3, most=1e4) / 1e3)
    if not 2 <= len(places) <= MAX_STATIONS:
        raise PackError(f"{shown(stations)} has {len(places)} ground stations; allowed: 2 to {MAX_STATIONS}")
    given = dict(line.partition("=")[::2] for _, line in lines_of(text_of(description)))
    limits = [number(given.get(f"max_{one}_length_m", ""), f"max_{one}_length_m") / 1e3 for one in ("isl", "gsl")]
    return Sky(satellites, pairs, places, limits[0], limits[1])
