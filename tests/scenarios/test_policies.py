"""Policies and knowledge: when rings and paths are chosen, under which belief, independently of batches."""

from collections.abc import Collection
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload, workload
from hosts.embedding.ring import OBJECTIVES
from scenarios.engines.prediction import PointPredictor, decisions_of
from scenarios.policies import knowledge, policy
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import Chooser, Decisions, decide
from scenarios.policies.knowledge import Knowledge
from scenarios.policies.play import Given, Player, Timeline
from scenarios.policies.policy import MODES, Mode, When, when
from scenarios.spec import ScenarioError
from scenarios.spec.load import resolved, scenario_of
from topologies.conditions.sampler import ConditionsSpec, Sampler, delays_s, sampler
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

CHUNK = 8_000_000
FABRICS = {
    "mesh": build_fabric(FabricSpec(gpus_per_site=(4, 4))),
    "five-router": build_fabric(FabricSpec(gpus_per_site=(2, 3), wan=WanSpec(preset="five-router"))),
    "pairs": build_fabric(FabricSpec(gpus_per_site=(2, 2))),
}
SPECS = dict.fromkeys(FABRICS, ConditionsSpec(sampler="markov", mean_stay=5.0))
SPECS["pairs"] = replace(SPECS["pairs"], intra_rate_bps=SPECS["pairs"].wan_rate_bps)  # sharing a site's links costs
PARTS = ("placement", "path", "alpha_s", "beta_s", "reembedded", "rerouted")
WHENS = ("never", "every", "every 1", "every 3", "every 7", "drift 0", "drift 0.4", "drift 0.5", "gain 0", "gain 0.3")
KNOWLEDGE = ("oracle", "stale 0", "stale 1", "stale 5", "mean", "ewma 0.01", "ewma 0.3", "ewma 1", "ar 1", "ar 3")

Floats = npt.NDArray[np.float64]


RING = ("allgather", "ring")


def load_of(name: str, collective: tuple[str, str] = RING) -> Workload:
    fabric = FABRICS[name]
    return workload(*collective, sites=fabric.gpus_per_site, size_bytes=CHUNK * len(fabric.gpus))


def mode_of(reroute: str, reembed: str, known: str = "oracle", horizon: int | None = None) -> Mode:
    return Mode(
        name="mine", reroute=when(reroute), reembed=when(reembed), knowledge=knowledge.parse(known), horizon=horizon
    )


def plan(name: str, mode: Mode, start: int, count: int, *, drawn: Sampler | None = None, every: int = 4) -> Decisions:
    fabric, spec = FABRICS[name], SPECS[name]
    conditions = drawn or sampler(fabric, spec, seed=3)
    return decide(
        Chooser(Router(fabric, delays_s(fabric, spec)), mode, load_of(name), "slowest edge"),
        conditions,
        reembed_every=every,
        start=start,
        count=count,
        believed=mode.knowledge.of(conditions),
    )


def planned_ahead(name: str, mode: Mode, collective: tuple[str, str], count: int, ahead: int) -> Decisions:
    """Return the decisions if the rates of `ahead` collectives are drawn, and so decided upon, at a time."""
    fabric, spec = FABRICS[name], SPECS[name]
    conditions = sampler(fabric, spec, seed=3)
    chooser = Chooser(Router(fabric, delays_s(fabric, spec)), mode, load_of(name, collective), "slowest edge")
    believed = mode.knowledge.of(conditions)
    timeline = Timeline(Player(mode, chooser, Given(believed, ahead=ahead), reembed_every=4))
    asked = {"believed": believed, "timeline": timeline, "reembed_every": 4}
    parts = [decide(chooser, conditions, start=0, count=1, **asked)]
    return Decisions.joined([*parts, decide(chooser, conditions, start=1, count=count - 1, **asked)])


def same(a: Decisions, b: Decisions) -> bool:
    return all((getattr(a, part) == getattr(b, part)).all() for part in PARTS)


