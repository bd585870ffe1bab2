"""The testbed's program: ``python -m scenarios.testbed.__main__ CONFIGURATION MODE COUNT [PLATFORM]``, as root in a VM.

It runs the first COUNT collectives of a configuration (the JSON of `scenario.to_json`) in one mode, in the VM or on the
given platform (`Platform.parse`), and prints lines of JSON: {"doing": WORDS} before each step that could take long; a
`CollectiveRecord` for each collective as soon as it ends; {"event": EVENT} for events of faults, the last one "ended";
and a snapshot of the machine before the first and after the last collective.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from scenarios.signals import guarded
from scenarios.spec.scenario import from_json
from scenarios.testbed.capture import CAPTURED, CaptureError, Captures
from scenarios.testbed.launch import numbers_in
from scenarios.testbed.platform import CAPACITY, VIRTUAL, Platform, joined
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import Failure, Testbed
from scenarios.vm.boot import MACHINE

_YIELDS = 3  # number of yields, for the processes that forward the output


def main(arguments: list[str]) -> int:
    """Run one point and print its lines, or in mode "capacity" the machine's throughput; return an exit status."""
    _keep_stdout()
    config, mode = from_json(arguments[0]), arguments[1]
    platform = Platform.parse(arguments[3]) if arguments[3:] else VIRTUAL
    if config.run.machines > 1:
        platform = joined(int(os.environ[MACHINE]))
    fair_links = None if mode == CAPACITY else config.fair_links(mode)
    try:
        with (
            platform.files() as folder,
            Testbed(config, platform=replace(platform, folder=folder), tell=tell, fair_links=fair_links) as testbed,
        ):
            if mode == CAPACITY:
                _print({"carried_bps": testbed.carried_bps()})
                return 0
            _print({"before": testbed.snapshot()})
            with _capturing(testbed, mode):
                for result in Recovery(PointRun(testbed, config.mode(mode))).records(numbers_in(arguments[2])):
                    _print(result.as_json() if isinstance(result, CollectiveRecord) else {"event": result})
            _print({"after": testbed.snapshot()})
            tell("the shutdown of the network")
            leave(platform)
    except (CaptureError, *Failure) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the network failed: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _capturing(testbed: Testbed, mode: str) -> Iterator[None]:
    """Capture packets within the context, if the scenario says so, into a folder that is the mode's; then write a table
    of the files. Raises CaptureError and OSError."""
    above = testbed.config.run.captures
    if above is None:
        yield
        return
    folder, is_first = above / mode, testbed.share.number == 0
    if is_first:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt at this point
    testbed.exchange(None)
    captures, has_ended = Captures(testbed.share, testbed.config.program.capture, folder), False
    try:
        testbed.restore_links()
        testbed.exchange(None)
        yield
        has_ended = True
    finally:
        here = captures.stop()
        machines = testbed.exchange(here) if has_ended else [here]  # otherwise others wait for something else
        told = [one for rows in machines for one in rows]
        rows = [f"{one['link']},{one['file']},{one['packets']},{one['lost']}\n" for one in told]
        if is_first:
            (folder / CAPTURED).write_text("link,file,packets,lost\n" + "".join(rows))


def tell(doing: str) -> None:
    """Print the name of the next step, and yield the CPU so that the line is forwarded even if the step spins."""
    _print({"doing": doing})
    for _ in range(_YIELDS):
        os.sched_yield()


def leave(platform: Platform) -> None:
    """In a VM, end this process at once: the VM ends with it, and removing the network would take a tenth of a short
    run's time. Elsewhere return."""
    if platform.own_openvswitch:
        os._exit(0)


def _keep_stdout() -> None:
    """Keep standard output for this program's lines: what a library or a user's policy writes to it goes to stderr."""
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def _print(line: Mapping[str, object]) -> None:
    print(json.dumps(line, allow_nan=False), flush=True)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
