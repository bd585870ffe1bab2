"""Every reader of external input, with random and mutated input: it accepts it or refuses it with a one-line message,
within bounds of time and memory.

`LONGHAUL_FUZZ=10000 python -m pytest tests/test_fuzz.py` tries ten thousand inputs per test instead of fifty.
"""

import json
import math
import os
import re
import shutil
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analysis.results import reader, schema
from analysis.results.rows import Point
from analysis.results.writer import Writer, write_table
from controller.api.protocol import ProtocolError, line_limit_bytes, parse_request, read_spec, write_spec
from hosts.collectives import chakra, schedule_files
from hosts.collectives.kinds import MESSAGES
from hosts.collectives.schedule import ScheduleError
from scenarios.spec import FOLDER, ScenarioError, load
from scenarios.spec.keys import KEYS
from scenarios.spec.scenario import Scenario, from_json, to_json
from tests.conftest import PROJECT
from tests.fakes.stored import some_rows, write_run
from topologies import units
from topologies.conditions.trace import read_trace
from topologies.errors import ConditionsError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

EXAMPLES = int(os.environ.get("LONGHAUL_FUZZ", "50"))
HANG_S = 20  # of processor time, where milliseconds are normal; pytest's own timeout ends a test that blocks
MEMORY_BYTES = 64 << 20

fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, database=None
)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the body takes more than `HANG_S` of processor time or `MEMORY_BYTES` of memory."""

    def hung(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it has not ended after {HANG_S} s")

    before = signal.signal(signal.SIGPROF, hung)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert peak < MEMORY_BYTES, f"it took {peak:,} bytes"


def one_line(error: BaseException) -> None:
    """Assert that an error's message is one non-empty line of fewer than 2000 characters."""
    text = str(error)
    assert text and "\n" not in text and len(text) < 2000, text


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes], words: list[bytes]) -> bytes:
    """Draw one of the seeds with a few bytes changed, removed, repeated, or replaced by words of the format."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 40)))
        change = draw(st.integers(0, 5))
        if change == 0:
            data[at:end] = draw(st.binary(max_size=8))
        elif change == 1:
            data[at:end] = b""
        elif change == 2:
            data[at:at] = data[at:end] * draw(st.integers(1, 20))
        elif change == 3:
            data[at:end] = draw(st.sampled_from(words))
        elif change == 4:
            del data[at:]
        elif at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def anything(words: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy for random bytes and for sequences of the format's words."""
    return st.binary(max_size=300) | st.lists(st.sampled_from(words), max_size=40).map(b"".join)


def json_values(names: list[str]) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values, with these names among the objects' keys, and numbers of every size."""
    numbers = st.integers() | st.integers(-(10**30), 10**30) | st.floats() | st.sampled_from([2**63, 10**300, -0.0])
    leaves = st.none() | st.booleans() | numbers | st.text(max_size=20) | st.sampled_from(names)
    keys = st.sampled_from(names) | st.text(max_size=5)
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=30)


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
def test_the_scenario_loader_accepts_or_refuses_any_bytes(data: bytes) -> None:
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
    assert all(from_json(to_json(setting)) == setting for setting in scenario.configurations())


@pytest.fixture(autouse=True, scope="module")
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _SCRATCH
    _SCRATCH = tmp_path_factory.mktemp("fuzz")


_SCRATCH = Path()


@fuzzed
@given(st.sampled_from([*KEYS, *(f"sweep.{key}" for key in KEYS)]) | st.text(max_size=20), mutated([b"8"], TOML))
def test_an_option_that_sets_a_key_is_accepted_or_refused_in_printable_lines(key: str, value: bytes) -> None:
    try:
        load.load_scenario("paper", [load.assignment(f"{key}={os.fsdecode(value)}")])
    except ScenarioError as error:
        assert error.mistakes and all(line.isprintable() for line in error.mistakes)


