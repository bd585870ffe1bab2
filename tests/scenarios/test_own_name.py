"""A run is called by the paper's names only if it reproduces the paper; the user's own experiment is not."""

import pytest

from scenarios.spec.load import assignment, axis, load_scenario


def name_of(scenario: str, *options: str) -> str:
    return load_scenario(
        scenario, [axis(one.removeprefix("sweep.")) if one.startswith("sweep.") else assignment(one) for one in options]
    ).name


@pytest.mark.parametrize(
    "options",
    [
        [],
        *(["collective.count=5"], ["run.seed=7"], ["collective.emulated=3"], ["run.clock=wall"], ["fabric.spines=4"]),
        *(['run.modes=["base"]'], ['run.modes=["wan", "base"]'], ["fabric.gpus=16"], ["collective.chunk=64 MB"]),
        ["sweep.collective.chunk=8 MB,64 MB", "sweep.conditions.wan_delay=10 us,10 ms"],
    ],
)
def test_what_reproduces_the_paper_keeps_its_name(options):
    assert name_of("paper", *options) == "paper"


@pytest.mark.parametrize(
    "options",
    [
        *(
            ["fabric.routing=ecmp"],
            ["conditions.sampler=markov"],
            ["collective.kind=allreduce"],
            ["fabric.gpus=[3, 5]"],
        ),
        *(["fabric.grain=physical"], ["control.knowledge=stale 1"]),
        *(["sweep.collective.chunk=1 MB,8 MB"], ["sweep.conditions.wan_rate=10 Gbit/s,40 Gbit/s"]),
        ['policy=[{name = "mine", reroute = "every 2"}]', 'run.modes=["base", "mine"]'],
        ['fault=[{at = "collective 2", what = "link s0b0-s1b0 down"}]'],
        ['job=[{name = "a", ranks = [0, 4]}, {name = "b", ranks = [1, 5]}]'],
    ],
)
def test_what_options_have_changed_is_not_called_by_the_papers_names(options):
    for scenario in ("paper", "fig4a") if not options[0].startswith("sweep.collective.chunk") else ("paper",):
        assert name_of(scenario, *options) == "run"


def test_a_name_that_the_user_gives_is_kept(tmp_path):
    assert name_of("paper", "fabric.routing=ecmp", "name=mine") == "mine"
    file = tmp_path / "paper.toml"
    file.write_text('[fabric]\nrouting = "ecmp"\n')
    assert name_of(str(file), "collective.count=5") == "paper"  # a file of the user's own
    assert name_of("tenants", "conditions.wan_delay=1 ms") == "tenants"  # which reproduces nothing
