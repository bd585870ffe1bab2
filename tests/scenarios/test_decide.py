"""Decisions: each mode chooses the rings and paths that it controls, from conditions alone, whatever the batches."""

from collections import Counter
from itertools import pairwise, permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model import fluid
from controller.api.protocol import RouteRequest
from controller.forwarding.state import choose
from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload, workload
from hosts.embedding.ring import OBJECTIVES
from scenarios.engines.prediction import ring_gap
from scenarios.policies.conditions import Conditions
from scenarios.policies.decide import Chooser, Decisions, decide, most_shared, shared_links
from scenarios.policies.measured_knowledge import links_by_flow
from scenarios.policies.policy import MODES
from tests.fakes.commands import scenario
from tests.hosts.test_embedding import all_rings
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES, cable
from topologies.fabric.wan import WanSpec

CHUNK = 8_000_000
FABRICS = {
    "mesh": build_fabric(FabricSpec(gpus_per_site=(4, 4))),
    "uneven": build_fabric(FabricSpec(gpus_per_site=(2, 5), border_routers=(1, 3))),
    "five-router": build_fabric(FabricSpec(gpus_per_site=(3, 3), wan=WanSpec(preset="five-router"))),
    "three sites": build_fabric(FabricSpec(gpus_per_site=(2, 3, 2))),
}
_OVER_ONE_LINK = (("s0b0", "X"), ("s2b0", "X"), ("X", "Y"), ("Y", "s1b0"), ("Y", "s3b0"))
FABRICS["four sites, one link"] = build_fabric(
    FabricSpec(
        gpus_per_site=(2, 2, 2, 2),
        border_routers=1,
        wan=WanSpec(preset=None, routers=("X", "Y"), links=_OVER_ONE_LINK),
    )
)
PARTS = ("placement", "path", "alpha_s", "beta_s", "reembedded", "rerouted")


def ring_allgather(fabric: Fabric) -> Workload:
    return workload("allgather", "ring", sites=fabric.gpus_per_site, size_bytes=CHUNK * len(fabric.gpus))


def plan(
    fabric: Fabric, mode: str, start: int, count: int, *, every: int = 10, seed: int = 1, ring: str = "slowest edge"
) -> Decisions:
    spec = ConditionsSpec()
    return decide(
        Chooser(Router(fabric, delays_s(fabric, spec)), MODES[mode], ring_allgather(fabric), ring),
        sampler(fabric, spec, seed=seed),
        reembed_every=every,
        start=start,
        count=count,
    )


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(FABRICS)), st.sampled_from(sorted(MODES)), st.integers(1, 15), st.integers(0, 60))
def test_decisions_do_not_depend_on_how_a_run_is_split_into_parts(name: str, mode: str, every: int, cut: int) -> None:
    whole = plan(FABRICS[name], mode, 0, 61, every=every)
    parts = [plan(FABRICS[name], mode, start, end - start, every=every) for start, end in ((0, cut), (cut, 61))]
    for part in PARTS:
        joined = np.concatenate([getattr(piece, part) for piece in parts])
        assert (joined == getattr(whole, part)).all()


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("mode", MODES)
def test_alpha_and_beta_of_every_ring_edge_follow_from_its_links(name: str, mode: str) -> None:
    fabric = FABRICS[name]
    decisions = plan(fabric, mode, 0, 30)
    rates = sampler(fabric, ConditionsSpec(), seed=1).rates_bps(0, 30)
    delays = delays_s(fabric, ConditionsSpec())
    by_ends = {(link.src, link.dst): link.index for link in fabric.links}
    for k in range(30):
        ring = decisions.placement[k].tolist()
        assert sorted(ring) == list(range(len(fabric.gpus)))
        assert ring[0] == 0
        assert (decisions.path[k] >= 0).sum() == len(fabric.gpus_per_site)
        for r, (a, b) in enumerate(pairwise([*ring, 0])):
            index = decisions.path[k, r]
            if index < 0:
                links = [by_ends[f"g{a}", f"g{b}"]]
            else:
                path = fabric.paths[index]
                out, back = fabric.border_routers[path.src_br], fabric.border_routers[path.dst_br]
                links = [by_ends[f"g{a}", out], *path.links, by_ends[back, f"g{b}"]]
            assert decisions.alpha_s[k, r] == pytest.approx(delays[links].sum(), rel=1e-12)
            assert decisions.beta_s[k, r] == 8 * CHUNK / rates[k, links].min()


