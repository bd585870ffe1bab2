"""`run.py variability`: gains by how variable a WAN's rates are."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from scenarios.api import run, scenario
from scenarios.studies import harness
from scenarios.studies.variability import STUDY
from tests.fakes.commands import printed
from tests.topologies.test_background_load import rates
from tests.topologies.test_packs import WANTED, data, xml

__all__ = ["data"]

main = partial(harness.main, STUDY)
TEXT = """
[fabric]
gpus = [1, 1]
border_routers = 1
wan = "sndlib:geant.xml"
sites = ["uk1.uk", "it1.it"]
[conditions]
wan_rate = "100 Gbit/s"
intra_rate = "100 Gbit/s"
[conditions.load]
matrices = "matrices:matrices"
repeat = true
[control]
counted = true
"""


@pytest.mark.filterwarnings("ignore")
def test_gains_and_variability_are_those_of_single_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, count = data / "mine.toml", 12
    path.write_text(TEXT)
    options = ("--data", str(data), "-n", str(count), "--steps", "5 min,10 min", "--peaks", "0.5,0.9", "--ages", "0,2")
    lines = printed(main, capsys, str(path), *options, "--figure", str(data / "drawn"))
    with (data / "drawn.csv").open() as file:
        drawn = {(row["panel"], row["name"], row["x"]): float(row["y"]) for row in csv.DictReader(file)}
    # All modes over base and ECMP, those that choose paths over their choice made once; two ages of four settings.
    assert len(drawn) == (3 + 3 + 2) * 2 * 4
    for one in lines:
        over_ecmp = drawn["over ECMP", f"{one['mode']}, {one['age']} old", str(100 * one["change"])]
        assert over_ecmp == pytest.approx(100 * one["over_ecmp"]["value"])
    assert [(one["step"], one["peak"], one["age"], one["mode"]) for one in lines] == [
        (step, peak, age, mode)
        for age in (0, 2)
        for step in ("5 min", "10 min")
        for peak in (0.5, 0.9)
        for mode in ("ccl", "wan", "joint")
    ]
    (one,) = (
        one for one in lines if (one["step"], one["peak"], one["age"], one["mode"]) == ("10 min", 0.9, 2, "joint")
    )
    load = {"matrices": f"matrices:{data / 'matrices'}", "peak": 0.9, "step": "600 s", "repeat": True}
    plain = {"conditions.load": load, "fabric.wan": f"sndlib:{data / 'geant.xml'}", "collective.count": count}

    own = [0, 2]  # of minutes 5 and 25: that of 15 is missing, and the next ones are repetitions

    def mean_s(mode: str, **more: str) -> float:
        asked = scenario(path, plain | {"run.modes": [mode]} | {key.replace("__", "."): more[key] for key in more})
        return float(run(asked, progress=lambda *_: None)["completion_s"][own].mean())

    joint_s = mean_s("joint", control__knowledge="stale 2")
    assert one["mean_s"] == pytest.approx(joint_s, rel=1e-12)
    assert one["over_base"]["value"] == pytest.approx(1 - joint_s / mean_s("base"), abs=1e-12)
    assert one["over_once"]["value"] == pytest.approx(
        1 - joint_s / mean_s("joint", control__knowledge="mean"), abs=1e-12
    )
    found = rates(scenario(path, plain), count)
    by_link = [
        each[own] for each in found.values() if each[own].std() > 0
    ]  # no rate is random here but those of the WAN
    shares = np.array([each / each.mean() for each in by_link])
    assert one["spread"] == pytest.approx(shares.std(axis=1).mean(), rel=1e-9)
    assert one["change"] == pytest.approx(np.abs(np.diff(shares, axis=1)).mean(), rel=1e-9)


def test_a_scenario_without_a_load_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "run.py variability: paper has no background load; allowed: a scenario with [conditions.load]"
    )


@pytest.mark.filterwarnings("ignore")
def test_random_rates_within_sites_count_for_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "mine.toml").write_text(TEXT)
    (data / "random.toml").write_text(TEXT.replace('intra_rate = "100 Gbit/s"', 'intra_rate = "20-100 Gbit/s"'))
    options = ("--data", str(data), "-n", "6", "--steps", "5 min", "--peaks", "0.9", "--ages", "0")
    lines = printed(main, capsys, str(data / "mine.toml"), str(data / "random.toml"), *options)
    assert len({(one["spread"], one["change"]) for one in lines}) == 1
    for gain in (one[over] for one in lines for over in ("over_base", "over_ecmp", "over_once")):
        assert (gain["low"] is None) == (gain["high"] is None) == bool(gain["why"])


@pytest.mark.filterwarnings("ignore")
def test_intervals_are_those_of_days_that_were_measured(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve days of a matrix every three hours, of which the last but one is missing: the standard error of a ratio of
    two totals (Cochran, 1977, equation 6.4) by days, and Student's quantile. Hall's transformation adds little."""
    draws, folder = np.random.default_rng(5), data / "many"
    folder.mkdir()
    of_day = draws.uniform(20, 50, size=12)  # of whose hours each is much like the others
    for number in [*range(80), *range(88, 96)]:
        day, hour = divmod(number, 8)
        wanted = {ends: float(mbit * of_day[day] * draws.uniform(0.9, 1.1)) for ends, mbit in WANTED.items()}
        (folder / f"demandMatrix-abilene-zhang-5min-200403{1 + day:02}-{3 * hour:02}00.xml").write_text(xml(wanted))
    path = data / "mine.toml"
    path.write_text(TEXT.replace("matrices:matrices", "matrices:many"))
    options = ("--data", str(data), "-n", "100", "--steps", "3 h", "--peaks", "0.7", "--ages", "0")
    (one,) = (each for each in printed(main, capsys, str(path), *options) if each["mode"] == "joint")
    load = {"matrices": f"matrices:{folder}", "peak": 0.7, "step": "3 h", "repeat": True}
    plain = {"conditions.load": load, "fabric.wan": f"sndlib:{data / 'geant.xml'}", "collective.count": 100}
    times = run(scenario(path, plain | {"run.modes": ["base", "joint"]}), progress=lambda *_: None)
    base, joint = (
        times[times["mode"] == mode].completion_s.to_numpy()[:96].reshape(12, 8).sum(axis=1)[[*range(10), 11]]
        for mode in ("base", "joint")
    )
    assert one["days"] == 11 and one["over_base"]["value"] == pytest.approx(1 - joint.sum() / base.sum())
    residual = joint - joint.sum() / base.sum() * base
    reach = float(t.ppf(0.975, 10)) * (residual @ residual * 11 / 10) ** 0.5 / base.sum()
    assert one["over_base"]["why"] == "", one
    low, high = one["over_base"]["low"], one["over_base"]["high"]
    assert high - low == pytest.approx(2 * reach, rel=0.2) and low < one["over_base"]["value"] < high
    longer = printed(main, capsys, str(path), "-n", "200", *options[:2], *options[4:])
    assert {each["days"] for each in longer} == {11}, "a repetition tells nothing new"


