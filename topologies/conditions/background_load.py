"""The load of background traffic: a sampler's rates less what traffic matrices put on each link. Reads packs' data.

    [conditions.load]
    matrices = "matrices:FOLDER"    # a pack with demands (`topologies.packs`)
    peak = 0.8                      # scaled so that the highest load of a link is 0.8 of its capacity

Demands take the shortest paths over the WAN as it is declared, by length, else by delay, else by hops; where several
are equal, "ecmp" divides a demand at every router equally among the next links, and "shortest" takes the first. A row
of conditions has the matrix in force at its time. At least FLOOR of a link's rate is left.

With `as = "flows"`, demands between two sites of the fabric are no load: a background job sends them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from topologies.errors import ConditionsError, Mistake, did_you_mean, format_value, list_first
from topologies.fabric.wan import WanSpec, link_names
from topologies.packs.published import Demands, PackError
from topologies.packs.table import demands_of
from topologies.units import SPAN, UnitError, format_delay, parse_delay_s

KEY = "conditions.load"
ROUTINGS = ("ecmp", "shortest")
RATES, FLOWS = "rates", "flows"
FLOOR = 0.01
"""The share of a link's rate that is left at least."""

_ALLOWED = {
    "matrices": 'a pack with demands, such as "matrices:FOLDER"',
    "routing": " or ".join(ROUTINGS),
    "as": f"{RATES} or {FLOWS}",
    "peak": "a number above 0, at most 10",
    "step": f'text with a unit, at most {SPAN.most}, such as "300 s"',
    "speedup": "a number above 0, at most 1e9",
    "repeat": "true or false",
}

_MAX_SHOWN = 24  # characters of a source in words

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """A load as declared: a pack's `matrices` and their `routing`, one of ROUTINGS.

    With `peak` all demands are scaled so that the highest load of a link, at any time, is this share of its capacity.
    From one row of conditions to the next, `step_s` passes in the data (default: the data's own interval), or, if
    conditions change by time, `speedup` seconds for each second. If it `repeats`, matrices begin again at their end.
    With `sends` the demands between two sites of the fabric are sent, and not taken from rates.
    """

    matrices: str
    routing: str = ROUTINGS[0]
    peak: float | None = None
    step_s: float | None = None
    speedup: float | None = None
    repeats: bool = False
    sends: bool = False

    @property
    def words(self) -> str:
        """The load in words: "load of abilene up to 0.8"."""
        source = self.matrices.rpartition("/")[2]
        source = source if len(source) <= _MAX_SHOWN else f"{source[:_MAX_SHOWN]}…"
        peak = f" up to {self.peak:g}" if self.peak else ""
        pace = f" x {self.speedup:g}" if self.speedup else f" by {format_delay(self.step_s)}" if self.step_s else ""
        return f"load of {source}{peak}{pace}{' as flows' * self.sends}"


def read(table: Mapping[str, object]) -> LoadSpec:
    """Read a scenario's table [conditions.load]; raises ConditionsError with keys such as "conditions.load.peak"."""
    mistakes, values = list[Mistake](), dict[str, Any]()
    for key, value in table.items():
        if key not in _ALLOWED:
            text = f"unknown key of a load, allowed: {', '.join(_ALLOWED)}{did_you_mean(key, _ALLOWED)}"
            mistakes.append(Mistake(f"{KEY}.{key}", text))
        elif not _fits(key, value):
            mistakes.append(Mistake(f"{KEY}.{key}", f"{format_value(value)} is not allowed; allowed: {_ALLOWED[key]}"))
        else:
            values[key] = value
    if "matrices" not in table:
        mistakes.append(Mistake(f"{KEY}.matrices", f"is missing; allowed: {_ALLOWED['matrices']}"))
    if "step" in values and "speedup" in values:
        mistakes.append(Mistake(f"{KEY}.speedup", "is given together with step; allowed: one of the two"))
    if mistakes:
        raise ConditionsError(mistakes)
    step = values.get("step")
    return LoadSpec(
        matrices=values["matrices"],
        routing=values.get("routing", ROUTINGS[0]),
        peak=values.get("peak"),
        step_s=None if step is None else parse_delay_s(step, SPAN),
        speedup=values.get("speedup"),
        repeats=values.get("repeat", False),
        sends=values.get("as") == FLOWS,
    )


