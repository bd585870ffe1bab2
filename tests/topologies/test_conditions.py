"""Conditions: a function of the seed with the configured distribution; traces are replayed, or refused if invalid."""

import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.conditions.link_overrides import LinkConditions, read, resolved, write
from topologies.conditions.sampler import ConditionsSpec, Sampler, check, delays_s, sampler
from topologies.conditions.trace import MAX_BYTES, read_trace
from topologies.errors import ConditionsError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import links_in_grain

FABRIC = build_fabric(FabricSpec(gpus_per_site=(2, 3)))
WAN = np.array([link.kind == "wan" for link in FABRIC.links])
LINKS = len(FABRIC.links)
drawing = st.sampled_from(["uniform", "gaussian", "markov", "ar1"])


@settings(deadline=None, max_examples=60)
@given(drawing, st.sampled_from([7.0, 2000.0]), st.integers(0, 2**64), st.lists(st.integers(0, 200), min_size=1))
def test_drawn_rates_depend_only_on_seed_collective_and_link(
    name: str, stay: float, seed: int, cuts: list[int]
) -> None:
    spec = ConditionsSpec(sampler=name, mean_stay=stay, coefficient=1 - 1 / stay)
    whole = sampler(FABRIC, spec, seed=seed).rates_bps(0, 200)
    again = sampler(FABRIC, spec, seed=seed)
    assert whole.shape == (200, LINKS) and again.rates_bps(5, 0).shape == (0, LINKS)
    ends = [*sorted(cuts, reverse=True), 0]
    for end, start in pairwise(ends):  # in pieces, from the last to the first
        assert (again.rates_bps(start, end - start) == whole[start:end]).all()
    other = sampler(FABRIC, spec, seed=seed + 1).rates_bps(0, 200)
    assert (other != whole).any()


@pytest.mark.parametrize("name", ["uniform", "gaussian", "markov", "ar1"])
def test_rates_are_whole_numbers_within_the_range_of_their_link(name: str) -> None:
    spec = ConditionsSpec(sampler=name, intra_rate_bps=(3, 7), wan_rate_bps=(10, 1000))
    rates = sampler(FABRIC, spec, seed=1).rates_bps(0, 5000)
    assert rates.shape == (5000, LINKS)
    assert (rates == np.floor(rates)).all()
    assert set(np.unique(rates[:, ~WAN])) == {3, 4, 5, 6, 7}
    assert rates[:, WAN].min() >= 10
    assert rates[:, WAN].max() <= 1000


def test_uniform_rates_are_uniform_and_independent() -> None:
    rates = sampler(FABRIC, ConditionsSpec(), seed=3).rates_bps(0, 40_000)
    for low, high, columns in ((20e9, 200e9, ~WAN), (10e9, 100e9, WAN)):
        share = np.sort(((rates[:, columns] - low) / (high - low)).ravel())
        steps = np.arange(share.size) / share.size
        assert np.abs(share - steps).max() < 2.2 / np.sqrt(share.size)  # Kolmogorov-Smirnov: 1 in 10^4 exceed it
    assert off_diagonal(np.corrcoef(rates.T)) < 5 / np.sqrt(len(rates))  # between links
    assert off_diagonal(np.corrcoef(rates[1:, 0], rates[:-1, 0])) < 5 / np.sqrt(len(rates))  # and in time


def off_diagonal(correlations: Any) -> float:
    return float(np.abs(correlations - np.eye(len(correlations))).max())


def test_gaussian_rates_follow_a_clipped_normal_distribution() -> None:
    spec = ConditionsSpec(sampler="gaussian")
    share = sampler(FABRIC, spec, seed=5).rates_bps(0, 40_000)[:, WAN].ravel() / 100e9
    # Probabilities of a normal with mean and deviation 0.5: below 0.1, above 1, and below the mean.
    for measured, expected in (
        ((share == 0.1).mean(), 0.2119),
        ((share == 1).mean(), 0.1587),
        ((share < 0.5).mean(), 0.5),
    ):
        assert measured == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(share.size))
    assert (share < 0.75).mean() == pytest.approx(0.6915, abs=0.005)
    calm = sampler(FABRIC, replace(spec, mean=0.8, deviation=0.0), seed=5).rates_bps(0, 10)
    assert (calm[:, WAN] == 80e9).all()