def in_turn(
    name: str,
    mode: Mode,
    believed: Sampler,
    count: int,
    *,
    every: int,
    struck: Collection[int] = (),
    collective: tuple[str, str] = RING,
) -> tuple[list[list[int]], list[list[int]], list[bool]]:
    """Return placements, paths and whether anything was chosen, decided one collective at a time as the documentation
    describes it; cables are cut or repaired before each of the `struck` collectives."""
    fabric, spec = FABRICS[name], SPECS[name]
    chooser = Chooser(Router(fabric, delays_s(fabric, spec)), mode, load_of(name, collective), "slowest edge")
    placement, basis = chooser.in_order[None], dict[str, Floats]()
    path: npt.NDArray[np.int16] | None = None
    horizon = mode.horizon or every
    found: tuple[list[list[int]], list[list[int]], list[bool]] = ([], [], [])

    def due(one: When, what: str, rates: Floats, before_s: float, after_s: float, number: int) -> bool:
        if one.kind == "every":
            return number % (one.number or every) == 0
        if one.kind == "drift":
            then = basis.get(what)
            apart = [] if then is None else [abs(a - b) / max(a, b, 1.0) for a, b in zip(rates, then, strict=True)]
            return then is None or float(np.mean(apart)) >= one.number
        gain_s = horizon * max(0.0, before_s - after_s)
        return one.kind == "gain" and gain_s >= one.number * horizon * before_s

    for number in range(count):
        rates = believed.rates_bps(number, 1)
        fixed = chooser.paths(placement, rates, chosen=False)
        over = chooser.paths(placement, rates, chosen=True)
        over_s = float(chooser.seconds(placement, over, rates)[0])
        moved = number in struck and mode.reroutes
        kept = over if moved else fixed if path is None else path
        kept_s = float(chooser.seconds(placement, kept, rates)[0])
        routes = moved or due(mode.reroute, "path", rates[0], kept_s, over_s, number)
        anew = chooser.placements(rates)
        anew_path = chooser.paths(anew, rates, chosen=mode.reroutes)
        anew_s = float(chooser.seconds(anew, anew_path, rates)[0])
        embeds = due(mode.reembed, "ring", rates[0], over_s if routes else kept_s, anew_s, number)
        if embeds:
            placement, basis["ring"] = anew, rates[0]
            path = anew_path if mode.reroutes else None
        elif routes:
            path = over
        if mode.reroutes and (routes or embeds):
            basis["path"] = rates[0]
        found[0].append(placement[0].tolist())
        found[1].append((chooser.paths(placement, rates, chosen=False) if path is None else path)[0].tolist())
        found[2].append(bool(routes or embeds))
    return found


@pytest.mark.parametrize(("reroute", "reembed"), [*product(WHENS, WHENS)])
def test_batched_decisions_equal_decisions_taken_one_collective_at_a_time(reroute: str, reembed: str) -> None:
    # Alternate between the two kinds of knowledge over all pairs of moments for paths and rings.
    for known in ("oracle", "stale 2")[(WHENS.index(reroute) + WHENS.index(reembed)) % 2 :][:1]:
        mode = mode_of(reroute, reembed, known)
        decisions = plan("mesh", mode, 0, 24)
        believed = mode.knowledge.of(sampler(FABRICS["mesh"], SPECS["mesh"], seed=3))
        placement, path, chosen = in_turn("mesh", mode, believed, 24, every=4)
        for found in (decisions, planned_ahead("mesh", mode, RING, 24, ahead=9)):
            assert found.placement.tolist() == placement
            assert found.path.tolist() == path
            assert (found.reembedded | found.rerouted).tolist() == chosen


@pytest.mark.parametrize("collective", [("alltoall", "direct"), ("allreduce", "double-tree"), ("scatter", "direct")])
@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize(("reroute", "reembed"), [*product(("never", "drift 0.4", "gain 0", "gain 0.1"), repeat=2)])
def test_decisions_about_many_collectives_at_once_equal_those_about_one_also_where_paths_share_links(
    reroute: str, reembed: str, name: str, collective: tuple[str, str]
) -> None:
    mode = mode_of(reroute, reembed, "oracle", horizon=3)
    believed = sampler(FABRICS[name], SPECS[name], seed=3)
    placement, path, chosen = in_turn(name, mode, believed, 16, every=4, collective=collective)
    found = planned_ahead(name, mode, collective, 16, ahead=6)
    assert (found.placement.tolist(), found.path.tolist()) == (placement, path)
    assert (found.reembedded | found.rerouted).tolist() == chosen


STRUCK = """
[conditions]
sampler = "markov"
mean_stay = 5.0
[collective]
count = 24
reembed_every = 4
ring = "slowest edge"
[[policy]]
name = "mine"
reroute = "{0}"
reembed = "{1}"
knowledge = "{2}"
[[fault]]
at = "collective 3"
what = "link s0b0-s1b0 down"
for = "6 collectives"
[[fault]]
at = "1 ms into collective 4"
what = "switch s0b1 down"
for = "3 collectives"
[[fault]]
at = "collective 6"
what = "agent 2 slow 10x"
[[fault]]
at = "collective 20"
what = "link s0l0-s0p0 down"
"""


