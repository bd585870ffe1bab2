"""Traces as other programs write them: every form has the rates that were written, and outages are those of the rows.

pandas writes most of the files; the oracle is the table from which they are written.
"""

import csv
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.spec.faults import outages
from scenarios.spec.load import Override, load_scenario
from topologies.conditions.trace import Trace, read_trace
from topologies.errors import ConditionsError
from topologies.fabric.fabric import FabricSpec, build_fabric

LINKS = ["s0b0>s1b0", "s1b0>s0b0"]
TABLE = pd.DataFrame(
    {
        "time": [0, 0, 10, 20],
        "link": [LINKS[0], LINKS[1], LINKS[0], LINKS[0]],
        "rate": [9043348420.68, 4473556157.58, 14781438870.2, 1e9],
    }
)
EXPECTED = [[9043348421, 4473556158], [14781438870, 4473556158], [1e9, 4473556158]]
ROUNDED = "3 of 4 rates were rounded to whole bit/s"
START = datetime(2026, 1, 31, 23, 59, 55, 250_000, UTC)


def at(times: object, **more: object) -> pd.DataFrame:
    return TABLE.assign(time=times, **more)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


DATES = pd.Series([after(second) for second in TABLE.time])
FORMS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "pandas": (lambda path: TABLE.to_csv(path, index=False), ()),
    "pandas with its index": (lambda path: TABLE.to_csv(path), ("the column without a name is not used",)),
    "floats": (lambda path: at(TABLE.time + 0.0).to_csv(path, index=False), ()),
    "exponents": (lambda path: TABLE.to_csv(path, index=False, float_format="%.12e"), ()),
    "CRLF": (lambda path: TABLE.to_csv(path, index=False, lineterminator="\r\n"), ()),
    "a mark": (lambda path: TABLE.to_csv(path, index=False, encoding="utf-8-sig"), ()),
    "UTF-16": (lambda path: TABLE.to_csv(path, index=False, encoding="utf-16"), ()),
    "quoted": (lambda path: TABLE.to_csv(path, index=False, quoting=csv.QUOTE_ALL), ()),
    "upper case": (lambda path: TABLE.rename(columns=str.title).to_csv(path, index=False), ()),
    "rate_bps": (lambda path: TABLE.rename(columns={"rate": "rate_bps"}).to_csv(path, index=False), ()),
    "another order": (lambda path: TABLE[["rate", "link", "time"]].to_csv(path, index=False), ()),
    "more columns": (
        lambda path: TABLE.assign(loss=0.1, jitter="1 ms").to_csv(path, index=False),
        ("the columns loss and jitter are not used",),
    ),
    "semicolons": (lambda path: TABLE.to_csv(path, index=False, sep=";"), ("its fields are separated by semicolons",)),
    "a German table": (
        lambda path: TABLE.to_csv(path, index=False, sep=";", decimal=","),
        ("its fields are separated by semicolons", "the decimal commas of 4 numbers were read as points"),
    ),
    "tabs": (lambda path: TABLE.to_csv(path, index=False, sep="\t"), ("its fields are separated by tabs",)),
    "comments": (
        lambda path: path.write_text(
            "# iperf3, 31 January\n\n" + TABLE.to_csv(index=False).replace("\n10", "\n# a pause\n10")
        ),
        (),
    ),
    "units, and no newline at the end": (
        lambda path: path.write_text(at(TABLE.time, rate=TABLE.rate.map("{} bit/s".format)).to_csv(index=False)[:-1]),
        (),
    ),
    "times from 5": (lambda path: at(TABLE.time + 5).to_csv(path, index=False), ("it begins at its first time, 5",)),
    "epoch": (
        lambda path: at(TABLE.time + 1769903995.25).to_csv(path, index=False),
        ("it begins at its first time, 1769903995.25 (2026-01-31 23:59:55 UTC)",),
    ),
    "epoch in ms": (
        lambda path: at((TABLE.time + 1769903995) * 1000).to_csv(path, index=False),
        ("its times are taken as milliseconds", "it begins at its first time, 1769903995000 (2026-01-31 23:59:55 UTC)"),
    ),
    "epoch in ns": (
        lambda path: at((TABLE.time + 1769903995) * 10**9).to_csv(path, index=False),
        (
            "its times are taken as nanoseconds",
            "it begins at its first time, 1769903995000000000 (2026-01-31 23:59:55 UTC)",
        ),
    ),
    "dates of pandas": (
        lambda path: at(DATES).to_csv(path, index=False),
        ("it begins at its first time, 2026-01-31 23:59:55.250+00:00",),
    ),
    "dates of ISO 8601": (
        lambda path: at([one.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for one in DATES]).to_csv(path, index=False),
        ("it begins at its first time, 2026-01-31T23:59:55.250000Z",),
    ),
    "local dates": (
        lambda path: at(DATES.dt.tz_localize(None)).to_csv(path, index=False),
        ("it begins at its first time, 2026-01-31 23:59:55.250",),
    ),
}


