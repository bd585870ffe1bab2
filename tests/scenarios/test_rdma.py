"""RDMA over the emulated WAN: programs of libibverbs and perftest, unmodified, on soft-RoCE and soft-iWARP."""

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.fakes.runs import RUN, ended

SCENARIO = """
[fabric]
gpus = 4
border_routers = 1
[conditions]
wan_rate = "10 Gbit/s"
intra_rate = "100 Gbit/s"
wan_delay = "10 ms"
[program]
ranks = [0, 2]
date = "2026-01-01T00:00:00" # gettimeofday() rounds to microseconds of the day
[run]
modes = ["base"]
[transport]
rdma = "rxe"
"""
LINE_BPS, WAN_S = 10e9, 10e-3
FRAME = 4096 / (4096 + 14 + 20 + 8 + 12 + 4)  # RoCE: Ethernet, IPv4, UDP, the base transport header and the checksum
"""The payload's part of a full frame of soft-RoCE (InfiniBand Architecture Specification, annex A17)."""

FORTH_AND_BACK = """
case $RANK in
0) ibv_rc_pingpong -g 1 -s $1 -m 4096 -n $2 > server ;;
1) sleep 0.1; ibv_rc_pingpong -g 1 -s $1 -m 4096 -n $2 g0 ;;
esac
"""
WRITES = """
case $RANK in
0) ib_write_lat $HOW -F -n 10 > server ;;
1) sleep 1; ib_write_lat $HOW -F -n 10 g0 ;;
esac
"""


SIX = """
for n in 1 2 3 4 5 6; do
    ibv_rc_pingpong -e -g 1 -s 1000000 -n 4 -p 1800$n $([ $RANK = 0 ] || { sleep 0.1; echo g0; }) > $RANK.$n &
done
wait
ulimit -l
"""


def run(folder: Path, out: str, command: str, scenario: str = SCENARIO) -> str:
    """Run a script of two ranks in two sites; return what the second one printed."""
    (folder / "mine.toml").write_text(scenario)
    (folder / "mine.sh").write_text(command)
    written, _ = ended("mine.toml", "--json", "--out", out, "--exec", "sh mine.sh", cwd=folder)
    found = json.loads(written)
    assert [rank["status"] for rank in found["ranks"]] == [0, 0], (folder / out / "log.txt").read_text()
    return (folder / out / "output" / "1.stdout").read_text()


def forth_and_back_s(folder: Path, out: str, size_bytes: int, times: int) -> float:
    """Return how long a message there and one back take, of a program that polls a completion queue."""
    command = FORTH_AND_BACK.replace("$1", str(size_bytes)).replace("$2", str(times))
    return float(re.findall(r"([\d.]+) usec/iter", run(folder, out, command))[0]) / 1e6


def test_messages_of_rdma_take_what_their_frames_and_the_wan_take_twice_the_same(tmp_path: Path) -> None:
    short_s = forth_and_back_s(tmp_path, "short", 64, 20)
    assert short_s == pytest.approx(2 * WAN_S, rel=1e-3)
    assert forth_and_back_s(tmp_path, "again", 64, 20) == short_s
    long_s = forth_and_back_s(tmp_path, "long", 4_000_000, 3)  # 40 % of the bandwidth-delay product
    assert long_s == pytest.approx(2 * (8 * 4_000_000 / FRAME / LINE_BPS + WAN_S), rel=0.01)


@pytest.mark.parametrize("kind,how", [("rxe", "-x 1"), ("siw", "-R")])
def test_a_program_that_waits_for_memory_sees_another_hosts_write_after_the_wans_delay(
    tmp_path: Path, kind: str, how: str
) -> None:
    printed = run(tmp_path, kind, WRITES.replace("$HOW", how), SCENARIO.replace("rxe", kind))
    least_us, most_us, typical_us = map(float, re.findall(r"^ 2 +10 +([\d.]+) +([\d.]+) +([\d.]+)", printed, re.M)[0])
    assert WAN_S * 1e6 < least_us <= typical_us <= most_us < WAN_S * 1e6 * 1.001
    assert f"{kind}_g2" in printed  # the device that the program has found


def test_with_ecmp_each_queue_pair_keeps_one_path_and_ranks_may_pin_all_memory(tmp_path: Path) -> None:
    scenario = SCENARIO.replace("border_routers = 1", 'border_routers = 2\nrouting = "ecmp"')
    assert run(tmp_path, "six", SIX, scenario) == "unlimited\n"
    with (tmp_path / "six" / "links.csv").open() as file:
        carried = [*{row["link"]: int(row["bytes"]) for row in csv.DictReader(file)}.values()]  # at the last sample
    of_pair = 4 * 1_000_000 / FRAME
    pairs = [round(one / of_pair) for one in carried]
    assert sum(pairs) == 12 and sum(count > 0 for count in pairs) > 2  # six in each direction
    assert carried == [pytest.approx(count * of_pair, rel=0.05, abs=20_000) for count in pairs]


def test_without_the_key_ranks_have_no_verbs_devices(tmp_path: Path) -> None:
    without = SCENARIO.partition("[transport]")[0]
    assert run(tmp_path, "none", "ls /dev | grep infiniband; ibv_devices | tail -n +3; echo end", without) == "end\n"


def test_each_host_has_its_own_device_and_a_session_ends_while_a_program_holds_one(tmp_path: Path) -> None:
    lines = [
        "g0 rdma link",
        "g2 ls /sys/class/infiniband",
        "g0 (rping -s -v > /dev/null 2>&1 &)",
        "g3 (rping -s -v > /dev/null 2>&1 &)",
        "g2 sleep 0.1; rping -c -a 10.0.0.1 -C 2 -v",
    ]
    (tmp_path / "mine.toml").write_text(SCENARIO)
    done = subprocess.run(
        [*RUN, "mine.toml", "--cli"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^link (\S+)/1 .* netdev (\S+)", done.stdout, re.M) == [("rxe_g0", "g0-eth0")]
    assert re.findall(r"^rxe_\S+$", done.stdout, re.M) == ["rxe_g2"]
    assert done.stdout.count("ping data: rdma-ping-") == 2
