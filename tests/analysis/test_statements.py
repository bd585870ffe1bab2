"""What titles, legends, notes and tables state follows from the data, also where scenarios are unusual."""

import csv
import io
import json
import math
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.figures import program as program_figure
from analysis.figures import training
from analysis.figures.collective_detail import collectives_of
from analysis.figures.run_points import configurations_of, groups_of, points_of
from analysis.results.reader import open_run
from scenarios.experiment import command
from scenarios.experiment.run_folder import RunFolder
from scenarios.program import command as program_command
from scenarios.program import session
from scenarios.program.condition_changes import ProgramTimeline
from scenarios.program.rows import rows_as_collectives
from scenarios.signals import Interrupted
from scenarios.vm import VMError
from tests.fakes.commands import scenario
from topologies.fabric.failures import Cables


def modelled(folder: Path, *options: str) -> Path:
    """Run the model without figures; return the run folder."""
    plain = ("paper", "--engine", "model", "--collectives", "2", "--no-report", "--out", str(folder / "run"))
    status = command.run([*plain, *options])
    assert status == 0
    return folder / "run"


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ('{ "s0b0>s1b0" = { delay = "5 ms" } }', "WAN links of 10 µs to 5 ms"),
        ('{ wan = { delay = "3 ms" } }', "WAN links of 3 ms"),
        ('{ gpu-gpu = { delay = "3 ms" } }', "WAN links of 10 µs"),
        ('{ wan = { rate = "5 Gbit/s" } }', "WAN links of 10 µs"),
    ],
)
def test_a_figures_title_has_the_delays_that_its_wan_links_have(tmp_path: Path, links: str, words: str) -> None:
    run = modelled(tmp_path, "--modes", "base", "--set", f"conditions.links={links}")
    (group,) = groups_of(configurations_of(open_run(run)))
    parts = group.title.split(", ")
    assert words in [part.partition(" and ")[0] for part in parts]
    assert sum("5 Gbit/s" in part for part in parts) == ("5 Gbit/s" in links)  # a rate is told once


def test_a_swept_wan_delay_is_not_said_of_links_that_have_their_own(tmp_path: Path) -> None:
    swept = ("--modes", "base", "--wan-delay", "10 us,1 ms")
    (plain,) = groups_of(configurations_of(open_run(modelled(tmp_path / "a", *swept))))
    own = ("--set", 'conditions.links={ "s0b0>s1b0" = { delay = "5 ms" } }')
    (group,) = groups_of(configurations_of(open_run(modelled(tmp_path / "b", *swept, *own))))
    assert (plain.x_label, group.x_label) == ("WAN link delay", "delay of WAN links without one of their own")


@pytest.mark.parametrize(("sizes", "alike"), [("64 MB,1 GB", True), ("1 kB,64 MB", False)])
def test_a_title_has_a_number_of_pieces_only_if_all_sizes_have_it(tmp_path: Path, sizes: str, alike: bool) -> None:
    chain = ("kind=allreduce", "algorithm=chain", "pieces=chosen")
    sets = [word for one in chain for word in ("--set", f"collective.{one}")]
    (group,) = groups_of(configurations_of(open_run(modelled(tmp_path, "--modes", "base", *sets, "--size", sizes))))
    pieces = [one.values["collective.pieces"] for one in group.configurations]
    assert (pieces[0] == pieces[1]) == alike
    assert [word for word in group.title.split(", ") if "pieces" in word] == [f"pieces {pieces[0]}"] * alike


@pytest.mark.parametrize(("across", "said", "unsaid"), [("data", "gradients over the WAN", ">over the WAN"),
                                                        ("pipeline", ">over the WAN", "gradients over")])  # fmt: skip
def test_the_legend_of_a_pipeline_names_only_arrows_that_are_drawn(
    tmp_path: Path, across: str, said: str, unsaid: str
) -> None:
    """Replicas in a site each exchange only gradients over the WAN; a pipeline over both sites only activations."""
    options = [f"training.across={across}", "training.replicas=2", "training.micro_batches=2",
               'training.gradient_size="1 MB"', "fabric.gpus=4"]  # fmt: skip
    folder = tmp_path / "run"
    arguments = ["geopipe", "--engine", "model", "--collectives", "1", "--no-report", "--out", str(folder)]
    sets = [part for option in options for part in ("--set", option)]
    assert command.run([*arguments, "--modes", "base", *sets]) == 0
    run = open_run(folder)
    first, *_ = configurations_of(run)
    predicted = collectives_of(run, points_of(run, [first, *_]), first, number=0)
    drawn = training.diagram("geopipe", [], predicted, training.trained(first)[0])
    assert drawn is not None
    assert said in drawn.svg and unsaid not in drawn.svg


