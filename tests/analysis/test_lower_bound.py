"""The lower bound: never beaten, and reached where a schedule can reach it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.alpha_beta import completion_s
from analysis.model.lower_bound import LowerBound
from scenarios.policies.decide import MODES, decide
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

CHUNK = 1_000_000
FIVE = WanSpec(preset="five-router")


def lower_bound_s(fabric: Fabric, rates_bps: np.ndarray, *, delays_s: np.ndarray, chunk_bytes: int) -> np.ndarray:
    return LowerBound(fabric, delays_s=delays_s, chunk_bytes=chunk_bytes).seconds(rates_bps)


def uniform_rates(fabric: Fabric, *, intra_bps: float, wan_bps: float) -> np.ndarray:
    return np.array([[wan_bps if link.kind == "wan" else intra_bps for link in fabric.links]])


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([(2, 2), (3, 5), (4, 4), (2, 3, 2)]),
    st.booleans(),
    st.sampled_from([1e-5, 1e-3, 1e-2]),
    st.sampled_from([1, 10_000, 64_000_000]),
    st.integers(0, 2**32),
)
def test_no_mode_beats_it(gpus: tuple[int, ...], five: bool, wan_delay_s: float, chunk: int, seed: int) -> None:
    wan = FIVE if five and len(gpus) == 2 else WanSpec()
    fabric = build_fabric(FabricSpec(gpus_per_site=gpus, wan=wan))
    spec = ConditionsSpec(wan_delay_s=wan_delay_s)
    conditions, delays = sampler(fabric, spec, seed=seed), delays_s(fabric, spec)
    bound = lower_bound_s(fabric, conditions.rates_bps(0, 100), delays_s=delays, chunk_bytes=chunk)
    assert (bound > 0).all()
    for mode in MODES.values():
        plan = decide(
            fabric, conditions, delays_s=delays, mode=mode, chunk_bytes=chunk, reembed_every=10, start=0, count=100
        )
        assert (completion_s(plan.edge_alpha_s, plan.edge_beta_s) >= bound * (1 - 1e-12)).all()


def test_direct_sending_over_every_link_at_once_does_not_beat_it() -> None:
    """A schedule unlike a ring: every chunk straight to everyone, its WAN part in equal shares over all WAN links."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(4, 4)))
    rates, delays = uniform_rates(fabric, intra_bps=200e9, wan_bps=10e9), delays_s(fabric, ConditionsSpec())
    bound = lower_bound_s(fabric, rates, delays_s=delays, chunk_bytes=CHUNK)[0]
    once_over = 8 * CHUNK * 4 / (4 * 10e9) + 10e-6  # four chunks over four links, each once
    assert bound >= once_over
    spread = 2 * 0.7e-6 + 4 * 8 * CHUNK / 200e9  # into the WAN, and from the border routers to everyone
    assert bound <= once_over + spread


def test_it_is_what_a_narrow_wan_takes() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(5, 3), border_routers=1))
    delays = delays_s(fabric, ConditionsSpec(wan_delay_s=1e-3))
    rates = uniform_rates(fabric, intra_bps=1e15, wan_bps=1e9)
    bound = lower_bound_s(fabric, rates, delays_s=delays, chunk_bytes=CHUNK)[0]
    assert bound == pytest.approx(5 * 8 * CHUNK / 1e9 + 1e-3 + 2 * 0.7e-6, rel=1e-12)


def test_it_is_what_a_narrow_gpu_takes() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(3, 3)))
    delays = delays_s(fabric, ConditionsSpec(intra_delay_s=1e-6))
    rates = uniform_rates(fabric, intra_bps=1e12, wan_bps=1e12)
    into = [link.index for link in fabric.links if link.dst == "g4"]
    rates[0, into] = 1e9
    bound = lower_bound_s(fabric, rates, delays_s=delays, chunk_bytes=CHUNK)[0]
    assert bound == pytest.approx(5 * 8 * CHUNK / (len(into) * 1e9) + 1e-6, rel=1e-12)
    rates = uniform_rates(fabric, intra_bps=1e12, wan_bps=1e12)
    out_of = [link.index for link in fabric.links if link.src == "g4"]
    rates[0, out_of] = 1e8  # its chunk has to reach the far site too
    bound = lower_bound_s(fabric, rates, delays_s=delays, chunk_bytes=CHUNK)[0]
    assert bound == pytest.approx(8 * CHUNK / (len(out_of) * 1e8) + 2e-6 + 10e-6, rel=1e-12)


def test_a_narrow_place_between_transit_routers_counts() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(4, 4), wan=FIVE))
    rates = uniform_rates(fabric, intra_bps=1e13, wan_bps=1e12)
    narrow = [link.index for link in fabric.links if link.name in ("R1>R2", "R0>R4")]
    rates[0, narrow] = 1e9
    delays = np.zeros(len(fabric.links))
    bound = lower_bound_s(fabric, rates, delays_s=delays, chunk_bytes=CHUNK)[0]
    assert bound == pytest.approx(4 * 8 * CHUNK / 2e9, rel=1e-9)


def test_delay_alone_bounds_a_chunk_of_next_to_nothing() -> None:
    fabric = build_fabric(FabricSpec(wan=FIVE))
    delays = delays_s(fabric, ConditionsSpec(wan_delay_s=1e-2))
    bound = lower_bound_s(fabric, uniform_rates(fabric, intra_bps=1e15, wan_bps=1e15), delays_s=delays, chunk_bytes=1)
    assert bound[0] == pytest.approx(4 * 1e-2 + 2 * 0.7e-6, rel=1e-9)  # R0, R4 and R3 lie between the two sites
