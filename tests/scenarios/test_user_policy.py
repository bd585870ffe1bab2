"""User-defined policy functions: the documented example in both engines, and error messages for failing functions."""

import re
from pathlib import Path

import pytest

from analysis.results import load
from analysis.results.reader import ResultsError
from controller.routing.wan_path_choice import NoPathError
from scenarios.engines.prediction import decisions_of
from scenarios.experiment.command import run as command
from scenarios.experiment.run_files import recorded
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import load_scenario, scenario_of
from tests.conftest import PROJECT
from tests.fakes.runs import answer, ended, measured, rows
from topologies.errors import SpecError


def page_example(name: str = "calm") -> str:
    page = (PROJECT / "docs" / "policies.md").read_text()
    (text,) = re.findall(rf"```python\n(# {name}\.py\n.*?)```", page, re.S)
    assert len(text.splitlines()) <= 15
    return str(text)


def decisions_by(folder, program, count=40):
    (folder / "mine.py").write_text(program)
    text = f'[collective]\ncount = {count}\n[[policy]]\nname = "mine"\nfunction = "mine.py:mine"'
    (setting,) = scenario_of(text, path=folder / "scenario.toml").configurations()
    return decisions_of(setting, "mine", conditions_of(setting), start=0, count=count)


def test_the_documented_example_policy_decides_the_same_in_both_engines(tmp_path):
    (tmp_path / "calm.py").write_text(page_example())
    wanted = ("--modes", "base,calm", "--collectives", "10", "--engine", "both")
    measured(tmp_path / "run", "--policy", "calm.py:calm", *wanted, p99=0.002)
    found = rows(tmp_path / "run")
    calm = found[found["mode"] == "calm"]
    acted = {engine: here[["reembedded", "rerouted"]].to_numpy().tolist() for engine, here in calm.groupby("engine")}
    assert acted["model"] == acted["emulation"]
    assert acted["model"][0] == [True, True]
    assert sum(map(any, acted["model"])) < 10
    assert calm.completion_s.mean() < found[found["mode"] == "base"].completion_s.mean()


def test_what_a_policys_own_programs_print_in_the_vm_is_not_taken_for_results(tmp_path):
    program = """
import os, sys
def mine(now):
    if sys.argv[0].endswith("testbed/__main__.py"):
        os.system("echo hello")
    return True, True
"""
    (tmp_path / "mine.py").write_text(program)
    wanted = ("--modes", "base,mine", "--gpus", "4", "--collectives", "3", "--engine", "emulation", "--no-report")
    measured(tmp_path / "run", "--policy", "mine.py:mine", *wanted, p99=0.002)
    assert len(rows(tmp_path / "run")) == 6


def test_a_policy_function_decides_and_sees_earlier_decisions_and_predicted_times(tmp_path):
    program = """
seen = []
def mine(now):
    assert now.embedded == (now.number - 1) // 4 * 4 if now.number else now.embedded == -1
    assert now.anew_s > 0 and now.kept_s >= 0.999 * min(now.kept_s, now.rerouted_s)
    return now.number % 2 == 0, now.number % 4 == 0
"""
    decisions = decisions_by(tmp_path, program)
    assert decisions.reembedded.nonzero()[0].tolist() == list(range(0, 40, 4))
    assert decisions.rerouted.nonzero()[0].tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("def mine(now): return 3", "mine.py:mine, before collective 0: it returned 3; allowed: a tuple of two"),
        ("def mine(now):\n    return 1 / now.number, True", "ZeroDivisionError: division by zero, line 2"),
        ("def mine(now): raise KeyboardInterrupt", "mine.py:mine, before collective 0: KeyboardInterrupt: , line 1"),
    ],
)
def test_an_error_in_a_policy_function_names_the_function_and_the_collective(tmp_path, program, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        decisions_by(tmp_path, program)


def test_a_name_that_now_lacks_is_refused_with_the_documented_ones(tmp_path):
    page = (PROJECT / "docs" / "policies.md").read_text()
    documented = set(re.findall(r"`now\.([a-z_]+)", page))
    with pytest.raises(SpecError, match="now has no nothing; allowed: ") as caught:
        decisions_by(tmp_path, "def mine(now): return now.nothing, False")
    told = str(caught.value).partition("allowed: ")[2].partition(", line")[0]
    assert {*told.split(", ")} == documented and len(documented) > 15
    every = "def mine(now):\n    for name in %r:\n        getattr(now, name)\n    return True, True"
    decisions_by(tmp_path, every % sorted(documented))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("def mined(now): return True, True", 'has no function "mine" (did you mean mined?)'),
        ("from os import sep, walk\ndef one(now): ...\nclass Two: ...", 'has no function "mine"; allowed: one, Two'),
        ("from os import walk", 'has no function "mine", nor any other'),
        ("def mine(now) return 3", "is not Python"),
        ("import nothing_of_this_name", "fails when loaded: ModuleNotFoundError"),
        ("class mine:\n    def decide(self, now): return True, True", "without a method __call__(self, now)"),
    ],
)
def test_a_policy_file_without_the_function_or_with_errors_is_refused(tmp_path, program, said):
    with pytest.raises(ScenarioError, match=re.escape(said)):
        decisions_by(tmp_path, program)


