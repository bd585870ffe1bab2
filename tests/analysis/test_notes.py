"""Notes before a run: what is the same of several configurations is told once."""

import pytest

from analysis.statistics.shared_link_notes import greedy_notes, notes
from scenarios.experiment.run_notes import notes_of_run
from scenarios.spec.load import scenario_of
from tests.fakes.runs import ended

RINGS = {"8 GPUs, ring": {"base": (), "wan": ()}}
TREES = {"8 GPUs, tree": {"base": ("a>b",), "wan": ("a>b", "c>d", "e>f")}}
MESHES = {"8 GPUs, mesh": {"base": ("a>b",), "wan": ("a>b", "c>d", "e>f")}}

CLASSES = """
[collective]
count = 3
[run]
modes = ["base"]
[[class]]
name = "gold"
priority = 0
[[job]]
name = "inference"
ranks = [0, 1, 4, 5]
class = "gold"
[[job]]
name = "training"
ranks = [2, 3, 6, 7]
"""


def told(links, has_classes=False):
    return [(label, by_mode, has_classes) for label, by_mode in links.items()]


def test_the_notes_of_flows_in_classes_tell_that_priorities_come_first():
    (note,) = notes(told(TREES, has_classes=True))[:1]
    assert note == (
        "flows can share links, and the model serves their classes in the order of priority on WAN links, and gives "
        "flows of one class max-min fair shares: a>b in base, and a>b, c>d and 1 more in wan"
    )
    mixed = notes([*told(TREES, has_classes=True), *told(MESHES)])
    assert len(mixed) == 2 and [("priority" in one, one.count("mesh")) for one in mixed] == [(True, 0), (False, 1)]


def test_a_run_with_classes_tells_what_the_model_does_with_them(tmp_path):
    (tmp_path / "classes.toml").write_text(CLASSES)
    _, said_before = ended("classes.toml", "--engine", "model", "--out", tmp_path / "run", cwd=tmp_path)
    page = (tmp_path / "run/report.html").read_text()
    for text in (said_before, page):
        assert "the model serves their classes in the order of priority on WAN links" in text
        assert "the model gives them max-min" not in text


def test_links_that_flows_share_are_one_note_with_the_configurations_that_have_the_same():
    assert notes(told(RINGS)) == ()
    assert notes([("8 GPUs, tree", {"base": ("a>b",), "wan": ("a>b",)}, False)]) == (
        "in base and wan flows can share the link a>b: the model gives them max-min fair shares",
    )
    (note,) = notes(told(RINGS | TREES | MESHES))
    assert note == (
        "flows can share links, and the model gives them max-min fair shares: a>b in base, and a>b, c>d and 1 more in "
        "wan (tree; mesh)"
    )


def test_twenty_configurations_have_one_note_with_the_first_of_them():
    many = {f"8 GPUs, tree {number}": {"base": (f"a>{number}",)} for number in range(20)}
    (note,) = notes(told(many))
    assert "a>5 in base (tree 5) and 14 more" in note and len(note) < 400


def test_a_note_is_without_names_if_it_is_about_all_configurations():
    (note,) = greedy_notes([("8 GPUs, tree", ["wan"]), ("8 GPUs, mesh", ["wan"])], most=9)
    assert note.startswith("in wan crossings")
    (note,) = greedy_notes([("8 GPUs, tree", ["wan"]), ("8 GPUs, mesh", [])], most=9)
    assert note.startswith("tree: in wan crossings")


LOSS = """
[[fault]]
at = "collective 1"
what = "link s0b0-s1b0 loss 0.01 %"
"""


def test_before_a_run_it_is_said_that_a_fault_of_losses_loses_whole_segments(tmp_path):
    (tmp_path / "loss.toml").write_text("[run]\nmodes = ['base']" + LOSS)
    said = "fault (link s0b0-s1b0 loss 0.01 %): that share of TCP's segments is lost, each as a whole, of up to 500 kB"
    _, told_before = ended("loss.toml", "--dry-run", cwd=tmp_path)
    assert f"run.py: {said}; it is not that share of frames, which fabric.wan_loss loses" in told_before
    down = "fault=[{at='collective 1', what='link s0b0-s1b0 down'}]"
    assert "segments" not in ended("loss.toml", "--dry-run", "--set", down, cwd=tmp_path)[1]


LONGER = """
[fabric]
border_routers = 1
[fabric.wan]
links = [["s0b0", "s1b0", { delay = "5 ms" }], ["s0b0", "s1b0", { delay = "%s" }]]
[collective]
%s
[run]
modes = %s
"""
SWEPT = 'algorithm = "ring"\n[sweep]\ncollective.pieces = [1, 2]'
RING, ONE = 'algorithm = "ring"\npieces = 1', 'kind = "broadcast"\nalgorithm = "direct"'


def told_of(delay="15 ms", collective=RING, modes='["base", "wan"]'):
    configs = scenario_of(LONGER % (delay, collective, modes)).configurations()
    return [note for note in notes_of_run(configs) if "longer path" in note]


def test_paths_that_are_chosen_for_one_message_of_many_are_told():
    """An allgather of 8 GPUs passes 7 blocks along each edge of its ring."""
    (note,) = told_of()
    assert note == (
        "wan chooses WAN paths by delay and the time of one message (docs/policies.md): where a flow sends 7, as here, "
        "a longer path with a higher rate may be faster"
    )
    (note,) = told_of(collective=SWEPT, modes='["wan", "joint"]')
    assert note.startswith("wan and joint choose WAN paths") and note.endswith(
        "may be faster: 7 messages (pieces 1); 14 messages (pieces 2)"
    )


@pytest.mark.parametrize(
    "unlike", [{"delay": "5 ms"}, {"collective": ONE}, {"modes": '["base", "ccl"]'}], ids=["delay", "one", "no choice"]
)
def test_nothing_is_told_where_one_message_decides_or_delays_are_equal(unlike):
    assert told_of(**unlike) == []
