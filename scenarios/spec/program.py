"""The [program] table: a program of the user that is run on the GPUs' hosts. Pure.

[program]
command = "python train.py"
ranks = [0, 1, 4, 5]       # without it all GPUs
env = {OMP_NUM_THREADS = "1"}
deadline = "20 s"          # by the clock of the run
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from scenarios.program.rank import longhaul_gpu
from scenarios.program.rank.longhaul_gpu.models import MODELS, Gpu
from scenarios.spec import gpu, roles
from scenarios.spec.roles import Role
from scenarios.spec.values import fitting, whole
from topologies.conditions.clock import DATES, date_ns
from topologies.errors import Mistake, did_you_mean, format_value, list_first
from topologies.fabric.fabric import Fabric
from topologies.fabric.ipv6 import address_of
from topologies.fabric.link_names import directions
from topologies.fabric.ports import links_in_grain
from topologies.units import format_size

PORT = 29500
"""The port on which the program's first rank may listen: torch's default."""

TOOLS = Path(__file__).parents[1] / "program" / "rank"
"""The folder of the commands and the module that ranks find: ssh and sshd, longhaul-compute, longhaul."""

HOSTFILE = "/run/longhaul-hosts"
"""A file that ranks find: the names of all ranks' hosts, one a line."""

COLLECTIVES = "/run/longhaul-collectives"
"""A Unix socket of each rank, at which the backend `longhaul` asks for its collectives."""

PRELOAD = "/run/longhaul-preload"
"""A Unix socket of all ranks, at which Python programs get a process that has modules in memory (`program.preload`)."""

PRELOADING = TOOLS / "preload"
"""The folder of what preloads modules, which ranks' PYTHONPATH begins with if any are."""

SCRIPTS, LONGHAUL = "script", "longhaul"
BACKENDS = SCRIPTS, LONGHAUL
"""Backends of torch.distributed: those that the script names, or the run's own in their place."""

REAL, FAKE = "real", "fake"
TENSORS = REAL, FAKE
"""Tensors of a script with a GPU: those of torch, or ones whose values are not computed and which take no memory."""

GPU_ACCOUNTS = "gpu-{}.json"
"""The file in the working directory with the accounts of a rank's GPU, by the rank's number."""

GPU_STEPS = "steps-{}.json"
"""The file in the working directory with the steps of a rank's GPU, by the rank's number."""

LAUNCHERS = {
    # Where Open MPI 4 and 5 and MPICH's hydra find the hosts, and hydra the ssh.
    **dict.fromkeys(("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"), HOSTFILE),
    "HYDRA_LAUNCHER_EXEC": str(TOOLS / "ssh"),
    "HYDRA_LAUNCHER": "ssh",  # otherwise it takes srun's command line where a program sets Slurm's variables
    # The names of interfaces differ from host to host, so Open MPI gets their network.
    **dict.fromkeys(("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"), "10.0.0.0/8"),
}
"""Variables of a rank's environment that serve launchers, unless the user sets them."""

SHELL_BYTES = 1_000_000
"""Memory of a rank's shell, with a margin."""

HOST_DATE = "host"
"""The `date` of a program that sees the date of this machine."""

