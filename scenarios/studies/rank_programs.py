"""Runs the programs of scenarios, or one as the VM's command, and returns what they print: what needs TCP itself has a
program."""

import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from scenarios import vm
from scenarios.api import RunError, scenario
from scenarios.engines.emulation import StderrTail
from scenarios.program import session
from scenarios.spec.scenario import Scenario
from scenarios.testbed import launch
from topologies.units import format_delay, format_rate

Found = TypeVar("Found")
_ROOT = Path(__file__).resolve().parents[2]


def program(name: str, *arguments: object) -> dict[str, object]:
    """Return the values of a scenario that runs the module of `scenarios.studies.programs` with this name."""
    words = [sys.executable, "-m", f"scenarios.studies.programs.{name}", *map(str, arguments)]
    return {"program.command": shlex.join(words), "program.env": {"PYTHONPATH": str(_ROOT)}}


def two_hosts(
    *, wan_bps: float, wan_delay_s: float, intra_rate: str, seed: int, values: Mapping[str, object]
) -> Scenario:
    """Return a scenario of two sites with a host each, and a WAN link of this rate (bit/s) and delay (s, one way)
    between them. `values` by dotted key are added to it; raises ScenarioError."""
    common: dict[str, object] = {
        **{"fabric.gpus": [1, 1], "fabric.leaves": 1, "fabric.spines": 1, "fabric.border_routers": 1},
        **{"conditions.intra_rate": intra_rate, "conditions.wan_rate": format_rate(round(wan_bps))},
        **{"conditions.wan_delay": format_delay(wan_delay_s), "run.modes": ["base"], "run.seed": seed},
    }
    return scenario("paper", common | dict(values))


def printed(config: Scenario) -> Sequence[Any]:
    """Run the program of a scenario; return each line that rank 0 prints, as JSON. Raises VMError, and RunError if a
    rank fails."""
    return printed_by_ranks(config)[0]


def printed_by_ranks(config: Scenario) -> Sequence[Sequence[Any]]:
    """Run the program of a scenario; return each line that each rank prints, as JSON. Raises VMError, and RunError if a
    rank fails."""
    ((_, lines),) = each_printed([config], jobs=1)
    return lines


def each_printed(configs: Sequence[Scenario], *, jobs: int) -> Iterator[tuple[int, Sequence[Sequence[Any]]]]:
    """Run the programs of scenarios, `jobs` VMs at a time; yield the number of each one that has ended, with each line
    that each of its ranks has printed, as JSON. Raises VMError, and RunError if a rank fails."""
    # This thread removes the folder: after a signal the others end with the process, and remove nothing.
    with TemporaryDirectory(prefix="longhaul-", ignore_cleanup_errors=True) as name:
        runs = [partial(_printed, config, Path(name, str(number))) for number, config in enumerate(configs)]
        yield from each_ended(runs, jobs=jobs)


def each_ended(runs: Sequence[Callable[[], Found]], *, jobs: int) -> Iterator[tuple[int, Found]]:
    """Call functions that run VMs, `jobs` at a time; yield the number of each one that has ended, with what it has
    returned. Raises what one of them raises."""
    threads = ThreadPoolExecutor(jobs)
    numbers = {threads.submit(run): number for number, run in enumerate(runs)}
    try:
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except Exception:
        threads.shutdown(cancel_futures=True)  # VMs that run may still write files
        raise
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def printed_in_vm(name: str, *arguments: str) -> Any:
    """Run the module of `scenarios.studies.programs` with this name as the VM's command; return what it prints, as
    JSON. Raises VMError, and RunError if it fails."""
    launch.compile_modules()
    command, output, errors = [sys.executable, "-m", f"scenarios.studies.programs.{name}"], io.BytesIO(), StderrTail()
    status = vm.run(
        [*command, *arguments], directory=_ROOT, environment=launch.environment(), stdout=output, stderr=errors
    )
    if status:
        raise RunError(
            f"the program {name} has failed with exit status {status}: {errors.last() or 'it tells nothing'}"
        )
    return json.loads(output.getvalue())


def _printed(config: Scenario, folder: Path) -> Sequence[Sequence[Any]]:
    folder.mkdir()
    state, why = session.run(
        config, folder=folder, shows=lambda rank, stream, output: None, tells=False, directory=_ROOT
    )
    result = session.result_of(config, state, why, 0.0)
    if problems := session.failures(result, config, None):
        raise RunError("; ".join(problems))
    paths = [folder / session.OUTPUT / f"{rank}.stdout" for rank in range(len(state.gpus))]
    texts = [path.read_text() if path.exists() else "" for path in paths]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]