def write(spec: LoadSpec) -> dict[str, Any]:
    """Return the table that declares a load; the inverse of `read`."""
    step = None if spec.step_s is None else format_delay(spec.step_s)
    table = {
        "matrices": spec.matrices,
        "routing": spec.routing,
        "as": FLOWS if spec.sends else None,
        "peak": spec.peak,
        "step": step,
        "speedup": spec.speedup,
    }
    return {key: value for key, value in table.items() if value is not None} | {"repeat": spec.repeats}


def _fits(key: str, value: object) -> bool:
    if key in ("peak", "speedup"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and 0 < float(str(value)) <= (10 if key == "peak" else 1e9)
    if key == "repeat":
        return isinstance(value, bool)
    if not isinstance(value, str) or not value.isprintable():
        return False
    try:
        if key in ("routing", "as"):
            return value in (ROUTINGS if key == "routing" else (RATES, FLOWS))
        return key == "matrices" or parse_delay_s(value, SPAN) > 0
    except UnitError:
        return False


class Source(Protocol):
    """A sampler whose rates the load reduces."""

    @property
    def limit(self) -> int | None: ...

    @property
    def mean_bps(self) -> Floats: ...

    def rates_bps(self, start: int, count: int) -> Floats: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """A sampler: the rates of `source` less the load `load_bps[t, link]`, in force from `times_s[t]` on.

    Row r of `source` is at r * `step_s`. `notes` tell what was assumed.
    """

    source: Source
    load_bps: Floats = field(repr=False)
    times_s: Floats = field(repr=False)
    end_s: float
    step_s: float
    repeats: bool
    notes: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """The number of rows that the matrices cover once."""
        return max(1, int(np.ceil(self.end_s / self.step_s - 1e-9)))

    @property
    def limit(self) -> int | None:
        """The number of rows that have conditions; None if endless."""
        limits = [self.source.limit, None if self.repeats else self.length]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def interval_s(self) -> float:
        """The usual time from one matrix to the next."""
        return self.end_s - float(self.times_s[-1])

    def are_of_data(self, count: int) -> npt.NDArray[np.bool_]:
        """Return whether each of the first rows, [count], has a matrix that is of its time and has not come before: not
        one that is held where others are missing, nor one of a repetition."""
        at_s = np.arange(count) * self.step_s
        in_force = np.searchsorted(self.times_s, at_s + 1e-9, side="right") - 1
        flags: npt.NDArray[np.bool_] = at_s - self.times_s[in_force] < self.interval_s - 1e-9
        return flags

    @property
    def mean_bps(self) -> Floats:
        """Every link's long-run mean rate, [links] bit/s."""
        means = self.source.mean_bps
        held_s = np.diff(self.times_s, append=self.end_s)
        return _left(means, held_s @ self.load_bps / held_s.sum())

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return every link's rate in rows start .. start+count-1: [count, links], whole bit/s above 0."""
        at_s = np.arange(start, start + count) % self.length * self.step_s
        in_force = np.searchsorted(self.times_s, at_s + 1e-9, side="right") - 1
        return np.rint(_left(self.source.rates_bps(start, count), self.load_bps[in_force]))


def _left(rates_bps: Floats, load_bps: Floats) -> Floats:
    left_bps: Floats = np.maximum(rates_bps - load_bps, np.maximum(1.0, FLOOR * rates_bps))
    return left_bps


def loaded(
    source: Source, spec: LoadSpec, wan: WanSpec, sites: tuple[str, ...], *, links: Sequence[str], every_s: float | None
) -> Loaded:
    """Return a sampler of these links' rates less a load over the declared WAN, whose nodes `sites` are those of the
    fabric's sites; raises ConditionsError."""
    if spec.speedup is not None and every_s is None:
        text = f"{spec.speedup:g} needs conditions that change by time; allowed: with conditions.every, or step"
        raise ConditionsError([Mistake(f"{KEY}.speedup", text)])
    times_s, by_name, end_s, notes, _ = _loads(spec, wan, sites)
    load_bps = np.zeros((len(times_s), len(links)))
    for column, name in enumerate(links):
        if name in by_name:
            load_bps[:, column] = by_name[name]
    step_s = spec.step_s or (end_s - times_s[-1])
    if spec.speedup is not None and every_s is not None:
        step_s = every_s * spec.speedup
    return Loaded(
        source=source,
        load_bps=load_bps,
        times_s=times_s,
        end_s=end_s,
        step_s=step_s,
        repeats=spec.repeats,
        notes=(*notes, *_saturated(load_bps, source, links)),
    )


def sent_bps(spec: LoadSpec, wan: WanSpec, sites: tuple[str, ...]) -> Floats:
    """Return what a load that `sends` sends from site to site in each row before matrices are repeated, [rows, sites,
    sites] bit/s; raises ConditionsError."""
    times_s, _, end_s, _, between_bps = _loads(spec, wan, sites)
    step_s = spec.step_s or (end_s - times_s[-1])
    at_s = np.arange(max(1, int(np.ceil(end_s / step_s - 1e-9)))) * step_s
    sent: Floats = between_bps[np.searchsorted(times_s, at_s + 1e-9, side="right") - 1]
    return sent


def _saturated(load_bps: Floats, source: Source, links: Sequence[str]) -> list[str]:
    """Return a sentence on links whose load leaves less than FLOOR of their mean rate."""
    full = load_bps > (1 - FLOOR) * source.mean_bps
    over = [links[index] for index in np.flatnonzero(full.any(axis=0)).tolist()]
    if not over:
        return []
    share = f"{FLOOR:.0%} of its rate is left"
    return [f"the load fills {list_first(over, 4)}, at {int(full.any(axis=1).sum()):,} of {len(full):,} times: {share}"]


@lru_cache(maxsize=4)
def _loads(
    spec: LoadSpec, wan: WanSpec, sites: tuple[str, ...]
) -> tuple[Floats, dict[str, Floats], float, tuple[str, ...], Floats]:
    """Return the times of a load, the load of each directed link of the WAN, its end, notes, and what is sent between
    sites, [times, sites, sites]."""
    try:
        demands = demands_of(spec.matrices)
    except PackError as error:
        raise ConditionsError([Mistake(f"{KEY}.matrices", str(error))]) from None
    names = [name for both in link_names(wan.links) for name in both]
    pairs, shares = _routed(demands, wan, spec.routing)
    demand_bps = demands.bps.reshape(len(demands.bps), -1)[:, pairs]
    load_bps = demand_bps @ shares
    scale = 1.0
    if spec.peak is not None:
        ways = zip(wan.rates_bps, wan.back_rates_bps or wan.rates_bps, strict=True)
        capacity = np.array([rate for way in ways for rate in way], dtype=np.float64)
        if not capacity.size or not capacity[load_bps.any(axis=0)].all():
            text = "needs the capacity of every link with a load; allowed: a WAN with capacities, or none"
            raise ConditionsError([Mistake(f"{KEY}.peak", text)])
        scale = spec.peak / float((load_bps / np.where(capacity > 0, capacity, np.inf)).max())
    between_bps = np.zeros((len(load_bps), len(sites), len(sites)))
    if spec.sends:
        ends = _between_sites(demands, wan, sites, pairs)
        for (src, dst), column in ends.items():
            between_bps[:, src, dst] = scale * demand_bps[:, column]
        demand_bps[:, [*ends.values()]] = 0.0
        load_bps = demand_bps @ shares
    load_bps *= scale
    by_name = dict(zip(names, load_bps.T, strict=True))
    return demands.times_s, by_name, float(demands.times_s[-1]) + demands.interval_s, demands.notes, between_bps


def _between_sites(
    demands: Demands, wan: WanSpec, sites: Sequence[str], pairs: Sequence[int]
) -> dict[tuple[int, int], int]:
    """Return the number in `pairs` of each demand between two sites, by their numbers."""
    node_of = {wan.nodes_named(name)[0]: number for number, name in enumerate(demands.nodes)}
    at = [node_of.get(wan.nodes_named(name)[0]) for name in sites]
    place = {pair: column for column, pair in enumerate(pairs)}
    return {
        (src, dst): place[a * len(demands.nodes) + b]
        for (src, a), (dst, b) in permutations(enumerate(at), 2)
        if a is not None and b is not None and a * len(demands.nodes) + b in place
    }


def _routed(demands: Demands, wan: WanSpec, routing: str) -> tuple[list[int], Floats]:
    """Return the pairs of nodes with demands, as indices of a matrix's entries, and the share of each demand on each
    directed link of the WAN, [pairs, links]; raises ConditionsError."""
    from scipy.sparse import csr_array  # slow to import, and other conditions do not need it
    from scipy.sparse.csgraph import dijkstra

    at = [wan.nodes_named(name) for name in demands.nodes]
    for name, found in zip(demands.nodes, at, strict=True):
        if len(found) != 1 or wan.is_direct:
            known = list_first([*(wan.titles or wan.routers)], 6) or "a WAN with routers"
            text = f"{format_value(name)} of the matrices is not a router of the WAN; allowed: {known}"
            raise ConditionsError([Mistake(f"{KEY}.matrices", text)])
    nodes = list(dict.fromkeys((*wan.routers, *(end for ends in wan.links for end in ends))))
    index, size = {name: number for number, name in enumerate(nodes)}, len(nodes)
    ends = [(index[a], index[b]) for one in wan.links for a, b in (one, one[::-1])]
    weights = [max(weight, 1e-9) for pair in zip(*_weights(wan), strict=True) for weight in pair]
    shortest = np.full((size, size), np.inf)
    for (a, b), weight in zip(ends, weights, strict=True):
        shortest[a, b] = min(shortest[a, b], weight)
    edges = csr_array((shortest[np.isfinite(shortest)], np.nonzero(np.isfinite(shortest))), shape=(size, size))
    apart = dijkstra(edges)
    wanted = np.argwhere(demands.bps.any(axis=0)).tolist()
    pairs, rows = [], []
    for dst in range(len(demands.nodes)):
        sources = [src for src, to in wanted if to == dst]
        of_router = _shares(at[dst][0], ends, weights, apart, routing) if sources else {}
        for src in sources:
            if at[src][0] not in of_router:
                text = f"no path leads from {demands.nodes[src]} to {demands.nodes[dst]}, which have a demand"
                raise ConditionsError([Mistake(f"{KEY}.matrices", f"{text}; allowed: a WAN that joins them")])
            pairs.append(src * len(demands.nodes) + dst)
            rows.append(of_router[at[src][0]])
    return pairs, np.array(rows).reshape(len(rows), 2 * len(wan.links))


def _weights(wan: WanSpec) -> tuple[list[float], list[float]]:
    """Return the weight of each link in both directions: its length, else its delay, else 1."""
    given: list[Sequence[float | None]] = [wan.km or wan.delays_s, wan.back_km or wan.km or wan.delays_s]
    known = [weight for way in given for weight in way if weight is not None]
    usual = median(known) if known else 1.0
    both = [[usual if weight is None else weight for weight in way] or [1.0] * len(wan.links) for way in given]
    return both[0], both[1]


def _shares(
    dst: int, ends: Sequence[tuple[int, int]], weights: Sequence[float], apart: Floats, routing: str
) -> dict[int, Floats]:
    """Return the share on each directed link of what each router sends to `dst`, by router."""
    near = 1e-9 * (1 + float(np.max(apart[np.isfinite(apart)], initial=0.0)))
    on_way: dict[int, list[tuple[int, int]]] = {}
    for link, ((a, b), weight) in enumerate(zip(ends, weights, strict=True)):
        if np.isfinite(apart[a, dst]) and abs(weight + apart[b, dst] - apart[a, dst]) <= near and a != dst:
            on_way.setdefault(a, []).append((link, b))
    found = {dst: np.zeros(len(ends))}
    for router in sorted(on_way, key=lambda one: float(apart[one, dst])):
        hops = on_way[router][:1] if routing == "shortest" else on_way[router]
        total = np.zeros(len(ends))
        for link, other in hops:
            total += found[other]
            total[link] += 1.0
        found[router] = total / len(hops)
    return found
