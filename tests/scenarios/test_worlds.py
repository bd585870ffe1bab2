"""The contract between worlds and policies: the same cases in the timing model, in the testbed, and on a fake."""

import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scenarios.engines.prediction import FluidWorld
from scenarios.policies.conditions import chooser_of, conditions_of
from scenarios.policies.play import Given, Player, play
from scenarios.policies.players import player_of
from scenarios.policies.policy import Mode, When, when
from scenarios.spec.load import scenario_of
from scenarios.spec.scenario import Scenario
from tests.conftest import PROJECT, VM
from tests.fakes.contract import CASES, MODE, shown
from tests.fakes.worlds import FakeChoices, FakeWorld

_EARLY_S = 200e-9  # by which a message of the testbed may arrive early: 64 ns at each hop
Seen = list[dict[str, Any]]


def setting_of(name: str) -> Scenario:
    (setting,) = scenario_of(CASES[name]).configurations()
    return setting


@pytest.fixture(scope="module")
def measured(module_vm: VM) -> dict[str, Seen]:
    """What each case showed in the testbed, in one boot of the VM."""
    return dict(module_vm.report("worlds", json.dumps(CASES)))


@pytest.fixture(scope="module")
def modelled() -> dict[str, Seen]:
    """What each case shows in the timing model."""
    found = {}
    for name in CASES:
        setting = setting_of(name)
        world = FluidWorld(setting, MODE, conditions_of(setting))
        found[name] = [shown(outcome) for outcome in play(world, world.player, range(setting.collective.count))]
    return found


@pytest.fixture(params=["fluid", "emulated"])
def world(request: pytest.FixtureRequest, modelled: dict[str, Seen], measured: dict[str, Seen]) -> dict[str, Seen]:
    return {"fluid": modelled, "emulated": measured}[request.param]  # both, so that one process makes them


@pytest.mark.parametrize("name", CASES)
def test_every_collective_has_one_outcome_in_order_for_all_its_messages(world: dict[str, Seen], name: str) -> None:
    schedule = setting_of(name).workload.schedule
    assert [one["number"] for one in world[name]] == [0, 1, 2, 3]
    for one in world[name]:
        assert sorted(one["placement"]) == [*range(8)]
        assert len(one["path"]) == len(one["links"]) == len(schedule.flows)
        assert len(one["sent_s"]) == len(one["arrived_s"]) == len(schedule.transfers)


@pytest.mark.parametrize("name", CASES)
def test_no_message_is_faster_than_its_links_and_none_overtakes_what_it_waits_for(
    world: dict[str, Seen], name: str
) -> None:
    setting = setting_of(name)
    conditions, workload = conditions_of(setting), setting.workload
    for one in world[name]:
        rates_bps = conditions.shared_bps(one["number"], 1)[0]
        if conditions.timed is not None:  # they change, and with them the paths
            rates_bps = np.full_like(rates_bps, np.inf)
        for index, transfer in enumerate(workload.schedule.transfers):
            way = [link for link in one["links"][transfer.flow] if link >= 0]
            sent_s, arrived_s = one["sent_s"][index], one["arrived_s"][index]
            least_s = conditions.shared_delays_s[way].sum()
            least_s += 8 * transfer.amount * workload.slot_bytes / rates_bps[way].min()
            assert arrived_s - sent_s >= least_s - _EARLY_S
            assert all(one["arrived_s"][before] <= sent_s + 1e-12 for before in transfer.after)


