"""The OSU micro-benchmarks: what they do, and what they print and send as the fluid model predicts it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.references.patterns import WAN, Pattern, Step

SIZES = [0, *(1 << k for k in range(23))]  # of osu_latency; osu_bw begins with 1
POINT_TO_POINT = ("latency", "bw")
WINDOW = 64  # messages that osu_bw sends at once


class Case(NamedTuple):
    """A program: its ranks, its sizes in bytes, the steps of what it does, its algorithm as the library is told, and
    the size beyond which messages are announced if it is not the library's. It does its work so often first on new
    connections, which is not in its results, and then so often for these."""

    program: str
    ranks: int
    sizes: Sequence[int]
    steps: Callable[[int, float], Iterable[Step]]
    told: str = ""
    eager: float = 0.0
    skipped: int = 1
    counted: int = 2

    @property
    def name(self) -> str:
        return f"osu_{self.program} on {self.ranks} ranks"


class Library(NamedTuple):
    """The compiler of programs (mpi4py's have none), mpirun, its option for hosts and how it is told a parameter of
    algorithms; the size in bytes beyond which messages are announced; variables for all programs; the cases; and
    whether programs have a barrier before each time, and print the mean over the ranks (OSU's of C), or one before the
    first, and print what rank 0 takes (mpi4py's)."""

    compiler: str
    run: str
    hosts: str
    told: str
    eager: float
    environment: str
    cases: Sequence[Case]
    barriers: bool = True

    @property
    def barrier(self) -> Case:
        return next(one for one in self.cases if one.program == "barrier")


def _there_and_back(_: int, size: float) -> Iterator[Step]:
    yield [(0, 1, size)]
    yield [(1, 0, size)]


def _window(_: int, size: float) -> Iterator[Step]:
    yield [(0, 1, size)] * WINDOW
    yield [(1, 0, 4)]


LATENCY = Case("latency", 2, SIZES, _there_and_back)
BANDWIDTH = Case("bw", 2, SIZES[1:], _window, counted=1)


class Result(NamedTuple):
    """What a program prints, by size in bytes (us on average over the ranks; `bw`: MB/s), and its bytes on the WAN from
    each site, without headers of packets."""

    printed: dict[int, float]
    wan_bytes: tuple[float, float]


def predicted(library: Library, case: Case) -> Result:
    """Return what a program should print and send."""
    printed, carried = dict[int, float](), [0.0, 0.0]
    alone = case.program in POINT_TO_POINT
    barriers = library.barriers and not alone and case.program != "barrier"
    sites = [rank * 2 // case.ranks for rank in range(case.ranks)]
    for size in case.sizes:
        pattern = Pattern(sites, eager=case.eager or library.eager, **WAN)
        spans = []
        for time in range(case.skipped + case.counted):
            if barriers or time == 0:
                pattern.run(library.barrier.steps(case.ranks, 0))
            spans.append(pattern.run(case.steps(case.ranks, size)))
        counts = case.ranks if library.barriers and not alone else 1  # or rank 0 alone
        took_s = [
            sum(pattern.times_s(after)[:counts]) - sum(pattern.times_s(before)[:counts])
            for before, after in spans[case.skipped :]
        ]
        us = sum(took_s) / case.counted / counts * 1e6
        printed[size] = {"latency": us / 2, "bw": size * WINDOW / us}.get(case.program, us)
        carried = [before + pattern.wan_bytes(site) for site, before in enumerate(carried)]
    return Result(printed, (carried[0], carried[1]))


def printed(text: str) -> dict[int, float]:
    """Return the numbers that a program has printed, by size; a barrier of C has none."""
    rows = re.findall(r"(?m)^ *(\d+) +(\d+\.\d+)", text) or [
        ("0", one) for one in re.findall(r"(?m)^ +(\d+\.\d+)", text)
    ]
    return {int(size): float(number) for size, number in rows}