@pytest.mark.parametrize(
    ("reroute", "reembed"), [*product(("never", "every 3", "drift 0.4", "gain 0", "gain 0.3"), repeat=2)]
)
def test_kept_paths_are_chosen_again_when_cables_are_cut_or_repaired(reroute: str, reembed: str) -> None:
    # A policy that never chooses anything may not have stale knowledge, which would have no effect.
    known = "oracle" if reroute == reembed == "never" else "stale 1"
    (setting,) = scenario_of(STRUCK.format(reroute, reembed, known)).configurations()
    conditions, mode = conditions_of(setting), setting.mode("mine")
    placement, path, _ = in_turn(
        "mesh", mode, conditions.believed(mode.knowledge), 24, every=4, struck=(3, 5, 7, 9, 20)
    )
    whole = decisions_of(setting, "mine", conditions, start=0, count=24)
    assert (whole.placement.tolist(), whole.path.tolist()) == (placement, path)
    expected = PointPredictor(setting, "mine")  # collective by collective, as the testbed asks
    for number in range(24):
        faults = {0: 3 <= number < 9, 1: 5 <= number < 7, 2: number >= 6, 3: number >= 20}
        found = expected.of(number, [fault for fault, is_there in faults.items() if is_there])
        assert (found.placement.tolist(), found.path.tolist()) == (placement[number], path[number])


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(FABRICS)),
    st.sampled_from(WHENS),
    st.sampled_from(WHENS),
    st.sampled_from(KNOWLEDGE),
    st.integers(0, 70),
)
def test_decisions_do_not_depend_on_batch_boundaries(
    name: str, reroute: str, reembed: str, known: str, cut: int
) -> None:
    mode = mode_of(reroute, reembed, known)
    whole = plan(name, mode, 0, 70)
    parts = [plan(name, mode, start, end - start) for start, end in ((0, cut), (cut, 70)) if end > start]
    for part in PARTS:
        assert (np.concatenate([getattr(piece, part) for piece in parts]) == getattr(whole, part)).all()


def test_spaces_before_the_number_of_a_rule_are_ignored() -> None:
    mode = scenario_of('[[policy]]\nname = "x"\nreroute = "every  3"\nreembed = " drift  0.1"').mode("x")
    assert (mode.reroute, mode.reembed) == (When("every", 3), When("drift", 0.1))


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize(
    ("mode", "other"),
    [
        (mode_of("gain 0", "gain 0"), mode_of("every 1", "every 1")),
        (mode_of("drift 0", "drift 0"), mode_of("every 1", "every 1")),
        (mode_of("gain inf", "gain inf"), MODES["base"]),
        (mode_of("drift inf", "every 10"), mode_of("never", "every 10")),
        (mode_of("every 1", "never"), MODES["wan"]),
        (mode_of("never", "every"), MODES["ccl"]),
        (mode_of("every 1", "every"), MODES["joint"]),
        (mode_of("every 1", "every 1", "stale 0"), mode_of("every 1", "every 1")),
        (mode_of("every 2", "gain 0.2", "stale 0"), mode_of("every 2", "gain 0.2")),
        (mode_of("every 1", "every 3", "ewma 1"), mode_of("every 1", "every 3", "stale 1")),
    ],
)
def test_equivalent_policies_give_bit_identical_decisions(name: str, mode: Mode, other: Mode) -> None:
    assert same(plan(name, mode, 0, 120), plan(name, other, 0, 120))


def test_decisions_under_wrong_beliefs_are_timed_with_the_true_rates_and_delays() -> None:
    """Even under a wrong belief, flows have their true times: the sum of the delays, the minimum of the rates."""
    fabric, spec = FABRICS["mesh"], ConditionsSpec()
    drawn = sampler(fabric, spec, seed=1)
    rates, delays = drawn.rates_bps(0, 30), delays_s(fabric, spec)
    decisions = plan("mesh", mode_of("every 1", "every 1", "stale 1"), 0, 30, drawn=drawn)
    for k, flow in product(range(30), range(8)):
        src, dst = (int(decisions.placement[k, place % 8]) for place in (flow, flow + 1))
        links = list(fabric.edge_links(src, dst, int(decisions.path[k, flow])))
        assert decisions.alpha_s[k, flow] == pytest.approx(delays[links].sum(), rel=1e-12)
        assert decisions.beta_s[k, flow] == 8 * CHUNK / rates[k, links].min()
    fresh = plan("mesh", mode_of("every 1", "every 1"), 0, 30, drawn=drawn)
    assert (decisions.placement[1:] == fresh.placement[:-1]).all()
    assert (decisions.path[1:] == fresh.path[:-1]).all()


