"""Sites of one GPU, a single site without a WAN, and sites in a line: what runs, what is refused, and why."""

import json
import subprocess
import sys
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from analysis.results.reader import load
from hosts.collectives.kinds import ALGORITHMS, schedule
from scenarios.api import run, scenario
from scenarios.experiment import command
from scenarios.spec import ScenarioError
from tests.conftest import PROJECT
from tests.fakes.runs import ended, measured
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import FabricSpec, build_fabric

LINE: dict[str, Any] = {
    "fabric.gpus": [2, 2, 2],
    "fabric.border_routers": 1,
    "fabric.wan": {"routers": [], "links": [["s0b0", "s1b0"], ["s1b0", "s2b0"]]},
    "collective.count": 2,
}
SMALL: dict[str, Any] = {"collective.count": 3}
EVERY = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


def ring_s(ring: tuple[int, ...], alpha_s: Any, beta_s: Any) -> float:
    """Return the time of an AllGather around a ring, step by step: a GPU forwards what has arrived whole."""
    n = len(ring)
    edges = list(zip(ring, (*ring[1:], ring[0]), strict=True))
    has_s, free_s = [0.0] * n, [0.0] * n  # when the block to be sent next is there, and when the edge is free
    for _ in range(n - 1):
        ends_s = [max(has_s[i], free_s[i]) + beta_s[edge] for i, edge in enumerate(edges)]
        free_s = ends_s
        has_s = [ends_s[i - 1] + alpha_s[edges[i - 1]] for i in range(n)]
    return max(has_s)


def test_one_site_is_predicted_step_by_step_and_gets_its_best_ring() -> None:
    found = run(
        scenario("paper", SMALL | {"fabric.gpus": [5], "collective.reembed_every": 1, "collective.ring": "cycle time"})
    )
    fabric, conditions = build_fabric(FabricSpec(gpus_per_site=(5,))), ConditionsSpec()
    rates, links = sampler(fabric, conditions, seed=1).rates_bps(0, 3), fabric.intra_index
    for number in range(3):
        alpha_s = delays_s(fabric, conditions)[links]
        beta_s = 8 * 8e6 / rates[number][links]
        rings = [(0, *rest) for rest in permutations(range(1, 5))]

        def cycle_s(ring: tuple[int, ...], alpha_s: Any = alpha_s, beta_s: Any = beta_s) -> tuple[float, float]:
            """Return the cycle time, and for ties the total cost (the docstring of `hosts.embedding.ring`)."""
            edges = list(zip(ring, (*ring[1:], ring[0]), strict=True))
            total_s = sum(alpha_s[edge] + beta_s[edge] for edge in edges)
            return max(max(beta_s[edge] for edge in edges), total_s / 5), total_s

        best = min(rings, key=cycle_s)
        now = found[found.collective == number].set_index("mode")
        for mode, ring in (("base", (0, 1, 2, 3, 4)), ("wan", (0, 1, 2, 3, 4)), ("ccl", best), ("joint", best)):
            assert tuple(now.ring[mode]) == ring
            assert now.completion_s[mode] == pytest.approx(ring_s(ring, alpha_s, beta_s), rel=1e-9)


def test_two_sites_of_one_gpu_take_the_path_that_is_best() -> None:
    found = run(scenario("paper", SMALL | {"fabric.gpus": 2}))
    fabric, conditions = build_fabric(FabricSpec(gpus_per_site=(1, 1))), ConditionsSpec()
    delay_s, rates = delays_s(fabric, conditions), sampler(fabric, conditions, seed=1).rates_bps(0, 3)
    for number in range(3):
        over = {
            (src, dst): [
                delay_s[list(links)].sum() + 8 * 8e6 / rates[number][list(links)].min()
                for path in fabric.paths_between[src, dst]
                for links in [fabric.edge_links(src, dst, path.index)]
            ]
            for src, dst in ((0, 1), (1, 0))
        }
        now = found[found.collective == number].set_index("mode").completion_s
        for mode in ("base", "ccl"):
            assert now[mode] == pytest.approx(max(times[0] for times in over.values()), rel=1e-9)
        for mode in ("wan", "joint"):
            assert now[mode] == pytest.approx(max(min(times) for times in over.values()), rel=1e-9)


