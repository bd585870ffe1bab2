"""Repetita's backbones and demands, and SNDlib's measured demands: traffic engineering against others' numbers.

Every node is a site with one border router, and every two nodes have a demand. A fabric has at most ten sites, so the
controller's decision is called with the candidate paths itself. Run with ``pytest -m references``.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.references.backbones import (
    PATHS,
    Backbone,
    Matrix,
    engineered,
    fixed_paths_are_shortest,
    least_utilisation,
    read_demands,
    read_graph,
    read_snd_demands,
    read_snd_network,
    shortest,
)
from tests.references.conftest import Record, commit
from tests.references.page import FAILED, PASSED, Outcome, Suite

pytestmark = pytest.mark.references

AGREES = 0.001  # the largest difference
MAX_NODES, TOPOLOGIES, MATRICES = 14, 25, 5
SCALED_TO = 0.9  # the highest utilisation of the best multi-commodity flow, to which Repetita scales its matrices
REPETITA, SND = "github.com/svissicchio/Repetita", "github.com/tfenz/TE_SR_WAN_simulation"
FILES = {
    "abilene": "directed-abilene-zhang-5min-over-6months-ALL/demandMatrix-abilene-zhang-5min-2004",
    "geant": "directed-geant-uhlig-15min-over-4months-ALL/demandMatrix-geant-uhlig-15min-2005",
}
SAMPLES = {  # the times of the matrices whose results are published, by sample
    "abilene": "0302-0510 0310-0125 0309-0605 0306-1755 0307-0615 0304-0235 0305-0245 0304-1755 0305-1045 0312-1030",
    "geant": "0504-1530 0507-1045 0507-0245 0504-1630 0505-0445 0507-0415 0507-2115 0505-2215 0505-0545",
}
DAYS = {"abilene": ("0301", range(24)), "geant": ("0505", range(0, 24, 4))}  # the hours that are replayed


def most(net: Backbone, matrix: Matrix) -> float:
    """Return the highest utilisation of the best flow if every demand, cut to whole kbit/s, wanted almost one more."""
    return least_utilisation(net, {pair: bps + 1e3 for pair, bps in matrix.items()})


def outcome(net: Backbone, matrix: Matrix, scaled_to: float | None = None) -> Outcome:
    """Compare the decision with the best flow over all paths, and that with what it is scaled to."""
    best, (found, carried) = least_utilisation(net, matrix), engineered(net, matrix)
    if scaled_to and not best * (1 - AGREES) <= scaled_to <= most(net, matrix) * (1 + AGREES):
        return Outcome(FAILED, f"the best flow has a highest utilisation of {best:.6f}, not {scaled_to}")
    if carried < 1 - AGREES or abs(found / best - 1) > AGREES:
        return Outcome(FAILED, f"te has a highest utilisation of {found:.6f}, not {best:.6f}, for {carried:.6f} of all")
    return Outcome(PASSED)


def test_te_reaches_the_least_highest_utilisation_of_repetitas_backbones_and_matrices(
    material: Callable[[str, str], Path], record: Record
) -> None:
    folder = material("Repetita", f"git clone https://{REPETITA}")
    data = folder / "data" / "2016TopologyZooUCL_inverseCapacity"
    nets = {path.stem: read_graph(path) for path in sorted(data.glob("*.graph"))}
    small = [name for name, net in nets.items() if net.nodes <= MAX_NODES]
    chosen = sorted(small, key=lambda name: nets[name].nodes - len(nets[name].ends) // 2)[:TOPOLOGIES]

    def cases() -> Mapping[str, Outcome]:
        outcomes = dict[str, Outcome]()
        for name in chosen:
            for matrix in sorted(data.glob(f"{name}.*.demands"))[:MATRICES]:
                began = time.perf_counter()
                outcomes[matrix.stem] = outcome(nets[name], read_demands(matrix), SCALED_TO)
                print(f"{matrix.stem}: {time.perf_counter() - began:.2f} s", file=sys.stderr)
            outcomes[f"{name}, fixed paths"] = (
                Outcome(PASSED)
                if fixed_paths_are_shortest(nets[name])
                else Outcome(FAILED, "a path is not the shortest")
            )
        return outcomes

    what = (
        f"The {TOPOLOGIES} backbones of at most {MAX_NODES} nodes with the most independent cycles, {MATRICES} "
        f"matrices each: a matrix passes if a linear programme over all paths gives the published highest utilisation, "
        f"{SCALED_TO}, up to the cut of demands to whole kbit/s, and te.objective utilisation over {PATHS} paths that "
        "of the programme, both within 0.1 %; fixed paths pass if all are as short as Dijkstra's."
    )
    outcomes = record(Suite("Repetita", commit(folder), REPETITA, what), cases)
    assert len(outcomes) == TOPOLOGIES * (MATRICES + 1)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]


def test_te_and_shortest_paths_of_sndlibs_measured_matrices_are_as_computed_and_as_published(
    material: Callable[[str, str], Path], record: Record
) -> None:
    folder = material("TE_SR_WAN_simulation", f"git clone https://{SND}")
    published = json.loads((folder / "results_paper" / "results_real_demands.json").read_text())
    results = {(one["topology_name"], one["sample_idx"], one["algorithm"]): one["objective"] for one in published}

    def cases() -> Mapping[str, Outcome]:
        outcomes = dict[str, Outcome]()
        for name, files in FILES.items():
            net = read_snd_network(folder / "data" / "topologies" / "sndlib" / f"{name}.xml")

            def at(when: str, files: str = files) -> Matrix:
                return read_snd_demands(folder / "data" / "demands" / "sndlib" / f"{files}{when}.xml")

            day, hours = DAYS[name]
            for hour in hours:
                when = f"{day}-{hour:02d}00"
                outcomes[f"{name} {when}"] = outcome(net, at(when))
            for sample, when in enumerate(SAMPLES[name].split()):
                matrix, said = at(when), results[name, sample, "inverse_capacity"]
                found = shortest(net, matrix) / least_utilisation(net, matrix)
                is_equal = abs(found / said - 1) < 1e-9
                why = "" if is_equal else f"{found:.12f} times the best, not the published {said:.12f}"
                outcomes[f"{name} {when}, shortest paths"] = Outcome(PASSED if is_equal else FAILED, why)
        return outcomes

    what = (
        "The measured matrices of Abilene, a day by the hour, and of GEANT, every fourth hour: one passes if "
        f"te.objective utilisation over {PATHS} paths is within 0.1 % of a linear programme over all paths; shortest "
        "paths pass if their highest utilisation over that of the programme equals the published one "
        "(inverse_capacity) to nine digits."
    )
    outcomes = record(Suite("SNDlib", commit(folder), SND, what), cases)
    assert len(outcomes) == 24 + 6 + 10 + 9
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