def test_a_policy_knows_which_collective_is_the_last_one(tmp_path):
    program = "def mine(now):\n    return now.number == now.count - 1, False\n"
    assert decisions_by(tmp_path, program, count=12).rerouted.tolist() == [False] * 11 + [True]


def test_a_policy_function_without_parameter_is_named_without_a_foreign_line_number(tmp_path):
    with pytest.raises(SpecError) as raised:
        decisions_by(tmp_path, "def mine(): return True, True")
    said = str(raised.value)
    assert "mine.py:mine, before collective 0: TypeError: mine() takes 0 positional arguments but 1 was given" in said
    assert "line" not in said


def test_a_missing_wan_path_is_not_blamed_on_the_policy_function(tmp_path):
    """The testbed has to see `NoPathError`, because it then restarts the collective."""
    (tmp_path / "mine.py").write_text("def mine(now):\n    return now.kept_s > now.anew_s, False")
    cut = "".join(f'[[fault]]\nat = "collective 3"\nwhat = "switch s0b{number} down"\n' for number in range(2))
    policy = f'[[policy]]\nname = "mine"\nfunction = "{tmp_path}/mine.py:mine"\n'
    (setting,) = scenario_of(f"[collective]\ncount = 6\n{policy}{cut}").configurations()
    conditions = conditions_of(setting)
    assert len(decisions_of(setting, "mine", conditions, start=0, count=3).path) == 3
    with pytest.raises(NoPathError, match="no path leads over the WAN"):
        decisions_of(setting, "mine", conditions, start=3, count=1)


