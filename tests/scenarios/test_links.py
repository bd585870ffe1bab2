"""Links with their own rates and delays (`conditions.links`) in the model, the emulation and the lower
bound."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.results import open_run
from scenarios.engines.emulation import check_delays
from scenarios.engines.model import Model
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario, scenario_of
from tests.fakes.runs import answer, ended, measured

LOGICAL = """
[conditions]
wan_rate = "100 Gbit/s"
intra_rate = "200 Gbit/s"
[conditions.links]
wan = { delay = "1 ms" }
"s0b0>s1b0" = { rate = "2-3 Gbit/s", delay = "9 ms" }   # slow and far: whoever chooses goes another way
"g1>*" = { rate = "5 Gbit/s" }
gpu-gpu = { delay = "3 us" }
"""
PHYSICAL = """
[fabric]
grain = "physical"
gpus = 4
[conditions]
sampler = "ar1"
[conditions.links]
leaf-spine = { rate = "20-30 Gbit/s", delay = "2 us" }
access = { rate = "100 Gbit/s" }
"s0b0>s1b0" = { rate = "2-3 Gbit/s" }
[collective]
kind = "alltoall"
"""


@pytest.mark.parametrize("text", [LOGICAL, PHYSICAL])
def test_measured_runs_use_the_rates_and_delays_of_individual_links(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    options = "--engine", "both", "--collectives", "2", "--modes", "base,wan"
    answer = measured(tmp_path / "run", "own.toml", *options)
    mean_s = {point["mode"]: point["mean_s"] for point in answer["points"] if point["engine"] == "emulation"}
    assert mean_s["wan"] < 0.7 * mean_s["base"]
    stored = pq.read_table(tmp_path / "run" / "conditions.parquet").to_pandas()
    links = conditions_of(load_scenario(str(tmp_path / "own.toml"))).shared.all
    (index,) = [link.index for link in links if link.name == "s0b0>s1b0"]
    slow = stored[stored.link == index]
    assert slow.rate_bps.between(2e9, 3e9).all() and set(slow.delay_s) == {9e-3 if text == LOGICAL else 10e-6}
    rows = pq.read_table(tmp_path / "run" / "collectives.parquet").to_pandas()
    assert (rows.bound_s > 0).all() and (rows.completion_s > rows.bound_s).all()
    named = ["WAN 1 ms to 9 ms", "s0b0>s1b0 2-3 Gbit/s 9 ms"]
    if text == PHYSICAL:
        named = ["WAN 10 us", "leaf-spine 20-30 Gbit/s 2 us", "s0b0>s1b0 2-3 Gbit/s"]
    label = open_run(tmp_path / "run").settings[0]["label"]
    assert set(named) <= set(label.split(", "))


def test_the_lower_bound_accounts_for_the_slow_links_of_a_single_gpu() -> None:
    """GPU 1 receives seven blocks over its own links only, all of which are slow."""
    found = scenario_of(
        '[fabric]\ngpus = 8\n[conditions]\nintra_rate = "200 Gbit/s"\nwan_rate = "1000 Gbit/s"\n'
        '[conditions.links]\n"*>g1" = {rate = "1 Gbit/s", delay = "0 s"}\n[collective]\ncount = 1'
    )
    (rows,) = [part.rows for part in Model().run([found]) if part.mode == "base"]  # type: ignore[union-attr]
    # Three GPUs of its site and two border routers send to it.
    assert rows["bound_s"][0] == pytest.approx(7 * 64e6 / 5e9, rel=1e-3)
    assert rows.completion_s[0] >= rows["bound_s"][0]


def test_delays_that_only_the_model_can_represent_are_refused_by_the_emulation(tmp_path: Path) -> None:
    text = '[conditions.links]\n"g0>s0b1" = {delay = "1 ms"}\n[collective]\ncount = 2\n'
    (tmp_path / "apart.toml").write_text(text)
    check_delays(load_scenario(str(tmp_path / "apart.toml")).configurations())  # a ring shares no link
    (tmp_path / "apart.toml").write_text(f'{text}emulated = 1\nkind = "alltoall"\n')
    said, _ = ended("apart.toml", "--engine", "both", "--out", "run", cwd=tmp_path, status=2)[::-1]
    assert "conditions.links has delays that differ between border routers" in said and "allowed" in said
    assert answer(tmp_path / "run", "apart.toml", "--engine", "model")["points"]