@pytest.mark.parametrize("name", FABRICS)
def test_each_mode_changes_exactly_the_rings_and_paths_that_it_controls(name: str) -> None:
    fabric = FABRICS[name]
    every = np.arange(40) % 10 == 0
    base, ccl, wan, joint = (plan(fabric, mode, 0, 40) for mode in ("base", "ccl", "wan", "joint"))
    fixed_paths = {paths[0].index for paths in fabric.paths_between.values() if paths}
    for fixed in (base, wan):
        assert (fixed.placement == np.arange(len(fabric.gpus))).all()
        assert not fixed.reembedded.any()
    for embedded in (ccl, joint):
        assert (embedded.reembedded == every).all()
        rings = embedded.placement.reshape(4, 10, -1)
        assert (rings == rings[:, :1]).all()
        assert (rings[:, 0] != np.arange(len(fabric.gpus))).any()
    for still in (base, ccl):
        assert set(np.unique(still.path)) <= {-1, *fixed_paths}
        assert not still.rerouted.any()
    for routed in (wan, joint):
        assert routed.rerouted.all()
        if any(len(paths) > 1 for paths in fabric.paths_between.values()):
            assert not set(np.unique(routed.path)) <= {-1, *fixed_paths}


@pytest.mark.parametrize("name", FABRICS)
def test_the_slowest_edge_is_no_slower_than_in_modes_that_choose_less(name: str) -> None:
    """By the slowest edge of each collective, with rings chosen anew for every collective."""
    fabric = FABRICS[name]
    slowest = {}
    for mode in MODES:
        decisions = plan(fabric, mode, 0, 50, every=1)
        slowest[mode] = (decisions.alpha_s + decisions.beta_s).max(axis=1)
    assert (slowest["wan"] <= slowest["base"]).all()
    assert (slowest["ccl"] <= slowest["base"]).all()
    assert (slowest["joint"] <= np.minimum(slowest["wan"], slowest["ccl"])).all()


@pytest.mark.parametrize("ring", OBJECTIVES)
def test_rings_of_sites_too_large_for_an_exact_choice_are_within_2_percent_of_a_bound(ring: str) -> None:
    large = build_fabric(FabricSpec(gpus_per_site=(32, 32)))
    spec = ConditionsSpec(wan_delay_s=10e-3)
    rates_bps = sampler(large, spec, seed=1).rates_bps(0, 5)
    gaps = Chooser(Router(large, delays_s(large, spec)), MODES["joint"], ring_allgather(large), ring).ring_gaps(
        rates_bps
    )
    assert (gaps >= 0).all() and (gaps <= 0.02).all()
    setting = scenario(fabric__gpus=64, conditions__wan_delay="10 ms", run__seed=1, collective__ring=ring)
    assert ring_gap(setting, "joint", 5) == gaps.max()
    small = FABRICS["mesh"]
    rates_bps = sampler(small, spec, seed=1).rates_bps(0, 5)
    choices = Chooser(Router(small, delays_s(small, spec)), MODES["joint"], ring_allgather(small), ring)
    assert not choices.ring_gaps(rates_bps).any()