def test_a_policy_that_fails_in_the_model_leaves_other_modes_results_intact(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(now):\n    return True, now.number < 7 or 1 / 0")
    wanted = ("--modes", "base,mine", "--collectives", "20", "--engine", "model", "--out", tmp_path / "run")
    _, said = ended("--policy", "mine.py:mine", *wanted, cwd=tmp_path, status=1)
    assert "mine.py:mine, before collective 7: ZeroDivisionError: division by zero, line 2" in said
    assert said.count("division by zero") == 1
    assert said.endswith("as a run keeps its own copy of a policy: mend the policy's file and start a new run\n")
    found = rows(tmp_path / "run")
    assert found["mode"].to_list() == ["base"] * 20


def test_a_policy_that_has_failed_in_the_model_is_not_measured(tmp_path):
    """One sentence tells it; the other mode is measured."""
    (tmp_path / "mine.py").write_text("def mine(now):\n    return True, now.number < 2 or 1 / 0")
    wanted = ("--modes", "base,mine", "--gpus", "4", "--collectives", "3", "--no-report", "--out", tmp_path / "run")
    _, said = ended("--policy", "mine.py:mine", *wanted, cwd=tmp_path, status=1)
    sentences = [line for line in said.splitlines() if "division by zero" in line and line.startswith("run.py: ")]
    assert len(sentences) == 1 and sentences[0].startswith("run.py: failed: model, ") and "emulation, " in said
    assert not re.search(r"emulation, [^;]*, mine: ", said)
    found = rows(tmp_path / "run")
    assert found.groupby("engine")["mode"].apply(set).to_dict() == {"model": {"base"}, "emulation": {"base"}}
    alone = ("--modes", "mine", "--gpus", "4", "--collectives", "3", "--no-report", "--out", tmp_path / "alone")
    _, said = ended("--policy", "mine.py:mine", *alone, cwd=tmp_path, status=1)
    assert "emulation" not in said.replace("--engine emulation", "")


def test_a_run_folder_keeps_its_policy_file_and_resumes_only_with_that_file(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(now):\n    return now.number % 2 == 0, False")
    wanted = ("--modes", "mine", "--collectives", "20", "--engine", "model")
    answer(tmp_path / "run", "--policy", "mine.py:mine", *wanted)
    (tmp_path / "mine.py").write_text("def mine(now):\n    return True, True")
    answer(tmp_path / "again", tmp_path / "run" / "scenario.toml", "--engine", "model")
    assert rows(tmp_path / "again").completion_s.to_list() == rows(tmp_path / "run").completion_s.to_list()
    before = recorded(tmp_path / "run")
    assert list(before.differences(scenario_of(before.text, path=tmp_path / "run" / "scenario.toml"), None)) == []
    text = (tmp_path / "run" / "scenario.toml").read_text().replace("policies/mine.py", "mine.py")
    (sentence,) = before.differences(scenario_of(text, path=tmp_path / "scenario.toml"), None)
    assert sentence.startswith(f"--resume: {tmp_path / 'mine.py'} has changed since the run began")
    kept = tmp_path / "run" / "policies" / "mine.py"
    kept.write_text("def mine(now):\n    return True, False")
    with pytest.raises(ResultsError, match=f"{kept} has changed since the run began"):
        recorded(tmp_path / "run")


OWN = """
def own(now):
    sites, turn = now.fabric.gpu_sites.tolist(), 1 if now.number % 2 else -1
    ring = sorted(range(len(sites)), key=lambda rank: (sites[rank], turn * rank))
    paths = {}
    for pair in zip(ring, ring[1:] + ring[:1]):
        between = now.fabric.paths_between.get((sites[pair[0]], sites[pair[1]]))
        if sites[pair[0]] != sites[pair[1]]:
            paths[pair] = between[now.number % len(between)].index
    return paths, ring
"""


def test_a_policy_may_give_the_placement_and_the_paths_themselves_in_both_engines(tmp_path):
    """Its ring is reversed in turns, and crossings take each path in turn, whatever is best."""
    (tmp_path / "own.py").write_text(OWN)
    wanted = ("--modes", "own", "--collectives", "4", "--engine", "both", "--no-report")
    measured(tmp_path / "run", "--policy", "own.py:own", *wanted, p99=0.002)
    found = rows(tmp_path / "run")
    for _, here in found.groupby("engine"):
        rings = [[3, 2, 1, 0, 7, 6, 5, 4], [*range(8)]]
        assert [[*map(int, ring)] for ring in here.ring] == [rings[number % 2] for number in range(4)]
        crossed = [sorted(int(path) for path in paths if path >= 0) for paths in here.paths]
        assert len({tuple(paths) for paths in crossed}) == 4  # four candidate paths a direction, a turn each


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("(False, [0, 1, 2])", "allowed: each of the ranks 0 to 7 once"),
        ("(False, [4, 5, 6, 7, 0, 1, 2, 3])", r"allowed: ranks at places of their sites, \[0, 0, 0, 0, 1, 1, 1, 1\]"),
        ("({(0, 1): 0}, False)", r"allowed: pairs of ranks that send over the WAN, which \(0, 1\) does not"),
        ("({(3, 4): 7}, False)", r"allowed: for \(3, 4\) the paths 0, 1, 2, 3"),
        ('({(3, 4): "a"}, False)', "allowed: a tuple of two booleans"),
        ('(True, "01234567")', "allowed: a tuple of two booleans"),
    ],
)
def test_a_placement_or_paths_that_a_policy_may_not_give_are_named_with_what_it_may(tmp_path, result, said):
    with pytest.raises(SpecError, match=said):
        decisions_by(tmp_path, f"def mine(now):\n    return {result}")


