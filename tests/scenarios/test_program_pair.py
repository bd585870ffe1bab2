"""All of the network under two programs: iperf3, and two ranks of torch over Gloo, against rates computed by hand.

``pytest -m programs`` runs iperf3 of Debian, ``pytest -m torch`` installs torch in an environment of its own.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import PROJECT
from tests.fakes.packets import HEADERS, pcap_lengths
from tests.fakes.runs import ended
from tests.scenarios.test_torch import python

__all__ = ["python"]  # the fixture

IPERF3 = pytest.param("iperf3", marks=[pytest.mark.programs, pytest.mark.slow])
TORCH = pytest.param("torch", marks=pytest.mark.torch)
LINKS = [f"s{a}b{x}>s{1 - a}b{y}" for a in (0, 1) for x in (0, 1) for y in (0, 1)]
MBPS = 1000
NETWORK = """
[fabric]
gpus = [2, 2]
[conditions]
wan_rate = "1 Gbit/s"
wan_delay = "1 ms"
intra_rate = "100 Gbit/s"
[run]
modes = ["base"]
"""
SLOW = "".join(
    f'\n[conditions.links."{one}"]\nrate = "0.4 Gbit/s"' for one in LINKS if "s0b0" not in one or "s1b1" in one
)
FAULT = '\n[[fault]]\nat = "0.4 s"\nwhat = "link s0b0-s1b0 down"\nfor = "0.4 s"\n'
BESIDE = '\n[[job]]\nname = "beside"\nranks = [1, 3]\n'
TRACE = """sampler = "trace"
trace = "wan.csv"
every = "400 ms"
"""
POLICIES = """
[[policy]]
name = "reads"
reroute = "gain 0.02"
knowledge = "measured ports"
measure_every = "4 ms"
[[policy]]
name = "old"
reroute = "every 1"
knowledge = "stale 1"
"""

Stream = NDArray[np.float64]
"""What had arrived on a connection: times in s since the ranks' start, and bytes until then."""
Pair = Callable[..., list[list[Stream]]]


@pytest.fixture(params=[IPERF3, TORCH])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    """Return a function that has g2 send to g0 as fast as it can, and returns the streams of each configuration."""
    name = request.param
    interpreter = request.getfixturevalue("python") if name == "torch" else None

    def run(network: str, *options: str, seconds: float = 1.2, connections: int = 1) -> list[list[Stream]]:
        (tmp_path / "net.toml").write_text(network)
        if interpreter:
            script = PROJECT / "tests" / "guest" / "torch_stream.py"
            asked = ["--exec", f"g0,g2: {interpreter} {script} {seconds} {'0 ' * connections}"]
            asked += ["--set", 'program.preload=["torch"]']
        else:
            asked = ["--exec", "g0: iperf3 -s -1 -i 0.1 -f k --forceflush"]
            asked += ["--exec", f"g2: sleep 0.001; iperf3 -c g0 -i 0 -t {math.ceil(seconds)} -P {connections}"]
        ended("net.toml", "--out", "run", *options, *asked, cwd=tmp_path)
        folders = sorted(tmp_path.glob("run/[1-9]")) or [tmp_path / "run"]
        read = of_torch if interpreter else of_iperf3
        return [read((folder / "output" / "0.stdout").read_text()) for folder in folders]

    return run


def of_torch(text: str) -> list[Stream]:
    """Return the streams of tests/guest/torch_stream.py."""
    lines = np.array([[float(word) for word in line.split()] for line in text.splitlines()])
    return [lines[lines[:, 1] == number][:, [0, 2]] for number in np.unique(lines[:, 1])]


def of_iperf3(text: str) -> list[Stream]:
    """Return the streams of an iperf3 server, which begins some round trips after the ranks."""
    found: dict[str, list[tuple[float, float]]] = {}
    for number, begin, end, rate in re.findall(
        r"^\[ *(\d+)\] +([\d.]+)-([\d.]+) +sec .* (\d+) Kbits/sec *$", text, re.M
    ):
        line = found.setdefault(number, [(0.0, 0.0)])
        if abs(float(begin) - line[-1][0]) < 1e-3:
            line.append((float(end), line[-1][1] + (float(end) - float(begin)) * float(rate) * 125))
    return [np.array(line) + np.array([0.01, 0.0]) for line in found.values()]


