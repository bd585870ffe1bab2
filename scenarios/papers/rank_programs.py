"""Runs the program of a scenario and returns what its ranks print: papers that need TCP itself have programs."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scenarios.api import RunError
from scenarios.program import session
from scenarios.spec.scenario import Scenario

_ROOT = Path(__file__).resolve().parents[2]


def program(name: str, *arguments: object) -> dict[str, object]:
    """Return the values of a scenario that runs the module of `scenarios.papers.programs` with this name."""
    words = [sys.executable, "-m", f"scenarios.papers.programs.{name}", *map(str, arguments)]
    return {"program.command": shlex.join(words), "program.env": {"PYTHONPATH": str(_ROOT)}}


def printed(config: Scenario) -> Sequence[Any]:
    """Run the program of a scenario; return each line that rank 0 prints, as JSON. Raises VMError, and RunError if a
    rank fails."""
    return printed_by_ranks(config)[0]


def printed_by_ranks(config: Scenario) -> Sequence[Sequence[Any]]:
    """Run the program of a scenario; return each line that each rank prints, as JSON. Raises VMError, and RunError if a
    rank fails."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        state, why = session.run(config, folder=folder, shows=lambda rank, stream, output: None, tells=False)
        result = session.result_of(config, state, why, 0.0)
        if problems := session.failures(result, config, folder):
            raise RunError(problems[0])
        paths = [folder / session.OUTPUT / f"{rank}.stdout" for rank in range(len(state.gpus))]
        texts = [path.read_text() if path.exists() else "" for path in paths]
        return [[json.loads(line) for line in text.splitlines()] for text in texts]
