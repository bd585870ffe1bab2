"""Faults: their declaration in a scenario, their effect on conditions and predictions, and their outcomes in the VM."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figures.collective_detail import collectives_of
from analysis.figures.run_points import configurations_of, points_of
from analysis.results.reader import open_run
from scenarios.engines.base import Slice
from scenarios.engines.emulation import Watchdog
from scenarios.engines.model import Model
from scenarios.engines.prediction import PointPredictor, plan_of
from scenarios.experiment import command
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError, faults
from scenarios.spec.faults import Fault
from scenarios.spec.load import Override, load_scenario
from tests.conftest import PROJECT
from tests.fakes.packets import HEADERS, pcap_lengths
from tests.fakes.runs import answer, ended
from topologies.fabric.fabric import FabricSpec, build_fabric

FABRIC = build_fabric(FabricSpec())
DOWN = {"at": "collective 2", "what": "link s0b0-s1b0 down", "for": "3 collectives"}


def load(*tables: dict[str, object]) -> tuple[Fault, ...]:
    return load_scenario("paper", [Override("fault", list(tables), "fault")]).faults


# --- declaration ----------------------------------------------------------------------------------------------------

kinds = st.sampled_from(
    ["link s0b0-s1b0 down", "link g3-s0l1 loss 0.5 %", "switch s0p1 down", "controller killed", "agent 7 slow 2.5x"]
)


@given(st.integers(0, 19), st.none() | st.integers(1, 10**9), kinds, st.none() | st.integers(1, 50))
def test_a_declared_fault_survives_reading_and_writing(
    number: int, after_ns: int | None, what: str, lasts: int | None
) -> None:
    at = f"collective {number}" if after_ns is None else f"{after_ns} ns into collective {number}"
    table = {"at": at, "what": what} | ({} if lasts is None else {"for": f"{lasts} collectives"})
    (fault,) = load(table)
    assert (fault.collective, fault.lasts) == (number, lasts)
    assert (fault.after_s is None) == (after_ns is None)
    assert fault.after_s is None or round(fault.after_s * 1e9) == after_ns
    assert load(dict(fault.written())) == (fault,)


@given(st.integers(0, 19), st.none() | st.integers(1, 10**9), st.integers(1, 10**12))
def test_a_fault_at_a_collective_may_last_for_a_time(number: int, after_ns: int | None, lasts_ns: int) -> None:
    at = f"collective {number}" if after_ns is None else f"{after_ns} ns into collective {number}"
    (fault,) = load({"at": at, "what": "link s0b0-s1b0 down", "for": f"{lasts_ns} ns"})
    assert (fault.lasts, fault.lasts_ns, fault.is_throughout) == (None, lasts_ns, False)
    assert load(dict(fault.written())) == (fault,) and " for " in fault.words


@given(st.integers(0, 10**12), kinds, st.none() | st.integers(1, 10**12))
def test_a_fault_of_a_program_survives_reading_and_writing(at_ns: int, what: str, lasts_ns: int | None) -> None:
    table = {"at": f"{at_ns} ns", "what": what} | ({} if lasts_ns is None else {"for": f"{lasts_ns} ns"})
    (fault,) = faults.read([table])
    assert fault.begins_ns == at_ns
    assert fault.ends_ns == (None if lasts_ns is None else at_ns + lasts_ns)
    assert faults.read([fault.written()]) == (fault,)
    during = [at_ns] if lasts_ns is None else [at_ns, at_ns + lasts_ns - 1]
    assert all(faults.active_at([fault], instant) for instant in during)
    assert not faults.active_at([fault], at_ns - 1)
    assert lasts_ns is None or not faults.active_at([fault], at_ns + lasts_ns)


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"at": "tomorrow"}, "at", '"tomorrow" is not understood; allowed: "collective 12"'),
        ({"at": "every 20 ms"}, "at", '"every 20 ms" repeats, and a [[fault]] happens once; allowed: a [[fault]] for'),
        ({"at": "collective 5, repeated"}, "at", "a trace with rates of 0 and conditions.trace_repeat = true"),
        ({"for": "1 ms every 20 ms"}, "for", "a [[fault]] happens once"),
        ({"every": "20 ms"}, "every", "a [[fault]] happens once; allowed: a [[fault]] for each time, or for links"),
        ({"evry": "20 ms"}, "evry", "unknown key of a fault, allowed: at, what, for"),
        ({"at": "collective 100000"}, "at", "collective 100,000 is not run; allowed: 0 to 99,999"),
        ({"what": "link s0b0-s1b0 sideways"}, "what", "is not understood"),
        ({"what": "link s0b0-s1b0 fails"}, "what", '"agent R slow 10x" (did you mean link s0b0-s1b0 down?)'),
        ({"what": "link s0b0>s1b0 down"}, "what", "(did you mean link s0b0-s1b0 down?)"),
        ({"what": "Link s0b0:s1b0 lost 5 %"}, "what", "(did you mean link s0b0-s1b0 loss 1 %?)"),
        ({"what": "agent 3 kill"}, "what", "(did you mean agent 3 killed?)"),
        ({"what": "controller killd"}, "what", "(did you mean controller killed?)"),
        ({"what": "link s0b9-s1b0 down"}, "what", "s0b9-s1b0 is not a link; allowed: a cable of the fabric (did you"),
        ({"what": "switch s0p9 down"}, "what", "s0p9 is not a switch; allowed: s0l0, s0l1, s0p0"),
        ({"what": "link s0b0-s1b7 down"}, "what", "is not a link; allowed: a cable of the fabric (did you mean"),
        ({"what": "switch s9b9 down"}, "what", "s9b9 is not a switch; allowed: s0l0"),
        ({"what": "agent 8 slow 2x"}, "what", "there is no agent 8; allowed: 0 to 7"),
        ({"what": "link s0b0-s1b0 loss 101 %"}, "what", "101 % cannot be lost"),
        ({"for": "0 collectives"}, "for", "0 collectives are not allowed"),
        ({"since": 1}, "since", "unknown key of a fault"),
        ({"at": "20 ms"}, "for", '"3 collectives" does not fit a fault at a time; allowed: a time, such as "30 ms"'),
        (
            {"what": "controller killed", "for": "30 ms"},
            "for",
            '"30 ms" is a time, and a controller that was killed is started again between collectives; ',
        ),
        (
            {"at": "20 ms", "for": "5 ms"},
            "at",
            '"20 ms" is a time of a program, and none runs; allowed: "collective 12", "20 ms into',
        ),
    ],
)
def test_an_invalid_fault_is_refused_with_its_file_and_key(
    tmp_path: Path, change: dict[str, object], place: str, words: str
) -> None:
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (DOWN | change).items())
    good = ", ".join(f"{key} = {json.dumps(value)}" for key, value in DOWN.items())
    path = tmp_path / "mine.toml"
    path.write_text(f"fault = [{{ {good} }}, {{ {table} }}]\n")
    with pytest.raises(ScenarioError) as refusal:
        load_scenario(str(path))
    assert len(refusal.value.mistakes) == 1
    assert refusal.value.mistakes[0].startswith(f"{path}: fault[2].{place}: ") and words in refusal.value.mistakes[0]


# --- in the model ---------------------------------------------------------------------------------------------------


def test_a_fault_is_active_from_its_collective_on_for_its_duration() -> None:
    before, within = (
        Fault(collective=4, kind="link down", target="s0b0-s1b0", lasts=2),
        Fault(collective=4, after_s=1e-3, kind="link down", target="s0b0-s1b0", lasts=2),
    )
    stays = Fault(collective=4, kind="link down", target="s0b0-s1b0")
    assert [k for k in range(9) if faults.active([before], k)] == [4, 5]
    assert [k for k in range(9) if faults.active([within], k)] == [5]
    assert [k for k in range(9) if faults.active([stays], k)] == [4, 5, 6, 7, 8]


def test_links_of_a_failed_switch_have_rate_zero_and_those_of_a_slow_agent_a_fraction() -> None:
    rates = np.full(len(FABRIC.links), 1e9)
    down, slow = load(
        {"at": "collective 1", "what": "switch s0b1 down"}, {"at": "collective 1", "what": "agent 2 slow 4x"}
    )
    found = faults.planned_rates_bps(rates, [down, slow], FABRIC)
    for link in FABRIC.links:
        wanted = 0.0 if "s0b1" in (link.src, link.dst) else 0.25e9 if link.src == "g2" else 1e9
        assert found[link.index] == wanted
    assert (rates == 1e9).all()


def test_the_expected_time_of_a_collective_uses_the_faults_recorded_with_it() -> None:
    """The testbed records the faults that were active; they differ from the planned ones if collectives were lost."""
    setting, plain = load_scenario("paper", [Override("fault", [DOWN], "fault")]), load_scenario("paper")
    link = next(link.index for link in FABRIC.links if link.name == "s0b0>s1b0")
    planned = conditions_of(setting)
    assert [k for k in range(10) if planned.rates_bps(k, 1)[0, link] == 0] == [2, 3, 4]
    expected, healthy = PointPredictor(setting, "base"), PointPredictor(plain, "base")
    for k in range(8):
        faults = [0] if k in (3, 4, 5) else []
        found, usual = expected.of(k, faults), healthy.of(k)
        used = {link for index in found.path if index >= 0 for link in FABRIC.paths[index].links}
        assert (found.predicted_s == usual.predicted_s and (found.path == usual.path).all()) == (not faults)
        assert link not in used or not faults


@pytest.mark.parametrize("mode", ["base", "joint"])
def test_the_model_engine_avoids_a_failed_link_whatever_its_batch_size(mode: str) -> None:
    given = {"fault": [DOWN], "run.modes": [mode], "collective.count": 20}
    chosen = [Override(key, value, "test") for key, value in given.items()]
    link = {link.index for link in FABRIC.links if {link.src, link.dst} == {"s0b0", "s1b0"}}

    def rows(overrides: list[Override], batch: int) -> list[tuple[float, list[int]]]:
        """Return the completion time and the paths of each collective."""
        news = [part for part in Model(batch=batch).run([load_scenario("paper", overrides)]) if isinstance(part, Slice)]
        parts = sorted((part.rows for part in news), key=lambda part: part.start)
        return [row for part in parts for row in zip(part.completion_s.tolist(), part["paths"].tolist(), strict=True)]

    whole = rows(chosen, 20)
    used = [
        k for k, (_, paths) in enumerate(whole) if link & {m for p in paths if p >= 0 for m in FABRIC.paths[p].links}
    ]
    assert not {2, 3, 4} & set(used) and used
    assert whole == rows(chosen, 1)
    if mode == "base":
        healthy = rows(chosen[1:], 20)
        assert [k for k in range(20) if whole[k][0] != healthy[k][0]] == [2, 3, 4]


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ({"what": "agent 3 killed"}, 2, "fault[1].what: agent 3 killed has no effect in the model; allowed"),
        ({"at": "1 ms into collective 2"}, 2, "fault[1].at: 1 ms into collective 2 is within a collective, which"),
        ({"what": "switch s0l0 down"}, 1, "collective 2: no path leads over the WAN from rank"),
        ({"what": "switch s0l0 down", "for": "4 collectives"}, 1, "no path leads over the WAN from rank"),
    ],
)
def test_a_fault_that_the_model_lacks_or_that_leaves_no_path_is_refused_with_the_reason(
    fault: dict[str, str], status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"at": "collective 2", "what": "link s0b0-s1b0 down"} | fault
    tables = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    asked = ["--collectives", "4", "--modes", "base", "--set", f"fault=[{{{tables}}}]", "--out", str(tmp_path / "run")]
    assert command.run(["--engine", "model", *asked]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("lasts", [1, 2, 3])
def test_attempts_during_a_leaf_failure_lose_no_collective_and_use_up_other_faults(lasts: int) -> None:
    """As in the testbed, the collective fails once for each `lasts`, and every attempt counts towards the duration of
    all faults."""

    def rows(*tables: dict[str, str]) -> list[float]:
        overrides = [Override("fault", list(tables), "fault"), Override("run.modes", ["base"], "modes")]
        overrides.append(Override("collective.count", 12, "count"))
        news = [part for part in Model().run([load_scenario("paper", overrides)]) if isinstance(part, Slice)]
        return [float(time_s) for part in news for time_s in part.rows.completion_s]

    leaf = {"at": "collective 2", "what": "switch s0l0 down", "for": f"{lasts} collectives"}
    link = {"at": "collective 2", "what": "link s0b0-s1b0 down", "for": "5 collectives"}
    assert rows(leaf) == rows()
    assert rows(leaf, link) == rows(link | {"for": f"{5 - lasts} collectives"}) != rows()


# --- the watchdog ---------------------------------------------------------------------------------------------------


def test_the_watchdog_stops_a_silent_testbed_and_names_the_step_it_was_in() -> None:
    stopped = list[float]()
    with Watchdog(1.0, waits_for="the start") as watchdog:
        watchdog.guard(lambda: stopped.append(time.monotonic()))
        for _ in range(4):
            time.sleep(0.4)
            watchdog.renew("collective 3: the AllGather")
        assert not stopped
        spoke = time.monotonic()
        while not stopped and time.monotonic() < spoke + 20:
            time.sleep(0.01)
    assert stopped and stopped[0] - spoke >= 0.9
    assert watchdog.stuck == "collective 3: the AllGather"
    assert watchdog.sentence().endswith("while Longhaul waited for collective 3: the AllGather")


WATCHED = """
from scenarios.engines.emulation import Watchdog
with Watchdog(2.0, waits_for="the start") as watchdog:
    watchdog.guard(lambda: None)
    input(print("ready", flush=True) or "")