def mbps(stream: Stream, begin_s: float, end_s: float) -> float:
    """Return the mean rate of what arrives between two instants, in Mbit/s."""
    assert stream[0, 0] <= begin_s and end_s <= stream[-1, 0] + 0.03
    first, last = np.interp([begin_s, end_s], *stream.T)
    return float(last - first) * 8e-6 / (end_s - begin_s)


def phases(streams: Sequence[Stream], *at_s: float) -> list[float]:
    """Return the rates of all streams together between instants, without what iperf3's intervals may mix."""
    spans = pairwise(at_s)
    return [sum(mbps(one, begin + 0.12, end - 0.1) for one in streams) for begin, end in spans]


def carried(folder: Path) -> dict[str, int]:
    """Return the bytes that each WAN link carried, by its name."""
    with (folder / "links.csv").open() as file:
        return {row["link"]: int(row["bytes"]) for row in csv.DictReader(file)}


def shares(streams: Sequence[Stream], rate_mbps: float) -> float:
    """Return on how many links of a rate these streams are: k streams on a link get a k-th part each, and no other."""
    found = [mbps(one, 0.3, 0.9) for one in streams]
    counts = Counter(round(rate_mbps / one) for one in found)
    assert found == pytest.approx([rate_mbps / round(rate_mbps / one) for one in found], rel=0.03)
    assert all(count % number == 0 for number, count in counts.items()), counts
    return sum(count / number for number, count in counts.items())


def test_a_link_fails_at_a_time_and_is_repaired(pair: Pair) -> None:
    ((stream,),) = pair(NETWORK + SLOW + FAULT)
    assert phases([stream], 0.02, 0.4, 0.8, 1.2) == pytest.approx([MBPS, 400, MBPS], rel=0.01)


