"""What ECMP alone would gain is told beside what re-routing gains, and equals a run with that routing."""

import re
from dataclasses import replace

import numpy as np
import pytest

from analysis.statistics.contests import Setting, Value
from analysis.statistics.intervals import FEW, Interval
from scenarios.engines.prediction import plan_of
from scenarios.experiment.ecmp import EcmpGain, ecmp_gains, lines_of
from scenarios.spec.load import scenario_of
from tests.fakes.runs import answer, ended, rows

RUN = '[fabric]\nborder_routers = 3\n[collective]\nkind = "alltoall"\ncount = 300\n[run]\nmodes = ["base", "wan"]\n'


def test_the_gains_of_ecmp_are_those_of_runs_with_each_hash_seed(tmp_path):
    (tmp_path / "both.toml").write_text(RUN)
    (told,) = answer(tmp_path / "fixed", "both.toml", "--engine", "model")["ecmp"]
    seeds = ("--set", "fabric.routing=ecmp", "--sweep", f"fabric.hash_seed={','.join(map(str, told['hash_seeds']))}")
    answer(tmp_path / "ecmp", "both.toml", "--engine", "model", *seeds)
    single, ecmp = (here[here["mode"] == "base"] for here in (rows(tmp_path / "fixed"), rows(tmp_path / "ecmp")))
    means_s = ecmp.groupby("setting").completion_s.mean()
    assert told["gains"] == pytest.approx([1 - each / single.completion_s.mean() for each in means_s], rel=1e-12)
    assert len(told["gains"]) == 8 and max(told["gains"]) - min(told["gains"]) > 0.02
    assert (told["setting"], told["collectives"]) == (0, 300)
    least, *_, most = sorted(told["gains"])
    said, _ = ended("both.toml", "--engine", "model", "--out", tmp_path / "again", cwd=tmp_path)
    end, middle = (f"{share * 100:.0f} %" for share in (most, np.median(told["gains"])))
    assert (
        f"ECMP alone, without re-routing, would be {least * 100:.0f} to {end} below base, median {middle} (8 " in said
    )


def told(*gains, at=(), collectives=81, whole=81, intact=False, outcomes=8, half=0.008, why=""):
    """Return the gains of a configuration with these values of swept keys, of which the last one holds for all further
    hash seeds."""
    setting = Setting(index=0, label="", kind="allgather", at=at, modes=("base", "wan"), baseline={})
    spread = (*gains, *gains[-1:] * (8 - len(gains)))
    intervals = tuple(Interval(value=gain, low=gain - half, high=gain + half / 2, why=why) for gain in spread)
    counts = {"collectives": collectives, "whole": whole, "outcomes": outcomes}
    return EcmpGain(setting=setting, intervals=intervals, intact=intact, **counts)


def delay(ms):
    return Value("conditions.wan_delay", f"{ms} ms", ms / 1e3)


def period(number):
    return Value("collective.reembed_every", f"reembed every {number}", number)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([told(0.0, 0.67, 0.33)], "0 to 67 % below base, median 33 % ("),
        ([told(-0.001, 0.67, 0.33)], "0 to 67 % below base, median 33 % ("),
        ([told(0.021, 0.034, 0.025)], "2.1 to 3.4 % below base, median 2.5 % ("),
        ([told(-0.021, -0.034, -0.025)], "2.1 to 3.4 % above base, median 2.5 % ("),
        ([told(-0.12, 0.4, 0.2)], "between 12 % above and 40 % below base, median 20 % below base ("),
        ([told(-0.02, 0.03, 0.0)], "between 2.0 % above and 3.0 % below base, median 0.0 % ("),
        ([told(0.0)], "equal to base with every seed ("),
        ([told(0.0002, 0.0, 0.0)], "less than 0.05 % from base with every seed ("),
        ([told(-0.0002)], "less than 0.05 % from base with every seed ("),
        ([told(-0.008)], "0.8 % above base with every seed ("),
        (
            [told(0.0, 0.67, 0.33, at=(delay(1),)), told(0.0, 0.2, 0.1, at=(delay(50),))],
            "0 to 67 % below base (67 % at 1 ms), median from 10 % at 50 ms to 33 % at 1 ms (8 hash seeds, 2 "
            "configurations, ",
        ),
        (
            [told(-0.1, 0.3, -0.05, at=(delay(1),)), told(0.0, 0.2, 0.1, at=(delay(50),))],
            "between 10 % above and 30 % below base (10 % at 1 ms), median from 5 % above base at 1 ms to 10 % "
            "below base at 50 ms (",
        ),
        (
            [told(-1.97, -0.2, -0.49, at=(delay(1),)), told(-0.01, 0.11, 0.0, at=(delay(50),))],
            "between 197 % above and 11 % below base (197 % at 1 ms, 11 % at 50 ms), median from 49 % above base at 1 "
            "ms to 0 % at 50 ms (",
        ),
        (
            [told(0.0, 0.19, 0.1, at=(delay(1),)), told(0.02, 0.2, 0.12, at=(delay(50),))],
            "0 to 20 % below base, median from 10 % at 1 ms to 12 % at 50 ms (",
        ),
        (
            [told(0.0, 0.67, 0.33, at=(period(number),)) for number in range(1, 10)],
            "0 to 67 % below base, median 33 % (8 hash seeds, timing model, ",
        ),
        (
            [told(0.0, 0.67, gain, at=(period(n), delay(d))) for n in (1, 2) for d, gain in ((1, 0.33), (50, 0.1))],
            "0 to 67 % below base, median from 10 % at 50 ms to 33 % at 1 ms (8 hash seeds, 2 configurations, ",
        ),
    ],
)
def test_a_range_over_hash_seeds_has_one_sentence(gains, said):
    (line,) = lines_of(gains)
    assert line.startswith(f"ECMP alone, without re-routing, would be {said}")
    assert line.endswith(
        "timing model, the first 81 collectives, each to within 0.8 points, 95 % interval; --set fabric.routing=ecmp)"
    )


