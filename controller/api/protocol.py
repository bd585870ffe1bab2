"""The controller's protocol: one line of JSON for every request and every reply, and the JSON of a declared fabric.

Every received field is checked; an invalid one raises ProtocolError, one sentence with the offending value.
"""

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from controller.routing.multipath import multipath
from topologies.errors import FabricError
from topologies.fabric.fabric import (
    GRAINS,
    MAX_HASH_SEED,
    MAX_PIECES,
    ROUTINGS,
    TE_OBJECTIVES,
    Fabric,
    FabricSpec,
)
from topologies.fabric.failures import Cables, cable
from topologies.fabric.maps import read_wan, write_wan
from topologies.fabric.wan import MAX_PATHS, WAN_PRESETS, WanSpec

MAX_WAIT_S = 3600.0
MAX_TOKEN = 256
MAX_FLOWS = 2**16
MAX_CLASSES = 64
_MAX_BYTES, _MAX_BPS, _MAX_S = 1 << 60, 10**18, 1e6
_SHOWN = 60  # most characters of an offending value in an error


class ProtocolError(ValueError):
    """Raised for a request or reply that is malformed or cannot be served; the message has the offending value."""


@dataclass(frozen=True, kw_only=True)
class StatusRequest:
    """A request for the controller's state, answered once every switch is ready, or after `wait_s` seconds."""

    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RouteRequest:
    """A request to choose and install the path of every crossing (a pair of ranks in two sites).

    All other pairs get the default path. `rates_bps` and `delays_s` are the conditions of the logical links, [links].
    With `best` a crossing takes the path of least cost for a chunk of `chunk_bytes`, otherwise the fixed path. `flows`,
    (rank, rank, channel, TCP source port) each, are routed by the fabric's routing, except that flows of a crossing
    take its path. With traffic engineering `asks` has for each flow the index of its class in service order and the
    rate that it wants, bit/s; `kept` is the share of each link that every class keeps; with `stay` flows remain in
    their current tunnels, so that only rates change. `probes`, (rank, rank, path index, TCP source port) each, take
    that path in any case. `given`, (rank, rank, path index) each, are crossings that take this path while it is whole.
    The `connections` between two ranks, (rank, rank) each, are spread over so many `channels` by a hash of their ports,
    and the fabric's routing chooses the path of each channel. With traffic engineering `wants` has for each of these
    pairs the rate that its connections want together, bit/s, in the first class.
    """

    crossings: tuple[tuple[int, int], ...]
    rates_bps: tuple[float, ...]
    delays_s: tuple[float, ...]
    chunk_bytes: int
    best: bool
    flows: tuple[tuple[int, int, int, int], ...] = ()
    asks: tuple[tuple[int, float], ...] = ()
    kept: tuple[float, ...] = ()
    stay: bool = False
    probes: tuple[tuple[int, int, int, int], ...] = ()
    given: tuple[tuple[int, int, int], ...] = ()
    connections: tuple[tuple[int, int], ...] = ()
    channels: int = 1
    wants: tuple[float, ...] = ()


@dataclass(frozen=True)
class CountersRequest:
    """A request for the number of bytes that every port of every switch has sent."""


@dataclass(frozen=True)
class CablesRequest:
    """Tells which cables are `dead` of those whose switches all have another controller."""

    dead: Cables


Request = StatusRequest | RouteRequest | CountersRequest | CablesRequest


