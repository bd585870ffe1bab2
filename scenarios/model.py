"""The model engine: the completion times of collectives by reckoning, in batches, over several processes.

Every batch is a function of the setting and of the numbers of its collectives alone, so the number of processes, the
size of batches and the order of modes change nothing but the time it takes.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from analysis.timing import completion_s
from scenarios.engine import Slice
from scenarios.plan import MODES, decide
from scenarios.spec import Scenario
from scenarios.workers import over_tasks
from topologies.conditions import ConditionsSpec, Sampler, delays_s, sampler
from topologies.fabric import Fabric, FabricSpec, build_fabric

BATCH = 5000
"""Collectives reckoned at once: enough to make numpy's overhead small, few enough for progress to be seen."""

_CELLS = 1 << 20  # rates of one batch: large fabrics have smaller batches, and memory stays within bounds

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """The engine of the timing model, over `jobs` processes, in batches of about `batch` collectives."""

    jobs: int = 1
    batch: int = BATCH

    @property
    def name(self) -> str:
        """The engine as results name it."""
        return "model"

    def run(self, settings: Sequence[Scenario]) -> Generator[Slice, None, None]:
        """Every collective of every mode of every setting, setting by setting; as `Engine.run`.

        Raises WorkerError where a worker process is killed.
        """
        jobs = min(self.jobs, sum(-(-setting.collective.count // self._step(setting)) for setting in settings))
        with closing(over_tasks(_reckoned, self._tasks(settings), jobs=jobs)) as batches:
            for slices in batches:
                yield from slices

    def _step(self, setting: Scenario) -> int:
        # Batches that begin where rings are re-embedded need no look back at conditions before them.
        links = sum(gpus * gpus for gpus in setting.fabric.gpus_per_site)
        batch = max(1, min(self.batch, _CELLS // links))
        every = setting.collective.reembed_every
        return batch // every * every or batch

    def _tasks(self, settings: Sequence[Scenario]) -> Iterator["_Task"]:
        for place, setting in enumerate(settings):
            step = self._step(setting)
            for start in range(0, setting.collective.count, step):
                yield _Task(place, setting, start, min(step, setting.collective.count - start))


@dataclass(frozen=True)
class _Task:
    place: int
    setting: Scenario
    start: int
    count: int


def _reckoned(task: _Task) -> list[Slice]:
    """The completion times of one batch in every mode, all under the same conditions, which are drawn once."""
    setting = task.setting
    fabric = _fabric(setting.fabric)
    conditions = _Remembering(_sampler(setting.fabric, setting.conditions, setting.run.seed))
    slices = []
    for mode in setting.run.modes:
        decisions = decide(
            fabric,
            conditions,
            delays_s=delays_s(fabric, setting.conditions),
            mode=MODES[mode],
            chunk_bytes=setting.collective.chunk_bytes,
            reembed_every=setting.collective.reembed_every,
            start=task.start,
            count=task.count,
        )
        times = completion_s(decisions.edge_alpha_s, decisions.edge_beta_s)
        slices.append(Slice(setting=task.place, mode=mode, start=task.start, completion_s=times))
    return slices


class _Remembering:
    """A sampler that remembers the last conditions it was asked for, as every mode asks for the same."""

    def __init__(self, source: Sampler) -> None:
        self._source = source
        self._asked: tuple[int, int] | None = None
        self._rates_bps: Floats = np.empty((0, 0))

    @property
    def limit(self) -> int | None:
        return self._source.limit

    def rates_bps(self, start: int, count: int) -> Floats:
        if self._asked != (start, count):
            self._rates_bps = self._source.rates_bps(start, count)
            self._rates_bps.setflags(write=False)
            self._asked = (start, count)
        return self._rates_bps


@lru_cache(maxsize=4)
def _fabric(spec: FabricSpec) -> Fabric:
    return build_fabric(spec)


@lru_cache(maxsize=4)
def _sampler(fabric: FabricSpec, conditions: ConditionsSpec, seed: int) -> Sampler:
    return sampler(_fabric(fabric), conditions, seed=seed)