@pytest.mark.parametrize("mean_stay", [1.0, 4.0, 50.0])
def test_markov_rates_stay_for_a_geometrically_distributed_time(mean_stay: float) -> None:
    rates = sampler(FABRIC, ConditionsSpec(sampler="markov", mean_stay=mean_stay), seed=2).rates_bps(0, 30_000)
    changed = rates[1:] != rates[:-1]
    assert changed.mean() == pytest.approx(1 / mean_stay, rel=0.03)
    if mean_stay > 1:  # memoryless: a change is as likely after a change as at any time
        assert changed[1:][changed[:-1]].mean() == pytest.approx(1 / mean_stay, rel=0.1)
    assert off_diagonal(np.corrcoef(rates.T)) < 6 * np.sqrt(2 * mean_stay / len(rates))


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9, 0.99])
def test_ar1_rates_are_uniform_with_the_configured_autocorrelation(coefficient: float) -> None:
    links, count = LINKS, 40_000
    rates = sampler(FABRIC, ConditionsSpec(sampler="ar1", coefficient=coefficient), seed=3).rates_bps(0, count)
    alike = count * (1 - coefficient) / (1 + coefficient)  # effective number of independent draws per link
    for low, high, columns in ((20e9, 200e9, ~WAN), (10e9, 100e9, WAN)):
        share = (rates[:, columns] - low) / (high - low)
        assert share.mean() == pytest.approx(1 / 2, abs=5 / np.sqrt(12 * alike * share.shape[1]))
        assert share.var() == pytest.approx(1 / 12, rel=5 * 0.9 / np.sqrt(alike * share.shape[1]))
        ordered = np.sort(share.ravel())
        assert np.abs(ordered - np.arange(ordered.size) / ordered.size).max() < 2.2 / np.sqrt(alike * share.shape[1])
    centred = rates - rates.mean(axis=0)
    for lag in (1, 2, 5, 40):
        found = (centred[lag:] * centred[:-lag]).sum() / (centred**2).sum()
        assert found == pytest.approx(6 / np.pi * np.arcsin(coefficient**lag / 2), abs=6 / np.sqrt(alike * links))
    assert off_diagonal(np.corrcoef(rates.T)) < 6 / np.sqrt(alike)  # links are independent


def test_an_ar1_process_is_stationary_from_the_first_collective() -> None:
    """Over many links, the first rates are uniform, and correlate with the next ones as at any time."""
    wide = build_fabric(FabricSpec(gpus_per_site=(40, 40)))
    rates = sampler(wide, ConditionsSpec(sampler="ar1", coefficient=0.8), seed=1).rates_bps(0, 2)[:, :3000]
    share = (rates - 20e9) / 180e9
    assert np.abs(np.sort(share[0]) - np.arange(3000) / 3000).max() < 2.2 / np.sqrt(3000)
    assert np.corrcoef(share)[0, 1] == pytest.approx(6 / np.pi * np.arcsin(0.4), abs=0.04)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("uniform", [109_598_168_079, 85_526_730_677, 78_787_363_024]),
        ("gaussian", [20_000_000_000, 122_421_520_863, 63_282_329_273]),
        ("markov", [109_598_168_079, 67_327_824_158, 78_787_363_024]),
        ("ar1", [124_292_773_115, 109_368_865_151, 80_085_630_653]),
    ],
)
def test_a_seed_gives_the_same_rates_as_in_the_first_release(name: str, rates: list[int]) -> None:
    """The rates are those of the first release, so that published runs can be repeated."""
    drawn = sampler(FABRIC, ConditionsSpec(sampler=name), seed=1).rates_bps(1_000_000, 1)[0, [0, 7, -1]]
    assert drawn.tolist() == rates


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"sampler": "normal"}, "sampler"),
        ({"intra_rate_bps": (0, 5)}, "intra_rate"),
        ({"intra_rate_bps": (float("nan"), 5)}, "intra_rate"),
        ({"wan_rate_bps": (1, float("inf"))}, "wan_rate"),
        ({"intra_delay_s": float("nan")}, "intra_delay"),
        ({"sampler": "gaussian", "deviation": -0.1}, "deviation"),
        ({"sampler": "gaussian", "mean": float("inf")}, "mean"),
        ({"sampler": "ar1", "coefficient": 1.0}, "coefficient"),
        ({"coefficient": -0.1}, "coefficient"),
        ({"sampler": "trace"}, "trace"),
        ({"trace": Path("some.csv")}, "trace"),
        ({"sampler": "trace", "trace": Path("some.csv"), "trace_step_s": 0.0}, "trace_step"),
        ({"wan_rate_bps": (5, 1), "wan_delay_s": -1, "mean_stay": 0}, "wan_rate wan_delay mean_stay"),
    ],
)
def test_invalid_conditions_are_refused_with_all_offending_keys_at_once(changes: dict[str, object], keys: str) -> None:
    with pytest.raises(ConditionsError, match="allowed") as caught:
        check(replace(ConditionsSpec(), **changes))  # type: ignore[arg-type]
    assert {mistake.key for mistake in caught.value.mistakes} == {f"conditions.{key}" for key in keys.split()}


