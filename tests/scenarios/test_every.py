"""Conditions that change by time, also within a collective: the model, its lower bound, and measurements."""

import re
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from scenarios.engines.model import Batch, Model, rows_of
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import ScenarioError, resolved, scenario_of
from tests.fakes import commands
from tests.fakes.commands import times
from tests.fakes.runs import measured, measured_as_recorded
from tests.fakes.runs import rows as stored

scenario = partial(commands.scenario, 'run.modes=["base", "joint"]')
KINDS = [
    (),
    ("collective.kind=alltoall",),
    ("fabric.grain=physical",),
    ("collective.kind=allreduce", "collective.algorithm=double-tree", "conditions.wan_delay=1 ms"),
]


@pytest.mark.parametrize("values", KINDS)
def test_rate_changes_affect_only_collectives_that_outlast_the_first_interval(values: tuple[str, ...]) -> None:
    plain = times(scenario(*values, "collective.count=200").configurations(), Model())
    every_us = round(np.median(plain[0, "joint"]) * 1e6)
    timed = times(
        scenario(*values, "collective.count=200", f"conditions.every={every_us} us").configurations(), Model()
    )
    for key, found_s in plain.items():
        within = found_s <= every_us / 1e6
        assert (timed[key][within] == found_s[within]).all()
        assert within.any() or key == (0, "base")
        assert (timed[key][~within] != found_s[~within]).mean() > 0.9  # except for those without bytes left to send
        assert (timed[key][~within] > every_us / 1e6).all()  # nothing differs up to the first change


@pytest.mark.parametrize("values", KINDS)
def test_results_do_not_depend_on_batch_size_or_number_of_processes(values: tuple[str, ...]) -> None:
    asked = scenario(
        *values, "collective.count=40", "conditions.every=3 ms", "conditions.interval=7 ms"
    ).configurations()
    whole = times(asked, Model())
    parts = times(asked, Model(batch=7, jobs=2))
    assert all((whole[key] == parts[key]).all() for key in whole)


@pytest.mark.parametrize("values", KINDS)
def test_no_collective_is_faster_than_its_lower_bound_under_changing_rates(values: tuple[str, ...]) -> None:
    for every in ("1 ms", "5 ms", "20 ms"):
        asked = scenario(*values, "collective.count=150", f"conditions.every={every}")
        batch = Batch(0, asked, ("base", "joint"), 0, 150)
        found, plain = rows_of(batch), rows_of(Batch(0, scenario(*values), ("base", "joint"), 0, 150))
        for mode, rows in found.items():
            assert (rows.completion_s >= rows["bound_s"] * (1 - 1e-12)).all()
            same = plain[mode]["bound_s"] <= asked.conditions.every_s
            assert (rows["bound_s"][same] == plain[mode]["bound_s"][same]).all()
        assert (found["base"]["bound_s"] == found["joint"]["bound_s"]).all()


def test_a_ring_over_slow_wan_links_ends_once_their_rates_have_carried_its_bytes() -> None:
    """The slower of the two WAN links decides: the ring ends once its rates over time have carried 7 chunks."""
    slow = "conditions.links={wan = {rate = '1-2 Gbit/s', delay = '0 s'}}"
    asked = scenario(slow, "conditions.intra_delay=1 ns", "conditions.every=100 ms", "conditions.sampler=ar1")
    conditions = conditions_of(asked)
    decisions = decisions_of(asked, "base", conditions, start=0, count=20)
    found_s = Plan(asked, "base", decisions, conditions).completion_s()
    ((first, second),) = {tuple(sorted(set(row[row >= 0]))) for row in decisions.path}
    both = [conditions.fabric.paths[path].links[0] for path in (first, second)]
    assert conditions.timed is not None
    for number in range(20):
        least_s = []
        for link in both:
            bits = conditions.timed.rows_from_start(number, 40)[:, link] * 0.1
            passed = np.concatenate([[0], np.cumsum(bits)])
            least_s.append(np.interp(7 * 64e6, passed, 0.1 * np.arange(41)))
        # Before the first and after the last message over that link, messages pass faster links.
        assert max(least_s) <= found_s[number] <= max(least_s) + 7 * 64e6 / 20e9


