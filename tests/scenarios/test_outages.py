"""A trace in which links have no rate: the collectives avoid them, wait for them, or the run says why it ends."""

import pytest

from analysis.results import load, open_run
from scenarios.engines.base import Failed, Slice
from scenarios.engines.model import Model
from scenarios.spec.load import Override, load_scenario
from tests.fakes.runs import answer, ended, measured
from topologies.fabric.fabric import FabricSpec, build_fabric

SCENARIO = """
[fabric]
gpus = [2, 2]
border_routers = [2, 1]
[conditions]
sampler = "trace"
trace = "trace.csv"
intra_rate = "100 Gbit/s"
wan_delay = "10 ms"
[collective]
chunk = "8 MB"
count = 6
emulated = 6
[run]
modes = ["base", "wan"]
"""
TRACE = """Time,Link,Rate
2026-01-31T12:00:00Z,s0b0>s1b0,8e9
2026-01-31T12:00:00Z,s1b0>s0b0,8e9
2026-01-31T12:00:00Z,s0b1>s1b0,4000000000.25
2026-01-31T12:00:00Z,s1b0>s0b1,4e9
2026-01-31T12:00:01Z,s0b0>s1b0,0
2026-01-31T12:00:03Z,s0b0>s1b0,8e9
2026-01-31T12:00:04Z,s0b0>s1b0,0
2026-01-31T12:00:04Z,s1b0>s0b1,0 bit/s
2026-01-31T12:00:05Z,s0b0>s1b0,8e9
2026-01-31T12:00:05Z,s1b0>s0b1,4e9
2026-01-31T12:00:09Z,s1b0>s0b1,4e9
"""
CUT = TRACE.replace("12:00:05Z", "12:00:09Z").rpartition("2026-01-31T12:00:09Z")[0]
"""As above, but from collective 4 on both links are down."""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "outages.toml").write_text(SCENARIO)
    (tmp_path / "trace.csv").write_text(TRACE)
    return tmp_path / "outages.toml"


def slowest_bps(number):
    """A WAN link's rate in a collective: in 1 and 2 the link between the first border routers is down, in 4 both are,
    until the collective has been begun again."""
    return 4e9 if number in (1, 2) else 8e9


def test_an_outage_in_a_trace_takes_the_link_down_in_both_engines(scenario):
    """The closed form of the ring 0, 1, 2, 3: GPU 1 sends its own chunk and that of GPU 0 one after the other, and that
    of GPU 3 once it has come over the WAN and from GPU 0."""
    out = scenario.parent / "out"
    said = ended("--dry-run", scenario, cwd=scenario.parent)[1]
    when = "at 1 s (2026-01-31 12:00:01 UTC) of the trace"
    assert f"3 outages: s0b0-s1b0 from collective 1, {when}, for 2, s0b0-s1b0 from" in said
    assert "rates were rounded to whole bit/s" in said
    measured(out, scenario)
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=(2, 1)))
    for row in load(out).itertuples():
        over_wan_s, inside_s, delay_s = 8e6 * 8 / slowest_bps(row.collective), 8e6 * 8 / 100e9, 10e-3
        expected_s = max(2 * over_wan_s, over_wan_s + delay_s + inside_s) + over_wan_s + delay_s
        assert row.completion_s == pytest.approx(expected_s, rel=1e-3), row
        used = "s0b1" if row.collective in (1, 2) else "s0b0"
        names = [fabric.paths[path].name for path in row.paths if path >= 0]
        assert len(names) == 2 and all(used in name for name in names), row
    struck = open_run(out).faults
    assert set(struck[struck.engine == "emulation"].what) == {"link s0b0-s1b0 down", "link s0b1-s1b0 down"}


