"""Fixtures and helpers for all tests: the VM as users start it, and an unprivileged user to start it as."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest
from hypothesis import settings

from scenarios.vm import kernel
from tests.fakes.processes import Process

PROJECT = Path(__file__).parent.parent
NOBODY = 65534
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
"""Arguments of Popen that start a process as an unprivileged user; none if the tests themselves run as one."""
WHO: int = AS_NOBODY.get("user", os.getuid())
"""The id of that user."""

# Set before anything imports numpy, whose threads spin for a while on processors that other tests wait for.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Also with PYTHONDONTWRITEBYTECODE: every process that runs tests would rewrite the assertions of all modules again,
# which takes 8 s each.
sys.dont_write_bytecode = False
# The time that an example takes has no meaning; every run of the tests draws other examples.
settings.register_profile("any machine", deadline=None, max_examples=50)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the folder of other people's material (tests/references)."""
    parser.addoption("--references", metavar="DIR", help="the folder of other people's tests (-m references)")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share a fixture of their module in one process, so that it is made once (--dist loadgroup), and
    tests marked `alone` last, when no long test keeps them and all others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)
    for item in items:
        assert isinstance(item, pytest.Function)
        if any(one.scope == "module" for found in item._fixtureinfo.name2fixturedefs.values() for one in found):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked `alone` while no other test of this user runs in any process.

    Such a test waits for the others to end, and they wait for it.
    """
    folder = kernel.cache_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tests-next").open("a") as following, (folder / "tests-running").open("a") as running:
        # A test that waits to be alone holds `following`, so that no other test starts before it.
        fcntl.flock(following, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(following, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:  # closing the file does not unlock it while a process forked by the test has it open
            fcntl.flock(running, fcntl.LOCK_UN)


class VM:
    """Starts ``python -m scenarios.vm`` as an unprivileged user, in a separate process."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.folder = folder  # a folder that the unprivileged user owns
        self.environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "LONGHAUL_KERNEL": str(image),
            "PYTHONPATH": str(PROJECT),
        }

    def start(
        self, *arguments: str, program: Sequence[str] = ("-m", "scenarios.vm"), **popen: object
    ) -> "subprocess.Popen[bytes]":
        """Start the VM, or another program in Python, with these arguments; its streams are pipes by default."""
        environment = self.environment | popen.pop("env", {})  # type: ignore[operator]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return Process(
            [sys.executable, *program, *arguments],
            **({"cwd": self.folder, "env": environment} | streams | AS_NOBODY | popen),  # type: ignore[call-overload]
        )

    def run(self, *arguments: str, input: bytes = b"", timeout: float = 120, **popen: object) -> "Ended":
        """Run the VM until it ends."""
        with self.start(*arguments, **popen) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            finally:
                process.kill()
        return Ended(process.returncode, out, err)

    def terminal(
        self, *arguments: str, program: Sequence[str] = ("-m", "scenarios.vm"), **environment: str
    ) -> "pexpect.spawn[str]":
        """Do what `start` does, at a pseudo-terminal of 50 lines by 160 columns."""
        return pexpect.spawn(
            sys.executable,
            [*program, *arguments],
            env=self.environment | {"TERM": "xterm"} | environment,
            cwd=str(self.folder),
            preexec_fn=become_nobody,
            dimensions=(50, 160),
            encoding="utf-8",
            timeout=120,
        )

    def report(
        self, guest: str, *arguments: str, options: Sequence[str] = ("--memory", "4 GiB"), **environment: str
    ) -> Any:
        """Run a module of tests/guest in the VM; return the JSON that it prints last. Fails if the module fails."""
        command = [*options, "--", sys.executable, "-m", f"tests.guest.{guest}", *arguments]
        ended = self.run(*command, timeout=500, cwd=PROJECT, env={"SETUPTOOLS_USE_DISTUTILS": "stdlib"} | environment)
        assert ended.status == 0, ended.err
        return json.loads(ended.out.splitlines()[-1])


def become_nobody() -> None:
    """Turn this process into one of the unprivileged user, if it is root's."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


class Ended:
    """The exit status and the output of a command that has ended."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status, self.raw_out, self.raw_err = status, out, err

    @property
    def out(self) -> str:
        return self.raw_out.decode()

    @property
    def err(self) -> str:
        return self.raw_err.decode()


@pytest.fixture(scope="session")
def kernel_image() -> Iterator[Path]:
    """The VM's kernel, copied to where an unprivileged user can read it; fails, and does not skip, if there is none."""
    with public_folder() as folder:
        image = Path(shutil.copy2(kernel.find_kernel(os.environ), folder / "linux"))
        image.chmod(0o755)
        yield image


@pytest.fixture
def vm(kernel_image: Path) -> Iterator[VM]:
    """The VM, with a folder that the unprivileged user owns and that is removed afterwards."""
    with vm_of(kernel_image) as found:
        yield found


@pytest.fixture(scope="module")
def module_vm(kernel_image: Path) -> Iterator[VM]:
    """The same as `vm`, for a whole module."""
    with vm_of(kernel_image) as found:
        yield found


@contextmanager
def vm_of(kernel_image: Path) -> Iterator[VM]:
    """Yield the VM with a kernel that the unprivileged user can read, and a folder that this user owns."""
    with public_folder() as folder:
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield VM(kernel_image, folder)


@contextmanager
def public_folder() -> Iterator[Path]:
    """Make a folder that every user can read; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="longhaul-"))  # ns-3 finds no libraries if "test" is in their path
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def own_python(*steps: Sequence[str]) -> Iterator[Path]:
    """Make a Python environment with only the packages that pip installs in these steps; yield its interpreter."""
    with public_folder() as folder:
        venv.create(folder, with_pip=True, symlinks=True)
        for step in steps:
            subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", *step], check=True)
        yield folder / "bin/python"
