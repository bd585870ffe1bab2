"""Two cables between the same two border routers in the VM: each has its rate, its delay, its faults, its packets."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, VM
from tests.fakes.runs import answer, ended, measured, rows

TWO = """
[fabric]
gpus = [1, 1]
border_routers = 1
[fabric.wan]
links = [["s0b0", "s1b0"], ["s0b0", "s1b0", { delay = "3 ms", rate = "80 Gbit/s" }]]
[conditions]
wan_rate = "20 Gbit/s"
wan_delay = "1 ms"
intra_rate = "200 Gbit/s"
[collective]
chunk = "8 MB"
pieces = 1
count = 4
emulated = 4
[run]
modes = ["base", "wan"]
"""
ENDS_S = 2 * 0.7e-6
FIRST_S, SECOND_S = 64e6 / 20e9 + 1e-3 + ENDS_S, 64e6 / 80e9 + 3e-3 + ENDS_S  # 4.2 and 3.8 ms


def test_each_of_two_cables_has_its_own_rate_and_delay_and_the_better_one_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO)
    measured(tmp_path / "out", "two.toml", "--engine", "both", p99=0.002)
    found = rows(tmp_path / "out")
    for mode, seconds in (("base", FIRST_S), ("wan", SECOND_S)):
        here = found[found["mode"] == mode]
        assert here.completion_s.to_list() == pytest.approx([seconds] * len(here), rel=2e-3)


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_a_fault_takes_down_one_of_two_cables_and_each_has_a_capture(tmp_path: Path, grain: str) -> None:
    fault = '[[fault]]\nat = "collective 1"\nwhat = "link s0b0-s1b0 down"\nfor = "2 collectives"\n'
    (tmp_path / "two.toml").write_text(TWO.replace('["base", "wan"]', '["base"]') + fault)
    captures = ("--capture", "s0b0>s1b0", "--capture", "s0b0-s1b0#2", "--set", f"fabric.grain={grain}")
    answer(tmp_path / "out", "two.toml", "--engine", "emulation", *captures)
    seconds = rows(tmp_path / "out").completion_s.to_list()
    assert seconds == pytest.approx([FIRST_S, SECOND_S, SECOND_S, FIRST_S], rel=3e-3)
    with (tmp_path / "out/captures/base/captured.csv").open() as file:
        packets = {row["link"]: int(row["packets"]) for row in csv.DictReader(file)}
    assert list(packets) == ["s0b0>s1b0", "s0b0>s1b0#2", "s1b0>s0b0#2"]
    assert packets["s0b0>s1b0"] == pytest.approx(packets["s0b0>s1b0#2"], rel=0.1) and packets["s0b0>s1b0"] > 50


@pytest.mark.parametrize("routing", ["ecmp", "spray", "te"])
def test_flows_are_spread_over_both_cables_as_predicted(tmp_path: Path, routing: str) -> None:
    sizes = TWO.replace("gpus = [1, 1]", f'gpus = [3, 3]\nrouting = "{routing}"').replace("8 MB", "4 MB")
    (tmp_path / "two.toml").write_text(sizes.replace("[collective]", '[collective]\nkind = "alltoall"'))
    measured(tmp_path / "out", "two.toml", "--engine", "both", p99=0.005)
    base = rows(tmp_path / "out")
    paths = {int(path) for row in base[base["mode"] == "base"].paths for path in row if path >= 0}
    assert len(paths) == 4  # two each way


def test_a_trace_has_a_rate_for_each_cable(tmp_path: Path) -> None:
    rates = {"s0b0-s1b0": (1, 8), "s0b0-s1b0#2": (8, 1)}
    lines = [f"{time},{link},{rate[time]} Gbit/s" for time in (0, 1) for link, rate in rates.items()]
    (tmp_path / "two.csv").write_text("\n".join(["time,link,rate", *lines]))
    text = TWO.replace('wan_rate = "20 Gbit/s"', 'sampler = "trace"\ntrace = "two.csv"').replace(
        "count = 4", "count = 2"
    )
    (tmp_path / "two.toml").write_text(text)
    answer(tmp_path / "out", "two.toml", "--engine", "model")
    found = rows(tmp_path / "out")
    slow_s, fast_s = (64e6 / bps for bps in (1e9, 8e9))
    times = {mode: here.completion_s.to_list() for mode, here in found.groupby("mode")}
    assert times["base"] == pytest.approx([slow_s + 1e-3 + ENDS_S, fast_s + 1e-3 + ENDS_S])
    assert times["wan"] == pytest.approx([fast_s + 3e-3 + ENDS_S, fast_s + 1e-3 + ENDS_S])


TYPED = """link s0b0 s1b0#2 down
paths
allgather chunk 8 MB
link s0b0-s1b0#2 up
link s0b0 s1b0 down
rate s0b0>s1b0#2 5 Gbit/s
iperf g0 g1
links
link s0b0 s1b0#3 down
link s0b0-s1b0 up
mode wan
allgather chunk 8 MB
"""


def test_the_prompt_takes_each_cable_down_and_shapes_it_alone(vm: VM) -> None:
    (vm.folder / "two.toml").write_text(TWO)
    run = str(PROJECT / "scenarios" / "run.py")
    session = vm.run("two.toml", "--cli", program=[run], input=TYPED.encode(), timeout=400)
    out = session.out
    assert "s0b0 - s1b0#2 is down" in out and re.search(r"s0b0>s1b0#2 +down", out)
    times = re.findall(r"measured ([0-9.]+) ms, predicted ([0-9.]+) ms, ratio 1.000", out)
    assert len(times) == 2 and float(times[0][0]) == pytest.approx(FIRST_S * 1e3, rel=5e-3)
    (carried,) = re.findall(r"([0-9.]+) Gbit/s of payload carried; s0b0>s1b0#2, the slowest link on the path", out)
    assert float(carried) == pytest.approx(5, rel=0.05)  # slow start takes a part
    assert re.findall(r"^s0b0-eth\d+<->s1b0-eth\d+ (\w+)$", out, re.M) == ["down", "up"]
    assert "no cable joins s0b0 and s1b0#3: s0b0 is joined to s0p0, s0p1, s1b0, s1b0#2" in out
    assert session.status == 1  # as a line was refused


def test_a_program_sees_the_bytes_of_each_cable(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO)
    command = f"{sys.executable} -c pass; test $RANK = 1 || ping -c 2 g1"
    said, _ = ended("--json", "--out", tmp_path / "out", "two.toml", "--modes", "base", "--exec", command, cwd=tmp_path)
    found = json.loads(said)
    sent = {link["link"]: link["bytes"] for link in found["links"]}
    assert sent.keys() == {"s0b0>s1b0", "s1b0>s0b0", "s0b0>s1b0#2", "s1b0>s0b0#2"}
    assert sent["s0b0>s1b0"] > 100 and sent["s0b0>s1b0#2"] == 0
