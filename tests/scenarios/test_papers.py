"""Papers: the verdict on a claim, the list, and what every paper's answer has."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from scenarios.papers import atlas, long_haul
from scenarios.papers.paper import DIFFERS, NOT_CLAIMED, SAME_DIRECTION, SAME_SIZE, Claim
from scenarios.studies.papers import PAPERS, STUDY, paper

PROJECT = Path(__file__).resolve().parents[2]


def papers(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "scenarios/run.py"), "papers", *arguments]
    with tempfile.TemporaryDirectory() as folder:  # for figures
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_without_a_path_figures_are_drawn_in_a_new_folder_of_results_beside_the_answers(tmp_path: Path) -> None:
    command = [sys.executable, str(PROJECT / "scenarios/run.py"), "papers", "diloco", "uno", "--engine", "model"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("papers-")
    # The figure of uno is of what was measured.
    assert {file.name for file in folder.iterdir()} == {f"diloco.{end}" for end in ("svg", "png", "csv", "json")}
    assert json.loads((folder / "diloco.json").read_text())["claims"] and str(folder.name) in ended.stderr
    (tmp_path / "none").mkdir()
    (tmp_path / "none/results").write_text("")
    ended = subprocess.run(command, cwd=tmp_path / "none", capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "DiLoCo" in ended.stdout
    assert re.search("run.py papers: no figure was written: .*results is not a folder", ended.stderr)


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


def test_what_is_asked_beside_the_paper_has_no_verdict_on_the_paper() -> None:
    ours = [Claim(says="", found=found, neutral=1, because="of this", is_ours=True) for found in (0.5, 1.0, 2.0)]
    assert {(claim.verdict, claim.why) for claim in ours} == {(NOT_CLAIMED, "")}


@pytest.mark.parametrize(("cores", "gigabytes", "jobs"), [(1, 64, 1), (2, 8, 2), (2, 4, 1), (64, 256, 2)])
def test_vms_keep_two_cores_busy_if_there_are_two_and_memory_for_them(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, jobs: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)})
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": gigabytes * 250_000, "SC_PAGE_SIZE": 4000}.__getitem__)
    assert STUDY.parser().parse_args(["atlas"]).jobs == jobs


def test_the_list_has_every_paper_with_its_reference() -> None:
    listed = json.loads(papers("--json").stdout)["papers"]
    assert {one["name"] for one in listed} == {*PAPERS}
    assert all(paper(one["name"]).reference == one["paper"] and one["result"] for one in listed)


@pytest.mark.parametrize(
    "arguments,sentence",
    [
        (["dilocco"], 'run.py papers: unknown paper "dilocco"; allowed: '),
        (["diloco", "Atlass"], 'run.py papers: unknown paper "Atlass"; allowed: '),
        (["diloco", "atlas", "--figure", "x"], "run.py papers: --figure: 2 papers are named; allowed: with one"),
        (["--figure", "x"], "run.py papers: --figure: no paper is named; allowed: with the name of a paper"),
        (
            ["uno", "--engine", "model", "--figure", "x"],
            "run.py papers: --figure: uno has a figure",
        ),
        (["diloco", "--jobs", "0"], "run.py papers: --jobs"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(arguments: list[str], sentence: str) -> None:
    ended = papers(*arguments)
    assert ended.returncode == 2 and ended.stderr.startswith(sentence) and ended.stderr.count("\n") == 1


def test_several_papers_are_repeated_one_after_the_other() -> None:
    assert papers("long_haul").stderr.endswith("(did you mean long-haul?)\n")
    options = ("--engine", "model", "--json")
    both = json.loads(papers("diloco", "placement", "diloco", *options).stdout)
    assert both == [json.loads(papers(name, *options).stdout) for name in ("diloco", "placement")]


def test_diloco_is_beside_the_papers_table(tmp_path: Path) -> None:
    ended = papers("diloco", "--json", "--figure", str(tmp_path / "diloco"), "--seed", "2")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    claims = {one["says"].partition(" needs")[0]: one for one in told["claims"]}
    # Table 4 of arXiv 2501.18512, 10B, 90 %: 222.3 Gbit/s for data parallelism, 16, 9.1, 5.2 and 1.4 for the others.
    published = {"DiLoCo (local SGD)": 222.3 / 16, "Streaming DiLoCo": 222.3 / 9.1}
    published["Streaming, overlapped"] = 222.3 / 5.2
    for method, ratio in published.items():
        assert claims[method]["published"] == pytest.approx(ratio)
        assert claims[method]["found"] == pytest.approx(ratio, rel=0.2)
    assert claims["Streaming, overlapped"]["verdict"] == SAME_SIZE
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png", ".csv", ".json"}
    with (tmp_path / "diloco.csv").open() as file:
        theirs = [row for row in csv.DictReader(file) if row["published"] == "True"]
    streaming = {float(row["utilisation"]): float(row["gbps"]) for row in theirs if row["method"] == "Streaming DiLoCo"}
    # A round of DiLoCo: 100 steps of 0.8 s, and half of the values of 16 bits twice, but for the last two thirds of a
    # step (its backward), in which 47 of 48 layers' sums begin.
    measured = {(one["method"], one["gbps"]): one["measured"] for one in told["lines"] if "gbps" in one}
    assert len(measured) == 10
    for gbps in (5.2, 16.0):
        sum_s = 160 / gbps
        assert 80 / (80 + sum_s) < measured["DiLoCo (local SGD)", gbps] < 80 / (80 + sum_s - 0.8)
    with (tmp_path / "diloco.csv").open() as file:
        assert sum(row["beside"] == "True" for row in csv.DictReader(file)) == 10
    assert len(theirs) == 25 and streaming == {0.5: 1.7, 0.8: 5.2, 0.9: 9.1, 0.95: 13.3, 0.99: 19.3}


def test_parallel_connections_carry_a_window_a_round_trip_each_and_an_allreduce_takes_the_formula_s_time() -> None:
    """In TCP itself: what one connection has under way is the same at any distance, and four have four times that."""
    carried, shown = dict[int, float](), list[str]()
    found = dict(atlas.measured({(50, 0.0): (1, 4), (200, 0.0): (1, 4)}, seed=1, jobs=2, show=shown.append))
    assert [one[:6] for one in shown] == ["0 of 2", "1 of 2", "2 of 2"]
    for ms in (50, 200):
        lines = {count: found[ms, 0.0, count] for count in (1, 4)}
        carried[ms] = lines[1][0] * ms / 8e3
        assert lines[4][0] == pytest.approx(4 * lines[1][0], rel=2e-3)
        # 10 MB each way, twice: two windows wait for a round trip each, and the rest follows at 5 Gbit/s.
        last_s = (10e6 - 2 * carried[ms]) * 8 / 5e9
        assert lines[1][1] == pytest.approx(2 * (ms / 2e3 + 2 * ms / 1e3 + last_s), rel=2e-3)
    assert carried[50] == pytest.approx(carried[200], rel=2e-3)
    assert atlas.window_bytes(0.2, 0.0) == pytest.approx(carried[200], rel=2e-3)


@pytest.mark.parametrize("round_trip_s,loss", [(0.2, 1e-4), (0.1, 1e-4), (0.05, 3e-4)])
def test_the_window_under_losses_is_that_of_the_cubic_that_it_describes(round_trip_s: float, loss: float) -> None:
    """A window that a loss reduces to 0.7 grows by 0.4 (t - K)^3, and is back at its most when the next loss comes,
    after 1 / loss segments."""
    most = 0.0
    carried = 0.0
    while carried < 1 / loss:
        most += 0.05
        back_s = (most * 0.3 / 0.4) ** (1 / 3)
        windows = [0.4 * (back_s * (step / 500 - 1)) ** 3 + most for step in range(500)]
        carried = sum(windows) / 500 * back_s / round_trip_s
    reno = 1.22 / loss**0.5
    assert atlas.window_bytes(round_trip_s, loss) / atlas.SEGMENT == pytest.approx(
        max(sum(windows) / 500, reno), rel=0.01
    )


@pytest.mark.parametrize("scheme", [long_haul.REPEAT, long_haul.CODE])
@pytest.mark.parametrize("loss", [1e-3, 1e-2])
def test_mean_times_of_datagrams_under_losses_are_those_of_many_draws(scheme: str, loss: float) -> None:
    """Draws of single datagrams, with requests and answers that are lost too, at 10 Gbit/s over 50 ms."""
    draws, round_trip_s = np.random.default_rng(3), 0.05
    each_s = 8947 * 8 / (10e9 * 9014 / 8948)  # 8,896 bytes, 9 of a head, 42 of UDP, IP and Ethernet

    def is_lost() -> bool:
        return bool(draws.random() < loss)

    def repaired_s() -> float:
        late_s = round_trip_s
        while is_lost() or is_lost():  # the request, or the answer
            late_s += 2.25 * round_trip_s
        return late_s

    def exchange_s() -> float:
        lost = draws.random(1200) < loss
        if scheme == long_haul.REPEAT:
            return max((n + 1) * each_s + (repaired_s() if lost[n] else 0.0) for n in range(960))
        last_s = 0.0
        for block in range(30):
            one = lost[block * 40 : block * 40 + 40]
            for group in range(8):
                is_asked = one[group:32:8].sum() + one[32 + group] > 1
                last_s = max(last_s, (block + 1) * 40 * each_s + (repaired_s() if is_asked else 0.0))
        return last_s

    times = [exchange_s() + exchange_s() + round_trip_s for _ in range(400)]
    predicted = long_haul.predicted_s(scheme, round_trip_s, loss)
    assert predicted is not None
    assert abs(predicted - np.mean(times)) < 4 * np.std(times) / 20


def test_datagrams_are_repaired_by_requests_or_by_the_code() -> None:
    """Programs check every byte that arrives. Losses are drawn from the seed, so both lose frames."""
    points = [(scheme, 50, 0.0) for scheme in long_haul.PROGRAMS]
    whole_s = {scheme: times for (scheme, *_), times in long_haul.times_s(points, seed=1, jobs=2, count=2)}
    # Twice 25 ms and 960 datagrams of 8,947 bytes, with 240 more of the code; the last one costs nothing.
    each_s = 8947 * 8 / (10e9 * 9014 / 8948)
    assert whole_s[long_haul.REPEAT] == pytest.approx([2 * (0.025 + 959 * each_s)] * 2, rel=1e-4)
    assert whole_s[long_haul.CODE] == pytest.approx([2 * (0.025 + 1199 * each_s)] * 2, rel=4e-3)
    for scheme in long_haul.PROGRAMS:
        ((_, lossy_s),) = long_haul.times_s([(scheme, 50, 1e-2)], seed=1, jobs=1, count=6)
        assert min(lossy_s) >= min(whole_s[scheme]) * 0.999 and max(lossy_s) > 1.05 * max(whole_s[scheme])
        predicted = long_haul.predicted_s(scheme, 0.05, 1e-2)
        assert predicted is not None and np.mean(lossy_s) == pytest.approx(predicted, rel=0.35)


def test_programs_of_papers_begin_in_their_own_folder_and_a_signal_leaves_no_files(tmp_path: Path) -> None:
    """No program can be run in /, but a paper does not need the folder that it is called from."""
    command = [sys.executable, str(PROJECT / "scenarios/run.py"), "papers", "uno", "--jobs", "2"]
    began = subprocess.Popen(
        command,
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(PROJECT)},
    )
    ranks_run = time.monotonic() + 120
    while began.poll() is None and not [*tmp_path.rglob("*.stdout")] and time.monotonic() < ranks_run:
        time.sleep(0.1)
    assert [*tmp_path.rglob("*.stdout")], began.communicate()
    began.send_signal(signal.SIGTERM)
    assert began.communicate(timeout=60)[1].endswith("interrupted\n")
    assert began.returncode == 128 + signal.SIGTERM and not [*tmp_path.iterdir()]
