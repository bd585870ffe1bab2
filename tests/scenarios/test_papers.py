"""Papers: the verdict on a claim, the list, and what every paper's answer has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.papers.paper import DIFFERS, SAME_DIRECTION, SAME_SIZE, Claim
from scenarios.studies.papers import PAPERS, paper

PROJECT = Path(__file__).resolve().parents[2]


def papers(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scenarios/run.py", "papers", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "found,published,neutral,rises,verdict",
    [
        (0.31, 0.30, 0, True, SAME_SIZE),
        (0.20, 0.30, 0, True, SAME_DIRECTION),
        (-0.02, 0.30, 0, True, DIFFERS),
        (0.0, 0.30, 0, True, DIFFERS),
        (-0.31, -0.30, 0, True, SAME_SIZE),
        (1.42, 1.40, 1, True, SAME_SIZE),  # 5 % of the effect, which is 0.40
        (1.30, 1.40, 1, True, SAME_DIRECTION),  # within 10 % of the number, but not of the effect
        (0.90, 1.40, 1, True, DIFFERS),
        (0.5, None, 0, True, SAME_DIRECTION),
        (0.5, None, 0, False, DIFFERS),
        (0.5, None, 1, False, SAME_DIRECTION),
        (1.0, None, 1, True, DIFFERS),
    ],
)
def test_the_verdict_is_about_the_effect(
    found: float, published: float | None, neutral: float, rises: bool, verdict: str
) -> None:
    claim = Claim(says="", found=found, published=published, neutral=neutral, rises=rises, because="of this")
    assert claim.verdict == verdict
    is_explained = verdict == DIFFERS or (verdict == SAME_DIRECTION and published is not None)
    assert claim.why == ("of this" if is_explained else "")


def test_the_list_has_every_paper_with_its_reference() -> None:
    listed = json.loads(papers("--json").stdout)["papers"]
    assert {one["name"] for one in listed} == {*PAPERS}
    assert all(paper(one["name"]).reference == one["paper"] and one["result"] for one in listed)


@pytest.mark.parametrize(
    "arguments,sentence",
    [
        (["dilocco"], 'run.py papers: unknown paper "dilocco"; allowed: '),
        (["--figure", "x"], "run.py papers: --figure: no paper is named; allowed: with the name of a paper"),
        (["diloco", "--jobs", "0"], "run.py papers: --jobs"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(arguments: list[str], sentence: str) -> None:
    ended = papers(*arguments)
    assert ended.returncode == 2 and ended.stderr.startswith(sentence) and ended.stderr.count("\n") == 1


def test_diloco_is_beside_the_papers_table(tmp_path: Path) -> None:
    ended = papers("diloco", "--json", "--figure", str(tmp_path / "diloco"), "--seed", "2")
    assert ended.returncode == 0, ended.stderr
    claims = {one["says"].partition(" needs")[0]: one for one in json.loads(ended.stdout)["claims"]}
    # Table 4 of arXiv 2501.18512, 10B, 90 %: 222.3 Gbit/s for data parallelism, 16, 9.1, 5.2 and 1.4 for the others.
    published = {"DiLoCo (local SGD)": 222.3 / 16, "Streaming DiLoCo": 222.3 / 9.1}
    published["Streaming, overlapped"] = 222.3 / 5.2
    for method, ratio in published.items():
        assert claims[method]["published"] == pytest.approx(ratio)
        assert claims[method]["found"] == pytest.approx(ratio, rel=0.2)
    assert claims["Streaming, overlapped"]["verdict"] == SAME_SIZE
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png", ".csv", ".json"}
