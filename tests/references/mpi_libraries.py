"""How MPI libraries are told hosts and algorithms, and what the OSU micro-benchmarks then print and send."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.references.patterns import Pattern, Step, binomial, exchange, near_first, pairwise, ring

WAN = {"wan_bps": 1e9, "wan_s": 0.01, "site_bps": 1e10, "site_s": 0.7e-6}
SIZES = [0, *(1 << k for k in range(23))]  # of osu_latency; osu_bw begins with 1
WINDOW = 64  # messages that osu_bw sends at once
ITERATIONS = dict.fromkeys(["latency", "bw", "bcast", "allgather", "alltoall", "allreduce"], (1, 2))
ITERATIONS |= {"bw": (1, 1), "reduce_scatter": (3, 2), "barrier": (1, 2)}
"""How often a program does its work: first on new connections, which is not in its results, and then for these."""


class Library(NamedTuple):
    """The compiler, mpirun, its option for hosts and how it is told a parameter of algorithms; the size in bytes beyond
    which messages are announced; and variables for all programs."""

    compiler: str
    run: str
    hosts: str
    told: str
    eager: float
    environment: str


LIBRARIES = {
    "Open MPI": Library(
        compiler="mpicc.openmpi",
        run="mpirun.openmpi",
        hosts="--host",
        told="--mca coll_tuned_",
        eager=65536 - 64,  # btl_tcp_eager_limit, with the envelope
        environment='OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self", OMPI_MCA_mtl="^ofi,psm,psm2", '
        'OMPI_MCA_coll_tuned_use_dynamic_rules="1"',
    ),
    "MPICH": Library(
        compiler="mpicc",
        run="mpirun",
        hosts="-hosts",
        told="-genv MPIR_CVAR_",
        eager=1.5 * 2**20,  # UCX announces 2 MiB, and not 1 MiB
        environment="",
    ),
}


class Case(NamedTuple):
    """A collective: its ranks, its size in bytes, its algorithm as the library is told, the steps of that, and the
    size beyond which messages are announced if it is not the library's."""

    ranks: int
    size: int
    told: str
    steps: Callable[[int, float], Iterable[Step]]
    eager: float = 0.0


def _doubling(ranks: int, size: float) -> Iterator[Step]:
    return exchange(ranks, [(1 << k, size) for k in range((ranks - 1).bit_length())])


def _halving(ranks: int, size: float) -> Iterator[Step]:
    return exchange(ranks, [(1 << k, size * (1 << k) / ranks) for k in reversed(range((ranks - 1).bit_length()))])


def _all_distances(ranks: int, size: float) -> Iterator[Step]:
    return exchange(ranks, [(k, size) for k in range(1, ranks)])


def _blocks(steps: Callable[[int, float], Iterable[Step]]) -> Callable[[int, float], Iterable[Step]]:
    return lambda ranks, size: steps(ranks, size / ranks)


def _linear_barrier(ranks: int, _: float = 0.0) -> Iterator[Step]:
    yield [(rank, 0, 0) for rank in range(1, ranks)]
    yield [(0, rank, 0) for rank in range(1, ranks)]


def _exchange_barrier(ranks: int, _: float = 0.0) -> Iterator[Step]:
    return _doubling(ranks, 0)


# With announcements, the answer of a rank that has begun to send waits behind its own message in their one connection,
# and an exchange takes up to twice its time.
EAGER = "--mca btl_tcp_eager_limit 2097152"

# All programs have the same barrier between their iterations. After Open MPI's linear one, ranks go on at instants that
# do not depend on when they came, and after MPICH's recursive exchange nearly so. After others they do, and what is
# measured then depends on how connections were made: by up to 8 % in the model.
CASES = {
    "Open MPI": {
        "bcast": Case(8, 1 << 17, "bcast_algorithm 6", near_first),
        "allgather": Case(8, 1 << 19, "allgather_algorithm 4", ring),
        "alltoall": Case(8, 1 << 19, "alltoall_algorithm 2", pairwise),
        "allreduce": Case(8, 1 << 20, f"allreduce_algorithm 3 {EAGER}", _doubling, 2**21),
        "reduce_scatter": Case(8, 1 << 22, "reduce_scatter_algorithm 3", _blocks(ring)),
        "barrier": Case(8, 0, "barrier_algorithm 1", _linear_barrier),
    },
    "MPICH": {
        "bcast": Case(8, 1 << 17, "BCAST_INTRA_ALGORITHM binomial", binomial),
        "allgather": Case(8, 1 << 19, "ALLGATHER_INTRA_ALGORITHM ring", ring),
        "alltoall": Case(8, 1 << 19, "ALLTOALL_INTRA_ALGORITHM pairwise", _all_distances),
        "allreduce": Case(8, 1 << 20, "ALLREDUCE_INTRA_ALGORITHM recursive_doubling", _doubling),
        "reduce_scatter": Case(8, 1 << 21, "REDUCE_SCATTER_INTRA_ALGORITHM recursive_halving", _halving),
        "barrier": Case(8, 0, "BARRIER_INTRA_ALGORITHM recexch", _exchange_barrier),
    },
}


class Result(NamedTuple):
    """What a program prints, by size in bytes (us on average over the ranks; `bw`: MB/s), and its bytes on the WAN from
    each site, without headers of packets."""

    printed: dict[int, float]
    wan_bytes: tuple[float, float]


def predicted(name: str, program: str) -> Result:
    """Return what a program should print and send."""
    printed, carried = dict[int, float](), [0.0, 0.0]
    skipped, counted = ITERATIONS[program]
    case = CASES[name].get(program, Case(2, 0, "", ring))
    for size in [case.size] if program in CASES[name] else SIZES[program == "bw" :]:
        pattern = Pattern(
            [rank * 2 // case.ranks for rank in range(case.ranks)], eager=case.eager or LIBRARIES[name].eager, **WAN
        )
        spans = []
        for _ in range(skipped + counted):
            if program in CASES[name]:
                if program != "barrier":
                    pattern.run(CASES[name]["barrier"].steps(case.ranks, 0))
                steps = case.steps(case.ranks, size)
            else:
                window, answer = (1, size) if program == "latency" else (WINDOW, 4)
                steps = iter([[(0, 1, size)] * window, [(1, 0, answer)]])
            spans.append(pattern.run(steps))
        counts = case.ranks if program in CASES[name] else 1  # rank 0 times what is there and back
        took_s = [
            sum(pattern.times_s(after)[:counts]) - sum(pattern.times_s(before)[:counts])
            for before, after in spans[skipped:]
        ]
        us = sum(took_s) / counted / counts * 1e6
        printed[size] = {"latency": us / 2, "bw": size * WINDOW / us}.get(program, us)
        carried = [before + pattern.wan_bytes(site) for site, before in enumerate(carried)]
    return Result(printed, (carried[0], carried[1]))