def sample(at_s: float, sent: int, rate_bps: float = 10e9) -> tuple[int, list[int], list[float]]:
    return round(at_s * 1e9), [sent], [rate_bps * at_s / 8]


def used(samples: list[tuple[int, list[int], list[float]]]) -> list[float]:
    """Return the utilisation that the figure of a program shows of one link."""
    rank = {"rank": 0, "gpu": "g0", "status": 0, "end_s": samples[-1][0] / 1e9}
    run = {"run_s": samples[-1][0] / 1e9, "ranks": [rank], "links": [{"link": "s0b0>s1b0"}]}
    data = program_figure.picture(run, samples).data
    return [float(row["utilisation"]) for row in csv.DictReader(io.StringIO(data))]


def test_the_last_packet_of_a_program_does_not_fill_a_link_many_times() -> None:
    """A packet of 64 kB leaves 13 ns before the end: it counts to the last whole interval."""
    regular = [sample(0, 0), sample(0.01, 5_000_000), sample(0.02, 10_000_000)]
    assert used(regular) == pytest.approx([0.4, 0.4])
    assert used([*regular, sample(0.020000013, 10_064_000)]) == pytest.approx([0.4, 5_064_000 / 12.5e6], rel=1e-3)
    assert used([*regular, sample(0.025, 15_000_000)]) == pytest.approx([0.4, 0.4, 0.8])
    (alone,) = used([sample(0, 0), sample(1e-8, 98)])
    assert math.isnan(alone)  # 98 bytes in 10 ns at 12.5 bytes: no utilisation can be told


def test_the_table_of_a_program_has_no_share_for_a_run_shorter_than_its_packets() -> None:
    counts = [(98, 12.5), (0, 0.0), (500_000, 1e6), (1_009_000, 1e6), (1_010_000, 1e6)]
    links = [
        {"link": f"link{number}", "bytes": sent, "capacity_bytes": most}
        | {"in_use_bytes": sent, "in_use_capacity_bytes": most / 1.04}
        | {"in_collectives_bytes": None, "in_collectives_capacity_bytes": None}
        for number, (sent, most) in enumerate(counts)
    ]
    result: dict[str, Any] = {"ranks": [], "links": links, "captures": None, "changes": 0, "rerouted": 0}
    result |= {"drops": 0, "run_s": 1e-8, "wall_s": 1.0, "collectives": [], "script_steps": None, "tokens_per_s": None}
    lines = program_command._table(result).splitlines()
    assert lines[1].split("  ")[-1].strip() == "while in use" and "collectives" not in lines[1]
    defined = [line for line in lines if line.startswith("over the run: ")]
    assert len(defined) == 1 and "; while in use: the same in the samples" in defined[0]
    assert "in collectives" not in defined[0]
    shown = [re.split("  +", line.strip())[2:] for line in lines[2:7]]
    assert [whole for whole, _ in shown] == ["too short", "0.0%", "50.0%", "100.0%", "101.0%"]
    assert [used for _, used in shown[1:4]] == ["0.0%", "52.0%", "104.9%"]
    assert not any("conditions changed" in line for line in lines)
    lines = program_command._table(result | {"changes": 1}).splitlines()
    assert "conditions changed once, and WAN paths 0 times" in lines


class RoutedTestbed:
    """A testbed that counts the crossings whose best path changes, as a controller counts its messages."""

    def __init__(self) -> None:
        self.rates: list[np.ndarray] = []

    def route_all(self, mode: object, rates_bps: np.ndarray, *, best: bool, dead: Cables, **others: object) -> int:
        self.rates.append(rates_bps.copy())
        return int(len(self.rates) < 2 or (self.rates[-1] != self.rates[-2]).any())

    def change(self, rates_bps: np.ndarray) -> None: ...

    def settle(self) -> None: ...


@pytest.mark.parametrize("moves", [False, True])
def test_only_changes_of_conditions_and_paths_that_happen_are_counted(moves: bool) -> None:
    rates = {} if moves else {"conditions.wan_rate": "40 Gbit/s", "conditions.intra_rate": "100 Gbit/s"}
    values = {"conditions.every": "10 ms", "run.modes": ["wan"], "program.command": "true", **rates}
    (config,) = scenario(**values).configurations()
    testbed: Any = RoutedTestbed()
    timeline = ProgramTimeline(testbed, rows_as_collectives(config))
    for row in range(1, 12):
        timeline.advance(row * 10_000_000)
    assert (timeline.count, timeline.rerouted) == ((11, 11) if moves else (0, 0))


