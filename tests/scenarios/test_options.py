"""Command-line options: the scenario keys that they set, refused combinations, and a --help without slow imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import run
from scenarios.experiment import command
from scenarios.experiment.options import STUDIES, parse_request, parser
from scenarios.spec import FOLDER, ScenarioError
from tests.conftest import PROJECT
from tests.topologies.test_packs import data

__all__ = ["data"]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ("--gpus 3+5", ["--set", "fabric.gpus=[3, 5]"]),
        ("--gpus 3+5,8", ["--sweep", "fabric.gpus=[3, 5],8"]),
        ("--chunk 8MB,16MB", ["--sweep", "collective.chunk=8 MB,16 MB"]),
        ("--wan-delay 1ms", ["--set", "conditions.wan_delay=1 ms"]),
        ("--seed 4", ["--set", "run.seed=4"]),
        ("--seed 4,5", ["--sweep", "run.seed=4,5"]),
        ("--modes wan,base", ["--set", 'run.modes=["wan", "base"]']),
        ("--collectives 7", ["--set", "collective.count=7", "--set", "collective.emulated=7"]),
        ("--clock wall --rate-scale 1/50", ["--set", "run.clock=wall", "--set", "run.rate_scale=1/50"]),
        ("--cli --clock wall", ["--set", "run.clock=wall", "--set", "run.rate_scale=1/1000"]),
        ("--cli --clock wall --rate-scale 1/50", ["--clock", "wall", "--rate-scale", "1/50"]),
        ("fig5b --gpus 8", ["fig5b", "--set", "fabric.gpus=8"]),
    ],
)  # fmt: skip
def test_an_option_sets_the_same_scenario_keys_as_set_or_sweep(options: str, keys: list[str]) -> None:
    found, same = parse_request(options.split()), parse_request(keys)
    assert found.scenario == same.scenario
    assert found.scenario != parse_request([]).scenario
    assert found.jobs == (1 if found.scenario.run.is_real else same.jobs)


def test_a_prompt_runs_in_virtual_time_unless_the_wall_clock_is_requested() -> None:
    assert parse_request(["--cli"]).scenario == parse_request([]).scenario
    wall = parse_request(["--cli", "--clock", "wall"]).scenario
    assert wall.run.is_real and parse_request(["--cli", "--set", "run.clock=wall"]).scenario == wall


@pytest.mark.parametrize(
    "arguments",
    [
        "--out a --resume b",
        "--dask somewhere --jobs 2",
        "--cli --json",
        "--cli --dry-run",
        "--clock wall --jobs 2",
        "--collectives 10,20",
        "--clock virtual,wall",
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments: str) -> None:
    with pytest.raises(ScenarioError, match=r"^--"):
        parse_request(arguments.split())


def test_help_names_every_study():
    assert {*STUDIES} == {*run.STUDIES}
    said = " ".join(parser().format_help().split())
    assert all(f"run.py {name} (" in said for name in run.STUDIES) and "campaign.py" in said


@pytest.mark.parametrize("argument", ["--help", "--hepl"])
def test_help_and_a_misspelled_option_import_no_large_libraries(argument: str) -> None:
    code = f"""
import sys
sys.argv = ["run.py", "{argument}"]
from scenarios.run import main
try:
    main()
except SystemExit as error:
    print(error.code, sorted({{"numpy", "pandas", "pyarrow", "rich", "matplotlib"}} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == ("0 []" if argument == "--help" else "2 []")
    assert "--engine" in ended.stdout or "did you mean --help?" in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "--gpus 8 --set fabric.gpus=4",
        "--gpus 4,8 --set fabric.gpus=4",
        "--sweep fabric.gpus=4,8 --gpus 8",
        "--collectives 4 --set collective.count=9",
    ],
)
def test_two_options_that_set_the_same_key_are_refused(arguments: str) -> None:
    with pytest.raises(ScenarioError, match=r"^--\S+( \S+)? cannot be combined with --.*; allowed: one of the two$"):
        parse_request(arguments.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--engine model --set collective.emulated=50", "nothing is measured with --engine model"),
        (
            "--collectives 3 --set collective.emulated=50",
            "50 is more than collective.count, 3: all of these are measured",
        ),
        ("--set collective.emulated=20 --set collective.count=7", "20 is more than collective.count, 7"),
        ("--engine model", ""),
        ("--engine model --collectives 9", ""),  # which sets both
        ("--set collective.count=7", ""),  # the default is cut
        ("--set collective.emulated=4", ""),
    ],
)
def test_a_number_of_measured_collectives_without_effect_is_told(
    options: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run([*options.split(), "--dry-run"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "collective.emulated" in line]
    assert len(said) == bool(told) and all(
        f"--set collective.emulated: {told}" in line.replace("unused: ", "") for line in said
    )


def test_a_folder_of_data_that_no_pack_reads_is_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pack of the folder reads it; one at an absolute path does not, nor does a run without a pack."""

    def said(*options: str) -> list[str]:
        assert command.run([*options, "--engine", "model", "--dry-run"]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if "--data" in line]

    unused = "run.py: --data: unused: no fabric.wan or conditions.load or conditions.moves names a pack"
    (told,) = said("--data", str(tmp_path / "nowhere"))
    assert told.startswith(unused)
    pack = str(FOLDER / "packs" / "sndlib.toml")
    assert said(pack, "--data", str(data)) == []
    (told,) = said(pack, "--data", str(tmp_path / "nowhere"), "--set", f"fabric.wan=sndlib:{data / 'geant.xml'}")
    assert told.startswith(unused)
