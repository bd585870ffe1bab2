"""Recorded conditions: replayed as they were, and refused where they are not whole."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.conditions import ConditionsSpec, Sampler, sampler
from topologies.errors import ConditionsError
from topologies.fabric import FabricSpec, build_fabric
from topologies.trace import MAX_BYTES, read_trace

FABRIC = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
NAMES = [link.name for link in FABRIC.links]
FIRST = "".join(f"0,{name},{10 + place} Gbit/s\n" for place, name in enumerate(NAMES))
HEADER = "time,link,rate\n"


def replay(path: Path, text: str, step_s: float = 1.0) -> Sampler:
    path.write_text(text, encoding="utf-8")
    return sampler(FABRIC, ConditionsSpec(sampler="trace", trace=path, trace_step_s=step_s), seed=1)


def test_a_link_keeps_its_rate_until_its_next_row(tmp_path: Path) -> None:
    later = "1.5,g0>g1,7 Gbit/s\n3,s0b0>s1b0,5000000000\n3,g0>g1,8 Gbit/s\n"
    trace = replay(tmp_path / "t.csv", HEADER + FIRST + later)
    assert trace.limit == 4
    rates = trace.rates_bps(0, 4)
    assert rates[:, NAMES.index("g0>g1")].tolist() == [10e9, 10e9, 7e9, 8e9]
    still = NAMES.index("s0b0>s1b0")
    assert rates[:, still].tolist() == [(10 + still) * 1e9] * 3 + [5e9]
    assert (trace.rates_bps(2, 2) == rates[2:]).all()


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    trace = replay(tmp_path / "t.csv", HEADER + FIRST + "0.3,g0>g1,7 Gbit/s\n", step_s=0.1)
    assert trace.limit == 4  # in floats 3 * 0.1 is not 0.3
    assert trace.rates_bps(0, 4)[:, NAMES.index("g0>g1")].tolist() == [10e9, 10e9, 10e9, 7e9]


def test_what_came_after_the_end_is_not_made_up(tmp_path: Path) -> None:
    trace = replay(tmp_path / "t.csv", HEADER + FIRST + "2,g0>g1,7 Gbit/s\n")
    with pytest.raises(ConditionsError, match=r"ends at 2 s and covers 3 collectives; 4 were asked for"):
        trace.rates_bps(2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + FIRST + "1,g0>g9,7 Gbit/s\n", "t.csv:16: the fabric has no link 'g0>g9'"),
        (HEADER + FIRST + "2,g0>g1,7 Gbit/s\n1,g0>g1,7 Gbit/s\n", "t.csv:17: time 1 comes after 2"),
        (HEADER + FIRST + "1,g0>g1,7 Gbit/s\n1,g0>g1,8 Gbit/s\n", "t.csv:17: link g0>g1 has two rates at time 1"),
        (HEADER + FIRST + "1,g0>g1\n", "t.csv:16: 2 fields; a row has three"),
        (HEADER + FIRST + "-1,g0>g1,7 Gbit/s\n", "t.csv:16: '-1' is no time"),
        (HEADER + FIRST + "nan,g0>g1,7 Gbit/s\n", "t.csv:16: 'nan' is no time"),
        (HEADER + FIRST + "1e999999999,g0>g1,7 Gbit/s\n", "t.csv:16: '1e999999999' is no time"),
        (HEADER + FIRST + "0.0000000001,g0>g1,7 Gbit/s\n", "is no time"),
        (HEADER + FIRST + "1,g0>g1,fast\n", "t.csv:16: .*fast"),
        (HEADER + FIRST + "1,g0>g1,0\n", "t.csv:16: .*zero"),
        (HEADER + FIRST + "1,g0>g1,nan\n", "t.csv:16: .*nan"),
        (HEADER + FIRST + '1,"g0>g1,7', "cannot be read as a trace"),
        (HEADER + FIRST.replace("0,s1b0>s0b0", "1,s1b0>s0b0"), "t.csv: no rate at time 0 for s1b0>s0b0"),
        (HEADER, "no rate at time 0 for g0>g1, g1>g0, g0>s0b0 and 11 more"),
        ("", "its first line is ''; it must be 'time,link,rate'"),
        ("link,time,rate\n", "it must be 'time,link,rate'"),
    ],
)
def test_a_trace_with_holes_or_nonsense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConditionsError, match=message) as caught:
        replay(tmp_path / "t.csv", text)
    assert caught.value.key == "conditions.trace"


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00time")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "bytes.csv"):
        with pytest.raises(ConditionsError, match="cannot be read as a trace"):
            read_trace(path, NAMES)


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.text(max_size=200), st.text(alphabet='0123456789.,-e"\n g>sb/bitGk', max_size=200)))
def test_no_text_makes_the_reader_fail_in_any_other_way(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes((HEADER + FIRST + text).encode("utf-8", "surrogatepass"))
    try:
        read_trace(path, NAMES)
    except ConditionsError as error:
        assert all(str(path) in mistake.text for mistake in error.mistakes)


def test_a_trace_that_could_block_is_cut_off_or_is_endless_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "cut.csv").write_text("time,link,rate\n0,g0>g1,40")
    with (tmp_path / "vast.csv").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    refused = (("pipe.csv", "no regular file"), ("cut.csv", "is cut off"), ("vast.csv", "256,000,000 at most"))
    for name, says in (*refused, ("/dev/zero", "no regular file")):
        with pytest.raises(ConditionsError, match=says):
            read_trace(tmp_path / name, ["g0>g1"])
