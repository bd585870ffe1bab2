"""Conditions: the rate (available bandwidth) of every link in every collective, and its delay.

In this package a link is a logical link, or in the fabric's physical grain a directed port. The rate of link l in
collective k is a function of (seed, k, l) alone, so every mode, engine, batch and worker sees the same network. Rates
are whole bit/s, so that the shaping can set exactly the rates that the model predicts with.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from topologies.conditions.background_load import Loaded, LoadSpec, loaded
from topologies.conditions.link_overrides import LinkConditions, resolved
from topologies.conditions.synthetic import Autoregressive, Gaussian, Markov, Uniform
from topologies.conditions.timed import Timed
from topologies.conditions.trace import Trace, read_trace
from topologies.errors import ConditionsError, Mistake
from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import links_in_grain, shares_of_rate
from topologies.fabric.wan import link_names

SAMPLERS = ("uniform", "gaussian", "markov", "ar1", "trace")
MAX_COEFFICIENT = 0.999999
MIN_EVERY_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class ConditionsSpec:
    """Conditions as declared: the sampler, the range of every rate, and every link's propagation delay.

    `mean` and `deviation` (gaussian) are fractions of the range's highest rate; draws are clipped to the range.
    `mean_stay` (markov) is a number of collectives. `coefficient` (ar1) is the autoregressive coefficient from one
    collective to the next. `trace` is a CSV file, `trace_step_s` its time in seconds from one collective to the next,
    and `trace_repeat` whether it begins again at its end; links within sites that the trace omits are drawn as by the
    sampler uniform. `links` holds ranges of rates and delays for selected links.

    With `every_s`, conditions change by time (`timed.Timed`): they are drawn for every `every_s` seconds instead of
    every collective. Collectives then begin every `interval_s` (default: `every_s`), or with a trace every
    `trace_step_s`. A `load` reduces the rates of WAN links. `moves` names a pack with the delays of WAN links while a
    program runs, row by row of `every_s`.
    """

    sampler: str = "uniform"
    intra_rate_bps: tuple[int, int] = (20_000_000_000, 200_000_000_000)
    wan_rate_bps: tuple[int, int] = (10_000_000_000, 100_000_000_000)
    intra_delay_s: float = 0.7e-6
    wan_delay_s: float = 10e-6
    mean: float = 0.5
    deviation: float = 0.5
    mean_stay: float = 10.0
    coefficient: float = 0.9
    trace: Path | None = None
    trace_step_s: float = 1.0
    trace_repeat: bool = False
    links: tuple[LinkConditions, ...] = ()
    every_s: float | None = None
    interval_s: float | None = None
    load: LoadSpec | None = None
    moves: str | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether rates or the load that reduces them are recorded: no seed changes them, and they have no range."""
        return self.sampler == "trace" or self.load is not None

    @property
    def rate_ratio(self) -> float:
        """The largest ratio of a link's highest rate to its lowest; infinite for recorded rates."""
        if self.is_recorded:
            return math.inf
        ranges = [self.intra_rate_bps, self.wan_rate_bps, *(one.rate_bps for one in self.links if one.rate_bps)]
        return max(high / max(low, 1) for low, high in ranges)

    @property
    def begins_every_s(self) -> float:
        """The time in s from the beginning of a collective to that of the next, of conditions that change by time."""
        assert self.every_s is not None
        return self.trace_step_s if self.sampler == "trace" else self.interval_s or self.every_s

    def memory(self, completion_s: npt.NDArray[np.float64]) -> float:
        """Return the memory of a link's rate in collectives: its autocorrelation at lag j is about (1 - 1/memory)^j.

        `completion_s` are the collectives' completion times. The memory is 1 for independent rates; that of a trace is
        unknown and taken as 1.
        """
        rows = self.mean_stay if self.sampler == "markov" else 1.0
        if self.sampler == "ar1":
            rows = 1 / (1 - self.coefficient)
        if self.every_s is None:
            return rows
        # While a collective runs, the rows with which later collectives begin also come into force.
        return max(1.0, (rows * self.every_s + float(completion_s.mean())) / self.begins_every_s)


