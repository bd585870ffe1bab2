"""What a script's steps consisted of (`program.gpu`), from the records that ranks leave at their ends (`recording`).

Files of ranks are those of a program, which can write anything there: one that is not such a record is left out.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts.collectives.kinds import ALGORITHMS
from scenarios.spec.program import GPU_STEPS

_MOST_BYTES = 100_000_000
_PARTS = ("computing_s", "exposed_s", "waiting_s", "overlap_s", "communication_s")
_WITHIN = "within sites"
_MESSAGES = ("send", "recv")
_MAX_RANKS = 8
_MAX_NAME = 200
_MOST = 1 << 60  # of ns, bytes and the like
_MOST_FLOPS = 1e30

SCRIPT_STEPS, EXPOSED = "script_steps.csv", "exposed.csv"
"""In the run folder: what each step under `program.gpu` consisted of, and its collectives."""

COLUMNS = ("rank", "step", "begin_s", "end_s", "step_s", *_PARTS, "flops", "utilisation")
"""The columns of `script_steps.csv`."""

EXPOSED_COLUMNS = ("rank", "step", "ranks", "number", "kind", "size_bytes", "exposed_s")
"""The columns of `exposed.csv`."""


@dataclass(frozen=True)
class Exposed:
    """A collective of the group `ranks`, or a message of the first of them to the second, that ran in a step on a rank,
    and the part of it in which no kernel ran."""

    ranks: tuple[int, ...]
    number: int
    kind: str
    size_bytes: int
    exposed_ns: int


@dataclass(frozen=True)
class Step:
    """A step of a rank: times in ns since the ranks' start, its parts (`breakdown.Breakdown`), its FLOPs, the s that
    these take at the GPU's peak, and its collectives."""

    rank: int
    number: int
    begin_ns: int
    end_ns: int
    computing_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    waiting_ns: int
    flops: float
    at_peak_s: float
    collectives: tuple[Exposed, ...]

    @property
    def step_ns(self) -> int:
        """The step's time."""
        return self.end_ns - self.begin_ns

    @property
    def utilisation(self) -> float:
        """The share of the step in which its FLOPs would be done at the GPU's peak (MFU)."""
        return self.at_peak_s * 1e9 / self.step_ns if self.step_ns else 0.0

    def parts_s(self) -> dict[str, float]:
        """Return the parts in s, by the names of columns."""
        return {name: getattr(self, f"{name.removesuffix('_s')}_ns") / 1e9 for name in _PARTS}


@dataclass(frozen=True)
class Kernel:
    """A kernel: when it began in ns since the ranks' start, how long it took, and the ids of what it waited for."""

    id: int
    name: str
    stream: int
    begin_ns: int
    took_ns: int
    flops: float
    after: tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """A collective or message on a rank, with the name and the ranks of its group; `ended_ns` is None if it did not
    end."""

    id: int
    group: tuple[str, tuple[int, ...]]
    number: int
    kind: str
    size_bytes: int
    asked_ns: int
    begun_ns: int
    ended_ns: int | None
    after: tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """The kernels and collectives that began in a step of a rank."""

    step: int
    begin_ns: int
    end_ns: int
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]


@dataclass(frozen=True)
class Records:
    """What a rank has recorded: its steps, how many more there were, and its last steps in detail."""

    rank: int
    steps: tuple[Step, ...]
    left_out: int
    kept: tuple[Kept, ...]


