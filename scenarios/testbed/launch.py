"""Starts a testbed in a VM, or as a process on this machine's own kernel."""

import compileall
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

from scenarios import vm
from scenarios.spec.scenario import from_json
from scenarios.testbed.peers import ENDED
from scenarios.testbed.platform import VIRTUAL, Platform
from scenarios.vm import joined
from scenarios.vm.joined import JoinedLink
from scenarios.vm.machine import Sink

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ("topologies", "controller", "hosts", "scenarios", "analysis")
_CHUNK = 65536


def testbed(
    arguments: Sequence[str],
    *,
    memory_bytes: int,
    stdout: Sink,
    stderr: Sink,
    platform: Platform = VIRTUAL,
    links: Sequence[JoinedLink] = (),
    on_start: Callable[[Callable[[], None]], None] | None = None,
) -> int:
    """Run ``python -m scenarios.testbed.__main__`` with these arguments on this platform and return its exit status.

    `memory_bytes` is the memory of the VM, if the platform has one. `on_start` is called with a function that ends the
    testbed from any other thread. The folder for captures that the configuration names is the one that the VM can write
    to. With `links` it runs in the VMs that these join, with `memory_bytes` each: all do the same, so its output is
    that of the first one, and its status the first that is not 0. Raises vm.VMError, and vm.CannotRunError if this
    machine cannot run the VM.
    """
    compile_modules()
    command = [sys.executable, "-m", "scenarios.testbed.__main__", *arguments]
    if platform != VIRTUAL:
        command.append(str(platform))
    if not platform.own_openvswitch:
        return _on_this_machine(command, stdout, stderr, on_start)
    results = from_json(arguments[0]).run.captures
    if links:
        return _in_joined_vms(
            command,
            links,
            results=results,
            memory_bytes=memory_bytes,
            stdout=stdout,
            stderr=stderr,
            on_start=on_start,
        )
    return vm.run(
        command,
        results=results,
        clock="wall" if platform.is_real else "virtual",
        memory_bytes=memory_bytes,
        directory=ROOT,
        environment=environment(),
        stdout=stdout,
        stderr=stderr,
        on_start=on_start,
    )


def _in_joined_vms(
    command: Sequence[str],
    links: Sequence[JoinedLink],
    *,
    results: Path | None,
    memory_bytes: int,
    stdout: Sink,
    stderr: Sink,
    on_start: Callable[[Callable[[], None]], None] | None,
) -> int:
    """Run a testbed in each of the VMs that the links join; of what they print on stderr, the cause comes last."""
    machines = 1 + max(max(link.one, link.other) for link in links)
    errors = [BytesIO() for _ in range(machines)]
    try:
        statuses = joined.run(
            [command] * machines,
            links,
            results=results,
            memory_bytes=memory_bytes,
            directory=ROOT,
            environment=environment(),
            sinks=[(stdout if number == 0 else BytesIO(), errors[number]) for number in range(machines)],
            on_start=on_start,
            ends_together=True,
        )
    finally:
        for text in sorted((each.getvalue() for each in errors), key=lambda text: ENDED.encode() not in text):
            stderr.write(text)
    return next((status for status in statuses if status), 0)


@cache
def compile_modules() -> None:
    """Compile the modules that have changed since they were compiled; a folder that cannot be written is left.

    The VM, whose files are thrown away, would compile them at every boot. Its processes would also come to run in
    another order, and which of two packets is first at a queue at one instant decides how TCP repairs a loss: without
    byte code of the controller, a collective whose link failed took 146 ms instead of 180.
    """
    for package in _PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2)


def environment() -> Mapping[str, str]:
    """Return the environment of the testbed's programs, without any variable that could change results."""
    # Mininet imports distutils, and setuptools' version takes five times as long to load as Python's.
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    own = {"PATH": path, "LANG": "C.UTF-8", "SETUPTOOLS_USE_DISTUTILS": "stdlib"}
    named = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "LONGHAUL_KERNEL") if name in os.environ}
    return own | named | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}


def _on_this_machine(
    command: Sequence[str], stdout: Sink, stderr: Sink, on_start: Callable[[Callable[[], None]], None] | None
) -> int:
    default_signals = ["env", "--default-signal=TERM"]  # a run that is ending ignores SIGTERM, which children inherit
    end_with_parent = ["setpriv", "--pdeathsig", "TERM", "--"]  # on SIGTERM, unlike SIGKILL, it removes its network
    process = subprocess.Popen(
        [*default_signals, *end_with_parent, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
        start_new_session=True,  # so that Ctrl-C reaches only this process, which then ends the testbed
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        other = threading.Thread(target=_pump, args=(process.stderr.fileno(), stderr))
        other.start()
        try:
            if on_start is not None:
                on_start(process.terminate)
            _pump(process.stdout.fileno(), stdout)
            process.wait()
        finally:
            process.terminate()
            other.join()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _pump(fd: int, sink: Sink) -> None:
    while data := os.read(fd, _CHUNK):
        sink.write(data)
        sink.flush()


def words_of(numbers: range) -> str:
    """Return the numbers of collectives as an argument of the testbed."""
    return f"{numbers.start}:{numbers.stop}:{numbers.step}"


def numbers_in(words: str) -> range:
    """Return the numbers of collectives that `words_of` wrote."""
    return range(*map(int, words.split(":")))