@pytest.mark.parametrize(
    ("gpus", "grain"),
    [([1, 1], "logical"), ([1, 3], "physical"), ([3], "logical")],
)
def test_every_collective_runs_in_every_mode(gpus: list[int], grain: str) -> None:
    for kind, algorithm in EVERY:
        values = {
            "fabric.gpus": gpus,
            "fabric.grain": grain,
            "collective.kind": kind,
            "collective.algorithm": algorithm,
        }
        times = run(scenario("paper", values | {"collective.count": 1})).groupby("mode").completion_s.mean()
        assert {*times.index} == {"base", "ccl", "wan", "joint"} and (times > 0).all(), (kind, algorithm)
        if len(gpus) == 1:  # nothing to re-route
            assert times["wan"] == times["base"] and times["joint"] == times["ccl"]


@pytest.mark.parametrize("routing", ["ecmp", "spray", "te"])
@pytest.mark.parametrize("gpus", [[1, 2], [3]])
def test_every_routing_runs(gpus: list[int], routing: str) -> None:
    values = {"fabric.gpus": gpus, "fabric.grain": "physical", "fabric.routing": routing, "collective.count": 2}
    assert (run(scenario("paper", values)).completion_s > 0).all()


def test_a_line_of_sites_runs_every_algorithm_that_sends_nothing_between_its_ends() -> None:
    for kind, algorithm in EVERY:
        begins, ends = schedule(kind, algorithm, sites=(2, 2, 2)).ends
        apart = any({src // 2, dst // 2} == {0, 2} for src, dst in zip(begins, ends, strict=True))
        values = LINE | {"collective.kind": kind, "collective.algorithm": algorithm}
        if apart:
            with pytest.raises(ScenarioError, match="no WAN path joins the sites 0 and 2, as border routers carry no"):
                scenario("paper", values)
        else:
            assert (run(scenario("paper", values)).completion_s > 0).all(), (kind, algorithm)


def test_a_refused_line_names_the_reason_and_what_would_run() -> None:
    with pytest.raises(ScenarioError) as error:
        scenario("paper", LINE)
    assert "collective.algorithm: no ring can visit every site once: no WAN path joins the sites 0 and 2" in str(
        error.value
    )
    assert "allowed: links or transit routers that join them, or allreduce by chain, or broadcast by chain" in str(
        error.value
    )
    with pytest.raises(ScenarioError, match=r"ring sends|no ring .* or the algorithm chain$"):
        scenario("paper", LINE | {"collective.kind": "allreduce"})
    through = {"routers": ["X"], "links": [*LINE["fabric.wan"]["links"], ["s0b0", "X"], ["X", "s2b0"]]}
    assert (run(scenario("paper", LINE | {"fabric.wan": through})).completion_s > 0).all()


def test_jobs_on_a_line_are_refused_only_if_they_need_the_missing_path(tmp_path: Path) -> None:
    text = (
        '[fabric]\ngpus = [2, 2, 2]\nborder_routers = 1\nwan = {routers = [], links = [["s0b0", "s1b0"], ["s1b0", '
        '"s2b0"]]}\n[collective]\ncount = 2\n[[job]]\nname = "near"\nranks = [0, 1, 2, 3]\n[[job]]\nname = "far"\n'
    )
    for ranks, fits in (("[2, 3, 4, 5]", True), ("[0, 4]", False)):
        (tmp_path / "jobs.toml").write_text(f"{text}ranks = {ranks}\n")
        if fits:
            assert (run(scenario(tmp_path / "jobs.toml")).completion_s > 0).all()
        else:
            with pytest.raises(
                ScenarioError, match="job: far sends from g0 to g4, and no WAN path joins the sites 0 and"
            ):
                scenario(tmp_path / "jobs.toml")


def line_of(folder: Path) -> Path:
    """Write a scenario of three sites in a line."""
    file = folder / "line.toml"
    links = '[["s0b0", "s1b0"], ["s1b0", "s2b0"]]'
    file.write_text(f"[fabric]\ngpus = [2, 2, 2]\nborder_routers = 1\n[fabric.wan]\nrouters = []\nlinks = {links}\n")
    return file


def test_a_prompt_on_a_line_of_sites_refuses_what_has_no_path_and_runs_the_rest(tmp_path: Path) -> None:
    lines = (
        "paths\nallgather 1 MB\nbroadcast 1 MB\niperf g0 g5\nping g0 g2\nmode joint\nbroadcast 1 MB\ng0 ping -c 1 g2\n"
    )
    run_py = [sys.executable, str(PROJECT / "scenarios" / "run.py"), str(line_of(tmp_path)), "--cli"]
    at_prompt = subprocess.run(
        run_py, cwd=tmp_path, input=lines, capture_output=True, text=True, check=False, timeout=300
    )
    assert "no WAN path joins the sites 0 and 2: packets between their GPUs are lost" in at_prompt.stderr
    assert "without its collective, whose flows lack WAN paths (it begins with allreduce by chain)" in at_prompt.stderr
    assert at_prompt.stdout.count("ratio 1.000") == 2 and " 1 received" in at_prompt.stdout
    assert "g0 cannot be reached from g5: no WAN path joins their sites" in at_prompt.stdout
    assert "allowed: NODE CMD, such as g0 ping g2" in at_prompt.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["line.toml"]  # no empty folder is left


def test_a_program_on_a_line_of_sites_reaches_the_neighbours_and_is_told_whom_it_cannot_reach(tmp_path: Path) -> None:
    own = "[ $RANK != 0 ] || { ping -c 1 g2 && ! ping -c 1 -W 1 g5; }"
    _, said = ended(line_of(tmp_path), "--exec", own, "--modes", "wan", "--out", tmp_path / "run", cwd=tmp_path)
    assert "wan has no WAN path to choose: no two sites have more than one" in said
    assert "no WAN path joins the sites 0 and 2: packets between their GPUs are lost" in said


def test_a_prompt_and_a_program_may_use_sites_in_a_line(tmp_path: Path) -> None:
    from scenarios.spec.load import load_scenario

    file = line_of(tmp_path)
    assert load_scenario(str(file), at_prompt=True).shared_links("joint") == ()
    file.write_text(file.read_text() + '[program]\ncommand = "true"\n')
    assert load_scenario(str(file)).program.command == "true"


def test_a_single_site_has_no_second_tier_to_oversubscribe() -> None:
    with pytest.raises(ScenarioError, match="2 for the switches below border routers, which a single site lacks"):
        scenario("paper", {"fabric.gpus": [4], "fabric.grain": "physical", "fabric.oversubscription": [1, 2]})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpus", "[3]"], "wan and joint have no WAN path to choose: no flow has more than one WAN path"),
        (["--gpus", "2"], "ccl and joint have no ring to choose: there is only one ring"),
        (["--set", "fabric.border_routers=1"], "wan and joint have no WAN path to choose"),
        (["--gpus", "2", "--set", "collective.kind=broadcast"], "ccl and joint have no placement to choose"),
        (["--gpus", "1+1+1"], ""),
        ([], ""),
    ],
)
def test_modes_without_a_choice_are_told(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert command.run([*arguments, "--engine", "model", "--dry-run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert any(told in line for line in lines) if told else not lines


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_runs_in_one_site_and_in_sites_of_one_gpu_with_figures(tmp_path: Path, kind: str) -> None:
    sizes = "[4],1+3,1+1+2"
    sets = [f"collective.kind={kind}", f"sweep.collective.algorithm={json.dumps(ALGORITHMS[kind])}"]
    given = [word for text in sets for word in ("--set", text)]
    out = ["--collectives", "2", "--out", str(tmp_path / "run")]
    assert command.run(["--gpus", sizes, "--engine", "model", *given, *out]) == 0
    rows = load(tmp_path / "run", columns=["setting", "completion_s"])
    assert rows.setting.nunique() == 3 * len(ALGORITHMS[kind]) and (rows.completion_s > 0).all()
    assert (tmp_path / "run" / "report.html").exists()


def test_one_site_and_sites_of_one_gpu_are_measured_as_predicted(tmp_path: Path) -> None:
    """With figures and report."""
    folder = tmp_path / "run"
    measured(
        folder,
        "--gpus",
        "[2],1+2",
        "--modes",
        "joint",
        "--collectives",
        "2",
        collectives=4,
        median=1e-3,
        p99=2e-3,
        report=True,
    )
    rows = load(folder, columns=["engine", "setting", "completion_s", "drops"])
    assert {*product(["model", "emulation"], [0, 1])} == {*zip(rows.engine, rows.setting, strict=True)}
    assert (folder / "report.html").read_text().count("2 GPUs in one site") > 0