def read(folder: Path, ranks: int, beginning_ns: int) -> list[Records]:
    """Return the records that ranks have left in this folder, with times since `beginning_ns` of CLOCK_MONOTONIC."""
    found = []
    for rank in range(ranks):
        path = folder / GPU_STEPS.format(rank)
        try:
            if path.stat().st_size <= _MOST_BYTES:
                found.append(_records(rank, json.loads(path.read_text(encoding="utf-8")), beginning_ns))
        except (OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
            continue
    return found


def _records(rank: int, given: Mapping[str, Any], beginning_ns: int) -> Records:
    groups = [(_text(name), tuple(map(_whole, ranks))) for name, ranks in given["groups"]]
    names = [_text(name) for name in given["names"]]

    def span(begin: Any, end: Any) -> tuple[int, int]:
        begin_ns, end_ns = _whole(begin) - beginning_ns, _whole(end) - beginning_ns
        if begin_ns > end_ns:
            raise ValueError(f"{end} is before {begin}")
        return begin_ns, end_ns

    def step(fields: Sequence[Any]) -> Step:
        number, begin, end, *parts, flops, at_peak_s, collectives = fields
        computing, communication, overlap, exposed, waiting = map(_whole, parts)
        return Step(
            rank,
            _whole(number),
            *span(begin, end),
            computing,
            communication,
            overlap,
            exposed,
            waiting,
            _amount(flops),
            _amount(at_peak_s),
            tuple(
                Exposed(groups[_whole(group)][1], _whole(nth), _kind(kind), _whole(size), _whole(part))
                for group, nth, kind, size, part in collectives
            ),
        )

    def kernel(fields: Sequence[Any]) -> Kernel:
        id_, name, stream, begin, took, flops, after = fields
        begin_ns, end_ns = span(begin, _whole(begin) + _whole(took))
        told = _whole(id_), names[_whole(name)], _whole(stream)
        return Kernel(*told, begin_ns, end_ns - begin_ns, _amount(flops), tuple(map(_whole, after)))

    def collective(fields: Sequence[Any]) -> Collective:
        id_, group, number, kind, size, asked, begun, ended, after = fields
        begun_ns, ended_ns = span(begun, begun if ended is None else ended)
        return Collective(
            _whole(id_),
            groups[_whole(group)],
            _whole(number),
            _kind(kind),
            _whole(size),
            _whole(asked) - beginning_ns,
            begun_ns,
            None if ended is None else ended_ns,
            tuple(map(_whole, after)),
        )

    kept = [
        Kept(
            _whole(one["step"]),
            *span(one["begin_ns"], one["end_ns"]),
            tuple(map(kernel, one["kernels"])),
            tuple(map(collective, one["collectives"])),
        )
        for one in given["kept"]
    ]
    return Records(rank, tuple(map(step, given["steps"])), _whole(given["left_out"]), tuple(kept))


def _text(value: Any) -> str:
    return str(value)[:_MAX_NAME].encode(errors="replace").decode()  # JSON may have half a character


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r:.60} is not a whole number from 0 to {_MOST}")
    return value


def _amount(value: Any) -> float:
    if not (isinstance(value, int | float) and 0 <= value <= _MOST_FLOPS):
        raise ValueError(f"{value!r:.60} is not a number from 0 to {_MOST_FLOPS}")
    return float(value)


def _kind(value: Any) -> str:
    if not isinstance(value, str) or value not in (*ALGORITHMS, *_MESSAGES):
        raise ValueError(f"{value!r:.60} is not a kind of collective or message")
    return value


@dataclass(frozen=True)
class Window:
    """The last steps that all ranks have kept: their numbers, and for each rank the steps."""

    steps: tuple[int, ...]
    kept: tuple[tuple[Kept, ...], ...]

    @property
    def begin_ns(self) -> int:
        """When the first rank began its first step."""
        return min(of_rank[0].begin_ns for of_rank in self.kept)

    @property
    def end_ns(self) -> int:
        """When the last rank ended its last step."""
        return max(of_rank[-1].end_ns for of_rank in self.kept)


def window(records: Sequence[Records], ranks: int) -> Window | None:
    """Return the steps that all `ranks` ranks have kept; None if there are none."""
    if not records or len(records) != ranks:
        return None
    common = set[int].intersection(*({kept.step for kept in of_rank.kept} for of_rank in records))
    kept = tuple(tuple(one for one in of_rank.kept if one.step in common) for of_rank in records)
    return Window(tuple(sorted(common)), kept) if common else None


def rows(records: Iterable[Records]) -> list[list[Any]]:
    """Return the rows of `script_steps.csv`."""
    return [
        [
            *(one.rank, one.number, one.begin_ns / 1e9, one.end_ns / 1e9, one.step_ns / 1e9),
            *one.parts_s().values(),
            *(one.flops, one.utilisation),
        ]
        for of_rank in records
        for one in of_rank.steps
    ]


