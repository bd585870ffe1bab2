"""A user's own program as a scenario declares it, in [program]. Pure.

[program]
command = "python train.py"
ranks = [0, 1, 4, 5]       # all GPUs where this is left out
env = {OMP_NUM_THREADS = "1"}
deadline = "20 s"          # of the run's own time
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topologies.errors import Mistake, shown

MAX_BYTES = 32 * 1024
"""The longest command, and the longest value of a variable."""

ENV = "a table of names of letters, digits and '_' with text each, printable"
RANKS = "a list of ranks, each once"
COMMAND = f"a command for the shell, 1 to {MAX_BYTES:,} bytes"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """A program that is run on the GPUs' hosts; there is none where `command` is None.

    `ranks` are the GPUs that it runs on, all if None: the first of them is its rank 0. `deadline_s` and `sample_s` are
    in the run's own time, `patience_s` in wall time. `memory_bytes` is what all its processes have together,
    `output_bytes` is kept of each rank's output and of its errors, and `files_bytes` is the room for files.
    """

    command: str | None = None
    ranks: tuple[int, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    deadline_s: float = 1000.0
    sample_s: float = 10e-3
    patience_s: float = 30.0
    memory_bytes: int = 2_000_000_000
    output_bytes: int = 16_000_000
    files_bytes: int = 256_000_000

    def ranks_of(self, gpus: int) -> tuple[int, ...]:
        """The GPUs that it runs on, of so many."""
        return tuple(range(gpus)) if self.ranks is None else self.ranks


def fits_command(text: str) -> bool:
    """Whether a text can be a command."""
    return bool(text.strip()) and "\0" not in text and len(text.encode(errors="replace")) <= MAX_BYTES


def read_ranks(value: list[Any]) -> tuple[int, ...]:
    """The ranks that a list names; raises ValueError."""
    if not value or not all(type(one) is int and one >= 0 for one in value) or len(set(value)) < len(value):
        raise ValueError(f"{shown(value)} is not allowed: allowed is {RANKS}")
    return tuple(value)


def read_env(value: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The variables that a table sets; raises ValueError."""
    for name, text in value.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{shown(name)} is no name of a variable: allowed is {ENV}")
        if not isinstance(text, str) or not text.isprintable() or len(text.encode()) > MAX_BYTES:
            raise ValueError(f"{name} is {shown(text)}: allowed is {ENV}")
    return tuple(value.items())


def check(program: ProgramSpec, gpus: int) -> Iterator[Mistake]:
    """What is wrong with a program on so many GPUs."""
    if program.ranks is not None and max(program.ranks) >= gpus:
        yield Mistake("program.ranks", f"there is no rank {max(program.ranks)}: allowed is 0 to {gpus - 1}")
