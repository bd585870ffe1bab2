"""`run.py variability`: gains by how variable a WAN's rates are."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from scenarios.api import run, scenario
from scenarios.studies import harness
from scenarios.studies.variability import STUDY
from tests.fakes.commands import printed
from tests.topologies.test_background_load import rates
from tests.topologies.test_packs import data

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
    lines = printed(main, capsys, str(path), *options)
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

    def mean_s(mode: str, **more: str) -> float:
        asked = scenario(path, plain | {"run.modes": [mode]} | {key.replace("__", "."): more[key] for key in more})
        return float(run(asked, progress=lambda *_: None)["completion_s"].mean())

    joint_s = mean_s("joint", control__knowledge="stale 2")
    assert one["mean_s"] == pytest.approx(joint_s, rel=1e-12)
    assert one["over_base"] == pytest.approx(1 - joint_s / mean_s("base"), abs=1e-12)
    assert one["over_once"] == pytest.approx(1 - joint_s / mean_s("joint", control__knowledge="mean"), abs=1e-12)
    found = rates(scenario(path, plain), count)
    by_link = [each for each in found.values() if each.std() > 0]  # no rate is random here but those of the WAN
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
    assert all((one["low"] is None) == (one["high"] is None) == bool(one["why"]) for one in lines)


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