def test_the_last_arrival_of_all_transfers_is_the_completion_time() -> None:
    asked = scenario("collective.kind=alltoall", "conditions.every=2 ms")
    conditions = conditions_of(asked)
    decisions = decisions_of(asked, "joint", conditions, start=3, count=20)
    found = Plan(asked, "joint", decisions, conditions, 3).times()
    completion_s = Plan(asked, "joint", decisions, conditions, 3).completion_s()
    assert (found.arrives_s.max(axis=0) == completion_s).all()
    assert (found.begins_s <= found.leaves_s).all() and (found.leaves_s <= found.arrives_s).all()


def test_rates_of_a_trace_change_within_collectives(tmp_path: Path) -> None:
    """All WAN links have 1 Gbit/s until 0.3 s, and then 4 Gbit/s: the slowest flow has sent 0.3 Gbit by then."""
    names = [link.name for link in conditions_of(scenario()).fabric.links if link.kind == "wan"]
    rows = "".join(f"0,{name},1 Gbit/s\n" for name in names) + "".join(f"0.3,{name},4 Gbit/s\n" for name in names)
    (tmp_path / "t.csv").write_text(f"time,link,rate\n{rows}")
    trace = "conditions.sampler=trace", f"conditions.trace={tmp_path / 't.csv'}", "conditions.trace_step=100 ms"
    asked = scenario(*trace, "conditions.every=100 ms", "collective.count=4", "conditions.intra_rate=200 Gbit/s")
    found = times(asked.configurations(), Model())[0, "base"]
    bits, bound = 7 * 64e6, 7 * 64e6 / 200e9 + 1e-3
    expected = [left + (bits - left * 1e9) / 4e9 for left in (0.3, 0.2, 0.1)] + [bits / 4e9]
    assert (found >= expected).all() and (found <= np.array(expected) + bound).all()
    with pytest.raises(ScenarioError, match="the trace covers 4"):
        scenario(*trace, "conditions.every=100 ms", "collective.count=5")


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        pytest.param("joint", ("conditions.sampler=ar1",), marks=pytest.mark.slow),
        ("base", ("fabric.grain=physical", "collective.kind=alltoall", "conditions.wan_delay=10 ms")),
    ],
)
def test_every_boot_is_the_same_to_the_nanosecond_and_as_the_model_says(
    tmp_path: Path, mode: str, values: tuple[str, ...]
) -> None:
    """The rates of all links change every 5 ms, by a factor of up to ten, about four times in a collective."""
    command = ("--engine", "both", "--modes", mode, "--collectives", "3")
    answer = measured_as_recorded(tmp_path / "run", *command, sets=("conditions.every=5 ms", *values))
    mean_s = {point["engine"]: point["mean_s"] for point in answer["points"]}
    assert mean_s["model"] == pytest.approx(mean_s["emulation"], rel=5e-3)
    # Without changes within collectives the mean time differs by far more than that.
    plain = times(scenario(*values, "collective.count=3").configurations(), Model())
    assert abs(plain[0, mode].mean() / mean_s["emulation"] - 1) > 0.02


def test_over_paths_of_unequal_delay_changing_rates_are_measured_as_predicted(tmp_path: Path) -> None:
    """A message waits at its slowest link before it is delayed at all. With a delay behind each WAN link it would pass
    the first link while that is fast, and arrive up to a fifth early."""
    changes = ("fabric.wan=five-router", "fabric.gpus=4", "conditions.wan_delay=1 ms", "conditions.every=2 ms")
    measured(
        tmp_path / "run", "--engine", "emulation", "--modes", "base", "--collectives", "3", sets=changes, collectives=3
    )


LIVE = 'policy=[{name = "live", reroute = "every 8 ms"}]', 'run.modes=["live"]', "fabric.gpus=4"
ONE = 'job=[{name = "one", ranks = [0, 2], kind = "broadcast", algorithm = "chain", size = "64 MB"}]'
SLOW = "conditions.wan_rate=1-10 Gbit/s", "conditions.intra_rate=200 Gbit/s"


