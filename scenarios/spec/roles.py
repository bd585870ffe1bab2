"""Roles of a program: read from a scenario's [[program]] tables, and placed on GPUs. Pure.

[[program]]
command = "iperf3 -s"
on = "g0"
[[program]]
command = "iperf3 -c g0"
on = "site 1"
start = "10 ms"

Each table may have keys of [program], such as `deadline`, which hold for all roles. A scenario with one command for all
ranks has a [program] table instead.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from scenarios.spec.values import DELAY, Kind, check_unique, name_of, read_tables, texts
from topologies import units
from topologies.errors import Mistake, did_you_mean, format_value, list_first

MAX_BYTES = 32 * 1024
"""The largest command, and the largest value of a variable, in bytes."""

MAX_ROLES = 64
"""Most roles of a program."""

ITSELF = "itself"
"""What `until` says of a role that ends by itself, even if it listens."""

_OTHERS, _GPU, _SITE, _RANK = "others", "g", "site", "rank"

_ON_ALLOWED = 'GPUs such as "g0", "g0,g4" and "g4-g7", "site 1", "rank 2", "ranks 2-5", "others", or a list of GPUs'
_UNTIL_ALLOWED = f'the name of another role, or "{ITSELF}"'
_PART = r"(?:g[0-9]{1,6}(?:-g?[0-9]{1,6})?|(?:site|rank)s? ?[0-9]{1,6}(?:-[0-9]{1,6})?|others)"
_NUMBERS = re.compile(r"(?P<kind>g|site|rank)s? ?(?P<first>[0-9]+)(?:-g?(?P<last>[0-9]+))?")
_EXEC = re.compile(rf"\s*(?P<on>{_PART}(?:\s*,\s*{_PART})*)\s*:\s+(?P<command>.+)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def _is_command(given: str) -> bool:
    """Return whether a text can be a command. It is stored in UTF-8 files, so it must be encodable."""
    try:
        return bool(given.strip()) and "\0" not in given and len(given.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


def _read_env(value: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    for name, given in value.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{format_value(name)} is not the name of a variable; allowed: {ENV.allowed}")
        if not isinstance(given, str) or not given.isprintable() or len(given.encode()) > MAX_BYTES:
            raise ValueError(f"{name} is {format_value(given)}; allowed: {ENV.allowed}")
    return tuple(value.items())


COMMAND = texts(f"a command for the shell, 1 to {MAX_BYTES:,} bytes of UTF-8", _is_command)
ENV = Kind(
    "a table of names of letters, digits and '_' with text each, printable", (dict,), _read_env, dict, is_object=True
)


class Part(NamedTuple):
    """A part of where a role runs: GPUs, sites or ranks (`kind`) from `first` to `last`, or the others."""

    kind: str
    first: int = 0
    last: int = 0


@dataclass(frozen=True, kw_only=True)
class Role:
    """A command that runs on some of a program's GPUs.

    `on` is where, as it was written; None is every GPU. It starts `start_s` seconds after the first ranks. `until` is
    the name of the role with whose end it ends, ITSELF for a role that ends by itself, or None: it is ended if it
    listens for connections when all ranks that do not listen have ended. `env` are variables of its environment beyond
    those of the program, and `input` is the file that it reads as its standard input.
    """

    command: str
    on: str | tuple[int, ...] | None = None
    name: str | None = None
    start_s: float = 0.0
    until: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    input: Path | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Where it runs, in parts; none means every GPU."""
        return () if self.on is None else parts_of(self.on)

    @property
    def words(self) -> str:
        """The role in words, as --exec has it, after its name and before what else it has: "g0: iperf3 -s", "clients on
        site 1 from 50 ms: iperf3 -c g0"."""
        place = self.on if isinstance(self.on, str) else ",".join(f"g{gpu}" for gpu in self.on or ())
        place = re.sub(r",\s+", ",", place)
        parts = [f"{self.name} on {place}" if self.name and place else self.name or place or "all"]
        parts += [f"from {units.format_delay(self.start_s)}"] * (self.start_s > 0)
        parts += [f"until {self.until}"] * (self.until is not None)
        parts += [" ".join(f"{name}={value}" for name, value in self.env)] * bool(self.env)
        parts += [] if self.input is None else [f"reading {self.input.name}"]
        return f"{' '.join(parts)}: {self.command}"

    def written(self) -> dict[str, Any]:
        """Return the [[program]] table that declares this role."""
        values = {key: getattr(self, attribute) for key, attribute in _FIELDS.items()}
        return {
            key: KEYS[key].write(value)
            for key, value in values.items()
            if value not in (None, ()) and (key, value) != ("start", 0.0)
        }


