"""The load of background traffic: rates are capacities less what matrices put on shortest paths, by time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from scenarios.spec import ScenarioError
from scenarios.spec.load import load_scenario, resolved, scenario_of
from scenarios.spec.scenario import Scenario
from tests.topologies.test_packs import LINKS, NODES, WANTED, data
from topologies.conditions.sampler import sampler
from topologies.fabric.fabric import build_fabric
from topologies.fabric.map_links import great_circle_km
from topologies.fabric.ports import links_in_grain

__all__ = ["data"]


def scenario(
    data: Path, load: str, wan: str = "sndlib:geant.xml", sites: str = '["uk1.uk", "it1.it"]', more: str = ""
) -> Scenario:
    text = (
        f'[fabric]\ngpus = [1, 1]\nborder_routers = 1\nwan = "{wan}"\nsites = {sites}\n[collective]\ncount = 2\n'
        f'[conditions]\nwan_rate = "100 Gbit/s"\nintra_rate = "100 Gbit/s"\n{more}\n[conditions.load]\n{load}\n'
    )
    return scenario_of(text, path=data / "scenario.toml")


def rates(asked: Scenario, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """The rate of each link in the first rows, by name."""
    fabric = build_fabric(asked.fabric)
    drawn = sampler(fabric, asked.conditions, seed=1)
    table = drawn.rates_bps(0, count)
    return {link.name: table[:, link.index] for link in links_in_grain(fabric).all}


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_links_have_what_demands_leave_on_shortest_paths(data: Path, grain: str) -> None:
    """Networkx finds the paths; matrices are of minutes 5, 10, 20 and 25, and the one of 10 holds at 15, too."""
    text = resolved(scenario(data, 'matrices = "matrices:matrices"')).replace('grain = "logical"', f'grain = "{grain}"')
    asked = scenario_of(text)
    graph = networkx.Graph()
    for a, b in LINKS:
        graph.add_edge(a, b, km=great_circle_km(NODES[a], NODES[b]))
    found = rates(asked, 5)
    for (a, b), capacity in LINKS.items():
        for way in ((a, b), (b, a)):
            load = np.zeros(5)
            for ends, mbit in WANTED.items():
                path = networkx.shortest_path(graph, *ends, weight="km")
                if way in pairwise(path):
                    load += mbit * np.array([5, 10, 10, 20, 25])
            name = ">".join(end.replace(".", "") for end in way)
            assert found[name] == pytest.approx((capacity - load) * 1e6, abs=1), name
    assert found["s0b0>uk1uk"] == pytest.approx(100e9)


def test_ecmp_divides_a_demand_among_equal_paths_and_shortest_does_not(data: Path) -> None:
    """In the ring s1-s2-s4-s12 without lengths, s4 sends 1 Mbit/s to s1, over s2 and over s12."""
    given = {"wan": "yates:abilene", "sites": '["s1", "s4"]'}
    (data / "demands/abilene.txt").write_text(("0 1e6" + " 0" * 14 + "\n") * 2)
    found = rates(scenario(data, 'matrices = "yates:abilene"', **given), 1)
    assert [found[name][0] for name in ("s4>s2", "s2>s1", "s4>s12", "s12>s1")] == [999.5e6] * 4
    found = rates(scenario(data, 'matrices = "yates:abilene"\nrouting = "shortest"', **given), 1)
    assert sorted(float(found[name][0]) for name in ("s4>s2", "s4>s12")) == [999e6, 1000e6]
    assert found["s2>s4"][0] == 1e9


def test_peak_scales_the_fullest_link_and_a_full_link_keeps_a_hundredth(data: Path) -> None:
    capacity = {f"{a}>{b}".replace(".", ""): mbit * 1e6 for (a, b), mbit in LINKS.items()}
    capacity |= {f"{b}>{a}".replace(".", ""): mbit * 1e6 for (a, b), mbit in LINKS.items()}

    def least(peak: float) -> float:
        found = rates(scenario(data, f'matrices = "matrices:matrices"\npeak = {peak}'), 5)
        return min(found[name].min() / bps for name, bps in capacity.items())

    assert least(0.5) == pytest.approx(0.5) and least(2) == pytest.approx(0.01)


def test_rows_follow_the_data_by_its_interval_by_steps_and_by_a_speed_up(data: Path) -> None:
    first = 'matrices = "matrices:matrices"\n'
    plain, by_step = scenario(data, first), scenario(data, f'{first}step = "600 s"')
    by_time = scenario(data, f"{first}speedup = 600\nrepeat = true", more='every = "1 s"\ninterval = "1 s"')
    whole = rates(plain, 5)["uk1uk>de1de"]
    assert rates(by_step, 3)["uk1uk>de1de"].tolist() == whole[::2].tolist()
    fabric = build_fabric(by_time.fabric)
    drawn = sampler(fabric, by_time.conditions, seed=1)
    column = next(link.index for link in links_in_grain(fabric).all if link.name == "uk1uk>de1de")
    assert drawn.rates_bps(0, 6)[:, column].tolist() == [*whole[::2].tolist()] * 2
    assert drawn.limit is None and sampler(fabric, plain.conditions, seed=1).limit == 5
    assert sampler(fabric, plain.conditions, seed=1).mean_bps[column] == pytest.approx(whole.mean())


@pytest.mark.parametrize(
    ("load", "named"),
    [
        ("peak = 0.5", "conditions.load.matrices: is missing; allowed: a pack with demands"),
        ('matrices = "matrices:nowhere"', "cannot be read: No such file or directory; allowed: a folder"),
        ('matrices = "latency:a.md"', "the pack latency has no demands; allowed: sndlib"),
        ('matrices = "abilene"', '"abilene" names no pack; allowed:'),
        (
            'matrices = "matrices:matrices"\npeak = 0',
            "load.peak: 0 is not allowed; allowed: a number above 0",
        ),
        ('matrices = "matrices:matrices"\nspeed = 3', "unknown key of a load, .*did you mean speedup"),
        ('matrices = "matrices:matrices"\nspeedup = 3', "3 needs conditions that change by time"),
        ('matrices = "matrices:matrices"\nspeedup = 3\nstep = "1 s"', "is given together with step"),
        ('matrices = "matrices:matrices"\nrouting = "luck"', '"luck" is not allowed; allowed: ecmp or shortest'),
        ('matrices = "matrices:matrices"\nstep = "1 week"', "conditions.load.step"),
        ('matrices = "topohub:sndlib/abilene"', '"ATLAM5" of the matrices is not a router of the WAN; allowed: uk1.uk'),
    ],
)
def test_a_wrong_load_is_refused_in_one_sentence(data: Path, load: str, named: str) -> None:
    with pytest.raises(ScenarioError, match=named) as caught:
        scenario(data, load)
    assert "Traceback" not in str(caught.value) and len(caught.value.mistakes) == 1


def test_more_collectives_than_the_matrices_cover_are_refused(data: Path) -> None:
    asked = scenario(data, 'matrices = "matrices:matrices"')
    with pytest.raises(ScenarioError, match="6 is too large: the load covers 5; allowed: up to that, or"):
        scenario_of(resolved(asked).replace("count = 2", "count = 6"))
    assert load_scenario("paper").conditions.load is None