class Drawn:
    """A sampler that returns given rates, [K, links]."""

    def __init__(self, rates: Floats) -> None:
        self._rates, self.limit = rates, len(rates)

    def rates_bps(self, start: int, count: int) -> Floats:
        assert start >= 0
        assert start + count <= self.limit
        return self._rates[start : start + count]


RATES = np.random.default_rng(5).uniform(1e10, 1e11, (700, 3))


@pytest.mark.parametrize("age", [0, 1, 4, 1000])
def test_stale_knowledge_is_exactly_the_given_number_of_collectives_old(age: int) -> None:
    believed = Knowledge("stale", age).of(Drawn(RATES)).rates_bps(0, 700)
    for k in range(700):
        assert (believed[k] == RATES[max(0, k - age)]).all()


@pytest.mark.parametrize("weight", [0.02, 0.5, 1])
def test_ewma_knowledge_weighs_past_rates_with_the_given_weight(weight: float) -> None:
    believed = Knowledge("ewma", weight).of(Drawn(RATES)).rates_bps(0, 700)
    for k in (0, 1, 2, 100, 699):
        past = RATES[:k][::-1]
        weights = weight * (1 - weight) ** np.arange(k)
        # The remaining weight is on the initial belief, the first row.
        expected = weights @ past + (1 - weights.sum()) * RATES[0]
        assert believed[k] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "spec",
    [
        ConditionsSpec(),
        ConditionsSpec(sampler="markov"),
        ConditionsSpec(sampler="gaussian"),
        ConditionsSpec(sampler="ar1", coefficient=0.5),
        ConditionsSpec(sampler="markov", every_s=0.01, interval_s=0.02),
    ],
)
def test_mean_knowledge_equals_the_average_of_many_draws(spec: ConditionsSpec) -> None:
    drawn = sampler(FABRICS["mesh"], spec, seed=2)
    believed = Knowledge("mean").of(drawn).rates_bps(7, 3)
    draws = drawn.rates_bps(0, 40_000)
    errors = (draws.mean(axis=0) - believed[0]) / draws.std(axis=0)
    assert np.abs(errors).max() < 5 * np.sqrt(20 / 40_000)  # Markov draws are correlated: 20 of them count as one
    assert (believed == believed[0]).all()


def test_autoregressive_knowledge_recovers_the_process_that_generated_the_rates() -> None:
    """Its root mean square error is within 2 % of the noise, which is the error with known coefficients."""
    chance = np.random.default_rng(1)
    noise = chance.normal(0, 1e9, (3000, 6))
    rates = np.full((3000, 6), 5e10)
    for k in range(2, 3000):
        rates[k] = 5e10 + 1.1 * (rates[k - 1] - 5e10) - 0.4 * (rates[k - 2] - 5e10) + noise[k]
    errors = {}
    for known in ("ar 2", "ar 1", "stale 1"):
        believed = knowledge.parse(known).of(Drawn(rates)).rates_bps(0, 3000)
        errors[known] = float(np.sqrt(np.mean((believed - rates)[600:] ** 2)))
    assert errors["ar 2"] < 1.02 * 1e9
    assert errors["ar 2"] < 0.95 * errors["ar 1"]
    assert errors["ar 1"] < errors["stale 1"]


def test_autoregressive_predictions_stay_in_the_range_of_rates_that_they_were_fitted_to() -> None:
    """Rates alternate between two values until the fit, and are far above both afterwards."""
    rates = np.where(np.arange(40)[:, None] % 2, 4e10, 2e10) * np.ones((40, 3))
    rates[32:] = 9e10
    believed = knowledge.parse("ar 1").of(Drawn(rates)).rates_bps(0, 40)
    assert believed[33:].min() == 2e10 and believed[33:].max() <= 4e10


def test_a_policys_own_ring_objective_overrides_that_of_the_run() -> None:
    """Its rings equal those of a run with that objective for all modes; other modes keep the objective of the run."""
    tables = "".join(
        f'[[policy]]\nname = "p{place}"\nreembed = "every"\nring = "{ring}"\n' for place, ring in enumerate(OBJECTIVES)
    )
    (setting,) = scenario_of(f'{tables}[conditions]\nwan_delay = "10 ms"\n[collective]\ncount = 60').configurations()
    conditions, chosen = conditions_of(setting), set()
    for place, ring in enumerate(OBJECTIVES):
        mine = decisions_of(setting, f"p{place}", conditions, start=0, count=60).placement
        of_all = setting.with_values({"collective.ring": ring})
        assert (mine == decisions_of(of_all, "ccl", conditions, start=0, count=60).placement).all()
        chosen.add(mine.tobytes())
    assert len(chosen) > 1
    of_run = decisions_of(setting, f"p{OBJECTIVES.index(setting.collective.ring)}", conditions, start=0, count=60)
    assert (of_run.placement == decisions_of(setting, "ccl", conditions, start=0, count=60).placement).all()


