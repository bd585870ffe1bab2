"""What can be asked of the controller, and how a declared fabric is written down for it.

What comes in is checked field by field, and what is wrong is told in one sentence that carries the value.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from controller.lines import ProtocolError, read_object, show
from topologies.fabric import Fabric, FabricSpec
from topologies.wan import WanSpec

MAX_WAIT_S = 3600.0
MAX_TOKEN = 256
_MOST_BYTES, _MOST_BPS, _MOST_S = 1 << 60, 10**18, 1e6


@dataclass(frozen=True, kw_only=True)
class StatusRequest:
    """How is the controller? Answered once every switch is ready, and after `wait_s` seconds in any case."""

    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RouteRequest:
    """Choose and install the path of every crossing, a pair of ranks in two sites; all other pairs return to theirs.

    `rates_bps` and `delays_s` are the conditions of every logical link, [links]. `best` tells whether to choose the
    path of least cost for a chunk of `chunk_bytes`, or the fixed one.
    """

    crossings: tuple[tuple[int, int], ...]
    rates_bps: tuple[float, ...]
    delays_s: tuple[float, ...]
    chunk_bytes: int
    best: bool


Request = StatusRequest | RouteRequest


def line_limit_bytes(fabric: Fabric) -> int:
    """The longest line that either side sends: room for two numbers a link, a few for every GPU and switch."""
    return 4096 + 64 * (len(fabric.links) + len(fabric.gpus) + len(fabric.switches))


def parse_request(line: bytes, fabric: Fabric, *, token: str | None = None) -> Request:
    """The request on a line. Raises ProtocolError for anything but a request that this fabric can serve, and for one
    without the run's `token` where there is one."""
    message = read_object(line)
    given = message.pop("token", None)
    if token is not None and not (isinstance(given, str) and _same(given, token)):
        raise ProtocolError("the run's token is missing or wrong")
    kind = message.pop("ask", None)
    if kind == "status":
        _only(message, ("wait_s",))
        return StatusRequest(wait_s=_number("wait_s", message.get("wait_s", 0), low=0, high=MAX_WAIT_S))
    if kind == "route":
        return _route_request(message, fabric)
    raise ProtocolError(f'"ask" is {show(kind)}; allowed: "status", "route"')


def _same(given: str, token: str) -> bool:
    """Whether a token is the right one, in a time that does not tell how much of it is."""
    return len(given) <= MAX_TOKEN and hmac.compare_digest(given.encode(errors="replace"), token.encode())


def write_spec(spec: FabricSpec) -> str:
    """A declared fabric as JSON; `read_spec` reads it back the same."""
    return json.dumps(asdict(spec), indent=1)


def read_spec(text: str | bytes) -> FabricSpec:
    """The fabric that `write_spec` wrote; raises ProtocolError where it is none. Counts are left to `build_fabric`."""
    message = read_object(text)
    _only(message, [field.name for field in fields(FabricSpec)])
    wan = message.pop("wan", {})
    if not isinstance(wan, dict):
        raise ProtocolError(f'"wan" is {show(wan)}, not an object')
    _only(wan, [field.name for field in fields(WanSpec)])
    counts = {name: _counts(name, value) for name, value in message.items()}
    if isinstance(counts.get("gpus_per_site"), int):
        raise ProtocolError('"gpus_per_site" is one number; it needs one for every site')
    return FabricSpec(**counts, wan=_wan(wan))


def _wan(wan: dict[str, Any]) -> WanSpec:
    preset, routers, links = wan.get("preset", "mesh"), wan.get("routers", []), wan.get("links", [])
    if preset is not None and not isinstance(preset, str):
        raise ProtocolError(f'"preset" is {show(preset)}, not a name')
    pairs = isinstance(links, list) and all(isinstance(link, list) and len(link) == 2 for link in links)
    if not isinstance(routers, list) or not pairs:
        raise ProtocolError(f'"routers" and "links" are {show([routers, links])}: allowed are names, and pairs of them')
    strangers = [name for name in (*routers, *(end for link in links for end in link)) if not isinstance(name, str)]
    if strangers:
        raise ProtocolError(f"{show(strangers[0])} is no name of a router")
    return WanSpec(preset=preset, routers=tuple(routers), links=tuple((a, b) for a, b in links))


def _route_request(message: dict[str, Any], fabric: Fabric) -> RouteRequest:
    names = [field.name for field in fields(RouteRequest)]
    _only(message, names)
    missing = next((name for name in names if name not in message), None)
    if missing is not None:
        raise ProtocolError(f'a route request needs "{missing}"')
    chunk_bytes, best = message["chunk_bytes"], message["best"]
    if not _is_int(chunk_bytes) or not 0 < chunk_bytes <= _MOST_BYTES:
        raise ProtocolError(f'"chunk_bytes" is {show(chunk_bytes)}, not a whole number from 1 to {_MOST_BYTES}')
    if not isinstance(best, bool):
        raise ProtocolError(f'"best" is {show(best)}, not true or false')
    return RouteRequest(
        crossings=_crossings(message["crossings"], fabric),
        rates_bps=_per_link("rates_bps", message["rates_bps"], fabric, low=1, high=_MOST_BPS),
        delays_s=_per_link("delays_s", message["delays_s"], fabric, low=0, high=_MOST_S),
        chunk_bytes=chunk_bytes,
        best=best,
    )


def _crossings(value: Any, fabric: Fabric) -> tuple[tuple[int, int], ...]:
    """Distinct pairs of ranks, each in two sites that the WAN joins; no more than there are GPUs, as in a ring."""
    count = len(fabric.gpus)
    if not isinstance(value, list) or len(value) > count:
        raise ProtocolError(f'"crossings" is {show(value)}, not a list of at most {count} pairs')
    found: dict[tuple[int, int], None] = {}
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(_is_int(rank) for rank in pair):
            raise ProtocolError(f"the crossing {show(pair)} is no pair of ranks")
        src, dst = pair
        if not (0 <= src < count and 0 <= dst < count):
            raise ProtocolError(f"the crossing {show(pair)} names a rank beyond 0 to {count - 1}")
        if not fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site)):
            raise ProtocolError(f"no path leads over the WAN from rank {src} to rank {dst}")
        if (src, dst) in found:
            raise ProtocolError(f"the crossing {show(pair)} is given twice")
        found[src, dst] = None
    return tuple(found)


def _per_link(name: str, value: Any, fabric: Fabric, *, low: float, high: float) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != len(fabric.links):
        what = f"{len(value)} values" if isinstance(value, list) else show(value)
        raise ProtocolError(f'"{name}" is {what}, not a list of {len(fabric.links)}, one for every logical link')
    return tuple(_number(f"{name}[{place}]", entry, low=low, high=high) for place, entry in enumerate(value))


def _number(name: str, value: Any, *, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ProtocolError(f'"{name}" is {show(value)}, not a number from {low:g} to {high:g}')
    return float(value)


def _counts(name: str, value: Any) -> Any:
    if _is_int(value):
        return value
    if isinstance(value, list) and all(_is_int(entry) for entry in value):
        return tuple(value)
    raise ProtocolError(f'"{name}" is {show(value)}, not a whole number or a list of them')


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _only(message: Mapping[str, Any], allowed: Sequence[str]) -> None:
    stranger = next((name for name in message if name not in allowed), None)
    if stranger is not None:
        raise ProtocolError(f"nothing is known of {show(stranger)}; allowed: {', '.join(allowed)}")
