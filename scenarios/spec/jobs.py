"""Jobs: read from a scenario's [[job]] tables. `round_workload` makes the workload of all jobs together.

[[job]]
name = "training"
ranks = [0, 1, 4, 5]       # without it all GPUs
kind = "allreduce"         # and algorithm, channels, pieces, chunk, size, schedule: as in [collective]
start = "2 ms"
count = 3                  # back to back, or with every = "20 ms" once in 20 ms
[[job]]
kind = "background"
pattern = "poisson"
rate = "10 Gbit/s"         # the mean rate at which each of its GPUs sends
duration = "20 ms"
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.model.serving import RULES
from hosts.collectives.background import MATRIX, PATTERNS
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, SELF_SIZED_KINDS, TRACE, TRAINING
from scenarios.policies.user_policy import split_reference
from scenarios.spec.classes import ClassSpec
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.values import (
    DELAY,
    RATE,
    SCHEDULE_FILE,
    SIZE,
    Kind,
    check_unique,
    name_of,
    numbers,
    one_of,
    read_tables,
    texts,
    whole,
)
from topologies import units
from topologies.errors import Mistake, format_value

MAX_JOBS = 16
MAX_COUNT = 1000
MAX_CHANNELS, MAX_PIECES = 64, 4096
MAX_REQUESTS = 10_000
BACKGROUND, REQUESTS, TRANSFER = "background", "requests", "transfer"

_KINDS = (*ALGORITHMS, MESSAGES, TRAINING, TRACE, BACKGROUND, REQUESTS, TRANSFER)
_ALGORITHMS = tuple(dict.fromkeys(name for names in ALGORITHMS.values() for name in names))


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job: its ranks, what they do, when they start, and how many times they repeat it, back to back or once in
    `every_s`, as soon as the previous one has ended.

    A field that is None has the value of [collective]; `ranks` None means all. A background job is described by
    `pattern`, by `rate_bps`, the mean rate at which each of its ranks sends (None for a matrix, which has the rates),
    and by `duration_s`, and has messages of `chunk_bytes`. A transfer requests `size_bytes` by `deadline_s`, or
    `rate_bps` for `duration_s`; if it is deferred it must be complete by `latest_s` (`scenarios.spec.admission`).

    A job of requests has this many `requests` in a round, `per_second` on average with a mean of `input_tokens`, or the
    next ones of a `trace`. A token has `cache_bytes`, and takes `local_token_s` or `remote_token_s` to prefill, as the
    `rule` decides, which expects a WAN of `rate_bps`. An order to another site is under way for `order_s`. Of `slots`
    requests at a time (None: all), each token is decoded in `token_s`, with a mean of `output_tokens`. The job's time
    is the `percentile` of the times to first token (`scenarios.spec.requests`).
    """

    name: str
    ranks: tuple[int, ...] | None = None
    kind: str | None = None
    algorithm: str | None = None
    channels: int | None = None
    pieces: int | None = None
    chunk_bytes: int | None = None
    size_bytes: int | None = None
    schedule: Path | None = None
    start_s: float = 0.0
    count: int = 1
    every_s: float | None = None
    pattern: str | None = None
    rate_bps: int | None = None
    duration_s: float | None = None
    traffic_class: str | None = None
    deadline_s: float | None = None
    latest_s: float | None = None
    requests: int | None = None
    trace: Path | None = None
    per_second: float | None = None
    input_tokens: int | None = None
    cache_bytes: int | None = None
    local_token_s: float | None = None
    remote_token_s: float | None = None
    rule: str | None = None
    order_s: float = 0.0
    token_s: float = 0.02
    slots: int | None = None
    output_tokens: int = 200
    percentile: float = 99.0

    @property
    def sends_matrix(self) -> bool:
        """Whether the job sends the demands of traffic matrices."""
        return self.is_background and self.pattern == MATRIX

    @property
    def is_background(self) -> bool:
        """Whether the job is background traffic, for whose end no round waits."""
        return self.kind == BACKGROUND

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the job's messages are read from."""
        rule = split_reference(self.rule)[0] if self.rule is not None and self.rule not in RULES else None
        return tuple(path for path in (self.schedule, self.trace, rule) if path is not None)

    @property
    def is_drawn(self) -> bool:
        """Whether the job's messages are drawn for every round."""
        return self.kind in (BACKGROUND, REQUESTS)

    def has_default_size(self, default: CollectiveSpec) -> bool:
        """Whether the job's collective has the size of `default`, the scenario's [collective]."""
        is_given = self.size_bytes is not None or self.chunk_bytes is not None
        return not is_given and (self.kind or default.kind) not in (*SELF_SIZED_KINDS, BACKGROUND, REQUESTS, TRANSFER)

    def collective(self, default: CollectiveSpec) -> CollectiveSpec:
        """Return the collective that the job repeats; `default` is the scenario's [collective].

        Algorithm, channels, pieces and schedule are inherited from [collective] only if the job has the same kind.
        Messages have their own sizes.
        """
        spec = default
        if self.kind not in (None, default.kind):
            spec = replace(spec, kind=self.kind, algorithm=None, channels=1, pieces=1, schedule=None)
            if self.kind in SELF_SIZED_KINDS:
                spec = replace(spec, size_bytes=None)
        if self.schedule is not None:
            spec = replace(spec, schedule=self.schedule, algorithm=self.algorithm, channels=1, pieces=1)
        elif self.algorithm not in (None, spec.algorithm):
            spec = replace(spec, algorithm=self.algorithm, channels=1, schedule=None)
        if self.size_bytes is not None or self.chunk_bytes is not None:
            spec = replace(spec, size_bytes=self.size_bytes, chunk_bytes=self.chunk_bytes or spec.chunk_bytes)
        return replace(spec, channels=self.channels or spec.channels, pieces=self.pieces or spec.pieces or 1)

    def written(self) -> dict[str, Any]:
        """Return the [[job]] table that declares this job."""
        values = {key: getattr(self, one.attribute) for key, one in KEYS.items()}
        default = {"start": 0.0, "count": 1, "token": JobSpec.token_s, "output": JobSpec.output_tokens}
        default |= {"percentile": JobSpec.percentile, "order": 0.0}
        return {
            key: KEYS[key].kind.write(value)
            for key, value in values.items()
            if value is not None and value != default.get(key)
        }


