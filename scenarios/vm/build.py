"""Builds the VM's kernel from the distribution's source into the user's cache: ``python -m scenarios.vm.build``.

Builds nothing if the cache has the kernel of the installed source, kernel.config and the patches. Prints its path.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from scenarios.vm import kernel
from scenarios.vm.errors import SETUP, VMError

SOURCES = Path("/usr/src")
_ROOM_BYTES = 3 * 10**9  # for the unpacked source and the object files, with some margin
_PREFIX = "build-"  # of the names of folders in which builds work
_PROVEN = "6.12"  # the preferred version if several are installed: it has been tested
_FILES = 1015  # number of compiled files; other versions of the kernel have slightly more or fewer
_QUIET_S = 15.0  # between two lines of progress where a line cannot be redrawn


def main() -> int:
    """Build the kernel unless it exists; return an exit status."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        path = build(dict(os.environ))
    except VMError as error:
        print(f"longhaul: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    print(path)
    return 0


def build(environment: dict[str, str], patches: Sequence[Path] = kernel.PATCHES) -> Path:
    """Return the cached kernel of this machine's kernel source, after building it if it is missing.

    With other `patches` than the project's it is another kernel, which VMs boot only where LONGHAUL_KERNEL names it.
    Raises VMError with a sentence if there is no source or no room, or if a step fails, whose log stays in the cache.
    """
    archive = newest_source(sorted(SOURCES.glob("linux-source-*.tar.*")))
    fragment = kernel.FRAGMENT.read_text()
    cache = kernel.cache_folder(environment)
    path = kernel.cached(cache, _version(archive), kernel.wanted_fingerprint(patches))
    if path.exists():
        kernel.check(path)
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VMError(f"the kernel cache {cache} cannot be created: {error.strerror}") from None
    if (room := shutil.disk_usage(cache).free) < _ROOM_BYTES:
        raise VMError(
            f"building the kernel takes {_ROOM_BYTES // 10**9} GB in {cache}, which has {room / 10**9:.1f} GB free"
        )
    with _locked(cache), tempfile.TemporaryDirectory(prefix=_PREFIX, dir=cache, ignore_cleanup_errors=True) as folder:
        if path.exists():  # another build, which held the lock, has created it
            return path
        return _build_in(Path(folder), archive, fragment, patches, path, log=cache / "build.log")


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Lock the cache, so that one build runs at a time, and delete the folders of builds that were killed."""
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another build to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in cache.glob(f"{_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def newest_source(archives: list[Path]) -> Path:
    """Return the kernel source to build: the proven version if installed, otherwise the newest; raises VMError."""
    named = [path for path in archives if re.fullmatch(r"linux-source-[\d.]+\.tar\.\w+", path.name)]
    if not named:
        raise VMError(f"there is no kernel source in {SOURCES}", remedy=f"run `{SETUP}`")
    proven = [path for path in named if path.name.startswith(f"linux-source-{_PROVEN}.")]
    return max(proven or named, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])


def _version(archive: Path) -> str:
    """Return the version of the package that contains a source archive."""
    package = re.sub(r"\.tar\.\w+$", "", archive.name)
    query = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=False)
    if query.returncode != 0:
        raise VMError(f"the package {package} is not installed", remedy=f"run `{SETUP}`")
    return query.stdout.strip().replace("/", "_")


def _build_in(folder: Path, archive: Path, fragment: str, patches: Sequence[Path], path: Path, *, log: Path) -> Path:
    _say(f"unpacking {archive}")
    _run("tar", "-xf", archive, "-C", folder, failure=f"{archive} cannot be unpacked")
    (tree,) = folder.iterdir()
    for patch in patches:
        _say(f"applying {patch.name}")
        failure = f"{patch.name} cannot be applied to the kernel source {archive.name}"
        _run("patch", "-p1", "-d", tree, "-i", patch, failure=failure)
    with log.open("w") as output:
        _say("configuring")
        _make(tree, output, "allnoconfig")
        config = tree / ".config"
        config.write_text(kernel.merged(config.read_text(), fragment))
        _make(tree, output, "olddefconfig")
        wanted = kernel.options(fragment)
        if lacking := kernel.missing(wanted, kernel.options(config.read_text())):
            raise VMError(f"the kernel source {archive.name} does not offer {', '.join(lacking)}, which the VM needs")
        started = time.monotonic()
        _make(tree, output, f"-j{len(os.sched_getaffinity(0))}", "linux", progress=True)
        subprocess.run(["strip", tree / "linux"], check=True)
        kernel.check(tree / "linux")
    # Moved into place in one step, so that an interrupted build leaves no kernel.
    path.parent.mkdir(exist_ok=True)
    shutil.copy2(tree / ".config", path.with_name("config"))
    (tree / "linux").replace(path)
    log.unlink()
    _say(f"built in {time.monotonic() - started:.0f} s")
    return path


def _run(*command: str | Path, failure: str) -> None:
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode != 0:
        raise VMError(f"{failure}: {ended.stdout.strip()[-200:]}")


def _make(tree: Path, log: TextIO, *arguments: str, progress: bool = False) -> None:
    command = ["make", "-C", str(tree), "ARCH=um", *arguments]
    # Fixed names and dates, so that the same source gives the same kernel on every machine.
    environment = dict(os.environ) | {"KBUILD_BUILD_USER": "longhaul", "KBUILD_BUILD_HOST": "longhaul"}
    environment |= {"KBUILD_BUILD_TIMESTAMP": "1970-01-01", "LC_ALL": "C"}
    started, shown_s, files = time.monotonic(), 0.0, 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.write(line)
            files += line.startswith("  CC ")
            now = time.monotonic() - started
            if progress and now - shown_s >= (0.2 if sys.stderr.isatty() else _QUIET_S):
                shown_s = now
                left = f", about {now * max(_FILES / files - 1, 0.01):.0f} s left" if files >= _FILES // 20 else ""
                _say(f"compiling: {files} of about {_FILES} files in {now:.0f} s{left}", again=True)
    except BaseException:
        process.terminate()  # make ends its child processes
        raise
    finally:
        status = process.wait()
    if progress and sys.stderr.isatty():
        print(file=sys.stderr)
    if status != 0:
        raise VMError(f"`make {' '.join(arguments)}` failed with status {status}: the log is {log.name}")


def _exit_on_signal(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _say(text: str, *, again: bool = False) -> None:
    redraw = again and sys.stderr.isatty()
    print(f"{chr(13) if redraw else ''}kernel: {text}", end="\x1b[K" if redraw else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
