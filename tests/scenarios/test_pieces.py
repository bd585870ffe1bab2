"""The number of pieces of a block: chosen by the timing model where none is given, told, stored, and kept if given."""

import json

import pytest

from analysis.statistics.contests import Value
from scenarios.engines.prediction import plan_of
from scenarios.experiment import command
from scenarios.experiment.run_files import recorded
from scenarios.spec import pieces as choices
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from scenarios.spec.notes import _by_values, notes_on
from tests.fakes.commands import run
from tests.fakes.runs import answer, measured

CONSTANT = (
    '[fabric]\ngpus = [3, 3]\n[conditions]\nintra_rate = "100 Gbit/s"\nwan_rate = "40 Gbit/s"\nwan_delay = "{delay}"\n'
)
COLLECTIVE = (
    '[collective]\nkind = "{kind}"\nalgorithm = "{algorithm}"\nsize = "{size}"\ncount = 1\n[run]\nmodes = ["base"]\n'
)


def config(text, **values):
    (found,) = scenario_of((CONSTANT + COLLECTIVE).format(**values) + text).configurations()
    return found


@pytest.mark.parametrize("delay", ["10 us", "5 ms"])
@pytest.mark.parametrize("size", ["100 kB", "6 MB", "300 MB"])
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("allgather", "ring"),
        ("broadcast", "chain"),
        ("allreduce", "double-tree"),
        ("allreduce", "hierarchical"),
        ("alltoall", "direct"),
    ],
)
def test_the_number_of_pieces_is_within_a_hundredth_of_the_best_by_the_whole_model(kind, algorithm, size, delay):
    """Rates do not vary, so the mean rates are the rates. The oracle predicts whole runs with each number given."""
    values = {"kind": kind, "algorithm": algorithm, "size": size, "delay": delay}
    times_s = {}
    for pieces in (1, 2, 4, 8, 16, 32, 64):
        given = scenario_of(f"[sweep]\ncollective.pieces = [{pieces}]\n{(CONSTANT + COLLECTIVE).format(**values)}")
        times_s[pieces] = float(plan_of(given.configurations()[0], "base").completion_s()[0])
    chosen = config("", **values)
    assert chosen.collective.pieces in times_s
    assert float(plan_of(chosen, "base").completion_s()[0]) == times_s[chosen.collective.pieces]
    assert times_s[chosen.collective.pieces] <= 1.01 * min(times_s.values())
    fewer = [seconds for pieces, seconds in times_s.items() if pieces < chosen.collective.pieces]
    assert not fewer or min(fewer) > 1.005 * min(times_s.values())


def test_a_chosen_number_is_told_stored_and_in_the_label_and_a_given_one_stays(tmp_path):
    values = {"kind": "broadcast", "algorithm": "chain", "size": "64 MB", "delay": "10 us"}
    (tmp_path / "cast.toml").write_text((CONSTANT + COLLECTIVE).format(**values))
    found = answer(tmp_path / "out", "cast.toml", "--engine", "model", "--no-report")
    pieces = found["points"][0]["pieces"]
    assert pieces > 1
    (stored,) = json.loads((tmp_path / "out/settings.json").read_text())
    assert stored["values"]["collective.pieces"] == pieces and stored["label"].endswith(f"pieces {pieces}")
    chosen = config("", **values)
    assert any(
        f"collective.pieces: {pieces}, within 1 % of the fastest of 1 to 64" in one
        for one in notes_on([chosen], emulates=False)
    )
    given = answer(tmp_path / "one", "cast.toml", "--engine", "model", "--no-report", "--set", "collective.pieces=1")
    assert given["points"][0]["pieces"] == 1
    assert given["points"][0]["mean_s"] > found["points"][0]["mean_s"]


def test_every_mode_and_seed_has_the_same_number(tmp_path):
    text = '[collective]\nkind = "broadcast"\n[sweep]\nrun.seed = [1, 2, 3]\n'
    assert len({one.collective.pieces for one in scenario_of(text).configurations()}) == 1


def test_a_sweep_may_hold_the_choice_beside_numbers_and_is_written_and_read_again():
    swept = scenario_of('[collective]\nkind = "broadcast"\n[sweep]\ncollective.pieces = ["chosen", 1, 3]\n')
    pieces = [one.collective.pieces for one in swept.configurations()]
    assert [one.label.split(", ")[-1] for one in swept.configurations()] == [
        f"pieces chosen ({pieces[0]})", "pieces 1", "pieces 3"
    ]  # fmt: skip
    assert pieces[1:] == [1, 3] and pieces[0] > 3
    assert scenario_of(resolved(swept)) == swept


