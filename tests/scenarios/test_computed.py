"""How much of a rank's steps is computing, from the lines that it tells."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.program import session
from scenarios.program.computed import Computed, computed
from scenarios.program.rank import longhaul
from tests.fakes.commands import scenario


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["0.5", "0.25"], Computed(0.75, None)),
        (["1.0 0.0 7", "step 2.0 5.0 7", "0.5 3.5 7"], Computed(1.5, 0.25)),  # one before the step is not in it
        (["1.0 2.5 7", "step 2.0 5.0 7"], Computed(1.0, 0.25)),  # half a second of it is
        (["1.0 3.0 7", "1.0 3.0 7", "1.0 3.5 7", "step 2.0 5.0 7"], Computed(3.0, 1.0)),  # threads at once
        (["1.0 3.0 7", "step 2.0 5.0 7", "step 2.0 5.0 8", "2.0 3.0 8"], Computed(3.0, 0.75)),
        (["1.0 3.0 9", "step 2.0 5.0 7"], Computed(1.0, None)),  # another process, whose steps are not told
        (["1.0 3.0 7", "step 2.0 5.0 7", "0.5"], Computed(1.5, None)),  # a command, which has no time
        (["step 2.0 5.0 7"], Computed(0.0, 0.0)),
        (["x", "1e999", "-1", "step", ". 1 1", "1.0 3.0 7", "step 0 5.0 7", "1 2 3 4"], Computed(1.0, None)),
        ([], Computed(0.0, None)),
    ],
)
def test_computing_counts_where_it_is_within_a_step_of_its_process(lines: list[str], found: Computed) -> None:
    assert computed(lines)[:2] == found[:2]


def test_steps_are_numbered_in_each_process_and_on_from_one_that_has_ended() -> None:
    """Processes 7 and 8 train beside each other, and 9 is started when 7 has ended."""
    lines = ["step 1.0 1.0 7 4096", "step 1.5 1.5 8", "step 1.0 2.0 7 2.5e+16", "step 0.5 2.75 9", "step 2.0 3.5 8"]
    found = sorted((one.number, one.step_s, one.tokens) for one in computed(lines).steps if one.tokens is None)
    assert found == [(0, 1.5, None), (1, 2.0, None), (2, 0.5, None)]
    assert [one.tokens for one in computed(lines).steps if one.tokens] == [4096, 2.5e16]


def mpi_run(folder: Path, computed: list[list[str]], printed: str) -> dict[str, Any]:
    """Return the result of a run of 0.5 s on four hosts, of which the first has printed everything."""
    keys = {"program.role": [{"command": "mpirun mine", "on": "g0"}, {"command": "sshd", "on": "others"}]}
    (config,) = scenario(**keys, fabric__gpus=4, run__modes=["base"]).configurations()
    (folder / "output").mkdir(parents=True)
    (folder / "output/0.stdout").write_text(printed)
    state = session.RunState(folder, (0, 1, 2, 3))
    told = [session_lines(lines) for lines in computed]
    state.write(json.dumps({"over": {"computed": told}, "at_ns": 500_000_000}).encode() + b"\n")
    state.began, state.ended = True, dict.fromkeys(range(4), (0, 500_000_000))
    return session.result_of(config, state, None, 1.0)


def session_lines(lines: list[str]) -> Any:
    """Return what a rank's lines become on their way out of the VM."""
    return json.loads(json.dumps(computed(lines))) if lines else None


def test_steps_under_a_launcher_are_those_of_the_hosts_that_reported_them(tmp_path: Path) -> None:
    """Rank 0 computes for 30 ms in each of four steps, while the others sleep for 100 ms: mpirun prints all 16."""
    ends = [0.1, 0.2, 0.3, 0.4]
    busy = [line for end in ends for line in (f"0.03 {end - 0.03} 5", f"step 0.03 {end} 5")]
    idle = [f"step 0.1 {end} 5" for end in ends]
    printed = "longhaul: step 0.030000000\n" * 4 + "longhaul: step 0.100000000\n" * 12
    found = mpi_run(tmp_path / "reported", [busy, idle, idle, idle], printed)
    expected = [(rank, step, 0.1 if rank else 0.03) for rank in range(4) for step in range(4)]
    assert found["steps"] == expected
    assert (found["step_s"], found["step_count"], found["are_steps_mixed"]) == (0.1, 4, False)
    assert [rank["computed_of_steps"] for rank in found["ranks"]] == pytest.approx([1, 0, 0, 0])
    said = session.computing_sentence([found | {"label": ""}])
    assert "takes 0.0 % of rank 1's median step of 100 ms" in said  # the slowest
    found = mpi_run(tmp_path / "printed", [["0.12 0.1 5"], [], [], []], printed)
    assert found["are_steps_mixed"] and found["step_count"] == 16
    assert "takes 24.0 % of rank 0's 0.500 s" in session.computing_sentence([found | {"label": ""}])
    (note,) = session._notes_on_steps(None, are_mixed=True)
    assert "of several processes, which a launcher forwards: longhaul.report" in note


