"""Policies in the testbed: it chooses as planned, and policies that are the same take the same time to the ns."""

from tests.fakes.runs import measured, rows

POLICIES = """
[fabric]
gpus = 4
[collective]
count = 10
emulated = 10
[run]
modes = ["base", "each", "gains", "inf", "kept"]
[[policy]]
name = "each"
reroute = "every 1"
reembed = "every 1"
knowledge = "stale 0"
[[policy]]
name = "gains"
reroute = "gain 0"
reembed = "gain 0"
[[policy]]
name = "inf"
reroute = "gain inf"
reembed = "gain inf"
[[policy]]
name = "kept"
reroute = "drift 0.45"
reembed = "gain 0.2"
knowledge = "ewma 0.3"
"""


def test_policies_are_measured_as_planned(tmp_path):
    (tmp_path / "policies.toml").write_text(POLICIES)
    measured(tmp_path / "run", "policies.toml", "--engine", "both", collectives=50, p99=0.002)
    found = rows(tmp_path / "run")
    ends = {key: here.completion_s.to_list() for key, here in found.groupby(["engine", "mode"])}
    for engine in ("model", "emulation"):
        assert ends[engine, "each"] == ends[engine, "gains"]
        assert ends[engine, "inf"] == ends[engine, "base"]
    choices = found[found["mode"] == "kept"].groupby("engine")[["reembedded", "rerouted"]]
    acted = {engine: here.to_numpy().tolist() for engine, here in choices}
    assert acted["model"] == acted["emulation"]
    assert 0 < sum(map(any, acted["model"])) < 10