# --- traces ---------------------------------------------------------------------------------------------------------

TRACED = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
NAMES = [link.name for link in TRACED.links]
ALL_ROWS = "".join(f"0,{name},{10 + index} Gbit/s\n" for index, name in enumerate(NAMES))
WAN_ROWS = "".join(f"0,{name},{10 + index} Gbit/s\n" for index, name in enumerate(NAMES) if name.count("s") == 2)
HEADER = "time,link,rate\n"


def replay(path: Path, text: str, step_s: float = 1.0) -> Sampler:
    path.write_text(text, encoding="utf-8")
    return sampler(TRACED, ConditionsSpec(sampler="trace", trace=path, trace_step_s=step_s), seed=1)


def test_a_traced_link_keeps_its_rate_until_its_next_row(tmp_path: Path) -> None:
    later = "1.5,g0>g1,7 Gbit/s\n3,s0b0>s1b0,5000000000\n3,g0>g1,8 Gbit/s\n"
    trace = replay(tmp_path / "t.csv", HEADER + ALL_ROWS + later)
    assert trace.limit == 4
    rates = trace.rates_bps(0, 4)
    assert rates[:, NAMES.index("g0>g1")].tolist() == [10e9, 10e9, 7e9, 8e9]
    still = NAMES.index("s0b0>s1b0")
    assert rates[:, still].tolist() == [(10 + still) * 1e9] * 3 + [5e9]
    assert (trace.rates_bps(2, 2) == rates[2:]).all()


def test_trace_times_are_rounded_to_the_nanosecond(tmp_path: Path) -> None:
    trace = replay(tmp_path / "t.csv", HEADER + ALL_ROWS + "0.3,g0>g1,7 Gbit/s\n", step_s=0.1)
    assert trace.rates_bps(0, trace.limit or 0)[:, NAMES.index("g0>g1")].tolist() == [10e9, 10e9, 10e9, 7e9]
    # Times as floating-point arithmetic gives them: 0.1 + 0.2 is not 0.3.
    trace = replay(tmp_path / "t.csv", HEADER + ALL_ROWS + f"{0.1 + 0.2},g0>g1,7\n0.3999999996,g0>g1,8\n", step_s=0.1)
    assert trace.rates_bps(0, trace.limit or 0)[:, NAMES.index("g0>g1")].tolist() == [10e9, 10e9, 10e9, 7, 8]


def test_intra_site_links_missing_from_a_trace_are_drawn_as_without_the_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + WAN_ROWS + "40,s0b0>s1b0,5\n")
    drawn = ConditionsSpec(intra_rate_bps=(1_000, 9_000_000))
    traced = replace(drawn, sampler="trace", trace=tmp_path / "t.csv")
    found, uniform = (sampler(TRACED, spec, seed=3).rates_bps(2, 39) for spec in (traced, drawn))
    wan = [index for index, link in enumerate(TRACED.links) if link.kind == "wan"]
    within = [index for index in range(len(NAMES)) if index not in wan]
    assert (found[:, within] == uniform[:, within]).all() and len(np.unique(found[:, within])) > 400
    assert found[:-1, wan].tolist() == [[(10 + index) * 1e9 for index in wan]] * 38
    assert found[-1, NAMES.index("s0b0>s1b0")] == 5
    steady = sampler(TRACED, replace(traced, intra_rate_bps=(77, 77)), seed=3).rates_bps(0, 41)
    assert (steady[:, within] == 77).all()