class Key(NamedTuple):
    """A key of a [[job]] table: the field of JobSpec that holds its value, and the kind of its values."""

    attribute: str
    kind: Kind


def _read_ranks(value: list[Any]) -> tuple[int, ...]:
    if len(value) < 2 or not all(type(one) is int and one >= 0 for one in value):
        raise ValueError(f"{format_value(value)} is not allowed; allowed: {_RANKS.allowed}")
    if len(set(value)) < len(value):
        raise ValueError(f"{format_value(value)} lists a rank twice; allowed: each once")
    return tuple(value)


_RANKS = Kind("a list of two ranks or more, in the order of their positions", (list,), _read_ranks, list)


def _is_rule(given: str) -> bool:
    try:
        return given in RULES or bool(split_reference(given))
    except ValueError:
        return False


_RULE = texts(f"{', '.join(RULES)}, or FILE:NAME, a function in a Python file", _is_rule, near=tuple(RULES))

KEYS: Mapping[str, Key] = {
    "name": Key("name", name_of("job")),
    "ranks": Key("ranks", _RANKS),
    "kind": Key("kind", one_of(*_KINDS)),
    "algorithm": Key("algorithm", one_of(*_ALGORITHMS)),
    "channels": Key("channels", whole(1, MAX_CHANNELS)),
    "pieces": Key("pieces", whole(1, MAX_PIECES)),
    "chunk": Key("chunk_bytes", SIZE),
    "size": Key("size_bytes", SIZE),
    "schedule": Key("schedule", SCHEDULE_FILE),
    "start": Key(
        "start_s", Kind(f'{DELAY.allowed}, or "0 s"', (str,), units.parse_delay_or_zero_s, units.format_delay)
    ),
    "count": Key("count", whole(1, MAX_COUNT)),
    "every": Key("every_s", DELAY),
    "class": Key("traffic_class", Kind("the name of a [[class]]", (str,))),
    "pattern": Key("pattern", one_of(*PATTERNS, MATRIX)),
    "rate": Key("rate_bps", RATE),
    "duration": Key("duration_s", DELAY),
    "deadline": Key("deadline_s", DELAY),
    "latest": Key("latest_s", DELAY),
    "requests": Key("requests", whole(1, MAX_REQUESTS)),
    "trace": Key("trace", texts("the path of a CSV file with requests", lambda given: given.isprintable(), Path)),
    "per_second": Key("per_second", numbers((int, float), 1e-3, 1e6)),
    "input": Key("input_tokens", whole(1, 10_000_000)),
    "cache": Key("cache_bytes", SIZE),
    "local_token": Key("local_token_s", DELAY),
    "remote_token": Key("remote_token_s", DELAY),
    "rule": Key("rule", _RULE),
    "order": Key("order_s", DELAY),
    "token": Key("token_s", DELAY),
    "slots": Key("slots", whole(1, MAX_REQUESTS)),
    "output": Key("output_tokens", whole(1, 10_000_000)),
    "percentile": Key("percentile", numbers((int, float), 1, 100)),
}
_VALUE_KINDS = {name: key.kind for name, key in KEYS.items()}
_BACKGROUND_KEYS = ("pattern", "rate", "duration")
_TRANSFER_KEYS = ("deadline", "latest")
_DRAWN_KEYS = ("per_second", "input")
_NEEDED_OF_REQUESTS = ("requests", "cache", "local_token", "remote_token", "rule")
_REQUESTS_KEYS = (*_NEEDED_OF_REQUESTS, *_DRAWN_KEYS, "output", "trace", "order", "token", "slots", "percentile")
_EXPECT_NOTHING = ("local", "remote")
"""The rules that expect no rate of the WAN."""
_COLLECTIVE_KEYS = ("algorithm", "channels", "pieces", "size", "schedule", "count", "every")


