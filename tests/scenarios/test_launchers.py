"""The ssh between the hosts of a program, by which launchers start processes, and IPv6 between them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scenarios.spec.program import TOOLS
from tests.conftest import PROJECT
from tests.fakes.runs import ended

PYTHON = shlex.quote(sys.executable)
WAN = ("--wan-delay", "10 ms", "--set", 'conditions.wan_rate="1 Gbit/s"', "--set", 'conditions.intra_rate="10 Gbit/s"')

MPI_WAN = (
    *("--wan-delay", "1 ms", "--set", 'conditions.wan_rate="10 Gbit/s"'),
    *("--set", 'conditions.intra_rate="100 Gbit/s"'),
)


def run(folder: Path, *commands: str, status: int = 0) -> Any:
    options = [word for command in commands for word in ("--exec", command)]
    out, _ = ended(
        "--gpus", "4", "--modes", "base", "--json", "--out", "run", *WAN, *options, cwd=folder, status=status
    )
    return json.loads(out)


SSH = """
ssh g2 hostname
ssh -x -o StrictHostKeyChecking=no -p 22 nobody@g3 'echo $LONGHAUL_GPU; echo "to stderr" >&2; exit 7' 2> errors
echo "status $?"
cat errors
printf 'one\\ntwo\\n' | ssh g1 'cat; echo three'
ssh g2 'echo written > by-g2'; cat by-g2
ssh g3 'kill -TERM $$'; echo "killed $?"
(sleep 0.5; kill -TERM $(pgrep -f "ssh g1 sleep")) &
ssh g1 'sleep 100'; echo "signalled $?"
ssh g1 'trap "echo got it; exit 3" TERM; sleep 100 & wait' & remote=$!
sleep 0.5; kill -TERM $remote; wait $remote; echo "handled $?"
ssh g2 'sleep 1000 > /dev/null 2>&1 & echo left'
rsh g3 head -c 3000000 /dev/zero | wc -c
ssh nowhere true; echo "unknown $?"
ssh -qo ConnectTimeout=1 g1 -p22 echo joined
printf 'a\nb\n' | while read word; do ssh -n g1 "cat; echo $word"; done
head -c 3000000 /dev/zero | ssh g1 "PYTHON -c '
import os
while data := os.read(0, 4096):
    os.write(1, data * 2)'" | wc -c
head -c 30000000 /dev/zero | ssh g1 'sleep 1; echo unread'
head -c 30000000 /dev/zero | timeout 1 ssh g1 'exec sleep 77'; echo "full $?"
(head -c 30000000 /dev/zero; sleep 1) | timeout -s KILL 1 ssh g1 'exec sleep 77'
sleep 0.1; ssh g1 'pgrep -f "^sleep 77" || echo gone'
ssh -Z g1 true; echo "letter $?"
cat $LONGHAUL_HOSTFILE
"""


def test_ssh_runs_commands_on_other_hosts_with_their_streams_status_and_signals(tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text(SSH.replace("PYTHON", PYTHON))
    found = run(tmp_path, "g0: sh mine.sh", "others: sshd")
    assert [rank["stopped"] for rank in found["ranks"]] == [False, True, True, True]
    lines = (tmp_path / "run/output/0.stdout").read_text().splitlines()
    assert lines == [
        *("g2", "g3", "status 7", "to stderr", "one", "two", "three", "written", "killed 143", "signalled 143"),
        *("got it", "handled 3", "left", "3000000", "unknown 255"),
        *("joined", "a", "b", "6000000", "unread", "full 124", "gone", "letter 255", "g0", "g1", "g2", "g3"),
    ]
    told = (tmp_path / "run/output/0.stderr").read_text()
    assert "ssh: nowhere cannot be reached" in told and "ssh: option -Z not recognized; allowed: those of Open" in told
    # The WAN carried what rsh printed.
    (link,) = [one for one in found["links"] if one["link"] == "s1b0>s0b0"]
    assert link["bytes"] > 3_000_000 and found["run_s"] < 10


def test_without_sshd_ssh_says_so(tmp_path: Path) -> None:
    found = run(tmp_path, "g0: ssh g2 true", "g2: sleep 1", status=1)
    assert found["ranks"][0]["status"] == 255
    assert "ssh: g2 cannot be reached: its host runs no sshd" in (tmp_path / "run/output/0.stderr").read_text()


DUAL = """
import os, socket, time
BYTES = 10_000_000
if os.environ["RANK"] == "0":
    server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
    for _ in range(3):
        there, peer = server.accept()
        there.recv(1)
        there.sendall(b"x")
        there.sendall(bytes(BYTES))
        there.close()
        print(peer[0], flush=True)