_MAX_NAMES = 24  # names that a message lists


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """A program that is run on the GPUs' hosts: one command on all of its ranks, or `roles`; without either, none.

    `ranks` are the GPUs that it runs on, all of them if None; its own rank 0 is on the first. `backend` is one of
    BACKENDS. `preload` are Python modules that are loaded once for all ranks. With a `gpu`, operations of torch take
    the time that it would take, or that the table `kernels` has for them; `tensors` is one of TENSORS. `deadline_s` and
    `sample_s` are measured by the clock of the run, `patience_s` in processor time. WAN paths are chosen for a message
    of `message_bytes` from each GPU to each GPU of another site. `memory_bytes` is the memory of all its processes
    together, and `processes` the number of its processes and threads, by rank on average. `output_bytes` is how much is
    kept of each rank's output and of its error output, and `files_bytes` is the room for the files that it writes.
    `capture` names the links whose packets are written to files, those of collectives if there is no program. `date` is
    the date that ranks see when they start, in ISO 8601, or `HOST_DATE`.
    """

    command: str | None = None
    roles: tuple[Role, ...] = ()
    ranks: tuple[int, ...] | None = None
    backend: str = SCRIPTS
    preload: tuple[str, ...] = ()
    gpu: Gpu | None = None
    kernels: Path | None = None
    tensors: str = REAL
    env: tuple[tuple[str, str], ...] = ()
    deadline_s: float = 1000.0
    sample_s: float = 10e-3
    patience_s: float = 30.0
    message_bytes: int = 8_000_000
    memory_bytes: int = 4_000_000_000
    processes: int = 100
    output_bytes: int = 16_000_000
    files_bytes: int = 256_000_000
    capture: tuple[str, ...] = ()
    date: str = HOST_DATE

    @property
    def date_ns(self) -> int | None:
        """The date that ranks see when they start, in ns since 1970; None for the machine's own."""
        return None if self.date == HOST_DATE else date_ns(self.date)

    @property
    def is_given(self) -> bool:
        """Whether there is a program."""
        return self.command is not None or bool(self.roles)

    @property
    def is_run(self) -> bool:
        """Whether the program is run at once: at a prompt it is given, with an empty command, and may run later."""
        return bool(self.command or self.roles)

    @property
    def interpreter(self) -> str:
        """The Python interpreter that the first command names, as it names it; "python" if it names none."""
        words = re.findall(r"[^\s'\"=;&|()]+", self.all_roles[0].command)
        return next((word for word in words if _PYTHON.fullmatch(word.rpartition("/")[2])), "python")

    @property
    def all_roles(self) -> tuple[Role, ...]:
        """The roles, of which a program with one command has one."""
        return self.roles or (Role(command=self.command or ""),)

    def roles_of(self, gpus_per_site: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return for each rank its GPU and the index of its role in `all_roles`, given the GPUs of each site."""
        return roles.placed(self.all_roles, gpus_per_site, self.ranks)

    def ranks_of(self, gpus_per_site: Sequence[int]) -> tuple[int, ...]:
        """Return the GPUs that the program runs on, its rank 0 first, given the GPUs of each site."""
        return tuple(gpu for gpu, _ in self.roles_of(gpus_per_site))


_PYTHON = re.compile(r"python[0-9.]*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
MODULES = fitting(
    "a list of names of Python modules, each once",
    (list,),
    lambda names: (
        all(isinstance(one, str) and _MODULE.fullmatch(one) for one in names) and len(set(names)) == len(names)
    ),
    tuple,
    list,
)

RANKS = fitting(
    "a list of ranks, each once",
    (list,),
    lambda ranks: ranks and all(type(one) is int and one >= 0 for one in ranks) and len(set(ranks)) == len(ranks),
    tuple,
    list,
)


def _directions(names: Sequence[str]) -> list[str]:
    return [one for name in names for one in directions(name)]


CAPTURE = fitting(
    "a list of links by name, each once",
    (list,),
    lambda names: (
        all(isinstance(one, str) for one in names) and len(set(_directions(names))) == len(_directions(names))
    ),
    lambda names: tuple(_directions(names)),
    list,
)


def _is_date(given: str | datetime) -> bool:
    try:
        return str(given) == HOST_DATE or date_ns(_date(given)) > 0
    except ValueError:
        return False


def _date(given: str | datetime) -> str:
    return given if isinstance(given, str) else given.isoformat()


DATE = fitting(f"{HOST_DATE}, or {DATES}", (str, datetime), _is_date, _date, str)
PROCESSES = whole(2, 30_000, "processes")


def variables(fabric: Fabric, gpus: Sequence[int], rank: int) -> dict[str, str]:
    """Return the environment variables that the run sets for a rank of a program on these GPUs: torch's names, and the
    network interface for libraries that would otherwise search for one."""
    own, first = fabric.gpus[gpus[rank]], fabric.gpus[gpus[0]]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(gpus)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(len(gpus)),
        "MASTER_ADDR": first.ip,
        "MASTER_PORT": str(PORT),
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), own.interface),
        "LONGHAUL_GPU": own.name,
        "LONGHAUL_SITE": str(own.site),
        "LONGHAUL_ADDRESS": own.ip,
        "LONGHAUL_ADDRESS6": address_of(own.ip),
        "LONGHAUL_HOSTS": " ".join(fabric.gpus[gpu].ip for gpu in gpus),
        "LONGHAUL_HOSTFILE": HOSTFILE,
    }


def gpu_variables(program: ProgramSpec, rank: int) -> dict[str, str]:
    """Return the variables by which a rank's torch takes the time of the program's GPU; none without one."""
    if program.gpu is None:
        return {}
    table = {} if program.kernels is None else {longhaul_gpu.KERNELS: str(program.kernels)}
    left = {longhaul_gpu.REPORT: GPU_ACCOUNTS.format(rank), longhaul_gpu.STEPS: GPU_STEPS.format(rank)}
    fake = {longhaul_gpu.TENSORS: FAKE} if program.tensors == FAKE else {}
    return {longhaul_gpu.MODEL: program.gpu.as_json(), **left, **table, **fake}


def check_captures(program: ProgramSpec, fabric: Fabric) -> Iterator[Mistake]:
    """Yield the links to be captured that a fabric does not have."""
    names = [link.name for link in links_in_grain(fabric).all] if program.capture else []
    for name in program.capture:
        if name not in names:
            allowed = f"{list_first(names, _MAX_NAMES)}{did_you_mean(name, names)}"
            yield Mistake("program.capture", f"{format_value(name)} is not a link; allowed: {allowed}")


def check(program: ProgramSpec, fabric: Fabric) -> Iterator[Mistake]:
    """Yield what is wrong with a program on a fabric."""
    gpus = len(fabric.gpus)
    if program.ranks is not None and max(program.ranks) >= gpus:
        yield Mistake("program.ranks", f"there is no rank {max(program.ranks)}; allowed: 0 to {gpus - 1}")
    set_by_run = variables(fabric, (0,), 0)
    for name, _ in program.env:
        if name in set_by_run:
            yield Mistake("program.env", f"{name} is set by the run; allowed: names other than {', '.join(set_by_run)}")
    yield from gpu.check(program.gpu, program.kernels)
    if program.tensors == FAKE and program.gpu is None:
        yield Mistake("program.tensors", f"fake tensors need a GPU; allowed: program.gpu, one of {', '.join(MODELS)}")
    yield from roles.check(program.roles, fabric.spec.gpus_per_site, program.ranks, list(set_by_run))
    least_bytes = SHELL_BYTES * len(program.ranks_of(fabric.spec.gpus_per_site))
    if program.memory_bytes < least_bytes:
        has, least = format_size(program.memory_bytes), format_size(least_bytes)
        yield Mistake("program.memory", f'"{has}" is too little for the ranks\' shells; allowed: "{least}" or more')