@pytest.mark.parametrize("name", CASES)
def test_the_choices_in_force_are_the_actions_so_far(world: dict[str, Seen], name: str) -> None:
    """A placement changes only by an action; chosen paths change only by an action or by a cable that fails."""
    setting = setting_of(name)
    before: dict[str, Any] | None = None
    for one in world[name]:
        if before is not None and not one["acted"][0]:
            assert one["placement"] == before["placement"]
            if not one["acted"][1] and not setting.faults:
                assert one["path"] == before["path"]
        for flow, index in enumerate(one["path"]):
            ends = [setting_of(name).workload.schedule.ends[end][flow] for end in (0, 1)]
            sites = [one["placement"][place] // 4 for place in ends]
            assert (index >= 0) == (sites[0] != sites[1])
        before = one


@pytest.mark.parametrize("name", CASES)
def test_both_worlds_get_the_same_actions_and_differ_by_less_than_a_thousandth(
    measured: dict[str, Seen], modelled: dict[str, Seen], name: str
) -> None:
    for there, here in zip(measured[name], modelled[name], strict=True):
        assert there["acted"] == here["acted"]
        if name == "measured ports":  # the counters of real ports show other rates than the predicted ones
            continue
        assert [there[what] for what in ("placement", "path", "links")] == [
            here[what] for what in ("placement", "path", "links")
        ]
        ended_s = [max(one["arrived_s"]) for one in (there, here)]
        assert ended_s[0] == pytest.approx(ended_s[1], rel=2e-3)


RATES = np.array([[3e9, 1e9], [3e9, 1e9], [1e9, 4e9], [1e9, 3.9e9], [8e9, 1e9]])


@pytest.mark.parametrize(
    ("reroute", "reembed", "paths", "orders"),
    [
        ("never", "never", [None] * 5, [[0, 1]] * 5),
        ("every 1", "never", [[0], [0], [1], [1], [0]], [[0, 1]] * 5),
        ("every 2", "never", [[0], [0], [1], [1], [0]], [[0, 1]] * 5),
        ("never", "every 3", [None] * 5, [[1, 0]] * 3 + [[0, 1]] * 2),
        ("drift 0.5", "never", [[0], [0], [1], [1], [0]], [[0, 1]] * 5),
        ("drift 0.9", "never", [[0]] * 5, [[0, 1]] * 5),
        ("gain 0.5", "never", [None, None, [1], [1], [0]], [[0, 1]] * 5),
        ("gain 0.8", "never", [None] * 4 + [None], [[0, 1]] * 5),
        ("every 4", "every 4", [[0]] * 5, [[1, 0]] * 5),
    ],
)
def test_a_rule_decides_alike_in_a_world_of_two_links(
    reroute: str, reembed: str, paths: list[Any], orders: list[list[int]]
) -> None:
    """By hand: the better link is the first, the first, the second, the second and the first."""
    believed = SimpleNamespace(rates_bps=lambda start, count: RATES[start : start + count], limit=len(RATES))
    mode = Mode(name=MODE, reroute=when(reroute), reembed=when(reembed), horizon=1)
    player = Player(mode, FakeChoices(), Given(believed), reembed_every=4)  # type: ignore[arg-type]
    fake = FakeWorld(RATES, player)
    numbers = [outcome.number for outcome in play(fake, player, range(5))]
    assert numbers == [0, 1, 2, 3, 4]
    assert [path for _, path in fake.done] == paths
    assert [ranks for ranks, _ in fake.done] == orders


def test_an_action_counts_only_once_it_was_carried_out() -> None:
    """A world may ask again after a lost attempt; only what the outcome says is in force afterwards."""
    believed = SimpleNamespace(rates_bps=lambda start, count: RATES[start : start + count], limit=len(RATES))
    mode = Mode(name=MODE, reroute=When("drift", 0.5))
    player = Player(mode, FakeChoices(), Given(believed), reembed_every=4)  # type: ignore[arg-type]
    fake = FakeWorld(RATES, player)

    def asked_thrice(number: int, decide: Any) -> Any:
        assert decide() == decide() or decide().routing.number == number
        return fake.run(number, decide)

    list(play(SimpleNamespace(run=asked_thrice), player, range(5)))  # type: ignore[arg-type]
    assert [path for _, path in fake.done] == [[0], [0], [1], [1], [0]]


def test_paths_are_those_of_the_rates_at_the_choice_however_late_they_are_looked_at() -> None:
    """A belief may have learnt, or the rates at a prompt have changed, when the paths in force are first computed."""
    now = SimpleNamespace(rates_bps=lambda start, count: rates[None], limit=None)
    player = Player(Mode(name=MODE, reroute=when("every")), FakeChoices(), Given(now), reembed_every=4)  # type: ignore[arg-type]
    rates = RATES[0]
    player.take(player.decide(0))
    rates = RATES[2]  # where the other path is better
    assert player.in_force.routing is not None
    assert player.in_force.routing.path.tolist() == [0]


def test_the_documented_world_bounds_every_collective_from_above() -> None:
    """The worked example of docs/design.md, as it stands there."""
    (text,) = re.findall(r"```python\n(# one_by_one\.py\n.*?)```", (PROJECT / "docs" / "design.md").read_text(), re.S)
    names: dict[str, Any] = {"np": np, "SimpleNamespace": SimpleNamespace, "chooser_of": chooser_of}
    exec(text, names)
    (setting,) = scenario_of("[collective]\ncount = 20").configurations()
    conditions = conditions_of(setting)
    player = player_of(setting, "joint", conditions)
    bounded = [max(one.arrived_s) for one in play(names["OneByOne"](setting, conditions, player), player, range(20))]
    world = FluidWorld(setting, "joint", conditions)
    taken = [one.arrived_s.max() for one in play(world, world.player, range(20))]
    assert all(most > took for most, took in zip(bounded, taken, strict=True))
