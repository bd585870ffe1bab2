"""The best schedules, against all schedules of three GPUs, and between the lower bound and the ring."""

from itertools import permutations, product

import numpy as np
import pytest

from analysis.model.lower_bound import LowerBound
from analysis.model.optimal_schedule import PROVEN, Best, Block, GpuPath, assign_times, best_schedule, blocks_of
from hosts.embedding.ring import best_rings
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric

CHUNK = 8_000_000


def test_transfers_overlap_on_a_link_only_if_their_rates_fit_together() -> None:
    """60 bits each over a link of 10 bit/s: two of 6 bit/s are sent one after the other, of 4 and 6 bit/s at once."""
    rates_bps = np.array([10.0, 6.0, 6.0, 4.0])
    blocks = [Block(source=gpu, sinks=(3,)) for gpu in range(3)]
    fast, also_fast, slow = (
        GpuPath(src=gpu, dst=3, links=(0, 1 + gpu), rate_bps=rate, delay_s=1.0) for gpu, rate in enumerate((6, 6, 4))
    )

    def ends_s(*ways: GpuPath) -> list[float]:
        sent = assign_times([(way.src, index) for index, way in enumerate(ways)], ways, blocks, rates_bps, 60)
        return [one.arrives_s for one in sent]

    assert ends_s(fast, also_fast) == [11.0, 21.0]
    assert ends_s(fast, slow) == [11.0, 16.0]
    assert ends_s(fast, slow, also_fast) == [11.0, 16.0, 21.0]  # the last one has to wait only for the first
    with pytest.raises(ValueError, match="GPU 0 sends block 1, which it does not have"):
        assign_times([(1, 0)], [fast], blocks, rates_bps, 60)


def test_a_kind_that_adds_up_data_is_refused() -> None:
    with pytest.raises(ValueError, match="the best schedule of allreduce; allowed: allgather"):
        blocks_of("allreduce", 4)


def three_gpus(random: np.random.Generator) -> tuple[list[GpuPath], np.ndarray]:
    """Return ways between three GPUs, which share some links, with up to two ways from GPU 0 to 1; and link rates."""
    rates_bps = random.uniform(1e9, 10e9, 8)
    ways = []
    for a, b in permutations(range(3), 2):
        for _ in range(int(random.integers(1, 3)) if (a, b) == (0, 1) else 1):
            links = tuple(sorted(random.choice(8, size=random.integers(1, 4), replace=False).tolist()))
            delay_s = float(random.choice([1e-6, 1e-2]))
            ways.append(
                GpuPath(src=a, dst=b, links=links, rate_bps=float(rates_bps[list(links)].min()), delay_s=delay_s)
            )
    return ways, rates_bps


def trees(block: int, ways: list[GpuPath]) -> list[list[tuple[int, int]]]:
    """Return every choice of ways by which a block of an allgather gets from its GPU to both others."""
    into = [[index for index, way in enumerate(ways) if way.dst == gpu] for gpu in range(3) if gpu != block]
    chosen = [pair for pair in product(*into) if any(ways[index].src == block for index in pair)]
    return [[(block, index) for index in pair] for pair in chosen]


def brute_force_s(ways: list[GpuPath], rates_bps: np.ndarray, known_s: float) -> float:
    """Return the least time of all trees in all orders. Each transfer is as early as possible: that delays no other."""
    blocks, bits, best_s = blocks_of("allgather", 3), 8 * CHUNK, known_s
    for choice in product(*(trees(block, ways) for block in range(3))):
        transfers = [one for tree in choice for one in tree]
        busy_s = np.zeros(len(rates_bps))
        for _, way in transfers:
            busy_s[list(ways[way].links)] += bits / rates_bps[list(ways[way].links)]
        if busy_s.max() >= best_s:  # a link is busy for at least as long as its bits take at its rate
            continue
        pending: list[list[tuple[int, int]]] = [[]]
        while pending:
            order = pending.pop()
            sent = assign_times(order, ways, blocks, rates_bps, bits)
            end_s = max((one.arrives_s for one in sent), default=0.0)
            if end_s >= best_s:
                continue
            if len(order) == len(transfers):
                best_s = end_s
            has = {(block, block) for block in range(3)} | {(block, ways[way].dst) for block, way in order}
            pending += [[*order, one] for one in transfers if one not in order and (one[0], ways[one[1]].src) in has]
    return best_s