def parts_of(on: str | Sequence[int]) -> tuple[Part, ...]:
    """Return the parts of what a role's `on` says; raises ValueError."""
    if not isinstance(on, str):
        return tuple(Part(_GPU, gpu, gpu) for gpu in on)
    parts = []
    for text in on.split(","):
        if not re.fullmatch(_PART, text.strip()):
            raise ValueError(f"{format_value(on)} is not understood; allowed: {_ON_ALLOWED}")
        match = _NUMBERS.fullmatch(text.strip())
        if match is None:
            parts.append(Part(_OTHERS))
            continue
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise ValueError(f"{format_value(on)} ends before it begins; allowed: {_ON_ALLOWED}")
        parts.append(Part(match["kind"], first, last))
    return tuple(parts)


def of_option(text: str) -> dict[str, str]:
    """Return the table of a role that an option --exec declares: "g0: iperf3 -s", or a command alone."""
    match = _EXEC.fullmatch(text)
    return {"command": text} if match is None else {"on": match["on"], "command": match["command"]}


def _read_on(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = ",".join(value)
    if isinstance(value, list):
        if not value or not all(type(one) is int and one >= 0 for one in value) or len(set(value)) < len(value):
            raise ValueError(f"{format_value(value)} is not a list of GPUs, each once; allowed: {_ON_ALLOWED}")
        return tuple(value)
    parts_of(value)
    return value


KEYS = {
    "command": COMMAND,
    "on": Kind(_ON_ALLOWED, (str, list), _read_on, lambda on: on if isinstance(on, str) else list(on)),
    "name": name_of("role"),
    "start": Kind(f'{DELAY.allowed}, or "0 s"', (str,), units.parse_delay_or_zero_s, units.format_delay),
    "until": texts(_UNTIL_ALLOWED, lambda text: text.strip()),
    "env": ENV,
    "input": texts("the path of a file, in printable text", lambda text: text and text.isprintable(), Path),
}
"""The keys of a role's table with their kinds."""

_FIELDS = {key: "start_s" if key == "start" else key for key in KEYS}


def of_tables(tables: Sequence[Any]) -> dict[str, Any]:
    """Return the [program] table that [[program]] tables stand for: its keys, which any of them may have, and `role`,
    the roles. Raises ValueError for a key of all roles that two tables give."""
    shared = dict[str, Any]()
    for table in tables:
        if isinstance(table, dict):
            twice = [key for key in table if key not in KEYS and key in shared]
            if twice:
                raise ValueError(f"{twice[0]} holds for all roles and is given twice; allowed: in one [[program]]")
            shared |= {key: value for key, value in table.items() if key not in KEYS}
    roles = [{k: v for k, v in one.items() if k in KEYS} if isinstance(one, dict) else one for one in tables]
    return {**shared, "role": roles}


def read(tables: list[object]) -> tuple[Role, ...]:
    """Return the roles that tables declare; raises SpecError with mistakes such as "program.role[1].on"."""
    values = read_tables("program.role", tables, KEYS, most=MAX_ROLES, required=("command",))
    roles = tuple(Role(**{_FIELDS[key]: value for key, value in table.items()}) for table in values)
    check_unique("program.role", [role for role in roles if role.name is not None], "name", KEYS["name"])
    return roles


def placed(
    roles: Sequence[Role], gpus_per_site: Sequence[int], ranks: Sequence[int] | None
) -> tuple[tuple[int, int], ...]:
    """Return the GPU of each rank, and the index of its role.

    Without `ranks` these are all GPUs that a role names, or all GPUs if a role counts by ranks. GPUs without a role, or
    with two, are mistakes that `check` yields: here they have the first role.
    """
    base = tuple(range(sum(gpus_per_site))) if ranks is None else ranks
    named = _named(roles, gpus_per_site, base)
    counts = ranks is not None or any(part.kind == _RANK for role in roles for part in role.parts)
    return tuple((gpu, named.get(gpu, (0,))[0]) for gpu in base if counts or gpu in named)


def _named(roles: Sequence[Role], gpus_per_site: Sequence[int], base: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return for each GPU that roles name the indices of these roles. `base` are the GPUs of all ranks."""
    firsts = (0, *accumulate(gpus_per_site))
    named, late = dict[int, tuple[int, ...]](), list[int]()
    for index, role in enumerate(roles):
        gpus = list[int]()
        for part in role.parts:
            if part.kind == _OTHERS:
                late.append(index)
            elif part.kind == _SITE:
                last = min(part.last, len(gpus_per_site) - 1)
                gpus += range(firsts[min(part.first, last)], firsts[last + 1])
            elif part.kind == _RANK:
                gpus += base[part.first : part.last + 1]
            else:
                gpus += range(part.first, part.last + 1)
        if role.on is None:
            late.append(index)
        for gpu in dict.fromkeys(gpus):
            named[gpu] = (*named.get(gpu, ()), index)
    others = [gpu for gpu in base if gpu not in named]
    for index in late:
        for gpu in others:
            named[gpu] = (*named.get(gpu, ()), index)
    return named


def check(
    roles: Sequence[Role], gpus_per_site: Sequence[int], ranks: Sequence[int] | None, names: Sequence[str]
) -> Iterator[Mistake]:
    """Yield what is wrong with roles on GPUs; `names` are the variables that the run sets."""
    gpus, base = sum(gpus_per_site), tuple(range(sum(gpus_per_site))) if ranks is None else ranks
    counts = {_GPU: (gpus, "GPU"), _SITE: (len(gpus_per_site), "site"), _RANK: (len(base), "rank")}
    wrong = False
    for number, role in enumerate(roles, 1):
        for part in role.parts:
            count, word = counts.get(part.kind, (1, ""))
            if part.last >= count:
                wrong = True
                yield Mistake(
                    f"program.role[{number}].on", f"there is no {word} {part.last}; allowed: 0 to {count - 1}"
                )
        yield from _check_role(roles, number, names)
    if wrong or not roles:
        return
    named = _named(roles, gpus_per_site, base)
    for number in range(1, len(roles) + 1):
        if not any(number - 1 in indices for indices in named.values()):
            yield Mistake(f"program.role[{number}].on", "no GPU is left for it; allowed: at least one")
    for gpu, indices in sorted(named.items()):
        where = f"program.role[{indices[-1] + 1}].on"
        if len(indices) > 1:
            yield Mistake(where, f"g{gpu} has two roles; allowed: one, whose command may start others by &")
        if gpu not in base:
            allowed = list_first([f"g{one}" for one in base], 12)
            yield Mistake(where, f"g{gpu} is not in program.ranks; allowed: {allowed}")
    without = [f"g{gpu}" for gpu, _ in placed(roles, gpus_per_site, ranks) if gpu not in named]
    if without:
        text = f"{list_first(without, 12)} {'has' if len(without) == 1 else 'have'} no role"
        yield Mistake("program.role", f'{text}; allowed: one for each rank, such as on = "others"')


def _check_role(roles: Sequence[Role], number: int, names: Sequence[str]) -> Iterator[Mistake]:
    """Yield what is wrong with a role by itself, and with the role that it waits for."""
    role, place = roles[number - 1], f"program.role[{number}]"
    known = [other.name for other in roles if other.name is not None]
    if role.until not in (None, ITSELF):
        seen, at = {role.name}, role
        if role.until not in known:
            hint = did_you_mean(role.until or "", known)
            allowed = list_first([*known, ITSELF], 12)
            yield Mistake(f"{place}.until", f"{format_value(role.until)} is not a role; allowed: {allowed}{hint}")
            return
        while at.until in known:
            if at.until in seen:
                yield Mistake(f"{place}.until", f"{role.until} would wait for itself; allowed: a role that ends")
                break
            seen.add(at.until)
            at = next(other for other in roles if other.name == at.until)
    for name, _ in role.env:
        if name in names:
            yield Mistake(f"{place}.env", f"{name} is set by the run; allowed: names other than {', '.join(names)}")
    if role.input is not None and not (role.input.is_file() and os.access(role.input, os.R_OK)):
        yield Mistake(f"{place}.input", f"{format_value(str(role.input))} cannot be read; allowed: a readable file")