class Sampler(Protocol):
    """A source of conditions for collectives 0, 1, 2 ..."""

    @property
    def limit(self) -> int | None:
        """The number of collectives that have conditions; None if endless."""

    @property
    def mean_bps(self) -> npt.NDArray[np.float64]:
        """Every link's long-run mean rate, [links] bit/s: the expected rate, or the time average of a trace."""

    def rates_bps(self, start: int, count: int) -> npt.NDArray[np.float64]:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s."""


def sampler(fabric: Fabric, spec: ConditionsSpec, *, seed: int) -> Sampler:
    """Make the declared sampler over the logical links or ports of the fabric's grain.

    Raises ConditionsError if `check` or `check_links` does, and for a trace that cannot be read or lacks a link.
    """
    check(spec)
    check_links(fabric, spec)
    drawn = _base_sampler(fabric, spec, seed)
    if spec.load is not None:
        names = [link.name for link in links_in_grain(fabric).all]
        drawn = loaded(drawn, spec.load, fabric.spec.wan, fabric.spec.sites, links=names, every_s=spec.every_s)
    if spec.every_s is None:
        return drawn
    every_ns, interval_ns = round(spec.every_s * 1e9), round(spec.begins_every_s * 1e9)
    return Timed(source=drawn, every_ns=every_ns, interval_ns=interval_ns)


def _base_sampler(fabric: Fabric, spec: ConditionsSpec, seed: int) -> Sampler:
    links = links_in_grain(fabric).all
    low, high = ranges_bps(fabric, spec)
    if spec.sampler == "gaussian":
        return Gaussian(low, high, mean=spec.mean, deviation=spec.deviation, seed=seed)
    if spec.sampler == "markov":
        return Markov(low, high, mean_stay=spec.mean_stay, seed=seed)
    if spec.sampler == "ar1":
        return Autoregressive(low, high, coefficient=spec.coefficient, seed=seed)
    uniform = Uniform(low, high, seed=seed)
    if spec.trace is None:
        return uniform
    names = [link.name for link in links]
    within_sites = {link.name for link in links if link.kind != "wan"}
    return read_trace(
        spec.trace,
        names,
        within_sites=within_sites,
        step_s=spec.every_s or spec.trace_step_s,
        repeats=spec.trace_repeat,
        unlisted=uniform,
        may_be_down=_failing(fabric, spec),
        left_out={name for both in link_names(fabric.spec.wan.links) for name in both} - {*names},
    )


def _failing(fabric: Fabric, spec: ConditionsSpec) -> frozenset[str]:
    """Return the links of which a trace may say that they are down, from one collective to another: those that are
    cables."""
    if spec.every_s is not None:
        return frozenset()
    is_physical = fabric.spec.grain == "physical"
    return frozenset(link.name for link in links_in_grain(fabric).all if is_physical or link.kind == "wan")


def trace_of(drawn: Sampler) -> Trace | None:
    """Return the trace that a sampler replays; None if it draws its rates."""
    while isinstance(drawn, Timed | Loaded):
        drawn = drawn.source
    return drawn if isinstance(drawn, Trace) else None


def load_of(drawn: Sampler) -> Loaded | None:
    """Return the load that reduces a sampler's rates; None without one."""
    source = drawn.source if isinstance(drawn, Timed) else drawn
    return source if isinstance(source, Loaded) else None


def ranges_bps(fabric: Fabric, spec: ConditionsSpec) -> npt.NDArray[np.float64]:
    """Return the lowest and the highest rate of every link, [2, links] bit/s; raises ConditionsError as `resolved`.

    The rate of a WAN link with a declared capacity is constant: that capacity.
    """
    links, capacity = links_in_grain(fabric).all, {name: (bps, bps) for name, bps in fabric.wan.capacity_bps.items()}
    by_kind = {"wan": spec.wan_rate_bps}
    ranges = [capacity.get(link.name, by_kind.get(link.kind, spec.intra_rate_bps)) for link in links]
    low_high = np.ascontiguousarray(np.array(ranges, dtype=np.float64).T)
    if fabric.spec.rails is not None or fabric.spec.oversubscription:
        low_high = np.maximum(1.0, np.rint(low_high * shares_of_rate(fabric)))
    for entry, indices in resolved(fabric, spec.links):
        if entry.rate_bps is not None:
            low_high[:, indices] = np.array(entry.rate_bps, dtype=np.float64)[:, None]
    return low_high


