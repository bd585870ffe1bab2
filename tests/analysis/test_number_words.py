"""Estimates and their intervals in text: an estimate is within its interval as it is printed."""

import re
from decimal import Decimal

import numpy as np
import pytest

from analysis.statistics.answer import answer
from analysis.statistics.contests import Place
from analysis.statistics.intervals import Interval, Series
from analysis.statistics.number_words import bracketed, estimate, longer_words
from scenarios.experiment.results_table import share
from scenarios.spec.labels import setting_of
from scenarios.spec.load import scenario_of
from tests.fakes.runs import ended

NUMBER = r"-?[0-9][0-9,]*[.]?[0-9]*"


def numbers(text):
    """Return the numbers of an estimate with its interval as decimals, which are not rounded."""
    found = [Decimal(one.replace(",", "")) for one in re.findall(NUMBER, text.replace("95 %", ""))]
    assert len(found) == 3, text
    return found


def is_within(text):
    value, low, high = numbers(text)
    digits = {one.as_tuple().exponent for one in (value, low, high)}
    return low <= value <= high and low < high and len(digits) == 1


@pytest.mark.parametrize("value", [0.3030705, 0.30307049, 0.30307051, 1.0, 12.3456784, 0.0001])
@pytest.mark.parametrize("width", [1e-7, 2e-8, 3e-6, 1e-4, 0.1])
def test_a_printed_mean_is_within_its_printed_interval(value, width):
    interval = Interval(value=value, low=value - width / 9, high=value + width)
    assert is_within(f"{estimate(interval, 1e3, 3)} {bracketed(interval, 1e3, 3)}")


@pytest.mark.parametrize("value", [0.35004, -0.35004, 0.0449996, 0.1])
def test_a_printed_gain_is_within_its_printed_interval(value):
    interval = Interval(value=value, low=value - 1e-5, high=value + 3e-6)
    assert is_within(share(interval)) and is_within(longer_words(interval))


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((2e-5, 2e-5, 2e-5), "less than 0.1 % less (the same in every collective)"),
        ((-2e-5, -2e-5, -2e-5), "less than 0.1 % longer (the same in every collective)"),
        ((4e-5, -3e-2, 3e-2), "as long on average (95 % interval -3.0 to 3.0 %)"),
        ((-2e-5, -2.6e-5, -1.4e-5), "0.002 % longer (95 % interval 0.001 to 0.003 %)"),
        ((5e-4, 5e-4, 5e-4), "0.1 % less (the same in every collective)"),
    ],
)
def test_no_zero_is_less_or_longer(ends, words):
    value, low, high = ends
    assert longer_words(Interval(value=value, low=low, high=high)) == words


def test_the_sentence_on_a_single_point_has_the_mean_and_its_interval_alike():
    (config,) = scenario_of('[run]\nmodes = ["base"]\n').configurations()
    times_s = 0.3030704 + 4e-7 * np.random.default_rng(1).random(2000)
    said = answer([setting_of(0, config)], {("model", Place(0, "base")): Series(np.arange(2000), times_s)}, {})
    (part,) = re.findall(rf"a mean of {NUMBER} ms .95 % interval {NUMBER} to {NUMBER} ms.", said)
    assert is_within(part)


def test_a_run_prints_every_mean_within_its_interval(tmp_path):
    """The WAN's rate hardly varies, so that the intervals of means are far below a microsecond."""
    near = ["--set", 'conditions.wan_rate="40-40.001 Gbit/s"', "--set", 'conditions.intra_rate="400 Gbit/s"']
    told, progress = ended("--engine", "model", "--collectives", 500, "--modes", "base,wan", *near,
                           "--out", tmp_path / "run", cwd=tmp_path)  # fmt: skip
    pair = rf"{NUMBER}(?: ms)? \[{NUMBER}, {NUMBER}\]"
    means = re.findall(pair, told) + re.findall(rf"mean ({pair})", progress)
    assert len(means) >= 4 and all(map(is_within, means))
    page = (tmp_path / "run/report.html").read_text()
    cells = re.findall(rf"<td[^>]*>({NUMBER})</td>\s*<td[^>]*>({NUMBER} to {NUMBER})</td>", page)
    assert len(cells) == 2 and all(is_within(" ".join(each)) for each in cells)
