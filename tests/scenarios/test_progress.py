"""Progress on stderr during a run: correct numbers, no long silence, and the estimated time left."""

import io
import os
import re
import sys
import termios
import time

import numpy as np
import pytest
from rich.console import Console

from analysis.figures import __main__ as drawing
from analysis.model import compiled
from analysis.results.rows import Rows
from analysis.statistics.contests import without_common
from analysis.statistics.intervals import gain, series_of, summarise
from scenarios.engines.base import Activity, Retrying, Slice
from scenarios.engines.model import Model
from scenarios.experiment import progress
from scenarios.experiment.progress import Progress
from tests.fakes.commands import scenario
from tests.fakes.runs import ended
from topologies import heartbeat


def part(place, mode, times_s, start=0):
    ones = np.ones((len(times_s), 8), dtype=np.int16)
    flags = np.ones(len(times_s), dtype=np.bool_)
    rows = Rows(start, {"completion_s": times_s, "ring": ones, "paths": ones, "reembedded": flags, "rerouted": flags})
    return Slice(setting=place, mode=mode, rows=rows)


@pytest.fixture
def clock(monkeypatch):
    """Return a function that sets the time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return lambda now_s: now.__setitem__(0, now_s)


def test_a_finished_point_is_shown_with_its_mean_and_gain_over_base():
    """Slices may arrive in any order and length, as in a resumed run."""
    (setting,) = scenario(collective__count=1000).configurations()
    base_s = np.random.default_rng(1).gamma(4.0, 0.001, 1000)
    times_s = {"base": base_s, "ccl": 0.9 * base_s, "wan": base_s**1.1, "joint": 0.5 * base_s}
    shown = Progress("model", [setting])
    for mode in ("base", "wan", "ccl", "joint"):
        assert not shown.take(part(0, mode, times_s[mode][700:], 700))
        assert shown.take(part(0, mode, times_s[mode][:700]))
    always = {"reembedded": np.ones(1000, bool), "rerouted": np.ones(1000, bool)}
    series = {mode: series_of(np.arange(1000), times, setting.conditions, **always) for mode, times in times_s.items()}
    mean = summarise(series["joint"]).mean_s
    in_words = f"{mean.value * 1e3:,.3f} ms [{mean.low * 1e3:,.3f}, {mean.high * 1e3:,.3f}]"
    assert shown.points[0, "joint"].words()[:3] == ("1,000 of 1,000", in_words, "50.0 % [all alike]")
    less = gain(series["base"], series["wan"])
    below = f"{less.value * 100:.1f} % [{less.low * 100:.1f}, {less.high * 100:.1f}]"
    assert shown.points[0, "wan"].words()[2] == below
    assert shown.line(0, "joint").startswith(
        "[4/4] model, 8 GPUs, 8 MB blocks, 64 MB buffer, 10 us, ring slowest edge, joint: 1,000 of 1,000, mean "
    )


def test_the_time_left_is_extrapolated_from_the_pace_since_the_run_began(clock):
    settings = scenario(collective__count=100, run__modes=["base", "wan"]).configurations()
    model, emulation = Progress("model", settings), Progress("emulation", settings)
    model.take(part(0, "base", np.ones(50)))
    model.begin()  # earlier results do not count for the pace
    assert model.time_left() == ""
    clock(30.0)
    model.take(part(0, "base", np.ones(50), 50))
    assert model.time_left() == ", about 60 s left"
    assert re.fullmatch(r", about \d+ (s|min) left", emulation.time_left())  # estimated before anything is measured
    clock(50.0)
    assert model.time_left() == ", about 40 s left"
    clock(300.0)  # if the next batch of 50 ended now, the last one would take as long as each of both, 150 s
    assert model.time_left() == ", about 2 min left"
    model.take(part(0, "wan", np.ones(100)))
    assert model.time_left() == ""


def test_a_part_at_work_may_take_longer_than_those_before_it(clock, monkeypatch):
    """One point of small collectives took 4 s; of two of large ones, twenty times as long each, nothing is told yet. As
    both are at work, each may be about to end: then no long silence makes the time left grow."""
    monkeypatch.setattr(compiled, "awaits_compiling", lambda _: False)
    of = {"collective__count": 100, "run__modes": ["base"]}
    settings = [scenario(fabric__gpus=gpus, **of).configurations()[0] for gpus in (4, 16, 16)]
    shown = Progress("model", settings, lanes=2)
    shown.begin()
    clock(4.0)
    shown.take(part(0, "base", np.ones(100)))
    told = []
    for now_s in (10.0, 60.0, 300.0):
        clock(now_s)
        told.append(shown._left_s(now_s))
    assert told == sorted(told, reverse=True) and told[-1] <= 4.0 * 20


@pytest.mark.parametrize(("lanes", "pace"), [(1, 1.0), (2, 3.0), (4, 0.5)])
def test_the_time_left_is_that_of_points_beside_each_other(clock, lanes, pace):
    """Twelve points whose start and collectives take `pace` times as long as is expected, `lanes` at a time: from the
    first result on, the time left is that of a simulation of them."""
    settings = scenario(collective__count=5, run__modes=["base", "wan", "joint"]).configurations() * 4
    shown = Progress("emulation", settings, lanes=lanes)
    work = next(iter(shown.points.values()))
    events, free_s = [], [0.0] * lanes
    for place, mode in shown.points:
        lane = free_s.index(min(free_s))
        begins_s = free_s[lane]
        ends_s = [begins_s + pace * (work.start_work + (n + 1) * work.collective_work) for n in range(5)]
        events.append((begins_s, place, mode, None))
        events += [(end_s, place, mode, number) for number, end_s in enumerate(ends_s)]
        free_s[lane] = ends_s[-1]
    for now_s, place, mode, number in sorted(events, key=lambda event: event[:1]):
        clock(now_s)
        if number is None:
            shown.note(Activity(setting=place, mode=mode, doing="the start of the testbed"))
        else:
            shown.take(part(place, mode, np.ones(1), number))
            clock(now_s + 0.01)
            left_s = shown._left_s(now_s + 0.01) or 0.0
            assert left_s == pytest.approx(max(free_s) - now_s, rel=0.02, abs=0.2) or now_s < progress._MIN_PACE_S


def test_the_models_line_on_a_terminal_moves_between_its_events(monkeypatch):
    """The engine goes on only once the line has changed twice without an event."""
    monkeypatch.setattr(progress, "_REFRESH_S", 0.05)
    settings = scenario(collective__count=4, run__modes=["base"]).configurations()
    terminal = io.StringIO()

    def events():
        until = time.monotonic() + 60
        while len(set(re.findall(r"0 of 1 points, (\d+) s so far", terminal.getvalue()))) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield part(0, "base", np.ones(4))

    shown = Progress("model", settings)
    shown.begin()
    list(progress._live(events(), shown, Console(file=terminal, force_terminal=True, width=100)))
    assert "model: 1 of 1 points" in terminal.getvalue()


def test_a_model_that_is_compiled_first_says_so_until_something_is_predicted(monkeypatch, tmp_path):
    """After a fresh installation that may take minutes, in which no collective is done."""
    source, cached = tmp_path / "fluid_jit.py", tmp_path / "__pycache__/fluid_jit.run-1.py311.nbi"
    source.write_text("")
    monkeypatch.setattr(compiled, "FLUID", source)
    shares = {"collective__kind": "alltoall", "collective__count": 10, "run__modes": ["base", "wan"]}
    shown, alone = (Progress("model", scenario(**one).configurations()) for one in (shares, {"run__modes": ["base"]}))
    says = "the model of flows that share links is compiled first"
    assert says in shown.going_on() and says in shown.table(0).title and says not in alone.going_on()
    assert says not in Progress("emulation", shown.configs).going_on()
    cached.parent.mkdir()
    for seconds, is_told in ((-5, True), (5, False), (-5, True)):  # of an earlier source, and of this one
        cached.write_text("")
        os.utime(cached, (time.time() + seconds,) * 2)
        assert (says in shown.going_on()) is is_told
    shown.take(part(0, "base", np.ones(5)))
    assert says not in shown.going_on() and "5 of 20 collectives" in shown.going_on()


def test_while_the_model_is_compiled_after_other_points_no_time_left_is_told(monkeypatch, clock):
    monkeypatch.setattr(compiled, "awaits_compiling", lambda _: True)
    of = {"collective__count": 10, "run__modes": ["base"]}
    settings = [scenario(**of, **more).configurations()[0] for more in ({}, {"collective__kind": "alltoall"})]
    shown = Progress("model", settings)
    shown.begin()
    clock(30.0)
    shown.take(part(0, "base", np.ones(10)))
    assert shown.time_left() == "" and "is compiled first" in shown.going_on()
    clock(60.0)
    shown.take(part(1, "base", np.ones(5)))  # compiled
    assert re.fullmatch(r", about \d+ s left", shown.time_left()) and "compiled" not in shown.going_on()


def test_a_batch_of_the_model_takes_no_longer_where_collectives_take_long():
    """Progress is told by batches: what takes a hundred times as long has a hundredth of the collectives in each."""
    values = {"collective__kind": "alltoall", "collective__count": 100_000, "fabric__gpus": 16, "run__modes": ["wan"]}
    (slow,), (quick,) = (scenario(**one).configurations() for one in (values, values | {"fabric__gpus": 4}))
    steps = [next(Model()._batches([one], lambda *_: False)).stop for one in (slow, quick)]
    assert 500 <= steps[0] <= 1500 and steps[1] == 5000  # 8 x 240 transfers each, and 8 x 12


def test_without_a_terminal_only_a_silent_run_prints_its_current_activity(monkeypatch, capsys):
    assert heartbeat.SILENT_S <= 15  # as documented
    settings = scenario(collective__count=4, run__modes=["base", "wan"]).configurations()
    err = ""

    def silent():
        nonlocal err
        yield Activity(setting=0, mode="wan", doing="collective 3: the AllGather")
        until = time.monotonic() + 60
        while err.count("AllGather") < 3 and time.monotonic() < until:
            err += capsys.readouterr().err
            time.sleep(0.01)

    monkeypatch.setattr(progress, "_MIN_PACE_S", 0.0)
    with monkeypatch.context() as hurried:
        hurried.setattr(heartbeat, "SILENT_S", 0.05)
        assert len(list(progress.with_progress(silent(), "emulation", settings))) == 1
    assert re.search(r"^\[0/2\] .*, wan: 0 of 4, collective 3: the AllGather, about \d+ s left$", err, re.MULTILINE)

    def busy():
        for _ in range(5):
            time.sleep(0.1)
            yield Retrying(setting=0, mode="wan", why="it failed")

    monkeypatch.setattr(heartbeat, "SILENT_S", 0.4)
    list(progress.with_progress(busy(), "emulation", settings))
    assert capsys.readouterr().err == "tried once more: it failed\n" * 5


@pytest.mark.parametrize(("silent_s", "times"), [(0.01, 2), (8.0, 1)])
def test_a_picture_that_takes_long_does_not_silence_the_progress_of_drawing(silent_s, times, monkeypatch, capsys):
    """The same number is told again only as a sign of life."""
    monkeypatch.setattr(drawing, "_QUIET_S", 0.05)
    monkeypatch.setattr(drawing, "SILENT_S", silent_s)
    waits = iter([False, False, True, True])
    started = drawing._Started(
        iter([None, None]), lambda index, most_s: time.sleep(most_s) or next(waits), lambda index: index
    )
    assert list(drawing._with_progress(started, 2, "report")) == []
    assert capsys.readouterr().err.startswith("report: 0 of 2 drawn\n" * times + "report: 1 of 2")


def test_a_terminal_shows_a_long_activity_in_one_line_and_erases_it(monkeypatch):
    terminal, theirs = os.openpty()
    monkeypatch.setattr(heartbeat, "QUIET_S", 0.05)
    monkeypatch.setattr(heartbeat, "_REFRESH_S", 0.05)
    termios.tcsetwinsize(theirs, (24, 40))
    with os.fdopen(terminal, "rb", buffering=0) as shown, os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        words, printed = "a" * 10, b""
        with heartbeat.heartbeat(lambda: words):
            printed = shown.read(1000)
            words = "b" * 100
            while b"b" not in printed:
                printed += shown.read(1000)
        printed += shown.read(1000)
    first, *later, last = re.findall(r"\r(.*?)\x1b\[K", printed.decode())
    assert re.fullmatch(r"a{10}, \d s so far", first) and "b" * 39 in later and last == ""
    assert max(map(len, later)) == 39 and b"\n" not in printed


@pytest.mark.parametrize(
    ("labels", "common", "own"),
    [
        (["8 GPUs, 10 us", "8 GPUs, 5 ms"], "", ["8 GPUs, 10 us", "8 GPUs, 5 ms"]),
        ([f"{'a' * 91}, 10 us", f"{'a' * 91}, 5 ms"], "a" * 91, ["10 us", "5 ms"]),
        ([f"{'a' * 91}, 10 us", "a" * 91], "a" * 91, ["10 us", "nothing else"]),
        ([f"{'a' * 91}, 10 us"], f"{'a' * 91}, 10 us", [""]),
        ([], "", []),
    ],
)
def test_what_all_settings_share_is_told_once_if_it_is_long(labels, common, own):
    assert without_common(labels) == (common, own)


def test_lines_and_rows_have_what_differs_below_a_heading_with_the_rest(tmp_path):
    fault = 'fault=[{at="collective 3",what="link s0b0-s1b0 down",for="2 collectives"}]'
    options = ("--engine", "model", "--collectives", "8", "--modes", "base,joint", "--no-report", "--set", fault)
    said, shown = ended(*options, "--wan-delay", "10 us,5 ms", "--out", tmp_path / "out", cwd=tmp_path)
    common = (
        "8 GPUs, 8 MB blocks, 64 MB buffer, link s0b0-s1b0 down at collective 3 for 2 collectives, ring slowest edge"
    )
    assert sorted(common.split(", ")) == sorted(
        next(line for line in said.splitlines() if line.startswith("all rows: ")).removeprefix("all rows: ").split(", ")
    )
    rows = [re.split(r"  +", line) for line in said.splitlines() if line.startswith("model  ")]
    assert [row[:3] for row in rows] == [["model", at, mode] for at in ("10 us", "5 ms") for mode in ("base", "joint")]
    lines = shown.splitlines()
    assert lines[0].startswith("all points: 8 GPUs, ") and sum("link s0b0-s1b0 down" in line for line in lines) == 1
    assert re.search(r"^\[[1-4]/4\] model, 10 us, base: 8 of 8, mean ", shown, re.MULTILINE)  # points run side by side
    said, _ = ended(*options, "--out", tmp_path / "one", cwd=tmp_path)
    assert [line.split()[:2] for line in said.splitlines() if line.startswith("model  ")] == [
        ["model", "base"], ["model", "joint"]
    ]  # fmt: skip