def test_collectives_beyond_the_end_of_a_trace_are_refused(tmp_path: Path) -> None:
    trace = replay(tmp_path / "t.csv", HEADER + ALL_ROWS + "2,g0>g1,7 Gbit/s\n")
    with pytest.raises(ConditionsError, match=r"ends at 2 s and covers 3 collectives; 4 are needed"):
        trace.rates_bps(2, 2)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("1,g0>g9,7 Gbit/s", "t.csv:16: .*'g0>g9'"),
        ("2,g0>g1,7 Gbit/s\n1,g0>g1,7 Gbit/s", "t.csv:17: time 1 "),
        ("1,g0>g1,7 Gbit/s\n1,g0>g1,8 Gbit/s", "t.csv:17: link g0>g1 "),
        ("1,g0>g1", "t.csv:16: 2 fields"),
        ("-0.0000000001,g0>g1,7 Gbit/s", "t.csv:16: .*two rates at time -0.0000000001"),
        ("-1,g0>g1,7 Gbit/s", "t.csv:16: time -1 comes after 0"),
        ("2026-01-01T00:00:00Z,g0>g1,7 Gbit/s", "t.csv:16: '2026-01-01T00:00:00Z' is not a time; allowed: seconds"),
        ("1e10,g0>g1,7", "t.csv:16: '1e10' is not within 1e9 s"),
        ("1,g0>g1,0.5", "t.csv:16: .*too small"),
        ("nan,g0>g1,7 Gbit/s", "t.csv:16: 'nan' "),
        ("1e999999999,g0>g1,7 Gbit/s", "t.csv:16: '1e999999999' "),
        ("0.0000000001,g0>g1,7 Gbit/s", "two rates at time 0.0000000001"),
        ("1,g0>g1,fast", "t.csv:16: .*fast"),
        ("1,g0>g1,0", "t.csv:16: the rate of g0>g1 is 0; allowed: above 0, or 0 for links such as s0b0>s1b0"),
        ('1,"g0>g1,7', "cannot be read as a trace"),
        ("1,g0>g9,7\n" * 1234, "and 1,214 more mistakes$"),
        (
            "1,Berlin>Hamburg,7",
            "t.csv:16: the fabric has no link 'Berlin>Hamburg'; .*topologies.conditions.convert makes",
        ),
        ("1,Berlin>Hamburg,7\n" * 559, "and 539 more mistakes; python -m topologies.conditions.convert makes a trace"),
    ],
)
def test_invalid_trace_rows_are_refused_with_their_lines(tmp_path: Path, rows: str, named: str) -> None:
    with pytest.raises(ConditionsError, match=named) as caught:
        replay(tmp_path / "t.csv", HEADER + ALL_ROWS + rows + "\n")
    assert {mistake.key for mistake in caught.value.mistakes} == {"conditions.trace"} and len(
        caught.value.mistakes
    ) <= 21


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEADER + ALL_ROWS.replace("0,s1b0>s0b0", "1,s1b0>s0b0"), "for s1b0>s0b0"),
        (HEADER, "for s0b0>s1b0, s1b0>s0b0; "),
        (HEADER + WAN_ROWS + "0,g0>g1,7\n", "for g1>g0, g0>s0b0, g1>s0b0 and 8 more; .* all together"),
        (HEADER + WAN_ROWS + "1,g0>g1,7\n", "for g0>g1, g1>g0, g0>s0b0 and 9 more; .* all together"),
        ("", "its first line is ''; allowed: the columns time, link and rate"),
        ("time,link,bandwidth\n", "its first line is 'time,link,bandwidth'; allowed: the columns time, link and rate"),
    ],
)
def test_a_trace_with_missing_links_or_a_wrong_header_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConditionsError, match=named):
        replay(tmp_path / "t.csv", text)


def test_a_trace_file_that_is_binary_truncated_too_large_or_not_regular_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "cut.csv").write_text("time,link,rate\n0,g0>g1,40")
    with (tmp_path / "vast.csv").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00time")
    refused = {
        "pipe.csv": "not a regular file",
        "/dev/zero": "not a regular file",
        "vast.csv": "256,000,000 bytes at most",
    }
    refused |= {"cut.csv": "may be cut off", "none.csv": "No such file", ".": "not a regular file", "bytes.csv": "."}
    for name, says in refused.items():
        with pytest.raises(ConditionsError, match=rf"{re.escape(str(tmp_path / name))}: .*{says}"):
            read_trace(tmp_path / name, ["g0>g1"])


# --- conditions of single links ------------------------------------------------------------------------------------


def link_entries(**entries: dict[str, str]) -> tuple[LinkConditions, ...]:
    return read(entries)