def write_line(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a line. Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def read_object(line: str | bytes) -> dict[str, Any]:
    """Decode a text that is a JSON object. Raises ProtocolError for any other text."""
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except ProtocolError:
        raise
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise ProtocolError(f"{show(line)} is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{show(value)} is not a JSON object")
    return value


def show(value: object) -> str:
    """Return a value as text for an error: one line of at most `_SHOWN` characters."""
    if isinstance(value, float) and not math.isfinite(value):
        return "too large for a float"  # JSON numbers such as 1e999
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def line_limit_bytes(fabric: Fabric) -> int:
    """Return the length of the longest line that a request may have, in bytes.

    It has room for two numbers per link and a few per GPU, switch, crossing, flow and probe.
    """
    flows = MAX_FLOWS if multipath(fabric) is not None else 0
    crossings, probes = _most_crossings(fabric), _most_probes(fabric)
    return 4096 + 64 * (len(fabric.links) + len(fabric.gpus) + len(fabric.switches) + 2 * crossings + flows + probes)


def _most_probes(fabric: Fabric) -> int:
    """Return the number of WAN paths between all pairs of GPUs in different sites, at most MAX_FLOWS."""
    sizes = fabric.gpus_per_site
    return min(MAX_FLOWS, sum(sizes[a] * sizes[b] * len(paths) for (a, b), paths in fabric.paths_between.items()))


def _most_crossings(fabric: Fabric) -> int:
    """Return the number of ordered pairs of GPUs in different sites."""
    return len(fabric.gpus) ** 2 - sum(gpus**2 for gpus in fabric.gpus_per_site)


def parse_request(line: bytes, fabric: Fabric, *, token: str | None = None) -> Request:
    """Parse a request. Raises ProtocolError unless this fabric can serve it and it carries the `token`, if given."""
    message = read_object(line)
    given = message.pop("token", None)
    text = given[: MAX_TOKEN + 1] if isinstance(given, str) else ""
    if token is not None and not hmac.compare_digest(text.encode(errors="replace"), token.encode()):
        raise ProtocolError("the run's token is missing or wrong")
    kind = message.pop("ask", None)
    if kind == "status":
        _only(message, ("wait_s",))
        return StatusRequest(wait_s=_number("wait_s", message.get("wait_s", 0), low=0, high=MAX_WAIT_S))
    if kind == "counters":
        _only(message, ())
        return CountersRequest()
    if kind == "route":
        return _route_request(message, fabric)
    if kind == "cables":
        return _cables_request(message, fabric)
    raise ProtocolError(f'"ask" is {show(kind)}; allowed: "status", "route", "counters", "cables"')


def _cables_request(message: Mapping[str, Any], fabric: Fabric) -> CablesRequest:
    _only(message, ("dead",))
    known = {cable(one.a, one.b) for one in fabric.cables}
    given = message.get("dead")
    if not isinstance(given, list):
        raise ProtocolError(f'"dead" is {show(given)}; allowed: a list of cables, two nodes each')
    dead = set[frozenset[str]]()
    for ends in given:
        is_pair = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, str) for end in ends)
        if not is_pair or cable(*ends) not in known:
            raise ProtocolError(f'"dead" has {show(ends)}; allowed: cables of the fabric, two nodes each')
        dead.add(cable(*ends))
    return CablesRequest(frozenset(dead))


def write_spec(spec: FabricSpec) -> str:
    """Return a declared fabric as JSON; `read_spec` is the inverse."""
    return json.dumps(asdict(spec) | {"wan": write_wan(spec.wan)}, indent=1)


