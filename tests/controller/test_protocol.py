"""The controller's protocol: requests, and the declaration of its fabric."""

from typing import Any

import pytest

from controller.api.protocol import (
    CablesRequest,
    ProtocolError,
    RouteRequest,
    line_limit_bytes,
    parse_request,
    read_spec,
    write_line,
    write_spec,
)
from tests.controller.conftest import FABRIC, LINKS, ROUTE
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.failures import cable
from topologies.fabric.wan import WanSpec


def test_a_route_request_is_parsed_and_refused_if_a_key_is_missing() -> None:
    request = parse_request(write_line(ROUTE), FABRIC)
    assert isinstance(request, RouteRequest)
    assert (request.crossings, request.chunk_bytes, request.best) == (((3, 4), (7, 0)), 8_000_000, True)
    assert set(request.rates_bps) == {1e9} and len(request.delays_s) == LINKS
    for missing in sorted(set(ROUTE) - {"ask"}):
        with pytest.raises(ProtocolError, match=f'"{missing}"'):
            parse_request(write_line({key: value for key, value in ROUTE.items() if key != missing}), FABRIC)
    big = build_fabric(FabricSpec(gpus_per_site=(32, 32)))
    numbers = {
        "rates_bps": [123_456_789_012_345.6] * len(big.links),
        "delays_s": [1.2345678901234567e-05] * len(big.links),
    }
    assert len(write_line(ROUTE | numbers)) <= line_limit_bytes(big)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("ask", "reboot", "'reboot'"),
        ("colour", 1, "'colour'"),
        ("crossings", [[3, 4], [3, 4]], "[3, 4] is given twice"),
        ("crossings", [[3, 8]], "[3, 8]"),
        ("crossings", [[-1, 4]], "[-1, 4]"),
        ("crossings", [[0, 1]], "rank 0 to rank 1"),
        ("crossings", [[True, 4]], "[True, 4]"),
        ("crossings", [[3, 4]] * 33, "at most 32 pairs"),
        ("rates_bps", [1e9], f"a list of {LINKS}"),
        ("rates_bps", [0] * LINKS, '"rates_bps[0]" is 0'),
        ("rates_bps", ["fast"] * LINKS, "'fast'"),
        ("delays_s", [-1] * LINKS, '"delays_s[0]" is -1'),
        ("chunk_bytes", 1.5, "1.5"),
        ("chunk_bytes", 0, "0"),
        ("best", 1, '"best" is 1'),
        ("given", [[3, 4, 99]], "two ranks of a requested crossing and the index of one of its paths"),
        ("given", [[4, 3, 0]], "two ranks of a requested crossing and the index of one of its paths"),
        ("given", [[3, 4]], "[3, 4]"),
        ("given", {"3": 4}, "at most 2 triples"),
        ("connections", [[3, 4]], "a list of pairs, at most 0 channels"),
        ("channels", 0, "a number from 1"),
        ("wants", [1e9], "a list of 0, one for every pair"),
    ],
)
def test_an_invalid_request_is_refused_with_the_offending_value(key: str, value: Any, shown: str) -> None:
    with pytest.raises(ProtocolError) as error:
        parse_request(write_line(ROUTE | {key: value}), FABRIC)
    assert shown in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dead", "shown"),
    [
        ([["s0b0", "s1b9"]], "has ['s0b0', 's1b9']; allowed: cables of the fabric"),
        ([["s0b0"]], "has ['s0b0']"),
        (["s0b0-s1b0"], "has 's0b0-s1b0'"),
        ([[{}, []]], "has [{}, []]"),
        ("all", "is 'all'; allowed: a list of cables"),
    ],
)
def test_dead_cables_are_those_of_the_fabric(dead: Any, shown: str) -> None:
    request = parse_request(write_line({"ask": "cables", "dead": [["s1b0", "s0b0"]]}), FABRIC)
    assert request == CablesRequest(frozenset({cable("s0b0", "s1b0")}))
    with pytest.raises(ProtocolError) as error:
        parse_request(write_line({"ask": "cables", "dead": dead}), FABRIC)
    assert shown in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flows", "shown"),
    [
        ([[3, 4, 0]], "[3, 4, 0] is not two ranks, a channel and a port"),
        ([[3, 4, 0, "20000"]], "'20000'"),
        ([[3, 8, 0, 20000]], "two different ranks from 0 to 7"),
        ([[3, 3, 0, 20000]], "two different ranks from 0 to 7"),
        ([[3, 4, -1, 20000]], "[3, 4, -1, 20000]"),
        ([[3, 4, 0, 65536]], "[3, 4, 0, 65536]"),
        ([[3, 4, 0, 20000], [3, 4, 1, 20000]], "each TCP source port once"),
        ([[0, 1, 0, 1]] * (2**16 + 1), "at most 65536 flows"),
        ({"0": 1}, "at most 65536 flows"),
    ],
)
def test_invalid_flows_are_refused_with_the_offending_value(flows: Any, shown: str) -> None:
    spread = build_fabric(FabricSpec(routing="ecmp"))
    good = [[3, 4, 0, 20000], [3, 4, 1, 20001], [0, 1, 0, 20000]]
    request = parse_request(write_line(ROUTE | {"flows": good}), spread)
    assert isinstance(request, RouteRequest) and request.flows == tuple(map(tuple, good))
    with pytest.raises(ProtocolError) as error:
        parse_request(write_line(ROUTE | {"flows": flows}), spread)
    assert shown in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ProtocolError, match="a list of at most 0 flows"):
        parse_request(write_line(ROUTE | {"flows": good}), FABRIC)  # with single-path routing
    most = [[0, 1, 9999, port % 65535 + 1] for port in range(2**16)]
    assert len(write_line(ROUTE | {"flows": most})) <= line_limit_bytes(spread)