def test_the_share_of_many_steps_is_that_of_a_fine_grid() -> None:
    rng = np.random.default_rng(1)
    begins, lengths = np.sort(rng.integers(0, 20_000, 60)), rng.integers(1, 300, 60)
    ends, steps = np.arange(2_000, 20_001, 900), rng.integers(300, 900, 21)
    lines = [f"{length} {begin} 1" for begin, length in zip(begins, lengths, strict=True)]
    lines += [f"step {took} {end} 1" for end, took in zip(ends, steps, strict=True)]
    at = np.arange(25_000)
    busy = sum(((at >= a) & (at < a + n)).astype(int) for a, n in zip(begins, lengths, strict=True))
    inside = [min(int(busy[end - took : end].sum()), took) for end, took in zip(ends, steps, strict=True)]
    assert computed(lines).of_steps == pytest.approx(sum(inside) / steps.sum())


def test_what_the_module_writes_is_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"""
import sys, time
sys.path.insert(0, {str(Path(longhaul.__file__).parent)!r})
import longhaul
from pathlib import Path
longhaul._COMPUTED = Path("told")
longhaul.compute(0.2)
begun = time.monotonic()
longhaul.compute(0.05)
time.sleep(0.15)
longhaul.report(step=time.monotonic() - begun)
"""
    )
    subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, check=True)
    found = computed((tmp_path / "told").read_text().splitlines())
    assert found.whole_s == pytest.approx(0.25)
    assert found.of_steps is not None and 0.1 < found.of_steps <= 0.26


def test_the_sentence_has_the_share_of_the_steps_of_the_slowest_rank() -> None:
    rank = {"start_s": 0.0, "end_s": 4.0, "computed_s": 1.0}
    ranks = [{"rank": 0, "computed_of_steps": 0.25, **rank}, {"rank": 1, "computed_of_steps": 0.75, **rank}]
    result: dict[str, Any] = {"are_steps_mixed": False, "label": "", "ranks": ranks}
    result |= {"steps": [(0, 0, 0.5), (1, 0, 0.4), (0, 1, 0.5), (1, 1, 0.4)]}
    said = session.computing_sentence([result])
    assert said.startswith("computing (longhaul.compute) takes 25.0 % of rank 0's median step of 500 ms; the rest is")
    result["steps"] = [(0, number, step_s) for number, step_s in enumerate((0.4, 0.4, 1.0))]  # 0.15 s of each computing
    assert "takes 37.5 % of rank 0's median step of 400 ms" in session.computing_sentence([result])
    ranks[0]["computed_of_steps"] = None
    assert "takes 25.0 % of rank 0's 4.000 s; the rest is" in session.computing_sentence([result])
    # As where steps are printed: the share of a step is not known, and it is told which call gives it.
    assert session.computing_sentence([result]).endswith(
        "longhaul.report(step=SECONDS) of Python tells the share of a step"
    )
    result["steps"] = []
    assert session.computing_sentence([result]).endswith("; the rest is communication and waiting")


def test_the_figure_of_steps_has_what_the_rank_computes_and_not_a_share_of_another_ranks_step(tmp_path: Path) -> None:
    """Each rank computes for 12 ms a step. Rank 1 has waited longest to connect; rank 0 has the slowest later steps."""
    steps = [(0, 0, 0.1), (0, 1, 0.09), (0, 2, 0.09), (1, 0, 0.2), (1, 1, 0.086), (1, 2, 0.086)]
    took_s = {rank: sum(step_s for of, _, step_s in steps if of == rank) for rank in (0, 1)}
    ranks = [{"rank": rank, "computed_of_steps": 0.036 / took_s[rank]} for rank in took_s]
    result: dict[str, Any] = {"are_steps_mixed": False, "ranks": ranks, "steps": steps, "step_s": 0.09, "step_count": 3}
    runs = [result | {"label": rate, "values": {"conditions.wan_rate": rate}} for rate in ("10 Gbit/s", "50 Gbit/s")]
    assert session.computing_sentence(runs).count("takes 14.0 % of rank 1's median step of 86 ms at ") == 1
    session._draw_steps(tmp_path, runs)
    rows = list(csv.DictReader((tmp_path / "figures/steps.csv").open()))
    assert [float(row["computing_s"]) for row in rows] == pytest.approx([0.012] * 2)
    assert [(row["computing_rank"], row["computing_rank_step_s"]) for row in rows] == [("1", "0.086")] * 2