def read_spec(text: str | bytes) -> FabricSpec:
    """Parse a declared fabric as `write_spec` writes it; raises ProtocolError. `build_fabric` checks counts' ranges."""
    message = read_object(text)
    _only(message, [field.name for field in fields(FabricSpec)])
    wan, seed = message.pop("wan", "mesh"), message.pop("hash_seed", FabricSpec.hash_seed)
    pieces = message.pop("pieces", FabricSpec.pieces)
    sites, paths = message.pop("sites", []), message.pop("paths", None)
    rails, ratios = message.pop("rails", None), message.pop("oversubscription", [])
    values: dict[str, Any] = {}
    for name, names in (("grain", GRAINS), ("routing", ROUTINGS), ("objective", TE_OBJECTIVES)):
        values[name] = message.pop(name, names[0])
        _check(values[name] in names, name, values[name], " or ".join(map(show, names)))
    _check(_is_int(seed) and 0 <= seed <= MAX_HASH_SEED, "hash_seed", seed, f"a whole number from 0 to {MAX_HASH_SEED}")
    _check(_is_int(pieces) and 1 <= pieces <= MAX_PIECES, "pieces", pieces, f"a whole number from 1 to {MAX_PIECES}")
    _check(isinstance(sites, list) and all(isinstance(site, str) for site in sites), "sites", sites, "a list of names")
    _check(paths is None or (_is_int(paths) and 0 < paths <= MAX_PATHS), "paths", paths, f"1 to {MAX_PATHS}, or null")
    _check(rails is None or _is_int(rails), "rails", rails, "a whole number, or null")
    _check(isinstance(ratios, list), "oversubscription", ratios, "a list of numbers")
    ratios = [_number("oversubscription", ratio, low=0, high=_MAX_BPS) for ratio in ratios]
    for name, value in message.items():
        numbers = value if isinstance(value, list) else [value]
        _check(all(_is_int(number) for number in numbers), name, value, "a whole number or a list of them")
    sizes = message.get("gpus_per_site", [])
    _check(isinstance(sizes, list), "gpus_per_site", sizes, "a list of one number for every site")
    values |= {name: tuple(value) if isinstance(value, list) else value for name, value in message.items()}
    values |= {"wan": _wan(wan), "sites": tuple(sites), "paths": paths, "hash_seed": seed, "pieces": pieces}
    values |= {"rails": rails, "oversubscription": tuple(ratios)}
    return FabricSpec(**values)


def _wan(wan: Any) -> WanSpec:
    """Parse the WAN, a preset's name or an object; the controller opens no map file."""
    if isinstance(wan, str):
        _check(wan in WAN_PRESETS, "wan", wan, f"one of {', '.join(WAN_PRESETS)}, or an object")
    try:
        return read_wan(wan)
    except FabricError as error:
        raise ProtocolError(f'"wan": {error.mistakes[0].text}') from None


def _route_request(message: dict[str, Any], fabric: Fabric) -> RouteRequest:
    names = [field.name for field in fields(RouteRequest)]
    _only(message, names)
    flows, probes = _flows(message.pop("flows", []), fabric), _probes(message.pop("probes", []), fabric)
    asks, kept = _asks(message.pop("asks", []), message.pop("kept", []), flows, fabric)
    missing = next((name for name in names[:5] if name not in message), None)
    if missing is not None:
        raise ProtocolError(f'a route request lacks the key "{missing}"')
    chunk_bytes, best, stay = message["chunk_bytes"], message["best"], message.get("stay", False)
    allowed = _is_int(chunk_bytes) and 0 < chunk_bytes <= _MAX_BYTES
    _check(allowed, "chunk_bytes", chunk_bytes, f"a whole number from 1 to {_MAX_BYTES}")
    for name, value in (("best", best), ("stay", stay)):
        _check(isinstance(value, bool), name, value, "true or false")
    crossings = _crossings(message["crossings"], fabric)
    return RouteRequest(
        crossings=crossings,
        rates_bps=_per_link("rates_bps", message["rates_bps"], fabric, low=1, high=_MAX_BPS),
        delays_s=_per_link("delays_s", message["delays_s"], fabric, low=0, high=_MAX_S),
        chunk_bytes=chunk_bytes,
        best=best,
        flows=flows,
        asks=asks,
        kept=kept,
        stay=stay,
        probes=probes,
        given=_given(message.get("given", []), crossings, fabric),
        **_connections(
            message.get("connections", []), message.get("channels", 1), message.get("wants", []), kept, fabric
        ),
    )


