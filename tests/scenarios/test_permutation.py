"""The permutation traffic pattern under ECMP, spraying and the optimum: closed forms, linear programme, command."""

import csv
import json
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controller.routing.multipath import hashed
from scenarios.studies import harness
from scenarios.studies.permutation import (
    STUDY,
    Experiment,
    Routes,
    capacities,
    ecmp,
    network,
    optimum_s,
    permutation,
    spray,
    times_s,
)
from tests.conftest import PROJECT
from tests.fakes.commands import assert_refused, printed
from topologies.fabric.ports import Ports

main = partial(harness.main, STUDY)

GBIT = 10**9
SIZE = 12_500_000  # 1 ms at 100 Gbit/s


def asked(**given: int) -> Experiment:
    plain = {"hosts": 4, "sites": 1, "leaves": 2, "spines": 2, "border_routers": 1, "size": SIZE, "draws": 1, "seed": 1}
    rates = {"rate_bps": 100 * GBIT, "fabric_rate_bps": 100 * GBIT, "wan_rate_bps": 100 * GBIT}
    return Experiment(**{**plain, **rates, **given})


def ratios(found: dict[str, object], routing: str) -> list[float]:
    assert isinstance(found["routings"], list)
    line = next(line for line in found["routings"] if line["routing"] == routing)
    return [line[name] for name in ("median", "p99", "max", "completion")]