@pytest.mark.parametrize("name", ["paper", "fig4a", "fig5b", "nobel-us", "rails", "wide-area"])
def test_published_scenarios_have_whole_blocks(name):
    assert {one.collective.pieces for one in load_scenario(name).configurations()} == {1}


def test_a_chosen_number_is_measured_as_predicted(tmp_path):
    values = {"kind": "allreduce", "algorithm": "hierarchical", "size": "24 MB", "delay": "1 ms"}
    (tmp_path / "sum.toml").write_text((CONSTANT + COLLECTIVE).format(**values))
    assert config("", **values).collective.pieces > 1
    measured(tmp_path / "out", "sum.toml", "--engine", "emulation", "--no-report", p99=0.005)


SWEPT = """
[conditions]
wan_delay = "5 ms"
[collective]
kind = "allreduce"
[sweep]
'collective.algorithm' = ["ring", "hierarchical"]
'collective.size' = ["1 MB", "2 MB", "4 MB", "16 MB", "64 MB", "256 MB"]
'control.counted' = [false, true]
"""


def test_the_note_names_only_the_swept_values_that_the_number_depends_on():
    """24 configurations: each size of each algorithm stands with its number, and no label."""
    configs = scenario_of(SWEPT).configurations()
    (note,) = (one for one in notes_on(configs, emulates=False) if one.startswith("collective.pieces: "))
    for algorithm in ("ring", "hierarchical"):
        part = next(part for part in note.split("; ") if f"({algorithm})" in part)
        of = {
            one.collective.size_bytes: one.collective.pieces for one in configs if one.collective.algorithm == algorithm
        }
        assert f"{of[4_000_000]} at 4 MB buffer" in part and len(set(of.values())) > 2
    assert "GPUs" not in note and "counted" not in note and len(note) < 500


@pytest.mark.parametrize(
    ("kind", "algorithm", "size", "gpus", "says"),
    [
        ("broadcast", "chain", "300 MB", "[3, 3]", "(64 for broadcast chain: the most that were tried, so more may be"),
        ("broadcast", "chain", "100 kB", "[3, 3]", None),
        ("allgather", "ring", "300 MB", "[60, 60]", "pieces: 1, as larger numbers, of many messages, were not tried"),
    ],
)
def test_a_choice_at_the_most_pieces_that_are_tried_says_that_more_may_be_faster(kind, algorithm, size, gpus, says):
    """Oracle: where 64 are chosen, 128 are faster still. 120 ranks send 14,280 blocks to their neighbours."""
    values = {"kind": kind, "algorithm": algorithm, "size": size, "delay": "100 us"}
    text = (CONSTANT + COLLECTIVE).format(**values).replace("[3, 3]", gpus)
    (chosen,) = scenario_of(text).configurations()
    note = next((one for one in notes_on([chosen], emulates=False) if one.startswith("collective.pieces: ")), "")
    assert (says or "collective.pieces: ") in note and ("tried" in note) is (says is not None)
    if chosen.collective.pieces == 64:
        (more,) = scenario_of(text, [Override("collective.pieces", 128, "")]).configurations()
        now_s, more_s = (float(plan_of(one, "base").completion_s()[0]) for one in (chosen, more))
        assert more_s < now_s


@pytest.mark.parametrize("routing", ["single", "ecmp"])
def test_the_note_says_for_which_paths_the_number_was_chosen_and_names_every_algorithm(routing):
    text = f"""
[fabric]
routing = "{routing}"
[conditions]
wan_delay = "30 ms"
[collective]
kind = "allreduce"
size = "64 MB"
[sweep]
'collective.algorithm' = ["ring", "halving-doubling", "bruck", "direct", "hierarchical", "chain", "tree", "double-tree"]
"""
    configs = scenario_of(text).configurations()
    (note,) = (one for one in notes_on(configs, emulates=False) if one.startswith("collective.pieces: "))
    assert "over fixed paths" in note and "more, within" not in note
    assert ('(with fabric.routing "ecmp" others may be faster)' in note) is (routing == "ecmp")
    assert all(one.collective.algorithm in note.partition(" by the timing model")[0] for one in configs)


