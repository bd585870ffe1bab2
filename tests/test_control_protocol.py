"""What a controller may be asked: requests, and the fabric that it is told of."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.lines import ProtocolError, write_line
from controller.protocol import RouteRequest, parse_request, read_spec, write_spec
from tests.controlled import FABRIC, LINKS, ROUTE
from topologies.fabric import FabricSpec
from topologies.wan import WanSpec


def test_a_route_request_arrives_as_it_was_asked() -> None:
    request = parse_request(write_line(ROUTE), FABRIC)
    assert isinstance(request, RouteRequest)
    assert (request.crossings, request.chunk_bytes, request.best) == (((3, 4), (7, 0)), 8_000_000, True)
    assert set(request.rates_bps) == {1e9} and len(request.delays_s) == LINKS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ask": "reboot"}, "\"ask\" is 'reboot'; allowed"),
        ({"colour": 1}, "nothing is known of 'colour'"),
        ({"crossings": [[3, 4], [3, 4]]}, "[3, 4] is given twice"),
        ({"crossings": [[3, 8]]}, "[3, 8] names a rank beyond 0 to 7"),
        ({"crossings": [[-1, 4]]}, "[-1, 4] names a rank beyond"),
        ({"crossings": [[0, 1]]}, "no path leads over the WAN from rank 0 to rank 1"),
        ({"crossings": [[True, 4]]}, "[True, 4] is no pair of ranks"),
        ({"crossings": [[3, 4]] * 9}, "not a list of at most 8 pairs"),
        ({"rates_bps": [1e9]}, f'"rates_bps" is 1 values, not a list of {LINKS}'),
        ({"rates_bps": [0] * LINKS}, '"rates_bps[0]" is 0, not a number from 1'),
        ({"rates_bps": ["fast"] * LINKS}, "is 'fast', not a number"),
        ({"delays_s": [-1] * LINKS}, '"delays_s[0]" is -1'),
        ({"chunk_bytes": 1.5}, '"chunk_bytes" is 1.5'),
        ({"chunk_bytes": 0}, '"chunk_bytes" is 0'),
        ({"best": 1}, '"best" is 1, not true or false'),
    ],
)
def test_what_cannot_be_served_is_told_with_its_value(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError) as told:
        parse_request(write_line(ROUTE | change), FABRIC)
    assert words in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("missing", sorted(set(ROUTE) - {"ask"}))
def test_a_field_that_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ProtocolError, match=f'needs "{missing}"'):
        parse_request(write_line({key: value for key, value in ROUTE.items() if key != missing}), FABRIC)


@pytest.mark.parametrize(
    "line",
    [b"", b"route", b"\xff\xfe", b"[" * 100_000, b"[1]", b'{"ask":NaN}', b'{"ask":"status","wait_s":1e999}',
     b'{"ask":"status","wait_s":' + b"9" * 4000 + b"}", b'{"ask":"status","wait_s":' + b"9" * 9000 + b"}"],
)  # fmt: skip
def test_garbage_is_a_protocol_error_on_one_line(line: bytes) -> None:
    with pytest.raises(ProtocolError) as told:
        parse_request(line, FABRIC)
    assert "\n" not in str(told.value) and len(str(told.value)) < 200


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["ask", "wait_s", *ROUTE]), inner)).map(lambda value: json.dumps(value).encode()))  # fmt: skip  # noqa: E501
def test_no_line_at_all_is_anything_but_a_request_or_a_protocol_error(line: bytes) -> None:
    try:
        parse_request(line, FABRIC)
    except ProtocolError as told:
        assert "\n" not in str(told)


@pytest.mark.parametrize(
    "spec",
    [
        FabricSpec(),
        FabricSpec(gpus_per_site=(3, 5), leaves=(1, 2), wan=WanSpec(preset="five-router")),
        FabricSpec(wan=WanSpec(preset=None, routers=("X",), links=(("s0b0", "X"), ("X", "s1b0")))),
    ],
)
def test_a_declared_fabric_is_read_back_as_it_was_written(spec: FabricSpec) -> None:
    assert read_spec(write_spec(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is no JSON object"),
        ('{"gpus_per_site": 4}', '"gpus_per_site" is one number'),
        ('{"gpus_per_site": [4, "4"]}', "not a whole number or a list"),
        ('{"gpu": [4, 4]}', "nothing is known of 'gpu'"),
        ('{"wan": 3}', '"wan" is 3'),
        ('{"wan": {"preset": 3}}', '"preset" is 3'),
        ('{"wan": {"links": [["a"]]}}', "allowed are names, and pairs of them"),
        ('{"wan": {"routers": [1]}}', "1 is no name of a router"),
    ],
)
def test_a_fabric_that_is_none_is_told(text: str, words: str) -> None:
    with pytest.raises(ProtocolError) as told:
        read_spec(text)
    assert words in str(told.value)
