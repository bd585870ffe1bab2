"""What packs give, measured in the VM: round trips, and rates that a background load leaves."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import networkx
import numpy as np
import pytest

from tests.conftest import PROJECT
from tests.topologies.test_packs import REGIONS, data, markdown, rtt_ms
from topologies.packs.table import moves_of

__all__ = ["data"]

RUN = str(PROJECT / "scenarios" / "run.py")


def run(*arguments: str, input: str | None = None, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, RUN, *arguments],
        cwd=cwd,
        input=input,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ping_between_ten_regions_equals_the_table_of_round_trips(tmp_path: Path) -> None:
    """The table has another value in each direction; what is there and back is their mean.

    Ping tells whole microseconds between two readings of a clock, so that one microsecond is its own rounding.
    """
    (tmp_path / "network-latency.md").write_text(markdown())
    pairs = list(combinations(range(len(REGIONS)), 2))
    lines = "".join(f"g{a} ping -c 1 g{b}\n" for a, b in pairs)
    scenario = str(PROJECT / "scenarios" / "packs" / "latency.toml")
    shown = run(scenario, "--cli", "--data", str(tmp_path), input=lines, cwd=tmp_path)
    found = [float(one) for one in re.findall(r"rtt min/avg/max/mdev = ([0-9.]+)/", shown)]
    names = [REGIONS[at] for at in range(len(REGIONS))]
    wanted = [(rtt_ms(names[a], names[b]) + rtt_ms(names[b], names[a])) / 2 for a, b in pairs]
    assert [round(one * 1e3) for one in found] == pytest.approx([one * 1e3 for one in wanted], abs=1)


def test_collectives_under_a_load_take_the_predicted_times(data: Path, tmp_path: Path) -> None:
    """The load fills up to 0.9 of a link, so that the times of the four collectives differ by a half."""
    load = '{matrices = "matrices:matrices", peak = 0.9}'
    sets = [f"conditions.load={load}", "collective.count=4", "conditions.wan_rate=10 Gbit/s", "fabric.paths=1"]
    scenario = str(PROJECT / "scenarios" / "packs" / "sndlib.toml")
    options = [f"--set={one}" for one in (*sets, "conditions.intra_rate=100 Gbit/s", "collective.emulated=4")]
    shown = run(scenario, "--data", str(data), *options, "--modes=base", "--chunk=8 MB", "--json", cwd=tmp_path)
    answer = json.loads(shown)
    assert answer["fidelity"]["collectives"] == 4 and answer["fidelity"]["drops"] == 0
    assert answer["fidelity"]["p99_abs_error"] < 1e-3
    measured = {point["engine"]: point["mean_s"] for point in answer["points"]}
    assert measured["emulation"] == pytest.approx(measured["model"], rel=1e-3)


def test_a_constellations_round_trips_are_its_links_delays_and_no_packet_is_lost_at_handovers(
    data: Path, tmp_path: Path
) -> None:
    """A datagram every 50 ms for 40 s, in which the shortest path changes; each row holds for a second.

    The round trip in a row is twice the least sum of delays, by networkx, over the links that are there; a datagram is
    under way when links move or a path changes 40 times.
    """
    pytest.importorskip("sgp4")
    span = "@0 s-40 s"
    scenario = (PROJECT / "scenarios" / "packs" / "satellites.toml").read_text().replace("@0 s-200 s", span)
    (tmp_path / "moving.toml").write_text(scenario)
    command = f"{sys.executable} {PROJECT / 'tests' / 'guest' / 'round_trips.py'} 40 50"
    shown = run("moving.toml", "--data", str(data), f"--set=program.command={command}", cwd=tmp_path)
    found = np.array([line.split() for line in shown.splitlines() if re.fullmatch(r"\d+ \d+ -?\d+", line)], np.int64)
    assert len(found) == 800 and (found[:, 2] > 0).all()  # none is lost
    moving = moves_of(f"satellites:{data / 'kuiper'}{span}", 1.0)
    wanted_s, paths = [], set()
    for row in moving.delays_s:
        graph = networkx.Graph()
        for ends, delay_s in zip(moving.links, row, strict=True):
            if np.isfinite(delay_s):
                graph.add_edge(*ends, s=delay_s)
        paths.add(tuple(networkx.shortest_path(graph, *moving.stations, weight="s")))
        wanted_s.append(2 * networkx.shortest_path_length(graph, *moving.stations, weight="s"))
    assert len(paths) > 1
    middle = found[(found[:, 0] % 20 > 4) & (found[:, 0] % 20 < 15)]
    # The ranks start up to some ms after the first row.
    wanted = np.array(wanted_s)[middle[:, 0] // 20]
    assert np.abs(middle[:, 2] / 1e9 - wanted).max() < 10e-6