def test_a_range_has_no_more_decimals_than_its_intervals_allow():
    (line,) = lines_of([told(0.021, 0.034, 0.026, half=0.17)])
    assert "would be 2 to 3 % below base, median 3 %, which no interval tells from base (8 hash" in line
    assert "each to within 17 points" in line
    (line,) = lines_of([told(0.121, 0.134, 0.125, half=0.012)])
    assert "would be 12 to 13 % below base, median 12 % (8 hash" in line and "each to within 1.2 points" in line
    (line,) = lines_of([told(0.0, half=0.17)])
    assert "would be equal to base with every seed (8 hash" in line


def test_gains_from_a_handful_of_collectives_are_told_as_such_and_left_out_beside_others():
    few = {"at": (delay(1),), "collectives": 14, "why": FEW}
    (line,) = lines_of([told(0.021, 0.034, 0.026, **few)])
    assert "would be 2 to 3 % below base, median 3 %, over 14 collectives alone (8 hash" in line
    (line,) = lines_of([told(0.021, 0.034, 0.026, **few), told(0.1, 0.11, at=(delay(2),))])
    assert "would be 10.0 to 11.0 % below base, median 11.0 % (8 hash seeds, timing model, the first 81" in line
    assert "95 % interval, 1 more configuration has no intervals;" in line


def test_nothing_is_told_where_ecmp_is_swept():
    def gains(routings):
        configs = scenario_of(f"{RUN.replace('count = 300', 'count = 3')}[sweep]\n{routings}").configurations()
        return ecmp_gains([*enumerate(configs)])

    assert gains('collective.size = ["1 MB"]')
    assert not gains('fabric.routing = ["single", "ecmp"]')


def test_fewer_collectives_and_faults_that_are_left_out_are_told():
    (line,) = lines_of([told(0.1, at=(delay(1),)), told(0.2, at=(delay(2),), collectives=1, intact=True)])
    assert "the first 1 to 81 collectives, without faults, each to" in line
    (line,) = lines_of([told(0.1, collectives=2000, whole=20_000)])
    assert "the first 2,000 of 20,000 collectives, each to" in line


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (20, "the first 20 collectives, without intervals: too few collectives for an interval;"),
        (100, r"each to within (\d\.\d) points, 95 % interval;"),
    ],
)
def test_the_noise_of_each_gain_is_told_or_why_it_is_not_known(count, said):
    """The interval is that of two runs of base over the same conditions, paired."""
    configs = scenario_of(RUN.replace("count = 300", f"count = {count}")).configurations()
    (found,) = ecmp_gains([*enumerate(configs)])
    (line,) = lines_of([found])
    (points,) = re.findall(said, line)
    if count >= 60:
        (config,) = configs
        single_s, spread_s = (
            plan_of(replace(config, fabric=replace(config.fabric, **how)), "base", count).completion_s()
            for how in ({}, {"routing": "ecmp", "hash_seed": 1})
        )
        half = 1.99 * np.std(spread_s - (1 - found.gains[0]) * single_s) / np.sqrt(count) / single_s.mean()
        interval = found.intervals[0]
        assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.1)
        assert 100 * half < 1.3 * float(points)