def test_a_program_tells_that_it_runs_in_the_first_of_several_modes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program_command.RunFiles, "begun", full)
    for modes, said in ((["base", "wan"], True), (["wan"], False)):
        (config,) = scenario(run__modes=modes, program__command="true").configurations()
        folder: Any = SimpleNamespace(path=Path("run"))
        program_command.run_program(config, folder, ["run.py"], modes[:1], as_json=True, shown="none")
        told = capsys.readouterr().err
        assert (
            "the program runs in base, the first of the modes base, wan: with --modes base,wan it runs" in told
        ) == said


def test_the_note_on_computing_claims_nothing_of_the_run() -> None:
    """Whether ranks slept as if they computed is not known, so that the note only says what takes time."""
    assert "took" not in session.COMPUTING and "longhaul.compute(SECONDS)" in session.COMPUTING


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ({}, "WAN 10-100 Gbit/s (conditions.wan_rate), within sites 20-200 Gbit/s (conditions.intra_rate)"),
        ({"conditions.wan_rate": "40 Gbit/s"}, "within sites 20-200 Gbit/s (conditions.intra_rate)"),
        ({"conditions.wan_rate": "40 Gbit/s", "conditions.intra_rate": "50 Gbit/s"}, None),
    ],
)
def test_a_program_tells_which_rates_are_random(
    rates: dict[str, str],
    told: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result: dict[str, Any] = {"ranks": [{"rank": 0, "computed_s": 0.5, "start_s": 0.0, "end_s": 1.0}]}
    result["ranks"][0]["computed_of_steps"], result["steps"] = None, []
    monkeypatch.setattr(program_command, "_run_in", lambda *_, **__: program_command._Ran(result, [], []))
    config, folder = scenario(**rates, **{"program.command": "true"}), RunFolder.new(tmp_path / "run")
    program_command.run_program(config, folder, ["run.py"], ["base"], as_json=True, shown="none")
    lines = [line for line in capsys.readouterr().err.splitlines() if "rates are drawn" in line]
    assert lines == ([] if told is None else [f"run.py: rates are drawn at random: {told}"])
    assert told is None or "rates are drawn" in (tmp_path / "run" / "log.txt").read_text()


def test_a_sweep_that_ends_early_tells_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third of four runs is interrupted, or its VM breaks."""
    delays, errors = ["1 ms", "2 ms", "3 ms", "4 ms"], list[BaseException]()
    rank = dict.fromkeys(session._OF_RANK, 0)

    def run_in(_: object, points: Any, number: int, *__: object, **___: object) -> program_command._Ran:
        if number == 2:
            raise errors[-1]
        values = {"conditions.wan_delay_s": (number + 1) / 1e3}
        result = {"configuration": number + 1, "label": points[number][0].label, "values": values, "ranks": [rank]}
        result |= {"links": [], "steps": [], "script_steps": None, "step_s": 0.5 + number, "step_count": 3}
        result |= {"tokens_per_s": None, "are_steps_mixed": False}
        return program_command._Ran(result | {"run_s": 7.0 + number}, [], [])

    monkeypatch.setattr(program_command, "_run_in", run_in)
    config = scenario(**{"sweep.conditions.wan_delay": delays, "program.command": "true"})
    for name, error in (("interrupted", Interrupted()), ("broken", VMError("the VM is gone"))):
        errors.append(error)
        folder = RunFolder.new(tmp_path / name)
        with suppress(Interrupted):
            program_command.run_program(config, folder, ["run.py"], ["base"], as_json=False, shown="none")
        output, said = capsys.readouterr()
        assert f"the unfinished run is in {folder.path}; a program's run cannot be resumed, only started again" in said
        table = output.splitlines()
        told, answer, empty, _, *table = table
        assert told == "2 of 4 runs are complete:" and len(table) == 2 and not empty
        assert answer.endswith("the median step is 500 ms at 1 ms and 1,500 ms at 2 ms.")
        assert [line.split()[:2] for line in table] == [["7.000000", "0.500000"], ["8.000000", "1.500000"]]
        assert "1 ms" in table[0] and "2 ms" in table[1]
        (kept,) = json.loads((tmp_path / name / "program.json").read_text()).values()
        assert [one["run_s"] for one in kept] == [7.0, 8.0]
        assert len((tmp_path / name / "ranks.csv").read_text().splitlines()) == 3