else:
    own = os.environ["LONGHAUL_ADDRESS6"]
    for family in (socket.AF_INET, socket.AF_INET6, 0):
        address = socket.getaddrinfo("g0", 7000, family, socket.SOCK_STREAM)[0]
        there = socket.socket(*address[:2])
        there.connect(address[4])
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        there.sendall(b"x")
        there.recv(1)
        first, got = time.monotonic(), 0
        while data := there.recv(1 << 20):
            got += len(data)
        print(there.getsockname()[0], there.getsockname()[0] == own, first - began, time.monotonic() - first, got)
"""


def test_hosts_reach_each_other_over_ipv6_at_the_rates_of_ipv4(tmp_path: Path) -> None:
    (tmp_path / "dual.py").write_text(DUAL)
    found = run(tmp_path, f"g0: {PYTHON} dual.py", f"g2: {PYTHON} dual.py")
    over_4, over_6, by_name = [line.split() for line in (tmp_path / "run/output/1.stdout").read_text().splitlines()]
    assert over_4[0].startswith("10.") and over_6[1] == "True" and by_name[0] == over_4[0]
    assert [int(one[4]) for one in (over_4, over_6, by_name)] == [10_000_000] * 3
    assert float(over_6[2]) == pytest.approx(float(over_4[2]), rel=1e-4) == pytest.approx(20e-3, rel=1e-3)
    # IPv6 headers are 20 bytes longer, and within another IPv4 header of 20 bytes, in packets of 9000 bytes.
    assert float(over_6[3]) == pytest.approx(float(over_4[3]), rel=0.01)
    peers = (tmp_path / "run/output/0.stdout").read_text().split()
    assert peers[0].startswith("::ffff:10.") and peers[1].startswith("fd4c:4f4e:")
    (link,) = [one for one in found["links"] if one["link"] == "s0b0>s1b0"]
    assert link["bytes"] == pytest.approx(3 * 10_000_000 * 9014 / 8948, rel=0.01)


@pytest.mark.slow
@pytest.mark.programs
def test_open_mpi_starts_over_ssh_and_its_times_repeat(tmp_path: Path) -> None:
    source = PROJECT / "tests" / "guest" / "mpi.c"
    subprocess.run(["mpicc.openmpi", "-O2", "-o", tmp_path / "mine", source], check=True)
    lines = []
    for out in ("first", "second"):
        options = ("--gpus", "4", "--modes", "base", "--json", "--out", out, *MPI_WAN)
        ended(*options, "--exec", "g0: mpirun.openmpi -n 4 ./mine 4194304 3", "--exec", "others: sshd", cwd=tmp_path)
        lines.append((tmp_path / out / "output" / "0.stdout").read_text().splitlines())
    assert lines[0] == lines[1]
    pings = [float(line.split()[1]) for line in lines[0] if line.startswith("ping-pong")]
    assert pings == pytest.approx([2e-3] * 3, rel=5e-3)
    sums = [line.split() for line in lines[0] if line.startswith("allreduce")]
    assert [float(one[2]) for one in sums] == [0 + 1 + 2 + 3] * 3
    # A ring of 4: in 6 steps each rank passes a quarter on, and no step is faster than the slowest link.
    assert all(float(one[1]) > 6 * 8 * 4194304 / 4 / 10e9 for one in sums)


ALLOWED = "allowed: --nodes, --ntasks, --ntasks-per-node, --nodelist, --exclude, --label, --kill-on-bad-exit"
TOLD = "echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID/$SLURM_NNODES $SLURMD_NODENAME $LONGHAUL_GPU"
SRUN = f"""
told='{TOLD} $RANK/$WORLD_SIZE $LOCAL_RANK'
srun sh -c "$told"
srun -l -n 5 -w 'g[1,3]' -J name --export=ALL sh -c "$told; echo $(hostname) >&2" 2> errors
sort errors
srun --ntasks-per 2 --exclude g0,g2 sh -c 'echo $SLURM_NODELIST $SLURM_TASKS_PER_NODE' | uniq -c
srun sh -c 'exit $SLURM_PROCID' 2> errors; echo "status $?"; sort errors
srun -K sh -c 'test $SLURM_PROCID = 2 && exit 9; sleep 1000' 2> errors; echo "killed $?"
srun -w g7 true; srun -N 5 true; srun -n 0 true; srun
longhaul-as slurm,mpich,openmpi sh -c 'echo $SLURM_PROCID $SLURM_NODELIST $PMI_RANK/$PMI_SIZE $OMPI_COMM_WORLD_RANK'
longhaul-as pbs true
longhaul-as slurm no-such-command; echo "absent $?"
"""


def test_srun_runs_tasks_on_the_hosts_with_the_variables_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text(SRUN)
    found = run(tmp_path, "g0: sh mine.sh", "others: sshd")
    assert found["ranks"][0]["status"] == 0 and found["run_s"] < 20
    lines = (tmp_path / "run/output/0.stdout").read_text().splitlines()
    assert sorted(lines[:4]) == [f"{n}/4 0 {n}/4 g{n} g{n} {n}/4 0" for n in range(4)]
    placed = ["g1", "g1", "g1", "g3", "g3"]
    assert sorted(lines[4:9]) == [
        f"{n}: {n}/5 {n % 3} {n // 3}/2 {gpu} {gpu} {n}/5 {n % 3}" for n, gpu in enumerate(placed)
    ]
    assert lines[9:] == [
        *(f"{n}: g0" for n in range(5)),
        "srun: without effect here: --job-name, --export",
        "      4 g[1,3] 2(x2)",
        *("status 3", *(f"srun: task {n}: exited with {n}" for n in (1, 2, 3))),
        "killed 143",
        *("0 g[0-3] 0/4 0", "absent 127"),
    ]
    assert (tmp_path / "run/output/0.stderr").read_text().splitlines() == [
        'srun: --nodelist: there is no host "g7"; allowed: g[0-3]',
        "srun: --nodes: 5 hosts are more than the 4 that there are",
        'srun: --ntasks: "0" is not a number from 1 up',
        "srun: got no command; allowed: srun [OPTIONS] COMMAND",
        'longhaul-as: "pbs" is not a launcher; allowed: slurm, openmpi, mpich, pmix',
        "longhaul-as: no-such-command: No such file or directory",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-w", "g[a-b]", "true"], 'srun: "g[a-b]" is not a list of hosts; allowed: such as g0,g2 or g[0-2,5]'),
        (["-w", "g1,g9", "true"], 'srun: --nodelist: there is no host "g9"; allowed: g[0-3]'),
        (["-N", "5", "true"], "srun: --nodes: 5 hosts are more than the 4 that there are"),
        (["-n", "none", "true"], 'srun: --ntasks: "none" is not a number from 1 up'),
        (["--ntask", "2", "true"], f"srun: option --ntask not a unique prefix; {ALLOWED}"),
        (["-lZ", "true"], f"srun: option -Z not recognized; {ALLOWED}"),
        (["-n", "2"], "srun: got no command; allowed: srun [OPTIONS] COMMAND"),
    ],
)
def test_srun_says_what_is_wrong_in_a_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "hosts").write_text("g0\ng1\ng2\ng3\n")
    variables = {"LONGHAUL_HOSTFILE": str(tmp_path / "hosts"), "LONGHAUL_GPU": "g0", "MASTER_ADDR": "10.0.0.1"}
    ran = subprocess.run(
        [TOOLS / "srun", *words], env=variables | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"{sentence}\n")


def test_srun_outside_of_a_rank_says_so() -> None:
    ran = subprocess.run(
        [TOOLS / "srun", "true"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and "the variable LONGHAUL_HOSTFILE is not set" in ran.stderr


@pytest.mark.slow
@pytest.mark.programs
def test_mpirun_starts_ranks_where_slurms_variables_are_set(tmp_path: Path) -> None:
    """Open MPI's mpirun then starts its daemons by srun."""
    source = PROJECT / "tests" / "guest" / "mpi.c"
    subprocess.run(["mpicc.openmpi", "-O2", "-o", tmp_path / "mine", source], check=True)
    run(tmp_path, "g0: longhaul-as slurm mpirun.openmpi -n 4 ./mine 4096 1", "others: sshd")
    lines = (tmp_path / "run/output/0.stdout").read_text().splitlines()
    assert [float(line.split()[2]) for line in lines if line.startswith("allreduce")] == [0 + 1 + 2 + 3]


STEPS = """
import os, time, longhaul
for step in range(3):
    begun = time.monotonic()
    if os.environ["RANK"] == "0":
        longhaul.compute(0.03)
    else:
        time.sleep(0.1)
    longhaul.report(step=time.monotonic() - begun)
"""


def test_steps_that_a_launcher_prints_on_one_rank_are_those_of_their_hosts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEPS)
    found = run(tmp_path, f"g0: srun {PYTHON} mine.py", "others: sshd")
    assert (tmp_path / "run/output/0.stdout").read_text().count("longhaul: step 0.") == 12
    told = {(rank, step): step_s for rank, step, step_s in found["steps"]}
    assert told == pytest.approx({(rank, step): 0.1 if rank else 0.03 for rank in range(4) for step in range(3)}, 0.01)
    shares = [rank["computed_of_steps"] for rank in found["ranks"]]
    assert shares == [pytest.approx(1, abs=1e-3), 0, 0, 0] and found["step_s"] == pytest.approx(0.1, rel=0.01)
