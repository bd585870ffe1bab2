"""Conditions: the available bandwidth of every logical link for every collective, from a seed.

What a sampler draws for link l in collective k is a function of (seed, k, l) alone, so every mode, engine, batch and
worker sees the same network. Rates are whole bit/s: what the shaping is told is exactly what the model reckons with.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from topologies.errors import ConditionsError, Mistake
from topologies.fabric import Fabric
from topologies.samplers import Gaussian, Markov, Uniform
from topologies.trace import Trace, read_trace

SAMPLERS = ("uniform", "gaussian", "markov", "trace")


@dataclass(frozen=True, kw_only=True)
class ConditionsSpec:
    """Conditions as declared: which sampler draws, the range of every rate, and every link's propagation delay.

    `mean` and `deviation` (gaussian) are shares of the highest rate of the range, to which draws are clipped;
    `mean_stay` (markov) is in collectives; `trace` is a CSV file, of which `trace_step_s` seconds pass from one
    collective to the next.
    """

    sampler: str = "uniform"
    intra_rate_bps: tuple[int, int] = (20_000_000_000, 200_000_000_000)
    wan_rate_bps: tuple[int, int] = (10_000_000_000, 100_000_000_000)
    intra_delay_s: float = 0.7e-6
    wan_delay_s: float = 10e-6
    mean: float = 0.5
    deviation: float = 0.5
    mean_stay: float = 10.0
    trace: Path | None = None
    trace_step_s: float = 1.0


class Sampler(Protocol):
    """Where conditions come from."""

    @property
    def limit(self) -> int | None:
        """How many collectives there are conditions for; None where there is no end."""

    def rates_bps(self, start: int, count: int) -> npt.NDArray[np.float64]:
        """Every link's available bandwidth for collectives start .. start+count-1: [count, links], whole bit/s."""


def sampler(fabric: Fabric, spec: ConditionsSpec, *, seed: int) -> Sampler:
    """The sampler `spec` declares over the fabric's links.

    Raises ConditionsError for what `check` refuses and for a trace that cannot be read or has holes.
    """
    check(spec)
    low, high = _rate_bounds_bps(fabric, spec)
    if spec.sampler == "gaussian":
        return Gaussian(low, high, mean=spec.mean, deviation=spec.deviation, seed=seed)
    if spec.sampler == "markov":
        return Markov(low, high, mean_stay=spec.mean_stay, seed=seed)
    if spec.sampler == "trace" and spec.trace is not None:
        names = [link.name for link in fabric.links]
        return Trace(read_trace(spec.trace, names), step_s=spec.trace_step_s)
    return Uniform(low, high, seed=seed)


def delays_s(fabric: Fabric, spec: ConditionsSpec) -> npt.NDArray[np.float64]:
    """Every logical link's propagation delay, [links], seconds: the WAN's on WAN links, the sites' on all others."""
    return np.array([spec.wan_delay_s if link.kind == "wan" else spec.intra_delay_s for link in fabric.links])


def check(spec: ConditionsSpec) -> None:
    """Raise ConditionsError with every mistake of the declaration; the trace file itself is not opened."""
    mistakes = list(_mistakes(spec))
    if mistakes:
        raise ConditionsError(mistakes)


def _mistakes(spec: ConditionsSpec) -> Iterator[Mistake]:
    if spec.sampler not in SAMPLERS:
        text = f"no sampler is called {spec.sampler!r}; allowed: {', '.join(SAMPLERS)}"
        yield Mistake("conditions.sampler", text)
    for key, (low, high) in (("intra_rate", spec.intra_rate_bps), ("wan_rate", spec.wan_rate_bps)):
        if not 0 < low <= high < math.inf:
            text = f"a range from {low} to {high} bit/s; allowed: finite rates above zero, the lower one first"
            yield Mistake(f"conditions.{key}", text)
    for key, delay_s in (("intra_delay", spec.intra_delay_s), ("wan_delay", spec.wan_delay_s)):
        if not 0 <= delay_s < math.inf:
            yield Mistake(f"conditions.{key}", f"a delay of {delay_s} s; allowed: a finite delay, zero or more")
    for key, value, least in (
        ("mean", spec.mean, 0.0),
        ("deviation", spec.deviation, 0.0),
        ("mean_stay", spec.mean_stay, 1.0),
    ):
        if not least <= value < math.inf:
            yield Mistake(f"conditions.{key}", f"{value} is out of range; allowed: a finite number from {least:g} up")
    if not 1e-9 <= spec.trace_step_s <= 1e9:
        text = f"a step of {spec.trace_step_s} s; allowed: 1 ns to 1e9 s"
        yield Mistake("conditions.trace_step", text)
    if (spec.trace is None) == (spec.sampler == "trace"):
        wanted = "names no CSV file" if spec.trace is None else f"is given, but the sampler is {spec.sampler!r}"
        yield Mistake("conditions.trace", f"{wanted}; allowed: a file with the sampler 'trace', none with any other")


def _rate_bounds_bps(fabric: Fabric, spec: ConditionsSpec) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The lowest and the highest rate of every logical link, [links] each."""
    ranges = [spec.wan_rate_bps if link.kind == "wan" else spec.intra_rate_bps for link in fabric.links]
    low, high = np.array(ranges, dtype=np.float64).T
    return np.ascontiguousarray(low), np.ascontiguousarray(high)
