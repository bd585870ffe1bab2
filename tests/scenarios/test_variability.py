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
    by_link = [each for each in rates(scenario(path, plain), count).values() if each.std() > 0]
    shares = np.array([each / each.mean() for each in by_link])
    assert one["spread"] == pytest.approx(shares.std(axis=1).mean(), rel=1e-9)
    assert one["change"] == pytest.approx(np.abs(np.diff(shares, axis=1)).mean(), rel=1e-9)


def test_a_scenario_without_a_load_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "run.py variability: paper has no background load; allowed: a scenario with [conditions.load]"
    )
