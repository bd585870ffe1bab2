"""The model engine: the completion times of collectives by reckoning, in batches, over several processes.

Every batch is a function of the setting and of the numbers of its collectives alone, so the number of processes, the
size of batches and the order of modes change nothing but the time it takes.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from analysis.model.alpha_beta import completion_s
from analysis.model.lower_bound import LowerBound
from analysis.results.rows import Rows, packed, unpacked
from scenarios.engines.base import Failed, Have, News, Slice, nothing
from scenarios.engines.framing import bundled, unbundled
from scenarios.engines.pool import Lost, Over, over_tasks
from scenarios.engines.prediction import damaged
from scenarios.policies.decide import MODES, decide
from scenarios.spec.scenario import Scenario, from_json, to_json
from topologies.conditions.sampler import ConditionsSpec, Sampler, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.shaping.rate_scale import EVERYTHING

BATCH = 5000
"""Collectives reckoned at once: enough to make numpy's overhead small, few enough for progress to be seen."""

_CELLS = 1 << 20  # rates of one batch: large fabrics have smaller batches, and memory stays within bounds

Floats = npt.NDArray[np.float64]


def as_reckoned(setting: Scenario) -> Scenario:
    """A setting as the model reckons it, whatever clock the emulation goes by: whole and unscaled."""
    return replace(setting, run=replace(setting.run, clock="virtual", scale=EVERYTHING))


@dataclass(frozen=True)
class Model:
    """The engine of the timing model, over `jobs` processes, in batches of about `batch` collectives.

    `over` is what has the batches done, here or elsewhere.
    """

    jobs: int = 1
    batch: int = BATCH
    over: Over = over_tasks

    @property
    def name(self) -> str:
        """The engine as results name it."""
        return "model"

    def run(self, settings: Sequence[Scenario], have: Have = nothing) -> Generator[News, None, None]:
        """Every collective of every mode of every setting, setting by setting; as `Engine.run`."""
        jobs = min(self.jobs, sum(-(-setting.collective.count // self._step(setting)) for setting in settings))
        given_up: set[tuple[int, str]] = set()
        with closing(self.over(reckoned, self._tasks(settings, have), jobs=max(1, jobs))) as answers:
            for task, result in answers:
                for news in _news(task, result, settings):
                    if isinstance(news, Slice) or (news.setting, news.mode) not in given_up:
                        yield news
                    if isinstance(news, Failed):
                        given_up.add((news.setting, news.mode))

    def _step(self, setting: Scenario) -> int:
        # Batches that begin where rings are re-embedded need no look back at conditions before them.
        links = sum(gpus * gpus for gpus in setting.fabric.gpus_per_site)
        batch = max(1, min(self.batch, _CELLS // links))
        every = setting.collective.reembed_every
        return batch // every * every or batch

    def _tasks(self, settings: Sequence[Scenario], have: Have) -> Iterator[bytes]:
        for place, setting in enumerate(settings):
            step, text = self._step(setting), to_json(setting)
            for start in range(0, setting.collective.count, step):
                stop = min(start + step, setting.collective.count)
                modes = [mode for mode in setting.run.modes if not have(place, mode, start, stop)]
                if modes:
                    task = {"place": place, "modes": modes, "start": start, "stop": stop, "scenario": text}
                    yield json.dumps(task).encode()


def _news(task: bytes, result: bytes | Lost, settings: Sequence[Scenario]) -> Iterator[Slice | Failed]:
    """What a task's result says of each of its modes."""
    said = json.loads(task)
    place = said["place"]
    if isinstance(result, Lost):
        for mode in said["modes"]:
            where = f"model, {settings[place].label}, {mode}, collectives {said['start']} to {said['stop'] - 1}"
            yield Failed(setting=place, mode=mode, why=f"{where}: {result.why}")
        return
    for mode, rows in unbundled(result).items():
        yield Slice(setting=place, mode=mode, rows=unpacked(rows))


def reckoned(task: bytes) -> bytes:
    """The rows of one batch in every mode, all under the same conditions, which are drawn once."""
    said = json.loads(task)
    setting, start, stop = _scenario(said["scenario"]), said["start"], said["stop"]
    fabric = _fabric(setting.fabric)
    drawn = _sampler(setting.fabric, setting.conditions, setting.run.seed)
    without_faults = _Remembering(drawn)
    conditions = damaged(without_faults, fabric, setting.faults)
    bound = _bound(setting.fabric, setting.conditions, setting.collective.chunk_bytes)
    bound_s = bound.seconds(without_faults.rates_bps(start, stop - start))  # of all modes
    found = {}
    for mode in said["modes"]:
        decisions = decide(
            fabric,
            conditions,
            delays_s=delays_s(fabric, setting.conditions),
            mode=MODES[mode],
            chunk_bytes=setting.collective.chunk_bytes,
            reembed_every=setting.collective.reembed_every,
            start=start,
            count=stop - start,
        )
        rows = Rows(
            start=start,
            completion_s=completion_s(decisions.edge_alpha_s, decisions.edge_beta_s),
            ring=decisions.ring,
            paths=decisions.path,
            reembedded=decisions.reembedded,
            rerouted=decisions.rerouted,
            bound_s=bound_s,
        )
        found[mode] = packed(rows)
    return bundled(found)


@lru_cache(maxsize=4)
def _scenario(text: str) -> Scenario:
    return from_json(text)


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
def _bound(spec: FabricSpec, conditions: ConditionsSpec, chunk_bytes: int) -> LowerBound:
    fabric = _fabric(spec)
    return LowerBound(fabric, delays_s=delays_s(fabric, conditions), chunk_bytes=chunk_bytes)


@lru_cache(maxsize=4)
def _sampler(fabric: FabricSpec, conditions: ConditionsSpec, seed: int) -> Sampler:
    return sampler(_fabric(fabric), conditions, seed=seed)
