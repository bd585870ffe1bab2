"""Hypatia's constellation: its generator's paths and round trips against the pack of satellites.

Run with ``pytest -m references``.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import networkx
import numpy as np
import pytest

from tests.references.conftest import Record, commit
from tests.references.page import FAILED, PASSED, Outcome, Suite
from topologies.packs.table import moves_of

pytestmark = pytest.mark.references

HYPATIA = "github.com/snkas/hypatia"
STATE = "ns3-sat-sim/simulator/test_data/end_to_end/satellite_network_state"
SECONDS, CLOSE_S = 200, 10e-6

DISTANCES = '''
"""Print the length in m of each path at its time, as satgenpy computes it: by PyEphem's ranges and separations."""
import json, math, sys
import ephem

lines = open(sys.argv[1] + "/tles.txt").read().splitlines()[1:]
satellites = [ephem.readtle(*lines[at : at + 3]) for at in range(0, len(lines), 3)]
stations = [line.split(",") for line in open(sys.argv[1] + "/ground_stations.txt")]
epoch = ephem.Date("2000/1/1 00:00:00")

def ranges(latitude, longitude, metres, second, numbers):
    observer = ephem.Observer()
    observer.epoch, observer.date = epoch, ephem.Date(epoch + second * ephem.second)
    observer.lat, observer.lon, observer.elevation = latitude, longitude, metres
    for number in numbers:
        satellites[number].compute(observer)
    return [satellites[number].range for number in numbers]

def length(a, b, second):
    if max(a, b) >= len(satellites):
        _, _, latitude, longitude, metres = stations[max(a, b) - len(satellites)][:5]
        return ranges(latitude, longitude, float(metres), second, [min(a, b)])[0]
    near, far = ranges("0", "0", 0.0, second, [a, b])
    angle = float(ephem.separation(satellites[a], satellites[b]))
    return math.sqrt(near**2 + far**2 - 2 * near * far * math.cos(angle))

paths = json.load(sys.stdin)
print(json.dumps([sum(length(a, b, at) for a, b in zip(path, path[1:])) for at, path in enumerate(paths)]))
'''


def generated_paths(folder: Path, satellites: int) -> list[list[int]]:
    """Return the generator's path from the first ground station to the second at every second, by its forwarding state,
    whose files have what changes every 100 ms."""
    hop, paths = dict[tuple[int, int], int](), list[list[int]]()
    packed = (folder / "dynamic_state_100ms_for_200s.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for step in range(10 * SECONDS):
            file = tar.extractfile(f"dynamic_state_100ms_for_200s/fstate_{step * 100_000_000}.txt")
            assert file is not None
            for line in file.read().decode().splitlines():
                here, end, after, *_ = map(int, line.split(","))
                hop[here, end] = after
            if step % 10 == 0:
                path = [satellites]
                while path[-1] != satellites + 1:
                    path.append(hop[path[-1], satellites + 1])
                paths.append(path)
    return paths


def test_paths_and_round_trips_of_a_moving_constellation_are_the_generators(
    material: Callable[[str, str], Path], record: Record, tmp_path: Path
) -> None:
    pytest.importorskip("sgp4")
    clone = material("hypatia", f"git clone https://{HYPATIA}")
    folder = clone / STATE
    names = [line for line in (folder / "tles.txt").read_text().splitlines()[1::3] if line]
    stations = [line.split(",")[1] for line in (folder / "ground_stations.txt").read_text().splitlines()]
    paths = generated_paths(folder, len(names))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), "ephem>=4.1"]
    subprocess.run(install, check=True, timeout=600)
    done = subprocess.run(
        [sys.executable, "-c", DISTANCES, str(folder)],
        input=json.dumps(paths),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lengths_m = json.loads(done.stdout)

    def cases() -> Mapping[str, Outcome]:
        found = moves_of(f"satellites:{folder}@0 s-{SECONDS - 1} s", 1.0)
        outcomes = dict[str, Outcome]()
        for second, (path, length_m) in enumerate(zip(paths, lengths_m, strict=True)):
            graph = networkx.Graph()
            for ends, delay_s in zip(found.links, found.delays_s[second], strict=True):
                if np.isfinite(delay_s):
                    graph.add_edge(*ends, s=delay_s)
            ours = networkx.shortest_path(graph, *stations, weight="s")
            off_s = 2 * networkx.path_weight(graph, ours, "s") - 2 * length_m / 299_792_458
            is_same = ours == [(*names, *stations)[node] for node in path]
            why = "" if is_same else f"the path is {ours}"
            why = why or (f"the round trip is {off_s * 1e6:.1f} us off" if abs(off_s) > CLOSE_S else "")
            outcomes[f"second {second}"] = Outcome(FAILED if why else PASSED, why)
        return outcomes

    what = (
        "The 17 satellites and two cities of Hypatia's end-to-end test, for 200 s: a second passes if the shortest "
        "path of the pack of satellites is that of the generator's forwarding state, and its round trip within 10 us "
        "of the one that PyEphem, which the generator uses, gives for that path."
    )
    outcomes = record(Suite("Hypatia", commit(clone), HYPATIA, what), cases)
    assert len(outcomes) == SECONDS and not [name for name, one in outcomes.items() if one.kind == FAILED]
