"""The lower bound: never beaten, and reached where a schedule can reach it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.lower_bound import LowerBound
from analysis.model.max_plus import completion_s
from hosts.collectives.kinds import ALGORITHMS, blocks, workload
from scenarios.policies.decide import decide, shared_links
from scenarios.policies.policy import MODES
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

CHUNK = 1_000_000
FIVE = WanSpec(preset="five-router")


def lower_bound_s(
    fabric: Fabric, rates_bps: np.ndarray, *, delays_s: np.ndarray, block_bytes: int, kind: str = "allgather"
) -> np.ndarray:
    return LowerBound(fabric, delays_s=delays_s, kind=kind, block_bytes=block_bytes).seconds(rates_bps)


def uniform_rates(fabric: Fabric, *, intra_bps: float, wan_bps: float) -> np.ndarray:
    return np.array([[wan_bps if link.kind == "wan" else intra_bps for link in fabric.links]])


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([(kind, name) for kind, names in ALGORITHMS.items() for name in names]),
    st.sampled_from([(2, 2), (3, 5), (4, 4), (2, 3, 2)]),
    st.booleans(),
    st.sampled_from([1e-5, 1e-3, 1e-2]),
    st.sampled_from([4, 10_000, 64_000_000]),
    st.integers(0, 2**32),
)
def test_no_algorithm_in_no_mode_beats_it(
    collective: tuple[str, str], gpus: tuple[int, ...], five: bool, wan_delay_s: float, block: int, seed: int
) -> None:
    kind, algorithm = collective
    wan = FIVE if five and len(gpus) == 2 else WanSpec()
    fabric = build_fabric(FabricSpec(gpus_per_site=gpus, wan=wan))
    spec = ConditionsSpec(wan_delay_s=wan_delay_s)
    conditions, delays = sampler(fabric, spec, seed=seed), delays_s(fabric, spec)
    bound = lower_bound_s(fabric, conditions.rates_bps(0, 20), delays_s=delays, block_bytes=block, kind=kind)
    assert (bound > 0).all()
    repeated = workload(kind, algorithm, sites=gpus, size_bytes=block * blocks(kind, sum(gpus)))
    for mode in MODES.values():
        plan = decide(
            fabric, conditions, delays_s=delays, mode=mode, workload=repeated, reembed_every=10, start=0, count=20
        )
        found_s = completion_s(repeated.schedule.transfers, plan.alpha_s.T, plan.beta_s.T)
        # Flows that share a link get the whole of it each, and together more than there is.
        if not shared_links(fabric, repeated, mode):
            assert (found_s >= bound * (1 - 1e-12)).all()


def test_with_one_link_into_every_gpu_it_is_what_the_kind_must_bring_there() -> None:
    """Constant rates and no delay: what must come into a GPU over its links from the others, by hand."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
    rates = uniform_rates(fabric, intra_bps=8e9, wan_bps=8e15)
    none = np.zeros(len(fabric.links))
    into = 2 * 1e9  # bytes a second into a GPU: from its neighbour, and from the border router
    blocks_into = {"allgather": 3, "reducescatter": 1, "allreduce": 4, "alltoall": 3, "broadcast": 1, "gather": 3}
    for kind, count in blocks_into.items():
        found = lower_bound_s(fabric, rates, delays_s=none, block_bytes=10**6, kind=kind)[0]
        # out of a GPU must go as much: an allgather's and a gather's one block, a reducescatter's three sums
        out = {"reducescatter": 3}.get(kind, 0)
        assert found == pytest.approx(max(count, out) * 10**6 / into, rel=1e-9), kind


def test_direct_sending_over_every_link_at_once_does_not_beat_it() -> None:
    """A schedule unlike a ring: every chunk straight to everyone, its WAN part in equal shares over all WAN links."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(4, 4)))
    rates, delays = uniform_rates(fabric, intra_bps=200e9, wan_bps=10e9), delays_s(fabric, ConditionsSpec())
    bound = lower_bound_s(fabric, rates, delays_s=delays, block_bytes=CHUNK)[0]
    once_over = 8 * CHUNK * 4 / (4 * 10e9) + 10e-6  # four chunks over four links, each once
    assert bound >= once_over
    spread = 2 * 0.7e-6 + 4 * 8 * CHUNK / 200e9  # into the WAN, and from the border routers to everyone
    assert bound <= once_over + spread


BITS = 8 * CHUNK
FORMS = {  # GPUs, routers or WAN, (inner, WAN) bit/s, (inner, WAN) delay, narrow links and their rate, the closed form
    "a narrow WAN": ((5, 3), 1, (1e15, 1e9), (0.7e-6, 1e-3), None, 5 * BITS / 1e9 + 1e-3 + 2 * 0.7e-6),
    "into a narrow GPU": ((3, 3), 2, (1e12, 1e12), (1e-6, 1e-5), (">g4", 1e9), 5 * BITS / (4 * 1e9) + 1e-6),
    # its chunk has to reach the far site too
    "out of a narrow GPU": ((3, 3), 2, (1e12, 1e12), (1e-6, 1e-5), ("g4>", 1e8), BITS / (4 * 1e8) + 2e-6 + 10e-6),
    # four chunks over two links between transit routers
    "a narrow place in the WAN": ((4, 4), FIVE, (1e13, 1e12), (0, 0), ("R1>R2 R0>R4", 1e9), 4 * BITS / 2e9),
    # R0, R4 and R3 lie between the two sites
    "delay alone": ((4, 4), FIVE, (1e25, 1e25), (0.7e-6, 1e-2), None, 4 * 1e-2 + 2 * 0.7e-6),
}


@pytest.mark.parametrize(("gpus", "wan", "rates", "delays", "narrow", "form"), FORMS.values(), ids=FORMS)
def test_it_is_the_closed_form(gpus, wan, rates, delays, narrow, form) -> None:
    chosen = {"wan": wan} if isinstance(wan, WanSpec) else {"border_routers": wan}
    fabric = build_fabric(FabricSpec(gpus_per_site=gpus, **chosen))
    rates_bps = uniform_rates(fabric, intra_bps=rates[0], wan_bps=rates[1])
    delays_s = np.array([delays[link.kind == "wan"] for link in fabric.links])
    for link in fabric.links if narrow else ():
        if any(name in (link.name, f">{link.dst}", f"{link.src}>") for name in narrow[0].split()):
            rates_bps[0, link.index] = narrow[1]
    bound = lower_bound_s(fabric, rates_bps, delays_s=delays_s, block_bytes=CHUNK)[0]
    assert bound == pytest.approx(form, rel=1e-9)