UNITS = ["Gbit/s", "bit/s", "MB", "MiB", "us", "ms", " ", "-", "–", ".", "1", "9" * 30, "0", "e5", "nan", "inf", "−", "µs", "٣"]  # fmt: skip  # noqa: E501


@fuzzed
@given(st.text(max_size=60) | st.lists(st.sampled_from(UNITS), max_size=8).map("".join))
@example("9" * 100_000 + " B")
@example("1." + "0" * 100_000 + " s")
@example("-" * 100_000)
def test_unit_parsers_accept_or_refuse_any_text(text: str) -> None:
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
def test_the_trace_reader_accepts_or_refuses_any_bytes(data: bytes) -> None:
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


DATA = PROJECT / "tests" / "data"
SCHEDULES = [path.read_bytes() for path in (*sorted(DATA.glob("[!c]*/*")), DATA / "teccl_mesh_4.json")]
NOTES = [b"-1", b"0", b"1", b"2", b"7", b"64", b"1000000", b"9" * 30, b"\0", b"<!ENTITY a 'b'>", b"&a;", b"{", b"}",
         b"/*", b"requires", b"\n", b'<step s="0"/>', b"send 8b to 1\n", b"\xc3\xa9"]  # fmt: skip


@settings(fuzzed, max_examples=4 * EXAMPLES)
@given(mutated(SCHEDULES, NOTES) | anything(NOTES))
@example(b"")
@example(b"<" * 1000)
@example(b"{" * 100_000)
@example(b'{"7-Flows": ["Chunk 0 from \xd9\xa1 traveled over 0->1 in epoch 0"]}')
def test_the_schedule_readers_accept_or_refuse_any_bytes(data: bytes) -> None:
    path = _SCRATCH / "schedule"
    path.write_bytes(data)
    kind, gpus = MESSAGES, 2
    with bounded():
        for _ in range(2):  # the second time with the kind and GPUs that the error names
            try:
                assert schedule_files.read(path, kind=kind, gpus=gpus).transfers
                return
            except ScheduleError as error:
                one_line(error)
                assert str(error).startswith(str(path))
                right = re.search(r"allowed: the kind (\w+) and (\d+) GPUs$", str(error))
                if right is None:
                    return
                kind, gpus = right[1], int(right[2])
    raise AssertionError("it is not what it is said to be")


TRACES = [path.read_bytes() for path in sorted((DATA / "chakra").glob("*.0.et"))]
RECORDS = [b"\xff" * 11, b"\x80", b"\0", b"\x01", b"\x0a", b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x01", b"\x2a\x01\0",
           b"\x18\x07", b"\x07\x0a\x050.0.4", b"\x38\xff\xff\xff\xff\x0f", b"comm_size", b"pg_name"]  # fmt: skip


