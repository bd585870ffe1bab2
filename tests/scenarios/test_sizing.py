"""`run.py sizing`: its table, its figure and its error messages."""

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scenarios.studies import harness
from scenarios.studies.sizing import STUDY
from tests.fakes.commands import assert_refused, printed

main = partial(harness.main, STUDY)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["model"], row["what"]): row for row in printed(main, capsys, *arguments)["rows"]}


def test_the_table_marks_values_that_differ_from_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    replicas = next(line for line in lines if "100T" in line and "replicas  " in line)
    assert replicas.split()[-4:] == ["721", "721", "+0.00", "%"]
    months = next(line for line in lines if "3,226T" in line)
    assert "-3.60 %*  months of 30 days; the document's own numbers give 23.1" in months


def test_every_input_changes_the_results_that_depend_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(capsys)
    for arguments, key in (
        (("--budget", "50e9"), ("", "racks")),
        (("--compute-share", "0.5"), ("", "racks")),
        (("--rack-price", "4e6"), ("", "racks")),
        (("--racks", "10000"), ("100T", "replicas")),
        (("--gpus-per-rack", "36"), ("100T", "tensor parallelism")),
        (("--rack-pflops", "720"), ("50T", "forward pass of a layer")),
        (("--rack-memory", "27 TB"), ("100T", "layers per rack")),
        (("--rack-power", "100"), ("", "power for computing")),
        (("--nvlink", "7.2 Tbit/s"), ("100T", "all-reduce in a rack")),
        (("--nic", "400 Gbit/s"), ("100T", "all-reduce between racks")),
        (("--precision", "fp8"), ("100T", "memory, parameters")),
        (("--heads", "100"), ("50T", "memory, activations")),
        (("--vocabulary", "10000000"), ("50T", "parameters")),
        (("--sequence", "8192"), ("50T", "pipeline, point to point")),
        (("--tokens-per-parameter", "20"), ("", "parameters trained in 30 days")),
    ):
        after = rows(capsys, *arguments)
        assert after[key]["value"] != before[key]["value"], arguments
        assert after[key]["document"] == before[key]["document"]
    assert rows(capsys, "--budget", "50e9")["", "racks"]["value"] == 11_666


def test_a_user_defined_model_is_sized_without_the_documents_models(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--layers", "96", "--hidden", "12288", "--vocabulary", "50257", "--heads", "96")
    assert {model for model, _ in found} == {"", "own"}
    assert found["own", "parameters"]["value"] == pytest.approx(0.1746, rel=1e-3)  # GPT-3 has 175 billion
    assert all(row["document"] is None for (model, _), row in found.items() if model == "own")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--budget", "0"), "--budget: 0.0; allowed: above 0, to 1e+15"),
        (("--budget", "nan"), "--budget: nan; allowed: above 0"),
        (("--budget", "10"), "--budget: 0 racks for 10 dollars; allowed: 1 to 100,000,000"),
        (("--compute-share", "2"), "--compute-share: 2.0; allowed: above 0, to 1"),
        (("--tokens-per-parameter", "-1"), "--tokens-per-parameter: -1.0; allowed: above 0"),
        (("--rack-price", "1e-300"), "--rack-price: 1e-300; allowed: above 0.01, to 1e+15"),
        (("--racks", "-3"), "--racks: -3; allowed: above 0"),
        (("--racks", "100"), "224 layers; allowed: at most the number of racks, 100"),
        (("--nic", "fast"), '"fast" is not a rate'),
        (("--rack-memory", "1 TB"), "1.78 TB of a layer; allowed: the memory of a rack, 1 TB"),
        (("--layers", "5"), "--layers is given alone; allowed: with --hidden"),
        (("--figure", "nowhere/x"), "--figure: there is no folder nowhere"),
    ],
)
def test_invalid_inputs_are_refused_in_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(main, capsys, arguments, sentence)


def test_the_figure_is_written_together_with_its_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = rows(capsys, "--figure", str(tmp_path / "sized"))
    with (tmp_path / "sized.csv").open() as file:
        data = {(row["model"], row["what"]): row for row in csv.DictReader(file)}
    assert set(data) == set(found)
    assert float(data["50T", "replicas"]["value"]) == 1196
    assert data["", "between the datacenters"]["value"] == ""
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png", ".csv", ".json"}
