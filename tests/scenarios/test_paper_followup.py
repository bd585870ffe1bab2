"""run.py papers followup: the series of a WAN that swaps, the bars, and the claims beside the authors' table."""

import csv
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from scenarios.papers import followup
from scenarios.papers.followup import ALL, ALTERNATING, REPLAYED, WAN
from scenarios.papers.paper import Repeated, Settings
from scenarios.policies.conditions import conditions_of
from scenarios.studies.papers import paper
from tests.conftest import PROJECT
from tests.topologies.test_packs import data

__all__ = ["data"]


@pytest.fixture(scope="module")
def repeated() -> Repeated:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(followup, "_COUNT", 600)
        return paper("followup").repeat(Settings(measures=False, jobs=1, seed=1), lambda _: None)


def test_a_wan_that_swaps_has_its_rates_by_hand() -> None:
    names = ["s0b0>s1b0", "s0b0>s1b1", "s0b1>s1b0", "s1b1>s0b0"]
    rates = followup.alternating_bps(np.full((21, 4), 100e9), names, 0.1) / 1e9
    # 10 Gbit/s of the draw, and 90 % of 200 Gbit/s, of which a link has 90 or 10 %, and then a tenth of that.
    high, low, poor_high, poor_low = 10 + 162, 10 + 18, 10 + 16.2, 10 + 1.8
    assert rates[0] == pytest.approx([high, low, poor_low, poor_low])
    assert rates[1] == pytest.approx([low, high, poor_high, poor_high])
    assert rates[10] == pytest.approx([poor_high, poor_low, low, low])
    assert rates[20] == pytest.approx(rates[0])


def test_a_wan_that_replays_traffic_has_what_its_most_loaded_links_leave(data: Path) -> None:
    """By hand: of three links the second and the third carry most, up to 30 and 20 Gbit/s."""
    loads = np.array([[1.0, 30, 10], [2, 15, 20], [1, 0, 10]]) * 1e9
    rates = followup.replayed_bps(loads, 4, 2, 0.1) / 1e9
    assert rates[:, 0] == pytest.approx([20, 110, 200, 20]) and rates[:, 1] == pytest.approx([110, 20, 110, 110])
    found = followup.measured_loads_bps(str(data))
    # Four matrices, whose demands grow with the minute.
    assert len(found) == 4 and found[1:] / found[0] == pytest.approx(
        np.array([[2], [4], [5]]) * np.ones(found.shape[1])
    )


def test_the_traces_of_the_series_are_what_conditions_have(data: Path, tmp_path: Path) -> None:
    loads = followup.measured_loads_bps(str(data))
    scenarios = followup._Scenarios(REPLAYED, "heavy", 1, tmp_path, loads)
    conditions = conditions_of(scenarios.of("oracle", ["250 us"]).configurations()[0])
    wan = [link.index for link in conditions.shared.all if link.kind == "wan"]
    assert len(wan) == 8
    found = conditions.drawn.rates_bps(0, 4)[:, wan]
    assert found == pytest.approx(followup.replayed_bps(loads, 4, 8, 0.1), abs=1)
    assert found.min() == pytest.approx(20e9) and found.max() < 180e9


def test_a_paper_that_reads_no_data_says_which_one_does() -> None:
    command = [sys.executable, str(PROJECT / "scenarios" / "run.py"), "papers", "atlas", "--data", "."]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "run.py papers: --data: atlas reads no data; allowed: with followup\n"


def test_published_gains_are_those_of_the_authors_table(repeated: Repeated) -> None:
    """alpha_result.csv: heavy 751130.247, 690387.859, 280400.294, 269608.179 us; mild 303277.877, ... 186385.939."""
    published = {claim.says: claim.published for claim in repeated.claims}
    assert published["joint over base, heavy congestion"] == pytest.approx(64.11, abs=0.01)
    assert published["wan over base, heavy congestion"] == pytest.approx(62.67, abs=0.01)
    assert published["ccl over base, heavy congestion"] == pytest.approx(8.09, abs=0.01)
    assert published["joint over base, mild congestion"] == pytest.approx(38.54, abs=0.01)


def test_bars_are_beside_what_known_capacities_and_a_simpler_prediction_give(repeated: Repeated) -> None:
    at = {(line["series"], line["degree"], line["delay"]): line for line in repeated.lines}
    assert len(at) == 18
    for (series, degree, _), line in at.items():
        bars = line["bars"]
        assert bars["base"]["gain"] == 0
        # No ring is faster than eleven blocks of 4 MiB over a link between a border router and a GPU; all may be faster
        # where links within sites vary.
        assert series == ALL or bars["joint"]["mean_s"] >= 11 * 8 * 4 * 2**20 / 100e9
        if series != ALL:  # all placements are alike
            assert bars["joint"]["mean_s"] == pytest.approx(bars["wan"]["mean_s"])
        if degree == "heavy":
            assert bars["joint"]["gain"] > bars["ccl"]["gain"] > 0
            assert line["losses"]["ar 12"] > 0
    swaps, varies = (at[series, "heavy", "250 us"] for series in (ALTERNATING, WAN))
    assert (
        swaps["losses"]["ar 12"] < 0.2 < 1 < swaps["losses"]["ewma 0.5"]
    )  # the mean tells nothing of whose turn it is
    assert varies["losses"]["ewma 0.5"] < 0.2
    assert repeated.picture is not None
    bars = {(row["group"], row["name"]): float(row["y"]) for row in csv.DictReader(StringIO(repeated.picture().data))}
    assert len(bars) == (9 + 3) * 4
    theirs_ms = [bars["their table, heavy", bar] for bar in ("base", "ccl", "wan", "joint")]
    assert theirs_ms == pytest.approx([15.0226, 13.8078, 5.6080, 5.3922], rel=1e-4)  # a fiftieth of the table's times
