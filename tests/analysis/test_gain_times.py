"""When the best mode gains under recorded conditions, in words."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report.__main__ import write
from analysis.statistics.contests import Place, Setting
from analysis.statistics.gain_times import gain_times_sentence, shortest_with, worst_sentence
from analysis.statistics.intervals import Series
from tests.fakes.runs import ended
from topologies.conditions.sampler import ConditionsSpec
from topologies.fabric.fabric import FabricSpec, build_fabric

TRACE = ConditionsSpec(sampler="trace", trace=Path("t.csv"), trace_step_s=10.0)
REPEATS = ConditionsSpec(sampler="trace", trace=Path("t.csv"), trace_step_s=10.0, trace_repeat=True)


NEW_YEAR_NS = 1767243600 * 10**9  # 2026-01-01 05:00:00 UTC


def sentence(saved_s, conditions=TRACE, *, recorded=True, in_gaps=(), begins_ns=None, worst=False):
    """Return the sentence on collectives of 1 s in base, of which wan saves some time, or that on the `worst` ones."""
    saved, number = np.array(saved_s, dtype=float), np.arange(len(saved_s))
    setting = Setting(index=0, label="8 GPUs", kind="allgather", at=(), modes=("base", "wan"), baseline={})
    by_mode = {"base": np.ones(saved.size), "wan": 1 - saved}
    times = {("model", Place(0, mode)): Series(number, each, recorded=recorded) for mode, each in by_mode.items()}
    if worst:
        return worst_sentence([setting], times, {0: conditions}, {0: begins_ns})
    return gain_times_sentence([setting], times, {0: conditions}, {0: in_gaps}, {0: begins_ns})


FEW = [0.0] * 20 + [0.5] * 5 + [0.0] * 35
MOST = "; 90 % of the time saved is saved in collective"


@pytest.mark.parametrize(
    ("saved_s", "conditions", "count", "place"),
    [
        (FEW, TRACE, "5 of 60", f"{MOST}s 20 to 24, from 200 s to 240 s of the trace"),
        (FEW, REPEATS, "5 of 60", f"{MOST}s 20 to 24"),
        ([0.5, *[0.0] * 9], TRACE, "1 of 10", f"{MOST} 0, at 0 s of the trace"),
        ([0.5] * 10, TRACE, "all 10", ", spread over the run"),
        (
            [0.5, -0.1, -0.3, -0.005] * 5,
            TRACE,
            "5 of 20",
            ", spread over the run; in 10 it is slower by more than 1 %, 20 % longer over these together",
        ),
        # 11 s are saved. The ten that save 0.8 s each have 70 % of it; 80 % needs 18 of the 40.
        (
            [0.1] * 16 + [0.8] * 10 + [0.1] * 14,
            TRACE,
            "all 40",
            "; 70 % of the time saved is saved in collectives 16 to 25, from 160 s to 250 s of the trace",
        ),
        (
            [*[0.5] * 6, -0.1, -0.3, 0.5, 0.5, -0.3, *[0.5] * 4, -0.5, -0.5, -0.5],
            TRACE,
            "12 of 18",
            ", spread over the run; in 6 (6, 7, 10 and 15 to 17) it is slower by more than 1 %, 37 % longer over these "
            "together",
        ),
        ([0.005, *[0.0] * 9], TRACE, "0 of 10", f"{MOST} 0, at 0 s of the trace"),
    ],
)
def test_a_trace_says_when_re_routing_gains(saved_s, conditions, count, place):
    said = sentence(saved_s, conditions)
    assert said == f"In {count} collectives wan is faster than base by more than 1 %{place}."


def test_collectives_that_are_faster_in_gaps_of_the_trace_are_counted():
    """Collective 30 is in the gap, too, but no faster."""
    said = sentence(FEW, in_gaps={23, 24, 30})
    assert " by more than 1 % (2 of these in gaps of the trace, across which the previous rates hold); 90 %" in said
    assert "gaps" not in sentence(FEW, in_gaps={30})


def test_a_report_of_a_run_that_stored_no_sentences_tells_gaps_of_its_trace_as_the_run_did(tmp_path, monkeypatch):
    """The rows of all links are 60 s apart but for ten minutes in the middle, in which the rates of before hold."""
    links = [link.name for link in build_fabric(FabricSpec(gpus_per_site=(2, 2))).links]
    at_s = [*range(0, 600, 60), *range(1200, 1800, 60)]
    rows = [f"{time},{link},{1 if link == 's0b0>s1b0' else 10} Gbit/s" for time in at_s for link in links]
    (tmp_path / "gap.csv").write_text("\n".join(["time,link,rate", *rows]))
    sets = ["--gpus", 4, "--modes", "base,wan", "--collectives", 29]
    for one in ('conditions.sampler="trace"', 'conditions.trace="gap.csv"', 'conditions.trace_step="60 s"'):
        sets += ["--set", one]
    said, _ = ended(*sets, "--engine", "model", "--out", tmp_path / "run", cwd=tmp_path)
    page = (tmp_path / "run/report.html").read_text()
    (tmp_path / "run/sentences.json").unlink()
    monkeypatch.chdir(tmp_path)
    again = write(tmp_path / "run").read_text()
    for text in (said, page, again):
        assert re.search(r"\d+ of these in gaps of the trace, across which the previous rates hold", text)


def test_hours_of_a_trace_are_told_as_such():
    """Of a day with a row every ten minutes, 43 from 10:40 on gain, of which 39 are the first nine of ten."""
    day = ConditionsSpec(sampler="trace", trace=Path("t.csv"), trace_step_s=600.0)
    saved_s = [0.0] * 64 + [0.5] * 43 + [0.0] * 37
    assert "from 38,400 s (10:40:00) to 61,200 s (17:00:00) of the trace" in sentence(saved_s, day)


@pytest.mark.parametrize("saved_s", [[-0.5] * 10, [0.0] * 10])
def test_nothing_is_said_if_the_baseline_is_the_best(saved_s):
    assert not sentence(saved_s)


def test_conditions_that_are_drawn_have_no_times_to_tell():
    assert not sentence(FEW, ConditionsSpec(), recorded=False)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any), st.sampled_from([0.5, 0.9, 1.0]))
def test_no_fewer_consecutive_collectives_have_this_share(saved, share):
    first, last = shortest_with(np.array(saved, dtype=float), share)
    needed = share * sum(saved) - 1e-9
    spans = [stop - start for start in range(len(saved)) for stop in range(start + 1, len(saved) + 1)
             if sum(saved[start:stop]) >= needed]  # fmt: skip
    assert sum(saved[first : last + 1]) >= needed and last - first + 1 == min(spans)


def test_the_time_of_day_is_told_where_the_trace_has_it():
    """Collective 20 begins 200 s after 05:00:00."""
    said = sentence(FEW, begins_ns=NEW_YEAR_NS)
    assert "from 200 s (2026-01-01 05:03:20 UTC) to 240 s (2026-01-01 05:04:00 UTC) of the trace" in said
    later = sentence([0.0] * 400 + [0.5] * 5 + [0.0] * 300, begins_ns=NEW_YEAR_NS)
    assert "from 4,000 s (1:06:40, 2026-01-01 06:06:40 UTC) to" in later


@pytest.mark.parametrize(
    ("saved_s", "worst"),
    [
        # wan is best: its own longest, and that of base, all of which take 1 s.
        ([0.5, 0.5, 0.2, 0.5], "collective 2 of 800 ms{2} in wan; collective 0 of 1,000 ms{0} in base"),
        ([-0.5, -0.5, -0.8, -0.5], "collective 0 of 1,000 ms{0} in base"),
    ],
)
def test_the_longest_collective_of_the_best_mode_and_of_the_baseline_are_told(saved_s, worst):
    def told(when):
        return f"The longest is {worst.format(*when)}."

    of_day = [f", at {10 * k} s (2026-01-01 05:00:{10 * k:02} UTC) of the trace," for k in range(4)]
    assert sentence(saved_s, worst=True, begins_ns=NEW_YEAR_NS) == told(of_day)
    assert sentence(saved_s, worst=True) == told([f", at {10 * k} s of the trace," for k in range(4)])
    assert sentence(saved_s, REPEATS, worst=True, begins_ns=NEW_YEAR_NS) == told([""] * 4)
    assert sentence(saved_s, ConditionsSpec(), worst=True) == ""


def test_the_longest_collective_of_a_single_mode_is_told():
    setting = Setting(index=0, label="8 GPUs", kind="allgather", at=(), modes=("base",), baseline={})
    times = {("model", Place(0, "base")): Series(np.arange(3), np.array([0.1, 0.3, 0.2]))}
    said = worst_sentence([setting], times, {0: TRACE}, {0: NEW_YEAR_NS})
    assert said == "The longest is collective 1 of 300 ms, at 10 s (2026-01-01 05:00:10 UTC) of the trace, in base."
