"""A machine set up from nothing, as the Vagrantfile does it: ``bash scenarios/setup.sh bare && pytest -m bare``.

Debootstrap creates a bare Debian, which gets a user with sudo and the files of the project that `git` lists. Then the
provisioner of the Vagrantfile runs in it, followed by the command that the Vagrantfile names. A package that set-up
does not install is therefore missing there. From this machine come the running kernel, the archives of apt, the VM's
built kernel if its source is the same, and the compiled timing model. A build of the VM's kernel is begun, which needs
all the tools, but not finished; the other compiled modules are compiled there.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scenarios.vm import kernel
from tests.conftest import PROJECT, public_folder

pytestmark = pytest.mark.bare

USER = "vagrant"
HOME = f"/home/{USER}"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
COMPILED = "analysis/model/__pycache__/*.nb?"
CHROMIUM = (
    "Package: chromium\nStatus: install ok installed\nMaintainer: -\nArchitecture: all\nVersion: 0\nDescription: -\n"
)
"""A status entry that makes apt take Chromium for installed. Only a test opens it, and its 140 packages would hide one
that set-up fails to install."""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def codename() -> str:
    """Return the Debian suite of this machine, which its apt archives hold."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    assert release["ID"] == "debian", f"a bare Debian can be laid on Debian only, and this is {release['ID']}"
    return release["VERSION_CODENAME"]


def sources() -> Iterator[Path]:
    """Yield the files that list Debian's own archives."""
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian*")]:
        if path.exists():
            yield path


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Yield the root folder of a bare Debian with sudo and the project."""
    with public_folder() as folder:
        debootstrap = ["debootstrap", "--variant=minbase", "--include=sudo", codename(), str(folder)]
        made = subprocess.run(debootstrap, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout[-2000:]
        complete_root(folder)
        yield folder


def complete_root(folder: Path) -> None:
    """Add what a Vagrant box has and debootstrap's folder lacks: apt archives, a network, a user; and the project."""
    (folder / "etc/apt/sources.list").unlink(missing_ok=True)
    for path in sources():
        shutil.copy(path, folder / path.relative_to("/"))
    for path in map(Path, ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")):
        if path.exists():
            shutil.copy(path, folder / path.relative_to("/"))
    if BUNDLE.exists():
        shutil.copy(BUNDLE, folder / "srv/bundle.crt")
    starts_no_service = folder / "usr/sbin/policy-rc.d"
    starts_no_service.write_text("#!/bin/sh\nexit 101\n")
    starts_no_service.chmod(0o755)
    with (folder / "var/lib/dpkg/status").open("a") as status:
        status.write(CHROMIUM)
    subprocess.run(["chroot", folder, "useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
    (folder / f"etc/sudoers.d/{USER}").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
    home = folder / HOME.lstrip("/")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (home / "longhaul" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, home / "longhaul" / name)
    for compiled in PROJECT.glob(COMPILED):  # with the time stamps of the copied sources
        (home / "longhaul" / compiled.relative_to(PROJECT)).parent.mkdir(exist_ok=True)
        shutil.copy2(compiled, home / "longhaul" / compiled.relative_to(PROJECT))
    for built in kernel.cache_folder(os.environ).glob("linux-*"):
        shutil.copytree(built, home / ".cache/longhaul" / built.name)
    subprocess.run(["chroot", folder, "chown", "-R", f"{USER}:", HOME], check=True)


@pytest.fixture(scope="module")
def run(root: Path) -> Run:
    """Return a function that runs a script in the bare system as its user, in its own PID and mount namespaces."""
    named = [name for name in os.environ if re.fullmatch(r"(?i)(https?|ftp|no)_proxy|PIP_INDEX_URL", name)]
    environment = {name: os.environ[name] for name in named} | {"PIP_CERT": "/srv/bundle.crt", "LANG": "C.UTF-8"}
    environment["PIP_NO_COMPILE"] = "0"  # pip then compiles no byte code, of which the runs need little

    def run(script: str, *, timeout: float) -> "subprocess.CompletedProcess[str]":
        words = " ".join(f'"{name}={value}"' for name, value in environment.items())
        login = f'exec env -i {words} su --login --whitelist-environment={",".join(environment)} {USER} -c "$1"'
        enter = (
            'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && mount -t sysfs -o ro sysfs "$0/sys" &&'
            f' exec chroot "$0" sh -c \'{login}\' sh "$1"'
        )
        unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        command = [*unshare, "sh", "-c", enter, str(root), script]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)

    return run


def provisioner() -> str:
    """Return the script that the Vagrantfile runs in a new machine as the login user."""
    found = re.findall(
        r'provision "shell", privileged: false, inline: <<-SHELL\n(.*?)^ *SHELL$',
        (PROJECT / "Vagrantfile").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert len(found) == 1, "the Vagrantfile has one provisioner, which this test can read"
    return str(found[0])


def test_vagrant_validate_accepts_the_vagrantfile(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "Vagrantfile", tmp_path)
    environment = os.environ | {"VAGRANT_HOME": str(tmp_path / "home"), "VAGRANT_DEFAULT_PROVIDER": "libvirt"}
    command = ["vagrant", "validate"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Vagrantfile validated successfully.\n"), done.stderr


def test_a_bare_machine_is_set_up_and_runs_the_command_as_written(run: Run) -> None:
    done = run(provisioner(), timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.endswith("setup: ready\n")
    done = run("cd longhaul && sudo python scenarios/run.py --collectives 2 --modes base,joint", timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"fidelity: 4 collectives measured, median measured/predicted (1\.00|0\.99)", done.stdout)
    done = run("cd longhaul && .venv/bin/python scenarios/run.py --doctor", timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_vms_kernel_compiles_on_the_bare_machine(run: Run) -> None:
    # The build stops once one folder is compiled: by then it has used every tool except for the final linking.
    script = r"""
        cd longhaul && trap 'kill $build; wait $build' EXIT
        XDG_CACHE_HOME=/tmp .venv/bin/python -m scenarios.vm.build 2>&1 & build=$!
        until compgen -G '/tmp/longhaul/build-*/*/init/built-in.a'; do kill -0 $build && sleep 0.1 || exit 1; done
    """
    done = run(script, timeout=600)
    assert done.returncode == 0, done.stdout
