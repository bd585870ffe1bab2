"""The number of messages into which blocks are split where the user gives none: a collective library chooses one, too.

More pieces fill a pipeline sooner, but every piece waits for the delay of each link that it crosses.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from controller.routing.wan_path_choice import NoPathError, Router
from hosts.collectives.kinds import SELF_SIZED_KINDS, Workload
from hosts.collectives.schedule import ScheduleError
from scenarios.policies.decide import Chooser
from scenarios.policies.lone_collective import seconds_alone
from scenarios.policies.policy import MODES
from scenarios.spec.collective import CollectiveSpec, workload_of
from scenarios.spec.keys import MAX_CONFIGURATIONS
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.errors import SpecError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import links_in_grain
from topologies.shaping.rate_scale import FULL_SCALE, RateScale, ScaleError

CANDIDATES = (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 0.01
"""The fewest pieces are chosen that are slower than the best number by at most this share of its time."""
MOST_TRANSFERS = 20_000
"""Most transfers of a schedule that is tried, which bounds the time of a choice to about a second."""

_LEAST_SCALED_BYTES = 64_000  # of a message at a rate scale: on the wall clock each message costs real time


def chosen_pieces(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> int:
    """Return the best of CANDIDATES for a collective, by the timing model: 1 if the collective is not possible.

    The model has the ranks in order, the fixed paths, and each link at its mean rate, so the number is the same for
    every mode and seed. The sizes are those of the spec.
    """
    return _choice(spec, fabric_spec, conditions, scale).pieces


def is_most_tried(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> bool:
    """Return whether the chosen number is the largest that was tried, so that a larger one may be faster."""
    return _choice(spec, fabric_spec, conditions, scale).is_most


class Choice(NamedTuple):
    """A number of pieces, and whether it is the largest that was tried, although each had been faster than half."""

    pieces: int
    is_most: bool = False


def expect(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> None:
    """Count a choice among those that this process will make, for whoever waits for them."""
    asked = _alike(spec), fabric_spec, conditions, scale
    if not _is_plain(spec) and asked not in _remembered:
        _expected.add(asked)


def _is_plain(spec: CollectiveSpec) -> bool:
    """Return whether there is nothing to choose."""
    return spec.kind in SELF_SIZED_KINDS or spec.schedule is not None


def _choice(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> Choice:
    if _is_plain(spec):
        return Choice(1)
    asked = _alike(spec), fabric_spec, conditions, scale
    return _remembered[asked] if asked in _remembered else _chosen(*asked)


def remember(
    spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale, pieces: object
) -> None:
    """Have `chosen_pieces` return the number that a run has stored, if it is one of CANDIDATES: a run that is resumed
    keeps its choice, which takes long in large fabrics."""
    if isinstance(pieces, int) and pieces in CANDIDATES:
        _remembered[_alike(spec), fabric_spec, conditions, scale] = Choice(pieces, pieces == CANDIDATES[-1])


_Asked = tuple[CollectiveSpec, FabricSpec, ConditionsSpec, RateScale]
_remembered: dict[_Asked, Choice] = {}
_expected: set[_Asked] = set()
_tried: list[int] = []  # numbers, for the choice that has begun last


def _alike(spec: CollectiveSpec) -> CollectiveSpec:
    """Leave out what does not matter, so that a choice is made once for all configurations that share it. With ranks in
    order no ring is chosen."""
    ring = CollectiveSpec().ring
    return replace(spec, ring=ring, count=1, reembed_every=1, emulated=1, measured=None, budget_s=None)


def choices_begun() -> tuple[int, int, int]:
    """Return how many choices this process has begun, which take most of the time of reading a large scenario, how many
    it will make as far as is known, and how many numbers it has begun to try for the latest one."""
    begun = _chosen.cache_info().misses
    return begun, max(begun, len(_expected)), len(_tried)


@lru_cache(maxsize=2 * MAX_CONFIGURATIONS)  # a scenario is checked more than once
def _chosen(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> Choice:
    def whole(pieces: int) -> Workload:
        return workload_of(replace(spec, pieces=pieces), fabric_spec.gpus_per_site)

    def seconds(pieces: int) -> float:
        _tried.append(pieces)
        return seconds_at_mean_rates(whole(pieces), spec.ring, fabric_spec, conditions)

    _tried.clear()
    try:
        largest = round(whole(1).largest_message_bytes)
        return choose(
            seconds,
            transfers=len(whole(1).schedule.transfers),
            message_bytes=scale.chunk_bytes(largest) if scale != FULL_SCALE else largest,
            least_bytes=1 if scale == FULL_SCALE else _LEAST_SCALED_BYTES,
        )
    except (SpecError, ScheduleError, NoPathError, ScaleError):  # which the checks of a scenario report
        return Choice(1)


def choose(seconds: Callable[[int], float], *, transfers: int, message_bytes: int, least_bytes: int = 1) -> Choice:
    """Return the fewest of CANDIDATES whose time, `seconds(pieces)`, is within ENOUGH of the least one.

    The whole collective has so many transfers, the largest of `message_bytes`; a piece has at least `least_bytes`.
    """
    times_s, may_gain = {1: seconds(1)}, True
    for pieces in CANDIDATES[1:]:
        if pieces * least_bytes > message_bytes:
            may_gain = False
            break
        if pieces * transfers > MOST_TRANSFERS:
            break
        times_s[pieces] = seconds(pieces)
        if times_s[pieces // 2] - times_s[pieces] < ENOUGH / 20 * times_s[pieces]:
            may_gain = False
            break  # with a + b / pieces, all larger numbers together gain no more than this one did
    limit_s = min(times_s.values()) * (1 + ENOUGH)
    found = next(pieces for pieces, time_s in times_s.items() if time_s <= limit_s)
    return Choice(found, may_gain and found == max(times_s))


def seconds_at_mean_rates(workload: Workload, ring: str, fabric_spec: FabricSpec, conditions: ConditionsSpec) -> float:
    """Predict the time of a workload in s, with ranks in order over the fixed paths of links at their mean rates.

    Raises NoPathError and SpecError if it is not possible.
    """
    fabric = build_fabric(replace(fabric_spec, routing="single"))
    shared, mode = links_in_grain(fabric), MODES["base"]
    mean_bps = np.array(sampler(fabric, conditions, seed=1).mean_bps)[None]
    delay_s = delays_s(fabric, conditions)
    chooser = Chooser(Router(fabric, shared.delays_s(delay_s)), mode, workload, ring)
    (path,) = chooser.paths(chooser.in_order[None], shared.slowest_bps(mean_bps), chosen=False)
    return seconds_alone(chooser, chooser.in_order, path, shared, mean_bps[0])