def test_two_hosts_take_the_transmission_time_of_their_cables(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(main, capsys, "--hosts", "2", "--size", "5 MB", "--rate", "40 Gbit/s", "--fabric-rate", "80 Gbit/s")
    assert (found["grain"], found["optimum_s"]) == ("physical", pytest.approx(1e-3))
    assert ratios(found, "ecmp") == ratios(found, "spray") == pytest.approx([1, 1, 1, 1])


def test_two_messages_that_share_one_spine_take_twice_as_long() -> None:
    one = asked()
    ports, dst = Ports(network(one)), np.array([2, 3, 0, 1])
    capacity_bps, message, whole, within = capacities(one, ports), np.arange(4), np.ones(4), np.full(4, -1)
    through_one = Routes(message, whole, within, np.zeros((4, 2), np.int64))
    assert times_s(ports, capacity_bps, dst, through_one, SIZE) == pytest.approx([2e-3] * 4)
    apart = Routes(message, whole, within, np.array([[0, 0], [1, 1], [0, 0], [1, 1]]))
    assert times_s(ports, capacity_bps, dst, apart, SIZE) == pytest.approx([1e-3] * 4)
    sprayed = spray(ports.fabric, 2, message, dst)
    assert times_s(ports, capacity_bps, dst, sprayed, SIZE) == pytest.approx([1e-3] * 4)
    assert optimum_s(ports, capacity_bps, dst, sprayed, SIZE) == pytest.approx(1e-3)


def test_messages_that_cross_the_wan_share_its_single_link_fairly() -> None:
    """Three of the four hosts per site send over one WAN link of 10 Gbit/s; the fourth is done after 1 ms."""
    one = asked(hosts=8, sites=2, wan_rate_bps=10 * GBIT)
    ports, dst = Ports(network(one)), np.array([4, 5, 6, 0, 7, 1, 2, 3])
    capacity_bps, sprayed = capacities(one, ports), spray(ports.fabric, 2, np.arange(8), dst)
    within = np.array([3, 4])  # 3 > 0 and 4 > 7
    found = times_s(ports, capacity_bps, dst, sprayed, SIZE)
    assert np.delete(found, within) == pytest.approx([30e-3] * 6)
    assert found[within] == pytest.approx([1e-3] * 2)
    assert optimum_s(ports, capacity_bps, dst, sprayed, SIZE) == pytest.approx(30e-3)


def linear_programme_s(one: Experiment, ports: Ports, dst: np.ndarray) -> float:
    """Return the least time to deliver the messages when they may be split arbitrarily over all spines and paths."""
    fabric, capacity_bps, columns, ends = ports.fabric, capacities(one, ports), [], []
    for src in range(one.hosts):
        sites = int(fabric.gpu_sites[src]), int(fabric.gpu_sites[dst[src]])
        spines = list(product(range(one.spines), repeat=2))
        ways = [(-1, (p, p)) for p in range(one.spines)]
        if sites[0] != sites[1]:
            ways = [(path.index, pair) for path in fabric.paths_between[sites] for pair in spines]
        for path, pair in ways:
            columns.append(ports.edge(src, int(dst[src]), path, pair))
            ends.append(src)
    load = np.zeros((len(capacity_bps), len(columns) + 1))  # the last variable is the time
    for column, crossed in enumerate(columns):
        load[list(crossed), column] = 8 * one.size
    load[:, -1] = -capacity_bps * 1e-3  # in ms
    whole = np.zeros((one.hosts, len(columns) + 1))
    whole[ends, np.arange(len(columns))] = 1
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1
    scale = 1 / capacity_bps.max()
    found = linprog(cost, load * scale, np.zeros(len(load)), whole, np.ones(one.hosts), method="highs")
    assert found.success
    return float(found.fun) * 1e-3


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_optimum_equals_the_linear_programme_and_no_routing_beats_it(data: st.DataObject) -> None:
    sites, each = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    counts = {name: data.draw(st.integers(1, 3), name) for name in ("leaves", "spines", "border_routers")}
    rates = {name: GBIT * data.draw(st.integers(10, 200)) for name in ("rate_bps", "fabric_rate_bps", "wan_rate_bps")}
    one = asked(hosts=sites * each, sites=sites, **counts, **rates)
    ports, src = Ports(network(one)), np.arange(one.hosts)
    dst = permutation(one.hosts, np.random.default_rng(data.draw(st.integers(0, 99))))
    capacity_bps, sprayed = capacities(one, ports), spray(ports.fabric, one.spines, src, dst)
    best_s = optimum_s(ports, capacity_bps, dst, sprayed, one.size)
    assert best_s == pytest.approx(linear_programme_s(one, ports, dst), rel=1e-6)
    for ways in (sprayed, ecmp(ports.fabric, one.spines, src, dst, seed=data.draw(st.integers(0, 99)))):
        assert np.bincount(ways.message, ways.share) == pytest.approx(np.ones(one.hosts))
        found = times_s(ports, capacity_bps, dst, ways, one.size)
        assert found.max() >= best_s * (1 - 1e-9)
        assert found.min() >= 8 * one.size / one.rate_bps * (1 - 1e-9)


def test_permutations_without_fixed_points_are_drawn_with_equal_probability() -> None:
    rng = np.random.default_rng(1)
    found = Counter(tuple(permutation(4, rng).tolist()) for _ in range(9000))
    assert set(found) == {one for one in permutations(range(4)) if all(a != b for a, b in enumerate(one))}
    assert all(850 < count < 1150 for count in found.values())  # 1000 +- 5 standard deviations


def test_the_ecmp_hash_spreads_flows_evenly_and_depends_on_seed_and_hop() -> None:
    src, dst = (ends.ravel() for ends in np.meshgrid(np.arange(128), np.arange(128)))
    for hop in range(3):
        counts = np.bincount((hashed(7, src, dst, hop) % 16).astype(int), minlength=16)
        assert ((counts - 1024) ** 2 / 1024).sum() < 40  # chi-squared of 15 degrees of freedom: 1 in 2,000
    assert len({*hashed(7, src, dst, 0).tolist()}) == 128 * 128
    for seed, hop in ((8, 0), (7, 1)):
        same = (hashed(7, src, dst, 0) % 16 == hashed(seed, src, dst, hop) % 16).mean()
        assert same == pytest.approx(1 / 16, abs=0.01)


def test_ecmp_uses_every_spine_and_every_path() -> None:
    one = asked(hosts=128, sites=2, leaves=4, spines=4, border_routers=2)
    fabric, src = network(one), np.arange(128)
    ways = ecmp(fabric, 4, src, permutation(128, np.random.default_rng(1)), seed=3)
    assert {*ways.path.tolist()} == {-1, *(path.index for path in fabric.paths)}
    assert {*map(tuple, ways.spine[ways.path >= 0].tolist())} == {*product(range(4), repeat=2)}
    assert {*map(tuple, ways.spine[ways.path < 0].tolist())} == {(p, p) for p in range(4)}


def test_a_single_site_is_wired_like_one_of_several_sites() -> None:
    alone, beside = Ports(network(asked())), Ports(network(asked(hosts=8, sites=2)))

    def names(ports: Ports, src: int, dst: int, spine: int) -> list[str]:
        return [ports.all[port].name for port in ports.edge(src, dst, -1, (spine, spine))]

    for src, dst, spine in ((0, 3, 1), (2, 1, 0), (0, 1, 0)):
        assert names(alone, src, dst, spine) == names(beside, src, dst, spine)
    with pytest.raises(ValueError, match="no path 0 leads from rank 0 to rank 1"):
        alone.edge(0, 1, 0)


def test_with_1024_hosts_ecmp_takes_several_times_the_optimum_and_spraying_equals_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = printed(main, capsys, "--draws", "2", "--seed", "5")
    assert (found["hosts"], found["leaves"], found["spines"]) == (1024, 32, 32)
    median, tail, most, _ = ratios(found, "ecmp")
    assert 1.5 < median < 2.5 < 4 < tail <= most
    assert ratios(found, "spray") == pytest.approx([1, 1, 1, 1], rel=1e-9)
    assert printed(main, capsys, "--draws", "2", "--seed", "5") == found
    assert printed(main, capsys, "--draws", "2", "--seed", "6")["routings"] != found["routings"]


def test_the_figure_is_written_together_with_its_data_as_csv_and_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = printed(main, capsys, "--hosts", "16", "--draws", "3", "--figure", str(tmp_path / "flows"))
    assert json.loads((tmp_path / "flows.json").read_text()) == found
    assert (tmp_path / "flows.png").stat().st_size > 1000
    svg = (tmp_path / "flows.svg").read_text()
    assert all(word in svg for word in ("ecmp", "spray", "optimum", "physical"))
    rows = list(csv.DictReader((tmp_path / "flows.csv").open()))
    for routing in ("ecmp", "spray"):
        mine = [row for row in rows if row["routing"] == routing]
        assert float(mine[-1]["share"]) == 1
        assert float(mine[-1]["time_over_optimum"]) == pytest.approx(ratios(found, routing)[2])


# With two sites, messages that cross the WAN also share the spines within each site.
@pytest.mark.parametrize("sites", ["2", pytest.param("1", marks=pytest.mark.slow)])
def test_times_in_the_testbed_match_the_model_for_ecmp_and_spraying(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sites: str
) -> None:
    """Both use the same hash: a different spine for one message in ten would change the times by 50 %."""
    figure = tmp_path / "flows"
    arguments = ("--hosts", "12", "--sites", sites, "--draws", "1", "--engine", "both", "--figure", str(figure))
    found = printed(main, capsys, *arguments)
    assert isinstance(found["routings"], list)
    lines = {(line["routing"], line["engine"]): line for line in found["routings"]}
    assert [*lines] == [("ecmp", "model"), ("spray", "model"), ("ecmp", "emulation"), ("spray", "emulation")]
    for routing in ("ecmp", "spray"):
        line = lines[routing, "emulation"]
        assert line["worst_message"] < 0.02 and line["worst_completion"] < 0.01
    assert lines["ecmp", "emulation"]["max"] > 1.4 > 1.05 > lines["spray", "emulation"]["max"]
    rows = list(csv.DictReader((tmp_path / "flows.csv").open()))
    assert {row["engine"] for row in rows} == {"model", "emulation"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hosts", "1"], "--hosts: 1; allowed: 2 to 4,096"),
        (["--hosts", "10", "--sites", "3"], "--hosts: 10 over 3 sites; allowed: a multiple of 3"),
        (["--hosts", "600", "--sites", "2"], "a site has 1 to 256"),
        (["--sites", "9"], "--sites: 9; allowed: 1 to 8"),
        (["--draws", "0"], "--draws: 0; allowed: 1 to 10,000"),
        (["--seed", "-1"], "--seed: -1"),
        (["--spines", "0"], "--spines: 0; allowed: 1 to 128"),
        (["--hosts", "1024", "--leaves", "3"], "--leaves: 3 would need 342 spines; allowed: 8 to 128, or fewer with"),
        (["--leaves", "200"], "--leaves: 200; allowed: 1 to 128"),
        (["--border-routers", "0"], "--border-routers: 0"),
        (["--size", "8 parsec"], "parsec"),
        (["--wan-rate", "fast", "--sites", "2"], "fast"),
        (["--wan-rate", "1 Gbit/s"], "--wan-rate: 1 Gbit/s does nothing in one site; allowed: with --sites 2 or more"),
        (["--border-routers", "1"], "--border-routers: 1 does nothing in one site"),
        (["--sites", "2", "--hosts", "256", "--spines", "32", "--border-routers", "32"], "pieces of messages"),
        (["--figure", "/no/such/folder/x"], "/no/such/folder"),
        (["--figure", "/proc/x"], "--figure: /proc cannot be written to"),
        (["--hosts", "8", "--fabric-rate", "50 Gbit/s", "--engine", "both"], "--fabric-rate: 50 Gbit/s; allowed in"),
        (["--hosts", "400", "--engine", "both", "--draws", "1"], "400 gpus in a site; a site has 1 to 256"),
        (["--jobs", "0"], "--jobs: 0; allowed: 1 to 64"),
        (["--figure", "."], '--figure: "." names no file'),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert_refused(main, capsys, arguments, says)


def test_unwritable_output_is_named_as_such_and_a_reader_that_has_exited_ends_the_command_silently() -> None:
    command = f"{sys.executable} scenarios/permutation.py --hosts 8 --draws 1"
    for said, end in (
        ("permutation.py: the output cannot be written: No space left on device\n", "> /dev/full"),
        ("", "|:"),
    ):
        found = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{command} {end}"], cwd=PROJECT, capture_output=True, text=True
        )
        assert (found.returncode, found.stderr) == (1, said)