def trace_of(path: Path, step_s: float = 10.0) -> Trace:
    return read_trace(path, LINKS, step_s=step_s, may_be_down=LINKS)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_read_as_the_same_rates_and_what_was_assumed_is_told(
    form: str, tmp_path: Path
) -> None:
    """24 of 24 forms."""
    write, told = FORMS[form]
    write(tmp_path / "trace.csv")
    trace = trace_of(tmp_path / "trace.csv")
    assert trace.limit == 3 and trace.rates_bps(0, 3).tolist() == EXPECTED
    assert trace.notes == (*told, ROUNDED)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("time;link;rate\n0;s0b0>s1b0;12,500\n", "12,500 may be a number with thousands or with decimals"),
        ("time,link,rate\n0,s0b0>s1b0,nan\n", "'?\"?nan"),
        ("time,link,rate\n0,s0b0>s1b0,40\n2026-01-01T00:00Z,s1b0>s0b0,40\n", "allowed: seconds, as the first one"),
        ("time,link,rate\n2026-01-01 00:00,s0b0>s1b0,40\n1,s1b0>s0b0,40\n", "a date with a time without a zone"),
        ("time,link,rate\n2026-13-01 00:00,s0b0>s1b0,40\n", "'2026-13-01 00:00' is not a time"),
        ("time,link,rate\n5,s0b0>s1b0,40\n6,s1b0>s0b0,40\n", "no rate at time 5 for s1b0>s0b0"),
        ("time,link,rate\n0,s0b0>s1b0,40\n0,s1b0>s0b0,4", "it may be cut off"),
        ("time,link,rate,note\n0,s0b0>s1b0,40\n", "3 fields; a row has 4, as the header"),
        ("time,link,rate\n0,s0b0>s1b0,40\n0,Z\xfcrich,1\n", "line 3: .* is not UTF-8"),
    ],
)
def test_what_cannot_be_read_without_a_guess_is_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConditionsError, match=named):
        trace_of(tmp_path / "trace.csv")


def test_rows_of_links_that_a_large_map_leaves_out_are_not_used_and_told(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TABLE.to_csv(index=False) + "25,A>B,5\n30,s0b0>s1b0,5\n")
    trace = read_trace(tmp_path / "trace.csv", LINKS, left_out=["A>B"])
    assert trace.limit == 31 and trace.notes[0] == "1 row of links that the fabric leaves out not used"
    with pytest.raises(ConditionsError, match="the fabric has no link 'A>B'"):
        read_trace(tmp_path / "trace.csv", LINKS)


# --- outages ----------------------------------------------------------------------------------------------------------

rows = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(LINKS), st.sampled_from([0, 7, 8])), max_size=12)


@given(rows, st.sampled_from([0, 5]), st.integers(1, 7), st.integers(1, 12))
def test_a_link_is_down_in_the_collectives_at_whose_time_its_rate_is_0(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, int]], first: int, step: int, count: int
) -> None:
    """Brute force: the rate of each direction at each collective's time is that of its last row."""
    given_rows = {(time, link): rate for time, link, rate in sorted(rows)} | {(0, link): first for link in LINKS}
    listed = sorted((time, link, rate) for (time, link), rate in given_rows.items())
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("time,link,rate\n" + "".join(f"{time},{link},{rate}\n" for time, link, rate in listed))
    trace, fabric = trace_of(path, step), build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
    count = min(count, trace.limit)

    def rate(link: str, number: int) -> int:
        return [rate for time, of, rate in listed if of == link and time <= number * step][-1]

    down = [number for number in range(count) if 0 in (rate(link, number) for link in LINKS)]
    found = []
    # The trace's links here are the two WAN links alone, so its indices are mapped to the fabric's.
    index = {link.name: link.index for link in fabric.links}
    moved = [(index[LINKS[link]], first, stop) for link, first, stop in trace.outages()]
    for fault in outages(_At(moved, trace.length), fabric, count=count):  # type: ignore[arg-type]
        assert fault.what == "link s0b0-s1b0 down" and fault.is_traced
        stop = trace.length if fault.lasts is None else fault.collective + fault.lasts
        found += range(fault.collective, min(stop, count))
    assert found == down
    rates = trace.rates_bps(0, count)
    assert (rates > 0).all()
    for column, link in enumerate(LINKS):
        for number in range(count):
            assert rate(link, number) in (0, rates[number, column])
    assert (trace.mean_bps >= 1).all() and np.isfinite(trace.mean_bps).all()


