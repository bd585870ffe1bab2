"""Modules that are loaded once for all ranks: a program is the same as without, but for the time until it begins."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.fakes.runs import ended

PYTHON = shlex.quote(sys.executable)

HEAVY = "import os\nLOADED_IN = os.getpid()\n"

TELLS = """
import json, os, random, signal, socket, subprocess, sys
import numpy, heavy
if len(sys.argv) > 2: raise SystemExit(int(sys.argv[2]))
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
kept = ("Uid", "Gid", "Groups", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Seccomp", "SigIgn")
spaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "uts", "ipc", "mnt", "pid", "cgroup")}
own = {name: os.readlink(f"/proc/{os.getppid()}/ns/{name}") for name in spaces} if os.getppid() else spaces
print(json.dumps({
    "same": {
        "argv": sys.argv, "name": __name__, "file": __file__, "directory": os.getcwd(), "path": sys.path[:1],
        "rank": os.environ["RANK"], "host": socket.gethostname(), "executable": sys.executable,
        "status": {name: status.get(name) for name in kept}, "read": sys.stdin.read(), "umask": os.umask(0o22),
        "environment": {name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "children": subprocess.run(["hostname"], capture_output=True, text=True).stdout,
        "limits": [__import__("resource").getrlimit(kind) for kind in range(10)],
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
    },
    "spaces": spaces, "random": [random.random(), numpy.random.random()], "loaded_here": heavy.LOADED_IN == os.getpid(),
}))
sys.stdout.flush()
"""

FAILS = "def f():\n    raise KeyError('mine')\nf()\n"

SPAWNS = """
import multiprocessing
def double(x): return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool: print(pool.map(double, [1, 2, 3]))
"""

WAITS = """
import signal, sys, time
def stop(*_):
    print("told to end", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, stop)
time.sleep(100)
"""

SHELL = """
ulimit -n 3000
PY tells.py a; echo "status $?"
[ $RANK = 1 ] || exit 0
PY tells.py a 7; echo "status $?"
PY fails.py; echo "status $?"
PY missing.py; echo "status $?"
PY -c 'import sys, heavy; print(sys.argv, __name__)' x; echo "status $?"
PY -m json.tool --help | head -1
PY spawns.py
PY -u waits.py & sleep 1; kill -TERM $!; wait $!; echo "status $?"
PY -c 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'; echo "status $?"
PY -c 'import time; time.sleep(50)' & sleep 1; kill -KILL $!; sleep 0.5; pgrep -f 'sleep.50' | wc -l
echo text | PY -c 'print(input())'
echo $(for name in net uts ipc mnt pid cgroup; do readlink /proc/self/ns/$name; done)
"""

EXPECTED = [
    "status 0",
    "status 7",
    "status 1",
    "status 2",
    "['-c', 'x'] __main__",
    "status 0",
    "usage: python -m json.tool [-h] [--sort-keys] [--no-ensure-ascii]",
    "[2, 4, 6]",
    "told to end",
    "status 5",
    "status 137",
    "0",
    "text",
]


def run(folder: Path, *options: str, status: int = 0) -> tuple[str, str]:
    """Run the commands on two hosts, with a module of the user's own in PYTHONPATH; return output and errors."""
    (folder / "modules").mkdir(parents=True)
    (folder / "modules" / "heavy.py").write_text(HEAVY)
    for name, text in (("tells", TELLS), ("fails", FAILS), ("spawns", SPAWNS), ("waits", WAITS)):
        (folder / f"{name}.py").write_text(text)
    (folder / "all.sh").write_text(SHELL.replace("PY", PYTHON))
    of_program = (f'program.env={{ PYTHONPATH = "{folder}/modules" }}', "program.ranks=[0, 2]")
    sets = [word for one in of_program for word in ("--set", one)]
    command = f"sh all.sh {PYTHON}"
    return ended(
        *("--gpus", "4", "--modes", "base", *sets, *options, "--json", "--out", "run", "--exec", command),
        cwd=folder,
        status=status,
    )


def lines_of(folder: Path, stream: str) -> list[str]:
    """Return the lines that rank 1 printed, without the folder's own path."""
    text = (folder / "run" / "output" / f"1.{stream}").read_text()
    return text.replace(str(folder), "FOLDER").splitlines()


def test_a_program_is_the_same_with_modules_that_are_loaded_once(tmp_path: Path) -> None:
    plain, preloaded = tmp_path / "plain", tmp_path / "preloaded"
    run(plain)
    found = json.loads(run(preloaded, "--set", 'program.preload=["numpy", "heavy"]')[0])
    assert found["left_running"] == 0
    (was, *lines), (now, *others) = lines_of(plain, "stdout"), lines_of(preloaded, "stdout")
    *lines, _ = lines
    *others, spaces = others
    assert spaces.split() == [*json.loads(now)["spaces"].values()]
    before, after = json.loads(was), json.loads(now)
    assert after["same"] == before["same"]
    assert lines == others
    assert lines_of(plain, "stderr") == lines_of(preloaded, "stderr")
    assert (before["loaded_here"], after["loaded_here"]) == (True, False)
    first = json.loads((preloaded / "run" / "output" / "0.stdout").read_text().splitlines()[0])
    assert all(mine != others for mine, others in zip(first["random"], after["random"], strict=True))
    assert lines == EXPECTED


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ('["no_such"]', "cannot load no_such: ModuleNotFoundError: No module named 'no_such'"),
        ('["numpy", "numpy"]', "allowed: a list of names of Python modules, each once"),
        ('["a b"]', "allowed: a list of names of Python modules, each once"),
    ],
)
def test_modules_that_cannot_be_loaded_are_told_before_the_ranks_start(
    tmp_path: Path, modules: str, words: str
) -> None:
    status = 1 if "no_such" in modules else 2
    _, said = run(tmp_path / "run", "--set", f"program.preload={modules}", status=status)
    assert words in said
