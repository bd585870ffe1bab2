"""What a run tells of rings that are slower than the order of ranks, and of ports that grow with the GPUs of a leaf."""

from scenarios.experiment.run_notes import notes_of_run
from scenarios.spec.load import scenario_of
from tests.fakes.runs import ended

SLOW = """
[fabric]
gpus = 16
[conditions]
wan_rate = "40 Gbit/s"
wan_delay = "5 ms"
intra_rate = "100 Gbit/s"
[collective]
size = "256 MB"
count = 70
reembed_every = 1
[run]
modes = ["base", "ccl"]
[[fault]]
at = "collective 2"
what = "agent 1 slow 10x"
for = "50 collectives"
"""
SWEPT = """
[fabric]
grain = "physical"
[conditions]
intra_rate = "100 Gbit/s"
[sweep]
fabric.gpus = [8, 16]
fabric.oversubscription = [4]
"""


def test_a_ring_that_is_slower_than_the_order_of_ranks_is_explained_in_the_answer(tmp_path):
    """With one slow GPU several rings have the same cycle time, and the chosen one has it at the WAN."""
    (tmp_path / "slow.toml").write_text(SLOW)
    said, _ = ended("slow.toml", "--engine", "model", "--no-report", "--out", "out", cwd=tmp_path)
    assert "Slower with a chosen ring than in rank order: ccl than base; a chosen ring has the least cycle time" in said
    (tmp_path / "fast.toml").write_text(SLOW.partition("[[fault]]")[0])
    said, _ = ended("fast.toml", "--engine", "model", "--no-report", "--out", "fast", cwd=tmp_path)
    assert "Slower with a chosen ring" not in said


def test_a_sweep_of_gpus_with_oversubscription_tells_how_ports_grow():
    """Two leaves and two spines a site: at 4:1 a leaf of 2 has 2 / (2 * 4) of 100 Gbit/s at each port, one of 4 twice
    as much."""
    (note,) = [one for one in notes_of_run([*scenario_of(SWEPT).configurations()]) if "oversubscription" in one]
    assert note.endswith("(fabric.oversubscription 4:1: 25 Gbit/s with 8 GPUs, 50 Gbit/s with 16 GPUs)")
    alone = scenario_of(SWEPT.replace("[8, 16]", "[8]"))
    assert not [one for one in notes_of_run([*alone.configurations()]) if "oversubscription" in one]


def test_a_long_label_is_told_once_below_the_answer_and_not_with_each_line(tmp_path):
    (tmp_path / "slow.toml").write_text(SLOW + SLOW[SLOW.index("[[fault]]") :].replace("agent 1", "agent 2"))
    said, _ = ended("slow.toml", "--engine", "model", "--no-report", "--out", "out", cwd=tmp_path)
    label = "agent 1 slow 10x at collective 2 for 50 collectives, agent 2 slow 10x at collective 2 for 50 collectives"
    answer, _, below = said.partition("\nall rows: ")
    assert answer.count(label) == 1 and below.count(label) == 1
    assert "\nmodel:\n  fault 1, agent 1 slow 10x in collective 2\n" in below and "\nmodel: ccl > base\n" in below