def test_a_path_that_a_policy_gives_is_not_taken_while_a_cable_of_it_is_down(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(now):\n    return {(3, 4): 0}, False")
    text = '[collective]\ncount = 3\n[[policy]]\nname = "mine"\nfunction = "mine.py:mine"\n'
    text += '[[fault]]\nat = "collective 1"\nwhat = "link s0b0-s1b0 down"\nfor = "1 collectives"\n'
    (setting,) = scenario_of(text, path=tmp_path / "scenario.toml").configurations()
    path = decisions_of(setting, "mine", conditions_of(setting), start=0, count=3).path[:, 3]
    assert (path[0], path[2]) == (0, 0) and path[1] != 0


FALLEN = """
def fallen(now):
    print("rate", now.rate["s0b0>s1b0"] / 1e9)
    if now.routed < 0:
        assert now.rate_when_routed == {}
        return True, False
    assert {link.kind for link in now.links_in_use} == {"wan"}
    slowest = min(now.links_in_use, key=lambda link: now.rate[link.name]).name
    return now.rate[slowest] < 0.8 * now.rate_when_routed[slowest], False
"""


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_a_policy_sees_links_and_rates_by_name_and_what_it_prints_names_the_collective(
    tmp_path, monkeypatch, capsys, grain
):
    """The oracle decides again from the stored paths and the drawn rates."""
    monkeypatch.chdir(tmp_path)
    Path("fallen.py").write_text(FALLEN)
    options = ("--policy", "fallen.py:fallen", "--modes", "fallen", "--jobs", "1", "--no-report", "--out", "out")
    grained = ("--set", f"fabric.grain={grain}", "--set", "conditions.sampler=markov")
    assert command(["--engine", "model", "--collectives", "40", *options, *grained]) == 0
    said = capsys.readouterr().err
    (config,) = load_scenario("out/scenario.toml").configurations()
    conditions = conditions_of(config)
    rates_bps, names = conditions.drawn.rates_bps(0, 40), [link.name for link in conditions.shared.all]
    fabric, rows = conditions.fabric, load("out")
    assert f"fallen, collective 3: rate {rates_bps[3, names.index('s0b0>s1b0')] / 1e9}\n" in said
    then = None
    for number, (paths, rerouted) in enumerate(zip(rows["paths"], rows["rerouted"], strict=True)):
        if then is not None:
            before, its_rates = then
            used = {
                names.index(fabric.links[link].name)
                for path in before
                if path >= 0
                for link in fabric.paths[path].links
            }
            slowest = min(sorted(used), key=lambda index: rates_bps[number, index])
            assert rerouted == (rates_bps[number, slowest] < 0.8 * its_rates[slowest])
        if rerouted:
            then = paths, rates_bps[number]
    assert 1 < rows["rerouted"].sum() < 40


def test_a_policy_with_state_sees_the_measured_times_and_decides_from_them_as_documented(tmp_path):
    """The oracle repeats the decisions from the stored times, of the model and of the testbed."""
    (tmp_path / "patient.py").write_text(page_example("patient"))
    wanted = ("--modes", "Patient", "--collectives", "12", "--engine", "both", "--no-report")
    measured(tmp_path / "run", "--policy", "patient.py:Patient", *wanted, p99=0.002)
    found = rows(tmp_path / "run")
    for _, here in found.groupby("engine"):
        seconds = here.completion_s.to_list()
        due = [True] + [
            seconds[number - 1] > 1.25 * min(seconds[max(0, number - 20) : number]) for number in range(1, 12)
        ]
        assert here.rerouted.to_list() == due
        assert 1 < sum(due) < 12


COUNTING = """
class mine:
    def __init__(self):
        self.asked = []
    def __call__(self, now):
        self.asked.append(now.number)
        assert self.asked == list(range(now.number + 1)), self.asked
        assert now.last is None if not now.number else now.last.number == now.number - 1
        return True, len(self.asked) % 2 == 0
"""


def test_an_object_never_sees_a_lost_attempt(tmp_path):
    """A killed agent makes the testbed repeat collective 2; an object asked twice would fail, or differ from the
    plan."""
    (tmp_path / "mine.py").write_text(COUNTING)
    lines = ("[[policy]]", 'name = "mine"', 'function = "mine.py:mine"', "[[fault]]", 'at = "1 ms into collective 2"')
    text = "\n".join([*lines, 'what = "agent 3 killed"'])
    (tmp_path / "lost.toml").write_text(f'[fabric]\ngpus = 4\n[collective]\ncount = 5\n[run]\nmodes = ["mine"]\n{text}')
    answer(tmp_path / "out", tmp_path / "lost.toml", "--engine", "emulation")
    found = rows(tmp_path / "out")
    assert found.reembedded.to_list() == [number % 2 == 1 for number in range(5)]


def test_an_object_begins_anew_in_every_mode_and_configuration(tmp_path):
    (tmp_path / "mine.py").write_text(COUNTING)
    text = '[collective]\ncount = 5\n[[policy]]\nname = "mine"\nfunction = "mine.py:mine"\n'
    text += '[[policy]]\nname = "again"\nfunction = "mine.py:mine"\n[sweep]\nrun.seed = [1, 2]'
    for setting in scenario_of(text, path=tmp_path / "scenario.toml").configurations():
        for mode in ("mine", "again"):
            decisions = decisions_of(setting, mode, conditions_of(setting), start=0, count=5)
            assert decisions.reembedded.tolist() == [False, True, False, True, False]


SEEING = """
def mine(now):
    assert now.ring == [f"g{rank}" for rank in now.placement]
    assert {*now.links} == {*now.rate} and now.links["s0b0>s1b0"].rate_bps == now.rate["s0b0>s1b0"]
    wan, intra = now.links["s0b0>s1b0"], now.links["g0>g1"]
    assert (wan.kind, wan.src, wan.dst, wan.delay_s) == ("wan", "s0b0", "s1b0", 0.005), wan
    assert (intra.kind, intra.delay_s) == ("intra", 700e-9), intra
    names = [link.name for link in now.fabric.links]
    for (src, dst), index in now.paths.items():
        path = [names[link] for link in now.fabric.paths[index].links]
        assert now.paths_in_use[f"g{src}", f"g{dst}"] == path
    return True, now.number % 3 == 0
"""


def test_a_policy_sees_links_paths_and_the_ring_by_name(tmp_path):
    (tmp_path / "mine.py").write_text(SEEING)
    text = '[collective]\ncount = 9\n[conditions]\nwan_delay = "5 ms"\n[[policy]]\nname = "mine"\n'
    (setting,) = scenario_of(f'{text}function = "mine.py:mine"', path=tmp_path / "s.toml").configurations()
    assert decisions_of(setting, "mine", conditions_of(setting), start=0, count=9).rerouted.all()


@pytest.mark.parametrize("knowledge", ["stale 2", "mean", "ewma 0.5", "measured ends", "measured ports"])
def test_knowledge_of_all_modes_can_be_swept_and_equals_that_of_a_policy(tmp_path, knowledge):
    policy = f'[[policy]]\nname = "own"\nreroute = "every 1"\nreembed = "every"\nknowledge = "{knowledge}"\n'
    text = f'[conditions]\nsampler = "markov"\n[run]\nmodes = ["base", "joint", "own"]\n{policy}'
    text += f'[collective]\ncount = 60\n[sweep]\ncontrol.knowledge = ["oracle", "{knowledge}"]'
    (tmp_path / "knows.toml").write_text(text)
    answer(tmp_path / "out", tmp_path / "knows.toml", "--engine", "model", "--no-report")
    found = rows(tmp_path / "out")
    times = {at: here.completion_s.to_list() for at, here in found.groupby(["control.knowledge", "mode"])}
    assert times[knowledge, "joint"] == times[knowledge, "own"] == times["oracle", "own"]
    assert times[knowledge, "joint"] != times["oracle", "joint"]
    assert times[knowledge, "base"] == times["oracle", "base"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('knowledge = "stale"', 'control.knowledge: "stale" is not known; allowed: oracle, stale D'),
        ('knowledge = "stale 10 ms"', "allowed: only with conditions.every"),
        ('knowledge = "measured ends"\n[run]\nmodes = ["base"]', "unused: no mode without knowledge of its own"),
    ],
)
def test_knowledge_of_all_modes_that_cannot_be_is_refused_or_told(text, said):
    try:
        notes = scenario_of(f"[control]\n{text}").notes
    except ScenarioError as error:
        assert said in str(error)
    else:
        assert any(said in note for note in notes), notes


