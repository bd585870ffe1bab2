"""Whether this machine can carry an experiment on the wall clock: measured before it begins, held against the rates.

What a ring can ask for at one moment is the sum of its edges' rates: what all GPUs send while all are sending. Half of
what the hosts can send without any shaping is allowed: the other half of the processor keeps timers in time.
"""

import json
import sys
from collections.abc import Sequence

import numpy as np

from scenarios import vm
from scenarios.engines.point import ground, memory_bytes
from scenarios.engines.prediction import planned
from scenarios.spec.scenario import Scenario, to_json
from scenarios.testbed import launch
from scenarios.testbed.platform import CAPACITY
from topologies.shaping.rate_scale import RateScale

ALLOWED_SHARE = 0.5
_ROUND = (1, 2, 5)


def check_capacity(settings: Sequence[Scenario]) -> None:
    """Measure what this machine carries, where these settings are on the wall clock, and hold it against them all.

    Raises vm.CannotRunError where it is too little, vm.VMError where it cannot be measured.
    """
    real = [setting for setting in settings if setting.run.is_real]
    if not real:
        return
    carried_bps = measured_bps(max(real, key=lambda setting: setting.gpus))  # whose network has the most to do
    for setting in real:
        for mode in setting.run.modes:
            edges_s = planned(setting, mode).edge_beta_s
            check(demand_bps(edges_s, chunk_bytes=setting.collective.chunk_bytes), carried_bps, setting.run.scale)


def check(demand_bps: float, carried_bps: float, scale: RateScale) -> None:
    """Raise vm.CannotRunError where a ring asks, at this scale, for more than half of what the machine carries.

    `demand_bps` is what it asks for unscaled.
    """
    wanted_bps, allowed_bps = demand_bps / scale.divisor, carried_bps * ALLOWED_SHARE
    if wanted_bps > allowed_bps:
        raise vm.CannotRunError(
            f"at the rate scale {scale} a ring of this scenario sends up to {_gbps(wanted_bps)} at a time, and this "
            f"machine carries {_gbps(carried_bps)}, of which half is allowed: "
            f"take --rate-scale 1/{divisor(demand_bps, allowed_bps)}"
        )


def divisor(demand_bps: float, allowed_bps: float) -> int:
    """The first divisor among 1, 2, 5, 10, 20 ... that brings a demand down to what is allowed."""
    power = 1
    while True:
        for digit in _ROUND:
            if demand_bps / (digit * power) <= allowed_bps:
                return digit * power
        power *= 10


def demand_bps(edge_beta_s: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", *, chunk_bytes: int) -> float:
    """The most that a ring asks for at a time: the sum of its edges' rates, over these collectives, [K, n]."""
    return float((8 * chunk_bytes / edge_beta_s).sum(axis=1).max())


def measured_bps(setting: Scenario) -> float:
    """What the hosts of a setting's fabric can send in all where it would run, measured in a network of its own.

    Raises vm.VMError where there can be none.
    """
    where = "in the VM" if ground(setting).own_openvswitch else "on its own kernel"
    print(f"measuring what this machine carries {where}", file=sys.stderr, flush=True)
    said, words = _Text(), _Text()
    status = launch.testbed(
        [to_json(setting), CAPACITY, "0"],
        memory_bytes=memory_bytes(setting),
        stdout=said,
        stderr=words,
        ground=ground(setting),
    )
    if status != 0:
        lines = words.text().split("\n")
        raise vm.VMError(f"what this machine carries could not be measured: {lines[-1] or 'it said nothing'}")
    carried_bps = float(json.loads(said.text().splitlines()[-1])["carried_bps"])  # before it, what it was doing
    print(f"it carries {_gbps(carried_bps)} between {setting.gpus} hosts", file=sys.stderr, flush=True)
    return carried_bps


def _gbps(rate_bps: float) -> str:
    return f"{rate_bps / 1e9:.3g} Gbit/s"


class _Text:
    """Takes in what is written."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data

    def flush(self) -> None:
        """There is nothing to flush."""

    def text(self) -> str:
        return self._data.decode(errors="replace").strip()