def value(words, number=None):
    return {"collective.size": Value("collective.size", words, number)}


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([(value("1 MB", 1), 4), (value("2 MB", 2), 4)], "4"),
        ([(value("4 MB", 4), 8), (value("1 MB", 1), 1), (value("2 MB", 2), 1)], "1 up to 2 MB, 8 at 4 MB"),
        ([(value(f"{mb} MB", mb), 1 if mb < 2 else 8) for mb in (1, 2, 4)], "1 at 1 MB, 8 from 2 MB on"),
        (
            [(value(f"{mb} MB", mb), 2 if 1 < mb < 5 else 8) for mb in range(1, 7)],
            "8 at 1 MB, 2 from 2 MB to 4 MB, 8 from 5 MB on",
        ),
        ([(value("ring"), 1), (value("tree"), 4), (value("direct"), 1)], "1 at ring or direct, 4 at tree"),
    ],
)
def test_numbers_that_follow_a_quantity_are_told_in_its_order(chosen, said):
    assert _by_values(chosen) == said


def test_a_slow_start_says_which_of_how_many_pieces_are_chosen(monkeypatch):
    """Two modes and two seeds share a choice: two sizes and two delays are four."""
    seen = []
    monkeypatch.setattr(choices, "choose", lambda *_, **__: seen.append(command._reading()) or choices.Choice(1))
    monkeypatch.setattr(choices, "_expected", set())
    choices._chosen.cache_clear()
    swept = '[sweep]\ncollective.size = ["3 MB", "7 MB"]\nconditions.wan_delay = ["1 ms", "2 ms"]\nrun.seed = [1, 2]\n'
    scenario_of(f'[collective]\nkind = "broadcast"\n[run]\nmodes = ["base", "wan"]\n{swept}').configurations()
    choices._chosen.cache_clear()  # of these pieces, which nothing has chosen
    assert seen == [f"choosing collective.pieces, number {number} of 4" for number in (1, 2, 3, 4)]


def test_the_line_of_a_slow_start_moves_while_one_number_is_chosen(monkeypatch):
    seen, name = [], "seconds_at_mean_rates"
    plain = getattr(choices, name)
    monkeypatch.setattr(choices, name, lambda *given: seen.append(command._reading()) or plain(*given))
    choices._chosen.cache_clear()
    scenario_of('[collective]\nkind = "broadcast"\nsize = "9 MB"\n').configurations()
    assert len(seen) > 2 and [line.rpartition(", ")[2] for line in seen] == [f"try {at + 1}" for at in range(len(seen))]


def test_a_note_says_at_which_values_the_most_pieces_were_tried():
    text = '[collective]\nkind = "broadcast"\nalgorithm = "chain"\n[run]\nmodes = ["base"]\n[fabric]\ngpus = [3, 3]\n'
    configs = scenario_of(f'{text}[sweep]\ncollective.size = ["10 kB", "300 MB"]').configurations()
    assert [one.has_most_pieces for one in configs] == [False, True]
    (note,) = (note for note in notes_on(configs, emulates=False) if note.startswith("collective.pieces"))
    assert "for broadcast chain at 300 MB buffer: the most that were tried" in note
    assert "10 kB" not in note.partition("the most that were tried")[0].rpartition("(")[2]


def test_a_resumed_run_keeps_the_stored_choice_and_none_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(choices, "_remembered", {})
    of = '[collective]\nkind = "broadcast"\nalgorithm = "chain"\n[sweep]\ncollective.size = ["5 MB", "31 MB"]\n'
    (tmp_path / "cast.toml").write_text(of)
    words = ("--engine", "model", "--modes", "base", "--collectives", 1, "--no-report")
    run(tmp_path / "cast.toml", *words, "--out", tmp_path / "out")
    stored = json.loads((tmp_path / "out/settings.json").read_text())
    chosen = [one["values"]["collective.pieces"] for one in stored]
    assert chosen[0] != 2
    stored[0]["values"]["collective.pieces"] = 2  # as another version has chosen
    (tmp_path / "out/settings.json").write_text(json.dumps(stored))
    choices._chosen.cache_clear()
    resumed = recorded(tmp_path / "out").scenario
    assert [one.collective.pieces for one in resumed.configurations()] == [2, chosen[1]]
    assert choices.choices_begun()[0] == 0


def test_a_schedule_is_built_once_for_all_sizes_and_is_that_of_each():
    text = '[collective]\nkind = "broadcast"\npieces = 4\n[sweep]\ncollective.size = ["5 MB", "31 MB"]\n'
    small, large = (one.workload for one in scenario_of(text).configurations())
    assert small.schedule is large.schedule
    assert (small.slot_bytes, large.slot_bytes) == (1_250_000, 7_750_000)