@pytest.mark.parametrize(
    ("modes", "options", "is_told"),
    [
        ("base,wan,mine", (), True),
        ("base,wan,joint,mine", (), True),
        ("base,wan,mine", ("--set", "control.counted=true"), False),
        ("base,ccl,mine", (), False),
        ("base,wan", (), False),
    ],
)
def test_a_policy_that_saves_changes_which_cost_nothing_is_told_so_once(tmp_path, modes, options, is_told):
    (tmp_path / "mine.py").write_text("def mine(now):\n    return now.number == 0, False\n")
    function = ("--policy", "mine.py:mine") if "mine" in modes else ()
    given = ("--engine", "model", "--modes", modes, "--collectives", 3, "--sweep", "conditions.wan_delay=1 ms,2 ms")
    _, notes = ended(*given, *function, *options, "--dry-run", cwd=tmp_path)
    told = [line for line in notes.splitlines() if "changes cost nothing here, as control.counted is false" in line]
    assert len(told) == is_told
    always = "wan and joint" if "joint" in modes else "wan"
    assert all(f"for mine to decide, and paths are re-chosen for every collective in {always}:" in one for one in told)


def test_a_policy_that_stops_early_is_told_with_its_last_choice(tmp_path):
    """`stuck` re-routes before every second collective up to 12 of 200, `steady` before every twentieth."""
    (tmp_path / "two.py").write_text(
        "def stuck(now):\n    return now.number < 14 and now.number % 2 == 0, False\n"
        "def steady(now):\n    return now.number % 20 == 0, now.number == 3\n"
    )
    policies = ("--policy", "two.py:stuck", "--policy", "two.py:steady", "--modes", "base,stuck,steady")
    said, _ = ended("--engine", "model", "--collectives", 200, *policies, "--no-report", cwd=tmp_path)
    lines = {line.partition(":")[0].rpartition(" ")[2]: line for line in said.splitlines() if "re-embedded" in line}
    assert lines["stuck"].endswith("; it re-routed last before collective 12 of 200")
    assert lines["steady"].endswith("; it re-embedded last before collective 3 of 200")