def refused(table: str) -> list[str]:
    with pytest.raises(ScenarioError) as error:
        scenario_of(f"[[policy]]\n{table}")
    return list(error.value.mistakes)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('reroute = "every 1"', "policy[1].name: is missing"),
        ('name = "joint"', "policy[1].name: «joint» is not allowed"),
        ('name = "a"\nreroute = "sometimes"', "policy[1].reroute: «sometimes» is not known; allowed: never, every"),
        ('name = "a"\nreembed = "every 0"', "policy[1].reembed: «every 0» is out of range"),
        ('name = "a"\nreembed = "gain"', "policy[1].reembed: «gain» is not known"),
        ('name = "a"\nreembed = "gain -1"', "policy[1].reembed: «gain -1» is out of range"),
        ('name = "a"\nreembed = "gain nan"', "policy[1].reembed: «gain nan» is out of range"),
        ('name = "a"\nreroute = 3', "policy[1].reroute: 3 is a number; allowed: never"),
        (
            'name = "a"\nreroute = "every"\nknowledge = "stale 5 ms"',
            'policy[1].knowledge: "stale 5 ms" is given as a time',
        ),
        ('name = "a"\nknowledge = "stale"', "policy[1].knowledge: «stale» is not known; allowed: oracle"),
        ('name = "a"\nknowledge = "stale x"', "policy[1].knowledge: «stale x» has no such number"),
        ('name = "a"\nknowledge = "ewma 0"', "policy[1].knowledge: «ewma 0» is out of range"),
        ('name = "a"\nhorizon = 0', "policy[1].horizon: 0 is too small"),
        ('name = "a"\nreembed = "every"\nring = "least"', "policy[1].ring: «least» is not known; allowed: if the"),
        ('name = "a"\nrereoute = "never"', "policy[1].rereoute: unknown key of a policy"),
        ('name = "a"\n[[policy]]\nname = "a"', "policy[2].name: «a» is that of another policy"),
        (
            'name = "a"\n[run]\nmodes = ["base", "b"]',
            "run.modes: «b» is not known; allowed: base, ccl, wan, joint, a",
        ),
    ],
)
def test_a_bad_policy_is_refused_in_one_sentence(table: str, said: str) -> None:
    (line,) = refused(table)
    assert said.replace("«", '"').replace("»", '"') in line


@given(st.sampled_from(WHENS), st.sampled_from(WHENS), st.sampled_from(KNOWLEDGE), st.none() | st.integers(1, 100))
def test_a_policy_survives_writing_and_reading(reroute: str, reembed: str, known: str, horizon: int | None) -> None:
    mode = mode_of(reroute, reembed, known, horizon)
    assert policy.read([mode.written()]) == (mode,)


def test_policies_of_a_scenario_run_in_addition_to_the_built_in_modes() -> None:
    scenario = scenario_of('[[policy]]\nname = "eager"\nreroute = "every 1"\nknowledge = "stale 1"')
    assert scenario.run.modes == ("base", "ccl", "wan", "joint", "eager")
    assert scenario_of(resolved(scenario)) == scenario


@pytest.mark.parametrize(("age", "collectives"), [("1 ns", 1), ("10 ms", 1), ("20 ms", 2), ("25 ms", 3)])
def test_knowledge_of_a_given_age_in_time_is_the_row_of_conditions_that_held_then(age: str, collectives: int) -> None:
    text = f"""[conditions]
every = "10 ms"
[[policy]]
name = "by-time"
reroute = "every 1"
knowledge = "stale {age}"
[[policy]]
name = "by-number"
reroute = "every 1"
knowledge = "stale {collectives}"
"""
    scenario = scenario_of(text)
    assert scenario_of(resolved(scenario)) == scenario
    (setting,) = scenario.configurations()
    conditions = conditions_of(setting)
    by_time, by_number = (conditions.believed(setting.mode(name).knowledge) for name in ("by-time", "by-number"))
    assert (by_time.rates_bps(0, 30) == by_number.rates_bps(0, 30)).all()
    assert (by_time.rates_bps(17, 3) == by_number.rates_bps(17, 3)).all()
