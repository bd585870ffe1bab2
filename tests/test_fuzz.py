"""Whatever is read from outside, random and mutated: an answer or one sentence, soon, and within bounds of memory."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.api.protocol import ProtocolError, line_limit_bytes, parse_request, read_spec, write_spec
from scenarios.spec import FOLDER, ScenarioError, load
from scenarios.spec.scenario import Scenario
from tests.fuzz import anything, bounded, fuzzed, json_values, mutated, one_line
from topologies import units
from topologies.conditions.trace import read_trace
from topologies.errors import ConditionsError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

FABRIC = build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1))
LINKS = [link.name for link in FABRIC.links]


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


OWN = b"""
name = "mine"
[fabric]
gpus = [3, 5]
leaves = [1, 2]
wan = { routers = ["X", "Y"], links = [["s0b0", "X"], ["X", "Y"], ["Y", "s1b0"], ["s0b1", "Y"], ["X", "s1b1"]] }
[conditions]
sampler = "gaussian"
mean = 0.4
deviation = 0.2
intra_rate = "20-200 Gbit/s"
[collective]
chunk = "8 MiB"
count = 50
[transport]
line_rate = false
[sweep]
"conditions.wan_delay" = ["10 us", "1 ms"]
"""
SCENARIOS = [OWN, *(path.read_bytes() for path in sorted(FOLDER.glob("*.toml")))]
TOML = [
    b"[fabric]\n", b"[conditions]\n", b"[collective]\n", b"[run]\n", b"[sweep]\n", b"[transport]\n", b"[[fault]]\n",
    b"gpus = ", b"wan = ",
    b"= ", b'"', b"\n", b"[", b"]", b"{", b"}", b",", b"0", b"-1", b"1e999", b"nan", b"true", b"8", b'"five-router"',
    b'"mesh"', b'"8 MB"', b'"10 us"', b'"collective.chunk" = ', b"trace = ", b'"/dev/zero"', b"1979-05-27", b"'''",
    b"99999999999999999999999", b'sampler = "trace"\n', b'sampler = "markov"\n', b"\x00", b"\xff", b"#", b"count = ",
    b'at = "collective 3"\n', b'what = "link s0b0-s1b0 down"\n', b'for = "2 collectives"\n',
]  # fmt: skip


@fuzzed
@given(mutated(SCENARIOS, TOML) | anything(TOML))
@example(b"a=" + b"[" * 60_000)
@example(b"[" + b"a." * 30_000 + b"b]")
@example(b"x = " + b"9" * 60_000)
def test_the_scenario_loader(data: bytes) -> None:
    path = _SCRATCH / "scenario.toml"
    path.write_bytes(data)
    with bounded():
        try:
            scenario = load.load_scenario(str(path))
        except ScenarioError as error:
            assert error.mistakes and len(error.mistakes) < 500
            for mistake in error.mistakes:
                assert mistake and "\n" not in mistake and len(mistake) < 3000
            return
        assert isinstance(scenario, Scenario)
    path.write_text(load.resolved(scenario))
    assert load.load_scenario(str(path)) == scenario


@pytest.fixture(autouse=True, scope="module")
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _SCRATCH
    _SCRATCH = tmp_path_factory.mktemp("fuzz")


_SCRATCH = Path()


UNITS = ["Gbit/s", "bit/s", "MB", "MiB", "us", "ms", " ", "-", "–", ".", "1", "9" * 30, "0", "e5", "nan", "inf", "−", "µs", "٣"]  # fmt: skip  # noqa: E501


@fuzzed
@given(st.text(max_size=60) | st.lists(st.sampled_from(UNITS), max_size=8).map("".join))
@example("9" * 100_000 + " B")
@example("1." + "0" * 100_000 + " s")
@example("-" * 100_000)
def test_units(text: str) -> None:
    readers = {
        units.parse_rate_bps: units.format_rate,
        units.parse_rate_range_bps: units.format_rate_range,
        units.parse_size_bytes: units.format_size,
        units.parse_delay_s: units.format_delay,
    }
    for read, write in readers.items():
        with bounded():
            try:
                value = read(text)  # type: ignore[operator]
            except units.UnitError as error:
                one_line(error)
                continue
            assert value if isinstance(value, tuple) else 0 < value < math.inf
            assert read(write(value)) == value  # type: ignore[operator]


TRACE = ("time,link,rate\n" + "".join(f"0,{name},40 Gbit/s\n" for name in LINKS) + f"1.5,{LINKS[0]},10\n").encode()
ROWS = [b"time,link,rate\n", b"0,", LINKS[0].encode(), b",", b"40 Gbit/s", b"\n", b'"', b"1e9", b"-1", b"nan", b"1e400",
        b"\x00", b"\xff", b"0," + LINKS[1].encode() + b",1\n", b"sNaN", b"1_0", b"\r", b"9" * 50, b"Infinity"]  # fmt: skip  # noqa: E501


@fuzzed
@given(mutated([TRACE], ROWS) | anything(ROWS))
@example(b"time,link,rate\n0," + b"x" * 200_000 + b",1\n")
@example(b"time,link,rate\n1e999999999,a,1\n")
def test_the_trace_reader(data: bytes) -> None:
    path = _SCRATCH / "trace.csv"
    path.write_bytes(data)
    with bounded():
        try:
            recording = read_trace(path, LINKS)
        except ConditionsError as error:
            assert 0 < len(error.mistakes) <= 25
            for mistake in error.mistakes:
                assert len(mistake.text) < 200_500 + len(str(path))
            return
        assert all(times[0] == 0 for times in recording.times_ns)
        assert all((rates > 0).all() for rates in recording.rates_from_bps)


REQUESTS: list[dict[str, Any]] = [
    {"ask": "status", "wait_s": 3, "token": "secret"},
    {"ask": "route", "crossings": [[1, 2], [3, 0]], "rates_bps": [1e9] * len(LINKS), "delays_s": [0] * len(LINKS),
     "chunk_bytes": 8, "best": True, "token": "secret"},
]  # fmt: skip
SPEC = json.loads(write_spec(FabricSpec(wan=WanSpec(preset=None, routers=("X",), links=(("s0b0", "X"),)))))
NAMES = sorted({key for message in (*REQUESTS, SPEC) for key in message} | {"status", "route"})
JSON = [b"{", b"}", b"[", b"]", b":", b",", b'"', b"1", b"-1", b"1e999", b"NaN", b"null", b"true", b"\\u0000", b"\xff",
        b"\n", *(f'"{name}"'.encode() for name in NAMES), b"9" * 5000]  # fmt: skip


def lines(examples: list[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """Messages with a value changed, lines mutated, and anything else."""
    changed = st.tuples(st.sampled_from(examples), st.sampled_from(NAMES), json_values(NAMES)).map(
        lambda parts: dumped(parts[0] | {parts[1]: parts[2]})
    )
    return changed | mutated([dumped(message) for message in examples], JSON) | anything(JSON)


@fuzzed
@given(lines(REQUESTS))
@example(b"[" * 10_000_000 + b"\n")
def test_what_the_controller_is_asked(data: bytes) -> None:
    line = data[: line_limit_bytes(FABRIC)]
    with bounded():
        try:
            parse_request(line, FABRIC, token="secret")
        except ProtocolError as error:
            one_line(error)
            return
        assert json.loads(line)["token"] == "secret"


@fuzzed
@given(lines([SPEC]))
def test_the_fabric_that_the_controller_is_given(data: bytes) -> None:
    with bounded():
        try:
            spec = read_spec(data)
        except ProtocolError as error:
            one_line(error)
            return
        assert isinstance(spec, FabricSpec)