@pytest.mark.parametrize("grain", ["logical", "physical"])
@pytest.mark.parametrize("name", ["uniform", "gaussian", "markov", "ar1"])
def test_link_rates_and_delays_can_be_set_by_class_pattern_and_name(grain: str, name: str) -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 3), grain=grain))
    all_ = [link.name for link in links_in_grain(fabric).all]
    special, first = all_.index("s0b1>s1b1"), next(link for link in all_ if link.startswith("g1>"))
    entries = {  # the most specific entry applies, in any order of entries
        "s0b1>s1b1": {"rate": "5 kbit/s"},
        "g1>*": {"rate": "1-2 kbit/s"},
        "g*": {"delay": "3 us"},
        "wan": {"rate": "300-400 kbit/s", "delay": "7 ms"},
        first: {"delay": "0 s"},
    }
    links = read(entries)
    assert read(write(links)) == links
    spec = ConditionsSpec(sampler=name, links=links)
    plain = ConditionsSpec(sampler=name)
    rates, delays = sampler(fabric, spec, seed=1).rates_bps(0, 300), delays_s(fabric, spec)
    before, before_s = sampler(fabric, plain, seed=1).rates_bps(0, 300), delays_s(fabric, plain)
    for index, link in enumerate(links_in_grain(fabric).all):
        column = rates[:, index]
        if index == special:
            assert set(column) == {5000} and delays[index] == 7e-3
        elif link.kind == "wan":
            assert 300_000 <= column.min() < column.max() <= 400_000 and delays[index] == 7e-3
        elif link.src == "g1":
            assert 1000 <= column.min() < column.max() <= 2000 and delays[index] == (0 if link.name == first else 3e-6)
        else:
            assert (column == before[:, index]).all()
            assert delays[index] == (3e-6 if link.src.startswith("g") else before_s[index])


@pytest.mark.parametrize(
    ("grain", "classes"),
    [("logical", "wan gpu-gpu gpu-border"), ("physical", "wan access leaf-spine spine-border")],
)
def test_the_link_classes_of_a_grain_cover_every_link_exactly_once(grain: str, classes: str) -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(3, 2), grain=grain))
    found = resolved(fabric, read({name: {"delay": "1 us"} for name in classes.split()}))
    indices = np.concatenate([indices for _, indices in found])
    assert sorted(indices) == list(range(len(links_in_grain(fabric).all)))


@pytest.mark.parametrize(
    ("grain", "name", "allowed"),
    [
        ("logical", "leaf-spine", "wan, gpu-gpu, gpu-border, a link (g0>g1, g1>g0, g0>s0b0 and"),
        ("logical", "g7>*", "a pattern such as g0>"),
        ("physical", "wna", "(did you mean wan?)"),
        ("physical", "g0>g1", "wan, access, leaf-spine, spine-border, a port (g0>s0l0,"),
    ],
)
def test_conditions_of_links_that_the_fabric_lacks_are_refused(grain: str, name: str, allowed: str) -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 3), grain=grain))
    with pytest.raises(ConditionsError) as caught:
        sampler(fabric, ConditionsSpec(links=link_entries(**{name: {"delay": "1 us"}})), seed=1)
    (mistake,) = caught.value.mistakes
    assert mistake.key == f"conditions.links.{name}" and allowed in mistake.text


@pytest.mark.parametrize(
    ("values", "place", "text"),
    [
        ({}, "", "rate, delay"),
        ("5 ms", "", "is not a table"),
        ({"rate": 5}, ".rate", "5 is not text"),
        ({"rates": "5 kbit/s"}, ".rates", "did you mean rate"),
        ({"rate": "5 furlongs"}, ".rate", "wrong unit"),
        ({"delay": "-1 s"}, ".delay", "is negative; allowed: 0 or more"),
    ],
)
def test_invalid_link_entries_are_refused_with_the_offending_key(values: object, place: str, text: str) -> None:
    with pytest.raises(ConditionsError) as caught:
        read({"wan": values})
    (mistake,) = caught.value.mistakes
    assert mistake.key == f"conditions.links.wan{place}" and text in mistake.text


def test_with_a_trace_links_may_set_any_delay_but_only_intra_site_rates(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + WAN_ROWS)
    spec = ConditionsSpec(sampler="trace", trace=tmp_path / "t.csv")
    entries = link_entries(wan={"delay": "7 ms"}, **{"g0>g1": {"rate": "7777 bit/s"}})
    found = replace(spec, links=entries)
    assert sampler(TRACED, found, seed=1).rates_bps(0, 1)[0, NAMES.index("g0>g1")] == 7777
    assert delays_s(TRACED, found)[NAMES.index("s0b0>s1b0")] == 7e-3
    with pytest.raises(ConditionsError, match=r"rates of the trace"):
        sampler(TRACED, replace(spec, links=link_entries(**{"s0*>s1*": {"rate": "5 kbit/s"}})), seed=1)
