"""The same controller on stock Ryu 4.34, which the tests install from the package index: ``pytest -m ryu``."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT, VM, own_python
from tests.controller.test_real_switches import check_controller
from tests.fakes.mn import run_mn

pytestmark = pytest.mark.ryu

STEPS = (
    # Ryu's build needs a setuptools that still has easy_install; by default, pip would build with a newer one.
    ("setuptools<58", "wheel"),
    ("--no-build-isolation", "ryu==4.34", "eventlet==0.41.3", "numpy"),
)


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python with stock Ryu and without os-ken."""
    with own_python(*STEPS) as found:
        yield found


def test_the_controller_runs_on_stock_ryu_without_os_ken(python: Path) -> None:
    script = "from controller import compat; print(compat.version(), compat.App.__module__)"
    ended = subprocess.run([python, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert ended.stdout == "ryu 4.34 ryu.base.app_manager\n"


def test_routes_restarts_and_reconnections_work_with_real_switches_on_ryu(vm: VM, python: Path) -> None:
    check_controller(vm, "mesh", CONTROLLER_PYTHON=str(python))


def test_ryu_manager_loads_the_app_by_its_module_name(vm: VM, python: Path) -> None:
    (vm.folder / "longhaul.conf").write_text("[longhaul]\ngpus = 2+2\nleaves = 1\nspines = 1\nsocket = /run/c.sock\n")
    # ryu-manager itself needs a name that eventlet has dropped and `controller.compat` restores
    given = "import eventlet.wsgi as w; w.ALREADY_HANDLED = object(); from ryu.cmd.manager import main; main()"
    controller = f'{python} -c "{given}" --config-file longhaul.conf controller.app'
    shown = run_mn(vm, controller, "gpus=2+2,leaves=1,spines=1", look="g3")
    assert "*** Results: 0% dropped (12/12 received)" in shown