def delays_s(fabric: Fabric, spec: ConditionsSpec) -> npt.NDArray[np.float64]:
    """Return the propagation delay of every link, [links] s; raises ConditionsError as `resolved`.

    WAN links have the WAN's delay or, with a declared length, the delay of that length. Logical links within sites all
    have the sites' delay. In the physical grain the ports from GPUs to leaves and from border routers to spines have
    the sites' delay and the other ports within sites none, so that a flow has the same delay in both grains. A delay
    in `spec.links` replaces any of these.
    """
    by_kind = dict.fromkeys(("intra", "to_br", "from_br", "gpu_leaf", "br_spine"), spec.intra_delay_s)
    by_kind["wan"] = spec.wan_delay_s
    of_length = fabric.wan.delay_s
    delays = np.array([of_length.get(link.name, by_kind.get(link.kind, 0.0)) for link in links_in_grain(fabric).all])
    for entry, indices in resolved(fabric, spec.links):
        if entry.delay_s is not None:
            delays[indices] = entry.delay_s
    return delays


def check(spec: ConditionsSpec) -> None:
    """Raise ConditionsError with every mistake of the declaration; the trace file is not opened."""
    mistakes = list(_mistakes(spec))
    if mistakes:
        raise ConditionsError(mistakes)


def check_links(fabric: Fabric, spec: ConditionsSpec) -> None:
    """Raise ConditionsError for entries of `spec.links` that match no link, or set rates that the trace already has."""
    if spec.sampler != "trace":
        resolved(fabric, spec.links)
        return
    links = links_in_grain(fabric).all
    mistakes = [
        Mistake(f"conditions.links.{entry.links}.rate", "WAN links have the rates of the trace; allowed: a delay")
        for entry, indices in resolved(fabric, spec.links)
        if entry.rate_bps is not None and any(links[index].kind == "wan" for index in indices)
    ]
    if mistakes:
        raise ConditionsError(mistakes)


def _mistakes(spec: ConditionsSpec) -> Iterator[Mistake]:
    if spec.sampler not in SAMPLERS:
        text = f"unknown sampler {spec.sampler!r}; allowed: {', '.join(SAMPLERS)}"
        yield Mistake("conditions.sampler", text)
    for key in ("intra_rate", "wan_rate"):
        low, high = getattr(spec, f"{key}_bps")
        if not 0 < low <= high < math.inf:
            text = f"a range from {low} to {high} bit/s; allowed: finite rates above zero, the lower one first"
            yield Mistake(f"conditions.{key}", text)
    for key in ("intra_delay", "wan_delay"):
        delay_s = getattr(spec, f"{key}_s")
        if not 0 <= delay_s < math.inf:
            yield Mistake(f"conditions.{key}", f"a delay of {delay_s} s; allowed: a finite delay, zero or more")
    for key, least in (("mean", 0.0), ("deviation", 0.0), ("mean_stay", 1.0)):
        value = getattr(spec, key)
        if not least <= value < math.inf:
            yield Mistake(f"conditions.{key}", f"{value} is out of range; allowed: a finite number from {least:g} up")
    if not 0 <= spec.coefficient <= MAX_COEFFICIENT:
        text = f"{spec.coefficient} is out of range; allowed: 0 to {MAX_COEFFICIENT}"
        yield Mistake("conditions.coefficient", text)
    if not 1e-9 <= spec.trace_step_s <= 1e9:
        yield Mistake("conditions.trace_step", f"a step of {spec.trace_step_s} s; allowed: 1 ns to 1e9 s")
    yield from _time_mistakes(spec)
    if (spec.trace is None) == (spec.sampler == "trace"):
        wanted = "names no CSV file" if spec.trace is None else f"is given, but the sampler is {spec.sampler!r}"
        yield Mistake("conditions.trace", f"{wanted}; allowed: a file with the sampler 'trace', none with any other")


def _time_mistakes(spec: ConditionsSpec) -> Iterator[Mistake]:
    for key, seconds in (("every", spec.every_s), ("interval", spec.interval_s)):
        if seconds is not None and not MIN_EVERY_S <= seconds <= 1e3:
            yield Mistake(f"conditions.{key}", f"{seconds} s is out of range; allowed: 1 us to 1,000 s")
