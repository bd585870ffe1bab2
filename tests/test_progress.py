"""What is printed on stderr where it is not a terminal: never nothing for long, and how much time is left."""

import re
import time
from itertools import pairwise

import pytest

from scenarios.engines.base import Again, Doing, Slice
from scenarios.experiment import progress
from scenarios.experiment.progress import Heartbeat, Progress, time_left_s
from tests.fakes.stored import some_rows
from tests.test_sweep import scenario

PROMISED_S = 15.0


@pytest.mark.parametrize(
    ("done", "left", "took_s", "expected_s", "seconds"),
    [
        (10, 30, 5.0, None, 15.0),  # at the pace so far
        (10, 30, 5.0, 99.0, 15.0),  # whatever was expected
        (0, 30, 5.0, 40.0, 40.0),
        (0, 30, 50.0, 40.0, 50.0),  # it has taken longer than was expected already
        (0, 30, 5.0, None, None),
    ],
)
def test_the_time_left_goes_by_the_pace_and_before_that_by_what_is_expected(done, left, took_s, expected_s, seconds):
    assert time_left_s(done=done, left=left, took_s=took_s, expected_s=expected_s) == seconds


def test_a_silent_run_prints_a_line_before_15_s_and_a_talking_one_none(capsys):
    now = 0.0
    printed_s = [now]
    heartbeat = Heartbeat(lambda: f"at {now}", clock=lambda: now)
    for _ in range(20):
        now += heartbeat.beat()
        heartbeat.beat()
        if capsys.readouterr().err == f"at {now}\n":
            printed_s.append(now)
    assert len(printed_s) > 10
    assert all(0 < later - sooner <= PROMISED_S for sooner, later in pairwise(printed_s))
    for _ in range(20):
        now += PROMISED_S / 3
        heartbeat.say("something else")
        heartbeat.beat()
    assert set(capsys.readouterr().err.splitlines()) == {"something else"}


def test_a_run_without_a_terminal_says_which_collective_it_is_at(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SILENT_S", 0.01)
    monkeypatch.setattr(progress, "_FAIR_S", 0.0)
    settings = scenario(("collective.count", 4), ("run.modes", ["base", "wan"])).settings()
    err = ""

    def news():
        nonlocal err
        yield Doing(setting=0, mode="wan", doing="collective 3: the AllGather")
        until = time.monotonic() + 60
        while "AllGather" not in err and time.monotonic() < until:
            err += capsys.readouterr().err
            time.sleep(0.01)

    assert len(list(progress.shown(news(), "emulation", settings))) == 1
    assert re.search(r"^\[0/2\] .*, wan: 0 of 4, collective 3: the AllGather, about \d+ s left$", err, re.MULTILINE)


def test_only_points_at_work_are_named_and_all_of_them_counted():
    settings = scenario(
        ("collective.count", 4), ("sweep.run.seed", [1, 2, 3]), ("run.modes", ["base", "wan"])
    ).settings()
    shown = Progress("emulation", settings)
    for place in range(3):
        shown.note(Doing(setting=place, mode="base", doing="the agents"))
        shown.note(Doing(setting=place, mode="wan", doing="the agents"))
    assert shown.going_on().count("the agents") == 3 and "3 more points" in shown.going_on()
    shown.note(Again(setting=0, mode="base", why="it failed"))
    for place in (1, 2):
        shown.note(Again(setting=place, mode="base", why="it failed"))
        shown.take(Slice(setting=place, mode="wan", rows=some_rows(0, 4)))
    shown.note(Doing(setting=1, mode="wan", doing="the network's end"))  # after its last collective
    assert re.findall(r"seed \d, \w+", shown.going_on()) == ["seed 1, wan"]


def test_large_chunks_count_for_more_of_the_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def left_s(sizes):
        now[0] = 0.0
        swept = ("sweep.collective.chunk", sizes)
        shown = Progress("emulation", scenario(("collective.count", 20), ("run.modes", ["base"]), swept).settings())
        now[0] = 60.0
        shown.take(Slice(setting=0, mode="base", rows=some_rows(0, 20)))
        return int(re.search(r"about (\d+) (?:s|min) left", shown.time_left())[1])

    assert left_s(["8 MB", "9 MB"]) < 90  # as long again
    assert left_s(["64 MB", "8 MB"]) < 30