@settings(fuzzed, max_examples=4 * EXAMPLES)
@given(mutated(TRACES, RECORDS) | anything(RECORDS), st.booleans())
@example(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", False)
@example(b"\x07\x0a\x050.0.4" + b"\0" * 1_000_000, False)
@example(b"\x07\x0a\x050.0.4" + b"\x84\x80\x40\x2a\x80\x80\x40" + b"\x01" * (1 << 20), False)
def test_the_chakra_reader_accepts_or_refuses_any_bytes(data: bytes, both: bool) -> None:
    for rank in range(4):
        (_SCRATCH / f"trace.{rank}.et").write_bytes(data if both or rank == 0 else TRACES[0])
    with bounded():
        try:
            found = chakra.read(_SCRATCH / "trace.*.et", sites=(2, 2))
        except ScheduleError as error:
            one_line(error)
            assert str(error).startswith(str(_SCRATCH))
            return
        assert found.initial_contents and found.schedule.ends


REQUESTS: list[dict[str, Any]] = [
    {"ask": "status", "wait_s": 3, "token": "secret"},
    {"ask": "route", "crossings": [[1, 2], [3, 0]], "rates_bps": [1e9] * len(LINKS), "delays_s": [0] * len(LINKS),
     "chunk_bytes": 8, "best": True, "probes": [[0, 2, FABRIC.paths[0].index, 31000]], "token": "secret"},
    {"ask": "counters", "token": "secret"},
    {"ask": "cables", "dead": [["s0b0", "s1b0"]], "token": "secret"},
]  # fmt: skip
SPEC = json.loads(write_spec(FabricSpec(wan=WanSpec(preset=None, routers=("X",), links=(("s0b0", "X"),)))))
NAMES = sorted({key for message in (*REQUESTS, SPEC) for key in message} | {"status", "route", "cables"})
JSON = [b"{", b"}", b"[", b"]", b":", b",", b'"', b"1", b"-1", b"1e999", b"NaN", b"null", b"true", b"\\u0000", b"\xff",
        b"\n", *(f'"{name}"'.encode() for name in NAMES), b"9" * 5000]  # fmt: skip


def lines(examples: list[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """Return a strategy for messages with one value changed, mutated lines, and arbitrary bytes."""
    changed = st.tuples(st.sampled_from(examples), st.sampled_from(NAMES), json_values(NAMES)).map(
        lambda parts: dumped(parts[0] | {parts[1]: parts[2]})
    )
    return changed | mutated([dumped(message) for message in examples], JSON) | anything(JSON)


@fuzzed
@given(lines(REQUESTS))
@example(b"[" * 10_000_000 + b"\n")
def test_the_request_parser_accepts_or_refuses_any_bytes(data: bytes) -> None:
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
def test_the_fabric_spec_parser_accepts_or_refuses_any_bytes(data: bytes) -> None:
    with bounded():
        try:
            spec = read_spec(data)
        except ProtocolError as error:
            one_line(error)
            return
        assert isinstance(spec, FabricSpec)


JSON_FILE = [*JSON, b"null", b'"format": 2', b'"ended": null', b"PAR1"]
POINT = Point("emulation", 0, "base")
PARTS = [f"parts/emulation-0000-base-00000000.{what}.parquet" for what in ("collectives", "transfers")]
FILES = ["provenance.json", "settings.json", "sentences.json", "collectives.parquet", "faults.parquet", *PARTS]


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small complete run that also has a part with rows, as an incomplete run has."""
    folder = tmp_path_factory.mktemp("run") / "run"
    write_run(folder, overrides={"run.modes": ["base"]}, modelled=5, emulated=3)
    writer = Writer(folder, reader.read_settings(folder), {POINT: range(3)})
    writer.add(POINT, some_rows(0, 3, measured=True))
    account = {"number": 1, "at_collective": 1, "what": "x", "detected_s": None, "recovered_s": 0.5}
    account |= {"collectives_lost": 0, "bytes_again": 0, "outcome": "recovered"}
    record = {"engine": "emulation", "setting": 0, "mode": "base", **account}
    write_table(folder / "faults.parquet", schema.SCHEMAS["faults"], [schema.faults_table([record])])
    (folder / "sentences.json").write_text('[{"about": "answer", "heading": "", "lines": ["x is fastest."]}]')
    return folder


@fuzzed
@given(st.sampled_from(FILES), st.booleans(), st.data())
def test_the_results_reader_accepts_or_refuses_any_corrupted_file(
    stored_run: Path, name: str, complete: bool, data: st.DataObject
) -> None:
    folder = _SCRATCH / "mutated"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(stored_run, folder)
    listed = reader.read_settings(folder)
    if not complete:  # so that the parts are read
        provenance = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(provenance | {"ended": None}))
    seed = (folder / name).read_bytes()
    (folder / name).write_bytes(data.draw(mutated([seed], JSON_FILE) | anything(JSON_FILE)))
    with bounded():
        for read in (lambda: reader.open_run(folder), lambda: Writer(folder, listed, {POINT: range(3)})):
            try:
                read()
            except reader.ResultsError as error:
                one_line(error)
