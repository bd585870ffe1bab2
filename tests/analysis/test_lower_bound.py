"""The lower bound on completion times: no schedule beats it, and it is tight where a schedule can reach it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.lower_bound import LowerBound, RoundBound, RoundJob
from analysis.model.max_plus import completion_s
from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import ALGORITHMS, blocks, workload
from hosts.embedding.ring import OBJECTIVES
from scenarios.engines.prediction import Plan, decisions_of, lower_bound
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import Chooser, decide, shared_links
from scenarios.policies.policy import MODES
from tests.fakes.commands import scenario
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import GRAINS, Fabric, FabricSpec, build_fabric
from topologies.fabric.maps import read_wan
from topologies.fabric.wan import WanSpec

CHUNK = 1_000_000
FIVE = WanSpec(preset="five-router")


def lower_bound_s(
    fabric: Fabric,
    rates_bps: np.ndarray,
    *,
    delays_s: np.ndarray,
    block_bytes: int,
    kind: str = "allgather",
    at_once: bool = False,
) -> np.ndarray:
    bound = LowerBound(fabric, delays_s=delays_s, kind=kind, block_bytes=block_bytes, at_once=at_once)
    return bound.seconds(rates_bps)


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
def test_no_algorithm_beats_the_lower_bound_in_any_mode(
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
        choices = Chooser(Router(fabric, delays), mode, repeated, "cycle time")
        plan = decide(choices, conditions, reembed_every=10, start=0, count=20)
        found_s = completion_s(repeated.schedule.transfers, plan.alpha_s.T, plan.beta_s.T)
        # The max-plus model gives every flow of a shared link its whole rate, so it can beat the bound there.
        if not shared_links(fabric, repeated, mode):
            assert (found_s >= bound * (1 - 1e-12)).all()


def test_the_bound_is_the_bytes_a_kind_must_bring_into_each_gpu_over_its_links() -> None:
    """Constant rates and no delay: the blocks that must enter or leave a GPU, counted by hand, over its links' rate."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
    rates = uniform_rates(fabric, intra_bps=8e9, wan_bps=8e15)
    none = np.zeros(len(fabric.links))
    into = 2 * 1e9  # bytes a second into a GPU: from its neighbour, and from the border router
    blocks_into = {"allgather": 3, "reducescatter": 1, "allreduce": 4, "alltoall": 3, "broadcast": 1, "gather": 3}
    for kind, count in blocks_into.items():
        found = lower_bound_s(fabric, rates, delays_s=none, block_bytes=10**6, kind=kind)[0]
        # A GPU must also send: one block in an allgather or a gather, three sums in a reducescatter.
        out = {"reducescatter": 3}.get(kind, 0)
        assert found == pytest.approx(max(count, out) * 10**6 / into, rel=1e-9), kind


def test_direct_sending_over_all_wan_links_is_within_its_intra_site_time_of_the_bound() -> None:
    """Unlike in a ring, every chunk is sent directly to every GPU, in equal shares over all WAN links."""
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
    # the chunk of this GPU has to reach the far site too
    "out of a narrow GPU": ((3, 3), 2, (1e12, 1e12), (1e-6, 1e-5), ("g4>", 1e8), BITS / (4 * 1e8) + 2e-6 + 10e-6),
    # four chunks over two links between transit routers
    "a narrow place in the WAN": ((4, 4), FIVE, (1e13, 1e12), (0, 0), ("R1>R2 R0>R4", 1e9), 4 * BITS / 2e9),
    # R0, R4 and R3 lie between the two sites
    "delay alone": ((4, 4), FIVE, (1e25, 1e25), (0.7e-6, 1e-2), None, 4 * 1e-2 + 2 * 0.7e-6),
}


@pytest.mark.parametrize(("gpus", "wan", "rates", "delays", "narrow", "form"), FORMS.values(), ids=FORMS)
def test_the_bound_equals_its_closed_form_for_each_kind_of_bottleneck(gpus, wan, rates, delays, narrow, form) -> None:
    chosen = {"wan": wan} if isinstance(wan, WanSpec) else {"border_routers": wan}
    fabric = build_fabric(FabricSpec(gpus_per_site=gpus, **chosen))
    rates_bps = uniform_rates(fabric, intra_bps=rates[0], wan_bps=rates[1])
    delays_s = np.array([delays[link.kind == "wan"] for link in fabric.links])
    for link in fabric.links if narrow else ():
        if any(name in (link.name, f">{link.dst}", f"{link.src}>") for name in narrow[0].split()):
            rates_bps[0, link.index] = narrow[1]
    bound = lower_bound_s(fabric, rates_bps, delays_s=delays_s, block_bytes=CHUNK)[0]
    assert bound == pytest.approx(form, rel=1e-9)


@pytest.mark.parametrize("delays_ms", [(12, 30), (30, 12)])
def test_of_parallel_links_the_bound_takes_the_least_delay_and_both_rates(delays_ms: tuple[int, int]) -> None:
    wan = read_wan({"links": [["s0b0", "s1b0", {"delay": f"{delay} ms"}] for delay in delays_ms]})
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1, wan=wan))
    rates = uniform_rates(fabric, intra_bps=1e15, wan_bps=40e9)
    delays = delays_s(fabric, ConditionsSpec(intra_delay_s=0))
    found = lower_bound_s(fabric, rates, delays_s=delays, block_bytes=CHUNK, kind="allgather")
    assert found[0] == pytest.approx(12e-3 + 2 * BITS / 80e9, rel=1e-6)