def test_a_ring_with_channels_in_both_directions_is_the_best_by_its_slower_direction() -> None:
    fabric, spec = build_fabric(FabricSpec(gpus_per_site=(3, 3))), ConditionsSpec()
    rates_bps = sampler(fabric, spec, seed=1).rates_bps(0, 20)

    def chooser(channels: int) -> Chooser:
        load = workload("allgather", "ring", sites=(3, 3), size_bytes=6 * CHUNK * channels, channels=channels)
        return Chooser(Router(fabric, delays_s(fabric, spec)), MODES["ccl"], load, "slowest edge")

    one_way_s, _ = chooser(1).edges_s(rates_bps)
    edge_s = np.maximum(one_way_s, one_way_s.swapaxes(1, 2))
    every = all_rings((3, 3))
    least_s = edge_s[:, every, np.roll(every, -1, axis=1)].max(axis=2).min(axis=1)
    chosen = chooser(2).placements(rates_bps)
    found_s = edge_s[np.arange(20)[:, None], chosen, np.roll(chosen, -1, axis=1)].max(axis=1)
    assert found_s.tolist() == least_s.tolist()


def shared_when_run(fabric: Fabric, mode: str, count: int) -> set[str]:
    """Return the WAN links that two crossings of the same collective use, over `count` collectives."""
    found: set[str] = set()
    for paths in plan(fabric, mode, 0, count, every=1).path.tolist():
        used = Counter(link for path in paths if path >= 0 for link in fabric.paths[path].links)
        found |= {fabric.links[link].name for link, times in used.items() if times > 1}
    return found


def shared(name: str, mode: str, *, detours: bool) -> set[str]:
    fabric = FABRICS[name]
    broken = next(link for link in fabric.links if link.kind == "wan")
    dead = [frozenset({cable(broken.src, broken.dst)})] if detours else []
    return set(shared_links(fabric, ring_allgather(fabric), MODES[mode], detours=tuple(dead)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FABRICS)
def test_predicted_shared_links_include_all_that_crossings_share_in_a_run(name: str, mode: str) -> None:
    known = shared(name, mode, detours=False)
    seen = shared_when_run(FABRICS[name], mode, 300)
    assert seen <= known
    if mode == "base":  # mode base has the same ring and paths in every collective
        assert seen == known


@pytest.mark.parametrize(
    ("name", "mode", "detours", "links"),
    [
        ("mesh", "joint", True, set()),
        ("three sites", "joint", True, set()),
        ("four sites, one link", "base", False, {"X>Y", "Y>X"}),
        ("five-router", "base", False, set()),
        ("five-router", "wan", False, {"R2>R4", "R4>R2"}),  # R0-R1-R2-R4-R3 one way and R3-R2-R4-R0 the other
        ("five-router", "base", True, {"R2>R4", "R4>R2"}),
    ],
)
def test_the_links_that_crossings_can_share_are_those_found_by_hand(
    name: str, mode: str, detours: bool, links: set[str]
) -> None:
    assert shared(name, mode, detours=detours) == links


def test_a_mode_that_can_change_the_order_of_sites_shares_links_that_the_fixed_order_does_not() -> None:
    """In the order 0 1 2 3 one crossing uses each direction of X-Y; in the order 0 2 1 3 two use each."""
    links = (("s0b0", "X"), ("s1b0", "X"), ("X", "Y"), ("Y", "s2b0"), ("Y", "s3b0"))
    wan = WanSpec(preset=None, routers=("X", "Y"), links=links)
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2, 2, 2), border_routers=1, wan=wan))
    found = {mode: {*shared_links(fabric, ring_allgather(fabric), MODES[mode])} for mode in MODES}
    assert found["base"] == found["wan"] == set()
    assert {"X>Y", "Y>X"} <= found["ccl"] & found["joint"]


@given(st.sampled_from(sorted(FABRICS)), st.randoms(use_true_random=False), st.floats(0, 0.5))
def test_most_shared_equals_an_exhaustive_search_over_all_paths(name: str, draw: Random, share: float) -> None:
    fabric = FABRICS[name]
    alike = {"to_br": lambda link: link.dst, "from_br": lambda link: link.src, "wan": lambda link: link.name}
    groups = {link: (link.kind, alike.get(link.kind, lambda _: "")(link)) for link in fabric.links}
    drawn = {group for group in sorted(set(groups.values())) if draw.random() < share}  # all GPUs of a site alike
    links = {link.name for link, group in groups.items() if group in drawn}
    most = 0
    for src, dst in permutations(fabric.gpus, 2):
        paths = [path.index for path in fabric.paths_between.get((src.site, dst.site), ())]
        for path in paths if src.site != dst.site else [-1]:
            way = fabric.edge_links(src.rank, dst.rank, path)
            most = max(most, sum(fabric.links[link].name in links for link in way))
    assert most_shared(fabric, links) == most