print(watchdog.stuck)
"""


def test_the_watchdog_does_not_count_the_time_for_which_a_user_has_stopped_the_run() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WATCHED]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=PROJECT) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        assert process.communicate("\n", timeout=60)[0] == "None\n"


def test_a_testbed_in_an_endless_loop_is_stopped_by_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from scenarios import vm
    from scenarios.engines import emulation
    from scenarios.engines.emulation import EmulationError, Task, run_point
    from scenarios.testbed import launch

    def spin(_arguments: object, *, stdout: vm.Sink, on_start: object, **_: object) -> int:
        code = "from scenarios.testbed.__main__ import tell\ntell('collective 0: the ring')\nwhile True: pass"
        command = [sys.executable, "-c", code]
        return vm.run(command, directory=PROJECT, stdout=stdout, on_start=on_start)  # type: ignore[arg-type]

    monkeypatch.setattr(launch, "testbed", spin)
    monkeypatch.setattr(emulation, "patience_s", lambda _setting: 12.0)
    with pytest.raises(EmulationError, match=r"the VM printed nothing for 12 s while .* collective 0: the ring"):
        run_point(Task(0, load_scenario("paper"), "base"), lambda _: None)


# --- in the VM ------------------------------------------------------------------------------------------------------

SCENARIO = """
name = "struck"
[collective]
count = 12
chunk = "1 MB"
[run]
modes = ["base", "joint"]
[[fault]]
at = "300 us into collective 2"
what = "switch s0b0 down"
for = "2 collectives"
[[fault]]
at = "200 us into collective 5"
what = "agent 3 killed"
[[fault]]
at = "1 s into collective 6"
what = "agent 2 killed"
[[fault]]
at = "collective 7"
what = "controller killed"
[[fault]]
at = "collective 9"
what = "agent 1 slow 10x"
for = "1 collective"
[[fault]]
at = "100 us into collective 10"
what = "switch s0l1 down"
for = "1 collective"
"""


def test_a_run_with_six_faults_completes_and_every_fault_has_an_outcome(tmp_path: Path) -> None:
    (tmp_path / "struck.toml").write_text(SCENARIO)
    told = answer(tmp_path / "out", "struck.toml", "--engine", "emulation", report=True)
    fidelity, found = told["fidelity"], open_run(tmp_path / "out")
    rows, struck = found.collectives, found.faults
    assert len(rows) == 24 and len(struck) == 12
    assert set(struck.outcome) == {"recovered", "masked"}
    by_what = dict(iter(struck.groupby("what")))
    assert set(by_what["agent 1 slow 10x"].outcome) == {"masked"}
    for what in ("switch s0b0 down", "agent 3 killed", "controller killed", "switch s0l1 down"):
        part = by_what[what]
        assert set(part.outcome) == {"recovered"}
        assert (part.detected_s <= part.recovered_s).all() and (part.recovered_s < 100).all()
    assert (by_what["switch s0b0 down"].collectives_lost == 0).all()  # the same collective was routed around the switch
    assert (by_what["switch s0b0 down"].recovered_s < 0.2).all()
    assert (by_what["controller killed"].recovered_s < 2).all()  # switches try to reconnect after a second
    assert (by_what["agent 3 killed"].collectives_lost == 1).all()
    assert set(by_what["agent 2 killed"].outcome) == {"recovered"}  # it struck after the end of the collective
    assert (by_what["agent 2 killed"].collectives_lost == 0).all()
    assert (by_what["agent 3 killed"].bytes_again > 1e6).all()
    assert (by_what["switch s0l1 down"].collectives_lost >= 1).all()  # there is no way around a leaf
    # Collectives during which no fault struck take the predicted time, also while something is down or slow.
    whole = rows[rows.undisturbed]
    assert fidelity["collectives"] == len(whole) >= 16
    assert abs(fidelity["median_ratio"] - 1) < 0.001 and fidelity["p99_abs_error"] < 0.01
    # Lost packets are drops of the collective that the fault struck, and TCP has sent them again.
    assert (whole.drops == 0).all()
    of_switch = by_what["switch s0b0 down"].set_index("mode")
    for mode, drops in rows[rows.collective == 2].set_index("mode").drops.items():
        used = bool(of_switch.bytes_again[mode])
        assert (drops > 0) == used and (drops - 1) * 8948 <= of_switch.bytes_again[mode] + 8948
    # The cost of a fault is the time lost, not the time until traffic was on other paths.
    without = plan_of(load_scenario(str(tmp_path / "struck.toml")), "base").completion_s()
    times_s = rows[rows["mode"] == "base"].set_index("collective").completion_s
    lost_s = sum(times_s[k] - without[k] for k in (2, 3))
    assert of_switch.cost_s["base"] == pytest.approx(lost_s, rel=1e-9) and lost_s > of_switch.recovered_s["base"]
    agent = by_what["agent 3 killed"].set_index("mode").cost_s["base"]
    assert agent > times_s[5] - without[5] - 1e-9  # the failed attempt took time, too
    # The summary has the same, in all its forms.
    again, _ = ended("--resume", "out", cwd=tmp_path)
    summary = pd.read_csv(tmp_path / "out" / "summary.csv").set_index("mode")
    for point in told["points"]:
        stored = struck[struck["mode"] == point["mode"]]
        for name in ("what", "outcome", "at_collective", "detected_s", "recovered_s", "cost_s"):
            inside = [summary[f"fault.{number}.{name}"][point["mode"]] for number in range(1, 7)]
            for shown in ([one[name] for one in point["faults"]], inside):
                assert pd.Series(shown).fillna(-1).to_list() == pytest.approx(stored[name].fillna(-1).to_list())
    assert of_switch.recovered_s["base"] < 1e-6
    recovered = f"recovered within 1 us, cost {lost_s * 1e3:.4g} ms"
    lines = again.splitlines()
    named = next(at for at, line in enumerate(lines) if line.endswith(", switch s0b0 down in collective 2"))
    assert lines[named].startswith("  fault ") and lines[named + 1].startswith(f"    base: {recovered}")
    (base,) = (one for one in told["points"] if one["mode"] == "base" and one["engine"] == "emulation")
    (of_base,) = (one for one in base["faults"] if one["what"] == "switch s0b0 down")
    parts = {one["collective"]: one["cost_s"] for one in of_base["costs"]}
    assert parts == pytest.approx({k: times_s[k] - without[k] for k in (2, 3)}, rel=1e-9)
    # Nor does the critical path of the struck collective blame a link that was down.
    (configuration,) = configurations_of(found)
    for one in collectives_of(found, points_of(found, [configuration]), configuration, number=2):
        assert sum(cost.seconds for cost in one.costs.values()) == pytest.approx(one.completion_s, rel=1e-6)
        assert "after switch s0b0 down" in one.costs or not of_switch.bytes_again[one.mode]
    slow = rows[(rows.collective == 9) & (rows["mode"] == "base")]
    assert slow.undisturbed.all()
    assert (tmp_path / "out" / "figures" / "struck-faults.svg").exists()


AGAIN = """
name = "again"
fault = [
    { at = "collective 1", what = "link s0b0-s1b0 down", for = "1 collective" },
    { at = "collective 3", what = "switch s1b0 down", for = "1 collective" },
]
[fabric]
gpus = [2, 2]
[conditions]
links = { wan.delay = "5 ms", "s*b0>s*b0".delay = "3 ms" }
[collective]
kind = "alltoall"
count = 5
[run]
modes = ["base"]
"""


def test_links_that_are_up_again_have_their_delays_as_before(tmp_path: Path) -> None:
    """Where flows share links, filters apply the delays at ports that receive, and Open vSwitch removes those filters
    from a port whose link goes down."""
    (tmp_path / "again.toml").write_text(AGAIN)
    answer(tmp_path / "out", "again.toml", "--engine", "emulation")
    rows = open_run(tmp_path / "out").collectives
    assert rows.undisturbed.all()
    assert rows.completion_s.to_list() == pytest.approx(rows.predicted_s.to_list(), rel=1e-3)


def test_packets_of_collectives_are_captured_also_around_a_failed_link_and_take_no_time(tmp_path: Path) -> None:
    """The fixed path passes s0b0 and s1b0. While their link or s1b0 is down, in collectives 1 and 3, the next path does
    not."""
    (tmp_path / "again.toml").write_text(AGAIN.replace('kind = "alltoall"', 'chunk = "1 MB"'))
    links = [f"s0b{x}>s1b{y}" for x in (0, 1) for y in (0, 1)]
    capture = [word for link in links for word in ("--capture", link)]
    answer(tmp_path / "out", "again.toml", "--engine", "emulation", *capture)
    answer(tmp_path / "plain", "again.toml", "--engine", "emulation")
    found, plain = (open_run(tmp_path / name).transfers for name in ("out", "plain"))
    assert found.equals(plain)  # to the nanosecond
    with (tmp_path / "out/captures/base/captured.csv").open() as file:
        rows = {row["link"]: row for row in csv.DictReader(file)}
    assert [*rows] == links and all(row["lost"] == "0" for row in rows.values())
    sent = {
        link: pcap_lengths((tmp_path / "out/captures/base" / row["file"]).read_bytes()) for link, row in rows.items()
    }
    assert {link: len(sizes) for link, sizes in sent.items()} == {link: int(rows[link]["packets"]) for link in links}
    # In each AllGather of 4 blocks, one GPU of site 0 sends 3 to the other site.
    whole = 3e6 * HEADERS
    bytes_on = {link: sum(sizes) for link, sizes in sent.items()}
    assert bytes_on["s0b0>s1b0"] == pytest.approx(3 * whole, rel=0.02)
    assert sum(bytes_on.values()) == pytest.approx(5 * whole, rel=0.02)


TIMED = """
name = "timed"
[conditions]
wan_delay = "1 ms"
wan_rate = "40 Gbit/s"
intra_rate = "100 Gbit/s"
[collective]
kind = "sendrecv"
size = "100 MB"
pieces = 1
count = 6
emulated = 6
[run]
modes = ["base"]
[[fault]]
at = "collective 1"
what = "agent 0 slow 10x"
for = "30 ms"
[[fault]]
at = "4 ms into collective 3"
what = "agent 0 slow 10x"
for = "20 ms"
"""


def test_a_slow_agent_is_slow_for_as_long_as_it_is_said_to_be(tmp_path: Path) -> None:
    """100 MB at 40 Gbit/s over the WAN take 20 ms. Rank 0 sends within its site: 37.5 MB in the 30 ms at 10 Gbit/s, and
    the rest at 100 Gbit/s in 5 ms. Later it sends 50 MB in 4 ms, 25 MB in 20 ms, and the rest in 2 ms."""
    (tmp_path / "timed.toml").write_text(TIMED)
    told = answer(tmp_path / "out", "timed.toml", "--engine", "emulation")
    run = open_run(tmp_path / "out")
    took_ms = run.collectives.sort_values("collective").completion_s.to_numpy() * 1e3
    assert took_ms == pytest.approx([21, 35, 21, 26, 21, 21], abs=0.02)
    assert run.collectives.sort_values("collective").undisturbed.to_list() == [True, False, True, False, True, True]
    assert run.faults.until.to_list() == [2, 4] and run.faults.cost_s.to_list() == pytest.approx(
        [0.014, 0.005], rel=1e-2
    )
    assert run.faults.lasting_cost_s.to_list() == [0, 0] and run.faults.as_before.to_list() == [2, 4]
    assert told["points"][0]["mean_without_faults_s"] == pytest.approx(0.021, rel=1e-3)


LINK_TIMED = """
name = "timed"
[conditions]
wan_delay = "1 ms"
[collective]
chunk = "8 MB"
count = 9
emulated = 9
[run]
modes = ["base", "ccl", "joint", "seldom"]
[[policy]]
name = "seldom"
reroute = "every 5"
[[fault]]
at = "1 ms into collective 1"
what = "link s0b0-s1b0 down"
for = "3 ms"
[[fault]]
at = "2 ms into collective 3"
what = "link s0b1-s1b0 down"
for = "60 ms"
[[fault]]
at = "collective 7"
what = "switch s0b0 down"
for = "12 ms"
"""


def test_links_are_up_again_while_collectives_run(tmp_path: Path) -> None:
    """In every mode plan and testbed agree, or the point would fail, and the faults end, the shortest in its own
    collective."""
    (tmp_path / "timed.toml").write_text(LINK_TIMED)
    told = answer(tmp_path / "out", "timed.toml", "--engine", "emulation")
    run = open_run(tmp_path / "out")
    assert len(run.collectives) == 36 and told["fidelity"]["median_ratio"] == pytest.approx(1, abs=0.002)
    assert set(run.faults.outcome) <= {"recovered", "masked"} and len(run.faults) == 12
    until = run.faults.groupby("number").until
    assert set(until.get_group(1)) == {2} and until.get_group(2).between(4, 8).all() and until.get_group(3).gt(7).all()