# --- rounds of jobs ---------------------------------------------------------------------------------------------------


def round_bound_s(fabric: Fabric, rates_bps: np.ndarray, *demands: RoundJob) -> float:
    found = RoundBound(fabric, delays_s=delays_s(fabric, ConditionsSpec()), demands=demands).seconds(rates_bps)
    return float(found[0])


def test_the_bound_of_one_job_on_all_gpus_equals_that_of_its_collective() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(3, 5)))
    rates, delays = sampler(fabric, ConditionsSpec(), seed=1).rates_bps(0, 1), delays_s(fabric, ConditionsSpec())
    for kind in ALGORITHMS:
        alone = lower_bound_s(fabric, rates, delays_s=delays, block_bytes=CHUNK, kind=kind, at_once=True)[0]
        job = RoundJob(kind=kind, block_bytes=CHUNK, gpus=tuple(range(8)))
        assert round_bound_s(fabric, rates, job) == alone
        assert round_bound_s(fabric, rates, replace(job, start_s=1.0)) == pytest.approx(1 + alone, rel=1e-12)


def test_the_bound_of_several_jobs_adds_up_their_bytes_on_the_wan() -> None:
    """Four border links of 1 GB/s; an alltoall of 2+2 GPUs sends four blocks of 1 MB in each direction."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(4, 4)))
    rates = uniform_rates(fabric, intra_bps=8e15, wan_bps=8e9)
    jobs = [RoundJob(kind="alltoall", block_bytes=CHUNK, gpus=gpus) for gpus in ((0, 1, 4, 5), (2, 3, 6, 7))]
    one, both = (round_bound_s(fabric, rates, *some) for some in (jobs[:1], jobs))
    assert one == pytest.approx(1e-3, rel=0.02) and both == pytest.approx(2e-3, rel=1e-6)
    again = round_bound_s(fabric, rates, jobs[0], replace(jobs[1], count=3))
    assert again == pytest.approx(4e-3, rel=1e-6)
    assert round_bound_s(fabric, rates, jobs[0], replace(jobs[1], start_s=0.5)) == pytest.approx(0.501, rel=1e-4)
    # A job that starts while the other one sends still shares the links with it.
    assert round_bound_s(fabric, rates, jobs[0], replace(jobs[1], start_s=0.5e-3)) == pytest.approx(2e-3, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), grain=st.sampled_from(GRAINS))
def test_no_round_of_jobs_beats_the_lower_bound_in_any_mode(seed: int, grain: str) -> None:
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(rng.integers(1, 4)):
        kind = str(rng.choice([*ALGORITHMS]))
        ranks = rng.choice(8, rng.integers(2, 9), replace=False).tolist()
        size = f"{rng.integers(1, 5000)} kB"
        job = {"name": str(number), "kind": kind, "ranks": ranks, "size": size, "count": int(rng.integers(1, 4))}
        job["algorithm"] = str(rng.choice(ALGORITHMS[kind]))
        jobs.append(job | {"start": f"{rng.integers(1, 900)} us"} if rng.random() < 0.5 else job)
    values = {"job": jobs, "fabric.grain": grain, "run.seed": seed, "collective.count": 5}
    (setting,) = scenario(**values).configurations()
    conditions = conditions_of(setting)
    bound_s = lower_bound(setting, conditions)(0, conditions.drawn.rates_bps(0, 5))
    assert (bound_s > 0).all()
    for mode in MODES:
        plan = decisions_of(setting, mode, conditions, start=0, count=5)
        assert (Plan(setting, mode, plan, conditions).completion_s() >= bound_s * (1 - 1e-9)).all()


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(kind, name) for kind, names in ALGORITHMS.items() for name in names]),
    st.sampled_from([[2, 2], [3, 5], [2, 3, 2]]),
    st.sampled_from(["logical", "physical"]),
    st.sampled_from(["mesh", "five-router"]),
    st.sampled_from(["10 us", "10 ms"]),
    st.sampled_from(OBJECTIVES),
    st.integers(0, 2**32),
)
def test_no_fluid_time_over_shared_links_or_ports_beats_the_lower_bound(
    collective: tuple[str, str], gpus: list[int], grain: str, wan: str, wan_delay: str, ring: str, seed: int
) -> None:
    keys = {"fabric.gpus": gpus, "fabric.grain": grain, "conditions.wan_delay": wan_delay, "run.seed": seed}
    keys |= {"collective.kind": collective[0], "collective.algorithm": collective[1], "collective.ring": ring}
    keys |= {"fabric.wan": wan if len(gpus) == 2 else "mesh", "collective.chunk": "1 MB"}
    (setting,) = scenario(**keys).configurations()
    conditions = conditions_of(setting)
    bound_s = lower_bound(setting, conditions)(0, conditions.shared_bps(0, 10))
    for mode in MODES:
        decisions = decisions_of(setting, mode, conditions, start=0, count=10)
        found_s = Plan(setting, mode, decisions, conditions).completion_s()
        assert (found_s >= bound_s * (1 - 1e-9)).all()