@pytest.mark.optimum
@pytest.mark.parametrize("seed", range(200))
def test_the_best_schedule_equals_brute_force_over_all_schedules_of_three_gpus(seed: int) -> None:
    ways, rates_bps = three_gpus(np.random.default_rng(seed))
    direct = [
        next(index for index, way in enumerate(ways) if (way.src, way.dst) == ends)
        for ends in permutations(range(3), 2)
    ]
    known = [(ways[index].src, index) for index in direct]
    blocks = blocks_of("allgather", 3)
    found = best_schedule(blocks, ways, rates_bps, block_bytes=CHUNK, seconds=60, known=known)
    known_s = max(one.arrives_s for one in assign_times(known, ways, blocks, rates_bps, 8 * CHUNK))
    least_s = brute_force_s(ways, rates_bps, known_s * (1 + 1e-12))
    assert found.proven
    assert found.completion_s == pytest.approx(least_s, rel=PROVEN)
    assert found.bound_s <= least_s * (1 + 1e-9)


def allgather(fabric: Fabric, rates_bps: np.ndarray, seconds: float, delays: np.ndarray) -> tuple[Best, float, float]:
    """Return the best AllGather for link rates [links], the best ring's time and the lower bound, both in seconds."""
    n, sites = len(fabric.gpus), fabric.gpu_sites
    ways = []
    for a, b in permutations(range(n), 2):
        paths = [path.index for path in fabric.paths_between[sites[a], sites[b]]] if sites[a] != sites[b] else [-1]
        for path in paths:
            links = fabric.edge_links(a, b, path)
            on = list(links)
            ways.append(GpuPath(src=a, dst=b, links=links, rate_bps=rates_bps[on].min(), delay_s=delays[on].sum()))
    cost_s, delay_s, best = np.full((n, n), np.inf), np.zeros((n, n)), {}
    for index, way in enumerate(ways):
        seconds_s = way.delay_s + 8 * CHUNK / way.rate_bps
        if seconds_s < cost_s[way.src, way.dst]:
            cost_s[way.src, way.dst], delay_s[way.src, way.dst] = seconds_s, way.delay_s
            best[way.src, way.dst] = index
    given = {"gpus_per_site": fabric.gpus_per_site, "objective": "cycle time"}
    ring = best_rings(cost_s[None], delay_s[None], **given)[0].tolist()
    known = [(ring[(at - step) % n], best[ring[at], ring[(at + 1) % n]]) for step in range(n - 1) for at in range(n)]
    blocks = blocks_of("allgather", n)
    ring_s = max(one.arrives_s for one in assign_times(known, ways, blocks, rates_bps, 8 * CHUNK))
    bound_s = LowerBound(fabric, delays_s=delays, kind="allgather", block_bytes=CHUNK, at_once=True).seconds(
        rates_bps[None]
    )[0]
    given = {"block_bytes": CHUNK, "seconds": seconds, "known": known, "least_s": float(bound_s)}
    found = best_schedule(blocks, ways, rates_bps, **given)
    received = [(one.block, ways[one.path].dst) for one in found.sent]
    assert sorted(received) == [(block, gpu) for block in range(n) for gpu in range(n) if gpu != block]
    return found, ring_s, float(bound_s)


@pytest.mark.optimum
@pytest.mark.parametrize("wan_delay_s", [10e-6, 10e-3])
@pytest.mark.parametrize(("gpus", "seconds"), [((2, 2), 60), ((3, 3), 200), ((4, 4), 60)])
def test_the_best_schedule_lies_between_bound_and_ring_and_is_proven_for_up_to_six_gpus(
    gpus: tuple[int, int], seconds: float, wan_delay_s: float
) -> None:
    fabric, spec = build_fabric(FabricSpec(gpus_per_site=gpus)), ConditionsSpec(wan_delay_s=wan_delay_s)
    for rates_bps in sampler(fabric, spec, seed=1).rates_bps(0, 2):
        found, ring_s, bound_s = allgather(fabric, rates_bps, seconds, delays_s(fabric, spec))
        assert bound_s <= found.bound_s <= found.completion_s <= ring_s
        assert found.proven or sum(gpus) > 6
        assert found.completion_s < (0.9 if sum(gpus) <= 6 else 1) * ring_s
