"""The sentence on algorithms that the physical grain may slow down: several messages at a time at one GPU."""

import pytest

from analysis.report import __main__ as report
from analysis.statistics.grain_notes import most_at_a_time
from scenarios.spec.load import scenario_of
from tests.fakes.commands import run
from tests.fakes.stored import write_run


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [
        ("ring", 1),  # to one neighbour
        ("direct", 3),  # to each of the three others of its site
        ("hierarchical-direct", 3),
        ("hierarchical", 1),  # a ring within each site
        ("halving-doubling", 1),  # to one partner in each step
    ],
)
def test_the_most_messages_of_a_gpu_at_a_time_follow_from_the_algorithm(algorithm, most):
    text = f'[collective]\nkind = "allreduce"\nalgorithm = "{algorithm}"\n'
    (config,) = scenario_of(text).configurations()
    schedule = config.workload.schedule
    transfers = [(one.flow, one.after) for one in schedule.transfers]
    assert most_at_a_time([*zip(*schedule.ends, strict=True)], transfers, config.fabric.gpus_per_site) == most


def test_messages_from_several_gpus_to_one_count_as_do_those_over_the_wan_not():
    star = [(0, 2), (1, 2), (2, 0), (0, 3), (1, 3)]
    assert most_at_a_time(star, [(0, ()), (1, ()), (2, (0, 1)), (2, (0, 1))], [3, 1]) == 2
    assert most_at_a_time(star, [(0, ()), (1, (0,))], [3, 1]) == 1  # after each other
    assert most_at_a_time(star, [(3, ()), (4, ())], [3, 1]) == 0


@pytest.mark.parametrize(
    ("algorithms", "grain", "told"),
    [
        (["ring", "hierarchical-direct"], "logical", True),
        (["ring", "hierarchical-direct"], "physical", False),
        (["ring", "hierarchical"], "logical", False),
    ],
)
def test_the_answer_and_the_report_tell_if_the_fastest_shares_ports_on_the_physical_grain(
    tmp_path, monkeypatch, capsys, algorithms, grain, told
):
    overrides = {
        "collective.kind": "allreduce",
        "sweep.collective.algorithm": algorithms,
        "fabric.grain": grain,
        "conditions.wan_rate": "100 Gbit/s",
        "run.modes": ["base"],
    }
    page = report.write(write_run(tmp_path / "run", overrides=overrides, modelled=20, engines=("model",))).read_text()
    monkeypatch.chdir(tmp_path)
    options = ["--sweep", f"collective.algorithm={','.join(algorithms)}", "--set", "conditions.wan_rate=100 Gbit/s"]
    options += ["--set", "collective.kind=allreduce", "--set", f"fabric.grain={grain}", "--modes", "base"]
    run("--engine", "model", "--collectives", 20, *options, "--no-report", "--out", "out")
    out = capsys.readouterr().out
    words = "In hierarchical-direct there are up to 3 messages at a time at a GPU within its site"
    assert (words in page) is told and (words in out) is told and ("fabric.grain=physical they share" in out) is told