@pytest.mark.parametrize(("stay", "has_intervals"), [(2, True), (10, False), (40, False)])
def test_conditions_that_last_leave_too_few_independent_blocks(tmp_path, stay, has_intervals):
    """A stay of 10 collectives makes blocks of 30 * 9 (the rule of `series_of`): fewer than 8 of 2,000 collectives."""
    keys = (
        "[conditions]\nsampler = 'markov'\nmean_stay = {}\n[collective]\ncount = 2000\n[run]\nmodes = ['base', 'wan']"
    )
    (tmp_path / "lasting.toml").write_text(keys.format(stay))
    blocks = -(-2000 // (30 * (stay - 1)))
    found = answer(tmp_path / "results", "lasting.toml", "--engine", "model")
    (told,) = found["ecmp"]
    why = told["no_interval"] or ""
    number = re.match(r"(?:these are|this is) (\d+) independent blocks? of collectives, and this gain needs 10$", why)
    assert has_intervals is (number is None) and (number is None or blocks - 1 <= int(number[1]) <= blocks)
    of_table = [one["blocks"] for one in found["points"]]  # in which five blocks are enough for an interval
    assert all(blocks - 1 <= one <= blocks for one in of_table) and ("few_blocks" in found) is (5 <= blocks < 20)
    assert [end is not None for end in told["gains_low"] + told["gains_high"]] == [has_intervals] * 16
    assert len(told["gains"]) == 8 and told["outcomes"] == len({*told["gains"]})
    said, _ = ended("lasting.toml", "--engine", "model", "--out", tmp_path / "again", cwd=tmp_path)
    (line,) = (line for line in said.splitlines() if line.startswith("ECMP alone"))
    assert has_intervals or f"the first 2,000 collectives, without intervals: {why};" in line
    few = [line for line in said.splitlines() if "independent blocks of collectives, which are few" in line]
    assert few == ([found["few_blocks"]] if "few_blocks" in found else [])
    assert not few or number is None or f"rest on {number[1]} independent blocks" in few[0]
    assert all(line in (tmp_path / "again/report.html").read_text() for line in few)


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ((8,), "(8 hash seeds, timing"),
        ((5,), "(8 hash seeds with 5 different outcomes, timing"),
        ((1,), "(8 hash seeds with the same outcome, timing"),
        ((6, 8), "(8 hash seeds with 6 to 8 different outcomes, timing"),
    ],
)
def test_hash_seeds_that_give_the_same_paths_count_once(outcomes, said):
    (line,) = lines_of([told(0.1, outcomes=one) for one in outcomes])
    assert said in line


def test_seeds_of_the_conditions_are_pooled():
    text = RUN.replace("count = 300", "count = 40") + "[sweep]\nrun.seed = [1, 2, 3]\n"
    (found,) = ecmp_gains([*enumerate(scenario_of(text).configurations())])
    assert (found.seeds, found.collectives) == (3, 40) and not any(one.why for one in found.intervals)
    (line,) = lines_of([found])
    assert "(8 hash seeds, timing model, the first 40 collectives, with each of 3 seeds, each to within" in line


def test_many_configurations_share_the_transfers_that_are_predicted():
    text = RUN.replace("count = 300", "count = 2000") + "[sweep]\nrun.seed = [1, 2]\n'conditions.wan_delay' = ["
    delays = ", ".join(f'"{ms} ms"' for ms in range(1, 11))
    configs = list(enumerate(scenario_of(f"{text}{delays}]\n").configurations()))
    transfers = len(configs[0][1].workload.schedule.transfers)
    few, many = (sum(one.collectives * one.seeds for one in ecmp_gains(some)) for some in (configs[:1], configs))
    assert few == 2000 and many * transfers * 9 <= 4_000_000


@pytest.mark.parametrize(
    "text",
    [
        RUN.replace('"base", "wan"', '"base", "ccl"'),
        RUN.replace('"base", "wan"', '"wan"'),
        RUN.replace("border_routers = 3", "border_routers = 1"),
        RUN.replace("[fabric]", '[fabric]\nrouting = "spray"'),
        RUN.replace("[fabric]\nborder_routers = 3", "[fabric]\ngpus = [6]"),
    ],
)
def test_nothing_is_told_where_nothing_is_compared(text):
    (config,) = scenario_of(text).configurations()
    assert ecmp_gains([(0, config)]) == [] and list(lines_of([])) == []


def test_under_constant_rates_the_gains_of_ecmp_are_exact_and_seeds_with_the_same_outcome_are_one(tmp_path):
    """A SendRecv has one flow, which each hash sends over one of two equal links: all outcomes are the same."""
    (tmp_path / "steady.toml").write_text(
        '[conditions]\nwan_rate = "40 Gbit/s"\nintra_rate = "100 Gbit/s"\n[collective]\nkind = "sendrecv"\ncount = 3\n'
    )
    said, _ = ended("steady.toml", "--engine", "model", "--out", tmp_path / "run", cwd=tmp_path)
    assert (
        "would be equal to base with every seed (8 hash seeds with the same outcome, timing model, the first 3 "
        "collectives, the same in every collective; --set fabric.routing=ecmp)"
    ) in said