class _At:
    """The outages of a trace by the links of a fabric."""

    def __init__(self, runs: list[tuple[int, int, int]], limit: int) -> None:
        self._runs, self.limit, self.length, self.repeats = runs, limit, limit, False

    def outages(self) -> list[tuple[int, int, int]]:
        return self._runs


def test_a_trace_that_repeats_begins_again_a_step_after_its_last_row(tmp_path: Path) -> None:
    """Of three rows at 0, 1 and 2 s, the last one holds for a step: the passage is three steps long."""
    rows = "".join(f"{t},{name},{t + 1} Gbit/s\n" for t in range(3) for name in LINKS)
    (tmp_path / "trace.csv").write_text("time,link,rate\n" + rows)
    once, again = (read_trace(tmp_path / "trace.csv", LINKS, repeats=repeats) for repeats in (False, True))
    assert (once.limit, again.limit) == (3, None)
    assert again.rates_bps(0, 8)[:, 0].tolist() == [1e9, 2e9, 3e9, 1e9, 2e9, 3e9, 1e9, 2e9]
    assert again.rates_bps(4, 2)[:, 0].tolist() == [2e9, 3e9]
    assert again.mean_bps[0] == 2e9
    with pytest.raises(ConditionsError, match="covers 3 collectives; 4 are needed"):
        once.rates_bps(0, 4)


def test_outages_of_a_trace_that_repeats_repeat() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
    names = [link.name for link in fabric.links if link.kind == "wan"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.csv")
        path.write_text(
            "time,link,rate\n" + "".join(f"{t},{one},{9 * (t != 1)} Gbit/s\n" for t in range(3) for one in names)
        )
        values = {"conditions.sampler": "trace", "conditions.trace": str(path), "conditions.trace_repeat": True}
        values |= {"collective.count": 7, "fabric.gpus": 4, "fabric.border_routers": 1}
        found = load_scenario("paper", [Override(key, value, key) for key, value in values.items()])
        assert [(fault.collective, fault.lasts) for fault in found.configurations()[0].faults] == [(1, 1), (4, 1)]


def test_bare_numbers_too_small_for_bits_per_second_are_told(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time,link,rate\n" + "".join(f"0,{name},400\n" for name in LINKS))
    count = len(LINKS)
    told = f"{count} of {count} rates are numbers without a unit below 1,000,000, taken as bit/s"
    assert any(told in note for note in read_trace(tmp_path / "trace.csv", LINKS).notes)
    (tmp_path / "large.csv").write_text("time,link,rate\n" + "".join(f"0,{name},400000000\n" for name in LINKS))
    assert not read_trace(tmp_path / "large.csv", LINKS).notes


LACKING = [*range(0, 300, 10), *range(310, 500, 10)]
LONG = [*range(0, 300, 10), *range(350, 500, 10)]
USUAL = "(rows every 10 s otherwise)"


@pytest.mark.parametrize(
    ("seconds", "step_s", "told", "in_gaps"),
    [
        (range(0, 400, 10), 10, "", ()),
        (LONG, 10, f"290 s to 350 s {USUAL}, in collectives 30 to 34", range(30, 35)),
        (LACKING, 10, f"290 s to 310 s {USUAL}, in collective 30", [30]),
        (LACKING, 60, f"290 s to 310 s {USUAL}, in collective 5", [5]),
        (LACKING, 280, f"290 s to 310 s {USUAL}", ()),
        ([0, 300], 10, "", ()),
        ([number**2 for number in range(20)], 1, "", ()),
    ],
    ids=["regular", "six steps", "two steps", "a row of the run", "no row of the run", "too few", "changes"],
)
def test_a_run_tells_where_its_trace_has_no_rows(
    seconds: list[int], step_s: float, told: str, in_gaps: Iterable[int], tmp_path: Path
) -> None:
    """Rows of changes alone come at any time, and have no gaps."""
    rows = "".join(f"{second},{name},40 Gbit/s\n" for second in seconds for name in LINKS)
    (tmp_path / "trace.csv").write_text("time,link,rate\n" + rows)
    wanted = f"the previous rates hold where rows are missing: s0b0-s1b0 from {told}"
    trace = read_trace(tmp_path / "trace.csv", LINKS, step_s=step_s)
    assert trace.notes == ((wanted,) if told else ())
    assert trace.in_gaps == {*in_gaps}
