"""Notes before a run: what is the same of several configurations is told once."""

from analysis.statistics.shared_link_notes import greedy_notes, notes

RINGS = {"8 GPUs, ring": {"base": (), "wan": ()}}
TREES = {"8 GPUs, tree": {"base": ("a>b",), "wan": ("a>b", "c>d", "e>f")}}
MESHES = {"8 GPUs, mesh": {"base": ("a>b",), "wan": ("a>b", "c>d", "e>f")}}


def test_links_that_flows_share_are_one_note_with_the_configurations_that_have_the_same():
    assert notes(RINGS.items()) == ()
    assert notes([("8 GPUs, tree", {"base": ("a>b",), "wan": ("a>b",)})]) == (
        "in base and wan flows can share the link a>b: the model gives them max-min fair shares",
    )
    (note,) = notes((RINGS | TREES | MESHES).items())
    assert note == (
        "flows can share links, and the model gives them max-min fair shares: a>b in base, and a>b, c>d and 1 more in "
        "wan (tree; mesh)"
    )


def test_twenty_configurations_have_one_note_with_the_first_of_them():
    many = {f"8 GPUs, tree {number}": {"base": (f"a>{number}",)} for number in range(20)}
    (note,) = notes(many.items())
    assert "a>5 in base (tree 5) and 14 more" in note and len(note) < 400


def test_a_note_is_without_names_if_it_is_about_all_configurations():
    (note,) = greedy_notes([("8 GPUs, tree", ["wan"]), ("8 GPUs, mesh", ["wan"])], most=9)
    assert note.startswith("in wan crossings")
    (note,) = greedy_notes([("8 GPUs, tree", ["wan"]), ("8 GPUs, mesh", [])], most=9)
    assert note.startswith("tree: in wan crossings")
