"""Traffic engineering's allocation, compared with independent linear programmes and allocations by hand."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import block_diag

from controller.routing.traffic_engineering import Demand, Traffic, allocate, allocate_flows, allocate_split
from topologies.fabric.fabric import FabricSpec, build_fabric

_FEW, _ALL = 150, 1000


def _random(rng):
    """Return demands over tunnels of one to three links, and the capacities of up to eight links, some 0 (down)."""
    links = int(rng.integers(2, 9))
    capacity = rng.choice([0.0, 10.0, 20.0, 35.0, 70.0], links, p=[0.05, 0.3, 0.25, 0.2, 0.2]) * 1e9
    demands = []
    for _ in range(rng.integers(1, 7)):
        ways = [tuple(rng.permutation(links)[: rng.integers(1, 4)].tolist()) for _ in range(rng.integers(1, 4))]
        wanted = np.inf if rng.random() < 0.4 else float(rng.integers(0, 50)) * 1e9
        tunnels, priority = tuple(dict.fromkeys(ways)), int(rng.integers(0, 3))
        demands.append(Demand(src=0, dst=1, priority=priority, tunnels=tunnels, wanted_bps=wanted))
    return demands, capacity


class _Oracle:
    """The lexicographic optimum of many instances, as one block-diagonal linear programme: it maximises the least rate
    of the demands that are not settled, then raises each in turn; those that cannot exceed that rate are settled."""

    def __init__(self, instances):
        self.instances = instances
        blocks, limits = [], []
        for demands, capacity in instances:
            tunnels = [(d, way) for d, one in enumerate(demands) for way in one.tunnels]
            rows = np.zeros((2 * len(demands) + len(capacity), len(tunnels) + len(demands) + 1))
            for place, (d, way) in enumerate(tunnels):
                rows[2 * len(demands) + np.array(way), place] = 1
                rows[d, place] = -1  # rate <= sum over its tunnels
            for d in range(len(demands)):
                rows[d, len(tunnels) + d] = 1
                rows[len(demands) + d, [len(tunnels) + d, -1]] = -1, 1  # the least of the rates
            blocks.append(rows)
            limits.append(np.concatenate([np.zeros(2 * len(demands)), capacity / 1e9]))
        self._rows, self._limits = block_diag(blocks, format="csr"), limits

    def rates(self):
        settled = [np.full(len(demands), np.nan) for demands, _ in self.instances]
        for priority in range(3):
            of = [np.array([one.priority == priority for one in demands]) for demands, _ in self.instances]
            while any((here & np.isnan(found)).any() for here, found in zip(of, settled, strict=True)):
                open_ = [here & np.isnan(found) for here, found in zip(of, settled, strict=True)]
                least = [np.where(np.isnan(found), 0.0, found) for found in settled]
                level = self._best(least, [np.r_[np.zeros(len(o)), o.any()] for o in open_], open_)
                level = [found[-1] for found in level]
                floor = [np.where(o, at, low) for o, at, low in zip(open_, level, least, strict=True)]
                most = [np.full(len(o), np.nan) for o in open_]
                for d in range(max(map(len, open_))):
                    aim = [np.r_[np.eye(len(o))[d] * o if d < len(o) else np.zeros(len(o)), 0] for o in open_]
                    for found, o, best in zip(most, open_, self._best(floor, aim, None), strict=True):
                        if d < len(o) and o[d]:
                            found[d] = best[d]
                for found, o, at, up in zip(settled, open_, level, most, strict=True):
                    found[o & (up <= at + 1e-7)] = at
        return settled

    def _best(self, floor, aim, of_level):
        """Return the rates that maximise `aim`, none below its `floor`, then the least rate of those `of_level`."""
        cost, bounds, limits = [], [], []
        for index, (demands, capacity) in enumerate(self.instances):
            tunnels = [way for one in demands for way in one.tunnels]
            cost += [*np.zeros(len(tunnels)), *(-np.array(aim[index]))]
            bounds += [(0, 0 if (capacity[list(way)] == 0).any() else None) for way in tunnels]
            wants = [one.wanted_bps / 1e9 for one in demands]
            lows = np.maximum(floor[index] - 1e-8, 0)
            bounds += [(low, None if np.isinf(want) else want) for low, want in zip(lows, wants, strict=True)]
            bounds.append((0, None if of_level is not None and of_level[index].any() else 0))
            limits.append(self._limits[index].copy())
            if of_level is not None:  # the other demands do not bound the least rate
                limits[-1][len(demands) : 2 * len(demands)][~of_level[index]] = 1e6
        found = linprog(cost, self._rows, np.concatenate(limits), bounds=bounds, method="highs")
        assert found.status == 0, found.message
        answers, place = [], 0
        for demands, _ in self.instances:
            tunnels = sum(len(one.tunnels) for one in demands)
            answers.append(found.x[place + tunnels : place + tunnels + len(demands) + 1])
            place += tunnels + len(demands) + 1
        return answers


@pytest.mark.parametrize("count", [_FEW, pytest.param(_ALL, marks=pytest.mark.slow)])
def test_allocated_rates_match_lexicographic_linear_programmes_on_random_instances(count):
    rng = np.random.default_rng(1)
    instances = [_random(rng) for _ in range(count)]
    found = [allocate(*one) for one in instances]
    for (demands, capacity), rates, expected in zip(instances, found, _Oracle(instances).rates(), strict=True):
        assert np.allclose([sum(one) / 1e9 for one in rates], expected, atol=1e-5, rtol=1e-6), (demands, capacity)
        load = np.zeros(len(capacity))
        for one, of_tunnels in zip(demands, rates, strict=True):
            for way, rate in zip(one.tunnels, of_tunnels, strict=True):
                load[list(way)] += rate
        assert (load <= capacity * (1 + 1e-12)).all()


def test_with_one_tunnel_each_fixed_splits_get_the_same_rates_as_free_splits():
    rng, kept = np.random.default_rng(2), {1: 0.05, 2: 0.1}
    for _ in range(200):
        demands, capacity = _random(rng)
        alone = [replace(one, tunnels=one.tunnels[:1]) for one in demands if one.wanted_bps]
        free = [rates[0] for rates in allocate(alone, capacity, None, kept)]
        assert allocate_split(alone, [[1.0]] * len(alone), capacity, kept) == pytest.approx(free, rel=1e-6, abs=1e3)


def test_a_demand_with_a_fixed_split_is_limited_by_its_slowest_part():
    ways = Demand(src=0, dst=1, priority=0, tunnels=((0,), (1,)))
    other = Demand(src=1, dst=0, priority=0, tunnels=((0,),))
    # Link 1 of capacity 1 carries a quarter of the first demand: this gets 4, 3 of it over link 0. The other gets 7.
    assert allocate_split([ways, other], [[0.75, 0.25], [1.0]], np.array([10.0, 1.0])) == pytest.approx([4, 7])


def test_a_higher_priority_moves_to_another_tunnel_to_make_room_for_a_lower_one():
    """Gold can use either link, bronze only the first: gold keeps its full rate on the second link."""
    gold = Demand(src=0, dst=1, priority=0, tunnels=((0,), (1,)), wanted_bps=10e9)
    bronze = Demand(src=0, dst=1, priority=1, tunnels=((0,),))
    rates = allocate([bronze, gold], np.array([10e9, 10e9]))
    assert np.allclose(rates[0], 10e9) and np.allclose(rates[1], [0, 10e9], atol=100)


def test_among_splits_with_equal_rates_the_one_of_least_delay_is_chosen():
    one = Demand(src=0, dst=1, priority=0, tunnels=((0,), (1,)), wanted_bps=12e9)
    for delays, wanted in (([20e-3, 5e-3], [2e9, 10e9]), ([5e-3, 20e-3], [10e9, 2e9])):
        (rates,) = allocate([one], np.array([10e9, 10e9]), np.array(delays))
        assert rates == pytest.approx(wanted, rel=1e-6)


def _least_use(demands, capacity, rates, even):
    """Return the least highest utilisation of the first `even` links at these rates, by a programme over shares."""
    ways = [(d, way) for d, one in enumerate(demands) for way in one.tunnels if rates[d] and capacity[list(way)].all()]
    used = [(link, number) for number, (_, way) in enumerate(ways) for link in way]
    rows, limits = np.zeros((len(capacity), len(ways) + 1)), np.zeros(len(capacity))
    for link, number in used:
        rows[link, number] = rates[ways[number][0]] / max(capacity[link], 1.0)
    rows[:even, -1], limits[even:] = -1, 1 + 1e-7
    all_of = np.array([[float(d == of) for of, _ in ways] + [0.0] for d in range(len(demands)) if rates[d]])
    found = linprog(np.eye(len(ways) + 1)[-1], rows, limits, all_of, np.ones(len(all_of)), method="highs")
    assert found.status == 0, found.message
    return found.fun


def test_with_the_objective_utilisation_rates_stay_and_the_highest_utilisation_is_the_least():
    rng, lower = np.random.default_rng(4), 0
    for _ in range(150):
        demands, capacity = _random(rng)
        demands = [replace(one, wanted_bps=min(one.wanted_bps, 12e9)) for one in demands]
        even = int(rng.integers(1, len(capacity) + 1))
        plain, spread = (allocate(demands, capacity, None, {}, links) for links in (0, even))
        totals = [sum(one) for one in spread]
        assert totals == pytest.approx([sum(one) for one in plain], rel=1e-6, abs=100)
        use = []
        for rates in (plain, spread):
            load = np.zeros(len(capacity))
            for one, of_tunnels in zip(demands, rates, strict=True):
                for way, rate in zip(one.tunnels, of_tunnels, strict=True):
                    load[list(way)] += rate
            assert (load <= capacity * (1 + 1e-12)).all()
            use.append(float((load[:even] / np.maximum(capacity[:even], 1.0)).max()))
        if any(totals):
            assert use[1] == pytest.approx(_least_use(demands, capacity, np.array(totals), even), abs=1e-6)
        lower += use[1] < use[0] - 1e-3
    assert lower > 30


def test_among_splits_with_the_least_highest_utilisation_the_one_of_least_delay_is_chosen():
    """The second demand has one way, whose link is used by half: the first one may use the short way by half, too."""
    one = Demand(src=0, dst=1, priority=0, tunnels=((0,), (1,)), wanted_bps=6e9)
    other = Demand(src=1, dst=0, priority=0, tunnels=((2,),), wanted_bps=5e9)
    rates, _ = allocate([one, other], np.full(3, 10e9), np.array([20e-3, 5e-3, 0.0]), {}, 3)
    assert rates == pytest.approx([1e9, 5e9], rel=1e-6)


def test_with_fixed_splits_idle_demands_get_what_others_leave_and_a_ten_thousandth_at_least():
    busy, idle = Demand(src=0, dst=1, priority=0, tunnels=((0,),)), Demand(src=0, dst=1, priority=1, tunnels=((0,),))
    for wanted, found in ((np.inf, [9.999, 0.001]), (4.0, [4, 6])):
        demands = [replace(busy, wanted_bps=wanted), replace(idle, wanted_bps=0.0)]
        assert allocate_split(demands, [[1.0], [1.0]], np.array([10.0])) == pytest.approx(found)


def test_a_flow_whose_gpu_cannot_reach_the_demands_tunnel_takes_the_first_tunnel_that_it_can_reach():
    """Each of two GPUs reaches only one of its site's border routers, so no tunnel serves both."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), routing="te"))
    rates = np.full(len(fabric.links), 4e9)
    rates[[fabric.to_br_index[0, 0], fabric.to_br_index[1, 1]]] = 0
    traffic = Traffic(priority=(0, 0), wanted_bps=(np.inf, np.inf))
    plan = allocate_flows(fabric, np.zeros(rates.size), rates, (np.array([0, 1]), np.array([2, 3])), traffic)
    first = {router: next(one.index for one in fabric.paths if one.src_br == router) for router in (0, 1)}
    assert plan.path.tolist() == [first[1], first[0]]
    assert plan.limits_bps[0, plan.path].tolist() == [4e9, 4e9]


def test_slow_links_behind_a_much_faster_link_are_filled():
    one, other = (Demand(src=0, dst=link, priority=link, tunnels=((0, link),)) for link in (1, 2))
    assert allocate([one, other], np.array([1e15, 1e3, 3e3])) == (pytest.approx((1e3,)), pytest.approx((3e3,)))


@pytest.mark.parametrize(
    ("capacity", "wanted", "said"),
    [([-1.0], 1e9, "a capacity of -1 bit/s"), ([1e9], -5.0, "a demand of -5 bit/s"), ([1e9], np.nan, "nan")],
)
def test_invalid_capacities_and_demands_are_refused(capacity, wanted, said):
    with pytest.raises(ValueError, match=said):
        allocate([Demand(src=0, dst=1, priority=0, tunnels=((0,),), wanted_bps=wanted)], np.array(capacity))


def test_no_demands_get_an_empty_allocation():
    assert allocate([], np.array([1e9])) == ()