@pytest.mark.parametrize("late_ms", [0, 0.5])
def test_a_message_takes_the_link_that_was_fastest_at_the_last_path_choice(late_ms: float) -> None:
    """Paths are chosen every 8 ms and rates change every 4 ms; the messages to the switches take `late_ms`. The
    expected time is integrated in small steps."""
    away = (f"control.delay={late_ms} ms",) if late_ms else ()
    asked = scenario(
        *LIVE, ONE, *SLOW, "conditions.every=4 ms", "conditions.interval=40 ms", "collective.count=9", *away
    )
    found_s = times(asked.configurations(), Model())[0, "live"]
    conditions, step_ms = conditions_of(asked), 0.1
    wan = [link.index for link in conditions.fabric.links if link.kind == "wan" and link.src.startswith("s0")]
    for number, one_s in enumerate(found_s):
        assert conditions.timed is not None
        rates_bps = conditions.timed.rows_from_start(number, 200)[:, wan]
        bits, steps = 64e6 * 8, 0
        while bits > 0:
            middle_ms = (steps + 0.5) * step_ms
            chosen = rates_bps[2 * int(max(middle_ms - late_ms, 0) // 8)].argmax()
            rate_bps = rates_bps[int(middle_ms // 4), chosen]
            bits, steps = bits - rate_bps * step_ms / 1e3, steps + 1
        assert one_s == pytest.approx(steps * step_ms / 1e3 + bits / rate_bps + 10e-6 + 2 * 700e-9, rel=1e-9)


def test_choices_of_paths_within_collectives_are_counted_and_told(tmp_path: Path) -> None:
    """Every 8 ms the link is chosen that is fastest then. Model and testbed have the same counts for each collective;
    the table, --json, and the report have the sum over all."""
    sets = (*LIVE, ONE, *SLOW, "conditions.every=4 ms", "conditions.interval=40 ms", "collective.count=3")
    found = measured(tmp_path / "run", sets=sets, collectives=3, report=True)
    conditions = conditions_of(scenario(*sets))
    wan = [link.index for link in conditions.fabric.links if link.kind == "wan" and link.src.startswith("s0")]
    rows = stored(tmp_path / "run")
    assert conditions.timed is not None and {*rows.engine} == {"model", "emulation"}
    for _, row in rows.iterrows():
        chosen = conditions.timed.rows_from_start(row.collective, 200)[::2, wan].argmax(axis=1)
        times = int(row.completion_s // 8e-3)
        expected = times, int((np.diff(chosen[: times + 1]) != 0).sum())
        assert (row.rerouted_within, row.moved_within) == expected and times > 5
    for point in found["points"]:
        sums = rows[rows.engine == point["engine"]][["rerouted_within", "moved_within"]].sum()
        told = point["rerouted_within"], point["path_changes_within"]
        assert told == (sums.rerouted_within, sums.moved_within) and told[0] > told[1] > 0
        page = (tmp_path / "run/report.html").read_text()
        assert f"within collectives {told[0]} times, paths {told[1]} times" in page


def test_flows_move_to_new_paths_when_the_switches_of_their_senders_site_hear_of_them() -> None:
    """Site 0 is 7 ms from the controller and site 1 is 1 ms from it."""
    often = 'policy=[{name = "live", reroute = "every 20 ms"}]', "conditions.every=20 ms", "collective.count=1"
    asked = scenario(*LIVE[1:], *often, "collective.kind=alltoall", *SLOW, 'control.delay=["7 ms", "1 ms"]')
    conditions = conditions_of(asked)
    plan = Plan(asked, "live", decisions_of(asked, "live", conditions, start=0, count=1), conditions)
    moves, (begin,) = list(islice(plan._path_changes(conditions.timed), 4)), plan.links()
    assert [at_s for at_s, _ in moves] == pytest.approx([0.021, 0.027, 0.041, 0.047])
    near = np.array([src < 2 for src in asked.workload.schedule.ends[0]])
    first, second, third, last = (change().links[0] for _, change in moves)
    assert (first[near] == begin[near]).all() and (first[~near] == second[~near]).all()
    assert (third[near] == second[near]).all() and (third[~near] == last[~near]).all()
    for before, after in ((begin, second), (second, last)):
        assert (before != after)[near].any() and (before != after)[~near].any()


@pytest.mark.parametrize(
    ("every", "values", "says"),
    [
        ("4 ms", (), '"every 4 ms" is given as a time; allowed: only with conditions.every'),
        ("5 ms", ("conditions.every=2 ms",), "not a multiple of conditions.every; allowed: every 2 ms, twice that"),
        ("1 ms", ("conditions.every=2 ms",), "not a multiple of conditions.every"),
        (
            "4 ms",
            ("conditions.every=2 ms", "control.delay=1 ms"),
            "needs a shorter round trip to the switches than 2 ms; allowed: less",
        ),
        (
            "20 ms",
            ("conditions.every=20 ms", 'control.delay=["1 ms", "3 ms"]'),
            "makes switches change less than 5 ms apart; allowed: 5 ms apart, or at once",
        ),
        ("soon", (), 'every soon" has no such time: "soon" is not a delay'),
        ("0 s", (), 'every 0 s" has no such time'),
        ("-4 ms", (), 'every -4 ms" has no such'),
    ],
)
def test_invalid_intervals_between_path_choices_are_refused(every: str, values: tuple[str, ...], says: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(says)):
        scenario(f'policy=[{{name = "live", reroute = "every {every}"}}]', *values)


def test_timed_reembedding_and_timed_rerouting_by_collective_knowledge_are_refused() -> None:
    with pytest.raises(ScenarioError, match='reembed: "every 4 ms" has no such number'):
        scenario('policy=[{name = "live", reembed = "every 4 ms"}]', "conditions.every=2 ms")
    for knowledge in ("mean", "stale 1", "ewma 0.5", "measured ends", "probed"):
        policy = f'policy=[{{name = "live", reroute = "every 4 ms", knowledge = "{knowledge}"}}]'
        with pytest.raises(ScenarioError, match='combined with reroute "every 4 ms"; allowed: oracle, stale TIME'):
            scenario(policy, "conditions.every=2 ms")
    late = scenario(
        'policy=[{name = "live", reroute = "every 6 ms", knowledge = "stale 2 ms"}]', "conditions.every=2 ms"
    )
    assert scenario_of(resolved(late)) == late


@pytest.mark.parametrize(
    "values",
    [
        ("fabric.grain=physical", "fabric.wan=five-router", "conditions.wan_delay=1 ms"),
        pytest.param(("control.delay=1 ms", "conditions.wan_delay=1 ms"), marks=pytest.mark.slow),
    ],
)
def test_a_training_step_that_is_rerouted_while_it_runs_is_measured_as_predicted(
    tmp_path: Path, values: tuple[str, ...]
) -> None:
    """Paths are chosen every 5 ms, as all rates change by a factor of up to ten, also in collectives that begin with
    other paths."""
    step = "training.micro_batches=4", "training.forward=2 ms", "training.backward=4 ms", "training.activations=16 MB"
    live = LIVE[0].replace("8 ms", "5 ms"), *LIVE[1:], "conditions.every=5 ms", "collective.kind=training"
    command = ("--engine", "emulation", "--collectives", "2")
    measured(tmp_path / "run", *command, sets=(*live, *step, *values), p99=0.005, median=0.002, collectives=2)
    emulation = stored(tmp_path / "run")
    assert (emulation.reconfigure_messages > 5).all()
    # With paths chosen only before each collective it takes longer, by far more than that.
    kept = times(scenario(*live, *step, *values, "collective.count=2", "run.modes=['wan']").configurations(), Model())
    assert (kept[0, "wan"] / emulation.completion_s.to_numpy()).max() > 1.05
