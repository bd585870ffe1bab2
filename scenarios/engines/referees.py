"""Referees: references with which modes are compared, computed by the timing model. They are the fastest ring and the
best schedule of each collective, and the least total time of any policy."""

import math
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model.lower_bound import LowerBound
from analysis.model.offline_optimal_policy import offline_optimum
from analysis.model.optimal_schedule import Best, GpuPath, best_schedule, blocks_of
from controller.routing.wan_path_choice import Router
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.policies import cost
from scenarios.policies.conditions import Conditions, chooser_of, conditions_of
from scenarios.policies.decide import Decisions
from scenarios.policies.exhaustive_ring import FastestRings, fastest_rings
from scenarios.policies.policy import MODES
from scenarios.spec.scenario import MAX_OPTIMUM, Scenario
from topologies.errors import SpecError

Floats = npt.NDArray[np.float64]

_SEARCHING = threading.Lock()  # so that the search for one mode fills the cache for the other modes


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Total seconds for a configuration's first collectives: of each mode, and of the offline optimum. `candidates` is
    the number of placements with paths among which the optimum chooses."""

    modes_s: dict[str, float]
    optimum_s: float
    candidates: int

    @property
    def best(self) -> str:
        """The mode with the least total time."""
        return min(self.modes_s, key=self.modes_s.__getitem__)

    @property
    def gap(self) -> float:
        """How far the best mode exceeds the optimum, as a share of the optimum."""
        return max(0.0, self.modes_s[self.best] / self.optimum_s - 1)


def totals(config: Scenario, count: int) -> Totals:
    """Return the total times of a configuration's modes and of an optimum that knows all conditions in advance.

    The configuration must have no faults and no jobs. For each collective the optimum chooses among all candidates: the
    placements with their paths that a mode of the configuration, or `joint` choosing both before every collective, uses
    in any collective. If changes are counted (`control.counted`), the optimum pays for them no more than a mode would,
    so no mode of the configuration has a smaller total.
    """
    return _optimum(config, count)[0]


def best_s(config: Scenario, conditions: Conditions, *, start: int, count: int) -> dict[str, Any]:
    """Compute the referees in `run.referees` for collectives from `start` on: [K] s each, by their names in `Rows`.
    Referees that are not available for this kind of collective are left out. The best policy is optimal over all
    collectives of the configuration."""
    columns: dict[str, Any] = {}
    if "ring" in config.run.referees:
        rings = rings_of(config, conditions, start=start, count=count)
        if rings is not None:
            columns |= {"best_ring_s": rings.completion_s, "best_ring_bound_s": rings.bound_s}
    if config.searches_schedules:
        with _SEARCHING:
            best = [_searched(config, number) for number in range(start, start + count)]
        columns["best_schedule_s"] = np.array([schedule.completion_s for schedule in best])
        columns["best_schedule_bound_s"] = np.array([schedule.bound_s for schedule in best])
    if "policy" in config.run.referees:
        columns["best_policy_s"] = _optimum(config, config.collective.count)[1][start : start + count]
    return columns


def rings_of(config: Scenario, conditions: Conditions, *, start: int, count: int) -> FastestRings | None:
    """Return the fastest rings of collectives from `start` on; None if they are unknown (`Scenario.has_best_ring`)."""
    if not config.has_best_ring:
        return None
    rates_bps = conditions.rates_bps(start, count)
    cost_s, alpha_s = chooser_of(config, MODES["joint"], conditions).edges_s(rates_bps)
    return fastest_rings(alpha_s, cost_s - alpha_s, gpus_per_site=config.fabric.gpus_per_site)


def best_schedule_of(
    config: Scenario, conditions: Conditions, number: int, *, seconds: float = math.inf, search: float = math.inf
) -> Best:
    """Search for the best schedule of one collective, as `best_schedule` does with `seconds` and `search`. The search
    starts from the schedule that sends every block directly to each destination."""
    fabric, shared = conditions.fabric, conditions.shared
    (rates_bps,), delays_s = conditions.shared_bps(number, 1), conditions.shared_delays_s
    gpu_paths: list[GpuPath] = []
    direct: dict[tuple[int, int], int] = {}  # the index of the first path between two ranks
    for a, b in permutations(fabric.gpus, 2):
        paths = [-1] if a.site == b.site else [path.index for path in fabric.paths_between[a.site, b.site]]
        for path in paths:
            passed = shared.of(np.array([a.rank]), np.array([b.rank]), np.array([path]))[0]
            links = passed[passed >= 0]
            rate_bps, delay_s = float(rates_bps[links].min()), float(delays_s[links].sum())
            direct.setdefault((a.rank, b.rank), len(gpu_paths))
            gpu_paths.append(
                GpuPath(src=a.rank, dst=b.rank, links=tuple(links.tolist()), rate_bps=rate_bps, delay_s=delay_s)
            )
    kind, block_bytes = config.collective.kind, config.collective.chunk_bytes
    blocks = blocks_of(kind, config.gpus)
    bound = LowerBound(fabric, delays_s=delays_s, kind=kind, block_bytes=block_bytes, at_once=True)
    return best_schedule(
        blocks,
        gpu_paths,
        rates_bps,
        block_bytes=block_bytes,
        seconds=seconds,
        search=search,
        known=[(index, direct[block.source, gpu]) for index, block in enumerate(blocks) for gpu in block.sinks],
        least_s=float(bound.seconds(rates_bps[None])[0]),
    )


@lru_cache(maxsize=MAX_OPTIMUM)
def _searched(config: Scenario, number: int) -> Best:
    """Return the best schedule of a collective found with effort `run.search`; cached for all modes."""
    return best_schedule_of(config, conditions_of(config), number, search=config.run.search)


@lru_cache(maxsize=4)
def _optimum(config: Scenario, count: int) -> tuple[Totals, Floats]:
    """Return `totals` and the time of each collective in the optimum, [K] s, including changes if they are counted.
    User-defined policies that fail are left out."""
    conditions = conditions_of(config)
    decisions = {}
    for mode in config.run.modes:
        with suppress(SpecError):
            decisions[mode] = decisions_of(config, mode, conditions, start=0, count=count)
    modes_s = {}
    for mode, chosen_by_mode in decisions.items():
        plan = Plan(config, mode, chosen_by_mode, conditions)
        modes_s[mode] = float(plan.completion_s().sum())
        if config.control.counted:
            modes_s[mode] += float(np.nansum(plan.reconfiguring_s()))
    every_time = replace(config, collective=replace(config.collective, reembed_every=1))
    candidates = _distinct([*decisions.values(), decisions_of(every_time, "joint", conditions, start=0, count=count)])
    times_s = np.stack([_times_s(config, conditions, candidate, count) for candidate in candidates], axis=1)
    first_s, switch_s = _costs(config, conditions, candidates)
    optimum = offline_optimum(times_s, switch_s, first_s=first_s)
    chosen = optimum.chosen
    changes_s = np.concatenate([first_s[chosen[:1]], switch_s[chosen[:-1], chosen[1:]]])
    sums = Totals(modes_s=modes_s, optimum_s=optimum.total_s, candidates=len(candidates))
    return sums, times_s[np.arange(count), chosen] + changes_s


def _distinct(decisions: list[Decisions]) -> list[Decisions]:
    """Return each distinct combination of placement and paths once, as the decisions of one collective."""
    rows = (batch.row(row) for batch in decisions for row in range(len(batch.path)))
    return list({(row.placement.tobytes(), row.path.tobytes(), row.spreads): row for row in rows}.values())


def _times_s(config: Scenario, conditions: Conditions, candidate: Decisions, count: int) -> Floats:
    """Return the predicted times of the first collectives with a candidate's placement and paths, [K] s."""
    placement, path = np.tile(candidate.placement, (count, 1)), np.tile(candidate.path, (count, 1))
    never = np.zeros(count, dtype=bool)
    chooser, rates_bps = chooser_of(config, MODES["joint"], conditions), conditions.rates_bps(0, count)
    decisions = chooser.decisions(placement, path, rates_bps, new=(never, never))
    decisions = replace(decisions, spreads=candidate.spreads)
    # Take a mode whose flows may share links, if there is one: without sharing, it gives the same times.
    mode = next((mode for mode in (*config.run.modes, "joint") if config.shared_links(mode)), "joint")
    return Plan(config, mode, decisions, conditions).completion_s()


def _costs(config: Scenario, conditions: Conditions, candidates: list[Decisions]) -> tuple[Floats, Floats]:
    """Return the cost of beginning with each candidate, [C] s, and of changing between two, [C, C] s (from, to)."""
    number = len(candidates)
    if not config.control.counted:
        return np.zeros(number), np.zeros((number, number))
    router = Router(conditions.fabric, conditions.delays_s)
    placement = np.concatenate([candidate.placement for candidate in candidates])
    first_s = cost.connecting_s(config.workload, placement, cost.default_delays_s(router)[None])
    connecting_s = np.empty((number, number))  # over the routes of the candidate before, which differ in delay
    for before, candidate in enumerate(candidates):
        delay_s = cost.delays_between_s(router, config.workload, candidate.placement, candidate.path, routed=True)
        connecting_s[before] = cost.connecting_s(config.workload, placement, delay_s)
        if candidate.spreads:  # it may be in force without routes
            connecting_s[before] = np.minimum(connecting_s[before], first_s)
    embeds = (placement[:, None] != placement).any(axis=-1)
    connects = embeds | (config.transport.buffer_bytes is not None)
    return first_s, connects * connecting_s  # without the controller's round trips to switches
