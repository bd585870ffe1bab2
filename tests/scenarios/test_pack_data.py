"""Runs whose conditions rest on a pack's data: they go on only with the data that they began with."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import topohub

from analysis.results import load
from analysis.results.reader import ResultsError, read_provenance
from scenarios import api
from scenarios.experiment import command
from scenarios.experiment.run_files import RunFiles, recorded
from scenarios.experiment.run_folder import RunFolder
from scenarios.spec import FOLDER, ScenarioError
from scenarios.studies import collectives, diloco, grains, referees, variability
from scenarios.studies.harness import Study, loaded
from tests.topologies.test_background_load import scenario
from tests.topologies.test_packs import WANTED, data, xml

__all__ = ["data"]

MATRICES = 'matrices = "matrices:matrices"'
ONE = "matrices/demandMatrix-abilene-zhang-5min-20040301-0005.xml"


def begun(data: Path, name: str = "run") -> Path:
    """A run under a load that was cut short before its first collective."""
    files = RunFiles.begun(RunFolder.new(data / name), scenario(data, MATRICES), engines=["model"], command=["run.py"])
    files.folder.close()
    return data / name


def test_a_run_is_resumed_only_with_the_matrices_that_it_began_with(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A demand that was changed to a digit as long, a file more, and a folder that is gone: each is told."""
    run, whole = begun(data), begun(data, "whole")
    assert command.run(["--resume", str(whole), "--no-report"]) == 0
    once = api.run(scenario(data, MATRICES)).completion_s
    assert load(whole).completion_s.to_list() == once.to_list()
    changed = (data / ONE).read_text().replace("152.5", "252.5")
    kept = (data / ONE).read_bytes()
    (data / ONE).write_text(changed)
    capsys.readouterr()
    assert command.run(["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    name = f"matrices:{data / 'matrices'}"
    assert f"--resume: the data of {name} have changed since the run began; allowed: the same files" in said
    assert not list(run.glob("*.parquet"))
    (data / ONE).write_bytes(kept)
    more = data / "matrices" / "demandMatrix-abilene-zhang-5min-20040301-0030.xml"
    more.write_text(xml(WANTED))
    before = recorded(run)
    assert any("have changed" in line for line in before.differences(before.scenario, None))
    more.unlink()
    assert list(before.differences(before.scenario, None)) == []
    shutil.rmtree(data / "matrices")
    with pytest.raises(ResultsError, match=f"the data of {name} are no longer there; allowed: the same files"):
        recorded(run)


def test_the_digest_of_matrices_is_what_sha256sum_makes_of_their_files(data: Path) -> None:
    found = read_provenance(begun(data))["sha256"][f"matrices:{data / 'matrices'}"]
    shell = "LC_ALL=C; sha256sum *.xml | sha256sum"
    told = subprocess.run(shell, shell=True, cwd=data / "matrices", capture_output=True, text=True, check=True)
    assert found == told.stdout.split()[0]


def test_a_load_of_a_package_has_a_digest_and_without_the_package_one_sentence(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"wan": "topohub:sndlib/abilene", "sites": '["ATLAM5", "CHINng"]'}
    asked = scenario(data, 'matrices = "topohub:sndlib/abilene"\nrepeat = true', **given)
    files = RunFiles.begun(RunFolder.new(data / "run"), asked, engines=["model"], command=["run.py"])
    file = Path(topohub.__file__).parent / "data" / "sndlib" / "abilene.json"
    line = f"{hashlib.sha256(file.read_bytes()).hexdigest()}  abilene.json\n"
    found = read_provenance(files.path)["sha256"]
    assert found == {"topohub:sndlib/abilene": hashlib.sha256(line.encode()).hexdigest()}
    monkeypatch.setitem(sys.modules, "topohub", None)
    with pytest.raises(ScenarioError, match="the package topohub is not installed") as caught:
        scenario(data, 'matrices = "topohub:sndlib/abilene"')
    assert len(caught.value.mistakes) == 1


def test_matrices_that_change_between_two_runs_of_a_process_are_read_again(data: Path) -> None:
    """As in a notebook. Where no demand is left, the WAN has its whole capacity, and collectives are faster."""
    before_s = api.run(scenario(data, MATRICES)).completion_s.sum()
    for file in (data / "matrices").iterdir():
        file.write_text(xml({ends: mbit / 1e6 for ends, mbit in WANTED.items()}))
    assert api.run(scenario(data, MATRICES)).completion_s.sum() < 0.99 * before_s


@pytest.mark.parametrize("study", [one.STUDY for one in (collectives, diloco, grains, referees, variability)])
def test_every_study_of_a_scenario_takes_the_folder_of_its_data(data: Path, study: Study) -> None:
    """Scenarios of packs are in a folder of the installation, where a user has no data."""
    options = study.parser().parse_args([str(FOLDER / "packs" / "sndlib.toml"), "--data", str(data)])
    options.scenario = str(FOLDER / "packs" / "sndlib.toml")  # a list where a study runs several
    assert loaded(options, {}).fabric.wan.name == "geant"