def read(tables: list[object]) -> tuple[JobSpec, ...]:
    """Return the jobs that a scenario's tables declare; raises SpecError with every mistake, located as "job[1].start".

    A job without a name is named by its number from 1 on, "job1".
    """
    tables_values = read_tables("job", tables, _VALUE_KINDS, most=MAX_JOBS, check=_check)
    jobs = tuple(
        JobSpec(**{"name": f"job{number}"} | {KEYS[key].attribute: value for key, value in values.items()})
        for number, values in enumerate(tables_values, 1)
    )
    check_unique("job", jobs, "name", KEYS["name"].kind)
    return jobs


def unused(table: Mapping[str, object], default: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that a [[job]] table of its kind, or else of the kind `default`, does not use, with the reason."""
    kind = table.get("kind", default)
    if kind == REQUESTS:
        of_others = (*_COLLECTIVE_KEYS, *_TRANSFER_KEYS, "pattern", "duration", "chunk")
        yield from ((key, f"the kind is {REQUESTS}") for key in of_others)
        if table.get("rule") in _EXPECT_NOTHING:
            yield "rate", f'the rule "{table["rule"]}" expects no rate of the WAN'
        if "trace" in table:
            yield from ((key, "the requests are those of the trace") for key in (*_DRAWN_KEYS, "output"))
        return
    yield from ((key, f"the kind is not {REQUESTS}") for key in _REQUESTS_KEYS)
    if kind == TRANSFER:
        keys = ("pattern", *(key for key in _COLLECTIVE_KEYS if key != "size"))
        yield from ((key, f"the kind is {TRANSFER}") for key in keys)
        return
    yield from ((key, f"the kind is not {TRANSFER}") for key in _TRANSFER_KEYS)
    if kind == BACKGROUND:
        yield from ((key, f"the kind is {BACKGROUND}") for key in _COLLECTIVE_KEYS)
        return
    yield from ((key, f"the kind is neither {BACKGROUND} nor {TRANSFER}") for key in _BACKGROUND_KEYS)
    if table.get("count", 1) == 1:
        yield "every", "count is 1"
    if kind == TRAINING:
        keys = ("algorithm", "channels", "pieces", "schedule", "chunk", "size")
        yield from ((key, f"the kind is {TRAINING}, which [{TRAINING}] describes") for key in keys)
    elif kind in SELF_SIZED_KINDS:
        chunks = "; MSCCL's chunks have collective.chunk" * (kind == MESSAGES)
        yield from ((key, f"the file of the kind {kind} has the sizes{chunks}") for key in ("chunk", "size"))


def _check(table: dict[str, Any], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Check the keys and values of one table against each other, for `read_tables`."""
    if table.get("kind") == TRANSFER:
        yield from _check_transfer(table, values)
        return
    if table.get("kind") == REQUESTS:
        expected = ("rate",) * (values.get("rule", "local") not in _EXPECT_NOTHING)
        for key in (*_NEEDED_OF_REQUESTS, *_DRAWN_KEYS * ("trace" not in table), *expected):
            if key not in table:
                yield f".{key}", f"is missing; allowed: {KEYS[key].kind.allowed}"
        return
    if table.get("kind") == BACKGROUND:
        if table.get("pattern") == MATRIX and "rate" in table:
            yield ".rate", "is given, but a matrix has the rates; allowed: none with this pattern"
        for key in _BACKGROUND_KEYS:
            if key not in table and (key, table.get("pattern")) != ("rate", MATRIX):
                yield f".{key}", f"is missing; allowed: {KEYS[key].kind.allowed}"
    elif table.get("kind") not in SELF_SIZED_KINDS and {"chunk", "size"} <= {*table}:
        yield ".size", "is given together with chunk; allowed: one of the two"


def _check_transfer(table: dict[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the table of a transfer, for `read_tables`; `values` are its valid values."""
    of_bytes, of_rate = ("size", "deadline"), ("rate", "duration")
    given = of_rate if {*of_rate} & {*table} else of_bytes
    for key in ("ranks", *given):
        if key not in table:
            yield f".{key}", f"is missing; allowed: {KEYS[key].kind.allowed}"
    for key in of_bytes if given == of_rate else ():
        if key in table:
            yield f".{key}", "cannot be combined with a rate and a duration; allowed: one of the two"
    if len(values.get("ranks") or (0, 0)) != 2:
        yield ".ranks", f"{format_value(table['ranks'])} are not two ranks; allowed: the sender and the receiver"
    at_s = {key: values[key] for key in ("start", *_TRANSFER_KEYS) if key in values}
    if "duration" in values:
        at_s["end of its duration"] = at_s.get("start", 0.0) + values["duration"]
    for before, key in (("start", "deadline"), ("deadline", "latest"), ("end of its duration", "latest")):
        if before in at_s and key in at_s and at_s[key] <= at_s[before]:
            yield f".{key}", f"{format_value(table[key])} is not after the {before}; allowed: a later time"


def check(jobs: Iterable[JobSpec], gpus: int, classes: Sequence[ClassSpec]) -> Iterator[Mistake]:
    """Yield what is wrong with jobs on this number of GPUs with these classes."""
    names = [each.name for each in classes]
    for number, job in enumerate(jobs, 1):
        if job.traffic_class is not None and job.traffic_class not in names:
            allowed = f"allowed: the name of a [[class]]: {', '.join(names) or 'there is none'}"
            yield Mistake(f"job[{number}].class", f"{format_value(job.traffic_class)} is not a class; {allowed}")
        if job.ranks is not None and max(job.ranks) >= gpus:
            yield Mistake(f"job[{number}].ranks", f"there is no rank {max(job.ranks)}; allowed: 0 to {gpus - 1}")