def exposed_rows(records: Iterable[Records]) -> list[list[Any]]:
    """Return the rows of `exposed.csv`."""
    return [
        [
            *(step.rank, step.number, " ".join(map(str, one.ranks)), one.number),
            *(one.kind, one.size_bytes, one.exposed_ns / 1e9),
        ]
        for of_rank in records
        for step in of_rank.steps
        for one in step.collectives
    ]


def summary(records: Sequence[Records], ranks: int, ended: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the means over all steps of all ranks, of which the program has `ranks`; None without steps. `ended` are
    the records of collectives in `RunState`.

    `exposed_by_kind` divides the exposed time among kinds of collectives. `exposed_by_link` has, for each WAN link, the
    exposed time of the collectives that cross it, so one that crosses several counts for each; those that cross none
    are "within sites". Messages count for no link.
    """
    steps = [step for of_rank in records for step in of_rank.steps]
    if not steps:
        return None
    count = len(steps)
    links_of = _links_of(ended)
    by_kind, by_link = Counter[str](), Counter[str]()
    for step in steps:
        for one in step.collectives:
            by_kind[one.kind] += one.exposed_ns
            if one.kind in _MESSAGES:
                continue
            for link in links_of.get((one.ranks, one.number, one.kind), (_WITHIN,)):
                by_link[link] += one.exposed_ns
    parts = [step.parts_s() for step in steps]
    step_ns = sum(step.step_ns for step in steps)
    return {
        "ranks": sum(bool(of_rank.steps) for of_rank in records),
        "steps": count,
        "left_out": {str(of_rank.rank): of_rank.left_out for of_rank in records if of_rank.left_out},
        "has_detail": window(records, ranks) is not None,
        "step_s": step_ns / count / 1e9,
        **{name: sum(one[name] for one in parts) / count for name in _PARTS},
        "flops": sum(step.flops for step in steps) / count,
        "utilisation": sum(step.at_peak_s for step in steps) * 1e9 / step_ns if step_ns else 0.0,
        "exposed_by_kind": {kind: exposed_ns / count / 1e9 for kind, exposed_ns in sorted(by_kind.items())},
        "exposed_by_link": {link: exposed_ns / count / 1e9 for link, exposed_ns in sorted(by_link.items())},
    }


def _links_of(ended: Sequence[Mapping[str, Any]]) -> dict[tuple[tuple[int, ...], int, str], tuple[str, ...]]:
    """Return the WAN links that each collective crosses, by its group's ranks, number and kind. A group that a script
    has made again counts its collectives anew: then all of these links count."""
    links: dict[tuple[tuple[int, ...], int, str], set[str]] = {}
    for one in ended:
        links.setdefault((tuple(one["ranks"]), one["number"], one["kind"]), set()).update(one["links"])
    return {key: tuple(sorted(some)) or (_WITHIN,) for key, some in links.items()}


def table(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines of a table of a summary; none without steps."""
    if found is None:
        return
    names = ("step", "computing", "exposed", "waiting", "overlap")
    yield f"mean of {found['steps']:,} steps of {found['ranks']:,} ranks, ms".ljust(40) + _cells(names)
    yield "".ljust(40) + _cells(f"{found[f'{name}_s'] * 1e3:,.6f}" for name in names)
    for what, parts in (("kind", found["exposed_by_kind"]), ("link", found["exposed_by_link"])):
        for name, exposed_s in parts.items():
            where = f"in {name}" if what == "kind" else name if name == _WITHIN else f"across {name}"
            yield f"  exposed {where}".ljust(40) + _cells(("", "", f"{exposed_s * 1e3:,.6f}"))
    yield f"utilisation of the GPU's peak (MFU): {found['utilisation']:.2%}"


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"{text:>13}" for text in texts).rstrip()


def notes(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a sentence for what a summary lacks."""
    if found is None:
        return
    if found["left_out"]:
        ranks = ", ".join(f"{count:,} of rank {rank}" for rank, count in [*found["left_out"].items()][:_MAX_RANKS])
        yield f"steps beyond what a rank records have no row in {SCRIPT_STEPS} and are in no mean: {ranks}"
    if not found["has_detail"]:
        yield (
            "the run has neither a timeline nor traces of its ranks: some ranks have left no records, or the ranks "
            "recorded different last steps, or the last step has more kernels than are kept"
        )