_TWO_HUBS = tuple((end, hub) for hub in ("X", "Y") for end in ("s0b0", "s1b0", "s2b0", "s3b0"))
FOUR_SITES = FabricSpec(
    gpus_per_site=(2, 2, 2, 2), border_routers=1, wan=WanSpec(preset=None, routers=("X", "Y"), links=_TWO_HUBS)
)
SHARING = {name: FABRICS[name] for name in ("mesh", "five-router", "four sites, one link")}
SHARING["four sites, two hubs"] = build_fabric(FOUR_SITES)


def routed(fabric: Fabric, load: Workload, count: int) -> Decisions:
    spec = ConditionsSpec()
    choices = Chooser(Router(fabric, delays_s(fabric, spec)), MODES["wan"], load, "cycle time")
    return decide(choices, sampler(fabric, spec, seed=1), reembed_every=10, start=0, count=count)


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("algorithm", [("alltoall", "direct"), ("allreduce", "hierarchical")])
def test_the_controller_chooses_the_same_paths_as_the_plan(name: str, algorithm: tuple[str, str]) -> None:
    """The crossings share links; in some cases there are too many to compare all combinations of their paths."""
    fabric = SHARING[name]
    load = workload(*algorithm, sites=fabric.gpus_per_site, size_bytes=CHUNK * len(fabric.gpus))
    decisions, spec = routed(fabric, load, 20), ConditionsSpec()
    rates = sampler(fabric, spec, seed=1).rates_bps(0, 20)
    for k in range(20):
        ends = [tuple(decisions.placement[k, [a, b]].tolist()) for a, b in zip(*load.schedule.ends, strict=True)]
        crossings = tuple(dict.fromkeys(pair for pair, path in zip(ends, decisions.path[k], strict=True) if path >= 0))
        request = RouteRequest(
            crossings=crossings,
            rates_bps=tuple(rates[k].tolist()),
            delays_s=tuple(delays_s(fabric, spec).tolist()),
            chunk_bytes=load.largest_message_bytes,
            best=True,
        )
        chosen = dict(zip(crossings, choose(fabric, request, NO_CABLES), strict=True))
        assert [chosen.get(pair, -1) for pair in ends] == decisions.path[k].tolist()


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize(
    "algorithm", [("allgather", "ring"), ("alltoall", "direct"), ("broadcast", "direct"), ("allreduce", "hierarchical")]
)
def test_paths_chosen_jointly_are_on_average_no_slower_than_paths_chosen_one_by_one(
    name: str, algorithm: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean completion times by the model of shared links, against the best path of each crossing on its own."""
    fabric = SHARING[name]
    load = workload(*algorithm, sites=fabric.gpus_per_site, size_bytes=CHUNK * len(fabric.gpus))
    together = routed(fabric, load, 60)
    monkeypatch.setattr(Router, "choose_jointly", Router.best)
    alone = routed(fabric, load, 60)
    drawn = sampler(fabric, ConditionsSpec(), seed=1)
    rates = drawn.rates_bps(0, 60)
    conditions = Conditions(fabric, delays_s(fabric, ConditionsSpec()), drawn, None)

    def mean_s(decisions: Decisions) -> float:
        links = links_by_flow(load, decisions, conditions, start=0)
        found = fluid.completion_s(load.schedule.transfers, links, rates, decisions.alpha_s, slot_bytes=load.slot_bytes)
        return float(found.mean())

    assert mean_s(together) <= mean_s(alone)
    if algorithm[0] in ("alltoall", "broadcast") and name != "four sites, one link":  # no choice of paths
        assert mean_s(together) < 0.9 * mean_s(alone)