@pytest.mark.parametrize(
    "spec",
    [
        FabricSpec(),
        FabricSpec(grain="physical", routing="spray", hash_seed=2**63 - 1),
        FabricSpec(gpus_per_site=(3, 5), leaves=(1, 2), wan=WanSpec(preset="five-router")),
        FabricSpec(wan=WanSpec(preset=None, routers=("X",), links=(("s0b0", "X"), ("X", "s1b0")))),
        FabricSpec(
            sites=("A", "B"),
            paths=3,
            wan=WanSpec(
                preset=None,
                routers=("A", "B"),
                links=(("A", "B"),),
                name="two",
                titles=("Ä", "B b"),
                places=((-122.07, 37.25), (2, 3)),
                km=(704.13,),
                rates_bps=(10**9 + 1,),
            ),
        ),
    ],
)
def test_a_fabric_spec_is_read_back_as_it_was_written(spec: FabricSpec) -> None:
    assert read_spec(write_spec(spec)) == spec


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[]", "[]"),
        ('{"gpus_per_site": 4}', '"gpus_per_site" is 4'),
        ('{"gpus_per_site": [4, "4"]}', "[4, '4']"),
        ('{"gpu": [4, 4]}', "'gpu'"),
        ('{"wan": 3}', '"wan": 3'),
        ('{"wan": "topohub:sndlib/nobel-us"}', "\"wan\" is 'topohub:sndlib/nobel-us'"),
        ('{"wan": {"preset": 3}}', '"preset"'),
        ('{"wan": {"links": [["a"]]}}', '[["a"]]'),
        ('{"wan": {"routers": [1]}}', "[1]"),
        ('{"sites": ["A", 1]}', "['A', 1]"),
        ('{"paths": 0}', '"paths" is 0'),
    ],
)
def test_a_malformed_fabric_spec_is_refused_with_the_offending_value(text: str, shown: str) -> None:
    with pytest.raises(ProtocolError) as error:
        read_spec(text)
    assert shown in str(error.value)