def test_how_often_a_policy_that_decides_by_itself_has_chosen_is_told_everywhere(tmp_path):
    """It wants paths before 3 collectives and a placement, which needs paths, before another one. Beside it joint is
    told, which chooses paths before each of 19 and a ring before collective 10."""
    (tmp_path / "mine.py").write_text("def mine(now):\n    return now.number in (0, 4, 7), now.number == 9\n")
    options = ("--engine", "model", "--modes", "base,joint,mine", "--policy", "mine.py:mine", "--collectives", 20)
    said, _ = ended(*options, "--out", tmp_path / "told", cwd=tmp_path)
    of_joint, of_mine = [line for line in said.splitlines() if "re-embedded 1 of 19" in line]
    assert ", mine: re-routed 3," in of_mine and ", joint: re-routed 19," in of_joint
    page = (tmp_path / "told/report.html").read_text()
    (choices,) = re.findall(r"<h2>Choices</h2>.*?<h2>", page, re.DOTALL)
    assert (
        ", mine: re-routed 3, re-embedded 1 of 19" in choices
        and ", joint: re-routed 19, re-embedded 1 of 19" in choices
    )
    assert ", base:" not in choices
    points = answer(tmp_path / "json", *options)["points"]
    assert {one["mode"]: (one.get("rerouted"), one.get("reembedded")) for one in points} == {
        "base": (None, None),
        "joint": (19, 1),
        "mine": (3, 1),
    }


def test_choices_that_change_nothing_are_told(tmp_path):
    """The oracle compares the stored paths and rings of consecutive collectives."""
    (tmp_path / "mine.py").write_text("def mine(now):\n    return True, now.number % 3 == 0\n")
    options = ("--engine", "model", "--modes", "base,mine", "--policy", "mine.py:mine", "--collectives", 60)
    options = (*options, "--set", 'conditions.sampler="markov"', "--set", "conditions.mean_stay=30")
    options = (*options, "--set", "control.counted=true")
    (point,) = [one for one in answer(tmp_path / "json", *options)["points"] if one["mode"] == "mine"]
    stored = rows(tmp_path / "json")
    here = stored[stored["mode"] == "mine"]
    rings, paths = ([list(one) for one in here[name]] for name in ("ring", "paths"))
    same_paths = sum(sorted(paths[k]) == sorted(paths[k - 1]) for k in range(1, 60) if rings[k] != rings[k - 1])
    same_paths += sum(paths[k] == paths[k - 1] for k in range(1, 60) if rings[k] == rings[k - 1])
    same_rings = sum(rings[k] == rings[k - 1] for k in range(3, 60, 3))
    assert (point["rerouted_to_same"], point["reembedded_to_same"]) == (same_paths, same_rings)
    assert 0 < same_paths < point["rerouted"] == 59 and 0 < same_rings < point["reembedded"] == 19
    assert point["path_changes"] == 59 - same_paths
    said, _ = ended(*options, "--out", tmp_path / "told", cwd=tmp_path)
    words = (
        f"mine: re-routed 59, re-embedded 19 of 59; {same_paths} of the 59 choices of paths were the paths in force "
        f"already; {same_rings} of the 19 choices of a ring were the ring in force already"
    )
    assert words in said and words in (tmp_path / "told/report.html").read_text()


def test_a_misspelled_attribute_of_now_is_told_with_the_one_that_was_meant(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(now):\n    return now.lastt is None, False")
    wanted = ("--modes", "base,mine", "--collectives", "4", "--engine", "model", "--out", tmp_path / "run")
    _, said = ended("--policy", "mine.py:mine", *wanted, cwd=tmp_path, status=1)
    assert "AttributeError: now has no lastt (did you mean last?), line 2" in said and "Situation" not in said
