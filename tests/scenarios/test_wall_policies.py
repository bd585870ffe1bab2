"""Policies that measure, and costs that count, on the wall clock: what other work on the machine cannot change."""

import pandas as pd
import pytest

from tests.fakes.runs import ended

BYTES = 3 * 64_000
"""What a rank sends to the next: three blocks, a thousandth as large as asked for."""
SCENARIO = """
[fabric]
gpus = 4
[collective]
chunk = "64 MB"
count = 4
[control]
counted = true
delay = "50 ms"
[run]
modes = ["mine", "wan"]
clock = "wall"
rate_scale = "1/1000"
[[policy]]
name = "mine"
reroute = "every"
reembed = "every 2"
knowledge = "measured ports"
"""


@pytest.mark.alone
def test_ports_that_are_read_on_the_wall_clock_count_what_was_sent_and_control_messages_take_their_delay(tmp_path):
    (tmp_path / "mine.toml").write_text(SCENARIO)
    ended(tmp_path / "mine.toml", "--engine", "emulation", "--no-report", "--out", tmp_path / "run", cwd=tmp_path)
    rounds = pd.read_parquet(tmp_path / "run/collectives.parquet")
    assert (rounds.completion_s > 0.8 * rounds.predicted_s).all()
    moved = rounds[rounds.reconfigure_messages > 0]
    # There and back, beside the machine's own delays; the first paths need no message.
    assert len(moved) >= 2 and (moved.reconfigure_s >= 2 * 0.05).all() and (moved["mode"] == "wan").any()
    counters = pd.read_parquet(tmp_path / "run/counters.parquet")
    assert set(counters["mode"]) == {"mine"} and counters.collective.nunique() == 4
    for collective, read in counters.groupby("collective"):
        sent = read.groupby("link").sent_bytes.last() / BYTES
        times = sent.round()
        assert ((sent >= times) & (sent < 1.01 * times)).all(), sent  # with headers, and whole blocks
        assert times.sum() >= 2 * 3, collective  # a ring crosses twice, from leaf to leaf