def test_an_outage_that_nothing_avoids_and_that_lasts_ends_the_run_in_a_sentence(scenario):
    (scenario.parent / "trace.csv").write_text(CUT)
    wanted = ("--engine", "model", "--no-report", "--modes", "base,ccl", "--out", "out", scenario)
    told, said = ended(*wanted, cwd=scenario.parent, status=1)
    lines = said.splitlines()
    assert "run.py: in collective 4 no path joins all GPUs, also after it has been begun 4 times: a mode whose" in said
    (why,) = [line for line in lines if line.startswith("run.py: failed: ")]
    when = "at 4 s (2026-01-31 12:00:04 UTC) of the trace"
    assert f"base and ccl, collective 4, {when}: no path leads over the WAN from rank" in why
    assert "with link s0b0-s1b0 down from collective 4 for 5 collectives and link s0b1-s1b0 down from" in why
    assert lines[-1] == "run.py: the results so far are kept in out; --resume would fail in the same way"
    assert "base and ccl compared over 4 AllGathers each" in told and "failed after 8 of 12 collectives" in told
    kept = load(scenario.parent / "out")
    assert kept.groupby("mode")["collective"].apply(list).to_dict() == {"base": [0, 1, 2, 3], "ccl": [0, 1, 2, 3]}


def test_how_far_a_mode_without_a_path_comes_does_not_depend_on_the_batches(scenario, monkeypatch):
    """As in the testbed nothing follows the collective in which it ends, whether batches are long or short."""
    (scenario.parent / "trace.csv").write_text(CUT)
    monkeypatch.chdir(scenario.parent)
    (config,) = load_scenario(str(scenario)).configurations()
    for batch in (1, 2, 6):
        events = [*Model(batch=batch).run([config])]
        rows = [number for one in events if isinstance(one, Slice) and one.mode == "base" for number in
                range(one.rows.start, one.rows.start + len(one.rows))]  # fmt: skip
        assert rows == [0, 1, 2, 3]
        assert [one.mode for one in events if isinstance(one, Failed)] == ["base", "wan"]


def test_each_mode_without_a_path_has_its_own_reason_beside_others():
    """Three links join three sites, and one fails. No ring is left; `base`, which chooses none, lacks a path."""
    fault = {"at": "collective 2", "what": "link s0b0-s1b0 down"}
    sets = {"fabric.gpus": [2, 2, 2], "fabric.border_routers": 1, "run.modes": ["base", "ccl"], "fault": [fault]}
    sets |= {"collective.count": 6, "collective.reembed_every": 1}
    scenario = load_scenario("paper", [Override(key, value, key) for key, value in sets.items()])
    failed = {one.mode: one.why for one in Model().run([*scenario.configurations()]) if isinstance(one, Failed)}
    assert "base, collective 2: no path leads over the WAN from rank " in failed["base"]
    assert "ccl, collective 2: no ring leads over the WAN that visits every site once with link s0" in failed["ccl"]


@pytest.mark.parametrize(
    ("link", "more", "says"),
    [
        ("g0>g1", (), "the rate of g0>g1 is 0; allowed: above 0, or 0 for links such as s0b0>s1b0"),
        ("s0b0>s1b0", ("conditions.every=1 ms",), "the rate of s0b0>s1b0 is 0; allowed: above 0"),
        ("s0b0>s1b0", ("run.referees=['policy']",), "cannot be combined with outages in the trace"),
    ],
)
def test_an_outage_where_none_is_possible_is_refused(scenario, link, more, says):
    within = "".join(f"2026-01-31T12:00:01Z,{link},0\n" if line.startswith("2026-01-31T12:00:01Z") else line for line in
                     TRACE.splitlines(keepends=True))  # fmt: skip
    (scenario.parent / "trace.csv").write_text(within)
    sets = [word for one in more for word in ("--set", one)]
    _, said = ended("--engine", "model", *sets, scenario, cwd=scenario.parent, status=2)
    assert says in said


def test_the_model_alone_predicts_outages_too(scenario):
    found = answer(scenario.parent / "out", scenario, "--engine", "model")
    assert found["points"][0]["collectives"] == 6