def _connections(pairs: Any, channels: Any, wants: Any, kept: Sequence[float], fabric: Fabric) -> dict[str, Any]:
    """Parse the pairs of ranks whose connections are spread, over how many channels, and the rates that they want,
    which only a fabric with the routing "te" has; null is all that the pair can send."""
    most = MAX_FLOWS if multipath(fabric) is not None else 0
    allowed = f"a list of pairs, at most {most} channels of theirs in all"
    _check(_is_int(channels) and 0 < channels <= MAX_FLOWS, "channels", channels, f"a number from 1 to {MAX_FLOWS}")
    _check(isinstance(pairs, list) and len(pairs) * channels <= most, "connections", pairs, allowed)
    _flows([[*pair, 0, 1] if isinstance(pair, list) else pair for pair in pairs], fabric)
    count = len(pairs) if fabric.spec.routing == "te" else 0
    _check(isinstance(wants, list) and len(wants) == count, "wants", wants, f"a list of {count}, one for every pair")
    _check(not count or len(kept) > 0, "kept", [*kept], "a list with the share of the first class")
    rates = [
        math.inf if rate is None else _number(f"wants[{index}]", rate, low=0, high=_MAX_BPS)
        for index, rate in enumerate(wants)
    ]
    return {"connections": tuple((src, dst) for src, dst in pairs), "channels": channels, "wants": tuple(rates)}


def _given(value: Any, crossings: Sequence[tuple[int, int]], fabric: Fabric) -> tuple[tuple[int, int, int], ...]:
    """Parse the crossings whose path is given: source, destination, and the index of a candidate path of theirs."""
    _check(
        isinstance(value, list) and len(value) <= len(crossings), "given", value, f"at most {len(crossings)} triples"
    )
    requested = set(crossings)
    for index, triple in enumerate(value):
        name, allowed = f"given[{index}]", "two ranks of a requested crossing and the index of one of its paths"
        _check(isinstance(triple, list) and len(triple) == 3 and all(map(_is_int, triple)), name, triple, allowed)
        src, dst, path = triple
        _check((src, dst) in requested, name, triple, allowed)
        between = fabric.paths_between[fabric.gpus[src].site, fabric.gpus[dst].site]
        _check(path in {one.index for one in between}, name, triple, allowed)
    return tuple((src, dst, path) for src, dst, path in value)


def _asks(
    asks: Any, kept: Any, flows: Sequence[Any], fabric: Fabric
) -> tuple[tuple[tuple[int, float], ...], tuple[float, ...]]:
    """Parse the demands of flows, a class and a rate each, and the share of each class. Only a fabric with the routing
    "te" has demands. The rate null means all that the flow can send."""
    count = len(flows) if fabric.spec.routing == "te" else 0
    _check(isinstance(asks, list) and len(asks) == count, "asks", asks, f"a list of {count}, one for every flow")
    _check(isinstance(kept, list) and len(kept) <= MAX_CLASSES, "kept", kept, f"a list of at most {MAX_CLASSES} shares")
    shares = tuple(_number(f"kept[{index}]", share, low=0, high=1) for index, share in enumerate(kept))
    demands = []
    for index, ask in enumerate(asks):
        name, allowed = f"asks[{index}]", f"a class below {len(shares)} and a rate"
        _check(isinstance(ask, list) and len(ask) == 2, name, ask, allowed)
        class_index, rate = ask
        _check(_is_int(class_index) and 0 <= class_index < len(shares), name, ask, allowed)
        demands.append((class_index, math.inf if rate is None else _number(name, rate, low=0, high=_MAX_BPS)))
    return tuple(demands), shares


def _flows(value: Any, fabric: Fabric) -> tuple[tuple[int, int, int, int], ...]:
    """Parse distinct flows, each between two ranks of one site or of two sites that the WAN joins."""
    most = MAX_FLOWS if multipath(fabric) is not None else 0
    for flow in _quadruples("flow", value, most, "a channel"):
        src, dst, channel, port = flow
        if not (0 <= src < len(fabric.gpus) and 0 <= dst < len(fabric.gpus) and src != dst):
            raise ProtocolError(f"the flow {show(flow)} needs two different ranks from 0 to {len(fabric.gpus) - 1}")
        if not (0 <= channel < MAX_FLOWS and 0 < port < 2**16):
            allowed = f"a channel from 0 to {MAX_FLOWS - 1} and a port from 1 to {2**16 - 1}"
            raise ProtocolError(f"the flow {show(flow)} needs {allowed}")
        sites = fabric.gpus[src].site, fabric.gpus[dst].site
        if sites[0] != sites[1] and not fabric.paths_between.get(sites):
            raise ProtocolError(f"no path leads over the WAN from rank {src} to rank {dst}")
    return tuple((src, dst, channel, port) for src, dst, channel, port in value)