@pytest.mark.filterwarnings("ignore")
def test_by_default_a_collective_has_a_matrix_of_its_own(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Matrices of a quarter of an hour each, as GEANT's: with 5 minutes three collectives would have the same one."""
    (data / "quarters").mkdir()
    for number in range(4):
        name = f"demandMatrix-geant-uhlig-15min-20050504-00{15 * number:02}.xml"
        (data / "quarters" / name).write_text(xml({ends: mbit * (1 + number) for ends, mbit in WANTED.items()}))
    (data / "mine.toml").write_text(TEXT.replace("matrices:matrices", "matrices:quarters"))
    options = ("--data", str(data), "-n", "8", "--peaks", "0.9", "--ages", "0")
    lines = printed(main, capsys, str(data / "mine.toml"), *options)
    assert [one["step"] for one in lines] == ["15 min"] * 3 + ["1 h"] * 3
    assert lines[0]["days"] == pytest.approx(1 / 24) and lines[0]["change"] > 0
    asked = ("--steps", "5 min,data,15 min")
    assert main([str(data / "mine.toml"), *options, *asked, "--json"]) == 0
    found = capsys.readouterr()
    assert [one["step"] for one in json.loads(found.out)] == ["15 min"] * 3
    assert "mine: the step 5 min is left out, as matrices are 15 min apart" in found.err
    assert main([str(data / "mine.toml"), *options, "--steps", "300 s"]) == 2
    assert "has matrices that are 15 min apart; allowed: data, or 15 min and more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--ages", "0,new"), '--ages: "new" is not a number of collectives; allowed: whole numbers from 0'),
        (("--peaks", "much"), '"much" is not allowed; allowed: a number above 0, at most 10'),
        (("--steps", "5 weeks"), 'allowed: text with a unit, at most 1000 d, such as "300 s"'),
    ],
)
def test_options_that_make_no_sense_are_refused(
    data: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str], says: str
) -> None:
    (data / "mine.toml").write_text(TEXT)
    assert main([str(data / "mine.toml"), "--data", str(data), *option]) == 2
    assert says in capsys.readouterr().err
