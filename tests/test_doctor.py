"""The command on machines that are not ready: ``--doctor``, the system's Python, and Ctrl-C at the very start."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import native
from scenarios.doctor import CANNOT, table
from scenarios.native import Lack
from tests.conftest import PROJECT, VM

RUN = str(PROJECT / "scenarios" / "run.py")
SYSTEM = "/usr/bin/python3"
ABILITIES = [
    "the virtual clock, in the VM (the default)",
    "the wall clock, in the VM",
    "the wall clock, on its own kernel",
]


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def abilities(text: str) -> list[str]:
    """The first column and the second, of the lines that begin an ability."""
    return [
        " ".join(line.split("  ")[0:1]) + (" yes" if " yes" in line else " no")
        for line in text.splitlines()[1:]
        if line[0] != " "
    ]


def test_here_the_default_works_and_it_has_been_tried() -> None:
    done = run(sys.executable, RUN, "--doctor")
    assert done.returncode == 0, done.stdout
    assert abilities(done.stdout)[:2] == [f"{ABILITIES[0]} yes", f"{ABILITIES[1]} yes"]
    assert done.stderr.splitlines() == [
        f"doctor: trying the VM with the {clock} clock" for clock in ("virtual", "wall")
    ]


def test_a_kernel_that_boots_nothing_is_named_with_what_mends_it(tmp_path: Path) -> None:
    done = run(sys.executable, RUN, "--doctor", LONGHAUL_KERNEL="/bin/true")
    assert done.returncode == CANNOT
    assert abilities(done.stdout)[:2] == [f"{ABILITIES[0]} no", f"{ABILITIES[1]} no"]
    assert "/bin/true is no User-Mode Linux kernel that runs here" in done.stdout
    assert "remove it and run `bash scenarios/setup.sh`" in done.stdout


def test_what_is_missing_stands_line_by_line_beside_what_mends_it() -> None:
    text = table({"this": [], "that": [Lack("a wheel", "turn"), Lack("an axle", "bend")]})
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["this", "yes"],
        ["that", "no", "a", "wheel", "turn"],
        ["an", "axle", "bend"],
    ]


def test_programs_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in native.PROGRAMS[2:]:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(native, "_PATH", str(tmp_path))
    assert native.lacking() == [Lack("the programs ip, tc", "bash scenarios/setup.sh")]


def test_the_vm_has_all_that_the_wall_clock_needs_once_open_vswitch_is_up(vm: VM) -> None:
    script = (
        "from scenarios import native; from scenarios.vm import openvswitch; a = native.lacking(); openvswitch.up()"
    )
    script += "; print(a, native.lacking())"
    done = vm.run("--clock", "wall", "--", sys.executable, "-c", script)
    assert (done.status, done.err) == (0, "")
    assert done.out == "[Lack(what='Open vSwitch running', mend='service openvswitch-switch start')] []\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project without an environment."""
    folder = tmp_path / "longhaul"
    for package in ("topologies", "hosts", "controller", "analysis", "scenarios"):
        shutil.copytree(PROJECT / package, folder / package)
    return folder


def test_the_systems_python_without_an_environment_is_told_to_set_up(project: Path) -> None:
    done = run(SYSTEM, str(project / "scenarios" / "run.py"))
    assert done.returncode == CANNOT
    assert "bash scenarios/setup.sh" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run(SYSTEM, str(project / "scenarios" / "run.py"), "--doctor")
    assert done.returncode == CANNOT
    assert abilities(done.stdout)[0] == f"{ABILITIES[0]} no"
    assert "Python packages" in done.stdout


def test_the_systems_python_goes_on_in_the_projects_environment(project: Path) -> None:
    (project / ".venv").symlink_to(sys.prefix)
    done = run(SYSTEM, str(project / "scenarios" / "run.py"), "--dry-run", "--engine", "model", "--seed", "4711")
    assert done.returncode == 0, done.stderr
    assert "seed = 4711" in done.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [((RUN, "--engine", "model"), "run.py: interrupted\n"), (("-m", "scenarios.vm", "--", "true"), "")],
)
def test_an_interrupt_while_modules_are_imported_leaves_no_trace(command: tuple[str, ...], said: str) -> None:
    # Python tells of every module once it is imported: so it is known when.
    watched = [sys.executable, "-X", "importtime", *command]
    with subprocess.Popen(watched, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() in ("numpy.version", "scenarios.vm.errors"):
                process.send_signal(signal.SIGINT)
                break
        _, err = process.communicate(timeout=60)
    lines = [line for line in err.splitlines(keepends=True) if not line.startswith("import time:")]
    assert "".join(lines) == said
    assert process.returncode == 130
