"""Where nothing is drawn at random, one collective tells what all take; where something is, it does not."""

import pytest

from tests.fakes.runs import answer

LOSS = '[fabric]\nbuffer = "1 MB"\nwan_loss = 0.001\n[transport]\nqueue = "fifo"\n'
CONSTANT = '[conditions]\nintra_rate = "100 Gbit/s"\nwan_rate = "25 Gbit/s"\n'
TWO = '[collective]\nkind = "allreduce"\ncount = {}\n[run]\nmodes = ["base"]\n'
SWEEP = '[sweep]\ncollective.algorithm = ["ring", "tree"]\n'
NOISE = """
[[job]]
ranks = [0, 1, 4, 5]
size = "1 MB"
[[job]]
name = "noise"
kind = "background"
ranks = [2, 3]
size = "1 MB"
pattern = "poisson"
rate = "1 Gbit/s"
duration = "1 s"
"""


@pytest.mark.parametrize(
    ("scenario", "is_exact"),
    [
        (CONSTANT + TWO.format(1) + SWEEP, True),
        (CONSTANT + TWO.format(7) + SWEEP, True),
        (TWO.format(1) + SWEEP, False),  # rates are drawn by default
        (CONSTANT.replace('"100 Gbit/s"', '"99-100 Gbit/s"') + TWO.format(7) + SWEEP, False),
        (
            '[fabric]\nbuffer = "1 MB"\nwan_loss = 0.001\n[transport]\nqueue = "fifo"\n'
            + CONSTANT
            + TWO.format(7)
            + SWEEP,
            False,
        ),
        (CONSTANT + TWO.format(7) + NOISE + SWEEP, False),
    ],
)
def test_comparisons_are_exact_where_nothing_is_drawn(tmp_path, scenario, is_exact):
    (tmp_path / "asked.toml").write_text(scenario)
    found = answer(tmp_path / "results", "asked.toml", "--engine", "model")
    few = "too few collectives for an interval"
    assert [one["no_interval"] for one in found["comparisons"]] == [None if is_exact else few]
    (one,) = found["comparisons"]
    times = {point["mean_s"] for point in found["points"]}
    if is_exact:
        assert (
            one["gain_low"] == one["gain"] == one["gain_high"] == pytest.approx(1 - one["mean_s"] / one["over_mean_s"])
        )
        assert one["holds"] is True and len(times) == 2
    assert ("not tested" in found["answer"] or few in found["answer"]) is not is_exact