def test_a_link_fails_at_a_mark_and_is_repaired(pair: Pair, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The mark is iperf3's line of an interval, or the line of torch's 160th tensor of 250 kB."""
    is_torch = "torch" in request.node.name
    mark = "0 40000000" if is_torch else "0.30-0.40 sec"
    ((stream,),) = pair(NETWORK + SLOW + FAULT.replace('"0.4 s"', f"""'mark "{mark}"'""", 1))
    (fault,) = csv.DictReader((tmp_path / "run" / "faults.csv").open())
    began_s = float(fault["began_s"])
    if is_torch:
        assert began_s == pytest.approx(stream[stream[:, 1] == 40_000_000, 0].item(), abs=1e-4)
    else:
        assert began_s == pytest.approx(0.41, abs=0.01)
    assert phases([stream], 0.02, began_s, began_s + 0.4, 1.2) == pytest.approx([MBPS, 400, MBPS], rel=0.01)


def test_a_job_takes_half_of_the_link(pair: Pair) -> None:
    """Its AllGather sends 8 MB at half of the rate, and sends nothing for the delay of 1 ms and a pause of 0.1 ms."""
    ((stream,),) = pair(f'{NETWORK}{BESIDE}kind = "allgather"\nchunk = "8 MB"\n')
    job_s, pause_s = 8 * 8e6 / (MBPS / 2 * 1e6), 1.1e-3
    wanted = MBPS * (job_s / 2 + pause_s) / (job_s + pause_s)
    assert mbps(stream, 0.2, 0.2 + 6 * (job_s + pause_s)) == pytest.approx(wanted, rel=0.01)


def test_background_traffic_takes_its_rate(pair: Pair) -> None:
    noise = 'kind = "background"\npattern = "permutation"\nrate = "300 Mbit/s"\nduration = "20 s"\nchunk = "100 kB"\n'
    ((stream,),) = pair(NETWORK + BESIDE + noise)
    assert mbps(stream, 0.2, 1.1) == pytest.approx(MBPS - 300, rel=0.01)


@pytest.mark.torch
def test_groups_get_the_parts_of_the_classes_that_their_dscp_names(tmp_path: Path, python: Path) -> None:
    gold = '\n[[class]]\nname = "gold"\npriority = 0\nceiling = 0.3\n'
    (tmp_path / "net.toml").write_text(NETWORK + gold)
    script = PROJECT / "tests" / "guest" / "torch_stream.py"
    asked = ["--set", 'program.preload=["torch"]', "--exec", f"g0,g2: {python} {script} 1.2 8 0"]
    ended("net.toml", "--out", "run", *asked, cwd=tmp_path)
    streams = of_torch((tmp_path / "run" / "output" / "0.stdout").read_text())
    assert [mbps(one, 0.2, 1.1) for one in streams] == pytest.approx([0.3 * MBPS, 0.7 * MBPS], rel=0.01)


@pytest.mark.parametrize("routing", ["ecmp", "spray"])
def test_connections_are_spread_over_the_links_as_wholes(pair: Pair, tmp_path: Path, routing: str) -> None:
    network = NETWORK.replace("gpus = [2, 2]", f'gpus = [2, 2]\nrouting = "{routing}"')
    (streams,) = pair(network, connections=8)
    links = shares(streams, MBPS)
    busy = [name for name, size in carried(tmp_path / "run").items() if size > 20e6]
    assert len(streams) == 8 and links == len(busy) >= 2 and all(name.startswith("s1") for name in busy)


def test_connections_are_spread_over_rails(pair: Pair) -> None:
    """A GPU's rate is 1 Gbit/s, and that of each of its two rails half of it. With fewer connections one might be alone
    on a plane, and get less (docs/wan.md)."""
    rails = 'gpus = [2, 2]\ngrain = "physical"\nrails = 2'
    network = NETWORK.replace("gpus = [2, 2]", rails).replace("1 Gbit/s", "10 Gbit/s").replace("100 G", "1 G")
    (streams,) = pair(network, connections=12)
    assert shares(streams, MBPS / 2) == 2


def test_connections_are_spread_over_tunnels(pair: Pair, tmp_path: Path) -> None:
    network = NETWORK.replace("gpus = [2, 2]", 'gpus = [2, 2]\nrouting = "te"')
    (streams,) = pair(network, connections=8)
    assert len(streams) == 8 and 2 <= shares(streams, MBPS) <= 4


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("base", [800, 100, 100, 800]),
        ("wan", [800, 400, 400, 800]),
        ("reads", [800, 100, 400, 400]),
        ("old", [800, 100, 400, 400]),
    ],
)
def test_a_policy_leaves_a_slow_link_once_it_knows(pair: Pair, tmp_path: Path, mode: str, wanted: list[float]) -> None:
    """One link has 800, 100, 100 and 800 Mbit/s, the others have 400. A mode that knows a row later leaves it in the
    third one; whether it returns in the fourth differs: ports of a link without traffic do not show that it is fast."""
    rates = [800, 100, 100, 800, 800, 800]
    rows = [
        f"{0.4 * row},{link},{rate if link == 's1b0>s0b0' else 400}e6"
        for row, rate in enumerate(rates)
        for link in LINKS
    ]
    (tmp_path / "wan.csv").write_text("\n".join(["time_s,link,rate_bps", *rows]) + "\n")
    network = NETWORK.replace('wan_rate = "1 Gbit/s"\n', TRACE) + POLICIES
    ((stream,),) = pair(network, "--modes", mode, seconds=1.6)
    assert phases([stream], 0.02, 0.4, 0.8, 1.2, 1.6) == pytest.approx(wanted, rel=0.02)


def test_a_capture_has_the_packets_of_the_stream(pair: Pair, tmp_path: Path) -> None:
    ((stream,),) = pair(NETWORK, "--capture", "s1b0>s0b0")
    lengths = pcap_lengths((tmp_path / "run/captures/s1b0-s0b0.pcap").read_bytes())
    assert sum(lengths) == carried(tmp_path / "run")["s1b0>s0b0"]
    assert sum(lengths) == pytest.approx(stream[-1, 1] * HEADERS, rel=0.01)
    assert len(lengths) == pytest.approx(stream[-1, 1] / 8948, rel=0.02)


def test_a_sweep_has_a_stream_for_each_rate(pair: Pair) -> None:
    found = pair(NETWORK, "--sweep", "conditions.wan_rate=1 Gbit/s,400 Mbit/s", seconds=0.8)
    assert [mbps(one, 0.2, 0.7) for (one,) in found] == pytest.approx([MBPS, 400], rel=0.01)
