"""How MPI libraries are told hosts and algorithms, and what they then send in the OSU micro-benchmarks."""

import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import own_python
from tests.references.osu import BANDWIDTH, LATENCY, SIZES, Case, Library
from tests.references.patterns import Step, binomial, exchange, near_first, pairwise, ring

MPICH_VERSION, MPI4PY_VERSION = "5.0.2", "4.1.2"


@contextmanager
def of_pypi(*packages: str) -> Iterator[tuple[Path, Path]]:
    """Make an environment with MPICH, mpi4py and more; yield the folder of its programs, and mpi4py's source."""
    mpi4py = f"mpi4py=={MPI4PY_VERSION}"
    with own_python([f"mpich=={MPICH_VERSION}", mpi4py, *packages]) as python:
        folder = python.parent.parent
        command = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "mpi4py", "-d", folder, mpi4py]
        subprocess.run(command, check=True)
        subprocess.run(["tar", "-xf", folder / f"mpi4py-{MPI4PY_VERSION}.tar.gz", "-C", folder], check=True)
        yield python.parent, folder / f"mpi4py-{MPI4PY_VERSION}"


def _doubling(ranks: int, size: float) -> Iterator[Step]:
    return exchange(ranks, [(1 << k, size) for k in range((ranks - 1).bit_length())])


def _halving(ranks: int, size: float) -> Iterator[Step]:
    return exchange(ranks, [(1 << k, size * (1 << k) / ranks) for k in reversed(range((ranks - 1).bit_length()))])


def _all_distances(ranks: int, size: float) -> Iterator[Step]:
    return exchange(ranks, [(k, size) for k in range(1, ranks)])


def _blocks(steps: Callable[[int, float], Iterable[Step]]) -> Callable[[int, float], Iterable[Step]]:
    return lambda ranks, size: steps(ranks, size / ranks)


def _scatter_and_ring(ranks: int, size: float) -> Iterator[Step]:
    for k in reversed(range((ranks - 1).bit_length())):
        yield [(rank, rank + (1 << k), size * (1 << k) / ranks) for rank in range(0, ranks, 2 << k)]
    yield from ring(ranks, size / ranks)


def _linear_barrier(ranks: int, _: float) -> Iterator[Step]:
    yield [(rank, 0, 0) for rank in range(1, ranks)]
    yield [(0, rank, 0) for rank in range(1, ranks)]


def _exchange_barrier(ranks: int, _: float) -> Iterator[Step]:
    return _doubling(ranks, 0)


# With announcements, the answer of a rank that has begun to send waits behind its own message in their one connection,
# and an exchange takes up to twice its time.
EAGER = "--mca btl_tcp_eager_limit 2097152"

# All programs have the same barrier between their iterations. After Open MPI's linear one, ranks go on at instants that
# do not depend on when they came, and after MPICH's recursive exchange nearly so. After others they do, and what is
# measured then depends on how connections were made: by up to 8 % in the model.
OPEN_MPI = Library(
    compiler="mpicc.openmpi",
    run="mpirun.openmpi",
    hosts="--host",
    told="--mca coll_tuned_",
    eager=65536 - 64,  # btl_tcp_eager_limit, with the envelope
    environment='OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self", OMPI_MCA_mtl="^ofi,psm,psm2", '
    'OMPI_MCA_coll_tuned_use_dynamic_rules="1"',
    cases=[
        LATENCY,
        BANDWIDTH,
        Case("bcast", 4, [1 << 17], near_first, "bcast_algorithm 6"),
        Case("allgather", 16, [1 << 18], ring, "allgather_algorithm 4"),
        Case("alltoall", 8, [1 << 19], pairwise, "alltoall_algorithm 2"),
        Case("allreduce", 8, [1 << 20], _doubling, f"allreduce_algorithm 3 {EAGER}", 2**21),
        Case("reduce_scatter", 8, [1 << 22], _blocks(ring), "reduce_scatter_algorithm 3", skipped=3),
        Case("barrier", 8, [0], _linear_barrier, "barrier_algorithm 1"),
    ],
)
MPICH = Library(
    compiler="mpicc",
    run="mpirun",
    hosts="-hosts",
    told="-genv MPIR_CVAR_",
    eager=1.5 * 2**20,  # UCX announces 2 MiB, and not 1 MiB
    environment="",
    cases=[
        LATENCY,
        BANDWIDTH,
        Case("bcast", 4, [1 << 17], binomial, "BCAST_INTRA_ALGORITHM binomial"),
        Case("allgather", 16, [1 << 18], ring, "ALLGATHER_INTRA_ALGORITHM ring"),
        Case("alltoall", 8, [1 << 19], _all_distances, "ALLTOALL_INTRA_ALGORITHM pairwise"),
        Case("allreduce", 8, [1 << 20], _doubling, "ALLREDUCE_INTRA_ALGORITHM recursive_doubling"),
        Case("reduce_scatter", 8, [1 << 21], _halving, "REDUCE_SCATTER_INTRA_ALGORITHM recursive_halving", skipped=3),
        Case("barrier", 8, [0], _exchange_barrier, "BARRIER_INTRA_ALGORITHM recexch"),
    ],
)
MPI4PY = MPICH._replace(
    compiler="",
    barriers=False,
    cases=[
        LATENCY,
        BANDWIDTH._replace(sizes=SIZES[1:-2]),
        # Rank 0 has sent a binomial broadcast in no time, and would print 0.
        Case("bcast", 4, [1 << 19], _scatter_and_ring, "BCAST_INTRA_ALGORITHM scatter_ring_allgather"),
        Case("allgather", 8, [1 << 19], ring, "ALLGATHER_INTRA_ALGORITHM ring"),
        *(one for one in MPICH.cases if one.program in ("alltoall", "barrier")),
    ],
)