def _probes(value: Any, fabric: Fabric) -> tuple[tuple[int, int, int, int], ...]:
    """Parse distinct probes, each over a path between the sites of its ranks."""
    most, gpus = _most_probes(fabric), range(len(fabric.gpus))
    joining = {sites: {path.index for path in paths} for sites, paths in fabric.paths_between.items()}
    for probe in _quadruples("probe", value, most, "a path"):
        src, dst, index, port = probe
        if not (src in gpus and dst in gpus and 0 < port < 2**16):
            allowed = f"ranks 0 to {gpus[-1]}, ports 1 to {2**16 - 1}"
            raise ProtocolError(f"the probe {show(probe)} has a rank or a port that does not exist; allowed: {allowed}")
        sites = fabric.gpus[src].site, fabric.gpus[dst].site
        if index not in joining.get(sites, ()):
            raise ProtocolError(f"the probe {show(probe)} names a path that does not join the sites of its ranks")
    return tuple((src, dst, index, port) for src, dst, index, port in value)


def _quadruples(kind: str, value: Any, most: int, third: str) -> Sequence[Sequence[int]]:
    """Check a list of at most `most` distinct quadruples: two ranks, a `third` number and a TCP source port."""
    _check(isinstance(value, list) and len(value) <= most, f"{kind}s", value, f"a list of at most {most} {kind}s")
    for entry in value:
        if not (isinstance(entry, list) and len(entry) == 4 and all(_is_int(number) for number in entry)):
            raise ProtocolError(f"the {kind} {show(entry)} is not two ranks, {third} and a port")
    if len({(src, dst, port) for src, dst, _, port in value}) < len(value):
        raise ProtocolError(f"a {kind} is given twice; allowed: each TCP source port once for a pair of ranks")
    checked: Sequence[Sequence[int]] = value
    return checked


def _crossings(value: Any, fabric: Fabric) -> tuple[tuple[int, int], ...]:
    """Parse distinct pairs of ranks, each in two sites that the WAN joins."""
    count, most = len(fabric.gpus), _most_crossings(fabric)
    _check(isinstance(value, list) and len(value) <= most, "crossings", value, f"a list of at most {most} pairs")
    crossings: dict[tuple[int, int], None] = {}
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and all(_is_int(rank) for rank in pair)):
            raise ProtocolError(f"the crossing {show(pair)} is not a pair of ranks")
        src, dst = pair
        if not (0 <= src < count and 0 <= dst < count):
            raise ProtocolError(f"the crossing {show(pair)} names a rank outside 0 to {count - 1}")
        if not fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site)):
            raise ProtocolError(f"no path leads over the WAN from rank {src} to rank {dst}")
        if (src, dst) in crossings:
            raise ProtocolError(f"the crossing {show(pair)} is given twice")
        crossings[src, dst] = None
    return tuple(crossings)


def _per_link(name: str, value: Any, fabric: Fabric, *, low: float, high: float) -> tuple[float, ...]:
    links = len(fabric.links)
    is_right = isinstance(value, list) and len(value) == links
    _check(is_right, name, value, f"a list of {links} numbers, one for every logical link")
    return tuple(_number(f"{name}[{index}]", entry, low=low, high=high) for index, entry in enumerate(value))


def _number(name: str, value: Any, *, low: float, high: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _check(is_number and low <= value <= high, name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _check(allowed: bool, name: str, value: Any, expected: str) -> None:
    if not allowed:
        raise ProtocolError(f'"{name}" is {show(value)}, not {expected}')


def _only(message: Mapping[str, Any], allowed: Sequence[str]) -> None:
    unknown = next((name for name in message if name not in allowed), None)
    if unknown is not None:
        raise ProtocolError(f"unknown key {show(unknown)}; allowed: {', '.join(allowed)}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_constant(constant: str) -> NoReturn:
    raise ProtocolError(f"{constant} is not a number here")
